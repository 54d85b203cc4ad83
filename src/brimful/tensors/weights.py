"""What a data-parallel rank's batch has beside its tensors, and rows that ask for no label."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from brimful.blocks.ragged import is_labels
from brimful.core.errors import DataError
from brimful.tensors.columns import Columns
from brimful.tensors.unpadded import Unpadded


def weighed(
    tensors: Any, weight: float, ends_step: bool | None, columns: Columns, num_items: Mapping[str, int | None]
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
            if count is not None and name not in tensors:
                tensors[name] = torch.tensor(count)
        if not weight:
            unlabel(tensors, slice(None), columns)
    return tensors


def unlabel(out: MutableMapping[str, Any], rows: slice, columns: Columns) -> None:
    """Rows that ask for no label: -100 wherever labels are classes; anything else has its weight to go by."""
    for name in [name for name in out if isinstance(name, str) and is_labels(name)]:
        labels = out[name]
        if (
            not isinstance(labels, Unpadded | torch.Tensor)
            or labels.dtype.is_floating_point
            or labels.dtype == torch.bool
        ):
            continue
        if isinstance(labels, Unpadded):
            out[name] = labels.without(rows)
        else:
            (labels.values() if labels.is_nested else labels)[rows] = int(columns.fill(name))
