"""A store is opened from its manifest alone, read in bulk, and resumed exactly."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.facts import Facts, following
from brimful.encoding.encoder import Padding, paddings
from brimful.index.order import RUN_ROWS
from brimful.store import index, local, manifest
from brimful.store.index import StoreIndex, verify_store
from brimful.store.local import LocalFolder, MappedFile
from brimful.store.manifest import MANIFEST, SidecarFile
from brimful.store.writer import write_store
from brimful.tables.origins import ORIGIN, ORIGIN_TYPE
from brimful.testing import assert_exact_resume
from tests.effort import times
from tests.store.stores import Given, blocks_of, rows_of, store_of

ROOT = Path(__file__).parents[2]

DRAW = np.random.default_rng(0)
LENGTHS = DRAW.integers(0, 40, 3000).tolist()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 samples in several files of several record batches."""
    path = tmp_path_factory.mktemp("index") / "store"
    manifest = store_of(path, blocks_of(LENGTHS, 100), batch_bytes=10_000, file_bytes=40_000)
    assert len(manifest.files) > 3
    assert max(len(file.batches) for file in manifest.files) > 3
    return path


@pytest.fixture(scope="module")
def samples() -> list[dict[str, object]]:
    return [row for block in blocks_of(LENGTHS, 3000) for row in block.to_pylist()]


def test_samples_in_order(store: Path, samples: list[object]) -> None:
    stored = bf.from_store(store)
    assert rows_of(stored) == samples
    assert (len(stored), stored.kind) == (3000, "indexed")
    assert stored.lengths().tolist() == LENGTHS


def test_shuffled_samples_once_each(store: Path, samples: list[object]) -> None:
    once = rows_of(bf.from_store(store, shuffle=True, seed=1))
    assert once != samples
    assert sorted(once, key=lambda row: row["id"]) == samples
    assert once == rows_of(bf.from_store(str(store), shuffle=True, seed=1))
    assert once != rows_of(bf.from_store(store, shuffle=True, seed=2))
    twice = rows_of(bf.from_store(store, shuffle=True, seed=1, repeat=True).take(6000))
    assert twice[:3000] == once
    assert twice[3000:] != once
    assert sorted(twice[3000:], key=lambda row: row["id"]) == samples


@pytest.mark.parametrize("shuffle", [False, True])
def test_lengths_that_are_not_those_of_the_rows_are_refused(store: Path, tmp_path: Path, shuffle: bool) -> None:
    damaged = tmp_path / "store"
    shutil.copytree(store, damaged)
    content = bytearray((damaged / "lengths.input_ids.npy").read_bytes())
    content[-4 * 1000] ^= 1  # of row 2,000
    (damaged / "lengths.input_ids.npy").write_bytes(content)
    says = (
        r"lengths\.input_ids\.npy says that rows [\d,]+ to [\d,]+ have [\d,]+ values in 'input_ids', and \d{5}\.arrow has "
        r"[\d,]+. `brimful verify` finds the damaged file"
    )
    with pytest.raises(bf.DataError, match=says):
        list(bf.from_store(damaged, shuffle=shuffle).batch_by_tokens(500))
    with pytest.raises(
        bf.DataError, match=r"rows 2,000 to 2,000 have \d+ values in 'input_ids', and \d{5}\.arrow has \d+\."
    ):
        _ = bf.from_store(damaged)[2000]
    assert bf.from_store(damaged)[1999]["id"] == 1999


def test_a_path_may_begin_with_the_home_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(bf.from_store(store).take(7).to_store("~/mine")) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert len(bf.from_store("~/mine")) == 7
    assert verify_store("~/mine") == []


numbers = st.one_of(
    st.lists(st.integers(0, 2999), max_size=50),
    st.lists(st.integers(0, 2999 // RUN_ROWS - 1), min_size=1, max_size=9).map(
        lambda runs: [run * RUN_ROWS + row for run in runs for row in range(RUN_ROWS)]
    ),
    st.tuples(st.integers(0, 2999), st.integers(1, 500)).map(
        lambda range_: list(range(range_[0], min(3000, sum(range_))))
    ),
)


@given(numbers, st.sampled_from([1, 4096, 10**9]), st.sampled_from([1, 8, 10**9]), st.randoms(use_true_random=False))
def test_any_rows_at_once(
    store: Path, samples: list[object], wanted: list[int], gap: int, along: int, draw: object
) -> None:
    with patch.object(LocalFolder, "gap_bytes", gap), patch.object(index, "MAX_EXTRA_ROWS", along):
        draw.shuffle(wanted)  # type: ignore[attr-defined]
        block, rows = StoreIndex(str(store)).locate(np.array(wanted, dtype=np.int64))
        found = block.take(pa.array(rows))
        assert found.select(["input_ids", "id", "text"]).to_pylist() == [samples[number] for number in wanted]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_law(tmp_path: Path, shuffle: bool) -> None:
    store_of(tmp_path / "store", blocks_of(LENGTHS[:300], 20), batch_bytes=2000, file_bytes=6000)

    def stored(repeat: bool = False) -> bf.Dataset:
        return bf.from_store(tmp_path / "store", shuffle=shuffle, repeat=repeat)

    assert_exact_resume(stored, max_resumes=4)
    assert_exact_resume(lambda: stored(repeat=True).batch_by_tokens(200, window=90), max_items=60, max_resumes=4)
    assert_exact_resume(lambda: stored().chunk(8).shuffle(50).batch_by_tokens(64, window=90), max_resumes=3)
    assert_exact_resume(lambda: stored().pack(64, window=100), max_resumes=4)


def test_a_state_in_the_middle_goes_on_in_another_process(store: Path) -> None:
    batches = bf.from_store(store, shuffle=True).batch_by_tokens(500, window=600)
    it = batches.iter()
    for _ in range(17):
        next(it)
    state = json.dumps(it.state_dict())
    assert len(state) < 1500
    rest = [batch["id"].tolist() for batch in it]
    code = (
        "import sys, json, brimful as bf\n"
        "it = bf.from_store(sys.argv[1], shuffle=True).batch_by_tokens(500, window=600).iter(json.loads(sys.argv[2]))\n"
        "print(json.dumps([batch['id'].tolist() for batch in it]))"
    )
    found = subprocess.check_output([sys.executable, "-c", code, str(store), state], text=True)
    assert json.loads(found) == rest


def test_a_state_fits_a_store_however_it_came_to_be(tmp_path: Path) -> None:
    """Written now, found by a second call, or opened by its path; and chains over it."""
    rows = bf.from_sequence(["a", "b", "c"])
    ways = [rows.to_store(tmp_path / "store") for _ in range(2)]
    ways += [rows.to_store(tmp_path / "elsewhere"), bf.from_store(tmp_path / "store")]
    for saved_by in ways:
        with saved_by.iter() as it, saved_by.shuffle(2).batch(1).iter() as batches:
            next(it)
            first = next(batches)["text"]
            for way in ways:
                assert [row["text"] for row in way.iter(it.state_dict())] == ["b", "c"]
                rest = [batch["text"][0] for batch in way.shuffle(2).batch(1).iter(batches.state_dict())]
                assert sorted([*first, *rest]) == ["a", "b", "c"]


def test_a_state_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    store_of(tmp_path / "other", blocks_of(LENGTHS[:-1], 100))
    it = bf.from_store(tmp_path / "other").iter()
    next(it)
    with pytest.raises(bf.StateError, match=r"from_store\.rows was 2999 when it was saved and is 3000 here"):
        bf.from_store(store).iter(it.state_dict())


def test_a_state_of_a_store_with_other_values_is_refused_by_the_column(tmp_path: Path) -> None:
    """Files of one name and size, and rows of one length, made it."""
    for name, last in (("one", 7), ("other", 8)):
        shard = tmp_path / "shard.jsonl"
        shard.write_text("".join(f'{{"id": {n}, "input_ids": [{n}, {last if n == 4 else 1}]}}\n' for n in range(9)))
        bf.from_files(str(shard)).to_store(tmp_path / name)
    with bf.from_store(tmp_path / "one").iter() as it:
        next(it)
    other = bf.from_store(tmp_path / "other")
    message = r"from_store\.checksums\.input_ids was \d+ when it was saved and is \d+ here"
    with pytest.raises(bf.StateError, match=message):
        other.iter(it.state_dict())
    assert len(list(other.iter(it.state_dict(), allow={"rows"}))) == 8
    with bf.from_store(tmp_path / "one", columns="id").iter() as it:
        next(it)
    assert len(list(bf.from_store(tmp_path / "other", columns="id").iter(it.state_dict()))) == 8


def test_a_fingerprint_is_of_the_rows_not_of_how_they_are_cut(tmp_path: Path) -> None:
    for name, batch_bytes, lengths in [("a", 100, [1, 2] * 20), ("b", 150, [1, 2] * 20), ("c", 100, [2, 1] * 20)]:
        store_of(tmp_path / name, blocks_of(lengths, 5), batch_bytes, file_bytes=1000)
    one, same, other = (StoreIndex(str(tmp_path / name)) for name in "abc")
    assert one.manifest.files != same.manifest.files
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_stores_join_what_other_data_sets_do(store: Path, samples: list[dict[str, object]]) -> None:
    one, two = bf.from_store(store).take(3), bf.from_sequence([{"input_ids": [70_000], "id": -1, "text": "x"}])
    assert rows_of(one + two) == [*samples[:3], {"input_ids": [70_000], "id": -1, "text": "x"}]
    both = bf.interleave_datasets([one, two], weights=[3, 1])
    (batch,) = both.batch_by_tokens(10_000, window=10, shuffle_batches=False)
    assert sorted(batch["id"].tolist()) == [-1, 0, 1, 2]


def test_a_thousand_files_open_without_a_touch(tmp_path: Path) -> None:
    lengths = [1, 2] * 500
    with patch("os.fsync"):
        manifest = store_of(tmp_path / "store", blocks_of(lengths, 2), batch_bytes=1, file_bytes=1)
    assert len(manifest.files) == 1000
    seconds = []

    def side_file(folder: Path, file: SidecarFile) -> MappedFile:
        assert file.name == "lengths.input_ids.npy", "a file of rows was touched"
        return MappedFile(folder, file)

    with patch.object(local, "MappedFile", side_file):
        for _ in range(3):
            began = time.perf_counter()
            stored = bf.from_store(tmp_path / "store", shuffle=True)
            assert len(stored) == 1000
            assert stored.lengths().sum() == 1500
            seconds.append(time.perf_counter() - began)
            assert len(list(stored.batch_by_tokens(100, window=500).plans())) > 10
    assert min(seconds) < 0.1
    assert sorted(row["id"] for row in rows_of(stored)) == list(range(1000))


def test_no_descriptor_stays_open(store: Path) -> None:
    stored = bf.from_store(store, shuffle=True)
    rows_of(stored)
    names = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not any(store in name.parents and name.suffix == ".arrow" for name in names)


def test_pages_are_given_back(store: Path, samples: list[object]) -> None:
    """Memory does not grow with the store: the data are the same with next to nothing resident."""
    released = []
    release = MappedFile.release
    with (
        patch.object(local, "RESIDENT_BYTES", -1),
        patch.object(MappedFile, "release", lambda self: released.append(1) or release(self)),
    ):
        batches = bf.from_store(store).batch(100, window=300)
        assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(3000))
    assert released


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what is mapped")
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """Its own and what is mapped: a shuffled epoch over 200 MB, of which 16 MB may be mapped, and two record batches."""
    rows = 50_000
    ids = pa.array(np.random.default_rng(0).integers(0, 60_000, rows * 1000, dtype=np.uint16))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * 1000), ids)
    texts = pa.array([f"{number:02000}" for number in range(rows)])
    block = pa.RecordBatch.from_arrays([lists, texts], ["input_ids", "text"])
    store_of(tmp_path / "store", tuple(block.slice(first, 2000) for first in range(0, rows, 2000)))
    code = """
import sys
import brimful as bf
from brimful.index import order
from brimful.core.run import Run
from brimful.store import local

def most():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1e3

local.RESIDENT_BYTES, order.WINDOW_RUNS = int(sys.argv[2]), 64
stage = bf.from_store(sys.argv[1], shuffle=True).stage
before = rows = 0
for block, _ in stage.items(stage.start(0), Run()):
    rows += block.num_rows
    before = before or (rows >= 4_096 and most())
assert rows == 50_000
print(most() - before, sum(file.bytes for file in stage.rows.manifest.files) / 1e6)
"""

    def grown(limit: int) -> tuple[float, float]:
        command = [sys.executable, "-c", code, str(tmp_path / "store"), str(limit)]
        more, size = map(float, subprocess.check_output(command, text=True).split())
        return more, size

    more, size = grown(16 << 20)
    assert size > 195
    assert more < 100
    assert grown(1 << 40)[0] > more + 20  # without a limit it does


def test_threads_share_an_index(store: Path, samples: list[dict[str, object]]) -> None:
    shared = StoreIndex(str(store))
    wrong = []

    def read(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(30):
            wanted = draw.permutation(3000)[:300]
            block, rows = shared.locate(wanted)
            if block.take(pa.array(rows)).column("input_ids").to_pylist() != [samples[n]["input_ids"] for n in wanted]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_index_travels_as_a_path(store: Path) -> None:
    one = StoreIndex(str(store))
    one.locate(np.arange(3000))
    travelled = pickle.dumps(one)
    assert len(travelled) < 500
    assert pickle.loads(travelled).fingerprint() == one.fingerprint()


# -- what can be wrong with a store --------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    store_of(tmp_path / "store", blocks_of([5] * 40, 10), batch_bytes=1, file_bytes=1)
    return tmp_path / "store"


def edit(path: Path, **changes: object) -> None:
    content = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(content | changes))


def test_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            FileNotFoundError,
            match=rf"there is no token store at {path}. To write one, use to_store\(path\) or `brimful tokenize`",
        ):
            bf.from_store(path)


def test_some_columns(store: Path, samples: list[dict[str, object]]) -> None:
    for columns in (["id"], ["text", "input_ids"]):
        stored = bf.from_store(store, columns=columns, shuffle=True)
        wanted = [{name: sample[name] for name in columns} for sample in samples]
        assert sorted(rows_of(stored), key=str) == sorted(wanted, key=str)
        assert list(next(iter(bf.from_store(store, columns=columns)))) == columns
    assert rows_of(bf.from_store(store, columns="id")) == rows_of(bf.from_store(store, columns=["id"]))
    with pytest.raises(
        bf.DataError, match=r"there is no list column 'input_ids' in the store .* \(list columns: none\)"
    ):
        bf.from_store(store, columns=["id"]).lengths()
    with pytest.raises(ValueError, match=r"there is no column 'ids' in the store .* \(columns: input_ids, id, text\)"):
        bf.from_store(store, columns=["ids"])
    for columns in ([], ["id", "id"]):
        with pytest.raises(ValueError, match=r"columns must name at least one column of a store, each once \(got \["):
            bf.from_store(store, columns=columns)


def test_a_state_of_other_columns_is_refused(store: Path) -> None:
    it = bf.from_store(store, columns=["id"]).iter()
    next(it)
    with pytest.raises(bf.StateError, match=r"columns\[0\] was 'id' when it was saved and is 'text' here"):
        bf.from_store(store, columns=["text"]).iter(it.state_dict())


def test_another_version(small: Path) -> None:
    edit(small, version=2)
    content = json.loads((small / MANIFEST).read_text())
    del content["sha256"]
    edit(small, sha256=manifest._digest(content))  # as another release would have written it
    with pytest.raises(bf.StateError, match=r"store has version 2, but this release of brimful reads version 1"):
        bf.from_store(small)


def test_a_damaged_manifest(small: Path) -> None:
    edit(small, rows=41)
    with pytest.raises(bf.DataError, match=r"manifest.json is damaged: its checksum is \w{16}, not \w{16}"):
        bf.from_store(small)
    (small / MANIFEST).write_text("{")
    with pytest.raises(bf.DataError, match=r"manifest.json is damaged: it is not JSON"):
        bf.from_store(small)
    (small / MANIFEST).write_text("{}")
    with pytest.raises(bf.DataError, match=r"manifest.json is no manifest of a token store"):
        bf.from_store(small)


def test_a_missing_file(small: Path) -> None:
    (small / "00002.arrow").unlink()
    stored = bf.from_store(small)
    with pytest.raises(bf.DataError, match=r"00002.arrow is missing from its store: the manifest says [\d,]+ bytes"):
        list(stored)


def test_a_file_of_the_wrong_size(small: Path) -> None:
    size = (small / "00001.arrow").stat().st_size
    with (small / "00001.arrow").open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        bf.DataError, match=rf"00001.arrow is damaged: it has {size + 1:,} bytes, and the manifest says {size:,}"
    ):
        list(bf.from_store(small))
    (small / "lengths.input_ids.npy").write_bytes(b"")
    with pytest.raises(
        bf.DataError, match=r"lengths.input_ids.npy is damaged: it has 0 bytes, and the manifest says 288"
    ):
        bf.from_store(small).lengths()


def test_bits_that_changed_in_a_file_are_an_error_or_other_values_and_never_end_the_process(tmp_path: Path) -> None:
    rows = [{"input_ids": [row] * 3, "labels": [1, row, 3], "text": f"a{row}", "tags": [str(row)]} for row in range(50)]
    bf.from_sequence(rows).to_store(tmp_path / "store")
    child = subprocess.run(
        [sys.executable, "-m", "tests.damage_child", "store", "0", str(times(300, 100_000)), str(tmp_path / "store")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, f"crashed at {child.stderr[-2_000:]}"
    assert not child.stdout, child.stdout[:2_000]


def test_a_file_that_is_no_arrow_file(small: Path) -> None:
    path = small / "00000.arrow"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(
        bf.DataError, match=r"^(?!.*damaged.*damaged).*00000.arrow is damaged: .*; `brimful verify` says what"
    ):
        list(bf.from_store(small))


def test_a_file_of_other_rows(tmp_path: Path) -> None:
    small = tmp_path / "store"
    manifest = store_of(small, blocks_of([5] * 40, 10), batch_bytes=1, file_bytes=2000)
    first, second, *rest = manifest.files
    count = len(first.batches)
    assert set(first.batches) == set(second.batches) == {1}
    fewer = replace(second, batches=second.batches[:-1])
    for files, message in [
        (
            (replace(first, batches=(2, *(1,) * (count - 2))), second),
            "00000.arrow has 1 rows in record batch 0, and the manifest says 2",
        ),
        ((replace(first, batches=(1,) * (count + 1)), fewer), "is damaged: Batch"),
        (
            (replace(first, batches=(1,) * (count + 1)), second),
            "has 40 numbers, but the manifest has 41 rows. Write the store anew",
        ),
    ]:
        replace(manifest, files=(*files, *rest)).save(small)
        with pytest.raises(bf.DataError, match=message):
            list(bf.from_store(small))


def test_a_side_file_that_is_no_array(small: Path) -> None:
    path = small / "lengths.input_ids.npy"
    content = path.read_bytes()
    for damaged in (b"x" * len(content), content[:6] + b"\7" + content[7:]):
        path.write_bytes(damaged)
        with pytest.raises(
            bf.DataError, match=r"lengths.input_ids.npy is damaged: .*; `brimful verify` says what else"
        ):
            bf.from_store(small).lengths()


# -- the schema ----------------------------------------------------------------------------------------------------------


def test_the_schema_is_that_of_the_rows(store: Path) -> None:
    kinds = {"input_ids": pa.list_(pa.int32()), "id": pa.int64(), "text": pa.string()}
    for columns in (None, ["id"], ["text", "input_ids"]):
        stored = StoreIndex.opened(store, columns)
        assert stored.schema == pa.schema([(name, kinds[name]) for name in columns or kinds])
        for numbers in ([], [5], [5, 6, 7], [2999, 0, 1500]):
            block, _ = stored.locate(np.array(numbers, dtype=np.int64))
            assert block.schema.equals(stored.schema.append(pa.field(ORIGIN, ORIGIN_TYPE)), check_metadata=True)
        assert stored.take(np.array([7, 3])).schema == block.schema


def test_the_schema_of_an_empty_store_is_empty(tmp_path: Path) -> None:
    store_of(tmp_path / "store", ())
    stored = StoreIndex(str(tmp_path / "store"))
    assert (len(stored), stored.schema) == (0, pa.schema([]))
    assert stored.locate(np.zeros(0, np.int64))[0].schema.names == [ORIGIN]


# -- padding -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made(Given):
    """Blocks whose columns tokenizers made."""

    known: Padding | None = None

    def facts(self, *inputs: Facts) -> Facts:
        made = SimpleNamespace(padding=self.known, vocabulary=None, num_ids=0, fingerprint=lambda: "one")
        return following(self, tokenizers=lambda: {"input_ids": (made,)})


def test_padding_is_kept_and_changes_no_fingerprint(tmp_path: Path) -> None:
    padding = {"input_ids": Padding(3, "left")}
    for name, known in (("with", padding["input_ids"]), ("without", None)):
        write_store(Made(blocks_of([1, 2], 2), known=known), tmp_path / name)
    one, other = (StoreIndex(str(tmp_path / name)) for name in ("with", "without"))
    assert (paddings(one.tokenizers()), paddings(other.tokenizers())) == (padding, {})
    assert one.fingerprint() == other.fingerprint()


def test_a_store_of_an_earlier_release_has_no_padding(small: Path) -> None:
    content = json.loads((small / MANIFEST).read_text())
    del content["padding"], content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (small / MANIFEST).write_text(json.dumps(content | {"sha256": digest}))
    assert StoreIndex(str(small)).tokenizers() == {}
    assert len(list(bf.from_store(small))) == 40
