"""Which columns there are, and what they are called: `select`, `drop` and `rename` of rows and of indexes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from brimful.blocks.blocks import Block
from brimful.core.errors import HIDDEN, DataError, names_of, where

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """One such call.

    Args:
        verb: the method.
        names: of columns; of `select` in the order in which they are wanted.
        new: of `rename`, what each is to be called.
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
        """What a user wrote."""
        return {"names": dict(zip(self.names, self.new)) if self.verb == "rename" else list(self.names)}

    def of(self, names: Sequence[str], place: str) -> dict[str, str]:
        """The columns that are kept of some, in their order: what each was called, by what it is called.

        Raises:
            DataError: there is no such column, or one of a new name already.
        """
        if missing := [name for name in self.names if name not in names]:
            raise DataError(f"{self.verb}: there is no column {missing[0]!r} (columns: {', '.join(names)}; {place})")
        if self.verb == "select":
            return dict(zip(self.names, self.names))
        if self.verb == "drop":
            return {name: name for name in names if name not in self.names}
        renamed = dict(zip(self.names, self.new))
        kept = {renamed.get(name, name): name for name in names}
        if len(kept) < len(names):
            twice = next(name for name in self.new if name in names and name not in self.names)
            raise DataError(f"rename: there is a column {twice!r} already ({place}); drop or rename it first")
        return kept

    def renamed(self, values: Mapping[str, T]) -> dict[str, T]:
        """What is known of columns, by name, of those that are kept."""
        new = dict(zip(self.names, self.new))
        return {new.get(name, name): value for name, value in values.items() if self._keeps(name)}

    def _keeps(self, name: str) -> bool:
        if self.verb == "rename":
            return name in self.names or name not in self.new
        return (name in self.names) == (self.verb == "select")

    def apply(self, block: Block, kept: Mapping[str, str] | None = None) -> Block:
        """A block of the columns that are kept, and hidden ones; `kept`: what `of` says, where that is known."""
        hidden = [name for name in block.schema.names if name.startswith(HIDDEN)]
        if kept is None:
            kept = self.of([name for name in block.schema.names if name not in hidden], where(block, 0))
        return block.select([*kept.values(), *hidden]).rename_columns([*kept, *hidden])
