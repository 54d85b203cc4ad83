"""Peaks on a device: of CUDA as its allocator counts them, of the CPU by the storages of the tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from brimful.memory.peaks import Meter, Peaks, measured
from brimful.oom.exhaustion import free, is_oom
from brimful.plan.errors import positive
from brimful.plan.memory import Length

BLOCK_BYTES: Final = 512
"""CUDA's allocator rounds sizes up to a multiple of this."""

MOST_BYTES: Final = 1 << 60
"""No device has so much: a peak above is an error of the function that gave it."""


def probe(
    step: Callable[[Any], object], make_batch: Callable[[int, Any], Any], shapes: ArrayLike, device: Any
) -> Peaks:
    """The peaks of a step at these shapes, measured on a device.

    The smallest shape runs once first, because it allocates memory that stays (optimizer states, workspaces). Then the
    shapes run from the largest down. If a shape runs out of memory, no other shape that is at least as large is tried.

    Args:
        step: step(batch) runs the whole step: forward, or forward, backward and optimizer. Gradients that it leaves are
            there in the next step.
        make_batch: make_batch(batch, length) gives a batch on the device. For shapes (n, 3), length is (source,
            target).
        shapes: (n, 2) batch and length, or (n, 3). `spread_shapes` chooses the ones that tell most.
        device: "cuda", "cuda:1" ...: the peak of its allocator, with the model and all memory of other code. "cpu": the
            peak of the storages of the step's tensors, each a multiple of 512 bytes.
    Raises:
        ValueError: the device is another one, the shapes are invalid, or the smallest shape does not fit.
    Price: one step a shape, and one more.
    Example:
        >>> import torch
        >>> def step(batch):
        ...     return batch * 2 + 1
        >>> probe(step, lambda batch, length: torch.ones(batch, length), [(4, 128), (8, 128)], "cpu").peak_bytes.tolist()
        [6144, 12288]
    """
    return measured(meter_on(device, step, make_batch), shapes)


def meter_on(device: Any, step: Callable[[Any], object], make_batch: Callable[[int, Any], Any]) -> Meter:
    """The function with which `probe` measures a shape, for `largest_batches`. It takes the arguments of `probe`.

    Example:
        >>> meter = meter_on("cpu", lambda batch: batch * 2, lambda batch, length: torch.ones(batch, length))
        >>> meter(4, 128)
        4096.0
    """
    place = as_device(device)

    def meter(batch: int, length: Length) -> float:
        gc.collect()  # cycles of the step before would count as held
        try:
            return _peak(place, lambda: step(make_batch(batch, length)))
        except (RuntimeError, MemoryError) as error:
            if not is_oom(error):
                raise
        free()  # here, where the error no longer holds the step's tensors
        return inf

    return meter


def as_device(device: Any) -> Any:
    """A `torch.device` whose memory can be measured.

    Raises:
        ValueError: another one, or one that is not there.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be cpu or cuda (got {device!r})") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda (got {str(place)!r})")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(place)!r} is not there: torch finds no GPU; estimate needs none")
    return place


def _peak(place: Any, run: Callable[[], object]) -> float:
    if place.type == "cpu":
        with TrackedMemory() as memory:
            run()
        return float(memory.peak_bytes)
    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    run()
    torch.cuda.synchronize(place)
    return float(torch.cuda.max_memory_allocated(place))


class TrackedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages of all tensors that operators take or give, until the last reference to each is gone.

    A storage that an operator takes and none gave was there before: it counts as if from the start. Scratch memory inside
    an operator is not seen. Each storage takes a multiple of 512 bytes. Entered again it goes on with what is still held;
    `begin` forgets the peak so far.

    Price: 20 us an operator.
    Example:
        >>> with TrackedMemory() as memory:
        ...     _ = torch.zeros(1000) + torch.zeros(1000)
        >>> memory.peak_bytes
        12288
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes: int = 0
        self._held = 0
        self._sizes: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.was_there((args, kwargs))
        made = func(*args, **(kwargs or {}))
        self._note(made)
        self.peak_bytes = max(self.peak_bytes, self._held)
        return made

    def begin(self) -> None:
        """From here on the peak counts, of what is held now and of what comes."""
        self.peak_bytes = self._held

    def was_there(self, tensors: Any) -> None:
        """Counts tensors in any structure as held from the start, unless they are known already."""
        self.peak_bytes += self._note(tensors)

    def _note(self, tensors: Any) -> int:
        """The bytes of the storages that are new among those of the tensors in a structure."""
        before = self._held
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                for part in _parts(tensor):
                    self._hold(part.untyped_storage())
        return self._held - before

    def _hold(self, storage: Any) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        reference, known = self._sizes.get(key, (None, 0))
        if size == known:
            return

        def forget(_: Any) -> None:
            self._held -= self._sizes.pop(key)[1]

        self._sizes[key] = reference or weakref.ref(storage, forget), size
        self._held += size - known


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The tensors that have the storages: of a nested or a distributed one those that it is made of."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout != torch.strided:
        raise ValueError(f"the memory of tensors of layout {tensor.layout} is not counted; probe on a device instead")
    return [tensor]


class StepPeaks:
    """The peak between two calls, on the current CUDA device: of a loop that works on a batch.

    What the model and all that other code holds takes is included, as for `probe`; the device's statistics of the peak are reset.
    From the first time on that memory runs out where no guard of brimful's catches it nothing is measured: the step may have been
    run in parts, and go on to be.

    Price: 50 us a step; nothing is waited for, as the allocator counts what is given out, not what is computed.
    """

    def __init__(self) -> None:
        self._before: tuple[Any, int, int] | None = None
        self._exhausted = False

    def begin(self) -> None:
        """Before a step."""
        self._before = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else nothing of this process is on a device
            device = torch.cuda.current_device()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = device, torch.cuda.memory_allocated(device), self._ooms(device)

    def end(self, caught: int = 0) -> float | None:
        """After it: its peak in bytes; None where it took no memory, or ran out of it more often than guards `caught`."""
        if self._before is None:
            return None
        device, held, ooms = self._before
        self._exhausted |= self._ooms(device) - ooms > 0 and not caught
        peak = torch.cuda.max_memory_allocated(device)
        return float(peak) if peak > held and not self._exhausted else None

    def _ooms(self, device: int) -> int:
        return int(torch.cuda.memory_stats(device).get("num_ooms", 0))


@dataclass(frozen=True)
class ReportedPeaks:
    """The peak between two calls, as a function reports it: the one since it was last asked, in bytes; None: it does not know.

    Example:
        >>> peaks = ReportedPeaks(iter([5e6, 7e6]).__next__)
        >>> peaks.begin()
        >>> peaks.end()
        7000000.0
    """

    peak_bytes: Callable[[], float | None]

    def __post_init__(self) -> None:
        if not callable(self.peak_bytes):
            raise TypeError(f"peak_bytes must be a function that gives the peak in bytes (got {self.peak_bytes!r})")

    def begin(self) -> None:
        """Before a step: what was before is not its peak."""
        self.peak_bytes()

    def end(self, caught: int = 0) -> float | None:
        """After it."""
        if (peak := self.peak_bytes()) is None:
            return None
        if positive("what peak_bytes gives", peak) > MOST_BYTES:
            raise ValueError(f"what peak_bytes gives must be at most {MOST_BYTES:,} bytes (got {peak:,})")
        return float(peak)


PeaksBetween: TypeAlias = StepPeaks | ReportedPeaks
"""What tells the peak between two calls, `begin` and `end`."""
