from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf
from tests.samples import ids, shard, tokens


def test_lists_are_filled_to_one_length_by_column() -> None:
    data = tokens([1, 2], [], [3, 4, 5], labels=[[1], [2, 3], []], id=[7, 8, 9]).pad(
        3, {"input_ids": 0, "labels": -100}
    )
    assert ids(data) == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert ids(data, "labels") == [[1, -100, -100], [2, 3, -100], [-100, -100, -100]]
    assert [sample["id"] for sample in data] == [7, 8, 9]


def test_a_type_that_is_too_small_for_the_value_is_widened() -> None:
    kinds = (
        (pa.uint8(), -100, "int32"),
        (pa.int8(), 300, "int32"),
        (pa.uint64(), -1, "int64"),
        (pa.float32(), -1, "float32"),
    )
    for kind, value, wide in kinds:
        data = bf.from_sequence(pa.table({"x": pa.array([[7]], pa.list_(kind))})).pad(2, {"x": value})
        (sample,) = data
        assert sample["x"].tolist() == [7, value]
        assert sample["x"].dtype == wide


def test_a_longer_list_is_an_error_with_its_place(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"input_ids": [1]}, {"input_ids": [1] * 2_000}]).pad(1_024, {"input_ids": 0})
    message = (
        r"^pad: column 'input_ids' has 2,000 values \(shard a\.jsonl, line 2\), more than length=1,024; "
        "chunk, truncate or filter it$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(data)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^length must be at least 1 token \(got 0\)$"):
        tokens([1]).pad(0, {"input_ids": 0})


@pytest.mark.parametrize("value", [None, "", [1], True])
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"values\['input_ids'\] of pad must be a number \(got "):
        tokens([1]).pad(8, {"input_ids": value})


def test_a_value_that_fractions_cannot_hold_is_refused() -> None:
    rows = bf.from_sequence(pa.table({"x": pa.array([[np.float16(7)]], pa.list_(pa.float16()))}))
    with pytest.raises(bf.DataError, match=r"pad: column 'x' holds float16, which cannot hold its value 1000000\.0"):
        list(rows.pad(2, {"x": 1e6}))  # type: ignore[dict-item]
    assert next(iter(rows.pad(2, {"x": float("-inf")})))["x"].tolist() == [7, float("-inf")]  # type: ignore[dict-item]


def test_a_value_that_the_column_cannot_hold_is_refused() -> None:
    with pytest.raises(bf.DataError, match=r"pad: column 'input_ids' holds int64, which cannot hold its value 2\.5"):
        list(tokens([1]).pad(8, {"input_ids": 2.5}))  # type: ignore[dict-item]


def test_a_value_of_more_than_64_bits_is_refused_when_it_is_given() -> None:
    for value in (10**30, -(10**30)):
        with pytest.raises(ValueError, match=r"^values\['input_ids'\] of pad must fit into 64 bits"):
            bf.from_iterable([{"input_ids": [1]}]).pad(8, {"input_ids": value})
