"""Optimizer steps of several batches: each knows the labels of all, whatever the ranks, and a resume changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

import brimful as bf
from brimful.plan.mix import low_discrepancy_order
from tests.shards import write

COUNT = 600


def samples(count: int = COUNT) -> list[dict[str, Any]]:
    """Of very different lengths, the first label of each not trained on, and none of every seventh."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 1, count).astype(int), 1, 200).tolist()
    return [
        {"input_ids": [row] * length, "labels": [-100] * length if row % 7 == 0 else [-100, *range(length - 1)]}
        for row, length in enumerate(lengths)
    ]


def indexed() -> bf.Dataset:
    return bf.from_sequence(samples(), shuffle=True)


def unknown() -> bf.Dataset:
    """Whose labels no index knows."""
    return indexed().map(dict)


MAKES: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "budget": lambda data: data.batch_by_tokens(1024, micro_batches=4, window=200, balance_group=2),
    "packed": lambda data: data.pack(200, rows=4, micro_batches=4, window=200),
    "even packed": lambda data: data.pack(
        200, rows=4, micro_batches=4, window=200, balance_group=2, balance_cost=bf.AttentionCost(quadratic=1 / 10)
    ),
    "static": lambda data: data.batch(bf.StaticShapes([10, 50, 200], 1024), micro_batches=4, window=200),
    "fixed": lambda data: data.batch(32, micro_batches=4),
}


def trained_on(batch: Any) -> int:
    return int((batch["labels"] != -100).sum())


def seen(batch: Any, key: str = "num_items_in_batch") -> Any:
    return batch["input_ids"].tolist(), batch["ends_step"], batch["weight"], int(batch[key])


@pytest.mark.parametrize("data", [indexed, unknown])
@pytest.mark.parametrize("make", MAKES)
def test_each_batch_has_the_labels_of_its_whole_step(make: str, data: Callable[[], bf.Dataset]) -> None:
    batches = list(MAKES[make](data()))
    assert [number for number, batch in enumerate(batches, 1) if batch["ends_step"]] == [
        *range(4, len(batches), 4),
        len(batches),
    ]
    for first in range(0, len(batches), 4):
        step = batches[first : first + 4]
        assert {int(batch["num_items_in_batch"]) for batch in step} == {sum(map(trained_on, step))}


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("make", ["budget", "static", "fixed"])
def test_labels_of_one_number_a_sample_are_counted(make: str, kind: type, tmp_path: Path) -> None:
    rows = [one | {"labels": kind(number % 3 if number % 5 else -100)} for number, one in enumerate(samples())]
    bf.from_sequence(rows).to_store(tmp_path / "store")
    for data in (bf.from_sequence(rows, shuffle=True), bf.from_iterable(rows), bf.from_store(tmp_path / "store")):
        batches = list(MAKES[make](data))
        for first in range(0, len(batches), 4):
            step = batches[first : first + 4]
            is_asked = [
                (batch["labels"] != -100) | (kind is float) for batch in step
            ]  # -100.0 is a number as any other
            real = [batch.get("sample_weights", torch.ones(1)) > 0 for batch in step]
            own = sum(int((one & other).sum()) for one, other in zip(is_asked, real, strict=True))
            assert {int(batch["num_items_in_batch"]) for batch in step} == {own}


def test_ranks_count_labels_of_one_number_a_sample_together(tmp_path: Path) -> None:
    rows = bf.from_sequence([one | {"labels": number % 3} for number, one in enumerate(samples(97))])
    store = rows.to_store(tmp_path / "store")  # which does not know them without its rows
    for data, name in ((rows, "num_items_in_batch"), (store, "num_items_on_rank")):
        ranks = [list(data.batch(8, micro_batches=2).shard(rank, 2)) for rank in range(2)]
        assert ranks[1][-1]["is_filler"]
        for first in range(0, len(ranks[0]), 2):
            steps = [rank[first : first + 2] for rank in ranks]
            counts = [sum(trained_on(batch) for batch in step if not batch["is_filler"]) for step in steps]
            for step, count in zip(steps, counts, strict=True):
                wanted = sum(counts) if data is rows else count
                assert {int(batch[name]) for batch in step} == {wanted}


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_labels_of_a_step_are_those_of_all_ranks(world_size: int) -> None:
    batches = MAKES["budget"](indexed())
    ranks = [list(batches.shard(rank, world_size)) for rank in range(world_size)]
    for first in range(0, len(ranks[0]), 4):
        step = [batch for rank in ranks for batch in rank[first : first + 4]]
        assert {int(batch["num_items_in_batch"]) for batch in step} == {sum(map(trained_on, step))}
    ends = [[batch["ends_step"] for batch in rank] for rank in ranks]
    assert ends == [ends[0]] * world_size


def test_ranks_of_streams_count_their_own_labels(tmp_path: Path) -> None:
    for shard in range(2):
        write(tmp_path / f"{shard}.jsonl", samples()[shard::2])
    batches = bf.from_files(str(tmp_path / "*.jsonl"), streams=2).batch_by_tokens(1024, micro_batches=4, window=100)
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        ranks = [*pool.map(lambda rank: list(batches.shard(rank, 2, process_group=store)), range(2))]
    for rank in ranks:
        assert "num_items_in_batch" not in rank[0]
        for first in range(0, len(rank), 4):
            step = rank[first : first + 4]
            own = sum(trained_on(batch) for batch in step)
            assert {int(batch["num_items_on_rank"]) for batch in step} == {own}
            assert float(bf.token_mean(torch.tensor(float(own)), step[0])) == bool(own)


@pytest.mark.parametrize("data", [indexed, unknown])
def test_windows_of_steps_have_samples_of_two(data: Callable[[], bf.Dataset]) -> None:
    for batches in (
        data().batch_by_tokens(1024, micro_batches=4, window="steps"),
        data().batch(32, micro_batches=4, window="steps"),
        data().pack(200, rows=8, micro_batches=4, window="steps"),
    ):
        planned = [batch.window.number for batch in batches.plans()]
        sizes = np.bincount(planned)
        assert len(sizes) > 3
        assert 7 <= np.median(sizes) <= 11
    with pytest.raises(TypeError, match=r"window must be an integer \(got 'steps'\)"):
        indexed().batch_by(32, len, micro_batches=4, window="steps")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"window must be a number of rows, 'auto' or 'steps' \(got 'all'\)"):
        indexed().batch_by_tokens(1024, window="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("window", ["steps", 300])
def test_a_state_of_other_steps_says_that_windows_change_with_the_next_epoch(
    window: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def ids(batch: Any) -> Any:
        return batch["input_ids"].tolist()

    data = indexed().drop("labels")  # of which some are all -100, which is said too
    four, two = (data.batch_by_tokens(256 * number, micro_batches=number, window=window) for number in (4, 2))
    with four.iter() as it:
        list(islice(it, 40))
        state, rest = it.state_dict(), list(map(ids, it))
    assert list(map(ids, four.iter(state))) == rest
    assert not caplog.records
    assert list(map(ids, two.iter(state))) == rest
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (window == "steps"), messages
    for message in messages:
        assert re.search(
            r"goes on with windows of (\d+) samples.*windows have \d+ samples.* say window=\1$", message
        ), message


def test_one_micro_batch_is_the_same_as_none() -> None:
    one, none = (indexed().batch_by_tokens(1024, micro_batches=number) for number in (1, None))
    first, second = one.iter(), none.iter()
    for _ in range(3):
        batch, same = next(first), next(second)
        assert batch.keys() == same.keys()
        assert batch["lengths"].tolist() == same["lengths"].tolist()
    assert first.state_dict() == second.state_dict()
    assert one.micro_batches is none.micro_batches is None


def test_a_sample_too_long_for_its_share_is_an_error_that_says_so() -> None:
    words = r"max_tokens=100; .*\(each of the 4 micro_batches of a step has an equal share\); or set overlong="
    with pytest.raises(bf.DataError, match=words):
        next(iter(indexed().batch_by_tokens(400, micro_batches=4)))


@pytest.mark.parametrize("number", [np.int8(64), np.uint8(128)])
def test_numbers_of_batches_that_numpy_wraps_around_are_counted_out(number: Any) -> None:
    for make in (
        lambda number: indexed().batch_by_tokens(1 << 17, micro_batches=number, window="steps"),
        lambda number: indexed().pack(200, rows=256, micro_batches=number, window="steps"),
    ):
        assert [len(batch) for batch in make(number).plans()] == [len(batch) for batch in make(int(number)).plans()]


def test_steps_of_data_that_repeat_go_on_over_the_ends_of_epochs() -> None:
    """As trainers count, which know of no end."""
    rows = samples(90)
    for data in (bf.from_sequence(rows, shuffle=True, repeat=True), bf.from_sequence(rows, shuffle=True).map(dict)):
        batches = data.batch(36, micro_batches=4)  # 10 an epoch
        if not batches.repeats:
            steps = batches.prefetch(2).loader(steps_per_epoch=8)
            made = [batch for _ in range(5) for batch in steps]
        else:
            made = list(islice(batches, 40))
        assert [batch["ends_step"] for batch in made] == [False, False, False, True] * 10
        for first in range(0, 40, 4):
            step = made[first : first + 4]
            assert {int(batch["num_items_in_batch"]) for batch in step} == {sum(map(trained_on, step))}
    batches = bf.from_sequence(rows, shuffle=True, repeat=True).batch(36, micro_batches=4)
    for taken in (7, 9, 10, 11, 12, 21):
        with batches.iter() as it:
            begun = [seen(batch) for batch in islice(it, taken)]
            state = json.loads(json.dumps(it.state_dict()))
        rest = [seen(batch) for batch in islice(batches.iter(state), 40 - taken)]
        assert begun + rest == [seen(batch) for batch in islice(batches, 40)]


def test_ranks_of_streams_that_repeat_count_their_own_labels(tmp_path: Path) -> None:
    for shard in range(2):
        write(tmp_path / f"{shard}.jsonl", samples(90)[shard::2])
    batches = bf.from_files(str(tmp_path / "*.jsonl"), streams=2, repeat=True).batch(36, micro_batches=4)
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        ranks = [*pool.map(lambda rank: list(islice(batches.shard(rank, 2, process_group=store), 12)), range(2))]
    for rank in ranks:
        assert [batch["ends_step"] for batch in rank] == [False, False, False, True] * 3
        for first in range(0, 12, 4):
            step = rank[first : first + 4]
            assert {int(batch["num_items_on_rank"]) for batch in step} == {sum(map(trained_on, step))}


def test_steps_begin_again_where_take_does() -> None:
    loader = indexed().batch(32, micro_batches=4).take(5).loader(steps_per_epoch=8)
    assert [batch["ends_step"] for batch in loader] == [False, False, False, True, False, False, False, False]


@pytest.mark.parametrize(("steps", "others"), [(3, "4"), (6, "4 or 8")])
def test_an_epoch_of_steps_ends_none_in_its_middle(steps: int, others: str) -> None:
    batches = indexed().batch(32, micro_batches=4)
    message = f"steps_per_epoch={steps} batches is not a multiple of micro_batches=4. .*: give {others}$"
    with pytest.raises(ValueError, match=message):
        batches.loader(steps_per_epoch=steps)


def test_fillers_of_data_without_labels_count_none(tmp_path: Path) -> None:
    for shard, count in enumerate((2, 40)):
        write(tmp_path / f"{shard}.jsonl", [{"input_ids": [row]} for row in range(count)])
    batches = bf.from_files(str(tmp_path / "*.jsonl"), streams=2).batch(8, micro_batches=4)
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        short, _ = pool.map(lambda rank: list(batches.shard(rank, 2, process_group=store)), range(2))
    assert [batch["weight"] for batch in short[4:8]] == [0.0] * 4
    assert {tuple(batch) for batch in short} == {tuple(short[0])}
    assert "num_items_on_rank" not in short[0]


@pytest.mark.parametrize("name", ["weight", "is_filler", "ends_step"])
def test_what_a_collate_fn_makes_is_not_written_over(name: str) -> None:
    message = f"collate_fn returns '{name}', and batches of ranks or optimizer steps hold something of that name"
    with pytest.raises(bf.DataError, match=message):
        next(iter(indexed().batch(8, micro_batches=4, collate_fn=lambda rows: {name: [0.5] * len(rows)})))
    number = {"labels": torch.ones(3, dtype=torch.int64), "num_items_in_batch": torch.tensor(7)}
    made = next(iter(indexed().batch(8, micro_batches=4, collate_fn=lambda rows: dict(number))))
    assert made["num_items_in_batch"] == 7


def test_labels_that_are_cut_are_not_counted() -> None:
    for data in (indexed(), unknown()):
        for batches in (
            data.batch_by_tokens(200, micro_batches=4, window=200, overlong="truncate"),
            data.pack(100, rows=4, micro_batches=4, window=200, overlong="split"),
        ):
            made = list(batches)
            for first in range(0, len(made), 4):
                step = made[first : first + 4]
                assert {int(batch["num_items_in_batch"]) for batch in step} == {sum(map(trained_on, step))}


SHIFTED: Final = (
    ("batch", lambda data, **how: data.batch(2, **how)),
    ("truncate", lambda data, **how: data.batch_by_tokens(8, window=8, overlong="truncate", **how)),
    ("pack", lambda data, **how: data.pack(6, rows=2, window=8, overlong="truncate", **how)),
    ("split", lambda data, **how: data.pack(3, rows=4, window=8, overlong="split", **how)),
    ("named", lambda data, **how: data.batch_by_tokens(8, overlong="truncate", token_columns=["shift_labels"], **how)),
)


@pytest.mark.parametrize("where", ["stream", "indexed"])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("way", "make"), SHIFTED, ids=[way for way, _ in SHIFTED])
def test_the_labels_that_the_loss_is_taken_over_are_counted(way: str, make: Any, is_masked: bool, where: str) -> None:
    """`labels` of which some have no place among the `shift_labels`, and `shift_labels` whose last one asks for something."""
    rows = [{"input_ids": [*range(1, length + 1)]} for length in (4, 2, 5, 1, 6, 3)]
    rows = [row | {"labels": row["input_ids"], "shift_labels": [*row["input_ids"][1:], 9]} for row in rows]
    if way == "named":
        rows = [{name: row[name] for name in ("input_ids", "shift_labels")} for row in rows]
    if is_masked and way != "named":
        rows = [row | {"attention_mask": [1] * len(row["input_ids"])} for row in rows]
    data = bf.from_sequence(rows)
    batches = list(make(data.map(dict) if where == "stream" else data, micro_batches=2))
    for first in range(0, len(batches), 2):
        step = batches[first : first + 2]
        count = sum(int((batch["shift_labels"] != -100).sum()) for batch in step)
        assert {int(batch["num_items_in_batch"]) for batch in step} == {count}
    with make(data.map(dict), micro_batches=2).iter() as it:
        next(it)
        json.dumps(it.state_dict())
    ranks = [list(make(data, micro_batches=2).shard(rank, 2)) for rank in range(2)]
    for mine in ranks:
        for first in range(0, len(mine), 2):
            step = mine[first : first + 2]
            count = sum(int((batch["shift_labels"] != -100).sum()) for batch in step)
            assert {int(batch["num_items_on_rank"]) for batch in step} == {count}, "no index knows them"
            assert "num_items_in_batch" not in step[0]


def test_labels_that_nobody_trains_on_are_not_counted_for_a_collate_fn() -> None:
    """A function makes other labels than a column that no loss is taken over; `labels` and `shift_labels` it gets whole."""
    rows = [{"input_ids": [1, 2, 3, 4], "chosen_labels": [1, 2]}] * 4
    made = next(iter(bf.from_sequence(rows).pack(8, rows=2, micro_batches=2, collate_fn=lambda rows: {"rows": rows})))
    assert "num_items_in_batch" not in made
    for name in ("labels", "shift_labels"):
        named = bf.from_sequence([{"input_ids": [1, 2, 3, 4], name: [-100, 2, 3, 4]}] * 4)
        for batch in named.pack(8, rows=2, micro_batches=2, collate_fn=lambda rows: {"rows": rows}):
            assert int(batch["num_items_in_batch"]) == 12, name


@pytest.mark.parametrize("options", [{"pad_values": {"shift_labels": 0}}, {"dtypes": {"shift_labels": "float32"}}])
def test_shifted_labels_that_padding_may_be_taken_for_are_not_counted(options: Any) -> None:
    data = bf.from_sequence([{"input_ids": [1, 2], "labels": [1, 2], "shift_labels": [2, -100]}] * 4)
    assert "num_items_in_batch" not in next(iter(data.batch(2, micro_batches=2, **options)))


def test_labels_that_are_null_are_an_error_of_their_column() -> None:
    rows = [{"input_ids": [row], "labels": [None if row == 5 else row]} for row in range(8)]
    with pytest.raises(
        bf.DataError, match=r"'labels' has a null in its list \(sequence, row 5\), and becomes a tensor"
    ):
        next(iter(bf.from_sequence(rows).batch(4, micro_batches=2)))


@pytest.mark.parametrize("make", MAKES)
def test_a_resume_inside_a_step_knows_what_is_left_of_it(make: str) -> None:
    batches = MAKES[make](unknown())
    whole = [seen(batch) for batch in batches]
    for taken in (1, 2, 3, 4, 7, len(whole) - 1):
        with batches.iter() as it:
            assert [seen(batch) for batch in islice(it, taken)] == whole[:taken]
            state = json.loads(json.dumps(it.state_dict()))
        assert [seen(batch) for batch in batches.iter(state)] == whole[taken:]


def test_as_many_ranks_more_as_batches_fewer_go_on_with_the_same_order() -> None:
    one, four = (
        indexed().batch_by_tokens(256 * number, micro_batches=number, window=200, shuffle_batches="stratified")
        for number in (1, 4)
    )
    with four.shard(0, 1).iter() as it:
        begun = [batch["input_ids"].tolist() for batch in islice(it, 8)]
        state = it.state_dict()
    ranks = [list(one.shard(rank, 4).iter(state)) for rank in range(4)]
    rest = [batch["input_ids"].tolist() for step in zip(*ranks) for batch in step if batch["weight"]]
    assert begun + rest == [batch["input_ids"].tolist() for batch in four]


def test_with_other_sizes_a_step_begins_where_one_was_left() -> None:
    two, four = (indexed().batch_by_tokens(256 * number, micro_batches=number, window=200) for number in (2, 4))
    with four.iter() as it:
        begun = [batch["input_ids"].tolist() for batch in islice(it, 5)]
        state = it.state_dict()
    rest = list(two.iter(state))
    assert begun + [batch["input_ids"].tolist() for batch in rest] == [batch["input_ids"].tolist() for batch in four]
    assert [batch["ends_step"] for batch in rest[:4]] == [False, True, False, True]
    assert int(rest[0]["num_items_in_batch"]) == sum(map(trained_on, rest[:2]))


def test_a_step_of_batches_has_the_gradient_of_one_batch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(COUNT, 8, dtype=torch.float64)

    def loss_sum(batch: Any) -> torch.Tensor:
        each = model(batch["input_ids"]).square().sum(-1)
        return torch.where(batch["labels"] != -100, each, 0.0).sum()

    step = list(islice(MAKES["budget"](indexed()), 4))
    for batch in step:
        bf.token_mean(loss_sum(batch), batch).backward()
    added = model.weight.grad
    model.weight.grad = None
    (sum(loss_sum(batch) for batch in step) / sum(map(trained_on, step))).backward()
    torch.testing.assert_close(added, model.weight.grad, rtol=1e-10, atol=0)


@pytest.mark.parametrize("spread", ["wiki", "lognormal"])
def test_any_batches_in_a_row_have_about_the_mean_length_of_all(spread: str) -> None:
    random = np.random.default_rng(3)
    if spread == "wiki":
        heading = random.random(8_000) < 0.26
        long = random.lognormal(np.log(111), 0.64, 8_000)
        lengths = np.clip(np.where(heading, random.lognormal(np.log(8), 0.35, 8_000), long).astype(int) + 2, 4, 512)
    else:
        lengths = np.clip(random.lognormal(np.log(420), 1.1, 8_000).astype(int), 8, 4096)
    data = bf.from_sequence([{"input_ids": [0] * length} for length in lengths.tolist()], shuffle=True)
    planned = list(data.batch_by_tokens(8 * 4_096, micro_batches=8, window=2_000, balance_group=2).plans())
    windows = np.array([batch.window.number for batch in planned])
    for number in range(windows.max() + 1):
        padded = np.array([batch.padded_length for batch in planned])[windows == number]
        reach = padded.max() - padded.min()
        for k in (2, 4, 8, 16):  # of pairs of neighbours in cost
            sums = np.convolve(padded, np.ones(2 * k), "valid") / (2 * k)
            bound = (1 + np.log2(k) / 2) / k + 2 / len(padded)  # and the one that is cut in two at each end
            assert np.abs(sums - padded.mean()).max() <= (bound + 1 / k) * reach
            assert sums.std() < 0.85 * padded.std() / np.sqrt(k)  # of a random order


def test_streams_cover_short_and_long_together(tmp_path: Path) -> None:
    """As long as their windows keep pace: here each has one."""
    lengths = np.random.default_rng(1).permutation(np.arange(1, 401)).tolist()
    for shard in range(4):
        write(tmp_path / f"{shard}.jsonl", [{"input_ids": [0] * length} for length in lengths])
    data = bf.from_files(str(tmp_path / "*.jsonl"), streams=4)
    batches = data.batch_by_tokens(2000, window=400, shuffle_batches="stratified")
    padded = np.array([batch.padded_length for batch in batches.plans()])
    for k in (4, 8, 16):
        means = np.convolve(padded, np.ones(k), "valid") / k
        assert np.abs(means - padded.mean()).max() <= (1 + np.log2(k) / 2) / k * np.ptp(padded)
    random = data.batch_by_tokens(2000, window=400)
    free = np.convolve([batch.padded_length for batch in random.plans()], np.ones(8), "valid") / 8
    assert np.convolve(padded, np.ones(8), "valid").std() / 8 < 0.5 * free.std()


def test_equal_work_of_ranks_costs_what_a_random_order_does() -> None:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(111), 0.64, 16_000).astype(int), 4, 512)
    data = bf.from_sequence([{"input_ids": [0] * length} for length in lengths.tolist()], shuffle=True)
    cost = {}
    for order in (True, "stratified"):
        made = data.batch_by_tokens(4_096, window=4_000, balance_group=8, shuffle_batches=order).plans()  # type: ignore[arg-type]
        work = np.array([batch.padded_size * batch.padded_length * (1 + batch.padded_length / 768) for batch in made])
        steps = work[: len(work) // 8 * 8].reshape(-1, 8)
        cost[order] = steps.max(axis=1).sum() / steps.mean(axis=1).sum()
    assert cost["stratified"] == pytest.approx(cost[True], rel=0.02)


def test_the_order_is_that_of_the_algorithm() -> None:
    """For states that were saved: another order would be another run."""
    assert low_discrepancy_order(10, 42).tolist() == [6, 2, 8, 4, 0, 7, 3, 9, 5, 1]
    batches = indexed().batch_by_tokens(1024, window=600, shuffle_batches="stratified")
    assert sorted(batch.padded_length for batch in batches.plans()) == sorted(
        batch.padded_length for batch in indexed().batch_by_tokens(1024, window=600).plans()
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda data: data.batch(30, micro_batches=4),
            "30 samples of an optimizer step cannot be divided .*: give a multiple of 4",
        ),
        (lambda data: data.batch_by_tokens(64, micro_batches=0), "micro_batches must be at least 1 batch"),
        (
            lambda data: data.batch(64, micro_batches="as-needed"),
            "micro_batches must be a number of batches, or 'as_needed' .got 'as-needed'",
        ),
        (lambda data: data.pack(64, rows=3, micro_batches=2), "3 rows of an optimizer step cannot be divided"),
        (lambda data: data.batch(4, shuffle_batches="sorted"), "must be True, False or 'stratified' .got 'sorted'"),
    ],
)
def test_what_makes_no_step_is_refused(make: Callable[[bf.Dataset], bf.Batches], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(indexed())
