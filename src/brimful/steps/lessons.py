"""Lessons on the memory that batches take: how a planner by `MemoryBudget` learns from peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from brimful.core.errors import StateError, finite, positive
from brimful.core.lessons import Learner
from brimful.core.stream import Stage, State, upstreams
from brimful.plan import MemoryBudget
from brimful.plan.memory import Length, Taught, as_shape
from brimful.steps.batch import Batch
from brimful.steps.planners import BatchPlanner, ByPolicy


@dataclass(frozen=True)
class PeakLessons:
    """What is known is a model of peaks and a share of the limit, and a lesson the peak of a batch, by its shape: [batch, length,
    bytes], of pairs [batch, source, target, bytes]; without bytes (null) it ran out of memory.

    Args:
        columns: those by whose lengths is planned: their tensors, (B, L), show the shape of a batch.
    """

    policy: MemoryBudget
    columns: tuple[str, ...]

    def first(self) -> Any:
        return self.policy.taught(self.policy.model)

    def result(self, known: Any) -> Any:
        return known.model

    def lesson(self, item: Any, value: float) -> State:
        batch, length = self._shape(item)
        lengths = length if isinstance(length, tuple) else (length,)
        return [batch, *lengths, None if value == inf else positive("peak_bytes", value)]

    def checked(self, lesson: State) -> State:
        *shape, peak_bytes = lesson
        return self.lesson(_as_shape(shape), inf if peak_bytes is None else peak_bytes)

    def after(self, known: Any, lesson: State) -> Any:
        *shape, peak_bytes = lesson
        return known.after_peak(*_as_shape(shape), inf if peak_bytes is None else peak_bytes)

    def to_json(self, known: Any) -> State:
        return {"model": known.model.to_json(), "share": known.share}

    def from_json(self, saved: State) -> Any:
        model = type(self.policy.model).from_json(saved["model"])  # type: ignore[attr-defined]
        share = finite("share", saved["share"])
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1 (got {share})")
        return self.policy.taught(model, share)

    def _shape(self, item: Any) -> tuple[int, Length]:
        """Of a batch, or as it was given."""
        if not isinstance(item, Mapping):
            return as_shape("batch", item, self.policy.model.num_lengths)
        found = [_shape_of(item.get(column)) for column in self.columns]
        if any(len(shape) != 2 for shape in found) or len({shape[0] for shape in found}) > 1:
            raise ValueError(
                f"the shape of a batch is that of its tensors {' and '.join(self.columns)}, (B, L) (got "
                f"{' and '.join(map(str, found))}); give learn the shape itself, (batch, padded length)"
            )
        lengths = [shape[1] for shape in found]
        return found[0][0], lengths[0] if len(lengths) == 1 else (lengths[0], lengths[1])


def _as_shape(numbers: Sequence[int]) -> tuple[int, Length]:
    batch, *lengths = numbers
    return batch, lengths[0] if len(lengths) == 1 else tuple(lengths)  # type: ignore[return-value]


def _shape_of(tensor: Any) -> tuple[int, ...]:
    """That of a padded tensor; () where it is none."""
    return () if getattr(tensor, "is_nested", False) else tuple(map(int, getattr(tensor, "shape", ())))


def learner_from(planner: BatchPlanner, windows: Stage[Any]) -> Learner | None:
    """What a planner learns by; None where its policy does not."""
    policy = planner.policy if isinstance(planner, ByPolicy) else None
    if not isinstance(policy, MemoryBudget) or not policy.learn:
        return None
    while not hasattr(windows, "length_columns"):
        (windows,) = upstreams(windows)
    return PeakLessons(policy, windows.length_columns)


def taught(planner: BatchPlanner, known: Any) -> BatchPlanner:
    """A planner that learns, with what is known by now."""
    assert isinstance(planner, ByPolicy)
    assert isinstance(known, Taught)
    return replace(planner, policy=known)


def plan_crc(batches: Sequence[Batch]) -> int:
    """Of the sizes of a plan's batches, which say which samples are in which: they are cut from sorted ones."""
    return crc32(np.array([len(batch) for batch in batches], dtype=np.int64).tobytes())


def check_plan(ours: Sequence[int], saved: Sequence[int], at: str) -> None:
    """Refuses to go on where what was learnt plans a window otherwise than when the state was saved.

    Raises:
        StateError: naming the window and both checksums.
    """
    if list(ours) != list(saved):
        then, now = (", ".join(f"{one:08x}" for one in crcs) or "none" for crcs in (saved, ours))
        raise StateError(
            f"what was learnt plans {at} otherwise than when this state was saved (crc32 of the sizes {then} then, {now} now): "
            "another machine, or release, that rounds otherwise; resume where it was saved, or begin the epoch again with the "
            "state's lessons: iter(epoch=..., lessons=state['lessons'])"
        )
