"""Neighbouring samples side by side: a window that slides over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import KEY, Block, check_replay, visible, with_origin
from brimful.blocks.checksums import in_state
from brimful.blocks.ragged import EMPTY, array_of, concat, list_array
from brimful.blocks.rechunk import HeldBlock, drop_front, held_checksums
from brimful.blocks.resize import bytes_in, coalesced
from brimful.core.errors import DataError, again, settle, where
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, refuse_streams


@dataclass(frozen=True)
class SlidingWindow(Stage[Block]):
    """Row i has the values of `width` rows from row i on, a list a column; of n rows there are n - width + 1.

    A block gives the windows that end in it, in pieces of about 1 MB. Windows take `width` times the memory of the rows.

    State: [upstream's state before the block in which the next window begins, rows of it before that window, blocks read
    since, checksums of the rows held of these]. A resume reads those blocks again and checks them.
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
        with closing(coalesced(self.upstream, before)) as items:
            for block, after in again(items, replay):
                if block.num_rows:
                    rest = block.drop_columns([KEY]) if KEY in block.schema.names else block
                    held.append(HeldBlock(before, block.num_rows, rest.slice(skip)))
                    skip = 0
                elif held:
                    held[-1] = held[-1]._replace(blocks=held[-1].blocks + 1)
                before = after
                replayed, replay = replay, max(0, replay - 1)
                if replay:
                    continue
                if replayed:
                    self._check(held, saved)
                counts = self._counts(block, sum(one.rest.num_rows for one in held) - block.num_rows)
                rows = concat(one.rest for one in held) if counts else EMPTY
                for number, count in enumerate(counts or [0] * (not replayed), 1):
                    out, rows = self._windows(rows, count), rows.slice(count)
                    drop_front(held, count)
                    ended = after == END and number >= len(counts)
                    yield out, END if ended else self._state(held, after)
            if replay:
                self._check(held, saved)

    def _counts(self, block: Block, earlier: int) -> list[int]:
        """How many windows each piece has. They begin in the `earlier` rows that are held, or in the block, and end in the
        block. The length of a piece depends on the block alone, so that a resume after one of them cuts the same ones."""
        if not block.num_rows:
            return []
        size = sum(map(bytes_in, visible(block).columns)) // block.num_rows
        step = min(BLOCK_ROWS, max(1, BLOCK_BYTES // (self.width * max(1, size))))
        first = max(0, self.width - 1 - earlier)  # the row in which the next window ends
        ends = [*range(first + step, block.num_rows, step), block.num_rows]
        return np.diff([first, *ends]).tolist() if first < block.num_rows else []

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
        first = held[0]
        found, blocks = in_state(held_checksums(held).by_column()), sum(one.blocks for one in held)
        return [first.before, first.num_rows - first.rest.num_rows, blocks, found]

    def _check(self, held: Iterable[HeldBlock], saved: list[int]) -> None:
        check_replay(self.upstream, held_checksums(held).by_column(), saved, "the rows that were held")
