"""The site has every public name and every page, its pictures have words, and its sentences are short and begin plainly."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.prose import ROOT, docstrings, faults, objects, pages, sentences
from tests.surface import public

DOCS: Final = ROOT / "docs"
PAGES: Final = {name.removeprefix("docs/"): text for name, text in pages().items() if name.startswith("docs/")}
FENCES: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", pages())
def test_sentences_of_a_page_are_short_and_begin_plainly(page: str) -> None:
    assert not faults(pages()[page])


def test_sentences_of_docstrings_are_short_and_begin_plainly() -> None:
    found = {name: wrong for name, text in docstrings().items() if (wrong := faults(text))}
    assert not found


def test_sentences_are_told_apart() -> None:
    text = (
        "# A title\n\nOne `a. b`, and [two](x.md). *Three!*\n\n- four\n  more\n- five\n\n| six | seven |\n|---|---|\n\n"
    )
    code = "```python\nnot = this\n```\n\n<!-- nor this. -->\n\n>>> nor + that\n1\n"
    expected = ["A title", "One `code`, and two.", "*Three!*", "four more", "five", "six", "seven"]
    assert [one for one in sentences(text + code) if one] == expected
    assert faults("Of these two are left. Often. *What is it?* That is it. " + "word " * 26) == [
        "Of these two are left.",
        "*What is it?",
        "word " * 25 + "word",
    ]


def test_the_reference_has_each_public_name() -> None:
    found = [name for text in PAGES.values() for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    assert len(found) == len(set(found))
    expected = {re.sub(r"^bf\.", "brimful.", name) for name, _ in public()}
    returned = {"brimful.core.iterator.ResumableIterator", "brimful.loader.Loader", "brimful.core.stats.Stats"}
    assert set(found) == expected | returned


@pytest.mark.parametrize("page", PAGES)
def test_pictures_have_words_and_links_stay_on_the_site(page: str) -> None:
    for is_picture, words, target in LINK.findall(FENCES.sub("", PAGES[page])):
        assert words or not is_picture, f"{target} has no alternative text"
        if not re.match(r"\w+:|#", target):
            path = (DOCS / page).parent.joinpath(target.split("#")[0]).resolve()
            assert path.is_relative_to(DOCS), f"{target} is not a part of the site"
            assert path.is_file(), f"{target} is not there"


def test_the_navigation_and_the_index_for_agents_have_each_page() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["plugins"]["llmstxt"]
    entries = [entry for section in config["sections"].values() for entry in section]
    listed = [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]
    navigation = re.findall(r"([\w/*-]+(?:\.md|/\*))'?$", (DOCS / ".nav.yml").read_text("utf-8"), re.MULTILINE)
    for page in PAGES:
        assert any(Path("/", page).match(f"/{one}") for one in listed), f"zensical.toml has no line on {page}"
        assert any(Path("/", page).match(f"/{one}") for one in navigation), f".nav.yml has no line on {page}"


def test_the_arguments_of_a_docstring_are_those_of_its_function() -> None:
    assert not dict(odd_arguments())


def odd_arguments() -> Iterator[tuple[str, set[str]]]:
    """The names under `Args:` that are no parameter, and the parameters that are not there, unless "the rest" are."""
    for name, what in objects():
        text = inspect.getdoc(what) if callable(what) else None
        if text and (args := re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", text, re.MULTILINE)):
            entries = [entry[1] for line in args[1].splitlines() if (entry := re.match(r" {4}(\S.*?): ", line))]
            told = {one for entry in entries for one in entry.split(", ")}
            known = inspect.signature(what).parameters.keys() - {"self", "cls"}
            if wrong := (told - {"the rest"}) ^ (told & known if "the rest" in told else known):
                yield name, wrong


def test_decisions_are_short() -> None:
    assert len((DOCS / "decisions.md").read_text("utf-8").split()) <= 4_000
