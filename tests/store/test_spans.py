"""A window's lists are copied out of the mapped files of a store, and are those of its blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.batching.batch import Batch
from brimful.store import local
from brimful.store.index import StoreIndex
from brimful.tables.ragged import dtype_of, ragged
from tests.store.stores import store_of

DRAW = np.random.default_rng(0)
LENGTHS = DRAW.integers(0, 90, 2000)


def columns(kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    offsets = np.concatenate(([0], np.cumsum(LENGTHS)))
    arrays = []
    for kind in kinds.values():
        values = pa.array(DRAW.integers(0, 100, offsets[-1]).astype(dtype_of(kind.value_type)))
        whole, narrow = pa.LargeListArray, pa.ListArray
        made = whole if pa.types.is_large_list(kind) else narrow
        arrays.append(made.from_arrays(pa.array(offsets, pa.int64() if made is whole else pa.int32()), values))
    return pa.RecordBatch.from_arrays(arrays, list(kinds))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spans") / "store"
    kinds = {"input_ids": pa.list_(pa.uint16()), "labels": pa.large_list(pa.int64()), "p": pa.list_(pa.float32())}
    block = columns(kinds)
    blocks = tuple(block.slice(first, 100) for first in range(0, len(LENGTHS), 100))
    assert len(store_of(path, blocks, batch_bytes=20_000, file_bytes=200_000).files) > 3
    return path


@pytest.mark.parametrize("room", [-1, 1 << 40], ids=["pages are given back", "pages stay"])
@pytest.mark.parametrize("rows", [[7], range(2000), [1999, 0, 1000], DRAW.permutation(2000)[:500], [3, 3, 3]])
def test_spans_are_the_lists_of_blocks(store: Path, rows: object, room: int) -> None:
    numbers = np.array(rows, dtype=np.int64)
    with patch.object(local, "RESIDENT_BYTES", room):
        index = StoreIndex(str(store))
        spans = index.spans(numbers)
        block, places = index.locate(numbers)
    assert spans is not None
    assert list(spans) == ["input_ids", "labels", "p"]
    for name, (values, starts, counts) in spans.items():
        expected = ragged(block, name)
        assert values.dtype == expected.values.dtype
        for start, size, place in zip(starts.tolist(), counts.tolist(), places.tolist(), strict=True):
            own = expected.values[expected.offsets[place] : expected.offsets[place + 1]]
            assert values[start : start + size].tolist() == own.tolist()


def test_a_damaged_file_has_no_spans(store: Path, tmp_path: Path) -> None:
    """`locate` says what is wrong with it."""
    copied = tmp_path / "store"
    copied.mkdir()
    for path in store.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    side = copied / "lengths.labels.npy"
    content = bytearray(side.read_bytes())
    content[-4:] = (77).to_bytes(4, "little")
    side.write_bytes(content)
    index = StoreIndex(str(copied))
    assert index.spans(np.array([5])) is not None
    assert index.spans(np.array([5, 1999])) is None
    with pytest.raises(bf.DataError, match=r"is damaged: lengths\.labels\.npy says"):
        list(bf.from_store(copied).batch(100))


TRUNCATED = """
import os, sys
import brimful as bf

it = bf.from_store(sys.argv[1], shuffle=True).batch(4, window=40).iter()
next(it)
for name in sys.argv[2:]:
    os.truncate(name, 0)
taken = 0
try:
    for batch in it:
        taken += 1
except bf.DataError as error:
    print(taken, error)
"""


def test_a_store_that_is_cut_ends_in_an_error_after_the_window(tmp_path: Path) -> None:
    """What a window has of a file is there before its first batch."""
    block = columns({"input_ids": pa.list_(pa.int32())})
    store_of(tmp_path / "store", (block,))
    names = map(str, sorted((tmp_path / "store").glob("*.arrow")))
    child = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(tmp_path / "store"), *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, (child.returncode, child.stderr)
    assert child.stdout.startswith("9 ")
    assert "has changed since it was opened" in child.stdout


@pytest.mark.parametrize("way", ["padded", "packed", "left"])
def test_a_batch_shares_no_memory_with_another(store: Path, way: str) -> None:
    def batches() -> bf.Batches:
        stored = bf.from_store(store, shuffle=True)
        if way == "packed":
            return stored.pack(100, rows=2, window=300)
        return stored.batch_by_tokens(500, window=300, pad_side="left" if way == "left" else "right")

    expected = [dict(batch) for batch in batches()]
    for number, batch in enumerate(batches()):
        for key, value in expected[number].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(batch[key], value), key
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.fill_(3)
    held = {one.untyped_storage().data_ptr() for one in expected[0].values() if isinstance(one, torch.Tensor)}
    assert len(expected) > 20
    for batch in expected[1:]:
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                assert value.untyped_storage().data_ptr() not in held
                assert value.untyped_storage().nbytes() == value.nbytes


def test_a_rank_makes_its_own_batches_alone(store: Path) -> None:
    made = []
    init = Batch.__init__
    with patch.object(Batch, "__init__", lambda self, *at, **named: made.append(1) or init(self, *at, **named)):
        taken = len(list(bf.from_store(store, shuffle=True).batch_by_tokens(500, window=300).shard(3, 64).plans()))
    assert len(made) <= taken + 2 * len(LENGTHS) / 300 + taken  # and the last one of each window and step, for fillers


def test_places_in_files_are_looked_up_when_they_are_asked_for(store: Path) -> None:
    batches = bf.from_store(store, shuffle=True).batch_by_tokens(500, window=300)
    batch = next(iter(batches))
    explained = batches.explain(batch)
    assert all(one.place is not None and "store store, row " in one.place for one in explained)
    assert [one.length for one in explained] == batch["lengths"].tolist()
