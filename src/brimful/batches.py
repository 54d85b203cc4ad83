"""Batches: what iterating, counting, mapping and prefetching them means, and how rows become them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeVar, cast, get_args

import numpy as np

from brimful.arrays.collated import Collated, LaidOut, Unlabelled
from brimful.arrays.columns import ColumnRules
from brimful.arrays.forms import Form
from brimful.arrays.layout import Layout
from brimful.arrays.nested import Nested
from brimful.arrays.packed import PackedLayout
from brimful.arrays.padded import Padded
from brimful.arrays.paired import Paired
from brimful.arrays.types import BFLOAT16
from brimful.batching.batch import Batch, Uneven
from brimful.batching.facts import batch_facts, collated_of, planned_prefix
from brimful.batching.items import EnumerateItems, MapItems, TakeItems
from brimful.batching.micro_batches import MicroBatches
from brimful.batching.order import ShuffleBatches, check_shuffle
from brimful.batching.placement import Ranks, check_group, world_size_here
from brimful.batching.planners import BatchPlanner
from brimful.batching.planning import Batched, PlannedWindows
from brimful.batching.round_robin import RoundRobin
from brimful.batching.shared import shared, told
from brimful.batching.sizes import LengthColumn, Size, name_of_size, sizes_of
from brimful.batching.steps import Steps
from brimful.batching.window import PlanningWindow
from brimful.batching.windows import Buffered, Planned
from brimful.core.above import DATASET, GUARD
from brimful.core.ahead import Ahead
from brimful.core.facts import Facts, facts_of, verb_of
from brimful.core.iterator import ResumableIterator
from brimful.core.repeat import Repeat
from brimful.core.run import Run
from brimful.core.stage import Stage, check_depth, running, with_inputs
from brimful.encoding.encoder import Padding, one_vocabulary, paddings
from brimful.index.indexed import Indexed
from brimful.plan.buckets import Rounding
from brimful.plan.costs import SampleCost, sample_cost
from brimful.plan.errors import check_bool, check_mapping, function, integer, names_of, one_of, timeout, warn_once
from brimful.plan.once import once, settings_of
from brimful.rows.parallel import ExecutorType, Parallel
from brimful.tables.blocks import Block, Sample
from brimful.tables.describe import as_html, as_text, described_chain
from brimful.tables.ragged import PROMPT, SIDE_COLUMNS, TOKENS, is_labels, prefix_of
from brimful.tables.texts import TokenizedText
from brimful.tensors.collate_fn import CollatedBy, Collator
from brimful.tensors.in_torch import in_torch

if TYPE_CHECKING:
    import torch

    from brimful.arrays.explained import Explanation
    from brimful.loader import Loader

T = TypeVar("T")

GROUPS: Final = 16
"""Of batches of like cost that an automatic window holds at least. With 4 of them, 64 ranks wait thrice as long."""
PREFERENCES: Final = ("chosen_input_ids", "rejected_input_ids")
"""The sides that layout="paired" has where nobody names others."""


@dataclass(frozen=True)
class Batches:
    """A stream of batches. It is an immutable description: nothing runs until you iterate over it.

    A batch is a dict of int64 tensors. Each list column is padded to (B, L), with `attention_mask` (B, L) and `lengths`
    (B,). Other numbers are stacked, and all other values are lists. `brimful.arrays` describes padded, nested and
    packed batches.

    >>> import brimful as bf
    >>> batches = bf.from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3]}]).batch(2)
    >>> for batch in batches:
    ...     batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["lengths"].tolist()
    ([[1, 2], [3, 0]], [[1, 1], [1, 0]], [2, 1])
    """

    stage: Stage[Any]
    repeats: bool = False

    def __post_init__(self) -> None:
        check_depth(self.stage)

    def __iter__(self) -> Iterator[Any]:
        GUARD.loop_here().check_batches()
        return self.iter()

    def iter(
        self, state_dict: dict[str, Any] | None = None, *, epoch: int = 0, allow: Collection[str] = ()
    ) -> ResumableIterator[Any]:
        """An iterator over the batches, from the start of an epoch or from a saved state; see `Dataset.iter`.

        Args:
            state_dict, allow: as for `Dataset.iter`.
            epoch: the epoch to begin with. A state knows its own epoch, so giving both is an error.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2], [3]]).batch(1)
        >>> it = batches.iter()
        >>> next(it)["input_ids"].tolist()
        [[1]]
        >>> [batch["input_ids"].tolist() for batch in batches.iter(it.state_dict())]
        [[[2]], [[3]]]
        """
        return self._begin(Run(), state_dict, allow, epoch)

    def _begin(
        self, run: Run, state_dict: dict[str, Any] | None, allow: Collection[str], epoch: int
    ) -> ResumableIterator[Any]:
        """As `iter`, in a run that a loader may own."""
        world_size = 1 if self.sharded else world_size_here()
        if world_size > 1:
            warn_once(
                "there are %d ranks, and each rank gets all of these batches. Call .shard() to divide them, or "
                ".shard(0, 1) if this is meant",
                world_size,
            )
        GUARD.check_buffers(self.stage)
        with told(self.stage):
            return ResumableIterator(self._endless, state_dict, allow, integer("epoch", epoch), run)

    def loader(self, *, steps_per_epoch: int | None = None) -> Loader:
        """The batches as an IterableDataset for trainers, one epoch at a time, with state_dict, load_state_dict and
        set_epoch: see `Loader`.

        `steps_per_epoch`: so many batches are an epoch, and each epoch continues where the one before stopped. With
        `micro_batches=k` it must be a multiple of k. Give the loader to the loop as it is. Give Accelerate's `prepare`
        the model and the optimizer only, because it would shard the batches a second time.

        >>> import brimful as bf
        >>> loader = bf.from_sequence([[1], [2], [3]]).batch(1).loader(steps_per_epoch=2)
        >>> [[batch["input_ids"].item() for batch in loader] for epoch in range(2)]
        [[1, 2], [3, 1]]
        """
        loader = _loader_of(self.stage)
        if steps_per_epoch is None:
            return loader(self)
        if batch_facts(self.stage).samples_per_step is not None:
            raise ValueError(
                "steps_per_epoch counts batches, and with samples_per_step an optimizer step has as many as it needs: leave "
                "steps_per_epoch out"
            )
        steps = integer("steps_per_epoch", steps_per_epoch, 1, "step")
        if steps % (number := self.micro_batches or 1):
            whole = steps - steps % number
            raise ValueError(
                f"steps_per_epoch={steps:,} batches is not a multiple of micro_batches={number}. Trainers end an optimizer step "
                f"with an epoch: give {f'{whole:,} or ' if whole else ''}{whole + number:,}"
            )
        return loader(replace(self, repeats=True), steps_per_epoch=steps)

    def shard(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        process_group: Any = None,
        mesh: Any = None,
        uneven: Uneven = "pad",
        timeout_seconds: float = 600.0,
    ) -> Batches:
        """The batches of one data-parallel rank. Each step has `world_size` batches, and this rank gets batch number
        `rank`.

        The order of all batches does not depend on the world size. With indexed data, a state is the same on all ranks,
        and a state of 8 ranks resumes on 1, 2, 4 or 16. With `from_files(streams=n)`, each rank reads and saves its own
        streams. Join the states of all ranks with `bf.merge_states` (or save the loader with
        torch.distributed.checkpoint), and resume on any world size that divides n. Each batch carries `weight` and
        `is_filler`. Rank and world size are looked up when you iterate.

        Indexed data with labels also give each batch `num_items_in_batch`, () int64. It is the number of labels in the
        whole step, on all ranks together, without those of fillers and copies. `bf.token_mean` divides by it.
        `num_samples_in_batch` is the number of its samples that have a label, for `bf.sample_mean`. Integers
        by token count if they are not -100. Other labels (one class or number a sample, floats, bools) count as one a
        sample. So do lists of integers that do not go with `input_ids` (`token_columns=[]`). Packed batches may have no
        labels: brimful then counts their tokens. It counts the labels of the samples, cut as planned. If a collate_fn
        makes other labels, set `num_items_in_batch` yourself. Each rank counts the labels of all ranks, in 70 ns a
        sample. For samples that are cut, it reads their rows. The count is left out where it needs all rows: for
        `shift_labels`, and for integers of a store that are no lists. It is also left out if the padding of labels by
        token is not -100, or their dtype is not a signed integer.

        You may call it anywhere in the chain: `take` and `enumerate` count the batches of this rank. A second call
        replaces the first one.

        Args:
            rank, world_size: the data-parallel rank and world size. The default is that of `process_group` or `mesh`,
                else of torch.distributed, else of the environment. If there is none, this process is the only rank.
            process_group: the torch.distributed group of the data-parallel ranks. Ranks that read streams must agree on
                the end of the epoch. If you give rank and world_size, this may also be a torch.distributed.Store. The
                ranks then agree through that store.
            mesh: or a device mesh. If it has several dimensions, their names say who shares the batches out: `dp`,
                `fsdp`, `dp_replicate`, `dp_shard` and the like. Ranks that differ in `tp`, `cp`, `pp` and the like get
                the same batches. With other names, pass the one dimension: `mesh["replicas"]`.
            uneven: the reaction to a step with too few batches. That is the last step of indexed data, or one after the
                end of a stream. "pad" adds a filler: a real row again, with weight 0. "drop" leaves out the step and
                all that follow. "wrap" takes the first batches of the epoch (of the stream, with streams). "raise"
                raises an error.
            timeout_seconds: how long to wait for other ranks that read streams.
        Raises:
            ValueError: (when iterated) the data are streamed without streams and the world size is above 1, so each
                rank would read everything. Or the world size does not divide the number of streams.
            TimeoutError: (when iterated) another rank did not answer in time. The error names it.
            RankError: (when iterated) another rank failed, or refused its state. The error names it and its error.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2], [3]]).batch(1)
        >>> for rank in range(2):
        ...     [(batch["input_ids"].item(), batch["weight"]) for batch in batches.shard(rank, 2)]
        [(1, 1.0), (3, 1.0)]
        [(2, 1.0), (3, 0.0)]
        """
        one_of("uneven", uneven, *get_args(Uneven))
        timeout(timeout_seconds)
        rank = None if rank is None else integer("rank", rank)
        world_size = None if world_size is None else integer("world_size", world_size, 1, "rank")
        if process_group is not None and mesh is not None:
            raise ValueError(
                "shard takes the data-parallel ranks from process_group or from mesh (got both); give one of them"
            )
        check_group(process_group, mesh)
        ranks = Ranks(rank, world_size, process_group if mesh is None else mesh)
        return replace(self, stage=shared(self.stage, ranks, uneven, timeout_seconds))

    def plans(self, epoch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch as integers: sample numbers and padded lengths. After `take(n)` there are at most n.
        Indexed data read no rows for this.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2, 3], [4]]).batch(2)
        >>> [(plan.numbers.tolist(), plan.padded_length) for plan in batches.plans()]
        [([0, 1], 2), ([2], 1)]
        """
        stage = planned_prefix(self.stage)
        with running(stage, stage.start(integer("epoch", epoch))) as batches:
            for batch, _ in batches:
                yield batch

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: Any) -> NoReturn:
        raise TypeError(
            "batches have no numbers: loop over them. A DataLoader takes batches.loader() with batch_size=None, or the samples "
            f"with batch_sampler=bf.BatchSampler(lengths, policy). {GUARD.FOR_TRAINER}"
        )

    if not TYPE_CHECKING:  # else any attribute would pass for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and callable(getattr(DATASET.Dataset, name, None)):
                raise AttributeError(
                    f"batches have no {name!r}, which is for samples: call .{name}(...) before they are batched"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def __repr__(self) -> str:
        return as_text("Batches", self._facts, self.repeats)

    def _repr_html_(self) -> str:
        return as_html("Batches", self._facts)

    @property
    def _facts(self) -> dict[str, str]:
        known = batch_facts(self.stage)
        length = vars(self).get("_length")
        found = described_chain(self.stage, known.planned, self.repeats, known.planned_by, length)
        return found if collated_of(self.stage).as_arrays else found | {"columns": "made by collate_fn"}

    @property
    def streams(self) -> int | None:
        """The number of streams that the data are read as, or None.

        >>> import brimful as bf
        >>> bf.from_files("corpus/*.jsonl", streams=8).batch(4).streams
        8
        """
        return facts_of(self.stage).streams()

    @property
    def micro_batches(self) -> int | None:
        """How many batches on each rank make one optimizer step. None: not set.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2], [3], [4]]).batch(2, micro_batches=2)
        >>> batches.micro_batches, [(batch["input_ids"].tolist(), batch["ends_step"]) for batch in batches]
        (2, [([[1]], False), ([[2]], True), ([[3]], False), ([[4]], True)])
        """
        return batch_facts(self.stage).micro_batches

    @property
    def sharded(self) -> bool:
        """True if these are the batches of one rank, made by `shard`.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2]]).batch(1)
        >>> batches.sharded, batches.shard(0, 2).sharded
        (False, True)
        """
        return batch_facts(self.stage).is_sharded

    @once
    def _length(self) -> int:
        length = facts_of(self._endless).num_items(None)
        if length is None:
            raise TypeError(
                f"the number of batches is not known: {self._unknown} "
                f"(a DataLoader takes loader(), with batch_size=None). {GUARD.FOR_TRAINER}"
            )
        return length

    def map(self, fn: Callable[[Any], Any]) -> Batches:
        """Replaces each batch by `fn(batch)`.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1], [2, 3]]).batch(2)
        >>> list(batches.map(lambda batch: int(batch["lengths"].sum())))
        [3]
        """
        return replace(self, stage=MapItems(self.stage, function("map", fn)))

    def take(self, n: int) -> Batches:
        """The first n batches. A data set that repeats runs as many epochs as that needs.

        >>> import brimful as bf
        >>> endless = bf.from_sequence([[1], [2]], repeat=True).batch(1)
        >>> endless.repeats, [batch["input_ids"].item() for batch in endless.take(3)]
        (True, [1, 2, 1])
        """
        return replace(self, stage=TakeItems(self._endless, n), repeats=False)

    def enumerate(self) -> Batches:
        """Pairs of (number, batch). Numbers begin at 0 and go on over epochs.

        >>> import brimful as bf
        >>> for step, batch in bf.from_sequence([[5], [6]]).batch(1).enumerate():
        ...     step, batch["input_ids"].tolist()
        (0, [[5]])
        (1, [[6]])
        """
        return replace(self, stage=EnumerateItems(self._endless), repeats=False)

    def prefetch(self, n: int) -> Batches:
        """Makes up to n batches ahead of use in a thread, also across the ends of epochs.

        >>> import brimful as bf
        >>> with bf.from_sequence([[1], [2], [3]]).batch(1).prefetch(2).iter() as it:
        ...     [batch["input_ids"].item() for batch in it]
        [1, 2, 3]
        """
        depth = integer("n", n, 1, "batch", most=1 << 16)
        return replace(self, stage=Ahead(self._endless, depth, "prefetch"), repeats=False)

    def numpy(self) -> Batches:
        """The batches as numpy arrays, for JAX and others: the same keys and values, and no torch is imported.

        Types are the same, too: int64, unless `dtypes` says otherwise. Numbers such as `max_seqlen` stay ints, and lists
        stay lists. A batch from a `collate_fn` stays as that function made it. Everything else works as before: states,
        `shard`, `loader`, `prefetch`, `map`, `take`. A state does not know the difference, so a run with tensors may go on
        with arrays. Call it before `map`, whose function then gets arrays.

        Raises:
            ValueError: `dtypes` asks for bfloat16, or the layout is "nested" or "grouped": numpy has neither. Or `map` or
                `to_device` was called before.
        Price: less than tensors cost: about .6 us saved for each.

        >>> import brimful as bf
        >>> batches = bf.from_sequence([[1, 2], [3]]).batch(2, dtypes={"input_ids": "int32"}).numpy()
        >>> next(iter(batches))["input_ids"]
        array([[1, 2],
               [3, 0]], dtype=int32)
        """
        return self if collated_of(self.stage).convert is None else replace(self, stage=_in_numpy(self.stage))

    def to_device(
        self,
        device: str | int | torch.device,
        *,
        prefetch: int = 2,
        pad_on_device: bool = False,
        static_buffers: bool = False,
    ) -> Batches:
        """Sends the tensors of each batch to a device, up to `prefetch` batches ahead of use, also across the ends of
        epochs.

        A thread makes the batches and begins the copies, from pinned memory, on a separate stream. Your current stream
        waits for the copy of a batch before it runs your next operations. The host does not wait.

        Args:
            device: "cuda", "cuda:1", "cpu", a torch.device. "cuda" is the current device when this is called.
            prefetch: batches on the device or on their way, besides the one in use and one in the making. 0: no thread.
            pad_on_device: send values end to end, as they are stored, and pad them on the device. This sends a quarter
                of the bytes, or less.
            static_buffers: use the same device tensors for every batch of a shape, as CUDA graphs need them. A batch is
                valid until you take the next one: use it before, and copy what you keep. At most 64 shapes, kept as
                long as this object.
        Raises:
            ValueError: pad_on_device is set, but something other than brimful pads the batches, or an earlier step
                reads the padding. (when iterated) With static_buffers: the loop holds a batch while the next one is
                made, as Accelerate does. Or more than 8 batches are held. Or two loops take these batches in turn.
        Price: a copy into pinned memory on the host, and `prefetch` + 2 batches on the device.
        Example:
            >>> import brimful as bf
            >>> next(iter(bf.from_sequence([{"input_ids": [3]}]).batch(1).to_device("meta")))["input_ids"].device.type
            'meta'
        """
        from brimful.tensors.on_device import OnDevice, StaticBuffers, check_tensors, numbered

        check_tensors(self.stage)
        check_bool("pad_on_device", pad_on_device)
        check_bool("static_buffers", static_buffers)
        sent = self._unpadded() if pad_on_device else self
        buffers = StaticBuffers() if static_buffers else None
        return replace(sent, stage=OnDevice(sent._endless, numbered(device), prefetch, buffers), repeats=False)

    def _unpadded(self) -> Batches:
        """Batches whose lists are padded by what comes next."""
        layout = self.stage.layout.unpadded() if isinstance(self.stage, LaidOut) else None
        if layout is None:
            raise ValueError(
                "pad_on_device needs brimful's own padded batches. Leave out collate_fn, other layouts and pack, and call map, "
                "take, enumerate and prefetch after to_device"
            )
        return replace(self, stage=replace(cast(LaidOut, self.stage), layout=layout))

    def shapes(self, epoch: int = 0) -> dict[tuple[int, ...], int]:
        """Counts the shapes (rows, tokens) of an epoch's batches, the most frequent first. A compiler sees each of
        them.

        With layout "grouped" these are the shapes of whole batches. With a `collate_fn` they are the planned shapes: it
        may pad otherwise. Price: the time to plan the epoch. Indexed data read no rows for this. Streamed data are read
        and tokenized.

        Raises:
            TypeError: the data are a mixture of repeating data, which has no epochs.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1] * length} for length in (7, 8, 5, 3, 4)])
        >>> samples.batch_by_tokens(16, buckets=[4, 8]).shapes()
        {(2, 8): 2, (1, 4): 1}
        """
        if not facts_of(self.stage).ends():
            raise TypeError(
                "the shapes of these batches cannot be counted: a mixture of repeating data has no epochs. Call take(n) first"
            )
        collated = collated_of(self.stage)
        if not collated.as_arrays:
            static = not collated.rules.packs and batch_facts(self.stage).shapes() is not None
            pad = static or collated.fewer_shapes
            warn_once(
                "shapes() counts the shapes as they are planned, and does not see what collate_fn makes of the samples%s%s. "
                "warm_up checks that",
                ": have it pad to the bucket, or multiple, that holds its longest sample" if pad else "",
                ", and fill up the rows of StaticShapes" if static else "",
            )
        seen = collated.layout.seen if isinstance(collated, LaidOut) else tuple
        found = Counter(seen((batch.padded_size, *batch.widths)) for batch in self.plans(epoch))
        return dict(found.most_common())

    def explain(self, batch: Any) -> Explanation:
        """Shows where the samples of a batch come from. It prints as a table.

        Each sample has a line with its length, its file and line (if read from files), and its text. The text is decoded
        by the tokenizer of the chain, or read back from a store that keeps it. A packed row has a line for each piece, in
        order. Lines and rows of files count from 1. Rows of a store and of a sequence count from 0: "store tokens, row 7"
        is `from_store(path)[7]`.

        brimful remembers this beside a batch as long as its tensors live. It costs a few us a batch, and 32 bytes for
        each sample of its window. It follows the tensors through `map`, `prefetch` and `to_device`, but not into
        another process.

        Raises:
            ValueError: the batch is not one of these, or all of its tensors were made anew, or it holds none. Or its layout
                is "grouped".

        >>> import brimful as bf
        >>> batches = bf.from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3]}]).batch(2)
        >>> batches.explain(next(iter(batches)))
        sample  place            length
             0  sequence, row 0       2
             1  sequence, row 1       1
        """
        from brimful.arrays.explained import explained

        column = collated_of(self.stage).rules.length_columns[0]
        made = facts_of(self.stage).tokenizers().get(column, ())
        return explained(batch, column, lambda tokens: made[0].text(tokens) if len(made) == 1 else None)

    @property
    def _unknown(self) -> str:
        """Why the number of batches is not known, in words."""
        by = facts_of(batch_facts(self.stage).planned).streamed_by
        if not by:
            return "the data set repeats without end"
        return f"the data set is streamed (by {by}); to_store(path) or cache() makes it known"

    @property
    def _endless(self) -> Stage[Any]:
        return Repeat(self.stage) if self.repeats else self.stage


# -- how rows become batches: what every method that makes some takes ----------------------------------------------------


class ColumnSettings(NamedTuple):
    """Which columns there are in a batch; see `Dataset.batch`."""

    length_column: LengthColumn
    token_columns: Sequence[str] | None
    pad_values: Mapping[str, float] | None
    dtypes: Mapping[str, Any] | None
    length_version: str | None = None
    sample_weight_column: str | None = None
    arrays: Mapping[str, Form] | None = None


class OrderSettings(NamedTuple):
    """Which batches come, in which order; see `Dataset.batch`."""

    drop_last: bool
    shuffle_batches: ShuffleBatches
    micro_batches: int | Literal["as_needed"] | None
    balance_group: int
    seed: int
    balance_cost: SampleCost | None = None
    samples_per_step: int | None = None


class FormSettings(NamedTuple):
    """What a batch looks like; see `Dataset.batch`."""

    layout: str
    num_groups: int | None
    pad_side: Literal["right", "left"] | None
    collate_fn: Callable[[list[Sample]], Any] | None
    max_workers: int
    executor_type: ExecutorType
    keep_text: bool
    unlabelled: Unlabelled = "keep"


def batches_of(
    stage: Stage[Block],
    repeats: bool,
    planner: BatchPlanner,
    window: int | Literal["auto", "steps"],
    columns: ColumnSettings,
    order: OrderSettings,
    form: FormSettings,
    *,
    whole_windows: bool = False,
) -> Batches:
    """Rows to batches: windows of them, each planned, each batch collated. `whole_windows`: each batch says which samples of its
    window it has; else those in arrival order wait for no window, and others may fetch their own rows alone."""
    data = facts_of(stage)
    check_bool("keep_text", form.keep_text)
    one_of("unlabelled", form.unlabelled, *get_args(Unlabelled))
    per_step = _samples_per_step(data, order, window)
    parts = _micro_batches(order, per_step)
    planner = planner if parts == 1 else planner.divided(parts)
    if form.layout == "paired":
        columns = columns._replace(length_column=_sides(columns.length_column))
        if form.unlabelled == "drop":
            raise ValueError(
                "unlabelled='drop' cannot leave out a sample of layout='paired', which counts samples. Filter them"
            )
    shuffle = _shuffled(planner, order, data, parts, per_step)
    said = columns.pad_values if form.pad_side and isinstance(columns.pad_values, Mapping) else ()
    known = paddings({name: made for name, made in data.tokenizers().items() if name not in said})
    planner, sizes, rules = _planned_over(planner, columns, form, data, known)
    originals = data.originals()
    if originals is not None:
        _check_whole(planner, rules.weights)
        rules = replace(rules, explicit=())  # there are no columns
    window = window if per_step is None else per_step
    made, rows = _windows(stage, planner, rules, sizes, columns, order, form, window, parts)
    windows: Stage[PlanningWindow] = made
    if isinstance(made, Buffered):
        # a window that the user gave may end with a batch that is not full
        in_turn = not whole_windows and planner.sizing.in_turn and rows % planner.sizing.first_rows == 0
        in_turn = in_turn and data.units is None and per_step is None
        windows = Ahead(replace(made, in_turn=in_turn), 1, "window")
    plans = PlannedWindows(
        windows,
        planner,
        order.drop_last,
        shuffle,
        order.balance_group,
        order.seed,
        order.balance_cost,
        labels_follow=rules.labels_follow,
        window=rows or window,
        samples_per_step=per_step,
    )
    planned: Stage[Batch] = Batched(plans, whole_windows) if per_step is None else Steps(plans, per_step)
    if (streams := data.streams()) is not None:
        planned = RoundRobin(planned, streams)
    if parts > 1:
        planned = MicroBatches(planned, parts, rules.labels_follow)
    tokens = known.get(rules.length_columns[0])
    own_side = "right" if tokens is None else tokens.side or "right"
    side = own_side if form.pad_side is None else form.pad_side
    return Batches(_collated(planned, rules, form, planner, side, originals), repeats)


def _micro_batches(order: OrderSettings, per_step: int | None) -> int:
    """How many batches an optimizer step has; 1 where that is not said, or depends on its samples."""
    given = 1 if order.micro_batches is None or per_step is not None else order.micro_batches
    if isinstance(given, str):
        raise ValueError(f"micro_batches must be a number of batches, or 'as_needed' (got {given!r})")
    return integer("micro_batches", given, 1, "batch")


def _shuffled(
    planner: BatchPlanner, order: OrderSettings, data: Facts, parts: int, per_step: int | None
) -> ShuffleBatches:
    """How batches are shuffled, where theirs is an order that may change."""
    shuffle = check_shuffle(order.shuffle_batches)
    if order.balance_cost is not None:
        sample_cost("balance_cost", order.balance_cost)
        if planner.sizing.in_order:
            raise ValueError(
                "balance_cost changes the order of batches, but without window= they keep the order of arrival. Give window=, or "
                "leave balance_cost out"
            )
    if planner.sizing.in_order or per_step is not None:
        return False
    if shuffle is True and (parts > 1 or (order.balance_cost is not None and data.streams() is not None)):
        return "stratified"
    return shuffle


def _planned_over(
    planner: BatchPlanner, columns: ColumnSettings, form: FormSettings, data: Facts, known: Mapping[str, Padding]
) -> tuple[BatchPlanner, tuple[Size, ...], ColumnRules]:
    """The planner as these settings have it, the sizes that it plans over, and what becomes of each column.

    Raises:
        TypeError, ValueError: settings that do not go together.
    """
    texts, weights = data.texts(), columns.sample_weight_column
    if weights is not None and not isinstance(weights, str):
        raise TypeError(f"sample_weight_column must be the name of a column of numbers (got {weights!r})")
    given = sizes_of("length_column", columns.length_column)
    if (version := columns.length_version) is not None and (
        not isinstance(version, str) or not any(map(callable, given))
    ):
        raise ValueError(
            f"length_version={version!r} is the version of functions in length_column, a text such as 'v1' (got length_column="
            f"{columns.length_column!r}). Leave it out where there is no function"
        )
    if form.layout == "paired":
        planner = replace(cast(Any, planner), sides=len(given))
    sizes, padded = planner.sizes(given)
    rules = _rules(known, sizes[:padded] or sizes[:1], columns, planner.packs, form.layout)
    own_form = [name for name in rules.length_columns if rules.arrays.get(name, "pad") != "pad"]
    if own_form and (padded or planner.overlong == "truncate"):
        raise ValueError(
            f"arrays names {own_form[0]!r}, which is planned over: it is padded, packed and cut like tokens. Leave it out of "
            "arrays=. Or plan by its sum, with a MultiBudget(total=...) and no overlong='truncate'"
        )
    pieces = cast(Any, planner.sizing.policy).row_length if planner.overlong == "split" else 0
    rules = replace(rules, left_out=() if form.keep_text else texts, weights=weights, piece_length=pieces)
    if rules.stacks and rules.prefixes:
        one_vocabulary(
            "layout='paired'",
            {name: {TOKENS: made} for name, made in data.tokenizers().items() if name in rules.length_columns},
        )
    if planner.truncate_side != "right":
        planner = replace(cast(Any, planner), token_columns=rules.aligned)
    if data.units is not None and planner.overlong == "split":
        raise ValueError(
            f"overlong='split' parts the units of {data.units.key!r}: choose 'raise', 'truncate' or 'drop'"
        )
    return planner, sizes, rules


def _windows(
    stage: Stage[Any],
    planner: BatchPlanner,
    rules: ColumnRules,
    sizes: tuple[Size, ...],
    columns: ColumnSettings,
    order: OrderSettings,
    form: FormSettings,
    window: int | str,
    parts: int,
) -> tuple[Buffered | Planned, int]:
    """The windows of a stage, and of how many rows each is; 0: of as many as the planner needs."""
    data, group = facts_of(stage), 1
    if order.balance_cost is not None and not data.streamed_by:
        group = integer("balance_group", order.balance_group, 1, "batch")
    rows, batches = _rows(window, parts * group)
    own: dict[str, Any] = {
        "size": rows,
        "length_columns": sizes,
        "lengths_required": planner.sizing.needs_lengths,
        "policy": planner.sizing.policy,
        "batches": planner.sizing.rows_of(batches),
        "unmasked": rules.aligned[0] if planner.packs else (),
        "text": TokenizedText(data.texts(), kept=form.keep_text or planner.asks_samples),
        "length_version": columns.length_version,
        "sides": rules.prefixes if rules.stacks else (),
        "is_step": order.samples_per_step is not None,
    }
    if data.streamed_by:
        first = 0 if data.units is not None else planner.sizing.first_rows
        return Buffered(stage, **own, first=first, first_share=planner.sizing.first_share), rows
    fewest = GROUPS * group if group > 1 and batches is None else None
    return Planned(cast(Indexed, stage), **own, fewest=fewest), rows


def _samples_per_step(data: Facts, order: OrderSettings, window: int | str) -> int | None:
    """How many samples an optimizer step has, where a user says that, and not how many batches.

    Raises:
        ValueError: what goes with it is missing, or does not go with it.
    """
    as_needed = order.micro_batches == "as_needed"
    if order.samples_per_step is None:
        if as_needed:
            raise ValueError("micro_batches='as_needed' needs samples_per_step, how many samples an optimizer step has")
        if data.units is not None and data.units.within == "step":
            raise ValueError(
                f"{data.units} keeps samples in one optimizer step: say samples_per_step= and micro_batches='as_needed'. Or "
                "say within='batch'"
            )
        return None
    per_step = integer("samples_per_step", order.samples_per_step, 1, "sample")
    if not as_needed:
        raise ValueError(
            f"samples_per_step={per_step:,} goes with micro_batches='as_needed' (got {order.micro_batches!r}): a step then has "
            "as many batches as its samples need"
        )
    if window not in ("auto", None) and window != per_step:
        raise ValueError(f"with samples_per_step={per_step:,} the window is a step: leave window out (got {window!r})")
    if (data.streams() or 1) > 1:
        raise ValueError(
            f"samples_per_step counts the samples of one order, and streams={data.streams():,} are read apart: read them without "
            "streams=, or write a token store with to_store(path)"
        )
    return per_step


def _check_whole(planner: BatchPlanner, weights: str | None) -> None:
    """Refuses to look into samples that are handed to a collate_fn as they are, or to cut them."""
    if planner.asks_samples:
        raise ValueError(
            f"{planner.verb} calls functions of rows, but from_dataset(collate_fn=...) hands on its samples unchanged. Give "
            "from_dataset lengths=, a function of a sample, and batch by a policy"
        )
    if weights is not None:
        raise ValueError(
            f"sample_weight_column={weights!r} names a column, but from_dataset(collate_fn=...) hands on its samples unchanged. "
            "Have collate_fn return the weights"
        )
    if planner.overlong in ("truncate", "split"):
        raise ValueError(
            f"overlong={planner.overlong!r} cuts samples, but from_dataset(collate_fn=...) hands them on unchanged. Choose "
            "'drop' or 'alone'. Or cut them in the data set's __getitem__, and give the new lengths"
        )


def _sides(length_column: LengthColumn) -> tuple[str, ...]:
    """The columns of tokens of the sides that layout="paired" puts below one another."""
    names: Any = sizes_of("length_column", length_column)
    if names == (TOKENS,):
        return PREFERENCES
    odd = [name for name in names if not isinstance(name, str) or not prefix_of(name)]
    if len(names) < 2 or odd or PROMPT + TOKENS in names:
        raise ValueError(
            f"layout='paired' takes 2 sides or more, columns whose names end in '_{TOKENS}', such as length_column={PREFERENCES} "
            f"(got {names}). A column {PROMPT + TOKENS!r} is put before each side by itself"
        )
    return tuple(names)


def _rules(
    known: Mapping[str, Padding], sizes: Sequence[Size], columns: ColumnSettings, packs: bool, layout: str = ""
) -> ColumnRules:
    lengths = tuple(map(name_of_size, sizes))
    tokens = None if columns.token_columns is None else names_of("token_columns", columns.token_columns)
    given = check_mapping("pad_values", columns.pad_values, "{'labels': -100}")
    if odd := [value for value in given.values() if not hasattr(value, "__float__")]:
        raise TypeError(f"pad_values must be numbers (got {odd[0]!r})")
    fills = {name: padding.id for name, padding in known.items() if padding.id is not None and not is_labels(name)}
    wanted = check_mapping("dtypes", columns.dtypes, "{'input_ids': 'int32'}")
    dtypes = {
        name: np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else str(dtype).removeprefix("torch.")
        for name, dtype in wanted.items()  # np.int32, jnp.int32 and torch.int32 too
    }
    named = () if lengths == ("input_ids",) else [one for one in sizes if isinstance(one, str)]
    arrays = check_mapping("arrays", columns.arrays, "{'pixels': 'concat'}")
    explicit = tuple(dict.fromkeys((*named, *given, *dtypes, *arrays)))
    functions = tuple(name_of_size(one) for one in sizes if not isinstance(one, str))
    rules = ColumnRules(lengths, tokens, fills | given, dtypes, explicit, arrays, packs, functions=functions)
    if layout != "paired":
        return rules
    own = (TOKENS, *SIDE_COLUMNS)  # of batches, whose settings are those of all sides
    given, dtypes = (
        {prefix + name: one for name, one in each.items() if name in own for prefix in rules.prefixes} | each
        for each in (given, dtypes)
    )
    explicit = tuple(name for name in explicit if name not in (*own, *lengths))
    return replace(rules, pad_values=fills | given, dtypes=dtypes, explicit=explicit, stacks=True)


def _collated(
    planned: Stage[Batch],
    rules: ColumnRules,
    form: FormSettings,
    planner: BatchPlanner,
    side: str,
    originals: Any,
) -> Collated:
    """What makes arrays by a layout, or what a user's function makes instead."""
    one_of("pad_side", side, "right", "left")
    parallel = Parallel(form.max_workers, form.executor_type, prefetch_factor=1)
    of_data = None if originals is None else originals.collate_fn
    collate_fn = of_data if form.collate_fn is None else form.collate_fn
    given = planned, rules, planner.fewer_shapes, planner.verb, form.unlabelled, in_torch
    if collate_fn is None:
        if parallel != Parallel(prefetch_factor=1):
            raise ValueError(
                "max_workers and executor_type need a collate_fn. To make batches ahead of use, call prefetch"
            )
        return LaidOut(*given, layout=_layout(form, rules, planner, side))
    if rules.arrays:
        raise ValueError("collate_fn makes the batch, so arrays has no effect. Give one of the two")
    if form.layout not in ("padded", "packed") or form.num_groups is not None:
        other = f"layout={form.layout!r}" if form.layout != "padded" else f"num_groups={form.num_groups}"
        raise ValueError(f"collate_fn makes the batch, so {other} has no effect. Give one of the two")
    in_threads = parallel.max_workers > 0 and parallel.executor_type == "thread"
    made = CollatedBy(
        *given,
        collator=Collator(function("collate_fn", collate_fn), originals, rules.left_out, in_threads),
        parallel=parallel,
        policy=planner.sizing.policy if originals is not None and originals.declared else None,
        alone=planner.overlong == "alone",
    )
    if not planner.fewer_shapes:
        return made
    take = "" if planner.shapes() else "take StaticShapes, "
    remedy = f"{take}have collate_fn pad to the buckets, and fill up the rows of StaticShapes"
    return replace(made, fewer_shapes=remedy)


def _loader_of(stage: Stage[Any]) -> type[Loader]:
    """The class of loaders of batches: one that torch knows, unless they stay arrays."""
    if collated_of(stage).convert is None:
        from brimful.loader import Loader

        return Loader
    from brimful.tensors.loader import TorchLoader

    return TorchLoader


def _in_numpy(stage: Stage[Any]) -> Stage[Any]:
    """The chain whose batches stay arrays."""
    if isinstance(stage, LaidOut):
        if not stage.layout.in_numpy:
            raise ValueError(
                f"layout={stage.layout.name!r} makes tensors that only torch has. For numpy() choose layout='padded', or "
                "pack(row_length)"
            )
        for name, dtype in stage.rules.dtypes.items():
            if dtype == BFLOAT16:
                raise ValueError(
                    f"dtypes[{name!r}] is 'bfloat16', a type that numpy has not. Choose 'float32', and convert the array on the "
                    "device, such as by jax.numpy.asarray(array, 'bfloat16')"
                )
    if isinstance(stage, Collated):
        return replace(stage, convert=None)
    if not isinstance(stage, TakeItems | EnumerateItems | Ahead | Repeat):
        verb = verb_of(stage) or "to_device"
        remedy = (
            "Leave to_device() out: jax.device_put(batch) sends arrays" if verb == "to_device" else "Call numpy() first"
        )
        raise ValueError(f"numpy() was called after {verb}(), which takes tensors. {remedy}")
    return with_inputs(stage, _in_numpy(stage.inputs[0]))


def _layout(form: FormSettings, rules: ColumnRules, planner: BatchPlanner, side: str) -> Layout:
    """The layout that a user names."""
    if form.layout == "packed":
        return PackedLayout()
    one_of("layout", form.layout, "padded", "nested", "grouped", "paired")
    static = planner.shapes() is not None
    if static and form.layout not in ("padded", "paired"):
        words = "nothing" if form.layout == "nested" else "each group to its own longest"
        raise ValueError(f"layout={form.layout!r} pads {words}, so it has no static shapes; choose layout='padded'")
    if form.layout == "grouped" and (odd := [name for name, one in rules.arrays.items() if one != "list"]):
        raise ValueError(
            f"layout='grouped' stacks arrays of one shape, and gives others as lists (got arrays={{{odd[0]!r}: "
            f"{rules.arrays[odd[0]]!r}}}). Leave it out of arrays=, or choose layout='padded'"
        )
    if form.layout == "grouped":
        return _grouped(form, planner, side)
    if form.num_groups is not None:
        raise ValueError(f"num_groups is for layout='grouped' (got layout={form.layout!r})")
    if form.layout == "nested":
        return Nested()
    return (Paired if form.layout == "paired" else Padded)(side == "left", static)


def _grouped(form: FormSettings, planner: BatchPlanner, side: str) -> Layout:
    from brimful.tensors.grouped import Grouped

    if form.pad_side == "left":
        raise ValueError("layout='grouped' pads on the right; leave pad_side out, or choose layout='padded'")
    if side == "left":
        warn_once(
            "layout='grouped' pads on the right, but the tokenizer pads on the left. Give pad_side='right' if this is meant, or "
            "choose layout='padded'"
        )
    multiple, buckets = getattr(planner.rounded, "pad_to_multiple_of", 1), getattr(planner.rounded, "buckets", None)
    groups = integer("num_groups", 4 if form.num_groups is None else form.num_groups, 1, "group")
    return Grouped(groups, Rounding(pad_to_multiple_of=multiple, buckets=buckets))


def _rows(window: int | str, step_batches: int) -> tuple[int, int | None]:
    """How many rows are planned over, 0 where the policy says, and how many batches it then is to make of them, if so many."""
    if window == "auto":
        return 0, None
    if window == "steps":
        return 0, 2 * step_batches
    if isinstance(window, str):
        raise ValueError(f"window must be a number of rows, 'auto' or 'steps' (got {window!r})")
    return integer("window", window, 1, "row"), None
