"""Stages on items of any kind, batches above all: a user's function, a number, the first n."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from brimful.core.ahead import then
from brimful.core.facts import Facts, facts_of, following
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.plan.errors import StageError, check_count, name_of
from brimful.tables.texts import why_missing


@dataclass(frozen=True)
class MapItems(Stage[Any]):
    """`fn(item)` in place of each item; the state is passed on."""

    verb = "map"

    upstream: Stage[Any]
    fn: Callable[[Any], Any]

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, seam="passes")

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        with running(self.upstream, at, run) as items:
            for item, after in items:
                yield then(item, self._mapped), after

    def _mapped(self, item: Any) -> Any:
        try:
            return self.fn(item)
        except Exception as error:
            left_out = facts_of(self).batches.left_out
            message = f"map({name_of(self.fn)}) failed on a batch: {type(error).__name__}: {error}{why_missing(error, left_out)}"
            raise StageError(message) from error


@dataclass(frozen=True)
class EnumerateItems(Stage[Any]):
    """(number, item) pairs, from 0. State: {"items": upstream's, "number": the next}."""

    verb = "enumerate"

    upstream: Stage[Any]

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, *inputs, carries=False)

    def start(self, epoch: int) -> State:
        return {"items": self.upstream.start(epoch), "number": 0}

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        number = at["number"]
        with running(self.upstream, at["items"], run) as items:
            for item, after in items:
                pair = then(item, partial(_pair, number))
                number += 1
                yield pair, END if after == END else {"items": after, "number": number}


def _pair(number: int, item: Any) -> tuple[int, Any]:
    return number, item


@dataclass(frozen=True)
class TakeItems(Stage[Any]):
    """The first `n` items. State: {"items": upstream's, "taken"}."""

    verb = "take"

    upstream: Stage[Any]
    n: int

    def __post_init__(self) -> None:
        check_count(self, "n", 0, "batches")

    def facts(self, *inputs: Facts) -> Facts:
        def num_items(most: int | None) -> int | None:
            return inputs[0].num_items(self.n if most is None else min(self.n, most))

        return following(self, *inputs, num_items=num_items, ends=lambda: True, carries=False)

    def start(self, epoch: int) -> State:
        return {"items": self.upstream.start(epoch), "taken": 0} if self.n else END

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        taken = at["taken"]
        with running(self.upstream, at["items"], run) as items:
            for item, after in items:
                taken += 1
                yield item, END if taken == self.n or after == END else {"items": after, "taken": taken}
                if taken == self.n:
                    return
