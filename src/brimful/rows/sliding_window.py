"""Neighbouring samples side by side: a window that slides over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, refuse_streams
from brimful.plan.errors import DataError, settle
from brimful.tables.blocks import KEY, Block, check_replay, visible, with_origin
from brimful.tables.checksums import RowChecksums, in_state
from brimful.tables.origins import where
from brimful.tables.ragged import EMPTY, array_of, concat, list_array
from brimful.tables.rechunk import HeldBlock, drop_front, held_checksums
from brimful.tables.resize import bytes_in, coalesced, read_again


@dataclass(frozen=True)
class SlidingWindow(Stage[Block]):
    """Row i has the values of `width` rows from row i on, a list a column; of n rows there are n - width + 1.

    A block gives the windows that end in it, in pieces of about 1 MB. Windows take `width` times the memory of the rows.

    State: [upstream's state before the block in which the next window begins, rows of it before that window, rows read from that
    state on, checksums of those that are held]. A resume reads those rows again, in whatever blocks they come, and checks them.
    """

    upstream: Stage[Block]
    width: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "sliding_window", "slides over")
        settle(self, "width", 1, "sample")

    def known_columns(self) -> None:
        """Lists of those of its neighbours, as rows show them."""

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, []]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, skip, replay, saved = at
        held: deque[HeldBlock] = deque()  # the rows from which windows are to come
        found = RowChecksums()  # of those that are read again
        with closing(coalesced(self.upstream, before)) as items:
            for block, after, old in read_again(items, replay, held):
                done = min(skip, block.num_rows)
                skip -= done
                if block.num_rows > done:
                    rest = block.drop_columns([KEY]) if KEY in block.schema.names else block
                    held.append(HeldBlock(before, block.num_rows, rest.slice(done), block.num_rows))
                    if old > done:
                        found.add(rest.slice(done, old - done))
                before = after
                replay -= old
                if old and not replay:
                    self._check(found, saved)
                if replay:
                    continue
                sizes = self._sizes(block, sum(one.rest.num_rows for one in held) + 1 - self.width)
                rows = concat(one.rest for one in held) if sizes else EMPTY
                for number, size in enumerate(sizes or [0] * (after == END or not 0 < old == block.num_rows), 1):
                    out, rows = self._windows(rows, size), rows.slice(size)
                    drop_front(held, size)
                    ended = after == END and number >= len(sizes)
                    yield out, END if ended else self._state(held, after)
            if replay:
                self._check(found, saved)

    def _sizes(self, block: Block, windows: int) -> list[int]:
        """How many windows each piece has, of those that are complete with the block. It depends on the block alone, so that a
        resume after one of them cuts the same ones."""
        if windows < 1 or not block.num_rows:
            return []
        size = sum(map(bytes_in, visible(block).columns)) // block.num_rows
        step = min(BLOCK_ROWS, max(1, BLOCK_BYTES // (self.width * max(1, size))))
        sizes: list[int] = np.diff([*range(0, windows, step), windows]).tolist()
        return sizes

    def _windows(self, rows: Block, count: int) -> Block:
        """The first `count` windows of some rows."""
        if not count:
            return EMPTY
        places = array_of((np.arange(count)[:, None] + np.arange(self.width)).ravel())
        bounds = np.arange(count + 1) * self.width
        firsts = rows.slice(0, count)
        out = visible(firsts).select([])
        for name in visible(rows).schema.names:
            values = rows.column(name).take(places)
            if isinstance(values.type, pa.FixedShapeTensorType):
                column = self._stacked(values, name, rows)
            else:
                column = list_array(values, bounds)
            out = out.append_column(name, column)
        return with_origin(out, firsts, np.arange(count))

    def _stacked(self, tensors: pa.Array, name: str, rows: Block) -> pa.Array:
        """Arrays of one shape as arrays of one more dimension: a list would not know their shape."""
        if tensors.null_count:
            raise DataError(
                f"sliding_window: column {name!r} is null or missing (near {where(rows, 0)}); filter it out or fill it"
            )
        kind = pa.fixed_shape_tensor(tensors.type.value_type, [self.width, *tensors.type.shape])
        storage = pa.FixedSizeListArray.from_arrays(tensors.storage.flatten(), kind.storage_type.list_size)
        return pa.ExtensionArray.from_storage(kind, storage)

    def _state(self, held: deque[HeldBlock], after: State) -> State:
        if not held:
            return [after, 0, 0, []]
        first, read = held[0], sum(one.read for one in held)
        return [first.before, first.num_rows - first.rest.num_rows, read, in_state(held_checksums(held).by_column())]

    def _check(self, found: RowChecksums, saved: list[int]) -> None:
        check_replay(self.upstream, found.by_column(), saved, "the rows that were held")
