"""The bytes of a shard are those of one and the same file, from its first one to its last."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources import bytes as reading
from brimful.sources.bytes import LocalFile, opened
from tests.shards import compressed, watched, write

pytestmark = pytest.mark.usefixtures("small_buffers")

DRAW = random.Random(0)
ROWS = [{"id": number, "text": DRAW.randbytes(20).hex()} for number in range(30_000)]


def changed_while_read(url: Any, change: Callable[[], object], **options: Any) -> tuple[int, str]:
    """How many rows come before the error that a change leads to, and what it says."""
    it = bf.from_files(url, **options).iter()
    seen = [sample["id"] for sample in islice(it, 10)]
    change()
    with pytest.raises(bf.DataError) as error:
        seen.extend(sample["id"] for sample in it)
    assert seen == list(range(len(seen)))
    return len(seen), str(error.value)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
@pytest.mark.parametrize("left", [0.5, 0.9])
def test_a_shard_that_shrinks_is_an_error_after_its_rows(tmp_path: Path, ending: str, left: float) -> None:
    path = Path(write(tmp_path / f"a{ending}", ROWS))
    size = path.stat().st_size
    rows, message = changed_while_read(path, lambda: os.truncate(path, int(size * left)))
    assert (
        f"shard a{ending}, line {rows + 1:,}: it had {size:,} bytes when it was opened and has {int(size * left):,} now"
        in message
    )
    assert 10 < rows < len(ROWS)


def test_a_shard_that_is_cut_between_two_lines_is_an_error_after_its_rows(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.jsonl", ROWS))
    data = path.read_bytes()
    left = data.index(b"\n", len(data) // 2) + 1
    rows, message = changed_while_read(path, lambda: os.truncate(path, left))
    assert f"line {rows + 1:,}: it had {len(data):,} bytes when it was opened and has {left:,} now" in message
    assert rows == data[:left].count(b"\n")


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_shard_that_grows_is_an_error_after_the_rows_that_it_had(tmp_path: Path, ending: str) -> None:
    path = Path(write(tmp_path / f"a{ending}", ROWS))
    size = path.stat().st_size

    def grow() -> None:
        with path.open("ab") as file:
            file.write(compressed(b'{"id": 30000, "text": "x"}\n', path.suffix))

    rows, message = changed_while_read(path, grow)
    grown = path.stat().st_size
    assert rows == len(ROWS)
    assert f"line {rows + 1:,}: it had {size:,} bytes when it was opened and has {grown:,} now" in message


def test_a_shard_that_is_written_to_in_place_is_an_error(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.jsonl", ROWS))
    size = path.stat().st_size

    def edit() -> None:
        with path.open("r+b") as file:
            file.seek(size - 5)
            file.write(b"!")

    _, message = changed_while_read(path, edit)
    assert (
        f"its {size:,} bytes were written to after it had been opened; leave it as it is while it is read (new data go to new"
        in message
    )


def test_a_shard_that_changes_is_left_out_from_there_where_errors_are_skipped(tmp_path: Path) -> None:
    path, size = write(tmp_path / "a.jsonl", ROWS), 100_000
    it = bf.from_files([path, write(tmp_path / "b.jsonl", ROWS[:3])], n_active_shards=1, on_error="skip").iter()
    next(it)
    os.truncate(path, size)
    assert [sample["id"] for sample in it][-3:] == [0, 1, 2]
    assert it.stats["skipped"] == 1


def test_a_file_that_takes_the_name_of_another_leaves_it_whole(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.jsonl", ROWS))
    other = write(tmp_path / "other", b"")
    it = bf.from_files(path).iter()
    next(it)
    os.replace(other, path)
    assert len(list(it)) == len(ROWS) - 1


def test_a_function_is_told_and_cannot_hide_that_its_shard_changed(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.numbers", b"%07d\n" % 1 * 100_000))

    def numbers(file: BinaryIO) -> Iterator[dict[str, Any]]:
        try:
            for number, _ in enumerate(file):
                yield {"id": number}
        except ValueError:
            pass

    rows, message = changed_while_read(path, lambda: os.truncate(path, 400_000), format=numbers)
    assert rows >= 8_192
    assert f"shard a.numbers, row {rows + 1:,}: it had 800,000 bytes when it was opened and has 400,000 now" in message


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    first, last = os.pipe()
    os.write(last, b'{"id": 1}\n')
    os.close(last)
    assert LocalFile(f"/dev/fd/{first}").read() == b'{"id": 1}\n'
    os.close(first)


def test_a_function_gets_a_file_of_this_machine_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", b"one\ntwo\n")
    file = io.BufferedReader(LocalFile(path))
    assert os.fstat(file.fileno()).st_size == 8
    assert file.seek(-4, io.SEEK_END) == 4
    assert file.readline() == b"two\n"
    file.close()


# -- far away --------------------------------------------------------------------------------------------------------------

DATA = DRAW.randbytes(300_000)


class Forward(io.BytesIO):
    def seek(self, *place: int) -> int:
        raise io.UnsupportedOperation("it is read forward only")


class ForwardOnly(MemoryFileSystem):
    """Its files cannot be read from the middle on."""

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Forward(self.cat_file(path)) if mode == "rb" else super().open(path, mode, **options)


@contextmanager
def far(kind: str, folder: Path) -> Iterator[tuple[Any, str]]:
    """A file of 300,000 bytes behind a file system: itself, and its path there."""
    (folder / "data.bin").write_bytes(DATA)
    if kind == "watched":
        with watched():
            yield fsspec.filesystem("watched"), str(folder / "data.bin")
    elif kind == "forward only":
        fs = ForwardOnly()
        fs.pipe_file("/bytes/data.bin", DATA)
        yield fs, "/bytes/data.bin"
    elif kind == "memory":
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/bytes/data.bin", DATA)
        yield fs, "/bytes/data.bin"
    else:
        pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")
        from tests.store.servers import serving

        with serving(folder) as server:
            server.tags = kind == "http"
            yield fsspec.filesystem("http", skip_instance_cache=True), f"{server.url}/data.bin"


@pytest.mark.parametrize("kind", ["http", "http without tags", "watched", "memory", "forward only"])
def test_any_reads_give_the_bytes_of_the_file(tmp_path: Path, kind: str) -> None:
    steps = st.one_of(
        st.tuples(st.just("read"), st.integers(1, 70_000)),
        st.tuples(st.just("seek"), st.integers(0, len(DATA) + 10)),
        st.tuples(st.just("end"), st.integers(0, 1_000)),
        st.tuples(st.just("on"), st.integers(0, 50_000)),
    )

    with far(kind, tmp_path) as (fs, path), patch.object(reading, "BLOCK_BYTES", 1 << 16):

        @example([("read", 70_000), ("read", 70_000), ("seek", 10), ("read", 5)])  # away from a block read ahead
        @given(st.lists(steps, max_size=12))
        def check(drawn: list[tuple[str, int]]) -> None:
            ours, theirs = opened(fs, path, path, 30.0), io.BytesIO(DATA)
            for verb, number in drawn:
                if verb == "read":
                    assert ours.read(number) == theirs.read(number)
                else:
                    place = {"seek": (number, 0), "end": (-number, 2), "on": (number, 1)}[verb]
                    assert ours.seek(*place) == theirs.seek(*place)
                assert ours.tell() == theirs.tell()
            assert ours.read() == theirs.read()
            ours.close()

        check()


def test_a_file_in_memory_that_changes_is_refused(tmp_path: Path) -> None:
    with far("memory", tmp_path) as (fs, path):
        for content, what in (
            (DATA[:-1], r"it had 300,000 bytes and has 299,999"),
            (bytes(300_000), "its tag was .* and is "),
        ):
            fs.pipe_file(path, DATA)
            file = opened(fs, path, "memory://bytes/data.bin", 30.0)
            assert file.read(10) == DATA[:10]
            fs.pipe_file(path, content)
            with pytest.raises(
                bf.DataError, match=rf"^memory://bytes/data.bin has changed while it was being read: {what}"
            ):
                file.read()
            file.close()
