"""Which batches of a window are left out, and in which order the others come: each function makes ordered batches of such."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import OrderedBatches
from brimful.core.counters import count
from brimful.core.stage import StreamId
from brimful.plan import random
from brimful.plan.costs import SampleCost
from brimful.plan.dealing import deal_greedily
from brimful.plan.mix import low_discrepancy_order

ShuffleBatches = Literal[True, False, "stratified"]


def check_shuffle(value: Any) -> ShuffleBatches:
    """Checks the order that a user wants for batches.

    Raises:
        ValueError: for another word.
    """
    if value not in get_args(ShuffleBatches):
        raise ValueError(f"shuffle_batches must be True, False or 'stratified' (got {value!r})")
    return "stratified" if isinstance(value, str) else bool(value)


def drop_incomplete(batches: OrderedBatches, complete: NDArray[np.bool_]) -> OrderedBatches:
    """The complete batches; samples of the others are counted."""
    if complete.all():
        return batches
    incomplete = batches.select(np.flatnonzero(~complete))
    left_out = sum(incomplete.num_samples)
    count("dropped", left_out, f"drop_last: {left_out:,} samples of a window fill no batch and are left out")
    count("dropped_tokens", sum(incomplete.num_tokens))
    return batches.chosen(np.flatnonzero(complete))


def shuffle(batches: OrderedBatches, how: ShuffleBatches, group: int, key: int) -> OrderedBatches:
    """The batches in an order in which each `group` of neighbours stays together."""
    return batches if how is False else batches.chosen(_in_groups(len(batches), how, group, key))


def shuffle_stream(batches: OrderedBatches, group: int, key: int, lane: StreamId, shared_key: int) -> OrderedBatches:
    """The batches of one of several streams in a stratified order, in which each `group` of streams has neighbours at a time.

    Args:
        shared_key: of the random choices that all streams make alike.
    """
    steps = max(1, lane.lanes // group)
    order = low_discrepancy_order(len(batches), shared_key, first=lane.number // group, step=steps, own_key=key)
    return batches.chosen(order)


def dearest_first(batches: OrderedBatches, cost: SampleCost) -> OrderedBatches:
    """The batches in the order of what they cost."""
    return batches.chosen(np.argsort(-batches.costs(cost), kind="stable"))


def balance(
    batches: OrderedBatches, cost: SampleCost, how: ShuffleBatches, group: int, key: int, before: int
) -> OrderedBatches:
    """The batches in an order in which groups cost the same and are aligned in the epoch, `before` batches of which came earlier,
    modulo `group`. Ranks that take turns come to equal sums, too.

    What is in no whole group is of middling cost, and so is what it meets of the windows on both sides.
    """
    costs = batches.costs(cost)
    dearest = np.argsort(-costs, kind="stable")
    head = min(-before % group, len(costs))
    rest = head + (len(costs) - head) % group
    middle = (len(costs) - rest) // group // 2 * group
    begin, end = np.split(dearest[middle : middle + rest], [head])
    groups = np.delete(dearest, np.s_[middle : middle + rest]).reshape(-1, group)
    groups = groups[_turns(len(groups), how, key)]
    placed = np.empty_like(groups)
    np.put_along_axis(placed, deal_greedily(costs[groups].ravel(), group).reshape(groups.shape), groups, axis=1)
    return batches.chosen(np.concatenate([begin, placed.ravel(), end]))


def _in_groups(count: int, how: ShuffleBatches, group: int, key: int) -> NDArray[np.int64]:
    order = (_turns(-(-count // group), how, key)[:, None] * group + np.arange(min(group, count))).ravel()
    return order[order < count]


def _turns(num_groups: int, how: ShuffleBatches, key: int) -> NDArray[np.int64]:
    if how == "stratified":
        return low_discrepancy_order(num_groups, key)
    return random.permutation(num_groups, key) if how else np.arange(num_groups)
