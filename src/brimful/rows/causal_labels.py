"""Labels for models that predict the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brimful.plan.errors import DataError, truth
from brimful.tables.blocks import Block
from brimful.tables.blockwise import Blockwise
from brimful.tables.origins import where
from brimful.tables.ragged import LABELS, MASK, NOT_TRAINED_ON, SHIFTED, equally_long, list_array, with_column

_MOST: Final = (1 << 31) - 1


@dataclass(frozen=True)
class CausalLabels(Blockwise):
    """The tokens of a column as labels. The first label of a sample is -100, as nothing predicts it; so are those of tokens that
    `attention_mask` hides, and of a token after a hidden one. `shift`: in a column `shift_labels`, each label where it is
    predicted; made of `labels` where the rows have them."""

    target_column: str
    shift: bool

    def __post_init__(self) -> None:
        truth("shift", self.shift)

    def apply(self, block: Block) -> Block:
        name = SHIFTED if self.shift else LABELS
        if block.schema.get_field_index(name) >= 0:
            raise DataError(f"causal_labels: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        # labels that the rows have already are shifted
        given = (self.target_column, LABELS) if LABELS in block.schema.names else (self.target_column,)
        tokens = equally_long(block, given, self.verb)[-1]
        if tokens.values.dtype.kind not in "iu":
            raise DataError(f"causal_labels: column {self.target_column!r} holds no integers ({where(block, 0)})")
        first, last = tokens.offsets[[0, -1]].tolist()
        values = tokens.values[first:last]
        if values.size and int(values.max()) > _MOST:
            raise DataError(
                f"causal_labels: {int(values.max()):,} in column {self.target_column!r} is no token id ({where(block, 0)})"
            )
        labels, offsets = values.astype(np.int32), tokens.offsets.astype(np.int64) - first
        if MASK in block.schema.names:
            mask = equally_long(block, (self.target_column, MASK), self.verb)[1]
            hidden = mask.values[mask.offsets[0] : mask.offsets[-1]] == 0
            hidden[1:] |= hidden[:-1].copy()  # also what would be predicted from a hidden one
            labels[hidden] = NOT_TRAINED_ON
        begins = offsets[:-1][tokens.lengths > 0]
        labels[begins] = NOT_TRAINED_ON
        if self.shift:
            # the first label of the next sample, -100, ends this one
            labels = np.append(labels[1:], labels.dtype.type(NOT_TRAINED_ON))
        return with_column(block, name, list_array(labels, offsets))
