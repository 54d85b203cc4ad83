from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.facts import Facts, following
from brimful.core.run import Run
from brimful.core.stage import Stage, State
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed


@pytest.mark.parametrize("letters", [letters, streamed])
def test_one_data_set_follows_another(letters: Any) -> None:
    assert spelled(letters("ab") + letters("") + letters("c")) == "abc"
    assert spelled(bf.concat_datasets([letters("ab")])) == "ab"
    assert spelled(letters("") + letters("")) == ""


@pytest.mark.parametrize("letters", [letters, streamed])
def test_columns_may_differ(letters: Any) -> None:
    data = letters("a") + bf.from_sequence([{"n": 1}])
    assert list(data) == [{"letter": "a", "n": None}, {"letter": None, "n": 1}]
    mixed = data.shuffle(2).map(lambda sample: sample | {"x": 1}).enumerate()
    assert {tuple(sample) for sample in mixed} == {("letter", "n", "x", "step")}


@pytest.mark.parametrize("letters", [letters, streamed])
def test_what_has_no_end_is_found_wherever_it_stands(letters: Any) -> None:
    one, endless = letters("a"), letters("b", repeat=True)
    mixed = bf.interleave_datasets([one, endless], stop="all")
    for data in (one + endless, (one + endless).stream().filter(bool), mixed, endless.skip(3)):
        with pytest.raises(ValueError, match="data set 0 repeats without end"):
            data + one
    assert spelled((one + endless).take(3) + one) == "abba"
    assert spelled(bf.interleave_datasets([one, endless]) + one) == "aba"


def test_a_filter_is_not_asked_before_the_data_are_used() -> None:
    asked: list[Any] = []
    data = letters("ab").filter(lambda sample: asked.append(sample) or True)
    whole = data + data.take(1)
    assert not asked
    assert spelled(whole) == "aba"


def test_the_last_may_repeat_where_it_is_alone() -> None:
    assert spelled(bf.concat_datasets([letters("ab", repeat=True)]).take(3)) == "aba"
    with pytest.raises(
        ValueError, match=r"^data set 0 repeats without end, so no data set after it is reached\. Repeat only the"
    ):
        bf.concat_datasets([letters("a", repeat=True), letters("b")])
    with pytest.raises(ValueError, match=r"^concat_datasets needs at least one data set \(got none\)$"):
        bf.concat_datasets([])


def test_resume_is_exact_at_every_sample() -> None:
    assert_exact_resume(lambda: letters("ab") + bf.from_iterable(["x", "y"]) + letters(""))


def test_columns_of_data_that_are_empty_in_epoch_0_are_not_lost() -> None:
    """Where none has a row in epoch 0 later rows are as they are; beside others their columns must be known."""

    def late(after: int) -> bf.Dataset:
        asked = iter(range(100))
        return bf.from_iterable([{"x": 1}]).filter(lambda _: next(asked) > after)

    alone = bf.concat_datasets([late(2)])
    assert [list(alone) for _ in range(4)] == [[], [], [{"x": 1}], [{"x": 1}]]
    beside = late(2) + bf.from_iterable([{"y": 1}])
    assert list(beside) == [{"y": 1}]
    with pytest.raises(
        bf.DataError,
        match=r"^there is a column 'x' \(iterable, row 0\), and no data set had one in epoch 0, where this",
    ):
        [list(beside) for _ in range(2)]


@pytest.mark.parametrize("join", [bf.concat_datasets, bf.interleave_datasets])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("whole", "other", "value", "common"),
    [
        (pa.int64(), pa.float64(), 9007199254740993, "double"),
        (pa.timestamp("s"), pa.timestamp("ns"), 10**11, "timestamp[ns]"),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), [9007199254740993], "list<item: double>"),
    ],
    ids=str,
)
def test_a_value_that_the_common_type_does_not_have_is_an_error_with_words(
    join: Any, indexed: bool, whole: pa.DataType, other: pa.DataType, value: Any, common: str
) -> None:
    def of(kind: pa.DataType, *values: Any) -> bf.Dataset:
        data = bf.from_sequence(pa.table({"c": pa.array(values, kind)}))
        return data if indexed else data.map_blocks(lambda block: block)

    fine = value if not isinstance(value, int) else 7
    data = join([of(other, None, None), of(whole, fine if isinstance(fine, int) else [7], value)])
    message = (
        rf"^{join.__name__}: column 'c' is {re.escape(str(whole))} in data set 1 and {re.escape(common)} with the others, "
        r"which has no such value: .+ \(sequence, row 1\); convert it \(map\), or rename or drop it in one of them$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(data)


def test_nulls_without_a_type_join_any_column() -> None:
    arrays = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int64(), (1,)), pa.array([[1]], pa.list_(pa.int64(), 1))
    )
    data = bf.concat_datasets(
        [bf.from_sequence(pa.table({"c": pa.nulls(1)})), bf.from_sequence(pa.table({"c": arrays}))]
    )
    assert [row["c"] if row["c"] is None else row["c"].tolist() for row in data] == [None, [1]]


def test_a_stage_that_knows_its_columns_is_not_read_for_them() -> None:
    @dataclass(frozen=True)
    class Unread(Stage[pa.RecordBatch]):
        def facts(self, *inputs: Facts) -> Facts:
            return following(self, row_schema=lambda: pa.schema([("number", pa.int8())]))

        def start(self, epoch: int) -> State:
            return epoch

        def items(self, at: State, run: Run) -> Generator[tuple[pa.RecordBatch, State], None, None]:
            raise AssertionError("it was read")
            yield

    both = bf.concat_datasets([letters("a").stream(), bf.Dataset(Unread())])
    assert next(iter(both)) == {"letter": "a", "number": None}


def test_streams_that_differ_are_refused_where_they_are_read_as_streams(tmp_path: Path) -> None:
    for shard in range(2):
        (tmp_path / f"{shard}.jsonl").write_text('{"id": 1}\n')
    both = bf.concat_datasets([bf.from_sequence([{"id": 0}]), bf.from_files(str(tmp_path / "*.jsonl"), streams=2)])
    assert len(both.cache()) == 3
    with pytest.raises(ValueError, match=r"must have equally many streams \(got None, 2\)"):
        both.batch(2)
