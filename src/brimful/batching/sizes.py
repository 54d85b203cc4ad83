"""What samples are planned by: the length of a list column, the value of a number column, or what a function of columns says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from brimful.batching.window import PlanningWindow
from brimful.core.header import described
from brimful.core.terminal import watched
from brimful.index.index import Index
from brimful.plan.errors import DataError, StageError, logger, name_of
from brimful.tables.arrays import RaggedArrayType, spans_of
from brimful.tables.blocks import Block, visible
from brimful.tables.origins import where
from brimful.tables.ragged import TOKENS, array_of, is_number, refuse_nulls, token_counts

IntArray: TypeAlias = NDArray[np.int64]
Size: TypeAlias = str | Callable[[Any], ArrayLike]
"""A column, or a function of an Arrow record batch of n rows that gives n whole numbers."""
LengthColumn: TypeAlias = Size | Sequence[Size]
"""What users give: one, or several."""


def sizes_of(setting: str, given: Any) -> tuple[Size, ...]:
    """What a user gave as sizes: a column, a function, or several of them.

    >>> def patches(block): ...
    >>> [name_of_size(one) for one in sizes_of("length_column", ["input_ids", patches])]
    ['input_ids', 'patches']
    """
    several = isinstance(given, Iterable) and not isinstance(given, str)
    found: tuple[Any, ...] = tuple(given) if several else (given,)
    if odd := [one for one in found if not isinstance(one, str) and not callable(one)]:
        raise TypeError(f"{setting} takes names of columns, or functions of a block of rows (got {odd[0]!r})")
    names = [name_of_size(one) for one in found]
    if not names:
        raise ValueError(f"{setting} must name at least 1 column (got none)")
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ValueError(f"{setting} names {twice[0]!r} twice")
    return found


def name_of_size(size: Size) -> str:
    return size if isinstance(size, str) else name_of(size)


def named_sizes(names: Sequence[str], given: Sequence[Size]) -> tuple[Size, ...]:
    """The sizes of these names: a function of the name that is given, else a column.

    Raises:
        ValueError: one is given of which there is no limit.
    """
    functions = {name_of_size(one): one for one in given}
    unknown = [name for name, one in functions.items() if name not in names and one != TOKENS]
    if unknown:
        raise ValueError(f"length_column names {unknown[0]!r}, and the limits are of {', '.join(names)}")
    return tuple(functions.get(name, name) for name in names)


def of_whole_sample(window: PlanningWindow) -> bool:
    """Whether what comes first in a size belongs to a whole sample: a number, the height of an image, or what a function says. It
    is no list of which a part could be left out."""
    name = window.sizes[0] if window.sizes else TOKENS
    if name == TOKENS or (window.index is not None and name in window.index.list_columns):
        return False
    schema = window.schema
    return name not in schema.names or is_number(schema.field(name).type) or _is_array(schema, name)


def refuse_whole(name: str, overlong: str, packs: bool) -> None:
    """Refuses to cut, or to pack, by a size that belongs to a whole sample."""
    if packs:
        raise ValueError(
            f"length_column={name} says a number of each sample, and pack puts lists end to end: name the list column of the "
            "tokens first, and limit other sizes by row_limits="
        )
    raise ValueError(
        f"overlong={overlong!r} cuts lists, and length_column={name} says a number of each sample; choose 'raise', 'drop' or "
        "'alone'"
    )


def sizes_in(block: Block, sizes: Sequence[Size], required: bool) -> IntArray:
    """The sizes of the rows of a block, int64 (n,) or (n, d); zeros where columns are absent and not required."""
    columns = [one for one in sizes if isinstance(one, str) and not _is_array(block.schema, one)]
    if len(columns) == len(sizes):
        return token_counts(block, columns, required)
    found = [token_counts(block, [one], required) if one in columns else _asked(one, block) for one in sizes]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def sizes_at(
    index: Index,
    rows: Index,
    numbers: IntArray,
    sizes: Sequence[Size],
    required: bool,
    version: str | None = None,
    *,
    one_by_one: bool = False,
) -> IntArray:
    """The sizes of rows of an index. It knows the lengths of its lists, and its numbers are read with each window. For a function
    all rows are read once; and for numbers too, where rows are made `one_by_one`.

    Args:
        rows: the same rows as functions get them, with all of their columns.
        version: of the functions: with it, what they say is kept beside a store.
    """

    lists = [one for one in sizes if isinstance(one, str) and not _is_number(index, one)]
    if len(lists) == len(sizes):
        return np.asarray(index.lengths_at(numbers, lists, required), dtype=np.int64)

    def of(one: Size) -> IntArray:
        if one in lists:
            return np.asarray(index.lengths_at(numbers, [str(one)], required), dtype=np.int64)
        if not isinstance(one, str) or one_by_one:
            return _whole(rows, one, version)[numbers]
        block, places = rows.only([one]).locate(numbers)
        return sizes_in(block.take(array_of(places)), [one], required)

    found = [*map(of, sizes)]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _is_number(index: Index, name: str) -> bool:
    """Whether rows say the size: a number, or the shape of an array. Of tokens, and of lists whose lengths are known, no file is
    opened for it."""
    if name == TOKENS or name in index.list_columns or not len(index):
        return False
    schema = index.schema
    return name in schema.names and (is_number(schema.field(name).type) or _is_array(schema, name))


def _is_array(schema: pa.Schema, name: str) -> bool:
    """Whether a column holds arrays that are no lists: of a fixed shape, or with several ragged dimensions."""
    return name in schema.names and isinstance(schema.field(name).type, pa.FixedShapeTensorType | RaggedArrayType)


_WHOLE: Final[WeakKeyDictionary[Index, dict[Size, IntArray]]] = WeakKeyDictionary()


def _whole(index: Index, size: Size, version: str | None) -> IntArray:
    """A size of all rows of an index, worked out once in this process. Price: all rows are read; 8 bytes a row."""
    kept = _WHOLE.setdefault(index, {})
    if size not in kept:
        if version is None or isinstance(size, str):
            kept[size] = _read(index, size, lambda: None)
        else:
            text = json.dumps([described(size), version], sort_keys=True)
            name = f"sizes.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            kept[size] = index.kept_sizes(name, lambda working: _read(index, size, working))
    return kept[size]


def _read(index: Index, size: Size, working: Callable[[], None]) -> IntArray:
    """`working` is called after each block."""
    rows = index.only([size]) if isinstance(size, str) else index
    total, name = len(rows), f"length_column={name_of_size(size)}"
    logger.info("%s: all %s samples are read once, for their sizes", name, f"{total:,}")
    found = [np.zeros(0, np.int64)]
    for block in watched(rows.blocks(), name, total, lambda block: block.num_rows):
        found.append(sizes_in(block, [size], True))
        working()
    return np.concatenate(found)


def _asked(fn: Size, block: Block) -> IntArray:
    """What a function says of a block; of a column of arrays, the length of their first dimension.

    Raises:
        StageError: it fails; DataError: it says something else than a whole number, 0 or more, of each row.
    """
    if not block.num_rows:
        return np.zeros(0, np.int64)
    if isinstance(fn, str):
        refuse_nulls(block, fn)
        return spans_of(block.column(fn)).shapes[:, 0]
    try:
        said = np.asarray(fn(visible(block)))
    except Exception as error:
        place = where(block, 0)
        raise StageError(
            f"length_column={name_of(fn)} failed on {block.num_rows:,} rows ({place} and on): {type(error).__name__}: {error}"
        ) from error
    if said.shape != (block.num_rows,) or said.dtype.kind not in "iuf":
        raise DataError(
            f"length_column={name_of(fn)} gets a block of rows, and must give a number for each of {block.num_rows:,} rows (got "
            f"{said.dtype} of shape {said.shape})"
        )
    sizes = said.astype(np.int64) if said.dtype.kind != "f" or np.isfinite(said).all() else np.full(len(said), -1)
    if len(wrong := np.flatnonzero((sizes < 0) | (sizes != said))):
        row = int(wrong[0])
        raise DataError(
            f"length_column={name_of(fn)} must give whole numbers, 0 or more (got {said[row]} for {where(block, row)})"
        )
    return sizes
