"""The public surface is final: a name, a parameter or a default that changes is a line in CHANGELOG.md, and is meant."""

from __future__ import annotations

import inspect
from pathlib import Path

import brimful as bf
from tests.surface import GOLDEN, homes, mark, members, public, text

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


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
