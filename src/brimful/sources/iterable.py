"""Samples from any iterable that gives the same ones each time it is iterated."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from brimful.errors import ORIGIN, StateError, origins
from brimful.ragged import EMPTY, with_column
from brimful.rows import Block, as_sample, from_samples
from brimful.stream import END, Stage, State, runtime

ROWS: Final = 256


@dataclass(frozen=True)
class FromIterable(Stage[Block]):
    """The samples of an iterable. State: [epoch, rows handed on]; a resume iterates over those again."""

    iterable: Iterable[dict[str, Any] | str] = runtime()

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
        first = next(rows, None)
        if first is None:
            yield EMPTY, END
        while first is not None:
            piece = [as_sample(row) for row in (first, *islice(rows, ROWS - 1))]
            numbers = np.arange(done, done + len(piece))
            done += len(piece)
            block = with_column(from_samples(piece), ORIGIN, origins("iterable", numbers, "row"))
            first, failure = _peek(rows)
            yield block, END if first is None and failure is None else [epoch, done]
            if failure is not None:
                raise failure


def _peek(rows: Iterator[Any]) -> tuple[Any, Exception | None]:
    """The next item, or what raised in its place: that is raised once the rows before it are out."""
    try:
        return next(rows, None), None
    except Exception as error:
        return None, error
