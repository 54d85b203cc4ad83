"""An epoch at a time, as trainers want it: the loader that DataLoader-shaped code takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from brimful.errors import integer
from brimful.iterator import ResumableIterator
from brimful.states import as_text, from_text
from brimful.stream import END


class Runs(Protocol):
    """What a loader runs: Batches."""

    def iter(self, state_dict: dict[str, Any] | None = None, *, epoch: int = 0) -> ResumableIterator[Any]: ...

    def __len__(self) -> int: ...

    @property
    def streams(self) -> int | None: ...


class Loader(IterableDataset[Any]):
    """Each iteration is one epoch of the batches: the next one, or the one that `set_epoch` names.

    A checkpoint taken after the last batch of an epoch starts the next one. Read by this process, with `prefetch` and
    tokenising in threads: hand it to the trainer as it is, or, where one must be a DataLoader and nobody deals its batches
    out again (as Accelerate's `prepare` does), to one with batch_size=None and num_workers=0.

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
        self._restored: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError(
                "this loader reads in the process that iterates over it: in DataLoader workers each would read everything. "
                "Use DataLoader(loader, batch_size=None, num_workers=0); brimful works ahead in threads (prefetch)"
            )
        restored, self._restored = self._restored, None
        self._leave()
        first = True
        while True:
            self._running = running = self.batches.iter(restored, epoch=self.epoch)
            with running:
                for batch in running:
                    first = False
                    yield batch
            if self._running is not running:  # another iteration, or another state, has taken its place
                return
            self.epoch, self._running = self.epoch + 1, None
            if restored is None or not first:
                return
            restored = None  # what was restored had nothing left: the next epoch begins

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration runs; the one that was restored keeps its position, another starts anew."""
        epoch = integer("epoch", epoch)
        if epoch != self.epoch:
            self._leave()
            self.epoch, self._restored = epoch, None

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: the epoch and, as text, the place after the last batch that was taken; of streams an entry for each
        that this rank reads, so that the states of all ranks can be joined (`bf.merge_states`)."""
        epoch, state = self.epoch, self._restored
        if state is None and self._running is not None:
            state = self._running.state_dict()
            if state["position"] == END:
                epoch, state = epoch + 1, None
        return as_text(epoch, state, self.batches.streams)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state at the next iteration. The state is checked against the pipeline then."""
        self._leave()
        self.epoch, self._restored = from_text(state_dict)

    def _leave(self) -> None:
        """Ends the iteration that runs: it is not where this loader goes on."""
        running, self._running = self._running, None
        if running is not None:
            running.close()
