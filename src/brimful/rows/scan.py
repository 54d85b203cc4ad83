"""A user's function on each sample and what it carries from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from brimful.core.stage import END, State, refuse_streams
from brimful.plan.errors import StageError, name_of
from brimful.tables.blocks import Block, as_dict, samples
from brimful.tables.origins import where
from brimful.tables.parallel import CallResult
from brimful.tables.resize import Rebatch
from brimful.tables.typed import Fitted, SampleResults, TypedFunction, block_of_results, types_of_results


@dataclass(frozen=True)
class Scan(TypedFunction[SampleResults]):
    """`fn(carry, sample)` gives (carry, sample): the sample takes the place of that one, the carry goes to the next call.

    The carry is plain JSON, copied after each call and for each state: what a function does to it changes neither.

    State: [[upstream's state, the carry], the types as text].
    """

    fn: Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]
    initial: Any

    def __post_init__(self) -> None:
        refuse_streams(self.upstream, "scan", "follows")
        try:
            object.__setattr__(self, "initial", _plain(self.initial, "initial"))
        except _NotPlainError as error:
            raise TypeError(f"scan carries plain JSON from row to row: {error}") from None

    def begin(self, epoch: int) -> State:
        return [Rebatch(self.upstream).start(epoch), self.initial]

    def calls(
        self, at: State, schema: Callable[[], pa.Schema | None]
    ) -> Generator[CallResult[SampleResults | Fitted], None, None]:
        before, carry = at[0], _plain(at[1], "carry")
        with closing(Rebatch(self.upstream).items(before)) as items:
            for block, after in items:
                given = []
                for row, sample in enumerate(samples(block)):
                    carry, made = self._called(block, row, carry, sample)
                    given.append(as_dict(made))
                results = SampleResults(given, np.arange(len(given))) if given else None
                yield CallResult(block, results, True, END if after == END else [after, _plain(carry, "carry")])

    def types_of(self, given: Sequence[SampleResults]) -> tuple[pa.Schema, bool]:
        return types_of_results(given)

    def block_of(self, block: Block, given: SampleResults, schema: pa.Schema) -> Block:
        return block_of_results(f"scan({name_of(self.fn)})", block, given, schema, "raise")

    def _called(self, block: Block, row: int, carry: Any, sample: dict[str, Any]) -> tuple[Any, Any]:
        try:
            pair = self.fn(carry, sample)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise _NotPlainError(f"it must return (carry, sample) (got {type(pair).__name__})")
            return _plain(pair[0], "carry"), pair[1]
        except Exception as error:
            words = str(error) if isinstance(error, _NotPlainError) else f"{type(error).__name__}: {error}"
            raise StageError(f"scan({name_of(self.fn)}) failed at {where(block, row)}: {words}") from error


class _NotPlainError(Exception):
    """A value that a state could not hold, or would not give back as it was."""


def _plain(value: Any, name: str) -> Any:
    """A copy of plain JSON, which is the same once it was written down and read again."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and isfinite(value)):
        return value
    if kind is list:
        return [_plain(inner, f"{name}[{number}]") for number, inner in enumerate(value)]
    if kind is dict:
        if odd := [key for key in value if type(key) is not str]:
            raise _NotPlainError(f"the keys of {name} must be strings (got {odd[0]!r})")
        return {key: _plain(inner, f"{name}[{key!r}]") for key, inner in value.items()}
    what = str(value) if kind is float else f"a {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " ")
    raise _NotPlainError(
        f"{name} must be plain JSON: None, bool, int, finite float, str, or lists and dicts of these (got {what}); convert it"
    )
