"""Streams that ranks share out: one global order at every world size, and an end that all ranks agree on."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

import brimful as bf
from brimful.batching.round_robin import RoundRobin
from brimful.core.stage import BLOCK_ROWS
from brimful.sources.files import FromFiles
from brimful.testing import assert_exact_resume, first_difference
from tests import strategies as draw
from tests.effort import examples

STREAMS = 12
WORLDS = (1, 2, 3, 4, 6, 12)
UNEVEN = ["pad", "drop", "wrap", "raise"]


def shards(counts: list[int]) -> list[str]:
    """Files of so many rows."""
    samples = iter(draw.samples_of([1 + number * 7 % 29 for number in range(sum(counts))]))
    return [draw.shard(draw.json_lines([next(samples) for _ in range(count)]), ".jsonl") for count in counts]


UNEQUAL = shards([0, 31, 3, 8, 0, 17, 1, 40, 5, 0, 9, 2, 22, 6])


def batches(urls: list[str], streams: int = STREAMS, **options: Any) -> bf.Batches:
    data = bf.from_files(urls, streams=streams, schema=draw.schema(draw.pa.int64()), shuffle_shards=True, **options)
    return data.shuffle(8).filter(odd).batch_by_tokens(60, window=10)


def odd(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 7 != 3)


@dataclass
class Ranks:
    """Data-parallel ranks, each a thread of its own, as processes would be."""

    batches: bf.Batches
    world_size: int
    uneven: Any = "pad"
    timeout_seconds: float = 20.0
    store: HashStore = field(default_factory=HashStore)
    errors: dict[int, Exception] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)

    def run(self, state: Any = None, steps: int | None = None) -> list[tuple[Any, ...]]:
        """What the ranks take, step by step; None where one of them takes fewer steps than others."""
        taken: dict[int, list[Any]] = {rank: [] for rank in range(self.world_size)}
        threads = [threading.Thread(target=self._rank, args=(rank, taken[rank], state, steps)) for rank in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return list(zip_longest(*taken.values()))

    def _rank(self, rank: int, taken: list[Any], state: Any, steps: int | None) -> None:
        group = self.store if self.world_size > 1 else None
        sharded = self.batches.shard(
            rank, self.world_size, process_group=group, uneven=self.uneven, timeout_seconds=self.timeout_seconds
        )
        try:
            with sharded.iter(state) as it:
                while steps is None or len(taken) < steps:
                    try:
                        batch = next(it, None)
                    except KeyboardInterrupt:
                        continue
                    if batch is None:
                        break
                    taken.append(batch)
                self.states[rank] = it.state_dict()
        except Exception as error:
            self.errors[rank] = error


def ids(batch: Any) -> list[int]:
    numbers: list[int] = batch["id"].tolist()
    return numbers


def real(steps: list[tuple[Any, ...]]) -> list[list[int]]:
    """The samples of all batches but the fillers, in their global order; all ranks must have come equally far."""
    assert all(batch is not None for step in steps for batch in step), "all ranks take equally many steps"
    return [ids(batch) for step in steps for batch in step if batch["weight"]]


def expected(made: bf.Batches) -> list[list[int]]:
    return [ids(batch) for batch in made]


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_global_order_does_not_depend_on_the_world_size(world_size: int) -> None:
    made = batches(UNEQUAL)
    steps = Ranks(made, world_size).run()
    assert real(steps) == expected(made)
    assert sorted(number for batch in real(steps) for number in batch) == [
        number for number in range(144) if number % 7 != 3
    ]
    fillers = [batch for step in steps for batch in step if not batch["weight"]]
    assert all(batch["is_filler"] and len(batch["input_ids"]) == 1 for batch in fillers)
    assert bool(fillers) == (world_size > 1)


@examples(12)
@given(
    counts=st.lists(st.integers(0, 16), min_size=STREAMS, max_size=STREAMS + 3),
    worlds=st.lists(st.sampled_from(WORLDS), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
def test_the_states_of_all_ranks_joined_resume_on_any_world_size(
    counts: list[int], worlds: list[int], steps: list[int]
) -> None:
    made = batches(shards(counts))
    state, taken = None, []
    for world_size, most in zip([*worlds, 1], [*steps[: len(worlds)], None], strict=True):
        ranks = Ranks(made, world_size)
        taken += real(ranks.run(state, most))
        assert not ranks.errors
        state = bf.merge_states([json.loads(json.dumps(ranks.states[rank])) for rank in range(world_size)])
    assert taken == expected(made)


def test_a_rank_goes_on_from_its_own_state_at_the_same_world_size() -> None:
    made = batches(UNEQUAL)
    first = Ranks(made, 2)
    taken = real(first.run(steps=4))
    store, rest = HashStore(), {}

    def go_on(rank: int) -> None:
        rest[rank] = list(made.shard(rank, 2, process_group=store, timeout_seconds=20).iter(first.states[rank]))

    threads = [threading.Thread(target=go_on, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert taken + real(list(zip(*(rest[rank] for rank in range(2)), strict=True))) == expected(made)


def test_a_rank_reads_the_shards_of_its_own_streams_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    urls = shards([9] * STREAMS)

    def one_a_line(file: Any) -> Iterator[dict[str, Any]]:
        opened.append(file.name)
        return draw.read_json(file)

    data = bf.from_files(urls, format=one_a_line, streams=STREAMS, schema=draw.schema(draw.pa.int64()))
    one = data.batch(3).shard(1, 4, process_group=HashStore(), timeout_seconds=0.1)
    with pytest.raises(TimeoutError):
        list(one)
    assert sorted(opened) == sorted(urls[1::4])


@pytest.mark.parametrize("world_size", [2, 4])
def test_drop_ends_all_with_the_stream_that_ends_first(world_size: int) -> None:
    made = batches(shards([30, 20, 12, 40] * 3), streams=4)
    steps = Ranks(made, world_size, "drop").run()
    whole = expected(made)
    lengths = [len(list(stream)) for stream in by_stream(made)]
    assert real(steps) == whole[: 4 * min(lengths)]
    assert len(steps) == min(lengths) * 4 // world_size > 0


def by_stream(made: bf.Batches) -> list[list[list[int]]]:
    """The batches of each stream alone."""
    ranks = Ranks(made, 4).run()
    return [[ids(batch) for batch in stream if batch["weight"]] for stream in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_wrap_begins_a_stream_again_until_all_have_ended(world_size: int) -> None:
    made = batches(shards([3, 20, 1, 40]), streams=4)
    streams = by_stream(made)
    rounds = max(map(len, streams))
    steps = Ranks(made, world_size, "wrap").run()
    assert real(steps) == [stream[turn % len(stream)] for turn in range(rounds) for stream in streams]
    state, taken = None, []
    for _ in range(rounds * 4 // world_size):  # and in the middle of what is repeated
        ranks = Ranks(made, world_size, "wrap")
        taken += real(ranks.run(state, 1))
        state = bf.merge_states(list(ranks.states.values()))
    assert taken == real(steps)
    assert Ranks(made, world_size, "wrap").run(state) == []


def test_an_uneven_end_is_an_error_on_all_ranks_where_it_is_asked_to_be() -> None:
    ranks = Ranks(batches(shards([3, 20, 1, 40]), streams=4), 2, "raise")
    steps = ranks.run()
    assert len(steps) > 0
    assert [str(ranks.errors[rank]) for rank in (0, 1)] == [
        "2 of 4 streams have ended before the others; choose uneven='pad', 'drop' or 'wrap'"
    ] * 2


def test_streams_of_equal_length_are_no_error() -> None:
    made = bf.from_files(shards([8] * 4), streams=4, schema=draw.schema(draw.pa.int64())).batch(3)
    for uneven in UNEVEN:
        ranks = Ranks(made, 4, uneven)
        steps = ranks.run()
        assert not ranks.errors
        assert len(steps) == 3
        assert all(batch["weight"] == 1 for step in steps for batch in step)


@pytest.mark.parametrize("uneven", UNEVEN)
def test_no_rows_at_all_are_an_empty_epoch(uneven: str) -> None:
    ranks = Ranks(batches(shards([0] * 4), streams=4), 2, uneven)
    assert ranks.run() == []
    assert not ranks.errors


def test_a_rank_that_fails_is_named_by_all_others_after_what_came_before() -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 25:
            raise ValueError("a broken sample")
        return sample

    data = bf.from_files(shards([20, 20]), streams=2, schema=draw.schema(draw.pa.int64())).map(fails).batch(2, window=2)
    ranks = Ranks(data, 2)
    with draw.small(1):
        steps = ranks.run()
    assert len([step for step in steps if None not in step]) == 2
    assert "a broken sample" in str(ranks.errors[1])
    assert isinstance(ranks.errors[0], bf.RankError)
    assert str(ranks.errors[0]).startswith("rank 1 failed: StageError: map(fails) failed at shard")


def test_a_rank_that_never_comes_is_named_in_time() -> None:
    lonely = batches(UNEQUAL).shard(0, 3, process_group=HashStore(), timeout_seconds=0.2)
    message = r"waited 0.2 seconds for rank 1 \(never came\), rank 2 \(never came\) to come to round 0 of the epoch"
    with pytest.raises(TimeoutError, match=message):
        next(iter(lonely))


@pytest.mark.parametrize("how", ["close", "forget", "fail", "prefetch"])
def test_a_rank_that_stops_early_is_named_at_once(how: str) -> None:
    def fails(batch: Any) -> Any:
        raise ValueError("a training loop")

    made = batches(shards([40] * 4), streams=4)
    ranks = Ranks(made, 2, timeout_seconds=600.0)
    thread = threading.Thread(target=ranks._rank, args=(0, [], None, None))
    thread.start()
    sharded = made.shard(1, 2, process_group=ranks.store)
    it = (sharded.map(fails) if how == "fail" else sharded.prefetch(2) if how == "prefetch" else sharded).iter()
    if how == "fail":
        with pytest.raises(bf.StageError, match="a training loop"):
            next(it)
    else:
        next(it)
    if how == "forget":
        del it
    else:
        it.close()
    thread.join(20)
    assert isinstance(ranks.errors[0], bf.RankError)
    assert str(ranks.errors[0]).startswith("rank 1 left before the epoch was over: its loop ended, failed or was")


def test_a_read_that_takes_too_long_on_one_rank_is_told_to_the_others() -> None:
    good, bad = shards([30, 30])
    released = threading.Event()

    def read(file: Any) -> Iterator[dict[str, Any]]:
        if file.name == bad:
            released.wait(20)
        return draw.read_json(file)

    data = bf.from_files([good, bad], format=read, streams=2, schema=draw.schema(draw.pa.int64()), timeout_seconds=1.5)
    ranks = Ranks(data.batch(3), 2, timeout_seconds=600.0)
    ranks.run()
    released.set()
    assert isinstance(ranks.errors[1], TimeoutError), ranks.errors
    assert str(ranks.errors[0]).startswith("rank 1 failed: TimeoutError: nothing came from shard ")


def test_a_rank_that_fails_while_others_are_slow_keeps_its_own_error_and_all_hand_out_the_same_rounds() -> None:
    def moody(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 26:
            raise ValueError("a broken sample")
        if sample["id"] == 4:
            time.sleep(1.2)  # longer than the other one looks away
        return sample

    data = bf.from_files(shards([20, 20]), streams=2, schema=draw.schema(draw.pa.int64())).map(moody).batch(1, window=1)
    ranks = Ranks(data, 2)
    with draw.small(1):
        steps = ranks.run()
    assert isinstance(ranks.errors[1], bf.StageError), ranks.errors
    assert isinstance(ranks.errors[0], bf.RankError)
    assert len(real(steps)) == 2 * 5


@pytest.mark.parametrize("rule", ["pad", "wrap"])
@pytest.mark.parametrize("steps", [3, 5, 8])
def test_a_state_of_streams_that_have_begun_again_ends_in_a_single_process_too(rule: str, steps: int) -> None:
    made = batches(shards([3, 20, 1, 40]), streams=4)
    ranks = Ranks(made, 2, "wrap")
    taken = real(ranks.run(steps=steps))
    rest = real(Ranks(made, 1, rule).run(bf.merge_states(list(ranks.states.values()))))
    assert rest == [batch for batch in expected(made) if batch not in taken]


def test_drop_drops_the_last_step_of_a_run_that_began_in_the_middle_of_one() -> None:
    made = batches(shards([30, 20, 12, 40] * 3), streams=4)
    with made.iter() as it:
        next(it)
        state = it.state_dict()
    steps = Ranks(made, 2, "drop").run(state)
    whole = Ranks(made, 4, "drop").run()
    assert real(steps) == real(whole)[1:-1]
    assert all(batch["weight"] == 1 for step in steps for batch in step)


def test_ranks_with_other_rules_are_told_so() -> None:
    ranks = Ranks(batches(UNEQUAL), 2)
    other = threading.Thread(target=replace(ranks, uneven="drop")._rank, args=(1, [], None, None))
    other.start()
    ranks._rank(0, [], None, None)
    other.join(20)
    assert "the ranks run different pipelines: uneven is 'pad' on rank 0 and 'drop' on rank 1" in str(ranks.errors[1])
    assert "rank 1 failed: StateError" in str(ranks.errors[0])


@pytest.mark.parametrize("steps", [None, 3])
def test_a_run_leaves_a_counter_and_no_thread(steps: int | None) -> None:
    before = set(threading.enumerate())
    ranks = Ranks(batches(shards([40, 3, 20, 9]), streams=4), 2)
    ranks.run(steps=steps)
    # how many runs there were, and where each rank came last
    assert ranks.store.num_keys() == 1 + ranks.world_size
    assert set(threading.enumerate()) == before


def test_fillers_are_the_same_after_a_resume() -> None:
    """Dropout draws as many random numbers as a batch has slots, fillers too."""
    made = batches(shards([0, 3, 30, 9, 0, 12]), streams=3).map(ids_and_weight)
    whole = Ranks(made, 3).run()
    assert any(weight == 0 for step in whole for _, weight in step)
    for steps in range(1, len(whole)):
        ranks = Ranks(made, 3)
        ranks.run(steps=steps)
        assert Ranks(made, 3).run(bf.merge_states(list(ranks.states.values()))) == whole[steps:]


def ids_and_weight(batch: Any) -> tuple[list[int], float]:
    return ids(batch), float(batch["weight"])


def test_runs_at_several_world_sizes_share_a_store() -> None:
    store = HashStore()
    for world_size in (2, 4, 2, 3):
        assert real(Ranks(batches(UNEQUAL), world_size, store=store).run()) == expected(batches(UNEQUAL))


def test_a_run_goes_on_after_all_ranks_were_interrupted_at_one_step() -> None:
    made = batches(UNEQUAL)
    ranks = Ranks(made, 2)
    interrupted = made.map(interrupting())
    taken = real(replace(ranks, batches=interrupted).run())
    assert taken == expected(made)


def interrupting() -> Any:
    """Ctrl-C once on each rank, in its fourth batch."""
    calls: dict[int, int] = {}

    def fn(batch: Any) -> Any:
        me = threading.get_ident()
        calls[me] = calls.get(me, 0) + 1
        if calls[me] == 4:
            raise KeyboardInterrupt
        return batch

    return fn


def test_a_pause_of_the_training_loop_is_no_timeout() -> None:
    made = batches(shards([9] * 4), streams=4)
    pause = threading.Event()
    ranks = Ranks(made, 2, timeout_seconds=0.6)
    slow = ranks._rank

    def paused(rank: int, *more: Any) -> None:
        if rank == 1:
            pause.wait(0.3)
        slow(rank, *more)

    ranks._rank = paused  # type: ignore[method-assign]
    assert real(ranks.run()) == expected(made)


def test_ranks_that_read_other_shards_are_told_so() -> None:
    store = HashStore()
    one, other = batches(UNEQUAL), batches(UNEQUAL[:-1])
    errors: dict[int, Exception] = {}

    def run(rank: int, made: bf.Batches) -> None:
        try:
            list(made.shard(rank, 2, process_group=store, timeout_seconds=5))
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate([one, other])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert isinstance(errors[1], bf.StateError)
    assert "the ranks run different pipelines: " in str(errors[1])
    assert re.search(r"urls is 14 shards with .* on rank 0 and 13 shards with .* on rank 1", str(errors[1]))
    assert "rank 1 failed: StateError" in str(errors[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: batches(UNEQUAL).shard(0, 5), "12 streams cannot be shared out evenly by 5 ranks: choose from_files"),
        (lambda: batches(UNEQUAL, streams=15), r"14 shards cannot be read as streams=15: each needs one at least"),
        (lambda: batches(UNEQUAL).shard(0, 2), "2 ranks that read streams must agree on where an epoch ends"),
        (
            lambda: (bf.from_files(UNEQUAL, streams=2) + bf.from_files(UNEQUAL)).batch(2),
            r"the data sets of concat_datasets must have equally many streams \(got 2, None\)",
        ),
        (
            lambda: (bf.from_files(UNEQUAL, streams=10**12) + bf.from_files(UNEQUAL)).batch(2),
            r"must have equally many streams \(got 1,000,000,000,000, None\)",
        ),
        (
            lambda: bf.from_files(UNEQUAL, streams=10**12).take(2),
            r"take counts the rows of all 1,000,000,000,000 streams, which are read apart",
        ),
        (lambda: bf.from_files(UNEQUAL, streams=0).batch(2), r"streams must be at least 1 stream \(got 0\)"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(make())


def test_a_state_of_one_rank_is_refused_where_other_streams_are_wanted() -> None:
    made = batches(UNEQUAL)
    ranks = Ranks(made, 2)
    ranks.run(steps=2)
    with pytest.raises(bf.StateError, match=r"it is the state of one rank; join those of all with bf\.merge_states"):
        next(made.iter(ranks.states[1]))


COUNTS: dict[str, Any] = {
    "take": lambda data: data.take(7),
    "skip": lambda data: data.skip(7),
    "stride": lambda data: data.stride(3, 0),
    "enumerate": lambda data: data.enumerate(),
}


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("method", COUNTS)
def test_rows_of_several_streams_are_not_counted(method: str, repeat: bool) -> None:
    data = bf.from_files(shards([1, 9]), streams=2, schema=draw.schema(draw.pa.int64()), repeat=repeat)
    message = (
        rf"^{method} counts the rows of all 2 streams, which are read apart and end apart: count batches instead "
        r"\(Batches\.take, Batches\.enumerate\), filter the rows by what is in them, or read them without streams=$"
    )
    for below in (data, data.map(dict).shuffle(4)):
        with pytest.raises(ValueError, match=message):
            COUNTS[method](below)


@pytest.mark.parametrize("method", COUNTS)
def test_rows_of_one_stream_are_counted(method: str) -> None:
    plain, stream = (
        bf.from_files(shards([5, 9, 7]), streams=streams, schema=draw.schema(draw.pa.int64())) for streams in (None, 1)
    )
    assert first_difference(list(COUNTS[method](stream)), list(COUNTS[method](plain))) is None
    assert len(list(COUNTS[method](stream).batch(2))) > 0


def test_peek_shows_the_first_samples_of_all_streams_in_turn() -> None:
    data = bf.from_files(shards([1, 9, 7]), streams=3, schema=draw.schema(draw.pa.int64()))
    assert [sample["id"] for sample in data.peek()] == [0, 1, 10, 2, 11]
    assert [sample["id"] for sample in data.peek(2)] == [0, 1]
    assert len(data.peek(100)) == 17
    assert data.peek(0) == []


def test_streams_differ_in_their_random_choices() -> None:
    data = bf.from_files(shards([50, 50]), streams=2, schema=draw.schema(draw.pa.int64()))
    batches = data.batch_by(1, key=lambda sample: 0, window=50)
    for order in (
        [sample["id"] for sample in data.shuffle(50)],
        [number for batch in batches for number in ids(batch)],
    ):
        one, other = order[::2], [number - 50 for number in order[1::2]]
        assert sorted(one) == sorted(other)
        assert one != other
    drawn = [sample["drawn"] for sample in data.map(lambda _, rng: {"drawn": int(rng.integers(1 << 40))}, seed=7)]
    assert drawn[::2] != drawn[1::2]


def test_streams_repeat_epoch_by_epoch() -> None:
    data = bf.from_files(shards([3, 9]), streams=2, schema=draw.schema(draw.pa.int64()), repeat=True)
    twice = [number for batch in data.batch(2).take(14) for number in ids(batch)]
    assert twice[:12] == twice[12:]
    assert sorted(twice[:12]) == list(range(12))


def test_streams_of_a_mixture_are_mixed_each_by_itself(tmp_path: Path) -> None:
    one, other = (bf.from_files(shards([6, 6]), streams=2, schema=draw.schema(draw.pa.int64())) for _ in range(2))
    mixed = bf.interleave_datasets([one, other], weights=[2, 1])
    assert [sample["id"] for sample in mixed.peek(6)] == [0, 6, 0, 6, 1, 7]
    made = mixed.batch(2)
    assert real(Ranks(made, 2).run()) == expected(made)


def test_the_schema_is_inferred_once_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[int] = []
    infer = FromFiles._inferred
    monkeypatch.setattr(FromFiles, "_inferred", lambda self, formats: inferred.append(0) or infer(self, formats))
    assert len(list(bf.from_files(shards([2] * 4), streams=4).batch(2))) == 4
    assert len(inferred) == 1


@pytest.mark.parametrize("streams", [1, 64, 10_000])
def test_samples_ahead_are_a_blocks_worth_in_all_streams_together(streams: int) -> None:
    turns = bf.from_files("a.jsonl", streams=streams)._samples
    assert isinstance(turns, RoundRobin)
    assert streams <= turns.ahead * streams <= max(BLOCK_ROWS, streams)


# -- streams that flow over the seams of their epochs ------------------------------------------------------------------------


def flowing(counts: list[int], **options: Any) -> bf.Batches:
    """Chunks of 4 tokens, of streams with so many tokens: those of stream s are 1000 s, 1000 s + 1 ..."""
    numbered = [[{"input_ids": [1_000 * stream + row]} for row in range(count)] for stream, count in enumerate(counts)]
    urls = [draw.shard(draw.json_lines(rows), ".jsonl") for rows in numbered]
    data = bf.from_files(urls, streams=len(counts), repeat=True).select("input_ids").concat_chunk(4)
    return (data.shuffle(3) if options.pop("shuffle", False) else data).batch(2, **options)


def tokens_in(batch: Any) -> list[int]:
    found: list[int] = batch["input_ids"].flatten().tolist()
    return found


@pytest.mark.parametrize("counts", [[5, 11], [7, 7], [30, 2], [3, 9, 8, 30]])
def test_no_stream_loses_the_tail_of_its_epochs_and_all_give_their_share(counts: list[int]) -> None:
    """A stream may be ahead by the block that it is in: here of 32 chunks, 128 tokens."""
    made = flowing(counts, window=2, shuffle_batches=False)
    given: dict[int, list[int]] = {stream: [] for stream in range(len(counts))}
    for batch in islice(made, 400):
        for row in sorted(batch["input_ids"].tolist()):
            given[row[0] // 1_000] += row
    epochs = []
    for stream, count in enumerate(counts):
        every = Counter(given[stream])
        assert {*every} == {*range(1_000 * stream, 1_000 * stream + count)}
        assert max(every.values()) - min(every.values()) <= 8
        epochs.append(len(given[stream]) / count)
    assert max(epochs) - min(epochs) <= 2 + 136 / min(counts)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_streams_that_flow_have_one_order_at_every_world_size(world_size: int, shuffle: bool) -> None:
    made = flowing([3, 9, 8, 30], shuffle=shuffle, window=4)
    alone = [tokens_in(batch) for batch in islice(made, 240)]
    ranks = Ranks(made, world_size)
    steps = ranks.run(steps=240 // world_size)
    assert not ranks.errors
    found = [tokens_in(batch) for step in steps for batch in step if batch["weight"]]
    assert found == alone[: len(found)]
    assert 100 < len(found) < 240, "some wait for others"
    fillers = [batch for step in steps for batch in step if not batch["weight"]]
    assert all(batch["is_filler"] and len(batch["input_ids"]) == 1 for batch in fillers)


def test_streams_that_flow_resume_exactly_at_every_step_on_any_world_size() -> None:
    made = flowing([3, 9, 8, 30], shuffle=True, window=4)
    alone = [tokens_in(batch) for batch in islice(made, 120)]
    state, taken = None, []
    for number in range(30):
        ranks = Ranks(made, (1, 2, 4)[number % 3])
        steps = ranks.run(state, 1 + number % 2)
        assert not ranks.errors
        taken += [tokens_in(batch) for step in steps for batch in step if batch["weight"]]
        state = bf.merge_states([json.loads(json.dumps(ranks.states[rank])) for rank in range(ranks.world_size)])
    assert len(taken) > 50
    assert taken == alone[: len(taken)]
    assert_exact_resume(lambda: made, max_items=40, max_resumes=40)
    assert_exact_resume(lambda: flowing([5, 11]).loader(steps_per_epoch=7).batches, max_items=30, max_resumes=30)


def test_a_filler_of_streams_that_flow_is_the_same_after_a_resume() -> None:
    made = flowing([2, 40], window=2)
    whole = Ranks(made, 2).run(steps=40)
    first = Ranks(made, 2)
    first.run(steps=13)
    rest = Ranks(made, 2).run(bf.merge_states(list(first.states.values())), steps=27)
    assert any(not batch["weight"] for step in whole[13:] for batch in step)
    difference = first_difference(rest, whole[13:])
    assert difference is None, difference


@pytest.mark.parametrize("uneven", ["drop", "wrap"])
def test_ranks_that_want_no_fillers_do_not_wait(uneven: str) -> None:
    ranks = Ranks(flowing([3, 9, 8, 30], window=4), 2, uneven)
    steps = ranks.run(steps=60)
    assert not ranks.errors
    assert all(batch["weight"] == 1 for step in steps for batch in step)
    streams = [tokens_in(batch)[0] // 1_000 for step in steps for batch in step]
    assert streams == [*range(4)] * 30


def test_an_uneven_end_of_streams_that_flow_is_an_error_where_it_is_asked_to_be() -> None:
    ranks = Ranks(flowing([3, 40], window=2), 2, "raise")
    ranks.run(steps=60)
    assert "1 of 2 streams have ended before the others" in str(ranks.errors[0])


def test_samples_of_streams_that_flow_are_taken_in_turn() -> None:
    rows = [[{"input_ids": [1_000 * stream + row]} for row in range(count)] for stream, count in enumerate((5, 6))]
    urls = [draw.shard(draw.json_lines(some), ".jsonl") for some in rows]
    chunks = bf.from_files(urls, streams=2, repeat=True).select("input_ids").concat_chunk(4)
    taken = [sample["input_ids"].tolist() for sample in islice(chunks, 40)]
    for stream, count in enumerate((5, 6)):
        flat = [token for chunk in taken for token in chunk if token // 1_000 == stream]
        assert flat == [1_000 * stream + place % count for place in range(len(flat))]
    assert_exact_resume(lambda: chunks, max_items=20, max_resumes=20)
