"""A `tokenizers.Tokenizer` a second time, at no price, and many short texts through it at half of theirs."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

_TOGETHER: Final = 64
"""So many texts are one to the tokenizer; with more of them there is little to gain, and less to share out among threads."""
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


def batched(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """The tokens of each text, without special tokens; the tokenizer neither cuts nor pads.

    An encoding costs as much as the tokens of a word do, so texts go to it by the 64, as the words of one that has been split
    already, which it takes one by one. An added token between them, of one id, tells where each ends; where texts have it too,
    they go to it as they are.
    """
    mark = _mark_of(tokenizer) if len(texts) > _TOGETHER else None
    if mark is not None:
        word, id_ = mark
        rows = [texts[first : first + _TOGETHER] for first in range(0, len(texts), _TOGETHER)]
        marked = [[part for text in row for part in (text, word)] for row in rows]
        made = tokenizer.encode_batch_fast(marked, is_pretokenized=True, add_special_tokens=False)
        ids = [*itertools.chain.from_iterable(encoding.ids for encoding in made)]
        ends = np.flatnonzero(np.fromiter(ids, np.int64, len(ids)) == id_).tolist()
        if len(ends) == len(texts):
            return [ids[first:last] for first, last in zip([0, *(end + 1 for end in ends)], ends)]
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _mark_of(tokenizer: Any) -> tuple[str, int] | None:
    """An added token that is one token, and its id."""
    for id_, token in itertools.islice(tokenizer.get_added_tokens_decoder().items(), _TRIED):
        if tokenizer.encode([token.content], is_pretokenized=True, add_special_tokens=False).ids == [id_]:
            return token.content, id_
    return None
