"""`brimful state show`: a saved state, or the making of a token store, in words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from brimful.cli.options import ClearCommand, is_store, load_json, printable
from brimful.console import stdout
from brimful.core.header import TYPES
from brimful.core.stage import END
from brimful.core.states import from_text, is_text
from brimful.store.index import folder_of
from brimful.store.manifest import VERSION

STATE: Final = {"version", "header", "position"}
"""The keys of what `state_dict()` returns."""
LOADER: Final = {"epoch", "iterator"}
"""Those of the state of a loader, opened."""
PIPELINE: Final = {"version", "header"}
"""Those of what `brimful run` says of its pipeline beside the state."""


def show(
    path: Annotated[
        str,
        typer.Argument(
            help="A state_dict() in JSON or saved by torch, a file of `brimful run --state`, or a token store.",
            metavar="FILE|STORE",
        ),
    ],
) -> None:
    """Print a saved state: its version, the pipeline it belongs to (a line a stage), and its position.

    Of a token store, print what it holds and the pipeline that made it. Epochs are
    counted from 0, as by loader.epoch and set_epoch.

    Example: brimful state show run.json
    """
    if is_store([path]):
        _show_store(path)
    else:
        _show_state(Path(path))


def _show_store(path: str) -> None:
    manifest = folder_of(path).manifest
    pipeline = manifest.pipeline
    for name, side in manifest.lengths.items():
        _say(
            f"tokens    {sum(file.tokens.get(name, 0) for file in manifest.files):,} in {name}, lengths in {side.name}"
        )
    _say(f"rows      {manifest.rows:,} in {len(manifest.files):,} files")
    for name, kind in manifest.columns.items():
        _say(f"column    {name}: {kind}")
    for name, tokenizer in pipeline["tokenizers"].items():
        _say(f"tokenizer {name}: {tokenizer}")
    _say(f"version   {VERSION}" + (f", of its functions {pipeline['version']}" if pipeline["version"] else ""))
    _print_pipeline(pipeline["chain"])
    _say("position  none: a store is whole")


def _show_state(file: Path) -> None:
    saved = _opened(_loaded(file))
    state = _first(saved, STATE)
    loader = _first(saved, LOADER)
    if state is None and loader is None:
        raise ValueError(
            f"{file} holds no state: neither a dict of version, header and position nor one of those under a name"
        )
    for name, value in saved.items() if saved not in (state, loader) else ():
        if isinstance(value, bool | int | float | str):
            _say(f"{name:9} {value}")
    if loader is not None:
        _say(f"epoch     {loader['epoch']} (the first is 0)")
    made_by = state or _first(saved, PIPELINE)
    if made_by is not None:
        _say(f"version   {made_by['version']}")
        _print_pipeline(made_by["header"])
    else:
        _say("pipeline  not saved: between two epochs a loader's state fits any pipeline")
    if state is None:
        assert loader is not None
        _say(f"position  the start of epoch {loader['epoch']}")
        return
    position = state["position"]
    _say("position" + ("  the end: nothing follows" if position == END else ""))
    for depth, line in _places("", position, 0) if position != END else ():
        _say(f"{'  ' * depth}  {line}")
    size = len(json.dumps(position, separators=(",", ":")))
    _say(f"size      {len(json.dumps(state)):,} bytes, {size:,} of them the position")


def _print_pipeline(header: list[dict[str, Any]]) -> None:
    _say("pipeline")
    for depth, line in _stages(header, 0):
        _say(f"{'  ' * depth}  {line}")


def _places(name: str, position: Any, depth: int) -> Iterator[tuple[int, str]]:
    """The lines of a position: of each part its numbers on one line, and below it the parts that it reads from."""
    own, parts = [], []
    for key, value in position.items() if isinstance(position, dict) else [("", position)]:
        if key == "streams":  # each with a checksum of its own
            parts += [(f"stream {number}", entry) for number, (entry, _) in value.items()]
        elif isinstance(value, dict):
            parts.append((key, value))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            parts += [(key, one) for one in value]
        else:
            own.append(f"{key} {value if isinstance(value, str) else json.dumps(value)}".strip())
    yield depth, ": ".join(filter(None, (name, ", ".join(own))))
    for key, value in parts:
        yield from _places(key, value, depth + 1)


def _say(line: str) -> None:
    """Prints a line; what a terminal would obey in it is shown as Python writes it."""
    stdout().print(printable(line), markup=False, soft_wrap=True)


def _loaded(file: Path) -> Any:
    """The value in a file of JSON, or of torch.save; there nothing but plain data and tensors is read.

    Raises:
        ValueError: it is neither; the file is named.
    """
    if file.is_dir():
        raise ValueError(f"{str(file)!r} is a folder, and holds no token store that is finished")
    if not file.exists():
        raise ValueError(f"there is no file {str(file)!r}")
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
    """The value in a file, with the iterator's state in place of its text in a loader's state."""
    if is_text(saved):
        epoch, _, state = from_text(saved)
        return {"epoch": epoch, "iterator": state}
    return {name: _opened(value) for name, value in saved.items()} if isinstance(saved, dict) else saved


def _first(saved: Any, wanted: set[str]) -> dict[str, Any] | None:
    """The first dict of these keys in what a file holds: itself, or under one of its names."""
    if not isinstance(saved, dict):
        return None
    if saved.keys() - {"crc32"} == wanted:
        return saved
    return next((found for value in saved.values() if (found := _first(value, wanted)) is not None), None)


def _stages(header: list[dict[str, Any]], depth: int) -> Iterator[tuple[int, str]]:
    """The stages of a pipeline from its source on, as (depth, line); the branches of a mix lie one deeper."""
    for stage in header:
        for branch in stage.get("datasets", ()):
            yield from _stages(branch, depth + 1)
        settings = {name: value for name, value in stage.items() if name not in ("verb", "datasets", TYPES)}
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


states: Final = typer.Typer(help="Saved positions.", no_args_is_help=True, add_completion=False)
states.callback()(lambda: None)  # one command alone would be no group
states.command(cls=ClearCommand)(show)
