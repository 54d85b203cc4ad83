"""The tensors in whatever a batch is: dicts, lists, tuples, dataclasses, in any depth; and what becomes one on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import torch
from torch.nn.utils.rnn import PackedSequence

_NOT_FILLED: Final = (torch.uint16, torch.uint32, torch.uint64)
"""Types of which torch fills no mask; their bits go through int64 and back."""


@dataclass(frozen=True, eq=False)
class Unpadded:
    """Rows of values on their way to a device, which become one padded tensor (B, width) there.

    So fewer bytes travel, in the type of the store.

    Shapes: values (n,), or None for a mask of the rows; starts, counts (B,) int64: row i has `values[starts[i] :
    starts[i] + counts[i]]`.

    Args:
        width: of the padded tensor.
        fill: what padding holds.
        left: the padding comes first.
        dtype: of the padded tensor.
        made: the type that values take on the way to it.
    Price: a flat index of the padded shape, int64, while it is padded.
    Example:
        >>> starts, counts = torch.tensor([0, 2]), torch.tensor([2, 1])
        >>> Unpadded(torch.tensor([5, 6, 7]), starts, counts, 3, -1, False, torch.int64).padded().tolist()
        [[5, 6, -1], [7, -1, -1]]
        >>> Unpadded(None, starts, counts, 3, 0, True, torch.int64).padded().tolist()
        [[0, 1, 1], [0, 0, 1]]
    """

    values: torch.Tensor | None
    starts: torch.Tensor
    counts: torch.Tensor
    width: int
    fill: float
    left: bool
    dtype: torch.dtype
    made: torch.dtype | None = None

    def padded(self) -> torch.Tensor:
        """The padded tensor, on the device of the values."""
        counts = self.counts[:, None]
        at = torch.arange(self.width, device=self.counts.device)[None, :]
        if self.left:
            at = at - (self.width - counts)
        inside = (at >= 0) & (at < counts)
        if self.values is None:
            return inside.to(self.dtype)
        if not len(self.values):
            return torch.full(inside.shape, self.fill, dtype=self.dtype, device=inside.device)
        made = self.made or self.dtype
        values = self.values.to(torch.int64 if made in _NOT_FILLED else made)
        index = (at + self.starts[:, None]).clamp_(0, len(values) - 1)
        return values[index].masked_fill_(~inside, self.fill).to(self.dtype)

    def without(self, rows: slice) -> Unpadded:
        """With nothing but padding in some rows."""
        counts = self.counts.clone()
        counts[rows] = 0
        return replace(self, counts=counts)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a structure, in order; one that is there twice comes twice."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for part in parts_of(value):
            yield from tensors_of(part)


def mapped(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A structure of the same kind with `fn(tensor)` in place of each tensor, rows that were sent unpadded padded; anything
    else is handed on, and so is a structure in which nothing changes.

    >>> batch = {"input_ids": torch.tensor([1, 2]), "more": (torch.tensor([3.0]), "text")}
    >>> mapped(batch, lambda tensor: tensor + 1)
    {'input_ids': tensor([2, 3]), 'more': (tensor([4.]), 'text')}
    >>> mapped(batch, lambda tensor: tensor) is batch
    True
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    if not (parts := parts_of(value)):
        return value
    made = [mapped(part, fn) for part in parts]
    if any(one is not part for one, part in zip(made, parts)):
        value = with_parts(value, made)
    return value.padded() if isinstance(value, Unpadded) else value


def parts_of(value: Any) -> Sequence[Any]:
    """What lies in a structure, in order; nothing in what is none."""
    if isinstance(value, PackedSequence):  # whose batch_sizes stay on the CPU
        return value.data, value.sorted_indices, value.unsorted_indices
    if isinstance(value, Mapping):
        return [*value.values()]
    if isinstance(value, list | tuple):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return ()


def with_parts(value: Any, parts: list[Any]) -> Any:
    """A structure of the same kind with these parts."""
    if isinstance(value, PackedSequence):
        data, order, back = parts
        return PackedSequence(data, value.batch_sizes, order, back)
    if isinstance(value, Mapping):
        return with_values(value, dict(zip(value, parts)))
    if isinstance(value, tuple):  # a named tuple takes its fields one by one
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is list:
        return parts
    made = copy.copy(value)
    if isinstance(value, list):
        made[:] = parts
        return made
    for field, part in zip(fields(value), parts):
        object.__setattr__(made, field.name, part)  # of frozen ones too
    return made


def with_values(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Any:
    """A mapping of the same kind, with these values in place of those of the same name."""
    if type(old) is dict or not isinstance(old, MutableMapping):
        return {**old, **new}
    made = copy.copy(old)  # with its other attributes, as transformers' BatchEncoding has some
    for name, value in new.items():  # its ModelOutput has no `update`
        made[name] = value
    return made
