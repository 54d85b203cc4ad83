"""What a collection holds, and its way from samples to groups and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from brimful.grouping.frame import Frame, row_counts, shapes_of
from brimful.grouping.keys import by_path, texts_of, tree_of
from brimful.grouping.language import Dims, name_in, num_leading, parse
from brimful.grouping.measure import Sizes, measure
from brimful.grouping.rows import Pad, Tensor, checked_pad, padded, rows_of, samples_of, unpadded


@dataclass(frozen=True, eq=False)
class Column:
    """One key of all samples.

    Args:
        dims: its axes; constants and `...` are numbers in them.
        pad: what padding holds.
        tensors: of each group, padded; where there are no groups yet, one of the rows of all samples.
    """

    dims: Dims
    pad: Pad
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Held:
    """Columns by path, and what is known of their axes.

    Args:
        count: samples.
        sizes: the length of each sample, (B,), by ragged dimension.
        constants: the size of each dimension that has a name and one size.
        frame: the groups; None where there are none yet.
    """

    count: int
    columns: Mapping[str, Column]
    sizes: Sizes
    constants: Mapping[str, int]
    frame: Frame | None = None

    @property
    def groups(self) -> Frame:
        """The groups.

        Raises:
            ValueError: there are none yet.
        """
        if self.frame is None:
            raise ValueError(
                "this collection is not in groups yet; call group(by), of OneGroup() if they are to be one"
            )
        return self.frame

    def tree(self, group: int) -> Any:
        """What the samples are, of one group, padded."""
        return tree_of((path, column.tensors[group]) for path, column in self.columns.items())

    def moved(self, move: Callable[[Tensor], Tensor]) -> Held:
        """The same, each tensor moved."""
        columns = {
            path: Column(
                column.dims,
                move(column.pad) if isinstance(column.pad, Tensor) else column.pad,
                tuple(map(move, column.tensors)),
            )
            for path, column in self.columns.items()
        }
        return replace(self, columns=columns)


def held_of(samples: Sequence[Any], dims: Any, pad_values: Any, constant: Sequence[str]) -> Held:
    """What a collection of these samples holds; see `Collection`."""
    texts = texts_of(dims)
    found = _columns_of(samples, texts)
    shapes = {path: [tensor.shape for tensor in column] for path, column in found.items()}
    patterns = {path: parse(text) for path, text in texts.items()}
    measured = measure(shapes, patterns, [*map(name_in, constant)], texts)
    rows = {path: (axes, (rows_of(found[path], axes),)) for path, axes in measured.dims.items()}
    return Held(len(samples), columns_with(rows, pad_values), measured.sizes, measured.constants)


def columns_with(found: Mapping[str, tuple[Dims, tuple[Tensor, ...]]], pad_values: Any) -> dict[str, Column]:
    """Columns of these axes and tensors, by path, with what padding holds.

    Raises:
        ValueError: a pad value for a key that is not there, or that its column does not hold.
    """
    pads = by_path("pad_values", pad_values) if pad_values is not None else {}
    if unknown := [path for path in pads if path not in found]:
        raise ValueError(f"pad_values names {unknown[0]!r}, but the keys are {', '.join(map(repr, found))}")
    return {
        path: Column(dims, checked_pad(pads.get(path, 0), dims, tensors[0], f"key {path!r}"), tensors)
        for path, (dims, tensors) in found.items()
    }


def regrouped(held: Held, frame: Frame) -> Held:
    """The same samples in these groups, padded anew: an index copy a key, and one before it where there were groups."""
    old, new = _Places(held, held.frame), _Places(held, frame)
    columns = {}
    for path, column in held.columns.items():
        rows = old.rows(column)
        tensors = padded(rows, new.of(column.dims), frame.shapes(column.dims), column.pad)
        columns[path] = replace(column, tensors=tensors)
    return replace(held, columns=columns, frame=frame)


def refilled(held: Held, pad_values: Any) -> Held:
    """The same samples in the same groups, padding filled anew; see `Collection.repad`."""
    columns = dict(held.columns)
    if pad_values is not None:
        found = columns_with({path: (column.dims, column.tensors) for path, column in columns.items()}, pad_values)
        columns |= {path: found[path] for path in by_path("pad_values", pad_values)}
    return regrouped(replace(held, columns=columns), held.groups)


def rows_by_path(held: Held) -> dict[str, Tensor]:
    """The rows of all samples, in their order, by path."""
    places = _Places(held, held.frame)
    return {path: places.rows(column) for path, column in held.columns.items()}


def ungrouped(held: Held) -> list[Any]:
    """The samples, in their order."""
    parts = {}
    for path, rows in rows_by_path(held).items():
        dims = held.columns[path].dims
        counts = row_counts(dims[: num_leading(dims)], held.sizes, held.count)
        shapes = shapes_of(dims, held.sizes, held.count) if num_leading(dims) > 1 else ()
        parts[path] = samples_of(rows, counts, shapes, dims)
    if [*parts] == [""]:
        return parts[""]
    return [tree_of(zip(parts, tensors)) for tensors in zip(*parts.values())]


class _Places:
    """Where rows lie in some groups, worked out once for keys with the same axes."""

    def __init__(self, held: Held, frame: Frame | None) -> None:
        self._held, self._frame = held, frame
        self._known: dict[Dims, Any] = {}

    def of(self, dims: Dims) -> Any:
        leading = dims[: num_leading(dims)]
        if leading not in self._known:
            assert self._frame is not None
            self._known[leading] = self._frame.places(leading, self._held.sizes)
        return self._known[leading]

    def rows(self, column: Column) -> Tensor:
        if self._frame is None:
            return column.tensors[0]
        return unpadded(column.tensors, self.of(column.dims), column.dims)


def _columns_of(samples: Sequence[Any], texts: Mapping[str, str]) -> dict[str, list[Tensor]]:
    """The tensors of all samples, by path.

    Raises:
        ValueError: no samples; a key that is missing, or that has no dims; tensors of several types or devices.
        TypeError: something that is no dict where there should be keys, or no tensor where there should be none.
    """
    if not hasattr(samples, "__len__"):
        raise TypeError(f"samples must be a list of tensors, or of dicts of them (got {type(samples).__name__})")
    if not len(samples):
        raise ValueError("a collection needs at least 1 sample (got none)")
    found: dict[str, list[Any]] = {}

    def walk(values: Sequence[Any], tree: Any, path: str) -> None:
        if not isinstance(tree, Mapping):
            _check_tensors(values, path)
            found[path] = list(values)
            return
        inside = f", key {path!r}," if path else ""
        for number, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise TypeError(
                    f"sample {number:,}{inside} must be a dict with the keys {', '.join(tree)} (got {type(value).__name__})"
                )
            if value.keys() != tree.keys():
                prefix = path and f"{path}."
                if missing := [key for key in tree if key not in value]:
                    has = ", ".join(map(str, value)) or "none"
                    raise ValueError(f"sample {number:,} has no key '{prefix}{missing[0]}' (it has: {has})")
                (extra, *_) = (key for key in value if key not in tree)
                raise ValueError(
                    f"sample {number:,} has a key '{prefix}{extra}', of which dims says nothing; name its axes, or leave it out"
                )
        for key, rest in tree.items():
            walk([value[key] for value in values], rest, f"{path}.{key}" if path else key)

    walk(samples, tree_of(texts.items()), "")
    return found


def _check_tensors(values: Sequence[Any], path: str) -> None:
    inside = f", key {path!r}," if path else ""
    dtype, device = getattr(values[0], "dtype", None), getattr(values[0], "device", None)
    for number, value in enumerate(values):
        if not isinstance(value, Tensor):
            raise TypeError(f"sample {number:,}{inside} must be a tensor (got {type(value).__name__})")
        if value.dtype is not dtype or value.device != device or value.layout is not torch.strided:
            kind, first = (f"{one.dtype}, {one.device}, {one.layout}" for one in (value, values[0]))
            raise ValueError(
                f"sample {number:,}{inside} is a tensor of {kind}, and that of sample 0 of {first}; make them of one kind, "
                "torch.strided"
            )
