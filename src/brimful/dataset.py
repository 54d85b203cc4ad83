"""The fluent face: what users write. Each method adds a stage; the stages do the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import index, is_
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, TypeAlias, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from brimful.arrays.collated import Unlabelled
from brimful.arrays.forms import Form
from brimful.batches import Batches, ColumnSettings, FormSettings, OrderSettings, batches_of
from brimful.batching.order import ShuffleBatches
from brimful.batching.planners import ByKey, ByPacking, ByPolicy
from brimful.batching.round_robin import RoundRobin
from brimful.batching.shuffle import Shuffle
from brimful.batching.sizes import LengthColumn, Size, sizes_at
from brimful.core.counters import OnError
from brimful.core.facts import Within, facts_of, refuse_units, shown, verb_of
from brimful.core.iterator import ResumableIterator
from brimful.core.repeat import Repeat
from brimful.core.stage import BLOCK_ROWS, Stage, check_depth, with_inputs
from brimful.core.terminal import shown as progress
from brimful.encoding.conversations import TrainOn
from brimful.encoding.encoder import one_vocabulary
from brimful.encoding.encoders import chat_encoder_for, encoder_for, loaded
from brimful.encoding.engines import EngineName
from brimful.index.fetched import FetchSamples, fetched
from brimful.index.indexed import SPAN, Indexed, Source
from brimful.index.indexed import Choose as IndexChoose
from brimful.index.indexed import Repeat as IndexRepeat
from brimful.index.joined import Concat as IndexConcat
from brimful.index.joined import Interleave as IndexInterleave
from brimful.index.joined import Zip as IndexZip
from brimful.index.map_style import SAMPLE
from brimful.index.order import Shuffle as IndexShuffle
from brimful.index.order import Slice
from brimful.index.select import Filter as IndexFilter
from brimful.index.select import SplitMask
from brimful.index.select import TrainValidSplit as IndexTrainValidSplit
from brimful.index.sequence import CachedIndex, FromSequence
from brimful.index.units import Placed
from brimful.index.units import Units as IndexUnits
from brimful.plan import FixedSize, Overlong, Packed, Policy, TokenBudget
from brimful.plan.buckets import Rounding
from brimful.plan.costs import SampleCost, sample_cost
from brimful.plan.errors import (
    check_bool,
    check_version,
    function,
    integer,
    names_of,
    one_of,
    timeout,
    warn_once,
)
from brimful.plan.plan import is_policy
from brimful.ray.spread import spread
from brimful.rows.buffer import Rebatch, Unbatch
from brimful.rows.chunks import Chunk, ConcatChunk, PackChunk, SlidingWindow
from brimful.rows.columns import (
    AddBosEos,
    CausalLabels,
    Choice,
    Choose,
    EnsureBosEos,
    Pad,
    TrainValidSplit,
    bos_eos_of,
    renaming,
)
from brimful.rows.counting import Enumerate, RowKeys, Skip, Stride, Take
from brimful.rows.functions import Filter, MapBlocks, SampleFunction, Scan
from brimful.rows.mixing import Concat, Interleave, Zip
from brimful.rows.parallel import MAX_WORKERS, ExecutorType, Parallel
from brimful.rows.tokens import Chat, Tokenize
from brimful.rows.units import Units, together
from brimful.store.index import StoreIndex
from brimful.store.writer import write_store
from brimful.tables.blocks import Block, Sample, samples
from brimful.tables.describe import as_html, as_text, described_chain
from brimful.tables.hashes import Side, Split
from brimful.tables.learnt import Learnt
from brimful.tables.ragged import TOKENS, TruncateSide
from brimful.tables.schema import Types, asked

if TYPE_CHECKING:
    from brimful.loader import Loader

Executor: TypeAlias = Literal["local", "ray"]
"""Where work runs: in this process, or on a Ray cluster."""

LONG_BLOCKS: Final = {"chunk", "concat_chunk", "flat_map", "map_blocks", "pack_chunk"}
"""A block of their input may become one of more than 4,096 rows, which is cut before others have it."""


@dataclass(frozen=True)
class Dataset:
    """A stream of samples. It is an immutable description: nothing runs until you iterate over it.

    >>> import brimful as bf
    >>> dataset = bf.from_sequence([{"x": 1}, {"x": 2}, {"x": 3}]).filter(lambda sample: sample["x"] != 2)
    >>> list(dataset)
    [{'x': 1}, {'x': 3}]
    """

    stage: Stage[Block]
    repeats: bool = False
    _streamed_by: ClassVar[str] = "stream"  # where no stage streams: `stream()` does

    def __post_init__(self) -> None:
        check_depth(self.stage)
        check_bool(
            "repeat", self.repeats, "True repeats the data without end; for n epochs, loop over loader() n times"
        )
        _ = facts_of(self.stage).originals()  # which a stage that works on rows refuses

    def __iter__(self) -> Iterator[Sample]:
        return self.iter()

    def iter(
        self, state_dict: dict[str, Any] | None = None, *, allow: Collection[str] = ()
    ) -> ResumableIterator[Sample]:
        """An iterator over the samples, from the start or from a saved state.

        Args:
            state_dict: the state that `state_dict()` of an iterator of this data set returned. It is not changed.
            allow: settings in which the state may differ from this data set. "functions": your functions changed, but
                give the same rows for the samples already taken. A resume calls them again from the beginning of the
                open window. "urls": shards were moved, or added at the end. "rows": values of rows changed, such as the
                last bit of a float; this is logged. "weights": the weights of a mixture changed. The rows that are
                read again keep the old ones: the open window, and the blocks of up to 4,096 rows in which it lies. The
                new ones hold after them; the log says from which sample on. "sources": a mixture of named data sets
                has some more, or lacks some. One that is left out needs a weight of 0 before, as rows of it may have
                to be read again.
        Raises:
            StateError: the state belongs to another pipeline, or the data have changed since it was saved. The error
                names the column. docs/data.md says what is compared, and which edits are not found.

        >>> import brimful as bf
        >>> it = bf.from_sequence([{"x": 1}, {"x": 2}]).iter()
        >>> next(it)
        {'x': 1}
        >>> list(bf.from_sequence([{"x": 1}, {"x": 2}]).iter(it.state_dict()))
        [{'x': 2}]
        """
        return ResumableIterator(self._samples, state_dict, allow)

    def loader(self) -> Loader:
        """The samples as an IterableDataset, one epoch at a time, with state_dict, load_state_dict and set_epoch: see
        `Loader`.

        Give it to a DataLoader to make batches with a collate_fn: DataLoader(dataset.loader(), batch_size=32,
        collate_fn=...). Use num_workers=0. The saved place is the one after the last sample that the DataLoader asked
        for. In a data-parallel run, every rank gets all samples. To divide them, use `stride(world_size, rank)` for
        samples, or `Batches.shard` for batches.

        >>> import brimful as bf
        >>> loader = bf.from_sequence(["a", "b"]).loader()
        >>> [[sample["text"] for sample in loader] for epoch in range(2)]
        [['a', 'b'], ['a', 'b']]
        """
        from brimful.loader import Samples
        from brimful.tensors.loader import TorchLoader

        return TorchLoader(Samples(self._samples, partial(len, self)))

    def __len__(self) -> int:
        raise TypeError(
            f"the length of this data set is not known: it is {self.kind} (a DataLoader takes its loader())"
        )

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: Any) -> Any:
        _check_number(number)
        raise TypeError(
            f"this data set cannot give a sample by its number: it is {self.kind}. Call cache() to keep it in memory, or "
            "to_store(path) to keep it on disk"
        )

    if not TYPE_CHECKING:  # else any attribute would pass for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            here = name.removeprefix("parallel_")  # as epochraft calls them
            also = f": call {here}(fn, max_workers=4)" if name != here in ("map", "filter", "filter_map") else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{also}")

    def __add__(self, other: Dataset) -> Dataset:
        return concatenated([self, other])

    def __repr__(self) -> str:
        return as_text(type(self).__name__, described_chain(self.stage, self.stage, self.repeats), self.repeats)

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, described_chain(self.stage, self.stage, self.repeats))

    @property
    def kind(self) -> str:
        """Either "indexed" (any sample at once), or "streamed" and the stage that made it so.

        >>> import brimful as bf
        >>> bf.from_sequence(["a"]).kind, bf.from_sequence(["a"]).map(lambda sample: sample).kind
        ('indexed', 'streamed (by map)')
        """
        by = facts_of(self.stage).streamed_by or self._streamed_by
        return f"streamed (by {by})" if by else "indexed"

    def stream(self, *, num_workers: int = 0) -> Dataset:
        """The same samples as a stream, for methods that indexed data refuse, or before their lengths are known.

        A mixture becomes one of streams. Then its weights may change at any resume.

        The samples of `from_dataset` are made as they are needed, ahead of use, and measured as they come. No pass over the
        data measures them first, so their lengths may be the result of augmentation or of a processor. `lengths=` is not
        used. Batches are planned in windows of real lengths, as those of any stream, so their number is not known. The
        order is that of the indexed data, with shuffles and slices. If the data set has `__getitems__`, as `Subset` of
        torch has, each call asks for several samples.

        A resume makes the samples of the open window again, and compares them. It is exact if a number always gives the
        same sample. Other samples are an error that names the column; `iter(state, allow={"rows"})` goes on. In worker
        processes, brimful seeds the random numbers of Python, numpy and torch for each sample, by its place in the epoch.
        So random augmentation differs from epoch to epoch, and is the same after a resume. Data sets with `__getitems__`,
        and `num_workers=0`, are not seeded so: there random samples are an error at a resume.

        Several ranks cannot share such a stream: each would make all samples. Give `from_dataset` their lengths instead.

        Args:
            num_workers: how many processes make the samples of `from_dataset`. 0: the thread that needs them. Processes
                are new interpreters, never forks. cloudpickle sends each of them the data set once. Results do not depend
                on their number.
        Raises:
            ValueError: workers are given, and there is no data set of `from_dataset` to make samples of. Or it has a
                `collate_fn`, which gets samples and not rows: give that to `batch`.
            TypeError: (when run) the data set cannot be pickled.
            StageError: (when run) a sample cannot be made. The error has its number. Or a worker has died.
        State: the epoch and the samples handed on, and up to a window of them to make again.
        Price: a process takes .4 s to begin, and 80 MB beside the data set. Up to 11 blocks of 25 ms of work are held for
            each. A sample travels as Arrow, in about 10 us. Seeding takes 40 us a sample.

        >>> import brimful as bf
        >>> mixed = bf.interleave_datasets([bf.from_sequence(["a", "b"]), bf.from_sequence(["c"])])
        >>> list(mixed.stream().filter(lambda sample: sample["text"] != "a"))
        [{'text': 'c'}, {'text': 'b'}]
        >>> class Squares:
        ...     def __len__(self): return 3
        ...     def __getitem__(self, number): return {"input_ids": [number] * number ** 2}
        >>> batches = bf.from_dataset(Squares()).stream(num_workers=1).batch_by_tokens(4, shuffle_batches=False)
        >>> [batch["input_ids"].shape for batch in batches]
        [torch.Size([1, 4]), torch.Size([2, 1])]
        """
        workers = integer("num_workers", num_workers, 0, "processes", most=MAX_WORKERS)
        whole = facts_of(self.stage).originals() is not None  # objects of the user's, which are handed on as they are
        if whole and workers:
            raise ValueError(
                f"stream(num_workers={workers}) makes rows of samples, but from_dataset(collate_fn=...) hands them on unchanged. "
                "Give the function to the method that makes batches, batch(..., collate_fn=...)"
            )
        made = self.stage if whole else streamed(self.stage, workers)
        if workers and not _fetches(made):
            raise ValueError(
                f"stream(num_workers={workers}) makes the samples of from_dataset, and {shown(self.stage)} has none to make. "
                "Call stream right after from_dataset, before units, filter, train_valid_split and cache"
            )
        return Dataset(made, self.repeats)

    # -- samples ---------------------------------------------------------------------------------------------------------

    def map(
        self,
        fn: Callable[..., Sample],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
        schema: Types | None = None,
    ) -> Dataset:
        """Replaces each sample by `fn(sample)`. With a seed, brimful calls `fn(sample, rng)` with a numpy generator.

        Token columns arrive as numpy arrays that `fn` may change. The results and their order do not depend on the
        number of workers. Price: one Python call a sample. `map_blocks` is faster.

        Args:
            fn: takes a sample, and returns the new one as a dict.
            seed: call `fn(sample, rng)`. `rng` is a numpy generator. brimful seeds it for each row, so the number of
                workers changes nothing.
            on_error: the reaction to an error in `fn`. "raise" names file and line. "skip" leaves the sample out,
                counts it as `skipped` in `.stats`, and logs file, line and error.
            max_workers: threads or processes that call `fn`. 0: the caller's thread.
            executor_type: "thread" is for functions that wait or release the interpreter's lock. "process" is for
                functions that compute in Python. cloudpickle sends them to the workers, so functions from your script
                work too. Blocks travel as Arrow IPC.
            prefetch_factor: how many parts of blocks each worker may work on, or hold ready, before they are needed.
            schema: the type of every column of the results, as for `from_files`. By default, the first results show
                them, also if the source has a `schema`. float32 and int8 then become float64 and int64. Objects stay as
                they are, if JSON gives them back unchanged. Others become structs.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"x": 1}]).map(lambda sample: {"y": sample["x"] + 1}))
        [{'y': 2}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._called("map", fn, seed, on_error, parallel, schema)

    def filter(
        self,
        fn: Callable[..., bool],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """Keeps the samples for which `fn(sample)` is true. With a seed, brimful calls `fn(sample, rng)`.

        Price: one Python call a sample. Indexed data stay indexed. Each process then reads all sources at the first use
            and calls `fn` for every sample. It holds 8 bytes for each sample that stays. Indexed data refuse a seed
            here, and a slice, mixture or zip before `filter`: use `stream().filter(...)` instead. Other arguments are
            as for `map`. With indexed data, `.stats` counts the samples left out only in the iterator that runs the
            filter first.

        >>> import brimful as bf
        >>> numbers = bf.from_sequence([{"n": n} for n in range(8)]).stream()
        >>> [sample["n"] for sample in numbers.filter(lambda sample: sample["n"] % 2 == 0)]
        [0, 2, 4, 6]
        >>> [sample["n"] for sample in numbers.filter(lambda sample, rng: rng.random() < 0.5, seed=2)]
        [0, 2, 5, 6]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._called("filter", fn, seed, on_error, parallel)

    def filter_map(
        self,
        fn: Callable[..., Sample | None],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
        schema: Types | None = None,
    ) -> Dataset:
        """Replaces each sample by `fn(sample)`, and leaves it out if the result is None. With a seed, brimful calls
        `fn(sample, rng)`.

        Other arguments are as for `map`.

        >>> import brimful as bf
        >>> def half(sample): return {"n": sample["n"] // 2} if sample["n"] % 2 == 0 else None
        >>> list(bf.from_sequence([{"n": 2}, {"n": 3}, {"n": 4}]).filter_map(half))
        [{'n': 1}, {'n': 2}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._called("filter_map", fn, seed, on_error, parallel, schema)

    def flat_map(
        self,
        fn: Callable[..., Iterable[Sample]],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
        schema: Types | None = None,
    ) -> Dataset:
        """Replaces each sample by all samples of `fn(sample)`. With a seed, brimful calls `fn(sample, rng)`. Other
        arguments are as for `map`.

        >>> import brimful as bf
        >>> def words(sample): return [{"text": word} for word in sample["text"].split()]
        >>> list(bf.from_sequence(["a b", "", "c"]).flat_map(words))
        [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._called("flat_map", fn, seed, on_error, parallel, schema)

    def map_blocks(
        self,
        fn: Callable[[Block], Block],
        *,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """Replaces each block of rows by `fn(block)`. A block is a pyarrow.RecordBatch of 1 to 4,096 rows. `fn` may
        change its columns and its number of rows.

        `fn` must not depend on where blocks begin and end. A column of objects is JSON text, of Arrow's type `json`.
        `column.cast(pa.string())` gives the text, and `text.cast(pa.json_())` such a column. `schema=` of the source
        can ask for a struct instead. Price: the time of `fn`, and nothing for each sample.
        Workers are as for `map`. Each worker gets whole blocks.

        >>> import brimful as bf
        >>> import pyarrow.compute as pc
        >>> rows = bf.from_sequence([{"n": 1}, {"n": 5}, {"n": 9}])
        >>> list(rows.map_blocks(lambda block: block.filter(pc.greater(block["n"], 2))))
        [{'n': 5}, {'n': 9}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor, shares=False)
        return self._add(MapBlocks(self.stage, function("map_blocks", fn), parallel=parallel))

    def scan(
        self, fn: Callable[[Any, Sample], tuple[Any, Sample]], initial: Any, *, schema: Types | None = None
    ) -> Dataset:
        """Replaces each sample by the second value of `fn(carry, sample)`. The first value is the carry of the next
        call, as in jax.lax.scan.

        Args:
            fn: takes (carry, sample) and returns (carry, sample).
            initial: the carry of the first call of each epoch (after `concat_chunk`, of the first epoch). Every carry is
                plain JSON: None, bool, int, finite float, str, lists and dicts of these. The state holds one carry, so
                keep it small.
            schema: the type of every column of the samples, as for `map`.
        Raises:
            TypeError: `initial` is not plain JSON.
            ValueError: the data are read as several streams.
            StageError: (when run) `fn` raised an error or returned something else. The error names file and line.
        State: [upstream's state, the carry]. Price: one Python call a sample, and a copy of the carry.

        >>> import brimful as bf
        >>> def running_total(total, sample): return total + sample["x"], {"total": total + sample["x"]}
        >>> list(bf.from_sequence([{"x": 1}, {"x": 2}, {"x": 4}]).scan(running_total, 0))
        [{'total': 1}, {'total': 3}, {'total': 7}]
        """
        return self._add(Scan(self.stage, function("scan", fn), initial, learnt=Learnt(asked(schema))))

    def sliding_window(self, width: int) -> Dataset:
        """Joins `width` neighbours into one sample. Each column becomes a list of their values. An epoch of n samples
        gives n - width + 1, or none.

        The origin of a sample is the origin of its first neighbour. Data that are read as several streams are refused.

        State: where the samples begin that the next one needs, how many they are, and their checksums. A resume reads
            the last width - 1 samples again.
        Price: the last width - 1 samples are held. Memory and time are `width` times those of the samples, about 1 MB
            at a time.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b", "c"]).sliding_window(2))
        [{'text': ['a', 'b']}, {'text': ['b', 'c']}]
        """
        return self._add(SlidingWindow(self.stage, width))

    def tokenize(
        self,
        tokenizer: Any,
        *,
        column: str | Sequence[str] = "text",
        output_column: str | Sequence[str] = "input_ids",
        output_prefix: str | Sequence[str] = "",
        truncation: bool | str | None = None,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        remove_columns: str | Sequence[str] = (),
        engine: EngineName = "auto",
        extra_outputs: str | Sequence[str] = (),
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        max_workers: int = 1,
        executor_type: ExecutorType = "thread",
    ) -> Dataset:
        """Adds the tokens of a text column as int32. It tokenizes whole blocks, ahead of use.

        Args:
            tokenizer: a tokenizers.Tokenizer, a transformers tokenizer, a tiktoken.Encoding, a gigatoken.Tokenizer, or
                a callable list[str] -> list[list[int]]. Or the name of one, as on the command line: a tokenizer.json, a
                folder or name for transformers, or tiktoken:NAME. brimful never changes it, and threads work on clones.
                A gigatoken.Tokenizer is not compared with another tokenizer. Its memory grows with the number of
                different words.
            column: the text column, or several. With as many columns as `output_column`, each is tokenized by itself
                (the input of an encoder and the labels of a decoder). With two columns and one output, each row is a
                pair of texts (for a cross-encoder). transformers gets `tokenizer(a, b)`, a callable gets two lists.
            output_column: the column, or columns, of tokens.
            output_prefix: a prefix of the columns that are made: "chosen_" makes `chosen_input_ids`. Or one for each of
                several columns. It replaces no column.
            truncation: True, or which text of a pair to cut: "longest_first" (the meaning of True), "only_first",
                "only_second". None: the tokenizer's own setting, or cut to `max_length` if that is given. False: no
                truncation.
            max_length: tokens of a row at most, special tokens included. None: rows are not cut. With `truncation`, None
                means `model_max_length` of a transformers tokenizer. Truncation that was enabled in a tokenizers.Tokenizer
                still holds.
            add_special_tokens: add the special tokens that the tokenizer puts around texts (tiktoken has none).
            remove_columns: columns to leave out, usually the text.
            engine: the program that makes the tokens. All engines give the tokenizer's own ids, so states and stores
                stay the same. "auto" takes the fastest engine that is known to be exact. "gigatoken" (the extra `fast`)
                handles most byte-level and SentencePiece-style BPE. "cache" remembers words and tokenizes only new
                ones. It handles most other tokenizers. "tokenizer" calls the tokenizer itself. It also makes pairs and
                `extra_outputs`. The first two engines are compared with the tokenizer on the first 1,000 texts, then on
                one text of 4,096. `repr` and `.stats.engines` show which engine runs. If you name an engine that cannot
                be used, the error says why.
            extra_outputs: more outputs of the tokenizer to keep as columns: "token_type_ids", "attention_mask",
                "special_tokens_mask", "offset_mapping". "offset_mapping" needs a fast tokenizer. It holds two positions
                for each token: its first character, and the character after its last. Batches cannot hold it, so drop
                it first. With a callable, name keys of the dicts that it returns.
            tokenizer_kwargs: other keywords of a transformers call, of tiktoken, or of the callable. Keywords that
                would be ignored are refused. Keywords that rows cannot hold are refused too
                (`return_overflowing_tokens`, `return_tensors`, padding).
            max_workers: blocks that are tokenized at the same time. A fast tokenizer uses all cores for one block. 0:
                the caller's thread.
            executor_type: choose "process" for a slow tokenizer written in Python; see `map`.
        Raises:
            ValueError: the tokenizer cannot do what is asked. For example, a callable must cut texts itself. Or the
                named engine cannot replace the tokenizer.
            DataError: a text is null. Or `tokenize` or `chat` made `output_column` before, or one of `extra_outputs` is a
                column already. The error names file and line.
            StageError: (when iterated) the tokenizer raised an error, or an engine gave other tokens than the
                tokenizer.
        `.stats` counts the effect of `max_length`: texts under `truncated`, tokens under `dropped_tokens`. It cannot
        count this for a callable.
        Price: the time of the tokenizer. The word cache takes a tenth to a fifth of that, and gigatoken less. The
            cache keeps about 50 MB of words. Up to 3 max_workers blocks (4,096 rows or 1 MB each) are held.

        >>> import brimful as bf
        >>> def tokenizer(texts): return [list(text.encode()) for text in texts]
        >>> pairs = bf.from_sequence([{"source": "ab", "target": "c"}])
        >>> both = {"column": ("source", "target"), "output_column": ("input_ids", "labels")}
        >>> list(pairs.tokenize(tokenizer, **both, remove_columns="source"))
        [{'target': 'c', 'input_ids': array([97, 98], dtype=int32), 'labels': array([99], dtype=int32)}]
        """
        check_bool("add_special_tokens", add_special_tokens)
        columns = names_of("column", column)
        made, prefix = _prefixed(names_of("output_column", output_column), output_prefix)
        more, removed = names_of("extra_outputs", extra_outputs), names_of("remove_columns", remove_columns)
        pairs = len(columns) == 2 and len(made) == 1
        if not columns or (len(columns) != len(made) and not pairs):
            raise ValueError(
                f"tokenize makes one output for each column, or one for two columns "
                f"(got column={columns} and output_column={made})"
            )
        if more and len(made) > 1:
            raise ValueError("tokenize: extra_outputs= works for one column only. Tokenize the columns one by one")
        names_of("tokenize", (*made, *more))
        if kept := [name for name in removed if name in (*made, *((prefix or "") + name for name in more))]:
            raise ValueError(f"tokenize makes the column {kept[0]!r}, but remove_columns leaves it out")
        asked: dict[str, Any] = {"truncation": truncation, "max_length": max_length}
        asked |= {"add_special_tokens": None if add_special_tokens else False}
        asked = {name: value for name, value in asked.items() if value is not None}
        encoder = encoder_for(tokenizer, tokenizer_kwargs, asked, pairs=pairs, outputs=more, engine=engine)
        parallel = Parallel(max_workers, executor_type, prefetch_factor=2, shares=executor_type == "process")
        tokenized = tuple(facts_of(self.stage).tokenizers())
        return self._add(
            Tokenize(self.stage, encoder, columns, made, more, removed, tokenized, prefix, parallel=parallel)
        )

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, *, target_column: str = "input_ids"
    ) -> Dataset:
        """Adds a token before and a token after the tokens of each sample. None adds nothing.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"input_ids": [5, 6]}]).add_bos_eos(1, None))[0]["input_ids"].tolist()
        [1, 5, 6]
        """
        return self._add(AddBosEos(self.stage, bos_token_id, eos_token_id, target_column))

    def ensure_bos_eos(self, tokenizer: Any, *, target_column: str = "input_ids") -> Dataset:
        """Adds the tokenizer's BOS and EOS where a sample does not begin or end with them.

        brimful looks at each sample, whatever the tokenizer was told to add. A second call therefore adds nothing. A
        sample that is only a BOS gets an EOS. An empty sample gets both. If BOS and EOS are the same id, a sample that
        neither begins nor ends with it gets one EOS, and never a second. If a tokenizer has only one of the two, that
        one is added.

        Raises:
            TypeError, ValueError: the tokenizer does not name these tokens, or has neither. Or a tokenizer of another
                vocabulary made the samples.

        >>> import brimful as bf
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
        >>> samples = bf.from_sequence([{"input_ids": [2, 2]}, {"input_ids": [0, 2, 1]}])
        >>> [sample["input_ids"].tolist() for sample in samples.ensure_bos_eos(tokenizer)]
        [[0, 2, 2, 1], [0, 2, 1]]
        """
        given = loaded(tokenizer)
        added = bos_eos_of(given)
        if hasattr(given, "model_max_length"):
            here = {target_column: facts_of(self.stage).tokenizers().get(target_column, ())}
            one_vocabulary("ensure_bos_eos", {"data set": here, "tokenizer": {target_column: (encoder_for(given),)}})
        return self._add(EnsureBosEos(self.stage, *added, target_column))

    def causal_labels(self, *, target_column: str = "input_ids", shift: bool = False) -> Dataset:
        """Adds `labels`, int32, for a model that predicts the next token: a copy of the tokens. The first label of each
        sample is -100.

        Models shift labels by one themselves, so no position predicts the first token. The value -100 also keeps it out
        of counts such as `num_items_in_batch`. Labels of tokens that an `attention_mask` hides are -100 too. So is the
        label after a hidden token, because the hidden token would predict it.

        Args:
            target_column: the column of the tokens.
            shift: add `shift_labels` instead, with each label at the position that predicts it. Use it when samples are
                cut across devices, because no device can then shift by one. Models of transformers take them by that
                name. If the samples have `labels` (from `chat`), these are shifted.
        Raises:
            DataError: the samples already have such labels, or a mask has another length than the tokens. The error
                names file and line.

        >>> import brimful as bf
        >>> data = bf.from_sequence([{"input_ids": [5, 6, 7]}])
        >>> kinds = {"labels": data.causal_labels(), "shift_labels": data.causal_labels(shift=True)}
        >>> [next(iter(kind))[name].tolist() for name, kind in kinds.items()]
        [[-100, 6, 7], [6, 7, -100]]
        """
        return self._add(CausalLabels(self.stage, target_column, shift))

    def chat(
        self,
        tokenizer: Any,
        *,
        column: str | Sequence[str] = "messages",
        prompt_column: str | None = None,
        output_prefix: str | Sequence[str] = "",
        train_on: TrainOn = "assistant",
        template_kwargs: Mapping[str, Any] | None = None,
        end_token: str | None = None,
        train_empty_think: bool = False,
        on_error: OnError = "raise",
        max_workers: int = 1,
        executor_type: ExecutorType = "thread",
    ) -> Dataset:
        """Turns conversations into `input_ids` and `labels`, int32, with the tokenizer's own chat template. It works
        ahead of use.

        A conversation is a list of messages: {"role": "user", "content": ...}. It may be JSON text, or a list of JSON
        texts. Messages with `from` and `value` are read, too. `content` is text or a list of parts. A column `tools`,
        if there is one, holds lists of JSON schemas. Messages of JSON lines and of Python reach the template as they
        were written. In structs of Parquet and Arrow, rows have the keys of all, so a key with a null value counts as
        absent. Only the template writes special tokens, BOS included.

        brimful renders a conversation once. Meanwhile it follows for which message the template writes each part. A
        turn trains its text after the prompt for an answer. That includes thoughts, tool calls and the token that ends
        the turn. White space after that token belongs to the template. If the mark of the next role ends turns, as in
        GLM, that mark is trained. If the template has {% generation %}, its marks say what is trained.

        A message may have `train`, `weight` or `loss_mask`, each 0 or 1. A message with 0 is not trained.

        Args:
            tokenizer: a transformers tokenizer with a `chat_template`, or its name, as `tokenize` takes it.
            column: the column of conversations, or several that are answers to one prompt, such as ("chosen",
                "rejected"). Messages that all of them begin with are the prompt, which is not trained. It ends before an
                answer, or it is an error.
            prompt_column: the column of messages that stand before those of each column, and are not trained. A
                conversation that begins with all of them has them once.
            output_prefix: a prefix of the columns that are made, or one for each of several columns: "chosen_" makes
                `chosen_input_ids` and `chosen_labels`.
            train_on: the messages that get labels. All other tokens get -100. "assistant": all of the assistant's
                messages. "last": its last message. "marked": messages whose `train`, `weight` or `loss_mask` is 1, of
                any role. "all": all tokens. The first token never gets a label, because no position predicts it.
            template_kwargs: variables for the template, such as {"enable_thinking": False}.
            end_token: the token to append if no special token ends the last turn. None: the tokenizer's EOS, but only
                if the mark of the next role ends the template's turns, and it has no {% generation %}. The token is
                trained. brimful logs it once, because the ids then differ from those of `apply_chat_template`.
            train_empty_think: train also the think blocks without content that the template adds to a turn.
            on_error: "raise" names file and line. "skip" leaves the row out, counts it as `skipped` in `.stats`, and
                logs the reason.
            max_workers, executor_type: see `tokenize`. Templates run in Python, so use "process" for many short
                conversations.
        Raises:
            TypeError, ValueError: the tokenizer cannot do this, or has no such `end_token`.
            DataError: (when run) a row is not a conversation, or no message is left to train on. Or brimful cannot
                tell which text is a turn's, or a token crosses the border between prompt and answer.
            StageError: (when run) the template refuses a conversation.
        Price: one rendering, .03 to .1 ms for two turns, the time of the tokenizer, and .08 ms more. A template that
            holds back the output of its loop, or writes several messages in an iteration, is rendered twice.
        Source: TRL and axolotl, whose templates for training mark the same tokens.

        >>> import brimful as bf
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"?": 0, "user": 1, "assistant": 2, "Hello": 3, "Hi": 4}, unk_token="?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        >>> tokenizer.chat_template = (
        ...     "{% for one in messages %}{{ one.role + ' ' + one.content + ' ' }}{% endfor %}"
        ...     "{% if add_generation_prompt %}assistant {% endif %}"
        ... )
        >>> talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
        >>> sample = next(iter(bf.from_sequence([{"messages": talk}]).chat(tokenizer)))
        >>> sample["input_ids"].tolist(), sample["labels"].tolist()
        ([1, 3, 2, 4], [-100, -100, -100, 4])
        """
        one_of("train_on", train_on, *get_args(TrainOn))
        parallel = Parallel(max_workers, executor_type, prefetch_factor=2, shares=executor_type == "process")
        encoder = chat_encoder_for(tokenizer, template_kwargs, end_token)
        check_bool("train_empty_think", train_empty_think)
        columns, (made, _) = names_of("column", column), _prefixed((TOKENS,), output_prefix)
        if not columns or len(columns) != len(made):
            raise ValueError(
                f"chat needs an output_prefix for each column (got column={columns} and output_prefix={output_prefix!r})"
            )
        return self._add(
            Chat(
                self.stage,
                encoder,
                columns,
                train_on,
                _checked(on_error),
                names_of("output_prefix", made),
                prompt=prompt_column or "",
                parallel=parallel,
                template_kwargs=dict(template_kwargs or {}),
                end_token=end_token,
                train_empty_think=train_empty_think,
            )
        )

    def chunk(
        self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",), drop_remainder: bool = True
    ) -> Dataset:
        """Cuts each sample into chunks of `chunk_length` tokens. The chunks hold only the target columns.

        Args:
            chunk_length: tokens of a chunk.
            target_columns: lists that are cut together. Other columns are left out. Labels and masks are not left out
                in silence: name them here, or `drop` them first.
            drop_remainder: leave out the last chunk of a sample if it is shorter. Its tokens are counted.
        Raises:
            DataError: (when run) the lists of a row have different lengths. Or `labels`, `attention_mask` or another
                column of tokens is not a target column.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": list(range(10))}, {"input_ids": [10, 11]}])
        >>> [sample["input_ids"].tolist() for sample in samples.chunk(6)]
        [[0, 1, 2, 3, 4, 5]]
        """
        return self._add(Chunk(self.stage, chunk_length, _targets(target_columns), drop_remainder))

    def concat_chunk(
        self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",), drop_remainder: bool = True
    ) -> Dataset:
        """Joins all samples end to end, then cuts them into chunks of `chunk_length` tokens.

        In data that repeat, the tail that fills no chunk begins the first chunk of the next epoch, so no token is lost.
        From there on the data have no epochs. A window that sorts, packs or shuffles the chunks holds those of several
        epochs if it has room for them. The carry of `scan` goes on. The same holds for `loader(steps_per_epoch=...)`.

        Data that end drop the tail, and count its tokens as `dropped_tokens` in `.stats`. So does each epoch of
        `loader()`, and each epoch of a source that `stop="all_repeat"` begins again. If you call `take`, `skip`,
        `stride` or `enumerate` on data that end, and a loader repeats them, each epoch drops its tail, too.

        Args:
            chunk_length, target_columns: as for `chunk`.
            drop_remainder: False keeps the tail of data that end, as a last chunk that is shorter.
        Raises:
            DataError: (when run) as for `chunk`.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [0, 1, 2]}, {"input_ids": [3, 4]}])
        >>> [sample["input_ids"].tolist() for sample in samples.concat_chunk(2)]
        [[0, 1], [2, 3]]
        >>> [sample["input_ids"].tolist() for sample in samples.concat_chunk(2, drop_remainder=False)]
        [[0, 1], [2, 3], [4]]
        """
        return self._add(ConcatChunk(self.stage, _targets(target_columns), chunk_length, drop_remainder))

    def pack_chunk(
        self,
        chunk_length: int,
        *,
        target_columns: Sequence[str] = ("input_ids",),
        discard_long_samples: bool = False,
    ) -> Dataset:
        """Joins neighbouring samples as long as they fit into `chunk_length` tokens. A longer sample is cut or left
        out, and counted.

        Args:
            chunk_length, target_columns: as for `chunk`.
            discard_long_samples: leave a longer sample out, instead of cutting it. Two samples with more than 8,000
                of these between them do not share a chunk, so that a resume need not read so many again.
        Raises:
            DataError: (when run) as for `chunk`.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [0, 1]}, {"input_ids": [2]}, {"input_ids": [3, 4]}])
        >>> [sample["input_ids"].tolist() for sample in samples.pack_chunk(4)]
        [[0, 1, 2], [3, 4]]
        """
        check_bool("discard_long_samples", discard_long_samples)
        return self._add(PackChunk(self.stage, _targets(target_columns), chunk_length, discard_long_samples))

    def pad(self, length: int, values: Mapping[str, int]) -> Dataset:
        """Pads each list column named in `values` to `length` values. `values` maps a column to its padding value.

        It also adds an `attention_mask`: 1 for each value of the first of these columns, then 0. If the samples have a
        mask already, that mask is padded with 0.

        >>> import brimful as bf
        >>> sample = bf.from_sequence([{"input_ids": [5, 6]}]).pad(4, {"input_ids": 0}).peek(1)[0]
        >>> sample["input_ids"].tolist(), sample["attention_mask"].tolist()
        ([5, 6, 0, 0], [1, 1, 0, 0])
        """
        return self._add(Pad(self.stage, length, dict(values)))

    def select(self, names: str | Sequence[str]) -> Dataset:
        """Keeps these columns alone, in this order. Indexed data stay indexed. A store reads no other columns.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"id": 1, "text": "a"}]).select("text"))
        [{'text': 'a'}]
        """
        return self._add(Choose(self.stage, Choice("select", names_of("select", names))))

    def drop(self, names: str | Sequence[str]) -> Dataset:
        """The samples without these columns.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"id": 1, "text": "a"}]).drop("id"))
        [{'text': 'a'}]
        """
        return self._add(Choose(self.stage, Choice("drop", names_of("drop", names))))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """The samples with other names for some columns: {old: new}.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a"]).rename({"text": "prompt"}))
        [{'prompt': 'a'}]
        """
        return self._add(Choose(self.stage, renaming(names)))

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> Dataset:
        """Shuffles the rows inside each window of `buffer_size` rows. Each epoch has another order.

        Price: one and a half windows are held. Indexed data hold 8 bytes a sample instead. A resume reads the window
            again.

        >>> import brimful as bf
        >>> shuffled = bf.from_sequence([{"n": n} for n in range(6)]).shuffle(3)
        >>> [sample["n"] for sample in shuffled]
        [0, 2, 1, 4, 3, 5]
        """
        return self._add(Shuffle(self.stage, buffer_size, seed))

    def units(self, key: str, *, within: Within = "batch") -> Dataset:
        """Keeps neighbouring samples with one value in the column `key` together: answers to one prompt, or a query with
        its passages.

        No batch splits a unit. `shuffle`, `repeat`, `concat_datasets`, `interleave_datasets`, `train_valid_split` and
        `Batches.shard` move whole units. `map`, `filter` and other verbs that work on single rows keep what is left of
        them. A verb that would split a unit is an error: `take(n)`, `skip(n)` or a slice inside of one, `stride`,
        `concat_chunk`, `pack_chunk`, `sliding_window`. A unit ends with its epoch and with its stream.

        Call it once, before `shuffle` and before data sets are mixed, while samples of a unit are still neighbours.
        `train_valid_split` reads the column, so split before you drop or change it. With
        `from_files`, set `n_active_shards=1`: it takes a row of each open file in turn. `cache` and `to_store` keep no
        units: call `units` on their result.

        A policy sorts and cuts whole units, as long as their longest sample. So padding is more than with single
        samples. With `pack`, all samples of a unit are in one row. Batches of a fixed size have at most so many
        samples. A unit that is too large for a batch is an error with both numbers. `overlong="alone"` gives it a batch
        of its own, and `overlong="drop"` leaves all of it out. A policy of your own, or the functions of `batch_by`,
        may split a unit: this is an error that names the policy.

        Args:
            key: a column of any type. Its values must not be null. It may be dropped later.
            within: "batch": no batch splits a unit. "step": no optimizer step of `samples_per_step` does, and its
                batches may.
        Raises:
            ValueError: samples were shuffled or mixed before.
            DataError: (when run) the column does not exist, or is null. Or more than 65,536 neighbours have one value.
        State: two integers and a hash. Indexed data need none.
        Price: 40 ns a number and 5 ns a byte of text. Indexed data are read once in each process, of a store the column
            alone. 8 bytes a unit are kept (and 8 bytes a sample after a slice or `concat_datasets`).

        >>> import brimful as bf
        >>> answers = bf.from_sequence([{"prompt": n // 2, "input_ids": [n]} for n in range(6)]).units("prompt")
        >>> [batch["input_ids"].flatten().tolist() for batch in answers.shuffle(6).batch(2)]
        [[0, 1], [4, 5], [2, 3]]
        """
        return self._add(Units(self.stage, key, within))

    def peek(self, n: int = 5) -> list[Sample]:
        """The first n samples, or all if there are fewer.

        >>> import brimful as bf
        >>> bf.from_sequence(["a", "b", "c"]).peek(2)
        [{'text': 'a'}, {'text': 'b'}]
        """
        with self.iter() as found:
            return list(islice(found, integer("n", n, 0, "samples")))

    def take(self, n: int) -> Dataset:
        """The first n samples. A data set that repeats runs as many epochs as that needs.

        Shuffled data give other samples in each epoch: its own first n. To keep the same samples, take them before you
        shuffle (`from_store(path).take(n).shuffle(n)`), or use `train_valid_split`.

        Data that are read as several streams (`from_files(streams=...)`) have no order of rows. They refuse `take`,
        `skip`, `stride` and `enumerate`. Use `peek`, `filter` and `Batches.take` instead.

        >>> import brimful as bf
        >>> endless = bf.from_sequence(["a", "b"], repeat=True)
        >>> endless.repeats, [sample["text"] for sample in endless.take(3)]
        (True, ['a', 'b', 'a'])
        """
        return Dataset(Take(self._endless, n))

    def skip(self, n: int) -> Dataset:
        """All samples but the first n. Price: nothing with indexed data. Streamed data read the n samples.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b", "c"]).skip(2))
        [{'text': 'c'}]
        """
        return Dataset(Skip(self._endless, n))

    def stride(self, interval: int, offset: int) -> Dataset:
        """Every sample i with i mod `interval` == `offset`.

        >>> import brimful as bf
        >>> [sample["text"] for sample in bf.from_sequence(["a", "b", "c", "d", "e"]).stride(2, 1)]
        ['b', 'd']
        """
        return Dataset(Stride(self._endless, interval, offset))

    def enumerate(self, *, count_column: str = "step") -> Dataset:
        """Adds the number of each sample as a column, from 0. The numbers go on over epochs. They replace a column that has
        this name.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b"]).enumerate())
        [{'text': 'a', 'step': 0}, {'text': 'b', 'step': 1}]
        """
        return Dataset(Enumerate(self._endless, count_column))

    def train_valid_split(
        self, valid_share: float, *, key: str | None = None, seed: int = 42
    ) -> tuple[Dataset, Dataset]:
        """Two data sets: one for training, and one for validation with about `valid_share` of the samples.

        The contents of a sample decide its side. New data move no sample across, and equal samples are on the same
        side. A greater share keeps the validation samples of a smaller one, and adds more.

        Args:
            valid_share: above 0 and below 1.
            key: a column. Samples with the same value in it (the id of a document) stay together. None: the key of
                `units`, or else all columns count.
            seed: another seed gives another split.
        Raises:
            DataError: (when run) the column does not exist, or its values have no hash.
        Price: 40 ns a number and 5 ns a byte of text. Indexed data stay indexed (see `filter`). Each process reads them
            once for both sides, when the first side is used. With a `key`, a store reads that column alone. 9 bytes a
            sample are held.

        >>> import brimful as bf
        >>> train, valid = bf.from_sequence([{"n": n} for n in range(10_000)]).train_valid_split(0.05)
        >>> len(train), len(valid)
        (9486, 514)
        """
        how = Split(valid_share, self._split_key(key), seed)
        train, valid = (self._add(TrainValidSplit(self.stage, how, side)) for side in get_args(Side))
        return train, valid

    def to_store(
        self,
        path: str | os.PathLike[str],
        *,
        executor: Executor = "local",
        version: str | None = None,
        timeout_seconds: float = 600.0,
        ray_address: str | None = None,
    ) -> IndexedDataset:
        """Writes the samples of the first epoch to a token store, and returns the store, as `from_store(path)` would.

        The store is complete when the call returns. A progress bar shows if stderr is a terminal. If the folder already
        holds the finished store of this pipeline, brimful opens it and writes nothing. After Ctrl-C or a crash, call it
        again: it goes on from there. If several processes call it, one writes and the others wait, so all ranks of a
        run may call it.

        All columns are stored, the text included (`drop` it first if you do not need it). Other tools read the files,
        `path/*.arrow`: pyarrow, polars, `datasets.load_dataset("arrow", data_files=...)`. Data that repeat are written
        once, and the returned data set repeats. States of the returned data set are those of `from_store(path)`.

        Args:
            path: a local folder: a new one, an empty one, or one with this store.
            executor: "local" runs in this process. "ray" runs on a Ray cluster, which reads the shards of `from_files`
                and runs the stages that work on single rows. The first other stage and all stages after it run here,
                and the log says so. The files are the same, to the byte. If a worker is killed, the cluster makes the
                missing rows of its shard again.
            version: the version of your functions in the chain. A store cannot see that a function changed, so give a
                new version then.
            timeout_seconds: how long to wait for another writer that makes no progress.
            ray_address: the address of the cluster: "auto" or "host:port". None takes the cluster that this process is
                connected to, else the one in RAY_ADDRESS. If there is neither, Ray starts on this machine.
        Raises:
            ValueError: the data set has no end, or its functions have no version. Or the folder holds other files, or
                `path` is a URL. Or Ray could run none of the stages.
            ModuleNotFoundError: Ray is not installed: `pip install 'brimful[ray]'`.
            StateError: another pipeline wrote the store, or another executor began it. The error names both.
            TimeoutError: another writer makes no progress. The error names it.
            DataError: the rows differ in their columns or types. The error names file and line.
        Price: the time of the chain, and about 10 ns a token. 50 MB are held. On disk, a token takes 2 bytes if the
            chain tokenizes and the vocabulary has at most 65,536 tokens, else 4. A row takes 4 bytes for each list
            column. Other columns take the size that they have in Arrow.

        >>> import tempfile
        >>> import brimful as bf
        >>> rows = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7]}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = rows.to_store(f"{folder}/tokens")
        ...     len(store), store.lengths().tolist(), store[1]["input_ids"].tolist()
        (2, [2, 1], [7])
        """
        self._refuse_originals("to_store")
        refuse_units(self.stage, "to_store", "keeps columns alone", "call units on the store")
        seconds = timeout(timeout_seconds)
        run = run_by(executor, self.stage, ray_address)
        self._check_end("to_store")
        with progress() as report:
            write_store(
                self.stage,
                path,
                version=version,
                timeout_seconds=seconds,
                report=report,
                run=run,
                executor=executor,
            )
        return IndexedDataset(FromSequence(StoreIndex.opened(path), shuffle=False, seed=42), self.repeats)

    def cache(self, path: None = None) -> IndexedDataset:
        """The samples of the first epoch in memory, in stream order, as an indexed data set.

        The chain runs once, when the first sample or length is wanted. Each process has its own copy. For data that are
        larger than memory, or that several processes use, write them to disk with `to_store`.

        Args:
            path: leave it out. `to_store(path)` writes to disk.
        Raises:
            TypeError: a path is given.
            ValueError: the data set has no end.
        Price: all samples are held, as Arrow columns.

        >>> import brimful as bf
        >>> squares = bf.from_sequence([{"n": 2}, {"n": 3}]).map(lambda row: {"n": row["n"] ** 2}).cache()
        >>> len(squares), squares[1]
        (2, {'n': 9})
        """
        if path is not None:
            raise TypeError(
                f"cache() keeps samples in memory (got path={path!r}); to_store({path!r}) writes them to disk"
            )
        self._refuse_originals("cache")
        refuse_units(self.stage, "cache", "keeps columns alone", "call units on the result of cache")
        self._check_end("cache")
        return IndexedDataset(FromSequence(CachedIndex(self.stage), shuffle=False, seed=0), self.repeats)

    def lengths(self, column: Size = "input_ids") -> NDArray[Any]:
        """The number of tokens of each sample, integers (n,), in the order of the data. A store gives a memory-mapped
        array.

        Like `length_column` of batches, `column` may also be a number column, or a function of a block of rows. A number
        column is read, and for a function all rows are.

        For shuffled data, the order is the one before the shuffle. For slices and mixtures of shuffled data, it is the
        order of epoch 0.

        Raises:
            TypeError: the data set is streamed, or has no end.
            DataError: there is no such column of lists or numbers, or it has nulls.

        >>> import brimful as bf
        >>> data = bf.from_sequence([{"input_ids": [1, 2], "frames": 160}, {"input_ids": [3], "frames": 80}])
        >>> data.lengths().tolist(), data.lengths("frames").tolist()
        ([2, 1], [160, 80])
        """
        raise TypeError(
            f"the lengths of this data set are not known: it is {self.kind}. Call cache() to keep it in memory, or "
            "to_store(path) to keep it on disk"
        )

    # -- batches ---------------------------------------------------------------------------------------------------------

    def batch(
        self,
        size_or_policy: int | Policy,
        *,
        window: int | Literal["auto", "steps"] | None = None,
        pad_to_multiple_of: int = 1,
        buckets: Sequence[int] | None = None,
        overlong: Overlong = "raise",
        truncate_side: TruncateSide = "right",
        unlabelled: Unlabelled = "keep",
        length_column: LengthColumn = "input_ids",
        length_version: str | None = None,
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped", "paired"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Form] | None = None,
        sample_weight_column: str | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | Literal["as_needed"] | None = 1,
        samples_per_step: int | None = None,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        keep_together: str | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Makes batches of a fixed number of samples, or batches that a policy plans.

        Args:
            size_or_policy: an int gives batches of so many samples, in arrival order. With a window, samples are first
                sorted by length inside it. A policy plans windows.
            window: how many rows to plan over. "auto" (also None for a policy) takes enough rows for about 1 % of
                padding, and streams take 256 MB at most. An epoch of streams begins with 1,024 rows, then 4,096, and so
                on. "steps" takes the rows of two optimizer steps of `micro_batches`, so that each step has samples of
                nearly all lengths. Use it for losses that are means over samples. It costs some 10 % of padding. With
                `balance_cost`, a window of indexed data grows with `balance_group`. "auto" then takes 16 groups or
                more. "steps" takes the batches of two steps of `balance_group` ranks.
            pad_to_multiple_of: round each padded length up. The limits of a policy hold for the rounded shape.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: the reaction to a sample that is longer than the policy can place: "raise", "truncate", "drop", or
                "alone" (a batch with this sample only). Counted in `.stats`.
            truncate_side: the part that "truncate" leaves out. "right" is the end. "left" is the beginning, so that an
                answer at the end stays. "middle" keeps the first and the last half. All token columns are cut alike.
                With "left" and "middle" the first of `labels` after the gap is -100, and the last of `shift_labels`
                before it.
            unlabelled: the reaction to a sample whose labels by token are all -100 in its batch, cut or not: "keep",
                "drop" or "raise" (a DataError). Counted in `.stats`, with one warning. "drop" works after planning, so
                `len` and all other batches stay the same. The slots of the sample become padding, with `lengths` 0. A
                collate_fn does not get the sample. A batch without any other sample is a filler (`weight` 0) where
                batches carry `weight`. Elsewhere it is all padding, or a collate_fn gets all of its samples.
            length_column: what is planned over. A list column has its length as its size, a number column its value
                (milliseconds, patches). A function gets an Arrow block of rows and returns a whole number for each.
                Several of them make several sizes a sample, such as (source, target), or the sides of a sample, such as
                ("chosen_input_ids", "rejected_input_ids"). Budgets count all of them. With several, `chosen_input_ids`
                has a mask `chosen_attention_mask`. A `MultiBudget` names its sizes itself. Here you give only the
                functions among them, by their `__name__`.
            length_version: a version of these functions. With it, what they say of the rows of a local store is kept
                beside the store, and not asked again.
            token_columns: lists that are cut, padded and packed together with the first length column. In every row
                they must have its length. By default, these are attention_mask, token_type_ids, position_ids,
                special_tokens_mask and labels, if they exist. With several length columns, `chosen_labels` goes with
                `chosen_input_ids`. brimful pads other lists of numbers to their own longest value. Labels that do not
                go with `input_ids` count as one a sample. If they are lists of integers, the batch says how many there
                are (`num_items_on_rank`), and `bf.token_mean` divides by it.
            pad_values: the padding value of each column. The default is -100 in `labels` and in columns whose name ends
                in `_labels`. Other columns get the tokenizer's padding id, or 0.
            pad_side: the side of the padding, "right" or "left". The default is the tokenizer's side, else right.
            keep_text: batches also hold the text that was tokenized, as lists. By default batches leave it out, which
                saves a third of the time. Samples and stores always hold it. A `collate_fn`, or a function of `map` on
                batches, needs `keep_text` to read the text. The functions of `batch_by` do not.
            layout: "padded", "nested", "grouped" or "paired". "nested" makes tensors of layout torch.jagged, without
                padding. "paired" puts the rows of `rejected_input_ids` below those of `chosen_input_ids`, padded to one
                length. `length_column` may name other sides. A column `prompt_input_ids` is put before each side.
                Limits of tokens, cost and memory hold for the rows of all sides. See `brimful.arrays.paired.Paired`.
                "grouped" makes `groups` of samples of similar length inside the batch, each padded on the right to its
                own longest (see `brimful.grouping`). Use it when lengths differ a thousandfold. Values that make no
                tensor (text, lists of lists) stay beside `groups`, as lists. `help(brimful.tensors.grouped.grouped)`
                describes the keys of groups, the names of their dims, and losses over them. "grouped" ignores the
                tokenizer's padding side. It plans a batch as if it were padded: the budget counts the padded size, and
                `.stats` counts the size of the groups. Ranks may have different numbers of groups: see
                `Collection.apply` before you use FSDP.
            num_groups: the most groups in a batch of layout "grouped". The default is 4.
            dtypes: the type of each key of a batch: {"input_ids": "int32", "attention_mask": "bool"}. The default is
                int64 for integers, and the type of the column for other values. Arrays of several dimensions keep their
                type, but for labels.
            arrays: what a batch has of a column of arrays that does not go with the tokens: {"pixels": "concat"}.
                "stack" needs arrays of one shape. "pad" pads each ragged dimension to its longest in the batch, and adds
                `pixels_mask`, 1 where there is a value. "concat" puts the arrays end to end, and adds `pixels_offsets`.
                Where more dimensions than the first are ragged, it flattens them, and adds `pixels_shapes`. "list" gives
                a list of tensors. The default depends on the type alone. Arrays of a fixed shape are stacked, others
                are padded. With `pack` and layout="nested" they are concatenated, with "grouped" a list. See
                `bf.array_type`. Lists of numbers are padded, without a mask unless you name them here.
            sample_weight_column: a column of numbers of at least 0, the weights of the samples in `bf.sample_mean`. Batches
                then have `sample_loss_weights` (B,) float64, which are 0 for copies and fillers. Where they have
                `num_items_in_batch`, they also have `sum_of_weights_in_batch`, () float64.
            drop_last: leave out incomplete batches, counted in `.stats`. With a fixed size, each window may have one.
                With a policy, only the last batch that is planned in an epoch counts as incomplete.
            shuffle_batches: give the batches of a window in a random order. "stratified" takes a random order in which
                any k batches in a row cover short and long samples alike (see `plan.mix.low_discrepancy_order`). With
                from_files(streams=n), this holds in each stream. It holds over all streams as long as they are in their
                windows of the same number.
            micro_batches: how many batches on each rank make one optimizer step. The loop adds up their gradients. With
                1 or None, the loop may add up the gradients of as many batches as it likes. With k batches, the limit
                of a policy (samples, tokens, cost, rows) counts for a step, and is divided among its batches. The
                memory of a MemoryBudget, and the limit of your own policy or function, still hold for each batch.
                `shuffle_batches=True` means "stratified", so that a step has samples of all lengths. Each batch carries
                `weight`, `is_filler` and `ends_step` (bool: the optimizer steps after this batch). If there are labels,
                a batch also carries `num_items_in_batch`: the labels of its whole step on all ranks (see
                `Batches.shard`). It carries `num_samples_in_batch` too: its samples that have a label. `bf.token_mean`
                and `bf.sample_mean` divide by these. If a rank cannot know the labels of other ranks (streams, for example),
                a batch carries `num_items_on_rank` and `num_samples_on_rank` instead. If a collate_fn makes the labels,
                the batch carries neither: `bf.token_mean` says how to count them. The last step of an epoch may have
                fewer batches. If epochs follow each other (data that repeat, loader(steps_per_epoch=...)), steps
                continue into the next epoch. `take` a multiple of k batches, or the last step is cut. Trainers
                accumulate gradients by this number: see docs/trainers.md.
                "as_needed": as many as `samples_per_step` need.
            samples_per_step: with `micro_batches="as_needed"`, an optimizer step has exactly so many samples, in the order
                of the data set. Use it for losses over all samples of a step, such as contrastive ones. A step is
                planned as a whole, and each of its batches is within the policy's limit. Ranks share its batches out.
                All have equally many: fillers (`weight` 0) complete the last round. `ends_step` is True in the last
                one. The last step of an epoch may have fewer samples, and `drop_last` leaves it out. A step also lacks the
                samples that `overlong="drop"` leaves out. With `units`, a
                step has as many whole units as fit. A state inside a step resumes on the same number of ranks. One
                between steps resumes on any. Trainers that accumulate a fixed number of batches refuse it. See
                examples/contrastive.py for gradient caching.
            balance_group: keep so many batches of similar cost next to each other when they are shuffled. Give the
                world size, or a multiple of all world sizes that you use, so that all ranks do similar work. Give
                `balance_cost` too. Without it, the last group of a window may be smaller, and then later steps take
                batches of two groups.
            balance_cost: the cost of a sample, as for `bf.balance`. It needs `balance_group`. The batches of a group
                then have equal cost. Without it, they are only neighbours in the plan. In every window, each group is
                one step of all ranks. With `micro_batches` the sums over the batches of a step are even, too. A
                function must return the same cost each time, on every rank. With streams, `shuffle_batches=True` means
                "stratified".
            keep_together: a column. Neighbouring samples with one value in it come in one batch: `units(keep_together)`
                right here. To shuffle, call `units` before `shuffle`, and leave this out.
            seed: the seed of the order of batches.
            collate_fn: makes a batch from a list of samples (dicts), like the collators of Hugging Face. It replaces
                the layout. brimful seeds the generators of Python, numpy and torch, and those that the collator has as
                attributes, anew for each batch. It finds none that a function closes over. So random numbers do not
                depend on reading ahead, on the number of ranks or on a resume. brimful puts the generators of the
                process back afterwards. Without workers, brimful calls it when you take the batch, even after
                `prefetch` or `to_device`. On several ranks it must return a dict, so that brimful can mark fillers. Or
                use shard(uneven="drop").
            max_workers: how many batches it makes at the same time, ahead of use. 0: in the caller's thread.
            executor_type: "process" or "thread" for these workers. A process takes seconds to start if the function
                needs torch. Use "thread" if the function releases the interpreter's lock and draws no random numbers.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2, 3]}, {"input_ids": [4]}])
        >>> [batch["input_ids"].tolist() for batch in samples.batch(2)]
        [[[1, 0], [2, 3]], [[4]]]
        """
        one_of("overlong", overlong, *get_args(Overlong))
        if is_policy(size_or_policy):
            if collate_fn is None and (length := getattr(size_or_policy, "row_length", None)):
                warn_once(
                    "batch makes a row of each sample, and %s places several in one: it is mostly padding; pack(%s) packs rows",
                    type(size_or_policy).__name__,
                    length,
                )
            policy, rows = size_or_policy, window or "auto"
        elif hasattr(size_or_policy, "__index__"):
            policy = FixedSize(cast(int, size_or_policy), sort=window is not None)
            arrival = policy.n * max(1, 1024 // policy.n)
            rows = window if window is not None else "auto" if samples_per_step else arrival
        else:
            raise TypeError(f"batch takes a number of samples or a policy (got {size_or_policy!r})")
        planner = ByPolicy(policy, overlong, _rounding(pad_to_multiple_of, buckets), truncate_side)
        columns = ColumnSettings(
            length_column, token_columns, pad_values, dtypes, length_version, sample_weight_column, arrays
        )
        order = OrderSettings(
            drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost, samples_per_step
        )
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text, unlabelled)
        return batches_of(self._kept(keep_together), self.repeats, planner, rows, columns, order, form)

    def batch_by_tokens(
        self,
        max_tokens: int,
        *,
        window: int | Literal["auto", "steps"] = "auto",
        pad_to_multiple_of: int = 1,
        buckets: Sequence[int] | None = None,
        overlong: Overlong = "raise",
        truncate_side: TruncateSide = "right",
        unlabelled: Unlabelled = "keep",
        length_column: LengthColumn = "input_ids",
        length_version: str | None = None,
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped", "paired"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Form] | None = None,
        sample_weight_column: str | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | Literal["as_needed"] | None = 1,
        samples_per_step: int | None = None,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        keep_together: str | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Makes batches of at most `max_tokens` padded tokens. It sorts each window by length, and fills each batch as
        far as that limit allows.

        Args:
            max_tokens: rows x padded length of a batch.
            window: how many rows to plan over. "auto" takes enough rows for about 1 % of padding, and streams take 256
                MB at most. An epoch of streams begins with 1,024 rows, then 4,096, and so on. "steps": as for `batch`.
            pad_to_multiple_of: round each padded length up.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: the reaction to a sample that is longer than the policy can place: "raise", "truncate", "drop", or
                "alone" (a batch with this sample only). Counted in `.stats`.
            the rest: as for `batch`.
        Price: one and a half windows are held, and one is made ahead. About 15 ns a token.
        Source: infinibatch (sorted read-ahead), fairseq (token budgets).

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1] * length} for length in (50, 30, 20, 20, 30, 20)])
        >>> batches = samples.batch_by_tokens(60, shuffle_batches=False)
        >>> [batch["input_ids"].shape for batch in batches]
        [torch.Size([1, 50]), torch.Size([2, 30]), torch.Size([3, 20])]
        """
        one_of("overlong", overlong, *get_args(Overlong))
        policy = TokenBudget(max_tokens, pad_to_multiple_of=pad_to_multiple_of, buckets=buckets)
        columns = ColumnSettings(
            length_column, token_columns, pad_values, dtypes, length_version, sample_weight_column, arrays
        )
        order = OrderSettings(
            drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost, samples_per_step
        )
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text, unlabelled)
        planner = ByPolicy(policy, overlong, truncate_side=truncate_side)
        return batches_of(self._kept(keep_together), self.repeats, planner, window, columns, order, form)

    def batch_by(
        self,
        batch_size: int | Callable[[Sample], int],
        key: Callable[[Sample], Any],
        *,
        boundary_key: Callable[[Sample], Any] | None = None,
        window: int = 10_000,
        pad_to_multiple_of: int = 1,
        buckets: Sequence[int] | None = None,
        overlong: Literal["raise", "alone", "drop"] = "raise",
        unlabelled: Unlabelled = "keep",
        length_column: LengthColumn = "input_ids",
        length_version: str | None = None,
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped", "paired"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Form] | None = None,
        sample_weight_column: str | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | Literal["as_needed"] | None = 1,
        samples_per_step: int | None = None,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        keep_together: str | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Makes batches by your own functions of a sample. It sorts each window by `key`, largest first, and cuts it
        into batches.

        Args:
            batch_size: samples a batch, or a function that takes the longest sample of a batch and returns this number.
            key: the sort key, usually the length.
            boundary_key: a batch never holds two different values of this function.
            window: how many rows to sort over.
            pad_to_multiple_of: round each padded length up.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: the reaction to a sample for which `batch_size` returns less than 1: "raise", "alone" (a batch
                with this sample only), or "drop". Counted in `.stats`.
            the rest: as for `batch`.
        Price: two or three Python calls a sample.
        Source: infinibatch's BucketedReadaheadBatchIterator.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1] * length} for length in (2, 4, 1, 2)])
        >>> def length(sample): return len(sample["input_ids"])
        >>> batches = samples.batch_by(lambda longest: 4 // length(longest), key=length, shuffle_batches=False)
        >>> [batch["lengths"].tolist() for batch in batches]
        [[4], [2, 2], [1]]
        """
        one_of("overlong", overlong, "raise", "alone", "drop")
        window = integer("window", window, 1, "row")  # "auto" and "steps" are for policies, whose plans say how many
        unsaid = samples_per_step is not None and window == 10_000  # the default: then a step is the window
        rows: int | Literal["auto"] = "auto" if unsaid else window
        size = batch_size if callable(batch_size) else integer("batch_size", batch_size, 1, "sample")
        planner = ByKey(size, key, boundary_key, overlong, _rounding(pad_to_multiple_of, buckets))
        columns = ColumnSettings(
            length_column, token_columns, pad_values, dtypes, length_version, sample_weight_column, arrays
        )
        order = OrderSettings(
            drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost, samples_per_step
        )
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text, unlabelled)
        return batches_of(self._kept(keep_together), self.repeats, planner, rows, columns, order, form)

    def pack(
        self,
        row_length: int,
        *,
        rows: int = 1,
        window: int | Literal["auto", "steps"] = "auto",
        overlong: Literal["raise", "truncate", "drop", "split"] = "raise",
        truncate_side: TruncateSide = "right",
        unlabelled: Unlabelled = "keep",
        row_limits: Mapping[str, int] | None = None,
        length_column: LengthColumn = "input_ids",
        length_version: str | None = None,
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        keep_text: bool = False,
        dtypes: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Form] | None = None,
        sample_weight_column: str | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | Literal["as_needed"] | None = 1,
        samples_per_step: int | None = None,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        keep_together: str | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Packs whole samples into rows of exactly `row_length` tokens by best fit, with almost no padding.

        If the samples have an `attention_mask`, tokens that it hides are left out, with the values beside them in token
        columns.

        Args:
            row_length: tokens in a row.
            rows: rows in an optimizer step of this rank. Without `micro_batches`, that is a batch. With
                `micro_batches=k`, each batch has rows / k of them: `pack(512, rows=8, micro_batches=4)` makes batches of
                2 rows. If the last batch of a window has too few, the missing rows are padding.
            window: how many samples to plan over. "auto" takes the samples of 250 batches, which wastes .2 to .5 %.
                Streams take 256 MB at most, and an epoch of streams begins with the samples of 100 batches.
            overlong: the reaction to a sample that is longer than a row: "raise", "truncate", "drop", or "split" (cut
                it into pieces). With "split" batches have `sample_loss_weights`, by which `bf.sample_mean` counts a
                sample once, however many pieces it has.
            truncate_side: as for `batch`.
            row_limits: the most of a row, by name: `{"num_patches": 1_024, "samples": 16}`. The names are those of list
                columns (their length), number columns (their value), or functions in `length_column`. "samples" is the
                number of samples. Rows with many limits are filled less than those with one.
            unlabelled: as for `batch`. With "split", each piece counts. Labels that packing leaves out do not count.
                After "drop" the samples of a row still lie end to end, and the padding is at its end.
            balance_cost: the cost of a sample. Attention costs the square of each sample's length, so rows of equal
                tokens differ in work. With this cost, brimful gives rows and batches similar work. This takes at most a
                thousandth more rows. To balance the ranks in each step as well, also give `balance_group`.
            the rest: as for `batch`.
        Shapes: `input_ids`, `labels`, `position_ids`, `segment_ids` (rows, row_length) int64; `cu_seqlens` (n + 1,)
            int32; `max_seqlen` int.

        Labels are not shifted, because models shift them. The first label of each sample is -100.

        A model must read the positions or the boundaries to keep the samples of a row apart. Llama, Qwen and many other
        causal models of transformers do. GPT-OSS, OPT, Falcon, Mamba and others do not, and mix the samples without an
        error. Bidirectional models such as BERT need `bf.attention.padding_free(batch, causal=False)`. See
        `brimful.arrays.packed.PackedLayout`.

        Price: an `attention_mask` is read for the lengths, about 5 ns a token. With indexed data, every rank reads it.
            `balance_cost` takes 1 to 12 us a sample.
        Source: best-fit decreasing in a window. No row stays open from one window to the next.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6]}])
        >>> next(iter(samples.pack(4)))["input_ids"].tolist()
        [[1, 2, 3, 6]]
        """
        one_of("overlong", overlong, "raise", "truncate", "drop", "split")
        if balance_cost is not None:
            sample_cost("balance_cost", balance_cost)
        policy = Packed(row_length, balance_cost, row_limits=row_limits)
        rows = integer("rows", rows, 1, "row")
        planner = ByPacking(policy, rows, overlong, bool(shuffle_batches), truncate_side)
        columns = ColumnSettings(
            length_column, token_columns, pad_values, dtypes, length_version, sample_weight_column, arrays
        )
        order = OrderSettings(
            drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost, samples_per_step
        )
        form = FormSettings("packed", None, None, collate_fn, max_workers, executor_type, keep_text, unlabelled)
        return batches_of(self._kept(keep_together), self.repeats, planner, window, columns, order, form)

    # -- within ----------------------------------------------------------------------------------------------------------

    @property
    def _endless(self) -> Stage[Block]:
        return Repeat(self.stage) if self.repeats else self.stage

    @property
    def _samples(self) -> Stage[Sample]:
        """Rows as samples; of several streams, a block's worth of them ahead of use in all."""
        streams = facts_of(self.stage).streams()
        if streams is None:
            return Unbatch(Repeat(self.stage) if self.repeats else self.stage)
        turns = RoundRobin(Unbatch(self.stage), streams, ahead=max(1, BLOCK_ROWS // streams))
        return Repeat(turns) if self.repeats else turns

    def _kept(self, keep_together: str | None) -> Stage[Block]:
        return self.stage if keep_together is None else self.units(keep_together).stage

    def _split_key(self, key: str | None) -> str | None:
        """The column by which a split keeps units whole, where there are some."""
        units = facts_of(self.stage).units
        if units is not None and key not in (None, units.key):
            raise ValueError(
                f"train_valid_split(key={key!r}) may part the units of {units.key!r}: leave key out, or split before units"
            )
        return key if units is None else units.key

    def _refuse_originals(self, verb: str) -> None:
        if facts_of(self.stage).originals() is not None:
            raise ValueError(
                f"{verb} keeps rows, but from_dataset(collate_fn=...) hands its samples to collate_fn unchanged. Leave "
                "collate_fn out, and return dicts of numbers, lists, 1-D tensors and texts"
            )

    def _called(
        self, verb: str, fn: Any, seed: int | None, on_error: OnError, parallel: Parallel, schema: Types | None = None
    ) -> Dataset:
        """A stage that calls a user's function. With a seed, each row has a key to draw random numbers by."""
        given = function(verb, fn), seed is not None, _checked(on_error)
        rows = self.stage if seed is None else RowKeys(self.stage, seed)
        if verb == "filter":
            return self._add(Filter(rows, *given, parallel=parallel))
        return self._add(SampleFunction(rows, verb, *given, parallel=parallel, learnt=Learnt(asked(schema))))

    def _check_end(self, method: str, *, repeats: bool = False) -> None:
        """Refuses a chain whose epoch has no end, where all of it would be kept."""
        if repeats or not facts_of(self.stage).ends():
            raise ValueError(f"this data set repeats without end, and {method} keeps all of it. Call take(n) first")

    def _add(self, stage: Stage[Block]) -> Dataset:
        return Dataset(Rebatch(stage) if verb_of(stage) in LONG_BLOCKS else stage, self.repeats)


@dataclass(frozen=True, repr=False)
class IndexedDataset(Dataset):
    """A data set that can give any sample at once: it has `len`, `ds[i]` and `ds[a:b]`.

    >>> import brimful as bf
    >>> dataset = bf.from_sequence(["a", "b", "c"])
    >>> len(dataset), dataset[-1], dataset[1:].peek()
    (3, {'text': 'c'}, [{'text': 'b'}, {'text': 'c'}])
    """

    stage: Indexed
    _streamed_by: ClassVar[str] = ""

    def __len__(self) -> int:
        count = None if self.repeats else self.stage.count
        if count is None:
            raise TypeError(
                "the length of this data set is not known: it is indexed and repeats without end (a DataLoader takes its "
                "loader())"
            )
        return count

    @overload
    def __getitem__(self, number: int) -> Sample: ...

    @overload
    def __getitem__(self, number: slice) -> IndexedDataset: ...

    def __getitem__(self, number: int | slice) -> Sample | IndexedDataset:
        """One sample by its number, in the order of the first epoch. A slice gives a data set. A slice of shuffled data
        has other samples in each epoch: see `take`.

        Price: about 10 ms each time for shuffled data, because its shuffle window is put in order. To read all samples,
            iterate.

        >>> import brimful as bf
        >>> bf.from_sequence(["a", "b"], repeat=True).skip(10**12)[1]
        {'text': 'b'}
        """
        if not isinstance(number, slice):
            _check_number(number)
            return self._at([number])[0]
        first, last, step = number.indices(len(self))
        if step < 1:
            raise ValueError(f"a slice of a data set goes forward (got a step of {step})")
        return IndexedDataset(Slice.between(self._endless, first, last, step))

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """Samples at once, for torch's DataLoader."""
        from brimful.tensors.fetched import fetched

        found = self._at(numbers)
        return found if facts_of(self.stage).originals() is not None else fetched(found)

    def filter(
        self,
        fn: Callable[..., bool],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        version: str | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """Keeps the samples for which `fn(sample)` is true. The result is indexed, except that of a zip, which is a stream.

        All samples are read once, when the first one is wanted. A bar shows the progress, and the log says how many are
        kept.

        Args:
            fn: is called for every sample of the source, in any order. It must give the same answer each time.
            seed: an error here, because indexed data must keep the same samples in each epoch. Use `stream().filter(fn,
                seed=...)`.
            on_error: the reaction to an error in `fn`. "raise" names file and line. "skip" leaves the sample out,
                counts and logs it.
            version: for a local store: saves the answers beside it, so that later runs and the other ranks of this
                machine do not ask again. Give a new version whenever `fn`, or code that it calls, answers differently.
                One process asks, the others wait. The file has one bit a sample. Other data, another function or
                another version get their own file. Functions of the same name (lambdas, partials) are told apart by
                their code and the plain values in them.
            max_workers, executor_type, prefetch_factor: as for `map`.
        Raises:
            ValueError: a seed is given. Or a version is given, but the data are not in a store. Or the data were
                sliced, mixed or zipped before.
        Price: one Python call a sample, in each process (once with a version). 8 bytes are kept for each sample that
            stays.

        >>> import brimful as bf
        >>> some = bf.from_sequence(["a", "b", "c"]).filter(lambda sample: sample["text"] != "b")
        >>> len(some), some[1]
        (2, {'text': 'c'})
        """
        if seed is not None:
            raise ValueError("filter with a seed may keep other samples in each epoch. Use stream().filter(...)")
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        checked = _checked(on_error)
        function("filter", fn)
        check_version(version)

        def kept(source: Source) -> Indexed:
            if version is not None and not source.data.holds_files:
                raise ValueError(
                    f"version={version!r} saves the answers of filter beside a store, but these data have no store. Leave "
                    "version out, or write a store first"
                )
            return IndexFilter(source, fn, checked, parallel, version)

        if (
            verb_of(self.stage) == "zip_datasets" and version is None
        ):  # of which each row has its own order in each epoch
            workers: dict[str, Any] = {"max_workers": max_workers, "executor_type": executor_type}
            return self.stream().filter(fn, on_error=on_error, prefetch_factor=prefetch_factor, **workers)
        return self._selected("filter", kept)

    def select(self, names: str | Sequence[str]) -> IndexedDataset:
        return self._with(self.stage.chosen(Choice("select", names_of("select", names))))

    def drop(self, names: str | Sequence[str]) -> IndexedDataset:
        return self._with(self.stage.chosen(Choice("drop", names_of("drop", names))))

    def rename(self, names: Mapping[str, str]) -> IndexedDataset:
        return self._with(self.stage.chosen(renaming(names)))

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> IndexedDataset:
        return self._with(IndexShuffle(self.stage, buffer_size, seed))

    def take(self, n: int) -> IndexedDataset:
        return IndexedDataset(Slice.take(self._endless, n))

    def skip(self, n: int) -> IndexedDataset:
        return IndexedDataset(Slice.skip(self._endless, n))

    def stride(self, interval: int, offset: int) -> IndexedDataset:
        return IndexedDataset(Slice.stride(self._endless, interval, offset))

    def units(self, key: str, *, within: Within = "batch") -> IndexedDataset:
        together(self.stage, key, within)
        source = self.stage if isinstance(self.stage, Source) and self.stage.in_index_order else Placed(self.stage)
        return self._with(IndexUnits(source, key, within))

    def train_valid_split(
        self, valid_share: float, *, key: str | None = None, seed: int = 42
    ) -> tuple[IndexedDataset, IndexedDataset]:
        how = Split(valid_share, self._split_key(key), seed)
        if facts_of(self.stage).originals() is not None:
            if key is not None:
                raise ValueError(
                    f"key={key!r} is a column, but from_dataset(collate_fn=...) hands on its samples unchanged. Leave key out to "
                    "split by the numbers of samples"
                )
            how = Split(valid_share, SAMPLE, seed)
        known: dict[int, SplitMask] = {}  # found by one pass for both sides

        def one(side: Side, source: Source) -> Indexed:
            mask = known.setdefault(id(source), SplitMask(source.index, how))
            return IndexTrainValidSplit(source, mask, side)

        train, valid = (self._selected("train_valid_split", partial(one, side)) for side in get_args(Side))
        return train, valid

    def lengths(self, column: Size = "input_ids") -> NDArray[Any]:
        stage = self.stage
        if stage.count == 0:  # which has no columns either
            return np.zeros(0, dtype=np.int64)
        if stage.count is None:
            raise TypeError("the lengths of this data set are not known: it repeats without end. Call take(n) first")
        rows, count = stage.unshuffled()
        index = stage.index
        if rows is np.arange and (column == TOKENS or column in index.list_columns):
            return index.lengths((str(column),), required=True)
        one_by_one = facts_of(stage).one_by_one
        spans = range(0, count, SPAN)  # the row numbers of all at once would take more than their lengths
        return np.concatenate(
            [
                sizes_at(index, index, rows(first, min(first + SPAN, count)), (column,), True, one_by_one=one_by_one)
                for first in spans
            ]
        )

    @property
    def _endless(self) -> Indexed:
        return IndexRepeat(self.stage) if self.repeats else self.stage

    def _with(self, stage: Indexed) -> IndexedDataset:
        return IndexedDataset(stage, self.repeats)

    def _selected(self, verb: str, some_of: Callable[[Source], Indexed]) -> IndexedDataset:
        found = self.stage.selected(some_of)
        if found is None:
            raise ValueError(
                f"{verb} cannot keep {shown(self.stage)} indexed: a slice, a mixture or a zip may have other samples in each "
                f"epoch. Call {verb} before it, or use stream().{verb}(...)"
            )
        return self._with(found)

    def _at(self, numbers: Iterable[int]) -> list[Sample]:
        """Samples by number, in the order given."""
        stage = self._endless
        rows, count = stage.order(0), stage.count
        found = [np.zeros(0, np.int64)]
        for number in numbers:
            place = index(number)
            if place < 0 and count is not None:
                place += count
            if place < 0 or (count is not None and place >= count):
                raise IndexError(
                    f"there is no sample {number:,} in a data set of {'no end' if count is None else f'{count:,}'}"
                )
            found.append(rows(place, place + 1))
        if len(found) == 1:
            return []
        block, originals = stage.index.take(np.concatenate(found)), facts_of(stage).originals()
        return samples(block) if originals is None else list(originals.samples(block))


class ForwardMixture(Dataset):
    """A mixture of indexed data by tokens, or of units. It runs forward, so what indexed data do by the numbers of samples is
    refused."""

    def __getitem__(self, number: Any) -> Any:
        _check_number(number)
        raise self._refusal("give a sample by its number, or a slice")

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> Dataset:
        raise self._refusal("be shuffled as indexed data are")

    def _refusal(self, what: str) -> TypeError:
        ways = "Call stream() first, for a shuffle in a buffer; or shuffle the data sets that are mixed"
        if facts_of(self.stage).units is not None:
            return TypeError(
                f"a mixture of units cannot {what}: it runs forward, as only what was served says what comes next. {ways}"
            )
        return TypeError(
            f"a mixture by tokens cannot {what}: it runs forward, as only the tokens served so far say what comes next. {ways}. "
            "Or mix them by samples. cache() and to_store(path) make an indexed data set of it"
        )


def _fetches(stage: Stage[Block]) -> bool:
    """Whether a chain makes samples of a data set one by one."""
    return isinstance(stage, FetchSamples) or any(map(_fetches, stage.inputs))


def streamed(stage: Stage[Block], num_workers: int = 0) -> Stage[Block]:
    """The same rows read forward, where a mixture of indexed data, or a map-style data set, lies below what only chooses columns
    or rows."""
    if (samples := fetched(stage, num_workers)) is not None:
        return samples
    if isinstance(stage, Source) and not isinstance(stage, IndexChoose):  # what is left of it was found by its rows
        return stage
    inputs = tuple(streamed(one, num_workers) for one in stage.inputs)
    if isinstance(stage, IndexInterleave):
        return Interleave(inputs, stage.weights, stage.stop, None, stage.names)
    if all(map(is_, inputs, stage.inputs)):
        return stage
    if isinstance(stage, IndexConcat):
        return Concat(inputs)
    if isinstance(stage, IndexZip):
        return Zip(inputs)
    if isinstance(stage, IndexRepeat):
        return Repeat(inputs[0])
    if isinstance(stage, IndexShuffle):
        return Shuffle(inputs[0], stage.buffer_size, stage.seed)
    if isinstance(stage, IndexChoose):
        return Choose(inputs[0], stage.choice)
    if isinstance(stage, Slice):
        skipped = Skip(inputs[0], stage.first) if stage.first else inputs[0]
        taken = skipped if stage.last is None else Take(skipped, max(0, stage.last - stage.first))
        return taken if stage.step == 1 else Stride(taken, stage.step, 0)
    return with_inputs(stage, *inputs)


def dataset_of(stage: Stage[Block], repeats: bool = False) -> Dataset:
    """A data set of a chain: an indexed one where the chain is."""
    return Dataset(stage, repeats) if facts_of(stage).streamed_by else IndexedDataset(cast(Indexed, stage), repeats)


def several(caller: str, datasets: Any) -> tuple[Any, ...]:
    """The data sets of a list. One alone, which would be iterated over to its end, is refused, and so are a dict and a set, which
    has another order in each process."""
    if isinstance(datasets, Dataset | Mapping | set | frozenset) or not isinstance(datasets, Iterable):
        raise TypeError(f"{caller} takes a list of data sets (got {type(datasets).__name__})")
    return tuple(datasets)


def stages_of(caller: str, datasets: Sequence[Dataset], *, once: bool = False) -> tuple[Stage[Block], ...]:
    """What some data sets run, epoch after epoch where they repeat; `once`: one epoch."""
    given = several(caller, datasets)
    if not given:
        raise ValueError(f"{caller} needs at least one data set (got none)")
    for number, dataset in enumerate(given):
        if not isinstance(dataset, Dataset):
            kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            remedy = (
                f"call {caller} before samples are batched"
                if isinstance(dataset, Batches)
                else "use from_sequence or from_iterable to make a data set of it"
            )
            raise TypeError(f"{caller}: data set {number} is a {kind}; {remedy}")
    return tuple(dataset.stage if once else dataset._endless for dataset in given)


def check_vocabularies(caller: str, stages: Sequence[Stage[Block]]) -> None:
    """Refuses data sets that were tokenized by tokenizers of two vocabularies."""
    one_vocabulary(caller, {f"data set {number}": facts_of(stage).tokenizers() for number, stage in enumerate(stages)})


def concatenated(datasets: Sequence[Dataset]) -> Dataset:
    """One stage for a + b + c too: several in each other would be as deep as there are data sets."""
    stages = stages_of("concat_datasets", datasets)
    for number, stage in enumerate(stages[:-1]):
        if not facts_of(stage).ends():
            raise ValueError(
                f"data set {number} repeats without end, so no data set after it is reached. Repeat only the last one"
            )
    check_vocabularies("concat_datasets", stages)
    parts = tuple(
        part for stage in stages for part in (stage.inputs if isinstance(stage, Concat | IndexConcat) else (stage,))
    )
    streamed = any(facts_of(part).streamed_by for part in parts)
    return dataset_of(Concat(parts) if streamed else IndexConcat(cast(tuple[Indexed, ...], parts)))


def run_by(executor: Executor, stage: Stage[Block], ray_address: str | None) -> Stage[Block]:
    """A chain as an executor runs it: the same rows in the same order.

    Raises:
        ValueError: it cannot.
    """
    one_of("executor", executor, *get_args(Executor))
    if executor == "ray":
        return spread(stage, ray_address)
    if ray_address is not None:
        raise ValueError(f"ray_address={ray_address!r} is for executor='ray' (got executor={executor!r})")
    return stage


def _check_number(number: Any) -> None:
    """Refuses what other libraries take between brackets.

    Raises:
        TypeError: naming the method for it.
    """
    if isinstance(number, str):
        raise TypeError(
            f"a data set takes the number of a sample (got {number!r}). For a column, use .select({number!r})"
        )
    if isinstance(number, list | tuple | set | np.ndarray):
        raise TypeError(
            f"a data set takes the number of a sample, or a slice (got {number!r:.40}). For several samples, use "
            "[dataset[number] for number in numbers]. For columns, use .select(names)"
        )


def _checked(on_error: OnError) -> OnError:
    one_of("on_error", on_error, *get_args(OnError))
    return on_error


def _prefixed(names: tuple[str, ...], prefix: str | Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Names with a prefix, or one name with several, and what other columns of a single one begin with; None: no prefix."""
    if isinstance(prefix, str):
        return tuple(prefix + name for name in names), prefix or None
    given = tuple(prefix) if isinstance(prefix, Sequence) else ()
    if not given or not all(isinstance(one, str) for one in given):
        raise TypeError(f"output_prefix must be text, such as 'chosen_', or several of them (got {prefix!r})")
    if len(names) != 1:
        raise ValueError(
            f"output_prefix={given} makes a column of each prefix, so give one output_column (got {names})"
        )
    return tuple(one + names[0] for one in given), given[0]


def _targets(names: str | Sequence[str]) -> tuple[str, ...]:
    columns = names_of("target_columns", names)
    if not columns:
        raise ValueError("target_columns must name at least one column (got none)")
    return columns


def _rounding(pad_to_multiple_of: int, buckets: Sequence[int] | None) -> Rounding | None:
    """None where nothing is rounded."""
    rounding = Rounding(pad_to_multiple_of=pad_to_multiple_of, buckets=buckets)
    return None if rounding == Rounding() else rounding
