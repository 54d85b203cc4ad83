"""What holds for all commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from brimful import __version__
from tests.cli.commands import invoke


def test_version() -> None:
    assert invoke("--version").stdout == f"brimful {__version__}\n"


@pytest.mark.parametrize("command", ["demo", "run", "state show"])
def test_help_shows_an_example(command: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: brimful {command} " in result.stdout


def test_help_needs_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'tiktoken'}"
    code = f"import sys, brimful.cli; sys.exit(len({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
