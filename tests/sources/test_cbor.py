from __future__ import annotations

import datetime
import decimal
import io
import math
import random
import sys
import uuid
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import cbor2
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources.formats import FORMATS
from brimful.tables.schema import infer
from tests.damage import Outcome, damaged, outcome
from tests.effort import examples, times
from tests.shards import Memory, write
from tests.strategies import small

CBOR = FORMATS["cbor"]
INT, TEXT = pa.int64(), pa.string()
AB = pa.schema([("a", INT), ("b", TEXT)])
UTC = datetime.UTC
DAY = datetime.datetime(2020, 1, 2, 3, 4, tzinfo=UTC)


def items(*values: Any, **options: Any) -> bytes:
    return b"".join(cbor2.dumps(value, **options) for value in values)


# -- rows ------------------------------------------------------------------------------------------------------------------

texts = st.text(st.sampled_from("a\x00é😀\n"), max_size=300)
whole = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
rows = st.fixed_dictionaries(
    {"a": whole, "t": st.lists(whole, max_size=30)},
    optional={
        "b": texts,
        "c": st.binary(max_size=20),
        "d": st.none() | st.floats(allow_nan=False),
        "e": st.fixed_dictionaries(
            {"f": st.booleans()}, optional={"g": st.lists(st.lists(texts, max_size=2), max_size=2)}
        ),
        "h": st.datetimes(
            timezones=st.sampled_from([UTC, ZoneInfo("Asia/Kolkata")]), min_value=datetime.datetime(1800, 1, 1)
        ),
        "i": st.dates(),
    },
)
SCHEMA = pa.schema(
    [
        ("a", INT),
        ("t", pa.list_(INT)),
        ("b", TEXT),
        ("c", pa.binary()),
        ("d", pa.float64()),
        ("e", pa.struct([("f", pa.bool_()), ("g", pa.list_(pa.list_(TEXT)))])),
        ("h", pa.timestamp("us", "UTC")),
        ("i", pa.date32()),
    ]
)


@given(st.lists(rows, max_size=8), st.booleans(), st.sampled_from([4, 64, 1 << 20]))
@examples(60)
def test_rows_are_what_cbor2_wrote_whatever_the_buffers_and_wherever_reading_goes_on(
    written: list[dict[str, Any]], indefinite: bool, size: int
) -> None:
    data = items(*written, indefinite_containers=indefinite)
    with small(4, size):
        found = outcome(CBOR, data, SCHEMA, "raise")
        assert (found.skipped, found.error) == (0, None)
        for row, wrote in zip(found.rows, written, strict=True):
            inner = {"e": {"g": None, **wrote["e"]}} if "e" in wrote else {}
            assert row == {**dict.fromkeys(SCHEMA.names), **wrote, **inner}
        for number, at in enumerate(found.positions):
            resumed = outcome(CBOR, data, SCHEMA, "raise", at, forward_only=number % 2 == 0)
            assert resumed == Outcome(found.rows[number + 1 :], found.positions[number + 1 :], 0, None)


def test_a_row_larger_than_all_buffers_is_a_row() -> None:
    data = items({"a": 1, "b": "x" * 3_000_000}, {"a": 2, "b": "y"})
    assert [len(row["b"]) for row in outcome(CBOR, data, AB, "raise").rows] == [3_000_000, 1]


@pytest.mark.parametrize(
    ("value", "found", "kind"),
    [
        (b"\x00\xff", b"\x00\xff", pa.binary()),
        (DAY, DAY, pa.timestamp("us", "UTC")),
        (cbor2.CBORTag(1, 1577934240), DAY, pa.timestamp("us", "UTC")),
        (datetime.date(2020, 1, 2), datetime.date(2020, 1, 2), pa.date32()),
        (cbor2.undefined, None, pa.null()),
        (1.5, 1.5, pa.float64()),
        (2**63 - 1, 2**63 - 1, INT),
        ([[1], []], [[1], []], pa.list_(pa.list_(INT))),
        ({"x": [{"y": b"z"}]}, {"x": [{"y": b"z"}]}, pa.struct([("x", pa.list_(pa.struct([("y", pa.binary())])))])),
    ],
)
def test_values_are_those_of_arrow(value: Any, found: Any, kind: pa.DataType) -> None:
    data = items({"a": value}, {})
    schema = CBOR.infer(Memory(data), None, "shard x", "skip")
    assert schema == pa.schema([("a", kind)])
    assert outcome(CBOR, data, schema, "raise").rows == [{"a": found}, {"a": None}]


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (items(7), "a row must be a map (got int)"),
        (items([{"a": 1}]), "a row must be a map (got list)"),
        (items({1: 2}), "keys must be strings (got 1)"),
        (items({"a": {b"b": 2}}), "keys must be strings (got b'b')"),
        (items({"a": "x"}), "column 'a' is int64 by the schema but string here; say its type in schema=, or leave the column"),
        (items({"a": 1.5}), "column 'a' is int64 by the schema but double here"),
        (items({"a": True}), "column 'a' is int64 by the schema but bool here"),
        (items({"a": 2**63}), "column 'a' is int64 by the schema but an integer here (9,223,372,036,854,775,808 is"),
        (items({"b": b"x"}), "column 'b' is string by the schema but binary here"),
        (items({"z": 1}), "key 'z' is not in the schema (a, b), which the first 1,000 rows decide where none is given; name it"),
        (items({"a": decimal.Decimal("1.5")}), "a Decimal is no value of a row; write strings, bytes, numbers, times, lists"),
        (items({"a": uuid.UUID(int=1)}), "a UUID is no value of a row"),
        (items({"a": {1, 2}}), "a set is no value of a row"),
        (items({"a": cbor2.CBORTag(4711, 1)}), "a CBORTag is no value of a row"),
        (items({"a": cbor2.CBORSimpleValue(99)}), "a CBORSimpleValue is no value of a row"),
        (items({"a": CYCLE}, value_sharing=True), "values that stand in several places cannot be taken"),
        (items({"a": cbor2.CBORTag(0, "9999-12-31T23:59:59-12:00")}), "9999-12-31 23:59:59-12:00 is beyond the times"),
    ],
)  # fmt: skip
def test_a_bad_row_is_told_why_and_leaves_its_neighbours(tmp_path: Path, item: bytes, message: str) -> None:
    url = write(tmp_path / "a.cbor", items({"a": 1, "b": "x"}) + item + items({"b": "y"}))
    schema = {"a": INT, "b": TEXT}
    it = bf.from_files(url, schema=schema).iter()
    assert next(it) == {"a": 1, "b": "x"}
    with pytest.raises(bf.DataError) as error:
        next(it)
    assert str(error.value).startswith(f"shard a.cbor, row 2: {message}")
    with pytest.raises(bf.DataError, match=r"^shard a\.cbor, row 2: "):
        next(bf.from_files(url, schema=schema).iter(it.state_dict()))
    it = bf.from_files(url, schema=schema, on_error="skip").iter()
    assert list(it) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    assert it.stats["skipped"] == 1


def test_columns_leave_out_what_they_do_not_name(tmp_path: Path) -> None:
    url = write(tmp_path / "a.cbor", items({"a": 1, "b": uuid.UUID(int=1).bytes}, {"c": 1}))
    assert list(bf.from_files(url, columns=["a"])) == [{"a": 1}, {"a": None}]
    with pytest.raises(
        bf.DataError, match=r"^there is no column 'd' in the first 2 rows \(shard a\.cbor; keys: a, b, c\)"
    ):
        list(bf.from_files(url, columns=["d"]))


values = st.sampled_from(
    [
        None,
        True,
        1,
        2**53 + 1,
        0.5,
        math.inf,
        "a",
        b"a",
        DAY,
        DAY.date(),
        [],
        [1],
        [0.5],
        [True],
        ["a"],
        [b"a"],
        {},
        {"p": 1},
        {"q": "x"},
    ]
)


@given(st.lists(st.dictionaries(st.sampled_from("ab"), values, max_size=2), min_size=1, max_size=6))
@example([{"a": 0.5}, {"a": True}])
@examples(150)
def test_what_an_item_gives_does_not_depend_on_the_items_around_it(written: list[dict[str, Any]]) -> None:
    schema = infer([{"a": 0.5}, *written[:2]])
    together = outcome(CBOR, items(*written), schema)
    alone = [outcome(CBOR, items(row), schema) for row in written]
    assert repr(together.rows) == repr([row for one in alone for row in one.rows])
    assert together.skipped == sum(one.skipped for one in alone)


def test_without_cbor2_the_extra_is_named_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbor2", None)
    message = r"^CBOR needs cbor2 of version 6 or later: pip install 'brimful\[cbor\]' \(a\.cbor\)$"
    with pytest.raises(ImportError, match=message):
        bf.from_files("a.cbor")


# -- damage ----------------------------------------------------------------------------------------------------------------


def test_a_shard_that_breaks_off_is_an_error_after_its_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, last = items({"a": 1, "b": "x"}), items({"a": 2, "b": "y" * 30})
    for size in range(1, len(last)):
        found = outcome(CBOR, first + last[:size], AB, "raise")
        assert (found.rows, found.error) == (
            [{"a": 1, "b": "x"}],
            f"shard x, row 2: the shard ends within the row that begins at byte {len(first)}, after {size} bytes of it; "
            "it was not written to its end, or is damaged",
        )
    urls = [write(tmp_path / "a.cbor", first + last[:9]), write(tmp_path / "b.cbor", last)]
    it = bf.from_files(urls, n_active_shards=1, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1, 2]
    assert it.stats["skipped"] == 1
    assert "skipped: shard a.cbor, row 2: the shard ends within the row" in caplog.text


@pytest.mark.parametrize("head", [b"\x5b", b"\x7b", b"\x9b", b"\xbb"])
def test_a_length_beyond_all_data_is_an_error_and_not_held_in_memory(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = items({"a": 1, "b": "x"}) + b"\xa1\x61b" + head + (2**60).to_bytes(8, "big")
    data += items(*({"a": number} for number in range(9_000)))
    found = outcome(CBOR, data, AB, "raise")
    assert found.error is not None
    assert found.error.startswith("shard x, row 2: the shard ends within the row that begins at byte 8, after ")
    monkeypatch.setattr("brimful.sources.cbor.RECORD_BYTES", 5_000)
    for size in (16, 4_000, 1 << 20):
        monkeypatch.setattr("brimful.sources.cbor.BUFFER_BYTES", size)
        found = outcome(CBOR, data, AB, "raise")
        assert (found.rows, found.error) == (
            [{"a": 1, "b": "x"}],
            "shard x, row 2: no item ends within 5,000 bytes of byte 8; the shard is damaged, "
            "and nothing after this can be found",
        )


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (b"\x1c", "error decoding unsigned integer: unknown unsigned integer subtype 0x1c"),
        (b"\xff", "break code encountered where a data item was expected"),
        (b"\xbf\x61a\xff", "error decoding map: missing value for key in indefinite-length map"),
        (b"\x7f\x41a\xff", "error decoding text string: non-text string (major type 2) found in indefinite length text"),
        (b"\xf8\x01", "error decoding special value: invalid two-byte sequence for simple value"),
        (b"\xdf", "error decoding semantic tag: indefinite length not allowed here"),
        (b"\xa1\x61a\x82\x61\xff\x1d", "error decoding text string: 'utf-8' codec can't decode byte 0xff"),
        (b"\xa1\x61a" + b"\x81" * 20_000 + b"\x01", "maximum container nesting depth (400) exceeded"),
    ],
)  # fmt: skip
def test_an_item_that_is_not_well_formed_ends_the_shard_after_its_rows(
    item: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = items({"a": 1, "b": "x"}, {"a": 2, "b": "y"})
    for size in (4, 1 << 20):
        monkeypatch.setattr("brimful.sources.cbor.BUFFER_BYTES", size)
        found = outcome(CBOR, first + item + first, AB, "raise")
        assert ([row["a"] for row in found.rows], found.skipped) == ([1, 2], 0)
        assert found.error is not None
        assert found.error.startswith(f"shard x, row 3: {why}")
        assert found.error.endswith(" at byte 16; the shard is damaged, and nothing after this can be found")
        assert outcome(CBOR, first + item + first, AB, "raise", at=found.positions[-1]) == Outcome(
            [], [], 0, found.error
        )
    urls = [write(tmp_path / "a.cbor", first + item + first), write(tmp_path / "b.cbor", items({"a": 3}))]
    it = bf.from_files(urls, n_active_shards=1, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1, 2, 3]
    assert (it.stats["skipped"], it.stats["skipped_shards"]) == (1, 1)


INVALID = [
    (b"\xa1\x61a\x61\xff", "error decoding text string: 'utf-8' codec can't decode byte 0xff"),
    (b"\xa1\x61a\x63\xed\xa0\xbd", "error decoding text string: 'utf-8' codec can't decode byte 0xed"),
    (b"\xbf\x61a\x7f\x61\xc3\x61\xa9\xff\xff", "error decoding text string: "),
    (b"\xa2\x61a\x01\x61a\x02", "error decoding map: Duplicate map key: 'a'"),
    (b"\xa1\x61a\xc0\x61x", "error decoding string-form datetime: "),
    (b"\xa1\x61a\xd9\x03\xec\x6a2020-13-01", "error decoding string-form date: "),
    (b"\xa1\x61a" + b"\x81" * 500 + b"\x01", "maximum container nesting depth (400) exceeded"),
    (items({"a": cbor2.CBORTag(0, "2020-01-02T03:04:05")}), "error decoding string-form datetime: "),
]


@pytest.mark.parametrize(("item", "why"), INVALID)
def test_a_well_formed_item_that_cbor2_refuses_costs_itself_alone(
    item: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = write(tmp_path / "a.cbor", items({"a": 1}) + item + items({"a": 2}))
    for size in (4, 1 << 20):
        monkeypatch.setattr("brimful.sources.cbor.BUFFER_BYTES", size)
        it = bf.from_files(url).iter()
        assert next(it) == {"a": 1}
        with pytest.raises(bf.DataError) as error:
            next(it)
        assert str(error.value).startswith(f"shard a.cbor, row 2: {why}")
        assert str(error.value).endswith(" at byte 4")
        it = bf.from_files(url, on_error="skip").iter()
        assert list(it) == [{"a": 1}, {"a": 2}]
        assert (it.stats["skipped"], it.stats["skipped_shards"]) == (1, 0)
    assert f"skipped: shard a.cbor, row 2: {why}" in caplog.text


@given(
    st.lists(st.sampled_from([item for item, _ in INVALID] + [b"\x07"]) | rows.map(cbor2.dumps), max_size=9),
    st.sampled_from([4, 64, 1 << 20]),
)
@examples(60)
def test_each_item_is_a_row_or_is_skipped_alone_and_reading_goes_on_after_any_row(some: list[bytes], size: int) -> None:
    bad = [item[0] == 7 or item in dict(INVALID) for item in some]
    with small(4, size):
        found = outcome(CBOR, b"".join(some), SCHEMA)
        assert (len(found.rows), found.skipped, found.error) == (bad.count(False), bad.count(True), None)
        assert [row["a"] for row in found.rows] == [
            cbor2.loads(item)["a"] for item, odd in zip(some, bad, strict=True) if not odd
        ]
        for number, at in enumerate(found.positions):
            resumed = outcome(CBOR, b"".join(some), SCHEMA, at=at, forward_only=number % 2 == 0)
            assert (resumed.rows, resumed.error) == (found.rows[number + 1 :], None)


def test_the_tag_that_says_this_is_cbor_means_nothing_else(tmp_path: Path) -> None:
    """Many files begin with it (RFC 8949, 3.4.6)."""
    tag = bytes.fromhex("d9d9f7")
    data = tag + items({"a": 1, "b": {"p": [1]}}) + tag + tag + items({"a": 2}) + b"\xa1\x61b" + tag + items({"q": [2]})
    assert list(bf.from_files(write(tmp_path / "a.cbor", data))) == [
        {"a": 1, "b": {"p": [1]}},
        {"a": 2, "b": None},
        {"a": None, "b": {"q": [2]}},
    ]


WRITTEN = [
    {
        "a": 7 * number,
        "b": "é" * number,
        "t": list(range(number)),
        "s": {"p": 0.5, "q": [b"x" * number]},
        "d": DAY,
        "n": None,
    }
    for number in range(9)
]
WHOLE = items(*WRITTEN[:6]) + items(*WRITTEN[6:], indefinite_containers=True) + b"\xa1\x61b\x7f\x61x\x61y\xff"
FIRST = [sum(len(items(row)) for row in WRITTEN[:count]) for count in range(6)]
FULL = infer(WRITTEN)


NO_MEANING = dict.fromkeys(range(70_000), lambda *_: None)


def taken(data: bytes) -> tuple[int, bool]:
    """How many items cbor2 takes one by one where it does not look at what they mean, and whether these are all."""
    file = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(file, str_errors="replace", semantic_decoders=NO_MEANING)
    count = 0
    while file.tell() < len(data):
        try:
            decoder.decode()
        except Exception:
            return count, False
        count += 1
    return count, True


def test_of_damaged_shards_each_item_is_a_row_or_is_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "brimful")
    rng = random.Random(7)
    clean = outcome(CBOR, WHOLE, FULL, "raise").rows
    assert len(clean) == 10
    broken = 0
    for number in range(times(800, 100_000)):
        monkeypatch.setattr("brimful.sources.cbor.BUFFER_BYTES", (16, 1 << 20, 100, 1 << 20)[number % 4])
        data = damaged(WHOLE, rng, b"\xa1\x61a\x9f\xff\xc0\xdb\x5b\x00\xf7\x82")
        count, whole = taken(data)
        broken += not whole
        found = outcome(CBOR, data, FULL)
        assert found.error is None
        assert len(found.rows) + found.skipped == count + (not whole)
        same = sum(data[:end] == WHOLE[:end] for end in FIRST[1:])
        assert repr(found.rows[:same]) == repr(clean[:same])
        if number % 4 == 1:
            first = outcome(CBOR, data, FULL, "raise")
            assert repr(first.rows) == repr(found.rows[: len(first.rows)])
            assert (first.error is not None) == (found.skipped > 0)
            assert first.error is None or first.error.startswith("shard x, row ")
        if found.positions and number % 4 == 3:  # goes on exactly after any row
            after = rng.randrange(len(found.positions))
            resumed = outcome(CBOR, data, FULL, at=found.positions[after], forward_only=number % 8 == 3)
            assert repr(resumed.rows) == repr(found.rows[after + 1 :])
            assert resumed.error is None
    assert broken > 200
