"""The fluent face: what users write. Each method adds a stage; the stages do the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from brimful.batches import Batches, ColumnSettings, FormSettings, OrderSettings, batches_of
from brimful.batching.batched import ShuffleBatches
from brimful.batching.planners import ByKey, ByPacking, ByPolicy
from brimful.batching.round_robin import RoundRobin
from brimful.batching.shuffle import Shuffle
from brimful.blocks.blocks import Block, Sample, samples
from brimful.blocks.choice import Choice
from brimful.blocks.hashes import Side, Split
from brimful.blocks.inside import as_html, as_text, facts
from brimful.blocks.parallel import ExecutorType, Parallel
from brimful.core.errors import OnError, check_version, function, integer, names_of, one_of, positive, truth
from brimful.core.iterator import ResumableIterator
from brimful.core.progress import shown as progress
from brimful.core.repeat import Repeat
from brimful.core.stage import BLOCK_ROWS, Stage, check_depth, shown
from brimful.encoding.conversations import TrainOn
from brimful.encoding.encoders import chat_encoder_for, encoder_for, loaded
from brimful.encoding.engines import EngineName
from brimful.index.concat import Concat as IndexConcat
from brimful.index.filter import Filter as IndexFilter
from brimful.index.indexed import SPAN, Indexed, Source
from brimful.index.map_style import SAMPLE
from brimful.index.repeat import Repeat as IndexRepeat
from brimful.index.sequence import CachedIndex, FromSequence
from brimful.index.shuffle import Shuffle as IndexShuffle
from brimful.index.slice import Slice
from brimful.index.train_valid_split import SplitMask
from brimful.index.train_valid_split import TrainValidSplit as IndexTrainValidSplit
from brimful.plan import FixedSize, Overlong, Packed, Policy, TokenBudget
from brimful.plan.budget import SampleCost
from brimful.plan.rounded import Rounding
from brimful.ray.spread import spread
from brimful.rows.add_bos_eos import AddBosEos
from brimful.rows.causal_labels import CausalLabels
from brimful.rows.chat import Chat
from brimful.rows.choose import Choose
from brimful.rows.chunk import Chunk
from brimful.rows.concat import Concat
from brimful.rows.concat_chunk import ConcatChunk
from brimful.rows.ensure_bos_eos import EnsureBosEos, bos_eos_of
from brimful.rows.enumerate import Enumerate
from brimful.rows.filter import Filter
from brimful.rows.filter_map import FilterMap
from brimful.rows.flat_map import FlatMap
from brimful.rows.map import Map
from brimful.rows.map_blocks import MapBlocks
from brimful.rows.pack_chunk import PackChunk
from brimful.rows.pad import Pad
from brimful.rows.rebatch import Rebatch
from brimful.rows.row_keys import RowKeys
from brimful.rows.scan import Scan
from brimful.rows.skip import Skip
from brimful.rows.sliding_window import SlidingWindow
from brimful.rows.stride import Stride
from brimful.rows.take import Take
from brimful.rows.tokenize import Tokenize
from brimful.rows.train_valid_split import TrainValidSplit
from brimful.rows.unbatch import Unbatch
from brimful.store.hugging_face import hugging_face_of
from brimful.store.index import StoreIndex
from brimful.store.writer import write_store

if TYPE_CHECKING:
    from brimful.loader import Loader

Executor: TypeAlias = Literal["local", "ray"]
"""Where work runs: in this process, or on a Ray cluster."""


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
        truth("repeat", self.repeats, "True repeats the data without end; for some epochs, loop over loader() as often")
        _ = self.stage.originals  # which a stage that works on rows refuses

    def __iter__(self) -> Iterator[Sample]:
        return self.iter()

    def iter(
        self, state_dict: dict[str, Any] | None = None, *, allow: Collection[str] = ()
    ) -> ResumableIterator[Sample]:
        """An iterator over the samples, from the start or from a state that an iterator of this data set gave.

        Args:
            state_dict: what `state_dict()` returned; it is not changed.
            allow: settings in which the state may differ. "functions": for one that gives the same rows for those that were
                taken already, as they are made once more where a window began before the place. "urls": for shards that
                were moved, or added behind the others. "weights": of a mixture of streams.
        Raises:
            StateError: the state belongs to another pipeline, or the data read again are not those it was saved over.

        >>> import brimful as bf
        >>> it = bf.from_sequence([{"x": 1}, {"x": 2}]).iter()
        >>> next(it)
        {'x': 1}
        >>> list(bf.from_sequence([{"x": 1}, {"x": 2}]).iter(it.state_dict()))
        [{'x': 2}]
        """
        return ResumableIterator(self._samples, state_dict, allow)

    def loader(self) -> Loader:
        """The samples as an IterableDataset of an epoch at a time, with state_dict, load_state_dict and set_epoch: see
        `Loader`.

        A DataLoader around it batches by a collate_fn: DataLoader(dataset.loader(), batch_size=32, collate_fn=...), with
        num_workers=0. Its state is the place after the samples that were asked for. Ranks of a data-parallel run all get all
        samples: `stride(world_size, rank)` says which, `Batches.shard` shares out batches.

        >>> import brimful as bf
        >>> loader = bf.from_sequence(["a", "b"]).loader()
        >>> [[sample["text"] for sample in loader] for epoch in range(2)]
        [['a', 'b'], ['a', 'b']]
        """
        from brimful.loader import Loader, Samples

        return Loader(Samples(self._samples, partial(len, self), self.stage.streams))

    def __len__(self) -> int:
        raise TypeError(
            f"the length of this data set is not known: it is {self.kind} (a DataLoader takes its loader())"
        )

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: Any) -> Any:
        _check_number(number)
        raise TypeError(
            f"the samples of this data set cannot be had by number: it is {self.kind}; cache() keeps "
            "it in memory, to_store(path) on disk"
        )

    def __add__(self, other: Dataset) -> Dataset:
        return concatenated([self, other])

    def __repr__(self) -> str:
        return as_text(type(self).__name__, facts(self.stage, self.stage, self.repeats), self.repeats)

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, facts(self.stage, self.stage, self.repeats))

    @property
    def kind(self) -> str:
        """Either "indexed" (any sample at once), or "streamed" and the stage that made it so.

        >>> import brimful as bf
        >>> bf.from_sequence(["a"]).kind, bf.from_sequence(["a"]).map(lambda sample: sample).kind
        ('indexed', 'streamed (by map)')
        """
        by = self.stage.streamed_by
        return f"streamed (by {by})" if by else "indexed"

    def stream(self) -> Dataset:
        """The same samples as a stream: for methods that indexed data refuse.

        >>> import brimful as bf
        >>> mixed = bf.interleave_datasets([bf.from_sequence(["a", "b"]), bf.from_sequence(["c"])])
        >>> list(mixed.stream().filter(lambda sample: sample["text"] != "a"))
        [{'text': 'c'}, {'text': 'b'}]
        """
        return Dataset(self.stage, self.repeats)

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
    ) -> Dataset:
        """`fn(sample)` in place of each sample; with a seed `fn(sample, rng)`, a numpy generator keyed by the row.

        Token columns arrive as numpy arrays that `fn` may change. Where it raises, on_error="raise" names file and line;
        "skip" leaves the sample out, counts it as `skipped` in `.stats` and logs file, line and error. The results are the
        same, in the same order, however many workers there are. Price: Python, once a sample; `map_blocks` is the fast way.

        Args:
            seed: with one the function takes (sample, rng), a numpy generator keyed by the row: the same whatever the
                workers.
            on_error: where the function raises: "raise" names file and line; "skip" leaves the sample out, counts and logs
                it.
            max_workers: threads or processes that call it; 0: the caller's thread.
            executor_type: "thread", for functions that wait or leave the interpreter's lock; "process", for those that
                compute in Python: they are sent there by cloudpickle, and blocks as Arrow IPC. What a script defines may
                    be used as it is.
            prefetch_factor: for each worker so many parts of blocks are in the making, or ready, ahead of use.

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"x": 1}]).map(lambda sample: {"y": sample["x"] + 1}))
        [{'y': 2}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._add(
            Map(self._keyed(seed), function("map", fn), seed is not None, _checked(on_error), parallel=parallel)
        )

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
        """The samples for which `fn(sample)` is true; with a seed `fn(sample, rng)`.

        Price: Python, once a sample. Indexed data stay indexed. Each process reads all of their sources at the first use, and
        asks about every sample; it holds 8 bytes for each one that stays. A seed, or a slice, mixture or zip before it, is an
        error there: say `stream().filter(...)`. The rest is as for `map`; the iterator that uses indexed data first counts what
        they leave out.

        >>> import brimful as bf
        >>> numbers = bf.from_sequence([{"n": n} for n in range(8)]).stream()
        >>> [sample["n"] for sample in numbers.filter(lambda sample: sample["n"] % 2 == 0)]
        [0, 2, 4, 6]
        >>> [sample["n"] for sample in numbers.filter(lambda sample, rng: rng.random() < 0.5, seed=2)]
        [0, 2, 5, 6]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._add(
            Filter(self._keyed(seed), function("filter", fn), seed is not None, _checked(on_error), parallel=parallel)
        )

    def filter_map(
        self,
        fn: Callable[..., Sample | None],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """`fn(sample)` in place of each sample, but for those for which it is None; with a seed `fn(sample, rng)`.

        The rest is as for `map`.

        >>> import brimful as bf
        >>> def half(sample): return {"n": sample["n"] // 2} if sample["n"] % 2 == 0 else None
        >>> list(bf.from_sequence([{"n": 2}, {"n": 3}, {"n": 4}]).filter_map(half))
        [{'n': 1}, {'n': 2}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._add(
            FilterMap(
                self._keyed(seed), function("filter_map", fn), seed is not None, _checked(on_error), parallel=parallel
            )
        )

    def flat_map(
        self,
        fn: Callable[..., Iterable[Sample]],
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """All samples of `fn(sample)` in place of each; with a seed `fn(sample, rng)`. The rest is as for `map`.

        >>> import brimful as bf
        >>> def words(sample): return [{"text": word} for word in sample["text"].split()]
        >>> list(bf.from_sequence(["a b", "", "c"]).flat_map(words))
        [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        return self._add(
            FlatMap(
                self._keyed(seed), function("flat_map", fn), seed is not None, _checked(on_error), parallel=parallel
            )
        )

    def map_blocks(
        self,
        fn: Callable[[Block], Block],
        *,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
        prefetch_factor: int = 10,
    ) -> Dataset:
        """`fn(block)` in place of each pyarrow.RecordBatch of rows (1 to 4,096 of them): any columns, any number of rows.

        `fn` must not depend on where blocks begin and end. Price: what `fn` costs; nothing a sample. Workers are as for
        `map`; each is given whole blocks.

        >>> import brimful as bf
        >>> import pyarrow.compute as pc
        >>> rows = bf.from_sequence([{"n": 1}, {"n": 5}, {"n": 9}])
        >>> list(rows.map_blocks(lambda block: block.filter(pc.greater(block["n"], 2))))
        [{'n': 5}, {'n': 9}]
        """
        parallel = Parallel(max_workers, executor_type, prefetch_factor, shares=False)
        return self._add(MapBlocks(self.stage, function("map_blocks", fn), parallel=parallel))

    def scan(self, fn: Callable[[Any, Sample], tuple[Any, Sample]], initial: Any) -> Dataset:
        """`fn(carry, sample)` gives (carry, sample), as of jax.lax.scan: a sample for each, and what the next call is handed.

        Args:
            fn: the carry comes first, and goes first.
            initial: the carry of the first call of each epoch. All of them are plain JSON: None, bool, int, finite float,
                str, lists and dicts of these. The state holds one: keep it small.
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
        return self._add(Scan(self.stage, function("scan", fn), initial))

    def sliding_window(self, width: int) -> Dataset:
        """`width` neighbours in one sample, each column a list of theirs; of n samples of an epoch n - width + 1, or none.

        A sample is said to come from where its first one does. Of several streams it is refused.

        State: [upstream's state, samples, blocks, crc32]; a resume reads the last width - 1 samples again.
        Price: they are held; memory and time are `width` times those of the samples, 1 MB or so at a time.

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
        """Adds the tokens of a text column, int32, whole blocks at a time, ahead of use.

        Args:
            tokenizer: a tokenizers.Tokenizer, a transformers tokenizer, a tiktoken.Encoding, a gigatoken.Tokenizer, or a
                callable list[str] -> list[list[int]]; or the name of one, as on the command line: a tokenizer.json, a
                folder or a name for transformers, tiktoken:NAME. It is never changed: threads work on clones. (What a
                gigatoken.Tokenizer gives is
                what it says: there is no other to hold it against, and its memory grows with the words that it has seen.)
            column: of text. Of several, as many as there are in `output_column`, each is tokenised by itself (an encoder's input
                and a decoder's labels); of two with one output, pairs of texts make one row (a cross-encoder's):
                transformers' `tokenizer(a, b)`; a callable gets two lists.
            output_column: the column, or columns, of tokens.
            truncation: True, or which text of a pair is cut: "longest_first" (what True means), "only_first",
                "only_second". None: as the tokenizer is set, or to `max_length` where that is given. False: not at all.
            max_length: tokens of a row at most, special ones included; without it that of a transformers tokenizer's model.
            add_special_tokens: those that the tokenizer puts around texts (tiktoken: none).
            remove_columns: leave these out: the text, once it is tokens.
            engine: what makes the tokens; they are the tokenizer's own in any case, and so are states and stores. "auto":
                the fastest
                that is known to give them: "gigatoken", where it is installed (the extra `fast`), for most byte-level and
                SentencePiece-style BPE; "cache", which looks words up that it has seen and has only new ones tokenised,
                for most others; else "tokenizer", as it is, which also makes pairs and `extra_outputs`. The first two are held
                against the tokenizer in the first 1,000 texts, and in one of 4,096 after that. `repr` and `.stats.engines`
                say which it is; name a faster one, and the error says why it cannot.
            extra_outputs: what else the tokenizer says of each row, as columns: "token_type_ids", "attention_mask",
                "special_tokens_mask", "offset_mapping" (of fast ones: of each token the first of its characters, and the
                one after its last; batches have no place for it: drop it before); of a callable, what its dicts have.
            tokenizer_kwargs: other keywords of a transformers call, of tiktoken's, of the callable. What would be passed
                over is refused, and so is what rows have no place for (`return_overflowing_tokens`, `return_tensors`,
                padding).
            max_workers: blocks tokenised at a time. A fast tokenizer uses all cores for one. 0: in the caller's thread.
            executor_type: "process": for a slow tokenizer, in Python; see `map`.
        Raises:
            ValueError: it is something that the tokenizer cannot do: a callable, for one, must cut texts itself; an engine
                is named that cannot stand in for it.
            DataError: at a null, naming file and line.
            StageError: (when iterated) what the tokenizer raised; an engine gave other tokens than it.
        `.stats` counts what `max_length` cuts off: texts under `truncated`, tokens under `dropped_tokens`; not what a
        callable does.
        Price: the tokenizer's own speed; a tenth to a fifth of its time by the word cache, which keeps 10^6 words in 200
            MB, less by gigatoken; up to 3 max_workers blocks (of 4,096 rows or 1 MB) held.

        >>> import brimful as bf
        >>> def tokenizer(texts): return [list(text.encode()) for text in texts]
        >>> pairs = bf.from_sequence([{"source": "ab", "target": "c"}])
        >>> both = {"column": ("source", "target"), "output_column": ("input_ids", "labels")}
        >>> list(pairs.tokenize(tokenizer, **both, remove_columns="source"))
        [{'target': 'c', 'input_ids': array([97, 98], dtype=int32), 'labels': array([99], dtype=int32)}]
        """
        truth("add_special_tokens", add_special_tokens)
        columns, made = names_of("column", column), names_of("output_column", output_column)
        more, removed = names_of("extra_outputs", extra_outputs), names_of("remove_columns", remove_columns)
        pairs = len(columns) == 2 and len(made) == 1
        if not columns or (len(columns) != len(made) and not pairs):
            raise ValueError(
                f"tokenize makes an output of each column, or one of two columns (got column={columns} and output_column={made})"
            )
        if more and len(made) > 1:
            raise ValueError(
                "tokenize: extra_outputs= would be those of several columns; tokenize the columns one by one"
            )
        names_of("tokenize", (*made, *more))
        if kept := [name for name in removed if name in (*made, *more)]:
            raise ValueError(f"tokenize makes the column {kept[0]!r} that remove_columns leaves out")
        asked: dict[str, Any] = {"truncation": truncation, "max_length": max_length}
        asked |= {"add_special_tokens": None if add_special_tokens else False}
        asked = {name: value for name, value in asked.items() if value is not None}
        encoder = encoder_for(tokenizer, tokenizer_kwargs, asked, pairs=pairs, outputs=more, engine=engine)
        parallel = Parallel(max_workers, executor_type, prefetch_factor=2, shares=executor_type == "process")
        return self._add(Tokenize(self.stage, encoder, columns, made, more, removed, parallel=parallel))

    def add_bos_eos(
        self, bos_token_id: int | None, eos_token_id: int | None, *, target_column: str = "input_ids"
    ) -> Dataset:
        """Puts a token before and one after the tokens of each sample (None: nothing).

        >>> import brimful as bf
        >>> list(bf.from_sequence([{"input_ids": [5, 6]}]).add_bos_eos(1, None))[0]["input_ids"].tolist()
        [1, 5, 6]
        """
        return self._add(AddBosEos(self.stage, bos_token_id, eos_token_id, target_column))

    def ensure_bos_eos(self, tokenizer: Any, *, target_column: str = "input_ids") -> Dataset:
        """The tokenizer's BOS before each sample that does not begin with it, and its EOS after each that does not end
        with it.

        Each sample is looked at, whatever the tokenizer was told to add: done twice it adds nothing. A lone BOS gets an
        EOS, an empty sample both. If BOS and EOS are one id, a sample that neither begins nor ends with it gets one EOS,
        and never a second. If a tokenizer has only one of the two, that one is added.

        Raises:
            TypeError, ValueError: the tokenizer does not name them, or has neither.

        >>> import brimful as bf
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
        >>> samples = bf.from_sequence([{"input_ids": [2, 2]}, {"input_ids": [0, 2, 1]}])
        >>> [sample["input_ids"].tolist() for sample in samples.ensure_bos_eos(tokenizer)]
        [[0, 2, 2, 1], [0, 2, 1]]
        """
        return self._add(EnsureBosEos(self.stage, *bos_eos_of(loaded(tokenizer)), target_column))

    def causal_labels(self, *, target_column: str = "input_ids", shift: bool = False) -> Dataset:
        """Adds `labels` for a model that predicts the next token, int32: the tokens, of which each sample's first is -100.

        Models shift labels by one themselves, so nothing predicts a first token: as -100 it is not counted either, in
        `num_items_in_batch` for one. Tokens that an `attention_mask` of the rows hides are -100 too, and so is one that
        follows a hidden one, which would predict it.

        Args:
            shift: `shift_labels` instead, each where it is predicted: for samples that are cut across devices, where
                nobody can shift by one. transformers' models take them by that name. Where there are `labels` (of `chat`),
                these are shifted.
        Raises:
            DataError: there are such labels already, or a mask of another length; with file and line.

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
        column: str = "messages",
        train_on: TrainOn = "assistant",
        on_error: OnError = "raise",
        max_workers: int = 1,
        executor_type: ExecutorType = "thread",
    ) -> Dataset:
        """Adds `input_ids` and `labels`, int32, of conversations, by the tokenizer's own chat template, ahead of use.

        A conversation is a list of messages: {"role": "user", "content": ...}; a column `tools`, where there is one, holds
        lists of JSON schemas. Rows of one type have the keys of all, so that a key whose value is null counts as left out;
        where that, or the order of keys, must be kept, either may be JSON text. The template alone writes special tokens,
        BOS among them.

        What the assistant says is what the template marks by {% generation %}; where it marks nothing, what a turn adds to
        the messages before it and the prompt to answer them, to its last special token (white space after that is the
        template's). That
        these begin the whole is held against it token by token: nothing is guessed.

        Args:
            tokenizer: of transformers, with a `chat_template`; or the name of one, as `tokenize` takes it.
            column: of conversations.
            train_on: what is a label, -100 being none: "assistant", all that it says; "last", its last message; "all"
                tokens. A first token is never one, as nothing predicts it.
            on_error: "raise" names file and line; "skip" leaves the row out, counts it as `skipped` in `.stats` and logs why.
            max_workers, executor_type: see `tokenize`; "process" for many short conversations, as templates run in Python.
        Raises:
            TypeError, ValueError: the tokenizer is no such one.
            DataError: (when run) what is no conversation; the assistant says nothing; its tokens cannot be told from
                others, as the template writes a turn otherwise once more messages follow, or a token lies across a turn's
                border.
            StageError: (when run) the template refuses a conversation.
        Price: .1 to .3 ms a message for the template, and the tokenizer's own; without {% generation %} each turn that is
            trained on is tokenized with all before it, twice.
        Source: TRL and axolotl, whose usual labels these are.

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
        encoder = chat_encoder_for(tokenizer)
        return self._add(Chat(self.stage, encoder, column, train_on, _checked(on_error), parallel=parallel))

    def chunk(
        self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",), drop_remainder: bool = True
    ) -> Dataset:
        """Each sample cut by itself; the rows have the target columns alone.

        Args:
            chunk_length: tokens of a chunk.
            target_columns: lists that are cut together. Other columns are left out, but labels and masks are not left out in
                silence: name them here, or `drop` them first.
            drop_remainder: leave out a last chunk of a sample that is shorter; its tokens are counted.
        Raises:
            DataError: (when run) lists of two lengths in a row; `labels`, `attention_mask` or another column of tokens that is
                not among the target columns.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": list(range(10))}, {"input_ids": [10, 11]}])
        >>> [sample["input_ids"].tolist() for sample in samples.chunk(6)]
        [[0, 1, 2, 3, 4, 5]]
        """
        return self._add(Chunk(self.stage, chunk_length, _targets(target_columns), drop_remainder))

    def concat_chunk(self, chunk_length: int, *, target_columns: Sequence[str] = ("input_ids",)) -> Dataset:
        """All samples end to end, cut; the tail of the data that fills no chunk is dropped and counted. In data that
        repeat the next epoch fills it, unless a window that sorts, packs or shuffles reads the chunks.

        Args:
            chunk_length, target_columns: as for `chunk`.
        Raises:
            DataError: (when run) as for `chunk`.

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

        Args:
            chunk_length, target_columns: as for `chunk`.
            discard_long_samples: leave a longer sample out, instead of cutting it.
        Raises:
            DataError: (when run) as for `chunk`.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [0, 1]}, {"input_ids": [2]}, {"input_ids": [3, 4]}])
        >>> [sample["input_ids"].tolist() for sample in samples.pack_chunk(4)]
        [[0, 1, 2], [3, 4]]
        """
        truth("discard_long_samples", discard_long_samples)
        return self._add(PackChunk(self.stage, _targets(target_columns), chunk_length, discard_long_samples))

    def pad(self, length: int, values: Mapping[str, int]) -> Dataset:
        """Fills each list of the columns in `values`, which name what they are filled with, to `length` values.

        `attention_mask` says how many each had (1, then 0), by the first of these columns, unless the samples have a mask:
        that is filled with 0.

        >>> import brimful as bf
        >>> sample = bf.from_sequence([{"input_ids": [5, 6]}]).pad(4, {"input_ids": 0}).peek(1)[0]
        >>> sample["input_ids"].tolist(), sample["attention_mask"].tolist()
        ([5, 6, 0, 0], [1, 1, 0, 0])
        """
        return self._add(Pad(self.stage, length, dict(values)))

    def select(self, names: str | Sequence[str]) -> Dataset:
        """The samples with these columns alone, in this order. Indexed data stay indexed; of a store no others are read.

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
        return self._add(Choose(self.stage, Choice("rename", tuple(names), tuple(names.values()))))

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> Dataset:
        """The rows of each window of `buffer_size` in a random order, another one each epoch.

        Price: one and a half windows held, of indexed data as 8 bytes a sample; a resume reads the window again.

        >>> import brimful as bf
        >>> shuffled = bf.from_sequence([{"n": n} for n in range(6)]).shuffle(3)
        >>> [sample["n"] for sample in shuffled]
        [0, 2, 1, 4, 3, 5]
        """
        return self._add(Shuffle(self.stage, buffer_size, seed))

    def peek(self, n: int = 5) -> list[Sample]:
        """The first n samples, or all where there are fewer.

        >>> import brimful as bf
        >>> bf.from_sequence(["a", "b", "c"]).peek(2)
        [{'text': 'a'}, {'text': 'b'}]
        """
        with self.iter() as found:
            return list(islice(found, integer("n", n, 0, "samples")))

    def take(self, n: int) -> Dataset:
        """The first n samples. A repeating data set runs as many epochs as that needs.

        Several streams (`from_files(streams=...)`) have no order of rows, so they refuse `take`, `skip`, `stride` and
        `enumerate`: see `peek`, `filter` and `Batches.take`.

        >>> import brimful as bf
        >>> endless = bf.from_sequence(["a", "b"], repeat=True)
        >>> endless.repeats, [sample["text"] for sample in endless.take(3)]
        (True, ['a', 'b', 'a'])
        """
        return Dataset(Take(self._endless, n))

    def skip(self, n: int) -> Dataset:
        """All but the first n samples. Price: of indexed data nothing, else they are read.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b", "c"]).skip(2))
        [{'text': 'c'}]
        """
        return Dataset(Skip(self._endless, n))

    def stride(self, interval: int, offset: int) -> Dataset:
        """Sample i where i mod `interval` == `offset`.

        >>> import brimful as bf
        >>> [sample["text"] for sample in bf.from_sequence(["a", "b", "c", "d", "e"]).stride(2, 1)]
        ['b', 'd']
        """
        return Dataset(Stride(self._endless, interval, offset))

    def enumerate(self, *, count_column: str = "step") -> Dataset:
        """Adds the number of each sample in the stream, from 0, as a column; it goes on over epochs.

        >>> import brimful as bf
        >>> list(bf.from_sequence(["a", "b"]).enumerate())
        [{'text': 'a', 'step': 0}, {'text': 'b', 'step': 1}]
        """
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
        Price: 40 ns a number and 5 ns a byte of text. Sources of indexed data stay indexed (see `filter`): when the first
            side is used, in each process, all are read once for both, of a store with a key that column alone; 9 bytes a
            sample.

        >>> import brimful as bf
        >>> train, valid = bf.from_sequence([{"n": n} for n in range(10_000)]).train_valid_split(0.05)
        >>> len(train), len(valid)
        (9486, 514)
        """
        how = Split(valid_share, key, seed)
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
        """Writes the samples of the first epoch to a token store, and returns the store: what `from_store(path)` reads.

        The store is written now, with a progress bar if stderr is a terminal, and is complete when the call returns. If
        the folder has the finished store of the same pipeline, it is opened and not written again. If it has a part of
        it (Ctrl-C, a crash), the call goes on where that stopped. If several processes call it, one writes and the others
        wait: so all ranks of a run may call it.

        All columns are stored, also a text that was tokenised (`drop` it before). The files, `path/*.arrow`, open
        anywhere: pyarrow, polars, `datasets.load_dataset("arrow", data_files=...)`. Data that repeat are written once, and
        the returned data set repeats. States of the returned data set are those of `from_store(path)`.

        Args:
            path: a local folder: a new one, an empty one, or one with this store.
            executor: "local": this process. "ray": a Ray cluster reads the shards of `from_files` and runs the stages that
                work on single rows; the first other stage and those after it run here, which is logged. The files are the
                same, to the byte. If a worker is killed, the rows of its shard that had not arrived are made again.
            version: the version of your functions in the chain. A store cannot see that a function changed: give another
                version then.
            timeout_seconds: how long to wait for another writer that makes no progress.
            ray_address: the address of the cluster: "auto" or "host:port". None: the cluster that this process is connected
                to, or that RAY_ADDRESS names, or one on this machine, which is started if need be.
        Raises:
            ValueError: a data set without an end; functions without a version; a folder of other things, or a URL; no
                stage that Ray could run.
            ModuleNotFoundError: Ray is not installed: `pip install 'brimful[ray]'`.
            StateError: another pipeline wrote the store, or another executor began it; both are named.
            TimeoutError: another writer, which is named, makes no progress.
            DataError: the rows differ in their columns or types; with file and line.
        Price: the time of the chain, and about 10 ns a token; 50 MB held. On disk 2 bytes a token if the chain tokenises and
            the vocabulary has at most 65,536 tokens, else 4; 4 bytes a row and list column; other columns as Arrow has them.

        >>> import tempfile
        >>> import brimful as bf
        >>> rows = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7]}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = rows.to_store(f"{folder}/tokens")
        ...     len(store), store.lengths().tolist(), store[1]["input_ids"].tolist()
        (2, [2, 1], [7])
        """
        self._refuse_originals("to_store")
        timeout = positive("timeout_seconds", timeout_seconds)
        run = run_by(executor, self.stage, ray_address)
        self._check_end("to_store")
        with progress() as report:
            write_store(
                self.stage,
                path,
                version=version,
                timeout_seconds=timeout,
                report=report,
                run=run,
                executor=executor,
            )
        return IndexedDataset(FromSequence(StoreIndex.opened(path), shuffle=False, seed=42), self.repeats)

    def cache(self, path: None = None) -> IndexedDataset:
        """The samples of the first epoch in memory, in stream order: an indexed data set.

        The chain runs once, when the first sample or length is wanted. Each process has its own copy. `to_store` keeps the
        samples on disk, for data that are larger than memory and for other processes.

        Args:
            path: none: `to_store(path)` writes to disk.
        Raises:
            TypeError: a path.
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
        self._check_end("cache")
        return IndexedDataset(FromSequence(CachedIndex(self.stage), shuffle=False, seed=0), self.repeats)

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

        >>> import tempfile
        >>> import brimful as bf
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = bf.from_sequence(["a", "b"]).to_hf(f"{folder}/words")
        ...     table.num_rows, table[1]
        (2, {'text': 'b'})
        """
        self._refuse_originals("to_hf")
        self._check_end("to_hf", repeats=self.repeats)
        return hugging_face_of(self.stage, path)

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
        raise TypeError(
            f"the lengths of this data set are not known: it is {self.kind}; cache() keeps "
            "it in memory, to_store(path) on disk"
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
        length_column: str | tuple[str, str] = "input_ids",
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | None = 1,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Batches of a fixed number of samples, or by a policy.

        Args:
            size_or_policy: an int: in arrival order, or with a window sorted by length inside it. A policy plans windows.
            window: rows to plan over; "auto" (also None for a policy): as many as bring padding to about 1 %, of streams
                256 MB at most; there an epoch begins with 1,024 rows, then 4,096, and so on. "steps": those of
                two optimizer steps of `micro_batches`, so that each has samples of nearly all lengths, for losses of
                samples; some 10 % padding.
            pad_to_multiple_of: round each padded length up; a policy's limits hold for the rounded shape.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: what becomes of a sample longer than the policy can place: "raise", "truncate", "drop", or "alone" (a
                batch of its own). Counted in `.stats`.
            length_column: the list column whose lengths are planned over, a pair of them for (source, target).
            token_columns: lists that are cut, padded and packed with the first length column, and must be as long as it in
                every row; by default those of attention_mask, token_type_ids, position_ids, special_tokens_mask and labels
                that there are. Other lists of numbers are padded to their own longest.
            pad_values: what padding holds, by column; by default -100 in `labels` and in columns whose name ends in
                `_labels`, in others the tokenizer's own id, else 0.
            pad_side: where padding goes, "right" or "left"; by default the tokenizer's own side, else right.
            keep_text: batches also hold the text that was tokenised, as lists. By default they leave it out, which takes a third
                less time; samples and stores hold it in any case. A `collate_fn`, or a function of `map` on batches, that
                reads the text needs it; the functions of `batch_by` do not.
            layout: "padded"; "nested": tensors of layout torch.jagged, which hold no padding; or "grouped": `groups` of
                like length inside the batch, each padded on the right to its own longest (see `brimful.grouping`), for
                lengths that differ a thousandfold. What makes no tensor (text, lists of lists) stays beside `groups`, as
                lists; which keys are in them, what their dims are called and how a loss is taken says
                `help(brimful.tensors.grouped.grouped)`. A tokenizer's own padding side is not looked at. The batch is
                planned as a padded one: its budget counts what that would hold, `.stats` what the groups do.
                Ranks may have different numbers of groups: see `Collection.apply` before you run FSDP on them.
            num_groups: most groups in a batch, of layout "grouped"; by default 4.
            dtypes: types other than int64 for integers and a column's own for the rest, by the names of what is in a batch:
                {"input_ids": "int32", "attention_mask": "bool"}.
            drop_last: leave out incomplete batches: of a fixed size, one a window; else the last cut of an epoch. Counted
                in `.stats`.
            shuffle_batches: hand out a window's batches in a random order; "stratified": in one of which any k that follow
                one another cover short and long alike (`plan.low_discrepancy_order` says how evenly), in each of the
                streams of from_files(streams=n) and, as long as their windows keep pace, over all of them.
            micro_batches: so many batches on each rank are one optimizer step, whose gradients the loop adds up. 1, or None: the
                loop may add up the gradients of as many as it likes. The policy's limit (samples, tokens, cost, rows) is that
                of a step, and is dealt to its batches; the memory of a MemoryBudget, and the limit of a policy or function
                of one's own, is that of each batch.
                `shuffle_batches=True` means "stratified", so that a step has samples of all lengths, as random batches do.
                Each batch carries `weight`, `is_filler`, `ends_step` (bool: now the optimizer steps) and, where there are
                labels, `num_items_in_batch`, the labels of its whole step on all ranks, which `bf.token_mean` divides by;
                of data whose labels no index knows, on several ranks, `num_items_on_rank` in its place; neither where a
                collate_fn makes the labels, which `bf.token_mean` says how to count. The last step of an epoch may have
                fewer batches; where epochs follow each other (data that repeat, loader(steps_per_epoch=...)) steps go on
                over their ends. `take` a multiple of k, or the last step is cut. Of trainers it sets the accumulation of
                gradients: docs/trainers.md.
            balance_group: keep so many batches of like cost next to each other when they are shuffled; the world size: equal work
                on all ranks.
            balance_cost: what a sample costs, as for `bf.balance`: groups are then of batches that cost the same, not only of
                neighbours in the plan, and each group is one step of the ranks, in every window. With `micro_batches` the sums
                of a step's batches are even, too. A function must give the same each time, and on every rank. Of streams,
                `shuffle_batches=True` means "stratified".
            seed: of that order.
            collate_fn: makes the batch of a list of samples (dicts), as Hugging Face collators do, instead of a layout.
                What it draws at random (from Python's, numpy's and torch's generators, or some of its own) is keyed by the
                batch: the same whatever runs ahead, on any number of ranks, and after a resume; the process's generators
                are afterwards as before. So it is called as a batch is taken, also where `prefetch` or `to_device` run
                ahead, unless it has workers. On several ranks it returns a dict, in which fillers are marked; or say
                shard(uneven="drop").
            max_workers: batches for which it is called at once, ahead of use; 0: by the caller's thread.
            executor_type: what calls it: "process" (which takes seconds to begin where the function needs torch); or
                "thread", where it leaves the interpreter's lock and draws nothing at random.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2, 3]}, {"input_ids": [4]}])
        >>> [batch["input_ids"].tolist() for batch in samples.batch(2)]
        [[[1, 0], [2, 3]], [[4]]]
        """
        one_of("overlong", overlong, *get_args(Overlong))
        if isinstance(size_or_policy, Policy):
            policy, rows = size_or_policy, window or "auto"
        elif hasattr(size_or_policy, "__index__"):
            policy = FixedSize(size_or_policy, sort=window is not None)
            rows = policy.n * max(1, 1024 // policy.n) if window is None else window
        else:
            raise TypeError(f"batch takes a number of samples or a policy (got {size_or_policy!r})")
        planner = ByPolicy(policy, overlong, _rounding(pad_to_multiple_of, buckets))
        columns = ColumnSettings(length_column, token_columns, pad_values, dtypes)
        order = OrderSettings(drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost)
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text)
        return batches_of(self.stage, self.repeats, planner, rows, columns, order, form)

    def batch_by_tokens(
        self,
        max_tokens: int,
        *,
        window: int | Literal["auto", "steps"] = "auto",
        pad_to_multiple_of: int = 1,
        buckets: Sequence[int] | None = None,
        overlong: Overlong = "raise",
        length_column: str | tuple[str, str] = "input_ids",
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | None = 1,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Batches of at most `max_tokens` padded tokens: each window sorted by length and cut as full as that allows.

        Args:
            max_tokens: rows x padded length of a batch.
            window: rows to plan over; "auto": as many as bring padding to about 1 %, of streams 256 MB at most; there an epoch
                begins with 1,024 rows, then 4,096, and so on. "steps": as for `batch`.
            pad_to_multiple_of: round each padded length up.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: what becomes of a sample longer than the policy can place: "raise", "truncate", "drop", or "alone" (a
                batch of its own). Counted in `.stats`.
            the rest: as for `batch`.
        Price: one and a half windows held and one made ahead; about 15 ns a token.
        Source: infinibatch (sorted read-ahead), fairseq (token budgets).

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1] * length} for length in (50, 30, 20, 20, 30, 20)])
        >>> batches = samples.batch_by_tokens(60, shuffle_batches=False)
        >>> [batch["input_ids"].shape for batch in batches]
        [torch.Size([1, 50]), torch.Size([2, 30]), torch.Size([3, 20])]
        """
        one_of("overlong", overlong, *get_args(Overlong))
        policy = TokenBudget(max_tokens, pad_to_multiple_of=pad_to_multiple_of, buckets=buckets)
        columns = ColumnSettings(length_column, token_columns, pad_values, dtypes)
        order = OrderSettings(drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost)
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text)
        return batches_of(self.stage, self.repeats, ByPolicy(policy, overlong), window, columns, order, form)

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
        length_column: str | tuple[str, str] = "input_ids",
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_side: Literal["right", "left"] | None = None,
        keep_text: bool = False,
        layout: Literal["padded", "nested", "grouped"] = "padded",
        num_groups: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | None = 1,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Batches by functions of the samples: each window sorted by `key`, largest first, and cut.

        Args:
            batch_size: samples a batch, or a function of the longest sample of the batch that says how many; where that is
                less than 1, `overlong` says what becomes of the sample: "raise", "drop" or "alone".
            key: what to sort by, usually the length.
            boundary_key: a batch never spans two values of it.
            window: rows to sort over.
            pad_to_multiple_of: round each padded length up.
            buckets: or pad each batch to the smallest of these lengths that holds it.
            overlong: what becomes of a sample for which `batch_size` gives less than 1: "raise", "alone" (a batch of its
                own), or "drop". Counted in `.stats`.
            the rest: as for `batch`.
        Price: Python, two or three calls a sample.
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
        size = batch_size if callable(batch_size) else integer("batch_size", batch_size, 1, "sample")
        planner = ByKey(size, key, boundary_key, overlong, _rounding(pad_to_multiple_of, buckets))
        columns = ColumnSettings(length_column, token_columns, pad_values, dtypes)
        order = OrderSettings(drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost)
        form = FormSettings(layout, num_groups, pad_side, collate_fn, max_workers, executor_type, keep_text)
        return batches_of(self.stage, self.repeats, planner, window, columns, order, form)

    def pack(
        self,
        row_length: int,
        *,
        rows: int = 1,
        window: int | Literal["auto", "steps"] = "auto",
        overlong: Literal["raise", "truncate", "drop", "split"] = "raise",
        length_column: str = "input_ids",
        token_columns: Sequence[str] | None = None,
        pad_values: Mapping[str, float] | None = None,
        keep_text: bool = False,
        dtypes: Mapping[str, Any] | None = None,
        drop_last: bool = False,
        shuffle_batches: ShuffleBatches = True,
        micro_batches: int | None = 1,
        balance_group: int = 1,
        balance_cost: SampleCost | None = None,
        seed: int = 42,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        max_workers: int = 0,
        executor_type: ExecutorType = "thread",
    ) -> Batches:
        """Rows of exactly `row_length` tokens, filled with whole samples by best fit: next to nothing is padded. Tokens
        that an `attention_mask` of the samples hides are left out, with what stands beside them in token columns.

        Args:
            row_length: tokens in a row.
            rows: rows in a batch, in every one: those that a window's last batch lacks are padding.
            window: samples to plan over; "auto": what fills 250 batches, where .2 to .5 % is wasted; of streams 256 MB at most,
                and an epoch begins with what fills 100.
            overlong: what becomes of a sample longer than a row: "raise", "truncate", "drop", or "split" (cut into pieces).
            balance_cost: rows of equal tokens differ in work, since attention costs the square of each sample. With it, samples
                are packed into rows, and rows dealt to batches, of like cost, with at most a thousandth more rows.
            the rest: as for `batch`.
        Shapes: `input_ids`, `labels`, `position_ids`, `segment_ids` (rows, row_length) int64; `cu_seqlens` (n + 1,) int32;
            `max_seqlen` int. Labels are not shifted: models do it; the first one of each sample is -100. A model must look
            at the positions or the boundaries to keep the samples of a row apart. Llama, Qwen and many other causal models of
            transformers do; GPT-OSS, OPT, Falcon, Mamba and others do not, and mix the samples in silence. BERT and its
            like see both ways, and need `bf.attention.padding_free(batch, causal=False)`. See
            `brimful.tensors.packed.packed`.
        Price: where there is an `attention_mask`, it is read for the lengths, about 5 ns a token; of indexed data on every
            rank. With `balance_cost` 1 to 12 us a sample.
        Source: best-fit decreasing in a window; no bin stays open from one to the next.

        >>> import brimful as bf
        >>> samples = bf.from_sequence([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6]}])
        >>> next(iter(samples.pack(4)))["input_ids"].tolist()
        [[1, 2, 3, 6]]
        """
        one_of("overlong", overlong, "raise", "truncate", "drop", "split")
        policy, rows = Packed(row_length, balance_cost), integer("rows", rows, 1, "row")
        planner = ByPacking(policy, rows, overlong, bool(shuffle_batches))
        columns = ColumnSettings(length_column, token_columns, pad_values, dtypes)
        order = OrderSettings(drop_last, shuffle_batches, micro_batches, balance_group, seed, balance_cost)
        form = FormSettings("packed", None, None, collate_fn, max_workers, executor_type, keep_text)
        return batches_of(self.stage, self.repeats, planner, window, columns, order, form)

    # -- within ----------------------------------------------------------------------------------------------------------

    @property
    def _endless(self) -> Stage[Block]:
        return Repeat(self.stage) if self.repeats else self.stage

    @property
    def _samples(self) -> Stage[Sample]:
        """Rows as samples; of several streams, a block's worth of them ahead of use in all."""
        streams = self.stage.streams
        if streams is None:
            return Unbatch(Repeat(self.stage) if self.repeats else self.stage)
        turns = RoundRobin(Unbatch(self.stage), streams, ahead=max(1, BLOCK_ROWS // streams))
        return Repeat(turns) if self.repeats else turns

    def _refuse_originals(self, verb: str) -> None:
        if self.stage.originals is not None:
            raise ValueError(
                f"{verb} keeps rows, and from_dataset(collate_fn=...) hands its samples to collate_fn as they are: leave "
                "collate_fn out, and return dicts of numbers, lists, 1-D tensors and texts"
            )

    def _keyed(self, seed: int | None) -> Stage[Block]:
        """The rows, each with a key to draw random numbers by where there is a seed."""
        return self.stage if seed is None else RowKeys(self.stage, seed)

    def _check_end(self, method: str, *, repeats: bool = False) -> None:
        """Refuses a chain whose epoch has no end, where all of it would be kept."""
        if repeats or self.stage.endless:
            raise ValueError(
                f"this data set repeats without end, and {method} keeps all of it; take(n) says how much of it to keep"
            )

    def _add(self, stage: Stage[Block]) -> Dataset:
        return Dataset(Rebatch(stage) if stage.makes_long_blocks else stage, self.repeats)


@dataclass(frozen=True, repr=False)
class IndexedDataset(Dataset):
    """Samples of which any can be had at once: a data set with `len`, `ds[i]` and `ds[a:b]`.

    >>> import brimful as bf
    >>> dataset = bf.from_sequence(["a", "b", "c"])
    >>> len(dataset), dataset[-1], dataset[1:].peek()
    (3, {'text': 'c'}, [{'text': 'b'}, {'text': 'c'}])
    """

    stage: Indexed

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
        """One sample of indexed data, in the order of its first epoch; any of them at once; a slice is a data set.

        Price: of shuffled data 10 ms or so each time, as its shuffle window is put in order; all of them: iterate.

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
        return found if self.stage.originals is not None else fetched(found)

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
    ) -> IndexedDataset:
        """The samples for which `fn(sample)` is true: indexed again.

        All samples are read once, when the first one is wanted; a bar shows the progress, and the log says how many are kept.

        Args:
            fn: is asked about every sample of the source, whatever the order. It must give the same answer each time.
            seed: an error here: what is kept may not differ from epoch to epoch. Say `stream().filter(fn, seed=...)`.
            on_error: where the function raises: "raise" names file and line; "skip" leaves the sample out, counts and logs
                it.
            version: of a local store: keeps the answers beside it, so that later runs, and the other ranks of this machine,
                do not ask again. Give another version whenever `fn`, or what it calls, answers otherwise. One process asks,
                the others wait. The file has a bit a sample; other data, another function or version has another file.
                Functions of one name (lambdas, partials) are told apart by their code and the plain values in them.
            max_workers, executor_type, prefetch_factor: as for `map`.
        Raises:
            ValueError: a seed; a version of data that are in no store; what was sliced, mixed or zipped before.
        Price: Python, once a sample, in each process (with a version once); 8 bytes kept a sample that is left.

        >>> import brimful as bf
        >>> some = bf.from_sequence(["a", "b", "c"]).filter(lambda sample: sample["text"] != "b")
        >>> len(some), some[1]
        (2, {'text': 'c'})
        """
        if seed is not None:
            raise ValueError("filter with a seed may keep other samples in each epoch: say stream().filter(...)")
        parallel = Parallel(max_workers, executor_type, prefetch_factor)
        checked = _checked(on_error)
        function("filter", fn)
        check_version(version)

        def kept(source: Source) -> Indexed:
            if version is not None and not source.holds_files:
                raise ValueError(
                    f"version={version!r} keeps what filter finds beside a store, and there is none here: leave version out, or "
                    "write a store first"
                )
            return IndexFilter(source, fn, checked, parallel, version)

        return self._selected("filter", kept)

    def select(self, names: str | Sequence[str]) -> IndexedDataset:
        return self._with(self.stage.chosen(Choice("select", names_of("select", names))))

    def drop(self, names: str | Sequence[str]) -> IndexedDataset:
        return self._with(self.stage.chosen(Choice("drop", names_of("drop", names))))

    def rename(self, names: Mapping[str, str]) -> IndexedDataset:
        return self._with(self.stage.chosen(Choice("rename", tuple(names), tuple(names.values()))))

    def shuffle(self, buffer_size: int, *, seed: int = 42) -> IndexedDataset:
        return self._with(IndexShuffle(self.stage, buffer_size, seed))

    def take(self, n: int) -> IndexedDataset:
        return IndexedDataset(Slice.take(self._endless, n))

    def skip(self, n: int) -> IndexedDataset:
        return IndexedDataset(Slice.skip(self._endless, n))

    def stride(self, interval: int, offset: int) -> IndexedDataset:
        return IndexedDataset(Slice.stride(self._endless, interval, offset))

    def train_valid_split(
        self, valid_share: float, *, key: str | None = None, seed: int = 42
    ) -> tuple[IndexedDataset, IndexedDataset]:
        how = Split(valid_share, key, seed)
        if self.stage.originals is not None:
            if key is not None:
                raise ValueError(
                    f"key={key!r} is a column, and from_dataset(collate_fn=...) hands its samples on as they are: leave key out, "
                    "to split by the numbers of samples"
                )
            how = Split(valid_share, SAMPLE, seed)
        known: dict[int, SplitMask] = {}  # found by one pass for both sides

        def one(side: Side, source: Source) -> Indexed:
            mask = known.setdefault(id(source), SplitMask(source.index, how))
            return IndexTrainValidSplit(source, mask, side)

        train, valid = (self._selected("train_valid_split", partial(one, side)) for side in get_args(Side))
        return train, valid

    def lengths(self, column: str = "input_ids") -> NDArray[Any]:
        stage = self.stage
        if stage.count == 0:  # which has no columns either
            return np.zeros(0, dtype=np.int64)
        if stage.count is None:
            raise TypeError("the lengths of this data set are not known: it repeats without end; take some of it")
        rows, count = stage.unshuffled()
        if rows is np.arange:
            return stage.index.lengths((column,), required=True)
        spans = range(0, count, SPAN)  # the row numbers of all at once would take more than their lengths
        return np.concatenate(
            [stage.index.lengths_at(rows(first, min(first + SPAN, count)), (column,), required=True) for first in spans]
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
                f"{verb} cannot keep {shown(self.stage)} indexed: what is left of a slice, a mixture or a zip may differ "
                f"from epoch to epoch. Say {verb} before it, or stream().{verb}(...)"
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
        block, originals = stage.index.take(np.concatenate(found)), stage.originals
        return samples(block) if originals is None else list(originals.samples(block))


def dataset_of(stage: Stage[Block], repeats: bool = False) -> Dataset:
    """A data set of a chain: an indexed one where the chain is."""
    return Dataset(stage, repeats) if stage.streamed_by else IndexedDataset(cast(Indexed, stage), repeats)


def several(caller: str, datasets: Any) -> tuple[Any, ...]:
    """The data sets of a list. One alone, which would be iterated over to its end, is refused, and so is a dict."""
    if isinstance(datasets, Dataset | Mapping) or not isinstance(datasets, Iterable):
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
                else "make it one by from_sequence or from_iterable"
            )
            raise TypeError(f"{caller}: data set {number} is a {kind}; {remedy}")
    return tuple(dataset.stage if once else dataset._endless for dataset in given)


def concatenated(datasets: Sequence[Dataset]) -> Dataset:
    """One stage for a + b + c too: several in each other would be as deep as there are data sets."""
    stages = stages_of("concat_datasets", datasets)
    for number, stage in enumerate(stages[:-1]):
        if stage.endless:
            raise ValueError(
                f"data set {number} repeats without end, so that none after it is reached; repeat only the last"
            )
    parts = tuple(part for stage in stages for part in (stage.below if stage.flat else (stage,)))
    if any(part.streamed_by for part in parts):
        return Dataset(Concat(parts))
    return IndexedDataset(IndexConcat(cast(tuple[Indexed, ...], parts)))


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
        raise TypeError(f"a data set has a sample by its number (got {number!r}); .select({number!r}) gives the column")
    if isinstance(number, list | tuple | set | np.ndarray):
        raise TypeError(
            f"a data set has one sample by its number, or some by a slice (got {number!r:.40}); several: "
            "[dataset[number] for number in numbers]; columns: .select(names)"
        )


def _checked(on_error: OnError) -> OnError:
    one_of("on_error", on_error, *get_args(OnError))
    return on_error


def _targets(names: str | Sequence[str]) -> tuple[str, ...]:
    columns = names_of("target_columns", names)
    if not columns:
        raise ValueError("target_columns must name at least one column (got none)")
    return columns


def _lengths(buckets: Any) -> tuple[int, ...] | None:
    if buckets is not None and not isinstance(buckets, Iterable):
        raise TypeError(f"buckets takes lengths (got {buckets!r}); bf.optimal_buckets finds the best ones")
    return None if buckets is None else tuple(buckets)


def _rounding(pad_to_multiple_of: int, buckets: Sequence[int] | None) -> Rounding | None:
    """None where nothing is rounded."""
    rounding = Rounding(pad_to_multiple_of=pad_to_multiple_of, buckets=_lengths(buckets))
    return None if rounding == Rounding() else rounding
