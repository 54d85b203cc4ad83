"""Errors in the words of the command line: the library speaks of parameters, a command of its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperOption

from brimful.console import note
from brimful.plan.errors import StageError

_SAID: Final = (
    (r"; correct columns=, or say its type in schema=", r"; correct \columns"),
    (r"; correct columns= or schema=, or the header", r"; correct \columns, or the header"),
    (r"say its type in schema=, or leave the column out with columns=", r"name columns of other types with \columns"),
    (r"name it in schema=, or leave the column out with columns=", r"name columns of other types with \columns"),
    (r"\bcolumns=", r"\columns "),
    (r"\bfrom_files\.columns was", r"\columns was"),
    (r"\btokenizers\.input_ids was", r"--tokenizer or --max-length was"),
    (r"Give format= \((.*), or a function of the open file\)", r"Name it with --format (\1)"),
    (r", or a function of the open file \(got", r" (got"),
    (
        r"cannot fit max_tokens=([\d,]+); .*",
        r"cannot fit --max-tokens \1; cut such samples (--max-length \1), or raise --max-tokens",
    ),
    (r", or with (these|this one) all the same by allow=\{'\w+'\}", r", or begin anew without the state"),
    (r", go on with these rows by allow=.*", r", or begin anew without the state"),
    (r"to_store\(path\) or (`brimful tokenize`)", r"\1"),
    (r"is read by bf\.from_store", r"is read by `brimful head`, `brimful report` and bf.from_store"),
)
"""The library's words and the command line's; `\\columns` stands for the options that name columns."""

_COLUMNS: Final = re.compile(r"((?:columns|keys): [^);]*)")
"""The columns that the user's files have, whose names may be those of settings."""


class ClearCommand(TyperCommand):
    """A command that says what the user can mend in one line on stderr, in the words of its options, with exit code 2.
    Anything else stays a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, StageError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            options = {str(one.name): one.opts[0] for one in self.params if isinstance(one, TyperOption)}
            note(f"brimful: {in_options(options, text)}")
            raise typer.Exit(2) from error


def in_options(options: Mapping[str, str], text: str) -> str:
    """A message of the library in the options of a command, by the names of their parameters.

    >>> in_options({"max_tokens": "--max-tokens"}, "batch.policy.max_tokens was 512 when it was saved and is 600 here")
    '--max-tokens was 512 when it was saved and is 600 here'
    """
    columns = " or ".join(option for name, option in options.items() if name in ("column", "keep"))
    for said, ours in _SAID:
        text = re.sub(said, ours.replace("\\columns", columns), text)
    for name, option in options.items():
        text = re.sub(rf"(?<![\w.\-])(?:[a-zA-Z_]\w*\.)*{name} (?=was |must be )", f"{option} ", text)
        text = re.sub(rf"(?<![\w.\-]){name}=(?=[\w'\"])", f"{option} ", text)
        if "_" in name:
            said = rf"(?<![\w.\-']){name}(?![\w=\-'])"
            text = "".join(
                part if number % 2 else re.sub(said, option, part) for number, part in enumerate(_COLUMNS.split(text))
            )
    return text
