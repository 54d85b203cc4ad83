"""A part of the samples: `take`, `skip` and `stride`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from brimful.index.indexed import SPAN, Indexed, Reordered, RowNumbers
from brimful.plan.errors import integer
from brimful.rows.stride import checked


@dataclass(frozen=True)
class Slice(Reordered):
    """The samples at the places `range(first, last, step)`; `last` None: to the end.

    Args:
        method: what the user wrote.
        parameters: what the user gave it.
        words: what is shown for it; None: the method.
    Price: nothing for what `skip` leaves out; up to 100 ns for each sample that `stride` passes over.
    """

    method: Literal["take", "skip", "stride"]
    parameters: dict[str, int] = field(compare=False)
    first: int
    last: int | None
    step: int
    words: str | None = field(default=None, compare=False)

    @classmethod
    def between(cls, upstream: Indexed, first: int, last: int, step: int) -> Slice:
        """The samples of `dataset[first:last:step]`, shown as that."""
        words = f"[{first}:{last}]" if step == 1 else f"[{first}:{last}:{step}]"
        taken = replace(cls.take(upstream, last), words="")
        return replace(cls.stride(replace(cls.skip(taken, first), words=""), step, 0), words=words)

    @classmethod
    def take(cls, upstream: Indexed, n: int) -> Slice:
        """The first `n` samples."""
        n = integer("n", n, 0, "samples")
        return cls(upstream, "take", {"n": n}, 0, n, 1)

    @classmethod
    def skip(cls, upstream: Indexed, n: int) -> Slice:
        """The samples after the first `n`."""
        n = integer("n", n, 0, "samples")
        return cls(upstream, "skip", {"n": n}, n, None, 1)

    @classmethod
    def stride(cls, upstream: Indexed, interval: int, offset: int) -> Slice:
        """Sample i where i mod `interval` == `offset`."""
        interval, offset = checked(interval, offset)
        return cls(upstream, "stride", {"interval": interval, "offset": offset}, offset, None, interval)

    @property
    def verb(self) -> str:
        return self.method

    @property
    def label(self) -> str:
        return self.method if self.words is None else self.words

    def settings(self) -> dict[str, int]:
        return self.parameters

    @property
    def endless(self) -> bool:
        return self.last is None and self.upstream.endless

    @property
    def count(self) -> int | None:
        ends = [end for end in (self.upstream.count, self.last) if end is not None]
        return len(range(self.first, min(ends), self.step)) if ends else None

    def order(self, epoch: int) -> RowNumbers:
        rows, origin, step = self.upstream.order(epoch), self.first, self.step
        some = max(1, SPAN // step)  # at a time, so that memory does not grow with the step

        def part(first: int, last: int) -> NDArray[np.int64]:
            pieces = [np.zeros(0, dtype=np.int64)]
            for begin in range(first, last, some):
                start, end = (origin + place * step for place in (begin, min(begin + some, last) - 1))
                pieces.append(rows(start, end + 1)[::step])
            return np.concatenate(pieces)

        return part
