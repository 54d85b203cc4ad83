"""Counts of the items that an iterator has handed out, and of those that it left out."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from brimful.core.counters import Counters
from brimful.core.run import Run
from brimful.plan.errors import logger

ENGINE: Final = "engine:"
"""The counts of texts that an engine tokenized begin with this."""
MOST_SHAPES: Final = 1_024
"""That are told apart: nested batches have a new one each, and a compiler gave up long before."""
LEFT_OUT: Final = ("skipped", "skipped_shards", "dropped", "truncated", "alone", "dropped_tokens")
_NAMES: Final = (
    *("batches", "samples", "tokens", "slots", "fill", "padding", "num_shapes"),
    *("seconds", "seconds_waited", "seconds_to_first", "stall_share", *LEFT_OUT, "unlabelled"),
)


class Made(NamedTuple):
    """The contents of a batch, counted when it is made: later stages pass on one item for each.

    Args:
        fewer_shapes: how a user who asked for few shapes gets fewer; "" where nobody asked.
        unlabelled: samples without a label to train on.
        example: one of them, in words; "" after the first batch that has some.
        sizes: the sum of each size that it was planned by, by name; none where these are the tokens alone.
    """

    samples: int
    tokens: int
    slots: int
    shape: tuple[int, ...]
    fewer_shapes: str
    unlabelled: int = 0
    example: str = ""
    sizes: Mapping[str, int] = MappingProxyType({})


class Writer(Protocol):
    """Takes figures, as torch.utils.tensorboard.SummaryWriter does."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> Any: ...


class Stats(Mapping[str, Any]):
    """Live counts of one iterator. Each is an item and an attribute: `stats["tokens"]`, `stats.tokens`.

    These count what the consumer took: `batches`, `samples`, `tokens`, `slots` (positions of the padded tensors),
    `fill` (tokens / slots), `padding` (1 - fill) and `num_shapes` (distinct shapes of the batches; 1,024 stands for so
    many or more). A copy without weight (static shapes, fillers) counts only its slots. Slots of a `collate_fn` count
    as they are planned, unless its batch holds the length column. `unlabelled` counts samples, or pieces of packed
    rows, whose labels by token are all -100 in the batch. They train nothing, so an iterator logs one warning.

    `seconds` is the time from the first call of `next` to the end of the last one. The consumer waited for
    `seconds_waited` of these, and for `seconds_to_first` for the first item. `stall_share` is the share of waiting.
    Time between two calls belongs to the consumer, pauses included. So does the time in which `next` lets a device
    catch up that is several batches behind.

    These count what was left out on the way to the items that were taken. A window counts when its first batch is taken.
    What was counted before a state was saved is not counted again by a resume: both runs together count it once. What a
    filter of indexed data leaves out belongs to the run that began without a state. `skipped`: records left out
    (on_error="skip").
    `skipped_shards`: skipped records that also lose the rest of their shard (a damaged archive, other columns).
    `dropped`: samples left out. `truncated`: samples that were cut, also texts that `tokenize` cuts. `alone`: samples
    in a batch of their own. `dropped_tokens`: tokens of dropped and truncated samples, and of chunks that were not
    filled. Two are attributes only. `engines`: how many texts each engine of `tokenize` tokenized, by its name. `sizes`:
    the sums of the sizes that batches were planned by, by name, where these are not the tokens alone.

    If you asked for few shapes (buckets, static shapes, a multiple), and there are more than torch.compile compiles, an
    iterator logs one warning.
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    slots: int = 0
    unlabelled: int = 0
    seconds: float = 0.0
    seconds_waited: float = 0.0
    seconds_to_first: float = 0.0

    def __init__(self, counters: Counters, run: Run) -> None:
        self._counters, self._run = counters, run
        self._made: deque[Made] = deque()
        run.made = self._made
        self._shapes: set[tuple[int, ...]] = set()
        self.sizes: dict[str, int] = {}
        self._warned = False
        self._first: float | None = None
        self._logged = (0.0, 0.0)  # seconds, and those waited, up to the last `log_to`

    @property
    def stall_share(self) -> float:
        return self.seconds_waited / self.seconds if self.seconds else 0.0

    @property
    def engines(self) -> dict[str, int]:
        counts = self._counters.counts()
        return {name.removeprefix(ENGINE): counts[name] for name in sorted(counts) if name.startswith(ENGINE)}

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
            return self._counters.counts().get(name, 0)
        raise AttributeError(name)

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __repr__(self) -> str:
        figures = [f"{name}={value:,.6g}" for name, value in self.items()]
        more = [f"{name}={found}" for name in ("sizes", "engines") if (found := getattr(self, name))]
        return f"Stats({', '.join([*figures, *more])})"

    def began(self) -> None:
        """A run begins: items that an interrupted one had ready are made again."""
        self._made.clear()

    def waited(self, began: float, ended: float) -> None:
        """Counts a call of `next`, by a clock of seconds."""
        if self._first is None:
            self._first, self.seconds_to_first = began, ended - began
        behind, self._run.device_seconds = self._run.device_seconds, 0.0
        self.seconds, self.seconds_waited = ended - self._first, self.seconds_waited + ended - began - behind

    def log_to(self, writer: Writer, step: int, prefix: str = "data/") -> None:
        """Writes each figure as a scalar, to TensorBoard's SummaryWriter or any object with its `add_scalar`.

        It adds `recent_stall_share`: the share of waiting since the last call.

        >>> import brimful as bf
        >>> class Printed:
        ...     def add_scalar(self, tag, value, step):
        ...         print(tag, value, step)
        >>> with bf.from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3]}]).batch(2).iter() as it:
        ...     batch = next(it)
        ...     it.stats.log_to(Printed(), step=1)  # doctest: +ELLIPSIS
        data/batches 1 1
        data/samples 2 1
        data/tokens 3 1
        data/slots 4 1
        data/fill 0.75 1
        data/padding 0.25 1
        data/num_shapes 1 1
        data/seconds ...
        """
        seconds, waited = (now - before for now, before in zip((self.seconds, self.seconds_waited), self._logged))
        self._logged = self.seconds, self.seconds_waited
        recent = {"recent_stall_share": waited / seconds if seconds else 0.0}
        for name, value in (dict(self) | recent).items():
            writer.add_scalar(prefix + name, value, step)

    def took(self, item: Any) -> None:
        """Counts one item: a batch where one was made for it, else a sample."""
        if not self._made:
            self.samples += 1
            tokens = item.get("input_ids") if isinstance(item, Mapping) else None
            self.tokens += len(tokens) if isinstance(tokens, Sized) else 0
            return
        made = self._made.popleft()
        self.batches += 1
        self.samples += made.samples
        self.tokens += made.tokens
        self.slots += made.slots
        self.unlabelled += made.unlabelled
        if made.sizes:
            for name, size in made.sizes.items():
                self.sizes[name] = self.sizes.get(name, 0) + size
        if made.example:
            logger.warning("%s", made.example)
        if len(self._shapes) < MOST_SHAPES:
            self._shapes.add(made.shape)
        if made.fewer_shapes and not self._warned and len(self._shapes) > recompile_limit():
            self._warned = True
            logger.warning(
                "%d distinct batch shapes (rows, tokens) so far, and torch.compile runs eagerly what it would have to compile "
                "more than %d times (torch._dynamo.config.recompile_limit): %s, or raise that limit",
                len(self._shapes),
                recompile_limit(),
                made.fewer_shapes,
            )


def recompile_limit() -> int:
    """How many shapes of a function torch compiles; its default where the compiler is not loaded, which takes a second."""
    return int(getattr(sys.modules.get("torch._dynamo.config"), "recompile_limit", 8))
