"""Batches of arrays to batches of torch tensors, which share their memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from brimful.arrays.collated import Collated
from brimful.arrays.columns import ColumnRules
from brimful.arrays.end_to_end import Jagged, Unpadded
from brimful.arrays.explained import moved
from brimful.arrays.types import BFLOAT16
from brimful.batching.facts import collated_of, with_batches
from brimful.core.ahead import then
from brimful.core.facts import Facts, following
from brimful.core.own_keys import COUNTS, LOSS_WEIGHTS
from brimful.core.run import Run
from brimful.core.stage import Stage, State, running


@dataclass(frozen=True)
class InTorch(Stage[Any]):
    """Each batch with a tensor in place of each array, in its memory; what a user's function made stays as it is. Price: about
    1 us a tensor."""

    verb = ""

    upstream: Stage[Any]

    def facts(self, *inputs: Facts) -> Facts:
        return with_batches(following(self, *inputs, seam="passes"), in_torch=True)

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        make = in_torch(collated_of(self.upstream))
        with running(self.upstream, at, run) as items:
            for item, after in items:
                yield then(item, make), after


def in_torch(collated: Collated) -> Callable[[Any], Any]:
    """What puts tensors in place of the arrays that a stage makes."""
    make = partial(with_tensors, rules=collated.rules, names=None if collated.as_arrays else (*COUNTS, LOSS_WEIGHTS))
    return (lambda pair: (pair[0], make(pair[1]))) if collated.with_batch else make


def with_tensors(item: Any, rules: ColumnRules, names: Collection[str] | None = None) -> Any:
    """The same batch, with a tensor in place of each array (of these `names`), in the same memory; one that is there twice is one
    tensor. Arrays that are to be of a type that only torch has are copied.

    >>> rules = ColumnRules(("a",), dtypes={"b": "bfloat16"})
    >>> with_tensors({"a": np.array([1, 2]), "b": np.ones(1, np.float32), "text": ["c"]}, rules)
    {'a': tensor([1, 2]), 'b': tensor([1.], dtype=torch.bfloat16), 'text': ['c']}
    """
    import torch  # here: batches that stay arrays do without

    if not isinstance(item, (dict, MutableMapping)):  # of a user's function
        return item
    known: dict[int, Any] = {}  # by the ids of arrays

    def tensor(array: np.ndarray) -> Any:
        made = known.get(id(array))
        if made is None:
            made = known[id(array)] = torch.from_numpy(array)
        return made

    for name in item if names is None else [name for name in names if name in item]:
        value = item[name]
        if isinstance(value, np.ndarray):
            made: Any = tensor(value)
        elif isinstance(value, Jagged):
            made = tensor(value.values)
        elif isinstance(value, Unpadded):
            values = None if value.values is None else tensor(value.values)
            item[name] = replace(value, values=values, starts=tensor(value.starts), counts=tensor(value.counts))
            continue
        else:
            continue
        if rules.dtypes.get(name) == BFLOAT16:
            made = made.to(torch.bfloat16)
        if isinstance(value, Jagged):
            offsets, least, most = tensor(value.offsets), value.least, value.most
            made = torch.nested.nested_tensor_from_jagged(made, offsets, min_seqlen=least, max_seqlen=most)
        moved(value, made)
        item[name] = made
    return item
