"""The sentences of a page or a docstring, as a reader meets them: without code, tables cell by cell, lists item by item.

python -m tests.prose   counts, for each page and docstring, the sentences that are too long or begin as none should.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.surface import members, public

ROOT: Final = Path(__file__).parents[1]
MOST_WORDS: Final = 25
BANNED: Final = re.compile(r"\W*(Of|What|That which)\b")
"""A sentence that begins so is inverted, or has a clause for its subject."""
_UNREAD: Final = re.compile(r"<!--.*?-->|^ *(```|~~~).*?^ *\1$|^ *>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_ITEM: Final = re.compile(r" *[-*] |\d\. | {4}(?! )[\w, *]+: ")
"""The item of a list, or a parameter of a docstring."""
_RULE: Final = re.compile(r"[|:\- ]+|:::.*|---")


def sentences(text: str) -> Iterator[str]:
    """Each sentence of Markdown, a link as its words and a piece of code as one word."""
    for paragraph in _paragraphs(_UNREAD.sub("", text)):
        plain = re.sub(r"`+[^`]*`+", "`code`", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph))
        yield from re.split(r"(?<=[.!?])[\"')*]*\s+", plain)


def _paragraphs(text: str) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        words = line.strip()
        item = _ITEM.match(line)
        begins = not words or words[0] in "#|" or item or _RULE.fullmatch(words)
        if begins and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if words.startswith("|"):
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", words) if not _RULE.fullmatch(cell))
        elif words and not _RULE.fullmatch(words):
            paragraph.append(line[item.end() if item else 0 :].strip("# "))


def pages() -> dict[str, str]:
    """README and each page of the site, by path."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in found}


def objects() -> Iterator[tuple[str, Any]]:
    """Each public name, method and property, by its name in full."""
    for name, value in public():
        for member, what in [("", value), *(members(value) if inspect.isclass(value) else ())]:
            inner = getattr(what, "__func__", what)
            if callable(inner) or isinstance(inner, property):
                yield f"{name}.{member}".rstrip("."), inner


def docstrings() -> dict[str, str]:
    """The docstring of each of them."""
    return {name: text for name, what in objects() if (text := inspect.getdoc(what))}


def faults(text: str) -> list[str]:
    """The sentences that are too long, or begin as none should."""
    return [one for one in sentences(text) if len(one.split()) > MOST_WORDS or BANNED.match(one)]


if __name__ == "__main__":
    for name, text in {**pages(), **docstrings()}.items():
        if wrong := faults(text):
            print(f"{name}: {len(wrong)} of {sum(1 for _ in sentences(text))}")
