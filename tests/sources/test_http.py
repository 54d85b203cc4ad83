"""Shards behind real servers that fail, stall and go away; over HTTP and S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources import bytes as reading
from brimful.sources import objects
from brimful.sources.objects import Object, ObjectStore
from brimful.sources.urls import LOOKUPS, Shards
from tests.shards import compressed, threads_left, write, write_table
from tests.store.servers import Server, answering, s3, serving
from tests.store.stores import blocks_of, store_of

pytestmark = pytest.mark.usefixtures("small_buffers")

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

OPTIONS = {"skip_instance_cache": True}
BLOCK = 1 << 16


def far(urls: Any, **options: Any) -> bf.Dataset:
    return bf.from_files(urls, **{"storage_options": OPTIONS, **options})


def ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


def check_resumed(data: bf.Dataset, expected: list[int]) -> None:
    """Each row once, in order; from the start, and on from the middle of a run that has been closed."""
    assert ids(data) == expected
    it = data.iter()
    list(islice(it, 2 * len(expected) // 3))
    state = json.loads(json.dumps(it.state_dict()))
    it.close()
    assert ids(data.iter(state)) == expected[2 * len(expected) // 3 :]
    assert threads_left() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, plain and compressed, each of several blocks; and a store of the same size."""
    path = tmp_path_factory.mktemp("far")
    for number in range(3):
        rows = [{"id": id, "text": f"{hash(str(id)):x}" * 3} for id in range(number, 30_000, 3)]
        for ending in (".jsonl", ".jsonl.gz"):
            write(path / f"{number}{ending}", rows)
    store_of(path / "store", blocks_of([20] * 3_000, 100), batch_bytes=10_000, file_bytes=40_000)
    return path


@pytest.mark.parametrize("kind", [".parquet", ".arrow", ".ipc"])
@pytest.mark.parametrize("tags", [True, False])
def test_shards_by_columns_are_read_and_resumed_over_http(tmp_path: Path, kind: str, tags: bool) -> None:
    table = pa.table({"id": range(2_000), "text": [f"{number:x}" * 9 for number in range(2_000)]})
    write_table(tmp_path / f"a{kind}", table, 300)
    with serving(tmp_path) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.tags = tags
        check_resumed(far(f"{server.url}/a{kind}"), list(range(2_000)))


def test_of_a_parquet_file_far_away_the_columns_wanted_are_asked_for_alone(tmp_path: Path) -> None:
    large = pa.array([bytes([number % 251]) * 7_000 + bytes(str(number), "ascii") for number in range(3_000)])
    table = pa.table({"one": large, "id": range(3_000), "other": large})
    options: dict[str, Any] = {"compression": "none", "write_statistics": False, "use_dictionary": False}
    write_table(tmp_path / "a.parquet", table, 600, **options)
    with serving(tmp_path) as server:
        data = far(f"{server.url}/a.parquet", schema={"id": pa.int64()}, columns=["id"])
        assert ids(data) == list(range(3_000))
        assert (tmp_path / "a.parquet").stat().st_size > 40_000_000
        assert server.bytes < 200_000  # the footer is looked for in the last 64 KB
        assert server.requests["a.parquet"] < 15


def test_all_bytes_of_shards_and_stores_come_through_one_function(folder: Path) -> None:
    """Where a cache can stand: one that lies before it leaves nothing to ask the server for."""
    kept: dict[tuple[str, int, int], memoryview] = {}
    below = ObjectStore.range

    async def range_of(self: ObjectStore, one: Object, first: int, last: int, ours: Any = None) -> memoryview:
        place = one.path, first, last
        if place not in kept:
            kept[place] = await below(self, one, first, last, ours)
        return kept[place]

    write_table(folder / "a.parquet", pa.table({"id": range(2_000)}), 300)
    with serving(folder) as server, patch.object(ObjectStore, "range", range_of):
        for name in ("0.jsonl", "0.jsonl.gz", "a.parquet", "store"):
            read = bf.from_store if name == "store" else bf.from_files
            data: Any = read(f"{server.url}/{name}", storage_options=OPTIONS)
            first = [str(sample) for sample in data]
            asked, manifest = server.bytes, sum(file.stat().st_size for file in (folder / "store").glob("*.json"))
            assert asked > 0
            assert [str(sample) for sample in data] == first
            assert server.bytes - asked <= manifest, name


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("tags", [True, False])
def test_shards_are_read_and_resumed_over_http(folder: Path, tags: bool, ending: str) -> None:
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.tags = tags
        data = far(f"{server.url}/{{0..2}}{ending}")
        check_resumed(data, list(range(30_000)))
        assert server.requests[f"0{ending}"] > 5


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_server_that_resets_stalls_and_fails_gives_each_row_once_in_order(folder: Path, ending: str) -> None:
    names = [f"{number}{ending}" for number in range(3)]
    disk = ids(bf.from_files([folder / name for name in names], n_active_shards=2))
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        faults = ["reset", "500", "hang up", "503"]
        server.each_fifth = chain(faults, ["hang", "stall"], cycle(faults))
        data = far([f"{server.url}/{name}" for name in names], n_active_shards=2, timeout_seconds=6)
        check_resumed(data, disk)


def test_a_store_behind_a_server_that_resets_stalls_and_fails_gives_each_row_once_in_order(folder: Path) -> None:
    with serving(folder) as server:
        server.each_fifth = cycle(["reset", "500", "hang", "hang up"])
        data = bf.from_store(f"{server.url}/store", shuffle=True, storage_options=OPTIONS, timeout_seconds=6)
        check_resumed(data, ids(bf.from_store(folder / "store", shuffle=True)))


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_server_that_sends_whole_files_only_is_an_error_that_says_what_to_do(tmp_path: Path, kind: str) -> None:
    rows = [{"id": id, "text": os.urandom(60).hex()} for id in range(3_000)]
    if kind == ".parquet":
        write_table(tmp_path / f"a{kind}", pa.Table.from_pylist(rows), 300)
    else:
        write(tmp_path / f"a{kind}", rows)
    with serving(tmp_path) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.ranges = False
        with pytest.raises(
            OSError, match=rf"a{kind}: [\d,]+ bytes were asked for and [\d,]+ came; .* Download it first"
        ):
            ids(far(f"{server.url}/a{kind}", on_error="skip"))
    assert threads_left() == []


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_an_object_that_changes_under_way_is_refused(tmp_path: Path, ending: str, tags: bool) -> None:
    path = tmp_path / f"a{ending}"
    write(path, [{"id": id, "text": f"{hash(str(id)):x}" * 3} for id in range(50_000)])  # more than is read ahead
    size = path.stat().st_size
    with serving(tmp_path) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.tags = tags
        data = far(f"{server.url}/a{ending}")
        it = data.iter()
        seen = ids(islice(it, 10))
        other = tmp_path / "other"  # put in its place at once, as the server may be reading it
        other.write_bytes(bytes(size) if tags else path.read_bytes()[: size // 2])
        other.replace(path)
        what = r'its tag was ".*" and is ".*"' if tags else f"it had {size:,} bytes and has [\\d,]+ bytes"
        message = rf"^shard a{ending}, line [\d,]+: {server.url}/a{ending} has changed while it was being read: {what}; leave it"
        with pytest.raises(bf.DataError, match=message):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(len(seen)))


@pytest.mark.parametrize("tags", [True, "HEAD"])
def test_an_object_that_is_replaced_behind_a_server_without_conditions_is_refused(
    tmp_path: Path, tags: bool | str
) -> None:
    """Of an equal size, so that only its tag tells; which some servers do not say with what they send."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id":{id:7d}}}\n' for id in range(50_000)))
    with serving(tmp_path) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.conditions, server.tags = False, tags
        it = far(f"{server.url}/a.jsonl", timeout_seconds=9).iter()
        seen = ids(islice(it, 10))
        other = tmp_path / "other"
        other.write_text("".join(f'{{"id":{-1:7d}}}\n' for _ in range(50_000)))
        other.replace(path)
        message = rf"{server.url}/a.jsonl has changed while it was being read: its tag was \S+ and is "
        with pytest.raises(bf.DataError, match=message):
            seen.extend(sample["id"] for sample in it)
        if tags != "HEAD":
            assert seen == list(range(len(seen)))


@pytest.mark.parametrize("tags", ["GET", "GET time"])
def test_an_object_that_is_replaced_where_only_what_is_sent_bears_a_tag_is_refused(tmp_path: Path, tags: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id":{id:7d}}}\n' for id in range(50_000)))
    with serving(tmp_path) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.tags = tags
        assert ids(far(f"{server.url}/a.jsonl")) == list(range(50_000))
        it = far(f"{server.url}/a.jsonl", timeout_seconds=2).iter()
        seen = ids(islice(it, 10))
        other = tmp_path / "other"
        other.write_text("".join(f'{{"id":{-1:7d}}}\n' for _ in range(50_000)))
        os.utime(other, (1e9, 1e9))
        other.replace(path)
        what = "ETag" if tags == "GET" else "Last-Modified"
        message = rf"{server.url}/a.jsonl has changed while it was being read: {what} was \S+.* and a reply has "
        with pytest.raises((TimeoutError, bf.DataError), match=message):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(len(seen)))


def test_an_old_copy_on_the_way_is_asked_again_and_never_mixed(folder: Path) -> None:
    """One that says which content it is of, though the server itself says that nothing has changed."""
    other = '"of an old copy"'
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        check = objects.ObjectStore.check
        replies = iter([other] * 2)

        def checked(self: objects.ObjectStore, one: objects.Object, reply: Any, size: int | None) -> None:
            tag = next(replies, None) if one.path.endswith("0.jsonl") else None
            check(self, one, reply if tag is None else {"ETag": tag}, size)

        with patch.object(objects.ObjectStore, "check", checked):
            assert ids(far(f"{server.url}/0.jsonl")) == list(range(0, 30_000, 3))
        replies = iter([other] * 1_000)
        with patch.object(objects.ObjectStore, "check", checked), pytest.raises(TimeoutError) as error:
            list(far(f"{server.url}/0.jsonl", timeout_seconds=1, schema={"id": pa.int64(), "text": pa.string()}))
        assert f"the tag of {server.url}/0.jsonl was " in str(error.value)
        assert f", and a reply has {other}" in str(error.value)


@pytest.mark.parametrize("fault", ["other range", "no range"])
def test_another_range_than_the_one_asked_for_is_refused(folder: Path, fault: str) -> None:
    what = r"bytes \d+-\d+/\d+" if fault == "other range" else "it does not say which"
    message = (
        rf"http://\S+/0.jsonl cannot be read by ranges: bytes \d+-\d+ were asked for, and the server sent {what}; copy"
    )
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        it = far(f"{server.url}/0.jsonl", on_error="skip").iter()
        seen = ids(islice(it, 10))
        server.faults["0.jsonl"] = [f"GET {fault}"] * 1_000
        with pytest.raises(OSError, match=message):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(0, 3 * len(seen), 3))
        data = bf.from_store(f"{server.url}/store", storage_options=OPTIONS)
        server.faults |= {path.name: [f"GET {fault}"] * 1_000 for path in (folder / "store").glob("*.arrow")}
        with pytest.raises(bf.DataError, match=message.replace("0.jsonl", r"store/\S+")):
            list(data)


def test_what_a_server_compresses_though_it_was_not_asked_to_is_refused(folder: Path) -> None:
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        server.packed = True
        with pytest.raises(OSError, match=r"0.jsonl: [\d,]+ bytes were asked for and all came; .* Download it first"):
            ids(far(f"{server.url}/0.jsonl"))


@pytest.mark.parametrize("schema", [None, {"id": pa.int64(), "text": pa.string()}])
def test_a_server_that_is_gone_for_good_is_a_timeout_that_names_the_shard(folder: Path, schema: Any) -> None:
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        data = far(f"{server.url}/0.jsonl", timeout_seconds=1, schema=schema)
        it = data.iter()
        seen = ids(islice(it, 10))
        server.faults["0.jsonl"] = ["hang", "hang up", "500"] * 1_000
        with pytest.raises(TimeoutError, match=rf"nothing came from (shard )?{server.url}/0.jsonl within 1 seconds"):
            seen.extend(sample["id"] for sample in it)
        assert seen == list(range(0, 3 * len(seen), 3))
        with pytest.raises(
            TimeoutError, match=rf"nothing came from {server.url}/0.jsonl within 1 seconds \(attempts: "
        ):
            far(f"{server.url}/0.jsonl", timeout_seconds=1).iter()


def test_a_server_that_refuses_says_so_and_is_never_skipped(folder: Path) -> None:
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        it = far(f"{server.url}/0.jsonl", on_error="skip").iter()
        next(it)
        server.faults["0.jsonl"] = ["403"] * 1_000
        with pytest.raises(OSError, match=r"^shard 0\.jsonl, line [\d,]+: cannot be read on: OSError: .*403"):
            list(it)
        with pytest.raises(bf.DataError, match=rf"^{server.url}/0.jsonl cannot be read: .*403"):
            far(f"{server.url}/0.jsonl").iter()


def test_a_function_of_the_open_file_reads_and_seeks_far_away_and_cannot_hide_a_failure(folder: Path) -> None:
    def lines(file: Any) -> Iterator[dict[str, int]]:
        file.seek(-100, 2)
        file.read()
        file.seek(0)
        try:
            for line in file:
                yield {"id": json.loads(line)["id"]}
        except Exception:
            return

    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        data = far(f"{server.url}/0.jsonl", format=lines, timeout_seconds=1)
        assert ids(data) == list(range(0, 30_000, 3))
        it = data.iter()
        next(it)
        server.faults["0.jsonl"] = ["500"] * 1_000
        with pytest.raises(TimeoutError, match=rf"nothing came from (shard )?{server.url}/0.jsonl within 1 seconds"):
            list(it)


def test_blocks_are_read_ahead_and_each_byte_comes_once(folder: Path) -> None:
    size = (folder / "0.jsonl").stat().st_size
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        assert len(list(far(f"{server.url}/0.jsonl"))) == 10_000
        assert server.bytes < size + 8 * BLOCK


def test_shards_in_s3_are_read_resumed_and_refused_where_they_change(folder: Path) -> None:
    pytest.importorskip("s3fs")
    with s3() as options, patch.object(reading, "BLOCK_BYTES", BLOCK):
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        names = ["0.jsonl", "1.jsonl.gz", "2.jsonl"]
        for name in names:
            fs.pipe_file(f"bucket/{name}", (folder / name).read_bytes())
        data = far("s3://bucket/*", storage_options={**options, **OPTIONS})
        check_resumed(data, list(range(30_000)))
        it = data.iter()
        next(it)
        fs.pipe_file("bucket/2.jsonl", bytes((folder / "2.jsonl").stat().st_size))
        with pytest.raises(
            bf.DataError, match=r"s3://bucket/2.jsonl has changed while it was being read: its tag was "
        ):
            list(it)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = r"^there is no file 'http://127\.0\.0\.1:\d+/none\.jsonl'$"
    with serving(tmp_path) as server, pytest.raises(FileNotFoundError, match=message):
        bf.from_files(f"{server.url}/none.jsonl").iter()


class Slow(Server):
    """Answers no question about a file before `together` of them have come, or 2 seconds have gone by."""

    def __init__(self, folder: Path, together: int) -> None:
        super().__init__(folder)
        self.together, self.in_flight, self.most = together, 0, 0
        self.enough = threading.Event()

    def fault(self, name: str, command: str) -> str | None:
        if command == "HEAD":
            with self.lock:
                self.in_flight += 1
                self.most = max(self.most, self.in_flight)
                if self.in_flight >= self.together:
                    self.enough.set()
            self.enough.wait(2)
            with self.lock:
                self.in_flight -= 1
        return super().fault(name, command)


@pytest.mark.parametrize("as_list", [True, False])
def test_names_far_away_are_looked_up_at_once_in_their_order(tmp_path: Path, as_list: bool) -> None:
    names = [f"{number:03}.jsonl" for number in range(300)]
    for name in names:
        (tmp_path / name).write_text("{}\n")
    with Slow(tmp_path, 16) as server, answering(server):
        urls = [f"{server.url}/{name}" for name in names] if as_list else [f"{server.url}/{{000..299}}.jsonl"]
        shards = Shards(tuple(urls), OPTIONS).listed
        assert [shard.url for shard in shards] == [f"{server.url}/{name}" for name in names]
        assert len({id(shard.fs) for shard in shards}) == 1  # and so are their connections, which somebody must close
        assert 16 <= server.most <= LOOKUPS
        assert sum(server.requests[name] for name in names) == 300


def test_of_several_names_that_are_missing_the_first_is_named(tmp_path: Path) -> None:
    for number in (0, 1, 2, 4):
        (tmp_path / f"{number}.jsonl").write_text("{}\n")
    with serving(tmp_path) as server:
        for _ in range(5):
            with pytest.raises(FileNotFoundError, match=r"^there is no file 'http://\S+/3\.jsonl'$"):
                _ = Shards((f"{server.url}/{{0..40}}.jsonl",), OPTIONS).listed
    assert threads_left() == []


def test_ctrl_c_ends_a_look_for_names_that_hangs(tmp_path: Path) -> None:
    code = (
        "import sys, brimful as bf\nprint('begins', flush=True)\nbf.from_files(sys.argv[1] + '/{0..99}.jsonl').iter()"
    )
    with Server(tmp_path) as server, answering(server):
        server.faults = {f"{number}.jsonl": ["hang"] * 9 for number in range(100)}
        command = [sys.executable, "-c", code, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begins\n"
            until = time.monotonic() + 30
            while sum(server.requests.values()) < 8 and time.monotonic() < until:
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=30)
        assert errors.rstrip().endswith("KeyboardInterrupt")


def test_the_first_bytes_of_a_file_far_away_cost_no_request(folder: Path) -> None:
    """A plain one, told by its bytes, and a resume in the middle of it, which asks for 16 of them."""
    packed = folder / "packed.jsonl"
    packed.write_bytes((folder / "0.jsonl.gz").read_bytes())
    schema = {"id": pa.int64(), "text": pa.string()}
    with serving(folder) as server, patch.object(reading, "BLOCK_BYTES", BLOCK):
        for name in ("0.jsonl", "0.jsonl.gz", "packed.jsonl"):
            counts = []
            for compression in (None, "gzip" if name != "0.jsonl" else "none"):
                server.requests.clear()
                data = far(f"{server.url}/{name}", schema=schema, compression=compression)
                assert ids(data) == list(range(0, 30_000, 3))
                counts.append(server.requests[name])
            assert counts[0] == counts[1], name
        it = far(f"{server.url}/0.jsonl", schema=schema).iter()
        ids(islice(it, 9_000))
        state = it.state_dict()
        it.close()
        counts = []
        for compression in (None, "none"):
            server.requests.clear()
            sent = server.bytes
            assert len(ids(far(f"{server.url}/0.jsonl", schema=schema, compression=compression).iter(state))) == 1_000
            counts += [server.requests["0.jsonl"], server.bytes - sent]
        assert (counts[0] - counts[2], counts[1] - counts[3]) == (1, 16)


def test_the_name_of_a_file_is_its_path_without_the_query(tmp_path: Path) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(compressed(b'{"id": 7}\n', ".gz"))
    with serving(tmp_path) as server:
        assert ids(far(f"{server.url}/A.JSONL.GZ?sig=a%2Fb.c")) == [7]
