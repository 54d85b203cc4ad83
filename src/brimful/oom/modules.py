"""The modules of this process, and those that are made later: their buffers, and which of them reduce gradients in a backward."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from brimful.oom.exhaustion import is_oom

SMALL_BYTES: Final = 1 << 20
"""Buffers up to this size are copied before each step. Larger ones, such as quantised weights, once they were seen to change."""


class Modules:
    """The modules of this process, by what torch tells when one gets a submodule or a buffer.

    One that is made in another way (copy.deepcopy, pickle) is known once it is part of another, or after `look`.
    """

    def __init__(self) -> None:
        self.changing: set[tuple[int, str]] = set()  # the larger buffers that were seen to change
        self._new: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._buffered: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._reducing: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        nn.modules.module.register_module_module_registration_hook(self._registered)
        nn.modules.module.register_module_buffer_registration_hook(self._registered)

    def look(self) -> None:
        """Finds the modules that there are, but for those that `gc.freeze` has put aside. Price: .1 to 1 s, for every object."""
        for thing in gc.get_objects():
            if issubclass(type(thing), nn.Module):
                self._new[id(thing)] = thing

    def buffers(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """The buffers of all modules, each once, with the name that it has in its module. Price: 1 us for each."""
        self._settle()
        seen = set()
        for module in _living(self._buffered):
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield module, name, buffer

    def reducing(self) -> list[nn.Module]:
        """The DistributedDataParallel modules, which reduce gradients in their backward unless told not to."""
        self._settle()
        return _living(self._reducing)

    def _registered(self, module: nn.Module, name: str, value: Any) -> None:
        if torch.compiler.is_compiling():  # a buffer of a module that is known is given another value
            return
        self._new[id(module)] = module
        if isinstance(value, nn.Module):
            self._new[id(value)] = value

    def _settle(self) -> None:
        """Sorts the modules that are new, and what is in them."""
        waiting, seen = _living(self._new), set()
        self._new.clear()
        for module in waiting:
            if id(module) in seen:
                continue
            seen.add(id(module))
            waiting += [one for one in (getattr(module, "_modules", None) or {}).values() if one is not None]
            if getattr(module, "_buffers", None):
                self._buffered[id(module)] = module
            if issubclass(type(module), DistributedDataParallel):
                self._reducing[id(module)] = module


@cache
def modules_of_process() -> Modules:
    """Those of this process; made where it is first wanted, so that torch tells from then on."""
    return Modules()


def _living(found: WeakValueDictionary[int, nn.Module]) -> list[nn.Module]:
    return [module for ref in found.valuerefs() if (module := ref()) is not None]


class _Kept(NamedTuple):
    """A buffer as it was: the tensor itself, its version, and a copy of its content, if there is one."""

    module: nn.Module
    name: str
    tensor: Tensor
    version: int
    content: Tensor | None

    @property
    def changed(self) -> bool:
        """Whether it was changed, as far as torch knows: it does not of what kernels and `.data` write."""
        return self.module._buffers.get(self.name) is not self.tensor or _version(self.tensor) != self.version


class Buffers:
    """The buffers of all modules as they are now.

    Price: a copy of each of `SMALL_BYTES` at most, about 5 us, and of larger ones that were seen to change.
    """

    def __init__(self, modules: Modules) -> None:
        self._changing = modules.changing
        with torch.no_grad():
            self._kept = [self._keep(*one) for one in modules.buffers()]

    def _keep(self, module: nn.Module, name: str, tensor: Tensor) -> _Kept:
        small = tensor.numel() * tensor.element_size() <= SMALL_BYTES
        copied = small or (id(module), name) in self._changing
        return _Kept(module, name, tensor, _version(tensor), _copy(tensor) if copied else None)

    def note(self) -> None:
        """Remembers the larger ones that have changed: they are copied from now on."""
        self._changing |= {(id(one.module), one.name) for one in self._kept if one.content is None and one.changed}

    def put_back(self, error: BaseException) -> None:
        """The buffers as they were.

        Raises:
            RuntimeError: one has changed, and there is no copy of it.
        """
        self.note()
        lost = None
        with torch.no_grad():
            for one in self._kept:
                if one.content is None:
                    lost = lost if _version(one.tensor) == one.version else one
                elif one.tensor.layout == torch.strided and not one.tensor.is_inference():
                    one.tensor.copy_(one.content)
                else:
                    one.module._buffers[one.name] = one.content.clone()
                    continue
                one.module._buffers[one.name] = one.tensor
        if lost is not None:
            size = lost.tensor.numel() * lost.tensor.element_size()
            raise RuntimeError(
                f"a step ran out of memory and cannot be run again: it has changed the buffer {lost.name!r} of a "
                f"{type(lost.module).__name__}, {size:,} bytes. The guard copies a buffer above {SMALL_BYTES:,} bytes only once "
                "it has seen it change, so from now on. Go on from the model's last checkpoint"
            ) from error


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _copy(tensor: Tensor) -> Tensor | None:
    """A copy; None of what cannot be copied."""
    try:
        return tensor.clone()
    except (NotImplementedError, RuntimeError) as error:
        if is_oom(error):
            error.add_note("the guard copies the buffers of modules before each step; leave memory for it")
            raise
        return None
