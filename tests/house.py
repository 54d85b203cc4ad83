"""The size of the house: lines of code by room, less blanks, comments and docstrings.

.venv/bin/python -m tests.house
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "src" / "brimful"
_NO_CODE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    """The lines of a file that hold code."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type != tokenize.ENCODING]
    lines = {line for one in tokens if one.type not in _NO_CODE for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def rooms() -> dict[str, Counter[str]]:
    """Lines of code and files, by room; what lies in none is at the `top`."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        room, *inside = path.relative_to(PACKAGE).parts
        lines[room if inside else "top"] += code_lines(path)
        files[room if inside else "top"] += 1
    return {"lines": lines, "files": files}


if __name__ == "__main__":
    found = rooms()
    for name, count in found["lines"].most_common():
        print(f"{name:<14}{count:>7,} lines{found['files'][name]:>5} files")
    print(f"{'in all':<14}{found['lines'].total():>7,} lines{found['files'].total():>5} files")
