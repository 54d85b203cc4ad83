"""What trainers expect of a loader: epochs, states, and no duplicates in workers."""

from __future__ import annotations

import copy
import gc
import json
import logging
import pickle
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import brimful as bf
from brimful.async_loader import AsyncLoader
from brimful.core.states import as_text
from brimful.loader import Loader
from brimful.plan.errors import StageError, StateError, warn_once
from tests.effort import examples
from tests.strategies import letters


def make_batches(count: int = 12) -> bf.Batches:
    return bf.from_sequence([{"input_ids": [number]} for number in range(count)], shuffle=True).batch(2)


def make() -> Loader:
    return make_batches().loader()


def flat(batches: object) -> list[int]:
    return [number for batch in batches for number in batch["input_ids"].flatten().tolist()]  # type: ignore[attr-defined]


def test_each_iteration_is_the_next_epoch_in_another_order() -> None:
    loader = make()
    one, two = flat(loader), flat(loader)
    assert sorted(one) == sorted(two) == list(range(12))
    assert one != two
    loader.set_epoch(0)
    assert flat(loader) == one
    assert len(loader) == 6


@pytest.mark.parametrize("taken", range(7))
def test_a_state_goes_on_where_it_was_taken_and_at_the_end_with_the_next_epoch(taken: int) -> None:
    loader = make()
    whole = [flat(loader) for _ in range(3)]
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    for _ in range(2):  # a state may be loaded twice
        resumed = make()
        resumed.load_state_dict(state)
        assert json.loads(json.dumps(resumed.state_dict())) == state, "loading is not moving"
        first = flat(resumed)
        assert first == (whole[1][2 * taken :] if taken < 6 else whole[2])
        assert flat(resumed) == (whole[2] if taken < 6 else flat(iter_epoch(3)))


def iter_epoch(epoch: int) -> Loader:
    loader = make()
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("taken", [1, 6])
def test_a_restored_epoch_keeps_its_position_and_another_is_refused_before_its_first_batch(taken: int) -> None:
    loader = make()
    flat(islice(loader, taken))
    restored = make()
    restored.load_state_dict(loader.state_dict())
    epoch = taken // 6
    message = (
        rf"^this loader was restored to epoch {epoch}, and set_epoch says {1 - epoch} before its first batch, which would begin "
        r"again what was trained on; count epochs from the restored one on \(its `epoch`\), or restore no state$"
    )
    with pytest.raises(ValueError, match=message):
        restored.set_epoch(1 - epoch)
    restored.set_epoch(epoch)
    assert len(flat(restored)) == 12 - 2 * (taken % 6)
    restored.set_epoch(0)
    assert flat(restored) == flat(iter_epoch(0))
    restored.load_state_dict(loader.state_dict())
    for _ in restored:
        break
    restored.set_epoch(1 - epoch)
    assert len(flat(restored)) == 12


def test_a_state_after_the_loop_is_that_of_the_next_epoch() -> None:
    loader = make()
    flat(loader)
    assert loader.state_dict() == as_text(1, None, None)


def test_leaving_a_loop_closes_what_it_ran() -> None:
    loader = make()
    for _ in loader:
        break
    assert len(flat(loader)) == 12


@pytest.mark.parametrize("go_on", [False, True])
def test_a_state_loaded_in_the_middle_of_an_epoch_takes_its_place(go_on: bool) -> None:
    loader = make()
    whole = [flat(loader) for _ in range(2)]
    loader.set_epoch(0)
    for number, _ in enumerate(loader):
        if number == 1:
            state = loader.state_dict()
        if number == 3:
            loader.load_state_dict(state)
            if not go_on:
                break
    assert number == 3, "what ran has ended"
    assert flat(loader) == whole[0][4:]
    assert flat(loader) == whole[1], "and no epoch is left out"


def test_another_epoch_has_nothing_of_the_one_that_was_left() -> None:
    loader = make()
    for _ in loader:
        break
    loader.set_epoch(1)
    assert loader.state_dict() == as_text(1, None, None)


def by_zip(loader: Loader) -> object:
    return [batch for _, batch in zip(range(len(loader)), loader)]


def by_islice(loader: Loader) -> object:
    return islice(loader, 6)


def by_dataloader(loader: Loader) -> object:
    return [batch for _, batch in zip(range(6), DataLoader(loader, batch_size=None))]


@pytest.mark.parametrize("read", [by_zip, by_islice, by_dataloader])
@pytest.mark.parametrize("named", [False, True])
def test_a_loader_that_is_read_to_its_last_batch_has_ended_its_epoch(read: Any, named: bool) -> None:
    expected = [flat(iter_epoch(epoch)) for epoch in range(3)]
    loader = make()
    for epoch in range(3):
        if named:
            loader.set_epoch(epoch)
        assert flat(read(loader)) == expected[epoch]
        assert loader.state_dict() == as_text(epoch + 1, None, None)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert flat(resumed) == flat(iter_epoch(epoch + 1))
    loader.set_epoch(1)
    assert flat(loader) == expected[1], "an epoch that is named again"


def test_a_loop_that_is_left_ends_its_epoch_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    loader = make()
    for epoch in range(3):
        assert flat(islice(loader, 3)) == flat(iter_epoch(epoch))[:6]
    assert flat(loader) == flat(iter_epoch(3))
    said = [record.getMessage() for record in caplog.records if "was left before its end" in record.getMessage()]
    assert len(said) == 1


def test_after_a_loop_that_was_left_a_state_has_its_place_and_set_epoch_begins_anew() -> None:
    loader = make()
    flat(islice(loader, 3))
    other = make()
    other.load_state_dict(loader.state_dict())
    other.set_epoch(0)
    assert flat(other) == flat(iter_epoch(0))[6:], "after a restore it keeps the place"
    loader.set_epoch(0)
    assert make_at(loader.state_dict()) == flat(iter_epoch(0)), "the state is of the start then"
    assert flat(loader) == flat(iter_epoch(0))
    held = iter(loader)
    next(held)
    loader.set_epoch(1)  # inside a loop it names the next one
    assert flat(loader) == flat(iter_epoch(1))


def test_a_loop_that_took_nothing_has_left_nothing() -> None:
    loader = make()
    iter(loader)
    for _ in zip(range(0), loader):
        pass
    assert flat(loader) == flat(iter_epoch(0))


def make_at(state: dict[str, Any]) -> list[int]:
    loader = make()
    loader.load_state_dict(state)
    return flat(loader)


def test_a_loop_inside_a_loop_over_the_same_loader_is_an_error_of_the_outer_one() -> None:
    loader = make()
    outer = iter(loader)
    next(outer)
    iter(loader)  # trainers call it twice
    next(outer)
    assert flat(loader) == flat(iter_epoch(1))
    with pytest.raises(
        RuntimeError, match=r"^another loop over this loader has begun inside this one, .*batches\.loader\(\)$"
    ):
        next(outer)
    assert flat(loader) == flat(iter_epoch(2)), "the loader goes on"


def test_a_loop_that_has_had_its_last_batch_ends_whatever_began_since() -> None:
    loader = make()
    outer = iter(loader)
    one = flat(islice(outer, 6))
    two = flat(loader)
    assert next(outer, None) is None
    assert [one, two, flat(loader)] == [flat(iter_epoch(epoch)) for epoch in range(3)]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_goes_on_where_it_is(how: Any) -> None:
    loader = make()
    batches = iter(loader)
    begun = flat(islice(batches, 2))
    assert begun + flat(how(loader)) == flat(iter_epoch(0)) == begun + flat(batches)


def test_an_error_leaves_a_loader_its_place() -> None:
    def failing(batch: Any) -> Any:
        if 7 in batch["input_ids"]:
            raise ValueError("no seven")
        return batch

    def calm(batch: Any) -> Any:
        return batch

    calm.__qualname__ = failing.__qualname__  # states know functions by their names
    batches = bf.from_sequence([{"input_ids": [number]} for number in range(12)]).batch(2)
    loader = batches.map(failing).loader()
    found: list[Any] = []
    with pytest.raises(bf.StageError, match="no seven"):
        found.extend(loader)
    resumed = batches.map(calm).loader()
    resumed.load_state_dict(loader.state_dict())
    assert flat(found) + flat(resumed) == list(range(12))


def test_states_survive_torch_save(tmp_path: object) -> None:
    loader = make()
    next(iter(loader))
    path = f"{tmp_path}/state.pt"
    torch.save(loader.state_dict(), path)
    assert torch.load(path, weights_only=True) == loader.state_dict()


def test_workers_are_refused_rather_than_given_everything() -> None:
    data = DataLoader(make(), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(RuntimeError, match="this loader reads in the process that iterates over it"):
        next(iter(data))
    assert len(list(DataLoader(make(), batch_size=None))) == 6


def test_a_foreign_state_is_refused() -> None:
    message = (
        r"a loader's state is a dict of epoch and iterator \(got a dict of version, header, position, crc32\); what an"
    )
    with pytest.raises(StateError, match=message):
        make().load_state_dict(make().batches.iter().state_dict())


def no_seven(sample: dict[str, Any]) -> bool:
    if 7 in sample["input_ids"]:
        raise ValueError("seven")
    return True


def test_a_state_of_another_pipeline_or_a_damaged_one_is_refused_at_once(tmp_path: Path) -> None:
    """No row is read for it: the shard has none that could be."""
    (tmp_path / "a.jsonl").write_text("no JSON\n")

    def loader(size: int, **settings: Any) -> Loader:
        return bf.from_files(f"{tmp_path}/a.jsonl").batch(size).loader(**settings)

    threads = {*threading.enumerate()}
    for settings in ({}, {"steps_per_epoch": 4}):
        held = loader(2, **settings).batches.iter().state_dict()
        steps = None if not settings else 1
        with pytest.raises(StateError, match=r"another pipeline: batch.policy.n was 2 when it was saved and is 3 here"):
            loader(3, **settings).load_state_dict(as_text(0, held, None, steps))
        edited = held | {"position": [9, held["position"]]}
        with pytest.raises(StateError, match="this state is damaged: its position has the checksum"):
            loader(2, **settings).load_state_dict(as_text(0, edited, None, steps))
        loader(2, **settings).load_state_dict(as_text(0, held, None, steps))
    assert {*threading.enumerate()} <= threads


def test_a_loader_stays_where_it_was_after_a_state_that_it_refuses() -> None:
    loader, whole = make(), flat(make())
    loop = iter(loader)
    seen = flat([next(loop)])
    other = bf.from_sequence([[1], [2]]).batch(1).loader()
    next(iter(other))
    with pytest.raises(StateError, match="belongs to another pipeline"):
        loader.load_state_dict(other.state_dict(), allow={"urls"})
    assert seen + flat(loop) == whole


def test_what_a_filter_left_out_before_a_state_was_saved_is_not_counted_again() -> None:
    def filtered() -> Loader:
        rows = bf.from_sequence([{"input_ids": [number]} for number in range(12)])
        return rows.filter(no_seven, on_error="skip").batch(2).loader()

    whole, rest = filtered(), filtered()
    next(iter(whole))
    rest.load_state_dict(whole.state_dict())
    rest.load_state_dict(whole.state_dict())
    assert flat(rest) == [2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert rest.stats is not None
    assert rest.stats.skipped == 0
    assert flat(rest)[:2] == [0, 1]
    assert rest.stats.skipped == 0, "of this epoch"


def test_an_empty_data_set_has_empty_epochs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(make_batches(0).loader()) == []


KINDS: dict[str, Callable[[], Any]] = {
    "whole": make,
    "ahead": lambda: AsyncLoader(make(), "cpu"),
    "steps": lambda: stepping(6),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [False, True])
def test_what_was_taken_and_not_used_comes_again(kind: str, begun: bool) -> None:
    whole, make_loader = flat(make()), KINDS[kind]
    loader, used = make_loader(), [70]
    held = iter(loader)
    if begun:
        next(held)  # before it is known who reads
    loader.follow(lambda: used[0])
    assert loader.state_dict() == make_loader().state_dict()
    held = iter(loader)
    for number in range(4):
        assert flat([next(held)]) == whole[2 * number : 2 * number + 2]
        used[0] += number < 2
    resumed = make_loader()
    resumed.load_state_dict(loader.state_dict())
    assert flat(resumed) == whole[4:]
    loader.follow(None)
    resumed = make_loader()
    resumed.load_state_dict(loader.state_dict())
    assert flat(resumed) == whole[4:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_was_sent_elsewhere_inside_of_a_loop_is_followed_from_there(kind: str) -> None:
    loader = KINDS[kind]()
    held = iter(loader)
    next(held)
    state = loader.state_dict()
    next(held)
    loader.load_state_dict(state)
    loader.follow(lambda: 0)
    assert loader.state_dict() == state
    assert flat(loader) == flat(make())[2:]


def test_a_loop_that_begins_goes_back_to_what_was_used() -> None:
    loader, used = stepping(6), [0]
    loader.follow(lambda: used[0])
    for _ in zip(range(2), iter(loader)):
        pass
    used[0] = 1
    assert flat(loader)[:4] == flat(make())[2:6], "the second batch was not used"


@given(
    kind=st.sampled_from(["whole", "steps", "steps ahead", "whole ahead"]),
    acts=st.lists(
        st.sampled_from(["take", "take", "take", "use", "use", "leave", "save", "copy", "again"]), max_size=40
    ),
)
@examples(60)
def test_a_trainer_uses_each_batch_once_whatever_it_takes_leaves_and_saves(kind: str, acts: list[str]) -> None:
    used: list[int] = []
    held: list[Any] = []

    def made() -> Any:
        loader = stepping(2) if "steps" in kind else make()
        return AsyncLoader(loader, "cpu") if "ahead" in kind else loader

    loader, running = made(), None
    loader.follow(lambda: len(used) // 2)
    for act in acts:
        if act == "take":
            running = iter(loader) if running is None else running
            if (batch := next(running, None)) is None:
                running = None
            else:
                held.append(batch)
        elif act == "use" and held:
            used.extend(flat([held.pop(0)]))
        elif act == "leave" and running is not None and "steps" in kind:  # an epoch of the data would begin again
            running.close()
            running = None
            held.clear()
        elif act in ("save", "copy"):
            state = json.loads(json.dumps(loader.state_dict()))
            loader, running = made() if act == "save" else pickle.loads(pickle.dumps(loader)), None
            assert act == "save" or loader.state_dict() == state
            loader.load_state_dict(state)
            loader.follow(lambda: len(used) // 2)
            held.clear()
        elif act == "again":  # another trainer counts on
            loader.follow(lambda: 100 + len(used) // 2)
    assert used == endless(len(used) // 2)


# -- epochs of so many steps ---------------------------------------------------------------------------------------------


def stepping(steps: int = 4) -> Loader:
    return make_batches().loader(steps_per_epoch=steps)


def endless(count: int) -> list[int]:
    """The first batches over epochs of the data."""
    return flat(islice((batch for epoch in range(count) for batch in iter_epoch(epoch)), count))


def test_epochs_of_steps_go_on_where_the_one_before_stopped() -> None:
    loader = stepping()
    assert len(loader) == 4
    assert [flat(loader) for _ in range(5)] == [endless(20)[8 * i : 8 * i + 8] for i in range(5)]
    assert loader.epoch == 5


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6), data=st.data())
@examples(40)
def test_nothing_comes_twice_or_never_where_loops_are_left_and_restored(
    lengths: list[int], data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, 5))
    ahead = data.draw(st.booleans())

    def made() -> Any:
        return AsyncLoader(stepping(steps), "cpu", prefetch=2) if ahead else stepping(steps)

    loader, taken, done = made(), [], 0
    for length in lengths:
        found = flat(islice(loader, length))
        assert len(found) == 2 * min(length, steps - done)
        taken += found
        done = 0
        state = json.loads(json.dumps(loader.state_dict()))
        what = data.draw(st.sampled_from(["go on", "restore", "copy", "set_epoch"]))
        if what == "restore":
            loader, done = made(), state["steps"]
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        elif what == "copy":
            loader = pickle.loads(pickle.dumps(loader))
        elif what == "set_epoch":
            loader.set_epoch(loader.epoch + 1)
    assert taken == endless(len(taken) // 2)


def test_a_state_of_epochs_of_steps_is_for_such_and_the_reverse() -> None:
    whole, steps = make(), stepping()
    next(iter(whole))
    next(iter(steps))
    message = (
        r"^this state is of a loader of epochs of the data, and this one has epochs of steps_per_epoch=4; use the same$"
    )
    with pytest.raises(bf.StateError, match=message):
        steps.load_state_dict(whole.state_dict())
    message = (
        r"^this state is of a loader of epochs of steps_per_epoch=\.\.\., and this one has epochs of the data; use"
    )
    with pytest.raises(bf.StateError, match=message):
        whole.load_state_dict(steps.state_dict())


@pytest.mark.parametrize("steps", [5, 7])
def test_a_state_behind_the_end_of_shorter_epochs_is_refused_with_both_numbers(steps: int) -> None:
    longer, shorter = stepping(10), stepping(5)
    flat(islice(longer, steps))
    message = rf"^this state was saved after {steps} steps of its epoch, and this loader has steps_per_epoch=5; go on"
    with pytest.raises(bf.StateError, match=message):
        shorter.load_state_dict(longer.state_dict())
    assert flat(shorter) == endless(5)  # stands where it stood
    still = stepping(steps + 1)
    still.load_state_dict(longer.state_dict())
    assert flat(still) == endless(steps + 1)[2 * steps :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -3}, "steps must be at least 0"),
        ({"steps": 10**30}, "steps must be at most"),
        ({"steps": 2.5}, r"steps must be an integer \(got 2.5\)"),
        ({"steps": "2"}, r"steps must be an integer \(got '2'\)"),
        ({"steps": None}, r"steps must be an integer \(got None\)"),
        ({"steps": 2}, r"epoch 0, steps 2 and its place have the checksum \d+, not \d+; it was edited"),
        ({"epoch": 1}, r"epoch 1, steps 3 and its place have the checksum"),
        ({"iterator": ""}, r"epoch 0, steps 3 and its place have the checksum"),
        ({"crc32": "x"}, r"epoch 0, steps 3 and its place have the checksum \d+, not 'x'"),
    ],
)
def test_a_state_whose_numbers_were_changed_is_refused(change: dict[str, Any], message: str) -> None:
    loader = stepping()
    flat(islice(loader, 3))
    with pytest.raises(bf.StateError, match=f"^this loader's state is damaged: {message}"):
        stepping().load_state_dict(loader.state_dict() | change)


def test_a_state_of_before_without_a_checksum_is_taken() -> None:
    loader, again = stepping(), stepping()
    flat(islice(loader, 3))
    state = loader.state_dict()
    del state["crc32"]
    again.load_state_dict(state)
    assert flat(again) == endless(4)[6:]


def test_a_loop_inside_a_loop_of_steps_ends_the_outer_one_with_an_error() -> None:
    loader = stepping()
    outer = iter(loader)
    next(outer)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another loop over this loader has begun inside this one"):
        next(outer)


@pytest.mark.parametrize("error", [KeyError("gone"), KeyboardInterrupt()], ids=["an error", "Ctrl-C"])
@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("around", [copy.copy, partial(AsyncLoader, device="cpu")], ids=["plain", "ahead"])
def test_a_loop_that_failed_is_never_taken_for_one_that_ended(around: Any, steps: int | None, error: Any) -> None:
    def fail_at_third(batch: Any) -> Any:
        if batch["input_ids"].item() == 3:
            raise error
        return batch

    batches = bf.from_sequence([[1], [2], [3]]).batch(1).map(fail_at_third)
    it = iter(around(batches.loader(steps_per_epoch=steps)))
    assert flat([next(it), next(it)]) == [1, 2]
    with pytest.raises((bf.StageError, KeyboardInterrupt)):
        next(it)
    for _ in range(2):
        with pytest.raises(bf.BrokenError, match=f"^this iterator failed earlier: .*{type(error).__name__}"):
            next(it)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True])
def test_steps_are_a_number_of_them(steps: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^steps_per_epoch must be (at least 1 step|an integer) \(got "):
        make_batches().loader(steps_per_epoch=steps)


def test_a_damaged_state_is_told_as_such() -> None:
    with pytest.raises(
        StateError, match=r"^this loader's state is damaged: Expecting value: .* in 'xx'; it was edited"
    ):
        make().load_state_dict({"epoch": 0, "iterator": "xx"})


def failing() -> bf.Batches:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["input_ids"].max() == 11:
            raise ValueError("eleven")
        return batch

    return bf.from_sequence([{"input_ids": [number]} for number in range(12)]).batch(2).map(fail)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("steps", [None, 9])
def test_a_snapshot_gives_the_state_of_its_moment_whatever_comes_after_it(ahead: bool, steps: int | None) -> None:
    loader: Any = failing().loader(steps_per_epoch=steps)
    if ahead:
        loader = AsyncLoader(loader, "cpu")
    snapshots, states = [loader._snapshot()], [loader.state_dict()]

    def keep(_: object) -> None:
        snapshots.append(loader._snapshot())
        states.append(loader.state_dict())

    with pytest.raises(StageError, match="eleven"):
        list(map(keep, loader))
    keep(None)
    loader.load_state_dict(states[2])
    assert len({json.dumps(state) for state in states}) == 6, "5 batches, and the start"
    for snapshot, state in zip(snapshots, states):
        snapshot()["epoch"] = 70
        assert snapshot() == state


class Walked:
    """Batches that count how often somebody goes through their stages for a state."""

    def __init__(self) -> None:
        self.batches, self.walks = make_batches(), 0

    def _begin(self, *how: Any) -> Any:
        return self.batches._begin(*how)

    @property
    def stage(self) -> Any:
        self.walks += 1
        return self.batches.stage

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def sharded(self) -> bool:
        return self.batches.sharded


def test_states_are_made_when_they_are_asked_for_and_not_with_each_batch() -> None:
    walked = Walked()
    ahead = AsyncLoader(Loader(walked), "cpu", prefetch=0)
    for followed in (False, True):
        if followed:
            ahead.follow(lambda: 0)
        batches = iter(ahead)
        next(batches)
        before = walked.walks
        assert len(list(batches)) == 5
        assert walked.walks <= before + 1, "after a loop, where it went to"
        assert ahead.state_dict()["epoch"] == 1


def test_loaders_and_iterators_say_what_they_are() -> None:
    batches = bf.from_sequence([[1], [2], [3]]).batch(2)
    loader = batches.loader(steps_per_epoch=3)
    assert repr(loader) == "Loader(from_sequence > batch, epoch 0, steps_per_epoch=3)"
    assert repr(bf.from_sequence(["a"]).loader()) == "Loader(from_sequence, epoch 0)"
    around = "AsyncLoader(Loader(from_sequence > batch, epoch 0), cpu, buckets=(2, 4))"
    assert repr(AsyncLoader(batches.loader(), "cpu", buckets=[4, 2])) == around
    assert repr(AsyncLoader([{"x": 1}], "cpu")) == "AsyncLoader(list, cpu)"
    it = batches.iter()
    assert repr(it) == "ResumableIterator(from_sequence > batch, open, 0 samples taken)"
    next(it)
    it.close()
    assert repr(it) == "ResumableIterator(from_sequence > batch, closed, 2 samples taken)"
    it = batches.iter()
    assert len([*it]) == 2
    assert repr(it) == "ResumableIterator(from_sequence > batch, at its end, 3 samples taken)"
    broken = batches.map(len).map(lambda number: number["x"]).iter()
    with pytest.raises(Exception, match="subscriptable"):
        next(broken)
    assert repr(broken) == "ResumableIterator(from_sequence > batch > map > map, failed, 0 samples taken)"


@pytest.mark.parametrize("steps", [None, 5])
def test_a_loop_that_is_left_with_its_loader_leaves_no_thread_behind(steps: int | None) -> None:
    """Not until the garbage collector comes either, which may be never."""
    gc.collect()
    gc.disable()
    try:
        before = {*threading.enumerate()}
        texts = bf.from_sequence(["a b c"] * 400).stream()
        loop = iter(texts.tokenize(letters).batch(4).loader(steps_per_epoch=steps))
        next(loop)
        begun = {*threading.enumerate()} - before
        assert "brimful-tokenize" in {thread.name for thread in begun}
        del loop
        for thread in begun:
            thread.join(10.0)
        assert not any(thread.is_alive() for thread in begun)
    finally:
        gc.enable()
