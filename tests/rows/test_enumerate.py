from __future__ import annotations

from brimful.testing import assert_exact_resume
from tests.samples import letters


def test_samples_are_numbered_on_over_epochs() -> None:
    data = letters("ab", repeat=True).enumerate().take(5)
    assert [(sample["letter"], sample["step"]) for sample in data] == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]
    assert list(letters("a").enumerate(count_column="n")) == [{"letter": "a", "n": 0}]


def test_a_column_of_this_name_is_replaced() -> None:
    assert list(letters("ab").enumerate(count_column="letter")) == [{"letter": 0}, {"letter": 1}]


def test_what_is_filtered_out_before_is_not_counted() -> None:
    data = letters("abcd").filter(lambda sample: sample["letter"] in "bd").enumerate()
    assert [sample["step"] for sample in data] == [0, 1]


def test_resume_goes_on_counting() -> None:
    assert_exact_resume(lambda: letters("abc", repeat=True).enumerate().take(8))
