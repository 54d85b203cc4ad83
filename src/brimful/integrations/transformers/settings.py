"""What batches ask of a trainer's settings, and of its model."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Final

from torch.utils.data import Dataset
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from brimful.batching.micro_batches import check_accumulation
from brimful.core.errors import logger
from brimful.isolation.call import FROM_PACKED

NO_EFFECT: Final[dict[str, int | str]] = {
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "train_sampling_strategy": "random",
    "packing": False,
    "padding_free": False,
}
"""Settings of a trainer that do nothing to batches that are made already, and their defaults."""


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
    by_default = (
        getattr(model, "loss_type", "") is None and type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    )
    return by_default or bool(getattr(trainer, "_loss_shifts_labels", False))


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
