"""Loops with Accelerate: killed and resumed by `save` and `load`, on one process and two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import brimful as bf
from brimful.integrations.follow import check_shared_out
from tests.forks import Launch, forks_of
from tests.integrations.unequal import batches, one, rows_of, write_shards

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from brimful.integrations.accelerate import load, prepare, save
from brimful.isolation import guard
from tests.integrations.accelerate_child import checkpoints, train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "streamed": lambda folder: batches("streamed", folder).loader(),
    "indexed": lambda folder: batches("indexed", folder).loader(),
    "batches": lambda folder: batches("indexed", folder),
    "steps": lambda folder: batches("streamed", folder).loader(steps_per_epoch=9),
    "ahead": lambda folder: bf.AsyncLoader(LOADERS["streamed"](folder), "cpu"),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_goes_on_from_each_checkpoint(folder: Path, kind: str) -> None:
    unbroken = train(LOADERS[kind](folder), saves=folder, added_up=7)
    saved = checkpoints(folder)
    assert [steps for _, steps in saved] == [number for number, step in enumerate(unbroken, 1) if step[2]]
    per_epoch = len(unbroken) // 2
    assert per_epoch in dict(saved).values(), "the last batch of an epoch steps"
    assert per_epoch % 7, "where gradients of 7 batches are added up"
    for path, steps in saved:
        assert train(LOADERS[kind](folder), path, added_up=7) == unbroken[steps:]


@pytest.mark.parametrize("kind", ["streamed", "indexed", "ahead"])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_what_is_held_ahead_is_not_in_a_state(folder: Path, kind: str, taken: int) -> None:
    whole = [one(batch) for batch in LOADERS[kind](folder)]
    loader = LOADERS[kind](folder)
    prepared = prepare(Accelerator(cpu=True), loader)
    assert len(list(zip(range(taken), prepared))) == taken
    assert prepared.state_dict() == loader.state_dict()
    again = prepare(Accelerator(cpu=True), LOADERS[kind](folder))
    again.load_state_dict(prepared.state_dict())
    assert [one(batch) for batch in again] == whole[taken:]
    if taken:  # a loop that was left ends its epoch
        assert again.epoch == 1
        whole = [one(batch) for batch in again]
    assert [one(batch) for batch in prepared] == whole
    assert again.epoch == prepared.epoch == loader.epoch == 1 + (taken > 0)


@pytest.mark.parametrize("kind", ["streamed", "indexed", "steps", "ahead"])
def test_the_epoch_is_that_of_the_batch_handed_out_not_of_what_is_held_ahead(folder: Path, kind: str) -> None:
    prepared = prepare(Accelerator(cpu=True), LOADERS[kind](folder))
    for epoch in range(2):
        seen = [prepared.epoch for _ in prepared]
        assert seen == [epoch] * (len(seen) - 1) + [epoch + 1]
        assert prepared.epoch == epoch + 1


def test_a_loop_that_begins_beside_another_goes_on_behind_what_that_one_used(folder: Path) -> None:
    plain = LOADERS["steps"](folder)
    whole = [one(batch) for _ in range(2) for batch in plain]
    prepared = prepare(Accelerator(cpu=True), LOADERS["steps"](folder))
    held = iter(prepared)
    assert [one(next(held)) for _ in range(2)] + [one(batch) for batch in prepared] == whole[: 2 + len(prepared)]


def test_a_state_that_is_loaded_inside_a_loop_ends_it(folder: Path) -> None:
    prepared = prepare(Accelerator(cpu=True), LOADERS["streamed"](folder))
    whole = [one(batch) for batch in prepared]
    prepared.set_epoch(0)
    for number, _ in enumerate(prepared):
        if number == 1:
            state = prepared.state_dict()
        if number == 3:
            prepared.load_state_dict(state)
    assert number == 3
    assert [one(batch) for batch in prepared] == whole[2:]


def test_loops_inside_loops_tell_of_their_own_ends(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    outer, inner = prepare(accelerator, LOADERS["indexed"](folder), LOADERS["streamed"](folder))
    for number, _ in enumerate(outer, 1):
        for _ in inner:
            pass
        assert accelerator.gradient_state.end_of_dataloader == (number == len(outer))
        for _ in inner:
            break
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("ended", ["closed", "loaded", "gone on"])
def test_a_loop_that_was_left_takes_nothing_from_the_one_after_it(folder: Path, ended: str) -> None:
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=7), torch.nn.Linear(1, 1)
    loader, model = prepare(accelerator, LOADERS["indexed"](folder), model)
    older = iter(loader)
    next(older)
    if ended == "loaded":
        loader.load_state_dict(loader.state_dict())
    stepped = []
    for number, _ in enumerate(loader, 1):
        with accelerator.accumulate(model):
            stepped.append(accelerator.sync_gradients)
        if number == 2 and ended == "gone on":
            assert list(older) == []
        elif number == 2:
            del older
    assert len(stepped) % 7
    assert stepped == [number % 7 == 0 or number == len(stepped) for number in range(1, len(stepped) + 1)]
    assert not accelerator.gradient_state.in_dataloader


def test_nothing_is_looked_for_in_batches_where_no_model_is_prepared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "segments_of", lambda batch: pytest.fail("it copies from the device"))
    packed = bf.from_sequence(rows_of(20)).pack(20)
    assert len(list(prepare(Accelerator(cpu=True), packed))) == len(packed)


def test_what_prepare_is_given_comes_back_in_its_order(folder: Path) -> None:
    model, loader = torch.nn.Linear(1, 1), batches("indexed", folder).loader()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerator = Accelerator(cpu=True)
    made = prepare(accelerator, loader, model, loader, optimizer)
    assert [type(one).__name__ for one in made] == ["Prepared", "Linear", "Prepared", "AcceleratedOptimizer"]
    assert len(made[0]) == len(loader)
    assert isinstance(prepare(accelerator, torch.nn.Linear(1, 1)), torch.nn.Linear)


def test_accelerates_own_names_save_and_restore_as_well(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, LOADERS["streamed"](folder))
    whole = [one(batch) for batch in loader]
    loader.set_epoch(0)
    for _ in zip(range(3), loader):
        pass
    accelerator.save_state(str(folder / "state"))
    other = Accelerator(cpu=True)
    again = prepare(other, LOADERS["streamed"](folder))
    other.load_state(str(folder / "state"))
    assert [one(batch) for batch in again] == whole[3:]


@pytest.mark.parametrize("at", ["written", "moved aside", "named"])
def test_a_save_that_is_stopped_leaves_a_whole_checkpoint(
    folder: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, LOADERS["indexed"](folder))
    batch = iter(loader)
    next(batch)
    save(accelerator, folder / "last")
    next(batch)

    class Killed(BaseException):
        pass

    rename = Path.rename

    def stopped(path: Path, target: Any) -> Any:
        if at == "moved aside" and path.name == "last":
            rename(path, target)
        raise Killed

    with monkeypatch.context() as patched:
        if at == "named":
            patched.setattr("shutil.rmtree", lambda path, **_: None)
        else:
            patched.setattr(Path, "rename", stopped)
        if at == "named":
            save(accelerator, folder / "last")
        else:
            with pytest.raises(Killed):
                save(accelerator, folder / "last")

    def place() -> int:
        again = Accelerator(cpu=True)
        prepared = prepare(again, LOADERS["indexed"](folder))
        load(again, folder / "last")
        return len(list(prepared))

    assert place() == len(loader) - (2 if at == "named" else 1)
    next(batch)
    save(accelerator, folder / "last")
    assert place() == len(loader) - 3
    assert not (folder / "last.old").exists()
    assert not (folder / "last.partial").exists()


def test_on_one_process_accelerates_own_prepare_takes_a_dataloader_around_a_loader(folder: Path) -> None:
    loader = LOADERS["indexed"](folder)
    expected = [batch["input_ids"].tolist() for batch in LOADERS["indexed"](folder)]
    theirs = Accelerator(cpu=True).prepare(DataLoader(loader, batch_size=None))
    assert [batch["input_ids"].tolist() for batch in theirs] == expected


def test_what_would_lose_the_place_is_refused(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(TypeError, match=r"^a DataLoader around a loader .* give prepare the loader itself$"):
        prepare(accelerator, DataLoader(LOADERS["indexed"](folder), batch_size=None))
    for call in (save, load):
        with pytest.raises(
            RuntimeError, match=r"^this accelerator knows no loader of brimful's, .*accelerate\.prepare first$"
        ):
            call(accelerator, folder / "last")
    names = Accelerator(
        cpu=True, project_config=ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    )
    prepare(names, LOADERS["indexed"](folder))
    for call in (save, load):
        with pytest.raises(
            ValueError, match=r"^this accelerator names its checkpoints itself .*save_state\(\) and load_state\(\)"
        ):
            call(names, folder / "last")


def test_gradients_that_a_checkpoint_does_not_have_are_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    accelerator, weights = Accelerator(cpu=True, gradient_accumulation_steps=3), torch.nn.Linear(1, 1)
    loader, model = prepare(accelerator, LOADERS["indexed"](folder), weights)
    said = []
    for _ in loader:
        with accelerator.accumulate(model), caplog.at_level(logging.WARNING, "brimful"):
            caplog.clear()
            save(accelerator, folder / "checkpoint")
            said.append("checkpoint is saved between the batches of an optimizer step" in caplog.text)
    assert said == [True, True, False] * 3 + [False]


def test_who_would_skip_what_was_read_is_told_that_loading_did(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(AttributeError, match=r"to skip batches of: after load, .* so leave skip_first_batches out$"):
        accelerator.skip_first_batches(prepare(accelerator, LOADERS["indexed"](folder)), 2)


def test_a_state_of_what_accelerate_reads_ahead_is_refused(folder: Path) -> None:
    loader = LOADERS["indexed"](folder)
    for _ in zip(range(2), Accelerator(cpu=True).prepare(DataLoader(loader, batch_size=None))):
        with pytest.raises(
            bf.StateError, match=r"^Accelerate takes batches of this loader before .*accelerate\.prepare, and save"
        ):
            loader.state_dict()


@pytest.fixture(scope="module")
def ranks_of() -> Iterator[Launch]:
    with forks_of("tests.integrations.accelerate_child") as run:
        yield run


@pytest.mark.parametrize("kind", ["streamed", "indexed"])
def test_two_processes_are_killed_and_go_on_as_two_and_as_one(ranks_of: Any, folder: Path, kind: str) -> None:
    wholes = ranks_of(2, "whole", folder, kind)
    for unbroken, rest in wholes:
        assert len(rest) > 2
        assert all(more == unbroken[steps:] for steps, more in rest)
    for path, steps in checkpoints(folder):
        if steps > 4:
            path.rename(folder / f"unused-{steps}")
    assert ranks_of(2, "killed", folder, kind) == [None, None]
    for (steps, more), (unbroken, _) in zip(ranks_of(2, "resumed", folder, kind), wholes, strict=True):
        assert 0 < steps <= 5
        assert more == unbroken[steps:]
    ((steps, alone),) = ranks_of(1, "resumed", folder, kind)
    in_turn = [ids for step in zip(*(unbroken[steps:] for unbroken, _ in wholes)) for ids, *_ in step if ids]
    assert [ids for ids, *_ in alone if ids] == in_turn


def test_what_would_be_shared_out_twice_or_not_at_all_is_refused_on_all_processes(ranks_of: Any, folder: Path) -> None:
    twice = "Accelerate would share the batches of this loader out to its 2 processes a second time, or read all of them on the"
    for unsharded, dispatched, sharded in ranks_of(2, "refused", folder):
        assert unsharded.startswith(
            "there are 2 processes, and the batches of this loader are not shared out: each would get"
        )
        assert dispatched.startswith(twice)
        assert sharded.startswith(twice)


def test_a_process_that_refuses_its_state_tells_the_others(ranks_of: Any, folder: Path) -> None:
    zero, (kind, words) = ranks_of(2, "refuses", folder)
    assert (kind, words.partition(":")[0]) == ("StateError", "this state belongs to another pipeline")
    assert zero == ["RankError", f"rank 1 failed: StateError: {words}"]


@pytest.mark.parametrize(
    "loader",
    [bf.from_sequence(rows_of(3)).loader(), bf.from_sequence(rows_of(3)).batch(1).loader()],
    ids=["samples", "batches"],
)
def test_what_each_of_several_processes_would_get_all_of_is_refused(loader: Any) -> None:
    check_shared_out(loader, 1, "ranks", "each would get")
    with pytest.raises(
        ValueError, match=r"^there are 2 ranks, and the batches of this loader are not shared out: each would get"
    ):
        check_shared_out(loader, 2, "ranks", "each would get")


@pytest.mark.parametrize("column", ["input_ids", "pixels", "number"])
def test_what_is_gathered_for_metrics_has_no_filler(ranks_of: Any, folder: Path, column: str) -> None:
    for found in ranks_of(2, "gathered", folder, column):
        assert found == [row["input_ids"][0] for row in rows_of(10)]


def test_batches_that_are_made_for_steps_of_several_set_the_accumulation() -> None:
    batches = bf.from_sequence([{"input_ids": [row]} for row in range(12)]).batch(4, micro_batches=2)
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, batches.loader())
    assert accelerator.gradient_accumulation_steps == 2
    stepped = []
    for batch in loader:
        with accelerator.accumulate():
            stepped.append((accelerator.sync_gradients, batch["ends_step"]))
    assert stepped == [(False, False), (True, True)] * 3
    other = Accelerator(cpu=True, gradient_accumulation_steps=3)
    with pytest.raises(ValueError, match=r"of 2 .* over 3 \(gradient_accumulation_steps=3\). Set"):
        prepare(other, batches.loader())
    triply = bf.from_sequence([{"input_ids": [row]} for row in range(12)]).batch(6, micro_batches=3)
    with pytest.raises(ValueError, match=r"of 3 .* over 2 \(gradient_accumulation_steps=2\). Set"):
        prepare(Accelerator(cpu=True), batches.loader(), triply.loader())


def test_arrays_are_refused() -> None:
    batches = bf.from_sequence([[1], [2]]).batch(1).numpy()
    with pytest.raises(
        ValueError, match=r"^these batches are numpy arrays, and a trainer's model takes tensors. Leave numpy"
    ):
        prepare(Accelerator(cpu=True), batches.loader())
