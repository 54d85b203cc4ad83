"""Batches in Hugging Face's Trainer, and in trainers made of it: resumed from its own checkpoints, exactly."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from transformers import Trainer

from brimful.integrations.transformers.adapter import Adapter
from brimful.integrations.transformers.data import TrainerBatch, is_ours
from brimful.integrations.transformers.loss import Evaluation, as_integers, real_rows, with_a_label
from brimful.plan.errors import one_of

__all__ = ["trainer_class"]


def trainer_class(base: type[Trainer], *, isolation: str = "raise") -> Any:
    """A subclass of a trainer that takes `Batches`, or a loader of them, as train_dataset and eval_dataset.

    The base is Trainer, Seq2SeqTrainer, TRL's SFTTrainer or your own. Training continues exactly from its own
    checkpoints (`train(resume_from_checkpoint=True)`). With any other data, the class behaves like its base. With
    batches:

    - Several processes divide them (`shard`) by themselves. A loader must be made from sharded batches. Streams need
      `from_files(streams=n)`. Batches are used unchanged: `per_device_train_batch_size`, samplers and workers of the
      trainer have no effect. A data_collator is refused: give it to `batch(..., collate_fn=...)`.
    - Each checkpoint has the state of the data, `brimful_state.json`. It is the state of all processes at the last
      optimizer step, without batches that were read ahead. Another number of processes can continue from it.
      resume_from_checkpoint=True ignores a checkpoint that was interrupted while it was written. A checkpoint without
      the file is refused.
    - The epochs of Trainer all have as many steps as the first epoch of the data, taken from an endless run over the
      data. Real epochs differ by some batches, because they are planned in windows. If the number is not known
      (streams), give max_steps: `state.epoch` then counts the finished epochs of the data. Without max_steps, a first
      pass over the data counts them, without making tensors.
    - The loss of an optimizer step is the mean over all its labels, of all processes and accumulated batches. This
      holds whether or not the model's forward takes num_items_in_batch. A filler, or a batch without a label, adds 0
      and never NaN. If a base overrides compute_loss, or there is a compute_loss_func, it gets num_items_in_batch as in
      Trainer. If it ignores that and returns means, set loss_is_scaled_for_ga = False, as Trainer asks. Override
      compute_loss in the base. A class made from the result must call super() in its overrides.
    - Copies up to a static shape count for nothing. If not all labels are -100 in them, the model's own loss counts them.
      Then it is an error: give a compute_loss_func, which gets the outputs and labels of the other rows alone.
    - Evaluations also weigh the loss by labels, and count no filler and no copy. Predictions and label_ids are of real
      rows alone. They come in the order of the batches, not of the data. They are padded with -100 if lengths differ.
      Rows of packed batches are rows.
    - Keys that the model's forward does not take are left out, unless remove_unused_columns=False.

    - Before the first packed batch is trained or evaluated on, a small model of the same configuration runs on a few
      short samples of it. If the samples see each other, this is an error.

    Args:
        base: the class of a trainer. The same arguments give the same result.
        isolation: "raise": raise an error if the samples of a packed row see each other in the model. "off": no check.
    Raises:
        TypeError: the base is not a trainer, or another one of TRL's, such as DPOTrainer. Or the release of
            transformers works differently.
        ValueError: (when constructed) a setting cannot work: auto_find_batch_size, nn.DataParallel, context or sequence
            parallelism, or a data_collator. Or evaluation data have no end, or num_train_epochs is set for such data.
            Or static_buffers are given with gradient_accumulation_steps above 1, or in an evaluation.
            (At the first packed batch) its samples see each other in the model. (At a batch with copies) the model
            would count them in its own loss. The error has the remedy.
        StateError: (from `train`) a checkpoint has no state, or one of other data.
        RankError: (from `train`) another process failed as it took its state. The error names it and its error.
    Price: less than a second at the first packed batch. An optimizer step sends 8 bytes to all processes, to count
        labels. Taking the loader's state costs .1 ms a batch, or 40 us a stream. Indexed data are planned twice, as
        integers, before the first batch.
    State: that of `Batches.loader()`, as JSON.
    Source: transformers 5 (trainer.py), whose methods it wraps.
    Example:
        >>> import tempfile
        >>> from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
        >>> import brimful as bf
        >>> samples = bf.from_sequence([[number % 9] * (2 + number % 7) for number in range(24)])
        >>> batches = samples.causal_labels().pack(16)
        >>> small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> config = LlamaConfig(vocab_size=9, **small)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, max_steps=4, save_steps=2, use_cpu=True, disable_tqdm=True, report_to="none")
        ...     for checkpoint in (None, f"{folder}/checkpoint-2"):
        ...         trainer = trainer_class(Trainer)(LlamaForCausalLM(config), args, train_dataset=batches)
        ...         trainer.train(checkpoint).global_step
        {'train_runtime': ...}
        4
        {'train_runtime': ...}
        4
    """
    if not (isinstance(base, type) and issubclass(base, Trainer)):
        raise TypeError(f"trainer_class takes transformers' Trainer or a class made of it (got {base!r})")
    one_of("isolation", isolation, "raise", "off")
    kind: Any = base
    return kind if hasattr(kind, "_brimful_base") else _made(kind, isolation)


@cache
def _made(base: Any, isolation: str) -> Any:
    trls = next((one.__name__ for one in base.__mro__ if one.__module__.startswith("trl.")), "SFTTrainer")
    if trls != "SFTTrainer":
        raise TypeError(
            f"trainer_class does not serve TRL's {trls}, which makes batches of its own columns and takes none that are made "
            f"already: of TRL's it serves SFTTrainer. Give {trls} itself samples, a `datasets` data set"
        )

    class Adapted(base):  # type: ignore[misc]  # of any class of trainers
        __module__ = base.__module__
        __qualname__ = f"Brimful{base.__name__}"
        _brimful_base = base

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._brimful = adapter = Adapter(self, base, isolation)
            args, kwargs = adapter.taken_out(args, kwargs)
            super().__init__(*args, **kwargs)
            adapter.begin()

        def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            with self._brimful.training(resume_from_checkpoint) as checkpoint:
                return super().train(checkpoint, *args, **kwargs)

        def get_train_dataloader(self) -> Any:
            ours = is_ours(self.train_dataset)
            return self._brimful.train_dataloader() if ours else super().get_train_dataloader()

        def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
            return self._brimful.ended(super().set_initial_training_values(*args, **kwargs))

        def num_examples(self, dataloader: Any) -> int:
            known = self._brimful.num_examples(dataloader)
            return super().num_examples(dataloader) if known is None else known

        def get_total_train_batch_size(self, args: Any) -> int:
            known = self._brimful.samples_a_step()
            return super().get_total_train_batch_size(args) if known is None else known

        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
            self._brimful.weigh(samples, device)
            return samples, num_items

        def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
            adapter = self._brimful
            adapter.refuse_skipped(batch_samples)
            if batch_samples and isinstance(batch_samples[0], TrainerBatch):
                if adapter.means:
                    return None
                if adapter.evaluation is not None:
                    return adapter.evaluation.count.to(device).clamp(min=1)
                batch_samples = list(map(as_integers, batch_samples))
            num_items = super()._get_num_items_in_batch(batch_samples, device)
            return num_items.clamp(min=1) if isinstance(num_items, torch.Tensor) else num_items

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._brimful.check_isolation(inputs)
            with self._brimful.step(inputs):
                return super().training_step(model, inputs, *args, **kwargs)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            share = self._brimful.share
            if share is not None and share.nothing:
                inputs = with_a_label(inputs, self.label_names)
                if "num_items_in_batch" in kwargs:
                    kwargs["num_items_in_batch"] = torch.tensor(1, device=self.args.device)
            with self._brimful.on_real_rows(inputs):
                result = super().compute_loss(model, inputs, *args, **kwargs)
            return result if share is None else self._brimful.scaled(result, share)

        def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
            self._brimful.begin_checkpoint(trial)
            super()._save_checkpoint(model, trial, *args, **kwargs)

        def _save_rng_state(self, output_dir: str) -> None:
            super()._save_rng_state(output_dir)
            self._brimful.save(output_dir)

        # -- evaluation

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            chosen = self._brimful.evaluated(eval_dataset)
            return super().get_eval_dataloader(eval_dataset) if chosen is None else chosen

        def get_test_dataloader(self, test_dataset: Any) -> Any:
            chosen = self._brimful.evaluated(test_dataset)
            return super().get_test_dataloader(test_dataset) if chosen is None else chosen

        def evaluate(
            self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **kwargs: Any
        ) -> Any:
            if isinstance(eval_dataset, dict) and any(map(is_ours, eval_dataset.values())):
                metrics: dict[str, Any] = {}
                for name, one in eval_dataset.items():
                    metrics |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}", **kwargs)
                return metrics
            with self._brimful.named(eval_dataset) as given:
                return super().evaluate(
                    eval_dataset=given, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix, **kwargs
                )

        def evaluation_loop(
            self,
            dataloader: Any,
            description: str,
            prediction_loss_only: Any = None,
            ignore_keys: Any = None,
            metric_key_prefix: str = "eval",
        ) -> Any:
            arguments = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
            if (loader := self._brimful.loader_of(dataloader)) is None:
                return super().evaluation_loop(*arguments)
            evaluation = Evaluation(self.accelerator, self.get_tp_size())
            with self._brimful.evaluating(evaluation):
                output = super().evaluation_loop(*arguments)
            samples = 0 if loader.stats is None else loader.stats.samples
            return evaluation.of(output, metric_key_prefix, samples)

        def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._brimful.check_isolation(inputs)
            evaluation = self._brimful.evaluation
            if evaluation is None:
                return super().prediction_step(model, inputs, *args, **kwargs)
            with self._brimful.predicting(inputs):
                loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
            evaluation.add(loss)
            return loss, *(others if inputs.rows is False else real_rows(others, inputs.rows))

    methods = (name for name, one in vars(Adapted).items() if inspect.isfunction(one))
    if missing := [name for name in methods if not hasattr(base, name)]:  # a state would be lost in silence
        raise TypeError(
            f"{base.__name__} has no {', '.join(missing)}: it needs another release of transformers, 5 or later"
        )
    Adapted.__name__ = Adapted.__qualname__
    return Adapted


def __dir__() -> list[str]:
    return __all__
