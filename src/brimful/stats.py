"""What an iterator has handed out, and what it left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from brimful.errors import Tally

LEFT_OUT: Final = ("skipped", "dropped", "truncated", "alone", "dropped_tokens")


class Stats(Mapping[str, Any]):
    """Live counts of one iterator, each an item and an attribute: `stats["tokens"]`, `stats.tokens`.

    `batches`, `samples`, `tokens`, `slots` (positions of the padded tensors), `padding` (1 - tokens / slots),
    `num_shapes` (distinct shapes of the batches) and `seconds_waited` count what the consumer took. `skipped` records
    (on_error="skip"), `dropped` samples, `truncated` samples, samples left `alone` in a batch of their own and
    `dropped_tokens` are counted where they happen, which is up to a window ahead of the consumer.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._shapes: set[tuple[int, ...]] = set()
        self.batches = self.samples = self.tokens = self.slots = 0
        self.seconds_waited = 0.0

    @property
    def padding(self) -> float:
        return 1 - self.tokens / self.slots if self.slots else 0.0

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

    def took(self, item: Any) -> None:
        """Counts one item: a sample, or a batch (known by its attention_mask or segment_ids)."""
        if isinstance(item, tuple):  # an enumerated batch
            item = item[-1]
        if not isinstance(item, Mapping):
            return
        slots = item.get("attention_mask", item.get("segment_ids"))
        if not hasattr(slots, "shape"):
            self.samples += 1
            self.tokens += len(item.get("input_ids", ()))
            return
        shape = tuple(slots.shape)
        lengths = item["lengths"].numpy() if "lengths" in item else slots.sum(1).numpy()
        if "sample_weights" in item:
            lengths = lengths[item["sample_weights"].numpy() > 0]
        self._shapes.add(shape)
        self.batches += 1
        self.samples += len(lengths)
        self.tokens += int(lengths.sum())
        self.slots += shape[0] * shape[1]

    @staticmethod
    def _names() -> tuple[str, ...]:
        return ("batches", "samples", "tokens", "slots", "padding", "num_shapes", "seconds_waited", *LEFT_OUT)
