"""A list that grows at its end, and of which each earlier state stays what it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Appended(Generic[T]):
    """Items one after the other. With one more it is another one, that shares their memory: n of them take O(n).

    Never changed: threads may hold and read any of them while one thread appends.

    >>> one = Appended("a")
    >>> two, other = one.and_("b"), one.and_("c")
    >>> list(one), list(two), list(other)
    (['a'], ['a', 'b'], ['a', 'c'])
    """

    __slots__ = ("_count", "_items")

    def __init__(self, items: Sequence[T] = ()) -> None:
        self._items, self._count = list(items), len(items)

    def and_(self, item: T) -> Appended[T]:
        """The same with one more item."""
        longer: Appended[T] = Appended()
        longer._items = self._items if len(self._items) == self._count else [*self]  # else another one follows there
        longer._items.append(item)
        longer._count = self._count + 1
        return longer

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (self._items[place] for place in range(self._count))
