"""Several limits at once, beside brute force."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from tests.effort import examples

limits = st.integers(3, 30)
sizes = st.integers(0, 12)


@st.composite
def problems(draw: st.DrawFn, *, most: int = 30) -> tuple[bf.MultiBudget, dict[str, list[int]]]:
    padded, total = draw(st.sampled_from([(1, 0), (1, 1), (2, 1), (0, 1), (0, 2), (1, 2), (3, 0)]))
    names = [f"size{number}" for number in range(padded + total)]
    own = {name: draw(limits) for name in names}
    multiple = draw(st.sampled_from([1, 1, 2, 3]))
    budget = bf.MultiBudget(
        padded={name: own[name] for name in names[:padded]},
        total={name: own[name] for name in names[padded:]},
        max_samples=draw(st.sampled_from([None, 1, 3])),
        pad_to_multiple_of=multiple,
    )
    count = draw(st.integers(1, most))
    values = {
        name: draw(st.lists(st.integers(0, min(12, own[name] // multiple * multiple)), min_size=count, max_size=count))
        for name in names
    }
    return budget, values


def fits(budget: bf.MultiBudget, values: dict[str, list[int]], batch: Any) -> bool:
    multiple = budget.pad_to_multiple_of
    return (
        (budget.max_samples is None or len(batch) <= budget.max_samples)
        and all(
            len(batch) * max(1, -(-max(values[name][i] for i in batch) // multiple)) * multiple <= limit
            for name, limit in budget.padded.items()
        )
        and all(sum(values[name][i] for i in batch) <= limit for name, limit in budget.total.items())
    )


@given(problem=problems())
@examples(300)
def test_every_limit_is_kept_and_every_sample_comes_once(problem: tuple[bf.MultiBudget, dict[str, list[int]]]) -> None:
    budget, values = problem
    plan = budget.plan(values)
    count = len(values[budget.columns[0]])
    assert sorted(np.concatenate(plan.batches).tolist()) == list(range(count))
    for number, batch in enumerate(plan.batches):
        assert fits(budget, values, batch.tolist())
        greatest = [max(values[name][i] for i in batch.tolist()) for name in budget.columns]
        multiple = budget.pad_to_multiple_of
        rounded = [max(1, -(-one // multiple)) * multiple for one in greatest[: budget.num_padded]]
        assert plan.padded_lengths[number].tolist() == [*rounded, *greatest[budget.num_padded :]]
    real = sum(sum(values[name]) for name in budget.padded)
    assert plan.tokens == real
    slots = sum(
        len(batch) * int(plan.padded_lengths[n, : budget.num_padded].sum()) for n, batch in enumerate(plan.batches)
    )
    assert plan.slots == slots
    array = np.stack([values[name] for name in budget.columns], axis=1)
    assert [one.tolist() for one in budget.plan(array).batches] == [one.tolist() for one in plan.batches]


@given(problem=problems())
@examples(100)
def test_no_batch_that_is_cut_would_have_held_the_next_sample(
    problem: tuple[bf.MultiBudget, dict[str, list[int]]],
) -> None:
    budget, values = problem
    if budget.num_padded:
        batches = [batch.tolist() for batch in budget.plan(values).batches]
        assert not any(fits(budget, values, [*one, after[0]]) for one, after in pairwise(batches))


@given(problem=problems(most=6))
@examples(60)
def test_sums_alone_are_filled_like_the_best_order_would(problem: tuple[bf.MultiBudget, dict[str, list[int]]]) -> None:
    """Of all orders in which samples could be placed one after another, the best makes at most one batch less."""
    budget, values = problem
    if budget.num_padded:
        return
    count = len(values[budget.columns[0]])

    def greedy(order: tuple[int, ...]) -> int:
        batches: list[list[int]] = []
        for sample in order:
            room = next((batch for batch in batches if fits(budget, values, [*batch, sample])), None)
            if room is None:
                batches.append([sample])
            else:
                room.append(sample)
        return len(batches)

    best = min(map(greedy, permutations(range(count))))
    assert len(budget.plan(values)) <= best + 1


def test_what_is_too_large_is_named_with_its_limit() -> None:
    budget = bf.MultiBudget(padded={"input_ids": 60}, total={"num_patches": 10}, pad_to_multiple_of=8)
    with pytest.raises(
        bf.OverlongError,
        match=r"^a sample of 11 num_patches \(sample 1\) cannot fit num_patches=10; filter it, or raise",
    ) as found:
        budget.plan({"input_ids": [5, 6, 7], "num_patches": [3, 11, 12]})
    assert found.value.samples == (1, 2)
    with pytest.raises(
        bf.OverlongError, match=r"a sample of 57 input_ids .* cannot fit input_ids=60 in multiples of 8;"
    ):
        budget.plan({"input_ids": [57], "num_patches": [0]})


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "MultiBudget needs at least 1 limit"),
        ({"padded": {"a": 0}}, r"padded\['a'\] must be at least 1"),
        ({"padded": {"a": 3}, "total": {"a": 3}}, "'a' is in padded and in total"),
        ({"padded": {"a": 3}, "max_samples": 0}, "max_samples must be at least 1 sample"),
        ({"padded": {"a": 3}, "pad_to_multiple_of": 4}, r"pad_to_multiple_of must be at most a=3 \(got 4\)"),
    ],
)
def test_limits_that_allow_nothing_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bf.MultiBudget(**how)
    with pytest.raises(TypeError, match="padded takes limits by name"):
        bf.MultiBudget(padded=16)  # type: ignore[arg-type]


def test_a_limit_is_so_small_that_no_sum_of_sizes_wraps_around() -> None:
    most = 1 << 40
    with pytest.raises(
        ValueError, match=r"total\['bytes'\] must be at most 1,099,511,627,776 \(got 1,099,511,627,777\)"
    ):
        bf.MultiBudget(total={"bytes": most + 1})
    plan = bf.MultiBudget(padded={"a": 99}, total={"bytes": most}).plan({"a": [1] * 20, "bytes": [most] * 20})
    assert len(plan) == 20


def test_other_sizes_than_those_of_the_limits_are_refused() -> None:
    budget = bf.MultiBudget(padded={"a": 3}, total={"b": 3})
    with pytest.raises(ValueError, match="the sizes are a, c, and the limits are of a, b"):
        budget.plan({"a": [1], "c": [1]})
    with pytest.raises(ValueError, match=r"each sample has every size \(got 1 of a and 2 of b"):
        budget.plan({"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="the limits are of 2 sizes, a, b"):
        budget.plan([1, 2])


@given(
    rows=st.lists(st.tuples(st.integers(0, 10), sizes, sizes), min_size=1, max_size=40),
    most=st.sampled_from([None, 1, 3]),
)
@examples(100)
def test_packed_rows_keep_to_other_limits_too(rows: list[tuple[int, ...]], most: int | None) -> None:
    row_limits = {"patches": 12, "documents": 15} | ({} if most is None else {"samples": most})
    policy = bf.Packed(10, row_limits=row_limits)
    assert policy.limited == ("patches", "documents")
    values = np.array(rows)
    plan = policy.plan(values)
    assert sorted(np.concatenate(plan.batches).tolist()) == list(range(len(rows)))
    for row in plan.batches:
        assert np.maximum(values[row, 0], 1).sum() <= 10
        assert values[row, 1].sum() <= 12
        assert values[row, 2].sum() <= 15
        assert most is None or len(row) <= most
    assert plan.tokens == values[:, 0].sum()
    assert plan.slots == 10 * len(plan)


def test_packed_rows_without_other_limits_fill_as_many_rows_either_way() -> None:
    lengths = np.random.default_rng(0).integers(1, 101, 2_000)
    plain, within = bf.Packed(100).plan(lengths), bf.Packed(100, row_limits={"samples": 100}).plan(lengths)
    assert len(plain) == len(within)
