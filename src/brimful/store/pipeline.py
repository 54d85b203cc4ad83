"""What a store was made by: a header that a pipeline is held against, and the functions that no header can tell apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from brimful.core.errors import StateError, name_of
from brimful.core.stream import Stage, describe, header_difference, upstreams
from brimful.index.sequence import CachedIndex
from brimful.rows.encoder import Encoder
from brimful.rows.encoder_kinds import CallableEncoder


def pipeline_of(stage: Stage[Any], version: str | None) -> dict[str, Any]:
    """What a manifest says of the chain that makes the rows, as plain JSON: tokenizers by the columns that they make."""
    return {"version": version, "tokenizers": _tokenizers(stage), "chain": describe(stage)}


def require_version(stage: Stage[Any], version: str | None) -> None:
    """Refuses functions of the user's in a chain where no version would tell when they change.

    Raises:
        ValueError: naming the stages and the functions.
    """
    functions = sorted(set(_functions(stage)))
    if functions and version is None:
        raise ValueError(
            f"a store cannot tell when {', '.join(functions)} changes; give a version, and another one whenever it does: "
            'cache(path, version="1")'
        )


def check_same(folder: Path, saved: Any, ours: Any) -> None:
    """Refuses a store that another pipeline made, or began.

    Raises:
        StateError: naming the first setting that differs, and both its values.
    """
    difference = header_difference(saved, ours)
    if difference is not None:
        name, then, now = difference
        name = "its last stage" if name == "chain" else name.removeprefix("chain.")
        raise StateError(
            f"the store {folder} belongs to another pipeline: {name} was {then} when it "
            f"was written and is {now} here; use the pipeline that wrote it, or another path, "
            "or remove the folder to begin anew"
        )


def all_below(stage: Stage[Any]) -> list[Stage[Any]]:
    """The stages that a stage reads from, also by way of a cache in memory."""
    cached = [value.upstream for value in vars(stage).values() if isinstance(value, CachedIndex)]
    return [*upstreams(stage), *cached]


def _tokenizers(stage: Stage[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for below in all_below(stage):
        found |= _tokenizers(below)
    encoder = getattr(stage, "encoder", None)
    return (
        found | dict.fromkeys(vars(stage)["output"], encoder.fingerprint()) if isinstance(encoder, Encoder) else found
    )


def _functions(stage: Stage[Any]) -> Iterator[str]:
    for below in all_below(stage):
        yield from _functions(below)
    for field in dataclasses.fields(stage):  # type: ignore[arg-type]
        value = getattr(stage, field.name)
        fn = value.fn if isinstance(value, CallableEncoder) else value
        if callable(fn) and not _describes_itself(fn):
            yield f"{type(stage).__name__}({name_of(fn.func if isinstance(fn, partial) else fn)})"


def _describes_itself(value: Any) -> bool:
    """Whether a header holds a callable object by value."""
    return isinstance(value, (Stage, Encoder)) or hasattr(value, "fingerprint") or dataclasses.is_dataclass(value)
