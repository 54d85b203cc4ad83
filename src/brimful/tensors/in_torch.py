"""Batches of arrays to batches of torch tensors, which share their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from brimful.arrays.columns import ColumnRules
from brimful.arrays.end_to_end import Jagged, RaggedOnDevice
from brimful.arrays.types import BFLOAT16


@cache
def _torch() -> tuple[Callable[[Any], Any], Any]:
    """What is needed of torch, which is imported here: batches that stay arrays do without."""
    import torch

    return torch.from_numpy, torch.bfloat16


def in_torch(batch: MutableMapping[str, Any], rules: ColumnRules, names: Iterable[str]) -> None:
    """Puts tensors in place of the arrays, and lists of arrays, of a batch that have one of these names, in the same memory. One
    that is there twice is one tensor. An array whose type is to be one that only torch has is copied.

    Price: about .6 us a tensor.

    >>> rules = ColumnRules(("a",), dtypes={"b": "bfloat16"})
    >>> batch = {"a": np.array([1, 2]), "b": np.ones(1, np.float32), "text": ["c"]}
    >>> in_torch(batch, rules, batch)
    >>> batch
    {'a': tensor([1, 2]), 'b': tensor([1.], dtype=torch.bfloat16), 'text': ['c']}
    """
    from_numpy, bfloat16 = _torch()
    known: dict[int, Any] = {}  # the tensor of each array, by the array's id
    dtypes, array = rules.dtypes, np.ndarray
    for name in names:
        value = batch[name]
        kind = type(value)
        if kind is array:
            number = id(value)
            made = known.get(number)
            if made is None:
                made = known[number] = from_numpy(value)
            batch[name] = made.to(bfloat16) if dtypes and dtypes.get(name) == BFLOAT16 else made
        elif kind is list and value and type(value[0]) is array:
            tensors = [*map(from_numpy, value)]
            batch[name] = [one.to(bfloat16) for one in tensors] if dtypes.get(name) == BFLOAT16 else tensors
        elif kind is RaggedOnDevice:
            parts = [part for part in ("values", "starts", "counts") if getattr(value, part) is not None]
            batch[name] = replace(value, **{part: from_numpy(getattr(value, part)) for part in parts})
        elif kind is Jagged:
            values, offsets = from_numpy(value.values), known.get(id(value.offsets))
            if offsets is None:
                offsets = known[id(value.offsets)] = from_numpy(value.offsets)
            values = values.to(bfloat16) if dtypes.get(name) == BFLOAT16 else values
            import torch

            batch[name] = torch.nested.nested_tensor_from_jagged(
                values, offsets, min_seqlen=value.least, max_seqlen=value.most
            )
