"""A column of each type that Arrow has, read in part: prints the states, from which another process goes on.

python -m tests.sources.types_child FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import brimful as bf

NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
ROWS = len(NUMBERS)


def _columns() -> Iterator[tuple[str, pa.Array]]:
    flags = [number % 2 == 0 for number in NUMBERS]
    texts = [str(number) * number for number in NUMBERS]
    for kind in (pa.int8(), pa.int64(), pa.uint16(), pa.float16(), pa.float32(), pa.float64()):
        yield str(kind), pa.array(NUMBERS, pa.int8()).cast(kind)
    yield "bool", pa.array(flags)
    yield "null", pa.nulls(ROWS)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield str(kind), pa.array(texts, kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield str(kind), pa.array([text.encode() for text in texts], kind)
    yield "binary[4]", pa.array([bytes([number] * 4) for number in NUMBERS], pa.binary(4))
    for kind in (pa.decimal32(5, 1), pa.decimal64(9, 1), pa.decimal128(20, 1), pa.decimal256(50, 1)):
        yield str(kind), pa.array([Decimal(number) for number in NUMBERS], kind)
    for kind in (pa.date32(), pa.date64()):
        yield str(kind), pa.array([date(2020, 1, number) for number in NUMBERS], kind)
    for unit in ("s", "ms", "us", "ns"):
        small = unit in ("s", "ms")
        clock = pa.time32(unit) if small else pa.time64(unit)
        yield str(clock), pa.array([time(number, 30) for number in NUMBERS], clock)
        yield f"duration {unit}", pa.array([timedelta(number) for number in NUMBERS], pa.duration(unit))
        for zone in (None, "Europe/Berlin"):
            instants = [datetime(2020, 1, number) for number in NUMBERS]
            yield f"timestamp {unit} {zone}", pa.array(instants, pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
    intervals = [pa.scalar((number, 2, 3), pa.month_day_nano_interval()) for number in NUMBERS]
    yield "interval", pa.array(intervals, pa.month_day_nano_interval())
    yield "map", pa.array([[("a", number)] for number in NUMBERS], pa.map_(pa.string(), pa.int64()))
    yield "dictionary", pa.array(texts).dictionary_encode()
    yield "runs", pc.run_end_encode(pa.array(sorted(NUMBERS)))
    yield "runs of text", pc.run_end_encode(pa.array(sorted(texts)))
    for values in (pa.array(texts).dictionary_encode(), pa.array(texts, pa.string_view()), pa.array([[1]] * ROWS)):
        yield f"runs of {values.type}", pa.RunEndEncodedArray.from_arrays(range(1, ROWS + 1), values)
    yield "bool8", pa.ExtensionArray.from_storage(pa.bool8(), pa.array(flags).cast(pa.int8()))
    uuids = pa.array([bytes([number] * 16) for number in NUMBERS], pa.binary(16))
    yield "uuid", pa.ExtensionArray.from_storage(pa.uuid(), uuids)
    yield "json", pa.ExtensionArray.from_storage(pa.json_(), pa.array(list(map(str, NUMBERS))))
    yield "opaque", pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "a", "b"), pa.array(NUMBERS))
    pairs = pa.array([[number, 0] for number in NUMBERS], pa.list_(pa.int32(), 2))
    yield "array", pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2,)), pairs)


def tables() -> dict[str, pa.Table]:
    """All types: by themselves, in lists of four kinds, and in structs of which some are null."""
    found = dict(_columns())
    offsets = [*range(ROWS), ROWS]
    null = pa.array([row % 4 == 1 for row in range(ROWS)])
    nested = {
        "plain": lambda array: array,
        "list": lambda array: pa.ListArray.from_arrays(offsets, array),
        "large list": lambda array: pa.LargeListArray.from_arrays(offsets, array),
        "view": lambda array: pa.ListViewArray.from_arrays(offsets[:-1], [1] * ROWS, array),
        "fixed size": lambda array: pa.FixedSizeListArray.from_arrays(array, 1),
        "struct": lambda array: pa.StructArray.from_arrays([array], ["a"], mask=null),
    }
    return {
        how: pa.table({name: nest(array) for name, array in found.items()}).append_column("id", pa.array(range(ROWS)))
        for how, nest in nested.items()
    }


def pipelines(folder: Path, table: pa.Table, name: str) -> Iterator[bf.Dataset]:
    """What keeps a checksum of rows: an index in memory, and a window of rows read from a file."""
    yield bf.from_sequence(table, shuffle=True)
    path = folder / f"{name}.arrow"
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    yield bf.from_files(path).shuffle(4)


def main(folder: Path) -> None:
    states: dict[str, list[Any]] = {}
    for name, table in tables().items():
        states[name] = []
        for data in pipelines(folder, table, name):
            it = data.iter()
            list(islice(it, 6))
            states[name].append(it.state_dict())
    print(json.dumps(states))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
