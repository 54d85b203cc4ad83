"""What a layout is: how the samples of a batch lie in its arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from brimful.arrays.columns import WindowColumns, refuse_taken
from brimful.batching.batch import Batch, NumLabels


@dataclass(frozen=True)
class Layout(ABC):
    """Abstract: how the samples of a batch lie in its arrays."""

    name = "padded"
    """What users call it."""

    varies = False
    """Whether shapes follow from what is in a batch, and not from its plan alone."""

    packs = False
    """Whether several samples lie in a row."""

    by_row = True
    """Whether there is a row a sample, so that labels which are no integers count by rows."""

    in_numpy = True
    """Whether all that it makes are arrays; else only torch has what they are made for."""

    @abstractmethod
    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        """The batch."""

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """The shape that a compiler sees, and how many slots for tokens there are."""
        return planned_shape(batch, columns)

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A planned shape, (rows, length) or (rows, *lengths), as a compiler sees it."""
        return shape

    def unpadded(self) -> Layout | None:
        """The same, padded where it arrives; None where that cannot be."""
        return None

    def num_labels(self, known: NumLabels) -> int:
        """How many labels of a step are trained on."""
        return known.given

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:  # noqa: B027
        """Refuses a batch whose labels are not those that are counted in a `number`."""


def planned_shape(batch: Batch, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
    """The shape of a batch by its plan, and how many slots for tokens there are."""
    shape = batch.plan.shapes[batch.place]
    if batch.plan.num_padded is None and columns.given:
        return shape, shape[0] * sum(shape[1:])
    rows, *widths = shape
    padded = widths[: batch.plan.num_padded]
    if not padded and not columns.given:  # what is summed has no padding
        return (rows, *widths[1:]), batch.num_tokens
    padded = padded or [*columns.widths(batch)]
    return (rows, *padded), rows * sum(padded) if columns.given or batch.num_tokens else 0


def put(out: MutableMapping[str, Any], **made: Any) -> None:
    """Puts what is made of the plan into a batch, beside its columns.

    Raises:
        DataError: a column of the user's has that name.
    """
    refuse_taken(made, out)
    out.update(made)
