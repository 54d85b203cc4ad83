"""A file of a store that is no longer the one that was opened is refused before its memory is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import brimful as bf
from brimful.store.index import StoreIndex
from tests.store.stores import blocks_of, store_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_of(tmp_path / "store", blocks_of([500] * 40, 10), batch_bytes=1, file_bytes=40_000)
    assert len(list((tmp_path / "store").glob("*.arrow"))) > 1
    return tmp_path / "store"


def replaced(path: Path, other: Path) -> None:
    """A file gives way to one of the same size, as a copy of another store over this one does."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    other.replace(path)


@pytest.mark.parametrize("rows", [range(3), [0, 2, 1]], ids=["as they lie", "in another order"])
def test_a_file_that_was_replaced_is_refused_with_both_named(store: Path, tmp_path: Path, rows: list[int]) -> None:
    index = StoreIndex(str(store))
    numbers = np.array(list(rows), dtype=np.int64)
    index.locate(numbers)
    replaced(store / "00000.arrow", tmp_path / "other")
    size = f"{(store / '00000.arrow').stat().st_size:,} bytes"
    with pytest.raises(
        bf.DataError,
        match=rf"00000\.arrow has changed since it was opened: it was .*{size}.* and is .*{size}.*; open the store anew",
    ):
        index.locate(numbers)
    index.locate(np.array([39]))  # of another file


def test_a_file_that_was_written_in_place_is_refused(store: Path) -> None:
    index = StoreIndex(str(store))
    index.locate(np.arange(3))
    with (store / "00000.arrow").open("r+b") as file:
        file.seek(2000)
        file.write(b"x")
    os.utime(store / "00000.arrow", (1, 1))  # whatever the clock's grain
    with pytest.raises(bf.DataError, match=r"00000\.arrow has changed since it was opened"):
        index.locate(np.arange(3))


def test_a_file_that_is_gone_is_refused(store: Path) -> None:
    index = StoreIndex(str(store))
    index.locate(np.arange(3))
    (store / "00000.arrow").unlink()
    with pytest.raises(bf.DataError, match=r"00000\.arrow is missing from its store"):
        index.locate(np.arange(3))


def test_lengths_that_were_replaced_are_refused(store: Path, tmp_path: Path) -> None:
    index = StoreIndex(str(store))
    index.lengths_at(np.arange(3), ("input_ids",), True)
    replaced(store / "lengths.input_ids.npy", tmp_path / "other")
    with pytest.raises(bf.DataError, match=r"lengths\.input_ids\.npy has changed since it was opened"):
        index.lengths_at(np.arange(3), ("input_ids",), True)


def test_a_store_copied_elsewhere_while_it_is_open_is_read(store: Path, tmp_path: Path) -> None:
    index = StoreIndex(str(store))
    index.locate(np.arange(3))
    shutil.copytree(store, tmp_path / "copy")
    index.locate(np.arange(3))


TRUNCATED = """
import os, sys
import brimful as bf

batches = bf.from_store(sys.argv[1]).batch(4, window=4)
it = batches.iter()
next(it)
for name in sys.argv[2:]:
    os.truncate(name, 0)
try:
    for batch in it:
        pass
except bf.DataError as error:
    print(error)
"""


@pytest.mark.parametrize("pattern", ["*.arrow", "lengths.*.npy"])
def test_a_truncated_file_ends_in_an_error_not_in_a_bus_error(store: Path, pattern: str) -> None:
    names = map(str, sorted(store.glob(pattern)))
    child = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(store), *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert child.returncode == 0, (child.returncode, child.stderr)
    assert f"{pattern[-4:]} has changed since it was opened: it was " in child.stdout
    assert " 0 bytes" in child.stdout
