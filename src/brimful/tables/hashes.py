"""Hashes of values, a column at a time, and the split of rows by them. They are the same on every machine, in every release and
for any block size.

Equal values have equal hashes whatever their type: integers of any width, whole floats, text and lists with offsets of any width.
A null hashes as if its column were not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.stage import BLOCK_BYTES
from brimful.plan import random
from brimful.plan.errors import DataError, check_count, finite
from brimful.tables.blocks import Block, visible
from brimful.tables.origins import where
from brimful.tables.ragged import bytes_in, column_of, has_offsets, null_in, numpy_of, offsets_in, offsets_of

Side = Literal["train", "valid"]

_NULL: Final = 0
_NAN: Final = 0x7FF8 << 48
_STEP: Final = 0x9E3779B97F4A7C15
_WORD: Final = 8
_BY_ALL: Final = (
    "; key= is optional: name one of these columns, or leave it out to split by all of them. Units are "
    "split by their key: then split before you drop or rename it"
)


@dataclass(frozen=True)
class Split:
    """Splits rows in two by the hash of column `key` (None: of all columns).

    Several streams share the seed, so equal rows are on one side wherever they are.
    """

    valid_share: float
    key: str | None
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid_share", finite("valid_share", self.valid_share))
        if not 0 < self.valid_share < 1:
            raise ValueError(f"valid_share must be above 0 and below 1 (got {self.valid_share:g})")
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be the name of a column (got {self.key!r})")
        check_count(self, "seed", None)

    def valid(self, block: Block) -> NDArray[np.bool_]:
        """Which rows of a block are for validation: bool (n,). The block has at least one row."""
        names = visible(block).schema.names if self.key is None else [self.key]
        size = sum(bytes_in(block.column(name)) for name in names if name in block.schema.names)
        # a hash takes several times the memory of its values
        step = max(1, block.num_rows * BLOCK_BYTES // max(1, size))
        pieces = (block.slice(first, step) for first in range(0, block.num_rows, step))
        return np.concatenate([self._valid(piece) for piece in pieces])

    def _valid(self, block: Block) -> NDArray[np.bool_]:
        hashes = row_hashes(block) if self.key is None else column_hashes(block, self.key, _BY_ALL)
        bound = np.uint64(int(self.valid_share * 2.0**64))
        below: NDArray[np.bool_] = random.mixed(hashes ^ np.uint64(random.key(self.seed))) < bound
        return below


def row_hashes(block: pa.RecordBatch) -> NDArray[np.uint64]:
    """A hash of each row of a block, uint64 (n,), whatever the order of its columns. Price: 40 ns a number, 5 ns a byte of text.

    Raises:
        DataError: a column has values that cannot be hashed.

    >>> one = pa.RecordBatch.from_pydict({"a": pa.array([7], pa.int32()), "b": ["x"]})
    >>> other = pa.RecordBatch.from_pydict({"b": pa.array(["x"], pa.large_string()), "a": [7], "c": pa.nulls(1)})
    >>> row_hashes(one).tolist() == row_hashes(other).tolist()
    True
    """
    out = np.zeros(block.num_rows, dtype=np.uint64)
    for name in visible(block).schema.names:
        out += _under(name, column_hashes(block, name))
    return random.mixed(out)


def column_hashes(
    block: pa.RecordBatch, name: str, remedy: str = "", verb: str = "train_valid_split"
) -> NDArray[np.uint64]:
    """A hash of each value of a column, uint64 (n,).

    Raises:
        DataError: there is no such column, or its values cannot be hashed.
    """
    try:
        return _hashes(column_of(block, name, remedy=remedy))
    except _NoHashError as error:
        raise DataError(
            f"{verb}: column {name!r} has values of type {error}, which have no hash ({where(block, 0)}); name another column "
            "by key="
        ) from None


class _NoHashError(Exception):
    """Values of this type have no hash."""


def _hashes(array: pa.Array) -> NDArray[np.uint64]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _hashes(array.storage)
    if pa.types.is_dictionary(kind):
        return _hashes(array.dictionary_decode())
    if pa.types.is_decimal(kind):
        return _hashes(array.cast(pa.string()))
    if pa.types.is_fixed_size_binary(kind):
        return _hashes(array.cast(pa.binary()))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _hashes(array.cast(pa.large_binary()))
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, dtype=np.uint64)
    if pa.types.is_struct(kind):
        found = np.zeros(len(array), dtype=np.uint64)
        for field, values in zip(kind, array.flatten()):
            found += _under(field.name, _hashes(values))
        found = random.mixed(found)
    elif pa.types.is_fixed_size_list(kind):
        size, first = kind.list_size, array.offset * kind.list_size
        inner = _hashes(array.values[first : first + len(array) * size])
        found = _joined(inner, np.arange(len(array) + 1) * size, np.full(len(array), size))
    elif pa.types.is_map(kind):
        bounds = offsets_in(array)
        keys, items = (_hashes(part[bounds[0] : bounds[-1]]) for part in (array.keys, array.items))
        entries = random.mixed(_under("key", keys) + _under("value", items))
        found = _joined(entries, bounds - bounds[0], np.diff(bounds))
    elif has_offsets(kind):
        found = _of_any_length(array)
    else:
        found = random.mixed(_numbers(array))
    if array.null_count:
        found[null_in(array)] = _NULL
    return found


def _under(name: str, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The part that the values of a column add to the hashes of their rows; a null adds nothing."""
    out = random.mixed(hashes ^ _hashes(pa.array([name]))[0])
    out[hashes == _NULL] = 0
    return out


def _of_any_length(array: pa.Array) -> NDArray[np.uint64]:
    """Hashes of texts, bytes and lists."""
    offsets = offsets_in(array)
    first, last = int(offsets[0]), int(offsets[-1])
    sizes = np.diff(offsets)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _joined(_hashes(array.values[first:last]), offsets - first, sizes)
    memory = np.zeros(last - first + _WORD, dtype=np.uint8)
    if last > first:
        memory[: last - first] = np.frombuffer(array.buffers()[2], np.uint8)[first:last]
    word_at = np.ndarray((last - first + 1,), "<u8", memory, 0, (1,))  # the eight bytes from each byte on
    bounds = offsets_of((sizes + _WORD - 1) // _WORD)
    counts = np.diff(bounds)
    done = _WORD * (np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts))  # bytes of the text before each word
    words = word_at[np.repeat(offsets[:-1] - first, counts) + done].astype(np.uint64)
    beyond = np.clip(_WORD - (np.repeat(sizes, counts) - done), 0, _WORD).astype(np.uint64)
    words &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(8) * beyond)
    return _joined(words, bounds, sizes)


def _joined(parts: NDArray[np.uint64], bounds: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One hash for each run of parts, by their order and the size of the run; `bounds`: (n + 1,), from 0 on."""
    places = np.arange(1, len(parts) + 1) - np.repeat(bounds[:-1], np.diff(bounds))
    total = np.zeros(len(parts) + 1, dtype=np.uint64)
    np.cumsum(random.mixed(parts + places.astype(np.uint64) * np.uint64(_STEP)), out=total[1:])
    return random.mixed(total[bounds[1:]] - total[bounds[:-1]] + sizes.astype(np.uint64))


def _numbers(array: pa.Array) -> NDArray[np.uint64]:
    """Numbers, truth values and times as 64 bits; whole floats become integers."""
    kind = array.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise _NoHashError(str(kind))
    values = numpy_of(array.fill_null(False if pa.types.is_boolean(kind) else 0) if array.null_count else array)
    if values.dtype.kind != "f":
        return values.astype(np.int64).view(np.uint64)
    wide = values.astype(np.float64)
    whole = (np.abs(wide) < 2**53) & (wide == np.floor(wide))
    bits = np.where(np.isnan(wide), np.uint64(_NAN), wide.view(np.uint64))
    return np.where(whole, np.where(whole, wide, 0).astype(np.int64).view(np.uint64), bits)
