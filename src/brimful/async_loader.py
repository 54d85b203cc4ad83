"""Any loader's batches, padded to few lengths and on the device before they are asked for."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import torch

from brimful.core.above import GUARD
from brimful.core.consumed import Consumed, Snapshot, snapshot_of
from brimful.core.facts import Facts, facts_of, following
from brimful.core.iterator import ResumableIterator
from brimful.core.run import Run
from brimful.core.stage import Stage, State, not_in_state, with_inputs
from brimful.core.stats import Stats
from brimful.loader import Loader, LoaderIterator
from brimful.plan import uniform_buckets
from brimful.plan.errors import check_bool, check_mapping, logger, one_of
from brimful.tensors.bucketed import PAD_VALUES, Bucketed, Overflow, ToBuckets
from brimful.tensors.on_device import OnDevice, StaticBuffers, check_tensors, numbered

NUM_BUCKETS: Final = 8


class AsyncLoader:
    """The batches of `loader`, in the same order, on a device. Up to `prefetch` of them are made ahead of use.

    A thread takes batches from the loader, pads each to the nearest bucket that is not smaller, and begins to copy it.
    On accelerators the copies run beside the compute (pinned memory, a separate stream). Without buckets, batches may
    have any structure. Tensors in dicts, lists, tuples and dataclasses move, and all other values stay as they are. The
    loader's own batches are never changed. Each padding is logged at debug level (BRIMFUL_LOG_LEVEL=debug shows it).

    Each loop takes a new iterator of the loader. The thread ends with the loop, also after an error. If a loop is left,
    batches that were read ahead are given back. The next loop goes on, or begins anew, as it would over the loader
    itself. (A loader of another library needs `load_state_dict` for that.) `len` and all attributes that are not named
    here (`dataset`, `set_epoch`) are those of the loader.

    Args:
        loader: any iterable of batches: a DataLoader, `Batches.loader()`, a list.
        device: where tensors go: "cuda", "cuda:1", "cpu", a torch.device.
        buckets: lengths to pad to, in any order.
        max_length: instead of buckets: `num_buckets` lengths up to it, equally far apart.
        num_buckets: how many lengths `max_length` gives.
        pad_value_dict: the padding value of each key. The default is input_ids 0, attention_mask 0, labels -100. None:
            the key is never padded. The first key of a batch that has a value gives the length of the batch. Only
            tensors of that length are padded, and each needs a value here. Labels of another length (sequence to
            sequence) stay as they are. If such labels can have the length of the inputs by chance, give them None, and
            pad them in the collate_fn.
        prefetch: batches on the device or on their way, besides the one in use and one in the making. 0: no thread.
        dim: the dimension to pad, for all keys. Or a dict of dimensions by key; the others take -1.
        pad_side: the side of the padding, "right" or "left".
        overflow: the reaction to a batch that is longer than every bucket. "raise" raises an error. "grow" adds
            buckets, as far apart as the last two. "truncate" cuts the batch to the last bucket, on the side of the
            padding, and counts it.
        static_buffers: use the same device tensors for every batch of a shape, as CUDA graphs need them. A batch is
            valid until you take the next one: use it before, and copy what you keep.
    Raises:
        ValueError: both buckets and max_length are given, a bucket is below 1, or `pad_side` or `overflow` is unknown.
            (from `next`) With static_buffers: the loop holds a batch while the next one is made, as Accelerate does.
        DataError: (from `next`) a batch is longer than every bucket, or a tensor to pad has no value. The error has
            both numbers.
        TypeError: (from `next`) there are buckets, and a batch is not a dict; (`len`, `state_dict`) the loader has no
            such method.
    State: the loader's own state after the last batch that was handed out. Batches read ahead do not change it. The
        loader can resume from a state of the AsyncLoader, and the other way round.
    Price: on the host, one copy of each batch into pinned memory and one for its padding. On the device, `prefetch` + 2
        batches. brimful calls the `state_dict` of a foreign loader once a batch, and its `load_state_dict` after a loop
        that was left.
    Example:
        >>> texts = [{"input_ids": torch.tensor([[7, 8, 9]])}, {"input_ids": torch.tensor([[5]])}]
        >>> [batch["input_ids"].tolist() for batch in AsyncLoader(texts, "cpu", buckets=[2, 4])]
        [[[7, 8, 9, 0]], [[5, 0]]]
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | int | torch.device,
        *,
        buckets: Sequence[int] | None = None,
        max_length: int | None = None,
        num_buckets: int = NUM_BUCKETS,
        pad_value_dict: Mapping[str, float | None] | None = None,
        prefetch: int = 2,
        dim: int | Mapping[str, int] = -1,
        pad_side: Literal["right", "left"] = "right",
        overflow: Overflow = "raise",
        static_buffers: bool = False,
    ) -> None:
        if buckets is not None and max_length is not None:
            raise ValueError(
                f"buckets and max_length={max_length:,} both say which buckets there are; give one of them"
            )
        if max_length is None and num_buckets != NUM_BUCKETS:
            raise ValueError(f"num_buckets={num_buckets} divides max_length, of which there is none; give that too")
        if buckets is not None and not (isinstance(buckets, Iterable) and len(buckets := list(buckets))):
            raise ValueError(f"buckets must be at least 1 length, in a list (got {buckets or 'none'})")
        one_of("pad_side", pad_side, "right", "left")
        check_bool("static_buffers", static_buffers)
        if max_length is not None:
            buckets = uniform_buckets(max_length, num_buckets)
        values = (
            PAD_VALUES if pad_value_dict is None else check_mapping("pad_value_dict", pad_value_dict, str(PAD_VALUES))
        )
        to_buckets = ToBuckets(tuple(buckets or ()), values, dim, pad_side == "left", overflow)
        if type(loader).__module__.startswith("accelerate."):
            raise TypeError(
                f"a {type(loader).__name__} of Accelerate tells it where an epoch ends as it is read: ahead of use, gradient "
                "accumulation and gather_for_metrics would end it early; do not prepare the loader, share its batches out "
                "(Batches.shard().loader()), and give AsyncLoader that"
            )
        if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
            raise TypeError(f"loader must be an iterable of batches, such as a DataLoader (got {loader!r})")
        ours = isinstance(loader, Loader | AsyncLoader)
        if isinstance(loader, Loader):
            check_tensors(loader.batches.stage)
        self.loader = loader
        self.buckets: tuple[int, ...] = to_buckets.buckets
        loaded = Loaded(loader, passes_on=ours)
        buffers = StaticBuffers() if static_buffers else None
        self._loaded = loaded
        self._stage = OnDevice(Bucketed(loaded, to_buckets), numbered(device), prefetch, buffers, copies=not ours)
        self._running: ResumableIterator[Any] | None = None  # also one that was left
        self._last: ResumableIterator[Any] | None = None
        self._consumed = Consumed()
        self._left: Left | None = None

    _ending = staticmethod(sys.is_finalizing)
    """Whether the interpreter ends, asked when modules may be empty: then nobody goes on."""

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def _iterate(self, ahead: bool = False) -> Iterator[Any]:
        """A loop over it; see `Loader`."""
        return LoaderIterator(self._loop(ahead))

    def _loop(self, ahead: bool) -> Generator[Any, None, None]:
        if isinstance(self.loader, Loader | AsyncLoader):
            GUARD.loop_here().check_loader(self, followed=self._consumed.followed)
        GUARD.check_buffers(self._stage)
        if (place := self._consumed.left_at) is not None:
            self._go_back(place)
        loaded = self._loaded if self._loaded.passes_on else replace(self._loaded, begun=self._begin(), ended=[])
        self._running = self._last = running = ResumableIterator(self._around(loaded), None, (), run=Run(ahead=ahead))
        start = _snapshot_at(running.position)()
        loop = self._consumed.begin(start)
        try:
            with running:
                for number, batch in enumerate(running):
                    if not number and (began := getattr(self.loader, "began", start)) != start:
                        self._consumed.moved(began)  # the loader of ours began an epoch again
                    if self._running is running:
                        self._consumed.took(self._now)
                    yield batch
            if self._running is running:
                self._running = None
                self._consumed.end(loop, self._now)
        finally:
            self._consumed.leave(loop)
            if self._running is running and not self._ending():
                if hasattr(self.loader, "leave_at"):
                    state = self.state_dict()
                    self._running = None
                    self.loader.leave_at(state)
                elif self._stage.prefetch:
                    self._left = Left(start, _snapshot_at(loaded.start(0))(), self._now()(), bool(loaded.ended))

    def _begin(self) -> Iterator[Any]:
        """The batches of a loader that is not ours, as they are after those that were handed out: what a loop that was left had
        read ahead is given back, and then the loader goes on, or begins anew, as it does by itself."""
        batches = iter(self.loader)
        left, self._left = self._left, None
        if left is None or _same(left.stands, left.used):
            return batches
        if isinstance(left.used, int) or not hasattr(self.loader, "load_state_dict"):
            if batches is self.loader:
                logger.warning(
                    "AsyncLoader goes on with an iterator, a %s, whose last loop was left: batches that were read ahead are "
                    "lost. Give it a loader that begins anew, or one with state_dict and load_state_dict",
                    type(self.loader).__name__,
                )
        elif left.ended or not _same(_snapshot_at(self._loaded.start(0))(), left.began):
            self.loader.load_state_dict(left.used)
            iter(self.loader)  # has gone back by now
            batches = iter(self.loader)
        return batches

    def _around(self, loaded: Loaded) -> OnDevice:
        return with_inputs(self._stage, with_inputs(self._stage.inputs[0], loaded))

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # a TypeError that names it where it has none

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        of = repr(self.loader) if isinstance(self.loader, Loader | AsyncLoader) else type(self.loader).__name__
        buckets = f", buckets={self.buckets}" if self.buckets else ""
        return f"AsyncLoader({of}, {self._stage.device}{buckets})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on where this one is, after what was used."""
        loader = self.loader
        ahead = self._running is not None or self._consumed.unused is not None
        if ahead and isinstance(loader, Loader):
            loader = loader.at(self.state_dict())  # which may have been read ahead
        loaded = replace(self._loaded, loader=loader)
        return vars(self) | {
            "loader": loader,
            "_loaded": loaded,
            "_stage": self._around(loaded),
            "_running": None,
            "_last": None,
            "_consumed": Consumed(),
        }

    @property
    def stats(self) -> Stats | None:
        """Counts of the current or last iteration. None before the first one.

        Tokens are those that the attention_mask shows. A loader of brimful counts the samples that it left out in its
        own `stats`.
        Example:
            >>> import brimful as bf
            >>> loader = AsyncLoader(bf.from_sequence([[1], [2], [3]]).batch(1).loader(), "cpu")

            >>> loader.stats is None, len(list(loader)), loader.stats.tokens
            (True, 3, 3)
        """
        return None if self._last is None else self._last.stats

    def state_dict(self) -> dict[str, Any]:
        """The loader's own state after the last batch that was handed out.

        Raises:
            TypeError: the loader has none.
        Example:
            >>> import brimful as bf
            >>> loader = AsyncLoader(bf.from_sequence([[1], [2], [3]]).batch(1).loader(), "cpu")

            >>> batches = iter(loader)
            >>> next(batches)["input_ids"].tolist()
            [[1]]
            >>> resumed = bf.from_sequence([[1], [2], [3]]).batch(1).loader()
            >>> resumed.load_state_dict(loader.state_dict())
            >>> [batch["input_ids"].tolist() for batch in resumed]
            [[[2]], [[3]]]
        """
        state = self._snapshot()()
        if isinstance(state, int):
            raise self._stateless()
        return cast(dict[str, Any], state)

    def _snapshot(self) -> Snapshot:
        """Of what `state_dict` returns now; a number of batches where the loader has no state."""
        return self._consumed.snapshot(self._now)

    def _now(self) -> Snapshot:
        """After the last batch that was handed out."""
        return _snapshot_at(self._loaded.start(0) if self._running is None else self._running.position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration continue from a state. It may be a state of the loader itself.

        Example:
            >>> import brimful as bf
            >>> loader = AsyncLoader(bf.from_sequence([[1], [2], [3]]).batch(1).loader(), "cpu")

            >>> start = loader.state_dict()
            >>> [batch["input_ids"].item() for batch in loader]
            [1, 2, 3]
            >>> loader.load_state_dict(start)
            >>> next(iter(loader))["input_ids"].item()
            1
        """
        if not hasattr(self.loader, "load_state_dict"):
            raise self._stateless()
        self._stop()
        self.loader.load_state_dict(state_dict)
        self._consumed.moved(copy.deepcopy(state_dict))

    def follow(self, used: Callable[[], int] | None) -> None:
        """Makes the state follow the batches that were used, as `Loader.follow` does.

        Raises:
            TypeError: the loader has no state.
        Example:
            >>> import brimful as bf
            >>> loader = AsyncLoader(bf.from_sequence([[1], [2], [3]]).batch(1).loader(), "cpu")

            >>> used = 0
            >>> loader.follow(lambda: used)
            >>> batches = iter(loader)
            >>> ahead = next(batches), next(batches)
            >>> used = 1
            >>> resumed = bf.from_sequence([[1], [2], [3]]).batch(1).loader()
            >>> resumed.load_state_dict(loader.state_dict())
            >>> [batch["input_ids"].item() for batch in resumed]
            [2, 3]
            >>> batches.close()
        """
        if isinstance(self._now()(), int):
            raise self._stateless()
        if used is not None:
            self._consumed.follow(used, self._now)
        elif (place := self._consumed.unfollow()) is not None:
            self._go_back(place)

    def _go_back(self, state: Any) -> None:
        """To the batches that were handed out and not used."""
        self._stop()
        if hasattr(self.loader, "leave_at"):
            self.loader.leave_at(state)
        else:
            self.loader.load_state_dict(state)  # type: ignore[attr-defined]  # `follow` asked for its state

    def _stop(self) -> None:
        """Ends the loop that runs, which is sent elsewhere."""
        running, self._running, self._left = self._running, None, None
        if running is not None:
            running.close()

    def _stateless(self) -> TypeError:
        return TypeError(
            f"a {type(self.loader).__name__} has no state; give AsyncLoader one with state_dict and load_state_dict, such as "
            "Batches.loader() or torchdata's StatefulDataLoader"
        )


class Left(NamedTuple):
    """A loop that was left: where the loader began it, stands since, and would stand had nothing been read ahead; whether it was
    read to its end."""

    began: State
    stands: State
    used: State
    ended: bool


@dataclass(frozen=True)
class Loaded(Stage[Any]):
    """The batches of a loader from where it stands.

    `passes_on`: the loader is one of ours, which hands on what the consumer's thread is to make. `begun`: its iterator, where
    there is one already. `ended`: gets an entry at its end.

    State: a snapshot of the loader's own, where it has one: then it is sent to a place by its own `load_state_dict` before. Else
    the number of batches that it gave; so many are passed over.
    """

    loader: Iterable[Any] = not_in_state()
    passes_on: bool = not_in_state(False)
    begun: Iterator[Any] | None = not_in_state(None)
    ended: list[None] | None = not_in_state(None)

    def facts(self, *inputs: Facts) -> Facts:
        known = facts_of(stage_of(self.loader)) if self.passes_on else Facts()
        return following(self, static_buffers=known.static_buffers, streams=known.streams, batches=known.batches)

    def start(self, epoch: int) -> State:
        try:
            return self._state(0)
        except (AttributeError, NotImplementedError, TypeError):  # an adapter around what has no state
            return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        batches = self._begun(run) if self.begun is None else self.begun
        close = getattr(batches, "close", None)
        stateless = isinstance(at, int)
        given = at if stateless else 0
        try:
            for number, batch in enumerate(islice(batches, given, None), given + 1):
                yield batch, number if stateless else self._state(number)
            if self.ended is not None:
                self.ended.append(None)
        finally:
            if close is not None:
                close()

    def _begun(self, run: Run) -> Iterator[Any]:
        if self.passes_on:
            return self.loader._iterate(run.ahead)  # type: ignore[attr-defined,no-any-return]  # as the loaders of ours have it
        return iter(self.loader)

    def _state(self, number: int) -> State:
        if self.passes_on:
            return self.loader._snapshot()  # type: ignore[attr-defined]  # as the loaders of ours have it
        state_dict = getattr(self.loader, "state_dict", None)
        return number if state_dict is None else snapshot_of(copy.deepcopy(state_dict()))


def _snapshot_at(position: State) -> Snapshot:
    """Of a position of `Loaded`: the loader's own, or a number of batches."""
    return snapshot_of(position) if isinstance(position, int) else cast(Snapshot, position)


def _same(one: Any, other: Any) -> bool:
    """Whether two states are equal; tensors and arrays are, value by value."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def stage_of(given: Any) -> Stage[Any]:
    """What makes the batches of a loader of ours, or of Batches."""
    stage: Stage[Any] = given._stage if isinstance(given, AsyncLoader) else getattr(given, "batches", given).stage
    return stage
