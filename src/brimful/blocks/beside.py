"""Blocks of equally many rows side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block, visible, with_origin
from brimful.core.errors import ORIGIN, DataError


def require_distinct(schemas: Sequence[pa.Schema]) -> None:
    """Refuses data sets side by side that have a column of one name.

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
    """The columns of all of them; a row comes from where it came from in the first one that says it."""
    out = visible(blocks[0])
    for block in blocks[1:]:
        for name in visible(block).schema.names:
            out = out.append_column(name, block.column(name))
    told = next((block for block in blocks if ORIGIN in block.schema.names), blocks[0])
    return with_origin(out, told, np.arange(out.num_rows))


def unequal(one: int, count: str, other: int, other_count: str) -> DataError:
    """What is wrong with two data sets of different numbers of rows."""
    return DataError(
        f"zip_datasets: data set {one} has {count} and data set {other} has {other_count}; they must have equally many: take() "
        "as many of each, or mend the files"
    )
