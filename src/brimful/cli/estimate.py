"""An estimate of what tokenizing will take: the first rows are made for once, and the sizes of the shards say how many follow."""

from __future__ import annotations

import io
from contextlib import closing, suppress
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from brimful.blocks.blocks import Block, visible
from brimful.blocks.ragged import concat, is_ragged
from brimful.console import thousands
from brimful.core.progress import Report
from brimful.core.stage import END, Stage, running
from brimful.dataset import Dataset
from brimful.rows.take import Take
from brimful.sources.bytes import opened
from brimful.sources.compressed import COMPRESSIONS, Decompressed
from brimful.sources.files import FromFiles
from brimful.sources.formats import FORMATS, format_of
from brimful.sources.urls import Shard, Shards
from brimful.store.types import conform, stored_schema, vocabularies

MOST_ROWS: Final = 20_000
MOST_BYTES: Final = 32 << 20
"""Of text that is looked at, uncompressed."""
MOST_SECONDS: Final = 5.0
"""For tokens; the first block is made in any case."""
RATIO_BYTES: Final = 4 << 20
"""Of a compressed shard, read to see how much it grows."""


class Estimate(NamedTuple):
    """What a store will hold and take.

    Args:
        rows, tokens, bytes, seconds: of the whole; bytes are those of the store.
        tokens_per_second: of those that were made.
        sampled: the rows that were looked at.
        all_read: whether these are all: then rows and tokens are exact where they were all tokenized.
        source_bytes: of all shards.
    """

    rows: int
    tokens: int
    bytes: int
    seconds: float
    tokens_per_second: float
    sampled: int
    all_read: bool
    source_bytes: int


def estimate_of(files: Dataset, stage: Stage[Block], update: Report) -> Estimate:
    """Tokenizes the first rows and scales them up.

    Args:
        files: of `from_files`.
        stage: the chain over them, up to the columns of the store.
        update: is told of the rows that were tokenized.
    Raises:
        ValueError: the size of a shard is not known; or there are no rows.
    Price: `MOST_ROWS` rows or `MOST_BYTES` of text are read, and tokenized for `MOST_SECONDS` at most.
    """
    source = files.stage
    assert isinstance(source, FromFiles)
    shards = source.urls
    for shard in shards.listed:
        if not shard.size:
            _refuse_unknown(shards, shard)
    total = sum(shard.size for shard in shards.listed)
    sampled, rows_per_byte = _rows(source)
    if not sampled:
        raise ValueError("there are no rows in these files: nothing to estimate")
    made = _tokens(Take(stage, sampled), vocabularies(stage), update)
    rows = sampled if rows_per_byte is None else max(sampled, round(total * rows_per_byte))
    scale = rows / made.rows
    return Estimate(
        rows,
        round(made.tokens * scale),
        round(made.bytes * scale),
        made.seconds * scale,
        made.tokens / made.seconds,
        made.rows,
        rows_per_byte is None and made.rows == sampled,
        total,
    )


def _refuse_unknown(shards: Shards, shard: Shard) -> None:
    """Tells a shard of no bytes from one whose server does not say how many it has."""
    with closing(opened(shard.fs, shard.path, shard.url, shards.timeout_seconds)) as file:
        if file.read(1):
            raise ValueError(
                f"the size of {shard.url} is not known, so that nothing can be estimated: leave out --dry-run"
            )


def _rows(source: FromFiles) -> tuple[int, float | None]:
    """How many rows to look at, and how many there are in a byte of the shards; None where those rows are all."""
    rows, state, size = 0, source.start(0), 0
    with running(source, state) as items:
        for block, state in items:
            rows += block.num_rows
            size += visible(block).nbytes
            if state == END or rows >= MOST_ROWS or size >= MOST_BYTES:
                break
    if state == END:
        return rows, None
    _, begun, positions = state
    listed = source.urls.listed
    at = {number: tuple(position) for number, *position in positions}
    form = format_of(listed[0].url) if source.format == "auto" else FORMATS[str(source.format)]
    if form is not None and not form.compressed:
        largest = max(listed[:begun], key=lambda shard: shard.size)
        return rows, _counted(source.urls, largest) / largest.size
    grown: dict[str, float] = {}
    done = 0.0
    for number, shard in enumerate(listed[:begun]):
        kind = shard.path[shard.path.rfind(".") :]
        if number in at and kind in COMPRESSIONS and kind not in grown:
            grown[kind] = _growth(source.urls, shard, COMPRESSIONS[kind])
        done += min(shard.size, at[number][0] / grown.get(kind, 1.0)) if number in at else shard.size
    return rows, rows / max(1.0, done)


def _growth(shards: Shards, shard: Shard, kind: str) -> float:
    """Bytes of a compressed shard for each of those it is stored in, by its beginning."""
    file = opened(shard.fs, shard.path, shard.url, shards.timeout_seconds)
    with closing(Decompressed(file, kind)) as content:
        size = 0
        while file.tell() < RATIO_BYTES and (data := content.read(1 << 20)):
            size += len(data)
        return size / max(1, file.tell())


def _counted(shards: Shards, shard: Shard) -> int:
    """The rows of a shard of columns. Price: parquet: its footer; Arrow: all of it, once."""
    with closing(shards.open(shard)) as file:
        source = io.BufferedReader(file)
        with suppress(pa.ArrowInvalid):
            return int(pq.ParquetFile(source).metadata.num_rows)
        with suppress(pa.ArrowInvalid):
            source.seek(0)
            batches = pa.ipc.open_file(source)
            return sum(batches.get_batch(number).num_rows for number in range(batches.num_record_batches))
        source.seek(0)
        return sum(batch.num_rows for batch in pa.ipc.open_stream(source))


class _Tokenized(NamedTuple):
    rows: int
    tokens: int
    bytes: int
    seconds: float


def _tokens(stage: Stage[Block], num_ids: dict[str, int], update: Report) -> _Tokenized:
    """The rows, tokens and bytes of what could be made in time, and the seconds at the speed after the first block."""
    blocks: list[Block] = []
    ended: list[float] = []
    began = perf_counter()
    rows = 0
    with running(stage, stage.start(0)) as items:
        for block, _ in items:
            if not block.num_rows:
                continue
            blocks.append(block)
            ended.append(perf_counter())
            rows += block.num_rows
            status = f"{thousands(rows)} rows looked at"
            update(block.num_rows, partial(str, status))
            if ended[-1] - began > MOST_SECONDS:
                break
    schema = stored_schema(visible(concat(blocks)), num_ids)
    stored = [conform(block, schema, num_ids) for block in blocks]
    tokens = [len(one.column("input_ids").flatten()) for one in stored]
    lists = len([field for field in schema if is_ragged(field.type)])
    size = sum(one.nbytes for one in stored) + 4 * rows * lists
    seconds = ended[-1] - began
    later = sum(tokens) - tokens[0]
    if len(ended) > 2 and later:  # loading a tokenizer and opening files take their time once
        seconds = (ended[-1] - ended[0]) * sum(tokens) / later
    return _Tokenized(rows, sum(tokens), size, max(seconds, 1e-9))
