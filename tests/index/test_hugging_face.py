"""Data sets of Hugging Face, read by columns where they lie, in whatever order and format."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.run import Run
from brimful.testing import assert_exact_resume

datasets = pytest.importorskip("datasets")

COUNT = 3_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """3,000 samples on disk, 1,000 in a record batch."""
    rows = [
        {
            "input_ids": [(7 * number + place) % 900 for place in range(number % 17)],
            "id": number,
            "text": "x" * (number % 5) if number % 11 else None,
            "square": [[number, 1], [2, 3]],
            "pair": {"a": number, "b": str(number)},
        }
        for number in range(COUNT)
    ]
    features = datasets.Features(
        {
            "input_ids": datasets.List(datasets.Value("int32")),
            "id": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "square": datasets.Array2D((2, 2), "float32"),
            "pair": {"a": datasets.Value("int16"), "b": datasets.Value("string")},
        }
    )
    path = tmp_path_factory.mktemp("hugging") / "face"
    datasets.Dataset.from_list(rows, features).save_to_disk(path)
    return datasets.load_from_disk(path)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def rows_of(samples: Any) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in sample.items()} for sample in samples]


def test_rows_are_those_of_the_data_set_and_none_is_asked_for_by_itself(data: Any) -> None:
    """Whether it is as it is on disk, shuffled, selected, sharded, filtered or concatenated."""
    several = [
        data,
        data.shuffle(seed=1),
        data.select([2_999, 0, 0, 1_500]),
        data.shard(7, 3).shuffle(seed=2),
        data.filter(lambda number: number % 3 == 0, input_columns="id"),
        datasets.concatenate_datasets([data.select(range(10)), data.select(range(5, 2_000))]),
        data.select_columns(["id", "input_ids"]),
        data.select([]),
    ]
    for one in several:
        expected = one[:]
        with patch.object(datasets.Dataset, "__getitem__", side_effect=AssertionError("a row was asked for")):
            ours = bf.from_sequence(one)
            assert (len(ours), ours.kind) == (len(one), "indexed")
            found = rows_of(ours)
            assert found == [dict(zip(expected, row)) for row in zip(*expected.values())]
            if len(one):
                assert ours.lengths().tolist() == [len(row["input_ids"]) for row in found]
                shuffled = bf.from_sequence(one, shuffle=True)
                assert sorted(sample["id"] for sample in shuffled) == sorted(row["id"] for row in found)
                assert plain(ours[-1]["input_ids"]) == found[-1]["input_ids"]


def test_types_are_those_of_the_features(data: Any) -> None:
    block = next(iter(bf.from_sequence(data).stage.items({"epoch": 0, "done": 0}, Run())))[0]
    types = [pa.list_(pa.int32()), pa.int64(), pa.string(), pa.fixed_shape_tensor(pa.float32(), (2, 2))]
    assert block.schema.types[:4] == types
    batch = next(iter(bf.from_sequence(data).drop("text").batch(4)))
    assert (batch["square"].shape, batch["input_ids"].shape) == ((4, 2, 2), (4, 3))


@pytest.mark.parametrize("form", ["numpy", "torch", "arrow", "pandas"])
def test_a_format_changes_nothing(data: Any, form: str) -> None:
    assert rows_of(bf.from_sequence(data.with_format(form))) == rows_of(bf.from_sequence(data))
    assert rows_of(bf.from_sequence(data.with_format(form, columns=["id"])).take(3)) == rows_of(islice(data, 3))


def test_a_transform_is_asked_for_each_row(data: Any) -> None:
    def transformed(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"double": [2 * number for number in batch["id"]]}

    ours = bf.from_sequence(data.select(range(5)).with_transform(transformed))
    assert list(ours) == [{"double": 2 * number} for number in range(5)]


def test_what_only_hugging_face_decodes_is_asked_of_it() -> None:
    @dataclass
    class Shout:
        """A feature that is decoded, as images are."""

        pa_type: ClassVar[pa.DataType] = pa.string()
        _type: str = "Shout"

        def __call__(self) -> pa.DataType:
            return self.pa_type

        def decode_example(self, value: str, token_per_repo_id: Any = None) -> str:
            return value.upper()

    with patch.dict(datasets.features.features._FEATURE_TYPES, {"Shout": Shout}):
        features = datasets.Features({"text": Shout()})
        table = pa.table({"text": ["a", "b"]})
        one = datasets.Dataset(datasets.table.InMemoryTable(table), datasets.DatasetInfo(features=features))
        assert list(bf.from_sequence(one.with_format("numpy"))) == [{"text": "A"}, {"text": "B"}]
        assert list(bf.from_iterable(one.to_iterable_dataset())) == [{"text": "A"}, {"text": "B"}]


def test_a_resume_is_exact_and_other_data_are_refused(data: Any) -> None:
    few = data.select(range(995, 1_010)).shuffle(seed=3)
    for shuffle in (False, True):
        assert_exact_resume(lambda: bf.from_sequence(few, shuffle=shuffle))  # noqa: B023
    it = bf.from_sequence(few).batch_by_tokens(40).iter()
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    assert len(list(bf.from_sequence(few).batch_by_tokens(40).iter(state))) == len(list(it))
    for other in (few.select(range(14)), few.select(range(14, -1, -1)), data.select(range(15))):
        with pytest.raises(bf.StateError, match=r"from_sequence\.[\w.]+ was .* when it was saved and is .* here"):
            bf.from_sequence(other).batch_by_tokens(40).iter(state)


def refused(one: Any, other: Any, column: str) -> None:
    with bf.from_sequence(one).iter() as it:
        next(it)
    with pytest.raises(
        bf.StateError, match=rf"from_sequence\.checksums\.{column} was \d+ when it was saved and is \d+ here"
    ):
        bf.from_sequence(other).iter(it.state_dict())


def test_another_order_of_many_rows_is_refused(data: Any) -> None:
    numbers = np.random.default_rng(0).permutation(COUNT)
    for place in range(0, COUNT, 200):
        swapped = numbers.copy()
        swapped[[place, place + 1]] = swapped[[place + 1, place]]
        refused(data.select(numbers), data.select(swapped), "input_ids")


def test_other_values_of_the_same_size_are_refused_by_their_column() -> None:
    """All numbers, all lengths, and all values of 1,024 rows, of which the first and the last are two."""
    for count in (1, 1_000, 5_000):
        rows = {"x": [*range(count)], "text": [f"{number:05d}" for number in range(count)], "ids": [[7, 8]] * count}
        one = datasets.Dataset.from_dict(rows)
        for number in {0, count // 2, count - 1}:
            refused(one, datasets.Dataset.from_dict(rows | {"x": [*range(number), -1, *range(number + 1, count)]}), "x")
        for name, value in (("text", "abcde"), ("ids", [7, 9])):
            for number in {0, count - 1}:
                values = [*rows[name][:number], value, *rows[name][number + 1 :]]
                refused(one, datasets.Dataset.from_dict(rows | {name: values}), name)
            refused(one, datasets.Dataset.from_dict(rows | {name: [value] * count}), name)


def test_the_record_batches_of_a_table_are_no_part_of_what_a_state_knows(data: Any, tmp_path: Path) -> None:
    one = data.select(range(1_500))
    one.save_to_disk(tmp_path / "again", num_shards=4)
    again = datasets.load_from_disk(tmp_path / "again")
    assert len(again.data.table.to_batches()) != len(one.data.table.to_batches())
    whole = bf.from_sequence(one).iter()
    next(whole)
    assert rows_of(bf.from_sequence(again).iter(whole.state_dict())) == rows_of(whole)


def test_labels_are_known_and_nulls_are_named(data: Any) -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"input_ids": [4], "labels": [-100]}]
    labelled = datasets.Dataset.from_list(rows)
    steps = [step["num_items_in_batch"].item() for step in bf.from_sequence(labelled).batch(1).shard(0, 1)]
    assert steps == [2, 0]
    with_null = datasets.Dataset.from_list([*rows, {"input_ids": None, "labels": [1]}]).select([0, 2, 1])
    with pytest.raises(
        bf.DataError, match=r"^column 'input_ids' is null or missing \(sequence, row 1\); filter it out or fill it$"
    ):
        bf.from_sequence(with_null).lengths()
    assert bf.from_sequence(with_null.select([0, 2])).lengths().tolist() == [3, 1]
    inside = datasets.Dataset.from_list([{"input_ids": [1]}, {"input_ids": [1, None]}])
    with pytest.raises(bf.DataError, match=r"^column 'input_ids' has a null inside a list \(near sequence, row 1\)"):
        bf.from_sequence(inside).lengths()
    with pytest.raises(bf.DataError, match=r"^there is no column 'tokens' \(columns: input_ids; sequence, row 0\)$"):
        bf.from_sequence(inside).lengths("tokens")


def anonymous() -> int:
    """Bytes of memory of this process's own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say whose memory is whose")
def test_a_data_set_of_200_mb_takes_little_memory_of_its_own(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 60_000, (1_000, 1_000), dtype=np.int32)
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    lists = pa.ListArray.from_arrays(pa.array(np.arange(1_001, dtype=np.int32) * 1_000), pa.array(tokens.ravel()))
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as out:
        for _ in range(50):
            out.write_batch(pa.record_batch([lists], schema=schema))
    large = datasets.Dataset.from_file(str(tmp_path / "data.arrow"))
    assert (tmp_path / "data.arrow").stat().st_size > 200_000_000
    batches = bf.from_sequence(large, shuffle=True).batch_by_tokens(16_384, window=512)
    with patch.object(datasets.Dataset, "__getitem__", side_effect=AssertionError("a row was asked for")):
        next(iter(batches))
        gc.collect()
        before = anonymous()
        with batches.iter() as it:
            assert sum(batch["lengths"].sum().item() for batch in islice(it, 600)) == 600 * 16_000
            assert anonymous() - before < 40 << 20
