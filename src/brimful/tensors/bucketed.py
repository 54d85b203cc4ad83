"""Dicts of tensors padded to one of few lengths."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

import torch

from brimful.arrays.columns import fill_of
from brimful.core.ahead import then
from brimful.core.counters import count
from brimful.core.own_keys import OWN_KEYS
from brimful.core.run import Run
from brimful.core.stage import Stage, State, running
from brimful.core.stats import Made
from brimful.plan.buckets import as_buckets
from brimful.plan.errors import DataError, integer, logger, one_of
from brimful.tensors.loss import rows_that_count
from brimful.tensors.structures import with_values

Overflow: TypeAlias = Literal["raise", "grow", "truncate"]

PAD_VALUES: Final = {"input_ids": 0, "attention_mask": 0, "labels": -100}


@dataclass(frozen=True)
class ToBuckets:
    """How a batch is padded to the nearest bucket that is not smaller.

    The length of a batch is the size of its first tensor with a pad value, along `dim`. Each tensor of that size there is
    padded with its own value; those of another size, of None as their value, or with one number a row stay.

    Args:
        buckets: lengths, in any order; none: nothing is padded.
        pad_values: by key; None: never padded.
        dim: the dimension that is padded, of all keys or by key (-1 for those not named).
        left: the padding comes first, and what is too long is cut there.
        overflow: of a batch longer than every bucket: "raise" (an error), "grow" (further buckets, as far apart as the last
            two) or "truncate" to the last one.
    """

    buckets: tuple[int, ...] = ()
    pad_values: Mapping[str, float | None] = field(default_factory=lambda: dict(PAD_VALUES))
    dim: int | Mapping[str, int] = -1
    left: bool = False
    overflow: Overflow = "raise"

    def __post_init__(self) -> None:
        one_of("overflow", self.overflow, "raise", "grow", "truncate")
        object.__setattr__(self, "buckets", as_buckets(self.buckets) if self.buckets else ())
        for name, dim in self.dim.items() if isinstance(self.dim, Mapping) else [("", self.dim)]:
            integer(f"dim[{name!r}]" if name else "dim", dim, None)

    def __call__(self, batch: Any) -> Any:
        """The batch, padded."""
        if not self.buckets:
            return batch
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"buckets pad dicts of tensors (got a {type(batch).__name__}); give AsyncLoader no buckets, or a loader whose "
                "collate_fn makes dicts"
            )
        first = self.first(batch)
        if first is None:
            raise DataError(
                f"nothing says how long a batch is: of its keys ({', '.join(map(str, batch)) or 'none'}) none is a tensor with a "
                f"value in pad_value_dict={dict(self.pad_values)}; name one"
            )
        length = self._size(first, batch[first])
        bucket = self.bucket(length)
        padding = max(0, bucket - length)
        logger.debug("original length: %d, bucket length: %d, padding length: %d", length, bucket, padding)
        if bucket < length:
            words = f"overflow='truncate': a batch of {length:,} tokens was cut to {bucket:,}, the last bucket"
            count("truncated", 1, words)
        changed = {
            name: self._padded(name, tensor, length, bucket)
            for name, tensor in batch.items()
            if self._goes_along(name, tensor, batch[first], length)
        }
        if bucket == length or not changed:
            return batch
        return with_values(batch, changed)

    def first(self, batch: Mapping[str, Any]) -> str | None:
        """The key that the length of a batch goes by."""
        return next(
            (name for name, one in batch.items() if self.pad_values.get(name) is not None and _is_rows(one)), None
        )

    def bucket(self, length: int) -> int:
        """The length that a batch is padded, or cut, to.

        Raises:
            DataError: it is longer than every bucket, and `overflow` says "raise".
        """
        last = self.buckets[-1]
        if length <= last:
            return next(bucket for bucket in self.buckets if bucket >= length)
        if self.overflow == "truncate":
            return last
        if self.overflow == "grow":
            step = last - (self.buckets[-2] if len(self.buckets) > 1 else 0)
            return last + -(-(length - last) // step) * step
        raise DataError(
            f"a batch of length {length:,} is longer than every bucket, of which the last is {last:,}; add a longer bucket, "
            "truncate the samples, or say overflow='grow' or 'truncate'"
        )

    def _goes_along(self, name: str, tensor: Any, first: torch.Tensor, length: int) -> bool:
        # of its own keys brimful has a number a row, which may by chance be as many as there are tokens
        if not _is_rows(tensor) or name in OWN_KEYS or (name in self.pad_values and self.pad_values[name] is None):
            return False
        a_number_a_row = tensor.ndim == 1 and first.ndim > 1 and len(tensor) == len(first)
        return (
            not a_number_a_row and -tensor.ndim <= self._dim(name) < tensor.ndim and self._size(name, tensor) == length
        )

    def _padded(self, name: str, tensor: torch.Tensor, length: int, bucket: int) -> torch.Tensor:
        dim, value = self._dim(name), self.pad_values.get(name)
        if value is None:
            raise DataError(
                f"{name!r} has {length:,} values along dimension {dim}, as many as there are tokens, which become "
                f"{bucket:,}, but there is no value to pad it with; name one, "
                f"pad_value_dict={dict(self.pad_values) | {name: fill_of(name, {})}}, or None to leave it as it is"
            )
        if bucket <= length:
            return tensor.narrow(dim, length - bucket if self.left else 0, bucket)
        self._check_value(name, tensor, value)
        shape = list(tensor.shape)
        shape[dim] = bucket
        out = tensor.new_full(shape, value)
        out.narrow(dim, bucket - length if self.left else 0, length).copy_(tensor)
        return out

    def _check_value(self, name: str, tensor: torch.Tensor, value: float) -> None:
        """Refuses a value that a type does not hold."""
        try:
            held = tensor.new_full((1,), value).item()  # of shape () torch takes any value
        except (RuntimeError, OverflowError):
            held = None
        if held == value:
            return
        if held is not None and tensor.is_floating_point() and isfinite(held) == isfinite(value):  # rounded
            return
        raise DataError(
            f"{name!r} is of {str(tensor.dtype).removeprefix('torch.')}, which does not hold its pad value {value}; choose "
            "another in pad_value_dict"
        )

    def _dim(self, name: str) -> int:
        return self.dim.get(name, -1) if isinstance(self.dim, Mapping) else self.dim

    def _size(self, name: str, tensor: torch.Tensor) -> int:
        dim = self._dim(name)
        if not -tensor.ndim <= dim < tensor.ndim:
            raise DataError(f"dim={dim} is no dimension of {name!r}, which has {tensor.ndim}; see dim=")
        return tensor.shape[dim]


@dataclass(frozen=True)
class Bucketed(Stage[Any]):
    """Each batch padded, and counted."""

    upstream: Stage[Any]
    to_buckets: ToBuckets

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        with running(self.upstream, at, run) as batches:
            for batch, after in batches:
                yield then(batch, partial(self._padded, run)), after

    def _padded(self, run: Run, batch: Any) -> Any:
        samples, tokens = self._counted(batch)
        padded = self.to_buckets(batch)
        if run.made is not None:
            shape = self._shape(padded)
            remedy = "take fewer buckets, or batches of one size" if self.to_buckets.buckets else ""
            run.made.append(Made(samples, tokens, shape.numel(), tuple(shape), remedy))
        return padded

    def _counted(self, batch: Any) -> tuple[int, int]:
        """The samples and tokens of a batch, without fillers and copies."""
        shape = self._shape(batch)
        rows = rows_that_count(batch) if isinstance(batch, Mapping) else True
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        samples = shape[0] * rows if isinstance(rows, bool) else int(rows.sum())
        if isinstance(mask, torch.Tensor) and mask.device.type == "cpu" and mask.layout == torch.strided:
            return samples, int(torch.count_nonzero(mask[rows]))
        return samples, shape[1:].numel() * samples

    def _shape(self, batch: Any) -> torch.Size:
        """Of the tensor that a batch goes by; nothing is known of the rows of something else."""
        name = self.to_buckets.first(batch) if isinstance(batch, Mapping) else None
        return torch.Size([0]) if name is None else batch[name].shape


def _is_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and not value.is_nested and value.layout == torch.strided
