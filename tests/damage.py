"""What is damaged at random, and what reading it led to."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pyarrow as pa

from brimful.core.counters import OnError, count, with_counters
from brimful.plan.errors import DataError
from brimful.sources.format import Format, Position, ReadRequest
from brimful.tables.blocks import visible
from tests.shards import Memory


def damaged(data: bytes, rng: random.Random, garbage: bytes) -> bytes:
    """One to three of: bytes flipped, overwritten, cut out, inserted, said twice; the end cut off. `garbage`: what is put in,
    if nothing at random."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice([1, 1, 2, 5, 40]))
        new = bytes(rng.choice(garbage) if rng.random() < 0.6 else rng.randrange(256) for _ in range(end - start))
        match rng.randrange(6):
            case 0:
                data = data[:start] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[start:end]) + data[end:]
            case 1:
                data = data[:start] + new + data[end:]
            case 2:
                data = data[:start] + data[end:]
            case 3:
                data = data[:start] + new + data[start:]
            case 4:
                data = data[:end] + data[start:]
            case 5:
                data = data[:start]
    return data


class Outcome(NamedTuple):
    """Rows, the position after each, how many records were skipped, and the error that ended it."""

    rows: list[dict[str, Any]]
    positions: list[Position]
    skipped: int
    error: str | None


def outcome(
    form: Format,
    data: bytes,
    schema: pa.Schema,
    on_error: OnError = "skip",
    at: Position | None = None,
    closed: bool = True,
    forward_only: bool = False,
) -> Outcome:
    """What reading a shard `x` of these bytes leads to."""
    request = ReadRequest("x", form.unit, form.start if at is None else at, schema, closed, on_error)
    reader = form.open(Memory(data, forward_only), request)
    rows: list[dict[str, Any]] = []
    positions: list[Position] = []

    def read() -> str | None:
        try:
            while (more := reader.read()) is not None:
                count("skipped", int(more.skipped.sum()))
                rows.extend(visible(more.block).to_pylist() if more.block.num_rows else [])
                positions.extend(tuple(position) for position in more.positions.tolist())
        except DataError as error:
            return str(error)
        return None

    error, counts = with_counters(read)
    return Outcome(rows, positions, counts.get("skipped", (0, None))[0], error)
