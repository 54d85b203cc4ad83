"""Samples from any iterable that gives the same ones each time it is iterated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import GEN_CREATED, getgeneratorstate
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block, Sample, as_sample, from_samples, rows_at
from brimful.blocks.ragged import EMPTY, with_column
from brimful.blocks.schema import OF_RESULTS, as_text, first_rows, fitting, from_text, infer, misfit, samples_in
from brimful.blocks.typed import Typed
from brimful.core.errors import ORIGIN, StageError, StateError, origins
from brimful.core.stage import END, State, runtime

ROWS: Final = 256


@dataclass(frozen=True)
class FromIterable(Typed):
    """The samples of an iterable, in the types of its first 32, or up to 1,000 while a column is null or absent.

    State: [epoch, rows handed on, the types as text]; a resume iterates over those rows again.
    """

    iterable: Iterable[Sample | str] | Callable[[], Iterable[Sample | str]] = runtime()

    def __post_init__(self) -> None:
        if isinstance(self.iterable, Iterator):
            raise _one_shot(self.iterable, "pass the function that makes it, from_iterable(generate), or")

    def start(self, epoch: int) -> State:
        return [epoch, 0, ""]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, done, text = at
        rows = self._begin()
        skipped = sum(1 for _ in islice(rows, done))
        if skipped < done:
            raise StateError(f"the iterable has {skipped:,} samples, but this state was saved after {done:,}")
        samples = drawn(rows, "from_iterable", done)
        schema = from_text(text) if text else vars(self).get("schema")
        if schema is None and epoch == done == 0:
            held = first_rows(samples)
            schema = vars(self).setdefault("schema", infer(samples_in(held)))
            samples = chain(held, samples)
        elif schema is None:
            schema = self.schema
        text = text or as_text(schema)
        following = list(islice(samples, 1))
        if not following:
            yield EMPTY, END
        while following and not isinstance(following[0], Exception):
            piece = [*following, *islice(samples, min(rows_at(done), ROWS) - 1)]
            following = [piece.pop()] if isinstance(piece[-1], Exception) else list(islice(samples, 1))
            block = numbered(piece, "from_iterable", done, schema)
            done += block.num_rows
            yield block, [epoch, done, text] if following else END
        for failure in following:
            raise failure

    def first_types(self) -> pa.Schema:
        return infer(samples_in(first_rows(drawn(self._begin(), "from_iterable", 0))))

    def _begin(self) -> Iterator[Any]:
        if isinstance(self.iterable, Iterable):
            return iter(self.iterable)
        rows = iter(self.iterable())
        if isinstance(rows, Generator) and getgeneratorstate(rows) != GEN_CREATED:
            raise _one_shot(rows, "have the function make a new one at each call, or")
        return rows


def _one_shot(rows: Any, remedy: str) -> TypeError:
    return TypeError(
        f"from_iterable cannot iterate over this {type(rows).__name__} more than once, as each epoch and each resume do; "
        f"{remedy} pass an object with __iter__, such as a list"
    )


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


def numbered(samples: Sequence[Sample], source: str, first: int, schema: pa.Schema | None = None) -> Block:
    """Samples as a block, with their numbers from `first` on as their origin; `schema`: the types that they must have.

    Raises:
        StageError: a sample does not fit, or the values of a column have no common type.
    """
    try:
        block = from_samples(samples) if schema is None else _held_against(schema, samples, source, first)
    except TypeError as error:
        last = first + len(samples) - 1
        raise StageError(f"{source} failed in rows {first:,} to {last:,}: {error}") from error
    numbers = np.arange(first, first + len(samples))
    return with_column(block, ORIGIN, origins(source.removeprefix("from_"), numbers, "row"))


def _held_against(schema: pa.Schema, samples: Sequence[Sample], source: str, first: int) -> Block:
    block = fitting(samples, schema)
    if block is None:
        for number, sample in enumerate(samples, first):
            if message := misfit(sample, schema, closed=True, remedy=OF_RESULTS):
                raise StageError(f"{source} failed at row {number:,}: {message}")
        raise TypeError("they fit one by one only")
    return block
