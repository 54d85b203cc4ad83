"""Arrow's own files and streams: what is not true of parquet files as well."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.shards import write_table
from tests.sources.test_columnar import numbered
from tests.strategies import small

END = b"\xff\xff\xff\xff\0\0\0\0"


def words(path: Path) -> str:
    with pytest.raises(bf.DataError) as error:
        list(bf.from_files(path, schema=numbered(0).schema))
    return str(error.value)


@pytest.mark.parametrize("extension", ["arrow", "feather", "ipc"])
@pytest.mark.parametrize("kind", [".arrow", ".ipc"])
def test_files_and_streams_are_told_apart_by_how_they_begin(tmp_path: Path, kind: str, extension: str) -> None:
    written = Path(write_table(tmp_path / f"written{kind}", numbered(30), 7))
    path = written.rename(tmp_path / f"a.{extension}")
    assert list(bf.from_files(path)) == numbered(30).to_pylist()


def test_a_stream_without_the_mark_of_its_end_gives_its_rows_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    stream = Path(write_table(tmp_path / "b.ipc", numbered(30), 7)).read_bytes()
    assert stream.endswith(END)
    path.write_bytes(stream.removesuffix(END))
    it = bf.from_files(path).iter()
    message = (
        r"^shard a\.arrow, row 31: it ends without the mark of its end: its writer was stopped, or it was cut off$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(it)
    it = bf.from_files(path, on_error="skip").iter()
    assert list(it) == numbered(30).to_pylist()
    assert it.stats["skipped"] == 1


def test_a_file_of_an_older_writer_ends_where_its_footer_begins(tmp_path: Path) -> None:
    path = Path(write_table(tmp_path / "a.arrow", numbered(30), 7))
    data = path.read_bytes()
    (size,) = struct.unpack("<i", data[-10:-6])
    body, footer = data[: -10 - size], data[-10 - size :]
    assert body.endswith(END)
    path.write_bytes(body.removesuffix(END) + footer)
    assert list(bf.from_files(path)) == numbered(30).to_pylist()


def test_what_follows_the_end_of_a_stream_is_an_error(tmp_path: Path) -> None:
    """pyarrow reads the first of two streams, and says nothing of the other."""
    path = Path(write_table(tmp_path / "a.ipc", numbered(30), 7))
    size = path.stat().st_size
    path.write_bytes(2 * path.read_bytes())
    assert words(path) == f"shard a.ipc, row 31: {size:,} bytes follow the mark of its end; the shard is damaged"
    path.write_bytes(path.read_bytes()[:size] + bytes(56))
    assert len(list(bf.from_files(path))) == 30


def test_what_is_no_arrow_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    for data, message in (
        (b"", "a file of 0 bytes is no Arrow file; the shard is damaged"),
        (b"FEA1" + bytes(20), "it is a Feather file of version 1; write it anew with pyarrow.feather.write_feather"),
        (b'{"id": 1, "text": "one"}\n', "no message begins at byte 0, where one should; the shard is damaged"),
        (END, "it has no schema; the shard is damaged"),
        (b"ARR", "it ends at byte 3, within a message: it was cut off"),
    ):
        path.write_bytes(data)
        assert words(path) == f"shard a.arrow, row 1: {message}"


def test_a_column_of_which_the_name_is_no_text_is_damage_of_a_shard_with_a_name(tmp_path: Path) -> None:
    path = Path(write_table(tmp_path / "a.ipc", pa.table({"numb": pa.array([1], pa.int64())})))
    path.write_bytes(path.read_bytes().replace(b"numb", b"n\xff\xfeb"))
    with pytest.raises(
        bf.DataError, match=r"^shard a\.ipc, row 1: cannot be read on: 'utf-8' codec .*; the shard is damaged$"
    ):
        list(bf.from_files(path))


def test_a_stream_of_another_byte_order_is_refused(tmp_path: Path) -> None:
    path = Path(write_table(tmp_path / "a.ipc", pa.table({"id": pa.array([1], pa.int64())})))
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        assert pa.ipc.open_stream(file).schema.names == ["id"]
    top = 8 + struct.unpack_from("<I", data, 8)[0]
    entries = top - struct.unpack_from("<i", data, top)[0]
    header = top + struct.unpack_from("<H", data, entries + 8)[0]
    table = header + struct.unpack_from("<I", data, header)[0]
    fields = table - struct.unpack_from("<i", data, table)[0]
    # the fields of a schema are its byte order, here its default, and its columns: what is of two bytes will do for it
    struct.pack_into("<H", data, fields + 4, struct.unpack_from("<H", data, fields + 6)[0])
    path.write_bytes(data)
    assert "it was written by a machine of another byte order; write it anew on this one" in words(path)


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_are_replaced_or_grow_are_decoded_and_resumed(tmp_path: Path, deltas: bool) -> None:
    kinds = [["a", "b", "a"], ["a", "b", "c"], ["a", "b", "c", "d"]] if deltas else [["a", "b"], ["x", "y"], ["b", "b"]]
    path = tmp_path / "a.arrow"
    dictionaries = [pa.array(list(dict.fromkeys(kind))) for kind in kinds]
    batches = []
    for kind, dictionary in zip(kinds, dictionaries):
        indices = pa.array([dictionary.to_pylist().index(one) for one in kind], pa.int8())
        column = pa.DictionaryArray.from_arrays(indices, dictionary)
        batches.append(pa.record_batch({"kind": column, "n": range(len(kind))}))
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    path.write_bytes(sink.getvalue())
    with small(1):
        assert [sample["kind"] for sample in bf.from_files(path)] == [one for kind in kinds for one in kind]
        for columns in (None, ["kind"], ["n"]):
            assert_exact_resume(lambda: bf.from_files(path, columns=columns))  # noqa: B023
