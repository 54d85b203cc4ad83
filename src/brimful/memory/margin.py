"""A margin above predicted peaks: the share of peaks above it is the risk that was asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, exp, floor, pi, sin, sqrt
from typing import Any, Final

from brimful.core.errors import finite, integer

STEP: Final = 0.005
"""Errors are counted in steps of .5 %."""
MOST: Final = 1000
"""Steps beyond which an error is not told from a greater one: a factor of 148."""

_BEGIN_SPREAD: Final = 0.04  # the spread of the errors before any is known: 11 % at a risk of 2.5 %
_BEGIN_COUNT: Final = 4  # and how many errors that counts as
_MOST_DEGREES: Final = 200  # from here on Student's t is the normal distribution to 1 %


@dataclass(frozen=True)
class Margin:
    """Errors of honest predictions, log(peak / predicted), each made without the peak: how often, in steps of .5 %.

    Errors of n peaks bound the next one without any assumption but that it is like them: it lies above the k-th smallest,
    k = ceil((n + 1)(1 - risk)), with at most that risk. That takes n >= 1 / risk - 1 errors. Until then Student's t
    stands in, with a spread of 4 % that counts as 4 errors at first, and never less than the greatest error seen.

    Args:
        counts: (step, errors in it), by step.
        squares: sum of the squared errors.
    Source: split conformal prediction (Vovk, Gammerman and Shafer, 2005), on errors made one step ahead.
    Example:
        >>> margin = Margin.of([0.01, -0.02])
        >>> round(margin.factor(0.025), 3), round(Margin.of([0.01, -0.02] * 100).factor(0.025), 3)
        (1.086, 1.015)
    """

    counts: tuple[tuple[int, int], ...] = ()
    squares: float = 0.0

    @classmethod
    def of(cls, errors: list[float]) -> Margin:
        """The margin that knows these errors."""
        return cls().after(errors)

    @classmethod
    def from_json(cls, counts: Any, squares: Any) -> Margin:
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
        return cls(found, float(squares))

    def after(self, errors: list[float]) -> Margin:
        """The margin that knows these errors too."""
        counts = Counter(dict(self.counts))
        counts.update(min(max(floor(error / STEP), -MOST), MOST) for error in errors)
        return Margin(tuple(sorted(counts.items())), self.squares + sum(error**2 for error in errors))

    def __len__(self) -> int:
        return sum(number for _, number in self.counts)

    @property
    def spread(self) -> float:
        """The root mean square of the errors, and of what is taken for granted at first."""
        return sqrt((_BEGIN_COUNT * _BEGIN_SPREAD**2 + self.squares) / (_BEGIN_COUNT + len(self)))

    def factor(self, risk: float) -> float:
        """The factor for predictions, so that a peak lies above with at most this risk; at least 1."""
        known = len(self)
        rank = ceil((known + 1) * (1 - risk))
        if rank <= known:
            return exp(max(self._at_rank(rank), 0.0))
        by_spread = self.spread * student_quantile(1 - risk, min(_BEGIN_COUNT + known, _MOST_DEGREES))
        return exp(max(by_spread, self._at_rank(known) if known else 0.0, 0.0))

    def _at_rank(self, rank: int) -> float:
        """The upper end of the step in which the error of this rank lies, counted from the smallest."""
        return (self.counts[bisect_left(list(accumulate(number for _, number in self.counts)), rank)][0] + 1) * STEP


@lru_cache(maxsize=256)
def student_quantile(share: float, degrees: int) -> float:
    """Below which a share of Student's t distribution lies.

    >>> round(student_quantile(0.99, 4), 3), round(student_quantile(0.975, 5), 3)
    (3.747, 2.571)
    """
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    low, high = 0.0, pi / 2  # the angle whose tangent is t / sqrt(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, degrees) < share else (low, middle)
    return sqrt(degrees) * sin(low) / cos(low)


def _student_share(angle: float, degrees: int) -> float:
    """Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    square = cos(angle) ** 2
    if degrees % 2 == 0:
        factors = [(2 * n - 1) / (2 * n) * square for n in range(1, degrees // 2)]
        return 0.5 + sin(angle) / 2 * (1 + sum(accumulate(factors, lambda one, other: one * other)))
    factors = [2 * n / (2 * n + 1) * square for n in range(1, (degrees - 1) // 2)]
    inner = sin(angle) * cos(angle) * (1 + sum(accumulate(factors, lambda one, other: one * other)))
    return 0.5 + (angle + (inner if degrees > 1 else 0.0)) / pi
