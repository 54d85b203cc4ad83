"""Units: neighbouring rows with one key, which stay together. On a stream each row carries the number of its unit."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.plan.errors import DataError
from brimful.tables.blocks import UNIT, Block
from brimful.tables.hashes import column_hashes
from brimful.tables.origins import where
from brimful.tables.ragged import array_of, column_of, null_in, numpy_of, with_column

MOST_IN_UNIT: Final = 65_536
"""Rows that a unit may have: all of them are held at once."""

EPOCH_BITS: Final = 40
"""The number of a unit is that in its epoch, and above these bits the epoch: a unit ends with its epoch."""


def key_hashes(block: pa.RecordBatch, key: str) -> NDArray[np.uint64]:
    """A hash of the key of each row, (n,).

    Raises:
        DataError: there is no such column, or a key is null, or has no hash.
    """
    column = column_of(block, key, remedy="; name the column whose neighbouring equal values stay together")
    if column.null_count:
        row = int(np.flatnonzero(null_in(column))[0])
        raise DataError(
            f"units({key!r}): {key!r} is null ({where(block, row)}). Give each row a key, or leave such rows out by "
            f"filter(lambda sample: sample[{key!r}] is not None)"
        )
    return column_hashes(block, key, verb="units")


def unit_numbers(block: pa.RecordBatch) -> NDArray[np.int64]:
    """The number of the unit of each row of a block of a stream, (n,)."""
    numbers: NDArray[np.int64] = numpy_of(block.column(UNIT)) if block.num_rows else np.zeros(0, np.int64)
    return numbers


def with_own_units(block: Block, number: int, count: int) -> Block:
    """A block of one of `count` data sets that are joined: none of its units has the number of one of another's."""
    if UNIT not in block.schema.names:
        return block
    return with_column(block, UNIT, array_of(unit_numbers(block) * count + number))


def begins_unit(numbers: NDArray[np.int64], rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Which of some neighbours begin a unit, by the numbers of their units: the first does.

    Args:
        rows: their row numbers in an index. They rise inside a unit; else it is the same unit once more, as of another epoch.

    >>> begins_unit(np.array([7, 7, 7, 8]), np.array([3, 4, 3, 5])).tolist()
    [True, False, True, True]
    """
    new = numbers[1:] != numbers[:-1]
    if rows is not None:
        new |= rows[1:] <= rows[:-1]
    return np.concatenate([np.ones(min(1, len(numbers)), bool), new])


def refuse_split(valid: NDArray[np.bool_], numbers: NDArray[np.int64], key: str | None) -> None:
    """Refuses a split of rows by the values of a key that has other values now than when it said which neighbours are units.

    Args:
        valid: which rows are on one of the sides.
        numbers: those of their units.
    """
    if ((numbers[1:] == numbers[:-1]) & (valid[1:] != valid[:-1])).any():
        raise DataError(
            f"train_valid_split parts a unit of {key!r}: {key!r} has other values than when units was called. Split before you "
            "change the column"
        )


def too_long(key: str, place: str) -> DataError:
    """The error for a unit without an end."""
    return DataError(
        f"units({key!r}): more than {MOST_IN_UNIT:,} neighbouring rows have one key ({place}), and the rows of a unit are held "
        "together. Name another column, or leave units out"
    )
