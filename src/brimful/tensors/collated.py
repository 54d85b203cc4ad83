"""Batches to tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from brimful.batching.batch import Batch, NumLabels
from brimful.batching.labels import read
from brimful.batching.window import PlanningWindow
from brimful.blocks.ragged import LABELS, NOT_TRAINED_ON, loss_labels
from brimful.blocks.texts import schema_without, why_missing
from brimful.core.ahead import then
from brimful.core.errors import TALLY, Tally, warn_once
from brimful.core.own_keys import NUM_ITEMS, OF_RANKS, OF_STEPS
from brimful.core.stage import Stage, State, described, running, runtime
from brimful.core.stats import Made
from brimful.tensors.layouts import SIGNED, Collating, ColumnRules, Layout, refuse_taken

if TYPE_CHECKING:
    from brimful.tensors.columns import WindowColumns


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Each batch as its layout has it, a dict of tensors unless a user's function says else; the state is passed on.

    `fewer_shapes` says how the user, who wants so few shapes that a compiler can keep up, gets fewer: `.stats` warns of too many.
    """

    itemwise = True
    label = ""  # what plans its batches is shown

    upstream: Stage[Batch]
    rules: ColumnRules
    layout: Layout = runtime()
    fewer_shapes: str = runtime("")
    verb: str = runtime("batch")

    @property
    def collated(self) -> Collated:
        return self

    def settings(self) -> dict[str, Any]:
        return {"token_columns": described(self.rules.token_columns)}

    def rehearsed(self, batches: Callable[[Any], Stage[Any]]) -> Stage[Any]:
        return batches(self)

    def known_columns(self) -> Any:
        below = self.upstream.known_columns()
        return below and schema_without(below, self.rules.left_out)

    def why_missing(self, error: Exception) -> str:
        return why_missing(error, self.rules.left_out)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        from brimful.tensors.columns import ListColumn, columns_of
        from brimful.tensors.explained import remember

        tally = TALLY.get()
        as_tensors = self.layout.as_tensors
        # With streams the windows at hand come in turn.
        known: WeakKeyDictionary[PlanningWindow, WindowColumns] = WeakKeyDictionary()

        def ready() -> Generator[Collating, None, None]:
            with running(self.upstream, at) as batches:
                for batch, after in batches:
                    columns = known.get(batch.window)
                    if columns is None:
                        columns = known[batch.window] = columns_of(batch.window, self.rules, as_tensors)
                        if batch.plan.static and batch.plan.pieces is None:
                            lists = [one for one in columns.all if isinstance(one, ListColumn)]
                            _say_varying([one.name for one in lists if one.follows is None])
                        if batch.weight is not None and as_tensors:
                            made = OF_RANKS if batch.ends_step is None else (*OF_RANKS, *OF_STEPS)
                            refuse_taken(made, [column.name for column in columns.all])
                    yield Collating(batch, columns, after)

        with closing(ready()) as batches, closing(self.layout.items(batches)) as items:
            for item, (batch, columns, after) in items:
                yield then(item, partial(self._finished, batch, columns, tally, remember)), after

    def _finished(
        self, batch: Batch, columns: WindowColumns, tally: Tally | None, remember: Callable[..., None], item: Any
    ) -> Any:
        """An item as it is handed on, counted."""
        if not isinstance(item, (dict, MutableMapping)) and self.uneven == "pad" and self.num_ranks > 1:
            raise TypeError(
                f"collate_fn returned a {type(item).__name__}, and shard(uneven='pad') marks a filler in a dict. Return "
                "a dict, or say uneven='drop', which leaves out a step without a batch for each rank"
            )
        self.layout.check_size(batch, item, columns)
        remember(item, batch, columns)
        known: dict[str, NumLabels | None] = dict(zip(NUM_ITEMS, (batch.num_labels, batch.num_labels_here)))
        if not any(known.values()) and self.layout.as_tensors and columns.hides_labels(self.layout.by_row):
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
        if tally is not None:
            tally.made.append(self._counted(batch, item, columns))
        return item

    def _num_items(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """How many labels of a step are trained on; None where it is not known, or padding may be taken for some."""
        name = loss_labels([column.name for column in columns.all]) or LABELS
        if columns.labels is None or columns.labels.by == "token":
            fill = self.rules.pad_values.get(name, NOT_TRAINED_ON)
            if fill != NOT_TRAINED_ON or self.rules.dtypes.get(name, "int64") not in SIGNED:
                return None
        return self.layout.num_labels(known, columns)

    def _counted(self, batch: Batch, item: Any, columns: WindowColumns) -> Made:
        """What a batch holds: by its plan, which also knows it of what a user's function returned."""
        shape, slots = self.layout.shape(batch, item, columns)
        if batch.weight == 0:
            return Made(0, 0, slots, shape, self.fewer_shapes)
        return Made(batch.num_samples, batch.num_tokens, slots, shape, self.fewer_shapes)


def _say_varying(names: list[str]) -> None:
    if names:
        warn_once(
            "static shapes are those of the tokens; %s is padded to its own longest in each batch, so its shapes vary: drop it, "
            "or name it in token_columns",
            ", ".join(names),
        )
