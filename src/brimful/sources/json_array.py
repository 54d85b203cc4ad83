"""One JSON array of objects to rows, element by element: numpy finds where each ends, and they are parsed as JSON lines are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.plan.errors import DataError, StateError
from brimful.sources.bytes import READ_BYTES, Bytes
from brimful.sources.compressed import begun
from brimful.sources.format import Format, Parsed, ReadRequest, ShardReader, good_rows
from brimful.sources.forward import BUFFER_BYTES, RECORD_BYTES, Forward, ForwardReader, Records, buffer_bytes, split
from brimful.sources.jsonl import Jsonl, JsonLines, decode, types_of_lines
from brimful.tables.blocks import Sample
from brimful.tables.ragged import offsets_of, runs
from brimful.tables.schema import SAMPLE_ROWS

_BLANK: Final = b" \t\r\n"
_MEMBER: Final = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*([^ \t\r\n])', re.DOTALL)
_DAMAGED: Final = "it was not written to its end, or is damaged"


@final
@dataclass(frozen=True)
class JsonArray(Format):
    """An array of objects, each a row; or an object that has one under "data".

    An element that is no object is a bad record. Brackets that do not match, and an array that does not end, end the shard.

    Args:
        or_lines: one that does not begin with [ is JSON lines.

    Price: holds the largest element a few times. It may have 256 MB.
    """

    or_lines: bool = False
    unit: str = "element"

    name = "json"
    extensions: tuple[str, ...] = (".json",)
    places: tuple[str, ...] = ("byte", "row")

    def by_extension(self) -> Format:
        return JsonArray(or_lines=True, unit=Jsonl.unit)

    def check(self, columns: tuple[str, ...] | None, schema: pa.Schema | None, url: str) -> None:
        Jsonl().check(columns, schema, url)

    def infer(self, file: Bytes, columns: tuple[str, ...] | None, where: str, on_error: OnError) -> pa.Schema | None:
        file, first = begun(file)
        if self._is_lines(first):
            return Jsonl().infer(file, columns, where, on_error)
        rows = good_rows(_samples(file, first), SAMPLE_ROWS, on_error)
        return types_of_lines(rows, columns, where) if rows else None

    def open(self, file: Bytes, request: ReadRequest) -> ShardReader:
        file, first = begun(file, resumed=request.at[0] > 0)
        if self._is_lines(first):
            return Jsonl().open(file, request)
        rows = JsonLines(request.schema, request.closed, request.on_error)
        elements = elements_of(file, request.at[0], first)
        request = request._replace(unit=JsonArray.unit)
        return ForwardReader(file, request, elements, lambda some: _told(rows.parse(some.data)))

    def _is_lines(self, first: bytes) -> bool:
        return self.or_lines and not _text(first).startswith(b"[")


def _text(first: bytes) -> bytes:
    """The first bytes of a file, from where they say something."""
    return first.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)


def _told(parsed: Parsed) -> Parsed:
    """In the words of elements, not of lines."""
    errors = [(number, re.sub("^a line must hold", "an element must be", message)) for number, message in parsed.errors]
    errors = [(number, re.sub("of the line$", "of the element", message)) for number, message in errors]
    return Parsed(parsed.block, parsed.records, errors)


def _samples(file: Bytes, first: bytes) -> Iterator[Sample | None]:
    with suppress(DataError):
        for some in elements_of(file, 0, first):
            for line in split(some.data.data, some.data.ends):
                try:
                    yield decode(line)
                except DataError:
                    yield None


# -- elements ------------------------------------------------------------------------------------------------------------


def elements_of(file: Bytes, at: int, first: bytes) -> Iterator[Records[Records[bytes]]]:
    """The elements of an array from a byte on, each as a line; 256 KB to 1 MB of whole ones at a time, more where one is longer.

    Args:
        first: the first bytes of the file.
    Raises:
        StateError: no element ends at the byte.
        DataError: there is no array, or it does not end, or something follows that does not belong there.
        Exception: what the store raised. A read error (a truncated archive) comes after the last whole element before it.
    """
    ahead = Forward(file)
    ahead.pass_mark()
    key = None if at and _text(first).startswith(b"[") else _enter(ahead)
    before = b","
    if at:
        if at > ahead.offset:
            ahead.seek(at - 1)
            ahead.fill(1)
            before = ahead.cut(1)
        if ahead.error is None and (at != ahead.offset or before not in (b",", b"]")):
            raise StateError(f"no element ends at byte {at:,}, where this state goes on: the shard was edited")
    ended, is_first, least = before == b"]", not at, BUFFER_BYTES
    while not ended:
        lines, ends, ended = _next_elements(ahead, least, is_first)
        if len(ends):
            yield Records(lines.offset, lines, ends, lines.units)
        is_first, least = False, buffer_bytes(ahead)
    _leave(ahead, key)


def _next_elements(ahead: Forward, least: int, is_first: bool) -> tuple[Records[bytes], NDArray[np.int64], bool]:
    """Elements as lines, how far each goes with the comma or bracket after it, and whether the array ends with them.

    Raises:
        DataError: nothing ends as it should.
    """
    for size, last in ahead.growing(least):
        marks = _marks(ahead.first(size))
        ends, ended = marks.ends, False
        if marks.closed:
            ended = marks.chars[ends[-1]] == ord("]")
            if not ended:
                ends = ends[:-1]
                if not len(ends):
                    wrong = ahead.offset + int(marks.places[marks.ends[0]])
                    raise DataError(f"a }} at byte {wrong:,} closes what is a [; the shard is damaged")
        if len(ends):
            lines = _as_lines(ahead.offset, marks, ends, is_first and ended)
            cut = marks.places[ends] + 1
            ahead.cut(int(cut[-1]))
            return lines, cut[: len(lines.ends)], bool(ended)
        if size >= RECORD_BYTES:
            raise DataError(
                f"no element ends within {RECORD_BYTES:,} bytes of byte {ahead.offset:,}; the shard is damaged"
            )
        if last:
            break
    raise DataError(f"the array does not end: the shard ends after byte {ahead.offset + len(ahead.data):,}; {_DAMAGED}")


def _as_lines(offset: int, marks: _Marks, ends: NDArray[np.int64], may_be_none: bool) -> Records[bytes]:
    """Elements without what is blank around them, each in a line of its own.

    Args:
        may_be_none: whether these are all elements of the array, and might be none.
    """
    text, places, chars = marks[:3]
    stops = places[ends]
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1] + 1))
    if may_be_none and len(ends) == 1 and not text[: stops[0]].tobytes().strip(_BLANK):
        return Records(offset, b"", np.zeros(0, np.int64), np.zeros(0, np.int64))
    units = np.ones(len(ends), np.int64)
    first = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    if ((first < ends) & (chars[first] == ord("{")) & (chars[ends - 1] == ord("}"))).all():
        begins, after = places[first], places[ends - 1] + 1
        sizes = np.column_stack((begins - starts, stops - after)).ravel()
        gaps = runs(np.column_stack((starts, after)).ravel(), offsets_of(sizes)) if sizes.any() else sizes[:0]
        if np.isin(text[gaps], list(_BLANK)).all():
            text = text.copy()
            text[stops] = ord("\n")
            kept = np.ones(int(stops[-1]) + 1, np.bool_)
            kept[gaps] = False
            lines = text[: len(kept)][kept] if len(gaps) else text[: len(kept)]
            return Records(offset, lines.tobytes(), np.cumsum(after - begins + 1), units)
    data = text.tobytes()
    # of no element at all, the comma is what is wrong
    texts = [(data[start:stop].strip(_BLANK) or b",") + b"\n" for start, stop in zip(starts.tolist(), stops.tolist())]
    return Records(offset, b"".join(texts), np.cumsum(list(map(len, texts))), units)


class _Marks(NamedTuple):
    """The brackets and commas of JSON that are outside of its strings.

    Args:
        text: the bytes; newlines outside of strings are blanks.
        places: of the marks in it, int64 (n,).
        chars: the marks, uint8 (n,).
        ends: the numbers of those that end an element, of which the first begins with the bytes; int64 (k,).
        closed: whether the last of these is a bracket, so that there are no more elements.
    """

    text: NDArray[np.uint8]
    places: NDArray[np.int64]
    chars: NDArray[np.uint8]
    ends: NDArray[np.int64]
    closed: bool


_IS_MARK: Final = np.zeros(256, np.bool_)
_IS_MARK[list(b'"[]{},\r\n')] = True
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def _marks(data: bytes) -> _Marks:
    text = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(_IS_MARK[text])
    chars = text[places]
    is_quote = chars == ord('"')
    bounds = is_quote & ~_escaped(text)[places]
    outside = ~(is_quote | (np.cumsum(bounds, dtype=np.uint8) & 1).astype(np.bool_))
    places, chars = places[outside], chars[outside]
    newlines = chars < ord(" ")
    if newlines.any():
        text = text.copy()
        text[places[newlines]] = ord(" ")
        places, chars = places[~newlines], chars[~newlines]
    depth = np.cumsum(_STEPS[chars], dtype=np.int32)
    closing = np.flatnonzero(depth < 0)[:1]
    commas = np.flatnonzero((depth == 0) & (chars == ord(",")))
    ends = np.append(commas[commas < closing[0]], closing) if len(closing) else commas
    return _Marks(text, places, chars, ends, bool(len(closing)))


def _escaped(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which bytes an odd number of backslashes stands before."""
    escaped = np.zeros(len(text) + 1, np.bool_)
    slashes = np.flatnonzero(text == ord("\\"))
    begins = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) > 1, slashes, 0))
    escaped[slashes + 1] = (slashes - begins) % 2 == 0
    return escaped


# -- around the array ----------------------------------------------------------------------------------------------------


_DATA: Final = b'"data"'


def _enter(ahead: Forward) -> bytes | None:
    """Goes into the array; the key that it has in an object, as it is written, or None.

    Raises:
        DataError: there is none.
    """
    opening = _next_char(ahead)
    if opening == b"[":
        return None
    if opening != b"{":
        what = f"begins with {opening.decode('utf-8', 'replace')!r}" if opening else "is empty"
        raise DataError(f'a JSON file holds an array of objects, or {{"data": [...]}}, but this one {what}')
    keys: list[bytes] = []
    ended = False
    while not ended:
        key, value, ended = _member(ahead, into=True)
        if key == _DATA and value == b"[":
            return key
        keys.append(key)
    found = b", ".join(filter(None, keys)).decode("utf-8", "replace") or "no key"
    raise DataError(f'there is no array under "data": the file is one object with {found}. Write {{"data": [...]}}')


def _leave(ahead: Forward, key: bytes | None) -> None:
    """Reads what follows the array to the end of the file.

    Raises:
        DataError: it does not belong there.
    """
    if key is not None:
        after = _next_char(ahead)
        while after == b",":
            other, _, ended = _member(ahead, into=False)
            if other == _DATA:
                raise DataError('the object has "data" twice; join them in one array')
            after = b"}" if ended and other else b"" if ended else b","
        if after != b"}":
            raise DataError(f"the object around the array does not end as it should; {_DAMAGED}")
    if _next_char(ahead):
        raise DataError(
            f"more follows after the end of the array, at byte {ahead.offset - 1:,}; write one array a file, or JSON lines"
        )


def _member(ahead: Forward, into: bool) -> tuple[bytes, bytes, bool]:
    """Passes over a member of an object: its key, how its value begins, and whether the object ends with it. Where there is none
    before the end, the first two are empty.

    Args:
        into: goes into the value where that is the array of "data".
    Raises:
        DataError: there is none.
    """
    for size, last in ahead.growing(READ_BYTES):
        data = ahead.first(size)
        found = _MEMBER.match(data)
        if found and into and found[1] == _DATA and found[2] == b"[":
            ahead.cut(found.end())
            return found[1], found[2], False
        marks = _marks(data)
        if len(marks.ends):
            stop = int(marks.places[marks.ends[0]])
            after = data[stop : stop + 1]
            if after == b"]" or (found is None and (after == b"," or data[:stop].strip(_BLANK))):
                raise DataError(f"byte {ahead.offset:,} begins no key and value of an object; the shard is damaged")
            ahead.cut(stop + 1)
            return (*(found.groups() if found else (b"", b"")), after == b"}")  # type: ignore[return-value]
        if last or size >= RECORD_BYTES:
            break
    raise DataError(
        f"the object does not end: the shard ends after byte {ahead.offset + len(ahead.data):,}; {_DAMAGED}"
    )


def _next_char(ahead: Forward) -> bytes:
    """The next character that is not blank, which is cut off with those before it; nothing at the end."""
    while True:
        ahead.fill(1)
        text = ahead.data.lstrip(_BLANK)
        ahead.cut(len(ahead.data) - len(text) + bool(text))
        if text:
            return bytes(text[:1])
        if ahead.error is not None:
            raise ahead.error
        if ahead.ended:
            return b""
