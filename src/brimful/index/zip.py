"""Several data sets side by side, any row at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.stage import refuse_originals
from brimful.index.index import Index, lengths_by_column
from brimful.index.indexed import Indexed, RowNumbers
from brimful.plan.errors import MOST, DataError
from brimful.plan.once import once
from brimful.tables.blocks import Block, visible
from brimful.tables.ragged import LABELS, REMEDIES, no_column
from brimful.tables.several import beside, require_distinct, unequal


@dataclass(frozen=True)
class Zip(Indexed):
    """Sample i has the columns of sample i of each.

    Those that are in the order of their index share a digit of the row number, each other one has a digit of its own.

    Raises:
        DataError: (when run) their numbers of samples differ, or two have a column of one name.
    """

    verb = "zip_datasets"

    @property
    def originals(self) -> Any:
        return refuse_originals(self)  # it works on columns

    upstreams: tuple[Indexed, ...]

    @once
    def index(self) -> ZippedIndex:
        digits = [0 if one.in_index_order else number for number, one in enumerate(self.upstreams, 1)]
        known = sorted(set(digits))
        return ZippedIndex(
            tuple(upstream.index for upstream in self.upstreams), tuple(known.index(digit) for digit in digits)
        )

    @once
    def count(self) -> int | None:
        counts = [upstream.count for upstream in self.upstreams]
        for number, count in enumerate(counts[1:], 1):
            if count != counts[0]:
                raise unequal(0, _words(counts[0]), number, _words(count))
        return counts[0]

    @property
    def pass_rows(self) -> int:
        return max(one.pass_rows for one in self.upstreams)

    def order(self, epoch: int) -> RowNumbers:
        orders = [upstream.order(epoch) for upstream in self.upstreams]
        steps = self.index.steps
        firsts = [self.index.digits.index(digit) for digit in range(len(steps))]  # of those that share it any will do

        def rows(first: int, last: int) -> NDArray[np.int64]:
            out = np.zeros(last - first, dtype=np.int64)
            for number, step in zip(firsts, steps, strict=True):
                out += orders[number](first, last) * step
            return out

        return rows


@dataclass(frozen=True, eq=False)
class ZippedIndex(Index):
    """Rows of which each has the columns of a row of each part. A number has a digit for each part, or one for several whose
    rows have the same numbers; so there are as many numbers as there are combinations.

    Args:
        digits: which digit says the row of each part, from 0 on.
    Price: what each of the parts costs; rows are copied once.
    """

    parts: tuple[Index, ...]
    digits: tuple[int, ...]

    @once
    def bases(self) -> list[int]:
        """How many rows each digit tells apart."""
        return [
            max(len(part) for part, own in zip(self.parts, self.digits) if own == digit)
            for digit in range(max(self.digits) + 1)
        ]

    @once
    def steps(self) -> list[int]:
        """How much one more of each digit adds to the number.

        Raises:
            DataError: there are more combinations than numbers.
        """
        if prod(self.bases) > MOST:
            counts = ", ".join(f"{base:,}" for base in self.bases)
            raise DataError(
                f"zip_datasets: the orders of {counts} rows are shuffled or sliced apart, and have more than {MOST:,} "
                "combinations; shuffle and slice what zip_datasets gives instead"
            )
        return [prod(self.bases[:digit]) for digit in range(len(self.bases))]

    def __len__(self) -> int:
        return prod(self.bases)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        def lengths(column: str) -> NDArray[Any]:
            if column not in self._owners:
                raise no_column(column, self.schema.names, "zip_datasets", REMEDIES.get(column, ""))
            owner = self._owners[column]
            return self.parts[owner].lengths_at(self._rows(numbers, owner), (column,), required)

        return lengths_by_column(self, columns, required, len(numbers), lengths)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        blocks = [part.take(self._rows(numbers, number)) for number, part in enumerate(self.parts)]
        require_distinct([visible(block).schema for block in blocks])
        return beside(blocks), np.arange(len(numbers))

    @once
    def schema(self) -> pa.Schema:
        require_distinct([part.schema for part in self.parts])
        return pa.schema([field for part in self.parts for field in part.schema])

    @once
    def list_columns(self) -> Sequence[str]:
        return [name for part in self.parts for name in part.list_columns]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        owner = self._owners.get(column, 0)  # where none has labels, the first part says so
        return self.parts[owner].num_labels_at(self._rows(numbers, owner), column)

    @once
    def _owners(self) -> dict[str, int]:
        """The part that has each column."""
        return {name: number for number, part in enumerate(self.parts) for name in part.schema.names}

    def _rows(self, numbers: NDArray[np.int64], part: int) -> NDArray[np.int64]:
        """The rows of a part that some numbers stand for."""
        digit = self.digits[part]
        return numbers // self.steps[digit] % self.bases[digit]


def _words(count: int | None) -> str:
    return "no end" if count is None else f"{count:,} rows"
