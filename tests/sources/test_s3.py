"""Shards and stores in S3, behind a proxy that drops connections, fails, stalls and cuts bodies short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources import bytes as reading
from tests.effort import times
from tests.shards import threads_left, write
from tests.sources import s3_child
from tests.store.faulty import FAULTS, Faulty, faulty
from tests.store.servers import s3
from tests.store.stores import blocks_of, store_of

pytest.importorskip("s3fs", reason="s3:// needs s3fs")

ROWS = 100_000
BLOCK = 1 << 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 10^5 rows each, three of 3,000 with texts, one of them compressed; and a store."""
    path = tmp_path_factory.mktemp("near")
    for number in range(3):
        lines = "".join(f'{{"id":{id}}}\n' for id in range(number, 3 * ROWS, 3))
        (path / f"rows-{number}.jsonl").write_text(lines)
        few = [{"id": id, "text": f"{id:x}" * 9} for id in range(number, 9_000, 3)]
        write(path / f"few-{number}.jsonl{'.gz' * (number == 1)}", few)
    store_of(path / "store", blocks_of([20] * 3_000, 100), batch_bytes=10_000, file_bytes=40_000)
    return path


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[dict[str, Any]]:
    """The storage options of a server that has all of it in `bucket`."""
    with s3() as options:
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        for path in folder.rglob("*"):
            if path.is_file():
                fs.pipe_file(f"bucket/{path.relative_to(folder)}", path.read_bytes())
        yield options


def by(server: Faulty, bucket: dict[str, Any]) -> dict[str, Any]:
    return {**bucket, "endpoint_url": server.url, "skip_instance_cache": True}


def ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


@pytest.mark.parametrize("fault", FAULTS)
def test_shards_behind_a_server_that_fails_give_each_row_once_in_the_order_of_the_disk(
    folder: Path, bucket: dict[str, Any], fault: str
) -> None:
    names = ["few-0.jsonl", "few-1.jsonl.gz", "few-2.jsonl"]
    disk = ids(bf.from_files([folder / name for name in names], n_active_shards=2))
    with faulty(bucket["endpoint_url"], 4, faults=[fault]) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        urls = [f"s3://bucket/{name}" for name in names]
        far = bf.from_files(urls, n_active_shards=2, storage_options=by(server, bucket), timeout_seconds=15)
        assert ids(far) == disk
        assert server.seen[fault] > 1
    assert threads_left() == []


def test_a_store_behind_a_server_that_fails_gives_each_row_once_in_the_order_of_the_disk(
    folder: Path, bucket: dict[str, Any]
) -> None:
    with faulty(bucket["endpoint_url"], 8) as server:
        far = bf.from_store("s3://bucket/store", shuffle=True, storage_options=by(server, bucket), timeout_seconds=15)
        assert ids(far) == ids(bf.from_store(folder / "store", shuffle=True))
        assert server.seen.keys() == set(FAULTS)


def test_a_process_that_is_killed_while_it_reads_faulty_shards_goes_on_where_it_was(
    folder: Path, bucket: dict[str, Any], tmp_path: Path
) -> None:
    """Three shards of 10^5 rows, one request of twenty done wrong."""
    disk = ids(bf.from_files(f"{folder}/rows-*.jsonl", n_active_shards=2))
    assert sorted(disk) == list(range(3 * ROWS))
    with faulty(bucket["endpoint_url"], 20) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        options = by(server, bucket)
        command = [sys.executable, "-m", "tests.sources.s3_child", str(tmp_path), json.dumps(options)]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], env={**os.environ}) as child:
            until = time.monotonic() + 60
            while not (tmp_path / "saved.json").exists() or _saved(tmp_path)["taken"][-1] < ROWS // 3:
                assert child.poll() is None, "the child ended by itself"
                assert time.monotonic() < until, "the child saved nothing within a minute"
                time.sleep(0.01)
            child.kill()
        saved = _saved(tmp_path)
        assert 0 < len(saved["taken"]) < 3 * ROWS
        assert saved["taken"] + ids(s3_child.samples(options).iter(saved["state"])) == disk
        assert server.seen.total() >= 4
    assert threads_left() == []


def _saved(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((folder / "saved.json").read_text())
    return saved


@pytest.mark.parametrize("change", ["cut", "replaced", "removed"])
def test_an_object_that_is_cut_replaced_or_removed_under_way_is_an_error_that_names_it(
    folder: Path, bucket: dict[str, Any], change: str
) -> None:
    """What comes before the error is of the first content alone."""
    content = (folder / "rows-0.jsonl").read_bytes()
    fs = fsspec.filesystem("s3", **bucket)
    fs.pipe_file("bucket/changing.jsonl", content)
    with faulty(bucket["endpoint_url"], 8) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        it = bf.from_files("s3://bucket/changing.jsonl", storage_options=by(server, bucket), timeout_seconds=15).iter()
        seen = ids(islice(it, 10))
        if change == "removed":
            fs.rm("bucket/changing.jsonl")
            error: type[Exception] = OSError
            message = (
                r"^shard changing.jsonl, line [\d,]+: cannot be read on: FileNotFoundError: .*bucket/changing.jsonl"
            )
        else:
            other = content[: len(content) // 2] if change == "cut" else content.replace(b":", b"=")
            fs.pipe_file("bucket/changing.jsonl", other)
            error = bf.DataError
            what = (
                f"it had {len(content):,} bytes and has {len(other):,}"
                if change == "cut"
                else r"its tag was \S+ and is "
            )
            message = (
                rf"^shard changing.jsonl, line [\d,]+: s3://bucket/changing.jsonl has changed while it was .*: {what}"
            )
        with pytest.raises(error, match=message):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(0, 3 * len(seen), 3))
    assert threads_left() == []


def test_an_object_that_is_replaced_behind_a_server_without_conditions_is_refused(
    folder: Path, bucket: dict[str, Any]
) -> None:
    content = (folder / "rows-0.jsonl").read_bytes()
    fs = fsspec.filesystem("s3", **bucket)
    fs.pipe_file("bucket/replaced.jsonl", content)
    with faulty(bucket["endpoint_url"], 0) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.conditions = False
        it = bf.from_files("s3://bucket/replaced.jsonl", storage_options=by(server, bucket), timeout_seconds=15).iter()
        seen = ids(islice(it, 10))
        fs.pipe_file("bucket/replaced.jsonl", content.replace(b"1", b"2"))
        with pytest.raises(bf.DataError, match=r"replaced.jsonl has changed while it was .*: its tag was \S+ and is "):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(0, 3 * len(seen), 3))


def test_another_range_than_the_one_asked_for_is_refused(folder: Path, bucket: dict[str, Any]) -> None:
    with (
        faulty(bucket["endpoint_url"], 4, faults=["other range"]) as server,
        patch.object(reading, "BLOCK_BYTES", BLOCK),
        pytest.raises(
            OSError, match=r"rows-0.jsonl cannot be read by ranges: bytes \d+-\d+ were asked for, and the server sent "
        ),
    ):
        list(bf.from_files("s3://bucket/rows-0.jsonl", storage_options=by(server, bucket), timeout_seconds=15))
    assert server.seen["other range"] == 1


# -- many streams at once --------------------------------------------------------------------------------------------------


def test_many_open_files_share_the_bytes_that_few_have(bucket: dict[str, Any]) -> None:
    fs = fsspec.filesystem("s3", **bucket)
    fs.pipe_file("bucket/large.bin", bytes(2 << 20))
    whole, count = 1 << 20, 32
    with (
        faulty(bucket["endpoint_url"], 0) as server,
        patch.object(reading, "BLOCK_BYTES", whole),
        patch.object(reading, "WHOLE_BLOCKS", 4),
    ):
        fs = fsspec.filesystem("s3", **by(server, bucket))
        files = [reading.opened(fs, "bucket/large.bin", "large", 20.0) for _ in range(count)]
        before = server.bytes
        assert all(len(file.read(10) or b"") == 10 for file in files)
        assert server.bytes - before == 4 * whole
        for file in files[1:]:
            file.close()
        before = server.bytes
        files[0].seek(whole)
        files[0].read(10)
        assert server.bytes - before == whole
        files[0].close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not say what was used at most")
def test_64_streams_take_the_memory_threads_and_connections_that_are_said(bucket: dict[str, Any]) -> None:
    """As the docstrings of from_files and RemoteFile have it; all shards are open at once, and none is read to its end."""
    streams, per_stream, whole = 64, times(1, 12), times(8, 64)
    content = (b'{"text": "' + b"x" * 2_000 + b'"}\n') * 1_500
    fsspec.filesystem("s3", **bucket).pipe_file("bucket/many.jsonl", content)
    data = bf.from_files(
        ["s3://bucket/many.jsonl"] * (streams * per_stream),
        streams=streams,
        schema={"text": pa.string()},
        storage_options=bucket,
    )
    Path("/proc/self/clear_refs").write_text("5")
    before, files = most_resident(), len(open_files())
    with patch.object(reading, "WHOLE_BLOCKS", whole), data.iter() as it:
        for _ in range(3 * streams):
            next(it)
        time.sleep(0.5)  # for what is read ahead
        links = open_files()
        assert sum(link.startswith("socket:") for link in links) <= 20  # 10 of s3fs, and what was there
        assert len(links) <= files + 20
        assert len(our_threads()) <= 3 * streams + 1
    said = 8 * streams + streams * per_stream + 4 * whole
    assert most_resident() - before < 1.2 * said * 2**20
    assert threads_left() == []


def open_files() -> list[str]:
    """What the open files of this process are; those that are closed in the meantime are passed over."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("brimful-")]


def most_resident() -> int:
    """Bytes of memory at most since `clear_refs` was written to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
