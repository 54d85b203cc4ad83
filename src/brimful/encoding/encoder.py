"""An encoder: a tokenizer, whoever made it, as one function from a column of texts to a column of tokens."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from brimful.core.counters import count
from brimful.core.stats import ENGINE
from brimful.encoding.engines import Engine, EngineName, Parts, chosen
from brimful.plan.once import once, settings_of
from brimful.tables.ragged import Ragged, flat, offsets_of

OFFSETS: Final = "offset_mapping"
"""The output that is two integers a token: which characters of the text it is of, from the first to before the last."""
Texts: TypeAlias = "list[str] | list[tuple[str, str]]"
"""Texts, or pairs of them that a tokenizer makes one row of each."""


class Padding(NamedTuple):
    """The padding of a tokenizer: the id (None: it has none), and the side, "right" or "left"."""

    id: int | None
    side: str


@dataclass(frozen=True)
class StoredTokenizer:
    """The tokenizer that made a column of a store, as far as the store knows it."""

    padding: Padding | None
    vocabulary: str | None
    store: str
    num_ids = 0

    def fingerprint(self) -> str:
        return "" if self.padding is None else str(self.padding)

    def text(self, tokens: Sequence[int]) -> str | None:
        """None: nobody knows the tokenizer any longer."""
        return None


def paddings(tokenizers: Mapping[str, tuple[Any, ...]]) -> dict[str, Padding]:
    """The padding of tokenizers, by the columns that they made.

    Raises:
        ValueError: two of them, for one column, say two things.
    """
    found: dict[str, Padding] = {}
    for name, made in tokenizers.items():
        for padding in (one.padding for one in made if one.padding is not None):
            if found.setdefault(name, padding) != padding:
                raise ValueError(
                    f"the tokenizers of column {name!r} pad by {found[name]} and by {padding}: say pad_values and pad_side"
                )
    return found


def one_vocabulary(verb: str, parts: Mapping[str, Mapping[str, tuple[Any, ...]]]) -> None:
    """Refuses to put token ids of two vocabularies into one column.

    Args:
        verb: the method that does it.
        parts: the tokenizers by column, of each part by its name.
    Raises:
        ValueError: naming both parts and vocabularies.
    """
    known: dict[str, dict[str | None, tuple[str, Any]]] = {}
    for part, tokenizers in parts.items():
        for column, one in ((column, one) for column, made in tokenizers.items() for one in made):
            others = known.setdefault(column, {})
            # two encoders of one fingerprint have one vocabulary, which takes longer to look at
            key = one.vocabulary if isinstance(one, StoredTokenizer) else one.fingerprint()
            if key in others:
                continue
            for before, other in others.values():
                if None not in (two := (other.vocabulary, one.vocabulary)) and len({*two}) == 2:
                    stores = (f" (the store {each.store})" if hasattr(each, "store") else "" for each in (other, one))
                    sides = (f"{name}{store}: {words}" for name, store, words in zip((before, part), stores, two))
                    raise ValueError(
                        f"{verb}: column {column!r} would hold the ids of two vocabularies. {'; '.join(sides)}. Use one "
                        "tokenizer for both, or rename one of the columns"
                    )
            others[key] = part, one


@dataclass(frozen=True, eq=False)
class Encoder(ABC):
    """Abstract: a tokenizer with its settings, both as they were when it was made; the user's object is never changed.

    Args:
        padding: what it says of it, where it does; batches go by it.
        engine: what makes the tokens of columns: see `engines`. They are the same, so that neither states nor stores know it.
    """

    padding: Padding | None = field(default=None, kw_only=True)
    engine: EngineName = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        if self.engine not in ("auto", "tokenizer"):
            _ = self.by  # whether it can

    @abstractmethod
    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        """The tokens of each text, and other outputs of the tokenizer by their names; `encoder_for` refuses names that it does
        not know."""

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        """The tokens of each text."""
        return self.encode_with(texts, ())[0]

    @abstractmethod
    def depends_on(self) -> tuple[Any, ...]:
        """All that the tokens depend on: vocabulary, rules, settings."""

    @abstractmethod
    def words(self) -> str:
        """A few words by which a person knows it."""

    @property
    def num_ids(self) -> int:
        """How many token ids there are; 0 where the tokenizer does not say."""
        return 0

    @property
    def vocabulary(self) -> str | None:
        """Which token each id is, as a few words and a digest; None where the tokenizer does not say. Tokenizers with one
        vocabulary may differ in their settings, and in the tokens that were added to them."""
        return None

    def functions(self) -> list[str]:
        """The user's function that makes the tokens, if it is one."""
        return []

    def parts(self) -> Parts | str:
        """The parts that engines are made of; or why none but the tokenizer itself can make its tokens."""
        return "it is called as it is"

    @once
    def by(self) -> Engine | None:
        """The engine that makes the tokens of columns; None: the tokenizer itself."""
        return None if self.engine == "tokenizer" else chosen(self.engine, self.parts())

    @property
    def by_name(self) -> str:
        return "tokenizer" if self.by is None else self.by.name

    def begin(self, texts: pa.Array) -> tuple[Ragged, Callable[[], None]]:
        """The tokens of each text of a column, int32, flat, and a function that waits for the audit of the engine.

        Args:
            texts: string or large_string, without nulls.
        Raises:
            EngineError: an engine gave other tokens than the tokenizer.
        """
        begun = (self.itself(texts), lambda: None) if self.by is None else self.by.begin(texts)
        count(f"{ENGINE}{self.by_name}", len(texts))  # after it: what has no name yet is loaded for it beside the audit
        return begun

    def itself(self, texts: pa.Array) -> Ragged:
        """The tokens of each text of a column by the tokenizer, as it is."""
        return self(texts.to_pylist())

    def fingerprint(self) -> str:
        """A text that states are compared by: the same for the same vocabulary, rules and settings; it begins with words, so that
        a refusal says which tokenizers do not fit.

        >>> from brimful.encoding.encoders import encoder_for
        >>> encoder_for(len).fingerprint()
        'len (8677a496bc61d5e6)'
        """
        return self._fingerprint

    @once
    def _fingerprint(self) -> str:
        return f"{self.words()} ({digest(self.depends_on())})"

    @once
    def _spare(self) -> dict[str, list[Any]]:
        return {}

    @contextmanager
    def _lent(self, make: Callable[[], Any], kind: str = "own") -> Iterator[Any]:
        """A tokenizer for one thread alone, which gives it back: one that is shared refuses ("Already borrowed"), or mixes up
        its settings. There are as many as threads were in at once; one of GPT-2's size takes .1 s to make."""
        spare = self._spare.setdefault(kind, [])
        try:
            lent = spare.pop()
        except IndexError:
            lent = make()
        try:
            yield lent
        finally:
            spare.append(lent)

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def __call__(self, texts: Texts) -> Ragged:
        """The tokens of each text, int32, flat.

        Price: the tokenizer's own, and about 25 ns a token to copy them out of Python lists.
        """
        return flat(self.encode(texts), len(texts))

    def with_outputs(self, texts: Texts, outputs: tuple[str, ...]) -> list[Ragged]:
        """The tokens of each text, and what else the tokenizer says of them, all int32, flat; offsets (n, 2)."""
        found = self.encode_with(texts, outputs)
        names = ("input_ids", *outputs)
        return [
            (_pairs if name == OFFSETS else flat)(rows, len(texts)) for name, rows in zip(names, found, strict=True)
        ]

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of tokens, special ones included; None where the tokenizer cannot say."""
        return None


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _pairs(given: Iterable[Sequence[Any]], count: int) -> Ragged:
    """The pairs of integers of each of `count` texts, flat, (n, 2)."""
    rows = list(given)
    both = flat([list(chain.from_iterable(row)) for row in rows], count)
    return Ragged(both.values.reshape(-1, 2), offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))))
