"""Windows to batches, as integers: by a policy over lengths, by packing, or by a user's functions of the samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import PackedPieces, PlannedWindow
from brimful.batching.sizes import Size, name_of_size, named_sizes, of_whole_sample, refuse_whole
from brimful.batching.window import PlanningWindow
from brimful.core.counters import count
from brimful.core.header import described
from brimful.core.stage import not_in_state
from brimful.plan import FixedSize, Overlong, OverlongError, Packed, Plan, Policy, random
from brimful.plan.buckets import Rounding
from brimful.plan.budget import divided, share
from brimful.plan.costs import sample_costs
from brimful.plan.dealing import deal_greedily, part_sums
from brimful.plan.errors import DataError, one_of
from brimful.plan.overlong import plan_with, split_long
from brimful.plan.plan import joined, planned
from brimful.plan.rounded import Rounded
from brimful.plan.stacked import Stacked, longest_side, on_all_sides, stacked
from brimful.plan.units import parted
from brimful.rows.functions import call
from brimful.tables.blocks import Sample, samples
from brimful.tables.origins import where
from brimful.tables.ragged import TOKENS, TruncateSide, offsets_of, runs

PACKED_BATCHES: Final = 250
"""That a window of packed rows fills, where its size is chosen for the user: half of one, on average, is empty rows."""


@dataclass(frozen=True)
class Sizing:
    """How large the windows of a planner are.

    Args:
        policy: the one by which an automatic window is sized; None where windows have a given size.
        needs_lengths: whether it plans by lengths; else samples may have none, and count as empty.
        first_rows: how many rows the first window needs, where batches have the samples in arrival order, and so windows of few
            rows give the same ones; 0: they have not.
        in_turn: whether windows of any number of batches give the same ones, so that none has to be waited for.
        first_share: how much of an automatic window the first one of a stream has, besides at least 1,024 rows.
        batches: that an automatic window fills; None: as many as padding needs.
        rows: of a batch, as the policy plans them.
    """

    policy: Policy | None
    needs_lengths: bool
    first_rows: int = 0
    in_turn: bool = False
    first_share: float = 0.0
    batches: int | None = None
    rows: int = 1

    @property
    def in_order(self) -> bool:
        """Whether batches have the samples in arrival order."""
        return self.first_rows > 0

    def rows_of(self, batches: int | None) -> int | None:
        """How many rows a window holds that is made into so many batches, or into its own number; None: as padding needs."""
        batches = batches or self.batches
        return None if batches is None else batches * self.rows


class BatchPlanner(ABC):
    """Plans a window. `key` is that of its random choices. What is left out or cut is counted in `.stats`."""

    verb = "batch"

    def shapes(self) -> list[tuple[int, ...]] | None:
        """The few shapes (rows, tokens) of all batches; None where nobody knows them before a plan."""
        return None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The parameters that a user wrote, as plain JSON."""

    packs = False
    """Whether several samples lie in a row."""

    asks_samples = False
    """Whether it calls functions of the samples, not of their lengths."""

    overlong: Any
    """What becomes of a sample that no batch can hold."""

    truncate_side: TruncateSide = "right"
    """Which part of it is left out, where it is cut."""

    token_columns: tuple[tuple[str, ...], ...] = ()
    """What is cut together, where it is not the end that is left out: groups of columns."""

    sides: int = 1
    """How many rows below one another a sample has, all padded to one length."""

    @property
    @abstractmethod
    def sizing(self) -> Sizing:
        """How large its windows are."""

    @property
    def rounded(self) -> Any:
        """The object that rounds padded lengths up, if there is one."""
        return None

    @property
    def fewer_shapes(self) -> str:
        """How a user who wants so few shapes that a compiler can keep up gets fewer; "" where nobody wants that."""
        buckets, multiple = (getattr(self.rounded, name, None) for name in ("buckets", "pad_to_multiple_of"))
        if buckets is None and (multiple or 1) == 1:
            return ""
        return "take fewer buckets" if self.shapes() else "take StaticShapes, whose rows do not vary, fewer buckets"

    def sizes(self, given: tuple[Size, ...]) -> tuple[tuple[Size, ...], int]:
        """What is planned over, where a user gave that as length columns, and how many of these are padded: the first ones."""
        return given, len(given)

    @abstractmethod
    def batches(self, window: PlanningWindow, key: int) -> PlannedWindow:
        """The window's batches, in the order of their cost."""

    @abstractmethod
    def divided(self, parts: int) -> Self:
        """One for each of the `parts` batches of an optimizer step."""

    @abstractmethod
    def complete(self, batches: PlannedWindow, last: bool) -> NDArray[np.bool_]:
        """Which batches `drop_last` keeps; `last` where no window follows."""


@dataclass(frozen=True)
class ByPolicy(BatchPlanner):
    """A policy's plan, with a word for the samples that it cannot place. `parts`: so many batches share a step's budget.
    `sides`: so many rows of a sample share that of a batch, and lie in one length."""

    policy: Policy
    overlong: Overlong
    rounding: Rounding | None = None
    truncate_side: TruncateSide = "right"
    token_columns: tuple[tuple[str, ...], ...] = not_in_state(())
    parts: int = not_in_state(1)
    sides: int = not_in_state(1)

    def __post_init__(self) -> None:
        _check_truncate(self.truncate_side, self.overlong)

    @property
    def sizing(self) -> Sizing:
        fixed = _fixed_size(self.policy)
        in_order = fixed is not None and not fixed.sort
        return Sizing(
            self._of_sides,
            needs_lengths=not in_order,
            first_rows=0 if fixed is None or fixed.sort else fixed.n,
            # where a sample above the largest bucket is left out, or alone, batches depend on where windows begin
            in_turn=in_order and (self.rounding is None or self.overlong in ("raise", "truncate")),
        )

    @property
    def _of_sides(self) -> Policy:
        return self.policy if self.sides == 1 else Stacked(self.policy, self.sides)

    @property
    def rounded(self) -> Any:
        return self.rounding or self.policy

    def shapes(self) -> list[tuple[int, ...]] | None:
        shapes: list[tuple[int, ...]] | None = getattr(self._of_sides, "shapes", None)
        return shapes

    def settings(self) -> dict[str, Any]:
        return {"policy": described(self.policy), **_cut(self), **_rounding(self.rounding), **_stacked(self)}

    def sizes(self, given: tuple[Size, ...]) -> tuple[tuple[Size, ...], int]:
        if self.overlong == "truncate" and callable(given[0]) and len(given) == 1:
            refuse_whole(name_of_size(given[0]), self.overlong, packs=False)
        names: tuple[str, ...] | None = getattr(self.policy, "columns", None)
        if names is None or self.sides > 1:
            return given, len(given)
        if self.rounding is not None:
            raise ValueError(f"{type(self.policy).__name__} rounds its padded sizes itself: give it pad_to_multiple_of")
        return named_sizes(names, given), getattr(self.policy, "num_padded", len(names))

    def batches(self, window: PlanningWindow, key: int) -> PlannedWindow:
        _refuse_uncut(self, window)
        policy = self._of_rows if self.rounding is None else Rounded(self._of_rows, self.rounding)
        plan = _placed(window, policy, self.overlong, self.parts, self.sides)
        window = _truncated(self, window, policy.max_length)
        rows = np.maximum(plan.padded_sizes, np.diff(plan.bounds))  # each sample has its own, also where a policy packs
        static = self.shapes() is not None
        keys = None if window.turn is None else window.turn.first + np.arange(len(plan))
        return PlannedWindow(
            window,
            plan.numbers,
            plan.bounds,
            plan.padded_lengths,
            rows,
            num_padded=plan.num_padded,
            static=static,
            key=key,
            keys=keys,
        )

    @property
    def _of_rows(self) -> Policy:
        return stacked(self.policy, self.sides)

    def divided(self, parts: int) -> ByPolicy:
        return replace(self, policy=divided(self.policy, parts), parts=parts)

    def complete(self, batches: PlannedWindow, last: bool) -> NDArray[np.bool_]:
        """Batches of full size; where the policy has no fixed size, or units stay together, all but the last cut of the epoch."""
        fixed = _fixed_size(self.policy) if batches.window.units is None else None
        return _full(batches, None if fixed is None else fixed.n, last)


@dataclass(frozen=True)
class ByPacking(BatchPlanner):
    """Rows filled by best fit, `num_rows` of them a batch, in a random order where `shuffle` says so: as planned, rows of
    few long samples come before rows of many short ones. If the policy knows what a sample costs, rows are dealt to batches of
    equal cost. The last rows of a window's last batch may be empty."""

    policy: Packed
    num_rows: int
    overlong: Literal["raise", "truncate", "drop", "split"]
    shuffle: bool
    truncate_side: TruncateSide = "right"
    token_columns: tuple[tuple[str, ...], ...] = not_in_state(())

    verb = "pack"
    packs = True

    def __post_init__(self) -> None:
        _check_truncate(self.truncate_side, self.overlong)

    @property
    def sizing(self) -> Sizing:
        policy = replace(self.policy, cost=None)
        first_share = 100 / PACKED_BATCHES  # what the last of the first 100 lacks is padding
        return Sizing(policy, True, first_share=first_share, batches=PACKED_BATCHES, rows=self.num_rows)

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.num_rows, self.policy.row_length)]

    def settings(self) -> dict[str, Any]:
        limits = {} if self.policy.row_limits is None else {"row_limits": self.policy.row_limits}
        return {"row_length": self.policy.row_length, "rows": self.num_rows, **limits, **_cut(self)}

    def sizes(self, given: tuple[Size, ...]) -> tuple[tuple[Size, ...], int]:
        limited = self.policy.limited
        if limited and self.overlong in ("truncate", "split"):
            raise ValueError(
                f"overlong={self.overlong!r} cuts tokens, and row_limits has {limited[0]!r}, which belongs to a whole sample; "
                "choose 'raise' or 'drop'"
            )
        first = given[0]
        if callable(first):  # of rows, or nothing that could lie in them
            if name_of_size(first) not in limited:
                refuse_whole(name_of_size(first), self.overlong, packs=True)
            given = (TOKENS, *given)
        return named_sizes((name_of_size(given[0]), *limited), given), 1

    def batches(self, window: PlanningWindow, key: int) -> PlannedWindow:
        _refuse_uncut(self, window)
        row_length, cost = self.policy.row_length, self.policy.cost
        tokens = window.lengths if window.lengths.ndim == 1 else window.lengths[:, 0]
        if self.overlong == "split":
            numbers, starts, lengths = split_long(tokens, row_length)
        else:
            lengths = np.minimum(tokens, row_length)
            numbers, starts = np.arange(len(window)), np.zeros(len(window), dtype=np.int64)
        # ahead of the plan: an error of a cost names what a user wrote, and not the policy's field
        costs = None if cost is None else sample_costs(lengths, cost, "balance_cost")
        plan = (
            _placed(window, self.policy, self.overlong) if self.overlong != "split" else planned(self.policy, lengths)
        )
        window = _truncated(self, window, row_length)
        order = random.permutation(len(plan), key) if self.shuffle else np.arange(len(plan))
        if costs is not None:
            order = self._even(plan, costs, order)
        ends = offsets_of(np.diff(plan.bounds)[order])
        pieces = plan.numbers[runs(plan.bounds[order], ends)]
        count = -(-len(order) // self.num_rows)
        bounds = ends[np.minimum(np.arange(count + 1) * self.num_rows, len(order))]
        rows = np.repeat(np.arange(len(order)) % self.num_rows, np.diff(ends))
        lie = PackedPieces(starts[pieces], lengths[pieces], rows)
        shape = np.full(count, row_length), np.full(count, self.num_rows)
        return PlannedWindow(window, numbers[pieces], bounds, *shape, pieces=lie, static=True, key=key)

    def _even(self, plan: Plan, costs: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows in an order in which each `num_rows` of them cost the same; a last, smaller batch has the cheapest."""
        row_of = np.repeat(np.arange(len(plan)), np.diff(plan.bounds))
        row_costs = part_sums(row_of, costs[plan.numbers], len(plan))
        order = order[np.argsort(-row_costs[order], kind="stable")]
        count = len(order) // self.num_rows
        full, rest = np.split(order, [count * self.num_rows])
        return np.concatenate([full[np.argsort(deal_greedily(row_costs[full], max(count, 1)), kind="stable")], rest])

    def divided(self, parts: int) -> ByPacking:
        return replace(self, num_rows=share(self.num_rows, parts, "rows", even=True))

    def complete(self, batches: PlannedWindow, last: bool) -> NDArray[np.bool_]:
        """Batches without an empty row."""
        assert batches.pieces is not None
        return np.equal(batches.pieces.rows[batches.bounds[1:] - 1], self.num_rows - 1)


@dataclass(frozen=True)
class ByKey(BatchPlanner):
    """Sorts by `key`, largest first, stable, and cuts: a batch has `batch_size` samples, or as many as `batch_size` of
    its first sample says, and never spans two values of `boundary_key`.

    `overlong`: what becomes of a sample of which `batch_size` says less than 1: "raise", "alone" or "drop". One that is longer
    than every bucket is dropped by "drop" alone.

    Price: Python, up to three calls a sample.
    """

    batch_size: int | Callable[[Sample], int]
    key: Callable[[Sample], Any]
    boundary_key: Callable[[Sample], Any] | None
    overlong: Literal["raise", "alone", "drop"] = "raise"
    rounding: Rounding | None = None
    sides: int = not_in_state(1)

    verb = "batch_by"
    asks_samples = True

    @property
    def sizing(self) -> Sizing:
        return Sizing(None, needs_lengths=False)

    @property
    def rounded(self) -> Any:
        return self.rounding

    def settings(self) -> dict[str, Any]:
        functions = {name: described(getattr(self, name)) for name in ("batch_size", "key", "boundary_key")}
        return {**functions, "overlong": self.overlong, **_rounding(self.rounding), **_stacked(self)}

    def batches(self, window: PlanningWindow, key: int) -> PlannedWindow:
        block = window.take(np.arange(len(window)))
        rows = samples(block)
        keys = list(call("batch_by", self.key, block))
        bounds = list(call("batch_by", self.boundary_key, block)) if self.boundary_key else [None] * len(rows)
        order = self._in_buckets(window, sorted(range(len(rows)), key=keys.__getitem__, reverse=True))
        batches: list[NDArray[np.int64]] = []
        longest: list[NDArray[np.int64]] = []
        start = 0
        while start < len(order):
            size = self.batch_size if isinstance(self.batch_size, int) else int(self.batch_size(rows[order[start]]))
            if size < 1:
                self._leave(size, where(block, order[start]), int(window.lengths[order[start]].sum()))
                size = 1
                if self.overlong == "drop":
                    start += 1
                    continue
            stop = min(start + size, len(order))
            bound = bounds[order[start]]
            stop = next((at for at in range(start, stop) if bounds[order[at]] != bound), stop)
            numbers = np.array(order[start:stop])
            batches.append(numbers)
            longest.append(window.lengths[numbers].max(axis=0, initial=1))
            start = stop
        members, ends = joined(batches)
        if window.units is not None:
            placed = np.sort(members)
            if words := parted(np.searchsorted(placed, members), ends, window.units[placed]):
                raise ValueError(f"batch_by sorts samples by key, and parts a unit: {words}")
        padded = np.array(longest, dtype=np.int64).reshape(len(batches), *window.lengths.shape[1:])
        padded = padded if self.rounding is None else self.rounding(padded)
        if self.sides > 1 and padded.ndim == 2:
            padded = np.repeat(padded.max(axis=1, keepdims=True), self.sides, axis=1)
        return PlannedWindow(window, members, ends, padded, np.diff(ends), key=key)

    def divided(self, parts: int) -> ByKey:
        if callable(self.batch_size):
            return self
        return replace(self, batch_size=share(self.batch_size, parts, "samples", even=True))

    def complete(self, batches: PlannedWindow, last: bool) -> NDArray[np.bool_]:
        return _full(batches, self.batch_size if isinstance(self.batch_size, int) else None, last)

    def _in_buckets(self, window: PlanningWindow, order: list[int]) -> list[int]:
        """The samples that a bucket holds; another one is an error, unless it is dropped, and counted."""
        most = None if self.rounding is None else self.rounding.longest(None)
        longest = window.lengths.reshape(len(window), -1).max(axis=1, initial=0)
        if most is None or longest.max(initial=0) <= most:
            return order
        beyond = np.flatnonzero(longest > most)
        place, words = where(window.block, int(window.rows[beyond[0]])), f"buckets of at most {most:,}"
        if self.overlong != "drop":
            raise DataError(
                f"a sample of {longest[beyond[0]]:,} tokens ({place}) cannot fit {words}; truncate or filter it, add a longer "
                "bucket, or set overlong='drop'"
            )
        count(
            "dropped", len(beyond), f"overlong: {len(beyond):,} samples of a window dropped, which cannot fit {words}"
        )
        count("dropped_tokens", int(window.lengths[beyond].sum()))
        return [sample for sample in order if longest[sample] <= most]

    def _leave(self, size: int, place: str, tokens: int) -> None:
        """A sample that no batch may have, as `batch_size` says; an error, unless it is left alone or dropped, and counted."""
        if self.overlong == "raise":
            raise DataError(
                f"batch_size must be at least 1 sample (got {size:,}, {place}). Filter such samples out, or set "
                "overlong='alone' (a batch of its own) or 'drop'"
            )
        name = "alone" if self.overlong == "alone" else "dropped"
        count(name, 1, f"overlong: samples {name}, as batch_size is {size:,} ({place})")
        count("dropped_tokens", tokens if name == "dropped" else 0)


def _fixed_size(policy: Policy) -> FixedSize | None:
    """The policy, where it plans as `FixedSize` does. The user's own plan may have any batches, also that of a subclass."""
    plan = getattr(type(policy), "plan", None)
    own = (getattr(plan, "__module__", ""), getattr(plan, "__qualname__", ""))
    return cast(FixedSize, policy) if own in _OF_FIXED_SIZE else None


_OF_FIXED_SIZE: Final = [(f"{package}.budget", "FixedSize.plan") for package in ("brimful.plan", "brimful_plan")]


def _placed(window: PlanningWindow, policy: Policy, overlong: Overlong, parts: int = 1, sides: int = 1) -> Plan:
    lengths = longest_side(window.lengths) if sides > 1 else window.lengths
    try:
        plan, counts = plan_with(policy, lengths, overlong, window.units)
    except OverlongError as error:
        words = str(error)
        if 0 <= error.sample < len(window):
            own = window.select(np.array([error.sample]))  # no other sample is fetched for it
            words = error.located(where(own.block, int(own.rows[0])))
        share = f" (each of the {parts} micro_batches of a step has an equal share)" if parts > 1 else ""
        share += f" (each of the {sides} sides has an equal share of the budget)" if sides > 1 else ""
        # what is refused for something else than its one length does not fit when it is cut
        longest = policy.max_length or error.max_length
        cuts = overlong != "truncate" and lengths.ndim == 1 and longest is not None and error.length > longest
        whole = of_whole_sample(window)
        if whole:
            unit = f" {window.sizes[0]}" if window.sizes[0].isidentifier() else ""
            words = words.replace(" tokens (", f"{unit} (", 1).replace("; truncate or filter it", "; filter it", 1)
        ways = "'truncate' or 'drop'" if cuts and not whole else "'drop'"
        raise DataError(f"{words}{share}; or set overlong={ways} for such samples") from error
    tokens = counts.pop("dropped_tokens")
    if lengths is not window.lengths:
        plan = on_all_sides(plan, window.lengths)
        kept = np.minimum(window.lengths[plan.numbers], np.repeat(plan.padded_lengths, np.diff(plan.bounds), axis=0))
        tokens = int(window.lengths.sum() - kept.sum())
    for name, number in counts.items():
        if number:
            taken = policy if type(policy).__repr__ is not object.__repr__ else type(policy).__name__
            count(name, number, f"overlong: {number:,} samples of a window {name}, longer than {taken} takes")
    count("dropped_tokens", tokens)
    return plan


def _check_truncate(side: TruncateSide, overlong: str) -> None:
    one_of("truncate_side", side, *get_args(TruncateSide))
    if side != "right" and overlong != "truncate":
        raise ValueError(f"truncate_side={side!r} is for overlong='truncate' (got overlong={overlong!r})")


def _refuse_uncut(planner: BatchPlanner, window: PlanningWindow) -> None:
    """Refuses a column of numbers where samples are cut, or packed, by their lengths."""
    cuts = planner.packs or (planner.overlong == "truncate" and planner.sides == 1)
    if cuts and of_whole_sample(window):
        refuse_whole(repr(window.sizes[0]), planner.overlong, planner.packs)


def _cut(planner: BatchPlanner) -> dict[str, Any]:
    side = {} if planner.truncate_side == "right" else {"truncate_side": planner.truncate_side}
    return {"overlong": planner.overlong, **side}


def _truncated(planner: BatchPlanner, window: PlanningWindow, most: int | None) -> PlanningWindow:
    """The window as cut. Where the end of a sample is left out, its beginning is found where it lies, and nothing is copied."""
    if planner.truncate_side == "right" or most is None:
        return window
    return window.truncated(planner.token_columns, most, planner.truncate_side)


def _full(batches: PlannedWindow, size: int | None, last: bool) -> NDArray[np.bool_]:
    full = np.ones(len(batches), dtype=bool)
    if size is not None:
        full = np.diff(batches.bounds) == size
    elif last and len(batches):
        full[-1] = False
    return full


def _rounding(rounding: Rounding | None) -> dict[str, Any]:
    return {} if rounding is None else {name: described(value) for name, value in vars(rounding).items()}


def _stacked(planner: BatchPlanner) -> dict[str, Any]:
    return {} if planner.sides == 1 else {"layout": "paired"}
