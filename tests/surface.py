"""The public surface as text: every public name with its parameters, their defaults and what it returns.

.venv/bin/python -m tests.surface   writes surface.txt, and prints the line that CHANGELOG.md needs.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import brimful as bf

GOLDEN: Final = Path(__file__).parent / "surface.txt"
INTEGRATIONS: Final = ("accelerate", "lightning", "rl", "transformers")
OF_PYTHON: Final = frozenset(
    ["__getitem__", "__len__", "__iter__", "__next__", "__call__", "__add__", "__contains__", "__enter__", "__exit__"]
)


def homes() -> dict[str, ModuleType]:
    """Where public names live, by what users write."""
    found = {"bf": bf} | {f"bf.{name}": getattr(bf, name) for name in bf.__all__ if inspect.ismodule(getattr(bf, name))}
    return found | {
        f"brimful.integrations.{name}": import_module(f"brimful.integrations.{name}") for name in INTEGRATIONS
    }


def public() -> Iterator[tuple[str, Any]]:
    """Each public object that is no module, by its name in full."""
    for home, module in homes().items():
        for name in sorted(module.__all__):
            if not inspect.ismodule(value := getattr(module, name)):
                yield f"{home}.{name}", value


def members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself, or a private base of ours for it."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("brimful.")]
    public_bases = {base for _, base in public() if inspect.isclass(base)} - {kind}
    seen: set[str] = set()
    for base in ours:
        if base in public_bases:
            break
        for name, value in vars(base).items():
            if name not in seen and (not name.startswith("_") or name in OF_PYTHON):
                seen.add(name)
                yield name, value


def lines() -> Iterator[str]:
    """The surface, a line a name."""
    for name, value in public():
        if not inspect.isclass(value):
            yield f"{name}{_call(value)}" if callable(value) else f"{name} = {_value(value)}"
            continue
        bases = [base.__name__ for base in value.__bases__ if base is not object]
        yield f"class {name}({', '.join(bases)})"
        yield f"    {name}{_call(value)}"
        for member, what in sorted(members(value)):
            if isinstance(what, property) or not (callable(what) or isinstance(what, classmethod | staticmethod)):
                yield f"    .{member}"
            else:
                yield f"    .{member}{_call(getattr(value, member))}"


def _call(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = []
    for one in signature.parameters.values():
        default = inspect.Parameter.empty if one.default is one.empty else _Shown(_value(one.default))
        parameters.append(one.replace(annotation=inspect.Parameter.empty, default=default))
    returns = signature.return_annotation
    if inspect.isclass(value):
        returns = signature.empty
    elif not isinstance(returns, str) and returns is not signature.empty:
        returns = getattr(returns, "__name__", str(returns))
    text = str(inspect.Signature([one for one in parameters if one.name != "self"]))
    return text if returns is signature.empty else f"{text} -> {returns}"


class _Shown:
    """A default as it is written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, str | int | float | bool | tuple | list | dict | None):
        return repr(value)
    return getattr(value, "__name__", type(value).__name__)


def text() -> str:
    """The whole surface."""
    return "\n".join(lines()) + "\n"


def mark(surface: str) -> str:
    """What the line in CHANGELOG.md must contain."""
    return f"surface {zlib.crc32(surface.encode()):08x}"


if __name__ == "__main__":
    GOLDEN.write_text(text(), "utf-8")
    print(f'CHANGELOG.md needs a line on what changed, with "{mark(text())}" in it')
