"""Running out of memory: how it looks, what is freed after it, and trying again in parts."""

from __future__ import annotations

import gc
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import torch

from brimful.core.errors import logger
from brimful.oom.limits import Limits
from brimful.oom.parts import Divisible

R = TypeVar("R")

Unfit = Literal["raise", "skip"]
"""What becomes of a batch of which one sample alone does not fit."""

KEPT: Final = 0.9
"""How much of what ran out of memory is tried from then on. At half of it, under a limit that stands still, half of all batches
were split that would have fit; at nine tenths an eighth, at the price of 23 instead of 6 in 10,000 that run out of memory."""
SIGNS: Final = ("out of memory", "not enough memory", "can't allocate memory", "cublas_status_alloc_failed")


def is_oom(error: BaseException) -> bool:
    """Whether an error says that memory is used up: torch's own, that of the host, or an allocator's words for it.

    >>> is_oom(RuntimeError("CUDA error: out of memory")), is_oom(RuntimeError("shapes do not match"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def release(error: BaseException) -> None:
    """Lets go of what a failed call held: the frames of its traceback hold the graph, and every activation in it."""
    found: list[BaseException | None] = [error]
    for here in found:
        if here is not None:
            traceback.clear_frames(here.__traceback__)
            found += [one for one in (here.__cause__, here.__context__) if one not in found]


def free() -> None:
    """Gives back what nothing holds any more, also to the device, so that larger pieces can be had."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


@dataclass
class GuardStats:
    """What a guard has seen.

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


@dataclass
class InParts:
    """Runs batches whole or, where they do not fit, in parts, and remembers how large they may be.

    Args:
        unfit: what becomes of a batch of which one sample alone does not fit.
        agree: gives the number of parts that all ranks take, of the one that this rank would.
    """

    unfit: Unfit = "raise"
    agree: Callable[[int, Divisible], int] = lambda count, whole: count
    limits: Limits = field(default_factory=Limits)
    stats: GuardStats = field(default_factory=GuardStats)

    def run(
        self,
        batch: Any,
        whole: Divisible,
        run: Callable[[Sequence[Any]], R],
        undo: Callable[[BaseException], None] = lambda error: None,
    ) -> R | None:
        """`run([batch])`, or `run` of its parts: all of them again, smaller, as long as one does not fit.

        Args:
            undo: puts back what a run has changed that ran out of memory; it may raise instead.
        Returns:
            what `run` did; None for a batch that is skipped.
        """
        random = _Random()
        limit = self.limits.allowed(whole.unit, whole.widths)
        count = 1 if limit is None or whole.size <= limit else min(-(-whole.size // limit), whole.samples)
        count = self.agree(count, whole)
        self.stats.batches += 1
        while True:
            parts: Sequence[Any] = ()
            try:
                parts = [batch] if count == 1 else whole.parts(count)
                result = run(parts)
            except Exception as error:
                if not is_oom(error):
                    raise
                release(error)
                self.stats.ooms += 1
                parts = ()
                tried = -(-whole.size // count)
                self.limits.learn(whole.unit, whole.widths, max(1, min(int(KEPT * tried), tried - 1)))
                undo(error)
                done = count >= whole.samples
                if done and self.unfit == "raise":
                    raise torch.OutOfMemoryError(_alone(whole, error)) from error
                words = str(error).partition("\n")[0]
            else:
                self.stats.split += len(parts) > 1
                self.stats.parts += len(parts) if len(parts) > 1 else 0
                return result
            free()
            random.restore()
            if self.stats.ooms == 1 and not done:
                logger.warning(
                    "out of memory: a batch of %d samples is run again in parts, and batches as large as it from now on (each "
                    "one counts in `.stats.ooms`): %s",
                    whole.samples,
                    words,
                )
            if done:
                self.stats.skipped += whole.samples
                logger.warning("skipped %d samples, as one of them alone is out of memory: %s", whole.samples, words)
                return None
            count = min(2 * count, whole.samples)


class Guarded(ABC):
    """Abstract: a call on a batch that is run in parts where memory is too small."""

    _in_parts: InParts

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """Runs it on a batch."""

    @property
    def stats(self) -> GuardStats:
        """What it has seen since it was made."""
        return self._in_parts.stats

    def state_dict(self) -> dict[str, Any]:
        """What it has learnt, as plain JSON, so that the lesson survives a restart: see `limits.Limits`."""
        return self._in_parts.limits.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the lessons of a state in place of its own.

        Raises:
            StateError: it is no such state.
        """
        self._in_parts.limits.load_state_dict(state_dict)


def _alone(whole: Divisible, error: BaseException) -> str:
    width = f" (of {' and '.join(f'{one:,}' for one in dict.fromkeys(whole.widths))} values)" if whole.widths else ""
    return (
        f"out of memory with 1 sample alone{width}, of a batch of {whole.samples:,}; filter or truncate such samples, "
        "let the model take less (checkpointing, autocast), or say unfit='skip'. The device said: "
        f"{str(error).partition(chr(10))[0]}"
    )


class _Random:
    """The places of torch's random generators, so that what is run again draws what it would have drawn at once."""

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
