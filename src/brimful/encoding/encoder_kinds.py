"""Encoders of tokenizers, whoever made them: a list of texts in, the tokens of each out."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models

from brimful.core.header import described
from brimful.encoding import compiled, splittable
from brimful.encoding.encoder import OFFSETS, Encoder, Texts, digest
from brimful.encoding.engines import EngineName, Parts
from brimful.encoding.special_tokens import SpecialTokens, cut_off, cut_rows, special_tokens_of
from brimful.plan.once import once
from brimful.tables.ragged import Ragged, flat


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
    added: dict[int, str]
    """The added tokens, by their ids."""

    @once
    def _prepared(self) -> str:
        exact = not isinstance(self._copy.model, models.Unigram)  # whose scores are others once they have been read
        return _with_truncation(self.serialized if exact else self._copy.to_str(), self.truncation)

    @once
    def _copy(self) -> Any:
        """The tokenizer without settings, which nobody changes: .1 s for GPT-2, under the interpreter's lock.

        Raises:
            ValueError: its added tokens have ids that its JSON cannot carry.
        """
        made = _without_settings(self.serialized)
        for id_, token in sorted(self.added.items()):
            if (saved := made.token_to_id(token)) != id_:
                raise ValueError(
                    f"the added token {token!r} has the id {id_} in this tokenizer, and {saved} in what it is saved as (tokens "
                    "were added before it was trained, or before its model was replaced): tokens would differ "
                    "from one process to the next; save it, load that, and give what was loaded"
                )
        return made

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        with self._tokenizer() as made:
            encode = (
                made.encode_batch if OFFSETS in outputs else made.encode_batch_fast
            )  # which is that without offsets
            encodings = list(encode(texts, add_special_tokens=self.add_special_tokens))
            if self.truncation is not None:
                pairs = bool(texts) and isinstance(texts[0], tuple)
                added = made.num_special_tokens_to_add(pairs) if self.add_special_tokens else 0
                self._count_cut(texts, encodings, added)
        return [[getattr(one, OUTPUTS[name]) for one in encodings] for name in ("input_ids", *outputs)]

    def _count_cut(self, texts: Texts, encodings: list[Any], added: int) -> None:
        """Counts what truncation left out of rows, to each of which so many special tokens are added."""
        most = cast("dict[str, Any]", self.truncation)["max_length"]
        full = [(row, one.overflowing) for row, one in enumerate(encodings) if len(one) == most]
        cut = [(row, rest) for row, rest in full if rest]
        if cut and isinstance(texts[0], tuple):  # what is left over of one text comes with each piece of the other one
            with self._tokenizer(cut=False) as whole:
                found = whole.encode_batch_fast([texts[row] for row, _ in cut], add_special_tokens=False)
            cut_off([len(one) + added - most for one in found])
        else:
            cut_off([sum(map(len, rest)) - added * len(rest) for _, rest in cut])

    def text(self, tokens: Sequence[int]) -> str | None:
        with self._tokenizer() as made:
            return str(made.decode(list(tokens), skip_special_tokens=False))

    def encode_plain(self, texts: list[str]) -> Ragged:
        """The tokens of each text, not cut, and without special tokens."""
        with self._tokenizer(cut=False) as made:
            return batched(made, texts)

    def parts(self) -> Parts | str:
        fingerprint = self.fingerprint()
        with self._tokenizer() as made:
            described = splittable.described(made)
            normalizer = made.normalizer
            return Parts(
                fingerprint,
                self.encode,
                self.encode_plain,
                special_tokens_of(described["post_processor"], self.truncation, self.add_special_tokens),
                splittable.why_not(described, normalizer.normalize_str if normalizer else str),
                compiled.why_not(described, self.split_special_tokens) or (lambda: compiled.make(self._prepared)),
            )

    def depends_on(self) -> tuple[Any, ...]:
        return self._prepared, self.add_special_tokens, self.split_special_tokens

    @property
    def num_ids(self) -> int:
        return max(self._copy.get_vocab().values(), default=-1) + 1

    @once
    def vocabulary(self) -> str:
        return _vocabulary(self._copy)

    def words(self) -> str:
        with self._tokenizer() as made:
            size = f"{type(made.model).__name__} of {made.get_vocab_size():,} tokens"
        return size if self.truncation is None else f"{size}, cut to {self.truncation['max_length']:,}"

    def _tokenizer(self, *, cut: bool = True) -> AbstractContextManager[Any]:
        """The tokenizer, for one thread alone; `cut`: whether it truncates."""
        return self._lent(lambda: self._make(cut), "cut" if cut else "bare")

    def _make(self, cut: bool) -> Any:
        made = twin(self._copy)
        made.encode_special_tokens = self.split_special_tokens  # the one setting that is not serialized
        if cut and self.truncation is not None:
            made.enable_truncation(**self.truncation)
        return made


@dataclass(frozen=True, eq=False)
class TransformersEncoder(Encoder):
    """A `transformers` tokenizer called as it is: a slow one, or a fast one with keywords of its own.

    Args:
        max_length: to which the keywords cut rows, if they do. Those of this length are tokenized once more, uncut, for `.stats`.
    """

    tokenizer: Any
    kwargs: dict[str, Any]
    max_length: int | None = None

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        wanted = {f"return_{_ASKED.get(name, name)}": True for name in outputs if name in OUTPUTS}
        with self.lent() as made:
            found = _named(made(*_sides(texts), **self.kwargs | wanted), outputs)
            if self.max_length is not None:
                full = [text for text, ids in zip(texts, found[0]) if len(ids) == self.max_length]
                uncut = {"truncation": False, "max_length": _NO_LIMIT}
                whole = _named(made(*_sides(cast(Texts, full)), **self.kwargs | uncut), ()) if full else [[]]
                cut_off([len(ids) - self.max_length for ids in whole[0] if len(ids) > self.max_length])
            return found

    def lent(self) -> AbstractContextManager[Any]:
        """The tokenizer, for one thread alone."""
        return self._lent(lambda: copy.deepcopy(self.tokenizer))

    def text(self, tokens: Sequence[int]) -> str | None:
        with self.lent() as made:
            return str(made.decode(list(tokens)))

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        # an earlier call may have left truncation and padding behind
        rules = (
            sorted(tokenizer.get_vocab().items()) if backend is None else _without_settings(backend.to_str()).to_str()
        )
        settings = {
            name: value
            for name, value in tokenizer.init_kwargs.items()
            if isinstance(value, (bool, int, float, str)) and not name.endswith(("_file", "_path"))
        }
        return type(tokenizer).__name__, rules, sorted(settings.items()), described(self.kwargs)

    @property
    def num_ids(self) -> int:
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1

    @once
    def vocabulary(self) -> str | None:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return _vocabulary(backend) if isinstance(backend, Tokenizer) else None

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

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        return [cut_rows(self._rows(texts), self.max_length)]

    def _rows(self, texts: Texts) -> Any:
        encode = self.tokenizer.encode_batch if self.kwargs else self.tokenizer.encode_ordinary_batch
        return encode(texts, num_threads=os.cpu_count() or 1, **self.kwargs)

    def parts(self) -> Parts | str:
        if self.kwargs:
            return "special tokens in its texts are special"
        whole = self.tokenizer._pat_str in splittable.TIKTOKEN.values()
        return Parts(
            self.fingerprint(),
            self.encode,
            lambda texts: flat(self._rows(texts), len(texts)),
            SpecialTokens(most=self.max_length),
            None if whole else "its pattern is none of tiktoken's own",
            "gigatoken makes none of a tiktoken.Encoding",
        )

    def text(self, tokens: Sequence[int]) -> str | None:
        return str(self.tokenizer.decode(list(tokens)))

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer  # tiktoken's README builds on these three
        ranks, special = sorted(tokenizer._mergeable_ranks.items()), sorted(tokenizer._special_tokens.items())
        cut = () if self.max_length is None else (self.max_length,)
        return tokenizer._pat_str, ranks, special, described(self.kwargs), *cut

    @property
    def num_ids(self) -> int:
        return int(self.tokenizer.n_vocab)

    @once
    def vocabulary(self) -> str:
        return _ids("tiktoken", self.tokenizer._mergeable_ranks)  # a copy with more special tokens has another name

    def words(self) -> str:
        return f"{self.tokenizer.name} of {self.tokenizer.n_vocab:,} tokens{_called(self.kwargs)}{_cut_to(self.max_length)}"


@dataclass(frozen=True, eq=False)
class GigatokenEncoder(Encoder):
    """A `gigatoken.Tokenizer` that the user made: its tokens are what it says, held against nothing.

    It adds no special tokens.
    """

    tokenizer: Any
    max_length: int | None = None

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        return [cut_rows(cast("list[list[int]]", self.tokenizer.encode_batch_list(texts)), self.max_length)]

    def itself(self, texts: pa.Array) -> Ragged:
        texts.validate(full=True)
        return SpecialTokens(most=self.max_length)(compiled.encode(self.tokenizer, texts))

    def text(self, tokens: Sequence[int]) -> str | None:
        return str(self.tokenizer.decode(list(tokens)), errors="replace")

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        rules = compiled.json_of(tokenizer) or (tokenizer.vocab, tokenizer.merges)
        return repr(tokenizer), rules, self.max_length

    @property
    def num_ids(self) -> int:
        return int(self.tokenizer.vocab_size)

    @once
    def vocabulary(self) -> str | None:
        text = compiled.json_of(self.tokenizer)
        return None if text is None else _vocabulary(Tokenizer.from_str(text))

    def words(self) -> str:
        return f"gigatoken of {self.tokenizer.vocab_size:,} tokens{_cut_to(self.max_length)}"

    def __reduce__(self) -> tuple[Any, ...]:
        text = compiled.json_of(self.tokenizer)
        if text is None:
            raise TypeError(
                "a gigatoken.Tokenizer that was not made of a tokenizer.json cannot go to another process; make it of one, or "
                "use executor_type='thread'"
            )
        return _gigatoken, (text, self.max_length, self.engine)


def _gigatoken(text: str, max_length: int | None, engine: EngineName) -> GigatokenEncoder:
    return GigatokenEncoder(compiled.make(text), max_length, engine=engine)


@dataclass(frozen=True, eq=False)
class CallableEncoder(Encoder):
    """Any callable list[str] -> list[list[int]], or to a dict of them under `input_ids`. A state knows it by its name."""

    fn: Callable[..., Any]
    kwargs: dict[str, Any]

    def encode_with(self, texts: Texts, outputs: tuple[str, ...]) -> Sequence[Iterable[Sequence[int]]]:
        try:
            answer = self.fn(*_sides(texts), **self.kwargs)
        except (AttributeError, TypeError) as error:
            error.add_note("a callable tokenizer gets a list of texts, and returns a list of token ids for each")
            raise
        found = _named(answer, outputs) if outputs or isinstance(answer, Mapping) else [answer]
        return [rows if name == OFFSETS else _integers(rows) for name, rows in zip(("input_ids", *outputs), found)]

    def depends_on(self) -> tuple[Any, ...]:
        return self.words(), described(self.kwargs)

    def functions(self) -> list[str]:
        return [f"tokenize({self.words()})"]

    def words(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def _integers(rows: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    found = list(rows)
    for row in found:
        if len(row) and not hasattr(row[0], "__index__"):  # a float would be cut off to an integer
            raise TypeError(f"the tokenizer must return integers (got {type(row[0]).__name__})")
    return found


_NO_LIMIT: Final = 1 << 30
OUTPUTS: Final = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
    "special_tokens_mask": "special_tokens_mask",
    OFFSETS: "offsets",
}
"""The attribute of an encoding that has each output."""
_ASKED: Final = {OFFSETS: "offsets_mapping"}
"""Outputs that transformers' tokenizers are asked for by another name."""


def _called(kwargs: Mapping[str, Any]) -> str:
    """The keywords of a call that have short values."""
    return "".join(f", {name}={value}" for name, value in kwargs.items() if isinstance(value, bool | int | str))


def _cut_to(max_length: int | None) -> str:
    return "" if max_length is None else f", cut to {max_length:,}"


def _vocabulary(tokenizer: Tokenizer) -> str:
    """See `Encoder.vocabulary`. Price: .1 s for 50,000 tokens."""
    return _ids(type(tokenizer.model).__name__, tokenizer.get_vocab(with_added_tokens=False))


def _ids(name: str, ids: Mapping[Any, int]) -> str:
    return f"{name} of {len(ids):,} tokens ({digest(sorted(ids.items()))})"


def _with_truncation(tokenizer: str, truncation: Mapping[str, Any] | None) -> str:
    """A serialized tokenizer with other truncation, and no padding, which stand before all else; to write all of GPT-2's again
    would be .03 s."""
    empty = Tokenizer(models.BPE())
    if truncation is not None:
        empty.enable_truncation(**truncation)
    head, (_, mark, rest) = empty.to_str().partition(_AFTER_SETTINGS)[0], tokenizer.partition(_AFTER_SETTINGS)
    return head + mark + rest


_AFTER_SETTINGS: Final = ',"added_tokens":'
"""In a string quotes have a backslash before them, so it is found nowhere else."""


def _without_settings(tokenizer: str) -> Any:
    clone = Tokenizer.from_str(tokenizer)
    clone.no_padding()
    clone.no_truncation()
    return clone


# -- a tokenizers.Tokenizer a second time, at no price, and many short texts through it at half of theirs -----------------

_TOGETHER: Final = 64
"""So many texts, and of many more up to four times as many, are one to the tokenizer: what an encoding costs is then shared."""
_TRIED: Final = 4


def twin(tokenizer: Any) -> Any:
    """Another tokenizer of the same parts, for another thread; both without truncation and padding.

    The parts are shared, so that neither may change them. Price: 50 us, where a copy of GPT-2's costs .1 s, under the
    interpreter's lock.
    """
    made = Tokenizer(tokenizer.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(tokenizer, name)
        if part is not None:
            setattr(made, name, part)
    added = tokenizer.get_added_tokens_decoder().values()  # by their ids, which they get again
    for special, tokens in itertools.groupby(added, lambda token: token.special):
        (made.add_special_tokens if special else made.add_tokens)([*tokens])
    return made


def batched(tokenizer: Any, texts: list[str]) -> Ragged:
    """The tokens of each text, int32, flat, without special tokens; the tokenizer neither cuts nor pads.

    An encoding costs as much as the tokens of a word do, so texts go to it by the 64, as the words of one that has been split
    already, which it takes one by one. An added token between them, of one id, tells where each ends; where texts have it too,
    they go to it as they are. (No list is made for each: Python would look through all that there is for garbage.)
    """
    mark = _mark_of(tokenizer) if len(texts) > _TOGETHER else None
    if mark is not None:
        word, id_ = mark
        size = min(max(_TOGETHER, len(texts) // _TOGETHER), 4 * _TOGETHER)  # enough rows for many threads
        rows = [texts[first : first + size] for first in range(0, len(texts), size)]
        marked = [[part for text in row for part in (text, word)] for row in rows]
        made = tokenizer.encode_batch_fast(marked, is_pretokenized=True, add_special_tokens=False)
        ids = np.fromiter(itertools.chain.from_iterable(encoding.ids for encoding in made), np.int32)
        ends = np.flatnonzero(ids == id_)
        if len(ends) == len(texts):
            offsets = np.concatenate(([0], ends - np.arange(len(ends))))
            return Ragged(np.delete(ids, ends), offsets)
    return flat((one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)), len(texts))


def _mark_of(tokenizer: Any) -> tuple[str, int] | None:
    """An added token that is one token, and its id."""
    for id_, token in itertools.islice(tokenizer.get_added_tokens_decoder().items(), _TRIED):
        if tokenizer.encode([token.content], is_pretokenized=True, add_special_tokens=False).ids == [id_]:
            return token.content, id_
    return None
