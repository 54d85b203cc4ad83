"""Tasks in the processes of a Ray cluster: replies in order; where a worker dies, another one makes its missing replies."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, Final

import cloudpickle

from brimful.core.counters import quiet_counters
from brimful.core.processes import LogCapture, Reply, answer, dumps
from brimful.plan.errors import StageError, logger
from brimful.plan.once import once

RETRIES: Final = 3
"""How often in a row a worker may die over one thing before that is an error."""
END_SECONDS: Final = 5.0
"""How long tasks are waited for that have been told to end."""
LOOK_SECONDS: Final = 10.0
"""How often it is asked how large the cluster is."""
_THREADS: Final = "RAYON_NUM_THREADS"
"""Bounds the threads of tokenizers, of which each would otherwise have as many as its machine has cores."""


def check_address(address: str | None) -> None:
    """Refuses what cannot be connected to.

    Raises:
        TypeError, ValueError: with the remedy.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"ray_address must be a string (got {address!r})")
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f"ray_address={address!r} is that of a Ray client server, through which results cannot be streamed; run this on a "
            'machine of the cluster, with ray_address="auto", or hand it in: ray job submit'
        )


class Cluster:
    """A connection to a Ray cluster, and what runs there for it; a context manager. One that this process has is shared and left
    as it is; else a cluster is connected to, or started on this machine, and left, or stopped, with the last of its users.

    Price: to start one takes 5 to 10 s, and 200 MB for each core.

    Args:
        address: "auto", "host:port", or None: that of RAY_ADDRESS, of a cluster of this machine, or a new one.
    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: this process is connected to another cluster.
    """

    _users: ClassVar[int] = 0
    _ours: ClassVar[bool] = False

    def __init__(self, address: str | None) -> None:
        check_address(address)
        try:
            import ray
        except ImportError as error:
            raise ModuleNotFoundError("executor='ray' needs Ray: pip install 'brimful[ray]'", name="ray") from error
        self.ray: Any = ray
        self._address = address
        self.running: set[Any] = set()  # what is closed with this, unless it has ended before
        self._ends: list[Any] = []
        self._looked, self._cpus = -LOOK_SECONDS, 0

    def __enter__(self) -> Cluster:
        if self.ray.is_initialized():
            here = self.ray.get_runtime_context().gcs_address
            if self._address not in (None, "auto", here):
                raise ValueError(
                    f"ray_address={self._address!r}, but this process is connected to the Ray cluster at {here}; leave that "
                    "first (ray.shutdown()), or leave ray_address out"
                )
        else:
            self.ray.init(self._address, include_dashboard=False, log_to_driver=False, logging_level="warning")
            Cluster._ours = True
        Cluster._users += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in list(self.running):
            one.close()
        self._hear(END_SECONDS)
        Cluster._users -= 1
        if Cluster._ours and not Cluster._users:
            Cluster._ours = False
            self.ray.shutdown()

    @property
    def cpus(self) -> int:
        """How many processors it has now, at least 1."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked, self._cpus = time.monotonic(), int(self.ray.cluster_resources().get("CPU", 1))
        return max(1, self._cpus)

    @property
    def size(self) -> str:
        """Its processors and GPUs in words."""
        found = self.ray.cluster_resources()
        return f"{found.get('CPU', 0):g} processors and {found.get('GPU', 0):g} GPUs"

    def room(self, num_gpus: float) -> int:
        """How many workers it has room for, with a processor and so many GPUs each; at least 1."""
        gpus = self.ray.cluster_resources().get("GPU", 0.0)
        return max(1, min(self.cpus, int(gpus / num_gpus)) if num_gpus else self.cpus)

    def put(self, thing: Any) -> Any:
        """A reference to something that tasks take, pickled once.

        Raises:
            TypeError: it cannot be pickled.
        """
        try:
            return self.ray.put(dumps((_version(), cloudpickle.dumps(thing))))
        except Exception as error:
            raise TypeError(
                f"a function cannot be sent to another process: {type(error).__name__}: {error}; make what it needs "
                "inside of it"
            ) from error

    def stream(
        self, fn: Callable[..., Iterator[Any]], job: Any, *args: Any, at: Any, place: Callable[[Any], str]
    ) -> Stream:
        """The things of the generator `fn(thing, *args, at)` in a task of its own, `thing` by its reference; see `Stream`."""
        return Stream(self, lambda at: self._task.remote(fn, job, *args, at), at, place)

    @once
    def _task(self) -> Any:
        return self.ray.remote(num_returns="streaming", max_retries=0)(
            _serve
        )  # places make retries exact, and are ours

    def left(self, end: Any) -> None:
        """Has the end of a task waited for that nobody listens to."""
        self._ends.append(end)
        self._hear(0)

    def _hear(self, seconds: float) -> None:
        """Ray would log the errors of tasks that nobody has asked for."""
        if self._ends:
            ended, self._ends = self.ray.wait(self._ends, num_returns=len(self._ends), timeout=seconds)
            for end in ended:
                with suppress(self.ray.exceptions.RayError):
                    self.ray.get(end)

    @property
    def deaths(self) -> tuple[type[Exception], ...]:
        """The errors of Ray where a worker, its machine or its results are gone."""
        found = self.ray.exceptions
        return (
            *(found.WorkerCrashedError, found.OutOfMemoryError, found.NodeDiedError, found.LocalRayletDiedError),
            *(found.ObjectLostError, found.ObjectFetchTimedOutError, found.ActorDiedError, found.ActorUnavailableError),
        )


class Stream:
    """The results of a task in order: (thing, the place after it), of which `read` returns the thing; None after the last.

    Where the worker dies a new task goes on after the last place that has arrived.

    Args:
        start: begins a task at a place.
        place: a place in words.
    """

    def __init__(self, cluster: Cluster, start: Callable[[Any], Any], at: Any, place: Callable[[Any], str]) -> None:
        self._cluster, self._start, self._place = cluster, start, place
        self._at, self._deaths = at, 0
        self._over = False  # nothing more comes: the task ends by itself
        self._task = start(at)
        cluster.running.add(self)

    def read(self) -> Any:
        """The next thing.

        Raises:
            Exception: what the generator raised; its cause is the traceback.
            StageError: workers died over it again and again, or lack what it needs.
        """
        while True:
            try:
                reply: Reply = pickle.loads(self._cluster.ray.get(next(self._task)))
            except self._cluster.deaths as error:
                self._again(error)
                continue
            except self._cluster.ray.exceptions.RayTaskError as error:  # what our own code raises comes as a reply
                last = str(error).strip().splitlines()[-1]
                raise StageError(
                    f"a worker of Ray could not begin: {last}; is brimful {_version()} installed on all machines?"
                ) from error
            self._deaths = 0
            self._over = not goes_on(reply)
            made = reply.settled()
            if made is None:
                self._cluster.running.discard(self)
                return None
            thing, self._at = made
            return thing

    def close(self) -> None:
        """Ends the task, whatever it does."""
        self._cluster.running.discard(self)
        end = self._task.completed()
        if (
            not self._over and not self._cluster.ray.wait([end], timeout=0)[0]
        ):  # by now its worker may be at another task
            self._cluster.ray.cancel(
                self._task, force=True
            )  # a function that waits, or computes in C, does not hear else
        self._cluster.left(end)

    def _again(self, error: Exception) -> None:
        self._deaths += 1
        remedy = "give each more of it, or make its shards smaller"
        how = died_of(error, self._deaths, f"{self._place(self._at)} on", remedy)
        logger.warning("a worker of Ray has died (%s); another one goes on at %s", how, self._place(self._at))
        self._cluster.left(self._task.completed())
        self._task = self._start(self._at)


@lru_cache(maxsize=1)  # the next task of a process mostly is of the same job, and a tokenizer takes a while to make
def loaded(job: bytes) -> Any:
    """The thing that `Cluster.put` was given.

    Raises:
        StageError: it comes from another release, or cannot be had here.
    """
    os.environ.setdefault(_THREADS, os.environ.get("OMP_NUM_THREADS", "1"))
    version, data = pickle.loads(job)
    if version != _version():
        raise StageError(
            f"this process has brimful {version}, and a worker of Ray has {_version()}; install one release everywhere"
        )
    try:
        return pickle.loads(data)
    except Exception as error:
        raise StageError(f"the chain cannot be had in a worker of Ray: {type(error).__name__}: {error}") from error


def _serve(fn: Callable[..., Iterator[Any]], job: bytes, *args: Any) -> Iterator[bytes]:
    """The replies of a task; after an error, or None, there is none."""

    def made() -> Iterator[Any]:
        yield from fn(loaded(job), *args)

    things, tally, going_on = made(), quiet_counters(), True
    with LogCapture() as records:
        while going_on:
            reply = answer(lambda end: next(things, end), None, records, tally)
            going_on = goes_on(pickle.loads(reply))
            yield reply


def goes_on(reply: Reply) -> bool:
    """Whether another one follows."""
    return reply.error is None and reply.result is not None


def _version() -> str:
    return str(sys.modules["brimful"].__version__)


def died_of(error: Exception, deaths: int, over: str, remedy: str) -> str:
    """How a worker died, in a line.

    Raises:
        StageError: as many have now died in a row `over` one thing as may not.
    """
    how = f"{type(error).__name__}: {' '.join(str(error).split()).partition('. ')[0]}"
    if deaths > RETRIES:
        words = f"{deaths} workers in a row have died over {over} ({how}); if they were out of memory, {remedy}"
        raise StageError(words) from error
    return how
