"""A batch cut between its samples: dicts and tuples of columns, packed rows, nested tensors, lists of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.arrays.forms import OFFSETS
from brimful.core.own_keys import NUM_SIDES
from brimful.plan.once import once
from brimful.tables.ragged import COLUMN_KINDS, TOKEN_COLUMNS
from brimful.tensors.structures import parts_of, with_parts

BOUNDS: Final = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
"""The names of the column, in packed rows, of the slots at which segments begin."""
BY_NAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(("input_ids", "segment_ids", "seq_idx", *TOKEN_COLUMNS), "slots"),
    **dict.fromkeys(("lengths", "sample_numbers"), "pieces"),
}
"""The kinds of columns that `pack` makes, for batches that do not say them; see `COLUMN_KINDS`."""


def splittable(batch: Any) -> SplittableBatch:
    """A batch with its way to be cut.

    - A mapping or a tuple holds columns: tensors (padded, or of layout torch.jagged), arrays and lists of one row a sample, and
      mappings and tuples of such; numbers, words and tensors without dimensions go to every part.
    - A mapping with `cu_seqlens` (or `cu_seq_lens_q`) holds packed rows: they are cut between rows, then between the samples of
      a row, which becomes two shorter ones. `column_kinds`, which `pack` adds, says whether a column has a value for each of the
      "slots", "pieces" (samples, or parts of them) or "rows". Of other columns the shape says it, where it fits one kind.
    - Arrays end to end, `NAME` and `NAME_offsets` (samples + 1,) as `arrays={"NAME": "concat"}` makes them, are cut between them.
    - A list holds samples; so does a tensor, and any object that has a length and can be sliced.

    Raises:
        ValueError: the rows are sides of samples (layout="paired"), the columns disagree about the number of samples, or one with
            its kind, none has rows, a list may be either, or packed rows lack their boundaries. When it is cut: a column may be
            of several kinds.
        TypeError: a structure in which nobody can see the samples.
    Price: some microseconds; of packed and nested batches nothing is read before they are cut.

    >>> batch = {"input_ids": torch.arange(6).reshape(3, 2), "text": ["a", "b", "c"], "weight": 1.0}
    >>> [(part["input_ids"].tolist(), part["text"]) for part in splittable(batch).parts(2)]
    [([[0, 1]], ['a']), ([[2, 3], [4, 5]], ['b', 'c'])]
    """
    if isinstance(batch, Mapping):
        if NUM_SIDES in batch:
            raise ValueError(
                f"a batch of layout='paired' ({NUM_SIDES}={batch[NUM_SIDES]}) is not split between its rows, which the loss "
                "compares. Make smaller batches. Or use layout='padded', and stack the sides in the step"
            )
        bounds = next((name for name in BOUNDS if name in batch), None)
        if bounds is None and COLUMN_KINDS in batch:
            raise ValueError(
                f"packed rows ({COLUMN_KINDS}) are split by their {BOUNDS[0]}, and the batch has none; keep them in it, and take "
                "them out in the step"
            )
        return ColumnBatch(batch) if bounds is None else PackedBatch(batch, bounds)
    if isinstance(batch, list) and _either(batch):
        raise ValueError(
            f"a list of {len(batch)} tensors of {len(batch[0])} rows may be {len(batch)} samples or {len(batch)} "
            "columns: give columns as a tuple or a dict, and samples as a list of dicts"
        )
    if hasattr(batch, "__len__") and hasattr(batch, "__getitem__") and not isinstance(batch, str | bytes):
        return ColumnBatch(batch)
    raise TypeError(
        f"a batch of type {type(batch).__name__} cannot be split by sample: give a dict or a tuple of columns, a list of "
        "samples, or an object with a length whose slices are batches"
    )


def _either(batch: list[Any]) -> bool:
    sizes = {len(one) if isinstance(one, torch.Tensor) and one.dim() and not one.is_nested else 0 for one in batch}
    return len(batch) > 1 and len(sizes) == 1 and sizes.pop() > 0


@dataclass(frozen=True, eq=False)
class ColumnBatch:
    """A batch of columns with one row a sample; parts have about as many samples as each other, with nested tensors tokens."""

    batch: Any

    def __post_init__(self) -> None:
        counts = {path: _count(value) for path, value in self._columns}
        if not counts:
            raise ValueError(
                f"a batch of type {type(self.batch).__name__} holds no column that has rows, so there is nothing to split"
            )
        if any(value.layout != torch.jagged for value in self._all_nested):
            raise TypeError(
                "a nested tensor is split by its offsets, which the layout torch.strided has not; make it torch.jagged"
            )
        first = next(iter(counts))
        for path, count in counts.items():
            if count != counts[first]:
                raise ValueError(
                    f"a batch is split by sample, but {path or 'it'} has {count:,} rows and {first or 'it'} has "
                    f"{counts[first]:,}; keep what belongs to no sample out of the batch, or make it a number"
                )

    @property
    def unit(self) -> str:
        """The unit of `size`: "samples" where each takes a padded row, "tokens" where nothing is padded."""
        return "samples" if self._nested is None else "tokens"

    @property
    def samples(self) -> int:
        """The largest number of parts that it can be cut into."""
        return _count(self._columns[0][1])

    @property
    def size(self) -> int:
        """The size that memory grows with."""
        return self.samples if self._nested is None else len(self._nested.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """The size of a sample: the number of values in a row of each padded tensor."""
        if self._nested is not None:
            return ()
        tensors = [value for _, value in self._columns if isinstance(value, torch.Tensor | np.ndarray)]
        if widths := [prod(tensor.shape[1:]) for tensor in tensors if tensor.ndim > 1]:
            return tuple(widths)
        return tuple(
            max(map(_extent, value), default=0)
            for _, value in self._columns
            if not isinstance(value, torch.Tensor | np.ndarray | _Runs)
            and all(hasattr(row, "__len__") for row in value)
        )

    def parts(self, count: int) -> list[Any]:
        """The batch in about `count` parts of about one size, none empty; in `samples` parts of one sample each."""
        count = min(count, self.samples)
        if self._nested is None:
            cuts = even(self.samples, count)
        else:
            cuts = balanced(np.diff(self._nested.offsets().cpu().numpy()), count)
        return [self._part(first, last) for first, last in pairwise(cuts)]

    def _part(self, first: int, last: int) -> Any:
        shared: dict[int, torch.Tensor] = {}
        part = mapped(
            _with_runs(self.batch), lambda value: _rows(value, first, last, shared) if _has_rows(value) else value
        )
        return _without_runs(part)

    @once
    def _columns(self) -> list[tuple[str, Any]]:
        return list(_leaves(_with_runs(self.batch), ""))

    @once
    def _all_nested(self) -> list[Any]:
        return [value for _, value in self._columns if isinstance(value, torch.Tensor) and value.is_nested]

    @property
    def _nested(self) -> Any:
        return self._all_nested[0] if self._all_nested else None


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Samples end to end in rows, as `Dataset.pack` gives them."""

    batch: Mapping[str, Any]
    bounds: str
    unit: ClassVar[str] = "tokens"
    widths: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        ids = self.batch.get("segment_ids")
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise ValueError(
                f"packed rows ({self.bounds}) are split by their segment_ids, of shape (rows, row_length), and the batch "
                "has none; keep them in it, and take them out in the step"
            )
        assert self._kinds, "which refuses columns that belong to nothing"

    @property
    def samples(self) -> int:
        return sum(max(1, len(segments)) for segments in self._rows)

    @property
    def size(self) -> int:
        return int(self.batch["segment_ids"].numel())

    def parts(self, count: int) -> list[Any]:
        samples, (rows, width) = self.samples, self.batch["segment_ids"].shape
        unclear = [name for name, kind in self._kinds.items() if kind == "unclear"]
        if unclear and any(len(segments) != 1 for segments in self._rows):
            raise self._error(
                f"{unclear[0]!r} has {rows:,} rows, and nobody can see what each of them is of. Say whether it has a value for "
                f"each of the slots, pieces or rows: {COLUMN_KINDS}={{{unclear[0]!r}: 'pieces'}} in the batch"
            )
        if count <= rows:
            return [self._part(first, last, 0, width) for first, last in pairwise(even(rows, count))]
        found = []
        for row, segments in enumerate(self._rows):
            if not segments:
                found.append(self._part(row, row + 1, 0, width))
                continue
            sizes, starts = self._sizes[segments], self._starts[segments] - row * width
            cuts = balanced(sizes, min(len(segments), -(-count * len(segments) // samples)))
            for first, last in pairwise(cuts):
                found.append(self._part(row, row + 1, int(starts[first]), int(starts[last - 1] + sizes[last - 1])))
        return found

    def _part(self, first: int, last: int, begin: int, end: int) -> dict[str, Any]:
        """Rows from `first` on, of each the slots from `begin` on, which are those of some segments, and perhaps padding."""
        width = self.batch["segment_ids"].shape[1]
        low, high = first * width + begin, (last - 1) * width + end
        edges = self._edges[(self._edges >= low) & (self._edges <= high)] - low
        before, after = np.searchsorted(self._starts, [low, high])
        pieces = slice(self._places[before] if before or first else 0, self._places[after])  # those that are empty too
        part: dict[str, Any] = {}
        for name, value in _with_runs(self.batch).items():
            match self._kinds[name]:
                case "bounds":
                    part[name] = torch.from_numpy(edges).to(value)
                case "slots":
                    part[name] = value[first:last, begin:end]
                case "pieces":
                    part[name] = value[pieces]
                case "rows" | "unclear":
                    part[name] = value[first:last]
                case _:
                    part[name] = value
        ids = part["segment_ids"]
        if begin:
            part["segment_ids"] = torch.where(ids > 0, ids - (ids[0, 0] - 1), ids)
        return dict(_without_runs(part))

    @once
    def _kinds(self) -> dict[str, str]:
        """What each column has a value for: "slots", "pieces", "rows", or the whole "batch"; "unclear": of the first three, where
        there are as many pieces as rows and nobody says it; "bounds": it counts slots."""
        return {name: self._kind(name, value) for name, value in _with_runs(self.batch).items()}

    def _kind(self, name: str, value: Any) -> str:
        if name in BOUNDS:
            return "bounds"
        if name == COLUMN_KINDS or not _has_rows(value):
            return "batch"
        shape, ids = tuple(getattr(value, "shape", (len(value),))), self.batch["segment_ids"].shape
        fits = {"slots": shape[:2] == tuple(ids), "pieces": shape[0] == self._pieces, "rows": shape[0] == ids[0]}
        fitting = [kind for kind, does in fits.items() if does]
        said = self.batch.get(COLUMN_KINDS, {}).get(name)
        if isinstance(value, _Runs) and "pieces" in fitting:
            return "pieces"
        if said is not None and said not in fitting:
            raise self._error(
                f"{COLUMN_KINDS} says that {name!r} has a value for each of the {said}, and its shape is {shape}. Say slots, "
                "pieces or rows, whichever it is, or keep it out of the batch"
            )
        if said is None and BY_NAME.get(name) in fitting:
            said = BY_NAME[name]
        if said is None and fitting in ([], ["rows"]):
            raise self._error(
                f"{name!r} belongs neither to the tokens nor to the samples; keep it out of the batch, or make it a number. "
                f"Where it has a value for each row, say so: {COLUMN_KINDS}={{{name!r}: 'rows'}} in the batch"
            )
        return said or ("unclear" if self._pieces == ids[0] else fitting[0])

    def _error(self, words: str) -> ValueError:
        rows = tuple(self.batch["segment_ids"].shape)
        return ValueError(f"packed rows of shape {rows} with {self._pieces:,} samples cannot be split: {words}")

    @once
    def _pieces(self) -> int:
        lengths = self.batch.get("lengths")
        return len(self._real) if lengths is None else len(lengths)

    @once
    def _edges(self) -> NDArray[np.int64]:
        return np.asarray(self.batch[self.bounds].cpu().numpy()).astype(np.int64)

    @once
    def _real(self) -> NDArray[np.int64]:
        """The segments that are samples, not padding."""
        ids = self.batch["segment_ids"].reshape(-1)
        starts = torch.from_numpy(self._edges[:-1]).to(ids.device)
        return np.flatnonzero(ids[starts].cpu().numpy() > 0)

    @once
    def _starts(self) -> NDArray[np.int64]:
        return self._edges[:-1][self._real]

    @once
    def _sizes(self) -> NDArray[np.int64]:
        return np.diff(self._edges)[self._real]

    @once
    def _rows(self) -> list[range]:
        """The samples of each row, by their numbers among those that are not empty."""
        rows, width = self.batch["segment_ids"].shape
        edges = np.searchsorted(self._starts, np.arange(rows + 1) * width).tolist()
        return [range(first, last) for first, last in pairwise(edges)]

    @once
    def _places(self) -> NDArray[np.int64]:
        """The row of each sample in the columns of samples, which have empty ones too; and the number of these rows."""
        lengths = self.batch.get("lengths")
        count = len(self._real)
        rows = np.arange(count) if lengths is None else np.flatnonzero(torch.as_tensor(lengths).cpu().numpy())[:count]
        return np.append(rows, self._pieces)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Arrays of several samples end to end: those of sample i are `values[offsets[i] : offsets[i + 1]]`."""

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, some: slice) -> _Runs:
        first, last, _ = some.indices(len(self))
        offsets = self.offsets[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        return _Runs(self.values[begin:end], offsets - begin)


def _with_runs(batch: Any) -> Any:
    """A batch with one value for each two that hold arrays end to end."""
    if not isinstance(batch, Mapping):
        return batch
    pairs = [name for name in batch if isinstance(name, str) and _are_runs(batch[name], batch.get(name + OFFSETS))]
    if not pairs:
        return batch
    runs = {name: _Runs(batch[name], batch[name + OFFSETS]) for name in pairs}
    return {
        name: runs.get(name, value)
        for name, value in batch.items()
        if name.removesuffix(OFFSETS) not in pairs or name in pairs
    }


def _are_runs(values: Any, offsets: Any) -> bool:
    if not isinstance(offsets, torch.Tensor | np.ndarray) or not isinstance(values, torch.Tensor | np.ndarray):
        return False
    is_offsets = offsets.ndim == 1 and len(offsets) > 0 and values.ndim > 0
    return is_offsets and int(offsets[0]) == 0 and int(offsets[-1]) == len(values)


def _without_runs(part: Any) -> Any:
    if not isinstance(part, Mapping) or not any(isinstance(value, _Runs) for value in part.values()):
        return part
    out: dict[str, Any] = {}
    for name, value in part.items():
        out |= {name: value.values, name + OFFSETS: value.offsets} if isinstance(value, _Runs) else {name: value}
    return out


def even(size: int, count: int) -> list[int]:
    """Cuts so many rows into `count` runs of about one length: where each begins, and the end.

    >>> even(5, 2)
    [0, 2, 5]
    """
    return [number * size // count for number in range(count + 1)]


def balanced(sizes: NDArray[Any], count: int) -> list[int]:
    """Cuts a line of `sizes` into `count` runs of about one sum, none empty: where each begins, and the end.

    >>> balanced(np.array([1, 1, 1, 9]), 2), balanced(np.array([9, 0, 0]), 3)
    ([0, 3, 4], [0, 1, 2, 3])
    """
    ends = np.cumsum(sizes)
    wanted = ends[-1] * np.arange(1, count) / count
    cuts = np.searchsorted(ends, wanted, side="left") + 1
    numbers = np.arange(1, count)
    cuts = np.maximum.accumulate(np.maximum(cuts, numbers) - numbers) + numbers  # strictly ascending
    return [0, *np.minimum(cuts, len(sizes) - count + numbers).tolist(), len(sizes)]


SplittableBatch: TypeAlias = ColumnBatch | PackedBatch
"""A batch that can be cut between its samples, in the order in which they lie."""


# -- structures of mappings and tuples ---------------------------------------------------------------------------------


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A structure with `change` of each value in its place.

    >>> mapped({"a": 1, "b": (2, 3)}, lambda value: -value)
    {'a': -1, 'b': (-2, -3)}
    """
    if isinstance(value, Mapping | tuple):
        return with_parts(value, [mapped(one, change) for one in parts_of(value)])
    return change(value)


def joined(results: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
    """One structure in place of several that are alike: in each place `join` of the values that they have there.

    >>> joined([{"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)}], sum)
    {'a': 11, 'b': (22, 33)}
    """
    first = results[0]
    if isinstance(first, Mapping):
        return {name: joined([one[name] for one in results], join) for name in first}
    if isinstance(first, tuple):
        return with_parts(first, [joined(column, join) for column in zip(*results, strict=True)])
    return join(results)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The columns that have rows, with where they stand."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{path}[{name!r}]" if path else repr(name))
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _leaves(one, f"{path}[{number}]")
    elif _has_rows(value):
        yield path, value


def _has_rows(value: Any) -> bool:
    """Whether a value has a row a sample.

    Raises:
        TypeError: that is not to be seen.
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim > 0
    if value is None or isinstance(
        value, str | bytes | int | float | complex | np.generic | torch.dtype | torch.device
    ):
        return False
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return True
    raise TypeError(f"a batch with a {type(value).__name__} in it cannot be split by sample; keep it out of the batch")


def _extent(row: Any) -> int:
    """The size of a sample; of several values the largest."""
    if isinstance(row, torch.Tensor | np.ndarray):
        return prod(row.shape)
    if isinstance(row, Mapping | tuple):
        values = row.values() if isinstance(row, Mapping) else row
        return max((_extent(value) for value in values if hasattr(value, "__len__")), default=0)
    return len(row)


def _count(value: Any) -> int:
    return int(value.size(0)) if isinstance(value, torch.Tensor) else len(value)


def _rows(value: Any, first: int, last: int, shared: dict[int, torch.Tensor]) -> Any:
    """Rows of a column; `shared`: offsets that several nested ones of a part share, as they must to be computed with."""
    if not (isinstance(value, torch.Tensor) and value.is_nested):
        return value[first:last]
    jagged: Any = value
    offsets = jagged.offsets()
    own = shared.get(id(offsets))
    if own is None:
        own = shared[id(offsets)] = offsets[first : last + 1] - offsets[first]
    begin, end = offsets[[first, last]].tolist()
    sizes = own.diff()
    return torch.nested.nested_tensor_from_jagged(
        jagged.values()[begin:end], own, min_seqlen=int(sizes.min()), max_seqlen=int(sizes.max())
    )
