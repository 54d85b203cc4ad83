"""What is worked out once: by one thread, and without a lock that others, or a chain's own threads, would wait for."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from time import sleep
from typing import Any

import pytest

import brimful as bf
from brimful.plan.once import once


def even(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2 == 0)


def numbered(count: int) -> bf.Dataset:
    return bf.from_sequence([{"n": number} for number in range(count)])


def stored(data: bf.Dataset) -> bf.Dataset:
    return data.to_store(Path(tempfile.mkdtemp(prefix="brimful-")) / "store", version="1")


KEPT: dict[str, Callable[[bf.Dataset], bf.Dataset]] = {
    "filters": lambda data: data.filter(even),
    "caches": lambda data: data.map(dict).cache(),
    "stores": stored,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_a_chain_with_a_thread_of_its_own_may_hold_what_is_worked_out_like_it(keep: Callable[..., bf.Dataset]) -> None:
    """A streamed shuffle reads ahead in a thread, which works the inner one out while the outer one waits for it."""
    inner = keep(numbered(20))
    assert len(keep(inner.map(dict).shuffle(5).cache())) == len(list(inner))


class Asked:
    """Notes how often it was asked; slow."""

    def __init__(self) -> None:
        self.times = 0

    @once
    def answer(self) -> object:
        self.times += 1
        sleep(0.05)
        return object()


def in_threads(fn: Callable[[int], Any], count: int) -> list[Any]:
    together, found = Barrier(count), [None] * count

    def run(number: int) -> None:
        together.wait()
        found[number] = fn(number)

    threads = [Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_want_it_at_once_have_the_same() -> None:
    asked = Asked()
    answers = in_threads(lambda _: asked.answer, 4)
    assert asked.times == 1
    assert {id(answer) for answer in answers} == {id(asked.answer)}


@pytest.mark.timeout(60)
def test_objects_do_not_wait_for_one_another() -> None:
    together = Barrier(2)

    class Meeting:
        @once
        def place(self) -> int:
            return together.wait(3)

    meetings = [Meeting(), Meeting()]
    assert sorted(in_threads(lambda number: meetings[number].place, 2)) == [0, 1]


def test_neither_what_is_worked_out_nor_its_lock_is_pickled() -> None:
    data = numbered(10).filter(even).shuffle(3)
    fresh = len(pickle.dumps(data))
    found = list(data)
    assert len(pickle.dumps(data)) == fresh
    assert list(pickle.loads(pickle.dumps(data))) == found
