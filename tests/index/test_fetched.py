"""Samples of a map-style data set as a stream: no pass measures them, processes make them, and a resume makes them again."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from tests.index.augmented import (
    COUNT,
    Augmented,
    Failing,
    FailingTogether,
    Killed,
    NoRow,
    Odd,
    Random,
    Several,
    TooFew,
    Unsent,
    WithTorch,
)

SCHEMA = {"input_ids": pa.list_(pa.int8()), "number": pa.int16(), "pixels": pa.list_(pa.float32())}


def plain(batches: Any) -> list[Any]:
    return [{name: getattr(one, "tolist", lambda: one)() for name, one in batch.items()} for batch in batches]  # noqa: B023


def lists(rows: Any) -> list[Any]:
    return [{name: np.asarray(one).tolist() for name, one in row.items()} for row in rows]


def batched(data: bf.Dataset, **how: Any) -> bf.Batches:
    return data.batch_by_tokens(60, window=30, **how)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_rows_are_those_of_the_indexed_data_in_their_order(num_workers: int) -> None:
    for make in (
        lambda: bf.from_dataset(Augmented()),
        lambda: bf.from_dataset(Augmented(), shuffle=True, seed=3)[10:70].shuffle(9).select(["input_ids", "number"]),
        lambda: bf.from_dataset(Several(count=30)).rename({"number": "n"}).stride(3, 1),
        lambda: bf.from_dataset(Augmented(count=0)),
    ):
        stream = make().stream(num_workers=num_workers)
        assert stream.kind == "streamed (by stream)" or not len(make())
        rows, expected = (
            [{name: np.asarray(one).tolist() for name, one in row.items()} for row in data] for data in (stream, make())
        )
        assert rows == expected


def test_each_sample_is_made_once_and_in_processes_that_begin_anew(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for num_workers in (0, 2):
        notes.write_text("")
        batches = batched(bf.from_dataset(Augmented(notes), shuffle=True).stream(num_workers=num_workers))
        with batches.iter() as it:
            assert sum(len(batch["number"]) for batch in it) == COUNT
        numbers, makers = zip(*map(str.split, notes.read_text().splitlines()), strict=True)
        assert sorted(map(int, numbers)) == [*range(COUNT)], "none of them to measure it, or for its types"
        assert ({*makers} == {str(os.getpid())}) == (num_workers == 0)
        assert len({*makers}) <= max(1, num_workers)
    assert not multiprocessing.active_children()


def test_batches_are_planned_by_real_lengths_as_those_of_any_stream() -> None:
    rows = [Augmented()[number] for number in range(COUNT)]
    expected = batched(bf.from_iterable(rows), shuffle_batches=False)
    for num_workers in (0, 2):
        found = batched(bf.from_dataset(Augmented()).stream(num_workers=num_workers), shuffle_batches=False)
        assert plain(found) == plain(expected)
        assert all(batch["input_ids"].numel() <= 60 for batch in found)


def test_given_lengths_are_not_used() -> None:
    data = bf.from_dataset(Augmented(), lengths=[1] * COUNT).stream()
    assert all(batch["input_ids"].numel() <= 60 for batch in batched(data))


def test_a_resume_on_other_numbers_of_processes_has_the_same_rest() -> None:
    whole = plain(batched(bf.from_dataset(Augmented(), shuffle=True).stream()))
    for stop, before, after in ((3, 0, 2), (len(whole) - 1, 1, 0)):
        with batched(bf.from_dataset(Augmented(), shuffle=True).stream(num_workers=before)).iter() as it:
            begun = plain(islice(it, stop))
            state = json.loads(json.dumps(it.state_dict()))
        with batched(bf.from_dataset(Augmented(), shuffle=True).stream(num_workers=after)).iter(state) as it:
            assert begun + plain(it) == whole


def test_random_samples_of_processes_are_exact_after_a_resume_and_differ_from_epoch_to_epoch() -> None:
    def repeats(num_workers: int) -> bf.Dataset:
        return bf.from_dataset(Random(30), shuffle=True, repeat=True).stream(num_workers=num_workers)

    rows = [(row["number"], len(row["input_ids"]), row["x"], row["y"]) for row in islice(repeats(2), 60)]
    again = [(row["number"], len(row["input_ids"]), row["x"], row["y"]) for row in islice(repeats(1), 60)]
    assert rows == again
    assert sorted(row[0] for row in rows[:30]) == sorted(row[0] for row in rows[30:]) == [*range(30)]
    assert len({row[1:] for row in rows}) == 60, "no two samples draw the same numbers, and none in two epochs"
    batches = repeats(2).batch_by_tokens(40, window=10)
    with batches.iter() as it:
        begun = plain(islice(it, 7))
        state = json.loads(json.dumps(it.state_dict()))
        rest = plain(islice(it, 5))
    with repeats(1).batch_by_tokens(40, window=10).iter(state) as it:
        assert plain(islice(it, 5)) == rest
    assert begun


def test_processes_draw_other_numbers_of_torch() -> None:
    drawn = [row["x"] for row in bf.from_dataset(WithTorch(count=40)).stream(num_workers=2)]
    assert len({*drawn}) == 40


def test_random_samples_that_nobody_seeds_are_noticed() -> None:
    batches = batched(bf.from_dataset(Random()).stream())
    with batches.iter() as it:
        next(it)
        state = it.state_dict()
    with pytest.raises(bf.StateError, match="'input_ids'"):
        next(batches.iter(state))
    with batches.iter(state, allow={"rows"}) as it:
        next(it)


def test_several_samples_are_asked_for_at_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for num_workers in (0, 2):
        notes.write_text("")
        rows = list(bf.from_dataset(Several(notes)).stream(num_workers=num_workers))
        assert [row["number"] for row in rows] == [*range(COUNT)]
        asked = [int(line.split()[-1]) for line in notes.read_text().splitlines()]
        assert sum(asked) == COUNT
        assert max(asked) > 1
    subset = torch.utils.data.Subset(Augmented(), [5, 3, 5])  # type: ignore[arg-type]
    assert [row["number"] for row in bf.from_dataset(subset).stream()] == [5, 3, 5]


def test_a_mixture_streams_each_of_its_data_sets() -> None:
    def mixed(num_workers: int) -> bf.Dataset:
        parts = [bf.from_dataset(Augmented(count=9)), bf.from_sequence([{"number": -1}] * 9)]
        return bf.interleave_datasets(parts, stop="all").stream(num_workers=num_workers)

    expected = [row["number"] for row in mixed(0)]
    assert [row["number"] for row in mixed(2)] == expected == [n for pair in zip(range(9), [-1] * 9) for n in pair]


def test_repeating_data_go_on_in_the_same_processes(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with bf.from_dataset(Augmented(notes, 9), repeat=True).stream(num_workers=1).iter() as it:
        assert [next(it)["number"] for _ in range(20)] == [*range(9), *range(9), 0, 1]
    assert len({line.split()[1] for line in notes.read_text().splitlines()}) == 1


def test_their_number_of_batches_is_not_known() -> None:
    with pytest.raises(TypeError, match=r"the number of batches is not known: the data set is streamed \(by stream\)"):
        len(batched(bf.from_dataset(Augmented()).stream()))
    with pytest.raises(
        ValueError, match=r"streamed \(by stream\) cannot be divided among 2 ranks.*leave out stream\(\)"
    ):
        list(batched(bf.from_dataset(Augmented()).stream()).shard(0, 2))
    assert len(batched(bf.from_dataset(Augmented()).stream()).shard(0, 1).stage.inputs) == 1


def test_a_schema_is_that_of_the_user() -> None:
    data = bf.from_dataset(Augmented(count=3), schema=SCHEMA)
    for num_workers in (0, 1):
        (block,) = data.stream(num_workers=num_workers).batch(3).take(1)
        assert block["pixels"].dtype == torch.float32


# -- what goes wrong


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Failing, r"^Failing\[77\] failed \(sample 77\): OSError: image 77 is damaged"),
        (FailingTogether, r"^FailingTogether\[77\] failed \(sample 77\): OSError: image 77 is damaged"),
        (TooFew, r"^TooFew.__getitems__\(\[0, .*\) failed: ValueError: it returned \d+ samples for \d+ numbers"),
        (Odd, r"^from_dataset\(Odd\) failed at Odd, sample 77: column 'number'"),
        (NoRow, r"^from_dataset failed at NoRow, sample 77: TypeError: a sample must be a dict"),
    ],
)
def test_an_error_names_the_sample(kind: type[Augmented], words: str, num_workers: int) -> None:
    with pytest.raises(bf.StageError, match=words):
        list(bf.from_dataset(kind()).stream(num_workers=num_workers))


def test_a_worker_that_dies_is_an_error_that_names_its_samples() -> None:
    words = r"worker process \d+ of from_dataset\(Killed\) has died \(killed by SIGKILL\).*, with rows from Killed, sample \d+"
    with (
        batched(bf.from_dataset(Killed()).stream(num_workers=2)).iter() as it,
        pytest.raises(bf.StageError, match=words),
    ):
        list(it)


def test_a_data_set_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"from_dataset\(Unsent\) cannot be sent to another process: .*stream\(num_workers=0\)"
    ):
        list(bf.from_dataset(Unsent()).stream(num_workers=1))


def test_what_has_no_samples_to_make_is_refused() -> None:
    for data in (
        bf.from_sequence(["a"]),
        bf.from_dataset(Augmented()).filter(lambda row: True),
        bf.from_iterable(["a"]),
        bf.from_dataset(Augmented()).train_valid_split(0.5)[0],
    ):
        assert len(data.stream().peek(1)) <= 1
        with pytest.raises(
            ValueError, match=r"stream\(num_workers=2\) makes the samples of from_dataset, and from_.* has none"
        ):
            data.stream(num_workers=2)
    with pytest.raises(
        ValueError, match=r"stream\(num_workers=1\) makes rows of samples, but from_dataset\(collate_fn"
    ):
        bf.from_dataset(Augmented(), collate_fn=list).stream(num_workers=1)
    with pytest.raises(ValueError, match=r"num_workers must be at least 0 processes \(got -1\)"):
        bf.from_dataset(Augmented()).stream(num_workers=-1)


# -- what is left behind


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def makers(notes: Path) -> set[int]:
    return {int(line.split()[1]) for line in notes.read_text().splitlines()}


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    batches = batched(bf.from_dataset(Augmented(notes, 10_000)).stream(num_workers=2)).prefetch(2)
    with batches.iter() as it:
        next(it)
        assert makers(notes)
    assert not any(map(alive, makers(notes)))
    it = batches.iter()
    next(it)
    del it
    gc.collect()
    assert not any(map(alive, makers(notes)))


SCRIPT = """
import os, sys, time
import brimful as bf

class Slow:
    def __len__(self): return 1_000_000
    def __getitem__(self, number):
        with open(sys.argv[1], "a") as file: file.write(f"{number} {os.getpid()}\\n")
        time.sleep(0.002)
        return {"input_ids": [number]}

batches = bf.from_dataset(Slow(), shuffle=True).stream(num_workers=2).batch_by_tokens(16, window=64)
print("begun", flush=True)
try:
    for batch in batches:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """The script has no `if __name__ == "__main__":`, and no process runs it again."""
    script, notes = tmp_path / "script.py", tmp_path / "notes"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script), str(notes)], stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (notes.exists() and len(makers(notes)) == 2) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ["begun", "interrupted"]
    gone = time.monotonic() + 10
    while any(map(alive, makers(notes))) and time.monotonic() < gone:
        time.sleep(0.05)
    assert not any(map(alive, makers(notes)))
