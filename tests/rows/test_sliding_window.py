from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.stage import running
from brimful.testing import assert_exact_resume
from tests.effort import examples
from tests.samples import shard
from tests.strategies import Blocks, sizes, small


@given(
    st.lists(st.integers(0, 5), max_size=14), sizes, st.integers(1, 6), st.integers(1, 5), st.sampled_from([16, 4096])
)
@examples(60)
def test_each_sample_has_the_values_of_its_neighbours(
    lengths: list[int], cut: tuple[int, ...], width: int, rows: int, size: int
) -> None:
    with small(rows, size):
        samples = list(bf.Dataset(Blocks(tuple(lengths), cut)))
        found = list(bf.Dataset(Blocks(tuple(lengths), cut)).sliding_window(width))
    assert len(found) == max(0, len(samples) - width + 1)
    for first, window in enumerate(found):
        those = samples[first : first + width]
        assert window["id"].tolist() == [sample["id"] for sample in those]
        assert window["text"] == [sample["text"] for sample in those]
        assert window["input_ids"] == [sample["input_ids"].tolist() for sample in those]


def test_columns_of_every_kind() -> None:
    rows: list[dict[str, Any]] = [
        {"n": 1, "t": "a", "d": {"x": 1}, "image": np.full((2, 3), 1)},
        {"n": None, "t": None, "d": None, "image": np.full((2, 3), 2)},
    ]
    (window,) = bf.from_iterable(rows).sliding_window(2)
    image = window.pop("image")
    assert window == {"n": [1, None], "t": ["a", None], "d": [{"x": 1}, None]}
    assert (image.shape, image[:, 0, 0].tolist()) == ((2, 2, 3), [1, 2])
    assert list(bf.from_iterable([{}] * 3).sliding_window(2)) == [{}, {}]
    with pytest.raises(
        bf.DataError, match=r"^sliding_window: column 'image' is null or missing \(near iterable, row 0\); filter it"
    ):
        list(bf.from_iterable([*rows, {"image": None}]).sliding_window(2))


def test_epochs_do_not_mix_and_a_short_one_has_no_window() -> None:
    data = bf.from_sequence(["a", "b", "c"], repeat=True)
    assert ["".join(sample["text"]) for sample in data.sliding_window(2).take(5)] == ["ab", "bc", "ab", "bc", "ab"]
    assert list(bf.from_sequence(["a", "b"]).sliding_window(3)) == []
    assert list(bf.from_sequence([]).sliding_window(1)) == []


def test_numbers_of_neighbours_are_batched_side_by_side() -> None:
    (batch,) = bf.from_sequence([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]).sliding_window(2).batch(2)
    assert batch["x"].tolist() == [[1, 2], [2, 3]]


def test_an_error_names_the_first_of_the_neighbours(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"x": number} for number in range(5)]).sliding_window(2)
    with pytest.raises(bf.StageError, match=r"^map\(<lambda>\) failed at shard a\.jsonl, line 3: KeyError: 2"):
        list(data.map(lambda sample: {"y": {0: 1, 1: 2}[int(sample["x"][0])]}))


def test_it_comes_in_small_blocks_however_wide() -> None:
    stage = bf.from_sequence([{"text": f"{number:0200}"} for number in range(3_000)]).sliding_window(400).stage
    with running(stage, stage.start(0)) as items:
        blocks = [block for block, _ in items]
    assert sum(block.num_rows for block in blocks) == 2_601
    assert max(block.nbytes for block in blocks) < 3 << 20


def test_a_resume_reads_no_more_than_it_needs() -> None:
    read: list[int] = []

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        read.append(sample["x"])
        return sample

    data = bf.from_iterable([{"x": number} for number in range(20_000)]).map(noted).sliding_window(3)
    with data.iter() as it:
        for _ in range(15_000):
            next(it)
    read.clear()
    assert next(data.iter(it.state_dict()))["x"].tolist() == [15_000, 15_001, 15_002]
    assert min(read) >= 15_000 - 4_096


def test_settings_are_checked(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(ValueError, match=r"^width must be at least 1 sample \(got 0\)$"):
        bf.from_sequence(["a"]).sliding_window(0)
    message = (
        "^sliding_window slides over the rows of all 2 streams, which are read apart and end apart: read them without"
    )
    with pytest.raises(ValueError, match=message):
        bf.from_files(f"{tmp_path}/*.jsonl", streams=2).sliding_window(2)


def test_rows_that_changed_are_refused() -> None:
    def data(third: str) -> bf.Dataset:
        return bf.from_iterable(["a", "b", third, "d"]).sliding_window(2)

    with small(2, 16):
        it = data("c").iter()
        assert [next(it)["text"], next(it)["text"]] == [["a", "b"], ["b", "c"]]
        assert next(data("c").iter(it.state_dict())) == {"text": ["c", "d"]}
        with pytest.raises(bf.StateError, match=r"from_iterable gave other rows at .* than when this state was saved"):
            next(data("ccc").iter(it.state_dict()))


def test_resume_is_exact_at_every_sample() -> None:
    rows = [{"x": number, "y": [number] * (number % 3)} for number in range(11)]
    for size in (16, 1 << 20):
        with small(3, size):
            assert_exact_resume(lambda: bf.from_iterable(rows, repeat=True).sliding_window(4).take(20))
            assert_exact_resume(
                lambda: bf.from_iterable(rows).filter(lambda sample: sample["x"] % 4 == 1).sliding_window(2)
            )
