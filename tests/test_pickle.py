"""Descriptions travel: what is unpickled, here or in another process, gives the same items, and carries no results along."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.batch import OrderedBatches
from brimful.batching.window import PlanningWindow
from brimful.core.counters import add_counts, count, skipped, with_counters
from brimful.core.run import Run
from brimful.core.stage import Stage, State, running
from brimful.rows.chunks import Chunk
from brimful.tables.blocks import Block
from brimful.testing import first_difference
from tests import strategies as draw
from tests.effort import examples

CLASSES = sorted(draw.STAGES, key=draw.name)


def some(stage: Stage[Any]) -> list[Any]:
    with draw.small(5), running(stage, stage.start(1)) as items:
        return list(islice(items, 12))


def words(item: Any) -> Any:
    """An item as what may be compared across processes."""
    if isinstance(item, pa.RecordBatch):
        return item.to_pylist()
    if isinstance(item, PlanningWindow):
        return item.lengths.tolist(), item.take(np.arange(len(item))).to_pylist()
    if isinstance(item, OrderedBatches):
        batches = item.laid_out()
        return [words(batches), batches.bounds.tolist(), item.handed_on(len(item))]
    if isinstance(item, (dict, list, tuple)):
        return [words(value) for value in (item.items() if isinstance(item, dict) else item)]
    if getattr(item, "is_nested", False):  # its own words count the nested tensors of the process
        return words(list(item.unbind()))
    return (item.numbers.tolist(), words(item.window)) if hasattr(item, "window") else repr(item)


def words_of(description: bytes) -> list[Any]:
    return [(words(item), after) for item, after in some(pickle.loads(description))]


def elsewhere() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("cls", CLASSES, ids=draw.name)
@given(data=st.data())
@examples(5)
def test_an_unpickled_stage_gives_the_same_and_carries_no_results(cls: type[Stage[Any]], data: st.DataObject) -> None:
    stage = data.draw(draw.alone(cls))()
    before = cloudpickle.dumps(stage)
    found = some(stage)
    after = cloudpickle.dumps(stage)
    assert len(after) == len(before)
    assert first_difference(some(pickle.loads(after)), found) is None


def test_every_stage_gives_the_same_in_another_process() -> None:
    names: list[str] = []
    stages: list[bytes] = []
    found: list[list[Any]] = []

    @settings(max_examples=2, database=None, derandomize=True, phases=[Phase.generate])
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        for cls in CLASSES:
            stage = data.draw(draw.alone(cls))()
            names.append(draw.name(cls))
            found.append([(words(item), after) for item, after in some(stage)])
            stages.append(cloudpickle.dumps(stage))

    run()
    with elsewhere() as pool:
        for name, here, there in zip(names, found, pool.map(words_of, stages), strict=True):
            assert first_difference(there, here) is None, name


def long(sample: dict[str, Any]) -> bool:
    return len(sample["input_ids"]) > 2


def test_what_is_importable_needs_no_more_than_pickle() -> None:
    data = bf.from_sequence(draw.samples_of([3, 1, 4, 5])).filter(long).shuffle(3)
    batches = data.batch_by_tokens(8).shard(0, 1)
    fresh = [len(pickle.dumps(data)), len(pickle.dumps(batches))]
    found, length = list(data), len(batches)
    assert [len(pickle.dumps(data)), len(pickle.dumps(batches))] == fresh
    assert first_difference(list(pickle.loads(pickle.dumps(data))), found) is None
    assert len(pickle.loads(pickle.dumps(batches))) == length


def test_lambdas_take_cloudpickle() -> None:
    data = bf.from_sequence(["a", "bb"]).filter(lambda sample: len(sample["text"]) > 1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(data)
    assert list(pickle.loads(cloudpickle.dumps(data))) == [{"text": "bb"}]


# -- counts ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elsewhere(Stage[Block]):
    """What `fn` makes of each block, in another process."""

    upstream: Stage[Block]
    fn: Callable[[Block], Block]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        with running(self.upstream, at) as items, elsewhere() as pool:
            for block, after in items:
                out, counts = pool.submit(with_counters, self.fn, block).result(60)
                add_counts(counts)
                yield out, after


def chunks_of_two(block: Block) -> Block:
    return Chunk(draw.Blocks(()), 2, ("input_ids", "labels"), True).apply(block)


def test_what_is_left_out_in_another_process_is_counted_and_said_here(caplog: pytest.LogCaptureFixture) -> None:
    stage = Elsewhere(draw.Blocks((3, 2, 5, 1), (1, 2)), chunks_of_two)
    with caplog.at_level(logging.WARNING), bf.Dataset(stage).iter() as it:
        assert len(list(it)) == 4
        assert it.stats.dropped_tokens == 3
    assert [record.message for record in caplog.records] == ["chunk(2) drops the tokens after the last whole chunk"]


def leave_out(number: int) -> str:
    skipped(ValueError(f"{number}"))
    count("dropped", 0, "nothing")
    return str(number)


def test_counts_of_a_call_are_its_own() -> None:
    assert with_counters(lambda: (with_counters(leave_out, 3), with_counters(leave_out, 4))) == (
        (("3", {"skipped": (1, None)}), ("4", {"skipped": (1, None)})),
        {},
    )
