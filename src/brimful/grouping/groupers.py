"""Which samples go together: each grouper turns lengths into a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from brimful.core.errors import integer, names_of, settle
from brimful.grouping.measure import Sizes
from brimful.plan import by_thresholds, optimal_partition

Groups: TypeAlias = Sequence[Sequence[int]]


class Grouper(Protocol):
    """Whatever turns lengths into groups: `Collection.group` takes any object with this method."""

    def partition(self, num_samples: int, sizes: Sizes) -> Groups:
        """Sample numbers, group by group; each sample in exactly one."""
        ...


@dataclass(frozen=True)
class LengthThresholds:
    """A group for each threshold, and one for what is longer than all; groups without a sample are left out.

    Args:
        name: the ragged dimension.
        thresholds: ascending; a sample of length <= threshold is in the group.
    Raises:
        ValueError: a negative threshold, or thresholds that do not ascend.

    >>> LengthThresholds("seq", [4]).partition(4, {"seq": np.array([1, 4, 2, 9])})
    [[0, 1, 2], [3]]
    """

    name: str
    thresholds: Sequence[int]

    def __post_init__(self) -> None:
        thresholds = tuple(integer("thresholds", threshold) for threshold in self.thresholds)
        object.__setattr__(self, "thresholds", thresholds)
        for before, after in pairwise(thresholds):
            if before >= after:
                raise ValueError(f"thresholds must ascend (got {before:,} before {after:,})")

    def partition(self, num_samples: int, sizes: Sizes) -> Groups:
        return [group.tolist() for group in by_thresholds(_sizes_of(sizes, self.name), self.thresholds)]


@dataclass(frozen=True)
class OneGroup:
    """All samples in one group: the usual padded batch.

    >>> OneGroup().partition(3, {})
    [[0, 1, 2]]
    """

    def partition(self, num_samples: int, sizes: Sizes) -> Groups:
        return [[*range(num_samples)]]


@dataclass(frozen=True)
class Partition:
    """Groups as they are given; in each, the samples have the order given.

    >>> Partition([[0, 2], [1]]).partition(3, {})
    ((0, 2), (1,))
    """

    groups: Groups

    def __post_init__(self) -> None:
        groups = tuple(tuple(integer("a sample number", sample) for sample in group) for group in self.groups)
        object.__setattr__(self, "groups", groups)

    def partition(self, num_samples: int, sizes: Sizes) -> Groups:
        return self.groups


@dataclass(frozen=True)
class OptimalGroups:
    """At most `num_groups` groups of least total padded cost; see `brimful.plan.optimal_partition` for how exact.

    Args:
        names: the ragged dimension, or several.
        num_groups: most groups.
        cost: cost(padded length, ...) of one sample, a number for each dimension, of any form; by default their product.

    >>> OptimalGroups("seq", 2).partition(4, {"seq": np.array([1, 9, 2, 1])})
    [[0, 2, 3], [1]]
    """

    names: str | Sequence[str]
    num_groups: int
    cost: Callable[..., float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", names_of("OptimalGroups", self.names))
        settle(self, "num_groups", 1, "group")

    def partition(self, num_samples: int, sizes: Sizes) -> Groups:
        columns = [_sizes_of(sizes, name) for name in self.names]
        lengths = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        return [group.tolist() for group in optimal_partition(lengths, self.num_groups, cost=self.cost)]


def checked(groups: Groups, num_samples: int) -> tuple[tuple[int, ...], ...]:
    """Groups, once it is sure that each sample is in exactly one.

    Raises:
        ValueError: a sample is in none or in several, or a group is empty.
    """
    partition = tuple(tuple(group) for group in groups)
    if not all(partition):
        raise ValueError(f"group {partition.index(())} of the partition is empty; leave it out")
    members = np.array([sample for group in partition for sample in group], np.int64)
    if not len(members) or members.min() < 0 or members.max() >= num_samples:
        found = f"{members.min():,} to {members.max():,}" if len(members) else "none"
        raise ValueError(f"the partition must name samples 0 to {num_samples - 1:,} (got {found})")
    counts = np.bincount(members, minlength=num_samples)
    if (counts != 1).any():
        sample = int(np.argmax(counts != 1))
        raise ValueError(f"sample {sample:,} is in {counts[sample]:,} groups; a partition has each in exactly one")
    return partition


def _sizes_of(sizes: Sizes, name: str) -> np.ndarray:
    if name not in sizes:
        raise ValueError(f"there is no ragged dimension {name!r} to group by (names: {', '.join(sizes) or 'none'})")
    return sizes[name]
