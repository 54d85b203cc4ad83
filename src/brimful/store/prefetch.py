"""Fetches the rows of a remote store in the sets in which they will be wanted, one set ahead of use.

Shuffled rows come from all over a set. One by one they would cost a request each, or the bytes of their neighbours again and
again. So the whole set is fetched once, and all windows are cut from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brimful.blocks.blocks import Block
from brimful.blocks.ragged import array_of, concat
from brimful.core.background import Workers
from brimful.core.once import once
from brimful.index.index import RowSet

SET_BYTES: Final = 512 << 20
"""Larger sets are not fetched whole: their rows are long enough to be asked for one by one."""
KEPT_SETS: Final = 1
"""Sets that are kept beside the expected ones: a window that is planned already may still want rows of the last one."""

Locate = Callable[[NDArray[np.int64]], tuple[Block, NDArray[np.int64]]]


class Prefetched:
    """Gives the rows of an index out of the sets that are expected.

    Args:
        locate: fetches rows directly.
        row_bytes: the size of a row, on average.
    """

    def __init__(self, locate: Locate, row_bytes: float) -> None:
        self._locate, self._row_bytes = locate, row_bytes
        self._sets: dict[Hashable, _FetchedRows] = {}
        self._next: list[_FetchedRows] = []
        self._lock = threading.Lock()

    def expect(self, sets: Sequence[RowSet]) -> None:
        """Names the sets that will be wanted from now on, in order. Nothing is fetched before one of their rows is wanted."""
        with self._lock:
            expected = {}
            for one in sets:
                known = self._sets.pop(one.name, None)
                if known is None and 0 < one.num_rows * self._row_bytes <= SET_BYTES:
                    known = _FetchedRows(one.rows(), self._locate)
                if known is not None:
                    expected[one.name] = known
            for name in list(self._sets)[:-KEPT_SETS]:
                del self._sets[name]
            self._sets |= expected
            self._next = list(expected.values())

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        """As `Index.locate`."""
        with self._lock:
            sets, expected = list(self._sets.values())[::-1], self._next
        left = np.ones(len(numbers), dtype=bool)
        found: list[tuple[_FetchedRows, NDArray[np.bool_], NDArray[np.int64]]] = []
        for one in sets:
            rows, here = one.find(numbers)
            here &= left
            if here.any():
                one.begin()
                found.append((one, here, rows[here]))
                left &= ~here
        pieces = [(one.block(), here, rows) for one, here, rows in found]
        if left.any():
            block, rows = self._locate(numbers[left])
            pieces.append((block, left, rows))
        for one, _, _ in found:
            self._read_on(one, expected)
        if len(pieces) == 1:
            return pieces[0][0], pieces[0][2]
        places = np.empty(len(numbers), dtype=np.int64)
        done = 0
        for _, here, rows in pieces:
            places[here] = np.arange(done, done + len(rows))
            done += len(rows)
        return concat(block.take(array_of(rows)) for block, _, rows in pieces), places

    @staticmethod
    def _read_on(one: _FetchedRows, expected: list[_FetchedRows]) -> None:
        """Begins to fetch the set after the one in use."""
        for before, after in pairwise(expected):
            if before is one:
                after.begin()


class _FetchedRows:
    """Rows that are fetched together, once, at the latest when the first of them is wanted."""

    def __init__(self, rows: NDArray[np.int64], locate: Locate) -> None:
        self._given, self._locate = rows, locate
        self._block: Future[Block] | None = None
        self._lock = threading.Lock()

    def find(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of the block for each number, and whether the block has it."""
        rows = np.searchsorted(self._rows, numbers)
        return rows, self._rows[np.minimum(rows, len(self._rows) - 1)] == numbers

    @once
    def _rows(self) -> NDArray[np.int64]:
        """The numbers of the rows, ascending; sorted when the first is wanted, so planning alone costs nothing. Price: 8 ms."""
        return np.sort(self._given)

    def begin(self) -> None:
        """Fetches the rows in a thread of its own."""
        with self._lock:
            if self._block is None:
                workers = Workers(1, "rows")
                self._block = workers.submit(self._fetch)
                self._block.add_done_callback(lambda _: workers.stop())

    def block(self) -> Block:
        """The rows, ascending. An error goes to the caller; the next call tries again."""
        self.begin()
        future = self._block
        assert future is not None
        try:
            return future.result()
        except BaseException:
            with self._lock:
                if self._block is future and future.done():
                    self._block = None
            raise

    def _fetch(self) -> Block:
        block, rows = self._locate(self._rows)
        assert len(rows) == block.num_rows
        return block
