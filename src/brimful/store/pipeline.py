"""What a store was made by: a header that a pipeline is held against, and the functions that no header can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brimful.core.errors import StateError
from brimful.core.stage import Stage, header_difference


def pipeline_of(stage: Stage[Any], version: str | None) -> dict[str, Any]:
    """What a manifest says of the chain that makes the rows, as plain JSON: tokenizers by the columns that they make."""
    made = {name: " and ".join(one.fingerprint() for one in found) for name, found in stage.tokenizers().items()}
    return {"version": version, "tokenizers": made, "chain": stage.header()}


def require_version(stage: Stage[Any], version: str | None) -> None:
    """Refuses functions of the user's in a chain where no version would tell when they change.

    Raises:
        ValueError: naming the stages and the functions.
    """
    functions = sorted(set(stage.functions()))
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
    found = header_difference(saved, ours)
    if found is not None:
        raise StateError(
            f"the store {folder} belongs to another pipeline: {found.name.removeprefix('chain.')} was {found.saved} when it "
            f"was written and is {found.ours} here; use the pipeline that wrote it, or another path, or remove the folder to "
            "begin anew"
        )
