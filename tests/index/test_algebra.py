"""Which methods keep the index, and that what they give is what the streamed stages give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.shuffle import Shuffle
from brimful.batching.windows import Planned
from brimful.core.facts import facts_of
from brimful.core.stage import Stage, State, running
from brimful.dataset import dataset_of
from brimful.index.index import Index, RowSet
from brimful.index.indexed import Indexed
from brimful.index.joined import JoinedIndex
from brimful.index.order import Shuffle as IndexShuffle
from brimful.index.sequence import FromSequence, LengthIndex, SequenceIndex
from brimful.testing import assert_exact_resume, first_difference
from tests import strategies as draw
from tests.effort import examples
from tests.samples import letters, tokens


def even(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2 == 0)


def numbered(count: int, first: int = 0, **options: Any) -> bf.Dataset:
    return bf.from_sequence([{"n": first + number} for number in range(count)], **options)


def drawn(data: bf.Dataset) -> list[int]:
    return [sample["n"] for sample in data]


def items(stage: Stage[Any], epoch: int = 0) -> list[int]:
    with running(stage, stage.start(epoch)) as blocks:
        return [number for block, _ in blocks if block.num_rows for number in block.column("n").to_pylist()]


ROWS = numbered(60, shuffle=True)
KINDS: dict[str, tuple[Callable[[], bf.Dataset], str]] = {
    "take": (lambda: ROWS.take(3), "indexed"),
    "skip": (lambda: ROWS.skip(3).stride(2, 1), "indexed"),
    "shuffle": (lambda: ROWS.shuffle(5), "indexed"),
    "concat": (lambda: ROWS + ROWS.take(2), "indexed"),
    "mix": (lambda: bf.interleave_datasets([ROWS, numbered(3, repeat=True)], by="samples"), "indexed"),
    "repeat": (lambda: numbered(3, repeat=True).take(7), "indexed"),
    "filter": (lambda: ROWS.filter(even), "indexed"),
    "filters": (lambda: (ROWS.filter(even).filter(even) + ROWS).shuffle(4).filter(even).take(3), "indexed"),
    "a cache": (lambda: ROWS.map(dict).cache().take(3), "indexed"),
    "a filter with a seed": (lambda: ROWS.stream().filter(lambda sample, rng: True, seed=1), "streamed (by seed)"),
    "a filter of a slice": (lambda: ROWS.take(3).stream().filter(even).skip(1), "streamed (by filter)"),
    "a filter of a mixture": (
        lambda: bf.interleave_datasets([ROWS, ROWS]).stream().filter(even),
        "streamed (by interleave_datasets)",
    ),
    "a filter of a slice in a concatenation": (
        lambda: (ROWS + ROWS.skip(1)).stream().filter(even),
        "streamed (by filter)",
    ),
    "map": (lambda: ROWS.take(3).map(dict).take(2).shuffle(3), "streamed (by map)"),
    "a seeded map": (lambda: ROWS.map(lambda sample, rng: sample, seed=1).take(1), "streamed (by seed)"),
    "enumerate": (lambda: ROWS.enumerate(), "streamed (by enumerate)"),
    "a mixture with a stream": (lambda: ROWS + bf.from_iterable([{"n": 1}]), "streamed (by from_iterable)"),
    "a concatenation with a map": (lambda: (ROWS + ROWS.map(dict)).take(1), "streamed (by map)"),
}


@pytest.mark.parametrize(("make", "kind"), KINDS.values(), ids=KINDS)
def test_kind_says_which_stage_made_it_streamed(make: Callable[[], bf.Dataset], kind: str) -> None:
    data = make()
    assert data.kind == kind
    if kind == "indexed":
        assert len(data) == len(drawn(data))
        assert_exact_resume(make, max_resumes=8)
    else:
        for known in (len, bf.Dataset.lengths):
            with pytest.raises(TypeError, match=rf"is not known|are not known: it is {kind.replace('(', '.')}"[:40]):
                known(data)


@given(make=draw.indexed(), epoch=st.just(0))
@examples(20)
def test_any_sample_can_be_had_by_its_number(make: draw.Make, epoch: int) -> None:
    data = dataset_of(make())
    count = 20 if not facts_of(data.stage).ends() else len(data)
    taken = list(islice(data, count))
    assert first_difference([data[number] for number in range(len(taken))], taken) is None
    if facts_of(data.stage).ends():
        assert first_difference([data[number - count] for number in range(count)], taken) is None
        with pytest.raises(IndexError, match=rf"there is no sample {count} in a data set of {count}"):
            data[count]


@pytest.mark.parametrize("data", [numbered(9), numbered(9).map(dict)], ids=["indexed", "streamed"])
def test_half_a_sample_is_refused_rather_than_rounded(data: bf.Dataset) -> None:
    halves: list[Callable[[Any], bf.Dataset]] = [
        data.take,
        data.skip,
        data.shuffle,
        lambda n: data.stride(n, 0),
        lambda n: data.stride(3, n),
    ]
    for method in halves:
        assert len(list(method(np.int64(1)))) in (1, 3, 8, 9)
        with pytest.raises(TypeError, match=r"^\w+ must be an integer \(got 1\.5\)$"):
            method(1.5)


def test_samples_of_streamed_data_cannot_be_had_by_number() -> None:
    with pytest.raises(
        TypeError, match=r"cannot give a sample by its number: it is streamed \(by map\). Call cache\(\)"
    ):
        bf.from_sequence(["a"]).map(dict)[0]


def test_what_repeats_has_no_length() -> None:
    with pytest.raises(
        TypeError, match=r"^the length of this data set is not known: it is indexed and repeats without end "
    ):
        len(tokens([1], [2]).skip(0) + dataset_of(tokens([1]).stage, repeats=True).skip(1))
    with pytest.raises(
        TypeError, match=r"^the lengths of this data set are not known: it repeats without end. Call take"
    ):
        dataset_of(tokens([1], [2]).stage, repeats=True).skip(1).lengths()
    with pytest.raises(TypeError, match=r"^the number of batches is not known"):
        len(dataset_of(tokens([1], [2]).stage, repeats=True).skip(1).batch(2))


@given(st.integers(0, 9), st.lists(st.tuples(st.sampled_from("tsi"), st.integers(0, 9)), max_size=4), st.booleans())
@examples(200)
def test_slices_are_those_of_a_list(count: int, links: list[tuple[str, int]], repeat: bool) -> None:
    repeat = repeat and count > 0
    data = numbered(count, repeat=repeat)
    expected = list(range(count)) * (1 + repeat * 8_000)
    for link, number in links:
        if link == "t":
            data, expected = data.take(number), expected[:number]
        elif link == "s":
            data, expected = data.skip(number), expected[number:]
        else:
            interval = 1 + number % 3
            data, expected = data.stride(interval, number % interval), expected[number % interval :: interval]
    if repeat:
        data, expected = data.take(50), expected[:50]
    assert data.kind == "indexed"
    with draw.small(4):
        assert drawn(data) == expected
        assert len(data) == len(expected)
    assert data.stage.unshuffled()[1] == len(expected)  # type: ignore[attr-defined]


@given(make=draw.indexed(), data=st.data(), epoch=st.integers(0, 2))
@examples(150)
def test_any_part_of_an_epoch_is_that_of_the_whole(make: draw.Make, data: st.DataObject, epoch: int) -> None:
    stage = make()
    assert isinstance(stage, Indexed)
    count = stage.count
    most = 60 if count is None else count
    whole = stage.order(epoch)(0, most)
    assert ((whole >= 0) & (whole < max(1, len(stage.index)))).all()
    shared = stage.order(epoch)
    for _ in range(4):
        first = data.draw(st.integers(0, most))
        last = data.draw(st.integers(first, most))
        assert make().order(epoch)(first, last).tolist() == whole[first:last].tolist()  # type: ignore[attr-defined]
        assert shared(first, last).tolist() == whole[first:last].tolist()
    plain, rows = stage.unshuffled()
    if count is not None:
        assert rows == count
        assert sorted(plain(0, count).tolist()) == sorted(stage.order(0)(0, count).tolist())


@given(make=draw.indexed(), size=st.sampled_from([1, 4]), data=st.data())
@examples(60)
def test_rows_of_many_tokens_come_in_small_blocks(make: draw.Make, size: int, data: st.DataObject) -> None:
    stage, limit = make(), 4 * size
    assert isinstance(stage, Indexed)
    known = {"input_ids", "labels"} <= set(stage.index.list_columns)

    def blocks(at: State) -> list[tuple[list[int], list[int], State]]:
        with running(stage, at) as made:
            full = ((block, after) for block, after in islice(made, 80) if block.num_rows)
            return [(*(column(block, name) for name in ("id", "size")), after) for block, after in full]

    def column(block: Any, name: str) -> list[int]:
        if name == "id":
            return list(block.column("id").to_pylist())
        lists = [block.column(name).to_pylist() for name in ("input_ids", "labels")]
        return [sum(map(len, row)) for row in zip(*lists)]

    with draw.small(4_096, size):
        cut = blocks(stage.start(1))
        for number, (ids, sizes, _) in enumerate(cut):
            assert not known or len(ids) == 1 or sum(sizes) <= limit
            if number + 1 < len(cut) and not facts_of(stage).one_by_one:
                assert sum(sizes) + cut[number + 1][1][0] > limit, "no smaller than they must be"
        if cut:
            number = data.draw(st.integers(0, len(cut) - 1))
            assert blocks(cut[number][2])[: len(cut) - number - 1] == cut[number + 1 :], (
                "the same ones from any of them on"
            )
    whole = [number for ids, *_ in blocks(stage.start(1)) for number in ids]
    found = [number for ids, *_ in cut for number in ids]
    assert found == whole[: len(found)]
    assert len(cut) == 80 or len(found) == len(whole)


@given(make=draw.indexed(), rows=st.integers(1, 5))
@examples(100)
def test_windows_are_those_that_streamed_rows_give(make: draw.Make, rows: int) -> None:
    def content(windows: Stage[Any]) -> list[Any]:
        with running(windows, windows.start(1)) as made:
            found = []
            for window, _ in made:
                ids = window.take(np.arange(len(window))).column("id").to_pylist()
                found.append((window.number, window.lengths.tolist(), ids))
                if len(found) > 20:
                    break
            return found

    with draw.small(rows):
        indexed = content(Planned(make(), 4, ("input_ids",), True))
        buffered = content(draw.Buffered(make(), 4, ("input_ids",), True))
    assert indexed == buffered


@given(st.integers(0, 40), st.integers(1, 15), st.integers(0, 2), st.integers(0, 2))
def test_a_shuffle_has_the_order_that_it_had(count: int, size: int, seed: int, epoch: int) -> None:
    source = numbered(count, shuffle=True).stage
    assert isinstance(source, FromSequence)
    assert items(IndexShuffle(source, size, seed), epoch) == items(Shuffle(source, size, seed), epoch)


def test_an_endless_shuffle_has_windows_over_the_ends_of_epochs() -> None:
    data = numbered(3, repeat=True).skip(1).shuffle(5).take(10)
    first, last = drawn(data)[:5], drawn(data)[5:]
    assert (sorted(first), sorted(last)) == ([0, 1, 1, 2, 2], [0, 0, 1, 1, 2])


def test_an_endless_data_set_without_a_sample_is_an_error() -> None:
    empty = letters("", repeat=True)
    mixed = bf.interleave_datasets([empty, letters("ab", repeat=True)], stop="all")
    filtered = letters("ab", repeat=True).filter(lambda sample: False)
    for data in (empty.take(3), empty.skip(3), mixed.take(4), empty.batch(2).take(2), filtered.skip(1)):
        assert repr(data)
        with pytest.raises(
            bf.DataError, match=r"^from_sequence.* > repeat: there is no sample to repeat\. The data are"
        ):
            list(data)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_concatenation_has_the_columns_of_all_in_every_row(streamed: bool) -> None:
    """Whatever lies beside it in a block, a window or a batch."""
    one, two = letters("ab"), bf.from_sequence([{"n": 1}])
    data = (one.map(dict) + two.map(dict) if streamed else one + two).skip(1)
    rows = [{"letter": "b", "n": None}, {"letter": None, "n": 1}]
    assert list(data) == rows
    assert list(dataset_of(data.stage, repeats=True).take(3)) == [*rows, rows[0]]
    assert {tuple(sample) for sample in data.shuffle(2)} == {("letter", "n")}
    (batch,) = data.batch(2, collate_fn=list)
    assert batch == rows
    if not streamed:
        assert (data[0], data[1]) == tuple(rows)
    with pytest.raises(bf.DataError, match=r"column 'n' is null or missing \(sequence, row 1\)"):
        next(iter(data.batch(1)))


@pytest.mark.parametrize("value", [[1], 1, b"a", None, {"a": 1}], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("streamed", [(), (0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("verb", [bf.concat_datasets, bf.interleave_datasets])
def test_columns_that_nothing_unites_are_refused_wherever_they_are_joined(
    verb: Any, streamed: tuple[int, ...], value: Any
) -> None:
    one, two = letters("ab"), bf.from_sequence([{"letter": value}])
    data = verb([part.map(dict) if number in streamed else part for number, part in enumerate((one, one, two))])
    if value is None:
        assert list(data.stream().filter(lambda sample: sample["letter"] is None)) == [{"letter": None}]
        return
    kind = "json" if isinstance(value, dict) else str(pa.array([value]).type)
    message = (
        f"{verb.__name__}: column 'letter' is {kind} in data set 2 and string in those before it; convert it (map), or rename "
        "or drop it in one of them"
    )
    with pytest.raises(bf.DataError) as error:
        list(data)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", ["indexed", "streamed"])
def test_however_sums_are_bracketed_the_data_are_the_same(kind: str) -> None:
    one, two, three, *rest = [numbered(3, 10 * number, shuffle=True) for number in range(400)]
    if kind == "streamed":
        one, two, three, *rest = [data.map(dict) for data in (one, two, three, *rest[:30])]
    ways = [(one + two) + three, one + (two + three), bf.concat_datasets([one, two, three])]
    batches = [data.shuffle(4).batch(2) for data in ways]
    for other in batches[1:]:
        assert first_difference(list(other), list(batches[0])) is None
        with batches[0].iter() as it:
            next(it)
            assert first_difference(list(other.iter(it.state_dict())), list(batches[0])[1:]) is None
    assert len(drawn(sum(rest, ways[0]))) == 3 * (3 + len(rest)), "and there may be many"


def test_what_comes_after_data_without_an_end_is_never_reached_and_that_is_said() -> None:
    with pytest.raises(
        ValueError, match=r"^data set 0 repeats without end, so no data set after it is reached. Repeat only"
    ):
        list((letters("a") + letters("b", repeat=True)) + letters("c"))


def test_lengths_are_in_the_order_of_the_data() -> None:
    data = bf.from_sequence([{"input_ids": [0] * length} for length in range(9)], shuffle=True)
    assert data.lengths().tolist() == list(range(9)) == data.shuffle(4).lengths().tolist()
    assert data.filter(lambda sample: len(sample["input_ids"]) > 4).lengths().tolist() == [5, 6, 7, 8]
    assert (data + data.take(2)).lengths().tolist()[:9] == list(range(9))
    for slice_of in (data.skip(2).take(5), data.stride(2, 1), bf.interleave_datasets([data, data.skip(1)])):
        assert slice_of.lengths().tolist() == [len(sample["input_ids"]) for sample in slice_of]
    for empty in (data.take(0), data.filter(lambda sample: False), letters(""), letters("").skip(1)):
        assert empty.lengths().tolist() == []


def test_the_number_of_batches_is_known() -> None:
    data = bf.from_sequence([{"input_ids": [0] * length} for length in range(1, 90)], shuffle=True)
    mixed = bf.interleave_datasets([data, data.filter(lambda sample: len(sample["input_ids"]) % 3 > 0)], stop="all")
    batches = mixed.skip(5).shuffle(50).batch_by_tokens(100)
    assert len(batches) == len(list(batches)) == len(list(batches.plans()))


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("counts", [(0,), (3,), (99,), (5, 0), (7, 3), (3, 7), (99, 4)])
def test_the_number_of_batches_taken_is_how_many_there_are(repeat: bool, counts: tuple[int, ...]) -> None:
    batches = numbered(10, repeat=repeat).batch(1).enumerate()
    for count in counts:
        batches = batches.take(count)
    assert len(batches) == len(list(iter(batches.iter())))
    if not repeat:
        assert len(batches.shard(1, 3)) == sum(1 for _ in batches.shard(1, 3).iter())


def test_a_window_is_judged_once_and_stands_in_the_state() -> None:
    judged = []

    class Noted(bf.FixedSize):
        def plan(self, lengths: Any) -> Any:
            judged.append(len(lengths))
            return super().plan(lengths)

    data = bf.from_sequence([{"input_ids": [0] * (1 + number % 7)} for number in range(3_000)], shuffle=True)
    for source in (data, data.take(2_900), data.shuffle(9), bf.interleave_datasets([data, data])):
        it = source.batch(Noted(4)).iter()
        next(it)
        state = it.state_dict()
        size = state["position"]["windows"]["size"]
        it.close()
        again = source.batch(Noted(4), window=size)
        assert [b["lengths"].tolist() for b in again] == [b["lengths"].tolist() for b in source.batch(Noted(4))]
        assert size > 1
        judged.clear()
        with source.batch(Noted(4)).iter(state) as it:
            list(it)
        assert max(judged) <= size + size // 2, "only windows are planned"


def test_a_window_of_joined_indexes_takes_from_large_blocks_what_it_needs() -> None:
    small, large = numbered(3, 100), numbered(100)
    index = (large + small).stage.index  # type: ignore[attr-defined]
    assert isinstance(index, JoinedIndex)
    block, rows = index.locate(np.array([7, 101, 3]))
    assert block.num_rows == 3
    assert block.take(rows).column("n").to_pylist() == [7, 101, 3]
    block, rows = index.locate(np.array([5, 4]))
    assert block.num_rows == 100, "of one part nothing is copied"
    assert len((large + large.take(3)).stage.index) == 100, "the same rows are there once"  # type: ignore[attr-defined]


def test_lengths_of_joined_indexes() -> None:
    one, two = LengthIndex(np.arange(5)), LengthIndex(np.arange(10, 13))
    index: Index = JoinedIndex((one, two), "concat_datasets", (0, 1))
    assert index.lengths(("x",), True).tolist() == [0, 1, 2, 3, 4, 10, 11, 12]
    assert index.lengths_at(np.array([6, 0, 7, 4]), ("x",), True).tolist() == [11, 0, 12, 4]
    pairs = bf.from_sequence([{"a": [1], "b": [1, 2]}, {"a": [], "b": [3]}])
    both = (pairs + pairs.filter(lambda sample: len(sample["a"]) == 0)).stage.index  # type: ignore[attr-defined]
    assert both.lengths(("a", "b"), True).tolist() == [[1, 2], [0, 1], [0, 1]]
    assert both.lengths_at(np.array([2, 0]), ("a", "b"), True).tolist() == [[0, 1], [1, 2]]
    assert both.lengths_at(np.array([2, 0]), (), False).tolist() == [0, 0]


# -- filters ------------------------------------------------------------------------------------------------------------------


def test_a_filter_asks_once_and_says_what_it_kept(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def noted(sample: dict[str, Any]) -> bool:
        asked.append(sample["n"])
        return even(sample)

    data = numbered(5_000).filter(noted)
    assert not asked
    with caplog.at_level(logging.INFO, "brimful"):
        assert len(data) == 2_500
        assert drawn(data) == drawn(data) == list(range(0, 5_000, 2))
    assert asked == list(range(5_000))
    assert [record.getMessage() for record in caplog.records] == [
        "filter(noted) reads all 5,000 samples once",
        "filter(noted) keeps 2,500 of 5,000 samples",
    ]


def test_a_filtered_source_is_shuffled_as_a_whole_each_epoch() -> None:
    data = numbered(100, shuffle=True, repeat=True).filter(even)
    epochs = [drawn(data.take(150))[start : start + 50] for start in (0, 50, 100)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 100, 2))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9))
def test_by_way_of_concatenations_and_shuffles_it_filters_the_sources(one: int, two: int, size: int) -> None:
    data = (numbered(one) + numbered(two, 100)).shuffle(size)
    found = drawn(data.filter(even))
    assert sorted(found) == [number for number in sorted(drawn(data)) if number % 2 == 0]
    assert found == drawn((numbered(one).filter(even) + numbered(two, 100).filter(even)).shuffle(size))


def test_a_store_that_is_far_away_is_told_of_the_rows_that_are_kept() -> None:
    told: list[np.ndarray[Any, Any]] = []

    class Far(SequenceIndex):
        prefetches = True  # type: ignore[assignment]

        def prefetch_hint(self, sets: Sequence[RowSet]) -> None:
            told.extend(one.rows() for one in sets)

    source = FromSequence(Far([{"n": number} for number in range(300)]), True, 1)
    assert sorted(drawn(dataset_of(source).filter(even))) == list(range(0, 300, 2))
    assert sorted(told[-1].tolist()) == list(range(0, 300, 2))


def test_what_the_function_raises_names_the_row() -> None:
    with pytest.raises(bf.StageError, match=r"^filter\(<lambda>\) failed at sequence, row 4,100: ZeroDivisionError"):
        len(numbered(5_000).filter(lambda sample: 1 / (4_100 - sample["n"]) > 2))


def test_a_random_function_is_refused_with_both_sides_named() -> None:
    def run(seed: int) -> bf.Dataset:
        random = np.random.default_rng(seed)

        def chance(sample: dict[str, Any]) -> bool:
            return bool(random.random() < 0.5)

        return numbered(100).filter(chance)

    it = run(0).iter()
    next(it)
    list(run(0).iter(it.state_dict()))
    with pytest.raises(bf.StateError, match=r"filter\.kept was \d+ when it was saved and is \d+ here"):
        run(1).iter(it.state_dict())
    with pytest.raises(bf.StateError, match=r"filter\.crc32 was \d+ when it was saved and is \d+ here"):
        numbered(4).filter(even).iter(
            numbered(4).filter(lambda sample: not even(sample)).iter().state_dict(), allow="functions"
        )


@pytest.mark.parametrize("count", [1, 10])
def test_a_first_sample_begins_few_epochs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    ordered = FromSequence.ordered
    monkeypatch.setattr(FromSequence, "ordered", lambda *args: begun.append(args[2]) or ordered(*args))
    next(iter(numbered(count, repeat=True, shuffle=True).shuffle(100).stride(8, 0)))
    assert len(begun) < 1_000


def test_what_is_taken_before_a_shuffle_is_the_same_in_each_epoch() -> None:
    rows = [{"x": number} for number in range(300)]

    def epochs(data: bf.Dataset) -> list[list[int]]:
        loader = data.batch(10).loader()
        return [sorted(number for batch in loader for number in batch["x"].tolist()) for _ in range(2)]

    assert epochs(bf.from_sequence(rows).take(10).shuffle(10)) == [[*range(10)]] * 2
    one, two = epochs(bf.from_sequence(rows, shuffle=True).take(10))
    assert one != two, "each is the first ten of its own order"
