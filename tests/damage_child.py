"""Reads many damaged files, in a process of its own so that a crash of it is a failure.

    python -m tests.damage_child FORMAT FIRST COUNT FILE ...
    python -m tests.damage_child store FIRST COUNT FOLDER

Prints what went wrong; each file is read again and again, damaged in another way each time.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import brimful as bf
from brimful.core.counters import OnError, count, with_counters
from brimful.plan.errors import DataError
from brimful.sources.bytes import LocalFile
from brimful.sources.format import ReadRequest
from brimful.sources.formats import FORMATS

MOST = 100_000
"""Rows, more than which a file cannot have got by damage."""


def flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 1, 2, 8])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def flip_near_the_end(data: bytearray, draw: random.Random) -> None:
    data[len(data) - 1 - draw.randrange(min(700, len(data)))] ^= 1 << draw.randrange(8)


def flip_near_the_start(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(min(700, len(data)))] ^= 1 << draw.randrange(8)


def overwrite(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data))
    size = draw.choice([1, 4, 8, 64])
    data[place : place + size] = draw.choice([bytes(size), b"\xff" * size, draw.randbytes(size)])


def cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def leave_out(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data))
    del data[place : place + draw.choice([1, 8, 64, 4096])]


def repeat(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data))
    data[place:place] = data[place : place + draw.choice([1, 8, 64, 4096])]


def garbage(data: bytearray, draw: random.Random) -> None:
    data[4:-4] = draw.randbytes(draw.randrange(500))


DAMAGE: list[Callable[[bytearray, random.Random], None]] = [
    flip, flip, flip, flip_near_the_end, flip_near_the_end, flip_near_the_start, overwrite, cut, leave_out, repeat, garbage,
]  # fmt: skip


def read(form: str, path: Path, schema: pa.Schema, on_error: OnError) -> int:
    """How many rows come of a file."""
    columns = schema.names[:2] if len(schema) > 2 and path.stat().st_size % 2 else None
    schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    request = ReadRequest(path.name, FORMATS[form].unit, FORMATS[form].start, schema, columns is None, on_error)
    reader = FORMATS[form].open(LocalFile(str(path)), request)
    rows = 0
    try:
        while (more := reader.read()) is not None:
            count("skipped", int(more.skipped.sum()))
            assert more.block.num_rows == len(more.positions) or not more.block.num_rows
            rows += more.block.num_rows
            assert rows < MOST, "it does not end"
    finally:
        reader.close()
    return rows


def problem(form: str, path: Path, schema: pa.Schema, whole: int) -> str | None:
    """What is wrong with how a damaged file is read."""
    rows, counts = with_counters(read, form, path, schema, "skip")
    if not counts and rows < whole:
        return f"{rows} rows of {whole}, and no word"
    if not counts:
        return None
    try:
        read(form, path, schema, "raise")
    except DataError as error:
        return None if str(error).startswith(f"shard {path.name}, row ") else f"no place: {error}"
    return f"{counts} were skipped, of which nothing is said"


def read_stores(folder: Path, cases: range) -> None:
    """A store whose first file holds other bits. It is as long as it was: each file's size stands in the manifest."""
    path = folder / "00000.arrow"
    data = path.read_bytes()
    for case in cases:
        print(f"\r{case}", end="", file=sys.stderr, flush=True)
        draw = random.Random(case)
        damaged = bytearray(data)
        draw.choice([flip, flip_near_the_end, flip_near_the_start])(damaged, draw)
        path.write_bytes(damaged)
        try:
            list(bf.from_store(folder))
            list(bf.from_store(folder, shuffle=True).batch(8))
        except DataError:
            pass
        except Exception as error:
            print(f"{case}: {type(error).__name__}: {error}")


def main() -> None:
    logging.disable()
    form, first, count, *names = sys.argv[1:]
    if form == "store":
        return read_stores(Path(names[0]), range(int(first), int(first) + int(count)))
    originals = []
    for name in names:
        with LocalFile(name) as file:
            schema = FORMATS[form].infer(file, None, name, "skip")
        assert schema is not None
        originals.append((Path(name).read_bytes(), schema, read(form, Path(name), schema, "raise")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged")
        for case in range(int(first), int(first) + int(count)):
            print(f"\r{case}", end="", file=sys.stderr, flush=True)  # the last words of one that crashes
            draw = random.Random(case)
            data, schema, whole = originals[case % len(originals)]
            damaged = bytearray(data)
            draw.choice(DAMAGE)(damaged, draw)
            path.write_bytes(damaged)
            try:
                words = problem(form, path, schema, whole)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
            if words is not None:
                print(f"{case} ({names[case % len(names)]}): {words}")


if __name__ == "__main__":
    main()
