"""Several indexes side by side as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.beside import beside, require_distinct
from brimful.blocks.blocks import Block, visible
from brimful.blocks.ragged import LABELS, REMEDIES
from brimful.core.errors import MOST, DataError
from brimful.core.once import once
from brimful.index.index import Index


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
        """What one more of each digit adds to the number.

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

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.lengths_at(np.arange(len(self)), columns, required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        owners = [self._owner(column) for column in columns]
        if missing := [column for column, owner in zip(columns, owners) if owner is None]:
            if required:
                raise DataError(
                    f"there is no column {missing[0]!r} (columns: {', '.join(self.schema.names)}; zip_datasets)"
                    f"{REMEDIES.get(missing[0], '')}"
                )
            return np.zeros(len(numbers), dtype=np.int64)
        if not columns:
            return np.zeros(len(numbers), dtype=np.int64)
        found = [
            self.parts[owner].lengths_at(self._rows(numbers, owner), (column,), required)
            for column, owner in zip(columns, owners)
            if owner is not None
        ]
        return found[0] if len(found) == 1 else np.stack(found, axis=1)

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

    @property
    def knows_labels(self) -> bool:
        owner = self._owner(LABELS)
        return owner is not None and self.parts[owner].knows_labels

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        owner = self._owner(LABELS)
        assert owner is not None
        return self.parts[owner].num_labels_at(self._rows(numbers, owner))

    def fingerprint(self) -> list[Any]:
        return [part.fingerprint() for part in self.parts]

    def _owner(self, column: str) -> int | None:
        """The part that has a column."""
        return next((number for number, part in enumerate(self.parts) if column in part.schema.names), None)

    def _rows(self, numbers: NDArray[np.int64], part: int) -> NDArray[np.int64]:
        """Which rows of a part some numbers stand for."""
        digit = self.digits[part]
        return numbers // self.steps[digit] % self.bases[digit]
