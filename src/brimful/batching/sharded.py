"""The batches of one data-parallel rank, chosen while they are still integers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brimful.batching.batch import Batch, NumLabels, PlannedBatches, Uneven, apart, filler
from brimful.batching.distributed import in_words, resolve, say_split_groups
from brimful.batching.facts import with_batches
from brimful.batching.labels import counted, step_labels
from brimful.core.counters import with_counts
from brimful.core.facts import Facts, following
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running

if TYPE_CHECKING:
    from brimful.batching.batched import Batched

_Place: TypeAlias = tuple[PlannedBatches, int]
"""A batch by its plan and its place there: a `Batch` is made of those alone that are handed on."""


@dataclass(frozen=True)
class Sharded(Stage[Batch]):
    """The batch at `rank` of each step's `world_size` batches; all ranks have the same number of steps.

    Where the last step of an epoch has too few batches, `uneven` says: "pad" gives the ranks without one a filler (one
    real row again, weight 0), "drop" leaves the step out, "wrap" takes the epoch's first batches again, "raise" is an error.
    The state is the upstream's after the whole step: it is the same on all ranks, and fits any other world size.

    Each of several ranks locates its own samples alone. Where the index knows the labels of its rows, a batch has those of
    its whole step, on all ranks.
    """

    verb = ""
    label = "shard"

    upstream: Batched
    rank: int | None = not_in_state(None)
    world_size: int | None = not_in_state(None)
    process_group: Any = not_in_state(None)
    uneven: Uneven = not_in_state("pad")
    streamed: str = not_in_state("")

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        rank, world_size = resolve(self.rank, self.world_size, self.process_group)
        if world_size > 1 and self.streamed:
            raise ValueError(
                f"data that are streamed (by {self.streamed}) cannot be divided among {world_size} ranks: each rank would read "
                "and tokenize all of them. Use from_files(streams=...), or write a token store with to_store(path). Batches of "
                "indexed data, such as a store, can be divided, and of mixtures of them: leave out stream(), and call functions "
                "and tokenizers before to_store(path)"
            )
        say_split_groups(self.upstream.settings(), world_size)
        step = _Step()

        def weighed(own: _Place | None, weight: float) -> Batch:
            assert own is not None
            last = own[1] + 1 == len(own[0]) or own[0].window.turn is not None  # of this rank's
            labels = step_labels(step.labels)
            return Batch(*own, weight=weight, num_ranks=world_size, num_labels=labels, last=last)

        def steps(planned: PlannedBatches, order: NDArray[np.int64], done: int) -> Iterator[tuple[Batch, int]]:
            """The rank's batch of each step that ends among the batches of a window; of a step that goes on, it is kept."""
            nonlocal step
            known, count = counted(planned, self.upstream.labels_follow, rows=world_size > 1), len(order)
            labels = [known[place] for place in order.tolist()]
            own = planned.part(order[done + (rank - step.taken) % world_size :: world_size])
            own = own.apart() if world_size > 1 else own
            places = iter(range(len(own)))
            while done < count:
                before = step.taken
                end = min(done + world_size - before, count)
                after = before + end - done
                step.labels += labels[done:end]
                step.latest = planned, int(order[end - 1])
                if before <= rank < after:
                    step.own = own, next(places)
                done = end
                if after == world_size:
                    yield weighed(step.own, 1.0), done % count
                    step = _Step()

        yield from self.upstream.parts(at, run, steps)
        if step.taken and self.uneven != "drop":
            if self.uneven == "raise":
                raise ValueError(
                    f"the last step of the epoch has {step.taken} batches for {world_size} ranks; "
                    "choose uneven='pad', 'drop' or 'wrap'"
                )
            assert step.latest is not None
            own, weight = step.own, 1.0
            if self.uneven == "wrap":
                firsts = self._firsts(step.latest[0].window.epoch, world_size - step.taken, run)
                own = own or _place_of(apart(firsts[rank - step.taken][0]))
                step.labels += [known for _, known in firsts]
            elif own is None:
                own, weight = _place_of(apart(filler(Batch(*step.latest)))), 0.0
            yield weighed(own, weight), END

    def facts(self, *inputs: Facts) -> Facts:
        one = inputs[0]

        def num_items(most: int | None) -> int | None:
            batches = one.num_items(None if most is None else most * self.num_ranks)
            return None if batches is None else self.steps_of(batches)

        found = following(self, one, seam="passes", num_items=num_items)
        shared = {
            "planned_by": f"{self.upstream.planned_by}, {in_words(self.rank, self.world_size)}",
            "is_sharded": True,
        }
        return with_batches(found, planned=self, num_ranks=lambda: self.num_ranks, uneven=self.uneven, **shared)

    def settings(self) -> dict[str, Any]:
        """None: a rank's state is that of all, and of one process alone."""
        return {}

    def steps_of(self, num_batches: int) -> int:
        """How many batches this rank has of an epoch of `num_batches`."""
        return num_batches // self.num_ranks if self.uneven == "drop" else -(-num_batches // self.num_ranks)

    @property
    def num_ranks(self) -> int:
        return resolve(self.rank, self.world_size, self.process_group).world_size

    def _firsts(self, epoch: int, count: int, run: Run) -> list[tuple[Batch, NumLabels | None]]:
        """Batches from the beginning of the epoch, beginning again where it has fewer, with their labels."""
        with running(self.upstream, self.upstream.start(epoch), run) as items:
            batches = [batch for (batch, _), _ in islice(with_counts(items), count)]  # counted when they came first
        follow = self.upstream.labels_follow
        known = [counted(batch.plan.part(np.array([batch.place])), follow, rows=True)[0] for batch in batches]
        return list(islice(cycle(zip(batches, known, strict=True)), count))


def _place_of(batch: Batch) -> _Place:
    return batch.plan, batch.place


@dataclass
class _Step:
    """The batches of all ranks in one step, as far as they are planned: their labels, the rank's own, the latest."""

    labels: list[NumLabels | None] = field(default_factory=list)
    own: _Place | None = None
    latest: _Place | None = None

    @property
    def taken(self) -> int:
        return len(self.labels)
