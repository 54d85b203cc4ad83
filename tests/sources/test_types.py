"""Each type that Arrow has: one value whether it comes from memory or from a file, and exact resume in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import brimful as bf
from tests.shards import write_table
from tests.sources import types_child
from tests.sources.types_child import ROWS, tables


def plain(value: Any) -> Any:
    """A value that can be compared."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("how", tables())
def test_a_column_has_the_same_values_from_memory_and_from_a_file(tmp_path: Path, how: str) -> None:
    memory, file = types_child.pipelines(tmp_path, tables()[how], "a")
    ours = sorted(map(plain, memory), key=lambda row: row["id"])
    theirs = sorted(map(plain, file), key=lambda row: row["id"])
    assert len(ours) == ROWS
    assert ours == theirs


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """The states of another process after six rows."""
    folder = tmp_path_factory.mktemp("types")
    command = [sys.executable, "-m", "tests.sources.types_child", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("how", tables())
def test_a_column_of_any_type_goes_on_in_another_process(saved: tuple[Path, dict[str, list[Any]]], how: str) -> None:
    folder, states = saved
    for data, state in zip(types_child.pipelines(folder, tables()[how], how), states[how], strict=True):
        assert [row["id"] for row in data.iter(state)] == [row["id"] for row in data][6:]


def test_extensions_are_their_storage_but_truth_values(tmp_path: Path) -> None:
    known = uuid.UUID(int=7)
    table = pa.table(
        {
            "id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([known.bytes, None], pa.binary(16))),
            "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())),
            "runs": pc.run_end_encode(pa.array(["x", "x"])),
        }
    )
    rows = [{"id": known.bytes, "flag": True, "runs": "x"}, {"id": None, "flag": False, "runs": "x"}]
    assert list(bf.from_sequence(table)) == rows
    assert list(bf.from_files(write_table(tmp_path / "a.arrow", table, 1))) == rows
    assert list(bf.from_sequence([{"id": known}])) == [{"id": known.bytes}]
    assert list(bf.from_sequence(table).map_blocks(lambda block: table.to_batches()[0])) == rows
    (batch,) = bf.from_sequence(table).batch(2)
    assert batch["flag"].tolist() == [True, False]
    assert batch["runs"] == ["x", "x"]


def test_runs_are_read_beside_a_value_that_does_not_fit(tmp_path: Path) -> None:
    columns = {"runs": pc.run_end_encode(pa.array(["x", "x", "y"])), "id": pa.array([1, 300, 3])}
    url = write_table(tmp_path / "a.arrow", pa.table(columns), 3)
    data = bf.from_files(url, schema={"runs": pa.string(), "id": pa.int8()}, on_error="skip")
    assert list(data) == [{"runs": "x", "id": 1}, {"runs": "y", "id": 3}]


WITHOUT_PANDAS = """
import sys
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import pyarrow as pa, brimful as bf
rows = pa.table({"span": pa.array([pa.MonthDayNano([1, 2, 3])]), "spans": pa.array([[pa.MonthDayNano([1, 2, 3])]])})
(row,) = bf.from_sequence(rows)
assert row["span"] == row["spans"][0] == pa.MonthDayNano([1, 2, 3]), row
"""


def test_months_and_days_are_read_where_pandas_is_not_installed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
