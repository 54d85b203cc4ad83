"""Columns of text. Batches leave out the text that was tokenized, unless they are told to keep it. Without tokens, batches are
planned over its bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from brimful.tables.blocks import Block
from brimful.tables.objects import is_json
from brimful.tables.ragged import is_list, is_text


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
    return is_json(kind) or is_text(kind)
