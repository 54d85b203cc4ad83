"""Who runs a loop over batches, a loader or a batch sampler. Only the frames on the stack say it: a DataLoader that reads ahead
or stacks batches, Accelerate, which shards again, Lightning, which keeps places of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

from brimful.batches import Batches
from brimful.core.above import ReadsAhead
from brimful.core.facts import facts_of, refuse_static_buffers
from brimful.core.stage import Stage

_FETCHING: Final = "torch.utils.data._utils.fetch"
"""The module of torch in whose frames a DataLoader asks for samples, by an object that knows what becomes of them."""
_FETCHERS: Final = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")
CALLBACK: Final = "brimful.integrations.lightning"
"""Where the class of the callback is made that tells loaders what Lightning has used."""
FOR_TRAINER: Final = "Hugging Face's Trainer takes batches by brimful.integrations.transformers.trainer_class(Trainer)"


class FitLoop(NamedTuple):
    """The Trainer of Lightning that reads training data, and whether its loop over batches has begun."""

    trainer: Any
    begun: bool


class Loop(NamedTuple):
    """Who runs a loop that begins, and what it may not do.

    Args:
        fit: Lightning's, where it reads its training data.
        stacks: the data set of a DataLoader that stacks samples by itself, or by a collator of transformers.
    """

    reader: ReadsAhead
    fit: FitLoop | None
    stacks: Any

    def check_batches(self) -> None:
        """Refuses Batches that Lightning reads.

        Raises:
            ValueError: with what to do.
        """
        if self.fit is not None:
            raise ValueError(  # a TypeError it would take for its own
                "Lightning cannot save or restore the place in Batches, and each of its epochs would be the first one again; "
                "give Trainer.fit the loader: batches.loader()"
            )

    def check_processes(self) -> None:
        """Refuses a loader that a DataLoader would shard again.

        Raises:
            ValueError: Accelerate prepared it for several processes.
        """
        if self.reader.processes > 1:
            raise ValueError(
                f"Accelerate would share the batches of this loader out to its {self.reader.processes} processes a second time, "
                "or read all of them on the first; give brimful.integrations.accelerate.prepare the loader itself, of "
                "batches.shard()"
            )

    def check_loader(self, loader: Any, *, followed: bool) -> None:
        """Refuses a loader that would be sharded again, whose batches would be stacked, or whose place would be lost.

        Args:
            followed: a trainer tells it how many batches it has used.
        Raises:
            ValueError: a DataLoader that Accelerate prepared for several processes.
            TypeError: a DataLoader that would stack whole batches into one of another dimension, or fail at it: one without
                batch_size=None and without a collate_fn of the user's.
            RuntimeError: Lightning, as its training data, without our callback, or inside of something that the callback does
                not know.
        """
        self.check_processes()
        if self.stacks is loader and isinstance(loader.batches, Batches):
            raise TypeError(
                "this DataLoader would stack batches, which are whole already: say DataLoader(loader, batch_size=None), or loop "
                f"over the loader itself. {FOR_TRAINER}"
            )
        if followed or self.fit is None:
            return
        if not any(base.__module__ == CALLBACK for one in self.fit.trainer.callbacks for base in type(one).__mro__):
            raise RuntimeError(
                "Lightning reads this loader without brimful's callback, and a checkpoint would not have its place: the entry "
                "points of this install are older than its source, so install brimful again, or say "
                "Trainer(callbacks=brimful.integrations.lightning.callbacks())"
            )
        if self.fit.begun:
            raise RuntimeError(
                "Lightning reads this loader inside of another object, and a checkpoint would not have its place: give "
                "Trainer.fit the loader itself, AsyncLoader(loader, ...) or DataLoader(loader, batch_size=None); what changes "
                "batches is for batches.map(fn).loader()"
            )


def loop_here() -> Loop:
    """Who runs the loop that begins here: asked once, when it begins."""
    frames = list(_frames(sys._getframe(1)))  # without this one, which would keep all of them in a circle
    return Loop(_reader(frames), _fit(frames), _stacks(frames))


def worker_here() -> Any:
    """The worker of a DataLoader that this process is; None where it is none. Nobody is who has not imported torch."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def asked_by_torchdata() -> bool:
    """Whether a StatefulDataLoader asks for the state of what it reads: it does so as it takes an item, and keeps both. It passes
    no argument, and a loop that begins does not say who will ask."""
    others = (module for module, _ in _frames(sys._getframe(1)) if not module.startswith("brimful."))
    return next(others, "").startswith("torchdata.")


def check_buffers(stage: Stage[Any]) -> None:
    """Refuses batches that come in the same tensors again, if the loop that begins here holds one while the next is made.

    Raises:
        ValueError: with what to do.
    """
    if facts_of(stage).static_buffers:  # else no frame is asked for its locals, which it would keep
        frames = list(_frames(sys._getframe(1)))
        if (holder := _reader(frames).name or _holder(frames)) is not None:
            refuse_static_buffers(stage, holder)


def _frames(frame: FrameType | None) -> Iterator[tuple[str, FrameType]]:
    """A frame and those that it was called from, each with the name of its module."""
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")), frame
        frame = frame.f_back


def _reader(frames: list[tuple[str, FrameType]]) -> ReadsAhead:
    """Who takes the first item: torch's, torchdata's and Accelerate's loaders."""
    reader = ReadsAhead()
    for module, frame in frames:
        if module == "accelerate.data_loader":
            owner = frame.f_locals.get("self")
            only_skips = type(owner).__name__ == "SkipDataLoader"  # else one batch ahead, to know which is the last
            shared_out = getattr(owner, "state", owner)  # a loader that sends batches to other processes has it there
            reader = ReadsAhead(
                reader.name if only_skips else reader.name or "Accelerate",
                max(reader.processes, getattr(shared_out, "num_processes", 1)),
                max(reader.skipped, getattr(owner, "skip_batches", 0)),
            )
        elif module.startswith(("torch.utils.data.", "torchdata.")):
            workers = getattr(frame.f_locals.get("self"), "num_workers", 0)
            reader = reader._replace(name=f"a DataLoader with {workers} workers") if workers else reader
    return reader


def _holder(frames: list[tuple[str, FrameType]]) -> str | None:
    """Who else holds an item while the next is made: workers, collating of several, Lightning without a length, nodes."""
    if (worker := worker_here()) is not None:
        return f"a DataLoader with {worker.num_workers} workers"
    for module, frame in frames:  # a frame that is asked for its locals keeps them
        if module == _FETCHING:
            several = frame.f_locals.get("possibly_batched_index")
            if isinstance(several, list) and len(several) > 1:
                return f"a DataLoader with batch_size={len(several)}"
        elif module in _FETCHERS:
            fetcher = frame.f_locals.get("self")
            if getattr(fetcher, "prefetch_batches", 0) and getattr(fetcher, "length", None) is None:
                return "Lightning"
        elif module.startswith("torchdata.nodes."):
            return "torchdata.nodes"
    return None


def _fit(frames: list[tuple[str, FrameType]]) -> FitLoop | None:
    """Lightning, where it reads its training data; its validation and what a step reads are not."""
    reads = False
    for module, frame in frames:
        if not module.startswith(("lightning.pytorch.", "pytorch_lightning.")):
            continue
        part = module.rpartition(".")[2]
        reads = reads or part in ("combined_loader", "data_connector")
        if not reads or part in ("evaluation_loop", "prediction_loop"):
            return None
        if part in ("fit_loop", "training_epoch_loop"):
            trainer = getattr(frame.f_locals.get("self"), "trainer", None)
            return None if trainer is None else FitLoop(trainer, part == "training_epoch_loop")
    return None


def _stacks(frames: list[tuple[str, FrameType]]) -> Any:
    fetcher = next((frame.f_locals.get("self") for module, frame in frames if module == _FETCHING), None)
    if fetcher is None or not fetcher.auto_collation:
        return None
    collate = getattr(fetcher.collate_fn, "data_collator", fetcher.collate_fn)  # Trainer puts one around it
    by_transformers = (getattr(collate, "__module__", None) or "").startswith("transformers.")
    by_torch = collate is sys.modules["torch.utils.data._utils.collate"].default_collate
    return fetcher.dataset if by_torch or by_transformers else None
