"""Some of the columns of an index, or other names for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.choice import Choice
from brimful.blocks.ragged import LABELS, REMEDIES
from brimful.core.errors import DataError
from brimful.core.once import once
from brimful.index.index import Index, RowSet


@dataclass(frozen=True, eq=False)
class ChosenIndex(Index):
    """The rows of `base` with the columns of a choice; of a store no others are read."""

    base: Index
    choice: Choice

    @once
    def kept(self) -> dict[str, str]:
        """What each column is called in `base`, by its name."""
        return self.choice.of(self.base.schema.names, "of indexed data") if len(self.base) else {}

    @once
    def below(self) -> Index:
        return self.base.only(list(self.kept.values())) if len(self.base) else self.base

    @once
    def schema(self) -> pa.Schema:
        return pa.schema([self.base.schema.field(old).with_name(name) for name, old in self.kept.items()])

    def __len__(self) -> int:
        return len(self.base)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.below.lengths(self._old(columns, required), required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.below.lengths_at(numbers, self._old(columns, required), required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block, rows = self.below.locate(numbers)
        return self.choice.apply(block, self.kept), rows

    @property
    def list_columns(self) -> Sequence[str]:
        return [name for name, old in self.kept.items() if old in self.below.list_columns]

    @property
    def knows_labels(self) -> bool:
        return self.kept.get(LABELS) == LABELS and self.below.knows_labels

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.below.num_labels_at(numbers)

    @property
    def expects(self) -> bool:
        return self.below.expects

    def expect(self, sets: Sequence[RowSet]) -> None:
        self.below.expect(sets)

    def fingerprint(self) -> dict[str, Any]:
        return {"base": self.base.fingerprint(), "choice": self.choice.settings()}

    def _old(self, columns: Sequence[str], required: bool) -> list[str]:
        if required and (missing := [name for name in columns if name not in self.kept]):
            raise DataError(
                f"there is no column {missing[0]!r} (columns: {', '.join(self.kept)}; {self.choice.verb})"
                f"{REMEDIES.get(missing[0], '')}"
            )
        return [self.kept.get(name, "") for name in columns]
