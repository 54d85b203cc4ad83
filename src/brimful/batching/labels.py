"""How many labels of each batch are trained on, as integers: from what an index knows of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.batching.batch import Batch, NumLabels, PlannedWindow
from brimful.batching.window import IntArray, PlanningWindow
from brimful.index.index import has_null
from brimful.tables.ragged import (
    LABELS,
    NOT_TRAINED_ON,
    SHIFTED,
    TOKENS,
    gather,
    is_list,
    loss_labels,
    numpy_of,
    ragged,
    trained_on,
)


class LabelsFollow(NamedTuple):
    """How the labels of a data set are counted, as far as settings say it.

    Args:
        labels, shifted: the number of the length column that `labels`, and that `shift_labels`, are cut with; None: they have
            lengths of their own, and are not cut.
        lengths: the length columns. Where one is missing, nothing is cut. Packing makes labels of the first where there are none.
        as_numbers: those of the two that become tensors of fractions or truth values, of which -100 is one.
        functions: those of the length columns that are functions of the user's.
        stacks: a sample has several sides, which a loss compares: it counts as one, whatever its labels are.
    """

    labels: int | None = None
    shifted: int | None = None
    lengths: tuple[str, ...] = (TOKENS,)
    as_numbers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    stacks: bool = False

    def is_cut_with(self, schema: pa.Schema, number: int) -> bool:
        """Whether all length columns are there, and this one is a list."""
        name = self.lengths[number]
        there = {*self.lengths} <= {*schema.names, *self.functions}
        return there and name in schema.names and is_list(schema.field(name).type)


class LossLabels(NamedTuple):
    """The labels that a loss is taken over.

    Args:
        name: their column, or the one that they are made of.
        by: what counts as one: a "token" that is not -100, a "class" (a sample, unless all that it has are -100), a "sample".
        follows: the number of the length column that tokens are cut with; None: they are not cut.
    """

    name: str
    by: Literal["token", "class", "sample"]
    follows: int | None = None


def labels_of(schema: pa.Schema, packs: bool, follow: LabelsFollow) -> LossLabels | None:
    """How the labels of rows of this schema are counted; None where there are none, or none that are numbers.

    Lists of integers are those of tokens, unless they lie beside `input_ids` that are planned over, and do not go with them.

    >>> schema = pa.schema(dict.fromkeys(["input_ids", "labels"], pa.list_(pa.int64())))
    >>> labels_of(schema, False, LabelsFollow(labels=0)), labels_of(schema, False, LabelsFollow())
    (LossLabels(name='labels', by='token', follows=0), LossLabels(name='labels', by='class', follows=None))
    """
    if follow.stacks:
        return LossLabels(follow.lengths[0], "sample")
    name = loss_labels(schema.names)
    if name is None:
        return LossLabels(follow.lengths[0], "token", 0) if packs else None
    kind, depth = schema.field(name).type, 0
    if isinstance(kind, pa.ExtensionType):  # arrays of one shape, which is not that of their storage
        kind, depth = kind.storage_type, 1
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    follows = follow.shifted if name == SHIFTED else follow.labels
    if follows is not None and not follow.is_cut_with(schema, follows):
        follows = None
    if pa.types.is_integer(kind) and depth == 1 and (follows is not None or TOKENS not in follow.lengths):
        return LossLabels(name, "token", follows)
    if pa.types.is_integer(kind) and depth < 2 and name not in follow.as_numbers:
        return LossLabels(name, "class")
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return LossLabels(name, "sample") if is_number else None


def counted(batches: PlannedWindow, follow: LabelsFollow, rows: bool = False) -> Sequence[NumLabels | None]:
    """The number of labels of each batch that are trained on, where the index knows it, or packing makes them of the tokens; else
    None. An index knows `labels` alone: of `shift_labels` by token `read` counts them.

    Args:
        follow: labels of samples that are cut are counted one by one, and for this their rows are fetched.
        rows: count in the rows that a window holds, where no index knows.
    Price: 70 ns a sample; 10 ns a token of those that are cut.
    """
    window, numbers, pieces = batches.window, batches.numbers, batches.pieces
    labels = labels_of(window.schema, pieces is not None, follow)
    unknown: list[NumLabels | None] = [None] * len(batches)
    if labels is None or (labels.by == "token" and labels.name == SHIFTED):
        return unknown
    is_made = labels.name not in (LABELS, SHIFTED)
    knows = labels.by != "sample" and (rows or window.index is not None or is_made)
    found = window.num_labels(labels.name) if knows else None
    counts: NDArray[Any] = np.ones(len(numbers), np.int64)
    firsts: NDArray[Any] = np.zeros(len(numbers), np.int64)
    if pieces is not None and is_made and (found is None or (found[0] == found[1]).all()):  # hardly any token is -100
        counts, firsts = pieces.lengths, pieces.lengths > 0  # each token but the first of a piece
    elif found is not None:
        sizes, counts, begins = found[:, numbers]
        if labels.by == "class":
            counts = np.minimum(counts, 1)
        elif labels.follows is not None:
            firsts = begins
            starts, kept = _kept(batches, slice(None), labels.follows)
            cut = np.flatnonzero(kept < sizes)
            if len(cut):
                counts[cut], firsts[cut] = _in_pieces(window, labels.name, numbers[cut], starts[cut], kept[cut])
    elif labels.by != "sample":
        return unknown
    given, left_out = (batches.sums(each).tolist() for each in (counts, firsts))
    return list(map(NumLabels, given, left_out))


def step_labels(found: Sequence[NumLabels | None]) -> NumLabels | None:
    """The labels of all batches of a step; None where those of one are not known.

    >>> step_labels([NumLabels(5, 1), NumLabels(2, 0)]), step_labels([NumLabels(5, 1), None])
    (NumLabels(given=7, edges=1), None)
    """
    if None in found:
        return None
    return NumLabels(*(sum(parts) for parts in zip((0, 0), *filter(None, found))))


def read(batch: Batch, follow: LabelsFollow) -> NumLabels | None:
    """The labels of a batch that the loss is taken over and that are trained on, counted in its rows; None where it has none that
    are numbers, or some are null. A filler has none.

    Price: that of locating the rows, which is done once for all that the batch's window is asked for, and 10 ns a token.
    """
    window, block = batch.window, batch.window.block
    labels = labels_of(block.schema, batch.plan.pieces is not None, follow)
    if labels is None or labels.name not in block.schema.names:
        return None
    column = block.column(labels.name)
    if has_null(column):
        return None  # whoever makes a tensor of it says which row
    if batch.weight == 0:
        return NumLabels(0, 0)
    rows = window.rows[batch.numbers]
    if labels.by == "sample":
        return NumLabels(len(rows), 0)
    if not is_list(column.type):
        return NumLabels(int(np.count_nonzero(numpy_of(column)[rows] != NOT_TRAINED_ON)), 0)
    values = window.ragged(labels.name)
    begins, sizes = values.spans(rows)
    if labels.follows is None:
        asked = trained_on(*gather(values.values, begins, sizes))[0]
        return NumLabels(int(np.minimum(asked, 1).sum() if labels.by == "class" else asked.sum()), 0)
    starts, kept = _kept(batch.plan, batch.span, labels.follows)
    goes_on = starts + kept < sizes
    begins, sizes = begins + starts, np.clip(sizes - starts, 0, kept)
    if (
        labels.name == SHIFTED
    ):  # the token that the last slot of a cut sample, or of a piece, would predict is not in the batch
        lasts = (begins + sizes - 1)[(sizes > 0) & ~goes_on]
        sizes = np.maximum(sizes - goes_on, 0)
        edges = int(np.count_nonzero(values.values[lasts] != NOT_TRAINED_ON))
    counts, firsts = trained_on(*gather(values.values, begins, sizes))
    return NumLabels(int(counts.sum()), edges if labels.name == SHIFTED else int(firsts.sum()))


def _kept(batches: PlannedWindow, which: slice, follows: int) -> tuple[IntArray, IntArray]:
    """The first label of some samples, or pieces, that is in their batches, and how many are."""
    if batches.pieces is not None:
        return batches.pieces.starts[which], batches.pieces.lengths[which]
    kept = batches.sizes[which] if batches.sizes.ndim == 1 else batches.sizes[which, follows]
    return np.broadcast_to(np.int64(0), len(kept)), kept


def _in_pieces(
    window: PlanningWindow, column: str, numbers: IntArray, starts: IntArray, sizes: IntArray
) -> tuple[IntArray, IntArray]:
    """How many labels of pieces of samples are trained on, and whether the first one is; the rows are fetched for it."""
    distinct, which = np.unique(window.samples[numbers], return_inverse=True)
    block, rows = window.locate(distinct)
    labels = ragged(block, column)
    begins = labels.spans(rows)[0][which] + starts
    low, high = int(begins.min()), int((begins + sizes).max())
    if high - low > 2 * int(sizes.sum()):  # of all rows there are, in memory: the wanted ones are put together first
        return trained_on(*gather(labels.values, begins, sizes))
    return trained_on(labels.values[low:high], begins - low, begins + sizes - low)
