"""The batches of one data-parallel rank, chosen while they are still integers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, ClassVar

from brimful.batching.batch import Batch, Uneven, apart, filler
from brimful.batching.distributed import Rank, resolve
from brimful.batching.labels import LabelsFollow, counted, step_labels
from brimful.core.stage import END, Stage, State, running, runtime


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

    upstream: Stage[Batch]
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
                f"streamed (by {self.streamed}) data cannot be shared out among {world_size} ranks: each would read and tokenise "
                "all of it; give from_files(streams=...), or make a token store of it with to_store(path)"
            )
        with running(self.upstream, at) as items:
            prepared = self._prepared(items, Rank(rank, world_size))
            while taken := list(islice(prepared, world_size)):
                step = [batch for batch, _ in taken]
                after = taken[-1][1]
                missing = world_size - len(step)
                if missing and self.uneven == "drop":
                    return
                if missing and self.uneven == "raise":
                    raise ValueError(
                        f"the last step of the epoch has {len(step)} batches for {world_size} ranks; "
                        "choose uneven='pad', 'drop' or 'wrap'"
                    )
                if missing and self.uneven == "wrap":
                    step += self._firsts(step[0].window.epoch, missing)
                real = rank < len(step)
                batch = step[rank] if real else filler(step[-1])
                if rank >= len(taken):
                    (batch,) = apart([batch])
                fills = world_size > 1 and self.uneven == "pad"
                own = replace(batch, weight=float(real), may_fill=fills, num_labels=step_labels(step), last=False)
                yield own, END if missing else after

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

    def _firsts(self, epoch: int, count: int) -> list[Batch]:
        """Batches from the beginning of the epoch, beginning again where it has fewer."""
        with running(self.upstream, self.upstream.start(epoch)) as items:
            batches = [counted([batch], self.labels_follow)[0] for batch, _ in islice(items, count)]
        return list(islice(cycle(batches), count))

    def _prepared(self, items: Iterator[tuple[Batch, State]], rank: Rank) -> Generator[tuple[Batch, State], None, None]:
        """The batches of a window at a time: with their labels counted, and a rank's in a window of its own samples."""
        batches: list[Batch] = []
        states: list[State] = []
        done = 0
        for batch, after in items:
            batches.append(batch)
            states.append(after)
            if batch.last:
                batches = counted(batches, self.labels_follow)
                if rank.world_size > 1:
                    own = slice((rank.rank - done) % rank.world_size, None, rank.world_size)
                    batches[own] = apart(batches[own])
                yield from zip(batches, states, strict=True)
                done += len(batches)
                batches, states = [], []
        assert not batches, "every window has a last batch"
