"""Whole steps: limits, units and counts are always kept, and few samples are dealt as well as brute force deals them."""

from __future__ import annotations

import re
import tracemalloc
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import brimful as bf
from benchmarks.plan import sft
from benchmarks.planners import KINDS, PLANNERS, WORK, Ranks, work
from tests.effort import SOAK, times

Ints = NDArray[np.int64]
ATTENTION = bf.AttentionCost(quadratic=1 / 10)

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a quadratic cost": {"cost": ATTENTION},
    "costs of samples": {"own_costs": True},
    "several limits": {"limits": 2},
    "limits of images and samples": {"limits": 2, "samples": True},
    "units": {"units": "micro_batch"},
    "units within limits of samples": {"units": "micro_batch", "samples": True},
    "units on a rank": {"units": "rank"},
    "units on a rank, several limits": {"units": "rank", "limits": 2},
    "multiples": {"multiple_of": 2},
    "other counts": {"same_count": False},
    "other counts in multiples": {"same_count": False, "multiple_of": 2},
    "padded": {"padded": True},
    "padded units": {"padded": True, "units": "micro_batch", "cost": ATTENTION},
    "padded units on a rank": {"padded": True, "units": "rank"},
    "one of two is padded": {"padded": "tokens", "limits": 2},
    "steps": {"steps": True},
    "steps of units": {"steps": True, "units": "micro_batch"},
}


def case(
    form: dict[str, Any], draw: np.random.Generator, most: int, ranks: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for `steps`: at most so many samples, that fit."""
    settings = {name: form[name] for name in ("multiple_of", "same_count", "padded", "cost") if name in form}
    num_ranks = int(draw.integers(1, ranks + 1))
    count = int(draw.integers(num_ranks, most + 1))
    longest = int(draw.choice([6, 20, 300]))
    lengths = draw.integers(0, longest + 1, count)
    if draw.random() < 0.3:
        lengths = np.minimum(lengths, draw.pareto(1.0, count) * longest / 8).astype(np.int64)
    limits = {"tokens": int(max(1, lengths.max()) * draw.uniform(1, 3))}
    sizes = {"tokens": lengths}
    if form.get("limits") == 2:
        sizes["images"] = draw.integers(0, 5, count)
        limits["images"] = int(draw.integers(4, 12))
    if "units" in form:
        numbers = np.sort(draw.integers(0, max(num_ranks, count // 2), count))
        groups = np.unique(numbers, return_index=True)[1]
        if len(groups) < num_ranks:
            numbers, groups = np.arange(count), np.arange(count)
        settings |= {"units": numbers, "units_within": form["units"]}
        if form["units"] == "micro_batch":
            counts = np.diff(groups, append=count)
            for name, own in sizes.items():
                large = np.add.reduceat(own, groups)
                if form.get("padded"):
                    large = counts * np.maximum(np.maximum.reduceat(own, groups), 1)
                limits[name] = max(limits[name], int(large.max()))
    if form.get("samples"):
        limits["samples"] = int(draw.integers(1, 4))
        if "units" in form:
            limits["samples"] += int(np.bincount(settings["units"]).max())
    if form.get("own_costs"):
        settings["cost"] = draw.integers(0, 9, count).astype(float)
    if form.get("steps"):
        least = num_ranks
        if "units" in form:
            sizes_of = np.bincount(settings["units"])
            least = int(np.sort(sizes_of)[-num_ranks:].sum()) + int(sizes_of.max())
        settings["samples_per_step"] = least + int(draw.integers(0, 2 * most))
    return (sizes, limits, num_ranks), settings


def planned(arguments: tuple[Any, ...], settings: dict[str, Any]) -> bf.Steps | None:
    """The plan; None where the last of several steps has too few samples."""
    try:
        return bf.steps(*arguments, **settings)
    except ValueError as error:
        if "samples_per_step" in settings and "no rank may be empty" in str(error):
            return None
        raise


def costs_of(lengths: Ints, settings: dict[str, Any]) -> NDArray[np.float64]:
    cost = settings.get("cost")
    if cost is None:
        return lengths.astype(float)
    found: NDArray[np.float64] = np.array([cost(1, one) for one in lengths.tolist()], float) if callable(cost) else cost
    return found


def check(plan: bf.Steps, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """Every sample once, and all rules kept."""
    sizes, limits, num_ranks = arguments
    lengths = sizes["tokens"]
    padded = settings.get("padded", False)
    costs = costs_of(lengths, settings)
    assert sorted(plan.numbers.tolist()) == list(range(len(lengths)))
    assert len(plan.batches) == len(plan)
    units = settings.get("units", np.arange(len(lengths)))
    whole = settings.get("units_within", "micro_batch") == "micro_batch"
    homes: dict[int, set[tuple[int, ...]]] = {}
    for step, ranks in enumerate(plan.batches):
        counts = [len(parts) for parts in ranks]
        assert counts == plan.counts[step].tolist()
        assert len(counts) == num_ranks
        assert all(count % settings.get("multiple_of", 1) == 0 for count in counts)
        spread = 0 if settings.get("same_count", True) else settings.get("multiple_of", 1)
        assert max(counts) - min(counts) <= spread
        for rank, parts in enumerate(ranks):
            assert any(map(len, parts))
            load = 0.0
            own_costs = []
            for place, part in enumerate(parts):
                assert (plan.step[part] == step).all()
                assert (plan.rank[part] == rank).all()
                assert (plan.micro_batch[part] == place).all()
                for sample in part.tolist():
                    homes.setdefault(int(units[sample]), set()).add((step, rank, *([place] if whole else [])))
                if not len(part):
                    own_costs.append(0.0)
                    continue
                for name, limit in limits.items():
                    own = np.ones(len(part), np.int64) if name == "samples" else sizes[name][part]
                    pads = name != "samples" and (padded is True or padded == name)
                    assert (len(part) * max(1, own.max()) if pads else own.sum()) <= limit
                own_costs.append(float(len(part) * costs[part].max() if padded else costs[part].sum()))
            load = sum(own_costs)
            assert own_costs == pytest.approx(sorted(own_costs, reverse=True))
            assert load == pytest.approx(plan.loads[step, rank])
            samples = sum(map(len, parts))
            if not whole:
                assert all(map(len, parts)) or samples < len(parts)
        if whole:
            in_step = len(np.unique(units[plan.step == step]))
            assert all(len(part) for parts in ranks for part in parts) or in_step < sum(counts)
    assert all(len(home) == 1 for home in homes.values())
    if "samples_per_step" in settings:
        held = np.bincount(plan.step)
        assert held.max() <= settings["samples_per_step"]
        assert (np.diff(plan.step) >= 0).all()
        if "units" not in settings:
            assert (held[:-1] == settings["samples_per_step"]).all()


@cache
def all_ways(count: int, parts: int) -> Ints:
    """Each way to deal so many samples to parts, (parts ** count, count)."""
    grid = np.indices((parts,) * count).reshape(count, -1)
    found: Ints = np.ascontiguousarray(grid.T)
    return found


def best(arguments: tuple[Any, ...], settings: dict[str, Any], counts: list[int]) -> float | None:
    """The least greatest load of a rank, of all ways to deal a step to so many micro batches; None where none keeps the rules."""
    sizes, limits, num_ranks = arguments
    lengths, padded = sizes["tokens"], settings.get("padded", False)
    costs = costs_of(lengths, settings)
    ways = all_ways(len(lengths), sum(counts))
    rank_of = np.repeat(np.arange(num_ranks), counts)
    ranks = rank_of[ways]
    good = np.ones(len(ways), bool)
    for rank in range(num_ranks):
        good &= (ranks == rank).any(axis=1)
    units = settings.get("units", np.arange(len(lengths)))
    whole = settings.get("units_within", "micro_batch") == "micro_batch"
    if whole and len(np.unique(units)) >= sum(counts):  # then none is empty
        for part in range(sum(counts)):
            good &= (ways == part).any(axis=1)
    where = ways if whole else ranks
    for one, other in zip(range(len(lengths)), range(1, len(lengths))):
        if units[one] == units[other]:
            good &= where[:, one] == where[:, other]
    loads = np.zeros((len(ways), num_ranks))
    for part in range(sum(counts)):
        inside = ways == part
        held = inside.sum(axis=1)
        for name, limit in limits.items():
            own = np.ones(len(lengths), np.int64) if name == "samples" else sizes[name]
            pads = name != "samples" and (padded is True or padded == name)
            taken = held * (inside * np.maximum(own, 1)).max(axis=1) if pads else inside @ own
            good &= taken <= limit
        loads[:, rank_of[part]] += held * (inside * costs).max(axis=1) if padded else inside @ costs
    return float(loads[good].max(axis=1).min()) if good.any() else None


def counts_of(number: int, num_ranks: int, multiple_of: int) -> list[int]:
    rounds, more = divmod(number // multiple_of, num_ranks)
    return [multiple_of * (rounds + (rank < more)) for rank in range(num_ranks)]


@pytest.mark.parametrize("name", [name for name in FORMS if "steps" not in name])
def test_few_samples_are_dealt_as_brute_force_deals_them(name: str) -> None:
    form, draw = FORMS[name], np.random.default_rng(1 if not SOAK else None)
    tried = worse = 0
    for _ in range(times(60, 5_000)):
        arguments, settings = case(form, draw, 5, 2)
        num_ranks, multiple = arguments[2], settings.get("multiple_of", 1)
        plan = bf.steps(*arguments, **settings)
        check(plan, arguments, settings)
        stride = multiple * (num_ranks if settings.get("same_count", True) else 1)
        used, fewest = int(plan.counts.sum()), num_ranks * multiple
        while best(arguments, settings, counts_of(fewest, num_ranks, multiple)) is None:
            fewest += stride
        assert used <= fewest + stride
        least = best(arguments, settings, plan.counts[0].tolist())
        assert least is not None
        tried, worse = tried + 1, worse + (plan.loads.max() > 1.02 * least + 1e-9)
    assert worse <= 0.01 * tried


@pytest.mark.parametrize("name", FORMS)
def test_limits_units_and_counts_are_always_kept(name: str) -> None:
    draw = np.random.default_rng(2 if not SOAK else None)
    for number in range(times(60, 100_000 // len(FORMS))):
        arguments, settings = case(FORMS[name], draw, 200 if number % 4 == 0 else 30, 6)
        plan = planned(arguments, settings)
        if plan is not None:
            check(plan, arguments, settings)


def test_a_plan_is_a_function_of_its_input_which_is_left_alone() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 400)
    lengths.flags.writeable = False
    units = np.arange(400) // 4
    for settings in ({}, {"units": units}, {"units": units, "units_within": "rank"}, {"padded": True}):
        one, other = (bf.steps(lengths.copy() if copy else lengths, 4_000, 4, **settings) for copy in (False, True))
        for name in ("step", "micro_batch", "rank", "counts", "loads"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_sizes_by_name_and_in_columns_are_the_same() -> None:
    tokens, images = np.random.default_rng(0).integers(1, 9, (2, 60))
    limits = {"tokens": 40, "samples": 8, "images": 20}
    named = bf.steps({"images": images, "tokens": tokens}, limits, 3)
    columns = bf.steps(np.stack([tokens, images], axis=1), limits, 3)
    assert np.array_equal(named.numbers, columns.numbers)
    assert np.array_equal(named.bounds, columns.bounds)
    assert max(len(part) for rank in named.batches[0] for part in rank) <= 8


def test_micro_batches_are_those_of_one_step() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 300)
    ranks = bf.micro_batches(lengths, 4_000, num_ranks=4, cost=ATTENTION)
    (step,) = bf.steps(lengths, 4_000, 4, cost=ATTENTION).batches
    assert [[sorted(part.tolist()) for part in rank] for rank in ranks] == [
        [part.tolist() for part in rank] for rank in step
    ]


def test_most_samples_of_a_micro_batch_alone_can_be_limited() -> None:
    plan = bf.steps([5, 9, 2, 7, 4, 4], {"samples": 2}, 1)
    assert plan.counts.tolist() == [[3]]
    assert [len(part) for part in plan.batches[0][0]] == [2, 2, 2]


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (
        ([5, 6], 8, 3),
        {},
        ValueError,
        "step 0 has 2 samples for 3 ranks, and no rank may be empty; take fewer ranks, or",
    ),
    (([5, 6, 7], 9, 2), {"samples_per_step": 2}, ValueError, "step 1 has 1 sample for 2 ranks"),
    (([5, 6, 7], 40, 2), {"units": [1, 1, 1]}, ValueError, "step 0 has 1 unit for 2 ranks"),
    (([], 40, 2), {}, ValueError, "step 0 has 0 samples for 2 ranks"),
    (
        ([5, 60], 40, 1),
        {},
        bf.OverlongError,
        "a sample of 60 tokens (sample 1) cannot fit tokens=40; filter it, or raise",
    ),
    (([5, 30, 20], 40, 1), {"units": [0, 1, 1]}, bf.OverlongError, "a unit of 2 samples (sample 1) has 50 in sum"),
    (
        ([5, 30, 10], 50, 1),
        {"units": [0, 1, 1], "padded": True},
        bf.OverlongError,
        "a unit of 2 samples (sample 1) is padded to 30 tokens each, 60 in all, and cannot fit tokens=50; filter it, or",
    ),
    (
        ([5, 3, 1], 50, 1),
        {"units": [0, 1, 1], "samples_per_step": 1},
        bf.OverlongError,
        "a unit of 2 samples (sample 1) cannot fit samples_per_step=1, and no step may part it; filter it, or take more",
    ),
    (([5], 8, 0), {}, ValueError, "num_ranks must be at least 1 rank (got 0)"),
    (([5], 0, 1), {}, ValueError, "limits must be at least 1 token (got 0)"),
    (([5], 1 << 62, 1), {}, ValueError, "limits must be at most 1,099,511,627,776"),
    (([5, 6], 40, 1 << 40), {}, ValueError, "step 0 has 2 samples for 1,099,511,627,776 ranks"),
    (
        ({"tokens": [[1, 2], [3, 4]]}, 8, 1),
        {},
        ValueError,
        "sizes['tokens'] takes one length a sample (got shape (2, 2))",
    ),
    (([5], {}, 1), {}, ValueError, "limits must be at least 1: limits=16_384, or"),
    (([5], 8, 1), {"multiple_of": 0}, ValueError, "multiple_of must be at least 1 micro batch (got 0)"),
    (([5], 8, 1), {"same_count": 1}, TypeError, "same_count must be True or False (got 1)"),
    (([5], 8, 1), {"units_within": "step"}, ValueError, "units_within must be one of micro_batch, rank (got 'step')"),
    (([5], 8, 1), {"units": [1, 2]}, ValueError, "units has a number for each of 1 sample"),
    (([5], 8, 1), {"padded": "images"}, ValueError, "padded names 'images', and the limits are of tokens"),
    (
        ([5], 8, 1),
        {"cost": [1.0, 2.0]},
        ValueError,
        "cost has a number for each of 1 sample (got an array of float64 (2,))",
    ),
    (([5], 8, 1), {"cost": [float("nan")]}, ValueError, "cost must be finite and not negative (sample 0 has nan)"),
    (([[5, 1]], 8, 1), {}, ValueError, "the limits are of 1 sizes, tokens (got shape (1, 2))"),
    (({"words": [5]}, 8, 1), {}, ValueError, "the sizes are words, and the limits are of tokens"),
]


@pytest.mark.parametrize(("arguments", "settings", "error", "words"), REFUSED)
def test_what_cannot_be_planned_is_refused(
    arguments: tuple[Any, ...], settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        bf.steps(*arguments, **settings)


def test_a_million_samples_take_150_megabytes() -> None:
    lengths = sft(1_000_000, 0)
    tracemalloc.start()
    try:
        plan = bf.steps(lengths, 16_384, 1_024)
        assert tracemalloc.get_traced_memory()[1] <= 150e6
    finally:
        tracemalloc.stop()
    filled = np.bincount(plan.counts.max() * plan.rank + plan.micro_batch, lengths)
    assert filled.max() <= 16_384
    assert len(filled) == plan.counts.sum() == np.count_nonzero(filled)
    assert plan.imbalance <= 1.0005
    assert len(filled) <= -(-int(lengths.sum()) // 16_384) + 1_024


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [8, 16])
def test_no_planner_of_another_project_is_better(kind: str, ranks: int) -> None:
    lengths = KINDS[kind](32 * ranks, 0)
    limit, costs = 2 * int(lengths.max()), work(lengths)

    def judged(found: Ranks) -> tuple[float, int]:
        loads = [sum(costs[part].sum() for part in parts) for parts in found]
        return max(loads) / float(np.mean(loads)), max(map(len, found))

    greatest, number = judged(PLANNERS["brimful"](lengths, limit, ranks))
    for name, plan in PLANNERS.items():
        other, others = judged(plan(lengths, limit, ranks))
        assert number <= others, name
        assert greatest <= 1.001 * other or number < others, name


def test_several_limits_of_many_samples_are_nearly_full() -> None:
    draw = np.random.default_rng(0)
    sizes, limits = {"tokens": sft(12_000, 0), "images": draw.integers(0, 5, 12_000)}, {"tokens": 16_384, "images": 64}
    plan = bf.steps(sizes, limits, 8)
    part = np.cumsum(plan.counts[0])[plan.rank] - plan.counts[0][plan.rank] + plan.micro_batch
    for name, limit in limits.items():
        assert np.bincount(part, sizes[name]).max() <= limit
    fewest = max(int(own.sum()) / limits[name] for name, own in sizes.items())
    assert plan.counts.sum() <= 1.06 * fewest + 8
    assert plan.imbalance <= 1.005


def test_ranks_of_padded_micro_batches_and_of_many_samples_have_equal_work() -> None:
    assert bf.steps(KINDS["lognormal"](512, 0), 8_192, 8, padded=True, cost=WORK).imbalance <= 1.003
    assert bf.steps(KINDS["WikiText"](100_000, 0), 1_024, 64, cost=WORK).imbalance <= 1.0003
