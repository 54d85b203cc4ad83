from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import brimful as bf

ROWS = [{"input_ids": [1] * 9, "x": number} for number in range(10)]


class Again:
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


def indexed() -> bf.Dataset:
    return bf.from_sequence(ROWS, repeat=True)


def streamed() -> bf.Dataset:
    return bf.from_iterable(Again(), repeat=True)


def none(sample: dict[str, Any]) -> bool:
    return False


ENDLESS: tuple[Callable[[], Any], ...] = (
    lambda: indexed().skip(1).stream().filter(none),
    lambda: indexed().stride(2, 0).stream().filter(none),
    lambda: indexed().skip(1).map(lambda sample: 1 / 0, on_error="skip"),
    lambda: indexed().skip(1).batch_by_tokens(4, overlong="drop"),
    lambda: indexed().skip(1).stream().filter(none).batch(10),
    lambda: streamed().skip(1).filter(none),
    lambda: streamed().take(10**9).filter(none),
    lambda: streamed().skip(1).filter(none).batch_by_tokens(100),
    lambda: bf.interleave_datasets([indexed(), indexed()]).stream().filter(none),
    lambda: bf.interleave_datasets([streamed(), streamed()]).filter(none).shuffle(100),
    lambda: indexed().skip(1).stream().filter(none).batch(10).prefetch(2),
)


@pytest.mark.parametrize("endless", ENDLESS, ids=[str(number) for number in range(len(ENDLESS))])
def test_epochs_without_a_sample_are_an_error_and_no_wait(
    endless: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("brimful").setLevel(logging.WARNING)
    threads = threading.active_count()
    with (
        endless().iter() as it,
        pytest.raises(bf.DataError, match=r"^repeat: [\d,]+ epochs went by without a sample"),
    ):
        next(it)
    assert threading.active_count() <= threads


def test_a_rare_sample_is_waited_for() -> None:
    def seldom(sample: dict[str, Any]) -> bool:
        seen.append(1)
        return len(seen) % 6_001 == 0

    for data in (indexed().skip(1).stream(), streamed().skip(1)):
        seen: list[int] = []
        assert len(list(data.filter(seldom).take(4))) == 4, "600 epochs of 10 rows lie between two of them"
