"""The rows of a stage, held, joined and cut anew. Small blocks are joined, since each block has a price; long ones are cut."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from brimful.core.counters import Counts, add_counts, apart, with_counts
from brimful.core.facts import Facts, facts_of, named, row_by_row
from brimful.core.repeat import awaited
from brimful.core.replay import reached
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.rows.pace import Patience
from brimful.tables.blocks import Block, begins, concat, rows_at, samples, visible
from brimful.tables.checksums import checksums, difference, in_state
from brimful.tables.ragged import EMPTY, bytes_in

COALESCED_ROWS: Final = 32
"""In a block of so many, a row costs a stage a few times as much as in one of 4,096; alone, 10 to 100 times as much. With more
rows, a first sample would wait until a user's function has made all of them."""


def coalesced(stage: Stage[Block], at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
    """The blocks of `stage` that follow `at`. Neighbours are joined up to 32 rows or 1 MB; larger blocks stay as they are.

    Where they are joined depends on `at` alone; but rows of a stage that is `cut_by_time` go on as soon as somebody has waited
    for them. A block without rows ends the block at hand: where rows are rare nobody waits for more of them, and states advance.
    An error is raised after the rows before it.
    """
    most = min(COALESCED_ROWS, BLOCK_ROWS)
    held: list[Block] = []
    rows = size = 0
    state: State = None
    patience = Patience(facts_of(stage).cut_by_time and run.replay is None)
    with awaited(stage, at, run) as items:
        try:
            for (block, after), left_out in with_counts(items):
                count = block.num_rows
                own = sum(map(bytes_in, visible(block).columns)) if 0 < count < most else 0
                full = rows + count > most or size + own > BLOCK_BYTES
                slow = patience.over
                if held and count and (full or not block.schema.equals(held[0].schema)):
                    yield concat(held), state
                    held, rows, size = [], 0, 0
                add_counts(left_out)
                held.append(block)
                rows, size, state = rows + count, size + own, after
                if not count or rows >= most or slow:
                    yield concat(held), state
                    held, rows, size = [], 0, 0
                    patience.begin()
        except Exception:
            if held:
                yield concat(held), state
            raise
        if held:
            yield concat(held), state


def resumed(
    stage: Stage[Block],
    items: Iterator[tuple[Block, State]],
    done: int,
    compared: int,
    saved: list[int],
    run: Run,
    seen: Callable[[Block], Block] = lambda block: block,
) -> Iterator[tuple[Block, State]]:
    """The items of a stage after a state that says how many rows are done of a block of `compared` rows. These come first, as one
    block, in whatever blocks they come now, and must have the checksums `saved` in what is `seen` of them."""
    if compared:
        held: list[Block] = []
        after: State = END
        while sum(block.num_rows for block in held) < compared:
            item, _ = apart(next, items, None)  # what it left out was counted before
            if item is None:
                break
            held.append(item[0])
            after = item[1]
        first = concat(held)
        check_replay(
            run, stage, checksums(seen(first.slice(0, compared))), saved, f"{done:,} rows into a block{begins(first)}"
        )
        yield first, after
    yield from items


def read_again(items: Iterator[tuple[Block, State]], rows: int, held: Sized) -> Iterator[tuple[Block, State, int]]:
    """The items after a state, each with how many of its rows were read before the state was saved, `rows` in all. What was left
    out on the way to these was counted then.

    While rows are `held`, a state has blocks without a row that follow them read again: what was left out on the way to these
    counts with the next row.
    """
    waiting: list[Counts] = []
    for (block, after), left_out in with_counts(items):
        old = min(rows, block.num_rows)
        if not rows:
            waiting.append(left_out)
        rows -= old
        if block.num_rows > old or not held or after == END:
            while waiting:
                add_counts(waiting.pop(0))
        yield block, after, old
    for left_out in waiting:
        add_counts(left_out)


@dataclass(frozen=True)
class Rebatch(Stage[Block]):
    """As `coalesced`, and long blocks cut: the first at 16 rows, later ones at 32, 64 and so on up to 4,096. So a slow function
    gives the first row soon.

    Where they are cut depends on the number of rows before. A block is cut only if it has more than twice the rows of a cut: so
    blocks that a stage below has cut already stay whole.

    State: [upstream's state before the block, rows of it given, if there are any its rows and their checksums, rows in all].
    """

    verb = ""

    upstream: Stage[Block]

    def facts(self, *inputs: Facts) -> Facts:
        return row_by_row(self, *inputs)

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, [], 0]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        return self.cut(at, run, rows_at)

    def cut(self, at: State, run: Run, rows_after: Callable[[int], int]) -> Generator[tuple[Block, State], None, None]:
        """As `items`, cut at as many rows as `rows_after` says, for the number of rows before."""
        before, done, compared, saved, number = at
        with closing(coalesced(self.upstream, before, run)) as items:
            for block, after in resumed(self.upstream, items, done, compared, saved, run):
                while block.num_rows - done > 2 * (rows := rows_after(number)):
                    if compared != block.num_rows:
                        compared, saved = block.num_rows, in_state(checksums(block))
                    done, number = done + rows, number + rows
                    yield block.slice(done - rows, rows), [before, done, compared, saved, number]
                number += block.num_rows - done
                yield block.slice(done) if done else block, END if after == END else [after, 0, 0, [], number]
                before, done, compared = after, 0, 0


class Cursor:
    """Takes the rows of a stage in any portions.

    State: [the stage's state before the block at hand, rows taken of it, if there are any its rows and their checksums].
    """

    def __init__(
        self, stage: Stage[Block], run: Run, before: State, taken: int, compared: int, saved: list[int]
    ) -> None:
        self._before, self._taken, self._compared, self._checksums = before, taken, compared, saved
        self._blocks = None if before == END else coalesced(stage, before, run)
        self._items = iter(()) if self._blocks is None else resumed(stage, self._blocks, taken, compared, saved, run)
        self.rest: Block = EMPTY  # of the block at hand
        self._after = before
        self._left_out: Counts = {}  # on the way to that block, of which no row was taken yet

    @property
    def state(self) -> list[State]:
        return [self._before, self._taken, self._compared, self._checksums]

    def fill(self) -> int:
        """How many rows are at hand. Where there are none it reads on; 0 at the end."""
        while not self.rest.num_rows and self._blocks is not None:
            item, self._left_out = apart(next, self._items, None)
            block, self._after = item or (EMPTY, END)
            if item is None:
                self._count()
                self.close()
                break
            if self._taken and self._compared != block.num_rows:  # it was joined with rows that follow
                self._compared, self._checksums = block.num_rows, in_state(checksums(block))
            self.rest = block.slice(self._taken)
            if not self.rest.num_rows:
                self._go_on()
                self._count()
        return int(self.rest.num_rows)

    def take(self, rows: int) -> Block:
        """The next `rows` of the rows at hand."""
        if 0 < rows < self.rest.num_rows and not self._taken:
            self._compared, self._checksums = self.rest.num_rows, in_state(checksums(self.rest))
        if rows:
            self._count()
        piece, self.rest = self.rest.slice(0, rows), self.rest.slice(rows)
        self._taken += rows
        if rows and not self.rest.num_rows:
            self._go_on()
        return piece

    def close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

    def _go_on(self) -> None:
        """To the next block."""
        self._before, self._taken, self._compared, self._checksums = self._after, 0, 0, []

    def _count(self) -> None:
        counts, self._left_out = self._left_out, {}
        add_counts(counts)


@dataclass(frozen=True)
class Unbatch(Stage[Any]):
    """The rows of each block as dicts, or the user's own objects that they stand for.

    State: [upstream's state before the block, rows of it handed on, if there are any its rows and their checksums].
    """

    verb = ""

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        before, done, compared, saved = at
        originals = facts_of(self.upstream).originals()
        with awaited(self.upstream, before, run) as items:
            for block, after in resumed(self.upstream, items, done, compared, saved, run):
                if compared != block.num_rows > 1:
                    compared, saved = block.num_rows, in_state(checksums(block))
                rest = block.slice(done)
                rows = samples(rest) if originals is None else originals.samples(rest)
                for row, sample in enumerate(rows, start=done + 1):
                    if row < block.num_rows:
                        yield sample, [before, row, compared, saved]
                    else:
                        yield sample, END if after == END else [after, 0, 0, []]
                before, done, compared = after, 0, 0


def check_rows(run: Run, stage: Stage[Any], ours: dict[str, int], saved: list[int], at: str) -> None:
    """Refuses to go on where other rows were read again than those that the state was saved over; logs it where the user allows
    them.

    Args:
        ours: the checksums of the rows that were read again, by column.
        saved: those in the state.
    Raises:
        StateError: naming the stage, the place, the column and both checksums.
    """
    if words := difference(ours, saved):
        run.other_rows(f"{named(stage)} gave other rows at {at} than when this state was saved: {words}")


def check_replay(run: Run, stage: Stage[Any], ours: dict[str, int], saved: list[int], at: str) -> None:
    """As `check_rows`. Called when all of a replay is read: only so far do weights hold with which the state was saved."""
    check_rows(run, stage, ours, saved, at)
    reached(run)
