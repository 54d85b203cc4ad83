"""The fluent face: what users write. Each method adds a stage; the stages do the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from brimful import algebra, batching, transforms
from brimful.algebra import EngineName
from brimful.core.errors import integer, names_of, positive
from brimful.core.iterator import ResumableIterator
from brimful.core.stream import Stage, check_depth, num_streams, shown
from brimful.rows.blocks import Block, Sample
from brimful.rows.choice import Choice
from brimful.rows.chunk import Chunk
from brimful.rows.concat_chunk import ConcatChunk
from brimful.rows.enumerate import Enumerate
from brimful.rows.pack_chunk import PackChunk
from brimful.rows.pad import Pad
from brimful.rows.rebatch import Rebatch
from brimful.rows.scan import Scan
from brimful.rows.sides import Split
from brimful.rows.window import Window
from brimful.steps.dataloader import refuse_ragged

if TYPE_CHECKING:
    from brimful.loader import Loader


@dataclass(frozen=True)
class Dataset:
    """A stream of samples: a description, cheap and immutable. Iterating over it runs it from the start.

    >>> import brimful as bf
    >>> dataset = bf.from_sequence([{"x": 1}, {"x": 2}, {"x": 3}]).filter(lambda sample: sample["x"] != 2)
    >>> list(dataset)
    [{'x': 1}, {'x': 3}]
    """

    stage: Stage[Block]
    repeats: bool = False

    def __post_init__(self) -> None:
        check_depth(self.stage)

    def __iter__(self) -> Iterator[Sample]:
        return self.iter()

    def iter(
        self, state_dict: dict[str, Any] | None = None, *, allow: Collection[str] = ()
    ) -> ResumableIterator[Sample]:
        """An iterator over the samples, from the start or from a state that an iterator of this data set gave.

        Args:
            state_dict: what `state_dict()` returned; it is not changed.
            allow: settings in which the state may differ: "urls", "weights".
        Raises:
            StateError: the state belongs to another pipeline, or the data read again are not those it was saved over.

        >>> import brimful as bf
        >>> it = bf.from_sequence([{"x": 1}, {"x": 2}]).iter()
        >>> next(it)
        {'x': 1}
        >>> list(bf.from_sequence([{"x": 1}, {"x": 2}]).iter(it.state_dict()))
        [{'x': 2}]
        """
        return ResumableIterator(algebra.sampled(self.stage, self.repeats), state_dict, allow)

    def loader(self) -> Loader:
        """The samples as an IterableDataset of an epoch at a time, with state_dict, load_state_dict and set_epoch: see `Loader`.

        A DataLoader around it batches by a collate_fn: DataLoader(dataset.loader(), batch_size=32, collate_fn=...), with
        num_workers=0. Its state is the place after the samples that were asked for. Ranks of a data-parallel run all get all
        samples: `stride(world_size, rank)` says which, `Batches.shard` shares out batches.

        >>> import brimful as bf
        >>> loader = bf.from_sequence(["a", "b"]).loader()
        >>> [[sample["text"] for sample in loader] for epoch in range(2)]
        [['a', 'b'], ['a', 'b']]
        """
        from brimful.loader import Loader, Samples

        return Loader(Samples(algebra.sampled(self.stage, self.repeats), partial(len, self), num_streams(self.stage)))

    def __len__(self) -> int:
        return algebra.count_of(self.stage, self.repeats)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: int) -> Sample:
        """One sample of indexed data, in the order of its first epoch; any of them at once.

        Price: of shuffled data 10 ms or so each time, as its shuffle window is put in order; all of them: iterate.

        >>> import brimful as bf
        >>> bf.from_sequence(["a", "b"], repeat=True).skip(10**12)[1]
        {'text': 'b'}
        """
        return algebra.samples_at(self._endless, [number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """Samples at once, for torch's DataLoader."""
        found = algebra.samples_at(self._endless, numbers)
        refuse_ragged(found)
        return found

    def __add__(self, other: Dataset) -> Dataset:
        return Dataset(algebra.concatenated(stages_of("concat_datasets", [self, other])))

    def __repr__(self) -> str:
        return f"Dataset({shown(self.stage)}{', repeat' if self.repeats else ''})"

    @property
    def kind(self) -> str:
        """Either "indexed" (any sample at once), or "streamed" and the stage that made it so."""
        return algebra.kind_of(self.stage)

    # -- samples ---------------------------------------------------------------------------------------------------------

    map = transforms.map
    filter = transforms.filter
    filter_map = transforms.filter_map
    flat_map = transforms.flat_map
    map_blocks = transforms.map_blocks

    def scan(self, fn: Callable[[Any, Sample], tuple[Any, Sample]], initial: Any) -> Dataset:
        """`fn(carry, sample)` gives (carry, sample), as of jax.lax.scan: a sample for each, and what the next call is handed.

        Args:
            fn: the carry comes first, and goes first.
            initial: the carry of the first call of each epoch. All of them are plain JSON: None, bool, int, finite float, str,
                lists and dicts of these. The state holds one: keep it small.
        Raises:
            TypeError: `initial` is something else.
            ValueError: the samples are in several streams.
            StageError: (when run) `fn` raised, or returned something else; with file and line.
        State: [upstream's state, the carry]. Price: Python, once a sample, and a copy of the carry.

        >>> import brimful as bf
        >>> def running_total(total, sample): return total + sample["x"], {"total": total + sample["x"]}
        >>> list(bf.from_sequence([{"x": 1}, {"x": 2}, {"x": 4}]).scan(running_total, 0))
        [{'total': 1}, {'total': 3}, {'total': 7}]
        """
        return self._add(Scan(self.stage, fn, initial))

    def window(self, width: int) -> Dataset:
        """`width` neighbours in one sample, each column a list of theirs; of n samples of an epoch n - width + 1, or none.

        A sample is said to come from where its first one does. Of several streams it is refused.

        State: [upstream's state, samples, blocks, crc32]; a resume reads the last width - 1 samples again.
        Price: they are held; memory and time are `width` times those of the samples, 1 MB or so at a time.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b", "c"]).window(2))
        [{'text': ['a', 'b']}, {'text': ['b', 'c']}]
        """
        return self._add(Window(self.stage, width))

    tokenize = transforms.tokenize
    add_bos_eos = transforms.add_bos_eos
    ensure_bos_eos = transforms.ensure_bos_eos
    causal_labels = transforms.causal_labels
    chat = transforms.chat

    def chunk(
        self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",), drop_remainder: bool = True
    ) -> Dataset:
        """Each sample cut by itself; the rows have the target columns alone.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": list(range(10))}, {"input_ids": [10, 11]}])
        >>> [sample["input_ids"].tolist() for sample in samples.chunk(6)]
        [[0, 1, 2, 3, 4, 5]]
        """
        return self._add(Chunk(self.stage, chunk_length, _targets(target_columns), drop_remainder))

    def concat_chunk(self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",)) -> Dataset:
        """All samples end to end, cut; the tail of an epoch that fills no chunk is dropped and counted.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [0, 1, 2]}, {"input_ids": [3, 4]}])
        >>> [sample["input_ids"].tolist() for sample in samples.concat_chunk(2)]
        [[0, 1], [2, 3]]
        """
        return self._add(ConcatChunk(self.stage, _targets(target_columns), chunk_length))

    def pack_chunk(
        self,
        chunk_length: int,
        *,
        target_columns: Sequence[str] = ("input_ids",),
        discard_long_samples: bool = False,
    ) -> Dataset:
        """Neighbouring samples joined as long as they fit; a longer one is cut to a chunk, or left out, and counted.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [0, 1]}, {"input_ids": [2]}, {"input_ids": [3, 4]}])
        >>> [sample["input_ids"].tolist() for sample in samples.pack_chunk(4)]
        [[0, 1, 2], [3, 4]]
        """
        return self._add(PackChunk(self.stage, _targets(target_columns), chunk_length, discard_long_samples))

    def pad(self, pad_values: Mapping[str, int], chunk_length: int) -> Dataset:
        """Fills each list of the columns in `pad_values` to `chunk_length` values.

        `attention_mask` says how many each had (1, then 0), by the first of these columns, unless the samples have a mask:
        that is filled with 0.
        """
        return self._add(Pad(self.stage, dict(pad_values), chunk_length))

    def select(self, names: str | Sequence[str]) -> Dataset:
        """The samples with these columns alone, in this order. Indexed data stay indexed; of a store no others are read.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"id": 1, "text": "a"}]).select("text"))
        [{'text': 'a'}]
        """
        return self._add(algebra.chosen(self.stage, Choice("select", names_of("select", names))))

    def drop(self, names: str | Sequence[str]) -> Dataset:
        """The samples without these columns."""
        return self._add(algebra.chosen(self.stage, Choice("drop", names_of("drop", names))))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """The samples with other names for some columns: {old: new}.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a"]).rename({"text": "prompt"}))
        [{'prompt': 'a'}]
        """
        return self._add(algebra.chosen(self.stage, Choice("rename", tuple(names), tuple(names.values()))))

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> Dataset:
        """The rows of each window of `buffer_size` in a random order, another one each epoch.

        Price: one and a half windows held, of indexed data as 8 bytes a sample; a resume reads the window again.
        """
        return self._add(algebra.shuffled(self.stage, buffer_size, seed))

    def peek(self, n: int = 5) -> list[Sample]:
        """The first n samples, or all where there are fewer.

        >>> import brimful as bf
        >>> bf.from_sequence(["a", "b", "c"]).peek(2)
        [{'text': 'a'}, {'text': 'b'}]
        """
        with self.iter() as samples:
            return list(islice(samples, integer("n", n, 0, "samples")))

    def take(self, n: int) -> Dataset:
        """The first n samples; of a repeating data set, over as many epochs as that needs.

        Of several streams (`from_files(streams=...)`), which have no order of rows, it is refused, as `skip`, `stride` and
        `enumerate` are: see `peek`, `filter` and `Batches.take`.
        """
        return Dataset(algebra.taken(self._endless, n))

    def skip(self, n: int) -> Dataset:
        """All but the first n samples. Price: of indexed data nothing, else they are read."""
        return Dataset(algebra.skipped(self._endless, n))

    def stride(self, interval: int, offset: int) -> Dataset:
        """Sample i where i mod `interval` == `offset`."""
        return Dataset(algebra.strided(self._endless, interval, offset))

    def enumerate(self, *, count_column: str = "step") -> Dataset:
        """Adds the number of each sample in the stream, from 0, as a column; it goes on over epochs."""
        return Dataset(Enumerate(self._endless, count_column))

    def train_valid_split(
        self, valid_share: float, *, key: str | None = None, seed: int = 42
    ) -> tuple[Dataset, Dataset]:
        """Two data sets: the samples for training, and about a share of `valid_share` for validation.

        A sample's side follows from what is in it: data that grow move none across, equal samples are on one side, and of a
        greater share the samples for validation are those of a smaller one and more.

        Args:
            valid_share: above 0 and below 1.
            key: a column: samples that have one value in it (a document's id) stay together. None: all columns count.
            seed: another one, another split.
        Raises:
            DataError: (when run) there is no such column, or one whose values have no hash.
        Price: 40 ns a number and 5 ns a byte of text. Sources of indexed data stay indexed (see `filter`): when the first side
            is used, in each process, all are read once for both, of a store with a key that column alone; 9 bytes a sample.

        >>> import brimful as bf
        >>> train, valid = bf.from_sequence([{"n": n} for n in range(10_000)]).train_valid_split(0.05)
        >>> len(train), len(valid)
        (9486, 514)
        """
        train, valid = algebra.split(self.stage, Split(valid_share, key, seed))
        return Dataset(train, self.repeats), Dataset(valid, self.repeats)

    def cache(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        version: str | None = None,
        timeout_seconds: float = 600.0,
        engine: EngineName = "local",
        ray_address: str | None = None,
    ) -> Dataset:
        """The samples of the first epoch, read once and kept, in stream order: an indexed data set.

        Args:
            path: None: in memory. A folder: a token store, complete before the first sample is handed out, or the finished
                one of the same pipeline that is there already; what was interrupted goes on where it stopped. Every column
                is stored, a text that has been tokenised too. Its files, `path/*.arrow`, open anywhere: pyarrow, polars,
                `datasets.load_dataset("arrow", data_files=...)`.
            version: of the functions in the chain, which a store cannot tell apart: another one when they change.
            timeout_seconds: how long to wait for another writer of the store that makes no progress.
            engine: "local", or "ray": the shards of `from_files` are read and worked on by the processes of a Ray cluster, up to
                the first stage that goes by more than single rows (it and what follows run here, which is logged). The files
                are those that "local" writes, to the byte. A worker that is killed costs what of its shard had not arrived.
            ray_address: of the cluster, "auto" or "host:port". None: the one that this process is connected to, or that
                RAY_ADDRESS names, or one on this machine, which is started if need be.
        Raises:
            ValueError: functions without a version; a folder of other things; nothing that Ray could spread.
            ModuleNotFoundError: (when run) Ray is not installed: `pip install 'brimful[ray]'`.
            StateError: (when run) another pipeline wrote the store, or another engine began it; both are named.
            TimeoutError: (when run) the other writer, which is named, makes no progress.
        Price: on disk 2 bytes a token where the chain tokenises and the vocabulary has at most 65,536, else 4; other integers
            take what their type takes; and 4 bytes a row and list column.
        """
        timeout = positive("timeout_seconds", timeout_seconds)
        return Dataset(algebra.cached(self.stage, path, version, timeout, engine, ray_address), self.repeats)

    def to_hf(self, path: str | os.PathLike[str] | None = None) -> Any:
        """All samples as a `datasets.Dataset`, over one Arrow file that is written now and mapped into memory.

        Types stay: lists, texts, nulls, integers of any width; arrays of a fixed shape become Array2D to Array5D.

        Args:
            path: a new folder, which `datasets.load_from_disk` reads too; None: one in the cache of `datasets`, which stays
                there until it is removed.
        Raises:
            ValueError: the data set repeats without end; a folder of other things.
            DataError: (at once) rows differ in their columns or types, with file and line.
            ModuleNotFoundError: `datasets` is not installed: `pip install 'brimful[hf]'`.
        Price: what the chain costs, and about 2 ns a byte; 30 MB held.
        """
        return algebra.hugging_face(self.stage, self.repeats, path)

    def lengths(self, column: str = "input_ids") -> NDArray[Any]:
        """The number of tokens of each sample, integers (n,), in the order of the data: of a store, memory-mapped.

        Of what is shuffled, in the order before; of slices and mixtures of what is shuffled, in that of epoch 0.

        Raises:
            TypeError: the data set is streamed, or has no end.
            DataError: there is no such list column, or it has nulls.

        >>> import brimful as bf
        >>> bf.from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3]}]).lengths().tolist()
        [2, 1]
        """
        return algebra.lengths_of(self.stage, column)

    # -- batches ---------------------------------------------------------------------------------------------------------

    batch = batching.batch
    batch_by_tokens = batching.batch_by_tokens
    batch_by = batching.batch_by
    pack = batching.pack

    # -- within ----------------------------------------------------------------------------------------------------------

    @property
    def _endless(self) -> Stage[Block]:
        return algebra.endless(self.stage) if self.repeats else self.stage

    def _add(self, stage: Stage[Block]) -> Dataset:
        return Dataset(Rebatch(stage) if stage.makes_long_blocks else stage, self.repeats)


def stages_of(caller: str, datasets: Sequence[Dataset], *, once: bool = False) -> tuple[Stage[Block], ...]:
    """What some data sets run, epoch after epoch where they repeat; `once`: one epoch."""
    given: tuple[Any, ...] = tuple(datasets)
    if not given:
        raise ValueError(f"{caller} needs at least one data set (got none)")
    for number, dataset in enumerate(given):
        if not isinstance(dataset, Dataset):
            kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            raise TypeError(f"{caller}: data set {number} is a {kind}; make it one by from_sequence or from_iterable")
    return tuple(dataset.stage if once else dataset._endless for dataset in given)


def _targets(names: str | Sequence[str]) -> tuple[str, ...]:
    columns = names_of("target_columns", names)
    if not columns:
        raise ValueError("target_columns must name at least one column (got none)")
    return columns
