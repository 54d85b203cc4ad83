"""Parquet files: what is not true of Arrow's own as well."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
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


def saying(path: Path, said: int, url: Path) -> Path:
    """A file of 900 rows, the footer of which says another number of rows for the first row group than 500."""
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    for have, says, after in ((500, said, b"\x26"), (900, said + 400, b"\x19")):  # of the row group, and of the file
        assert footer.count(varint(have) + after) == 1
        footer = footer.replace(varint(have) + after, varint(says) + after)
    url.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return url


@pytest.mark.parametrize("said", [300, 499, 501, 700])
def test_a_row_group_of_other_rows_than_its_footer_says_is_refused_wherever_reading_begins(
    tmp_path: Path, said: int
) -> None:
    """Arrow leaves rows out without a word where the footer says fewer."""
    path = Path(write_table(tmp_path / "a.parquet", numbered(900), 500))
    other = saying(path, said, tmp_path / "b.parquet")
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


OF_LISTS = {
    "lists": pa.list_(pa.int64()),
    "lists of lists": pa.large_list(pa.list_(pa.int64())),
    "structs": pa.struct({"a": pa.list_(pa.int64()), "b": pa.list_(pa.int64())}),
    "maps": pa.map_(pa.int64(), pa.list_(pa.int64())),
    "fixed lists": pa.list_(pa.list_(pa.int64()), 1),
}


def value_of(kind: pa.DataType, number: int) -> Any:
    """Also nulls and empty lists, which have one place in the file each."""
    if number % 7 == 0:
        return None
    if pa.types.is_integer(kind):
        return number
    if pa.types.is_struct(kind):
        return {name: value_of(kind.field(name).type, number) for name in kind.names}
    if pa.types.is_map(kind):
        return [(key, value_of(kind.item_type, number + key)) for key in range(number % 3)]
    count = 1 if pa.types.is_fixed_size_list(kind) else number % 4
    return [value_of(kind.value_type, number + place) for place in range(count)]


@pytest.mark.parametrize("name", OF_LISTS)
@pytest.mark.parametrize("said", [0, 300, 499, 501])
def test_rows_beyond_the_footer_are_seen_where_all_columns_have_lists(tmp_path: Path, name: str, said: int) -> None:
    values = pa.array([value_of(OF_LISTS[name], number) for number in range(900)], OF_LISTS[name])
    table = pa.table({"x": values, "y": pa.array([[number] for number in range(900)])})
    path = Path(write_table(tmp_path / "a.parquet", table, 500))
    assert [row["y"][0] for row in bf.from_files(path)] == list(range(900))
    other = saying(path, said, tmp_path / "b.parquet")
    told = "500 rows, and its" if said > 500 else rf"more rows than the {said} that its"
    place = rf"^shard b\.parquet, row {min(said, 500) + 1}: row group 0"
    message = rf"{place} has {told} footer says.*; the shard is damaged\. Write it anew$"

    def refused(it: Iterator[Any], states: list[Any]) -> None:
        with pytest.raises(bf.DataError, match=message):
            states.extend(it.state_dict() for _ in it)  # type: ignore[attr-defined]

    with small(100):
        for columns in (None, ["x"], ["y"]):
            it = bf.from_files(other, columns=columns).iter()
            states = [it.state_dict()]
            refused(it, states)
            assert len(states) == min(said, 500) + 1
            for after in {0, len(states) // 2, len(states) - 1}:
                rest: list[Any] = []
                refused(bf.from_files(other, columns=columns).iter(states[after]), rest)
                assert rest == states[after + 1 :]
        it = bf.from_files([other, path], columns=["y"], n_active_shards=1, on_error="skip").iter()
        assert [row["y"][0] for row in it] == [*range(min(said, 500)), *range(900)]
        assert it.stats["skipped_shards"] == 1
