"""What README, CONTRIBUTING and the pages of docs show is true.

Their ```python blocks run in order, in one namespace and an empty working folder; one that stands in an HTML comment
runs too, unseen by the reader: the place for set-up. The first block that a reader sees runs as it is, with no other
names than those that the page calls the reader's own. Commands in ```console blocks exist, with the options given.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
]
MARKS = {
    "docs/ray.md": [pytest.mark.ray, pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed")],
}


OPTIONAL = ("jax",)
"""Libraries that no extra of brimful installs. A block that imports one runs where it is."""


class Snippet(NamedTuple):
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str) -> Iterator[Snippet]:
    """The fenced blocks of a page in a language, each with the number of its first line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        if fence[1] == language:
            yield Snippet(page, text.count("\n", 0, fence.start(2)) + 1, fence[2])


def above(block: Snippet) -> list[str]:
    """The lines of its page above a block."""
    return (ROOT / block.page).read_text(encoding="utf-8").splitlines(keepends=True)[: block.line - 1]


def is_unseen(block: Snippet) -> bool:
    """Whether a block stands in an HTML comment."""
    lines = "".join(above(block))
    return lines.count("<!--") > lines.count("-->")


def commands(program: str) -> list[Snippet]:
    """The commands `$ program ...` and `... && program ...` of the console blocks, each as what follows the program's name."""
    return [
        Snippet(page, number, one.removeprefix(program).strip())
        for page in PAGES
        for _, first, text in blocks(page, "console")
        for number, line in enumerate(text.splitlines(), first)
        for one in line.removeprefix("$ ").split(" && ")
        if one.split()[:1] == [program]
    ]


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # which torchdata calls
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=MARKS.get(page, ())) for page in PAGES if any(blocks(page, "python"))],
)
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    first = next((one.line for one in blocks(page, "python") if not is_unseen(one)), 0)
    absent = [name for name in OPTIONAL if not find_spec(name)]
    left_out = [one for one in blocks(page, "python") if any(f"import {name}\n" in one.text for name in absent)]
    for block in blocks(page, "python"):
        if block in left_out:
            continue
        code = compile(
            "\n" * (block.line - 1) + block.text, ROOT / page, "exec"
        )  # a traceback names the page and its line
        if block.line == first:  # it has no name but those that the words above it say are the reader's
            told = re.findall(r"`(\w+)`", "".join(above(block)))
            seen = {name: value for name, value in namespace.items() if name in (*told, "__name__")}
            exec(code, seen)
            namespace |= seen
        else:
            exec(code, namespace)
    ended(namespace)
    if left_out:
        pytest.skip(f"all ran but {', '.join(map(str, left_out))}: {', '.join(absent)} is not installed")


def ended(namespace: dict[str, Any]) -> None:
    """Iterators that a page leaves open go now, not when the garbage collector comes: tests after it look for threads."""
    namespace.clear()
    gc.collect()


def test_the_loop_of_the_data_page_learns_from_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    setup, loop, *_ = (text for _, _, text in blocks("docs/data.md", "python"))
    exec(setup, namespace)
    losses: list[float] = []
    namespace["model"].register_forward_hook(lambda model, given, found: losses.append(found.loss.item()))
    lines = [json.dumps({"id": number, "text": ""}) + "\n" for number in range(20_000)]
    Path("corpus-01.jsonl").write_text("".join(lines))
    exec(loop.replace(".jsonl.gz", ".jsonl*").replace("else 0, 4)", "else 0, 30)"), namespace)
    ended(namespace)
    assert len(losses) == 30
    assert all(map(isfinite, losses))


@pytest.mark.parametrize("command", commands("brimful"), ids=str)
def test_commands_exist(command: Snippet) -> None:
    from typer.main import get_command
    from typer.testing import CliRunner

    from brimful.cli import app

    found: Any = get_command(app)
    path, words = [], command.text.split()
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        path.append(words.pop(0))
        assert path[-1] in found.commands, f"no command `brimful {' '.join(path)}`"
        found = getattr(found.commands[path[-1]], "command", found.commands[path[-1]])
    known = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}
    used = {word.split("=")[0] for word in words if word.startswith("-")}
    assert used <= known | {"--help"}
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", commands("make"), ids=str)
def test_make_targets_exist(command: Snippet) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    assert {word for word in command.text.split() if "=" not in word} <= set(targets)


def test_the_rooms_of_the_picture_are_folders() -> None:
    (picture,) = blocks("docs/how-it-works.md", "text")
    named = set(re.findall(r"(?<=\s)([a-z]+)/(?=\s)", picture.text))
    package = ROOT / "src" / "brimful"
    assert {"sources", "rows", "index", "store", "batching", "plan", "tensors"} <= named
    assert named <= {folder.name for folder in package.iterdir() if folder.is_dir()}
