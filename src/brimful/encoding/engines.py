"""The fastest way to a tokenizer's own tokens, chosen once for each of them, and held against it as it goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import with_counters
from brimful.core.run import Run
from brimful.core.threads import Inbox, Workers
from brimful.encoding import compiled
from brimful.encoding.special_tokens import SpecialTokens
from brimful.encoding.word_cache import WordCache
from brimful.plan import random
from brimful.plan.once import once
from brimful.tables.ragged import Ragged, array_of, flat, offsets_in

EngineName: TypeAlias = Literal["auto", "gigatoken", "cache", "tokenizer"]
Encode: TypeAlias = Callable[[list[str]], Iterable[Sequence[int]]]
"""The tokens of each of some texts."""

AUDITED_TEXTS: Final = 1_000
"""So many of a tokenizer's first texts go through it as well, .1 s; one of more than 1 kB counts for several."""
_TURN: Final = 32
"""So many of them at once, so that what the engine asks of the same threads does not wait for all."""
_BEGINS_SECONDS: Final = 1.0
"""How long an engine that has yet to be loaded, which keeps the interpreter's lock, lets the audit begin first: a few ms."""
_KILOBYTE: Final = 1 << 10
_ONE_IN: Final = 1 << 12
_WORD, _BITS = 8, 8
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
    """The parts of a tokenizer that engines use.

    Args:
        fingerprint: what tells it from others.
        own: the tokens of texts, as they are to be.
        encode_plain: the tokens of texts before they are cut, and without special tokens, flat.
        special_tokens: what is put around these then; or why that is not known.
        not_splittable: why texts may not be cut at their spaces; None where they may.
        compile: makes a gigatoken.Tokenizer of it; or why it cannot be compiled.
    """

    fingerprint: str
    own: Encode
    encode_plain: Callable[[list[str]], Ragged]
    special_tokens: SpecialTokens | str
    not_splittable: str | None
    compile: Callable[[], object] | str


class EngineCandidate(NamedTuple):
    """One way to a tokenizer's tokens.

    Args:
        name: what users know it by.
        make: makes what gives the tokens of the texts of a column; raises what says why there is none.
        slow: whether that takes .2 s, under the interpreter's lock.
    """

    name: str
    make: Callable[[], Callable[[pa.Array], Ragged]]
    slow: bool = False


@dataclass(frozen=True, eq=False)
class Engine:
    """Another way to a tokenizer's tokens.

    Args:
        ways: the first of them that can be made is taken, when it is needed.
        own: the tokenizer's tokens of some texts.
        fingerprint: the tokenizer's.
    """

    ways: tuple[EngineCandidate, ...]
    own: Encode
    fingerprint: str

    @once
    def _taken(self) -> tuple[str, Callable[[pa.Array], Ragged]]:
        *others, last = self.ways
        for way in others:
            with suppress(Exception):
                return way.name, way.make()
        return last.name, last.make()

    @property
    def name(self) -> str:
        """The name that users know.

        Raises:
            Exception: what the last way raised, as none can be made.
        """
        return self._taken[0]

    def begin(self, texts: pa.Array) -> tuple[Ragged, Callable[[], None]]:
        """The tokens of each text, int32, flat, and a function that waits for the audit, which goes on meanwhile.

        Args:
            texts: string or large_string, without nulls.
        Raises:
            EngineError: the tokens are not the tokenizer's own, as far as they were audited: in the first 1,000 texts that this
                process has for it, and in one of 4,096 after that.
        """
        texts.validate(full=True)  # UTF-8: what an engine makes of anything else is nobody's
        key, run = self._key, Run.here()
        begun = {} if run is None else run.pools.setdefault(id(self), {})  # a run's blocks are handed out in order
        seen = max(_SEEN.get(key, 0), begun.get(key, 0))
        if seen >= AUDITED_TEXTS:
            tokens = self._taken[1](texts)
            if len(rows := _some(texts)):
                own, _ = with_counters(lambda: flat(self.own(texts.take(array_of(rows)).to_pylist()), len(rows)))
                self._compare(tokens, rows, own)
            return tokens, lambda: None
        rows, worth = _first(texts, AUDITED_TEXTS - seen)
        begun[key] = seen + worth
        worker = Workers(1, "audit")
        under_way = Inbox[None]() if self.ways[0].slow and "_taken" not in vars(self) else None
        worker.belong(run)
        audited = worker.submit(self._tokenized, texts, rows, under_way)
        worker.finish()  # nobody may wait for it: workers that a loader keeps outlive the iterator
        try:
            if under_way is not None:
                with suppress(Empty):
                    under_way.get(timeout=_BEGINS_SECONDS)
            tokens = self._taken[1](texts)
        except BaseException:
            worker.close()
            raise

        def check() -> None:
            try:
                self._compare(tokens, rows, audited.result())
            except BaseException:
                _SEEN.pop(key, None)  # they do not count
                raise
            finally:
                worker.close()
            _SEEN[key] = _SEEN.get(key, 0) + worth

        return tokens, check

    @property
    def _key(self) -> tuple[str, str]:
        """Of what was audited: by the way that is hoped for, as which of them can be made is the same throughout a process."""
        return self.ways[0].name, self.fingerprint

    def _tokenized(self, texts: pa.Array, rows: NDArray[np.int64], under_way: Inbox[None] | None) -> Ragged:
        """The tokenizer's own tokens of some texts.

        Args:
            under_way: is told when all are on their way to it; None: they take turns with what the engine asks of it.
        """
        some = texts.take(array_of(rows)).to_pylist()
        turn = _TURN
        if under_way is not None:
            turn = max(1, len(some))
            under_way.put(None)
        parts = [with_counters(self.own, some[first : first + turn])[0] for first in range(0, len(some), turn)]
        return flat([*itertools.chain.from_iterable(parts)], len(rows))

    def _compare(self, tokens: Ragged, rows: NDArray[np.int64], own: Ragged) -> None:
        for number, row in enumerate(rows.tolist()):
            ours = tokens.values[tokens.offsets[row] : tokens.offsets[row + 1]]
            theirs = own.values[own.offsets[number] : own.offsets[number + 1]]
            if not np.array_equal(ours, theirs):
                size = min(len(ours), len(theirs))
                same = int(np.argmin(np.append(ours[:size] == theirs[:size], False)))
                raise EngineError(
                    f"engine {self.name!r} gave other tokens than the tokenizer: {_words(ours, same)}, not "
                    f"{_words(theirs, same)}, from token {same:,} on; go on with engine='tokenizer', and please report it",
                    row,
                )


_SEEN: Final[dict[tuple[str, str], int]] = {}
"""How many texts were held against the tokenizer and were the same, by engine and fingerprint. What is being looked at counts
for the run that it is of alone: another one would hand out what nothing has been held against, should that run be given up."""


def chosen(name: EngineName, parts: Parts | str) -> Engine | None:
    """The engine of a name but "tokenizer", or of "auto" the fastest that can be, for a tokenizer; None: the tokenizer itself.

    Args:
        parts: what the tokenizer is made of; or why nothing else can make its tokens.
    Raises:
        ValueError: the one that is named cannot.
    """
    if isinstance(parts, str):
        if name == "auto":
            return None
        raise _cannot(name, parts)
    own = parts.own
    if name == "auto":
        found = [
            way for way in (_way(one, parts) for one in ("gigatoken", "cache")) if isinstance(way, EngineCandidate)
        ]
        itself = EngineCandidate("tokenizer", lambda: lambda texts: flat(own(texts.to_pylist()), len(texts)))
        return Engine((*found, itself), own, parts.fingerprint) if found else None
    way = _way(name, parts)
    if isinstance(way, str):
        raise _cannot(name, way)
    engine = Engine((way,), own, parts.fingerprint)
    try:
        _ = engine.name
    except Exception as error:
        raise _cannot(name, f"{name} refuses it: {str(error).strip().splitlines()[0]}") from error
    return engine


def _cannot(name: str, reason: str) -> ValueError:
    return ValueError(f"engine={name!r} cannot stand in for this tokenizer: {reason}; engine='auto' takes what can")


def _way(name: str, parts: Parts) -> EngineCandidate | str:
    """A way to the tokens; or why there is none."""
    special_tokens = parts.special_tokens
    if isinstance(special_tokens, str):
        return f"{special_tokens} is not known to leave single texts as they are"

    def around(encode: Callable[[pa.Array], Ragged]) -> Callable[[pa.Array], Ragged]:
        return lambda texts: special_tokens(encode(texts))

    if name == "cache":
        return parts.not_splittable or EngineCandidate(name, lambda: around(WordCache(parts.encode_plain)))
    compile = parts.compile
    if isinstance(compile, str):
        return compile
    if not compiled.installed():
        return "gigatoken is not installed: pip install 'brimful[fast]'"
    return EngineCandidate(name, lambda: around(compiled.Compiled(compile, parts.encode_plain)), slow=True)


def _first(texts: pa.Array, left: int) -> tuple[NDArray[np.int64], int]:
    """The first texts, by number, that are worth `left` of 1 kB, and what they are worth."""
    worth = np.cumsum(1 + np.diff(offsets_in(texts)) // _KILOBYTE)
    count = min(len(texts), int(np.searchsorted(worth, left)) + 1)
    return np.arange(count), int(worth[count - 1]) if count else 0


def _some(texts: pa.Array) -> NDArray[np.int64]:
    """One text in 4,096, by number: by a hash of its length, its first 8 bytes and its last 8. Price: 20 ns a text."""
    offsets = offsets_in(texts)
    first, last = int(offsets[0]), int(offsets[-1])
    memory = np.zeros(last - first + 2 * _WORD, dtype=np.uint8)  # 8 bytes more at both ends, for texts that are shorter
    if last > first:
        memory[_WORD:-_WORD] = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    word_at = np.ndarray((len(memory) - _WORD + 1,), "<u8", memory, 0, (1,))  # the 8 bytes from each byte on
    begins, ends, sizes = offsets[:-1] - first + _WORD, offsets[1:] - first, np.diff(offsets)
    beyond = (_BITS * np.maximum(_WORD - sizes, 0)).astype(np.uint64)  # bits of other texts
    hashes = random.mixed((word_at[begins] << beyond) ^ sizes.astype(np.uint64))
    hashes = random.mixed(hashes ^ (word_at[ends] >> beyond))
    return np.flatnonzero(hashes % np.uint64(_ONE_IN) == 0)


def _words(tokens: NDArray[np.int32], first: int) -> str:
    some = [str(token) for token in itertools.islice(tokens[first:], _SHOWN)]
    return f"[{', '.join(some)}{', ...' if len(tokens) - first > _SHOWN else ''}] ({len(tokens):,} in all)"
