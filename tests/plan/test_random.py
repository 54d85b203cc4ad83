from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan import random

SORT_ENDS = (random.DIGIT_SORTED.start, random.DIGIT_SORTED.stop)

keys = st.integers(0, 2**64 - 1)


def test_the_hash_is_splitmix64() -> None:
    """The first outputs of the reference implementation for the seed 1234567."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert random.hashes(1234567, 5).tolist() == expected


def test_permutations_and_keys_are_what_they_were() -> None:
    """Data order is interface: a change here is a breaking change."""
    assert random.permutation(12, 42).tolist() == [4, 1, 10, 6, 2, 8, 3, 11, 9, 0, 7, 5]
    assert random.key(42, 0, 1, 2) == 15276427767424532090
    assert random.generator(7).integers(1_000, size=3).tolist() == [163, 872, 972]


@given(keys, st.integers(0, 200), st.integers(0, 10**12))
def test_any_part_of_the_hashes_can_be_computed_alone(key: int, count: int, first: int) -> None:
    together = random.hashes(key, count + 3, first)
    assert together.dtype == np.uint64
    assert random.hashes(key, count, first + 3).tolist() == together[3:].tolist()


@given(keys, st.sampled_from([0, 1, 2, 3, 4, 15, 16, 17, 64, 65, 997, 4096, 65_537]))
def test_a_permutation_has_each_number_once(key: int, count: int) -> None:
    order = random.permutation(count, key)
    assert order.dtype == np.int64
    assert np.sort(order).tolist() == list(range(count))


@pytest.mark.parametrize("count", [4**8, 4**8 + 1, 100_003, 1_000_000])
def test_a_permutation_mixes(count: int) -> None:
    order = random.permutation(count, random.key(42, 0, 0)).astype(float)
    lag_1 = np.corrcoef(order[:-1], order[1:])[0, 1]
    in_place = np.corrcoef(order, np.arange(count))[0, 1]
    assert abs(lag_1) < 0.01
    assert abs(in_place) < 0.01


def test_each_order_of_a_few_is_as_likely_as_any_other() -> None:
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for key in range(24_000):
        counts[tuple(random.permutation(4, random.key(key)).tolist())] += 1
    expected = 1_000
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < 49.7  # 23 degrees of freedom: one in a thousand is above


@given(st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_a_key_is_64_bits(parts: list[int]) -> None:
    assert 0 <= random.key(*parts) < 2**64


def test_keys_differ_in_each_part_its_place_and_how_many_there_are() -> None:
    parts = [parts for length in range(5) for parts in itertools.product((0, 1, 2, 42), repeat=length)]
    assert len({random.key(*one) for one in parts}) == len(parts)


def test_neighbouring_keys_give_unrelated_hashes() -> None:
    bits = np.unpackbits(
        np.concatenate([random.hashes(random.key(42, epoch), 64) for epoch in range(64)]).view(np.uint8)
    )
    assert abs(bits.mean() - 0.5) < 0.005
    first, second = (random.permutation(10_000, random.key(42, epoch)) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_a_generator_depends_on_its_key_alone() -> None:
    drawn = [random.generator(key).normal(size=4).tolist() for key in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    "count", [1, 2, *(end + more for end in (random.CACHED, *SORT_ENDS) for more in (-1, 0, 1)), 70_000]
)
@pytest.mark.parametrize("seconds", [{}, (1.0, 2.0), (2.0, 1.0)], ids=["tried", "by digits", "by numpy"])
def test_a_permutation_is_the_order_of_hashes_by_any_sort(
    count: int, seconds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {count.bit_length(): tuple([each] * 3 for each in seconds)} if seconds else {}
    monkeypatch.setattr(random, "_SECONDS", known)
    for key in range(7):
        low = (1 << count.bit_length()) - 1
        hashes = random.hashes(key, count) & np.uint64(0xFFFFFFFFFFFFFFFF ^ low)
        assert np.array_equal(random.permutation(count, key), hashes.argsort(kind="stable"))


@pytest.mark.parametrize(("by_digits", "by_numpy", "calls"), [(1.0, 2.0, 5), (2.0, 1.0, 0)])
def test_each_sort_is_tried_three_times_and_then_the_faster_one_is_taken(
    by_digits: float, by_numpy: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def counted(hashed: Any) -> Any:
        done.append(len(hashed))
        return np.sort(hashed)

    monkeypatch.setattr(random, "_by_digits", counted)
    monkeypatch.setattr(random, "_SECONDS", {})
    for _ in range(6):
        random.permutation(2_000, 1)
    assert len(done) == 3
    monkeypatch.setattr(random, "_SECONDS", {(2_000).bit_length(): ([by_digits] * 3, [by_numpy] * 3)})
    for _ in range(5):
        random.permutation(2_000, 1)
    assert len(done) == 3 + calls
