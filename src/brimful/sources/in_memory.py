"""What users have at hand, as what is read here: data frames as tables, series as lists; and what is to be said of the rest.

Neither pandas nor polars nor `datasets` is imported: an object of theirs is there only where the user has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def rows_at_hand(rows: Any, caller: str) -> Any:
    """A sequence as one that can be indexed by number: an Arrow table for a data frame, a list for a series.

    Of pandas an index that has a name is a column too; one without only numbers the rows.

    Raises:
        TypeError: it is no sequence of samples; with what to do.
    """
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
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
            f"{caller} needs a sequence of samples, such as a list of dicts (got {type(rows).__name__}); "
            "from_iterable takes what can only be iterated over"
        )
    return rows


def refuse_frames(rows: Any) -> None:
    """Refuses, where an iterable is wanted, what iterates over the names of its columns, or over columns."""
    _refuse_several(rows, "from_iterable")
    for module, name in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("polars", "LazyFrame")):
        if _is(rows, module, name):
            lazy = " once it is collected" if name == "LazyFrame" else ""
            raise TypeError(
                f"from_iterable would iterate over the columns of this {name}; from_sequence takes it{lazy}"
            )


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
        f"{caller} got a {type(rows).__name__} of {', '.join(map(repr, list(rows)[:5])) or 'nothing'}: of columns "
        "from_sequence(pyarrow.table(data)) makes rows, and a single sample goes into a list"
    )


def _plain(table: pa.Table) -> pa.Table:
    """A table whose categories are what they stand for."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(field.type.value_type))
    return table


def _is(rows: Any, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(rows, found)
