"""Other weights and other sources for mixtures in the middle of a run, indexed ones too: each sample once, at any place."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeAlias, cast

import numpy as np
import pytest

import brimful as bf
from brimful.core.facts import facts_of
from brimful.core.iterator import ResumableIterator
from brimful.core.stage import running
from brimful.dataset import dataset_of
from brimful.index.indexed import Indexed
from brimful.index.indexed import Repeat as IndexRepeat
from brimful.index.joined import Interleave as IndexInterleave
from brimful.index.joined import WeightsUntil
from brimful.rows.mixing import Interleave
from tests import strategies as draw
from tests.effort import times

COUNT = 60
LENGTHS = [1 + number * 5 % 7 for number in range(COUNT)]
Weights: TypeAlias = tuple[float, ...] | dict[str, float]
Sources: TypeAlias = list[bf.IndexedDataset]


def source(name: int, count: int = COUNT, **options: Any) -> bf.IndexedDataset:
    rows = [
        {"of": name, "row": number, "input_ids": [100 * name + number] * LENGTHS[number % COUNT]}
        for number in range(count)
    ]
    return bf.from_sequence(rows, **options)


def mixture(weights: Weights, *, shuffle: bool = False, **options: Any) -> Any:
    made = [source(name, shuffle=shuffle) for name in range(len(weights))]
    return bf.interleave_datasets(made, weights=weights, **{"stop": "all"} | options)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


PIPES: dict[str, Callable[[Weights], Any]] = {
    "samples": mixture,
    "shuffled sources": partial(mixture, shuffle=True),
    "columns": lambda weights: mixture(weights).drop("input_ids"),
    "a slice": lambda weights: mixture(weights).skip(3).stride(2, 1),
    "batches in arrival order": lambda weights: mixture(weights).batch(4),
    "windows": lambda weights: mixture(weights).batch_by_tokens(24, window=20),
    "steps": lambda weights: mixture(weights).batch(8, window=14, micro_batches=2),
    "functions": lambda weights: mixture(weights).map(same).batch(4, window=12),
    "read ahead": lambda weights: mixture(weights).batch(4, window=12).prefetch(3),
    "shuffled as a stream": lambda weights: mixture(weights).stream().shuffle(16).batch(3, window=12),
    "by tokens": partial(mixture, by="tokens"),
    "by tokens, in windows": lambda weights: mixture(weights, by="tokens").batch_by_tokens(24, window=20),
}


def rows_in(item: Any) -> list[tuple[int, int]]:
    of, row = np.atleast_1d(item["of"]), np.atleast_1d(item["row"])
    return list(zip(of.tolist(), row.tolist()))


def run(it: ResumableIterator[Any]) -> tuple[list[list[tuple[int, int]]], list[Any]]:
    """All items, and the state before each and after the last, as a file would have it."""
    items, states = [], [as_saved(it)]
    for item in it:
        items.append(rows_in(item))
        states.append(as_saved(it))
    return items, states


def as_saved(it: ResumableIterator[Any]) -> Any:
    return json.loads(json.dumps(it.state_dict()))


@pytest.mark.parametrize("name", PIPES)
def test_other_weights_lose_nothing_and_repeat_nothing_at_any_place(name: str) -> None:
    make = PIPES[name]
    with draw.small(8):
        items, states = run(make((1, 1)).iter())
        changed = 0
        for place in range(0, len(items), 1 if len(items) < 40 else 3):
            rest, later = run(make((1, 4)).iter(states[place], allow={"weights"}))
            found = Counter(row for item in items[:place] + rest for row in item)
            if name != "a slice":
                assert found == Counter(row for item in items for row in item), place
            assert max(found.values()) == 1
            changed += rest != items[place:]
            for hop in {0, place % (len(rest) + 1), len(rest) // 2}:
                again, _ = run(make((1, 4)).iter(later[hop]))
                assert again == rest[hop:], f"place {place}, {hop} items later"
                last, latest = run(make((5, 1)).iter(later[hop], allow={"weights"}))
                found = Counter(row for item in items[:place] + rest[:hop] + last for row in item)
                assert max(found.values()) == 1
                if name != "a slice":
                    assert len(found) == 2 * COUNT
                assert run(make((5, 1)).iter(latest[len(last) // 2]))[0] == last[len(last) // 2 :]
        assert changed


@pytest.mark.parametrize("stop", ["first", "all", "all_repeat"])
def test_an_indexed_mixture_goes_on_as_a_stream_does(stop: Any) -> None:
    for seed in range(times(60, 1_000)):
        random = Random(seed)
        size = random.randint(1, 3)
        made = [source(name, random.choice([0, 1, 5, 30, 60])).stage for name in range(size)]
        made = [IndexRepeat(cast(Indexed, one)) if one.count and random.random() < 0.3 else one for one in made]
        ours, saved, first = ([random.choice([0, 0.2, 1, 2, 7]) for _ in range(size)] for _ in range(3))
        if not (any(ours) and any(saved) and any(first)):
            continue
        one, two = sorted(random.randint(1, 60) for _ in range(2))
        changes: list[WeightsUntil] = []
        counts = []
        for place, weights in ((one, first), (two, saved)):
            so_far = IndexInterleave(tuple(made), tuple(weights), stop, before=tuple(changes))
            whole = so_far.count_in(0)
            if whole is None or place < whole:  # else it has ended before
                counts.append(so_far._course_in(0).count_at(place))
                changes.append(WeightsUntil(0, place, tuple(weights)))
        mixed = IndexInterleave(tuple(made), tuple(ours), stop, before=tuple(changes))
        stream = Interleave(tuple(made), tuple(ours), stop)
        at = stream.start(0)
        at["before"] = [
            {"until": count, "weights": [[str(key), weight] for key, weight in enumerate(one.weights)]}
            for count, one in zip(counts, changes)
        ]
        expected: list[tuple[int, int]] = []
        with draw.small(16), running(stream, at) as items:
            for block, _ in items:
                expected += zip(*(block.column(name).to_pylist() for name in ("of", "row"))) if block.num_rows else ()
                if len(expected) > 400:
                    break
        count = mixed.count_in(0)
        wanted = len(expected) if count is None else min(count, len(expected))
        assert count is None or count == len(expected) or len(expected) > 400, seed
        if not wanted:
            continue
        block = mixed.index.take(mixed.order(0)(0, wanted))
        assert [*zip(*(block.column(name).to_pylist() for name in ("of", "row")))] == expected[:wanted], seed


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_change_weights_at_one_place(world_size: int) -> None:
    def made(*weights: float) -> bf.Batches:
        return mixture(weights).batch_by_tokens(24, window=20, micro_batches=2)

    def steps(batches: bf.Batches, state: Any, most: int, **extra: Any) -> tuple[list[Any], Any]:
        runs = [batches.shard(rank, world_size).iter(state, **extra) for rank in range(world_size)]
        taken = [
            [rows_in(batch) for it in runs if (batch := next(it, None)) is not None and batch["weight"]]
            for _ in range(most)
        ]
        states = [as_saved(it) for it in runs]
        assert all(one == states[0] for one in states)
        return [item for step in taken for item in step], states[0]

    alone = [row for item in run(made(1, 1).iter())[0] for row in item]
    for place in range(0, 12, 3):
        first, state = steps(made(1, 1), None, place)
        middle, later = steps(made(1, 5), state, 4, allow={"weights"})
        last, _ = steps(made(1, 5), later, 200)
        whole = [row for item in first + middle + last for row in item]
        assert sorted(whole) == sorted(alone), place
        by_one, _ = run(made(1, 5).iter(state, allow={"weights"}))
        assert by_one == middle + last


def test_where_it_begins_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with mixture((1, 1)).batch(4, window=12).iter() as it:
        next(it)
        state = as_saved(it)
    with caplog.at_level(logging.WARNING, "brimful"):
        later = as_saved(mixture((1, 3)).batch(4, window=12).iter(state, allow={"weights"}))
    assert [record.message for record in caplog.records] == [
        "interleave_datasets goes on with other weights or sources from sample 12 on, as allow= says. What must be read again "
        "keeps the old ones"
    ]
    assert later["header"][0]["before"] == [[0, 12, [1, 1]]]
    with caplog.at_level(logging.WARNING, "brimful"):
        list(mixture((1, 3)).batch(4, window=12).iter(later))
    assert len(caplog.records) == 1


def test_the_next_epoch_has_the_new_weights_alone() -> None:
    loader = mixture((1, 1)).batch(4).loader()
    taken = iter(loader)
    next(taken)
    state = loader.state_dict()
    new = mixture((1, 4)).batch(4).loader()
    new.load_state_dict(state, allow={"weights"})
    list(new)
    assert [rows_in(batch) for batch in new] == [rows_in(batch) for batch in mixture((1, 4)).batch(4).loader()]


@pytest.mark.parametrize("stop", ["first", "all_repeat"])
def test_data_that_repeat_go_on_with_epochs_of_the_new_weights(stop: Any) -> None:
    def made(*weights: float) -> Any:
        return dataset_of(mixture(weights, stop=stop).stage, repeats=True).skip(0)

    with draw.small(8):
        with made(1, 1).iter() as it:
            first = [rows_in(next(it))[0] for _ in range(150)]
            state = as_saved(it)
        with made(1, 3).iter(state, allow={"weights"}) as it:
            rest = [rows_in(next(it))[0] for _ in range(700)]
            middle = as_saved(it)
            after = [rows_in(next(it))[0] for _ in range(200)]
        with made(1, 3).iter(middle) as it:
            assert [rows_in(next(it))[0] for _ in range(200)] == after
    plain = [*mixture((1, 1), stop=stop)]
    found = (first + rest)[len(plain) :]
    own = [*mixture((1, 3), stop=stop)]
    tail = [rows_in(sample)[0] for sample in own]
    starts = [place for place in range(300) if found[place : place + len(tail)] == tail]
    assert starts, "a whole epoch of the new weights"


REFUSED: dict[str, tuple[Callable[[Weights], Any], str]] = {
    "shuffled": (lambda weights: mixture(weights).shuffle(16), "shuffle"),
    "a part of others": (lambda weights: mixture(weights) + source(7), "concat_datasets"),
    "a part of another mixture": (
        lambda weights: bf.interleave_datasets([mixture(weights), source(7)]),
        "interleave_datasets",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_places_that_are_none_of_the_mixture_are_refused_with_the_way_out(name: str) -> None:
    make, verb = REFUSED[name]
    with make((1, 1)).iter() as it:
        next(it)
        state = as_saved(it)
    with pytest.raises(
        bf.StateError, match=rf"^the weights of interleave_datasets cannot change below {verb}.* stream\(\)"
    ):
        make((1, 2)).iter(state, allow={"weights"})
    with make((1, 1)).stream().iter() as it:
        first = [rows_in(next(it))[0] for _ in range(5)]
        state = as_saved(it)
    rest = [rows_in(sample)[0] for sample in make((1, 2)).stream().iter(state, allow={"weights"})]
    assert Counter(first + rest) == Counter(rows_in(sample)[0] for sample in make((1, 1)))


ENDS_IN_HAND: list[tuple[Any, Any, Any]] = [
    ("all", [1, 0], [1, 1]),
    ("all", [0, 1], [1, 0]),
    ("all_repeat", [1, 1], [1, 0]),
    ("all_repeat", [1, 0], [1, 1]),
    ("all_repeat", [1, 3], [2, 1]),
    ("first", [1, 1], [3, 1]),
    ("all", bf.schedule({0: [1, 0], 32: [0, 1]}), [1, 1]),
    ("all", bf.schedule({0: [1, 0], 100: [0, 1]}), [3, 1]),
    ("all_repeat", bf.schedule({0: [1, 0], 40: [1, 1], 90: [0, 1]}, between="linear"), [1, 2]),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("stop", "before", "after"), ENDS_IN_HAND)
def test_an_end_that_is_in_hand_comes_again(stop: Any, before: Any, after: Any, streams: bool) -> None:
    """Weights that would end the epoch earlier or later do not change what is read again."""

    def made(weights: Any, window: int) -> Any:
        mixed = bf.interleave_datasets([source(0, 26), source(1, 90)], weights=weights, stop=stop)
        mixed = mixed.stream() if streams else mixed
        return mixed.batch(4, window=window) if window else mixed

    for window in (0, 12, 400):
        with draw.small(16):
            items, states = run(made(before, window).iter())
            for place in range(0, len(items) + 1, 1 if window else 5):
                rest, later = run(made(after, window).iter(states[place], allow={"weights"}))
                hop = len(rest) // 2
                assert run(made(after, window).iter(later[hop]))[0] == rest[hop:], (window, place)
                if window == 400 and place:  # one window has all of the epoch
                    assert rest == items[place:]
                found = Counter(row for item in items[:place] + rest for row in item)
                if stop != "all_repeat":
                    assert max(found.values(), default=1) == 1, (window, place)


def test_a_long_line_stays_as_it_was_written_where_weights_change() -> None:
    plan = bf.schedule({0: [1, 3], 20_000: [3, 1]}, between="linear")
    endless = [bf.from_iterable([{"x": number, "input_ids": [1]}] * 10, repeat=True) for number in range(2)]
    with bf.interleave_datasets(endless, weights=plan).batch(4, window=1000).iter() as it:
        next(it)
        state = as_saved(it)
    later = bf.interleave_datasets(endless, weights=[1, 1]).batch(4, window=1000).iter(state, allow={"weights"})
    position = later.state_dict()["position"]
    assert len(json.dumps(position)) < 600
    assert '"between": "linear"' in json.dumps(position)


# -- sources -----------------------------------------------------------------------------------------------------------------

NAMES = "web", "code", "books"


ENDS: dict[str, Any] = {
    "samples": lambda data: data,
    "batches": lambda data: data.batch(4),
    "windows": lambda data: data.batch_by_tokens(24, window=20),
    "shuffled": lambda data: (data.shuffle(16) if data.kind != "indexed" else data).batch(4, window=10),
}


def named(weights: dict[str, float], *, streams: bool, end: Any = lambda data: data, stop: Any = "all") -> Any:
    made = {name: source(NAMES.index(name), shuffle=name != "web") for name in weights}
    mixed = bf.interleave_datasets(made, weights=weights, stop=stop)
    return end(mixed.stream() if streams else mixed)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", ["samples", "batches", "windows", "shuffled"])
def test_sources_are_added_and_left_out(streams: bool, way: str) -> None:
    end = ENDS[way]
    two, three = {"web": 2, "code": 1}, {"web": 2, "books": 3, "code": 1}
    with draw.small(8):
        items, states = run(named(two, streams=streams, end=end).iter())
        for place in range(0, len(items), 3):
            made = named(three, streams=streams, end=end)
            with pytest.raises(bf.StateError, match=r"interleave_datasets\.sources.* allow=\{'sources'\}"):
                made.iter(states[place])
            rest, later = run(made.iter(states[place], allow={"sources"}))
            ended = '"ends"' in json.dumps(later[0]["position"]) or place == len(items)
            if (
                ended if streams else later[0]["header"][0]["before"] == [[1, 0, [2, 0, 1]]]
            ):  # all of the epoch is in hand
                assert rest == items[place:]
                continue
            found = Counter(row for item in items[:place] + rest for row in item)
            assert len(found) == 3 * COUNT
            assert max(found.values()) == 1
            assert run(made.iter(later[len(rest) // 3]))[0] == rest[len(rest) // 3 :]
            hop = len(rest) // 4
            if streams:
                with pytest.raises(bf.StateError, match=r"cannot leave out 'code' at this state"):
                    named({"web": 2, "books": 3}, streams=True, end=end).iter(later[hop], allow={"sources"})
            without = named({"web": 2, "books": 3, "code": 0}, streams=streams, end=end)
            last, latest = run(without.iter(later[hop], allow={"weights"}))
            found = Counter(row for item in items[:place] + rest[:hop] + last for row in item)
            assert max(found.values()) == 1
            assert {of for of, _ in found} == {0, 1, 2}
            if streams:
                gone = named({"web": 2, "books": 3}, streams=True, end=end)
                far = len(last) - 1
                assert run(gone.iter(latest[far], allow={"sources"}))[0] == last[far:]


@pytest.mark.parametrize("streams", [True, False])
def test_edits_of_all_kinds_may_follow_one_another(streams: bool) -> None:
    edits: list[tuple[dict[str, float], str]] = [
        ({"web": 1, "code": 1}, "weights"),
        ({"web": 1, "books": 2, "code": 1}, "sources"),
        ({"web": 1, "books": 2, "code": 0}, "weights"),
        ({"more": 1, "web": 1, "books": 2, "code": 0}, "sources"),
    ]

    def made(weights: dict[str, float]) -> Any:
        sources = {name: source([*NAMES, "more"].index(name), 600) for name in weights}
        mixed = bf.interleave_datasets(sources, weights=weights, stop="all")
        return (mixed.stream() if streams else mixed).batch(4, window=16)

    with draw.small(8):
        found = Counter[tuple[int, int]]()
        it = made({"web": 3, "code": 1}).iter()
        for weights, allowed in edits:
            for _ in range(30):
                found.update(rows_in(next(it)))
            state = as_saved(it)
            it.close()
            it = made(weights).iter(state, allow={allowed})
        rest, states = run(it)
        found.update(row for item in rest for row in item)
        assert max(found.values()) == 1
        assert len(found) >= 3 * 600
        assert run(made(edits[-1][0]).iter(states[20]))[0] == rest[20:]
        if not streams:
            with pytest.raises(bf.StateError, match="cannot leave out 'code': a place in an indexed mixture"):
                made({"more": 1, "web": 1, "books": 2}).iter(states[5], allow={"sources"})


def test_only_data_sets_with_names_can_be_added() -> None:
    def listed(count: int) -> Any:
        return bf.interleave_datasets([source(number) for number in range(count)])

    with listed(2).iter() as it:
        next(it)
        state = as_saved(it)
    words = (
        r"interleave_datasets\.datasets was {} when it was saved and is {} here; only data sets with names can be added"
    )
    with pytest.raises(bf.StateError, match=words.format("2 data sets", "3 data sets")):
        listed(3).iter(state, allow={"sources", "weights"})
    named_now = bf.interleave_datasets({"web": source(0), "code": source(1)})
    with pytest.raises(bf.StateError, match=words.format("without names", r"named \['web', 'code'\]")):
        named_now.iter(state, allow={"sources"})


def test_a_source_that_is_added_moves_no_choice_above() -> None:
    def made(names: dict[str, float]) -> Any:
        deep = {
            name: source(number).stream().shuffle(4).shuffle(4) if name == "deep" else source(number)
            for number, name in enumerate(names)
        }
        return bf.interleave_datasets(deep, weights=names, stop="all").stream().shuffle(10).batch(4, window=12)

    with draw.small(8):
        _, states = run(made({"web": 1, "code": 1}).iter())
        one = made({"web": 1, "code": 1, "deep": 0}).iter(states[2], allow={"sources"})
        items, later = run(one)
        assert items == run(made({"web": 1, "code": 1}).iter(states[2]))[0]
        assert run(made({"web": 1, "code": 1, "deep": 0}).iter(later[3]))[0] == items[3:]


def test_sources_keep_their_order_and_their_data() -> None:
    state = as_saved(named({"web": 1, "code": 1}, streams=True).iter())
    words = r"interleave_datasets\.order\[0\] was 'web' when it was saved and is 'code' here; give the data sets that stay in the"
    with pytest.raises(bf.StateError, match=words):
        named({"code": 1, "web": 1, "books": 1}, streams=True).iter(state, allow={"sources"})
    other = bf.interleave_datasets({"web": source(0, 5), "code": source(1), "books": source(2)}, stop="all").stream()
    with pytest.raises(bf.StateError, match=r"from_sequence\.rows was 60 when it was saved and is 5 here"):
        other.iter(state, allow={"sources"})


def test_no_name_of_the_user_is_taken_for_one_of_a_position() -> None:
    words = "streams", "repeated", "passing", "carry", "rows", "sources", "epoch", "verb", "types"

    def counted(carry: Any, sample: dict[str, Any]) -> Any:
        return {name: carry[name] + 1 for name in words} | {"in": {"streams": [carry["rows"]]}}, sample

    def made(first: float) -> Any:
        sources = {name: bf.from_iterable([{"x": number}] * 5, repeat=number == 0) for number, name in enumerate(words)}
        mixed = bf.interleave_datasets(sources, weights={name: first + number for number, name in enumerate(words)})
        return mixed.scan(counted, dict.fromkeys(words, 0)).batch(2)

    with draw.small(4):
        items, states = [], []
        with made(1).iter() as it:
            for batch in it:
                items.append(batch["x"].tolist())
                states.append(as_saved(it))
        for place, state in enumerate(states):
            assert [batch["x"].tolist() for batch in made(1).iter(state)] == items[place + 1 :]
            assert list(made(2).iter(state, allow={"weights"})) or place + 1 == len(states)


def test_names_are_checked() -> None:
    one = source(0)
    words = r"^weights by name need one for each data set, 'web', 'code' \(missing 'code'; unknown 'cod'\)$"
    with pytest.raises(ValueError, match=words):
        bf.interleave_datasets({"web": one, "code": one}, weights={"web": 1, "cod": 1})
    with pytest.raises(
        ValueError, match=r"^the weights have names, and the data sets have none: give a dict of data sets"
    ):
        bf.interleave_datasets([one], weights={"web": 1})
    with pytest.raises(TypeError, match=r"^the names of data sets are strings \(got 3\)"):
        bf.interleave_datasets({3: one})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"^a schedule names the same data sets everywhere"):
        bf.schedule({0: {"web": 1}, 5: {"code": 1}})
    plan = bf.schedule({0: {"code": 0, "web": 1}, 4: {"web": 0, "code": 1}})
    mixed = bf.interleave_datasets({"web": one, "code": source(1)}, weights=plan)
    assert [rows_in(sample)[0][0] for sample in mixed][:8] == [0] * 4 + [1] * 4


# -- by tokens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_a_mixture_by_tokens(world_size: int) -> None:
    batches = (
        mixture((3, 1), shuffle=True, by="tokens", stop="all_repeat").causal_labels().batch_by_tokens(40, window=24)
    )
    expected = run(batches.iter())[0]
    runs = [
        [rows_in(batch) for batch in batches.shard(rank, world_size) if batch["weight"]] for rank in range(world_size)
    ]
    assert [runs[place % world_size][place // world_size] for place in range(len(expected))] == expected
    its = [batches.shard(rank, world_size).iter() for rank in range(world_size)]
    labels = [list(it) for it in its]
    for step in zip(*labels) if world_size > 1 else ():
        said = {int(batch["num_items_in_batch"]) for batch in step}
        counts = [int((batch["labels"] >= 0).sum()) for batch in step]
        assert said == {sum(counts)}


def test_functions_over_indexed_data_are_still_not_divided() -> None:
    batches = mixture((3, 1), by="tokens").map(same).batch(4)
    with pytest.raises(ValueError, match="cannot be divided among 2 ranks"):
        next(batches.shard(0, 2).iter())


def test_a_mixture_by_tokens_runs_forward_and_says_so() -> None:
    mixed = mixture((1, 1), by="tokens")
    for refused in (lambda: mixed[0], lambda: mixed[2:5], lambda: mixed.shuffle(8)):
        with pytest.raises(TypeError, match=r"^a mixture by tokens cannot .*\. Call stream\(\) first"):
            refused()
    assert sorted(rows_in(sample)[0] for sample in mixed.stream().shuffle(8)) == sorted(
        rows_in(sample)[0] for sample in mixed
    )
    assert facts_of(mixed.stage).streamed_by == "interleave_datasets"
    with mixed.iter() as it:
        [next(it) for _ in range(50)]
        position = it.state_dict()["position"]
    assert len(json.dumps(position)) < 400


@pytest.mark.parametrize("streams", [True, False])
def test_a_source_that_is_added_has_the_columns_of_the_mixture(streams: bool) -> None:
    def made(names: dict[str, float]) -> Any:
        sources = {name: bf.from_sequence([{"x": number} for number in range(300)]) for name in names}
        sources |= {"odd": bf.from_sequence([{"x": 1, "odd": 2}] * 300)} if "odd" in names else {}
        mixed = bf.interleave_datasets(sources, weights=names, stop="all")
        return (mixed.stream() if streams else mixed).map(same).batch(2)

    with made({"web": 1}).iter() as it:
        first = [next(it)["x"].tolist() for _ in range(2)]
        state = as_saved(it)
    rest = [batch["x"].tolist() for batch in made({"web": 1, "more": 1}).iter(state, allow={"sources"})]
    assert sorted(number for batch in first + rest for number in batch) == sorted([*range(300)] * 2)
    if streams:
        with pytest.raises((bf.DataError, bf.StateError), match="'odd'"):
            list(made({"web": 1, "odd": 1}).iter(state, allow={"sources"}))


def test_types_of_a_mixture_whose_sources_changed_are_kept_and_merge() -> None:
    def made(names: dict[str, float]) -> Any:
        sources = {name: source(number).map(same) for number, name in enumerate(names)}
        return bf.interleave_datasets(sources, weights=names, stop="all").map(same).batch(3)

    with draw.small(8), made({"web": 1, "code": 1}).iter() as it:
        for _ in range(5):
            next(it)
        state = as_saved(it)
        rest, later = run(made({"web": 1, "code": 1, "books": 1}).iter(state, allow={"sources"}))
        assert run(made({"web": 1, "code": 1, "books": 1}).iter(later[4]))[0] == rest[4:]
    assert [entry["verb"] for entry in later[4]["header"] if "types" in entry] == ["interleave_datasets", "map"]
