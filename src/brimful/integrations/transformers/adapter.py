"""What a trainer of ours keeps beside its base: its data, the place in them, and what the batch at hand counts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from brimful.async_loader import has_static_buffers, innermost
from brimful.batching.micro_batches import check_accumulation
from brimful.core.states import merge_states
from brimful.integrations.copies import refuse_copies
from brimful.integrations.guard import refuse_static_buffers, told_to_all
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
from brimful.integrations.transformers.loss import Evaluation, num_labels_of, real_rows, shares
from brimful.isolation.call import FROM_PACKED, base_model
from brimful.isolation.guard import IsolationGuard
from brimful.loader import Loader
from brimful.plan.errors import logger
from brimful.tensors.loss import nothing

DATA: Final = ("train_dataset", "eval_dataset")
NO_EFFECT: Final[dict[str, int | str]] = {
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "train_sampling_strategy": "random",
    "packing": False,
    "padding_free": False,
}
"""Settings of a trainer that do nothing to batches that are made already, and their defaults."""


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
        self._rows: torch.Tensor | bool = True  # of that batch, those that count
        self.evaluation: Evaluation | None = None  # the one that runs
        self.steps: Steps | None = None  # the data of the run that is going on, or was last
        self._given: dict[str, Any] = {}
        self._data_collator: Any = None
        self._data = TrainerData(trainer)
        self._named: dict[str, Any] = {}
        self._in_train = False
        self._weighed = False
        self._trained = 0  # batches since the last optimizer step
        self._saved_at: int | None = None
        self._resumed_at = 0  # the optimizer step of the checkpoint that the run goes on from

    def taken_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The constructor's arguments with a stand-in for each of ours; those are put back by `begin`."""
        bound = inspect.signature(self.base.__init__).bind(self.trainer, *args, **kwargs)
        extra = next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")

        def place_of(name: str) -> dict[str, Any]:
            return bound.arguments if name in bound.arguments else bound.arguments.setdefault(extra, {})

        everything = [each for name in DATA for each in _each(name, place_of(name).get(name))]
        for name, one in everything:
            refuse_samples(name, one)
        if all(is_ours(one) for _, one in everything):
            self._data_collator = place_of("data_collator").get("data_collator")
        for name in DATA:
            place = place_of(name)
            given = place.get(name)
            if is_ours(given):
                self._given[name], place[name] = given, stand_in(self.base)
            elif isinstance(given, dict) and (ours := {key: one for key, one in given.items() if is_ours(one)}):
                self._given[name], place[name] = ours, {**given, **{key: stand_in(self.base) for key in ours}}
        if is_ours(trained := self._given.get("train_dataset")):
            place = place_of("args")
            place["args"] = accumulating(place.get("args"), batches_of(trained).micro_batches)
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
            own = self._data.own("train_dataset", trainer.train_dataset)
            self._data.is_run(own)
            if (accumulated := trainer.args.gradient_accumulation_steps) > 1 and has_static_buffers(own):
                refuse_static_buffers(f"Trainer with gradient_accumulation_steps={accumulated}")
        for name, given in _each("eval_dataset", trainer.eval_dataset):
            if is_ours(given):
                self._data.own(name, given)

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
        with told_to_all(gather_object):
            checkpoint = checkpoint_file.last_complete(trainer.args.output_dir) or True if resume is True else resume
            saved = checkpoint_file.read(checkpoint) if checkpoint and checkpoint is not True else None
        self._resumed_at = 0 if saved is None else saved["global_step"]
        self.steps = self._steps(saved)
        with told_to_all(gather_object):
            if saved is not None:
                self.steps.loader.load_state_dict(saved["loader"])
                self._say_what_differs(saved)
        self._in_train, self._trained = True, 0
        try:
            yield checkpoint
        finally:
            self._in_train = False
            self.steps.close()

    def train_dataloader(self) -> Any:
        """The run's own while it goes on; before and after, one of a run by itself, which moves nothing."""
        return as_dataloader(self.steps if self._in_train and self.steps is not None else self._steps(None, aside=True))

    def ended(self, values: Any) -> Any:
        """What Trainer works out before a run: its epochs, the steps of one, ..., all steps. A resume at the end has no more
        epochs: Trainer itself would train a step before it looks at their number."""
        _, per_epoch, *_, steps = values
        return (self._resumed_at // per_epoch, *values[1:]) if 0 < steps <= self._resumed_at else values

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
        counts = [self.num_labels(batch).to(device) for batch in samples]
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

    def num_labels(self, batch: TrainerBatch) -> torch.Tensor:
        """How many labels of a batch count, () int64."""
        return num_labels_of(batch, self.trainer.label_names, self.shifts)

    @property
    def means(self) -> bool:
        """Whether losses come as means over their batches' labels, and are weighed here: transformers' own compute_loss does
        as long as it is told no number of labels. (It tells it any forward with **kwargs, and BERT's, T5's and others'
        ignore it.)"""
        own = self.base.compute_loss is Trainer.compute_loss and self.trainer.compute_loss_func is None
        return own or self.trainer.loss_is_scaled_for_ga is False

    @contextmanager
    def step(self, inputs: Any) -> Iterator[None]:
        """A forward and a backward of one batch.

        Raises:
            RuntimeError: its loss was not weighed, as a class made of this one has methods of its own in the way.
        """
        self.share, self._weighed = getattr(inputs, "share", None), False
        self._rows = getattr(inputs, "rows", True)
        try:
            yield
            wanted = self.share is None or self.share.scale is not None
            if isinstance(inputs, TrainerBatch) and wanted and not self._weighed:
                raise RuntimeError(
                    f"the loss of this batch was not weighed by its labels: {type(self.trainer).__name__} overrides compute_loss "
                    "or get_batch_samples and does not call super(); make the class of Trainer, and trainer_class of that"
                )
        finally:
            self.share, self._rows = None, True
        self._trained += 1

    @contextmanager
    def on_real_rows(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """A loss of the rows that count: a compute_loss_func gets no others.

        Raises:
            ValueError: the model computes the loss itself, and would count copies.
        """
        trainer, rows, given = self.trainer, self._rows, self.trainer.compute_loss_func
        if given is None:
            refuse_copies(type(base_model(trainer.model)).__name__, inputs, rows, trainer.label_names)
        elif isinstance(rows, torch.Tensor):
            trainer.compute_loss_func = lambda outputs, labels, *args, **kwargs: given(
                real_rows(outputs, rows), real_rows(labels, rows), *args, **kwargs
            )
        try:
            yield
        finally:
            trainer.compute_loss_func = given

    def scaled(self, result: Any, share: Share) -> Any:
        """What compute_loss returned, weighed."""
        self._weighed = True
        if share.scale is None and not share.nothing:
            return result
        if isinstance(result, tuple):
            return self.scaled(result[0], share), *result[1:]
        return nothing(result) if share.nothing else result * share.scale

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

    @contextmanager
    def predicting(self, inputs: TrainerBatch) -> Iterator[None]:
        """A forward of one batch of an evaluation, whose loss is the mean over its labels, not over those of all processes."""
        assert self.evaluation is not None
        self.evaluation.begin(inputs, self.num_labels(inputs))
        args, self._rows = self.trainer.args, inputs.rows
        of_all = args.average_tokens_across_devices
        args.average_tokens_across_devices = False  # by which Trainer would scale it
        try:
            yield
        finally:
            args.average_tokens_across_devices, self._rows = of_all, True

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
            raise ValueError(f"train_dataset has no batch for this process: {repr(own).splitlines()[0]}")
        skipped, args = 0, self.trainer.args
        if saved is not None and not args.ignore_data_skip:  # as Trainer counts them
            accumulated = args.gradient_accumulation_steps
            skipped = saved["global_step"] % -(-length.steps // accumulated) * accumulated
        return Steps(loader, length, self._inputs, skipped=skipped)


class Follows(TrainerCallback):
    """Tells the adapter of steps and checkpoints, before other callbacks."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapter.stepped(state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapter.check_saved(state)


def _each(name: str, given: Any) -> list[tuple[str, Any]]:
    """The data sets of an argument, with the names by which an error calls them."""
    if isinstance(given, dict):
        return [(f"{name}[{key!r}]", one) for key, one in given.items()]
    return [] if given is None else [(name, given)]


# -- what batches ask of a trainer's settings, and of its model


class StandIn(Dataset[Any]):
    """What a trainer's constructor gets in place of batches."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> Any:
        raise TypeError("the data of this trainer are batches: iterate over its get_train_dataloader()")


def stand_in(base: type[Any]) -> Any:
    """Something that the constructor of a trainer takes for data; of TRL's, which wants to prepare them, prepared ones."""
    if any(one.__module__.startswith("trl.") for one in base.__mro__):
        from datasets import Dataset as Prepared

        return Prepared.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
    return StandIn()


def accumulating(args: Any, batches: int | None) -> Any:
    """A trainer's settings with the accumulation that batches are made for, where they have none of their own.

    Raises:
        ValueError: they have another one.
    """
    if batches is not None and args is not None and args.gradient_accumulation_steps == 1:
        args = copy.copy(args)
        args.gradient_accumulation_steps = batches
    check_accumulation(batches, getattr(args, "gradient_accumulation_steps", 1), "gradient_accumulation_steps")
    return args


def keys_of(model: Any, label_names: list[str]) -> frozenset[str]:
    """The keys of a batch that a model's forward takes."""
    parameters = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    more = FROM_PACKED if any(one.kind is one.VAR_KEYWORD for one in parameters) else frozenset()
    return frozenset(named | more | {*label_names})


def shifts_labels(trainer: Any, model: Any) -> bool:
    """Whether a model shifts its labels itself: as Trainer sees it, and where its loss is the causal one by default (GPT-2)."""
    if getattr(model, "loss_type", "") is None and type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True
    return bool(getattr(trainer, "_loss_shifts_labels", False))


def refuse_settings(trainer: Any, data_collator: Any, *, trains: bool) -> None:
    """An error for settings that batches cannot be right under, a warning for those that do nothing to them.

    Args:
        data_collator: what the trainer was given, if all its data are batches.
        trains: whether it is given batches to train on.
    Raises:
        ValueError: with the remedy.
    """
    args = trainer.args
    if trains and args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size begins the training again with smaller batches, and these are made already: find out before "
            "what fits, with bf.memory.probe, and give batch() a bf.MemoryBudget"
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"nn.DataParallel would cut each batch into {args.n_gpu} parts by rows, and its loss is another one: start the "
            "script with torchrun, or let it see one GPU (CUDA_VISIBLE_DEVICES)"
        )
    for kind, size in (("context", trainer.get_cp_size()), ("sequence", trainer.get_sp_size())):
        if size > 1:
            raise ValueError(
                f"{kind} parallelism ({size} processes a sequence) cuts batches across processes, which trainer_class does not "
                "serve: use plain Trainer with a dataset of samples, or data parallelism"
            )
    if data_collator is not None:
        raise ValueError(
            "a data_collator is not called on batches, which are made already: give it to them, "
            "batch(..., collate_fn=data_collator)"
        )
    idle = [name for name, default in NO_EFFECT.items() if getattr(args, name, default) != default]
    if trains and idle:
        logger.warning(
            "%s of the trainer's arguments %s nothing to batches: say it where they are made (batch, pack, shard, prefetch)",
            ", ".join(idle),
            "does" if len(idle) == 1 else "do",
        )
