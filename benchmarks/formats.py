"""A shard of each format read by blocks, on one core, beside pyarrow's own reader; and how long it takes to resume in it.

    python benchmarks/formats.py [millions of rows]

A row has a number, a text of about 80 letters and 1 to 20 tokens. The shards lie in the system's page cache. pyarrow reads
the same files, all types given, and checks nothing.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

import brimful as bf
from brimful.core.run import Run

RUNS = 3
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "input_ids": pa.list_(pa.int32())})


def rows_of(count: int) -> pa.Table:
    draw = np.random.default_rng(0)
    words = [draw.bytes(4).hex() for _ in range(5_000)]
    texts = [" ".join(words[place] for place in draw.integers(0, 5_000, 9)) for _ in range(20_000)]
    offsets = np.concatenate(([0], np.cumsum(draw.integers(1, 21, count)))).astype(np.int32)
    tokens = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(draw.integers(0, 30_000, offsets[-1], dtype=np.int32))
    )
    return pa.table([pa.array(range(count)), [f"{texts[n % 20_000]} {n}" for n in range(count)], tokens], schema=SCHEMA)


def write(folder: Path, table: pa.Table) -> None:
    lines = "".join(json.dumps(row) + "\n" for batch in table.to_batches(10_000) for row in batch.to_pylist()).encode()
    (folder / "a.jsonl").write_bytes(lines)
    for kind, extension in (("gzip", "gz"), ("zstd", "zst")):
        with pa.CompressedOutputStream(str(folder / f"a.jsonl.{extension}"), kind) as file:
            file.write(lines)
    pa.parquet.write_table(table, folder / "a.parquet", row_group_size=100_000)
    with pa.ipc.new_file(folder / "a.arrow", SCHEMA) as writer:
        writer.write_table(table, max_chunksize=10_000)
    with pa.ipc.new_stream(folder / "a.ipc", SCHEMA) as stream:
        stream.write_table(table, max_chunksize=1_000)  # as Hugging Face's datasets do


def lines_of(path: Path) -> Iterator[Any]:
    compressed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.input_stream(str(path), compression=compressed) as file:
        data = file.read()
    read = pa.json.ReadOptions(use_threads=False, block_size=1 << 20)
    yield pa.json.read_json(io.BytesIO(data), read, pa.json.ParseOptions(explicit_schema=SCHEMA))


def parquet(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield from pa.parquet.ParquetFile(file, pre_buffer=False).iter_batches(4_096, use_threads=False)


def arrow_file(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        reader = pa.ipc.open_file(file)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def arrow_stream(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield from pa.ipc.open_stream(file)


LIMITS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "a.jsonl": lines_of,
    "a.jsonl.gz": lines_of,
    "a.jsonl.zst": lines_of,
    "a.parquet": parquet,
    "a.arrow": arrow_file,
    "a.ipc": arrow_stream,
}


def ours(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[Any]:
    stage = bf.from_files(path, schema=SCHEMA, columns=columns).stage
    return (block for block, _ in stage.items(stage.start(0), Run()))


def speed(blocks: Callable[[], Iterator[Any]]) -> float:
    """M rows a second of processor time, so that other processes on the machine do not count."""
    began = time.process_time()
    rows = sum(block.num_rows for block in blocks())
    return rows / (time.process_time() - began) / 1e6


def resume(path: Path, state: dict[str, Any]) -> float:
    """Milliseconds from a state to the next sample."""
    began = time.perf_counter()
    with bf.from_files(path, schema=SCHEMA).iter(state) as it:
        next(it)
    return (time.perf_counter() - began) * 1e3


def states(path: Path, count: int) -> list[dict[str, Any]]:
    """Those after 10, 50 and 90 % of the rows."""
    found, done = [], 0
    with bf.from_files(path, schema=SCHEMA).iter() as it:
        for share in (0.1, 0.5, 0.9):
            wanted = int(count * share) + 7
            done += sum(1 for _ in islice(it, wanted - done))
            found.append(it.state_dict())
    return found


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    count = int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 1e6)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    print(
        f"{processor()}, {os.cpu_count()} cores, one in use; Python {platform.python_version()}, pyarrow {pa.__version__}; "
        f"{count:,} rows"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows_of(count))
        print(f"M rows/s, medians of {RUNS} runs in turn; ms to the next sample after 10, 50, 90 %, medians too")
        print(f"{'':12} {'MB':>5} {'brimful':>8} {'ids only':>8} {'pyarrow':>8}   resumed")
        for file, limit in LIMITS.items():
            path = folder / file
            speeds: tuple[list[float], ...] = ([], [], [])
            for _ in range(RUNS):
                speeds[0].append(speed(lambda: ours(path)))  # noqa: B023
                speeds[1].append(speed(lambda: ours(path, ("input_ids",))))  # noqa: B023
                speeds[2].append(speed(lambda: limit(path)))  # noqa: B023
            resumed = [median(resume(path, state) for _ in range(RUNS)) for state in states(path, count)]
            told = " ".join(f"{median(one):8.2f}" for one in speeds)
            size = path.stat().st_size / 1e6
            print(f"{file:12} {size:5.0f} {told}   {' '.join(f'{one:6.0f}' for one in resumed)}", flush=True)


if __name__ == "__main__":
    main()
