"""Batches to optimizer steps of several of them, whose gradients are added up."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np

from brimful.batching.batch import Batch, NumLabels
from brimful.batching.facts import batch_facts, with_batches
from brimful.batching.labels import LabelsFollow, counted, read, step_labels
from brimful.core.counters import Counts, add_counts, apart, with_counts
from brimful.core.facts import Facts, following
from brimful.core.replay import whole_step
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, running


@dataclass(frozen=True)
class MicroBatches(Stage[Batch]):
    """So many batches make an optimizer step: each one knows the labels of all, and the last one that it ends the step.

    Where neither an index nor the plan knows the labels of all ranks, they are this rank's. Steps are counted from the beginning
    of what they are made of, an epoch or epochs without end, whose last one may have fewer batches. State: the upstream's;
    inside a step {"step": {"micro_batches", "ranks", "left": batches of it to come, "labels": those of it so far, where all ranks
    know them}, "after": the upstream's}. With another number of batches or ranks than were saved a step begins there.
    """

    verb = ""

    upstream: Stage[Batch]
    micro_batches: int = not_in_state(1)
    labels_follow: LabelsFollow = not_in_state(LabelsFollow())

    def facts(self, *inputs: Facts) -> Facts:
        """Steps go on over the ends of epochs, as the loops do that count to so many."""
        found = following(self, *inputs, seam="joins")
        words = f"{found.batches.planned_by}, in each of {self.micro_batches} micro_batches"
        return with_batches(found, planned_by=words, micro_batches=self.micro_batches)

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        ranks = batch_facts(self.upstream).num_ranks()
        size = {"micro_batches": self.micro_batches, "ranks": ranks}
        left = self.micro_batches
        so_far: NumLabels | None = NumLabels(0, 0)
        if isinstance(at, dict) and at.keys() == {"step", "after"}:
            step = at["step"]
            if step | size == step:
                left, so_far = step["left"], step["labels"] and NumLabels(*step["labels"])
            at = at["after"]
        with running(self.upstream, at, run) as found:
            items = with_counts(found)
            is_counted = left < self.micro_batches and so_far is not None
            rest = whole_step(items, left, run) if is_counted else islice(items, left)
            while True:
                taken: list[tuple[tuple[Batch, State], Counts]]
                taken, after_all = apart(list, rest)
                if not taken:
                    add_counts(after_all)
                    break
                rest = islice(items, self.micro_batches)
                step = [batch for (batch, _), _ in taken]
                each, here = [batch.num_labels for batch in step], None
                if None in each:
                    own = self._here(step)
                    each, here = (own, None) if ranks == 1 else (each, step_labels(own))
                labels = step_labels([so_far, *each])
                for ((batch, after), left_out), of_batch in zip(taken, each, strict=True):
                    add_counts(left_out)
                    left -= 1
                    ends = batch is step[-1]
                    so_far = step_labels([so_far, of_batch])
                    weight = 1.0 if batch.weight is None else batch.weight
                    made = replace(batch, weight=weight, num_labels=labels, num_labels_here=here, ends_step=ends)
                    open_step = {**size, "left": left, "labels": so_far and [*so_far]}
                    yield made, after if ends else {"step": open_step, "after": after}
                add_counts(after_all)
                left, so_far = self.micro_batches, NumLabels(0, 0)

    def _here(self, step: Sequence[Batch]) -> list[NumLabels | None]:
        """Those of each batch, as an index or the plan knows them, or counted in the rows; None where there are none to count."""
        known: list[NumLabels | None] = []
        for plan, own in groupby(step, lambda batch: batch.plan):
            known += counted(plan.select(np.array([batch.place for batch in own])), self.labels_follow)
        counts = [labels or read(batch, self.labels_follow) for labels, batch in zip(known, step, strict=True)]
        none = NumLabels(0, 0)  # a filler asks for no label
        return [labels and (labels if batch.weight != 0 else none) for labels, batch in zip(counts, step)]
