"""Whoever checks types against brimful sees every public one: pyright has nothing to infer, nor to guess."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "brimful"


def pyright(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it in a folder, on the packages of the Python that lies there, if one does."""
    settings = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",  # `--verifytypes` asks no other Python than `python`
        "PYTHONPATH": "",
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # it would look for a newer version of itself
    }
    command = [sys.executable, "-m", "pyright", *arguments]
    environment = os.environ | settings
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def install(folder: Path) -> None:
    """A Python that has these sources installed, beside all that this one has: a package that is installed as editable is none
    to `--verifytypes`."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    shutil.copytree(PACKAGE, site / "brimful", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "others.pth").write_text("\n".join(one for one in sys.path if one.endswith("-packages")))


def reasons(symbol: dict[str, Any]) -> list[str]:
    """Why the type of a public symbol is not known, with the line; none where it is, or where that follows from another's."""
    if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
        return []
    found = [one for one in symbol["diagnostics"] if "docstring" not in one["message"]]
    lines = [one["range"]["start"]["line"] + 1 if "range" in one else "?" for one in found]
    return [f"{symbol['name']} (line {line}): {one['message']}" for line, one in zip(lines, found)]


@pytest.mark.timeout(900)
def test_every_public_symbol_has_a_known_type(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    if (started := pyright("--version", folder=tmp_path)).returncode:
        pytest.skip(f"pyright does not start: {(started.stderr or started.stdout).strip()[-200:]}")
    install(tmp_path)
    report = json.loads(pyright("--verifytypes", "brimful", "--ignoreexternal", "--outputjson", folder=tmp_path).stdout)
    found = report["typeCompleteness"]
    assert report["generalDiagnostics"] == []
    assert found["packageRootDirectory"].startswith(str(tmp_path))
    assert len(found["symbols"]) > 1_000
    assert [reason for symbol in found["symbols"] for reason in reasons(symbol)] == []
    assert found["completenessScore"] == 1
