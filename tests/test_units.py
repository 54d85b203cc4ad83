"""Units from the data to the batch, in random trials against plain Python: none is parted, and each sample comes once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain, groupby, islice
from random import Random
from typing import Any

import pytest

import brimful as bf
from tests.strategies import small

Rows = list[dict[str, Any]]


def rows_of(random: Random, first: int = 0, most: int = 12, longest: int = 5) -> Rows:
    """Samples of a few units, of which neighbours may have one key once more, further on."""
    rows: Rows = []
    for unit in range(random.randint(1, most)):
        key = first + unit % 7 if random.random() < 0.8 else f"{unit}"
        rows += [
            {"key": str(key), "id": first * 1000 + len(rows) + place, "input_ids": [1] * random.randint(1, 6)}
            for place in range(random.randint(1, longest))
        ]
    return rows


def units_in(rows: Rows) -> list[tuple[int, ...]]:
    return [tuple(row["id"] for row in own) for _, own in groupby(rows, lambda row: row["key"])]


def kinds(rows: Rows) -> dict[str, Callable[[], bf.Dataset]]:
    return {
        "sequence": lambda: bf.from_sequence(rows),
        "cached": lambda: bf.from_iterable(rows).cache(),
        "sliced": lambda: (bf.from_sequence(rows[:3]) + bf.from_sequence(rows[3:])).take(len(rows)),
        "iterable": lambda: bf.from_iterable(rows),
        "mapped": lambda: bf.from_sequence(rows).map(lambda row: row),
    }


def ids_of(batch: Any) -> list[int]:
    """Without the copies that fill up a static shape."""
    weights = batch.get("sample_weights", [1] * len(batch["id"]))
    return [int(number) for number, weight in zip(batch["id"], weights, strict=True) if weight]


def assert_whole(batches: list[list[int]], units: list[tuple[int, ...]]) -> None:
    """Each unit is in one batch, in its order, its samples beside one another."""
    assert sorted(chain.from_iterable(batches)) == sorted(chain.from_iterable(units))
    at = {number: (which, place) for which, batch in enumerate(batches) for place, number in enumerate(batch)}
    for unit in units:
        which, first = at[unit[0]]
        assert [at[number] for number in unit] == [(which, first + place) for place in range(len(unit))]


POLICIES: list[Any] = [
    bf.FixedSize(6),
    bf.TokenBudget(30),
    bf.StaticShapes([3, 6], 36),
    bf.MultiBudget(padded={"input_ids": 40}, max_samples=7),
]


@pytest.mark.parametrize("kind", ["sequence", "cached", "sliced", "iterable", "mapped"])
def test_no_batch_parts_a_unit_and_each_sample_comes_once(kind: str) -> None:
    random = Random(kind)
    for _ in range(60):
        rows = rows_of(random)
        data = kinds(rows)[kind]().units("key")
        shuffled = data.shuffle(random.randint(1, 20), seed=random.randint(0, 9)) if random.random() < 0.7 else data
        how = {"window": random.choice([4, 10, "auto"]), "shuffle_batches": random.random() < 0.5}
        batches = shuffled.batch(random.choice(POLICIES), **how)
        with small(random.randint(1, 6)):
            found = list(map(ids_of, batches))
        assert_whole(found, units_in(rows))


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5, 8, 100])
def test_a_shuffle_moves_whole_units_alike_on_indexed_and_streamed_data(buffer_size: int) -> None:
    random = Random(buffer_size)
    for _ in range(60):
        rows = rows_of(random, most=14)
        orders = []
        for kind in ("sequence", "sliced", "iterable", "mapped"):
            with small(random.randint(1, 6)):
                orders.append([row["id"] for row in kinds(rows)[kind]().units("key").shuffle(buffer_size)])
        assert orders == orders[:1] * 4
        assert_whole([orders[0]], units_in(rows))


def test_any_place_of_a_shuffle_is_found_alone() -> None:
    random = Random(0)
    for _ in range(100):
        rows = rows_of(random)
        shuffled = bf.from_sequence(rows, repeat=random.random() < 0.5).units("key").shuffle(random.randint(1, 9))
        order = [row["id"] for row in islice(shuffled, 2 * len(rows) if shuffled.repeats else len(rows))]
        for place in random.sample(range(len(order)), min(5, len(order))):
            assert shuffled[place]["id"] == order[place]


def test_indexed_and_streamed_data_have_the_same_batches() -> None:
    random = Random(1)
    for _ in range(80):
        rows = rows_of(random, most=20)
        policy, window = random.choice(POLICIES), random.randint(1, 12)
        found = []
        for kind in ("sequence", "iterable", "mapped"):
            with small(random.randint(1, 6)):
                found.append(list(map(ids_of, kinds(rows)[kind]().units("key").batch(policy, window=window))))
        assert found == found[:1] * 3


@pytest.mark.parametrize("world_size", range(1, 9))
def test_ranks_share_batches_of_whole_units(world_size: int) -> None:
    random = Random(world_size)
    for _ in range(25):
        rows = rows_of(random)
        batches = bf.from_sequence(rows).units("key").shuffle(9).batch(bf.TokenBudget(30), window=12)
        every = list(map(ids_of, batches))
        of_ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
        steps = [batch for step in zip(*of_ranks, strict=True) for batch in step]
        assert [ids_of(batch) for batch in steps if not batch["is_filler"]] == every
        assert_whole(every, units_in(rows))


def chains(random: Random, rows: Rows) -> Iterator[bf.Dataset]:
    other = rows_of(random, first=50)
    weights = [random.choice([1, 2.5]), 1]
    for kind in ("sequence", "iterable"):
        one, two = (kinds(own)[kind]().units("key") for own in (rows, other))
        yield one.filter(lambda row: row["id"] % 3 > 0).shuffle(7)
        yield one.shuffle(5) + two
        yield bf.interleave_datasets([one.shuffle(5), two], weights=weights, stop="all")
        yield one.train_valid_split(0.5)[0].shuffle(6)
        yield one.enumerate()


def test_chains_of_units_resume_at_every_batch() -> None:
    random = Random(2)
    for _ in range(6):
        for data in chains(random, rows_of(random)):
            with small(random.randint(1, 6)):
                resumed(data.batch(random.choice(POLICIES), window=random.choice([5, 12])))


def resumed(batches: bf.Batches) -> None:
    whole, states = [], []
    with batches.iter() as it:
        for batch in islice(it, 20):
            whole.append(ids_of(batch))
            states.append(json.loads(json.dumps(it.state_dict())))
    for number, state in enumerate(states):
        with batches.iter(state) as it:
            assert [ids_of(batch) for batch in islice(it, len(whole) - number - 1)] == whole[number + 1 :]


ROWS: Rows = [{"key": str(number // 3), "id": number, "input_ids": [1] * (1 + number % 4)} for number in range(12)]


def files(tmp_path: Any) -> str:
    for number in range(2):
        lines = (json.dumps(row) for row in ROWS[6 * number : 6 * number + 6])
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "*.jsonl")


def one(path: Any = None) -> Any:
    return bf.from_sequence(ROWS)


def stream(path: Any = None) -> Any:
    return bf.from_iterable(ROWS)


MESSAGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda path: one().units(3), "units takes the name of a column, such as 'prompt_id' (got 3)"),
    (lambda path: one().units("key", within="row"), "within must be"),
    (lambda path: list(one().units("prompt")), "prompt"),
    (lambda path: list(stream().units("prompt")), "prompt"),
    (lambda path: list(stream().map(lambda row: {**row, "key": None if row["id"] > 4 else "a"}).units("key")), "'key' is null"),
    (lambda path: one().shuffle(4).units("key"), "shuffle moves each row by itself. Call units before it"),
    (lambda path: stream().shuffle(4).units("key"), "shuffle moves each row by itself. Call units before it"),
    (lambda path: bf.from_sequence(ROWS, shuffle=True).units("key"), "shuffle=True moves each row by itself. Leave it out"),
    (
        lambda path: bf.from_files(files(path)).units("key"),
        "a row of each of n_active_shards=10 open files in turn. Give n_active_shards=1",
    ),
    (lambda path: bf.interleave_datasets([one(), one()]).units("key"), "Call units on each data set, before they are mixed"),
    (lambda path: one().shuffle(4).batch(4, keep_together="key"), "shuffle moves each row by itself. Call units before it"),
    (
        lambda path: list(one().units("key").take(4)),
        "take(4) parts a unit of 'key' at sample 4: the rows on both sides have one key. The unit has the "
        "samples 3 to 5: take(3) or take(6) would do",
    ),
    (lambda path: list(one().units("key")[2:]), "skip(2) parts a unit of 'key'"),
    (lambda path: list(one().units("key").shuffle(7).skip(1)), "skip(1) parts a unit of 'key' at sample 1"),
    (
        lambda path: list(one().units("key").shuffle(7).skip(1)),
        "in this epoch. A shuffle gives each epoch another order: skip before it",
    ),
    (lambda path: list(stream().units("key").take(4)), "take(4) parts a unit of 'key' at iterable, row 3"),
    (lambda path: list(stream().units("key").skip(4)), "skip(4) parts a unit of 'key' at iterable, row 4"),
    (
        lambda path: one().units("key").stride(2, 0),
        "stride takes samples one by one, and would part the units of 'key': call stride before units",
    ),
    (lambda path: one().units("key")[::2], "stride takes samples one by one"),
    (lambda path: stream().units("key").stride(2, 0), "stride takes rows one by one, and would part the units of 'key'"),
    (
        lambda path: one().units("key").concat_chunk(4),
        "concat_chunk joins rows, and would part the units of 'key': call concat_chunk before units",
    ),
    (lambda path: one().units("key").pack_chunk(4), "pack_chunk joins rows"),
    (lambda path: stream().units("key").sliding_window(2), "sliding_window puts a row into several"),
    (lambda path: bf.zip_datasets([one().units("key"), one().select("id")]), "call units on the result of zip_datasets"),
    (lambda path: bf.zip_datasets([stream().units("key"), stream()]), "call units on the result of zip_datasets"),
    (lambda path: one().units("key").cache(), "call units on the result of cache"),
    (lambda path: one().units("key").to_store(path / "store"), "call units on the store"),
    (lambda path: one().units("key") + one(), "concat_datasets: data set 0 has units('key') and data set 1 has no units"),
    (
        lambda path: bf.interleave_datasets([one(), stream().units("key")]),
        "data set 0 has no units and data set 1 has units('key')",
    ),
    (
        lambda path: bf.interleave_datasets([one().units("key")] * 2).shuffle(4),
        "a mixture of units cannot be shuffled as indexed data are",
    ),
    (
        lambda path: one().units("key").train_valid_split(0.5, key="id"),
        "train_valid_split(key='id') may part the units of 'key': leave key out",
    ),
    (
        lambda path: list(one().units("key").map_blocks(lambda block: block.slice(0, 2))),
        "returned 2 rows for 12, and nobody knows the units of these",
    ),
    (lambda path: one().units("key").pack(8, overlong="split"), "overlong='split' parts the units of 'key'"),
    (
        lambda path: list(one().units("key").batch(2)),
        "a unit of 3 samples (sequence, row 0) is padded to 3 tokens, and cannot fit a batch of that length, "
        "which has at most 2 samples",
    ),
    (lambda path: list(stream().units("key").batch_by_tokens(8)), "a unit of 3 samples (iterable, row 0) is padded to 3 tokens"),
    (
        lambda path: list(one().units("key").pack(5)),
        "a unit of 3 samples (sequence, row 0) has 6 in sum, and cannot fit row_length=5",
    ),
    (
        lambda path: list(one().units("key").batch_by(2, key=lambda row: len(row["input_ids"]))),
        "batch_by sorts samples by key, and parts a unit",
    ),
    (
        lambda path: one().units("key", within="step").batch(3, keep_together="id"),
        "units('id') may part samples that units('key', within='step') keeps together: call units once",
    ),
    (lambda path: stream().units("key").shuffle(4).units("key"), "units('key') may part samples that units('key') keeps"),
    (
        lambda path: list(one().units("key").drop("key").train_valid_split(0.5)[0]),
        "Units are split by their key: then split before you drop or rename it",
    ),
    (
        lambda path: list(one().units("key").batch_by_tokens(8)),
        "which has at most 2 samples; filter it, or raise the budget; or set overlong='drop' for such samples",
    ),
    (lambda path: list(bf.from_sequence(ROWS, repeat=True).skip(3).units("key").take(3)), "Call units before the data repeat"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), MESSAGES, ids=range(len(MESSAGES)))
def test_what_would_part_a_unit_is_told(make: Callable[[Any], Any], words: str, tmp_path: Any) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=re.escape(words)):
        make(tmp_path)


def test_a_unit_without_an_end_is_an_error() -> None:
    rows = [{"key": 1, "n": number} for number in range(70_000)]
    for data in (bf.from_sequence(rows), bf.from_iterable(rows)):
        with pytest.raises(bf.DataError, match="more than 65,536 neighbouring rows have one key"):
            list(data.units("key"))


def test_what_is_too_large_is_dropped_or_alone_as_a_whole() -> None:
    data = one().units("key")
    alone = list(map(ids_of, data.batch_by_tokens(11, overlong="alone", shuffle_batches=False)))
    assert alone == [[3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 1, 2]]
    with data.batch_by_tokens(11, overlong="drop").iter() as it:
        assert list(map(ids_of, it)) == [[0, 1, 2]]
        assert it.stats["dropped"] == 9


@pytest.mark.parametrize("make", [one, stream])
def test_a_unit_has_no_shape_of_its_own_beside_static_ones(make: Callable[[], Any]) -> None:
    data, policy = make().units("key"), bf.StaticShapes([4], 8)
    with pytest.raises(
        bf.DataError, match=r"a unit of 3 samples \(.* cannot fit static shapes of at most 2 samples, also alone"
    ):
        list(data.batch(policy, overlong="alone"))
    assert not list(data.batch(policy, overlong="drop"))


def test_units_of_files_are_those_of_each_stream(tmp_path: Any) -> None:
    data = bf.from_files(files(tmp_path), n_active_shards=1, streams=2).units("key").shuffle(4)
    found = list(map(ids_of, data.batch(bf.TokenBudget(30))))
    assert_whole(found, units_in(ROWS))


def test_units_are_kept_together_right_before_batches() -> None:
    for data in (one(), stream()):
        for batches in (
            data.batch(4, keep_together="key"),
            data.batch_by_tokens(16, keep_together="key"),
            data.batch_by(3, key=lambda row: -row["id"], keep_together="key", window=12),
        ):
            assert_whole(list(map(ids_of, batches)), units_in(ROWS))
        packed = list(data.pack(10, rows=2, keep_together="key"))
        assert sum(len(batch["id"]) for batch in packed) == 12


def test_repeating_data_part_units_at_the_ends_of_epochs() -> None:
    rows = [{"key": "a", "id": number, "input_ids": [1]} for number in range(3)]
    for data in (bf.from_sequence(rows, repeat=True), bf.from_iterable(rows, repeat=True)):
        batches = data.units("key").batch(bf.FixedSize(4), window=5)
        assert [ids_of(batch) for batch in islice(batches, 4)] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("make", [one, stream])
def test_a_split_by_another_column_of_that_name_is_told(make: Callable[[], Any]) -> None:
    data = make().units("key").rename({"key": "old", "id": "key"})
    for side in data.train_valid_split(0.5):
        with pytest.raises(bf.DataError, match=r"'key' has other values than when units was called\. Split before you"):
            list(side)


def test_a_resume_with_other_units_is_told_without_names_of_our_own() -> None:
    def batches(size: int) -> bf.Batches:
        rows = [row | {"key": str(row["id"] // size)} for row in ROWS]
        return bf.from_iterable(rows).units("key").drop("key").batch_by_tokens(30, window=4)

    with batches(3).iter() as it:
        next(it)
        state = it.state_dict()
    with pytest.raises(bf.StateError, match="column 'unit' had the crc32"):
        list(batches(2).iter(state))
