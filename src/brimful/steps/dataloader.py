"""What a DataLoader around something of ours does, which only its frames on the stack say: who takes the lists of a batch
sampler before the training loop wants them, and who would stack what cannot be stacked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

_FETCHING: Final = "torch.utils.data._utils.fetch"
"""The module of torch in whose frames a DataLoader asks for samples, by an object that knows what becomes of them."""


class ReadsAhead(NamedTuple):
    """Who takes lists before the training loop wants them, if anyone; of how many it gets one; how many it has skipped."""

    name: str | None = None
    processes: int = 1
    skipped: int = 0


def reader_here() -> ReadsAhead:
    """Who takes the first list: torch's, torchdata's and Accelerate's loaders that are on the stack."""
    reader = ReadsAhead()
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
        if module == "accelerate.data_loader":  # one batch ahead, to know which is the last
            owner = frame.f_locals.get("self")
            reader = ReadsAhead(
                reader.name or "Accelerate",
                max(reader.processes, getattr(owner, "num_processes", 1)),
                max(reader.skipped, getattr(owner, "skip_batches", 0)),
            )
        elif module.startswith(("torch.utils.data.", "torchdata.")):
            workers = getattr(frame.f_locals.get("self"), "num_workers", 0)
            reader = reader._replace(name=f"a DataLoader with {workers} workers") if workers else reader
    return reader


def refuse_stacking(batches: object) -> None:
    """Refuses to go on where a DataLoader asks, which would stack whole batches into one of another dimension, or fail at it: one
    around a loader of `batches`, without batch_size=None and without a collate_fn of the user's.

    Raises:
        TypeError: with what to do.
    """
    fetcher = _stacking()
    if fetcher is not None and getattr(fetcher.dataset, "batches", None) is batches:
        raise TypeError(
            "this DataLoader would stack batches, which are whole already: say DataLoader(loader, batch_size=None), or loop over "
            "the loader itself"
        )


def refuse_ragged(samples: Sequence[Mapping[str, Any]]) -> None:
    """Refuses to hand samples to a DataLoader that would stack their lists, where these are not equally long.

    Raises:
        TypeError: with both lengths, and what to do.
    """
    if _stacking() is None or not samples:
        return
    for name, first in samples[0].items():
        for other in (sample[name] for sample in samples):
            shapes = [getattr(value, "shape", None) for value in (first, other)]
            if shapes[0] != shapes[1]:
                sizes = " and ".join("nothing" if not shape else f"{shape[0]:,} values" for shape in shapes)
                raise TypeError(
                    f"this DataLoader would stack column {name!r}, which has {sizes} in two samples: give it a collate_fn that "
                    "pads, or have brimful pad, as DataLoader(dataset.batch(32).loader(), batch_size=None)"
                )


def _stacking() -> Any:
    """What fetches samples for a DataLoader that is on the stack and stacks them by itself; None where there is none."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == _FETCHING:
            fetcher: Any = frame.f_locals["self"]
            stack = sys.modules["torch.utils.data._utils.collate"].default_collate
            return fetcher if fetcher.auto_collation and fetcher.collate_fn is stack else None
    return None
