"""Out of memory: recognises it, or simulates it, frees memory, runs a batch again in parts, and limits later ones."""

from __future__ import annotations

import gc
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any, Final, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from brimful.core.states import check_form
from brimful.oom.parts import SplittableBatch
from brimful.plan.errors import StateError, integer, logger, one_of

R = TypeVar("R")

OnSampleOom = Literal["raise", "skip"]
"""What to do with a batch if one of its samples does not fit alone."""

OOM_BACKOFF: Final = 0.9
"""The share of a size that ran out of memory which is tried from then on. At half of it, under a limit that stands still, half
of all batches were split that would have fit; at nine tenths an eighth, but 23 instead of 6 in 10,000 run out of memory."""
VERSION: Final = 1
BINS_PER_OCTAVE: Final = 8
"""Lengths within 9 % of each other share one limit, so there are some dozens at most."""
LENGTH_TOLERANCE: Final = 0.9
"""A limit also holds for samples this much shorter. Otherwise each length would have to run out of memory once."""
SIGNS: Final = ("out of memory", "not enough memory", "can't allocate memory", "cublas_status_alloc_failed")


def is_oom(error: BaseException) -> bool:
    """Whether an error means out of memory: torch's own, Python's, or one with an allocator's words for it.

    >>> is_oom(RuntimeError("CUDA error: out of memory")), is_oom(RuntimeError("shapes do not match"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def release(error: BaseException) -> None:
    """Clears the frames of a traceback: they hold the graph, and every activation in it."""
    found: list[BaseException | None] = [error]
    for here in found:
        if here is not None:
            traceback.clear_frames(here.__traceback__)
            found += [one for one in (here.__cause__, here.__context__) if one not in found]


def free() -> None:
    """Frees all memory that nothing refers to, also on the device, so that larger blocks are available."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


@dataclass
class GuardStats:
    """Counts of a guard.

    Args:
        batches: batches that were run, or skipped.
        ooms: how often memory ran out.
        split: batches that were run in parts.
        parts: of these, all together.
        skipped: samples of batches that were skipped.
        cloned_bytes: the most that copies of gradients took, which a step found there and might have to be put back.
    """

    batches: int = 0
    ooms: int = 0
    split: int = 0
    parts: int = 0
    skipped: int = 0
    cloned_bytes: int = 0


of_all_guards: Final = GuardStats()
"""The counts `ooms` and `split` of all guards of this process: by them a loop that measures steps knows what a peak is of."""


class Limit(NamedTuple):
    """Args:
    size: the largest batch that is tried.
    widths: of the samples by which that was learnt.
    """

    size: int
    widths: tuple[int, ...]


class Limits:
    """The most that is tried at once, in samples of padded batches, in tokens of packed and nested ones; only ever lowered.

    A limit holds for samples up to a tenth smaller, as so many slots, and for all larger ones, as so many samples: at a greater
    length no more of them fit.

    >>> limits = Limits()
    >>> limits.learn("samples", (100,), 8)
    >>> limits.allowed("samples", (98,)), limits.allowed("samples", (200,)), limits.allowed("samples", (50,))
    (8, 8, None)
    """

    def __init__(self) -> None:
        self._limits: dict[tuple[str, tuple[int, ...]], Limit] = {}

    def allowed(self, unit: str, widths: tuple[int, ...]) -> int | None:
        """The largest batch to try of samples of these widths; None where nothing is known of such."""
        known = [
            max(1, limit.size * max(1, sum(widths), sum(limit.widths)) // max(1, sum(widths)))
            for (own, _), limit in self._limits.items()
            if own == unit
            and len(widths) == len(limit.widths)
            and all(here >= LENGTH_TOLERANCE * there for here, there in zip(widths, limit.widths))
        ]
        return min(known, default=None)

    def learn(self, unit: str, widths: tuple[int, ...], size: int) -> None:
        """From now on no more than `size` of such samples."""
        allowed = self.allowed(unit, widths)
        if allowed is None or size < allowed:
            self._limits[unit, _bins(widths)] = Limit(size, widths)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: 40 bytes or so a limit."""
        limits = [[unit, limit.size, list(limit.widths)] for (unit, _), limit in self._limits.items()]
        return {"version": VERSION, "limits": limits}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the limits of a state in place of its own.

        Raises:
            StateError: it is no such state.
        """
        check_form(state_dict, "limits", version=VERSION, what="the state of a guard")
        try:
            limits = [_checked(*saved) for saved in state_dict["limits"]]
        except (TypeError, ValueError) as error:
            raise StateError(f"this state of a guard is damaged: {error}") from error
        self._limits = {(unit, _bins(limit.widths)): limit for unit, limit in limits}


def _checked(unit: Any, size: Any, widths: Any) -> tuple[str, Limit]:
    one_of("the unit of a limit", unit, "samples", "tokens")
    return unit, Limit(integer("a limit", size, 1), tuple(integer("a width", width) for width in widths))


def _bins(widths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ceil(BINS_PER_OCTAVE * log2(max(1, width))) for width in widths)


@dataclass
class PartRunner:
    """Runs batches whole or, where they do not fit, in parts, and remembers the sizes that fit.

    Args:
        on_sample_oom: what to do with a batch if one of its samples does not fit alone.
        agree: agree(parts, samples) gives the number of parts that all ranks take, of those that this rank would; None: each
            rank takes its own.
        hint: what the log says about the first batch that does not fit, so that a user sees the others or avoids them.
    """

    on_sample_oom: OnSampleOom = "raise"
    agree: Callable[[int, int], int] | None = None
    limits: Limits = field(default_factory=Limits)
    stats: GuardStats = field(default_factory=GuardStats)
    hint: str = "the guard counts each one in `.stats.ooms`"

    def run(
        self,
        batch: SplittableBatch,
        run: Callable[[Sequence[Any]], R],
        undo: Callable[[BaseException], None] = lambda error: None,
    ) -> R | None:
        """`run` of the whole batch alone, or of its parts: all of them again, smaller, as long as one does not fit.

        Args:
            undo: puts back what a run has changed that ran out of memory; it may raise instead.
        Returns:
            what `run` did; None for a batch that is skipped.
        """
        random = _Random()
        limit = self.limits.allowed(batch.unit, batch.widths)
        count = 1 if limit is None or batch.size <= limit else min(-(-batch.size // limit), batch.samples)
        if self.agree is not None:
            count = self.agree(count, batch.samples)
        self.stats.batches += 1
        while True:
            try:
                parts: Sequence[Any] = [batch.batch] if count == 1 else batch.parts(count)
                result = run(parts)
            except Exception as error:
                if not is_oom(error):
                    raise
                release(error)
                self.stats.ooms += 1
                of_all_guards.ooms += 1
                parts = ()
                tried = -(-batch.size // count)
                self.limits.learn(batch.unit, batch.widths, max(1, min(int(OOM_BACKOFF * tried), tried - 1)))
                undo(error)
                done = count >= batch.samples
                if done and self.on_sample_oom == "raise":
                    raise torch.OutOfMemoryError(_alone(batch, error)) from error
                words = str(error).partition("\n")[0]
            else:
                self.stats.split += len(parts) > 1
                of_all_guards.split += len(parts) > 1
                self.stats.parts += len(parts) if len(parts) > 1 else 0
                return result
            free()
            random.restore()
            if done:
                self.stats.skipped += batch.samples
                logger.warning("skipped %d samples, as one of them alone is out of memory: %s", batch.samples, words)
                return None
            if self.stats.ooms == 1:
                logger.warning(
                    "out of memory: a batch of %d samples is run again in parts, and batches as large as it from now on (said "
                    "once; %s): %s",
                    batch.samples,
                    self.hint,
                    words,
                )
            count = min(2 * count, batch.samples)


class GuardedCall(ABC):
    """Abstract: a call on a batch, which runs in parts if the batch does not fit in memory."""

    _runner: PartRunner

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """Runs it on a batch."""

    @property
    def stats(self) -> GuardStats:
        """Its counts since it was made.

        >>> from brimful.memory import SimulatedOOM, oom_safe
        >>> device = SimulatedOOM(8)
        >>> safe = oom_safe(lambda batch: device(batch["x"]).sum(1))

        >>> results = [safe({"x": torch.ones(5, 2)}) for _ in range(3)]
        >>> safe.stats
        GuardStats(batches=3, ooms=1, split=3, parts=6, skipped=0, cloned_bytes=0)
        """
        return self._runner.stats

    def state_dict(self) -> dict[str, Any]:
        """The limits that it has learnt, as plain JSON, so that they survive a restart: see `Limits`.

        >>> from brimful.memory import SimulatedOOM, oom_safe
        >>> device = SimulatedOOM(8)
        >>> safe = oom_safe(lambda batch: device(batch["x"]).sum(1))

        >>> _ = safe({"x": torch.ones(5, 2)})
        >>> safe.state_dict()
        {'version': 1, 'limits': [['samples', 4, [2]]]}
        """
        return self._runner.limits.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the limits of a state in place of its own.

        Raises:
            StateError: it is no such state.

        >>> from brimful.memory import SimulatedOOM, oom_safe
        >>> device = SimulatedOOM(8)
        >>> safe = oom_safe(lambda batch: device(batch["x"]).sum(1))

        >>> _ = safe({"x": torch.ones(5, 2)})
        >>> restarted = oom_safe(lambda batch: device(batch["x"]).sum(1))
        >>> restarted.load_state_dict(safe.state_dict())
        >>> restarted({"x": torch.ones(5, 2)}).tolist(), restarted.stats.ooms, restarted.stats.split
        ([2.0, 2.0, 2.0, 2.0, 2.0], 0, 1)
        """
        self._runner.limits.load_state_dict(state_dict)


def _alone(batch: SplittableBatch, error: BaseException) -> str:
    width = f" (of {' and '.join(f'{one:,}' for one in dict.fromkeys(batch.widths))} values)" if batch.widths else ""
    return (
        f"out of memory with 1 sample alone{width}, of a batch of {batch.samples:,}; filter or truncate such samples, "
        "or let the model take less (autocast; checkpointing in training, torch.no_grad() in inference). In training, "
        f"oom_guard(step, on_sample_oom='skip') skips them. The device said: {str(error).partition(chr(10))[0]}"
    )


class _Random:
    """The states of torch's random generators, so that a second run draws the same numbers as the first."""

    def __init__(self) -> None:
        self._host = torch.get_rng_state()
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        module = None if device is None else torch.get_device_module(device)
        self._module = module if getattr(module, "is_initialized", lambda: True)() else None  # which costs memory to be
        self._device = None if self._module is None else self._module.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._module is not None:
            self._module.set_rng_state(self._device)


@dataclass
class SimulatedOOM:
    """A device with room for so many slots. Call it on a tensor (B, L, ...) inside a step: it returns the tensor, or
    runs out of memory.

    Args:
        limit: most slots, B x L. You may change it between steps.
        where: "forward", or "backward", which runs out of memory on the tensor's gradient.

    >>> device = SimulatedOOM(8)
    >>> device(torch.zeros(2, 4)).shape
    torch.Size([2, 4])
    >>> device(torch.zeros(3, 4))
    Traceback (most recent call last):
    torch.OutOfMemoryError: simulated: out of memory in forward with 3 x 4 = 12 slots, of which 8 fit
    """

    limit: int
    where: Literal["forward", "backward"] = "forward"

    def __post_init__(self) -> None:
        self.limit = integer("limit", self.limit, 0, "slots")
        one_of("where", self.where, "forward", "backward")

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.where == "forward":
            self.check(tensor)
            return tensor
        seen = tensor.view_as(tensor)
        if seen.requires_grad:
            seen.register_hook(self.check)  # type: ignore[no-untyped-call]
        return seen

    def check(self, tensor: Tensor) -> None:
        """Raises an error if a tensor has more slots than fit.

        >>> SimulatedOOM(8).check(torch.zeros(2, 4))
        >>> SimulatedOOM(8, where="backward").check(torch.zeros(2, 5))
        Traceback (most recent call last):
        torch.OutOfMemoryError: simulated: out of memory in backward with 2 x 5 = 10 slots, of which 8 fit
        """
        rows, width = tensor.shape[0], tensor.shape[1] if tensor.dim() > 1 else 1
        if rows * width > self.limit:
            raise torch.OutOfMemoryError(
                f"simulated: out of memory in {self.where} with {rows:,} x {width:,} = {rows * width:,} slots, of which "
                f"{self.limit:,} fit"
            )
