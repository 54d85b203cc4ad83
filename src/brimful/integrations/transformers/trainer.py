"""What `trainer_class` puts on top of a trainer: its data, the place in them, and what the batch at hand counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from brimful.async_loader import stage_of
from brimful.core.facts import refuse_static_buffers
from brimful.integrations.calls import refuse_copies
from brimful.integrations.follow import innermost, told_to_all
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
    can_count,
    is_ours,
    loader_aside,
    loader_of,
    refuse_samples,
)
from brimful.integrations.transformers.loss import (
    Evaluation,
    as_integers,
    num_labels_of,
    real_rows,
    shares,
    with_a_label,
)
from brimful.integrations.transformers.settings import (
    SERVED,
    each_of,
    keys_of,
    of_trl,
    refuse_settings,
    shifts_labels,
    taken_out,
)
from brimful.isolation.call import base_model
from brimful.isolation.guard import IsolationGuard
from brimful.plan.errors import logger
from brimful.tensors.loss import nothing


class TrainerOfBatches(Trainer):
    """See `trainer_class`, which puts it before the class of a trainer. Its own names begin with two underscores, so that none is
    one of that class's."""

    _brimful_base: type[Trainer]
    _brimful_isolation: str
    model: Any
    train_dataset: Any
    eval_dataset: Any
    compute_loss_func: Any
    gather_function: Any

    __steps: Steps | None = None  # the data of the run that is going on, or was last
    __in_train = False
    __trained = 0  # batches since the last optimizer step
    __resumed_at = 0  # the optimizer step of the checkpoint that the run goes on from
    __saved_at: int | None = None
    __batch: TrainerBatch | None = None  # whose loss is computed
    __evaluation: Evaluation | None = None  # the one that runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__guard = IsolationGuard(self._brimful_isolation)
        self.__data = TrainerData(self)
        args, kwargs, ours = taken_out(self, self._brimful_base, args, kwargs)
        super().__init__(*args, **kwargs)
        for name, given in ours.items():
            held = getattr(self, name, None)
            setattr(self, name, {**held, **given} if isinstance(given, dict) and isinstance(held, dict) else given)
        model = base_model(self.model)
        self.__shifts = shifts_labels(self, model)
        keys = keys_of(model, self.label_names) if self.args.remove_unused_columns else None
        name, shared = type(model).__name__, self.accelerator.num_processes > 1
        needed: tuple[str, ...] = ()
        if (trls := of_trl(self._brimful_base)) and (pairs := SERVED[trls].keys):
            name, needed, keys = trls, pairs[0], frozenset(pairs[0] + pairs[1])
        self.__inputs = ModelInputs(keys, name, shared=shared, needed=needed)
        self.callback_handler.callbacks.insert(0, AfterStep(self.__stepped))  # before others see the epoch
        if ours:
            refuse_settings(self, trains="train_dataset" in ours)
        if is_ours(self.train_dataset):
            own = self.__data.own("train_dataset", self.train_dataset)
            self.__data.is_run(own)
            if (accumulated := self.args.gradient_accumulation_steps) > 1:
                refuse_static_buffers(stage_of(own), f"Trainer with gradient_accumulation_steps={accumulated}")
        for name, given in each_of("eval_dataset", self.eval_dataset):
            if is_ours(given):
                self.__data.own(name, given)

    # -- training

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.__steps, self.__resumed_at, self.__trained = None, 0, 0
        checkpoint = resume_from_checkpoint
        if not is_ours(self.train_dataset):
            return super().train(checkpoint, *args, **kwargs)
        with told_to_all(gather_object):
            if checkpoint is True:
                checkpoint = checkpoint_file.last_complete(self.args.output_dir) or True
            saved = checkpoint_file.read(checkpoint) if checkpoint and checkpoint is not True else None
        self.__steps = steps = self.__of_a_run(saved)
        with told_to_all(gather_object):
            if saved is not None:
                self.__resumed_at = saved["global_step"]
                steps.follow.loader.load_state_dict(saved["loader"])
                self.__warn_of_other_settings(saved, steps)
        self.__in_train = True
        try:
            return super().train(checkpoint, *args, **kwargs)
        finally:
            self.__in_train = False
            steps.close()

    def get_train_dataloader(self) -> Any:
        """The run's own while it goes on; before and after, one of a run by itself, which moves nothing."""
        if not is_ours(self.train_dataset):
            return super().get_train_dataloader()
        own = self.__steps if self.__in_train else None
        return as_dataloader(self.__of_a_run(None, aside=True) if own is None else own)

    def __of_a_run(self, saved: dict[str, Any] | None, *, aside: bool = False) -> Steps:
        """The training data from their start."""
        own = self.__data.own("train_dataset", self.train_dataset)
        loader = loader_aside(own) if aside else loader_of(own)
        length = self.__data.length(own, saved)
        if not length.steps:
            raise ValueError(f"train_dataset has no batch for this process: {repr(own).splitlines()[0]}")
        skipped = 0
        if saved is not None and not self.args.ignore_data_skip:  # as Trainer counts them
            accumulated = self.args.gradient_accumulation_steps
            skipped = saved["global_step"] % -(-length.steps // accumulated) * accumulated
        return Steps(loader, length, self.__inputs, skipped=skipped)

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        """Epochs, the steps of one, ..., all steps. A resume at the end has no more epochs: Trainer itself would train a step
        before it looks at their number."""
        values = super().set_initial_training_values(*args, **kwargs)
        _, per_epoch, *_, steps = values
        return (self.__resumed_at // per_epoch, *values[1:]) if 0 < steps <= self.__resumed_at else values

    def num_examples(self, dataloader: Any) -> int:
        """The samples of an epoch, of all processes; of streams Trainer's own estimate."""
        data = getattr(dataloader, "dataset", None)
        if not isinstance(data, Steps | Once):
            return super().num_examples(dataloader)
        samples = data.length.samples
        return int(len(data) * self.args.train_batch_size if samples is None else samples)

    def get_total_train_batch_size(self, args: Any) -> int:
        """The mean number of samples of an optimizer step, on all processes."""
        data = self.__steps if self.__in_train else None
        if data is None or data.length.samples is None:
            return super().get_total_train_batch_size(args)
        return max(1, round(data.length.samples / max(data.steps / self.args.gradient_accumulation_steps, 1)))

    def __stepped(self, state: Any) -> None:
        """After an optimizer step: what was handed out for it has been trained on."""
        steps = self.__steps
        if not self.__in_train or steps is None:
            return
        if steps.follow.unused != self.__trained:
            raise RuntimeError(
                f"{steps.follow.unused} batches were taken for an optimizer step and {self.__trained} were trained on: something "
                "else reads the trainer's data (give it batches.loader() of its own), or a callback said should_epoch_stop in "
                "the middle of an accumulation (say it in on_step_end)"
            )
        steps.follow.use()
        self.__trained = 0
        if not steps.length.of_data and can_count(self.train_dataset):
            state.epoch = float(steps.follow.loader.state_dict()["epoch"])

    # -- losses

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """The batches of an optimizer step, each with what its loss counts in it."""
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if samples and isinstance(samples[0], TrainerBatch):
            counts = [self.__num_labels(batch).to(device) for batch in samples]
            for batch, share in zip(samples, self.__shares(counts), strict=True):
                batch.share = share
        return samples, num_items

    def __shares(self, counts: list[torch.Tensor]) -> list[Share]:
        if not self.__means:
            return [Share(None, not count) for count in counts]
        total, world_size = torch.stack(counts).sum(), 1
        if self.args.average_tokens_across_devices:
            replicas = self.get_tp_size()
            total = self.accelerator.gather(total).sum() // replicas
            world_size = self.accelerator.num_processes // replicas
        return shares(counts, total, world_size, self.loss_is_scaled_for_ga is not True)

    def __num_labels(self, batch: TrainerBatch) -> torch.Tensor:
        """How many labels of a batch count, () int64."""
        return num_labels_of(batch, self.label_names, self.__shifts)

    @property
    def __means(self) -> bool:
        """Whether losses come as means over their batches' labels, and are weighed here: transformers' own compute_loss does
        as long as it is told no number of labels. (It tells it any forward with **kwargs, and BERT's, T5's and others'
        ignore it.)"""
        own = self._brimful_base.compute_loss is Trainer.compute_loss and self.compute_loss_func is None
        return own or self.loss_is_scaled_for_ga is False

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        if any(batch is SKIPPED for batch in batch_samples):
            raise RuntimeError(
                "this trainer passes over fewer batches after a resume than Trainer does, by global_step: it goes on in a way "
                "that brimful does not know, and would train on nothing"
            )
        if batch_samples and isinstance(batch_samples[0], TrainerBatch):
            if self.__means:
                return None
            if self.__evaluation is not None:
                return self.__evaluation.count.to(device).clamp(min=1)
            batch_samples = list(map(as_integers, batch_samples))
        num_items = super()._get_num_items_in_batch(batch_samples, device)
        return num_items.clamp(min=1) if isinstance(num_items, torch.Tensor) else num_items

    @contextmanager
    def __at_hand(self, inputs: Any) -> Iterator[None]:
        """A forward of one batch. In the first packed one, samples may not see each other in the model."""
        if isinstance(inputs, TrainerBatch):
            self.__guard.check(self.model, inputs, inputs.segments)
            self.__batch = inputs
        try:
            yield
        finally:
            self.__batch = None

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with self.__at_hand(inputs):
            loss = super().training_step(model, inputs, *args, **kwargs)
        share = getattr(inputs, "share", None)
        wanted = isinstance(inputs, TrainerBatch) and (share is None or share.scale is not None)
        if wanted and not inputs.weighed:
            raise RuntimeError(
                f"the loss of this batch was not weighed by its labels: {type(self).__name__} overrides compute_loss "
                "or get_batch_samples and does not call super(); make the class of Trainer, and trainer_class of that"
            )
        self.__trained += 1
        return loss

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """A loss of the rows that count: a compute_loss_func gets no others."""
        batch = TrainerBatch() if self.__batch is None else self.__batch
        share, rows, given = batch.share, batch.rows, self.compute_loss_func
        if share is not None and share.nothing:
            inputs = with_a_label(inputs, self.label_names)
            if "num_items_in_batch" in kwargs:
                kwargs["num_items_in_batch"] = torch.tensor(1, device=self.args.device)
        if given is None:
            refuse_copies(type(base_model(self.model)).__name__, inputs, rows, self.label_names)
        elif isinstance(rows, torch.Tensor):
            self.compute_loss_func = lambda outputs, labels, *args, **kwargs: given(
                real_rows(outputs, rows), real_rows(labels, rows), *args, **kwargs
            )
        try:
            result = super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.compute_loss_func = given
        batch.weighed = share is not None
        if share is None or (share.scale is None and not share.nothing):
            return result
        loss, *others = result if isinstance(result, tuple) else (result,)
        loss = nothing(loss) if share.nothing or share.scale is None else loss * share.scale
        return (loss, *others) if isinstance(result, tuple) else loss

    # -- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        step = self.state.global_step
        if self.args.should_save:  # an older one of its name must not pass for it
            checkpoint_file.begin(f"{self._get_output_dir(trial=trial)}/{PREFIX_CHECKPOINT_DIR}-{step}")
        super()._save_checkpoint(model, trial, *args, **kwargs)
        if self.__steps is not None and not self.args.save_only_model and self.__saved_at != step:
            raise RuntimeError(
                f"the checkpoint of step {step} has no state of the data: this transformers does not call "
                "_save_rng_state, which brimful needs; use transformers 5"
            )

    def _save_rng_state(self, output_dir: str) -> None:
        """Writes where the data stand, on all processes at once."""
        super()._save_rng_state(output_dir)
        if self.__steps is None:
            return
        step, loader = self.state.global_step, self.__steps.follow.state(gather_object)
        if self.args.should_save:
            checkpoint_file.save(output_dir, loader=loader, global_step=step, **self.__settings(self.__steps))
        self.__saved_at = step

    def __settings(self, steps: Steps) -> dict[str, Any]:
        return {
            "world_size": self.accelerator.num_processes,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "steps": steps.length.steps,
            "samples": steps.length.samples,
        }

    def __warn_of_other_settings(self, saved: dict[str, Any], steps: Steps) -> None:
        now, names = self.__settings(steps), ("world_size", "gradient_accumulation_steps")
        if different := [f"{name}={now[name]} (saved: {saved[name]})" for name in names if now[name] != saved[name]]:
            logger.warning(
                "resumed with %s: the data go on exactly where they stood; Trainer counts its epochs as if all steps had been "
                "of these settings",
                " and ".join(different),
            )

    # -- evaluation

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        found = self.__evaluated(eval_dataset)
        return super().get_eval_dataloader(eval_dataset) if found is None else found

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        found = self.__evaluated(test_dataset)
        return super().get_test_dataloader(test_dataset) if found is None else found

    def __evaluated(self, given: Any) -> Any:
        """A DataLoader for an evaluation of what Trainer names so, if that is ours; else None."""
        name = "eval_dataset"
        if given is None:
            given = self.eval_dataset
        elif isinstance(given, str):
            name, given = f"eval_dataset[{given!r}]", self.eval_dataset[given]
        refuse_samples(name, given)
        if not is_ours(given):
            return None
        own = self.__data.own(name, given)
        once = Once(loader_aside(own), self.__data.known(own), self.__inputs)
        return as_dataloader(once, tells_the_last=self.args.batch_eval_metrics)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        if isinstance(eval_dataset, dict) and any(map(is_ours, eval_dataset.values())):
            metrics: dict[str, Any] = {}
            for name, one in eval_dataset.items():
                metrics |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}", **kwargs)
            return metrics
        evaluate = partial(super().evaluate, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix, **kwargs)
        if not is_ours(eval_dataset):
            return evaluate(eval_dataset=eval_dataset)
        held, self.eval_dataset = self.eval_dataset, eval_dataset
        try:
            return evaluate()  # a base that prepares what it is given leaves its own alone
        finally:
            self.eval_dataset = held

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        arguments = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        data = getattr(dataloader, "dataset", None)
        if not isinstance(data, Once):
            return super().evaluation_loop(*arguments)
        self.__evaluation = evaluation = Evaluation(self.accelerator, self.get_tp_size())
        self.gather_function = evaluation.rows
        try:
            output = super().evaluation_loop(*arguments)
        finally:
            self.__evaluation, self.gather_function = None, self.accelerator.gather_for_metrics
        stats = innermost(data.loader).stats
        return evaluation.of(output, metric_key_prefix, 0 if stats is None else stats.samples)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """In an evaluation, the loss is the mean over the labels of this batch, not over those of all processes."""
        with self.__at_hand(inputs):
            if (evaluation := self.__evaluation) is None:
                return super().prediction_step(model, inputs, *args, **kwargs)
            evaluation.begin(inputs, self.__num_labels(inputs))
            of_all = self.args.average_tokens_across_devices
            self.args.average_tokens_across_devices = False  # by which Trainer would scale it
            try:
                loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
            finally:
                self.args.average_tokens_across_devices = of_all
        evaluation.add(loss)
        return loss, *(others if inputs.rows is False else real_rows(others, inputs.rows))


class AfterStep(TrainerCallback):
    """Calls a function after each optimizer step."""

    def __init__(self, stepped: Callable[[Any], None]) -> None:
        self._stepped = stepped

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stepped(state)
