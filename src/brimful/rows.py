"""What row stages share: blocks to samples and back, and the two shapes that most of them have.

`Blockwise` turns each block into one block and passes its state on. `Carried` cuts the stream anew (into chunks, into
packs): it holds the rows that are not yet handed on and saves where they began, never the rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful import random
from brimful.errors import HIDDEN, ORIGIN, DataError, OnError, StageError, StateError, skipped, where
from brimful.ragged import (
    EMPTY,
    Ragged,
    column_of,
    concat,
    fingerprint,
    is_ragged,
    list_array,
    numpy_of,
    ragged,
    with_column,
)
from brimful.schema import UNFIT, as_column
from brimful.stream import BLOCK_ROWS, END, Stage, State, running

Sample: TypeAlias = dict[str, Any]
Block: TypeAlias = pa.RecordBatch

KEY: Final = f"{HIDDEN}key"
"""A hidden column of random 64-bit keys, for functions that draw random numbers."""


def visible(block: Block) -> Block:
    """The columns that users see."""
    names = [name for name in block.schema.names if not name.startswith(HIDDEN)]
    return block if len(names) == len(block.schema.names) else block.select(names)


def samples(block: Block) -> list[Sample]:
    """The rows of a block as dicts; lists of numbers as numpy arrays that the caller may write to.

    >>> samples(from_samples([{"input_ids": [1, 2], "id": 7}]))
    [{'input_ids': array([1, 2]), 'id': 7}]
    """
    names = [name for name in block.schema.names if not name.startswith(HIDDEN)]
    if not names:
        return [{} for _ in range(block.num_rows)]
    columns = [_values(block.column(name)) for name in names]
    return [dict(zip(names, row)) for row in zip(*columns)]


def _values(array: pa.Array) -> list[Any]:
    if isinstance(array.type, pa.FixedShapeTensorType):
        tensors = np.array(array.to_numpy_ndarray()) if not array.null_count else None
        return list(tensors) if tensors is not None else [_tensor(value) for value in array]
    if not is_ragged(array.type) or pa.types.is_fixed_size_list(array.type):
        return list(array.to_pylist())
    bounds = array.offsets.to_pylist()
    first = bounds[0]
    inner = array.values[first : bounds[-1]]
    if array.null_count or inner.null_count:  # a row is what it is, whatever its neighbours lack
        dtype = numpy_of(inner.drop_null()).dtype
        return [row if row is None or None in row else np.array(row, dtype=dtype) for row in array.to_pylist()]
    values = np.array(numpy_of(inner))
    return [values[start - first : end - first] for start, end in pairwise(bounds)]


def _tensor(value: Any) -> NDArray[Any] | None:
    return np.array(value.to_numpy()) if value.is_valid else None


def as_sample(row: Any) -> Sample:
    """A row of a user's list: a dict as it is, a string as {"text": string}.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(row, str):
        return {"text": row}
    if not isinstance(row, dict):
        raise TypeError(f"a sample must be a dict or a string (got {type(row).__name__})")
    return row


def from_samples(rows: Sequence[Sample]) -> Block:
    """Dicts as a block: the columns in the order of their first appearance, absent values null.

    Raises:
        TypeError: where the values of a column have no common type, or a row is not a dict of strings; it is named.
    """
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError(f"a sample must be a dict (got {type(row).__name__})")
        names.update(dict.fromkeys(row))
    if odd := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"the keys of a sample must be strings (got {odd[0]!r})")
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = []
    for name in names:
        try:
            columns.append(as_column([row.get(name) for row in rows]))
        except UNFIT as error:
            raise TypeError(f"the values of column {name!r} have no common type: {error}") from error
    return pa.RecordBatch.from_arrays(columns, list(names))


def cut(block: Block) -> Iterator[Block]:
    """A block in pieces of at most 4,096 rows."""
    for first in range(0, block.num_rows, BLOCK_ROWS):
        yield block.slice(first, BLOCK_ROWS)


def call(stage: str, fn: Callable[..., Any], block: Block) -> Iterator[Any]:
    """`fn(sample)` for each row of a block.

    Raises:
        StageError: what `fn` raised, with the row's place.
    """
    return (result for _, result in tried(stage, fn, block, False, "raise"))


def tried(
    stage: str,
    fn: Callable[..., Any],
    block: Block,
    seeded: bool,
    on_error: OnError,
    convert: Callable[[Any], Any] = lambda result: result,
) -> Iterator[tuple[int, Any]]:
    """(row, `convert(fn(sample))`) for each row of a block, `fn(sample, rng)` where seeded, by the keys in the block; a row
    for which it raises is an error, or is left out and counted.

    Raises:
        StageError: what `fn` raised, with the row's place.
    """
    keys = column_of(block, KEY).to_pylist() if seeded else ()
    for row, sample in enumerate(samples(block)):
        try:
            result = convert(fn(sample, random.generator(keys[row])) if seeded else fn(sample))
        except Exception as error:
            message = f"{stage}({name_of(fn)}) failed at {where(block, row)}: {type(error).__name__}: {error}"
            if on_error == "raise":
                raise StageError(message) from error
            skipped(StageError(message))
            continue
        yield row, result


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def with_origin(out: Block, block: Block, parents: NDArray[np.int64]) -> Block:
    """`out` with the origins that the rows `parents` of `block` have."""
    if block.schema.get_field_index(ORIGIN) < 0 or not out.num_rows:
        return out
    column = column_of(block, ORIGIN)
    same = len(parents) == len(column) and bool((parents[1:] > parents[:-1]).all())
    return with_column(out, ORIGIN, column if same else column.take(pa.array(parents)))


@dataclass(frozen=True)
class Blockwise(Stage[Block]):
    """Abstract: a block in, a block out, the state passed on. Blocks without rows are passed on as they are."""

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        with running(self.upstream, at) as items:
            for block, after in items:
                yield (self.apply(block) if block.num_rows else block), after

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The block that one non-empty block becomes."""


@dataclass(frozen=True)
class Recut(Stage[Block]):
    """Cuts long blocks (what a stage that makes many rows of one may yield) at 4,096 rows.

    State: [upstream's state before the block, rows of it handed on, its crc32].
    """

    upstream: Stage[Block]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, done, saved = at
        with running(self.upstream, before) as items:
            for block, after in items:
                crc = fingerprint(block) if done or block.num_rows > BLOCK_ROWS else 0
                if done:
                    check_replay("Recut", crc, saved, f"{done:,} rows into a block")
                for piece in cut(block.slice(done)) if block.num_rows else (block,):
                    done += piece.num_rows
                    ended = done >= block.num_rows
                    yield piece, (END if after == END else [after, 0, 0]) if ended else [before, done, crc]
                before, done = after, 0
            if done:
                check_replay("Recut", 0, saved, "a block that is gone")


@dataclass(frozen=True)
class Carried(Stage[Block]):
    """Abstract: cuts the rows of the stream anew, holding those that no output has taken yet.

    State: [upstream's state before the block in which the held rows begin, rows and then values of it that are done,
    blocks read since, crc32 of the held rows]. A resume reads those blocks again, checks them and yields nothing for them.
    """

    upstream: Stage[Block]
    target_columns: tuple[str, ...]

    def start(self, epoch: int) -> State:
        return [self.upstream.start(epoch), 0, 0, 0, 0]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        before, row, value, replay, crc = at
        held: deque[_Held] = deque()
        with running(self.upstream, before) as items:
            for block, after in items:
                rows = self._target(block)
                held.append(_Held(before, block.num_rows, rows if held else without_front(rows, row, value)))
                before = after
                if replay:
                    replay -= 1
                    if not replay:
                        self._check(held, crc, at)
                    continue
                out, rows_done, values_done = self.cut(_rows_of(held), after == END)
                value = values_done if rows_done else value + values_done
                _drop_front(held, rows_done, values_done)
                if after == END:
                    yield out, END
                elif held:
                    row = held[0].num_rows - held[0].rest.num_rows
                    yield out, [held[0].before, row, value, len(held), fingerprint(_rows_of(held))]
                else:
                    row = value = 0
                    yield out, [after, 0, 0, 0, 0]
            if replay:
                self._check(held, crc, at)
            elif held and before != END:  # upstream ended without saying so in advance
                yield self.cut(_rows_of(held), True)[0], END

    def _check(self, held: deque[_Held], crc: int, at: State) -> None:
        check_replay(type(self).__name__, fingerprint(_rows_of(held)), crc, str(at[0]))

    @abstractmethod
    def cut(self, held: Block, last: bool) -> tuple[Block, int, int]:
        """What the held rows give: a block, and how many rows, and then values of the next row, are done."""

    def _target(self, block: Block) -> Block:
        if not block.num_rows:
            return EMPTY
        equally_long(block, self.target_columns)
        origin = [ORIGIN] if block.schema.get_field_index(ORIGIN) >= 0 else []
        return block.select([*self.target_columns, *origin])


def equally_long(block: Block, names: Sequence[str]) -> list[Ragged]:
    """Several list columns of a block.

    Raises:
        DataError: where a row has lists of two lengths; with both and its place.
    """
    columns = [ragged(block, name) for name in names]
    sizes = columns[0].lengths
    for name, column in zip(names[1:], columns[1:]):
        differ = np.flatnonzero(column.lengths != sizes)
        if len(differ):
            row = int(differ[0])
            raise DataError(
                f"columns {names[0]!r} and {name!r} must be equally long "
                f"(got {sizes[row]:,} and {column.lengths[row]:,}; {where(block, row)})"
            )
    return columns


class _Held(NamedTuple):
    """A block of which some rows are held: the state before it, its rows, and what is left of them.

    They are joined anew each time: types that only the rows before them had must not outlive those.
    """

    before: State
    num_rows: int
    rest: Block


def _rows_of(held: Iterable[_Held]) -> Block:
    return concat(block.rest for block in held)


def _drop_front(held: deque[_Held], rows: int, values: int) -> None:
    """Forgets the first `rows` held rows, and the first `values` of each list in the row after them."""
    while held and rows >= held[0].rest.num_rows:
        rows -= held.popleft().rest.num_rows
    if held:
        held[0] = held[0]._replace(rest=without_front(held[0].rest, rows, values))


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


def check_replay(stage: str, ours: int, saved: int, at: str) -> None:
    """Refuses to go on where the rows read again are not the rows that the state was saved over.

    Raises:
        StateError: naming the stage, its place and both checksums.
    """
    if ours != saved:
        raise StateError(
            f"{stage} read other rows than when this state was saved (crc32 {saved:08x} then, {ours:08x} now, at "
            f"{at}): a shard was edited, a tokenizer changed, or a function of the pipeline is random; go on with the "
            "data and code that saved it, or start anew"
        )


class Cursor:
    """The rows of a stage in any portions. State: [the stage's state before the block at hand, rows of it taken, its crc32]."""

    def __init__(self, stage: Stage[Block], before: State, taken: int, crc: int) -> None:
        self._before, self._taken, self._crc = before, taken, crc
        self._items = None if before == END else stage.items(before)
        self._rest = EMPTY  # of the block at hand
        self._after = before

    @property
    def state(self) -> list[State]:
        return [self._before, self._taken, self._crc]

    @property
    def rest(self) -> Block:
        """The rows at hand."""
        return self._rest

    def fill(self) -> int:
        """How many rows are at hand, after reading on where there were none; 0 at the end."""
        while not self._rest.num_rows and self._items is not None:
            item = next(self._items, None)
            block, self._after = item or (EMPTY, END)
            if self._taken:
                check_replay("Interleave", fingerprint(block), self._crc, f"{self._taken:,} rows into a block")
            if item is None:
                self.close()
                break
            self._rest = block.slice(self._taken)
            if not self._rest.num_rows:
                self._before = self._after
        return int(self._rest.num_rows)

    def take(self, rows: int) -> Block:
        """The next `rows` of the rows at hand."""
        if rows and not self._taken:
            self._crc = fingerprint(self._rest)
        piece, self._rest = self._rest.slice(0, rows), self._rest.slice(rows)
        self._taken += rows
        if rows and not self._rest.num_rows:
            self._before, self._taken, self._crc = self._after, 0, 0
        return piece

    def close(self) -> None:
        if self._items is not None:
            self._items.close()
            self._items = None
