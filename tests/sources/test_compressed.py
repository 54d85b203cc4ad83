"""Compressed shards are read whole, or are an error that says where they break off: never a part of them in silence."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import brimful as bf
from brimful.plan.errors import DataError
from brimful.sources.bytes import LocalFile
from brimful.sources.compressed import COMPRESSIONS, Decompressed
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
