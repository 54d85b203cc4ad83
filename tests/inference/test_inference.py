"""Inference over any number of samples: results in order, written whole, whatever is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful import map_batches_in_order
from brimful.inference import open_window
from brimful.memory import SimulatedOOM
from brimful.plan.errors import DataError, StateError
from tests.disks import CONTINUE, small_disk
from tests.effort import examples
from tests.inference import spelling_child
from tests.inference.spelling_child import TEXTS
from tests.oom import generating_child
from tests.shards import write
from tests.store.stores import rows_of

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.oom.generating_child", "tests.inference.spelling_child"])


def spelled(batch: dict[str, Any]) -> list[str]:
    return [text.upper() for text in batch["text"]]


def lines(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def noted(batch: dict[str, Any]) -> list[str]:
    return spelled(batch)


def bare(results: bf.IndexedDataset) -> list[Any]:
    """Results that are no dicts, as a data set of them has them."""
    return [row["result"] for row in results]


class Interrupted(BaseException):
    """Stands for Ctrl-C, or the end of the process."""


class Stopping:
    """Counts what it is asked, and stops the run before a sample of this number."""

    __name__ = "spelled"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stop: int | None = None

    def __call__(self, batch: dict[str, Any]) -> list[str]:
        if self.stop is not None and len(self.asked) >= self.stop:
            raise Interrupted
        self.asked.extend(batch["text"])
        return spelled(batch)


class Texts:
    """What can only be iterated over."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Any:
        return iter(self._texts)


class Fetched:
    """A data set of torch's kind: samples by number, one at a time."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, number: int) -> dict[str, str]:
        return {"text": self._texts[number]}


@given(
    st.lists(st.text(max_size=9), max_size=40),
    st.integers(1, 12),
    st.sampled_from(
        [bf.TokenBudget(40), bf.FixedSize(3), 4, bf.FixedSize(2, sort=False), bf.StaticShapes([20, 40], 80)]
    ),
    st.sampled_from(
        [
            list,
            Texts,
            lambda texts: bf.from_iterable(texts).map(dict),
            bf.from_sequence,
            lambda texts: bf.from_sequence(texts).stream(),
            lambda texts: bf.from_dataset(Fetched(texts)),
            lambda texts: bf.from_dataset(Fetched(texts)).map(dict),
            lambda texts: bf.from_sequence(texts[:7]) + bf.from_dataset(Fetched(texts[7:])),
        ]
    ),
)
@examples(60)
def test_results_come_in_the_order_of_the_samples(texts: list[str], window: int, policy: Any, make: Any) -> None:
    assert list(map_batches_in_order(spelled, make(texts), policy, window=window)) == [text.upper() for text in texts]


def test_texts_are_planned_over_by_their_bytes_and_tokens_by_their_number(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def noted(batch: dict[str, Any]) -> torch.Tensor:
        seen.append(batch)
        return torch.arange(len(batch["text"]))

    texts = ["é" * 10, "a" * 12, "bb", "c"]
    found = list(map_batches_in_order(noted, texts, bf.TokenBudget(40), window=4))
    assert [batch["text"] for batch in seen] == [["é" * 10, "a" * 12], ["bb", "c"]]
    assert [int(row) for row in found] == [0, 1, 0, 1]
    assert all(batch.keys() == {"text"} for batch in seen)
    seen.clear()
    data = bf.from_files(write(tmp_path / "a.jsonl", [{"text": text, "id": 7} for text in texts]))
    tokens = data.tokenize(lambda texts: [[len(text)] * (5 - len(text) % 5) for text in texts])
    list(map_batches_in_order(noted, tokens, 2, window=4, pad_side="left", pad_values={"input_ids": 9}))
    assert [batch["input_ids"].tolist() for batch in seen] == [[[10] * 5, [9, 1, 1, 1, 1]], [[12] * 3, [2] * 3]]
    assert seen[0].keys() == {"text", "id", "input_ids", "attention_mask", "lengths"}
    by_text = list(map_batches_in_order(noted, tokens, 2, window=4, length_column="text"))
    assert len(by_text) == 4


def test_a_sample_that_the_policy_cannot_place_is_named_or_truncated_or_alone() -> None:
    data = bf.from_sequence([{"input_ids": [1] * length} for length in (3, 9, 2)])

    def lengths(batch: dict[str, Any]) -> list[int]:
        return [int(length) for length in batch["lengths"]]

    with pytest.raises(DataError, match=r"a sample of 9 tokens \(sequence, row 1\) cannot fit max_tokens=6"):
        list(map_batches_in_order(lengths, data, bf.TokenBudget(6)))
    assert list(map_batches_in_order(lengths, data, bf.TokenBudget(6), overlong="truncate")) == [3, 6, 2]
    assert list(map_batches_in_order(lengths, data, bf.TokenBudget(6), overlong="alone")) == [3, 9, 2]


def test_a_batch_that_is_out_of_memory_is_split_and_the_order_kept() -> None:
    device = SimulatedOOM(30)
    sizes: list[int] = []

    def doubled(batch: dict[str, Any]) -> torch.Tensor:
        sizes.append(len(device(batch["input_ids"])))
        return batch["input_ids"] * 2  # as wide as the part is

    rows = [{"input_ids": [number] * (1 + number % 9)} for number in range(60)]
    found = list(map_batches_in_order(doubled, bf.from_sequence(rows), bf.TokenBudget(50), window=20))
    assert [int(row[0]) for row in found] == [2 * number for number in range(60)]
    device.limit = 5
    with pytest.raises(torch.OutOfMemoryError, match="out of memory with 1 sample alone") as caught:
        list(map_batches_in_order(doubled, bf.from_sequence(rows), bf.TokenBudget(50), window=20))
    assert "of window 0, padded to 9: sequence, row 8; " in caught.value.__notes__[0]


def test_batches_that_were_split_are_counted_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = SimulatedOOM(6)

    def sums(batch: dict[str, Any]) -> torch.Tensor:
        return device(batch["input_ids"]).sum(1)

    rows = bf.from_sequence([{"input_ids": [1] * length} for length in (4, 4, 2, 2, 2)])
    assert [int(one) for one in map_batches_in_order(sums, rows, bf.TokenBudget(8), window=5)] == [4, 4, 2, 2, 2]
    avoids = "a smaller budget, or fewer rows a batch, avoids this"
    first, last = (record.getMessage() for record in caplog.records)
    assert f"(said once; the end of the run counts them; {avoids}): simulated: out of memory" in first
    assert last == f"out of memory: 1 of 2 batches were split, into 2 parts; {avoids}"
    caplog.clear()
    device.limit = 8
    map_batches_in_order(sums, rows, bf.TokenBudget(8), window=5, output=tmp_path / "out")
    assert not caplog.records


def test_split_batches_are_counted_in_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def shown(total: int | None) -> Iterator[Any]:
        yield lambda rows, status: said.append(status())

    monkeypatch.setattr("brimful.inference.inference.progress", shown)
    device = SimulatedOOM(6)
    rows = bf.from_sequence([{"input_ids": [1] * length} for length in (4, 4, 2, 2)])
    list(map_batches_in_order(lambda batch: device(batch["input_ids"]), rows, 2, window=4))
    assert said[1:] == ["2 of 4 samples done, batches split: 1", "4 of 4 samples done, batches split: 1"]


def test_an_error_of_the_function_keeps_its_type_and_names_the_samples() -> None:
    def failing(batch: dict[str, Any]) -> list[str]:
        if "c" in batch["text"]:
            raise KeyError("score")
        return spelled(batch)

    with pytest.raises(KeyError, match=r"^'score'") as caught:
        list(map_batches_in_order(failing, ["a", "b", "c", "dd"], 2, window=2))
    (note,) = caught.value.__notes__
    assert note == (
        "map_batches_in_order: failing got 2 samples of window 1, padded to 2: sequence, row 3; sequence, row 2"
    )
    with pytest.raises(KeyError) as caught:
        list(map_batches_in_order(failing, ["c"] * 9, 9))
    assert caught.value.__notes__[0].endswith("sequence, row 3; sequence, row 4; ..."), "the first 5 are named"


def test_a_dict_of_columns_is_refused_with_what_to_return(tmp_path: Path) -> None:
    def columns(batch: dict[str, Any]) -> dict[str, Any]:
        size = len(batch["text"])
        return {"score": torch.arange(size) / 2, "label": np.ones(size, dtype=np.int64)}

    remedy = "[dict(zip(out, row)) for row in zip(*out.values())]"
    message = f"(got dict). Return one dict a sample: {remedy}"
    with pytest.raises(TypeError, match=re.escape(message)):
        list(map_batches_in_order(columns, TEXTS, 4))  # type: ignore[arg-type]
    for name in ("out", "out.parquet"):
        rows = map_batches_in_order(
            lambda batch: eval(remedy, {"out": columns(batch)}), ["a", "b"], 2, output=tmp_path / name
        )
        assert list(rows) == [{"score": 0.0, "label": 1}, {"score": 0.5, "label": 1}]


def test_another_budget_for_results_that_are_there_says_what_to_do(tmp_path: Path) -> None:
    map_batches_in_order(spelled, TEXTS, bf.TokenBudget(60), output=tmp_path / "out", window=30)
    with pytest.raises(StateError) as caught:
        map_batches_in_order(spelled, TEXTS, bf.TokenBudget(30), output=tmp_path / "out", window=30)
    assert str(caught.value) == (
        f"the results in {tmp_path / 'out'} are of another run: batch.policy.max_tokens was 60 when they were written and is 30 "
        "here; name another folder, or go on with what wrote them"
    )


@pytest.mark.parametrize("suffix", ["", ".jsonl", ".parquet"])
def test_results_are_written_a_file_a_window_and_returned_as_a_data_set(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"out{suffix}"

    def answer(batch: dict[str, Any]) -> list[Any]:
        return [{"text": text, "size": np.int64(len(text)), "ids": torch.tensor([1, 2])} for text in batch["text"]]

    found = map_batches_in_order(answer, TEXTS, bf.TokenBudget(60), output=folder, window=30)
    assert isinstance(found, bf.IndexedDataset)
    assert rows_of(found) == [{"text": text, "size": len(text), "ids": [1, 2]} for text in TEXTS]
    kind = "parquet" if suffix == ".parquet" else "jsonl"
    assert sorted(path.name for path in folder.glob(f"*.{kind}")) == [f"0000{number}.{kind}" for number in range(3)]
    assert list(folder.glob("*.part")) == []
    again = map_batches_in_order(answer, TEXTS, bf.TokenBudget(60), output=str(folder), window=30)
    assert rows_of(again) == rows_of(found)
    with found.iter() as it:
        assert [next(it)["text"] for _ in range(40)] == TEXTS[:40]
        assert [row["text"] for row in again.iter(it.state_dict())] == TEXTS[40:]
    if kind == "parquet":
        assert pq.read_table(folder).num_rows == 100
    else:
        assert [row["text"] for row in bf.from_files(str(folder / "*.jsonl"), n_active_shards=1)] == TEXTS


def test_results_that_are_no_dicts(tmp_path: Path) -> None:
    for name in ("a", "b.parquet"):
        found = map_batches_in_order(spelled, ["a", "b"], 2, output=tmp_path / name)
        assert list(found) == [{"result": "A"}, {"result": "B"}]
    assert (tmp_path / "a" / "00000.jsonl").read_text() == '"A"\n"B"\n'
    assert pq.read_table(tmp_path / "b.parquet").to_pydict() == {"result": ["A", "B"]}


@pytest.mark.parametrize("stop", [1, 29, 30, 31, 65, 90])
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_run_that_stops_goes_on_with_the_window_at_work(tmp_path: Path, stop: int, name: str) -> None:
    fn = Stopping()

    def run() -> Any:
        return map_batches_in_order(fn, TEXTS, bf.TokenBudget(60), output=tmp_path / name, window=30)

    fn.stop = stop
    with pytest.raises(Interrupted):
        run()
    assert list((tmp_path / name).glob("*.part")) == []
    fn.stop = None
    assert bare(run()) == [text.upper() for text in TEXTS]
    assert len(fn.asked) <= 100 + 40, "whole windows, and no more than the one at work"
    asked = len(fn.asked)
    assert bare(run()) == [text.upper() for text in TEXTS]
    assert len(fn.asked) == asked, "all is there"


def test_ctrl_c_says_that_the_same_call_goes_on(tmp_path: Path) -> None:
    def stopped(batch: dict[str, Any]) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupt:
        map_batches_in_order(stopped, TEXTS, 2, output=tmp_path / "out")
    note = f"To continue, run the same call again. It goes on after the last batch in {tmp_path / 'out'}"
    assert interrupt.value.__notes__[-1] == note, "it stands below the traceback"


def test_where_all_results_are_there_no_model_is_made(tmp_path: Path) -> None:
    made: list[int] = []

    class Model:
        def __init__(self) -> None:
            made.append(1)

        def __call__(self, batch: dict[str, Any]) -> list[str]:
            return spelled(batch)

    for _ in range(3):
        assert bare(map_batches_in_order(Model, TEXTS, 4, output=tmp_path / "out")) == [text.upper() for text in TEXTS]
    assert made == [1]


def test_results_in_a_folder_that_nobody_may_write_to_are_read() -> None:
    with TemporaryDirectory() as place:
        folder, user = Path(place, "out"), os.geteuid()

        def run() -> list[Any]:
            return bare(map_batches_in_order(spelled, TEXTS, 4, output=folder, window=30))

        run()
        (folder / "_writer.lock").unlink(missing_ok=True)
        folder.chmod(0o555)
        Path(place).chmod(0o555)
        os.seteuid(65_534 if user == 0 else user)  # root may write anywhere
        try:
            assert run() == [text.upper() for text in TEXTS]
            with pytest.raises(PermissionError):
                map_batches_in_order(spelled, TEXTS, 4, output=folder.with_name("other"))
        finally:
            os.seteuid(user)
            Path(place).chmod(0o755)
            folder.chmod(0o755)


def test_a_rerun_over_other_data_or_settings_is_refused_with_both_sides(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def run(texts: Any = TEXTS, budget: int = 60, fn: Any = spelled, **options: Any) -> None:
        given = {"window": 30} | options
        map_batches_in_order(fn, texts, bf.TokenBudget(budget), output=folder, **given)

    run()
    other = [*TEXTS]
    other[3] = other[3].replace("x", "y")  # as long as it was
    with pytest.raises(
        StateError, match=r"from_sequence\.checksums\.text was \d+ when they were written and is \d+ here"
    ):
        run(other)
    with pytest.raises(StateError, match=r"from_sequence\.checksums\.text was \d+ when they were written"):
        run(bf.from_sequence([{"text": text} for text in other]))
    with pytest.raises(StateError, match=r"was from_sequence.* when they were written and is from_iterable.* here"):
        run(bf.from_iterable(TEXTS))
    with pytest.raises(StateError, match=r"fn was 'spelled' when they were written and is 'noted' here"):
        run(fn=noted)
    with pytest.raises(StateError, match=r"version was None when .* and is '2' here"):
        run(version="2")
    with pytest.raises(StateError, match=r"max_tokens was 60 when they were written and is 61 here"):
        run(budget=61)
    with pytest.raises(StateError, match=r"window was 30 when they were written and is 29 here"):
        run(window=29)
    assert lines(folder) == [text.upper() for text in TEXTS]


def test_an_iterable_that_gives_other_samples_is_found_by_its_last_window(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    map_batches_in_order(spelled, Texts(TEXTS), 4, output=folder, window=30)
    assert len(list(map_batches_in_order(spelled, Texts(TEXTS), 4, output=folder, window=30))) == 100
    other = [*TEXTS[:-1], TEXTS[-1][:-1] + "?"]
    with pytest.raises(StateError, match=r"of other data: the samples of window 2 had the digest [0-9a-f]{8} when"):
        map_batches_in_order(spelled, Texts(other), 4, output=folder, window=30)
    with pytest.raises(
        StateError, match=r"of other data: the samples of window 2 had the digest [0-9a-f]{8} when they were written"
    ):
        map_batches_in_order(spelled, Texts([*TEXTS[:80], *TEXTS[70:90]]), 4, output=folder, window=30)


def test_what_cannot_be_written_is_an_error_and_what_was_written_stays(tmp_path: Path) -> None:
    def late(values: Any) -> Any:
        return lambda batch: [values if "50" in text else {"a": 1} for text in batch["text"]]

    for number, (name, value, kind, message) in enumerate(
        [
            (
                "out",
                {"a": float("nan")},
                ValueError,
                r"cannot be written as JSON .* Parquet \(output='...parquet'\) takes nan",
            ),
            ("out", {"a": {1, 2}}, TypeError, r"a result of type set cannot be written"),
            ("out.parquet", {"a": "text"}, ValueError, r"a result does not fit those before it: .*'a'"),
            ("out.parquet", {"b": 1}, ValueError, r"a result does not fit those before it: key 'b'"),
        ]
    ):
        folder = tmp_path / str(number) / name
        with pytest.raises(kind, match=message):
            map_batches_in_order(late(value), TEXTS, 4, output=folder, window=30)
        assert json.loads((folder / "_progress.json").read_text())["windows"] == 1
    assert list(map_batches_in_order(late({"a": float("nan")}), ["50"], 1, output=tmp_path / "n.parquet"))


def test_a_folder_that_is_not_ours_or_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"file is a file; results are written to a folder"):
        map_batches_in_order(spelled, TEXTS, 4, output=tmp_path / "file")
    with pytest.raises(
        ValueError, match=r"the folder .*mine is not empty, and holds no results of a run; name a new one"
    ):
        map_batches_in_order(spelled, TEXTS, 4, output=tmp_path / "mine")
    folder = tmp_path / "out"

    def beside(batch: dict[str, Any]) -> list[str]:
        with pytest.raises(RuntimeError, match="out is being written by another run"):
            map_batches_in_order(spelled, TEXTS, 4, output=folder, window=30)
        return spelled(batch)

    beside.__name__ = "spelled"
    map_batches_in_order(beside, TEXTS, 4, output=folder, window=30)
    (folder / "00001.jsonl").unlink()
    with pytest.raises(DataError, match=r"00001.jsonl is missing; put it back, or remove .*out to begin anew"):
        map_batches_in_order(spelled, TEXTS, 4, output=folder, window=30)
    (folder / "_progress.json").write_text("{")
    with pytest.raises(DataError, match=r"_progress.json is damaged"):
        map_batches_in_order(spelled, TEXTS, 4, output=folder, window=30)


def test_what_it_is_given_is_checked_at_once() -> None:
    with pytest.raises(TypeError, match=r"takes a policy of padded batches, or a number of samples \(got Packed"):
        map_batches_in_order(spelled, TEXTS, bf.Packed(8))
    with pytest.raises(TypeError, match=r"takes several texts \(got a single str\)"):
        map_batches_in_order(spelled, "text", 2)
    batches = bf.from_sequence(TEXTS).batch(2)
    for one, name in ((batches, "Batches"), (batches.loader(), "TorchLoader")):
        with pytest.raises(TypeError, match=rf"takes the samples \(got {name}\)\. Pass the data set and the policy: "):
            map_batches_in_order(spelled, one, 2)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="this data set repeats without end"):
        map_batches_in_order(spelled, bf.from_sequence(TEXTS, repeat=True), 2)
    with pytest.raises(
        DataError, match=r"there is no column 'tokens' whose lengths can be planned over \(columns: text\)"
    ):
        map_batches_in_order(spelled, TEXTS, 2, length_column="tokens")
    with pytest.raises(TypeError, match=r"length_column is its name .* Make a column of numbers by map"):
        map_batches_in_order(spelled, TEXTS, 2, length_column=len)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"map_batches_in_order\(\) got an unexpected keyword argument 'drop_last'"):
        map_batches_in_order(spelled, TEXTS, 2, drop_last=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"executor must be one of local, ray \(got 'dask'\)"):
        map_batches_in_order(spelled, TEXTS, 2, executor="dask")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"overlong must be one of raise, truncate, alone \(got 'drop'\)"):
        map_batches_in_order(spelled, TEXTS, 2, overlong="drop")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"spelled returned 3 results for a batch of 4 samples"):
        list(map_batches_in_order(named(lambda batch: batch["text"][1:]), TEXTS, 4))
    with pytest.raises(TypeError, match=r"spelled must return one result a sample, .* 4 rows \(got dict\)"):
        list(map_batches_in_order(named(dict), TEXTS, 4))
    assert list(map_batches_in_order(spelled, [], 4)) == []


def named(fn: Any) -> Any:
    def spelled(batch: Any) -> Any:
        return fn(batch)

    return spelled


def test_it_runs_ahead_by_a_window_at_most() -> None:
    drawn = 0

    class Endless:
        def __iter__(self) -> Any:
            nonlocal drawn
            for number in range(1_000_000):
                drawn = number
                yield "x" * (number % 5)

    found = map_batches_in_order(spelled, Endless(), 8, window=64)
    for _ in range(64):
        next(found)
    found.close()  # type: ignore[attr-defined]
    assert drawn < 2_000


def test_a_model_that_generates_and_is_killed_twice_ends_with_the_output_of_an_unbroken_run(tmp_path: Path) -> None:
    draw, folder = random.Random(2), tmp_path / "out"
    for kill in range(2):
        child = PROCESSES.Process(target=generating_child.run_and_be_killed, args=(str(folder), 0.01))
        child.start()
        deadline = time.monotonic() + 60
        while len(list(folder.glob("*.jsonl"))) < 3 * (kill + 1):
            assert child.is_alive(), "the child ended by itself"
            assert time.monotonic() < deadline, "the child wrote nothing within a minute"
            time.sleep(0.001)
        time.sleep(draw.random() * 0.05)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    expected = generating_child.run(None)
    assert generating_child.run(str(folder)) == expected
    assert lines(folder) == expected
    assert [row["text"] for row in expected] == generating_child.TEXTS
    assert len({row["found"] for row in expected}) > 30


def test_results_that_parquet_would_lose_or_change_are_refused_or_kept(tmp_path: Path) -> None:
    def run(results: list[Any], name: str) -> list[Any]:
        return list(
            map_batches_in_order(
                lambda batch: [results[int(text)] for text in batch["text"]],
                ["0", "1"],
                1,
                output=tmp_path / name,
                window=1,
            )
        )

    with pytest.raises(ValueError, match="results that are dicts without keys cannot be written as Parquet"):
        run([{}, {}], "a.parquet")
    with pytest.raises(ValueError, match=r"results cannot be written as Parquet \(.*struct.*JSON lines"):
        run([{"a": {"b": b"", "c": {}}}] * 2, "b.parquet")
    with pytest.raises(ValueError, match=r"does not fit those before it: \{'a': 1\} is a dict, and others are not"):
        run([1, {"a": 1}], "c.parquet")
    with pytest.raises(ValueError, match="does not fit those before it: 1 is no dict, and others are; return one kind"):
        run([{"a": 1}, 1], "d.parquet")
    for number, results in enumerate(
        [[{"result": 1}, {"result": 2}], [1, 2], [{"a": 1}, {}], [b"a", b"b"], [{"a": {}}, {"a": {"b": None}}]]
    ):
        expected = [one if isinstance(one, dict) else {"result": one} for one in results]
        expected = [{"a": 1}, {"a": None}] if number == 2 else expected
        for _ in range(2):
            assert run(results, f"{number}.parquet") == expected, "also when they are there already"


def test_a_rerun_that_would_give_other_tensors_is_refused_with_both_sides(tmp_path: Path) -> None:
    rows = [{"input_ids": [1] * (1 + number % 3)} for number in range(6)]

    def run(**options: Any) -> None:
        def shown(batch: Any) -> list[Any]:
            return [0] * len(batch["input_ids"] if isinstance(batch, dict) else batch)

        given = {"window": 2} | options
        map_batches_in_order(shown, bf.from_sequence(rows), 2, output=tmp_path / "out", **given)

    run()
    run(pad_side="right", layout="padded")
    for options, words in (
        ({"pad_side": "left"}, "pad_side was 'right' when they were written and is 'left' here"),
        ({"layout": "nested"}, "layout was 'padded' when they were written and is 'nested' here"),
        ({"dtypes": {"input_ids": "int32"}}, r"dtypes.input_ids was None when they were written and is 'int32' here"),
        ({"collate_fn": list}, "collate_fn was None when they were written and is 'list' here"),
    ):
        with pytest.raises(StateError, match=words):
            run(**options)


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_damaged_file_of_results_is_named_and_nothing_is_lost_in_silence(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name

    def run() -> list[Any]:
        return list(map_batches_in_order(spelled, TEXTS, bf.TokenBudget(60), output=folder, window=30))

    run()
    path = next(folder.glob("00001.*"))
    content = path.read_bytes()
    edited = content.replace(b"X", b"Y", 1)
    for damaged in (content.partition(b"\n")[2], content[:-1], edited, (folder / f"00000{path.suffix}").read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"00001\.\w+ is not as it was written: it has [\d,]+ bytes with the .*; put it back"
        ):
            run()
    path.write_bytes(content)
    sums = folder / "_checksums"
    lines = sums.read_bytes()
    for damaged in (lines[:-3], lines[9:], lines.replace(b"00000.", b"00002."), b""):
        sums.write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"_checksums is missing or damaged: it has \d lines with the checksum .*; put it back"
        ):
            run()
    sums.write_bytes(lines + lines[:20])  # as a run leaves it that was killed before it wrote its journal
    assert len(run()) == 100
    sums.write_bytes(lines)
    journal = folder / "_progress.json"
    saved = json.loads(journal.read_text())
    assert saved["runs"] == [[30, 2], [40, 1]]
    for damage in (
        *({"windows": value} for value in ("a", 1.5, -1, None, True, 4)),
        *({"digest": value} for value in (None, "a", -1)),
        *({"runs": value} for value in (None, [[30, 3, 1]], [[0, 3]], 3)),
        *({"checksums": value} for value in (None, "a", -1)),
        {"before": 3},
    ):
        journal.write_text(json.dumps(saved | damage))
        with pytest.raises(DataError, match=r"_progress.json is damaged \(.*\); remove"):
            run()
    journal.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"_progress.json is damaged"):
        run()


@pytest.mark.parametrize("written", [0.0, 1e9], ids=["after each batch", "at the end alone"])
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_full_disk_is_named_and_the_same_call_goes_on(
    tmp_path: Path, name: str, written: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_window, "SECONDS", written)
    asked: list[str] = []

    def long(batch: dict[str, Any]) -> list[str]:
        asked.extend(batch["text"])
        return [random.Random(text).randbytes(500).hex() for text in batch["text"]]

    with small_disk(tmp_path / "disk", 256) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(160 << 10))

        def run() -> Any:
            return map_batches_in_order(long, TEXTS, 4, output=disk / name, window=30)

        with pytest.raises(OSError, match=rf"\[Errno 28\] .*: '.*/(0000\d\.\w+|_open_window)'\n{CONTINUE}"):
            run()
        assert not [*(disk / name).glob("*.part")]
        done = json.loads((disk / name / "_progress.json").read_text())["windows"]
        first = len(asked)
        assert done < 3
        filler.unlink()
        assert bare(run()) == [random.Random(text).randbytes(500).hex() for text in TEXTS]
        assert len(asked) - first <= 100 - 30 * done, "of windows that are done nothing is asked again"


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_file_that_changes_after_it_was_opened_is_not_given(tmp_path: Path, name: str) -> None:
    found = map_batches_in_order(spelled, TEXTS, 4, output=tmp_path / name, window=30)
    assert found[99] == {"result": TEXTS[99].upper()}
    first, second = sorted((tmp_path / name).glob("0000[01].*"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert found[98] == {"result": TEXTS[98].upper()}, "of a file that stayed"
    for row in (0, 31):
        with pytest.raises(DataError, match=r"0000[01]\.\w+ is not as it was written"):
            found[row]
    (tmp_path / name / "_checksums").unlink()
    with pytest.raises(DataError, match="_checksums is missing or damaged"):
        map_batches_in_order(spelled, TEXTS, 4, output=tmp_path / name, window=30)


@pytest.mark.parametrize("written", [0.0, 1e9], ids=["after each batch", "at the end alone"])
@pytest.mark.parametrize("name", ["out", "out.parquet"])
@pytest.mark.parametrize("window", [100, "auto", 30])
def test_a_run_that_stops_loses_the_batch_at_work_alone(
    tmp_path: Path, name: str, window: Any, written: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_window, "SECONDS", written)
    fn = Stopping()

    def run() -> Any:
        return map_batches_in_order(fn, TEXTS, bf.TokenBudget(60), output=tmp_path / name, window=window)

    for stop in (1, 2, 40, 41, 70):
        fn.stop = stop
        with pytest.raises(Interrupted):
            run()
    fn.stop = None
    assert bare(run()) == [text.upper() for text in TEXTS]
    assert sorted(fn.asked) == sorted(TEXTS), "each once: a batch that stops has not begun"
    assert not (tmp_path / name / "_open_window").exists()


def kept(folder: Path, batches: int) -> list[str]:
    """A run of one window that is killed after so many batches: what was asked."""
    fn = Stopping()
    fn.stop = batches * 4
    with pytest.raises(Interrupted):
        map_batches_in_order(fn, TEXTS, 4, output=folder, window=100)
    return fn.asked


def test_a_record_that_was_being_written_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    asked = kept(tmp_path / "whole", 5)
    content = (tmp_path / "whole" / "_open_window").read_bytes()
    lost = []
    for size in np.linspace(0, len(content) - 1, 25).astype(int).tolist():
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(size)))
        (folder / "_open_window").write_bytes(content[:size])
        fn = Stopping()
        assert bare(map_batches_in_order(fn, TEXTS, 4, output=folder, window=100)) == [text.upper() for text in TEXTS]
        lost.append(len(asked) + len(fn.asked) - 100)
    assert set(lost) == {20, 16, 12, 8, 4}
    assert sorted(lost, reverse=True) == lost


def test_records_that_were_edited_or_are_of_another_window_are_left_out_and_those_of_other_data_refused(
    tmp_path: Path,
) -> None:
    for number, (old, new) in enumerate(
        ((b"XX", b"XY"), (b'"window": 0', b'"window": 1'), (b'"numbers": [', b'"numbers": [1'))
    ):
        folder = tmp_path / str(number)
        kept(folder, 5)
        path = folder / "_open_window"
        path.write_bytes(path.read_bytes().replace(old, new, 1))
        fn = Stopping()
        assert bare(map_batches_in_order(fn, TEXTS, 4, output=folder, window=100)) == [text.upper() for text in TEXTS]
        assert len(fn.asked) > 80
    folder = tmp_path / "iterable"
    with pytest.raises(Interrupted):
        map_batches_in_order(stopping(), Texts(TEXTS), 4, output=folder, window=100)
    other = [text.replace("x", "y") for text in TEXTS]
    with pytest.raises(
        StateError, match=r"are of other data: a batch of window 0 had 4 samples with the digest \w{8}, and has 4"
    ):
        map_batches_in_order(stopping(), Texts(other), 4, output=folder, window=100)


def stopping() -> Stopping:
    fn = Stopping()
    fn.stop = 40
    return fn


def test_what_cannot_be_written_by_itself_is_no_error_before_its_window_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_window, "SECONDS", 0.0)

    def some(batch: dict[str, Any]) -> list[dict[str, Any]]:
        return [{} if "5" in text else {"a": len(text)} for text in batch["text"]]

    found = map_batches_in_order(some, TEXTS, 1, output=tmp_path / "out.parquet", window=100)
    assert list(found) == [{"a": None if "5" in text else len(text)} for text in TEXTS]


def test_a_process_that_is_killed_loses_the_batch_at_work_alone(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    for most in (19, 40, 80, 1_000):
        arguments = str(tmp_path / "out"), str(asked), most
        child = PROCESSES.Process(target=spelling_child.run_and_be_killed, args=arguments)
        child.start()
        child.join(120)
        assert child.exitcode == (-signal.SIGKILL if most < 1_000 else 0)
    assert lines(tmp_path / "out") == [text.upper() for text in TEXTS]
    assert len(asked.read_text().splitlines()) == 100 + 3 * 4, "three batches were asked for twice"


class Named(NamedTuple):
    row: Any
    name: str


FORMS: dict[str, Any] = {
    "a tensor": lambda rows: rows,
    "an array": lambda rows: rows.numpy(),
    "tensors": list,
    "arrays": lambda rows: list(rows.numpy()),
    "dicts": lambda rows: [{"row": row, "name": "a"} for row in rows],
    "dicts in dicts": lambda rows: [{"row": {"inside": row.numpy()}} for row in rows],
    "tuples": lambda rows: [(row, 1) for row in rows],
    "lists": lambda rows: [[row, row] for row in rows],
    "named tuples": lambda rows: [Named(row, "a") for row in rows],
    "mappings": lambda rows: [UserDict(row=row) for row in rows],
}


@pytest.mark.parametrize(("name", "splits"), [*((name, False) for name in FORMS), ("a tensor", True), ("dicts", True)])
def test_results_keep_no_memory_of_what_they_were_cut_from(name: str, splits: bool) -> None:
    form = FORMS[name]
    device = SimulatedOOM(10 if splits else 100)

    def last(batch: dict[str, Any]) -> Any:
        count = len(device(torch.zeros(len(batch["text"]), 1)))
        outputs = torch.arange(count * 500.0 * 40).reshape(count, 500, 40)
        return form(outputs[:, -1, :5])

    found = list(map_batches_in_order(last, TEXTS[:64], bf.FixedSize(16)))
    assert len(found) == 64
    for one in found:
        for leaf in leaves(one):
            assert leaf.shape == (5,)
            if isinstance(leaf, np.ndarray):
                assert leaf.base is None
            else:
                assert leaf.untyped_storage().nbytes() == 5 * 4
    whole = form(torch.zeros(1, 5))
    assert {type(one) for one in found} == {type(next(iter(whole)))}


def leaves(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | np.ndarray):
        return [value]
    if isinstance(value, dict | UserDict):
        value = list(value.values())
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list | tuple) else []


def test_what_is_no_view_is_handed_on_as_it_is() -> None:
    made: list[Any] = []

    def apart(batch: dict[str, Any]) -> list[Any]:
        rows = [{"a": torch.ones(3), "b": [1.0] * 3, "c": (np.ones(2), None)} for _ in batch["text"]]
        made.extend(rows)
        return rows

    found = list(map_batches_in_order(apart, TEXTS, bf.FixedSize(16)))
    assert {id(one) for one in found} == {id(one) for one in made}


def test_what_fn_returns_and_json_cannot_hold_is_said_in_words(tmp_path: Path) -> None:
    def run(result: Any, name: str) -> list[Any]:
        return list(map_batches_in_order(lambda batch: [result], ["a"], 1, output=tmp_path / name))

    assert run(UserDict({"a": UserDict(b=1)}), "dict") == [{"a": {"b": 1}}]
    with pytest.raises(TypeError, match=r"a result of type bytes cannot be written as JSON: b'a'; decode it"):
        run({"a": b"a"}, "bytes")
    with pytest.raises(ValueError, match=r"a result holds half a character, a lone surrogate, .* errors='replace'"):
        run("\ud800", "half")
    with pytest.raises(TypeError, match=r"as a list or a tensor of 1 rows \(got Tensor without dimensions\)"):
        list(map_batches_in_order(lambda batch: torch.tensor(1), ["a"], 1))


def test_texts_are_not_truncated_and_their_lengths_are_said_to_be_bytes() -> None:
    with pytest.raises(
        ValueError, match=r"overlong='truncate' cuts tokens, and 'text' holds texts, which stay as they are"
    ):
        map_batches_in_order(spelled, TEXTS, bf.TokenBudget(60), overlong="truncate")
    with pytest.raises(
        DataError, match=r"cannot fit max_tokens=3.* A text has no tokens yet: these are its bytes in UTF-8$"
    ):
        list(map_batches_in_order(spelled, ["a", "éé"], bf.TokenBudget(3)))
    with pytest.raises(ValueError, match=r"^policy must be at least 1 sample \(got 0\)"):
        map_batches_in_order(spelled, TEXTS, 0)


def test_a_collate_fn_gets_whole_samples() -> None:
    """Those with numbers, too, which tensors would be made of without it."""
    rows = [{"input_ids": [1] * size, "score": size / 2} for size in (3, 1, 2)]
    given = bf.from_sequence(rows)
    found = map_batches_in_order(lambda batch: [one["score"] for one in batch], given, 2, collate_fn=list)
    assert list(found) == [1.5, 0.5, 1.0]
