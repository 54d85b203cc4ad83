"""Ranks that learn together: each is told what its own batches took, and all plan the same windows."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

import brimful as bf
from brimful.core.errors import RankError, StateError
from brimful.plan.window import window_ends
from brimful.steps.lessons import PeakLessons
from tests.effort import examples

SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (4, 16, 64)]
LIMIT = 1.2e6
ROWS = 110
LENGTHS = (np.arange(ROWS) * 37 % 61 + 1).tolist()
Numbers = tuple[int, ...]
Lessons = Callable[[int, Numbers, tuple[int, int]], list[float]]
"""What a rank is told of its batch of these samples and this shape: peaks, none or some."""


def budget(learn: bool = True) -> bf.MemoryBudget:
    model = bf.MemoryModel.fit(SHAPES, [2e5 + batch * 2000 * length for batch, length in SHAPES])
    return bf.MemoryBudget(model, LIMIT, learn=learn)


def rows_of(count: int, **settings: Any) -> bf.Dataset:
    samples = [{"input_ids": [number] * length} for number, length in enumerate(LENGTHS[:count])]
    return bf.from_sequence(samples, **settings)


def data(count: int = ROWS, window: int = 24, learn: bool = True) -> bf.Batches:
    return rows_of(count).batch(budget(learn), window=window, shuffle_batches=False)


def samples(batch: Any) -> Numbers:
    return tuple(batch["input_ids"][:, 0].tolist())


def differing(rank: int, numbers: Numbers, shape: tuple[int, int]) -> list[float]:
    """By rank, a little apart from one another; some nothing, some two, some out of memory."""
    first = max(numbers)
    if first % 13 == rank:
        return []
    if first % 11 == 3:
        return [math.inf]
    return [2e5 + shape[0] * 2600 * shape[1] * (1 + first / ROWS + rank / 7)] * (1 + first % 2)


def nothing(rank: int, numbers: Numbers, shape: tuple[int, int]) -> list[float]:
    return []


@dataclass
class Ranks:
    """Data-parallel ranks, each a thread of its own, as processes would be; `late`: one that is slower than the others."""

    batches: bf.Batches
    world_size: int
    lessons: Lessons = differing
    uneven: Any = "pad"
    timeout_seconds: float = 20.0
    late: int = -1
    ahead: Callable[[bf.Batches], bf.Batches] = lambda batches: batches
    epoch: int = 0
    store: Any = field(default_factory=HashStore)
    errors: dict[int, BaseException] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)
    learnt: dict[int, Any] = field(default_factory=dict)

    def run(self, states: Any = None, steps: int | None = None) -> list[tuple[Any, ...]]:
        """What the ranks take, step by step: samples, and whether they are a filler. `states`: one, or of each rank its own."""
        taken: list[list[Any]] = [[] for _ in range(self.world_size)]
        states = states if isinstance(states, list) else [states] * self.world_size
        threads = [
            threading.Thread(target=self._rank, args=(rank, taken[rank], states[rank], steps))
            for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return list(zip_longest(*taken))

    def _rank(self, rank: int, taken: list[Any], state: Any, steps: int | None) -> None:
        group = self.store if self.world_size > 1 else None
        sharded = self.ahead(
            self.batches.shard(
                rank, self.world_size, group=group, uneven=self.uneven, timeout_seconds=self.timeout_seconds
            )
        )
        lessons = state.pop("only lessons") if state is not None and "only lessons" in state else None
        try:
            with sharded.iter(None if lessons else state, epoch=self.epoch, lessons=lessons) as it:
                while steps is None or len(taken) < steps:
                    if rank == self.late:
                        time.sleep(0.002)
                    batch = next(it, None)
                    if batch is None:
                        break
                    for peak in (
                        [] if batch["is_filler"] else self.lessons(rank, samples(batch), batch["input_ids"].shape)
                    ):
                        it.learn(batch, peak)
                    taken.append((samples(batch), batch["is_filler"]))
                self.states[rank] = json.loads(json.dumps(it.state_dict()))
                self.learnt[rank] = {"only lessons": json.loads(json.dumps(it.lessons))}
        except Exception as error:
            self.errors[rank] = error

    def whole(self, states: Any = None, steps: int | None = None) -> list[Numbers]:
        """All batches but the fillers in their global order; all ranks must come equally far."""
        found = self.run(states, steps)
        assert not self.errors, self.errors
        assert all(batch is not None for step in found for batch in step), "all ranks take equally many steps"
        return [numbers for step in found for numbers, is_filler in step if not is_filler]

    @property
    def merged(self) -> Any:
        return bf.merge_states([self.states[rank] for rank in range(self.world_size)])


def by_definition(world_size: int, lessons: Lessons = differing, count: int = ROWS, window: int = 24) -> list[Numbers]:
    """The batches of the rows in their order: a window is planned by what all ranks were told before the step in which the window
    before it begins, step by window, rank by rank."""
    policy = budget()
    ends = [0]
    while ends[-1] < count:
        ends.append(ends[-1] + window_ends(count - ends[-1], window))
    found: list[tuple[Numbers, tuple[int, int]]] = []
    begins = []
    known, upto = policy.taught(policy.model), 0
    for number, (start, end) in enumerate(pairwise(ends)):
        begins.append(len(found) // world_size)
        stop = begins[number - 1] if number else 0
        for rank in range(world_size):
            for step in range(upto, stop):
                numbers, shape = found[step * world_size + rank]
                for peak in lessons(rank, numbers, shape):
                    known = known.after_peak(*shape, peak)
        upto = stop
        plan = known.plan(LENGTHS[start:end])
        found += [
            (tuple((batch + start).tolist()), (len(batch), length))
            for batch, length in zip(plan.batches, plan.padded_lengths.tolist())
        ]
    return [numbers for numbers, _ in found]


@pytest.mark.parametrize(("world_size", "window"), [(1, 24), (2, 24), (3, 9), (4, 3)])
def test_a_window_is_planned_by_what_all_ranks_were_told_before_the_window_before_it(
    world_size: int, window: int
) -> None:
    expected = by_definition(world_size, window=window)
    assert expected != by_definition(world_size, nothing, window=window)
    for depth in (0, 1, 40):
        ahead = (lambda batches, depth=depth: batches.prefetch(depth)) if depth else (lambda batches: batches)
        assert Ranks(data(window=window), world_size, late=depth % 3, ahead=ahead).whole() == expected


def collate(samples: list[dict[str, Any]]) -> Any:
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [np.pad(sample["input_ids"], (0, longest - len(sample["input_ids"])), mode="edge") for sample in samples]
    return {"input_ids": torch.tensor(np.array(ids))}


AHEAD: dict[str, Callable[[bf.Batches], bf.Batches]] = {
    "on the device": lambda batches: batches.to_device("cpu", prefetch=3),
    "two threads": lambda batches: batches.prefetch(5).to_device("cpu", prefetch=9),
    "taken": lambda batches: batches.prefetch(50).take(6),
}


@pytest.mark.parametrize("way", AHEAD)
def test_whatever_reads_ahead_the_batches_are_the_same(way: str) -> None:
    ranks = Ranks(data(), 2, ahead=AHEAD[way], late=1)
    found = ranks.whole()
    assert found == by_definition(2)[: len(found)]
    assert len(found) >= 12


def test_workers_that_hold_batches_wait_for_no_lessons_of_them() -> None:
    made = rows_of(ROWS).batch(budget(), window=5, shuffle_batches=False, collate_fn=collate, max_workers=3)
    expected = by_definition(2, window=5)
    assert Ranks(made, 2).whole() == expected
    assert Ranks(made, 2, ahead=lambda batches: batches.prefetch(4)).whole() == expected


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_are_told_nothing_have_the_batches_of_a_policy_that_does_not_learn(world_size: int) -> None:
    assert Ranks(data(), world_size, nothing).whole() == [samples(batch) for batch in data(learn=False)]


@pytest.mark.parametrize("uneven", ["pad", "drop", "wrap"])
def test_epochs_go_on_with_what_all_ranks_learnt(uneven: str) -> None:
    """Three epochs in one run; each in a run of its own; and all resumed in the middle."""
    repeated = rows_of(60, shuffle=True, repeat=True).batch(budget(), window=13)
    whole = Ranks(repeated, 2, uneven=uneven, ahead=lambda batches: batches.prefetch(3)).run(steps=40)
    again = Ranks(repeated, 2, uneven=uneven, late=0)
    before = again.run(steps=17)
    after = Ranks(repeated, 2, uneven=uneven)
    assert before + after.run(again.merged, steps=23) == whole
    assert not after.errors
    assert before + Ranks(repeated, 2, uneven=uneven).run([again.states[0], again.states[1]], steps=23) == whole

    alone: list[Any] = []
    lessons: Any = [None, None]
    for epoch in range(3):
        ranks = Ranks(rows_of(60, shuffle=True).batch(budget(), window=13), 2, uneven=uneven, epoch=epoch)
        alone += ranks.run(lessons)
        assert not ranks.errors
        lessons = [ranks.learnt[0], ranks.learnt[1]]
        merged = bf.merge_states([{"lessons": one["only lessons"]} for one in lessons])
        assert set(merged["lessons"]["open"]) | set(merged["lessons"]["closed"]) == {"0", "1"}
    if uneven != "drop":  # a step that is dropped may have begun a window
        assert alone[:40] == whole[: len(alone)][:40]


@examples(10)
@given(
    count=st.integers(1, 90),
    window=st.integers(1, 30),
    worlds=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 7), st.booleans()), min_size=1, max_size=3),
    uneven=st.sampled_from(["pad", "wrap"]),
    depth=st.integers(0, 9),
)
def test_the_states_of_all_ranks_resume_exactly_at_any_world_size(
    count: int, window: int, worlds: list[tuple[int, int, bool]], uneven: str, depth: int
) -> None:
    """A run at one world size, cut and resumed, is the run; what comes at another is the same on all ranks, and the same
    wherever a state was saved and joined again before it took a batch."""
    made = rows_of(count, shuffle=True).batch(budget(), window=window)
    state: Any = None
    taken: list[Numbers] = []
    for world_size, steps, own in worlds:
        first = Ranks(made, world_size, uneven=uneven)
        whole = first.run(state)
        cut = Ranks(made, world_size, uneven=uneven, late=0)
        if depth:
            cut.ahead = lambda batches: batches.prefetch(depth)
        found = cut.run(state, steps)
        assert found == whole[:steps]
        states = [cut.states[rank] for rank in range(world_size)]
        rest = Ranks(made, world_size, uneven=uneven)
        assert rest.run(states if own else cut.merged) == whole[steps:]
        assert not first.errors | cut.errors | rest.errors
        taken += [one for step in found for one, _ in step]
        state = cut.merged
    last = Ranks(made, 1).run(state)
    taken += [one for step in last for one, _ in step]
    assert {number for one in taken for number in one} == set(range(count))


def rest_of(it: Any) -> list[Numbers]:
    return [samples(batch) for batch in it]


def test_lessons_of_ranks_that_are_no_more_count_once_on_all() -> None:
    first = Ranks(data(), 3)
    first.run(steps=4)
    merged = first.merged
    pending = [merged["lessons"][name] for name in ("closed", "open")]
    assert set().union(*pending) == {"0", "1", "2"}
    count = sum(len(told) for lessons in pending for told in lessons.values())
    with data().shard(0, 1).iter(merged) as it:
        known = it.state_dict()["lessons"]
        assert known["closed"] == known["open"] == {}
        assert len(it.learnt.margin) >= len(SHAPES) + count
        assert rest_of(it) == rest_of(data().shard(0, 1).iter(merged))
    second = Ranks(data(), 2)
    second.run(merged, steps=1)
    assert not second.errors
    lessons = [second.states[rank]["lessons"] for rank in range(2)]
    assert lessons[0]["models"] == lessons[1]["models"]
    assert set(lessons[0]["open"]) <= {"0", "2"}
    assert set(lessons[1]["open"]) <= {"1", "2"}
    assert lessons[0]["open"].get("2") == lessons[1]["open"].get("2")
    third = Ranks(data(), 1)
    assert third.whole(second.merged)


def test_the_state_of_one_rank_alone_resumes_on_all() -> None:
    first = Ranks(data(), 2)
    first.run(steps=3)
    ranks = [Ranks(data(), 2, late=late) for late in (0, 1)]
    assert ranks[0].whole(first.states[1]) == ranks[1].whole(first.states[1])
    both = Ranks(data(), 2)
    assert sorted(number for one in both.whole(first.states[0]) for number in one) == sorted(
        number for one in ranks[0].whole(first.states[1]) for number in one
    )


def test_a_rank_that_stays_away_leaves_or_fails_is_named() -> None:
    def one_of_two(steps: int | None, **settings: Any) -> Ranks:
        ranks = Ranks(data(window=6), 2, **settings)
        threads = [threading.Thread(target=ranks._rank, args=(0, [], None, None))]
        if steps is not None:
            threads.append(threading.Thread(target=ranks._rank, args=(1, [], None, steps)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return ranks

    absent = one_of_two(None, timeout_seconds=1.0).errors[0]
    assert isinstance(absent, TimeoutError)
    assert str(absent).startswith(
        "waited 1 seconds for rank 1 (never came) to come to window 0 of this run: it was killed"
    )
    left = one_of_two(3).errors
    assert list(left) == [0]
    assert isinstance(left[0], RankError)
    assert str(left[0]) == "rank 1 left before the epoch was over: its loop ended, failed or was interrupted"


def test_ranks_that_know_different_things_are_refused() -> None:
    first, second = Ranks(data(window=6), 2), Ranks(data(window=6), 2, nothing)
    first.run(steps=6)
    second.run(steps=6)
    other = second.states[1] | {name: first.states[0][name] for name in ("position", "crc32")}
    ranks = Ranks(data(window=6), 2)
    ranks.run([first.states[0], other])
    found = {type(error): str(error) for error in ranks.errors.values()}
    assert set(found) == {StateError, RankError}
    assert "the ranks are at different places: lessons is '" in found[StateError]


def test_what_waits_for_other_ranks_ends_with_the_run() -> None:
    before = set(threading.enumerate())
    store = HashStore()
    iterators = [data(window=2).shard(rank, 2, group=store).prefetch(9).iter() for rank in range(2)]
    threads = [threading.Thread(target=next, args=(it,)) for it in iterators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for it in iterators:
        it.close()
        assert it.state_dict()["lessons"]["models"]
    waiting = data(window=2).shard(0, 2, group=HashStore()).iter()
    thread = threading.Thread(target=lambda: [*waiting])
    thread.start()
    time.sleep(0.05)
    waiting.close()
    thread.join(30)
    assert set(threading.enumerate()) <= before


def test_a_run_leaves_nothing_in_the_store_but_a_counter_and_where_ranks_came_last() -> None:
    ranks = Ranks(data(window=6), 3)
    ranks.whole()
    # how many runs there were, and where each rank came last
    assert ranks.store.num_keys() == 1 + ranks.world_size


def test_a_loader_of_ranks_keeps_what_they_learnt_over_epochs() -> None:
    found: dict[int, list[Numbers]] = {0: [], 1: []}
    states: dict[int, Any] = {}
    store = HashStore()

    def train(rank: int, saved: Any, epochs: int) -> None:
        loader = rows_of(60, shuffle=True).batch(budget(), window=13).shard(rank, 2, group=store).loader()
        if saved is not None:
            loader.load_state_dict(saved)
        for _ in range(epochs):
            for batch in loader:
                for peak in differing(rank, samples(batch), batch["input_ids"].shape):
                    loader.learn(batch, peak)
                found[rank].append(samples(batch))
        states[rank] = json.loads(json.dumps(loader.state_dict()))

    def both(saved: Any, epochs: int) -> list[Any]:
        for rank in found:
            found[rank] = []
        threads = [threading.Thread(target=train, args=(rank, saved, epochs)) for rank in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return list(zip(found[0], found[1], strict=True))

    whole = both(None, 3)
    part = both(None, 2)
    assert whole[: len(part)] == part
    assert both(bf.merge_states([states[0], states[1]]), 1) == whole[len(part) :]


def long_run() -> bf.Batches:
    """Of ten windows: what is told early decides what many of them hold."""
    samples = [{"input_ids": [number] * (number * 37 % 61 + 1)} for number in range(400)]
    return bf.from_sequence(samples).batch(budget(), window=40, shuffle_batches=False)


def drawn(seed: int) -> Lessons:
    def lessons(rank: int, numbers: Numbers, shape: tuple[int, int]) -> list[float]:
        draw = random.Random(f"{seed}/{rank}/{numbers}")
        return [math.inf] if draw.random() < 0.15 else [2e5 + shape[0] * 2600 * shape[1] * draw.uniform(0.5, 2.5)]

    return lessons


@pytest.mark.parametrize("seed", [200, 201, 202])
def test_what_was_told_in_a_window_before_a_state_counts_before_what_is_told_after_it(seed: int) -> None:
    """Lessons of rank 0 come before those of rank 1, wherever the run was cut between them: their order counts."""
    whole = Ranks(long_run(), 2, drawn(seed)).run()
    for steps in (3, 5, 11):
        cut = Ranks(long_run(), 2, drawn(seed))
        assert cut.run(None, steps) == whole[:steps]
        for states in (cut.merged, [cut.states[0], cut.states[1]]):
            assert Ranks(long_run(), 2, drawn(seed)).run(states) == whole[steps:]


def test_a_rank_that_rounds_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    after = PeakLessons.after
    ranks = Ranks(long_run(), 2, drawn(1))
    begun = ranks._rank

    def begin(rank: int, *rest: Any) -> None:
        context.set(rank)
        begun(rank, *rest)

    context: ContextVar[int] = ContextVar("rank")
    monkeypatch.setattr(
        PeakLessons,
        "after",
        lambda self, known, lesson: after(
            self, known, [*lesson[:-1], lesson[-1] * (1 + 1e-9)] if context.get() and lesson[-1] else lesson
        ),
    )
    ranks._rank = begin  # type: ignore[method-assign]
    ranks.run()
    assert ranks.errors
    told = [str(error) for error in ranks.errors.values() if isinstance(error, StateError)]
    assert any("rank 1 knows something else than rank 0 after the same lessons (" in one for one in told), ranks.errors


def test_ranks_of_other_rules_for_the_last_step_are_refused() -> None:
    store = HashStore()
    errors: list[Exception] = []

    def run(rank: int, uneven: Any) -> None:
        try:
            with data().shard(rank, 2, group=store, uneven=uneven, timeout_seconds=20).iter() as it:
                next(it)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in ((0, "pad"), (1, "drop"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert any("uneven" in str(error) for error in errors), errors


def test_processes_that_share_a_data_parallel_rank_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with (
        data().shard(0, 2, group=HashStore()).iter() as it,
        pytest.raises(
            ValueError, match=r"^4 processes are 2 data-parallel ranks: those of one rank \(tensor or pipeline"
        ),
    ):
        next(it)
