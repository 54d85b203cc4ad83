"""Windows to plans: by a policy over lengths, or by a user's functions of the samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.errors import DataError, count, where
from brimful.plan import FixedSize, OverlongError, Plan, Policy, plan_with
from brimful.plan.overlong import Overlong
from brimful.rows import Sample, call, samples
from brimful.windows import Window


class Planner(ABC):
    """Plans a window; what it leaves out or cuts is counted in `.stats` where `first` says so (not in a replay)."""

    @abstractmethod
    def plan(self, window: Window, first: bool) -> Plan:
        """The window's batches."""

    @abstractmethod
    def complete(self, plan: Plan, last: bool) -> NDArray[np.bool_]:
        """Which batches `drop_last` keeps; `last` where no window follows."""


@dataclass(frozen=True)
class ByPolicy(Planner):
    """A policy's plan, with a word for the samples that it cannot place."""

    policy: Policy
    overlong: Overlong

    def plan(self, window: Window, first: bool) -> Plan:
        try:
            plan, counts = plan_with(self.policy, window.lengths, self.overlong)
        except OverlongError as error:
            raise DataError(f"{error} ({where(window.block, int(window.rows[error.sample]))})") from error
        for name, number in counts.items():
            if first and number:
                count(
                    name, number, f"overlong: {number:,} samples of a window {name} (longer than {self.policy} takes)"
                )
        return plan

    def complete(self, plan: Plan, last: bool) -> NDArray[np.bool_]:
        """Batches of full size; where the policy has no fixed size, all but the last cut of the epoch."""
        return _complete(plan, self.policy.n if isinstance(self.policy, FixedSize) else None, last)


@dataclass(frozen=True)
class ByKey(Planner):
    """Sorts by `key`, largest first, stable, and cuts: a batch has `batch_size` samples, or as many as `batch_size` of
    its first sample says, and never spans two values of `boundary_key`.

    Price: Python, up to three calls a sample.
    """

    batch_size: int | Callable[[Sample], int]
    key: Callable[[Sample], Any]
    boundary_key: Callable[[Sample], Any] | None

    def plan(self, window: Window, first: bool) -> Plan:
        block = window.take(np.arange(len(window)))
        rows = samples(block)
        keys = list(call("batch_by", self.key, block))
        order = sorted(range(len(rows)), key=keys.__getitem__, reverse=True)
        bounds = [self.boundary_key(rows[row]) if self.boundary_key else None for row in order]
        batches, start = [], 0
        while start < len(order):
            size = self._size(rows[order[start]])
            stop = next(
                (i for i in range(start, min(start + size, len(order))) if bounds[i] != bounds[start]),
                min(start + size, len(order)),
            )
            batches.append(order[start:stop])
            start = stop
        return Plan.of(window.lengths, batches)

    def complete(self, plan: Plan, last: bool) -> NDArray[np.bool_]:
        return _complete(plan, self.batch_size if isinstance(self.batch_size, int) else None, last)

    def _size(self, longest: Sample) -> int:
        size = self.batch_size if isinstance(self.batch_size, int) else int(self.batch_size(longest))
        if size < 1:
            raise ValueError(f"batch_size must give at least 1 sample (got {size})")
        return size


def _complete(plan: Plan, size: int | None, last: bool) -> NDArray[np.bool_]:
    complete = np.ones(len(plan), dtype=bool)
    if size is not None:
        complete = np.fromiter(map(len, plan.batches), np.int64, len(plan)) == size
    elif last and len(plan):
        complete[-1] = False
    return complete
