"""Windows of indexed data: lengths now, rows on demand; any window can be computed alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.batching.window import Window, Windowed, auto_rows
from brimful.core.distinct import distinct
from brimful.core.fruitless import passed
from brimful.core.once import once
from brimful.core.stage import END, Stage, State
from brimful.index.index import Index
from brimful.index.indexed import Indexed
from brimful.index.repeat import Repeat
from brimful.index.unmasked import UnmaskedIndex
from brimful.plan.window import window_ends

SAMPLE_ROWS: Final = 16_384
"""By whose lengths "auto" is judged: evenly spread ones of the index, or, where an epoch has other rows, in runs of epoch 0."""
SAMPLE_RUNS: Final = 64


@dataclass(frozen=True)
class Planned(Windowed):
    """Windows of `size` rows of indexed data (0: what `policy` needs for 1 % padding, judged once).

    State: [epoch, number of the window, size].
    """

    upstream: Indexed

    @once
    def over_epochs(self) -> Stage[Window]:
        return replace(self, upstream=Repeat(self.upstream))

    def start(self, epoch: int) -> State:
        return [epoch, 0, self.size or self._judged]

    def items(self, at: State) -> Generator[tuple[Window, State], None, None]:
        epoch, number, size = at
        index, count = self._index, self.upstream.count
        if count == 0:
            return
        rows = self.upstream.order(epoch)
        first = number * size
        while first != count:
            last = first + (size if count is None else window_ends(count - first, size))
            numbers = rows(first, last)
            labels = index.num_labels_at if index.knows_labels else None
            window = Window(
                epoch,
                number,
                self._lengths(numbers),
                numbers,
                index.locate,
                num_labels_at=labels,
                schema=lambda: index.schema,
            )
            number += 1
            if count is None:
                passed(self, (last - at[1] * size) // len(index))
            yield window, END if last == count else [epoch, number, size]
            first = last

    def _lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self._index.lengths_at(numbers, self.length_columns, self.lengths_required)
        return np.asarray(lengths, dtype=np.int64)

    @once
    def _index(self) -> Index:
        return UnmaskedIndex(self.upstream.index, self.unmasked) if self.unmasked else self.upstream.index

    @once
    def _judged(self) -> int:
        """The size that `policy` needs."""
        assert self.policy is not None
        rows, count = self.upstream.unshuffled()
        if not count:
            return 1
        if count == len(self.upstream.index):
            numbers = np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(np.int64)
        else:
            run = -(-min(count, SAMPLE_ROWS) // SAMPLE_RUNS)
            starts = distinct(np.linspace(0, count - run, SAMPLE_RUNS).astype(np.int64)).tolist()
            numbers = np.concatenate([rows(start, start + run) for start in starts])
        return auto_rows(self.policy, self._lengths(numbers), self.batches)
