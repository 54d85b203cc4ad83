"""The tensors in whatever a batch is: dicts, lists, tuples, dataclasses, in any depth; and what becomes one on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch.nn.utils.rnn import PackedSequence

from brimful.arrays.end_to_end import RaggedOnDevice

_NOT_FILLED: Final = (torch.uint16, torch.uint32, torch.uint64)
"""Types of which torch fills no mask; their bits go through int64 and back."""


def padded(rows: RaggedOnDevice) -> torch.Tensor:
    """The padded tensor of rows that travelled end to end, on their device.

    Price: a flat index of the padded shape, int64, while it is padded.

    >>> import numpy as np
    >>> from brimful.arrays.types import ColumnType
    >>> kind = ColumnType("int64", np.dtype("int64"), None)
    >>> starts, counts = torch.tensor([0, 2]), torch.tensor([2, 1])
    >>> padded(RaggedOnDevice(torch.tensor([5, 6, 7]), starts, counts, 3, -1, False, kind)).tolist()
    [[5, 6, -1], [7, -1, -1]]
    >>> padded(RaggedOnDevice(None, starts, counts, 3, 0, True, kind)).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    counts: torch.Tensor = rows.counts[:, None]
    dtype = getattr(torch, rows.type.wanted)
    at = torch.arange(rows.width, device=rows.counts.device)[None, :]
    if rows.left:
        at = at - (rows.width - counts)
    inside = (at >= 0) & (at < counts)
    if rows.values is None:
        return inside.to(dtype)
    if not len(rows.values):
        return torch.full((*inside.shape, *rows.values.shape[1:]), rows.fill, dtype=dtype, device=inside.device)
    made = getattr(torch, rows.type.made.name)
    values: torch.Tensor = rows.values.to(torch.int64 if made in _NOT_FILLED else made)
    index = (at + rows.starts[:, None]).clamp_(0, len(values) - 1)
    outside = ~inside.reshape(inside.shape + (1,) * (values.dim() - 1))
    return values[index].masked_fill_(outside, rows.fill).to(dtype)


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
    return padded(value) if isinstance(value, RaggedOnDevice) else value


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
