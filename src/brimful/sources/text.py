"""Lines of text to rows: by their offsets in the bytes that were read; one by one only where some are no UTF-8."""

from __future__ import annotations

from typing import Final, final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError
from brimful.sources.bytes import Bytes
from brimful.sources.format import Format, Parsed, ReadRequest, ShardReader
from brimful.sources.forward import ForwardReader, Records, lines_of, split

SCHEMA: Final = pa.schema({"text": pa.string()})


@final
class Text(Format):
    """Lines of text: each a row {"text": ...}, without its newline; blank lines stay.

    Price: 1 to 2 ns a byte.
    """

    name = "text"
    extensions: tuple[str, ...] = (".txt",)
    unit = "line"
    schema = SCHEMA

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        if schema not in (None, SCHEMA) or columns not in (None, ("text",)):
            raise ValueError(f"columns= and schema= do not apply to lines of text, whose only column is 'text' ({url})")

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema:
        return SCHEMA

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        return ForwardReader(file, request, lines_of(file, request.at[0]), _rows)


def _rows(lines: Records[bytes]) -> Parsed:
    texts = _texts(lines)
    every = np.arange(len(lines.ends))
    try:
        texts.validate(full=True)  # UTF-8
    except pa.ArrowInvalid:
        return _one_by_one(lines)
    return Parsed(pa.RecordBatch.from_arrays([texts], schema=SCHEMA), every, [])


def _texts(lines: Records[bytes]) -> pa.Array:
    """The lines without their ends, unchecked."""
    data, ends = lines.data, lines.ends
    values = np.frombuffer(data, dtype=np.uint8)
    newline = values[ends - 1] == ord("\n")
    if b"\r" not in data:
        text, lengths = data.replace(b"\n", b""), np.diff(ends, prepend=0) - newline
    else:
        last = ends - 1 - newline  # of what stands before the newline
        starts = np.concatenate((ends[:1] * 0, ends[:-1]))
        returns = (last >= starts) & (values[last] == ord("\r"))
        kept = np.ones(len(values), dtype=bool)
        kept[ends[newline] - 1] = kept[last[returns]] = False
        text, lengths = values[kept].tobytes(), last + 1 - returns - starts
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _one_by_one(lines: Records[bytes]) -> Parsed:
    texts, kept, errors = [], [], []
    for number, line in enumerate(split(lines.data, lines.ends)):
        try:
            texts.append(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"))
            kept.append(number)
        except UnicodeDecodeError as error:
            errors.append((number, f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,}"))
    block = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)
    return Parsed(block, np.array(kept, dtype=np.int64), errors)
