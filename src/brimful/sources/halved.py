"""Records of which Arrow refuses some: halved until the bad ones stand alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import concat
from brimful.blocks.schema import block_of
from brimful.sources.reader import Parsed

T = TypeVar("T")


def halved(
    records: Mapping[int, T],
    schema: pa.Schema,
    parse: Callable[[Sequence[T]], Block | None],
    reason: Callable[[T], str],
    known: Mapping[int, str],
) -> Parsed:
    """The rows of records by their numbers, in order, and why others gave none.

    Price: 2 log2(n) calls of `parse` for one bad record among n.

    Args:
        schema: of the rows.
        parse: gives None where it refuses one of the records.
        reason: why a record is refused that stands alone.
        known: why records are bad of which that is known already.
    """
    blocks: list[Block] = []
    errors = dict(known)
    pending = [[number for number in records if number not in errors]]
    while pending:
        part = pending.pop()
        block = parse([records[number] for number in part])
        if block is not None:
            blocks.append(block)
        elif len(part) == 1:
            errors[part[0]] = reason(records[part[0]])
        else:
            pending += [part[len(part) // 2 :], part[: len(part) // 2]]
    good = [number for number in records if number not in errors]
    rows = concat(blocks) if schema.names else block_of([{}] * len(good), schema)
    return Parsed(rows, np.array(good, dtype=np.int64), sorted(errors.items()))
