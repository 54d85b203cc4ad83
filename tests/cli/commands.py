"""The command line in this process (`invoke`) or in one of its own (`start`)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

from typer.testing import CliRunner, Result

from brimful.cli import app


class Corpus(NamedTuple):
    urls: str
    tokenizer: str
    samples: int
    tokens: int


def invoke(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def start(*words: Any, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "brimful", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options)


def refusal(*words: Any) -> str:
    """The one line on stderr with which a command refuses; its exit code is 2."""
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("brimful: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()
