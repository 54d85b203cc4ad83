"""A sample that fails: an error, or left out, counted and said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from tests.samples import letters, shard, spelled


def unless_b(sample: dict[str, Any], *rng: np.random.Generator) -> dict[str, Any]:
    if sample["letter"] == "b":
        raise KeyError("boom")
    return sample


def twice_unless_b(sample: dict[str, Any], *rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    yield sample
    yield unless_b(sample)


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "map": (unless_b, "acac"),
    "filter": (unless_b, "acac"),
    "filter_map": (unless_b, "acac"),
    "flat_map": (twice_unless_b, "aaccaacc"),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_sample_that_fails_is_left_out_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str, seed: int | None
) -> None:
    fn, left = CALLS[verb]
    data = getattr(shard(tmp_path, [{"letter": letter} for letter in "abcabc"]), verb)(fn, seed=seed, on_error="skip")
    with caplog.at_level(logging.WARNING), data.iter() as it:
        assert "".join(sample["letter"] for sample in it) == left
        assert it.stats.skipped == 2
    assert [record.message for record in caplog.records] == [
        f"skipped: {verb}({fn.__name__}) failed at shard a.jsonl, line {line}: KeyError: 'boom'" for line in (2, 5)
    ]


@pytest.mark.parametrize("verb", CALLS)
def test_where_all_fail_nothing_is_left(verb: str) -> None:
    assert list(getattr(letters("bbb"), verb)(CALLS[verb][0], on_error="skip")) == []
    with pytest.raises(bf.StageError, match=rf"^{verb}\(\w+\) failed at sequence, row 0: KeyError: 'boom'$"):
        list(getattr(letters("bbb"), verb)(CALLS[verb][0]))


def test_indexed_data_stay_indexed_without_the_samples_that_fail() -> None:
    data = letters("abcb").filter(unless_b, on_error="skip")
    assert data.kind == "indexed"
    with data.batch(2).iter() as it:
        assert it.stats.skipped == 2
        assert len(list(it)) == 1
    assert spelled(data) == "ac"
    assert spelled(data.shuffle(2).skip(0)) in ("ac", "ca")


@pytest.mark.parametrize("verb", CALLS)
def test_a_state_is_held_against_what_becomes_of_samples_that_fail(verb: str) -> None:
    one, other = (getattr(letters("abc").map(dict), verb)(CALLS[verb][0], on_error=word) for word in ("skip", "raise"))
    with one.iter() as it:
        next(it)
        state = it.state_dict()
    with pytest.raises(bf.StateError, match=r"\.on_error was 'skip' when it was saved and is 'raise' here"):
        other.iter(state)


@pytest.mark.parametrize("verb", CALLS)
def test_another_word_is_refused(verb: str) -> None:
    with pytest.raises(ValueError, match=r"^on_error must be one of raise, skip \(got 'drop'\)$"):
        getattr(letters("abc"), verb)(CALLS[verb][0], on_error="drop")
