"""Batches to tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from brimful.errors import TALLY, one_of
from brimful.ragged import LABELS, NOT_TRAINED_ON
from brimful.stats import Made
from brimful.stream import Stage, State, running, runtime
from brimful.windows import Batch, Packs, Window

if TYPE_CHECKING:
    from brimful.columns import Columns

Layout = Literal["padded", "nested"]
SIGNED: Final = ("int8", "int16", "int32", "int64")
DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", *SIGNED),
    *("float16", "bfloat16", "float32", "float64"),
)


@dataclass(frozen=True)
class Collated(Stage[Any]):
    """Each batch as a dict of tensors, or what `collate_fn` makes of its samples; the state is passed on.

    `few_shapes` says that the user wants so few shapes that a compiler can keep up: then `.stats` warns of too many.
    """

    upstream: Stage[Batch | Packs]
    length_columns: tuple[str, ...]
    pad_values: dict[str, float]
    left: bool = False
    weighted: bool = False
    hf_flash_attention: bool = False
    collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None
    layout: Layout = runtime("padded")
    dtypes: Mapping[str, str] = field(default_factory=dict, metadata={"runtime": True})
    few_shapes: bool = runtime(False)

    def __post_init__(self) -> None:
        one_of("layout", self.layout, "padded", "nested")
        for name, dtype in self.dtypes.items():
            one_of(f"dtypes[{name!r}]", dtype, *DTYPES)
        if self.weighted and self.layout == "nested":
            raise ValueError("layout='nested' pads nothing, so it has no static shapes; choose layout='padded'")

    def start(self, epoch: int) -> State:
        return self.upstream.start(epoch)

    def items(self, at: State) -> Generator[tuple[Any, State], None, None]:
        from brimful import collate  # imports torch, which descriptions and plans do without
        from brimful.columns import columns_of

        tally = TALLY.get()
        known: WeakKeyDictionary[Window, Columns] = WeakKeyDictionary()  # of streams the windows at hand come in turn
        with running(self.upstream, at) as batches:
            for batch, after in batches:
                columns = known.get(batch.window)
                if columns is None:
                    columns = columns_of(batch.window, self.length_columns, self.pad_values, self.dtypes)
                    known[batch.window] = columns
                if self.collate_fn is not None:
                    item = collate.by_function(batch, columns, self.collate_fn)
                elif isinstance(batch, Packs):
                    item = collate.packed(batch, columns, self.hf_flash_attention)
                elif self.layout == "nested":
                    item = collate.nested(batch, columns)
                else:
                    item = collate.padded(batch, columns, self.left, self.weighted)
                if batch.weight is not None:
                    item = collate.weighed(item, batch.weight, self.pad_values, self._num_items(batch))
                if tally is not None:
                    tally.made.append(self._counted(batch, item, bool(columns.given)))
                yield item, after

    def _num_items(self, batch: Batch | Packs) -> int | None:
        """How many labels of a batch's step are trained on; None where it is not known, or padding may be taken for some."""
        known, fill = batch.num_labels, self.pad_values.get(LABELS, NOT_TRAINED_ON)
        if known is None or fill != NOT_TRAINED_ON or self.dtypes.get(LABELS, "int64") not in SIGNED:
            return None
        return known.given - (known.firsts if isinstance(batch, Packs) and self.collate_fn is None else 0)

    def _counted(self, batch: Batch | Packs, item: Any, has_lengths: bool) -> Made:
        """What a batch holds: by its plan, which also knows it of what a user's function returned; the shape of that by
        its first length column, where it is to be seen."""
        lengths, padded_length = batch.lengths, batch.padded_length
        samples = len(batch) if isinstance(batch, Batch) else int(np.count_nonzero(batch.starts == 0))
        tokens = int(np.minimum(lengths, padded_length).sum())
        widths = padded_length if isinstance(padded_length, tuple) else (padded_length,)
        shape: tuple[int, ...] = (batch.padded_size, *widths)
        slots = batch.padded_size * sum(widths) if has_lengths else 0
        if self.collate_fn is not None:
            column: Any = item.get(self.length_columns[0]) if isinstance(item, Mapping) else None
            if len(widths) == 1 and len(getattr(column, "shape", ())) >= 2:
                shape = tuple(column.shape)
                slots = shape[0] * shape[1]
        elif self.layout == "nested" and isinstance(batch, Batch):
            shape, slots = (len(batch), tokens), tokens
        if batch.weight == 0:
            samples = tokens = 0
        return Made(samples, tokens, slots, shape, self.few_shapes)
