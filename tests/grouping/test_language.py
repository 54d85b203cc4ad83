"""The language of dimensions: what is read, written back, and refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.grouping.keys import leaves, tree_of
from brimful.grouping.language import leading, names_in, parse, text_of, trailing, value_of, with_constants
from tests.effort import examples

rules = st.recursive(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from(["res", "atm"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({''.join(parts)})"),
        st.tuples(inner, st.integers(1, 5)).map(lambda parts: f"({parts[0]}//{parts[1]})"),
    ),
    max_leaves=5,
)


@given(rules, st.integers(0, 20), st.integers(0, 20))
@examples(80)
def test_a_rule_is_what_python_makes_of_it(text: str, res: int, atm: int) -> None:
    known = {"res": res, "atm": atm}
    expected = eval(text, {}, known)
    (rule,) = parse(text)
    assert rule is not ...
    assert value_of(rule, known) == expected
    assert value_of(rule, {name: np.array([size, size]) for name, size in known.items()}) == pytest.approx(expected)
    assert parse(text_of(rule)) == (rule,)
    assert with_constants(rule, known) == expected
    assert set(names_in(rule)) <= set(known)


def test_axes_that_follow_the_last_ragged_one_are_rows() -> None:
    for text, axes, inner in (
        ("", 0, ()),
        ("3 3", 0, (3, 3)),
        ("res 3 3", 1, (3, 3)),
        ("3 res", 2, ()),
        ("h w 3", 2, (3,)),
        ("res-2 4 5", 1, (4, 5)),
    ):
        dims: Any = parse(text)
        assert (len(leading(dims)), trailing(dims)) == (axes, inner)


@pytest.mark.parametrize(
    "word",
    [
        "res%2",
        "-res",
        "res,",
        "2.5",
        "res#2",
        "9223372036854775808",
        "f(res)",
        "(res",
        "'res'",
        "True",
        "res-...",
        "*n",
    ],
)
def test_what_cannot_be_read_is_named(word: str) -> None:
    message = (
        f"cannot read {word!r} in dims {'3 ' + word!r}: an axis is a name, a number, '...', or a rule without spaces, such as "
        "res-2 or (res-1)//2+1"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(f"3 {word}")


def test_a_list_is_no_text() -> None:
    with pytest.raises(TypeError, match=r"^dims are written as text, such as 'res 3' \(got \['res'\]\)$"):
        parse(["res"])  # type: ignore[arg-type]


def test_numbers_that_64_bits_do_not_hold_are_refused() -> None:
    for text in ("res*4611686018427387904*4", "res*4611686018427387904*4-1", "2*4611686018427387904//4*res"):
        (rule,) = parse(text)
        assert rule is not ...
        with pytest.raises(ValueError, match=r"comes to more than 4,611,686,018,427,387,904; no axis is so long$"):
            value_of(rule, {"res": np.array([1, 0])})
    with pytest.raises(ValueError, match=r"^'4611686018427387904\*4' comes to more than"):
        with_constants(("*", "d", 4), {"d": 1 << 62})


def test_two_gaps_leave_open_which_is_which() -> None:
    with pytest.raises(
        ValueError, match=r"^'...' stands twice in '... 3 ...': how many axes each of them has would be open$"
    ):
        parse("... 3 ...")
    with pytest.raises(TypeError, match=r"^dims are written as text, such as 'res 3' \(got 3\)$"):
        parse(3)  # type: ignore[arg-type]


nested: Any = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3), max_leaves=6
)


@given(nested)
@examples(50)
def test_nested_dicts_are_their_leaves(tree: Any) -> None:
    assert tree_of(leaves(tree)) == tree


def test_a_leaf_holds_no_keys() -> None:
    for paths in (["a", "a.b"], ["a.b", "a"]):
        with pytest.raises(ValueError, match="cannot both hold keys and be a leaf"):
            tree_of((path, 1) for path in paths)
    with pytest.raises(TypeError, match=r"^keys are text \(got 3\)$"):
        [*leaves({3: "res"})]
    with pytest.raises(ValueError, match=r"^a key must have at least 1 letter \(got ''\)$"):
        [*leaves({"": "res"})]
