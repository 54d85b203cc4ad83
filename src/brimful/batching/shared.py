"""The batches of one data-parallel rank: of indexed data, chosen while they are integers, or of its own streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from typing import Any, TypeAlias, cast

import numpy as np

from brimful.batching.batch import Batch, NumLabels, OrderedBatches, PlannedWindow, Uneven, fetch_only_own_rows, filler
from brimful.batching.facts import batch_facts, with_batches
from brimful.batching.labels import counted, step_labels
from brimful.batching.placement import Placement, Ranks, say_split_groups
from brimful.batching.planning import Batched, PlannedWindows
from brimful.batching.rendezvous import AHEAD_ROUNDS, Rendezvous, store_of, tell_refused
from brimful.batching.round_robin import RoundRobin, StreamReader, Taken, began_again
from brimful.batching.steps import Steps
from brimful.core.counters import add_counts, with_counts
from brimful.core.facts import Facts, facts_of, following, shown
from brimful.core.header import header_of
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running, with_inputs
from brimful.core.threads import Channel
from brimful.plan.errors import DataError

_Place: TypeAlias = tuple[PlannedWindow, int]
"""A batch by its plan and its place there: a `Batch` is made of those alone that are handed on."""


@dataclass(frozen=True)
class Shared(Stage[Batch]):
    """The batch of this rank in each step, which has one for each rank; all ranks have the same number of steps. The order of all
    batches does not depend on how many ranks there are.

    `uneven` says what becomes of a step with too few batches: "pad" gives the ranks without one a filler (one real row again,
    weight 0), "drop" leaves the step out, "wrap" takes the first ones again, "raise" is an error.

    - Of indexed data each rank plans all batches, and locates its own samples alone. Where the index knows the labels of its
      rows, a batch has those of its whole step, on all ranks. The last step of an epoch may have too few batches: "wrap" takes
      the epoch's first ones. The state is that after the whole step: it is the same on all ranks, and fits any other number.
    - Of streams in turn a rank reads each `data_ranks`-th and no other. They have unequally many batches: "pad" puts a filler
      in the place of each one that is not there, until all streams have ended; with "wrap" a stream begins its epoch again,
      until all have ended once; with "drop" all end with the first that ends. The ranks agree on it by a `Rendezvous`, some
      rounds ahead. Streams that flow over the seams of their epochs wait for those in an earlier one, but with "drop" and
      "wrap". The state is that of the rank's own streams; all ranks' together fit every number that divides the streams.
    """

    verb = ""
    label = "shard"

    upstream: PlannedWindows | RoundRobin[Batch]
    ranks: Ranks = not_in_state(Ranks())
    uneven: Uneven = not_in_state("pad")
    timeout_seconds: float = not_in_state(600.0)

    def facts(self, *inputs: Facts) -> Facts:
        one = inputs[0]

        def num_items(most: int | None) -> int | None:
            batches = one.num_items(None if most is None else most * self.num_ranks)
            return None if batches is None else self.steps_of(batches)

        found = following(self, one, seam="passes", num_items=num_items)
        return with_batches(
            found,
            planned=self,
            planned_by=f"{batch_facts(self.upstream).planned_by}, {self.ranks}",
            is_sharded=True,
            num_ranks=lambda: self.num_ranks,
            uneven=self.uneven,
        )

    def settings(self) -> dict[str, Any]:
        """None: a rank's state is that of all, and of one process alone."""
        return {}

    @property
    def num_ranks(self) -> int:
        return self.ranks.here.data_ranks

    def steps_of(self, num_batches: int) -> int:
        """How many batches this rank has of an epoch of `num_batches`."""
        return num_batches // self.num_ranks if self.uneven == "drop" else -(-num_batches // self.num_ranks)

    def items(self, at: State, run: Run) -> Generator[tuple[Batch, State], None, None]:
        placement = self.ranks.here
        if isinstance(self.upstream, RoundRobin):
            yield from self._of_streams(self.upstream, at, placement, run)
            return
        known = facts_of(self.upstream)
        ranks = placement.data_ranks
        if ranks > 1 and known.streamed_by and not known.from_index:  # ranks that share an index wait for nobody
            raise ValueError(
                f"data that are streamed (by {known.streamed_by}) cannot be divided among {ranks} ranks: each rank would "
                "read and tokenize all of them. Use from_files(streams=...), or write a token store with to_store(path). "
                "Batches of indexed data, such as a store, can be divided, and of mixtures of them: leave out stream(), and call "
                "functions and tokenizers before to_store(path)"
            )
        say_split_groups(self.upstream.settings(), ranks)
        yield from self._of_index(self.upstream, at, placement, run)

    # -- indexed data ----------------------------------------------------------------------------------------------------

    def _of_index(
        self, windows: PlannedWindows, at: State, placement: Placement, run: Run
    ) -> Generator[tuple[Batch, State], None, None]:
        rank, ranks = placement
        narrow = facts_of(windows).one_by_one
        taken: list[NumLabels | None] = []  # the labels of the batches of the step that is open
        mine: _Place | None = None  # this rank's batch of it
        latest: tuple[OrderedBatches, int] | None = None

        def shared_out(own: _Place, weight: float) -> Batch:
            batch = Batch(*own, weight=weight, num_ranks=ranks, num_labels=step_labels(taken))
            return fetch_only_own_rows(batch) if narrow else batch

        with running(windows, at, run) as items:
            for batches, _ in items:
                total = len(batches)
                labels = batches.of_each(counted(batches.planned, windows.labels_follow, rows=ranks > 1))
                own = batches.select(np.arange((rank - len(taken)) % ranks, total, ranks))
                own = own.fetching_only_own_rows() if ranks > 1 else own
                places = iter(range(len(own)))
                done = 0
                for end in range(ranks - len(taken), total + 1, ranks):
                    taken += labels[done:end]
                    yield shared_out(mine or (own, next(places)), 1.0), batches.handed_on(end)
                    taken, mine, done = [], None, end
                if done < total:
                    taken += labels[done:]
                    latest = batches, total - 1
                    if (place := next(places, None)) is not None:
                        mine = own, place
                if taken or not total:
                    batches.handed_on(total)  # counts what was left out of it
        if not taken or self.uneven == "drop":
            return
        if self.uneven == "raise":
            raise ValueError(
                f"the last step of the epoch has {len(taken)} batches for {ranks} ranks; "
                "choose uneven='pad', 'drop' or 'wrap'"
            )
        assert latest is not None
        weight, (batches, place) = 1.0, latest
        if self.uneven == "wrap":
            firsts = self._firsts(windows, batches.planned.window.epoch, ranks - len(taken), run)
            mine = mine or _place_of(fetch_only_own_rows(firsts[rank - len(taken)][0]))
            taken += [known for _, known in firsts]
        elif mine is None:
            mine, weight = _place_of(fetch_only_own_rows(filler(Batch(batches.select(np.array([place])))))), 0.0
        assert mine is not None
        yield shared_out(mine, weight), END

    def _firsts(
        self, windows: PlannedWindows, epoch: int, number: int, run: Run
    ) -> list[tuple[Batch, NumLabels | None]]:
        """Batches from the beginning of the epoch, beginning again where it has fewer, with their labels."""
        with running(Batched(windows), windows.start(epoch), run) as items:
            batches = [batch for (batch, _), _ in islice(with_counts(items), number)]  # counted when they came first
        known = [
            counted(batch.plan.select(np.array([batch.place])), windows.labels_follow, rows=True)[0]
            for batch in batches
        ]
        return list(islice(cycle(zip(batches, known, strict=True)), number))

    # -- streams ---------------------------------------------------------------------------------------------------------

    def _of_streams(
        self, streams: RoundRobin[Batch], at: State, placement: Placement, run: Run
    ) -> Generator[tuple[Batch, State], None, None]:
        with told(self):
            own = streams.own_streams(at, placement)
        say_split_groups(_planning(streams).settings(), placement.data_ranks)
        if placement.data_ranks == 1:
            with running(streams, at, run) as items:
                for batch, after in items:
                    yield _with_rank_fields(batch, 1), after
            return
        wrap = self.uneven == "wrap" and not streams.flows
        with streams.reading(at, own, run, wrap) as readers:
            if readers:
                yield from self._together(streams, at, readers, placement, run)

    def _together(
        self,
        streams: RoundRobin[Batch],
        at: State,
        readers: dict[int, StreamReader[Batch]],
        placement: Placement,
        run: Run,
    ) -> Generator[tuple[Batch, State], None, None]:
        rank, ranks = placement
        store = store_of(self.ranks.group)
        if store is None:
            raise ValueError(
                f"{ranks} ranks that read streams must agree on where an epoch ends: initialise torch.distributed "
                "before iterating, or give shard(process_group=...) a torch.distributed.Store that they share"
            )
        name = shown(streams)
        header, begins = {"of": header_of(self)} | {"uneven": self.uneven}, {"epoch": at["epoch"], "next": at["next"]}
        rendezvous = Rendezvous(store, rank, ranks, name, header, begins, self.timeout_seconds, run)
        rounds = Channel(lambda: self._rounds(streams, at, readers, rendezvous), 1, "streams", run)
        with closing(rounds), closing(rendezvous):
            pending = rounds.items(rendezvous.waiting)
            held: dict[int, Taken[Batch]] = {}  # what came of streams, by their places
            entries = {str(stream): at["streams"][str(stream)] for stream in readers}
            epoch, place = at["epoch"], at["next"]
            end = place - place % streams.num_streams  # of the rounds that go on, as far as they are known
            spare: Any = None  # what fillers are made of: the same one whether the run began here or was resumed
            over = False
            while True:
                mine = place + rank
                while not over and end < place + ranks:
                    taken = next(pending, None)
                    rendezvous.waiting(0.0)
                    over = taken is None
                    if taken is not None:
                        epoch, round_ = taken
                        held |= {end + stream: one for stream, one in round_.items()}
                        end += streams.num_streams
                if place >= end or (self.uneven == "drop" and end < place + ranks):
                    return
                stream = str(mine % streams.num_streams)
                found, entries[stream], left_out = held.pop(mine, Taken(None, entries[stream], {}))
                add_counts(left_out)
                place += ranks
                if found is not None:
                    at_first = (
                        at["next"] == 0 and not streams.flows
                    )  # else from here it is not known where the run began
                    spare = found if spare is None and at_first else spare
                    item = found
                else:
                    first = 0 if streams.flows else at["epoch"]
                    spare = _any_batch(streams, first, [*readers], run) if spare is None else spare
                    item = filler(spare)
                yield _with_rank_fields(item, ranks), {"epoch": epoch, "next": place, "streams": dict(entries)}

    def _rounds(
        self, streams: RoundRobin[Batch], at: State, readers: dict[int, StreamReader[Batch]], rendezvous: Rendezvous
    ) -> Generator[tuple[int, dict[int, Taken[Batch]]], None, None]:
        """The epoch and this rank's part of each round that goes on: by stream, from the place of the next step on."""
        epoch, (first, done) = at["epoch"], divmod(at["next"], streams.num_streams)
        waits = streams.flows and self.uneven not in ("drop", "wrap")
        held: deque[tuple[int, int, dict[int, Taken[Batch]]]] = deque()
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
                over = total == 0 or (total < streams.num_streams and self.uneven in ("drop", "raise"))
                if over and total and self.uneven == "raise":
                    raise DataError(
                        f"{streams.num_streams - total} of {streams.num_streams} streams have ended before the others; choose "
                        "uneven='pad', 'drop' or 'wrap'"
                    )
                if over and not streams.flows:
                    return
                if over:  # so are the rounds that all have posted meanwhile
                    epoch = posted + 1
                else:
                    yield posted, round_
        finally:
            rendezvous.leave(over)

    def tell(self, error: BaseException | None) -> None:
        """Tells the other ranks why this one does not come to their run; None: it will come."""
        if not isinstance(self.upstream, RoundRobin):
            return
        with suppress(Exception):  # what failed here is what the user wants to know
            placement = self.ranks.here
            store = store_of(self.ranks.group) if placement.data_ranks > 1 else None
            if store is not None:
                tell_refused(store, *placement, error)


def shared(stage: Stage[Any], ranks: Ranks, uneven: Uneven, timeout_seconds: float) -> Stage[Any]:
    """A chain of batches, as one data-parallel rank has them."""
    if isinstance(stage, Steps):
        return stage.shared(ranks, uneven)
    if isinstance(stage, Batched):
        return Shared(cast(PlannedWindows, stage.upstream), ranks, uneven, timeout_seconds)
    if isinstance(stage, Shared | RoundRobin):
        upstream = stage.upstream if isinstance(stage, Shared) else stage
        return Shared(upstream, ranks, uneven, timeout_seconds)
    return with_inputs(stage, shared(stage.inputs[0], ranks, uneven, timeout_seconds))


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
    if isinstance(stage, Shared):
        stage.tell(error)
    for one in stage.inputs:
        _tell(one, error)


def _planning(streams: RoundRobin[Batch]) -> Stage[Any]:
    """The stage that plans the windows of a stream."""
    return streams.upstream.inputs[0]


def _any_batch(streams: RoundRobin[Batch], epoch: int, own: list[int], run: Run) -> Batch:
    """The first batch of the epoch of some stream, one of this rank's where they have one."""
    for number in sorted(range(streams.num_streams), key=lambda number: number not in own):
        stage = streams.stream(number)
        with running(stage, stage.start(epoch), run) as items:
            for (batch, _), _ in with_counts(items):  # counted where it comes in its turn
                return batch
    raise AssertionError("an epoch that goes on has a batch")


def _with_rank_fields(batch: Batch, num_ranks: int) -> Batch:
    """A batch as one of a rank; a filler keeps its weight."""
    return replace(batch, weight=1.0 if batch.weight is None else batch.weight, num_ranks=num_ranks)


def _place_of(batch: Batch) -> _Place:
    return batch.plan, batch.place
