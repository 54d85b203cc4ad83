"""An index: samples of which lengths are known without their tokens, and any at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.errors import HIDDEN
from brimful.once import once, settings_of
from brimful.ragged import LABELS, is_ragged, ragged, token_counts, trained_on
from brimful.rows import Block
from brimful.stream import BLOCK_ROWS


class Together(NamedTuple):
    """`num_rows` row numbers, in any order, that will be wanted at about the same time; `name` tells them from others."""

    name: Hashable
    num_rows: int
    rows: Callable[[], NDArray[np.int64]]


class Regular(NamedTuple):
    """Columns that all rows have, of one type, without a null where they are numbers or lists of numbers.

    Args:
        kinds: the name and the type of each, in words.
        lists: those of lists of numbers.
    """

    kinds: Mapping[str, str]
    lists: tuple[str, ...]


class Index(ABC):
    """Samples that can be had in any order. What it takes to know them (reading, mapping) is done on first use, in each
    process. A frozen dataclass."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @abstractmethod
    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        """Tokens of each sample, integers (n,) or (n, d); zeros where the columns are absent and not required."""

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        """The lengths of the samples of these numbers: for those whose `lengths` are more than a view of what is there."""
        return self.lengths(columns, required)[numbers]

    @abstractmethod
    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        """A block that holds the samples of these numbers, and which of its rows each of them is, int64 (len(numbers),).

        What is in memory stays where it is; what is not is fetched whole.
        """

    @property
    def regular(self) -> Regular | None:
        """The columns, where it is known without reading the rows that they are regular; None where it is not.

        Then what becomes of a column in a batch can be told from numbers of rows, and ranks locate only their own.
        """
        return None

    def list_lengths_at(self, numbers: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]] | None:
        """How many values each list of numbers has in the rows of these numbers, by column, int64 (len(numbers),); None
        where the columns are not `regular`."""
        if self.regular is None:
            return None
        return {name: self.lengths_at(numbers, (name,), True) for name in self.regular.lists}

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Of the rows of these numbers, without reading them: int64 (3, len(numbers)), how many labels each has, how many
        of them are trained on (not -100), and 1 where its first one is.

        None unless all these rows have a column `labels` of lists, of any length, of integers, and none has a null in it;
        the answer is of the whole call, so that all ranks, which ask for the same rows, have the same.
        """
        return None

    @abstractmethod
    def fingerprint(self) -> Any:
        """What a state is held against, as plain JSON."""

    @property
    def expects(self) -> bool:
        """Whether it is of use to say in advance which samples will be wanted."""
        return False

    def expect(self, sets: Sequence[Together]) -> None:
        """Told which samples will be wanted from now on, in this order; what is done about it changes no result."""
        raise NotImplementedError

    def take(self, numbers: NDArray[np.int64]) -> Block:
        """The samples of these numbers, at least one, as a block of their own; without a copy where they are neighbours."""
        block, rows = self.locate(numbers)
        follow = rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
        return block.slice(int(rows[0]), len(rows)) if follow else block.take(pa.array(rows))


class BlockIndex(Index):
    """Abstract: the rows of one block in memory."""

    @property
    @abstractmethod
    def block(self) -> Block:
        """All rows, the same object each time."""

    def __len__(self) -> int:
        return int(self.block.num_rows)

    def lengths(self, columns: Sequence[str], required: bool) -> NDArray[Any]:
        return token_counts(self.block, columns, required)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        if not required and not (columns and set(columns) <= set(self.block.schema.names)):
            return np.zeros(len(numbers), dtype=np.int64)
        counts = [ragged(self.block, column).spans(numbers)[1] for column in columns]
        return counts[0] if len(counts) == 1 else np.stack(counts, axis=1)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.block, numbers

    @property
    def regular(self) -> Regular | None:
        return self._regular

    def num_labels_at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return None if self._num_labels is None else self._num_labels[:, numbers].astype(np.int64)

    @once
    def _regular(self) -> Regular | None:
        columns = {name: self.block.column(name) for name in self.block.schema.names if not name.startswith(HIDDEN)}
        lists = tuple(name for name, column in columns.items() if is_ragged(column.type))
        nulls = sum(
            column.null_count + (_values(column).null_count if name in lists else 0)
            for name, column in columns.items()
            if name in lists or pa.types.is_primitive(column.type)
        )
        return None if nulls else Regular({name: str(column.type) for name, column in columns.items()}, lists)

    @once
    def _num_labels(self) -> NDArray[np.int32] | None:
        """Price: 3 ns a label, once; 12 bytes a row kept."""
        block = self.block
        if LABELS not in block.schema.names:
            return None
        column = block.column(LABELS)
        if not has_labels(column.type) or column.null_count or _values(column).null_count:
            return None
        blocks = [block.slice(first, BLOCK_ROWS) for first in range(0, block.num_rows, BLOCK_ROWS)]
        found = [np.zeros((3, 0), dtype=np.int32)]
        for each in blocks:
            labels = ragged(each, LABELS)
            first, last = labels.offsets[[0, -1]]
            counts = trained_on(labels.values[first:last], labels.offsets - first)
            found.append(np.stack((labels.lengths, *counts)).astype(np.int32))
        return np.concatenate(found, axis=1)


def has_labels(kind: pa.DataType) -> bool:
    """Whether a column `labels` of this type has classes of which some may be -100, not trained on: lists of integers.

    Those of a fixed size are passed over: whether they are cut with the tokens depends on the type of these.
    """
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_integer(kind.value_type))


def _values(lists: pa.Array) -> pa.Array:
    return lists.flatten() if pa.types.is_fixed_size_list(lists.type) else lists.values
