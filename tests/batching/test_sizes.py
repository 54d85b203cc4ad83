"""Sizes of any kind: list columns, number columns, functions of blocks; several limits at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.batching.batch import Batch
from brimful.store.index import StoreIndex
from tests.effort import examples
from tests.worlds import WORLDS, plans_by_step, taken_by_worlds

CALLS: list[int] = []


def doubled(block: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Twice the patches."""
    CALLS.append(block.num_rows)
    return 2 * block.column("num_patches").to_numpy()


def samples(count: int = 200, seed: int = 0) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "id": number,
            "input_ids": list(range(1, int(length) + 1)),
            "labels": list(range(1, int(length) + 1)),
            "num_patches": int(patches),
            "patches": [0.5] * int(patches),
            "ms": 10 * int(length),
        }
        for number, (length, patches) in enumerate(zip(draw.integers(1, 60, count), draw.integers(0, 9, count)))
    ]


ROWS = samples()
DATA = bf.from_sequence(ROWS)
BUDGET = bf.MultiBudget(padded={"input_ids": 256}, total={"num_patches": 20}, max_samples=16)
WAYS: dict[str, Any] = {
    "columns": (BUDGET, {}),
    "lists": (bf.MultiBudget(padded={"input_ids": 256}, total={"patches": 20}, max_samples=16), {}),
    "function": (
        bf.MultiBudget(padded={"input_ids": 256}, total={"doubled": 40}, max_samples=16),
        {"length_column": doubled},
    ),
}


def ids(batch: Any) -> list[int]:
    found: list[int] = batch["id"].tolist()
    return found


def planned(way: str, streamed: bool) -> bf.Batches:
    policy, how = WAYS[way]
    data = DATA.stream() if streamed else DATA
    return data.batch(policy, window=64, **how)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streamed", [False, True])
def test_batches_keep_to_all_limits_and_have_each_sample_once(way: str, streamed: bool) -> None:
    taken = []
    with planned(way, streamed).iter() as it:
        for batch in it:
            rows, width = batch["input_ids"].shape
            assert rows * width <= 256
            assert batch["num_patches"].sum() <= 20
            assert rows <= 16
            assert width == batch["lengths"].max()
            taken += ids(batch)
        (name,) = WAYS[way][0].total
        total = sum(row["num_patches"] for row in ROWS) * (2 if way == "function" else 1)
        assert it.stats.sizes == {"input_ids": sum(len(row["input_ids"]) for row in ROWS), name: total}
        assert it.stats.tokens == it.stats.sizes["input_ids"]
    assert sorted(taken) == list(range(len(ROWS)))


def test_all_ways_to_say_a_size_plan_the_same_batches() -> None:
    plans = [[batch.numbers.tolist() for batch in planned(way, streamed=False).plans()] for way in WAYS]
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_state_resumes_to_the_same_batches(way: str, streamed: bool) -> None:
    batches = planned(way, streamed)
    with batches.iter() as it:
        before = [ids(next(it)) for _ in range(7)]
        state = json.loads(json.dumps(it.state_dict()))
        after = [ids(batch) for batch in it]
    assert [ids(batch) for batch in batches.iter(state)] == after
    assert before


def test_any_number_of_ranks_takes_the_same_batches() -> None:
    batches = DATA.batch(BUDGET, window=64)
    alone = [batch.window.samples[batch.numbers].tolist() for batch in batches.plans()]
    for world_size in WORLDS:
        steps = plans_by_step(batches, world_size)
        real = [batch.window.samples[batch.numbers].tolist() for step in steps for batch in step if batch.weight]
        assert real == alone
    taken = taken_by_worlds(batches, [(1, 3), (4, 2), (2, 5), (8, 99)], ids)
    assert taken == [ids(batch) for batch in batches]


def test_sizes_that_are_summed_alone_fill_batches() -> None:
    budget = bf.MultiBudget(total={"input_ids": 120, "num_patches": 16})
    batches = list(DATA.batch(budget, window=200))
    tokens = sum(len(row["input_ids"]) for row in ROWS)
    for batch in batches:
        assert batch["lengths"].sum() <= 120
        assert batch["num_patches"].sum() <= 16
    assert len(batches) <= 1.1 * max(tokens / 120, sum(row["num_patches"] for row in ROWS) / 16) + 2


@pytest.mark.parametrize("policy", [bf.TokenBudget(3_000), bf.FixedSize(8), bf.StaticShapes([200, 600], 3_000)])
def test_a_number_column_is_a_size(policy: bf.Policy) -> None:
    plain = bf.from_sequence([{**row, "input_ids": [0] * row["ms"]} for row in ROWS]).batch(policy)
    by_value = DATA.batch(policy, length_column="ms")
    assert [batch.numbers.tolist() for batch in by_value.plans()] == [batch.numbers.tolist() for batch in plain.plans()]
    batch = next(iter(by_value))
    assert "lengths" not in batch
    assert batch["input_ids"].shape == batch["labels"].shape, "padded to their own longest"


def test_packed_rows_keep_to_limits_of_patches_and_samples() -> None:
    batches = DATA.pack(64, rows=2, row_limits={"num_patches": 12, "samples": 3})
    taken = []
    for batch in batches:
        assert batch["input_ids"].shape == (2, 64)
        rows = np.searchsorted(batch["cu_seqlens"].numpy(), np.arange(2) * 64)
        owners = (batch["segment_ids"].max(dim=1).values).tolist()
        assert max(owners) <= 3
        first = owners[0]
        assert batch["num_patches"][:first].sum() <= 12
        assert batch["num_patches"][first:].sum() <= 12
        assert len(rows) == 2
        taken += ids(batch)
    assert sorted(taken) == list(range(len(ROWS)))


def test_a_function_is_asked_once_over_an_index_and_kept_beside_a_store(tmp_path: Path) -> None:
    DATA.to_store(tmp_path / "store")
    policy, how = WAYS["function"]
    CALLS.clear()
    batches = bf.from_store(tmp_path / "store", shuffle=True).batch(policy, **how, length_version="1")
    first = [ids(batch) for batch in batches]
    assert sum(CALLS) == len(ROWS), "once for each row"
    assert [ids(batch) for batch in batches] == first
    assert sum(CALLS) == len(ROWS), "and no more in the next epoch"
    again = bf.from_store(tmp_path / "store", shuffle=True).batch(policy, **how, length_version="1")
    assert [ids(batch) for batch in again] == first
    assert sum(CALLS) == len(ROWS), "nor by another reader: it is beside the store"
    other = bf.from_store(tmp_path / "store", shuffle=True).batch(policy, **how, length_version="2")
    assert [ids(batch) for batch in other] == first
    assert sum(CALLS) == 2 * len(ROWS), "but for another version"
    units = bf.from_store(tmp_path / "store").units("id").shuffle(9).batch(policy, **how, length_version="2")
    assert sorted(number for batch in units for number in ids(batch)) == sorted(
        number for own in first for number in own
    )
    assert sum(CALLS) == 2 * len(ROWS), "units are the same rows"


@pytest.mark.parametrize("mapped", [True, False])
def test_a_number_column_of_a_store_is_read_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    DATA.to_store(tmp_path / "store")
    asked: list[int] = []
    locate = StoreIndex.locate

    def counting(self: StoreIndex, numbers: Any) -> Any:
        asked.append(len(numbers))
        return locate(self, numbers)

    monkeypatch.setattr(StoreIndex, "locate", counting)
    store = bf.from_store(tmp_path / "store", shuffle=mapped)
    batches = store.batch(bf.MultiBudget(padded={"input_ids": 256}, total={"num_patches": 20}), window=40)
    with batches.iter() as it:
        next(it)
        assert max(asked) <= 60, "of one window, to which a short last one may be joined"
    assert sum(len(batch["id"]) for batch in batches) == len(ROWS)


def test_a_window_of_which_nothing_is_left_has_no_batch() -> None:
    rows = [{"input_ids": [1], "num_patches": 25}] * 3 + [{"input_ids": [1], "num_patches": 5}] * 3
    for budget in (BUDGET, bf.MultiBudget(padded={"input_ids": 9}), bf.MultiBudget(total={"num_patches": 20})):
        taken = bf.from_sequence(rows).batch(budget, window=3, overlong="drop")
        assert sum(len(batch["input_ids"]) for batch in taken) == (3 if budget.total else 6)


def test_bad_sizes_are_told_with_their_place() -> None:
    rows = [{"input_ids": [1], "seconds": 1.0}, {"input_ids": [2], "seconds": 2.5}]
    with pytest.raises(
        bf.DataError, match=r"column 'seconds' is planned over, and holds 2.5 \(sequence, row 1\): a size is"
    ):
        list(bf.from_sequence(rows).batch_by_tokens(10, length_column="seconds"))
    for wrong, words in (
        (
            lambda block: [1],
            r"gets a block of rows, and must give a number for each of 2 rows \(got int64 of shape \(1,\)\)",
        ),
        (lambda block: [1, -2], r"must give whole numbers, 0 or more \(got -2 for sequence, row 1\)"),
        (lambda block: [1, np.nan], r"must give whole numbers, 0 or more \(got"),
    ):
        with pytest.raises(bf.DataError, match=words):
            list(bf.from_sequence(rows).batch_by_tokens(10, length_column=wrong))

    def fails(block: pa.RecordBatch) -> Any:
        raise KeyError("x")

    with pytest.raises(
        bf.StageError, match=r"length_column=fails failed on 2 rows \(sequence, row 0 and on\): KeyError: 'x'"
    ):
        list(bf.from_sequence(rows).batch_by_tokens(10, length_column=fails))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"length_column": 3}, "length_column takes names of columns, or functions of a block"),
        ({"length_column": []}, "length_column must name at least 1 column"),
        ({"length_column": ["a", "a"]}, "length_column names 'a' twice"),
        ({"length_column": "ms"}, "length_column names 'ms', and the limits are of input_ids, num_patches"),
        (
            {"length_version": "1"},
            "length_version='1' is the version of functions in length_column, .* where there is no function",
        ),
        (
            {"length_version": 1},
            "length_version=1 is the version of functions in length_column, a text such as 'v1'",
        ),
        ({"pad_to_multiple_of": 8}, "MultiBudget rounds its padded sizes itself"),
    ],
)
def test_other_settings_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        DATA.batch(BUDGET, **how)


@pytest.mark.parametrize("size", ["num_patches", doubled])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_size_of_a_whole_sample_cuts_no_list(size: Any, streamed: bool) -> None:
    data = DATA.stream() if streamed else DATA
    name = "'num_patches'" if size == "num_patches" else "doubled"
    words = (
        f"overlong='truncate' cuts lists, and length_column={name} says a number of each sample; choose 'raise', 'drop'"
    )
    with pytest.raises(ValueError, match=words):
        list(data.batch_by_tokens(9, length_column=size, overlong="truncate"))
    with pytest.raises(
        ValueError, match=f"length_column={name} says a number of each sample, and pack puts lists end to end"
    ):
        list(data.pack(64, length_column=size))


def test_a_function_that_row_limits_name_is_a_limit_beside_the_tokens() -> None:
    rows = DATA.pack(64, row_limits={"doubled": 24}, length_column=doubled)
    both = DATA.pack(64, row_limits={"doubled": 24}, length_column=("input_ids", doubled))
    taken = [batch["num_patches"].tolist() for batch in rows]
    assert taken == [batch["num_patches"].tolist() for batch in both]
    assert max(map(sum, taken)) <= 12


def test_a_number_of_0_is_no_sample_without_tokens(caplog: pytest.LogCaptureFixture) -> None:
    data = bf.from_sequence([{"words": [1] * (n % 2), "num_patches": n % 2} for n in range(8)])
    assert len([*data.batch_by_tokens(1, length_column="num_patches")]) == 8
    assert "no tokens" not in caplog.text
    assert len([*data.batch_by_tokens(1, length_column="words")]) == 8
    assert "4 samples have none" in caplog.text
    assert ".filter(lambda sample: len(sample['words']) > 0)" in caplog.text


@pytest.mark.parametrize("data", [DATA, DATA.stream(), DATA.select(["input_ids", "ms"]), bf.from_dataset(ROWS)])
def test_a_size_of_no_column_says_what_sizes_are(data: bf.Dataset) -> None:
    with pytest.raises(bf.DataError, match=r"'area'.*; a size is .* or what a function in length_column= says"):
        list(data.batch(bf.MultiBudget(padded={"input_ids": 256}, total={"area": 9})))


def test_a_text_is_no_size_and_the_error_says_what_is() -> None:
    data = bf.from_sequence(["one", "two"])
    with pytest.raises(
        bf.DataError, match=r"'text' must be a list of numbers \(got string; .*\); .* a function in length_"
    ):
        list(data.batch_by_tokens(9, length_column="text"))


def test_a_sample_beyond_a_limit_is_told_dropped_or_alone() -> None:
    rows = [{"input_ids": [1, 2], "num_patches": patches} for patches in (3, 25, 2)]
    data = bf.from_sequence(rows)
    with pytest.raises(
        bf.DataError, match=r"a sample of 25 num_patches \(sequence, row 1\) cannot fit num_patches=20;"
    ):
        list(data.batch(BUDGET))
    assert sum(len(batch["lengths"]) for batch in data.batch(BUDGET, overlong="drop")) == 2
    assert sorted(len(batch["lengths"]) for batch in data.batch(BUDGET, overlong="alone")) == [1, 2]


def test_micro_batches_share_the_limits() -> None:
    batches = DATA.batch(BUDGET, micro_batches=2)
    for batch in batches:
        assert batch["input_ids"].numel() <= 128
        assert batch["num_patches"].sum() <= 10


def test_explain_tells_the_sizes() -> None:
    batches = DATA.batch(BUDGET)
    batch = next(iter(batches))
    found = batches.explain(batch)
    assert [one.sizes for one in found] == [
        {"input_ids": length, "num_patches": patches}
        for length, patches in zip(batch["lengths"].tolist(), batch["num_patches"].tolist())
    ]
    assert "num_patches" in str(found).split("\n")[0]


def test_a_batch_sampler_takes_sizes_by_name() -> None:
    sizes = {"input_ids": [len(row["input_ids"]) for row in ROWS], "num_patches": [row["num_patches"] for row in ROWS]}
    lists = list(bf.BatchSampler(sizes, BUDGET, shuffle=False))
    assert sorted(number for one in lists for number in one) == list(range(len(ROWS)))
    for one in lists:
        assert len(one) * max(sizes["input_ids"][number] for number in one) <= 256
        assert sum(sizes["num_patches"][number] for number in one) <= 20


kinds = st.sampled_from(["list", "number", "function"])


@given(data=st.data(), seed=st.integers(0, 99), window=st.integers(2, 40), drop=st.booleans())
@examples(40)
def test_random_schemas_keep_their_limits(data: st.DataObject, seed: int, window: int, drop: bool) -> None:
    """Brute force in plain Python over the rows of each batch."""
    draw = np.random.default_rng(seed)
    names = [f"size{number}" for number in range(data.draw(st.integers(1, 3)))]
    of_kind = {name: data.draw(kinds) for name in names}
    values = {name: draw.integers(0, 9, 40) for name in names}
    rows: list[dict[str, Any]] = [{"id": number} for number in range(40)]
    functions: list[Any] = []
    for name in names:
        for row, value in zip(rows, values[name].tolist()):
            row[f"{name}_held" if of_kind[name] == "function" else name] = (
                [1] * value if of_kind[name] == "list" else value
            )
        if of_kind[name] == "function":

            def held(block: pa.RecordBatch, name: str = name) -> Any:
                return block.column(f"{name}_held")

            held.__name__ = name
            functions.append(held)
    padded = names[: data.draw(st.integers(0, len(names)))]
    limits = {name: data.draw(st.integers(9, 30)) for name in names}
    budget = bf.MultiBudget(
        padded={name: limits[name] for name in padded},
        total={name: limits[name] for name in names if name not in padded},
        max_samples=data.draw(st.sampled_from([None, 3])),
    )
    how: dict[str, Any] = {"length_column": functions} if functions else {}
    batches = bf.from_sequence(rows).batch(budget, window=window, drop_last=drop, **how)
    taken: list[int] = []
    for batch in batches.plans():
        assert isinstance(batch, Batch)
        own = batch.window.samples[batch.numbers]
        for name in names:
            sizes = values[name][own]
            used = len(own) * max(1, sizes.max()) if name in padded else sizes.sum()
            assert used <= limits[name]
        assert len(own) <= (budget.max_samples or 40)
        taken += own.tolist()
    assert len({*taken}) == len(taken)
    assert drop or len(taken) == 40
    real = [batch["id"].tolist() for batch in batches]
    assert sorted(number for one in real for number in one) == sorted(taken)
