"""A window: samples to plan over. Their lengths are known now; their rows are where `locate` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.plan import Policy, window_rows
from brimful.ragged import Ragged, ragged
from brimful.rows import Block

Uneven = Literal["pad", "drop", "wrap", "error"]
"""What ranks do in a step for which there are too few batches: a filler, no step, the epoch's first ones again, an error."""


@dataclass(frozen=True, eq=False)
class Window:
    """Samples 0 to n - 1 of a window, in arrival order.

    Args:
        epoch, number: which window of which epoch: the counter of its random choices.
        lengths: tokens of each sample, int64 (n,) or (n, d).
        locate: gives a block that holds the samples and, int64 (n,), which row of it each of them is; called once, when
            the first of them is wanted.
        crc32: what a replay must reproduce; 0 where the header says it already.
    """

    epoch: int
    number: int
    lengths: NDArray[np.int64]
    locate: Callable[[], tuple[Block, NDArray[np.int64]]]
    crc32: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def block(self) -> Block:
        """The rows of the samples, among others where they lie in something larger in memory."""
        return self._located[0]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Which row of `block` each sample is."""
        return self._located[1]

    def ragged(self, column: str) -> Ragged:
        """A list column of `block`, looked up once."""
        if column not in self._columns:
            self._columns[column] = ragged(self.block, column)
        return self._columns[column]

    def take(self, numbers: NDArray[np.int64]) -> Block:
        """The rows of some samples, in the order given. Price: about 5 ns a token."""
        return self.block.take(pa.array(self.rows[numbers]))

    @cached_property
    def _located(self) -> tuple[Block, NDArray[np.int64]]:
        return self.locate()

    @cached_property
    def _columns(self) -> dict[str, Ragged]:
        return {}


def window_ends(count: int, size: int) -> int:
    """How many of `count` rows the next window takes where no more follow: a rest shorter than half joins it.

    >>> [window_ends(count, 10) for count in (3, 10, 14, 15, 20)]
    [3, 10, 14, 10, 10]
    """
    return count if count < size + rest_rows(size) else size


def rest_rows(size: int) -> int:
    """How many rows must follow a window of `size` rows for them to be a window of their own."""
    return (size + 1) // 2


def auto_rows(policy: Policy, lengths: NDArray[np.int64]) -> int:
    """How many rows a window needs for 1 % padding under `policy`, judged by some lengths."""
    if policy.max_length is not None and lengths.ndim == 1:
        lengths = np.minimum(lengths, policy.max_length)
    return window_rows(policy, lengths)


@dataclass(frozen=True, eq=False)
class Batch:
    """Which samples of a window make up a batch, and the shape it is padded to: still integers.

    Args:
        window: the window that the numbers refer to.
        numbers: sample numbers, int64 (b,).
        padded_length: tokens, an int; a tuple of ints for several lengths a sample.
        padded_size: rows of the tensors; more than b where the batch is filled up to a static shape.
        weight: of a data-parallel rank's batch; 0.0 for a filler.
    """

    window: Window
    numbers: NDArray[np.int64]
    padded_length: int | tuple[int, ...]
    padded_size: int
    weight: float | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, int64 (b,) or (b, d)."""
        return self.window.lengths[self.numbers]


@dataclass(frozen=True, eq=False)
class Packs:
    """Which pieces of the samples of a window make up some rows of one length, end to end: still integers.

    Args:
        window: the window that the numbers refer to.
        numbers: the sample of each piece, int64 (n,), row after row.
        starts: where in its sample each piece begins, int64 (n,).
        lengths: tokens of each piece, int64 (n,).
        rows: the row of each piece, int64 (n,), ascending.
        padded_size: how many rows there are.
        padded_length: tokens in a row.
        weight: of a data-parallel rank's batch; 0.0 for a filler.
    """

    window: Window
    numbers: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    padded_size: int
    padded_length: int
    weight: float | None = None

    def __len__(self) -> int:
        return len(self.numbers)


def filler(batch: Batch | Packs) -> Batch | Packs:
    """One real row of a batch, without weight."""
    if isinstance(batch, Batch):
        return replace(batch, numbers=batch.numbers[:1], padded_size=1, weight=0.0)
    row = batch.rows == 0
    pieces = {name: getattr(batch, name)[row] for name in ("numbers", "starts", "lengths", "rows")}
    return replace(batch, **pieces, padded_size=1, weight=0.0)
