"""The same device tensors for every batch of a shape, as CUDA graphs want them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import torch

from brimful.tensors.structures import mapped, tensors_of

MOST_SHAPES: Final = 64


class StaticBuffers:
    """A tensor for each shape that a place in a batch has; a batch is copied into them as it is handed out.

    The copy is of the stream that computes, from device memory to device memory: after all that was given them before, and
    before all that will be. They last as long as the description that they belong to, over epochs and iterators, of which
    only one may run at a time. A copy of the description in another process has none. Nested and sparse tensors are handed on as
    they are, and so are tensors of one dimension once there are too many sizes of them (`cu_seqlens` of packed rows).
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, torch.Size, torch.dtype, torch.device], torch.Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_buffers": {}}

    def filled(self, item: Any) -> Any:
        """A batch in the buffers of its shapes.

        Raises:
            ValueError: a tensor is of one shape too many.
        """
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # whatever the caller is in: they are used again outside of it
            filled = iter([self._filled(place, tensor) for place, tensor in enumerate(tensors_of(item))])
        return mapped(item, lambda tensor: next(filled))

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
        return self._buffers[key].copy_(tensor, non_blocking=True)
