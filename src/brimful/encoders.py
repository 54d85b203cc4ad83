"""Tokenizers, whoever made them, as one function: a list of texts in, one flat array of tokens out."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from brimful.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Encoder(ABC):
    """A tokenizer with its settings. The user's object is never changed: a thread works on a clone of its own."""

    tokenizer: Any
    kwargs: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        """The tokens of each text."""

    @abstractmethod
    def describe(self) -> tuple[Any, ...]:
        """What the tokens depend on: vocabulary, rules, settings."""

    def fingerprint(self) -> str:
        """What a state is held against: the same for the same vocabulary, rules and settings."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(repr(self.describe()).encode()).hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "kwargs": self.kwargs}

    def __call__(self, texts: list[str]) -> Ragged:
        """The tokens of each text, int32, flat.

        Price: the tokenizer's own, and about 25 ns a token to copy them out of Python lists.
        """
        rows = list(self.encode(texts))
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        flat = itertools.chain.from_iterable(rows)
        return Ragged(np.fromiter(flat, dtype=np.int32, count=int(offsets[-1])), offsets)


class FastEncoder(Encoder):
    """`tokenizers.Tokenizer`: whole blocks through `encode_batch_fast`, on all cores, without the interpreter's lock."""

    @cached_property
    def _prepared(self) -> str:
        """A clone with the settings made on it, as JSON: truncation by the keywords, else its own; never padding."""
        clone = type(self.tokenizer).from_str(self.tokenizer.to_str())
        clone.no_padding()
        if self.kwargs.get("truncation"):
            if "max_length" not in self.kwargs:
                raise ValueError("truncation needs max_length, in tokens: tokenizer_kwargs={'max_length': 512, ...}")
            clone.enable_truncation(self.kwargs["max_length"])
        elif "truncation" in self.kwargs:
            clone.no_truncation()
        return str(clone.to_str())

    @cached_property
    def _clones(self) -> threading.local:
        return threading.local()

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        clone = getattr(self._clones, "tokenizer", None)
        if clone is None:
            clone = self._clones.tokenizer = type(self.tokenizer).from_str(self._prepared)
        special = self.kwargs.get("add_special_tokens", True)
        return [encoding.ids for encoding in clone.encode_batch_fast(texts, add_special_tokens=special)]

    def describe(self) -> tuple[Any, ...]:
        return self._prepared, self.kwargs.get("add_special_tokens", True)


class TiktokenEncoder(Encoder):
    """A `tiktoken.Encoding`, on all cores. Text that looks like a special token is text, unless the keywords say else."""

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        encode = self.tokenizer.encode_batch if self.kwargs else self.tokenizer.encode_ordinary_batch
        rows: list[list[int]] = encode(texts, num_threads=os.cpu_count() or 1, **self.kwargs)
        return rows

    def describe(self) -> tuple[Any, ...]:
        ranks = hashlib.sha256(b"\0".join(sorted(self.tokenizer.token_byte_values()))).hexdigest()
        return self.tokenizer.name, self.tokenizer.n_vocab, ranks, sorted(self.kwargs.items())


class CallableEncoder(Encoder):
    """Any callable list[str] -> list[list[int]]; also a slow transformers tokenizer, whose answer is a dict."""

    def encode(self, texts: list[str]) -> Iterable[Sequence[int]]:
        rows = self.tokenizer(texts, **self.kwargs)
        rows = rows["input_ids"] if hasattr(rows, "keys") else rows
        if len(rows) != len(texts):
            raise ValueError(f"the tokenizer returned {len(rows):,} results for {len(texts):,} texts")
        return cast(Iterable[Sequence[int]], rows)

    def describe(self) -> tuple[Any, ...]:
        vocabulary = sorted(self.tokenizer.get_vocab().items()) if hasattr(self.tokenizer, "get_vocab") else None
        name = getattr(self.tokenizer, "__name__", type(self.tokenizer).__name__)
        return name, vocabulary, sorted(self.kwargs.items())


_FAST_KEYWORDS = {"truncation", "max_length", "add_special_tokens"}


def encoder_for(tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> Encoder:
    """The encoder for a tokenizer: `tokenizers`, fast or slow `transformers`, `tiktoken`, or any callable.

    Keywords are those of a transformers call. Padding belongs to the batch and is refused here.

    Raises:
        TypeError: for anything else.
        ValueError: for a keyword that the tokenizer does not take, and for padding.

    >>> encoder_for(lambda texts: [[len(text)] for text in texts])(["a", "bc"]).values.tolist()
    [1, 2]
    """
    settings = dict(kwargs or {})
    if settings.pop("padding", None):
        raise ValueError("padding belongs to the batch: leave it out of tokenizer_kwargs")
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "encode_batch_fast"):
        if (
            backend is not tokenizer
        ):  # transformers: the call decides on truncation, not what an earlier call left behind
            settings.setdefault("truncation", False)
            if tokenizer.model_max_length < _NO_LIMIT:
                settings.setdefault("max_length", tokenizer.model_max_length)
        if settings.keys() <= _FAST_KEYWORDS:
            return FastEncoder(backend, settings)
        if backend is tokenizer:
            unknown = ", ".join(sorted(settings.keys() - _FAST_KEYWORDS))
            raise ValueError(f"unknown tokenizer_kwargs for tokenizers.Tokenizer: {unknown}")
    if hasattr(tokenizer, "encode_ordinary_batch"):
        return TiktokenEncoder(tokenizer, settings)
    if callable(tokenizer):
        return CallableEncoder(tokenizer, settings)
    raise TypeError(
        f"a tokenizer must be from tokenizers, transformers or tiktoken, or a callable list[str] -> list[list[int]] "
        f"(got {type(tokenizer).__name__})"
    )


_NO_LIMIT = 10**9


def missing_bos_eos(tokenizer: Any) -> tuple[int | None, int | None]:
    """The BOS and EOS ids that a transformers tokenizer has but does not add itself; where both are one id, EOS at most.

    Raises:
        TypeError: the tokenizer does not say which its BOS and EOS tokens are.
    """
    if not hasattr(tokenizer, "bos_token_id") or not hasattr(tokenizer, "eos_token_id"):
        raise TypeError(
            f"ensure_bos_eos needs a tokenizer with bos_token_id and eos_token_id (got {type(tokenizer).__name__}); "
            "name the ids with add_bos_eos"
        )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids = tokenizer(["Hello world!"])["input_ids"][0]
    has_bos, has_eos = ids[:1] == [bos], ids[-1:] == [eos]
    if bos == eos:
        return None, None if has_bos or has_eos else eos
    return None if has_bos else bos, None if has_eos else eos
