"""What somebody else wrote, and what nobody should write, ends in an error in words: no hang, no memory, no file elsewhere."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from brimful.core.processes import LogCapture
from brimful.sources import forward
from brimful.store.manifest import MANIFEST, _digest
from tests.cli.commands import invoke
from tests.samples import all_stages


@pytest.mark.parametrize("end", [".jsonl", ".txt", ".csv", ".jsonl.gz"])
def test_a_line_without_an_end_is_refused(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "RECORD_BYTES", 1 << 20)
    path = tmp_path / f"a{end}"
    first = {".txt": "x\n", ".csv": "text\nx\n"}.get(end, '{"text": "x"}\n').encode()
    data = first + b"0" * (3 << 20) + b"\n" + first
    path.write_bytes(gzip.compress(data) if end.endswith(".gz") else data)
    line = 2 + (end == ".csv")
    it = bf.from_files(str(path)).iter()
    assert next(it) == {"text": "x"}
    with pytest.raises(bf.DataError, match=rf"shard a{end}, line {line}: no line ends within 1,048,576 bytes of byte"):
        next(it)
    kept = bf.from_files(str(path), on_error="skip").iter()
    assert list(kept) == [{"text": "x"}]
    assert kept.stats.skipped_shards == 1


def test_braces_stand_for_a_million_names_at_most() -> None:
    for braces, count in (("{1..1000000000000}", "1,000,000,000,000"), ("{1..2000}{1..2000}", "4,000,000")):
        with pytest.raises(ValueError, match=rf"stand for {count} names, but the most is 1,000,000. Correct them"):
            list(bf.from_files(f"{braces}.jsonl"))


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "a/b.arrow", "..", "", "..\\x"])
def test_a_manifest_names_files_of_its_folder_alone(name: str, tmp_path: Path) -> None:
    assert len(bf.from_sequence([{"input_ids": [1, 2]}]).to_store(tmp_path / "store")) == 1
    path = next(tmp_path.rglob(MANIFEST))
    content = json.loads(path.read_text())
    content.pop("sha256")
    content["files"][0]["name"] = name
    path.write_text(json.dumps(content | {"sha256": _digest(content)}))
    with pytest.raises(bf.DataError, match=r"names the file '.*', which does not lie in the folder of the store"):
        bf.from_store(path.parent)


def test_a_state_is_shown_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    header = [{"verb": "take\x1b[2J", "n\x1b[1m": "\x1b]0;x\x07"}]
    path.write_text(json.dumps({"a\x1b[0m": "b\x1b[31m", "s": {"version": "\x1b[8m", "header": header, "position": 1}}))
    shown = invoke("state", "show", path).stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "take\\x1b[2J" in shown


@pytest.mark.parametrize(
    "data", [bf.from_iterable([{"x": 1}]), bf.from_sequence([[1]]).batch(1)], ids=["rows", "batches"]
)
def test_a_chain_that_python_could_not_run_is_refused_where_it_is_made(data: Any) -> None:
    depth = len(list(all_stages(data.stage)))
    for _ in range(64 - depth):
        data = data.map(dict)
    assert len(list(data)) == 1
    with pytest.raises(
        ValueError, match=r"makes a chain of 65 stages, and one may have 64; put what several functions do"
    ):
        data.map(dict)


@pytest.mark.parametrize("value", [None, 5, [1]])
def test_rows_without_tokens_are_counted(value: Any) -> None:
    rows = [{"input_ids": value, "id": 0}]
    it = bf.from_sequence(rows).iter()
    assert len(list(it)) == 1
    assert it.stats.tokens == (1 if value == [1] else 0)


@pytest.mark.parametrize("repeat", [False, True])
def test_plans_and_shapes_are_those_of_the_batches_that_are_taken(repeat: bool) -> None:
    data = bf.from_sequence([[1] * length for length in (1, 2, 3, 4, 5)], repeat=repeat)
    for batches in (data.batch(2).take(2), data.batch(2).map(dict).take(4).enumerate().take(3), data.batch(2).take(0)):
        made = [one[1] if isinstance(one, tuple) else one for one in batches]
        assert [batch.padded_length for batch in batches.plans()] == [one["input_ids"].shape[1] for one in made]
        assert sum(batches.shapes().values()) == len(made)


@pytest.mark.parametrize("propagates", [True, False])
def test_the_log_goes_where_the_user_lets_it(propagates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("brimful")
    monkeypatch.setattr(logger, "propagate", propagates)
    with LogCapture():
        assert not logger.propagate
    assert logger.propagate is propagates


def test_two_savers_of_a_memory_model_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    model = bf.memory.MemoryModel.fit([(1, 8), (8, 8), (8, 16)], [1008, 1064, 1128])
    (tmp_path / "model.json.part").write_text("another's")
    model.save(tmp_path / "model.json")
    assert synced
    assert bf.memory.MemoryModel.load(tmp_path / "model.json").to_json() == model.to_json()
    assert (tmp_path / "model.json.part").read_text() == "another's"
