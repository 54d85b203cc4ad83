"""The law: what follows the state of item k is items k + 1 and on, for every stage, alone and in random chains."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful
import brimful as bf
from brimful.arrays.collated import Collated
from brimful.async_loader import Loaded
from brimful.batching.batch import Batch, OrderedBatches
from brimful.batching.steps import Steps
from brimful.batching.window import PlanningWindow
from brimful.batching.windows import Buffered, Planned
from brimful.core.repeat import Repeat
from brimful.core.stage import END, Stage, running
from brimful.dataset import dataset_of
from brimful.index.indexed import Repeat as IndexRepeat
from brimful.index.joined import Concat as IndexConcat
from brimful.index.joined import Interleave as IndexInterleave
from brimful.ray.spread import OneBlock, RayStage
from brimful.rows.buffer import Unbatch
from brimful.rows.chunks import Chunk, ConcatChunk, PackChunk
from brimful.rows.counting import Take
from brimful.rows.functions import Filter, SampleFunction
from brimful.rows.mixing import Concat, Interleave
from brimful.sources.files import FromFiles
from brimful.tables.blocks import Block
from brimful.testing import assert_exact_resume, first_difference
from tests import strategies as draw
from tests.effort import examples

sizes = st.sampled_from([16, 64, 256, 1 << 20])
epochs = st.sampled_from([(0,), (1,)])
SLOW = {FromFiles, Repeat, IndexConcat, IndexInterleave, IndexRepeat, *draw.STREAMS, *draw.ITEMS}
"""What opens files, starts threads or joins several: one epoch an example, and fewer resumes."""


def stages() -> set[type[Stage[Any]]]:
    """Every stage of ours that can be made."""
    for module in pkgutil.walk_packages(brimful.__path__, "brimful."):
        if module.name != "brimful.__main__":
            importlib.import_module(module.name)
    found: set[type[Stage[Any]]] = set()
    waiting: list[type[Any]] = [Stage]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        found |= {cls for cls in subclasses if cls.__module__.startswith("brimful.") and not inspect.isabstract(cls)}
    return found


def test_every_stage_has_a_strategy() -> None:
    missing = sorted(draw.name(cls) for cls in stages() - draw.STAGES - OF_A_CLUSTER)
    assert not missing, f"give {', '.join(missing)} a line in tests/strategies.py"


@pytest.mark.parametrize("cls", sorted(draw.STAGES, key=draw.name), ids=draw.name)
@given(data=st.data(), rows=st.integers(1, 5), size=sizes)
@examples(30)
def test_law_of_each_stage(cls: type[Stage[Any]], data: st.DataObject, rows: int, size: int) -> None:
    make = data.draw(draw.alone(cls))
    with draw.small(rows, size):
        if cls not in ENDLESS:
            assert last_state(make()) == END
        if cls in SLOW:
            assert_exact_resume(
                make, epochs=data.draw(epochs), max_items=16, max_resumes=3 if cls in draw.STREAMS else 5
            )
        else:
            assert_exact_resume(make, max_items=20, max_resumes=20)


@pytest.mark.parametrize("verb", draw.OF_VERBS)
@given(data=st.data(), rows=st.integers(1, 5), size=sizes)
@examples(30)
def test_law_of_each_function_of_samples(verb: str, data: st.DataObject, rows: int, size: int) -> None:
    make = data.draw(st.builds(draw.chain, draw.blocks, draw.OF_VERBS[verb]))
    with draw.small(rows, size):
        assert_exact_resume(make, max_items=20, max_resumes=20)


OF_A_CLUSTER = {OneBlock, RayStage}
"""Of these tests/ray/test_spread.py holds the law, and tests/test_ray.py where there is a cluster."""
ENDLESS = {
    IndexRepeat,
    Loaded,
    Repeat,
    Unbatch,
    *draw.PLANS,
    *draw.BATCHES,
    *draw.STREAMS,
    *draw.STEPS,
    *draw.TENSORS,
    *draw.ITEMS,
    Steps,
}
"""Of these the state after the last item may be another: nothing follows it, but that is not known yet."""


def last_state(stage: Stage[Any]) -> Any:
    with running(stage, stage.start(0)) as items:
        return [END, *(state for _, state in items)][-1]


@given(make=st.one_of(draw.rows(), draw.windows(), draw.batches()), epochs=epochs, rows=st.integers(1, 5), size=sizes)
@examples(50)
def test_law_of_random_chains(make: draw.Make, epochs: tuple[int, ...], rows: int, size: int) -> None:
    with draw.small(rows, size):
        assert_exact_resume(make, epochs=epochs, max_items=25, max_resumes=6)


@given(make=draw.together(), epochs=epochs, rows=st.integers(1, 5), size=sizes)
@examples(60)
def test_law_of_chains_of_units(make: draw.Make, epochs: tuple[int, ...], rows: int, size: int) -> None:
    with draw.small(rows, size):
        assert_exact_resume(make, epochs=epochs, max_items=25, max_resumes=8)


@given(make=draw.rows(), repeat=st.booleans(), rows=st.integers(1, 5), size=sizes)
@examples(20)
def test_law_of_data_sets(make: draw.Make, repeat: bool, rows: int, size: int) -> None:
    with draw.small(rows, size):
        repeat = repeat and draw.gives(make())
        assert_exact_resume(lambda: dataset_of(make(), repeat), epochs=(), max_items=25, max_resumes=5)


@given(make=draw.rows(), data=st.data(), rows=st.integers(1, 5), size=sizes)
@examples(20)
def test_law_of_batches(make: draw.Make, data: st.DataObject, rows: int, size: int) -> None:
    policy = data.draw(draw.policies)
    ahead, repeat = data.draw(st.integers(0, 3)), data.draw(st.booleans())

    def batches() -> bf.Batches:
        made = dataset_of(make(), repeat).select("input_ids").batch(policy, window=4, overlong="truncate")
        return made.to_device("cpu", prefetch=ahead - 1, pad_on_device=True).enumerate().take(30) if ahead else made

    with draw.small(rows, size):
        repeat = repeat and draw.gives(make())
        assert_exact_resume(batches, epochs=(), max_items=20, max_resumes=4)


@given(make=draw.some_without_labels(), link=draw.WITH_LABELS, rows=st.integers(1, 5))
@examples(30)
def test_law_of_samples_without_labels_that_are_refused(make: draw.Make, link: draw.Link, rows: int) -> None:
    """All batches up to the first that has one are as ever. The next one is an error, also after a resume."""

    def stage(unlabelled: Any) -> Stage[Any]:
        return replace(cast(Collated, link(make())), unlabelled=unlabelled)

    def items(unlabelled: Any, at: Any) -> tuple[list[Any], str]:
        found: list[Any] = []
        try:
            with running(made := stage(unlabelled), at or made.start(0)) as items:
                found += islice(items, 20)
        except bf.DataError as error:
            return found, str(error)
        return found, ""

    with draw.small(rows):
        (kept, _), (found, error) = items("keep", None), items("raise", None)
        assert first_difference(found, kept[: len(found)]) is None
        assert "has no label to train on" in error if error else len(found) == len(kept)
        for number, (_, state) in enumerate(found, 1):
            if state != END:
                rest, again = items("raise", json.loads(json.dumps(state)))
                assert first_difference(rest[: len(found) - number], found[number:]) is None
                assert again == error or not error


@pytest.mark.parametrize("cls", [Chunk, ConcatChunk, PackChunk])
@given(data=st.data(), rows=st.integers(1, 5))
@examples(30)
def test_law_of_columns_that_are_cut_together(cls: type[Stage[Any]], data: st.DataObject, rows: int) -> None:
    link = data.draw(draw.on(cls, target_columns=("input_ids", "labels"), chunk_length=draw.few, **EXTRA[cls]))
    make = draw.chain(data.draw(draw.blocks), link)
    with draw.small(rows):
        assert_exact_resume(make, max_items=30, max_resumes=30)


EXTRA: dict[type[Stage[Any]], dict[str, Any]] = {
    Chunk: {"drop_remainder": st.booleans()},
    ConcatChunk: {"drop_remainder": st.booleans()},
    PackChunk: {"discard_long_samples": st.booleans()},
}


# -- blocks: where they begin and end changes nothing but where blocks begin and end ---------------------------------------


def rows_of(item: Any) -> Iterator[Any]:
    """What a stream says, without how it was cut."""
    if isinstance(item, pa.RecordBatch):
        yield from item.to_pylist()
    elif isinstance(item, PlanningWindow):
        yield item.number, item.lengths.tolist(), *item.take(np.arange(len(item))).to_pylist()
    elif isinstance(item, OrderedBatches):
        yield from (row for place in range(len(item)) for row in rows_of(Batch(item.laid_out(), place)))
    else:
        yield item.numbers.tolist(), item.padded_length, item.padded_size, *rows_of(item.window)


def content(make: draw.Make, epoch: int = 1) -> list[Any]:
    stage = make()
    with running(stage, stage.start(epoch)) as items:
        return list(islice((row for item, _ in items for row in rows_of(item)), 300))


def assert_blocks_change_nothing(lengths: list[int], links: list[draw.Link], *cuts: tuple[int, ...]) -> None:
    one, two = (content(draw.chain(partial(draw.Blocks, tuple(lengths), cut), *links)) for cut in cuts)
    difference = first_difference(one, two)
    assert difference is None, difference


ON_BLOCKS: dict[type[Stage[Any]], st.SearchStrategy[draw.Link]] = {
    **draw.ROWS,
    **draw.WINDOWS,
    **draw.PLANS,
}
del ON_BLOCKS[Planned]


@pytest.mark.parametrize("cls", sorted(ON_BLOCKS, key=draw.name), ids=draw.name)
@given(data=st.data(), lengths=draw.lengths, some=draw.sizes, other=draw.sizes)
@examples(30)
def test_blocks_never_change_what_a_stage_gives(
    cls: type[Stage[Any]], data: st.DataObject, lengths: list[int], some: tuple[int, ...], other: tuple[int, ...]
) -> None:
    below = [data.draw(draw.WINDOWS[Buffered])] if cls in draw.PLANS else []
    assert_blocks_change_nothing(lengths, [*below, data.draw(ON_BLOCKS[cls])], some, other)


@given(lengths=draw.lengths, some=draw.sizes, other=draw.sizes, links=draw.row_links())
@examples(60)
def test_blocks_never_change_what_a_chain_gives(
    lengths: list[int], some: tuple[int, ...], other: tuple[int, ...], links: list[draw.Link]
) -> None:
    assert_blocks_change_nothing(lengths, links, some, other)


@given(data=st.data(), link=st.one_of(*draw.SEVERAL.values()))
@examples(60)
def test_blocks_never_change_what_several_streams_give(data: st.DataObject, link: draw.Link) -> None:
    lengths = data.draw(st.lists(draw.lengths, min_size=1, max_size=3))
    one, two = (
        draw.joined([partial(draw.Blocks, tuple(one), data.draw(draw.sizes)) for one in lengths], link)
        for _ in range(2)
    )
    difference = first_difference(content(one), content(two))
    assert difference is None, difference


@given(make=st.one_of(*draw.SOURCES.values()), rows=st.integers(1, 5), size=sizes)
@examples(60)
def test_block_and_read_sizes_never_change_what_a_source_gives(make: draw.Make, rows: int, size: int) -> None:
    with draw.small(rows, size):
        found = content(make)
    assert found == content(make)


# -- time: where it ends the blocks of a user's function changes nothing but where blocks end -------------------------------


def cut_by_time(make: draw.Make, link: draw.Link | None = None) -> draw.Make:
    """On rows that come out of a function whose blocks time ends."""
    own = draw.chain(make, lambda upstream: SampleFunction(upstream, "map", draw.unchanged, False))
    return own if link is None else draw.chain(own, link)


@pytest.mark.parametrize("cls", sorted(ON_BLOCKS | draw.SAMPLES, key=draw.name), ids=draw.name)
@given(data=st.data(), lengths=draw.many_lengths, cut=draw.sizes, rows=st.sampled_from([3, 4096]), seed=st.integers(0))
@examples(12)
def test_law_where_time_ends_blocks(
    cls: type[Stage[Any]], data: st.DataObject, lengths: list[int], cut: tuple[int, ...], rows: int, seed: int
) -> None:
    make = cut_by_time(partial(draw.Blocks, tuple(lengths), cut))
    below = [data.draw(draw.WINDOWS[Buffered])] if cls in draw.PLANS else []
    make = draw.chain(make, *below, data.draw((ON_BLOCKS | draw.SAMPLES)[cls]))
    with draw.small(rows):
        steady = content(make) if cls not in draw.SAMPLES else []
        with draw.jumping_time(seed):
            assert_exact_resume(make, max_items=30, max_resumes=5)
            difference = None if cls in draw.SAMPLES else first_difference(content(make), steady)
            assert difference is None, difference


@given(
    make=st.one_of(draw.rows(), draw.windows(), draw.batches()),
    epochs=epochs,
    rows=st.sampled_from([3, 64, 4096]),
    seed=st.integers(0),
)
@examples(40)
def test_law_of_random_chains_where_time_ends_blocks(
    make: draw.Make, epochs: tuple[int, ...], rows: int, seed: int
) -> None:
    with draw.small(rows), draw.jumping_time(seed):
        assert_exact_resume(make, epochs=epochs, max_items=25, max_resumes=6)


@given(data=st.data(), link=st.one_of(*draw.SEVERAL.values()), seed=st.integers(0))
@examples(25)
def test_law_of_several_streams_where_time_ends_blocks(data: st.DataObject, link: draw.Link, seed: int) -> None:
    lengths = data.draw(st.lists(draw.many_lengths, min_size=1, max_size=3))
    make = draw.joined([cut_by_time(partial(draw.Blocks, tuple(one))) for one in lengths], link)
    steady = content(make)
    with draw.jumping_time(seed):
        assert_exact_resume(make, max_items=40, max_resumes=8)
        difference = first_difference(content(make), steady)
        assert difference is None, difference


@given(make=draw.rows(), n=st.integers(1, 9), drop_last=st.booleans(), repeat=st.booleans(), seed=st.integers(0))
@examples(25)
def test_law_of_batches_in_arrival_order_where_time_ends_blocks(
    make: draw.Make, n: int, drop_last: bool, repeat: bool, seed: int
) -> None:
    def batches() -> bf.Batches:
        rows = dataset_of(cut_by_time(make)(), repeat)
        return rows.select("input_ids").batch(n, drop_last=drop_last)

    repeat = repeat and draw.gives(make())
    with draw.jumping_time(seed):
        assert_exact_resume(batches, epochs=(), max_items=20, max_resumes=5)


# -- what random examples rarely meet -------------------------------------------------------------------------------------


def typed(kind: pa.DataType, *rows: list[int]) -> Stage[Block]:
    return bf.from_sequence(pa.table({"input_ids": pa.array(rows, pa.list_(kind))})).stage


@pytest.mark.parametrize("cls", [ConcatChunk, PackChunk])
def test_a_type_is_not_remembered_after_the_rows_that_had_it(cls: type[Any]) -> None:
    def make() -> Stage[Any]:
        rows = Concat((typed(pa.int64(), [1, 2, 3]), typed(pa.int32(), [4, 5], [6]), typed(pa.int32(), [7], [8, 9])))
        return cls(rows, ("input_ids",), 2, *[False] * (cls is PackChunk))  # type: ignore[no-any-return]

    with draw.small(1):
        assert_exact_resume(make)


def test_held_rows_come_out_where_upstream_ends_without_saying_so() -> None:
    def make() -> Stage[Any]:
        rows = Concat((draw.Blocks((1, 1, 1)), Take(draw.Blocks((1,)), 0)))
        return PackChunk(rows, ("input_ids", "labels"), 2, False)

    assert [row["input_ids"] for row in content(make, 0)] == [[0, 100], [200]]
    assert_exact_resume(make)


def test_an_empty_epoch_is_passed_over_also_where_it_is_resumed() -> None:
    assert_exact_resume(
        lambda: Repeat(Filter(draw.Blocks((1, 2, 0), (2, 0)), draw.in_even_epochs, False)), epochs=(0, 1)
    )
    assert_exact_resume(lambda: dataset_of(draw.Blocks((2, 3), (0, 1, 0))).filter(draw.never).take(5))


def test_an_empty_list_at_the_end_of_a_block_is_the_same_wherever_the_block_lies_in_memory() -> None:
    rows = [{"x": [number] * (number % 2)} for number in range(1, 9)]
    url = draw.shard(draw.json_lines(rows), ".jsonl")
    for size in range(40, 60, 4):
        with draw.small(2, size):
            assert_exact_resume(lambda: bf.from_files(url, n_active_shards=1), epochs=(0,))


def test_interleaving_goes_on_where_a_data_set_has_ended() -> None:
    def make() -> Stage[Any]:
        return Interleave((draw.Blocks((1,) * 3), draw.Blocks((1,) * 9), draw.Blocks(())), (1.0, 1.0, 2.0), "all")

    with draw.small(2):
        assert len(content(make)) == 12
        assert_exact_resume(make)


def test_state_stays_small_over_a_thousand_shards_and_a_wide_shuffle() -> None:
    urls = [draw.shard(draw.json_lines(draw.samples_of([3, 1], 2 * number)), ".jsonl") for number in range(1000)]
    samples = bf.from_files(urls, shuffle_shards=True, n_active_shards=10, repeat=True)
    pipeline = samples.tokenize(draw.letters).shuffle(100_000).batch_by_tokens(16)
    sizes = []
    with pipeline.iter() as it:
        for _ in range(500):
            next(it)
            sizes.append(len(json.dumps(it.state_dict())))
    assert max(sizes) < 4096
    with samples.iter() as it:
        for _ in range(500):
            next(it)
            sizes.append(len(json.dumps(it.state_dict())))
    assert max(sizes) < 4096


def test_a_data_set_that_interleaving_left_out_stays_left_out() -> None:
    def make() -> Stage[Any]:
        return Interleave((draw.Blocks((1,) * 9), draw.Blocks((1, 2))), (1.0, 1.0), "all")

    with draw.small(4):
        assert_exact_resume(make)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (7.0, 1.0), (1.0, 7.0)])
@pytest.mark.parametrize("column", [None, "input_ids"])
def test_a_data_set_with_empty_epochs_passes_its_turns_on(weights: tuple[float, float], column: str | None) -> None:
    def make(sizes: tuple[int, ...] = ()) -> Stage[Any]:
        seldom = Filter(draw.Blocks((5, 6)), draw.in_even_epochs, False)
        return Interleave((draw.Blocks((1, 3) * 40, sizes), seldom), weights, "all_repeat", column)

    with draw.small(1):
        assert_exact_resume(make, epochs=(0, 1), max_items=80, max_resumes=20)
    given = content(make, 0)
    epochs = {row["id"] // 1000 for row in given if len(row["input_ids"]) > 4}
    assert {0, 2} <= epochs, "it comes back"
    assert given == content(partial(make, (3,) * 8), 0)


def test_an_automatic_window_is_judged_by_the_same_rows_however_they_are_cut() -> None:
    lengths = (1, 9, 9, 9, 9, 1, 1, 1) * 500
    found = set()
    for cut in ((3,) * 2000, (7,) * 2000, ()):
        stage = Buffered(draw.Blocks(lengths, cut), 0, ("input_ids",), True, bf.TokenBudget(16))
        with draw.small(4), running(stage, stage.start(0)) as items:
            found.add(len(next(items)[0]))
    assert len(found) == 1
    assert found < set(range(len(lengths)))
