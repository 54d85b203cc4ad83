"""A policy whose batches fit into memory: as large as a model of peak memory allows at a given risk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .budget import ENDLESS, largest
from .cut import cut_greedy, plan_sorted, plan_units, plan_wide, rows_at
from .errors import finite, integer, logger, one_of
from .once import once, settings_of
from .overlong import refuse_overlong
from .plan import IntArray, Plan, as_lengths, joined

Length = int | tuple[int, int]
"""A padded length, in tokens; or (source, target)."""
BatchSizes = Literal["any", "friendly"]
Order = Literal["longest_first", "hardest_first"]

_MEMBERS = ("largest_batch", "predict", "fingerprint", "num_lengths", "unit")
WARN_FACTOR: Final = 2
"""How many times as large as what a model has seen a batch or a length may be before that is said."""
_MULTIPLE = 8  # of which friendly batch sizes are multiples; below, powers of two


def checked_risk(name: str, risk: Any) -> float:
    """Refuses a risk that is no share.

    >>> checked_risk("risk", 1)
    Traceback (most recent call last):
    ValueError: risk must be between 0 and 1 (got 1)
    """
    if not 0 < finite(name, risk) < 1:
        raise ValueError(f"{name} must be between 0 and 1 (got {risk})")
    return float(risk)


class PeakModel(Protocol):
    """An object that predicts the memory of a shape: a `MemoryModel`, or your own with these members.

    `largest_batch` never grows with the length. `fingerprint` stands for the model in the header of a state, so two
    models with different answers have different fingerprints.
    """

    @property
    def num_lengths(self) -> int: ...

    @property
    def unit(self) -> str: ...

    def predict(self, batch: int, length: Length) -> float: ...

    def largest_batch(self, length: Length, limit_bytes: float, *, risk: float) -> int: ...

    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class MemoryBudget:
    """Batches whose peak memory is within a limit, at a given risk. Samples are sorted longest first (stable) and cut
    greedily.

    A batch is padded to its longest sample (1 token at least). For each padded length, the model gives the largest
    batch whose peak stays within the limit. A share `risk` of such batches may exceed it. With pairs, the model must
    know both lengths.

    Args:
        model: a `MemoryModel`, or your own object with the members of `PeakModel`.
        limit_bytes: the peak that the device can hold, in bytes.
        risk: the share of full batches that may exceed it.
        reference: instead of `limit_bytes`: a (batch, length) that is known to fit, or (batch, (source, target)) for
            pairs. The limit is the peak that the model predicts for it. A batch of no more rows and no greater length
            is always allowed.
        batch_sizes: "friendly" rounds sizes down to multiples of 8, and below 8 to powers of two. The last batch holds
            the rest.
        order: "hardest_first" puts the batches with the greatest predicted peaks first, so that out of memory shows at
            once. This order holds if batches are not shuffled.
    Raises:
        ValueError: both or neither of `limit_bytes` and `reference` are given. Or a single token exceeds the limit. Or
            the model has relative peaks and the limit is in bytes.
        OverlongError: (from `plan`) a sample alone exceeds the limit.
    Price: that of `TokenBudget`, and 80 us for each distinct length of a batch, or for each distinct pair.
    Example:
        >>> from brimful.memory import MemoryModel
        >>> shapes = [(batch, length) for batch in (1, 4) for length in (10, 20, 40)]
        >>> model = MemoryModel.fit(shapes, [1000 + batch * length for batch, length in shapes])
        >>> plan = MemoryBudget(model, 1130, risk=0.025).plan([50, 30, 20, 20, 30, 20])
        >>> [batch.tolist() for batch in plan.batches]
        [[0], [1, 4], [2, 3, 5]]
    """

    model: PeakModel
    limit_bytes: float | None = None
    risk: float = field(default=0.025, kw_only=True)
    reference: tuple[int, Length] | None = field(default=None, kw_only=True)
    batch_sizes: BatchSizes = field(default="any", kw_only=True)
    order: Order = field(default="longest_first", kw_only=True)

    def __post_init__(self) -> None:
        if missing := [name for name in _MEMBERS if not hasattr(self.model, name)]:
            raise TypeError(f"model must have {missing[0]} (got {self.model!r}); a MemoryModel has")
        if (self.limit_bytes is None) == (self.reference is None):
            found = f"{self.limit_bytes!r} and {self.reference!r}"
            raise ValueError(f"MemoryBudget takes either limit_bytes or reference=(batch, length) (got {found})")
        if self.limit_bytes is not None:
            object.__setattr__(self, "limit_bytes", finite("limit_bytes", self.limit_bytes))
            if self.model.unit == "relative":
                raise ValueError(
                    f"this model knows no bytes, only the ratio of two peaks (got limit_bytes={self.limit_bytes:,.0f}). Give "
                    "reference=(batch, length), or model.anchored(batch, length, peak_bytes)"
                )
        else:
            object.__setattr__(self, "reference", _reference(self.reference, self.model.num_lengths))
        checked_risk("risk", self.risk)
        one_of("batch_sizes", self.batch_sizes, *get_args(BatchSizes))
        one_of("order", self.order, *get_args(Order))
        token: Length = 1 if self.model.num_lengths == 1 else (1, 1)
        if not self._rows(token):
            least = f"the peak of a single token, {self.model.predict(1, token):,.0f} and its margin"
            raise ValueError(f"limit_bytes must be at least {least} (got {self._limit:,.0f})")

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def max_length(self) -> int | None:
        """The longest sample, in tokens, that fits alone. None if any sample fits. Also None for pairs, which have no
        longest.
        Example:
            >>> from brimful.memory import MemoryModel
            >>> shapes = [(batch, length) for batch in (1, 16) for length in (10, 20, 40)]
            >>> model = MemoryModel.fit(shapes, [1000 + batch * length for batch, length in shapes])

            >>> MemoryBudget(model, limit_bytes=1100).max_length, MemoryBudget(model, reference=(12, 10)).max_length
            (39, 48)
        """
        if self.model.num_lengths == 2:
            return None
        longest = largest(lambda length: not self._rows(length), 0)
        return None if longest == ENDLESS else longest

    def plan(self, lengths: ArrayLike, *, units: ArrayLike | None = None) -> Plan:
        """Batches whose peak is within the limit, as the model says.

        Example:
            >>> from brimful.memory import MemoryModel
            >>> shapes = [(batch, length) for batch in (1, 16) for length in (10, 20, 40)]
            >>> model = MemoryModel.fit(shapes, [1000 + batch * length for batch, length in shapes])

            >>> plan = MemoryBudget(model, reference=(15, 10), batch_sizes="friendly").plan([20] * 5 + [10] * 12)
            >>> [len(batch) for batch in plan.batches], plan.padded_lengths.tolist()
            ([4, 4, 9], [20, 20, 10])
            >>> plan = MemoryBudget(model, reference=(15, 10), order="hardest_first").plan([40] + [10] * 15)
            >>> [len(batch) for batch in plan.batches], plan.padded_lengths.tolist()
            ([14, 2], [10, 40])
        """
        lengths = as_lengths(lengths)
        given = 1 if lengths.ndim == 1 else lengths.shape[1]
        if given != self.model.num_lengths:
            raise ValueError(
                f"the model of this MemoryBudget takes {self.model.num_lengths} length(s) a sample (got {given}). Fit it "
                f"with shapes of {1 + given} numbers"
            )
        padded, rows = np.maximum(lengths, 1), cache(self._rows)
        if lengths.ndim == 2:
            self._refuse(lengths, rows_at(padded, rows) > 0)
            plan = plan_wide(lengths, padded, rows) if units is None else plan_units(lengths, padded, rows, units)
        else:
            self._refuse(lengths, padded <= (self.max_length or ENDLESS))
            plan = plan_sorted(lengths, padded, rows, cut_greedy, units)
        _look_beyond(self.model, plan)
        return plan if self.order == "longest_first" else _hardest_first(self.model, plan)

    def stacked(self, sides: int) -> MemoryBudget:
        """The policy for samples that have `sides` rows each, planned by their longest side.

        Example:
            >>> from brimful.memory import MemoryModel
            >>> shapes = [(batch, length) for batch in (1, 16) for length in (10, 20, 40)]
            >>> model = MemoryModel.fit(shapes, [1000 + batch * length for batch, length in shapes])
            >>> [len(MemoryBudget(model, 1200).stacked(sides).plan([10] * 40).batches[0]) for sides in (1, 2)]
            [13, 6]
        """
        return replace(self, model=_OfSides(self.model, sides))

    def _refuse(self, lengths: IntArray, fits: NDArray[np.bool_]) -> None:
        max_length = self.max_length
        given = f"reference={self.reference}" if self.limit_bytes is None else f"limit_bytes={self.limit_bytes:,.0f}"
        limit = f"{given} at a risk of {self.risk:.1%}"
        limit += "" if max_length is None else f" (at most {max_length:,} tokens)"
        refuse_overlong(lengths, fits, max_length=max_length, limit=limit, remedy="raise the limit or the risk")

    def _rows(self, length: Length) -> int:
        """The most rows of a padded length, no fewer than the reference has, where there is one; 0 where none fits."""
        rows = self.model.largest_batch(length, self._limit, risk=self.risk)
        if self.batch_sizes == "friendly":
            rows = rows // _MULTIPLE * _MULTIPLE if rows >= _MULTIPLE else rows and 1 << (rows.bit_length() - 1)
        if self.reference is None:
            return rows
        batch, known = self.reference
        return max(rows, batch) if np.less_equal(length, known).all() else rows

    @once
    def _limit(self) -> float:
        if self.reference is not None:
            return self.model.predict(*self.reference)
        assert self.limit_bytes is not None
        return self.limit_bytes


@dataclass(frozen=True)
class _OfSides:
    """A model of peaks, asked about batches of so many rows a sample."""

    model: PeakModel
    sides: int

    @property
    def num_lengths(self) -> int:
        return self.model.num_lengths

    @property
    def unit(self) -> str:
        return self.model.unit

    def predict(self, batch: int, length: Length) -> float:
        return self.model.predict(batch * self.sides, length)

    def largest_batch(self, length: Length, limit_bytes: float, *, risk: float) -> int:
        return self.model.largest_batch(length, limit_bytes, risk=risk) // self.sides

    def fingerprint(self) -> str:
        return self.model.fingerprint()


def _hardest_first(model: PeakModel, plan: Plan) -> Plan:
    sizes, lengths = plan.padded_sizes.tolist(), plan.padded_lengths.tolist()
    shapes = zip(sizes, (tuple(length) if isinstance(length, list) else length for length in lengths))
    peaks = np.array([model.predict(*shape) for shape in shapes])
    order = np.argsort(-peaks, kind="stable")
    numbers, bounds = joined([plan.batches[number] for number in order.tolist()])
    return Plan(numbers, bounds, plan.padded_lengths[order], plan.padded_sizes[order], plan.tokens)


def _look_beyond(model: PeakModel, plan: Plan) -> None:
    """Warns of batches and lengths far beyond those that a model has seen, where it says what those were."""
    batches, lengths = getattr(model, "batches", None), getattr(model, "lengths", None)
    if batches is None or lengths is None or not len(plan):
        return
    planned = (int(plan.padded_sizes.max()), *np.atleast_1d(plan.padded_lengths.max(axis=0)).tolist())
    seen = (batches[1], *(longest for _, longest in lengths))
    for kind, most, known in zip(("batch", "length", "target length"), planned, seen):
        if most > WARN_FACTOR * known and kind not in _said:
            _said.add(kind)
            logger.warning(
                "a %s of %d is planned, but the memory model has seen none above %d. Its risk does not hold so far beyond: probe "
                "near it (bf.memory.probe, brimful memory probe)",
                kind,
                most,
                known,
            )


_said: Final[set[str]] = set()
"""The kinds of lengths that were warned of in this process."""


def _reference(reference: Any, num_lengths: int) -> tuple[int, Length]:
    """A reference, checked: ints of Python's."""
    whole = partial(integer, "reference", least=1)
    match num_lengths, reference:
        case 1, (batch, length):
            return whole(batch), whole(length)
        case 2, (batch, (source, target)):
            return whole(batch), (whole(source), whole(target))
    shape = "(batch, length)" if num_lengths == 1 else "(batch, (source length, target length))"
    raise TypeError(f"reference must be {shape} (got {reference!r})")
