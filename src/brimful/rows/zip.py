"""Several data sets side by side."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from brimful.core.counters import Counts, add_counts, apart
from brimful.core.stage import BLOCK_ROWS, END, Stage, State, refuse_streams
from brimful.tables.blocks import Block, visible
from brimful.tables.ragged import EMPTY
from brimful.tables.resize import Cursor
from brimful.tables.several import beside, require_distinct, unequal

COUNTED: Final = 1_000_000
"""Rows that are read beyond the end of the shortest, to say how many the others have."""


@dataclass(frozen=True)
class Zip(Stage[Block]):
    """Row i has the columns of row i of each; all must have equally many, which is known when the first of them ends.

    State: [rows handed on, [state before its block, rows of the block taken, the block's rows and their checksums] of each].
    """

    verb = "zip_datasets"

    upstreams: tuple[Stage[Block], ...]

    def __post_init__(self) -> None:
        for upstream in self.upstreams:
            refuse_streams(upstream, "zip_datasets", "pairs")

    def start(self, epoch: int) -> State:
        return [0, [[upstream.start(epoch), 0, 0, []] for upstream in self.upstreams]]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        done, states = at
        with ExitStack() as stack:
            own = (Cursor(upstream, *state) for upstream, state in zip(self.upstreams, states, strict=True))
            cursors = [stack.enter_context(closing(cursor)) for cursor in own]
            rows = self._at_hand(cursors, done)
            if not rows:
                yield EMPTY, END
            while rows:
                require_distinct([visible(cursor.rest).schema for cursor in cursors])
                block = beside([cursor.take(rows) for cursor in cursors])
                done += rows
                state = [done, [cursor.state for cursor in cursors]]
                failure: Exception | None = None
                left_out: Counts = {}
                try:
                    rows, left_out = apart(self._at_hand, cursors, done)
                except Exception as error:  # raised once the rows before it are out
                    failure = error
                if not rows:  # nothing will be asked for after the last block
                    add_counts(left_out)
                yield block, state if rows or failure else END
                if rows:
                    add_counts(left_out)
                if failure is not None:
                    raise failure

    def _at_hand(self, cursors: Sequence[Cursor], done: int) -> int:
        """How many rows all of them have at hand; 0 where all have ended.

        Raises:
            DataError: one has ended and another has not.
        """
        rows = [cursor.fill() for cursor in cursors]
        if 0 in rows and any(rows):
            ended, longer = rows.index(0), next(number for number, count in enumerate(rows) if count)
            raise unequal(ended, f"{done:,} rows", longer, _counted(cursors[longer], done))
        return min(BLOCK_ROWS, *rows)


def _counted(cursor: Cursor, done: int) -> str:
    """How many rows a data set has, of which some are done, as far as that is soon known."""
    count = done
    while rows := cursor.fill():
        count += rows
        cursor.take(rows)
        if count - done > COUNTED:
            return f"more than {count:,} rows"
    return f"{count:,} rows"
