"""Whole steps: limits, units and counts are always kept, and few samples are dealt as well as brute force deals them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import brimful as bf
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
