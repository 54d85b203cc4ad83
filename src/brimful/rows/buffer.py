"""The rows of a stage, held, joined and cut anew. Small blocks are joined, since each block has a price; long ones are cut."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sized
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

from brimful.core.counters import Counts, add_counts, apart, with_counts
from brimful.core.facts import Facts, facts_of, named, row_by_row
from brimful.core.repeat import awaited
from brimful.core.replay import reached
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.rows.pace import Patience
from brimful.tables.blocks import Block, begins, concat, rows_at, samples, visible
from brimful.tables.checksums import RowChecksums, checksums, difference, in_state
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


class _HeldBlock(NamedTuple):
    """Rows of a block that are held: the state before the block, the rows, their numbers and that of the first row of the block;
    and what a state says that begins inside of the block: how many rows it has, and their checksums."""

    before: State
    rest: Block
    numbers: range
    first: int
    whole: Callable[[], dict[str, Any]]

    def at(self, row: int) -> State:
        """The position of one of the rows."""
        done = self.numbers[row] - self.first
        return {"rows": self.before, "done": done, **self.whole()} if done else {"rows": self.before}

    def after(self, rows: int) -> _HeldBlock:
        """Without its first rows."""
        return self._replace(rest=self.rest.slice(rows), numbers=self.numbers[rows:])


class ReplayBuffer:
    """Rows of a stage that are held. They are read on as they are asked for, and a position says where they begin.

    A position counts rows from a state of the stage on, so that any blocks will do: {"rows": that state, "done": rows from there
    that are finished, "of": rows from there that are compared, "crc": their checksums}. Zeros are left out. A resume reads `of`
    rows again, compares them, and drops those that are `done`.

    What was left out on the way to a row counts when the row is taken: no resume reads it again then.

    Args:
        at: a position; what else is in it is somebody else's.
        joins: small blocks are read joined (`coalesced`).
        seen: what is held of a block: all of its rows.
        compared: what is compared of them.
    """

    def __init__(
        self,
        stage: Stage[Block],
        at: State,
        run: Run,
        *,
        joins: bool = False,
        seen: Callable[[Block], Block] = lambda block: block,
        compared: Callable[[Block], Block] = lambda block: block,
    ) -> None:
        self._stage, self._run, self._seen, self._compared = stage, run, seen, compared
        self._after: State = at["rows"]
        self._again: dict[str, Any] = {name: at[name] for name in ("done", "of", "crc") if name in at}
        self._items = (coalesced if joins else _uncut)(stage, self._after, run)
        self._blocks: deque[_HeldBlock] = deque()
        self._left_out: deque[tuple[int, Counts]] = deque()  # on the way to so many rows
        self._read = 0  # rows, so far
        self.rows = 0  # that are held
        self.ended = False

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._items.close()

    def read(self) -> bool:
        """Reads the next block, or all that was read before the position. False at the end."""
        if self._again:
            self._read_again(**self._again)
            return True
        before = self._read
        more, left_out = self._next()
        if left_out:
            self._left_out.append((before + (self._read > before), left_out))
            self._count()
        return more

    def fill(self, rows: int = 1) -> int:
        """Reads on until so many rows are held, or the end; how many are."""
        while self.rows < rows and self.read():
            pass
        return self.rows

    def peek(self) -> Block:
        """The rows that are held."""
        return concat(block.rest for block in self._blocks)

    def take(self, rows: int) -> Block:
        """The first rows, which are done then."""
        taken = []
        self.rows -= rows
        while rows and rows >= self._blocks[0].rest.num_rows:
            taken.append(self._blocks.popleft().rest)
            rows -= taken[-1].num_rows
        if rows:
            taken.append(self._blocks[0].rest.slice(0, rows))
            self._blocks[0] = self._blocks[0].after(rows)
        self._count()
        return concat(taken)

    @property
    def position(self) -> State:
        """Where the rows that are held begin."""
        return self._blocks[0].at(0) if self._blocks else {"rows": self._after, **self._again}

    def positions(self) -> Callable[[int], State]:
        """The position after so many of the rows that are held, whenever it is asked for."""
        blocks, after = [*self._blocks], self._after
        ends = [*accumulate(block.rest.num_rows for block in blocks)]

        def position(rows: int) -> State:
            which = bisect_right(ends, rows)
            return blocks[which].at(rows - ends[which]) if which < len(blocks) else {"rows": after}

        return position

    def _next(self) -> tuple[bool, Counts]:
        """Reads a block; whether there was one, and what was left out on the way to it."""
        item, left_out = apart(next, self._items, None)
        block, after = item or (EMPTY, END)
        rows, first = self._seen(block), self._read
        self._read += rows.num_rows
        if rows.num_rows:
            numbers = range(first, self._read)
            self._blocks.append(_HeldBlock(self._after, rows, numbers, first, cache(partial(self._whole, rows))))
            self.rows += rows.num_rows
        self._after, self.ended = after, after == END
        return item is not None, left_out

    def _whole(self, block: Block) -> dict[str, Any]:
        return {"of": block.num_rows, "crc": in_state(checksums(self._compared(block)))}

    def _read_again(self, done: int, of: int, crc: list[int]) -> None:
        """Reads what was read before the position, of which nothing is counted again."""
        self._again = {}
        while self._read < of and self._next()[0]:
            pass
        found = RowChecksums()
        for block in self._blocks:
            found.add(self._compared(block.rest.slice(0, max(0, of - block.first))))
        place = f"{done:,} rows into a block{begins(self._blocks[0].rest)}" if self._blocks else "the end"
        check_replay(self._run, self._stage, found.by_column(), crc, place)
        self.take(min(done, self.rows))

    def counts(self, rows: int) -> deque[tuple[int, Counts]]:
        """What was left out on the way to the first `rows` rows, and with how many of them it counts. Whoever asks counts it."""
        done = self._blocks[0].numbers[0] if self._blocks else self._read
        found: deque[tuple[int, Counts]] = deque()
        while self._left_out and self._left_out[0][0] <= done + rows:
            number, counts = self._left_out.popleft()
            found.append((number - done, counts))
        return found

    def _count(self) -> None:
        """Counts what was left out on the way to rows that are done."""
        for _, counts in self.counts(0):
            add_counts(counts)


def _uncut(stage: Stage[Block], at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
    with awaited(stage, at, run) as items:
        yield from items


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

    State: a position of `ReplayBuffer`, and "before": the rows before it.
    """

    verb = ""

    upstream: Stage[Block]

    def facts(self, *inputs: Facts) -> Facts:
        return row_by_row(self, *inputs)

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch), "before": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        return self.cut(at, run, rows_at)

    def cut(self, at: State, run: Run, rows_after: Callable[[int], int]) -> Generator[tuple[Block, State], None, None]:
        """As `items`, cut at as many rows as `rows_after` says, for the number of rows before."""
        before = at["before"]
        with ReplayBuffer(self.upstream, at, run, joins=True) as held:
            while held.read():
                while held.rows > 2 * (rows := rows_after(before)):
                    before += rows
                    yield held.take(rows), {**held.position, "before": before}
                before += held.rows
                yield held.take(held.rows), END if held.ended else {**held.position, "before": before}


@dataclass(frozen=True)
class Unbatch(Stage[Any]):
    """The rows of each block as dicts, or the user's own objects that they stand for. State: a position of `ReplayBuffer`."""

    verb = ""

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        originals = facts_of(self.upstream).originals()
        with ReplayBuffer(self.upstream, at, run) as held:
            while count := held.fill():
                position, ended = held.positions(), held.ended
                block = held.take(count)
                rows = samples(block) if originals is None else originals.samples(block)
                for done, sample in enumerate(rows, start=1):
                    yield sample, END if ended and done == count else position(done)


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
