"""A flipped bit is found, wherever it is, and its file is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan.errors import StateError
from brimful.store.index import verify_store
from brimful.store.manifest import MANIFEST, _digest
from tests.effort import examples
from tests.store.stores import blocks_of, store_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "store"
    store_of(path, blocks_of([5, 0, 3] * 10, 5), batch_bytes=1, file_bytes=3000)
    return path


@given(st.data())
@examples(60)
def test_a_flipped_bit(store: Path, data: st.DataObject) -> None:
    read: list[int] = []
    assert verify_store(store, read.append) == []
    assert sum(read) == sum(path.stat().st_size for path in store.iterdir() if path.name != MANIFEST)
    path = data.draw(st.sampled_from(sorted(store.iterdir())))
    bit = data.draw(st.integers(0, path.stat().st_size * 8 - 1))
    flip(path, bit)
    try:
        problems = verify_store(store)
    finally:
        flip(path, bit)
    assert len(problems) == 1
    assert path.name in problems[0]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_all_that_is_wrong_is_named(store: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "store"
    shutil.copytree(store, damaged)
    (damaged / "00000.arrow").unlink()
    flip(damaged / "00001.arrow", 9999)
    flip(damaged / "lengths.input_ids.npy", 1100)
    problems = verify_store(damaged)
    assert [Path(problem.split()[0]).name for problem in problems] == [
        "00000.arrow",
        "00001.arrow",
        "lengths.input_ids.npy",
    ]
    assert "is missing from its store" in problems[0]
    assert "its sha256 is" in problems[1]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no token store"):
        verify_store(tmp_path)


def test_a_flipped_bit_of_the_version_is_damage_and_another_version_is_none(store: Path, tmp_path: Path) -> None:
    path = store / MANIFEST
    text = path.read_text()
    try:
        path.write_text(text.replace('"version": 1,', '"version": 3,', 1))
        assert [f"{path} is damaged: its checksum is" in problem for problem in verify_store(store)] == [True]
        content = json.loads(text)
        del content["sha256"]
        content["version"] = 3
        path.write_text(json.dumps(content | {"sha256": _digest(content)}))
        with pytest.raises(StateError, match="has version 3, but this release of brimful reads version 1"):
            verify_store(store)
    finally:
        path.write_text(text)
