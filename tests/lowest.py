"""Prints what `make compat` installs: each dependency of pyproject.toml at its lowest version.

With `--tests`, prints what it runs: the tests that import none of the larger extras.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = re.compile(
    r"\b(accelerate|gcsfs|gigatoken|lightning|moto|polars|ray|s3fs|trl|torchdata|transformers"
    r"|tests\.tokenizers|tests import .*tokenizers)\b"
)
ALL: Final = (
    "test_docs.py",
    "test_first_tries.py",
    "test_generation.py",
    "test_mutants.py",
    "test_pickle.py",
    "test_surface.py",
)
"""These import every extra on their way."""


def pins() -> list[str]:
    """Such as `numpy==2` for `numpy>=2`."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [one.replace(">=", "==") for one in asked]


def tests() -> list[str]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(one.relative_to(ROOT)) for one in files if one.name not in ALL and not EXTRAS.search(one.read_text())]


if __name__ == "__main__":
    print(*(tests() if "--tests" in sys.argv else pins()))
