"""The assertion of the law finds each way to break it, and says which."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State
from brimful.testing import assert_exact_resume, first_difference


@dataclass(frozen=True)
class Numbers(Stage[Any]):
    """0 to 4, with a bug."""

    bug: str = ""
    seen: list[int] = field(default_factory=list)

    def start(self, epoch: int) -> State:
        return [0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        first, more = at
        if self.bug == "changes what it is given":
            at[0] = 4
        if self.bug == "remembers" and first:
            self.seen.append(first)
            first += len(self.seen) - 1
        for number in range(first, 5):
            state: State = [number + 1, more] if number < 4 else END
            if self.bug == "repeats":
                state = [number, []]
            elif self.bug == "skips" and number == 2:
                state = [number + 2, []]
            elif self.bug == "tuple":
                state = (number + 1, [])
            elif self.bug == "set":
                state = {number}
            elif self.bug == "nan":
                state = [float("nan"), []]
            elif self.bug == "large":
                state = [number + 1, [0] * 2000]
            elif self.bug == "shared":
                more.append(number)
            elif self.bug == "goes on" and number == 4:
                state = [4, []]
            elif self.bug == "fails" and first == 3:
                raise ValueError("no three")
            yield number, state


@dataclass(frozen=True)
class Fleeting(Stage[Any]):
    """Another number in each run."""

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        yield next(_runs), END


_runs = itertools.count()


BUGS = {
    "repeats": ", resumed after item 0 (state [0, []]): item 1 is 0 instead of 1",
    "skips": ", resumed after item 2 (state [4, []]): item 3 is 4 instead of 3",
    "goes on": ", resumed after item 4 (state [4, []]): goes on after the last item, with (4, ",
    "remembers": ", resumed after item 0 (state [1, []]) for the second time: item 1 is 2 instead of 1",
    "fails": ", resumed after item 2 (state [3, []]): item 3 failed with ValueError: no three",
    "changes what it is given": (
        ", resumed after item 0 (state [1, []]): the run changed the state that it was given, to [4, []]"
    ),
    "tuple": ": the state after item 0 is not plain JSON: what comes back is [1, []] instead of (1, [])",
    "set": ": the state after item 0 is not plain JSON: Object of type set is not JSON serializable",
    "nan": ": the state after item 0 is not plain JSON: Out of range float values",
    "large": ": the state after item 0 takes 6,005 bytes, more than 4,096",
    "shared": ": the state after item 0 was changed after it was yielded, from [1, [0]] to [1, [0, 1, 2, 3, 4]]",
}


@pytest.mark.parametrize(("bug", "message"), BUGS.items(), ids=BUGS)
def test_each_way_to_break_the_law_is_found(bug: str, message: str) -> None:
    with pytest.raises(AssertionError, match=f"^Numbers, epoch 0{re.escape(message)}"):
        assert_exact_resume(lambda: Numbers(bug))


def test_a_stage_that_keeps_the_law_passes() -> None:
    assert_exact_resume(Numbers)


def test_two_runs_must_be_the_same() -> None:
    with pytest.raises(AssertionError, match=r"^Fleeting, epoch 0, run again: item 0 is 1 instead of 0$"):
        assert_exact_resume(Fleeting)


def test_data_sets_and_batches_are_tested_by_their_iterators_too() -> None:
    calls: list[int] = []

    def unsteady(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["x"])
        return {"x": len(calls)}

    rows = bf.from_sequence([{"x": number} for number in range(4)])
    assert_exact_resume(lambda: rows.shuffle(2))
    assert_exact_resume(lambda: rows.batch(2))
    with pytest.raises(
        AssertionError, match=r"^SampleFunction, epoch 0, run again: item 0\['x'\]\[0\] is 5 instead of 1"
    ):
        assert_exact_resume(lambda: rows.map(unsteady))
    with pytest.raises(
        AssertionError, match=r"^Dataset\(from_sequence > map\), run again: item 0\['x'\] is \d+ instead of \d+"
    ):
        assert_exact_resume(lambda: rows.map(unsteady), epochs=())


def batch(*values: int, name: str = "x", kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind or pa.int64())], [name])


SAME: dict[str, Callable[[], Any]] = {
    "plain": lambda: {"x": [1, 2.0, None, "a"], "y": (float("nan"),)},
    "block": lambda: batch(1, 2),
    "block with NaN": lambda: pa.RecordBatch.from_pydict({"x": [float("nan"), None]}),
    "arrays": lambda: {"x": np.array([1.0, np.nan]), "y": np.array(["a"])},
    "tensors": lambda: {"x": torch.tensor([1.0, float("nan")]), "y": torch.zeros(0, 2)},
    "batch": lambda: next(iter(bf.from_sequence([{"input_ids": [1]}]).batch(1).plans())),
    "pack": lambda: next(iter(bf.from_sequence([{"input_ids": [1, 2, 3]}]).pack(2, overlong="split").plans())),
}
OTHER: list[tuple[Any, Any, str]] = [
    (1, True, " is 1 instead of True (int instead of bool)"),
    ([1, 2], [1], " has 2 values instead of 1"),
    ({"x": 1, "y": 1}, {"y": 1, "x": 1}, " has the keys ['x', 'y'] instead of ['y', 'x']"),
    (batch(1), batch(1, name="y"), " has the schema (x: int64) instead of (y: int64)"),
    (batch(1), batch(1, kind=pa.int32()), " has the schema (x: int64) instead of (x: int32)"),
    (batch(1), batch(1, 2), " has 1 rows instead of 2"),
    (batch(1, 2), batch(1, 3), "['x'][1] is 2 instead of 3"),
    (batch(1, name="__origin__"), batch(2, name="__origin__"), "['__origin__'][0] is 1 instead of 2"),
    (np.array([1]), np.array([1.0]), " is int64 (1,) instead of float64 (1,)"),
    (np.array([[1, 2]]), np.array([[1, 3]]), "[0, 1] is np.int64(2) instead of np.int64(3)"),
    (torch.zeros(2), torch.zeros(3), " is torch.float32 on cpu (2,) instead of torch.float32 on cpu (3,)"),
    (torch.tensor([[1]]), torch.tensor([[2]]), "[0, 0] is np.int64(1) instead of np.int64(2)"),
]


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_what_is_equal_has_no_difference(make: Callable[[], Any]) -> None:
    assert first_difference(make(), make()) is None


@pytest.mark.parametrize(("found", "expected", "message"), OTHER, ids=[message for *_, message in OTHER])
def test_the_first_difference_is_named(found: Any, expected: Any, message: str) -> None:
    assert first_difference(found, expected) == message


def test_windows_are_compared_by_their_rows_and_batches_by_their_numbers() -> None:
    def plan(*lengths: int, seed: int = 1) -> Any:
        samples = bf.from_sequence([{"input_ids": [7] * length} for length in lengths])
        return next(iter(samples.batch_by_tokens(64, window=2, shuffle_batches=True, seed=seed).plans()))

    assert first_difference(plan(1, 2), plan(1, 2)) is None
    assert first_difference(plan(1, 2), plan(1, 3)) == ".padded_length is 2 instead of 3"
    assert first_difference(plan(1), plan(1, 2)) == ".padded_length is 1 instead of 2"


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, brimful as bf; from brimful.testing import assert_exact_resume; "
        "assert_exact_resume(lambda: bf.from_sequence(['a', 'b']).shuffle(2)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
