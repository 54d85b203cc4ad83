"""Text to tokens: whole blocks at a time, the next ones in background threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.core.errors import DataError, StageError, where
from brimful.rows.blocks import Block
from brimful.rows.encoders import Encoder
from brimful.rows.parallel import BlockFunction
from brimful.rows.ragged import column_of, list_array, with_column


@dataclass(frozen=True)
class Tokenize(BlockFunction):
    """Adds the tokens (int32) of a text column; the state is passed on. One clone of the tokenizer a thread."""

    encoder: Encoder
    column: str
    output: str

    @property
    def called_as(self) -> str:
        return "tokenize"

    def apply(self, block: Block) -> Block:
        texts = column_of(block, self.column)
        if texts.null_count:
            row = int(np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"tokenize: column {self.column!r} is null ({where(block, row)}); filter it out or fill it")
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise DataError(f"tokenize: column {self.column!r} must be text (got {texts.type}; {where(block, 0)})")
        rows = texts.to_pylist()
        try:
            tokens = self.encoder(rows)
        except Exception as error:
            place = self._culprit(block, rows) or f"near {where(block, 0)}"
            raise StageError(f"tokenize failed {place}: {type(error).__name__}: {error}") from error
        return with_column(block, self.output, list_array(tokens.values, tokens.offsets))

    def _culprit(self, block: Block, texts: list[str]) -> str | None:
        """The first row that fails alone too; None where it takes several."""
        for row, text in enumerate(texts):
            try:
                self.encoder([text])
            except Exception:
                return f"at {where(block, row)}"
        return None
