"""Types as plain JSON, as a state has them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from brimful.tables.arrays import RaggedArrayType
from brimful.tables.schema import as_json, from_json

NAMED = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("ms"), pa.month_day_nano_interval(),
    pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"),
    pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(30, 4), pa.decimal256(60, -2),
    pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.float32(), 3), pa.list_(pa.field("item", pa.int64(), False)),
    pa.struct([("z", pa.int64()), ("a", pa.list_(pa.struct([("b", pa.string())])))]), pa.struct([]),
    pa.struct([pa.field("a", pa.int64(), nullable=False)]), pa.map_(pa.string(), pa.list_(pa.int8())),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64(), ordered=True),
    pa.fixed_shape_tensor(pa.uint8(), (2, 3)), RaggedArrayType(pa.uint8(), (None, None, 3)),
    pa.list_(pa.field("element", pa.int64())),
]  # fmt: skip
OF_ARROW = [
    pa.list_view(pa.int8()), pa.large_list_view(pa.int8()), pa.run_end_encoded(pa.int32(), pa.string()),
    pa.map_(pa.string(), pa.int64(), keys_sorted=True), pa.fixed_shape_tensor(pa.int8(), (2, 3), dim_names=["y", "x"]),
    pa.struct([pa.field("a", pa.uuid()), pa.field("a", pa.int8())]), pa.json_(), pa.bool8(),
    RaggedArrayType(pa.int8(), (None, None), large=True),
    pa.dense_union([pa.field("a", pa.int8())]),
]  # fmt: skip


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


@pytest.mark.parametrize("kind", [*NAMED, *OF_ARROW], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_every_type_comes_back(kind: pa.DataType, nullable: bool) -> None:
    for inside in (kind, pa.list_(kind), pa.struct([("id", pa.int64()), ("x", kind)])):
        schema = pa.schema([pa.field("x", inside, nullable or inside == pa.null()), pa.field("a", pa.int8())])
        back = from_json(through_json(as_json(schema)))
        assert back.equals(schema), f"{back} is not {schema}"
        assert [field.nullable for field in back] == [field.nullable for field in schema]


@pytest.mark.parametrize("kind", NAMED, ids=str)
def test_a_common_type_has_a_name(kind: pa.DataType) -> None:
    assert "arrow" not in json.dumps(as_json(pa.schema([("x", kind)])))


def test_metadata_of_a_file_are_no_part_of_a_type() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "1"})], metadata={"pandas": "{}"})
    assert as_json(schema) == [["x", "int64"]]
    assert from_json(as_json(schema)).equals(schema)


def test_no_columns_and_one_name_twice_come_back() -> None:
    for schema in (pa.schema([]), pa.schema([("x", pa.int8()), ("x", pa.string())])):
        assert from_json(through_json(as_json(schema))).equals(schema)
