"""Parquet files: what is not true of Arrow's own as well."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet
import pytest

import brimful as bf
from brimful.sources import parquet
from tests.shards import write_table
from tests.sources.test_columnar import numbered
from tests.strategies import small


def test_a_footer_whose_row_groups_have_not_the_rows_of_the_file_is_refused(tmp_path: Path) -> None:
    path = Path(write_table(tmp_path / "a.parquet", numbered(100), 40))
    data = path.read_bytes()
    assert data.count(b"\x16\xc8\x01\x19") == 1  # the number of rows, 100, before the list of row groups
    path.write_bytes(data.replace(b"\x16\xc8\x01\x19", b"\x16\xc6\x01\x19"))
    message = r"^shard a\.parquet, row 1: its footer says that it has 99 rows, and its row groups have 100; the shard is damaged$"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(path, schema=numbered(0).schema))


def test_a_footer_that_would_end_the_process_is_damage(tmp_path: Path) -> None:
    """pyarrow lets through an exception of C++ where it is asked about a column of which the histograms are damaged."""
    path = Path(write_table(tmp_path / "a.parquet", pa.table({"x": [[1], None, []]}), compression="none"))
    data, draw = path.read_bytes(), random.Random(0)
    size = int.from_bytes(data[-8:-4], "little")
    code = (
        "import sys, logging, brimful as bf, pyarrow as pa; logging.disable()\n"
        "for url in sys.argv[1:]:\n"
        "    list(bf.from_files(url, schema={'x': pa.list_(pa.int64())}, on_error='skip'))\n"
    )
    urls = []
    for place in range(len(data) - 8 - size, len(data) - 8):
        damaged = bytearray(data)
        damaged[place] ^= 1 << draw.randrange(8)
        urls.append(str(tmp_path / f"{place}.parquet"))
        Path(urls[-1]).write_bytes(damaged)
    child = subprocess.run([sys.executable, "-c", code, *urls], capture_output=True, text=True, timeout=200)
    assert child.returncode == 0, child.stderr[-2_000:]


def test_checksums_of_pages_are_held_against_them(tmp_path: Path) -> None:
    texts = pa.table({"text": [f"text {number:06}" for number in range(3_000)]})
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = Path(write_table(tmp_path / "a.parquet", texts, 1_000, **options))
    path.write_bytes(path.read_bytes().replace(b"text 001500", b"text 001501"))
    seen: list[Any] = []
    with pytest.raises(
        bf.DataError, match=r"^shard a\.parquet, row 1,001: cannot be read on: .*CRC.*; the shard is damaged$"
    ):
        seen.extend(bf.from_files(path))
    assert len(seen) == 1_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Parquet file size is 0 bytes"),
        (b"PAR1" + bytes(1_000), "Parquet magic bytes not found in footer"),  # a writer that was stopped
        (b'{"id": 1}\n', "Parquet magic bytes not found in footer"),
    ],
)
def test_a_file_without_a_footer_is_damaged_and_the_next_one_is_read(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    urls = [tmp_path / "a.parquet", write_table(tmp_path / "b.parquet", numbered(2))]
    with pytest.raises(
        bf.DataError, match=rf"^shard a\.parquet, row 1: cannot be read on: {words}.*; the shard is damaged$"
    ):
        list(bf.from_files(urls))
    it = bf.from_files(urls, on_error="skip").iter()  # the schema is that of the next
    assert list(it) == numbered(2).to_pylist()
    assert it.stats["skipped"] == 1


def test_a_large_row_group_is_handed_on_in_pieces(tmp_path: Path) -> None:
    table = pa.table({"id": range(10_000), "text": ["x" * 1_000] * 10_000})
    url = write_table(tmp_path / "a.parquet", table, 10_000, use_dictionary=False)
    sizes = []
    decoded = parquet.ParquetRows._decoded

    def watching(self: Any, *args: Any) -> Any:
        for unit in decoded(self, *args):
            sizes.append(unit.batch.nbytes)
            yield unit

    with patch.object(parquet.ParquetRows, "_decoded", watching):
        assert len(list(bf.from_files(url))) == 10_000
    assert max(sizes) < 1_200_000


def test_columns_with_dots_in_their_names_are_what_they_are_called(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": 1}], "a.c": [2], "ab": [3]})
    url = write_table(tmp_path / "a.parquet", table)
    for name in table.column_names:
        assert list(bf.from_files(url, columns=[name])) == table.select([name]).to_pylist()
    assert list(bf.from_files(url)) == table.to_pylist()


def test_a_file_written_to_be_compressed_as_a_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"a\.parquet\.gz: parquet files are not compressed as a whole; decompress it, or"
    ):
        bf.from_files(tmp_path / "a.parquet.gz")


def varint(number: int) -> bytes:
    """A field of Thrift's compact protocol that is an int64, and follows the one before it by 1."""
    number, found = 2 * number, b"\x16"
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize("said", [300, 499, 501, 700])
def test_a_row_group_of_other_rows_than_its_footer_says_is_refused_wherever_reading_begins(
    tmp_path: Path, said: int
) -> None:
    """Arrow leaves rows out without a word where the footer says fewer."""
    path = Path(write_table(tmp_path / "a.parquet", numbered(900), 500))
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    for have, says, after in ((500, said, b"\x26"), (900, said + 400, b"\x19")):  # of the row group, and of the file
        assert footer.count(varint(have) + after) == 1
        footer = footer.replace(varint(have) + after, varint(says) + after)
    other = tmp_path / "b.parquet"
    other.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    message = (
        rf"row group 0 has 500 rows in a column, and its footer says {said}; the shard is damaged\. Write it anew$"
    )
    for columns in (None, ["id"], []):
        with pytest.raises(bf.DataError, match=rf"^shard b\.parquet, row 1: {message}"):
            list(bf.from_files(other, columns=columns))
    it = bf.from_files([path, other], n_active_shards=1, on_error="skip").iter()
    assert [row["id"] for row in it] == list(range(900))
    assert it.stats["skipped_shards"] == 1
    with small(100):
        it = bf.from_files(path).iter()
        seen = [next(it)["id"] for _ in range(250)]
        state = it.state_dict()
        it.close()
        other.replace(path)
        with pytest.raises(bf.DataError, match=rf"^shard a\.parquet, row \d+: {message}"):
            seen.extend(row["id"] for row in bf.from_files(path).iter(state, allow={"urls"}))
    assert seen == list(range(250))
