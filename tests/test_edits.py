"""A row is edited, and keeps its size, after a state was saved. The resume is refused, or nothing that it gives is wrong.

It is refused in the open window. In rows that are not read again it goes on, as the docs say.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.plan.window import window_ends
from brimful.tables import checksums
from tests import strategies as draw
from tests.effort import examples

Sample = dict[str, Any]
Chain = Callable[[bf.Dataset], Any]
FIELDS: Final = ("mark", "text", "ids")


def row(number: int) -> Sample:
    size = 1 + number % 4
    return {"id": number, "mark": number % 9, "text": "ab" * size, "ids": [number % 7] * size}


def edited(number: int, field: str, place: int) -> Sample:
    """A row of which one value is another one, of the same size."""
    one = row(number)
    if field == "mark":
        return one | {"mark": 9}
    if field == "text":
        at = place % len(one["text"])
        return one | {"text": one["text"][:at] + "z" + one["text"][at + 1 :]}
    ids = [*one["ids"]]
    ids[place % len(ids)] = 9
    return one | {"ids": ids}


def write(path: Path, rows: list[Sample]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def same(sample: Sample) -> Sample:
    return sample


def twice(sample: Sample) -> list[Sample]:
    return [sample, sample]


def of_some(sample: Sample) -> bool:
    return bool(sample["id"] % 3)


def with_tokens(data: bf.Dataset) -> bf.Dataset:
    """Its tokens are those of the text, and then the ids: an edit of either is one of them."""
    return data.tokenize(draw.letters, output_column="letters").map(
        lambda sample: {"input_ids": [*sample["letters"], *sample["ids"], sample["mark"]], "id": sample["id"]}
    )


LINKS: Final[list[Chain]] = [
    lambda data: data.map(same),
    lambda data: data.filter(of_some),
    lambda data: data.flat_map(twice),
    lambda data: data.shuffle(5),
    lambda data: data.take(25),
    lambda data: data.skip(3),
    lambda data: bf.interleave_datasets([data, data.map(same)], weights=[2, 1]),
    lambda data: bf.zip_datasets([data, data.select("mark").rename({"mark": "other"})]),
    lambda data: bf.concat_datasets([data.take(7), data]),
    lambda data: data.enumerate(count_column="n"),
]
ENDS: Final[list[Chain]] = [
    lambda data: data,
    lambda data: data.shuffle(7),
    lambda data: data.select(["id", "mark"]).sliding_window(3),
    lambda data: with_tokens(data).concat_chunk(6),
    lambda data: with_tokens(data).pack_chunk(16),
    lambda data: with_tokens(data).batch(3, window=8),
    lambda data: with_tokens(data).batch_by_tokens(40, window=9),
    lambda data: with_tokens(data).pack(24, window=9),
    lambda data: with_tokens(data).concat_chunk(6).shuffle(4).batch(2, window=6),
]


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items()}
    return item.tolist() if hasattr(item, "tolist") else item


def items(it: Any) -> list[Any]:
    with it:
        return [plain(item) for item in it]


def refused_or(data: Any, state: Any) -> list[Any] | None:
    """The items that follow a state; None where it is refused, for the right reason."""
    try:
        return items(data.iter(state))
    except bf.StateError as error:
        if "gave other rows" not in str(error):
            raise
        return None


@examples(30)
@given(
    st.lists(st.sampled_from(LINKS), max_size=2, unique=True),
    st.sampled_from(ENDS),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 29), st.sampled_from(FIELDS), st.integers(0, 9)), min_size=1, max_size=6),
    st.sampled_from([3, 4096]),
)
def test_an_edit_is_refused_or_nothing_of_what_follows_is_wrong(
    links: list[Chain], end: Chain, taken: int, edits: list[tuple[int, str, int]], size: int
) -> None:
    rows = [row(number) for number in range(30)]

    def run(url: str) -> Any:
        data = bf.from_files(url, n_active_shards=1)
        for link in links:
            data = link(data)
        return end(data)

    path = draw.folder() / "edits.jsonl"
    with draw.small(size):
        with run(write(path, rows)).iter() as it:
            first = [plain(item) for item in itertools.islice(it, taken)]
            state = json.loads(json.dumps(it.state_dict()))
        for number, field, place in edits:
            write(path, [*rows[:number], edited(number, field, place), *rows[number + 1 :]])
            found = refused_or(run(str(path)), state)
            if found is None:
                continue
            whole = items(run(str(path)).iter())
            assert found == whole[len(first) :]


@examples(30)
@given(
    st.integers(4, 12),
    st.integers(1, 4),
    st.integers(0, 29),
    st.lists(st.tuples(st.integers(0, 29), st.sampled_from(FIELDS), st.integers(0, 9)), min_size=1, max_size=5),
    st.sampled_from(["shuffle", "shuffle, then batch", "batch", "pack"]),
    st.sampled_from([3, 4096]),
)
def test_an_edit_in_the_open_window_is_found_and_one_behind_it_is_not(
    window: int, each: int, taken: int, edits: list[tuple[int, str, int]], how: str, size: int
) -> None:
    rows = [row(number) for number in range(30)]

    def run(url: str) -> Any:
        data = with_tokens(bf.from_files(url, n_active_shards=1))
        if how.startswith("shuffle"):
            shuffled = data.shuffle(window)
            return shuffled if how == "shuffle" else shuffled.batch(1, window=2)
        return data.batch(each, window=window) if how == "batch" else data.pack(40, window=window)

    ends = [0]
    while ends[-1] < len(rows):
        ends.append(ends[-1] + window_ends(len(rows) - ends[-1], window))
    path = draw.folder() / "windows.jsonl"
    with draw.small(size):
        with run(write(path, rows)).iter() as it:
            got = [np.ravel(item["id"]).tolist() for item in itertools.islice(it, taken)]
            state = it.state_dict()
            left = [np.ravel(item["id"]).tolist() for item in it]
        begun, to_come = {*itertools.chain(*got)}, {*itertools.chain(*left)}
        for number, field, place in edits:
            of = next(range(first, last) for first, last in itertools.pairwise(ends) if first <= number < last)
            write(path, [*rows[:number], edited(number, field, place), *rows[number + 1 :]])
            if begun.intersection(of) and to_come.intersection(of):
                with pytest.raises(bf.StateError, match=r"gave other rows at .*: column 'input_ids' had the crc32"):
                    next(run(str(path)).iter(state))
            elif (found := refused_or(run(str(path)), state)) is not None:
                assert len(found) == len(left)
            else:  # it is in a block with rows of the open window
                assert size > 3 or number < max(begun) + 2 * window


# -- what is allowed --------------------------------------------------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "allow={'rows'}" in one.getMessage()]


def floats(last_bit: float, number: int = 40) -> list[Sample]:
    return [{"input_ids": [n] * (1 + n % 3), "x": [n + last_bit]} for n in range(number)]


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: bf.from_iterable(rows).shuffle(9).batch(3, window=12),
        lambda rows: bf.from_sequence(rows, shuffle=True).batch(3, window=12),
        lambda rows: bf.from_iterable(rows).map(same).cache().batch(3, window=12),
    ],
    ids=["stream", "sequence", "cache"],
)
def test_other_rows_go_on_where_they_are_allowed_and_it_is_said_once(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with make(floats(0.5)).iter() as it:
        before = [plain(next(it)) for _ in range(5)]
        state = it.state_dict()
    other = lambda: make(floats(0.75))  # noqa: E731
    with pytest.raises(bf.StateError, match=r"\bx\b.*allow=\{'rows'\}"):
        next(other().iter(state))
    with caplog.at_level(logging.WARNING, "brimful"):
        rest = items(other().iter(state, allow={"rows"}))
    ids = [number for batch in (*before, *rest) for number in (ids[0] for ids in batch["input_ids"])]
    assert sorted(ids) == [*range(40)]
    assert all(value % 1 == 0.75 for batch in rest for (value,) in batch["x"])
    (words,) = said(caplog)
    assert "'x'" in words or ".x was" in words
    caplog.clear()
    same_rows = items(make(floats(0.5)).iter(state, allow={"rows"}))
    assert (len(same_rows), said(caplog)) == (len(rest), [])


def test_a_loader_takes_other_rows_where_they_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    def loader(last_bit: float) -> bf.Loader:
        return bf.from_sequence(floats(last_bit)).batch(3).loader()

    one, other = loader(0.5), loader(0.75)
    for _ in itertools.islice(one, 2):
        pass
    state = one.state_dict()
    with pytest.raises(bf.StateError, match=r"from_sequence\.checksums\.x was \d+ .* by allow=\{'rows'\}"):
        other.load_state_dict(state)
    other.load_state_dict(state, allow="rows")
    assert (len([*other]), len([*other])) == (12, 14)
    assert len(said(caplog)) == 1


def test_other_numbers_of_rows_and_settings_called_rows_are_refused_nonetheless() -> None:
    with bf.from_sequence(floats(0.5)).iter() as it:
        next(it)
    with pytest.raises(bf.StateError, match=r"from_sequence\.rows was 40 when it was saved and is 39 here"):
        bf.from_sequence(floats(0.5, 39)).iter(it.state_dict(), allow={"rows"})
    data = bf.from_sequence([{"input_ids": [1]}] * 40)
    with data.pack(8, rows=2).iter() as batches:
        next(batches)
    with pytest.raises(bf.StateError, match=r"pack\.rows was 2 when it was saved and is 3 here"):
        data.pack(8, rows=3).iter(batches.state_dict(), allow={"rows"})


def test_columns_may_be_called_as_settings_are() -> None:
    def data(value: int) -> bf.Dataset:
        return bf.from_sequence([dict.fromkeys(("type", "verb", "urls", "functions", "policy"), value)])

    with data(1).iter() as it:
        state = it.state_dict()
    with pytest.raises(
        bf.StateError, match=r"from_sequence\.checksums\.functions was \d+ when it was saved and is \d+ here"
    ):
        data(2).iter(state, allow={"urls", "functions", "weights"})


def test_rows_of_other_lengths_go_on_to_the_end_where_they_are_allowed() -> None:
    def run(size: int) -> Any:
        rows = [{"input_ids": [n] * size} for n in range(30)]
        mixed = bf.interleave_datasets([bf.from_iterable(rows), bf.from_iterable(rows).map(same)])
        return mixed.shuffle(8).batch_by_tokens(24, window=12)

    with draw.small(5), run(2).iter() as it:
        for _ in range(3):
            next(it)
        for size in (1, 5):
            with pytest.raises(bf.StateError, match="gave other rows"):
                next(run(size).iter(it.state_dict()))
            assert items(run(size).iter(it.state_dict(), allow={"rows"}))


# -- where the rows of a source are not read again --------------------------------------------------------------------------


def test_an_iterable_is_compared_by_the_rows_that_were_taken_last() -> None:
    rows = [{"n": number} for number in range(600)]
    with bf.from_iterable(rows).iter() as it:
        for _ in range(600 - 100):
            next(it)
        state = it.state_dict()
    done = state["position"]["rows"]["done"]  # before the block at hand
    for number in (0, done - 1, done):
        other = [*rows[:number], {"n": -1}, *rows[number + 1 :]]
        again = partial(bf.from_iterable(other).iter, state)
        if number:
            with pytest.raises(bf.StateError, match=r"^from_iterable gave other rows at .* than when .* column 'n'"):
                next(again())
        else:
            assert len(items(again())) == 100


@pytest.mark.parametrize("lengths", [None, [1, 2]], ids=["measured", "given"])
def test_data_that_grew_are_refused_in_words(lengths: Any) -> None:
    rows = [{"input_ids": [1]}, {"input_ids": [2, 2]}]
    for data in (bf.from_sequence(rows), bf.from_dataset(rows, lengths=lengths), bf.from_sequence(rows).filter(of_all)):
        batches = data.batch_by_tokens(8)
        assert sum(len(batch["lengths"]) for batch in batches) == 2
        rows.append({"input_ids": [3]})
        with pytest.raises(bf.DataError, match=r"^the data.* had 2 samples .*, and ha(s|ve) 3 now\. Make a new"):
            list(batches)
        rows.pop()
        assert sum(len(batch["lengths"]) for batch in batches) == 2


def of_all(sample: Sample) -> bool:
    return True


def test_a_data_set_that_grows_is_read_as_it_is_where_no_length_is_needed() -> None:
    rows = [{"input_ids": [1]}, {"input_ids": [2, 2]}]
    batches = bf.from_dataset(rows, collate_fn=list).batch(1)
    assert len(list(batches)) == 2
    rows.append({"input_ids": [3]})
    assert len(list(batches)) == 3


def rows_hashed(monkeypatch: pytest.MonkeyPatch, where: str) -> list[int]:
    """The rows of each block whose checksums are taken from now on, by what calls them `where`."""
    counted: list[int] = []

    def hashed(block: Any, real: Any = checksums.checksums) -> Any:
        counted.append(block.num_rows)
        return real(block)

    monkeypatch.setattr(where, hashed)
    return counted


def test_data_in_memory_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = rows_hashed(monkeypatch, "brimful.index.index.checksums")
    batches = bf.from_sequence(floats(0.5)).batch(4, window=8)
    for _ in range(3):
        list(batches)
    loader = batches.loader()
    for _ in range(3):
        list(loader)
    assert counted == [40]


def test_the_checksums_of_a_window_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = rows_hashed(monkeypatch, "brimful.batching.windows.checksums")
    blocks = rows_hashed(monkeypatch, "brimful.rows.buffer.checksums")
    assert len(list(bf.from_iterable(floats(0.5)).batch(1, window=10))) == 40
    assert (windows, blocks) == ([10, 10, 10, 10], [16, 16])  # the windows, and each block that two of them share


def test_a_state_of_a_stream_takes_few_bytes(tmp_path: Path) -> None:
    rows = [{"id": n, "input_ids": [n % 50] * (1 + n % 9), "labels": [n % 50] * (1 + n % 9)} for n in range(4_000)]
    for number in range(4):
        write(tmp_path / f"{number}.jsonl", rows)
    data = partial(bf.from_files, f"{tmp_path}/*.jsonl", shuffle_shards=True, n_active_shards=1, repeat=True)
    for streams, batches in ((1, data()), (4, data(streams=4))):
        shuffled = batches.shuffle(500) if streams == 1 else batches
        with shuffled.batch_by_tokens(256, window=1_000).shard(0, 1).iter() as it:
            for _ in range(60):
                next(it)
                assert len(json.dumps(it.state_dict()["position"], separators=(",", ":"))) <= 400 * streams
