"""The columns that a shard has, and the same in the types that are wanted of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.plain import as_plain, inside, plain
from brimful.blocks.ragged import array_of, concat
from brimful.blocks.schema import OF_FILES, UNFIT, UNKNOWN, fits, fitted, named, settled
from brimful.core.errors import DataError
from brimful.sources.reader import Parsed

_LEAVE_OUT: Final = "leave it out by columns="


class Columns:
    """The columns of a shard in the types of a schema; those that it does not have are null.

    Raises:
        DataError: a column is not in the schema (where this is `closed`), is there twice, or is of another kind.
    """

    def __init__(self, found: pa.Schema, schema: pa.Schema, closed: bool) -> None:
        self._schema = schema
        plain = plain_schema(found if closed else pa.schema([field for field in found if field.name in schema.names]))
        for field in plain:
            if field.name not in schema.names:
                raise DataError(
                    f"column {field.name!r} is not in the schema ({', '.join(schema.names)}), which the first shard decides "
                    f"where none is given; {UNKNOWN}"
                )
            if not fits(field.type, schema.field(field.name).type):
                raise DataError(self._unfit(field.name, found))
        self._found, self._plain = found, plain

    def parsed(self, batch: Block, bad: dict[int, str]) -> Parsed:
        """The rows of a batch of the shard; `bad`: what is wrong with some of them."""
        errors = dict(bad)
        blocks: list[Block] = []
        with suppress(*UNFIT):  # of one row, which is found below
            batch = self._in_plain_types(batch)
        pending = [_without(batch.num_rows, bad)]
        while pending:
            rows = pending.pop()
            part = batch if len(rows) == batch.num_rows else batch.take(array_of(rows))
            try:
                blocks.append(self._block(part))
            except UNFIT as error:
                if len(rows) == 1:
                    errors[int(rows[0])] = self._reason(part, error)
                elif len(rows):
                    pending += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
        good = _without(batch.num_rows, errors)
        block = concat(blocks) if self._schema.names else batch.select([]).slice(0, len(good))
        return Parsed(block, good, sorted(errors.items()))

    def _block(self, batch: Block) -> Block:
        return fitted(self._in_plain_types(batch), self._schema)

    def _in_plain_types(self, batch: Block) -> Block:
        fields, arrays = [self._plain.field(name) for name in batch.schema.names], []
        for field, array in zip(fields, batch.columns):
            try:
                arrays.append(as_plain(array, field.type))
            except NotImplementedError as error:
                raise DataError(
                    f"column {field.name!r} is {named(array.type)}, which cannot be read; {_LEAVE_OUT}"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if fields else batch

    def _reason(self, row: Block, error: Exception) -> str:
        for name in row.schema.names:
            try:
                self._block(row.select([name]))
            except UNFIT as found:
                return self._unfit(name, row.schema, str(found))
        return str(error)

    def _unfit(self, name: str, found: pa.Schema, why: str = "") -> str:
        kinds = f"column {name!r} is {named(self._schema.field(name).type)} by the schema but {named(found.field(name).type)}"
        return f"{kinds} here{why and f' ({why})'}; {OF_FILES}"


def _without(rows: int, bad: dict[int, str]) -> NDArray[np.int64]:
    every = np.arange(rows)
    return np.delete(every, list(bad)) if bad else every


def schema_of(found: pa.Schema, columns: tuple[str, ...] | None, where: str) -> pa.Schema | None:
    """What a shard's columns are to the stages after it; None where it has two of a name.

    Raises:
        DataError: it has not all of `columns`.
    """
    for name in columns or ():
        if name not in found.names:
            raise DataError(
                f"there is no column {name!r} ({where}; columns: {', '.join(found.names)}); "
                "correct columns=, or say its type in schema="
            )
    try:
        return settled(plain_schema(pa.schema([field for field in found if columns is None or field.name in columns])))
    except DataError:  # which whoever reads it will meet
        return None


def plain_schema(found: pa.Schema) -> pa.Schema:
    """The columns of a shard without what is peculiar to how they were stored.

    Raises:
        DataError: there are two of a name.

    >>> plain_schema(pa.schema([("a", pa.dictionary(pa.int32(), pa.large_string()))]))
    a: string
    """
    for place, field in enumerate(found):
        if field.name in found.names[:place]:
            raise DataError(
                f"there are two columns {field.name!r}; rename one when the shard is written, or {_LEAVE_OUT}"
            )
    return pa.schema([(field.name, plain(field.type)) for field in found])


# -- damage --------------------------------------------------------------------------------------------------------------


def faults(batch: pa.RecordBatch) -> dict[int, str]:
    """What is wrong with some rows of a batch: texts that are no UTF-8, mostly.

    Raises:
        pa.ArrowException: nothing of it can be had: its parts do not fit together.
    """
    try:
        batch.validate(full=True)
        return {}
    except pa.ArrowInvalid as error:
        try:
            columns = [column.view(_bytes(column.type)) for column in batch.columns]
            pa.RecordBatch.from_arrays(columns, batch.schema.names).validate(full=True)
        except pa.ArrowException:
            raise error from None
    wrong: dict[int, str] = {}
    pending = [np.arange(batch.num_rows)]
    while pending:  # a slice would share with others what lies inside of a list
        rows = pending.pop()
        try:
            batch.take(array_of(rows)).validate(full=True)
        except pa.ArrowInvalid as error:
            if len(rows) == 1:
                wrong[int(rows[0])] = str(error).removesuffix(" at string index 0")
            else:
                pending += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    return wrong


def _bytes(kind: pa.DataType) -> pa.DataType:
    """A type with bytes in place of texts."""
    test: Any = pa.types
    if test.is_string(kind):
        return pa.binary()
    if test.is_large_string(kind):
        return pa.large_binary()
    if test.is_string_view(kind):
        return pa.binary_view()
    if test.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _bytes(kind.value_type), kind.ordered)
    return inside(kind, _bytes)
