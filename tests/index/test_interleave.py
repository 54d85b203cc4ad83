"""A mixture of indexed data is the streamed one, any part of it alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.repeat import Repeat
from brimful.core.stage import Stage, running
from brimful.dataset import dataset_of
from brimful.index.indexed import Indexed
from brimful.index.indexed import Repeat as IndexRepeat
from brimful.index.joined import Interleave as IndexInterleave
from brimful.index.sequence import FromSequence, LengthIndex
from brimful.plan.mix import Stop, due
from brimful.rows.mixing import Interleave
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.samples import letters, spelled, tokens

STOPS = st.sampled_from(["first", "all", "all_repeat"])
WEIGHTS = st.one_of(
    st.sampled_from([1, 2, 3, 0.1, 0.3, 1 / 3, 7.0]), st.floats(0.01, 100), st.floats(1e-9, 1e9, allow_subnormal=False)
)
MOST = 1_000


def source(count: int, number: int, shuffle: bool) -> FromSequence:
    rows = [{"n": 1_000_000 * number + row} for row in range(count)]
    stage = bf.from_sequence(rows, shuffle=shuffle).stage
    assert isinstance(stage, FromSequence)
    return stage


def numbers(stage: Stage[Any], epoch: int) -> list[int]:
    with running(stage, stage.start(epoch)) as items:
        rows = (row for block, _ in items if block.num_rows for row in block.column("n").to_pylist())
        return list(islice(rows, MOST))


def spread(weights: list[float], most: float) -> tuple[float, ...]:
    """Weights of which none is less than one in `most` of another, or mixtures would be long."""
    return tuple(max(weight, max(weights) / most) for weight in weights)


@st.composite
def sources(draw: st.DrawFn) -> list[tuple[int, bool, bool]]:
    """Of each: samples, whether shuffled, whether it repeats."""
    repeats = draw(st.booleans())  # in few mixtures only, or none would end
    counts = st.one_of(st.integers(int(repeats), 5), st.integers(int(repeats), 60))  # to repeat none is an error
    one = st.tuples(counts, st.booleans(), st.booleans() if repeats else st.just(False))
    return draw(st.lists(one, min_size=1, max_size=5))


@given(sources(), st.lists(WEIGHTS, min_size=5, max_size=5), STOPS, st.integers(0, 2))
@example([(0, False, False), (0, False, False)], [1, 1, 1, 1, 1], "all_repeat", 0)
@example([(0, False, False), (3, True, False), (0, False, False)], [9, 1, 1, 1, 1], "all_repeat", 1)
@example([(40, False, False), (3, False, False), (1, True, False)], [0.1, 0.1, 0.3, 1, 1], "all_repeat", 0)
@example([(0, False, False), (5, False, False)] + [(0, False, False)] * 3, [1, 1, 1e3, 9e2, 7e2], "all_repeat", 0)
@examples(150)
def test_it_is_the_streamed_mixture(
    given: list[tuple[int, bool, bool]], weights: list[float], stop: Stop, epoch: int
) -> None:
    weights = list(spread(weights, 1e3)[: len(given)])
    stages = [source(count, number, shuffle) for number, (count, shuffle, _) in enumerate(given)]
    streamed = Interleave(
        tuple(Repeat(stage) if again else stage for stage, (*_, again) in zip(stages, given)), tuple(weights), stop
    )
    mixed = IndexInterleave(
        tuple(IndexRepeat(stage) if again else stage for stage, (*_, again) in zip(stages, given)), tuple(weights), stop
    )
    expected = numbers(streamed, epoch)
    found = numbers(mixed, epoch)
    assert found == expected
    if len(expected) < MOST:
        assert mixed.count == len(expected)
    else:
        assert mixed.count is None or mixed.count >= MOST


@given(sources(), st.lists(WEIGHTS, min_size=5, max_size=5), STOPS, st.data())
@examples(100)
def test_any_part_can_be_had_alone(
    given: list[tuple[int, bool, bool]], weights: list[float], stop: Stop, data: st.DataObject
) -> None:
    stages: list[Indexed] = [source(count, number, shuffle) for number, (count, shuffle, _) in enumerate(given)]
    mixed = IndexInterleave(tuple(stages), spread(weights, 1e9)[: len(given)], stop)
    count = mixed.count
    assert count is not None
    count = min(count, 20_000)
    whole = mixed.order(1)(0, count)
    for _ in range(4):
        first = data.draw(st.integers(0, count))
        last = data.draw(st.integers(first, count))
        assert mixed.order(1)(first, last).tolist() == whole[first:last].tolist()


def test_far_out_it_is_still_whose_turn_it_is() -> None:
    weights = (0.1, 0.3, 1.7)
    stages = tuple(IndexRepeat(source(3, number, False)) for number in range(3))
    first = 10**12
    found = IndexInterleave(stages, weights, "first").order(0)(first, first + 50) // 3  # the source of each
    served = [int(first * weight / sum(weights)) - 3 for weight in weights]  # no more than are served by then
    order = []
    for _ in range(first + 50 - sum(served)):
        order.append(due(served, weights))
        served[order[-1]] += 1
    assert found.tolist() == order[-50:]


def test_each_source_goes_on_with_its_own_next_epoch() -> None:
    one = bf.from_sequence([{"letter": letter} for letter in "abcdefgh"], shuffle=True)
    data = bf.interleave_datasets([one, letters("x" * 24)], stop="all_repeat")
    assert data.kind == "indexed"
    served = "".join(letter for letter in spelled(data) if letter != "x")
    epochs = [served[start : start + 8] for start in (0, 8, 16)]
    assert [sorted(epoch) for epoch in epochs] == [sorted("abcdefgh")] * 3
    assert len(set(epochs)) == 3


def test_what_is_no_data_set_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^interleave_datasets: data set 1 is a builtins.list; use from_seq"):
        bf.interleave_datasets([letters("a"), ["b"]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^concat_datasets: data set 1 is a builtins.list; use from_seq"):
        bf.concat_datasets([letters("a"), ["b"]])  # type: ignore[list-item]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^by must be one of samples, tokens \(got 'words'\)$"):
        bf.interleave_datasets([letters("a")], by="words")  # type: ignore[arg-type]
    with pytest.raises(
        bf.DataError, match=r"^there is no column 'input_ids' \(columns: letter; sequence, row 0\); tokenize"
    ):
        list(bf.interleave_datasets([letters("a")], by="tokens"))


# -- by tokens ---------------------------------------------------------------------------------------------------------------


def of_lengths(lengths: Any, name: int, streamed: bool, **options: Any) -> bf.Dataset:
    rows = [{"input_ids": [name] * length} for length in lengths]
    return bf.from_iterable(rows) if streamed else bf.from_sequence(rows, **options)


@pytest.mark.parametrize("streamed", [False, True])
def test_by_tokens_the_weights_are_shares_of_tokens(streamed: bool) -> None:
    random = np.random.default_rng(0)
    short, long = random.integers(1, 9, 40_000), random.lognormal(5, 1, 250).astype(int)
    assert long.mean() > 50 * short.mean()
    sources = [of_lengths(short, 0, streamed, shuffle=True), of_lengths(long, 1, streamed, shuffle=True)]
    mixed = bf.interleave_datasets(sources, weights=[3, 1], by="tokens", stop="all_repeat")
    served = [0, 0]
    for sample in mixed:
        served[sample["input_ids"][0]] += len(sample["input_ids"])
    assert sum(served) > 200_000
    assert served[0] / sum(served) == pytest.approx(0.75, abs=0.01)
    assert mixed.kind == f"streamed (by {'from_iterable' if streamed else 'interleave_datasets'})"


def test_streamed_shares_of_tokens_are_exact_to_a_sample_at_any_time() -> None:
    random = np.random.default_rng(1)
    sizes = [random.integers(1, 500, 600), random.integers(1, 20, 9_000)]
    sources = [of_lengths(lengths, name, True) for name, lengths in enumerate(sizes)]
    served = [0, 0]
    for sample in bf.interleave_datasets(sources, weights=[1, 2], by="tokens"):
        served[sample["input_ids"][0]] += len(sample["input_ids"])
        assert abs(2 * served[0] - served[1]) <= 2 * 500 + 20


def test_streamed_by_tokens_is_due_whoever_served_the_least_for_its_weight() -> None:
    lengths = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8], [0, 0, 5]]
    mixed = bf.interleave_datasets(
        [of_lengths(sizes, name, True) for name, sizes in enumerate(lengths)],
        weights=[1, 2, 1],
        stop="all",
        by="tokens",
    )
    found = [len(sample["input_ids"]) for sample in mixed]
    served, places, expected = [0, 0, 0], [0, 0, 0], []
    while alive := [name for name in range(3) if places[name] < len(lengths[name])]:
        due = min(alive, key=lambda name: (served[name] + 0.5) / [1, 2, 1][name])
        size = lengths[due][places[due]]
        places[due] += 1
        served[due] += max(size, 1)
        expected.append(size)
    assert found == expected


def test_with_samples_of_one_token_both_are_the_mixture_of_samples() -> None:
    for streamed in (False, True):
        sources = [of_lengths([1] * count, name, streamed) for name, count in enumerate((9, 5, 7))]
        by_samples = bf.interleave_datasets(sources, weights=[1, 0.3, 2], stop="all_repeat")
        by_tokens = bf.interleave_datasets(sources, weights=[1, 0.3, 2], stop="all_repeat", by="tokens")
        assert [row["input_ids"][0] for row in by_tokens] == [row["input_ids"][0] for row in by_samples]


def test_the_mean_is_that_of_what_is_mixed() -> None:
    long_ones = tokens(*([0] * 10 for _ in range(50)), *([0] for _ in range(50))).take(50)
    mixed = bf.interleave_datasets([long_ones, tokens(*([1] for _ in range(500)))], by="tokens", stop="first")
    drawn = [int(sample["input_ids"][0]) for sample in mixed]
    assert drawn.count(1) == pytest.approx(10 * drawn.count(0), abs=10)


def test_resume_is_exact_by_tokens() -> None:
    for streamed in (False, True):
        for stop in ("first", "all", "all_repeat"):
            assert_exact_resume(
                lambda: bf.interleave_datasets(
                    [of_lengths([3, 0, 7, 2], 0, streamed), of_lengths([1, 1, 9], 1, streamed)],  # noqa: B023
                    by="tokens",
                    stop=stop,  # noqa: B023
                )
            )


def test_lengths_alone_can_be_mixed() -> None:
    one, two = (FromSequence(LengthIndex(np.full(9, length)), False, 0) for length in (3, 5))
    assert dataset_of(IndexInterleave((one, two), (2, 1), "first")).lengths().tolist() == ([3, 5, 3] * 5)[:14]
