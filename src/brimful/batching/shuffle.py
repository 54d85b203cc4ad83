"""Shuffle: a window whose plan is one permutation."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

from brimful.batching.window import PlanningWindow
from brimful.batching.windows import Buffered, replayed_windows
from brimful.core.ahead import Ahead
from brimful.core.facts import Facts, following, rng_slot
from brimful.core.run import Run
from brimful.core.stage import BLOCK_ROWS, END, Stage, State
from brimful.plan import random
from brimful.plan.errors import check_count
from brimful.plan.once import once
from brimful.plan.units import permuted
from brimful.tables.blocks import Block
from brimful.tables.ragged import EMPTY


@dataclass(frozen=True)
class Shuffle(Stage[Block]):
    """The rows of each window of `buffer_size` in a random order, the next window read ahead of use; units move as a whole.

    State: see `replayed_windows`, in rows. A state between the samples of a first block has the checksums of all of the window.
    """

    upstream: Stage[Block]
    buffer_size: int
    seed: int

    def __post_init__(self) -> None:
        check_count(self, "buffer_size", 1, "sample")
        check_count(self, "seed", None)

    def facts(self, *inputs: Facts) -> Facts:
        mixed_by = "shuffle moves each row by itself. Call units before it, which moves whole units then"
        return following(self, *inputs, draws=inputs[0].draws + 1, cut_by_time=False, mixed_by=mixed_by)

    def for_stream(self, number: int, count: int) -> Shuffle:
        return replace(self, seed=random.key(self.seed, number))

    @once
    def windows(self) -> Stage[PlanningWindow]:
        return Ahead(Buffered(self.upstream, self.buffer_size), 1, "window")

    def start(self, epoch: int) -> State:
        return {"windows": self.windows.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        here = rng_slot(self)

        with closing(replayed_windows(self.windows, at, run)) as windows:
            for window, done, inside, after, is_new in windows:
                if is_new and len(window) > BLOCK_ROWS:
                    yield EMPTY, inside
                order = permuted(window.units, len(window), random.key(self.seed, here, window.epoch, window.number))
                for first in range(done, len(window), BLOCK_ROWS):
                    end = first + BLOCK_ROWS
                    left = {**inside, "done": end} if end < len(window) else None
                    yield window.take(order[first:end]), left or (END if after == END else {"windows": after})
