"""The columns of a collection: tensors of a key, with their axes and the value of padding, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from brimful.grouping.keys import by_path, tree_of
from brimful.grouping.language import Dims, Sizes, checked_rules, expanded, names_in
from brimful.grouping.padded_groups import PaddedGroups
from brimful.grouping.rows import Pad, Tensor, checked_pad


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


def checked_dims(
    groups: PaddedGroups, sizes: Sizes, constants: Mapping[str, int], tensors: Sequence[Tensor], text: str, of: str
) -> Dims:
    """The axes of the padded tensors of all groups after that of the samples.

    Args:
        text: the axes, as written.
        of: the name of the tensors in errors.
    Raises:
        ValueError: an unknown name, a rule that makes a length negative, another shape, or another type or device than in the
            first group; with key, group and both.
    """
    rules = checked_rules(text, sizes, constants)
    shape = tuple(tensors[0].shape)
    fixed = sum(rule is not ... for rule in rules)
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
    groups.check(dims, sizes)
    for group, (tensor, expected) in enumerate(zip(tensors, groups.shapes(dims), strict=True)):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{of} has shape {tuple(tensor.shape)} in group {group}, but {text!r} makes it {expected}: "
                f"{len(groups.partition[group]):,} samples{_extents(dims, groups, group)}"
            )
    return dims


def tensors_of(samples: Sequence[Any], texts: Mapping[str, str]) -> dict[str, list[Tensor]]:
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
