"""The data of a collection, from samples to groups and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from brimful.grouping.keys import by_path, texts_of, tree_of
from brimful.grouping.language import Dims, Sizes, checked_rules, expanded, leading, measure, name_in, names_in
from brimful.grouping.padded_groups import PaddedGroups, leading_sizes
from brimful.grouping.rows import Pad, Tensor, checked_pad, padded, rows_of, samples_of, unpadded
from brimful.plan.plan import IntArray


@dataclass(frozen=True, eq=False)
class Column:
    """One key of all samples.

    Args:
        dims: its axes; constants and `...` are numbers in them.
        pad: the value of padding.
        tensors: of each group, padded; where there are no groups yet, one of the rows of all samples.
    """

    dims: Dims
    pad: Pad
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class CollectionData:
    """Columns by path, and the sizes of their axes.

    Args:
        count: the number of samples.
        sizes: the length of each sample, (B,), by ragged dimension.
        constants: the size of each dimension that has a name and one size.
        groups: None where there are none yet.
    """

    count: int
    columns: Mapping[str, Column]
    sizes: Sizes
    constants: Mapping[str, int]
    groups: PaddedGroups | None = None

    @property
    def padded_groups(self) -> PaddedGroups:
        """The groups.

        Raises:
            ValueError: there are none yet.
        """
        if self.groups is None:
            raise ValueError(
                "this collection is not in groups yet; call group(by), of OneGroup() if they are to be one"
            )
        return self.groups

    def trees(self) -> tuple[Any, ...]:
        """The samples of each group, padded."""
        return tuple(
            tree_of((path, column.tensors[group]) for path, column in self.columns.items())
            for group in range(len(self.padded_groups.partition))
        )

    def moved(self, move: Callable[[Tensor], Tensor]) -> CollectionData:
        """The same, each tensor moved."""
        columns = {}
        for path, column in self.columns.items():
            pad = move(column.pad) if isinstance(column.pad, Tensor) else column.pad
            columns[path] = Column(column.dims, pad, tuple(map(move, column.tensors)))
        return replace(self, columns=columns)


def data_of_samples(samples: Sequence[Any], dims: Any, pad_values: Any, constant: Sequence[str]) -> CollectionData:
    """The data of a collection of these samples; see `Collection`."""
    texts = texts_of(dims)
    found = _columns_of(samples, texts)
    shapes = {path: [tensor.shape for tensor in column] for path, column in found.items()}
    axes, sizes, constants = measure(shapes, texts, [*map(name_in, constant)])
    rows = {path: (own, (rows_of(found[path], own),)) for path, own in axes.items()}
    return CollectionData(len(samples), columns_with(rows, pad_values), sizes, constants)


def columns_with(found: Mapping[str, tuple[Dims, tuple[Tensor, ...]]], pad_values: Any) -> dict[str, Column]:
    """Columns of these axes and tensors, by path, with their pad values.

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


def with_tensors(
    data: CollectionData, tensors: Mapping[str, Sequence[Tensor]], texts: Mapping[str, str], pad_values: Any, whose: str
) -> CollectionData:
    """The same samples and groups with other columns: padded tensors, one of each group, checked against their dims.

    Args:
        tensors: by path; `texts`: their dims, as written.
        whose: the name of the tensors in errors.
    """
    found = {
        path: (_dims_of(data, tensors[path], path, text, whose), tuple(tensors[path])) for path, text in texts.items()
    }
    return replace(data, columns=columns_with(found, pad_values))


def _dims_of(data: CollectionData, tensors: Sequence[Tensor], path: str, text: str, whose: str) -> Dims:
    """The axes of the padded tensors of all groups after that of the samples.

    Raises:
        ValueError: an unknown name, a rule that makes a length negative, another shape, or another type or device than in the
            first group; with key, group and both.
    """
    groups = data.padded_groups
    rules = checked_rules(text, data.sizes, data.constants)
    shape = tuple(tensors[0].shape)
    fixed = sum(rule is not ... for rule in rules)
    of = f"{whose}, key {path!r}," if path else whose
    if len(shape) < 1 + fixed or (... not in rules and len(shape) > 1 + fixed):
        raise ValueError(
            f"{of} has shape {shape}, but {text!r} names {fixed} axes{' at least' * (... in rules)} after that of the samples"
        )
    first = _kind(tensors[0])
    for group, tensor in enumerate(tensors):
        if _kind(tensor) != first or tensor.layout is not torch.strided:
            raise ValueError(
                f"{of} is a tensor of {_kind(tensor)} in group {group}, and of {first} in group 0; make them of one kind, "
                "torch.strided"
            )
    dims = expanded(rules, shape[1:])
    groups.check(dims, data.sizes)
    for group, (tensor, expected) in enumerate(zip(tensors, groups.shapes(dims), strict=True)):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{of} has shape {tuple(tensor.shape)} in group {group}, but {text!r} makes it {expected}: "
                f"{len(groups.partition[group]):,} samples{_extents(dims, groups, group)}"
            )
    return dims


def regrouped(data: CollectionData, groups: PaddedGroups) -> CollectionData:
    """The same samples in these groups, padded anew: an index copy a key, and one before it where there were groups."""
    new = _places(data, groups)
    columns = {}
    for path, rows in rows_by_path(data):
        column = data.columns[path]
        places, shapes = new[leading(column.dims)], groups.shapes(column.dims)
        columns[path] = replace(column, tensors=padded(rows, places, shapes, column.pad))
    return replace(data, columns=columns, groups=groups)


def refilled(data: CollectionData, pad_values: Any) -> CollectionData:
    """The same samples in the same groups, padding filled anew; see `Collection.repad`."""
    columns = dict(data.columns)
    if pad_values is not None:
        found = columns_with({path: (column.dims, column.tensors) for path, column in columns.items()}, pad_values)
        columns |= {path: found[path] for path in by_path("pad_values", pad_values)}
    return regrouped(replace(data, columns=columns), data.padded_groups)


def rows_by_path(data: CollectionData) -> Iterator[tuple[str, Tensor]]:
    """Each path, and the rows of all samples there, in their order."""
    places = None if data.groups is None else _places(data, data.groups)
    for path, column in data.columns.items():
        if places is None:
            yield path, column.tensors[0]
        else:
            yield path, unpadded(column.tensors, places[leading(column.dims)], column.dims)


def ungrouped(data: CollectionData) -> list[Any]:
    """The samples, in their order."""
    parts = {
        path: samples_of(rows, leading_sizes(data.columns[path].dims, data.sizes, data.count))
        for path, rows in rows_by_path(data)
    }
    if [*parts] == [""]:
        return parts[""]
    return [tree_of(zip(parts, tensors)) for tensors in zip(*parts.values())]


def _places(data: CollectionData, groups: PaddedGroups) -> dict[Dims, IntArray]:
    """The places of the rows in some groups, by the leading axes of the keys."""
    axes = dict.fromkeys(leading(column.dims) for column in data.columns.values())
    return {dims: groups.places(dims, data.sizes) for dims in axes}


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
            raise ValueError(
                f"sample {number:,}{inside} is a tensor of {_kind(value)}, and that of sample 0 of {_kind(values[0])}; make them "
                "of one kind, torch.strided"
            )


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype}, {tensor.device}, {tensor.layout}"


def _extents(dims: Dims, groups: PaddedGroups, group: int) -> str:
    names = dict.fromkeys(name for rule in dims for name in names_in(rule))
    return "".join(f", {name} padded to {groups.extents[name][group]:,}" for name in names)
