"""Padded tensors of groups held against dims: what a module gave, or a batch that was padded elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import torch

from brimful.grouping.frame import Frame
from brimful.grouping.keys import leaves
from brimful.grouping.language import Dims, Rule, names_in, parse, text_of, value_of, with_constants
from brimful.grouping.measure import Sizes, expanded, known_names
from brimful.grouping.rows import Tensor


def picked(results: Sequence[Any], texts: Mapping[str, str], whose: str) -> dict[str, list[Tensor]]:
    """The tensors that dims name, of each group, by path.

    Raises:
        ValueError: a key that is not there.
        TypeError: what is no tensor.
    """
    return {path: [_at(result, path, whose) for result in results] for path in texts}


def resolved(
    path: str,
    text: str,
    tensors: Sequence[Tensor],
    sizes: Sizes,
    constants: Mapping[str, int],
    frame: Frame,
    whose: str,
) -> Dims:
    """The axes of the padded tensors of all groups after that of the samples, once it is sure that they are as written.

    Raises:
        ValueError: an unknown name, a rule that makes a length negative, another shape, or another type or device than in the
            first group; with key, group and both.
    """
    rules = checked_rules(text, sizes, constants)
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
    frame.check(dims, sizes)
    for group, (tensor, expected) in enumerate(zip(tensors, frame.shapes(dims), strict=True)):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{of} has shape {tuple(tensor.shape)} in group {group}, but {text!r} makes it {expected}: "
                f"{len(frame.partition[group]):,} samples{_extents(dims, frame, group)}"
            )
    return dims


def checked_rules(text: str, sizes: Sizes, constants: Mapping[str, int]) -> tuple[Rule | EllipsisType, ...]:
    """A text as axes, with numbers for constants.

    Raises:
        ValueError: an unknown name, or a rule that makes the length of a sample negative.
    """
    rules: list[Rule | EllipsisType] = []
    for rule in parse(text):
        if isinstance(rule, EllipsisType):
            rules.append(rule)
            continue
        if lost := [name for name in names_in(rule) if name not in sizes and name not in constants]:
            raise ValueError(
                f"unknown name {lost[0]!r} in {text!r} ({known_names(sizes, constants)}); a fixed axis is a number, or '...'"
            )
        rule = with_constants(rule, constants)
        if isinstance(rule, tuple):
            lengths = value_of(rule, sizes)
            if (lengths < 0).any():
                sample = int(np.argmax(lengths < 0))
                known = ", ".join(f"{name}={sizes[name][sample]}" for name in names_in(rule))
                raise ValueError(
                    f"sample {sample:,} is too short: {text_of(rule)!r} is {lengths[sample]} ({known}); leave it out, or pad it"
                )
        rules.append(rule)
    return tuple(rules)


def _at(result: Any, path: str, whose: str) -> Tensor:
    for key in path.split(".") if path else ():
        if not isinstance(result, Mapping) or key not in result:
            has = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise ValueError(f"{whose} has no key {path!r} (got {has})")
        result = result[key]
    if not isinstance(result, Tensor):
        inside = f", key {path!r}," if path else ""
        hint = ", ".join(path for path, _ in leaves(result)) if isinstance(result, Mapping) else ""
        raise TypeError(
            f"{whose}{inside} must be a tensor (got {type(result).__name__}{hint and f' with the keys {hint}'})"
        )
    return result


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype}, {tensor.device}, {tensor.layout}"


def _extents(dims: Dims, frame: Frame, group: int) -> str:
    names = dict.fromkeys(name for rule in dims for name in names_in(rule))
    return "".join(f", {name} padded to {frame.extents[name][group]:,}" for name in names)
