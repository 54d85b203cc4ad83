"""A policy with several limits at once: of padded totals, of sums, and of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from .budget import ENDLESS, as_limits, share, share_of_side
from .cut import plan_units, plan_wide
from .errors import check_count
from .overlong import refuse_beyond
from .pack import rows_within
from .plan import IntArray, Plan, as_lengths, longest_of_each, sizes_by_name


@dataclass(frozen=True)
class MultiBudget:
    """Batches within several limits at once: tokens and image patches, nodes and edges, milliseconds and samples.

    A size in `padded` is limited as rows x longest, because its column is padded. A size in `total` is limited as the
    sum over the samples, because its column is concatenated, or costs memory by the sum. In batch verbs, the names are
    those of columns: a list column has its length as its size, and a number column its value.

    With sizes in `padded`, samples are sorted longest first (stable) and cut. With sizes in `total` alone there is no padding,
    and samples are placed by best fit, those with the greatest share of a limit first.

    Args:
        padded: the most slots in a batch, rows x longest, by name of the size.
        total: the most of a batch in sum, by name of the size.
        max_samples: the most samples in a batch. None: any number.
        pad_to_multiple_of: padded lengths are multiples of it.
    Raises:
        ValueError: there is no limit, a limit is below 1, or a size is in both.
        OverlongError: (from `plan`) a sample alone exceeds a limit.
    Price: .1 s per million samples and 30 us a batch. With `total` alone 20 us a sample.
    Source: the greedy cut of sorted samples, and best-fit decreasing with vectors of sizes.
    Example:
        >>> budget = MultiBudget(padded={"input_ids": 60}, total={"num_patches": 10})
        >>> plan = budget.plan({"input_ids": [30, 30, 20, 20, 10], "num_patches": [6, 4, 5, 5, 1]})
        >>> [batch.tolist() for batch in plan.batches], plan.padded_lengths.tolist()
        ([[0, 1], [2, 3], [4]], [[30, 6], [20, 5], [10, 1]])
    """

    padded: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    total: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    max_samples: int | None = field(default=None, kw_only=True)
    pad_to_multiple_of: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("padded", "total"):
            object.__setattr__(self, name, as_limits(name, getattr(self, name)))
        if not self.columns:
            raise ValueError(
                "MultiBudget needs at least 1 limit: padded={'input_ids': 16_384}, total={'num_patches': 8_192}"
            )
        if both := sorted({*self.padded} & {*self.total}):
            raise ValueError(f"{both[0]!r} is in padded and in total: a column is padded, or summed")
        if self.max_samples is not None:
            check_count(self, "max_samples", 1, "sample")
        check_count(self, "pad_to_multiple_of", 1)
        for name, limit in self.padded.items():
            if limit < self.pad_to_multiple_of:
                raise ValueError(
                    f"pad_to_multiple_of must be at most {name}={limit:,} (got {self.pad_to_multiple_of:,})"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the sizes, in the order in which `plan` takes them: those that are padded come first.

        Example:
            >>> MultiBudget(total={"num_patches": 10}, padded={"input_ids": 60}).columns
            ('input_ids', 'num_patches')
        """
        return *self.padded, *self.total

    @property
    def num_padded(self) -> int:
        """How many of the sizes are padded.

        Example:
            >>> MultiBudget(total={"num_patches": 10}, padded={"input_ids": 60}).num_padded
            1
        """
        return len(self.padded)

    @property
    def max_length(self) -> int | None:
        """The longest sample that fits, if there is one size. None if there are several: no single length says it.

        Example:
            >>> MultiBudget(padded={"input_ids": 60}, pad_to_multiple_of=8).max_length
            56
        """
        if len(self.columns) > 1:
            return None
        if self.total:
            return self.total[self.columns[0]]
        return self.padded[self.columns[0]] // self.pad_to_multiple_of * self.pad_to_multiple_of

    def plan(self, sizes: ArrayLike | Mapping[str, ArrayLike], *, units: ArrayLike | None = None) -> Plan:
        """Batches within all limits.

        Args:
            sizes: the sizes of each sample by name, (n,) each; or an array (n, d) in the order of `columns`.
            units: a number for each sample, (n,). Neighbours with equal ones are in one batch.
        Raises:
            ValueError: other sizes than those of the limits.
        Example:
            >>> plan = MultiBudget(total={"nodes": 10, "edges": 20}).plan([[5, 9], [4, 12], [5, 11], [6, 8]])
            >>> [batch.tolist() for batch in plan.batches]
            [[1, 3], [0, 2]]
        """
        values = self._values(sizes)
        count = self.num_padded
        multiple = self.pad_to_multiple_of
        lengths = np.maximum(-(-values[:, :count] // multiple), 1) * multiple
        totals = values[:, count:]
        rounding = f" in multiples of {multiple:,}" if multiple > 1 else ""
        refuse_beyond(
            values, np.column_stack([lengths, totals]), {**self.padded, **self.total}, self.max_length, rounding
        )
        wide = isinstance(sizes, Mapping) or np.ndim(sizes) > 1
        if count:
            plan = self._cut(values, lengths, totals, units)
        else:
            plan = rows_within(values, values, self.total, self.max_samples, units)
        return plan if wide else replace(plan, padded_lengths=plan.padded_lengths[:, 0])

    def divided(self, parts: int) -> MultiBudget:
        """The policy of each of the `parts` batches of an optimizer step.

        Raises:
            ValueError: a limit is smaller than the number of parts.
        Example:
            >>> MultiBudget(padded={"input_ids": 60}, max_samples=8).divided(4)
            MultiBudget(padded={'input_ids': 15}, total={}, max_samples=2, pad_to_multiple_of=1)
        """
        padded, total = (
            {name: share(limit, parts, name) for name, limit in one.items()} for one in (self.padded, self.total)
        )
        samples = None if self.max_samples is None else share(self.max_samples, parts, "samples")
        return replace(self, padded=padded, total=total, max_samples=samples)

    def stacked(self, sides: int) -> MultiBudget:
        """The policy for samples that have `sides` rows each, planned by their longest side.

        Raises:
            ValueError: it has limits of several sizes, or fewer tokens than sides.
        Example:
            >>> MultiBudget(padded={"input_ids": 60}, max_samples=8).stacked(2).padded
            {'input_ids': 30}
        """
        if len(self.padded) != 1 or self.total:
            raise ValueError(
                "layout='paired' plans by the longest side of each sample, so MultiBudget may have one limit in padded, and none "
                f"in total (got {', '.join(self.columns)})"
            )
        return replace(self, padded={name: share_of_side(name, most, sides) for name, most in self.padded.items()})

    def _values(self, sizes: ArrayLike | Mapping[str, ArrayLike]) -> IntArray:
        names = self.columns
        given = sizes_by_name(sizes, names) if isinstance(sizes, Mapping) else as_lengths(sizes)
        values = given[:, None] if given.ndim == 1 else given
        if values.shape[1] != len(names):
            raise ValueError(f"the limits are of {len(names)} sizes, {', '.join(names)} (got shape {given.shape})")
        return values

    def _cut(self, values: IntArray, lengths: IntArray, totals: IntArray, units: ArrayLike | None) -> Plan:
        limits, samples = [*self.padded.values()], self.max_samples or ENDLESS

        def rows(widths: tuple[int, ...]) -> int:
            return min(samples, *(limit // width for limit, width in zip(limits, widths, strict=True)))

        if units is None:
            plan = plan_wide(lengths, lengths, rows, totals, [*self.total.values()])
        else:
            plan = plan_units(lengths, lengths, rows, units, totals=totals, limits=self.total)
        greatest = np.zeros((len(plan), totals.shape[1]), np.int64)
        if totals.size:
            greatest = longest_of_each(totals, plan.numbers, plan.bounds)
        return replace(
            plan,
            padded_lengths=np.column_stack([plan.padded_lengths, greatest]),
            tokens=int(values[:, : self.num_padded].sum()),
            num_padded=self.num_padded,
        )
