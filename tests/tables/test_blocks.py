"""Blocks as samples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from brimful.tables.blocks import samples


def test_arrays_whose_values_begin_at_an_offset_are_those_of_their_rows() -> None:
    values = pa.array(np.arange(20, dtype=np.float32)).slice(8, 8)
    storage = pa.FixedSizeListArray.from_arrays(values, 4)
    block = pa.record_batch({"a": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (2, 2)), storage)})
    found = [sample["a"] for sample in samples(block)]
    assert [one.tolist() for one in found] == [[[8, 9], [10, 11]], [[12, 13], [14, 15]]]
    found[0][0, 0] = 1  # the caller may write to it


def test_a_row_is_of_one_type_whatever_its_neighbours_lack() -> None:
    ids = pa.array([[1, 2], None, [3, None]], pa.list_(pa.uint16()))
    for rows in (ids, ids.slice(0, 1)):
        assert samples(pa.record_batch({"input_ids": rows}))[0]["input_ids"].dtype == np.int32
