from __future__ import annotations

import numpy as np

import brimful as bf
from brimful.testing import assert_exact_resume


def test_samples_are_dicts_of_what_the_columns_hold() -> None:
    rows = [
        {"tokens": [1, 2], "text": "a", "number": 1, "nested": {"x": [1]}, "bytes": b"x"},
        {"tokens": [], "text": None, "number": None, "nested": None, "bytes": None},
    ]
    one, two = bf.from_sequence(rows)
    assert isinstance(one["tokens"], np.ndarray)
    assert {**one, "tokens": one["tokens"].tolist()} == rows[0]
    assert {**two, "tokens": two["tokens"].tolist()} == rows[1]


def test_a_list_is_an_array_whatever_its_neighbours_lack() -> None:
    one, none, holes = bf.from_sequence([{"a": [1]}, {"a": None}, {"a": [None, 2]}])
    assert (type(one["a"]), none["a"], holes["a"]) == (np.ndarray, None, [None, 2])


def test_arrays_are_the_callers_own() -> None:
    data = bf.from_sequence([{"a": [1, 2]}, {"a": [3]}])
    it = data.iter()
    next(it)["a"][:] = 9
    assert next(it)["a"].tolist() == [3]
    assert [sample["a"].tolist() for sample in data] == [[1, 2], [3]]


def test_resume_is_exact_inside_of_a_block() -> None:
    assert_exact_resume(lambda: bf.from_sequence(["a", "b", "c"]))
