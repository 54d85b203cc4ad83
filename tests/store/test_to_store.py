"""`to_store` writes at once and gives the store; `cache` keeps rows in memory."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from brimful.store.index import verify_store
from brimful.store.manifest import JOURNAL, say_newer
from tests.shards import write
from tests.store.stores import rows_of

ROWS = [{"input_ids": [number] * (number % 4), "id": number} for number in range(9)]


class Noted:
    """Notes the ids that it is asked."""

    __name__ = "noted"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, row: Any) -> Any:
        self.asked.append(row["id"])
        return row


def test_the_store_is_written_at_once_and_returned(tmp_path: Path) -> None:
    noted = Noted()
    store = bf.from_sequence(ROWS).map(noted).to_store(tmp_path / "store", version="1")
    assert noted.asked == [row["id"] for row in ROWS]
    assert verify_store(tmp_path / "store") == []
    assert isinstance(store, bf.IndexedDataset)
    assert rows_of(store) == rows_of(bf.from_store(tmp_path / "store")) == ROWS
    assert store.lengths().tolist() == [len(row["input_ids"]) for row in ROWS]
    assert (len(store[2:5]), store[-1]["id"], len(store.shuffle(3))) == (3, 8, 9)
    assert len(noted.asked) == 9, "what is read comes from the store"


def test_a_finished_store_is_opened_and_not_written_again(tmp_path: Path) -> None:
    noted = Noted()
    data = bf.from_sequence(ROWS).map(noted)
    for _ in range(2):
        assert rows_of(data.to_store(tmp_path / "store", version="1")) == ROWS
    assert len(noted.asked) == 9


def test_a_state_says_from_store_whoever_wrote_it(tmp_path: Path) -> None:
    store = bf.from_sequence(ROWS).to_store(tmp_path / "store")
    (header,) = store.iter().state_dict()["header"]
    assert header == bf.from_store(tmp_path / "store").iter().state_dict()["header"][0]
    assert header["verb"] == "from_store"


def test_of_data_that_repeat_one_epoch_is_written_and_it_repeats(tmp_path: Path) -> None:
    store = bf.from_sequence(ROWS, repeat=True, shuffle=True).to_store(tmp_path / "store")
    assert len(bf.from_store(tmp_path / "store")) == 9
    once = [row["id"] for row in bf.from_store(tmp_path / "store")]
    assert [row["id"] for row in store.take(21)] == [*once, *once, *once[:3]]
    assert once == [row["id"] for row in bf.from_sequence(ROWS, shuffle=True)], "the first epoch"
    assert [len(batch["id"]) for batch in store.batch(2).take(6)] == [2] * 6


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_file_that_is_edited_to_the_same_size_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"input_ids": [1]}] * 2_000 + [{"input_ids": [2]}]
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", rows)
        os.utime(tmp_path / f"{name}.jsonl", (1e9, 1e9))
    fail = [interrupted]
    monkeypatch.setattr("brimful.store.writer.FILE_BYTES", 1)
    monkeypatch.setattr("brimful.store.writer.BATCH_BYTES", 4_096)

    def checked(row: Any) -> Any:
        if fail[0] and row["input_ids"][0] == 2:
            raise RuntimeError("stopped")
        return row

    def opened() -> None:
        bf.from_files(str(tmp_path / "*.jsonl")).map(checked).to_store(tmp_path / "store", version="1")

    with caplog.at_level(logging.WARNING, "brimful"):
        if interrupted:
            with pytest.raises(bf.StageError):
                opened()
            assert (tmp_path / "store" / JOURNAL).exists()
            fail[0] = False
        else:
            opened()
            opened()
        assert caplog.messages == []
        write(tmp_path / "b.jsonl", [*rows[:-1], {"input_ids": [3]}])
        os.utime(tmp_path / "b.jsonl", (1e9 + 1, 1e9 + 1))
        opened()
        assert len(bf.from_store(tmp_path / "store")) == 4_002
    (message,) = caplog.messages
    assert message == (
        f"the store {tmp_path / 'store'} may be out of date: {tmp_path / 'b.jsonl'} was written at "
        "2001-09-09 01:46:41.000+00:00, and the newest file at 2001-09-09 01:46:40.000+00:00 when the store was begun. "
        "If its text has changed, remove the folder and write the store anew. If it is a copy, open the store by from_store"
    )


def test_a_store_whose_text_is_written_anew_is_named_where_a_store_was_made_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, first, second = (tmp_path / name for name in ("a.jsonl", "first", "second"))
    for when in (1e9, 1e9 + 1):
        write(source, [{"input_ids": [7]}])
        os.utime(source, (when, when))
        bf.from_files(str(source)).to_store(first)
        with caplog.at_level(logging.WARNING, "brimful"):
            bf.from_store(first).to_store(second)
        shutil.rmtree(first)
    (message,) = caplog.messages
    assert message.startswith(
        f"the store {second} may be out of date: a file of the store {first} was written at 2001-09-09"
    )
    write(source, [{"input_ids": [8]}])
    bf.from_files(str(source)).to_store(first)
    with pytest.raises(
        bf.StateError, match=r"from_store\.checksums\.input_ids was \d+ when it was written and is \d+ here"
    ):
        bf.from_store(first).to_store(second)


@pytest.mark.parametrize("when", [2.0**40, 2.0**50])
def test_a_file_of_a_far_year_is_named_too(tmp_path: Path, caplog: pytest.LogCaptureFixture, when: float) -> None:
    with caplog.at_level(logging.WARNING, "brimful"):
        say_newer(tmp_path, (when, "a.jsonl"), 1e9)
    assert "a.jsonl was written at 9999-12-31" in caplog.text


@pytest.mark.parametrize("method", ["to_store", "cache"])
def test_what_has_no_end_is_refused(tmp_path: Path, method: str) -> None:
    endless = bf.interleave_datasets([bf.from_sequence(ROWS, repeat=True), bf.from_sequence(ROWS, repeat=True)])
    path = (tmp_path / "store",) if method == "to_store" else ()
    for data in (endless, endless.map(dict)):
        with pytest.raises(ValueError, match=f"repeats without end, and {method} keeps all of it. Call take"):
            getattr(data, method)(*path)
    assert not (tmp_path / "store").exists()
    assert len(getattr(endless.take(4), method)(*path)) == 4


def test_cache_keeps_rows_in_memory_and_takes_no_path(tmp_path: Path) -> None:
    noted = Noted()
    kept = bf.from_sequence(ROWS).map(noted).cache()
    assert noted.asked == []
    assert rows_of(kept) == rows_of(kept) == ROWS
    assert (len(noted.asked), kept.kind) == (9, "indexed")
    with pytest.raises(TypeError, match=r"cache\(\) keeps samples in memory \(got path='x'\); to_store\('x'\) writes"):
        bf.from_sequence(ROWS).cache("x")  # type: ignore[arg-type]


WRITING = """
import sys, time
import brimful as bf
from brimful.store import writer

writer.BATCH_BYTES, writer.FILE_BYTES = 1_000, 5_000
data = bf.from_sequence([{"id": number} for number in range(20_000)]).map_blocks(lambda block: time.sleep(0.02) or block)
print("begins", flush=True)
print(len(data.to_store(sys.argv[1], version="1")))
"""


def test_ctrl_c_leaves_no_store_and_the_next_call_goes_on_quietly(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-c", WRITING, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while len(list(store.glob("*.arrow"))) < 2:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    begun = {
        file["name"]: (store / file["name"]).stat().st_mtime_ns
        for file in json.loads((store / JOURNAL).read_text())["files"]
    }
    assert begun
    with pytest.raises(
        FileNotFoundError, match=r"is half-written: .* run the same to_store\(path\) or `brimful tokenize` again"
    ):
        bf.from_store(store)
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert (again.stdout, again.stderr) == ("begins\n20000\n", "")
    after = {path.name: path.stat().st_mtime_ns for path in store.glob("*.arrow")}
    assert begun.items() < after.items(), "what was written stays"
    assert verify_store(store) == []
    assert [row["id"] for row in bf.from_store(store)] == list(range(20_000))
