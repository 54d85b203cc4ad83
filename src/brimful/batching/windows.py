"""Rows to windows: streamed ones are held, of indexed ones the lengths are looked up; and windows that are read again.

Any window of indexed data can be computed alone. Streams hold the rows of a window and a half.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from brimful.batching.sizes import Size, name_of_size, sizes_at, sizes_in
from brimful.batching.window import InTurn, PlanningWindow
from brimful.core.counters import add_counts, again
from brimful.core.facts import Facts, facts_of, following
from brimful.core.header import described
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running
from brimful.index.index import Index
from brimful.index.indexed import Indexed, Repeat, Reread, next_unit, unit_begin
from brimful.index.views import ChosenIndex, PromptedIndex, UnmaskedIndex
from brimful.plan import OverlongError, Policy
from brimful.plan.errors import DataError, counted, warn_once
from brimful.plan.once import once
from brimful.plan.overlong import placeable
from brimful.plan.window import rest_rows, window_ends, window_rows
from brimful.rows.buffer import ReplayBuffer, check_replay
from brimful.rows.columns import Choice
from brimful.rows.pace import Patience
from brimful.rows.units import fill_units, held_units
from brimful.tables.blocks import Block, begins, visible
from brimful.tables.checksums import checksums, in_state
from brimful.tables.origins import where
from brimful.tables.ragged import MASK, TOKENS, distinct, prompted, unmasked
from brimful.tables.texts import TokenizedText, texts_in
from brimful.tables.units import begins_unit, unit_numbers

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

    `unmasked`: columns without the tokens that `attention_mask`, one of them, hides. `text`: what windows need not hold. `sides`:
    the prefixes of columns that begin with the prompt, where there is one. `is_step`: each window is an optimizer step, of `size`
    rows, or of whole units of no more.
    """

    verb = ""

    upstream: Stage[Any]
    size: int
    length_columns: tuple[Size, ...] = ()
    lengths_required: bool = False
    policy: Policy | None = not_in_state(None)
    batches: int | None = not_in_state(None)
    unmasked: tuple[str, ...] = not_in_state(())
    text: TokenizedText = not_in_state(TokenizedText())
    length_version: str | None = not_in_state(None)
    sides: tuple[str, ...] = not_in_state(())
    is_step: bool = not_in_state(False)

    def settings(self) -> dict[str, Any]:
        return {"window": self.size or "auto", "length_column": [*map(described, self.length_columns)]}

    @property
    def keeps_units(self) -> bool:
        """Whether a window ends where a unit does."""
        return facts_of(self).units is not None

    @property
    def size_names(self) -> tuple[str, ...]:
        """Those of the sizes, but where these are the tokens alone."""
        return () if self.length_columns == (TOKENS,) else tuple(map(name_of_size, self.length_columns))


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

    Where neighbours are units, a window has those that begin in it: what is beyond its rows is missing from the next one.

    State: a position of `ReplayBuffer`, "epoch", "window" (its number), "size", and "beyond", the rows of the next window that
    the last one had. A resume reads the rows of the window again, in whatever blocks they come then.

    `in_turn`: batches of `first` rows are in arrival order, and windows of any number of them give the same ones: each has those
    that are at hand. "window" is the number of the next batch then, and a resume reads the block again in which that begins.
    """

    upstream: Stage[Block]
    first: int = not_in_state(0)
    first_share: float = not_in_state(0.0)
    in_turn: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="joins")

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch), "epoch": epoch, "window": 0, "size": self.size}

    def items(self, at: State, run: Run) -> Generator[tuple[PlanningWindow, State], None, None]:
        with ReplayBuffer(self.upstream, at, run, seen=self.text.held, compared=self.text.without) as held:
            if self.in_turn:
                yield from self._at_hand(held, at["epoch"], at["window"], at["size"], run)
            else:
                yield from self._whole(held, at["epoch"], at["window"], at["size"], at.get("beyond", 0))

    def _whole(
        self, held: ReplayBuffer, epoch: int, number: int, size: int, beyond: int
    ) -> Generator[tuple[PlanningWindow, State], None, None]:
        if not size and held.fill(AUTO_SAMPLE):
            size = self._resolve(self._seen(held.peek().slice(0, AUTO_SAMPLE)))
        while True:
            if self.is_step:
                if not (rows := self._step_rows(held, size)):
                    return
                window = self._window(epoch, number, self._seen(held.take(rows)))
                number += 1
                yield window, {**held.position, "epoch": epoch, "window": number, "size": size} if held.rows else END
                continue
            most = self._most(size, number)
            if 0 < most <= beyond:  # a unit has all that would begin here
                number, beyond = number + 1, beyond - most
                continue
            if not (rows := held.fill(most + rest_rows(most) - beyond)):
                return
            rows = count = window_ends(rows + beyond, most) - beyond
            if self.keeps_units:
                rows = fill_units(held, count)
            window = self._window(epoch, number, self._seen(held.take(rows)))
            number, beyond = number + 1, rows - count
            named = {"epoch": epoch, "window": number, "size": size} | ({"beyond": beyond} if beyond else {})
            yield window, {**held.position, **named} if held.rows else END

    def _step_rows(self, held: ReplayBuffer, size: int) -> int:
        """How many rows the next step has."""
        rows = held.fill(size + 1)
        if rows <= size or not self.keeps_units:
            return min(rows, size)
        begins = np.flatnonzero(begins_unit(held_units(held)[: size + 1]))
        if begins[-1]:
            return int(begins[-1])
        raise unit_beyond_step(self, size, where(held.peek(), 0))

    def _at_hand(
        self, held: ReplayBuffer, epoch: int, number: int, size: int, run: Run
    ) -> Generator[tuple[PlanningWindow, State], None, None]:
        """The batches in arrival order that are at hand, one at least, and no more than soon come. A batch goes out when a row of
        the next one is there, or the end is."""
        most = self.first
        patience = Patience(run.replay is None)
        while not held.ended:
            patience.begin()
            while held.rows <= self.first or (held.rows <= most and not patience.over):
                if not held.read():
                    break
            count = held.rows if held.ended else (held.rows - 1) // self.first * self.first
            if count:
                window, state = self._in_turn(held, count, epoch, number, size)
                batches = count // self.first
                yield window, END if held.ended else state(batches)
                number, most = number + batches, min(size or AUTO_SAMPLE, 4 * most)

    def _in_turn(
        self, held: ReplayBuffer, count: int, epoch: int, number: int, size: int
    ) -> tuple[PlanningWindow, Callable[[int], State]]:
        """The first `count` rows that are held, whose first batch has this number; and the state after some of its batches."""
        position, counts = held.positions(), held.counts(count)

        def state(batches: int) -> State:
            named = {"epoch": epoch, "window": number + batches, "size": size}
            return {**position(batches * self.first), **named}

        def left_out(batches: int) -> None:
            while counts and (not batches or counts[0][0] <= batches * self.first):
                add_counts(counts.popleft()[1])

        block = self._seen(held.take(count))
        first = number * self.first
        measured = {one for one in self.length_columns if isinstance(one, str)} <= {*block.schema.names}
        turn = InTurn(number, measured, state, left_out)
        numbers = np.arange(first, first + count)
        lengths = self._lengths(block)
        window = PlanningWindow(epoch, 0, lengths, numbers, lambda own: (block, own - first), turn=turn)
        return replace(window, sizes=self.size_names), state

    def _most(self, size: int, number: int) -> int:
        """The rows of a window, unless the epoch ends there."""
        first = self.first
        if not self.size and self.batches is None:
            first = max(AUTO_SAMPLE, ceil(self.first_share * size))
        return min(size, first << min(2 * number, 32)) if first else size

    def _window(self, epoch: int, number: int, block: Block) -> PlanningWindow:
        rows = np.arange(block.num_rows)
        found = checksums(self.text.without(block))
        lengths = self._lengths(block)
        units = unit_numbers(block) if self.keeps_units else None
        window = PlanningWindow(epoch, number, lengths, rows, lambda own: (block, own), found)
        return replace(window, sizes=self.size_names, units=units)

    def _seen(self, block: Block) -> Block:
        """Rows as they are planned."""
        return prompted(unmasked(block, self.unmasked), self.sides)

    def _lengths(self, block: Block) -> NDArray[np.int64]:
        return sizes_in(block, self.length_columns, self.lengths_required)

    def _resolve(self, block: Block) -> int:
        assert self.policy is not None
        wanted = auto_rows(self.policy, self._lengths(block), self.batches)
        rows = self.text.without(visible(block))
        planned = rows.select([name for name in rows.schema.names if name in self.length_columns])
        affordable = min(AUTO_BYTES / max(1, planned.nbytes), AUTO_ROW_BYTES / max(1, rows.nbytes))
        return max(1, min(wanted, int(affordable * block.num_rows)))


@dataclass(frozen=True)
class Planned(Windowed):
    """Windows of `size` rows of indexed data (0: what `policy` needs for 1 % padding, and for `fewest` batches, judged once).

    State: {"epoch", "window" (its number), "size"}; where the data repeat, with the epoch that they have come to.
    """

    upstream: Indexed
    fewest: int | None = not_in_state(None)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="joins", again=Repeat)

    def settings(self) -> dict[str, Any]:
        lists = [one for one in self.length_columns if isinstance(one, str)]
        found = self.upstream.measured(lists, self.lengths_required) if len(lists) == len(self.length_columns) else []
        return super().settings() | ({"lengths_crc32": crc32(repr(found).encode())} if found else {})

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "window": 0, "size": self.size or self._judged}

    def items(self, at: State, run: Run) -> Generator[tuple[PlanningWindow, State], None, None]:
        epoch, number, size = at["epoch"], at["window"], at["size"]
        index, count = self._index, self.upstream.count_in(epoch)
        if count == 0:
            return
        edits, reread = self.upstream.edits(epoch), Reread(self.upstream, epoch, at.get("place", number * size), run)
        if self.batches is not None and not self.size and size != self._judged:
            warn_once(
                "this epoch goes on with windows of %s samples, as it began. From the next epoch on, windows have %s samples, so "
                "the order of the batches differs from that of the run before. window='steps' follows micro_batches, and 'auto' "
                "does not: to keep the order, say window=%s",
                f"{size:,}",
                f"{self._judged:,}",
                size,
            )
        rows, keeps = self.upstream.order(epoch), self.keeps_units
        first = at.get("place", number * size)
        if keeps and not self.is_step:
            first = next_unit(index, rows, first, count)
        while first != count:
            if self.is_step:
                last = first + size if count is None else min(first + size, count)
            else:
                begin = number * size if keeps else first
                last = begin + (size if count is None else window_ends(count - begin, size))
            last = min((place for place in edits if first < place < last), default=last)
            if keeps and self.is_step and last != count:
                last = unit_begin(index, rows, last)
                if last <= first:
                    beyond = next_unit(index, rows, first + 1, count) - first
                    raise unit_beyond_step(self, size, f"sample {first:,} of epoch {epoch:,}", beyond)
            elif keeps:
                last = next_unit(index, rows, last, count)
            number += 1
            if last <= first:  # a unit has all that would begin here
                continue
            reread.place = last
            numbers = rows(first, last)
            lengths = self._lengths(numbers)
            window = PlanningWindow(
                *(epoch, number - 1, lengths, numbers, index.locate),
                index=index,
                texts_at=self._texts_at,
                sizes=self.size_names,
                units=np.cumsum(begins_unit(index.units_at(numbers), numbers)) if keeps else None,
            )
            state = {"epoch": epoch, "window": number, "size": size} | ({"place": last} if self.is_step else {})
            yield window, END if last == count else self.upstream.reached(last, state)
            first = last

    def _lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes_at(
            *(
                self._index,
                self.upstream.index,
                numbers,
                self.length_columns,
                self.lengths_required,
                self.length_version,
            ),
            one_by_one=facts_of(self.upstream).one_by_one,
        )

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
        index = UnmaskedIndex(index, self.unmasked) if self.unmasked else index
        return PromptedIndex(index, self.sides) if self.sides else index

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


def unit_beyond_step(stage: Windowed, size: int, place: str, has: int | None = None) -> DataError:
    """The error for a unit that has more samples than an optimizer step: so many, where that is known."""
    units = facts_of(stage).units
    assert units is not None
    samples = f"{has:,} samples" if has else f"more than {counted(size, 'sample')}"
    return DataError(
        f"a unit of {units.key!r} has {samples}, and samples_per_step={size:,} ({place}); no step may part it: filter it, or "
        "take more samples a step"
    )


class WindowAt(NamedTuple):
    """A window, and how to go on in it.

    Args:
        done: how much of it was handed on before the run began.
        inside: the state before it, to which whoever hands it on in parts adds "done": how much of it.
        after: the state of the windows after it.
        is_new: whether nothing of it was handed on.
    """

    window: PlanningWindow
    done: int
    inside: dict[str, Any]
    after: State
    is_new: bool


def replayed_windows(windows: Stage[PlanningWindow], at: State, run: Run) -> Generator[WindowAt, None, None]:
    """The windows after a state, the one in which it lies read again.

    State: {"windows": windows' state before the window, "done": how much of it was handed on, "crc": its checksums}, where it has
    some. A resume reads the window again; but where batches are in arrival order, the windows go on after those that were handed
    on.

    Raises:
        StateError: the window that is read again has other rows.
    """
    before, done, saved = at["windows"], at.get("done", 0), at.get("crc", [])
    with running(windows, before, run) as items:
        for window, after in again(items, bool(done or saved)):
            is_new = not (done or saved)
            if not is_new:
                first = begins(window.block) if window.index is None else ""
                check_replay(run, windows, window.checksums, saved, f"window {window.number}{first}")
            inside = {"windows": before} | ({"crc": in_state(window.checksums)} if window.checksums else {})
            yield WindowAt(window, done, inside, after, is_new)
            before, done, saved = after, 0, []
        if done or saved:
            check_replay(run, windows, {}, saved, "a window that is gone")
