"""Compressed shards are read whole, or are an error that says where they break off: never a part of them in silence."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf
from brimful.plan.errors import DataError
from brimful.sources.bytes import LocalFile
from brimful.sources.compressed import COMPRESSIONS, Decompressed
from tests.effort import times
from tests.shards import compressed

LINES = [b"line %d %s\n" % (number, str(hash(str(number))).encode()) for number in range(400)]
TEXT = b"".join(LINES)
KINDS = sorted(COMPRESSIONS)
DAMAGED = r"^shard a\.txt\.\w+, line ([\d,]+): cannot be read on: .*; the shard is damaged$"
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"abcd"
"""A frame that zstd and lz4 pass over."""


def read(tmp_path: Path, data: bytes, extension: str) -> tuple[bytes, str | None]:
    """The lines of a shard, and the error after them."""
    path = tmp_path / f"a.txt{extension}"
    path.write_bytes(data)
    seen: list[str] = []
    try:
        for sample in bf.from_files(path):
            seen.append(sample["text"] + "\n")
    except DataError as error:
        return "".join(seen).encode(), str(error)
    return "".join(seen).encode(), None


@pytest.mark.parametrize("extension", KINDS)
def test_all_members_are_read_empty_ones_too(tmp_path: Path, extension: str) -> None:
    whole, empty = compressed(TEXT, extension), compressed(b"", extension)
    assert read(tmp_path, empty, extension) == (b"", None)
    for members in ([whole, whole], [empty, whole], [whole, empty], [whole, empty, empty, whole], [empty, empty]):
        assert read(tmp_path, b"".join(members), extension) == (TEXT * members.count(whole), None)


@pytest.mark.parametrize("extension", [".zst", ".lz4"])
def test_frames_that_are_to_be_skipped_are(tmp_path: Path, extension: str) -> None:
    whole = compressed(TEXT, extension)
    for frames in ([SKIPPABLE, whole], [whole, SKIPPABLE], [whole, SKIPPABLE, whole]):
        assert read(tmp_path, b"".join(frames), extension) == (TEXT * frames.count(whole), None)


@pytest.mark.parametrize("extension", KINDS)
def test_a_truncated_member_is_an_error_after_its_whole_lines_wherever_it_breaks_off(
    tmp_path: Path, extension: str
) -> None:
    whole = compressed(TEXT, extension)
    for size in {*range(1, 40), *range(40, len(whole), 97), *range(len(whole) - 20, len(whole))}:
        for before in (b"", whole):
            text = TEXT if before else b""
            seen, error = read(tmp_path, before + whole[:size], extension)
            assert error is not None
            assert (text + TEXT).startswith(seen)
            assert not seen or seen.endswith(b"\n")
            assert f"line {seen.count(bytes([10])) + 1:,}: cannot be read on: " in error
            assert error.endswith("; the shard is damaged")


@pytest.mark.parametrize("extension", KINDS)
@pytest.mark.parametrize("garbage", [b"g", b"garbage", b"\xfd", b"\x1f", b"BZ", b"\n" * 100, b"\0garbage"])
def test_garbage_after_the_last_member_is_an_error_with_the_line(
    tmp_path: Path, extension: str, garbage: bytes
) -> None:
    path = tmp_path / f"a.txt{extension}"
    path.write_bytes(compressed(TEXT, extension) + garbage)
    with pytest.raises(DataError, match=DAMAGED):
        list(bf.from_files(path))


@pytest.mark.parametrize("extension", KINDS)
def test_zeros_after_the_last_member_are_passed_over_or_an_error(tmp_path: Path, extension: str) -> None:
    for zeros in (1, 4, 512, 100_000):
        seen, error = read(tmp_path, compressed(TEXT, extension) + bytes(zeros), extension)
        if COMPRESSIONS[extension] in ("gzip", "bz2", "xz"):
            assert (seen, error) == (TEXT, None)
        else:
            assert error is not None
            assert error.endswith("the shard is damaged")


@pytest.mark.parametrize("extension", KINDS)
def test_a_second_member_with_a_damaged_header_is_an_error(tmp_path: Path, extension: str) -> None:
    whole = compressed(TEXT, extension)
    for place in range(2):
        second = bytearray(whole)
        second[place] ^= 1
        _, error = read(tmp_path, whole + bytes(second), extension)
        assert error is not None
        assert "cannot be read on: " in error


@pytest.mark.parametrize("extension", KINDS)
def test_a_file_of_no_bytes_or_of_zeros_is_no_compressed_file(tmp_path: Path, extension: str) -> None:
    kind = COMPRESSIONS[extension]
    seen, error = read(tmp_path, b"", extension)
    message = f"cannot be read on: a file of 0 bytes is no {kind} file; the shard is damaged"
    assert (seen, error) == (b"", f"shard a.txt{extension}, line 1: {message}")
    seen, error = read(tmp_path, bytes(1000), extension)
    assert seen == b""
    assert error is not None
    path = tmp_path / f"a.txt{extension}"
    path.write_bytes(b"")
    assert list(bf.from_files(path, on_error="skip")) == []


@pytest.mark.parametrize("extension", KINDS)
def test_the_file_is_closed(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.txt{extension}"
    path.write_bytes(compressed(TEXT, extension))
    below = LocalFile(str(path))
    file = Decompressed(below, COMPRESSIONS[extension])
    assert file.read(5) == b"line "
    file.close()
    assert below.closed
    with pytest.raises(ValueError, match="closed file"):
        below.fileno()


# -- told by the bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zstd", "bz2", "xz", "lz4"])
def test_compression_is_told_by_the_bytes_whatever_the_name(tmp_path: Path, kind: str) -> None:
    extension = next(one for one in KINDS if COMPRESSIONS[one] == kind)
    for name in ("a.txt", "A.TXT.GZ", "b.txt.gzip", "c.txt.xz", "d.txt.zst"):
        (tmp_path / name).write_bytes(compressed(TEXT, extension))
        assert [row["text"] for row in bf.from_files(tmp_path / name)] == TEXT.decode().splitlines()
        (tmp_path / name).write_bytes(TEXT)
        assert [row["text"] for row in bf.from_files(tmp_path / name)] == TEXT.decode().splitlines()
    for skipped in (SKIPPABLE, SKIPPABLE * 2) if kind in ("zstd", "lz4") else ():
        (tmp_path / "e.txt").write_bytes(skipped + compressed(TEXT, extension))
        assert len(list(bf.from_files(tmp_path / "e.txt"))) == len(LINES)


def test_a_pipe_is_looked_at_without_losing_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for data in (TEXT, compressed(TEXT, ".gz"), compressed(TEXT, ".zst")):
        os.mkfifo(path)
        write = f"import sys; open({str(path)!r}, 'wb').write(sys.stdin.buffer.read())"
        with subprocess.Popen([sys.executable, "-c", write], stdin=subprocess.PIPE) as child:
            assert child.stdin is not None
            child.stdin.write(data)
            child.stdin.close()
            rows = bf.from_files(path, schema={"text": pa.string()}, format="text")
            assert [row["text"] for row in rows] == TEXT.decode().splitlines()
        path.unlink()


def test_compression_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(compressed(TEXT, ".gz"))

    def content(file: Any) -> list[dict[str, bytes]]:
        return [{"bytes": file.read()}]

    assert list(bf.from_files(path, format=content)) == [{"bytes": TEXT}]
    assert list(bf.from_files(path, format=content, compression="none")) == [{"bytes": path.read_bytes()}]
    with pytest.raises(DataError, match=r"^shard a\.dat, line 1: cannot be read on: .*; the shard is damaged$"):
        list(bf.from_files(path, format="text", compression="xz"))
    message = r"^compression must be one of gzip, zstd, bz2, xz, lz4, none \(got 'zip'\)$"
    with pytest.raises(ValueError, match=message):
        bf.from_files(path, compression="zip")
    with pytest.raises(ValueError, match="parquet files are not compressed as a whole; decompress it, or give another"):
        bf.from_files("a.parquet", compression="gzip")


@pytest.mark.parametrize("kind", ["gzip", "zstd", "bz2", "xz", "lz4"])
def test_random_members_names_cuts_and_tails_give_all_that_was_written_or_an_error(tmp_path: Path, kind: str) -> None:
    """Of 10^4 others, none was another."""
    rng = random.Random(44)
    extension = next(one for one in KINDS if COMPRESSIONS[one] == kind)
    for _ in range(times(40, 2_000)):
        texts = [b"".join(LINES[: rng.choice([0, 1, 30, 400])]) for _ in range(rng.randint(1, 3))]
        data = b"".join(compressed(text, extension) for text in texts)
        harm = rng.choice(["none", "cut", "tail"])
        if harm == "cut":
            data = data[: rng.randrange(4, len(data))]
        elif harm == "tail":
            data += rng.choice([b"garbage", b"\n", b"\x1f\x8b", b"BZ"])
        named = rng.choice(KINDS)
        found, error = read(tmp_path, data, named if harm == "none" else extension)
        if harm == "none":
            assert (found, error) == (b"".join(texts), None)
        else:
            ends = [len(b"".join(texts[:number])) for number in range(len(texts))]
            assert b"".join(texts).startswith(found)
            assert error is not None or len(found) in ends  # cut between two members


# -- zstd ------------------------------------------------------------------------------------------------------------------


def long_frame(content: bytes, log: int) -> bytes:
    """A frame of one raw block that asks for a window of 2^log bytes."""
    return b"\x28\xb5\x2f\xfd\0" + bytes([(log - 10) << 3]) + struct.pack("<I", len(content) << 3 | 1)[:3] + content


@pytest.mark.parametrize("before", [b"", SKIPPABLE, compressed(TEXT, ".zst")])
def test_a_long_window_is_named_and_read_where_it_is_allowed(tmp_path: Path, before: bytes) -> None:
    pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    path = tmp_path / "a.txt.zst"
    path.write_bytes(before + long_frame(b"hello\n", 28))
    first = TEXT.decode().splitlines() if before.startswith(b"(") else []
    it = bf.from_files(path).iter()
    with pytest.raises(DataError) as error:
        list(it)
    assert str(error.value) == (
        "shard a.txt.zst, line 1: cannot be read on: it needs a zstd window of 268,435,456 bytes, and "
        "134,217,728 are allowed; pass zstd_window_bytes=268435456, which takes so much memory for each open shard "
        "(pip install 'brimful[zstd]')"
    )
    found = bf.from_files(path, zstd_window_bytes=1 << 28)
    assert [row["text"] for row in found] == [*first, "hello"]
    path.write_bytes(before + long_frame(b"hello\n", 40))
    with pytest.raises(
        DataError, match=r"of 1,099,511,627,776 bytes, and zstd has 2,147,483,648 at most; compress it again$"
    ):
        list(bf.from_files(path, zstd_window_bytes=1 << 31))


def test_pythons_zstd_and_arrows_read_the_same(tmp_path: Path) -> None:
    pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    whole, empty, path = compressed(TEXT, ".zst"), compressed(b"", ".zst"), tmp_path / "a.txt.zst"
    for data in (
        whole,
        empty + whole,
        whole + SKIPPABLE + whole,
        whole[:-5],
        whole + whole[:99],
        whole + b"x",
        whole + b"\0",
    ):
        path.write_bytes(data)
        found = []
        for window in (None, 1 << 28):
            it, rows = bf.from_files(path, on_error="skip", zstd_window_bytes=window).iter(), []
            rows.extend(row["text"] for row in it)
            found.append((rows, it.stats["skipped_shards"]))
        (by_arrow, lost), (by_python, lost_too) = found
        assert lost == lost_too
        assert by_python[: len(by_arrow)] == by_arrow
        assert lost or by_python == by_arrow  # an error takes along what Arrow has read with it


def test_a_missing_dictionary_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x23\xfb\xad\x19\x3f\x05\x29\0\0hello")
    with pytest.raises(DataError) as error:
        list(bf.from_files(path))
    assert str(error.value) == (
        "shard a.txt.zst, line 1: cannot be read on: it was compressed with dictionary 1,058,647,547, which is not in the "
        "file; compress it again without a dictionary"
    )


def test_a_window_is_checked_where_it_is_given() -> None:
    for window in (0, (1 << 31) + 1):
        with pytest.raises(ValueError, match=r"zstd_window_bytes must be at "):
            bf.from_files("a.jsonl.zst", zstd_window_bytes=window)
    code = (
        "import sys; sys.modules['backports.zstd'] = sys.modules['compression.zstd'] = None\n"
        "import brimful as bf; bf.from_files('a.jsonl.zst', zstd_window_bytes=1 << 28)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: zstd_window_bytes= needs backports.zstd: pip install 'brimful[zstd]'" in child.stderr
