"""How ranks that read streams of unequal length agree, ahead of time, where an epoch ends.

Each rank posts, some rounds before it hands them out, how many of its streams have a batch in a round; a round's outcome is
the sum over all ranks. Posting and asking are additions to a counter in torch.distributed's key-value store: nothing that
others must take part in at the same time, nothing on the device, nothing in the training step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from brimful.batching.rendezvous_room import Meeting
from brimful.core.background import Stopped, belongs
from brimful.core.errors import RankError, StateError
from brimful.core.stage import State

AHEAD_ROUNDS: Final = 2
"""Rounds that a rank posts beyond the one whose outcome it waits for."""
_POSTED: Final = 1 << 32
"""Added to a round's counter by each rank, beside its count."""
_SOONEST, _LATEST, _NOTICE = 0.001, 0.05, 0.5
"""Seconds between two looks at a counter, and between two looks for a rank that is gone."""
_LEAVE: Final = 10.0
"""Seconds for which rank 0 waits at the end."""
_PATIENCE: Final = 2.0
"""Seconds for which a rank looks for a run like its own, before it says in what rank 0's differs: another thread may begin it."""
_GRACE: Final = 5.0
"""Seconds beyond the timeout after which it is the store that does not answer."""
_WHY: Final = (
    "it was killed, is stuck, or does not iterate as often as this rank does; "
    "shard(timeout_seconds=...) sets how long to wait"
)


class Agreement:
    """One run by all ranks, over an epoch of streams.

    A thread calls `begin`, `post` and `outcome` for each round in turn, and `leave`; no other one touches the store, which
    may be stuck. The consumer calls `waiting`, and `stop`.

    Args:
        store: a torch.distributed.Store that all ranks share.
        name: what users wrote for the pipeline, the same on all ranks.
        header: the pipeline and its rules, which must be the same on all ranks.
        place: where the run begins, as a dict of plain JSON, which must be as well.
        timeout_seconds: how long the consumer waits for another rank before an error names it.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, name: str, header: State, place: State, timeout_seconds: float
    ) -> None:
        self._rank, self._world_size, self._timeout_seconds = rank, world_size, timeout_seconds
        self._store = store
        self._closed = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._waited = 0.0  # seconds, by the consumer for what it is to be given next
        self._since: float | None = None  # since when the store, or another rank through it, is waited for
        self._meeting = Meeting(store, name, rank, world_size, header, place)
        self._name = ""
        self._posted = -1
        belongs(self)

    def begin(self) -> None:
        """The first of all: this rank takes part in a run, once rank 0 has begun it.

        Raises:
            StateError: rank 0 runs another pipeline, or begins at another place; the setting and both its values are named.
            others as `outcome`.
        """
        with self._reached() as began:
            self._meeting.came()
            self._name = self._meeting.opened() if self._rank == 0 else self._joined(began)

    def post(self, number: int, count: int) -> None:
        """Says that `count` of this rank's streams have a batch in round `number`."""
        with self._reached():
            self._store.add(f"{self._name}/{number}", _POSTED + count)
            self._posted = number
            # after it: whoever is missing there is named
            self._store.set(f"{self._name}/rank/{self._rank}", str(number))

    def outcome(self, number: int) -> int:
        """The sum of what all ranks post for a round, as soon as they have.

        Raises:
            TimeoutError: a rank has not posted, and the consumer has waited for `timeout_seconds`; it is named.
            RankError: another rank failed or left before it came to this round, or the store is gone; it is named.
            Stopped: the run was closed meanwhile.
        """
        with self._reached() as began:
            count = self._outcome(number, began)
            if self._rank == 0 and number > AHEAD_ROUNDS:  # all have posted this one, so have the outcomes before those
                self._store.delete_key(f"{self._name}/{number - AHEAD_ROUNDS - 1}")
        return count

    def _joined(self, began: float) -> str:
        """The name of the run of rank 0's that is like this one, as soon as there is one."""
        pause, patience = _SOONEST, min(_PATIENCE, self._timeout_seconds / 2)
        while not self._closed:
            name = self._meeting.joined()
            if name is not None:
                return name
            waited = time.monotonic() - began
            if waited > patience:
                if self._meeting.words is not None:
                    raise RankError(self._meeting.words)
                self._look_for_another()
            if min(self._waited, waited) > self._timeout_seconds:
                late = f"rank 0 (never came{self._meeting.wants(0)})"
                raise TimeoutError(
                    f"waited {self._timeout_seconds:g} seconds for {late} to begin a run like that of rank {self._rank}: {_WHY}"
                )
            self._pause(pause)
            pause = min(2 * pause, _LATEST)
        raise Stopped

    def _look_for_another(self) -> None:
        """All ranks must read the same data in the same way, from one place on; rank 0 says which."""
        other = self._meeting.other()
        if other is not None:
            self._name, words = other
            error = StateError(words)
            self.fail(error, posted=-1)
            raise error

    def _outcome(self, number: int, began: float) -> int:
        pause, noticed = _SOONEST, began
        while not self._closed:
            ranks, count = divmod(int(self._store.add(f"{self._name}/{number}", 0)), _POSTED)
            if ranks == self._world_size:
                return count
            now = time.monotonic()
            if now - noticed > _NOTICE:
                noticed = now
                self._look_for_gone(number)
                if min(self._waited, now - began) > self._timeout_seconds:
                    error = TimeoutError(self._missing(number))
                    self.fail(error, posted=number - 1)  # others may wait longer, or lose the store with this rank
                    raise error
            self._pause(pause)
            pause = min(2 * pause, _LATEST)
        raise Stopped

    def leave(self, over: bool) -> None:
        """The last of all. Where the epoch is not over, tells the other ranks, so that none of them waits for this one.

        Rank 0, whose process may host the store and end now, lets the others read the last outcome first. Whoever leaves
        last removes what the run had in the store.
        """
        if not self._name:
            return
        with suppress(Exception):  # of a store that is gone
            with self._reached():
                if not over:
                    words = (
                        f"rank {self._rank} left before the epoch was over: its loop ended, failed or was interrupted"
                    )
                    if self._rank == 0:
                        self._meeting.closed(self._name, words, self._keys())
                    self._store.compare_set(f"{self._name}/gone", "", json.dumps([self._posted, words]))
                gone = self._meeting.left(self._name, self._keys())
            until = time.monotonic() + _LEAVE
            while over and self._rank == 0 and not gone and time.monotonic() < until:
                self._pause(_SOONEST)
                if self._closed:
                    return
                with self._reached():
                    gone = self._meeting.is_over(self._name)

    def _keys(self) -> list[str]:
        """What the rounds of a run may have in the store when all ranks have left it; no two are more rounds apart than twice
        those that one posts ahead."""
        apart = 2 * (AHEAD_ROUNDS + 1)
        rounds = range(max(0, self._posted - apart - AHEAD_ROUNDS), self._posted + apart)
        ranks = [f"rank/{rank}" for rank in range(self._world_size)]
        return [*ranks, *map(str, rounds)]

    def fail(self, error: BaseException, posted: int | None = None) -> None:
        """Tells the other ranks that this one cannot go on, beyond the rounds that it has posted."""
        if not isinstance(error, RankError):
            with suppress(Exception):  # what failed here is what the user wants to know
                words = f"rank {self._rank} failed: {type(error).__name__}: {error}"
                self._store.set(f"{self._name}/gone", json.dumps([self._posted if posted is None else posted, words]))

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
        self._closed = True
        self._woken.put(None)

    close = stop

    def _pause(self, seconds: float) -> None:
        with suppress(Empty):
            self._woken.get(timeout=seconds)

    def _look_for_gone(self, number: int) -> None:
        """A rank that is gone takes part in the rounds that it has posted: all ranks hand out the same ones."""
        if self._store.check([f"{self._name}/gone"]):
            posted, words = json.loads(self._store.get(f"{self._name}/gone"))
            if posted < number:
                raise RankError(words)

    def _missing(self, number: int) -> str:
        """Who has not posted a round, in words."""
        late = []
        for rank in range(self._world_size):
            key = f"{self._name}/rank/{rank}"
            last = int(self._store.get(key)) if self._store.check([key]) else None
            if last is None or last < number:
                came = f"never came{self._meeting.wants(rank)}" if last is None else f"last came to round {last:,}"
                late.append(f"rank {rank} ({came})")
        return (
            f"waited {self._timeout_seconds:g} seconds for {', '.join(late)} to come to round {number:,} of the epoch: "
            f"{_WHY}"
        )

    @contextmanager
    def _reached(self) -> Iterator[float]:
        """Around every use of the store: how long it has been waited for is known; says of an error of torch's whose it is."""
        self._since = began = time.monotonic()
        try:
            yield began
        except RuntimeError as error:
            if isinstance(error, RankError):
                raise
            reason = str(error).partition("\n")[0]
            raise RankError(
                "the key-value store through which the ranks agree is gone: its host, rank 0 or the launcher, ended "
                f"({reason})"
            ) from error
        finally:
            self._since = None


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
