"""Columns of arrays: what a batch has of them follows from the declared type and `arrays=` alone, and every value arrives."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import brimful as bf
from brimful.arrays.forms import Form
from brimful.oom.parts import splittable
from brimful.tables.arrays import Shape, arrays_in
from brimful.tables.schema import as_column, conform, large
from brimful.testing import assert_exact_resume
from tests.effort import times

FORMS: tuple[Form, ...] = ("stack", "pad", "concat", "list")
SHAPES: dict[str, Shape] = {
    "boxes": (2, 3),
    "lists": (None,),
    "spectrograms": (None, 4),
    "patches": (None, 3, 2, 2),
    "images": (None, None, 3),
    "channels first": (3, None, None),
    "middle": (2, None, 3),
}
DTYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64")


def array(draw: random.Random, shape: Shape, dtype: str, most: int = 4) -> np.ndarray:
    sizes = [draw.randrange(most + 1) if size is None else size for size in shape]
    values = np.array([draw.randrange(100) for _ in range(prod(sizes))])
    return values.astype(dtype).reshape(sizes)


def rows_of(draw: random.Random, count: int, shape: Shape, dtype: str, most: int = 4) -> list[dict[str, Any]]:
    return [
        {"number": number, "input_ids": [1] * draw.randrange(1, 5), "x": array(draw, shape, dtype, most)}
        for number in range(count)
    ]


def laid_out(arrays: list[np.ndarray], shape: Shape, form: Form, left: bool, fill: float) -> dict[str, Any]:
    """What a batch has of some arrays, in loops over them and over their values."""
    dims = [place for place, size in enumerate(shape) if size is None]
    if form == "stack" or (form == "pad" and not dims):
        return {"x": np.array(arrays)}
    if form == "list":
        return {"x": arrays}
    if form == "concat":
        flat = dims[-1] + 1 if dims else 1
        sizes = [one.shape[:flat] for one in arrays]
        out = {
            "x": np.concatenate([one.reshape(prod(size), *one.shape[flat:]) for one, size in zip(arrays, sizes)]),
            "x_offsets": np.array([sum(map(prod, sizes[:end])) for end in range(len(sizes) + 1)]),
        }
        return out | ({"x_shapes": np.array(sizes)} if flat > 1 else {})
    widths = [max(1, *(one.shape[dim] for one in arrays)) for dim in range(len(shape))]
    values = np.full((len(arrays), *widths), fill, arrays[0].dtype)
    mask = np.zeros((len(arrays), *(widths[dim] for dim in dims)), np.int64)
    for row, one in enumerate(arrays):
        for place in np.ndindex(*one.shape):
            at = [
                width - size + index if left and dim in dims else index
                for dim, (index, size, width) in enumerate(zip(place, one.shape, widths))
            ]
            values[(row, *at)] = one[place]
            mask[(row, *(at[dim] for dim in dims))] = 1
    return {"x": values, "x_mask": mask}


def of_x(batch: Any) -> dict[str, Any]:
    return {name: batch[name] for name in batch if name == "x" or name.startswith("x_")}


def as_told(value: Any) -> Any:
    """Values with their types and shapes, to be compared."""
    if isinstance(value, list):
        return ["list", *map(as_told, value)]
    value = np.asarray(value)
    return str(value.dtype), value.shape, value.tobytes()


def kinds_in(batch: Any) -> dict[str, Any]:
    """The keys of a batch, with the type and the number of dimensions of each."""
    kinds: dict[str, Any] = {}
    for name, value in batch.items():
        one = value[0] if isinstance(value, list) else value
        kinds[name] = (type(value).__name__, str(getattr(one, "dtype", type(one).__name__)), getattr(one, "ndim", 0))
    return kinds


# -- one law for all forms, types and layouts ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_form_is_what_loops_over_values_give(name: str, form: Form) -> None:
    draw = random.Random(f"{name} {form}")
    shape = SHAPES[name]
    for dtype in DTYPES:
        kind, left, fill = bf.array_type(dtype, shape), draw.random() < 0.5, draw.choice([0, 1])
        same = [array(draw, shape, dtype)] * 6
        rows = [{"number": n, "input_ids": [1, 2], "x": one} for n, one in enumerate(same)]
        rows = rows if form == "stack" else rows_of(draw, 6, shape, dtype)
        data = bf.from_sequence([{"n": n} for n in range(6)]).map(
            lambda row, rows=rows: rows[row["n"]], schema=schema(kind)
        )
        side = "left" if left else "right"
        given: dict[str, Any] = {"arrays": {"x": form}, "dtypes": {"x": dtype}, "pad_values": {"x": fill}}
        for batches in (data.batch(4, pad_side=side, **given), data.pack(4, **given)):
            for batch in batches.numpy():
                arrays = [rows[number]["x"] for number in batch["number"].tolist()]
                expected = laid_out(arrays, shape, form, left and "attention_mask" in batch, fill)
                found = of_x(batch)
                assert {key: as_told(value) for key, value in found.items()} == {
                    key: as_told(value) for key, value in expected.items()
                }
                tensors = of_x(next(iter(batches)))
                assert [*tensors] == [*found]


def schema(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {"number": pa.int64(), "input_ids": pa.list_(pa.int64()), "x": kind}


def test_keys_types_and_dimensions_are_the_same_whatever_the_rows() -> None:
    """Schemas at random: empty arrays, windows in which all have one size, one sample."""
    for seed in range(times(400, 10_000)):
        draw = random.Random(seed)
        columns = {f"x{number}": draw.choice([*SHAPES.values()]) for number in range(draw.randrange(1, 4))}
        dtypes = {name: draw.choice(DTYPES) for name in columns}
        kinds = {name: bf.array_type(dtypes[name], shape) for name, shape in columns.items()}
        asked = {name: draw.choice(FORMS[1:]) for name in columns if draw.random() < 0.5}
        way = draw.choice([*LAYOUTS])
        found = []
        for most in (draw.randrange(5), 0, draw.randrange(5)):
            count = draw.choice([1, 2, 5])
            rows = [{"input_ids": [1] * draw.randrange(1, 4)} for _ in range(count)]
            values = {name: [array(draw, shape, dtypes[name], most) for _ in rows] for name, shape in columns.items()}
            table = pa.RecordBatch.from_pydict(
                {"input_ids": [row["input_ids"] for row in rows]}
                | {name: as_column(values[name], kinds[name]) for name in columns}
            )
            found += [kinds_in(batch) for batch in LAYOUTS[way](bf.from_sequence(table), asked)]
        assert all(one == found[0] for one in found), (seed, way, columns, asked)
        for name, shape in columns.items():
            assert_is_told(found[0], name, shape, dtypes[name], asked.get(name), way)


LAYOUTS: dict[str, Callable[[bf.Dataset, dict[str, Form]], Any]] = {
    "padded": lambda data, asked: data.batch(2, arrays=asked),
    "tokens": lambda data, asked: data.batch_by_tokens(6, arrays=asked).numpy(),
    "nested": lambda data, asked: data.batch(2, layout="nested", arrays=asked),
    "packed": lambda data, asked: data.pack(4, arrays=asked),
}


def assert_is_told(kinds: dict[str, Any], name: str, shape: Shape, dtype: str, form: Form | None, way: str) -> None:
    ragged = [size for size in shape if size is None]
    if shape == (None,) and form is None:
        if way != "nested":
            assert kinds[name][2] == 2
        assert not {name + "_mask", name + "_offsets"} & kinds.keys()
        return
    form = form or ("stack" if not ragged else "pad" if way in ("padded", "tokens") else "concat")
    made = "int64" if len(shape) == 1 and dtype.removeprefix("u").startswith("int") else dtype
    dims = {"stack": len(shape) + 1, "pad": len(shape) + 1, "list": len(shape)}
    flat = max((place + 1 for place, size in enumerate(shape) if size is None), default=1)
    assert kinds[name][1].removeprefix("torch.") == made
    assert kinds[name][2] == dims.get(form, len(shape) - flat + 1)
    assert (kinds[name][0] == "list") == (form == "list")
    assert (name + "_mask" in kinds) == (form == "pad" and bool(ragged))
    assert (name + "_offsets" in kinds) == (form == "concat")
    assert (name + "_shapes" in kinds) == (form == "concat" and flat > 1)
    if name + "_mask" in kinds:
        assert kinds[name + "_mask"][2] == 1 + len(ragged)


def test_lists_in_lists_are_padded_each_by_itself_and_are_arrays_where_they_are_equally_long() -> None:
    rows = [{"input_ids": [1], "x": lists} for lists in ([[1, 2], [3]], [], [[4, 5, 6]], [[], [], []])]
    data = bf.from_sequence(rows)
    (batch,) = data.batch(4)
    assert batch["x"].tolist() == [
        [[1, 2, 0], [3, 0, 0], [0] * 3],
        [[0] * 3] * 3,
        [[4, 5, 6], [0] * 3, [0] * 3],
        [[0] * 3] * 3,
    ]
    assert batch["x_mask"].tolist() == [
        [[1, 1, 0], [1, 0, 0], [0] * 3],
        [[0] * 3] * 3,
        [[1] * 3, [0] * 3, [0] * 3],
        [[0] * 3] * 3,
    ]
    (left,) = data.batch(4, pad_side="left", pad_values={"x": -1})
    assert left["x"][0].tolist() == [[-1] * 3, [-1, 1, 2], [-1, -1, 3]]
    for form in ("concat", "list", "stack"):
        with pytest.raises(
            bf.DataError, match=r"'x' has lists of 2 and of 1 values in one sample \(sequence, row 0\), which"
        ):
            next(iter(data.batch(4, arrays={"x": form})))
    (listed,) = bf.from_sequence(rows[1:]).batch(3, arrays={"x": "list"})
    assert [one.tolist() for one in listed["x"]] == [[], [[4, 5, 6]], [[], [], []]]
    (joined,) = bf.from_sequence(rows[1:]).batch(3, arrays={"x": "concat"})
    assert (joined["x"].tolist(), joined["x_shapes"].tolist()) == ([4, 5, 6], [[0, 0], [1, 3], [3, 0]])
    deep = [{"input_ids": [1], "x": [[[1, 2]], [[3, 4], [5, 6]]]}, {"input_ids": [1], "x": [[]]}]
    (batch,) = bf.from_sequence(deep).batch(2)
    assert batch["x"].tolist() == [[[[1, 2], [0, 0]], [[3, 4], [5, 6]]], [[[0, 0], [0, 0]]] * 2]


# -- through stages, workers, stores and resumes ---------------------------------------------------------------------------


def made(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    images = array(draw, (None, None, 3), "uint8")
    return {
        "number": number,
        "input_ids": [1] * draw.randrange(1, 6),
        "frames": array(draw, (None, 4), "float32"),
        "image": images if number else np.zeros((1, 0, 3), np.uint8),
        "half": torch.from_numpy(array(draw, (2, 3), "float16")),
        "patches": torch.from_numpy(array(draw, (None, 3, 2, 2), "float64")),
    }


def of_row(row: dict[str, Any]) -> dict[str, Any]:
    return made(row["number"])


COUNT = 60
PLAIN = [{"number": number} for number in range(COUNT)]
COLUMNS = ("frames", "image", "half", "patches")


def told(sample: dict[str, Any]) -> list[Any]:
    return [as_told(sample[name]) for name in COLUMNS]


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row, row]


def in_parquet(data: bf.Dataset, folder: Path) -> bf.Dataset:
    """As a file of somebody who knows Arrow, and brimful's type by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks: list[pa.RecordBatch] = []
    assert len(list(data.map_blocks(lambda block: blocks.append(block) or block))) == COUNT
    pq.write_table(pa.Table.from_batches(blocks), folder / "a.parquet")
    return bf.from_files(str(folder / "*.parquet"))


def remote(data: bf.Dataset, folder: Path) -> bf.Dataset:
    data.to_store(folder / "store", version="1")
    files = fsspec.filesystem("memory")
    files.put(f"{folder / 'store'}/", f"/{folder.name}/", recursive=True)
    return bf.from_store(f"memory://{folder.name}")


WAYS: dict[str, Callable[[bf.Dataset, Path], bf.Dataset]] = {
    "a function": lambda data, folder: data,
    "an iterable": lambda data, folder: bf.from_iterable(list(map(of_row, PLAIN))),
    "in memory": lambda data, folder: bf.from_sequence(list(map(of_row, PLAIN))),
    "functions": lambda data, folder: data.map(dict).flat_map(lambda row: [row]).filter(lambda row: True),
    "shuffled": lambda data, folder: data.shuffle(16),
    "a store": lambda data, folder: data.to_store(folder / "store", version="1").shuffle(16),
    "a remote store": lambda data, folder: remote(data, folder),
    "a cache": lambda data, folder: data.cache(),
    "mixed": lambda data, folder: bf.interleave_datasets([data.take(30), data.skip(30)], stop="all"),
    "parquet": in_parquet,
    "torch's": lambda data, folder: bf.from_dataset([made(number) for number in range(COUNT)]),
    "processes": lambda data, folder: bf.from_sequence(PLAIN).map(of_row, max_workers=2, executor_type="process"),
    "streamed by processes": lambda data, folder: bf.from_dataset([made(number) for number in range(COUNT)]).stream(
        num_workers=2
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_keep_type_and_shape_on_every_way(way: str, tmp_path: Path) -> None:
    data = WAYS[way](bf.from_sequence(PLAIN).map(of_row), tmp_path)
    found = {int(sample["number"]): told(sample) for sample in data}
    assert found == {number: told(made(number)) for number in range(COUNT)}
    asked: dict[str, Form] = dict.fromkeys(COLUMNS, "list")
    for batches in (data.batch_by_tokens(20, arrays=asked), data.pack(16, arrays=asked)):
        seen = {}
        for batch in batches:
            for place, number in enumerate(batch["number"].tolist()):
                seen[number] = [as_told(batch[name][place]) for name in COLUMNS]
        assert seen == found


BATCHES: dict[str, Callable[[bf.Dataset], bf.Batches]] = {
    "padded": lambda data: data.batch_by_tokens(12, window=20),
    "packed": lambda data: data.pack(12, window=20),
    "lists": lambda data: data.batch_by_tokens(12, window=20, arrays=dict.fromkeys(COLUMNS, "list")).numpy(),
    "by frames": lambda data: data.filter(lambda row: len(row["frames"]) > 0).batch_by_tokens(
        9, window=20, length_column="frames"
    ),
}


@pytest.mark.parametrize("way", ["a function", "a store", "shuffled"])
@pytest.mark.parametrize("name", BATCHES)
def test_a_state_resumes_with_the_same_arrays(name: str, way: str, tmp_path: Path) -> None:
    def make() -> bf.Batches:
        return BATCHES[name](WAYS[way](bf.from_sequence(PLAIN).map(of_row), tmp_path))

    if way == "a store":
        bf.from_sequence(PLAIN).map(of_row).to_store(tmp_path / "store", version="1")
        make = lambda: BATCHES[name](bf.from_store(tmp_path / "store").shuffle(16))  # noqa: E731
    assert_exact_resume(make, max_resumes=5)


def test_another_process_resumes_with_the_same_arrays(tmp_path: Path) -> None:
    bf.from_sequence(PLAIN).map(of_row).to_store(tmp_path / "store", version="1")
    it = rest_of(tmp_path, None)
    list(islice(it, 4))
    (tmp_path / "state.json").write_text(json.dumps(it.state_dict()))
    expected = [sorted((key, as_told(value)) for key, value in of_arrays(batch).items()) for batch in it]
    code = (
        "import json, sys; from pathlib import Path; from tests.arrays.test_ragged import as_told, of_arrays, rest_of; "
        "folder = Path(sys.argv[1]); it = rest_of(folder, json.loads((folder / 'state.json').read_text())); "
        "print([sorted((key, as_told(value)) for key, value in of_arrays(batch).items()) for batch in it])"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=root,
        check=True,
    )
    assert done.stdout.strip() == str(expected)


def rest_of(folder: Path, state: Any) -> Any:
    return bf.from_store(folder / "store").shuffle(16).pack(12, window=20).iter(state)


def of_arrays(batch: Any) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", ["padded", "packed", "lists"])
def test_ranks_share_arrays_and_fillers_repeat_one(name: str) -> None:
    seen, fillers = {}, 0
    for rank in range(4):
        for batch in BATCHES[name](bf.from_sequence(list(map(of_row, PLAIN[:50])))).shard(rank, 4):
            fillers += batch["is_filler"]
            if batch["is_filler"]:
                continue
            for place, number in enumerate(batch["number"].tolist()):
                assert number not in seen
                seen[number] = as_told(batch["half"][place])
    assert fillers
    assert seen == {number: as_told(made(number)["half"]) for number in range(50)}


@pytest.mark.parametrize("name", BATCHES)
def test_arrays_reach_a_device_and_a_loader(name: str) -> None:
    data = bf.from_sequence(PLAIN).map(of_row)
    plain, sent = list(BATCHES[name](data)), list(loaded(BATCHES[name](data), name))
    assert len(plain) == len(sent)
    for one, other in zip(plain, sent, strict=True):
        for key, value in one.items():
            other_value = other[key]
            if isinstance(value, torch.Tensor | np.ndarray) or (isinstance(value, list) and hasattr(value[0], "shape")):
                assert as_told(other_value) == as_told(value), key


def loaded(batches: bf.Batches, name: str) -> Iterator[Any]:
    if name == "lists":
        return iter(batches.prefetch(2))
    return iter(bf.AsyncLoader(batches.to_device("cpu", pad_on_device=name != "packed").loader(), "cpu"))


def test_a_batch_with_arrays_end_to_end_is_cut_between_its_samples() -> None:
    """As a step is that runs out of memory. Where there happened to be as many arrays as samples, it was cut anywhere."""
    data = bf.from_sequence(PLAIN[:8]).map(of_row)
    (padded,) = data.batch(8, arrays=dict.fromkeys(("frames", "image"), "concat"))
    (packed,) = data.pack(8, rows=8, window=8)
    for batch in (padded, packed):
        for count in (2, 3, 8):
            parts = splittable(batch).parts(count)
            assert len(parts) > 1
            for name in ("frames", "image"):
                joined = torch.cat([part[name] for part in parts])
                assert joined.tolist() == batch[name].tolist()
                lengths = torch.cat([part[name + "_offsets"].diff() for part in parts])
                assert lengths.tolist() == batch[name + "_offsets"].diff().tolist()
                assert all(len(part[name + "_offsets"]) == len(part["number"]) + 1 for part in parts)
            assert torch.cat([part["image_shapes"] for part in parts]).tolist() == batch["image_shapes"].tolist()


# -- sizes, layouts, names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_frames_are_planned_over_and_padded_packed_and_cut_like_tokens(stored: bool, tmp_path: Path) -> None:
    rows = [{"frames": np.full((length, 2), length, np.float32), "labels": [*range(length)]} for length in (3, 1, 2)]
    data: bf.Dataset = bf.from_sequence(rows).map(dict)
    data = data.to_store(tmp_path, version="1") if stored else data
    (batch,) = data.batch_by_tokens(12, length_column="frames", pad_to_multiple_of=4, shuffle_batches=False)
    assert (batch["frames"].shape, batch["frames"].dtype) == ((3, 4, 2), torch.float32)
    assert batch["attention_mask"].sum(1).tolist() == batch["lengths"].tolist() == [3, 2, 1]
    assert batch["frames"][1].tolist() == [[2, 2], [2, 2], [0, 0], [0, 0]]
    assert "frames_mask" not in batch
    (packed,) = data.pack(6, length_column="frames")
    assert packed["frames"][0, :, 0].tolist() == [3, 3, 3, 2, 2, 1]
    assert packed["labels"].tolist() == [[-100, 1, 2, -100, 1, -100]]
    (alone,) = data.drop("labels").pack(6, length_column="frames")
    assert "labels" not in alone
    (nested,) = data.batch(3, length_column="frames", layout="nested")
    assert [one.shape for one in nested["frames"].unbind()] == [(3, 2), (1, 2), (2, 2)]
    (cut,) = data.batch(
        bf.TokenBudget(2), length_column="frames", overlong="truncate", truncate_side="left", window=3
    ).take(1)
    assert cut["frames"].shape == (1, 2, 2)
    (static,) = data.batch(bf.StaticShapes([4], 16), length_column="frames")
    assert static["frames"].shape == (4, 4, 2)
    (late,) = data.batch(3, length_column="frames").to_device("cpu", pad_on_device=True)
    assert late["frames"].tolist() == next(iter(data.batch(3, length_column="frames")))["frames"].tolist()
    (collated,) = data.batch_by_tokens(
        9, length_column="frames", collate_fn=lambda samples: [one["frames"] for one in samples]
    )
    assert [(one.shape, one.dtype) for one in collated] == [
        ((3, 2), np.float32),
        ((2, 2), np.float32),
        ((1, 2), np.float32),
    ]


def test_labels_of_several_dimensions_are_padded_with_minus_100_and_a_filler_has_none() -> None:
    rows = [{"input_ids": [1], "labels": np.full((n, 2 * n), 7, np.uint8)} for n in (1, 2, 1)]
    batches = bf.from_sequence(rows).batch(2).shard(1, 2)
    (batch,) = batches
    assert (batch["labels"].dtype, batch["is_filler"], batch["labels"].shape) == (torch.int64, False, (1, 1, 2))
    first, second = bf.from_sequence(rows).batch(1).shard(1, 2)
    assert second["is_filler"]
    assert bool((second["labels"] == -100).all())
    assert first["labels"].tolist() == [[[7] * 4] * 2]
    (whole,) = bf.from_sequence(rows).batch(3)
    assert whole["labels"][0].tolist() == [[7, 7, -100, -100], [-100] * 4]


def test_arrays_of_datasets_keep_their_shape() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "frames": datasets.Array2D((None, 4), "float32"),
            "box": datasets.Array2D((2, 2), "int32"),
            "n": datasets.Value("int64"),
        }
    )
    rows = [{"frames": np.full((n, 4), n, np.float32), "box": np.full((2, 2), n), "n": n} for n in (2, 1, 3)]
    made = datasets.Dataset.from_list(
        [{**row, "frames": row["frames"].tolist(), "box": row["box"].tolist()} for row in rows], features
    )
    data = bf.from_sequence(made)
    assert [sample["frames"].tolist() for sample in data] == [row["frames"].tolist() for row in rows]
    (batch,) = data.batch_by_tokens(9, length_column="frames")
    assert (batch["frames"].shape, batch["frames"].dtype, batch["lengths"].tolist()) == (
        (3, 3, 4),
        torch.float32,
        [3, 2, 1],
    )
    assert (batch["box"].shape, batch["box"].dtype) == ((3, 2, 2), torch.int32)


def test_other_arrays_are_measured_by_their_first_dimension() -> None:
    data = bf.from_sequence([{"h": h} for h in (2, 3, 1)]).map(
        lambda row: {"image": np.ones((row["h"], row["h"] + 1), np.uint8)}
    )
    batches = data.batch(bf.MultiBudget(total={"image": 3}), shuffle_batches=False)
    assert sorted(sorted(batch["image_mask"].amax(2).sum(1).tolist()) for batch in batches) == [[1, 2], [3]]


def test_what_is_planned_by_its_sum_may_lie_end_to_end() -> None:
    rows = [{"nodes": np.ones((n, 2), np.float32), "edges": np.zeros((2 * n, 2), np.int64)} for n in (1, 3, 2, 2)]
    budget = bf.MultiBudget(total={"nodes": 4, "edges": 8})
    batches = list(bf.from_sequence(rows).batch(budget, arrays={"nodes": "concat", "edges": "concat"}))
    assert sorted(len(batch["nodes"]) for batch in batches) == [4, 4]
    for batch in batches:
        assert batch["edges_offsets"].tolist() == (2 * batch["nodes_offsets"]).tolist()
        assert batch.keys() == {"nodes", "nodes_offsets", "edges", "edges_offsets"}


def test_arrays_beside_groups_are_in_the_order_of_the_batch() -> None:
    data = bf.from_sequence(PLAIN).map(of_row)
    for batch in data.batch(20, layout="grouped", num_groups=3):
        order = torch.cat([one[None] for one in batch["groups"]["number"].ungroup()]).tolist()
        assert [as_told(one) for one in batch["image"]] == [as_told(made(number)["image"]) for number in order]


def test_a_list_of_tensors_shares_memory_of_the_batch_and_never_of_the_data() -> None:
    rows = [{"input_ids": [1], "x": np.ones((2, 2), np.float32)} for _ in range(3)]
    data = bf.from_sequence(rows)
    for form in FORMS:
        (batch,) = data.batch(3, arrays={"x": form})
        for one in batch["x"] if form == "list" else [batch["x"]]:
            one.zero_()
        (batch,) = data.batch(3)
        assert bool((batch["x"] == 1).all())
    (batch,) = data.batch(3, arrays={"x": "list"}, dtypes={"x": "bfloat16"})
    assert [one.dtype for one in batch["x"]] == [torch.bfloat16] * 3


def test_an_array_of_another_shape_than_the_first_ones_is_an_error_that_names_the_type() -> None:
    def made(row: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [1], "x": np.ones((2 if row["n"] < 40 else 3, 4), np.float32)}

    data = bf.from_sequence([{"n": n} for n in range(50)])
    words = (
        r"row 40: column 'x' is an array of float of shape \(2, 4\) by the schema but an array of float of shape \(3, 4\) here; "
        r"return one type in every sample, or say it in this method's own schema= "
        r"\('x': bf\.array_type\('float32', \(None, 4\)\)\)$"
    )
    with pytest.raises(bf.StageError, match=words):
        list(data.map(made))
    types = {"input_ids": pa.list_(pa.int64()), "x": bf.array_type("float32", (None, 4))}
    assert [sample["x"].shape for sample in data.map(made, schema=types)] == [(2, 4)] * 40 + [(3, 4)] * 10


IMAGES = [{"input_ids": [1, 2], "x": np.ones((h, 2 * h, 3), np.uint8), "name": "a"} for h in (1, 2)]
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no such form": (
        lambda: bf.from_sequence(IMAGES).batch(2, arrays={"x": "stacked"}),  # type: ignore[dict-item]
        ValueError,
        r"^arrays\['x'\] must be one of stack, pad, concat, list \(got 'stacked'\)",
    ),
    "no such column": (
        lambda: next(iter(bf.from_sequence(IMAGES).batch(2, arrays={"y": "list"}))),
        ValueError,
        "^length_column, pad_values, dtypes or arrays name 'y', but the columns are input_ids, x, name$",
    ),
    "no arrays": (
        lambda: next(iter(bf.from_sequence(IMAGES).batch(2, arrays={"name": "list"}))),
        ValueError,
        r"^arrays names 'name', which holds no arrays \(string\); leave it out of arrays=$",
    ),
    "the tokens": (
        lambda: bf.from_sequence(IMAGES).batch(2, arrays={"input_ids": "list"}),
        ValueError,
        "^arrays names 'input_ids', which is planned over: it is padded, packed and cut like tokens. Leave it out of arrays=",
    ),
    "the labels": (
        lambda: next(iter(bf.from_sequence([{"input_ids": [1], "labels": [1]}]).batch(2, arrays={"labels": "list"}))),
        ValueError,
        "^arrays names 'labels', which goes with 'input_ids': the layout says how these lie",
    ),
    "a collate_fn": (
        lambda: bf.from_sequence(IMAGES).batch(2, arrays={"x": "list"}, collate_fn=list),
        ValueError,
        "^collate_fn makes the batch, so arrays has no effect",
    ),
    "groups": (
        lambda: bf.from_sequence(IMAGES).batch(2, arrays={"x": "pad"}, layout="grouped"),
        ValueError,
        r"^layout='grouped' stacks arrays of one shape, and gives others as lists \(got arrays=\{'x': 'pad'\}\)",
    ),
    "several shapes": (
        lambda: next(iter(bf.from_sequence(IMAGES).batch(2, arrays={"x": "stack"}))),
        bf.DataError,
        r"^column 'x' has arrays of shape \(1, 2, 3\) \(sequence, row 0\) and \(2, 4, 3\) \(sequence, row 1\) in one batch, and ",
    ),
    "static shapes": (
        lambda: next(iter(bf.from_sequence(IMAGES).batch(bf.StaticShapes([4], 8)))),
        bf.DataError,
        "^StaticShapes gives all batches few shapes, and column 'x' has arrays of any size: each batch would have another shape",
    ),
    "a null": (
        lambda: next(iter(bf.from_sequence([*IMAGES, {"input_ids": [1], "x": None, "name": "b"}]).batch(3))),
        bf.DataError,
        r"^column 'x' is null or missing \(sequence, row 2\), and becomes a tensor",
    ),
    "a name that is taken": (
        lambda: next(iter(bf.from_sequence([{**one, "x_mask": 1} for one in IMAGES]).batch(2))),
        bf.DataError,
        "^there is a column 'x_mask', and batches hold something of that name beside the columns; rename or drop it$",
    ),
    "a name of masks": (
        lambda: next(iter(bf.from_sequence(IMAGES).rename({"x": "attention"}).batch(2))),
        bf.DataError,
        "^there is a column 'attention_mask', and batches hold something of that name",
    ),
    "bfloat16": (
        lambda: list(bf.from_sequence(IMAGES).map(lambda row: {"x": torch.ones(2, dtype=torch.bfloat16)})),
        bf.StageError,
        r"a tensor of bfloat16 here \(columns have no such type: return tensor\.float\(\), which changes no value, and ask",
    ),
    "no size": (
        lambda: bf.array_type("float32", (None, 0)),
        ValueError,
        r"^array_type takes a shape of at least 1 dimension, each of at least 1 value, or None where .* \(got \(None, 0\)\)$",
    ),
    "no numbers": (
        lambda: bf.array_type("U3", (None, 2)),
        TypeError,
        "^array_type takes a type of numbers, such as 'float32'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_the_remedy(name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call()


def test_a_scalar_without_a_dimension_keeps_its_type() -> None:
    data = bf.from_sequence([{"n": 1}]).map(
        lambda row: {"a": np.array(1.5, np.float32), "b": torch.tensor(2, dtype=torch.int16)}
    )
    (batch,) = data.batch(1, length_column="b")
    assert (batch["a"].dtype, batch["b"].dtype, batch["a"].tolist()) == (torch.float32, torch.int64, [1.5])


def test_more_than_32_bits_of_values_have_wider_offsets_and_are_stored_in_narrow_ones() -> None:
    kind = bf.array_type("uint8", (None, None, 3))
    column = as_column([np.ones((2, 1, 3), np.uint8), np.zeros((1, 0, 3), np.uint8)], kind)
    wide = conform(pa.record_batch({"x": column}), pa.schema({"x": large(kind)}))
    assert wide.schema.field("x").type.large
    back = conform(wide, pa.schema({"x": kind}))
    assert back.schema.field("x").type == kind
    assert [one.tolist() for one in arrays_in(wide.column("x")) or []] == [
        one["x"].tolist() for one in bf.from_sequence(back)
    ]
    narrow = conform(pa.record_batch({"x": column}), pa.schema({"x": bf.array_type("float32", (None, None, None))}))
    assert [one["x"].dtype for one in bf.from_sequence(narrow)] == [np.float32] * 2


@pytest.mark.parametrize(("other", "shape"), [((4, 3), (None, 3)), ((2, 5), (2, None)), ((4, 5), (None, None))])
def test_data_sets_whose_arrays_differ_in_shape_are_joined(other: tuple[int, ...], shape: Shape) -> None:
    """They were an error, although a function that returns both shapes was none."""
    first, second = (
        bf.from_sequence([{"input_ids": [1], "x": np.full(one, 1, dtype)}] * 2)
        for one, dtype in (((2, 3), "float32"), (other, "int8"))
    )
    for data in (first + second, second + first, bf.interleave_datasets([first.stream(), second.stream()], stop="all")):
        (batch,) = data.batch(4)
        assert batch["x"].dtype == torch.float32
        assert "x: an array of float of shape" in repr(data) or not isinstance(data, bf.IndexedDataset)
        assert batch["x_mask"].ndim == 1 + shape.count(None)
        assert sorted(sample["x"].shape for sample in data) == sorted([(2, 3), other] * 2)


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_a_row_without_an_array_changes_no_other_when_rows_move(dtype: str) -> None:
    arrays = [None if row % 3 == 0 else np.full((2, 3), row % 2, dtype) for row in range(40)]
    data = bf.from_sequence([{"i": row} for row in range(40)]).map(lambda sample: {**sample, "x": arrays[sample["i"]]})
    for sample in data.shuffle(7, seed=1):
        wanted = arrays[sample["i"]]
        assert (sample["x"] is None) == (wanted is None)
        if wanted is not None:
            assert sample["x"].dtype == wanted.dtype
            assert np.array_equal(sample["x"], wanted)


def test_a_tensor_that_needs_gradients_is_refused_with_the_remedy() -> None:
    weights = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(
        bf.StageError, match=r"tensor that needs gradients, which no column can hold: return tensor\.detach\(\)$"
    ):
        list(bf.from_sequence([{}, {}]).map(lambda _: {"x": weights}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), r"a column has no masks: return array\.filled\(value\)"),
        ([np.zeros((2, 3)), np.zeros((1, 3))], r"in a list have no type: return np\.stack or np\.concatenate"),
    ],
)
def test_what_would_lose_its_mask_or_its_shapes_is_refused_with_the_remedy(value: Any, words: str) -> None:
    with pytest.raises(bf.StageError, match=words):
        list(bf.from_sequence([{"x": value}]))
    with pytest.raises(bf.StageError, match=words):
        list(bf.from_sequence([{}, {}]).map(lambda _: {"x": value}))
    for first in (np.arange(3), [1, 2, 3]):
        with pytest.raises(bf.StageError, match=words):
            list(bf.from_sequence([*[{"x": first}] * 3, {"x": value}]).map(lambda sample: sample))


@pytest.mark.parametrize("kind", [pa.list_(pa.list_(pa.float32(), 2)), bf.array_type("float32", (None, None))])
def test_a_row_is_an_array_whatever_its_neighbours_lack(kind: pa.DataType) -> None:
    if isinstance(kind, pa.ListType):
        column = pa.array([[[1, 2]], [[1, None]], None, [[3, 4]]], kind)
    else:
        values = [{"data": data, "shape": [1, 2]} for data in ([1, 2], [1, None], [3, 4])]
        column = pa.ExtensionArray.from_storage(kind, pa.array([*values[:2], None, values[2]], kind.storage_type))
    rows = [sample["x"] for sample in bf.from_sequence(pa.table({"x": column})).stream()]
    assert isinstance(rows[0], np.ndarray)
    assert isinstance(rows[3], np.ndarray)
    assert not isinstance(rows[1], np.ndarray)
    assert rows[2] is None
