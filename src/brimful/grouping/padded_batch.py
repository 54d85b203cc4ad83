"""A padded batch through a model in groups of like length, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from brimful.core.own_keys import OWN_KEYS
from brimful.grouping.bridges import PADDED_LEFT, token_ends
from brimful.grouping.calls import Outputs
from brimful.grouping.collection import Collection, regrouped
from brimful.grouping.groupers import OptimalGroups
from brimful.grouping.padded_groups import PaddedGroups
from brimful.grouping.rows import Tensor
from brimful.plan.errors import names_of
from brimful.plan.plan import IntArray

MODEL_INPUTS: Final = ("input_ids", "inputs_embeds", "attention_mask", "token_type_ids", "position_ids")
"""`group_apply` passes those of these that are in the batch to the model by default."""
LEFT_OUT: Final = ("labels", "shift_labels", "special_tokens_mask", *OWN_KEYS)
"""It never passes these by default. The user must name or leave out any other tensor."""


def group_apply(
    model: Callable[..., Any],
    batch: Mapping[str, Any],
    num_groups: int,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Outputs | None = None,
    cost: Callable[[int], float] | None = None,
) -> Any:
    """Runs `model(**batch)` without its labels, in at most `num_groups` groups of similar length. The result is the
    same, with less padding to compute.

    The groups are those of least cost. The result has the shape and order of the whole batch, with 0 where it has no
    token. Gradients are those of the whole batch. Batch norm in training is an exception, as with `Collection.apply`. A
    model that looks at several samples or at padding is another exception.

    Args:
        model: takes tensors by name, padded on the right, and ignores padding.
        batch: a batch with `attention_mask` (B, L). Tensors that begin with (B, L) are cut with it. Others, (B, ...),
            have one value a sample. Keys that a model gets by default may also be (1, L), such as positions.
        num_groups: the largest number of groups. 4 groups give most of the gain.
        inputs: the keys that the model gets. By default, these are input_ids, inputs_embeds, attention_mask,
            token_type_ids and position_ids, if they exist. If the batch has other tensors, name all inputs here, or
            leave those tensors out. Lengths, weights, special_tokens_mask and labels are never passed by default,
            because a mean loss differs in each group.
        outputs: the axes of the results, as in `Collection.apply`. `seq` is the axis of tokens. The default is "seq
            ..." for the tensor that the model returns, or for its logits or last_hidden_state. Use "..." if that has
            one row a sample, and {"pooler_output": "..."} for another entry.
        cost: cost(padded length) of one sample. The default is the length.
    Raises:
        ValueError: the batch has no attention_mask or no row. Or a tensor is unknown or not of this batch, or rows are
            padded on the left. Or a result has another shape.
        TypeError: the batch is not a dict, or a value is not a tensor.
    Price: a copy of inputs and outputs. On a GPU, one wait for the lengths.

    >>> import torch
    >>> embedding = torch.nn.Embedding(10, 4)
    >>> batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    >>> group_apply(lambda input_ids, attention_mask: embedding(input_ids), batch, 2).shape
    torch.Size([2, 3, 4])
    """
    mask = _mask_of(batch)
    tensors = {name: _input(name, batch[name], mask) for name in _inputs_of(batch, inputs)}
    dims = {name: "seq ..." if tensor.shape[:2] == mask.shape else "..." for name, tensor in tensors.items()}
    whole = Collection.from_padded(tensors, dims, {"seq": _lengths(mask)})
    grouped = whole.group(OptimalGroups("seq", num_groups, cost=cost))
    wanted = "seq ..." if outputs is None else outputs
    made = grouped.apply(_main_of(model) if isinstance(wanted, str) else model, outputs=wanted)
    width = PaddedGroups(whole.partition, {"seq": np.array([mask.shape[1]])})
    if isinstance(made, Collection):
        return regrouped(made, width).groups[0]
    return tuple(None if one is None else regrouped(one, width).groups[0] for one in made)


def _mask_of(batch: Mapping[str, Any]) -> Tensor:
    """The mask (B, L) of a batch."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"group_apply takes a batch as a dict with input_ids and attention_mask (got {type(batch).__name__})"
        )
    if "attention_mask" not in batch:
        raise ValueError(f"group_apply needs attention_mask (B, L) in the batch (got {', '.join(map(str, batch))})")
    mask = batch["attention_mask"]
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask must be a tensor (B, L) (got {type(mask).__name__})")
    if mask.ndim != 2 or not len(mask):
        raise ValueError(f"attention_mask must be (B, L), of at least 1 row (got shape {tuple(mask.shape)})")
    return mask


def _inputs_of(batch: Mapping[str, Any], inputs: Sequence[str] | None) -> Sequence[str]:
    """The keys of a batch that the model gets."""
    if inputs is not None:
        names = names_of("inputs", inputs)
        if not names:
            raise ValueError("inputs must name at least 1 key of the batch (got none)")
        if missing := [name for name in names if name not in batch]:
            raise ValueError(f"inputs names {missing[0]!r}, but the batch has {', '.join(map(str, batch))}")
        return names
    for name, value in batch.items():
        if name not in MODEL_INPUTS and name not in LEFT_OUT and isinstance(value, Tensor | np.ndarray):
            raise ValueError(
                f"group_apply does not know whether the model takes {name!r}: name all that it takes in inputs= (by default "
                f"{', '.join(MODEL_INPUTS)}, and no labels)"
            )
    return [name for name in MODEL_INPUTS if batch.get(name) is not None]


def _input(name: str, tensor: Any, mask: Tensor) -> Tensor:
    """A tensor of a batch, (B, ...)."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"input {name!r} must be a tensor (got {type(tensor).__name__})")
    shape, (rows, width) = tuple(tensor.shape), mask.shape
    if name in MODEL_INPUTS and shape == (1, width):
        return tensor.expand(rows, width)
    if shape[:1] != (rows,) or (name in MODEL_INPUTS and shape[:2] != (rows, width)):
        begins = f"({rows}, {width})" if name in MODEL_INPUTS else f"({rows})"
        raise ValueError(f"input {name!r} has shape {shape}, but must begin with {begins}, as attention_mask does")
    return tensor


def _lengths(mask: Tensor) -> IntArray:
    """The length of each row, up to its last token."""
    lengths = token_ends(mask)
    left = np.flatnonzero((lengths > 0) & (mask[:, :1] == 0).all(1).cpu().numpy())
    if len(left):
        raise ValueError(f"row {left[0]:,} of attention_mask begins with padding; {PADDED_LEFT}")
    return lengths


def _main_of(model: Callable[..., Any]) -> Callable[..., Any]:
    """A model that returns its main tensor, where it returns a dict of them."""

    def run(**tensors: Any) -> Any:
        result = model(**tensors)
        if not isinstance(result, Mapping):
            return result
        for name in ("logits", "last_hidden_state"):
            if name in result:
                return result[name]
        first = next((name for name, value in result.items() if isinstance(value, Tensor) and value.ndim), "logits")
        raise ValueError(
            f"the model returns {', '.join(map(str, result))}; say in outputs= what is wanted of these, such as "
            f'outputs={{"{first}": "..."}}'
        )

    return run
