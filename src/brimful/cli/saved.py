"""States in files: written so that a file is always whole, whenever the process is killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.core.whole import write_whole


def save_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1).encode() + b"\n")


def load_json(path: Path) -> Any:
    """What a file of JSON holds.

    Raises:
        ValueError: it is not JSON; the file is named.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} holds no state: it is not JSON ({error})") from error


def is_state(value: Any) -> bool:
    """Whether a value looks like what `state_dict()` returns."""
    return isinstance(value, Mapping) and value.keys() - {"crc32"} == {"version", "header", "position"}
