"""A plan: which samples make up which batch, and the shape that each batch is padded to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from itertools import pairwise
from typing import Final, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import as_overlong, plus
from .once import once
from .units import parted

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Sample numbers, batch by batch, with the shape of each batch.

    A batch becomes a tensor of `padded_sizes[i]` rows and `padded_lengths[i]` columns. Usually there are as many rows
    as samples. `StaticShapes` is an exception: it fills its last batch with zero-weight copies of a real row. `Packed`
    is the other: the samples of a batch share one row. With d lengths a sample (source, target) a batch is d tensors,
    and `padded_lengths` has shape (num_batches, d). Sizes that are summed and not padded come last.

    Args:
        numbers: sample numbers, (n,) int64, batch after batch.
        bounds: where in `numbers` each batch begins, and the last one ends, (num_batches + 1,) int64.
        padded_lengths: (num_batches,) or (num_batches, d) int64, in tokens. Sizes that are summed have the greatest one there.
        padded_sizes: (num_batches,) int64, in rows.
        tokens: real tokens in the whole plan, of what is padded.
        num_padded: how many of the d sizes are padded. None: all.
    Price: 8 bytes a sample and 24 bytes a batch; 150 bytes a batch more once `batches` has been asked for.
    Example:
        >>> plan = Plan.of([3, 1, 2], [[0], [2, 1]])
        >>> plan
        Plan(2 batches, 2 shapes, 14.29% padding)
        >>> plan.padded_lengths.tolist(), plan.padded_sizes.tolist()
        ([3, 2], [1, 2])
        >>> len(plan), plan.slots, plan.tokens, plan.num_padded
        (2, 7, 6, None)
    """

    numbers: IntArray
    bounds: IntArray
    padded_lengths: IntArray
    padded_sizes: IntArray
    tokens: int
    num_padded: int | None = None

    @classmethod
    def of(
        cls,
        lengths: ArrayLike,
        batches: Sequence[ArrayLike],
        *,
        padded_lengths: ArrayLike | None = None,
        padded_sizes: ArrayLike | None = None,
    ) -> Plan:
        """Makes a plan of these batches. It checks that each sample is in exactly one of them.

        Your own policy needs no more than this:

        Args:
            lengths: tokens of each sample, (n,) or (n, d).
            batches: sample numbers, one array or list a batch.
            padded_lengths: the padded length of each batch. The default is its longest sample, or 1 token if that is
                empty.
            padded_sizes: the rows of each tensor. The default is the number of samples of its batch.
        Raises:
            ValueError: a sample is in no batch or in several, or a batch is empty. Or a padded length is below the longest
                sample of its batch, or a batch has more samples than its rows hold. Or numbers are not whole.
        Price: about 10 ms per million samples.
        Example:
            >>> @dataclass(frozen=True)
            ... class EvenAndOdd:
            ...     "Samples with even numbers in one batch, those with odd numbers in another."
            ...     max_length = None
            ...
            ...     def plan(self, lengths):
            ...         numbers = np.arange(len(lengths))
            ...         return Plan.of(lengths, [numbers[::2], numbers[1::2]])
            >>> EvenAndOdd().plan([5, 1, 4, 1])
            Plan(2 batches, 2 shapes, 8.33% padding)
        """
        lengths = as_lengths(lengths)
        arrays = [_whole("sample numbers", batch) for batch in batches]
        numbers, bounds = joined(arrays)
        if words := not_once_each(numbers, bounds, len(lengths)):
            raise ValueError(words)
        if padded_lengths is None:
            padded_lengths = np.maximum(longest_of_each(lengths, numbers, bounds), 1)
        plan = cls(
            numbers=numbers,
            bounds=bounds,
            padded_lengths=_whole("padded_lengths", padded_lengths),
            padded_sizes=np.diff(bounds) if padded_sizes is None else _whole("padded_sizes", padded_sizes),
            tokens=int(lengths.sum()),
        )
        if words := _malformed(plan, lengths) or _too_small(plan, lengths):
            raise ValueError(words)
        return plan

    @once
    def batches(self) -> list[IntArray]:
        """Sample numbers, one int64 array a batch. Price: .2 us a batch, once.

        Example:
            >>> Plan.of([3, 1, 2], [[0], [2, 1]]).batches
            [array([0]), array([2, 1])]
        """
        return [self.numbers[begin:end] for begin, end in pairwise(self.bounds.tolist())]

    def __len__(self) -> int:
        return len(self.padded_sizes)

    def __repr__(self) -> str:
        return f"Plan({len(self):,} batches, {self.num_shapes:,} shapes, {self.padding:.2%} padding)"

    @property
    def slots(self) -> int:
        """Positions in all tensors, real and padded; with several lengths, those of all tensors.

        Example:
            >>> Plan.of([3, 1, 2], [[0], [2, 1]]).slots
            7
        """
        return int(widths(self.padded_lengths, self.num_padded) @ self.padded_sizes)

    @property
    def padding(self) -> float:
        """Share of padded slots: 1 - tokens / slots; 0.0 for an empty plan.

        Example:
            >>> round(Plan.of([3, 1, 2], [[0], [2, 1]]).padding, 3)
            0.143
        """
        return 1 - self.tokens / self.slots if self.slots else 0.0

    @property
    def num_shapes(self) -> int:
        """The number of distinct shapes (rows, padded length). A compiler has to compile each of them.

        Example:
            >>> Plan.of([3, 3, 1, 1], [[0], [1], [2, 3]]).num_shapes
            2
        """
        return len(np.unique(np.column_stack([self.padded_sizes, self.padded_lengths]), axis=0))


@runtime_checkable
class Policy(Protocol):
    """An object that turns lengths into a plan: a frozen dataclass with these two members (`Plan.of` shows one).

    A plan is a pure function of the lengths and the dataclass's fields. `max_length` is the longest sample that the
    policy can place, in tokens, or None if no single length says it, as with pairs. For a sample that it cannot place,
    `plan` raises an `OverlongError` that names all such samples. `overlong=` then truncates them, drops them or gives
    each a batch of its own. A policy leaves out samples in no other way. brimful refuses a plan in which a sample is
    missing, comes twice, or is longer than its batch is padded. Some policies fill batches
    up with copies, to more rows than samples. They need a third member: `shapes`, the list of all (rows, tokens) made.
    A policy that plans by sizes of its own choice names them in `columns`, as `MultiBudget` does. One that keeps units
    together has a parameter `units=None` in `plan`: a number for each sample, (n,), equal neighbours of which belong together.
    brimful refuses a plan that parts one.

    Example:
        >>> @dataclass(frozen=True)
        ... class Whole:
        ...     "All samples of a window in one batch."
        ...     max_length = None
        ...
        ...     def plan(self, lengths):
        ...         return Plan.of(lengths, [range(len(lengths))])
        >>> import brimful as bf
        >>> isinstance(Whole(), bf.Policy), len(bf.from_sequence([[1], [2, 3], [4]]).batch(Whole()))
        (True, 1)
    """

    @property
    def max_length(self) -> int | None:
        """The longest sample that the policy can place, in tokens. None: any.

        Example:
            >>> import brimful as bf
            >>> bf.TokenBudget(60).max_length, bf.FixedSize(8).max_length
            (60, None)
        """
        ...

    def plan(self, lengths: ArrayLike) -> Plan:
        """The batches of some samples.

        Args:
            lengths: tokens of each sample, (n,), or (n, d) for several a sample. Batch verbs give an array that cannot be
                changed.
        Example:
            >>> import brimful as bf
            >>> policies = bf.FixedSize(2), bf.TokenBudget(60), bf.Packed(60)
            >>> [[batch.tolist() for batch in policy.plan([50, 10, 20]).batches] for policy in policies]
            [[[0, 2], [1]], [[0], [2, 1]], [[0, 1], [2]]]
        """
        ...


def is_policy(value: object) -> TypeGuard[Policy]:
    """Whether it is a policy. A class of policies is none.

    Raises:
        TypeError: it has only one of the two members.
    """
    found = [name for name in ("plan", "max_length") if hasattr(value, name)]
    if found == ["plan"] and not isinstance(value, type):
        raise TypeError(
            f"{type(value).__name__} has plan, but no max_length, which a policy needs too: the longest sample in tokens that "
            "it can place, or None"
        )
    return len(found) == 2 and not isinstance(value, type)


def planned(policy: Policy, lengths: IntArray, units: IntArray | None = None) -> Plan:
    """The policy's plan, which fits these samples.

    Args:
        units: a number for each sample, (n,): neighbours with equal ones are in one batch.
    Raises:
        TypeError: a policy of the user's returned something else.
        ValueError: the plan loses, repeats or cuts a sample, or fills a batch up with copies that nothing marks.
    Price: 10 ns a sample for a policy of the user's, none for ours.
    """
    given = lengths.view()
    given.flags.writeable = False  # one that is sorted in place would be planned by other lengths than the samples have
    takes_units = units is not None and "units" in signature(policy.plan).parameters
    try:
        plan: Plan = policy.plan(given, **({"units": units} if takes_units else {}))
    except ValueError as error:
        raise as_overlong(error) from error.__cause__
    if units is None and is_proven(policy):
        return plan
    name = type(policy).__name__
    if not all(hasattr(plan, one.name) for one in fields(Plan)):  # another copy of this package has another class
        raise TypeError(
            f"{name}.plan must return a bf.Plan (got {type(plan).__name__}); return bf.Plan.of(lengths, batches), where "
            "batches are lists of sample numbers"
        )
    words = (
        _malformed(plan, lengths)
        or not_once_each(plan.numbers, plan.bounds, len(lengths))
        or _too_small(plan, lengths)
        or _filled_up(policy, plan)
        or (units is not None and parted(plan.numbers, plan.bounds, units))
    )
    if words:
        raise ValueError(f"{name}.plan does not fit the {len(lengths):,} samples that it was given: {words}")
    return Plan(  # of arrays of its own: the policy may use its arrays again
        np.array(plan.numbers),
        np.array(plan.bounds),
        np.array(plan.padded_lengths),
        np.array(plan.padded_sizes),
        plan.tokens,
        plan.num_padded,
    )


def is_proven(policy: object) -> bool:
    """Whether its plans fit all samples by how they are made, as tests against brute force say: those of a policy of ours, unless
    it asks a function or an object of the user's, whose answers may change from call to call."""
    kind = type(policy)
    if kind in _PLAIN:
        return True
    return kind.__module__.startswith(f"{__package__}.") and all(
        map(is_proven, getattr(policy, "__dict__", {}).values())
    )


_PLAIN: Final = frozenset({int, float, str, bool, type(None), tuple, list, dict})


def longest_of_each(lengths: IntArray, numbers: IntArray, bounds: IntArray) -> IntArray:
    """The longest sample of each batch, (num_batches,) or (num_batches, d)."""
    return np.maximum.reduceat(lengths[numbers], bounds[:-1])


def as_lengths(lengths: ArrayLike) -> IntArray:
    """Lengths as int64, shape (n,) or (n, d), checked once for every policy.

    Raises:
        ValueError: not integers, not that shape, or negative.
    Example:
        >>> as_lengths([3, 0]).tolist()
        [3, 0]
        >>> as_lengths([3, -1])
        Traceback (most recent call last):
        ValueError: lengths must not be negative (sample 1 has -1)
    """
    if isinstance(lengths, Mapping):
        raise ValueError(
            f"lengths take no names here (got {', '.join(map(str, lengths))}); give an array (n,) or (n, d)"
        )
    try:
        array = np.asarray(lengths)
    except ValueError:  # lists of different lengths, such as the samples themselves
        raise ValueError(
            "lengths must have shape (n,) or (n, d) (got lists of different lengths); give the len of each"
        ) from None
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise ValueError(f"lengths must have shape (n,) or (n, d) (got {array.shape})")
    if array.size and array.dtype.kind not in "iu":
        hint = "; dataset.lengths() gives those of a data set" if isinstance(array.flat[0], dict) else ""
        raise ValueError(f"lengths must be integers (got {array.dtype}){hint}")
    most = np.iinfo(np.int64).max
    if array.dtype == np.uint64 and array.size and array.max() > most:
        sample = int(np.nonzero(array > most)[0][0])
        raise ValueError(f"lengths must be at most {most:,} (sample {sample:,} has {array[sample]})")
    array = array.astype(np.int64, copy=False)
    if array.size and array.min() < 0:
        sample = int(np.nonzero(array < 0)[0][0])
        raise ValueError(f"lengths must not be negative (sample {sample:,} has {array[sample]})")
    return array


def sizes_by_name(sizes: Mapping[str, ArrayLike], names: Sequence[str]) -> IntArray:
    """Sizes by name, (n,) each, as one array (n, d) in the order of these names.

    Raises:
        ValueError: they have other names, or differ in how many samples they have.
    Example:
        >>> sizes_by_name({"edges": [9, 4], "nodes": [3, 2]}, ["nodes", "edges"]).tolist()
        [[3, 9], [2, 4]]
    """
    if {*sizes} != {*names}:
        raise ValueError(f"the sizes are {', '.join(map(str, sizes))}, and the limits are of {', '.join(names)}")
    columns = [one_length(sizes[name], f"sizes[{name!r}]") for name in names]
    if odd := [name for name, one in zip(names, columns) if one.shape != columns[0].shape]:
        counts = f"{len(columns[0]):,} of {names[0]} and {len(columns[names.index(odd[0])]):,} of {odd[0]}"
        raise ValueError(f"each sample has every size (got {counts})")
    return np.stack(columns, axis=1)


def one_length(lengths: ArrayLike, planner: str) -> IntArray:
    """Lengths of shape (n,), for what cannot plan by several a sample.

    Raises:
        ValueError: several lengths a sample.
    """
    array = as_lengths(lengths)
    if array.ndim == 2:
        raise ValueError(f"{planner} takes one length a sample (got shape {array.shape}); TokenBudget takes several")
    return array


def _whole(name: str, values: ArrayLike) -> IntArray:
    """Whole numbers, of any type, as int64.

    Raises:
        ValueError: some are not whole.
    """
    array = np.asarray(values)
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64, copy=False) if array.dtype.kind in "iuf" else None
    if whole is None or (whole != array).any():
        raise ValueError(f"{name} must be whole numbers (got {values!r:.80})")
    return whole


def widths(lengths: IntArray, num_padded: int | None = None) -> IntArray:
    """Slots in a row: the length, or the sum of several, of which those after the first `num_padded` are not padded."""
    return lengths if lengths.ndim == 1 else lengths[:, :num_padded].sum(axis=1)


def joined(batches: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """The numbers of all batches, one after another, and where each begins, and the last one ends."""
    bounds = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    return np.concatenate(batches) if batches else np.zeros(0, np.int64), bounds


def _malformed(plan: Plan, lengths: IntArray) -> str:
    """Why the arrays of a plan do not belong together; "" where they do."""
    batches = len(plan.bounds) - 1
    shapes = {
        "numbers": (len(plan.numbers),),
        "bounds": (max(batches, 0) + 1,),
        "padded_lengths": (batches, *lengths.shape[1:]),
        "padded_sizes": (batches,),
    }
    for name, shape in shapes.items():
        array = getattr(plan, name)
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        if found != f"int64 {shape}":
            return f"{name} must be an array of int64 {shape} (got {found}); bf.Plan.of makes it of lists"
    if plan.bounds[0] != 0 or plan.bounds[-1] != len(plan.numbers):
        found = f"{plan.bounds[0]:,} to {plan.bounds[-1]:,}"
        return f"bounds must go from 0 to {len(plan.numbers):,}, the end of numbers (got {found})"
    return ""


def not_once_each(
    numbers: IntArray, bounds: IntArray, num_samples: int, words: tuple[str, str, str] = ("batch", "batches", "plan")
) -> str:
    """Why the batches do not have each sample in exactly one; "" where they do.

    Args:
        words: for a batch, several, and all of them.
    """
    part, parts, whole = words
    sizes = np.diff(bounds)
    if sizes.min(initial=1) < 1:
        return f"{part} {int(np.argmax(sizes < 1)):,} is empty; leave it out"
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= num_samples):
        return f"sample numbers must be between 0 and {num_samples - 1:,} (got {numbers.min():,} to {numbers.max():,})"
    seen = np.zeros(num_samples, dtype=bool)
    seen[numbers] = True
    if len(numbers) == num_samples and seen.all():
        return ""
    counts = np.bincount(numbers, minlength=num_samples)
    sample = int(np.argmax(counts != 1))
    return f"sample {sample:,} is in {counts[sample]:,} {parts}; a {whole} has each in exactly one"


def _too_small(plan: Plan, lengths: IntArray) -> str:
    """Why a tensor would not hold the samples of its batch; "" where each does. Several may share a row (`Packed`)."""
    longest = longest_of_each(lengths, plan.numbers, plan.bounds)
    if (longest > plan.padded_lengths).any():
        batch = int(np.argwhere(longest > plan.padded_lengths)[0, 0])
        padded, needed = plus(plan.padded_lengths[batch]), plus(longest[batch])
        return f"batch {batch:,} is padded to {padded} tokens, and its longest sample has {needed}; pad it to {needed} at least"
    sizes, slots = np.diff(plan.bounds), widths(plan.padded_lengths, plan.num_padded) * plan.padded_sizes
    if (plan.padded_sizes < sizes).any():
        tokens = np.add.reduceat(widths(lengths, plan.num_padded)[plan.numbers], plan.bounds[:-1])
        small = (plan.padded_sizes < sizes) & ((tokens > slots) | (plan.padded_sizes < 1))
        if small.any():
            batch = int(np.argmax(small))
            return (
                f"batch {batch:,} has {plan.padded_sizes[batch]:,} rows, {slots[batch]:,} slots, for {sizes[batch]:,} samples of "
                f"{tokens[batch]:,} tokens; give it a row for each sample"
            )
    return ""


def _filled_up(policy: Policy, plan: Plan) -> str:
    """Why copied rows would count as samples; "" where there are none, or a policy says its shapes, and they are marked."""
    sizes = np.diff(plan.bounds)
    more = plan.padded_sizes > sizes
    if not more.any() or getattr(policy, "shapes", None) is not None:
        return ""
    batch = int(np.argmax(more))
    return (
        f"batch {batch:,} has {plan.padded_sizes[batch]:,} rows for {sizes[batch]:,} samples. Copies of a sample fill it up, and "
        "they have no weight only if the policy has `shapes`, the list of all (rows, tokens) that it makes"
    )
