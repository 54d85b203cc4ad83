"""Compressed files are read on from inside: the same bytes, and the same errors, as from their beginning."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources import bytes as reading
from brimful.sources import compressed as decompressing
from brimful.sources import restarts
from brimful.sources.bytes import LocalFile
from brimful.sources.cache import FOLDER, DiskCache
from brimful.sources.compressed import Decompressed
from tests.store.servers import serving

LINES = [b'{"id": %d, "text": "%s"}\n' % (number, str(hash(str(number))).encode()) for number in range(40_000)]
TEXT = b"".join(LINES)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places lie 50 KB apart, so that small files have many."""
    monkeypatch.setattr(restarts, "POINT_BYTES", 50_000)
    monkeypatch.setattr(decompressing, "SKIPPED_BYTES", 1_000)
    restarts.say_read_from_start.cache_clear()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def zstd(data: bytes) -> bytes:
    """A frame that says how many bytes it holds."""
    return bytes(pa.compress(data, "zstd", asbytes=True))


def streamed_zstd(data: bytes) -> bytes:
    """A frame that does not."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as file:
        for part in cut(data, 10_000):
            file.write(part)
    return out.getvalue().to_pybytes()


FILES = {
    "one member": gzip.compress(TEXT),
    "fast": gzip.compress(TEXT, 1),
    "stored": gzip.compress(TEXT, 0),
    "members": b"".join(map(gzip.compress, [b"", TEXT[:700_000], b"", TEXT[700_000:], b""])),
    "bgzip": b"".join(map(gzip.compress, [*cut(TEXT, 65_280), b""])),
    "zeros after it": gzip.compress(TEXT) + bytes(70_000),
    "frames": b"".join(map(zstd, cut(TEXT, 100_000))),
    "frames to be skipped": b"".join(SKIPPABLE + zstd(part) for part in cut(TEXT, 100_000)) + SKIPPABLE,
    "frames, empty ones too": b"".join(zstd(b"") + zstd(part) for part in cut(TEXT, 100_000)),
    "frames of unknown sizes": b"".join(map(streamed_zstd, cut(TEXT, 300_000))),
    "frames of which some have unknown sizes": b"".join(map(zstd, cut(TEXT[:600_000], 100_000)))
    + streamed_zstd(TEXT[600_000:]),
}
NO_PLACES = [name for name in FILES if "unknown sizes" in name]
"""Of the second, only its first 600,000 bytes have places."""


def kind_of(data: bytes) -> str:
    return "gzip" if data.startswith(b"\x1f") else "zstd"


def rest(file: Decompressed) -> Iterator[bytes]:
    """What comes, 64 KB at a time; then the words of the error, if there is one."""
    while True:
        try:
            data = file.read(reading.READ_BYTES)
        except ValueError as error:
            yield b"error: " + str(error).encode()
            return
        if not data:
            return
        yield data


@pytest.mark.parametrize("name", FILES)
def test_from_any_place_come_the_bytes_that_follow_it(tmp_path: Path, name: str) -> None:
    path, data, rng = tmp_path / "a", FILES[name], random.Random(name)
    path.write_bytes(data)
    far = 0
    for _ in range(60):
        file = Decompressed(LocalFile(str(path)), kind_of(data), cache=DiskCache(str(tmp_path)))
        at = rng.choice([0, 0, 100, 200_000])
        begun = b"".join(itertools.islice(rest(file), at // reading.READ_BYTES))
        target = rng.randrange(len(begun), len(TEXT) + 1)
        skipped = file.skip(target - len(begun))
        assert 0 <= skipped <= target - len(begun)
        far += target - len(begun) - skipped > 300_000
        assert b"".join(rest(file)) == TEXT[len(begun) + skipped :]
        file.close()
    assert (far > 0) is (name in NO_PLACES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "garbage", "cut and indexed before"])
def test_a_damaged_file_breaks_off_at_the_same_byte_with_the_same_words(tmp_path: Path, name: str, damage: str) -> None:
    rng = random.Random(f"{name} {damage}")
    for number in range(12):
        path, data = tmp_path / str(number), bytearray(FILES[name])
        place = rng.randrange(len(data) // 2, len(data))
        if damage == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif damage == "garbage":
            data += b"garbage"
        else:
            if damage != "cut":
                path.write_bytes(data)
                Decompressed(LocalFile(str(path)), kind_of(data), cache=DiskCache(str(tmp_path))).skip(500_000)
            del data[place:]
        path.write_bytes(data)
        whole = b"".join(rest(Decompressed(LocalFile(str(path)), kind_of(data))))
        for _ in range(3):
            target = rng.randrange(len(whole) // 2)
            file = Decompressed(LocalFile(str(path)), kind_of(data), cache=DiskCache(str(tmp_path)))
            skipped = file.skip(target)
            assert b"".join(rest(file)) == whole[skipped:]


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".csv.gz"])
def test_a_resume_in_a_new_process_has_the_rows_that_follow(tmp_path: Path, ending: str) -> None:
    lines = [b"id,text\n", *(b"%d,%d\n" % (number, hash(str(number))) for number in range(40_000))]
    text = b"".join(lines) if ".csv" in ending else TEXT
    for name in ("a", "b"):
        data = b"".join(map(zstd, cut(text, 100_000))) if ending.endswith(".zst") else gzip.compress(text)
        (tmp_path / f"{name}{ending}").write_bytes(data)

    def samples() -> Any:
        return bf.from_files(tmp_path / f"a{ending}", cache_dir=tmp_path / "cache", n_active_shards=1)

    expected = [sample["id"] for sample in bf.from_files(tmp_path / f"a{ending}")]
    for count in (1, 20_000, 30_001, 39_999):
        it = samples().iter()
        seen = [next(it)["id"] for _ in range(count)]
        state = json.loads(json.dumps(it.state_dict()))
        it.close()
        for _ in range(2):
            assert seen + [sample["id"] for sample in samples().iter(state)] == expected
    if ending.endswith(".gz"):
        assert len(list((tmp_path / "cache" / FOLDER).glob("*-index"))) == 1


def test_a_compressed_file_far_away_is_resumed_by_what_follows_alone(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    rng = random.Random(1)
    rows = b"".join(
        b'{"id": %d, "text": "%s"}\n' % (number, rng.randbytes(100).hex().encode()) for number in range(60_000)
    )
    (tmp_path / "far" / "a.jsonl.gz").write_bytes(gzip.compress(rows, 1))
    size = (tmp_path / "far" / "a.jsonl.gz").stat().st_size
    with serving(tmp_path / "far") as server:

        def samples(cache: Path) -> Any:
            options = {"skip_instance_cache": True}
            return bf.from_files(f"{server.url}/a.jsonl.gz", cache_dir=cache, storage_options=options)

        it = samples(tmp_path / "one").iter()
        for _ in range(57_000):
            next(it)
        state = it.state_dict()
        it.close()
        expected = [sample["id"] for sample in samples(tmp_path / "one").iter(state)]
        assert expected == list(range(57_000, 60_000))
        asked = server.bytes
        other = tmp_path / "two" / FOLDER
        other.mkdir(parents=True)
        for path in (tmp_path / "one" / FOLDER).glob("*-index"):  # as if the pieces had been evicted
            path.rename(other / path.name)
        assert [sample["id"] for sample in samples(tmp_path / "two").iter(state)] == expected
        assert server.bytes - asked < size // 2


def test_an_index_is_made_once_and_again_when_the_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    index = restarts._index
    monkeypatch.setattr(restarts, "_index", lambda *given: made.append(None) or index(*given))
    path = tmp_path / "a"
    for text in (TEXT, TEXT.replace(b"text", b"TEXT")):
        path.write_bytes(gzip.compress(text))
        for target in (600_000, 900_000):
            file = Decompressed(LocalFile(str(path)), "gzip", cache=DiskCache(str(tmp_path)))
            skipped = file.skip(target)
            assert skipped > target - 200_000
            assert b"".join(rest(file)) == text[skipped:]
    assert len(made) == 2


def test_without_a_cache_or_the_package_a_gzip_file_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(FILES["one member"])
    assert Decompressed(LocalFile(str(path)), "gzip").skip(900_000) == 0
    monkeypatch.setitem(__import__("sys").modules, "indexed_gzip", None)
    file = Decompressed(LocalFile(str(path)), "gzip", cache=DiskCache(str(tmp_path)))
    assert file.skip(900_000) == 0
    assert b"".join(rest(file)) == TEXT


def test_a_zstd_file_of_one_frame_says_once_that_it_is_read_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    path.write_bytes(zstd(TEXT))
    with caplog.at_level(logging.INFO, logger="brimful"):
        for _ in range(2):
            file = Decompressed(LocalFile(str(path)), "zstd")
            assert file.skip(900_000) == 0
            assert b"".join(rest(file)) == TEXT
    assert [record.getMessage()[:27] for record in caplog.records] == ["a zstd file of one frame, or"[:27]]
