"""Padded groups and nested tensors to a collection, and a collection to nested tensors. Copies nothing that it need not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from brimful.grouping.collection_data import CollectionData, columns_with, rows_by_path, with_tensors
from brimful.grouping.groupers import checked
from brimful.grouping.keys import picked, texts_of, tree_of
from brimful.grouping.language import Dims, checked_rules, expanded, leading, name_in, parse, value_of
from brimful.grouping.padded_groups import PaddedGroups
from brimful.grouping.rows import Tensor
from brimful.plan.plan import IntArray, one_length

PADDED_LEFT: Final = (
    "groups are padded on the right: make the batch with tokenizer.padding_side = 'right', or with pad_side='right' where "
    "brimful makes it"
)
"""The remedy for padding on the left."""


def data_of_groups(
    batches: Sequence[Any],
    dims: Any,
    lengths: Mapping[str, Any],
    partition: Sequence[Sequence[int]] | None,
    pad_values: Any,
) -> CollectionData:
    """The data of a collection of padded groups; see `Collection.of_groups`."""
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise TypeError(f"lengths takes a dict of lengths by name, such as {{'seq': [3, 1]}} (got {lengths!r})")
    on_host = {name: column.cpu() if isinstance(column, Tensor) else column for name, column in lengths.items()}
    sizes = {name_in(name): one_length(column, "lengths") for name, column in on_host.items()}
    texts = texts_of(dims)
    tensors = picked(batches, texts, "the batch")
    counts = [_num_samples(path, tensor) for path, found in tensors.items() for tensor in found][: len(batches)]
    count = sum(counts)
    if not count:
        raise ValueError("a collection needs at least 1 sample (got none)")
    if partition is None:
        partition = [group.tolist() for group in np.split(np.arange(count), np.cumsum(counts)[:-1])]
    for name, column in sizes.items():
        if len(column) != count:
            raise ValueError(f"lengths of {name!r} are for {len(column):,} samples, and the batch has {count:,}")
    longest = PaddedGroups.of(checked(partition, count), sizes)
    groups = replace(longest, extents={**longest.extents, **_extents(texts, tensors, sizes)})
    return with_tensors(CollectionData(count, {}, sizes, {}, groups), tensors, texts, pad_values, "the batch")


def token_ends(mask: Tensor) -> IntArray:
    """Where the last token of each row of a mask (B, L) ends."""
    real, width = mask != 0, mask.shape[1]
    ends = (torch.arange(1, width + 1, device=mask.device) * real).amax(1) if width else real.sum(1)
    found: IntArray = ends.cpu().numpy().astype(np.int64)
    return found


def refuse_left_padding(batches: Sequence[Any], data: CollectionData) -> None:
    """Refuses padded groups whose lengths cut off tokens, as their masks tell.

    Raises:
        ValueError: an attention_mask has a token beyond the length of its row.
    """
    for batch, members in zip(batches, data.padded_groups.partition):
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if data.sizes and isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == len(members):
            ends = token_ends(mask)
            lengths = np.max([sizes[list(members)] for sizes in data.sizes.values()], axis=0)
            if len(rows := np.flatnonzero(ends > lengths)):
                raise ValueError(
                    f"row {rows[0]:,} of attention_mask has its last token at {ends[rows[0]]:,}, beyond its length of "
                    f"{lengths[rows[0]]:,}; {PADDED_LEFT}"
                )


def _num_samples(path: str, tensor: Tensor) -> int:
    if not tensor.ndim:
        raise ValueError(f"the batch, key {path!r}, must have an axis of samples first (got shape ())")
    return len(tensor)


def _extents(
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


def nested(data: CollectionData) -> Any:
    """Tensors of layout torch.jagged; those with the same ragged dimension share their offsets.

    Raises:
        ValueError: a key with a ragged dimension that is not the first axis, or with several.
    """
    offsets: dict[Any, tuple[Tensor, int, int]] = {}
    found = []
    for path, rows in rows_by_path(data):
        dims = data.columns[path].dims
        axes = len(leading(dims))
        if not axes:
            found.append((path, rows))
            continue
        if axes > 1:
            raise ValueError(
                f"key {path!r}: a nested tensor of layout torch.jagged has one ragged dimension, the first after that of the "
                f"samples (got {axes} axes up to the last ragged one); take other keys"
            )
        if dims[0] not in offsets:
            lengths = value_of(dims[0], data.sizes)
            bounds = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))).to(rows.device)
            offsets[dims[0]] = bounds, int(lengths.min()), int(lengths.max())
        bounds, least, most = offsets[dims[0]]
        found.append((path, torch.nested.nested_tensor_from_jagged(rows, bounds, min_seqlen=least, max_seqlen=most)))
    return tree_of(found)


def data_of_nested(batch: Any, dims: Any, pad_values: Any) -> CollectionData:
    """The data of a collection of nested tensors; see `Collection.from_nested`."""
    texts = texts_of(dims)
    tensors = {path: found[0] for path, found in picked([batch], texts, "the batch").items()}
    sizes: dict[str, IntArray] = {}
    for path, tensor in tensors.items():
        if tensor.is_nested:
            _add_sizes(sizes, tensor, path, texts[path])
        else:
            _num_samples(path, tensor)
    count = len(next(iter(tensors.values())))
    found: dict[str, tuple[Dims, tuple[Tensor, ...]]] = {}
    for path, tensor in tensors.items():
        rules = checked_rules(texts[path], sizes, {})
        rows = _rows_of(tensor)
        lead = int(tensor.is_nested)
        axes = rules[:lead] + tuple(expanded(rules[lead:], rows.shape[1:]))
        fits = axes[lead:] == tuple(rows.shape[1:])
        if not fits or len(tensor) != count:
            raise ValueError(
                f"the batch, key {path!r}, has {len(tensor):,} samples with rows of shape {tuple(rows.shape[1:])}, which "
                f"{texts[path]!r} and {count:,} samples do not fit"
            )
        found[path] = tuple(rule for rule in axes if not isinstance(rule, type(...))), (rows,)
    return CollectionData(count, columns_with(found, pad_values), sizes, {})


def _rows_of(tensor: Any) -> Tensor:
    """The rows of all samples. For a nested tensor: a view of the rows within its offsets."""
    if not tensor.is_nested:
        found: Tensor = tensor
        return found
    first, last = tensor.offsets()[[0, -1]].tolist()
    rows: Tensor = tensor.values()
    return rows if (first, last) == (0, len(rows)) else rows[first:last]


def _add_sizes(sizes: dict[str, IntArray], tensor: Tensor, path: str, text: str) -> None:
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
