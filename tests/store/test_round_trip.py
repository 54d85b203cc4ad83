"""What goes into a store comes out of it, whatever the columns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.store.index import StoreIndex, verify_store
from brimful.tables.origins import HIDDEN, ORIGIN, ORIGIN_TYPE, where
from tests.effort import examples
from tests.store.stores import blocks_of, rows_of, small, store_of

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.list_(pa.int32()): st.lists(st.sampled_from([0, 1, 255, 256, 40_000, 70_000]), max_size=5),
    pa.list_(pa.int64()): st.lists(st.sampled_from([-100, 0, 5, 2**40]), max_size=5),
    pa.large_list(pa.uint16()): st.lists(st.integers(0, 65_535), max_size=5),
    pa.list_(pa.int16(), 3): st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    pa.list_(pa.float32()): st.lists(st.sampled_from([0.5, -2.0]), max_size=3),
    pa.list_(pa.bool_()): st.lists(st.booleans(), max_size=3),
    pa.list_(pa.string()): st.lists(st.text("ab", max_size=2), max_size=2),
    pa.list_(pa.null()): st.just([]),
    pa.int64(): st.integers(-(2**62), 2**62),
    pa.float64(): st.sampled_from([0.0, 1.5]),
    pa.bool_(): st.booleans(),
    pa.string(): st.text("añ\0", max_size=4),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["x", "y"]),
    pa.binary(): st.binary(max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.integers(0, 9), "b": st.text("q", max_size=2)}
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Blocks of the same columns; some have nulls."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    nulls = [draw(st.booleans()) for _ in kinds]
    blocks = []
    for rows in draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)):
        columns = {}
        for number, kind in enumerate(kinds):
            value = st.one_of(st.none(), KINDS[kind]) if nulls[number] else KINDS[kind]
            columns[f"c{number}"] = pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
        blocks.append(pa.RecordBatch.from_pydict(columns))
    return blocks


@given(tables(), st.sampled_from([1, 100, 1 << 20]), st.sampled_from([1, 1000, 1 << 20]), st.data())
@examples(80)
def test_rows_come_back(blocks: list[pa.RecordBatch], batch_bytes: int, file_bytes: int, data: st.DataObject) -> None:
    expected = [row for block in blocks for row in block.to_pylist()]
    with tempfile.TemporaryDirectory() as folder:
        manifest = store_of(Path(folder, "store"), tuple(blocks), batch_bytes, file_bytes)
        assert manifest.rows == len(expected)
        index = StoreIndex(str(Path(folder, "store")))
        numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30)) if expected else []
        for wanted in (np.array(numbers, dtype=np.int64), np.arange(len(expected))):
            block, rows = index.locate(wanted)
            assert block.schema == index.schema.append(pa.field(ORIGIN, ORIGIN_TYPE))
            found = block.take(pa.array(rows)).drop_columns([ORIGIN]).to_pylist()
            assert found == [expected[number] for number in wanted]
            for number, row in zip(wanted.tolist(), rows.tolist()):
                assert where(block, row) == f"store store, row {number:,}"
        for name in manifest.lengths:
            if not manifest.nulls[name]:
                assert index.lengths((name,), True).tolist() == [len(row[name]) for row in expected]


@pytest.mark.parametrize(
    "kind",
    [pa.uint16(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.bool_()],
)
def test_numbers_keep_their_type(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([0, 1]).cast(kind)
    columns = {"a": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values), "b": values}
    store_of(tmp_path / "store", (pa.RecordBatch.from_pydict(columns),))
    assert StoreIndex(str(tmp_path / "store")).schema == pa.schema([("a", pa.list_(kind)), ("b", kind)])


def test_lists_that_begin_empty_hold_integers(tmp_path: Path) -> None:
    blocks = tuple(pa.RecordBatch.from_pydict({"a": pa.array([row])}) for row in ([], [7]))
    assert blocks[0].schema.field("a").type == pa.list_(pa.null())
    store_of(tmp_path / "store", blocks, batch_bytes=1, file_bytes=1)
    assert rows_of(bf.from_store(tmp_path / "store")) == [{"a": []}, {"a": [7]}]
    assert StoreIndex(str(tmp_path / "store")).schema.field("a").type == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (pa.array([[1]], pa.list_(pa.int32())), pa.array([[5]], pa.list_(pa.int64()))),
        (pa.array([[1]], pa.list_(pa.int32())), pa.array([[5]], pa.large_list(pa.int32()))),
        (pa.array([[1.5]]), pa.array([[5]])),
        (pa.array([1]), pa.array([None])),
        (pa.array([[1]]), pa.array([None])),
        (pa.array(["a"]), pa.array(["b"], pa.large_string())),
        (pa.array(["a"]), pa.array(["b"], pa.dictionary(pa.int32(), pa.string()))),
    ],
)
def test_later_rows_are_cast_to_the_types_of_the_first(tmp_path: Path, first: pa.Array, later: pa.Array) -> None:
    blocks = tuple(pa.RecordBatch.from_arrays([array], ["a"]) for array in (first, later))
    store_of(tmp_path / "store", blocks, batch_bytes=1, file_bytes=1)
    index = StoreIndex(str(tmp_path / "store"))
    assert index.schema.field("a").type == first.type
    assert rows_of(bf.from_store(tmp_path / "store")) == [{"a": first[0].as_py()}, {"a": later[0].as_py()}]


def words(size: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_a_known_vocabulary_says_the_type(tmp_path: Path) -> None:
    for size, kind in ((256, pa.uint8()), (257, pa.uint16()), (65_536, pa.uint16()), (65_537, pa.int32())):
        stored = bf.from_sequence(["w1 w2", "w3"]).tokenize(words(size)).to_store(tmp_path / str(size))
        assert [row["input_ids"].tolist() for row in stored] == [[1, 2], [3]]
        assert stored.stage.rows.schema.field("input_ids").type == pa.list_(kind)


def test_ids_beyond_the_vocabulary_keep_their_type(tmp_path: Path) -> None:
    texts = bf.from_sequence(["w1 w2", "w3"]).tokenize(words(256))
    stored = texts.map(lambda sample: {"input_ids": [*sample["input_ids"], 300]}).to_store(
        tmp_path / "store", version="1"
    )
    assert [row["input_ids"].tolist() for row in stored] == [[1, 2, 300], [3, 300]]


def test_a_later_id_beyond_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    texts = bf.from_sequence(["w1"] * 9000 + ["w199"]).tokenize(words(256))
    odd = texts.map(lambda sample: sample | {"input_ids": [300]} if sample["text"] == "w199" else sample)
    with (
        small(10_000, 1),
        pytest.raises(
            bf.DataError,
            match=r"column 'input_ids' is list<item: uint8> in the rows before and list<item: int32> here, which cannot be cast "
            r"to it: .*300.*\(sequence, row 9,000\); its tokenizer has 256 ids: store other integers in a column of another",
        ),
    ):
        odd.to_store(tmp_path / "store", version="1")


def test_a_new_column_is_an_error_and_one_that_is_absent_is_null(tmp_path: Path) -> None:
    blocks = (pa.RecordBatch.from_pydict({"a": [1]}), pa.RecordBatch.from_pydict({"b": ["x"], "a": [2]}))
    with pytest.raises(
        bf.DataError,
        match=r"column 'b' is new \(given, row 0\): the rows before have a; give all rows the same columns",
    ):
        store_of(tmp_path / "1", blocks, batch_bytes=1, file_bytes=1)
    store_of(tmp_path / "2", blocks[::-1], batch_bytes=1, file_bytes=1)
    assert rows_of(bf.from_store(tmp_path / "2")) == [{"b": "x", "a": 2}, {"b": None, "a": 1}]


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (pa.array([1]), pa.array(["x", "y"]), r"int64 in the rows before and string here.*\(given, row 0\)"),
        (pa.array(["x"]), pa.array([1, 2]), r"string in the rows before and int64 here.*\(given, row 0\)"),
        (pa.array([1]), pa.array([1.0, 1.5]), r"int64 in the rows before and double here.*\(given, row 1\)"),
        (
            pa.array([[1]], pa.list_(pa.int8())),
            pa.array([[1], [127], [], [128]]),
            r"list<item: int8> in the rows before and list<item: int64> here.*128.*\(given, row 3\)",
        ),
    ],
)
def test_a_column_of_two_types_is_an_error_that_names_both(
    tmp_path: Path, first: pa.Array, later: pa.Array, message: str
) -> None:
    blocks = tuple(pa.RecordBatch.from_arrays([array], ["a"]) for array in (first, later))
    with pytest.raises(bf.DataError, match=f"column 'a' is {message}; cast it to one type before it is stored"):
        store_of(tmp_path / "store", blocks, batch_bytes=1)


def test_a_row_without_columns_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(bf.DataError, match=r"there is nothing to store in a row without columns \(sequence, row 0\)"):
        bf.from_sequence([{f"{HIDDEN}x": 1}]).to_store(tmp_path / "store")


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    block = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(
        bf.DataError, match=r"there are two columns 'a' \(given, row 0\); give one of them another name"
    ):
        store_of(tmp_path / "store", (block,))


def test_hidden_columns_are_not_stored(tmp_path: Path) -> None:
    stored = (
        bf.from_sequence([{"x": 1}]).map(lambda sample, rng: sample, seed=3).to_store(tmp_path / "store", version="1")
    )
    assert list(stored) == [{"x": 1}]
    assert list(stored.stage.rows.manifest.columns) == ["x"]


def test_an_empty_store(tmp_path: Path) -> None:
    store_of(tmp_path / "store", (pa.RecordBatch.from_pydict({"input_ids": pa.array([], pa.list_(pa.int32()))}),))
    stored = bf.from_store(tmp_path / "store", shuffle=True)
    assert (len(stored), list(stored), list(stored.batch(2, window=4, drop_last=True))) == (0, [], [])


def test_lengths_and_labels_are_known_without_rows(tmp_path: Path) -> None:
    samples = [{"input_ids": [1] * n, "labels": [-100] * (n // 2) + [3] * (n - n // 2)} for n in (3, 0, 5, 2)]
    bf.from_sequence(samples).to_store(tmp_path / "store")
    with pytest.raises(bf.DataError, match=r"no list column 'x' in the store .* \(list columns: input_ids, labels\)"):
        bf.from_store(tmp_path / "store").lengths("x")
    (tmp_path / "store" / "00000.arrow").unlink()
    stored = bf.from_store(tmp_path / "store")
    assert stored.lengths().tolist() == stored.lengths("labels").tolist() == [3, 0, 5, 2]
    assert stored.stage.rows.num_labels_at(np.array([2, 0, 1])).T.tolist() == [[5, 3, 0], [3, 2, 0], [0, 0, 0]]
    assert bf.from_sequence(samples).lengths("labels").tolist() == [3, 0, 5, 2]


def test_lengths_are_any_size(tmp_path: Path) -> None:
    samples = [{"input_ids": [1] * n, "frames": 10 * n} for n in (3, 0, 5, 2)]
    bf.from_sequence(samples).to_store(tmp_path / "store")
    for data in (bf.from_store(tmp_path / "store"), bf.from_sequence(samples)):
        assert data.lengths("frames").tolist() == [30, 0, 50, 20]
        assert data.lengths(lambda block: pc.list_value_length(block["input_ids"])).tolist() == [3, 0, 5, 2]
        assert data[1:3].lengths("frames").tolist() == [0, 50]
        assert data.shuffle(4, seed=1).take(2).lengths("frames").tolist() == [
            one["frames"] for one in data.shuffle(4, seed=1).take(2)
        ]


def test_lengths_of_a_column_with_nulls_are_refused(tmp_path: Path) -> None:
    store_of(tmp_path / "store", (pa.RecordBatch.from_pydict({"a": [[1, None], None, [2]]}),))
    with pytest.raises(bf.DataError, match=r"column 'a' of the store .* has 2 nulls; filter them out or fill them"):
        bf.from_store(tmp_path / "store").lengths("a")


def test_lengths_of_a_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError,
        match=r"the lengths of this data set are not known: it is streamed \(by from_iterable\). Call cache\(\) to "
        r"keep it in memory, or to_store\(path\) to keep it on disk",
    ):
        bf.from_iterable([{"x": 1}]).lengths()


def test_rows_that_follow_one_another_are_not_copied(tmp_path: Path) -> None:
    store_of(tmp_path / "store", blocks_of([5] * 1000, 1000))
    index = StoreIndex(str(tmp_path / "store"))
    memory = index._folder._file(index.manifest.files[0]).batch(0).column("input_ids").values.buffers()[1]
    block, rows = index.locate(np.arange(100, 900))
    values = block.column("input_ids").values.buffers()[1]
    assert memory.address <= values.address < memory.address + memory.size
    assert rows.tolist() == list(range(800))


def test_a_store_without_a_row_keeps_the_columns_that_are_known(tmp_path: Path) -> None:
    rows = bf.from_sequence([{"input_ids": [1], "text": "a"}])
    stream = rows.stream().filter(lambda sample: False)
    for number, empty in enumerate((stream, rows.filter(lambda sample: False), rows.take(0))):
        store = empty.to_store(tmp_path / str(number), version="1")
        for found in (store, bf.from_store(f"file://{tmp_path}/{number}")):
            assert "columns: input_ids: list of int64, text: string\n  rows: 0" in repr(found)
            assert "columns: text: string" in repr(found.select("text"))
            assert (list(found), found.lengths().tolist(), list(found.pack(8))) == ([], [], [])
        assert verify_store(tmp_path / str(number)) == []
        with pytest.raises(
            ValueError, match=r"there is no column 'labels' in the store .* \(columns: input_ids, text\)"
        ):
            bf.from_store(tmp_path / str(number), columns=["labels"])
    tokens = stream.tokenize(words(9), remove_columns="text").to_store(tmp_path / "tokens", version="1")
    assert "input_ids: list of int32" in repr(tokens)
    assert StoreIndex(str(tmp_path / "tokens")).schema.field("input_ids").type.value_type == pa.uint8()
    unknown = rows.filter_map(lambda sample: None).to_store(tmp_path / "unknown", version="1")
    assert "columns: none" in repr(unknown)
