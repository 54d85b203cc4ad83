"""`bf.BatchSampler`: alone, under DataLoader with workers, under StatefulDataLoader, under Accelerate."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import brimful as bf
from brimful.plan import Policy
from tests.effort import examples

Lists = list[list[int]]

LENGTHS = np.random.default_rng(0).integers(1, 40, 200)


def sampler(lengths: Any = LENGTHS, policy: Policy | None = None, **options: Any) -> bf.BatchSampler:
    """Nearly 50 batches of about 4 samples, in 8 windows."""
    return bf.BatchSampler(lengths, policy or bf.TokenBudget(120), **({"window": 25} | options))


def epoch_of(number: int, **options: Any) -> Lists:
    one = sampler(**options)
    one.set_epoch(number)
    return list(one)


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(state))
    assert back == state
    return back


def resumed(state: dict[str, Any], **options: Any) -> bf.BatchSampler:
    one = sampler(**options)
    one.load_state_dict(through_json(state))
    return one


def order_of_all(ranks: list[Lists]) -> Lists:
    """The global order that some ranks' lists are of."""
    return [one for step in zip_longest(*ranks) for one in step if one is not None]


@st.composite
def settings_of_a_sampler(draw: st.DrawFn) -> dict[str, Any]:
    policies = [
        bf.TokenBudget(40),
        bf.FixedSize(3),
        bf.FixedSize(3, sort=False),
        bf.StaticShapes([16, 40], 80),
        bf.Packed(40),
    ]
    return {
        "lengths": draw(st.lists(st.integers(0, 40), max_size=40)),
        "policy": draw(st.sampled_from(policies)),
        "window": draw(st.sampled_from([1, 3, 7, 50, "auto"])),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "balance_group": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2)),
    }


# -- the order -----------------------------------------------------------------------------------------------------------


@given(options=settings_of_a_sampler(), epoch=st.integers(0, 2))
def test_every_sample_once_an_epoch(options: dict[str, Any], epoch: int) -> None:
    lists = epoch_of(epoch, **options | {"drop_last": False})
    assert sorted(chain(*lists)) == list(range(len(options["lengths"])))
    assert all(type(number) is int for one in lists for number in one)
    assert all(lists)


@given(options=settings_of_a_sampler(), epoch=st.integers(0, 1), world_size=st.integers(1, 5))
@pytest.mark.parametrize("uneven", ["wrap", "drop"])
def test_one_order_for_every_world_size_and_exact_len(
    options: dict[str, Any], epoch: int, world_size: int, uneven: str
) -> None:
    order = epoch_of(epoch, **options)
    ranks = []
    for rank in range(world_size):
        one = sampler(**options, rank=rank, world_size=world_size, uneven=uneven)
        one.set_epoch(epoch)
        ranks.append(list(one))
        assert len(one) == len(ranks[-1])
    full = len(order) // world_size * world_size
    if uneven == "wrap" and len(order) > full:
        order = [order[place % len(order)] for place in range(full + world_size)]
    elif uneven == "drop":
        order = order[:full]
    assert {len(lists) for lists in ranks} == {len(order) // world_size}
    assert order_of_all(ranks) == order


def test_uneven_error_names_batches_and_ranks_before_the_first_batch() -> None:
    batches = len(sampler())
    world_size = next(size for size in range(2, 9) if batches % size)
    one = sampler(world_size=world_size, uneven="raise")
    message = f"uneven='raise': {batches} batches of epoch 0 cannot be shared out evenly to {world_size} ranks; choose"
    with pytest.raises(bf.DataError, match=message):
        next(iter(one))
    with pytest.raises(bf.DataError, match=message):
        len(one)
    even = [list(sampler(range(1, 13), bf.FixedSize(3), rank=rank, world_size=2, uneven="raise")) for rank in range(2)]
    assert len(even[0]) == len(even[1]) == 2
    assert order_of_all(even) == list(sampler(range(1, 13), bf.FixedSize(3)))


@pytest.mark.parametrize("policy", [bf.TokenBudget(120), bf.FixedSize(3), bf.FixedSize(3, sort=False)])
def test_the_plan_is_that_of_a_data_set_with_these_lengths(policy: Policy) -> None:
    rows = [{"input_ids": [0] * length} for length in LENGTHS]
    dataset = bf.from_sequence(rows, shuffle=True).batch(policy, window=25, balance_group=2)
    one = sampler(policy=policy, balance_group=2)
    for epoch in range(2):
        one.set_epoch(epoch)
        assert list(one) == [plan.window.rows[plan.numbers].tolist() for plan in dataset.plans(epoch)]


def test_budget_holds_and_auto_windows_pad_about_one_percent() -> None:
    lengths = np.clip(np.random.default_rng(1).lognormal(4, 1, 50_000), 1, 2048).astype(int)
    lists = list(bf.BatchSampler(lengths, bf.TokenBudget(8192)))
    slots = [len(one) * lengths[one].max() for one in lists]
    assert max(slots) <= 8192
    assert 1 - lengths.sum() / sum(slots) < 0.0125


def test_the_first_batch_of_a_million_waits_for_few_lengths() -> None:
    planned = []

    @dataclass(frozen=True)
    class Counting(bf.TokenBudget):
        def plan(self, lengths: Any) -> bf.Plan:
            planned.append(len(lengths))
            return super().plan(lengths)

    one = bf.BatchSampler(np.tile(LENGTHS, 5_000), Counting(4096))
    next(iter(one))
    assert sum(planned) < 200_000
    middle = one.state_dict()
    again = bf.BatchSampler(np.tile(LENGTHS, 5_000), Counting(4096))
    planned.clear()
    again.load_state_dict(middle)
    next(iter(again))
    assert sum(planned) < 200_000


def test_epochs_differ_and_come_again() -> None:
    one = sampler()
    orders = [epoch_of(epoch) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert list(one) == orders[0]
    one.set_epoch(2)
    assert len(one) == len(orders[2])
    assert list(one) == orders[2]
    one.set_epoch(0)
    assert list(one) == orders[0]
    assert list(sampler(seed=7)) != orders[0]


def test_without_shuffle_every_epoch_has_the_order_of_arrival() -> None:
    lengths = [50, 30, 20, 20, 30, 20]
    one = bf.BatchSampler(lengths, bf.TokenBudget(60), shuffle=False)
    assert list(one) == [[0], [1, 4], [2, 3, 5]]
    one.set_epoch(1)
    assert list(one) == [[0], [1, 4], [2, 3, 5]]


def test_a_repeated_epoch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = sampler()
    assert list(one) == list(one)
    assert "epoch 0 again, in the same order: call set_epoch(epoch) before each epoch" in caplog.text
    caplog.clear()
    one.set_epoch(0)
    list(one)
    still = sampler(shuffle=False)
    assert list(still) == list(still)
    assert not caplog.records


@pytest.mark.parametrize("lengths", [LENGTHS.tolist(), LENGTHS.astype(np.uint16), torch.tensor(LENGTHS)])
def test_lengths_of_any_kind(lengths: Any) -> None:
    assert list(sampler(lengths)) == list(sampler())


def test_pairs_of_lengths() -> None:
    pairs = np.column_stack([LENGTHS, LENGTHS[::-1]])
    lists = list(sampler(pairs, bf.TokenBudget(240)))
    assert sorted(chain(*lists)) == list(range(200))
    assert max(len(one) * pairs[one].max(axis=0).sum() for one in lists) <= 240


def test_each_stretch_of_a_stratified_order_has_short_and_long_batches() -> None:
    lengths = np.arange(1, 801)

    def spread(order: Any) -> float:
        """How much stretches of ten batches differ in length."""
        lists = list(sampler(lengths, bf.FixedSize(8), window=800, shuffle=False, shuffle_batches=order))
        assert sorted(chain(*lists)) == list(range(800))
        longest = lengths[[batch[0] for batch in lists]]
        return float(longest.reshape(-1, 10).mean(axis=1).std())

    assert spread("stratified") < spread(True) / 2 < spread(False) / 2


# -- what cannot be placed, what cannot be set -----------------------------------------------------------------------------


def test_overlong_by_a_word(caplog: pytest.LogCaptureFixture) -> None:
    lengths = [10, 70, 20, 80]
    with pytest.raises(bf.OverlongError, match=r"a sample of 70 tokens \(sample 1\) cannot fit max_tokens=60"):
        bf.BatchSampler(lengths, bf.TokenBudget(60))
    kept = {"truncate": [0, 1, 2, 3], "drop": [0, 2], "alone": [0, 1, 2, 3]}
    for word, numbers in kept.items():
        one = bf.BatchSampler(lengths, bf.TokenBudget(60), overlong=word, window=4)  # type: ignore[arg-type]
        assert sorted(chain(*one)) == numbers
        one.set_epoch(1)
        assert sorted(chain(*one)) == numbers
    assert [record.message[:43] for record in caplog.records] == [
        "overlong: 2 samples of a window truncated, ",
        "overlong: 2 samples of a window dropped, lo",
        "overlong: 2 samples of a window alone, long",
    ]


@pytest.mark.parametrize("window", [3, "auto"])
def test_an_overlong_pair_is_named_by_its_number_in_the_data_set(window: Any) -> None:
    pairs = [(10, 10)] * 10 + [(10, 70)]
    with pytest.raises(
        bf.DataError, match=r"a sample of 10 \+ 70 tokens \(lengths, sample 10\) cannot fit max_tokens=60"
    ):
        list(bf.BatchSampler(pairs, bf.TokenBudget(60), window=window))
    kept = bf.BatchSampler(pairs, bf.TokenBudget(60), window=window, overlong="drop")
    assert sorted(chain(*kept)) == list(range(10))
    assert list(bf.BatchSampler(pairs[10:], bf.TokenBudget(60), window=window, overlong="drop")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, r"window must be at least 1 sample \(got 0\)"),
        ({"window": "all"}, r"window must be one of auto \(got 'all'\)"),
        ({"rank": 2, "world_size": 2}, r"rank must be at least 0 and below world_size=2 \(got 2\)"),
        ({"world_size": 0}, r"world_size must be at least 1 \(got 0\)"),
        ({"uneven": "pad"}, r"uneven must be one of wrap, drop, raise \(got 'pad'\)"),
        ({"overlong": "cut"}, r"overlong must be one of raise, truncate, drop, alone \(got 'cut'\)"),
        ({"balance_group": 0}, r"balance_group must be at least 1 batch \(got 0\)"),
    ],
)
def test_settings_are_checked_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler(**options)


def test_a_policy_is_asked_for() -> None:
    with pytest.raises(
        TypeError, match=r"policy must have plan and max_length, as bf.TokenBudget\(16_384\) does \(got 32\)"
    ):
        bf.BatchSampler([1, 2], 32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"epoch must be at least 0 \(got -1\)"):
        sampler().set_epoch(-1)


# -- resume --------------------------------------------------------------------------------------------------------------


@given(options=settings_of_a_sampler(), epoch=st.integers(0, 1), world_size=st.integers(1, 3), data=st.data())
@examples(50)
def test_resume_at_every_step(options: dict[str, Any], epoch: int, world_size: int, data: st.DataObject) -> None:
    uneven = data.draw(st.sampled_from(["wrap", "drop"]))
    options = options | {"rank": world_size - 1, "world_size": world_size, "uneven": uneven}
    one = sampler(**options)
    one.set_epoch(epoch)
    states = [one.state_dict()]
    lists = []
    for batch in one:
        lists.append(batch)
        states.append(one.state_dict())
    assert all(len(json.dumps(state["position"])) < 100 for state in states)
    assert states == [one.state_dict(batches_consumed=count) for count in range(len(lists) + 1)]
    for count, state in enumerate(states):
        again = resumed(state, **options)
        if count < len(lists):
            assert again.epoch == epoch
            assert again.state_dict() == state
            again.set_epoch(epoch)
            assert list(again) == lists[count:]
        elif lists:  # the end of an epoch begins the next, and leaves nothing of its own
            assert again.epoch == epoch + 1
            again.set_epoch(epoch)
            assert list(again) == []
            assert list(resumed(state, **options)) == epoch_of(epoch + 1, **options)


@given(options=settings_of_a_sampler(), before=st.integers(1, 4), after=st.integers(1, 4), data=st.data())
def test_resume_at_another_world_size(options: dict[str, Any], before: int, after: int, data: st.DataObject) -> None:
    order = epoch_of(0, **options)
    steps = data.draw(st.integers(0, len(order) // before))
    states = []
    for rank in range(before):
        one = sampler(**options, rank=rank, world_size=before)
        list(islice(iter(one), steps))
        states.append(one.state_dict(batches_consumed=steps))
    assert all(state == states[0] for state in states)
    rest = order[steps * before :]
    if rest:
        ranks = [list(resumed(states[0], **options, rank=rank, world_size=after)) for rank in range(after)]
        assert order_of_all(ranks)[: len(rest)] == rest


def test_a_chain_of_resumes_and_a_state_that_is_left_alone() -> None:
    lists: Lists = epoch_of(1)
    got: Lists = []
    one = sampler()
    one.set_epoch(1)
    while len(got) < len(lists):
        got += islice(iter(one), 7)
        state = one.state_dict()
        text = json.dumps(state)
        one = resumed(state)
        list(one)
        assert json.dumps(state) == text
        one.load_state_dict(state)
    assert got == lists


def test_a_restored_epoch_keeps_its_position_and_another_is_refused_before_its_first_batch() -> None:
    one = sampler()
    one.set_epoch(3)
    first = list(islice(iter(one), 5))
    state = one.state_dict()
    kept = resumed(state)
    kept.set_epoch(3)
    assert first + list(kept) == epoch_of(3)
    assert list(kept) == epoch_of(3)
    other = resumed(state)
    with pytest.raises(
        ValueError, match=r"^this BatchSampler was restored to epoch 3, and set_epoch says 0 before its first"
    ):
        other.set_epoch(0)
    next(iter(other))
    other.set_epoch(4)
    assert list(other) == epoch_of(4)
    other.set_epoch(3)
    assert list(other) == epoch_of(3)


def test_breaking_off_begins_the_epoch_again() -> None:
    one = sampler()
    first = list(islice(iter(one), 3))
    assert list(islice(iter(one), 4))[:3] == first
    one.load_state_dict(one.state_dict())
    assert list(islice(iter(one), 2)) == epoch_of(0)[4:6]
    assert list(one) == epoch_of(0)


def test_a_look_at_the_first_batch_leaves_the_place_alone() -> None:
    one = sampler()
    lists = iter(one)
    list(islice(lists, 4))
    assert next(iter(one)) == epoch_of(0)[0]
    next(lists)
    assert list(resumed(one.state_dict())) == epoch_of(0)[5:]


def test_a_state_may_be_changed_by_who_asked_for_it() -> None:
    one = sampler()
    list(islice(iter(one), 4))
    state = one.state_dict()
    text = json.dumps(state)
    state["header"]["policy"]["max_tokens"] = 1
    state["position"][1]["windows"]["window"] = 9
    assert json.dumps(one.state_dict()) == text


def test_a_count_is_of_this_iteration() -> None:
    one = sampler()
    list(islice(iter(one), 10))
    one.load_state_dict(one.state_dict())
    list(islice(iter(one), 6))
    assert list(resumed(one.state_dict(batches_consumed=4))) == epoch_of(0)[14:]
    for count in (-1, 7):
        message = rf"batches_consumed must be between 0 and 6, the batches handed out .* \(got {count}\)"
        with pytest.raises(ValueError, match=message):
            one.state_dict(batches_consumed=count)
    one.set_epoch(1)
    with pytest.raises(ValueError, match=r"between 0 and 0, .* \(got 6\)"):
        one.state_dict(batches_consumed=6)


OTHER: dict[str, tuple[Any, str]] = {  # each setting that the order depends on, and what a refusal says of it
    "lengths": (LENGTHS[::-1], r"lengths_crc32 was \d+ when it was saved and is \d+ here"),
    "policy": (bf.TokenBudget(130), "max_tokens was 120 when it was saved and is 130 here"),
    "shuffle": (False, "shuffle was True when it was saved and is False here"),
    "window": (26, "window was 25 when it was saved and is 26 here"),
    "seed": (43, "seed was 42 when it was saved and is 43 here"),
    "overlong": ("alone", "overlong was 'raise' when it was saved and is 'alone' here"),
    "drop_last": (True, "drop_last was False when it was saved and is True here"),
    "shuffle_batches": (False, "shuffle_batches was True when it was saved and is False here"),
    "balance_group": (2, "balance_group was 1 when it was saved and is 2 here"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_state_of_another_order_is_refused_with_both_sides(name: str) -> None:
    value, message = OTHER[name]
    with pytest.raises(bf.StateError, match=message):
        sampler(**{name: value}).load_state_dict(sampler().state_dict())


def test_every_setting_is_compared_or_leaves_the_order_alone() -> None:
    names = set(inspect.signature(bf.BatchSampler).parameters)
    assert names == {*OTHER, "rank", "world_size", "uneven"}


def test_states_of_other_shapes_and_versions_are_refused() -> None:
    state = sampler().state_dict()
    assert state["version"] == 5
    with pytest.raises(bf.StateError, match=r"has version 6, but this release of brimful reads version 5"):
        sampler().load_state_dict(state | {"version": 6})
    with pytest.raises(bf.StateError, match=r"a dict of version, header, position and crc32.*\(got \['epoch'\]\)"):
        sampler().load_state_dict({"epoch": 3})
    with pytest.raises(bf.StateError, match=r"samples was 200 when it was saved and is 3 here"):
        sampler([1, 2, 3]).load_state_dict(state)


def test_a_sampler_can_be_pickled_at_any_time() -> None:
    one = sampler()
    running = iter(one)
    first = list(islice(running, 5))
    copied = pickle.loads(pickle.dumps(one))
    state = copied.state_dict()
    assert list(copied) == epoch_of(0) == first + list(resumed(state))
    assert repr(copied) == repr(one)
    assert repr(one).startswith("BatchSampler(200 samples, TokenBudget(max_tokens=120, ")
    assert repr(one).endswith(", rank 0 of 1)")


def test_no_samples() -> None:
    one = bf.BatchSampler([], bf.TokenBudget(10), world_size=2)
    assert len(one) == 0
    assert list(one) == []
    assert list(resumed(one.state_dict(), lengths=[], policy=bf.TokenBudget(10), window="auto")) == []


# -- under torch's DataLoader ----------------------------------------------------------------------------------------------


class Numbers:
    """Each sample is its number and the process that fetched it."""

    def __init__(self, count: int = 200) -> None:
        self.count = count

    def __getitem__(self, number: int) -> tuple[int, int]:
        return number, os.getpid()

    def __len__(self) -> int:
        return self.count


@pytest.fixture(scope="module")
def context() -> Any:
    """Workers by forkserver, which imports torch and this file once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["torch.utils.data", __name__])
    return made


def loader_of(one: Any, workers: int, context: Any, kind: Any = DataLoader, **options: Any) -> Any:
    if workers:
        options = {"multiprocessing_context": context, "persistent_workers": True} | options
    return kind(Numbers(), batch_sampler=one, num_workers=workers, collate_fn=list, **options)


def numbers(batches: Any) -> Lists:
    return [[number for number, _ in batch] for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_the_batches_of_persistent_workers(workers: int, context: Any) -> None:
    one = sampler()
    loader = loader_of(one, workers, context)
    processes = set()
    for epoch in (0, 1, 5):
        one.set_epoch(epoch)
        batches = list(loader)
        assert numbers(batches) == epoch_of(epoch)
        assert len(loader) == len(batches)
        processes.add(frozenset(process for batch in batches for _, process in batch))
    assert len(processes) == 1
    assert (os.getpid() in next(iter(processes))) == (workers == 0)


def test_without_workers_the_place_is_known(context: Any) -> None:
    one = sampler()
    loader = loader_of(one, 0, context)
    lists = epoch_of(0)
    for count, _ in enumerate(loader, 1):
        state = one.state_dict()
        assert state == one.state_dict(batches_consumed=count)
        if count < len(lists):
            assert numbers(loader_of(resumed(state), 0, context)) == lists[count:]


def test_with_workers_the_place_is_asked_for(context: Any) -> None:
    one = sampler()
    loader = loader_of(one, 2, context)
    lists = epoch_of(0)
    began = one.state_dict()
    for count, _ in enumerate(loader, 1):
        message = r"a DataLoader with 2 workers reads ahead: it has taken \d+ batches, .*batches_consumed=\.\.\."
        with pytest.raises(bf.StateError, match=message):
            one.state_dict()
        state = one.state_dict(batches_consumed=count)
        assert list(resumed(state)) == (lists[count:] or epoch_of(1))
        if count == 10:
            middle = state
    assert list(resumed(began)) == lists
    one.set_epoch(1)
    assert one.state_dict() == resumed(state).state_dict()

    again = resumed(middle)
    loader = loader_of(again, 2, context)
    assert numbers(islice(iter(loader), 5)) == lists[10:15]
    assert list(resumed(again.state_dict(batches_consumed=5))) == lists[15:]
    again.load_state_dict(middle)
    again.set_epoch(0)
    assert numbers(loader) == lists[10:]


def test_another_thread_reads_ahead() -> None:
    one = sampler()
    lists = iter(one)
    thread = threading.Thread(target=lambda: [next(lists) for _ in range(3)])
    thread.start()
    thread.join()
    with pytest.raises(bf.StateError, match=r"another thread reads ahead: it has taken 3 batches"):
        one.state_dict()
    assert list(resumed(one.state_dict(batches_consumed=2))) == epoch_of(0)[2:]


def test_the_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[2] / "examples" / "batch_sampler.py"),
        "--folder",
        str(tmp_path),
    ]
    for more in (["--stop-after", "25"], []):
        subprocess.run([*command, *more], check=True, timeout=120)
    one = bf.BatchSampler(np.random.default_rng(0).integers(1, 60, 2_000), bf.TokenBudget(1_024))
    expected = []
    for epoch in range(2):
        one.set_epoch(epoch)
        expected += [f"{epoch} {batch[0]} {len(batch)}" for batch in one]
    assert (tmp_path / "first_samples.txt").read_text().splitlines() == expected


# -- under torchdata's StatefulDataLoader ----------------------------------------------------------------------------------


@pytest.fixture
def stateful() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata").StatefulDataLoader


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 1), (2, 5)])
def test_a_stateful_loader_resumes_exactly(stateful: Any, workers: int, every: int, context: Any) -> None:
    options = {"kind": stateful, "snapshot_every_n_steps": every}
    one = sampler()
    one.set_epoch(1)
    loader = loader_of(one, workers, context, **options)
    lists = epoch_of(1)
    states = [pickle.dumps(loader.state_dict())]
    got = []
    for batch in loader:
        got += numbers([batch])
        states.append(pickle.dumps(loader.state_dict()))
    assert got == lists
    for count in (0, 12, len(lists) - 1, len(lists)):
        again = loader_of(sampler(), workers, context, **options)
        again.load_state_dict(pickle.loads(states[count]))
        batches = iter(again)
        rest = numbers(islice(batches, 1))
        state = again.state_dict()
        assert rest + numbers(batches) == (lists[count:] or epoch_of(2))
        if count == 12:
            second = loader_of(sampler(), workers, context, **options)
            second.load_state_dict(state)
            assert numbers(second) == lists[13:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
def test_a_stateful_loader_goes_on_to_later_epochs(stateful: Any, context: Any) -> None:
    one = sampler()
    loader = loader_of(one, 2, context, kind=stateful, snapshot_every_n_steps=7)
    assert numbers(loader) == epoch_of(0)
    assert numbers(islice(iter(loader), 3)) == epoch_of(0)[:3]
    state = loader.state_dict()
    with pytest.raises(bf.StateError, match="a DataLoader with 2 workers reads ahead"):
        one.state_dict()
    again = sampler()
    resumed_loader = loader_of(again, 2, context, kind=stateful, snapshot_every_n_steps=7)
    resumed_loader.load_state_dict(state)
    assert numbers(resumed_loader) == epoch_of(0)[3:]
    again.set_epoch(4)
    assert numbers(resumed_loader) == epoch_of(4)


# -- under Accelerate ------------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    module = pytest.importorskip("accelerate", reason="needs accelerate")
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_hands_out_every_batch_and_forwards_the_epoch(accelerate: Any, workers: int, context: Any) -> None:
    one = sampler()
    loader = accelerate.Accelerator().prepare(loader_of(one, workers, context))
    assert numbers(loader) == epoch_of(0)
    assert numbers(loader) == epoch_of(1)
    batches = iter(loader)
    assert numbers(islice(batches, 5)) == epoch_of(2)[:5]
    with pytest.raises(bf.StateError, match=r"(Accelerate|workers) reads ahead"):
        one.state_dict()
    again = resumed(one.state_dict(batches_consumed=5))
    loader = accelerate.Accelerator().prepare(loader_of(again, workers, context))
    loader.set_epoch(again.epoch)
    assert numbers(loader) == epoch_of(2)[5:]
    assert numbers(loader) == epoch_of(3)


@pytest.mark.parametrize("uneven", ["wrap", "drop"])
def test_accelerate_deals_to_the_ranks_that_we_would(accelerate: Any, uneven: str) -> None:
    prepare = accelerate.data_loader.prepare_data_loader
    for world_size in (2, 4):
        for rank in range(world_size):
            one = sampler(uneven=uneven)
            loader = prepare(loader_of(one, 0, None), num_processes=world_size, process_index=rank)
            for epoch in range(2):
                expected = epoch_of(epoch, rank=rank, world_size=world_size, uneven=uneven)
                assert numbers(loader) == expected
                assert len(loader) == len(expected)


def test_accelerate_and_ranks_of_our_own_are_refused(accelerate: Any) -> None:
    prepare = accelerate.data_loader.prepare_data_loader
    loader = prepare(loader_of(sampler(rank=1, world_size=2), 0, None), num_processes=2, process_index=1)
    message = r"both Accelerate \(2 processes\) and this BatchSampler \(2 ranks\) shard the batches. Leave rank"
    with pytest.raises(ValueError, match=message):
        next(iter(loader))


def test_accelerate_skips_the_first_batches(accelerate: Any) -> None:
    one = sampler()
    loader = accelerate.Accelerator().prepare(loader_of(one, 0, None))
    loader.set_epoch(1)
    skipped = accelerate.skip_first_batches(loader, 7)
    for count, _ in enumerate(skipped, 1):
        if count == 3:
            assert list(resumed(one.state_dict(batches_consumed=count))) == epoch_of(1)[10:]
    assert count == len(epoch_of(1)) - 7


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_on_several_processes_resumes_by_the_batches_of_one(
    accelerate: Any, workers: int, context: Any
) -> None:
    prepare = accelerate.data_loader.prepare_data_loader
    order = epoch_of(0)
    processes = next(size for size in range(2, 9) if len(order) % size)
    one = sampler()
    loader = prepare(loader_of(one, workers, context), num_processes=processes, process_index=1)
    for count, _ in enumerate(loader, 1):
        state = one.state_dict(batches_consumed=count)
        assert list(resumed(state)) == (order[processes * count :] or epoch_of(1))
    assert processes * count > len(order)
    with pytest.raises(ValueError, match=rf"between 0 and {count}, .* \(got {count + 1}\)"):
        one.state_dict(batches_consumed=count + 1)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_with_a_stateful_loader_resumes_exactly(
    accelerate: Any, stateful: Any, workers: int, context: Any, tmp_path: Any
) -> None:
    configuration = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)

    def prepared() -> tuple[Any, Any]:
        accelerator = accelerate.Accelerator(dataloader_config=configuration)
        return accelerator, accelerator.prepare(loader_of(sampler(), workers, context))

    accelerator, loader = prepared()
    assert numbers(loader) == epoch_of(0)
    batches = iter(loader)
    assert numbers(islice(batches, 6)) == epoch_of(1)[:6]
    accelerator.save_state(str(tmp_path))
    rest = numbers(batches)
    accelerator, loader = prepared()
    accelerator.load_state(str(tmp_path))
    assert numbers(loader) == rest == epoch_of(1)[6:]


def test_a_stratified_state_of_the_first_release_is_refused_with_the_way_on() -> None:
    """It was given the random order, which its state says."""
    saved = bf.BatchSampler([3] * 50, bf.FixedSize(4), shuffle_batches=True)
    first = next(iter(saved))
    state = saved.state_dict(batches_consumed=1)
    with pytest.raises(bf.StateError, match=r"BatchSampler of 1\.0\.0rc1 .* go on with True"):
        bf.BatchSampler([3] * 50, bf.FixedSize(4), shuffle_batches="stratified").load_state_dict(state)
    again = bf.BatchSampler([3] * 50, bf.FixedSize(4), shuffle_batches=True)
    again.load_state_dict(state)
    assert [first, *again] == list(bf.BatchSampler([3] * 50, bf.FixedSize(4), shuffle_batches=True))
