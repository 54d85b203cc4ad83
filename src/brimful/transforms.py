"""The methods of a data set that call a function, or a tokenizer, for its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar, Unpack, get_args

from brimful import algebra
from brimful.core.errors import OnError, names_of, one_of
from brimful.core.stream import Stage
from brimful.rows.add_bos_eos import AddBosEos
from brimful.rows.blocks import Block, Sample
from brimful.rows.causal_labels import CausalLabels
from brimful.rows.chat import Chat
from brimful.rows.conversations import TrainOn
from brimful.rows.encoders import chat_encoder_for, encoder_for
from brimful.rows.engines import EngineName
from brimful.rows.ensure_bos_eos import EnsureBosEos, bos_eos_of
from brimful.rows.filter import Filter
from brimful.rows.filter_map import FilterMap
from brimful.rows.flat_map import FlatMap
from brimful.rows.map import Map
from brimful.rows.map_blocks import MapBlocks
from brimful.rows.parallel import CallOptions, ExecutorType, Parallel, called
from brimful.rows.rebatch import Rebatch
from brimful.rows.row_keys import RowKeys
from brimful.rows.tokenize import Tokenize
from brimful.rows.tokenizer_by_name import loaded


class HasStage(Protocol):
    """A data set: a frozen dataclass with a stage."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def stage(self) -> Stage[Block]: ...


R = TypeVar("R", bound=HasStage)


def map(self: R, fn: Callable[..., Sample], **options: Unpack[CallOptions]) -> R:
    """`fn(sample)` in place of each sample; with a seed `fn(sample, rng)`, a numpy generator keyed by the row.

    Token columns arrive as numpy arrays that `fn` may change. Where it raises, on_error="raise" names file and line;
    "skip" leaves the sample out, counts it as `skipped` in `.stats` and logs file, line and error. The results are the
    same, in the same order, however many workers there are. Price: Python, once a sample; `map_blocks` is the fast way.

    Args:
        options: see CallOptions.

    >>> import brimful as bf
    >>> list(bf.from_sequence([{"x": 1}]).map(lambda sample: {"y": sample["x"] + 1}))
    [{'y': 2}]
    """
    return _calling(self, Map, "map", fn, options)


def filter(self: R, fn: Callable[..., bool], **options: Unpack[CallOptions]) -> R:
    """The samples for which `fn(sample)` is true; with a seed `fn(sample, rng)`, and streamed.

    Price: Python, once a sample. Sources of indexed data stay indexed: when they are first used, in each process, all of
    them are read and asked about; 8 bytes a sample kept. What was sliced or mixed before streams. `options`: see
    CallOptions; what indexed data leave out is counted by the iterator that uses them first.
    """
    seed, on_error, parallel = called("filter", options)
    if seed is None:
        return _added(self, algebra.filtered(self.stage, fn, on_error, parallel))
    return _calling(self, Filter, "filter", fn, options)


def filter_map(self: R, fn: Callable[..., Sample | None], **options: Unpack[CallOptions]) -> R:
    """`fn(sample)` in place of each sample, where it is not None; with a seed `fn(sample, rng)`.

    `options`: see CallOptions.
    """
    return _calling(self, FilterMap, "filter_map", fn, options)


def flat_map(self: R, fn: Callable[..., Iterable[Sample]], **options: Unpack[CallOptions]) -> R:
    """All samples of `fn(sample)` in place of each; with a seed `fn(sample, rng)`. `options`: see CallOptions."""
    return _calling(self, FlatMap, "flat_map", fn, options)


def map_blocks(
    self: R,
    fn: Callable[[Block], Block],
    *,
    max_workers: int = 0,
    executor_type: ExecutorType = "thread",
    prefetch_factor: int = 10,
) -> R:
    """`fn(block)` in place of each pyarrow.RecordBatch of rows (1 to 4,096 of them): any columns, any number of rows.

    `fn` must not depend on where blocks begin and end. Price: what `fn` costs; nothing a sample. Workers: see CallOptions;
    each is given whole blocks.
    """
    parallel = Parallel(max_workers, executor_type, prefetch_factor, shares=False)
    return _added(self, MapBlocks(self.stage, fn, parallel=parallel))


def _calling(self: R, kind: Any, method: str, fn: Callable[..., Any], options: CallOptions) -> R:
    """A stage that calls a user's function for each sample."""
    seed, on_error, parallel = called(method, options)
    stage = self.stage if seed is None else RowKeys(self.stage, seed)
    return _added(self, kind(stage, fn, seed is not None, on_error, parallel=parallel))


def _added(self: R, stage: Stage[Block]) -> R:
    return replace(self, stage=Rebatch(stage) if stage.makes_long_blocks else stage)


def tokenize(
    self: R,
    tokenizer: Any,
    *,
    column: str | Sequence[str] = "text",
    output: str | Sequence[str] = "input_ids",
    truncation: bool | str | None = None,
    max_length: int | None = None,
    add_special_tokens: bool = True,
    remove_columns: str | Sequence[str] = (),
    engine: EngineName = "auto",
    outputs: str | Sequence[str] = (),
    tokenizer_kwargs: Mapping[str, Any] | None = None,
    max_workers: int = 1,
    executor_type: ExecutorType = "thread",
) -> R:
    """Adds the tokens of a text column, int32, whole blocks at a time, ahead of use.

    Args:
        tokenizer: a tokenizers.Tokenizer, a transformers tokenizer, a tiktoken.Encoding, a gigatoken.Tokenizer, or a callable
            list[str] -> list[list[int]]; or the name of one, as on the command line: a tokenizer.json, a folder or a name for
            transformers, tiktoken:NAME. It is never changed: threads work on clones. (What a gigatoken.Tokenizer gives is
            what it says: there is no other to hold it against, and its memory grows with the words that it has seen.)
        column: of text. Of several, as many as there are in `output`, each is tokenised by itself (an encoder's input and a
            decoder's labels); of two with one output, pairs of texts make one row (a cross-encoder's): transformers'
            `tokenizer(a, b)`; a callable gets two lists.
        output: the column, or columns, of tokens.
        truncation: True, or which text of a pair is cut: "longest_first" (what True means), "only_first", "only_second". None:
            as the tokenizer is set, or to `max_length` where that is given. False: not at all.
        max_length: tokens of a row at most, special ones included; without it that of a transformers tokenizer's model.
        add_special_tokens: those that the tokenizer puts around texts (tiktoken: none).
        remove_columns: leave these out: the text, once it is tokens.
        engine: what makes the tokens; they are the tokenizer's own in any case, and so are states and stores. "auto": the fastest
            that is known to give them: "gigatoken", where it is installed (the extra `fast`), for most byte-level and
            SentencePiece-style BPE; "cache", which looks words up that it has seen and has only new ones tokenised, for most
            others; else "tokenizer", as it is, which also makes pairs and `outputs`. The first two are held against the tokenizer
            in the first 1,000 texts, and in one of 4,096 after that. `repr` and `.stats.engines` say which it is; name a faster
            one, and the error says why it cannot.
        outputs: what else the tokenizer says of each row, as columns: "token_type_ids", "attention_mask",
            "special_tokens_mask", "offset_mapping" (of fast ones: of each token the first of its characters, and the one after
            its last; in batches a list of lists); of a callable, what its dicts have.
        tokenizer_kwargs: other keywords of a transformers call, of tiktoken's, of the callable. What would be passed over is
            refused, and so is what rows have no place for (`return_overflowing_tokens`, `return_tensors`, padding).
        max_workers: blocks tokenised at a time. A fast tokenizer uses all cores for one. 0: in the caller's thread.
        executor_type: "process": for a slow tokenizer, in Python; see CallOptions.
    Raises:
        ValueError: it is something that the tokenizer cannot do: a callable, for one, must cut texts itself; an engine is named
            that cannot stand in for it.
        DataError: at a null, naming file and line.
        StageError: (when iterated) what the tokenizer raised; an engine gave other tokens than it.
    `.stats` counts what `max_length` cuts off: texts under `truncated`, tokens under `dropped_tokens`; not what a callable does.
    Price: the tokenizer's own speed; a tenth to a fifth of its time by the word cache, which keeps 10^6 words in 200 MB, less by
        gigatoken; up to 3 max_workers blocks (of 4,096 rows or 1 MB) held.

    >>> import brimful as bf
    >>> def tokenizer(texts): return [list(text.encode()) for text in texts]
    >>> pairs = bf.from_sequence([{"source": "ab", "target": "c"}])
    >>> list(pairs.tokenize(tokenizer, column=("source", "target"), output=("input_ids", "labels"), remove_columns="source"))
    [{'target': 'c', 'input_ids': array([97, 98], dtype=int32), 'labels': array([99], dtype=int32)}]
    """
    columns, made = names_of("column", column), names_of("output", output)
    more, removed = names_of("outputs", outputs), names_of("remove_columns", remove_columns)
    pairs = len(columns) == 2 and len(made) == 1
    if not columns or (len(columns) != len(made) and not pairs):
        raise ValueError(
            f"tokenize makes an output of each column, or one of two columns (got column={columns} and output={made})"
        )
    if more and len(made) > 1:
        raise ValueError("tokenize: outputs= would be those of several columns; tokenize the columns one by one")
    names_of("tokenize", (*made, *more))
    if kept := [name for name in removed if name in (*made, *more)]:
        raise ValueError(f"tokenize makes the column {kept[0]!r} that remove_columns leaves out")
    asked: dict[str, Any] = {"truncation": truncation, "max_length": max_length}
    asked |= {"add_special_tokens": None if add_special_tokens else False}
    asked = {name: value for name, value in asked.items() if value is not None}
    encoder = encoder_for(tokenizer, tokenizer_kwargs, asked, pairs=pairs, outputs=more, engine=engine)
    parallel = Parallel(max_workers, executor_type, prefetch_factor=2, shares=executor_type == "process")
    return replace(self, stage=Tokenize(self.stage, encoder, columns, made, more, removed, parallel=parallel))


def add_bos_eos(self: R, bos_token_id: int | None, eos_token_id: int | None, *, target_column: str = "input_ids") -> R:
    """Puts a token before and one after the tokens of each sample (None: nothing).

    >>> import brimful as bf
    >>> list(bf.from_sequence([{"input_ids": [5, 6]}]).add_bos_eos(1, None))[0]["input_ids"].tolist()
    [1, 5, 6]
    """
    return replace(self, stage=AddBosEos(self.stage, bos_token_id, eos_token_id, target_column))


def ensure_bos_eos(self: R, tokenizer: Any, *, target_column: str = "input_ids") -> R:
    """The tokenizer's BOS before each sample that does not begin with it, and its EOS after each that does not end with it.

    Each sample is looked at, whatever the tokenizer was told to add: done twice it adds nothing. A lone BOS gets an
    EOS, an empty sample both. Where BOS and EOS are one id, a sample that neither begins nor ends with it gets one EOS,
    and never a second. Of a tokenizer that has only one of the two, that one.

    Raises:
        TypeError, ValueError: the tokenizer does not name them, or has neither.
    """
    return replace(self, stage=EnsureBosEos(self.stage, *bos_eos_of(loaded(tokenizer)), target_column))


def causal_labels(self: R, *, target_column: str = "input_ids", shift: bool = False) -> R:
    """Adds `labels` for a model that predicts the next token, int32: the tokens, of which each sample's first is -100.

    Models shift labels by one themselves, so nothing predicts a first token: as -100 it is not counted either, in
    `num_items_in_batch` for one. Tokens that an `attention_mask` of the rows hides are -100 too, and so is one that
    follows a hidden one, which would predict it.

    Args:
        shift: `shift_labels` instead, each where it is predicted: for samples that are cut across devices, where nobody can shift
            by one. transformers' models take them by that name. Where there are `labels` (of `chat`), these are shifted.
    Raises:
        DataError: there are such labels already, or a mask of another length; with file and line.

    >>> import brimful as bf
    >>> data = bf.from_sequence([{"input_ids": [5, 6, 7]}])
    >>> [list(data.causal_labels(shift=shift))[0][name].tolist() for shift, name in ((False, "labels"), (True, "shift_labels"))]
    [[-100, 6, 7], [6, 7, -100]]
    """
    return replace(self, stage=CausalLabels(self.stage, target_column, shift))


def chat(
    self: R,
    tokenizer: Any,
    *,
    column: str = "messages",
    train_on: TrainOn = "assistant",
    on_error: OnError = "raise",
    max_workers: int = 1,
    executor_type: ExecutorType = "thread",
) -> R:
    """Adds `input_ids` and `labels`, int32, of conversations, by the tokenizer's own chat template, ahead of use.

    A conversation is a list of messages: {"role": "user", "content": ...}; a column `tools`, where there is one, holds lists of
    JSON schemas. Rows of one type have the keys of all, so that a key whose value is null counts as left out; where that, or
    the order of keys, must be kept, either may be JSON text. The template alone writes special tokens, BOS among them.

    What the assistant says is what the template marks by {% generation %}; where it marks nothing, what a turn adds to the
    messages before it and the prompt to answer them, to its last special token (white space after that is the template's). That
    these begin the whole is held against it token by token: nothing is guessed.

    Args:
        tokenizer: of transformers, with a `chat_template`; or the name of one, as `tokenize` takes it.
        column: of conversations.
        train_on: what is a label, -100 being none: "assistant", all that it says; "last", its last message; "all" tokens. A first
            token is never one, as nothing predicts it.
        on_error: "raise" names file and line; "skip" leaves the row out, counts it as `skipped` in `.stats` and logs why.
        max_workers, executor_type: see `tokenize`; "process" for many short conversations, as templates run in Python.
    Raises:
        TypeError, ValueError: the tokenizer is no such one.
        DataError: (when run) what is no conversation; the assistant says nothing; its tokens cannot be told from others, as the
            template writes a turn otherwise once more messages follow, or a token lies across a turn's border.
        StageError: (when run) the template refuses a conversation.
    Price: .1 to .3 ms a message for the template, and the tokenizer's own; without {% generation %} each turn that is trained on
        is tokenized with all before it, twice.
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
    one_of("on_error", on_error, *get_args(OnError))
    encoder = chat_encoder_for(tokenizer)
    parallel = Parallel(max_workers, executor_type, prefetch_factor=2, shares=executor_type == "process")
    return replace(self, stage=Chat(self.stage, encoder, column, train_on, on_error, parallel=parallel))
