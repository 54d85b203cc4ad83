from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.plan.mix import Stop
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed


def mixed(texts: list[str], weights: list[int], stop: str) -> Iterator[str]:
    """Row by row: due is whose share so far, half a row on, is the least."""
    served, places, ended, out = [0] * len(texts), [0] * len(texts), [False] * len(texts), [False] * len(texts)
    while not all(out):
        alive = [number for number in range(len(texts)) if not out[number]]
        due = min(alive, key=lambda number: (Fraction(2 * served[number] + 1, 2 * weights[number]), number))
        if places[due] == len(texts[due]):
            if stop == "first":
                return
            if stop == "all" or not texts[due]:
                out[due] = True
                continue
            ended[due] = True
            if all(ended[number] for number in alive):
                return
            places[due] = 0
        yield texts[due][places[due]]
        served[due] += 1
        places[due] += 1


texts = st.lists(st.text("abc", max_size=4), min_size=1, max_size=3)


def of(kind: str, text: str, number: int) -> bf.Dataset:
    return streamed(text) if kind == "streamed" or (kind == "of both kinds" and number % 2) else letters(text)


@pytest.mark.parametrize("kind", ["indexed", "streamed", "of both kinds"])
@given(texts, st.lists(st.integers(1, 4), min_size=3, max_size=3), st.sampled_from(["first", "all", "all_repeat"]))
def test_rows_come_as_one_by_one(kind: str, texts: list[str], weights: list[int], stop: Stop) -> None:
    texts = [text.translate(str.maketrans("abc", "abc"[number] * 3)) for number, text in enumerate(texts)]
    weights = weights[: len(texts)]
    data = bf.interleave_datasets(
        [of(kind, text, number) for number, text in enumerate(texts)], weights=weights, stop=stop
    )
    assert spelled(data) == "".join(islice(mixed(texts, weights, stop), 1_000))


@pytest.mark.parametrize("kind", [letters, streamed])
def test_shares_are_those_of_the_weights_at_any_time(kind: Any) -> None:
    sources = [kind(letter, repeat=True) for letter in "abc"]
    served = spelled(bf.interleave_datasets(sources, weights=[0.5, 0.3, 0.2]).take(1_000))
    for count in (10, 100, 997, 1_000):
        for letter, weight in zip("abc", (0.5, 0.3, 0.2)):
            assert abs(served[:count].count(letter) - count * weight) <= 1


@pytest.mark.parametrize("kind", [letters, streamed])
def test_what_repeats_begins_its_own_next_epoch(kind: Any) -> None:
    shuffled = bf.from_sequence([{"letter": letter} for letter in "abcdefgh"], shuffle=True)
    served = spelled(bf.interleave_datasets([shuffled, kind("x" * 24)], stop="all_repeat"))
    epochs = ["".join(letter for letter in served if letter != "x")[start : start + 8] for start in (0, 8, 16)]
    assert [sorted(epoch) for epoch in epochs] == [sorted("abcdefgh")] * 3
    assert len(set(epochs)) == 3


@pytest.mark.parametrize("by", ["samples", "tokens"])
@pytest.mark.parametrize("first", [False, True])
def test_a_data_set_that_has_an_empty_epoch_comes_back(by: Any, first: bool, caplog: pytest.LogCaptureFixture) -> None:
    def seldom(sample: dict[str, Any], rng: Any) -> bool:
        return bool(rng.random() < 0.3)

    rows = [{"input_ids": [1] * (1 + number % 3), "source": 0} for number in range(600)]
    few = bf.from_iterable([{"input_ids": [2, 2], "source": 1}] * 2).filter(seldom, seed=1)
    both = [bf.from_iterable(rows), few][:: -1 if first else 1]
    data = bf.interleave_datasets(both, stop="all_repeat", by=by)
    sources = [sample["source"] for sample in data]
    for begin in range(0, 600, 150):
        assert sum(sources[begin : begin + 150]) > 20
    assert sources.count(0) == 600
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("2 epochs of from_iterable > filter went by without a sample; reading goes on")


def test_a_data_set_that_only_has_empty_epochs_is_an_error_in_the_end() -> None:
    both = [streamed("a" * 5_000), streamed("")]
    for sources in (both, both[::-1]):
        it = bf.interleave_datasets(sources, stop="all_repeat").iter()
        assert [next(it)["letter"] for _ in range(900)] == ["a"] * 900
        with pytest.raises(bf.DataError, match=r"^1,000 epochs of from_iterable went by without a sample"):
            list(it)


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_columns_of_one_are_null_in_the_others(source: Any) -> None:
    data = bf.interleave_datasets([source([{"a": 1}]), source([{"b": 2}])])
    assert list(data) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


@pytest.mark.parametrize("kind", [letters, streamed])
def test_resume_is_exact_at_every_sample(kind: Any) -> None:
    for stop in ("first", "all", "all_repeat"):
        assert_exact_resume(
            lambda: bf.interleave_datasets(
                [kind("abcde"), kind("xy"), kind("")],
                weights=[1, 2, 1],
                stop=stop,  # noqa: B023
            )
        )


@pytest.mark.parametrize("kind", [letters, streamed])
def test_settings_are_checked(kind: Any) -> None:
    two = [kind("a"), kind("b")]
    for wrong, message in (
        ({"stop": "last"}, r"^stop must be one of first, all, all_repeat \(got 'last'\)$"),
        ({"weights": [1]}, r"^there must be a weight for each of 2 data sets \(got 1\)$"),
        ({"weights": [1, -0.5]}, r"^weights must be 0 or more, and one of them positive \(got 1, -0\.5\)$"),
        ({"weights": [1, float("inf")]}, r"^weights must be finite \(got inf\)$"),
        ({"weights": [1, float("nan")]}, r"^weights must be finite \(got nan\)$"),
    ):
        with pytest.raises(ValueError, match=message):
            bf.interleave_datasets(two, **wrong)
    with pytest.raises(ValueError, match=r"^interleave_datasets needs at least one data set \(got none\)$"):
        bf.interleave_datasets([])
