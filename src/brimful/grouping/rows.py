"""Tensors of single samples, rows of all of them, padded tensors of groups: one copy from each form to the next.

The leading axes of a sample are all up to the last ragged one. An index into them gives a row, which has the fixed axes that
follow. The rows of all samples lie end to end, in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Final

import torch

from brimful.grouping.language import Dims, leading, trailing
from brimful.plan.plan import IntArray

Tensor = torch.Tensor
Pad = float | Tensor

_SIGNED: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types whose values torch neither puts at an index nor takes from one, and those in which their bits can be."""


def rows_of(tensors: Sequence[Tensor], dims: Dims) -> Tensor:
    """The rows of some samples."""
    axes = len(leading(dims))
    if not axes:
        return torch.stack(tuple(tensors))
    return torch.cat([tensor.flatten(0, axes - 1) for tensor in tensors] if axes > 1 else tuple(tensors))


def samples_of(rows: Tensor, sizes: IntArray) -> list[Tensor]:
    """The tensor of each sample: views. Price: .5 us a sample where one axis leads, 2 us where several do.

    Args:
        sizes: of the leading axes of each sample, (B, axes).
    """
    if not sizes.shape[1]:
        return list(rows.unbind())
    parts = torch.split_with_sizes(rows, sizes.prod(axis=1).tolist())
    if sizes.shape[1] == 1:
        return list(parts)
    return [part.view(*shape, *rows.shape[1:]) for part, shape in zip(parts, sizes.tolist())]


def padded(rows: Tensor, places: IntArray, shapes: Sequence[Sequence[int]], pad: Pad) -> tuple[Tensor, ...]:
    """The padded tensors of all groups, whose rows lie at `places`: one copy, and one fill before it."""
    inner = rows.shape[1:]
    counts = [prod(shape[: len(shape) - len(inner)]) for shape in shapes]
    if isinstance(pad, Tensor):
        out = pad.to(rows).expand(sum(counts), *inner).contiguous()
        out = out.clone() if out.data_ptr() == pad.data_ptr() else out
    else:
        out = rows.new_full((sum(counts), *inner), pad)
    into, values = out, rows
    if rows.dtype in _SIGNED:
        into, values = out.view(_SIGNED[rows.dtype]), rows.view(_SIGNED[rows.dtype])
    into.index_put_((torch.from_numpy(places).to(rows.device),), values)
    parts = torch.unsafe_split_with_sizes(out, counts)  # no views to autograd: a module may change its input in place
    return tuple(part.view(shape) for part, shape in zip(parts, shapes))


def unpadded(groups: Sequence[Tensor], places: IntArray, dims: Dims) -> Tensor:
    """The rows at `places` of the groups' tensors, end to end."""
    flat = [group.flatten(0, len(leading(dims))) for group in groups]
    whole = torch.cat(flat) if len(flat) > 1 else flat[0]
    index = torch.from_numpy(places).to(whole.device)
    if whole.dtype in _SIGNED:
        return whole.view(_SIGNED[whole.dtype]).index_select(0, index).view(whole.dtype)
    return whole.index_select(0, index)


def checked_pad(pad: Pad, dims: Dims, like: Tensor, key: str) -> Pad:
    """A pad value, once it is sure that the column holds it.

    Raises:
        TypeError: neither a number nor a tensor.
        ValueError: a value that the column's type does not hold, or a tensor that is not of the fixed axes at the end.
    """
    if isinstance(pad, Tensor):
        inner = trailing(dims)
        if pad.ndim > len(inner) or tuple(pad.shape) != inner[len(inner) - pad.ndim :]:
            raise ValueError(
                f"the pad value of {key} has shape {tuple(pad.shape)}, but the fixed axes at the end are {inner}"
            )
        held = _holds_all(like, pad)
    elif isinstance(pad, bool | int | float):
        held = _holds(like.dtype, pad)
    else:
        raise TypeError(f"the pad value of {key} must be a number or a tensor (got {pad!r})")
    if not held:
        raise ValueError(f"{str(like.dtype).removeprefix('torch.')} does not hold the pad value {pad} of {key}")
    return pad


def _holds_all(like: Tensor, pad: Tensor) -> bool:
    """Rounded where the type is one of fractions, but finite as before, and of no fewer parts."""
    if pad.is_complex() and not like.is_complex():
        return False
    there = pad.to(like.dtype)
    if like.is_floating_point() or like.is_complex():
        return bool((there.isfinite() == pad.isfinite()).all())
    return bool((there.to(pad.dtype) == pad).all())


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype == torch.bool:
        return value in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return abs(value) <= torch.finfo(dtype).max or (isinstance(value, float) and not isfinite(value))
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)
