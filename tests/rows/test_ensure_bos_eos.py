from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import brimful as bf


@dataclass(frozen=True)
class Ends:
    """What is asked of a tokenizer."""

    bos_token_id: int | None
    eos_token_id: int | None


def ensured(tokenizer: Any, *rows: list[int]) -> list[list[int]]:
    data = bf.from_sequence([{"input_ids": np.array(row, dtype=np.int32)} for row in rows]).ensure_bos_eos(tokenizer)
    found = [sample["input_ids"].tolist() for sample in data]
    assert [sample["input_ids"].tolist() for sample in data.ensure_bos_eos(tokenizer)] == found
    return found


def test_the_ends_of_each_sample_are_looked_at() -> None:
    rows = [[0, 2, 1], [2], [], [0, 2], [2, 1], [0], [1], [1, 0], [0, 0, 1, 1]]
    assert ensured(Ends(0, 1), *rows) == [
        [0, 2, 1], [0, 2, 1], [0, 1], [0, 2, 1], [0, 2, 1], [0, 1], [0, 1], [0, 1, 0, 1], [0, 0, 1, 1]
    ]  # fmt: skip
    assert ensured(Ends(0, None), *rows[:4]) == [[0, 2, 1], [0, 2], [0], [0, 2]]
    assert ensured(Ends(None, 1), *rows[:4]) == [[0, 2, 1], [2, 1], [1], [0, 2, 1]]


def test_where_both_are_one_id_one_eos_is_added_and_never_a_second() -> None:
    assert ensured(Ends(0, 0), [2], [0, 2], [2, 0], [], [0], [0, 2, 0]) == [[2, 0], [0, 2], [2, 0], [0], [0], [0, 2, 0]]


def test_the_type_does_not_depend_on_what_the_samples_lack() -> None:
    for row in ([7], []):
        data = bf.from_sequence(pa.table({"input_ids": pa.array([row], pa.list_(pa.uint8()))}))
        (sample,) = data.ensure_bos_eos(Ends(None, 300))
        assert (sample["input_ids"].tolist(), sample["input_ids"].dtype) == ([*row, 300], np.int32)
