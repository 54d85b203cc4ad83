"""What a batch weighs: the share of its loss in the mean over all tokens that are trained on, and what says so in it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from brimful.blocks.ragged import NOT_TRAINED_ON, loss_labels
from brimful.core.errors import DataError
from brimful.tensors.columns import WindowColumns


def token_mean(loss_sum: torch.Tensor, batch: Mapping[str, Any], *, process_group: Any = None) -> torch.Tensor:
    """Scales a local *sum* of losses, so that the gradient averaged over ranks is that of the mean over all tokens.

    The result is loss_sum x W / N. W is the number of ranks, whose gradients DDP and FSDP average. N is the number of
    tokens with a label on all ranks. A mean of means would give tokens of short batches more weight.

    N is the batch's `num_items_in_batch`, if it has one. `Batches.shard` sets it for all ranks if the labels are known
    without reading them (a store, a sequence in memory, packed tokens). Then nothing is sent. Otherwise, N is
    `num_items_on_rank`, or the number of labels other than -100, summed over the ranks. This takes one all_reduce of 8
    bytes, so call it on every rank. Without any label the result is 0, and so is its gradient. A mean over zero tokens
    would be NaN on every rank.

    If one optimizer step adds up the gradients of several batches, N counts all of them. `micro_batches=k` puts this
    number into each batch. A batch of such a step without the number is refused. Labels made by a `collate_fn` are not
    known in advance. Hold the batches of a step, and count their labels:

        step.append(batch)
        if batch["ends_step"]:
            here = sum((one["labels"] != -100).sum() for one in step)
            for one in step:
                token_mean(loss_sum(one), one | {"num_items_on_rank": here}).backward()
            step.clear()

    Args:
        loss_sum: a sum over this rank's tokens, such as `cross_entropy(..., reduction="sum")`, not a mean.
        batch: a batch with `num_items_in_batch`, `num_items_on_rank`, `shift_labels` or `labels`. The first of these
            that it has is used. Causal models never predict the first token of a row. Its label is not counted if it is
            -100, as in packed batches.
        process_group: the data-parallel process group, or a device mesh of one dimension. The default is all ranks of
            torch.distributed if it is initialised, else this process alone.
    Raises:
        ValueError: the batch has none of these keys. Or it is part of an optimizer step and has neither number. Or
            `loss_sum` is the result of a mean, as far as autograd shows it.
    Source: transformers (num_items_in_batch), and the issue that led to it (#34242).

    >>> import torch
    >>> batch = {"labels": torch.tensor([[1, 2, -100], [3, -100, -100]])}
    >>> token_mean(torch.tensor(6.0), batch)
    tensor(2.)
    >>> token_mean(torch.tensor(6.0), batch | {"num_items_in_batch": 12})
    tensor(0.5000)
    >>> token_mean(torch.tensor(0.0), {"labels": torch.tensor([-100])})
    tensor(0.)
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"token_mean takes the sum of the losses and then the batch, a dict (got {type(batch).__name__})"
        )
    if not isinstance(loss_sum, torch.Tensor):
        raise TypeError(
            f"loss_sum must be a tensor, such as cross_entropy(..., reduction='sum') gives (got {loss_sum!r})"
        )
    if not torch.compiler.is_compiling() and _is_mean(loss_sum):
        raise ValueError(
            "loss_sum must be a sum, and this tensor is a mean, which token_mean would divide once more. Compute it by "
            "cross_entropy(..., reduction='sum'), or by .sum() in place of .mean()"
        )
    ranks, world_size = _group(process_group)
    tokens = batch.get("num_items_in_batch")
    if tokens is None:
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
            labels = batch[name]
            tokens = ((labels.values() if labels.is_nested else labels) != NOT_TRAINED_ON).sum()
        if world_size > 1:
            tokens = torch.as_tensor(tokens).to(loss_sum.device, copy=True)
            torch.distributed.all_reduce(tokens, group=ranks)
    count = torch.as_tensor(tokens).to(loss_sum.device, non_blocking=True)
    return loss_sum * world_size / count.clamp(min=1)


def _is_mean(loss: torch.Tensor) -> bool:
    """Whether the last step that made it was a mean, as far as autograd kept that step."""
    made_by = loss.grad_fn
    return made_by is not None and (
        made_by.name().startswith("MeanBackward") or getattr(made_by, "_saved_reduction", None) == 1
    )


def _group(group: Any) -> tuple[Any, int]:
    """A process group (None: the one of all ranks) and how many ranks it has."""
    if group is not None:
        return (group.get_group(), group.size()) if hasattr(group, "get_local_rank") else (group, group.size())
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return None, torch.distributed.get_world_size() if distributed else 1


def weighed(
    tensors: Any, weight: float, ends_step: bool | None, columns: WindowColumns, num_items: Mapping[str, int]
) -> Any:
    """A data-parallel rank's batch (a dict) with `weight` and `is_filler`, and `ends_step` where that is known; a filler asks for
    no label.

    `num_items`, the labels of the whole step that are trained on, become () int64: tensors, as they go to the device with the
    batch, and a compiled step does not take each new value for a constant. A number that a collate_fn has set stays.

    Raises:
        DataError: a collate_fn has made something of another's name.
    """
    if isinstance(tensors, MutableMapping):
        made: dict[str, Any] = {"weight": weight, "is_filler": weight == 0}
        if ends_step is not None:
            made["ends_step"] = ends_step
        if clash := [name for name in made if name in tensors]:
            raise DataError(
                f"collate_fn returns {clash[0]!r}, and batches of ranks or optimizer steps hold something of that name; give it "
                "another one"
            )
        tensors.update(made)
        for name, count in num_items.items():
            if name not in tensors:
                tensors[name] = torch.tensor(count)
        if not weight:
            columns.unlabel(tensors, slice(None))
    return tensors
