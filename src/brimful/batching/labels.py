"""How many labels of each batch are trained on, as integers: from what an index knows of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brimful.batching.batch import Batch, NumLabels, PlannedBatches
from brimful.batching.window import IntArray, PlanningWindow
from brimful.blocks.ragged import LABELS, NOT_TRAINED_ON, SHIFTED, gather, loss_labels, numpy_of, ragged, trained_on
from brimful.index.index import has_labels


class LabelsFollow(NamedTuple):
    """The number of the length column that `labels`, and that `shift_labels`, are cut with; None: they have lengths of their own,
    and are not cut."""

    labels: int | None = None
    shifted: int | None = None


def counted(batches: PlannedBatches, follow: LabelsFollow) -> Sequence[NumLabels | None]:
    """The number of labels of each batch that are trained on, where the index knows it, or packing makes them of the tokens; else
    None. An index knows `labels` alone: where there are `shift_labels`, which the loss is taken over, `read` counts them.

    Args:
        follow: labels of samples that are cut are counted one by one, and for this their rows are fetched.
    Price: 70 ns a sample; 10 ns a token of those that are cut.
    """
    window, numbers, pieces = batches.window, batches.numbers, batches.pieces
    names = window.schema.names
    if SHIFTED in names or window.num_labels is None:
        if pieces is None or loss_labels(names):
            return [None] * len(batches)
        counts, firsts = pieces.lengths, pieces.lengths > 0  # each token but the first of a piece
    else:
        sizes, counts, firsts = window.num_labels[:, numbers]
        if follow.labels is None:
            firsts[:] = 0
        else:
            starts, kept = _kept(batches, slice(None), follow.labels)
            cut = np.flatnonzero(kept < sizes)
            if len(cut):
                counts[cut], firsts[cut] = _in_pieces(window, numbers[cut], starts[cut], kept[cut])
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
    are classes or numbers, one for each token or for each sample, or some are null.

    Price: that of locating the rows, which is done once for all that the batch's window is asked for, and 10 ns a token.
    """
    window, schema = batch.window, batch.window.block.schema
    name = loss_labels(schema.names)
    if name is None:
        return None
    column = window.block.column(name)
    one_each = batch.plan.pieces is None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    if not (one_each or has_labels(column.type)):
        return None
    if column.null_count or (not one_each and column.flatten().null_count):
        return None  # whoever makes a tensor of it says which row
    if one_each:
        given = numpy_of(column)[window.rows[batch.numbers]] != NOT_TRAINED_ON
        return NumLabels(int(np.count_nonzero(given)), 0)
    labels = window.ragged(name)
    begins, sizes = labels.spans(window.rows[batch.numbers])
    follows = follow.shifted if name == SHIFTED else follow.labels
    if follows is None:
        return NumLabels(int(trained_on(*gather(labels.values, begins, sizes))[0].sum()), 0)
    starts, kept = _kept(batch.plan, batch.span, follows)
    goes_on = starts + kept < sizes
    begins, sizes = begins + starts, np.clip(sizes - starts, 0, kept)
    if (
        name == SHIFTED
    ):  # the token that the last slot of a cut sample, or of a piece, would predict is not in the batch
        lasts = (begins + sizes - 1)[(sizes > 0) & ~goes_on]
        sizes = np.maximum(sizes - goes_on, 0)
        edges = int(np.count_nonzero(labels.values[lasts] != NOT_TRAINED_ON))
    counts, firsts = trained_on(*gather(labels.values, begins, sizes))
    return NumLabels(int(counts.sum()), edges if name == SHIFTED else int(firsts.sum()))


def _kept(batches: PlannedBatches, which: slice, follows: int) -> tuple[IntArray, IntArray]:
    """The first label of some samples, or pieces, that is in their batches, and how many are."""
    if batches.pieces is not None:
        return batches.pieces.starts[which], batches.pieces.lengths[which]
    kept = batches.sizes[which] if batches.sizes.ndim == 1 else batches.sizes[which, follows]
    return np.broadcast_to(np.int64(0), len(kept)), kept


def _in_pieces(
    window: PlanningWindow, numbers: IntArray, starts: IntArray, sizes: IntArray
) -> tuple[IntArray, IntArray]:
    """How many labels of pieces of samples are trained on, and whether the first one is; the rows are fetched for it."""
    distinct, which = np.unique(window.samples[numbers], return_inverse=True)
    block, rows = window.locate(distinct)
    labels = ragged(block, LABELS)
    begins = labels.spans(rows)[0][which] + starts
    low, high = int(begins.min()), int((begins + sizes).max())
    if high - low > 2 * int(sizes.sum()):  # of all rows there are, in memory: the wanted ones are put together first
        return trained_on(*gather(labels.values, begins, sizes))
    return trained_on(labels.values[low:high], begins - low, begins + sizes - low)
