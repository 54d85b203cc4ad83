"""What padded groups and nested tensors tell of a collection. Copies nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from brimful.grouping.language import Sizes, name_in, parse
from brimful.grouping.rows import Tensor
from brimful.plan.plan import IntArray, one_length

PADDED_LEFT: Final = (
    "groups are padded on the right: make the batch with tokenizer.padding_side = 'right', or with pad_side='right' where "
    "brimful makes it"
)
"""The remedy for padding on the left."""


def lengths_of(lengths: Mapping[str, Any]) -> dict[str, IntArray]:
    """The lengths that a user gave by name, on the host."""
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise TypeError(f"lengths takes a dict of lengths by name, such as {{'seq': [3, 1]}} (got {lengths!r})")
    on_host = {name: column.cpu() if isinstance(column, Tensor) else column for name, column in lengths.items()}
    return {name_in(name): one_length(column, "lengths") for name, column in on_host.items()}


def token_ends(mask: Tensor) -> IntArray:
    """Where the last token of each row of a mask (B, L) ends."""
    real, width = mask != 0, mask.shape[1]
    ends = (torch.arange(1, width + 1, device=mask.device) * real).amax(1) if width else real.sum(1)
    found: IntArray = ends.cpu().numpy().astype(np.int64)
    return found


def refuse_left_padding(batches: Sequence[Any], partition: Sequence[Sequence[int]], sizes: Sizes) -> None:
    """Refuses padded groups whose lengths cut off tokens, as their masks tell.

    Raises:
        ValueError: an attention_mask has a token beyond the length of its row.
    """
    for batch, members in zip(batches, partition):
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if sizes and isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == len(members):
            ends = token_ends(mask)
            lengths = np.max([column[list(members)] for column in sizes.values()], axis=0)
            if len(rows := np.flatnonzero(ends > lengths)):
                raise ValueError(
                    f"row {rows[0]:,} of attention_mask has its last token at {ends[rows[0]]:,}, beyond its length of "
                    f"{lengths[rows[0]]:,}; {PADDED_LEFT}"
                )


def num_samples(path: str, tensor: Tensor) -> int:
    """How many samples a tensor of a batch has."""
    if not tensor.ndim:
        raise ValueError(f"the batch, key {path!r}, must have an axis of samples first (got shape ())")
    return len(tensor)


def extents_of(
    texts: Mapping[str, str], tensors: Mapping[str, Sequence[Tensor]], sizes: Mapping[str, IntArray]
) -> dict[str, IntArray]:
    """The padded length of each group, by name, read off the first axis that is the name itself."""
    found: dict[str, IntArray] = {}
    for path, text in texts.items():
        pattern = parse(text)
        for place, rule in enumerate(pattern):
            if isinstance(rule, str) and rule in sizes and rule not in found:
                axis = place - len(pattern) if ... in pattern[:place] else place + 1
                if all(-tensor.ndim <= axis < tensor.ndim for tensor in tensors[path]):
                    found[rule] = np.array([tensor.shape[axis] for tensor in tensors[path]], np.int64)
    return found


def jagged_rows(tensor: Any) -> Tensor:
    """The rows of all samples. For a nested tensor: a view of the rows within its offsets."""
    if not tensor.is_nested:
        found: Tensor = tensor
        return found
    first, last = tensor.offsets()[[0, -1]].tolist()
    rows: Tensor = tensor.values()
    return rows if (first, last) == (0, len(rows)) else rows[first:last]


def add_jagged_sizes(sizes: dict[str, IntArray], tensor: Tensor, path: str, text: str) -> None:
    """Adds the lengths of a nested tensor, under the name of its first axis."""
    jagged: Any = tensor
    rules = parse(text)
    name = rules[0] if rules else None
    if tensor.layout != torch.jagged or tensor.shape[2:] != jagged.values().shape[1:] or jagged.lengths() is not None:
        raise ValueError(
            f"the batch, key {path!r}, must be a nested tensor of layout torch.jagged, ragged in the first axis after that of "
            "the samples, without holes"
        )
    if not isinstance(name, str):
        raise ValueError(f"the batch, key {path!r}: the first axis of {text!r} must name its ragged dimension")
    lengths = jagged.offsets().diff().cpu().numpy().astype(np.int64)
    if name in sizes and not np.array_equal(sizes[name], lengths):
        raise ValueError(f"the batch, key {path!r}: {name!r} has other lengths than in the keys before")
    sizes[name] = lengths
