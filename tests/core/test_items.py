"""Stages over batches: map, take, enumerate, prefetch."""

from __future__ import annotations

from typing import Any

import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import letters


def batches(repeat: bool = False) -> bf.Batches:
    return letters("abcde", repeat=repeat).batch(2)


def test_map_gives_what_the_function_makes_of_a_batch() -> None:
    assert list(batches().map(lambda batch: "".join(batch["letter"]))) == ["ab", "cd", "e"]
    assert list(batches().map(lambda batch: None)) == [None, None, None]


def test_an_error_names_the_function() -> None:
    def fails(batch: Any) -> None:
        raise KeyError("boom")

    with pytest.raises(bf.StageError, match=r"^map\(fails\) failed on a batch: KeyError: 'boom'$") as error:
        list(batches().map(fails))
    assert isinstance(error.value.__cause__, KeyError)


def test_take_and_enumerate_go_on_over_epochs() -> None:
    assert [batch["letter"] for batch in batches().take(2)] == [["a", "b"], ["c", "d"]]
    assert list(batches().take(0)) == []
    numbered = list(batches(repeat=True).enumerate().take(4))
    assert [(number, batch["letter"]) for number, batch in numbered] == [
        (0, ["a", "b"]), (1, ["c", "d"]), (2, ["e", "a"]), (3, ["b", "c"])
    ]  # fmt: skip


def test_prefetch_changes_nothing_but_when() -> None:
    plain, ahead = (list(data.map(lambda batch: batch["letter"])) for data in (batches(), batches().prefetch(3)))
    assert plain == ahead
    it = batches(repeat=True).prefetch(5).iter()
    first = [next(it)["letter"] for _ in range(4)]
    assert first[2:] == [["e", "a"], ["b", "c"]]
    state = it.state_dict()
    it.close()
    assert next(batches(repeat=True).iter(state))["letter"] == ["d", "e"], "a state knows nothing of prefetch"


def test_resume_is_exact_at_every_batch() -> None:
    assert_exact_resume(lambda: batches(repeat=True).map(lambda batch: batch["letter"]).prefetch(2).enumerate().take(7))
