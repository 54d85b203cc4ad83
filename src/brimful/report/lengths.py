"""Lengths to plan over: counted in text by a tokenizer, or read from numpy and Parquet files; and as an index."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from brimful.core.repeat import awaited
from brimful.dataset import Dataset
from brimful.index.sequence import FromSequence, LengthIndex
from brimful.plan import as_lengths
from brimful.sources.urls import Shards
from brimful.tables.ragged import token_counts

SUFFIXES: Final = (".npy", ".parquet")


class Lengths(NamedTuple):
    """Tokens of the first samples, int64 (n,), and whether there were more."""

    values: NDArray[np.int64]
    more: bool


def dataset_of(lengths: NDArray[np.int64], *, shuffle: bool = False) -> Dataset:
    """A data set to plan over: `.plans()` of its batches are those of real samples as long as these."""
    return Dataset(FromSequence(LengthIndex(lengths), shuffle, seed=42))


def count_tokens(dataset: Dataset, most: int, *, counted: Callable[[int, int], None] = lambda _, __: None) -> Lengths:
    """The lengths of `input_ids` of the first `most` samples (0: of all), a block at a time.

    `counted(samples, tokens)` is called after each block, with what was counted so far.

    >>> from brimful import from_sequence
    >>> count_tokens(from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3]}, {"input_ids": []}]), 2)
    Lengths(values=array([2, 1]), more=True)
    """
    pieces = [np.zeros(0, np.int64)]
    samples = tokens = 0
    with awaited(dataset.stage, dataset.stage.start(0)) as items:
        for block, _ in items:
            if not block.num_rows:
                continue
            pieces.append(token_counts(block, ("input_ids",), True))
            samples += block.num_rows
            tokens += int(pieces[-1].sum())
            counted(samples, tokens)
            if most and samples > most:
                break
    return _first(np.concatenate(pieces), most)


def read_lengths(urls: Sequence[str], most: int, *, column: str = "length") -> Lengths:
    """The first `most` lengths (0: all) of numpy and Parquet files.

    Args:
        urls: names as `from_files` takes them: on any file system, with globs and braces; .npy files of integers (n,), or
            .parquet files.
        column: of a Parquet file: of integers, or of lists (of tokens), which are counted.
    Raises:
        FileNotFoundError: a name or a glob matches nothing.
        ValueError: a file that is neither, no such column, or lengths that are missing, not integers, or negative.
    """
    shards = Shards(tuple(urls))
    pieces = [np.zeros(0, np.int64)]
    for shard in shards.listed:
        with io.BufferedReader(shards.open(shard)) as file:
            pieces.append(_lengths_in(shard.url, file, column))
        if most and sum(map(len, pieces)) > most:
            break
    return _first(np.concatenate(pieces), most)


def _first(lengths: NDArray[np.int64], most: int) -> Lengths:
    return Lengths(lengths[:most] if most else lengths, bool(most and len(lengths) > most))


def _lengths_in(url: str, file: Any, column: str) -> NDArray[np.int64]:
    try:
        array: NDArray[Any] = np.load(file, allow_pickle=False) if url.endswith(".npy") else _parquet(file, column)
        if array.ndim != 1:
            raise ValueError(f"lengths must have shape (n,) (got {array.shape})")
        return as_lengths(array)
    except (ValueError, EOFError, pa.ArrowException) as error:
        raise ValueError(f"{url}: {error}") from error


def _parquet(file: Any, column: str) -> NDArray[Any]:
    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    if column not in names:
        raise ValueError(
            f"there is no column {column!r} (columns: {', '.join(names) or 'none'}); name the one that holds lengths"
        )
    values = parquet.read(columns=[column]).column(column)
    if values.null_count:
        raise ValueError(f"column {column!r} has {values.null_count:,} nulls; filter them out or fill them")
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pc.list_value_length(values)
    array: NDArray[Any] = values.to_numpy()
    return array
