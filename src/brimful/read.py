"""Where streams begin: files, sequences, iterables, stores; and several of them as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypeAlias, cast, overload

from brimful.core.counters import OnError
from brimful.core.facts import facts_of
from brimful.dataset import (
    Dataset,
    ForwardMixture,
    IndexedDataset,
    check_vocabularies,
    concatenated,
    dataset_of,
    several,
    stages_of,
)
from brimful.index.indexed import Indexed
from brimful.index.joined import Interleave as IndexInterleave
from brimful.index.joined import Zip as IndexZip
from brimful.index.map_style import MapStyleIndex, checked_lengths, new_name
from brimful.index.sequence import FromSequence, SequenceIndex
from brimful.index.tables import TableIndex
from brimful.plan.errors import column_name, function, names_of, one_of, timeout
from brimful.plan.mix import Stop
from brimful.plan.schedule import Schedule, of_names
from brimful.rows.mixing import Interleave, Zip
from brimful.sources.cache import cache_in
from brimful.sources.csv import checked_options
from brimful.sources.data_libraries import gives_tables, is_table, refuse_frames, rows_at_hand
from brimful.sources.files import FromFiles
from brimful.sources.function_format import ShardFunction
from brimful.sources.iterable import FromIterable, FromTables
from brimful.sources.urls import Shards
from brimful.store.index import StoreIndex
from brimful.tables.blocks import Sample
from brimful.tables.learnt import Learnt
from brimful.tables.schema import Types, asked

Weights: TypeAlias = Sequence[float] | Mapping[str, float] | Schedule


def from_files(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | ShardFunction = "auto",
    columns: Sequence[str] | None = None,
    schema: Types | None = None,
    repeat: bool = False,
    shuffle_shards: bool = False,
    n_active_shards: int = 10,
    n_standby_shards: int = 2,
    streams: int | None = None,
    seed: int = 42,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
    compression: str | None = None,
    zstd_window_bytes: int | None = None,
    csv_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """The samples of files (shards). Several shards are read at once, one row of each in turn.

    Args:
        urls: names, on any file system that fsspec knows. `{00..99}` and globs expand, and globs are sorted. A `Path`,
            or a string that names an existing file, means exactly that file, even if its name has characters such as
            `*` or `::`. A file that several patterns match is read once. A file that is named in full is read as often as you
            name it. Globs leave out names that begin with a dot.
        format: the format of the records. "auto" takes the format of each shard from its extension. "json" is one
            array of objects, or an object that holds one (`{"data": [...]}`). brimful reads it element by element. With
            "auto", a file `.json` that begins with `[` is such an array, and any other is JSON lines. "text" makes a
            row {"text": line} of each line. "csv" and "tsv" need a header. "cbor" reads maps, and needs the extra
            `cbor`. "jsonl" and "parquet" (.parquet, .pq) are files as usual. "arrow" (.arrow, .ipc, .feather) reads
            files and streams, Hugging Face's included. Or give a function of the open file that yields samples. A
            resume then reads the samples that it skips. In all sources, Arrow's dictionaries, views, runs and
            extensions become the type that they store
            (`uuid` becomes 16 bytes, `bool8` bool).
        columns: take only these columns. Parquet and Arrow files do not read the others.
        schema: the type of every column that `columns` does not leave out. By default, brimful takes the types of the
            first shard in list order that has rows. In most formats, its first 1,000 rows show them. Parquet and Arrow
            files name them. There, brimful widens the types to those of the 15 files that follow, such as int32 to
            int64. Later rows are cast, or raise an error. Floats are rounded only to a type that you give here. A
            missing column is null (in CSV an error). Columns of JSON lines and CBOR that hold objects stay as they were
            written: samples have what `json.loads` gives. `"json"` asks for that in any column, and `pa.struct` for one
            type of all objects. Other names, such as "int64", are those of pyarrow.
        repeat: run the whole chain again and again, each time with the next epoch. Batches and chunks in arrival order
            continue across epochs (`batch(n)` without a window, `concat_chunk`, `pack_chunk`). Windows that sort, pack
            or shuffle do so only after `concat_chunk`. 1,000 epochs in a row without a sample are a DataError.
        shuffle_shards: use another order of the shards in each epoch.
        n_active_shards: how many shards are read at once, one row of each in turn. 1: one file after the other.
        n_standby_shards: how many shards are opened ahead.
        streams: divide the shards of each epoch into so many independent streams. All later stages run on each stream
            by itself. Samples, or batches, come from each stream in turn, and `Batches.shard` gives the streams to
            ranks. Any world size that divides this number sees the same order. Each stream has its own shards and
            windows: see the price.
        seed: the seed of the order of the shards.
        on_error: "raise" names file and line. "skip" leaves a bad record out, counts it, and logs file and line. Some
            errors lose the rest of a shard. These are a bad header, wrong columns in a Parquet or Arrow file, and damage
            that hides the next record. Such a shard counts once in `skipped` and once in `skipped_shards`.
        storage_options: options for fsspec.
        timeout_seconds: how long to wait for a shard, with all attempts together. Then a TimeoutError names it.
        compression: "gzip", "zstd", "bz2", "xz" or "lz4", for all shards. "none": give their bytes as they are. By
            default, the first bytes of each shard tell how it is compressed, and else its name (.gz, .zst, .bz2, .xz,
            .lz4). Parquet and Arrow files are never compressed as a whole.
        zstd_window_bytes: read zstd frames with windows of up to so many bytes (`zstd --long=31` writes 2 GB). By
            default, 128 MB. It needs the extra `zstd`.
        csv_options: how CSV and TSV files are written, as a dict with any of these keys. "delimiter": one character.
            "quote": one character (default '"'), or None if quotes are plain text. "header": False if the first record
            is data; the columns are then f0, f1 and so on. Or a list of names for a file without a header. "encoding":
            such as "latin-1"; UTF-16 is refused. "types": "text" makes every column text. By default, brimful takes
            numbers and bools from the first rows. Dates and times stay text unless `schema` asks for their type, such
            as `{"city": pa.string(), "day": pa.date32()}`.
        cache_dir: a local folder that keeps what remote files sent, so that the next epoch does not ask for it again.
            All processes of a machine may share it. It also keeps indexes of gzip files, with which they resume fast
            (this needs the extra `gzip`). Without it, nothing is kept.
        cache_bytes: the limit of the cache. brimful deletes the files that were used longest ago. By default, the cache
            takes a tenth of the disk at most.
    Raises:
        ImportError: the format is CBOR and cbor2 is not installed, or `zstd_window_bytes` and backports.zstd is not.
        FileNotFoundError: (when run) a name or a glob matches nothing, or a link leads nowhere.
        DataError: (when run) a record is bad, a shard is damaged, or it changes while it is read. The error names file
            and line.
        TimeoutError: (when run) a file system did not answer in time.
    State: about 30 bytes for each open shard. A resume does not parse consumed rows again, except for the current row
        group or record batch of parquet and arrow.
    Price: about 1 MB for each active or standby shard. A remote shard takes 4 MB, and all of them 256 MB at most. A
        zstd shard takes its window, too.
        Parquet and arrow also hold the stored columns of a row group or record batch. Each stream of a rank takes 8 MB,
        its own active and standby shards, its own window of batches, and at least 2 threads. A local shard is an open
        file. Remote shards share the connections of their file system (10 of s3fs, 100 of HTTP), whatever the number of
        shards.

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
    is_one = isinstance(urls, str | os.PathLike | bytes | set | frozenset) or not isinstance(urls, Iterable)
    given: tuple[Any, ...] = (urls,) if is_one else tuple(cast("Iterable[Any]", urls))
    if odd := [url for url in given if not isinstance(url, str | os.PathLike)]:
        raise TypeError(f"urls takes a path or a list of paths (got {odd[0]!r:.40})")
    if not given or "" in given:
        raise ValueError(f"urls must name at least one file (got {'an empty name' if given else 'none'})")
    kept = None if columns is None else names_of("columns", columns)
    stage = FromFiles(
        Shards(
            given,
            dict(storage_options or {}),
            timeout_seconds,
            compression,
            zstd_window_bytes,
            cache_in(cache_dir, cache_bytes),
        ),
        format,
        kept,
        asked(schema),
        shuffle_shards,
        n_active_shards,
        n_standby_shards,
        seed,
        on_error,
        streams,
        csv_options=None if csv_options is None else checked_options(csv_options),
    )
    return Dataset(stage, repeat)


def from_sequence(sequence: Any, *, repeat: bool = False, shuffle: bool = False, seed: int = 42) -> IndexedDataset:
    """The samples of a list, a table or a data frame in memory, as an indexed data set.

    Give it a list of dicts, of strings ({"text": ...}) or of token ids ({"input_ids": ...}). Or a pa.Table, a data
    frame of pandas or polars, or a map-style data set of Hugging Face. It is made columnar and hashed once, on first
    use. A state is refused over other values. Do not change the list after that: a new length is an error, and new
    values are not seen. `shuffle` takes another order each epoch.

    A `datasets.Dataset` stays where it is, usually a memory-mapped file. brimful reads it by columns, with its
    selection and its shuffle. Formats such as `with_format("torch")`, and their columns, change nothing. The data set
    may have a transform, or features that `datasets` itself decodes (Image, Audio). brimful then asks for all rows one
    by one, and keeps them.

    Raises:
        TypeError: it is not a sequence of samples, or it is several of them (a DatasetDict). The error says what to do.
        StageError: (when run) a row is not a sample, or cannot be read. The error has its number.
        DataError: (when run) the list has another length than at its first use.
    Price: .6 ns a token of 32 bits to hash, once.

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
    schema: Types | None = None,
) -> IndexedDataset:
    """The samples of a map-style `torch.utils.data.Dataset`, or of any object with `__len__` and `__getitem__`. The
    result is indexed.

    Only lengths are needed to plan batches. A sample is fetched when its batch is made, and is not kept.

    Without a `collate_fn`, samples are dicts of numbers, lists, 1-D tensors or arrays, and texts. They become rows, so
    every method and every layout works. With a `collate_fn`, samples may be anything (tuples, images). brimful hands
    the samples of each batch to it unchanged, as a list. It then refuses methods that need rows (`map`, `tokenize`,
    `select`).

    Args:
        dataset: gives sample i as `dataset[i]`. A number must always give the same sample, except for random
            augmentation.
        lengths: an array or list, one integer a sample, or a function of a sample. None: each sample is fetched once to
            measure it, if batches are planned by length. The length of a dict is that of its length column. The length
            of a tuple is that of its first element. A list, a text, or a tensor of one dimension has its own length.
        collate_fn: makes a batch from a list of samples. `batch(collate_fn=...)` replaces it. brimful seeds the random
            numbers in it, and in `__getitem__`, anew for each batch. So they are the same after a resume and on any
            number of ranks. Give `max_workers=` to the methods that make batches, so that both run ahead of use.
            Without a collate_fn, brimful does not seed the random numbers of `__getitem__`.
        shuffle: use another order each epoch.
        repeat: run the whole chain again and again, each time with the next epoch.
        seed: the seed of the order.
        schema: the type of every column, as for `from_files`. By default, the first samples show them.
    Raises:
        TypeError: the data set has no `__len__` or no `__getitem__`, or lengths are not integers.
        ValueError: the number of lengths is not the number of samples.
        StageError: (when run) `__getitem__` raised an error, or returned something that is not a row. The error has the
            number of the sample.
        DataError: (when run) a sample has no length. Or, without a `collate_fn`, it has another length than the one it
            was planned with. Or `lengths` are too small, and the batch that `collate_fn` makes exceeds the budget of
            tokens or cost. To find this, brimful looks at the tensor (B, L) of the length column.
    State: the epoch, and samples handed on; for batches the epoch, the window, and batches of it handed on. A state keeps the
        number of samples and a checksum of the lengths.
    Price: measuring fetches all samples once, in every process. To avoid it, save `data.lengths()` and give it as
        `lengths`. Rows are made in Python: 5 to 20 us a sample, beside the time of `__getitem__`. The first 32 samples
        are fetched twice, because the first time shows their types.

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
            f"from_dataset takes a map-style data set, with __len__ and __getitem__ (got {type(dataset).__name__}). "
            "Use from_iterable for data that can only be iterated over"
        )
    if isinstance(dataset, Dataset):
        raise TypeError("from_dataset takes a data set of torch, but this is one of brimful's. Use it as it is")
    if isinstance(dataset, str | bytes):
        raise TypeError(
            "from_dataset takes a data set of torch, but this is a text. Use from_files to read files by their names"
        )
    if collate_fn is not None:
        function("collate_fn", collate_fn)
        if schema is not None:
            raise ValueError("schema= is for samples that become rows; with a collate_fn they stay as they are")
    given = None if lengths is None or callable(lengths) else checked_lengths(lengths, len(dataset))
    name = type(dataset).__name__ if collate_fn is None else new_name(dataset)
    index = MapStyleIndex(dataset, name, given, lengths if callable(lengths) else None, collate_fn, asked(schema))
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
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> IndexedDataset:
    """The samples of a token store that `Dataset.to_store(path)` or `brimful tokenize` wrote, as an indexed data set.

    A local store is memory-mapped. A store may also be on any file system that fsspec knows (s3://, gs://, https://).
    brimful then reads only the rows that it needs.

    Args:
        path: a folder.
        columns: take only these columns.
        repeat: run the whole chain again and again, each time with the next epoch. Batches and chunks in arrival order
            continue across epochs (`batch(n)` without a window, `concat_chunk`, `pack_chunk`). Windows that sort, pack
            or shuffle do so only after `concat_chunk`. 1,000 epochs in a row without a sample are a DataError.
        shuffle: use another order each epoch. It shuffles runs of 64 rows, and then the rows inside each block of
            131,072.
        seed: the seed of that order.
        storage_options: options for fsspec.
        timeout_seconds: how long a request may take, with all attempts together. Then a TimeoutError names the file.
        cache_dir: a local folder that keeps what a remote store sent, as for `from_files`.
        cache_bytes: the limit of the cache, as for `from_files`.
    Raises:
        ValueError: the store lacks one of the columns.
        FileNotFoundError: there is no store, or it is not finished.
        StateError: another release of brimful wrote it, in a version that this one does not read.
        DataError: its manifest is damaged. Or (when run) a file is missing, has changed, or cannot be read. Only
            `brimful verify` finds a flipped byte inside a file, because it reads all of them.
        TimeoutError: the file system did not answer in time.
    State: the epoch, and samples handed on; for batches the epoch, the window, and batches of it handed on.
    Price: opening reads one file (20 ms for 1,000 files of rows). See `brimful.store.index.StoreIndex`.

    >>> import tempfile
    >>> import brimful as bf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = bf.from_sequence([{"input_ids": [5, 6], "id": 0}, {"input_ids": [7], "id": 1}])
    ...     _ = rows.to_store(f"{folder}/tokens")
    ...     tokens = bf.from_store(f"{folder}/tokens", columns=["input_ids"])
    ...     list(tokens[1]), tokens[1]["input_ids"].tolist(), tokens.lengths().tolist()
    (['input_ids'], [7], [2, 1])
    """
    timeout(timeout_seconds)
    index = StoreIndex.opened(path, columns, storage_options, timeout_seconds, cache_in(cache_dir, cache_bytes))
    return IndexedDataset(FromSequence(index, shuffle, seed), repeat)


def from_iterable(
    iterable: Iterable[Sample | str] | Callable[[], Iterable[Sample | str]],
    *,
    repeat: bool = False,
    schema: Types | None = None,
) -> Dataset:
    """The samples of an iterable that can be iterated over again, and gives the same samples each time.

    A generator function is called without arguments, once for each epoch and once at a resume. A run that begins in a
    later epoch calls it once more, to learn the types. It then takes 32 rows, or up to 1,000 while a column is null or
    absent.

    If the object has a method `set_epoch`, as streams of `datasets` and of torch may have, it is told the number of each
    epoch. A shuffled stream then has another order in each epoch, and it must have the same one whenever it is told
    that number.

    A `datasets.IterableDataset` is read as Arrow tables if it has them, whatever its format. It has them for files, and
    for rows that no Python function made.

    Args:
        iterable: the object, or the function.
        repeat: run the whole chain again and again, each time with the next epoch.
        schema: the type of every column, as for `from_files`. By default, the first samples show them.
    Raises:
        TypeError: it is a data frame or a dict, which iterate over the names of their columns. Or it is a generator or
            another iterator, which can be read only once.
    State: a count, and checksums of the last block. Price: a resume iterates over the rows that it skips, and compares
        the last block of them, at most 256 rows. From tables it makes no rows.

    >>> def generate():
    ...     yield from ({"text": word} for word in ("one", "two"))
    >>> list(from_iterable(generate))
    [{'text': 'one'}, {'text': 'two'}]
    """
    refuse_frames(iterable)
    if gives_tables(iterable):
        return Dataset(FromTables(dataset=iterable, learnt=Learnt(asked(schema))), repeat)
    return Dataset(FromIterable(iterable, learnt=Learnt(asked(schema))), repeat)


@overload
def interleave_datasets(
    datasets: Sequence[IndexedDataset] | Mapping[str, IndexedDataset],
    *,
    weights: Weights | None = None,
    stop: Stop = "first",
    by: Literal["samples"] = "samples",
    length_column: str = "input_ids",
) -> IndexedDataset: ...


@overload
def interleave_datasets(
    datasets: Sequence[Dataset] | Mapping[str, Dataset],
    *,
    weights: Weights | None = None,
    stop: Stop = "first",
    by: Literal["samples", "tokens"] = "samples",
    length_column: str = "input_ids",
) -> Dataset: ...


def interleave_datasets(
    datasets: Sequence[Dataset] | Mapping[str, Dataset],
    *,
    weights: Weights | None = None,
    stop: Stop = "first",
    by: Literal["samples", "tokens"] = "samples",
    length_column: str = "input_ids",
) -> Dataset:
    """Mixes data sets in fixed proportions, evenly spread. By samples, the result is indexed if all of them are. By tokens, it
    runs forward: it has no `ds[i]`, no slices and no shuffle, but several ranks can share it. `stream()` of data that do
    not repeat counts as indexed here: call `stream()` on the mixture to mix them as a stream.

    Samples have the columns of all data sets. If a data set lacks a column, it is null in its samples. To avoid that,
    `select` the same columns of each.

    Args:
        datasets: a list of data sets, all indexed or all streamed, or some of each. Or a dict of them by name: then a
            resume can add some or leave some out, see `iter(allow={"sources"})`.
        weights: a list with one number for each data set, or a dict of them by name. The default is equal weights. A
            `bf.schedule` changes them while the mixture is served. A weight of 0 serves nothing. At a resume they may
            be others, see `iter(allow={"weights"})`.
        stop: what happens at the end of a data set. "first": the mixture ends when the first data set ends. "all": it
            goes on without that data set. "all_repeat": the data set begins again, until each has ended once. If its new
            epoch has no sample, its turn goes to the others, and it begins again at its next turn.
        by: the unit of the weights, "samples" or "tokens". By "tokens", the next sample comes from the source that has
            served the fewest tokens for its weight. An empty sample counts as one token.
        length_column: the list column whose tokens count.
    Raises:
        ValueError: two of them have token ids of different vocabularies in one column.

    >>> import brimful as bf
    >>> one, two = bf.from_sequence(["H"] * 6), bf.from_sequence(["K"] * 4)
    >>> "".join(sample["text"] for sample in bf.interleave_datasets([one, two], weights=[1.5, 1]))
    'HKHKHHKHKH'
    >>> named = bf.interleave_datasets({"one": one, "two": two}, weights={"one": 2, "two": 1})
    >>> "".join(sample["text"] for sample in named)
    'HKHHKHHKH'
    """
    one_of("by", by, "samples", "tokens")
    names = tuple(datasets) if isinstance(datasets, Mapping) else ()
    if odd := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"the names of data sets are strings (got {odd[0]!r})")
    stages = stages_of("interleave_datasets", [*datasets.values()] if isinstance(datasets, Mapping) else datasets)
    shares = _weights_of(weights, names, len(stages))
    check_vocabularies("interleave_datasets", stages)
    scheduled = shares.by if isinstance(shares, Schedule) else None
    if (scheduled, by) == ("samples", "tokens"):
        raise ValueError(
            "the weights are scheduled by samples, and by='tokens' was given; say schedule(..., by='tokens')"
        )
    column = column_name("length_column", length_column) if "tokens" in (by, scheduled) else None
    if any(facts_of(stage).streamed_by for stage in stages):
        return Dataset(Interleave(stages, shares, stop, column, names))
    if column is not None or any(
        facts_of(stage).units is not None for stage in stages
    ):  # whose sizes say where the next one begins
        return ForwardMixture(Interleave(stages, shares, stop, column, names))
    return IndexedDataset(IndexInterleave(cast(tuple[Indexed, ...], stages), shares, stop, names))


def _weights_of(weights: Weights | None, names: tuple[str, ...], count: int) -> tuple[float, ...] | Schedule:
    """The weights of so many data sets, in their order."""
    if weights is None:
        return (1.0,) * count
    if isinstance(weights, Schedule):
        return weights.of(names) if weights.names else weights
    if isinstance(weights, Mapping):
        return of_names(weights, names)
    if not isinstance(weights, Iterable) or isinstance(weights, str | bytes | Set):  # a set has no order
        raise TypeError(f"weights takes a list, a number for each data set (got {weights!r})")
    return tuple(weights)


@overload
def zip_datasets(datasets: Sequence[IndexedDataset]) -> IndexedDataset: ...


@overload
def zip_datasets(datasets: Sequence[Dataset]) -> Dataset: ...


def zip_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """Joins data sets side by side: sample i has the columns of sample i of each. The result is indexed if all of them
    are.

    Data sets that repeat are joined epoch by epoch, and the result repeats. Shuffle the result, not the inputs.

    Raises:
        ValueError: some of them repeat and others do not. Or one is read as several streams, or leaves bad rows out.
        DataError: (when run) two of them have the same column: the error names them. Or one ends before another: the
            error comes after the last complete sample, and has both counts.
    State: the places of all of them. Indexed data have one place.
    Price: one block of each is held.

    >>> import brimful as bf
    >>> source, target = bf.from_sequence(["a", "b"]), bf.from_sequence(["x", "y"])
    >>> list(bf.zip_datasets([source.rename({"text": "source"}), target.rename({"text": "target"})]))
    [{'source': 'a', 'target': 'x'}, {'source': 'b', 'target': 'y'}]
    """
    given = several("zip_datasets", datasets)
    together = all(isinstance(dataset, Dataset) and dataset.repeats for dataset in given)
    stages = stages_of("zip_datasets", given, once=together)
    for number, stage in enumerate(stages):
        if facts_of(stage).leaves_out:
            raise ValueError(
                f"data set {number} leaves out bad rows (on_error='skip'), so its other rows would get wrong partners. Mend the "
                "data. Or let functions return a row of nulls, and filter after zip_datasets"
            )
    endless = [not facts_of(stage).ends() for stage in stages]
    if len(set(endless)) > 1:
        raise ValueError(
            f"data set {endless.index(True)} repeats without end and data set {endless.index(False)} does not. Call "
            "take(n) on the first, or repeat all of them"
        )
    streamed = any(facts_of(stage).streamed_by for stage in stages)
    return dataset_of(Zip(stages) if streamed else IndexZip(cast(tuple[Indexed, ...], stages)), together)


@overload
def concat_datasets(datasets: Sequence[IndexedDataset]) -> IndexedDataset: ...


@overload
def concat_datasets(datasets: Sequence[Dataset]) -> Dataset: ...


def concat_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """All samples of the first data set, then of the second, and so on. `a + b` does this for two. The result is
    indexed if all of them are.

    If a data set lacks a column, it is null in its samples, as with `interleave_datasets`.

    Raises:
        ValueError: two of them have token ids of different vocabularies in one column.

    >>> import brimful as bf
    >>> [sample["text"] for sample in bf.from_sequence(["a"]) + bf.from_sequence(["b"])]
    ['a', 'b']
    """
    return concatenated(datasets)
