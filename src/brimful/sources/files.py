"""Shards of samples on any file system: some read at once, a row of each in turn, the next ones opened ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, Final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful import random
from brimful.background import Workers
from brimful.errors import DataError, require
from brimful.ragged import EMPTY
from brimful.rows import Block
from brimful.sources.jsonl import SAMPLE_ROWS, JsonLines, decode, infer
from brimful.sources.lines import LineReader
from brimful.sources.rotation import Rotation
from brimful.sources.shard import Called, OnError, OpenShard, Position, Reader, open_lines, text_parser
from brimful.sources.urls import COMPRESSIONS, Shard, Shards
from brimful.stream import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, place, runtime

FORMATS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "text"}
MAX_THREADS: Final = 32

ShardFunction = Callable[[BinaryIO], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class FromFiles(Stage[Block]):
    """The rows of many shards.

    State: [epoch, shards begun, [[shard, byte, line] of each open shard, in turn]]: about 30 bytes an open shard. A
    resume reads each open shard from its byte on (a compressed one is decompressed up to there).
    """

    urls: Shards
    format: str | ShardFunction
    columns: tuple[str, ...] | None
    schema: pa.Schema | None = runtime(None)
    shuffle_shards: bool = False
    n_active_shards: int = 10
    n_standby_shards: int = runtime(2)
    seed: int = 42
    on_error: OnError = "raise"
    timeout_seconds: float = runtime(60.0)

    def __post_init__(self) -> None:
        require("n_active_shards", self.n_active_shards, 1, "shard")
        require("n_standby_shards", self.n_standby_shards, 0, "shard")
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))} (got {self.on_error!r})")
        known = ("auto", *sorted(set(FORMATS.values())))
        if isinstance(self.format, str) and self.format not in known:
            raise ValueError(
                f"format must be one of {', '.join(known)}, or a function of the open file (got {self.format!r})"
            )

    def start(self, epoch: int) -> State:
        return [epoch, 0, []]

    def items(self, at: State) -> Generator[tuple[Block, State], None, None]:
        epoch, begun, positions = at
        order = self._order(epoch)
        rounds = max(1, BLOCK_ROWS // self.n_active_shards)
        size = BLOCK_BYTES // self.n_active_shards
        empty = True
        with Workers(min(self.n_active_shards + self.n_standby_shards, MAX_THREADS), "read") as workers:

            def open_shard(number: int, position: Position) -> OpenShard:
                shard = self.urls.listed[order[number]]
                read = lambda: self._reader(shard, position)  # noqa: E731
                return OpenShard(number, read, position, workers, shard.url, self.timeout_seconds)

            rotation = Rotation(open_shard, len(order), begun, positions, self.n_active_shards, self.n_standby_shards)
            try:
                while ready := rotation.fill(rounds, size):
                    empty = False
                    block = rotation.take(ready)
                    state = [epoch, rotation.begun, rotation.positions]
                    yield block, state if self._more(rotation) else END
            finally:
                rotation.close()
        if empty:
            yield EMPTY, END

    def _more(self, rotation: Rotation) -> bool:
        """Whether a row follows. An error that follows is something that follows: the next turn raises it."""
        try:
            return rotation.fill(1, 1) > 0
        except Exception:
            return True

    def _order(self, epoch: int) -> NDArray[np.int64]:
        count = len(self.urls.listed)
        if not self.shuffle_shards:
            return np.arange(count)
        return random.permutation(count, random.key(self.seed, place(self), epoch))

    def _reader(self, shard: Shard, at: Position) -> Reader:
        if callable(self.format):
            file, _ = self.urls.open(shard)
            return Called(self.format(file), file, os.path.basename(shard.url), at)
        parser = text_parser() if self._format(shard) == "text" else self._json
        return open_lines(self.urls, shard, at, parser, self.on_error)

    def _format(self, shard: Shard) -> str:
        if isinstance(self.format, str) and self.format != "auto":
            return self.format
        stem, extension = os.path.splitext(shard.url)
        if extension in COMPRESSIONS:
            extension = os.path.splitext(stem)[1]
        if extension not in FORMATS:
            raise ValueError(
                f"the format of {shard.url} cannot be told from its name; give format= "
                f"({', '.join(sorted(set(FORMATS.values())))}, or a function of the open file)"
            )
        return FORMATS[extension]

    @cached_property
    def _json(self) -> JsonLines:
        schema = self.schema if self.schema is not None else self._inferred()
        if self.columns is not None:
            schema = pa.schema([schema.field(name) for name in self.columns])
        return JsonLines(schema, self.columns)

    def _inferred(self) -> pa.Schema:
        """The schema of the first 1,000 rows in list order, whatever the epoch or the place of a resume."""
        rows: list[dict[str, Any]] = []
        places: list[str] = []
        for shard in self.urls.listed:
            file, compressed = self.urls.open(shard)
            reader = LineReader(file, compressed, 0)
            line = 0
            try:
                while len(rows) < SAMPLE_ROWS and (lines := reader.read()) is not None:
                    for text in lines.split():
                        line += 1
                        if text.strip() and len(rows) < SAMPLE_ROWS:
                            try:
                                rows.append(decode(text))
                            except DataError:  # the read that comes to this line reports it
                                continue
                            places.append(f"shard {os.path.basename(shard.url)}, line {line:,}")
            except (OSError, EOFError):
                pass  # likewise
            finally:
                reader.close()
            if rows:
                break
        return infer(rows, places, self.columns)
