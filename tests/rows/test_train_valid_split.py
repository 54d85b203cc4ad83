from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.dataset import dataset_of
from brimful.index.index import DataIndex, Index
from brimful.index.sequence import FromSequence, SequenceIndex
from brimful.tables.hashes import column_hashes, row_hashes
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.shards import write
from tests.strategies import small

SOURCES = [bf.from_sequence, bf.from_iterable]


def ids(data: bf.Dataset) -> list[int]:
    return [sample["id"] for sample in data]


def documents(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "doc": f"d{number // 3}", "input_ids": [number, number % 7]} for number in range(count)]


@pytest.mark.parametrize("key", [None, "id", "text", "input_ids"])
def test_the_share_is_what_was_asked_for(key: str | None) -> None:
    count = 100_000
    rows = pa.table(
        {"id": range(count), "text": [str(n) for n in range(count)], "input_ids": [[n] for n in range(count)]}
    )
    for share in (0.01, 0.3):
        train, valid = bf.from_sequence(rows).train_valid_split(share, key=key)
        four_sigma = 4 * (count * share * (1 - share)) ** 0.5
        assert abs(len(valid) - count * share) < four_sigma
        assert len(train) + len(valid) == count


@pytest.mark.parametrize("key", [None, "doc"])
@pytest.mark.parametrize("source", SOURCES)
def test_each_sample_is_on_one_side_in_its_order(source: Any, key: str | None) -> None:
    train, valid = source(documents(300)).train_valid_split(0.3, key=key)
    sides = ids(train), ids(valid)
    assert all(side == sorted(side) for side in sides)
    assert sorted(sides[0] + sides[1]) == [*range(300)]
    assert 0 < len(sides[1]) < len(sides[0])
    if key is not None:
        assert not {number // 3 for number in sides[0]} & {number // 3 for number in sides[1]}, (
            "a document is on one side"
        )


@pytest.mark.parametrize("source", SOURCES)
def test_data_that_grow_and_shares_that_grow_move_no_sample_across(source: Any) -> None:
    def valid(count: int, share: float, **options: Any) -> set[int]:
        return set(ids(source(documents(count)).train_valid_split(share, **options)[1]))

    assert valid(200, 0.2) == {number for number in valid(600, 0.2) if number < 200}
    assert valid(600, 0.1) < valid(600, 0.2)
    assert valid(600, 0.2) != valid(600, 0.2, seed=1)


def test_equal_samples_are_on_one_side_also_in_several_streams(tmp_path: Path) -> None:
    rows = documents(60)
    urls = [write(tmp_path / f"{name}.jsonl", rows) for name in "abc"]
    train, valid = bf.from_files(urls, streams=3).train_valid_split(0.4)
    assert sorted(ids(train) + ids(valid)) == sorted([*range(60)] * 3)
    assert not set(ids(train)) & set(ids(valid))
    assert set(ids(valid)) == set(ids(bf.from_sequence(rows).train_valid_split(0.4)[1]))


def test_a_store_has_the_split_of_what_it_was_made_of(tmp_path: Path) -> None:
    data = bf.from_sequence(["a b c" * number for number in range(300)])
    data = data.tokenize(lambda texts: [[len(text)] * (1 + len(text) % 3) for text in texts])
    data.to_store(tmp_path / "store", version="1")
    for key in (None, "input_ids", "text"):
        streamed = data.train_valid_split(0.2, key=key)[1]
        stored = bf.from_store(tmp_path / "store").train_valid_split(0.2, key=key)[1]
        assert [sample["text"] for sample in streamed] == [sample["text"] for sample in stored]


# -- indexed -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Counting(DataIndex):
    """An index that notes what is read."""

    below: SequenceIndex
    columns: tuple[str, ...] = ("id", "doc", "input_ids")
    read: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.below)

    def lengths_at(self, numbers: Any, columns: Sequence[str], required: bool) -> Any:
        return self.below.lengths_at(numbers, columns, required)

    def locate(self, numbers: Any) -> Any:
        self.read.append((len(numbers), self.columns))
        block, rows = self.below.locate(numbers)
        return block.select(self.columns), rows

    def only(self, columns: Sequence[str]) -> Index:
        return Counting(self.below, tuple(columns), self.read)

    def fingerprint(self) -> Any:
        return "counting"


@pytest.mark.parametrize(("key", "columns"), [(None, ("id", "doc", "input_ids")), ("doc", ("doc",))])
def test_all_rows_are_read_once_for_both_sides_and_of_a_key_nothing_else(key: Any, columns: tuple[str, ...]) -> None:
    index = Counting(SequenceIndex(documents(9_000)))
    train, valid = dataset_of(FromSequence(index, True, 0)).train_valid_split(0.1, key=key)
    assert not index.read
    assert len(train) + len(valid) == 9_000
    assert index.read == [(4_096, columns), (4_096, columns), (808, columns)]


def test_indexed_data_stay_indexed_where_a_filter_leaves_them_so() -> None:
    rows = bf.from_sequence(documents(200), shuffle=True)
    for data in (
        rows,
        rows.shuffle(20),
        rows + rows,
        rows.select(["id", "doc"]),
        rows.filter(lambda row: row["id"] > 9),
    ):
        sides = data.train_valid_split(0.3, key="doc")
        assert [side.kind for side in sides] == ["indexed"] * 2
        assert [len(side) for side in sides] == [len(ids(side)) for side in sides]
        assert sorted(ids(sides[0]) + ids(sides[1])) == sorted(ids(data))
    assert rows.take(9).stream().train_valid_split(0.3)[0].kind == "streamed (by train_valid_split)"
    train, valid = rows.train_valid_split(0.3)
    again, test = train.train_valid_split(0.5, seed=1)
    assert sorted(ids(again) + ids(test) + ids(valid)) == [*range(200)]
    assert min(len(again), len(test)) > 40
    assert bf.from_sequence([]).train_valid_split(0.3, key="doc")[1].peek() == []


@pytest.mark.parametrize("source", SOURCES)
def test_another_split_is_another_pipeline(source: Any) -> None:
    data = source(documents(50))
    it = data.train_valid_split(0.3)[0].iter()
    next(it)
    for other, message in (
        (data.train_valid_split(0.4)[0], r"valid_share was 0\.3 when it was saved and is 0\.4 here"),
        (data.train_valid_split(0.3, seed=7)[0], "seed was 42 when it was saved and is 7 here"),
        (data.train_valid_split(0.3, key="id")[0], "key was None when it was saved and is 'id' here"),
        (data.train_valid_split(0.3)[1], "side was 'train' when it was saved and is 'valid' here"),
    ):
        with pytest.raises(bf.StateError, match=rf"train_valid_split\.(split\.Split\.)?{message}"):
            other.iter(it.state_dict())


@pytest.mark.parametrize("source", SOURCES)
def test_resume_is_exact_at_every_sample(source: Any) -> None:
    with small(3):
        for side in (0, 1):
            assert_exact_resume(lambda: source(documents(12), repeat=True).train_valid_split(0.4)[side].take(12))  # noqa: B023


# -- hashes --------------------------------------------------------------------------------------------------------------


def hashes(values: Any, kind: Any = None) -> list[int]:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return column_hashes(pa.RecordBatch.from_arrays([array], ["x"]), "x").tolist()


def test_hashes_are_those_of_every_release_and_machine() -> None:
    assert hashes([0, 1, -1, 2**40]) == HASHES["numbers"]
    assert hashes(["", "a", "brimful é", "0123456789abcdef"]) == HASHES["texts"]
    assert hashes([[1, 2], [], [2, 1]]) == HASHES["lists"]
    assert hashes([0.5, float("nan"), float("inf")]) == HASHES["floats"]
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], "text": ["a", None], "d": [{"x": 1}, None]})
    assert row_hashes(rows).tolist() == HASHES["rows"]


def test_equal_values_hash_alike_however_they_are_written_down() -> None:
    for values, kinds in {
        (0, 7, 127, None): [
            "int8",
            "uint8",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "float",
            "double",
        ],
        (-3, 0): ["int8", "int32", "int64", "halffloat", "double"],
        (0.5, -2.25, None): ["halffloat", "float", "double"],
        ("a", "", "longer than eight", None): ["string", "large_string", "binary", "large_binary", "string_view"],
        (True, False, None): ["bool_"],
    }.items():
        found = [hashes(list(values), getattr(pa, kind, None) and getattr(pa, kind)()) for kind in map(_named, kinds)]
        assert all(one == found[0] for one in found)
        assert len(set(found[0])) == len(values)
    assert hashes([-0.0]) == hashes([0.0]) == hashes([0])
    assert hashes([b"abc"], pa.binary(3)) == hashes(["abc"])
    maps = pa.array([[("a", 1), ("b", None)], None, [], [("c", 3)]], pa.map_(pa.string(), pa.int64()))
    assert hashes(maps.slice(1)) == hashes(maps)[1:]
    assert len(set(hashes(maps))) == 4
    lists = [[1, 2], [3, 4]]
    kinds_of_lists = (pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2))
    assert len({str(hashes(lists, kind)) for kind in kinds_of_lists}) == 1
    text = pa.array(["a", "b", "a"])
    assert hashes(text.dictionary_encode()) == hashes(text)


def _named(kind: str) -> str:
    return {"float": "float32", "double": "float64", "halffloat": "float16"}.get(kind, kind)


def test_a_null_is_as_if_its_column_were_not_there_and_columns_have_no_order() -> None:
    plain = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})
    more = pa.RecordBatch.from_pydict({"b": ["x", "y"], "c": pa.array([None, None], pa.list_(pa.int64())), "a": [1, 2]})
    assert row_hashes(plain).tolist() == row_hashes(more).tolist()
    swapped = pa.RecordBatch.from_pydict({"a": ["x"], "b": [1]})
    assert row_hashes(swapped)[0] != row_hashes(plain)[0], "which column holds a value counts"


@given(st.lists(st.text("aé\x00", max_size=20), max_size=12), st.integers(0, 5))
@examples(60)
def test_a_hash_is_that_of_the_value_wherever_it_lies(values: list[str], first: int) -> None:
    for rows in (
        values,
        [[value, None, value[::-1]] for value in values],
        [{"a": value, "b": len(value)} for value in values],
    ):
        array = pa.array([*rows, None], pa.array(rows).type if rows else pa.string())
        alone = [hashes(pa.array([value], array.type))[0] for value in array.to_pylist()]
        assert hashes(array) == alone
        assert hashes(array.slice(first)) == alone[first:]
        assert len({str(row) for row in [*rows, None]}) == len(set(alone))


def test_values_that_differ_a_little_have_other_hashes() -> None:
    texts = {"a" * count for count in range(40)} | {"\x00" * count for count in range(40)} | {"ab" * 9, "ba" * 9}
    lists = [[], [[]], [[], []], [[1]], [[1], []], [[], [1]], [[1, 2]], [[2, 1]], [[1], [2]], [[0]], [[0, 0]], [[None]]]
    numbers = [*range(-50, 50), 0.5, -0.5, 2.0**60, 2.0**-60, float("inf"), float("-inf")]
    for found in (hashes(sorted(texts)), hashes(lists), hashes(pa.array(numbers, pa.float64()))):
        assert len(set(found)) == len(found)
    times = [datetime(2020, 1, 1), datetime(2020, 1, 2)]
    assert len({*hashes(times), *hashes([Decimal("1.5"), Decimal("2.5")]), *hashes(times, pa.timestamp("s"))}) == 6
    assert len(set(hashes(pa.array([1, 2], pa.duration("s"))) + hashes(pa.array([5, 6], pa.date32())))) == 4


@pytest.mark.parametrize("source", SOURCES)
def test_settings_are_checked(source: Any) -> None:
    data = source(documents(3))
    for wrong, error, message in (
        (lambda: data.train_valid_split(0), ValueError, r"^valid_share must be above 0 and below 1 \(got 0\)$"),
        (lambda: data.train_valid_split(1.0), ValueError, r"^valid_share must be above 0 and below 1 \(got 1\)$"),
        (lambda: data.train_valid_split(float("nan")), ValueError, r"^valid_share must be finite \(got nan\)$"),
        (lambda: data.train_valid_split("0.1"), TypeError, r"^valid_share must be a number \(got '0\.1'\)$"),
        (
            lambda: data.train_valid_split(0.1, key=["a"]),
            TypeError,
            r"^key must be the name of a column \(got \['a'\]\)$",
        ),
        (lambda: data.train_valid_split(0.1, seed=0.5), TypeError, r"^seed must be an integer \(got 0\.5\)$"),
        (
            lambda: list(data.train_valid_split(0.1, key="x")[0]),
            bf.DataError,
            r"^there is no column 'x' \(columns: id, doc, .*; key= is optional: name one of these columns, or leave it out to ",
        ),
    ):
        with pytest.raises(error, match=message):
            wrong()


def test_a_type_without_a_hash_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "m": pa.array([pa.MonthDayNano([1, 2, 3])])})
    with pytest.raises(bf.DataError) as error:
        len(bf.from_sequence(rows).train_valid_split(0.5)[0])
    assert str(error.value) == (
        "train_valid_split: column 'm' has values of type month_day_nano_interval, which have no hash (sequence, row 0); name "
        "another column by key="
    )
    assert len(list(bf.from_sequence(rows).train_valid_split(0.5, key="id")[0])) < 2


HASHES = {
    "numbers": [16294208416658607535, 10451216379200822465, 16490336266968443936, 2296115805719413641],
    "texts": [16294208416658607535, 12329945202327346955, 8802177650347225457, 15396533508654156565],
    "lists": [10790943182613763418, 16294208416658607535, 11870541122167124266],
    "floats": [17606427253252083309, 14351126860892846918, 2638638862653029785],
    "rows": [4276104160606970017, 12412229306092915333],
}
