"""Equal work: every sample in one part, limits kept, as even as brute force for a few samples, and near the bound for many."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import brimful as bf
from benchmarks.plan import sft, wiki
from brimful.plan import dealing, micro
from tests.effort import examples

ATTENTION = bf.AttentionCost(quadratic=1 / 10)
COSTS = {"length": None, "attention": ATTENTION, "any": lambda length: length**1.5 + 3}
Lengths = NDArray[np.int64]


def costs_of(lengths: Lengths, name: str) -> NDArray[np.float64]:
    if name == "attention":
        return np.array([ATTENTION(1, length) for length in lengths.tolist()], float)
    return lengths.astype(float) if name == "length" else lengths**1.5 + 3


def part_cost(lengths: Lengths, costs: NDArray[np.float64], part: Lengths, padded: bool) -> float:
    if not len(part):
        return 0.0
    return float(len(part) * costs[part].max() if padded else costs[part].sum())


def part_tokens(lengths: Lengths, part: Lengths, padded: bool) -> int:
    if not len(part):
        return 0
    return int(len(part) * lengths[part].max() if padded else lengths[part].sum())


def least(
    lengths: Lengths, costs: NDArray[np.float64], num_parts: int, cap: int | None, padded: bool, equal: bool
) -> float | None:
    """The dearest part of the best of all ways; None where none keeps the limit."""
    best: float | None = None
    for owners in product(range(num_parts), repeat=len(lengths)):
        parts = [np.flatnonzero(np.equal(owners, part)) for part in range(num_parts)]
        sizes = {len(part) for part in parts}
        if (equal and len(sizes) > 1) or (not equal and len(lengths) >= num_parts and 0 in sizes):
            continue
        if cap is not None and max(part_tokens(lengths, part, padded) for part in parts) > cap:
            continue
        dearest = max(part_cost(lengths, costs, part, padded) for part in parts)
        best = dearest if best is None else min(best, dearest)
    return best


@given(
    st.lists(st.integers(0, 20), max_size=6).map(lambda lengths: np.array(lengths, np.int64)),
    st.integers(1, 3),
    st.sampled_from(sorted(COSTS)),
    st.none() | st.integers(4, 60),
    st.booleans(),
    st.booleans(),
)
@examples(120)
def test_a_few_samples_are_dealt_as_well_as_brute_force_deals_them(
    lengths: Lengths, num_parts: int, cost: str, cap: int | None, padded: bool, equal: bool
) -> None:
    if equal and len(lengths) % num_parts:
        with pytest.raises(
            ValueError, match=f"{len(lengths)} samples cannot be shared out equally among {num_parts} parts"
        ):
            bf.balance(lengths, num_parts, equal_count=True)
        return
    costs = costs_of(lengths, cost)
    best = least(lengths, costs, num_parts, cap, padded, equal)

    def dealt() -> list[Lengths]:
        return bf.balance(lengths, num_parts, cost=COSTS[cost], max_tokens=cap, padded=padded, equal_count=equal)

    if best is None:
        with pytest.raises(ValueError, match="max_tokens="):
            dealt()
        return
    parts = dealt()
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert [part.dtype for part in parts] == [np.int64] * num_parts
    assert max(part_cost(lengths, costs, part, padded) for part in parts) == pytest.approx(best)


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(sorted(COSTS)))
@examples(60)
def test_a_limit_of_tokens_is_never_broken(seed: int, padded: bool, cost: str) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 200, draw.integers(1, 120))
    num_parts, cap = int(draw.integers(1, 12)), int(draw.integers(200, 4_000))
    try:
        parts = bf.balance(lengths, num_parts, cost=COSTS[cost], max_tokens=cap, padded=padded)
    except ValueError as error:
        found = re.search(rf"at most max_tokens={cap:,}: take ([\d,]+) parts", str(error))
        needed = int(found[1].replace(",", "")) if found else 0
        parts = bf.balance(lengths, needed, cost=COSTS[cost], max_tokens=cap, padded=padded)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert max(part_tokens(lengths, part, padded) for part in parts) <= cap
    assert all(len(part) for part in parts) or len(lengths) < len(parts)


@pytest.mark.parametrize("num_parts", [8, 64])
@pytest.mark.parametrize("cost", ["length", "attention"])
@pytest.mark.parametrize(
    "draw", [wiki, sft, lambda n, seed: np.random.default_rng(seed).pareto(1.2, n).astype(np.int64) + 1]
)
def test_parts_of_32_samples_are_within_2_percent_of_the_bound(num_parts: int, cost: str, draw: object) -> None:
    lengths = np.asarray(draw(32 * num_parts, 0))  # type: ignore[operator]
    costs = costs_of(lengths, cost)
    rising = np.sort(costs)
    for equal in (False, True):
        dearest = rising[-1] + (rising[:31].sum() if equal else 0)  # the part of the dearest sample costs no less
        parts = bf.balance(lengths, num_parts, cost=COSTS[cost], equal_count=equal)
        assert max(costs[part].sum() for part in parts) <= 1.02 * max(costs.sum() / num_parts, dearest)
        assert not equal or {len(part) for part in parts} == {32}


def test_a_sample_over_the_limit_is_named() -> None:
    with pytest.raises(bf.OverlongError, match=r"a sample of 9 tokens \(sample 1\) cannot fit max_tokens=8") as found:
        bf.balance([2, 9, 3], 2, max_tokens=8)
    assert found.value.sample == 1
    for padded, fact in ((False, "were not"), (True, "cannot be")):  # only of padded parts all ways are known
        words = f"3 samples of 18 tokens {fact} brought into 2 parts of at most max_tokens=8: take 3 parts"
        with pytest.raises(ValueError, match=re.escape(words)):
            bf.balance([6, 6, 6], 2, max_tokens=8, padded=padded)
    with pytest.raises(ValueError, match=re.escape("cost must be finite and not negative (cost(3) is nan)")):
        bf.balance([3, 4], 2, cost=lambda length: float("nan") if length == 3 else 1.0)


@pytest.mark.parametrize("cost", [bf.AttentionCost(quadratic=1e308), lambda length: 1e308])
def test_a_cost_that_is_infinite_in_a_sum_is_refused(cost: Any) -> None:
    for call in (lambda: bf.balance([3, 4], 2, cost=cost), lambda: bf.micro_batches([3, 4], 8, cost=cost)):
        with pytest.raises(ValueError, match=r"\(cost\(3\) is .*\), also in a sum of 2 samples"):
            call()


def test_a_limit_holds_where_a_cost_falls_with_length() -> None:
    lengths = [7, 6, 8, 1, 2]
    for cost in (lambda length: 1 / (length + 1), lambda length: float(length % 3)):
        parts = bf.balance(lengths, 3, cost=cost, max_tokens=8)
        assert sorted(sorted(lengths[sample] for sample in part) for part in parts) == [[1, 7], [2, 6], [8]]


@pytest.mark.parametrize(("num_ranks", "same", "counts"), [(1, True, [1]), (3, True, [1, 1, 1]), (3, False, [1, 0, 0])])
def test_ranks_without_a_sample_get_the_same_number_of_micro_batches(
    num_ranks: int, same: bool, counts: list[int]
) -> None:
    ranks = bf.micro_batches([], 8, num_ranks=num_ranks, same_count=same)
    assert [len(rank) for rank in ranks] == counts
    assert not any(len(part) for rank in ranks for part in rank)


def test_a_cost_that_no_float_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("cost must be finite and not negative (cost(3) is inf)")):
        bf.balance([3, 4], 2, cost=lambda length: 10**400)


def test_a_cost_of_several_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=re.escape("cost must give a number for a length (cost(3) is [3])")):
        bf.Packed(8, cost=lambda length: np.array([length])).plan([3, 4])  # type: ignore[arg-type, return-value]


@given(
    st.lists(st.integers(1, 10), min_size=1, max_size=6).map(lambda lengths: np.array(lengths, np.int64)),
    st.integers(10, 20),
    st.integers(1, 3),
    st.booleans(),
)
@examples(80)
def test_there_are_as_few_micro_batches_as_brute_force_finds(
    lengths: Lengths, cap: int, num_ranks: int, same: bool
) -> None:
    ranks = bf.micro_batches(lengths, cap, num_ranks=num_ranks, same_count=same)
    parts = [part for rank in ranks for part in rank]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert max(int(lengths[part].sum()) for part in parts) <= cap
    counts = [len(rank) for rank in ranks]
    fewest = next(n for n in range(1, 7) if least(lengths, lengths.astype(float), n, cap, False, False) is not None)
    if same:
        assert counts == [-(-fewest // num_ranks)] * num_ranks
    else:
        assert sum(counts) == fewest
        assert max(counts) - min(counts) <= 1


def test_micro_batches_cost_the_same_on_all_ranks_at_each_place() -> None:
    lengths = sft(512, 0)
    cost = bf.AttentionCost(quadratic=1 / 4096)
    ranks = bf.micro_batches(lengths, 16_384, num_ranks=8, cost=cost)
    costs = np.array([[sum(cost(1, length) for length in lengths[part].tolist()) for part in rank] for rank in ranks])
    assert (costs.max(axis=0) <= 1.02 * costs.mean(axis=0)).all()
    assert costs.sum(axis=1).max() <= 1.005 * costs.sum(axis=1).mean()


ALIKE: dict[str, Callable[[int], Lengths]] = {
    "equal": lambda count: np.full(count, 34),
    "33 and 34": lambda count: np.random.default_rng(0).integers(33, 35, count),
    "20 to 34": lambda count: np.random.default_rng(0).integers(20, 35, count),
}


@pytest.mark.parametrize("count", [4_097, 20_000])
@pytest.mark.parametrize("name", sorted(ALIKE))
def test_many_samples_of_like_lengths_keep_the_limit_in_few_micro_batches(name: str, count: int) -> None:
    lengths = ALIKE[name](count)
    (parts,) = bf.micro_batches(lengths, 100)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert max(int(lengths[part].sum()) for part in parts) <= 100
    threes = int((lengths == 33).sum()) // 2  # 33 + 33 + 34, while there are two of 33; the rest in pairs
    least = {
        "equal": -(-count // 2),
        "33 and 34": threes + -(-(count - 3 * threes) // 2),
        "20 to 34": int(lengths.sum()) / 100,
    }
    assert len(parts) <= (1.06 if name == "20 to 34" else 1.005) * least[name]


@pytest.mark.parametrize("name", ["equal", "33 and 34"])
def test_micro_batches_of_like_lengths_take_100_bytes_a_sample(name: str) -> None:
    lengths = ALIKE[name](100_000)
    assert peak(lambda: bf.micro_batches(lengths, 100)) <= 100 * len(lengths)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", sorted(ALIKE))
def test_few_numbers_of_micro_batches_are_tried(name: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    summed = dealing.summed

    def counted(work: Any, settled: float = dealing.SETTLED) -> Any:
        if len(work.costs) == 4_097 and work.num_parts > num_ranks:  # micro batches of the whole step
            tried.append(work.num_parts)
        return summed(work, settled)

    monkeypatch.setattr(micro, "summed", counted)
    ranks = bf.micro_batches(ALIKE[name](4_097), 100, num_ranks=num_ranks)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(tried) <= 16
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("num_parts", [64, 1_024, 4_095])
def test_a_quadratic_cost_takes_a_few_megabytes(num_parts: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 2_001, 4_096)
    assert peak(lambda: bf.balance(lengths, num_parts, cost=ATTENTION)) <= 4e6


def peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
