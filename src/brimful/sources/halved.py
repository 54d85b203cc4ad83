"""Records of which Arrow refuses some: halved until the bad ones stand alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from brimful.rows.blocks import Block

T = TypeVar("T")


def halved(
    records: Mapping[int, T],
    parse: Callable[[Sequence[T]], Block | None],
    reason: Callable[[T], str],
) -> tuple[list[Block], dict[int, str]]:
    """The rows of records by their numbers, in order, and why others gave none.

    Price: 2 log2(n) calls of `parse` for one bad record among n.

    Args:
        parse: gives None where it refuses one of the records.
        reason: why a record is refused that stands alone.
    """
    blocks: list[Block] = []
    errors: dict[int, str] = {}
    pending = [list(records)]
    while pending:
        part = pending.pop()
        block = parse([records[number] for number in part])
        if block is not None:
            blocks.append(block)
        elif len(part) == 1:
            errors[part[0]] = reason(records[part[0]])
        else:
            pending += [part[len(part) // 2 :], part[: len(part) // 2]]
    return blocks, errors
