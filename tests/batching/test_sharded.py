"""The global order of batches does not depend on the world size, and no rank waits for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

import brimful as bf
from brimful.batching.batch import Batch
from brimful.batching.window import IntArray
from brimful.core.facts import label_of
from brimful.core.own_keys import OWN_KEYS
from brimful.dataset import dataset_of
from brimful.index.index import DataIndex
from brimful.plan.errors import warn_once
from brimful.testing import first_difference
from tests.effort import examples
from tests.shards import write
from tests.store.stores import small
from tests.worlds import WORLDS, plans_by_step, taken_by_worlds

Numbers = tuple[int, ...]
COST = bf.AttentionCost(quadratic=1 / 10)
WAYS = ["budget", "groups", "buckets", "packs", "even budget", "even packs", "arrival"]


def dataset(count: int, seed: int = 0) -> bf.Dataset:
    lengths = np.random.default_rng(seed).integers(1, 60, count)
    rows = [{"input_ids": [number] * length} for number, length in enumerate(lengths.tolist())]
    return bf.from_sequence(rows, shuffle=True)


def ways(count: int) -> dict[str, bf.Batches]:
    data = dataset(count)
    return {
        "budget": data.batch_by_tokens(120, window=50),
        "groups": data.batch_by_tokens(120, window=50, balance_group=2),
        "buckets": data.batch(bf.StaticShapes([10, 30, 60], 120), window=64),
        "packs": data.pack(64, rows=2, window=40),
        "even budget": data.batch_by_tokens(120, window=50, balance_group=4, balance_cost=COST),
        "even packs": data.pack(64, rows=2, window=40, balance_group=4, balance_cost=COST),
        "arrival": data.batch(7),
    }


def rows(batch: Batch) -> Numbers:
    return tuple(batch.window.samples[batch.numbers].tolist())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_the_global_order_is_that_of_one_process(way: str, world_size: int) -> None:
    batches = ways(300)[way]
    expected = [rows(batch) for batch in batches.plans()]
    taken = [batch for step in plans_by_step(batches, world_size) for batch in step]
    assert [rows(batch) for batch in taken if batch.weight] == expected
    fillers = [batch for batch in taken if not batch.weight]
    assert len(fillers) == -len(expected) % world_size
    assert all(rows(filler)[0] in expected[-1] for filler in fillers)
    assert sorted({number for batch in expected for number in batch}) == list(range(300))


@examples(30)
@given(
    count=st.integers(1, 120),
    way=st.sampled_from(WAYS),
    worlds=st.lists(st.sampled_from(WORLDS), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_state_resumes_on_any_world_size(count: int, way: str, worlds: list[int], data: st.DataObject) -> None:
    batches = ways(count)[way]
    with batches.iter() as it:
        expected = [batch["lengths"].tolist() for batch in it]
    runs = [(world_size, data.draw(st.integers(0, 5))) for world_size in worlds]
    taken = taken_by_worlds(batches, [*runs, (1, len(expected))], lambda batch: batch["lengths"].tolist())
    assert taken == expected


@pytest.mark.parametrize(("uneven", "rest"), [("drop", 0), ("wrap", 3)])
def test_uneven_ends_drop_the_step_or_wrap_to_the_first_batches(uneven: str, rest: int) -> None:
    batches = dataset(21).batch(1, shuffle_batches=False)
    taken = [rows(batch)[0] for step in plans_by_step(batches, 4, uneven=uneven) for batch in step]
    order = [rows(batch)[0] for batch in batches.plans()]
    assert taken == (order[:20] if uneven == "drop" else order + order[:rest])
    assert len(batches.shard(0, 4, uneven=uneven)) == (5 if uneven == "drop" else 6)  # type: ignore[arg-type]


def test_wrap_begins_again_as_often_as_it_must() -> None:
    taken = [rows(batch)[0] for step in plans_by_step(dataset(2).batch(1), 5, uneven="wrap") for batch in step]
    assert taken == [taken[0], taken[1], taken[0], taken[1], taken[0]]


def test_an_uneven_end_is_an_error_where_it_is_asked_to_be() -> None:
    with pytest.raises(ValueError, match=r"the last step of the epoch has 1 batches for 4 ranks; choose uneven='pad'"):
        list(dataset(21).batch(1).shard(2, 4, uneven="raise"))


def test_a_filler_has_no_weight_and_no_label() -> None:
    data = [
        {"input_ids": [1, 2, 3], "labels": [4, 5, 6]},
        {"input_ids": [7], "labels": [8]},
        {"input_ids": [9], "labels": [9]},
    ]
    last = list(bf.from_sequence(data).batch(1).shard(1, 2))[-1]
    assert (last["weight"], last["is_filler"]) == (0.0, True)
    assert last["input_ids"].tolist() == [[9]]
    assert last["labels"].tolist() == [[-100]]
    first = next(iter(bf.from_sequence(data).batch(1).shard(1, 2)))
    assert (first["weight"], first["is_filler"], first["labels"].tolist()) == (1.0, False, [[8]])


def test_streamed_data_are_refused_at_a_world_size_above_one() -> None:
    streamed = dataset(10).map(lambda sample: sample).batch(2)
    remedy = r"Use from_files\(streams=...\), or write a token store with to_store\(path\)"
    with pytest.raises(
        ValueError, match=rf"data that are streamed \(by map\) cannot be divided among 2 ranks: .* {remedy}"
    ):
        next(iter(streamed.shard(0, 2)))
    assert len(list(streamed.shard(0, 1))) == 5


def test_indexed_data_that_were_made_a_stream_can_be_divided_without_that() -> None:
    streamed = dataset(10).stream().filter(bool)
    with pytest.raises(ValueError, match=r"\(by filter\) cannot be divided .* can be divided, .* leave out stream\(\)"):
        next(iter(streamed.batch(2).shard(0, 2)))
    assert len(list(dataset(10).filter(bool).batch(2).shard(0, 2))) == 3


def test_sharded_again_it_is_the_last_call_that_counts() -> None:
    batches = dataset(40).batch_by_tokens(120, window=20).enumerate()
    again = batches.shard(0, 2).shard(2, 3, uneven="drop")
    assert first_difference(list(again), list(batches.shard(2, 3, uneven="drop"))) is None
    assert len(again) == len(list(again))


def test_what_was_added_before_counts_the_batches_of_the_rank() -> None:
    batches = dataset(40).batch(3)
    assert first_difference(list(batches.take(4).shard(1, 2)), list(batches.shard(1, 2).take(4))) is None


def test_ranks_that_all_read_the_same_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = dataset(6).batch(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    warn_once.cache_clear()
    with caplog.at_level("WARNING", logger="brimful"):
        assert len(list(batches.shard())) == 2
        assert len(list(batches.shard(0, 1))) == 3
        assert not caplog.records
        assert len(list(batches)) == 3
        assert len(list(batches.loader())) == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("there are 2 ranks, and each rank gets all of these batches. Call .shard()")


@pytest.mark.parametrize("streams", [None, 24])
@pytest.mark.parametrize(("group", "ranks"), [(4, 3), (4, 8), (1, 3), (4, 2), (4, 4), (4, 1)])
def test_a_group_that_the_ranks_do_not_fit_is_told(
    group: int, ranks: int, streams: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = dataset(40)
    if streams is not None:
        for shard in range(streams):
            write(tmp_path / f"{shard}.jsonl", [{"input_ids": [1, 2]}])
        data = bf.from_files(str(tmp_path / "*.jsonl"), streams=streams)
    store = HashStore()
    batches = data.batch_by_tokens(120, window=50, balance_group=group)
    warn_once.cache_clear()
    with caplog.at_level("WARNING", logger="brimful"), ThreadPoolExecutor(ranks) as pool:
        runs = [batches.shard(rank, ranks, process_group=store if streams else None) for rank in range(ranks)]
        assert len({len(found) for found in pool.map(list, runs)}) == 1
        assert len(list(data.batch(2, balance_group=group).shard(0, 1))) > 0
    said = [record.getMessage() for record in caplog.records]
    expected = (
        f"balance_group={group} is not a multiple of the {ranks} ranks, so the batches of a step come from several groups, and "
        f"ranks wait for the dearest. Give balance_group={ranks}, or a multiple of all numbers of ranks that you use. A state "
        "keeps its group"
    )
    assert set(said) == ({expected} if group > 1 and group % ranks else set())


@pytest.mark.parametrize("make", ["batch_by_tokens", "pack"])
@pytest.mark.parametrize(("group", "ranks"), [(1, 3), (1, 1), (3, 3)])
def test_a_cost_without_groups_is_told_where_there_are_ranks(
    group: int, ranks: int, make: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = getattr(dataset(40), make)(120, balance_group=group, balance_cost=bf.AttentionCost(quadratic=1))
    warn_once.cache_clear()
    with caplog.at_level("WARNING", logger="brimful"):
        for rank in range(ranks):
            assert list(batches.shard(rank, ranks))
    said = (
        "balance_cost is given without balance_group, so the batches of a step differ in cost, and ranks wait for the dearest. "
        "Give balance_group=3, or a multiple of all numbers of ranks that you use. A state keeps its group"
    )
    assert [record.getMessage() for record in caplog.records] == ([said] if group < ranks else [])


def test_why_the_number_of_batches_is_not_known() -> None:
    streamed = dataset(10).map(lambda sample: sample)
    with pytest.raises(TypeError, match=r"the number of batches is not known: the data set is streamed \(by map\)"):
        len(streamed.take(5).batch(2).shard(0, 2))
    repeated = bf.from_sequence([{"input_ids": [1]}], repeat=True).batch(2)
    with pytest.raises(TypeError, match="the data set repeats without end"):
        len(repeated.shard(0, 2))
    with pytest.raises(TypeError, match=r"the data set is streamed \(by from_files\)"):
        len(bf.from_files("nowhere.jsonl", streams=2).batch(2))


def test_the_rank_comes_from_the_environment_or_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = dataset(6).batch(1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(
        ValueError, match=r"RANK in the environment must be a number \(got 'one'\); set it, or give shard"
    ):
        list(batches.shard())
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="WORLD_SIZE=2 in the environment, but no RANK"):
        next(iter(batches.shard()))
    monkeypatch.setenv("RANK", "1")
    assert [rows(batch) for batch in batches.shard().plans()] == [rows(batch) for batch in list(batches.plans())[1::2]]


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [(2, 2, r"rank must be at least 0 and below world_size=2 \(got 2\)"), (1, None, "rank and world_size go together")],
)
def test_a_rank_outside_the_world_is_refused(rank: int, world_size: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(dataset(4).batch(1).shard(rank, world_size))


# -- a rank's own rows ---------------------------------------------------------------------------------------------------


def labelled(count: int, seed: int = 0, longest: int = 60) -> list[dict[str, Any]]:
    """Samples of which some ask for few labels, some for none, and some for their first one; a few are empty."""
    draw = np.random.default_rng(seed)
    out: list[dict[str, Any]] = []
    for number in range(count):
        tokens = draw.integers(1, 90, draw.integers(0, longest))
        labels = np.where(draw.random(len(tokens)) < draw.choice([0, 0.3, 1]), -100, tokens)
        score = [0.5] * int(draw.integers(0, 3))
        out.append(
            {
                "input_ids": tokens.tolist(),
                "labels": labels.tolist(),
                "score": score,
                "id": number,
                "text": f"t{number}",
            }
        )
    return out


def kept(path: Path, rows: list[dict[str, Any]]) -> bf.Dataset:
    """A store, shuffled."""
    with small(batch_bytes=2_000, file_bytes=20_000):
        bf.from_sequence(rows).to_store(path / "store")
    return bf.from_store(path / "store", shuffle=True)


@dataclass(frozen=True, eq=False)
class Counting(DataIndex):
    """An index that notes how many rows it is asked for."""

    index: DataIndex
    asked: list[int]

    def __len__(self) -> int:
        return len(self.index)

    def lengths_at(self, numbers: IntArray, columns: Sequence[str], required: bool) -> Any:
        return self.index.lengths_at(numbers, columns, required)

    def locate(self, numbers: IntArray) -> Any:
        self.asked.append(len(numbers))
        return self.index.locate(numbers)

    @property
    def schema(self) -> pa.Schema:
        return self.index.schema

    def num_labels_at(self, numbers: IntArray, column: str = "labels") -> IntArray | None:
        return self.index.num_labels_at(numbers, column)

    def fingerprint(self) -> Any:
        return self.index.fingerprint()


def counting(data: bf.Dataset) -> tuple[bf.Dataset, list[int]]:
    asked: list[int] = []
    return dataset_of(replace(data.stage, rows=Counting(data.stage.rows, asked))), asked  # type: ignore[call-arg, attr-defined]


POLICIES: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "budget": lambda data: data.batch_by_tokens(120, window=50),
    "truncated": lambda data: data.batch_by_tokens(40, window=50, overlong="truncate"),
    "left": lambda data: data.batch_by_tokens(120, window=70, pad_side="left", pad_to_multiple_of=8),
    "static": lambda data: data.batch(bf.StaticShapes([10, 30, 60], 120), window=64),
    "fixed": lambda data: data.batch(7),
    "pairs": lambda data: data.batch_by_tokens(240, window=50, length_column=("input_ids", "labels")),
    "another length": lambda data: data.batch_by_tokens(9, window=50, length_column="score", token_columns=()),
    "by key": lambda data: data.batch_by(4, lambda sample: len(sample["input_ids"]), window=30),
    "nested": lambda data: data.batch_by_tokens(120, window=50, layout="nested"),
    "nested, truncated": lambda data: data.batch_by_tokens(40, window=50, layout="nested", overlong="truncate"),
    "packed": lambda data: data.pack(64, rows=2, window=40),
    "packed, split": lambda data: data.pack(17, rows=3, window=40, overlong="split"),
    "packed, truncated": lambda data: data.pack(17, rows=3, window=40, overlong="truncate"),
    "packed by score": lambda data: data.pack(6, rows=3, window=40, length_column="score", token_columns=()),
}


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("way", POLICIES)
def test_a_rank_has_the_batches_that_one_process_has(way: str, world_size: int, tmp_path: Path) -> None:
    """Also as to what is a tensor and how it is padded, which all samples of a window decide."""
    data = kept(tmp_path, labelled(200, seed=len(way)))
    expected = list(POLICIES[way](data))
    ranks = [list(POLICIES[way](data).shard(rank, world_size)) for rank in range(world_size)]
    taken = [batch for step in zip(*ranks, strict=True) for batch in step]
    for batch, other in zip(taken, expected):
        for name in ("weight", "is_filler", "num_items_in_batch", "num_samples_in_batch"):
            batch.pop(name)
        batch.pop("sum_of_weights_in_batch", None)
        assert first_difference(batch, other) is None


@pytest.mark.parametrize("way", ["budget", "packed", "fixed"])
def test_a_rank_of_four_locates_a_quarter_of_the_rows(way: str, tmp_path: Path) -> None:
    data, asked = counting(kept(tmp_path, labelled(300)))
    for rank in range(4):
        asked.clear()
        for _ in POLICIES[way](data).shard(rank, 4):
            pass
        assert 0.7 < sum(asked) / (300 / 4) < 1.3
    asked.clear()
    for _ in POLICIES[way](data).shard(0, 1):
        pass
    assert sum(asked) == 300
    assert len(asked) == len({batch.window for batch in POLICIES[way](data).plans()}), "one bulk fetch a window"


@pytest.mark.parametrize("world_size", [1, 3])
def test_packed_samples_are_told_by_their_rows_of_the_store(world_size: int, tmp_path: Path) -> None:
    rows = labelled(50)
    batches = kept(tmp_path, rows).pack(64, window=20)
    for rank in range(world_size):
        for batch in batches.shard(rank, world_size):
            assert batch["id"].tolist() == batch["sample_numbers"].tolist()


def test_plans_of_a_rank_locate_no_row(tmp_path: Path) -> None:
    data, asked = counting(kept(tmp_path, labelled(100)))
    assert list(POLICIES["budget"](data).shard(1, 2).plans())
    assert not asked


@examples(20)
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=3), world_size=st.integers(1, 4), data=st.data())
def test_a_joined_index_gives_ranks_what_one_process_has(
    counts: list[int], world_size: int, data: st.DataObject
) -> None:
    """With labels in all parts or none, texts in some alone, and other types in some."""
    parts = []
    with_labels = data.draw(st.booleans())
    for number, count in enumerate(counts):
        rows = labelled(count, seed=number)
        if data.draw(st.booleans()):
            rows = [{name: value for name, value in row.items() if name != "text"} for row in rows]
        if not with_labels:
            rows = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        parts.append(bf.from_sequence(rows, shuffle=True))
    batches = bf.concat_datasets(parts).batch_by_tokens(120, window=20)
    expected = list(batches)
    ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
    taken = [batch for step in zip(*ranks, strict=True) for batch in step]
    for step in zip(*ranks, strict=True):
        check_count(list(step), known=None)
    for batch, other in zip(taken, expected):
        own = {name: value for name, value in batch.items() if name not in OWN_KEYS or name == "lengths"}
        assert first_difference(own, other) is None


# -- how many tokens of a step are trained on ----------------------------------------------------------------------------


def supervised(batch: dict[str, Any]) -> int:
    labels = batch["labels"]
    return int(((labels.values() if labels.is_nested else labels) != -100).sum())


def check_count(step: list[dict[str, Any]], known: bool | None = True) -> None:
    """What all ranks are given in a step; `known` (None: perhaps): on all of them alike."""
    assert len({"num_items_in_batch" in batch for batch in step}) == 1
    if known is not None:
        assert ("num_items_in_batch" in step[0]) == known
    if "num_items_in_batch" in step[0]:
        numbers = [batch["num_items_in_batch"] for batch in step]
        assert {(number.dtype, number.shape) for number in numbers} == {(torch.int64, ())}
        assert [int(number) for number in numbers] == [sum(map(supervised, step))] * len(step)


@pytest.mark.parametrize("uneven", ["pad", "drop", "wrap", "raise"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("way", POLICIES)
def test_every_batch_knows_the_labels_of_its_step(way: str, world_size: int, uneven: Any) -> None:
    batches = POLICIES[way](bf.from_sequence(labelled(101, seed=len(way)), shuffle=True))
    complete = len(list(batches.plans())) // world_size
    ranks = [iter(batches.shard(rank, world_size, uneven=uneven)) for rank in range(world_size)]
    if uneven == "raise":  # raised at the end
        ranks = [islice(rank, complete) for rank in ranks]
    steps = list(zip(*ranks, strict=True))
    assert len(steps) - complete in (0, 1)
    for step in steps:
        check_count(list(step))


@examples(40)
@given(
    way=st.sampled_from(sorted(POLICIES)),
    count=st.integers(1, 60),
    seed=st.integers(0, 99),
    world_size=st.integers(1, 5),
    uneven=st.sampled_from(["pad", "drop", "wrap"]),
    stored=st.booleans(),
    done=st.integers(0, 5),
)
def test_the_labels_of_a_step_are_those_of_the_tensors(
    way: str, count: int, seed: int, world_size: int, uneven: Any, stored: bool, done: int
) -> None:
    """To the last step of an epoch, and after a resume."""
    rows = labelled(count, seed)
    with TemporaryDirectory() as folder:
        batches = POLICIES[way](kept(Path(folder), rows) if stored else bf.from_sequence(rows, shuffle=True))
        ranks = [batches.shard(rank, world_size, uneven=uneven).iter() for rank in range(world_size)]
        steps = list(zip(*ranks, strict=True))
        again = [batches.shard(rank, world_size, uneven=uneven).iter() for rank in range(world_size)]
        for iterator in again:
            list(islice(iterator, done))
        resumed = [batches.shard(r, world_size, uneven=uneven).iter(it.state_dict()) for r, it in enumerate(again)]
        assert len(list(zip(*resumed, strict=True))) == max(0, len(steps) - done)
        for step in steps:
            check_count(list(step))


def test_the_labels_of_cut_samples_alone_are_looked_at() -> None:
    rows = labelled(100)
    data, asked = counting(bf.from_sequence(rows, shuffle=True))
    batches = data.pack(50, window=100, overlong="truncate").shard(0, 2)
    assert len(list(batches.plans())) > 1
    assert asked == [sum(len(row["input_ids"]) > 50 for row in rows)]


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ([0.5, -100.0], 3),
        (-100.0, 3),
        (False, 3),
        ([True, False], 3),
        ([[1, -100], [2, 3]], 3),
        (7, 3),
        (-100, 0),
        ("text", None),
    ],
    ids=str,
)
def test_labels_that_are_not_one_integer_a_token_count_as_one_a_sample(
    labels: Any, count: int | None, tmp_path: Path
) -> None:
    rows = pa.table({"input_ids": [[1, 2]] * 3, "labels": typed([labels] * 3)})
    bf.from_sequence(rows).to_store(tmp_path / "store")
    for data in (bf.from_sequence(rows), bf.from_store(tmp_path / "store")):
        known = {int(batch.get("num_items_in_batch", -1)) for batch in data.batch(2).shard(0, 2)}
        is_read = isinstance(labels, int) and not isinstance(labels, bool) and label_of(data.stage) == "from_store"
        assert known == {-1 if count is None or is_read else count}


def typed(labels: list[Any]) -> pa.Array:
    """Lists in lists as arrays of one shape."""
    if not isinstance(labels[0], list) or not isinstance(labels[0][0], list):
        return pa.array(labels)
    return pa.array(labels, pa.list_(pa.list_(pa.int64(), 2), 2))


def test_data_without_labels_have_no_count() -> None:
    data, asked = counting(bf.from_sequence([{"input_ids": [1, 2, 3]}] * 4))
    assert "num_items_in_batch" not in next(iter(data.batch(2).shard(0, 2)))
    assert asked


def test_labels_that_packing_makes_of_tokens_are_counted_without_a_row() -> None:
    data, asked = counting(bf.from_sequence([{"input_ids": [1] * (1 + n % 7)} for n in range(50)]))
    for batches in (data.pack(7, rows=2), data.pack(3, rows=2, overlong="split")):
        asked.clear()
        assert [batch.num_labels for batch in batches.shard(0, 2).plans()]
        assert asked == []
        ranks = [list(batches.shard(rank, 2)) for rank in range(2)]
        for step in zip(*ranks, strict=True):
            expected = sum(int((batch["labels"] != -100).sum()) for batch in step)
            assert {int(batch["num_items_in_batch"]) for batch in step} == {expected}


def test_streamed_windows_have_no_count() -> None:
    data = bf.from_sequence(labelled(20)).map(lambda sample: sample)
    assert "num_items_in_batch" not in next(iter(data.batch(4).shard(0, 1)))


@pytest.mark.parametrize("options", [{"pad_values": {"labels": 0}}, {"dtypes": {"labels": "float32"}}])
def test_where_padding_may_be_taken_for_labels_there_is_no_count(options: Any) -> None:
    batches = bf.from_sequence(labelled(20)).batch(4, **options)
    assert "num_items_in_batch" not in next(iter(batches.shard(0, 2)))


def test_a_collate_fn_that_returns_a_dict_has_the_count_of_its_samples() -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {"labels": torch.tensor([label for sample in samples for label in sample["labels"]])}

    data = bf.from_sequence(labelled(50, seed=3))
    for batches in (data.batch(4, collate_fn=collate), data.pack(17, rows=2, overlong="split", collate_fn=collate)):
        for step in zip(*(batches.shard(rank, 3) for rank in range(3)), strict=True):
            check_count(list(step))
    assert isinstance(next(iter(data.batch(4, collate_fn=list).shard(0, 3, uneven="drop"))), list)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_fillers_that_nothing_can_mark_are_refused_on_every_rank(streamed: bool, ahead: bool, tmp_path: Path) -> None:
    """Nine rows on two ranks had the last one twice. A rank alone has no filler, and other choices make none."""
    for shard in range(2):
        (tmp_path / f"{shard}.jsonl").write_text('{"input_ids": [1]}\n' * (4 + shard))
    files = bf.from_files(str(tmp_path / "*.jsonl"), streams=2)
    data = files if streamed else bf.from_sequence([{"input_ids": [1]}] * 9)
    batches = data.batch(1, collate_fn=lambda samples: [len(samples)])
    batches = batches.prefetch(2) if ahead else batches

    def counts(world_size: int, uneven: Any) -> list[Any]:
        store = HashStore()

        def taken(rank: int) -> Any:
            try:
                return len(list(batches.shard(rank, world_size, process_group=store, uneven=uneven)))
            except TypeError as error:
                return str(error)

        with ThreadPoolExecutor(world_size) as threads:
            return list(threads.map(taken, range(world_size)))

    refused = (
        "collate_fn returned a list, and shard(uneven='pad') marks a filler in a dict. Return a dict, or say "
        "uneven='drop', which leaves out a step without a batch for each rank"
    )
    assert counts(2, "pad") == [refused] * 2
    assert (counts(2, "drop"), counts(2, "wrap"), counts(1, "pad")) == ([4, 4], [5, 5], [9])


def test_what_says_nothing_of_ranks_is_refused_at_once() -> None:
    batches = bf.from_sequence([[1], [2]]).batch(1)
    with pytest.raises(
        TypeError, match=r"^mesh takes a device mesh of torch.distributed, such as mesh\['dp'\] \(got 3\)$"
    ):
        batches.shard(mesh=3)
    with pytest.raises(
        TypeError,
        match=r"^process_group takes a group of torch.distributed that this rank is in, or a Store \(got -100\)$",
    ):
        batches.shard(process_group=-100)
