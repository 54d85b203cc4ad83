"""Whole optimizer steps: samples, or units of them, into (step, micro batch, rank), within limits and of equal work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .budget import ENDLESS, as_limits
from .costs import SampleCost, sample_costs
from .cut import ascending
from .dealing import FloatArray
from .errors import check_bool, counted, integer, names_of, one_of
from .micro import StepWork, micro_batches_of
from .once import once
from .overlong import refuse_beyond, refuse_sums, refuse_units
from .plan import IntArray, as_lengths, sizes_by_name
from .units import UnitSpans, units_of

Within = Literal["micro_batch", "rank"]


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """Where each sample goes, as `steps` planned it.

    Args:
        step, micro_batch, rank: of each sample, (n,) int64 each. Micro batches are counted from 0 in each step and rank. The
            dearest comes first, so those of one place cost about the same on all ranks.
        counts: how many micro batches each rank has in each step, (num_steps, num_ranks) int64.
        loads: what each rank has to do in each step, (num_steps, num_ranks) float64, in the unit of the cost.
    Price: 24 bytes a sample; `numbers` and `bounds` 8 bytes more, `batches` 150 bytes a micro batch, once asked for.
    Example:
        >>> plan = steps([6, 5, 4, 3, 2, 2], 8, 3)
        >>> plan
        Steps(1 step, 3 ranks, 3 micro batches, greatest load 1.091 of the mean)
        >>> plan.rank.tolist(), plan.loads.tolist()
        ([0, 1, 2, 2, 1, 0], [[8.0, 7.0, 7.0]])
        >>> plan.numbers.tolist(), plan.bounds.tolist()
        ([0, 5, 1, 4, 2, 3], [0, 2, 4, 6])
    """

    step: IntArray
    micro_batch: IntArray
    rank: IntArray
    counts: IntArray
    loads: FloatArray

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        batches, (count, ranks) = int(self.counts.sum()), self.counts.shape
        words = ", ".join(
            [counted(count, "step"), counted(ranks, "rank"), f"{batches:,} micro batch{'es' * (batches != 1)}"]
        )
        return f"Steps({words}, greatest load {self.imbalance:.3f} of the mean)"

    @property
    def imbalance(self) -> float:
        """How much longer the steps take than with equal loads: the greatest load of each step over the mean one, 1.0 at best.

        Example:
            >>> steps([6, 5, 4, 3], 9, 2).imbalance
            1.0
        """
        mean = float(self.loads.mean(axis=1).sum())
        return float(self.loads.max(axis=1).sum()) / mean if mean else 1.0

    @once
    def numbers(self) -> IntArray:
        """Sample numbers, micro batch after micro batch: step by step, in a step rank by rank, (n,) int64.

        Example:
            >>> steps([6, 5, 4, 3], 9, 2).numbers.tolist()
            [0, 3, 1, 2]
        """
        return ascending(self._micro_batches)

    @once
    def bounds(self) -> IntArray:
        """Where in `numbers` each micro batch begins, and the last one ends, (num_micro_batches + 1,) int64.

        Example:
            >>> steps([6, 5, 4, 3], 9, 2).bounds.tolist()
            [0, 2, 4]
        """
        return np.append(0, np.cumsum(np.bincount(self._micro_batches, minlength=int(self.counts.sum()))))

    @once
    def batches(self) -> list[list[list[IntArray]]]:
        """The sample numbers of each micro batch: `batches[step][rank][micro_batch]`, (k,) int64 each, ascending.

        Example:
            >>> [[[one.tolist() for one in rank] for rank in ranks] for ranks in steps([6, 5, 4, 3], 6, 2).batches]
            [[[[0], [3]], [[1], [2]]]]
        """
        parts = iter([self.numbers[begin:end] for begin, end in pairwise(self.bounds.tolist())])
        return [[[next(parts) for _ in range(count)] for count in ranks] for ranks in self.counts.tolist()]

    @property
    def _micro_batches(self) -> IntArray:
        """The micro batch of each sample, counted through all steps and ranks."""
        ends = np.cumsum(self.counts.ravel()).reshape(self.counts.shape)
        found: IntArray = (ends - self.counts)[self.step, self.rank] + self.micro_batch
        return found


def steps(
    sizes: ArrayLike | Mapping[str, ArrayLike],
    limits: int | Mapping[str, int],
    num_ranks: int,
    *,
    samples_per_step: int | None = None,
    units: ArrayLike | None = None,
    units_within: Within = "micro_batch",
    multiple_of: int = 1,
    same_count: bool = True,
    padded: bool | str | Sequence[str] = False,
    cost: SampleCost | ArrayLike | None = None,
) -> Steps:
    """Plans whole optimizer steps: which samples make up which micro batch, and which rank has it.

    Each step takes as few micro batches as can be found within the limits. Then the greatest load of a rank is made as small
    as can be found. At each place, the micro batches of all ranks cost about the same. The plan is a function of the arguments
    alone: each rank can make it, and it is the same after a resume.

    No rank is empty. A micro batch is empty only where there are fewer units than micro batches, or where the units of a rank
    have too few samples.

    Args:
        sizes: tokens of each sample, (n,). With several limits: sizes by name, (n,) each, or an array (n, d) in the order of
            the limits.
        limits: most tokens in a micro batch, or limits by name. "samples" is the number of samples. They always hold.
        num_ranks: how many data-parallel ranks.
        samples_per_step: samples in a step, which are neighbours. The last step has the rest. With units, a step has as many
            whole ones as fit. None: all samples are one step.
        units: a number for each sample, (n,). Neighbours with equal ones stay together, such as all answers to a prompt.
        units_within: "micro_batch", or "rank": the samples of a unit are in one step on one rank, in any of its micro batches.
        multiple_of: each rank's number of micro batches in a step is a multiple of it, as pipeline stages need.
        same_count: all ranks have the same number of micro batches in a step. Otherwise they differ by `multiple_of` at most.
        padded: which sizes count as samples x longest: all (True), a name or several. A micro batch then costs samples x the
            dearest one. Otherwise sizes and costs are summed.
        cost: of a sample: `AttentionCost`, a function of its first size, or costs, (n,). By default the first size.
    Raises:
        OverlongError: a sample or a unit alone exceeds a limit.
        ValueError: a step has fewer units than ranks. Or a unit has more samples than a step, or sizes and limits do not match.
    Price: .3 s and 100 MB for 10^6 samples on 1,024 ranks. 1 to 6 ms for a step of 512 samples on 8. With several limits
        50 us a sample where they are hard to keep. Padded .2 ms for each micro batch.
    Source: that of `balance`, and best fit with a tighter limit (MULTIFIT; Coffman, Garey and Johnson 1978). Padded micro
        batches are cut from the samples, longest first. For at most 12 samples or units, all ways are searched.
    Example:
        >>> lengths, prompts = [700, 650, 300, 280, 900, 100, 400, 420], [0, 0, 1, 1, 2, 2, 3, 3]
        >>> plan = steps(lengths, {"tokens": 1_400, "samples": 4}, 2, units=prompts)
        >>> plan.micro_batch.tolist(), plan.rank.tolist()
        ([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1])
        >>> plan.loads.tolist()
        [[1930.0, 1820.0]]
    """
    most = limits_by_name(limits)
    names, values = [name for name in most if name != "samples"], limited_sizes(sizes, most)
    num_ranks = integer("num_ranks", num_ranks, 1, "rank")
    multiple_of = integer("multiple_of", multiple_of, 1, "micro batch", most=1 << 16)
    check_bool("same_count", same_count)
    one_of("units_within", units_within, *get_args(Within))
    pads = _padded_names(padded, names)
    costs = _costs(values[:, 0], cost)
    own = units_of(np.arange(len(values)) if units is None else units, len(values))
    whole = units is not None and units_within == "micro_batch"
    columns = values[:, : len(names)]
    if pads.any():
        columns = np.where(pads, np.maximum(columns, 1), columns)
    if names:
        refuse_beyond(values[:, : len(names)], columns, {name: most[name] for name in names}, None)
    if "samples" in most:
        columns, pads = with_samples(columns, most), np.append(pads, False)
    caps = np.array([*most.values()], np.int64)
    rows = np.broadcast_to(np.int64(1), len(values))
    if whole:
        columns = np.where(pads, own.greatest(columns), own.sums(columns))
        costs, rows = own.greatest(costs) if pads.any() else own.sums(costs), own.counts
        _refuse_large(own, columns, pads, most)
    first_units = _first_units(own, samples_per_step)
    if len(few := np.flatnonzero(np.diff(first_units) < num_ranks)):
        has = counted(int(np.diff(first_units)[few[0]]), "sample" if units is None else "unit")
        raise ValueError(
            f"step {few[0]:,} has {has} for {num_ranks:,} ranks, and no rank may be empty; take fewer ranks, or more samples "
            "a step"
        )
    found = np.empty((3, len(values)), np.int64)
    counts = np.empty((len(first_units) - 1, num_ranks), np.int64)
    loads = np.empty(counts.shape)
    sample_bounds = np.append(own.begins, len(values))
    for number, (first, last) in enumerate(pairwise(first_units.tolist())):
        begin, end = sample_bounds[[first, last]].tolist()
        items = slice(first, last) if whole else slice(begin, end)
        owners = None if whole or units is None else np.repeat(np.arange(last - first), own.counts[first:last])
        one = StepWork(
            costs[items], columns[items], caps, pads, rows[items], num_ranks, multiple_of, same_count, owners,
            least=num_ranks * multiple_of,
        )  # fmt: skip
        part_of, rank_of = micro_batches_of(one)
        loads[number] = one.rank_costs(part_of, rank_of)
        counts[number] = np.bincount(rank_of, minlength=num_ranks)
        if whole:
            part_of = np.repeat(part_of, own.counts[first:last])
        firsts = np.cumsum(counts[number]) - counts[number]
        found[0, begin:end], found[2, begin:end] = number, rank_of[part_of]
        found[1, begin:end] = part_of - firsts[rank_of[part_of]]
    return Steps(found[0], found[1], found[2], counts, loads)


def limits_by_name(limits: int | Mapping[str, int]) -> dict[str, int]:
    """Limits, that of samples last.

    Raises:
        ValueError: there is none, or one is below 1.
    """
    by_name = isinstance(limits, Mapping)
    most = as_limits("limits", limits) if by_name else {"tokens": integer("limits", limits, 1, "token", most=ENDLESS)}
    if not most:
        raise ValueError("limits must be at least 1: limits=16_384, or limits={'tokens': 16_384, 'samples': 64}")
    if "samples" in most:
        most["samples"] = most.pop("samples")
    return most


def limited_sizes(sizes: ArrayLike | Mapping[str, ArrayLike], most: Mapping[str, int]) -> IntArray:
    """The sizes (n, d) that have a limit; where none has one, those that were given.

    Raises:
        ValueError: they are others than those of the limits.
    """
    names = [name for name in most if name != "samples"]
    given = sizes_by_name(sizes, names) if isinstance(sizes, Mapping) else as_lengths(sizes)
    values = given[:, None] if given.ndim == 1 else given
    if values.shape[1] != max(len(names), 1):
        raise ValueError(f"the limits are of {len(names)} sizes, {', '.join(names)} (got shape {given.shape})")
    return values


def with_samples(sizes: IntArray, most: Mapping[str, int]) -> IntArray:
    """Sizes as the limits have them, (n, d): that of a sample is 1."""
    ones = np.ones(len(sizes), np.int64)
    return np.column_stack([sizes[:, : len(most) - 1], ones]) if "samples" in most else sizes


def _padded_names(padded: bool | str | Sequence[str], names: list[str]) -> NDArray[np.bool_]:
    """Which sizes are padded, (d,)."""
    if isinstance(padded, bool):
        return np.full(len(names), padded)
    chosen = names_of("padded", padded)
    if odd := [name for name in chosen if name not in names]:
        raise ValueError(f"padded names {odd[0]!r}, and the limits are of {', '.join(names)}")
    return np.array([name in chosen for name in names])


def _costs(lengths: IntArray, cost: SampleCost | ArrayLike | None) -> FloatArray:
    """What each sample costs, (n,)."""
    if cost is None or callable(cost):
        return sample_costs(lengths, cost)
    given: NDArray[Any] = np.asarray(cost)
    if given.shape != lengths.shape or given.dtype.kind not in "iuf":
        raise ValueError(
            f"cost has a number for each of {counted(len(lengths), 'sample')} (got an array of {given.dtype} {given.shape})"
        )
    with np.errstate(over="ignore"):
        costs = given.astype(np.float64)
        wrong = np.flatnonzero(~((costs >= 0) & np.isfinite(costs * len(costs))))
    if len(wrong):
        raise ValueError(f"cost must be finite and not negative (sample {wrong[0]:,} has {costs[wrong[0]]})")
    return costs


def _refuse_large(own: UnitSpans, sizes: IntArray, pads: NDArray[np.bool_], limits: Mapping[str, int]) -> None:
    """Refuses units that no micro batch holds."""
    remedy = "raise the limit, or share it among the micro batches of a rank (units_within='rank')"
    for (name, limit), size, pad in zip(limits.items(), sizes.T, pads.tolist()):
        if not pad:
            refuse_sums(own, size[:, None], {name: limit}, remedy)
            continue
        refuse_units(
            own,
            size * own.counts <= limit,
            lambda unit, size=size, name=name, limit=limit: (  # type: ignore[misc]
                f"is padded to {size[unit]:,} {name} each, {size[unit] * own.counts[unit]:,} in all, and cannot fit "
                f"{name}={limit:,}"
            ),
            remedy,
        )


def _first_units(own: UnitSpans, samples_per_step: int | None) -> IntArray:
    """The unit that each step begins with, and the end of the last one."""
    ends = np.cumsum(own.counts)
    if samples_per_step is None:
        return np.array([0, len(ends)])
    most = integer("samples_per_step", samples_per_step, 1, "sample")
    refuse_units(
        own,
        own.counts <= most,
        lambda _: f"cannot fit samples_per_step={most:,}, and no step may part it",
        "take more samples a step",
    )
    firsts = [0]
    while firsts[-1] < len(ends):
        done = int(ends[firsts[-1] - 1]) if firsts[-1] else 0
        firsts.append(int(np.searchsorted(ends, done + most, side="right")))
    return np.array(firsts if len(firsts) > 1 else [0, 0])
