"""The exact largest batch of each length, in three or four measurements where the peak is affine in the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite

from brimful.core.errors import integer, positive
from brimful.memory.peaks import Meter
from brimful.plan.memory import Length

_AHEAD = 64  # times the largest batch known to fit that a guess may be
_SURE = 0.95  # of the last slope: allocators round, so that a convex peak may rise a little less than before


def largest_batches(
    meter: Meter, lengths: Sequence[Length], limit_bytes: float, *, max_batch_size: int = 1 << 16
) -> list[int]:
    """The largest batch of each length whose peak is within the limit: measured, not predicted.

    Per length the peak is taken to be convex in the batch. So a line through two batches that fit says how many may fit, a
    line to one that does not how many must; and where the last rise leads above the limit, so does the next one.

    Args:
        meter: meter(batch, length) gives bytes, infinite where memory runs out: `estimator(...)` or `meter_on(...)`.
        lengths: padded lengths, in tokens; or pairs (source, target).
        limit_bytes: the peak that is allowed.
        max_batch_size: where to stop.
    Returns: a batch size a length, 0 where a single sample does not fit.
    Price: 3 or 4 steps a length where the peak is affine, 2 or 3 more for each bend in it.
    Example:
        >>> largest_batches(lambda batch, length: max(5e6, 1e6 + 1e3 * batch * length), [128, 512], 30e6)
        [226, 56]
    """
    limit, most = positive("limit_bytes", limit_bytes), integer("max_batch_size", max_batch_size, 1, "sample")
    return [_largest(lambda batch: meter(batch, length), limit, most) for length in lengths]  # noqa: B023  # called at once


def _largest(peak: Callable[[int], float], limit: float, most: int) -> int:
    below, low = (0, 0.0), (0, 0.0)  # the two largest batches that are known to fit, and their peaks
    high = (most + 1, inf)
    guess, tries = 1, 0
    while low[0] + 1 < high[0]:
        found = guess, peak(guess)
        if found[1] <= limit:
            below, low = low, found
        else:
            high = found
        if not low[0]:
            if high[0] == 1:
                return 0
            guess = max(1, high[0] // 2)
            continue
        tries += 1
        rise = (low[1] - below[1]) / (low[0] - below[0]) if below[0] else 0.0
        if rise > 0 and low[1] + _SURE * rise > limit:
            return low[0]
        guess = _next(low, high, rise, limit, halve=tries % 4 == 0)
    return low[0]


def _next(low: tuple[int, float], high: tuple[int, float], rise: float, limit: float, *, halve: bool) -> int:
    """The batch to measure, between one that fits and one that does not."""
    if halve and isfinite(high[1]):
        return (low[0] + high[0]) // 2
    guess = low[0] + int(min((limit - low[1]) / rise, _AHEAD * low[0])) if rise > 0 else 2 * low[0]
    if guess >= high[0]:
        share = (limit - low[1]) / (high[1] - low[1]) if isfinite(high[1]) else 0.5
        guess = low[0] + int(share * (high[0] - low[0]))
    return min(max(guess, low[0] + 1), high[0] - 1)
