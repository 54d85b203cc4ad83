"""The columns of a window, looked up once for all of its batches: what of each becomes an array, of which type."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Final, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.arrays.end_to_end import Jagged, RaggedOnDevice
from brimful.arrays.forms import MASK as MASK_END
from brimful.arrays.forms import OFFSETS, SHAPES, ArrayColumn, Form, NestedLists
from brimful.arrays.types import DTYPES, ColumnType, held_in, type_of
from brimful.batching.batch import Batch
from brimful.batching.labels import LabelsFollow, LossLabels, labels_of
from brimful.batching.window import PlanningWindow
from brimful.core.own_keys import LOSS_WEIGHTS, SUM_OF_WEIGHTS
from brimful.index.index import RowSpans
from brimful.plan.errors import DataError, one_of
from brimful.plan.once import once, settings_of
from brimful.tables.arrays import RaggedArrayType, Shape, kind_of, spans_of
from brimful.tables.blocks import Block, with_origin
from brimful.tables.objects import values_in
from brimful.tables.origins import HIDDEN, where
from brimful.tables.ragged import (
    LABELS,
    MASK,
    NOT_TRAINED_ON,
    SHIFTED,
    SIDE_COLUMNS,
    TOKEN_COLUMNS,
    TOKENS,
    Gaps,
    Ragged,
    any_part,
    array_of,
    distinct,
    gather,
    holding,
    inner_shape,
    is_labels,
    is_list,
    is_ragged,
    list_array,
    numpy_of,
    offsets_in,
    pad,
    prefix_of,
    ragged,
    trained_on,
)
from brimful.tables.schema import type_name
from brimful.tables.texts import texts_in

IntArray: TypeAlias = NDArray[np.int64]

MADE: Final = (*TOKEN_COLUMNS, "lengths", "segment_ids", "sample_numbers", LOSS_WEIGHTS, *SUM_OF_WEIGHTS)
"""What there may be in a batch beside the columns."""


BATCH_KEY: Final = b"brimful_key"
"""Of a block's metadata: the key of its batch, by which a user's function draws at random."""


@dataclass(frozen=True)
class ColumnRules:
    """What becomes of each column, by its name and type alone, whatever a window happens to hold.

    Args:
        length_columns: the lists whose lengths are planned over, each padded to its own length.
        token_columns: lists that are cut, padded and packed with the first of those, or with the one whose prefix they have.
            None: of TOKEN_COLUMNS those there are.
        pad_values: what padding holds, by column.
        dtypes: types of arrays, by name, where they are not to be the usual ones.
        explicit: of all these names those that the user gave, each of which there must be.
        packs: several samples lie in a row, from which tokens are left out that `attention_mask` hides: it goes with the tokens
            whether or not it is named.
        left_out: columns of text that was tokenized.
        arrays: what batches have of arrays, by column; see `forms`.
        functions: those of the length columns that are no columns, but functions of the user's.
        stacks: the length columns are the sides of a sample, which lie below one another.
        weights, piece_length: see `LabelsFollow`.
    """

    length_columns: tuple[str, ...]
    token_columns: tuple[str, ...] | None = None
    pad_values: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict, metadata={"runtime": True})
    explicit: tuple[str, ...] = field(default=(), metadata={"runtime": True})
    arrays: Mapping[str, Form] = field(default_factory=dict, metadata={"runtime": True})
    packs: bool = field(default=False, metadata={"runtime": True})
    left_out: tuple[str, ...] = field(default=(), metadata={"runtime": True})
    functions: tuple[str, ...] = field(default=(), metadata={"runtime": True})
    stacks: bool = field(default=False, metadata={"runtime": True})
    weights: str | None = field(default=None, metadata={"runtime": True})
    piece_length: int = field(default=0, metadata={"runtime": True})

    def __post_init__(self) -> None:
        for name, dtype in self.dtypes.items():
            one_of(f"dtypes[{name!r}]", dtype, *DTYPES)
        for name, form in self.arrays.items():
            one_of(f"arrays[{name!r}]", form, *get_args(Form))
        for name in self.token_columns or ():
            if name in self.length_columns:
                raise ValueError(f"{name!r} is a length column; it cannot be one of token_columns too")

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def aligned_with(self, name: str) -> int | None:
        """The number of the length column that a list is cut, padded and packed with; None: it has a length of its own.

        >>> rules = ColumnRules(("source", "target"))
        >>> rules.aligned_with("target"), rules.aligned_with("labels"), rules.aligned_with("tags")
        (1, 0, None)
        >>> rules = ColumnRules(("chosen_input_ids", "rejected_input_ids"))
        >>> rules.aligned_with("chosen_labels"), rules.aligned_with("rejected_labels"), rules.aligned_with("labels")
        (0, 1, None)
        >>> ColumnRules(("chosen_input_ids",)).aligned_with("chosen_labels")
        0
        """
        return next((number for number, group in enumerate(self.aligned) if name in group), None)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefix that the columns of each side have, by length column; "" of a single one."""
        return tuple(map(prefix_of, self.length_columns)) if len(self.length_columns) > 1 else ("",)

    @once
    def masks(self) -> dict[str, int]:
        """The names of the masks that batches have, with the number of the length column of each."""
        return {prefix + MASK: number for number, prefix in enumerate(self.prefixes) if prefix or not number}

    @once
    def aligned(self) -> tuple[tuple[str, ...], ...]:
        """The length columns, each with the lists that are cut, padded and packed with it, as far as there are such: with the
        first one, and with any that has a prefix, those of its prefix."""
        groups = []
        for number, (name, prefix) in enumerate(zip(self.length_columns, self.prefixes)):
            if self.token_columns is not None:
                named = [each for each in self.token_columns if self._side_of(each) == number]
            elif prefix:
                named = [prefix + kind for kind in SIDE_COLUMNS]
            else:
                own = prefix_of(name) if len(self.length_columns) == 1 and not self.packs else ""
                named = [*TOKEN_COLUMNS, *(own + kind for kind in SIDE_COLUMNS if own)] if not number else []
            hidden_by = [MASK] if self.packs and not number and MASK not in named else []
            groups.append((name, *(each for each in (*named, *hidden_by) if each not in self.length_columns)))
        return tuple(groups)

    def _side_of(self, name: str) -> int:
        """The number of the length column whose prefix a column has; else 0."""
        return next((number for number, prefix in enumerate(self.prefixes) if prefix and name.startswith(prefix)), 0)

    def lists_among(self, fields: Mapping[str, pa.Field]) -> tuple[int, ...]:
        """The numbers of the length columns that are lists, unless they have a form of their own; none where one is not among the
        columns."""
        there = [name in fields or name in self.functions for name in self.length_columns]
        if not all(there):
            return ()
        names = enumerate(self.length_columns)
        padded = {name for name in fields if self.arrays.get(name, "pad") == "pad"}
        return tuple(number for number, name in names if name in padded and is_list_column(fields[name].type))

    @once
    def labels_follow(self) -> LabelsFollow:
        """How labels are counted."""
        as_numbers = tuple(name for name in (LABELS, SHIFTED) if "int" not in self.dtypes.get(name, "int64"))
        aligned_with = self.aligned_with(LABELS), self.aligned_with(SHIFTED)
        return LabelsFollow(
            *(*aligned_with, self.length_columns, as_numbers, self.functions, self.stacks),
            weights=self.weights,
            piece_length=self.piece_length,
        )


@dataclass(frozen=True, eq=False)
class ListColumn:
    """A column of lists of numbers, or of arrays of one shape: sample i of the window has
    `values[starts[i] : starts[i] + counts[i]]`, each of these with all dimensions of `values` but the first.

    Args:
        aligned_with: the number of the length column that it is cut, padded and packed with; None: padded to its own longest.
    """

    name: str
    values: NDArray[Any]
    starts: IntArray
    counts: IntArray
    aligned_with: int | None
    fill: Any
    type: ColumnType

    def padded(
        self, numbers: IntArray, sizes: IntArray, width: int, left: bool, at: Gaps | None = None
    ) -> NDArray[Any]:
        """The first `sizes` values of some samples, padded: (len(numbers), width, ...)."""
        starts = self.starts[numbers]
        if self.type.limits:
            self.type.check(self.name, gather(self.values, starts, sizes).values)
        fits = not left and width <= self.room
        values = pad(self.values, starts, sizes, width, self.fill, self.type.made, left, at, fits)
        if self.name == SHIFTED:
            values[sizes < self.counts[numbers], -1] = self.fill
        return self.type.array(values)

    @once
    def room(self) -> int:
        """So many values follow each start, of this sample and of others."""
        return len(self.values) - int(self.starts.max(initial=0)) if self.starts.min(initial=0) >= 0 else 0

    def cut(self, numbers: IntArray, starts: IntArray | int, sizes: IntArray) -> Ragged:
        """`sizes` values of some samples, from value `starts` of each on, end to end. Where a sample goes on after them, the last
        of its shifted labels is that of a token that is not here, and asks for nothing."""
        found = gather(self.values, self.starts[numbers] + starts, sizes)
        if self.name == SHIFTED:
            goes_on = (starts + sizes < self.counts[numbers]) & (sizes > 0)
            values = found.values.astype(holding(found.values.dtype, int(self.fill)), copy=False)
            values[found.offsets[1:][goes_on] - 1] = self.fill
            return Ragged(values, found.offsets)
        return found

    def unpadded(self, numbers: IntArray, sizes: IntArray, width: int, left: bool) -> RaggedOnDevice:
        """What `padded` gives, once it is padded."""
        values, offsets = self.cut(numbers, 0, sizes)
        self.type.check(self.name, values)
        flat, starts, counts = map(np.ascontiguousarray, (values, offsets[:-1], sizes))
        return RaggedOnDevice(flat, starts, counts, width, self.fill.item(), left, self.type)

    def entries(self, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """The lists of some samples, padded to the longest of them."""
        counts = self.counts[numbers]
        return {self.name: self.padded(numbers, counts, max(1, int(counts.max())), left)}

    def jagged(self, numbers: IntArray, sizes: IntArray) -> Jagged:
        """The first `sizes` values of some samples end to end."""
        values, offsets = self.cut(numbers, 0, sizes)
        self.type.check(self.name, values)
        return Jagged(self.type.array(values), offsets, int(sizes.min()), int(sizes.max()))

    def spread(self, index: IntArray, gaps: IntArray) -> NDArray[Any]:
        """The values at `index`, which is changed, and padding in the gaps, in a type that just holds them."""
        index[gaps] = 0
        shape = (len(index), *self.values.shape[1:])
        found = self.values.take(index, axis=0) if len(self.values) else np.zeros(shape, self.values.dtype)
        if self.type.limits:
            self.type.check(self.name, np.delete(found, gaps, axis=0))
        values = found.astype(held_in(found.dtype, self.fill, self.type.made), copy=False)
        values[gaps] = self.fill
        return values


@dataclass(frozen=True, eq=False)
class StackedColumn:
    """Numbers, lists of a fixed size, or arrays of one shape: (len(window), *shape)."""

    name: str
    values: NDArray[Any]

    def entries(self, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """Those of some samples, (len(numbers), *shape)."""
        return {self.name: self.values[numbers]}


@dataclass(frozen=True, eq=False)
class ObjectColumn:
    """Anything else: an Arrow array with a value for each row of a block."""

    name: str
    values: pa.Array
    rows: IntArray

    def entries(self, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """Those of some samples, a list."""
        return {self.name: values_in(self.values.take(pa.array(self.rows[numbers])))}


@dataclass(frozen=True, eq=False)
class WindowColumns:
    """The columns of a window that users see, looked up once for all of its batches.

    Args:
        given: the length columns, those of lists; none where not all length columns are there.
        at: which of the sizes that are planned over each of them has.
        labels: how those that a loss is taken over are counted; None where there are none.
    """

    lengths: IntArray
    given: tuple[str, ...]
    at: tuple[int, ...]
    all: tuple[Column, ...]
    rules: ColumnRules
    labels: LossLabels | None
    _types: dict[tuple[str, np.dtype[Any]], ColumnType] = field(default_factory=dict)

    def entries(self, column: Column, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """What a batch of some samples has of a column that is not cut with the tokens, by key, in the types that users want.

        Raises:
            DataError: a key beside the column's own has the name of another column, or of what else there is.
        """
        made = column.entries(numbers, default, left)
        if len(made) > 1:
            beside = {key: self.made(key, values) for key, values in made.items() if key != column.name}
            refuse_taken(beside, (*(one.name for one in self.all), *MADE, *self.masks))
            made |= beside
        return made

    def sizes(self, batch: Batch) -> list[IntArray]:
        """How many values the samples, or pieces, of a batch keep, by length column."""
        if not self.given and batch.plan.pieces is None:
            return []
        sizes = batch.plan.sizes[batch.span]
        return [sizes] if sizes.ndim == 1 else [sizes[:, number] for number in self.at]

    @once
    def masks(self) -> dict[str, int]:
        """The names of the masks that batches have, with the place in `given` of the length column of each."""
        found = {name: self.at.index(number) for name, number in self.rules.masks.items() if number in self.at}
        return found if found or not self.given else {MASK: 0}

    def widths(self, batch: Batch) -> tuple[int, ...]:
        """What the samples of a batch are padded to, by length column."""
        widths = batch.widths
        return widths if len(widths) == len(self.at) == 1 else tuple(widths[number] for number in self.at)

    def hides_labels(self, by_row: bool) -> bool:
        """Whether labels count as one a sample, and the arrays of a batch do not show it: lists of integers, which may be taken
        for those of tokens, or any lists in a layout that has no row a sample (`by_row`)."""
        if self.labels is None or self.labels.by == "token":
            return False
        name = self.labels.name
        (column,) = [one for one in self.all if one.name == name]
        if isinstance(column, ListColumn):
            made = column.type.made
        elif isinstance(column, StackedColumn) and column.values.ndim > 1:
            made = column.values.dtype
        elif isinstance(column, ArrayColumn | NestedLists):
            made = column.type.made
        else:
            return False
        return not by_row or made.kind in "iu"

    def fill(self, name: str) -> float:
        """What padding of a column holds."""
        return fill_of(name, self.rules.pad_values)

    def made(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """What is made of the plan, not of a column, in the type that the user wants it in."""
        return self.type_of(name, values).array(values)

    def type_of(self, name: str, values: NDArray[Any]) -> ColumnType:
        """The type that the user wants it in, which holds these values."""
        kind = self._types.get((name, values.dtype))
        if kind is None:
            kind = type_of(name, values.dtype, self.fill(name), self.rules.dtypes)
            self._types[name, values.dtype] = kind
        kind.check(name, values)
        return kind

    def rows(self, batch: Batch) -> Block:
        """The real samples of a batch, cut as planned, with their origins, for a user's function. Price: about 5 ns a token."""
        sizes, arrays = self.sizes(batch), []
        for column in self.all:
            if isinstance(column, ListColumn):
                assert column.aligned_with is not None
                starts = 0 if batch.pieces is None else batch.pieces.starts
                cut = column.cut(batch.numbers, starts, sizes[column.aligned_with])
                arrays.append(list_array(cut.values, cut.offsets))
            else:
                assert isinstance(column, ObjectColumn)
                arrays.append(column.values.take(pa.array(column.rows[batch.numbers])))
        rows = pa.RecordBatch.from_arrays(arrays, [column.name for column in self.all])
        located = with_origin(rows, batch.window.block, batch.window.rows[batch.numbers])
        return located.replace_schema_metadata({BATCH_KEY: str(batch.key)})

    @once
    def _token_labels(self) -> list[ListColumn]:
        labels, names = self.labels, []
        if self.rules.stacks:
            names = [prefix + LABELS for prefix in self.rules.prefixes]
        elif labels is not None and labels.by == "token" and labels.name not in self.rules.labels_follow.as_numbers:
            names = [labels.name] if labels.name in (LABELS, SHIFTED) else []
        return [one for one in self.all if one.name in names and isinstance(one, ListColumn)]

    def unlabelled(self, batch: Batch) -> IntArray:
        """The samples, or pieces, of a batch whose labels of tokens are all -100 as they lie in it, by their places; a filler has
        none. Labels that packing leaves out count for nothing. Of a sample with several sides, one without labels is enough.

        Price: 30 ns a sample; 10 ns a token of those whose last label is -100.
        """
        columns = self._token_labels
        if batch.weight == 0 or not columns:
            return np.empty(0, np.int64)
        found = [self._without_label(batch, column) for column in columns]
        return found[0] if len(found) == 1 else distinct(np.concatenate(found))

    def _without_label(self, batch: Batch, column: ListColumn) -> IntArray:
        begins, sizes = column.starts[batch.numbers], column.counts[batch.numbers]
        if column.aligned_with is not None:
            pieces, own = batch.pieces, self.sizes(batch)[column.aligned_with]
            starts = 0 if pieces is None else pieces.starts
            is_shifted = (
                column.name == SHIFTED
            )  # the label that nothing is predicted for is the last one, else the first
            edges = np.ones(len(own), np.int64) if pieces is not None else (is_shifted & (own < sizes)).astype(np.int64)
            begins = begins + starts + (0 if is_shifted else edges)
            sizes = np.maximum(own - edges, 0)
        lasts = column.values.take(begins + sizes - 1, mode="clip") if len(column.values) else begins
        places = np.flatnonzero((sizes == 0) | (lasts == NOT_TRAINED_ON))  # most samples end in their answer
        counts, _ = trained_on(*gather(column.values, begins[places], sizes[places]))
        found: IntArray = places[counts == 0]
        return found

    def unlabel(self, out: MutableMapping[str, Any], rows: slice, *, copies: bool = False) -> None:
        """Rows that ask for no label: -100 wherever labels are classes; anything else has its weight to go by. So have copies
        beside other rows whose labels are several numbers: a loss may take each for a truth value."""
        for name in [name for name in out if isinstance(name, str) and is_labels(name)]:
            labels = out[name]
            if isinstance(labels, RaggedOnDevice) and labels.type.made.kind == "i":
                if not (copies and self._has_several(name, 2)):
                    out[name] = labels.without(rows)
            elif (values := _classes(labels)) is not None and not (copies and self._has_several(name, values.ndim)):
                values[rows] = int(self.fill(name))

    def _has_several(self, name: str, ndim: int) -> bool:
        """Whether labels have several numbers that count as one a sample, such as a truth value for each of many classes."""
        own = next((one for one in self.all if one.name == name), None)
        if own is None or TOKENS not in self.rules.length_columns or getattr(own, "aligned_with", None) is not None:
            return False
        return ndim > 1


Column: TypeAlias = ListColumn | StackedColumn | ArrayColumn | NestedLists | ObjectColumn


def _classes(labels: Any) -> Any:
    """The values of labels, to be written to, where they are integers with a sign; else None. A function of the user's may make
    torch's."""
    if isinstance(labels, Jagged):
        labels = labels.values
    if isinstance(labels, np.ndarray):
        return labels if labels.dtype.kind == "i" else None
    if not getattr(getattr(labels, "dtype", None), "is_signed", False) or labels.dtype.is_floating_point:
        return None
    return labels.values() if labels.is_nested else labels


def columns_of(window: PlanningWindow, rules: ColumnRules, as_arrays: bool = True) -> WindowColumns:
    """The columns of a window as its batches take them: told by name and type, never by what the window holds.

    Args:
        as_arrays: False: what does not go with the tokens stays as it is, for a function of the user's.
    Raises:
        DataError: a token column that is not as long as the first length column, a null in what becomes an array, or an
            integer that the type asked for does not hold; with file and line.
        ValueError: a pad value that its column's type does not hold, or an integer type for a column with fractions; a
            token column that is no list of numbers, or is not there.
    Price: about 30 ns a sample and list column.
    """
    spans = window.spans if as_arrays else None
    schema = window.block.schema if spans is None else window.schema
    left_out = texts_in(schema, rules.left_out)
    fields = {one.name: one for one in schema if not one.name.startswith(HIDDEN) and one.name not in left_out}
    _check_names(fields, rules)
    at = rules.lists_among(fields)
    if at:
        _check_token_columns(fields, rules)
    aligned_with = {name: at.index(own) if (own := rules.aligned_with(name)) in at else None for name in fields}
    found = (_column(window, one, rules, aligned_with[name], as_arrays, at) for name, one in fields.items())
    labels = labels_of(schema, rules.packs, rules.labels_follow)
    given = tuple(rules.length_columns[number] for number in at)
    return WindowColumns(window.lengths, given, at, tuple(found), rules, labels)


def _column(
    window: PlanningWindow,
    field: pa.Field,
    rules: ColumnRules,
    aligned_with: int | None,
    as_arrays: bool,
    at: tuple[int, ...],
) -> Column:
    name, kind = field.name, field.type
    form = rules.arrays.get(name) if as_arrays else None
    if is_list_column(kind) and aligned_with is not None:
        if form not in (None, "pad"):
            raise ValueError(
                f"arrays names {name!r}, which goes with {rules.length_columns[at[aligned_with]]!r}: the layout says "
                "how these lie. Leave it out of arrays="
            )
        return _lists(window, field, rules, aligned_with, at)
    shape = _shape_of(kind)
    if as_arrays and shape is not None and None not in shape and form in (None, "stack"):
        return _stacked(window, field, rules)
    if as_arrays and is_number_list(kind) and form is None and shape is not None and None in shape:
        return _lists(window, field, rules, aligned_with, at)
    if as_arrays and shape:
        return _arrays(window, field, rules, form, shape)
    if form is not None:
        raise ValueError(f"arrays names {name!r}, which holds no arrays ({type_name(kind)}); leave it out of arrays=")
    return ObjectColumn(name, window.block.column(name), window.rows)


def _check_names(fields: Mapping[str, pa.Field], rules: ColumnRules) -> None:
    beside = (name + end for name in fields for end in (MASK_END, OFFSETS, SHAPES))
    known = {*fields, *MADE, *rules.masks, *beside}
    if unknown := [name for name in rules.explicit if name not in known]:
        raise ValueError(
            f"length_column, pad_values, dtypes or arrays name {unknown[0]!r}, but the columns are {', '.join(fields) or 'none'}"
        )


def _check_token_columns(fields: Mapping[str, pa.Field], rules: ColumnRules) -> None:
    for name in rules.token_columns or ():
        if name not in fields:
            raise ValueError(f"token_columns names {name!r}, but the columns are {', '.join(fields)}")
        if not is_list_column(fields[name].type):
            raise ValueError(f"token_columns names {name!r}, which is no list of numbers ({fields[name].type})")


def _lists(
    window: PlanningWindow, field: pa.Field, rules: ColumnRules, aligned_with: int | None, at: tuple[int, ...]
) -> ListColumn:
    name = field.name
    values, starts, counts = _spans(window, field)
    if aligned_with is not None:
        expected = window.lengths.reshape(len(window), -1)[:, at[aligned_with]]
        differ = np.flatnonzero(counts != expected)
        if len(differ):
            raise _unequal(window, rules, name, at[aligned_with], counts, expected, int(differ[0]))
    fill = fill_of(name, rules.pad_values)
    kind = type_of(name, values.dtype, fill, rules.dtypes, values.ndim > 1)
    return ListColumn(name, values, starts, counts, aligned_with, kind.made.type(fill), kind)


def _spans(window: PlanningWindow, field: pa.Field) -> RowSpans:
    """The lists of a column."""
    if window.spans is not None:
        return window.spans[field.name]
    name = field.name
    block, rows = _own(window, name)
    column = window.ragged(name) if block is window.block else ragged(block, name)
    return RowSpans(column.values, *column.spans(rows))


def _own(window: PlanningWindow, name: str) -> tuple[Block, IntArray]:
    """A block with the samples of a window, without a null in a column, and which of its rows they are: the window's block, or,
    where numpy needs a copy of the values, one of these samples alone."""
    block, rows = window.block, window.rows
    if _has_null(block.column(name)) or _has_truth_values(block.schema.field(name).type):
        block = block.select([name, *_hidden(block)]).take(array_of(rows))
        rows = np.arange(len(rows))
        _refuse_nulls(block, name)
    return block, rows


def _unequal(
    window: PlanningWindow,
    rules: ColumnRules,
    name: str,
    aligned_with: int,
    counts: IntArray,
    expected: IntArray,
    sample: int,
) -> DataError:
    first = rules.length_columns[aligned_with]
    if name in rules.length_columns:
        return DataError(
            f"column {name!r} has {counts[sample]:,} values ({where(window.block, int(window.rows[sample]))}), and was planned "
            f"with {expected[sample]:,}: its length was given otherwise (lengths= of from_dataset), or differs from one time to "
            "the next; give the lengths of this column, and have __getitem__ return as many each time, or call "
            "stream(num_workers=) right after from_dataset"
        )
    named = ", ".join(repr(one) for one in (*rules.length_columns, name))
    apart = f"give length_column=({named}), or " if len(rules.length_columns) == 1 else ""
    aligned = [one for length, *group in rules.aligned for one in group]
    others = [one for one in aligned if one != name and one in window.block.schema.names]
    alone = "leave it out of token_columns=" if rules.token_columns is not None else f"pass token_columns={others}"
    return DataError(
        f"column {name!r} has {counts[sample]:,} values and {first!r} {expected[sample]:,} "
        f"({where(window.block, int(window.rows[sample]))}): token columns are cut, padded and packed together; where "
        f"{name!r} has lengths of its own, as the labels of encoder-decoder models have, {apart}{alone}"
    )


def _stacked(window: PlanningWindow, field: pa.Field, rules: ColumnRules) -> StackedColumn:
    name = field.name
    own = window.block.select([name, *_hidden(window.block)]).take(array_of(window.rows))
    _refuse_nulls(own, name)
    array = own.column(name)
    if isinstance(field.type, pa.FixedShapeTensorType) and not _has_truth_values(field.type):
        values = array.to_numpy_ndarray()
    else:
        *_, flat = _levels(array)
        values = numpy_of(flat).reshape(len(array), *(_shape_of(field.type) or ()))
    is_tensor = isinstance(field.type, pa.FixedShapeTensorType)
    kind = type_of(name, values.dtype, 0, rules.dtypes, is_tensor or values.ndim > 2)
    kind.check(name, values)
    return StackedColumn(name, kind.array(values))


def _arrays(
    window: PlanningWindow, field: pa.Field, rules: ColumnRules, form: Form | None, shape: Shape
) -> ArrayColumn | NestedLists:
    """Arrays that are not stacked, or whose form the user names."""
    name, levels = field.name, []
    flat = max((place + 1 for place, size in enumerate(shape) if size is None), default=1)
    if is_list_column(field.type) and None in shape:
        values, starts, counts = _spans(window, field)
        shapes = counts[:, None]
    elif isinstance(field.type, RaggedArrayType):
        block, rows = _own(window, name)
        found = spans_of(block.column(name))
        shapes, starts = found.shapes[rows, :flat], found.starts[rows] // prod(size or 1 for size in shape[flat:])
        values = numpy_of(found.values)
    else:
        stacked = window.block.select([name, *_hidden(window.block)]).take(array_of(window.rows))
        _refuse_nulls(stacked, name)
        *lists, last = _levels(stacked.column(name))
        values = numpy_of(last)
        if None in shape:
            levels = [offsets_in(level) for level in lists if not pa.types.is_fixed_size_list(level.type)]
            shapes = starts = np.zeros(0, np.int64)
        else:
            shapes = np.full((len(window), 1), shape[0])
            starts = np.arange(len(window)) * (shape[0] or 0)
    values = values.reshape(-1, *(size or 0 for size in shape[flat:])) if values.ndim == 1 else values
    fill = fill_of(name, rules.pad_values)
    is_tensor = isinstance(field.type, pa.FixedShapeTensorType)
    kind = type_of(name, values.dtype, fill, rules.dtypes, is_tensor or len(shape) > 1)
    made = kind.made.type(fill)
    column = ArrayColumn(name, values, starts, shapes, shape, form, made, kind, partial(_place, window))
    return NestedLists(tuple(levels), column) if levels else column


def _place(window: PlanningWindow, number: int) -> str:
    """Where a sample of a window comes from, in words."""
    return where(window.block, int(window.rows[number]))


def _hidden(block: pa.RecordBatch) -> list[str]:
    return [name for name in block.schema.names if name.startswith(HIDDEN)]


def _has_truth_values(kind: pa.DataType) -> bool:
    return any_part(kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind, pa.types.is_boolean)


def _has_null(array: pa.Array) -> bool:
    return any(level.null_count for level in _levels(array))


def _levels(array: pa.Array) -> Iterator[pa.Array]:
    """A column, the values in its lists, those in theirs, down to what is no list."""
    array = array.storage if isinstance(array.type, pa.FixedShapeTensorType) else array
    yield array
    if isinstance(array.type, RaggedArrayType):
        yield spans_of(array).values
    while is_list(array.type):
        array = array.flatten() if pa.types.is_fixed_size_list(array.type) else array.values
        yield array


def _refuse_nulls(block: pa.RecordBatch, name: str) -> None:
    """Refuses a null in a column, or in a list of it: padded away it would turn into a value that nobody gave."""
    array = block.column(name)
    if not _has_null(array):
        return
    null = [_holds_null(value) for value in array.to_pylist()]
    if any(null):
        row = null.index(True)
        place = "is null or missing" if array[row].as_py() is None else "has a null in its list"
        raise DataError(
            f"column {name!r} {place} ({where(block, row)}), and becomes a tensor; fill it (map), leave the column out "
            "(drop, select), or make lists of it (collate_fn)"
        )


def _holds_null(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(_holds_null, inside))


def is_number_list(kind: pa.DataType) -> bool:
    """Whether a column is lists of numbers, of any length or of one; of empty lists alone too."""
    return is_ragged(kind) and (_is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def is_list_column(kind: pa.DataType) -> bool:
    """Whether a column is lists of numbers, or of arrays of one shape."""
    return is_number_list(kind) or bool(inner_shape(kind))


def _shape_of(kind: pa.DataType) -> Shape | None:
    """The shape of the arrays of a column by its type, () of numbers; None where they are no numbers."""
    if (own := kind_of(kind)) is not None:
        return own.shape
    shape: list[int | None] = []
    while is_list(kind):
        shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(shape) if _is_number(kind) or (shape == [None] and pa.types.is_null(kind)) else None


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def fill_of(name: str, pad_values: Mapping[str, float]) -> float:
    """What padding of a column holds: where neither the user nor the tokenizer says it, 0, and -100 in labels."""
    return pad_values.get(name, NOT_TRAINED_ON if is_labels(name) else 0)


def refuse_taken(made: Iterable[str], columns: Container[str]) -> None:
    """Refuses a column of the user's that has the name of something which is made."""
    if clash := [name for name in made if name in columns]:
        raise DataError(
            f"there is a column {clash[0]!r}, and batches hold something of that name beside the columns; rename or drop it"
        )
