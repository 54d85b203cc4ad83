"""Where streams begin: files, sequences, iterables, stores; and several of them as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, overload

import pyarrow as pa

from brimful.blocks.blocks import Sample
from brimful.core.errors import OnError, function, names_of, one_of, positive
from brimful.dataset import Dataset, IndexedDataset, concatenated, several, stages_of
from brimful.index.indexed import Indexed
from brimful.index.interleave import Interleave as IndexInterleave
from brimful.index.map_style import MapStyleIndex, checked_lengths, new_name
from brimful.index.sequence import FromSequence, SequenceIndex
from brimful.index.tables import TableIndex
from brimful.index.zip import Zip as IndexZip
from brimful.plan.mix import Stop
from brimful.rows.interleave import Interleave
from brimful.rows.zip import Zip
from brimful.sources.called import ShardFunction
from brimful.sources.data_libraries import gives_tables, is_table, refuse_frames, rows_at_hand, rows_of
from brimful.sources.files import FromFiles
from brimful.sources.iterable import FromIterable, FromTables
from brimful.sources.urls import Shards
from brimful.store.index import StoreIndex


def from_files(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | ShardFunction = "auto",
    columns: Sequence[str] | None = None,
    schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
    repeat: bool = False,
    shuffle_shards: bool = False,
    n_active_shards: int = 10,
    n_standby_shards: int = 2,
    streams: int | None = None,
    seed: int = 42,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
) -> Dataset:
    """The samples of shards, several of which are read at once, a row of each in turn.

    Args:
        urls: names, on any file system that fsspec knows; `{00..99}` and globs expand, globs sorted. A path, or a string that
            is the name of a file, is that file, whatever characters it has. A file that several patterns name is read once; one
            that is named in full is read as often as it is named. Globs leave out names that begin with a dot.
        format: "jsonl", "text" (a row {"text": line} each), "csv" or "tsv" (a header, then records), "cbor" (maps; the extra
            `cbor`), of each shard by its extension where "auto", below .gz .zst .bz2 .lz4 .xz; "parquet" (.parquet, .pq) or
            "arrow" (.arrow, .ipc, .feather: files and streams, Hugging Face's among them); or a function of the open file that
            yields samples (then a resume reads what it skips). Dictionaries, views, runs and extensions become what they store
            (`uuid`: 16 bytes; `bool8`: bool), here and in all other sources.
        columns: take these alone; of parquet and arrow, the others are not read.
        schema: the columns' types, of every column that `columns` does not leave out; else those of the first shard in list order
            that has rows, as it says itself (parquet, arrow) or as its first 1,000 rows show. Later rows are cast or are errors;
            a column that they lack is null (in CSV an error).
        repeat: run the whole chain again and again, with the next epoch. Batches and chunks in arrival order (`batch(n)` without
            a window, `concat_chunk`, `pack_chunk`) fill up over the seams of epochs; windows that sort, pack or shuffle do not.
        shuffle_shards: another order of the shards each epoch.
        n_active_shards: shards read at once, a row of each in turn; 1: file after file.
        n_standby_shards: shards opened ahead.
        streams: divide the shards of each epoch into so many independent streams, through each of which all that follows runs
            by itself: their samples, or batches, come in turn, and `Batches.shard` shares the streams out to ranks. Any
            world size that divides it sees the same order. Each has shards and windows of its own: see the price.
        on_error: "raise" names file and line; "skip" leaves a bad record out, counts it and logs file and line. Damage behind
            which nothing can be found, a header and a shard by columns that do not fit take along all that follows in the
            shard: it counts as one of `skipped`, and one of `skipped_shards`.
        storage_options: for fsspec.
        timeout_seconds: how long to wait for a shard, all attempts to read on together, before a TimeoutError names it.
    Raises:
        ImportError: CBOR without cbor2.
        FileNotFoundError: (when run) a name or a glob matches nothing, or a link that leads nowhere.
        DataError: (when run) a bad record, a damaged shard, or one that changes while it is read, with file and line.
        TimeoutError: (when run) nothing came in time.
    State: about 30 bytes an open shard. A resume never parses what was consumed, but of parquet and arrow the row group or the
        record batch in which it lies.
    Price: about 1 MB an active or standby shard, and 4 MB where it is far away, 256 MB in all; of parquet and arrow what is
        stored of the columns taken of a row group or a record batch, too. Each stream that a rank reads
        takes 8 MB beside its own shards (n_active_shards + n_standby_shards of them, where it has so many) and its own window
        of batches, and at least 2 threads. A local shard is an open file; what is far away shares the connections of its
        file system (10 of s3fs, 100 of HTTP), whatever the number of shards.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> import brimful as bf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for shard in ("a", "b"):
    ...         rows = [json.dumps({"text": f"{shard}{row}"}) for row in range(2)]
    ...         _ = Path(folder, f"{shard}.jsonl").write_text("\\n".join(rows))
    ...     [sample["text"] for sample in bf.from_files(f"{folder}/*.jsonl")]
    ['a0', 'b0', 'a1', 'b1']
    """
    given = (urls,) if isinstance(urls, str | os.PathLike) else tuple(urls) if isinstance(urls, Iterable) else (urls,)
    if odd := [url for url in given if not isinstance(url, str | os.PathLike)]:
        raise TypeError(f"urls takes a path or a list of paths (got {odd[0]!r})")
    if not given or "" in given:
        raise ValueError(f"urls must name at least one file (got {'an empty name' if given else 'none'})")
    kept = None if columns is None else names_of("columns", columns)
    typed = schema if schema is None or isinstance(schema, pa.Schema) else _schema(schema)
    stage = FromFiles(
        Shards(given, dict(storage_options or {}), timeout_seconds),
        format,
        kept,
        typed,
        shuffle_shards,
        n_active_shards,
        n_standby_shards,
        seed,
        on_error,
        streams,
    )
    return Dataset(stage, repeat)


def _schema(types: Mapping[str, pa.DataType]) -> pa.Schema:
    try:
        return pa.schema(list(types.items()))
    except TypeError as error:
        raise TypeError(f"schema takes pyarrow's types by column, as {{'id': pa.int64()}}: {error}") from None


def from_sequence(sequence: Any, *, repeat: bool = False, shuffle: bool = False, seed: int = 42) -> IndexedDataset:
    """Samples at hand: a list of dicts, of strings ({"text": ...}) or of token ids ({"input_ids": ...}), a pa.Table, a data frame
    of pandas or polars, a Hugging Face map-style data set.

    An indexed data set: made columnar once, on first use. `shuffle` takes another order each epoch.

    A `datasets.Dataset` stays where it is, as a rule a file that is mapped into memory, and is read by columns, as it was
    selected and shuffled; its format (`with_format("torch")`, and the columns of that) changes nothing. With a transform, or
    features that `datasets` itself decodes (Image, Audio), all rows are asked of it one by one, and kept.

    Raises:
        TypeError: it is no sequence of samples, or several of them (a DatasetDict); with what to do.
        StageError: (when run) a row is no sample, or cannot be had; with its number.

    >>> list(from_sequence(["one", "two"]))
    [{'text': 'one'}, {'text': 'two'}]
    """
    rows = rows_at_hand(sequence, "from_sequence")
    index = TableIndex(rows) if is_table(rows) else SequenceIndex(rows)
    return IndexedDataset(FromSequence(index, shuffle, seed), repeat)


def from_dataset(
    dataset: Any,
    *,
    lengths: Sequence[int] | Callable[[Any], int] | Any = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    shuffle: bool = False,
    repeat: bool = False,
    seed: int = 42,
) -> IndexedDataset:
    """The samples of a map-style `torch.utils.data.Dataset`, or of anything else with `__len__` and `__getitem__`: indexed.

    Batches are planned by lengths alone. A sample is fetched when its batch is made, and is not kept.

    Without a `collate_fn`, samples are dicts of numbers, lists, 1-D tensors or arrays, and texts. They become rows: every method
    and every layout works on them. With a `collate_fn`, samples may be anything (tuples, images). They are handed to it as they
    are, a list of those of each batch. Methods that look into rows (`map`, `tokenize`, `select`) are then refused.

    Args:
        dataset: gives sample i as `dataset[i]`, the same one each time, or one that differs by random augmentation alone.
        lengths: an array or list, one integer a sample; or a function of a sample. None: each sample is fetched once to measure
            it, where something is planned by its length. The length of a dict is that of its length column, of a tuple that of
            its first element; of a list, a text, or a tensor of one dimension its own.
        collate_fn: makes the batch of a list of samples; `batch(collate_fn=...)` takes its place. Random numbers that it
            draws, and `__getitem__` for it, are keyed by the batch: the same after a resume, and on any number of ranks.
            Give the methods that make batches `max_workers=` to have both run ahead of use. Without a collate_fn, nothing
            keys the random numbers of `__getitem__`.
        shuffle: another order each epoch.
        repeat: run the whole chain again and again, with the next epoch.
        seed: of the order.
    Raises:
        TypeError: it has no `__len__` or no `__getitem__`; lengths are no integers.
        ValueError: lengths are not as many as the samples.
        StageError: (when run) `__getitem__` raised, or returned what is no row; with the number of the sample.
        DataError: (when run) a sample has another length than the plan was told; nobody can measure it.
    State: [epoch, samples handed on]; of batches [epoch, number of the window, batches handed on]. A state keeps the number of
        samples and a checksum of the lengths.
    Price: measuring fetches all samples once, in every process: save `data.lengths()`, and give it as `lengths`. Rows are
        made in Python: 5 to 20 us a sample, beside what `__getitem__` takes; the first 32 are fetched once more, for their
        types.

    >>> import brimful as bf
    >>> class Squares:
    ...     def __len__(self): return 3
    ...     def __getitem__(self, number): return {"input_ids": [number] * number ** 2}
    >>> data = bf.from_dataset(Squares())
    >>> [batch["input_ids"].shape for batch in data.batch_by_tokens(4, shuffle_batches=False)]
    [torch.Size([1, 4]), torch.Size([2, 1])]
    >>> pairs = bf.from_dataset([("a", 0), ("bb", 1)], lengths=[1, 2], collate_fn=lambda samples: samples)
    >>> list(pairs.batch(2))
    [[('a', 0), ('bb', 1)]]
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"from_dataset takes a map-style data set, with __len__ and __getitem__ (got {type(dataset).__name__}); "
            "from_iterable takes what can only be iterated over"
        )
    if isinstance(dataset, Dataset):
        raise TypeError("from_dataset takes a data set of torch, and this is one of brimful's: use it as it is")
    if isinstance(dataset, str | bytes):
        raise TypeError(
            "from_dataset takes a data set of torch, and this is a text; from_files reads files by their names"
        )
    if collate_fn is not None:
        function("collate_fn", collate_fn)
    given = None if lengths is None or callable(lengths) else checked_lengths(lengths, len(dataset))
    name = type(dataset).__name__ if collate_fn is None else new_name(dataset)
    index = MapStyleIndex(dataset, name, given, lengths if callable(lengths) else None, collate_fn)
    return IndexedDataset(FromSequence(index, shuffle, seed), repeat)


def from_store(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    repeat: bool = False,
    shuffle: bool = False,
    seed: int = 42,
    storage_options: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
) -> IndexedDataset:
    """The samples of a token store, which `Dataset.to_store(path)` or `brimful tokenize` wrote: indexed, memory-mapped, or on
    any file system that fsspec knows (s3://, gs://, https://): then nothing of its files is read but the rows wanted.

    Args:
        path: a folder.
        columns: take these alone.
        repeat: run the whole chain again and again, with the next epoch. Batches and chunks in arrival order (`batch(n)` without
            a window, `concat_chunk`, `pack_chunk`) fill up over the seams of epochs; windows that sort, pack or shuffle do not.
        shuffle: another order each epoch: of runs of 64 rows, and of the rows of each 131,072.
        seed: of that order.
        storage_options: for fsspec.
        timeout_seconds: how long a request may take, all attempts together, before a TimeoutError names the file.
    Raises:
        ValueError: it has not all of the columns.
        FileNotFoundError: there is no store, or one that is not finished.
        StateError: another release of brimful wrote it, in a version that this one does not read.
        DataError: its manifest is damaged; (when run) a file is missing, has changed, or cannot be read. `brimful verify` alone
            finds a byte that has flipped inside of a file: it reads all of them.
        TimeoutError: nothing came in time.
    State: [epoch, samples handed on]; of batches [epoch, number of the window, batches handed on].
    Price: opening reads one file (1,000 files of rows: 20 ms). See `brimful.store.index.StoreIndex`.

    >>> import tempfile
    >>> import brimful as bf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = bf.from_sequence([{"input_ids": [5, 6], "id": 0}, {"input_ids": [7], "id": 1}])
    ...     _ = rows.to_store(f"{folder}/tokens")
    ...     tokens = bf.from_store(f"{folder}/tokens", columns=["input_ids"])
    ...     list(tokens[1]), tokens[1]["input_ids"].tolist(), tokens.lengths().tolist()
    (['input_ids'], [7], [2, 1])
    """
    positive("timeout_seconds", timeout_seconds)
    index = StoreIndex.opened(path, columns, storage_options, timeout_seconds)
    return IndexedDataset(FromSequence(index, shuffle, seed), repeat)


def from_iterable(
    iterable: Iterable[Sample | str] | Callable[[], Iterable[Sample | str]], *, repeat: bool = False
) -> Dataset:
    """The samples of anything that can be iterated over again and gives the same ones each time.

    A generator function is called once an epoch, without arguments, and once at a resume. It is called once more for the types
    (32 rows, or up to 1,000 while a column is null or absent in them) where a run begins in a later epoch.

    A `datasets.IterableDataset` is read by Arrow tables where it has them (files; rows that were not made by a function of
    Python's), whatever its format.

    Raises:
        TypeError: a data frame, or a dict: these iterate over the names of their columns; a generator, or another iterator,
            that can be read once only.
    State: a count. Price: a resume iterates over what it skips; of tables it makes no rows.

    >>> def generate():
    ...     yield from ({"text": word} for word in ("one", "two"))
    >>> list(from_iterable(generate))
    [{'text': 'one'}, {'text': 'two'}]
    """
    refuse_frames(iterable)
    if gives_tables(iterable):
        return Dataset(FromTables(dataset=iterable), repeat)
    return Dataset(FromIterable(rows_of(iterable)), repeat)


@overload
def interleave_datasets(
    datasets: Sequence[IndexedDataset],
    *,
    weights: Sequence[float] | None = None,
    stop: Stop = "first",
    by: Literal["samples", "tokens"] = "samples",
    length_column: str = "input_ids",
) -> IndexedDataset: ...


@overload
def interleave_datasets(
    datasets: Sequence[Dataset],
    *,
    weights: Sequence[float] | None = None,
    stop: Stop = "first",
    by: Literal["samples", "tokens"] = "samples",
    length_column: str = "input_ids",
) -> Dataset: ...


def interleave_datasets(
    datasets: Sequence[Dataset],
    *,
    weights: Sequence[float] | None = None,
    stop: Stop = "first",
    by: Literal["samples", "tokens"] = "samples",
    length_column: str = "input_ids",
) -> Dataset:
    """Samples of each in fixed proportions, in stratified order; indexed where all of them are.

    Samples have the columns of all data sets. A column that a data set lacks is null in its samples: `select` the same columns
    of each where that is not meant.

    Args:
        weights: one a data set, by default equal.
        stop: where one is due that has ended: "first" ends there; "all" goes on without it; "all_repeat" begins it again
            until each has ended once.
        by: what the weights are shares of. By "tokens", an empty sample counts as one: streamed, of the tokens served so far;
            indexed, of samples by the mean length of each data set.
        length_column: the list column whose tokens count.

    >>> import brimful as bf
    >>> one, two = bf.from_sequence(["H"] * 6), bf.from_sequence(["K"] * 4)
    >>> "".join(sample["text"] for sample in bf.interleave_datasets([one, two], weights=[1.5, 1]))
    'HKHKHHKHKH'
    """
    one_of("by", by, "samples", "tokens")
    stages = stages_of("interleave_datasets", datasets)
    if weights is not None and not isinstance(weights, Iterable):
        raise TypeError(f"weights takes a list, a number for each data set (got {weights!r})")
    shares = (1.0,) * len(stages) if weights is None else tuple(weights)
    column = length_column if by == "tokens" else None
    if any(stage.streamed_by for stage in stages):
        return Dataset(Interleave(stages, shares, stop, column))
    return IndexedDataset(IndexInterleave(cast(tuple[Indexed, ...], stages), shares, stop, column))


@overload
def zip_datasets(datasets: Sequence[IndexedDataset]) -> IndexedDataset: ...


@overload
def zip_datasets(datasets: Sequence[Dataset]) -> Dataset: ...


def zip_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """Samples side by side: sample i has the columns of sample i of each. Indexed where all of them are.

    What repeats is put side by side epoch by epoch, and repeats together. Shuffle what comes out, not what goes in.

    Raises:
        ValueError: some of them repeat and others do not; one is in several streams; one leaves bad rows out.
        DataError: (when run) a column is in two of them, which are named; or one ends before another: with both counts, after
            the samples that have a partner.
    State: the places of all of them; of indexed data one place.
    Price: of each a block held.

    >>> import brimful as bf
    >>> source, target = bf.from_sequence(["a", "b"]), bf.from_sequence(["x", "y"])
    >>> list(bf.zip_datasets([source.rename({"text": "source"}), target.rename({"text": "target"})]))
    [{'source': 'a', 'target': 'x'}, {'source': 'b', 'target': 'y'}]
    """
    given = several("zip_datasets", datasets)
    together = all(isinstance(dataset, Dataset) and dataset.repeats for dataset in given)
    stages = stages_of("zip_datasets", given, once=together)
    for number, stage in enumerate(stages):
        if stage.leaves_out:
            raise ValueError(
                f"data set {number} leaves out what is bad (on_error='skip'), and its other rows would get wrong partners; mend "
                "it, or let functions give a row of nulls and filter after zip_datasets"
            )
    endless = [stage.endless for stage in stages]
    if len(set(endless)) > 1:
        raise ValueError(
            f"data set {endless.index(True)} repeats without end and data set {endless.index(False)} does not; take some of "
            "the first, or repeat all of them"
        )
    if any(stage.streamed_by for stage in stages):
        return Dataset(Zip(stages), together)
    return IndexedDataset(IndexZip(cast(tuple[Indexed, ...], stages)), together)


@overload
def concat_datasets(datasets: Sequence[IndexedDataset]) -> IndexedDataset: ...


@overload
def concat_datasets(datasets: Sequence[Dataset]) -> Dataset: ...


def concat_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """All samples of the first, then of the second, and so on; `a + b` for two. Indexed where all of them are.

    Columns are as for `interleave_datasets`: null in the samples of a data set that lacks one.

    >>> import brimful as bf
    >>> [sample["text"] for sample in bf.from_sequence(["a"]) + bf.from_sequence(["b"])]
    ['a', 'b']
    """
    return concatenated(datasets)
