"""Values that an object computes at their first use, in one thread, and keeps in this process."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

__all__ = ["once", "settings_of"]

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
            kept, name = vars(instance), self.attrname
            if name not in kept:
                with _lock_of(instance, name):
                    if name not in kept:
                        kept[name] = self.func(instance)
            return kept[name]


def settings_of(description: Any) -> dict[str, Any]:
    """The fields of a dataclass, for `__getstate__`: a copy in another process gets these, and nothing that was computed,
    opened or read since."""
    return {field.name: getattr(description, field.name) for field in fields(description)}


_ALL: Final = Lock()
_LOCKS: Final[WeakValueDictionary[tuple[int, str], Any]] = WeakValueDictionary()


def _lock_of(instance: Any, name: str) -> Any:
    """The lock that all threads have which want this now; it goes with the last of them."""
    with _ALL:
        key = id(instance), name
        lock = _LOCKS.get(key) or RLock()
        _LOCKS[key] = lock
        return lock


def _forked() -> None:
    """Nobody is left in a forked process who holds a lock, and would give it back."""
    _LOCKS.clear()
    _ALL.release()


os.register_at_fork(before=_ALL.acquire, after_in_parent=_ALL.release, after_in_child=_forked)
