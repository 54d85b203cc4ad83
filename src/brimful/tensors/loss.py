"""What a batch weighs: its labels, and the share of its loss in the mean over all that are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brimful.core.own_keys import WEIGHTS
from brimful.tables.ragged import NOT_TRAINED_ON, loss_labels


def token_mean(loss_sum: torch.Tensor, batch: Mapping[str, Any], *, process_group: Any = None) -> torch.Tensor:
    """Scales a local *sum* of losses, so that the gradient averaged over ranks is that of the mean over all tokens.

    The result is loss_sum x W / N. W is the number of ranks, whose gradients DDP and FSDP average. N is the number of
    labels on all ranks. A mean of means would give tokens of short batches more weight.

    N is the batch's `num_items_in_batch`, if it has one. `Batches.shard` sets it for all ranks if the labels are known
    without reading them (a store, a sequence in memory, packed tokens). Then nothing is sent. Otherwise, N is
    `num_items_on_rank`, or the number of labels in the batch, summed over the ranks. This takes one all_reduce of 8
    bytes, so call it on every rank. Without any label the result is 0, and so is its gradient. A mean over zero tokens
    would be NaN on every rank.

    Integers count if they are not -100. Labels of other types (float, bool) count as one a row. In a filler (`weight`
    0) the result and its gradient are 0, whatever the loss is. A batch with copies up to a static shape has
    `sample_weights`, which are 0 for copies. Give it the losses by row, (B,), or by token, (B, L). They are then weighed
    and summed here. A sum has no rows, so weigh the losses by `sample_weights` before you add them up.

    If one optimizer step adds up the gradients of several batches, N counts all of them. `micro_batches=k` puts this
    number into each batch. A batch of such a step without the number is refused. Labels made by a `collate_fn` are not
    known in advance. Hold the batches of a step, and count their labels:

        step.append(batch)
        if batch["ends_step"]:
            here = sum((one["labels"] != -100).sum() for one in step if not one["is_filler"])
            for one in step:
                token_mean(loss_sum(one), one | {"num_items_on_rank": here}).backward()
            step.clear()

    Args:
        loss_sum: a sum over this rank's tokens, such as `cross_entropy(..., reduction="sum")`, not a mean. Or losses by
            row or by token (`reduction="none"`), of shape (rows,) or (rows, ...).
        batch: a batch with `num_items_in_batch`, `num_items_on_rank`, `shift_labels` or `labels`. The first of these
            that it has is used. Causal models never predict the first token of a row. Its label is not counted if it is
            -100, as in packed batches.
        process_group: the data-parallel process group, or a device mesh of one dimension. The default is all ranks of
            torch.distributed if it is initialised. Else W is the number of ranks of `Batches.shard`, if N is known.
    Raises:
        ValueError: the batch has none of these keys. Or it is part of an optimizer step and has neither number. Or
            `loss_sum` is the result of a mean, as far as autograd shows it. Or it has another number of rows than
            `sample_weights`.
    Price: some operations on numbers. In a filler on a GPU, one wait for the loss.
    Source: transformers (num_items_in_batch), and the issue that led to it (#34242).

    >>> import torch
    >>> batch = {"labels": torch.tensor([[1, 2, -100], [3, -100, -100]])}
    >>> token_mean(torch.tensor(6.0), batch)
    tensor(2.)
    >>> token_mean(torch.tensor(6.0), batch | {"num_items_in_batch": 12})
    tensor(0.5000)
    >>> token_mean(torch.tensor(0.0), {"labels": torch.tensor([-100])})
    tensor(0.)
    >>> copies = {"labels": torch.tensor([0.5, 1.5, 0.5]), "sample_weights": torch.tensor([1.0, 1.0, 0.0])}
    >>> token_mean(torch.tensor([2.0, 4.0, 2.0]), copies)
    tensor(3.)
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"token_mean takes the sum of the losses and then the batch, a dict (got {type(batch).__name__})"
        )
    if not isinstance(loss_sum, torch.Tensor):
        raise TypeError(
            f"loss_sum must be a tensor, such as cross_entropy(..., reduction='sum') gives (got {loss_sum!r})"
        )
    if not torch.compiler.is_compiling() and loss_sum.numel() == 1 and _is_mean(loss_sum):
        raise ValueError(
            "loss_sum must be a sum, and this tensor is a mean, which token_mean would divide once more. Compute it by "
            "cross_entropy(..., reduction='sum'), or by .sum() in place of .mean()"
        )
    ranks, world_size = _group(process_group)
    rows = rows_that_count(batch)
    tokens = batch.get("num_items_in_batch")
    if tokens is not None:
        world_size = world_size or int(getattr(batch.get("weight"), "num_ranks", 1))
    else:
        tokens = batch.get("num_items_on_rank")
        if tokens is None:
            if "ends_step" in batch:
                raise ValueError(
                    "the batch is part of an optimizer step (micro_batches), and has neither num_items_in_batch nor "
                    "num_items_on_rank: brimful counts labels that the samples have. Give token_mean the number of labels in all "
                    'batches of the step: batch | {"num_items_on_rank": count}'
                )
            name = loss_labels(batch)
            if name is None:
                raise ValueError(
                    f"token_mean needs labels or num_items_in_batch in the batch (got {', '.join(batch) or 'none'})"
                )
            tokens = num_labels(batch[name], rows)
        world_size = world_size or 1
        if world_size > 1:
            tokens = torch.as_tensor(tokens).to(loss_sum.device, copy=True)
            torch.distributed.all_reduce(tokens, group=ranks)
    if rows is False:
        return nothing(loss_sum)
    count = torch.as_tensor(tokens).to(loss_sum.device, non_blocking=True)
    count = torch.where(count == 0, 1, count)  # a part of a batch may have a share of a label
    return _weighed_sum(loss_sum, row_weights(batch)) * (world_size or 1) / count


def rows_that_count(batch: Mapping[Any, Any]) -> torch.Tensor | bool:
    """Which rows of a batch count in losses, in numbers of labels and in results: True for all, False for none, as in a filler,
    or bool (rows,), where some may be copies up to a static shape.

    >>> rows_that_count({"sample_weights": [1.0, 0.0]}), rows_that_count({"is_filler": True}), rows_that_count({})
    (tensor([ True, False]), False, True)
    """
    weight = batch.get("weight")
    if batch.get("is_filler") is True or (isinstance(weight, float) and weight == 0):
        return False
    weights = row_weights(batch)
    return True if weights is None else weights > 0


def row_weights(batch: Mapping[Any, Any]) -> torch.Tensor | None:
    """What each row counts for, (rows,), also where a function of the user's says it by a list; None: each for 1."""
    weights = batch.get(WEIGHTS)
    return None if weights is None else torch.as_tensor(weights)


def num_labels(labels: torch.Tensor, rows: torch.Tensor | bool = True) -> torch.Tensor:
    """How many labels are trained on, () int64: of integers those other than -100, of any others one a row.

    Args:
        labels: (rows, ...), padded or nested.
        rows: which rows count: see `rows_that_count`.

    >>> num_labels(torch.tensor([[1, -100], [2, 3]]), torch.tensor([False, True])), num_labels(torch.tensor([[0.5, 1.5]]))
    (tensor(2), tensor(1))
    """
    if isinstance(rows, bool):
        if not rows or not are_classes(labels):
            return torch.tensor(len(labels) * rows, device=labels.device)
        return ((labels.values() if labels.is_nested else labels) != NOT_TRAINED_ON).sum()
    rows = rows.to(labels.device)
    return (by_row(rows, labels) & (labels != NOT_TRAINED_ON) if are_classes(labels) else rows).sum()


def are_classes(labels: torch.Tensor) -> bool:
    """Whether labels are integers, of which -100 is none."""
    return not labels.is_floating_point() and labels.dtype != torch.bool


def by_row(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A number a row, to go with a tensor of more dimensions."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _weighed_sum(losses: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """The sum of losses by row or by token, each times the weight of its row; a sum is what it is."""
    if not losses.dim():
        return losses
    if weights is None:
        return losses.sum()
    if len(losses) != len(weights):
        raise ValueError(
            f"the losses have {len(losses):,} rows and the batch has {len(weights):,} sample_weights. Give token_mean a loss "
            "for each row or for each token of the batch, or weigh the losses by sample_weights and give their sum"
        )
    weights = by_row(weights.to(losses), losses)
    return torch.where(weights > 0, losses * weights, 0.0).sum()


def nothing(loss: torch.Tensor) -> torch.Tensor:
    """0 whose gradient is 0, in the graph of a loss: DDP and FSDP wait for all of it. A loss that is NaN has derivatives that
    are NaN, also times 0, so those are left out."""
    if not torch.compiler.is_compiling() and loss.requires_grad and not loss.detach().isfinite().all():
        found, todo = {loss.grad_fn}, [loss.grad_fn]
        while todo:
            node: Any = todo.pop()
            if node is None or not node.next_functions:  # what adds up the gradient of a parameter
                continue
            node.register_hook(
                lambda inputs, outputs: tuple(one if one is None else torch.zeros_like(one) for one in inputs)
            )
            todo += {one for one, _ in node.next_functions} - found
            found.update(todo)
    return (loss * 0).nan_to_num().sum()


def _is_mean(loss: torch.Tensor) -> bool:
    """Whether the last step that made it was a mean, as far as autograd kept that step."""
    made_by = loss.grad_fn
    return made_by is not None and (
        made_by.name().startswith("MeanBackward") or getattr(made_by, "_saved_reduction", None) == 1
    )


def _group(group: Any) -> tuple[Any, int | None]:
    """A process group (None: the one of all ranks) and how many ranks it has; None where there is no group."""
    if group is not None:
        return (group.get_group(), group.size()) if hasattr(group, "get_local_rank") else (group, group.size())
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return None, torch.distributed.get_world_size() if distributed else None
