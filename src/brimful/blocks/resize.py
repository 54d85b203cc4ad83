"""The rows of a stage in blocks of another size. Small blocks are joined, since each block has a price; long ones are cut."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from brimful.blocks.blocks import Block, check_replay, rows_at, visible
from brimful.blocks.checksums import checksums, in_state
from brimful.blocks.ragged import EMPTY, concat, has_offsets, offsets_in
from brimful.core.errors import Counts, add_counts, apart, with_counts
from brimful.core.repeat import awaited
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State

COALESCED_ROWS: Final = 32
"""In a block of so many, a row costs a stage a few times as much as in one of 4,096; alone, 10 to 100 times as much. With more
rows, a first sample would wait until a user's function has made all of them."""


def coalesced(stage: Stage[Block], at: State) -> Generator[tuple[Block, State], None, None]:
    """The blocks of `stage` that follow `at`. Neighbours are joined up to 32 rows or 1 MB; larger blocks stay as they are.

    Where they are joined depends on `at` alone. A block without rows ends the block at hand: where rows are rare nobody waits
    for more of them, and states advance. An error is raised after the rows before it.
    """
    most = min(COALESCED_ROWS, BLOCK_ROWS)
    held: list[Block] = []
    rows = size = 0
    state: State = None
    with awaited(stage, at) as items:
        try:
            for (block, after), left_out in with_counts(items):
                count = block.num_rows
                own = sum(map(bytes_in, visible(block).columns)) if 0 < count < most else 0
                full = rows + count > most or size + own > BLOCK_BYTES
                if held and count and (full or not block.schema.equals(held[0].schema)):
                    yield concat(held), state
                    held, rows, size = [], 0, 0
                add_counts(left_out)
                held.append(block)
                rows, size, state = rows + count, size + own, after
                if not count or rows >= most:
                    yield concat(held), state
                    held, rows, size = [], 0, 0
        except Exception:
            if held:
                yield concat(held), state
            raise
        if held:
            yield concat(held), state


def resumed(
    stage: Stage[Block], items: Iterator[tuple[Block, State]], done: int, saved: list[int]
) -> Iterator[tuple[Block, State]]:
    """The items of a stage. Where `done` rows of the first block were given, it must have the checksums `saved`."""
    if done:
        (first, after), _ = apart(next, items, (EMPTY, END))  # what it left out was counted before
        check_replay(stage, checksums(first), saved, f"{done:,} rows into a block")
        yield first, after
    yield from items


@dataclass(frozen=True)
class Rebatch(Stage[Block]):
    """As `coalesced`, and long blocks cut: the first at 16 rows, later ones at 32, 64 and so on up to 4,096. So a slow function
    gives the first row soon.

    Where they are cut depends on the number of rows before. A block is cut only if it has more than twice the rows of a cut: so
    blocks that a stage below has cut already stay whole.

    State: [upstream's state before the block, rows of it given, its checksums if there are any, rows given in all].
    """

    verb = ""
    by_row = True

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, [], 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, done, saved, number = at
        with closing(coalesced(self.upstream, before)) as items:
            for block, after in resumed(self.upstream, items, done, saved):
                if not done:
                    saved = in_state(checksums(block)) if block.num_rows > 2 * rows_at(number) else []
                while block.num_rows - done > 2 * (rows := rows_at(number)):
                    done, number = done + rows, number + rows
                    yield block.slice(done - rows, rows), [before, done, saved, number]
                number += block.num_rows - done
                yield block.slice(done) if done else block, END if after == END else [after, 0, [], number]
                before, done = after, 0


class Cursor:
    """Takes the rows of a stage in any portions.

    State: [the stage's state before the block at hand, rows taken of it, its checksums].
    """

    def __init__(self, stage: Stage[Block], before: State, taken: int, saved: list[int]) -> None:
        self._stage = stage
        self._before, self._taken, self._checksums = before, taken, saved
        self._items = None if before == END else coalesced(stage, before)
        self.rest: Block = EMPTY  # of the block at hand
        self._after = before
        self._left_out: Counts = {}  # on the way to that block, of which no row was taken yet

    @property
    def state(self) -> list[State]:
        return [self._before, self._taken, self._checksums]

    def fill(self) -> int:
        """How many rows are at hand. Where there are none it reads on; 0 at the end."""
        while not self.rest.num_rows and self._items is not None:
            item, self._left_out = apart(next, self._items, None)
            block, self._after = item or (EMPTY, END)
            if self._taken:
                self._left_out = {}  # it was counted before
                at = f"{self._taken:,} rows into a block"
                check_replay(self._stage, checksums(block), self._checksums, at)
            if item is None:
                self._count()
                self.close()
                break
            self.rest = block.slice(self._taken)
            if not self.rest.num_rows:
                self._before, self._taken = self._after, 0
                self._count()
        return int(self.rest.num_rows)

    def take(self, rows: int) -> Block:
        """The next `rows` of the rows at hand."""
        if 0 < rows < self.rest.num_rows and not self._taken:
            self._checksums = in_state(checksums(self.rest))
        if rows:
            self._count()
        piece, self.rest = self.rest.slice(0, rows), self.rest.slice(rows)
        self._taken += rows
        if rows and not self.rest.num_rows:
            self._before, self._taken, self._checksums = self._after, 0, []
        return piece

    def close(self) -> None:
        if self._items is not None:
            self._items.close()
            self._items = None

    def _count(self) -> None:
        counts, self._left_out = self._left_out, {}
        add_counts(counts)


def bytes_in(array: pa.Array, width: Callable[[pa.DataType], int] = lambda kind: 8) -> int:
    """About how many bytes the rows of a column take. It depends on the rows alone: Arrow's own figures (`nbytes`, the size of a
    message) depend on the memory around them. Two blocks together take as much as apart.

    Args:
        width: the bytes of a value of a type of fixed width.
    """
    if pa.types.is_primitive(array.type):
        return width(array.type) * len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.StructArray):
        return sum(bytes_in(column, width) for column in array.flatten())
    if isinstance(array, pa.MapArray):
        first, last = offsets_in(array)[[0, -1]]
        return 8 * len(array) + bytes_in(array.keys[first:last], width) + bytes_in(array.items[first:last], width)
    if pa.types.is_nested(array.type):
        return 8 * len(array) + bytes_in(array.flatten(), width)
    if has_offsets(array.type):
        offsets = offsets_in(array)
        return 8 * len(array) + int(offsets[-1] - offsets[0])
    return 8 * len(array)
