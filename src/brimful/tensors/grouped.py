"""Groups of like length inside the batch, each padded to its own longest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brimful.arrays.columns import ListColumn, StackedColumn, WindowColumns, refuse_taken
from brimful.arrays.layout import Layout
from brimful.arrays.padded import Padded
from brimful.batching.batch import Batch
from brimful.grouping.collection import collection_of
from brimful.grouping.columns import Column
from brimful.grouping.language import is_name
from brimful.grouping.padded_groups import PaddedGroups
from brimful.plan import optimal_partition
from brimful.plan.buckets import Rounding
from brimful.plan.errors import DataError
from brimful.tensors.in_torch import in_torch


@dataclass(frozen=True)
class Grouped(Layout):
    """A batch as at most `num_groups` groups of like length, of least padded slots: `groups`, a collection of all tensors.

    `batch["groups"].groups` are padded batches, as `Padded` makes them, each of some samples; `.apply` runs a module once a
    group, `.ungroup()` gives the samples back in the order of the batch. Padding comes last.

    In `groups` are lists of numbers, numbers, arrays of one shape, `attention_mask` and `lengths`. Beside it, as lists in the
    order of the batch, are arrays with a ragged dimension, and what makes no tensor: text, and lists of it. A ragged dimension
    bears the name of its column; of those that go with a length column, `attention_mask` too, the name is that of the length
    column: `apply(model, inputs=["input_ids"], masks="input_ids", outputs="input_ids ...")`, or `masks="~input_ids"`.

    A loss is a sum over the groups, so that each token weighs the same:

        total = sum(loss_sum(group) for group in batch["groups"].groups)  # cross_entropy(..., reduction="sum")
        labels = torch.cat(batch["groups"]["labels"].ungroup())
        bf.token_mean(total, {"labels": labels} | batch).backward()

    Raises:
        DataError: nothing makes a tensor; a column of tensors whose name could not be written in dims.
    Price: that of `padded` for each group, and 1 ms to find them.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6, 7, 8, 9]}, {"input_ids": [4]}, {"input_ids": [2, 3]}])
    >>> groups = next(iter(data.batch(3, layout="grouped", num_groups=2)))["groups"]
    >>> groups.partition, [group["input_ids"].tolist() for group in groups.groups]
    (((1, 2), (0,)), [[[4, 0], [2, 3]], [[5, 6, 7, 8, 9]]])
    """

    name = "grouped"
    varies = True
    by_row = False
    in_numpy = False

    num_groups: int
    rounding: Rounding

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        numbers, sizes = batch.numbers, columns.sizes(batch)
        refuse_taken(["groups"], [column.name for column in columns.all])
        _check_names(columns)
        partition, widths = _planned(sizes, columns.widths(batch), len(batch), self.num_groups, self.rounding)
        parts = []
        for members, own in zip(partition, widths, strict=True):
            chosen = batch.select(members, len(members), _length(batch, dict(zip(columns.at, own, strict=True))))
            part = Padded(arrays="list").item(chosen, columns)
            if batch.weight == 0:
                columns.unlabel(part, slice(None))
            in_torch(part, columns.rules, part)
            parts.append(part)
        ragged, lengths = _ragged(columns, numbers, sizes)
        out: dict[str, Any] = {}
        found, extents = {}, {}
        for key, first in parts[0].items():
            if not isinstance(first, torch.Tensor):
                values = [value for part in parts for value in part[key]]
                out[key] = [values[place] for place in np.argsort(np.concatenate(partition)).tolist()]
                continue
            tensors = tuple(part[key] for part in parts)
            dims: tuple[Any, ...] = tuple(first.shape[1:])
            if key in ragged:
                dims = (ragged[key],)
                extents[ragged[key]] = np.array([tensor.shape[1] for tensor in tensors])
            found[key] = Column(dims, columns.fill(key), tensors)
        groups = PaddedGroups(tuple(tuple(members.tolist()) for members in partition), extents)
        out["groups"] = collection_of(len(numbers), found, lengths, groups)
        return out

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """Samples and padded lengths of one group after another."""
        extents = [item["groups"].extents[name].tolist() for name in columns.given]
        shapes = [(len(members), *widths) for members, *widths in zip(item["groups"].partition, *extents)]
        slots = sum(count * sum(widths) for count, *widths in shapes)
        return tuple(size for shape in shapes for size in shape), slots


def _check_names(columns: WindowColumns) -> None:
    names = [column.name for column in columns.all if isinstance(column, ListColumn | StackedColumn)]
    if not names:
        raise DataError(
            f"layout='grouped' needs at least 1 column of numbers or of lists of them (columns: "
            f"{', '.join(column.name for column in columns.all) or 'none'}); tokenize the text, or choose layout='padded'"
        )
    if unreadable := [name for name in names if not is_name(name)]:
        raise DataError(
            f"layout='grouped' cannot write column {unreadable[0]!r} in dims, where a name is of letters, digits and '_', and no "
            "word of Python; rename it (rename) or leave it out (drop), or choose layout='padded'"
        )


def _length(batch: Batch, of_sizes: dict[int, int]) -> int | tuple[int, ...]:
    """What a group is padded to, by the numbers of those sizes that it has in its own way."""
    lengths = tuple(of_sizes.get(number, width) for number, width in enumerate(batch.widths))
    return lengths[0] if isinstance(batch.padded_length, int) else lengths


def _planned(
    sizes: list[np.ndarray], most: tuple[int, ...], count: int, num_groups: int, rounding: Rounding
) -> tuple[list[np.ndarray], list[tuple[int, ...]]]:
    """The members of each group, and what it is padded to, by length column."""
    if not sizes:
        return [np.arange(count)], [()]
    rounded = np.stack([np.minimum(rounding(own), width) for own, width in zip(sizes, most, strict=True)], axis=1)
    if rounded.shape[1] == 1:
        partition = optimal_partition(rounded[:, 0], num_groups)
    else:
        partition = optimal_partition(rounded, num_groups, cost=lambda *lengths: sum(lengths))
    return partition, [tuple(rounded[members].max(axis=0).tolist()) for members in partition]


def _ragged(
    columns: WindowColumns, numbers: np.ndarray, sizes: list[np.ndarray]
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The ragged dimension of each key that has one, and the lengths in each."""
    names: dict[str, str] = {}
    lengths = dict(zip(columns.given, sizes))
    for column in columns.all:
        if isinstance(column, ListColumn):
            names[column.name] = column.name if column.aligned_with is None else columns.given[column.aligned_with]
            lengths.setdefault(names[column.name], column.counts[numbers])
    for name, place in columns.masks.items():
        names.setdefault(name, columns.given[place])
    return names, lengths
