"""Tokenizers, whoever made them, as one function: a list of texts in, one flat array of tokens out."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from tokenizers import Tokenizer

from brimful.core.errors import integer, one_of
from brimful.core.once import once
from brimful.core.stream import describe
from brimful.rows import compiled, cuttable
from brimful.rows.encoder import Encoder, Padding, Texts
from brimful.rows.engines import EngineName, Parts
from brimful.rows.framed import Frame, frame_of
from brimful.rows.gigatoken_encoder import GigatokenEncoder


def _sides(texts: Texts) -> tuple[list[str], ...]:
    """Texts as a tokenizer that is called takes them: pairs as two lists."""
    return tuple(map(list, zip(*texts))) if texts and isinstance(texts[0], tuple) else (cast("list[str]", texts),)


def _named(answer: Any, outputs: tuple[str, ...]) -> list[Iterable[Sequence[int]]]:
    """The tokens, and other outputs, of what a tokenizer returned."""
    names = ("input_ids", *outputs)
    if not isinstance(answer, Mapping):
        raise TypeError(f"the tokenizer must return a dict of {', '.join(names)} (got {type(answer).__name__})")
    if missing := [name for name in names if name not in answer]:
        raise ValueError(f"the tokenizer returned no {missing[0]!r} (it returned {', '.join(answer)})")
    return [answer[name] for name in names]


@dataclass(frozen=True, eq=False)
class FastEncoder(Encoder):
    """`tokenizers.Tokenizer`: whole blocks through `encode_batch_fast`, on all cores, without the interpreter's lock."""

    serialized: str
    truncation: dict[str, Any] | None
    add_special_tokens: bool
    split_special_tokens: bool

    @once
    def _prepared(self) -> str:
        made = _without_settings(self.serialized)
        if self.truncation is not None:
            made.enable_truncation(**self.truncation)
        with self._lent(lambda: self._with_split(made)):  # the first that is lent
            return str(made.to_str())

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        return [encoding.ids for encoding in self._encodings(texts)]

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        encodings = self._encodings(texts)
        return [[getattr(one, _OUTPUTS[name]) for one in encodings] for name in ("input_ids", *outputs)]

    def _encodings(self, texts: Texts) -> list[Any]:
        with self._lent(self._make) as made:
            return list(made.encode_batch_fast(texts, add_special_tokens=self.add_special_tokens))

    def bare(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, not cut, and without special tokens."""
        with self._lent(self._make_bare, "bare") as made:
            return [encoding.ids for encoding in made.encode_batch_fast(texts, add_special_tokens=False)]

    def parts(self) -> Parts | str:
        fingerprint = self.fingerprint()
        with self._lent(self._make) as made:
            described = cuttable.described(made)
            normalizer = made.normalizer
            return Parts(
                fingerprint,
                cast(Callable[[list[str]], Iterable[Sequence[int]]], self.encode),
                self.bare,
                frame_of(described["post_processor"] if self.add_special_tokens else None, self.truncation),
                cuttable.why_not(described, normalizer.normalize_str if normalizer else str),
                compiled.why_not(described, self.split_special_tokens),
                lambda: compiled.make(self._prepared),
            )

    def depends_on(self) -> tuple[Any, ...]:
        return self._prepared, self.add_special_tokens, self.split_special_tokens

    def words(self) -> str:
        _ = self._prepared  # which makes the first
        with self._lent(self._make) as made:
            size = f"{type(made.model).__name__} of {made.get_vocab_size():,} tokens"
        return size if self.truncation is None else f"{size}, cut to {self.truncation['max_length']:,}"

    def _make_bare(self) -> Any:
        made = self._make()
        made.no_truncation()
        return made

    def _make(self) -> Any:
        return self._with_split(Tokenizer.from_str(self._prepared))

    def _with_split(self, made: Any) -> Any:
        made.encode_special_tokens = self.split_special_tokens  # the one setting that is not serialized
        return made


@dataclass(frozen=True, eq=False)
class TransformersEncoder(Encoder):
    """A `transformers` tokenizer called as it is: a slow one, or a fast one with keywords of its own."""

    tokenizer: Any
    kwargs: dict[str, Any]

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        return self.encode_with(texts, ())[0]

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        wanted = {f"return_{name}": True for name in outputs if name in _OUTPUTS}
        with self._lent(lambda: copy.deepcopy(self.tokenizer)) as made:
            return _named(made(*_sides(texts), **self.kwargs | wanted), outputs)

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = sorted(tokenizer.get_vocab().items()) if backend is None else _serialized(backend.to_str())
        settings = {
            name: value
            for name, value in tokenizer.init_kwargs.items()
            if isinstance(value, (bool, int, float, str)) and not name.endswith(("_file", "_path"))
        }
        return type(tokenizer).__name__, rules, sorted(settings.items()), describe(self.kwargs)

    def words(self) -> str:
        return f"{type(self.tokenizer).__name__} of {len(self.tokenizer):,} tokens{_called(self.kwargs)}"


@dataclass(frozen=True, eq=False)
class TiktokenEncoder(Encoder):
    """A `tiktoken.Encoding`, on all cores. Text that looks like a special token is text, unless the keywords say else.

    It adds no special tokens, so that truncation leaves out the last tokens, as it does elsewhere.
    """

    tokenizer: Any
    kwargs: dict[str, Any]
    max_length: int | None = None

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        encode = self.tokenizer.encode_batch if self.kwargs else self.tokenizer.encode_ordinary_batch
        rows = cast(Iterable[Sequence[int]], encode(texts, num_threads=os.cpu_count() or 1, **self.kwargs))
        return rows if self.max_length is None else [row[: self.max_length] for row in rows]

    def parts(self) -> Parts | str:
        if self.kwargs:
            return "special tokens in its texts are special"
        own = self.tokenizer.encode_ordinary_batch

        def bare(texts: list[str]) -> list[list[int]]:
            return cast("list[list[int]]", own(texts, num_threads=os.cpu_count() or 1))

        whole = self.tokenizer._pat_str in cuttable.TIKTOKEN.values()
        return Parts(
            self.fingerprint(),
            cast(Callable[[list[str]], Iterable[Sequence[int]]], self.encode),
            bare,
            Frame(most=self.max_length),
            None if whole else "its pattern is none of tiktoken's own",
            "gigatoken makes none of a tiktoken.Encoding",
            lambda: None,
        )

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer  # tiktoken's README builds on these three
        ranks, special = sorted(tokenizer._mergeable_ranks.items()), sorted(tokenizer._special_tokens.items())
        cut = () if self.max_length is None else (self.max_length,)
        return tokenizer._pat_str, ranks, special, describe(self.kwargs), *cut

    def words(self) -> str:
        cut = "" if self.max_length is None else f", cut to {self.max_length:,}"
        return f"{self.tokenizer.name} of {self.tokenizer.n_vocab:,} tokens{_called(self.kwargs)}{cut}"


@dataclass(frozen=True, eq=False)
class CallableEncoder(Encoder):
    """Any callable list[str] -> list[list[int]], or to a dict of them under `input_ids`. A state knows it by its name."""

    fn: Callable[..., Any]
    kwargs: dict[str, Any]

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        answer = self.fn(*_sides(texts), **self.kwargs)
        return _integers(answer["input_ids"] if isinstance(answer, Mapping) else answer)

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        return [_integers(rows) for rows in _named(self.fn(*_sides(texts), **self.kwargs), outputs)]

    def depends_on(self) -> tuple[Any, ...]:
        return self.words(), describe(self.kwargs)

    def words(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def _integers(rows: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    found = list(rows)
    for row in found:
        if len(row) and not hasattr(row[0], "__index__"):  # a float would be cut off to an integer
            raise TypeError(f"the tokenizer must return integers (got {type(row[0]).__name__})")
    return found


_OUTPUTS: Final = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
    "special_tokens_mask": "special_tokens_mask",
}
"""What an encoding calls them."""
_STRATEGIES: Final = ("longest_first", "only_first", "only_second", "do_not_truncate")
_FAST: Final = {"truncation", "max_length", "add_special_tokens", "split_special_tokens"}
_TIKTOKEN: Final = {"allowed_special", "disallowed_special", "truncation", "max_length", "add_special_tokens"}
_GIGATOKEN: Final = {"truncation", "max_length", "add_special_tokens"}
_NO_LIMIT: Final = 10**9


def encoder_for(
    tokenizer: Any,
    kwargs: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    *,
    pairs: bool = False,
    outputs: tuple[str, ...] = (),
    engine: EngineName = "auto",
) -> Encoder:
    """The encoder for a tokenizer: `tokenizers`, fast or slow `transformers`, `tiktoken`, `gigatoken`, or any callable.

    Keywords are those of a transformers call. Padding belongs to the batch and is refused here.

    Args:
        asked: truncation, max_length and add_special_tokens, where they are not for the tokenizer's call but to be seen to.
        pairs: it is for pairs of texts.
        outputs: what it is asked for beside the tokens.
        engine: what makes the tokens of columns.
    Raises:
        TypeError: for anything else.
        ValueError: for a keyword that the tokenizer does not take, for padding, for truncation to no length, for what it cannot
            do, and for an engine that is named and cannot stand in for it.

    >>> encoder_for(lambda texts: [[len(text)] for text in texts])(["a", "bc"]).values.tolist()
    [1, 2]
    """
    one_of("engine", engine, *get_args(EngineName))
    if engine not in ("auto", "tokenizer") and (pairs or outputs):
        raise ValueError(
            f"engine={engine!r} makes tokens alone, of single texts; of pairs, and outputs=, the tokenizer does"
        )
    settings = dict(kwargs or {})
    if settings.pop("padding", None):
        raise ValueError("padding belongs to the batch: leave it out of tokenizer_kwargs")
    if twice := sorted(settings.keys() & (asked or {}).keys()):
        raise ValueError(f"tokenize: {twice[0]} is given twice, as an argument and in tokenizer_kwargs; give it once")
    settings |= asked or {}
    if isinstance(tokenizer, Tokenizer):
        _refuse_unknown("tokenizers.Tokenizer", settings, _FAST)
        _refuse_outputs("tokenizers.Tokenizer", outputs, _OUTPUTS)
        own = tokenizer.truncation
        side = own["direction"].lower() if own else "right"
        pads = tokenizer.padding
        padding = None if pads is None else Padding(pads["pad_id"], pads["direction"].lower())
        return _fast(tokenizer, settings, own, side, None, tokenizer.encode_special_tokens, padding, pairs, engine)
    if hasattr(tokenizer, "model_max_length"):  # transformers
        backend = getattr(tokenizer, "backend_tokenizer", None)
        padding = Padding(tokenizer.pad_token_id, tokenizer.padding_side)
        limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
        called = settings.keys() - _FAST or set(outputs) - _OUTPUTS.keys() or _encodes_itself(tokenizer)
        if not isinstance(backend, Tokenizer) or called:
            _truncated(settings, limit, 1, pairs)
            return TransformersEncoder(copy.deepcopy(tokenizer), settings, padding=padding, engine=engine)
        split = tokenizer.split_special_tokens
        return _fast(backend, settings, None, tokenizer.truncation_side, limit, split, padding, pairs, engine)
    if hasattr(tokenizer, "encode_ordinary_batch"):
        _refuse_unknown("tiktoken.Encoding", settings, _TIKTOKEN)
        _refuse_outputs("tiktoken.Encoding", outputs, {})
        if pairs:
            raise ValueError("tiktoken.Encoding makes no row of a pair of texts; give each column an output of its own")
        own_kwargs = {name: value for name, value in settings.items() if name not in _FAST}
        return TiktokenEncoder(tokenizer, own_kwargs, _truncated(settings, None, 1, pairs)[0], engine=engine)
    if type(tokenizer).__module__.partition(".")[0] == "gigatoken" and hasattr(tokenizer, "encode_batch_list"):
        _refuse_unknown("gigatoken.Tokenizer", settings, _GIGATOKEN)
        _refuse_outputs("gigatoken.Tokenizer", outputs, {})
        if pairs:
            raise ValueError(
                "gigatoken.Tokenizer makes no row of a pair of texts; give each column an output of its own"
            )
        limit = _truncated(settings, None, 1, pairs)[0]
        return GigatokenEncoder(tokenizer, limit, engine="auto" if engine == "gigatoken" else engine)
    if callable(tokenizer):
        if asked:
            raise ValueError(
                f"tokenize: {', '.join(asked)} cannot be seen to for a callable, which alone knows what it adds to the texts; "
                "let it do that itself (tokenizer_kwargs go to it)"
            )
        return CallableEncoder(tokenizer, settings, engine=engine)
    raise TypeError(
        "a tokenizer must be from tokenizers, transformers or tiktoken, or a callable list[str] -> list[list[int]] "
        f"(got {type(tokenizer).__name__})"
    )


def _encodes_itself(tokenizer: Any) -> bool:
    """Whether the class of a transformers tokenizer has its own way to encode, around the tokenizer that it holds."""
    ways = (getattr(type(tokenizer), name, None) for name in ("__call__", "_encode_plus", "_batch_encode_plus"))
    return any(way is not None and not way.__module__.startswith("transformers.tokenization_") for way in ways)


def _fast(
    tokenizer: Any,
    settings: dict[str, Any],
    own: dict[str, Any] | None,
    side: str,
    limit: int | None,
    split: bool,
    padding: Padding | None,
    pairs: bool,
    engine: EngineName,
) -> FastEncoder:
    special = settings.get("add_special_tokens", True)
    least = max(1, tokenizer.num_special_tokens_to_add(pairs)) if special else 1
    max_length, strategy = _truncated(settings, limit, least, pairs)
    truncation: dict[str, Any] | None = None
    if max_length is not None:
        truncation = {"max_length": max_length, "direction": side} | ({"strategy": strategy} if pairs else {})
    elif settings.get("truncation") is None:
        truncation = own
    split = settings.get("split_special_tokens", split)
    return FastEncoder(tokenizer.to_str(), truncation, special, split, padding=padding, engine=engine)


def _truncated(settings: Mapping[str, Any], limit: int | None, least: int, pairs: bool) -> tuple[int | None, str]:
    """To how many tokens rows are cut (None: not at all, or not said), and in which text of a pair; by transformers' rules: a
    max_length alone asks for it, and without one it is the model's `limit`."""
    wanted, max_length = settings.get("truncation"), settings.get("max_length")
    named = {True: "longest_first", False: "do_not_truncate", None: "longest_first"}
    strategy = named[wanted] if wanted is None or isinstance(wanted, bool) else getattr(wanted, "value", wanted)
    if strategy not in _STRATEGIES:
        raise ValueError(f"truncation must be True, False or one of {', '.join(_STRATEGIES)} (got {wanted!r})")
    if strategy == "only_second" and not pairs:
        raise ValueError("truncation='only_second' cuts the second text of a pair; here each row is made of one text")
    if strategy == "do_not_truncate" or (wanted is None and max_length is None):
        return None, strategy
    max_length = limit if max_length is None else max_length
    if max_length is None:
        raise ValueError("truncation needs max_length, in tokens: tokenize(..., truncation=True, max_length=512)")
    return integer("max_length", max_length, least, "token" if least == 1 else "tokens"), strategy


def _refuse_unknown(name: str, settings: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"unknown tokenizer_kwargs for {name}: {', '.join(unknown)} (it takes {', '.join(sorted(known))})"
        )


def _refuse_outputs(name: str, outputs: tuple[str, ...], known: Mapping[str, str]) -> None:
    if unknown := [output for output in outputs if output not in known]:
        raise ValueError(f"{name} has no output {unknown[0]!r} (it has {', '.join([*known][1:]) or 'tokens alone'})")


def _called(kwargs: Mapping[str, Any]) -> str:
    """The keywords of a call that have short values."""
    given = (f"{name}={value}" for name, value in kwargs.items() if isinstance(value, bool | int | str))
    return "".join(f", {words}" for words in given)


def _serialized(tokenizer: str) -> str:
    """A tokenizer without the truncation and the padding that an earlier call may have left behind."""
    return str(_without_settings(tokenizer).to_str())


def _without_settings(tokenizer: str) -> Any:
    clone = Tokenizer.from_str(tokenizer)
    clone.no_padding()
    clone.no_truncation()
    return clone
