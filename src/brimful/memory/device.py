"""Peaks on a real device: the step runs at chosen shapes, the worst first, and what runs out of memory is noted and left."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import inf
from typing import Any

from numpy.typing import ArrayLike

from brimful.memory.peaks import Meter, Peaks, measured
from brimful.plan.memory import Length


def probe(
    step: Callable[[Any], object], make_batch: Callable[[int, Any], Any], shapes: ArrayLike, device: Any
) -> Peaks:
    """The peaks of a step at these shapes, measured on a device.

    The smallest shape runs once before, for what stays from then on (optimizer states, workspaces); then the largest and so on
    down. A shape that runs out of memory is noted, what is no smaller is not tried, and the rest goes on.

    Args:
        step: step(batch) runs all of a step that counts: forward, or forward, backward and optimizer. Gradients that it leaves
            are there in the next one.
        make_batch: make_batch(batch, length) gives a batch on the device; of shapes (n, 3) length is (source, target).
        shapes: (n, 2) batch and length, or (n, 3); `spread_shapes` chooses some that tell most.
        device: "cuda", "cuda:1" ...: what its allocator had given out at most, the model and all that other code holds included.
            "cpu": what the storages of the step's tensors take at most, each a multiple of 512 bytes.
    Raises:
        ValueError: another device; shapes that are none; the smallest shape does not fit.
    Price: a step a shape, and one.
    Example:
        >>> import torch
        >>> def step(batch):
        ...     return batch * 2 + 1
        >>> probe(step, lambda batch, length: torch.ones(batch, length), [(4, 128), (8, 128)], "cpu").peak_bytes.tolist()
        [6144, 12288]
    """
    return measured(meter_on(device, step, make_batch), shapes)


def meter_on(device: Any, step: Callable[[Any], object], make_batch: Callable[[int, Any], Any]) -> Meter:
    """What `probe` measures a shape with, for `largest_batches`: arguments as there."""
    import torch

    place = as_device(device)
    run = _on_cpu if place.type == "cpu" else _on_cuda

    def meter(batch: int, length: Length) -> float:
        gc.collect()  # cycles of the step before would count as held
        try:
            return run(place, lambda: step(make_batch(batch, length)))
        except (RuntimeError, MemoryError) as error:
            from brimful.oom.exhaustion import is_oom

            if not is_oom(error):
                raise
        gc.collect()  # here, where the error no longer holds the step's tensors
        if place.type == "cuda":
            torch.cuda.empty_cache()
        return inf

    return meter


def as_device(device: Any) -> Any:
    """A `torch.device` whose memory can be measured.

    Raises:
        ValueError: another one, or one that is not there.
    """
    import torch

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu or cuda (got {device!r})") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda (got {str(place)!r})")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(place)!r} is not there: torch finds no GPU; estimate needs none")
    return place


def _on_cpu(place: Any, run: Callable[[], object]) -> float:
    from brimful.memory.tracked import TrackedMemory

    with TrackedMemory() as memory:
        run()
    return float(memory.peak_bytes)


def _on_cuda(place: Any, run: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    run()
    torch.cuda.synchronize(place)
    return float(torch.cuda.max_memory_allocated(place))


class StepPeaks:
    """The peak of what runs between two calls, on the current CUDA device: what a loop does with the batch that it took.

    What the model and all that other code holds takes is included, as for `probe`; the device's statistics of the peak are reset.
    From the first time on that memory runs out nothing is measured: the step may have been run in parts, and go on to be.

    Price: 50 us a step; nothing is waited for, as the allocator counts what is given out, not what is computed.
    """

    def __init__(self) -> None:
        self._before: tuple[Any, int, int] | None = None
        self._exhausted = False

    def begin(self) -> None:
        """Before a step."""
        import torch

        self._before = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else nothing of this process is on a device
            device = torch.cuda.current_device()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = device, torch.cuda.memory_allocated(device), self._ooms(device)

    def end(self) -> float | None:
        """After it: its peak in bytes; None where it took no memory, or ran out of it."""
        import torch

        if self._before is None:
            return None
        device, held, ooms = self._before
        self._exhausted |= self._ooms(device) > ooms
        peak = torch.cuda.max_memory_allocated(device)
        return float(peak) if peak > held and not self._exhausted else None

    def _ooms(self, device: int) -> int:
        import torch

        return int(torch.cuda.memory_stats(device).get("num_ooms", 0))
