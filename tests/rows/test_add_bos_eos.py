from __future__ import annotations

import pyarrow as pa
import pytest

import brimful as bf
from tests.samples import ids, tokens


def test_a_token_is_put_before_and_one_after_each_sample() -> None:
    data = tokens([5, 6], [], [7], id=[1, 2, 3])
    assert ids(data.add_bos_eos(1, 2)) == [[1, 5, 6, 2], [1, 2], [1, 7, 2]]
    assert ids(data.add_bos_eos(1, None)) == [[1, 5, 6], [1], [1, 7]]
    assert ids(data.add_bos_eos(None, 2)) == [[5, 6, 2], [2], [7, 2]]
    assert ids(data.add_bos_eos(None, None)) == [[5, 6], [], [7]]
    assert [sample["id"] for sample in data.add_bos_eos(1, 2)] == [1, 2, 3]


def test_another_column_may_be_meant() -> None:
    data = tokens([5], labels=[[6]]).add_bos_eos(1, 2, target_column="labels")
    assert (ids(data), ids(data, "labels")) == ([[5]], [[1, 6, 2]])


def test_a_type_that_is_too_small_for_the_token_is_widened() -> None:
    for kind, wide in ((pa.uint8(), "int32"), (pa.uint16(), "int32"), (pa.int8(), "int32"), (pa.int64(), "int64")):
        data = bf.from_sequence(pa.table({"input_ids": pa.array([[7]], pa.list_(kind))})).add_bos_eos(None, 300)
        (sample,) = data
        assert (sample["input_ids"].tolist(), sample["input_ids"].dtype) == ([7, 300], wide)


def test_a_column_that_is_not_there_is_an_error() -> None:
    with pytest.raises(bf.DataError, match=r"^there is no column 'labels' \(columns: input_ids; sequence, row 0\)$"):
        list(tokens([5]).add_bos_eos(1, 2, target_column="labels"))
