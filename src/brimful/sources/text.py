"""Lines of text to rows."""

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
    """Lines of text: each a row {"text": ...}, without its newline; blank lines stay."""

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
    texts, kept, errors = [], [], []
    for number, line in enumerate(split(lines.data, lines.ends)):
        try:
            texts.append(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"))
            kept.append(number)
        except UnicodeDecodeError as error:
            errors.append((number, f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,}"))
    block = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)
    return Parsed(block, np.array(kept, dtype=np.int64), errors)
