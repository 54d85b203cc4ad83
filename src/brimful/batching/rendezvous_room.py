"""Where data-parallel ranks meet for a run: rank 0 opens it, and each other one joins the first that is like its own.

    rank 0   opened()    run n of a name, with its header and the place where it begins; closed(words) once it has left too early
    others   joined()    the first open run with the same header and place in which this rank has not been yet
    all      left()      the last of them removes what the run had in the store

So ranks that began unequally often, as one was interrupted and tried again, meet at the next run of rank 0's; and runs that the
threads of a process begin in another order than those of rank 0 find their own. All is in torch.distributed's key-value store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

from brimful.core.stage import State, header_difference

_RECENT: Final = 16
"""How many of the last runs of a name may be open at once."""


class Meeting:
    """The runs of one name, for one of its ranks.

    Args:
        store: a torch.distributed.Store that all ranks share.
        name: what the pipeline is called, for people.
        header: the pipeline and its rules.
        place: where the run begins, as a dict of plain JSON.
    """

    def __init__(self, store: Any, name: str, rank: int, world_size: int, header: State, place: State) -> None:
        self._store, self._name, self._rank, self._world_size = store, name, rank, world_size
        self._base = f"brimful/{crc32(name.encode()):08x}.{world_size}"
        self._wanted = json.loads(json.dumps([header, place]))
        self._digest = sha256(json.dumps(self._wanted, sort_keys=True).encode()).hexdigest()[:16]
        self._past: set[int] = set()  # runs in which this rank has been, or that are over
        self.words: str | None = None
        """Why rank 0 left a run like this one before this rank came to it."""

    def came(self) -> None:
        """This rank wants to begin a run."""
        self._store.set(f"brimful/came.{self._world_size}/{self._rank}", self._name)

    def wants(self, rank: int) -> str:
        """Where another rank is that did not come, in words; "" where it never came anywhere, or to runs of this name."""
        key = f"brimful/came.{self._world_size}/{rank}"
        name = self._store.get(key).decode() if self._has(key) else self._name
        return "" if name == self._name else f"; it last began {name}"

    def opened(self) -> str:
        """The name of a new run."""
        text = json.dumps([*self._wanted, uuid4().hex])  # two threads may want one number: one of them has it
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
                self.words, keys = json.loads(self._store.get(f"{name}/closed"))
                self._store.set(f"{name}/gone", json.dumps([-1, self.words]))  # no round will have all ranks
                self.left(name, keys)
        return None

    def other(self) -> tuple[str, str] | None:
        """Of a run that rank 0 has open, which this rank could not join, its name, and in words in what it differs."""
        for _, name in self._open():
            if self._has(f"{name}/{self._digest}") or self._has(f"{name}/closed"):
                continue
            theirs = json.loads(self._store.get(f"{name}/header"))
            for ours, what, remedy in zip(self._wanted, _DIFFERENT, _REMEDIES):
                found = header_difference(theirs.pop(0), ours)
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


_DIFFERENT: Final = "the ranks run different pipelines", "the ranks are at different places"
_REMEDIES: Final = "", "; all go on from the states of one step, and iterate equally often"
