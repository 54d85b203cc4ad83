"""What cuts the stream anew (into chunks, into packs): it holds the rows that are not yet handed on, and saves where they
began, never the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np

from brimful.blocks.blocks import Block, check_replay
from brimful.blocks.ragged import (
    EMPTY,
    Ragged,
    concat,
    fingerprint,
    list_array,
    ragged,
    with_column,
)
from brimful.blocks.resize import gathered
from brimful.core.errors import ORIGIN, DataError, settle, where
from brimful.core.once import once
from brimful.core.repeat import endless
from brimful.core.stage import END, Stage, State


@dataclass(frozen=True)
class Carried(Stage[Block]):
    """Abstract: cuts the rows of the stream anew, holding those that no output has taken yet.

    Held rows are joined once there are the tokens of a chunk: joined for each block, they would cost the square of it.

    State: [upstream's state before the block in which the held rows begin, rows and then values of it that are done,
    blocks read since, crc32 of their held rows]. A resume reads those blocks again, checks them and yields nothing for them.
    """

    upstream: Stage[Block]
    target_columns: tuple[str, ...]
    chunk_length: int

    def __post_init__(self) -> None:
        settle(self, "chunk_length", 1, "token")

    @once
    def over_epochs(self) -> Stage[Block]:
        return replace(self, upstream=endless(self.upstream))

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, row, value, replay, crc = at
        held: deque[_Held] = deque()
        tokens = found = 0  # of the held rows, and their crc32
        with closing(gathered(self.upstream, before)) as items:
            for block, after in items:
                rows = self._target(block)
                if held or rows.num_rows:
                    held.append(_Held(before, block.num_rows, rows if held else without_front(rows, row, value)))
                    tokens += self._tokens_of(held[-1])
                before = after
                if replay:
                    replay -= 1
                    if not replay:
                        found = _crc(held)
                        self._check(found, crc)
                    continue
                out = EMPTY
                if tokens >= self.chunk_length or after == END:
                    out, done, value = self.cut(_rows_of(held), after == END)
                    _drop_front(held, done, value)
                    tokens, found = sum(map(self._tokens_of, held)), _crc(held)
                elif held:
                    found = _crc([held[-1]], found)
                if after == END:
                    yield out, END
                elif held:
                    row = held[0].num_rows - held[0].rest.num_rows
                    yield out, [held[0].before, row, value, len(held), found]
                else:
                    row = value = 0
                    yield out, [after, 0, 0, 0, 0]
            if replay:
                self._check(_crc(held), crc)
            elif held and before != END:  # upstream ended without saying so in advance
                yield self.cut(_rows_of(held), True)[0], END

    def _check(self, found: int, crc: int) -> None:
        check_replay(self.upstream, found, crc, "the rows that were held")

    @abstractmethod
    def tokens(self, rows: Block) -> int:
        """How much of a chunk some rows take: without `chunk_length` of these no chunk is complete."""

    def _tokens_of(self, held: _Held) -> int:
        return self.tokens(held.rest) if held.rest.num_rows else 0

    @abstractmethod
    def cut(self, held: Block, last: bool) -> tuple[Block, int, int]:
        """What the held rows give: a block, and how many rows, and then values of the next row, are done."""

    def _target(self, block: Block) -> Block:
        if not block.num_rows:
            return EMPTY
        equally_long(block, self.target_columns)
        origin = [ORIGIN] if block.schema.get_field_index(ORIGIN) >= 0 else []
        return block.select([*self.target_columns, *origin])


class _Held(NamedTuple):
    """A block of which some rows are held: the state before it, its rows, and what is left of them.

    They are joined for each cut: types that only the rows before them had must not outlive those.
    """

    before: State
    num_rows: int
    rest: Block


def _rows_of(held: Iterable[_Held]) -> Block:
    return concat(block.rest for block in held)


def _crc(held: Iterable[_Held], crc: int = 0) -> int:
    """A crc32 of some held rows, where `crc` is that of those before them."""
    for one in held:
        crc = crc32(fingerprint(one.rest).to_bytes(4, "little"), crc)
    return crc


def _drop_front(held: deque[_Held], rows: int, values: int) -> None:
    """Forgets the first `rows` held rows, and the first `values` of each list in the row after them."""
    while held and rows >= held[0].rest.num_rows:
        rows -= held.popleft().rest.num_rows
    if held:
        held[0] = held[0]._replace(rest=without_front(held[0].rest, rows, values))


def without_front(block: Block, rows: int, values: int) -> Block:
    """A block without its first `rows` rows and, in the row after them, without the first `values` of each list."""
    block = block.slice(rows)
    if not values or not block.num_rows:
        return block
    for name in block.schema.names:
        if name != ORIGIN:
            column = ragged(block, name)
            offsets = column.offsets.copy()
            offsets[0] += values
            block = with_column(block, name, list_array(column.values, offsets))
    return block


def equally_long(block: Block, names: Sequence[str]) -> list[Ragged]:
    """Several list columns of a block.

    Raises:
        DataError: where a row has lists of two lengths; with both and its place.
    """
    columns = [ragged(block, name) for name in names]
    sizes = columns[0].lengths
    for name, column in zip(names[1:], columns[1:]):
        differ = np.flatnonzero(column.lengths != sizes)
        if len(differ):
            row = int(differ[0])
            raise DataError(
                f"columns {names[0]!r} and {name!r} must be equally long "
                f"(got {sizes[row]:,} and {column.lengths[row]:,}; {where(block, row)})"
            )
    return columns
