"""Who takes the lists of a batch sampler before the training loop wants them: found on the stack."""

from __future__ import annotations

import sys
from typing import NamedTuple


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
