"""`select`, `drop` and `rename` change columns and never the order of rows, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import brimful as bf
from brimful.core.header import header_of

Source = Callable[..., bf.Dataset]
Columns = Callable[[bf.Dataset], bf.Dataset]


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": first + number, "input_ids": [number] * (1 + number % 5), "other": 0} for number in range(count)]


def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return sample | {"id": sample["id"] * 1000 + int(rng.integers(1000))}


def odd(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 2)


CHAINS: dict[str, Callable[[Source, Columns], Any]] = {
    "after a shuffle": lambda new, c: c(new(rows(40)).shuffle(7)),
    "before a shuffle": lambda new, c: c(new(rows(40))).shuffle(7),
    "between shuffles": lambda new, c: c(new(rows(40)).shuffle(7)).shuffle(9),
    "after a source that repeats": lambda new, c: c(new(rows(40), repeat=True).shuffle(7)).take(100).shuffle(3),
    "of a mixture": lambda new, c: c(
        bf.interleave_datasets([new(rows(20)), new(rows(20, 50)).shuffle(4)], weights=[2, 1])
    ).shuffle(5),
    "in a mixture": lambda new, c: bf.interleave_datasets([c(new(rows(20)).shuffle(4)), c(new(rows(20, 50)))]).shuffle(
        5
    ),
    "of a concatenation": lambda new, c: c(new(rows(20)) + new(rows(20, 50))).shuffle(5),
    "of a part of a concatenation": lambda new, c: (c(new(rows(9)) + new(rows(9, 50))) + c(new(rows(9, 70)))).shuffle(
        5
    ),
    "of a split": lambda new, c: c(new(rows(40)).shuffle(9).train_valid_split(0.4, key="id")[0]).shuffle(5),
    "before a split": lambda new, c: c(new(rows(40)).shuffle(9)).train_valid_split(0.4, key="id")[0].shuffle(5),
    "before a filter": lambda new, c: c(new(rows(40)).shuffle(9)).filter(odd).shuffle(5),
    "of a slice": lambda new, c: c(new(rows(40)).shuffle(9).skip(3).stride(2, 1)).shuffle(5),
    "before a function that draws": lambda new, c: c(new(rows(9))).map(drawn, seed=1).shuffle(4),
    "before batches": lambda new, c: c(new(rows(40)).shuffle(9)).batch(3, window=12),
}
COLUMNS: dict[str, Columns] = {
    "select": lambda data: data.select(["id", "input_ids"]),
    "drop": lambda data: data.drop("other"),
    "rename": lambda data: data.rename({"other": "another"}).rename({"another": "other"}),
}


def ids(data: Any) -> list[Any]:
    return [one["id"].tolist() if isinstance(data, bf.Batches) else one["id"] for one in islice(data, 200)]


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_a_choice_of_columns_leaves_the_order_alone(source: Source, chain: Any, columns: Columns) -> None:
    assert ids(chain(source, columns)) == ids(chain(source, lambda data: data))


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_streams_keep_their_order_too(columns: Columns, tmp_path: Any) -> None:
    for number in range(4):
        lines = (f'{{"id": {number * 10 + row}, "input_ids": [1], "other": 0}}\n' for row in range(9))
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))

    def batches(choose: Columns) -> Any:
        data = bf.from_files(f"{tmp_path}/*.jsonl", streams=2, shuffle_shards=True)
        return choose(data.shuffle(5)).batch(2, window=6)

    assert ids(batches(columns)) == ids(batches(lambda data: data))


def test_a_data_set_zipped_with_a_renamed_self_pairs_equal_rows() -> None:
    data = bf.from_sequence(rows(40)).shuffle(7)
    pairs = bf.zip_datasets([data.select("id"), data.select("id").rename({"id": "same"})])
    assert all(pair["id"] == pair["same"] for pair in pairs)


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_a_sum_of_sums_is_one_concatenation(source: Source) -> None:
    a, b, c = (source(rows(20, first)) for first in (0, 50, 90))
    one, other = (a + b + c).shuffle(5), bf.concat_datasets([a, b, c]).shuffle(5)
    assert ids(one) == ids(other)
    assert header_of(one.stage) == header_of(other.stage)
