"""What a batch's loss counts in its optimizer step, where batches have unequal numbers of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from brimful.blocks.ragged import NOT_TRAINED_ON
from brimful.integrations.transformers.data import Share, TrainerBatch


def num_labels(batch: TrainerBatch, names: Sequence[str], shifts: bool) -> torch.Tensor:
    """How many labels of a batch a mean over it is taken of, () int64: those other than -100; of a filler none.

    Args:
        names: the keys of the labels, of which the first that is there counts. Where none is, a batch counts 1.
        shifts: whether the model shifts `labels`, so that it never predicts the first of a row.

    >>> batch = TrainerBatch(labels=torch.tensor([[5, 6, -100], [7, 8, 9]]))
    >>> num_labels(batch, ["labels"], shifts=False), num_labels(batch, ["labels"], shifts=True)
    (tensor(5), tensor(3))
    """
    key = next((name for name in ("shift_labels", *names) if isinstance(batch.get(name), torch.Tensor)), None)
    if batch.is_filler:
        return torch.tensor(0)
    if key is None:
        return torch.tensor(1)
    labels: torch.Tensor = batch[key]
    if not _are_classes(labels):
        return torch.tensor(labels.numel())
    if shifts and key == "labels":
        labels = labels[..., 1:]
    return (labels != NOT_TRAINED_ON).sum()


def shares(counts: Sequence[torch.Tensor], total: torch.Tensor, world_size: int, divided: bool) -> list[Share]:
    """What the mean loss of each batch of an optimizer step is multiplied by, so that the step's gradient is that of the mean
    over all its labels: the own share of them, times the number of ranks, whose gradients are averaged, and, where the
    trainer divides by it, times the number of batches.

    Args:
        total: the labels of the step on all ranks.

    >>> [share.scale for share in shares([torch.tensor(3), torch.tensor(0)], torch.tensor(4), 1, divided=True)]
    [tensor(1.5000), tensor(0.)]
    """
    times = world_size * (len(counts) if divided else 1)
    return [Share(count * times / total.clamp(min=1), not count) for count in counts]


def with_a_label(inputs: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Inputs none of whose labels is trained on, with one that is, of class 0, so that their mean loss is a number: whoever
    calls multiplies it by 0, and the graph is whole, as DDP wants it.

    >>> with_a_label({"labels": torch.full((1, 3), -100)}, ["labels"])
    {'labels': tensor([[-100, -100,    0]])}
    """
    out = dict(inputs)
    for name in ("shift_labels", *names):
        labels = out.get(name)
        if isinstance(labels, torch.Tensor) and labels.numel() and _are_classes(labels):
            out[name] = labels = labels.clone()
            labels[(0, *[-1] * (labels.dim() - 1))] = 0
    return out


def _are_classes(labels: torch.Tensor) -> bool:
    return not labels.is_floating_point() and labels.dtype != torch.bool
