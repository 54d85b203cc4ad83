"""The tensors in whatever a batch is: dicts, lists, tuples, dataclasses, in any depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from brimful.tensors.unpadded import Unpadded


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a structure, in order; one that is there twice comes twice."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield from (one for one in (value.data, value.sorted_indices, value.unsorted_indices) if one is not None)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)
    elif _is_record(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


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
    if isinstance(value, PackedSequence):  # whose batch_sizes stay on the CPU
        data = fn(value.data)
        order, back = (one if one is None else fn(one) for one in (value.sorted_indices, value.unsorted_indices))
        return value if data is value.data else PackedSequence(data, value.batch_sizes, order, back)
    if isinstance(value, Mapping):
        new = {name: mapped(one, fn) for name, one in value.items()}
        return value if _same(new.values(), value.values()) else with_values(value, new)
    if isinstance(value, list | tuple):
        items = [mapped(one, fn) for one in value]
        return value if _same(items, value) else _sequence(value, items)
    if _is_record(value):
        changed = {field.name: mapped(getattr(value, field.name), fn) for field in fields(value)}
        if not _same(changed.values(), (getattr(value, name) for name in changed)):
            value = copy.copy(value)
            for name, one in changed.items():
                object.__setattr__(value, name, one)  # of frozen ones too
        return value.padded() if isinstance(value, Unpadded) else value
    return value


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def with_values(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Any:
    """A mapping of the same kind, with these values in place of those of the same name."""
    if type(old) is dict or not isinstance(old, MutableMapping):
        return {**old, **new}
    made = copy.copy(old)  # with its other attributes, as transformers' BatchEncoding has some
    for name, value in new.items():  # its ModelOutput has no `update`
        made[name] = value
    return made


def _sequence(old: list[Any] | tuple[Any, ...], new: list[Any]) -> Any:
    if isinstance(old, list):
        if type(old) is list:
            return new
        made = copy.copy(old)
        made[:] = new
        return made
    return type(old)(*new) if hasattr(old, "_fields") else type(old)(new)  # a named tuple takes its fields one by one
