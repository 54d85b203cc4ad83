"""`select`, `drop` and `rename` of columns, for rows and for indexes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from brimful.plan.errors import DataError, names_of
from brimful.tables.blocks import Block
from brimful.tables.origins import HIDDEN, where

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """One call of such a method.

    Args:
        verb: the method.
        names: the columns that it names; `select` keeps this order.
        new: the new name of each (`rename` only).
    """

    verb: Literal["select", "drop", "rename"]
    names: tuple[str, ...]
    new: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for names in (self.names, self.new):
            names_of(self.verb, names)
        if self.verb == "select" and not self.names:
            raise ValueError("select must name at least one column (got none)")
        if hidden := [name for name in (*self.names, *self.new) if name.startswith(HIDDEN)]:
            raise ValueError(f"{self.verb}: {hidden[0]!r} begins as brimful's own columns do")

    def settings(self) -> dict[str, Any]:
        """The parameters as the user wrote them."""
        return {"names": dict(zip(self.names, self.new)) if self.verb == "rename" else list(self.names)}

    def of(self, names: Sequence[str], place: str) -> dict[str, str]:
        """The columns that are kept, in their order: the old name of each by its new name.

        Raises:
            DataError: there is no such column, or a new name is taken.
        """
        if missing := [name for name in self.names if name not in names]:
            raise DataError(f"{self.verb}: there is no column {missing[0]!r} (columns: {', '.join(names)}; {place})")
        if self.verb == "select":
            return dict(zip(self.names, self.names))
        if twice := [name for name in self.new if name in names and name not in self.names]:
            raise DataError(f"rename: there is a column {twice[0]!r} already ({place}); drop or rename it first")
        return {new: name for name, new in self._new(names)}

    def renamed(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values of the columns that are kept, under their new names."""
        return {new: values[name] for name, new in self._new(values)}

    def _new(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """The columns that are kept, each with its new name."""
        renamed = dict(zip(self.names, self.new))
        if self.verb == "rename":
            return [(name, renamed.get(name, name)) for name in names if name in self.names or name not in self.new]
        return [(name, name) for name in names if (name in self.names) == (self.verb == "select")]

    def apply(self, block: Block, kept: Mapping[str, str] | None = None) -> Block:
        """A block with the columns that are kept and the hidden ones. `kept`: the result of `of`, where the caller has it."""
        hidden = [name for name in block.schema.names if name.startswith(HIDDEN)]
        if kept is None:
            kept = self.of([name for name in block.schema.names if name not in hidden], where(block, 0))
        return block.select([*kept.values(), *hidden]).rename_columns([*kept, *hidden])
