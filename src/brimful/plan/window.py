"""How many rows a sorted window needs for its padding to be as small as asked for."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import ArrayLike

from .plan import Policy, as_lengths, planned

# Padding x batches: measured 1.8 to 2.3 under token budgets, 2.1 to 2.7 under fixed sizes, 3.1 where long samples cost
# quadratically, .6 in packing.
_PADDING_BATCHES = 2.5
_PADDING_ROOT_BATCHES = 1.2  # padding x sqrt(batches), pairs: .8 to 1.7, the closer the two lengths the less
_ENOUGH_BATCHES = 256  # in a plan from which rows per batch are read, so that a short last batch does not count


def window_rows(policy: Policy, lengths_sample: ArrayLike, padding: float = 0.01, *, batches: int | None = None) -> int:
    """How many rows a window needs for the policy to pad about this share of the slots, or to make so many batches of it.

    Padding is about 2.5 / batches in a window: 1 % takes 250 batches' worth of rows. Pairs pad 1.2 / sqrt(batches). What
    rounding to a multiple or to buckets pads comes on top, whatever the window.

    Args:
        policy: what plans the windows.
        lengths_sample: lengths drawn from the data, (n,) or (n, 2); 1,000 are enough.
        padding: the share of padded slots to predict.
        batches: of a window, in place of a padding.
    Raises:
        ValueError: no lengths, or `padding` not between 0 and 1.
        OverlongError: a sampled length that the policy cannot place.
    Price: two plans: of the sample, and of enough copies of it for 256 batches.
    Source: measured on the lengths of text corpora, 4,096 to 65,536 tokens a batch: .73 to .93 % at the rows returned
        for 1 % under token budgets, .85 to 1.09 % under fixed sizes, .25 % in packing.
    Example:
        >>> from brimful.plan import TokenBudget
        >>> window_rows(TokenBudget(4096), [100, 200, 300] * 100)
        4919
    """
    lengths = as_lengths(lengths_sample)
    if not len(lengths):
        raise ValueError("window_rows needs at least one length (got none)")
    if not 0 < padding < 1:
        raise ValueError(f"padding must be between 0 and 1 (got {padding})")
    copies = ceil(_ENOUGH_BATCHES / len(planned(policy, lengths)))
    many = np.concatenate([lengths] * copies)
    rows_per_batch = len(many) / len(planned(policy, many))
    if batches is not None:
        return ceil(batches * rows_per_batch)
    padded = getattr(policy, "num_padded", None)
    several = lengths.ndim == 2 and (padded is None or padded > 1)
    needed = (_PADDING_ROOT_BATCHES / padding) ** 2 if several else _PADDING_BATCHES / padding
    return ceil(needed * rows_per_batch)


def window_ends(count: int, size: int) -> int:
    """How many of `count` rows the next window takes where no more follow: a rest shorter than half joins it.

    >>> [window_ends(count, 10) for count in (3, 10, 14, 15, 20)]
    [3, 10, 14, 10, 10]
    """
    return count if count < size + rest_rows(size) else size


def rest_rows(size: int) -> int:
    """How many rows must follow a window of `size` rows for them to be a window of their own."""
    return (size + 1) // 2
