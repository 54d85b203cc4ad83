"""Samples of several sides, such as a chosen and a rejected answer, below one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.arrays.columns import WindowColumns
from brimful.arrays.layout import Layout, put
from brimful.arrays.padded import Padded
from brimful.batching.batch import Batch
from brimful.core.own_keys import NUM_SIDES
from brimful.plan.errors import DataError
from brimful.tables.origins import where
from brimful.tables.ragged import COMPLETION, LABELS, MASK, NOT_TRAINED_ON


@dataclass(frozen=True)
class Paired(Layout):
    """The first side of all samples, then the second one, all padded to one length: what losses of preferences take.

    Shapes, for B samples of k sides: `input_ids`, `attention_mask`, and other lists that each side has under its prefix, such as
    `labels` (k B, L); `lengths` (k B,) int64. Row s B + i is side s of sample i. `completion_mask` (k B, L) int64 is 1 at labels
    that are trained on, unless the sides have one, or no labels. Columns without a prefix of a side have B rows. `num_sides` is
    k, an int. A filler, and copies up to a static shape, have a `completion_mask` of 0; `sample_weights` (B,) is 0 for copies.

    Args:
        left: the padding comes first.
        weighted: samples that fill a batch up to its static shape have weight 0.
    Raises:
        DataError: a side lacks a column that another one has.
    Price: that of `Padded`, and 1 to 2 ns a slot.
    Source: the keys and the order of TRL's DataCollatorForPreference.

    >>> import brimful as bf
    >>> pair = {"prompt_input_ids": [1, 2], "chosen_input_ids": [3, 4], "rejected_input_ids": [5]}
    >>> batch = next(iter(bf.from_sequence([pair]).batch(1, layout="paired")))
    >>> batch["input_ids"].tolist(), batch["completion_mask"].tolist(), batch["lengths"].tolist()
    ([[1, 2, 3, 4], [1, 2, 5, 0]], [[0, 0, 1, 1], [0, 0, 1, 0]], [4, 3])
    """

    name = "paired"

    left: bool = False
    weighted: bool = False

    def item(self, batch: Batch, columns: WindowColumns) -> dict[str, Any]:
        rules, window = columns.rules, batch.window
        names = [column.name for column in columns.all]
        if len(columns.given) < len(rules.length_columns):
            missing = [name for name in rules.length_columns if name not in (columns.given or names)]
            raise DataError(
                f"layout='paired' needs a column of tokens for each side, and there is no {missing[0]!r} (columns: "
                f"{', '.join(names)}; {where(window.block, int(window.rows[0]))}). tokenize() and chat() make it with "
                "output_prefix=. Or name the sides by length_column="
            )
        made = Padded(self.left, self.weighted).item(batch, columns)
        kinds = [
            [name.removeprefix(prefix) for name in made if rules.aligned_with(name) == side]
            for side, prefix in enumerate(rules.prefixes)
        ]
        for prefix, own in zip(rules.prefixes, kinds):
            if lacks := [kind for each in kinds for kind in each if kind not in own]:
                other = next(name for name in made if name.endswith(lacks[0]) and rules.aligned_with(name) is not None)
                raise DataError(
                    f"there is a column {other!r}, and no {prefix + lacks[0]!r}. With layout='paired' all sides have the same "
                    "columns: add the one, or drop the other"
                )
        sides = {kind: np.concatenate([made.pop(prefix + kind) for prefix in rules.prefixes]) for kind in kinds[0]}
        if COMPLETION not in sides and LABELS in sides:
            trained = (sides[LABELS] != NOT_TRAINED_ON) & (sides[MASK] != 0)
            sides[COMPLETION] = columns.made(COMPLETION, trained.astype(np.int64))
        if COMPLETION in sides:  # of copies and fillers, nothing is
            by_side = sides[COMPLETION].reshape(len(kinds), -1, sides[COMPLETION].shape[1])
            by_side[:, 0 if batch.weight == 0 else len(batch) :] = 0
        made["lengths"] = made["lengths"].T.reshape(-1)
        put(made, **sides, **{NUM_SIDES: len(kinds)})
        return made

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rows, *lengths = shape
        return rows * len(lengths), lengths[0]

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        rows, length = self.seen(batch.plan.shapes[batch.place])
        return (rows, length), rows * length
