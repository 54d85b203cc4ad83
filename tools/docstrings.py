"""Docstrings as Markdown for the API reference, which mkdocstrings makes.

`Args:`, `Raises:` and the like become lists, `Price:`, `State:` and the like paragraphs, and examples blocks of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import griffe

LISTS: Final = ("Args", "Attributes", "Raises", "Returns")
PARAGRAPHS: Final = ("Price", "Shapes", "Source", "State")
HEADING: Final = re.compile(rf"({'|'.join((*LISTS, *PARAGRAPHS))}|Example):(?: (.*))?")
ENTRY: Final = re.compile(r" {4}(\S.*?): (.*)")


class Docstrings(griffe.Extension):
    """Rewrites the docstring of each object as it is read."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """The docstring as Markdown.

    >>> print(markdown("Adds.\\n\\nArgs:\\n    a, b: two\\n        numbers.\\nPrice: none."))
    Adds.
    <BLANKLINE>
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    <BLANKLINE>
    - `a, b`: two
            numbers.
    <BLANKLINE>
    **Price.** none.
    >>> markdown("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return "\n".join(_lines(docstring.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    block, in_example = "", False
    for line in lines:
        if in_example and not line.strip():
            in_example = False
            yield "```"
        indent = re.match(" *", line)[0]
        if line.strip().startswith(">>> ") and not in_example:
            in_example = True
            yield from ("", "```pycon")
        if in_example:
            yield line.strip() if block == "Example" else line
        elif found := HEADING.fullmatch(line):
            block = found[1]
            yield ""
            if block in PARAGRAPHS:
                yield f"**{block}.** {found[2] or ''}"
            elif block in LISTS:
                yield from (f"**{block}**", "", found[2] or "")
        elif block in LISTS and (entry := ENTRY.fullmatch(line)):
            yield f"- `{entry[1]}`: {entry[2]}"
        else:
            if not indent:
                block = ""
            yield line.removeprefix("    ") if block in PARAGRAPHS else line
    if in_example:
        yield "```"
