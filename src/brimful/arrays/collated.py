"""Batches to what is trained on: dicts of arrays by a layout, or what a user's function makes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from brimful.arrays.columns import ColumnRules, ListColumn, WindowColumns, columns_of, refuse_taken
from brimful.arrays.explained import remember
from brimful.arrays.forms import ArrayColumn, NestedLists
from brimful.arrays.layout import Layout
from brimful.arrays.types import SIGNED
from brimful.batching.batch import Batch, NumLabels
from brimful.batching.facts import with_batches
from brimful.batching.labels import loss_weights, read
from brimful.batching.window import PlanningWindow
from brimful.core.facts import Facts, columns_by, following
from brimful.core.header import described
from brimful.core.own_keys import (
    LOSS_WEIGHTS,
    NUM_ITEMS,
    NUM_SAMPLES,
    RANK_KEYS,
    SUM_OF_WEIGHTS,
    TAKEN,
    WEIGHTS,
    RankWeight,
)
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, running
from brimful.core.stats import Made
from brimful.plan.errors import DataError, counted, warn_once
from brimful.tables.origins import where
from brimful.tables.ragged import COLUMN_KINDS, LABELS, NOT_TRAINED_ON, loss_labels
from brimful.tables.texts import schema_without

Convert: TypeAlias = Callable[[MutableMapping[str, Any], ColumnRules, Iterable[str]], None]
Unlabelled = Literal["keep", "drop", "raise"]
"""What becomes of a sample without a label to train on, once its batch is planned."""


class WithColumns(NamedTuple):
    """A batch on its way to the loop, with its columns, the state after it, how many of its samples have no label to train on,
    and one of them in words, if it is the first."""

    batch: Batch
    columns: WindowColumns
    after: State
    unlabelled: int = 0
    example: str = ""


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Abstract: each batch as it is trained on, and counted; the state is passed on.

    Args:
        fewer_shapes: how the user, who wants so few shapes that a compiler can keep up, gets fewer: `.stats` warns of too many.
        convert: puts a framework's tensors in place of the arrays of a batch that have one of some names; None: they stay arrays.
        with_batch: an item is a pair of the batch, as integers, and what is made of it.
    """

    label = ""  # what plans its batches is shown
    as_arrays: ClassVar[bool] = True
    """Whether it makes the arrays; else a function of the user's gets the samples."""

    upstream: Stage[Batch]
    rules: ColumnRules
    fewer_shapes: str = not_in_state("")
    verb: str = not_in_state("batch")
    unlabelled: Unlabelled = not_in_state("keep")
    convert: Convert | None = not_in_state(None)
    with_batch: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        schema = columns_by(inputs[0], lambda below: schema_without(below, self.rules.left_out))
        ours = {"functions": inputs[0].functions, "from_index": inputs[0].from_index}
        found = following(self, *inputs, seam="passes", schema=schema, **ours)
        return with_batches(found, collated=self, left_out=self.rules.left_out)

    def settings(self) -> dict[str, Any]:
        return {"token_columns": described(self.rules.token_columns)}

    @abstractmethod
    def without(self, batch: Batch, places: np.ndarray) -> Batch:
        """A batch whose samples, or pieces, in these places train nothing."""

    @abstractmethod
    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """The shape that a compiler sees, and how many slots for tokens there are."""

    @abstractmethod
    def rows(self, batch: Batch) -> int:
        """How many rows, or pieces, there are, copies among them."""

    @abstractmethod
    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """How many labels of a step are trained on; None where only somebody else knows."""

    @abstractmethod
    def hides_labels(self, columns: WindowColumns, item: Any) -> bool:
        """Whether labels count as one a sample, and the arrays of a batch do not show it."""

    @abstractmethod
    def check(self, batch: Batch, item: Any, columns: WindowColumns) -> None:
        """Refuses what must not be handed on."""

    @abstractmethod
    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        """Refuses a batch whose labels are not those that are counted in a `number`."""

    def with_columns(self, at: State, run: Run) -> Generator[WithColumns, None, None]:
        """The batches, each with the columns of its window."""
        said = False
        own_lengths: dict[str, int] = {}
        # with streams the windows at hand come in turn
        known: WeakKeyDictionary[PlanningWindow, WindowColumns] = WeakKeyDictionary()
        columns: WindowColumns | None = None
        window: PlanningWindow | None = None
        with running(self.upstream, at, run) as batches:
            for batch, after in batches:
                if batch.window is not window:
                    window = batch.window
                    columns = known.get(window)
                if columns is None:
                    columns = known[batch.window] = columns_of(batch.window, self.rules, self.as_arrays)
                    if batch.plan.static and batch.plan.pieces is None:
                        lists = [one for one in columns.all if isinstance(one, ListColumn)]
                        _warn_varying(one for one in lists if one.aligned_with is None and _varies(one, own_lengths))
                        _refuse_varying(columns)
                    if self.as_arrays:
                        made = TAKEN if batch.weight is None else (*RANK_KEYS, *TAKEN)
                        refuse_taken(made, [column.name for column in columns.all])
                places = columns.unlabelled(batch)
                if not len(places):
                    yield WithColumns(batch, columns, after)
                    continue
                example = "" if said else _unlabelled(batch, int(places[0]), self.unlabelled)
                if self.unlabelled == "raise":
                    raise DataError(example)
                said = True
                if self.unlabelled == "drop":
                    batch = self.without(batch, places)
                yield WithColumns(batch, columns, after, len(places), example)

    def finished(self, one: WithColumns, run: Run, item: Any) -> Any:
        """An item as it is handed on, counted."""
        batch, columns = one.batch, one.columns
        self.check(batch, item, columns)
        known = batch.num_labels, batch.num_labels_here
        if known == (None, None) and self.hides_labels(columns, item):
            known = None, read(batch, self.rules.labels_follow)
        counts = {} if known == (None, None) else self._counts(known, columns)
        if counts and batch.weight != 0:
            self.check_labels(batch, item, columns, next(iter(counts)))
        named = isinstance(item, (dict, MutableMapping))  # a dict is known sooner
        if named and (weights := loss_weights(batch, self.rules.labels_follow)) is not None:
            counts[LOSS_WEIGHTS] = np.append(weights, np.zeros(self.rows(batch) - len(weights)))
        made = _weigh(item, batch, columns, counts) if named and (batch.weight is not None or counts) else {}
        if run.made is not None:
            shape, slots = self.shape(batch, item, columns)
            samples, tokens = (0, 0) if batch.weight == 0 else (batch.num_samples, batch.num_tokens)
            sizes = batch.totals if samples else {}
            run.made.append(Made(samples, tokens, slots, shape, self.fewer_shapes, one.unlabelled, one.example, sizes))
        if named and self.convert is not None:
            self.convert(item, self.rules, item if self.as_arrays else made)
        remember(item, batch, columns)
        return (batch, item) if self.with_batch else item

    def _counts(self, known: Sequence[NumLabels | None], columns: WindowColumns) -> dict[str, Any]:
        """By key, what is counted of the labels of a step: on all ranks, and on this one."""
        counts: dict[str, Any] = {}
        for labels, *names in zip(known, NUM_ITEMS, NUM_SAMPLES, SUM_OF_WEIGHTS):
            if labels is not None and (num_items := self._num_items(labels, columns)) is not None:
                of_step = num_items, labels.samples, labels.weights
                counts |= dict(zip(names if self.rules.labels_follow.weighs else names[:2], of_step))
        return counts

    def _num_items(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """How many labels of a step are trained on; None where it is not known, or padding may be taken for some."""
        name = loss_labels([column.name for column in columns.all]) or LABELS
        if columns.labels is None or columns.labels.by == "token":
            fill = self.rules.pad_values.get(name, NOT_TRAINED_ON)
            if fill != NOT_TRAINED_ON or self.rules.dtypes.get(name, "int64") not in SIGNED:
                return None
        return self.num_labels(known, columns)


@dataclass(frozen=True, kw_only=True)
class LaidOut(Collated):
    """Each batch as its layout has it: a dict of arrays."""

    layout: Layout = not_in_state()

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        with closing(self.with_columns(at, run)) as batches:
            for one in batches:
                yield self.finished(one, run, self.layout.item(one.batch, one.columns)), one.after

    def without(self, batch: Batch, places: np.ndarray) -> Batch:
        return batch.without(places)

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        return self.layout.shape(batch, item, columns)

    def rows(self, batch: Batch) -> int:
        return len(batch) if self.layout.packs or self.layout.varies else batch.padded_size

    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int:
        return self.layout.num_labels(known)

    def hides_labels(self, columns: WindowColumns, item: Any) -> bool:
        return columns.hides_labels(self.layout.by_row)

    def check(self, batch: Batch, item: Any, columns: WindowColumns) -> None:
        pass

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        self.layout.check_labels(batch, item, columns, number)


def _weigh(
    item: MutableMapping[str, Any], batch: Batch, columns: WindowColumns, counts: Mapping[str, Any]
) -> dict[str, Any]:
    """Puts into a batch what says how much it weighs, and returns it: of a data-parallel rank `weight` and `is_filler`, and
    `ends_step` where that is known. A filler asks for no label, and its `sample_weights` are 0.

    `counts`, of the whole step's labels that are trained on, and of its samples, are () int64, and sums of weights () float64:
    arrays, as they go to the device with the batch, and a compiled step does not take each new value for a constant. A number
    that a collate_fn has set stays.

    Raises:
        DataError: a collate_fn has made something of another's name.
    """
    made: dict[str, Any] = {}
    if batch.weight is not None:
        weight = batch.weight if batch.num_ranks is None else RankWeight(batch.weight, batch.num_ranks)
        made |= {"weight": weight, "is_filler": weight == 0}
    if batch.ends_step is not None:
        made["ends_step"] = batch.ends_step
    if clash := [name for name in made if name in item]:
        raise DataError(
            f"collate_fn returns {clash[0]!r}, and batches of ranks or optimizer steps hold something of that name; give it "
            "another one"
        )
    for name, count in counts.items():
        if name not in item:
            made[name] = np.array(count) if isinstance(count, int) else columns.made(name, np.asarray(count))
    item.update(made)
    if LOSS_WEIGHTS in counts and COLUMN_KINDS in item:
        item[COLUMN_KINDS][LOSS_WEIGHTS] = "pieces"
    if batch.weight == 0:
        columns.unlabel(item, slice(None))
        weights: Any = item.get(WEIGHTS)
        if isinstance(weights, np.ndarray):
            item[WEIGHTS] = np.zeros_like(weights)
        elif hasattr(weights, "new_zeros"):  # of torch
            item[WEIGHTS] = weights.new_zeros(weights.shape)
    return made


def _unlabelled(batch: Batch, place: int, unlabelled: Unlabelled) -> str:
    """A sample, or piece, of a batch that has no label to train on, in words."""
    number = batch.numbers[place]
    length = int(batch.window.whole_lengths[number].sum())
    here = int(batch.plan.sizes[batch.span][place].sum())
    window = batch.window if batch.window.located else batch.window.select(np.array([number]))
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


def _refuse_varying(columns: WindowColumns) -> None:
    """Refuses arrays of which each batch would have another shape, where shapes are to be static."""
    names = (one.name for one in columns.all if isinstance(one, ArrayColumn | NestedLists) and one.ragged)
    if (name := next(names, None)) is not None:
        raise DataError(
            f"StaticShapes gives all batches few shapes, and column {name!r} has arrays of any size: each batch would have "
            f"another shape. Make them of one shape (map), plan over them (length_column={name!r}), or drop the column"
        )


def _warn_varying(columns: Iterable[ListColumn]) -> None:
    if names := [one.name for one in columns]:
        warn_once(
            "static shapes are those of the tokens; %s is padded to its own longest in each batch, so its shapes vary: drop it, "
            "or name it in token_columns",
            ", ".join(names),
        )
