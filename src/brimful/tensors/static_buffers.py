"""The same device tensors for every batch of a shape, as CUDA graphs want them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import torch

from brimful.tensors.structures import mapped, tensors_of

Signature: TypeAlias = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]

MOST_SHAPES: Final = 64


class StaticBuffers:
    """A set of tensors for each shape of a batch; a batch is copied into its set as it is handed out.

    The copy is of the stream that computes, from device memory to device memory: after all that was given the set before, and
    before all that will be. They last as long as the description that they belong to, over epochs and iterators, of which
    only one may run at a time. A copy of the description in another process has none.
    """

    def __init__(self) -> None:
        self._sets: dict[Signature, list[torch.Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_sets": {}}

    def filled(self, item: Any) -> Any:
        """A batch in the buffers of its shape.

        Raises:
            ValueError: it is of one shape too many.
        """
        tensors = list(tensors_of(item))
        signature = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
        buffers = self._sets.get(signature)
        if buffers is None:
            if len(self._sets) == MOST_SHAPES:
                raise ValueError(
                    f"static_buffers keeps the tensors of each shape, and this batch is of a shape beside {MOST_SHAPES} others: "
                    f"{' '.join(str(tuple(tensor.shape)) for tensor in tensors)}; give batches few shapes (bf.StaticShapes), or "
                    "leave static_buffers out"
                )
            buffers = self._sets[signature] = [torch.empty_like(tensor) for tensor in tensors]
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor, non_blocking=True)
        ordered = iter(buffers)
        return mapped(item, lambda tensor: next(ordered))
