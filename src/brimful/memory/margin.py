"""A margin above predicted peaks: the share of peaks above it is the risk that was asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, exp, floor, log, pi, sin, sqrt
from operator import mul
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from brimful.plan.errors import finite, integer

STEP: Final = 0.005
"""Errors are counted in steps of .5 %."""
MOST: Final = 1000
"""Steps beyond which an error is not told from a greater one: a factor of 148."""

_BEGIN_SPREAD: Final = 0.04  # the spread of the errors before any is known: 11 % at a risk of 2.5 %
_BEGIN_COUNT: Final = 4  # and how many errors that counts as
_RISKS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)  # at which misses are watched
_ADJUSTMENT_STEP: Final = (
    0.03  # as a logarithm; a peak within its bound gives one back, 1 / risk - 1 come with one above it
)
_MOST_ADJUSTMENT: Final = 150  # steps: a risk is divided by 90 at most
_LOG_RISKS: Final = np.log(_RISKS)
_MANY_DEGREES: Final = 30  # from here on a series in 1 / degrees gives Student's t to four digits


@dataclass(frozen=True)
class Margin:
    """Errors of honest predictions, log(peak / predicted), each made without the peak: how often, in steps of .5 %.

    Errors of n peaks bound the next one without any assumption but that it is like them: it lies above the k-th smallest,
    k = ceil((n + 1)(1 - risk)), with at most that risk. That takes n >= 1 / risk - 1 errors. Until then Student's t
    stands in, with a spread of 4 % that counts as 4 errors at first, and never less than the greatest error seen.

    Errors may get worse as they come: generation ends late for the texts at the end. So each of some risks is watched: an error
    above its bound divides it, and those within bring it back. In the long run no more errors lie above than the risk says.

    Args:
        counts: (step, errors in it), by step.
        squares: sum of the squared errors.
        risk_adjustment: for each risk that is watched, in steps of 3 %, what it is divided by; () where nothing was watched yet.
    Source: split conformal prediction (Vovk, Gammerman and Shafer, 2005), on errors made one step ahead; adaptive
        conformal inference (Gibbs and Candes, 2021), here on the logarithm of the risk.
    Example:
        >>> margin = Margin.of([0.01, -0.02])
        >>> round(margin.factor(0.025), 3), round(Margin.of([0.01, -0.02] * 100).factor(0.025), 3)
        (1.086, 1.015)
    """

    counts: tuple[tuple[int, int], ...] = ()
    squares: float = 0.0
    risk_adjustment: tuple[int, ...] = ()

    @classmethod
    def of(cls, errors: list[float]) -> Margin:
        """The margin that knows these errors, which came in no order."""
        return cls()._counted(errors)

    @classmethod
    def from_json(cls, counts: Any, squares: Any, care: Any) -> Margin:
        """As a file has it.

        Raises:
            ValueError, TypeError: it is none.
        """
        found = tuple(
            (integer("a step of errors", step, None), integer("errors", number, 1)) for step, number in counts
        )
        steps = [step for step, _ in found]
        if steps != sorted(set(steps)) or any(abs(step) > MOST for step in steps):
            raise ValueError(f"its steps of errors must ascend, from {-MOST:,} to {MOST:,} (got {steps[:8]})")
        if finite("squared_errors", squares) < 0:
            raise ValueError(f"squared_errors must be at least 0 (got {squares})")
        cared = tuple(integer("care", steps, 0) for steps in care)
        if len(cared) not in (0, len(_RISKS)) or max(cared, default=0) > _MOST_ADJUSTMENT:
            raise ValueError(f"care must be {len(_RISKS)} numbers up to {_MOST_ADJUSTMENT} (got {cared})")
        return cls(found, float(squares), cared)

    def after(self, error: float) -> Margin:
        """The margin that knows this error too, the next one."""
        return replace(self._counted([error]), risk_adjustment=self._adjusted(error))

    def _counted(self, errors: list[float]) -> Margin:
        counts = Counter(dict(self.counts))
        counts.update(min(max(floor(error / STEP), -MOST), MOST) for error in errors)
        return replace(
            self, counts=tuple(sorted(counts.items())), squares=self.squares + sum(error**2 for error in errors)
        )

    def _adjusted(self, error: float) -> tuple[int, ...]:
        steps: list[int] = []
        for number, risk in reversed(list(enumerate(_RISKS))):
            missed = exp(error) > self.factor(risk)
            now = (self.risk_adjustment[number] if self.risk_adjustment else 0) + (
                round(1 / risk) - 1 if missed else -1
            )
            # A smaller risk never means a smaller bound: divided, it stays below the next greater one.
            least = ceil(steps[0] - log(_RISKS[number + 1] / risk) / _ADJUSTMENT_STEP) if steps else 0
            steps.insert(0, min(max(now, least, 0), _MOST_ADJUSTMENT))
        return tuple(steps)

    def __len__(self) -> int:
        return sum(number for _, number in self.counts)

    def factor(self, risk: float) -> float:
        """The factor for predictions, so that a peak lies above with at most this risk; at least 1."""
        if self.risk_adjustment:
            risk *= exp(-_ADJUSTMENT_STEP * float(np.interp(log(risk), _LOG_RISKS, self.risk_adjustment)))
        known = len(self)
        rank = ceil((known + 1) * (1 - risk))
        if rank <= known:
            return exp(max(self._at_rank(rank), 0.0))
        degrees = _BEGIN_COUNT + known
        spread = sqrt((_BEGIN_COUNT * _BEGIN_SPREAD**2 + self.squares) / degrees)
        by_spread = spread * student_quantile(1 - risk, degrees)
        return exp(max(by_spread, self._at_rank(known) if known else 0.0, 0.0))

    def _at_rank(self, rank: int) -> float:
        """The upper end of the step in which the error of this rank lies, counted from the smallest."""
        return (self.counts[bisect_left(list(accumulate(number for _, number in self.counts)), rank)][0] + 1) * STEP


@lru_cache(maxsize=4096)
def student_quantile(share: float, degrees: int) -> float:
    """Below which a share of Student's t distribution lies.

    Source of the series: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.

    >>> round(student_quantile(0.99, 4), 3), round(student_quantile(0.975, 5), 3)
    (3.747, 2.571)
    """
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    if degrees >= _MANY_DEGREES:
        z: float = NormalDist().inv_cdf(share)
        series = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + float(sum(term / degrees**power for power, term in enumerate(series, 1)))
    low, high = 0.0, pi / 2  # the angle whose tangent is t / sqrt(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, degrees) < share else (low, middle)
    return sqrt(degrees) * sin(low) / cos(low)


def _student_share(angle: float, degrees: int) -> float:
    """Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    factors = [n / (n + 1) * cos(angle) ** 2 for n in range(1 + degrees % 2, degrees - 2, 2)]
    series: float = 1 + sum(accumulate(factors, mul))
    if degrees % 2 == 0:
        return 0.5 + sin(angle) / 2 * series
    return 0.5 + (angle + (sin(angle) * cos(angle) * series if degrees > 1 else 0.0)) / pi
