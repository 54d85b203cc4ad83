"""What a batch weighs: its labels, and the share of its loss in the mean over all that are trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from brimful.core.own_keys import LOSS_WEIGHTS, NUM_ITEMS, NUM_SAMPLES, NUM_SIDES, SUM_OF_WEIGHTS, WEIGHTS
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
    rows = rows_that_count(batch)

    def own() -> torch.Tensor:
        name = loss_labels(batch)
        if name is None:
            raise ValueError(
                f"token_mean needs labels or num_items_in_batch in the batch (got {', '.join(batch) or 'none'})"
            )
        return num_labels(batch[name], rows)

    world_size, count = _counted(batch, NUM_ITEMS, own, loss_sum, process_group)
    return nothing(loss_sum) if rows is False else _weighed_sum(loss_sum, row_weights(batch)) * world_size / count


def sample_mean(token_losses: torch.Tensor, batch: Mapping[str, Any], *, process_group: Any = None) -> torch.Tensor:
    """The mean over samples of each sample's mean loss, so that a long sample counts no more than a short one. The gradient
    averaged over ranks is that of the mean over all samples of the optimizer step.

    The result is W / N x the sum of the samples' mean losses. W is the number of ranks, whose gradients DDP and FSDP average.
    N is the number of samples that have a label, on all ranks. With `sample_weight_column="w"`, each sample's mean is
    multiplied by its weight, and N is the sum of these weights. Weights are numbers of at least 0.

    Labels are integers, one a token, and count if they are not -100. Brimful does not shift them, and neither does this
    function: the loss at place i is that of label i. A causal model predicts label i + 1 at place i, so put a column of zeros
    before its losses:

        losses = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")  # -100 is ignored
        bf.sample_mean(torch.nn.functional.pad(losses, (1, 0)), batch).backward()

    The first label of a row then has no loss. It counts if it is not -100, so call `causal_labels()`, which sets it. Packed
    batches have it already.

    A sample without a label counts for nothing, with `unlabelled="keep"` as with "drop". Neither do copies up to a static shape.
    In a filler (`weight` 0) the result and its gradient are 0, whatever the losses are. If no sample of the step has a label
    or a weight above 0, the result is 0.

    With `pack(overlong="split")` a sample may lie in several pieces, in several batches. A piece has a share of its sample's
    weight: the share of the sample's labels that it has. So a long document counts once, and not once a piece. Batches then have
    `sample_loss_weights`, also without a `sample_weight_column`.

    N is `num_samples_in_batch`, () int64, or `sum_of_weights_in_batch`, () float64, where the batch has it: see
    `Batches.shard` and `micro_batches`, which set it where they set `num_items_in_batch`. Otherwise it is
    `num_samples_on_rank` or `sum_of_weights_on_rank`, or that of the batch, summed over the ranks. This takes one all_reduce
    of 8 bytes, so call it on every rank. A batch of an optimizer step of several without the number is refused.

    Args:
        token_losses: a loss for each token (`reduction="none"`), in the shape of the labels: (B, L), (rows, row_length) if
            packed, or nested. Losses where the label is -100 count for nothing. Or a mean for each sample: (B,), or (p,) for the
            p pieces of packed rows, as labels of one number a sample need it.
        batch: a batch with `labels` or `shift_labels`. Packed batches also need `segment_ids` and `lengths`.
        process_group: as for `token_mean`.
    Raises:
        TypeError: the losses are no tensor, or the batch is no dict.
        ValueError: the batch has no labels. Or the losses have another shape than the labels. Or the batch is part of an
            optimizer step and has neither number. Or it is paired: `token_mean` takes the losses of pairs, (B,).
    Price: a few operations on (B, L), and none that waits for a GPU. In a filler on a GPU, one wait for the loss.
    Source: GRPO's mean over samples (DeepSeekMath), beside the mean over tokens of DAPO.

    >>> import torch
    >>> import brimful as bf
    >>> batch = {"labels": torch.tensor([[1, 2, 3], [4, -100, -100]])}
    >>> losses = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]])
    >>> bf.sample_mean(losses, batch), bf.token_mean((losses * (batch["labels"] != -100)).sum(), batch)
    (tensor(3.), tensor(2.5000))
    >>> rows = [{"input_ids": [1, 2], "labels": [1, 2], "w": 3.0}, {"input_ids": [3, 4], "labels": [-100, 4], "w": 1.0}]
    >>> (batch,) = bf.from_sequence(rows).batch(2, sample_weight_column="w").shard(0, 1)
    >>> batch["sum_of_weights_in_batch"], bf.sample_mean(torch.tensor([[1.0, 3.0], [5.0, 6.0]]), batch)
    (tensor(4., dtype=torch.float64), tensor(3.))
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"sample_mean takes the losses and then the batch, a dict (got {type(batch).__name__}: {batch!r:.40})"
        )
    if not isinstance(token_losses, torch.Tensor):
        raise TypeError(
            f"token_losses must be a tensor, such as cross_entropy(..., reduction='none') gives (got {token_losses!r:.40})"
        )
    if NUM_SIDES in batch:
        raise ValueError(
            f"a batch of layout='paired' has {batch[NUM_SIDES]} rows a sample, and one loss for all of them: give token_mean "
            "these losses, one a sample, (B,)"
        )
    means, has = _sample_means(token_losses, batch)
    rows = rows_that_count(batch)
    counts = _that_count(has, rows)
    weights = _loss_weights(batch, means)
    if weights is not None and weights.shape != means.shape:
        raise ValueError(
            f"the losses are those of {len(means):,} samples, and {LOSS_WEIGHTS} has {weights.numel():,} weights: give "
            "sample_mean the losses of the whole batch, and the batch as it came"
        )

    names = NUM_SAMPLES if weights is None else SUM_OF_WEIGHTS

    def own() -> torch.Tensor:
        if rows is False:
            return torch.zeros((), device=means.device, dtype=torch.int64 if weights is None else means.dtype)
        here = _HERE.running
        if here is None or len(has_here := _have_labels(here.part)) != len(has):
            return _total(counts, weights)
        if not torch.compiler.is_compiling() and not torch.equal(has_here.to(has.device), has):
            raise ValueError(
                "the batch runs in parts, and sample_mean has other labels than the part: nobody knows how many samples of the "
                "whole batch have a label then. Give it the labels of the batch, with the losses in their places: "
                "torch.nn.functional.pad(losses, (1, 0)) for those of the next token. Or say it to a guard with weigh='auto', "
                f'and leave it in the part: guard(batch | {{"{names[1]}": count}})'
            )
        counts_there = _that_count(_have_labels(here.whole), rows_that_count(here.whole))
        of_whole = _total(counts_there, _loss_weights(here.whole, means))
        shared: torch.Tensor = times(of_whole, here.share)
        return shared

    world_size, count = _counted(batch, names, own, means, process_group)
    if rows is False:
        return nothing(token_losses.values() if token_losses.is_nested else token_losses)
    total = torch.where(counts, means if weights is None else means * weights, 0).sum()
    return total * world_size / count.to(total.dtype)


class _Running(NamedTuple):
    """A batch that runs in parts, the part at hand, and its share in the batch."""

    whole: Mapping[str, Any]
    part: Mapping[str, Any]
    share: float


class _Here(threading.local):
    """What this thread runs; None: batches as a whole."""

    running: _Running | None = None


_HERE: Final = _Here()


@contextmanager
def running_part(whole: Any, part: Any, share: float) -> Iterator[None]:
    """Within, the loss of a part is multiplied by its share. So a mean over samples that nobody has counted divides by that share
    of those of the whole batch, whatever the share counts."""
    counted = isinstance(whole, Mapping) and isinstance(part, Mapping) and loss_labels(part) is not None
    around = _HERE.running
    _HERE.running = _Running(whole, part, share) if counted else None
    try:
        yield
    finally:
        _HERE.running = around


def times(number: Any, share: float) -> Any:
    """A share of a number of labels or samples: as precise as can be, since it is seldom whole."""
    if isinstance(number, torch.Tensor):
        number = number.to(torch.float32 if number.device.type == "mps" else torch.float64)
    return number * share


_WORDS: Final = {
    NUM_ITEMS: ("token_mean", "number of labels"),
    NUM_SAMPLES: ("sample_mean", "number of samples that have a label"),
    SUM_OF_WEIGHTS: ("sample_mean", "sum of the weights of samples that have a label"),
}


def _counted(
    batch: Mapping[str, Any],
    names: tuple[str, str],
    own: Callable[[], torch.Tensor],
    loss: torch.Tensor,
    process_group: Any,
) -> tuple[int, torch.Tensor]:
    """The number of ranks, and what is counted on all of them in an optimizer step, above 0: what a sum of losses of this rank is
    multiplied by, and divided by, so that the mean over ranks of all such sums is a mean over what is counted.

    Args:
        names: the keys of that number, on all ranks and on this one.
        own: counts it in the batch.
    """
    on_all, on_rank = names
    ranks, world_size = _group(process_group)
    count = batch.get(on_all)
    if count is not None:
        world_size = world_size or int(getattr(batch.get("weight"), "num_ranks", 1))
    else:
        count = batch.get(on_rank)
        if count is None:
            if "ends_step" in batch:
                mean, what = _WORDS[names]
                raise ValueError(
                    f"the batch is part of an optimizer step (micro_batches), and has neither {on_all} nor {on_rank}: brimful "
                    f"counts labels that the samples have. Give {mean} the {what} in all batches of the step: "
                    f'batch | {{"{on_rank}": count}}'
                )
            count = own()
        world_size = world_size or 1
        if world_size > 1:
            count = torch.as_tensor(count).to(loss.device, copy=True)
            torch.distributed.all_reduce(count, group=ranks)
    count = torch.as_tensor(count).to(loss.device, non_blocking=True)
    return world_size or 1, torch.where(count == 0, 1, count)  # a part of a batch may have a share of a label


def _sample_means(losses: torch.Tensor, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss of each sample, or piece, over its labels, 0 where it has none; and whether it has one, bool, (n,) each."""
    name, labels = _labels(batch)
    a_sample = losses.dim() == 1
    if not a_sample and (
        losses.is_nested != labels.is_nested or (not losses.is_nested and losses.shape != labels.shape)
    ):
        shapes = [f"{tuple(one.shape)}{' (nested)' * one.is_nested}" for one in (losses, labels)]
        raise ValueError(
            f"token_losses must lie as {name!r} does, {shapes[1]} (got {shapes[0]}). Use reduction='none'. If the model predicts "
            "the next token, put a column of zeros before the losses: torch.nn.functional.pad(losses, (1, 0))"
        )
    if not a_sample and not are_classes(labels):
        raise ValueError(
            f"{name!r} are {labels.dtype}, not one integer a token, so nobody can tell them from padding. Give sample_mean the "
            "mean loss of each sample, (B,)"
        )
    counts = _labels_of_samples(batch, labels)
    sums = losses
    if a_sample:
        pass
    elif labels.is_nested:
        jagged: Any = labels
        values, flat = jagged.values(), losses.values()
        if len(flat) != len(values):
            raise ValueError(
                f"token_losses has {len(flat):,} values and {name!r} has {len(values):,}; give a loss for each label"
            )
        sums = _runs(torch.where(values != NOT_TRAINED_ON, flat, 0), jagged.offsets())
    else:
        kept = torch.where(labels != NOT_TRAINED_ON, losses, 0)
        sums = _of_pieces(kept, batch) if _is_packed(batch, labels) else kept.flatten(1).sum(1)
    if len(sums) != len(counts):
        raise ValueError(
            f"token_losses has {len(sums):,} losses, and the batch {len(counts):,} samples; give one a sample, or one a label"
        )
    has = counts > 0
    return torch.where(has, sums if a_sample else sums / counts.clamp(min=1), 0), has


def _labels(batch: Mapping[str, Any]) -> tuple[str, torch.Tensor]:
    """The labels that a loss is taken over, and their name."""
    name = loss_labels(batch)
    labels = None if name is None else batch[name]
    if name is None or not isinstance(labels, torch.Tensor):
        raise ValueError(
            f"sample_mean needs labels, a tensor, in the batch (got {', '.join(map(str, batch)) or 'none'})"
        )
    return name, labels


def _have_labels(batch: Mapping[str, Any]) -> torch.Tensor:
    """Whether each sample, or piece, has a label, bool, (n,)."""
    return _labels_of_samples(batch, _labels(batch)[1]) > 0


def _labels_of_samples(batch: Mapping[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """How many labels each sample, or piece, is trained on, (n,); those that are no integers count, all of them."""
    classes = are_classes(labels)
    if labels.is_nested:
        jagged: Any = labels
        offsets: torch.Tensor = jagged.offsets()
        return _runs(jagged.values() != NOT_TRAINED_ON, offsets) if classes else offsets.diff()
    if _is_packed(batch, labels):
        return _of_pieces(labels != NOT_TRAINED_ON, batch)
    asked = (labels != NOT_TRAINED_ON) if classes else torch.ones_like(labels, dtype=torch.bool)
    return asked.flatten(1).sum(1) if asked.dim() > 1 else asked


def _is_packed(batch: Mapping[str, Any], labels: torch.Tensor) -> bool:
    return "segment_ids" in batch and labels.shape == batch["segment_ids"].shape


def _that_count(has_label: torch.Tensor, rows: torch.Tensor | bool) -> torch.Tensor:
    """Which samples count: those with a label, in rows that count."""
    return has_label if isinstance(rows, bool) else has_label & rows.to(has_label.device)


def _loss_weights(batch: Mapping[str, Any], like: torch.Tensor) -> torch.Tensor | None:
    weights = batch.get(LOSS_WEIGHTS)
    return None if weights is None else torch.as_tensor(weights).to(like)


def _total(counts: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """How many samples count, or the sum of their weights."""
    return counts.sum() if weights is None else torch.where(counts, weights, 0).sum()


def _of_pieces(values: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """The sum of the values of the slots of each piece, (p,): pieces lie end to end in each row, and padding at its end. An empty
    piece has no slot."""
    segments: torch.Tensor = batch["segment_ids"]
    filled = batch["lengths"] > 0
    begins = (segments > 0) & (segments != torch.nn.functional.pad(segments, (1, 0))[:, :-1])
    of_slots = torch.where(segments > 0, begins.flatten().cumsum(0).view_as(segments), 0)  # 0: padding
    return torch.where(filled, _sums(values, of_slots, len(filled) + 1)[filled.cumsum(0)], 0)


def _runs(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The sums of runs of values that lie end to end."""
    places = torch.arange(len(values), device=values.device)
    return _sums(values, torch.bucketize(places, offsets[1:], right=True), len(offsets) - 1)


def _sums(values: torch.Tensor, owners: torch.Tensor, count: int) -> torch.Tensor:
    values = values.long() if values.dtype == torch.bool else values
    return values.new_zeros(count).index_add(0, owners.flatten(), values.flatten())


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
