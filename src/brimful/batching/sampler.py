"""Batches for torch's DataLoader: lists of sample numbers, planned over lengths alone."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from brimful.batching.batch import Batch
from brimful.batching.order import ShuffleBatches, check_shuffle
from brimful.batching.placement import Ranks, resolve
from brimful.batching.planners import ByPolicy
from brimful.batching.planning import Batched, PlannedWindows
from brimful.batching.shared import Shared
from brimful.batching.windows import Planned, auto_rows
from brimful.core.above import GUARD, ReadsAhead
from brimful.core.counters import COUNTERS, Counters
from brimful.core.header import VERSION, check_header
from brimful.core.stage import Stage, State, running
from brimful.core.states import check_form, position_of, restored_elsewhere, sealed
from brimful.index.sequence import FromSequence, LengthIndex
from brimful.plan import Overlong, Policy, as_lengths
from brimful.plan.errors import DataError, StateError, integer, logger, one_of
from brimful.plan.once import once
from brimful.plan.overlong import plan_with
from brimful.plan.plan import is_policy, sizes_by_name

_ENOUGH = 10_000  # lengths by which a window is sized


class BatchSampler:
    """Lists of sample numbers for `DataLoader(dataset, batch_sampler=...)`. Each list is one batch.

    It needs only the length of each sample. It shuffles the samples of an epoch, cuts them into windows, and lets
    `policy` plan each window. Each sample is in exactly one batch of an epoch, with two exceptions. `drop_last`,
    `overlong="drop"` and `uneven="drop"` leave samples out, and `uneven="wrap"` repeats some. The order of all batches
    is the same for every world size. Each step has `world_size` batches, and a rank takes the one at `rank`.

    Call `set_epoch` before each epoch, as with torch's DistributedSampler. Without it, each iteration has the same
    order. The sampler lives in the main process, so an epoch set there also reaches persistent workers.

    Accelerate: leave `rank` and `world_size` alone. `prepare` shards the batches to the same ranks as brimful would.
    Keep `dispatch_batches=False` (the default here), because True cuts rank 0's batches into pieces.
    `even_batches=True` (the default) has the effect of `uneven="wrap"`. In a resumed epoch it repeats the first batches
    after the resume. `drop_last` or `uneven="drop"` leaves out the last step instead. To resume from a state, first
    call `set_epoch` of the prepared loader with the sampler's `epoch`. Lightning: pass `use_distributed_sampler=False`.

    Args:
        lengths: tokens of each sample, (n,), or (n, d) for several sizes. Or the sizes by name, (n,) each, for a policy
            that names them (`MultiBudget`). Any integers that numpy takes.
        policy: makes batches from the lengths of a window, such as `bf.TokenBudget(16_384)`.
        shuffle: use another order each epoch. False keeps the order of the samples, and gives the batches of a window
            longest first.
        window: how many samples to plan over. "auto" takes enough for about 1 % of padding.
        seed: the seed of the order.
        rank, world_size: the data-parallel rank and world size.
        uneven: the reaction to a last step with too few batches. "wrap" takes the first batches of the epoch. "drop"
            leaves out the step. "raise" raises an error before the first batch.
        overlong: the reaction to a sample that is longer than the policy can place. "raise" raises an error at once. "drop"
            leaves it out. "alone" makes a batch with this sample only. "truncate" plans the sample as if it were cut, so
            the data set has to cut it. Logged once.
        drop_last: leave out incomplete batches: those below a fixed size, or the last cut of an epoch.
        shuffle_batches: give the batches of a window in a random order. "stratified" takes a random order in which any
            few batches in a row cover short and long samples alike. None: the value of `shuffle`.
        balance_group: keep so many batches of similar cost together when they are shuffled. Give the world size, so
            that all ranks do equal work.
    Raises:
        ValueError: a setting is out of range, or a sample is too long under overlong="raise".
    State: the epoch, the place in it and the settings, 100 bytes. It is the same on all ranks, and for every world
        size. A state from the end of an epoch begins the next one.
    Price: 8 bytes a sample beside its length. With a million samples the first batch comes within .1 s, also in a
        restored epoch. `len` and `uneven="raise"` plan an epoch once more, .3 s.
    Example:
        >>> import brimful as bf
        >>> lengths = [50, 30, 20, 20, 30, 20]
        >>> list(bf.BatchSampler(lengths, bf.TokenBudget(60), shuffle=False))
        [[0], [1, 4], [2, 3, 5]]
        >>> [list(bf.BatchSampler(lengths, bf.TokenBudget(60), rank=rank, world_size=2)) for rank in range(2)]
        [[[3, 5, 2], [4, 1]], [[0], [3, 5, 2]]]

        >>> from torch.utils.data import DataLoader
        >>> dataset = [[token] * length for token, length in enumerate(lengths)]
        >>> sampler = bf.BatchSampler(lengths, bf.TokenBudget(60))
        >>> loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=list)
        >>> for epoch in range(2):
        ...     sampler.set_epoch(epoch)
        ...     for step, batch in enumerate(loader, 1):
        ...         state = sampler.state_dict(batches_consumed=step)
    """

    policy: Policy
    rank: int
    world_size: int

    batch_size = None
    """None, which tells Accelerate that batches differ in size."""

    def __init__(
        self,
        lengths: ArrayLike | Mapping[str, ArrayLike],
        policy: Policy,
        *,
        shuffle: bool = True,
        window: int | Literal["auto"] = "auto",
        seed: int = 42,
        rank: int = 0,
        world_size: int = 1,
        uneven: Literal["wrap", "drop", "raise"] = "wrap",
        overlong: Overlong = "raise",
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches | None = None,
        balance_group: int = 1,
    ) -> None:
        if not is_policy(policy):
            raise TypeError(f"policy must have plan and max_length, as bf.TokenBudget(16_384) does (got {policy!r})")
        world_size = integer("world_size", world_size, 1)
        self.rank, self.world_size = resolve(integer("rank", rank, None), world_size)
        one_of("uneven", uneven, "wrap", "drop", "raise")
        one_of("overlong", overlong, *get_args(Overlong))
        self.policy, self.uneven = policy, uneven
        if isinstance(lengths, Mapping):
            lengths = sizes_by_name(lengths, getattr(policy, "columns", None) or (*lengths,))
        values, longest = as_lengths(lengths), policy.max_length
        if overlong == "raise" and values.ndim == 1 and longest is not None and values.max(initial=0) > longest:
            plan_with(policy, values)  # which says which sample, and what to do
        if isinstance(window, str):
            one_of("window", window, "auto")
            some = values[np.linspace(0, len(values) - 1, min(len(values), _ENOUGH), dtype=np.int64)]
            window = auto_rows(policy, some) if len(some) else 1
        self._rows = integer("window", window, 1, "sample")
        self._samples = FromSequence(LengthIndex(values), shuffle, seed)
        windows = Planned(self._samples, self._rows, lengths_required=True)
        planner = ByPolicy(policy, overlong)
        shuffle_batches = check_shuffle(shuffle if shuffle_batches is None else shuffle_batches)
        shuffled = False if planner.sizing.in_order else shuffle_batches
        self._plans = PlannedWindows(windows, planner, drop_last, shuffled, balance_group, seed)
        self._shard = Shared(self._plans, Ranks(self.rank, world_size), uneven)
        self.drop_last: bool = drop_last or uneven == "drop"  # what Accelerate asks, which then shards the batches out
        self._tally = Counters()
        self._epoch = 0
        self._restored: tuple[int, State] | None = None  # where the next iteration begins, in the epoch that it names
        self._running: _Run | None = None  # since the last `iter` that a list was taken from
        self._repeated: int | None = None  # the epoch that has been handed out whole since the last set_epoch
        self._counted: tuple[int, int] | None = None  # an epoch, and how many batches it has for all ranks

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration.

        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> sampler.set_epoch(3)
            >>> sampler.epoch
            3
        """
        return self._epoch

    @property
    def sampler(self) -> BatchSampler:
        """The sampler itself. Accelerate and Lightning look here for the `set_epoch` of a batch sampler.

        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> sampler.sampler is sampler, sampler.batch_size
            (True, None)
        """
        return self

    def __iter__(self) -> Iterator[list[int]]:
        self._running = None
        return self._lists()

    def __len__(self) -> int:
        """The number of lists of this rank in the whole epoch, also after a restored state.

        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> len(sampler)
            3
        """
        return self._shard.steps_of(self._checked(self._count()))

    def __repr__(self) -> str:
        return f"BatchSampler({self._samples.count:,} samples, {self.policy}, rank {self.rank} of {self.world_size})"

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. A restored epoch continues at its place. Any other epoch begins at its
        start.

        Raises:
            ValueError: a state was restored, and this is another epoch before its first batch. The trained batches
                would come again.
        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> for epoch in range(2):
            ...     sampler.set_epoch(epoch)
            ...     list(sampler)
            [[3, 5, 2], [0], [4, 1]]
            [[5, 3, 2], [4, 1], [0]]
        """
        epoch = integer("epoch", epoch)
        self._repeated = None
        if self._restored is not None and epoch not in (self._epoch, self._restored[0]):
            raise ValueError(restored_elsewhere("BatchSampler", self._epoch, epoch))
        if epoch != self._epoch:
            self._epoch, self._running = epoch, None

    def state_dict(self, batches_consumed: int | None = None) -> dict[str, Any]:
        """The place after the last list that the training loop has used, as plain JSON.

        Args:
            batches_consumed: how many batches the loop has taken from the loader in this iteration, on this rank. After
                a restored state, count from there. None: all lists that the sampler has handed out.
        Raises:
            StateError: no count is given, and a DataLoader with workers, Accelerate or another thread takes lists
                ahead. Only the loop knows how many it has used. A StatefulDataLoader needs no count: it saves the place
                in its own state.
            ValueError: the count is larger than the number of lists handed out.
        Price: a smaller count plans the lists up to there again.
        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> lists = iter(sampler)
            >>> used = next(lists), next(lists)
            >>> resumed = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))
            >>> resumed.load_state_dict(sampler.state_dict(batches_consumed=1))
            >>> next(iter(resumed)) == used[1]
            True
        """
        run = self._running or _Run(*self._beginning())
        if batches_consumed is not None:
            place = self._place_after(run, run.lists_of(batches_consumed))
        elif GUARD.asked_by_torchdata():  # which keeps the place with the list that it takes
            place = run.place
        else:
            place = run.place_of_the_loop()
        return sealed(self._header, [run.epoch, place])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration continue from a state. If the epoch of the state has no batches left, the next epoch
        begins.

        Raises:
            StateError: the state has other lengths, another policy, another seed, and so on. The error names both
                values.
        Price: a shuffle and the plan of one window.
        Example:
            >>> import brimful as bf
            >>> sampler = bf.BatchSampler([50, 30, 20, 20, 30, 20], bf.TokenBudget(60))

            >>> lists = list(sampler)
            >>> sampler.load_state_dict(sampler.state_dict())
            >>> sampler.epoch
            1
        """
        check_form(state_dict, "header", "position", "crc32", version=VERSION)
        epoch, place = position_of(state_dict)
        check_header(state_dict["header"], self._header)
        ended = next(self._run(self._shard, place), None) is None
        self._epoch, self._restored = epoch + ended, (epoch, place)
        self._running = self._repeated = None

    # -- an iteration ----------------------------------------------------------------------------------------------------

    def _lists(self) -> Generator[list[int], None, None]:
        run = _Run(*self._beginning(), GUARD.loop_here().reader)
        if run.reader.processes > 1 and self.world_size > 1:
            raise ValueError(
                f"both Accelerate ({run.reader.processes} processes) and this BatchSampler ({self.world_size} ranks) shard the "
                "batches. Leave rank and world_size of the BatchSampler out"
            )
        if self._repeated == run.epoch and self._samples.shuffle:
            logger.warning("epoch %d again, in the same order: call set_epoch(epoch) before each epoch", run.epoch)
        self._restored, self._running = None, run
        if self.uneven == "raise" and self.world_size > 1:
            self._checked(sum(1 for _ in self._run(Batched(self._plans), run.place)))
        for batch, after in self._run(self._shard, run.place):
            run.took(after)
            self._running = run
            yield batch.window.samples[batch.numbers].tolist()
        self._repeated = run.epoch

    def _beginning(self) -> tuple[int, State]:
        """The epoch and the place at which the next iteration begins."""
        if self._restored is not None and self._restored[0] == self._epoch:
            return self._restored
        return self._epoch, self._shard.start(self._epoch)

    def _place_after(self, run: _Run, taken: int) -> State:
        if taken in (0, run.taken):
            return run.place if taken else run.start
        _, place = next(islice(self._run(self._shard, run.start), taken - 1, None))
        return place

    def _count(self) -> int:
        """How many batches all ranks have in the epoch."""
        epoch = self._epoch if self._samples.shuffle else 0
        if self._counted is None or self._counted[0] != epoch:
            self._counted = epoch, sum(1 for _ in self._run(Batched(self._plans), self._plans.start(epoch)))
        return self._counted[1]

    def _checked(self, batches: int) -> int:
        if self.uneven == "raise" and batches % self.world_size:
            raise DataError(
                f"uneven='raise': {batches:,} batches of epoch {self._epoch:,} cannot be shared out evenly to "
                f"{self.world_size:,} ranks; choose uneven='wrap' or 'drop'"
            )
        return batches

    def _run(self, stage: Stage[Batch], place: State) -> Generator[tuple[Batch, State], None, None]:
        """The items of a stage, so that what the planner leaves out or cuts is logged once."""
        context = copy_context()
        context.run(COUNTERS.set, self._tally)
        with running(stage, place) as items:
            while (item := context.run(next, items, None)) is not None:
                yield item

    @once
    def _header(self) -> dict[str, Any]:
        names = "drop_last", "shuffle_batches", "balance_group"
        order = {name: getattr(self._plans, name) for name in names} | {"window": self._rows}
        return {"verb": "BatchSampler"} | self._samples.settings() | self._plans.planner.settings() | order


@dataclass
class _Run:
    """One iteration: where it began, how far it is, and who takes its lists."""

    epoch: int
    start: State
    reader: ReadsAhead = field(default_factory=ReadsAhead)
    taken: int = 0

    def __post_init__(self) -> None:
        self.place = self.start
        self.thread = threading.get_ident()

    def took(self, after: State) -> None:
        self.place = after
        self.taken += 1
        self.thread = threading.get_ident()

    def lists_of(self, batches: int) -> int:
        """How many lists were taken up to so many batches of the loop's."""
        most = -(-self.taken // self.reader.processes) - self.reader.skipped
        batches = integer("batches_consumed", batches, None)
        if not 0 <= batches <= most:
            raise ValueError(
                f"batches_consumed must be between 0 and {most:,}, the batches handed out since this iteration began "
                f"(got {batches:,})"
            )
        return min((self.reader.skipped + batches) * self.reader.processes, self.taken)

    def place_of_the_loop(self) -> State:
        """The place, where the loop has used all that was taken."""
        name = self.reader.name or ("another thread" if self.thread != threading.get_ident() else None)
        if self.taken and name is not None:
            raise StateError(
                f"{name} reads ahead: it has taken {self.taken:,} batches, and only the training loop knows how many it has "
                "used. Pass that number: state_dict(batches_consumed=...)"
            )
        return self.place
