"""A store behind a server is the same store: read by ranges, tried again, checked, and never waited for without an end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import brimful as bf
from brimful.cli import app
from brimful.index import order
from brimful.sources import objects
from brimful.sources.objects import Object, ObjectStore, Spans, merged
from brimful.sources.retry import transient
from brimful.store import remote
from brimful.store.index import StoreIndex, folder_of, verify_store
from brimful.store.manifest import MANIFEST
from brimful.tables.origins import ORIGIN, ORIGIN_TYPE
from brimful.testing import assert_exact_resume
from tests.shards import threads_left
from tests.store.servers import Server, s3, serving
from tests.store.stores import blocks_of, rows_of, store_of

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

DRAW = np.random.default_rng(0)
LENGTHS = DRAW.integers(0, 40, 3000).tolist()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 samples in several files of several record batches."""
    path = tmp_path_factory.mktemp("remote") / "a store"
    store_of(path, blocks_of(LENGTHS, 100), batch_bytes=10_000, file_bytes=40_000)
    return path


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store.parent) as server:
        yield server
    until = time.monotonic() + 5
    while threads_left() and time.monotonic() < until:
        time.sleep(0.01)
    assert threads_left() == []


@pytest.fixture(scope="module")
def bucket(store: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The store in a bucket: its URL, and the options to reach it."""
    pytest.importorskip("s3fs")
    with s3() as options:
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        for path in store.iterdir():
            fs.pipe_file(f"bucket/store/{path.name}", path.read_bytes())
        yield "s3://bucket/store", {**options, "skip_instance_cache": True}


def in_memory(folder: Path, name: str) -> str:
    """A copy of a store in fsspec's memory."""
    fs = fsspec.filesystem("memory")
    for path in folder.iterdir():
        fs.pipe_file(f"/{name}/{path.name}", path.read_bytes())
    return f"memory://{name}"


def kinds(number: int) -> dict[str, object]:
    """A row with a column of every kind that is read in a way of its own."""
    return {
        "input_ids": list(range(number % 7)),
        "float list": [number / 4] * (number % 3),
        "flags": [number % 2 == 0] * (number % 4),
        "with nulls": [None, 1] if number % 5 == 0 else None if number % 3 == 0 else [number],
        "fixed": [number, -number],
        "id": number,
        "perhaps": None if 40 < number % 100 < 60 else number,
        "score": number / 8,
        "flag": number % 3 == 0,
        "day": date(2020, 1, 1 + number % 28),
        "text": f"text {number} \u00fc" * (number % 5),
        "maybe text": None if number % 11 == 0 else str(number),
        "bytes": bytes([number % 256]) * (number % 9),
        "nested": {"a": number, "b": [str(number)]},
        "nothing": None,
        "empty": [],
    }


KINDS = pa.schema(
    {
        "input_ids": pa.list_(pa.int64()),
        "float list": pa.list_(pa.float32()),
        "flags": pa.list_(pa.bool_()),
        "with nulls": pa.list_(pa.int64()),
        "fixed": pa.list_(pa.int32(), 2),
        "id": pa.int64(),
        "perhaps": pa.int32(),
        "score": pa.float64(),
        "flag": pa.bool_(),
        "day": pa.date32(),
        "text": pa.string(),
        "maybe text": pa.string(),
        "bytes": pa.large_binary(),
        "nested": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        "nothing": pa.null(),
        "empty": pa.list_(pa.int32()),
    }
)
ROWS = 700


@pytest.fixture(scope="module")
def of_all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "store"
    rows = [kinds(number) for number in range(ROWS)]
    blocks = [pa.RecordBatch.from_pylist(rows[first : first + 50], KINDS) for first in range(0, ROWS, 50)]
    manifest = store_of(path, tuple(blocks), batch_bytes=4_000, file_bytes=20_000)
    assert len(manifest.files) > 2
    return path


@given(
    st.one_of(
        st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60),
        st.tuples(st.integers(0, ROWS - 1), st.integers(1, 200)).map(
            lambda range_: list(range(range_[0], min(ROWS, sum(range_))))
        ),
    ),
    st.lists(st.sampled_from(KINDS.names), min_size=1, unique=True),
    st.sampled_from([1, 1 << 13]),
    st.sampled_from([0, 1, 100]),
    st.randoms(use_true_random=False),
)
def test_any_rows_of_any_columns(
    of_all_kinds: Path, wanted: list[int], columns: list[str], gap: int, kept: int, draw: Any
) -> None:
    draw.shuffle(wanted)
    url = in_memory(of_all_kinds, "kinds")
    numbers = np.array(wanted, dtype=np.int64)
    with patch.object(objects, "GAP_BYTES", gap), patch.object(remote, "KEPT_BATCHES", kept):
        far = StoreIndex(url, tuple(columns))
        for _ in range(2):  # the second time, some is kept
            block, rows = far.locate(numbers)
            found = block.take(pa.array(rows)).select(columns)
            assert found.to_pylist() == [{name: kinds(number)[name] for name in columns} for number in wanted]
    assert block.schema == far.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))
    assert far.schema == StoreIndex(str(of_all_kinds), tuple(columns)).schema


def batches_of(path: Any, **options: Any) -> bf.Batches:
    return bf.from_store(path, shuffle=True, **options).batch_by_tokens(500, window=700)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_batches_are_those_of_the_local_store_and_resume(store: Path, server: Server) -> None:
    check_against_local(store, f"{server.url}/a store", {})


def test_batches_from_s3(store: Path, bucket: tuple[str, dict[str, Any]]) -> None:
    check_against_local(store, *bucket)


def check_against_local(store: Path, url: str, options: dict[str, Any]) -> None:
    local, far = list(batches_of(store)), batches_of(url, storage_options=options)
    found = list(far)
    assert len(found) == len(local) > 100
    for one, other in zip(local, found):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == other[name] if isinstance(value, list) else value.equal(other[name])
    it = far.iter()
    for _ in range(37):
        next(it)
    state = json.loads(json.dumps(it.state_dict()))
    it.close()
    assert ids(batches_of(url, storage_options=options).iter(state)) == ids(local)[37:]
    assert ids(batches_of(store).iter(state)) == ids(local)[37:]  # a state does not know where the store lies
    assert rows_of(bf.from_store(url, storage_options=options)) == rows_of(bf.from_store(store))
    assert bf.from_store(url, storage_options=options).lengths().tolist() == LENGTHS


def test_the_law(tmp_path: Path) -> None:
    store_of(tmp_path / "store", blocks_of(LENGTHS[:300], 20), batch_bytes=2000, file_bytes=6000)
    url = in_memory(tmp_path / "store", "law")
    with patch.object(order, "WINDOW_RUNS", 2):
        assert_exact_resume(
            lambda: bf.from_store(url, shuffle=True, repeat=True).batch_by_tokens(200, window=70),
            max_items=60,
            max_resumes=8,
        )
        assert_exact_resume(lambda: bf.from_store(url).take(250).chunk(8), max_resumes=5)


def test_what_is_made_of_far_stores_is_what_is_made_of_near_ones(store: Path, tmp_path: Path) -> None:
    """Filtered, mixed, joined: what is expected changes nothing."""
    store_of(tmp_path / "other", blocks_of(LENGTHS[:500], 60), batch_bytes=3000, file_bytes=9000)
    one, two = in_memory(store, "one"), in_memory(tmp_path / "other", "two")

    def some(first: Any, second: Any) -> list[list[list[int]]]:
        a, b = bf.from_store(first, shuffle=True, seed=1), bf.from_store(second)
        return [
            ids(made.batch_by_tokens(300, window=400))
            for made in (
                a.filter(lambda sample: sample["id"] % 3 > 0),
                a + b,
                bf.interleave_datasets([a, b], weights=[2, 1]).skip(50),
                b.shuffle(90).take(333),
            )
        ]

    with patch.object(order, "WINDOW_RUNS", 8), patch.object(order, "PLAIN_ROWS", 70):
        near = some(store, tmp_path / "other")
        assert some(one, two) == near
        assert some(one, tmp_path / "other") == near


# -- how much is read ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 samples of 200 tokens and some text: a run of 64 rows has 26 KB of tokens."""
    path = tmp_path_factory.mktemp("large") / "store"
    tokens = np.random.default_rng(0).integers(0, 60_000, (20_000, 200), dtype=np.uint16)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.ListArray.from_arrays(pa.array(np.arange(20_001, dtype=np.int32) * 200), pa.array(tokens.ravel())),
            pa.array(range(20_000)),
            pa.array([f"{number:0100}" for number in range(20_000)]),
        ],
        ["input_ids", "id", "text"],
    )
    store_of(path, tuple(rows.slice(first, 500) for first in range(0, 20_000, 500)), 1 << 20, 3 << 20)
    return path


def test_an_epoch_reads_the_store_about_once_and_a_batch_a_small_part(large: Path) -> None:
    size = sum(path.stat().st_size for path in large.glob("*.arrow"))
    sides = sum(path.stat().st_size for path in large.iterdir() if path.suffix != ".arrow")
    with serving(large.parent) as server, patch.object(order, "WINDOW_RUNS", 32):  # ten shuffle windows
        far = bf.from_store(f"{server.url}/store", shuffle=True).batch_by_tokens(8_000, window=300)
        assert len(far) > 500
        assert server.bytes < sides * 1.1  # plans read no row
        it = far.iter()
        numbers = next(it)["id"].tolist()
        wait_for(lambda: threads_left() == [])
        first = server.bytes - sides
        assert first < 0.3 * size  # the window at hand, and the next one
        assert sorted(numbers + [number for batch in it for number in batch["id"].tolist()]) == list(range(20_000))
        whole = server.bytes - sides
        assert whole < 1.25 * size
        requests = sum(count for name, count in server.requests.items() if name.endswith(".arrow"))
        assert requests < 3.5 * 4 * 20_000 / 64  # of each run: tokens, numbers, offsets, texts
        assert len(server.requests) == len(list(large.iterdir()))

        before = server.bytes
        alone = bf.from_store(f"{server.url}/store", columns=["input_ids"], shuffle=True)
        assert sum(len(sample["input_ids"]) for sample in alone) == 4_000_000
        assert server.bytes - before - sides < 8_000_000 * 1.1  # two bytes a token
        before = server.bytes
        block, _ = StoreIndex(f"{server.url}/store", ("input_ids",)).locate(np.array([77, 12_345]))
        assert block.num_rows == 2
        assert server.bytes - before < sides + 2 * 400 + 10_000


def test_the_next_rows_come_while_these_are_used(large: Path) -> None:
    with serving(large.parent) as server, patch.object(order, "WINDOW_RUNS", 32):
        it = bf.from_store(f"{server.url}/store", shuffle=True).batch(16, window=256).iter()
        next(it)
        wait_for(lambda: threads_left() == [])
        asked = sum(server.requests.values())
        rows = sum(count for name, count in server.requests.items() if name.endswith(".arrow"))
        assert rows > 110  # two windows of 32 runs: tokens by the run, numbers and texts by a few runs, 75 a window
        for _ in range(80):  # the rest of the first shuffle window
            next(it)
        assert sum(server.requests.values()) == asked
        for _ in range(80):
            next(it)
        it.close()
        wait_for(lambda: threads_left() == [])
        assert sum(server.requests.values()) > asked


def wait_for(done: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_rows_too_long_to_be_held_are_asked_for_one_by_one(large: Path) -> None:
    with serving(large.parent) as server, patch("brimful.store.remote.SET_BYTES", 1000):
        it = bf.from_store(f"{server.url}/store", shuffle=True, columns=["input_ids"]).batch(16, window=64).iter()
        next(it)
        it.close()
        assert sum(count for name, count in server.requests.items() if name.endswith(".arrow")) < 100
        assert server.bytes < 600_000


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000), st.integers(1, 300)), min_size=1, max_size=30)


@given(spans, st.sampled_from([0, 10, 1000]))
def test_requests_cover_the_spans_and_little_else(drawn: list[tuple[int, int, int]], gap: int) -> None:
    files, firsts, counts = (np.array(column, dtype=np.int64) for column in zip(*drawn))
    with patch.object(objects, "GAP_BYTES", gap):
        requests, which = merged(Spans(files, firsts, firsts + counts))
    assert (requests.files[which] == files).all()
    assert (requests.firsts[which] <= firsts).all()
    assert (requests.lasts[which] >= firsts + counts).all()
    for file in set(files.tolist()):
        asked = [set(range(a, b)) for f, a, b in zip(*(array.tolist() for array in requests)) if f == file]
        wanted = {byte for f, a, n in drawn if f == file for byte in range(a, a + n)}
        union = set().union(*asked)
        assert sum(map(len, asked)) == len(union)  # nothing twice
        assert wanted <= union
        runs = np.diff(sorted(wanted))
        assert len(asked) == 1 + (runs > gap + 1).sum()
        assert len(union) == len(wanted) + (runs[runs <= gap + 1] - 1).sum()


# -- what can go wrong ---------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


def far(server: Server, **options: Any) -> bf.Dataset:
    return bf.from_store(f"{server.url}/store", storage_options={"skip_instance_cache": True}, **options)


@pytest.mark.parametrize("fault", ["503", "429", "hang up", "GET 503", "HEAD 503", "GET short", "GET reset"])
def test_what_passes_is_survived(copy: Path, store: Path, fault: str) -> None:
    with serving(copy.parent) as server:
        for name in (MANIFEST, "lengths.input_ids.npy", "00001.arrow", "00002.arrow"):
            server.faults[name] = [fault] * 2 if name.endswith("arrow") or "short" not in fault else []
        assert rows_of(far(server)) == rows_of(bf.from_store(store))
        assert len(server.faults["00001.arrow"]) == (fault == "HEAD 503")  # then GET says as much


@pytest.mark.parametrize(("name", "fault"), [("00001.arrow", "hang"), ("00001.arrow", "503"), (MANIFEST, "hang")])
def test_a_server_that_does_not_answer(copy: Path, name: str, fault: str) -> None:
    with serving(copy.parent) as server:
        server.faults[name] = [fault] * 1000
        message = (
            rf"nothing came from {server.url}/store/{name} within 0.9 seconds \(attempts: \d+; the last: .*\); raise"
        )
        with pytest.raises(TimeoutError, match=message):
            rows_of(far(server, timeout_seconds=0.9))
        server.released.set()


def test_a_hanging_connection_is_not_all_there_is(copy: Path, store: Path) -> None:
    with serving(copy.parent) as server:
        server.faults["00001.arrow"] = ["hang"]
        assert rows_of(far(server, timeout_seconds=6)) == rows_of(bf.from_store(store))


def test_a_failure_is_told_once_and_the_rest_can_be_had(copy: Path, store: Path) -> None:
    """The rows that were fetched ahead in vain are fetched again."""
    with serving(copy.parent) as server:
        server.faults["00001.arrow"] = ["403"] * 2
        stored = far(server)
        with pytest.raises(bf.DataError, match=r"00001.arrow cannot be read: .*403"):
            rows_of(stored)
        assert rows_of(stored) == rows_of(bf.from_store(store))


def test_a_store_that_is_not_there(copy: Path) -> None:
    with serving(copy.parent) as server:
        with pytest.raises(
            FileNotFoundError,
            match=rf"there is no token store at {server.url}/none. To write one, use to_store\(path\) or",
        ):
            bf.from_store(f"{server.url}/none")
        (copy / MANIFEST).rename(copy / "journal.jsonl")
        with pytest.raises(FileNotFoundError, match=rf"the token store {server.url}/store is half-written"):
            far(server)
        server.faults["journal.jsonl"] = ["403"] * 9
    with pytest.raises(FileNotFoundError, match="there is no token store at memory://no/such"):
        bf.from_store("memory://no/such")


def test_a_file_that_is_missing_or_of_another_size(copy: Path) -> None:
    size = (copy / "00001.arrow").stat().st_size
    with (copy / "00001.arrow").open("ab") as file:
        file.write(b"x")
    with serving(copy.parent) as server:
        message = (
            rf"store/00001.arrow is not what was written, .*: it has {size + 1:,} bytes, and the manifest says {size:,}"
        )
        with pytest.raises(bf.DataError, match=message):
            rows_of(far(server))
        (copy / "00001.arrow").unlink()
        with pytest.raises(
            bf.DataError, match=rf"00001.arrow is missing from its store: the manifest says {size:,} bytes"
        ):
            rows_of(far(server))


def test_an_object_that_changes_is_refused(copy: Path) -> None:
    """Of the same size: by its tag, which stands in every request."""
    with serving(copy.parent) as server:
        index = StoreIndex(f"{server.url}/store", storage_options={"skip_instance_cache": True})
        index.locate(np.arange(10))
        before = sum(server.requests.values())
        (copy / "00000.arrow").write_bytes(bytes((copy / "00000.arrow").stat().st_size))
        with pytest.raises(
            bf.DataError, match=r"00000.arrow has changed while it was being read: its tag was .* and is "
        ):
            index.locate(np.arange(10))
        assert sum(server.requests.values()) - before <= 3


def test_an_object_that_changes_in_memory_is_refused(copy: Path) -> None:
    index = StoreIndex(in_memory(copy, "changing"))
    index.locate(np.arange(10))
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/changing/00000.arrow", bytes((copy / "00000.arrow").stat().st_size))
    with (
        patch.object(objects, "CHECK_SECONDS", 0.0),
        pytest.raises(bf.DataError, match=r"00000.arrow has changed while it was being read"),
    ):
        index.locate(np.arange(10))
    fs.pipe_file("/changing/00000.arrow", b"short")
    with pytest.raises(bf.DataError, match=r"00000.arrow is not what was written, or has changed: it has 5 bytes, and"):
        index.locate(np.arange(10))


def test_an_object_that_changes_in_s3_is_refused(copy: Path, bucket: tuple[str, dict[str, Any]]) -> None:
    _, options = bucket
    fs = fsspec.filesystem("s3", **options)
    for path in copy.iterdir():
        fs.pipe_file(f"bucket/changing/{path.name}", path.read_bytes())
    index = StoreIndex("s3://bucket/changing", storage_options=options)
    index.locate(np.arange(10))
    fs.pipe_file("bucket/changing/00000.arrow", bytes((copy / "00000.arrow").stat().st_size))
    with pytest.raises(bf.DataError, match=r"00000.arrow has changed while it was being read: its tag was .* and is "):
        index.locate(np.arange(10))
    fs.rm("bucket/changing/00000.arrow")
    with pytest.raises(bf.DataError, match=r"00000.arrow is missing from its store"):
        index.locate(np.arange(10))


def test_a_server_without_ranges(copy: Path) -> None:
    with serving(copy.parent) as server:
        server.ranges = False
        with pytest.raises(
            bf.DataError, match=r"[\d,]+ bytes were asked for and [\d,]+ came; .* Download it first, to a local folder"
        ):
            rows_of(far(server))


def test_a_damaged_side_file(copy: Path) -> None:
    path = copy / "lengths.input_ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with (
        serving(copy.parent) as server,
        pytest.raises(bf.DataError, match=r"lengths.input_ids.npy is damaged: its sha256 is"),
    ):
        far(server).lengths()


def test_a_store_of_an_earlier_release(copy: Path, store: Path) -> None:
    from dataclasses import replace

    replace(folder_of(copy).manifest, places=None).save(copy)
    assert rows_of(bf.from_store(copy)) == rows_of(bf.from_store(store))
    with serving(copy.parent) as server:
        stored = far(server)
        assert stored.lengths().tolist() == LENGTHS
        with pytest.raises(
            bf.DataError, match=r"an earlier release wrote the store .*, and it cannot be read by ranges. Copy"
        ):
            rows_of(stored)


def test_verify(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HASHED_BYTES", 30_000)
    with serving(copy.parent) as server:
        url = f"{server.url}/store"
        read: list[int] = []
        assert verify_store(url, read.append) == []
        assert sum(read) == sum(path.stat().st_size for path in copy.iterdir() if path.name != MANIFEST)
        result = CliRunner().invoke(app, ["verify", url])
        assert (result.exit_code, "is whole" in result.output) == (0, True)
        content = bytearray((copy / "00001.arrow").read_bytes())
        content[20_000] ^= 1
        (copy / "00001.arrow").write_bytes(content)
        (copy / "00002.arrow").unlink()
        problems = verify_store(url)
        assert [problem.split()[0].rpartition("/")[2] for problem in problems] == ["00001.arrow", "00002.arrow"]
        assert "is damaged: its sha256 is" in problems[0]
        assert "is missing from its store" in problems[1]
    with pytest.raises(FileNotFoundError, match="there is no token store at memory://nowhere"):
        verify_store("memory://nowhere")


def test_settings() -> None:
    with pytest.raises(ValueError, match=r"^timeout_seconds must be positive \(got 0\)$"):
        bf.from_store("memory://x", timeout_seconds=0)
    with pytest.raises(
        ValueError, match=r"a store is written to a local folder \(got s3://bucket/x\); upload it from there: from"
    ):
        bf.from_sequence(["a"]).to_store("s3://bucket/x")


def test_what_is_tried_again() -> None:
    class SaidError(Exception):
        status = 500

    not_found = FileNotFoundError("x")
    assert not transient(not_found)
    not_found.__cause__ = SaidError()
    assert transient(not_found)
    assert transient(ConnectionResetError())
    assert transient(TimeoutError())
    assert not transient(PermissionError())
    assert not transient(KeyError())
    SaidError.status = 404
    assert not transient(SaidError())
    reply = requests.Response()
    for reply.status_code, again in ((403, False), (503, True), (429, True)):
        assert transient(requests.HTTPError(response=reply)) == again
    for name in ("httpx", "httpx2"):  # of huggingface_hub, whichever it has
        with suppress(ModuleNotFoundError):
            assert transient(import_module(name).ConnectError("no route"))


def test_a_long_range_comes_in_pieces(large: Path) -> None:
    with serving(large.parent) as server, patch.object(objects, "PIECE_BYTES", 1000):
        file = folder_of(large).manifest.files[0]
        spans = Spans(*np.array([[0, 0], [5, 20_000], [9_100, 20_001]], dtype=np.int64))
        one = Object(f"{server.url}/store/{file.name}", file.name, file.bytes)
        found = ObjectStore(fsspec.filesystem("http"), 10.0).read([one], spans)
        content = (large / file.name).read_bytes()
        assert [bytes(part) for part in found] == [content[5:9_100], content[20_000:20_001]]
        assert server.requests[file.name] == 1 + 10 + 1
