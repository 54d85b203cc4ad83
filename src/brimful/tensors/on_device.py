"""Batches on the device before they are asked for: copies that run beside its compute, also into the same tensors each time."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final, NamedTuple

import torch

from brimful.arrays.explained import carry
from brimful.core.ahead import defer, items_ahead, then
from brimful.core.facts import Facts, facts_of, following
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, running
from brimful.plan.errors import check_count
from brimful.tensors.structures import mapped, tensors_of

ALIGNED: Final = 64  # bytes, for views of any type and whole cache lines
LAG: Final = 4
MOST_SHAPES: Final = 64
MOST_HELD: Final = 8
"""References to a buffer, at most, when it is filled again."""


@dataclass(frozen=True)
class OnDevice(Stage[Any]):
    """The items of `upstream` with their tensors on a device, up to `prefetch` of them sent early by a thread, and one in the
    making; 0: sent when they are asked for. Nothing else changes.

    They are received by the consumer's thread, whatever else runs ahead: its stream waits for them, and its batch before may
    be overwritten. `copies`: tensors that are there already are copied too, as whoever made them may use them again.
    """

    verb = ""

    upstream: Stage[Any]
    device: torch.device = not_in_state()
    prefetch: int = not_in_state(2)
    buffers: StaticBuffers | None = not_in_state(None)
    copies: bool = not_in_state(False)

    def __post_init__(self) -> None:
        check_count(self, "prefetch", 0, "batches")

    def facts(self, *inputs: Facts) -> Facts:
        static_buffers = self.buffers is not None or inputs[0].static_buffers
        return following(self, *inputs, seam="passes", static_buffers=static_buffers)

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        copies = copier(self.device, self.copies and self.prefetch > 0)
        filler = None if self.buffers is None else self.buffers.filler()

        def sent(run: Run) -> Generator[tuple[InFlight, State], None, None]:
            with running(self.upstream, at, run) as items:
                for item, after in items:
                    yield then(item, send), after

        def send(item: Any) -> InFlight:
            one = copies.send(item)
            carry(item, one.item)
            return one

        def received(one: InFlight) -> Any:
            item = copies.receive(one)
            if filler is None:
                return item
            filled = filler(item)
            carry(item, filled)
            return filled

        with closing(items_ahead(sent, self.prefetch, "device", run) if self.prefetch else sent(run)) as items:
            for one, after in items:
                yield defer(one, received) if run.ahead else received(one), after


def check_tensors(stage: Stage[Any], why: str = "only tensors are sent to a device") -> None:
    """Refuses batches that stay arrays, and says why.

    Raises:
        ValueError: with the remedy.
    """
    known = facts_of(stage).batches
    if known is not None and known.collated is not None and known.collated.convert is None:
        raise ValueError(
            f"these batches are numpy arrays, and {why}. Leave numpy() out, or send the arrays yourself, such as by "
            "jax.device_put(batch)"
        )


class InFlight(NamedTuple):
    """A batch on its way.

    Args:
        item: as it will be, with tensors that may still be empty.
        arrives: an event on the device after which they are not; None where they are there.
        tensors: what the stream of the copies has to do with.
    """

    item: Any
    arrives: Any = None
    tensors: tuple[torch.Tensor, ...] = ()


class BlockingCopier:
    """To a device without streams of its own, such as the CPU: what is sent is there.

    Args:
        copies: also what is there already, as whoever made it may use it again.
    """

    def __init__(self, device: torch.device, copies: bool) -> None:
        self._device, self._copies = device, copies

    def send(self, item: Any) -> InFlight:
        return InFlight(mapped(item, self._sent))

    def receive(self, sent: InFlight) -> Any:
        return sent.item

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = tensor.to(self._device)
        return sent.clone() if self._copies and sent is tensor else sent


class StreamCopier:
    """To an accelerator, on a stream beside those that compute.

    The tensors of a batch lie end to end in one slab of pinned memory, so that a copy needs no help of the CPU. Slabs come from
    torch's caching host allocator: it hands one out again once the copies from it have ended, which it knows by events. What
    arrives is memory of the copy stream's, and `record_stream` keeps it from being used again before the compute
    that was given it has run. A tensor that is there twice in a batch is copied once. A consumer whose host runs ahead of its
    device has no more than `LAG` batches there that were taken and not computed: it waits for them as it takes the next one,
    which is no time waited for data.
    """

    def __init__(self, device: torch.device, copies: bool) -> None:
        self._backend: Any = getattr(torch, device.type)
        self._device, self._copies = device, copies
        self._stream = _stream_of(device)
        self._used: deque[Any] = deque()  # events: all that was given a batch has run

    def send(self, item: Any) -> InFlight:
        """Begins to copy the tensors of a batch, in the thread that makes it; those that are on the device already stay there, or
        are copied by the stream that made them, which may write to them next."""
        tensors = {id(tensor): tensor for tensor in tensors_of(item)}
        made_here = {key: tensor for key, tensor in tensors.items() if tensor.device == self._device}
        maker = self._backend.current_stream(self._device)
        copies = {key: tensor.clone() for key, tensor in made_here.items()} if self._copies else {}
        with self._backend.stream(self._stream), torch.no_grad():
            if made_here:
                self._stream.wait_stream(maker)
            copies |= self._sent({key: tensor for key, tensor in tensors.items() if key not in made_here})
            arrived = mapped(item, lambda tensor: copies.get(id(tensor), tensor))
            return InFlight(arrived, self._stream.record_event(), tuple(tensors_of(arrived)))

    def receive(self, sent: InFlight) -> Any:
        """The batch, for use by what the caller's current stream runs from now on. The host waits for no copy."""
        self._catch_up()
        stream = self._backend.current_stream(self._device)
        event = self._backend.Event(blocking=True)
        event.record(stream)
        self._used.append(event)
        stream.wait_event(sent.arrives)
        for tensor in sent.tensors:
            for part in _parts(tensor):
                if part.device.type == self._device.type:  # nested tensors keep two of theirs on the host
                    part.record_stream(stream)
        return sent.item

    def _catch_up(self) -> None:
        """Waits until the device is no more than `LAG` batches behind."""
        if len(self._used) <= LAG:
            return
        began = time.perf_counter()
        while len(self._used) > LAG:
            self._used.popleft().synchronize()
        if (run := Run.here()) is not None:
            run.device_seconds += time.perf_counter() - began

    def _sent(self, tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The copy of each tensor, by the tensor's id."""
        plain = {key: tensor for key, tensor in tensors.items() if _is_plain(tensor)}
        copies = {key: tensor.to(self._device) for key, tensor in tensors.items() if key not in plain}
        sizes = [-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in plain.values()]
        slab = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        for (key, tensor), part in zip(plain.items(), torch.split_with_sizes(slab, sizes)):
            strides = torch.empty_like(tensor, device="meta").stride()  # those of the tensor, where it is dense
            pinned = part[: tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, strides)
            copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=self._device)
            copies[key] = copy.copy_(pinned.copy_(tensor), non_blocking=True).requires_grad_(tensor.requires_grad)
        return copies


class StaticBuffers:
    """A tensor for each shape that a place in a batch has; a batch is copied into them as it is handed out.

    The copy is of the stream that computes, from device memory to device memory: after all that was given them before, and
    before all that will be. They last as long as the description that they belong to, over epochs and iterators, of which
    only one may run at a time. A copy of the description in another process has none. Nested and sparse tensors are handed on as
    they are, and so are tensors of one dimension once there are too many sizes of them (`cu_seqlens` of packed rows).

    Who keeps batches keeps one tensor many times. A loop, and a graph that was captured, hold a buffer a few times.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, torch.Size, torch.dtype, torch.device], torch.Tensor] = {}
        self._taken = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_buffers": {}, "_taken": 0}

    def filler(self) -> Callable[[Any], Any]:
        """What puts the batches of one run into the buffers of their shapes.

        Raises:
            ValueError: (when called) a tensor is of one shape too many; or another run has filled them since; or many batches
                are held.
        """
        last: int | None = None

        def filled(item: Any) -> Any:
            nonlocal last
            if last not in (None, self._taken):
                raise ValueError(
                    "two loops take these batches in turn, and static_buffers gives both the same tensors. Make the batches of "
                    "each by its own to_device(static_buffers=True)"
                )
            last = self._taken = self._taken + 1
            places = count()
            # whatever the caller is in: they are used again outside of it
            with torch.inference_mode(False), torch.no_grad():
                return mapped(item, lambda tensor: self._filled(next(places), tensor))

        return filled

    def _filled(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested or tensor.layout != torch.strided:
            return tensor
        key = (place, tensor.shape, tensor.dtype, tensor.device)
        if key not in self._buffers:
            if Counter(place for place, *_ in self._buffers)[place] == MOST_SHAPES:
                if tensor.ndim == 1:
                    return tensor
                raise ValueError(
                    f"static_buffers keeps the tensors of each shape, and tensor {place + 1} of this batch is of a shape beside "
                    f"{MOST_SHAPES} others: {tuple(tensor.shape)}; give batches few shapes (bf.StaticShapes; "
                    "drop columns that are padded to their own longest), or leave static_buffers out"
                )
            self._buffers[key] = torch.empty_like(tensor)
        if sys.getrefcount(self._buffers[key]) > MOST_HELD:
            raise ValueError(
                f"static_buffers puts every batch of a shape into the same tensors, and more than {MOST_HELD} of them are held: "
                "all are the last one. Copy what you keep, or leave static_buffers out"
            )
        return self._buffers[key].copy_(tensor, non_blocking=True)


def copier(device: torch.device, copies: bool = False) -> BlockingCopier | StreamCopier:
    """What sends batches to a device; `copies`: see `BlockingCopier`.

    Raises:
        RuntimeError: there is no such device here.
    """
    if device.type != "cuda":
        return BlockingCopier(device, copies)
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"no device {str(device)!r} is to be had: this torch finds no {device.type}; name another, or 'cpu'"
        )
    return StreamCopier(numbered(device), copies)


def numbered(device: str | int | torch.device) -> torch.device:
    """A device by its number: "cuda" is the current one of the thread that asks."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:  # also for a number where there is no accelerator
        raise ValueError(
            f"device takes the name of a device of torch, such as 'cuda:0' (got {device!r}: {error})"
        ) from error
    number: int | None = found.index  # None, whatever torch's annotations say
    if found.type == "cuda" and number is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


@cache
def _stream_of(device: torch.device) -> Any:
    """The one on which batches are copied: memory that it has allocated is used again by later batches of any iterator."""
    return getattr(torch, device.type).Stream(device=device)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes are its values, in rows: no subclass (nested tensors are one), nothing sparse or quantized."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
    )


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the memory of one: itself, or what a nested tensor is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]
