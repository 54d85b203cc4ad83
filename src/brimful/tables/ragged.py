"""The columnar kernels. A ragged column is a flat array of values and its offsets.

No Python runs once a sample here: that would cost 10 to 100 times more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.plan.errors import DataError
from brimful.tables.origins import HIDDEN, where

_INT32_MAX: Final = 2**31 - 1
_NUMBERS: Final = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DTYPES: Final = {pa.from_numpy_dtype(dtype).id: dtype for dtype in (*_NUMBERS, *map(np.dtype, ("f2", "f4", "f8")))}
TruncateSide = Literal["right", "left", "middle"]
"""The part of a sample that is left out where it is cut."""
LABELS: Final = "labels"
SHIFTED: Final = "shift_labels"
MASK: Final = "attention_mask"
TOKEN_COLUMNS: Final = (MASK, "token_type_ids", "position_ids", "special_tokens_mask", LABELS, SHIFTED)
"""Those of these that there are go with the tokens, where the user names none."""
TOKENS: Final = "input_ids"
"""What is planned over, unless a user says something else."""
COMPLETION: Final = "completion_mask"
SIDE_COLUMNS: Final = (*TOKEN_COLUMNS, COMPLETION, "assistant_mask", "assistant_masks")
"""Those that go with the tokens of a side, whose prefix they have: `chosen_labels` with `chosen_input_ids`."""
PROMPT: Final = "prompt_"
"""The prefix of a prompt that all sides share."""
NOT_TRAINED_ON: Final = -100
"""The label of a token that is not predicted."""
COLUMN_KINDS: Final = "column_kinds"
"""The key of a packed batch that says of each column by name what it has a value for: "slots", "pieces" or "rows"."""
REMEDIES: Final = {
    "input_ids": "; tokenize() makes it of text. Where tokens stand in another column, rename() it, or name it in length_column="
}
"""The remedy where a column is missing."""
SIZES: Final = (
    "; a size is the length of a list column, the value of a number column, or what a function in length_column= says"
)
"""The remedy where a column is missing that is planned over."""


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values, each once, in order. (`np.unique` by itself imports `numpy.ma` at its first call, 25 ms.)

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return np.unique(values, return_counts=True)[0]


class Ragged(NamedTuple):
    """Row i is `values[offsets[i]:offsets[i + 1]]`; `offsets` is int32 or int64 (n + 1,) and need not begin at 0."""

    values: NDArray[Any]
    offsets: NDArray[Any]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row, int64 (n,)."""
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where some rows begin, and how many values they have, int64 (len(rows),) each."""
        starts = self.offsets[rows].astype(np.int64, copy=False)
        return starts, self.offsets[rows + 1] - starts


def is_labels(name: str) -> bool:
    """Whether a column holds labels, by its name.

    >>> [is_labels(name) for name in ("labels", "shift_labels", "chosen_labels", "labels_of")]
    [True, True, True, False]
    """
    return name == LABELS or name.endswith(f"_{LABELS}")


def loss_labels(names: Collection[str]) -> str | None:
    """The labels that a loss is taken over: `shift_labels` where they are there, as in models of transformers, else `labels`.

    >>> loss_labels(["labels", "shift_labels"]), loss_labels(["chosen_labels", "labels"]), loss_labels(["chosen_labels"])
    ('shift_labels', 'labels', None)
    """
    return SHIFTED if SHIFTED in names else LABELS if LABELS in names else None  # torch 2.6 compiles no next(..., None)


def prefix_of(name: str) -> str:
    """The prefix of a column of tokens; "" where it has none.

    >>> [prefix_of(name) for name in ("chosen_input_ids", "input_ids", "source")]
    ['chosen_', '', '']
    """
    return name.removesuffix(TOKENS) if name.endswith(f"_{TOKENS}") else ""


def is_ragged(kind: pa.DataType) -> bool:
    """Whether a column is lists of numbers or booleans, or of null: then all lists of the block were empty."""
    return is_list(kind) and bool(pa.types.is_primitive(kind.value_type) or pa.types.is_null(kind.value_type))


def is_lists(kind: pa.DataType) -> bool:
    """Whether a column is lists as `is_ragged` has them, or lists of arrays of one shape, such as the frames of a spectrogram."""
    return is_ragged(kind) or bool(inner_shape(kind))


def inner_shape(kind: pa.DataType) -> tuple[int, ...]:
    """The shape of each item of lists, by lists of a fixed size inside them; () where items are numbers, or anything else.

    >>> inner_shape(pa.list_(pa.list_(pa.list_(pa.int8(), 3), 2))), inner_shape(pa.list_(pa.int8()))
    ((2, 3), ())
    """
    sizes: list[int] = []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
        while pa.types.is_fixed_size_list(kind):
            sizes.append(kind.list_size)
            kind = kind.value_type
    return tuple(sizes) if is_number(kind) or pa.types.is_boolean(kind) else ()


def is_list(kind: pa.DataType) -> bool:
    """Whether a column is lists of any type."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def ragged(block: pa.RecordBatch, column: str, remedy: str = "") -> Ragged:
    """A list column of a block as numpy views, without a copy: of lists of arrays of one shape, values (n, *shape).

    Args:
        remedy: the end of the message where the column is missing, unless it has one of its own, or is no list.
    Raises:
        DataError: the column is missing, is no list of numbers or of such arrays, or has a null.
    """
    array = column_of(block, column, remedy=REMEDIES.get(column, remedy))
    if not is_lists(array.type):
        raise DataError(f"column {column!r} must be a list of numbers (got {array.type}; {where(block, 0)}){remedy}")
    refuse_nulls(block, column)
    values, offsets = _flat(array)
    if inner := inner_shape(array.type):
        values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]
    for _ in inner:
        values = values if values.null_count else values.flatten()
    if values.null_count:
        raise DataError(
            f"column {column!r} has a null inside a list (near {where(block, 0)}); filter it out or fill it"
        )
    return Ragged(numpy_of(values).reshape(-1, *inner), offsets)


def equally_long(block: pa.RecordBatch, names: Sequence[str], verb: str = "") -> list[Ragged]:
    """Several list columns of a block.

    Args:
        verb: the method, where the message names it.
    Raises:
        DataError: a row has lists of two lengths; with both and its place.
    """
    columns = [ragged(block, name) for name in names]
    sizes = columns[0].lengths
    for name, column in zip(names[1:], columns[1:]):
        differ = np.flatnonzero(column.lengths != sizes)
        if len(differ):
            row = int(differ[0])
            raise DataError(
                f"{verb and verb + ': '}columns {names[0]!r} and {name!r} must be equally long "
                f"(got {sizes[row]:,} and {column.lengths[row]:,}; {where(block, row)})"
            )
    return columns


def cut_together(block: pa.RecordBatch, names: Sequence[str], verb: str) -> list[Ragged]:
    """The columns that a chunker cuts; a chunk has no others.

    Raises:
        DataError: a list that says which tokens are seen, or trained on, would be left out: every token would count. Or a row
            has lists of two lengths.
    """
    left_out = [
        one.name
        for one in block.schema
        if one.name not in names and is_list(one.type) and (one.name in TOKEN_COLUMNS or is_labels(one.name))
    ]
    if left_out and block.num_rows:
        which = left_out[0] if len(left_out) == 1 else left_out
        raise DataError(
            f"{verb} keeps target_columns={list(names)} alone, and would leave out {', '.join(map(repr, left_out))} "
            f"({where(block, 0)}): every token would be seen and trained on. Name what goes along, "
            f"target_columns={[*names, *left_out]}, or drop({which!r}) first"
        )
    return equally_long(block, names)


def _flat(array: pa.Array) -> tuple[pa.Array, NDArray[Any]]:
    """The values of a list column and its offsets; no null among the values but its own."""
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten(), np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
    values, offsets = array.values, numpy_of(array.offsets)
    if values.null_count:  # perhaps of rows that are not of this block, which shares their memory
        return values[offsets[0] : offsets[-1]], offsets - offsets[0]
    return values, offsets


def column_of(block: pa.RecordBatch, column: str, *, remedy: str = "") -> pa.Array:
    """A column of a block by name.

    Args:
        remedy: the end of the message.
    Raises:
        DataError: naming the columns that there are, and the place of the first row.
    """
    index = block.schema.get_field_index(column)
    if index < 0:
        names = [name for name in block.schema.names if not name.startswith(HIDDEN)]
        raise no_column(column, names, where(block, 0), remedy)
    return block.column(index)


def refuse_nulls(block: pa.RecordBatch, column: str, verb: str = "") -> None:
    """Refuses a column in which a row has no value. `verb`: the method, where the message names it."""
    array = block.column(column)
    if array.null_count:
        place = where(block, int(np.flatnonzero(null_in(array))[0]))
        raise DataError(
            f"{verb and verb + ': '}column {column!r} is null or missing ({place}); filter it out or fill it"
        )


def no_column(column: str, names: Iterable[str], place: str, remedy: str = "") -> DataError:
    """The error for a column that is not among `names`."""
    return DataError(f"there is no column {column!r} (columns: {', '.join(names) or 'none'}; {place}){remedy}")


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy dtype of a type of numbers. `to_pandas_dtype` of pyarrow 24 fails where pandas is not installed."""
    return _DTYPES[kind.id]


def numpy_of(values: pa.Array) -> NDArray[Any]:
    """Values without a null as a numpy array; numbers without a copy. Values of the type null become int64.

    For numbers and truth values neither this nor `array_of` imports pandas (.4 s), as `to_numpy` and `pa.array` do.
    """
    if pa.types.is_boolean(values.type):
        bits = np.frombuffer(values.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(np.bool_)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        dtype, memory = dtype_of(values.type), values.buffers()[1]
        if memory is None or not len(values):
            return np.zeros(0, dtype)
        return np.frombuffer(memory, dtype, len(values), values.offset * dtype.itemsize)
    if pa.types.is_interval(values.type):  # pyarrow ends the process in `to_numpy` where pandas is not installed
        return np.fromiter(values.to_pylist(), dtype=object, count=len(values))
    typed = values.cast(pa.int64()) if pa.types.is_null(values.type) else values
    result: NDArray[Any] = typed.to_numpy(zero_copy_only=False)
    return result


def array_of(values: NDArray[Any]) -> pa.Array:
    """Numbers, or truth values, as an Arrow array; numbers without a copy."""
    if values.dtype.kind not in "iufb" or not values.dtype.isnative or values.ndim != 1:
        return pa.array(values)
    raw = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(raw)])


def null_in(array: pa.Array) -> NDArray[np.bool_]:
    """Which values of a column are null, (n,)."""
    return numpy_of(array.is_null()) if array.null_count else np.zeros(len(array), dtype=np.bool_)


def list_array(
    values: NDArray[Any] | pa.Array, offsets: NDArray[np.int64], null: NDArray[np.bool_] | None = None
) -> pa.Array:
    """A list column from flat values and int64 offsets (n + 1,). The column has 64-bit offsets only where 32 bits do not reach.

    `values` (n, *shape): lists of arrays of one shape. `null`, (n,): which rows are null.
    """
    flat = values if isinstance(values, pa.Array) else in_lists(array_of(values.reshape(-1)), values.shape[1:])
    mask = array_of(null) if null is not None and null.any() else None
    if offsets[-1] > _INT32_MAX:
        return pa.LargeListArray.from_arrays(array_of(offsets), flat, mask=mask)
    return pa.ListArray.from_arrays(array_of(offsets.astype(np.int32, copy=False)), flat, mask=mask)


def in_lists(values: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Values as lists of a fixed size, one inside the other, for each array of a shape."""
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


def token_counts(block: pa.RecordBatch, columns: Sequence[str], required: bool) -> NDArray[np.int64]:
    """Lengths of the rows' lists, or their values where a column is of numbers, int64 (n,) or (n, d); zeros where the columns are
    absent and not required."""
    if not required and not (columns and set(columns) <= set(block.schema.names)):
        return np.zeros(block.num_rows, dtype=np.int64)
    counts = [_sizes(block, column) for column in columns]
    return counts[0] if len(counts) == 1 else np.stack(counts, axis=1)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type has a number in each row."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _sizes(block: pa.RecordBatch, column: str) -> NDArray[np.int64]:
    """
    Raises:
        DataError: a number is no size; with file and line.
    """
    at = block.schema.get_field_index(column)
    if at < 0 or not is_number(block.schema.field(at).type):
        return ragged(block, column, SIZES).lengths
    refuse_nulls(block, column)
    values = numpy_of(block.column(at))
    with np.errstate(invalid="ignore"):
        sizes = values.astype(np.int64)
    if len(wrong := np.flatnonzero((sizes != values) | (sizes < 0))):
        row = int(wrong[0])
        raise DataError(
            f"column {column!r} is planned over, and holds {values[row]} ({where(block, row)}): a size is a whole number, 0 or "
            "more. Give length_column= a function of a block that makes some"
        )
    return sizes


def unmasked(block: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """A block without the values that `attention_mask` hides, in those of `columns` that it has; the mask is one of them.

    Raises:
        DataError: a row of a column is not as long as its mask; with file and line.
    Price: nothing where nothing is hidden; else about 10 ns a token.
    """
    rows = np.arange(block.num_rows)
    if MASK not in columns or not (hidden := num_hidden(block, rows)).any():
        return block
    names = [name for name in columns if name in block.schema.names and is_lists(block.schema.field(name).type)]
    lists = equally_long(block, names)
    mask = lists[names.index(MASK)]
    seen = mask.values[mask.offsets[0] : mask.offsets[-1]] != 0
    offsets = offsets_of(mask.lengths - hidden)
    for name, column in zip(names, lists, strict=True):
        values = column.values[column.offsets[0] : column.offsets[-1]]
        block = with_column(block, name, list_array(values[seen], offsets))
    return block


def truncated(block: pa.RecordBatch, columns: Sequence[Sequence[str]], most: int, side: TruncateSide) -> pa.RecordBatch:
    """A block with at most `most` values in each row of those of `columns` that it has, those of a group cut alike.

    A label that would be predicted over what is left out is -100: of `labels` the first one after it, of `shift_labels` the last
    one before it.

    Args:
        side: what is left out: "right" the end of a row, "left" its beginning, "middle" what lies between two halves.
    Raises:
        DataError: the columns of a row have two lengths; with file and line.
    Price: about 10 ns a token.

    >>> block = pa.RecordBatch.from_pydict({"input_ids": [[1, 2, 3, 4, 5]], "labels": [[1, 2, 3, 4, 5]]})
    >>> [truncated(block, [["input_ids", "labels"]], 3, side).column(1).to_pylist() for side in ("left", "middle")]
    [[[-100, 4, 5]], [[1, 2, -100]]]
    """
    lists = {field.name for field in block.schema if is_lists(field.type)}
    groups = [[name for name in group if name in lists] for group in columns]
    for name, column in [pair for names in groups if names for pair in zip(names, equally_long(block, names))]:
        begins, sizes = column.spans(np.arange(block.num_rows))
        kept = np.minimum(sizes, most)
        head = {"right": kept, "left": np.zeros_like(kept), "middle": kept - kept // 2}[side]
        starts = np.stack((begins, begins + sizes - kept + head), axis=1).ravel()
        values = gather(column.values, starts, np.stack((head, kept - head), axis=1).ravel()).values
        offsets, cut = offsets_of(kept), kept < sizes
        seams = (
            (offsets[:-1] + head)[cut & (kept > head)]
            if name != SHIFTED
            else (offsets[:-1] + head - 1)[cut & (head > 0)]
        )
        if is_labels(name) and len(seams) and values.dtype.kind in "iu":
            values = values.astype(holding(values.dtype, NOT_TRAINED_ON), copy=False)
            values[seams] = NOT_TRAINED_ON
        block = with_column(block, name, list_array(values, offsets))
    return block


def prompted(block: pa.RecordBatch, sides: Sequence[str]) -> pa.RecordBatch:
    """A block whose prompt, the columns that begin with `prompt_`, is put before each side, and left out. Where no side has
    labels, all get some: their own tokens, and -100 for those of the prompt.

    Args:
        sides: their prefixes.
    Raises:
        DataError: nothing says what one of a side's columns is for the tokens of the prompt.
    Price: nothing where there is no prompt; else about 10 ns a token of each side.

    >>> block = pa.RecordBatch.from_pydict({"prompt_input_ids": [[1, 2]], "chosen_input_ids": [[3]]})
    >>> prompted(block, ["chosen_"]).to_pylist()
    [{'chosen_input_ids': [1, 2, 3], 'chosen_labels': [-100, -100, 3]}]
    """
    names = block.schema.names
    if not sides or PROMPT + TOKENS not in names:
        return block
    prompt, own = ragged(block, PROMPT + TOKENS), {PROMPT + kind for kind in (TOKENS, *SIDE_COLUMNS)} & {*names}
    given, labelled = block, any(side + LABELS in names for side in sides)
    for side in sides:
        if side + TOKENS not in names:  # whoever needs it says what to do
            continue
        tokens = ragged(given, side + TOKENS)
        for kind in (TOKENS, *SIDE_COLUMNS):
            name = side + kind
            if name not in names and (kind != LABELS or labelled):
                continue
            if PROMPT + kind in own:
                _, before = equally_long(given, [PROMPT + TOKENS, PROMPT + kind])
            elif kind in _OF_PROMPTS:
                filled = np.full(int(prompt.lengths.sum()), _OF_PROMPTS[kind], np.int32)
                before = Ragged(filled, offsets_of(prompt.lengths))
            else:
                raise DataError(
                    f"there is a column {name!r}, and no {PROMPT + kind!r} with its values for the prompt ({where(block, 0)}). "
                    f"Add that column, or drop {name!r}"
                )
            after = equally_long(given, [side + TOKENS, name])[1] if name in names else tokens
            block = with_column(block, name, _end_to_end(before, after))
    return block.drop_columns(sorted(own))


_OF_PROMPTS: Final = {MASK: 1, LABELS: NOT_TRAINED_ON, **dict.fromkeys(SIDE_COLUMNS[-3:], 0)}
"""What columns of a side hold for the tokens of a prompt that says nothing else."""


def _end_to_end(first: Ragged, second: Ragged) -> pa.Array:
    """The lists of two columns, row by row one after the other."""
    (before, at), (after, then) = (
        (one.values[one.offsets[0] : one.offsets[-1]], one.offsets[:-1] - one.offsets[0]) for one in (first, second)
    )
    starts, counts = np.stack((at, then + len(before)), axis=1), np.stack((first.lengths, second.lengths), axis=1)
    return list_array(
        gather(np.concatenate((before, after)), starts.ravel(), counts.ravel()).values, offsets_of(counts.sum(axis=1))
    )


def num_hidden(block: pa.RecordBatch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens `attention_mask` hides in some rows, (len(rows),); zeros where it is no list of numbers."""
    if MASK not in block.schema.names or not is_ragged(block.schema.field(MASK).type):
        return np.zeros(len(rows), dtype=np.int64)
    mask = ragged(block, MASK)
    values, offsets = gather(mask.values, *mask.spans(rows))
    before = offsets_of(values == 0)
    hidden: NDArray[np.int64] = before[offsets[1:]] - before[offsets[:-1]]
    return hidden


def offsets_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """The offsets of rows with so many values, int64 (n + 1,).

    >>> offsets_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def gather(values: NDArray[Any], starts: NDArray[Any], counts: NDArray[Any]) -> Ragged:
    """Runs of `counts` values from `starts` on, end to end in a new flat array. Price: about 5 ns a value."""
    offsets = offsets_of(counts)
    kind = np.int32 if max(len(values), offsets[-1]) <= _INT32_MAX else np.int64  # 3 ns a value less
    return Ragged(values.take(runs(starts, offsets, kind), axis=0), offsets)


def runs(starts: NDArray[Any], offsets: NDArray[np.int64], kind: type[np.int32 | np.int64] = np.int64) -> NDArray[Any]:
    """Runs of consecutive numbers, end to end. Run i begins with starts[i] and fills offsets[i] to offsets[i + 1].

    >>> runs(np.array([7, 0]), np.array([0, 2, 3])).tolist()
    [7, 8, 0]
    """
    out: NDArray[Any] = np.arange(offsets[-1], dtype=kind)
    firsts = offsets[:-1]
    out += np.repeat(starts.astype(kind, copy=False) - firsts.astype(kind, copy=False), offsets[1:] - firsts)
    return out


def flat(given: Iterable[Sequence[int]], count: int) -> Ragged:
    """The tokens of each of `count` texts, as a tokenizer gave them, as int32, flat. Price: about 25 ns a token."""
    rows = list(given)
    if len(rows) != count:
        raise ValueError(f"the tokenizer returned {len(rows):,} results for {count:,} texts")
    offsets = offsets_of(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
    values = itertools.chain.from_iterable(rows)
    return Ragged(np.fromiter(values, dtype=np.int32, count=int(offsets[-1])), offsets)


def trained_on(
    labels: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many labels of each run are trained on (not -100), and whether the first one is, int64 (n,) each.

    `ends`: of the runs. Without it, `begins` has one more number, and each run ends where the next begins. Price: 3 ns a label.

    >>> [counts.tolist() for counts in trained_on(np.array([-100, 7, 7, 8]), np.array([0, 3, 3, 4]))]
    [[2, 0, 1], [0, 0, 1]]
    """
    if ends is None:
        begins, ends = begins[:-1], begins[1:]
    before = np.zeros(len(labels) + 1, dtype=np.int32 if len(labels) <= _INT32_MAX else np.int64)
    np.cumsum(labels != NOT_TRAINED_ON, out=before[1:])
    some = begins < ends
    firsts = np.zeros(len(begins), dtype=np.int64)
    firsts[some] = labels[begins[some]] != NOT_TRAINED_ON
    return (before[ends] - before[begins]).astype(np.int64), firsts


def surround(
    column: Ragged,
    before: int | None,
    after: int | None,
    at_start: NDArray[np.bool_] | None = None,
    at_end: NDArray[np.bool_] | None = None,
) -> Ragged:
    """Each row with one value before it and one after it (None: nothing). `at_start`, `at_end`, (n,): only where true.

    The type is that of the values, or the next one that also holds the new values, whether or not a row takes them.
    """
    count, first, last = len(column.offsets) - 1, int(column.offsets[0]), int(column.offsets[-1])
    starts, ends = (
        np.full(count, token is not None) if at is None or token is None else at
        for token, at in ((before, at_start), (after, at_end))
    )
    offsets = column.offsets - first + offsets_of(starts.astype(np.int8) + ends)
    values = np.empty(offsets[-1], dtype=holding(column.values.dtype, before or 0, after or 0))
    inner = np.ones(len(values), dtype=bool)
    for token, places in ((before, offsets[:-1][starts]), (after, offsets[1:][ends] - 1)):
        if token is not None:
            values[places] = token
            inner[places] = False
    values[inner] = column.values[first:last]
    return Ragged(values, offsets)


def holding(dtype: Any, *values: int) -> Any:
    """A numeric type; an integer type that is too small for some values becomes the next one that holds them."""
    if dtype.kind not in "iu" or all(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max for value in values):
        return dtype
    wide = np.result_type(dtype, *(np.min_scalar_type(value) for value in values))
    return wide if wide.kind in "iu" else np.dtype(np.int64)


class Gaps(NamedTuple):
    """Where padded rows have no value: `where` is a mask over `columns`; in all other columns every row has a value."""

    columns: slice
    where: NDArray[np.bool_]


def gaps(counts: NDArray[np.int64], width: int, left: bool = False, least: int | None = None) -> Gaps:
    """The gaps of rows of `counts` values, the least of which may be known, that are padded to `width`."""
    ragged_width = width - (int(counts.min(initial=width)) if least is None else least)
    if left:
        return Gaps(slice(0, ragged_width), np.arange(ragged_width) < (width - counts)[:, None])
    return Gaps(slice(width - ragged_width, width), np.arange(width - ragged_width, width) >= counts[:, None])


def pad(
    values: NDArray[Any],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    width: int,
    fill: Any,
    dtype: Any,
    left: bool,
    at: Gaps | None = None,
    fits: bool = False,
) -> NDArray[Any]:
    """Runs of `counts` values, at most `width` each, as one (n, width) array; the rest of each row is `fill`. Values (m, *shape)
    give (n, width, *shape).

    `at`: `gaps(counts, width, left)`, where the caller has it already; `fits`: it knows that `width` values follow each start.
    Price: about 1 ns a slot where the values are in the cache: each row is one copy of `width` neighbouring values, then
    the columns in which a row ends are filled.
    """
    at = gaps(counts, width, left) if at is None else at
    if left:
        starts = starts + (counts - width)
    shape = values.shape[1:]
    out = np.empty((len(starts), width, *shape), dtype=dtype)
    if fits or (len(starts) and starts.min() >= 0 and starts.max() + width <= len(values)):
        out[...] = _neighbours(values, width)[starts]
    elif len(values):  # a row at an end of the values has no `width` neighbours
        out[...] = values.take(starts[:, None] + np.arange(width), axis=0, mode="clip")
    if at.where.size:
        where = at.where.reshape(at.where.shape + (1,) * len(shape)) if shape else at.where
        np.copyto(out[:, at.columns], fill, where=where)
    return out


def attention_mask(at: Gaps, width: int) -> NDArray[np.int64]:
    """1 where a padded row has a value, 0 where it is padding: int64 (n, width)."""
    out = np.empty((len(at.where), width), dtype=np.int64)
    out.fill(1)
    if at.where.size:
        np.logical_not(at.where, out=out[:, at.columns], casting="unsafe")
    return out


def _neighbours(values: NDArray[Any], width: int) -> NDArray[Any]:
    """A view (len(values) - width + 1, width, *shape): row i is the `width` values from i on."""
    shape, strides = (len(values) - width + 1, width, *values.shape[1:]), (values.strides[0], *values.strides)
    return np.ndarray(shape, values.dtype, values, 0, strides)


EMPTY: Final = pa.RecordBatch.from_arrays([], names=[])


def empty_block(schema: pa.Schema) -> pa.RecordBatch:
    """No row of a schema. (Arrow makes no array of lists of JSON from Python's values.)"""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def with_column(block: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """A block with a column added or replaced."""
    index = block.schema.get_field_index(name)
    return block.append_column(name, values) if index < 0 else block.set_column(index, name, values)


def has_fixed_bytes(kind: pa.DataType) -> bool:
    """Whether all values have the same number of bytes: numbers, truth values, times, decimals, bytes of a fixed size."""
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def fixed_bytes(array: pa.Array) -> NDArray[np.uint8]:
    """The bytes of such values without a null, (n, width). Times have bytes too, where numpy has pointers to objects."""
    if pa.types.is_boolean(array.type):
        return numpy_of(array).view(np.uint8)[:, None]
    width = array.type.bit_width // 8
    memory = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    return memory[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)


def has_offsets(kind: pa.DataType) -> bool:
    """Whether a column is of lists, texts or bytes of any length."""
    return offset_type(kind) is not None


def any_part(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or a part of it, passes a test.

    >>> any_part(pa.list_(pa.float32()), pa.types.is_floating), any_part(pa.int8(), pa.types.is_floating)
    (True, False)
    """
    parts = (kind.field(number).type for number in range(kind.num_fields))
    return test(kind) or any(any_part(part, test) for part in parts)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column is of text, with offsets of any width or as views."""
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def offset_type(kind: pa.DataType) -> type[np.int32] | type[np.int64] | None:
    """The type of the offsets of lists, texts and bytes of any length; None for other types."""
    if pa.types.is_list(kind) or kind in (pa.string(), pa.binary()):
        return np.int32
    if pa.types.is_large_list(kind) or kind in (pa.large_string(), pa.large_binary()):
        return np.int64
    return None


def offsets_in(array: pa.Array) -> NDArray[np.int64]:
    """The offsets of a list, map or text column, int64 (n + 1,)."""
    kind, count = np.dtype(offset_type(array.type) or np.int32), len(array) + 1
    return np.frombuffer(array.buffers()[1], kind, count, array.offset * kind.itemsize).astype(np.int64)


def bytes_in(array: pa.Array, width: Callable[[pa.DataType], int] = lambda kind: 8) -> int:
    """About how many bytes the rows of a column take. It depends on the rows alone: Arrow's own figures (`nbytes`, the size of a
    message) depend on the memory around them. Two blocks together take as much as apart.

    Args:
        width: the bytes of a value of a type of fixed width.
    """
    if pa.types.is_primitive(array.type):
        return width(array.type) * len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.StructArray):
        return sum(bytes_in(column, width) for column in array.flatten())
    if isinstance(array, pa.MapArray):
        first, last = offsets_in(array)[[0, -1]]
        return 8 * len(array) + bytes_in(array.keys[first:last], width) + bytes_in(array.items[first:last], width)
    if pa.types.is_nested(array.type):
        return 8 * len(array) + bytes_in(array.flatten(), width)
    if has_offsets(array.type):
        offsets = offsets_in(array)
        return 8 * len(array) + int(offsets[-1] - offsets[0])
    return 8 * len(array)
