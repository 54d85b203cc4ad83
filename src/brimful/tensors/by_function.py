"""Rows and a plan to whatever a function of the user's makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from brimful.core.errors import StageError, name_of, where
from brimful.rows.blocks import samples
from brimful.rows.ragged import gather, list_array
from brimful.steps.batch import Batch
from brimful.tensors.columns import Columns, Lists, Objects


def by_function(batch: Batch, columns: Columns, collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """A batch through a function of the user's, such as a Hugging Face collator: its real samples, cut as planned.

    Price: Python, once a sample.
    """
    sizes, arrays = columns.sizes(batch), []
    for column in columns.all:
        if isinstance(column, Lists):
            assert column.follows is not None
            starts = column.starts[batch.numbers] + (0 if batch.pieces is None else batch.pieces.starts)
            cut = gather(column.values, starts, sizes[column.follows])
            arrays.append(list_array(cut.values, cut.offsets))
        else:
            assert isinstance(column, Objects)
            arrays.append(column.values.take(pa.array(column.rows[batch.numbers])))
    chosen = samples(pa.RecordBatch.from_arrays(arrays, [column.name for column in columns.all]))
    try:
        return collate_fn(chosen)
    except Exception as error:
        first = where(batch.window.block, int(batch.window.rows[batch.numbers[0]]))
        raise StageError(
            f"collate_fn={name_of(collate_fn)} failed on {len(chosen):,} samples, the first of them {first}: "
            f"{type(error).__name__}: {error}"
        ) from error
