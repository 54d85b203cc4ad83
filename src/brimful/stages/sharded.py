"""The batches of one data-parallel rank, chosen while they are still integers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from brimful.distributed import resolve
from brimful.stream import END, Stage, State, running, runtime
from brimful.windows import Batch, Packs, Uneven, filler


@dataclass(frozen=True)
class Sharded(Stage[Batch | Packs]):
    """Of each step's `world_size` batches the one at `rank`; all ranks have the same number of steps.

    Where the last step of an epoch has too few batches, `uneven` says: "pad" gives the ranks without one a filler (one
    real row again, weight 0), "drop" leaves the step out, "wrap" takes the epoch's first batches again, "error" raises.
    The state is the upstream's after the whole step: it is the same on all ranks, and fits any other world size.
    """

    upstream: Stage[Batch | Packs]
    rank: int | None = runtime(None)
    world_size: int | None = runtime(None)
    group: Any = runtime(None)
    uneven: Uneven = runtime("pad")
    streamed: bool = runtime(False)
    transparent: ClassVar[bool] = True

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Batch | Packs, State], None, None]:
        rank, world_size = resolve(self.rank, self.world_size, self.group)
        if world_size > 1 and self.streamed:
            raise ValueError(
                f"streamed data cannot be shared out among {world_size} ranks: each would read and tokenise all of it; "
                "give from_files(streams=...), or make a token store of it with cache(path)"
            )
        with running(self.upstream, at) as batches:
            while step := list(islice(batches, world_size)):
                after = step[-1][1]
                missing = world_size - len(step)
                if missing and self.uneven == "drop":
                    return
                if missing and self.uneven == "error":
                    raise ValueError(
                        f"the last step of the epoch has {len(step)} batches for {world_size} ranks; "
                        "choose uneven='pad', 'drop' or 'wrap'"
                    )
                if rank < len(step):
                    batch = replace(step[rank][0], weight=1.0)
                elif self.uneven == "wrap":
                    batch = replace(self._first(step[0][0].window.epoch, rank - len(step)), weight=1.0)
                else:
                    batch = filler(step[-1][0])
                yield batch, END if missing else after

    def num_steps(self, num_batches: int) -> int:
        """How many batches this rank has of an epoch of `num_batches`."""
        world_size = resolve(self.rank, self.world_size, self.group).world_size
        return num_batches // world_size if self.uneven == "drop" else -(-num_batches // world_size)

    def _first(self, epoch: int, number: int) -> Batch | Packs:
        """A batch from the beginning of the epoch, beginning again where it has fewer."""
        while True:
            with running(self.upstream, self.upstream.start(epoch)) as batches:
                for place, (batch, _) in enumerate(batches):
                    if place == number:
                        return batch
            number -= place + 1
