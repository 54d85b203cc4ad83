"""What a batch has of a column whose samples are arrays: one array of all, padded or end to end, or a list of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brimful.arrays.types import ColumnType
from brimful.plan.errors import DataError
from brimful.tables.arrays import Shape
from brimful.tables.ragged import attention_mask, gaps, gather, offsets_of, pad, runs

IntArray: TypeAlias = NDArray[np.int64]
Form: TypeAlias = Literal["stack", "pad", "concat", "list"]
"""What users call the four."""
MASK: Final = "_mask"
OFFSETS: Final = "_offsets"
SHAPES: Final = "_shapes"
"""The ends of the names of what lies beside a column in a batch."""
LONG: Final = 64
"""Arrays of so many values, on average, are copied one by one, at 1 us each; shorter ones all at once, at 5 ns a value."""


@dataclass(frozen=True, eq=False)
class ArrayColumn:
    """A column of arrays that are not cut with the tokens. Array i of the window is `values[starts[i]:]`, so many of these as
    the product of shapes[i], in that shape.

    "stack": (B, *shape), where all arrays of a batch have one shape. "pad": (B, *shape), each ragged dimension as long as the
    longest in the batch, at least 1, and `NAME_mask` (B, *ragged dimensions) int64, 1 where there is a value. "concat": the
    arrays end to end, (total, *shape less its first dimension), and `NAME_offsets` (B + 1,) int64. Where more dimensions than
    the first are ragged, all up to the last ragged one are flat, and `NAME_shapes` (B, so many) int64 says their sizes. "list":
    a list of arrays.

    Args:
        values: (n, *fixed): the dimensions up to the last ragged one are flat.
        shapes: the sizes of these dimensions, int64 (len(window), d).
        shape: the declared one, of all dimensions.
        form: as the user says; None: as the layout does.
        place: names the row of a sample.
    """

    name: str
    values: NDArray[Any]
    starts: IntArray
    shapes: IntArray
    shape: Shape
    form: Form | None
    fill: Any
    type: ColumnType
    place: Callable[[int], str]

    def entries(self, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """What a batch of some samples has, by key."""
        form: Form = self.form or default
        if form == "pad":
            values, mask = self._padded(numbers, left)
            return {self.name: values} if mask is None else {self.name: values, self.name + MASK: mask}
        values, offsets = self._end_to_end(numbers)
        shapes = self.shapes[numbers]
        if form == "concat":
            out = {self.name: values, self.name + OFFSETS: offsets}
            return out if shapes.shape[1] == 1 else out | {self.name + SHAPES: shapes}
        if form == "list":
            bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), shapes.tolist())
            return {self.name: [values[begin:end].reshape(*size, *self._fixed) for begin, end, size in bounds]}
        if len(differ := np.flatnonzero((shapes != shapes[:1]).any(axis=1))):
            one, other = ((*shapes[place].tolist(), *self._fixed) for place in (0, int(differ[0])))
            places = self.place(int(numbers[0])), self.place(int(numbers[differ[0]]))
            raise DataError(
                f"column {self.name!r} has arrays of shape {one} ({places[0]}) and {other} ({places[1]}) in one batch, and "
                f"arrays={{{self.name!r}: 'stack'}} needs one shape. Choose 'pad', 'concat' or 'list', or make them of one "
                "shape (map)"
            )
        return {self.name: values.reshape(len(numbers), *shapes[0], *self._fixed)}

    @property
    def ragged(self) -> bool:
        """Whether a dimension has no size of its own by its type."""
        return None in self.shape

    @property
    def _fixed(self) -> tuple[int, ...]:
        return self.values.shape[1:]

    def _end_to_end(self, numbers: IntArray) -> tuple[NDArray[Any], IntArray]:
        starts, counts = self.starts[numbers], self.shapes[numbers].prod(axis=1)
        if counts.sum() * prod(self._fixed) < LONG * len(numbers):
            values, offsets = gather(self.values, starts, counts)
        else:
            offsets = offsets_of(counts)
            ends = zip(starts.tolist(), (starts + counts).tolist())
            values = np.concatenate([self.values[begin:end] for begin, end in ends])
        self.type.check(self.name, values)
        return self.type.array(values), offsets

    def _padded(self, numbers: IntArray, left: bool) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
        """The arrays padded, and which of the values are none of the padding; None where no dimension is ragged."""
        starts, shapes = self.starts[numbers], self.shapes[numbers]
        if not self.ragged:
            values, _ = self._end_to_end(numbers)
            return values.reshape(len(numbers), *shapes[0], *self._fixed), None
        sizes = np.maximum(shapes.max(axis=0), 1).tolist()
        if len(sizes) == 1:
            counts, (width,) = shapes[:, 0], sizes
            at = gaps(counts, width, left)
            if self.type.limits:
                self.type.check(self.name, gather(self.values, starts, counts).values)
            values = pad(self.values, starts, counts, width, self.fill, self.type.made, left, at)
            return values, attention_mask(at, width)
        ragged = [place for place, size in enumerate(self.shape) if size is None]
        out = np.full((len(numbers), *sizes, *self._fixed), self.fill, self.type.made)
        mask = np.zeros((len(numbers), *(sizes[place] for place in ragged)), np.int64)
        for row, (start, own) in enumerate(zip(starts.tolist(), shapes.tolist())):
            found = self.values[start : start + prod(own)]
            self.type.check(self.name, found)
            where = [slice(size - one, None) if left else slice(one) for one, size in zip(own, sizes)]
            out[row][tuple(where)] = found.reshape(*own, *self._fixed)
            mask[row][tuple(where[place] for place in ragged)] = 1
        return out, mask


@dataclass(frozen=True, eq=False)
class NestedLists:
    """A column of lists in lists: like `ArrayColumn`, but the lists of a sample may have several lengths, and "pad" then pads
    each of them.

    Args:
        levels: the offsets of the lists of each level, the first of which has a list for each sample of the window.
        arrays: the column with the values of the last level, without shapes.
    """

    levels: tuple[IntArray, ...]
    arrays: ArrayColumn

    @property
    def name(self) -> str:
        return self.arrays.name

    @property
    def type(self) -> ColumnType:
        return self.arrays.type

    ragged = True

    def entries(self, numbers: IntArray, default: Form, left: bool = False) -> dict[str, Any]:
        """See `ArrayColumn.entries`.

        Raises:
            DataError: the lists of a sample have several lengths, and are not padded; with its place.
        """
        own = self.arrays
        if (own.form or default) == "pad":
            values, mask = self._padded(0, numbers, left)
            return {self.name: values, self.name + MASK: mask}
        shapes = np.zeros((len(numbers), len(self.levels)), np.int64)
        items, owners = numbers, np.arange(len(numbers))
        for level, offsets in enumerate(self.levels):
            sizes = np.diff(offsets)[items]
            shapes[owners, level] = sizes
            if len(odd := np.flatnonzero(shapes[owners, level] != sizes)):
                sample = int(owners[odd[0]])
                raise DataError(
                    f"column {self.name!r} has lists of {sizes[odd[0]]:,} and of {shapes[sample, level]:,} values in one sample "
                    f"({own.place(int(numbers[sample]))}), which are no array. Choose arrays={{{self.name!r}: 'pad'}}, or make "
                    "them equally long (map)"
                )
            items, owners = runs(offsets[items], offsets_of(sizes)), np.repeat(owners, sizes)
        starts = numbers
        for offsets in self.levels:
            starts = offsets[np.minimum(starts, len(offsets) - 1)]
        made = replace(own, starts=starts, shapes=shapes)
        return made.entries(np.arange(len(numbers)), default, left)

    def _padded(self, level: int, items: IntArray, left: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The lists of some items of a level, padded; and 1 where there is a value."""
        own, offsets = self.arrays, self.levels[level]
        starts, counts = offsets[items], np.diff(offsets)[items]
        width = max(1, int(counts.max(initial=0)))
        at = gaps(counts, width, left)
        if level + 1 == len(self.levels):
            own.type.check(self.name, gather(own.values, starts, counts).values)
            return pad(own.values, starts, counts, width, own.fill, own.type.made, left, at), attention_mask(at, width)
        inner, mask = self._padded(level + 1, runs(starts, offsets_of(counts)), left)
        firsts = offsets_of(counts)[:-1]
        return tuple(  # type: ignore[return-value]
            pad(values, firsts, counts, width, fill, values.dtype, left, at)
            for values, fill in ((inner, own.fill), (mask, 0))
        )


def kinds_of(entries: Mapping[str, Any], name: str) -> dict[str, str]:
    """What the keys that a column gives a packed batch have values for; see `COLUMN_KINDS`."""
    kinds = dict.fromkeys(entries, "pieces")
    return kinds | {name: "arrays", name + OFFSETS: "offsets"} if name + OFFSETS in entries else kinds
