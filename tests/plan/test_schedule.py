"""Mixtures whose weights change: counts, orders and resumes against plain Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import brimful as bf
from brimful.plan.schedule import Schedule, Segment, segments_of
from tests.effort import times


def oracle(counts: list[int], plan: Any, stop: str, most: int = 600) -> list[tuple[int, int]]:
    """The sources of all rows in turn, each with the number of its row: by the definition, a row at a time."""
    segments = segments_of(plan)
    waited = [weight > 0 for weight in segments[-1].weights]
    size = len(counts)
    number, at = 0, 0
    served, owed, given, rounds = [0] * size, [0.0] * size, [0] * size, [0] * size
    ended, passed = [False] * size, [False] * size
    out: list[tuple[int, int]] = []

    def change() -> None:
        nonlocal number, served, owed, passed
        here = [k for k in range(size) if not passed[k] and not (stop == "all" and ended[k])]
        weights = segments[number].weights
        whole = sum(Fraction(weights[k]) for k in here)
        total = sum(served[k] for k in here)
        owed = [
            float(
                Fraction(owed[k]) + (total * Fraction(weights[k]) / whole if whole else 0) - (served[k] if whole else 0)
            )
            if k in here
            else 0.0
            for k in range(size)
        ]
        served, passed, number = [0] * size, [False] * size, number + 1

    while len(out) < most:
        while number + 1 < len(segments) and at >= segments[number + 1].start:
            change()
        weights = segments[number].weights
        alive = [k for k in range(size) if not (stop == "all" and ended[k])]
        if not alive:
            break
        time = {k: (served[k] + (0.5 - owed[k])) / weights[k] if weights[k] else float("inf") for k in alive}
        k = min(alive, key=lambda source: (time[source], source))
        if not weights[k]:
            later = [n for n in range(number + 1, len(segments)) if any(segments[n].weights[j] > 0 for j in alive)]
            if not later:
                break
            at = segments[number + 1].start
            change()
            continue
        if given[k] == counts[k] * (rounds[k] + 1):
            if stop == "first":
                break
            ended[k] = True
            if stop == "all":
                continue
            if all(one or not waits for one, waits in zip(ended, waited)):
                break
            rounds[k] += 1
            if not counts[k]:
                passed[k] = True
                after = min(time[j] for j in alive if j != k)
                served[k] = max(served[k] + 1, int(min(after * weights[k], 1 << 53)))
            continue
        out.append((k, given[k] % counts[k]))
        given[k] += 1
        served[k] += 1
        at += 1
    return out


def random_plan(draw: Random) -> tuple[list[int], Any, str]:
    size = draw.randint(1, 4)
    counts = [draw.choice([0, 1, 3, 17, 40]) if draw.random() < 0.5 else draw.randint(1, 60) for _ in range(size)]
    between = draw.choice(["step", "step", "linear"])
    starts = [0, *sorted(draw.sample(range(1, 120), draw.randint(0, 4)))]
    points = {}
    for start in starts:
        weights = [draw.choice([0, 1, 2, 0.01, 1 / 3, draw.random(), 7]) for _ in range(size)]
        points[start] = weights if any(weights) else [1] * size
    stop = draw.choice(["first", "all", "all_repeat"])
    if stop == "all_repeat":  # a data set without a row is an error after 1,000 epochs
        counts = [max(count, 1) for count in counts]
    return counts, bf.schedule(points, between=between), stop


def sources(counts: list[int], streamed: bool) -> list[Any]:
    made = [bf.from_sequence([{"of": k, "row": row} for row in range(count)]) for k, count in enumerate(counts)]
    return [one.stream().take(len(one)) for one in made] if streamed else made


def rows_of(data: Any) -> list[tuple[int, int]]:
    return [(int(row["of"]), int(row["row"])) for row in data]


@pytest.mark.parametrize("seed", range(times(200, 5_000)))
def test_random_schedules_are_served_as_they_say_at_every_place_and_after_every_resume(seed: int) -> None:
    draw = Random(seed)
    counts, plan, stop = random_plan(draw)
    expected = oracle(counts, plan, stop)
    if not any(counts) or len(expected) == 600:
        return
    indexed = bf.interleave_datasets(sources(counts, False), weights=plan, stop=stop)
    assert len(indexed) == len(expected)
    assert rows_of(indexed) == expected
    first = draw.randrange(len(expected) + 1)
    last = draw.randrange(first, len(expected) + 1)
    assert rows_of(indexed[first:last]) == expected[first:last]
    streamed = bf.interleave_datasets(sources(counts, True), weights=plan, stop=stop)
    found, states = [], []
    with streamed.iter() as it:
        for row in it:
            found.append((int(row["of"]), int(row["row"])))
            states.append(json.dumps(it.state_dict()))
    assert found == expected
    for at in draw.sample(range(len(states)), min(4, len(states))):
        assert rows_of(streamed.iter(json.loads(states[at]))) == expected[at + 1 :]


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_that_gives_nothing_passes_its_turns_on() -> None:
    plan = bf.schedule({0: [1, 3, 2], 9: [2, 1, 1], 30: [1, 0, 1]})
    expected = oracle([7, 0, 11], plan, "all_repeat")
    for streamed in (False, True):
        data = bf.interleave_datasets(sources([7, 0, 11], streamed), weights=plan, stop="all_repeat")
        with data.iter() as it:
            found, states = [], []
            for row in it:
                found.append((int(row["of"]), int(row["row"])))
                states.append(json.dumps(it.state_dict()))
        assert found == expected
        for place, state in enumerate(states):
            assert rows_of(data.iter(json.loads(state))) == expected[place + 1 :]


@pytest.mark.parametrize(
    ("counts", "points"),
    [
        ((3, 1), {0: [0, 1], 2: [1, 0], 10: [1, 1]}),  # it has begun again with the last row before a change
        ((0, 1), {0: [1, 0], 4: [1, 1]}),
        ((0, 2, 0), {0: [1, 0, 2], 4: [1, 1, 0], 9: [0, 1, 1]}),
        ((0, 2), {0: [1, 1], 4: [0, 1]}),
        ((2, 0, 3), {0: [1, 0, 0], 2: [0, 1, 0], 5: [0, 0, 1], 7: [1, 0, 1]}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_streams_and_an_index_end_together_where_data_begin_again(counts: Any, points: Any) -> None:
    plan = bf.schedule(points)
    streamed, indexed = (
        bf.interleave_datasets(sources([*counts], kind), weights=plan, stop="all_repeat") for kind in (True, False)
    )
    found, states = [], []
    with streamed.iter() as it:
        for row in it:
            found.append((int(row["of"]), int(row["row"])))
            states.append(json.dumps(it.state_dict()))
    assert rows_of(indexed) == found
    assert len(indexed) == len(found) > 0
    for place, state in enumerate(states):
        assert rows_of(streamed.iter(json.loads(state))) == found[place + 1 :]


def endless(count: int, **more: Any) -> list[Any]:
    return [bf.from_sequence([{"of": k} | more] * (k + 2), repeat=True) for k in range(count)]


def shares(plan: Schedule) -> Iterator[list[float]]:
    """What each source should have given before each place, from 1 on."""
    found = [0.0] * len(plan.points[0].weights)
    for here, after in pairwise([*plan.segments, Segment(1 << 40, ())]):
        each = [weight / sum(here.weights) for weight in here.weights]
        for _ in range(here.start, after.start):
            found = [one + share for one, share in zip(found, each)]
            yield found


@pytest.mark.parametrize(
    ("points", "between", "off"),
    [
        ({0: [3, 1], 200: [1, 1], 700: [1, 9]}, "step", 0.5),
        ({0: [3, 1], 700: [1, 9]}, "linear", 0.75),
        ({0: [1, 0], 300: [0.01, 1], 301: [1, 0], 600: [1, 1]}, "step", 0.75),
        ({0: [100, 1, 1e-3], 500: [1, 1, 1e-2], 900: [0, 1, 5]}, "step", 1.1),
        ({0: [5, 1, 1, 1, 0], 800: [0, 1, 1, 5, 2]}, "linear", 1.3),
    ],
)
def test_counts_follow_the_schedule_at_each_place_small_weights_too(points: Any, between: Any, off: float) -> None:
    plan = bf.schedule(points, between=between)
    served = [0] * len(points[0])
    data = bf.interleave_datasets(endless(len(served)), weights=plan).take(1_200)
    for place, (row, expected) in enumerate(zip(data, shares(plan))):
        served[row["of"]] += 1
        assert max(abs(given - share) for given, share in zip(served, expected)) <= off + 1e-9, place


def test_a_line_has_a_thousand_steps_at_most_and_ends_where_it_should() -> None:
    plan = bf.schedule({0: [1, 0], 10_000_000: [0, 1]}, between="linear")
    starts = [segment.start for segment in plan.segments]
    assert (len(starts), starts[:2], starts[-1]) == (1_001, [0, 10_000], 10_000_000)
    assert (plan.segments[0].weights, plan.segments[-1].weights) == ((0.9995, 0.0005), (0.0, 1.0))
    assert len(bf.schedule({0: [1, 0], 3: [0, 1]}, between="linear").segments) == 4


@pytest.mark.parametrize("streams", [2, 3])
def test_streams_each_follow_their_part(tmp_path: Any, streams: int) -> None:
    for k in range(2):
        for shard in range(6):
            (tmp_path / f"{k}-{shard}.jsonl").write_text(f'{{"of": {k}}}\n' * 7)
    sources = [bf.from_files(f"{tmp_path}/{k}-*.jsonl", streams=streams, repeat=True) for k in range(2)]
    plan = bf.schedule({0: [1, 0], 100: [1, 3]})
    batches = bf.interleave_datasets(sources, weights=plan).batch(1)
    served = [0, 0]
    for batch, expected in zip(batches.take(400), shares(plan)):
        served[int(batch["of"])] += 1
        assert all(abs(given - share) <= streams for given, share in zip(served, expected))


def test_by_tokens_weights_change_with_the_row_that_reaches_the_point() -> None:
    lengths = [3, 5]
    made = [
        bf.from_iterable([{"of": k, "input_ids": [0] * length}] * 50, repeat=True) for k, length in enumerate(lengths)
    ]
    plan = bf.schedule({0: [1, 0], 20: [1, 1], 100: [0, 1]}, by="tokens")
    data = bf.interleave_datasets(made, weights=plan).take(40)
    with data.iter() as it:
        found, states = [], []
        for row in it:
            found.append(int(row["of"]))
            states.append(json.dumps(it.state_dict()))
    tokens = [sum(lengths[k] for k in found[:place]) for place in range(len(found) + 1)]
    begins = next(place for place, total in enumerate(tokens) if total >= 20)
    ends = next(place for place, total in enumerate(tokens) if total >= 100)
    assert (found[:begins], found[ends + 2 :]) == ([0] * 7, [1] * (38 - ends))
    middle = [sum(lengths[k] for k in found[begins:ends] if k == source) for source in (0, 1)]
    assert abs(middle[0] - middle[1]) <= 8
    for place, state in enumerate(states):
        assert [int(row["of"]) for row in data.iter(json.loads(state))] == found[place + 1 :]


def test_other_schedules_at_a_resume_begin_where_the_state_has_no_row_in_hand() -> None:
    """Every row once, and the shares of each schedule where it holds."""
    for seed in range(times(30, 1_000)):
        draw = Random(seed)
        size = draw.randint(2, 3)
        before, after = (
            bf.schedule({0: [1] * size, draw.randint(1, 40): [draw.randint(1, 9) for _ in range(size)]})
            for _ in range(2)
        )

        def made(plan: Schedule, size: int = size) -> bf.Batches:
            rows = [[{"of": k, "row": row} for row in range(60)] for k in range(size)]
            mixed = bf.interleave_datasets([bf.from_iterable(one) for one in rows], weights=plan, stop="all")
            return mixed.batch(3)

        at = draw.randint(1, 30)
        with made(before).iter() as it:
            first = [next(it) for _ in range(at)]
            state = json.loads(json.dumps(it.state_dict()))
        rest = list(made(after).iter(state, allow={"weights"}))
        found = [(int(k), int(row)) for batch in first + rest for k, row in zip(batch["of"], batch["row"])]
        for k in range(size):
            assert [row for of, row in found if of == k] == list(range(60)), seed


@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ({}, {}, "a schedule begins at 0 (got no point)"),
        ({5: [1]}, {}, "a schedule begins at 0 (got 5)"),
        ({0: [1, 1], 5: [1]}, {}, "a schedule has as many weights everywhere (got 2 at 0 and 1 at 5)"),
        ({0: [1, -1]}, {}, "weights must be 0 or more, and one of them positive (got [1.0, -1.0] at 0)"),
        ({0: [0, 0]}, {}, "weights must be 0 or more, and one of them positive (got [0.0, 0.0] at 0)"),
        ({0: [1, 1]}, {"by": "rows"}, "by must be one of samples, tokens (got 'rows')"),
    ],
)
def test_what_is_no_schedule_is_refused(points: Any, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        bf.schedule(points, **options)


def test_schedules_that_fit_no_mixture_are_refused() -> None:
    one = bf.from_sequence(["a"])
    with pytest.raises(ValueError, match=r"^there must be a weight for each of 2 data sets \(got 3\)"):
        bf.interleave_datasets([one, one], weights=bf.schedule({0: [1, 1, 1]}))
    with pytest.raises(ValueError, match=r"^the weights are scheduled by samples, and by='tokens' was given"):
        bf.interleave_datasets([one, one], weights=bf.schedule({0: [1, 1]}), by="tokens")


def test_a_state_says_which_schedule_it_has() -> None:
    def made(points: Any) -> Any:
        return bf.interleave_datasets(endless(2), weights=bf.schedule(points)).batch(2)

    with made({0: [1, 1]}).iter() as it:
        next(it)
        state = it.state_dict()
    with pytest.raises(bf.StateError, match=r"interleave_datasets.weights.points\[0\]"):
        made({0: [1, 2]}).iter(state)
