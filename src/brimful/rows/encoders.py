"""Tokenizers, whoever made them, as one function: a list of texts in, one flat array of tokens out."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import numpy as np
from tokenizers import Tokenizer

from brimful.core.errors import integer
from brimful.core.once import once, settings_of
from brimful.core.stream import describe
from brimful.rows.ragged import Ragged


class Padding(NamedTuple):
    """What a tokenizer says of padding: the id (None: it has none), and the side, "right" or "left"."""

    id: int | None
    side: str


@dataclass(frozen=True, eq=False)
class Encoder(ABC):
    """Abstract: a tokenizer with its settings, both as they were when it was made; the user's object is never changed.

    Args:
        padding: what it says of it, where it does; batches go by it.
    """

    padding: Padding | None = field(default=None, kw_only=True)

    @abstractmethod
    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        """The tokens of each text."""

    @abstractmethod
    def depends_on(self) -> tuple[Any, ...]:
        """What the tokens depend on: vocabulary, rules, settings."""

    @abstractmethod
    def words(self) -> str:
        """What a person would know it by."""

    def fingerprint(self) -> str:
        """What a state is held against: the same for the same vocabulary, rules and settings; it begins with words, so that
        a refusal says which tokenizers do not fit.

        >>> encoder_for(len).fingerprint()
        'len (8677a496bc61d5e6)'
        """
        return self._fingerprint

    @once
    def _fingerprint(self) -> str:
        return f"{self.words()} ({hashlib.sha256(repr(self.depends_on()).encode()).hexdigest()[:16]})"

    @once
    def _local(self) -> threading.local:
        return threading.local()

    def _clone(self, make: Callable[[], Any]) -> Any:
        """The tokenizer of this thread: one that is shared refuses ("Already borrowed"), or mixes up its settings."""
        if not hasattr(self._local, "clone"):
            self._local.clone = make()
        return self._local.clone

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def __call__(self, texts: list[str]) -> Ragged:
        """The tokens of each text, int32, flat.

        Price: the tokenizer's own, and about 25 ns a token to copy them out of Python lists.
        """
        rows = list(self.encode(texts))
        if len(rows) != len(texts):
            raise ValueError(f"the tokenizer returned {len(rows):,} results for {len(texts):,} texts")
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        flat = itertools.chain.from_iterable(rows)
        return Ragged(np.fromiter(flat, dtype=np.int32, count=int(offsets[-1])), offsets)


@dataclass(frozen=True, eq=False)
class FastEncoder(Encoder):
    """`tokenizers.Tokenizer`: whole blocks through `encode_batch_fast`, on all cores, without the interpreter's lock."""

    serialized: str
    truncation: dict[str, Any] | None
    add_special_tokens: bool
    split_special_tokens: bool

    @once
    def _prepared(self) -> str:
        return _serialized(self.serialized, self.truncation)

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        clone = self._clone(self._make)
        return [encoding.ids for encoding in clone.encode_batch_fast(texts, add_special_tokens=self.add_special_tokens)]

    def depends_on(self) -> tuple[Any, ...]:
        return self._prepared, self.add_special_tokens, self.split_special_tokens

    def words(self) -> str:
        made = self._make()
        size = f"{type(made.model).__name__} of {made.get_vocab_size():,} tokens"
        return size if self.truncation is None else f"{size}, cut to {self.truncation['max_length']:,}"

    def _make(self) -> Any:
        clone = Tokenizer.from_str(self._prepared)
        clone.encode_special_tokens = self.split_special_tokens  # the one setting that is not serialized
        return clone


@dataclass(frozen=True, eq=False)
class TransformersEncoder(Encoder):
    """A `transformers` tokenizer called as it is: a slow one, or a fast one with keywords of its own."""

    tokenizer: Any
    kwargs: dict[str, Any]

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        clone = self._clone(lambda: copy.deepcopy(self.tokenizer))
        return cast(Iterable[Sequence[int]], clone(texts, **self.kwargs)["input_ids"])

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = sorted(tokenizer.get_vocab().items()) if backend is None else _serialized(backend.to_str(), None)
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
    """A `tiktoken.Encoding`, on all cores. Text that looks like a special token is text, unless the keywords say else."""

    tokenizer: Any
    kwargs: dict[str, Any]

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        encode = self.tokenizer.encode_batch if self.kwargs else self.tokenizer.encode_ordinary_batch
        return cast(Iterable[Sequence[int]], encode(texts, num_threads=os.cpu_count() or 1, **self.kwargs))

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer  # tiktoken's README builds on these three
        ranks, special = sorted(tokenizer._mergeable_ranks.items()), sorted(tokenizer._special_tokens.items())
        return tokenizer._pat_str, ranks, special, describe(self.kwargs)

    def words(self) -> str:
        return f"{self.tokenizer.name} of {self.tokenizer.n_vocab:,} tokens{_called(self.kwargs)}"


@dataclass(frozen=True, eq=False)
class CallableEncoder(Encoder):
    """Any callable list[str] -> list[list[int]], or to a dict of them under `input_ids`. A state knows it by its name."""

    fn: Callable[..., Any]
    kwargs: dict[str, Any]

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        answer = self.fn(texts, **self.kwargs)
        rows = list(answer["input_ids"] if isinstance(answer, Mapping) else answer)
        for row in rows:
            if len(row) and not hasattr(row[0], "__index__"):  # a float would be cut off to an integer
                raise TypeError(f"the tokenizer must return integers (got {type(row[0]).__name__})")
        return rows

    def depends_on(self) -> tuple[Any, ...]:
        return self.words(), describe(self.kwargs)

    def words(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


_FAST: Final = {"truncation", "max_length", "add_special_tokens", "split_special_tokens"}
_TIKTOKEN: Final = {"allowed_special", "disallowed_special"}
_NO_LIMIT: Final = 10**9


def encoder_for(tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> Encoder:
    """The encoder for a tokenizer: `tokenizers`, fast or slow `transformers`, `tiktoken`, or any callable.

    Keywords are those of a transformers call. Padding belongs to the batch and is refused here.

    Raises:
        TypeError: for anything else.
        ValueError: for a keyword that the tokenizer does not take, for padding, and for truncation to no length.

    >>> encoder_for(lambda texts: [[len(text)] for text in texts])(["a", "bc"]).values.tolist()
    [1, 2]
    """
    settings = dict(kwargs or {})
    if settings.pop("padding", None):
        raise ValueError("padding belongs to the batch: leave it out of tokenizer_kwargs")
    if isinstance(tokenizer, Tokenizer):
        _refuse_unknown("tokenizers.Tokenizer", settings, _FAST)
        own = tokenizer.truncation
        side = own["direction"].lower() if own else "right"
        pads = tokenizer.padding
        padding = None if pads is None else Padding(pads["pad_id"], pads["direction"].lower())
        return _fast(tokenizer, settings, own, side, None, tokenizer.encode_special_tokens, padding)
    if hasattr(tokenizer, "model_max_length"):  # transformers
        backend = getattr(tokenizer, "backend_tokenizer", None)
        padding = Padding(tokenizer.pad_token_id, tokenizer.padding_side)
        if not isinstance(backend, Tokenizer) or settings.keys() - _FAST:
            return TransformersEncoder(copy.deepcopy(tokenizer), settings, padding=padding)
        limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
        split = tokenizer.split_special_tokens
        return _fast(backend, settings, None, tokenizer.truncation_side, limit, split, padding)
    if hasattr(tokenizer, "encode_ordinary_batch"):
        _refuse_unknown("tiktoken.Encoding", settings, _TIKTOKEN)
        return TiktokenEncoder(tokenizer, settings)
    if callable(tokenizer):
        return CallableEncoder(tokenizer, settings)
    raise TypeError(
        "a tokenizer must be from tokenizers, transformers or tiktoken, or a callable list[str] -> list[list[int]] "
        f"(got {type(tokenizer).__name__})"
    )


def _fast(
    tokenizer: Any,
    settings: dict[str, Any],
    own: dict[str, Any] | None,
    side: str,
    limit: int | None,
    split: bool,
    padding: Padding | None,
) -> FastEncoder:
    """With transformers' rules of truncation: a max_length alone asks for it; without one it is the model's `limit`."""
    special = settings.get("add_special_tokens", True)
    wanted, max_length = settings.get("truncation"), settings.get("max_length")
    if wanted is None and max_length is None:
        truncation = own
    elif wanted is False or getattr(wanted, "value", wanted) == "do_not_truncate":
        truncation = None
    else:
        max_length = limit if max_length is None else max_length
        if max_length is None:
            raise ValueError("truncation needs max_length, in tokens: tokenizer_kwargs={'max_length': 512, ...}")
        least = max(1, tokenizer.num_special_tokens_to_add(False)) if special else 1
        max_length = integer("max_length", max_length, least, "token" if least == 1 else "tokens")
        truncation = {"max_length": max_length, "direction": side}
    split = settings.get("split_special_tokens", split)
    return FastEncoder(tokenizer.to_str(), truncation, special, split, padding=padding)


def _refuse_unknown(name: str, settings: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"unknown tokenizer_kwargs for {name}: {', '.join(unknown)} (it takes {', '.join(sorted(known))})"
        )


def _called(kwargs: Mapping[str, Any]) -> str:
    """The keywords of a call that have short values."""
    given = (f"{name}={value}" for name, value in kwargs.items() if isinstance(value, bool | int | str))
    return "".join(f", {words}" for words in given)


def _serialized(tokenizer: str, truncation: dict[str, Any] | None) -> str:
    """A tokenizer with this truncation, and without the padding that an earlier call may have left behind."""
    clone = Tokenizer.from_str(tokenizer)
    clone.no_padding()
    clone.no_truncation()
    if truncation is not None:
        clone.enable_truncation(**truncation)
    return str(clone.to_str())


def bos_eos_of(tokenizer: Any) -> tuple[int | None, int | None]:
    """The BOS and EOS ids of a transformers tokenizer; None for one that it does not have.

    Raises:
        TypeError: the tokenizer does not say which its BOS and EOS tokens are.
        ValueError: it has neither.
    """
    if not hasattr(tokenizer, "bos_token_id") or not hasattr(tokenizer, "eos_token_id"):
        raise TypeError(
            f"ensure_bos_eos needs a tokenizer with bos_token_id and eos_token_id (got {type(tokenizer).__name__}); "
            "name the ids with add_bos_eos"
        )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None and eos is None:
        raise ValueError(
            f"ensure_bos_eos needs a tokenizer with a BOS or an EOS token ({type(tokenizer).__name__} has neither); "
            "name the ids with add_bos_eos"
        )
    return bos, eos
