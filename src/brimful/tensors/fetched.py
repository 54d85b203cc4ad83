"""Samples that a DataLoader fetched, which say what to do where it cannot stack them."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.collate import collate, default_collate_fn_map

from brimful.tables.blocks import Sample


class Fetched(dict[str, Any]):
    """A sample as any other; torch's `default_collate` knows by its class how to collate several."""


def fetched(samples: list[Sample]) -> list[Sample]:
    """Samples for a DataLoader: one that would stack lists which are not equally long is refused."""
    default_collate_fn_map[Fetched] = _stacked
    return [Fetched(sample) for sample in samples]


def _stacked(samples: list[Fetched], *, collate_fn_map: Any = None) -> Any:
    """What torch makes of samples.

    Raises:
        TypeError: lists are not equally long; with both lengths, and what to do.
    """
    for name, first in samples[0].items():
        for other in (sample[name] for sample in samples):
            shapes = [getattr(value, "shape", None) for value in (first, other)]
            if shapes[0] != shapes[1]:
                sizes = " and ".join("nothing" if not shape else f"{shape[0]:,} values" for shape in shapes)
                raise TypeError(
                    f"this DataLoader would stack column {name!r}, which has {sizes} in two samples: give it a collate_fn that "
                    "pads, or have brimful pad, as DataLoader(dataset.batch(32).loader(), batch_size=None)"
                )
    return collate([dict(sample) for sample in samples], collate_fn_map=collate_fn_map)
