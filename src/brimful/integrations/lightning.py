"""Lightning: `trainer.fit(model, batches.loader(), ckpt_path=...)` goes on exactly, by a callback that Lightning finds itself.

Entry points of the groups `lightning.pytorch.callbacks_factory` and `pytorch_lightning.callbacks_factory` name the functions
below, so each Trainer has the callback. Lightning alone would save the place after the batch that it holds ahead, and rank 0's
only, and would not load it at an epoch's end.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cache
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from brimful.async_loader import AsyncLoader, stage_of
from brimful.core.facts import facts_of
from brimful.core.states import joined
from brimful.integrations.calls import CallGuard
from brimful.integrations.follow import Ours, accumulated, check_shared_out, innermost
from brimful.loader import Loader
from brimful.plan.errors import StateError

__all__ = ["callbacks", "pytorch_lightning_callbacks"]

KEY = "brimful"
"""Where our states stand in a checkpoint of Lightning's."""

NOTHING: dict[str, Any] = {"train": None, "stateful": [], "validation": []}
"""What a checkpoint has that was saved without the callback."""


def callbacks(*, isolation: str = "raise") -> list[Any]:
    """The callback for `lightning`. A Trainer finds it by itself if brimful is installed.

    Args:
        isolation: "raise": raise an error at the first packed batch, if its samples see each other in the model. "off":
            no check. To use it, give the result to `Trainer(callbacks=...)`.

    >>> from lightning.pytorch import Callback
    >>> [isinstance(one, Callback) for one in callbacks()]
    [True]
    """
    return [_callback("lightning.pytorch", isolation)]


def pytorch_lightning_callbacks(*, isolation: str = "raise") -> list[Any]:
    """The callback for `pytorch_lightning`. A Trainer finds it by itself if brimful is installed. See `callbacks`.

    >>> from pytorch_lightning import Callback
    >>> [isinstance(one, Callback) for one in pytorch_lightning_callbacks()]
    [True]
    """
    return [_callback("pytorch_lightning", isolation)]


def _callback(package: str, isolation: str) -> Any:
    return _callback_class(package)(isolation)


@cache
def _callback_class(package: str) -> type[Any]:
    """Which of two packages its base is of is known when one is imported."""
    return type("FollowLoaders", (FollowLoaders, importlib.import_module(package).Callback), {"_package": package})


class FollowLoaders:
    """Tells loaders of brimful's what a Trainer has used of their batches; saves and restores their places. Each validation,
    test and prediction has the same batches, those of epoch 0."""

    _package: str

    def __init__(self, isolation: str) -> None:
        self._isolation = isolation
        self._guard = CallGuard(isolation)
        self._saved: dict[str, Any] | None = (
            None  # the places in the checkpoint that training goes on from, of this rank
        )
        self._train: list[Ours | None] = []  # of each of Lightning's loaders; None: not ours
        self._epochs: list[int | None] = []  # of the data, of each of them, at the start of Lightning's; None: of steps
        self._number = -1  # of the last batch of a step that takes them itself

    def __reduce__(self) -> tuple[Any, ...]:
        return _callback, (self._package, self._isolation)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        first = next(one for one in trainer.callbacks if isinstance(one, FollowLoaders))
        if first is not self:  # one is given beside the one that Lightning finds
            trainer.callbacks = [one for one in trainer.callbacks if one is not self]
            return
        self._guard = CallGuard(self._isolation)
        self._guard.watch(pl_module, *pl_module.children())

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._guard.leave()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Takes the places of this rank from a checkpoint, also for Lightning, which sends loaders to them before it takes the
        first batch, but in the middle of an epoch alone."""
        if trainer.state.fn != "fit":
            return
        self._saved = saved = _of_rank(checkpoint.get(KEY, {"ranks": [NOTHING]}), trainer)
        places = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", [])
        stateful = [state for state, has in zip(saved["train"] or [], saved["stateful"]) if has]
        if len(stateful) == len(places):
            places[:] = [place if state is None else state for state, place in zip(stateful, places)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loaders are known, and nothing is trained on yet; of loaders without a length one batch is taken."""
        saved, self._saved = self._saved, None
        self._train, self._epochs, self._number = [], [], -1
        self._follow(trainer)
        self._check_apart(trainer)
        if pl_module.automatic_optimization:
            given = trainer.accumulate_grad_batches
            accumulated(filter(None, self._train), given, "accumulate_grad_batches", may_set=False)
        if saved is None:
            return
        if any(self._train):
            _begin_next_epoch(trainer.fit_loop)
        self._send(saved["train"], trainer)
        validation = _validation_loop(trainer)
        if any(saved["validation"]) and not _leaves(validation):
            trainer.validating = True  # as Lightning does, so that it makes these loaders
            validation.setup_data()
            trainer.training = True
        for loader, state in zip(map(_ours, _leaves(validation)), saved["validation"]):
            if loader is not None and state is not None:
                loader.load_state_dict(state)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An error where an epoch of Lightning's begins and the data are still in the one of the epoch before: it was left."""
        self._follow(trainer)
        before = self._epochs
        self._epochs = [
            None if loader is None or _has_steps(loader) else int(loader.state_dict()["epoch"])
            for loader in self._train
        ]
        same = (one for one, other in zip(self._epochs, before) if one is not None and one == other)
        left = None if trainer.overfit_batches else next(same, None)
        if left is not None:
            raise ValueError(
                f"Lightning begins its epoch {trainer.current_epoch:,}, and left epoch {left:,} of the loader in its middle (as "
                "where on_train_batch_start returns -1): its first batches would come again; say batches.loader("
                "steps_per_epoch=...), whose epochs go on where the one before stopped"
            )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        self._guard.saw(batch)

    on_validation_batch_start: Any = on_train_batch_start
    on_test_batch_start: Any = on_train_batch_start
    on_predict_batch_start: Any = on_train_batch_start

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """An error where a training_step that takes its batches itself took several: Lightning counts one."""
        if type(trainer.fit_loop._data_fetcher).__name__ != "_DataLoaderIterDataFetcher" or not any(self._train):
            return
        before, self._number = self._number, batch_idx
        if batch_idx not in (0, before + 1):
            raise ValueError(
                f"training_step took {batch_idx - before:,} batches of dataloader_iter at once, and Lightning counts one, so "
                "that a checkpoint would not have the place after them: take one in each, or make the batches larger"
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.overfit_batches:
            _begin_again(trainer.fit_loop)  # the same batches each time

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            checkpoint[KEY] = {"version": 1, "ranks": self._places(trainer)}
            _go_back(checkpoint, _unstepped(trainer))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self._check_apart(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        _begin_again(trainer.validate_loop)
        _begin_again(_validation_loop(trainer))

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        _begin_again(trainer.test_loop)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        _begin_again(trainer.predict_loop)

    def on_fit_end(self, trainer: Any, pl_module: Any, *exception: BaseException) -> None:
        """Training has ended or failed: loaders stand where they were used."""
        for loader in self._train:
            if loader is not None:
                loader.follow(None)

    on_exception = on_fit_end

    def _follow(self, trainer: Any) -> None:
        """Follows the training loaders that are new: all, or those of `reload_dataloaders_every_n_epochs`."""
        leaves = _leaves(trainer.fit_loop)
        found = [_checked(leaf, trainer, len(leaves)) for leaf in leaves]
        progress = trainer.fit_loop.epoch_loop.batch_progress
        moved = False
        for loader, before in zip(found, self._train or [None] * len(found)):
            if loader is None or loader is before:
                continue
            loader.follow(lambda: progress.total.processed - _unstepped(trainer))
            if before is not None:
                before.follow(None)
                moved |= _goes_on(loader, before)
        self._train = found
        if moved:
            iter(trainer.fit_loop._data_fetcher)  # without the batch that was taken ahead

    def _send(self, states: list[dict[str, Any] | None] | None, trainer: Any) -> None:
        """Sends the training loaders to the places of a checkpoint, where Lightning has not."""
        if states == []:  # saved before the first batch
            return
        if states is None and any(self._train):
            raise StateError(
                "this checkpoint has no place for brimful's loaders: it was saved without brimful's callback, and training would "
                "begin again at the first batch; begin anew without ckpt_path, or load the weights alone and send the loader to "
                "its place by loader.load_state_dict"
            )
        states = states or [None] * len(self._train)
        if [state is not None for state in states] != [loader is not None for loader in self._train]:
            raise StateError(
                f"this checkpoint has places of {_counted(states)}, and Trainer.fit was given {_counted(self._train)}; give it "
                "the loaders that it had"
            )
        moved = False
        for loader, state in zip(self._train, states):
            if loader is not None and state is not None and loader.state_dict() != state:
                loader.load_state_dict(state)
                moved = True
        if moved:  # the batch that was taken ahead is not of this place
            iter(trainer.fit_loop._data_fetcher)

    def _check_apart(self, trainer: Any) -> None:
        """An error where a loader that is trained on is validated with too."""
        trained = {id(innermost(loader)) for loader in filter(None, self._train)}
        if any(id(innermost(_ours(leaf))) in trained for leaf in _leaves(_validation_loop(trainer))):
            raise ValueError(
                "a validation would read the loader that is trained on, and move it: give it one of its own, batches.loader()"
            )

    def _places(self, trainer: Any) -> list[dict[str, Any]]:
        """The places of all ranks after what was used: one for all, or, of loaders over data of a rank's own, each rank's."""
        leaves = _leaves(trainer.fit_loop)
        validation = map(_ours, _leaves(_validation_loop(trainer)))
        mine = {
            "train": [None if loader is None else loader.state_dict() for loader in self._train],
            "stateful": [hasattr(leaf, "state_dict") and hasattr(leaf, "load_state_dict") for leaf in leaves],
            "validation": [
                loader.state_dict() if loader is not None and _has_steps(loader) else None for loader in validation
            ],
        }
        if trainer.world_size == 1:
            return [mine]
        if (
            trainer.interrupted and not trainer.received_sigterm
        ):  # others may not come to this point: waiting may be for ever
            streams = any(facts_of(stage_of(loader)).streams() is not None for loader in filter(None, self._train))
            return [] if streams else [mine]
        ranks = [mine] * trainer.world_size
        dist.all_gather_object(ranks, mine)
        with suppress(StateError):
            ranks = [joined(ranks)]
        return ranks


def _leaves(loop: Any) -> list[Any]:
    """The loaders that a loop of Lightning's reads, in the order in which it saves them."""
    return [] if loop._combined_loader is None else loop._combined_loader.flattened


def _validation_loop(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop.val_loop


def _of_rank(saved: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """What a checkpoint has for this rank."""
    ranks = saved["ranks"]
    if not ranks:
        raise StateError(
            "this checkpoint was saved as one of several ranks failed, without the places of the others in their streams; go on "
            "from the checkpoint before it"
        )
    if len(ranks) not in (1, trainer.world_size):
        raise StateError(
            f"this checkpoint has places of {len(ranks)} ranks, each with data of its own, and there are {trainer.world_size}; "
            "go on with as many"
        )
    return dict(ranks[trainer.global_rank if len(ranks) > 1 else 0])


def _has_steps(loader: Ours) -> bool:
    """Whether its epochs are so many steps, each going on where the one before stopped."""
    return getattr(loader, "steps_per_epoch", None) is not None


def _ours(leaf: Any) -> Ours | None:
    """The loader of brimful's that one of Lightning's is, or reads."""
    loader = leaf.dataset if isinstance(leaf, DataLoader) else leaf
    restorable = hasattr(innermost(loader), "load_state_dict")
    return loader if isinstance(loader, Loader | AsyncLoader) and restorable else None


def _checked(leaf: Any, trainer: Any, num_loaders: int) -> Ours | None:
    """Our loader, if it is one that Lightning can read without losing or repeating batches."""
    loader = _ours(leaf)
    if loader is None:
        return None
    if isinstance(leaf, DataLoader) and (type(leaf) is not DataLoader or leaf.batch_size is not None):
        raise ValueError(
            f"a {type(leaf).__name__} with batch_size={leaf.batch_size} around a loader of brimful's would make batches of its "
            "batches, or restore them a second time; give Trainer.fit the loader itself"
        )
    check_shared_out(loader, trainer.world_size, "ranks", "each rank would train on")
    steps = trainer.num_training_batches
    length = _length(loader)
    if num_loaders > 1 and steps == float("inf"):
        raise ValueError(
            f"Lightning reads {num_loaders} loaders side by side, and how many batches they have is not known, so it would "
            "begin some of them again, or leave them, in the middle; give each the same loader(steps_per_epoch=...)"
        )
    once = trainer.max_epochs == 1 or trainer.fast_dev_run or trainer.overfit_batches
    if length != steps and not once:
        raise ValueError(
            f"an epoch of this loader has {_words(length)}, and one of Lightning's {_words(steps)}: the same batches would come "
            "again in each epoch, or an epoch begin again in its middle; say batches.loader(steps_per_epoch=...), whose epochs "
            "go on where the one before stopped, and leave limit_train_batches alone"
        )
    return loader


def _unstepped(trainer: Any) -> int:
    """How many batches were trained on since the last optimizer step: no checkpoint has the gradients that they added up."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    processed, ready = progress.current.processed, progress.current.ready
    last = progress.is_last_batch or ready >= trainer.num_training_batches
    if trainer.strategy.handles_gradient_accumulation or (last and processed == ready):
        return 0
    return int(processed % trainer.accumulate_grad_batches)


def _go_back(checkpoint: dict[str, Any], batches: int) -> None:
    """Has Lightning count so many batches less when it goes on from a checkpoint: they come again."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts |= {name: count - batches for name, count in counts.items()}


def _begin_next_epoch(loop: Any) -> None:
    """Has Lightning begin an epoch where a checkpoint was saved after the last batch of the one before. It would count on in that
    one: of batches, so that optimizer steps shift, and of epochs, in the next checkpoint."""
    epochs, inner = loop.epoch_progress, loop.epoch_loop
    finished = inner.batch_progress.is_last_batch and epochs.total.processed == epochs.total.started
    counted_late = getattr(inner, "restarted_on_train_batch_end", None)  # None: of older releases of Lightning
    if counted_late is None or not (loop.restarting and finished):
        return
    if counted_late:
        inner.batch_progress.increment_completed()  # Lightning would do this later, in the epoch that begins
        inner.reset_restart_stage()
    for counts in (epochs.total, epochs.current):
        counts.completed = counts.processed
    if not loop.restarted_on_epoch_start:
        loop.reset_restart_stage()
    for progress in (inner.batch_progress, inner.scheduler_progress, inner.automatic_optimization.optim_progress):
        progress.reset_on_run()
    inner.val_loop.batch_progress.total.reset()


def _begin_again(loop: Any) -> None:
    """Has the loaders of a loop begin with epoch 0 again."""
    for loader in map(_ours, _leaves(loop)):
        if loader is not None and not _has_steps(loader):
            loader.set_epoch(0)


def _length(loader: Ours) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


def _words(length: float) -> str:
    return "an unknown number of batches" if length == float("inf") else f"{int(length):,} batches"


def _counted(loaders: list[Any]) -> str:
    ours = sum(one is not None for one in loaders)
    return f"{ours:,} loaders of brimful's among {len(loaders):,}"


def _goes_on(loader: Ours, before: Ours) -> bool:
    """Whether a loader that was made anew was sent to the epoch after those of the one before: if it has no place of its own."""
    if _has_steps(loader):
        raise ValueError(
            "reload_dataloaders_every_n_epochs makes a loader of steps_per_epoch=... anew, which would begin again at the first "
            "batch; make it once, outside of train_dataloader, or leave reload_dataloaders_every_n_epochs alone"
        )
    state = loader.state_dict()
    if state["epoch"] != 0 or state["iterator"]:
        return False
    unsigned = {name: value for name, value in state.items() if name != "crc32"}  # the checksum is that of epoch 0
    loader.load_state_dict(unsigned | {"epoch": before.epoch})
    return True


def __dir__() -> list[str]:
    return __all__
