"""Data sets of Hugging Face's `datasets`, as Arrow has them; which is not imported, but known where the user has it.

Formats (`with_format("torch")`, its columns) say how rows are handed out, not what they are: they change nothing here. A
transform does, and so does a feature that only `datasets` decodes (Image, Audio): such data are read row by row, by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block
from brimful.blocks.plain import without_extensions
from brimful.blocks.ragged import null_in


def is_table(rows: Any) -> bool:
    """Whether an object is a `datasets.Dataset` all of whose rows stand in its Arrow table."""
    return _is(rows, "Dataset") and rows.format["type"] != "custom" and not _decodes(rows.features)


def gives_tables(rows: Any) -> bool:
    """Whether an object is a `datasets.IterableDataset` that has Arrow tables by itself: of Python's rows (a generator, a
    function) it makes tables whose types follow from the rows at hand, and differ from one to the next."""
    native = getattr(getattr(rows, "_ex_iterable", None), "iter_arrow", None)
    return _is(rows, "IterableDataset") and native is not None and not _decodes(rows.features or {})


def rows_of(rows: Any) -> Any:
    """A data set of `datasets` in Python's own types, whatever its format; anything else as it is."""
    plain = _is(rows, "IterableDataset") or (_is(rows, "Dataset") and rows.format["type"] != "custom")
    return rows.with_format(None) if plain else rows


def tables_of(rows: Any, size: int) -> Iterator[pa.Table]:
    """The rows of what `gives_tables`, so many at a time, from the first one on."""
    yield from rows.with_format("arrow").iter(batch_size=size)


def stored(block: Block) -> Block:
    """A block in plain types (`rows.plain`), arrays of a fixed shape (Array2D) as tensors."""
    for place, (field, column) in enumerate(zip(block.schema, block.columns)):
        if isinstance(field.type, pa.BaseExtensionType) and hasattr(field.type, "shape") and hasattr(column, "storage"):
            block = block.set_column(place, field.name, _tensors(column, field.type))
    return without_extensions(block)


def _tensors(column: pa.ExtensionArray, kind: Any) -> pa.Array:
    """Tensors of one shape; nested lists where the first dimension is any."""
    if isinstance(kind, pa.FixedShapeTensorType) or None in kind.shape:
        return column if isinstance(kind, pa.FixedShapeTensorType) else column.storage
    values = column.storage
    while pa.types.is_list(values.type):
        values = values.flatten()
    valid = ~null_in(column)
    flat = pa.FixedSizeListArray.from_arrays(values, int(np.prod(kind.shape)))
    if not valid.all():
        flat = flat.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, kind.shape), flat)


def _is(rows: Any, name: str) -> bool:
    module = sys.modules.get("datasets")
    return module is not None and isinstance(rows, getattr(module, name))


def _decodes(features: Any) -> bool:
    from datasets.features.features import require_decoding

    return any(require_decoding(feature) for feature in features.values())
