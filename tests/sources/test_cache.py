"""A cache on disk: what was read once is not asked for again, and no byte is wrong, whatever befalls the folder."""

from __future__ import annotations

import logging
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources import cache as kept
from brimful.sources.cache import FOLDER, PIECE_BYTES, DiskCache
from brimful.sources.objects import Object, ObjectStore, Spans
from tests.disks import small_disk
from tests.effort import times
from tests.shards import threads_left, write, write_table
from tests.sources import cache_child
from tests.store.faulty import faulty
from tests.store.servers import s3, serving
from tests.store.stores import blocks_of, store_of

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

OPTIONS = {"skip_instance_cache": True}
ROWS = 20_000
KILLS, PROCESSES = times(6, 50), 8
PIECE_FILE = PIECE_BYTES + 4 + 20


@pytest.fixture(autouse=True)
def _warn_again() -> None:
    kept._SAID.clear()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several pieces each, and a store."""
    path = tmp_path_factory.mktemp("far")
    random.seed(5)
    rows = [{"id": id, "text": random.randbytes(30).hex()} for id in range(ROWS)]
    write(path / "a.jsonl", rows)
    write(path / "b.jsonl.gz", rows)
    write_table(path / "c.parquet", pa.Table.from_pylist(rows), 3_000)
    store_of(path / "store", blocks_of([20] * 3_000, 100), batch_bytes=10_000, file_bytes=100_000)
    return path


def ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


def ours(folder: Path) -> Path:
    return folder / FOLDER


def pieces(folder: Path) -> list[Path]:
    return sorted(path for path in ours(folder).iterdir() if kept._KEPT.fullmatch(path.name))


def size_of(folder: Path) -> int:
    """The bytes of all pieces, and of those that are being written."""
    size = 0
    for path in ours(folder).iterdir():
        if path.name not in ("ledger", "README", "CACHEDIR.TAG"):
            try:
                size += path.stat().st_size
            except FileNotFoundError:
                continue
    return size


def source(name: str, url: str, cache: Path, **options: Any) -> Any:
    options = {"storage_options": OPTIONS, "cache_dir": cache, **options}
    return bf.from_store(f"{url}/{name}", **options) if name == "store" else bf.from_files(f"{url}/{name}", **options)


@contextmanager
def said(caplog: pytest.LogCaptureFixture, words: str, count: int = 1) -> Iterator[None]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="brimful"):
        yield
    assert sum(words in record.getMessage() for record in caplog.records) == count, caplog.text


@pytest.mark.parametrize("tags", [True, "HEAD", "GET time"])
@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.parquet", "store"])
def test_a_second_epoch_over_http_asks_for_next_to_nothing(far: Path, tmp_path: Path, name: str, tags: Any) -> None:
    with serving(far) as server:
        server.tags = tags
        data = source(name, server.url, tmp_path)
        first = [str(sample) for sample in data]
        asked, requests = server.bytes, server.requests.total()
        again = source(name, server.url, tmp_path)
        assert [str(sample) for sample in again] == first
        manifest = sum(file.stat().st_size for file in (far / "store").glob("*.json")) if name == "store" else 0
        if tags != "GET time":  # a tag that only replies with content have is not known before one came
            assert server.bytes - asked - manifest <= 0.05 * asked
            if tags is True and name != "store":
                assert server.requests.total() - requests == 3, "for the list of files, the schema and the rows"
    assert first == [str(sample) for sample in (bf.from_store if name == "store" else bf.from_files)(far / name)]
    assert threads_left() == []


def test_a_cache_adds_no_request(far: Path, tmp_path: Path) -> None:
    """A file of 1.7 MB is asked for by the 1 MB, twice without a cache: for its schema, and for its rows."""
    counts, size = [], (far / "a.jsonl").stat().st_size
    for cache in (None, tmp_path):
        with serving(far) as server:
            assert ids(source("a.jsonl", server.url, cache)) == list(range(ROWS))  # type: ignore[arg-type]
            counts.append((server.requests.total(), server.bytes))
    assert counts == [(3 + 2 * 2, 2 * size), (3 + 2, size)]


def test_a_second_epoch_over_s3_asks_for_next_to_nothing(far: Path, tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    with s3() as options:
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        for path in far.rglob("*"):
            if path.is_file():
                fs.pipe_file(f"bucket/{path.relative_to(far)}", path.read_bytes())
        with faulty(options["endpoint_url"], 0, faults=[]) as server:
            options = {**options, "endpoint_url": server.url, "skip_instance_cache": True}
            for name in ("a.jsonl", "store"):
                read = bf.from_store if name == "store" else bf.from_files
                sent = []
                for _ in range(2):
                    before = server.bytes
                    data = read(f"s3://bucket/{name}", storage_options=options, cache_dir=tmp_path)  # type: ignore[operator]
                    assert ids(data) == ids(read(far / name))  # type: ignore[operator]
                    sent.append(server.bytes - before)
                assert sent[1] < 0.05 * sent[0] + 10_000, "and the manifest, and what S3 says of each object"


@pytest.mark.parametrize("tags", [True, "HEAD", "GET time"])
def test_of_an_object_that_was_replaced_no_old_piece_is_served(tmp_path: Path, tags: Any) -> None:
    (tmp_path / "far").mkdir()
    path = tmp_path / "far" / "a.jsonl"
    with serving(tmp_path / "far") as server:
        server.tags = tags
        for start in (100_000, 200_000):
            other = path.with_name("other")
            write(other, [{"id": id} for id in range(start, start + 40_000)])
            os.utime(other, (start, start))
            other.replace(path)
            for _ in range(2):
                data = source("a.jsonl", server.url, tmp_path / "near")
                assert ids(data) == list(range(start, start + 40_000))


def test_an_object_without_a_tag_is_not_kept(far: Path, tmp_path: Path) -> None:
    with serving(far) as server:
        server.tags = False
        for name in ("a.jsonl", "store"):
            assert len(ids(source(name, server.url, tmp_path))) in (ROWS, 3_000)
    assert not ours(tmp_path).exists() or pieces(tmp_path) == []


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path, 1_000),
    "flipped checksum": lambda path: flip(path, -22),
    "flipped mark": lambda path: flip(path, -1),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut by one": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "of somebody else": lambda path: path.write_text("hello"),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "a link": lambda path: (path.rename(path.parent.parent / "elsewhere"), path.symlink_to("../elsewhere")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "unreadable": lambda path: path.chmod(0),
}


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_piece_is_fetched_again(far: Path, tmp_path: Path, damage: str) -> None:
    with serving(far) as server:
        assert ids(source("a.jsonl", server.url, tmp_path)) == list(range(ROWS))
        for path in pieces(tmp_path):
            DAMAGE[damage](path)
        assert ids(source("a.jsonl", server.url, tmp_path)) == list(range(ROWS))
        asked = server.bytes
        assert ids(source("a.jsonl", server.url, tmp_path)) == list(range(ROWS))
        assert server.bytes == asked


def test_pieces_that_change_their_names_are_not_taken_for_others(far: Path, tmp_path: Path) -> None:
    with serving(far) as server:
        assert ids(source("a.jsonl", server.url, tmp_path)) == list(range(ROWS))
        one, other = pieces(tmp_path)[:2]
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        assert ids(source("a.jsonl", server.url, tmp_path)) == list(range(ROWS))


def block(number: int) -> memoryview:
    return memoryview(number.to_bytes(2, "big") * (PIECE_BYTES // 2))


def name(number: int) -> str:
    return f"{number:032x}-0"


def test_what_was_used_last_stays_and_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 8 * PIECE_FILE)
    cache.put(name(0), block(0))
    foreign = [
        tmp_path / "mine",
        ours(tmp_path) / "mine",
        ours(tmp_path) / "0123.part",
        ours(tmp_path) / f"{name(1)}.bak",
    ]
    for path in foreign:
        path.write_bytes(bytes(PIECE_BYTES))
        os.utime(path, (1, 1))
    (ours(tmp_path) / name(777)).mkdir()
    for number in range(1, 60):
        cache.put(name(number), block(number))
        for each in pieces(tmp_path):  # as if a while had passed
            found = each.stat()
            os.utime(each, (found.st_atime, found.st_mtime - 100)) if each.is_file() else None
        assert cache.get(name(0), PIECE_BYTES) == block(0), "it is used all the time"
        assert cache.get(name(number), PIECE_BYTES) == block(number)
        assert sum(path.stat().st_size for path in pieces(tmp_path) if path.is_file()) <= 8 * PIECE_FILE
    assert cache.get(name(10), PIECE_BYTES) is None
    assert all(path.read_bytes() == bytes(PIECE_BYTES) for path in foreign)
    assert (ours(tmp_path) / name(777)).is_dir()


def test_the_folder_is_not_listed_at_each_read_or_write(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 100 * PIECE_FILE)
    with patch.object(os, "scandir", wraps=os.scandir) as listed:
        for number in range(200):
            cache.put(name(number), block(number))
            assert cache.get(name(number), PIECE_BYTES) is not None
    assert listed.call_count <= 14


def test_what_a_killed_process_left_goes_when_it_is_old(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 8 * PIECE_FILE)
    cache.put(name(0), block(0))
    parts = [ours(tmp_path) / f"{number:016x}.part" for number in range(2)]
    for path, age in zip(parts, (10, 10_000)):
        path.write_bytes(bytes(PIECE_BYTES))
        os.utime(path, (time.time() - age,) * 2)
    for number in range(1, 20):
        cache.put(name(number), block(number))
    assert [path.exists() for path in parts] == [True, False]


def test_a_full_disk_is_said_once_and_reading_goes_on(
    far: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 900) as disk, serving(far) as server, said(caplog, "No space left on device"):
        for _ in range(2):
            assert ids(source("a.jsonl", server.url, disk, cache_bytes=1 << 30)) == list(range(ROWS))
        assert 0 < len(pieces(disk)) <= 3
        assert list(ours(disk).glob("*.part")) == []


def test_a_folder_that_may_not_be_written_is_said_once_and_reading_goes_on(
    far: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with serving(far) as server:
        for place in (tmp_path / "file", Path("/proc/brimful")):
            kept._SAID.clear()
            with said(caplog, "takes nothing more, and reading goes on without it"):
                assert ids(source("a.jsonl", server.url, place)) == list(range(ROWS))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_what_another_user_may_not_write_he_reads(far: Path, tmp_path: Path) -> None:
    """A folder that its owner alone may write to: another user has its pieces, and adds none, nor touches them."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    cache = DiskCache(str(tmp_path), 8 * PIECE_FILE)
    cache.put(name(0), block(0))
    child = os.fork()
    if not child:
        os.setuid(65534)
        other = DiskCache(str(tmp_path), 8 * PIECE_FILE)
        right = other.get(name(0), PIECE_BYTES) == block(0)
        other.put(name(1), block(1))
        os._exit(0 if right and other.get(name(1), PIECE_BYTES) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(pieces(tmp_path)) == 1


def test_a_folder_that_vanishes_while_it_is_used_is_made_anew(far: Path, tmp_path: Path) -> None:
    with serving(far) as server:
        it = source("a.jsonl", server.url, tmp_path).iter()
        seen = [next(it)["id"] for _ in range(10)]
        shutil.rmtree(ours(tmp_path))
        assert seen + ids(it) == list(range(ROWS))
        cache = DiskCache(str(tmp_path))
        cache.put(name(0), block(0))
        shutil.rmtree(ours(tmp_path))
        cache.put(name(1), block(1))
        assert cache.get(name(1), PIECE_BYTES) == block(1)
        (ours(tmp_path) / "ledger").unlink()
        cache.put(name(2), block(2))
        assert (ours(tmp_path) / "ledger").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours(tmp_path).symlink_to("other")
    cache = DiskCache(str(tmp_path))
    cache.put(name(0), block(0))
    assert cache.get(name(0), PIECE_BYTES) is None
    assert list((tmp_path / "other").iterdir()) == []


def test_a_cache_is_pickled_as_its_settings_and_forked_with_what_it_has_open(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 8 * PIECE_FILE)
    cache.put(name(0), block(0))
    other = pickle.loads(pickle.dumps(cache))
    assert (other.path, other.most_bytes) == (cache.path, cache.most_bytes)
    assert other.get(name(0), PIECE_BYTES) == block(0)
    children = []
    for number in range(1, 5):
        children.append(os.fork())
        if not children[-1]:
            for again in range(20):
                cache.put(name(100 * number + again), block(number))
            os._exit(0 if cache.get(name(0), PIECE_BYTES) in (block(0), None) else 1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert size_of(tmp_path) <= 8 * PIECE_FILE


def test_the_workers_of_a_loader_share_a_cache(far: Path, tmp_path: Path) -> None:
    with serving(far) as server:
        data = source("a.jsonl", server.url, tmp_path).map(lambda sample: {"id": sample["id"]})
        expected = ids(data)
        asked = server.bytes
        forked = os.fork()
        if not forked:
            os._exit(0 if ids(pickle.loads(pickle.dumps(source("a.jsonl", server.url, tmp_path)))) == expected else 1)
        assert os.waitpid(forked, 0)[1] == 0
        assert server.bytes == asked


@pytest.mark.parametrize("ending", ["a.jsonl", "b.jsonl.gz", "c.parquet", "store"])
def test_a_server_without_ranges_is_asked_for_each_object_once_and_as_a_whole(
    far: Path, tmp_path: Path, ending: str
) -> None:
    with serving(far) as server:
        server.ranges = False
        data = source(ending, server.url, tmp_path)
        first = [str(sample) for sample in data]
        assert first == [
            str(sample) for sample in (bf.from_store if ending == "store" else bf.from_files)(far / ending)
        ]
        asked, requests = server.bytes, server.requests.total()
        it = source(ending, server.url, tmp_path).iter()
        rest = [str(next(it)) for _ in range(len(first) // 2)]
        state = it.state_dict()
        it.close()
        rest += [str(sample) for sample in source(ending, server.url, tmp_path).iter(state)]
        assert rest == first
        assert server.bytes - asked < 0.2 * asked + 60_000  # a first request, which shows that all comes
        assert server.requests.total() - requests < 200
    assert threads_left() == []


def test_a_whole_object_that_is_damaged_in_the_cache_comes_again(far: Path, tmp_path: Path) -> None:
    with serving(far) as server:
        server.ranges = False
        expected = ids(source("a.jsonl", server.url, tmp_path))
        (kept,) = tmp_path.rglob("*-whole")
        content = bytearray(kept.read_bytes())
        content[len(content) // 3] ^= 1
        kept.write_bytes(content)
        asked = server.bytes
        assert ids(source("a.jsonl", server.url, tmp_path)) == expected
        assert server.bytes > asked
        asked = server.bytes
        assert ids(source("a.jsonl", server.url, tmp_path)) == expected
        assert server.bytes - asked < 60_000


def test_an_object_that_is_larger_than_the_cache_is_refused_where_it_must_be_kept_whole(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    write(tmp_path / "far" / "a.jsonl", [{"id": id, "text": "x" * 100} for id in range(30_000)])
    with serving(tmp_path / "far") as server:
        server.ranges = False
        data = source("a.jsonl", server.url, tmp_path, cache_bytes=1 << 20)
        with pytest.raises(
            OSError, match=r"It has 3,\d+,\d+ bytes and the limit of the cache is 1,048,576; raise cache_bytes"
        ):
            ids(data)


def test_a_file_system_without_coroutines_is_read_once(far: Path, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/cached/a.jsonl", (far / "a.jsonl").read_bytes())
    fs.pipe_file("/cached/b.jsonl.gz", (far / "b.jsonl.gz").read_bytes())
    for each in ("a.jsonl", "b.jsonl.gz"):
        data = bf.from_files(f"memory://cached/{each}", cache_dir=tmp_path)
        assert ids(data) == list(range(ROWS))
        with patch.object(type(fs), "_open", side_effect=AssertionError("it was opened")):
            it = bf.from_files(f"memory://cached/{each}", cache_dir=tmp_path).iter()
            assert [next(it)["id"] for _ in range(3_000)] == list(range(3_000))
            state = it.state_dict()
            it.close()
            assert ids(data.iter(state)) == list(range(3_000, ROWS))


def test_settings_of_a_cache_are_checked() -> None:
    with pytest.raises(ValueError, match=r"cache_bytes= is the limit of a cache, which needs cache_dir="):
        bf.from_files("a.jsonl", cache_bytes=1 << 30)
    with pytest.raises(ValueError, match=r"cache_bytes must be at least 1,048,576 bytes \(got 5\)"):
        bf.from_files("a.jsonl", cache_dir="here", cache_bytes=5)


def test_two_places_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """Files of one name, size and time on two hosts, which an option names."""
    stores = [
        ObjectStore(fsspec.filesystem("memory", skip_instance_cache=True, host=host), 9) for host in ("a", "b", "a")
    ]
    fsspec.filesystem("memory").pipe_file("/places/a", b"x")
    one = Object("/places/a", "memory://places/a")
    for store in stores:
        store.look(one)
    found = [store.identity(one) for store in stores]
    assert found[0] == found[2] != found[1]


def test_pieces_that_several_spans_want_come_once(far: Path, tmp_path: Path) -> None:
    content = (far / "a.jsonl").read_bytes()
    with serving(far) as server:
        store = ObjectStore(fsspec.filesystem("http", **OPTIONS), 30, DiskCache(str(tmp_path)))
        one = Object(f"{server.url}/a.jsonl", f"{server.url}/a.jsonl")
        firsts = np.arange(0, PIECE_BYTES, 20_000)
        parts = store.read([one], Spans(np.zeros(len(firsts), np.int64), firsts, firsts + 10))
        assert [bytes(part) for part in parts] == [content[first : first + 10] for first in firsts.tolist()]
        assert server.bytes <= PIECE_BYTES
        assert server.requests["a.jsonl"] == 2


def test_eight_processes_that_are_killed_at_random_read_no_wrong_byte_and_keep_the_limit(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for each in ("a", "b"):
        (tmp_path / "far" / each).write_bytes(cache_child.content(each))
    rng, most = random.Random(7), 0
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, size_of(tmp_path) if ours(tmp_path).exists() else 0)
            time.sleep(0.005)

    def begin(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.sources.cache_child", str(tmp_path), server.url, str(seed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])

    with serving(tmp_path / "far") as server:
        watcher = threading.Thread(target=watch)
        watcher.start()
        children = [begin(seed) for seed in range(PROCESSES)]
        output: list[str] = []
        try:
            for kill in range(KILLS):
                victim = rng.randrange(PROCESSES)
                assert children[victim].stdout is not None
                output.append(children[victim].stdout.readline())  # it is at work
                time.sleep(rng.random() * 0.2)
                os.kill(children[victim].pid, signal.SIGKILL)
                output.extend(children[victim].communicate()[0].splitlines())
                children[victim] = begin(PROCESSES + kill)
        finally:
            for child in children:
                child.kill()
                output.extend(child.communicate()[0].splitlines())
            over.set()
            watcher.join()
    rights = sum(line.strip() == "right" for line in output)
    assert [line for line in output if line.strip() not in ("right", "", "righ", "rig", "ri", "r")] == []
    assert rights > KILLS
    assert server.bytes > 2 * cache_child.FILE_BYTES
    assert most <= cache_child.LIMIT_BYTES + PROCESSES * PIECE_FILE
    assert most > cache_child.LIMIT_BYTES // 2
