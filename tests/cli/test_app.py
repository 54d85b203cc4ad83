"""What holds for all commands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from brimful import __version__, console
from brimful.cli import COMMANDS, app
from tests.cli.commands import invoke


def test_version() -> None:
    assert invoke("--version").stdout == f"brimful {__version__}\n"


@pytest.mark.parametrize("command", ["demo", "head", "report", "run", "state show"])
def test_help_shows_an_example(command: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: brimful {command} " in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_all_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    command: Any = get_command(app)
    deferred = command.commands[name]
    assert deferred.command.help.split("\n\n")[0] == deferred.help


def test_help_needs_nothing_heavy() -> None:
    heavy = {"numpy", "pyarrow", "fsspec", "torch", "tokenizers", "transformers", "tiktoken", "brimful.dataset"}
    code = (
        "import sys\n"
        "from brimful.cli import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print({heavy} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


def test_completion_can_be_installed() -> None:
    result = invoke("--help")
    assert "--install-completion" in result.stdout
    environment = os.environ | {"_BRIMFUL_COMPLETE": "complete_bash", "COMP_WORDS": "brimful he", "COMP_CWORD": "1"}
    words = [sys.executable, "-m", "brimful"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["head"]


@pytest.mark.parametrize("command", ["run", "tokenize", "report", "head"])
def test_help_names_all_formats(command: str) -> None:
    said = "".join(invoke(command, "--help").stdout.replace("│", " ").split())
    assert "Files(jsonl,json,text,csv,tsv,cbor,parquet,arrow;allbutthelasttwoalso.gz.zst.bz2.lz4.xz)" in said
    assert "--format" in said


def test_a_terminal_shows_a_bar_from_the_first_second() -> None:
    code = (
        "import time\n"
        "from brimful.console import progress, stderr\n"
        "with stderr().status('loading the tokenizer'):\n"
        "    time.sleep(.3)\n"
        "with progress(None):\n"
        "    time.sleep(.3)\n"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    os.close(theirs)
    assert process.wait(60) == 0
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "loading the tokenizer" in shown
    assert "0:00:00" in shown
    assert "starting" in shown


def test_without_a_terminal_progress_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    with console.progress(None) as update:
        update(3, lambda: "3 rows read")
        update(4, lambda: "7 rows read")
    assert capsys.readouterr() == ("", "3 rows read\n7 rows read\n")
