"""Nested dicts by the path to each leaf: "protein.pos" is sample["protein"]["pos"], and "" a leaf that stands alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Path and leaf of each leaf of nested dicts, in order.

    Raises:
        TypeError: a key that is no text.
        ValueError: a key that is empty.

    >>> dict(leaves({"protein": {"pos": 1, "rot": 2}, "id": 3}))
    {'protein.pos': 1, 'protein.rot': 2, 'id': 3}
    """
    if not isinstance(tree, Mapping):
        yield "", tree
        return
    for key, value in tree.items():
        if not isinstance(key, str):
            raise TypeError(f"keys are text (got {key!r})")
        if not key:
            raise ValueError("a key must have at least 1 letter (got '')")
        for path, leaf in leaves(value):
            yield joined(key, path), leaf


def texts_of(dims: Any) -> dict[str, str]:
    """Dims as the user wrote them, by path.

    Raises:
        ValueError: there are none.
    """
    texts = by_path("dims", dims)
    if not texts:
        raise ValueError("dims must name at least 1 key (got none)")
    return texts


def by_path(setting: str, tree: Any) -> dict[str, Any]:
    """The leaves of what a user said of keys, by path.

    Raises:
        ValueError: a key is named twice, as in {"a": {"b": 1}, "a.b": 2}.
    """
    found: dict[str, Any] = {}
    for path, leaf in leaves(tree):
        if path in found:
            raise ValueError(f"{setting} names the key {path!r} twice")
        found[path] = leaf
    return found


def joined(first: str, rest: str) -> str:
    """A path below another one."""
    return f"{first}.{rest}" if first and rest else first or rest


def below(path: str, key: str) -> str | None:
    """The rest of a path below a key; None where it is elsewhere.

    >>> below("protein.pos", "protein"), below("protein", "protein"), below("proteins", "protein")
    ('pos', '', None)
    """
    if path == key or not key:
        return path if not key else ""
    return path.removeprefix(f"{key}.") if path.startswith(f"{key}.") else None


def tree_of(leaves: Iterable[tuple[str, Any]]) -> Any:
    """The nested dicts that have these leaves.

    Raises:
        ValueError: one lies inside another.

    >>> tree_of([("protein.pos", 1), ("id", 3)])
    {'protein': {'pos': 1}, 'id': 3}
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves:
        if not path:
            return leaf
        *parents, last = path.split(".")
        inside = tree
        for parent in parents:
            inside = inside.setdefault(parent, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{parent!r} in {path!r} cannot both hold keys and be a leaf")
        if last in inside:
            raise ValueError(f"{path!r} cannot both hold keys and be a leaf")
        inside[last] = leaf
    return tree


def picked(results: Sequence[Any], texts: Mapping[str, str], whose: str) -> dict[str, list[Tensor]]:
    """The tensors that dims name, of each group, by path.

    Raises:
        ValueError: a key that is not there.
        TypeError: a value that is no tensor.
    """
    return {path: [_at(result, path, whose) for result in results] for path in texts}


def _at(result: Any, path: str, whose: str) -> Tensor:
    for key in path.split(".") if path else ():
        if not isinstance(result, Mapping) or key not in result:
            has = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise ValueError(f"{whose} has no key {path!r} (got {has})")
        result = result[key]
    if not isinstance(result, Tensor):
        inside = f", key {path!r}," if path else ""
        hint = ", ".join(path for path, _ in leaves(result)) if isinstance(result, Mapping) else ""
        raise TypeError(
            f"{whose}{inside} must be a tensor (got {type(result).__name__}{hint and f' with the keys {hint}'})"
        )
    return result
