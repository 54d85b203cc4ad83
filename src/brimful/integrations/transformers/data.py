"""Batches as transformers' Trainer reads them: to train, epochs of so many steps of an endless run; to evaluate, once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

import torch
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import DataLoader, IterableDataset

from brimful.async_loader import stage_of
from brimful.batches import Batches
from brimful.batching.facts import batch_facts, is_sharded
from brimful.batching.placement import Ranks
from brimful.batching.shared import shared
from brimful.core.facts import facts_of, refuse_static_buffers
from brimful.core.own_keys import NUM_SIDES
from brimful.core.stage import running
from brimful.dataset import Dataset
from brimful.integrations.follow import Follow, Ours, check_shared_out, innermost
from brimful.isolation.guard import packed_segments
from brimful.loader import Loader
from brimful.plan.errors import logger
from brimful.tensors.loss import rows_that_count
from brimful.tensors.on_device import check_tensors

Given: TypeAlias = Batches | Ours
SKIPPED: Final = object()
"""What stands for a batch that Trainer passes over after a resume."""


class Share(NamedTuple):
    """What a batch's loss counts in its optimizer step.

    Args:
        scale: what the loss is multiplied by; None: the trainer's own scaling holds.
        nothing: whether no label of the batch is trained on.
    """

    scale: torch.Tensor | None
    nothing: bool


class TrainerBatch(dict[str, Any]):
    """A batch with the keys that the model takes, and beside it what the trainer must know and the model must not."""

    rows: torch.Tensor | bool = True  # which count: see `rows_that_count`
    segments: Callable[[], torch.Tensor | None]  # says which slot is whose, where several samples lie in a row
    share: Share | None = None
    weighed: bool = False  # whether its loss was multiplied by its share
    pairs: int | None = None  # how many samples there are whose sides lie below one another


def is_ours(given: Any) -> TypeGuard[Given]:
    """Whether something given to a trainer is read by brimful: Batches, a loader of them, AsyncLoader around one."""
    inner = innermost(given)
    return isinstance(inner, Batches) or (isinstance(inner, Loader) and isinstance(inner.batches, Batches))


def refuse_samples(name: str, given: Any) -> None:
    """An error for samples, of which no trainer makes full batches.

    Raises:
        TypeError: a data set, or a loader of one.
    """
    if isinstance(given, Dataset) or (isinstance(given, Loader) and not isinstance(given.batches, Batches)):
        raise TypeError(
            f"{name} is samples (a {type(given).__name__}), and a trainer here takes batches: give it data.batch_by_tokens(...), "
            "data.batch(...) or data.pack(...)"
        )


def batches_of(given: Given) -> Batches:
    """The batches that something of ours reads."""
    inner = innermost(given)
    return inner if isinstance(inner, Batches) else inner.batches


def loader_of(given: Given) -> Ours:
    """A loader of an epoch at a time; of batches, a new one."""
    return replace(given, repeats=False).loader() if isinstance(given, Batches) else given


def loader_aside(given: Given) -> Ours:
    """A new loader of the same, from the start, which moves no other."""
    if isinstance(given, Batches):
        return loader_of(given)
    if isinstance(given, Loader):
        return type(given)(given.batches, steps_per_epoch=given.steps_per_epoch)
    inner: Any = given.loader
    return copy.deepcopy(given, {id(inner): loader_aside(inner)})


def steps_set(given: Given) -> int | None:
    """The `steps_per_epoch` of a loader; None where there is none."""
    return None if isinstance(given, Batches) else given.steps_per_epoch


def own_share(name: str, given: Any, rank: int, world_size: int, replicas: int) -> Any:
    """What a process reads of something of ours: its own batches, also where it is the only process, so that a state is good
    for any number of them.

    Raises:
        ValueError: a loader of batches that are not shared out; batches that are not, where ranks are no data-parallel ones.
    """
    check_shared_out(given, world_size, "processes", "each would get", name)
    if not isinstance(given, Batches) or is_sharded(given.stage):
        return given
    if replicas > 1:
        raise ValueError(
            f"{name} cannot be shared out by the {world_size} processes, as {replicas} of them hold one copy of the model "
            "(tensor parallel): give it batches.shard(rank, world_size) of the data-parallel rank"
        )
    return given.shard(rank, world_size)


class Length(NamedTuple):
    """How many steps an epoch of a process has, and how many samples that is, of all processes; None where not known.
    `of_data`: whether it is an epoch of the data, and not the whole run."""

    steps: int | None
    samples: int | None
    of_data: bool = True


def known_length(given: Given) -> Length:
    """What is known without reading. Price: two passes over the plans of an epoch, as integers, of indexed data."""
    if (steps := steps_set(given)) is not None:
        return Length(steps, None)
    batches = replace(batches_of(given), repeats=False)
    known = batch_facts(batches.stage)
    planned = known.planned
    try:
        steps = len(batches) if facts_of(batches.stage).ends() else facts_of(planned).num_items(None)
    except TypeError:
        steps = None
    if steps is None:
        return Length(None, None)
    everything = shared(planned, Ranks(0, 1), "pad", 600.0) if known.is_sharded else planned
    with running(everything, everything.start(0)) as batches_of_all:
        return Length(steps, sum(batch.num_samples for batch, _ in islice(batches_of_all, steps * known.num_ranks())))


def can_count(given: Given) -> bool:
    """Whether an epoch has an end that a pass over it finds."""
    return facts_of(batches_of(given).stage).ends()


def counted_length(given: Given) -> Length:
    """The steps of an epoch, and this rank's samples, by a pass over the data: they are read and tokenized, no tensor is made."""
    batches = batches_of(given)
    logger.warning(
        "counting the steps of an epoch of %s, by a pass over the data: to_store(path) makes a store of it, which knows them, "
        "and max_steps in the trainer's arguments asks for no count",
        repr(batches).splitlines()[0],
    )
    real = [batch.num_samples if batch.weight != 0 else 0 for batch in batches.plans()]
    return Length(len(real), sum(real))


def refuse_evaluation(name: str, given: Given, is_trained_on: bool) -> None:
    """An error for what would never end, count samples twice, or move the training data, in an evaluation.

    Raises:
        ValueError: with the remedy.
    """
    batches = batches_of(given)
    if is_trained_on and not isinstance(given, Batches):
        raise ValueError(
            f"{name} is the loader of train_dataset, and an evaluation would move it: give it one of its own, batches.loader()"
        )
    check_tensors(stage_of(given), "a trainer's model takes tensors")
    refuse_static_buffers(stage_of(given), f"an evaluation of {name}")  # which keeps the labels of all batches
    if steps_set(given) is not None:
        raise ValueError(
            f"{name} has steps_per_epoch={steps_set(given)}, so that each evaluation would see other batches: give it "
            f"batches.take({steps_set(given)})"
        )
    if batches.repeats or not facts_of(batches.stage).ends():
        raise ValueError(f"{name} repeats without end, and so would its evaluation: give it batches.take(n)")
    if batch_facts(batches.stage).uneven == "wrap":
        raise ValueError(
            f"{name} is shared out with uneven='wrap', which counts samples twice: say uneven='pad', whose fillers count nothing"
        )


class TrainerData:
    """What this process reads of each object that a trainer was given, and its length; worked out once for each."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._own: dict[int, tuple[Any, Any]] = {}  # by identity, which the object held beside keeps
        self._lengths: dict[int, Length] = {}

    def own(self, name: str, given: Any) -> Any:
        """What this process reads of something of ours."""
        if id(given) not in self._own:
            trainer = self._trainer
            accelerator = trainer.accelerator
            own = own_share(name, given, accelerator.process_index, accelerator.num_processes, trainer.get_tp_size())
            self._own[id(given)] = given, own
        own = self._own[id(given)][1]
        if name != "train_dataset":
            refuse_evaluation(name, own, given is self._trainer.train_dataset)
        return own

    def known(self, own: Any) -> Length:
        """What is known of its length without reading."""
        if id(own) not in self._lengths:
            self._lengths[id(own)] = known_length(own)
        return self._lengths[id(own)]

    def length(self, own: Any, saved: dict[str, Any] | None) -> Length:
        """How long an epoch of Trainer's is."""
        length = self.known(own)
        if length.steps is not None:
            return length
        args, accelerator = self._trainer.args, self._trainer.accelerator
        if self.is_run(own):
            return Length(args.max_steps * args.gradient_accumulation_steps, None, of_data=False)
        if saved is not None and saved["samples"] is not None and saved["world_size"] == accelerator.num_processes:
            length = Length(saved["steps"], saved["samples"])  # that of the run before
        else:
            counted = counted_length(own)
            samples = torch.tensor(counted.samples, device=accelerator.device)
            length = Length(counted.steps, int(accelerator.gather(samples).sum()) // self._trainer.get_tp_size())
        self._lengths[id(own)] = length
        return length

    def is_run(self, own: Any) -> bool:
        """Whether an epoch of unknown length is the whole run, of max_steps; else its steps are counted.

        Raises:
            ValueError: neither is possible.
        """
        args = self._trainer.args
        by_epochs = "epoch" in (args.eval_strategy, args.save_strategy, args.logging_strategy)
        if args.max_steps > 0 and not (by_epochs and can_count(own)):
            return True
        if not can_count(own) and self.known(own).steps is None:
            raise ValueError(
                "train_dataset has no end, so num_train_epochs says nothing: give max_steps in the trainer's arguments"
            )
        return False


class ModelInputs:
    """Batches with the keys that a model takes.

    Args:
        keys: those; None: all.
        model: its name, for the error.
        shared: whether several processes share the batches out, so that some of them may be fillers.
        needed: keys that a trainer of preferences, `model`, cannot do without.
    """

    def __init__(self, keys: frozenset[str] | None, model: str, *, shared: bool, needed: tuple[str, ...] = ()) -> None:
        self.keys = keys
        self.needed = needed
        self.model = model
        self.shared = shared

    def read(self, batch: Any) -> TrainerBatch:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a trainer wants a dict of tensors, and this batch is a {type(batch).__name__}: leave out enumerate(), and have "
                "map(fn) or collate_fn return a dict"
            )
        sides = batch.get(NUM_SIDES)
        if self.needed and (sides != 2 or not {*self.needed} <= {*batch}):
            raise ValueError(
                f"{self.model} takes batches of layout='paired' with 2 sides and the keys {', '.join(self.needed)} (got "
                f"{', '.join(map(str, batch))}). A completion_mask comes with labels, which chat() makes, or with a column "
                "prompt_input_ids"
            )
        keys = batch.keys() if self.keys is None else [key for key in batch if key in self.keys]
        if not keys:
            raise ValueError(
                f"{self.model}.forward takes none of the keys of this batch ({', '.join(map(str, batch))}): rename them, or say "
                "remove_unused_columns=False in the trainer's arguments"
            )
        if self.shared and "is_filler" not in batch:
            raise ValueError(
                "nothing says whether this batch is a filler, which several processes have where the batches do not come out "
                "even, and it would be counted twice: have map(fn) keep is_filler, as {**batch, ...}, and "
                "collate_fn return a dict"
            )
        made = TrainerBatch((key, batch[key]) for key in keys)
        made.rows = rows_that_count(batch)
        made.segments = partial(packed_segments, batch)
        made.pairs = None if sides is None else len(batch["input_ids"]) // sides
        return made


class Steps(IterableDataset[Any]):
    """The training data of a run: each iteration is `steps` batches, and begins where the one before was left.

    Epochs of windowed, shuffled data differ in their number of batches, and Trainer counts each as long as the first: so
    what it calls an epoch is so many steps of an endless run, in which nothing is left out and nothing comes twice.

    Args:
        loader: of an epoch of the data at a time.
        skipped: how many batches the first iteration is asked to pass over, which were trained on before a resume.
    """

    def __init__(self, loader: Ours, length: Length, inputs: ModelInputs, *, skipped: int = 0) -> None:
        assert length.steps is not None
        self.follow: Follow = Follow(loader)
        self.length = length
        self.steps: int = length.steps
        self._inputs = inputs
        self._skipped = skipped
        self._run: Generator[Any, None, None] | None = None

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        skipped, self._skipped = self._skipped, 0
        yield from repeat(SKIPPED, skipped)
        if self._run is None:
            self._run = _endless(self.follow.loader)
            self.follow.begin()
        for _ in range(self.steps - skipped):
            batch = next(self._run)
            self.follow.handed_out += 1
            yield self._inputs.read(batch)

    def close(self) -> None:
        """Ends the run. The loader stands after the last optimizer step."""
        run, self._run = self._run, None
        if run is not None:
            run.close()
            self.follow.end()


class Once(IterableDataset[Any]):
    """The data of an evaluation: each iteration is the first epoch of a loader of its own."""

    def __init__(self, loader: Ours, length: Length, inputs: ModelInputs) -> None:
        self.loader = loader
        self.length = length
        self._inputs = inputs

    def __len__(self) -> int:
        if self.length.steps is None:
            raise TypeError("the number of batches is not known")
        return self.length.steps

    def __iter__(self) -> Iterator[TrainerBatch]:
        self.loader.set_epoch(0)
        for batch in self.loader:
            yield self._inputs.read(batch)


def as_dataloader(dataset: Steps | Once, *, tells_the_last: bool = False) -> DataLoader[Any]:
    """What Trainer, and Accelerate's `skip_first_batches`, look for: a DataLoader that does nothing but hand on.

    `tells_the_last`: one that tells Accelerate which batch is the last."""
    kind: Any = DataLoaderShard if tells_the_last else DataLoader
    loader: DataLoader[Any] = kind(dataset, batch_size=None, collate_fn=lambda batch: batch)
    return loader


def _endless(loader: Ours) -> Generator[Any, None, None]:
    """Epoch after epoch of a loader."""
    while True:
        empty = True
        with closing(iter(loader)) as batches:  # type: ignore[type-var]  # both can be closed
            for batch in batches:
                empty = False
                yield batch
        if empty:
            raise ValueError("an epoch of the training data has no batch, so there is nothing to train on")
