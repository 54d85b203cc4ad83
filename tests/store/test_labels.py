"""How many labels of a row are trained on is known without reading it, of a store and of rows in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.index.sequence import SequenceIndex
from brimful.store.index import StoreIndex, folder_of, verify_store
from tests.effort import examples
from tests.store.stores import store_of


def table(labels: list[list[int | None]], kind: pa.DataType) -> pa.Table:
    tokens = pa.array([[1] * len(row) for row in labels], pa.list_(pa.int32()))
    return pa.table({"input_ids": tokens, "labels": pa.array(labels, kind)})


def written(path: Path, rows: pa.Table) -> StoreIndex:
    store_of(path, tuple(rows.to_batches(max_chunksize=3)), batch_bytes=1, file_bytes=600)
    return StoreIndex(str(path))


@examples(40)
@given(
    labels=st.lists(st.lists(st.sampled_from([-100, 0, 7]), max_size=5), min_size=1, max_size=20),
    kind=st.sampled_from([pa.list_(pa.int32()), pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.uint16())]),
    data=st.data(),
)
def test_labels_are_counted_without_reading_rows(
    labels: list[list[int]], kind: pa.DataType, data: st.DataObject
) -> None:
    if kind == pa.list_(pa.uint16()):
        labels = [[abs(label) for label in row] for row in labels]
    numbers = np.array(data.draw(st.lists(st.integers(0, len(labels) - 1), max_size=9)), dtype=np.int64)
    rows = table(labels, kind)  # type: ignore[arg-type]
    expected = [[len(row), sum(label != -100 for label in row), int(row[:1] not in ([], [-100]))] for row in labels]
    with TemporaryDirectory() as folder:
        index = written(Path(folder, "store"), rows)
        for path in Path(folder, "store").glob("*.arrow"):
            path.unlink()
        for found in (index.num_labels_at(numbers), SequenceIndex(rows).num_labels_at(numbers)):
            assert found is not None
            assert (found.dtype, found.T.tolist()) == (np.int64, [expected[number] for number in numbers])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([[1, None], [2]], pa.list_(pa.int32())),
        ([[1], None], pa.list_(pa.uint16())),
        ([[1.5], []], pa.list_(pa.float32())),
        ([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
    ],
    ids=["a null label", "no labels", "fractions", "of a fixed size"],
)
def test_labels_that_are_not_counted(labels: Any, kind: pa.DataType, tmp_path: Path) -> None:
    rows = pa.table({"input_ids": [[1, 2], [3, 4]], "labels": pa.array(labels, kind)})
    assert written(tmp_path / "store", rows).num_labels_at(np.array([1])) is None  # also of a row that has no null
    in_memory = SequenceIndex(rows).num_labels_at(np.array([1]))
    if pa.types.is_fixed_size_list(kind):
        assert in_memory is not None
        assert in_memory.T.tolist() == [[2, 2, 1]]
    else:
        assert in_memory is None


def test_labels_of_columns_that_are_left_out_are_not_counted(tmp_path: Path) -> None:
    written(tmp_path / "store", table([[1]], pa.list_(pa.int32())))
    assert StoreIndex.opened(tmp_path / "store", columns=["input_ids"]).num_labels_at(np.array([0])) is None


def test_a_flipped_bit_of_the_first_labels_is_found(tmp_path: Path) -> None:
    written(tmp_path / "store", table([[-100, 1], [2]], pa.list_(pa.int32())))
    path = tmp_path / "store" / "first_labels.npy"
    content = path.read_bytes()
    assert list(content[-2:]) == [0, 1]
    path.write_bytes(content[:-1] + b"\0")
    assert [problem.split(" is damaged")[0] for problem in verify_store(tmp_path / "store")] == [str(path)]


def test_a_store_of_an_earlier_release_is_read_whole_windows_at_a_time(tmp_path: Path) -> None:
    """It does not say which first labels are trained on, nor where numbers are null."""
    path = tmp_path / "store"
    samples = [{"input_ids": [1] * (1 + n % 5), "labels": [-100, 1, 1, 1, 1][: 1 + n % 5], "id": n} for n in range(40)]
    bf.from_sequence(samples).to_store(path)
    now = [list(bf.from_store(path).batch(4).shard(rank, 2)) for rank in range(2)]
    manifest = folder_of(path).manifest
    nulls = {name: manifest.nulls[name] for name in manifest.lengths}
    replace(manifest, first_labels=None, nulls=nulls).save(path)
    index = StoreIndex(str(path))
    assert index.num_labels_at(np.arange(40)) is None
    before = [list(bf.from_store(path).batch(4).shard(rank, 2)) for rank in range(2)]
    for one, other in zip(now, before, strict=True):
        assert [batch["id"].tolist() for batch in one] == [batch["id"].tolist() for batch in other]
    assert ("num_items_in_batch" in now[0][0], "num_items_in_batch" in before[0][0]) == (True, False)
