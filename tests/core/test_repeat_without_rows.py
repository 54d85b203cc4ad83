from __future__ import annotations

import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
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


def twice(data: bf.Dataset) -> list[bf.Dataset]:
    return [data, data.map(lambda sample: {"y": 1})]


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
    lambda: indexed().take(10**9).stream().filter(none),
    lambda: (
        bf.zip_datasets([indexed().skip(1), bf.from_sequence([{"y": 1}] * 7, repeat=True).skip(1)])
        .stream()
        .filter(none)
    ),
    # what repeats as a whole, and what begins again as a part of something else
    lambda: streamed().filter(none),
    lambda: streamed().filter(none).batch_by_tokens(100),
    lambda: indexed().batch_by_tokens(4, overlong="drop"),
    lambda: bf.interleave_datasets([streamed(), streamed().filter(none)]),
    lambda: bf.interleave_datasets([streamed().enumerate().filter(none), streamed()]),
    lambda: bf.interleave_datasets([streamed(), bf.from_iterable([])], stop="all_repeat"),
    lambda: bf.zip_datasets(twice(streamed().filter(none))),
    lambda: bf.zip_datasets([streamed().skip(1), bf.from_iterable([{"y": 1}], repeat=True).skip(1)]).filter(none),
    # above what holds rows: they have not reached whoever waits
    lambda: streamed().concat_chunk(4, target_columns=["input_ids"]).filter(none),
    lambda: streamed().concat_chunk(400).shuffle(3).filter(none).batch(2),
    lambda: streamed().shuffle(6_000).filter(none),
    lambda: streamed().pack_chunk(4, discard_long_samples=True),
    lambda: streamed().skip(1).pack_chunk(4, discard_long_samples=True).shuffle(5),
    lambda: streamed().skip(1).select("x").map(lambda sample: {"input_ids": []}).concat_chunk(2),
    lambda: streamed().map(dict, max_workers=2).filter(none, max_workers=2).shuffle(100),
    lambda: streamed().filter(none).skip(1).sliding_window(3),
)


@pytest.mark.parametrize("endless", ENDLESS, ids=[str(number) for number in range(len(ENDLESS))])
def test_epochs_without_a_sample_are_an_error_and_no_wait(
    endless: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("brimful").setLevel(logging.WARNING)
    threads = {*threading.enumerate()}
    with (
        endless().iter() as it,
        pytest.raises(
            bf.DataError, match=r"^1,[\d,]+ epochs of \(?from_\w+.* went by without a sample\. The data are empty"
        ),
    ):
        deque(islice(it, 5_000), maxlen=0)
    assert not {*threading.enumerate()} - threads


def test_error_and_warning_name_the_empty_file_of_a_mixture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n' * 3 if name == "a" else "")
    one, empty = (bf.from_files(tmp_path / f"{name}.jsonl", repeat=True) for name in "ab")
    cases: tuple[tuple[bf.Dataset, str], ...] = (
        (bf.interleave_datasets([one, empty]), r"from_files > repeat \(whose first file is .*b\.jsonl\)"),
        (bf.from_iterable([], repeat=True), "from_iterable > repeat"),
        (streamed().filter(none).map(dict, max_workers=2).shuffle(9), r"from_iterable > filter > .* > repeat"),
    )
    for data, name in cases:
        caplog.clear()
        with data.iter() as it, pytest.raises(bf.DataError, match=f"^1,[0-9]+ epochs of {name} went by without a"):
            deque(islice(it, 5_000), maxlen=0)
        said = [record.getMessage() for record in caplog.records if "went by without" in record.getMessage()]
        assert all(re.search(f"epochs of {name} went by", one) for one in said[-1:]), said
        assert said


def test_epochs_of_indexed_data_are_counted_by_the_rows_of_their_sources() -> None:
    seen = 0

    def none_of_them(sample: dict[str, Any]) -> bool:
        nonlocal seen
        seen += 1
        return False

    one, other = (bf.from_sequence([{name: 1}] * 20, shuffle=True, repeat=True).skip(1) for name in "ab")
    mixed = bf.interleave_datasets([one, other])
    for data, rows in ((bf.zip_datasets([one, other]), 20), (mixed, 40), (one.stride(3, 0), 20), (one.take(10**9), 20)):
        seen = 0
        with pytest.raises(bf.DataError):
            data.stream().filter(none_of_them).peek(1)
        assert 999 * rows <= seen < 1_300 * rows


@pytest.mark.parametrize("read", ["peek", "cache", "to_store", "plans", "shapes", "loader", "column names"])
def test_whoever_reads_is_told(read: str, tmp_path: Path) -> None:
    def rows() -> bf.Dataset:
        return streamed().skip(1).filter(none)

    readers: dict[str, Callable[[], Any]] = {
        "peek": lambda: rows().peek(1),
        "cache": lambda: len(rows().take(5).cache()),
        "to_store": lambda: rows().take(5).to_store(tmp_path / "store", version="1"),
        "plans": lambda: list(rows().batch(2).plans()),
        "shapes": lambda: rows().take(5).batch(2).shapes(),
        "loader": lambda: list(streamed().filter(none).batch(2).loader(steps_per_epoch=3)),
        "column names": lambda: bf.interleave_datasets([rows(), rows()]).filter(none).peek(1),
    }
    with pytest.raises(bf.DataError, match=r"^1,\d+ epochs of from_iterable .* went by without a sample"):
        readers[read]()


HONEST: dict[str, tuple[Callable[[], Any], int]] = {
    "few chunks an epoch": (lambda: few(100).concat_chunk(90).shuffle(4), 1_500),
    "a chunk longer than a thousand epochs": (lambda: few(1).concat_chunk(1_500), 2),
    "a window of more than a thousand epochs": (lambda: few(2).concat_chunk(20).shuffle(120), 130),
    "read ahead of a window": (lambda: few(2).skip(1).shuffle(1_200).filter(lambda sample: sample["x"] == 1), 700),
    "packs": (lambda: few(1).skip(1).pack_chunk(1_200), 2),
    "neighbours": (lambda: few(1).skip(1).sliding_window(1_200), 2),
    "workers ahead": (lambda: few(1).skip(1).map(dict, max_workers=2).shuffle(600), 700),
    "batches": (lambda: few(1).concat_chunk(30).batch_by_tokens(300, window=50).take(6), 6),
    "packed batches": (lambda: few(1).concat_chunk(30).pack(90, window=50).take(6), 6),
    "a source that is seldom due": (lambda: bf.interleave_datasets([few(2), few(1)], weights=[2_500, 1]), 6_000),
}


def few(count: int) -> bf.Dataset:
    return bf.from_iterable([{"input_ids": [1], "x": number} for number in range(count)], repeat=True)


@pytest.mark.parametrize("name", HONEST)
def test_data_that_give_few_rows_an_epoch_go_on_without_an_alarm(name: str, caplog: pytest.LogCaptureFixture) -> None:
    made, count = HONEST[name]
    assert sum(1 for _ in islice(made(), count)) == count
    assert not caplog.records


def test_the_error_comes_at_the_same_place_however_much_is_read_ahead() -> None:
    def until_none(sample: dict[str, Any]) -> bool:
        return bool(sample["number"] < 25)

    for prefetch in (0, 1, 8):
        taken: list[Any] = []
        data = few(2).enumerate(count_column="number").map(dict, max_workers=prefetch).filter(until_none)
        with data.shuffle(10).iter() as it, pytest.raises(bf.DataError) as error:
            deque(map(taken.append, it), maxlen=0)
        assert len(taken) == 20
        assert str(error.value).startswith("1,0")


def test_a_rare_sample_is_waited_for() -> None:
    def seldom(sample: dict[str, Any]) -> bool:
        seen.append(1)
        return len(seen) % 6_001 == 0

    for data in (indexed().skip(1).stream(), streamed().skip(1)):
        seen: list[int] = []
        assert len(list(data.filter(seldom).take(4))) == 4, "600 epochs of 10 rows lie between two of them"


@pytest.mark.parametrize("in_between", [dict, None], ids=["map", ""])
def test_rows_that_are_counted_and_passed_over_are_no_empty_epochs(in_between: Any) -> None:
    """One row an epoch: what counts on over epochs needs thousands of them."""
    data = bf.from_iterable([{"x": 1}], repeat=True)
    data = data if in_between is None else data.map(in_between)
    assert len(list(data.skip(2_500).take(3))) == 3
    assert len(list(data.stride(1_500, 1).take(2))) == 2
    assert len(list(data.skip(1_200).stride(1_200, 7).batch(2).take(1))) == 1
    with data.skip(1_500).iter() as it:
        next(it)
        state = json.loads(json.dumps(it.state_dict()))
    assert len(list(islice(data.skip(1_500).iter(state), 3))) == 3


@pytest.mark.parametrize(
    "endless",
    [
        lambda: streamed().filter(none).skip(10**9),
        lambda: streamed().filter(none).stride(10**9, 3),
        lambda: streamed().skip(25).filter(none),
        lambda: streamed().stride(7, 3).filter(none).batch(2),
        lambda: streamed().skip(25).stride(3, 0).filter(none).shuffle(4),
    ],
    ids=[*"abcde"],
)
def test_what_is_counted_does_not_hide_empty_epochs(endless: Callable[[], Any]) -> None:
    with pytest.raises(bf.DataError, match=r"^1,\d\d\d epochs of .* went by without a sample"):
        next(endless().iter())
