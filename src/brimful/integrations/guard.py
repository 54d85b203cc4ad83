"""Who takes what a batch sampler, a loader or batches give, which only the frames on the stack say: before the training loop
wants it, or to stack what cannot be stacked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

_FETCHING: Final = "torch.utils.data._utils.fetch"
"""The module of torch in whose frames a DataLoader asks for samples, by an object that knows what becomes of them."""
CALLBACK: Final = "brimful.integrations.lightning"
"""Where the class of the callback is made that tells loaders what Lightning has used."""
FOR_TRAINER: Final = "Hugging Face's Trainer takes batches by brimful.integrations.transformers.trainer_class(Trainer)"


class ReadsAhead(NamedTuple):
    """Who takes lists before the training loop wants them, if anyone; of how many it gets one; how many it has skipped."""

    name: str | None = None
    processes: int = 1
    skipped: int = 0


def reader_here() -> ReadsAhead:
    """Who takes the first list: torch's, torchdata's and Accelerate's loaders that are on the stack."""
    reader = ReadsAhead()
    for module, frame in _stack():
        if module == "accelerate.data_loader":
            owner = frame.f_locals.get("self")
            only_skips = type(owner).__name__ == "SkipDataLoader"  # else one batch ahead, to know which is the last
            reader = ReadsAhead(
                reader.name if only_skips else reader.name or "Accelerate",
                max(reader.processes, getattr(owner, "num_processes", 1), _dispatched_to(owner)),
                max(reader.skipped, getattr(owner, "skip_batches", 0)),
            )
        elif module.startswith(("torch.utils.data.", "torchdata.")):
            workers = getattr(frame.f_locals.get("self"), "num_workers", 0)
            reader = reader._replace(name=f"a DataLoader with {workers} workers") if workers else reader
    return reader


def asked_by_torchdata() -> bool:
    """Whether a StatefulDataLoader asks the caller for a state: it does so as it takes an item, and keeps both."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("torchdata.")


def refuse_stacking(batches: object) -> None:
    """Refuses to go on where a DataLoader asks, which would stack whole batches into one of another dimension, or fail at it: one
    around a loader of `batches`, without batch_size=None and without a collate_fn of the user's.

    Raises:
        TypeError: with what to do.
    """
    fetcher = _stacking(transformers=True)
    if fetcher is not None and getattr(fetcher.dataset, "batches", None) is batches:
        raise TypeError(
            "this DataLoader would stack batches, which are whole already: say DataLoader(loader, batch_size=None), or loop over "
            f"the loader itself. {FOR_TRAINER}"
        )


def refuse_ragged(samples: Sequence[Mapping[str, Any]]) -> None:
    """Refuses to hand samples to a DataLoader that would stack their lists, where these are not equally long.

    Raises:
        TypeError: with both lengths, and what to do.
    """
    if _stacking() is None or not samples:
        return
    for name, first in samples[0].items():
        for other in (sample[name] for sample in samples):
            shapes = [getattr(value, "shape", None) for value in (first, other)]
            if shapes[0] != shapes[1]:
                sizes = " and ".join("nothing" if not shape else f"{shape[0]:,} values" for shape in shapes)
                raise TypeError(
                    f"this DataLoader would stack column {name!r}, which has {sizes} in two samples: give it a collate_fn that "
                    "pads, or have brimful pad, as DataLoader(dataset.batch(32).loader(), batch_size=None)"
                )


def _stacking(*, transformers: bool = False) -> Any:
    """What fetches samples for a DataLoader that is on the stack and stacks them by itself, or by a collator of `transformers`;
    None where there is none."""
    for module, frame in _stack():
        if module == _FETCHING:
            fetcher: Any = frame.f_locals["self"]
            stack = sys.modules["torch.utils.data._utils.collate"].default_collate
            collate = getattr(fetcher.collate_fn, "data_collator", fetcher.collate_fn)  # Trainer puts one around it
            theirs = transformers and (getattr(collate, "__module__", None) or "").startswith("transformers.")
            return fetcher if fetcher.auto_collation and (collate is stack or theirs) else None
    return None


def check_reader(what: str, *, followed: bool = False) -> ReadsAhead:
    """Who reads. Refuses to be read by what would shard batches again, or lose the place in them.

    Args:
        what: is read, in words.
        followed: whether a trainer tells it how many batches it has used.
    Raises:
        ValueError: a DataLoader that Accelerate prepared for several processes.
        RuntimeError: Lightning, as its training data, without our callback, or inside of something that the callback does
            not know.
    """
    reader = reader_here()
    if reader.processes > 1:
        raise ValueError(
            f"Accelerate would share the batches of this {what} out to its {reader.processes} processes a second time, or read "
            "all of them on the first; give brimful.integrations.accelerate.prepare the loader itself, of batches.shard()"
        )
    training = None if followed else lightning_here()
    if training is None:
        return reader
    if not any(base.__module__ == CALLBACK for one in training.trainer.callbacks for base in type(one).__mro__):
        raise RuntimeError(
            f"Lightning reads this {what} without brimful's callback, and a checkpoint would not have its place: the entry "
            "points of this install are older than its source, so install brimful again, or say "
            "Trainer(callbacks=brimful.integrations.lightning.callbacks())"
        )
    if training.begun:
        raise RuntimeError(
            f"Lightning reads this {what} inside of another object, and a checkpoint would not have its place: give "
            "Trainer.fit the loader itself, AsyncLoader(loader, ...) or DataLoader(loader, batch_size=None); what changes "
            "batches is for batches.map(fn).loader()"
        )
    return reader


def check_shared_out(loader: object, world_size: int, ranks: str, each_would: str) -> None:
    """Refuses a loader all of whose batches each rank would get.

    Args:
        ranks: what the trainer calls them.
        each_would: do what with all batches.
    Raises:
        ValueError: with what to do.
    """
    batches = getattr(loader, "batches", None)
    if world_size > 1 and batches is not None and not batches.sharded:
        raise ValueError(
            f"there are {world_size} {ranks}, and the batches of this loader are not shared out: {each_would} all of them; say "
            "batches.shard().loader(), or batches.shard(0, 1).loader() if that is meant"
        )


class Training(NamedTuple):
    """The Trainer of Lightning that reads training data, and whether its loop over batches has begun."""

    trainer: Any
    begun: bool


def lightning_here() -> Training | None:
    """Who reads what is iterated here as its training data, if that is Lightning; its validation and what a step reads are
    not."""
    reads = False
    for module, frame in _stack():
        if not module.startswith(("lightning.pytorch.", "pytorch_lightning.")):
            continue
        part = module.rpartition(".")[2]
        reads = reads or part in ("combined_loader", "data_connector")
        if not reads or part in ("evaluation_loop", "prediction_loop"):
            return None
        if part in ("fit_loop", "training_epoch_loop"):
            trainer = getattr(frame.f_locals.get("self"), "trainer", None)
            return None if trainer is None else Training(trainer, part == "training_epoch_loop")
    return None


def _dispatched_to(owner: object) -> int:
    """How many processes a loader of Accelerate reads for that sends batches from the first to the others."""
    dispatches = type(owner).__name__ == "DataLoaderDispatcher"
    return getattr(getattr(owner, "state", None), "num_processes", 1) if dispatches else 1


def _stack() -> Iterator[tuple[str, FrameType]]:
    """The modules and frames of who called the caller, from the inside out."""
    frame = sys._getframe(2).f_back
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame
        frame = frame.f_back
