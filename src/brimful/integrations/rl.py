"""RL frameworks: planners of verl, TRL and slime, with the same arguments and results, on `balance`, `micro_batches`, `steps`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from brimful.plan import AttentionCost, OverlongError, balance, micro_batches, steps
from brimful.plan.costs import sample_costs
from brimful.plan.errors import check_bool, integer, logger
from brimful.plan.overlong import refuse_overlong
from brimful.plan.plan import IntArray, one_length

__all__ = ["TokenBudgetBatcher", "build_dp_schedule", "get_seqlen_balanced_partitions", "rearrange_micro_batches"]

WORK: Final = AttentionCost(quadratic=1 / (6 * 4_096))
"""Of a transformer 4,096 wide, as verl counts."""


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Deals samples to partitions so that the greatest sum is as small as possible. It takes the place of verl's function.

    Args:
        seqlen_list: tokens or work of each sample, integers (n,): a list, an array or a tensor.
        k_partitions: how many partitions.
        equal_size: the same number of samples in each.
    Returns:
        For each partition its sample numbers, ascending. None is empty.
    Raises:
        ValueError: fewer samples than partitions, or a number that cannot be shared out equally. The message has both numbers.
    Price: that of `balance`: 1 to 3 ms for 2,048 samples in 64 partitions.
    Example:
        >>> get_seqlen_balanced_partitions([8, 7, 6, 5, 4], 2, equal_size=False)
        [[2, 3, 4], [0, 1]]
    """
    lengths = one_length(_array(seqlen_list), "get_seqlen_balanced_partitions")
    partitions = integer("k_partitions", k_partitions, 1, "partition")
    check_bool("equal_size", equal_size)
    if len(lengths) < partitions:
        raise ValueError(
            f"{len(lengths):,} samples leave some of {partitions:,} partitions empty; give a sample for each, or take fewer "
            "partitions"
        )
    if equal_size and len(lengths) % partitions:
        raise ValueError(
            f"equal_size=True: {len(lengths):,} samples cannot be shared out equally among {partitions:,} partitions; give a "
            "multiple"
        )
    return _numbers(balance(lengths, partitions, equal_count=equal_size))


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
) -> tuple[list[Any], list[list[int]]]:
    """Cuts a batch into micro batches of at most `max_token_len` tokens and equal work. It takes the place of verl's function.

    There are as few micro batches as can be found. Padding does not count as tokens. Unlike verl's, no micro batch exceeds
    `max_token_len`: where equal work would, there are more of them.

    Args:
        batch: a TensorDict, or a dict of tensors, arrays or lists, a row a sample. It has `input_ids`, and `attention_mask`
            (B, L) unless `input_ids` is a nested tensor, or lists of the real tokens alone.
        max_token_len: most tokens in a micro batch. It is never broken.
        dp_group: the data-parallel process group. None: all ranks.
        num_batches_divided_by: the number of micro batches is a multiple of it, as virtual pipeline stages need.
        same_micro_num_in_dp: every rank of `dp_group` gets the same number of micro batches.
        min_num_micro_batch: at least so many.
        use_dynamic_bsz_balance: the least work comes first and last, the most in the middle, which makes pipeline bubbles short.
    Returns:
        The micro batches, of the batch's type, and for each the numbers of its samples, ascending.
    Raises:
        OverlongError: a sample of some rank alone exceeds `max_token_len`.
        ValueError: more micro batches than some rank has samples, or a rank without a sample. Every rank raises it. Or a
            column has another number of rows than `input_ids`.
    Price: that of `micro_batches` and `balance`, and one exchange of three integers among the ranks.
    Example:
        >>> batch = {"input_ids": [[1, 2, 3], [4], [5, 6]]}
        >>> rearrange_micro_batches(batch, max_token_len=3)
        ([{'input_ids': [[1, 2, 3]]}, {'input_ids': [[4], [5, 6]]}], [[0], [1, 2]])
    """
    lengths = _lengths(batch)
    cap = integer("max_token_len", max_token_len, 1, "token")
    check_bool("same_micro_num_in_dp", same_micro_num_in_dp)
    check_bool("use_dynamic_bsz_balance", use_dynamic_bsz_balance)
    least = 1 if min_num_micro_batch is None else integer("min_num_micro_batch", min_num_micro_batch, 1, "micro batch")
    step = (
        1 if num_batches_divided_by is None else integer("num_batches_divided_by", num_batches_divided_by, 1, "batch")
    )
    longest = int(lengths.max(initial=0))
    fewest = len(micro_batches(lengths, max(cap, longest), cost=WORK)[0])
    ranks = [(max(fewest, least), longest, -len(lengths))]
    if same_micro_num_in_dp and dist.is_available() and dist.is_initialized():
        ranks *= dist.get_world_size(dp_group)
        dist.all_gather_object(ranks, ranks[0], group=dp_group)
    needed, longest, samples = np.max(ranks, axis=0).tolist()
    refuse_overlong(lengths, lengths <= cap, max_length=cap, limit=f"max_token_len={cap:,}", remedy="raise the limit")
    if longest > cap:
        raise OverlongError(f"another rank has a sample of {longest:,} tokens, which cannot fit max_token_len={cap:,}")
    number = -(-needed // step) * step
    if not samples:
        raise ValueError("the batch of a rank has no samples; give each rank at least one sample")
    if number > -samples:
        raise ValueError(
            f"{number:,} micro batches need a sample each, and a rank has {-samples:,}; raise max_token_len, "
            "ask for fewer micro batches, or give each rank more samples"
        )
    parts = balance(lengths, number, cost=WORK, max_tokens=cap)
    if use_dynamic_bsz_balance:
        work = sample_costs(lengths, WORK)
        parts.sort(key=lambda part: float(work[part].sum()), reverse=True)
        parts = parts[::2][::-1] + parts[1::2]
    indices = _numbers(parts)
    return _selected(batch, indices), indices


class TokenBudgetBatcher(torch.utils.data.IterableDataset[list[list[Any]]]):
    """Micro batches of rollouts for all ranks, of at most `token_budget` tokens a rank. It takes the place of TRL's class.

    It waits for the rollouts of a few micro batches, and plans them together: TRL's places each rollout as it comes. The fewer
    and fuller micro batches save time, and the rollouts are older by `window` micro batches at most.

    Args:
        dataset: dicts with `input_ids`, one rollout each. It may be endless.
        num_processes: how many data-parallel ranks.
        token_budget: most tokens of a rank in a micro batch. Longer rollouts are dropped with a warning, as TRL does.
        metrics: lists by name. Each dropped rollout adds 1.0 to "batch/dropped_oversize_total".
        window: how many micro batches are planned together.
    Yields:
        Micro batches: for each rank its rollouts, at least one, at most `token_budget` tokens. Rollouts at the end that leave
            a rank without any are dropped with a warning.
    State: none; a rollout that was taken and not yielded is lost when the loop is left.
    Price: that of `steps`, 1 ms for 512 rollouts, and the memory of the rollouts that wait.
    Example:
        >>> rollouts = [{"input_ids": [0] * length} for length in (5, 3, 4, 4, 2, 6)]
        >>> batches = TokenBudgetBatcher(rollouts, num_processes=2, token_budget=8)
        >>> [[[len(one["input_ids"]) for one in rank] for rank in batch] for batch in batches]
        [[[3, 4], [6]], [[5], [4, 2]]]
    """

    def __init__(
        self,
        dataset: Iterable[Mapping[str, Any]],
        num_processes: int,
        token_budget: int,
        metrics: dict[str, list[float]] | None = None,
        *,
        window: int = 4,
    ) -> None:
        self.dataset = dataset
        self.num_processes: int = integer("num_processes", num_processes, 1, "rank")
        self.token_budget: int = integer("token_budget", token_budget, 1, "token")
        self.metrics: dict[str, list[float]] = {} if metrics is None else metrics
        self.window: int = integer("window", window, 1, "micro batch")

    def __iter__(self) -> Iterator[list[list[Any]]]:
        room = self.window * self.num_processes * self.token_budget
        waiting: list[Any] = []
        tokens = 0
        for rollout in self.dataset:
            length = len(rollout["input_ids"])
            if length > self.token_budget:
                logger.warning(
                    "a rollout of %s tokens exceeds token_budget=%s, and is dropped", length, self.token_budget
                )
                self.metrics.setdefault("batch/dropped_oversize_total", []).append(1.0)
                continue
            if (tokens + length) * 100 > 98 * room:
                waiting = yield from self._planned(waiting)
                tokens = sum(len(one["input_ids"]) for one in waiting)
            waiting.append(rollout)
            tokens += length
        if left := (yield from self._planned(waiting)):
            logger.warning("%s rollouts at the end leave a rank without any, and are dropped", len(left))

    def _planned(self, rollouts: list[Any]) -> Generator[list[list[Any]], None, list[Any]]:
        """The micro batches in which each rank has rollouts; returns those of the others."""
        if len(rollouts) < self.num_processes:
            return rollouts
        lengths = [len(one["input_ids"]) for one in rollouts]
        (ranks,) = steps(lengths, self.token_budget, self.num_processes, cost=WORK).batches
        left: list[Any] = []
        for place in zip(*ranks, strict=True):
            parts = [[rollouts[sample] for sample in part.tolist()] for part in place]
            if all(parts):
                yield parts
            else:
                left += chain.from_iterable(parts)
        return left


def build_dp_schedule(
    args: Any,
    train_parallel_config: Mapping[str, int],
    total_lengths: Any,
    *,
    global_batch_size: int,
    rollout_indices: Any,
) -> tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]:
    """Deals rollouts to steps, ranks and micro batches. It takes the place of slime's function.

    There are as few micro batches as can be found, and the ranks of a step have equal work. Unlike slime's, no micro batch
    exceeds the limit.

    Args:
        args: has `use_dynamic_batch_size`, with `max_tokens_per_gpu`; or else `micro_batch_size`, the most samples.
        train_parallel_config: "dp_size", "cp_size", "vpp_size" and "microbatch_group_size_per_vp_stage".
        total_lengths: tokens of each sample, (n,).
        global_batch_size: rollouts of a step. Those that do not fill the last step are left out.
        rollout_indices: the rollout of each sample, (n,). All samples of a rollout are in one step.
    Returns:
        The samples of each rank. For each rank its micro batches, which count its own samples from 0. The number of micro
            batches of a rank in each step. The rollouts of each step.
    Raises:
        OverlongError: a sample alone exceeds the limit.
        ValueError: fewer rollouts than a step has, or a step with fewer samples than micro batches.
    Price: that of `steps`, and 1 us a sample.
    Example:
        >>> from types import SimpleNamespace
        >>> args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=8)
        >>> parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        >>> build_dp_schedule(args, parallel, [5, 3, 4, 4], global_batch_size=4, rollout_indices=[0, 1, 2, 3])
        ([[0, 1], [2, 3]], [[[0, 1]], [[0, 1]]], [1], [4])
    """
    lengths = one_length(_array(total_lengths), "build_dp_schedule")
    ranks, size = train_parallel_config["dp_size"], integer("global_batch_size", global_batch_size, 1, "rollout")
    group = train_parallel_config["microbatch_group_size_per_vp_stage"] if train_parallel_config["vpp_size"] > 1 else 1
    if args.use_dynamic_batch_size:
        limits = {"tokens": args.max_tokens_per_gpu * train_parallel_config["cp_size"]}
    else:
        limits = {"samples": args.micro_batch_size}
    rollouts = list(dict.fromkeys(rollout_indices))
    number = {rollout: place for place, rollout in enumerate(rollouts)}
    step_of = np.array([number[rollout] // size for rollout in rollout_indices], np.int64)
    if len(rollouts) < size:
        raise ValueError(f"{len(rollouts):,} rollouts do not fill a step of global_batch_size={size:,}; give more")
    partitions: list[list[int]] = [[] for _ in range(ranks)]
    indices: list[list[list[int]]] = [[] for _ in range(ranks)]
    counts: list[int] = []
    for step in range(len(rollouts) // size):
        samples = np.flatnonzero(step_of == step)
        plan = steps(lengths[samples], limits, ranks, multiple_of=group, cost=WORK)
        if (number_of := int(plan.counts.sum())) > len(samples):
            raise ValueError(
                f"step {step:,} has {len(samples):,} samples for {number_of:,} micro batches; give it more rollouts"
            )
        counts.append(int(plan.counts[0, 0]))
        for rank, parts in enumerate(plan.batches[0]):
            for part in parts:
                begin = len(partitions[rank])
                partitions[rank] += samples[part].tolist()
                indices[rank].append(list(range(begin, len(partitions[rank]))))
    return partitions, indices, counts, [size] * len(counts)


def _array(values: Any) -> IntArray:
    """Of a list (of tensors too), an array, or a tensor on any device."""
    return np.asarray(values if isinstance(values, np.ndarray) else torch.as_tensor(values, device="cpu"))


def _numbers(parts: list[IntArray]) -> list[list[int]]:
    return [np.sort(part).tolist() for part in parts]


def _lengths(batch: Any) -> IntArray:
    """The real tokens of each sample."""
    if "input_ids" not in batch:
        raise ValueError(
            f"the batch has no input_ids, by which samples are counted (got {', '.join(map(str, batch.keys()))})"
        )
    tokens = batch["input_ids"]
    if getattr(tokens, "is_nested", False):
        return _array(tokens.offsets().diff())
    if isinstance(batch, dict) and "attention_mask" not in batch and isinstance(tokens, list):
        return np.array([len(row) for row in tokens], np.int64)
    if "attention_mask" not in batch:
        raise ValueError("the batch has no attention_mask, so its real tokens are not known. Add the mask, (B, L)")
    mask = batch["attention_mask"]
    if isinstance(mask, list):
        return np.array([sum(row) for row in mask], np.int64)
    return _array(mask.sum(-1)).astype(np.int64)


def _selected(batch: Any, indices: list[list[int]]) -> list[Any]:
    """The rows of each micro batch."""
    samples = sum(map(len, indices))
    for name, values in batch.items():
        rows = len(values) if isinstance(values, list) else (*getattr(values, "shape", ()), samples)[0]
        if rows != samples:
            raise ValueError(f"{name} has {rows:,} rows, and the batch has {samples:,} samples; give it a row for each")
    columns = {name: _rows(values, indices) for name, values in batch.items()}
    dicts = [{name: rows[place] for name, rows in columns.items()} for place in range(len(indices))]
    if isinstance(batch, dict):
        return dicts
    from tensordict import TensorDict

    return [TensorDict(rows, batch_size=[len(index)]) for rows, index in zip(dicts, indices, strict=True)]


def _rows(values: Any, indices: list[list[int]]) -> list[Any]:
    """The rows of a column for each micro batch. A value that has no rows is in each."""
    if getattr(values, "is_nested", False):
        rows = values.unbind()
        return [torch.nested.as_nested_tensor([rows[at] for at in index], layout=torch.jagged) for index in indices]
    if isinstance(values, list):
        return [[values[at] for at in index] for index in indices]
    return [values[index] if getattr(values, "shape", ()) else values for index in indices]


def __dir__() -> list[str]:
    return __all__
