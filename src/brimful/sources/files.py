"""Shards of samples on any file system: some read at once, a row of each in turn, the next ones opened ahead."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import BinaryIO, Final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful import random
from brimful.background import Workers
from brimful.errors import DataError, OnError, StateError, positive, settle
from brimful.ragged import EMPTY
from brimful.rows import Block, Sample
from brimful.sources.called import Called, ShardFunction, columnar
from brimful.sources.jsonl import JsonLines, decode
from brimful.sources.lines import LineReader, ParsedLines
from brimful.sources.reader import Position, Reader
from brimful.sources.rotation import Rotation
from brimful.sources.schema import SAMPLE_ROWS, infer
from brimful.sources.shard import OpenShard, arrived
from brimful.sources.text import TextLines
from brimful.sources.urls import COMPRESSIONS, Shard, Shards
from brimful.stream import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, place, runtime, share

FORMATS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "text"}
_FORMAT_NAMES: Final = tuple(sorted(set(FORMATS.values())))
MAX_THREADS: Final = 32


@dataclass(frozen=True)
class FromFiles(Stage[Block]):
    """The rows of many shards; in one of several streams, those of every so many of the epoch's order of shards.

    State: [epoch, shards begun, [[shard, byte, line] of each open shard, in turn]]: about 30 bytes an open shard. A
    resume reads each open shard from its byte on (a compressed one is decompressed up to there).
    """

    urls: Shards
    format: str | ShardFunction = "auto"
    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = runtime(None)
    shuffle_shards: bool = False
    n_active_shards: int = 10
    n_standby_shards: int = runtime(2)
    seed: int = 42
    on_error: OnError = "raise"
    timeout_seconds: float = runtime(60.0)
    streams: int | None = None
    stream: int | None = runtime(None)

    def __post_init__(self) -> None:
        if self.streams is not None:
            settle(self, "streams", 1, "stream")
        settle(self, "n_active_shards", 1, "shard")
        settle(self, "n_standby_shards", 0, "shards")
        settle(self, "seed", None)
        positive("timeout_seconds", self.timeout_seconds)
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))} (got {self.on_error!r})")
        known = ("auto", *_FORMAT_NAMES)
        if isinstance(self.format, str) and self.format not in known:
            raise ValueError(
                f"format must be one of {', '.join(known)}, or a function of the open file (got {self.format!r})"
            )
        if self.schema is not None:
            for name in self.columns or ():
                if name not in self.schema.names:
                    raise ValueError(f"columns= names {name!r}, but schema= has {', '.join(self.schema.names)}")
            if not callable(self.format):
                JsonLines(self.schema, closed=True)  # has types that JSON can give, or says so

    def start(self, epoch: int) -> State:
        return [epoch, 0, []]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, begun, positions = at
        order = self._order(epoch)
        if begun > len(order):
            raise StateError(f"this state was saved after {begun:,} shards, but there are {len(order):,}")
        if not self._all_text:
            _ = self._schema  # before threads need it
        rounds = max(1, BLOCK_ROWS // self.n_active_shards)
        size = BLOCK_BYTES // self.n_active_shards
        empty = True
        with Workers(min(self.n_active_shards + self.n_standby_shards, MAX_THREADS), "read") as workers:

            def open_shard(turn: int, position: Position) -> OpenShard:
                shard = self.urls.listed[order[turn]]
                read = partial(self._reader, shard, position)
                return OpenShard(turn, read, position, workers, shard.url, self.timeout_seconds)

            rotation = Rotation(open_shard, len(order), begun, positions, self.n_active_shards, self.n_standby_shards)
            with closing(rotation):
                while ready := rotation.fill(rounds, size):
                    empty = False
                    block = rotation.take(ready)
                    state = [epoch, rotation.begun, rotation.positions]
                    yield block, state if self._more(rotation) else END
        if empty:
            yield EMPTY, END

    def _more(self, rotation: Rotation) -> bool:
        """Whether a row follows. An error that follows is something that follows: the next turn raises it."""
        try:
            return rotation.fill(1, 1) > 0
        except Exception:
            return True

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(len(self.urls.listed))
        if self.shuffle_shards:
            order = random.permutation(len(order), random.key(self.seed, place(self), epoch))
        return order if self.stream is None else order[self.stream :: self.streams]

    def dealt(self, stream: int, num_streams: int) -> FromFiles:
        """Every `num_streams`-th shard of each epoch's order; the schema is that of the first shard of all."""
        if num_streams > len(self.urls.listed):
            raise ValueError(
                f"{len(self.urls.listed):,} shards cannot be dealt to streams={num_streams:,}: each needs one at least"
            )
        return replace(
            self,
            stream=stream,
            schema=None if self._all_text else self._schema,
            n_active_shards=min(
                self.n_active_shards, share(len(self.urls.listed), stream, num_streams)
            ),  # longer blocks
        )

    def _reader(self, shard: Shard, at: Position) -> Reader:
        file, compressed = self.urls.open(shard)
        name = self.urls.name(shard)
        if callable(self.format):
            return Called(self.format, file, self._schema, self.columns is None, name, at, self.on_error)
        parser = TextLines() if self._format(shard) == "text" else JsonLines(self._schema, closed=self.columns is None)
        return ParsedLines(file, compressed, parser, name, at, self.on_error)

    def _format(self, shard: Shard) -> str:
        if callable(self.format):
            return "function"
        form = self.format
        if form == "auto":
            stem, extension = os.path.splitext(shard.url)
            if extension in COMPRESSIONS:
                extension = os.path.splitext(stem)[1]
            if extension not in FORMATS:
                raise ValueError(
                    f"the format of {shard.url} cannot be told from its name; give format= "
                    f"({', '.join(_FORMAT_NAMES)}, or a function of the open file)"
                )
            form = FORMATS[extension]
        if form == "text" and (self.schema is not None or self.columns not in (None, ("text",))):
            raise ValueError(f"columns= and schema= do not apply to lines of text, the one column 'text' ({shard.url})")
        return form

    @cached_property
    def _all_text(self) -> bool:
        return {self._format(shard) for shard in self.urls.listed} == {"text"}

    @cached_property
    def _schema(self) -> pa.Schema:
        schema = self.schema if self.schema is not None else self._inferred()
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    def _inferred(self) -> pa.Schema:
        """The schema of the first 1,000 rows of the first shard that has rows, whatever the epoch or the place of a resume."""
        with Workers(1, "schema") as workers:
            for shard in self.urls.listed:
                if self._format(shard) != "text":
                    rows = arrived(workers.submit(self._first_rows, shard), shard.url, self.timeout_seconds)
                    if rows:
                        return infer(rows, self.columns, f"shard {self.urls.name(shard)}")
        return infer([], self.columns, "no shard")

    def _first_rows(self, shard: Shard) -> list[Sample]:
        file, compressed = self.urls.open(shard)
        with closing(file):
            return list(islice(self._good_rows(file, compressed), SAMPLE_ROWS))

    def _good_rows(self, file: BinaryIO, compressed: bool) -> Iterator[Sample]:
        """The rows of a shard, less what is bad: the read that comes to it says so."""
        if callable(self.format):
            with suppress(Exception):
                for row in self.format(file):
                    with suppress(TypeError):
                        yield columnar(row)
            return
        reader = LineReader(file, compressed, 0)
        with suppress(DataError):
            while (lines := reader.read()) is not None:
                for line in lines.split():
                    if line.strip():
                        with suppress(DataError):
                            yield decode(line)
