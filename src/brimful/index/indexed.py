"""Indexed data: rows of an index in an order of which any part can be computed alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.choice import Choice
from brimful.blocks.ragged import EMPTY
from brimful.core.fruitless import passed
from brimful.core.once import once
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.index.index import Index
from brimful.index.some_columns import ChosenIndex

RowNumbers: TypeAlias = Callable[[int, int], NDArray[np.int64]]
"""The row numbers at the places `first` to `last - 1` of an epoch, int64 (last - first,), whatever lies before them.

What a run keeps from one call to the next (a window that is shuffled) it keeps here: stages hold nothing, and may be shared.
"""
FIRST_ROWS: Final = 64
"""Of the first block: of a few rows that repeat, shuffled and strided, those of 4,096 would be in thousands of epochs."""
SPAN: Final = 1 << 20
"""The places by which data without an end are judged."""


class Indexed(Stage[Block]):
    """Abstract: samples of an index, in an order of which any part is computed alone; so a place is a number.

    State: [epoch, samples handed on]. A resume, like `skip`, costs what the first block costs.
    """

    @property
    @abstractmethod
    def index(self) -> Index:
        """Where the samples are, and their lengths."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Samples of an epoch, the same in each; None where it goes on without an end."""

    @abstractmethod
    def order(self, epoch: int) -> RowNumbers:
        """The rows of an epoch, in order."""

    @abstractmethod
    def unshuffled(self) -> tuple[RowNumbers, int]:
        """The rows of epoch 0 and how many they are, without a shuffle where that leaves the same rows: to judge them by.

        Of data without an end: those of one epoch of what repeats, else of the first 2^20 places.
        """

    @property
    def streamed_by(self) -> str:
        return ""

    def chosen(self, choice: Choice) -> Indexed:
        """The samples with the columns of a choice: below what leaves these as they are, so that `selected` still finds a
        source."""
        return Choose(self, choice)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed | None:
        """Some of the rows, by a pass over each source; None where what is left may differ from epoch to epoch."""
        return None

    def start(self, epoch: int) -> State:
        return [epoch, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, done = at
        count = self.count
        if count == 0:
            yield EMPTY, END
            return
        rows = self.order(epoch)
        numbers = np.zeros(0, dtype=np.int64)
        while done != count:
            last = done + min(
                BLOCK_ROWS, max(FIRST_ROWS, done)
            )  # by the place alone, so that a resume has the same blocks
            last = last if count is None else min(last, count)
            numbers = np.concatenate((numbers, rows(done + len(numbers), last)))
            size = self._block_rows(numbers)
            block = self.index.take(numbers[:size])
            numbers = numbers[size:]
            done += size
            if count is None:
                passed(self, (done - at[1]) // len(self.index))
            yield block, END if done == count else [epoch, done]

    def _block_rows(self, numbers: NDArray[np.int64]) -> int:
        """How many of these rows a block has: where it is known without reading, those of 4 M values, some 16 MB.

        At 1 MB, as of streams, a row of 500 tokens in a mixture of stores would cost 16 us, at 4,096 rows it costs 5.
        """
        values = np.zeros(len(numbers), dtype=np.int64)
        for name in self.index.list_columns:
            values += self.index.lengths_at(numbers, (name,), required=False)
        return max(1, int(np.searchsorted(np.cumsum(values), 4 * BLOCK_BYTES, side="right")))


class Source(Indexed):
    """Abstract: all samples of an index, as they are or shuffled as a whole."""

    @abstractmethod
    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        """The order of an epoch of an index: of ours, or of those rows of it that a filter keeps."""

    @property
    @abstractmethod
    def in_index_order(self) -> bool:
        """Whether row i of the index stands at place i, in every epoch."""

    @property
    def count(self) -> int:
        return len(self.index)

    def order(self, epoch: int) -> RowNumbers:
        return self.ordered(self.index, epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return np.arange, self.count

    def chosen(self, choice: Choice) -> Indexed:
        return ChooseSource(self, choice)

    def selected(self, some_of: Callable[[Source], Indexed]) -> Indexed:
        return some_of(self)


@dataclass(frozen=True)
class Choose(Indexed):
    """The samples of indexed data with the columns of a choice."""

    transparent = True

    upstream: Indexed
    choice: Choice

    @property
    def verb(self) -> str:
        return self.choice.verb

    @once
    def index(self) -> Index:
        return ChosenIndex(self.upstream.index, self.choice)

    @property
    def count(self) -> int | None:
        return self.upstream.count

    def order(self, epoch: int) -> RowNumbers:
        return self.upstream.order(epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        return self.choice.renamed(self.upstream.tokenizers())

    def settings(self) -> dict[str, Any]:
        return self.choice.settings()


def over_epochs(stage: Indexed, epoch: int) -> RowNumbers:
    """The rows of an epoch, and from its end on those of the next ones: place p is place p mod count of epoch + p // count.

    Price: beside the rows, what beginning an epoch costs for each that is touched; two of them are kept.
    """
    count = stage.count
    if not count:  # empty, or endless itself
        return stage.order(epoch)
    begun: dict[int, RowNumbers] = {}

    def rows(first: int, last: int) -> NDArray[np.int64]:
        pieces = [np.zeros(0, dtype=np.int64)]
        for number in range(first // count, -(-last // count)):
            if number not in begun:
                while len(begun) > 1:
                    begun.pop(next(iter(begun)))
                begun[number] = stage.order(epoch + number)
            start = number * count
            pieces.append(begun[number](max(first - start, 0), min(last - start, count)))
        return np.concatenate(pieces)

    return rows


@dataclass(frozen=True)
class ChooseSource(Choose, Source):
    """The samples of a source with the columns of a choice: a source again."""

    upstream: Source

    @property
    def count(self) -> int:
        return self.upstream.count

    @property
    def in_index_order(self) -> bool:
        return self.upstream.in_index_order

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return self.upstream.ordered(index, epoch)
