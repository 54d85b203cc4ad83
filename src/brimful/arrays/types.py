"""The type of a column's arrays, and which values it holds."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.plan.errors import DataError
from brimful.tables.ragged import holding, is_labels

SIGNED: Final = ("int8", "int16", "int32", "int64")
BFLOAT16: Final = "bfloat16"
"""The one type that torch has and numpy has not."""
DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", *SIGNED),
    *("float16", BFLOAT16, "float32", "float64"),
)


class ColumnType(NamedTuple):
    """The type of a column's arrays.

    Args:
        wanted: its name; "bfloat16" is made of float32 by whoever has it.
        made: the numpy type.
        limits: the least and greatest value, of a type that does not hold all that the column could; of integers in a float type
            those between which it holds each.
    """

    wanted: str
    made: np.dtype[Any]
    limits: tuple[float, float] | None

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in that type; the same array where they are."""
        return values if values.dtype == self.made else values.astype(self.made)

    def check(self, name: str, values: NDArray[Any]) -> None:
        """Refuses values that the type does not hold."""
        if self.limits is None:
            return
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        if not values.size:
            return
        least, most = self.limits
        wrong = [one for one in (values.min().item(), values.max().item()) if one < least or one > most]
        if wrong and values.dtype.kind in "iu" and self.made.kind == "f":
            outside = values[(values > most) | (values < least)]  # some of these are held: 50 ns a value
            held = _held(outside, self.wanted).tolist()
            wrong = [value for value, near in zip(outside.tolist(), held, strict=True) if value != near]
        if wrong:
            raise DataError(
                f"column {name!r} holds {wrong[0]:,}, which {self.wanted} does not; choose another of dtypes"
            )


def type_of(name: str, source: np.dtype[Any], fill: float, dtypes: Mapping[str, str], keep: bool = False) -> ColumnType:
    """The type of a column's arrays: as asked for, else int64 for integers, else the column's own.

    Args:
        keep: integers keep their own, but for labels: arrays such as images would take eight times the memory.
    Raises:
        ValueError: the type does not hold the pad value, or the fractions of the column.
    """
    keeps = source.kind == "f" or (source.kind == "b" and fill in (0, 1)) or (keep and not is_labels(name))
    plain = source.name if keeps else "int64"
    wanted = dtypes.get(name, plain)
    made = np.dtype("float32" if wanted == BFLOAT16 else wanted)
    limits: tuple[float, float] | None = None
    if made.kind == "f":
        greatest, eps = _limits(wanted)
        if greatest < abs(float(fill)) < inf:
            raise ValueError(f"{wanted} does not hold the pad value {fill:,} of column {name!r}")
        if source.kind in "iu":
            most = round(2 / eps)
            held = -most <= np.iinfo(source).min and np.iinfo(source).max <= most
            limits = None if held else (-most, most)
            if float(fill).is_integer() and _held(np.array([float(fill)]), wanted)[0] != fill:
                raise ValueError(f"{wanted} does not hold the pad value {fill:,} of column {name!r}")
        elif source.kind == "f" and float(np.finfo(source).max) > greatest:
            limits = (-greatest, greatest)
    else:
        least, most = (0, 1) if made.kind == "b" else (int(np.iinfo(made).min), int(np.iinfo(made).max))
        if source.kind == "f":
            raise ValueError(f"dtypes: {wanted} would cut off the fractions of column {name!r} ({source.name})")
        if not least <= fill <= most or fill != int(fill):
            raise ValueError(f"{wanted} does not hold the pad value {fill} of column {name!r}")
        limits = None if np.can_cast(source, made) else (least, most)
    return ColumnType(wanted, made, limits)


def held_in(source: np.dtype[Any], fill: float, made: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which values lie until they become `made`: their own, or the next one that holds the padding too."""
    wide: np.dtype[Any] = holding(source, int(fill)) if source.kind in "iu" and made.kind in "iu" else made
    return wide


def _limits(wanted: str) -> tuple[float, float]:
    """The greatest number of a float type, and the step from 1 to the next one."""
    if wanted == BFLOAT16:
        return 2.0**128 - 2.0**120, 2.0**-7
    known = np.finfo(wanted)
    return float(known.max), float(known.eps)


def _held(values: NDArray[Any], wanted: str) -> NDArray[Any]:
    """Finite numbers as a float type holds them, rounded to even.

    >>> _held(np.array([256, 257, 259]), "bfloat16").tolist(), _held(np.array([2049]), "float16").tolist()
    ([256.0, 256.0, 260.0], [2048.0])
    """
    with np.errstate(over="ignore"):
        if wanted != BFLOAT16:
            return values.astype(wanted)
        bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
