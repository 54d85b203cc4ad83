"""Results on disk as samples: any rows at once, with what cannot be rows said in words."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.plan.errors import DataError, StateError
from tests.store.stores import rows_of

TEXTS = [str(number) * (number % 5) for number in range(50)]
ROWS = [{"input_ids": [len(text)] * len(text), "text": text} for text in TEXTS]


def answered(batch: dict[str, Any]) -> list[Any]:
    return [{"input_ids": [len(text)] * len(text), "text": text} for text in batch["text"]]


@pytest.fixture(params=["out", "out.parquet"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> bf.IndexedDataset:
    return bf.map_batches_in_order(answered, TEXTS, 4, output=tmp_path / request.param, window=7)


def test_any_rows_at_once(results: bf.IndexedDataset) -> None:
    assert len(results) == 50
    assert [results[number]["text"] for number in (0, 6, 7, 49, -1)] == [TEXTS[n] for n in (0, 6, 7, 49, 49)]
    assert rows_of(results) == ROWS
    assert rows_of(results[5:40]) == ROWS[5:40]
    assert sorted(row["text"] for row in results.shuffle(20)) == sorted(TEXTS)
    rows = results.stage.index.take(np.array([49, 0, 13, 14, 7, 0]))
    assert rows.column("text").to_pylist() == [TEXTS[n] for n in (49, 0, 13, 14, 7, 0)]


def test_lengths_are_known_and_batches_planned(results: bf.IndexedDataset) -> None:
    assert results.lengths().tolist() == [len(text) for text in TEXTS]
    texts = [text for batch in results.batch_by_tokens(64) for text in batch["text"]]
    assert sorted(texts) == sorted(TEXTS)


def test_results_stand_beside_the_samples_that_they_are_of(tmp_path: Path) -> None:
    scores = bf.map_batches_in_order(
        lambda batch: [len(text) for text in batch["text"]], TEXTS, 4, output=tmp_path / "out"
    )
    both = bf.zip_datasets([bf.from_sequence(TEXTS), scores.rename({"result": "score"})])
    assert all(len(row["text"]) == row["score"] for row in both)


def test_it_travels_as_a_path(results: bf.IndexedDataset) -> None:
    found = rows_of(results)
    travelled = pickle.dumps(results)
    assert len(travelled) < 1_000
    assert rows_of(pickle.loads(travelled)) == found


def test_few_files_are_held(results: bf.IndexedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.inference.results.KEPT_FILES", 2)
    assert rows_of(results) == ROWS
    assert results.stage.index._rows.cache_info().currsize == 2  # type: ignore[attr-defined]


def test_a_state_of_other_results_is_refused(tmp_path: Path) -> None:
    one, other = (
        bf.map_batches_in_order(answered, texts, 4, output=tmp_path / name)
        for name, texts in (("one", TEXTS), ("other", TEXTS[::-1]))
    )
    with one.iter() as it:
        next(it)
        with pytest.raises(StateError, match=r"map_batches_in_order.crc32 was \d+ when it was saved and is \d+ here"):
            other.iter(it.state_dict())


def test_no_results(tmp_path: Path) -> None:
    none = bf.map_batches_in_order(answered, [], 4, output=tmp_path / "out")
    assert (len(none), list(none), none.lengths().tolist(), list(none.batch(2))) == (0, [], [], [])


def test_results_that_are_no_rows_of_one_table_are_counted_and_their_lines_are_there(tmp_path: Path) -> None:
    def unlike(batch: dict[str, Any]) -> list[Any]:
        return [{"a": {"b": 1}} if text == "x" else [1, "a"] for text in batch["text"]]

    found = bf.map_batches_in_order(unlike, ["x", "y"], 1, output=tmp_path / "out", window=1)
    assert len(found) == 2
    with pytest.raises(
        DataError, match=r"00001.jsonl holds results that are no rows of one table \(.*\); read its lines"
    ):
        list(found)
    assert (tmp_path / "out" / "00001.jsonl").read_text() == '[1, "a"]\n'


def test_a_damaged_first_file_is_named_whichever_row_is_wanted(results: bf.IndexedDataset) -> None:
    path = next(results.stage.index.folder.glob("00000.*"))  # type: ignore[attr-defined]
    content = path.read_bytes()
    damages = (content[: len(content) // 2], content[:20] + b"\xff" * 4 + content[24:])
    for damaged in (*damages, *([b"[3]" + content[content.index(b"\n") :]] if path.suffix == ".jsonl" else [])):
        path.write_bytes(damaged)
        fresh = pickle.loads(pickle.dumps(results))
        with pytest.raises(DataError, match=rf"^[^ ]*/{path.name} is not as it was written"):
            fresh[15 if path.suffix == ".jsonl" else 0]


def test_an_error_names_file_and_line(results: bf.IndexedDataset) -> None:
    with pytest.raises(bf.StageError, match=r"failed at results out(\.parquet)?/00001\.(jsonl, line|parquet, row) "):
        list(results.map(lambda row: row if row["text"] != TEXTS[9] else 1 / 0))
