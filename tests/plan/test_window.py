"""How many rows a window needs: padding at the size returned is what was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plan import by_window, sft, wiki
from brimful.plan import FixedSize, Packed, Policy, TokenBudget
from brimful.plan.window import window_rows


@pytest.mark.parametrize("draw", [wiki, sft])
@pytest.mark.parametrize("policy", [TokenBudget(8192), TokenBudget(16_384), FixedSize(8)], ids=repr)
@pytest.mark.parametrize("sample", [1_000, 10_000])
def test_windows_pad_at_most_one_percent(draw: Callable[..., NDArray[np.int64]], policy: Policy, sample: int) -> None:
    rows = window_rows(policy, draw(sample, seed=1))
    padding, _ = by_window(policy, draw(max(4 * rows, 40_000) // rows * rows, seed=2), rows)
    assert 0.007 <= padding <= 0.010


@pytest.mark.parametrize("share", [0.005, 0.02, 0.05])
def test_any_share_may_be_asked_for(share: float) -> None:
    rows = window_rows(TokenBudget(8192), wiki(2_000), padding=share)
    padding, _ = by_window(TokenBudget(8192), wiki(4 * rows, seed=3), rows)
    assert 0.7 * share <= padding <= share


@pytest.mark.parametrize(("draw", "row_length"), [(wiki, 512), (sft, 4096)])
def test_packing_wastes_far_less(draw: Callable[..., NDArray[np.int64]], row_length: int) -> None:
    rows = window_rows(Packed(row_length), draw(1_000))
    padding, _ = by_window(Packed(row_length), draw(20 * rows, seed=4), rows)
    assert padding <= 0.003


def test_pairs_need_far_larger_windows() -> None:
    sources = wiki(60_000)
    ratio = np.random.default_rng(1).lognormal(0, 0.3, len(sources))
    pairs = np.stack([sources, np.clip((sources * ratio).astype(int), 1, 1024)], axis=1)
    rows = window_rows(TokenBudget(8192), pairs[:2_000], padding=0.04)
    padding, _ = by_window(TokenBudget(8192), pairs[: len(pairs) // rows * rows], rows)
    assert 0.03 <= padding <= 0.042


def test_what_predicts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^window_rows needs at least one length \(got none\)$"):
        window_rows(TokenBudget(8), [])
    for share in (0, 1):
        with pytest.raises(ValueError, match=rf"^padding must be between 0 and 1 \(got {share}\)$"):
            window_rows(TokenBudget(8), [1], padding=share)
