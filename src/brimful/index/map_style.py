"""A map-style data set of the user's: lengths are known before a sample is, and samples are fetched when a batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakSet
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.terminal import watched
from brimful.index.index import DataIndex, lengths_by_column
from brimful.plan.errors import DataError, StageError, integer, logger, name_of
from brimful.plan.once import once
from brimful.tables.blocks import Block, Sample, as_sample
from brimful.tables.origins import HIDDEN, ORIGIN, origins
from brimful.tables.ragged import REMEDIES, SIZES, is_lists, with_column
from brimful.tables.schema import OF_RESULTS, MisfitError, conform_rows, first_rows, infer

SAMPLE: Final = "sample"
"""The one column of samples that are handed on as they are: their numbers."""
_WHOLE: Final = f"{HIDDEN}sample"
"""In place of a column: the lengths of samples that are no dicts."""
_NONE: Final = -1
"""In place of the length of a list that a sample does not have."""


@dataclass(frozen=True)
class Originals:
    """The objects that rows stand for: samples of the user's data sets, by the places that rows came from.

    Args:
        datasets: by the names that rows have as their origin.
        collate_fn: makes a batch of some of the samples.
        declared: whether the user gave their lengths.
    """

    datasets: Mapping[str, Any]
    collate_fn: Callable[[list[Any]], Any]
    declared: bool

    def samples(self, block: Block) -> Iterator[Any]:
        """The sample of each row, fetched when it is asked for."""
        for place in block.column(ORIGIN).to_pylist() if block.num_rows else ():
            name = place["file"].removesuffix(f", {SAMPLE}")
            yield sample_at(self.datasets[name], name, place["line"])

    def joined(self, others: Sequence[Originals | None], verb: str) -> Originals:
        """These and others.

        Raises:
            ValueError: others are rows, or go to another collate_fn.
        """
        found = self
        for other in others:
            if other is None or other.collate_fn != self.collate_fn:
                theirs = "rows" if other is None else f"samples for collate_fn={name_of(other.collate_fn)}"
                raise ValueError(
                    f"{verb} cannot join samples for collate_fn={name_of(self.collate_fn)} (from_dataset) with {theirs}: one "
                    "function makes each batch. Give all of them the same collate_fn, or none"
                )
            if any(found.datasets.get(name, one) is not one for name, one in other.datasets.items()):
                raise ValueError(
                    f"{verb} cannot tell data sets of one name apart ({', '.join(other.datasets)}); wrap them anew"
                )
            datasets = {**found.datasets, **other.datasets}
            found = replace(found, datasets=datasets, declared=found.declared or other.declared)
        return found


@dataclass(frozen=True, eq=False)
class MapStyleIndex(DataIndex):
    """The samples of a map-style data set.

    With a `collate_fn` they are handed on as they are (see `originals`), and a row is no more than the number of one. Without it
    they become rows, in the types of the first 32, or up to 1,000 while a column is null or absent.

    Args:
        name: tells the data set from others, in messages too.
        given: the lengths, int64 (n,) or (n, d), whatever the length columns are called.
        length_of: or a function of a sample that says them. Where there is neither, each sample's lists are measured.
    Price: 8 bytes a sample kept of lengths that were given, 4 a list column of those that were measured. These take a pass over
        all samples, in each process that plans by them. Samples are never kept.
    """

    made_by = "from_dataset"

    dataset: Any
    name: str
    given: NDArray[np.int64] | None = None
    length_of: Callable[[Any], int] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    asked: pa.Schema | None = None

    def __post_init__(self) -> None:
        if self.collate_fn is not None:
            _IN_USE.add(self)

    @property
    def one_by_one(self) -> bool:
        return self.collate_fn is None

    @once
    def originals(self) -> Originals | None:
        if self.collate_fn is None:
            return None
        declared = self.given is not None or self.length_of is not None
        return Originals({self.name: self.dataset}, self.collate_fn, declared)

    def __len__(self) -> int:
        return len(self.dataset)

    def functions(self) -> list[str]:
        return [] if self.length_of is None else [f"from_dataset({name_of(self.length_of)})"]

    def fingerprint(self) -> dict[str, int]:
        return {"rows": len(self), **self._crc32}

    @once
    def _crc32(self) -> dict[str, int]:
        return {} if self.given is None else {"lengths_crc32": crc32(np.ascontiguousarray(self.given).data)}

    @once
    def schema(self) -> pa.Schema:
        if self.collate_fn is not None:
            return pa.schema([(SAMPLE, pa.int64())])
        return infer(first_rows(map(self._row, range(len(self))))) if self.asked is None else self.asked

    @property
    def known_schema(self) -> pa.Schema | None:
        known = "schema" in vars(self) or self.collate_fn is not None or self.asked is not None
        return self.schema if known else None

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        block = self.numbered(numbers)
        if self.collate_fn is None:
            block = with_column(self._block(numbers.tolist()), ORIGIN, block.column(ORIGIN))
        return block, np.arange(len(numbers))

    def numbered(self, numbers: NDArray[np.int64]) -> Block:
        """A row for each sample that holds no more than its number."""
        block = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], [SAMPLE])
        return with_column(block, ORIGIN, origins(self.name, numbers, SAMPLE))

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[Any]:
        if self.given is None and not self._measures(columns, required):
            if required:
                raise self._missing(columns)
            return np.zeros(len(numbers), dtype=np.int64)
        self._check_count()
        known = self._lengths.get(_WHOLE) if self.given is None else self.given
        if known is None:
            return lengths_by_column(self, columns, True, len(numbers), lambda column: self._of(column)[numbers])
        width = 1 if known.ndim == 1 else known.shape[1]
        if width != max(1, len(columns)):
            raise DataError(
                f"lengths of from_dataset has {width} for each sample, and length_column names {len(columns)} "
                f"({', '.join(columns)}); give as many of the one as of the other"
            )
        return known[numbers]

    def values_at(self, numbers: NDArray[np.int64], column: str) -> NDArray[np.float64] | None:
        return None

    def _check_count(self) -> None:
        """Refuses a data set that has more samples than lengths, or fewer."""
        known = [self.given] if self.given is not None else [*self._lengths.values()]
        if (now := len(self)) != (then := len(known[0]) if known else now):
            raise DataError(
                f"the data set given to from_dataset had {then:,} samples when their lengths were taken, and has {now:,} now. "
                "Make a new one of it: from_dataset(data)"
            )

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        if self.given is not None or not self._measures(columns, required):
            return []
        return [crc32(b"".join(self._lengths[name].tobytes() for name in sorted(self._lengths)))]

    def _measures(self, columns: Sequence[str], required: bool) -> bool:
        """Whether the lengths of these columns are those of the samples, measured: not where nothing is planned by them."""
        if required and (self.collate_fn is not None or self.length_of is not None):
            return True
        lists = {field.name for field in self.schema if is_lists(field.type)} if self.collate_fn is None else set()
        return bool(columns) and set(columns) <= lists

    @once
    def _lengths(self) -> dict[str, NDArray[Any]]:
        """The lengths of all samples: by column where samples are dicts, else those of whole samples."""
        logger.info("from_dataset reads all %s samples once, for their lengths (lengths= saves that)", f"{len(self):,}")
        numbers = watched(range(len(self)), "from_dataset measures lengths", len(self))
        if self.length_of is not None:
            return {_WHOLE: np.array([self._said(number) for number in numbers], dtype=np.int64)}
        by_column: dict[str, NDArray[np.int32]] = {}
        single = np.zeros(len(self), dtype=np.int64)
        named = 0
        for number in numbers:
            sample = self._row(number) if self.collate_fn is None else sample_at(self.dataset, self.name, number)
            if not isinstance(sample, Mapping):
                single[number] = self._measure(sample, number)
                continue
            named += 1
            for name, value in sample.items():
                if (size := _size(value, self.collate_fn is None)) is not None and not isinstance(value, str | bytes):
                    by_column.setdefault(name, np.full(len(self), _NONE, np.int32))[number] = size
        if named and named < len(self):
            raise DataError(f"some samples of {self.name} are dicts and some are not: give lengths= to from_dataset")
        if len(self) and isinstance(_first(sample), str):
            logger.warning(
                "the samples of %s are texts, so their lengths are counted in characters, and max_tokens is too. To count "
                "tokens, give from_dataset lengths=, an array or a function of a sample",
                self.name,
            )
        return by_column if named else {_WHOLE: single}

    def _measure(self, sample: Any, number: int) -> int:
        first = _first(sample)
        if (size := _size(first)) is not None:
            return size
        shape = f" of shape {tuple(first.shape)}" if hasattr(first, "shape") else ""
        kind = f"{type(first).__name__}{shape}"
        raise DataError(
            f"the length of a {kind} is not known ({self.name}, {SAMPLE} {number:,}): give from_dataset lengths=, an array or a "
            "function of a sample; or batch a fixed number of samples, batch(n)"
        )

    def _said(self, number: int) -> int:
        """The length of a sample, as the user's function says."""
        sample = sample_at(self.dataset, self.name, number)
        assert self.length_of is not None
        try:
            return integer("a length", self.length_of(sample))
        except Exception as error:
            raise StageError(
                f"lengths={name_of(self.length_of)} of from_dataset failed at {self.name}, {SAMPLE} {number:,}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _of(self, column: str) -> NDArray[np.int32]:
        if column not in self._lengths:
            raise self._missing((column,))
        lengths = self._lengths[column]
        if len(absent := np.flatnonzero(lengths == _NONE)):
            raise DataError(
                f"column {column!r} has no list in {len(absent):,} samples, the first of them {self.name}, {SAMPLE} "
                f"{absent[0]:,}; return one in every sample, or filter such samples out"
            )
        return lengths

    def _missing(self, columns: Sequence[str]) -> DataError:
        lists = [field.name for field in self.schema if is_lists(field.type)]
        if self.collate_fn is not None:
            lists = list(self._lengths)
        missing = next((name for name in columns if name not in lists), "")
        return DataError(
            f"there is no list column {missing!r} in the samples of from_dataset (list columns: {', '.join(lists) or 'none'})"
            f"{REMEDIES.get(missing, SIZES)}; name another by length_column=, or give from_dataset lengths="
        )

    def _row(self, number: int) -> Sample:
        return self.row_of(sample_at(self.dataset, self.name, number), number)

    def row_of(self, sample: Any, number: int) -> Sample:
        """A sample of this number as a row, its tensors as arrays."""
        try:
            if isinstance(sample, Mapping):
                return {name: _plain(value) for name, value in sample.items()}
            return as_sample(_plain(sample))
        except Exception as error:
            raise StageError(
                f"from_dataset failed at {self.name}, {SAMPLE} {number:,}: {type(error).__name__}: {error}; with collate_fn= "
                "samples may be anything, and are handed to it as they are"
            ) from error

    def _block(self, numbers: list[int]) -> Block:
        rows = [self._row(number) for number in numbers]
        try:
            return conform_rows(rows, self.schema)
        except MisfitError as error:
            place = f"{self.name}, {SAMPLE} {numbers[error.row()]:,}"
            raise StageError(f"from_dataset failed at {place}: {error.told(OF_RESULTS)}") from None


def sample_at(dataset: Any, name: str, number: int) -> Any:
    """A sample of a user's data set.

    Raises:
        StageError: what its __getitem__ raised, with the number.
    """
    try:
        return dataset[number]
    except Exception as error:
        raise StageError(f"{name}[{number}] failed ({SAMPLE} {number:,}): {type(error).__name__}: {error}") from error


def samples_at(dataset: Any, name: str, numbers: Sequence[int]) -> Sequence[Any]:
    """Some samples of a user's data set, by one call of its `__getitems__` where it has that.

    Raises:
        StageError: what it raised, with the number of the sample that fails by itself, if one does.
    """
    if not hasattr(dataset, "__getitems__"):
        return [sample_at(dataset, name, number) for number in numbers]
    try:
        found = dataset.__getitems__([*numbers])
        if len(found) != len(numbers):
            raise ValueError(f"it returned {len(found):,} samples for {len(numbers):,} numbers")
    except Exception as error:
        for number in numbers if hasattr(dataset, "__getitem__") else ():
            sample_at(dataset, name, number)
        shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        raise StageError(f"{name}.__getitems__([{shown}]) failed: {type(error).__name__}: {error}") from error
    samples: Sequence[Any] = found
    return samples


_IN_USE: Final[WeakSet[MapStyleIndex]] = WeakSet()


def new_name(dataset: Any) -> str:
    """A name for a data set whose samples are handed on as they are, by its class, which tells the data sets of a mixture apart:
    no other one that is in use has it."""
    kind = type(dataset).__name__
    taken = {one.name for one in [*_IN_USE] if one.dataset is not dataset}
    return next(
        name for name in (kind, *(f"{kind} {number}" for number in range(2, len(taken) + 2))) if name not in taken
    )


def checked_lengths(lengths: Any, count: int) -> NDArray[np.int64]:
    """The lengths that a user gave for so many samples.

    Raises:
        TypeError: they are no integers.
        ValueError: they are not as many as the samples, or below 0.
    """
    found = np.asarray(lengths)
    if found.ndim not in (1, 2) or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(
            f"lengths takes an array or list of integers, one a sample, or a function of a sample (got {lengths!r:.60})"
        )
    if len(found) != count:
        raise ValueError(f"lengths has {len(found):,} values, and the data set {count:,} samples; give one a sample")
    if found.size and found.min() < 0:
        raise ValueError(
            f"lengths must be at least 0 (got {found.min():,} for sample {found.argmin() // found[0].size:,})"
        )
    return found.astype(np.int64)


def _plain(value: Any) -> Any:
    """A tensor as an array, one without a dimension as a number of its type; anything else as it is."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value.reshape(1)[0] if isinstance(value, np.ndarray) and not value.ndim else value


def _first(sample: Any) -> Any:
    """What a sample is measured by, where it is no dict."""
    return sample[0] if isinstance(sample, tuple) and sample else sample


def _size(value: Any, of_frames: bool = False) -> int | None:
    """The length of a list, a text, or an array of one dimension, or `of_frames`, of any; None of anything else."""
    if isinstance(value, list | str | bytes):
        return len(value)
    shape: Any = getattr(value, "shape", ())
    return int(shape[0]) if len(shape) == 1 or (shape and of_frames) else None
