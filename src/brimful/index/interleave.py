"""Several data sets mixed in fixed proportions, any part of the mixture alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.index.indexed import SPAN, Indexed, RowNumbers, over_epochs
from brimful.index.joined import Joined
from brimful.plan.mix import ENDLESS, Stop
from brimful.plan.once import once
from brimful.plan.schedule import Course, Schedule, Segment, check, segments_of

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Interleave(Joined):
    """Samples of each in stratified order: the same ones, at the same places, as `rows.interleave` gives of unshuffled data.

    What begins again takes its next epoch. `length_column` (None: weights are shares of samples) makes the weights shares
    of the tokens of that column: those of samples are the weights by the mean length of each data set. A position is a
    place in the mixture of these very weights, which therefore no `allow` can change.

    Price: .5 ms a part that is asked for, whatever lies before it; 50 ns a sample. By tokens all lengths are read once.
    """

    verb = "interleave_datasets"

    fixed_weights: tuple[float, ...] | Schedule
    stop: Stop
    length_column: str | None = None

    def __post_init__(self) -> None:
        check(len(self.upstreams), self.fixed_weights, self.stop)

    @property
    def endless(self) -> bool:
        if isinstance(
            self.fixed_weights, Schedule
        ):  # a data set whose weight becomes 0 may have an end that never comes
            return self.count is None
        return (all if self.stop == "first" else any)(one.endless for one in self.upstreams)

    @once
    def count(self) -> int | None:
        total = len(self._course)
        return None if total >= ENDLESS else total

    def order(self, epoch: int) -> RowNumbers:
        sources = [over_epochs(upstream, epoch) for upstream in self.upstreams]
        course, shifts = self._course, self.shifts
        last_end = 0, np.zeros(len(sources), dtype=np.int64)

        def rows(first: int, last: int) -> NDArray[np.int64]:
            nonlocal last_end
            end, served = last_end
            before = served if end == first else course.served(first)
            after = course.served(last)
            last_end = last, after
            spans = zip(sources, before.tolist(), after.tolist(), shifts, strict=True)
            flat = np.concatenate(
                [source(*span) + shift for source, *span, shift in spans if span[0] < span[1]] or [_NONE]
            )
            return flat[course.merged(first, last, before, after)]

        return rows

    @once
    def _course(self) -> Course:
        segments = segments_of(self.fixed_weights)
        if self.length_column is not None:  # the weights by samples
            lengths = [_mean_length(upstream, self.length_column) for upstream in self.upstreams]
            pairs = zip(segments[0].weights, lengths)
            segments = (Segment(0, tuple(float(np.float64(weight) / length) for weight, length in pairs)),)
        return Course([upstream.count for upstream in self.upstreams], segments, self.stop)


def _mean_length(stage: Indexed, column: str) -> float:
    """Tokens of a sample, of which an empty one counts as having one."""
    rows, count = stage.unshuffled()
    total = 0
    for first in range(0, count, SPAN):
        lengths = stage.index.lengths_at(rows(first, min(first + SPAN, count)), (column,), True)
        total += int(np.maximum(lengths, 1).sum(dtype=np.int64))
    return total / count if count else 1.0
