"""The files of a store are plain Arrow: others open them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.store.stores import blocks_of, store_of

LENGTHS = [3, 0, 5, 1] * 10
EXPECTED = [row for block in blocks_of(LENGTHS, 40) for row in block.to_pylist()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_of(tmp_path / "store", blocks_of(LENGTHS, 4), batch_bytes=1, file_bytes=2000)
    assert len(list((tmp_path / "store").glob("*.arrow"))) > 2
    return tmp_path / "store"


def test_pyarrow(store: Path) -> None:
    files = [pa.ipc.open_file(pa.memory_map(str(path))) for path in sorted(store.glob("*.arrow"))]
    assert [row for file in files for row in file.read_all().to_pylist()] == EXPECTED


def test_polars(store: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_ipc(store / "*.arrow")
    assert frame.rows(named=True) == EXPECTED
    assert frame.schema["input_ids"] == polars.List(polars.Int32)
    assert (
        polars.read_ipc(store / "00000.arrow").rows(named=True)
        == EXPECTED[: len(polars.read_ipc(store / "00000.arrow"))]
    )


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_datasets(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    files = sorted(map(str, store.glob("*.arrow")))
    loaded = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == EXPECTED
