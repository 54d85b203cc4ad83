"""Rows and a plan to whatever a function of the user's makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from brimful.batching.batch import Batch
from brimful.blocks.blocks import Block, Sample, samples, with_origin
from brimful.blocks.ragged import list_array
from brimful.core.drawn import drawing, generators_of
from brimful.core.errors import StageError, name_of, where
from brimful.core.once import once, settings_of
from brimful.tensors.columns import Columns, Lists, Objects

_KEY: Final = b"brimful_key"
"""Of a block's metadata: the key of its batch."""


def rows_of(batch: Batch, columns: Columns) -> Block:
    """The real samples of a batch, cut as planned, with their origins. Price: about 5 ns a token."""
    sizes, arrays = columns.sizes(batch), []
    for column in columns.all:
        if isinstance(column, Lists):
            assert column.follows is not None
            starts = 0 if batch.pieces is None else batch.pieces.starts
            cut = column.cut(batch.numbers, starts, sizes[column.follows])
            arrays.append(list_array(cut.values, cut.offsets))
        else:
            assert isinstance(column, Objects)
            arrays.append(column.values.take(pa.array(column.rows[batch.numbers])))
    rows = pa.RecordBatch.from_arrays(arrays, [column.name for column in columns.all])
    located = with_origin(rows, batch.window.block, batch.window.rows[batch.numbers])
    return located.replace_schema_metadata({_KEY: str(batch.key)})


@dataclass(frozen=True)
class Collate:
    """Calls a function such as a Hugging Face collator with the samples of a batch. Price: Python, once a sample.

    Args:
        keyed: what it draws at random is keyed by the batch. Not where other threads run beside it: they share generators.
    """

    collate_fn: Callable[[list[Sample]], Any]
    keyed: bool = True

    def __call__(self, rows: Block) -> Any:
        chosen = samples(rows)
        try:
            if not self.keyed:
                return self.collate_fn(chosen)
            with drawing(int(rows.schema.metadata[_KEY]), self._generators):
                return self.collate_fn(chosen)
        except Exception as error:
            raise StageError(
                f"{self.called_as} failed on {len(chosen):,} samples, the first of them {where(rows, 0)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def _generators(self) -> list[Any]:
        return generators_of(self.collate_fn)

    @property
    def called_as(self) -> str:
        return f"collate_fn={name_of(self.collate_fn)}"
