"""Stages that cut the stream anew. Rows that no chunk has yet are held; a state saves where they begin, never the
rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import count
from brimful.core.facts import Facts, columns_by, following, refuse_streams, refuse_units, verb_of
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.plan.errors import DataError, check_bool, check_count
from brimful.rows.buffer import COALESCED_ROWS, ReplayBuffer
from brimful.rows.columns import Blockwise
from brimful.tables.blocks import KEY, Block, visible, with_origin
from brimful.tables.origins import ORIGIN, where
from brimful.tables.ragged import (
    EMPTY,
    Ragged,
    array_of,
    bytes_in,
    cut_together,
    gather,
    list_array,
    offsets_of,
    ragged,
)

MOST_LEFT_OUT: Final = 8_192
"""Rows that may be left out between two of one chunk: a resume reads them again."""


@dataclass(frozen=True)
class Rechunk(Stage[Block]):
    """Abstract: cuts the rows of the stream anew, and holds the rows that no output has taken yet. Rows that put no token into a
    chunk are not held.

    Held rows are joined when they have the tokens of a chunk. To join them for each block would take quadratic time.

    A few rows of a block of many end with a block without rows: else whoever joins small blocks (`coalesced`) would join those of
    very many rows, which a resume reads again.

    State: a position of `ReplayBuffer`; "empty" where a block without rows follows. A resume reads the held rows again, checks
    them, and yields nothing for them.
    """

    upstream: Stage[Block]
    target_columns: tuple[str, ...]
    chunk_length: int

    def __post_init__(self) -> None:
        check_count(self, "chunk_length", 1, "token")

    def facts(self, *inputs: Facts) -> Facts:
        refuse_units(self.upstream, verb_of(self), "joins rows")
        return following(self, *inputs, schema=columns_by(inputs[0], self._columns_of), seam="joins")

    def _columns_of(self, below: pa.Schema) -> pa.Schema | None:
        if not {*self.target_columns} <= {*below.names}:  # whoever reads a row is told what is missing
            return None
        return pa.schema([below.field(name) for name in self.target_columns])

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        if "empty" in at:
            yield EMPTY, {name: value for name, value in at.items() if name != "empty"}
        with ReplayBuffer(
            self.upstream, at, run, joins=True, seen=self._target, chosen=self._kept, saves_held=True
        ) as held:
            tokens: int | None = None  # of the held rows
            while held.read() or held.rows:
                tokens = (
                    sum(map(self._tokens_of, held.blocks)) if tokens is None else tokens + self._tokens_of(held.newest)
                )
                if held.again and not held.ended:
                    continue
                out = EMPTY
                if held.rows and (tokens >= self.chunk_length or held.passed_over >= MOST_LEFT_OUT or held.ended):
                    rows = held.peek()
                    columns = [ragged(rows, name) for name in self.target_columns]
                    out, *done = self.cut(rows, columns, held.passed_since(), held.ended)
                    held.drop(*done)
                    tokens = None
                if held.ended:
                    yield out, END
                    return
                if 0 < out.num_rows < COALESCED_ROWS < held.newest.num_rows:
                    yield out, {**held.position, "empty": True}
                    out = EMPTY
                yield out, held.position

    def _kept(self, rows: Block, old: int) -> NDArray[np.int64]:
        """The rows that put tokens into a chunk. Others are counted, but for the first `old` rows, which are read again."""
        if not rows.num_rows:
            return _NONE
        sizes = ragged(rows, self.target_columns[0]).lengths
        some: NDArray[np.bool_] = self.counts(sizes) > 0
        self.leave_out(sizes[old:][~some[old:]])
        return np.flatnonzero(some)

    def _tokens_of(self, rows: Block) -> int:
        return int(self.counts(ragged(rows, self.target_columns[0]).lengths).sum()) if rows.num_rows else 0

    @abstractmethod
    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens rows of these sizes put into chunks: none is complete with fewer than `chunk_length`."""

    def leave_out(self, sizes: NDArray[np.int64]) -> None:
        """Counts rows of these sizes, which put none into a chunk."""

    @abstractmethod
    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        """The block that the held rows give, and how much of them is done: rows, and then values of the next row.

        Args:
            columns: the target columns of the held rows.
            since: how many rows were left out after each of them.
            last: whether no rows follow.
        """

    def _target(self, block: Block) -> Block:
        if not block.num_rows:
            return EMPTY
        cut_together(block, self.target_columns, verb_of(self))
        origin = [ORIGIN] if block.schema.get_field_index(ORIGIN) >= 0 else []
        return block.select([*self.target_columns, *origin])


_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Chunk(Blockwise):
    """Cuts each sample by itself; a last chunk that is shorter is dropped (and counted) or kept.

    Rows have the target columns alone: what else a sample had does not belong to one chunk of it.
    """

    chunk_length: int
    target_columns: tuple[str, ...]
    drop_remainder: bool

    def __post_init__(self) -> None:
        check_count(self, "chunk_length", 1, "token")
        check_bool("drop_remainder", self.drop_remainder)

    def apply(self, block: Block) -> Block:
        columns = cut_together(block, self.target_columns, verb_of(self))
        sizes = columns[0].lengths
        chunks = sizes // self.chunk_length if self.drop_remainder else -(-sizes // self.chunk_length)
        parents = np.repeat(np.arange(len(sizes)), chunks)
        firsts = (np.arange(len(parents)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * self.chunk_length
        counts = np.minimum(sizes[parents] - firsts, self.chunk_length)
        arrays = [list_array(*gather(column.values, column.offsets[parents] + firsts, counts)) for column in columns]
        dropped = int(sizes.sum() - counts.sum())
        count("dropped_tokens", dropped, f"chunk({self.chunk_length}) drops the tokens after the last whole chunk")
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), block, parents)


@dataclass(frozen=True)
class ConcatChunk(Rechunk):
    """Cuts the stream of tokens. The tail that fills no chunk is carried into the next epoch, where the data repeat; of data that
    end it is dropped and counted, or kept."""

    drop_remainder: bool = True

    def __post_init__(self) -> None:
        check_count(self, "chunk_length", 1, "token")
        check_bool("drop_remainder", self.drop_remainder)

    def facts(self, *inputs: Facts) -> Facts:
        return replace(super().facts(*inputs), carries=True)

    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes

    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        offsets = columns[0].offsets - columns[0].offsets[0]
        total = int(offsets[-1])
        bounds = np.arange(total // self.chunk_length + 1) * self.chunk_length
        if last and self.drop_remainder:
            dropped = total % self.chunk_length
            count("dropped_tokens", dropped, f"concat_chunk({self.chunk_length}) drops what fills no chunk at the end")
        elif last and total % self.chunk_length:
            bounds = np.append(bounds, total)
        done = int(bounds[-1])
        row = min(int(np.searchsorted(offsets, done, side="right")) - 1, held.num_rows)
        value = done - int(offsets[row])
        if not done:
            return EMPTY, row, value
        arrays = [list_array(column.values[column.offsets[0] :][:done], bounds) for column in columns]
        parents = np.searchsorted(offsets, bounds[:-1], side="right") - 1
        return with_origin(pa.RecordBatch.from_arrays(arrays, list(self.target_columns)), held, parents), row, value


@dataclass(frozen=True)
class PackChunk(Rechunk):
    """Joins neighbours as long as they fit. A longer sample is cut to a chunk, or left out, and counted. Samples between which
    8,192 others were left out, or are empty, are no neighbours."""

    discard_long_samples: bool

    def cut(self, held: Block, columns: list[Ragged], since: NDArray[np.int64], last: bool) -> tuple[Block, int, int]:
        sizes = columns[0].lengths
        counts = self.counts(sizes)
        firsts, done = self._packs(counts, since, last)
        self._count(sizes[:done])
        totals = np.add.reduceat(counts[:done], firsts) if len(firsts) else np.zeros(0, dtype=np.int64)
        flat = [gather(column.values, column.offsets[:done], counts[:done]).values for column in columns]
        bounds = offsets_of(totals)
        out = pa.RecordBatch.from_arrays([list_array(values, bounds) for values in flat], list(self.target_columns))
        return with_origin(out, held, firsts), done, 0

    def counts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        long = sizes > self.chunk_length
        return np.where(long, 0 if self.discard_long_samples else self.chunk_length, sizes)

    def leave_out(self, sizes: NDArray[np.int64]) -> None:
        self._count(sizes)

    def _packs(self, counts: NDArray[np.int64], since: NDArray[np.int64], last: bool) -> tuple[NDArray[np.int64], int]:
        """The first row of each pack that is complete, and how many rows all of them hold."""
        ends = offsets_of(counts)
        fit = np.searchsorted(ends, ends[:-1] + self.chunk_length, side="right") - 1
        near = np.searchsorted(-since, MOST_LEFT_OUT - since)
        following = np.minimum(fit, near).tolist()
        firsts, row = [], 0
        while row < len(counts) and (last or following[row] < len(counts) or since[row] >= MOST_LEFT_OUT):
            firsts.append(row)
            row = following[row]
        return np.array(firsts, dtype=np.int64), row

    def _count(self, sizes: NDArray[np.int64]) -> None:
        long = sizes > self.chunk_length
        name, does = ("dropped", "leaves out") if self.discard_long_samples else ("truncated", "cuts")
        count(name, int(long.sum()), f"pack_chunk({self.chunk_length}) {does} longer samples")
        count("dropped_tokens", int((sizes - self.counts(sizes)).sum()))


@dataclass(frozen=True)
class SlidingWindow(Stage[Block]):
    """Row i has the values of `width` rows from row i on, a list a column; of n rows there are n - width + 1.

    A block gives the windows that end in it, in pieces of about 1 MB. Windows take `width` times the memory of the rows.

    State: a position of `ReplayBuffer`.
    """

    upstream: Stage[Block]
    width: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "sliding_window", "slides over")
        refuse_units(self.upstream, "sliding_window", "puts a row into several")
        check_count(self, "width", 1, "sample")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, schema=lambda: None)  # lists of those of its neighbours, as rows show them

    def start(self, epoch: int) -> State:
        return {"rows": self.upstream.start(epoch)}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        with ReplayBuffer(self.upstream, at, run, joins=True, seen=_without_key, saves_held=True) as held:
            while held.read():
                sizes = self._sizes(held.newest, held.rows + 1 - self.width)
                rows = held.peek() if sizes else EMPTY
                for number, size in enumerate(sizes or [0] * (held.ended or not held.again), 1):
                    out, rows = self._windows(rows, size), rows.slice(size)
                    held.drop(size)
                    yield out, END if held.ended and number >= len(sizes) else held.position

    def _sizes(self, block: Block, windows: int) -> list[int]:
        """How many windows each piece has, of those that are complete with the block. It depends on the block alone, so that a
        resume after one of them cuts the same ones."""
        if windows < 1 or not block.num_rows:
            return []
        size = sum(map(bytes_in, visible(block).columns)) // block.num_rows
        step = min(BLOCK_ROWS, max(1, BLOCK_BYTES // (self.width * max(1, size))))
        sizes: list[int] = np.diff([*range(0, windows, step), windows]).tolist()
        return sizes

    def _windows(self, rows: Block, count: int) -> Block:
        """The first `count` windows of some rows."""
        if not count:
            return EMPTY
        places = array_of((np.arange(count)[:, None] + np.arange(self.width)).ravel())
        bounds = np.arange(count + 1) * self.width
        firsts = rows.slice(0, count)
        out = visible(firsts).select([])
        for name in visible(rows).schema.names:
            values = rows.column(name).take(places)
            if isinstance(values.type, pa.FixedShapeTensorType):
                column = self._stacked(values, name, rows)
            else:
                column = list_array(values, bounds)
            out = out.append_column(name, column)
        return with_origin(out, firsts, np.arange(count))

    def _stacked(self, tensors: pa.Array, name: str, rows: Block) -> pa.Array:
        """Arrays of one shape as arrays of one more dimension: a list would not know their shape."""
        if tensors.null_count:
            raise DataError(
                f"sliding_window: column {name!r} is null or missing (near {where(rows, 0)}); filter it out or fill it"
            )
        kind = pa.fixed_shape_tensor(tensors.type.value_type, [self.width, *tensors.type.shape])
        storage = pa.FixedSizeListArray.from_arrays(tensors.storage.flatten(), kind.storage_type.list_size)
        return pa.ExtensionArray.from_storage(kind, storage)


def _without_key(block: Block) -> Block:
    return block.drop_columns([KEY]) if KEY in block.schema.names else block
