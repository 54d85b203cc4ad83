"""`brimful state show`: a saved state in words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from brimful.cli.saved import is_state, load_json
from brimful.console import clear_errors, stdout
from brimful.core.stage import END
from brimful.core.states import from_text, is_text


def show(
    file: Annotated[
        Path, typer.Argument(help="A state_dict() in JSON or saved by torch, or a file of `brimful run --state`.")
    ],
) -> None:
    """Print a saved state: its version, the pipeline it belongs to (a line a stage), and its position.

    Example: brimful state show run.json
    """
    with clear_errors():
        saved = _opened(_loaded(file))
        state = _find(saved)
        epoch = _begun(saved) if state is None else None
        if state is None and epoch is None:
            raise ValueError(
                f"{file} holds no state: neither a dict of version, header and position nor one of those under a name"
            )
    for name, value in saved.items() if not is_state(saved) else ():
        if isinstance(value, bool | int | float | str):
            _say(f"{name:9} {value}")
    if state is None:
        _say(f"position  the start of epoch {epoch}")
        return
    _say(f"version   {state['version']}")
    _say("pipeline")
    for depth, line in _stages(state["header"], 0):
        _say(f"{'  ' * depth}  {line}")
    position = json.dumps(state["position"], separators=(",", ":"))
    _say(f"position  {'the end: nothing follows' if state['position'] == END else position}")
    _say(f"size      {len(json.dumps(state)):,} bytes, {len(position):,} of them the position")


def _say(line: str) -> None:
    """Prints a line; what a terminal would obey in it is shown as Python writes it."""
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
    stdout().print(shown, markup=False, soft_wrap=True)


def _loaded(file: Path) -> Any:
    """What a file of JSON, or of torch.save, holds; of the latter nothing but plain data and tensors.

    Raises:
        ValueError: it is neither; the file is named.
    """
    with file.open("rb") as opened:
        zipped = opened.read(2) == b"PK"
    if not zipped:
        return load_json(file)
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(f"{file} holds no state that can be read: {str(error).splitlines()[0]}") from error


def _opened(saved: Any) -> Any:
    """What a file holds, with the iterator's state in it where a loader's state has it as text."""
    if is_text(saved):
        epoch, state = from_text(saved)
        return {"epoch": epoch, "iterator": state}
    return {name: _opened(value) for name, value in saved.items()} if isinstance(saved, dict) else saved


def _find(saved: Any) -> dict[str, Any] | None:
    """The state in what a file holds: itself, or under one of its names."""
    if is_state(saved):
        return dict(saved)
    inside = saved.values() if isinstance(saved, dict) else []
    return next((found for value in inside if (found := _find(value)) is not None), None)


def _begun(saved: Any) -> int | None:
    """The epoch that a loader begins whose state is in what a file holds."""
    if not isinstance(saved, dict):
        return None
    if saved.keys() == {"epoch", "iterator"}:
        return int(saved["epoch"])
    return next((found for value in saved.values() if (found := _begun(value)) is not None), None)


def _stages(header: list[dict[str, Any]], depth: int) -> Iterator[tuple[int, str]]:
    """The stages of a pipeline from its source on, as (depth, line); the branches of a mix lie one deeper."""
    for stage in header:
        for branch in stage.get("datasets", ()):
            yield from _stages(branch, depth + 1)
        settings = {name: value for name, value in stage.items() if name not in ("verb", "datasets")}
        yield depth, f"{stage.get('verb', '')}{_settings(settings)}"


def _settings(settings: dict[str, Any]) -> str:
    """Settings as a call would write them, less those that are not set.

    >>> _settings({"size": 300, "policy": {"type": "TokenBudget", "max_tokens": 60}, "buckets": None})
    '(size=300, policy=TokenBudget(max_tokens=60))'
    """
    given = [f"{name}={_value(value)}" for name, value in settings.items() if value not in (None, [], {})]
    return f"({', '.join(given)})" if given else ""


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    if value.keys() == {"function"}:
        return str(value["function"])
    inner = {name: inside for name, inside in value.items() if name != "type"}
    return f"{value.get('type', '')}{_settings(inner) or '()'}"
