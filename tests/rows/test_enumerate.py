from __future__ import annotations

import pytest

from brimful.plan.errors import DataError
from brimful.testing import assert_exact_resume
from tests.samples import letters


def test_samples_are_numbered_on_over_epochs() -> None:
    data = letters("ab", repeat=True).enumerate().take(5)
    assert [(sample["letter"], sample["step"]) for sample in data] == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]
    assert list(letters("a").enumerate(count_column="n")) == [{"letter": "a", "n": 0}]


def test_a_column_that_is_there_is_not_written_over() -> None:
    with pytest.raises(
        DataError,
        match=r"^enumerate: there is a column 'letter' already \(sequence, row 0\); drop or rename it, or give another "
        r"count_column$",
    ):
        list(letters("ab").enumerate(count_column="letter"))


def test_what_is_filtered_out_before_is_not_counted() -> None:
    data = letters("abcd").filter(lambda sample: sample["letter"] in "bd").enumerate()
    assert [sample["step"] for sample in data] == [0, 1]


def test_resume_goes_on_counting() -> None:
    assert_exact_resume(lambda: letters("abc", repeat=True).enumerate().take(8))
