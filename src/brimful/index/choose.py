"""Some of the columns, or other names for them, of data that stay indexed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brimful.core.once import once
from brimful.index.index import Index
from brimful.index.indexed import Indexed, RowNumbers, Source
from brimful.index.some_columns import ChosenIndex
from brimful.rows.choice import Choice


@dataclass(frozen=True)
class ChooseSource(Source):
    """The samples of a source with the columns of a choice."""

    transparent: ClassVar[bool] = True

    upstream: Source
    choice: Choice

    @property
    def verb(self) -> str:
        return self.choice.verb

    @once
    def index(self) -> Index:
        return ChosenIndex(self.upstream.index, self.choice)

    @property
    def in_index_order(self) -> bool:
        return self.upstream.in_index_order

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return self.upstream.ordered(index, epoch)


@dataclass(frozen=True)
class Choose(Indexed):
    """The samples of data that are joined or mixed, with the columns of a choice."""

    transparent: ClassVar[bool] = True

    upstream: Indexed
    choice: Choice

    @property
    def verb(self) -> str:
        return self.choice.verb

    @once
    def index(self) -> Index:
        return ChosenIndex(self.upstream.index, self.choice)

    @property
    def count(self) -> int | None:
        return self.upstream.count

    def order(self, epoch: int) -> RowNumbers:
        return self.upstream.order(epoch)

    def unshuffled(self) -> tuple[RowNumbers, int]:
        return self.upstream.unshuffled()
