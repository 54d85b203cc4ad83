from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import shard
from tests.strategies import Blocks, small


def total(carry: int, sample: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return carry + sample["x"], {"total": carry + sample["x"]}


def seen(carry: list[int], sample: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Changes the carry that it is handed, and hands it on in the sample too."""
    carry.append(sample["x"])
    return carry, {"seen": carry}


def numbers(count: int, **options: Any) -> bf.Dataset:
    return bf.from_sequence([{"x": number} for number in range(count)], **options)


def test_the_carry_of_each_call_is_that_of_the_one_before() -> None:
    assert [sample["total"] for sample in numbers(5).scan(total, 100)] == [100, 101, 103, 106, 110]
    assert list(numbers(0).scan(total, 0)) == []


def test_each_epoch_begins_anew() -> None:
    data = numbers(3, repeat=True).scan(total, 0)
    assert [sample["total"] for sample in data.take(7)] == [0, 1, 3, 0, 1, 3, 0]


def test_what_a_function_does_to_its_carry_changes_no_sample_and_no_state() -> None:
    initial: list[int] = [7]
    data = numbers(6).scan(seen, initial)
    initial.append(8)
    with small(2):
        assert [sample["seen"].tolist() for sample in data] == [[7, *range(n + 1)] for n in range(6)]
        assert_exact_resume(lambda: numbers(6, repeat=True).scan(seen, [7]).take(15))
        with data.iter() as it:
            next(it)
            before = json.dumps(it.state_dict())
            next(it)
        assert json.loads(before) != it.state_dict()
        assert [sample["seen"].tolist() for sample in data.iter(json.loads(before))] == [
            [7, *range(n + 1)] for n in range(1, 6)
        ]


def test_blocks_change_nothing() -> None:
    def sizes(carry: Any, sample: dict[str, Any]) -> Any:
        return [*carry[-2:], len(sample["input_ids"])], {"sizes": [*carry, len(sample["input_ids"])]}

    lengths = (3, 0, 5, 1, 2, 2, 7, 4)
    data = [bf.Dataset(Blocks(lengths, cut)).scan(sizes, []) for cut in ((), (1, 0, 2, 3), (1,) * 8)]
    found = [[sample["sizes"].tolist() for sample in each] for each in data]
    assert found == [[[*lengths[max(0, n - 3) : n], lengths[n]] for n in range(8)]] * 3


@pytest.mark.parametrize(
    ("carry", "what"),
    [
        (np.int64(1), "carry must be plain JSON: {} (got a numpy.int64); convert it"),
        ((1, 2), "carry must be plain JSON: {} (got a tuple); convert it"),
        ({"a": [0.5, float("nan")]}, "carry['a'][1] must be plain JSON: {} (got nan); convert it"),
        ({"a": {3: 1}}, "the keys of carry['a'] must be strings (got 3)"),
    ],
)
def test_a_carry_that_no_state_could_hold_is_an_error_at_its_row(tmp_path: Path, carry: Any, what: str) -> None:
    plain = "None, bool, int, finite float, str, or lists and dicts of these"

    def fails(_: Any, sample: dict[str, Any]) -> Any:
        return (carry if sample["x"] == 1 else 0), sample

    with pytest.raises(bf.StageError) as error:
        list(shard(tmp_path, [{"x": 0}, {"x": 1}, {"x": 2}]).scan(fails, 0))
    assert str(error.value) == f"scan(fails) failed at shard a.jsonl, line 2: {what.format(plain)}"
    with pytest.raises(TypeError) as error_at_once:
        numbers(1).scan(total, carry)
    initial = what.format(plain).replace("carry", "initial", 1)
    assert str(error_at_once.value) == f"scan carries plain JSON from row to row: {initial}"


def test_errors_name_the_function_the_file_and_the_line(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"x": 0}, {"x": 1}])

    def fails(carry: Any, sample: dict[str, Any]) -> Any:
        return {0: (0, sample), 1: sample}[sample["x"]]

    def raises(carry: Any, sample: dict[str, Any]) -> Any:
        return 1 // (1 - sample["x"]), sample

    def late(carry: Any, sample: dict[str, Any]) -> Any:
        return 0, {"y": ["a", 1.5][sample["x"]]}

    for fn, message in (
        (fails, "scan(fails) failed at shard a.jsonl, line 2: it must return (carry, sample) (got dict)"),
        (raises, "scan(raises) failed at shard a.jsonl, line 2: ZeroDivisionError: integer division or modulo by zero"),
        (lambda carry, sample: (0, 5), "scan(<lambda>) must return dicts (got int; shard a.jsonl, line 1)"),
        (
            late,
            "scan(late) failed at shard a.jsonl, line 2: column 'y' is string by the schema but double here; return one "
            "type in every sample",
        ),
    ):
        with pytest.raises(bf.StageError) as error:
            list(data.scan(fn, 0))
        assert str(error.value).replace("integer division or modulo", "integer division or modulo") == message


def test_another_initial_carry_is_another_pipeline() -> None:
    it = numbers(3).scan(total, 0).iter()
    next(it)
    with pytest.raises(bf.StateError, match=r"scan\.initial was 0 when it was saved and is 1 here"):
        numbers(3).scan(total, 1).iter(it.state_dict())


def test_the_rows_of_several_streams_have_no_order_to_follow(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n')
    data = bf.from_files(f"{tmp_path}/*.jsonl", streams=2)
    message = "^scan follows the rows of all 2 streams, which are read apart and end apart: read them without streams=$"
    with pytest.raises(ValueError, match=message):
        data.scan(total, 0)
    assert len(list(bf.from_files(f"{tmp_path}/*.jsonl", streams=1).scan(total, 0))) == 2


def test_resume_is_exact_at_every_sample(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"x": number} for number in range(9)])
    with small(2):
        assert_exact_resume(lambda: data.filter(lambda sample: sample["x"] % 3 > 0).scan(total, 0))
