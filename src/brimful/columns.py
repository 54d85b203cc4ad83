"""The columns of a window, looked up once for all of its batches: what of each becomes a tensor, of which type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from brimful.errors import HIDDEN, DataError
from brimful.ragged import Gaps, gather, is_ragged, pad, ragged
from brimful.windows import Window

IntArray: TypeAlias = NDArray[np.int64]

PAD_VALUES: Final = {"labels": -100}
"""What padding holds where the user says nothing; 0 in every other column."""


class Type(NamedTuple):
    """The type of a column's tensors.

    Args:
        wanted: that type.
        made: the numpy type that they are made in: the same, or float32 for one that numpy has not.
        limits: the least and greatest value, of an integer type that does not hold all that the column could.
    """

    wanted: torch.dtype
    made: np.dtype[Any]
    limits: tuple[int, int] | None

    def tensor(self, values: NDArray[Any]) -> torch.Tensor:
        """Values that are padded, or that need no padding."""
        return torch.from_numpy(values.astype(self.made, copy=False)).to(self.wanted)

    def check(self, name: str, values: NDArray[Any]) -> None:
        """Refuses values that the type does not hold."""
        if self.limits is None or not len(values):
            return
        for value in (int(values.min()), int(values.max())):
            if not self.limits[0] <= value <= self.limits[1]:
                raise DataError(
                    f"column {name!r} holds {value:,}, which {_name_of(self.wanted)} does not; choose another of dtypes"
                )


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists of numbers: sample i of the window has `values[starts[i] : starts[i] + counts[i]]`.

    Args:
        follows: the number of the length column that it is as long as in every sample, to be padded and cut with it.
        width: how many values each sample has in a column of fixed size that follows none.
    """

    name: str
    values: NDArray[Any]
    starts: IntArray
    counts: IntArray
    follows: int | None
    width: int | None
    fill: Any
    type: Type

    def padded(
        self, numbers: IntArray, sizes: IntArray, width: int, left: bool, at: Gaps | None = None
    ) -> torch.Tensor:
        """The first `sizes` values of some samples, padded: (len(numbers), width)."""
        starts = self.starts[numbers]
        if self.type.limits:
            self.type.check(self.name, gather(self.values, starts, sizes).values)
        return self.type.tensor(pad(self.values, starts, sizes, width, self.fill, self.type.made, left, at))

    def joined(self, numbers: IntArray, sizes: IntArray) -> tuple[torch.Tensor, IntArray]:
        """The first `sizes` values of some samples end to end, and where each begins."""
        values, offsets = gather(self.values, self.starts[numbers], sizes)
        self.type.check(self.name, values)
        return self.type.tensor(values), offsets

    def spread(self, index: IntArray, gap: NDArray[np.bool_]) -> torch.Tensor:
        """The values at `index`; padding where there is a gap."""
        found = self.values.take(index, mode="clip") if len(self.values) else np.zeros(index.shape, self.values.dtype)
        if self.type.limits:
            self.type.check(self.name, found[~gap])
        values = found.astype(self.type.made, copy=False)
        np.copyto(values, self.fill, where=gap)
        return self.type.tensor(values)


@dataclass(frozen=True, eq=False)
class Plain:
    """Any other column: numbers, one a sample of the window, or an Arrow array with one a row of its block."""

    name: str
    values: torch.Tensor | pa.Array
    rows: IntArray

    def of(self, numbers: IntArray) -> Any:
        """Those of some samples: stacked (len(numbers),), or a list."""
        if isinstance(self.values, torch.Tensor):
            return self.values[torch.from_numpy(numbers.copy())]  # a policy's numbers may be read-only
        return self.values.take(pa.array(self.rows[numbers])).to_pylist()


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a window that users see, looked up once for all of its batches.

    Args:
        given: the length columns; none where not all of them are there.
    """

    lengths: IntArray
    given: tuple[str, ...]
    all: tuple[Lists | Plain, ...]
    pad_values: Mapping[str, float]
    dtypes: Mapping[str, str]

    def sizes(self, numbers: IntArray, padded_length: int | tuple[int, ...]) -> tuple[list[IntArray], list[int]]:
        """By each length column, how many values some samples keep, and how many they are padded to."""
        if not self.given:
            return [], []
        widths = list(padded_length) if isinstance(padded_length, tuple) else [padded_length]
        lengths = self.lengths[numbers].reshape(len(numbers), -1)
        return [np.minimum(own, width) for own, width in zip(lengths.T, widths)], widths

    def made(self, name: str, values: NDArray[Any]) -> torch.Tensor:
        """What is made of the plan, not of a column, in the type that the user wants it in."""
        tensor = torch.from_numpy(values)
        return tensor.to(getattr(torch, self.dtypes[name])) if name in self.dtypes else tensor


def columns_of(
    window: Window, length_columns: tuple[str, ...], pad_values: Mapping[str, float], dtypes: Mapping[str, str]
) -> Columns:
    """The columns of a window as its batches take them.

    A list column that is as long as a length column in every sample of the window is padded and cut with it. Integers
    become int64 and other numbers keep their type, unless `dtypes` has another. A column with a null in the window, also
    inside a list, is no tensor: what a null means is for the user to say.

    Raises:
        DataError: an integer that the type asked for does not hold.
        ValueError: a pad value that its column's type does not hold, or an integer type for a column with fractions.
    Price: about 30 ns a sample and list column.
    """
    block = window.block
    given = length_columns if set(length_columns) <= set(block.schema.names) else ()
    fields = [field for field in block.schema if not field.name.startswith(HIDDEN)]
    found = [_lists(window, field, given, pad_values, dtypes) or _plain(window, field, dtypes) for field in fields]
    return Columns(window.lengths, given, tuple(found), pad_values, dtypes)


def _lists(
    window: Window, field: pa.Field, given: tuple[str, ...], pad_values: Mapping[str, float], dtypes: Mapping[str, str]
) -> Lists | None:
    name, block, rows = field.name, window.block, window.rows
    if not is_ragged(field.type) or not _is_number(field.type.value_type):
        return None
    if _has_null(block.column(name)) or pa.types.is_boolean(field.type.value_type):  # what takes a copy: of these alone
        block = block.select([name]).take(pa.array(rows))
        rows = np.arange(len(rows))
        if _has_null(block.column(name)):
            return None
    column = window.ragged(name) if block is window.block else ragged(block, name)
    starts, counts = column.spans(rows)
    alike = _alike(window, name, counts, len(given))
    width = None
    if pa.types.is_fixed_size_list(field.type) and name not in given:  # told by its type, not by what a window holds
        alike = [number for number in alike if window.block.schema.field(given[number]).type.equals(field.type)]
        width = None if alike else field.type.list_size
    fill = fill_of(name, pad_values)
    kind = _type_of(name, column.values.dtype, fill, dtypes)
    return Lists(name, column.values, starts, counts, alike[0] if alike else None, width, kind.made.type(fill), kind)


def _alike(window: Window, name: str, counts: IntArray, most: int) -> list[int]:
    """The length columns that a list column is as long as, in every sample of the whole window."""
    whole = window.whole or window
    if window.whole is not None:
        assert whole.list_lengths is not None, "a window whose columns are not known is not parted"
        counts = whole.list_lengths[name]
    lengths = whole.lengths.reshape(len(whole), -1)
    return [number for number in range(most) if np.array_equal(lengths[:, number], counts)]


def _has_null(lists: pa.Array) -> bool:
    fixed = pa.types.is_fixed_size_list(lists.type)
    return bool(lists.null_count or (lists.flatten() if fixed else lists.values).null_count)


def _plain(window: Window, field: pa.Field, dtypes: Mapping[str, str]) -> Plain:
    array = window.block.column(field.name)
    own = array.take(pa.array(window.rows)) if _is_number(field.type) else None
    if own is None or own.null_count:
        return Plain(field.name, array, window.rows)
    values = own.to_numpy(zero_copy_only=False)
    kind = _type_of(field.name, values.dtype, 0, dtypes)
    kind.check(field.name, values)
    return Plain(field.name, kind.tensor(np.array(values)), window.rows)


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def fill_of(name: str, pad_values: Mapping[str, float]) -> float:
    """What padding of a column holds."""
    return pad_values.get(name, PAD_VALUES.get(name, 0))


def _type_of(name: str, source: np.dtype[Any], fill: float, dtypes: Mapping[str, str]) -> Type:
    """The type of a column's tensors: as asked for, else int64 for integers, else the column's own."""
    plain = source.name if source.kind == "f" or (source.kind == "b" and fill in (0, 1)) else "int64"
    wanted = getattr(torch, dtypes.get(name, plain))
    made = np.dtype(_IN_NUMPY.get(wanted, np.float32))
    limits = None
    if made.kind != "f":
        least, most = (0, 1) if made.kind == "b" else (int(np.iinfo(made).min), int(np.iinfo(made).max))
        if source.kind == "f":
            raise ValueError(
                f"dtypes: {_name_of(wanted)} would cut off the fractions of column {name!r} ({source.name})"
            )
        if not least <= fill <= most or fill != int(fill):
            raise ValueError(f"{_name_of(wanted)} does not hold the pad value {fill} of column {name!r}")
        limits = None if np.can_cast(source, made) else (least, most)
    return Type(wanted, made, limits)


def _name_of(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


_IN_NUMPY: Final[dict[torch.dtype, Any]] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
