"""The table of requests in docs/data.md is what real servers count. (Those of Google vary: gcsfs asks two things at once.)"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import brimful as bf
from brimful.sources.urls import Shards
from tests.sources.hub import hub
from tests.store.faulty import Faulty
from tests.store.servers import answering, s3, serving

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
ROWS = b"".join(b'{"id": %d, "text": "%s"}\n' % (id, b"x" * 1_000) for id in range(10_000))  # 10 MB
FILES = {f"data/{number}.jsonl": ROWS for number in range(10)}
Place = tuple[str, dict[str, Any], "Counter[str]"]


class Counting(Faulty):
    """Does nothing wrong, and counts."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 0, 0, ())

    def fault(self, command: str) -> None:
        with self.lock:
            self.seen[command] += 1


@contextmanager
def by_http(tmp_path: Path) -> Iterator[Place]:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with serving(tmp_path) as server, Counting(server.url) as counting, answering(counting):
        yield counting.url, {}, counting.seen


@contextmanager
def by_s3(_: Path) -> Iterator[Place]:
    pytest.importorskip("s3fs")
    with s3() as options:
        fs = fsspec.filesystem("s3", **options)
        fs.mkdir("bucket")
        for name, content in FILES.items():
            fs.pipe_file(f"bucket/{name}", content)
        with Counting(options["endpoint_url"]) as counting, answering(counting):
            yield "s3://bucket", {**options, "endpoint_url": counting.url}, counting.seen


@contextmanager
def by_hf(_: Path) -> Iterator[Place]:
    pytest.importorskip("huggingface_hub")
    with hub({"me/mine": {"v1": FILES}}) as server:
        yield "hf://datasets/me/mine@v1", {"endpoint": server.url, "token": False}, server.requests


def said(protocol: str) -> list[str]:
    """The cells of a row of the table."""
    row = re.search(rf"^\| `{protocol}://.*$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert row is not None
    return [cell.strip() for cell in row[0].strip("|").split("|")][2:]


@pytest.mark.parametrize(("protocol", "place"), [("https", by_http), ("s3", by_s3), ("hf", by_hf)])
def test_the_docs_say_what_servers_count(tmp_path: Path, protocol: str, place: Any) -> None:
    with place(tmp_path) as (root, options, seen):

        def cost(work: Callable[[], object]) -> str:
            fsspec.get_filesystem_class(protocol).clear_instance_cache()
            seen.clear()
            work()
            return str(seen.total())

        names = [f"{root}/data/{number}.jsonl" for number in range(10)]
        schema = {"id": pa.int64(), "text": pa.string()}
        glob = "none" if protocol == "https" else cost(lambda: Shards((f"{root}/data/*.jsonl",), options).listed)
        data = bf.from_files(names[0], schema=schema, storage_options=options)
        it = data.iter()
        list(islice(it, 5_000))
        state = it.state_dict()
        it.close()
        arrived = -1
        while arrived != seen.total():  # what was asked for ahead may arrive after the close
            arrived = seen.total()
            time.sleep(0.5)
        found = [
            glob,
            cost(lambda: Shards((f"{root}/data/{{0..9}}.jsonl",), options).listed),
            cost(lambda: Shards(tuple(names), options).listed),
            cost(lambda: list(data)),
            cost(lambda: list(data.iter(state))),
        ]
        assert found == said(protocol)
