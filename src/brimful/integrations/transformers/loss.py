"""What a batch's loss counts in its optimizer step, or in an evaluation, where batches have unequal numbers of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import recursively_apply
from transformers.trainer_utils import EvalLoopOutput

from brimful.integrations.transformers.data import Share, TrainerBatch
from brimful.tables.ragged import NOT_TRAINED_ON
from brimful.tensors.loss import are_classes, by_row, num_labels
from brimful.tensors.structures import mapped


def num_labels_of(batch: TrainerBatch, names: Sequence[str], shifts: bool) -> torch.Tensor:
    """How many labels of a batch a mean over it is taken of, () int64: of the rows that count, as `num_labels` counts them.

    Args:
        names: the keys of the labels, of which the first that is there counts. Where none is, a batch counts 1.
        shifts: whether the model shifts `labels`, so that it never predicts the first of a row.

    >>> batch = TrainerBatch(labels=torch.tensor([[5, 6, -100], [7, 8, 9]]))
    >>> num_labels_of(batch, ["labels"], shifts=False), num_labels_of(batch, ["labels"], shifts=True)
    (tensor(5), tensor(3))
    """
    if batch.pairs is not None:  # of which each counts once
        return torch.tensor(batch.pairs * batch.rows) if isinstance(batch.rows, bool) else batch.rows.sum()
    labels = loss_labels_of(batch, names, shifts)
    return torch.tensor(int(batch.rows is not False)) if labels is None else num_labels(labels, batch.rows)


def loss_labels_of(batch: Mapping[str, Any], names: Sequence[str], shifts: bool) -> torch.Tensor | None:
    """The labels that a loss is taken over; None where there are none."""
    key = next((name for name in ("shift_labels", *names) if isinstance(batch.get(name), torch.Tensor)), None)
    if key is None:
        return None
    labels: torch.Tensor = batch[key]
    return labels[..., 1:] if shifts and key == "labels" and are_classes(labels) else labels


def as_integers(batch: TrainerBatch) -> dict[str, Any]:
    """A batch for whoever counts labels other than -100: with integers of which as many are others as labels count.

    >>> batch = TrainerBatch(labels=torch.tensor([0.5, 1.5]))
    >>> batch.rows = torch.tensor([True, False])
    >>> as_integers(batch)["labels"]
    tensor([   0, -100])
    """
    out: dict[str, Any] = dict(batch)
    for name in ("labels", "shift_labels"):
        labels = batch.get(name)
        if not isinstance(labels, torch.Tensor):
            continue
        rows = torch.full((len(labels),), batch.rows) if isinstance(batch.rows, bool) else batch.rows
        rows = rows.to(labels.device)
        if are_classes(labels):
            out[name] = labels.masked_fill(~by_row(rows, labels), NOT_TRAINED_ON)
        else:
            out[name] = out["shift_labels"] = torch.where(rows, 0, NOT_TRAINED_ON)  # of which the first is not left out
    return out


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
        if isinstance(labels, torch.Tensor) and labels.numel() and are_classes(labels):
            out[name] = labels = labels.clone()
            labels[(0, *[-1] * (labels.dim() - 1))] = 0
    return out


def real_rows(value: Any, rows: torch.Tensor | bool) -> Any:
    """The rows that count of each tensor of a structure that has as many as its batch; of a filler none of any.

    >>> real_rows({"logits": torch.tensor([[1.0], [2.0]]), "loss": torch.tensor(3.0)}, torch.tensor([True, False]))
    {'logits': tensor([[1.]]), 'loss': tensor(3.)}
    """

    def of(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or rows is True:
            return tensor
        if rows is False:
            return tensor[:0]
        return tensor[rows.to(tensor.device)] if len(tensor) == len(rows) else tensor

    return mapped(value, of)


class Evaluation:
    """One evaluation of batches of unequal size: losses weighed by labels, rows of all ranks in the batches' order.

    Args:
        replicas: how many neighbouring processes hold one copy of the model, and see the same batches.
    """

    def __init__(self, accelerator: Accelerator, replicas: int) -> None:
        self._accelerator = accelerator
        self._replicas = replicas
        dtype = torch.float32 if accelerator.device.type == "mps" else torch.float64
        self._sums = torch.zeros(2, dtype=dtype, device=accelerator.device)
        self._counting: torch.Tensor | bool = True
        self.count: torch.Tensor = torch.tensor(0)  # labels of the batch at hand

    def begin(self, batch: TrainerBatch, count: torch.Tensor) -> None:
        """A batch, and how many labels it has; `rows` is of it until the next one."""
        self._counting, self.count = batch.rows, count

    def add(self, loss: Any) -> None:
        """The mean loss of the batch."""
        count = self.count
        if loss is not None:
            count = count.to(self._sums)
            self._sums += torch.stack([torch.where(count > 0, loss.to(self._sums) * count, 0.0), count])

    def rows(self, value: Any) -> Any:
        """The rows of all processes' batches, one after the other, of tensors in any structure; of fillers none, and no copies.
        What differs in other dimensions is padded with -100."""
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
        tensor = real_rows(tensor if tensor.dim() else tensor[None], self._counting)
        if self._accelerator.num_processes == 1:
            return tensor
        sizes = self._everyone(torch.tensor([tensor.shape], device=self._accelerator.device)).tolist()
        largest = [max(size) for size in zip(*sizes)]
        padded = tensor.new_full(largest, NOT_TRAINED_ON if tensor.dtype.is_signed else 0)
        padded[tuple(map(slice, tensor.shape))] = tensor
        everyone = self._everyone(padded[None].contiguous())
        return torch.cat([own[: size[0]] for own, size in zip(everyone, sizes)])

    def _everyone(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self._accelerator.gather(tensor)
        return gathered[:: self._replicas]
