"""The peak of the memory that tensors hold while code runs, told from their storages: real ones on the CPU, or fake ones."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

BLOCK_BYTES: Final = 512
"""What CUDA's allocator rounds up to."""


class TrackedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages of all tensors that operators take or give, until the last reference to each is gone.

    A storage that an operator takes and none gave was there before: it counts as if from the start. Scratch memory inside
    an operator is not seen. Entered again it goes on with what is still held; `begin` forgets the peak so far.

    Args:
        block_bytes: a storage takes a multiple of it.
    Price: 20 us an operator.
    Example:
        >>> with TrackedMemory() as memory:
        ...     _ = torch.zeros(1000) + torch.zeros(1000)
        >>> memory.peak_bytes
        12288
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._block = block_bytes
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
        """Counts tensors in any structure as held from the start, those that are known aside."""
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
        size = -(-storage.nbytes() // self._block) * self._block
        _, known = self._sizes.get(key, (None, 0))
        if size == known:
            return
        if not known:

            def gone(_: Any) -> None:
                self._held -= self._sizes.pop(key)[1]

            reference = weakref.ref(storage, gone)
        else:
            reference = self._sizes[key][0]
        self._sizes[key] = reference, size
        self._held += size - known


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The tensors that have the storages: of a nested or a distributed one those that it is made of."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout != torch.strided:
        raise ValueError(f"the memory of tensors of layout {tensor.layout} is not counted; probe on a device instead")
    return [tensor]
