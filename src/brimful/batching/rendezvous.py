"""How data-parallel ranks that read streams of unequal length find one another, and agree, ahead of time, where an epoch ends.

Rank 0 opens a run (`RunRegistry`), and each other one joins the first that is like its own:

    rank 0   opened()    run n of a name, with its header and the place where it begins; closed(words) once it has left too early
    others   joined()    the first open run with the same header and place in which this rank has not been yet
    all      left()      the last of them removes what the run had in the store

A rank that refuses its state comes to no run: `tell_refused` says so to those that wait for it.

So ranks that began unequally often, as one was interrupted and tried again, find the next run of rank 0's; and runs that the
threads of a process begin in another order than those of rank 0 find their own.

In a run (`Rendezvous`) each rank posts, some rounds before it hands them out, how many of its streams have a batch in a round; a
round's outcome is the sum over all ranks. Posting and asking are additions to a counter in torch.distributed's key-value store:
nothing that others must take part in at the same time, nothing on the device, nothing in the training step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from queue import Empty
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

from brimful.core.header import header_difference
from brimful.core.run import Run, Stopped
from brimful.core.stage import State
from brimful.core.threads import Inbox, Workers
from brimful.plan.errors import RankError, StateError

AHEAD_ROUNDS: Final = 2
"""Rounds that a rank posts beyond the one whose outcome it waits for."""
_POSTED: Final = 1 << 32
"""Added to a round's counter by each rank, beside its count."""
_SOONEST, _LATER, _LATEST, _NOTICE = 0.001, 0.1, 0.5, 0.5
"""Seconds between two looks at a counter: a tenth of those that it was waited for, so that a thousand ranks that wait for one ask
little; and between two looks for a rank that is gone. The store's own `wait` would hold its client, which torch uses too, and
writes a warning to the console whenever it times out."""
_LEAVE: Final = 10.0
"""Seconds for which rank 0 waits at the end."""
_PATIENCE: Final = 2.0
"""Seconds for which a rank looks for a run like its own, before it says in what rank 0's differs: another thread may begin it."""
_GRACE: Final = 5.0
"""Seconds beyond the timeout after which it is the store that does not answer."""
_RECENT: Final = 16
"""How many of the last runs of a name may be open at once."""
_WHY: Final = (
    "it was killed, is stuck, or does not iterate as often as this rank does; "
    "shard(timeout_seconds=...) sets how long to wait"
)


class Rendezvous:
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
        self,
        store: Any,
        rank: int,
        world_size: int,
        name: str,
        header: State,
        place: State,
        timeout_seconds: float,
        run: Run,
    ) -> None:
        self._rank, self._world_size, self._timeout_seconds = rank, world_size, timeout_seconds
        self._store = store
        self._closed = False
        self._woken: Inbox[None] = Inbox()
        self._waited = 0.0  # seconds, by the consumer for what it is to be given next
        self._since: float | None = None  # since when the store, or another rank through it, is waited for
        self._runs = RunRegistry(store, name, rank, world_size, header, place)
        self._name = ""
        self._posted = -1
        self._refused: tuple[str, float] | None = None  # what is said of a rank that refused its state, since when
        run.add(self)

    def begin(self) -> None:
        """The first of all: this rank takes part in a run, once rank 0 has begun it.

        Raises:
            StateError: rank 0 runs another pipeline, or begins at another place; the setting and both its values are named.
            others as `outcome`.
        """
        with self._reached():
            self._runs.announce()
            self._name = self._runs.opened() if self._rank == 0 else self._joined()

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
        with self._reached():
            noticed = 0.0
            for waited in self._looks():
                ranks, count = divmod(int(self._store.add(f"{self._name}/{number}", 0)), _POSTED)
                if ranks == self._world_size:
                    if self._rank == 0 and number > AHEAD_ROUNDS:  # all have the outcomes of rounds before those
                        self._store.delete_key(f"{self._name}/{number - AHEAD_ROUNDS - 1}")
                    return count
                if waited - noticed > _NOTICE:
                    noticed = waited
                    self._look_for_gone(number)
                    self._look_for_refused()
                    if min(self._waited, waited) > self._timeout_seconds:
                        error = TimeoutError(self._missing(number))
                        self.fail(error, posted=number - 1)  # others may wait longer, or lose the store with this rank
                        raise error
        raise Stopped

    def _joined(self) -> str:
        """The name of the run of rank 0's that is like this one, as soon as there is one."""
        patience = min(_PATIENCE, self._timeout_seconds / 2)
        for waited in self._looks():
            name = self._runs.joined()
            if name is not None:
                return name
            if waited > patience:
                self._look_for_refused()
                if self._runs.reason is not None:
                    raise RankError(self._runs.reason)
                if (other := self._runs.other()) is not None:
                    self._name, words = other
                    error = StateError(words)
                    self.fail(error, posted=-1)
                    raise error
            if min(self._waited, waited) > self._timeout_seconds:
                late = f"rank 0 (never came{self._runs.wants(0)})"
                raise TimeoutError(
                    f"waited {self._timeout_seconds:g} seconds for {late} to begin a run like that of rank {self._rank}: {_WHY}"
                )
        raise Stopped

    def _looks(self) -> Iterator[float]:
        """Steps between looks at the store, short at first, until the run is closed; each gives the seconds waited so far."""
        began = time.monotonic()
        while not self._closed:
            waited = time.monotonic() - began
            yield waited
            self._pause(min(max(_SOONEST, _LATER * waited), _LATEST))

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
                        self._runs.closed(self._name, words, self._keys())
                    self._store.compare_set(f"{self._name}/gone", "", json.dumps([self._posted, words]))
                gone = self._runs.left(self._name, self._keys())
            until = time.monotonic() + _LEAVE
            while over and self._rank == 0 and not gone and time.monotonic() < until:
                self._pause(_SOONEST)
                if self._closed:
                    return
                with self._reached():
                    gone = self._runs.is_over(self._name)

    def _keys(self) -> list[str]:
        """The keys that the rounds of a run may have in the store when all ranks have left it. No two ranks are more rounds
        apart than twice those that one posts ahead."""
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
        """Called each second, with how long the consumer has waited for its next item.

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

    def _look_for_refused(self) -> None:
        """A rank that refused its state does not come, unless it goes on with another one soon."""
        words = self._runs.refused(self._name)
        if words is None or self._refused is None or self._refused[0] != words:
            self._refused = None if words is None else (words, time.monotonic())
        elif time.monotonic() - self._refused[1] > min(_PATIENCE, self._timeout_seconds / 2):
            raise RankError(words)

    def _missing(self, number: int) -> str:
        """The ranks that have not posted a round, in words."""
        late = []
        for rank in range(self._world_size):
            key = f"{self._name}/rank/{rank}"
            last = int(self._store.get(key)) if self._store.check([key]) else None
            if last is None or last < number:
                came = f"never came{self._runs.wants(rank)}" if last is None else f"last came to round {last:,}"
                late.append(f"rank {rank} ({came})")
        return (
            f"waited {self._timeout_seconds:g} seconds for {', '.join(late)} to come to round {number:,} of the epoch: "
            f"{_WHY}"
        )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Around every use of the store: notes since when it is waited for, and says what an error of torch's means."""
        self._since = time.monotonic()
        try:
            yield
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


class RunRegistry:
    """The runs of one name, for one of its ranks.

    Args:
        store: a torch.distributed.Store that all ranks share.
        name: the name of the pipeline, for people.
        header: the pipeline and its rules.
        place: where the run begins, as a dict of plain JSON.
    """

    def __init__(self, store: Any, name: str, rank: int, world_size: int, header: State, place: State) -> None:
        self._store, self._name, self._rank, self._world_size = store, name, rank, world_size
        self._base = f"brimful/{crc32(name.encode()):08x}.{world_size}"
        self._ours = json.loads(json.dumps([header, place]))
        self._digest = sha256(json.dumps(self._ours, sort_keys=True).encode()).hexdigest()[:16]
        self._past: set[int] = set()  # runs in which this rank has been, or that are over
        self.reason: str | None = None
        """Why rank 0 left a run like this one before this rank came to it."""

    def announce(self) -> None:
        """This rank wants to begin a run."""
        self._store.set(f"brimful/came.{self._world_size}/{self._rank}", self._name)

    def wants(self, rank: int) -> str:
        """The place of a rank that did not come, in words; "" where it never came anywhere, or to runs of this name."""
        key = f"brimful/came.{self._world_size}/{rank}"
        name = self._store.get(key).decode() if self._has(key) else self._name
        return "" if name == self._name else f"; it last began {name}"

    def refused(self, name: str) -> str | None:
        """What is said of a rank that refused its state, is not in the run of this name, and has refused more often than this
        one: ranks that all refuse one may all begin anew."""
        if not self._has(key := _notice(self._world_size)):
            return None
        rank, number, words = json.loads(self._store.get(key))
        own = int(self._store.add(_refusals(self._rank, self._world_size), 0))
        return None if number <= own or self._has(f"{name}/rank/{rank}") else str(words)

    def opened(self) -> str:
        """The name of a new run."""
        text = json.dumps([*self._ours, uuid4().hex])  # two threads may want one number: one of them has it
        number = 1 + int(self._store.add(f"{self._base}/runs", 0))
        while self._store.compare_set(f"{self._base}/{number}/header", "", text) != text.encode():
            number += 1
        name = f"{self._base}/{number}"
        self._store.set(f"{name}/{self._digest}", "")
        self._store.add(f"{self._base}/runs", 1)
        return name

    def joined(self) -> str | None:
        """The name of the run that this rank takes part in from now on; None where there is none yet."""
        for number, name in self._open():
            if not self._has(f"{name}/{self._digest}"):
                continue
            self._past.add(number)
            if self._store.add(f"{name}/joined/{self._rank}", 1) > 1:
                continue
            if not self._has(f"{name}/{self._digest}"):  # it was removed in between: this rank had been in it
                self._store.delete_key(f"{name}/joined/{self._rank}")
            elif not self._has(f"{name}/closed"):
                return name
            else:
                self.reason, keys = json.loads(self._store.get(f"{name}/closed"))
                self._store.set(f"{name}/gone", json.dumps([-1, self.reason]))  # no round will have all ranks
                self.left(name, keys)
        return None

    def other(self) -> tuple[str, str] | None:
        """The name of a run that rank 0 has open and this rank could not join, and the difference in words."""
        for _, name in self._open():
            if self._has(f"{name}/{self._digest}") or self._has(f"{name}/closed"):
                continue
            theirs = json.loads(self._store.get(f"{name}/header"))
            for saved, ours, what, remedy in zip(theirs, self._ours, _DIFFERENT, _REMEDIES):
                found = header_difference(saved, ours)
                if found is not None and self._store.add(f"{name}/joined/{self._rank}", 1) == 1:
                    sides = f"{found.saved:.80} on rank 0 and {found.ours:.80} on rank {self._rank}"
                    return name, f"{what}: {found.name} is {sides}{remedy}"
        return None

    def closed(self, name: str, words: str, keys: Sequence[str]) -> None:
        """Rank 0 has left a run: nobody who comes to it now waits for it."""
        self._store.set(f"{name}/closed", json.dumps([words, keys]))

    def left(self, name: str, keys: Sequence[str]) -> bool:
        """This rank has left a run; whether it was the last, and removed it.

        Args:
            keys: more that the run may have in the store.
        """
        if int(self._store.add(f"{name}/left", 1)) < self._world_size:
            return False
        joined = [f"joined/{rank}" for rank in range(self._world_size)]
        for key in ("header", self._digest, "closed", "gone", *joined, *keys, "left"):
            self._store.delete_key(f"{name}/{key}")
        return True

    def is_over(self, name: str) -> bool:
        """Whether all ranks have left a run, after this one has."""
        return not self._has(f"{name}/left")

    def _open(self) -> list[tuple[int, str]]:
        """The runs in which this rank may not have been yet, first to last."""
        newest = int(self._store.add(f"{self._base}/runs", 0))
        found = []
        for number in range(max(1, newest - _RECENT + 1), newest + 1):
            name = f"{self._base}/{number}"
            if number not in self._past and self._has(f"{name}/header"):
                found.append((number, name))
            else:
                self._past.add(number)  # it had one before it was counted
        return found

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))


_TOLD: Final[set[tuple[int, int]]] = set()
"""Ranks of this process, and of how many, that refused a state and have taken none since."""


def tell_refused(store: Any, rank: int, world_size: int, error: BaseException | None) -> None:
    """Tells ranks that wait for this one, or will, why it does not come to a run; None: it will come.

    The store may be stuck, and so a thread asks it.
    """
    if error is None and (rank, world_size) not in _TOLD:
        return

    def tell() -> None:
        if error is not None:
            _TOLD.add((rank, world_size))
            number = int(store.add(_refusals(rank, world_size), 1))
            words = f"rank {rank} failed: {type(error).__name__}: {error}"
            store.set(_notice(world_size), json.dumps([rank, number, words]))
        else:
            _TOLD.discard((rank, world_size))
            if store.check([_notice(world_size)]) and json.loads(store.get(_notice(world_size)))[0] == rank:
                store.delete_key(_notice(world_size))

    with suppress(Exception), Workers(1, "refused") as workers:
        workers.submit(tell).result(_GRACE)


def _notice(world_size: int) -> str:
    return f"brimful/refused.{world_size}"


def _refusals(rank: int, world_size: int) -> str:
    return f"brimful/refusals.{world_size}/{rank}"


_DIFFERENT: Final = "the ranks run different pipelines", "the ranks are at different places"
_REMEDIES: Final = "", "; all go on from the states of one step, and iterate equally often"


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
    if not hasattr(group, "get_group_store"):  # PyTorch 2.6
        return dist.distributed_c10d._world.pg_map[group][1]
    return group.get_group_store()
