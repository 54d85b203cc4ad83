"""JSON lines to rows: Arrow parses whole buffers; one that it refuses is halved until the bad lines stand alone."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format, Parsed, ReadRequest, RecordParser, ShardReader, good_rows
from brimful.sources.forward import ForwardReader, Records, lines_of, split
from brimful.tables.blocks import Block, Sample
from brimful.tables.plain import any_part
from brimful.tables.schema import SAMPLE_ROWS, conform_rows, has_floats, infer, may_be_rounded, misfit, unknown_key

_SPACE: Final = b" \t\r\n"
_LONG: Final = re.compile(rb"\d{8}")
"""Shorter integers are exact in all floats that JSON gives."""


@final
class Jsonl(Format):
    """Lines of JSON: each an object, or blank."""

    name = "jsonl"
    extensions: tuple[str, ...] = (".jsonl", ".ndjson")
    unit = "line"

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema is not None:
            JsonLines(schema, closed=True)  # has types that JSON can give, or says so

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        rows = good_rows(_rows(file), SAMPLE_ROWS, on_error)
        return infer(rows, columns, where) if rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        rows = JsonLines(request.schema, request.closed, request.on_error)
        return ForwardReader(file, request, lines_of(file, request.at[0]), rows.parse)


def _rows(file: Bytes) -> Iterator[Sample | None]:
    with suppress(DataError):
        for lines in lines_of(file, 0):
            for line in split(lines.data, lines.ends):
                if line.strip():
                    try:
                        yield decode(line)
                    except DataError:
                        yield None


@dataclass(frozen=True)
class JsonLines(RecordParser[bytes]):
    """Parses lines to one schema; `closed`: a key that is not in it is an error, else it is left out.

    It is Arrow that reads each line in any case.
    """

    schema: pa.Schema
    closed: bool
    on_error: OnError = "skip"

    def __post_init__(self) -> None:
        try:
            with suppress(pa.ArrowInvalid):  # a column that must not be null
                self._read(b"{}")
        except NotImplementedError as error:
            raise ValueError(f"schema= has a type that JSON lines cannot give: {error}") from error

    def parse(self, lines: Records[bytes]) -> Parsed:
        filled = _objects(lines)
        if filled is not None and not self._may_lose_keys:
            with suppress(*self.refused):
                block = self._block(lines.data, len(filled))
                if not any(map(may_be_rounded, block.columns)):
                    return Parsed(block, filled, [])
        every = enumerate(split(lines.data, lines.ends))
        texts = {number: text for number, line in every if (text := line.strip(_SPACE))}
        return self.rows(texts)

    def block(self, records: Sequence[bytes]) -> Block:
        if not all(text.startswith(b"{") and text.endswith(b"}") for text in records):
            raise ValueError("a line is no object")
        return self._block(b"\n".join(records), len(records))

    def _block(self, data: bytes, rows: int) -> Block:
        """The rows of lines that each begin with { and end with }.

        Inside of an object no { follows a }, so that each line ends between two objects; as many objects as lines are then
        one a line. (Of a line `null`, to Arrow a row of nulls, or a crash, nothing comes here.)

        Raises:
            Exception: one of `refused`, where they are not one object each.
        """
        if not rows:
            return conform_rows([], self.schema)
        table = self._read(data)
        if table.num_rows != rows:
            raise ValueError("a line holds several objects")
        return table.combine_chunks().to_batches()[0]

    def _read(self, data: bytes) -> pa.Table:
        read = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        unknown = "error" if self.closed else "ignore"
        parse = pa.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior=unknown)
        # Arrow's own pool keeps what each thread has used: of 64 streams, 1 GB more. No slower by the system's.
        pool = pa.system_memory_pool()
        table = pa.json.read_json(io.BytesIO(data), read_options=read, parse_options=parse, memory_pool=pool)
        table.validate(full=True)  # UTF-8
        return table

    def reason(self, record: bytes, error: Exception | None = None) -> str:
        try:
            if found := misfit(decode(record), self.schema, "raise" if self.closed else "drop"):
                return found.told()
            self._read(record)
        except self.refused as refused:
            return str(refused).removesuffix(" in row 0")
        return "invalid JSON"

    @cached_property
    def _may_lose_keys(self) -> bool:
        """Whether keys may be left out of objects inside of columns too, where Arrow leaves out what it does not know."""
        return not self.closed and any(any_part(kind, pa.types.is_struct) for kind in self.schema.types)

    def known(self, record: bytes) -> str | None:
        """Why a line is bad that is no object, or of which Arrow would leave out a key, or round an integer, without a word."""
        if not (record.startswith(b"{") and record.endswith(b"}")):
            return self.reason(record)
        if not (self._may_lose_keys or (self._floats.names and _LONG.search(record))):
            return None
        with suppress(DataError):
            row = decode(record)
            lost = (unknown_key(one.name, row.get(one.name), one.type) for one in self.schema if self._may_lose_keys)
            error = next(filter(None, lost), None) or misfit(row, self._floats, "drop")
            return error.told() if error else None
        return None

    @cached_property
    def _floats(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if has_floats(field.type)])


def _objects(lines: Records[bytes]) -> NDArray[np.int64] | None:
    """The numbers of the lines that are not blank; None where one of them does not begin with { and end with }."""
    data = np.frombuffer(lines.data, dtype=np.uint8)
    first = np.concatenate((np.zeros(1, np.int64), lines.ends[:-1]))
    last = lines.ends - 1
    last -= data[last] == ord("\n")
    last -= (last >= first) & (data[last] == ord("\r"))
    filled = np.flatnonzero(last >= first)
    whole = (data[first[filled]] == ord("{")) & (data[last[filled]] == ord("}"))
    return filled if whole.all() else None


def decode(line: bytes) -> Sample:
    """One line as a dict.

    Raises:
        DataError: where it is no UTF-8, no JSON or no object; the message says what and at which byte or column.
    """
    try:
        row: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,} of the line") from error
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg.removesuffix(' at')} at column {error.colno:,}") from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply") from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise DataError(f"invalid JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"a line must hold an object (got {type(row).__name__})")
    return row
