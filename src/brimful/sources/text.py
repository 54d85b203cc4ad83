"""Lines of text to rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from brimful.sources.lines import Lines
from brimful.sources.reader import Parsed


class TextLines:
    """Each line a row {"text": ...}, without its newline; blank lines stay."""

    def parse(self, lines: Lines) -> Parsed:
        texts, kept, errors = [], [], []
        for number, line in enumerate(lines.split()):
            try:
                texts.append(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"))
                kept.append(number)
            except UnicodeDecodeError as error:
                errors.append((number, f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start:,}"))
        block = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["text"])
        return Parsed(block, np.array(kept, dtype=np.int64), errors)
