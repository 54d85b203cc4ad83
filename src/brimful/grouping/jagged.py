"""Jagged nested tensors, to and from the rows of a collection: nothing is copied that lies as it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from brimful.grouping.held import Held, columns_with, rows_by_path
from brimful.grouping.keys import texts_of, tree_of
from brimful.grouping.language import Dims, num_leading, parse, value_of
from brimful.grouping.measure import IntArray, expanded
from brimful.grouping.resolve import checked_rules, picked
from brimful.grouping.rows import Tensor


def nested(held: Held) -> Any:
    """Tensors of layout torch.jagged; those with the same ragged dimension share their offsets.

    Raises:
        ValueError: a key with a ragged dimension that is not the first axis, or with several.
    """
    offsets: dict[Any, tuple[Tensor, int, int]] = {}
    found = []
    for path, rows in rows_by_path(held).items():
        dims = held.columns[path].dims
        if not num_leading(dims):
            found.append((path, rows))
            continue
        if num_leading(dims) > 1:
            raise ValueError(
                f"key {path!r}: a nested tensor of layout torch.jagged has one ragged dimension, the first after that of the "
                f"samples (got {num_leading(dims)} axes up to the last ragged one); take other keys"
            )
        if dims[0] not in offsets:
            lengths = value_of(dims[0], held.sizes)
            bounds = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))).to(rows.device)
            offsets[dims[0]] = bounds, int(lengths.min()), int(lengths.max())
        bounds, least, most = offsets[dims[0]]
        found.append((path, torch.nested.nested_tensor_from_jagged(rows, bounds, min_seqlen=least, max_seqlen=most)))
    return tree_of(found)


def held_of_nested(batch: Any, dims: Any, pad_values: Any) -> Held:
    """What a collection of the samples of nested tensors holds; see `Collection.from_nested`."""
    texts = texts_of(dims)
    tensors = {path: found[0] for path, found in picked([batch], texts, "the batch").items()}
    sizes: dict[str, IntArray] = {}
    for path, tensor in tensors.items():
        if tensor.is_nested:
            _add_sizes(sizes, tensor, path, texts[path])
        elif not tensor.ndim:
            raise ValueError(f"the batch, key {path!r}, must have an axis of samples first (got shape ())")
    count = len(next(iter(tensors.values())))
    found: dict[str, tuple[Dims, tuple[Tensor, ...]]] = {}
    for path, tensor in tensors.items():
        rules = checked_rules(texts[path], sizes, {})
        rows = _rows_of(tensor)
        lead = int(tensor.is_nested)
        axes = rules[:lead] + tuple(expanded(rules[lead:], rows.shape[1:]))
        fits = len(axes) == lead + rows.ndim - 1 and axes[lead:] == tuple(rows.shape[1:])
        if not fits or len(tensor) != count:
            raise ValueError(
                f"the batch, key {path!r}, has {len(tensor):,} samples with rows of shape {tuple(rows.shape[1:])}, which "
                f"{texts[path]!r} and {count:,} samples do not fit"
            )
        found[path] = tuple(rule for rule in axes if not isinstance(rule, type(...))), (rows,)
    return Held(count, columns_with(found, pad_values), sizes, {})


def _rows_of(tensor: Any) -> Tensor:
    """The rows of all samples; of a nested tensor those that its offsets speak of, a view."""
    if not tensor.is_nested:
        found: Tensor = tensor
        return found
    first, last = tensor.offsets()[[0, -1]].tolist()
    rows: Tensor = tensor.values()
    return rows if (first, last) == (0, len(rows)) else rows[first:last]


def _add_sizes(sizes: dict[str, IntArray], tensor: Tensor, path: str, text: str) -> None:
    """Notes the lengths of a nested tensor under the name of its first axis."""
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
    known: Mapping[str, IntArray] = sizes
    if name in known and (len(known[name]) != len(lengths) or (known[name] != lengths).any()):
        raise ValueError(f"the batch, key {path!r}: {name!r} has other lengths than in the keys before")
    sizes[name] = lengths
