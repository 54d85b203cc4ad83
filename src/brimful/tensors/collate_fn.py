"""What a user's function, such as a Hugging Face collator, makes of the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from brimful.arrays.collated import Collated, WithColumns
from brimful.arrays.columns import BATCH_KEY, WindowColumns
from brimful.arrays.layout import planned_shape
from brimful.batching.batch import Batch, NumLabels
from brimful.batching.facts import batch_facts
from brimful.batching.labels import LossLabels, read
from brimful.batching.window import IntArray
from brimful.core.ahead import Deferred, then
from brimful.core.own_keys import NUM_ITEMS, WEIGHTS
from brimful.core.run import Run
from brimful.core.stage import State, not_in_state
from brimful.plan import Policy
from brimful.plan.errors import DataError, StageError, counted, name_of
from brimful.plan.once import once, settings_of
from brimful.plan.random import generators_of, seeded
from brimful.rows.parallel import SERIAL, Parallel
from brimful.tables.blocks import Block, samples
from brimful.tables.origins import where
from brimful.tables.ragged import NOT_TRAINED_ON, loss_labels
from brimful.tables.texts import why_missing


@dataclass(frozen=True)
class Collator:
    """A user's function, as workers call it.

    Args:
        originals: the user's own objects that rows stand for, which are fetched for it, keyed likewise; None where rows are the
            samples.
        left_out: columns that the samples lack, as `ColumnRules` says.
        in_threads: it is called by several at once, which share the generators of random numbers.
    """

    collate_fn: Callable[[list[Any]], Any]
    originals: Any = None
    left_out: tuple[str, ...] = ()
    in_threads: bool = False

    def __call__(self, rows: Block) -> Any:
        """What the function makes of the samples of a batch."""
        key = int(rows.schema.metadata[BATCH_KEY])
        with nullcontext() if self.in_threads else seeded(key, self._generators):
            chosen = samples(rows) if self.originals is None else list(self.originals.samples(rows))
            try:
                return self.collate_fn(chosen)
            except Exception as error:
                raise StageError(
                    f"{self.called_as} failed on {counted(len(chosen), 'sample')}, the first of them {where(rows, 0)}: "
                    f"{type(error).__name__}: {error}{why_missing(error, self.left_out)}"
                ) from error

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def _generators(self) -> list[Any]:
        """Of this run: the user's objects may have others in the next one."""
        sets = () if self.originals is None else self.originals.datasets.values()
        return [each for one in (self.collate_fn, *sets) for each in generators_of(one)]

    @property
    def called_as(self) -> str:
        return f"collate_fn={name_of(self.collate_fn)}"


@dataclass(frozen=True, kw_only=True)
class CollatedBy(Collated):
    """What a user's function makes of the samples of each batch, cut as planned.

    It is called by the consumer's thread when the batch is taken, so that nothing else draws meanwhile, or by workers. What it
    draws at random is keyed by the batch. Not where other threads run beside it: they share generators.

    Args:
        policy: the policy that planned by lengths that the user gave; None where brimful knows the lengths itself.
        alone: whether a sample that no batch can hold has one of its own.
    Price: Python, once a sample.
    """

    as_arrays: ClassVar[bool] = False

    collator: Collator = not_in_state()
    parallel: Parallel = not_in_state(SERIAL)
    policy: Policy | None = not_in_state(None)
    alone: bool = not_in_state(False)

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        with closing(self.with_columns(at, run)) as batches, closing(self._made(batches, run)) as items:
            for item, one in items:
                yield then(item, partial(self.finished, one, run)), one.after

    def _made(self, batches: Iterator[WithColumns], run: Run) -> Generator[tuple[Any, WithColumns], None, None]:
        """What is made of each batch; by the consumer's thread where other threads run beside it."""
        collate = replace(self.collator)  # with the generators of this run
        rows = ((one.columns.rows(one.batch), one) for one in batches)
        if run.ahead and not self.parallel.max_workers:
            for block, one in rows:
                yield Deferred(partial(collate, block)), one
            return
        with closing(self.parallel.results(collate, rows, run, collate.called_as, shared=True)) as results:
            yield from ((item, one) for _, item, one in results)

    def without(self, batch: Batch, places: IntArray) -> Batch:
        """The function does not get these samples; where there are no others, it gets all, and they have no weight."""
        if len(places) == len(batch):
            return batch if batch.weight is None else replace(batch, weight=0.0)
        return batch.select(np.delete(np.arange(len(batch)), places), batch.padded_size)

    def rows(self, batch: Batch) -> int:
        return len(batch)

    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """Those of the samples; where these have none, the function alone knows how many it makes."""
        return known.given if loss_labels([column.name for column in columns.all]) else None

    def hides_labels(self, columns: WindowColumns, item: Any) -> bool:
        """Of a sample's label the function may make several integers, which may be taken for those of tokens."""
        made = _labels_made(columns, item)
        return made is not None and _are_several(*made)

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        known, found = read(batch, columns.rules.labels_follow), _labels_made(columns, item)
        if known is None or found is None or _are_several(*found):
            return
        (name, _, _), labels = found
        if known.given != (made := _num_labels(labels, item)):
            raise DataError(
                f"collate_fn made {made:,} labels that are trained on, and the samples of this batch have {known.given:,}, which "
                f"{number} counts: a loss divided by it would be wrong. Leave the samples' labels out, by drop({name!r}), or "
                "have collate_fn set num_items_in_batch, the labels of the step on all ranks"
            )

    def check(self, batch: Batch, item: Any, columns: WindowColumns) -> None:
        shared = batch_facts(self.upstream)
        if not isinstance(item, MutableMapping) and shared.uneven == "pad" and shared.num_ranks() > 1:
            drop = ", or say uneven='drop', which leaves out a step without a batch for each rank"
            raise TypeError(
                f"collate_fn returned a {type(item).__name__}, and shard(uneven='pad') marks a filler in a dict. Return "
                f"a dict{drop * (shared.samples_per_step is None)}"
            )
        if self.policy is None or not isinstance(item, Mapping):
            return
        shapes = [tuple(getattr(item.get(name), "shape", ())) for name in columns.rules.length_columns]
        if any(len(shape) != 2 for shape in shapes):  # of others the dimension of the length is not known
            return
        made = shapes[0][0], sum(width for _, width in shapes)
        planned = batch.padded_size, sum(batch.widths)
        exceeded = getattr(self.policy, "exceeded", None)
        limit = "" if exceeded is None else exceeded(*made)
        if limit and not (self.alone and planned[0] == 1):
            raise DataError(
                f"collate_fn made a batch of {made[0]:,} x {made[1]:,} tokens, which is over {limit}. By lengths= of "
                f"from_dataset it was planned as {planned[0]:,} x {planned[1]:,} (the first sample is "
                f"{where(columns.rows(batch), 0)}). Give the lengths that collate_fn makes, special tokens included. If it "
                "rounds them up, batch with pad_to_multiple_of="
            )

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """That of the first length column, where it is to be seen; else that of the plan."""
        column: Any = item.get(columns.rules.length_columns[0]) if isinstance(item, Mapping) else None
        if len(batch.widths) == 1 and len(getattr(column, "shape", ())) >= 2:
            return tuple(column.shape), int(column.shape[0] * column.shape[1])
        return planned_shape(batch, columns)


def _labels_made(columns: WindowColumns, item: Any) -> tuple[LossLabels, Any] | None:
    """The samples' labels, and the tensor or array that a user's function has made of them; None where it made none, or counted
    them."""
    if columns.labels is None or not isinstance(item, Mapping) or item.keys() & {*NUM_ITEMS}:
        return None
    labels: Any = item.get(columns.labels.name)
    return (columns.labels, labels) if isinstance(labels, np.ndarray) or hasattr(labels, "numel") else None


def _are_several(known: LossLabels, labels: Any) -> bool:
    """Whether there are several integers for a label that counts as one a sample."""
    return known.by != "token" and labels.ndim > 1 and _are_classes(labels)


def _are_classes(labels: Any) -> bool:
    if isinstance(labels, np.ndarray):
        return labels.dtype.kind in "iu"
    from brimful.tensors.loss import are_classes

    return are_classes(labels)


def _num_labels(labels: Any, item: Mapping[Any, Any]) -> int:
    """How many labels of a batch are trained on: of integers those other than -100, of any others one a row that counts."""
    if not isinstance(labels, np.ndarray):
        from brimful.tensors.loss import num_labels, rows_that_count

        return int(num_labels(labels, rows_that_count(item)))
    asked = labels != NOT_TRAINED_ON if _are_classes(labels) else np.ones(len(labels), np.bool_)
    weights = item.get(WEIGHTS)
    return int(np.count_nonzero(asked if weights is None else asked[np.asarray(weights) > 0]))
