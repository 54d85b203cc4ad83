"""What an iterator has handed out, and what it left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from brimful.core.errors import Tally, logger

LEFT_OUT: Final = ("skipped", "skipped_shards", "dropped", "truncated", "alone", "dropped_tokens")


class Made(NamedTuple):
    """What a batch holds, counted when it is made: stages after that pass on one item for each."""

    samples: int
    tokens: int
    slots: int
    shape: tuple[int, ...]
    few_shapes: bool


class Stats(Mapping[str, Any]):
    """Live counts of one iterator, each an item and an attribute: `stats["tokens"]`, `stats.tokens`.

    `batches`, `samples`, `tokens`, `slots` (positions of the padded tensors), `fill` (tokens / slots), `padding`
    (1 - fill), `num_shapes` (distinct shapes of the batches) and `seconds_waited` count what the consumer took: of a copy
    without weight (static shapes, fillers) the slots alone. `skipped` records (on_error="skip"), of these such as take along
    all that follows in their shard `skipped_shards` (a damaged archive, other columns), `dropped` samples,
    `truncated` samples, samples left `alone` in a batch of their own and `dropped_tokens` are counted where they happen,
    which is up to a window ahead of the consumer.

    Where few shapes were asked for (buckets, static shapes, a multiple), more than torch.compile compiles are logged as a
    warning, once.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._shapes: set[tuple[int, ...]] = set()
        self._warned = False
        self.batches = self.samples = self.tokens = self.slots = 0
        self.seconds_waited = 0.0

    @property
    def fill(self) -> float:
        return self.tokens / self.slots if self.slots else 1.0

    @property
    def padding(self) -> float:
        return 1 - self.fill

    @property
    def num_shapes(self) -> int:
        return len(self._shapes)

    def __getattr__(self, name: str) -> int:
        if name in LEFT_OUT:
            return self._tally.counts().get(name, 0)
        raise AttributeError(name)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"Stats({', '.join(f'{name}={value:,.6g}' for name, value in self.items())})"

    def began(self) -> None:
        """A run begins: what an interrupted one had ready is made again."""
        self._tally.made.clear()

    def took(self, item: Any) -> None:
        """Counts one item: a batch where one was made for it, else a sample."""
        if not self._tally.made:
            self.samples += 1
            self.tokens += len(item.get("input_ids", ())) if isinstance(item, Mapping) else 0
            return
        made: Made = self._tally.made.popleft()
        self.batches += 1
        self.samples += made.samples
        self.tokens += made.tokens
        self.slots += made.slots
        self._shapes.add(made.shape)
        if made.few_shapes and not self._warned and len(self._shapes) > _recompile_limit():
            self._warned = True
            logger.warning(
                "%d distinct batch shapes so far, and torch.compile runs eagerly what it would have to compile more than "
                "%d times (torch._dynamo.config.recompile_limit): take fewer buckets, StaticShapes, or raise that limit",
                len(self._shapes),
                _recompile_limit(),
            )

    @staticmethod
    def _names() -> tuple[str, ...]:
        return ("batches", "samples", "tokens", "slots", "fill", "padding", "num_shapes", "seconds_waited", *LEFT_OUT)


def _recompile_limit() -> int:
    """How many shapes of a function torch compiles; its default where the compiler is not loaded, which takes a second."""
    return int(getattr(sys.modules.get("torch._dynamo.config"), "recompile_limit", 8))
