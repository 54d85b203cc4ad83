"""The padded tensors of groups as integers: their shapes, and the place of each row of each sample in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brimful.grouping.language import Dims, Sizes, leading, text_of, value_of
from brimful.plan.buckets import Rounding
from brimful.plan.plan import IntArray


@dataclass(frozen=True, eq=False)
class PaddedGroups:
    """The samples of each group, and the lengths that each group is padded to.

    Args:
        partition: sample numbers, group by group.
        extents: the padded length of each group in each ragged dimension, (G,), by name.
    """

    partition: tuple[tuple[int, ...], ...]
    extents: Mapping[str, IntArray]

    @classmethod
    def of(cls, partition: tuple[tuple[int, ...], ...], sizes: Sizes, multiple_of: int = 1) -> PaddedGroups:
        """Each group padded to its own longest, at least to 1, rounded up to a multiple."""
        rounding, extents = Rounding(pad_to_multiple_of=multiple_of), {}
        for name, column in sizes.items():
            extents[name] = rounding(np.array([column[list(group)].max() for group in partition], np.int64))
        return cls(partition, extents)

    @property
    def counts(self) -> IntArray:
        """The number of samples of each group, (G,)."""
        return np.array([len(group) for group in self.partition], np.int64)

    def shapes(self, dims: Dims) -> list[tuple[int, ...]]:
        """The padded shape of each group's tensor."""
        lengths = [np.broadcast_to(value_of(rule, self.extents), len(self.partition)).tolist() for rule in dims]
        return [(len(group), *shape) for group, *shape in zip(self.partition, *lengths, strict=True)]

    def places(self, dims: Dims, sizes: Sizes) -> IntArray:
        """The place of each row of all samples, in the order of the samples, where the groups' tensors lie end to end.

        One index into the leading axes (`language.leading`) gives a row. Shape (rows of all samples,). Price: 5 ns a
        row and leading axis.
        """
        self.check(dims, sizes)
        axes = leading(dims)
        counts, members = self.counts, np.concatenate(self.partition)
        which, position = self._which(), np.empty(len(members), np.int64)
        position[members] = np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)
        widths = [np.broadcast_to(value_of(rule, self.extents), len(counts)) for rule in axes]
        # the number of rows in all axes, in those after the first, and so on
        strides = np.cumprod([np.ones_like(counts), *widths[::-1]], axis=0)[::-1]
        places: IntArray = (np.cumsum(strides[0] * counts) - strides[0] * counts)[which] + position * strides[0][which]
        samples = np.arange(len(members))
        for last, (rule, stride) in enumerate(zip(axes, strides[1:]), start=1 - len(axes)):
            own = np.broadcast_to(value_of(rule, sizes), len(members))[samples]
            inside = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
            places = np.repeat(places, own)
            if last:  # the stride of the last axis is 1, and its places are by far the most
                inside *= np.repeat(stride[which[samples]], own)
                samples = np.repeat(samples, own)
            places += inside
        return places

    def check(self, dims: Dims, sizes: Sizes) -> None:
        """Refuses a sample that is longer than its group is padded to.

        Raises:
            ValueError: naming it; a rule such as `9-res`, which falls where its name rises, comes to that.
        """
        for rule in dims:
            if isinstance(rule, int):
                continue
            which = self._which()
            lengths = np.broadcast_to(value_of(rule, sizes), len(which))
            widths = np.broadcast_to(value_of(rule, self.extents), len(self.partition))[which]
            if (lengths > widths).any():
                sample = int(np.argmax(lengths > widths))
                raise ValueError(
                    f"sample {sample:,}: {text_of(rule)!r} is {lengths[sample]:,}, but its group is padded to "
                    f"{widths[sample]:,}; a length must fit, and a rule must not fall where its names rise"
                )

    def _which(self) -> IntArray:
        """The group of each sample, (B,)."""
        counts = self.counts
        which = np.empty(counts.sum(), np.int64)
        which[np.concatenate(self.partition)] = np.repeat(np.arange(len(counts)), counts)
        return which


def leading_sizes(dims: Dims, sizes: Sizes, num_samples: int) -> IntArray:
    """The axes of each sample's own tensor up to the last ragged one, (B, axes)."""
    axes = [np.broadcast_to(value_of(rule, sizes), num_samples) for rule in leading(dims)]
    return np.array(axes, np.int64).reshape(len(axes), num_samples).T
