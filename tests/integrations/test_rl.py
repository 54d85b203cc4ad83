"""What takes the place of planners of verl, TRL and slime: the best partitions, a limit that is kept, ranks that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.integrations.rl import (
    TokenBudgetBatcher,
    build_dp_schedule,
    get_seqlen_balanced_partitions,
    rearrange_micro_batches,
)
from tests.effort import examples
from tests.forks import Launch, forks_of

WIDTH = 30
LENGTHS = [9, 30, 4, 17, 8, 21, 2, 12, 25, 6, 3, 14]


def cut(lengths: list[int], max_token_len: int, **settings: Any) -> list[list[int]]:
    return rearrange_micro_batches({"input_ids": [[7] * length for length in lengths]}, max_token_len, **settings)[1]


def ways(count: int, parts: int) -> Iterator[list[list[int]]]:
    """All ways to deal so many samples to parts, none of which is empty."""
    for part_of in product(range(parts), repeat=count):
        dealt = [[sample for sample in range(count) if part_of[sample] == part] for part in range(parts)]
        if all(dealt):
            yield dealt


def greatest(lengths: list[int], parts: list[list[int]]) -> int:
    return max(sum(lengths[sample] for sample in part) for part in parts)


def work(length: int) -> int:
    return 24_576 * length + length**2


def once_each(parts: list[list[int]], count: int) -> bool:
    return all(parts) and sorted(chain(*parts)) == list(range(count)) and all(part == sorted(part) for part in parts)


# -- partitions ----------------------------------------------------------------------------------------------------------


@examples(40)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=6), st.integers(1, 3), st.booleans())
def test_partitions_are_the_best_of_all(lengths: list[int], partitions: int, equal_size: bool) -> None:
    if equal_size:
        lengths = lengths[: len(lengths) // partitions * partitions]
    found = get_seqlen_balanced_partitions(lengths, partitions, equal_size)
    assert len(found) == partitions
    assert once_each(found, len(lengths))
    allowed = [way for way in ways(len(lengths), partitions) if not equal_size or len({*map(len, way)}) == 1]
    assert greatest(lengths, found) == min(greatest(lengths, way) for way in allowed)


@pytest.mark.parametrize("of", [np.array, torch.tensor, lambda values: list(map(torch.tensor, values))])
def test_partitions_of_lists_arrays_and_tensors_are_the_same(of: Callable[[list[int]], Any]) -> None:
    for equal_size in (True, False):
        expected = get_seqlen_balanced_partitions(LENGTHS, 4, equal_size)
        assert get_seqlen_balanced_partitions(of(LENGTHS), 4, equal_size) == expected
        assert {*map(len, expected)} == {3} or not equal_size


def test_partitions_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^2 samples leave some of 3 partitions empty; give a sample for each, or take"
    ):
        get_seqlen_balanced_partitions([5, 6], 3, equal_size=False)
    with pytest.raises(ValueError, match="equal_size=True: 5 samples cannot be shared out equally among 2 partitions"):
        get_seqlen_balanced_partitions([5, 6, 7, 8, 9], 2, equal_size=True)


# -- micro batches -------------------------------------------------------------------------------------------------------


@examples(40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_micro_batches_keep_the_limit_and_are_the_fewest(lengths: list[int]) -> None:
    found = cut(lengths, 30)
    assert once_each(found, len(lengths))
    assert greatest(lengths, found) <= 30
    allowed = [way for way in ways(len(lengths), len(found)) if greatest(lengths, way) <= 30]
    costs = [work(length) for length in lengths]
    assert greatest(costs, found) == min(greatest(costs, way) for way in allowed)
    fewer = [way for parts in range(1, len(found)) for way in ways(len(lengths), parts)]
    assert all(greatest(lengths, way) > 30 for way in fewer)


def test_the_limit_is_kept_where_work_would_be_more_equal_without() -> None:
    lengths = [20_000] + [1_000] * 30
    apart = [[0], list(range(1, 31))]
    found = cut(lengths, 26_000)
    assert sorted(sum(lengths[sample] for sample in part) for part in found) == [24_000, 26_000]
    costs = [work(length) for length in lengths]
    assert greatest(costs, apart) < greatest(costs, found)


def test_the_number_of_micro_batches_is_as_asked_for() -> None:
    assert len(cut(LENGTHS, 100)) == 2
    assert len(cut(LENGTHS, 100, min_num_micro_batch=5)) == 5
    assert len(cut(LENGTHS, 100, num_batches_divided_by=4)) == 4
    assert len(cut(LENGTHS, 100, min_num_micro_batch=5, num_batches_divided_by=3)) == 6


def test_the_least_work_comes_first_and_last() -> None:
    lengths = [2, 3, 5, 7, 11, 13]
    found = [sum(lengths[sample] for sample in part) for part in cut(lengths, 13, min_num_micro_batch=6)]
    assert found == [3, 7, 13, 11, 5, 2]
    unordered = cut(lengths, 13, min_num_micro_batch=6, use_dynamic_bsz_balance=False)
    assert once_each(unordered, 6)


def columns(of: Callable[[Any], Any]) -> dict[str, Any]:
    mask = [[1] * length + [0] * (WIDTH - length) for length in LENGTHS]
    tokens = [[sample] * WIDTH for sample in range(len(LENGTHS))]
    return {"input_ids": of(tokens), "attention_mask": of(mask), "temperature": 0.7}


@pytest.mark.parametrize("of", [list, np.array, torch.tensor])
def test_rows_go_with_their_samples(of: Callable[[Any], Any]) -> None:
    micro_batches, indices = rearrange_micro_batches(columns(of), 40)
    assert indices == cut(LENGTHS, 40)
    for batch, index in zip(micro_batches, indices, strict=True):
        assert type(batch["input_ids"]) is type(of([0]))
        assert np.asarray(batch["input_ids"])[:, 0].tolist() == index
        assert np.asarray(batch["attention_mask"]).sum(-1).tolist() == [LENGTHS[sample] for sample in index]
        assert batch["temperature"] == 0.7


def test_nested_tensors_are_measured_and_cut_by_rows() -> None:
    rows = [torch.full((length,), sample) for sample, length in enumerate(LENGTHS)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    micro_batches, indices = rearrange_micro_batches({"input_ids": nested}, 40)
    assert indices == cut(LENGTHS, 40)
    assert [[int(row[0]) for row in batch["input_ids"].unbind()] for batch in micro_batches] == indices


@pytest.mark.parametrize(("rewards", "rows"), [([1.0], 1), (torch.zeros(7), 7), (np.zeros((2, 3)), 2)])
def test_a_column_of_other_samples_is_refused(rewards: Any, rows: int) -> None:
    batch = {"input_ids": [[1, 2, 3], [4], [5, 6]], "rewards": rewards, "temperature": 0.7, "scale": torch.tensor(2.0)}
    with pytest.raises(
        ValueError, match=f"^rewards has {rows} rows, and the batch has 3 samples; give it a row for each"
    ):
        rearrange_micro_batches(batch, 3)


def test_a_tensordict_comes_back_as_tensordicts() -> None:
    tensordict = pytest.importorskip("tensordict")
    tensors = {name: values for name, values in columns(torch.tensor).items() if name != "temperature"}
    extra = {
        "uid": tensordict.NonTensorStack(*map(str, range(len(LENGTHS)))),
        "temperature": tensordict.NonTensorData(0.7),
        "nested": torch.nested.as_nested_tensor([torch.ones(length) for length in LENGTHS], layout=torch.jagged),
    }
    batch = tensordict.TensorDict({**tensors, **extra}, batch_size=[len(LENGTHS)])
    micro_batches, indices = rearrange_micro_batches(batch, 40)
    for one, index in zip(micro_batches, indices, strict=True):
        assert one.batch_size == torch.Size([len(index)])
        assert one["input_ids"][:, 0].tolist() == index
        assert one["uid"] == list(map(str, index))
        assert one["temperature"] == 0.7
        assert one["nested"].offsets().diff().tolist() == [LENGTHS[sample] for sample in index]


def test_micro_batches_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^the batch has no input_ids, by which samples are counted \(got responses\)$"
    ):
        rearrange_micro_batches({"responses": torch.ones(2, 3)}, 8)
    with pytest.raises(ValueError, match=r"^the batch has no attention_mask"):
        rearrange_micro_batches({"input_ids": torch.ones(2, 3, dtype=torch.long)}, 8)
    with pytest.raises(bf.OverlongError, match=r"a sample of 30 tokens \(sample 1\) cannot fit max_token_len=29"):
        cut(LENGTHS, 29)
    with pytest.raises(ValueError, match="13 micro batches need a sample each, and a rank has 12"):
        cut(LENGTHS, 30, min_num_micro_batch=13)
    with pytest.raises(ValueError, match="the batch of a rank has no samples; give each rank at least one sample"):
        cut([], 30)
    with pytest.raises(ValueError, match="max_token_len must be at least 1 token"):
        cut(LENGTHS, 0)


# -- TRL -----------------------------------------------------------------------------------------------------------------


def test_a_token_budget_batcher_gives_every_rank_rollouts_within_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500).tolist()
    lengths[7] = 101
    metrics: dict[str, list[float]] = {}
    rollouts = [{"input_ids": [0] * length, "number": number} for number, length in enumerate(lengths)]
    found = list(TokenBudgetBatcher(rollouts, 4, 100, metrics))
    assert all(len(batch) == 4 and all(batch) for batch in found)
    assert all(sum(len(one["input_ids"]) for one in rank) <= 100 for batch in found for rank in batch)
    assert sorted(one["number"] for batch in found for rank in batch for one in rank) == [*range(7), *range(8, 500)]
    assert metrics == {"batch/dropped_oversize_total": [1.0]}
    assert "a rollout of 101 tokens exceeds token_budget=100" in caplog.text
    assert len(found) <= 1.06 * (sum(lengths) - 101) / 400


def test_rollouts_that_leave_a_rank_without_any_wait_for_more(caplog: pytest.LogCaptureFixture) -> None:
    rollouts = [{"input_ids": [0] * 60, "number": number} for number in range(23)]  # one fits
    found = list(TokenBudgetBatcher(rollouts, 4, 100))
    assert [list(map(len, batch)) for batch in found] == [[1, 1, 1, 1]] * 5
    assert "3 rollouts at the end leave a rank without any" in caplog.text
    assert len({one["number"] for batch in found for rank in batch for one in rank}) == 20
    assert not list(TokenBudgetBatcher(rollouts[:3], 4, 100))


def test_a_token_budget_batcher_takes_no_more_of_an_endless_source_than_a_window() -> None:
    taken = []

    def source() -> Iterator[dict[str, Any]]:
        while True:
            taken.append(1)
            yield {"input_ids": [0] * 10}

    batches = iter(TokenBudgetBatcher(source(), 2, 100, window=2))
    assert [len(rank) for rank in next(batches)] == [10, 10]
    assert len(taken) == 40


# -- slime ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vpp", "group"), [(1, 3), (2, 3)])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_schedule_has_each_sample_once_in_equal_numbers_of_micro_batches(dynamic: bool, vpp: int, group: int) -> None:
    draw = np.random.default_rng(vpp)
    lengths = draw.integers(1, 60, 200)
    rollouts = draw.permutation(np.repeat(np.arange(100), 2)).tolist()  # of 2 samples, which do not stand together
    args = SimpleNamespace(use_dynamic_batch_size=dynamic, max_tokens_per_gpu=50, micro_batch_size=4)
    parallel = {"dp_size": 4, "cp_size": 2, "vpp_size": vpp, "microbatch_group_size_per_vp_stage": group}
    partitions, indices, counts, sizes = build_dp_schedule(
        args, parallel, lengths.tolist(), global_batch_size=30, rollout_indices=rollouts
    )
    assert sizes == [30] * 3
    assert len(counts) == 3
    assert all(count % (group if vpp > 1 else 1) == 0 for count in counts)
    order = list(dict.fromkeys(rollouts))[:90]
    assert sorted(chain(*partitions)) == [sample for sample in range(200) if rollouts[sample] in order]
    for own, parts in zip(partitions, indices, strict=True):
        assert len(parts) == sum(counts)
        assert [*chain(*parts)] == list(range(len(own)))
        step = np.repeat(np.arange(3), counts).tolist()
        for number, part in zip(step, parts, strict=True):
            samples = [own[at] for at in part]
            assert (lengths[samples].sum() <= 100) if dynamic else len(part) <= 4
            assert {order.index(rollouts[sample]) // 30 for sample in samples} == {number}


def test_a_schedule_that_cannot_be_is_refused() -> None:
    args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=10)
    parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 4}
    with pytest.raises(ValueError, match="3 rollouts do not fill a step of global_batch_size=4"):
        build_dp_schedule(args, parallel, [5, 5, 5], global_batch_size=4, rollout_indices=[0, 1, 2])
    with pytest.raises(ValueError, match="step 0 has 3 samples for 8 micro batches; give it more rollouts"):
        build_dp_schedule(args, parallel, [5, 5, 5], global_batch_size=3, rollout_indices=[0, 1, 2])
    with pytest.raises(bf.OverlongError, match=r"a sample of 11 tokens \(sample 1\) cannot fit tokens=10"):
        build_dp_schedule(args, parallel, [5, 11, 5], global_batch_size=3, rollout_indices=[0, 1, 2])


# -- ranks ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with forks_of("tests.integrations.rl_child") as started:
        yield started


def test_ranks_get_the_same_number_of_micro_batches(launch: Launch, tmp_path: Path) -> None:
    lengths = [[10] * 6, LENGTHS]
    apart = [len(cut(own, 40)) for own in lengths]
    assert apart == [2, 4]
    together = launch(2, "indices", tmp_path, lengths, {"max_token_len": 40})
    for own, indices in zip(lengths, together, strict=True):
        assert len(indices) == 4
        assert once_each(indices, len(own))
        assert greatest(own, indices) <= 40
    alone = launch(2, "indices", tmp_path, lengths, {"max_token_len": 40, "same_micro_num_in_dp": False})
    assert list(map(len, alone)) == apart


@pytest.mark.parametrize(
    ("lengths", "messages"),
    [
        (
            [[10] * 6, [10, 50]],
            [
                "another rank has a sample of 50 tokens, which cannot fit max_token_len=40",
                "a sample of 50 tokens (sample 1) cannot fit max_token_len=40; truncate or filter it, or raise the limit",
            ],
        ),
        (
            [[10, 10, 10], LENGTHS],
            [
                "4 micro batches need a sample each, and a rank has 3; raise max_token_len, ask for fewer "
                "micro batches, or give each rank more samples"
            ]
            * 2,
        ),
    ],
    ids=["a sample is too long", "too few samples"],
)
def test_all_ranks_say_what_one_cannot(
    launch: Launch, tmp_path: Path, lengths: list[list[int]], messages: list[str]
) -> None:
    assert launch(2, "indices", tmp_path, lengths, {"max_token_len": 40}) == messages
