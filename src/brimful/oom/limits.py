"""The largest batches to try, by shape, learnt from running out of memory."""

from __future__ import annotations

from math import ceil, log2
from typing import Any, Final, NamedTuple, TypeAlias

from brimful.core.errors import StateError, integer, one_of
from brimful.core.states import check_form

VERSION: Final = 1
BINS_PER_OCTAVE: Final = 8
"""Lengths within 9 % of each other share one limit, so there are some dozens at most."""
SHORTER: Final = 0.9
"""A limit also holds for samples this much shorter. Otherwise each length would have to run out of memory once."""

Key: TypeAlias = tuple[str, tuple[int, ...]]


class Limit(NamedTuple):
    """Args:
    size: the largest batch that is tried.
    widths: of the samples by which that was learnt.
    """

    size: int
    widths: tuple[int, ...]


class Limits:
    """The most that is tried at once, in samples of padded batches, in tokens of packed and nested ones; only ever lowered.

    A limit holds for samples up to a tenth smaller, as so many slots, and for all larger ones, as so many samples: at a greater
    length no more of them fit.

    >>> limits = Limits()
    >>> limits.learn("samples", (100,), 8)
    >>> limits.allowed("samples", (98,)), limits.allowed("samples", (200,)), limits.allowed("samples", (50,))
    (8, 8, None)
    """

    def __init__(self) -> None:
        self._limits: dict[Key, Limit] = {}

    def allowed(self, unit: str, widths: tuple[int, ...]) -> int | None:
        """The largest batch to try of samples of these widths; None where nothing is known of such."""
        known = [
            max(1, limit.size * max(1, sum(widths), sum(limit.widths)) // max(1, sum(widths)))
            for (own, _), limit in self._limits.items()
            if own == unit
            and len(widths) == len(limit.widths)
            and all(here >= SHORTER * there for here, there in zip(widths, limit.widths))
        ]
        return min(known, default=None)

    def learn(self, unit: str, widths: tuple[int, ...], size: int) -> None:
        """From now on no more than `size` of such samples."""
        allowed = self.allowed(unit, widths)
        if allowed is None or size < allowed:
            self._limits[unit, _bins(widths)] = Limit(size, widths)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: 40 bytes or so a limit."""
        return {
            "version": VERSION,
            "limits": [[unit, limit.size, list(limit.widths)] for (unit, _), limit in self._limits.items()],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the limits of a state in place of its own.

        Raises:
            StateError: it is no such state.
        """
        check_form(state_dict, "limits", version=VERSION, what="the state of a guard")
        try:
            limits = [_checked(*saved) for saved in state_dict["limits"]]
        except (TypeError, ValueError) as error:
            raise StateError(f"this state of a guard is damaged: {error}") from error
        self._limits = {(unit, _bins(limit.widths)): limit for unit, limit in limits}


def _checked(unit: Any, size: Any, widths: Any) -> tuple[str, Limit]:
    one_of("the unit of a limit", unit, "samples", "tokens")
    return unit, Limit(integer("a limit", size, 1), tuple(integer("a width", width) for width in widths))


def _bins(widths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ceil(BINS_PER_OCTAVE * log2(max(1, width))) for width in widths)
