"""Several independent streams, an item of each in turn; data-parallel ranks share them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar, cast

from brimful.batching.batch import Uneven, filler
from brimful.batching.distributed import Rank, in_words, resolve, say_split_groups
from brimful.batching.facts import with_batches
from brimful.batching.rendezvous import AHEAD_ROUNDS, Rendezvous, store_of, tell_refused
from brimful.core.counters import Counts, add_counts, apart, with_counts
from brimful.core.facts import Facts, following, shown
from brimful.core.header import header_of
from brimful.core.repeat import epoch_of
from brimful.core.replay import replayed
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running, stream_part
from brimful.core.threads import Channel, close_together
from brimful.plan.errors import DataError, StateError
from brimful.tables.learnt import learn_by_whole

T = TypeVar("T")


@dataclass(frozen=True)
class RoundRobin(Stage[T]):
    """Item `t` of stream `s` has the place t x `streams` + s in the order of all items, whatever the world size.

    Each step has `world_size` items, which follow one another in that order, and a rank takes the one at `rank`. So it reads
    every world_size-th stream and no other. Streams have unequally many items. A single process passes over those that
    have ended. Several ranks stay in step as `uneven` says: "pad" (a filler in the place of each item that is not there,
    until all streams have ended), "wrap" (the stream begins its epoch again, until all have ended once), "drop" (all end
    with the first that ends), "raise". They agree on it by a `Rendezvous`, some rounds ahead.

    Streams that flow over the seams of their epochs have no end. One that has come to a later epoch waits for the others, as if
    it had ended, so that each stream gives its share; with "drop" and "wrap" none of several ranks' waits.

    State: {"epoch", "next": the place of the next step, "streams": {number: state} of those that this rank reads}; the
    union of all ranks' is good for every world size that divides `streams`.
    """

    verb = ""

    upstream: Stage[T]
    num_streams: int = not_in_state()
    is_sharded: bool = not_in_state(False)
    rank: int | None = not_in_state(None)
    world_size: int | None = not_in_state(None)
    process_group: Any = not_in_state(None)
    uneven: Uneven = not_in_state("pad")
    timeout_seconds: float = not_in_state(600.0)
    ahead: int = not_in_state(1)
    flows: bool = not_in_state(False)

    def facts(self, *inputs: Facts) -> Facts:
        found = following(self, *inputs)
        if found.batches is None:
            return found
        shared = f", {in_words(self.rank, self.world_size)}" if self.is_sharded else ""
        return with_batches(
            found,
            planned=self,
            planned_by=found.batches.planned_by + shared,
            is_sharded=self.is_sharded,
            num_ranks=lambda: self.num_ranks,
            uneven=self.uneven if self.is_sharded else "",
        )

    def over_seams(self) -> RoundRobin[T]:
        """The same over streams that flow over the seams of their epochs."""
        return replace(self, flows=True)

    def start(self, epoch: int) -> State:
        starts = {str(stream): self._stream(stream).start(epoch) for stream in range(self.num_streams)}
        return {"epoch": epoch, "next": 0, "streams": starts}

    def items(self, at: State, run: Run) -> Generator[tuple[T, State], None, None]:
        rank, world_size = resolve(self.rank, self.world_size, self.process_group) if self.is_sharded else Rank(0, 1)
        if self.num_streams % world_size:
            raise ValueError(
                f"{self.num_streams:,} streams cannot be shared out evenly by {world_size:,} ranks: choose "
                "from_files(streams=...) so that every world size divides it"
            )
        own = range((at["next"] + rank) % world_size, self.num_streams, world_size)
        if missing := [str(stream) for stream in own if str(stream) not in at["streams"]]:
            with told(self):
                raise StateError(
                    f"this state has the streams {', '.join(at['streams'])} of {self.num_streams}, but rank {rank} of "
                    f"{world_size} also reads {', '.join(missing)}: it is the state of one rank; join those of all with "
                    "bf.merge_states"
                )
        learn_by_whole(self.upstream, at["epoch"], run)
        if run.replay is not None:
            at["streams"] = {stream: entry for stream, entry in at["streams"].items() if int(stream) in own}
            for stream, entry in at["streams"].items():  # each by itself, as other ranks may read it with others
                begun = entry["again"] if began_again(entry) else entry
                run.replay += replayed(self._stream(int(stream)), begun, run.step)
            return
        say_split_groups(self.upstream.settings(), world_size)
        wrap = world_size > 1 and self.uneven == "wrap" and not self.flows
        readers: dict[int, StreamReader[T]] = {}
        try:
            for stream in own:
                entry = at["streams"][str(stream)]
                readers[stream] = StreamReader(self._stream(stream), at["epoch"], entry, wrap, self.ahead, run)
            if world_size == 1:
                yield from self._alone(at, readers)
            else:
                yield from self._together(at, readers, Rank(rank, world_size), run)
        finally:
            close_together([one.channel for one in readers.values() if one.channel is not None], run)

    @property
    def num_ranks(self) -> int:
        return resolve(self.rank, self.world_size, self.process_group).world_size if self.is_sharded else 1

    def tell(self, error: BaseException | None) -> None:
        """Tells the other ranks why this one does not come to their run; None: it will come."""
        with suppress(Exception):  # what failed here is what the user wants to know
            rank = resolve(self.rank, self.world_size, self.process_group)
            store = store_of(self.process_group) if self.is_sharded and rank.world_size > 1 else None
            if store is not None:
                tell_refused(store, *rank, error)

    def _stream(self, stream: int) -> Stage[T]:
        return stream_part(self.upstream, stream, self.num_streams)

    def _alone(self, at: State, readers: dict[int, StreamReader[T]]) -> Generator[tuple[T, State], None, None]:
        entries = {stream: END if began_again(entry) else entry for stream, entry in at["streams"].items()}
        epoch, place = at["epoch"], at["next"]
        while any(entry != END for entry in entries.values()):
            if self.flows and all(is_ahead(entry, epoch) for entry in entries.values()):
                epoch, place = epoch + 1, place + -place % self.num_streams
                continue
            stream = place % self.num_streams
            place += 1
            item, entries[str(stream)], left_out = readers[stream].take(epoch if self.flows else None)
            add_counts(left_out)
            if item is not None:
                over = all(entry == END for entry in entries.values())
                state = {"epoch": epoch, "next": place, "streams": dict(entries)}
                yield self._weighed(item, 1), END if over else state

    def _together(
        self, at: State, readers: dict[int, StreamReader[T]], rank: Rank, run: Run
    ) -> Generator[tuple[T, State], None, None]:
        store = store_of(self.process_group)
        if store is None:
            raise ValueError(
                f"{rank.world_size} ranks that read streams must agree on where an epoch ends: initialise torch.distributed "
                "before iterating, or give shard(process_group=...) a torch.distributed.Store that they share"
            )
        name = shown(self)
        header, begins = {"of": header_of(self)} | {"uneven": self.uneven}, {"epoch": at["epoch"], "next": at["next"]}
        rendezvous = Rendezvous(store, *rank, name, header, begins, self.timeout_seconds, run)
        rounds = Channel(lambda: self._rounds(at["epoch"], at["next"], readers, rendezvous), 1, "streams", run)
        with closing(rounds), closing(rendezvous):
            pending = rounds.items(rendezvous.waiting)
            held: dict[int, Taken[T]] = {}  # what came of streams, by their places
            entries = {str(stream): at["streams"][str(stream)] for stream in readers}
            epoch, place = at["epoch"], at["next"]
            end = place - place % self.num_streams  # of the rounds that go on, as far as they are known
            spare: Any = None  # what fillers are made of: the same one whether the run began here or was resumed
            over = False
            while True:
                mine = place + rank.rank
                while not over and end < place + rank.world_size:
                    taken = next(pending, None)
                    rendezvous.waiting(0.0)
                    over = taken is None
                    if taken is not None:
                        epoch, round_ = taken
                        held |= {end + stream: one for stream, one in round_.items()}
                        end += self.num_streams
                if place >= end or (self.uneven == "drop" and end < place + rank.world_size):
                    return
                stream = str(mine % self.num_streams)
                found, entries[stream], left_out = held.pop(mine, Taken(None, entries[stream], {}))
                add_counts(left_out)
                place += rank.world_size
                if found is not None:
                    at_first = at["next"] == 0 and not self.flows  # else from here it is not known where the run began
                    spare = found if spare is None and at_first else spare
                    item = found
                else:
                    spare = (
                        self._any_item(0 if self.flows else at["epoch"], [*readers], run) if spare is None else spare
                    )
                    item = cast(T, filler(spare))
                yield self._weighed(item, rank.world_size), {"epoch": epoch, "next": place, "streams": dict(entries)}

    def _rounds(
        self, epoch: int, place: int, readers: dict[int, StreamReader[T]], rendezvous: Rendezvous
    ) -> Generator[tuple[int, dict[int, Taken[T]]], None, None]:
        """The epoch and this rank's part of each round that goes on: by stream, from the place of the next step on."""
        first, done = divmod(place, self.num_streams)
        waits = self.flows and self.uneven not in ("drop", "wrap")
        held: deque[tuple[int, int, dict[int, Taken[T]]]] = deque()
        failure: Exception | None = None
        over = False
        try:
            rendezvous.begin()
            for number in count(first):
                if failure is None:
                    try:
                        still = [stream for stream in readers if number > first or stream >= done]
                        taken = {stream: readers[stream].take(epoch if waits else None) for stream in still}
                        given = len(readers) - len(still)  # before the state, in the middle of the first round
                        firsts = (item is not None and not began_again(entry) for item, entry, _ in taken.values())
                        rendezvous.post(number, given + sum(firsts))
                        held.append((number, epoch, taken))
                    except Exception as error:  # raised once the rounds before it are out
                        failure = error
                        rendezvous.fail(error)
                if failure is None and len(held) <= AHEAD_ROUNDS:
                    continue
                if not held:
                    assert failure is not None
                    raise failure
                settled, posted, round_ = held.popleft()
                try:
                    total = rendezvous.outcome(settled)
                except Exception as error:
                    if failure is not None:
                        raise failure from error
                    raise
                over = total == 0 or (total < self.num_streams and self.uneven in ("drop", "raise"))
                if over and total and self.uneven == "raise":
                    raise DataError(
                        f"{self.num_streams - total} of {self.num_streams} streams have ended before the others; choose "
                        "uneven='pad', 'drop' or 'wrap'"
                    )
                if over and not self.flows:
                    return
                if over:  # so are the rounds that all have posted meanwhile
                    epoch = posted + 1
                else:
                    yield posted, round_
        finally:
            rendezvous.leave(over)

    def _any_item(self, epoch: int, own: list[int], run: Run) -> T:
        """The first item of the epoch of some stream, one of this rank's where they have one."""
        for stream in sorted(range(self.num_streams), key=lambda stream: stream not in own):
            stage = self._stream(stream)
            with running(stage, stage.start(epoch), run) as items:
                for (item, _), _ in with_counts(items):  # counted where it comes in its turn
                    return item
        raise AssertionError("an epoch that goes on has an item")

    def _weighed(self, item: T, num_ranks: int) -> T:
        """A batch as one of a rank; a filler keeps its weight."""
        if not self.is_sharded:
            return item
        batch = cast(Any, item)
        weight = 1.0 if batch.weight is None else batch.weight
        return cast(T, replace(batch, weight=weight, num_ranks=num_ranks))


@contextmanager
def told(stage: Stage[Any]) -> Iterator[None]:
    """Tells the other ranks that share the streams of a stage, where an error inside keeps this one from their run."""
    try:
        yield
    except Exception as error:
        _tell(stage, error)
        raise
    _tell(stage, None)


def _tell(stage: Stage[Any], error: BaseException | None) -> None:
    if isinstance(stage, RoundRobin):
        stage.tell(error)
    for one in stage.inputs:
        _tell(one, error)


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
