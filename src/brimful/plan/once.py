"""Values that an object computes at their first use, in one thread, and keeps in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeVar

__all__ = ["computed_once", "once", "settings_of"]

T = TypeVar("T")

if TYPE_CHECKING:
    from functools import cached_property as once
else:

    class once(cached_property):  # noqa: N801  # as `property` and `cached_property`
        """A `functools.cached_property` with a lock for each object, which is not pickled with it.

        Python 3.11 has one lock for all objects of a class: where one is worked out by a chain with a thread of its own, which
        wants another one's, both would wait for ever. Later ones have none: two threads would ask a user's function twice.

        >>> class Sum:
        ...     def __init__(self, *numbers):
        ...         self.numbers = numbers
        ...     @once
        ...     def total(self):
        ...         return sum(self.numbers)
        >>> Sum(1, 2).total
        3
        """

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            return computed_once(instance, self.attrname, lambda: self.func(instance))


def computed_once(owner: object, name: str, compute: Callable[[], T]) -> T:
    """The attribute `name` of an object, computed at its first use: as `once`, for one who knows more than the object does."""
    kept = vars(owner)
    if name not in kept:
        key = id(owner), name
        try:
            with _LOCKS.setdefault(key, RLock()):  # one for all threads which want this now
                if name not in kept:
                    kept[name] = compute()
        finally:
            _LOCKS.pop(key, None)
    found: T = kept[name]
    return found


def settings_of(description: Any) -> dict[str, Any]:
    """The fields of a dataclass, for `__getstate__`: a copy in another process gets these, and nothing that was computed,
    opened or read since."""
    return {field.name: getattr(description, field.name) for field in fields(description)}


_LOCKS: Final[dict[tuple[int, str], Any]] = {}

os.register_at_fork(after_in_child=_LOCKS.clear)  # nobody is left in a forked process who would give one back
