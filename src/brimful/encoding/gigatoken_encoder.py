"""A compiled tokenizer that the user made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from brimful.blocks.ragged import Ragged
from brimful.encoding import compiled
from brimful.encoding.encoder import Encoder, Texts
from brimful.encoding.engines import EngineName
from brimful.encoding.special_tokens import Frame, cut_rows


@dataclass(frozen=True, eq=False)
class GigatokenEncoder(Encoder):
    """A `gigatoken.Tokenizer` that the user made: its tokens are what it says, held against nothing.

    It adds no special tokens.
    """

    tokenizer: Any
    max_length: int | None = None

    def encode(self, texts: Texts) -> Iterable[Sequence[int]]:
        return cut_rows(cast("list[list[int]]", self.tokenizer.encode_batch_list(texts)), self.max_length)

    def itself(self, texts: pa.Array) -> Ragged:
        texts.validate(full=True)
        return Frame(most=self.max_length)(compiled.encode(self.tokenizer, texts))

    def text(self, tokens: Sequence[int]) -> str | None:
        decoded = self.tokenizer.decode(list(tokens))
        return decoded.decode(errors="replace") if isinstance(decoded, bytes) else str(decoded)

    def depends_on(self) -> tuple[Any, ...]:
        tokenizer = self.tokenizer
        rules = compiled.json_of(tokenizer) or (tokenizer.vocab, tokenizer.merges)
        return repr(tokenizer), rules, self.max_length

    @property
    def num_ids(self) -> int:
        return int(self.tokenizer.vocab_size)

    def words(self) -> str:
        cut = "" if self.max_length is None else f", cut to {self.max_length:,}"
        return f"gigatoken of {self.tokenizer.vocab_size:,} tokens{cut}"

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
