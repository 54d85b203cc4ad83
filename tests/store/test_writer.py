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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.run import Run
from brimful.core.stage import END
from brimful.rows import pace
from brimful.store import writer
from brimful.store.index import folder_of, verify_store
from brimful.store.journal import LOCK, Journal
from brimful.store.manifest import JOURNAL, MANIFEST, Manifest
from brimful.store.writer import PartFile, write_store
from brimful.tables.blocks import Block
from tests.disks import CONTINUE, small_disk
from tests.store.stores import Given, blocks_of, rows_of, small, store_of

LENGTHS = [3, 0, 5, 1, 8, 2] * 10
BLOCKS = blocks_of(LENGTHS, 5)


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
                if name == "write whole":
                    fn(args[0], args[1][: len(args[1]) // 2])
                raise Crash
            return fn(*args, **kwargs)

        return operation

    with (
        patch.object(PartFile, "write", stopping("write", PartFile.write)),
        patch.object(Path, "write_bytes", stopping("write whole", Path.write_bytes)),
        patch.object(Path, "replace", stopping("replace", Path.replace)),
        patch.object(Path, "unlink", stopping("unlink", Path.unlink)),
        patch.object(os, "fsync", stopping("fsync", lambda descriptor: None)),  # for speed
    ):
        yield done


@pytest.mark.parametrize("seconds", [30.0, 0.0], ids=["files are noted", "each block is noted"])
def test_a_crash_at_any_moment_costs_what_was_not_noted(
    tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KEEP_SECONDS", seconds)
    blocks = BLOCKS[-7:]
    whole = store_of(tmp_path / "whole", blocks, batch_bytes=200, file_bytes=1000)
    assert [file.batches for file in whole.files] == [(6, 6), (6, 6), (6, 5)]  # blocks are of 5 rows
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    number, crashed, best = 0, True, 0
    while crashed:
        folder = tmp_path / str(number)
        with crash_at(number), small(200, 1000):
            try:
                write_store(Given(blocks), folder)
                crashed = False
            except Crash:
                if not (folder / MANIFEST).exists():
                    with pytest.raises(FileNotFoundError, match=r"there is no token store|is half-written"):
                        bf.from_store(folder)
        reached = min(state_in(folder), len(blocks))
        assert reached >= last_block_of(whole, sum(1 for _ in folder.glob("*.arrow")) - 1)
        assert reached >= best - 1, "a later crash costs no more, but for the note at hand"
        best = max(best, reached)
        read: list[int] = []
        with small(200, 1000), patch.object(os, "fsync"):
            again = write_store(Counted(blocks, read=read), folder)
        assert again == whole
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            name: (tmp_path / "whole" / name).read_bytes() for name in names
        }
        assert read == [*range(reached + 1, len(blocks)), END][: len(blocks) - reached]
        number += 1
    assert number > 40, number


@pytest.mark.parametrize("rows", [1, 2, 35])
def test_files_do_not_show_in_which_blocks_rows_came(tmp_path: Path, rows: int) -> None:
    whole = store_of(tmp_path / "whole", BLOCKS[-7:], batch_bytes=200, file_bytes=1000)
    block = pa.Table.from_batches(BLOCKS[-7:]).combine_chunks().to_batches()[0]
    blocks = tuple(block.slice(first, rows) for first in range(0, block.num_rows, rows))
    assert store_of(tmp_path / "other", blocks, batch_bytes=200, file_bytes=1000) == whole  # with all checksums


def last_block_of(whole: Manifest, count: int) -> int:
    """How many blocks the first files of a store hold."""
    return sum(file.rows for file in whole.files[: max(0, count)]) // 5


def state_in(folder: Path) -> int:
    """How many blocks a journal says are written; 99: all."""
    if not (folder / JOURNAL).exists():
        return 99 if (folder / MANIFEST).exists() else 0
    journal = json.loads((folder / JOURNAL).read_text())
    state = (journal["work"] or journal)["state"] or 0
    return 99 if state == END else state


class Counted(Given):
    """Notes which blocks are read."""

    def __init__(self, blocks: tuple[Block, ...], read: list[int]) -> None:
        super().__init__(blocks)
        object.__setattr__(self, "_read", read)

    def items(self, at: Any, run: Any) -> Any:
        for block, after in super().items(at, Run()):
            self._read.append(after)  # type: ignore[attr-defined]
            yield block, after


KILLED = """
import sys, time
import brimful as bf
from brimful.store import writer

writer.BATCH_BYTES, writer.FILE_BYTES, writer.KEEP_SECONDS = 100_000, int(sys.argv[3]), 0.05
log = open(sys.argv[2], "a")

def tokenizer(texts):
    log.write("".join(f"{text.split()[0]}\\n" for text in texts))
    log.flush()
    time.sleep(0.02)
    return [[len(word) for word in text.split()] for text in texts]

rows = [{"text": f"{number} " + "word " * (number % 20)} for number in range(40_000)]
dataset = bf.from_sequence(rows).map_blocks(lambda block: block.slice(0)).tokenize(tokenizer, max_workers=1)
print("begins", flush=True)
print(len(dataset.to_store(sys.argv[1], version="1")))
"""


@pytest.mark.parametrize("file_bytes", [200_000, 10**9], ids=["many files", "one file"])
def test_kill_9_in_the_middle_of_writing(tmp_path: Path, file_bytes: int) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    command = [sys.executable, "-c", KILLED, str(store), str(log), str(file_bytes)]
    draw = random.Random(0)
    killed = 0
    while not (store / MANIFEST).exists():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        files = noted_rows(store)
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            if killed < 3 and noted_rows(store) > files:  # it has got some way
                time.sleep(draw.random() * 0.1)
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
        assert process.poll() is not None
        process.stdout.close()
    assert killed == 3
    assert verify_store(store) == []
    stored = rows_of(bf.from_store(store))
    assert [row["text"] for row in stored] == [f"{number} " + "word " * (number % 20) for number in range(40_000)]
    assert all(len(row["input_ids"]) == 1 + number % 20 for number, row in enumerate(stored))
    tokenised = Counter(log.read_text().split())
    again = sum(count - 1 for count in tokenised.values())
    assert again <= killed * 6 * 4096  # what was read ahead, and what was not noted
    assert {str(number) for number in range(40_000)} <= tokenised.keys()
    assert len(tokenised) <= 40_000 + killed  # a number of the log may be torn by the kill
    unbroken = tmp_path / "unbroken"
    subprocess.run(
        [sys.executable, "-c", KILLED, str(unbroken), str(log), str(file_bytes)],
        check=True,
        timeout=100,
        capture_output=True,
    )
    assert folder_of(store).manifest == folder_of(unbroken).manifest  # with the checksums of all files


def noted_rows(store: Path) -> int:
    """How many rows a journal has noted."""
    try:
        journal = json.loads((store / JOURNAL).read_text())
    except FileNotFoundError:
        return 0
    work = journal["work"] or {"batches": [], "rows": 0}
    return sum(sum(file["batches"]) for file in journal["files"]) + sum(work["batches"]) + work["rows"]


KILLED_AT_THE_END = """
import os, signal, sys
import brimful as bf
from brimful.store.manifest import Manifest

save = Manifest.save

def save_and_die(self, folder):
    save(self, folder)
    os.kill(os.getpid(), signal.SIGKILL)

Manifest.save = save_and_die
bf.from_sequence(["a", "b"]).to_store(sys.argv[1])
"""


def test_what_a_writer_leaves_that_was_killed_at_its_end_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "store"
    child = subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, str(path)], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    assert len(bf.from_store(path)) == 2  # whoever only reads has no need to clear away
    assert len(bf.from_sequence(["a", "b"]).to_store(path)) == 2
    manifest = folder_of(path).manifest
    assert {each.name for each in path.iterdir()} == {
        MANIFEST,
        *(file.name for file in [*manifest.files, *manifest.side_files]),
    }


@pytest.mark.parametrize(
    "lost", ["nothing", "part gone", "part cut", "part torn", "part bit", "held gone", "held cut", "held bit"]
)
def test_a_file_at_work_that_is_not_as_it_was_noted_is_made_again(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = store_of(tmp_path / "whole", BLOCKS, batch_bytes=200, file_bytes=1200)
    monkeypatch.setattr(writer, "KEEP_SECONDS", 0.0)
    store = tmp_path / "store"
    with small(200, 1200):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), store)
        journal = json.loads((store / JOURNAL).read_text())
        work = journal["work"]
        assert journal["files"]
        assert work["part"]
        assert work["held"]
        path = store / work[lost.split()[0]] if lost != "nothing" else None
        if path is not None:
            content = path.read_bytes()
            path.unlink()
            if lost.endswith("cut"):
                path.write_bytes(content[:-1] if "held" in lost else content[: work["bytes"] - 1])
            if lost.endswith("torn"):
                path.write_bytes(bytes(len(content)))
            if lost.endswith("bit"):
                place = work["bytes"] // 2 if "part" in lost else len(content) // 2
                path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        read: list[int] = []
        assert write_store(Counted(BLOCKS, read=read), store) == whole
    assert read[0] == 1 + (work if path is None else journal)["state"]
    assert {each.name for each in store.iterdir()} == {each.name for each in (tmp_path / "whole").iterdir()}


def test_a_store_that_is_interrupted_where_rows_are_passed_over_has_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file ends inside of a block, and the next run has shorter blocks: the note is not made at a row before that."""
    stop = 0

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal stop
        stop -= 1
        if not stop:
            raise KeyboardInterrupt
        return row

    rows = bf.from_sequence([{"id": number, "x": [number] * 10} for number in range(4_000)])
    store = tmp_path / "store"
    with small(5_000, 20_000):
        stop = 3_000
        with patch.object(pace, "WORK_SECONDS", 1e9), pytest.raises(KeyboardInterrupt):
            rows.map(counted).to_store(store, version="1")
        journal = json.loads((store / JOURNAL).read_text())
        assert journal["skip"] > 100
        monkeypatch.setattr(writer, "KEEP_SECONDS", 0.0)
        stop = 60
        with patch.object(pace, "WORK_SECONDS", 1e-9), pytest.raises(KeyboardInterrupt):
            rows.map(counted).to_store(store, version="1")
        stop = 0
        assert [row["id"] for row in rows.map(counted).to_store(store, version="1")] == [*range(4_000)]


def test_an_error_between_the_name_of_a_file_and_its_entry_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "mine"):
        if folder.name == "mine":
            folder.mkdir()
        rows = bf.from_sequence([{"id": number} for number in range(10)])
        with (
            patch.object(writer, "sha256_of", side_effect=OSError(5, "Input/output error")),
            pytest.raises(OSError, match="Input/output"),
        ):
            rows.to_store(folder)
        assert not [*folder.glob("*")]
        assert len(rows.to_store(folder)) == 10


def test_an_entry_that_could_not_be_written_keeps_the_note_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KEEP_SECONDS", 0.0)
    save = Journal.save

    def full(journal: Journal) -> None:
        if journal.files:
            raise OSError(28, "No space left on device")
        save(journal)

    whole = store_of(tmp_path / "whole", BLOCKS, batch_bytes=200, file_bytes=1200)
    read: list[int] = []
    with small(200, 1200):
        with patch.object(Journal, "save", full), pytest.raises(OSError, match="No space"):
            write_store(Given(BLOCKS), tmp_path / "store")
        assert json.loads((tmp_path / "store" / JOURNAL).read_text())["work"]["held"]
        assert write_store(Counted(BLOCKS, read=read), tmp_path / "store") == whole
    assert read[0] > 1, "it goes on after the note"


def test_an_error_in_the_first_file_keeps_what_was_noted_and_another_pipeline_makes_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KEEP_SECONDS", 0.0)

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 50:
            raise ValueError("no")
        return row

    rows = bf.from_iterable([{"x": number} for number in range(60)])
    seen: list[int] = []

    def sees(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["x"])
        return row

    store = tmp_path / "store"
    for _ in range(2):
        with pytest.raises(bf.StageError):
            rows.map(sees).map(fails).to_store(store, version="1")
    assert seen.count(0) == 1, "the second run goes on after what the first one had noted"
    assert (store / JOURNAL).exists()
    assert len(rows.map(sees).take(40).to_store(store, version="2")) == 40


def test_an_error_or_ctrl_c_keeps_the_files_that_were_finished(tmp_path: Path) -> None:
    with small(100, 1200):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        with pytest.raises(
            FileNotFoundError, match=r"is half-written: its writer is still at work, or was interrupted. To finish it"
        ):
            bf.from_store(tmp_path / "store")
        reached = state_in(tmp_path / "store")
        assert 0 < reached <= 6
        read: list[int] = []
        write_store(Counted(BLOCKS, read=read), tmp_path / "store")
    assert read[0] == reached + 1
    assert len(rows_of(bf.from_store(tmp_path / "store"))) == 60


@pytest.mark.parametrize("at", ["in the first file", "in the second file", "in the side files"])
def test_a_full_disk_is_named_holds_no_part_and_the_same_call_goes_on(tmp_path: Path, at: str) -> None:
    rows = [{"input_ids": [number] * 60} for number in range(1_000)]
    with small_disk(tmp_path / "disk", 1_024) as disk, small(20_000, 100_000):
        bf.from_sequence(rows).to_store(tmp_path / "model")
        pages = [-(-file.stat().st_size // 4096) for file in sorted((tmp_path / "model").glob("*.arrow"))]
        room = {"first": pages[0] // 2, "second": pages[0] * 3 // 2, "side": sum(pages)}[at.split()[2]]
        filler, store = disk / "filler", disk / "store"
        filler.write_bytes(bytes((1 << 20) - 4096 * (room + 3)))  # and the journal, and the one that replaces it
        name = r"\w+(\.input_ids)?\.npy" if "side" in at else r"0000\d\.arrow"
        with pytest.raises(OSError, match=rf"\[Errno 28\] .*: '{store}/{name}'\n{CONTINUE}$"):
            bf.from_sequence(rows).to_store(store)
        assert not [*disk.rglob("*.part")]
        assert store.exists() == ("first" not in at), "what was finished stays"
        filler.unlink()
        with patch.object(PartFile, "write", autospec=True, side_effect=PartFile.write) as written:
            bf.from_sequence(rows).to_store(store)
        assert written.called == ("side" not in at)
        assert [int(row["input_ids"][0]) for row in bf.from_store(store)] == [*range(1_000)]
        assert verify_store(store) == []


def test_an_empty_path_is_not_the_folder_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = bf.from_sequence(["a"])
    for make in (rows.to_store, bf.from_store):
        with pytest.raises(ValueError, match=r"^path must name a folder \(got ''\); '.' is the one that"):
            make("")
    with pytest.raises(ValueError, match=r"^output must name a folder \(got ''\)"):
        bf.map_batches_in_order(len, rows, 1, output="")
    assert not [*tmp_path.iterdir()]


def test_an_error_before_the_first_file_leaves_nothing_behind(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    rows = bf.from_sequence([{"input_ids": [1]}]).map_blocks(lambda block: block.drop_columns("input_ids"))
    for folder in (tmp_path / "new", mine):
        with pytest.raises(bf.DataError, match="nothing to store in a row without columns"):
            rows.to_store(folder, version="1")
    assert [*tmp_path.rglob("*")] == [mine]


def test_what_an_interrupted_writer_had_not_noted_is_written_anew(tmp_path: Path) -> None:
    with small(100, 500):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        for name in ("00099.arrow", "00099.arrow.part"):
            (tmp_path / "store" / name).write_bytes(b"x")
        write_store(Given(BLOCKS), tmp_path / "store")
    assert not list((tmp_path / "store").glob("00099.*"))
    assert verify_store(tmp_path / "store") == []


@pytest.mark.parametrize("content", ['{"header": 1', '{"header": 1}\n{"name": "00000.arrow"}\n'])
def test_a_journal_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / JOURNAL).write_text(content)
    with pytest.raises(
        bf.DataError,
        match=rf"{JOURNAL} is damaged, or of an earlier release \(.*\); remove {tmp_path} to begin anew",
    ):
        write_store(Given(BLOCKS), tmp_path)


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
    rows.tokenize(one).to_store(path, version="1")
    path_part = r"the store .*store belongs to another pipeline: "
    for dataset, version, message in [
        (
            rows.tokenize(one),
            "2",
            "version was '1' when it was written and is '2' here. Use the pipeline that wrote it, or an",
        ),
        (
            rows.tokenize(other),
            "1",
            r"tokenizers.input_ids was 'one \(\w+\)' when it was written and is 'other \(\w+\)' here",
        ),
        (
            rows.tokenize(one).take(1),
            "1",
            "chain was from_sequence > tokenize when it was written and is from_sequence > tokenize > take here",
        ),
        (
            bf.from_sequence(["a"]).tokenize(one),
            "1",
            "from_sequence.rows was 2 when it was written and is 1 here",
        ),
    ]:
        with pytest.raises(bf.StateError, match=path_part + message):
            dataset.to_store(path, version=version)


def test_a_store_begun_by_another_pipeline_is_refused(tmp_path: Path) -> None:
    with small(100, 500):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        with pytest.raises(
            bf.StateError, match=r"belongs to another pipeline: given.name was 'given' when it was written and is 'x'"
        ):
            write_store(replace(Given(BLOCKS), name="x"), tmp_path / "store")


def test_what_another_pipeline_has_begun_without_a_file_makes_way(tmp_path: Path) -> None:
    """So that a mistake that ends the first try can be corrected."""
    with small(100, 500):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=0), tmp_path / "store")
        assert not list((tmp_path / "store").glob("*.arrow"))
        manifest = write_store(replace(Given(BLOCKS), name="x"), tmp_path / "store")
    assert manifest.pipeline["chain"][-1]["name"] == "x"
    assert manifest.rows == sum(block.num_rows for block in BLOCKS)


def test_functions_need_a_version(tmp_path: Path) -> None:
    rows = bf.from_sequence(["a"])

    def named(sample: Any) -> Any:
        return sample

    class Called:
        def __call__(self, texts: list[str]) -> list[list[int]]:
            return [[1]] * len(texts)

    for dataset, name in [
        (rows.map(named).take(1), r"map\(named\)"),
        (rows.map(named).cache().take(1), r"map\(named\)"),
        (rows.filter(lambda sample: True), r"filter\(<lambda>\)"),
        (rows.tokenize(Called()), r"tokenize\(Called\)"),
        (bf.interleave_datasets([rows, rows.map_blocks(lambda block: block)]), r"map_blocks\(<lambda>\)"),
        (bf.from_files("x", format=named), r"from_files\(named\)"),
    ]:
        with pytest.raises(
            ValueError, match=f'a store cannot see when {name} changes. Give a version, and .* version="1"'
        ):
            dataset.to_store(tmp_path / "store")
    assert not (tmp_path / "store").exists()
    rows.map(named).to_store(tmp_path / "store", version="1")
    rows.take(1).to_store(tmp_path / "other")


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
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store"), str(log), "200000"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=100)[0] for process in processes] == ["begins\n40000\n"] * 2
    assert len(log.read_text().split()) == 40_000
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
    assert folder_of(tmp_path / "store").manifest.rows == 60


WRITING = """
import sys, time
from pathlib import Path
from brimful.tables.blocks import Block
from brimful.store.journal import Journal, one_writer

folder = Path(sys.argv[1])
with one_writer(folder, 1):
    journal = Journal(folder, None, "local", 0.0)
    journal.save()
    print("begun", flush=True)
    for _ in range(int(sys.argv[2])):
        time.sleep(0.05)
        journal.touch()
    (folder / "ended").touch()
    time.sleep(float(sys.argv[3]))
"""


@contextmanager
def writing(folder: Path, beats: int, stuck_seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes a folder: it makes progress a few times, and then none for some seconds."""
    command = [sys.executable, "-c", WRITING, str(folder), str(beats), str(stuck_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_writer_without_progress_is_named_after_the_timeout(tmp_path: Path) -> None:
    with (
        writing(tmp_path, 0, 60) as process,
        pytest.raises(
            TimeoutError,
            match=rf"is being written by process {process.pid} on .*, which has made no progress for 0.2 s; end it",
        ),
    ):
        write_store(Given(BLOCKS), tmp_path, timeout_seconds=0.2)


def test_who_waits_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        writing(tmp_path, 0, 60) as process,
        patch("brimful.store.journal.SAID_AFTER_SECONDS", 0.1),
        patch("brimful.store.journal.LOOK_SECONDS", 0.1),
        caplog.at_level("WARNING", logger="brimful"),
        pytest.raises(TimeoutError),
    ):
        write_store(Given(BLOCKS), tmp_path, timeout_seconds=0.4)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"waiting for process {process.pid} on ")
    assert said.endswith(f", which writes {tmp_path}")


def test_a_writer_with_progress_is_waited_for(tmp_path: Path) -> None:
    """Longer than the timeout: it is that of a writer without progress."""
    with writing(tmp_path, 40, 0), patch.object(Journal, "of", Journal):
        write_store(Given(BLOCKS), tmp_path, timeout_seconds=1.0)
        assert (tmp_path / "ended").exists()


def test_a_killed_writer_makes_way_for_those_who_wait(tmp_path: Path) -> None:
    with writing(tmp_path, 0, 60) as process, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(write_store, Given(BLOCKS), tmp_path, timeout_seconds=60)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.5)
        process.send_signal(signal.SIGKILL)
        manifest = waits.result(timeout=60)  # it had begun another one, and finished nothing of that
        assert manifest.pipeline["chain"][-1]["name"] == "given"


def test_a_lock_that_a_killed_writer_left_is_free(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    write_store(Given(BLOCKS), tmp_path, timeout_seconds=0.1)


# -- what is said --------------------------------------------------------------------------------------------------------


def test_progress_is_reported(tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []
    with small(100, 1000):
        with pytest.raises(KeyboardInterrupt):
            write_store(Given(BLOCKS, fail_at=6), tmp_path / "store")
        found = 5 * state_in(tmp_path / "store") + json.loads((tmp_path / "store" / JOURNAL).read_text())["skip"]
        write_store(Given(BLOCKS), tmp_path / "store", report=lambda rows, status: said.append((rows, status())))
    assert sum(rows for rows, _ in said) == 60 - found < 60
    assert said[-1][1].startswith(f"60 rows written, {found} of them found; {sum(LENGTHS[found:])} tokens, ")


def test_progress_is_reported_before_a_record_batch_is_full(tmp_path: Path) -> None:
    said: list[int] = []
    write_store(Given(BLOCKS), tmp_path / "store", report=lambda rows, status: said.append(rows))
    assert said == [block.num_rows for block in BLOCKS if block.num_rows]


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    code = (
        "import time, brimful as bf\n"
        "from brimful.core import terminal\n"
        "from brimful.store import writer\n"
        "terminal.PATIENCE_SECONDS = 0; writer.BATCH_BYTES = 1\n"
        "slow = lambda block: time.sleep(.05) or block\n"
        f"len(bf.from_sequence(['a'] * 30_000).map_blocks(slow).to_store({str(tmp_path / 'store')!r}, version='1'))"
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
