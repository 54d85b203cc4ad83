"""A policy that learns: lessons count from the window after the next on, whatever reads ahead and wherever a run is resumed."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.errors import StateError
from brimful.core.iterator import ResumableIterator
from brimful.core.states import sealed
from brimful.plan import OverlongError
from tests.effort import examples

SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (4, 16, 64)]
LIMIT = 1.2e6
WINDOW = 12
ROWS = 70
LENGTHS = (np.arange(ROWS) * 37 % 61 + 1).tolist()
Tell = Callable[[Any, Any], None]


def model_of(scale: float = 1.0) -> bf.MemoryModel:
    return bf.MemoryModel.fit(SHAPES, [2e5 + scale * batch * 2000 * length for batch, length in SHAPES])


def budget(learn: bool = True, **settings: Any) -> bf.MemoryBudget:
    return bf.MemoryBudget(model_of(), settings.pop("limit_bytes", LIMIT), learn=learn, **settings)


def rows(**settings: Any) -> bf.Dataset:
    samples = [{"input_ids": [number] * length} for number, length in enumerate(LENGTHS)]
    return bf.from_sequence(samples, **settings)


def streamed() -> bf.Dataset:
    return rows().filter(lambda sample: True).map(lambda sample: sample, max_workers=1)


def peak_of(batch: Any) -> float:
    """Grows by a half over the run; one in eleven runs out of memory."""
    size, length = batch["input_ids"].shape
    first = int(batch["input_ids"].max())
    return math.inf if first % 11 == 3 else 2e5 + size * 2600 * length * (1 + first / ROWS)


def numbers(batch: Any) -> tuple[tuple[int, ...], int]:
    """The samples of a batch, by their tokens, and its padded length."""
    return tuple(batch["input_ids"][:, 0].tolist()), int(batch["input_ids"].shape[1])


def told(it: Any, limit: int | None = None) -> Iterator[Any]:
    """The batches of an iterator that is told what each took."""
    for count, batch in enumerate(it, 1):
        it.learn(batch, peak_of(batch))
        yield numbers(batch)
        if count == limit:
            return


def collate(samples: list[dict[str, Any]]) -> Any:
    import torch

    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [np.pad(sample["input_ids"], (0, longest - len(sample["input_ids"])), mode="edge") for sample in samples]
    return {"input_ids": torch.tensor(np.array(ids))}


PIPELINES: dict[str, Callable[[], bf.Batches]] = {
    "indexed": lambda: rows().batch(budget(), window=WINDOW),
    "shuffled, in groups": lambda: rows(shuffle=True).batch(budget(), window=WINDOW, group=2),
    "streamed": lambda: streamed().batch(budget(), window=WINDOW),
    "prefetched": lambda: rows().batch(budget(), window=WINDOW).prefetch(1),
    "deeper than windows": lambda: streamed().batch(budget(), window=WINDOW).prefetch(64),
    "on the device": lambda: rows().batch(budget(), window=WINDOW).to_device("cpu", prefetch=3),
    "two threads": lambda: rows().batch(budget(), window=WINDOW).prefetch(5).to_device("cpu", prefetch=9),
    "by workers": lambda: rows().batch(budget(), window=2, collate_fn=collate, max_workers=3),
    "by workers, ahead": lambda: rows().batch(budget(), window=3, collate_fn=collate, max_workers=2).prefetch(3),
    "by a function, ahead": lambda: streamed().batch(budget(), window=WINDOW, collate_fn=collate).prefetch(9),
    "of one rank": lambda: rows().batch(budget(), window=5).shard(0, 1).prefetch(3),
    "of one rank by workers": lambda: rows().batch(budget(), window=3, collate_fn=collate, max_workers=2).shard(0, 1),
    "over epochs": lambda: rows(repeat=True).batch(budget(), window=WINDOW).prefetch(4).take(60),
    "over streamed epochs": lambda: streamed().batch(budget(), window=WINDOW).take(9),
    "friendly, rounded": lambda: rows().batch(budget(batch_sizes="friendly"), window=WINDOW, pad_to_multiple_of=8),
    "by a reference": lambda: rows().batch(
        bf.MemoryBudget(model_of(), reference=(6, 40), learn=True), window=WINDOW, drop_last=True
    ),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_that_is_told_lessons_goes_on_exactly_from_any_place(pipeline: str) -> None:
    make = PIPELINES[pipeline]
    with make().iter() as it:
        states, whole = [it.state_dict()], []
        for batch in told(it):
            states.append(json.loads(json.dumps(it.state_dict())))
            whole.append(batch)
    assert len(whole) > 8
    for place in [*range(0, len(states), 3), len(states) - 1]:
        with make().iter(states[place]) as it:
            assert list(told(it)) == whole[place:], place


def by_definition(policy: bf.MemoryBudget, tell: bool) -> list[tuple[tuple[int, ...], int]]:
    """The batches of the rows in their order: what was told in window w counts from w + 2 on."""
    ends = [*range(0, ROWS, WINDOW), ROWS]
    models = [policy.taught(policy.model)] * 2
    found = []
    for start, end in pairwise(ends):
        plan = models[-2].plan(LENGTHS[start:end])
        known = models[-1]
        for batch, length in zip(plan.batches, plan.padded_lengths.tolist()):
            numbers_of = tuple((batch + start).tolist())
            found.append((numbers_of, length))
            ids = np.zeros((len(batch), length), dtype=int)
            ids[:, 0] = numbers_of
            if tell:
                known = known.after_peak(len(batch), length, peak_of({"input_ids": ids}))
        models.append(known)
    return found


@pytest.mark.parametrize("depth", [0, 1, 3, 64])
@pytest.mark.parametrize("source", [rows, streamed])
def test_a_lesson_counts_from_the_window_after_the_next_on(source: Callable[[], bf.Dataset], depth: int) -> None:
    batches = source().batch(budget(), window=WINDOW, shuffle_batches=False)
    with (batches.prefetch(depth) if depth else batches).iter() as it:
        found = list(told(it))
    assert found == by_definition(budget(), tell=True)
    unlearned = by_definition(budget(), tell=False)
    in_two = sum(min(batch) < 2 * WINDOW for batch, _ in found)
    assert found[:in_two] == unlearned[:in_two]
    assert found[in_two:] != unlearned[in_two:]


@pytest.mark.parametrize("pipeline", ["indexed", "deeper than windows", "by workers", "over epochs"])
def test_a_run_that_is_told_nothing_has_the_batches_of_a_policy_that_does_not_learn(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [numbers(batch) for batch in PIPELINES[pipeline]()]
    planned = [tuple(batch.numbers.tolist()) for batch in rows().batch(budget(), window=WINDOW).plans()]
    monkeypatch.setitem(globals(), "budget", lambda: bf.MemoryBudget(model_of(), LIMIT))
    assert silent == [numbers(batch) for batch in PIPELINES[pipeline]()]
    assert planned == [tuple(batch.numbers.tolist()) for batch in rows().batch(budget(), window=WINDOW).plans()]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=12, max_size=40),
    st.integers(1, 9),
    st.integers(0, 30),
)
@examples(15)
def test_any_lessons_at_any_depth_are_resumed_exactly(told_of: list[tuple[int, int]], window: int, place: int) -> None:
    """Some batches are told nothing, some twice, some of another shape than they had."""

    def run(it: ResumableIterator[Any], first: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        for number, batch in enumerate(it, first):
            times, size = told_of[number % len(told_of)]
            for _ in range(times):
                it.learn((size, 7 * size), 1e5 * size**2)
            yield numbers(batch), it.state_dict()

    batches = rows(shuffle=True).batch(budget(), window=window)
    with batches.iter() as it:
        before = it.state_dict()
        whole = list(run(it, 0))
    place = min(place, len(whole))
    state = whole[place - 1][1] if place else before
    with batches.prefetch(1 + place).iter(json.loads(json.dumps(state))) as it:
        assert [batch for batch, _ in run(it, place)] == [batch for batch, _ in whole[place:]]


def test_what_waits_for_lessons_ends_with_the_run() -> None:
    before = set(threading.enumerate())
    batches = streamed().batch(budget(), window=2).prefetch(50).to_device("cpu", prefetch=50)
    with batches.iter() as it:
        next(it)
    assert set(threading.enumerate()) <= before
    assert len(list(batches.take(3))) == 3
    assert len(list(rows().batch(budget(), window=2).prefetch(50).take(3).prefetch(2))) == 3
    it = batches.iter()
    next(it)
    del it
    assert set(threading.enumerate()) <= before


def test_after_ctrl_c_the_lessons_are_those_of_the_batches_that_were_taken() -> None:
    interrupts = [4, 9]

    def interrupted(batch: Any) -> Any:
        if interrupts and len(seen) == interrupts[0]:
            interrupts.pop(0)
            raise KeyboardInterrupt
        return batch

    seen: list[Any] = []
    whole = list(told(rows().batch(budget(), window=5).iter()))
    it = rows().batch(budget(), window=5).map(interrupted).iter()
    while True:
        try:
            for batch in told(it):
                seen.append(batch)
            break
        except KeyboardInterrupt:
            assert it.state_dict()["lessons"]
    assert seen == whole
    assert not interrupts


def test_a_plan_that_is_not_what_it_was_is_refused() -> None:
    with fresh() as it:
        next(it)
        state = it.state_dict()
    window, done, crc, plan = state["position"]
    state |= sealed(state["header"], [window, done, crc, plan ^ 1])
    with (
        rows().batch(budget(), window=WINDOW).iter(state) as it,
        pytest.raises(StateError, match=f"plans window 0 otherwise .* {plan ^ 1:08x} then, {plan:08x} now"),
    ):
        next(it)


@pytest.mark.parametrize("depth", [1, 9])
def test_a_function_that_plans_the_same_batches_takes_no_lessons_away(depth: int) -> None:
    batches = rows().batch(budget(), window=4)
    with batches.map(lambda batch: (len(list(batches.plans())), batch)[1]).prefetch(depth).iter() as it:
        assert list(told(it)) == list(told(batches.iter()))


def test_lessons_go_on_over_the_epochs_of_a_loader_and_of_iterators() -> None:
    repeated = rows(shuffle=True, repeat=True).batch(budget(), window=WINDOW)
    alone = rows(shuffle=True).batch(budget(), window=WINDOW)
    with repeated.iter() as it:
        whole = list(told(it, 50))

    loader, found, states = alone.loader(), [], []
    while len(found) < len(whole):
        for batch in loader:
            loader.learn(batch, peak_of(batch))
            found.append(numbers(batch))
            states.append(loader.state_dict())
    assert found[:50] == whole
    for place in range(0, 45, 4):
        resumed = alone.prefetch(3).loader()
        resumed.load_state_dict(json.loads(json.dumps(states[place])))
        rest: list[Any] = []
        while len(rest) < 50 - place - 1:
            for batch in resumed:
                resumed.learn(batch, peak_of(batch))
                rest.append(numbers(batch))
        assert rest[: 50 - place - 1] == whole[place + 1 :], place

    again, lessons, epoch = [], None, 0
    while len(again) < len(whole):
        with alone.iter(epoch=epoch, lessons=lessons) as it:
            again += told(it)
            lessons, epoch = it.lessons, epoch + 1
    assert again[:50] == whole


def test_a_loader_that_is_left_sent_or_stepped_keeps_what_it_learnt() -> None:
    batches = rows(shuffle=True).batch(budget(), window=WINDOW)
    loader = batches.loader()
    names = set(loader.state_dict())
    for batch in loader:
        loader.learn(batch, 7e5)
        break
    peaks = len(loader.learnt.margin)
    loader.set_epoch(3)
    with pytest.raises(ValueError, match="a loader learns from the batches of its loop, and none has begun"):
        loader.learn((1, 1), 1e6)
    state = loader.state_dict()
    assert set(state) == names == {"epoch", "iterator", "lessons"}
    for again in (loader, batches.loader()):
        again.load_state_dict(state)
        next(iter(again))
        assert len(again.learnt.margin) == peaks == len(SHAPES) + 1

    stepped = batches.loader(steps_per_epoch=4)
    for _ in range(9):
        for batch in stepped:
            stepped.learn(batch, peak_of(batch))
    assert len(stepped.learnt.margin) > len(SHAPES) + 20


def test_a_state_stays_small_however_much_was_learnt() -> None:
    with rows(repeat=True).batch(budget(), window=WINDOW).iter() as it:
        random = np.random.default_rng(0)
        sizes = []
        for _ in range(3):
            for _ in range(200):
                it.learn((3, 30), float(random.lognormal(13.0, 0.1)))
            sizes.append(len(json.dumps(it.state_dict())))
        assert sizes[2] < 1.2 * sizes[1] < 8_000


@pytest.mark.timeout(5)  # a plan of batches of no rows would not end
def test_lessons_lower_what_runs_out_of_memory_and_refuse_no_sample() -> None:
    policy = budget()
    known = policy.taught(policy.model)
    for _ in range(9):
        known = known.after_peak(2, 60, math.inf)
    small, large = known.plan([60] * 12), policy.plan([60] * 12)
    assert len(small.batches) > len(large.batches)
    for _ in range(20):
        known = known.after_peak(1, 60, 9e6)
    longest = policy.max_length
    assert longest is not None
    alone = known.plan([longest, longest, 1])
    assert alone.padded_sizes.tolist() == [1, 1, 1]
    with pytest.raises(OverlongError, match=f"a sample of {longest + 1:,} tokens .*at most {longest:,} tokens"):
        known.plan([longest + 1])
    assert known.after_peak(900, 60, math.inf) is known  # it is known already


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90), st.sampled_from([math.inf, 3e5, 9e5, 2e6])), max_size=9),
    st.integers(1, 60),
    st.sampled_from([{}, {"batch_sizes": "friendly"}, {"limit_bytes": None, "reference": (6, 40)}]),
)
@examples(60)
def test_what_ran_out_of_memory_is_tried_with_nine_tenths_of_its_rows_from_then_on(
    before: list[tuple[int, int, float]], length: int, settings: dict[str, Any]
) -> None:
    policy = budget(**settings)
    known = policy.taught(policy.model)
    for batch, width, peak in before:
        known = known.after_peak(batch, width, peak)
    count = int(known.plan([length] * 400).padded_sizes[0])
    lower = known.after_peak(count, length, math.inf)
    least = max(1, min(int(0.9 * count), count - 1))
    assert lower.plan([length] * 400).padded_sizes.max() <= least
    assert lower.share <= known.share
    assert known.after_peak(count, length, 1e6).share == known.share


def test_pairs_are_told_by_both_lengths() -> None:
    shapes = [(batch, source, target) for batch in (1, 3, 9) for source in (2, 8, 20) for target in (3, 11)]
    model = bf.MemoryModel.fit(shapes, [1e5 + batch * (900 * s + 1700 * t) for batch, s, t in shapes])
    samples = [{"input_ids": [n] * (n % 19 + 1), "labels": [n] * (n % 7 + 1)} for n in range(60)]
    batches = bf.from_sequence(samples).batch(
        bf.MemoryBudget(model, 3e5, learn=True),
        window=10,
        length_column=("input_ids", "labels"),
        token_columns=(),
    )
    with batches.iter() as it:
        states, whole = [], []
        for batch in it:
            size, source = batch["input_ids"].shape
            it.learn(batch, 1.3e5 + size * (1200 * source + 2000 * batch["labels"].shape[1]))
            whole.append(numbers(batch))
            states.append(it.state_dict())
    assert len(it.learnt.margin) == len(shapes) + len(whole)
    with batches.prefetch(7).iter(json.loads(json.dumps(states[4]))) as it:
        rest = []
        for batch in it:
            size, source = batch["input_ids"].shape
            shape = (size, (source, batch["labels"].shape[1]))
            it.learn(shape, 1.3e5 + size * (1200 * source + 2000 * shape[1][1]))
            rest.append(numbers(batch))
    assert rest == whole[5:]


def fresh() -> ResumableIterator[Any]:
    return rows().batch(budget(), window=WINDOW).iter()


def shared(share: float) -> Any:
    lessons = fresh().lessons
    lessons["models"][1]["share"] = share
    return lessons


def padded() -> dict[str, Any]:
    return {"ids": np.zeros((2, 3))}


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "what is no batch": (
        lambda: fresh().learn(padded(), 1e6),
        ValueError,
        "that of its tensors input_ids, (B, L) (got ()); give",
    ),
    "three numbers": (
        lambda: fresh().learn((1, 2, 3), 1e6),
        TypeError,
        "batch must be (batch, length) (got (1, 2, 3))",
    ),
    "no rows": (lambda: fresh().learn((0, 2), 1e6), ValueError, "batch must be at least 1 (got 0)"),
    "no peak": (lambda: fresh().learn((1, 2), -3.0), ValueError, "peak_bytes"),
    "not a number": (lambda: fresh().learn((1, 2), math.nan), ValueError, "peak_bytes"),
    "a policy that does not learn": (
        lambda: rows().batch(4).iter().learn((1, 2), 1.0),
        ValueError,
        "no policy has learn=True",
    ),
    "the model of one": (lambda: rows().batch(4).iter().learnt, ValueError, "no policy has learn=True"),
    "lessons for one": (
        lambda: rows().batch(4).iter(lessons={}),
        ValueError,
        "lessons are for a policy that learns",
    ),
    "damaged lessons": (
        lambda: rows().batch(budget(), window=9).iter(lessons={"models": [None, {}, {}], "closed": {}, "open": {}}),
        StateError,
        "the lessons of this state are damaged",
    ),
    "lessons without a model": (
        lambda: rows().batch(budget(), window=9).iter(lessons={"models": [None] * 3, "closed": {}, "open": {}}),
        StateError,
        "the lessons of this state are damaged: it has no model",
    ),
    "a damaged lesson": (
        lambda: rows().batch(budget(), window=9).iter(lessons=fresh().lessons | {"open": {"1": [[2, 3, -4.0]]}}),
        StateError,
        "the lessons of this state are damaged: peak_bytes",
    ),
    "a damaged share": (
        lambda: rows().batch(budget(), window=9).iter(lessons=shared(1.5)),
        StateError,
        "the lessons of this state are damaged: share must be between 0 and 1 (got 1.5)",
    ),
    "a state without": (
        lambda: (
            rows()
            .batch(budget(), window=WINDOW)
            .iter({k: v for k, v in fresh().state_dict().items() if k != "lessons"})
        ),
        StateError,
        "this state has no lessons, unlike those of this pipeline",
    ),
    "its length": (
        lambda: len(rows().batch(budget(), window=9)),
        TypeError,
        "it follows from the lessons of a policy with learn",
    ),
    "several ranks without a store": (
        lambda: next(rows().batch(budget(), window=9).shard(0, 2).iter()),
        ValueError,
        "2 ranks whose policy learns (learn=True) must tell each other what they learn: initialise torch.distributed",
    ),
    "a sampler": (lambda: bf.BatchSampler(LENGTHS, budget()), ValueError, "a BatchSampler gives lists of numbers"),
    "inference": (
        lambda: bf.map_batches_in_order(lambda batch: batch["text"], ["a"], budget()),
        ValueError,
        "map_batches_in_order plans each window by itself",
    ),
    "what takes batches ahead": (
        lambda: next(iter(bf.AsyncLoader(rows().batch(budget(), window=9).loader(), "cpu"))),
        ValueError,
        "cannot be read by AsyncLoader, which takes them ahead of use",
    ),
    "relative peaks": (
        lambda: bf.MemoryBudget(bf.MemoryModel.pretrained(), reference=(2, 9), learn=True),
        ValueError,
        "relative to one another, so it cannot learn",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_learnt_is_refused(case: str) -> None:
    call, kind, words = REFUSED[case]
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_streams_that_are_planned_apart_cannot_learn(tmp_path: Any) -> None:
    for shard in range(2):
        (tmp_path / f"{shard}.jsonl").write_text('{"input_ids": [1, 2]}\n' * 4)
    data = bf.from_files(str(tmp_path / "*.jsonl"), streams=2)
    with pytest.raises(ValueError, match="plans one window after the other, and 2 streams are planned each by itself"):
        data.batch(budget(), window=2)
