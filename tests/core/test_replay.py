"""Other weights for a mixture of streams, in the middle of a run: at any place, with each sample once."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.iterator import ResumableIterator
from tests import strategies as draw
from tests.batching.test_round_robin import Ranks
from tests.effort import SOAK, examples
from tests.oracle import Rows, interleaved

Weights: TypeAlias = tuple[float, ...]
Make: TypeAlias = Callable[[Weights], bf.Dataset | bf.Batches]

COUNT = 60
LENGTHS = [1 + number * 5 % 7 for number in range(COUNT)]


def row(name: int, number: int) -> dict[str, Any]:
    """Its tokens tell all samples of all sources apart."""
    first = 100_000 * (name + 1) + 10 * number
    return {"input_ids": [*range(first, first + LENGTHS[number])]}


def source(name: int, count: int = COUNT) -> bf.Dataset:
    return bf.from_iterable([row(name, number) for number in range(count)])


def mixture(weights: Weights, **options: Any) -> bf.Dataset:
    return bf.interleave_datasets([source(0), source(1)], weights=weights, **{"stop": "all"} | options)


def nested(weights: Weights) -> bf.Dataset:
    """Two weights of the outer mixture, and two of the inner one."""
    inner = bf.interleave_datasets([source(1), source(2)], weights=weights[2:], stop="all")
    return bf.interleave_datasets([source(0), inner.filter(whole)], weights=weights[:2], stop="all")


def whole(sample: dict[str, Any]) -> bool:
    return len(sample["input_ids"]) > 0


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": sample["input_ids"]}


def some(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"input_ids": sample["input_ids"][place : place + 3]} for place in range(0, len(sample["input_ids"]), 3)]


def tokens(item: Any) -> list[int]:
    if isinstance(item, dict) and "attention_mask" in item:
        return [
            token for ids, seen in zip(item["input_ids"], item["attention_mask"]) for token in ids[seen > 0].tolist()
        ]
    return [int(token) for token in item["input_ids"]]


PIPES: dict[str, tuple[Make, list[Weights]]] = {
    "samples": (mixture, [(1, 1), (1, 4)]),
    "by tokens": (partial(mixture, by="tokens"), [(1, 1), (1, 4)]),
    "batches in arrival order": (lambda weights: mixture(weights).batch(4), [(3, 1), (1, 2)]),
    "windows": (lambda weights: mixture(weights).batch_by_tokens(24, window=20), [(3, 1), (1, 2)]),
    "shuffled": (lambda weights: mixture(weights).shuffle(16), [(1, 1), (1, 3)]),
    "shuffled, then in windows": (lambda weights: mixture(weights).shuffle(8).batch(4, window=12), [(1, 1), (1, 3)]),
    "functions": (
        lambda weights: mixture(weights).map(same, max_workers=2).filter(whole).flat_map(some),
        [(1, 1), (1, 3)],
    ),
    "chunks": (lambda weights: mixture(weights).chunk(4, drop_remainder=False).batch(3, window=9), [(1, 1), (1, 3)]),
    "read ahead": (
        lambda weights: mixture(weights).map(same, max_workers=2).batch(4, window=12).prefetch(3),
        [(1, 1), (1, 3)],
    ),
    "steps": (lambda weights: mixture(weights).batch(8, window=12, micro_batches=2), [(1, 1), (1, 3)]),
    "nested, the outer one": (nested, [(1, 1, 1, 1), (1, 3, 1, 1)]),
    "nested, the inner one": (lambda weights: nested(weights).batch(4, window=12), [(1, 1, 1, 1), (1, 1, 1, 4)]),
    "nested, both": (lambda weights: nested(weights).shuffle(12), [(1, 1, 1, 1), (2, 1, 1, 4)]),
}
ORDERED = ("samples", "by tokens", "batches in arrival order", "functions", "nested, the outer one")


def run(it: ResumableIterator[Any]) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """All items from here on, and the state before each and after the last, as a file would have it."""
    items, states = [], [as_saved(it)]
    for item in it:
        items.append(tokens(item))
        states.append(as_saved(it))
    return items, states


def as_saved(it: ResumableIterator[Any]) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(it.state_dict()))
    return state


def check_each_once(items: list[list[int]], sources: int, *, ordered: bool) -> None:
    """Of each source all tokens, in their order where nothing shuffles."""
    found = [token for item in items for token in item]
    for name in range(sources):
        own = [token for token in found if token // 100_000 == name + 1]
        wanted = [token for number in range(COUNT) for token in row(name, number)["input_ids"]]
        assert (own if ordered else sorted(own)) == wanted
    assert len(found) == sum(LENGTHS) * sources


@pytest.mark.parametrize("name", PIPES)
def test_other_weights_lose_nothing_and_repeat_nothing_at_any_place(name: str) -> None:
    make, (before, after) = PIPES[name]
    changed = 0
    with draw.small(8):
        items, states = run(make(before).iter())
        for place in range(0, len(items), 1 if len(items) < 40 else 3):
            rest, later = run(make(after).iter(states[place], allow={"weights"}))
            check_each_once(items[:place] + rest, 2 + name.startswith("nested"), ordered=name in ORDERED)
            changed += rest != items[place:]
            hop = place % max(1, min(12, len(rest)))
            again, _ = run(make(after).iter(later[hop]))
            assert again == rest[hop:], f"place {place}, {hop} items later"
    assert changed or name == "batches in arrival order", "there all is in one window"


chains = st.lists(
    st.sampled_from(
        [
            lambda data: data.map(same, max_workers=1),
            lambda data: data.filter(whole),
            lambda data: data.flat_map(some),
            lambda data: data.shuffle(7),
            lambda data: data.shuffle(30),
            lambda data: data.chunk(3, drop_remainder=False),
            lambda data: data.map_blocks(whole_block),
            lambda data: data.select(["input_ids"]),
            lambda data: bf.interleave_datasets([data, source(3)], stop="all"),
            lambda data: data + source(3),
        ]
    ),
    max_size=3,
)
ends = st.sampled_from(
    [
        lambda data: data,
        lambda data: data.batch(4, window=9),
        lambda data: data.batch_by_tokens(20, window=30),
        lambda data: data.batch_by_tokens(20, window="steps", micro_batches=2),
    ]
)
shares = st.tuples(*[st.sampled_from([0.5, 1, 2, 3, 10])] * 4)


def whole_block(block: Any) -> Any:
    return block


@examples(25)
@given(chains, ends, shares, shares, shares, st.sampled_from([1, 3, 8, 30]), st.integers(0, 60), st.integers(0, 30))
def test_other_weights_in_any_chain(
    chain: list[Any], end: Any, before: Weights, after: Weights, last: Weights, rows: int, place: int, hop: int
) -> None:
    def made(weights: Weights) -> Any:
        data: Any = nested(weights)
        for one in chain:
            data = one(data)
        return end(data)

    with draw.small(rows):
        items, states = run(made(before).iter())
        place = min(place, len(items))
        rest, later = run(made(after).iter(states[place], allow={"weights"}))
        wanted = Counter(token for item in items for token in item)
        assert Counter(token for item in items[:place] + rest for token in item) == wanted
        hop = min(hop, len(rest))
        assert run(made(after).iter(later[hop]))[0] == rest[hop:]
        end_of_all, _ = run(made(last).iter(later[hop], allow={"weights"}))
        assert Counter(token for item in items[:place] + rest[:hop] + end_of_all for token in item) == wanted


def test_the_block_at_hand_keeps_its_weights_and_the_shares_count_from_there() -> None:
    """Against a mixture row by row, in plain Python."""
    old, new = [(1, 1), (2, 5)]
    with draw.small(8):
        items, states = run(mixture(old).iter())
        places = len(items)
        for place in range(places):
            rest, _ = run(mixture(new).iter(states[place], allow={"weights"}))
            all_rows = items[:place] + rest
            fits = [end for end in range(place, place + 8) if all_rows == items[:end] + by_hand(items[:end], new)]
            assert fits, f"place {place}"


def by_hand(given: list[list[int]], weights: Weights) -> list[list[int]]:
    """What a mixture makes of the rows that are left."""
    left = [[row(name, number)["input_ids"] for number in range(COUNT)] for name in range(2)]
    parts = [Rows(([tokens for tokens in own if tokens not in given],)) for own in left]
    found: list[list[int]] = list(interleaved(parts, weights, "all").rows)
    return found


def test_the_shares_are_those_of_the_new_weights_a_window_later() -> None:
    def made(weights: Weights) -> bf.Batches:
        sources = [bf.from_iterable([{"input_ids": [name]} for _ in range(100)], repeat=True) for name in range(2)]
        return bf.interleave_datasets(sources, weights=weights).batch(1, window=16)

    with draw.small(8), made((1, 1)).iter() as it:
        assert Counter(tokens(batch)[0] for batch in islice(it, 100)) == {0: 50, 1: 50}
        with made((1, 4)).iter(it.state_dict(), allow={"weights"}) as later:
            found = Counter(tokens(batch)[0] for batch in islice(later, 40, 140))
    assert abs(found[1] - 80) <= 4


def test_weights_may_change_again_while_those_before_still_hold() -> None:
    make = partial(PIPES["shuffled, then in windows"][0])
    with draw.small(8):
        items, states = run(make((1, 1)).iter())
        for place in (1, 5, 8):
            rest, later = run(make((1, 3)).iter(states[place], allow={"weights"}))
            for hop in range(12):
                last, states_of_last = run(make((3, 1)).iter(later[hop], allow={"weights"}))
                check_each_once(items[:place] + rest[:hop] + last, 2, ordered=False)
                again, _ = run(make((3, 1)).iter(states_of_last[2]))
                assert again == last[2:]


def test_weights_change_again_before_an_end_that_was_read_already() -> None:
    """The size of the first window follows from all rows here, so these must come again; a later window follows from its own."""

    def made(weights: Weights) -> bf.Batches:
        return mixture(weights).batch_by_tokens(24, window="steps", micro_batches=2)

    with draw.small(8):
        items, states = run(made((1, 6)).iter())
        rest, later = run(made((1, 2)).iter(states[1], allow={"weights"}))
        for hop, state in enumerate(later):
            last, states_of_last = run(made((1, 3)).iter(state, allow={"weights"}))
            check_each_once(items[:1] + rest[:hop] + last, 2, ordered=False)
            again, _ = run(made((1, 3)).iter(states_of_last[len(last) // 2]))
            assert again == last[len(last) // 2 :]


def test_a_state_of_unchanged_weights_is_as_long_as_before() -> None:
    def places(state: Any) -> dict[str, Any]:
        found: dict[str, Any] = state["position"]["rows"]
        return found

    with draw.small(8):
        _, states = run(mixture((1, 1)).iter())
        _, later = run(mixture((1, 3)).iter(states[3], allow={"weights"}))
    assert all(places(state).keys() <= {"epoch", "sources", "types"} for state in states[:-1])
    assert places(later[0])["before"] == [{"until": 8, "weights": [["0", 1], ["1", 1]]}]
    assert "before" not in places(later[16]), "the weights before are forgotten once they have passed"
    assert places(later[16])["since"] == 8


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (3, 0), (2, 3)])
def test_old_weights_hold_for_the_open_windows_alone_however_much_is_read_ahead(workers: int, ahead: int) -> None:
    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.002)  # what reads ahead below has all the time that it wants
        return sample

    def made(weights: Weights) -> bf.Batches:
        batches = mixture(weights).map(same, max_workers=workers).shuffle(8).map(slow).batch(4, window=12)
        return batches.prefetch(ahead) if ahead else batches

    with draw.small(2), made((1, 1)).iter() as it:
        next(it)
        position = json.dumps(made((1, 3)).iter(it.state_dict(), allow={"weights"}).state_dict()["position"])
    (served,) = re.findall(r'"until": (\d+), "weights": \[\["0", 1\], \["1", 1\]\]', position)
    assert int(served) == 3 * 8 + 4, "18 rows and some blocks more, of 3 windows; the last is whole when 4 rows follow"


def of_streams(weights: Weights) -> bf.Batches:
    return streamed(weights).batch(2, window=6)


def streamed(weights: Weights) -> bf.Dataset:
    parts = []
    for name in range(2):
        rows = [row(name, number) for number in range(COUNT)]
        urls = [draw.shard(draw.json_lines(rows[shard::4]), ".jsonl") for shard in range(4)]
        parts.append(bf.from_files(urls, streams=4))
    return bf.interleave_datasets(parts, weights=weights, stop="all")


@pytest.mark.parametrize("micro_batches", [2, 8])
@pytest.mark.parametrize("streams", [False, True])
def test_an_open_step_has_the_labels_that_its_first_batches_said(streams: bool, micro_batches: int) -> None:
    def made(weights: Weights) -> bf.Batches:
        data = streamed(weights) if streams else mixture(weights)
        return data.causal_labels().batch(2 * micro_batches, window=6, micro_batches=micro_batches)

    with draw.small(4):
        first = [*made((1, 1))]
        with made((1, 1)).iter() as it:
            states = [it.state_dict() for _ in first if next(it)]
        every = 3 if streams and not SOAK else 1  # every place in a step is among them
        for place, state in [*enumerate(states, 1)][::every]:
            labels, said = [], set()
            for batch in [*first[:place], *made((1, 3)).iter(state, allow={"weights"})]:
                labels.append(int((batch["labels"] >= 0).sum()))
                said.add(int(batch["num_items_in_batch"]))
                if batch["ends_step"]:
                    assert said == {sum(labels)}, f"place {place}"
                    labels, said = [], set()


def test_a_mixture_that_ended_without_a_row_ends_so_again() -> None:
    def made(weights: Weights) -> bf.Batches:
        ends_at_once = bf.interleave_datasets([source(1, 0), source(2)], weights=weights, stop="first")
        return (ends_at_once + source(0)).batch(4, window=12)

    items, states = run(made((1, 1)).iter())
    assert run(made((1, 9)).iter(states[1], allow={"weights"}))[0] == items[1:]


def test_a_mixture_that_ended_with_the_change_of_its_weights_ends_so_again() -> None:
    def made(weights: Weights) -> bf.Batches:
        return bf.interleave_datasets([source(0), source(1, 6)], weights=weights, stop="first").batch(2, window=12)

    with draw.small(8):
        items, states = run(made((9, 1)).iter())
        for place, state in enumerate(states):
            rest, later = run(made((1, 9)).iter(state, allow={"weights"}))
            for hop, middle in enumerate(later):
                last, _ = run(made((5, 1)).iter(middle, allow={"weights"}))
                found = [token for item in items[:place] + rest[:hop] + last for token in item]
                assert len(found) == len({*found}), f"place {place}, {hop} items later"


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_that_read_streams_change_weights_at_one_place(world_size: int) -> None:
    """Whatever the number of ranks, before and after."""
    with draw.small(4):
        for steps in (1, 6, 9):
            ranks = Ranks(of_streams((1, 1)), world_size)
            first = ranks.run(steps=steps)
            state = json.loads(json.dumps(bf.merge_states([*ranks.states.values()])))
            whole = [tokens(batch) for step in first for batch in step]
            alone, _ = run(of_streams((1, 3)).iter(state, allow={"weights"}))
            check_each_once(whole + alone, 2, ordered=False)
            assert alone != run(of_streams((1, 1)).iter(state))[0]
            resumed = [
                of_streams((1, 3)).shard(rank, 2).iter(state, allow={"weights"}).state_dict() for rank in range(2)
            ]
            assert run(of_streams((1, 3)).iter(bf.merge_states(resumed)))[0] == alone


def test_weights_cannot_change_where_rows_of_two_epochs_of_the_mixture_are_read_again() -> None:
    def made(weights: Weights) -> bf.Dataset:
        inner = bf.interleave_datasets([source(1, 6), source(2, 6)], weights=weights)
        return bf.interleave_datasets([source(0), inner], stop="all_repeat").shuffle(16)

    with draw.small(4):
        items, states = run(made((1, 1)).iter())
        refused = []
        for place, state in enumerate(states[:60]):
            try:
                rest, _ = run(made((1, 2)).iter(state, allow={"weights"}))
            except bf.StateError as error:
                refused.append(str(error))
                continue
            own = [item for item in items[:place] + rest if item[0] < 200_000]
            assert sorted(own) == [row(0, number)["input_ids"] for number in range(COUNT)]
    assert 0 < len(refused) < 60
    for message in refused:
        assert message.startswith(
            "interleave_datasets cannot change weights [1, 1] to [1, 2] at this state: the rows that "
        )


def test_another_shard_is_still_refused_where_weights_change() -> None:
    def made(weights: Weights, first: int) -> bf.Dataset:
        rows = [row(0, number) for number in range(first, COUNT)]
        return bf.interleave_datasets([bf.from_iterable(rows), source(1)], weights=weights)

    with draw.small(8), made((1, 1), 0).iter() as it:
        next(it), next(it)
        with pytest.raises(bf.StateError, match=r"gave other rows at .* than when this state was saved"):
            made((1, 3), 1).iter(it.state_dict(), allow={"weights"})


@pytest.mark.parametrize("steps", [None, 4])
def test_a_loader_takes_other_weights(steps: int | None) -> None:
    def loader(weights: Weights) -> bf.Loader:
        return mixture(weights).batch_by_tokens(40, window=20).loader(steps_per_epoch=steps)

    seen: list[Any] = []
    old, new = loader((3, 1)), loader((1, 3))
    taken = iter(old)
    seen += [next(taken)["input_ids"] for _ in range(3)]
    state = old.state_dict()
    with pytest.raises(bf.StateError, match=r"weights .*allow=\{'weights'\}"):
        new.load_state_dict(state)
    new.load_state_dict(state, allow={"weights"})
    for _ in range(1 if steps is None else 2):
        seen += [batch["input_ids"] for batch in new]
    times = Counter(token for batch in seen for token in batch.flatten().tolist() if token)
    every = {token for name in (0, 1) for number in range(COUNT) for token in row(name, number)["input_ids"]}
    assert {*times.values()} == {1}
    assert len(seen) == 8 if steps else {*times} == every
    with pytest.raises(ValueError, match="allow takes the names"):
        new.load_state_dict(state, allow={"weight"})
