"""A `tokenizers.Tokenizer` a second time, at no price, and many short texts through it at half of theirs."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer, models

from brimful.rows.ragged import Ragged, flat

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


class Borrowed:
    """Somebody's tokenizer without its truncation and padding, for as long as nobody changes its parts in place.

    What replaces a part, and what adds tokens, changes the tokenizer that it is called on alone.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = twin(tokenizer)
        self._was: tuple[Any, ...] | None = _parts_of(self.tokenizer)

    def intact(self) -> bool:
        """Whether its tokens are what they were in the beginning. Price: 15 us."""
        if self._was is not None and _parts_of(self.tokenizer) != self._was:
            self._was = None
        return self._was is not None


def borrowed(tokenizer: Any) -> Borrowed | None:
    """Somebody's tokenizer without a copy; None where it has to be copied."""
    if changes_when_read(tokenizer):
        return None
    made = Borrowed(tokenizer)
    return made if _added_to(made.tokenizer) == _added_to(tokenizer) else None


def changes_when_read(tokenizer: Any) -> bool:
    """Whether its scores are others once they have been written down and read."""
    return isinstance(tokenizer.model, models.Unigram)


def _added_to(tokenizer: Any) -> dict[int, str]:
    return {id_: repr(token) for id_, token in tokenizer.get_added_tokens_decoder().items()}


def _parts_of(tokenizer: Any) -> tuple[Any, ...]:
    """What others may change of the parts of a tokenizer: their settings, and by training what the vocabulary is."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor)
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    return (
        *(None if part is None else part.__getstate__() for part in parts),
        *(getattr(tokenizer.model, name, None) for name in _SETTINGS),
        size,
        *map(tokenizer.id_to_token, range(0, size, 1 + size // _LOOKED_AT)),
    )


_SETTINGS: Final = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
    "max_input_chars_per_word",
)  # fmt: skip
_LOOKED_AT: Final = 16


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
