"""Joins several data sets: one after another or mixed, in the columns of all; or side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from brimful.core.facts import Facts, facts_of
from brimful.core.repeat import awaited
from brimful.core.stage import Stage
from brimful.plan.errors import DataError
from brimful.tables.blocks import KEY, Block, visible, with_origin
from brimful.tables.origins import ORIGIN, where
from brimful.tables.schema import MisfitError, conform, united


def union_of(stages: Sequence[Stage[Block]], what: str) -> pa.Schema:
    """All columns that the rows of several stages have, with numbers widened.

    Raises:
        DataError: a column has two types without a common one.
    """
    return united(((number, _schema_of(stage)) for number, stage in enumerate(stages)), what)


def _schema_of(stage: Stage[Block]) -> pa.Schema:
    """The columns of a stage, by its first row if need be; none where it has no row, or where it fails first."""
    schema: pa.Schema | None = facts_of(stage).row_schema()
    if schema is not None:
        return schema
    with suppress(Exception), awaited(stage, stage.start(0)) as items:
        return next((visible(block).schema for block, _ in items if block.num_rows), pa.schema([]))
    return pa.schema([])


def nulls_of(*joined: Facts) -> Callable[[], dict[str, str]]:
    """Of the columns that some of several data sets lack: which ones, in words."""

    def found() -> dict[str, str]:
        schemas = [one.schema() for one in joined]
        known = [(number, schema.names) for number, schema in enumerate(schemas) if schema]
        lacking = {}
        for name in dict.fromkeys(name for _, names in known for name in names):
            if without := [str(number) for number, names in known if name not in names]:
                lacking[name] = f" (null in data set {', '.join(without)})"
        return lacking

    return found


def conformed(block: Block, schema: pa.Schema, what: str, number: int) -> Block:
    """A block of data set `number` in the columns and types of all that `what` joins, with its origins. Where no data set had a
    row in epoch 0 it stays as it is.

    Raises:
        DataError: the schema lacks one of its columns, because its data set had no row in epoch 0; or a value has no equal in the
            common type of its column.
    """
    rows = visible(block)
    if not schema.names or (rows.schema.equals(schema) and KEY not in block.schema.names):
        return block
    try:
        return with_origin(conform(rows, schema), block, np.arange(block.num_rows))
    except MisfitError as error:
        place = where(block, error.row())
        if error.wanted is None:
            raise DataError(
                f"there is a column {error.column!r} ({place}), and no data set had one in epoch 0, where this one had no "
                "row; begin it with a row, or drop the column"
            ) from None
        raise DataError(
            f"{what}: column {error.column!r} is {error.found} in data set {number} and {error.wanted} with the others, which "
            f"has no such value: {error.why} ({place}); convert it (map), or rename or drop it in one of them"
        ) from error


def require_distinct(schemas: Sequence[pa.Schema]) -> None:
    """Refuses to put data sets side by side that share a column name.

    Raises:
        DataError: naming the column and the data sets.
    """
    owners: dict[str, int] = {}
    for number, schema in enumerate(schemas):
        for name in schema.names:
            if owners.setdefault(name, number) != number:
                raise DataError(
                    f"zip_datasets: data sets {owners[name]} and {number} both have a column {name!r}; rename it in one of "
                    f"them: rename({{{name!r}: ...}})"
                )


def beside(blocks: Sequence[Block]) -> Block:
    """The columns of all blocks. A row has its origin from the first block that has one."""
    out = visible(blocks[0])
    for block in blocks[1:]:
        for name in visible(block).schema.names:
            out = out.append_column(name, block.column(name))
    told = next((block for block in blocks if ORIGIN in block.schema.names), blocks[0])
    return with_origin(out, told, np.arange(out.num_rows))


def unequal(one: int, count: str, other: int, other_count: str) -> DataError:
    """The error for two data sets with different numbers of rows."""
    return DataError(
        f"zip_datasets: data set {one} has {count} and data set {other} has {other_count}; they must have equally many: take() "
        "as many of each, or mend the files"
    )
