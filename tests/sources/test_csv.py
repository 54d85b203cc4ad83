from __future__ import annotations

import csv
import datetime
import io
import json
import math
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.sources import csv as csv_module
from brimful.sources.csv import NULLS, Delimited, Dialect, RecordRows, checked_options
from brimful.sources.format import ReadRequest
from brimful.sources.formats import FORMATS
from brimful.testing import assert_exact_resume
from tests.damage import Outcome, damaged, outcome
from tests.effort import examples, times
from tests.shards import Memory, watched, write
from tests.sources.test_records import expected
from tests.strategies import small

CSV = FORMATS["csv"]
BOM = b"\xef\xbb\xbf"
INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()
AB = pa.schema([("a", INT), ("b", TEXT)])


def table(rows: Sequence[Sequence[Any]], **options: Any) -> bytes:
    """What Python's csv module writes."""
    file = io.StringIO()
    csv.writer(file, **options).writerows(rows)
    return file.getvalue().encode()


def values(data: bytes, **options: Any) -> list[dict[str, Any]]:
    """Rows by the schema of the first ones."""
    schema = CSV.infer(Memory(data), None, "shard x", "skip")
    return outcome(CSV, data, pa.schema([]) if schema is None else schema, "raise", **options).rows


# -- rows ------------------------------------------------------------------------------------------------------------------

words = st.text(st.sampled_from('az"",\n\r\té😀\x00\ufeff '), max_size=6)
dialects = st.fixed_dictionaries(
    {
        "lineterminator": st.sampled_from(["\r\n", "\n", "\r"]),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    }
)


@given(
    st.lists(st.tuples(st.integers(-9, 9) | st.none(), words, words), max_size=8),
    dialects,
    st.sampled_from([4, 16, 1 << 20]),
)
@examples(150)
def test_rows_are_what_pythons_csv_wrote_whatever_the_buffers_and_wherever_reading_goes_on(
    rows: list[tuple[int | None, str, str]], dialect: dict[str, Any], size: int
) -> None:
    schema = pa.schema([("n", INT), ("é, 1", TEXT), ("b", TEXT)])
    always = {
        **dialect,
        "quoting": csv.QUOTE_ALL,
    }  # before 3.13 a lone CR or LF goes without quotes where it ends no line
    for name, delimiter in (("csv", ","), ("tsv", "\t")):
        options = always if any("\r" in text or "\n" in text for _, *texts in rows for text in texts) else dialect
        data = table([schema.names, *rows], delimiter=delimiter, **options)
        with small(4, size):
            found = outcome(FORMATS[name], data, schema, "raise")
            assert [tuple(row.values()) for row in found.rows] == rows
            for number, at in enumerate(found.positions):
                resumed = outcome(FORMATS[name], data, schema, "raise", at, forward_only=number % 2 == 0)
                assert resumed == Outcome(found.rows[number + 1 :], found.positions[number + 1 :], 0, None)


def test_a_format_that_is_given_goes_before_the_extension(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(b"a\tb,c\n1\t2,3\n")
    assert list(bf.from_files(path, format="tsv")) == [{"a": 1, "b,c": "2,3"}]
    assert list(bf.from_files(path, format="csv")) == [{"a\tb": "1\t2", "c": 3}]


def test_data_without_rows_end(tmp_path: Path) -> None:
    urls = [
        write(tmp_path / f"{n}.csv", data) for n, data in enumerate([b"", b"a,b\n", b"\n\r\n", BOM, b"\nc", b"a,b\n\n"])
    ]
    assert list(bf.from_files(urls)) == []
    with pytest.raises(bf.DataError, match=r"1,000 epochs of from_files > repeat .*went by without a sample"):
        list(bf.from_files(urls, repeat=True))
    assert list(bf.from_files([*urls, write(tmp_path / "x.csv", b"a\n1")])) == [{"a": 1}]


def test_blank_lines_are_passed_over_and_lines_counted(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", b'\n\na,b\n\r\n1,"x\n\ny"\n\n2,z\nbad\n')
    it = bf.from_files(url).iter()
    assert [next(it), next(it)] == [{"a": 1, "b": "x\n\ny"}, {"a": 2, "b": "z"}]
    with pytest.raises(
        bf.DataError, match=r"^shard a\.csv, line 10: 1 field under a header of 2 \(a, b\); quote fields"
    ):
        next(it)
    with pytest.raises(bf.StageError, match=r"failed at shard a\.csv, line 5: "):
        next(bf.from_files(url).map(lambda sample: 1 // 0).iter())


def test_a_single_empty_field_between_quotes_is_a_row() -> None:
    assert values(b'a\n""\n\nx\n') == [{"a": ""}, {"a": "x"}]


def test_columns_are_told_by_name_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"x,y\n1,one\n")
    write(tmp_path / "b.csv", b"y,x\ntwo,2\n")
    assert list(bf.from_files(f"{tmp_path}/*")) == [{"x": 1, "y": "one"}, {"x": 2, "y": "two"}]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"a", r"there is no column 'b' in the header \(a\); correct columns= or schema=, or the header"),
        (b"a,b,c", r"column 'c' of the header is not in the schema \(a, b\). Without schema=, the first 1,000 "
                   r"rows decide it; name it in schema=, or leave the column out with columns="),
        (b"a,b,a", r"the header names 'a' twice \(a, b, a\); rename one of them"),
        (b"a,b\xff", r"the header is no UTF-8: byte 0xff in a name; say how the file is written, as "
                   r"csv_options=\{'encoding': 'latin-1'\}"),
        (b'a,"b', r"this shard has no header: a quoted field begins here and does not end before the shard ends; close it, or "
                  r"double the quotes in it"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_an_error_or_its_shard_is_skipped(
    tmp_path: Path, header: bytes, message: str
) -> None:
    urls = [write(tmp_path / "a.csv", b"a,b\n1,x\n"), write(tmp_path / "b.csv", b"\n" + header + b"\n2,y,z\n")]
    urls.append(write(tmp_path / "c.csv", b"b,a\nz,3\n"))
    it = bf.from_files(urls, n_active_shards=1).iter()
    assert next(it) == {"a": 1, "b": "x"}
    with pytest.raises(bf.DataError, match=rf"^shard b\.csv, line \d: {message}$"):
        next(it)
    it = bf.from_files(urls, n_active_shards=1, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1, 3]
    assert it.stats["skipped"] == 1


def test_a_bad_header_of_the_first_shard_leaves_the_schema_to_the_next(tmp_path: Path) -> None:
    urls = [write(tmp_path / "a.csv", b"a,a\n1,2\n"), write(tmp_path / "b.csv", b"a,b\n1,2\n")]
    assert list(bf.from_files(urls, on_error="skip")) == [{"a": 1, "b": 2}]
    with pytest.raises(bf.DataError, match=r"^shard a\.csv, line 1: the header names 'a' twice"):
        list(bf.from_files(urls))


def test_columns_leave_out_what_they_do_not_name(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", b"a,b,c\n1,\xff,x\n2,\xff,y\n")  # which may be anything
    assert list(bf.from_files(url, columns=["c", "a"])) == [{"c": "x", "a": 1}, {"c": "y", "a": 2}]
    assert list(bf.from_files(url, columns=[])) == [{}, {}]
    with pytest.raises(bf.DataError, match=r"^shard a\.csv: there is no column 'd' in the header \(a, b, c\); correct"):
        list(bf.from_files(url, columns=["d"]))


# -- types -----------------------------------------------------------------------------------------------------------------

DAY = datetime.datetime(2020, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["1", "2.5", "", "1e3"], [1.0, 2.5, None, 1000.0]),
        (["0", "0.5", "-0.25"], [0.0, 0.5, -0.25]),
        (["1", "NA", "N/A", "null", "NULL"], [1, None, None, None, None]),
        (["1.5", "nan", "-inf"], [1.5, math.nan, -math.inf]),
        (["true", "False", ""], [True, False, None]),
        (["1", "true"], ["1", "true"]),
        (["false", "0"], ["false", "0"]),
        ([" 2", "3 "], [2, 3]),
        (["2020-01-02"], ["2020-01-02"]),
        (["2020-01-02 03:04", ""], ["2020-01-02 03:04", ""]),
        (["2020-01-02 10:00:00+02:00"], ["2020-01-02 10:00:00+02:00"]),
        (["10:00"], ["10:00"]),
        (["a", "", "NA", "null", " b "], ["a", "", "NA", "null", " b "]),
        (["NA", ""], ["NA", ""]),
        (["", ""], ["", ""]),
        (["1", "x"], ["1", "x"]),
        (["12", "007"], ["12", "007"]),
        (["-01"], ["-01"]),
        (["00.5", "1.5"], ["00.5", "1.5"]),
        (["0x1f"], ["0x1f"]),
        (["+4930"], ["+4930"]),
        (["12345678901234567890"], ["12345678901234567890"]),
        (["1.5", "12345678901234567"], ["1.5", "12345678901234567"]),
        (["9223372036854775807"], [2**63 - 1]),
        (["1 000"], ["1 000"]),
    ],
)  # fmt: skip
def test_types_are_seen_in_the_first_rows_and_nothing_that_is_written_is_lost(
    texts: list[str], found: list[Any]
) -> None:
    assert repr(values(table([["a", "b"], *([text, "x"] for text in texts)]))) == repr(
        [{"a": one, "b": "x"} for one in found]
    )


def test_the_types_of_the_first_thousand_good_rows_hold_for_all_later_ones(tmp_path: Path) -> None:
    url = write(
        tmp_path / "a.csv",
        table([["id", "n"], ["\x00", "bad", "row"], *([n, n] for n in range(1_000)), [1_000, 0.5], [1_001, 7]]),
    )
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["id"] for sample in it] == [*range(1_000), 1_001]
    assert it.stats["skipped"] == 2
    message = (
        r"^shard a\.csv, line 1,003: column 'n' is int64 by the schema but '0\.5' here; "
        r"say its type in schema=, or leave the column out with columns=$"
    )
    url = write(tmp_path / "b.csv", table([["id", "n"], ["", ""], *([n, n] for n in range(1_000)), [1_000, 0.5]]))
    it = bf.from_files(tmp_path / "b.csv").iter()
    list(islice(it, 1_001))
    with pytest.raises(bf.DataError, match=message.replace("a", "b", 1).replace("shbrd a", "shard b")):
        next(it)
    assert len(list(bf.from_files(url, columns=["id"]))) == 1_002
    assert list(bf.from_files(url, schema={"id": INT, "n": FLOAT}))[-1] == {"id": 1_000, "n": 0.5}


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("streams", [None, 1])
@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("12345", "00501"),
        ("12345", "0x1F"),
        ("12345", " -01"),
        ("0.5", "007"),
        ("0.5", "+2"),
        ("0.5", "-00.5"),
        ("true", "1"),
        ("false", "0"),
    ],
)
def test_behind_the_rows_that_give_the_types_no_number_loses_what_is_written(
    tmp_path: Path, first: str, later: str, ending: str, streams: int | None
) -> None:
    delimiter = "," if ending == ".csv" else "\t"
    rows = [["n", "when"], *([first, "2020-01-02"] for _ in range(1_000)), [later, "x"], [f" {first}", "x"]]
    url = write(tmp_path / f"a{ending}", table([[*rows[0]], *rows[1:]], delimiter=delimiter))
    it = bf.from_files(url, columns=["n"], streams=streams).iter()
    assert len(list(islice(it, 1_000))) == 1_000
    with pytest.raises(bf.DataError, match=r"line 1,002: column 'n' is \w+ by the schema but ") as error:
        next(it)
    assert f"{later!r} here; say its type in schema=" in str(error.value)
    skipping = bf.from_files(url, columns=["n"], streams=streams, on_error="skip").iter()
    assert len(list(skipping)) == 1_001 - (first in ("true", "false"))
    assert [row["n"] for row in bf.from_files(url, columns=["n"], schema={"n": TEXT, "when": TEXT})][-2] == later


def test_what_only_looks_like_a_number_may_stand_in_text(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", table([["n", "t"], *([n, f"0{n}"] for n in range(1_500)), [1, "+49"], [0, "0x1F"]]))
    assert [row["n"] for row in bf.from_files(url)] == [*range(1_500), 1, 0]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "5", 5),
        (pa.float32(), "+2", 2.0),
        (pa.float64(), "007", 7.0),
        (pa.float32(), "0.5", 0.5),
        (pa.float32(), "-inf", -math.inf),
        (pa.string(), "007", "007"),
        (pa.large_string(), "NA", "NA"),
        (pa.binary(), "x", b"x"),
        (pa.bool_(), "1", True),
        (pa.int64(), "007", 7),
        (pa.decimal128(5, 2), "1.25", pa.scalar("1.25").cast(pa.decimal128(5, 2)).as_py()),
        (pa.timestamp("us"), "2020-01-02 03:04:00.0", DAY),
        (pa.date32(), "2020-01-02", DAY.date()),
    ],
)
def test_a_given_type_is_taken(kind: pa.DataType, text: str, value: Any) -> None:
    schema = pa.schema([("a", kind)])
    found = outcome(CSV, f'a\n{text}\n"{text}"\n'.encode(), schema, "raise").rows
    assert found == [{"a": value}] * 2
    if not pa.types.is_string(kind) and not pa.types.is_large_string(kind) and kind != pa.binary():
        assert outcome(CSV, b'a\nNA\n""\n', schema, "raise").rows == [{"a": None}] * 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"1", "1 field under a header of 2 (a, b); quote fields that hold a delimiter"),
        (b"1,x,y", "3 fields under a header of 2 (a, b); quote fields that hold a delimiter"),
        (b"x,y", "column 'a' is int64 by the schema but 'x' here; say its type in schema=, or leave"),
        (b"0x1F,y", "column 'a' is int64 by the schema but '0x1F' here; say its type"),
        (b"1.0,y", "column 'a' is int64 by the schema but '1.0' here; say its type"),
        (b"nan,y", "column 'a' is int64 by the schema but 'nan' here; say its type"),
        (b"9223372036854775808,y", "column 'a' is int64 by the schema but '9223372036854775808' here; say its type"),
        (b'"' + b"x" * 99 + b'",y', f"column 'a' is int64 by the schema but '{'x' * 40}...' here; say its type"),
        (b"1,a\xffb", "invalid UTF-8: byte 0xff at byte 1 of column 'b'"),
    ],
)  # fmt: skip
def test_a_bad_record_is_told_why_and_leaves_its_neighbours(tmp_path: Path, record: bytes, message: str) -> None:
    url = write(tmp_path / "a.csv", b'a,b\n1,"\nx"\n' + record + b"\n3,z\n")
    schema = {field.name: field.type for field in AB}
    it = bf.from_files(url, schema=schema).iter()
    assert next(it) == {"a": 1, "b": "\nx"}
    with pytest.raises(bf.DataError) as error:
        next(it)
    assert str(error.value).startswith(f"shard a.csv, line 4: {message}")
    with pytest.raises(bf.DataError, match=r"^shard a\.csv, line 4: "):
        next(bf.from_files(url, schema=schema).iter(it.state_dict()))
    it = bf.from_files(url, schema=schema, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1, 3]
    assert it.stats["skipped"] == 1


def test_a_number_beyond_its_type_is_no_infinity() -> None:
    for kind, text in ((FLOAT, "1e400"), (pa.float32(), "-1e300")):
        found = outcome(CSV, f"a,b\n{text},x\ninf,x\n1,inf\n".encode(), pa.schema([("a", kind), ("b", TEXT)]))
        assert (found.rows, found.skipped) == ([{"a": math.inf, "b": "x"}, {"a": 1, "b": "inf"}], 1)


def test_a_type_that_text_cannot_give_is_refused_at_construction() -> None:
    message = (
        r"^schema= has a type that text cannot give: CSV conversion to list<item: int64> is not supported \(a\.csv\)$"
    )
    with pytest.raises(ValueError, match=message):
        bf.from_files("a.csv", schema={"a": pa.list_(INT)})


@given(
    st.lists(
        st.lists(
            st.sampled_from(["1", "07", "x", "", "NA", "1e999", "\ufeff1", '"q"', "a\nb", "é"]), min_size=1, max_size=3
        ),
        max_size=6,
    )
)
@example([["x", "1"], ["\ufeffx", "1"]])
@examples(100)
def test_what_a_record_gives_does_not_depend_on_the_records_around_it(rows: list[list[str]]) -> None:
    schema = pa.schema([("a", FLOAT), ("b", TEXT)])
    together = outcome(CSV, table([["b", "a"], *rows]), schema)
    alone = [outcome(CSV, table([["b", "a"], row]), schema) for row in rows]
    assert repr(together.rows) == repr([row for one in alone for row in one.rows])
    assert together.skipped == sum(one.skipped for one in alone)


# -- damage ----------------------------------------------------------------------------------------------------------------


def test_a_field_that_is_never_closed_costs_its_line_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = write(tmp_path / "a.csv", b'a,b\n1,x\n2,"y\n3,z\n')
    it = bf.from_files(url).iter()
    assert next(it)["a"] == 1
    message = (
        r"^shard a\.csv, line 3: a quoted field begins here and does not end before the shard ends; "
        r"close it, or double the quotes in it$"
    )
    with pytest.raises(bf.DataError, match=message):
        next(it)
    it = bf.from_files(url, on_error="skip").iter()
    assert [sample["a"] for sample in it] == [1, 3]
    assert it.stats["skipped"] == 1
    assert_exact_resume(lambda: bf.from_files(url, on_error="skip"))
    long = b'a,b\n1,"' + b"y\n2," * 5_000_000
    found = outcome(CSV, long, AB, "raise")
    assert found.error == (
        "shard x, line 2: a quoted field begins here and does not end within 16,777,216 bytes; "
        "close it, or double the quotes in it"
    )


def test_where_every_record_is_bad_each_says_why(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", b"a,b\n1,2,\n3,4,\n")
    with pytest.raises(
        bf.DataError, match=r"^shard a\.csv, line 2: 3 fields under a header of 2 \(a, b\); quote fields that"
    ):
        list(bf.from_files(url))
    it = bf.from_files(url, on_error="skip").iter()
    assert (list(it), it.stats["skipped"]) == ([], 2)


ROWS = [[number, f'a "{number}", é\n\r\n b' if number % 3 else f"plain {number}", "z"] for number in range(12)]
WHOLE = table([["a", "b", "c"], *ROWS])
ABC = pa.schema([("a", INT), ("b", TEXT), ("c", TEXT)])


@cache
def as_integer(text: str) -> list[int | None]:
    """What a text alone is as an integer; nothing where it is none."""
    found = outcome(CSV, b"a\n" + table([[text]], quoting=csv.QUOTE_ALL), pa.schema([("a", INT)]))
    return [row["a"] for row in found.rows]


def told(data: bytes, longest: int) -> tuple[list[list[str]], int]:
    """The rows that a damaged shard has left, and how many records are bad."""
    records = [
        found for _, text, found in expected(data.removeprefix(BOM), longest) if text not in (b"\n", b"\r\n", b"\r")
    ]
    good: list[list[str]] = []
    if not records[1:]:
        return good, int(records[:1] == [None])
    if records[0] is None or sorted(records[0]) != [b"a", b"b", b"c"]:
        return good, 1
    for found in records[1:]:
        try:
            assert found is not None and len(found) == 3  # noqa: PT018
            texts = dict(zip(records[0], (field.decode() for field in found)))
        except (AssertionError, UnicodeDecodeError):
            continue
        if number := as_integer(texts[b"a"]):
            good.append([*number, texts[b"b"], texts[b"c"]])
    return good, len(records) - 1 - len(good)


def test_of_damaged_shards_each_record_is_a_row_or_is_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "brimful")
    monkeypatch.setattr("brimful.sources.csv.RECORD_BYTES", 64)
    rng = random.Random(7)
    names = ("a", "b", "c")
    some_bad = 0
    for number in range(times(800, 100_000)):
        monkeypatch.setattr("brimful.sources.csv.BUFFER_BYTES", (16, 1 << 20, 100, 1 << 20)[number % 4])
        data = damaged(WHOLE, rng, b'",\n\r')
        rows, bad = told(data, 64)
        found = outcome(CSV, data, ABC)
        assert ([list(map(row.get, names)) for row in found.rows], found.skipped, found.error) == (rows, bad, None)
        some_bad += bad > 0
        if number % 4 == 1:
            first = outcome(CSV, data, ABC, "raise")
            assert (first.error is not None) == (bad > 0)
            assert first.rows == found.rows[: len(first.rows)]
            assert first.error is None or first.error.startswith("shard x, line ")
        if found.positions and number % 4 == 3:  # goes on exactly after any row
            after = rng.randrange(len(found.positions))
            resumed = outcome(CSV, data, ABC, at=found.positions[after], forward_only=number % 8 == 3)
            assert (resumed.rows, resumed.error) == (found.rows[after + 1 :], None)
    assert some_bad > 400


def test_a_resume_reads_the_header_and_what_follows(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", table([["id", "text"], *([number, "x" * 50] for number in range(40_000))]))
    dataset = bf.from_files(f"watched://{url}", schema={"id": INT, "text": TEXT})
    with watched() as files:
        it = dataset.iter()
        list(islice(it, 35_000))
        state = json.loads(json.dumps(it.state_dict()))
        it.close()
        files.read_bytes.clear()
        assert [sample["id"] for sample in dataset.iter(state)] == list(range(35_000, 40_000))
        rest = Path(url).stat().st_size - state["position"]["rows"]["shards"][0]["byte"]
        assert sum(files.read_bytes.values()) < rest + (1 << 18)


def test_an_edited_shard_is_refused_where_no_line_begins() -> None:
    for at in ((3, 2), (5, 2), (8, 2), (99, 2)):
        with pytest.raises(
            bf.StateError, match=rf"^shard x, line 3: no line begins at byte {at[0]}, where this state goes on"
        ):
            outcome(CSV, b"a,b\n1,x\r\n2,y\n", AB, at=at)
    with pytest.raises(bf.StateError, match=r"^shard x, line 3: no line begins at byte 4"):
        outcome(CSV, b"", AB, at=(4, 2))


@pytest.mark.parametrize(("kind", "bad"), [(pa.float64(), "9007199254740993"), (pa.float32(), "-16777217")])
def test_an_integer_that_a_float_would_round_is_refused_with_its_line(
    tmp_path: Path, kind: pa.DataType, bad: str
) -> None:
    url = write(tmp_path / "a.csv", f"x,id\n16777216,0\n1e30,1\ninf,2\n{bad},3\n0.5,4\n".encode())
    schema = {"x": kind, "id": pa.int64()}
    assert [row["id"] for row in bf.from_files(url, schema=schema, on_error="skip")] == [0, 1, 2, 4]
    with pytest.raises(
        bf.DataError, match=rf"^shard a.csv, line 5: column 'x' is {kind} by the schema but '{bad}' here"
    ):
        list(bf.from_files(url, schema=schema))


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        (
            "tsv",
            "id,text",
            r"1 column, 'id,text', as tabs divide it, but it holds commas; say format='csv', or quote the name",
        ),
        (
            "csv",
            "id\ttext",
            r"1 column, 'id\\ttext', as commas divide it, but it holds tabs; say format='tsv', or quote",
        ),
        ("csv", "id;text", r"but it holds semicolons; say csv_options=\{'delimiter': ';'\}, or quote the name"),
        (
            "tsv",
            "id;text",
            r"as tabs divide it, but it holds semicolons; say csv_options=\{'delimiter': ';'\}, or quote",
        ),
    ],
)
def test_a_header_of_other_delimiters_is_an_error(tmp_path: Path, name: str, header: str, message: str) -> None:
    url = write(tmp_path / "a.txt", f"{header}\n1\n".encode())
    with pytest.raises(bf.DataError, match=rf"^shard a\.txt, line 1: the header has .*{message}"):
        list(bf.from_files(url, format=name))
    quoted = write(tmp_path / "b.txt", f'"{header}"\n1\n'.encode())
    assert list(bf.from_files(quoted, format=name)) == [{header: 1}]


def test_a_first_good_row_that_came_after_the_columns_were_looked_for_is_refused() -> None:
    request = ReadRequest("x", "line", CSV.start, pa.schema([]), closed=True, on_error="raise", inferred=True)
    reader = CSV.open(Memory(b"a,b\n1,2\n"), request)
    message = r"^shard x, line 2: no row was good when the columns were looked for, and one is now; begin anew$"
    with pytest.raises(bf.DataError, match=message):
        list(iter(reader.read, None))


# -- options ---------------------------------------------------------------------------------------------------------------


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    return list(bf.from_files(path, format="csv", csv_options=options))


def test_options_say_how_a_file_is_written(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.csv", "n;né\n1;'x;\né'\n2;'it''s'\n".encode("latin-1")))
    dialect = {"delimiter": ";", "quote": "'", "encoding": "latin-1"}
    assert read(path, **dialect) == [{"n": 1, "né": "x;\né"}, {"n": 2, "né": "it's"}]
    rows = [{"f0": "n", "f1": "né"}, {"f0": "1", "f1": "x;\né"}, {"f0": "2", "f1": "it's"}]
    assert read(path, **dialect, header=False) == rows
    named = [{"a": row["f0"], "b": row["f1"]} for row in rows]
    assert read(path, **dialect, header=["a", "b"]) == named
    assert read(path, **dialect, types="text") == [dict(zip(("n", "né"), row.values())) for row in rows[1:]]
    plain_quotes = Path(write(tmp_path / "b.csv", b'a|b\n1|"x\n2|y"\n'))
    assert read(plain_quotes, delimiter="|", quote=None) == [{"a": 1, "b": '"x'}, {"a": 2, "b": 'y"'}]
    for options in ({**dialect, "header": False}, {**dialect, "header": ["a", "b"]}, dialect):
        assert_exact_resume(lambda: bf.from_files([path, path], csv_options=options))  # noqa: B023


def test_without_a_header_the_first_record_is_data_wherever_it_begins(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", BOM + b"\n\r\n1,x\nbad\n3,y\n")
    it = bf.from_files(url, csv_options={"header": False}).iter()
    assert next(it) == {"f0": 1, "f1": "x"}
    with pytest.raises(bf.DataError, match=r"^shard a\.csv, line 4: 1 field where the columns are 2 \(f0, f1\); quote"):
        next(it)
    assert_exact_resume(lambda: bf.from_files(url, csv_options={"header": False}, on_error="skip"))
    assert list(bf.from_files(url, csv_options={"header": False}, columns=["f1"], on_error="skip"))[1] == {"f1": "y"}
    wider = write(tmp_path / "b.csv", b"1,x,y\n")
    message = (
        r"^shard b\.csv, line 1: column 'f2' of the first record is not in the schema \(f0, f1\)\. Without schema="
    )
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files([write(tmp_path / "c.csv", b"1,x\n"), wider], csv_options={"header": False}))
    with pytest.raises(
        bf.DataError, match=r"^shard b\.csv: there is no column 'f3' in the first record \(f0, f1, f2\)"
    ):
        list(bf.from_files(wider, csv_options={"header": False}, columns=["f3"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delim": ";"}, r"csv_options has the keys delimiter, quote, header, encoding, types \(got 'delim'\)"),
        ({"delimiter": ";;"}, r"csv_options: delimiter takes one ASCII character, but no letter, .* \(got ';;'\)"),
        ({"delimiter": "é"}, r"delimiter takes one ASCII character"),
        ({"delimiter": "\n"}, r"delimiter takes one ASCII character, but no letter, digit, newline"),
        ({"delimiter": None}, r"delimiter takes one ASCII character"),
        ({"quote": "q"}, r"quote takes one ASCII character, .*; or None, where quotes are text \(got 'q'\)"),
        ({"delimiter": "'", "quote": "'"}, r"delimiter and quote must differ \(both are \"'\"\)"),
        ({"header": "a"}, r"header takes True, False \(the columns are f0, f1, \.\.\.\), or a list of names"),
        ({"header": ["a", "a"]}, r"header takes True, False .*, each another \(got \['a', 'a'\]\)"),
        ({"header": []}, r"header takes True, False"),
        ({"encoding": "utf-16"}, r"encoding takes an encoding .* ASCII in single bytes, such as .* \(got 'utf-16'\)"),
        ({"encoding": "iso2022_jp"}, r"encoding takes"),
        ({"encoding": "no such"}, r"encoding takes an encoding that Python knows"),
        ({"encoding": "gbk", "delimiter": "|"}, r"'\|' may be a part of other characters in the encoding gbk; convert"),
        ({"types": "string"}, r"types takes 'infer' or 'text' \(got 'string'\)"),
    ],
)  # fmt: skip
def test_an_option_that_is_none_is_named_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.from_files("a.csv", csv_options=options)


def test_options_are_for_csv_alone_and_types_are_given_once() -> None:
    with pytest.raises(
        ValueError, match=r"csv_options= applies to the formats csv and tsv, but a\.jsonl is read as jsonl"
    ):
        bf.from_files(["a.csv", "a.jsonl"], csv_options={})
    with pytest.raises(ValueError, match=r"give csv_options=\{'types': 'text'\}, or the types by schema=, not both"):
        bf.from_files("a.csv", csv_options={"types": "text"}, schema={"a": TEXT})


def test_a_state_has_options_only_where_they_were_given_and_refuses_others(tmp_path: Path) -> None:
    url = write(tmp_path / "a.csv", b"1;x\n2;y\n")
    assert "csv_options" not in str(bf.from_files(url).iter().state_dict())
    assert "csv_options" not in str(
        bf.from_files(url, csv_options={"quote": '"', "types": "infer"}).iter().state_dict()
    )
    it = bf.from_files(url, csv_options={"delimiter": ";", "header": False, "encoding": "UTF-8"}).iter()
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    assert list(bf.from_files(url, csv_options={"header": False, "delimiter": ";"}).iter(state)) == [
        {"f0": 2, "f1": "y"}
    ]
    with pytest.raises(bf.StateError, match=r"from_files\.csv_options"):
        bf.from_files(url).iter(state)


def test_text_of_another_encoding_is_decoded_and_what_is_not_in_it_is_bad_where_it_is_wanted(tmp_path: Path) -> None:
    for encoding in ("gb18030", "shift_jis", "euc_jp", "big5", "cp1252", "koi8-r"):
        text = {"cp1252": "é€", "koi8-r": "жук"}.get(encoding, "中文")
        path = Path(write(tmp_path / "a.csv", f'{text},b\n"{text},\n{text}",1\n'.encode(encoding)))
        assert read(path, encoding=encoding) == [{text: f"{text},\n{text}", "b": 1}]
    path = Path(write(tmp_path / "b.csv", b"a,b\n\x81,1\nx,2\n"))
    with pytest.raises(bf.DataError, match=r"line 2: invalid CP1252: byte 0x81 at byte 0 of column 'a'"):
        read(path, encoding="cp1252", types="text")
    assert list(bf.from_files(path, csv_options={"encoding": "cp1252"}, columns=["b"])) == [{"b": 1}, {"b": 2}]
    path = Path(write(tmp_path / "c.csv", b"a\n\xc3\xa9\n"))  # is UTF-8, but not ASCII
    with pytest.raises(bf.DataError, match=r"line 2: invalid ASCII: byte 0xc3 at byte 0 of column 'a'"):
        read(path, encoding="ascii")


ENCODINGS = ("utf-8", "latin-1", "cp1252", "gbk", "shift_jis", "koi8-r")


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, dict[str, Any], list[str], list[list[str]]]:
    """A file that Python's csv module wrote, its options, the names of the columns, and its rows as that module reads them."""
    encoding = draw(st.sampled_from(ENCODINGS))
    delimiter, quote = draw(st.sampled_from([(";", '"'), ("\t", "'"), (",", "'"), (":", '"'), (" ", '"'), ("#", "$")]))
    letters = (
        "az019.-eE+x"
        + delimiter
        + quote
        + "\"'\n\r ,"
        + {"gbk": "中", "shift_jis": "日", "koi8-r": "ж"}.get(encoding, "é")
    )
    count = draw(st.integers(1, 3))
    cells = st.text(st.sampled_from(letters), max_size=5)
    rows = draw(st.lists(st.lists(cells, min_size=count, max_size=count), min_size=1, max_size=6))
    file = io.StringIO(newline="")
    ending = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    csv.writer(file, delimiter=delimiter, quotechar=quote, lineterminator=ending, quoting=csv.QUOTE_ALL).writerows(rows)
    header = draw(st.sampled_from(["names", False]))
    names = [f"column {number}" for number in range(count)] if header == "names" else [f"f{n}" for n in range(count)]
    options = {
        "delimiter": delimiter,
        "quote": quote,
        "encoding": encoding,
        "header": names if header == "names" else False,
    }
    found = list(
        csv.reader(io.StringIO(file.getvalue(), newline=""), delimiter=delimiter, quotechar=quote, strict=True)
    )
    assert found == rows
    return file.getvalue().encode(encoding), options, names, rows


@given(written(), st.sampled_from([4, 16, 1 << 20]), st.booleans())
@examples(150)
def test_files_of_any_dialect_are_read_as_pythons_csv_reads_them_from_any_row_on(
    made: tuple[bytes, dict[str, Any], list[str], list[list[str]]], size: int, forward_only: bool
) -> None:
    data, options, names, rows = made
    form = Delimited("csv", Dialect(",")).under(checked_options(options))
    schema = pa.schema([(name, TEXT) for name in names])
    want = [dict(zip(names, row)) for row in rows]
    with small(4, size):
        found = outcome(form, data, schema, "raise")
        assert (found.rows, found.error) == (want, None)
        for number, at in enumerate(found.positions):
            assert outcome(form, data, schema, "raise", at, forward_only=forward_only).rows == want[number + 1 :]
    inferred = form.infer(Memory(data), None, "shard x", "skip")  # whatever the types, what is written stands there
    if inferred is not None:
        for row, text in zip(outcome(form, data, inferred, "raise").rows, rows):
            for value, cell in zip(row.values(), text):
                assert value == cell or (value is None and cell in NULLS) or float(value) == float(cell)


def parses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of Arrow's reader from now on."""
    calls: list[tuple[Any, ...]] = []
    own = csv_module._read

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return own(*args, **options)

    monkeypatch.setattr(csv_module, "_read", counting)
    return calls


NUMBERS = {"a": INT, "x": FLOAT, "t": TEXT}
TIMES = {"a": pa.timestamp("s"), "x": pa.bool_(), "t": pa.decimal128(8, 2)}


@pytest.mark.parametrize(
    ("types", "good", "bad"),
    [
        (NUMBERS, "7,7.5,text", ("1,2", "x,1.5,y", "1,1.5,\udcff", "99999999999999999999,0,y", "1,1e999,y", "1,,y,")),
        (NUMBERS, "7,7.5,text", ("1,9007199254740993,y",)),  # which Arrow takes
        (TIMES, "2024-02-29 10:00:00,true,1.50", ("2023-02-29,true,1", "2024-01-01,maybe,1", "2024-01-01,true,1.555")),
        (
            TIMES,
            "2024-02-29 10:00:00,true,1.50",
            ("2024-04-31,true,1", "2024-01-01,tru,1", "2024-01-01,true,123456789"),
        ),
    ],
)
def test_of_bad_records_each_costs_no_parse_of_its_own(
    monkeypatch: pytest.MonkeyPatch, types: dict[str, pa.DataType], good: str, bad: tuple[str, ...]
) -> None:
    lines = [bad[number // 10 % len(bad)] if number % 10 == 0 else good for number in range(5_000)]
    data = "\n".join(["a,x,t", *lines]).encode(errors="surrogateescape")
    calls = parses(monkeypatch)
    found = outcome(CSV, data, pa.schema(types))
    assert (len(found.rows), found.skipped) == (4_500, 500)
    assert len(calls) < 10


def test_large_floats_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("x,id\n" + "".join(f"{number}e30,{number}\n" for number in range(1, 2_000))).encode()
    calls = parses(monkeypatch)
    assert len(outcome(CSV, data, pa.schema([("x", FLOAT), ("id", INT)])).rows) == 1_999
    assert len(calls) == 1


def test_types_are_tried_once_a_file_and_not_once_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [write(tmp_path / f"{name}.csv", b"a,b\n" + b"1,x\n" * 2_000) for name in "cd"]
    data = bf.from_files(urls, schema=dict(zip(AB.names, AB.types)))
    calls = parses(monkeypatch)
    assert len(list(data)) == 4_000
    assert len(calls) == len(urls) * 2


DATES_ETC = (
    *(pa.date32(), pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time32("s"), pa.time64("us")),
    *(pa.bool_(), pa.decimal128(5, 2), pa.int8(), pa.uint8(), INT, pa.uint64(), FLOAT, pa.float32(), TEXT),
)
WRITTEN = """2024-02-29 1900-02-29 2024-04-31 2024-12-31T23:59:60 2024-01-05T10:11:12.5Z 2024-01-05+02:00 10:11 24:00
10:11:12.1234 true TRUE tRue 1 0 1.25 1.2500 1.255 999.99 1000 -.5 1e3 1e400 -0 +7 007 0x1f 127 -129 256 16777217
9007199254740993 +9007199254740993 9223372036854775808 -9223372036854775808 18446744073709551616 inf -Infinity nan NA é \udcff"""


@given(
    st.sampled_from(DATES_ETC),
    st.lists(st.tuples(st.sampled_from(["", " ", "\t"]), st.sampled_from(WRITTEN.split())), min_size=1, max_size=9),
)
@examples(200)
def test_values_among_others_are_taken_where_arrow_takes_them_alone(
    kind: pa.DataType, texts: list[tuple[str, str]]
) -> None:
    records = [f'"{space}{text}"\n'.encode(errors="surrogateescape") for space, text in texts]
    schema = pa.schema([("a", kind)])
    alone = RecordRows(("a",), schema, Dialect(","))
    taken: list[dict[str, Any]] = []
    for record in records:
        with suppress(*alone.refused):
            taken += alone.block([record]).to_pylist()
    assert repr(outcome(CSV, b"a\n" + b"".join(records), schema).rows) == repr(taken)


@pytest.mark.parametrize("beside", ["", "36893488147419103232\n"])
def test_an_integer_that_a_float_has_exactly_is_read_as_one(beside: str) -> None:
    """Beside one of more than 64 bits too, where Arrow reads none of them as an integer."""
    texts = "1152921504606846976 -36893488147419103232 -9223372036854775808 9223372036854775808"
    odd = "1152921504606846977 36893488147419103233 +9007199254740993 9223372036854775809"
    for text in texts.split():
        found = outcome(CSV, f"x\n{beside}{text}\n".encode(), pa.schema([("x", FLOAT)]))
        assert (found.rows[-1]["x"], found.skipped) == (int(text), 0)
    for text in odd.split():
        found = outcome(CSV, f"x\n{beside}{text}\n".encode(), pa.schema([("x", FLOAT)]))
        assert (len(found.rows), found.skipped) == (len(beside) > 0, 1)
