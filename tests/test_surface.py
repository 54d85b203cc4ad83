"""The public surface is final: a name, a parameter or a default that changes is a line in CHANGELOG.md, and is meant."""

from __future__ import annotations

import doctest
import inspect
import re
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import brimful as bf
from tests.surface import GOLDEN, homes, mark, members, public, text

ROOT: Final = Path(__file__).parents[1]
CHANGELOG: Final = ROOT / "CHANGELOG.md"
SHOWN_ELSEWHERE: Final = {
    "bf.RankError": "tests/batching/test_round_robin.py::test_a_rank_that_stops_early_is_named_at_once",  # two ranks, 1.5 s
    "bf.grouping.Collection.pin_memory": "tests/grouping/test_collection.py::test_it_works_on_a_gpu",
}
"""Public names whose docstring has no example, and the test that uses them."""
PROPERTIES: Final = (property, cached_property)


def test_the_surface_is_what_it_was() -> None:
    found, expected = text().splitlines(), GOLDEN.read_text("utf-8").splitlines()
    gone = [line for line in expected if line not in found]
    new = [line for line in found if line not in expected]
    assert (gone, new) == ([], []), "meant? Then run `python -m tests.surface`"
    assert found == expected


def test_the_changelog_says_how_the_surface_came_to_be_as_it_is() -> None:
    wanted = mark(GOLDEN.read_text("utf-8"))
    assert wanted in CHANGELOG.read_text("utf-8"), (
        f'a line in CHANGELOG.md must say what changed, with "{wanted}" in it'
    )


def test_nothing_is_at_two_places() -> None:
    places: dict[int, list[str]] = {}
    for name, value in public():
        places.setdefault(id(value), []).append(name)
    assert [names for names in places.values() if len(names) > 1] == []


def test_dir_and_star_show_the_public_names_only() -> None:
    given: dict[str, object] = {}
    exec("from brimful import *", given)
    assert {*given} - {"__builtins__"} == {*bf.__all__}
    for name, module in homes().items():
        assert {one for one in dir(module) if not one.startswith("__")} == {*module.__all__}, name


def test_each_public_name_has_a_docstring_and_each_parameter_is_spelled_out() -> None:
    silent, swallowed = [], []
    for name, value in public():
        for one, what in [("", value), *(members(value) if inspect.isclass(value) else ())]:
            inner = getattr(what, "__func__", what)
            is_field = one and not (
                callable(inner) or isinstance(inner, property)
            )  # of which the class's docstring tells
            if not is_field and not inspect.getdoc(inner) and not one.startswith("__"):
                silent.append(f"{name}.{one}")
            if inspect.isfunction(inner):
                kinds = {each.kind for each in inspect.signature(inner).parameters.values()}
                if inspect.Parameter.VAR_KEYWORD in kinds:
                    swallowed.append(f"{name}.{one}".rstrip("."))
    assert silent == []
    assert swallowed == ["bf.build_dynamic_batch_dataloader", "bf.memory.oom_safe_generate"], (
        "they hand on what others name"
    )


def test_each_public_name_has_an_example_that_runs_and_shows_a_result() -> None:
    """The rule:

    - The docstring of a function or a class has an example, an exception too: it shows what raises it, and what it says.
    - The docstring of a method has its own. An override without a docstring has that of the method it overrides.
    - A property or another attribute has its own, or an example of its class uses it: `.name`, or `name=` of a setting.
    - Python's own methods (`len`, `[]`, `for`, a call) need none: they are used in examples of the class.
    """
    unshown = []
    for name, value in public():
        if not _shows(value):
            unshown.append(name)
        inside = dict(members(value)) if inspect.isclass(value) else {}
        everything = [one for what in (value, *inside.values()) for one in _examples(what)]
        for member, what in inside.items():
            if member.startswith("__"):
                continue
            shown = _shows(_documented(value, member))
            if not shown and (isinstance(what, PROPERTIES) or not callable(_inner(what))):
                shown = any(re.search(rf"\.{member}\b|\b{member}=", one.source) for one in everything)
            if not shown:
                unshown.append(f"{name}.{member}")
    assert sorted(unshown) == sorted(SHOWN_ELSEWHERE)


def test_what_is_shown_elsewhere_is_there() -> None:
    for test in SHOWN_ELSEWHERE.values():
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8")


def _documented(kind: type[Any], member: str) -> Any:
    """A member, or what it overrides where it has no docstring of its own."""
    owners = [vars(base)[member] for base in kind.__mro__ if member in vars(base)]
    return next((one for one in owners if getattr(one, "__doc__", None)), owners[0])


def _inner(what: Any) -> Any:
    """The function or the class that has the docstring."""
    return inspect.unwrap(what.fget if isinstance(what, property) else getattr(what, "__func__", what))


def _shows(what: Any) -> bool:
    """Whether its own docstring has an example that runs and has a result."""
    examples = _examples(what)
    return any(one.want for one in examples) and not any(one.options.get(doctest.SKIP) for one in examples)


def _examples(what: Any) -> list[doctest.Example]:
    """The examples that pytest runs of one docstring."""
    if isinstance(what, cached_property):  # pytest finds these, doctest alone does not
        return [one for found in doctest.DocTestFinder().find(what.func, "property") for one in found.examples]
    inner = _inner(what)
    if not (inspect.isfunction(inner) or inspect.isclass(inner)):  # a value has no docstring
        return []
    return _found(inner.__module__).get(f"{inner.__module__}.{inner.__qualname__}", [])


@cache
def _found(module: str) -> dict[str, list[doctest.Example]]:
    """The examples of a module, by full name."""
    if not module.startswith("brimful."):
        return {}
    return {found.name: found.examples for found in doctest.DocTestFinder().find(import_module(module))}
