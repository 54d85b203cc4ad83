"""Where ranks meet: whoever began more often, in another order, or elsewhere, finds its run, or is told why not."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.distributed import HashStore

import brimful as bf
from tests import strategies as draw

SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (4, 16, 64)]


def learning(others: bool = False) -> bf.Batches:
    model = bf.MemoryModel.fit(SHAPES, [2e5 + batch * 2000 * length for batch, length in SHAPES])
    rows = [{"id": number, "input_ids": [1] * (number * 37 % 61 + 1)} for number in range(100 if others else 90)]
    return bf.from_sequence(rows).batch(bf.MemoryBudget(model, 1.2e6, learn=True), window=24)


def streams(others: bool = False) -> bf.Batches:
    samples = iter(draw.samples_of([1 + number * 7 % 29 for number in range(60)]))
    urls = [draw.shard(draw.json_lines([next(samples) for _ in range(count)]), ".jsonl") for count in (11, 30, 2, 17)]
    return bf.from_files(urls, streams=4, schema=draw.schema(draw.pa.int64())).batch_by_tokens(
        60, window=7 if others else 24
    )


KINDS: dict[str, Callable[..., bf.Batches]] = {"learning": learning, "streams": streams}
of_each_kind = pytest.mark.parametrize("kind", KINDS)


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


@of_each_kind
@pytest.mark.parametrize("who", [0, 1])
def test_ranks_that_began_unequally_often_meet(kind: str, who: int) -> None:
    made, store = KINDS[kind](), HashStore()
    ranks = (
        [made.shard(rank, 3, group=store, timeout_seconds=20) for rank in range(3)]
        if kind == "learning"
        else [made.shard(rank, 2, group=store, timeout_seconds=20) for rank in range(2)]
    )
    for _ in range(3):
        leaves(ranks[who], 0.1)
    found = together(*(partial(taken, one, 0.1 * (rank != who)) for rank, one in enumerate(ranks)))
    assert in_turn(*found) == expected(made)
    assert store.num_keys() == 1 + len(ranks), "of runs that some ranks never came to nothing stays either"


@of_each_kind
def test_ranks_that_begin_again_after_one_of_them_failed_meet(kind: str) -> None:
    made, store = KINDS[kind](), HashStore()

    def tries(rank: int) -> Any:
        sharded = made.shard(rank, 2, group=store, timeout_seconds=20)
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


@of_each_kind
def test_runs_that_threads_begin_in_another_order_find_one_another(kind: str) -> None:
    """Training and evaluation, in two threads of each rank; the same verbs on other data."""
    store, made = HashStore(), [KINDS[kind](others) for others in (False, True)]
    runs = []
    for rank in range(2):
        for number, one in enumerate(made):
            late = 0.3 * (number == rank)
            runs.append(partial(taken, one.shard(rank, 2, group=store, timeout_seconds=20), late))
    found = together(*runs)
    assert in_turn(found[0], found[2]) == expected(made[0])
    assert in_turn(found[1], found[3]) == expected(made[1])


@of_each_kind
def test_ranks_at_different_places_are_told_so(kind: str) -> None:
    made, store = KINDS[kind](), HashStore()
    with made.shard(0, 1).iter() as it:
        next(it), next(it)
        state = json.loads(json.dumps(it.state_dict()))
    began = time.monotonic()
    zero, one = together(
        lambda: next(made.shard(0, 2, group=store).iter()), lambda: next(made.shard(1, 2, group=store).iter(state))
    )
    assert time.monotonic() - began < 20, "long before the time-out"
    place, there, here = (
        ("next", "0", "2") if kind == "streams" else ("position", r"[[0, 0, 24], 0, 0]", r"[[0, 0, 24], 2, 0, ")
    )
    assert isinstance(one, bf.StateError)
    words = f"the ranks are at different places: {place} is {there} on rank 0 and {here}"
    assert str(one).startswith(words)
    assert str(one).endswith(" on rank 1; all go on from the states of one step, and iterate equally often")
    assert isinstance(zero, bf.RankError)
    assert str(zero) == f"rank 1 failed: StateError: {one}"


@of_each_kind
def test_a_rank_that_comes_after_rank_0_has_left_is_told_so(kind: str) -> None:
    made, store = KINDS[kind](), HashStore()
    leaves(made.shard(0, 2, group=store), 0.1)
    with pytest.raises(bf.RankError, match=r"^rank 0 left before the epoch was over: its loop ended, failed or"):
        next(made.shard(1, 2, group=store).iter())


@of_each_kind
def test_a_rank_that_waits_for_rank_0_alone_says_so(kind: str) -> None:
    lonely = KINDS[kind]().shard(1, 2, group=HashStore(), timeout_seconds=0.3)
    message = (
        r"^waited 0\.3 seconds for rank 0 \(never came\) to begin a run like that of rank 1: it was killed, is stuck, "
        r"or does not iterate as often as this rank does; shard\(timeout_seconds=\.\.\.\) sets how long to wait$"
    )
    with pytest.raises(TimeoutError, match=message):
        next(lonely.iter())


@of_each_kind
def test_a_rank_that_is_in_another_loop_is_named_with_it(kind: str) -> None:
    """Rank 0 evaluates alone, while the others train."""
    made, store = KINDS[kind](), HashStore()
    other = KINDS["streams" if kind == "learning" else "learning"]()
    zero, one = together(
        lambda: next(other.shard(0, 2, group=store, timeout_seconds=2).iter()),
        lambda: next(made.shard(1, 2, group=store, timeout_seconds=1).iter()),
    )
    loops = {"learning": "from_sequence > window > batch > shard", "streams": "from_files > window > batch > streams"}
    assert isinstance(zero, TimeoutError)
    assert isinstance(one, TimeoutError)
    assert f"for rank 1 (never came; it last began {loops[kind]}) to come to " in str(zero)
    assert (
        f"for rank 0 (never came; it last began {loops['streams' if kind == 'learning' else 'learning']}) to "
        in str(one)
    )


@of_each_kind
def test_who_waits_longer_is_told_whom_another_one_waited_for(kind: str) -> None:
    made, store = KINDS[kind](), HashStore()
    world_size = 3 if kind == "learning" else 4
    seconds = {0: 0.6, 1: 600.0}
    waits = [
        partial(taken, made.shard(rank, world_size, group=store, timeout_seconds=seconds[rank])) for rank in seconds
    ]
    zero, one = together(*waits)
    assert isinstance(zero, TimeoutError)
    assert isinstance(one, bf.RankError)
    assert str(one) == f"rank 0 failed: TimeoutError: {zero}"
    assert "rank 2 (never came)" in str(one)


@of_each_kind
def test_keys_of_epochs_do_not_stay_in_the_store(kind: str) -> None:
    made, store = KINDS[kind](), HashStore()

    def epochs(rank: int) -> None:
        for epoch in range(3):
            for _ in range(2):
                with made.shard(rank, 2, group=store, timeout_seconds=20).iter(epoch=epoch) as it:
                    assert sum(1 for _ in it) > 3

    assert together(partial(epochs, 0), partial(epochs, 1)) == [None, None]
    assert store.num_keys() == 1 + 2, "how many runs there were, and where each rank came last"


def test_lessons_of_a_long_window_take_memory_for_each_of_them_once() -> None:
    model = bf.MemoryModel.fit(SHAPES, [2e5 + batch * 2000 * length for batch, length in SHAPES])
    policy = bf.MemoryBudget(model, 3.5e5, learn=True)
    made = bf.from_sequence([{"input_ids": [1] * 2}] * 50_000).batch(policy, window=50_000)
    store = HashStore()

    def learns(rank: int) -> int:
        with made.shard(rank, 2, group=store, timeout_seconds=20).iter() as it:
            before = steps = 0
            for _ in zip(range(1200), it):
                before = before or tracemalloc.get_traced_memory()[0]
                it.learn((2, 30), 3e5)
                steps += 1
            assert len(it.state_dict()["lessons"]["open"][str(rank)]) == steps
            return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        assert max(together(partial(learns, 0), partial(learns, 1))) < 4e6
    finally:
        tracemalloc.stop()
