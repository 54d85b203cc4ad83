"""Text to tokens: whole blocks at a time, the next ones in background threads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.core.background import map_ahead
from brimful.core.errors import DataError, StageError, settle, where
from brimful.core.stream import Stage, State, runtime
from brimful.rows.blocks import Block
from brimful.rows.encoders import Encoder
from brimful.rows.gathered import gathered
from brimful.rows.ragged import column_of, list_array, with_column


@dataclass(frozen=True)
class Tokenize(Stage[Block]):
    """Adds the tokens (int32) of a text column; the state is passed on. One clone of the tokenizer a thread."""

    upstream: Stage[Block]
    encoder: Encoder
    column: str
    output: str
    max_workers: int = runtime(1)

    def __post_init__(self) -> None:
        settle(self, "max_workers", most=1_024)

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        with closing(gathered(self.upstream, at)) as items:
            if self.max_workers == 0:
                yield from ((self._apply(block), after) for block, after in items)
            else:
                yield from map_ahead(self._apply, items, self.max_workers, ahead=2, name="tokenize")

    def _apply(self, block: Block) -> Block:
        if not block.num_rows:
            return block
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
