"""A store is written by one writer, whole or not at all; what was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import brimful as bf
from brimful.store import journal, part
from brimful.store.lock import LOCK, locked
from brimful.store.manifest import JOURNAL, MANIFEST, Manifest
from brimful.store.verify import verify_store
from brimful.store.writer import write_store
from brimful.stream import END
from tests.store.stores import Given, blocks_of, rows_of, small, store_of

LENGTHS = [3, 0, 5, 1, 8, 2] * 10
WIDE = pa.RecordBatch.from_pydict({"input_ids": [[70_000, 1]], "id": [60], "text": ["wide"]})
BLOCKS = (*blocks_of(LENGTHS, 5), WIDE)  # the last file has a wider type, to which the others are cast


class Crash(BaseException):
    """Stands for the end of the process."""


@contextmanager
def crash_at(number: int) -> Iterator[Counter[str]]:
    """Stops at the `number`th operation that changes something on disk; a write is torn."""
    done: Counter[str] = Counter()

    def stopping(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            done[name] += 1
            if done.total() == number + 1:
                if name == "write":
                    fn(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Crash
            return fn(*args, **kwargs)

        return operation

    with (
        patch.object(part.Hashed, "write", stopping("write", part.Hashed.write)),
        patch.object(journal.Journal, "_append", stopping("append", journal.Journal._append)),
        patch.object(Path, "replace", stopping("replace", Path.replace)),
        patch.object(Path, "unlink", stopping("unlink", Path.unlink)),
        patch.object(os, "fsync", stopping("fsync", lambda descriptor: None)),  # for speed,
    ):
        yield done


def test_a_crash_at_any_moment_costs_a_record_batch_at_most(tmp_path: Path) -> None:
    blocks = BLOCKS[-7:]
    whole = store_of(tmp_path / "whole", blocks, batch_bytes=200, file_bytes=1500)
    assert len(whole.files) == 3
    assert {len(file.batches) for file in whole.files} > {1}
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    number, crashed = 0, True
    while crashed:
        folder = tmp_path / str(number)
        with crash_at(number), small(200, 1500):
            try:
                write_store(Given(blocks), folder)
                crashed = False
            except Crash:
                if not (folder / MANIFEST).exists():
                    with pytest.raises(FileNotFoundError, match=r"there is no token store|is half-written"):
                        bf.from_store(folder)
        reached = min(state_in(folder / JOURNAL), len(blocks))
        read: list[int] = []
        with small(200, 1500), patch.object(os, "fsync"):
            again = write_store(Counted(blocks, read=read), folder)
        assert again == whole
        assert {path.name for path in folder.iterdir()} - {JOURNAL, LOCK} == names  # left where the crash came last
        assert verify_store(folder) == []
        assert read == [*range(reached + 1, len(blocks)), END][: len(blocks) - reached]
        number += 1
    assert number > 50, number


def state_in(path: Path) -> int:
    """How many blocks a journal says are written; 99: all."""
    lines = path.read_text().splitlines() if path.exists() else []
    state = json.loads(lines[-1]).get("state") or 0 if lines else 99 if (path.parent / MANIFEST).exists() else 0
    return 99 if state == END else state


class Counted(Given):
    """Notes which blocks are read."""

    def __init__(self, blocks: tuple[pa.RecordBatch, ...], read: list[int]) -> None:
        super().__init__(blocks)
        object.__setattr__(self, "_read", read)

    def items(self, at: Any) -> Any:
        for block, after in super().items(at):
            self._read.append(after)  # type: ignore[attr-defined]
            yield block, after


KILLED = """
import sys, time
import brimful as bf
from brimful.store import writer

writer.BATCH_BYTES, writer.FILE_BYTES = 20_000, 100_000
log = open(sys.argv[2], "a")

def tokenizer(texts):
    log.write("".join(f"{text.split()[0]}\\n" for text in texts))
    log.flush()
    time.sleep(0.02)
    return [[len(word) for word in text.split()] for text in texts]

rows = [{"text": f"{number} " + "word " * (number % 20)} for number in range(100_000)]
dataset = bf.from_sequence(rows).map_blocks(lambda block: block.slice(0)).tokenize(tokenizer, max_workers=1)
print("begins", flush=True)
print(len(dataset.cache(sys.argv[1], version="1")))
"""


def test_kill_9_in_the_middle_of_writing(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(store), str(log)]
    draw = random.Random(0)
    killed = 0
    while not (store / MANIFEST).exists():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        size = size_of(store / JOURNAL)
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            if killed < 3 and size_of(store / JOURNAL) > size + 500:  # it has got some way
                time.sleep(draw.random() * 0.02)
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
        assert process.poll() is not None
        process.stdout.close()
    assert killed == 3
    assert verify_store(store) == []
    stored = rows_of(bf.from_store(store))
    assert [row["text"] for row in stored] == [f"{number} " + "word " * (number % 20) for number in range(100_000)]
    assert all(len(row["input_ids"]) == 1 + number % 20 for number, row in enumerate(stored))
    tokenised = Counter(log.read_text().split())
    again = sum(count - 1 for count in tokenised.values())
    assert again <= killed * 5 * 4096  # what was read ahead, and the record batch at hand
    assert len(tokenised) == 100_000


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_an_error_or_ctrl_c_keeps_what_was_written(tmp_path: Path) -> None:
    with small(100, 1000):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        with pytest.raises(
            FileNotFoundError, match="is half-written: its writer is still at work, or was interrupted; the cache"
        ):
            bf.from_store(tmp_path / "store")
        read: list[int] = []
        write_store(Counted(BLOCKS, read=read), tmp_path / "store")
    assert read[0] == 7
    assert len(rows_of(bf.from_store(tmp_path / "store"))) == 61


def test_a_damaged_part_is_written_anew(tmp_path: Path) -> None:
    with small(100, 100_000):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        (partial,) = (tmp_path / "store").glob("*.arrow.part")
        content = bytearray(partial.read_bytes())
        content[len(content) // 2] ^= 1
        partial.write_bytes(content)
        read: list[int] = []
        write_store(Counted(BLOCKS, read=read), tmp_path / "store")
    assert read[0] == 1
    assert verify_store(tmp_path / "store") == []


def test_a_torn_line_of_the_journal_is_left_out(tmp_path: Path) -> None:
    with small(100, 1000):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        with (tmp_path / "store" / JOURNAL).open("a") as file:
            file.write('{"name": "00')
        write_store(Given(BLOCKS), tmp_path / "store")
    assert len(rows_of(bf.from_store(tmp_path / "store"))) == 61


def test_a_missing_file_of_a_half_written_store_is_an_error(tmp_path: Path) -> None:
    with small(100, 500):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        (tmp_path / "store" / "00000.arrow").unlink()
        with pytest.raises(
            bf.DataError, match=r"00000.arrow is missing from a half-written store; remove .*store to begin anew"
        ):
            write_store(Given(BLOCKS), tmp_path / "store")


# -- which pipeline ------------------------------------------------------------------------------------------------------


def test_a_finished_store_is_used_again(tmp_path: Path) -> None:
    store_of(tmp_path / "store", BLOCKS)
    with patch.object(Given, "items", side_effect=AssertionError):
        store_of(tmp_path / "store", BLOCKS)


def test_a_store_of_another_pipeline_is_refused_with_both_named(tmp_path: Path) -> None:
    rows = bf.from_sequence(["a", "b"])
    one, other = (lambda texts: [[1]] * len(texts)), (lambda texts: [[2]] * len(texts))
    one.__name__, other.__name__ = "one", "other"
    path = tmp_path / "store"
    len(rows.tokenize(one).cache(path, version="1"))
    path_part = r"the store .*store belongs to another pipeline: "
    for dataset, version, message in [
        (
            rows.tokenize(one),
            "2",
            "version was '1' when it was written and is '2' here; use the pipeline that wrote it, or an",
        ),
        (
            rows.tokenize(other),
            "1",
            r"tokenizers.input_ids was 'one \(\w+\)' when it was written and is 'other \(\w+\)' here",
        ),
        (rows.tokenize(one).take(1), "1", "its last stage was Tokenize when it was written and is Take here"),
        (
            bf.from_sequence(["a"]).tokenize(one),
            "1",
            "Tokenize.FromSequence.rows.rows was 2 when it was written and is 1 here",
        ),
    ]:
        with pytest.raises(bf.StateError, match=path_part + message):
            len(dataset.cache(path, version=version))


def test_a_store_begun_by_another_pipeline_is_refused(tmp_path: Path) -> None:
    with small(100, 500):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        with pytest.raises(
            bf.StateError, match=r"belongs to another pipeline: Given.name was 'given' when it was written and is 'x'"
        ):
            write_store(replace(Given(BLOCKS), name="x"), tmp_path / "store")


def test_functions_need_a_version(tmp_path: Path) -> None:
    rows = bf.from_sequence(["a"])

    def named(sample: Any) -> Any:
        return sample

    class Called:
        def __call__(self, texts: list[str]) -> list[list[int]]:
            return [[1]] * len(texts)

    for dataset, name in [
        (rows.map(named).take(1), r"Map\(named\)"),
        (rows.map(named).cache().take(1), r"Map\(named\)"),
        (rows.filter(lambda sample: True), r"Filtered\(<lambda>\)"),
        (rows.tokenize(Called()), r"Tokenize\(Called\)"),
        (bf.interleave_datasets([rows, rows.map_blocks(lambda block: block)]), r"MapBlocks\(<lambda>\)"),
        (bf.from_files("x", format=named), r"FromFiles\(named\)"),
    ]:
        with pytest.raises(
            ValueError, match=f'a store cannot tell when {name} changes; give a version, and .* version="1"'
        ):
            dataset.cache(tmp_path / "store")
        dataset.cache(tmp_path / "store", version="1")
    assert not (tmp_path / "store").exists()  # a description writes nothing
    rows.take(1).cache(tmp_path / "store")


def test_cache_without_a_path_stays_in_memory(tmp_path: Path) -> None:
    cached = bf.from_sequence(["a", "b"]).map(lambda sample: sample).cache()
    assert cached.kind == "indexed"
    assert [row["text"] for row in cached] == ["a", "b"]


def test_folders_that_hold_no_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"the folder .*notes is not empty, and holds no store; name a new one"):
        store_of(tmp_path / "notes", BLOCKS)
    with pytest.raises(ValueError, match=r"mine.txt is a file; a store is a folder"):
        store_of(tmp_path / "notes" / "mine.txt", BLOCKS)
    with pytest.raises(ValueError, match=r"a store is written to a local folder \(got s3://bucket/store\)"):
        write_store(Given(BLOCKS), "s3://bucket/store")


# -- one writer ----------------------------------------------------------------------------------------------------------


def test_of_two_writers_one_writes_and_both_see_the_store(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store"), str(log)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=100)[0] for process in processes] == ["begins\n100000\n"] * 2
    assert len(log.read_text().split()) == 100_000
    assert not (tmp_path / "store" / LOCK).exists()


def test_threads_wait_for_one_another_too(tmp_path: Path) -> None:
    read: list[int] = []
    threads = [
        threading.Thread(target=write_store, args=(Counted(BLOCKS, read=read), tmp_path / "store")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read) == len(BLOCKS)
    assert Manifest.load(tmp_path / "store").rows == 61


def test_a_writer_without_progress_is_named_after_the_timeout(tmp_path: Path) -> None:
    with (
        locked(tmp_path, 1),
        pytest.raises(
            TimeoutError,
            match=rf"is being written by process {os.getpid()} on .*, which has made no progress for 0.2 s; end it",
        ),
    ):
        store_of_with_timeout(tmp_path, 0.2)


def test_who_waits_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        locked(tmp_path, 1),
        patch("brimful.store.lock.SAID_AFTER_SECONDS", 0.1),
        caplog.at_level("WARNING", logger="brimful"),
        pytest.raises(TimeoutError),
    ):
        store_of_with_timeout(tmp_path, 0.4)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"waiting for process {os.getpid()} on ")
    assert said.endswith(f", which writes {tmp_path}")


def test_a_writer_with_progress_is_waited_for(tmp_path: Path) -> None:
    ended = threading.Event()

    def write() -> None:
        with locked(tmp_path, 1) as beat, patch("brimful.store.lock.BEAT_SECONDS", 0):
            begun.set()
            for _ in range(20):
                time.sleep(0.05)
                beat()
            ended.set()

    begun = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(10)
    store_of_with_timeout(tmp_path, 0.5)
    assert ended.is_set()
    thread.join()


def store_of_with_timeout(path: Path, timeout_seconds: float) -> None:
    write_store(Given(BLOCKS), path, timeout_seconds=timeout_seconds)


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(json.dumps({"host": "gone", "process": 1}))
    store_of_with_timeout(tmp_path, 0.1)


# -- what is said --------------------------------------------------------------------------------------------------------


def test_progress_is_reported(tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []
    with small(100, 1000):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        write_store(Given(BLOCKS), tmp_path / "store", report=lambda rows, status: said.append((rows, status())))
    assert sum(rows for rows, _ in said) < 61
    assert said[-1][1].startswith("61 rows written, 30 of them found; ")


def test_what_is_found_of_a_file_that_was_not_ended_is_no_speed(tmp_path: Path) -> None:
    said: list[str] = []
    with small(100, 10**9):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        write_store(Given(BLOCKS), tmp_path / "store", report=lambda rows, status: said.append(status()))
    assert said[-1].startswith("61 rows written, 30 of them found; ")


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    code = (
        "import time, brimful as bf\n"
        "from brimful.store import progress, writer\n"
        "progress.PATIENCE_SECONDS = 0; writer.BATCH_BYTES = 1\n"
        "slow = lambda block: time.sleep(.05) or block\n"
        f"len(bf.from_sequence(['a'] * 30_000).map_blocks(slow).cache({str(tmp_path / 'store')!r}, version='1'))"
    )
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 1000)
        except OSError:
            break
    assert process.wait(60) == 0
    assert b"rows written; " in shown
