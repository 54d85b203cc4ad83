"""Writes rows as a data set of Hugging Face's `datasets`: one memory-mapped Arrow file in the layout of that library."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from brimful.blocks.blocks import Block, visible
from brimful.blocks.ragged import EMPTY, array_of, concat, null_in
from brimful.core.errors import DataError, check_path
from brimful.core.stage import Stage, running
from brimful.core.whole import naming
from brimful.store.types import conform, stored_schema

HELD_BYTES: Final = 8 << 20
"""So many bytes of rows are held before they are written."""
_FILE: Final = "data-00000-of-00001.arrow"
_MOST_DIMENSIONS: Final = 5
"""`datasets` has types for so many (Array5D)."""


def hugging_face_of(stage: Stage[Block], path: str | os.PathLike[str] | None) -> Any:
    """The rows of the first epoch of a chain as a `datasets.Dataset` over a file: see `Dataset.to_hf`."""
    try:
        datasets = import_module("datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("to_hf needs Hugging Face's datasets: pip install 'brimful[hf]'") from error
    folder = _folder(path, datasets)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(stage, folder / _FILE)
        _describe(datasets.Dataset.from_file(str(folder / _FILE)), folder)
    except BaseException:
        shutil.rmtree(folder)
        if not made:
            folder.mkdir()
        raise
    return datasets.load_from_disk(str(folder))


def _write(stage: Stage[Block], file: Path) -> None:
    blocks = _large(stage)
    first = next(blocks, EMPTY)
    schema = stored_schema(visible(first), {})
    theirs = _features(schema).arrow_schema
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, theirs) as writer:
        for block in chain([first], blocks):
            rows = conform(block, schema, {})
            columns = [_as_array(column, kind) for column, kind in zip(rows.columns, theirs.types)]
            with naming(file):
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=theirs))


def _large(stage: Stage[Block]) -> Iterator[Block]:
    """The rows of a chain in blocks of 8 MB or so."""
    held: list[Block] = []
    size = 0
    with running(stage, stage.start(0)) as items:
        for block, _ in items:
            if block.num_rows:
                held.append(block)
                size += visible(block).nbytes
            if size >= HELD_BYTES:
                yield concat(held)
                held, size = [], 0
    if held:
        yield concat(held)


def _features(schema: pa.Schema) -> Any:
    """The types of some columns, as `datasets` has them."""
    from datasets import Features, features

    found = {}
    for field in schema:
        kind = field.type
        if not isinstance(kind, pa.FixedShapeTensorType):
            found[field.name] = features.features.generate_from_arrow_type(kind)
            continue
        if len(kind.shape) > _MOST_DIMENSIONS:
            raise DataError(
                f"column {field.name!r} has arrays of {len(kind.shape)} dimensions, and `datasets` has no type for more than "
                f"{_MOST_DIMENSIONS}; reshape them"
            )
        value = features.features.generate_from_arrow_type(kind.value_type)
        if len(kind.shape) == 1:
            found[field.name] = features.List(value, length=kind.shape[0])
        else:
            found[field.name] = getattr(features, f"Array{len(kind.shape)}D")(tuple(kind.shape), value.dtype)
    return Features(found)


def _as_array(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the types of `datasets`, where tensors are nested lists."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return column
    if len(column.type.shape) == 1:
        return column.storage
    valid = ~null_in(column)
    values = column.storage.flatten()  # without those of nulls
    for width in reversed(column.type.shape[1:]):
        values = pa.ListArray.from_arrays(array_of(np.arange(0, len(values) + 1, width, dtype=np.int32)), values)
    offsets = np.concatenate(([0], np.cumsum(valid * column.type.shape[0]))).astype(np.int32)
    mask = None if valid.all() else array_of(~valid)
    return pa.ExtensionArray.from_storage(kind, pa.ListArray.from_arrays(array_of(offsets), values, mask=mask))


def _describe(dataset: Any, folder: Path) -> None:
    """Writes the files that `datasets.load_from_disk` wants beside the rows."""
    dataset.info.write_to_directory(str(folder))
    state = {
        "_data_files": [{"filename": _FILE}],
        "_fingerprint": dataset._fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2))


def _folder(path: str | os.PathLike[str] | None, datasets: Any) -> Path:
    if path is None:
        return Path(datasets.config.HF_DATASETS_CACHE, "brimful", uuid4().hex)
    check_path("path", path)
    folder = Path(path).expanduser()
    if "://" in str(path) or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ValueError(f"to_hf writes to a local folder that is new or empty (got {path})")
    return folder
