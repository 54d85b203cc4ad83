"""`print(dataset)` and `print(batches)` say what is known, and read nothing for it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "bb"}, {"id": 3, "text": "ccc"}]
UNREAD = "not known before rows are read"
TWO = "policy=FixedSize(n=2, sort=False)"


def letters(texts: list[str]) -> list[list[int]]:
    raise AssertionError("nothing is tokenised for a look")


def refuse(sample: Any) -> Any:
    raise AssertionError("nothing is called for a look")


def lines(*columns_and_rows: str) -> list[str]:
    return [f"  {name}: {words}" for name, words in zip(("columns", "rows", "batches"), columns_and_rows)]


def test_indexed_data_show_stages_columns_and_rows() -> None:
    data = bf.from_sequence(ROWS)
    assert repr(data) == str(data) == "IndexedDataset(from_sequence)\n  columns: id: int64, text: string\n  rows: 3"
    assert str(data[1:]).splitlines()[1:] == lines("id: int64, text: string", "2")
    assert str(data.select("id") + data.select("id")).splitlines()[1:] == lines("id: int64", "6")
    assert str(bf.from_sequence(ROWS, repeat=True)).splitlines()[2] == "  rows: 3, repeated"
    assert str(bf.from_sequence(ROWS, repeat=True).skip(1)).splitlines()[2] == "  rows: without end"


def test_columns_follow_through_stages_that_say_what_they_make() -> None:
    data = bf.from_sequence(ROWS).tokenize(letters, remove_columns="text", extra_outputs=()).causal_labels()
    both = "input_ids: list of int32, labels: list of int32"
    assert str(data).splitlines() == [
        "Dataset(from_sequence > tokenize by tokenizer > causal_labels)",
        *lines(f"id: int64, {both}", UNREAD),
    ]
    assert str(data.enumerate().concat_chunk(4)).splitlines()[1:] == lines("input_ids: list of int32", UNREAD)
    assert str(data.rename({"id": "n"}).drop("labels").add_bos_eos(1, 2).shuffle(9).batch(2)).splitlines()[2:] == lines(
        "n: int64, input_ids: list of int32", UNREAD
    )
    for unknown in (data.map(refuse), data.sliding_window(2) if hasattr(data, "sliding_window") else data.window(2)):
        assert str(unknown).splitlines()[1:] == lines(UNREAD, UNREAD)


def test_types_of_a_store_are_those_of_its_samples(tmp_path: Path) -> None:
    narrow = pa.table(
        {"ids": pa.array([[1, 2]], pa.list_(pa.uint16())), "pixels": pa.array([[3]], pa.list_(pa.uint8(), 1))}
    )
    store = bf.from_sequence(narrow).to_store(tmp_path / "store")
    assert store[0]["ids"].dtype == "int32"
    assert str(store).splitlines()[1:] == lines("ids: list of int32, pixels: list of uint8", "1")


def test_a_stream_that_has_not_been_read_says_so(tmp_path: Path) -> None:
    missing = bf.from_files(f"{tmp_path}/nowhere.jsonl", repeat=True)
    assert str(missing.batch(2)).splitlines() == [
        "Batches(from_files > batch, repeat)",
        f"  planned by: {TWO}",
        *lines(UNREAD, f"{UNREAD}, repeated"),
    ]
    typed = (
        bf.from_files("nowhere.jsonl", schema={"text": bf.dataset.pa.string()}) if hasattr(bf.dataset, "pa") else None
    )
    assert typed is None or "columns: text: string" in str(typed)


def test_nothing_is_called_for_a_look() -> None:
    data = bf.from_sequence(ROWS)
    filtered = data.filter(refuse)
    unasked = "not known before they are asked for (len)"
    assert str(filtered).splitlines()[1:] == lines("id: int64, text: string", unasked)
    assert str(data.map(refuse).cache()).splitlines()[1:] == lines(UNREAD, unasked)
    kept = data.filter(lambda sample: sample["id"] > 1)
    assert len(kept) == 2
    assert str(kept).splitlines()[2] == "  rows: 2"

    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            raise AssertionError("no sample is fetched for a look")

    assert str(bf.from_dataset(Broken())).splitlines()[1:] == lines(UNREAD, "4")


def test_a_fault_of_the_chain_is_shown_not_raised() -> None:
    found = str(bf.from_sequence(ROWS).select("nope")).splitlines()[1]
    assert found == "  columns: not known: select: there is no column 'nope' (columns: id, text; of indexed data)"


def test_batches_show_how_many_there_are_once_they_are_counted() -> None:
    batches = bf.from_sequence([{"input_ids": [1]}] * 5).batch(2)
    assert str(batches).splitlines() == [
        "Batches(from_sequence > batch)",
        f"  planned by: {TWO}",
        *lines("input_ids: list of int64", "5"),
    ]
    assert len(batches) == 3
    assert str(batches).splitlines()[4] == "  batches: 3"


def budget(batch: int, length: int) -> int:
    return batch * length


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda data: data.batch_by_tokens(16_384), "policy=TokenBudget(max_tokens=16,384), window='auto'"),
        (
            lambda data: data.batch_by_tokens(64, pad_to_multiple_of=8, overlong="drop", seed=7).shard(1, 4),
            "policy=TokenBudget(max_tokens=64, pad_to_multiple_of=8), overlong='drop', seed=7, window='auto', rank 1 of 4",
        ),
        (
            lambda data: data.batch_by_tokens(64, micro_batches=2, window="steps").shard(),
            "policy=TokenBudget(max_tokens=32), shuffle_batches='stratified', window='steps', rank of this process, "
            "in each of 2 micro_batches",
        ),
        (
            lambda data: data.batch(4, window=2_000, buckets=[8, 16], drop_last=True, shuffle_batches=False),
            "policy=FixedSize(n=4), buckets=[8, 16], drop_last=True, shuffle_batches=False, window=2,000",
        ),
        (lambda data: data.batch(bf.CostBudget(budget, 9)), "policy=CostBudget(cost=budget, limit=9), window='auto'"),
        (lambda data: data.pack(512, rows=2), "row_length=512, rows=2, window='auto'"),
        (lambda data: data.batch_by(4, key=len), "batch_size=4, key=len, window=10,000"),
        (lambda data: data.batch(2).map(refuse).prefetch(2).take(1), TWO),
    ],
)
def test_batches_show_how_they_are_planned(made: Any, words: str) -> None:
    batches = made(bf.from_sequence(ROWS))
    assert str(batches).splitlines()[1] == f"  planned by: {words}"
    assert f'<td style="text-align:left">{escape(words)}</td>' in batches._repr_html_()


def test_ranks_of_streams_are_shown_too() -> None:
    shared = bf.from_files("corpus/*.jsonl", streams=8).batch(2).shard(0, 2)
    assert str(shared).splitlines()[1] == f"  planned by: {TWO}, rank 0 of 2"


def test_shuffled_sources_are_shown_as_such(tmp_path: Path) -> None:
    rows = bf.from_sequence(ROWS, shuffle=True)
    assert repr(rows).startswith("IndexedDataset(from_sequence(shuffle))\n")
    bf.from_sequence([{"input_ids": [1]}]).to_store(tmp_path / "store")
    assert repr(bf.from_store(tmp_path / "store", shuffle=True).batch(2)).startswith(
        "Batches(from_store(shuffle) > batch)\n"
    )
    files = bf.from_files("nowhere.jsonl", shuffle_shards=True)
    assert repr(files).startswith("Dataset(from_files(shuffle_shards))\n")


def test_columns_of_a_collate_fn_are_its_own() -> None:
    samples = bf.from_dataset([{"x": 1}], collate_fn=refuse)
    for batches in (samples.batch(2), bf.from_sequence(ROWS).batch(2, collate_fn=refuse)):
        assert str(batches).splitlines()[2] == "  columns: made by collate_fn"


def test_a_notebook_gets_a_table() -> None:
    for shown in (bf.from_sequence(ROWS), bf.from_sequence(ROWS).batch(2)):
        table = shown._repr_html_()
        assert table.startswith("<table>")
        assert '<td style="text-align:left">id: int64, text: string</td>' in table
        assert "from_sequence" in table
    assert "&gt; batch" in bf.from_sequence(ROWS).batch(2)._repr_html_()


def test_a_slice_is_shown_as_one() -> None:
    data = bf.from_sequence(ROWS)
    for part, words in ((data[:2], "[0:2]"), (data[1:], "[1:3]"), (data[::2], "[0:3:2]")):
        assert repr(part).startswith(f"IndexedDataset(from_sequence > {words})\n")
    verbs = [stage["verb"] for stage in data[:2].iter().state_dict()["header"]]
    assert verbs == ["from_sequence", "take", "skip", "stride"]


def test_a_mixture_says_which_data_set_lacks_a_column() -> None:
    texts, tokens = bf.from_sequence(["a"]), bf.from_sequence([{"input_ids": [1], "text": "b"}])
    ids = "input_ids: list of int64 (null in data set 0)"
    for mixed in (texts + tokens, bf.interleave_datasets([texts, tokens])):
        assert f"  columns: text: string, {ids}\n" in repr(mixed)
        assert f"  columns: {ids}\n" in repr(mixed[:1].select("input_ids"))
    assert "null in" not in repr(texts + tokens.select("text") + bf.from_sequence([]))
    assert "null in" not in repr(bf.zip_datasets([texts, tokens.select("input_ids")]))


def test_a_split_within_a_mixture_shows_its_columns() -> None:
    train, _ = bf.from_iterable([{"id": number} for number in range(40)]).train_valid_split(0.1, key="id")
    mixture = bf.interleave_datasets([train, bf.from_iterable([{"id": 1, "text": "a"}])])
    next(iter(mixture))
    assert "id: int64, text: string (null in data set 0)" in repr(mixture)


@pytest.mark.parametrize("verb", ["concat_chunk", "pack_chunk"])
def test_a_pipeline_whose_column_is_missing_is_shown_too(verb: str) -> None:
    """An error in `print` would end a run that works: of no rows there is no column, and nothing to chunk."""
    for rows in (bf.from_sequence([]), bf.from_sequence([{"text": "a b"}])):
        chunks = getattr(rows, verb)(4)
        assert verb in repr(chunks)
        assert verb in repr(chunks.batch(2))
    assert list(getattr(bf.from_sequence([]), verb)(4)) == []
    with pytest.raises(bf.DataError, match="there is no column 'input_ids'"):
        list(chunks)


def test_a_stream_of_indexed_data_says_that_it_is_one() -> None:
    indexed = bf.from_sequence(ROWS)
    assert (indexed.kind, indexed.stream().kind, indexed.map(dict).kind) == (
        *("indexed", "streamed (by stream)"),
        "streamed (by map)",
    )
    for call in (len, bf.Dataset.lengths):
        with pytest.raises(TypeError, match=r"not known: it is streamed \(by stream\)"):
            call(indexed.stream())
