"""What to_hf writes is what was read, in types of Hugging Face's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.store import hugging_face
from tests.shards import write

datasets = pytest.importorskip("datasets")

ROWS = [
    {
        "input_ids": np.arange(number % 7, dtype=np.int32),
        "text": None if number == 4 else f"t{number}",
        "square": np.full((2, 3), number, np.float32),
        "line": np.full(4, number, np.int16),
        "names": ["a"] * (number % 3),
        "pair": {"a": number, "b": None if number % 2 else 0.5},
        "flag": number % 2 == 0,
    }
    for number in range(50)
]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def rows_of(samples: Any) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in sample.items()} for sample in samples]


@pytest.mark.parametrize("streamed", [False, True])
def test_types_and_values_survive_there_and_back(tmp_path: Path, streamed: bool) -> None:
    data = bf.from_iterable(ROWS) if streamed else bf.from_sequence(ROWS)
    with patch.object(hugging_face, "HELD_BYTES", 1_000):
        theirs = data.to_hf(tmp_path / "out")
    features = theirs.features
    assert features["square"] == datasets.Array2D((2, 3), "float32")
    assert features["input_ids"] == datasets.List(datasets.Value("int32"))
    assert features["line"] == datasets.List(datasets.Value("int16"))
    assert features["pair"]["a"] == datasets.Value("int64")
    assert rows_of(theirs) == rows_of(data)
    assert rows_of(bf.from_sequence(theirs)) == rows_of(data)
    assert rows_of(datasets.load_from_disk(tmp_path / "out")) == rows_of(data)
    assert theirs.cache_files[0]["filename"] == str(tmp_path / "out" / "data-00000-of-00001.arrow")


def test_a_null_tensor_is_null_and_no_rows_are_no_rows(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array([[1.0] * 6, None, [2.0] * 6], kind.storage_type)
    table = pa.table({"m": pa.ExtensionArray.from_storage(kind, storage), "n": [1, 2, 3]})
    theirs = bf.from_sequence(table).to_hf(tmp_path / "null")
    assert [row["m"] for row in theirs] == [[[1.0] * 3] * 2, None, [[2.0] * 3] * 2]
    assert rows_of(bf.from_sequence(theirs.select([2, 1]))) == [{"m": [[2.0] * 3] * 2, "n": 3}, {"m": None, "n": 2}]
    assert len(bf.from_sequence([]).to_hf(tmp_path / "none")) == 0


def test_a_place_is_found_in_the_cache_of_hugging_face(tmp_path: Path) -> None:
    with patch.object(datasets.config, "HF_DATASETS_CACHE", tmp_path):
        one, two = (bf.from_sequence(["a", "b"]).to_hf() for _ in range(2))
    assert one[:] == two[:] == {"text": ["a", "b"]}
    assert len(list((tmp_path / "brimful").iterdir())) == 2


def test_what_has_no_end_is_refused_and_what_fails_leaves_nothing(tmp_path: Path) -> None:
    endless = r"^this data set repeats without end, and to_hf keeps all of it. Call take\(n\) first"
    repeating = bf.from_sequence(["a", "b"], repeat=True)
    for data in (repeating, bf.interleave_datasets([repeating, repeating])):
        with pytest.raises(ValueError, match=endless):
            data.to_hf(tmp_path / "endless")
    assert len(repeating.take(5).to_hf(tmp_path / "five")) == 5
    with pytest.raises(ValueError, match=r"^to_hf writes to a local folder that is new or empty \(got .*five\)$"):
        repeating.take(5).to_hf(tmp_path / "five")
    with pytest.raises(ValueError, match=r"^to_hf writes to a local folder .* \(got s3://bucket/x\)$"):
        repeating.take(5).to_hf("s3://bucket/x")
    bad = write(tmp_path / "a.jsonl", b'{"id": 1}\n{"id": 2}\n{bad\n')
    with pytest.raises(bf.DataError, match=r"^shard a.jsonl, line 3"):
        bf.from_files(bad).to_hf(tmp_path / "bad")
    deep = bf.from_sequence([{"m": np.zeros((1, 1, 1, 1, 1, 1))}])
    with pytest.raises(bf.DataError, match=r"^column 'm' has arrays of 6 dimensions, and `datasets` has no type for"):
        deep.to_hf(tmp_path / "deep")
    assert not {"endless", "bad", "deep"} & {path.name for path in tmp_path.iterdir()}


def test_without_datasets_it_says_what_to_install(tmp_path: Path) -> None:
    message = r"^to_hf needs Hugging Face's datasets: pip install 'brimful\[hf\]'$"
    with patch.dict(sys.modules, {"datasets": None}), pytest.raises(ModuleNotFoundError, match=message):
        bf.from_sequence(["a"]).to_hf(tmp_path / "out")
