"""One run over a pipeline: from wherever it was saved, whatever runs in the background, and whatever goes wrong."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core import iterator
from brimful.core.header import header_of
from brimful.core.run import JOIN_SECONDS
from brimful.core.stats import Stats
from brimful.tables.blocks import Sample
from brimful.testing import first_difference
from tests import strategies as draw
from tests.effort import examples

LENGTHS = [3, 0, 5, 1, 12, 2, 2, 7, 0, 1, 4, 6, 3, 3, 1, 8, 2, 5, 0, 2]
ROWS = draw.samples_of(LENGTHS)


def shards(extension: str = ".jsonl", count: int = 4) -> list[str]:
    return [draw.shard(draw.json_lines(ROWS[number::count]), extension) for number in range(count)]


def streamed(**settings: Any) -> bf.Dataset:
    return bf.from_files(shards(".jsonl.gz"), n_active_shards=2, **settings).tokenize(draw.letters).shuffle(6)


PIPELINES: dict[str, Callable[[bool], bf.Dataset | bf.Batches]] = {
    "samples of a sequence": lambda repeat: bf.from_sequence(ROWS, shuffle=True, repeat=repeat),
    "samples of files": lambda repeat: streamed(repeat=repeat),
    "batches of a sequence": lambda repeat: bf.from_sequence(ROWS, repeat=repeat).batch_by_tokens(16, window=8),
    "batches of files": lambda repeat: streamed(repeat=repeat).batch_by_tokens(16, window=8).prefetch(2),
}


def taken(it: Iterator[Any], count: int | None = None) -> list[Any]:
    return list(islice(it, count))


def same(found: Any, expected: Any) -> None:
    difference = first_difference(found, expected)
    assert difference is None, difference


# -- where a run is resumed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_resume_at_the_start_inside_at_the_end_and_after_it(pipeline: Any) -> None:
    everything = taken(pipeline(False).iter())
    for count in (0, 1, len(everything) // 2, len(everything) - 1, len(everything)):
        it = pipeline(False).iter()
        same(taken(it, count), everything[:count])
        same(taken(pipeline(False).iter(json.loads(json.dumps(it.state_dict())))), everything[count:])
    assert next(it, None) is None
    assert taken(pipeline(False).iter(it.state_dict())) == [], "a state taken after the end"


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_resume_at_the_end_of_an_epoch_goes_on_with_the_next(pipeline: Any) -> None:
    epoch = len(taken(pipeline(False).iter()))
    everything = taken(pipeline(True).iter(), 3 * epoch)
    for count in (epoch - 1, epoch, epoch + 1, 2 * epoch):
        it = pipeline(True).iter()
        taken(it, count)
        same(
            taken(pipeline(True).iter(json.loads(json.dumps(it.state_dict()))), epoch),
            everything[count : count + epoch],
        )
        it.close()


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_one_state_restored_twice_gives_the_same_and_stays_as_it_is(pipeline: Any) -> None:
    it = pipeline(False).iter()
    taken(it, 3)
    state = it.state_dict()
    text = json.dumps(state)
    one, two = pipeline(False).iter(state), pipeline(False).iter(state)
    first = next(one), next(one)
    same(first, (next(two), next(two)))
    assert json.dumps(state) == text
    for part in ("position", "header"):
        state[part].clear()
    assert json.dumps(it.state_dict()) == text, "the iterator has kept a part of the state that it gave"
    same(taken(one), taken(two))


def test_a_repeated_shuffled_stream_has_another_order_each_epoch(tmp_path: Path) -> None:
    ids = [{"id": number} for number in range(40)]
    urls = [draw.shard(draw.json_lines(ids[number : number + 1]), ".jsonl") for number in range(40)]
    streams = {
        "sequence": bf.from_sequence(ids, shuffle=True, repeat=True),
        "shuffle of a sequence": bf.from_sequence(ids, repeat=True).shuffle(40),
        "shuffle of a stream": bf.from_iterable(ids, repeat=True).shuffle(40),
        "shards": bf.from_files(urls, shuffle_shards=True, n_active_shards=1, repeat=True),
    }
    for name, stream in streams.items():
        order = [sample["id"] for sample in islice(stream, 120)]
        epochs = [order[:40], order[40:80], order[80:]]
        assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3, name
        assert len({tuple(epoch) for epoch in epochs} | {tuple(range(40))}) == 4, f"{name}: {epochs}"
    lengths = [{"input_ids": [0] * (number + 1)} for number in range(20)]
    batches = bf.from_sequence(lengths, repeat=True).batch(1, window=20)
    order = [int(batch["lengths"][0]) for batch in islice(batches, 60)]
    assert len({tuple(order[:20]), tuple(order[20:40]), tuple(order[40:])}) == 3


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_two_shuffles_with_one_seed_differ(source: Any) -> None:
    rows = [{"id": number} for number in range(20)]
    once = [sample["id"] for sample in source(rows).shuffle(20)]
    twice = [sample["id"] for sample in source(rows).shuffle(20).shuffle(20)]
    assert sorted(once) == sorted(twice) == list(range(20))
    assert [once.index(number) for number in twice] != once


def drawn(sample: Any, rng: Any) -> Any:
    return sample | {"drawn": int(rng.integers(1 << 40))}


ORDERS: dict[str, Any] = {
    "shuffle": lambda data: data.shuffle(20),
    "pack": lambda data: data.pack(16, rows=2, window=20),
    "batch": lambda data: data.batch(3, window=12),
    "a seeded function": lambda data: data.map(drawn, seed=7).batch(2),
}
BETWEEN: dict[str, Any] = {
    "map": lambda data: data.map(dict),
    "skip": lambda data: data.skip(0),
    "filter": lambda data: data.filter(bool),
    "stream": lambda data: data.stream(),
    "concat": lambda data: data + data.filter(lambda sample: False),
}


@pytest.mark.parametrize("ordered", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_what_draws_no_random_numbers_changes_no_order_above_it(source: Any, between: Any, ordered: Any) -> None:
    rows = [{"id": number, "input_ids": [number] * (1 + number * 7 % 11)} for number in range(60)]

    def seen(data: Any) -> list[str]:
        kept = ("id", "input_ids", "labels", "drawn")
        return [str({name: batch[name].tolist() for name in kept if name in batch}) for batch in data]

    data = source(rows).stream()
    once, later = ordered(data), ordered(between(data))
    if isinstance(once, bf.Batches):
        assert seen(once) == seen(later)
    else:
        assert [sample["id"] for sample in once] == [sample["id"] for sample in later]


def test_what_comes_last_in_a_row_of_data_sets_may_repeat() -> None:
    data = bf.from_sequence(["a", "b"]) + bf.from_sequence(["c", "d"], repeat=True)
    assert "".join(sample["text"] for sample in islice(data, 8)) == "abcdcdcd"
    with pytest.raises(
        ValueError, match=r"^data set 0 repeats without end, so no data set after it is reached\. Repeat only"
    ):
        bf.from_sequence(["a"], repeat=True) + data


def never(sample: Sample) -> bool:
    return False


@pytest.mark.parametrize(
    "data",
    [
        bf.from_sequence([], repeat=True),
        bf.from_iterable([], repeat=True),
        bf.from_files([draw.shard(b"", ".jsonl"), draw.shard(b"\n\n", ".jsonl.gz")], repeat=True),
        bf.from_sequence(ROWS, repeat=True).filter(never),
        bf.from_iterable(ROWS, repeat=True).filter(never).shuffle(3),
        bf.from_sequence(ROWS, repeat=True).filter(never).batch(2),
        bf.from_iterable([], repeat=True).batch_by_tokens(8).prefetch(1),
    ],
    ids=repr,
)
def test_repeat_over_nothing_is_an_error_that_names_the_data(data: Any) -> None:
    source = str(header_of(data.stage)[0]["verb"])
    with pytest.raises(bf.DataError, match=rf"^(1,000 epochs of )?{source}.*(no sample|without a sample)"):
        list(data)


# -- what runs in the background -------------------------------------------------------------------------------------------


@given(
    standby=st.integers(0, 3),
    workers=st.integers(0, 3),
    ahead=st.integers(1, 4),
    timeout=st.sampled_from([5.0, 60.0]),
    rows=st.integers(1, 5),
)
@examples(15)
def test_what_runs_in_the_background_changes_neither_items_nor_states(
    standby: int, workers: int, ahead: int, timeout: float, rows: int
) -> None:
    def run(standby: int, workers: int, ahead: int, timeout: float) -> list[Any]:
        data = bf.from_files(shards(), n_active_shards=2, n_standby_shards=standby, timeout_seconds=timeout)
        batches = data.tokenize(draw.letters, max_workers=workers).shuffle(6).batch_by_tokens(16, window=8)
        with (batches.prefetch(ahead) if ahead else batches).iter() as it:
            return [(batch, it.state_dict()) for batch in it]

    with draw.small(rows):
        same(run(standby, workers, ahead, timeout), run(0, 0, 0, 60.0))


# -- what goes wrong -------------------------------------------------------------------------------------------------------


class Once:
    """Fails the first time that it meets a number, without an error never."""

    def __init__(self, error: BaseException | None, at: int) -> None:
        self.error, self.at, self.met = error, at, error is None

    def __call__(self, sample: Sample) -> Sample:
        if sample["id"] == self.at and not self.met:
            self.met = True
            assert self.error
            raise self.error
        return sample

    def on_texts(self, texts: list[str]) -> list[list[int]]:
        if ROWS[self.at]["text"] in texts and not self.met:
            self.met = True
            assert self.error
            raise self.error
        return draw.letters(texts)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("window", [None, 5])
def test_ctrl_c_leaves_a_state_and_the_iterator_goes_on(ahead: int, window: int | None) -> None:
    def batches(error: BaseException | None) -> bf.Batches:
        made = bf.from_iterable(ROWS).map(Once(error, 11)).batch(2, window=window)
        return made.prefetch(ahead) if ahead else made

    with draw.small(3):
        expected = list(batches(None))
        it = batches(KeyboardInterrupt()).iter()
        found: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(it)
        state = it.state_dict()
        same(found + list(batches(None).iter(state)), expected)
        same(found + list(it), expected)


def test_ctrl_c_while_an_item_is_handed_out_loses_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    took = Stats.took

    def touchy(stats: Stats, item: Any) -> None:
        took(stats, item)
        if next(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Stats, "took", touchy)
    it = bf.from_sequence(ROWS).batch(2).iter()
    found: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(it)
    assert len(found) == 3
    found.extend(it)
    assert [number for batch in found for number in batch["id"].tolist()] == list(range(len(ROWS)))


def test_ctrl_c_in_a_tokenizer_of_another_thread() -> None:
    texts = [row for row in ROWS if len(row["text"]) > 2]
    once = Once(KeyboardInterrupt(), 11)
    with draw.small(2):
        expected = list(bf.from_iterable(texts).tokenize(draw.letters))
        it = bf.from_iterable(texts).tokenize(once.on_texts).iter()
        found: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(it)
        same(found + list(it), expected)


class Slow:
    """Rows of which some come with a Ctrl-C for the main thread, which waits for them."""

    def __init__(self, at: set[int]) -> None:
        self.left = set(at)

    def __iter__(self) -> Iterator[Sample]:
        for row in ROWS:
            if row["id"] in self.left:
                self.left.remove(row["id"])
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
            yield row


@pytest.mark.parametrize("at", [{4, 9, 15}, {9, 10, 11}], ids=["apart", "while the first is handled"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_real_ctrl_c_loses_no_sample(ahead: bool, at: set[int]) -> None:
    with draw.small(2):
        batches = bf.from_iterable(Slow(at)).batch(1)
        it = (batches.prefetch(1) if ahead else batches).iter()
        found, interrupts = [], 0
        while True:
            try:
                found.append(int(next(it)["id"][0]))
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
    assert interrupts >= 1
    assert found == [row["id"] for row in ROWS]


def test_an_exception_breaks_the_iterator_for_ever() -> None:
    url = draw.shard(draw.json_lines(ROWS), ".jsonl")
    with draw.small(4):
        it = bf.from_files(url).map(Once(ValueError("no eight"), 7)).iter()
        assert len(taken(it, 4)) == 4
        name = os.path.basename(url)
        with pytest.raises(bf.StageError, match=rf"^map\(Once\) failed at shard {name}, line 8: ValueError: no eight$"):
            taken(it)
        for _ in range(2):
            with pytest.raises(bf.BrokenError, match=r"^this iterator failed earlier: map.*no eight"):
                next(it)
        it.close()
        with pytest.raises(bf.BrokenError):
            next(it)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("window", [None, 5])
def test_after_an_error_the_state_is_the_place_after_the_last_item_taken(ahead: int, window: int | None) -> None:
    def batches(error: BaseException | None) -> bf.Batches:
        made = bf.from_iterable(ROWS).map(Once(error, 11)).batch(2, window=window)
        return made.prefetch(ahead) if ahead else made

    with draw.small(3):
        it = batches(ValueError("no twelve")).iter()
        found: list[Any] = []
        with pytest.raises(bf.StageError):
            found.extend(it)
        with pytest.raises(bf.BrokenError):
            next(it)
        same(found + list(batches(None).iter(json.loads(json.dumps(it.state_dict())))), list(batches(None)))


def stop(*args: Any) -> Any:
    raise StopIteration("of the user's own")


def stopping(file: Any) -> Iterator[Sample]:
    yield from ROWS[:3]
    stop()


WITH_STOP: dict[str, Callable[[], Any]] = {
    "map": lambda: bf.from_sequence(ROWS).map(stop),
    "seeded map": lambda: bf.from_sequence(ROWS).map(stop, seed=1),
    "filter": lambda: bf.from_iterable(ROWS).filter(stop),
    "filter_map": lambda: bf.from_sequence(ROWS).filter_map(stop),
    "flat_map": lambda: bf.from_sequence(ROWS).flat_map(stop),
    "generator of flat_map": lambda: bf.from_sequence(ROWS).flat_map(stopping),
    "map_blocks": lambda: bf.from_sequence(ROWS).map_blocks(stop),
    "tokenize": lambda: bf.from_sequence(ROWS).tokenize(stop),
    "tokenize in line": lambda: bf.from_sequence(ROWS).tokenize(stop, max_workers=0),
    "iterable": lambda: bf.from_iterable(Stopping()),
    "format": lambda: bf.from_files(shards(), format=stop),
    "generator of format": lambda: bf.from_files(shards(), format=stopping),
    "key": lambda: bf.from_sequence(ROWS).batch_by(2, stop),
    "boundary_key": lambda: bf.from_sequence(ROWS).batch_by(2, draw.length, boundary_key=stop),
    "batch_size": lambda: bf.from_sequence(ROWS).batch_by(stop, draw.length),
    "collate_fn": lambda: bf.from_sequence(ROWS).batch(2, collate_fn=stop),
    "plan": lambda: bf.from_sequence(ROWS).batch(StoppingPolicy(), window=4),
    "tokenize, prefetched": lambda: bf.from_sequence(ROWS).tokenize(stop).batch(2).prefetch(2),
    "get of a batch": lambda: bf.from_sequence(ROWS).batch(2, collate_fn=lambda samples: StoppingMapping()),
    "map of batches": lambda: bf.from_sequence(ROWS).batch(2).map(stop),
    "map of batches, prefetched": lambda: bf.from_sequence(ROWS).batch(2).map(stop).prefetch(2),
}


class StoppingPolicy:
    max_length = None

    def plan(self, lengths: Any) -> Any:
        stop()


class StoppingMapping(dict[str, Any]):
    get = stop


class Stopping:
    def __iter__(self) -> Iterator[Sample]:
        return stopping(None)


@pytest.mark.parametrize("make", WITH_STOP.values(), ids=WITH_STOP)
def test_a_stop_iteration_of_user_code_is_an_error_not_an_end(make: Any) -> None:
    it = make().iter()
    with pytest.raises((RuntimeError, bf.DataError)):
        taken(it)
    with pytest.raises(bf.BrokenError):
        next(it)


def test_a_stop_iteration_before_the_first_item_is_an_error_too() -> None:
    message = (
        r"^a function or an object of yours raised StopIteration \(of the user's own\), which is no end of the data$"
    )
    with pytest.raises(RuntimeError, match=message):
        bf.from_sequence(ROWS).batch(StoppingPolicy()).iter()


def test_a_none_among_the_samples_is_an_error_not_an_end() -> None:
    with draw.small(2):
        for place in range(4):
            rows: list[Any] = [*ROWS[:place], None, *ROWS[place:]]
            with pytest.raises(
                (TypeError, bf.StageError),
                match=r"a sample must be a dict, a string or a list of token ids \(got NoneType\)",
            ):
                list(bf.from_iterable(rows))


def test_an_error_comes_after_the_rows_before_it() -> None:
    lines = draw.json_lines(ROWS[:7]) + b"{bad}\n"
    for workers in (0, 2):
        with draw.small(2, 64):
            it = bf.from_files(draw.shard(lines, ".jsonl")).tokenize(draw.letters, max_workers=workers).iter()
            found: list[Any] = []
            with pytest.raises(bf.DataError, match=r"line 8: "):
                found.extend(it)
            assert [sample["id"] for sample in found] == list(range(7))


# -- what is left behind -----------------------------------------------------------------------------------------------------


def open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if name.startswith(str(draw.folder())):
            found.add(name)
    return found


def background() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("brimful")]


def everything() -> bf.Batches:
    """All that reads, or works, in the background."""
    data = bf.from_files(
        shards(".jsonl.gz", 8) + shards(".jsonl", 3), n_active_shards=3, n_standby_shards=2, repeat=True
    )
    return data.tokenize(draw.letters, max_workers=2).shuffle(4).batch_by_tokens(16, window=4).prefetch(2)


def closed(it: bf.core.iterator.ResumableIterator[Any]) -> None:
    it.close()


def dropped(it: bf.core.iterator.ResumableIterator[Any]) -> None:
    pass


def left(it: bf.core.iterator.ResumableIterator[Any]) -> None:
    with it:
        next(it)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks Linux which files are open")
@pytest.mark.parametrize("end", [closed, dropped, left])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_nothing_is_left_behind(end: Any, count: int) -> None:
    it = everything().iter()
    taken(it, count)
    assert count == 0 or background()
    end(it)
    del it
    nothing_is_left()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_behind_by_an_error(error: type[BaseException]) -> None:
    it = bf.from_files(shards(".jsonl.gz")).map(Once(error(), 9)).shuffle(3).batch(2).prefetch(2).iter()
    with pytest.raises((bf.StageError, KeyboardInterrupt)):
        taken(it)
    nothing_is_left()


@pytest.mark.parametrize("format", [stop, stopping])
def test_nothing_is_left_behind_by_an_error_of_a_format(format: Any) -> None:
    with pytest.raises((RuntimeError, bf.DataError)):
        list(bf.from_files(shards(), format=format))
    nothing_is_left()


def test_nothing_is_left_behind_by_a_full_run() -> None:
    assert len(list(everything().take(40))) == 40
    list(bf.from_files(shards(".jsonl.gz")).shuffle(3).batch(2).prefetch(2))
    nothing_is_left()


def nothing_is_left() -> None:
    gc.collect()
    until = time.monotonic() + 3
    while (background() or open_files()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not background()
    assert not open_files()


def test_close_ends_the_run_and_keeps_the_state() -> None:
    it = streamed().iter()
    some = taken(it, 5)
    it.close()
    with pytest.raises(bf.BrokenError, match="closed before its end"):
        next(it)
    same(some + taken(streamed().iter(it.state_dict())), taken(streamed().iter()))


CLOSED_BY: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "map": lambda close: bf.from_iterable(ROWS).map(close),
    "map in a thread": lambda close: bf.from_iterable(ROWS).map(close).batch(2, window=4).prefetch(2),
    "tokenize in threads": lambda close: bf.from_files(shards()).tokenize(close, max_workers=2).batch(2).prefetch(1),
    "collate_fn": lambda close: bf.from_iterable(ROWS).batch(2, collate_fn=close),
    "collate_fn in a thread": lambda close: bf.from_iterable(ROWS).batch(2, collate_fn=close).prefetch(1),
    "map of batches": lambda close: bf.from_iterable(ROWS).batch(2).map(close),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", CLOSED_BY.values(), ids=CLOSED_BY)
def test_a_function_that_the_run_calls_may_close_it(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls = itertools.count()

    def close(given: Any) -> Any:
        if next(calls) == 3:
            it.close()
            assert it.state_dict()["position"] is not None
        return draw.letters(given) if isinstance(given, list) and isinstance(given[0], str) else given

    def calm(given: Any) -> Any:
        return draw.letters(given) if isinstance(given, list) and isinstance(given[0], str) else given

    calm.__name__, calm.__qualname__ = close.__name__, close.__qualname__  # states know functions by their names
    with draw.small(2):
        expected = taken(make(calm).iter())
        it = make(close).iter()
        began = time.monotonic()
        found = taken(it)
        assert len(found) < len(expected)
        assert next(it, None) is None
        assert time.monotonic() - began < JOIN_SECONDS, "somebody waited for itself"
        nothing_is_left()
        same(found + taken(make(calm).iter(it.state_dict())), expected)
    assert [said for said in caplog.messages if "has no label" not in said] == [], "some rows are empty, which is said"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ahead", [False, True])
def test_another_thread_may_close_what_is_waited_for(ahead: bool) -> None:
    come, go_on = threading.Event(), threading.Event()

    def slow(sample: Sample) -> Sample:
        if sample["id"] == 4:
            come.set()
            go_on.wait(10)
        return sample

    with draw.small(1):
        data = bf.from_iterable(ROWS).map(slow).batch(1, window=1)
        it = (data.prefetch(1) if ahead else data).iter()

        def close() -> None:
            come.wait(10)
            threading.Timer(0.1, go_on.set).start()
            it.close()

        closer = threading.Thread(target=close)
        closer.start()
        found = [batch["id"].tolist() for batch in it]
        closer.join()
        assert found == [[number] for number in range(len(found))]
        assert len(found) <= 4
        nothing_is_left()
        rest = [batch["id"].tolist() for batch in data.iter(it.state_dict())]
    assert found + rest == [[number] for number in range(len(ROWS))]


def test_a_second_thread_is_told_and_does_no_harm() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(sample: Sample) -> Sample:
        if sample["id"] == 3:
            inside.set()
            assert go_on.wait(10)
        return sample

    with draw.small(1):
        it = bf.from_iterable(ROWS).map(slow).batch(1, window=1).iter()
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(it))
        reader.start()
        assert inside.wait(10)
        with pytest.raises(
            RuntimeError, match=r"^this iterator is in use: another thread .*; give each thread an iterator"
        ):
            next(it)
        count, rest = len(found), bf.from_iterable(ROWS).map(slow).batch(1, window=1).iter(it.state_dict())
        go_on.set()
        reader.join()
        assert [batch["id"].tolist() for batch in found] == [[number] for number in range(len(ROWS))]
        assert [batch["id"].tolist() for batch in rest] == [[number] for number in range(count, len(ROWS))]


def test_a_function_may_not_call_next_of_the_run_that_calls_it() -> None:
    it = bf.from_iterable(ROWS).map(lambda sample: next(it)).iter()
    with pytest.raises(bf.StageError, match="RuntimeError: this iterator is in use: "):
        next(it)


def test_a_thread_may_ask_for_states_while_another_one_reads() -> None:
    with draw.small(1):
        data = bf.from_iterable(ROWS * 20).map(dict).batch(2, window=4).prefetch(1)
        expected = [batch["id"].tolist() for batch in data]
        it = data.iter()
        states: list[Any] = []
        reading = threading.Event()

        def asked() -> None:
            while not reading.is_set():
                states.append(it.state_dict())

        asking = threading.Thread(target=asked)
        asking.start()
        assert [batch["id"].tolist() for batch in it] == expected
        reading.set()
        asking.join()
    for state in states[:: max(1, len(states) // 5)]:
        rest = [batch["id"].tolist() for batch in data.iter(state)]
        assert rest == expected[len(expected) - len(rest) :]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_iterator_is_not_copied(how: Callable[[Any], Any]) -> None:
    it = bf.from_sequence(ROWS).iter()
    with pytest.raises(TypeError, match=r"^an iterator cannot be copied or pickled: .* save its state_dict\(\)"):
        how(it)


def test_arrays_are_the_callers_own() -> None:
    it = bf.from_sequence([{"input_ids": [1, 2]}] * 2, repeat=True).iter()
    for _ in range(4):
        sample = next(it)
        assert sample["input_ids"].tolist() == [1, 2]
        sample["input_ids"] += np.int64(5)


def test_an_iterator_that_was_closed_before_its_end_says_so() -> None:
    data = bf.from_sequence(["a", "b", "c"])
    it = data.iter()
    next(it)
    it.close()
    message = r"^this iterator was closed before its end; go on with a new one: iter\(state\), with"
    for _ in range(2):
        with pytest.raises(bf.BrokenError, match=message):
            next(it)
    with pytest.raises(bf.BrokenError, match=message):
        list(it)
    assert [sample["text"] for sample in data.iter(it.state_dict())] == ["b", "c"]


def test_an_iterator_that_came_to_its_end_stays_there_when_it_is_closed() -> None:
    for data in (bf.from_sequence(["a"]), bf.from_sequence([]), bf.from_sequence(["a"]).filter(lambda sample: False)):
        with data.iter() as it:
            list(it)
        assert list(it) == []
        it.close()
        assert next(it, None) is None


def test_loops_that_are_left_and_generators_that_are_closed_end_without_an_error() -> None:
    def rows() -> Any:
        with bf.from_sequence(["a", "b"]).iter() as it:
            yield from it

    running = rows()
    next(running)
    running.close()
    with bf.from_sequence(["a", "b"]).iter() as it:
        for _ in it:
            break


def test_an_empty_dict_is_no_state() -> None:
    batches = bf.from_sequence(["a"]).batch(1)
    with pytest.raises(bf.StateError, match=r"\(got an empty dict\); None begins at the start$"):
        batches.iter({})
    with pytest.raises(bf.StateError, match=r"\(got an empty dict\); without one it begins at the start$"):
        batches.loader().load_state_dict({})


# -- closed from inside ----------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What `close` waits for, in slices."""
    found: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, perf_counter=time.perf_counter, sleep=found.append)
    monkeypatch.setattr(iterator, "time", clock)
    return found


@pytest.mark.parametrize("kind", ["streams", "mixture", "files"])
def test_a_function_in_a_worker_closes_its_iterator_and_waits_for_nobody(
    kind: str, tmp_path: Path, waits: list[float]
) -> None:
    for shard in range(2):
        (tmp_path / f"{shard}.jsonl").write_text("".join(f'{{"id": {row}}}\n' for row in range(60)))
    files = bf.from_files(str(tmp_path / "*.jsonl"), streams=2 if kind == "streams" else None)
    data = bf.interleave_datasets([files, files]) if kind == "mixture" else files
    box: list[Any] = []

    def closes(sample: Any) -> Any:
        if box and sample["id"] % 10 == 3:
            box.pop().close()
        return sample

    it = data.map(closes, max_workers=2).iter()
    box.append(it)
    assert len(list(it)) < 120
    assert waits == []


def test_a_run_that_is_closed_inside_another_takes_only_itself_away(waits: list[float]) -> None:
    plans = bf.from_sequence([[1]] * 50).batch(4).plans()
    next(plans)

    def closes(sample: Any) -> Any:
        if sample["i"] == 30:
            plans.close()  # type: ignore[attr-defined]
            it.close()
        return sample

    it = bf.from_sequence([{"i": number} for number in range(50)]).map(closes).iter()
    assert len(list(it)) < 50
    assert waits == []
