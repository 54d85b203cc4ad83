"""Evaluations of batches of unequal size: losses weighed by labels, rows of all ranks in the batches' order."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import recursively_apply
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from brimful.integrations.transformers.data import Once, itself

PADDING = -100
"""What predictions and labels of unequal lengths are padded with, as Trainer does."""


class Evaluation:
    """What one evaluation has seen.

    Args:
        replicas: how many neighbouring processes hold one copy of the model, and see the same batches.
    """

    def __init__(self, accelerator: Accelerator, replicas: int) -> None:
        self._accelerator = accelerator
        self._replicas = replicas
        dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
        self._sums = torch.zeros(2, dtype=dtype, device=accelerator.device)
        self._is_filler = False

    def add(self, loss: Any, count: torch.Tensor, is_filler: bool) -> None:
        """A batch: its mean loss, of how many labels, and whether its rows count; `rows` is of it until the next one."""
        self._is_filler = is_filler
        if loss is not None:
            count = count.to(self._sums)
            self._sums += torch.stack([torch.where(count > 0, loss.to(self._sums) * count, 0.0), count])

    def rows(self, value: Any) -> Any:
        """The rows of all processes' batches, one after the other, of tensors in any structure; of fillers none. What differs
        in other dimensions is padded with -100."""
        return recursively_apply(self._rows, value, error_on_other_type=True)

    def of(self, output: EvalLoopOutput, prefix: str, num_samples: int) -> EvalLoopOutput:
        """What the trainer makes of an evaluation, with the mean loss over all labels and the number of samples."""
        counted = torch.cat([self._sums, torch.tensor([num_samples]).to(self._sums)])
        loss, labels, samples = self._everyone(counted[None]).sum(0).tolist()
        metrics = dict(output.metrics or {})
        if f"{prefix}_loss" in metrics:
            metrics[f"{prefix}_loss"] = loss / labels if labels else float("nan")
        return output._replace(metrics=metrics, num_samples=round(samples))

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = (tensor if tensor.dim() else tensor[None])[: 0 if self._is_filler else None]
        if self._accelerator.num_processes == 1:
            return tensor
        sizes = self._everyone(torch.tensor([tensor.shape], device=self._accelerator.device)).tolist()
        largest = [max(size) for size in zip(*sizes)]
        padded = tensor.new_full(largest, PADDING if tensor.dtype.is_signed else 0)
        padded[tuple(map(slice, tensor.shape))] = tensor
        everyone = self._everyone(padded[None].contiguous())
        return torch.cat([own[: size[0]] for own, size in zip(everyone, sizes)])

    def _everyone(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self._accelerator.gather(tensor)
        return gathered[:: self._replicas]


def evaluation_dataloader(data: Once, tells_the_last: bool) -> DataLoader[Any]:
    """What Trainer iterates over; where metrics are told which batch is the last, one that tells Accelerate."""
    kind: Any = DataLoaderShard if tells_the_last else DataLoader
    loader: DataLoader[Any] = kind(data, batch_size=None, num_workers=0, collate_fn=itself)
    return loader
