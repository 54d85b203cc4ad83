"""What batches ask of a trainer's settings, and of its model; what a trainer's constructor gets in their place."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Final, NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from brimful.integrations.follow import accumulated
from brimful.integrations.transformers.data import is_ours, refuse_samples
from brimful.isolation.call import FROM_PACKED
from brimful.plan.errors import logger

DATA: Final = ("train_dataset", "eval_dataset")
NO_EFFECT: Final[dict[str, int | str]] = {
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "train_sampling_strategy": "random",
    "packing": False,
    "padding_free": False,
}
"""Settings of a trainer that do nothing to batches that are made already, and their defaults."""


def taken_out(
    trainer: Any, base: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The arguments of the constructor of `base` with a stand-in for each of ours, and ours by name.

    Raises:
        TypeError: samples, or batches that are not named.
        ValueError: all data are batches, and there is a data_collator.
    """
    bound = inspect.signature(base.__init__).bind(trainer, *args, **kwargs)
    extra = next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")

    def place_of(name: str) -> dict[str, Any]:
        return bound.arguments if name in bound.arguments else bound.arguments.setdefault(extra, {})

    everything = [each for name in DATA for each in each_of(name, place_of(name).get(name))]
    for name, one in everything:
        refuse_samples(name, one)
    only_ours = bool(everything) and all(is_ours(one) for _, one in everything)
    if only_ours and place_of("data_collator").get("data_collator") is not None:
        raise ValueError(
            "a data_collator is not called on batches, which are made already: give it to them, "
            "batch(..., collate_fn=data_collator)"
        )
    taken: dict[str, Any] = {}
    for name in DATA:
        place = place_of(name)
        given = place.get(name)
        if is_ours(given):
            taken[name], place[name] = given, stand_in(base)
        elif isinstance(given, dict) and (ours := {key: one for key, one in given.items() if is_ours(one)}):
            taken[name], place[name] = ours, {**given, **{key: stand_in(base) for key in ours}}
    if is_ours(trained := taken.get("train_dataset")):
        place = place_of("args")
        place["args"] = accumulating(place.get("args"), trained)
    if any(map(is_ours, bound.args)):
        raise TypeError("name the data that you give a trainer: train_dataset=batches, eval_dataset=batches")
    return bound.args[1:], bound.kwargs, taken


def each_of(name: str, given: Any) -> list[tuple[str, Any]]:
    """The data sets of an argument, with the names by which an error calls them."""
    if isinstance(given, dict):
        return [(f"{name}[{key!r}]", one) for key, one in given.items()]
    return [] if given is None else [(name, given)]


class Served(NamedTuple):
    """A trainer of TRL's that takes batches.

    Args:
        sample: what its constructor takes for data: it wants to prepare them.
        keys: those of its batches, if it does not hand all of them on to the model: those that it needs, and others.
    """

    sample: dict[str, Any]
    keys: tuple[tuple[str, ...], tuple[str, ...]] | None = None


SERVED: Final = {
    "SFTTrainer": Served({"input_ids": [0, 0], "labels": [0, 0]}),
    "DPOTrainer": Served(
        {"prompt": "a", "chosen": "a", "rejected": "a"},
        (("input_ids", "attention_mask", "completion_mask"), ("ref_chosen_logps", "ref_rejected_logps")),
    ),
    "RewardTrainer": Served({"chosen_ids": [0], "rejected_ids": [0]}, (("input_ids", "attention_mask"), ("margin",))),
}
"""Of TRL's trainers, by name."""


def of_trl(base: type[Any]) -> str:
    """The name of the trainer of TRL's that a class is made of; "" where it is of none."""
    return next((one.__name__ for one in base.__mro__ if one.__module__.startswith("trl.")), "")


def refuse_base(base: type[Any]) -> None:
    """Refuses trainers that make batches of their own columns.

    Raises:
        TypeError: by name, with the remedy.
    """
    name = of_trl(base)
    if name and name not in SERVED:
        raise TypeError(
            f"trainer_class does not serve TRL's {name}, which makes batches of its own columns and takes none that are made "
            f"already: of TRL's it serves {', '.join(SERVED)}. Give {name} itself samples, a `datasets` data set"
        )
    if other := next((one.__name__ for one in base.__mro__ if one.__module__.startswith("sentence_transformers.")), ""):
        raise TypeError(
            f"trainer_class does not serve {other} of sentence-transformers, which tokenizes texts itself. Give it a `datasets` "
            "data set. Or call its losses in a loop of your own: with several length columns a batch has the keys that they take"
        )


def stand_in(base: type[Any]) -> Any:
    """Something that the constructor of a trainer takes for data; of TRL's, which wants to prepare them, prepared ones."""
    name = of_trl(base)
    sample = SERVED[name or "SFTTrainer"].sample
    if name:
        from datasets import Dataset

        return Dataset.from_list([sample])
    return [sample]


def accumulating(args: Any, trained: Any) -> Any:
    """A trainer's settings with the accumulation that its batches are made for."""
    name = "gradient_accumulation_steps"
    given = getattr(args, name, 1)
    steps = accumulated([trained], given, name, may_set=args is not None)
    if steps != given:
        args = copy.copy(args)
        args.gradient_accumulation_steps = steps
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


def refuse_settings(trainer: Any, *, trains: bool) -> None:
    """An error for settings that batches cannot be right under, a warning for those that do nothing to them.

    Args:
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
    idle = [name for name, default in NO_EFFECT.items() if getattr(args, name, default) != default]
    if trains and idle:
        logger.warning(
            "%s of the trainer's arguments %s nothing to batches: say it where they are made (batch, pack, shard, prefetch)",
            ", ".join(idle),
            "does" if len(idle) == 1 else "do",
        )
