"""The weight of a part of a batch: the number of its labels or samples, or what a function of the user's gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from brimful.core.own_keys import COUNTS, NUM_ITEMS, WEIGHTS
from brimful.oom.parts import splittable
from brimful.plan.errors import finite, logger, one_of
from brimful.tables.ragged import LABELS, NOT_TRAINED_ON, SHIFTED, loss_labels
from brimful.tensors.loss import are_classes, times
from brimful.tensors.structures import with_values

Weigh: TypeAlias = Literal["auto", "tokens", "next_tokens", "samples", "sum"] | Callable[[Any], float]


class Weights:
    """The weights of the parts of a batch.

    Args:
        weigh: see `oom_guard`.
    """

    def __init__(self, weigh: Weigh) -> None:
        if not callable(weigh):
            one_of("weigh", weigh, *get_args(get_args(Weigh)[0]))
        self._weigh = weigh
        self._said = False

    def of_parts(self, batch: Any, ranks: int = 1) -> Callable[[Any], float] | None:
        """The weight of a part of this batch; None where all scales are 1.0.

        Args:
            ranks: how many there are.
        Raises:
            ValueError: it cannot be told.
        """
        if callable(self._weigh):
            return lambda part: finite("a weight", self._weigh(part))  # type: ignore[operator]
        by, columns = self._weigh, columns_of(batch)
        if by != "sum":
            _refuse_nested(batch, by)
        if by == "auto":
            if ranks > 1 and [name for name in NUM_ITEMS if columns.get(name) is not None] == [NUM_ITEMS[1]]:
                raise ValueError(
                    f"the batch has {NUM_ITEMS[1]}, which {ranks} ranks add up, so nobody can see what a part of it weighs: say "
                    "oom_guard(weigh='sum') where its loss is a sum that is divided by that number (bf.token_mean), and "
                    "weigh='tokens' where it is a mean"
                )
            labels = labels_of(batch)
            if labels is None and _unnamed_labels(batch):
                raise ValueError(
                    f"weigh='auto' looks for {LABELS!r} or {SHIFTED!r} by name, and a {type(batch).__name__} of columns "
                    "without names may have labels of tokens: say weigh='samples' to oom_guard where the loss is a mean over "
                    "samples, else a function of the batch, or give a dict"
                )
            by = "tokens" if labels is not None and _are_classes(labels.values) else "samples"
            self._warn_ambiguous(columns)
        if by in ("tokens", "next_tokens"):
            labels = labels_of(batch)
            if labels is None:
                raise ValueError(
                    f"weigh={by!r} counts labels, and the batch has none by the names {LABELS!r} or {SHIFTED!r}; say 'samples', "
                    "or a function of the batch"
                )
            _check_labels(labels.values, next_tokens=by == "next_tokens" and not labels.shifted)
            return partial(_tokens, next_tokens=by == "next_tokens")
        return _samples if by == "samples" else None

    def part(self, part: Any, share: float) -> Any:
        """A part as the step gets it: with its share of the numbers of labels, where nobody said what its loss is. So a sum that
        is divided by such a number, times the share, is right, and so is a mean."""
        if self._weigh != "auto" or not share:
            return part
        columns = columns_of(part)
        new = {name: times(columns[name], share) for name in COUNTS if columns.get(name) is not None}
        if not new:
            return part
        return with_values(part, new) if isinstance(part, Mapping) else part._replace(**new)

    def _warn_ambiguous(self, columns: Mapping[str, Any]) -> None:
        """Once: nobody can see whether a model predicts the first label of a row."""
        labels, inputs = columns.get(LABELS), columns.get("input_ids")
        if self._said or columns.get(SHIFTED) is not None:
            return
        if not (isinstance(labels, Tensor) and isinstance(inputs, Tensor)) or labels.is_nested:
            return
        self._said = True
        if labels.dim() == 2 and labels.shape == inputs.shape and bool((labels[:, 0] != NOT_TRAINED_ON).any()):
            logger.warning(
                "a part of a batch weighs as many tokens as it has labels other than -100; if this model predicts the "
                "next token, the first of each row is not predicted: say weigh='next_tokens' to oom_guard (or "
                "weigh='tokens', if that is right)"
            )


def _tokens(part: Any, *, next_tokens: bool) -> float:
    labels = labels_of(part)
    assert labels is not None
    return trained_on(labels.values, _row_weights(part), next_tokens=next_tokens and not labels.shifted)


def _samples(part: Any) -> float:
    weights = _row_weights(part)
    return float(splittable(part).samples if weights is None else weights.sum())


def _row_weights(part: Any) -> Tensor | None:
    """What each row counts for, (B,); None where nothing says it, and each counts for 1."""
    found = columns_of(part).get(WEIGHTS)
    return None if found is None else torch.as_tensor(found)


def columns_of(batch: Any) -> Mapping[Any, Any]:
    """The columns of a mapping or of a named tuple by name, those of a tuple by number; none of anything else."""
    if isinstance(batch, tuple):
        return batch._asdict() if hasattr(batch, "_asdict") else dict(enumerate(batch))
    return batch if isinstance(batch, Mapping) else {}


def _refuse_nested(batch: Any, weigh: str) -> None:
    """Refuses a batch with what the weight of a part depends on inside of a nested structure.

    Raises:
        ValueError: naming both.
    """
    at_top = {WEIGHTS} if weigh == "samples" else {LABELS, SHIFTED, WEIGHTS}
    shared = COUNTS if weigh == "auto" else ()  # each of these, wherever it is, would have to be shared out
    for sample in batch if isinstance(batch, list) else [batch]:
        columns = columns_of(sample)
        for place, value in columns.items():
            names = [*_names_in(value)]
            if lost := [one for one in names if one in shared or (one in at_top and columns.get(one) is None)]:
                raise ValueError(
                    f"the batch has {lost[0]!r} inside of {place!r}, and weigh={weigh!r} looks for it at the top alone: say "
                    "weigh= a function of the batch to oom_guard, or give a batch without nested structures"
                )


def _names_in(value: Any) -> Iterator[Any]:
    for name, one in columns_of(value).items():
        yield name
        yield from _names_in(one)


class Labels(NamedTuple):
    """The labels that a loss is taken over.

    Args:
        values: a tensor or an array (B, ...), or a list of one row a sample.
        shifted: whether they are `shift_labels`: each stands where it is predicted, the first of a row too.
    """

    values: Any
    shifted: bool


def labels_of(batch: Any) -> Labels | None:
    """The labels that a batch's loss is taken over, `shift_labels` or else `labels`; None where there are none. Of a list of
    samples it is a list of theirs.

    Raises:
        ValueError: labels of some samples alone.

    >>> labels_of([{"labels": [1, 2]}, {"labels": [3]}]), labels_of({"x": [1]})
    (Labels(values=[[1, 2], [3]], shifted=False), None)
    >>> labels_of({"labels": [[1, 2]], "shift_labels": [[2, -100]]})
    Labels(values=[[2, -100]], shifted=True)
    """
    if isinstance(batch, list):
        if not batch or not all(isinstance(sample, Mapping) for sample in batch):
            return None
        rows = [labels_of(sample) for sample in batch]
        found = [row for row in rows if row is not None]
        if not found:
            return None
        if len(found) < len(rows):
            raise ValueError(
                f"of a list of {len(rows):,} samples {len(found):,} have {LABELS!r}, and sample {rows.index(None):,} "
                "has none; give all of them some (-100: not trained on), or say weigh='samples' to oom_guard"
            )
        if len({row.shifted for row in found}) > 1:
            raise ValueError(
                f"of a list of {len(rows):,} samples some have {SHIFTED!r} and some {LABELS!r} alone; give all of them the same"
            )
        return Labels([row.values for row in found], found[0].shifted)
    columns = columns_of(batch)
    name = loss_labels([name for name in (LABELS, SHIFTED) if columns.get(name) is not None])
    return None if name is None else Labels(columns[name], name == SHIFTED)


def _unnamed_labels(batch: Any) -> bool:
    """Whether a batch without names may have labels by token: a tuple, or a list of tuples, with integers behind the first.

    >>> _unnamed_labels((np.zeros((4, 8)), np.zeros((4, 8), int))), _unnamed_labels((np.zeros((4, 8)), np.zeros(4, int)))
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


def _are_classes(labels: Any) -> bool:
    """Whether labels are integers, of which -100 is none; `token_mean` counts any others as one a sample. Of a list the first row
    says it.

    >>> _are_classes(torch.tensor([1])), _are_classes([[0.5], [1.5]]), _are_classes([np.array([True])]), _are_classes([])
    (True, False, False, True)
    """
    if isinstance(labels, list):
        return not labels or _are_classes(_row(labels[0], next_tokens=False))
    if isinstance(labels, np.ndarray):
        return labels.dtype.kind in "iu"
    return not isinstance(labels, Tensor) or are_classes(labels)


def _check_labels(labels: Any, *, next_tokens: bool) -> None:
    """Refuses labels that cannot be counted. Looks at the first row of a list, and at no value of a tensor.

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


def trained_on(labels: Any, weights: Tensor | None = None, *, next_tokens: bool = False) -> float:
    """The number of labels other than -100; `next_tokens`: without the first of each row. Call `_check_labels` first.

    Args:
        weights: what a label of each row counts for, (B,); None: 1.

    >>> trained_on([[1, 2, -100], [3]]), trained_on([[1, 2, -100], [3]], next_tokens=True), trained_on([1, -100])
    (3.0, 1.0, 1.0)
    >>> rows = [torch.tensor(row, dtype=torch.int64) for row in ([1, -100], [], [2, 3])]
    >>> jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    >>> trained_on(jagged), trained_on(jagged, next_tokens=True), trained_on(jagged, torch.tensor([1.0, 1.0, 0.5]))
    (3.0, 1.0, 2.0)
    >>> trained_on(np.array([[0.5, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 0.0]))
    2.0
    """
    counts = _labels_of_rows(labels, next_tokens)
    return float((counts if weights is None else counts * weights.to(counts.device)).sum())


def _labels_of_rows(labels: Any, next_tokens: bool) -> Tensor:
    """The number of labels other than -100 of each row, (B,) int64."""
    if isinstance(labels, list):
        return torch.tensor([int((_row(row, next_tokens) != NOT_TRAINED_ON).sum()) for row in labels])
    if isinstance(labels, Tensor) and labels.is_nested:
        jagged: Any = labels
        counted, bounds = jagged.values() != NOT_TRAINED_ON, jagged.offsets()
        if next_tokens:
            counted[bounds[:-1][bounds.diff() > 0]] = False
        return F.pad(counted.cumsum(0), (1, 0))[bounds].diff()
    kept = torch.as_tensor(labels[:, 1:] if next_tokens else labels)
    return (kept != NOT_TRAINED_ON).reshape(len(kept), prod(kept.shape[1:])).sum(1)


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
