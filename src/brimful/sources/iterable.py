"""Samples from any iterable that gives the same ones each time it is iterated."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from brimful.errors import ORIGIN, StageError, StateError, origins
from brimful.ragged import EMPTY, with_column
from brimful.rows import Block, Sample, as_sample, from_samples
from brimful.stream import END, Stage, State, runtime

ROWS: Final = 256


@dataclass(frozen=True)
class FromIterable(Stage[Block]):
    """The samples of an iterable. State: [epoch, rows handed on]; a resume iterates over those again."""

    iterable: Iterable[Sample | str] = runtime()

    def start(self, epoch: int) -> State:
        return [epoch, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, done = at
        rows = iter(self.iterable)
        if rows is self.iterable:
            raise TypeError(
                "from_iterable needs an object that can be iterated more than once, such as a list or a class with "
                f"__iter__ (got {type(rows).__name__}, which is its own iterator)"
            )
        skipped = sum(1 for _ in islice(rows, done))
        if skipped < done:
            raise StateError(f"the iterable has {skipped:,} samples, but this state was saved after {done:,}")
        samples = drawn(rows, "from_iterable", done)
        following = list(islice(samples, 1))
        if not following:
            yield EMPTY, END
        while following and not isinstance(following[0], Exception):
            piece = [*following, *islice(samples, ROWS - 1)]
            following = [piece.pop()] if isinstance(piece[-1], Exception) else list(islice(samples, 1))
            block = numbered(piece, "from_iterable", done)
            done += block.num_rows
            yield block, [epoch, done] if following else END
        for failure in following:
            raise failure


def drawn(rows: Iterable[Any], source: str, number: int) -> Iterator[Any]:
    """The samples of a user's iterable, counted from `number` on.

    Where it fails, or gives what is no sample, the last thing that comes is a StageError: so those before it count.
    """
    try:
        for row in rows:
            yield as_sample(row)
            number += 1
    except Exception as error:
        failure = StageError(f"{source} failed at row {number:,}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        yield failure


def numbered(samples: Sequence[Sample], source: str, first: int) -> Block:
    """Samples as a block, with their numbers from `first` on as their origin.

    Raises:
        StageError: the values of a column have no common type.
    """
    try:
        block = from_samples(samples)
    except TypeError as error:
        last = first + len(samples) - 1
        raise StageError(f"{source} failed in rows {first:,} to {last:,}: {error}") from error
    numbers = np.arange(first, first + len(samples))
    return with_column(block, ORIGIN, origins(source.removeprefix("from_"), numbers, "row"))
