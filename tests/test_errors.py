"""What crosses a process: where rows came from, and what was left out."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.run import Run
from brimful.tables.blocks import Block, concat
from brimful.tables.origins import ORIGIN, origins, where


def block_of(name: str, *lines: int, unit: str = "line") -> Block:
    column = origins(name, np.array(lines, dtype=np.int64), unit)
    return pa.RecordBatch.from_arrays([pa.array(lines), column], ["x", ORIGIN])


def through_ipc(block: Block) -> Block:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("written", [pickle.dumps, lambda block: pickle.dumps(through_ipc(block))])
def test_a_block_names_file_and_line_of_its_rows_in_another_process(tmp_path: Path, written: object) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    stage = bf.from_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]).stage
    (block, _), *_ = stage.items(stage.start(0), Run())
    (tmp_path / "block").write_bytes(written(block))  # type: ignore[operator]
    code = f"""
import pickle
from brimful.tables.origins import origins, where
import numpy as np
origins("another shard", np.arange(3))
block = pickle.load(open({str(tmp_path / "block")!r}, "rb"))
print(*(where(block, row) for row in range(block.num_rows)), sep="\\n")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.splitlines() == [f"shard {name}.jsonl, line {line}" for line in (1, 3) for name in "ab"]


def test_joined_blocks_keep_the_places_of_their_rows() -> None:
    joined = concat([block_of("a", 1, 2), block_of("b", 7, unit="row"), block_of("a", 3_000).slice(0, 1)])
    assert [where(joined, row) for row in range(4)] == ["a, line 1", "a, line 2", "b, row 7", "a, line 3,000"]
    few = joined.take(pa.array([3, 2]))
    assert [where(few, row) for row in range(2)] == ["a, line 3,000", "b, row 7"]


def test_rows_without_a_place_are_counted() -> None:
    nameless = pa.RecordBatch.from_arrays([pa.array([5])], ["x"])
    assert where(nameless, 0) == "row 0 of a block of 1 rows"
    assert where(concat([block_of("a", 1), nameless]), 1) == "row 1 of a block of 2 rows"
