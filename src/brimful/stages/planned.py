"""Windows of indexed data: lengths now, rows on demand; any window can be computed alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.errors import require
from brimful.plan import Policy
from brimful.sources.sequence import FromSequence
from brimful.stream import END, Stage, State, runtime
from brimful.windows import Window, auto_rows, window_ends

SAMPLE_ROWS: Final = 16_384
"""By whose lengths, evenly spread, "auto" is judged."""


@dataclass(frozen=True)
class Planned(Stage[Window]):
    """Windows of `size` rows of an index (0: what `policy` needs for 1 % padding).

    State: [epoch, number of the window].
    """

    upstream: FromSequence
    size: int
    length_columns: tuple[str, ...] = ()
    lengths_required: bool = False
    policy: Policy | None = runtime(None)

    def __post_init__(self) -> None:
        require("window", self.size, 0, "rows")

    def start(self, epoch: int) -> State:
        return [epoch, 0]

    def items(self, at: State) -> Generator[tuple[Window, State], None, None]:
        epoch, number = at
        index = self.upstream.rows
        count = len(index)
        if not count:
            return
        lengths = index.lengths(self.length_columns, self.lengths_required)
        size = min(self.size or self._resolve(lengths), count)
        order = self.upstream.order(epoch)
        first = number * size
        while first < count:
            last = first + window_ends(count - first, size)
            numbers = order.rows(first, last)
            sizes = np.asarray(lengths[numbers], dtype=np.int64)
            window = Window(epoch, number, sizes, partial(index.locate, numbers))
            number += 1
            yield window, [epoch, number] if last < count else END
            first = last

    def _resolve(self, lengths: NDArray[np.int64]) -> int:
        assert self.policy is not None
        sampled = np.linspace(0, len(lengths) - 1, min(len(lengths), SAMPLE_ROWS)).astype(np.int64)
        return auto_rows(self.policy, np.asarray(lengths[sampled], dtype=np.int64))
