"""Lists that grow, and of which each earlier state stays what it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.core.appended import Appended
from tests.effort import examples


@examples(50)
@given(st.lists(st.integers(0, 30), max_size=30), st.lists(st.integers(), max_size=3))
def test_each_is_the_one_it_was_made_of_with_one_more(origins: list[int], first: list[int]) -> None:
    made, expected = [Appended(first)], [first]
    for number, origin in enumerate(origins):
        made.append(made[origin % len(made)].and_(number))
        expected.append([*expected[origin % len(expected)], number])
    assert [list(one) for one in made] == expected
    assert [len(one) for one in made] == [len(one) for one in expected]
