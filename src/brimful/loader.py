"""An epoch at a time, as trainers want it: the loader that DataLoader-shaped code takes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from brimful.batching.shared import told
from brimful.core.above import GUARD
from brimful.core.consumed import Consumed, Snapshot
from brimful.core.counters import with_counters
from brimful.core.facts import facts_of, shown
from brimful.core.header import allowed
from brimful.core.iterator import ResumableIterator, in_use, position_in
from brimful.core.run import Run
from brimful.core.stage import Stage
from brimful.core.states import as_text, from_text, restored_elsewhere
from brimful.core.stats import Stats
from brimful.plan.errors import BrokenError, StateError, integer, warn_once

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    Base = IterableDataset[Any]
else:
    Base = object  # batches that stay arrays are read without torch; all others by a `TorchLoader`


class Runs(Protocol):
    """What a loader runs: Batches, or Samples."""

    def _begin(
        self, run: Run, state_dict: dict[str, Any] | None, allow: Collection[str], epoch: int
    ) -> ResumableIterator[Any]: ...

    def __len__(self) -> int: ...

    @property
    def stage(self) -> Stage[Any]: ...

    @property
    def _endless(self) -> Stage[Any]: ...


class Loader(Base):
    """An iterable for trainers. Each iteration is one epoch of the batches: the next one, or the one that `set_epoch`
    names. It is an IterableDataset of torch, unless the batches are numpy arrays.

    When you have taken the last batch, the epoch has ended, even if you do not ask for another one. The next loop or
    saved state then belongs to the next epoch. If you leave a loop earlier, its epoch ends there, as with a DataLoader:
    the next loop begins the next epoch. Until then, a state has the place where you left it. To begin an epoch again,
    name it: `set_epoch(n)`.

    The data are read in this process, with `prefetch` and tokenizing in threads. Give the loader to the trainer as it
    is (with Accelerate, to `brimful.integrations.accelerate.prepare`). If the trainer needs a DataLoader, wrap it in
    one with batch_size=None and num_workers=0. Nobody may shard that again: a DataLoader that Accelerate prepared is
    refused.

    With `steps_per_epoch`, so many batches are an epoch, over as many epochs of the data as that takes. Each epoch
    continues where the one before stopped, also after a loop that was left. If a trainer stops early
    (`limit_train_batches`), nothing comes twice. `set_epoch` then has no effect. After a state in the middle of an
    epoch comes the rest of that epoch.

    It is a Stateful of torch.distributed.checkpoint. Call `dcp.save({"loader": loader, ...})` on all ranks, and
    `dcp.load` on any number of ranks that divides the streams. (Each rank writes the entries of its own streams. A
    loader that has not begun asks for all.)

    >>> import brimful as bf
    >>> loader = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2]}]).batch(1).loader()
    >>> [[batch["input_ids"].item() for batch in loader] for epoch in range(2)]
    [[1, 2], [1, 2]]
    """

    def __init__(self, batches: Runs, *, steps_per_epoch: int | None = None) -> None:
        super().__init__()
        self.batches = batches
        self.steps_per_epoch = steps_per_epoch
        self._steps = 0  # of an epoch of so many
        self.epoch: int = 0
        self._running: ResumableIterator[Any] | None = None
        self._last: object = None  # what the last iteration ran, unless this was sent elsewhere since
        self._restored: dict[str, Any] | None = None
        self._allow: Collection[str] = ()  # in which settings a restored state may differ
        self._left: dict[str, Any] | None = None  # the place of a loop that read ahead of what was used
        self._loaded = False  # a state, and no loop has begun since
        self._named = False  # the epoch of the next loop, inside one
        self._kept: Run | None = None  # the workers of all epochs
        self._reader: str | None = None  # who takes its batches before the training loop wants them
        self._consumed = Consumed()

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def _iterate(self, ahead: bool = False) -> Iterator[Any]:
        """A loop over it; `ahead`: a stage of ours takes its batches, and hands on those that the consumer is to make."""
        return LoaderIterator(self._loop(ahead))

    def _loop(self, ahead: bool) -> Generator[Any, None, None]:
        if GUARD.worker_here() is not None:
            raise RuntimeError(
                "this loader reads in the process that iterates over it: in DataLoader workers each would read everything. "
                "Use DataLoader(loader, batch_size=None, num_workers=0); brimful works ahead in threads (prefetch)"
            )
        begun = GUARD.loop_here()
        begun.check_loader(self, followed=self._consumed.followed)
        GUARD.check_buffers(self.batches.stage)
        self._reader = begun.reader.name
        if (place := self._consumed.left_at) is not None:
            self.leave_at(place)
        loop = self._begin()
        try:
            steps = self.steps_per_epoch
            for batch in self._rest_of_data(ahead) if steps is None else self._rest_of_steps(loop, steps, ahead):
                self._consumed.took(self._now)
                yield batch
            self._consumed.end(loop, self._now)
        finally:
            self._consumed.leave(loop)

    def _begin(self) -> object:
        """A loop begins where this stands, and is named by what is returned. After an epoch of the data that was left the next
        one begins; one of steps begins with the batch after the last one, unless a state was loaded in its middle."""
        if self.steps_per_epoch is None:
            running = self._running
            if running is not None and not (running.stats.batches or running.stats.samples):
                self._restored = running.state_dict()  # nothing was taken, so nothing was left
            elif (running is not None or self._left is not None) and self._restored is None and not self._named:
                self.epoch += 1
                warn_once(
                    "a loop over a loader was left before its end, and the next loop begins the next epoch, as with a "
                    "DataLoader. set_epoch(n) before a loop begins epoch n"
                )
            self._leave(for_another=object())
        elif self._steps and not self._loaded:
            self.epoch, self._steps = self.epoch + 1, 0
        self._loaded = self._named = False
        return self._consumed.begin(self._now()())

    def _rest_of_data(self, ahead: bool) -> Iterator[Any]:
        """The rest of the epoch where this stands, or the next one."""
        over = False
        while not over:
            restored = self._restored
            self._running = self._last = running = self._begun(restored, ahead)
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
                raise _ended_by_another()
            self.epoch, self._running = self.epoch + 1, None

    def _rest_of_steps(self, loop: object, steps_per_epoch: int, ahead: bool) -> Iterator[Any]:
        """The batches after the last one, to the end of an epoch of so many steps."""
        running = before = self._running
        if running is None or running._run.ahead != ahead:  # its items are for another kind of taker
            self._running = running = self._begun(self._place(), ahead)
            self._restored = self._left = None
        if before is not None and before is not running:
            before.close()
        self._last = running
        over = False
        while not over and (batch := next(running, None)) is not None:
            self._steps += 1
            over = self._steps >= steps_per_epoch
            if over:
                self.epoch, self._steps = self.epoch + 1, 0
            yield batch
            if not self._consumed.runs(loop):
                raise _ended_by_another()
            if self._running is not running:
                return  # sent to another place

    def _begun(self, state: dict[str, Any] | None, ahead: bool) -> ResumableIterator[Any]:
        """A run from a state of its own, or of the epoch from its start."""
        if self._kept is None or self._kept.process != os.getpid():
            self._kept = Run.kept_by(self)
        return self.batches._begin(Run(self._kept, ahead), state, self._allow, self.epoch if state is None else 0)

    def __len__(self) -> int:
        return len(self.batches) if self.steps_per_epoch is None else self.steps_per_epoch

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        steps = "" if self.steps_per_epoch is None else f", steps_per_epoch={self.steps_per_epoch:,}"
        return f"Loader({shown(self.batches.stage)}, epoch {self.epoch:,}{steps})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on where this one is, after what was used."""
        unused = self._consumed.unused
        epoch, steps, place = (self.epoch, self._steps, self._place()) if unused is None else from_text(unused)
        return vars(self) | {
            "epoch": epoch,
            "_steps": steps or 0,
            "_running": None,
            "_last": None,
            "_restored": place,
            "_left": None,
            "_loaded": False,
            "_kept": None,
            "_consumed": Consumed(),
        }

    @property
    def stats(self) -> Stats | None:
        """Counts of the current or last epoch. None before the first one."""
        return self._last.stats if isinstance(self._last, ResumableIterator) else None

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. A restored epoch continues at its place. Any other epoch begins at its
        start, also that of a loop that was left.

        Raises:
            ValueError: a state was restored, and this is another epoch before its first batch. The trained batches
                would come again.
        """
        epoch = integer("epoch", epoch)
        GUARD.loop_here().check_processes()  # Accelerate tells it on all ranks, and reads it on the first alone
        if epoch != self.epoch:
            if self._loaded:
                raise ValueError(restored_elsewhere("loader", self.epoch, epoch))
            if self.steps_per_epoch is None:
                self._leave()
                self._restored = None
            self.epoch, self._steps = epoch, 0
            self._consumed.moved(self._now()())
        elif self.steps_per_epoch is None and not self._loaded:
            self._named = self._consumed.looping
            if not self._named and (self._running is not None or self._left is not None):
                self._leave()
                self._consumed.moved(self._now()())

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: the epoch and, as text, the place after the last batch that was taken.

        With streams, it has an entry for each stream of this rank. `bf.merge_states` joins the states of all ranks.

        Raises:
            StateError: a DataLoader that Accelerate prepared takes batches ahead of the loop.
        """
        state: dict[str, Any] = self._snapshot()()
        return state

    def _snapshot(self) -> Snapshot:
        """Of what `state_dict` returns now."""
        return self._consumed.snapshot(self._taken)

    def _taken(self) -> Snapshot:
        """After the last batch that was taken, where nobody takes some before the loop wants them."""
        if self._consumed.looping and self._reader is not None and not GUARD.asked_by_torchdata():
            raise StateError(
                f"{self._reader} takes batches of this loader before the training loop wants them, so that a state would leave "
                "some out; give the loader itself to brimful.integrations.accelerate.prepare, and save what that returns"
            )
        return self._now()

    def _now(self) -> Snapshot:
        """After the last batch that was taken."""
        epoch, place, batches = self.epoch, self._place_now(), self.batches
        steps = None if self.steps_per_epoch is None else self._steps
        return lambda: as_text(epoch, place(), facts_of(batches.stage).streams(), steps)

    def load_state_dict(self, state_dict: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Makes the next iteration continue from a state. After an error, the loader stays where it was.

        Args:
            allow: settings in which the state may differ from this pipeline, as for `Batches.iter`.
        Raises:
            StateError: this is not the state of a loader, it is damaged, or it belongs to another pipeline. Or only one
                of the two has epochs of steps. Or the state was saved after as many steps of an epoch as this loader's
                epochs have, or more.
        Price: the check needs a description of the data, as each epoch does. The first one in a process lists the
            files. With indexed data, it asks filters for all rows, and measures lengths that are not known.
        """
        with told(self.batches.stage):
            saved, different = self._read(state_dict), allowed(allow)
            if saved[-1] is not None:
                # a filter was counted before the state was saved
                with_counters(position_in, saved[-1], self.batches._endless, different)
        self._allow = different
        self._leave()
        self.epoch, self._steps, self._left = saved
        self._restored, self._left = self._left, None
        self._loaded = True
        self._consumed.moved(self._now()())

    def at(self, state_dict: dict[str, Any]) -> Loader:
        """A copy that goes on from a state."""
        made = copy.copy(self)
        made.load_state_dict(state_dict, allow=self._allow)
        made._loaded = False
        return made

    def leave_at(self, state_dict: dict[str, Any]) -> None:
        """What a loop that reads ahead calls when it is left: this state, of its last batch that was used, is the place now.
        Not where this was sent elsewhere since."""
        if self._last is None:
            return
        self._leave(self._last)
        self._restored = None
        self.epoch, self._steps, self._left = self._read(state_dict)
        self._consumed.moved(self._now()())

    @property
    def began(self) -> dict[str, Any] | None:
        """The state at the start of the last loop. None before the first one."""
        return self._consumed.began

    def follow(self, used: Callable[[], int] | None) -> None:
        """Makes the state follow the batches that were used, for trainers that take batches before they use them.

        Batches that the current loop has taken so far count as not used. If a loop is left, the next one goes back to
        the first unused batch. If a loop reached its end, the next one goes on from there.

        Args:
            used: a function that returns how many batches the trainer has used by now, counted from anywhere. None: all
                batches that were taken count as used. The loader then continues after those that were used.
        """
        if used is not None:
            self._consumed.follow(used, self._now)
        elif (place := self._consumed.unfollow()) is not None:
            self.leave_at(place)

    def _read(self, state_dict: dict[str, Any]) -> tuple[int, int, dict[str, Any] | None]:
        """The epoch, the steps and the place of a state, which is one of such epochs as this has."""
        epoch, steps, place = from_text(state_dict)
        kinds = {True: "epochs of the data", False: f"epochs of steps_per_epoch={self.steps_per_epoch or '...'}"}
        whole = steps is None
        if whole != (self.steps_per_epoch is None):
            raise StateError(
                f"this state is of a loader of {kinds[whole]}, and this one has {kinds[not whole]}; use the same"
            )
        if steps is not None and self.steps_per_epoch is not None and steps >= self.steps_per_epoch:
            raise StateError(
                f"this state was saved after {steps:,} steps of its epoch, and this loader has steps_per_epoch="
                f"{self.steps_per_epoch:,}; go on with the one that it was saved with, at least to the end of that epoch"
            )
        return epoch, steps or 0, place

    def _place(self) -> dict[str, Any] | None:
        """In the epoch; None at its start."""
        return self._place_now()()

    def _place_now(self) -> Callable[[], dict[str, Any] | None]:
        """Gives the place of this moment."""
        if self._restored is None and self._running is not None:
            return self._running.snapshot
        known = self._left if self._restored is None else self._restored
        return lambda: known

    def _leave(self, for_another: object = None) -> None:
        """Ends the iteration that runs: it is not where this loader goes on, but another loop, or None where it is sent."""
        self._steps = 0
        running, self._running, self._last, self._left = self._running, None, for_another, None
        if running is not None:
            running.close()


@final
class LoaderIterator(Iterator[Any]):
    """The batches of one loop. After an error or Ctrl-C, every `next` raises an error.

    A generator alone would raise StopIteration then, and a loop would take that for the end of the epoch. While another thread
    is in it, `next` raises a RuntimeError, and the other thread goes on.
    """

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __next__(self) -> Any:
        if self._error is not None:
            raise BrokenError(f"this iterator failed earlier: {self._error!r}") from self._error
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            if isinstance(error, ValueError) and error.__traceback__ and error.__traceback__.tb_next is None:
                raise in_use() from None  # of `next` itself, not of the generator, which runs already
            self._error = error
            raise

    def close(self) -> None:
        """Leaves the loop."""
        self._batches.close()


@dataclass(frozen=True)
class Samples:
    """What a loader of samples runs: they are handed out one by one.

    Args:
        stage: gives them.
        count: says how many an epoch has.
    """

    stage: Stage[Any]
    count: Callable[[], int]

    def _begin(
        self, run: Run, state_dict: dict[str, Any] | None, allow: Collection[str], epoch: int
    ) -> ResumableIterator[Any]:
        return ResumableIterator(self.stage, state_dict, allow, epoch, run)

    @property
    def _endless(self) -> Stage[Any]:
        return self.stage

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True


def _ended_by_another() -> RuntimeError:
    return RuntimeError(
        "another loop over this loader has begun inside this one, and ended it: a loader runs one epoch at a time; "
        "make one for each loop, with batches.loader()"
    )
