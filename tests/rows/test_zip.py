from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.dataset import dataset_of
from brimful.rows import mixing as rows_zip
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.samples import shard
from tests.shards import write
from tests.strategies import small

SOURCES = [bf.from_sequence, bf.from_iterable]
TEXTS = "abcdefghijk"


def of(source: Callable[..., bf.Dataset], column: str, values: Any, **options: Any) -> bf.Dataset:
    return source([{column: value} for value in values], **options)


def until_it_fails(it: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The samples that come, and the error after them."""
    found: list[dict[str, Any]] = []
    try:
        for sample in it:
            found.append(sample)
    except bf.DataError as error:
        return found, str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize("other", SOURCES)
@pytest.mark.parametrize("source", SOURCES)
def test_samples_stand_side_by_side(source: Any, other: Any) -> None:
    data = bf.zip_datasets([of(source, "a", "xyz"), of(other, "b", [1, 2, 3]), of(other, "c", [[4], [], [5, 6]])])
    assert [(row["a"], row["b"], row["c"].tolist()) for row in data] == [("x", 1, [4]), ("y", 2, []), ("z", 3, [5, 6])]
    assert (data.kind == "indexed") == (source is other is bf.from_sequence)
    assert list(bf.zip_datasets([of(source, "a", "x")])) == [{"a": "x"}]
    assert list(bf.zip_datasets([of(source, "a", ""), of(other, "b", "")])) == []


def test_two_files_of_lines_are_a_source_and_a_target(tmp_path: Path) -> None:
    source = bf.from_files(write(tmp_path / "source.txt", b"ein\nzwei\n")).rename({"text": "source"})
    target = bf.from_files(write(tmp_path / "target.txt", b"one\ntwo\n")).rename({"text": "target"})
    pairs = bf.zip_datasets([source, target])
    assert list(pairs) == [{"source": "ein", "target": "one"}, {"source": "zwei", "target": "two"}]
    with pytest.raises(bf.StageError, match=r"^map\(<lambda>\) failed at shard source\.txt, line 2: KeyError: 'two'"):
        list(pairs.map(lambda sample: {"n": {"one": 1}[sample["target"]]}))


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@examples(40)
def test_blocks_of_other_sizes_are_cut_at_the_shorter(count: int, rows: int, thin: int, wide: int) -> None:
    with small(rows):
        one = of(bf.from_iterable, "a", range(count * thin)).filter(lambda sample: sample["a"] % thin == 0)
        two = of(bf.from_iterable, "b", range(count)).flat_map(lambda sample: [sample] * wide).stride(wide, 0)
        expected = [{"a": thin * number, "b": number} for number in range(count)]
        assert list(bf.zip_datasets([one, two])) == expected


@pytest.mark.parametrize("other", SOURCES)
@pytest.mark.parametrize("source", SOURCES)
def test_one_that_ends_before_another_is_an_error_with_both_counts(source: Any, other: Any) -> None:
    data = bf.zip_datasets([of(source, "a", range(7)), of(other, "b", range(5))])
    counts = ("data set 0 has 7 rows and data set 1 has 5 rows", "data set 1 has 5 rows and data set 0 has 7 rows")
    with small(2):
        found, error = until_it_fails(data.iter())
    assert error == (
        f"zip_datasets: {counts[data.kind != 'indexed']}; they must have equally many: take() as many of each, or mend the files"
    )
    assert len(found) == (0 if data.kind == "indexed" else 5), "what has a partner comes first"
    assert len(list(bf.zip_datasets([of(source, "a", range(7)).take(5), of(other, "b", range(5))]))) == 5


def test_a_long_rest_is_not_counted_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_zip, "COUNTED", 10)
    data = bf.zip_datasets([of(bf.from_iterable, "a", range(3)), of(bf.from_iterable, "b", range(9_000))])
    with pytest.raises(
        bf.DataError, match=r"data set 0 has 3 rows and data set 1 has more than [\d,]+ rows; they must"
    ):
        list(data)


@pytest.mark.parametrize("source", SOURCES)
def test_columns_of_one_name_are_refused(source: Any) -> None:
    data = bf.zip_datasets([of(source, "n", "ab"), of(source, "text", "ab"), of(source, "text", "ab")])
    message = (
        "zip_datasets: data sets 1 and 2 both have a column 'text'; rename it in one of them: rename({'text': ...})"
    )
    for run in (list, lambda data: list(data.select("n")), lambda data: list(data.shuffle(2).batch(1))):
        with pytest.raises(bf.DataError) as error:
            run(data)
        assert str(error.value) == message
    assert len(list(bf.zip_datasets([of(source, "text", "ab"), of(source, "text", "ab").rename({"text": "b"})]))) == 2


@pytest.mark.parametrize("source", SOURCES)
def test_what_repeats_is_put_side_by_side_epoch_by_epoch(source: Any) -> None:
    data = bf.zip_datasets([of(source, "a", "xyz", repeat=True), of(source, "b", "123", repeat=True)])
    assert "".join(row["a"] + row["b"] for row in data.take(5)) == "x1y2z3x1y2"
    uneven = bf.zip_datasets([of(source, "a", "xyz", repeat=True), of(source, "b", "1234", repeat=True)])
    with pytest.raises(bf.DataError, match="data set 0 has 3 rows and data set 1 has 4 rows"):
        list(uneven.take(5))
    message = (
        "^data set 1 repeats without end and data set 0 does not. Call take\\(n\\) on the first, or repeat all of them$"
    )
    with pytest.raises(ValueError, match=message):
        bf.zip_datasets([of(source, "a", "xyz"), of(source, "b", "1", repeat=True)])
    some = bf.zip_datasets([of(source, "a", "xyz"), of(source, "b", "1", repeat=True).take(3)])
    assert "".join(row["a"] + row["b"] for row in some) == "x1y1z1"


def test_what_is_no_data_set_and_what_is_in_streams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^zip_datasets needs at least one data set \(got none\)$"):
        bf.zip_datasets([])
    with pytest.raises(TypeError, match=r"^zip_datasets: data set 0 is a builtins.list; use from_sequence"):
        bf.zip_datasets([["a"]])  # type: ignore[list-item]
    urls = [write(tmp_path / f"{name}.txt", b"x\n") for name in "ab"]
    message = (
        "^zip_datasets pairs the rows of all 2 streams, which are read apart and end apart: read them without streams=$"
    )
    with pytest.raises(ValueError, match=message):
        bf.zip_datasets([of(bf.from_iterable, "a", "xy"), bf.from_files(urls, streams=2)])


def test_an_error_of_one_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    data = bf.zip_datasets([shard(tmp_path, [{"a": 1}, {"a": 2}, {"a": "x"}]), of(bf.from_iterable, "b", "xyz")])
    with small(1):
        found, error = until_it_fails(data.iter())
    assert [sample["a"] for sample in found] == [1, 2]
    assert "a.jsonl, line 3" in error


@pytest.mark.parametrize("other", SOURCES)
@pytest.mark.parametrize("source", SOURCES)
def test_resume_is_exact_at_every_sample(source: Any, other: Any) -> None:
    def data() -> bf.Dataset:
        odd = of(other, "b", range(14)).filter(lambda sample: sample["b"] % 2 > 0)
        return bf.zip_datasets([of(source, "a", range(7), repeat=True), dataset_of(odd.stage, repeats=True)]).take(17)

    with small(2):
        assert_exact_resume(data)


def test_resume_is_exact_where_it_ends_in_an_error() -> None:
    data = bf.zip_datasets([of(bf.from_iterable, "a", range(5)), of(bf.from_iterable, "b", range(3))])
    with small(2):
        it = data.iter()
        for number in range(4):
            found, error = until_it_fails(data.iter(it.state_dict()))
            assert [sample["a"] for sample in found] == [*range(number, 3)]
            assert "data set 1 has 3 rows and data set 0 has 5 rows" in error
            if number < 3:
                next(it)


# -- indexed -------------------------------------------------------------------------------------------------------------


def columns(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(count)
    return [
        {
            "id": number,
            "input_ids": [number] * int(random.integers(5)),
            "labels": [-100, number][: int(random.integers(3))],
        }
        for number in range(count)
    ]


def pair(rows: list[dict[str, Any]], *options: dict[str, Any]) -> bf.Dataset:
    names = (("id", "input_ids"), ("labels",))
    parts = [[{name: row[name] for name in some} for row in rows] for some in names]
    return bf.zip_datasets([bf.from_sequence(part, **option) for part, option in zip(parts, options or ({}, {}))])


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


def test_indexed_data_side_by_side_are_as_if_they_had_been_one() -> None:
    rows = columns(200)
    whole, both = bf.from_sequence(rows).skip(0), pair(rows)  # random choices go by how many stages there are
    assert (both.kind, len(both)) == ("indexed", 200)
    for way in (
        lambda data: data.shuffle(30),
        lambda data: data.skip(7).stride(3, 1),
        lambda data: dataset_of(data.stage, repeats=True).take(450),
        lambda data: data.select(["labels", "id"]).rename({"id": "n"}),
    ):
        assert list(map(plain, way(both))) == list(map(plain, way(whole)))
    assert plain(both[17]) == rows[17]
    for column in ("input_ids", "labels"):
        assert both.lengths(column).tolist() == [len(row[column]) for row in rows]
    with pytest.raises(
        bf.DataError, match=r"^there is no column 'x' \(columns: id, input_ids, labels; zip_datasets\)$"
    ):
        both.lengths("x")
    options: dict[str, Any] = {"length_column": ("input_ids", "labels"), "seed": 1}
    batches, expected = (data.batch_by_tokens(40, window=50, **options) for data in (both, whole))
    for one, other in zip(batches, expected, strict=True):
        assert {name: value.tolist() for name, value in one.items()} == {
            name: value.tolist() for name, value in other.items()
        }
    index, own = both.stage.index, whole.stage.index  # type: ignore[attr-defined]
    some = np.array([150, 3, 3, 0])
    assert index.num_labels_at(some).tolist() == own.num_labels_at(some).tolist()
    assert sorted(index.list_columns) == ["input_ids", "labels"]


def test_data_that_are_shuffled_apart_are_paired_as_they_come() -> None:
    rows = columns(50)
    for options in (
        ({"shuffle": True}, {}),
        ({}, {"shuffle": True}),
        ({"shuffle": True}, {"shuffle": True, "seed": 1}),
    ):
        both = pair(rows, *options)
        parts = [
            bf.from_sequence([{name: row[name] for name in names} for row in rows], **option)
            for names, option in zip((("id", "input_ids"), ("labels",)), options)
        ]
        expected = [plain(one | other) for one, other in zip(*parts, strict=True)]
        assert both.kind == "indexed"
        assert list(map(plain, both)) == expected
        assert both.lengths("labels").tolist() == [len(row["labels"]) for row in expected]
        assert [plain(sample) for sample in both.shuffle(9)] == [
            plain(sample) for sample in bf.from_sequence(expected).shuffle(1).shuffle(9)
        ]
        assert_exact_resume(lambda: pair(rows, *options).shuffle(9), max_resumes=8)  # noqa: B023


def test_many_are_side_by_side_however_large_unless_all_are_shuffled_apart() -> None:
    def part(name: str, **options: Any) -> bf.Dataset:
        return dataset_of(of(bf.from_sequence, name, range(3), **options).stage, repeats=True)

    names = [f"c{number}" for number in range(60)]
    assert bf.zip_datasets([part(name) for name in names]).peek(1) == [dict.fromkeys(names, 0)]
    apart = bf.zip_datasets([part(name, shuffle=True, seed=seed) for seed, name in enumerate(names)])
    with pytest.raises(
        bf.DataError, match=r"are shuffled or sliced apart, and have more than [\d,]+ combinations; shuffle"
    ):
        apart.peek(1)


def test_data_that_leave_out_what_is_bad_would_get_wrong_partners(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n\xff\nc\n")
    good = bf.from_sequence([{"x": 1}, {"x": 2}])
    message = r"^data set 1 leaves out bad rows \(on_error='skip'\), so its other rows would get wrong partners. Mend"
    for bad in (bf.from_files(path, on_error="skip"), good.rename({"x": "y"}).map(dict, on_error="skip")):
        with pytest.raises(ValueError, match=message):
            bf.zip_datasets([good, bad.shuffle(2)])
