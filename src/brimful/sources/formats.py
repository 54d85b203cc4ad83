"""The formats that there are, by name and by extension. A new one is one file, which calls `register`."""

from __future__ import annotations

import os
from typing import Final

from brimful.sources.arrow import Arrow
from brimful.sources.cbor import Cbor
from brimful.sources.compressed import COMPRESSIONS
from brimful.sources.csv import Delimited, Dialect
from brimful.sources.format import Format
from brimful.sources.jsonl import Jsonl
from brimful.sources.parquet import Parquet
from brimful.sources.text import Text

FORMATS: Final[dict[str, Format]] = {}


def register(form: Format) -> None:
    """Adds a format, or puts it in the place of another of its name. Every process that reads it must do so."""
    FORMATS[form.name] = form


def format_of(url: str) -> Format | None:
    """That of a shard by its extension, below that of a compression; None where it says nothing.

    >>> format_of("s3://bucket/a.jsonl.gz").name, format_of("a.dat")
    ('jsonl', None)
    """
    stem, extension = os.path.splitext(url)
    if extension in COMPRESSIONS:
        extension = os.path.splitext(stem)[1]
    return next((form for form in FORMATS.values() if extension in form.extensions), None)


for _form in (
    Jsonl(),
    Text(),
    Delimited("csv", Dialect(",")),
    Delimited("tsv", Dialect("\t")),
    Cbor(),
    Parquet(),
    Arrow(),
):
    register(_form)
