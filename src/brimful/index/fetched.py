"""The samples of a map-style data set as rows of a stream: made ahead of use, perhaps by processes, and measured as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.facts import Facts
from brimful.core.run import Stopped, stopping
from brimful.core.stage import Stage, not_in_state, with_inputs
from brimful.index.index import DataIndex
from brimful.index.indexed import Choose as IndexChoose
from brimful.index.indexed import Indexed, Repeat
from brimful.index.map_style import SAMPLE, MapStyleIndex, samples_at
from brimful.index.order import Shuffle, Slice
from brimful.index.sequence import FromSequence
from brimful.plan.once import once
from brimful.plan.random import generators_of, seeded
from brimful.rows.columns import Choice, Choose
from brimful.rows.counting import RowKeys
from brimful.rows.functions import SampleResults, block_of_results, types_of_results
from brimful.rows.parallel import SERIAL, FunctionStage, Parallel
from brimful.tables.blocks import KEY, Block
from brimful.tables.learnt import Learnt

SEED: Final = 42
"""Of the random numbers that samples are made with."""


@dataclass(frozen=True, eq=False)
class SampleNumbers(DataIndex):
    """The numbers of the samples of a map-style data set, in place of these."""

    made_by = "from_dataset"

    rows: MapStyleIndex

    def __len__(self) -> int:
        return len(self.rows)

    @once
    def schema(self) -> pa.Schema:
        return pa.schema([(SAMPLE, pa.int64())])

    def fingerprint(self) -> dict[str, int]:
        return {"rows": len(self)}

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        return np.zeros(len(numbers), dtype=np.int64)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self.rows.numbered(numbers), np.arange(len(numbers))


@dataclass(frozen=True)
class FetchSamples(FunctionStage):
    """The samples of a data set in place of their numbers, in the types of the first ones.

    In processes, Python's, numpy's and torch's generators, and those among the data set's attributes, are seeded for each sample
    (where it has `__getitems__` for each call), by its place in the epoch. Here they are the caller's, who may use them too.
    """

    verb = "stream"

    rows: MapStyleIndex = not_in_state()
    learnt: Learnt = field(default_factory=Learnt, kw_only=True, compare=False, repr=False, metadata={"runtime": True})

    def facts(self, *inputs: Facts) -> Facts:
        """Whose rows others cannot have by number, and which a rank that shares them would make for nothing."""
        return replace(super().facts(*inputs), streamed_by=self.verb, from_index=False)

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        """As `learn_schema` asks."""
        return types_of_results(given)

    @property
    def called_as(self) -> str:
        return f"from_dataset({self.rows.name})"

    def work(self, block: Block) -> SampleResults:
        numbers, keys = (block.column(name).to_pylist() for name in (SAMPLE, KEY))
        made = [self.rows.row_of(*one) for one in self._samples(numbers, keys)]
        return SampleResults(made, np.arange(len(made)))

    def finish(self, block: Block, made: SampleResults, schema: pa.Schema | None) -> Block:
        assert schema is not None
        return block_of_results(self.called_as, block, made, schema, "raise")

    def _samples(self, numbers: list[int], keys: list[int]) -> Iterator[tuple[Any, int]]:
        """Each sample with its number."""
        stopped, alone = stopping(), self.parallel.executor_type == "process"
        size = len(numbers) if hasattr(self.rows.dataset, "__getitems__") else 1
        for first in range(0, len(numbers), size):
            if stopped:
                raise Stopped
            own = numbers[first : first + size]
            with seeded(keys[first], self._generators) if alone else nullcontext():
                found = samples_at(self.rows.dataset, self.rows.name, own)
            yield from zip(found, own, strict=True)

    @once
    def _generators(self) -> list[Any]:
        return generators_of(self.rows.dataset)


def fetched(stage: Stage[Block], num_workers: int) -> Stage[Block] | None:
    """The samples of one map-style data set in the order of an indexed chain, made when they are wanted; None where the chain
    needs more of its samples than their numbers, or has other data.

    Args:
        num_workers: how many processes make them; 0: the caller's thread does.
    """
    found = _numbers(stage)
    if found is None:
        return None
    numbers, rows, choices = found
    parallel = Parallel(num_workers, "process") if num_workers else SERIAL
    alone = replace(rows, given=None, length_of=None)  # with what a process needs
    made: Stage[Block] = FetchSamples(RowKeys(numbers, SEED), alone, learnt=Learnt(rows.asked), parallel=parallel)
    for choice in choices:
        made = Choose(made, choice)
    return made


def _numbers(stage: Stage[Block]) -> tuple[Indexed, MapStyleIndex, tuple[Choice, ...]] | None:
    """The chain over the numbers of the samples, their data set, and what chooses columns of them."""
    if isinstance(stage, FromSequence):
        rows = stage.rows
        if not isinstance(rows, MapStyleIndex) or rows.collate_fn is not None:
            return None
        return replace(stage, rows=SampleNumbers(rows)), rows, ()
    if not isinstance(stage, Slice | Shuffle | Repeat | IndexChoose):
        return None
    found = _numbers(stage.upstream)
    if found is None:
        return None
    numbers, rows, choices = found
    if isinstance(stage, IndexChoose):
        return numbers, rows, (*choices, stage.choice)
    return with_inputs(stage, numbers), rows, choices
