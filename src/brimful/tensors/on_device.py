"""Batches on the device before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from brimful.core.ahead import AHEAD, defer, items_ahead, then
from brimful.core.errors import settle
from brimful.core.stage import Stage, State, running, runtime
from brimful.tensors.copies import Sent, StaticBuffers, copier
from brimful.tensors.explained import carry


@dataclass(frozen=True)
class OnDevice(Stage[Any]):
    """The items of `upstream` with their tensors on a device, up to `prefetch` of them sent early by a thread, and one in the
    making; 0: sent when they are asked for. Nothing else changes.

    They are received by the consumer's thread, whatever else runs ahead: its stream waits for them, and its batch before may
    be overwritten. `copies`: tensors that are there already are copied too, as whoever made them may use them again.
    """

    verb = ""

    upstream: Stage[Any]
    device: torch.device = runtime()
    prefetch: int = runtime(2)
    buffers: StaticBuffers | None = runtime(None)
    copies: bool = runtime(False)
    itemwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self, "prefetch", 0, "batches")

    def rehearsed(self, batches: Callable[[Any], Stage[Any]]) -> Stage[Any]:
        """While a CUDA graph is captured no other thread may allocate."""
        return replace(self.over(self.upstream.rehearsed(batches)), prefetch=0)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        copies, inside = copier(self.device, self.copies and self.prefetch > 0), AHEAD.get()

        def sent() -> Generator[tuple[Sent, State], None, None]:
            with running(self.upstream, at) as items:
                for item, after in items:
                    yield then(item, send), after

        def send(item: Any) -> Sent:
            one = copies.send(item)
            carry(item, one.item)
            return one

        def received(one: Sent) -> Any:
            item = copies.receive(one)
            if self.buffers is None:
                return item
            filled = self.buffers.filled(item)
            carry(item, filled)
            return filled

        with closing(items_ahead(sent, self.prefetch, "device") if self.prefetch else sent()) as items:
            for one, after in items:
                yield defer(one, received) if inside else received(one), after
