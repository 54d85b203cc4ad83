"""Copies to a device that run beside its compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from brimful.tensors.structures import mapped, tensors_of

ALIGNED: Final = 64  # bytes, for views of any type and whole cache lines
WITH_STREAMS: Final = ("cuda", "xpu")


@dataclass(frozen=True)
class Sent:
    """A batch on its way.

    Args:
        item: as it will be, with tensors that may still be empty.
        arrives: an event on the device after which they are not; None where they are there.
        fresh: those tensors.
    """

    item: Any
    arrives: Any = None
    fresh: tuple[torch.Tensor, ...] = ()


class Copier(ABC):
    """Sends batches to a device, in the thread that makes them, and receives them in the thread that uses them."""

    @abstractmethod
    def send(self, item: Any) -> Sent:
        """Begins to copy the tensors of a batch; those that are on the device already stay what they are."""

    @abstractmethod
    def receive(self, sent: Sent) -> Any:
        """The batch, for use by what the caller's current stream runs from now on; nobody waits on the host."""


class AtOnce(Copier):
    """To a device without streams of its own, such as the CPU: what is sent is there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, item: Any) -> Sent:
        return Sent(mapped(item, lambda tensor: tensor.to(self._device)))

    def receive(self, sent: Sent) -> Any:
        return sent.item


class Beside(Copier):
    """To an accelerator, on a stream beside those that compute.

    The tensors of a batch lie end to end in one slab of pinned memory, so that a copy needs no help of the CPU. Slabs come from
    torch's caching host allocator: it hands one out again once the copies from it have ended, which it knows by events. What
    arrives is fresh memory of the copy stream's, and `record_stream` keeps it from being used again before the compute
    that was given it has run. A tensor that is there twice in a batch is copied once.
    """

    def __init__(self, device: torch.device) -> None:
        self._backend: Any = getattr(torch, device.type)
        number = self._backend.current_device() if device.index is None else device.index
        self._device = torch.device(device.type, number)
        self._stream = self._backend.Stream(device=self._device)

    def send(self, item: Any) -> Sent:
        with self._backend.stream(self._stream), torch.no_grad():
            copies = self._copies(tensor for tensor in tensors_of(item) if tensor.device != self._device)
            arrived = mapped(item, lambda tensor: copies.get(id(tensor), tensor))
            known = {id(tensor) for tensor in tensors_of(item)}
            fresh = tuple(tensor for tensor in tensors_of(arrived) if id(tensor) not in known)
            return Sent(arrived, self._stream.record_event(), fresh)

    def receive(self, sent: Sent) -> Any:
        stream = self._backend.current_stream(self._device)
        stream.wait_event(sent.arrives)
        for tensor in sent.fresh:
            for part in _parts(tensor):
                part.record_stream(stream)
        return sent.item

    def _copies(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The copy of each tensor, by the tensor's id."""
        apart = {id(tensor): tensor for tensor in tensors}
        plain = {key: tensor for key, tensor in apart.items() if _is_plain(tensor)}
        places, size = {}, 0
        for key, tensor in plain.items():
            places[key] = size
            size += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
        slab = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        copies = {}
        for key, tensor in apart.items():
            if key not in plain:
                copies[key] = tensor.to(self._device)
                continue
            at, count = places[key], tensor.numel() * tensor.element_size()
            pinned = slab[at : at + count].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
            copies[key].copy_(pinned, non_blocking=True)
        return copies


def copier(device: torch.device) -> Copier:
    """What sends batches to a device.

    Raises:
        RuntimeError: there is no such device here.
    """
    if device.type not in WITH_STREAMS:
        return AtOnce(device)
    if not getattr(torch, device.type).is_available():
        raise RuntimeError(
            f"no device {str(device)!r} is to be had: this torch finds no {device.type}; name another, or 'cpu'"
        )
    return Beside(device)


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
