"""Neighbouring rows with one key, which stay together."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np

from brimful.core.facts import Facts, Together, Within, facts_of, following
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.plan.errors import DataError, one_of
from brimful.rows.buffer import ReplayBuffer
from brimful.tables.blocks import UNIT, Block
from brimful.tables.origins import where
from brimful.tables.ragged import array_of, with_column
from brimful.tables.units import EPOCH_BITS, MOST_IN_UNIT, begins_unit, key_hashes, too_long, unit_numbers


def together(stage: Stage[Any], key: Any, within: Any) -> Together:
    """What `units` says of a chain.

    Raises:
        TypeError: the key is no name of a column.
        ValueError: rows were moved away from their neighbours before.
    """
    if not isinstance(key, str):
        raise TypeError(f"units takes the name of a column, such as 'prompt_id' (got {key!r})")
    one_of("within", within, *get_args(Within))
    if (own := facts_of(stage).units) is not None:
        raise ValueError(
            f"units({key!r}) may part samples that {own} keeps together: call units once, and leave keep_together out"
        )
    if mixed_by := facts_of(stage).mixed_by:
        raise ValueError(f"units({key!r}) keeps neighbours together, and they no longer are neighbours: {mixed_by}")
    return Together(key, within)


@dataclass(frozen=True)
class Units(Stage[Block]):
    """The same rows, each with the number of its unit. Neighbours with one value of the column `key` are a unit, up to the end of
    the epoch, of each stream for itself.

    State: {"epoch", "rows": upstream's, "number": units so far, "key": a hash of the last key, "samples": rows of its unit}.
    """

    upstream: Stage[Block]
    key: str
    within: Within

    def __post_init__(self) -> None:
        together(self.upstream, self.key, self.within)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, units=Together(self.key, self.within), carries=False)

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "rows": self.upstream.start(epoch), "number": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, number, last, samples = at["epoch"], at["number"], at.get("key"), at.get("samples", 0)
        with running(self.upstream, at["rows"], run) as items:
            for block, after in items:
                if block.num_rows:
                    hashes = key_hashes(block, self.key)
                    begins = np.concatenate([[int(hashes[0]) != last], hashes[1:] != hashes[:-1]])
                    starts = np.flatnonzero(begins)
                    lengths = np.diff(starts, append=block.num_rows)
                    lasts = int(lengths[-1]) if len(starts) else samples + block.num_rows
                    head = samples + int(starts[0] if len(starts) else block.num_rows)
                    if max(head, lasts, int(lengths.max(initial=0))) > MOST_IN_UNIT:
                        raise too_long(self.key, where(block, block.num_rows - 1))
                    numbers = number + np.cumsum(begins)
                    number, last, samples = int(numbers[-1]), int(hashes[-1]), lasts
                    block = with_column(block, UNIT, array_of((epoch << EPOCH_BITS) + numbers))
                named = {"number": number, **({} if last is None else {"key": last, "samples": samples})}
                yield block, END if after == END else {"epoch": epoch, "rows": after, **named}


NO_UNIT: Final = -1


def last_unit(block: Block) -> int:
    """The number of the unit of the last row of a block, which has one."""
    return int(unit_numbers(block.slice(block.num_rows - 1))[0])


def next_unit(rest: Block, items: Iterator[tuple[Block, State]]) -> int:
    """The number of the unit of the next row, of those of a block that are left and of the blocks after it; -1 at the end."""
    while not rest.num_rows:
        if (item := next(items, None)) is None:
            return NO_UNIT
        rest = item[0]
    return int(unit_numbers(rest.slice(0, 1))[0])


def parts_unit(stage: Stage[Any], verb: str, place: str, remedy: str = "Take or skip whole units") -> DataError:
    """The error for a verb that ends, or begins, inside a unit.

    Args:
        verb: with its number.
        place: of the row there.
    """
    units = facts_of(stage).units
    assert units is not None
    return DataError(f"{verb} parts a unit of {units.key!r} at {place}: the rows on both sides have one key. {remedy}")


def fill_units(held: ReplayBuffer, rows: int) -> int:
    """Reads on until `rows` rows are held, and the first row of the next unit after them, or the end; how many rows are in whole
    units: at least `rows`, or all."""
    while held.fill(rows + 1) > rows:
        numbers = held_units(held)
        after = np.flatnonzero(begins_unit(numbers)[rows:])
        if len(after):
            return rows + int(after[0])
        rows = held.rows
    return held.rows


def held_units(held: ReplayBuffer) -> Any:
    """The number of the unit of each row that is held, int64 (n,)."""
    return np.concatenate([np.zeros(0, np.int64), *map(unit_numbers, held.blocks)])
