from __future__ import annotations

import re

import pyarrow as pa
import pytest

from brimful.encoding.word_cache import cut
from tests.effort import times
from tests.texts import WHITE, texts

CUT = re.compile(rf"(?<=[^ \u2581{WHITE}]) ")
"""A space that follows a character which is neither white space nor the mark of SentencePiece."""


def pieces_of(text: str) -> list[str]:
    cuts = [match.start() for match in CUT.finditer(text)]
    return [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)]) if first < last]


def by_text(array: pa.Array) -> list[list[str]]:
    found = cut(array)
    pieces = [piece.decode() for piece in found.array.to_pylist()]
    return [pieces[first:last] for first, last in zip(found.firsts, found.firsts[1:])]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_are_cut_before_each_space_that_follows_what_is_not_white_space(kind: pa.DataType) -> None:
    given = texts(times(10_000, 100_000), seed=1)
    assert by_text(pa.array(given, kind)) == [pieces_of(text) for text in given]


def test_white_space_of_several_bytes_is_told_from_letters_that_end_alike() -> None:
    for letter in (*WHITE, "\u2581"):
        assert by_text(pa.array([f"a{letter} b", f"{letter} b"])) == [[f"a{letter} b"], [f"{letter} b"]]
    for letter in "\u00c5\u0120\u0680\u2080\u2460\u3080\uac00\u0645\U0001f600\u0905\u205e\u2027":
        assert by_text(pa.array([f"a{letter} b"])) == [[f"a{letter}", " b"]]


def test_slices_empty_texts_and_none_at_all() -> None:
    given = pa.array(["x y", "", " a  b", "\x00 \x00", "", "c d"])
    assert by_text(given.slice(1, 4)) == [[], [" a", "  b"], ["\x00", " \x00"], []]
    assert by_text(given.slice(2, 0)) == []
    assert by_text(pa.array(["", ""])) == [[], []]
