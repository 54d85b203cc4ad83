"""Mixtures whose weights change while they are served: stretches of constant weights, and what each leaves to the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import finite, integer, one_of
from .mix import ENDLESS, Stop, limits, served_at, times_of
from .plan import IntArray

Unit = Literal["samples", "tokens"]
Between = Literal["step", "linear"]

MOST_STEPS: Final = 1_000
"""A line between the points of a schedule is made of at most so many stretches of constant weights, in all."""


class Segment(NamedTuple):
    """Weights from a count of samples, or tokens, served in all, up to the next segment's."""

    start: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Schedule:
    """Weights that change while a mixture is served. `bf.schedule` makes one."""

    points: tuple[Segment, ...]
    by: Unit
    between: Between
    names: tuple[str, ...] = field(default=(), metadata={"runtime": True})
    """Of the data sets that the weights belong to, where they have names."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its stretches of constant weights, from 0 on. Price: 5 us a stretch of a line."""
        if self.between == "step":
            return self.points
        found: list[Segment] = []
        for first, last in pairwise(self.points):
            count = min(max(MOST_STEPS // (len(self.points) - 1), 1), last.start - first.start)
            edges = [first.start + (last.start - first.start) * step // count for step in range(count + 1)]
            for begin, end in pairwise(edges):
                along = Fraction(begin + end - 2 * first.start, 2 * (last.start - first.start))
                pairs = zip(first.weights, last.weights)
                found.append(
                    Segment(begin, tuple(float(Fraction(a) + (Fraction(b) - Fraction(a)) * along) for a, b in pairs))
                )
        return (*found, self.points[-1])

    def of_stream(self, number: int, count: int) -> Schedule:
        """That of one of several streams, each of which serves its part of the samples. Their sum keeps to the schedule to within
        one sample a stream and source."""
        starts = [-(-(point.start - number) // count) if point.start else 0 for point in self.points]
        kept = [point for point, after in zip(range(len(starts)), [*starts[1:], ENDLESS]) if starts[point] < after]
        return Schedule(tuple(Segment(starts[at], self.points[at].weights) for at in kept), self.by, self.between)

    def of(self, names: Sequence[str]) -> Schedule:
        """The same for data sets of these names, in their order."""
        points = tuple(Segment(one.start, of_names(dict(zip(self.names, one.weights)), names)) for one in self.points)
        return Schedule(points, self.by, self.between)


def of_names(weights: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Weights by name, in the order of the names of data sets.

    Raises:
        ValueError: a name is on one side alone.
    """
    if not names:
        raise ValueError(
            "the weights have names, and the data sets have none: give a dict of data sets, or the weights as a list (or a "
            f"schedule of lists) (got {list(weights)})"
        )
    sides = ("missing", names, weights), ("unknown", weights, names)
    found = {what: [name for name in one if name not in other] for what, one, other in sides}
    if odd := [f"{what} {', '.join(map(repr, one))}" for what, one in found.items() if one]:
        raise ValueError(
            f"weights by name need one for each data set, {', '.join(map(repr, names))} ({'; '.join(odd)})"
        )
    return tuple(weights[name] for name in names)


def schedule(
    points: Mapping[int, Sequence[float] | Mapping[str, float]], *, by: Unit = "samples", between: Between = "step"
) -> Schedule:
    """Weights of a mixture that change while it is served, for `interleave_datasets(weights=...)`.

    At a change, what a data set got too little so far is made up for, so that the counts keep to the schedule.

    Args:
        points: a list of weights for each count of samples served in all, from 0 on. A weight of 0 serves nothing. For
            data sets with names: dicts of weights.
        by: the unit of the counts and of the weights, "samples" or "tokens".
        between: "step" keeps the weights up to the next point. "linear" changes the weights evenly as you wrote them, in
            1,000 steps at most. Shares change evenly too if the weights of all points have one sum.
    Raises:
        ValueError: there is no point at 0, or the numbers of weights differ.

    >>> import brimful as bf
    >>> one, two = bf.from_sequence(["H"] * 6), bf.from_sequence(["K"] * 6)
    >>> weights = bf.schedule({0: [1, 0], 2: [1, 1], 6: [0, 1]})
    >>> "".join(sample["text"] for sample in bf.interleave_datasets([one, two], weights=weights))
    'HHHKHKKKKK'
    """
    one_of("by", by, *get_args(Unit))
    one_of("between", between, *get_args(Between))
    if not isinstance(points, Mapping):
        raise TypeError(f"schedule takes a mapping, such as {{0: [3, 1], 200_000: [1, 1]}} (got {points!r})")
    found = []
    names: tuple[str, ...] | None = None
    for start, given in sorted(points.items(), key=lambda point: integer("a point of a schedule", point[0])):
        if not isinstance(given, Sequence | Mapping | np.ndarray) or isinstance(given, str | bytes):
            raise TypeError(f"a schedule takes a list of weights for each point (got {given!r} at {start:,})")
        own = tuple(given) if isinstance(given, Mapping) else ()
        names = own if names is None else names
        if {*own} != {*names}:
            raise ValueError(
                f"a schedule names the same data sets everywhere (got {own} at {start:,}, and {names} at 0)"
            )
        values = [given[name] for name in names] if isinstance(given, Mapping) else given
        weights = tuple(finite("a weight", weight) for weight in values)
        if min(weights, default=0) < 0 or not any(weights):
            raise ValueError(f"weights must be 0 or more, and one of them positive (got {list(weights)} at {start:,})")
        found.append(Segment(integer("a point of a schedule", start), weights))
    if not found or found[0].start:
        raise ValueError(
            f"a schedule begins at 0 (got {', '.join(f'{point.start:,}' for point in found) or 'no point'})"
        )
    for point in found:
        if len(point.weights) != len(found[0].weights):
            raise ValueError(
                f"a schedule has as many weights everywhere (got {len(found[0].weights)} at 0 and {len(point.weights)} at "
                f"{point.start:,})"
            )
    return Schedule(tuple(found), by, between, names or ())


def check(num_sources: int, weights: Sequence[float] | Schedule, stop: str) -> None:
    """Refuses weights and words that mean no mixture."""
    one_of("stop", stop, *get_args(Stop))
    known = weights.points[0].weights if isinstance(weights, Schedule) else weights
    if len(known) != num_sources:
        raise ValueError(f"there must be a weight for each of {num_sources} data sets (got {len(known)})")
    if not all(finite("weights", weight) >= 0 for weight in known) or not any(known):
        words = ", ".join(f"{weight:g}" for weight in known)
        raise ValueError(f"weights must be 0 or more, and one of them positive (got {words})")


def segments_of(weights: Sequence[float] | Schedule) -> tuple[Segment, ...]:
    """The stretches of constant weights of a mixture."""
    return weights.segments if isinstance(weights, Schedule) else (Segment(0, tuple(weights)),)


class Span(NamedTuple):
    """Weights between two counts of samples, or tokens, served in all."""

    begin: int
    end: int
    weights: tuple[float, ...]


def spans_of(weights: Sequence[float] | Schedule, begin: int = 0, end: int = ENDLESS) -> list[Span]:
    """The stretches of constant weights of a mixture between two counts.

    >>> [tuple(span) for span in spans_of(schedule({0: [1, 0], 2: [1, 1], 6: [0, 1]}), 1, 6)]
    [(1, 2, (1.0, 0.0)), (2, 6, (1.0, 1.0))]
    """
    own = segments_of(weights)
    ends = [*(segment.start for segment in own[1:]), ENDLESS]
    spans = [Span(max(begin, one.start), min(last, end), one.weights) for one, last in zip(own, ends)]
    return [span for span in spans if span.begin < span.end]


def owed_after(
    owed: Sequence[float], served: Sequence[int], weights: Sequence[float], gone: Collection[int] = ()
) -> list[float]:
    """What each source is owed after a stretch of constant weights: its share of what was served, less what it gave.

    Args:
        owed: before it.
        served: what each gave in it.
        gone: sources that get no share of it, as they have no row.

    >>> owed_after([0.0, 0.0], [1, 0], [3.0, 1.0])
    [-0.25, 0.25]
    """
    here = [source for source in range(len(served)) if source not in gone]
    total, sum_of = sum(served[source] for source in here), sum(Fraction(weights[source]) for source in here)
    if not sum_of:
        return [0.0 if source in gone else float(owed[source]) for source in range(len(served))]
    return [
        float(Fraction(owed[source]) + total * Fraction(weights[source]) / sum_of - served[source])
        if source in here
        else 0.0
        for source in range(len(served))
    ]


class Stretch(NamedTuple):
    """A stretch of constant weights of a mixture whose counts are known.

    `start`: its place in the mixture. `at`: the count at which its weights begin, which is more where one before it had too few
    rows. `before`: rows that each source gave before. `offsets`: 1/2 less what each is owed.
    `most`: rows that each gives in it at most.
    """

    start: int
    at: int
    before: IntArray
    weights: NDArray[np.float64]
    offsets: NDArray[np.float64]
    most: IntArray

    def served(self, count: int) -> IntArray:
        """Rows of each source among its first `count`."""
        return served_at(count, self.weights, self.most, self.offsets)


class Course:
    """A mixture of sources whose counts are known: any part of it, from integers alone.

    Args:
        counts: rows of each; None: no end.
        kept: a count up to which it is known not to end, as weights were others then.
    Price: .5 ms for each stretch, once; then .5 ms a place that is asked for.

    >>> course = Course([6, 6], schedule({0: [1, 0], 2: [1, 1], 6: [0, 1]}).segments, "first")
    >>> len(course), course.served(4).tolist()
    (10, [3, 1])
    """

    def __init__(self, counts: Sequence[int | None], segments: Sequence[Segment], stop: Stop, kept: int = 0) -> None:
        self.stretches: list[Stretch] = []
        size = len(counts)
        before, owed, ended, place, at = np.zeros(size, dtype=np.int64), [0.0] * size, [False] * size, 0, 0
        to_the_last = [weight > 0 for weight in segments[-1].weights]
        for number, (_, weights) in enumerate(segments):
            waited_for = to_the_last if segments[number].start >= kept else [True] * size
            own = np.array(weights, dtype=np.float64)
            if stop == "all":
                own[ended] = 0
            left = [None if count is None else count - int(given) for count, given in zip(counts, before.tolist())]
            offsets = 0.5 - np.array(owed)
            again = (
                [has_ended or not waits for has_ended, waits in zip(ended, waited_for)]
                if stop == "all_repeat"
                else None
            )
            most = limits(left, own, stop, offsets, again)
            if stop == "all_repeat":
                most = np.where([count == 0 for count in counts], 0, most)
            here = Stretch(place, at, before, own, offsets, most)
            self.stretches.append(here)
            total = int(most.sum())
            if number + 1 == len(segments):
                break
            rows = segments[number + 1].start - at
            if total < rows:
                empty = [source for source, count in enumerate(counts) if count == 0]
                if stop == "all_repeat" and not np.delete(own, empty).any():  # what has a share has no row
                    ended = [one or source in empty for source, one in enumerate(ended)]
                    if all(one or not waits for one, waits in zip(ended, waited_for)):
                        break
                elif stop != "all":
                    break
                waiting = [
                    source for source in range(size) if own[source] == 0 and not (stop == "all" and ended[source])
                ]
                if not any(segment.weights[source] > 0 for segment in segments[number + 1 :] for source in waiting):
                    break
                served, gone = most, [source for source in range(size) if own[source] > 0]
            else:
                served = here.served(rows)
                latest = served - here.served(rows - 1)
                source = int(np.argmax(latest))
                last = float((served[source] - 1 + offsets[source]) / own[source]), source
                ends = [
                    (float((rest + offset) / weight), number) <= last if rest is not None and weight > 0 else False
                    for number, (rest, offset, weight) in enumerate(zip(left, offsets.tolist(), own.tolist()))
                ]
                gone = [source for source in range(size) if ends[source] and (stop == "all" or counts[source] == 0)]
                ended = [one or now for one, now in zip(ended, ends)] if stop == "all_repeat" else ended
            if stop == "all":
                ended = [one or source in gone for source, one in enumerate(ended)]
                gone = [source for source, one in enumerate(ended) if one]
            owed = owed_after(owed, served.tolist(), weights, gone)
            before, place, at = before + served, place + int(served.sum()), segments[number + 1].start
        self._total = min(self.stretches[-1].start + int(self.stretches[-1].most.sum()), ENDLESS)
        self._starts = [stretch.start for stretch in self.stretches]

    def __len__(self) -> int:
        return self._total

    def count_at(self, place: int) -> int:
        """The count of a schedule at a place: that after the last row before it."""
        here = self.stretches[max(bisect_left(self._starts, place) - 1, 0)]
        return here.at + place - here.start

    def served(self, place: int) -> IntArray:
        """The rows that each source has given before a place, int64 (n,)."""
        here = self.stretches[max(bisect_right(self._starts, place) - 1, 0)]
        return here.before + here.served(place - here.start)

    def merged(self, first: int, last: int, before: IntArray, after: IntArray) -> IntArray:
        """In which order the rows come that stand between two places, if they stand one source after another.

        Args:
            before, after: what is served at these places.
        """
        begin = max(bisect_right(self._starts, first) - 1, 0)
        here = self.stretches[begin]
        if begin + 1 == len(self.stretches) or self._starts[begin + 1] >= last:
            parts = times_of(before - here.before, after - here.before, here.weights, here.offsets)
            return np.argsort(np.concatenate(parts), kind="stable")
        owners, numbers, times = [], [], []
        for number in range(begin, len(self.stretches)):
            here = self.stretches[number]
            if here.start >= last and number > begin:
                break
            aligned_with = number + 1 < len(self.stretches) and self._starts[number + 1] < last
            low = before - here.before if number == begin else np.zeros(len(before), dtype=np.int64)
            high = (self.stretches[number + 1].before if aligned_with else after) - here.before
            for source, part in enumerate(times_of(low, high, here.weights, here.offsets)):
                owners.append(np.full(len(part), source))
                numbers.append(np.full(len(part), number))
                times.append(part)
        by_source = np.argsort(np.concatenate(owners), kind="stable")
        order: IntArray = np.lexsort((np.concatenate(times)[by_source], np.concatenate(numbers)[by_source]))
        return order
