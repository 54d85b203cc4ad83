"""RL frameworks: verl's two balancing functions, with the same arguments and results, on `balance` and `micro_batches`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from brimful.plan import AttentionCost, OverlongError, balance, micro_batches
from brimful.plan.costs import sample_costs
from brimful.plan.errors import check_bool, integer
from brimful.plan.overlong import refuse_overlong
from brimful.plan.plan import IntArray, one_length

__all__ = ["get_seqlen_balanced_partitions", "rearrange_micro_batches"]

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


def _array(values: Any) -> IntArray:
    """Of a list (of tensors too), an array, or a tensor on any device."""
    return np.asarray(values if isinstance(values, np.ndarray) else torch.as_tensor(values, device="cpu"))


def _numbers(parts: list[IntArray]) -> list[list[int]]:
    return [np.sort(part).tolist() for part in parts]


def _lengths(batch: Any) -> IntArray:
    """The real tokens of each sample."""
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
