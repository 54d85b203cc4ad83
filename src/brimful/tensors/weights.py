"""What a data-parallel rank's batch has beside its tensors, and rows that ask for no label."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from brimful.tensors.columns import Columns
from brimful.tensors.unpadded import Unpadded


def weighed(tensors: Any, weight: float, columns: Columns, num_items: int | None = None) -> Any:
    """A data-parallel rank's batch (a dict) with `weight` and `is_filler`; a filler asks for no label.

    `num_items`, the labels of the whole step that are trained on, becomes `num_items_in_batch` () int64: a tensor, as it
    goes to the device with the batch, and a compiled step does not take each new value for a constant.
    """
    if isinstance(tensors, MutableMapping):
        tensors.update(weight=weight, is_filler=weight == 0)
        if num_items is not None:
            tensors.update(num_items_in_batch=torch.tensor(num_items))
        if not weight:
            unlabel(tensors, slice(None), columns)
    return tensors


def unlabel(out: MutableMapping[str, Any], rows: slice, columns: Columns) -> None:
    """Rows that ask for no label: -100 where labels are classes; anything else has its weight to go by."""
    labels = out.get("labels")
    if isinstance(labels, Unpadded):
        if not labels.dtype.is_floating_point and labels.dtype != torch.bool:
            out["labels"] = labels.without(rows)
    elif isinstance(labels, torch.Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool:
        if labels.is_nested:
            labels = labels.values()
        labels[rows] = int(columns.fill("labels"))
