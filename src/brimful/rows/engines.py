"""The fastest way to a tokenizer's own tokens, chosen once for each of them, and held against it as it goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core import random
from brimful.core.background import RUN, Workers
from brimful.rows import compiled
from brimful.rows.framed import Frame
from brimful.rows.ragged import Ragged, array_of, flat, offsets_in
from brimful.rows.word_cache import WordCache

EngineName: TypeAlias = Literal["auto", "gigatoken", "cache", "tokenizer"]
Encode: TypeAlias = Callable[[list[str]], Iterable[Sequence[int]]]
"""The tokens of each of some texts."""

AUDITED_TEXTS: Final = 1_000
"""So many of a tokenizer's first texts go through it as well, .1 s; one of more than 1 kB counts for several."""
_KILOBYTE: Final = 1 << 10
_ONE_IN: Final = 1 << 12
_WORD: Final = 8
_SHOWN: Final = 8


class EngineError(RuntimeError):
    """An engine gave other tokens than the tokenizer.

    Args:
        row: the text, by its number in the column.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class Parts(NamedTuple):
    """What engines know of a tokenizer.

    Args:
        fingerprint: what tells it from others.
        own: the tokens of texts, as they are to be.
        bare: the tokens of texts before they are cut, and without special tokens.
        frame: what is done to these then; or why that is not known.
        not_cut: why texts may not be cut at their spaces; None where they may.
        not_compiled: why it cannot be compiled; None where it can.
        compile: makes a gigatoken.Tokenizer of it.
    """

    fingerprint: str
    own: Encode
    bare: Encode
    frame: Frame | str
    not_cut: str | None
    not_compiled: str | None
    compile: Callable[[], object]


@dataclass(frozen=True)
class Engine:
    """Another way to a tokenizer's tokens.

    Args:
        name: what users know it by.
        encode: the tokens of the texts of a column, before truncation and special tokens.
        frame: adds these.
        own: the tokenizer's tokens of some texts.
        fingerprint: the tokenizer's.
    """

    name: str
    encode: Callable[[pa.Array], Ragged]
    frame: Frame
    own: Encode
    fingerprint: str

    def __call__(self, texts: pa.Array) -> Ragged:
        """The tokens of each text, int32, flat.

        Args:
            texts: string or large_string, without nulls.
        Raises:
            EngineError: they are not the tokenizer's own, as far as that was looked at: in the first 1,000 texts that this
                process has for it, and in one of 4,096 after that.
        """
        tokens, check = self.begin(texts)
        check()
        return tokens

    def begin(self, texts: pa.Array) -> tuple[Ragged, Callable[[], None]]:
        """The tokens of each text, and what waits until they have been held against the tokenizer's own, which goes on beside
        whatever is done meanwhile; see above."""
        texts.validate(full=True)  # UTF-8: what an engine makes of anything else is nobody's
        key, run = (self.name, self.fingerprint), RUN.get()
        begun = {} if run is None else run.pools.setdefault(id(self), {})  # a run's blocks are handed out in order
        seen = max(_SEEN.get(key, 0), begun.get(key, 0))
        if seen >= AUDITED_TEXTS:
            tokens = self.frame(self.encode(texts))
            if len(rows := _some(texts)):
                self._compare(tokens, rows, self._own(texts, rows))
            return tokens, lambda: None
        rows, worth = _first(texts, AUDITED_TEXTS - seen)
        begun[key] = seen + worth
        worker, made = Workers(1, "audit"), Future[Ragged]()
        worker.belong()
        audited = worker.submit(self._audit, texts, rows, worth, made)  # before the engine, which may have to be loaded
        try:
            made.set_result(self.frame(self.encode(texts)))
        except BaseException as error:
            made.set_exception(error)
            worker.close()
            raise

        def check() -> None:
            try:
                audited.result()
            finally:
                worker.close()

        return made.result(), check

    def _audit(self, texts: pa.Array, rows: NDArray[np.int64], worth: int, made: Future[Ragged]) -> None:
        key = self.name, self.fingerprint
        try:
            own = self._own(texts, rows)
            self._compare(made.result(), rows, own)
        except BaseException:
            _SEEN.pop(key, None)  # they do not count
            raise
        _SEEN[key] = _SEEN.get(key, 0) + worth

    def _own(self, texts: pa.Array, rows: NDArray[np.int64]) -> Ragged:
        return flat(self.own(texts.take(array_of(rows)).to_pylist()), len(rows))

    def _compare(self, tokens: Ragged, rows: NDArray[np.int64], own: Ragged) -> None:
        for number, row in enumerate(rows.tolist()):
            ours = tokens.values[tokens.offsets[row] : tokens.offsets[row + 1]]
            theirs = own.values[own.offsets[number] : own.offsets[number + 1]]
            if not np.array_equal(ours, theirs):
                same = next(
                    (at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs))
                )
                raise EngineError(
                    f"engine {self.name!r} gave other tokens than the tokenizer: {_words(ours, same)}, not "
                    f"{_words(theirs, same)}, from token {same:,} on; go on with engine='tokenizer', and please report it",
                    row,
                )


_SEEN: Final[dict[tuple[str, str], int]] = {}
"""How many texts were held against the tokenizer and were the same, by engine and fingerprint. What is being looked at counts
for the run that it is of alone: another one would hand out what nothing has been held against, should that run be given up."""


def chosen(name: EngineName, parts: Parts | str) -> Engine | None:
    """The engine of a name, or of "auto" the fastest that can be, for a tokenizer; None: the tokenizer itself.

    Args:
        parts: what the tokenizer is made of; or why nothing else can make its tokens.
    Raises:
        ValueError: the one that is named cannot.
    """
    if name == "tokenizer":
        return None
    reason = ""
    for one in ("gigatoken", "cache") if name == "auto" else (name,):
        made = parts if isinstance(parts, str) else _made(one, parts)
        if isinstance(made, Engine):
            return made
        reason = made
    if name != "auto":
        raise ValueError(f"engine={name!r} cannot stand in for this tokenizer: {reason}; engine='auto' takes what can")
    return None


def _made(name: str, parts: Parts) -> Engine | str:
    """An engine; or why it cannot be."""
    if isinstance(parts.frame, str):
        return f"{parts.frame} is not known to leave single texts as they are"
    encode: Callable[[pa.Array], Ragged]
    if name == "cache":
        if parts.not_cut is not None:
            return parts.not_cut
        encode = WordCache(parts.bare)
    else:
        if parts.not_compiled is not None:
            return parts.not_compiled
        if not compiled.installed():
            return "gigatoken is not installed: pip install 'brimful[fast]'"
        try:
            encode = compiled.Compiled(parts.compile, parts.bare)
        except Exception as error:
            return f"gigatoken refuses it: {str(error).strip().splitlines()[0]}"
    return Engine(name, encode, parts.frame, parts.own, parts.fingerprint)


def _first(texts: pa.Array, left: int) -> tuple[NDArray[np.int64], int]:
    """The first texts, by number, that are worth `left` of 1 kB, and what they are worth."""
    worth = np.cumsum(1 + np.diff(offsets_in(texts)) // _KILOBYTE)
    count = min(len(texts), int(np.searchsorted(worth, left)) + 1)
    return np.arange(count), int(worth[count - 1]) if count else 0


def _some(texts: pa.Array) -> NDArray[np.int64]:
    """One text in 4,096, by number: by a hash of its length and of 64 bytes from all of it. Price: 150 ns a text."""
    offsets = offsets_in(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    padded = np.concatenate((data, np.zeros(_WORD, np.uint8)))
    words = np.ndarray((len(data) + 1,), "<u8", padded, 0, (1,))  # at any byte
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    beside = (8 * np.maximum(0, _WORD - lengths)).astype(np.uint64)  # bits of the next text, where one is short
    hashes = random.mixed(lengths.astype(np.uint64))
    for share in range(_WORD):
        some = words[starts + np.maximum(0, lengths - _WORD) * share // (_WORD - 1)]
        hashes = random.mixed(hashes ^ np.where(lengths == 0, np.uint64(0), some.astype(np.uint64) << beside))
    return np.flatnonzero(hashes % np.uint64(_ONE_IN) == 0)


def _words(tokens: NDArray[np.int32], first: int) -> str:
    some = [str(token) for token in itertools.islice(tokens[first:], _SHOWN)]
    return f"[{', '.join(some)}{', ...' if len(tokens) - first > _SHOWN else ''}] ({len(tokens):,} in all)"
