"""Policies of samples with several rows each, against every batch that they could make."""

from __future__ import annotations

import random

import numpy as np
import pytest

from brimful.plan import CostBudget, FixedSize, StaticShapes, TokenBudget
from brimful.plan.stacked import Stacked, stacked


@pytest.mark.parametrize("sides", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_a_batch_has_as_many_samples_as_its_rows_allow(seed: int, sides: int) -> None:
    draw = random.Random(seed)
    lengths = np.array([[draw.randrange(1, 20) for _ in range(sides)] for _ in range(30)])
    most = draw.randrange(20 * sides, 200)
    plan = Stacked(TokenBudget(most), sides).plan(lengths)
    longest = lengths.max(axis=1)
    order = sorted(range(30), key=lambda one: -longest[one])
    batches: list[list[int]] = []
    for one in order:
        if batches and sides * (len(batches[-1]) + 1) * longest[batches[-1][0]] <= most:
            batches[-1].append(one)
        else:
            batches.append([one])
    assert [batch.tolist() for batch in plan.batches] == batches
    assert (plan.padded_lengths == longest[[batch[0] for batch in batches]][:, None]).all()
    assert plan.slots == sum(sides * len(batch) * longest[batch[0]] for batch in batches)


def test_samples_are_counted_as_they_are_and_rows_by_side() -> None:
    assert stacked(FixedSize(4), 2) == FixedSize(4)
    assert stacked(StaticShapes([4, 8], 64), 2) == StaticShapes([4, 8], 32)
    assert stacked(TokenBudget(64), 1) == TokenBudget(64)
    cost = stacked(CostBudget(lambda rows, length: rows**2 * length, 400), 2)
    assert [len(batch) for batch in cost.plan([4] * 11).batches] == [5, 5, 1]  # 10 rows: 100 x 4
    assert Stacked(StaticShapes([4, 8], 64), 2).shapes == [(8, 4, 4), (4, 8, 8)]
