"""Shards and stores behind other protocols of fsspec: in memory, in Google's storage, at the Hugging Face hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pytest

import brimful as bf
from brimful.sources import bytes as reading
from brimful.sources.urls import Shards
from tests.shards import compressed, threads_left, write
from tests.sources.hub import hub
from tests.store.servers import process_of
from tests.store.stores import blocks_of, store_of

pytestmark = pytest.mark.usefixtures("small_buffers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("near")
    for number, ending in enumerate((".jsonl", ".jsonl.gz", ".jsonl")):
        write(path / f"{number}{ending}", [{"id": id, "text": f"{id:x}" * 9} for id in range(number, 9_000, 3)])
    store_of(path / "store", blocks_of([20] * 600, 100), batch_bytes=10_000, file_bytes=20_000)
    return path


@pytest.fixture(scope="module")
def google() -> Iterator[dict[str, Any]]:
    """An emulator of Google's storage in a process of its own; the storage options to reach it."""
    # gcsfs would ask by gRPC what kind of bucket it is, which the emulator does not speak; it looks when it is imported
    with patch.dict(os.environ, {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}):
        pytest.importorskip("gcsfs", reason="gs:// needs gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    with process_of("gcp_storage_emulator", "start", "--in-memory", "--host=127.0.0.1", "--port={port}") as url:
        yield {"token": "anon", "project": "p", "endpoint_url": url}


def ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


def check(folder: Path, root: str, options: dict[str, Any]) -> None:
    """Shards and a store behind a protocol give what those on disk give, resume, and are refused where they change."""
    fs, path = fsspec.core.url_to_fs(root, **options)
    for file in folder.rglob("*"):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(folder)}", file.read_bytes())
    with patch.object(reading, "BLOCK_BYTES", 1 << 16):
        far = bf.from_files(f"{root}/*.jsonl*", n_active_shards=2, storage_options=options)
        disk = ids(bf.from_files(f"{folder}/*.jsonl*", n_active_shards=2))
        assert ids(far) == disk
        it = far.iter()
        list(islice(it, 5_000))
        state = it.state_dict()
        it.close()
        assert ids(far.iter(state)) == disk[5_000:]
        stored = bf.from_store(f"{root}/store", shuffle=True, storage_options=options)
        assert ids(stored) == ids(bf.from_store(folder / "store", shuffle=True))
        content = b"".join(b'{"id": %d}\n' % number for number in range(70_000))
        fs.pipe_file(f"{path}/changing.jsonl", content)
        it = bf.from_files(f"{root}/changing.jsonl", storage_options=options).iter()
        next(it)
        fs.pipe_file(f"{path}/changing.jsonl", content[: len(content) // 2])
        what = f"it had {len(content):,} bytes and has {len(content) // 2:,}"
        with pytest.raises(bf.DataError, match=rf"changing\.jsonl has changed while it was being read: {what}"):
            list(it)
    assert threads_left() == []


def test_in_memory(folder: Path) -> None:
    check(folder, "memory://protocols", {})


def test_in_googles_storage(folder: Path, google: dict[str, Any]) -> None:
    fsspec.filesystem("gs", **google).mkdir("bucket")
    check(folder, "gs://bucket/data", google)


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"id": %d, "text": "text"}\n' % id for id in range(first, first + count))


def test_a_data_set_of_the_hub_is_read_at_the_revision_that_its_name_pins() -> None:
    files = {
        "data/a.jsonl": lines(0, 2_000),
        "data/b.jsonl.gz": compressed(lines(2_000, 100), ".gz"),
        "README.md": b"#",
    }
    revisions = {"main": {"data/a.jsonl": lines(9_000, 9)}, "v1": files, "refs/convert/parquet": files}
    with hub({"me/mine": revisions}) as server:
        options = {"endpoint": server.url, "token": False, "skip_instance_cache": True}

        def data(name: str) -> bf.Dataset:
            return bf.from_files(f"hf://datasets/me/mine{name}", n_active_shards=1, storage_options=options)

        assert ids(data("/data/a.jsonl")) == list(range(9_000, 9_009))
        for name in ("@v1/data/*", "@v1/data/{a.jsonl,b.jsonl.gz}", "@refs%2Fconvert%2Fparquet/data/*"):
            it = data(name).iter()
            assert ids(islice(it, 1_500)) == list(range(1_500))
            assert ids(data(name).iter(it.state_dict())) == list(range(1_500, 2_100))
            it.close()
        urls = [shard.url for shard in Shards(("hf://datasets/me/mine@v1/data/*",), options).listed]
        assert urls == [f"hf://datasets/me/mine@v1/data/{name}" for name in ("a.jsonl", "b.jsonl.gz")]
        server.requests.clear()
        assert ids(data("@v1/data/a.jsonl")) == list(range(2_000))
        assert server.requests["resolve"] == 2  # one for the types
        for name in ("@v2/data/a.jsonl", "@v1/data/c.jsonl", "s/data/a.jsonl"):
            with pytest.raises(FileNotFoundError, match=rf"^there is no file 'hf://datasets/me/mine{name}'$"):
                list(data(name))
        with pytest.raises(
            IsADirectoryError, match=r"name its files, for example hf://datasets/me/mine@v1/data/\*\.jsonl"
        ):
            list(data("@v1/data"))
    assert threads_left() == []


def test_the_hub_is_read_by_its_own_package_which_is_named_where_it_is_missing() -> None:
    """Nothing is asked of the network."""
    assert fsspec.get_filesystem_class("hf").__module__.startswith("huggingface_hub")
    code = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "import brimful as bf; list(bf.from_files('hf://datasets/me/mine/a.jsonl'))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 1
    assert (
        "ImportError: Unable to load filesystem from EntryPoint(name='hf', value='huggingface_hub.HfFileSystem'"
        in child.stderr
    )
