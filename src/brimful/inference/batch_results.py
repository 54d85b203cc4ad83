"""The results of batches, each in the order of its samples. A function runs here, or on workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from brimful.batching.batch import Batch
from brimful.core.errors import counted, name_of, where
from brimful.core.iterator import ResumableIterator
from brimful.oom.generation import OomSafe, rows_of
from brimful.oom.parts import divisible
from brimful.ray.cluster import Cluster
from brimful.ray.pool import Pool


class BatchResults(NamedTuple):
    """A batch, its results, and the state after it (where it is its window's last)."""

    batch: Batch
    results: Sequence[Any]
    state: Any


@dataclass(frozen=True)
class RayWorkers:
    """Workers of a Ray cluster.

    Args:
        address: see `Cluster`.
        num_workers: None: as many as it has processors, or GPUs to give them.
        num_gpus_per_worker: of each; may be a part of one.
    """

    address: str | None
    num_workers: int | None
    num_gpus_per_worker: float


def batch_results(
    fn: Callable[[Any], Any], batches: ResumableIterator[tuple[Batch, Any]], on_ray: RayWorkers | None
) -> Generator[BatchResults, None, None]:
    """The batches with the results of `fn`, in order. If `fn` is a class, each worker makes one object of it."""
    asked: Iterator[Any] = ((item, (batch, batches.state_dict() if batch.last else None)) for batch, item in batches)
    if (first := next(asked, None)) is None:
        return  # nothing is left to do: no model is loaded, no cluster started
    asked = chain([first], asked)
    if on_ray is None:
        call = _caller(fn)
        for item, (batch, state) in asked:
            yield BatchResults(batch, _noted(fn, batch, partial(call, item)), state)
        return
    with Cluster(on_ray.address) as cluster:
        number = on_ray.num_workers or cluster.room(on_ray.num_gpus_per_worker)
        pool = Pool(cluster, cluster.put(partial(_portable, fn)), number, on_ray.num_gpus_per_worker, name_of(fn))
        with closing(pool):
            for results, (batch, state) in pool.results(asked):
                yield BatchResults(batch, _noted(fn, batch, results), state)


def _portable(fn: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """As `_caller`, with results that can go to a process without a GPU."""
    call = _caller(fn)
    return lambda item: [row.cpu() if isinstance(row, Tensor) else row for row in call(item)]


def _caller(fn: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """A function that gives the results of a batch, whole or in parts. If `fn` is a class, it calls an object of it."""
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
            f"map_batches_in_order: of {name_of(fn)} for {counted(len(batch), 'sample')} padded to {batch.padded_length}, the "
            f"first of them {where(batch.window.block, first)}"
        )
        raise
