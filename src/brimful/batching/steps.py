"""Optimizer steps of so many samples: each is planned as a whole, and its parts are dealt to ranks, however many these are."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from brimful.batching.batch import Batch, NumLabels, PlannedWindow, Uneven, fetch_only_own_rows, filler
from brimful.batching.facts import with_batches
from brimful.batching.labels import counted, read, step_labels
from brimful.batching.placement import Placement, Ranks
from brimful.batching.planning import PlannedWindows
from brimful.core.facts import Facts, facts_of, following
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, running
from brimful.plan.errors import StateError


@dataclass(frozen=True)
class Steps(Stage[Batch]):
    """The parts of steps that one rank has: each window is a step. Part p goes to rank p mod ranks. A step has equally many parts
    on all ranks: fillers, one real row again with weight 0, complete the last round.

    State: the windows'; inside a step {"step": {"ranks", "labels": those of its parts so far}, "after": the windows'}. So between
    two steps it fits any number of ranks, and inside one the same.
    """

    verb = ""

    upstream: PlannedWindows
    samples_per_step: int = not_in_state()
    ranks: Ranks | None = not_in_state(None)

    @property
    def label(self) -> str:
        return "" if self.ranks is None else "shard"

    def facts(self, *inputs: Facts) -> Facts:
        one = inputs[0]
        found = following(
            self,
            one,
            num_items=lambda most: None if one.streamed_by or not one.ends() else self._count(most),
        )
        found = with_batches(found, planned=self, samples_per_step=self.samples_per_step)
        if self.ranks is None:
            return found
        return with_batches(found, is_sharded=True, num_ranks=lambda: self._placement.data_ranks, uneven="pad")

    def shared(self, ranks: Ranks, uneven: Uneven) -> Steps:
        """The parts of one rank.

        Raises:
            ValueError: a rule that would leave out a part, or take one twice.
        """
        if uneven != "pad":
            raise ValueError(
                f"uneven={uneven!r} would leave out parts of a step, or take some twice: with samples_per_step choose 'pad'"
            )
        return replace(self, ranks=ranks)

    @property
    def _placement(self) -> Placement:
        return Placement(0, 1) if self.ranks is None else self.ranks.here

    def _count(self, most: int | None) -> int:
        """How many parts this rank has in an epoch, counted up to a number. Price: that of planning an epoch."""
        ranks, found = self._placement.data_ranks, 0
        with running(self.upstream, self.upstream.start(0)) as steps:
            for batches, _ in steps:
                found += -(-len(batches) // ranks)
                if most is not None and found >= most:
                    return most
        return found

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        """
        Raises:
            ValueError: the data are streamed, and there are several ranks.
            StateError: the state is inside a step that was dealt to another number of ranks.
        """
        rank, ranks = self._placement
        known = facts_of(self.upstream)
        if ranks > 1 and known.streamed_by and not known.from_index:
            raise ValueError(
                f"data that are streamed (by {known.streamed_by}) cannot be divided among {ranks} ranks with samples_per_step: "
                "each rank would read and tokenize all of them. Write a token store with to_store(path)"
            )
        so_far: NumLabels | None = NumLabels(0, 0)
        if isinstance(at, dict) and at.keys() == {"step", "after"}:
            step, at = at["step"], at["after"]
            so_far = step["labels"] and NumLabels(*step["labels"])
            if step["ranks"] != ranks:
                raise StateError(
                    f"this state is inside an optimizer step whose parts were dealt to {step['ranks']:,} ranks, and there are "
                    f"{ranks:,}. Go on with {step['ranks']:,} ranks, or from a state after a batch whose ends_step is True"
                )
        num_ranks = None if self.ranks is None else ranks
        with running(self.upstream, at, run) as windows:
            for ordered, _ in windows:
                planned = ordered.laid_out()
                count = len(planned)
                if not count:
                    ordered.handed_on(0)  # counts what was left out of it
                own = planned.select(np.arange(rank, count, ranks))
                own = own.fetching_only_own_rows() if ranks > 1 else own
                each = self._labels(planned, ranks)
                labels = step_labels([so_far, *each])
                here = self._here(planned, own) if ranks > 1 and None in each else None
                for turn, done in enumerate(range(0, count, ranks)):
                    end = min(done + ranks, count)
                    batch = Batch(own, turn, 1.0) if turn < len(own) else filler(Batch(planned, count - 1))
                    batch = fetch_only_own_rows(batch) if known.one_by_one or turn >= len(own) else batch
                    so_far = step_labels([so_far, *each[done:end]])
                    made = replace(
                        batch, num_ranks=num_ranks, num_labels=labels, num_labels_here=here, ends_step=end == count
                    )
                    after = ordered.handed_on(end)
                    inside = {"step": {"ranks": ranks, "labels": so_far and [*so_far]}, "after": after}
                    yield made, after if end == count else inside
                so_far = NumLabels(0, 0)

    def _labels(self, planned: PlannedWindow, ranks: int) -> list[NumLabels | None]:
        """Those of each part, as an index or the plan knows them; of one rank alone also as its rows have them."""
        follow = self.upstream.labels_follow
        known = counted(planned, follow, rows=True)
        if ranks > 1:
            return [*known]
        return [one or read(Batch(planned, place), follow) for place, one in enumerate(known)]

    def _here(self, planned: PlannedWindow, own: PlannedWindow) -> NumLabels | None:
        """Those of this rank's parts, as their rows have them; a filler says whether there are any to count."""
        parts = [Batch(own, place) for place in range(len(own))]
        parts = parts or [fetch_only_own_rows(filler(Batch(planned, len(planned) - 1)))]
        return step_labels([read(one, self.upstream.labels_follow) for one in parts])
