"""Accelerate: `prepare`, `save` and `load` for loops over the loaders of brimful, on any number of processes.

Accelerator.prepare leaves alone what is no DataLoader, so that nobody tells Accelerate of the end of an epoch; a DataLoader
around a loader it would read on the first process, for all.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import gather_object, send_to_device
from torch.utils.data import DataLoader

from brimful.async_loader import AsyncLoader, stage_of
from brimful.batches import Batches
from brimful.core.facts import refuse_static_buffers
from brimful.integrations.calls import CallGuard
from brimful.integrations.follow import Follow, Ours, accumulated, check_shared_out, told_to_all
from brimful.loader import Loader
from brimful.plan.errors import logger
from brimful.tensors.structures import tensors_of

__all__ = ["load", "prepare", "save"]

if TYPE_CHECKING:  # Accelerate has no types, and a base without one leaves `Prepared` without
    DataLoaderStateMixin = object
else:
    from accelerate.data_loader import DataLoaderStateMixin

_END: Final = object()


def prepare(accelerator: Accelerator, *objects: Any, isolation: str = "raise") -> Any:
    """`accelerator.prepare` for models, optimizers and schedulers, and for brimful's loaders in any place between them.

    A loader (or Batches, AsyncLoader) comes back as a `Prepared` loader. Its batches are on the accelerator's device.
    Its last batch makes `accelerator.accumulate` step. `accelerator.save_state` saves its place for all processes.
    `load_state` restores it on any number of processes that divides the streams. Batches made with `micro_batches` set
    `accelerator.gradient_accumulation_steps` if that is 1.

    Args:
        accelerator: the Accelerator of your loop.
        objects: the objects of your loop, in any order. They are returned in that order, one object by itself.
        isolation: "raise": raise an error at a model's first call with a packed batch, if its samples see each other.
            "off": no check.
    Raises:
        ValueError: there are several processes, and batches are not sharded: use `batches.shard()`. Or gradients
            accumulate over another number of batches than `micro_batches`. Or a loader has static_buffers. (At a call of a
            model) its own loss would count copies up to a static shape, whose labels are not all -100.
        TypeError: a DataLoader is wrapped around a loader.
    Price: less than a second at the first packed batch. One more batch is held, as in Accelerate's own loaders, and a
        state is taken with each batch.
    Example:
        >>> import brimful as bf
        >>> from accelerate import Accelerator
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = prepare(accelerator, bf.from_sequence([{"input_ids": [number]} for number in range(3)]).batch(2).loader())
        >>> [(batch["input_ids"].tolist(), accelerator.gradient_state.end_of_dataloader) for batch in loader]
        [([[0], [1]], False), ([[2]], True)]
    """
    guard = CallGuard(isolation)
    ours_or_theirs = [_prepared(accelerator, one, guard) for one in objects]
    ours = [one for one in ours_or_theirs if isinstance(one, Prepared)]
    if ours:
        guard.watch(*(one for one in objects if isinstance(one, torch.nn.Module)))
        given, setting = accelerator.gradient_accumulation_steps, "gradient_accumulation_steps"
        accelerator.gradient_accumulation_steps = accumulated((one.loader for one in ours), given, setting)
    prepared = accelerator.prepare(*ours_or_theirs)  # which hands on what is no DataLoader
    for loader in ours:
        accelerator.register_for_checkpointing(_OfAllProcesses(loader))
    return prepared


def save(accelerator: Accelerator, folder: str | os.PathLike[str]) -> None:
    """`accelerator.save_state`, whole or not at all. All processes call it. `folder` then has the old checkpoint, or
    the new one.

    It writes to `folder.partial`, and renames that when all processes have written. Between the batches of an
    `accelerator.accumulate` it warns, because no checkpoint has accumulated gradients.

    Raises:
        RuntimeError: no loader was prepared by this module, so the checkpoint would not have its place.
        ValueError: the accelerator names its checkpoints itself.
    Example:
        >>> import tempfile
        >>> import brimful as bf
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = prepare(accelerator, bf.from_sequence([[1], [2], [3]]).batch(1).loader())

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for batch in loader:
        ...         save(accelerator, f"{folder}/checkpoint")
        ...         break
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['checkpoint']
    """
    _check(accelerator)
    if accelerator.is_main_process and not accelerator.sync_gradients:
        logger.warning(
            "%s is saved between the batches of an optimizer step, and the gradients of those since the last one are not in it: "
            "save where accelerator.sync_gradients is true",
            folder,
        )
    target = Path(folder)
    partial, old = target.with_name(f"{target.name}.partial"), target.with_name(f"{target.name}.old")
    on_each_node = accelerator.project_configuration.save_on_each_node
    writes = accelerator.is_local_main_process if on_each_node else accelerator.is_main_process
    if writes:
        shutil.rmtree(partial, ignore_errors=True)
        if target.exists():  # else the old one is all that there is
            shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if writes:
        if target.exists():
            target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()


def load(accelerator: Accelerator, folder: str | os.PathLike[str]) -> None:
    """`accelerator.load_state` for a checkpoint of `save`: models, optimizers, random generators, and the loaders'
    places.

    All processes call it, after `prepare` of the same objects. It also reads a checkpoint whose `save` was killed
    between its two renames.

    Raises:
        RuntimeError: no loader was prepared by this module, or another number of loaders was saved.
        RankError: another process failed, for example as it refused its state. The error names it and its error.
    Example:
        >>> import tempfile
        >>> import brimful as bf
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = prepare(accelerator, bf.from_sequence([[1], [2], [3]]).batch(1).loader())

        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for batch in loader:
        ...         save(accelerator, f"{folder}/checkpoint")
        ...         break
        ...     load(accelerator, f"{folder}/checkpoint")
        ...     [batch["input_ids"].item() for batch in loader]
        [2, 3]
    """
    _check(accelerator)
    target = Path(folder)
    old = target.with_name(f"{target.name}.old")
    with told_to_all(gather_object):
        accelerator.load_state(str(target if target.exists() or not old.exists() else old))


@final
class Prepared(DataLoaderStateMixin):
    """A loader as Accelerate wants one: on its device, telling it which batch is the last.

    Each iteration is an epoch, as the loader's own. `len`, `set_epoch` and whatever is not named here are the loader's.

    State: the loader's own after the last batch that was handed out; each may go on from the other's.
    """

    def __init__(self, accelerator: Accelerator, loader: Ours, guard: CallGuard) -> None:
        self.loader = loader
        self._follow = Follow(loader)
        self._guard = guard
        self.gradient_state: GradientState = GradientState()
        self._drop_last = True  # the remainder of the last step is counted here, from the batches
        self._accelerator = accelerator
        self._loop: object = None  # the one that runs

    def __iter__(self) -> Iterator[Any]:
        self._end()
        self._loop = loop = object()
        self._follow.begin()
        self.begin()
        try:
            batches = iter(self.loader)
            ahead = next(batches, _END)
            while ahead is not _END and self._loop is loop:
                batch, ahead = ahead, next(batches, _END)
                if ahead is _END:
                    self.end_of_dataloader = True
                    self.remainder: int = self._rows_of_last_step(batch)
                self._follow.handed_out += 1
                self._follow.use()
                self._guard.saw(batch)
                yield send_to_device(batch, self._accelerator.device) if self._accelerator.device_placement else batch
        finally:
            if self._loop is loop:
                self._end()
                self._follow.end()

    def _end(self) -> None:
        """The loop that runs ends, and Accelerate hears of it at once: told later, it would forget the next loop."""
        if self._loop is not None:
            self._loop = None
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):
            raise AttributeError(name)
        if name == "dataset":  # what skip_first_batches asks for first
            raise AttributeError(
                "a loader of brimful's has no dataset to skip batches of: after load, or load_state, it goes on with the batch "
                "after the last one that was handed out, so leave skip_first_batches out"
            )
        return getattr(self.loader, name)

    @property
    def epoch(self) -> int:
        """The loader's own after the last batch that was handed out; at an epoch's last batch, the next one already."""
        epoch: int = self.loader.epoch
        return epoch if self._loop is None else self.state_dict().get("epoch", epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration continue from a state. It may be a state of the loader itself."""
        self.loader.load_state_dict(state_dict)
        self._end()

    def _rows_of_last_step(self, batch: Any) -> int:
        """How many rows the last step has on all processes without its fillers, where it has some and they come last: what
        `gather_for_metrics` keeps. -1, which keeps all, where that says nothing."""
        if self._accelerator.num_processes == 1 or not isinstance(batch, dict) or "is_filler" not in batch:
            return -1
        sizes = Counter(len(one) for one in tensors_of(batch) if one.dim())
        if not sizes:
            return -1
        own = len(batch["input_ids"]) if "input_ids" in batch else sizes.most_common(1)[0][0]
        mine = torch.tensor([0 if batch["is_filler"] else own], device=self._accelerator.device)
        rows: list[int] = self._accelerator.gather(mine).tolist()
        real = rows.index(0) if 0 in rows else len(rows)
        return sum(rows) if 0 in rows and not any(rows[real:]) else -1


@final
class _OfAllProcesses:
    """What Accelerate saves and restores of a loader: the places of all processes in one."""

    def __init__(self, loader: Prepared) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader._follow.state(gather_object)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)


def _prepared(accelerator: Accelerator, one: Any, guard: CallGuard) -> Any:
    """Ours, prepared; anything else as it is."""
    if isinstance(one, DataLoader) and isinstance(one.dataset, Loader | AsyncLoader | Batches):
        raise TypeError(
            "a DataLoader around a loader of brimful's is read by Accelerate on the first process, for all; give prepare the "
            "loader itself"
        )
    loader = one.loader() if isinstance(one, Batches) else one
    if not isinstance(loader, Loader | AsyncLoader):
        return one
    check_shared_out(loader, accelerator.num_processes, "processes", "each would get")
    refuse_static_buffers(stage_of(loader), "Accelerate")
    return Prepared(accelerator, loader, guard)


def _check(accelerator: Accelerator) -> None:
    if not any(isinstance(one, _OfAllProcesses) for one in accelerator._custom_objects):
        raise RuntimeError(
            "this accelerator knows no loader of brimful's, so a checkpoint would not have its place: prepare the loader by "
            "brimful.integrations.accelerate.prepare first"
        )
    if accelerator.project_configuration.automatic_checkpoint_naming:
        raise ValueError(
            "this accelerator names its checkpoints itself (automatic_checkpoint_naming): call its save_state() and "
            "load_state(), which have the loaders' places too"
        )


def __dir__() -> list[str]:
    return __all__
