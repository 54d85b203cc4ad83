"""Several independent streams, an item of each in turn."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from brimful.batching.facts import with_batches
from brimful.batching.placement import Placement
from brimful.core.counters import Counts, add_counts, apart
from brimful.core.facts import Facts, following
from brimful.core.repeat import epoch_of
from brimful.core.replay import replayed
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, stream_part
from brimful.core.threads import Channel, close_together
from brimful.plan.errors import StateError
from brimful.tables.learnt import learn_by_whole

T = TypeVar("T")


@dataclass(frozen=True)
class RoundRobin(Stage[T]):
    """Item `t` of stream `s` has the place t x `num_streams` + s in the order of all items. Those of streams that have ended are
    passed over.

    Streams that flow over the seams of their epochs have no end. One that has come to a later epoch waits for the others, as if
    it had ended, so that each stream gives its share.

    State: {"epoch", "next": the place of the next step, "streams": {number: state} of those that this process reads}.
    """

    verb = ""

    upstream: Stage[T]
    num_streams: int = not_in_state()
    ahead: int = not_in_state(1)
    flows: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        found = following(self, *inputs)
        return found if found.batches is None else with_batches(found, planned=self)

    def over_seams(self) -> RoundRobin[T]:
        """The same over streams that flow over the seams of their epochs."""
        return replace(self, flows=True)

    def start(self, epoch: int) -> State:
        starts = {str(stream): self.stream(stream).start(epoch) for stream in range(self.num_streams)}
        return {"epoch": epoch, "next": 0, "streams": starts}

    def items(self, at: State, run: Run) -> Generator[tuple[T, State], None, None]:
        entries = {stream: END if began_again(entry) else entry for stream, entry in at["streams"].items()}
        epoch, place = at["epoch"], at["next"]
        with self.reading(at, self.own_streams(at, Placement(0, 1)), run) as readers:
            while readers and any(entry != END for entry in entries.values()):
                if self.flows and all(is_ahead(entry, epoch) for entry in entries.values()):
                    epoch, place = epoch + 1, place + -place % self.num_streams
                    continue
                stream = place % self.num_streams
                place += 1
                item, entries[str(stream)], left_out = readers[stream].take(epoch if self.flows else None)
                add_counts(left_out)
                if item is not None:
                    over = all(entry == END for entry in entries.values())
                    yield item, END if over else {"epoch": epoch, "next": place, "streams": dict(entries)}

    def own_streams(self, at: State, placement: Placement) -> range:
        """The streams that a rank reads: each `data_ranks`-th, from its place in the step on.

        Raises:
            ValueError: they cannot be shared out evenly.
            StateError: the state has not all of them.
        """
        rank, ranks = placement
        if self.num_streams % ranks:
            raise ValueError(
                f"{self.num_streams:,} streams cannot be shared out evenly by {ranks:,} ranks: choose from_files(streams=...) so "
                "that every world size divides it"
            )
        own = range((at["next"] + rank) % ranks, self.num_streams, ranks)
        if missing := [str(stream) for stream in own if str(stream) not in at["streams"]]:
            raise StateError(
                f"this state has the streams {', '.join(at['streams'])} of {self.num_streams}, but rank {rank} of {ranks} also "
                f"reads {', '.join(missing)}: it is the state of one rank; join those of all with bf.merge_states"
            )
        return own

    @contextmanager
    def reading(self, at: State, own: range, run: Run, wrap: bool = False) -> Iterator[dict[int, StreamReader[T]]]:
        """Some of the streams, by number; none, where a run only finds out what must come again.

        Args:
            wrap: whether a stream that has ended begins its epoch again.
        """
        learn_by_whole(self.upstream, at["epoch"], run)
        readers: dict[int, StreamReader[T]] = {}
        if run.replay is not None:
            at["streams"] = {stream: entry for stream, entry in at["streams"].items() if int(stream) in own}
            for stream, entry in at["streams"].items():  # each by itself, as other ranks may read it with others
                begun = entry["again"] if began_again(entry) else entry
                run.replay += replayed(self.stream(int(stream)), begun, run.step)
            yield readers
            return
        try:
            for stream in own:
                entry = at["streams"][str(stream)]
                readers[stream] = StreamReader(self.stream(stream), at["epoch"], entry, wrap, self.ahead, run)
            yield readers
        finally:
            close_together([one.channel for one in readers.values() if one.channel is not None], run)

    def stream(self, number: int) -> Stage[T]:
        return stream_part(self.upstream, number, self.num_streams)


class Taken(NamedTuple, Generic[T]):
    """An item of a stream, the stream's entry in the state after it, and what was left out on the way to it. At the end None."""

    item: T | None
    entry: State
    left_out: Counts


class StreamReader(Generic[T]):
    """One stream, `ahead` of whose items a thread reads; at its end begun again where `wrap` says so.

    Args:
        entry: the stream's state, in {"again": ...} where it has begun again.
    """

    def __init__(self, stage: Stage[T], epoch: int, entry: State, wrap: bool, ahead: int, run: Run) -> None:
        self._stage, self._epoch, self._wrap, self._ahead, self._run = stage, epoch, wrap, ahead, run
        self._again = wrap and began_again(entry)
        if began_again(entry):
            entry = entry["again"] if wrap else END
        self._entry = entry
        self._open(entry)

    def take(self, epoch: int | None) -> Taken[T]:
        """The next item; at the end None, or the epoch's first one again, of which nothing is counted again.

        Args:
            epoch: of a stream that flows: None as well where it has come to a later one.
        """
        if epoch is not None and is_ahead(self._entry, epoch):
            return Taken(None, self._entry, {})
        (item, after), left_out = apart(next, self._items, (None, END))
        left_out = {} if self._again else left_out
        if item is None and self._wrap:
            if self.channel is not None:
                self.channel.close()
            self._again = True
            self._open(self._stage.start(self._epoch))
            (item, after), _ = apart(next, self._items, (None, END))
        self._entry = {"again": after} if self._again else after
        return Taken(item, self._entry, left_out)

    def _open(self, at: State) -> None:
        self.channel: Channel[tuple[T, State]] | None = (
            None if at == END else Channel(lambda: self._stage.items(at, self._run), self._ahead, "stream", self._run)
        )
        self._items: Iterator[tuple[T, State]] = iter(()) if self.channel is None else self.channel.items()


def is_ahead(entry: State, epoch: int) -> bool:
    """Whether a stream that flows has come to a later epoch."""
    return (epoch_of(entry) or 0) > epoch


def began_again(entry: State) -> bool:
    return isinstance(entry, dict) and entry.keys() == {"again"}
