"""Streamed data sets of Hugging Face, read by tables where they have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import brimful as bf
from brimful.core.run import Run
from tests.shards import write

datasets = pytest.importorskip("datasets")


def made(count: int, **more: Any) -> Any:
    rows = [{"input_ids": [number] * (number % 5), "id": number} | more for number in range(count)]
    features = datasets.Features.from_arrow_schema(pa.schema([("input_ids", pa.list_(pa.int32())), ("id", pa.int64())]))
    return datasets.Dataset.from_list(rows, features)


def plain(samples: Any) -> list[tuple[int, list[int]]]:
    return [(int(sample["id"]), list(sample["input_ids"])) for sample in samples]


def test_arrow_is_read_as_arrow_and_python_as_python_with_the_same_rows() -> None:
    base = made(700).to_iterable_dataset(num_shards=3)
    kinds = {
        "FromTables": [base, base.with_format("torch"), base.with_format("arrow"), base.shuffle(1, buffer_size=1)],
        "FromIterable": [base.map(lambda row: {**row, "id": row["id"] + 1}), base.filter(lambda row: row["id"] % 2)],
    }
    for kind, several in kinds.items():
        for one in several:
            ours = bf.from_iterable(one)
            assert plain(ours) == plain(one.with_format(None))
            assert kind in (type(ours.stage).__name__, "FromTables"), "a function of theirs may keep to tables"
    assert {type(bf.from_iterable(one).stage).__name__ for one in kinds["FromTables"][:3]} == {"FromTables"}
    assert type(bf.from_iterable(kinds["FromIterable"][0]).stage).__name__ == "FromIterable"
    block = next(iter(bf.from_iterable(base).stage.items({"epoch": 0, "done": 0}, Run())))[0]
    assert block.schema.field("input_ids").type == pa.list_(pa.int32())


def test_a_resume_is_exact_through_json_and_makes_no_rows_of_what_it_skips() -> None:
    data = bf.from_iterable(made(900).to_iterable_dataset(), repeat=True)
    expected = plain(islice(data, 1_900))
    for count in (0, 255, 256, 257, 899, 900, 1_200):
        it = data.iter()
        list(islice(it, count))
        state = json.loads(json.dumps(it.state_dict()))
        assert plain(islice(data.iter(state), 1_900 - count)) == expected[count:]


def test_streamed_files_of_hugging_face_are_read(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"input_ids": [[1, 2]] * 600, "id": range(600)}), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", [{"input_ids": [1, 2], "id": number} for number in range(600)])
    for kind, name in (("parquet", "a.parquet"), ("json", "a.jsonl")):
        one = datasets.load_dataset(
            kind, data_files=str(tmp_path / name), split="train", streaming=True, cache_dir=str(tmp_path / "cache")
        )
        assert plain(bf.from_iterable(one)) == [(number, [1, 2]) for number in range(600)]


def test_a_failure_comes_after_the_rows_before_it_and_a_shorter_one_is_refused() -> None:
    def failing(table: pa.Table) -> pa.Table:
        if table["id"][0].as_py() >= 512:
            raise ValueError("too far")
        return table

    base = made(700).to_iterable_dataset()
    it = bf.from_iterable(base.with_format("arrow").map(failing, batched=True, batch_size=256)).iter()
    seen = []
    with pytest.raises(bf.StageError, match=r"^from_iterable failed at row 512: ValueError: too far$"):
        seen.extend(plain(it))
    with pytest.raises(bf.StateError, match=r"^the iterable has 700 samples, but this state was saved after 1,024$"):
        list(bf.from_iterable(base).stage.items({"epoch": 0, "done": 1024, "last": 768}, Run()))


def test_a_generator_goes_row_by_row() -> None:
    """Of its rows `datasets` makes tables whose types are those of the rows at hand, and cannot join them."""

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(600):
            yield {"id": number, "text": "x" if number > 300 else None}

    one = datasets.IterableDataset.from_generator(rows)
    assert [sample["id"] for sample in bf.from_iterable(one.with_format("torch"))] == list(range(600))
