"""How ranks that read streams of unequal length agree, ahead of time, where an epoch ends.

Each rank posts, some rounds before it hands them out, how many of its streams have a batch in a round; a round's outcome is
the sum over all ranks. Posting and asking are additions to a counter in torch.distributed's key-value store: nothing that
others must take part in at the same time, nothing on the device, nothing in the training step.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from brimful.background import closed_at_exit
from brimful.errors import RankError, StateError
from brimful.stream import State, header_difference

_POSTED: Final = 1 << 32
"""Added to a round's counter by each rank, beside its count."""
_SOONEST, _LATEST, _NOTICE = 0.001, 0.05, 0.5
"""Seconds between two looks at a counter, and between two looks for the failure of another rank."""
_LEAVE: Final = 10.0
"""Seconds for which rank 0 waits at the end."""
_GRACE: Final = 5.0
"""Seconds beyond the timeout after which it is the store that does not answer."""


class Agreement:
    """One run over an epoch by all ranks.

    Args:
        store: a torch.distributed.Store that all ranks share.
        name: of the run, the same on all ranks; run again under one name, it is told apart by how often it ran.
        header: the pipeline, which must be the same on all ranks.
        timeout_seconds: how long the consumer waits for another rank before an error names it.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, name: str, header: State, timeout_seconds: float
    ) -> None:
        self._rank, self._world_size, self._timeout_seconds = rank, world_size, timeout_seconds
        self._store = store
        self._closed = threading.Event()
        self._waited = 0.0  # seconds, by the consumer for what it is to be given next
        self._since: float | None = None  # since when an outcome is waited for
        self._told = False
        self._header = header
        with _reached():
            self._name = f"brimful/{name}/{store.add(f'brimful/{name}/run/{rank}', 1)}"
            if rank == 0:
                store.set(f"{self._name}/header", json.dumps(header))
        closed_at_exit(self)

    def post(self, number: int, count: int) -> None:
        """Says that `count` of this rank's streams have a batch in round `number`."""
        with _reached():
            self._store.add(f"{self._name}/{number}", _POSTED + count)
            self._store.set(f"{self._name}/rank/{self._rank}", str(number))  # after it: whoever is missing there is named

    def outcome(self, number: int) -> int | None:
        """The sum of what all ranks post for a round, as soon as they have; None where the run was closed meanwhile.

        Raises:
            TimeoutError: a rank has not posted, and the consumer has waited for `timeout_seconds`; it is named.
            RankError: another rank failed, or the store is gone; it is named.
            StateError: another rank runs another pipeline; the setting and both its values are named.
        """
        self._since = time.monotonic()
        try:
            with _reached():
                return self._outcome(number, self._since)
        finally:
            self._since = None

    def _outcome(self, number: int, began: float) -> int | None:
        pause, noticed = _SOONEST, began
        while not self._closed.is_set():
            ranks, count = divmod(int(self._store.add(f"{self._name}/{number}", 0)), _POSTED)
            if ranks == self._world_size:
                self._compare()
                return count
            if ranks > self._world_size:
                raise RankError(
                    f"{ranks} processes act as the {self._world_size} ranks of one run: pass the data-parallel group to "
                    "shard(group=...), such as mesh['dp']"
                )
            now = time.monotonic()
            if now - noticed > _NOTICE:
                noticed = now
                self._look_for_failure()
                if min(self._waited, now - began) > self._timeout_seconds:
                    raise TimeoutError(self._missing(number))
            self._closed.wait(pause)
            pause = min(2 * pause, _LATEST)
        return None

    def leave(self) -> None:
        """Of the last outcome: rank 0, whose process may host the store and end now, lets the others read it first."""
        with _reached():
            self._store.add(f"{self._name}/left", 1)
            until = time.monotonic() + _LEAVE
            while self._rank == 0 and int(self._store.add(f"{self._name}/left", 0)) < self._world_size:
                if time.monotonic() > until or self._closed.wait(_SOONEST):
                    return

    def forget(self, number: int) -> None:
        """Removes the counter of a round that all ranks have left behind."""
        if self._rank == 0 and number >= 0:
            with _reached():
                self._store.delete_key(f"{self._name}/{number}")

    def fail(self, error: BaseException) -> None:
        """Tells the other ranks that this one cannot go on."""
        if not isinstance(error, TimeoutError | RankError):
            with suppress(Exception):  # what failed here is what the user wants to know
                self._store.set(f"{self._name}/failed", f"rank {self._rank} failed: {type(error).__name__}: {error}")

    def waiting(self, seconds: float) -> None:
        """Told each second how long the consumer has waited for what it is to be given next.

        Raises:
            TimeoutError: the store itself does not answer.
        """
        self._waited = seconds
        since = self._since
        if since is not None and min(seconds, time.monotonic() - since) > self._timeout_seconds + _GRACE:
            raise TimeoutError(
                f"the key-value store through which {self._world_size} ranks agree does not answer: its host (rank 0, or "
                "the launcher) is stuck or gone"
            )

    def stop(self) -> None:
        """Ends what waits for an outcome."""
        self._closed.set()

    close = stop

    def _compare(self) -> None:
        """All ranks must read the same data in the same way; rank 0 says which."""
        if self._told or self._rank == 0:
            return
        self._told = True
        difference = header_difference(json.loads(self._store.get(f"{self._name}/header")), self._header)
        if difference is not None:
            name, theirs, ours = difference
            error = StateError(
                f"the ranks run different pipelines: {name} is {theirs} on rank 0 and {ours} on rank {self._rank}"
            )
            self.fail(error)
            raise error

    def _look_for_failure(self) -> None:
        if self._store.check([f"{self._name}/failed"]):
            raise RankError(self._store.get(f"{self._name}/failed").decode())

    def _missing(self, number: int) -> str:
        """Who has not posted a round, in words."""
        late = []
        for rank in range(self._world_size):
            key = f"{self._name}/rank/{rank}"
            last = int(self._store.get(key)) if self._store.check([key]) else None
            if last is None or last < number:
                late.append(f"rank {rank} ({'never came' if last is None else f'last came to round {last:,}'})")
        return (
            f"waited {self._timeout_seconds:g} seconds for {', '.join(late)} to come to round {number:,} of the epoch: it was "
            "killed, is stuck, or does not iterate as often as this rank does; shard(timeout_seconds=...) sets how long to wait"
        )


@contextmanager
def _reached() -> Iterator[None]:
    """Says of an error of torch's whose it is."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankError):
            raise
        reason = str(error).partition("\n")[0]
        raise RankError(
            f"the key-value store through which the ranks agree is gone: its host, rank 0 or the launcher, ended ({reason})"
        ) from error


def store_of(group: Any) -> Any:
    """The store of a process group, of a device mesh, or of torch.distributed as a whole; None where there is none."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import Store

    if isinstance(group, Store):
        return group
    if hasattr(group, "get_local_rank"):
        group = group.get_group()
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = dist.group.WORLD
    return group.get_group_store()
