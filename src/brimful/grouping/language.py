"""The language of dimensions: the axes of a tensor, written as text, and shapes compared with them. Knows no tensor.

An axis is a number (fixed), a name, `...` (any number of fixed ones), or a rule. A rule says how a module changes a length:
`res-2` after a convolution of width 3, `(res-1)//2+1` after one of stride 2.
"""

from __future__ import annotations

import ast
import operator
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import EllipsisType
from typing import Any, Final, TypeAlias

import numpy as np

from brimful.plan.errors import MOST
from brimful.plan.plan import IntArray

Rule: TypeAlias = "int | str | tuple[str, Rule, Rule]"
"""A number, a name, or (operation, left, right)."""
Dims: TypeAlias = tuple[Rule, ...]
"""The axes of a tensor, in order."""
Pattern: TypeAlias = "tuple[Rule | EllipsisType, ...]"
"""The same, with `...` for any fixed ones."""
Sizes: TypeAlias = Mapping[str, IntArray]
"""The length of each sample in each ragged dimension, (B,), by name."""

_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}
_SIGNS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


def parse(text: str) -> Pattern:
    """The axes that a text names, divided by spaces.

    Raises:
        TypeError: not a text.
        ValueError: an axis that cannot be read, or `...` twice.

    >>> parse("res 3 (res-1)//2+1 ...")
    ('res', 3, ('+', ('//', ('-', 'res', 1), 2), 1), Ellipsis)
    """
    if not isinstance(text, str):
        raise TypeError(f"dims are written as text, such as 'res 3' (got {text!r})")
    return _parsed(text)


def name_in(text: str) -> str:
    """A name in the form that parsed dims have: letters that look the same, such as the two signs for micro, become one.

    >>> name_in("\u00b5") == parse("\u00b5")[0] == "\u03bc"
    True
    """
    return unicodedata.normalize("NFKC", text)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a dimension, and is written as dims have it.

    >>> [is_name(text) for text in ("input_ids", "input-ids", "a b", "a.b", "from", "")]
    [True, False, False, False, False, False]
    """
    try:
        return _parsed(text) == (text,)
    except ValueError:
        return False


def names_in(rule: Rule) -> tuple[str, ...]:
    """The names in a rule, in order, each once."""
    if isinstance(rule, tuple):
        return tuple(dict.fromkeys((*names_in(rule[1]), *names_in(rule[2]))))
    return (rule,) if isinstance(rule, str) else ()


def value_of(rule: Rule, known: Mapping[str, Any]) -> Any:
    """The value of a rule. Its names stand for numbers, or for arrays of them.

    Raises:
        ValueError: it may come to more than 64 bits hold.

    >>> value_of(("-", "res", 2), {"res": 7})
    5
    """
    if isinstance(rule, tuple):
        if _most(rule, known) > MOST:
            raise ValueError(f"{text_of(rule)!r} comes to more than {MOST:,}; no axis is so long")
        return _OPERATIONS[rule[0]](value_of(rule[1], known), value_of(rule[2], known))
    return known[rule] if isinstance(rule, str) else rule


def with_constants(rule: Rule, constants: Mapping[str, int]) -> Rule:
    """A rule with numbers in place of the names that stand for them; a number where no name is left.

    Raises:
        ValueError: it divides by 0, or by a name that stands for no number.
    """
    if isinstance(rule, str):
        return constants.get(rule, rule)
    if isinstance(rule, int):
        return rule
    return _folded(rule[0], with_constants(rule[1], constants), with_constants(rule[2], constants))


def text_of(rule: Rule, inner: bool = False) -> str:
    """A rule as it is written.

    >>> text_of(("+", ("//", ("-", "res", 1), 2), 1))
    '((res-1)//2)+1'
    """
    if not isinstance(rule, tuple):
        return str(rule)
    written = f"{text_of(rule[1], True)}{rule[0]}{text_of(rule[2], True)}"
    return f"({written})" if inner else written


def leading(dims: Dims) -> Dims:
    """The axes up to the last one that is no number."""
    count = max((place for place, rule in enumerate(dims, 1) if not isinstance(rule, int)), default=0)
    return dims[:count]


def trailing(dims: Dims) -> tuple[int, ...]:
    """The fixed axes that follow those."""
    return tuple(rule for rule in dims[len(leading(dims)) :] if isinstance(rule, int))


def lies_first(rule: Rule) -> bool:
    """Whether a padded axis that follows this rule can have all its values before all its padding. It cannot where the rule
    joins two axes.

    >>> [lies_first(parse(text)[0]) for text in ("(res-1)//2+1", "res*2", "res+atm", "res*res")]
    [True, True, False, False]
    """
    if not isinstance(rule, tuple):
        return True
    sign, left, right = rule
    apart = sign != "*" or not (names_in(left) and names_in(right))
    return apart and len(names_in(rule)) < 2 and lies_first(left) and lies_first(right)


def _most(rule: Rule, known: Mapping[str, Any]) -> int:
    """An upper bound of the value of a rule and of each of its parts."""
    if isinstance(rule, tuple):
        left, right = _most(rule[1], known), _most(rule[2], known)
        return {"*": max(left * right, left, right), "//": max(left, right)}.get(rule[0], left + right)
    return int(np.abs(known[rule] if isinstance(rule, str) else rule).max(initial=0))


def _folded(sign: str, left: Rule, right: Rule) -> Rule:
    if sign == "//" and (not isinstance(right, int) or right == 0):
        raise ValueError(
            f"{text_of((sign, left, right))!r} must divide by a number other than 0 (got {text_of(right)})"
        )
    if isinstance(left, int) and isinstance(right, int):
        number = int(_OPERATIONS[sign](left, right))
        if abs(number) > MOST:
            raise ValueError(f"{text_of((sign, left, right))!r} comes to more than {MOST:,}; no axis is so long")
        return number
    return sign, left, right


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Pattern:
    axes = tuple(_axis(word, text) for word in text.split())
    if axes.count(...) > 1:
        raise ValueError(f"'...' stands twice in {text!r}: how many axes each of them has would be open")
    return axes


def _axis(word: str, text: str) -> Rule | EllipsisType:
    if word == "...":
        return ...
    try:
        if "#" in word:  # what follows would be a comment
            raise ValueError
        return _rule(ast.parse(word, mode="eval").body)
    except (SyntaxError, ValueError):
        raise ValueError(
            f"cannot read {word!r} in dims {text!r}: an axis is a name, a number, '...', or a rule without spaces, such as "
            "res-2 or (res-1)//2+1"
        ) from None


def _rule(node: ast.expr) -> Rule:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= MOST:
        return node.value
    sign = _SIGNS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if sign is None or not isinstance(node, ast.BinOp):
        raise ValueError
    return sign, _rule(node.left), _rule(node.right)


# -- shapes, compared with it -------------------------------------------------------------------------------------------


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
