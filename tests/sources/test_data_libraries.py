"""What users have at hand: data frames, series, lists of token ids; and what is said of what is no sequence of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import brimful as bf

COLUMNS: dict[str, list[Any]] = {
    "text": ["a", None, "c"],
    "ids": [[1, 2], [], [3]],
    "n": [1, 2, 3],
    "x": [0.5, 1.5, 2.5],
}


def listed(samples: Any) -> list[dict[str, Any]]:
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        for sample in samples
    ]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_data_frame_is_rows_and_stays_indexed(library: str) -> None:
    frame = pytest.importorskip(library).DataFrame(COLUMNS)
    data = bf.from_sequence(frame)
    assert (data.kind, len(data)) == ("indexed", 3)
    assert listed(data) == [dict(zip(COLUMNS, row)) for row in zip(*COLUMNS.values())]
    assert data.lengths("ids").tolist() == [2, 0, 1]
    (batch,) = data.drop("text").batch(3, length_column="ids")
    assert (batch["ids"].tolist(), batch["n"].tolist()) == ([[1, 2], [0, 0], [3, 0]], [1, 2, 3])


def test_categories_are_texts() -> None:
    for library, kind in (("pandas", "category"), ("polars", pytest.importorskip("polars").Categorical)):
        module = pytest.importorskip(library)
        series = module.Series(["b", "a", "b"], dtype=kind)
        tokens = bf.from_sequence(module.DataFrame({"text": series})).tokenize(
            lambda texts: [[len(text)] for text in texts]
        )
        assert [sample["text"] for sample in tokens] == ["b", "a", "b"]


def test_an_index_of_pandas_is_a_column_where_it_has_a_name() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"n": [1, 2, 3]}, index=["x", "y", "z"])
    assert listed(bf.from_sequence(frame[frame["n"] > 1])) == [{"n": 2}, {"n": 3}]
    assert listed(bf.from_sequence(frame.rename_axis("id").iloc[1:])) == [{"n": 2, "id": "y"}, {"n": 3, "id": "z"}]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_series_of_texts_is_a_list_of_them(library: str) -> None:
    frame = pytest.importorskip(library).DataFrame({"t": ["a", "b", "c"]})
    assert [sample["text"] for sample in bf.from_sequence(frame["t"][1:])] == ["b", "c"]


@pytest.mark.parametrize("read", [bf.from_sequence, bf.from_iterable])
@pytest.mark.parametrize("row", [[1, 2], (1, 2), np.array([1, 2], np.uint16), [np.int64(1), 2]])
def test_lists_of_token_ids_are_samples(read: Any, row: Any) -> None:
    assert listed(read([row, [], row])) == [{"input_ids": [1, 2]}, {"input_ids": []}, {"input_ids": [1, 2]}]


@pytest.mark.parametrize("row", [[1, 2.5], [True], ["a"], np.array([0.5]), np.zeros((2, 2), int)])
def test_other_lists_are_no_samples(row: Any) -> None:
    message = r"a sample must be a dict, a string or a list of token ids \(got (list|ndarray)\)"
    with pytest.raises(bf.StageError, match=message):
        list(bf.from_sequence([[1], row]))


def test_a_tensor_that_is_no_sample_is_named_with_its_remedy() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(bf.StageError, match=r"or a list of token ids \(got Tensor\); of a tensor, its \.tolist\(\)$"):
        list(bf.from_sequence([torch.ones(2, dtype=torch.int64)]))


def hugging_face(kind: str) -> Any:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a"]})
    return {
        "DatasetDict": lambda: datasets.DatasetDict({"train": data, "test": data}),
        "IterableDatasetDict": lambda: datasets.IterableDatasetDict({"train": data.to_iterable_dataset()}),
        "IterableDataset": data.to_iterable_dataset,
    }[kind]()


@pytest.mark.parametrize("read", [bf.from_sequence, bf.from_iterable])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hugging_face("DatasetDict"),
            r" got several data sets, a DatasetDict of 'train', 'test': from_sequence\(data\['train'\]\) takes one$",
        ),
        (
            lambda: hugging_face("IterableDatasetDict"),
            r" got several data sets, a IterableDatasetDict of 'train': from_iterable\(data\['train'\]\) takes one$",
        ),
        (
            lambda: {"text": ["a"], "n": [1]},
            r" got a dict of 'text', 'n'. For columns, use from_sequence\(pyarrow.table\(data\)\). Put a single sample",
        ),
    ],
)
def test_several_data_sets_and_columns_are_refused_with_the_way(read: Any, make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{read.__name__}{message}"):
        read(make())


def test_what_iterates_over_its_columns_is_no_iterable_of_samples() -> None:
    polars, pandas = (pytest.importorskip(library) for library in ("polars", "pandas"))
    for frame in (polars.DataFrame(COLUMNS), pandas.DataFrame(COLUMNS)):
        with pytest.raises(TypeError, match=r"over the columns of this DataFrame. Use from_sequence$"):
            bf.from_iterable(frame)
    lazy = polars.DataFrame(COLUMNS).lazy()
    with pytest.raises(TypeError, match=r"over the columns of this LazyFrame. Use from_sequence after collect\(\)$"):
        bf.from_iterable(lazy)
    with pytest.raises(TypeError, match=r"^from_sequence got a LazyFrame, which has no rows yet: collect\(\) them"):
        bf.from_sequence(lazy)


def test_what_can_only_be_iterated_over_goes_to_from_iterable() -> None:
    data = hugging_face("IterableDataset")
    with pytest.raises(
        TypeError, match=r"\(got IterableDataset\). Use from_iterable for data that can only be iterated over$"
    ):
        bf.from_sequence(data)
    assert list(bf.from_iterable(data)) == [{"text": "a"}]
    assert listed(bf.from_sequence(pa.RecordBatch.from_pydict({"n": [1]}))) == [{"n": 1}]
