"""Workers of a Ray cluster that stay: each makes a function once, and is called with one thing after another."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from brimful.core.processes import LogCapture, Reply, answer, dumps
from brimful.plan.errors import logger
from brimful.ray.cluster import Cluster, died_of, loaded

T = TypeVar("T")

AHEAD: Final = 4
"""For each worker of a pool so many things are given out, or made and not yet taken."""
WAIT_SECONDS: Final = 30.0
"""How often it is said that no worker has begun."""


class Pool:
    """Workers of a cluster that each make a function once, and are called with one thing after another; results in order.
    One that finds no room in the cluster is given nothing until it does.

    Args:
        job: what `put` gave for a function that makes the function.
        number: of workers.
        num_gpus: of each of them.
        name: what the user knows the function by.
    """

    def __init__(self, cluster: Cluster, job: Any, number: int, num_gpus: float, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._needs = f"a processor{f' and {num_gpus:g} GPUs' if num_gpus else ''}"
        actor = cluster.ray.remote(num_gpus=num_gpus, num_cpus=1, max_restarts=0)(_Worker)
        self._start: Callable[[], Any] = partial(actor.remote, job)
        self._workers = [self._start() for _ in range(number)]
        self._begins = {
            at: worker.__ray_ready__.remote() for at, worker in enumerate(self._workers)
        }  # not known to run
        self._open: list[_Call] = []  # that may not be made yet
        cluster.running.add(self)

    def results(self, things: Iterable[tuple[Any, T]]) -> Iterator[tuple[Callable[[], Any], T]]:
        """For each thing what waits for the function's result, and what came with it; some ahead of use. The first raises what
        the function raised (its cause is the traceback), or a StageError where workers died over one thing again and again.
        """
        pending: deque[tuple[_Call, T]] = deque()
        for thing, mark in things:
            while len(pending) >= AHEAD * len(self._workers):
                call, before = pending.popleft()
                yield partial(self._settled, call), before
            pending.append((self._asked(_Call(dumps(thing))), mark))
        for call, before in pending:
            yield partial(self._settled, call), before

    def close(self) -> None:
        """Ends the workers, whatever they do."""
        self._cluster.running.discard(self)
        for worker in self._workers:
            self._cluster.ray.kill(worker)

    def _asked(self, call: _Call) -> _Call:
        """Has the worker make it that has the fewest to make, of those that run."""
        waiting = [one for one in self._open if one.reply is not None]
        if waiting:
            refs = [one.reply for one in waiting]
            _, unready = self._cluster.ray.wait(refs, num_returns=len(refs), timeout=0)
            left = set(unready)
            self._open = [one for one in waiting if one.reply in left]
        busy = Counter(one.worker for one in self._open)
        call.worker = min(self._running(), key=lambda number: busy[number])
        call.on = self._workers[call.worker]
        call.reply = call.on.call.remote(call.thing)
        self._open.append(call)
        return call

    def _running(self) -> list[int]:
        """The workers that run, or have died; waits for the first. Others may wait for room in the cluster, without end."""
        seconds = 0.0
        while True:
            if self._begins:
                refs = [*self._begins.values()]
                self._cluster.ray.wait(refs, timeout=seconds)
                begun = set(self._cluster.ray.wait(refs, num_returns=len(refs), timeout=0)[0])
                self._begins = {at: ref for at, ref in self._begins.items() if ref not in begun}
            if running := [at for at in range(len(self._workers)) if at not in self._begins]:
                return running
            if seconds:
                logger.warning(
                    "no worker for %s has begun yet: each needs %s, and the cluster has %s in all, which others may hold; "
                    "give it more, or ask for less (num_workers, num_gpus_per_worker)",
                    *(self._name, self._needs, self._cluster.size),
                )
            seconds = WAIT_SECONDS

    def _settled(self, call: _Call) -> Any:
        while True:
            try:
                reply: Reply = pickle.loads(self._cluster.ray.get(call.reply))
                return reply.settled()
            except self._cluster.deaths as error:
                call.deaths += 1
                how = died_of(error, call.deaths, f"one batch of {self._name}", "make its batches smaller")
                if self._workers[call.worker] is call.on:
                    logger.warning(
                        "a worker of Ray has died (%s); another one makes its batches of %s", how, self._name
                    )
                    self._workers[call.worker] = worker = self._start()
                    self._begins[call.worker] = worker.__ray_ready__.remote()
                self._asked(call)


@dataclass(eq=False)
class _Call:
    """A thing, and who makes something of it: a worker, by its place, and its reply."""

    thing: bytes
    worker: int = 0
    on: Any = None
    reply: Any = None
    deaths: int = 0


class _Worker:
    """One process of a pool."""

    def __init__(self, job: bytes) -> None:
        self._job = job
        self._fn: Callable[[Any], Any] | None = None

    def call(self, thing: bytes) -> bytes:
        with LogCapture() as records:
            return answer(self._made, thing, records)

    def _made(self, thing: bytes) -> Any:
        if self._fn is None:
            self._fn = loaded(self._job)()
        return self._fn(pickle.loads(thing))
