"""Blocks of the right size: small ones joined before they cost more than their rows do, long ones cut."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

import pyarrow as pa

from brimful.blocks.blocks import Block, check_replay, rows_at, visible
from brimful.blocks.ragged import concat, fingerprint, has_offsets, offsets_in
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, running

GATHERED_ROWS: Final = 32
"""A row in a block of so many costs a stage a few times what it costs in one of 4,096; alone, 10 to 100 times as much. With more,
a first sample would wait for all that a user's function makes of them."""


def gathered(stage: Stage[Block], at: State) -> Generator[tuple[Block, State], None, None]:
    """The blocks of `stage` that follow `at`, neighbours joined up to 32 rows or 1 MB; larger ones as they are.

    Where they are joined depends on `at` alone. A block without rows ends what it follows: where rows are rare nobody waits
    for more of them, and states advance. An error is raised after the rows before it.
    """
    most = min(GATHERED_ROWS, BLOCK_ROWS)
    held: list[Block] = []
    rows = size = 0
    state: State = None
    with running(stage, at) as items:
        try:
            for block, after in items:
                count = block.num_rows
                own = sum(map(bytes_in, visible(block).columns)) if 0 < count < most else 0
                full = rows + count > most or size + own > BLOCK_BYTES
                if held and count and (full or not block.schema.equals(held[0].schema)):
                    yield concat(held), state
                    held, rows, size = [], 0, 0
                held.append(block)
                rows, size, state = rows + count, size + own, after
                if not count or rows >= most:
                    yield concat(held), state
                    held, rows, size = [], 0, 0
        except Exception:
            if held:
                yield concat(held), state
            raise
        if held:
            yield concat(held), state


def resized(stage: Stage[Block], at: State) -> Generator[tuple[Block, State], None, None]:
    """As `gathered`, and long blocks cut: the first at 16 rows, later ones at 32, 64 and so on up to 4,096. So a function that is
    slow gives the first row soon.

    Where they are cut depends on how many rows came before. A block is cut only where it has twice as many rows as it may: so
    blocks that a stage below has cut already stay whole.

    State: [upstream's state before the block, rows of it given, its crc32 if there are any, rows given in all].
    """
    before, done, saved, number = at
    with closing(gathered(stage, before)) as items:
        for block, after in items:
            crc = fingerprint(block) if done or block.num_rows > 2 * rows_at(number) else 0
            if done:
                check_replay(stage, crc, saved, f"{done:,} rows into a block")
            while block.num_rows - done > 2 * (rows := rows_at(number)):
                done, number = done + rows, number + rows
                yield block.slice(done - rows, rows), [before, done, crc, number]
            number += block.num_rows - done
            yield block.slice(done) if done else block, END if after == END else [after, 0, 0, number]
            before, done = after, 0
        if done:
            check_replay(stage, 0, saved, "a block that is gone")


def resized_start(stage: Stage[Block], epoch: int) -> State:
    """The state before the first block of an epoch."""
    return [stage.start(epoch), 0, 0, 0]


def bytes_in(array: pa.Array, width: Callable[[pa.DataType], int] = lambda kind: 8) -> int:
    """About how many bytes the rows of a column take, the same wherever they lie in memory: what Arrow says of them (`nbytes`,
    or of a message) goes by what lies beside them too. Those of two blocks take together what they take apart.

    Args:
        width: of a value of a type of fixed width.
    """
    if pa.types.is_primitive(array.type):
        return width(array.type) * len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.StructArray):
        return sum(bytes_in(column, width) for column in array.flatten())
    if isinstance(array, pa.MapArray):
        first, last = offsets_in(array)[[0, -1]]
        return 8 * len(array) + bytes_in(array.keys[first:last], width) + bytes_in(array.items[first:last], width)
    if pa.types.is_nested(array.type):
        return 8 * len(array) + bytes_in(array.flatten(), width)
    if has_offsets(array.type):
        offsets = offsets_in(array)
        return 8 * len(array) + int(offsets[-1] - offsets[0])
    return 8 * len(array)
