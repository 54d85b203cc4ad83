"""Batches that were padded elsewhere: as a collection, and through a model in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from brimful.core.errors import names_of
from brimful.grouping.calls import Outputs, applied
from brimful.grouping.frame import Frame, framed
from brimful.grouping.groupers import OptimalGroups, checked
from brimful.grouping.held import Held, columns_with, regrouped
from brimful.grouping.keys import texts_of
from brimful.grouping.language import name_in, parse
from brimful.grouping.measure import IntArray
from brimful.grouping.resolve import picked, resolved
from brimful.grouping.rows import Tensor
from brimful.plan.plan import one_length

MODEL_INPUTS: Final = ("input_ids", "inputs_embeds", "attention_mask", "token_type_ids", "position_ids")
"""What `group_apply` hands to a model by default, of these what there is."""
LEFT_OUT: Final = (
    *("labels", "shift_labels", "special_tokens_mask", "lengths"),
    *("weight", "is_filler", "num_items_in_batch", "sample_weights"),
)
"""What it does not, though it is there; of other tensors it has to be told."""


def group_apply(
    model: Callable[..., Any],
    batch: Mapping[str, Any],
    num_groups: int,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Outputs | None = None,
    cost: Callable[[int], float] | None = None,
) -> Any:
    """`model(**batch)` without its labels, run in at most `num_groups` groups of like length: the same result, less padding
    computed.

    The groups are those of least cost. The result has the shape of the whole batch, in its order, with 0 where it has no token.
    Gradients are those of the whole batch. What holds of `Collection.apply` holds here: not of batch norm in training, nor of
    anything else that looks at several samples or at padding.

    Args:
        model: takes tensors by name, padded on the right, and looks at no padding.
        batch: with `attention_mask` (B, L); tensors that begin with (B, L) are cut with it, others, (B, ...), are a value a
            sample. Of those that a model takes by default, positions may be (1, L).
        num_groups: most groups; 4 give most of what there is to gain.
        inputs: keys that the model gets; by default input_ids, inputs_embeds, attention_mask, token_type_ids and position_ids,
            as far as they are there. Another tensor of the batch must be named or left out of it, but for those that are no
            input: lengths, weights, special_tokens_mask, and labels, as a loss that is a mean is another one in each group.
        outputs: what comes out, as in `Collection.apply`, `seq` being the tokens; by default "seq ..." of the tensor that the
            model returns, or of its logits or last_hidden_state; "..." where that is a row a sample. {"pooler_output": "..."}
            of others.
        cost: cost(padded length) of one sample; by default the length.
    Raises:
        ValueError: no attention_mask, a tensor that is not known or not of this batch, rows that are padded on the left, no
            row at all, or a result of another shape.
        TypeError: a batch that is no dict, or what is no tensor.
    Price: a copy of inputs and outputs; on a GPU one wait for the lengths.

    >>> import torch
    >>> embedding = torch.nn.Embedding(10, 4)
    >>> batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    >>> group_apply(lambda input_ids, attention_mask: embedding(input_ids), batch, 2).shape
    torch.Size([2, 3, 4])
    """
    mask = _mask_of(batch)
    tensors = {name: _input(name, batch[name], mask) for name in _inputs_of(batch, inputs)}
    dims = {name: "seq ..." if tensor.shape[:2] == mask.shape else "..." for name, tensor in tensors.items()}
    held = held_of_groups([tensors], dims, {"seq": _lengths(mask)}, None, None)
    grouper = OptimalGroups("seq", num_groups, cost=cost)
    partition = checked(grouper.partition(held.count, held.sizes), held.count)
    grouped = regrouped(held, framed(partition, held.sizes))
    wanted = "seq ..." if outputs is None else outputs
    made = applied(grouped, _main_of(model) if isinstance(wanted, str) else model, None, wanted, None, None)
    whole = Frame(held.groups.partition, {"seq": np.array([mask.shape[1]])})
    if isinstance(made, Held):
        return regrouped(made, whole).tree(0)
    return tuple(None if one is None else regrouped(one, whole).tree(0) for one in made)


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
    """What of a batch the model gets."""
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


def held_of_groups(
    groups: Sequence[Any],
    dims: Any,
    lengths: Mapping[str, Any],
    partition: Sequence[Sequence[int]] | None,
    pad_values: Any,
) -> Held:
    """What a collection of padded groups holds; see `Collection.of_groups`."""
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise TypeError(f"lengths takes a dict of lengths by name, such as {{'seq': [3, 1]}} (got {lengths!r})")
    on_host = {name: column.cpu() if isinstance(column, Tensor) else column for name, column in lengths.items()}
    sizes = {name_in(name): one_length(column, "lengths") for name, column in on_host.items()}
    texts = texts_of(dims)
    tensors = picked(groups, texts, "the batch")
    counts = [_num_samples(path, tensor) for path, found in tensors.items() for tensor in found][: len(groups)]
    count = sum(counts)
    if not count:
        raise ValueError("a collection needs at least 1 sample (got none)")
    if partition is None:
        partition = [group.tolist() for group in np.split(np.arange(count), np.cumsum(counts)[:-1])]
    for name, column in sizes.items():
        if len(column) != count:
            raise ValueError(f"lengths of {name!r} are for {len(column):,} samples, and the batch has {count:,}")
    frame = framed(checked(partition, count), sizes)
    frame = Frame(frame.partition, {**frame.extents, **_extents(texts, tensors, sizes)})
    axes = {path: resolved(path, text, tensors[path], sizes, {}, frame, "the batch") for path, text in texts.items()}
    columns = columns_with({path: (axes[path], tuple(tensors[path])) for path in texts}, pad_values)
    return Held(count, columns, sizes, {}, frame)


def _num_samples(path: str, tensor: Tensor) -> int:
    if not tensor.ndim:
        raise ValueError(f"the batch, key {path!r}, must have an axis of samples first (got shape ())")
    return len(tensor)


def _extents(
    texts: Mapping[str, str], tensors: Mapping[str, Sequence[Tensor]], sizes: Mapping[str, IntArray]
) -> dict[str, IntArray]:
    """How far each group is padded, by name: read off the first axis that is the name itself."""
    found: dict[str, IntArray] = {}
    for path, text in texts.items():
        pattern = parse(text)
        for place, rule in enumerate(pattern):
            if isinstance(rule, str) and rule in sizes and rule not in found:
                axis = place - len(pattern) if ... in pattern[:place] else place + 1
                if all(-tensor.ndim <= axis < tensor.ndim for tensor in tensors[path]):
                    found[rule] = np.array([tensor.shape[axis] for tensor in tensors[path]], np.int64)
    return found


def _lengths(mask: Tensor) -> IntArray:
    """How far each row reaches: up to its last token."""
    real = mask != 0
    width = mask.shape[1]
    lengths = ((torch.arange(1, width + 1, device=mask.device) * real).amax(1) if width else real.sum(1)).cpu().numpy()
    left = np.flatnonzero((lengths > 0) & ~real[:, :1].any(1).cpu().numpy())
    if len(left):
        raise ValueError(
            f"row {left[0]:,} of attention_mask begins with padding; groups are padded on the right: make the batch with "
            "tokenizer.padding_side = 'right', or with pad_side='right' where brimful makes it"
        )
    found: IntArray = lengths.astype(np.int64)
    return found


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
