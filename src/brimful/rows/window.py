"""Neighbouring samples side by side: a window that slides over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import KEY, Block, check_replay, visible, with_origin
from brimful.blocks.ragged import EMPTY, array_of, concat, fingerprint, list_array
from brimful.blocks.resize import bytes_in, gathered
from brimful.core.errors import DataError, settle, where
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, refuse_streams


@dataclass(frozen=True)
class Window(Stage[Block]):
    """Row i has the values of `width` rows from row i on, a list a column; of n rows there are n - width + 1.

    A block leads to the windows that end in it, in pieces of about 1 MB: what they take is `width` times what the rows take.

    State: [upstream's state before the block in which the next window begins, rows of it before that window, blocks read
    since, crc32 of the rows held of these]. A resume reads those blocks again and checks them.
    """

    upstream: Stage[Block]
    width: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "window", "slides over")
        settle(self, "width", 1, "sample")

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, skip, replay, crc = at
        held: deque[_Held] = deque()  # the rows from which windows are to come
        with closing(gathered(self.upstream, before)) as items:
            for block, after in items:
                if block.num_rows:
                    rest = block.drop_columns([KEY]) if KEY in block.schema.names else block
                    held.append(_Held(before, block.num_rows, rest.slice(skip), 1))
                    skip = 0
                elif held:
                    held[-1] = held[-1]._replace(blocks=held[-1].blocks + 1)
                before = after
                replayed, replay = replay, max(0, replay - 1)
                if replay:
                    continue
                if replayed:
                    self._check(held, crc)
                counts = self._counts(block, sum(one.rest.num_rows for one in held) - block.num_rows)
                rows = concat(one.rest for one in held) if counts else EMPTY
                for number, count in enumerate(counts or [0] * (not replayed), 1):
                    out, rows = self._windows(rows, count), rows.slice(count)
                    _drop_front(held, count)
                    ended = after == END and number >= len(counts)
                    yield out, END if ended else self._state(held, after)
            if replay:
                self._check(held, crc)

    def _counts(self, block: Block, earlier: int) -> list[int]:
        """Of how many windows each piece is: of those that begin in the `earlier` rows that are held, and in a block, and end
        in the block. How long they are depends on the block alone, so that a resume after one of them cuts the same ones."""
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
            raise DataError(f"window: column {name!r} is null (near {where(rows, 0)}); filter it out or fill it")
        kind = pa.fixed_shape_tensor(tensors.type.value_type, [self.width, *tensors.type.shape])
        storage = pa.FixedSizeListArray.from_arrays(tensors.storage.flatten(), kind.storage_type.list_size)
        return pa.ExtensionArray.from_storage(kind, storage)

    def _state(self, held: deque[_Held], after: State) -> State:
        if not held:
            return [after, 0, 0, 0]
        first = held[0]
        return [first.before, first.num_rows - first.rest.num_rows, sum(one.blocks for one in held), _crc(held)]

    def _check(self, held: Iterable[_Held], crc: int) -> None:
        check_replay(self.upstream, _crc(held), crc, "the rows that were held")


class _Held(NamedTuple):
    """A block of which rows are held: the state before it, its rows, those that are left of them, and how many blocks it and
    those without rows that follow it are."""

    before: State
    num_rows: int
    rest: Block
    blocks: int


def _crc(held: Iterable[_Held]) -> int:
    crc = 0
    for one in held:
        crc = crc32(fingerprint(one.rest).to_bytes(4, "little"), crc)
    return crc


def _drop_front(held: deque[_Held], rows: int) -> None:
    while held and rows >= held[0].rest.num_rows:
        rows -= held.popleft().rest.num_rows
    if held:
        held[0] = held[0]._replace(rest=held[0].rest.slice(rows))
