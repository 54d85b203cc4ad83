"""Columns of text. Batches leave out the text that was tokenized, unless they are told to keep it. Without tokens, batches are
planned over its bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.plan.errors import DataError
from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.origins import HIDDEN, where
from brimful.tables.ragged import column_of, is_list, list_array, null_in, offsets_in, with_column


def texts_in(schema: pa.Schema, names: Collection[str]) -> list[str]:
    """The columns of these names that hold text, or conversations: a user's function may have put numbers in their place."""
    return [field.name for field in schema if field.name in names and _is_text(field.type)]


def schema_without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """A schema without those."""
    gone = texts_in(schema, names)
    return pa.schema([field for field in schema if field.name not in gone])


def why_missing(error: Exception, names: Collection[str]) -> str:
    """What to do where a function did not find text of these names; "" where the error is another one.

    >>> why_missing(KeyError("text"), ["text"])
    ' (batches leave out text that was tokenized; keep_text=True keeps it)'
    """
    missed = isinstance(error, KeyError) and error.args and error.args[0] in names
    return " (batches leave out text that was tokenized; keep_text=True keeps it)" if missed else ""


@dataclass(frozen=True)
class TokenizedText:
    """The columns of text that was tokenized, and whether windows hold them nonetheless.

    They are in no checksum, and no window is smaller for them: a state, and the order of the data, are the same with them.
    """

    names: tuple[str, ...] = ()
    kept: bool = False

    def without(self, block: Block) -> Block:
        """A block without them. Nothing is copied."""
        found = texts_in(block.schema, self.names) if self.names else []
        return block.drop_columns(found) if found else block

    def held(self, block: Block) -> Block:
        """A block as a window holds it."""
        return block if self.kept else self.without(block)


def _is_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return bool(pa.types.is_struct(kind.value_type))
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def bytes_of(column: str) -> str:
    """The name of the hidden column."""
    return f"{HIDDEN}bytes of {column}"


@dataclass(frozen=True)
class TextBytes(Blockwise):
    """Adds the UTF-8 bytes of a text column, as a hidden column of lists. Price: 5 ns a row; no byte is copied."""

    verb = ""

    column: str

    @property
    def streamed_by(self) -> str:
        return self.upstream.streamed_by or "map_batches_in_order"

    def apply(self, block: Block) -> Block:
        array = column_of(block, self.column)
        if pa.types.is_dictionary(array.type) or pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_null(array.type)):
            raise DataError(f"column {self.column!r} must be text (got {array.type}; {where(block, 0)})")
        null = null_in(array)
        if array.null_count == len(array):
            found = list_array(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64), null)
        else:
            offsets, data = offsets_in(array), array.buffers()[2]
            values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            found = list_array(values[offsets[0] : offsets[-1]], offsets - offsets[0], null)
        return with_column(block, bytes_of(self.column), found)
