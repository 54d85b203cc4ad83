"""Policies that fill a batch up to a limit: of samples, of tokens, or of any cost of the padded shape."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from .buckets import Rounding, as_buckets
from .cut import Cut, assemble, cut_fewest, cut_greedy, cut_priced, plan_sorted, plan_units
from .errors import check_count, finite, integer, one_of
from .overlong import refuse_overlong
from .plan import IntArray, Plan, Policy, as_lengths, one_length, widths

Cost = Callable[[int, int], float]
PlannerName = Literal["greedy", "least_padding"]

ENDLESS = 1 << 40
"""A length or a batch size that no limit stops."""


@dataclass(frozen=True)
class FixedSize:
    """Batches of `n` samples of similar length. Samples are sorted longest first (stable) and cut. The last batch may
    be shorter.

    A batch is padded to its longest sample (1 token at least). Pairs are ordered so that both lengths change little.

    Args:
        n: samples in a batch.
        sort: False keeps the order of arrival.
    Raises:
        ValueError: n is below 1.
    Price: .03 s per million samples.
    Example:
        >>> [batch.tolist() for batch in FixedSize(2).plan([5, 9, 7]).batches]
        [[1, 2], [0]]
        >>> [batch.tolist() for batch in FixedSize(2, sort=False).plan([5, 9, 7]).batches]
        [[0, 1], [2]]
    """

    n: int
    sort: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self, "n", 1, "sample")

    @property
    def max_length(self) -> None:
        """None: samples of any length.

        Example:
            >>> FixedSize(2).max_length is None
            True
        """
        return None

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Batches of `n` samples, each padded to its longest.

        Example:
            >>> plan = FixedSize(2).plan([5, 9, 7])
            >>> [batch.tolist() for batch in plan.batches], plan.padded_lengths.tolist()
            ([[1, 2], [0]], [9, 5])
        """
        lengths = as_lengths(lengths)
        padded = np.maximum(lengths, 1)
        if self.sort:
            return plan_sorted(lengths, padded, lambda _: self.n, cut_greedy, units)
        if units is not None:
            return plan_units(lengths, padded, lambda _: self.n, units, sort=False)
        return assemble(lengths, padded, np.arange(len(lengths)), np.arange(0, len(lengths), self.n))

    def divided(self, parts: int) -> FixedSize:
        """The policy of each of the `parts` batches of an optimizer step.

        Raises:
            ValueError: the samples do not come out even.
        Example:
            >>> FixedSize(8).divided(4)
            FixedSize(n=2, sort=True)
        """
        return replace(self, n=share(self.n, parts, "samples", even=True))


class _OfTokens:
    """What two policies with `max_tokens` have in common."""

    max_tokens: int

    def divided(self, parts: int) -> Self:
        """The policy of each of the `parts` batches of an optimizer step.

        Raises:
            ValueError: there are fewer tokens than parts.
        Example:
            >>> TokenBudget(16_384).divided(4).max_tokens
            4096
        """
        return self._with(share(self.max_tokens, parts, "tokens"))

    def stacked(self, sides: int) -> Self:
        """The policy for samples that have `sides` rows each, planned by their longest side.

        Raises:
            ValueError: there are fewer tokens than sides.
        Example:
            >>> TokenBudget(16_384).stacked(2).max_tokens
            8192
        """
        return self._with(share_of_side("max_tokens", self.max_tokens, sides))

    def exceeded(self, rows: int, length: int) -> str:
        """The limit that is too low for a batch of this shape; "" where it is not.

        Example:
            >>> TokenBudget(60).exceeded(3, 30), TokenBudget(60).exceeded(2, 30)
            ('max_tokens=60', '')
        """
        return f"max_tokens={self.max_tokens:,}" if rows * length > self.max_tokens else ""

    def _with(self, max_tokens: int) -> Self:
        return cast(Self, replace(cast(Any, self), max_tokens=max_tokens))


@dataclass(frozen=True)
class TokenBudget(_OfTokens):
    """Batches of at most `max_tokens` slots, samples x padded length. Samples are sorted longest first (stable) and
    cut.

    A batch is padded to its longest sample (1 token at least), rounded up to a multiple or to a bucket. With pairs,
    each of the two lengths is rounded by itself. A batch then has samples x (padded source + padded target) slots.

    Args:
        max_tokens: most slots in a batch, padding included.
        pad_to_multiple_of: padded lengths are multiples of it, in tokens. 8 suits tensor cores.
        buckets: the only padded lengths. A batch takes the smallest that is not smaller.
        planner: "greedy" fills each batch, which makes the fewest batches. "least_padding" chooses the boundaries that
            waste least. Pairs are always cut greedily.
        step_cost: for "least_padding": the cost of a batch beside its slots, as a share of the budget. .05 saves a
            third of the padding for 9 % more batches. None: no more batches than greedy.
    Raises:
        ValueError: a setting allows no batch at all, or the planner is unknown.
        OverlongError: (from `plan`) a sample alone exceeds the budget or every bucket.
    Price: greedy .03 s per million samples, least_padding .3 s. About 40 bytes a sample while it plans.
    Source: the greedy cut of a sorted window is from fairseq. Least padding is the partition of a line by dynamic
        programming.
    Example:
        >>> plan = TokenBudget(60).plan([50, 30, 20, 20, 30, 20])
        >>> [batch.tolist() for batch in plan.batches]
        [[0], [1, 4], [2, 3, 5]]
        >>> TokenBudget(60, buckets=[32, 60]).plan([50, 30, 20]).padded_lengths.tolist()
        [60, 32, 32]
    """

    max_tokens: int
    pad_to_multiple_of: int = field(default=1, kw_only=True)
    buckets: Sequence[int] | None = field(default=None, kw_only=True)
    planner: PlannerName = field(default="greedy", kw_only=True)
    step_cost: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self, "max_tokens", 1, "token")
        check_count(self, "pad_to_multiple_of", 1, "token")
        if self.pad_to_multiple_of > self.max_tokens:
            limit = f"max_tokens={self.max_tokens:,}"
            raise ValueError(f"pad_to_multiple_of must be at most {limit} (got {self.pad_to_multiple_of:,})")
        if self.buckets is not None:
            buckets = as_buckets(self.buckets, self.max_tokens, self.pad_to_multiple_of)
            object.__setattr__(self, "buckets", buckets)
        one_of("planner", self.planner, *get_args(PlannerName))
        if self.step_cost is not None and self.planner == "greedy":
            raise ValueError(f"step_cost needs planner='least_padding' (got {self.planner!r})")
        if self.step_cost is not None and finite("step_cost", self.step_cost) < 0:
            raise ValueError(f"step_cost must not be negative (got {self.step_cost})")

    @property
    def max_length(self) -> int:
        """The longest sample, in tokens, that fits when padded.

        Example:
            >>> TokenBudget(60).max_length, TokenBudget(60, pad_to_multiple_of=8).max_length
            (60, 56)
        """
        longest = self._rounding.longest(self.max_tokens)
        assert longest is not None
        return longest

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Batches of at most `max_tokens` slots.

        Example:
            >>> lengths = [30, 29, 28, 10, 9, 8, 7]
            >>> TokenBudget(60).plan(lengths)
            Plan(3 batches, 3 shapes, 15.38% padding)
            >>> TokenBudget(60, planner="least_padding").plan(lengths)
            Plan(3 batches, 3 shapes, 5.47% padding)
            >>> TokenBudget(60, planner="least_padding", step_cost=0.05).plan(lengths)
            Plan(4 batches, 4 shapes, 2.42% padding)
        """
        lengths = as_lengths(lengths)
        padded = self._rounding(lengths)
        self._refuse(lengths, padded)
        return plan_sorted(lengths, padded, self.max_tokens.__floordiv__, self._cut(), units)

    def _cut(self) -> Cut:
        if self.planner == "greedy":
            return cut_greedy
        if self.step_cost is None:
            return cut_fewest
        return partial(cut_priced, step_tokens=round(self.step_cost * self.max_tokens))

    @property
    def _rounding(self) -> Rounding:
        return Rounding(pad_to_multiple_of=self.pad_to_multiple_of, buckets=self.buckets)

    def _refuse(self, lengths: IntArray, padded: IntArray) -> None:
        fits = widths(padded) <= self.max_tokens
        limit, remedy = f"max_tokens={self.max_tokens:,}", "raise the budget"
        if self.buckets is not None:
            fits &= (lengths if lengths.ndim == 1 else lengths.max(axis=1)) <= self.buckets[-1]
            limit += f" in buckets of at most {self.buckets[-1]:,}"
            remedy += " or add a longer bucket"
        elif self.pad_to_multiple_of > 1:
            limit += f" in multiples of {self.pad_to_multiple_of:,}"
        refuse_overlong(lengths, fits, max_length=self.max_length, limit=limit, remedy=remedy)


@dataclass(frozen=True)
class StaticShapes(_OfTokens):
    """Batches of exactly floor(max_tokens / L) rows for each bucket of L tokens. There are no more shapes than buckets.

    Samples are sorted longest first (stable) and cut. Samples of the next bucket fill up a batch of this one. Only the
    last batch can be short. Its tensor still has `padded_sizes` rows: zero-weight copies of a real row fill it.

    Args:
        buckets: the only padded lengths, in tokens. A sample takes the smallest that is not smaller.
        max_tokens: most slots in a batch, padding included.
    Raises:
        ValueError: no buckets, or one below 1 or above `max_tokens` tokens.
        OverlongError: (from `plan`) a sample is longer than every bucket.
    Price: that of `TokenBudget`.
    Example:
        >>> plan = StaticShapes([16, 64], 64).plan([50, 10, 10, 10, 10, 10])
        >>> [batch.tolist() for batch in plan.batches], plan.padded_sizes.tolist(), plan.num_shapes
        ([[0], [1, 2, 3, 4], [5]], [1, 4, 4], 2)
    """

    buckets: Sequence[int]
    max_tokens: int

    def __post_init__(self) -> None:
        check_count(self, "max_tokens", 1, "token")
        object.__setattr__(self, "buckets", as_buckets(self.buckets, self.max_tokens))

    @property
    def max_length(self) -> int:
        """The longest bucket, in tokens.

        Example:
            >>> StaticShapes([16, 64], 128).max_length
            64
        """
        return self.buckets[-1]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All possible shapes, (rows, tokens).

        Example:
            >>> StaticShapes([16, 64], 128).shapes
            [(8, 16), (2, 64)]
        """
        return [(self.max_tokens // bucket, bucket) for bucket in self.buckets]

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Batches of full shapes; the last may have copies in it.

        Example:
            >>> plan = StaticShapes([16, 64], 128).plan([50, 40, 10])
            >>> [batch.tolist() for batch in plan.batches], plan.padded_sizes.tolist(), plan.padded_lengths.tolist()
            ([[0, 1], [2]], [2, 8], [64, 16])
        """
        plan = TokenBudget(self.max_tokens, buckets=self.buckets).plan(one_length(lengths, "StaticShapes"), units=units)
        return replace(plan, padded_sizes=self.max_tokens // plan.padded_lengths)


@dataclass(frozen=True)
class CostBudget:
    """Batches whose cost is at most `limit`. Samples are sorted longest first (stable) and cut greedily.

    A batch is padded to its longest sample (1 token at least). With pairs, `cost` gets the sum of both padded lengths.

    Args:
        cost: cost(batch_size, padded_length): any function that never falls when either grows, in any unit.
        limit: the most that a batch may cost, in the same unit.
    Raises:
        ValueError: one token alone costs more than the limit.
        OverlongError: (from `plan`) a sample alone costs more than the limit.
    Price: that of `TokenBudget`, and 2 log2(samples in it) calls of `cost` a batch.
    Example:
        >>> from brimful.plan import AttentionCost
        >>> plan = CostBudget(AttentionCost(quadratic=1 / 10), 200).plan([30, 20, 10, 5, 5])
        >>> [batch.tolist() for batch in plan.batches]
        [[0], [1, 2, 3], [4]]
    """

    cost: Cost
    limit: float

    def __post_init__(self) -> None:
        if not callable(self.cost):
            raise TypeError(
                f"cost must be a function of (batch_size, padded_length) (got {self.cost!r}); AttentionCost(quadratic=...) is one"
            )
        if self.cost(1, 1) > finite("limit", self.limit):
            least = f"cost(1, 1)={self.cost(1, 1):,}"
            raise ValueError(f"limit must be at least that of one token, {least} (got {self.limit:,})")

    @property
    def max_length(self) -> int | None:
        """The longest sample, in tokens, that alone costs no more than the limit. None if no length exceeds it.

        Example:
            >>> from brimful.plan import AttentionCost
            >>> CostBudget(AttentionCost(quadratic=1 / 10), 200).max_length
            40
        """
        longest = largest(lambda length: self.cost(1, length), self.limit)
        return None if longest == ENDLESS else longest

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Batches that cost at most `limit`.

        Example:
            >>> from brimful.plan import AttentionCost
            >>> plan = CostBudget(AttentionCost(linear=2, quadratic=1 / 10), 200).plan([30, 20, 10, 5, 5])
            >>> [batch.tolist() for batch in plan.batches]
            [[0], [1, 2], [3, 4]]
        """
        lengths = as_lengths(lengths)
        padded = np.maximum(lengths, 1)
        max_length = self.max_length
        if max_length is not None:
            fits = widths(padded) <= max_length
            limit = f"limit={self.limit:,} (at most {max_length:,} tokens)"
            refuse_overlong(lengths, fits, max_length=max_length, limit=limit, remedy="raise the limit")
        return plan_sorted(lengths, padded, self._rows, cut_greedy, units)

    def divided(self, parts: int) -> CostBudget:
        """The policy of each of the `parts` batches of an optimizer step.

        Example:
            >>> from brimful.plan import AttentionCost
            >>> CostBudget(AttentionCost(quadratic=1 / 10), 200).divided(4).limit
            50.0
        """
        return replace(self, limit=self.limit / parts)

    def stacked(self, sides: int) -> CostBudget:
        """The policy for samples that have `sides` rows each, planned by their longest side.

        Example:
            >>> from brimful.plan import AttentionCost
            >>> CostBudget(AttentionCost(quadratic=1 / 10), 200).stacked(2).cost(1, 10)
            40.0
        """
        return replace(self, cost=_OfRows(self.cost, sides))

    def exceeded(self, rows: int, length: int) -> str:
        """The limit that is too low for a batch of this shape; "" where it is not.

        Example:
            >>> from brimful.plan import AttentionCost
            >>> CostBudget(AttentionCost(quadratic=1 / 10), 200).exceeded(2, 50)
            'limit=200'
        """
        return f"limit={self.limit:,}" if self.cost(rows, length) > self.limit else ""

    def _rows(self, padded_length: int) -> int:
        return largest(lambda batch_size: self.cost(batch_size, padded_length), self.limit)


@dataclass(frozen=True)
class _OfRows:
    """The cost of a batch of so many rows a sample."""

    cost: Cost
    sides: int

    def __call__(self, batch_size: int, padded_length: int) -> float:
        return self.cost(batch_size * self.sides, padded_length)


def largest(cost: Callable[[int], float], limit: float) -> int:
    """The largest number from 1 on whose cost is within the limit, by doubling and bisection; `ENDLESS` where all are."""
    low = 1
    while low < ENDLESS and cost(2 * low) <= limit:
        low *= 2
    return ENDLESS if low == ENDLESS else bisect_right(range(2 * low), limit, lo=low, key=cost) - 1


def divided(policy: Policy, parts: int) -> Policy:
    """The policy of each of the `parts` batches whose gradients one optimizer step adds up.

    Samples, tokens and cost are shared evenly. A limit of memory stays as it is, since the batches run one after the other. So
    does a user's own policy, since brimful does not know its limit.

    Raises:
        ValueError: there are fewer samples or tokens than parts; samples that do not come out even.

    >>> divided(TokenBudget(16_384), 4)
    TokenBudget(max_tokens=4096, pad_to_multiple_of=1, buckets=None, planner='greedy', step_cost=None)
    """
    own = getattr(policy, "divided", None)
    return policy if own is None else own(parts)


def as_limits(name: str, limits: Any) -> dict[str, int]:
    """Limits by name, checked.

    Raises:
        TypeError: no mapping of names to whole numbers.
        ValueError: a limit is below 1, or so large that sums of sizes would not fit in 64 bits.

    >>> as_limits("total", {"num_patches": 8_192})
    {'num_patches': 8192}
    """
    if not isinstance(limits, Mapping) or not all(isinstance(key, str) for key in limits):
        raise TypeError(f"{name} takes limits by name, such as {{'num_patches': 8_192}} (got {limits!r})")
    return {key: integer(f"{name}[{key!r}]", limit, 1, most=ENDLESS) for key, limit in limits.items()}


def share(budget: int, parts: int, unit: str, *, even: bool = False) -> int:
    """An equal share of a budget, rounded down.

    Raises:
        ValueError: a share would be empty; or `even` is set, and the shares would not add up to the budget.
    """
    if budget < parts or (even and budget % parts):
        remedy = f"a multiple of {parts:,}" if even else f"{parts:,} at least"
        raise ValueError(
            f"{budget:,} {unit} of an optimizer step cannot be divided into equal shares for "
            f"micro_batches={parts:,}: give {remedy}"
        )
    return budget // parts


def share_of_side(name: str, limit: int, sides: int) -> int:
    """What each of the sides of a sample has of a limit.

    Raises:
        ValueError: there are fewer tokens than sides.
    """
    if limit < sides:
        raise ValueError(f"{name} must be at least 1 token for each of the {sides} sides (got {limit})")
    return limit // sides
