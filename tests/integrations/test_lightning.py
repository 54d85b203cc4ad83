"""Lightning's own Trainer: killed and resumed by `ckpt_path` alone, at any step, on one process and two."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import brimful as bf
from brimful.loader import Loader
from tests.forks import Launch, forks_of
from tests.integrations.unequal import batches, rows_of, write_shards

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.utilities.combined_loader import CombinedLoader  # noqa: E402

from tests.integrations import lightning_child as child  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path)


def streamed(folder: Path) -> Loader:
    return batches("streamed", folder).loader()


def side_by_side(folder: Path) -> Any:
    both = {"one": batches("streamed", folder), "two": batches("indexed", folder)}
    return {name: made.loader(steps_per_epoch=5) for name, made in both.items()}


LOADERS: dict[str, Callable[[Path], Any]] = {
    "streamed": streamed,
    "indexed": lambda folder: batches("indexed", folder).loader(),
    "steps": lambda folder: batches("streamed", folder).loader(steps_per_epoch=5),
    "side by side": side_by_side,
    "combined": lambda folder: CombinedLoader(side_by_side(folder), "min_size"),
    "ahead": lambda folder: bf.AsyncLoader(streamed(folder), "cpu"),
    "ahead indexed": lambda folder: bf.AsyncLoader(LOADERS["indexed"](folder), "cpu"),
    "in a DataLoader": lambda folder: DataLoader(streamed(folder), batch_size=None),
    "indexed in a DataLoader": lambda folder: DataLoader(LOADERS["indexed"](folder), batch_size=None),
}


def fit(loader: Any, checkpoint: Path | None = None, *others: Callback, **settings: Any) -> Any:
    model = child.Model()
    validation = bf.from_sequence(rows_of(7), shuffle=True).batch(2).loader()
    child.trainer(*others, **settings).fit(model, loader, validation, ckpt_path=checkpoint)
    return model


def goes_on(folder: Path, loader: Callable[[], Any], **settings: Any) -> None:
    """From each of its checkpoints a run is trained on, and validated with, what the unbroken one is."""
    unbroken = fit(loader(), None, *child.saving(folder), **settings)
    saved = child.checkpoints(folder)
    assert len({trained for _, trained, _ in saved}) > 3
    for path, trained, _ in saved:
        resumed = fit(loader(), path, **settings)
        assert resumed.seen == unbroken.seen[trained:], path.name
        assert resumed.validated == unbroken.validated[len(unbroken.validated) - len(resumed.validated) :], path.name


@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_goes_on_from_any_step(folder: Path, kind: str) -> None:
    goes_on(folder, lambda: LOADERS[kind](folder))


@pytest.mark.parametrize("kind", ["streamed", "indexed"])
def test_a_run_goes_on_where_steps_take_several_batches(folder: Path, kind: str) -> None:
    goes_on(folder, lambda: LOADERS[kind](folder), accumulate_grad_batches=3, val_check_interval=1.0)


@pytest.mark.parametrize("kind", ["streamed", "indexed"])
def test_batches_whose_gradients_were_not_stepped_with_come_again(folder: Path, kind: str) -> None:
    class Saves(Callback):
        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if module.seen:
                trainer.save_checkpoint(folder / f"{len(module.seen)}.ckpt")

        def on_train_batch_start(self, trainer: Any, module: Any, *arguments: Any) -> None:
            if len(module.seen) == stops:
                raise OSError("the cluster takes it back")

    stops, settings = -1, {"accumulate_grad_batches": 3, "val_check_interval": 2}
    unbroken = fit(LOADERS[kind](folder), None, Saves(), **settings)
    length = len(unbroken.seen) // 2
    saved = sorted(int(path.stem) for path in folder.glob("*.ckpt"))
    assert saved == [number for number in range(1, 2 * length + 1) if number % length % 2 == 0]
    for number in saved[:-1:2]:
        rest = fit(LOADERS[kind](folder), folder / f"{number}.ckpt", **settings)
        assert rest.seen == unbroken.seen[number - number % length % 3 :], number
        assert rest.validated == unbroken.validated[len(unbroken.validated) - len(rest.validated) :], number
    stops, saves = 5, ModelCheckpoint(dirpath=folder, filename="last", save_on_exception=True)
    with pytest.raises(OSError, match="takes it back"):
        fit(LOADERS[kind](folder), None, saves, Saves(), **settings)
    assert fit(LOADERS[kind](folder), folder / "last.ckpt", **settings).seen == unbroken.seen[3:]


class Starts(Callback):
    """A checkpoint as each epoch begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.folder / f"start-{trainer.current_epoch}.ckpt")


class Epochs(Callback):
    """The epochs that began, and how many steps there were at the end."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.steps = 0

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.began.append(trainer.current_epoch)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.steps = trainer.global_step


@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 5}])
@pytest.mark.parametrize("kind", ["streamed", "ahead", "indexed"])
def test_an_epoch_after_a_resume_begins_with_a_whole_step(tmp_path: Path, kind: str, limit: dict[str, int]) -> None:
    """Of epochs of 5 batches, with steps of 3: from each checkpoint, and from those of a run that was resumed already."""

    def run(into: str, checkpoint: Path | None = None) -> tuple[Any, Epochs]:
        data = bf.from_sequence(rows_of(10), shuffle=True)
        loader = (data if kind == "indexed" else data.causal_labels()).batch(2).loader()
        epochs, saves = Epochs(), [Starts(tmp_path / into), *child.saving(tmp_path / into)]
        settings = {"accumulate_grad_batches": 3, "val_check_interval": None, "num_sanity_val_steps": 0} | limit
        model = child.Model()
        made = bf.AsyncLoader(loader, "cpu") if kind == "ahead" else loader
        child.trainer(epochs, *saves, **settings).fit(model, made, ckpt_path=checkpoint)
        return model, epochs

    def goes_on_from(path: Path, before: int) -> int:
        """Returns how many batches the whole run had trained on, where `before` were trained on before that of the checkpoint."""
        seen = before + torch.load(path, weights_only=False)["seen"][0]
        trained = seen - seen % 5 % 3  # those of a step that was not complete come again
        resumed, epochs = run(f"{path.parent.name}-{path.stem}", path)
        assert resumed.seen == unbroken.seen[trained:], path
        assert epochs.steps == whole.steps, path
        assert torch.equal(resumed.weights.weight, unbroken.weights.weight), path
        assert epochs.began == whole.began[len(whole.began) - len(epochs.began) :], path
        assert seen % 5 or not resumed.seen or epochs.began[0] == seen // 5, path
        return trained

    unbroken, whole = run("whole")
    for path, at, _ in child.checkpoints(tmp_path / "whole"):
        if at < 10:
            trained = goes_on_from(path, 0)
            for again, later, _ in child.checkpoints(tmp_path / f"whole-{path.stem}"):
                if trained + later < 10:
                    goes_on_from(again, trained)


@pytest.mark.parametrize("kind", ["streamed", "ahead", "indexed"])
@pytest.mark.parametrize("at", [1, 4])
def test_a_batch_whose_step_failed_comes_again(folder: Path, kind: str, at: int) -> None:
    class Fails(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *arguments: Any) -> None:
            if len(module.seen) == at:
                raise OSError("the cluster takes it back")

    unbroken = fit(LOADERS[kind](folder))
    saves = ModelCheckpoint(dirpath=folder, filename="last", save_on_exception=True)
    with pytest.raises(OSError, match="takes it back"):
        fit(LOADERS[kind](folder), None, saves, Fails())
    (path,) = folder.glob("*.ckpt")
    assert fit(LOADERS[kind](folder), path).seen == unbroken.seen[at:]


@pytest.mark.parametrize("kind", ["streamed", "ahead", "indexed"])
def test_after_training_a_loader_stands_where_it_was_used(folder: Path, kind: str) -> None:
    unbroken = fit(LOADERS[kind](folder))
    loader = LOADERS[kind](folder)
    fit(loader, max_steps=4, max_epochs=-1)
    resumed = LOADERS[kind](folder)
    resumed.load_state_dict(loader.state_dict())
    assert [child.one(batch) for batch in resumed][:4] == [ids for ((ids,), _) in unbroken.seen[4:8]]
    trained = child.Model()
    running = child.trainer(max_epochs=1)
    loader = LOADERS[kind](folder)
    running.fit(trained, loader)
    running.fit_loop.max_epochs = 2
    running.fit(trained, loader)
    assert [ids for ids, _ in trained.seen] == [ids for ids, _ in unbroken.seen], "Lightning begins each epoch twice"


def test_every_validation_has_the_same_batches(folder: Path) -> None:
    seen = [ids for ids, _ in fit(streamed(folder)).validated]
    assert len(seen) > 8
    assert seen == seen[:4] * (len(seen) // 4)


def test_validations_of_so_many_steps_go_on_where_the_one_before_stopped(folder: Path) -> None:
    def fitted(checkpoint: Path | None = None, *others: Callback) -> list[Any]:
        model = child.Model()
        validation = bf.from_sequence(rows_of(14), shuffle=True).batch(2).loader(steps_per_epoch=3)
        settings = {"num_sanity_val_steps": 0, "val_check_interval": 2}
        child.trainer(*others, **settings).fit(model, streamed(folder), validation, ckpt_path=checkpoint)
        return [ids for ids, _ in model.validated]

    unbroken = fitted(None, *child.saving(folder))
    assert sorted(row for ids in unbroken[:7] for row in ids) == [*range(1, 15)], "an epoch of the data"
    for path, _, validated in child.checkpoints(folder)[::3]:
        rest = fitted(path)  # Lightning skips the validation that was due when it was saved
        assert rest == unbroken[validated : validated + len(rest)], path.name
        assert len(rest) in (len(unbroken) - validated, len(unbroken) - validated - 3), path.name


def test_every_test_and_prediction_has_the_same_batches(folder: Path) -> None:
    class Reads(child.Model):
        def test_step(self, batch: Any, number: int) -> None:
            self.validated.append(child.one(batch))

        predict_step = test_step

    loader = batches("indexed", folder).loader()
    whole = [child.one(batch) for batch in batches("indexed", folder).loader()]
    for name in ("test", "predict", "predict", "test"):
        model = Reads()
        getattr(child.trainer(), name)(model, loader)
        assert model.validated == whole, name


@pytest.mark.parametrize("sanity_steps", [0, 2])
@pytest.mark.parametrize("kind", ["streamed", "ahead", "in a DataLoader"])
def test_a_loader_is_not_both_trained_on_and_validated_with(folder: Path, kind: str, sanity_steps: int) -> None:
    loader, model = LOADERS[kind](folder), child.Model()
    inner = loader.dataset if kind == "in a DataLoader" else loader.loader if kind == "ahead" else loader
    with pytest.raises(
        ValueError, match=r"^a validation would read the loader that is trained on, and move it: give it one of"
    ):
        child.trainer(num_sanity_val_steps=sanity_steps, val_check_interval=1.0).fit(model, loader, inner)


@pytest.mark.parametrize("kind", ["streamed", "ahead", "indexed", "indexed in a DataLoader"])
def test_an_epoch_that_was_left_does_not_begin_again(folder: Path, kind: str) -> None:
    class Leaves(child.Model):
        def on_train_batch_start(self, batch: Any, number: int) -> int | None:
            return -1 if number == 3 else None

    model = Leaves()
    message = r"^Lightning begins its epoch 1, and left epoch 0 of the loader in its middle \(.*: its first batches would come a"
    with pytest.raises(ValueError, match=message):
        child.trainer().fit(model, LOADERS[kind](folder))
    assert len(model.seen) == 3
    model = Leaves()
    child.trainer().fit(model, batches("streamed", folder).loader(steps_per_epoch=5))
    whole = [ids for ids, _ in fit(streamed(folder)).seen]
    assert [ids for ids, _ in model.seen] == whole[:3] + whole[4:7], "the batch at hand was thrown away by the hook"


def test_a_step_that_takes_several_batches_itself_is_refused(folder: Path) -> None:
    class Takes(child.Model):
        def training_step(self, dataloader_iter: Any) -> torch.Tensor:  # type: ignore[override]
            for _ in range(1 + (len(self.seen) == twice_at)):
                batch, number, _ = next(dataloader_iter)
            return super().training_step(batch, number)

    twice_at = -1
    goes_on_alike, expected = Takes(), fit(streamed(folder), val_check_interval=1.0).seen
    child.trainer(val_check_interval=1.0).fit(goes_on_alike, streamed(folder))
    assert goes_on_alike.seen == expected
    for twice_at in (0, 2):  # noqa: B007  # the step reads it
        with pytest.raises(
            ValueError, match=r"^training_step took 2 batches of dataloader_iter at once, and Lightning counts o"
        ):
            child.trainer(val_check_interval=1.0).fit(Takes(), streamed(folder))


def test_a_loader_that_is_made_anew_for_each_epoch_goes_on(folder: Path) -> None:
    class Reloads(child.Model):
        def train_dataloader(self) -> Loader:
            return streamed(folder)

    def fitted(checkpoint: Path | None = None, *others: Callback) -> list[Any]:
        model = Reloads()
        running = child.trainer(*others, max_epochs=3, reload_dataloaders_every_n_epochs=1)
        running.fit(model, ckpt_path=checkpoint)
        return model.seen

    unbroken = fitted(None, *child.saving(folder))
    assert [ids for ids, _ in unbroken] == [ids for ids, _ in fit(streamed(folder), max_epochs=3).seen]
    for path, trained, _ in child.checkpoints(folder)[::4]:
        assert fitted(path) == unbroken[trained:], path.name


class Around(IterableDataset[Any]):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


def known(folder: Path) -> Loader:
    return batches("indexed", folder).loader()


@pytest.mark.parametrize(
    ("made", "settings", "message"),
    [
        (lambda folder: batches("indexed", folder), {}, r"^Lightning cannot save or restore the place in Batches, "),
        (lambda folder: DataLoader(known(folder)), {}, r"^a DataLoader with batch_size=1 around a loader "),
        (known, {"limit_train_batches": 2}, r"has 10 batches, and one of Lightning's 2 batches: the same "),
        (streamed, {"limit_train_batches": 2}, r"^an epoch of this loader has an unknown number of batches, and one of L.* 2 ba"),
        (
            lambda folder: batches("indexed", folder).loader(steps_per_epoch=5),
            {"limit_train_batches": 2},
            r"has 5 batches, and one of Lightning's 2 batches",
        ),
        (
            lambda folder: [streamed(folder), streamed(folder)],
            {},
            r"^Lightning reads 2 loaders side by side, and how many batches they have is not known",
        ),
        (lambda folder: batches("indexed", folder).numpy().loader(), {}, r"^these batches are numpy arrays, and a trainer's mod"),
        (lambda folder: Around(known(folder)), {}, r"^Lightning reads this loader inside of another object, "),
        (lambda folder: Around(bf.AsyncLoader(known(folder), "cpu")), {}, r"^Lightning reads this loader inside of another o"),
    ],
)  # fmt: skip
def test_what_would_begin_again_is_refused(folder: Path, made: Any, settings: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        fit(made(folder), val_check_interval=1.0, **settings)


def test_what_is_read_once_may_be_cut(folder: Path) -> None:
    whole = fit(streamed(folder)).seen
    assert fit(streamed(folder), fast_dev_run=2).seen == whole[:2]
    assert fit(streamed(folder), limit_train_batches=3, max_epochs=1).seen == whole[:3]
    overfitted = fit(streamed(folder), overfit_batches=2, val_check_interval=1.0).seen
    assert [ids for ids, _ in overfitted] == [ids for ids, _ in whole[:2] * 2]


def test_a_trainer_without_the_callback_is_refused_before_the_first_batch(folder: Path) -> None:
    model = child.Model()
    running = child.trainer()
    running.callbacks = [one for one in running.callbacks if type(one).__name__ != "FollowLoaders"]
    message = (
        r"^Lightning reads this loader without brimful's callback, .*install brimful again, or say Trainer\(callbacks=b"
    )
    for made in ("streamed", "indexed", "ahead", "indexed in a DataLoader"):
        with pytest.raises(RuntimeError, match=message):
            running.fit(model, LOADERS[made](folder))
    assert not model.seen


def test_what_a_step_reads_by_itself_is_nobodys_training_data(folder: Path) -> None:
    class Replays(child.Model):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            self.replayed = len([*batches("indexed", folder), *known(folder)])
            return super().training_step(batch, number)

    model = Replays()
    child.trainer(max_epochs=1).fit(model, known(folder))
    assert model.replayed == 20


def test_a_checkpoint_without_a_place_is_refused(folder: Path) -> None:
    fit(streamed(folder), None, *child.saving(folder))
    path = folder / "step-02.ckpt"
    saved = torch.load(path, weights_only=False)
    message = r"^this checkpoint has places of 1 loaders of brimful's among 1, and Trainer\.fit was given 2 loaders"
    with pytest.raises(bf.StateError, match=message):
        fit(list(side_by_side(folder).values()), folder / "epoch-0.ckpt")
    del saved["brimful"], saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    torch.save(saved, path)
    with pytest.raises(
        bf.StateError, match=r"^this checkpoint has no place for brimful's loaders: it was saved without"
    ):
        fit(streamed(folder), path)
    saved["brimful"] = {"version": 1, "ranks": []}
    torch.save(saved, path)
    with pytest.raises(
        bf.StateError, match=r"^this checkpoint was saved as one of several ranks failed, without the places"
    ):
        fit(streamed(folder), path)
    saved["brimful"] = {"version": 1, "ranks": [{}] * 3}
    torch.save(saved, path)
    with pytest.raises(
        bf.StateError, match=r"^this checkpoint has places of 3 ranks, each with .*, and there are 1; go"
    ):
        fit(streamed(folder), path)


def test_steps_of_a_loader_that_is_made_anew_are_refused(folder: Path) -> None:
    class Reloads(child.Model):
        def train_dataloader(self) -> Loader:
            return batches("indexed", folder).loader(steps_per_epoch=4)

    with pytest.raises(
        ValueError, match=r"^reload_dataloaders_every_n_epochs makes a loader of steps_per_epoch=\.\.\. anew"
    ):
        child.trainer(reload_dataloaders_every_n_epochs=1).fit(Reloads())


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_trainer_finds_the_callback_by_itself(package: str) -> None:
    found = {entry.name: entry for entry in entry_points(group=f"{package}.callbacks_factory")}
    if "brimful" not in found:
        pytest.skip("the installed metadata of brimful are older than its source: pip install -e . again")
    (callback,) = found["brimful"].load()()
    assert isinstance(callback, pytest.importorskip(package).Callback)
    again = pickle.loads(pickle.dumps(copy.deepcopy(callback)))
    assert type(again) is type(callback), "a Trainer that starts its processes by spawn sends it to them"


def test_a_callback_that_is_given_beside_the_one_that_is_found_does_nothing(folder: Path) -> None:
    running = child.trainer(max_epochs=1)
    running.callbacks += [copy.deepcopy(one) for one in running.callbacks if type(one).__name__ == "FollowLoaders"]
    model = child.Model()
    running.fit(model, streamed(folder))
    assert model.seen == fit(streamed(folder), max_epochs=1).seen


@pytest.fixture(scope="module")
def ranks_of() -> Iterator[Launch]:
    with forks_of("tests.integrations.lightning_child") as run:
        yield run


@pytest.mark.parametrize("kind", ["streamed", "indexed"])
def test_two_processes_are_killed_and_go_on_as_two_and_as_one(ranks_of: Any, folder: Path, kind: str) -> None:
    wholes = ranks_of(2, "whole", folder, kind)
    for (trained, validated), rest in wholes:
        assert len(rest) > 4
        for name, steps, (more, again) in rest:
            assert more == trained[steps:], name
            assert again == validated[len(validated) - len(again) :], name
    for path in folder.glob("*.ckpt"):
        path.unlink()
    assert ranks_of(2, "killed", folder, kind) == [None, None]
    unbroken = [trained for (trained, _), _ in wholes]
    for (steps, (more, _)), trained in zip(ranks_of(2, "resumed", folder, kind), unbroken, strict=True):
        assert 0 < steps < len(trained)
        assert more == trained[steps:]
    ((_, (alone, _)),) = ranks_of(1, "resumed", folder, kind)
    in_turn = [ids for step in zip(*(trained[steps:] for trained in unbroken)) for ((ids,), _) in step if ids]
    assert [ids for ((ids,), _) in alone if ids] == in_turn


def test_where_a_rank_fails_others_are_not_waited_for_and_their_streams_have_no_place(
    ranks_of: Any, folder: Path
) -> None:
    assert ranks_of(2, "failed", folder, "indexed") == [1, 1], "all ranks have the same place"
    assert ranks_of(2, "failed", folder, "streamed") == [0, 0], "a resume from it is refused"


def test_ranks_that_would_all_train_on_everything_are_refused(ranks_of: Any, folder: Path) -> None:
    message = "there are 2 ranks, and the batches of this loader are not shared out: each rank would train on all of them; say "
    assert all(said.startswith(message + "batches.shard().loader()") for said in ranks_of(2, "unsharded", folder))


def test_logging_infers_the_rows_of_a_batch(folder: Path) -> None:
    from lightning.pytorch.utilities.data import extract_batch_size

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert extract_batch_size(next(iter(bf.from_sequence(rows_of(3)).batch(3)))) == 3


def test_steps_of_several_batches_are_those_that_the_batches_are_made_for(folder: Path) -> None:
    made = bf.from_files(str(folder / "shard-*.jsonl")).batch(4, micro_batches=2)
    with pytest.raises(ValueError, match=r"over 1 \(accumulate_grad_batches=1\). Set accumulate_grad_batches=2, or"):
        fit(made.loader())
    assert fit(made.loader(), accumulate_grad_batches=2).seen
