"""Batches to tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from brimful.batching.batch import Batch, NumLabels
from brimful.batching.facts import batch_facts, with_batches
from brimful.batching.labels import read
from brimful.batching.window import PlanningWindow
from brimful.core.ahead import then
from brimful.core.facts import Facts, columns_by, following
from brimful.core.header import described
from brimful.core.own_keys import NUM_ITEMS, OF_RANKS, TAKEN
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, running
from brimful.core.stats import Made
from brimful.plan.errors import DataError, counted, warn_once
from brimful.tables.origins import where
from brimful.tables.ragged import LABELS, NOT_TRAINED_ON, loss_labels
from brimful.tables.texts import schema_without
from brimful.tensors.layouts import SIGNED, Collating, ColumnRules, Layout, refuse_taken

if TYPE_CHECKING:
    from brimful.tensors.columns import ListColumn, WindowColumns


Unlabelled = Literal["keep", "drop", "raise"]
"""What becomes of a sample without a label to train on, once its batch is planned."""


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Each batch as its layout has it, a dict of tensors unless a user's function says else; the state is passed on.

    `fewer_shapes` says how the user, who wants so few shapes that a compiler can keep up, gets fewer: `.stats` warns of too many.
    """

    label = ""  # what plans its batches is shown

    upstream: Stage[Batch]
    rules: ColumnRules
    layout: Layout = not_in_state()
    fewer_shapes: str = not_in_state("")
    verb: str = not_in_state("batch")
    unlabelled: Unlabelled = not_in_state("keep")

    def facts(self, *inputs: Facts) -> Facts:
        schema = columns_by(inputs[0], lambda below: schema_without(below, self.rules.left_out))
        found = following(self, *inputs, seam="passes", schema=schema)
        return with_batches(found, collated=self, left_out=self.rules.left_out)

    def settings(self) -> dict[str, Any]:
        return {"token_columns": described(self.rules.token_columns)}

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        from brimful.tensors.columns import ListColumn, columns_of
        from brimful.tensors.explained import remember

        as_tensors = self.layout.as_tensors
        # With streams the windows at hand come in turn.
        known: WeakKeyDictionary[PlanningWindow, WindowColumns] = WeakKeyDictionary()

        def ready() -> Generator[Collating, None, None]:
            said = False
            own_lengths: dict[str, int] = {}
            with running(self.upstream, at, run) as batches:
                for batch, after in batches:
                    columns = known.get(batch.window)
                    if columns is None:
                        columns = known[batch.window] = columns_of(batch.window, self.rules, as_tensors)
                        if batch.plan.static and batch.plan.pieces is None:
                            lists = [one for one in columns.all if isinstance(one, ListColumn)]
                            _say_varying(one for one in lists if one.follows is None and _varies(one, own_lengths))
                        if as_tensors:
                            made = TAKEN if batch.weight is None else (*OF_RANKS, *TAKEN)
                            refuse_taken(made, [column.name for column in columns.all])
                    places = columns.unlabelled(batch)
                    if not len(places):
                        yield Collating(batch, columns, after)
                        continue
                    example = "" if said else _unlabelled(batch, int(places[0]), self.unlabelled)
                    if self.unlabelled == "raise":
                        raise DataError(example)
                    said = True
                    if self.unlabelled == "drop":
                        batch = self.layout.without(batch, places)
                    yield Collating(batch, columns, after, len(places), example)

        with closing(ready()) as batches, closing(self.layout.items(batches, run)) as items:
            for item, one in items:
                yield then(item, partial(self._finished, one, run, remember)), one.after

    def _finished(self, one: Collating, run: Run, remember: Callable[..., None], item: Any) -> Any:
        """An item as it is handed on, counted."""
        batch, columns = one.batch, one.columns
        shared = batch_facts(self.upstream)
        if not isinstance(item, (dict, MutableMapping)) and shared.uneven == "pad" and shared.num_ranks() > 1:
            raise TypeError(
                f"collate_fn returned a {type(item).__name__}, and shard(uneven='pad') marks a filler in a dict. Return "
                "a dict, or say uneven='drop', which leaves out a step without a batch for each rank"
            )
        self.layout.check_size(batch, item, columns)
        remember(item, batch, columns)
        known: dict[str, NumLabels | None] = dict(zip(NUM_ITEMS, (batch.num_labels, batch.num_labels_here)))
        if not any(known.values()) and self.layout.hides_labels(columns, item):
            known[NUM_ITEMS[1]] = read(batch, self.rules.labels_follow)
        counts = {
            name: count
            for name, labels in known.items()
            if labels is not None and (count := self._num_items(labels, columns)) is not None
        }
        if counts and batch.weight != 0:
            self.layout.check_labels(batch, item, columns, next(iter(counts)))
        if batch.weight is not None or counts:
            from brimful.tensors.loss import weighed

            item = weighed(item, batch, columns, counts)
        if run.made is not None:
            run.made.append(self._counted(one, item))
        return item

    def _num_items(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """How many labels of a step are trained on; None where it is not known, or padding may be taken for some."""
        name = loss_labels([column.name for column in columns.all]) or LABELS
        if columns.labels is None or columns.labels.by == "token":
            fill = self.rules.pad_values.get(name, NOT_TRAINED_ON)
            if fill != NOT_TRAINED_ON or self.rules.dtypes.get(name, "int64") not in SIGNED:
                return None
        return self.layout.num_labels(known, columns)

    def _counted(self, one: Collating, item: Any) -> Made:
        """What a batch holds: by its plan, which also knows it of what a user's function returned."""
        shape, slots = self.layout.shape(one.batch, item, one.columns)
        samples, tokens = (0, 0) if one.batch.weight == 0 else (one.batch.num_samples, one.batch.num_tokens)
        return Made(samples, tokens, slots, shape, self.fewer_shapes, one.unlabelled, one.example)


def _unlabelled(batch: Batch, place: int, unlabelled: Unlabelled) -> str:
    """A sample, or piece, of a batch that has no label to train on, in words."""
    number = batch.numbers[place]
    length = int(batch.window.whole_lengths[number].sum())
    here = int(batch.plan.sizes[batch.span][place].sum())
    window = batch.window if batch.window.located else batch.window.part(np.array([number]))
    row = int(window.rows[number if window is batch.window else 0])
    cut = "To keep its end, set overlong='truncate' and truncate_side='left' or 'middle'. " if here < length else ""
    drop = "To leave such samples out, set" if unlabelled != "drop" else "Such samples are left out, by"
    return (
        f"a sample of {counted(length, 'token')} ({where(window.block, row)}) has no label to train on. The batch has {here:,} "
        f"of its tokens, and their labels are all {NOT_TRAINED_ON}. {cut}{drop} unlabelled='drop'"
    )


def _varies(column: ListColumn, lengths: dict[str, int]) -> bool:
    """Whether the lists of a column differ in length, those of earlier windows included: `lengths` keeps the first, by name."""
    counts = column.counts
    return bool(len(counts) and (counts != lengths.setdefault(column.name, int(counts[0]))).any())


def _say_varying(columns: Iterable[ListColumn]) -> None:
    if names := [one.name for one in columns]:
        warn_once(
            "static shapes are those of the tokens; %s is padded to its own longest in each batch, so its shapes vary: drop it, "
            "or name it in token_columns",
            ", ".join(names),
        )
