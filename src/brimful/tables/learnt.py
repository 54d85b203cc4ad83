"""Stages that learn the types of their rows from the first ones. All their rows have these, from the first epoch to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
import pyarrow as pa

from brimful.core.counters import COUNTERS, Counters, Counts, add_counts, apart
from brimful.core.run import Run
from brimful.core.stage import Stage
from brimful.plan.once import computed_once
from brimful.tables.schema import FIRST_ROWS, SAMPLE_ROWS, as_json, from_json

T = TypeVar("T")


class Learnt:
    """The schema of a stage, once it is known. All copies of the stage share it: for its streams, its epochs and its workers.

    A state has it too, in its header. A run that goes on from there has the types of the state, whatever is known here. A copy in
    another process learns it anew, unless it is given.
    """

    def __init__(self, given: pa.Schema | None = None) -> None:
        self._given = given
        if given is not None:
            self.schema: pa.Schema = given

    def __reduce__(self) -> Any:
        return Learnt, (self._given,)

    @property
    def here(self) -> pa.Schema | None:
        """The schema that is known in this process; None: not yet."""
        return vars(self).get("schema")

    def known(self, run: Run | None) -> pa.Schema | None:
        """The schema by which a run goes, if one is known; without columns where epoch 0 had no row."""
        told = None if run is None else run.types.get(self)
        return self._for(run, self.here) if told is None else from_json(told)

    def keep(self, run: Run, schema: pa.Schema) -> None:
        """Has a run go by the schema of its first rows. So do later ones, unless one is known here."""
        vars(self).setdefault("schema", schema)
        self._for(run, schema)

    def learn(self, run: Run | None, first_types: Callable[[int], pa.Schema], epoch: int = 0) -> pa.Schema:
        """The schema by which a run goes. Where none is known, `first_types` looks for it in epoch 0; where that has no row, in
        the epoch at hand. What is left out on the way counts for nothing."""
        found = self.known(run)
        for number in sorted({0, epoch}):
            if found is None or (number and not found):
                context = copy_context()
                context.run(COUNTERS.set, Counters())
                look = partial(context.run, first_types, number)
                found = self._for(run, computed_once(self, f"schema of epoch {number}" if number else "schema", look))
        return found

    def _for(self, run: Run | None, schema: pa.Schema | None) -> pa.Schema | None:
        if run is not None and schema:
            run.types.setdefault(self, as_json(schema))
        return schema


class Learner(Protocol):
    """A stage that learns its types."""

    @property
    def learnt(self) -> Learnt: ...

    def first_types(self, epoch: int) -> pa.Schema:
        """The types of the first rows of an epoch."""


def schema_of(stage: Learner, run: Run | None = None) -> pa.Schema:
    """The types of the first rows of epoch 0, wherever a run begins; without a `run`, that of this thread."""
    run = run or Run.here()
    whole = None if run is None else run.wholes.get(stage.learnt)
    found: pa.Schema = stage.learnt.learn(run, stage.first_types) if whole is None else whole()
    return found


def known_by(stage: Learner) -> dict[str, Any]:
    """What facts say of the columns of a stage that learns its types."""
    return {"schema": lambda: stage.learnt.here, "row_schema": lambda: schema_of(stage)}


def learn_by_whole(stage: Stage[Any], epoch: int, run: Run) -> None:
    """Has streams, which run parts of a chain, go by the types of the whole: of epoch 0 or, where that has no row, of the epoch
    at hand. Each stream would find others."""
    if getattr(stage, "learnt", None) is not None:
        learner = cast(Learner, stage)
        run.wholes[learner.learnt] = partial(learner.learnt.learn, run, learner.first_types, epoch)
    for one in stage.inputs:
        learn_by_whole(one, epoch, run)


class Results(Sized, Protocol):
    """The results of a call, some of which can be taken."""

    def __getitem__(self, some: slice, /) -> Self: ...


Made = TypeVar("Made", bound=Results)


class FirstCalls(NamedTuple, Generic[T]):
    """The types of the results of the first calls, the error that came after these, and the calls: the first ones, this error,
    then the others."""

    schema: pa.Schema
    error: Exception | None
    calls: Iterator[T]


def learn_schema(
    calls: Iterator[T],
    results: Callable[[T], Made | None],
    types_of: Callable[[Sequence[Made]], tuple[pa.Schema, bool]],
) -> FirstCalls[T]:
    """Learns types from the first 32 results, or from up to 1,000 while these do not tell all: whatever calls they came in.

    Args:
        results: the results of a call; None where it has none.
        types_of: the types of some results, and whether they are complete: see `schema.types_of`.
    """
    held: list[tuple[T, Counts]] = []
    made: list[Made] = []
    count, wanted = 0, FIRST_ROWS
    failure: Exception | None = None
    try:
        while count < wanted:
            one, left_out = apart(next, calls, None)
            if one is None:
                break
            held.append((one, left_out))
            if (own := results(one)) is not None:
                made.append(own)
                count += len(own)
            while wanted <= count and wanted < SAMPLE_ROWS and not types_of(_first(made, wanted))[1]:
                wanted = min(2 * wanted, SAMPLE_ROWS)
    except Exception as error:
        failure = error
    return FirstCalls(types_of(_first(made, wanted))[0], failure, _again(held, failure, calls))


def _first(made: Sequence[Made], most: int) -> list[Made]:
    """So many results: types do not depend on where calls end."""
    ends = np.cumsum([0, *map(len, made)]).tolist()
    return [one if end + len(one) <= most else one[: most - end] for one, end in zip(made, ends) if end < most]


def _again(held: Iterable[tuple[T, Counts]], failure: Exception | None, calls: Iterator[T]) -> Iterator[T]:
    for one, left_out in held:
        add_counts(left_out)
        yield one
    if failure is not None:
        raise failure
    yield from calls
