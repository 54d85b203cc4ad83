"""Where ranks meet: whoever began more often, in another order, or elsewhere, finds its run, or is told why not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.distributed import HashStore

import brimful as bf
from brimful.batching import rendezvous
from tests import strategies as draw


def streams(others: bool = False, shuffle: bool = False) -> bf.Batches:
    samples = iter(draw.samples_of([1 + number * 7 % 29 for number in range(60)]))
    urls = [draw.shard(draw.json_lines([next(samples) for _ in range(count)]), ".jsonl") for count in (11, 30, 2, 17)]
    data = bf.from_files(urls, streams=4, schema=draw.schema(draw.pa.int64()))
    return (data.shuffle(8) if shuffle else data).batch_by_tokens(60, window=7 if others else 24)


def ids(batch: Any) -> list[int]:
    return [] if batch["is_filler"] else batch["id"].tolist()


def expected(made: bf.Batches) -> list[list[int]]:
    return [ids(batch) for batch in made.shard(0, 1)]


def in_turn(*ranks: list[list[int]]) -> list[list[int]]:
    return [batch for step in zip(*ranks, strict=True) for batch in step if batch]


def together(*runs: Callable[[], Any]) -> list[Any]:
    """What they return, or raise, each in a thread of its own."""
    results: list[Any] = [None] * len(runs)

    def run(number: int) -> None:
        try:
            results[number] = runs[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def taken(made: bf.Batches, after: float = 0.0) -> list[list[int]]:
    time.sleep(after)
    return [ids(batch) for batch in made]


def leaves(made: bf.Batches, after: float) -> None:
    """Begins, and is interrupted while it waits for the others."""
    it = made.iter()
    timer = threading.Timer(after, it.close)
    timer.start()
    assert list(it) == []
    timer.join()


@pytest.mark.parametrize("who", [0, 1])
def test_ranks_that_began_unequally_often_meet(who: int) -> None:
    made, store = streams(), HashStore()
    ranks = [made.shard(rank, 2, process_group=store, timeout_seconds=20) for rank in range(2)]
    for _ in range(3):
        leaves(ranks[who], 0.1)
    found = together(*(partial(taken, one, 0.1 * (rank != who)) for rank, one in enumerate(ranks)))
    assert in_turn(*found) == expected(made)
    assert store.num_keys() == 1 + len(ranks), "of runs that some ranks never came to nothing stays either"


def test_ranks_that_begin_again_after_one_of_them_failed_meet() -> None:
    made, store = streams(), HashStore()

    def tries(rank: int) -> Any:
        sharded = made.shard(rank, 2, process_group=store, timeout_seconds=20)
        with sharded.iter() as it:
            try:
                for number, _ in enumerate(it):
                    if rank == 1 and number == 2:
                        raise ValueError("a training loop")
                assert rank == 1
            except (bf.RankError, ValueError) as error:
                words = str(error)
        return words, taken(sharded)

    (words, first), (_, second) = together(partial(tries, 0), partial(tries, 1))
    assert words == "rank 1 left before the epoch was over: its loop ended, failed or was interrupted"
    assert in_turn(first, second) == expected(made)


def test_runs_that_threads_begin_in_another_order_find_one_another() -> None:
    """Training and evaluation, in two threads of each rank; the same verbs on other data."""
    store, made = HashStore(), [streams(others) for others in (False, True)]
    runs = []
    for rank in range(2):
        for number, one in enumerate(made):
            late = 0.3 * (number == rank)
            runs.append(partial(taken, one.shard(rank, 2, process_group=store, timeout_seconds=20), late))
    found = together(*runs)
    assert in_turn(found[0], found[2]) == expected(made[0])
    assert in_turn(found[1], found[3]) == expected(made[1])


def test_ranks_at_different_places_are_told_so() -> None:
    made, store = streams(), HashStore()
    with made.shard(0, 1).iter() as it:
        next(it), next(it)
        state = json.loads(json.dumps(it.state_dict()))
    began = time.monotonic()
    zero, one = together(
        lambda: next(made.shard(0, 2, process_group=store).iter()),
        lambda: next(made.shard(1, 2, process_group=store).iter(state)),
    )
    assert time.monotonic() - began < 20, "long before the time-out"
    assert isinstance(one, bf.StateError)
    assert str(one) == (
        "the ranks are at different places: next is 0 on rank 0 and 2 on rank 1; all go on from the states of one step, and "
        "iterate equally often"
    )
    assert isinstance(zero, bf.RankError)
    assert str(zero) == f"rank 1 failed: StateError: {one}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks look for others, and lose their patience, sooner."""
    monkeypatch.setattr(rendezvous, "_NOTICE", 0.1)
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.4)


def refused(made: bf.Batches) -> str:
    """What a loader says of the state of another pipeline."""
    other = streams(shuffle=True).loader()
    next(iter(other))
    try:
        made.loader().load_state_dict(other.state_dict())
    except bf.StateError as error:
        return str(error)
    raise AssertionError("the state is taken")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_refuses_its_state_is_named_to_those_that_wait_for_it(who: int) -> None:
    made, store = streams(), HashStore()
    ranks = [made.shard(rank, 4, process_group=store) for rank in range(4)]
    said, *others = together(
        lambda: refused(ranks[who]), *(partial(taken, one) for rank, one in enumerate(ranks) if rank != who)
    )
    assert [type(one) for one in others] == [bf.RankError] * 3
    assert {str(one) for one in others} == {f"rank {who} failed: StateError: {said}"}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("late", [0.0, 1.5])
def test_ranks_that_all_refuse_a_state_may_begin_anew(late: float) -> None:
    made, store = streams(), HashStore()
    ranks = [made.shard(rank, 2, process_group=store, timeout_seconds=20) for rank in range(2)]
    for one in ranks:
        refused(one)
    found = together(*(partial(taken, one, rank * late) for rank, one in enumerate(ranks)))
    assert in_turn(*found) == expected(made)


@pytest.mark.usefixtures("hasty")
def test_a_rank_that_takes_another_state_after_one_that_it_refused_is_waited_for() -> None:
    made, store = streams(), HashStore()
    with made.shard(0, 1).iter() as it:
        next(it), next(it)
        state = it.state_dict()

    def begins() -> list[list[int]]:
        sharded = made.shard(1, 2, process_group=store, timeout_seconds=20)
        refused(sharded)
        it = sharded.iter(state)
        time.sleep(1.5)
        return [ids(batch) for batch in it]

    def waits() -> list[list[int]]:
        return [ids(batch) for batch in made.shard(0, 2, process_group=store, timeout_seconds=20).iter(state)]

    assert in_turn(*together(waits, begins)) == expected(made)[2:]


def test_a_rank_that_comes_after_rank_0_has_left_is_told_so() -> None:
    made, store = streams(), HashStore()
    leaves(made.shard(0, 2, process_group=store), 0.1)
    with pytest.raises(bf.RankError, match=r"^rank 0 left before the epoch was over: its loop ended, failed or"):
        next(made.shard(1, 2, process_group=store).iter())


def test_a_rank_that_waits_for_rank_0_alone_says_so() -> None:
    lonely = streams().shard(1, 2, process_group=HashStore(), timeout_seconds=0.3)
    message = (
        r"^waited 0\.3 seconds for rank 0 \(never came\) to begin a run like that of rank 1: it was killed, is stuck, "
        r"or does not iterate as often as this rank does; shard\(timeout_seconds=\.\.\.\) sets how long to wait$"
    )
    with pytest.raises(TimeoutError, match=message):
        next(lonely.iter())


def test_a_rank_that_is_in_another_loop_is_named_with_it() -> None:
    """Rank 0 evaluates alone, while the others train."""
    made, store = streams(), HashStore()
    other = streams(shuffle=True)
    zero, one = together(
        lambda: next(other.shard(0, 2, process_group=store, timeout_seconds=2).iter()),
        lambda: next(made.shard(1, 2, process_group=store, timeout_seconds=1).iter()),
    )
    assert isinstance(zero, TimeoutError)
    assert isinstance(one, TimeoutError)
    began = "never came; it last began from_files > "
    assert f"for rank 1 ({began}batch) to come to " in str(zero)
    assert f"for rank 0 ({began}shuffle > batch) to begin " in str(one)


def test_who_waits_longer_is_told_whom_another_one_waited_for() -> None:
    made, store = streams(), HashStore()
    seconds = {0: 0.6, 1: 600.0}
    waits = [
        partial(taken, made.shard(rank, 4, process_group=store, timeout_seconds=seconds[rank])) for rank in seconds
    ]
    zero, one = together(*waits)
    assert isinstance(zero, TimeoutError)
    assert isinstance(one, bf.RankError)
    assert str(one) == f"rank 0 failed: TimeoutError: {zero}"
    assert "rank 2 (never came)" in str(one)


def test_keys_of_epochs_do_not_stay_in_the_store() -> None:
    made, store = streams(), HashStore()

    def epochs(rank: int) -> None:
        for epoch in range(3):
            for _ in range(2):
                with made.shard(rank, 2, process_group=store, timeout_seconds=20).iter(epoch=epoch) as it:
                    assert sum(1 for _ in it) > 3

    assert together(partial(epochs, 0), partial(epochs, 1)) == [None, None]
    assert store.num_keys() == 1 + 2, "how many runs there were, and where each rank came last"
