from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.core.states import sealed
from brimful.testing import assert_exact_resume
from tests.shards import write


def numbers(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """A format of a user's own."""
    for line in file:
        yield {"n": int(line), "tokens": np.arange(int(line))}


def values(file: BinaryIO) -> Iterator[Any]:
    return (json.loads(line) for line in file)


def test_a_function_of_the_open_file_reads_any_format_decompressed(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{name}.numbers{end}", b"3\n1\n") for name, end in (("a", ""), ("b", ".gz"))]
    samples = list(bf.from_files(urls, format=numbers, n_active_shards=1))
    assert [sample["n"] for sample in samples] == [3, 1, 3, 1]
    assert samples[0]["tokens"].tolist() == [0, 1, 2]


def test_arrays_and_tensors_become_columns(tmp_path: Path) -> None:
    def tensors(file: BinaryIO) -> Iterator[dict[str, Any]]:
        yield {"one": torch.arange(3), "two": np.ones((2, 2)), "number": np.int16(7), "flag": np.bool_(True)}

    sample = next(bf.from_files(write(tmp_path / "a.bin", b"x"), format=tensors).iter())
    assert sample["one"].tolist() == [0, 1, 2]
    assert sample["two"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert (sample["number"], sample["flag"]) == (7, True)


def test_resume_at_every_row_is_exact_whatever_the_rows_of_one_read_have(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = (
        [{"a": 1, "b": "w"}] + [{"a": 1}] * 260 + [{"a": 2.5, "b": "x"}] * 10 + [{"b": "y"}] * 10
    )
    urls = [write(tmp_path / f"{number}.dat", rows) for number in range(3)]
    assert_exact_resume(lambda: bf.from_files(urls, format=values, n_active_shards=2), max_resumes=12)
    assert {tuple(sample) for sample in bf.from_files(urls, format=values)} == {("a", "b")}


def test_columns_and_schema_apply_to_a_function_too(tmp_path: Path) -> None:
    url = write(tmp_path / "a.dat", [{"a": 1, "b": "x"}, {"a": None, "c": [1]}])
    assert list(bf.from_files(url, format=values, columns=["a"])) == [{"a": 1}, {"a": None}]
    schema = {"a": pa.float32(), "b": pa.string(), "c": pa.list_(pa.int16())}
    assert next(bf.from_files(url, format=values, schema=schema).iter()) == {"a": 1.0, "b": "x", "c": None}


REMEDY = "; say its type in schema=, or leave the column out with columns="


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (7, "a sample must be a dict, a string or a list of token ids (got int)"),
        ({"a": "x"}, "column 'a' is int64 by the schema but string here" + REMEDY),
        ({"a": 1.5}, "column 'a' is int64 by the schema but double here" + REMEDY),
        (
            {"b": 1},
            "key 'b' is not in the schema (a), which the first 1,000 rows decide where none is given; name it",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_an_error_with_file_and_row_or_is_skipped(
    tmp_path: Path, bad: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = write(tmp_path / "a.dat", [*[{"a": number} for number in range(1_100)], bad, {"a": -1}])
    it = bf.from_files(url, format=values).iter()
    assert [next(it)["a"] for _ in range(1_100)] == list(range(1_100))
    with pytest.raises(bf.DataError) as error:
        next(it)
    assert str(error.value).startswith(f"shard a.dat, row 1,101: {message}")
    it = bf.from_files(url, format=values, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [*range(1_100), -1]
    assert it.stats["skipped"] == 1
    assert f"skipped: shard a.dat, row 1,101: {message}" in caplog.text


def test_an_error_of_the_function_comes_after_its_rows_with_its_cause(tmp_path: Path) -> None:
    def fails(file: BinaryIO) -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        yield {"a": 2}
        raise KeyError("boom")

    url = write(tmp_path / "a.dat", b"")
    it = bf.from_files(url, format=fails).iter()
    assert [next(it)["a"], next(it)["a"]] == [1, 2]
    with pytest.raises(
        bf.StageError, match=r"^format\(fails\) failed at shard a\.dat, row 3: KeyError: 'boom'$"
    ) as error:
        next(it)
    assert isinstance(error.value.__cause__, KeyError)
    it = bf.from_files(url, format=fails, on_error="skip").iter()
    assert len(list(it)) == 2
    assert it.stats["skipped"] == 1


def test_a_function_that_is_no_reader_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        bf.StageError, match=r"^format\(<lambda>\) failed at shard a\.dat, row 1: TypeError: 'int' object"
    ):
        list(bf.from_files(write(tmp_path / "a.dat", b""), format=lambda file: 7))  # type: ignore[arg-type, return-value]


def test_a_shard_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    url = write(tmp_path / "a.dat", [{"a": 1}] * 10)
    it = bf.from_files(url, format=values).iter()
    next(it)
    state = it.state_dict()
    state = sealed(state["header"], {"rows": {"epoch": 0, "begun": 1, "shards": [{"shard": 0, "done": 10, "row": 10}]}})
    write(tmp_path / "a.dat", [{"a": 100}] * 8 + [{}])
    with pytest.raises(bf.StateError, match=r"the shard has 9 rows, but this state was saved after 10$"):
        list(bf.from_files(url, format=values).iter(state, allow={"urls"}))
