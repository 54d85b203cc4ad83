"""Rows to windows: streamed ones are held, of indexed ones the lengths are looked up; and windows to parts, which are replayed.

Any window of indexed data can be computed alone. Streams hold the rows of a window and a half.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from brimful.batching.window import InTurn, PlanningWindow
from brimful.core.counters import Counts, add_counts, again, apart
from brimful.core.facts import Facts, facts_of, following
from brimful.core.repeat import awaited
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running
from brimful.index.index import Index
from brimful.index.indexed import Indexed, Repeat, Reread
from brimful.index.views import ChosenIndex, UnmaskedIndex
from brimful.plan import OverlongError, Policy
from brimful.plan.errors import warn_once
from brimful.plan.once import once
from brimful.plan.overlong import placeable
from brimful.plan.window import rest_rows, window_ends, window_rows
from brimful.rows.buffer import check_replay, resumed
from brimful.rows.columns import Choice
from brimful.rows.pace import Patience
from brimful.tables.blocks import Block, begins, concat, visible
from brimful.tables.checksums import RowChecksums, checksums, in_state
from brimful.tables.ragged import EMPTY, MASK, distinct, token_counts, unmasked
from brimful.tables.texts import TokenizedText, texts_in

T = TypeVar("T")

AUTO_BYTES: Final = 256 << 20
"""The most that the length columns of one window may take where its size is chosen for the user."""
AUTO_ROW_BYTES: Final = 2 << 30
"""The most that whole rows of such a window may take."""
AUTO_SAMPLE: Final = 1024
"""The size is chosen from so many rows of a stream."""
SAMPLE_ROWS: Final = 16_384
"""By whose lengths "auto" is judged: evenly spread ones of the index, or, where an epoch has other rows, in runs of epoch 0."""
SAMPLE_RUNS: Final = 64


@dataclass(frozen=True)
class Windowed(Stage[PlanningWindow]):
    """Abstract: cuts rows into windows of `size`; 0: as many rows as `policy` needs for 1 % padding, or for `batches` of them,
    judged once.

    `unmasked`: columns without the tokens that `attention_mask`, one of them, hides. `text`: what windows need not hold.
    """

    verb = ""

    upstream: Stage[Any]
    size: int
    length_columns: tuple[str, ...] = ()
    lengths_required: bool = False
    policy: Policy | None = not_in_state(None)
    batches: int | None = not_in_state(None)
    unmasked: tuple[str, ...] = not_in_state(())
    text: TokenizedText = not_in_state(TokenizedText())

    def settings(self) -> dict[str, Any]:
        return {"window": self.size or "auto", "length_column": [*self.length_columns]}


def auto_rows(policy: Policy, lengths: NDArray[np.int64], batches: int | None = None) -> int:
    """How many rows a window needs for 1 % padding under `policy`, or for so many batches, judged by some lengths."""
    if policy.max_length is not None and lengths.ndim == 1:
        lengths = np.minimum(lengths, policy.max_length)
    try:
        return window_rows(policy, lengths, batches=batches)
    except OverlongError:
        fitting = lengths[placeable(policy, lengths)]
    return window_rows(policy, fitting, batches=batches) if len(fitting) else len(lengths)


@dataclass(frozen=True)
class Buffered(Windowed):
    """Windows of `size` rows, in arrival order; a last one shorter than half joins the one before it.

    A size of 0 is resolved once, from the first 1,024 rows of the epoch in which the stream began, to what `policy` needs for
    1 % padding. The first batch need not wait for so many rows: the first window of each epoch has `first_share` of the size, at
    least 1,024 rows, and each later one four times as many as the one before, up to the size. (Where the size is so many
    `batches`, all windows have it.)

    `first`: the rows of the first window where a size is given; each later one has four times as many too. It is for batches in
    arrival order, which are the same in windows of any size.

    State: [epoch, rows' state before the block in which the window begins, rows of it that came before, its rows, their
    checksums, number of the window, size]. A resume reads the rows of the window again. They may come in other blocks then.

    `in_turn`: batches of `first` rows are in arrival order, and windows of any number of them give the same ones: each has those
    that are at hand. State: [epoch, rows' state before the block in which the next batch begins, rows of it that came before, if
    there are any its rows and their checksums, number of that batch, size]. A resume reads that block again.
    """

    upstream: Stage[Block]
    first: int = not_in_state(0)
    first_share: float = not_in_state(0.0)
    in_turn: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="joins")

    def start(self, epoch: int) -> State:
        return [epoch, self.upstream.start(epoch), 0, 0, [], 0, self.size]

    def items(self, at: State, run: Run) -> Generator[tuple[PlanningWindow, State], None, None]:
        if self.in_turn:
            yield from self._at_hand(at, run)
            return
        epoch, before, skip, compared, saved, number, size = at
        held: deque[_BlockInParts] = deque()
        replayed = RowChecksums()
        first = EMPTY  # that is read again
        rows = 0
        ended = False
        with awaited(self.upstream, before, run) as items:
            while True:
                most = self._most(size, number)
                while not ended and (compared or rows < (most + rest_rows(most) if size else AUTO_SAMPLE)):
                    (block, after), left_out = apart(next, items, (EMPTY, END))
                    ended = after == END
                    block = self.text.held(block)
                    if compared:
                        first = first if first.num_rows else block.slice(0, 1)
                        replayed.add(self.text.without(block.slice(0, compared)))
                        compared -= min(compared, block.num_rows)
                        if ended or not compared:
                            check_replay(
                                run, self.upstream, replayed.by_column(), saved, f"window {number}{begins(first)}"
                            )
                    if skip:
                        left_out = {}  # it was counted before
                    gone = min(skip, block.num_rows)
                    if block.num_rows > gone or left_out:
                        own = self._compared(block) if gone else (0, [])
                        held.append(_BlockInParts(before, gone, *own, block.slice(gone), left_out))
                        rows += block.num_rows - gone
                    before, skip = after, skip - gone
                if not rows:
                    self._pop(held, 0)
                    return
                if not size:
                    block = concat(one.rest for one in held).slice(0, AUTO_SAMPLE)
                    size = self._resolve(unmasked(block, self.unmasked))
                    continue
                count = window_ends(rows, most)
                window = self._window(epoch, number, unmasked(concat(self._pop(held, count)), self.unmasked))
                rows -= count
                number += 1
                if rows:
                    yield window, [epoch, *held[0][:4], number, size]
                else:
                    yield window, END
                    return

    def _at_hand(self, at: State, run: Run) -> Generator[tuple[PlanningWindow, State], None, None]:
        """The batches in arrival order that are at hand, one at least, and no more than soon come. A batch goes out when a row of
        the next one is there, or the end is."""
        epoch, before, gone, compared, saved, number, size = at
        pieces: list[_Piece] = []
        counts: list[tuple[int, Counts]] = []  # what was left out on the way to a row, and with how many rows it counts
        rows, most = 0, self.first
        patience = Patience(run.replay is None)
        with awaited(self.upstream, before, run) as items:
            seen = ((self.text.held(block), after) for block, after in items)
            blocks = resumed(self.upstream, seen, gone, compared, saved, run, self.text.without)
            ended = False
            while not ended:
                patience.begin()
                while not ended and (rows <= self.first or (rows <= most and not patience.over)):
                    (block, after), left_out = apart(next, blocks, (EMPTY, END))
                    ended = after == END
                    own = max(0, block.num_rows - gone)
                    counts.append((rows + (own > 0), left_out))
                    if own:
                        compare = cache(partial(self._compared, block))
                        pieces.append(_Piece(rows, before, gone, block, compare))
                    before, gone, rows = after, 0, rows + own
                count = rows if ended else (rows - 1) // self.first * self.first
                if count:
                    own_counts = [one for one in counts if one[0] <= count]
                    window, state = self._in_turn(epoch, number, size, pieces, count, own_counts)
                    yield window, END if ended else state(count // self.first)
                    counts = [(row - count, left_out) for row, left_out in counts[len(own_counts) :]]
                    pieces = [one.after(count) for one in pieces if one.first + one.rest.num_rows > count]
                    number, rows, most = number + count // self.first, rows - count, min(size or AUTO_SAMPLE, 4 * most)
            for _, left_out in counts:
                add_counts(left_out)

    def _in_turn(
        self, epoch: int, number: int, size: int, pieces: list[_Piece], count: int, counts: list[tuple[int, Counts]]
    ) -> tuple[PlanningWindow, Callable[[int], State]]:
        """The first `count` rows of some pieces, whose first batch has this number; and the state after some of its batches."""
        firsts = [one.first for one in pieces]

        def state(batches: int) -> State:
            row = batches * self.first
            one = pieces[bisect_right(firsts, row) - 1]
            done = one.gone + row - one.first
            return [epoch, one.before, done, *(one.compare() if done else (0, [])), number + batches, size]

        def left_out(batches: int) -> None:
            while counts and (not batches or counts[0][0] <= batches * self.first):
                add_counts(counts.pop(0)[1])

        block = unmasked(concat(one.rest for one in pieces).slice(0, count), self.unmasked)
        first = number * self.first
        measured = {*self.length_columns} <= {*block.schema.names}
        turn = InTurn(number, measured, state, left_out)
        numbers = np.arange(first, first + count)
        lengths = self._lengths(block)
        return PlanningWindow(epoch, 0, lengths, numbers, lambda own: (block, own - first), turn=turn), state

    def _most(self, size: int, number: int) -> int:
        """The rows of a window, unless the epoch ends there."""
        first = self.first
        if not self.size and self.batches is None:
            first = max(AUTO_SAMPLE, ceil(self.first_share * size))
        return min(size, first << min(2 * number, 32)) if first else size

    def _window(self, epoch: int, number: int, block: Block) -> PlanningWindow:
        rows = np.arange(block.num_rows)
        found = checksums(self.text.without(block))
        return PlanningWindow(epoch, number, self._lengths(block), rows, lambda own: (block, own), found)

    def _compared(self, block: Block) -> tuple[int, list[int]]:
        return block.num_rows, in_state(checksums(self.text.without(block)))

    def _pop(self, held: deque[_BlockInParts], count: int) -> list[Block]:
        """Takes `count` rows off the front, and blocks without a row that follow them."""
        taken = []
        while count:
            before, gone, compared, own, rest, left_out = held.popleft()
            add_counts(left_out)
            piece = rest.slice(0, count)
            taken.append(piece)
            count -= piece.num_rows
            if piece.num_rows < rest.num_rows:
                if not gone:
                    compared, own = self._compared(rest)
                rest = rest.slice(piece.num_rows)
                held.appendleft(_BlockInParts(before, gone + piece.num_rows, compared, own, rest, {}))
        while held and not held[0].rest.num_rows:
            add_counts(held.popleft().left_out)
        return taken

    def _lengths(self, block: Block) -> NDArray[np.int64]:
        return token_counts(block, self.length_columns, self.lengths_required)

    def _resolve(self, block: Block) -> int:
        assert self.policy is not None
        wanted = auto_rows(self.policy, self._lengths(block), self.batches)
        rows = self.text.without(visible(block))
        planned = rows.select([name for name in self.length_columns if name in rows.schema.names])
        affordable = min(AUTO_BYTES / max(1, planned.nbytes), AUTO_ROW_BYTES / max(1, rows.nbytes))
        return max(1, min(wanted, int(affordable * block.num_rows)))


class _BlockInParts(NamedTuple):
    """A block of which some rows are held: the state before it, how many of its rows are gone; if some are, how many it had, and
    the checksums of all of them. And what was left out on the way to it, until one is gone."""

    before: State
    gone: int
    compared: int
    checksums: list[int]
    rest: Block
    left_out: Counts


class _Piece(NamedTuple):
    """Rows of a block that are held in arrival order: which row of the window its first is, the state before the block, how many
    of its rows are gone, the block, and its rows and their checksums."""

    first: int
    before: State
    gone: int
    block: Block
    compare: Callable[[], tuple[int, list[int]]]

    @property
    def rest(self) -> Block:
        return self.block.slice(self.gone)

    def after(self, count: int) -> _Piece:
        """What is left of it in the next window, where this one has `count` rows."""
        return self._replace(first=max(0, self.first - count), gone=self.gone + max(0, count - self.first))


@dataclass(frozen=True)
class Planned(Windowed):
    """Windows of `size` rows of indexed data (0: what `policy` needs for 1 % padding, and for `fewest` batches, judged once).

    State: [epoch, number of the window, size]; where the data repeat, with the epoch that they have come to.
    """

    upstream: Indexed
    fewest: int | None = not_in_state(None)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="joins", again=Repeat)

    def settings(self) -> dict[str, Any]:
        found = self.upstream.measured(self.length_columns, self.lengths_required)
        return super().settings() | ({"lengths_crc32": crc32(repr(found).encode())} if found else {})

    def start(self, epoch: int) -> State:
        return [epoch, 0, self.size or self._judged]

    def items(self, at: State, run: Run) -> Generator[tuple[PlanningWindow, State], None, None]:
        epoch, number, size = at["rows"] if isinstance(at, dict) else at
        index, count = self._index, self.upstream.count_in(epoch)
        if count == 0:
            return
        edits, reread = self.upstream.edits(epoch), Reread(self.upstream, epoch, number * size, run)
        if self.batches is not None and not self.size and size != self._judged:
            warn_once(
                "this epoch goes on with windows of %s samples, as it began. From the next epoch on, windows have %s samples, so "
                "the order of the batches differs from that of the run before. window='steps' follows micro_batches, and 'auto' "
                "does not: to keep the order, say window=%s",
                f"{size:,}",
                f"{self._judged:,}",
                size,
            )
        rows = self.upstream.order(epoch)
        first = number * size
        while first != count:
            last = first + (size if count is None else window_ends(count - first, size))
            last = min((place for place in edits if first < place < last), default=last)
            reread.place = last
            numbers = rows(first, last)
            lengths = self._lengths(numbers)
            window = PlanningWindow(epoch, number, lengths, numbers, index.locate, index=index, texts_at=self._texts_at)
            number += 1
            state = [epoch, number, size]
            yield window, END if last == count else self.upstream.reached(epoch, last, state)
            first = last

    def _lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self._index.lengths_at(numbers, self.length_columns, self.lengths_required)
        return np.asarray(lengths, dtype=np.int64)

    def _texts_at(self, numbers: NDArray[np.int64]) -> list[str] | None:
        if (texts := self._texts) is None:
            return None
        block, rows = texts.locate(numbers)
        return [" ".join(str(block.column(name)[row]) for name in texts.schema.names) for row in rows.tolist()]

    @once
    def _texts(self) -> Index | None:
        """The text that was tokenised, where the index has it."""
        index = self.upstream.index
        names = texts_in(index.schema, self.text.names)
        return ChosenIndex(index, Choice("select", tuple(names))) if names else None

    @once
    def _index(self) -> Index:
        if self.unmasked and facts_of(self.upstream).one_by_one and MASK in self.upstream.index.schema.names:
            raise ValueError(
                f"pack leaves out tokens that {MASK} hides, and would have to fetch all samples of from_dataset for that. Return "
                f"only visible tokens, and drop({MASK!r}) before pack"
            )
        index = self.upstream.index
        if gone := [] if self.text.kept or not self.text.names else texts_in(index.schema, self.text.names):
            index = ChosenIndex(index, Choice("drop", tuple(gone)))
        return UnmaskedIndex(index, self.unmasked) if self.unmasked else index

    @once
    def _judged(self) -> int:
        """The size that `policy` needs."""
        assert self.policy is not None
        rows, count = self.upstream.unshuffled()
        if not count:
            return 1
        if count == len(self.upstream.index):
            numbers = np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(np.int64)
        else:
            run = -(-min(count, SAMPLE_ROWS) // SAMPLE_RUNS)
            starts = distinct(np.linspace(0, count - run, SAMPLE_RUNS).astype(np.int64)).tolist()
            numbers = np.concatenate([rows(start, start + run) for start in starts])
        lengths = self._lengths(numbers)
        needs = {self.batches, self.fewest or self.batches}
        return max(
            [auto_rows(self.policy, lengths, batches) for batches in needs]
        )  # no generator: a policy may raise StopIteration


def parts_of_windows(
    windows: Stage[PlanningWindow],
    at: State,
    run: Run,
    parts: Callable[[PlanningWindow, int, State], Iterator[tuple[T, int]]],
    opens: Callable[[PlanningWindow], T | None] = lambda window: None,
) -> Generator[tuple[T, State], None, None]:
    """The parts that `parts` makes of each window.

    State: [windows' state before the window, how much of it was handed on, its checksums]. A resume reads the window again; but
    where batches are in arrival order, the windows go on after those that were handed on.

    Args:
        parts: called with a window, how much of it was handed on before, and the state after it; gives each further part with
            how much is handed on after it, 0 after the last.
        opens: gives what is handed on before the first part of a window, if that is not handed on at once: then a state between
            its samples has the checksums of all of the window.
    Raises:
        StateError: the window that is read again has other rows.
    """
    before, skip, saved = at
    with running(windows, before, run) as items:
        for window, after in again(items, bool(skip or saved)):
            found = in_state(window.checksums)
            if skip or saved:
                first = begins(window.block) if window.index is None else ""
                check_replay(run, windows, window.checksums, saved, f"window {window.number}{first}")
            elif (opened := opens(window)) is not None:
                yield opened, [before, 0, found]
            for part, done in parts(window, skip, after):
                if done and window.turn is not None:
                    yield part, [window.turn.state(done), 0, []]
                elif done:
                    yield part, [before, done, found]
                else:
                    yield part, END if after == END else [after, 0, []]
            before, skip, saved = after, 0, []
        if skip or saved:
            check_replay(run, windows, {}, saved, "a window that is gone")
