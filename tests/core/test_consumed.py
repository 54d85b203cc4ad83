"""What a trainer has used of a loader, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.core.consumed import Consumed, Snapshot, snapshot_of


class Told:
    """A trainer that counts what it uses, and a loader whose state is the number of batches that were taken."""

    def __init__(self) -> None:
        self.used, self.taken = 70, 0
        self.consumed = Consumed()

    def now(self) -> Snapshot:
        return snapshot_of(self.taken)

    def follow(self) -> None:
        self.consumed.follow(lambda: self.used, self.now)

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.taken += 1
            self.consumed.took(self.now)

    @property
    def state(self) -> Any:
        return self.consumed.snapshot(self.now)()


@pytest.fixture
def told() -> Told:
    return Told()


def test_without_a_trainer_what_is_taken_is_used(told: Told) -> None:
    loop = told.consumed.begin(0)
    told.take(3)
    assert (told.state, told.consumed.unused, told.consumed.left_at) == (3, None, None)
    told.consumed.end(loop, told.now)
    told.consumed.leave(loop)
    assert not told.consumed.looping


def test_a_trainer_that_comes_late_has_used_nothing_of_the_loop_that_runs(told: Told) -> None:
    told.consumed.begin(0)
    told.take(2)
    told.follow()
    found = []
    for _ in range(3):
        found.append(told.state)
        told.used += 1
    assert found == [0, 0, 2], "nobody knows the state between the two, and none may be left out"


def test_a_trainer_takes_over_what_the_one_before_it_had_used(told: Told) -> None:
    told.follow()
    told.consumed.begin(0)
    told.take(3)
    told.used += 1
    other = [5]
    told.consumed.follow(lambda: other[0], told.now)
    assert told.state == 1
    other[0] += 1
    assert told.state == 2


def test_behind_the_end_of_a_loop_its_last_batches_are_still_ahead(told: Told) -> None:
    told.follow()
    loop = told.consumed.begin(0)
    told.take(2)
    told.consumed.end(loop, told.now)
    told.consumed.leave(loop)
    assert told.consumed.left_at is None
    told.consumed.begin(2)
    told.take(2)
    found = []
    for _ in range(5):
        found.append(told.state)
        told.used += 1
    assert found == [0, 1, 2, 3, 4]


def test_a_loop_that_was_left_goes_back_to_what_was_used(told: Told) -> None:
    told.follow()
    loop = told.consumed.begin(0)
    told.take(3)
    told.used += 1
    told.consumed.leave(loop)
    assert told.consumed.left_at == 1
    assert told.consumed.unfollow() == 1
    assert told.state == 3, "the loader is sent back by whoever asks"


def test_the_end_of_a_loop_that_another_one_has_ended_is_none(told: Told) -> None:
    told.follow()
    first = told.consumed.begin(0)
    told.take()
    told.used += 1
    second = told.consumed.begin(1)
    told.take()
    told.consumed.end(first, lambda: snapshot_of(99))
    told.consumed.leave(first)
    assert told.consumed.runs(second)
    assert told.consumed.left_at == 1
    told.used += 1
    assert told.state == 2


def test_what_was_taken_before_a_loader_was_sent_elsewhere_does_not_count(told: Told) -> None:
    told.consumed.begin(0)
    told.take(2)
    told.consumed.moved(50)
    told.follow()
    assert (told.state, told.consumed.unused) == (50, None)
    told.taken = 50
    told.take()
    assert told.state == told.consumed.unused == 50
    told.consumed.moved(60)
    assert (told.state, told.consumed.unused) == (60, None)


def test_a_state_is_the_askers_own(told: Told) -> None:
    place = {"iterator": [1]}
    told.consumed.begin(place)
    told.follow()
    told.state["iterator"].append(2)
    assert told.state == {"iterator": [1]}
