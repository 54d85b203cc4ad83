"""The labels of a batch, wherever they are in it, and how many of them are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from brimful.blocks.ragged import LABELS, NOT_TRAINED_ON


def labels_of(batch: Any) -> Any:
    """The column of labels of a batch: at the top, or inside of mappings and tuples; of a list of samples a list of theirs.

    Returns:
        a tensor or an array (B, ...), or a list of one row a sample; None where there are none.
    Raises:
        ValueError: labels in several places, or of some samples alone.

    >>> labels_of([{"labels": [1, 2]}, {"labels": [3]}]), labels_of({"inputs": {"labels": [[1]]}}), labels_of({"x": [1]})
    ([[1, 2], [3]], [[1]], None)
    """
    if isinstance(batch, list):
        if not batch or not all(isinstance(sample, Mapping) for sample in batch):
            return None
        rows = [labels_of(sample) for sample in batch]
        without = [number for number, row in enumerate(rows) if row is None]
        if 0 < len(without) < len(rows):
            raise ValueError(
                f"of a list of {len(rows):,} samples {len(rows) - len(without):,} have {LABELS!r}, and sample {without[0]:,} "
                "has none; give all of them some (-100: not trained on), or say weigh='samples' to oom_guard"
            )
        return None if without else rows
    if isinstance(batch, tuple):
        batch = batch._asdict() if hasattr(batch, "_asdict") else dict(enumerate(batch))
    if not isinstance(batch, Mapping):
        return None
    if batch.get(LABELS) is not None:
        return batch[LABELS]
    inside = {name: labels_of(value) for name, value in batch.items() if isinstance(value, Mapping | tuple)}
    found = [name for name, labels in inside.items() if labels is not None]
    if len(found) > 1:
        raise ValueError(
            f"the batch has {LABELS!r} in {found[0]!r} and in {found[1]!r}, and nobody can see which the loss is a mean of; "
            "say weigh= a function of the batch to oom_guard"
        )
    return inside[found[0]] if found else None


def unnamed_labels(batch: Any) -> bool:
    """Whether a batch may have labels by token that no name tells: a tuple, or a list of tuples, with integers behind the first.

    >>> unnamed_labels((np.zeros((4, 8)), np.zeros((4, 8), int))), unnamed_labels((np.zeros((4, 8)), np.zeros(4, int)))
    (True, False)
    """
    dims = 2
    if isinstance(batch, list) and batch and isinstance(batch[0], tuple):
        batch, dims = batch[0], 1
    if not isinstance(batch, tuple) or hasattr(batch, "_asdict"):
        return False
    return any(_integers(value, dims) for value in batch[1:])


def _integers(value: Any, dims: int) -> bool:
    if isinstance(value, Tensor):
        return value.dim() >= dims and not value.is_floating_point()
    if isinstance(value, np.ndarray):
        return value.ndim >= dims and value.dtype.kind in "iu"
    while isinstance(value, list) and value and dims:
        value, dims = value[0], dims - 1
    return not dims and isinstance(value, int) and not isinstance(value, bool)


def check_labels(labels: Any, *, next_tokens: bool) -> None:
    """Refuses what cannot be counted; of a list by its first row, and no value of a tensor is read.

    Raises:
        ValueError: labels that are no numbers, or without a dimension of tokens where the next one is predicted.
    """
    if isinstance(labels, list):
        if labels:
            _row(labels[0], next_tokens)
    elif not isinstance(labels, Tensor | np.ndarray):
        raise ValueError(
            f"labels must be a tensor, an array or a list of a row a sample to be counted (got {type(labels).__name__}); "
            "say weigh='samples' to oom_guard, or a function of the batch"
        )
    elif next_tokens and labels.ndim < 2:
        raise _without_tokens(tuple(labels.shape))


def trained_on(labels: Any, *, next_tokens: bool = False) -> float:
    """How many labels are not -100; `next_tokens`: but the first of each row.

    >>> trained_on([[1, 2, -100], [3]]), trained_on([[1, 2, -100], [3]], next_tokens=True), trained_on([1, -100])
    (3.0, 1.0, 1.0)
    """
    check_labels(labels, next_tokens=next_tokens)
    if isinstance(labels, list):
        return float(sum(int((_row(row, next_tokens) != NOT_TRAINED_ON).sum()) for row in labels))
    if not (isinstance(labels, Tensor) and labels.is_nested):
        return float(((labels[:, 1:] if next_tokens else labels) != NOT_TRAINED_ON).sum())
    jagged: Any = labels
    values = jagged.values()
    found = float((values != NOT_TRAINED_ON).sum())
    if not next_tokens:
        return found
    firsts = jagged.offsets()[:-1][jagged.offsets().diff() > 0]
    return found - float((values[firsts] != NOT_TRAINED_ON).sum())


def _row(row: Any, next_tokens: bool) -> Any:
    """The labels of a sample that count, as an array or a tensor."""
    try:
        found = row if isinstance(row, Tensor) else np.asarray(row)
    except ValueError as error:
        raise ValueError(f"the labels of a sample are lists of different lengths: {row!r:.80}") from error
    if isinstance(found, np.ndarray) and found.dtype.kind not in "iufb":
        raise ValueError(
            f"labels must be numbers to be counted (got {row!r:.80}); say weigh='samples' to oom_guard, or a function of "
            "the batch"
        )
    if next_tokens and not found.ndim:
        raise _without_tokens(())
    return found[1:] if next_tokens else found


def _without_tokens(shape: tuple[int, ...]) -> ValueError:
    got = shape or "one number a sample"
    return ValueError(
        f"weigh='next_tokens' takes labels of shape (B, L), a row a sample (got {got}); say weigh='tokens' to oom_guard where "
        "each label is predicted"
    )
