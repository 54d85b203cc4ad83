"""The formats that there are, by name and by extension. A new one is one file, which calls `register`."""

from __future__ import annotations

from typing import Final

from brimful.sources.arrow import Arrow
from brimful.sources.cbor import Cbor
from brimful.sources.compressed import endings
from brimful.sources.csv import Delimited, Dialect
from brimful.sources.format import Format
from brimful.sources.json_array import JsonArray
from brimful.sources.jsonl import Jsonl
from brimful.sources.parquet import Parquet
from brimful.sources.text import Text

FORMATS: Final[dict[str, Format]] = {}


def register(form: Format) -> None:
    """Adds a format, or puts it in the place of another of its name. Every process that reads it must do so."""
    FORMATS[form.name] = form


def format_of(url: str) -> Format | None:
    """That of a shard by its extension, in any case, below that of a compression; None where it says nothing.

    >>> format_of("s3://bucket/a.jsonl.gz").name, format_of("https://host/A.CSV?sig=x.y").name, format_of("a.dat")
    ('jsonl', 'csv', None)
    """
    extension, _ = endings(url)
    return next((form.by_extension() for form in FORMATS.values() if extension in form.extensions), None)


for _form in (
    Jsonl(),
    JsonArray(),
    Text(),
    Delimited("csv", Dialect(",")),
    Delimited("tsv", Dialect("\t")),
    Cbor(),
    Parquet(),
    Arrow(),
):
    register(_form)
