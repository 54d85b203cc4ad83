"""Shards of samples on any file system: some read at once, a row of each in turn, the next ones opened ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import OnError, add_counts, apart
from brimful.core.facts import Facts, following, rng_slot
from brimful.core.header import compared
from brimful.core.run import Run
from brimful.core.stage import BLOCK_BYTES, BLOCK_ROWS, END, Stage, State, not_in_state, share
from brimful.core.threads import Workers
from brimful.plan import random
from brimful.plan.errors import DataError, StateError, check_bool, check_count, counted, logger, of_setting, one_of
from brimful.plan.once import once
from brimful.sources.columnar import ColumnarFormat, LacksError, widened
from brimful.sources.compressed import endings
from brimful.sources.csv import Delimited
from brimful.sources.format import Format, Position, ReadRequest, ShardReader
from brimful.sources.formats import FORMATS, format_of
from brimful.sources.function_format import FunctionFormat, ShardFunction
from brimful.sources.rotation import OpenShard, Rotation, arrived
from brimful.sources.urls import Shard, Shards
from brimful.tables.blocks import Block, rows_at
from brimful.tables.ragged import EMPTY
from brimful.tables.schema import infer, settled, type_name

MAX_THREADS: Final = 32
"""That read shards at once: of one stream, or of several together."""
SHARDS_ASKED: Final = 16
"""For their types, where they say these themselves."""
LEAST_THREADS: Final = 2
"""Of each of several streams, however many there are: one that opens a shard does not hold up the others."""


_MIXED: Final = "from_files takes a row of each of n_active_shards={:,} open files in turn. Give n_active_shards=1"


@dataclass(frozen=True)
class FromFiles(Stage[Block]):
    """The rows of many shards; in one of several streams, those of every so many of the epoch's order of shards.

    State: {"epoch", "begun": shards so far, "shards": [{"shard": its turn, and its position by the names of the format} of each
    open one, in turn]}: about 40 bytes an open shard. Of lines a position is "byte" and "line", and a resume reads on from the
    byte (a compressed shard is decompressed up to there, from its beginning or from the place before it that `skip` finds).
    """

    urls: Shards
    format: str | ShardFunction = "auto"
    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = not_in_state(None)
    shuffle_shards: bool = False
    n_active_shards: int = 10
    n_standby_shards: int = not_in_state(2)
    seed: int = 42
    on_error: OnError = "raise"
    streams: int | None = None
    number: int | None = not_in_state(None)
    inferred: bool = not_in_state(False)  # the schema, by the description that this is a part of
    csv_options: dict[str, Any] | None = None  # as `checked_options` has them

    def __post_init__(self) -> None:
        if self.streams is not None:
            check_count(self, "streams", 1, "stream")
        check_count(self, "n_active_shards", 1, "shard")
        check_count(self, "n_standby_shards", 0, "shards")
        check_count(self, "seed", None)
        check_bool("shuffle_shards", self.shuffle_shards)
        one_of("on_error", self.on_error, *get_args(OnError))
        if isinstance(self.format, str) and self.format not in ("auto", *FORMATS):
            raise of_setting(
                "format",
                ValueError(
                    f"format must be one of {', '.join(('auto', *FORMATS))}, or a function of the open file (got {self.format!r})"
                ),
            )
        for name in self.columns or ():
            if self.schema is not None and name not in self.schema.names:
                raise ValueError(f"columns= names {name!r}, but schema= has {', '.join(self.schema.names)}")
        for url in self.urls.urls:
            if form := self._named(os.fspath(url)):
                self._check(form, os.fspath(url))

    def facts(self, *inputs: Facts) -> Facts:
        return following(
            self,
            schema=lambda: vars(self).get("_schema", self.schema),
            streams=lambda: self.streams,
            order_by="",
            draws=int(self.shuffle_shards),
            mixed_by="" if self.n_active_shards == 1 or self.urls.is_one_file else _MIXED.format(self.n_active_shards),
            newest=lambda: max(((shard.written, shard.url) for shard in self.urls.listed), default=(0.0, "")),
            first_shard=lambda: next((shard.url for shard in self.urls.listed), ""),
        )

    def settings(self) -> dict[str, Any]:
        """Options of CSV only where there are any, as states had none of them once."""
        return compared(self, *["csv_options"] * (not self.csv_options))

    def start(self, epoch: int) -> State:
        return {"epoch": epoch, "begun": 0, "shards": []}

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        _ = self._schema  # before threads need it
        threads = max(LEAST_THREADS, MAX_THREADS // (self.streams or 1))
        with Workers(min(self.n_active_shards + self.n_standby_shards, threads), "read") as workers:

            def open_shard(turn: int, shard: Shard, at: Position) -> OpenShard:
                read = partial(self.reader, shard, self.urls.name(shard), at)
                return OpenShard(turn, read, at, workers, shard.url, self.urls.timeout_seconds, self.unit(shard))

            yield from self.rotated(at, open_shard, lambda: self.n_standby_shards)

    def rotated(
        self, at: State, open_shard: Callable[[int, Shard, Position], OpenShard], num_standby: Callable[[], int]
    ) -> Generator[tuple[Block, State], None, None]:
        """The rows that follow a state, of shards that are opened by (turn, shard, position in it), so many ahead."""
        epoch, begun = at["epoch"], at["begun"]
        order = self._order(epoch)
        if begun > len(order) or any(one["shard"] >= len(order) for one in at["shards"]):
            raise StateError(
                f"this state was saved after {begun:,} shards, but there are {len(order):,}: shards were taken away. A state "
                "counts shards in the order of the list, so allow={'urls'} is only for shards that were moved, or added at the "
                "end. Put them back, or begin anew"
            )

        def opened(turn: int, position: Position | None) -> OpenShard:
            shard = self.urls.listed[order[turn]]
            return open_shard(turn, shard, self._format(shard).start if position is None else position)

        def places(turn: int) -> tuple[str, ...]:
            return self._format(self.urls.listed[order[turn]]).places

        positions = [_position_in(one, places(one["shard"])) for one in at["shards"]]
        empty = True
        rotation = Rotation(opened, len(order), begun, positions, self.n_active_shards, num_standby)
        with closing(rotation):
            while ready := rotation.fill(*self._share(len(order) - begun + len(positions), begun, positions)):
                empty = False
                block = rotation.take(ready)
                begun, positions = rotation.begun, rotation.positions
                shards = [{"shard": turn, **dict(zip(places(turn), place))} for turn, *place in positions]
                state = {"epoch": epoch, "begun": begun, "shards": shards}
                more, left_out = apart(self._more, rotation)
                if not more:  # nothing will be asked for after the last block
                    add_counts(left_out)
                yield block, state if more else END
                if more:
                    add_counts(left_out)
        if empty:
            if self.number is None and at == self.start(0):
                _ = self._said_empty
            yield EMPTY, END

    @once
    def _said_empty(self) -> bool:
        count = len(self.urls.listed)
        logger.warning(
            "from_files: there is no row in %s", self.urls.listed[0].url if count == 1 else f"{count:,} files"
        )
        return True

    def _share(self, shards: int, begun: int, positions: list[list[int]]) -> tuple[int, int]:
        """Rows and bytes that each open shard gives to a block, where so many are left: where a block ends depends on the state
        before it alone. Blocks are small before the first shard has ended, as a shard may be read by a user's function."""
        active = max(1, min(self.n_active_shards, shards))
        read = sum(at[-1] for at in positions) if begun == len(positions) else BLOCK_ROWS
        return max(1, min(2 * rows_at(read), BLOCK_ROWS) // active), BLOCK_BYTES // active

    def _more(self, rotation: Rotation) -> bool:
        """Whether a row follows. An error that follows is something that follows: the next turn raises it."""
        try:
            return rotation.fill(1, 1) > 0
        except Exception:
            return True

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order = np.arange(len(self.urls.listed))
        if self.shuffle_shards:
            order = random.permutation(len(order), random.key(self.seed, rng_slot(self), epoch))
        return order if self.number is None else order[self.number :: self.streams]

    def for_stream(self, number: int, count: int) -> FromFiles:
        """Every `count`-th shard of each epoch's order; the schema is that of the first shard of all."""
        if count > len(self.urls.listed):
            raise ValueError(
                f"{counted(len(self.urls.listed), 'shard')} cannot be read as streams={count:,}: each needs one at least. Take "
                f"fewer streams, divide the data into {count:,} files or more, or write a token store with to_store(path)"
            )
        return replace(
            self,
            number=number,
            schema=self._schema,
            inferred=self._of_first_rows,
            n_active_shards=min(self.n_active_shards, share(len(self.urls.listed), number, count)),  # longer blocks
        )

    def elsewhere(self) -> FromFiles:
        """The same for another process that is told which shards to read: the settings and the schema, not the list of all."""
        urls = replace(self.urls, urls=())
        return replace(self, urls=urls, schema=self._schema, inferred=self._of_first_rows)

    def reader(self, shard: Shard, name: str, at: Position) -> ShardReader:
        """The rows of a shard from a position on; `name`: what messages call it."""
        form = self._format(shard)
        closed = self.columns is None
        request = ReadRequest(name, form.unit, at, self._schema, closed, self.on_error, self._of_first_rows)
        resumed = at[0] > 0 and form.places[0] == "byte"
        return form.open(self.urls.open(shard, form.compressed, resumed), request)

    def unit(self, shard: Shard) -> str:
        """The word for a record of a shard in messages."""
        return self._format(shard).unit

    def _named(self, url: str) -> Format | None:
        """The format of a shard, or of the shards of a glob."""
        if callable(self.format):
            form: Format | None = FunctionFormat(self.format)
        else:
            form = format_of(url) if self.format == "auto" else FORMATS[self.format]
        if form is None or self.csv_options is None:
            return form
        if not isinstance(form, Delimited):
            raise ValueError(f"csv_options= applies to the formats csv and tsv, but {url} is read as {form.name}")
        return form.under(self.csv_options)

    def _format(self, shard: Shard) -> Format:
        form = self._named(shard.url)
        if form is None:
            raise of_setting(
                "format",
                ValueError(
                    f"the name of {shard.url} does not show its format. Give format= "
                    f"({', '.join(FORMATS)}, or a function of the open file)"
                ),
            )
        return form

    def _check(self, form: Format, url: str) -> None:
        form.check(self.columns, self.schema, url)
        if not form.compressed and (self.urls.compression or endings(url)[1] or "none") != "none":
            raise ValueError(
                f"{url}: {form.name} files are not compressed as a whole; decompress it, or give another format="
            )

    @property
    def _of_first_rows(self) -> bool:
        return self.inferred or self.schema is None

    @once
    def _schema(self) -> pa.Schema:
        """The columns of all shards. One of no known format is refused before any is opened."""
        formats: list[tuple[Shard, Format]] = []
        for shard in self.urls.listed:
            formats.append((shard, self._format(shard)))
            self._check(formats[-1][1], shard.url)
        schema = self.schema if self.schema is not None else self._inferred(formats)
        schema = schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])
        for shard, form in formats:
            own = form.schema
            if own is not None and not own.equals(schema):
                raise DataError(
                    f"shard {self.urls.name(shard)} has the columns {_words(own)}, but the others have {_words(schema)}. Read "
                    "them separately and join them (concat_datasets, interleave_datasets), or leave columns out with columns="
                )
        return schema

    def _inferred(self, formats: list[tuple[Shard, Format]]) -> pa.Schema:
        """The schema of the first 1,000 rows of the first shard that has rows, whatever the epoch or the place of a resume.

        A shard that says its types itself is not alone: its types are widened to those of the 15 shards that follow it in the
        list, which are asked at once, so that it takes no longer. It is not all shards, which may be 10,000 and far away. So a
        later one may still have a wider type; then a value of it that the narrower type lacks is an error, never another value.
        """
        asked = [(shard, form) for shard, form in formats if form.schema is None]
        with Workers(SHARDS_ASKED, "schema") as workers:
            while asked:
                alone = next(
                    (n for n, (_, form) in enumerate(asked) if not isinstance(form, ColumnarFormat)), len(asked)
                )
                some = asked[: min(max(1, alone), SHARDS_ASKED)]
                asked = asked[len(some) :]
                schema: pa.Schema | None = None
                for found, (shard, form) in [(workers.submit(self._schema_of, *one), one) for one in some]:
                    try:
                        own = arrived(found, shard.url, self.urls.timeout_seconds, f"{form.unit} 1")
                    except LacksError as error:  # in others than the first, such a column is null
                        if schema is None:
                            raise
                        own = error.there
                    if own is not None:
                        schema = own if schema is None else widened(schema, own)
                if schema is not None:
                    return settled(schema)
        own = (form.schema for _, form in formats if form.schema is not None)
        return next(own, infer([], self.columns, "no shard"))

    def _schema_of(self, shard: Shard, form: Format) -> pa.Schema | None:
        with closing(self.urls.open(shard, form.compressed)) as file:
            return form.infer(file, self.columns, f"shard {self.urls.name(shard)}", self.on_error)


def _position_in(one: dict[str, int], places: tuple[str, ...]) -> list[int]:
    """The turn of a shard in a state, and the position in it.

    Raises:
        StateError: it is one of another format.
    """
    if one.keys() != {"shard", *places}:
        raise StateError(
            f"this state was saved in a shard with the position {', '.join(one)}, but shard {one['shard']:,} has a format with "
            f"{', '.join(places)}: the shard is another one"
        )
    return [one["shard"], *(one[name] for name in places)]


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({type_name(field.type)})" for field in schema) or "none"
