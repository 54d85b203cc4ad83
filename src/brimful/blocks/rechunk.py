"""Cuts the stream anew, into chunks or packs. Rows that no chunk has yet are held; a state saves where they begin, never the
rows."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa

from brimful.blocks.blocks import Block, check_replay
from brimful.blocks.ragged import EMPTY, Ragged, concat, cut_together, fingerprint, list_array, ragged, with_column
from brimful.blocks.resize import coalesced
from brimful.core.errors import ORIGIN, again, settle
from brimful.core.once import once
from brimful.core.repeat import endless
from brimful.core.stage import END, Stage, State


@dataclass(frozen=True)
class Rechunk(Stage[Block]):
    """Abstract: cuts the rows of the stream anew, and holds the rows that no output has taken yet.

    Held rows are joined when they have the tokens of a chunk. To join them for each block would take quadratic time.

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

    def known_columns(self) -> pa.Schema | None:
        below = self.upstream.known_columns()
        if below is None or not {*self.target_columns} <= {*below.names}:  # whoever reads a row is told what is missing
            return None
        return pa.schema([below.field(name) for name in self.target_columns])

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, row, value, replay, crc = at
        held: deque[HeldBlock] = deque()
        tokens = found = 0  # of the held rows, and their crc32
        with closing(coalesced(self.upstream, before)) as items:
            for block, after in again(items, replay):
                rows = self._target(block)
                if held or rows.num_rows:
                    held.append(HeldBlock(before, block.num_rows, rows if held else without_front(rows, row, value)))
                    tokens += self._tokens_of(held[-1])
                before = after
                if replay:
                    replay -= 1
                    if not replay:
                        found = held_crc(held)
                        self._check(found, crc)
                    continue
                out = EMPTY
                if tokens >= self.chunk_length or after == END:
                    out, done, value = self._cut(held, after == END)
                    drop_front(held, done, value)
                    tokens, found = sum(map(self._tokens_of, held)), held_crc(held)
                elif held:
                    found = held_crc([held[-1]], found)
                if after == END:
                    yield out, END
                elif held:
                    row = held[0].num_rows - held[0].rest.num_rows
                    yield out, [held[0].before, row, value, len(held), found]
                else:
                    row = value = 0
                    yield out, [after, 0, 0, 0, 0]
            if replay:
                self._check(held_crc(held), crc)
            elif held and before != END:  # upstream ended without saying so in advance
                yield self._cut(held, True)[0], END

    def _check(self, found: int, crc: int) -> None:
        check_replay(self.upstream, found, crc, "the rows that were held")

    def _cut(self, held: Iterable[HeldBlock], last: bool) -> tuple[Block, int, int]:
        rows = concat(block.rest for block in held)
        columns = [ragged(rows, name) for name in self.target_columns] if rows.num_rows else []
        return self.cut(rows, columns, last) if columns else (EMPTY, 0, 0)

    @abstractmethod
    def tokens(self, rows: Block) -> int:
        """The tokens that some rows put into a chunk: no chunk is complete with fewer than `chunk_length`."""

    def _tokens_of(self, held: HeldBlock) -> int:
        return self.tokens(held.rest) if held.rest.num_rows else 0

    @abstractmethod
    def cut(self, held: Block, columns: list[Ragged], last: bool) -> tuple[Block, int, int]:
        """The block that the held rows give, and how much of them is done: rows, and then values of the next row.

        Args:
            columns: the target columns of the held rows.
            last: whether no rows follow.
        """

    def _target(self, block: Block) -> Block:
        if not block.num_rows:
            return EMPTY
        cut_together(block, self.target_columns, self.verb)
        origin = [ORIGIN] if block.schema.get_field_index(ORIGIN) >= 0 else []
        return block.select([*self.target_columns, *origin])


class HeldBlock(NamedTuple):
    """A block of which rows are held: the state before it, its rows, those that are left of them, and how many blocks it and
    those without rows that follow it are.

    They are joined anew for each cut, so that a type ends with the rows that had it.
    """

    before: State
    num_rows: int
    rest: Block
    blocks: int = 1


def held_crc(held: Iterable[HeldBlock], crc: int = 0) -> int:
    """A crc32 of some held rows; `crc`: that of the rows before them."""
    for one in held:
        crc = crc32(fingerprint(one.rest).to_bytes(4, "little"), crc)
    return crc


def drop_front(held: deque[HeldBlock], rows: int, values: int = 0) -> None:
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
