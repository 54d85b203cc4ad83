"""Stages that cut the stream anew. Rows that no chunk has yet are held; a state saves where they begin, never the
rows."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import count
from brimful.core.facts import Facts, columns_by, following, refuse_streams, verb_of
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State
from brimful.plan.errors import DataError, check_bool, check_count
from brimful.rows.buffer import COALESCED_ROWS, check_replay, coalesced, read_again
from brimful.rows.columns import Blockwise
from brimful.tables.blocks import KEY, Block, concat, visible, with_origin
from brimful.tables.checksums import RowChecksums, in_state
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
    with_column,
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

    State: [upstream's state before the block in which the held rows begin; of the rows from there on that put tokens into chunks,
    how many are done, and then values of the next; all rows that were read from there on; checksums of those that are held], and
    1 where a block without rows follows. A resume reads those rows again, in whatever blocks they come, checks them and yields
    nothing for them.
    """

    upstream: Stage[Block]
    target_columns: tuple[str, ...]
    chunk_length: int

    def __post_init__(self) -> None:
        check_count(self, "chunk_length", 1, "token")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, schema=columns_by(inputs[0], self._columns_of), seam="joins")

    def _columns_of(self, below: pa.Schema) -> pa.Schema | None:
        if not {*self.target_columns} <= {*below.names}:  # whoever reads a row is told what is missing
            return None
        return pa.schema([below.field(name) for name in self.target_columns])

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, 0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        before, skip, value, replay, saved = at[:5]
        if len(at) > 5:
            yield EMPTY, at[:5]
        held: deque[HeldBlock] = deque()
        tokens, read, found = (
            0,
            0,
            RowChecksums(),
        )  # of the held rows, all read since they begin, and the rows' checksums
        left_out = 0  # rows, so far
        with closing(coalesced(self.upstream, before, run)) as items:
            for block, after, old in read_again(items, replay, held):
                rows = self._target(block)
                kept, earlier = self._kept(rows, old)
                fresh = len(kept) - int(np.searchsorted(kept, old))
                if len(kept) < rows.num_rows:
                    rows = rows.take(array_of(kept))
                done = min(skip, rows.num_rows)
                skip -= done
                if rows.num_rows > done:
                    taken = HeldBlock(before, rows.num_rows, rows, block.num_rows, left_out + earlier)
                    held.append(taken if held else taken.without_front(done, value))
                    tokens += self._tokens_of(held[-1])
                    if old:
                        found.add(held[-1].rest.slice(0, held[-1].rest.num_rows - fresh))
                elif held:
                    held[-1] = held[-1]._replace(read=held[-1].read + block.num_rows)
                read += block.num_rows * (len(held) > 0)
                left_out += block.num_rows - len(kept)
                before = after
                replay -= old
                if old and not replay:
                    self._check(found, saved, run)
                if replay or (0 < old == block.num_rows and after != END):
                    continue
                out = EMPTY
                open_for = left_out - int(held[0].earlier[0]) if held else 0
                if tokens >= self.chunk_length or open_for >= MOST_LEFT_OUT or after == END:
                    out, done, value = self._cut(held, left_out, after == END)
                    drop_front(held, done, value)
                    tokens, found = sum(map(self._tokens_of, held)), held_checksums(held)
                    read = sum(one.read for one in held)
                elif fresh:
                    found.add(held[-1].rest.slice(held[-1].rest.num_rows - fresh))
                if after == END:
                    yield out, END
                    break
                if held:
                    row = held[0].num_rows - held[0].rest.num_rows
                    state = [held[0].before, row, value, read, in_state(found.by_column())]
                else:
                    value = 0
                    state = [after, 0, 0, 0, []]
                if 0 < out.num_rows < COALESCED_ROWS < block.num_rows:
                    yield out, [*state, 1]
                    out = EMPTY
                yield out, state
            if replay:
                self._check(found, saved, run)
            elif held and before != END:  # upstream ended without saying so in advance
                yield self._cut(held, left_out, True)[0], END

    def _check(self, found: RowChecksums, saved: list[int], run: Run) -> None:
        check_replay(run, self.upstream, found.by_column(), saved, "the rows that were held")

    def _cut(self, held: Sequence[HeldBlock], left_out: int, last: bool) -> tuple[Block, int, int]:
        if not held:
            return EMPTY, 0, 0
        rows = concat(block.rest for block in held)
        since = left_out - np.concatenate([block.earlier for block in held])
        return self.cut(rows, [ragged(rows, name) for name in self.target_columns], since, last)

    def _kept(self, rows: Block, old: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that put tokens into a chunk, and how many others come before each of them; these are counted, but for those
        among the first `old` rows, which are read again."""
        if not rows.num_rows:
            return _NONE, _NONE
        sizes = ragged(rows, self.target_columns[0]).lengths
        some: NDArray[np.bool_] = self.counts(sizes) > 0
        self.leave_out(sizes[old:][~some[old:]])
        return np.flatnonzero(some), np.cumsum(~some, dtype=np.int64)[some]

    def _tokens_of(self, held: HeldBlock) -> int:
        return int(self.counts(ragged(held.rest, self.target_columns[0]).lengths).sum())

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


class HeldBlock(NamedTuple):
    """A block of which rows are held: the state before it, its rows, those that are left of them, how many rows were read with it
    and with blocks that follow it and of which none is held, and how many rows were left out before each of those that are left.

    They are joined anew for each cut, so that a type ends with the rows that had it.
    """

    before: State
    num_rows: int
    rest: Block
    read: int
    earlier: NDArray[np.int64] = _NONE

    def without_front(self, rows: int, values: int) -> HeldBlock:
        """Without its first `rows` rows and, in the row after them, without the first `values` of each list."""
        return self._replace(rest=without_front(self.rest, rows, values), earlier=self.earlier[rows:])


def held_checksums(held: Iterable[HeldBlock]) -> RowChecksums:
    """The checksums of some held rows."""
    found = RowChecksums()
    for one in held:
        found.add(one.rest)
    return found


def drop_front(held: deque[HeldBlock], rows: int, values: int = 0) -> None:
    """Forgets the first `rows` held rows, and the first `values` of each list in the row after them."""
    while held and rows >= held[0].rest.num_rows:
        rows -= held.popleft().rest.num_rows
    if held:
        held[0] = held[0].without_front(rows, values)


def without_front(block: Block, rows: int, values: int) -> Block:
    """A block without its first `rows` rows and, in the row after them, without the first `values` of each list."""
    block = block.slice(rows)
    if not values or not block.num_rows:
        return block
    for name in block.schema.names:
        if name != ORIGIN:
            column = ragged(block, name)
            offsets = column.offsets.copy()
            offsets[0] += values
            block = with_column(block, name, list_array(column.values, offsets))
    return block


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

    State: [upstream's state before the block in which the next window begins, rows of it before that window, rows read from that
    state on, checksums of those that are held]. A resume reads those rows again, in whatever blocks they come, and checks them.
    """

    upstream: Stage[Block]
    width: int

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "sliding_window", "slides over")
        check_count(self, "width", 1, "sample")

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, schema=lambda: None)  # lists of those of its neighbours, as rows show them

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, []]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        before, skip, replay, saved = at
        held: deque[HeldBlock] = deque()  # the rows from which windows are to come
        found = RowChecksums()  # of those that are read again
        with closing(coalesced(self.upstream, before, run)) as items:
            for block, after, old in read_again(items, replay, held):
                done = min(skip, block.num_rows)
                skip -= done
                if block.num_rows > done:
                    rest = block.drop_columns([KEY]) if KEY in block.schema.names else block
                    held.append(HeldBlock(before, block.num_rows, rest.slice(done), block.num_rows))
                    if old > done:
                        found.add(rest.slice(done, old - done))
                before = after
                replay -= old
                if old and not replay:
                    self._check(found, saved, run)
                if replay:
                    continue
                sizes = self._sizes(block, sum(one.rest.num_rows for one in held) + 1 - self.width)
                rows = concat(one.rest for one in held) if sizes else EMPTY
                for number, size in enumerate(sizes or [0] * (after == END or not 0 < old == block.num_rows), 1):
                    out, rows = self._windows(rows, size), rows.slice(size)
                    drop_front(held, size)
                    ended = after == END and number >= len(sizes)
                    yield out, END if ended else self._state(held, after)
            if replay:
                self._check(found, saved, run)

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

    def _state(self, held: deque[HeldBlock], after: State) -> State:
        if not held:
            return [after, 0, 0, []]
        first, read = held[0], sum(one.read for one in held)
        return [first.before, first.num_rows - first.rest.num_rows, read, in_state(held_checksums(held).by_column())]

    def _check(self, found: RowChecksums, saved: list[int], run: Run) -> None:
        check_replay(run, self.upstream, found.by_column(), saved, "the rows that were held")
