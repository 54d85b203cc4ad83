"""What a trainer of ours keeps beside its base: its data, the place in them, and what the batch at hand counts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from brimful.core.errors import logger
from brimful.core.states import merge_states
from brimful.device.async_loader import innermost
from brimful.integrations.transformers import checkpoint as checkpoint_file
from brimful.integrations.transformers.data import (
    SKIPPED,
    ModelInputs,
    Once,
    Share,
    Steps,
    TrainerBatch,
    TrainerData,
    as_dataloader,
    batches_of,
    can_count,
    is_ours,
    loader_aside,
    loader_of,
    refuse_samples,
)
from brimful.integrations.transformers.loss import Evaluation, num_labels, shares
from brimful.integrations.transformers.settings import (
    accumulating,
    keys_of,
    refuse_settings,
    shifts_labels,
    stand_in,
)
from brimful.isolation.call import base_model
from brimful.isolation.guard import IsolationGuard
from brimful.loader import Loader


class Adapter:
    """See `trainer_class`.

    Args:
        trainer: the one that this belongs to.
        base: the class that it is made of.
        isolation: whether samples of a packed row may see each other.
    """

    def __init__(self, trainer: Any, base: type[Trainer], isolation: str) -> None:
        self.trainer = trainer
        self.base = base
        self._guard = IsolationGuard(isolation)
        self.share: Share | None = None  # of the batch whose loss is computed
        self.evaluation: Evaluation | None = None  # the one that runs
        self.steps: Steps | None = None  # the data of the run that is going on, or was last
        self._given: dict[str, Any] = {}
        self._data_collator: Any = None
        self._data = TrainerData(trainer)
        self._named: dict[str, Any] = {}
        self._in_train = False
        self._skips = False  # whether the next iteration is the first one after a resume
        self._weighed = False
        self._trained = 0  # batches since the last optimizer step
        self._saved_at: int | None = None

    def taken_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The constructor's arguments with a stand-in for each of ours; those are put back by `begin`."""
        bound = inspect.signature(self.base.__init__).bind(self.trainer, *args, **kwargs)
        extra = next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        all_ours = True
        for name in ("train_dataset", "eval_dataset"):
            place = bound.arguments if name in bound.arguments else bound.arguments.get(extra, {})
            given = place.get(name)
            ours = {key: one for key, one in _each(given) if is_ours(one)}
            for key, one in _each(given):
                refuse_samples(name if key is None else f"{name}[{key!r}]", one)
                all_ours = all_ours and is_ours(one)
            if is_ours(given):
                self._given[name], place[name] = given, stand_in(self.base)
            elif ours:
                self._given[name] = ours
                place[name] = {key: stand_in(self.base) if key in ours else one for key, one in _each(given)}
        if is_ours(trained := self._given.get("train_dataset")):
            place = bound.arguments if "args" in bound.arguments else bound.arguments.setdefault(extra, {})
            place["args"] = accumulating(place.get("args"), batches_of(trained).micro_batches)
        if all_ours:
            self._data_collator = bound.arguments.get(
                "data_collator", bound.arguments.get(extra, {}).get("data_collator")
            )
        if any(map(is_ours, bound.args)):
            raise TypeError("name the data that you give a trainer: train_dataset=batches, eval_dataset=batches")
        return bound.args[1:], bound.kwargs

    def begin(self) -> None:
        """Once the base is there: what was taken out is put back, and what cannot be right is refused."""
        trainer = self.trainer
        for name, given in self._given.items():
            held = getattr(trainer, name, None)
            setattr(trainer, name, {**held, **given} if isinstance(given, dict) and isinstance(held, dict) else given)
        model = base_model(trainer.model)
        self.shifts: bool = shifts_labels(trainer, model)
        keys = keys_of(model, trainer.label_names) if trainer.args.remove_unused_columns else None
        self._inputs = ModelInputs(keys, type(model).__name__, shared=trainer.accelerator.num_processes > 1)
        trainer.callback_handler.callbacks.insert(0, Follows(self))
        if self._given:
            refuse_settings(trainer, self._data_collator, trains="train_dataset" in self._given)
        if is_ours(trainer.train_dataset):
            self._data.is_run(self._data.own("train_dataset", trainer.train_dataset))
        for key, given in _each(trainer.eval_dataset):
            if is_ours(given):
                self._data.own("eval_dataset" if key is None else f"eval_dataset[{key!r}]", given)

    def check_isolation(self, inputs: Any) -> None:
        """An error where the samples of the first packed batch see each other in the model."""
        if isinstance(inputs, TrainerBatch):
            self._guard.check(self.trainer.model, inputs, inputs.segments)

    # -- training

    @contextmanager
    def training(self, resume: Any) -> Iterator[Any]:
        """A run of training, and the checkpoint that it resumes from."""
        trainer, self.steps = self.trainer, None
        if not is_ours(trainer.train_dataset):
            yield resume
            return
        checkpoint = checkpoint_file.last_complete(trainer.args.output_dir) or True if resume is True else resume
        saved = checkpoint_file.read(checkpoint) if checkpoint and checkpoint is not True else None
        self.steps = self._steps(saved)
        if saved is not None:
            self.steps.loader.load_state_dict(saved["loader"])
            self._say_what_differs(saved)
        self._in_train, self._skips, self._trained = True, saved is not None, 0
        try:
            yield checkpoint
        finally:
            self._in_train = False
            self.steps.close()

    def train_dataloader(self) -> Any:
        """The run's own while it goes on; before and after, one of a run by itself, which moves nothing."""
        return as_dataloader(self.steps if self._in_train and self.steps is not None else self._steps(None, aside=True))

    def refuse_skipped(self, samples: list[Any]) -> None:
        """An error where a batch to train on is a placeholder of one to pass over."""
        if any(batch is SKIPPED for batch in samples):
            raise RuntimeError(
                "this trainer passes over fewer batches after a resume than Trainer does, by global_step: it goes on in a way "
                "that brimful does not know, and would train on nothing"
            )

    def weigh(self, samples: list[Any], device: Any) -> None:
        """Says of each batch of an optimizer step what its loss counts."""
        if not samples or not isinstance(samples[0], TrainerBatch):
            return
        trainer = self.trainer
        counts = [num_labels(batch, trainer.label_names, self.shifts).to(device) for batch in samples]
        if not self.means:
            given = [Share(None, not count) for count in counts]
        else:
            total, world_size = torch.stack(counts).sum(), 1
            if trainer.args.average_tokens_across_devices:
                replicas = trainer.get_tp_size()
                total = trainer.accelerator.gather(total).sum() // replicas
                world_size = trainer.accelerator.num_processes // replicas
            given = shares(counts, total, world_size, trainer.loss_is_scaled_for_ga is not True)
        for batch, share in zip(samples, given, strict=True):
            batch.share = share

    @property
    def means(self) -> bool:
        """Whether losses come as means over their batches' labels, and are weighed here: transformers' own compute_loss does
        as long as it is told no number of labels. (It tells it any forward with **kwargs, and BERT's, T5's and others'
        ignore it.)"""
        if self.evaluation is not None:
            return True
        own = self.base.compute_loss is Trainer.compute_loss and self.trainer.compute_loss_func is None
        return own or self.trainer.loss_is_scaled_for_ga is False

    @contextmanager
    def step(self, inputs: Any) -> Iterator[None]:
        """A forward and a backward of one batch.

        Raises:
            RuntimeError: its loss was not weighed, as a class made of this one has methods of its own in the way.
        """
        self.share, self._weighed = getattr(inputs, "share", None), False
        try:
            yield
            if (
                isinstance(inputs, TrainerBatch)
                and not self._weighed
                and (self.share is None or self.share.scale is not None)
            ):
                raise RuntimeError(
                    f"the loss of this batch was not weighed by its labels: {type(self.trainer).__name__} overrides compute_loss "
                    "or get_batch_samples and does not call super(); make the class of Trainer, and trainer_class of that"
                )
        finally:
            self.share = None
        self._trained += 1

    def scaled(self, result: Any, share: Share) -> Any:
        """What compute_loss returned, weighed."""
        self._weighed = True
        factor = 0 if share.nothing else share.scale
        if factor is None:
            return result
        if isinstance(result, tuple):
            return result[0] * factor, *result[1:]
        return result * factor

    def stepped(self, state: Any) -> None:
        """After an optimizer step: what was handed out for it has been trained on."""
        if not self._in_train or self.steps is None:
            return
        if self.steps.untrained != self._trained:
            raise RuntimeError(
                f"{self.steps.untrained} batches were taken for an optimizer step and {self._trained} were trained on: something "
                "else reads the trainer's data (give it batches.loader() of its own), or a callback said should_epoch_stop in "
                "the middle of an accumulation (say it in on_step_end)"
            )
        self.steps.stepped()
        self._trained = 0
        if not self.steps.length.of_data and can_count(self.trainer.train_dataset):
            state.epoch = float(self.steps.state_dict()["epoch"])

    # -- checkpoints

    def begin_checkpoint(self, trial: Any) -> None:
        """Before a checkpoint is written: an older one of its name must not pass for it."""
        trainer = self.trainer
        if trainer.args.should_save:
            step = trainer.state.global_step
            checkpoint_file.begin(f"{trainer._get_output_dir(trial=trial)}/{PREFIX_CHECKPOINT_DIR}-{step}")

    def save(self, folder: str) -> None:
        """Writes where the data stand, on all processes at once."""
        trainer, steps = self.trainer, self.steps
        if steps is None:
            return
        state = merge_states(gather_object([steps.state_dict()]))
        if trainer.args.should_save:
            checkpoint_file.save(folder, loader=state, global_step=trainer.state.global_step, **self._settings(steps))
        self._saved_at = trainer.state.global_step

    def check_saved(self, state: Any) -> None:
        """An error where a checkpoint has no state of the data, as this transformers does not save as those before."""
        if self.steps is not None and not self.trainer.args.save_only_model and self._saved_at != state.global_step:
            raise RuntimeError(
                f"the checkpoint of step {state.global_step} has no state of the data: this transformers does not call "
                "_save_rng_state, which brimful needs; use transformers 5"
            )

    def _settings(self, steps: Steps) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "world_size": trainer.accelerator.num_processes,
            "gradient_accumulation_steps": trainer.args.gradient_accumulation_steps,
            "steps": steps.length.steps,
            "samples": steps.length.samples,
        }

    def _say_what_differs(self, saved: dict[str, Any]) -> None:
        assert self.steps is not None
        now = self._settings(self.steps)
        names = ("world_size", "gradient_accumulation_steps")
        if different := [f"{name}={now[name]} (saved: {saved[name]})" for name in names if now[name] != saved[name]]:
            logger.warning(
                "resumed with %s: the data go on exactly where they stood; Trainer counts its epochs as if all steps had been "
                "of these settings",
                " and ".join(different),
            )

    # -- evaluation

    def evaluated(self, given: Any) -> Any:
        """A DataLoader for an evaluation of what Trainer names so, if that is ours; else None."""
        trainer = self.trainer
        name = given if isinstance(given, str) else None
        if name is not None:
            given = self._named[name] if name in self._named else trainer.eval_dataset[name]
        elif given is None:
            given = trainer.eval_dataset
        what = "eval_dataset" if name is None or name in self._named else f"eval_dataset[{name!r}]"
        refuse_samples(what, given)
        if not is_ours(given):
            return None
        own = self._data.own(what, given)
        once = Once(loader_aside(own), self._data.known(own), self._inputs)
        return as_dataloader(once, tells_the_last=trainer.args.batch_eval_metrics)

    @contextmanager
    def named(self, given: Any) -> Iterator[Any]:
        """A name for what is ours, which trainers that prepare their data leave alone; anything else as it is."""
        if not is_ours(given):
            yield given
            return
        name = f"{type(given).__name__} {id(given):x}"
        self._named[name] = given
        try:
            yield name
        finally:
            del self._named[name]

    @contextmanager
    def evaluating(self, evaluation: Evaluation) -> Iterator[None]:
        """One evaluation of ours."""
        self.evaluation, self.trainer.gather_function = evaluation, evaluation.rows
        try:
            yield
        finally:
            self.evaluation, self.trainer.gather_function = None, self.trainer.accelerator.gather_for_metrics

    def loader_of(self, dataloader: Any) -> Loader | None:
        """The loader that an evaluation reads; None where it is another's."""
        data = getattr(dataloader, "dataset", None)
        return innermost(data.loader) if isinstance(data, Once) else None

    # -- lengths

    def num_examples(self, dataloader: Any) -> int | None:
        """The samples of an epoch, of all processes; of streams Trainer's own estimate. None where the data are another's."""
        data = getattr(dataloader, "dataset", None)
        if not isinstance(data, Steps | Once):
            return None
        if data.length.samples is None:
            return int(len(data) * self.trainer.args.train_batch_size)
        return int(data.length.samples)

    def samples_a_step(self) -> int | None:
        """The mean number of samples of an optimizer step, on all processes; None where not known."""
        if self.steps is None or not self._in_train or self.steps.length.samples is None:
            return None
        steps: float = self.steps.steps / self.trainer.args.gradient_accumulation_steps
        return max(1, round(self.steps.length.samples / max(steps, 1)))

    def _steps(self, saved: dict[str, Any] | None, *, aside: bool = False) -> Steps:
        """The training data from their start."""
        own = self._data.own("train_dataset", self.trainer.train_dataset)
        loader = loader_aside(own) if aside else loader_of(own)
        length = self._data.length(own, saved)
        if not length.steps:
            raise ValueError(f"train_dataset has no batch for this process: {own!r}")
        return Steps(loader, length, self._inputs, (lambda: 0) if aside else self._to_skip)

    def _to_skip(self) -> int:
        """How many batches Trainer passes over in this iteration: after a resume, as it counts them itself."""
        if not self._skips:
            return 0
        self._skips = False
        assert self.steps is not None
        args = self.trainer.args
        if args.ignore_data_skip:
            return 0
        accumulated = args.gradient_accumulation_steps
        return int(self.trainer.state.global_step % -(-self.steps.steps // accumulated) * accumulated)


class Follows(TrainerCallback):
    """Tells the adapter of steps and checkpoints, before other callbacks."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapter.stepped(state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapter.check_saved(state)


def _each(given: Any) -> list[tuple[Any, Any]]:
    """The data sets of an argument, with their names where it is a dict."""
    if isinstance(given, dict):
        return list(given.items())
    return [] if given is None else [(None, given)]
