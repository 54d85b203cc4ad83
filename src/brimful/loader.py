"""An epoch at a time, as trainers want it: the loader that DataLoader-shaped code takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from brimful.core.errors import integer
from brimful.core.iterator import ResumableIterator
from brimful.core.states import as_text, from_text
from brimful.core.stats import Stats


class Runs(Protocol):
    """What a loader runs: Batches."""

    def iter(self, state_dict: dict[str, Any] | None = None, *, epoch: int = 0) -> ResumableIterator[Any]: ...

    def __len__(self) -> int: ...

    @property
    def streams(self) -> int | None: ...


class Loader(IterableDataset[Any]):
    """Each iteration is one epoch of the batches: the next one, or the one that `set_epoch` names.

    A loader that is read to its last batch has ended the epoch, whether or not the next batch was asked for: what is iterated
    then, or saved, is the next epoch. A loop that is left before begins its epoch again. Read by this process, with
    `prefetch` and tokenising in threads: hand it to the trainer as it is, or, where one must be a DataLoader and nobody shards
    its batches again (as Accelerate's `prepare` does), to one with batch_size=None and num_workers=0.

    It is a Stateful of torch.distributed.checkpoint: `dcp.save({"loader": loader, ...})` on all ranks, and `dcp.load` on as
    many or as few as divide the streams. (Each rank writes the entries of its own streams; a loader that has not begun asks
    for all.)

    >>> import brimful as bf
    >>> loader = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2]}]).batch(1).loader()
    >>> [[batch["input_ids"].item() for batch in loader] for epoch in range(2)]
    [[1, 2], [1, 2]]
    """

    def __init__(self, batches: Runs) -> None:
        super().__init__()
        self.batches = batches
        self.epoch = 0
        self._running: ResumableIterator[Any] | None = None
        self._last: ResumableIterator[Any] | None = (
            None  # what the last iteration ran, unless this was sent elsewhere since
        )
        self._restored: dict[str, Any] | None = None
        self._left: dict[str, Any] | None = None  # the place of a loop that read ahead of what was used

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError(
                "this loader reads in the process that iterates over it: in DataLoader workers each would read everything. "
                "Use DataLoader(loader, batch_size=None, num_workers=0); brimful works ahead in threads (prefetch)"
            )
        left = self._left if self._running is None else self._running.state_dict()
        if left is not None and self._restored is None and self._is_over(left):
            self.epoch += 1
        self._leave()
        over = False
        while not over:
            restored = self._restored
            self._running = self._last = running = self.batches.iter(restored, epoch=self.epoch)
            self._restored = None
            over = restored is None  # else it may have nothing left: then the next epoch begins
            ended = False
            with running:
                for batch in running:
                    over = True
                    if running.over:
                        self.epoch, self._running, ended = self.epoch + 1, None, True
                    yield batch
                    if self._last is not running:
                        break
            if self._last is None or (ended and over):
                return  # sent to another place; or over, whatever began since
            if self._last is not running:
                raise RuntimeError(
                    "another loop over this loader has begun inside this one, and ended it: a loader runs one epoch at a time; "
                    "make one for each loop, with batches.loader()"
                )
            self.epoch, self._running = self.epoch + 1, None

    def __len__(self) -> int:
        return len(self.batches)

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on where this one is."""
        return vars(self) | {"_running": None, "_last": None, "_restored": self._place(), "_left": None}

    @property
    def stats(self) -> Stats | None:
        """Counts of the epoch that is iterated over, or was last; None before the first."""
        return None if self._last is None else self._last.stats

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration runs; the one that was restored keeps its position, another starts anew."""
        epoch = integer("epoch", epoch)
        if epoch != self.epoch:
            self._leave()
            self.epoch, self._restored = epoch, None

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: the epoch and, as text, the place after the last batch that was taken; of streams an entry for each
        that this rank reads, so that the states of all ranks can be joined (`bf.merge_states`)."""
        return as_text(self.epoch, self._place(), self.batches.streams)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state at the next iteration. The state is checked against the pipeline then."""
        self._leave()
        self.epoch, self._restored = from_text(state_dict)

    def leave_at(self, state_dict: dict[str, Any]) -> None:
        """What a loop that reads ahead calls when it is left: this state, of its last batch that was used, is the place now,
        and the next loop begins that epoch again, as after any loop that was left."""
        self._leave()
        self._restored = None
        self.epoch, self._left = from_text(state_dict)

    def _place(self) -> dict[str, Any] | None:
        """In the epoch; None at its start."""
        if self._restored is not None:
            return self._restored
        return self._left if self._running is None else self._running.state_dict()

    def _leave(self) -> None:
        """Ends the iteration that runs: it is not where this loader goes on."""
        running, self._running, self._last, self._left = self._running, None, None, None
        if running is not None:
            running.close()

    def _is_over(self, place: dict[str, Any]) -> bool:
        """Whether a loop was left after its last batch, where no state says so: of ranks that read streams."""
        if self.batches.streams is None:
            return False
        with suppress(Exception), self.batches.iter(place) as rest:
            return next(rest, None) is None
        return False
