"""An index: samples of which lengths are known without their tokens, and any at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.stage import BLOCK_ROWS
from brimful.plan.once import once, settings_of
from brimful.tables.blocks import Block, visible
from brimful.tables.checksums import checksums
from brimful.tables.ragged import (
    EMPTY,
    LABELS,
    NOT_TRAINED_ON,
    SIZES,
    Ragged,
    array_of,
    is_list,
    is_lists,
    numpy_of,
    ragged,
    trained_on,
)

Ask: TypeAlias = Callable[[Callable[[], None]], NDArray[np.bool_]]
"""Asks about rows, bool (n,). It is given a function that it calls now and then, to show that there is progress."""


class RowSet(NamedTuple):
    """`num_rows` row numbers, in any order, that will be wanted at about the same time; `name` tells them from others."""

    name: Hashable
    num_rows: int
    rows: Callable[[], NDArray[np.int64]]


class RowSpans(NamedTuple):
    """Sample i of some samples has `values[starts[i] : starts[i] + counts[i]]`."""

    values: NDArray[Any]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


class Index(ABC):
    """Abstract: samples that can be had in any order. Data are read or mapped on first use, in each process. A frozen
    dataclass."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        """Tokens of each sample, integers (n,) or (n, d); zeros where the columns are absent and not required."""
        return self.lengths_at(np.arange(len(self)), columns, required)

    @abstractmethod
    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        """The lengths of the samples of these numbers."""

    @abstractmethod
    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        """A block that holds the samples of these numbers, and which of its rows each of them is, int64 (len(numbers),).

        Rows in memory are not copied. Other rows are fetched.
        """

    def spans(self, numbers: NDArray[np.int64]) -> dict[str, RowSpans] | None:
        """All columns of the samples of these numbers, where that needs no block; None: `locate` gives them."""
        return None

    @once
    def schema(self) -> pa.Schema:
        """The columns that all samples have, less hidden ones: by default those of the first."""
        first = self.take(np.zeros(1, dtype=np.int64)) if len(self) else EMPTY
        return visible(first).schema.remove_metadata()

    @property
    def list_columns(self) -> Sequence[str]:
        """The lists of numbers, or of arrays, of which all lengths are known, as none is null."""
        return ()

    def only(self, columns: Sequence[str]) -> Index:
        """The same samples. Other columns than these may be left out, where that saves reading them."""
        return self

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        """The numbers of labels of these rows, without reading them, int64 (3, len(numbers)): how many labels each row has, how
        many are trained on (not -100), and 1 where its first is.

        None, unless each sample has an integer, or a list of them, without nulls, in a column, and the index knows them.
        """
        return None

    def units_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row at which the unit of each of these rows begins, int64 (len(numbers),). Without units each row is one."""
        return numbers

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        """The values of a column of numbers in these rows, float64 (len(numbers),), NaN where one is null; None, where whole
        rows would have to be made for it, one by one."""
        block, rows = self.only([column]).locate(numbers)
        return float_values(block.column(column).take(array_of(rows)))

    @property
    def prefetches(self) -> bool:
        """Whether it helps to say in advance which samples will be wanted."""
        return False

    def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
        """Says which samples will be wanted from now on, in this order. Results do not depend on it."""
        raise NotImplementedError

    def take(self, numbers: NDArray[np.int64]) -> Block:
        """The samples of these numbers, at least one, as a block of their own; without a copy where they are neighbours."""
        return taken(*self.locate(numbers))

    def blocks(self) -> Iterator[Block]:
        """All samples, in blocks of up to 4,096."""
        for first in range(0, len(self), BLOCK_ROWS):
            yield self.take(np.arange(first, min(first + BLOCK_ROWS, len(self))))

    def kept_sizes(self, name: str, ask: Callable[[Callable[[], None]], NDArray[np.int64]]) -> NDArray[np.int64]:
        """A size of each row, from a file beside them; where there is none, as `ask` says."""
        return ask(lambda: None)


class DataIndex(Index):
    """Abstract: data that a user gave, not a view of other indexes. A state keeps its fingerprint, and a resume compares it."""

    made_by: ClassVar[str] = "from_sequence"
    """The method that users called for it."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """A short form of the data that a state keeps, as plain JSON: other data have another one."""

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        """The tokenizers that made the samples, as far as they are known, by column; see `Facts.tokenizers`."""
        return {}

    def texts(self) -> tuple[str, ...]:
        """The columns of text that was tokenized, as far as they are known; see `Facts.texts`."""
        return ()

    def newest(self) -> tuple[float, str]:
        """When the newest file that the samples were read from was written; see `Facts.newest`."""
        return 0.0, ""

    holds_files: ClassVar[bool] = False
    """Whether files can be kept beside the samples: see `cached_mask`."""

    def cached_mask(self, name: str, count: int, ask: Ask) -> NDArray[np.bool_]:
        """Answers about so many rows, from a file beside them; where there is none, those of `ask`."""
        return ask(lambda: None)

    @property
    def originals(self) -> Any:
        """See `Facts.originals`."""
        return None

    @property
    def one_by_one(self) -> bool:
        """See `Facts.one_by_one`."""
        return False

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        """The checksums of lengths that are measured only where something is planned by them: they are in no source's header."""
        return []

    @property
    def counted(self) -> bool:
        """Whether it knows how many samples there are without reading one, or calling a function of the user's."""
        return True

    @property
    def known_schema(self) -> pa.Schema | None:
        """The columns and types, where no row need be asked for them."""
        return self.schema

    def functions(self) -> list[str]:
        """The functions of the user's that made the samples; see `Facts.functions`."""
        return []


def lengths_by_column(
    index: Index, columns: Sequence[str], required: bool, count: int, lengths: Callable[[str], NDArray[Any]]
) -> NDArray[Any]:
    """The result of `lengths_at` for so many samples of an index. `lengths` gives them by one column."""
    if not required and not (columns and set(columns) <= set(index.schema.names)):
        return np.zeros(count, dtype=np.int64)
    found = [lengths(column) for column in columns]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


class BlockIndex(DataIndex):
    """Abstract: the rows of one block in memory."""

    @property
    @abstractmethod
    def block(self) -> Block:
        """All rows, the same object each time."""

    def __len__(self) -> int:
        return int(self.block.num_rows)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        def spans(column: str) -> NDArray[np.int64]:
            return ragged(self.block, column, SIZES).spans(numbers)[1]

        return lengths_by_column(self, columns, required, len(numbers), spans)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.block, numbers

    @once
    def checksums(self) -> dict[str, int]:
        """Those of all rows, by column."""
        return checksums(self.block)

    @once
    def schema(self) -> pa.Schema:
        return visible(self.block).schema.remove_metadata()

    @once
    def list_columns(self) -> Sequence[str]:
        lists = [field.name for field in self.schema if is_lists(field.type)]
        return [name for name in lists if not has_null(self.block[name])]

    def num_labels_at(self, numbers: NDArray[np.int64], column: str = LABELS) -> NDArray[np.int64] | None:
        if column not in self._num_labels:
            self._num_labels[column] = label_counts(self.blocks(), column) if self._has_integers(column) else None
        counts = self._num_labels[column]
        return None if counts is None else counts[:, numbers].astype(np.int64)

    def _has_integers(self, column: str) -> bool:
        """Whether each row has an integer there, or a list of them."""
        known = column in self.schema.names and has_integers(self.schema.field(column).type)
        return known and not has_null(self.block[column])

    @once
    def _num_labels(self) -> dict[str, NDArray[np.int32] | None]:
        """Price: 3 ns a label, once; 12 bytes a row kept."""
        return {}


def taken(block: Block, rows: NDArray[np.int64]) -> Block:
    """Some rows of a block, at least one; without a copy where they are neighbours."""
    follow = rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return block.slice(int(rows[0]), len(rows)) if follow else block.take(array_of(rows))


def label_counts(blocks: Iterable[Block], column: str) -> NDArray[np.int32]:
    """How many labels each row of some blocks has, how many are trained on, and 1 where its first is: (3, n). Price: .5 ns a
    label where none is -100, else 3 ns."""
    found = [np.zeros((3, 0), dtype=np.int32)]
    for each in blocks:
        array = each.column(column)
        one_each = Ragged(numpy_of(array), np.arange(len(array) + 1)) if not is_list(array.type) else None
        labels = one_each or ragged(each, column)
        first, last = labels.offsets[[0, -1]]
        values, lengths = labels.values[first:last], labels.lengths
        all_of_them = values.min(initial=0) > NOT_TRAINED_ON
        counts = (lengths, lengths > 0) if all_of_them else trained_on(values, labels.offsets - first)
        found.append(np.stack((lengths, *counts)).astype(np.int32))
    return np.concatenate(found, axis=1)


def float_values(column: pa.Array) -> NDArray[np.float64]:
    """The values of a column of numbers, float64 (n,), NaN where one is null."""
    found: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found


def has_labels(kind: pa.DataType) -> bool:
    """Whether a column `labels` of this type has classes of which some may be -100, not trained on: lists of integers.

    Those of a fixed size are passed over: whether they are cut with the tokens depends on the type of these.
    """
    return not pa.types.is_fixed_size_list(kind) and is_list(kind) and has_integers(kind)


def has_null(column: pa.Array) -> bool:
    """Whether a value of a column is null, or one in its lists."""
    return bool(column.null_count or (is_list(column.type) and column.flatten().null_count))


def has_integers(kind: pa.DataType) -> bool:
    """Whether a column is of integers, or of lists of them."""
    return bool(pa.types.is_integer(kind.value_type if is_list(kind) else kind))
