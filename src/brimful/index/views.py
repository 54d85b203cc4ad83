"""Views of an index: some of its rows, some of its columns, its rows without hidden tokens, or with a prompt before each side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.index.index import Index, RowSet, RowSpans, label_counts
from brimful.plan.once import once
from brimful.rows.columns import Choice
from brimful.tables.blocks import Block
from brimful.tables.ragged import (
    LABELS,
    MASK,
    PROMPT,
    REMEDIES,
    SIZES,
    TOKENS,
    TruncateSide,
    array_of,
    no_column,
    num_hidden,
    prefix_of,
    prompted,
    truncated,
    unmasked,
)


@dataclass(frozen=True, eq=False)
class View(Index):
    """Abstract: rows of `base`. By default it has all of them, and answers as `base` does."""

    base: Index

    @property
    def source(self) -> Index:
        """The index that rows are fetched from: `base`, or a cheaper part of it."""
        return self.base

    def in_base(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers that some rows have in `base`."""
        return numbers

    def __len__(self) -> int:
        return len(self.base)

    @property
    def schema(self) -> pa.Schema:
        return self.base.schema

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.source.lengths_at(self.in_base(numbers), columns, required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.source.locate(self.in_base(numbers))

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        return self.source.spans(self.in_base(numbers))

    @property
    def list_columns(self) -> Sequence[str]:
        return self.source.list_columns

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        return self.source.num_labels_at(self.in_base(numbers), column)

    def units_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.base.units_at(self.in_base(numbers))

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        return self.source.values_at(self.in_base(numbers), column)

    @property
    def prefetches(self) -> bool:
        return self.source.prefetches

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        self.source.prefetch_hint(sets)


@dataclass(frozen=True, eq=False)
class SelectedIndex(View):
    """Some rows of `base`.

    Args:
        kept: says which, bool (len(base),); asked at the first use, in each process.
    Price: 8 bytes a row kept.
    """

    kept: Callable[[], NDArray[np.bool_]]

    @once
    def numbers(self) -> NDArray[np.int64]:
        """The rows of `base` that are kept, ascending."""
        return np.flatnonzero(self.kept())

    @once
    def crc32(self) -> int:
        """The checksum of a bitmap that says which rows are kept."""
        kept = np.zeros(len(self.base), dtype=bool)
        kept[self.numbers] = True
        return crc32(np.packbits(kept).data)

    def __len__(self) -> int:
        return len(self.numbers)

    def in_base(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.numbers[numbers]

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        self.base.prefetch_hint(
            [RowSet((self.crc32, one.name), one.num_rows, partial(self._of_base, one)) for one in sets]
        )

    def _of_base(self, wanted: RowSet) -> NDArray[np.int64]:
        return self.numbers[wanted.rows()]


@dataclass(frozen=True, eq=False)
class ChosenIndex(View):
    """The rows of `base` with the columns of a choice; of a store no others are read."""

    choice: Choice

    @once
    def kept(self) -> dict[str, str]:
        """The name of each column in `base`, by its name here."""
        return self.choice.of(self.base.schema.names, "of indexed data") if len(self.base) or self.base.schema else {}

    @once
    def source(self) -> Index:
        return self.base.only(list(self.kept.values())) if len(self.base) else self.base

    @once
    def schema(self) -> pa.Schema:
        return pa.schema([self.base.schema.field(old).with_name(name) for name, old in self.kept.items()])

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.source.lengths(self._old(columns, required), required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return self.source.lengths_at(numbers, self._old(columns, required), required)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block, rows = self.source.locate(numbers)
        return self.choice.apply(block, self.kept), rows

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        found = self.source.spans(numbers)
        return found and {name: found[old] for name, old in self.kept.items()}

    @property
    def list_columns(self) -> Sequence[str]:
        return [name for name, old in self.kept.items() if old in self.source.list_columns]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        return self.source.num_labels_at(numbers, self.kept[column]) if column in self.kept else None

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        return self.source.values_at(numbers, self.kept[column])

    def _old(self, columns: Sequence[str], required: bool) -> list[str]:
        if required and (missing := [name for name in columns if name not in self.kept]):
            raise no_column(missing[0], self.kept, self.choice.verb, REMEDIES.get(missing[0], SIZES))
        return [self.kept.get(name, "") for name in columns]


@dataclass(frozen=True, eq=False)
class TruncatedIndex(View):
    """The rows of `base` with at most `most` values in each of the groups of `columns`; see `truncated`. It is asked for no
    lengths."""

    columns: tuple[tuple[str, ...], ...]
    most: int
    side: TruncateSide

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block = self.base.take(numbers)
        return truncated(block, self.columns, self.most, self.side), np.arange(len(numbers))

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        return None

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        """Price: rows that are cut are read."""
        found = self.base.num_labels_at(numbers, column)
        if found is not None and any(column in group for group in self.columns) and (cut := found[0] > self.most).any():
            found[:, cut] = label_counts([self.locate(numbers[cut])[0]], column)
        return found


@dataclass(frozen=True, eq=False)
class UnmaskedIndex(View):
    """The rows of `base` without the values that `attention_mask`, one of `columns`, hides in these.

    `num_labels_at` counts hidden labels too: of a row with hidden tokens, as of every row that is cut, the labels are read.

    Price: where there is a mask, it is read for the lengths too, about 5 ns a token.
    """

    columns: tuple[str, ...]

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        lengths = self.base.lengths_at(numbers, columns, required)
        if self._masks is None or not len(numbers):
            return lengths
        by_column = lengths.reshape(len(numbers), -1)
        hidden = num_hidden(*self._masks.locate(numbers))[:, None]
        hides = [name in self.columns for name in columns] or [True]
        # lists of two lengths: `locate` says so
        return np.maximum(by_column - hidden * hides, 0).reshape(lengths.shape)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block, rows = self.base.locate(numbers)
        if self._masks is None or not num_hidden(block, rows).any():
            return block, rows
        return unmasked(block.take(array_of(rows)), self.columns), np.arange(len(rows))

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        return self.base.spans(numbers) if self._masks is None else None

    @once
    def _masks(self) -> Index | None:
        """The rows with their masks; None where there are none."""
        return self.base.only([MASK]) if MASK in self.columns and MASK in self.schema.names else None


@dataclass(frozen=True, eq=False)
class PromptedIndex(View):
    """The rows of `base` with their prompt before each of the `sides`; see `prompted`."""

    sides: tuple[str, ...]

    @once
    def schema(self) -> pa.Schema:
        return prompted(pa.RecordBatch.from_pylist([], self.base.schema), self.sides).schema

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        if not self._has_prompt or not {*columns} <= {*self.base.schema.names}:
            return self.base.lengths_at(numbers, columns, required)
        found = self.base.lengths_at(numbers, (PROMPT + TOKENS, *columns), required)
        begins_so = np.array([prefix_of(name) in self.sides for name in columns])
        lengths: NDArray[Any] = found[:, 1:] + begins_so * found[:, :1]
        return lengths[:, 0] if len(columns) == 1 else lengths

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        if not self._has_prompt or not len(numbers):
            return self.base.locate(numbers)
        return prompted(self.base.take(numbers), self.sides), np.arange(len(numbers))

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        return None if self._has_prompt else self.base.spans(numbers)

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        return None if self._has_prompt else self.base.num_labels_at(numbers, column)

    @property
    def _has_prompt(self) -> bool:
        return PROMPT + TOKENS in self.base.schema.names
