"""Batches in Hugging Face's Trainer, and in trainers made of it: resumed from its own checkpoints, exactly."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from transformers import Trainer

from brimful.integrations.transformers.settings import refuse_base
from brimful.integrations.transformers.trainer import TrainerOfBatches
from brimful.plan.errors import one_of

__all__ = ["trainer_class"]


def trainer_class(base: type[Trainer], *, isolation: str = "raise") -> Any:
    """A subclass of a trainer that takes `Batches`, or a loader of them, as train_dataset and eval_dataset.

    The base is Trainer, Seq2SeqTrainer, TRL's SFTTrainer, DPOTrainer or RewardTrainer, or your own. Training continues
    exactly from its own checkpoints (`train(resume_from_checkpoint=True)`). With any other data, the class behaves like
    its base. With batches:

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
    - DPOTrainer and RewardTrainer take batches of `layout="paired"`, whose loss is the mean over all pairs of a step.
      They get the keys of their own collators. The metrics that they log also count fillers.

    - Before the first packed batch is trained or evaluated on, a small model of the same configuration runs on a few
      short samples of it. If the samples see each other, this is an error.

    Args:
        base: the class of a trainer. The same arguments give the same result.
        isolation: "raise": raise an error if the samples of a packed row see each other in the model. "off": no check.
    Raises:
        TypeError: the base is not a trainer, or another one of TRL's, such as GRPOTrainer, or of
            sentence-transformers. Or the release of transformers works differently.
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
def _made(base: type[Trainer], isolation: str) -> Any:
    refuse_base(base)
    own = (name for name, one in vars(TrainerOfBatches).items() if inspect.isfunction(one))
    if missing := [name for name in own if "TrainerOfBatches__" not in name and not hasattr(base, name)]:
        raise TypeError(  # a state would be lost in silence
            f"{base.__name__} has no {', '.join(missing)}: it needs another release of transformers, 5 or later"
        )
    named = {"__module__": base.__module__, "_brimful_base": base, "_brimful_isolation": isolation}
    return type(f"Brimful{base.__name__}", (TrainerOfBatches, base), named)


def __dir__() -> list[str]:
    return __all__
