"""Data of other libraries in Arrow: data frames as tables, series as lists, data sets of Hugging Face as they keep them; and
what to say of the rest.

pandas, polars and `datasets` are never imported here: an object of theirs exists only where the user has imported them.

Formats of `datasets` (`with_format("torch")`, its columns) say how rows are handed out, not what they are: they change nothing.
A transform does, and so does a feature that only `datasets` decodes (Image, Audio): such data are read row by row, by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brimful.tables.arrays import array_type, composed, kind_of
from brimful.tables.blocks import Block
from brimful.tables.plain import without_extensions
from brimful.tables.ragged import null_in, numpy_of


def rows_at_hand(rows: Any, caller: str) -> Any:
    """A sequence as one that can be indexed by number: an Arrow table for a data frame, a list for a series.

    Of pandas an index that has a name is a column too; one without only numbers the rows.

    Raises:
        TypeError: it is no sequence of samples; with what to do.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        names = rows.column_names
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ValueError(
                f"{caller} got a table with two columns {twice[0]!r}; rename one (rename_columns), or drop it"
            )
        return rows
    if _is(rows, "pandas", "DataFrame"):
        named = any(name is not None for name in rows.index.names)
        return _plain(pa.Table.from_pandas(rows, preserve_index=named).replace_schema_metadata())
    if _is(rows, "polars", "DataFrame"):
        return _plain(rows.to_arrow())
    if _is(rows, "pandas", "Series") or _is(rows, "polars", "Series"):
        return rows.to_list()
    _refuse_several(rows, caller)
    if _is(rows, "polars", "LazyFrame"):
        raise TypeError(f"{caller} got a LazyFrame, which has no rows yet: collect() them, or write and read files")
    if isinstance(rows, str | bytes) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise TypeError(
            f"{caller} needs a sequence of samples, such as a list of dicts (got {type(rows).__name__}). "
            "Use from_iterable for data that can only be iterated over"
        )
    return rows


def refuse_frames(rows: Any) -> None:
    """Refuses, where an iterable is wanted, what iterates over the names of its columns, or over columns."""
    _refuse_several(rows, "from_iterable")
    for module, name in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("polars", "LazyFrame")):
        if _is(rows, module, name):
            lazy = " after collect()" if name == "LazyFrame" else ""
            raise TypeError(f"from_iterable would iterate over the columns of this {name}. Use from_sequence{lazy}")


def _refuse_several(rows: Any, caller: str) -> None:
    """Refuses a mapping: of data sets, one of which is meant; or of columns."""
    if not isinstance(rows, Mapping):
        return
    if _is(rows, "datasets", "DatasetDict") or _is(rows, "datasets", "IterableDatasetDict"):
        names = ", ".join(map(repr, rows))
        first = next(iter(rows), "train")
        right = "from_iterable" if _is(rows, "datasets", "IterableDatasetDict") else "from_sequence"
        raise TypeError(
            f"{caller} got several data sets, a {type(rows).__name__} of {names}: {right}(data[{first!r}]) takes one"
        )
    raise TypeError(
        f"{caller} got a {type(rows).__name__} of {', '.join(map(repr, list(rows)[:5])) or 'nothing'}. For columns, "
        "use from_sequence(pyarrow.table(data)). Put a single sample into a list"
    )


def _plain(table: pa.Table) -> pa.Table:
    """A table whose categories are what they stand for."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(field.type.value_type))
    return table


# -- datasets -----------------------------------------------------------------------------------------------------------


def is_table(rows: Any) -> bool:
    """Whether an object is a `datasets.Dataset` all of whose rows stand in its Arrow table."""
    return _is(rows, "datasets", "Dataset") and rows.format["type"] != "custom" and not _decodes(rows.features)


def gives_tables(rows: Any) -> bool:
    """Whether an object is a `datasets.IterableDataset` that has Arrow tables by itself: of Python's rows (a generator, a
    function) it makes tables whose types follow from the rows at hand, and differ from one to the next."""
    native = getattr(getattr(rows, "_ex_iterable", None), "iter_arrow", None)
    return _is(rows, "datasets", "IterableDataset") and native is not None and not _decodes(rows.features or {})


def rows_of(rows: Any) -> Any:
    """A data set of `datasets` in Python's own types, whatever its format; anything else as it is."""
    plain = _is(rows, "datasets", "IterableDataset") or (
        _is(rows, "datasets", "Dataset") and rows.format["type"] != "custom"
    )
    return rows.with_format(None) if plain else rows


def in_epoch(rows: Any, epoch: int, change: Callable[[Any], Any] = lambda rows: rows) -> Any:
    """The user's object, changed, as it is in an epoch: it is told the number, and so is what was made of it, if they want it
    (`set_epoch` of `datasets` and of torch)."""
    made = change(rows)
    for one in (rows,) if made is rows else (rows, made):
        if callable(tell := getattr(one, "set_epoch", None)):
            tell(epoch)
    return made


def tables_of(rows: Any, size: int, epoch: int) -> Iterator[pa.Table]:
    """The rows of what `gives_tables`, so many at a time, from the first one of an epoch on."""
    yield from in_epoch(rows, epoch, lambda rows: rows.with_format("arrow")).iter(batch_size=size)


def stored(block: Block) -> Block:
    """A block in plain types (`rows.plain`), arrays (Array2D) in the types of `tables.arrays`."""
    for place, (field, column) in enumerate(zip(block.schema, block.columns)):
        if isinstance(field.type, pa.BaseExtensionType) and hasattr(field.type, "shape") and hasattr(column, "storage"):
            block = block.set_column(place, field.name, _tensors(column, field.type))
    return without_extensions(block)


def _tensors(column: pa.ExtensionArray, kind: Any) -> pa.Array:
    """Arrays of the shape that the type says, whose first dimension may be ragged."""
    if kind_of(column.type) is not None:
        return column
    values, null = column.storage, null_in(column)
    while pa.types.is_list(values.type):
        values = values.flatten()
    valid = ~null
    if None in kind.shape:
        counts = numpy_of(pc.list_value_length(column.storage).fill_null(0))
        shapes = np.column_stack((counts, np.tile(kind.shape[1:], (len(counts), 1)))).astype(np.int64)
        same = len(values) == shapes.prod(axis=1).sum() and kind.shape[0] is None
        return composed(values, shapes, null, array_type(values.type, kind.shape)) if same else column.storage
    flat = pa.FixedSizeListArray.from_arrays(values, int(np.prod(kind.shape)))
    if not valid.all():
        flat = flat.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, kind.shape), flat)


def _decodes(features: Any) -> bool:
    """Whether there are features that only `datasets` decodes: Json is a type of Arrow's."""
    from datasets.features.features import require_decoding

    if isinstance(features, Mapping):
        return any(map(_decodes, features.values()))
    inner = getattr(features, "feature", None)
    if inner is not None:
        return _decodes(inner)
    return type(features).__name__ != "Json" and bool(require_decoding(features))


def _is(rows: Any, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(rows, found)
