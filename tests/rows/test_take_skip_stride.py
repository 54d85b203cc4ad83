from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.stage import running
from brimful.rows.counting import Take
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed
from tests.strategies import Blocks


@given(st.integers(0, 600), st.integers(0, 700), st.integers(1, 5), st.integers(0, 4))
def test_they_are_slices_of_the_stream(count: int, n: int, interval: int, offset: int) -> None:
    rows = [{"n": number} for number in range(count)]
    offset %= interval
    for source in (bf.from_sequence, bf.from_iterable):
        data = source(rows)
        assert list(data.take(n)) == rows[:n]
        assert list(data.skip(n)) == rows[n:]
        assert list(data.stride(interval, offset)) == rows[offset::interval]
        assert list(data.skip(3).stride(interval, offset).take(2)) == rows[3:][offset::interval][:2]


@pytest.mark.parametrize("kind", [letters, streamed])
def test_over_the_ends_of_epochs(kind: Any) -> None:
    data = kind("abc", repeat=True)
    assert spelled(data.skip(4).take(5)) == "bcabc"
    assert spelled(data.stride(2, 0).take(4)) == "acba"
    assert spelled(data.take(0)) == ""


def test_take_reads_no_further_than_it_must() -> None:
    read = []

    def noted(sample: dict[str, str]) -> dict[str, str]:
        read.append(sample["text"])
        return sample

    list(bf.from_iterable(["a"] * 10_000).map(noted).take(2))
    assert len(read) <= 1_024, "what its types are told by"


@pytest.mark.parametrize("letters", [letters, streamed])
def test_resume_is_exact_at_every_sample(letters: Any) -> None:
    assert_exact_resume(lambda: letters("abcdef").take(4))
    assert_exact_resume(lambda: letters("abcdef").skip(2))
    assert_exact_resume(lambda: letters("abcdef").stride(2, 1))
    assert_exact_resume(lambda: letters("ab", repeat=True).skip(1).stride(3, 2).take(4))
    assert_exact_resume(lambda: letters("abcdef").filter(lambda sample: sample["letter"] in "bf").take(1))


@pytest.mark.parametrize("kind", [letters, streamed])
def test_settings_are_checked(kind: Any) -> None:
    data = kind("a")
    for wrong, message in (
        (lambda: data.take(-1), r"^n must be at least 0 samples \(got -1\)$"),
        (lambda: data.skip(-1), r"^n must be at least 0 samples \(got -1\)$"),
        (lambda: data.stride(0, 0), r"^interval must be at least 1 \(got 0\)$"),
        (lambda: data.stride(2, 2), r"^offset must be at least 0 and below interval=2 \(got 2\)$"),
        (lambda: data.stride(2, -1), r"^offset must be at least 0 and below interval=2 \(got -1\)$"),
        (lambda: data.batch(1).take(-1), r"^n must be at least 0 batches \(got -1\)$"),
        (lambda: data.batch(1).prefetch(0), r"^n must be at least 1 batch \(got 0\)$"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_take_counts_over_blocks() -> None:
    stage = Take(Blocks((1, 2, 3, 4, 5, 6), (2, 1)), 4)
    with running(stage, stage.start(0)) as items:
        assert [block.num_rows for block, _ in items] == [2, 1, 1]
