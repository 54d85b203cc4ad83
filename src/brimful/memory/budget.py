"""The largest token budget that memory allows, found in a few steps of a user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any, Final, NamedTuple

import numpy as np

from brimful.memory.device import meter_on
from brimful.memory.fake import MakeStep, estimator
from brimful.memory.peaks import Meter, Peaks, largest_batch
from brimful.plan.errors import integer, positive

MOST_PROBES: Final = 10
MOST_LENGTHS: Final = 3


class FittedBudget(NamedTuple):
    """A token budget that fits, and what was measured.

    Args:
        max_tokens: for `TokenBudget`: samples x longest, in tokens.
        peaks: the shapes that were measured and fit, and those that ran out of memory, also for `MemoryModel.fit`.
    Example:
        >>> import torch
        >>> found = fit_budget(torch.exp, torch.ones, 2**20, lengths=[16, 512], device="cpu")
        >>> found.max_tokens, len(found.peaks.shapes)
        (131023, 8)
    """

    max_tokens: int
    peaks: Peaks


def fit_budget(
    step: Callable[[Any], object],
    make_batch: Callable[[int, Any], Any],
    limit_bytes: float,
    *,
    lengths: Sequence[int],
    device: Any = "cuda",
    make_step: MakeStep | None = None,
    max_batch_size: int = 1 << 16,
) -> FittedBudget:
    """The largest token budget of which every batch fits into memory, in at most ten steps.

    It measures batches of the longest samples first. A line through two that fit leads to the largest one. Batches of the
    shorter ones then have as many samples as that budget allows, or fewer if these need more memory. The result is a budget
    whose largest batches, of each of the lengths, were measured and fit. At a fixed number of tokens, the memory of
    transformers rises or falls with the length. So the shortest and the longest length say enough.

    Args:
        step: step(batch) runs the whole step, as for `probe`. With device="fake": the model, as for `estimate`.
        make_batch: make_batch(batch, length) gives a batch of so many samples of that length, as the step takes it: padded,
            or packed into rows.
        limit_bytes: the peak that is allowed. Leave some of the device's memory free, as allocators fragment it.
        lengths: padded lengths of your data, in tokens: the shortest and the longest, and perhaps one between them.
        device: "cuda" or "cpu", as for `probe`. "fake": nothing is computed, as `estimate` does it.
        make_step: for "fake": takes the model and returns the step(batch).
        max_batch_size: where to stop. No batch of these lengths has more samples within the budget.
    Raises:
        ValueError: a single sample of some length does not fit. Or no budget that fits holds a sample of the longest.
    Price: about 6 steps, 10 at most.
    Example:
        >>> import torch
        >>> def step(batch):
        ...     return batch * 2 + 1
        >>> fit_budget(step, lambda batch, length: torch.ones(batch, length), 2**20, lengths=[16, 512], device="cpu").max_tokens
        87295
        >>> layer = torch.nn.Linear(64, 64)
        >>> def make_batch(batch, length):
        ...     return torch.zeros(batch, length, 64)
        >>> def make_step(layer):
        ...     return lambda batch: layer(batch).sum().backward()
        >>> fit_budget(layer, make_batch, 2**24, lengths=[16, 128], device="fake", make_step=make_step).max_tokens
        32703
    """
    if device == "fake":
        meter = estimator(step, make_batch, make_step=make_step)  # type: ignore[arg-type]  # a model
    elif make_step is not None:
        raise ValueError(f"make_step goes with device='fake' (got device={device!r}): give the step itself")
    else:
        meter = meter_on(device, step, make_batch)
    most = integer("max_batch_size", max_batch_size, 1, "sample")
    return budget_within(meter, lengths, positive("limit_bytes", limit_bytes), most)


def budget_within(meter: Meter, lengths: Sequence[int], limit: float, most: int) -> FittedBudget:
    """The largest budget whose batches of these lengths are within the limit, as far as `MOST_PROBES` tell.

    >>> budget_within(lambda batch, length: 1e6 + batch * length * (1_000 + length), [16, 512], 30e6, 1 << 16).max_tokens
    19455
    """
    table: dict[tuple[int, int], float] = {}
    if not isinstance(lengths, Iterable):
        raise TypeError(f"lengths must be a list: the shortest and the longest length of your data (got {lengths!r})")
    tokens = sorted({integer("lengths", length, 1, "token") for length in lengths}, reverse=True)
    if not 0 < len(tokens) <= MOST_LENGTHS:
        raise ValueError(f"lengths must be 1 to {MOST_LENGTHS} lengths (got {len(tokens):,})")

    def peak(batch: int, length: int) -> float:
        found = table[batch, length] = meter(batch, length)
        return found

    first = meter(1, tokens[-1])  # also what stays between steps: states of an optimizer, workspaces
    budget = most * tokens[0]
    for others, length in zip(range(len(tokens) - 1, -1, -1), tokens):
        rows, longest = min(most, budget // length), length == tokens[0]
        probes = MOST_PROBES - 1 - len(table) - 2 * others  # two are kept for each length to come
        ask = partial(peak, length=length)
        known = first if not others and not longest and first <= limit else 0.0
        fit = largest_batch(ask, limit, rows, guess=1 if longest else rows, probes=probes, known=known)
        if not fit:
            batch = min(batch for batch, one in table if one == length)
            peaks_at = "runs out of memory"
            if isfinite(found := table[batch, length]):
                peaks_at = f"peaks at {found:,.0f} bytes, which is above limit_bytes={limit:,.0f}"
            raise ValueError(
                f"a batch of {batch:,} x {length:,} tokens {peaks_at}. Take a smaller model, shorter samples, or "
                "activation checkpointing"
            )
        budget = (fit + 1) * length - 1 if longest or fit < budget // length else budget
        if budget < tokens[0]:
            raise ValueError(
                f"{fit:,} x {length:,} tokens are the largest batch of that length that was found, and a budget for it cannot "
                f"hold a sample of {tokens[0]:,} tokens. Raise limit_bytes={limit:,.0f} or max_batch_size={most:,}, or take "
                "lengths that are less far apart"
            )
    shapes = np.array([*table], np.int64)
    peaks = np.array([*table.values()])
    fits = np.isfinite(peaks)
    return FittedBudget(budget, Peaks(shapes[fits], np.rint(peaks[fits]).astype(np.int64), shapes[~fits]))
