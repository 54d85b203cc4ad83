"""A `tokenizers.Tokenizer` a second time, at no price, and many short texts through it at half of theirs."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from brimful.blocks.ragged import Ragged, flat

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
