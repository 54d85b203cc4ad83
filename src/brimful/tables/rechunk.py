"""Cuts the stream anew, into chunks or packs. Rows that no chunk has yet are held; a state saves where they begin, never the
rows."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.repeat import endless
from brimful.core.stage import END, Stage, State
from brimful.plan.errors import settle
from brimful.plan.once import once
from brimful.tables.blocks import Block, check_replay
from brimful.tables.checksums import RowChecksums, in_state
from brimful.tables.origins import ORIGIN
from brimful.tables.ragged import EMPTY, Ragged, array_of, concat, cut_together, list_array, ragged, with_column
from brimful.tables.resize import COALESCED_ROWS, coalesced, read_again

MOST_LEFT_OUT: Final = 8_192
"""Rows that may be left out between two of one chunk: a resume reads them again."""


@dataclass(frozen=True)
class Rechunk(Stage[Block]):
    """Abstract: cuts the rows of the stream anew, and holds the rows that no output has taken yet. Rows that put no token into a
    chunk are not held.

    Held rows are joined when they have the tokens of a chunk. To join them for each block would take quadratic time.

    A few rows of a block of many end with a block without rows: else whoever joins small blocks (`coalesced`) would join those of
    very many rows, which a resume reads again.

    State: [upstream's state before the block in which the held rows begin; of the rows from there on that put tokens into chunks,
    how many are done, and then values of the next; all rows that were read from there on; checksums of those that are held], and
    1 where a block without rows follows. A resume reads those rows again, in whatever blocks they come, checks them and yields
    nothing for them.
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
        return [self.upstream.start(epoch), 0, 0, 0, []]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, skip, value, replay, saved = at[:5]
        if len(at) > 5:
            yield EMPTY, at[:5]
        held: deque[HeldBlock] = deque()
        tokens, read, found = (
            0,
            0,
            RowChecksums(),
        )  # of the held rows, all read since they begin, and the rows' checksums
        left_out = 0  # rows, so far
        with closing(coalesced(self.upstream, before)) as items:
            for block, after, old in read_again(items, replay, held):
                rows = self._target(block)
                kept, earlier = self._kept(rows, old)
                fresh = len(kept) - int(np.searchsorted(kept, old))
                if len(kept) < rows.num_rows:
                    rows = rows.take(array_of(kept))
                done = min(skip, rows.num_rows)
                skip -= done
                if rows.num_rows > done:
                    taken = HeldBlock(before, rows.num_rows, rows, block.num_rows, left_out + earlier)
                    held.append(taken if held else taken.without_front(done, value))
                    tokens += self._tokens_of(held[-1])
                    if old:
                        found.add(held[-1].rest.slice(0, held[-1].rest.num_rows - fresh))
                elif held:
                    held[-1] = held[-1]._replace(read=held[-1].read + block.num_rows)
                read += block.num_rows * (len(held) > 0)
                left_out += block.num_rows - len(kept)
                before = after
                replay -= old
                if old and not replay:
                    self._check(found, saved)
                if replay or (0 < old == block.num_rows and after != END):
                    continue
                out = EMPTY
                open_for = left_out - int(held[0].earlier[0]) if held else 0
                if tokens >= self.chunk_length or open_for >= MOST_LEFT_OUT or after == END:
                    out, done, value = self._cut(held, left_out, after == END)
                    drop_front(held, done, value)
                    tokens, found = sum(map(self._tokens_of, held)), held_checksums(held)
                    read = sum(one.read for one in held)
                elif fresh:
                    found.add(held[-1].rest.slice(held[-1].rest.num_rows - fresh))
                if after == END:
                    yield out, END
                    break
                if held:
                    row = held[0].num_rows - held[0].rest.num_rows
                    state = [held[0].before, row, value, read, in_state(found.by_column())]
                else:
                    value = 0
                    state = [after, 0, 0, 0, []]
                if 0 < out.num_rows < COALESCED_ROWS < block.num_rows:
                    yield out, [*state, 1]
                    out = EMPTY
                yield out, state
            if replay:
                self._check(found, saved)
            elif held and before != END:  # upstream ended without saying so in advance
                yield self._cut(held, left_out, True)[0], END

    def _check(self, found: RowChecksums, saved: list[int]) -> None:
        check_replay(self.upstream, found.by_column(), saved, "the rows that were held")

    def _cut(self, held: Sequence[HeldBlock], left_out: int, last: bool) -> tuple[Block, int, int]:
        if not held:
            return EMPTY, 0, 0
        rows = concat(block.rest for block in held)
        since = left_out - np.concatenate([block.earlier for block in held])
        return self.cut(rows, [ragged(rows, name) for name in self.target_columns], since, last)

    def _kept(self, rows: Block, old: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that put tokens into a chunk, and how many others come before each of them; these are counted, but for those
        among the first `old` rows, which are read again."""
        if not rows.num_rows:
            return _NONE, _NONE
        sizes = ragged(rows, self.target_columns[0]).lengths
        some: NDArray[np.bool_] = self.counts(sizes) > 0
        self.leave_out(sizes[old:][~some[old:]])
        return np.flatnonzero(some), np.cumsum(~some, dtype=np.int64)[some]

    def _tokens_of(self, held: HeldBlock) -> int:
        return int(self.counts(ragged(held.rest, self.target_columns[0]).lengths).sum())

    @abstractmethod
    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens rows of these sizes put into chunks: none is complete with fewer than `chunk_length`."""

    def leave_out(self, sizes: NDArray[np.int64]) -> None:
        """Counts rows of these sizes, which put none into a chunk."""

    @abstractmethod
    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        """The block that the held rows give, and how much of them is done: rows, and then values of the next row.

        Args:
            columns: the target columns of the held rows.
            since: how many rows were left out after each of them.
            last: whether no rows follow.
        """

    def _target(self, block: Block) -> Block:
        if not block.num_rows:
            return EMPTY
        cut_together(block, self.target_columns, self.verb)
        origin = [ORIGIN] if block.schema.get_field_index(ORIGIN) >= 0 else []
        return block.select([*self.target_columns, *origin])


_NONE: Final = np.zeros(0, dtype=np.int64)


class HeldBlock(NamedTuple):
    """A block of which rows are held: the state before it, its rows, those that are left of them, how many rows were read with it
    and with blocks that follow it and of which none is held, and how many rows were left out before each of those that are left.

    They are joined anew for each cut, so that a type ends with the rows that had it.
    """

    before: State
    num_rows: int
    rest: Block
    read: int
    earlier: NDArray[np.int64] = _NONE

    def without_front(self, rows: int, values: int) -> HeldBlock:
        """Without its first `rows` rows and, in the row after them, without the first `values` of each list."""
        return self._replace(rest=without_front(self.rest, rows, values), earlier=self.earlier[rows:])


def held_checksums(held: Iterable[HeldBlock]) -> RowChecksums:
    """The checksums of some held rows."""
    found = RowChecksums()
    for one in held:
        found.add(one.rest)
    return found


def drop_front(held: deque[HeldBlock], rows: int, values: int = 0) -> None:
    """Forgets the first `rows` held rows, and the first `values` of each list in the row after them."""
    while held and rows >= held[0].rest.num_rows:
        rows -= held.popleft().rest.num_rows
    if held:
        held[0] = held[0].without_front(rows, values)


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
