"""Random samples with several ragged dimensions, for the tests of this folder."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from brimful.grouping import Partition

DIMS = {
    "pos": "res 3",
    "rot": "res 3 3",
    "edges": "res+1 2",
    "pair": {"dist": "res atm", "kind": "atm res 2"},
    "atoms": "4 atm",
    "name": "",
    "vector": "5",
}


class Drawn(NamedTuple):
    samples: list[Any]
    lengths: list[tuple[int, int]]
    partition: Partition


def sample(res: int, atm: int, generator: torch.Generator, grad: bool = False) -> dict[str, Any]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad)

    return {
        "pos": random(res, 3),
        "rot": random(res, 3, 3),
        "edges": random(res + 1, 2),
        "pair": {"dist": random(res, atm), "kind": random(atm, res, 2)},
        "atoms": random(4, atm),
        "name": random(),
        "vector": random(5),
    }


@st.composite
def partitions(draw: st.DrawFn, count: int) -> Partition:
    order = draw(st.permutations(range(count)))
    labels = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    groups = [[number for number, label in zip(order, labels, strict=True) if label == one] for one in range(4)]
    return Partition([group for group in groups if group])


@st.composite
def drawn(draw: st.DrawFn, grad: bool = False) -> Drawn:
    lengths = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    samples = [sample(*pair, generator, grad) for pair in lengths]
    return Drawn(samples, lengths, draw(partitions(len(samples))))
