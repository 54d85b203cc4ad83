"""Stages that go by how many rows came before."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from brimful.core.counters import apart
from brimful.core.facts import Facts, columns_by, facts_of, following, refuse_streams, refuse_units, rng_slot
from brimful.core.repeat import awaited, passing
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.plan import random
from brimful.plan.errors import check_count, column_name, integer
from brimful.rows.units import NO_UNIT, last_unit, next_unit, parts_unit
from brimful.tables.blocks import KEY, Block
from brimful.tables.origins import where
from brimful.tables.ragged import array_of, with_column


@dataclass(frozen=True)
class Take(Stage[Block]):
    """The first `n` rows. State: {"rows": upstream's, "taken"}.

    Raises:
        DataError: (when run) the last of them and the row after it are of one unit, for which that row is read too.
    """

    upstream: Stage[Block]
    n: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "take")
        check_count(self, "n", 0, "samples")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, ends=lambda: True, carries=False)

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch), "taken": 0} if self.n else END

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        before, taken = at["rows"], at["taken"]
        with running(self.upstream, before, run) as items:
            for whole, after in items:
                block = whole.slice(0, self.n - taken)
                taken += block.num_rows
                if taken == self.n and block.num_rows and facts_of(self).units is not None:
                    unit, _ = apart(next_unit, whole.slice(block.num_rows), items)
                    if unit == last_unit(block):
                        raise parts_unit(self, f"take({self.n:,})", where(block, block.num_rows - 1))
                yield block, END if taken == self.n or after == END else {"rows": after, "taken": taken}
                if taken == self.n:
                    return


@dataclass(frozen=True)
class Skip(Stage[Block]):
    """The rows after the first `n`, which are read and left out.

    State: {"rows": upstream's, "left": rows still to skip}, and "unit", that of the last one, where a row must be in another one.
    Until the first row comes out, it is kept from those who count the
    epochs that repeating data have come to (`passing`): these go by, and are no empty ones.
    """

    upstream: Stage[Block]
    n: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "skip")
        check_count(self, "n", 0, "samples")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, carries=False)

    def start(self, epoch: int) -> State:
        return passing({"rows": self.upstream.start(epoch), "left": self.n})

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        left, unit = at["left"], at.get("unit", NO_UNIT)
        keeps = facts_of(self).units is not None
        with awaited(self.upstream, at["rows"], run) as items:
            for block, after in items:
                rest, skipped = block.slice(left), block.slice(0, left)
                left -= skipped.num_rows
                if keeps and skipped.num_rows:
                    unit = last_unit(skipped)
                if keeps and rest.num_rows and unit != NO_UNIT:
                    if next_unit(rest, iter(())) == unit:
                        raise parts_unit(self, f"skip({self.n:,})", where(rest, 0))
                    unit = NO_UNIT
                named = {} if unit == NO_UNIT else {"unit": unit}
                state = END if after == END else {"rows": after, "left": left, **named}
                yield rest, passing(state) if left else state


@dataclass(frozen=True)
class Stride(Stage[Block]):
    """Row i where i mod `interval` == `offset`.

    State: {"rows": upstream's, "phase": i of the next row mod `interval`}. After blocks of which no row is kept, it is kept from
    those who count the epochs that repeating data have come to (`passing`): these go by, and are no empty ones.
    """

    upstream: Stage[Block]
    interval: int
    offset: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "stride")
        refuse_units(self.upstream, "stride", "takes rows one by one")
        interval, offset = checked(self.interval, self.offset)
        object.__setattr__(self, "interval", interval)
        object.__setattr__(self, "offset", offset)

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, carries=False)

    def start(self, epoch: int) -> State:
        return passing({"rows": self.upstream.start(epoch), "phase": 0})

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        phase = at["phase"]
        with awaited(self.upstream, at["rows"], run) as items:
            for block, after in items:
                rows = np.arange((self.offset - phase) % self.interval, block.num_rows, self.interval)
                phase = (phase + block.num_rows) % self.interval
                state = END if after == END else {"rows": after, "phase": phase}
                yield block.take(array_of(rows)) if block.num_rows else block, state if len(rows) else passing(state)


def checked(interval: int, offset: int) -> tuple[int, int]:
    """The settings of `stride`, as ints of Python's.

    Raises:
        ValueError: no sample has this offset.
    """
    interval, offset = integer("interval", interval, 1), integer("offset", offset, None)
    if not 0 <= offset < interval:
        raise ValueError(f"offset must be at least 0 and below interval={interval:,} (got {offset:,})")
    return interval, offset


@dataclass(frozen=True)
class Enumerate(Stage[Block]):
    """Adds a count from 0. State: {"rows": upstream's, "number": the next}."""

    upstream: Stage[Block]
    count_column: str

    def __post_init__(self) -> None:
        column_name("count_column", self.count_column)
        refuse_streams(self.upstream, "enumerate")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, schema=columns_by(inputs[0], self._columns_of), carries=False)

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch), "number": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        number = at["number"]
        with running(self.upstream, at["rows"], run) as items:
            for block, after in items:
                numbers = np.arange(number, number + block.num_rows, dtype=np.int64)
                number += block.num_rows
                if block.num_rows:
                    block = with_column(block, self.count_column, array_of(numbers))
                yield block, END if after == END else {"rows": after, "number": number}

    def _columns_of(self, below: pa.Schema) -> pa.Schema:
        return pa.schema([*(one for one in below if one.name != self.count_column), (self.count_column, pa.int64())])


@dataclass(frozen=True)
class RowKeys(Stage[Block]):
    """Adds a hidden column of random 64-bit keys. State: {"epoch", "rows": upstream's, "number": the next row's}."""

    verb = ""

    upstream: Stage[Block]
    seed: int

    def __post_init__(self) -> None:
        check_count(self, "seed", None)

    def facts(self, *inputs: Facts) -> Facts:
        streamed_by, draws = inputs[0].streamed_by or "seed", inputs[0].draws + 1
        return following(self, *inputs, streamed_by=streamed_by, draws=draws, seam="passes")

    def for_stream(self, number: int, count: int) -> RowKeys:
        return replace(self, seed=random.key(self.seed, number))

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "rows": self.upstream.start(epoch), "number": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, number = at["epoch"], at["number"]
        key = random.key(self.seed, rng_slot(self), epoch)
        with running(self.upstream, at["rows"], run) as items:
            for block, after in items:
                if block.num_rows:
                    keys = random.hashes(key, block.num_rows, first=number)
                    block = with_column(block, KEY, array_of(keys))
                number += block.num_rows
                yield block, END if after == END else {"epoch": epoch, "rows": after, "number": number}
