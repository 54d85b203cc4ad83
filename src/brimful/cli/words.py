"""Errors in the words of the command line: the library speaks of parameters, a command of its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, get_type_hints

from typer.models import OptionInfo

from brimful import console

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
    (r"to_store\(path\) or (`brimful tokenize`)", r"\1"),
    (r"is read by bf\.from_store", r"is read by `brimful head`, `brimful report` and bf.from_store"),
)
"""The library's words and the command line's; `\\columns` stands for the options that name columns."""

_COLUMNS: Final = re.compile(r"((?:columns|keys): [^);]*)")
"""The columns that the user's files have, whose names may be those of settings."""


@contextmanager
def clear_errors(command: Callable[..., Any]) -> Iterator[None]:
    """What the user can mend becomes one line on stderr and exit code 2, in the words of the options of a command."""
    with console.clear_errors(say=partial(in_options, command)):
        yield


def in_options(command: Callable[..., Any], text: str) -> str:
    """A message of the library in the options of a command.

    >>> from brimful.cli.run import run
    >>> in_options(run, "batch.policy.max_tokens was 512 when it was saved and is 600 here")
    '--max-tokens was 512 when it was saved and is 600 here'
    """
    options = _options(command)
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


def _options(command: Callable[..., Any]) -> dict[str, str]:
    """The options of a command by the names of its parameters."""
    hints = get_type_hints(command, include_extras=True)
    infos = ((name, one) for name, hint in hints.items() for one in getattr(hint, "__metadata__", ()))
    return {
        name: next(iter(one.param_decls or ()), f"--{name.replace('_', '-')}")
        for name, one in infos
        if isinstance(one, OptionInfo)
    }
