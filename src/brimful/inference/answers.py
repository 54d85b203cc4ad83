"""Results of batches, each in the order of its samples: by a function here, or by workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from brimful.batching.batch import Batch
from brimful.core.errors import name_of, where
from brimful.core.iterator import ResumableIterator
from brimful.oom.generation import OomSafe, rows_of
from brimful.oom.parts import divisible
from brimful.ray.cluster import Cluster
from brimful.ray.pool import Pool


class Answered(NamedTuple):
    """A batch, its results, and the state after it (where it is its window's last)."""

    batch: Batch
    results: Sequence[Any]
    state: Any


@dataclass(frozen=True)
class OnRay:
    """Workers of a Ray cluster.

    Args:
        address: see `Cluster`.
        num_workers: None: as many as it has processors, or GPUs to give them.
        num_gpus_per_worker: of each; may be a part of one.
    """

    address: str | None = None
    num_workers: int | None = None
    num_gpus_per_worker: float = 0.0


def answered(
    fn: Callable[[Any], Any], batches: ResumableIterator[tuple[Batch, Any]], engine: OnRay | None
) -> Generator[Answered, None, None]:
    """The batches with what `fn` gives for them, in order; of a class each worker makes an object, once."""
    asked = ((item, (batch, batches.state_dict() if batch.last else None)) for batch, item in batches)
    if engine is None:
        answer = made(fn)
        for item, (batch, state) in asked:
            yield Answered(batch, _noted(fn, batch, partial(answer, item)), state)
        return
    with Cluster(engine.address) as cluster:
        number = engine.num_workers or cluster.room(engine.num_gpus_per_worker)
        pool = Pool(cluster, cluster.put(partial(_portable, fn)), number, engine.num_gpus_per_worker, name_of(fn))
        with closing(pool):
            for results, (batch, state) in pool.results(asked):
                yield Answered(batch, _noted(fn, batch, results), state)


def _portable(fn: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """As `made`; its results can go where there is no GPU."""
    answer = made(fn)
    return lambda item: [row.cpu() if isinstance(row, Tensor) else row for row in answer(item)]


def made(fn: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """What gives the results of a batch, whole or in parts, by a function, or by an object of a class that is one."""
    name, call = name_of(fn), fn() if isinstance(fn, type) else fn

    def rows(part: Any) -> Sequence[Any]:
        return rows_of(call(part), divisible(part).samples, name)

    safe = OomSafe(rows, None)
    return lambda item: [*safe(item)]


def _noted(fn: Callable[[Any], Any], batch: Batch, results: Callable[[], list[Any]]) -> list[Any]:
    """The results of the samples of a batch; an error says which batch it was."""
    try:
        return results()[: len(batch)]  # a static shape is filled up with copies
    except Exception as error:
        first = int(batch.window.rows[batch.numbers[0]])
        error.add_note(
            f"map_batches_in_order: of {name_of(fn)} for {len(batch):,} samples padded to {batch.padded_length}, the "
            f"first of them {where(batch.window.block, first)}"
        )
        raise
