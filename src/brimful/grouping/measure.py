"""Shapes compared with the dims that the user wrote: the length of each name in each sample. Knows shapes, no tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from brimful.grouping.language import Dims, Rule, Sizes, names_in, parse, text_of, value_of, with_constants
from brimful.plan.plan import IntArray

Pattern: TypeAlias = "tuple[Rule | EllipsisType, ...]"


def measure(
    shapes: Mapping[str, Sequence[Sequence[int]]], texts: Mapping[str, str], constant: Collection[str]
) -> tuple[dict[str, Dims], dict[str, IntArray], dict[str, int]]:
    """Reads the lengths of all names off the shapes, and refuses shapes that do not agree.

    Args:
        shapes: of each sample, by path.
        texts: the dims that they must agree with, by path.
        constant: names that have the same size in all samples.
    Returns:
        dims by path, in which constants and `...` are numbers; the sizes of ragged dimensions; the constants.
    Raises:
        ValueError: another number of axes; a number that is another one; a name with two sizes in a sample; a constant with
            another size in another sample; a name that stands in rules alone; with sample, key and both sizes. A rule that
            divides by 0.
    Price: .5 us a sample and key.
    """
    axes = {path: _expanded(path, shapes[path], text) for path, text in texts.items()}
    tables = {path: _table(shapes[path]) for path in texts}
    sizes: dict[str, IntArray] = {}
    constants: dict[str, int] = {}
    found_in: dict[str, str] = {}
    for path, rules in axes.items():
        for rule, column in zip(rules, tables[path].T):
            if isinstance(rule, str) and rule not in found_in:
                found_in[rule] = path
                if rule in constant:
                    constants[rule] = int(column[0])
                else:
                    sizes[rule] = np.ascontiguousarray(column)
    if unknown := [name for name in constant if name not in found_in]:
        raise ValueError(f"constant names {unknown[0]!r}, which stands in no dims (names: {', '.join(found_in)})")
    for path, rules in axes.items():
        for rule, column in zip(rules, tables[path].T):
            if lost := [name for name in names_in(rule) if name not in found_in]:
                raise ValueError(
                    f"{lost[0]!r} stands in the rule {text_of(rule)!r} alone: an axis of some key must be {lost[0]!r} itself"
                )
            expected = np.broadcast_to(value_of(with_constants(rule, constants), sizes), column.shape)
            differ = np.flatnonzero(column != expected)
            if len(differ):
                sample = int(differ[0])
                words = _disagreement(rule, texts[path], int(column[sample]), int(expected[sample]))
                if isinstance(rule, str):
                    here = "in sample 0" if rule in constants else "on another axis"
                    words += f" {here}" if found_in[rule] == path else f" in key {found_in[rule]!r}"
                raise ValueError(f"{_place(sample, path)} of shape {tuple(shapes[path][sample])}: {words}")
    dims = {path: tuple(with_constants(rule, constants) for rule in rules) for path, rules in axes.items()}
    return dims, sizes, constants


def _table(shapes: Sequence[Sequence[int]]) -> IntArray:
    """Shapes of as many axes as an array, (B, axes); `np.array` takes five times as long."""
    return np.fromiter(chain.from_iterable(shapes), np.int64).reshape(len(shapes), len(shapes[0]))


def _expanded(path: str, shapes: Sequence[Sequence[int]], text: str) -> Dims:
    """Dims with the sizes of sample 0 in place of `...`."""
    pattern = parse(text)
    fixed = sum(rule is not ... for rule in pattern)
    wanted = len(shapes[0]) if ... in pattern else len(pattern)
    for sample, shape in enumerate(shapes):
        if len(shape) != wanted or len(shape) < fixed:
            also = f"; sample 0 has {wanted} axes" if ... in pattern and wanted >= fixed else ""
            raise ValueError(
                f"{_place(sample, path)} of shape {tuple(shape)} has {len(shape)} axes, but {text!r} names "
                f"{'at least ' if ... in pattern else ''}{fixed}{also}"
            )
    return expanded(pattern, shapes[0])


def expanded(pattern: Pattern, shape: Sequence[int]) -> Dims:
    """A pattern with the sizes of a shape, which has enough axes, in place of `...`.

    >>> expanded(("res", ...), (7, 3, 4))
    ('res', 3, 4)
    """
    rules: list[Rule] = []
    for place, rule in enumerate(pattern):
        if isinstance(rule, EllipsisType):
            rules += shape[place : len(shape) - len(pattern) + place + 1]
        else:
            rules.append(rule)
    return tuple(rules)


def checked_rules(text: str, sizes: Sizes, constants: Mapping[str, int]) -> Pattern:
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
            names = ", ".join((*sizes, *(f"{name}={size}" for name, size in constants.items())))
            raise ValueError(
                f"unknown name {lost[0]!r} in {text!r} (names: {names or 'none'}); a fixed axis is a number, or '...'"
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


def _disagreement(rule: Rule, text: str, size: int, expected: int) -> str:
    if isinstance(rule, str):
        return f"{rule!r} is {size}, but {expected}"
    if isinstance(rule, tuple):
        return f"an axis is {size}, but {text_of(rule)!r} is {expected}"
    if str(rule) in text.split():
        return f"an axis is {size}, but {expected} in {text!r}"
    return f"an axis in '...' is {size}, but {expected} in sample 0"


def _place(sample: int, path: str) -> str:
    return f"sample {sample:,}, key {path!r}" if path else f"sample {sample:,}"
