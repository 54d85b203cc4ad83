"""The batches of one data-parallel rank, chosen while they are still integers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import Batch, NumLabels, PlannedBatches, Uneven, apart, filler
from brimful.batching.distributed import resolve, say_split_groups
from brimful.batching.labels import LabelsFollow, counted, step_labels
from brimful.core.stage import END, Stage, State, running, runtime

if TYPE_CHECKING:
    from brimful.batching.batched import Batched


@dataclass(frozen=True)
class Sharded(Stage[Batch]):
    """The batch at `rank` of each step's `world_size` batches; all ranks have the same number of steps.

    Where the last step of an epoch has too few batches, `uneven` says: "pad" gives the ranks without one a filler (one
    real row again, weight 0), "drop" leaves the step out, "wrap" takes the epoch's first batches again, "raise" is an error.
    The state is the upstream's after the whole step: it is the same on all ranks, and fits any other world size.

    Each of several ranks locates its own samples alone. Where the index knows the labels of its rows, a batch has those of
    its whole step, on all ranks.
    """

    verb = "shard"

    upstream: Batched
    rank: int | None = runtime(None)
    world_size: int | None = runtime(None)
    process_group: Any = runtime(None)
    uneven: Uneven = runtime("pad")
    streamed: str = runtime("")
    labels_follow: LabelsFollow = runtime(LabelsFollow())
    itemwise: ClassVar[bool] = True

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Batch, State], None, None]:
        rank, world_size = resolve(self.rank, self.world_size, self.process_group)
        if world_size > 1 and self.streamed:
            raise ValueError(
                f"data that are streamed (by {self.streamed}) cannot be divided among {world_size} ranks: each rank would read "
                "and tokenize all of them. Use from_files(streams=...), or write a token store with to_store(path)"
            )
        settings = self.upstream.settings()
        say_split_groups(settings.get("balance_group", 1), world_size, "balance_cost" in settings)
        step = _Step(rank, world_size)

        def steps(planned: PlannedBatches, order: NDArray[np.int64], done: int) -> Iterator[tuple[Batch, int]]:
            """The rank's batch of each step that ends among the batches of a window; of a step that goes on, it is kept."""
            known, count = counted(planned, self.labels_follow), len(order)
            labels = [known[place] for place in order.tolist()]
            own = planned.part(order[done + (rank - step.taken) % world_size :: world_size])
            own = own.apart() if world_size > 1 else own
            places = iter(range(len(own)))
            while done < count:
                before, end = step.taken, min(done + world_size - step.taken, count)
                step.add(labels[done:end], _Place(planned, int(order[end - 1])))
                if before <= rank < step.taken:
                    step.own = _Place(own, next(places))
                done = end
                if step.taken == world_size:
                    yield self._weighed(step, step.own, 1.0), done % count
                    step.clear()

        yield from self.upstream.parts(at, steps)
        if step.taken and self.uneven != "drop":
            if self.uneven == "raise":
                raise ValueError(
                    f"the last step of the epoch has {step.taken} batches for {world_size} ranks; "
                    "choose uneven='pad', 'drop' or 'wrap'"
                )
            assert step.latest is not None
            own, weight = step.own, 1.0
            if self.uneven == "wrap":
                firsts = self._firsts(step.latest.plan.window.epoch, world_size - step.taken)
                step.labels += [known for _, known in firsts]
                own = own or _Place.of(apart(firsts[rank - step.taken][0]))
            elif own is None:
                own, weight = _Place.of(apart(filler(Batch(*step.latest)))), 0.0
            yield self._weighed(step, own, weight), END

    def _weighed(self, step: _Step, own: _Place | None, weight: float) -> Batch:
        """A batch as that of its step."""
        assert own is not None
        fills = step.world_size > 1 and self.uneven == "pad"
        return Batch(*own, weight=weight, may_fill=fills, num_labels=step_labels(step.labels))

    is_sharded = True

    @property
    def streamed_by(self) -> str:
        return self.upstream.streamed_by

    def sharded(self, **how: Any) -> Stage[Batch]:
        return self.upstream.sharded(**how)

    @property
    def planned(self) -> Stage[Batch]:
        return self

    limited = planned

    def num_items(self, most: int | None = None) -> int | None:
        batches = self.upstream.num_items(None if most is None else most * self.num_ranks)
        return None if batches is None else self.steps_of(batches)

    def steps_of(self, num_batches: int) -> int:
        """How many batches this rank has of an epoch of `num_batches`."""
        return num_batches // self.num_ranks if self.uneven == "drop" else -(-num_batches // self.num_ranks)

    def header(self) -> list[Any]:
        """A rank's state is that of all, and of one process alone."""
        return self.upstream.header()

    @property
    def num_ranks(self) -> int:
        return resolve(self.rank, self.world_size, self.process_group).world_size

    def _firsts(self, epoch: int, count: int) -> list[tuple[Batch, NumLabels | None]]:
        """Batches from the beginning of the epoch, beginning again where it has fewer, with their labels."""
        with running(self.upstream, self.upstream.start(epoch)) as items:
            batches = [batch for batch, _ in islice(items, count)]
        known = [counted(batch.plan.part(np.array([batch.place])), self.labels_follow)[0] for batch in batches]
        return list(islice(cycle(zip(batches, known, strict=True)), count))


class _Place(NamedTuple):
    """A batch by its place in a plan: a `Batch` is made of those alone that are handed on."""

    plan: PlannedBatches
    place: int

    @classmethod
    def of(cls, batch: Batch) -> _Place:
        return cls(batch.plan, batch.place)


class _Step:
    """The batches of all ranks in one step, as far as they are planned: how many, their labels, the rank's own, the latest."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.clear()

    def clear(self) -> None:
        """The next step begins."""
        self.taken = 0
        self.labels: list[NumLabels | None] = []
        self.own: _Place | None = None
        self.latest: _Place | None = None

    def add(self, labels: Sequence[NumLabels | None], latest: _Place) -> None:
        """More batches."""
        self.taken += len(labels)
        self.labels += labels
        self.latest = latest
