"""The rows of a stage, held, joined and cut anew. Small blocks are joined, since each block has a price; long ones are cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.core.counters import Counts, add_counts, apart
from brimful.core.facts import Facts, facts_of, named, row_by_row
from brimful.core.repeat import awaited
from brimful.core.replay import reached
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.rows.pace import Patience
from brimful.tables.blocks import Block, begins, concat, rows_at, samples_in_turn, visible
from brimful.tables.checksums import RowChecksums, checksums, difference, in_state
from brimful.tables.origins import ORIGIN
from brimful.tables.ragged import EMPTY, array_of, bytes_in, list_array, ragged, with_column

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
            while True:  # as `with_counts`, without its call: many stages may lie one above another
                item, left_out = apart(next, items, None)
                if item is None:
                    add_counts(left_out)
                    break
                block, after = item
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
    """Rows of a block that are held: the state before the block, the number of its first row, all of its rows, those that are
    held and their numbers; what is compared of them, and, once it is known, what a position says inside of the block."""

    before: State
    first: int
    block: Block
    rest: Block
    numbers: range | NDArray[np.int64]
    compared: Callable[[Block], Block]
    inside: dict[str, Any]

    def at(self, number: int) -> State:
        """The position of the row that has this number."""
        before, first, block, _, _, compared, inside = self
        if number == first:
            return {"rows": before}
        if not inside:
            inside.update(of=block.num_rows, crc=in_state(checksums(compared(block))))
        return {"rows": before, "done": number - first, **inside}

    def without_front(self, rows: int, values: int) -> _HeldBlock:
        """Without its first `rows` rows and, in the row after them, without the first `values` of each list."""
        return self._replace(rest=without_front(self.rest, rows, values), numbers=self.numbers[rows:])


class ReplayBuffer:
    """Rows of a stage that are held. They are read on as they are asked for, and a position says where they begin.

    A position counts rows from a state of the stage on, so that any blocks will do: {"rows": that state, "done": rows from there
    that are finished, "values": of each list of the next row, those that are finished, "of": rows from there that are compared,
    "crc": their checksums}. Zeros are left out. A resume reads `of` rows again, compares them, and drops those that are `done`.

    What was left out on the way to a row counts when the row is taken: no resume reads it again then.

    Args:
        at: a position; what else is in it is somebody else's.
        joins: small blocks are read joined (`coalesced`).
        seen: what is read of a block: all of its rows.
        compared: what is compared of them.
        chosen: which rows of a block are held, of which the first few, as many as it is told, were read before. None: all are.
        saves_held: a position has all rows that were read: a resume holds those again of which nothing comes, and compares them
            alone. What was left out on the way to a row counts when it is read.
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
        chosen: Callable[[Block, int], NDArray[np.int64]] | None = None,
        saves_held: bool = False,
    ) -> None:
        self._stage, self._run, self._seen, self._compared, self._chosen = stage, run, seen, compared, chosen
        self._saves_held = saves_held
        self._after: State = at["rows"]
        self._again: dict[str, Any] = {name: at[name] for name in ("done", "values", "of", "crc") if name in at}
        self._items = (coalesced if joins else _uncut)(stage, self._after, run)
        self._blocks: deque[_HeldBlock] = deque()
        self._left_out: deque[tuple[int, Counts]] = deque()  # on the way to so many rows
        self._read = self._values = 0  # rows, so far; values of the first row that are done
        self._found = RowChecksums()  # of the rows that are held, but for those of some blocks
        self._unhashed: list[Block] = []
        self.rows: int = 0  # that are held
        self.newest: Block = EMPTY  # that was read
        self.again: bool = False  # whether all rows of that were read before
        self.ended: bool = False

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._items.close()

    @property
    def blocks(self) -> Iterator[Block]:
        """The rows that are held."""
        return (block.rest for block in self._blocks)

    @property
    def passed_over(self) -> int:
        """How many rows were read since the first that is held, and are not held."""
        return self._read - self._first - self.rows

    def passed_since(self) -> NDArray[np.int64]:
        """How many rows were read after each that is held, and are not held."""
        return self._read - np.concatenate([block.numbers for block in self._blocks]) - np.arange(self.rows, 0, -1)

    def read(self) -> bool:
        """Reads the next block, or all that was read before the position. False at the end."""
        if self._again:
            self._read_again(**self._again)
            return True
        before, waits = self._read, self._saves_held and self.rows > 0
        item, left_out = apart(next, self._items, None)  # here, as many stages may lie one above another
        self._hold(item)
        self.again = False
        if left_out:
            self._left_out.append((before + (self._read > before or waits), left_out))
        self._count()
        return item is not None

    def fill(self, rows: int = 1) -> int:
        """Reads on until so many rows are held, or the end; how many are."""
        while self.rows < rows and self.read():
            pass
        return self.rows

    def peek(self) -> Block:
        """The rows that are held, as one block."""
        return concat(self.blocks)

    def take(self, rows: int) -> Block:
        """The first rows, which are done then."""
        taken, left = [], rows
        for block in self.blocks:
            if not left:
                break
            taken.append(block.slice(0, left))
            left -= taken[-1].num_rows
        self.drop(rows)
        return concat(taken)

    def drop(self, rows: int, values: int = 0) -> None:
        """The first `rows` rows are done and, of each list of the next row, the first `values`."""
        if not rows and not values:
            return
        self.rows -= rows
        self._values = values if rows else self._values + values
        while rows and rows >= self._blocks[0].rest.num_rows:
            rows -= self._blocks.popleft().rest.num_rows
        if (rows or values) and self._blocks:
            self._blocks[0] = self._blocks[0].without_front(rows, values)
        if self._saves_held:
            self._found, self._unhashed = RowChecksums(), [*self.blocks]
        self._count()

    @property
    def position(self) -> State:
        """Where the rows that are held begin."""
        if not self._blocks:
            return {"rows": self._after, **self._again}
        first = self._blocks[0]
        if not self._saves_held:
            return first.at(self._first)
        while self._unhashed:
            self._found.add(self._compared(self._unhashed.pop(0)))
        done, of, crc = self._first - first.first, self._read - first.first, in_state(self._found.by_column())
        named = {"rows": first.before, "done": done, "values": self._values, "of": of, "crc": crc}
        return {name: value for name, value in named.items() if value or name == "rows"}

    def positions(self) -> Callable[[int], State]:
        """The position after so many of the rows that are held, whenever it is asked for."""
        blocks, after = [*self._blocks], self._after
        first = self._first
        ends = [block.first + block.block.num_rows for block in blocks]

        def position(rows: int) -> State:
            which = bisect_right(ends, first + rows)
            return blocks[which].at(first + rows) if which < len(blocks) else {"rows": after}

        return position

    def counts(self, rows: int) -> deque[tuple[int, Counts]]:
        """What was left out on the way to the first `rows` rows, and with how many of them it counts. Whoever asks counts it."""
        done = self._read + self.ended if self._saves_held else self._first
        found: deque[tuple[int, Counts]] = deque()
        while self._left_out and self._left_out[0][0] <= done + rows:
            number, counts = self._left_out.popleft()
            found.append((number - done, counts))
        return found

    def _count(self) -> None:
        """Counts what was left out on the way to rows that are done."""
        for _, counts in self.counts(0):
            add_counts(counts)

    def _hold(self, item: tuple[Block, State] | None, old: int = 0) -> None:
        """Takes in a block, of which the first `old` rows were read before; None: there is none any more."""
        block, after = item or (EMPTY, END)
        self.newest = rows = self._seen(block)
        first = self._read
        self._read += rows.num_rows
        numbers: range | NDArray[np.int64] = range(first, self._read)
        if self._chosen is not None:
            chosen = self._chosen(rows, old)
            rows, numbers = rows if len(chosen) == len(numbers) else rows.take(array_of(chosen)), first + chosen
        if rows.num_rows:
            self._blocks.append(_HeldBlock(self._after, first, rows, rows, numbers, self._compared, {}))
            self.rows += rows.num_rows
            if self._saves_held:
                self._unhashed.append(rows)
        self._after, self.ended = after, after == END

    @property
    def _first(self) -> int:
        """The number of the first row that is held, or of the next one."""
        return int(self._blocks[0].numbers[0]) if self._blocks else self._read

    def _checksums(self, of: int) -> RowChecksums:
        """Those of the rows that are held, of the first `of` that were read."""
        found = RowChecksums()
        for block in self._blocks:
            found.add(self._compared(block.rest.slice(0, bisect_left(block.numbers, of))))
        return found

    def _read_again(self, of: int, crc: list[int], done: int = 0, values: int = 0) -> None:
        """Reads what was read before the position, of which nothing is counted again."""
        self._again = {}
        while self._read < of and not self.ended:
            item, _ = apart(next, self._items, None)
            self._hold(item, of - self._read)
        self.again = self._read <= of
        place = f"{done:,} rows into a block{begins(next(self.blocks, EMPTY))}"
        gone = sum(bisect_left(block.numbers, done) for block in self._blocks)
        if self._saves_held:
            self.drop(gone, values)
        check_replay(self._run, self._stage, self._checksums(of).by_column(), crc, place)
        if not self._saves_held:
            self.drop(gone)


def _uncut(stage: Stage[Block], at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
    with awaited(stage, at, run) as items:
        yield from items


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
                rows = samples_in_turn(block) if originals is None else originals.samples(block)
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
