"""`filter(fn, version=...)` asks once for all runs and ranks of a machine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from brimful.core import terminal as progress
from brimful.index.index import DataIndex

ASKED: list[int] = []


def is_odd(sample: dict[str, Any]) -> bool:
    ASKED.append(sample["id"])
    return bool(sample["id"] % 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ASKED.clear()
    rows = [{"id": number, "input_ids": [number] * (number % 5)} for number in range(100)]
    bf.from_sequence(rows).to_store(tmp_path / "store")
    return tmp_path / "store"


def kept(path: Path, version: str | None = "1", **how: Any) -> list[int]:
    return [row["id"] for row in bf.from_store(path, **how).filter(is_odd, version=version)]


def test_answers_are_kept_beside_the_store_and_asked_for_once(path: Path) -> None:
    found = kept(path)
    assert found == [*range(1, 100, 2)]
    assert len(ASKED) == 100
    (file,) = path.glob("filter.*")
    assert file.stat().st_size == 13 + 4, "a bit a sample, and a checksum"
    assert kept(path) == found
    assert sorted(kept(path, shuffle=True, seed=7)) == found, "in any order"
    assert len(ASKED) == 100
    assert kept(path, version=None) == found
    assert len(ASKED) == 200, "without a version in memory"


def test_another_version_function_chain_or_store_asks_again(path: Path, tmp_path: Path) -> None:
    kept(path)
    ASKED.clear()
    kept(path, version="2")
    kept(path, columns=["id"])
    assert len(ASKED) == 200
    store = bf.from_store(path)
    assert len(store.filter(lambda sample: sample["id"] < 9, version="1")) == 9
    assert len(store.filter(lambda sample: sample["id"] < 50).filter(is_odd, version="1")) == 25
    assert len(ASKED) == 250
    rows = [{"id": number + 1, "input_ids": [number] * (number % 5)} for number in range(100)]
    bf.from_sequence(rows).to_store(tmp_path / "other")
    for file in path.glob("filter.*"):
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    ASKED.clear()
    assert kept(tmp_path / "other")[0] == 1
    assert len(ASKED) == 100, "of equal lengths, but other rows"


class Divides:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, sample: dict[str, Any]) -> bool:
        return bool(sample["id"] % self.by == 0)

    def exactly(self, sample: dict[str, Any]) -> bool:
        return self(sample)


def divides(by: int, sample: dict[str, Any]) -> bool:
    return Divides(by)(sample)


def closure(by: int) -> Callable[[dict[str, Any]], bool]:
    def keep(sample: dict[str, Any]) -> bool:
        return divides(by, sample)

    return keep


SAME_NAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lambdas": (lambda sample: sample["id"] % 3 == 0, lambda sample: sample["id"] % 7 == 0),
    "partials": (partial(divides, 3), partial(divides, 7)),
    "objects": (Divides(3), Divides(7)),
    "methods": (Divides(3).exactly, Divides(7).exactly),
    "closures": (closure(3), closure(7)),
    "lambdas in lambdas": (lambda s: (lambda: s["id"] % 3)() == 0, lambda s: (lambda: s["id"] % 7)() == 0),
    "sets": (lambda s: s["id"] in {0, 3, 6}, lambda s: s["id"] in {0, 7, 14}),
    "getters": (itemgetter("id"), itemgetter("none")),
    "defaults": (lambda s, by=3: s["id"] % by == 0, lambda s, by=7: s["id"] % by == 0),
}


@pytest.mark.parametrize(("one", "other"), SAME_NAME.values(), ids=SAME_NAME)
def test_functions_of_one_name_are_told_apart(path: Path, one: Any, other: Any) -> None:
    rows = [{"id": number, "none": 0} for number in range(100)]
    bf.from_sequence(rows).to_store(path.parent / "numbers")
    for fn in (one, other, one):
        found = [row["id"] for row in bf.from_store(path.parent / "numbers").filter(fn, version="1")]
        assert found == [row["id"] for row in rows if fn(row)]
    assert len([*(path.parent / "numbers").glob("filter.*")]) == 2, "asked once each"


@pytest.mark.parametrize("version", [1, b"2", True, ["1"]])
def test_a_version_is_a_text(path: Path, version: Any) -> None:
    message = r"^version must be a text, such as \"1\" \(got "
    with pytest.raises(TypeError, match=message):
        bf.from_store(path).filter(is_odd, version=version)
    with pytest.raises(TypeError, match=message):
        bf.from_store(path).map(is_odd).to_store(path.parent / "other", version=version)
    with pytest.raises(TypeError, match=message):
        bf.map_batches_in_order(len, ["a"], 1, version=version)


def test_states_are_those_without_a_version(path: Path) -> None:
    with_it, without = (bf.from_store(path).filter(is_odd, version=version).iter() for version in ("1", None))
    next(with_it), next(without)
    assert with_it.state_dict() == without.state_dict()


def test_a_damaged_file_is_made_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = kept(path)
    (file,) = path.glob("filter.*")
    whole = file.read_bytes()
    for content in (whole[:-1], b"\xff" + whole[1:], b""):
        file.write_bytes(content)
        assert kept(path) == found
        assert file.read_bytes() == whole
    assert caplog.text.count("is damaged: all rows are read again for it") == 3


def test_where_nothing_can_be_written_they_stay_in_memory(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    assert kept(path) == [*range(1, 100, 2)]
    assert "is kept in memory, not beside the store: read-only" in caplog.text
    assert not [*path.glob("filter.*")]


def test_on_a_full_disk_they_stay_in_memory(path: Path) -> None:
    code = (
        "import resource, signal, brimful as bf\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))\n"
        f"data = bf.from_store({str(path)!r}).filter(lambda sample: sample['id'] % 2, version='1')\n"
        "assert [row['id'] for row in data] == [*range(1, 100, 2)]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is kept in memory, not beside the store: [Errno 27]" in done.stderr
    assert not [*path.glob("filter.*")]


def test_a_function_that_fails_leaves_nothing_beside_the_store(path: Path) -> None:
    with pytest.raises(bf.StageError, match="ZeroDivisionError"):
        len(bf.from_store(path).filter(lambda sample: bool(1 / sample["id"]), version="1"))
    assert not [*path.glob("filter.*")]


def test_a_version_is_for_stores() -> None:
    with pytest.raises(
        ValueError, match=r"version='1' saves the answers of filter beside a store, but these data have no"
    ):
        bf.from_sequence(["a"]).filter(is_odd, version="1")
    assert not DataIndex.holds_files


def slow(sample: dict[str, Any]) -> bool:
    with open(os.environ["ASKED_FILE"], "ab") as file:
        file.write(b".")
    time.sleep(0.005)
    return True


def rank(path: Path) -> None:
    assert len(bf.from_store(path).filter(slow, version="1")) == 100


def test_of_several_processes_one_asks_and_the_others_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_FILE", str(path.parent / "asked"))
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank, args=(path,)) for _ in range(3)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
    assert [one.exitcode for one in ranks] == [0, 0, 0]
    assert (path.parent / "asked").stat().st_size == 100
    assert [file.suffix for file in path.glob("filter.*")] == [".bits"], "no lock is left"


def test_a_filter_says_that_it_reads_all_rows(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "brimful"):
        kept(path)
        kept(path)
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["filter(is_odd) reads all 100 samples once", "filter(is_odd) keeps 50 of 100 samples"]
    assert said[2].endswith("has the answers for 100 samples")


def test_long_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(progress.watched([3, 4], "filter(f)", 7, int)) == [3, 4]
    assert "filter(f): 7 of 7 samples" in capsys.readouterr().err
