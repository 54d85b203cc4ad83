"""What the samples of a batch are: where they came from, how long they are, what they say.

What is needed for it is remembered beside the batch, by its arrays or tensors, for as long as these live: a batch itself stays
a plain dict of what is trained on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple
from weakref import ref

import numpy as np
import pyarrow as pa

from brimful.arrays.columns import WindowColumns
from brimful.batching.batch import Batch, PlannedWindow
from brimful.batching.window import IntArray, PlanningWindow
from brimful.tables.origins import ORIGIN, where
from brimful.tables.ragged import MASK, TOKENS, prefix_of

_SHOWN: Final = 60
"""Characters of a text in a table."""


class Explained(NamedTuple):
    """A sample of a batch, or a piece of one.

    Args:
        number: of a stream its place in the window. Else its row before any shuffle or slice, and after a filter or split.
        place: where it was read from: "shard a.jsonl, line 1" is the first line. "store tokens, row 0" is `from_store(path)[0]`,
            and "sequence, row 0" the first row of the list. Of a chunk it is the place of its first token.
        first: which of its tokens the piece begins with.
        length: its tokens here, as planned; None where the plan has no lengths.
        text: what these stand for, by the tokenizer of the chain. Else the whole text of the sample, if a store keeps it and
            no method has made a stream of the store.
        row: the number in `place`, as an int.
        sizes: its sizes by name, where the batch was planned by others than the tokens.
    """

    number: int
    place: str | None
    first: int
    length: int | None
    text: str | None
    row: int | None
    sizes: dict[str, int] | None = None


class Explanation(tuple[Explained, ...]):
    """The samples of a batch in order; as text, a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        names = [name for name in Explained._fields[:-2] if name == "number" or self._says(name)]
        sizes = [name for name in (self[0].sizes or {} if self else {}) if name != TOKENS]
        rows = ([*(getattr(one, name) for name in names), *((one.sizes or {})[name] for name in sizes)] for one in self)
        table = [["sample", *names[1:], *sizes], *([*map(_cell, row)] for row in rows)]
        names += sizes
        widths = [max(map(len, column)) for column in zip(*table)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if name in ("place", "text") else cell.rjust(width)
                for name, cell, width in zip(names, line, widths, strict=True)
            ).rstrip()
            for line in table
        )

    def _says(self, name: str) -> bool:
        values = {getattr(one, name) for one in self}
        return not values <= ({0} if name == "first" else {None})


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    words = " ".join(value.split())
    return words if len(words) <= _SHOWN else f"{words[: _SHOWN - 3]}..."


class _Made(NamedTuple):
    """What a batch was made of: a part of what all batches of its plan were made of.

    Args:
        plan: in a window that knows where its rows came from; they need not be here for it.
        samples: which row of the data set each sample of the window is.
        has_lengths: whether a length column is there.
        place: which batch of the plan it is.
    """

    plan: PlannedWindow
    samples: IntArray
    has_lengths: bool
    place: int


class _Array(ref[Any]):
    """An array or tensor of a batch, as long as it lives, and what it was made of. WeakTensorKeyDictionary takes three times as
    long."""

    __slots__ = ("key", "made")
    key: int
    made: _Made


_MADE: Final[dict[int, _Array]] = {}
"""By their ids."""


def remember(item: Any, batch: Batch, columns: WindowColumns) -> None:
    """Remembers what a batch was made of, to be looked up when somebody asks; what is kept goes with its arrays."""
    if not isinstance(item, (dict, Mapping)):  # a dict is known sooner
        return
    plan = batch.plan
    given = columns.given
    made = _Made(plan.origins, plan.window.samples, bool(given) or plan.pieces is not None, batch.place)
    kinds, found = _arrays(), False
    for name in ("lengths", *given):
        if isinstance(one := item.get(name), kinds):
            _put(one, made)
            found = True
    if not found:
        for one in item.values():
            if isinstance(one, kinds):
                _put(one, made)
                return


def _arrays() -> tuple[type[Any], ...]:
    """The types of arrays, and of tensors where there may be some."""
    return np.ndarray, getattr(sys.modules.get("torch"), "Tensor", np.ndarray)


def _put(array: Any, made: _Made) -> None:
    kept = _Array(array, _forget)
    kept.key, kept.made = id(array), made
    _MADE[kept.key] = kept


def _forget(kept: Any, known: dict[int, _Array] = _MADE) -> None:
    known.pop(kept.key, None)


def _of_array(value: Any) -> _Made | None:
    kept = _MADE.get(id(value))
    return kept.made if kept is not None and kept() is value else None


def carry(item: Any, other: Any) -> None:
    """A batch elsewhere is made of what it was made of here."""
    if other is not item and isinstance(item, Mapping) and (made := _made(item)) is not None:
        for name, one in item.items():
            if _of_array(one) is not None and isinstance(other[name], _arrays()):
                _put(other[name], made)


def explained(batch: Any, column: str, text: Callable[[Sequence[int]], str | None]) -> Explanation:
    """The samples of a batch.

    Args:
        column: of tokens.
        text: what tokens stand for.
    Raises:
        TypeError: it is no batch.
        ValueError: what it was made of is not known.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"explain takes a batch, a dict of tensors or arrays (got {type(batch).__name__}). It goes by these: have collate_fn "
            "and map return such a dict"
        )
    made = _made(batch)
    if made is None and "groups" not in batch and not any(isinstance(one, _arrays()) for one in batch.values()):
        raise ValueError(
            f"explain goes by the tensors of a batch, and this one holds none (keys: {', '.join(map(str, batch)) or 'none'}). "
            "Have collate_fn and map keep at least one"
        )
    if made is None:
        raise ValueError(
            "what this batch was made of is not known: a collate_fn or map that makes all tensors anew, layout='grouped', a copy "
            "by hand and another process leave it behind; explain the batch as these batches hand it out"
        )
    one = Batch(made.plan, made.place)
    sizes: Sequence[int | None] = [None] * len(one)
    texts: Sequence[str | None] = []
    if made.has_lengths or made.plan.window.lengths.any():  # a collate_fn may get samples whose lengths the user said
        sizes = made.plan.sizes[one.span].reshape(len(one), -1)[:, 0].tolist()
    if made.has_lengths:
        texts = [text(tokens) for tokens in _tokens(batch, one, column)]
    firsts = np.zeros(len(one), np.int64) if one.pieces is None else one.pieces.starts
    samples, own = made.samples[one.numbers], one.window.select(one.numbers)
    texts = [*texts, *[None] * (len(samples) - len(texts))]
    if {*texts} <= {None}:
        texts = own.texts_at(samples) or texts
    places, rows = _places(own, len(samples))
    names, of_samples = own.sizes, own.lengths.reshape(len(own), -1).tolist()
    by_name = [dict(zip(names, each, strict=True)) for each in of_samples] if names else [None] * len(own)
    return Explanation(map(Explained, samples.tolist(), places, firsts.tolist(), sizes, texts, rows, by_name))


def _made(item: Mapping[Any, Any]) -> _Made | None:
    return next((made for made in map(_of_array, item.values()) if made is not None), None)


def _places(window: PlanningWindow, count: int) -> tuple[Sequence[str | None], Sequence[int | None]]:
    """Where the samples of a window came from, in words, and the numbers in these."""
    block, rows = window.block, window.rows.tolist()
    if ORIGIN not in block.schema.names:
        return [None] * count, [None] * count
    return [where(block, row) for row in rows], block.column(ORIGIN).field("line").take(pa.array(rows)).to_pylist()


def _tokens(batch: Mapping[str, Any], made: Batch, column: str) -> Iterator[list[int]]:
    """The tokens of each sample, or piece, as far as the batch shows them."""
    ids: Any = batch.get(column, batch.get(TOKENS))  # of several sides, the first lies on top
    mask: Any = batch.get(prefix_of(column) + MASK, batch.get(MASK))
    if not isinstance(ids, _arrays()):
        return
    if made.pieces is not None:
        rows, lengths = made.pieces.rows, made.pieces.lengths
        begins = np.cumsum(lengths) - lengths
        starts = rows * ids.shape[1] + begins - begins[np.searchsorted(rows, rows)]
        flat = ids.reshape(-1)
        yield from (flat[start : start + size].tolist() for start, size in zip(starts.tolist(), lengths.tolist()))
    elif getattr(ids, "is_nested", False):
        jagged: Any = ids
        values = jagged.values()
        yield from (values[first:last].tolist() for first, last in pairwise(jagged.offsets().tolist()))
    elif isinstance(mask, _arrays()) and mask.shape == ids.shape:
        yield from (row[seen != 0].tolist() for row, seen in zip(ids[: len(made)], mask))
