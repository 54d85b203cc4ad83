"""A batch is cut between its samples, and what belongs together stays so."""

from __future__ import annotations

from collections import UserDict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import brimful as bf
from brimful.oom.parts import balanced, splittable
from tests.effort import examples


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[str]


@given(st.integers(1, 12), st.integers(1, 14))
def test_columns_are_cut_into_parts_that_differ_by_one_sample_at_most(samples: int, count: int) -> None:
    rows = torch.arange(samples)
    batch = {
        "ids": rows[:, None] * 10,
        "array": rows.numpy(),
        "names": [str(row) for row in rows.tolist()],
        "inner": {"mask": rows > 2},
        "pair": (rows, None),
        "scale": 2.0,
        "tokens": torch.tensor(7),
        "kind": "a word",
    }
    parts = splittable(batch).parts(count)
    assert len(parts) == min(count, samples)
    sizes = [len(part["ids"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == -(-samples // len(parts))
    assert torch.cat([part["ids"] for part in parts]).equal(batch["ids"])
    assert [name for part in parts for name in part["names"]] == batch["names"]
    assert np.concatenate([part["array"] for part in parts]).tolist() == rows.tolist()
    assert torch.cat([part["inner"]["mask"] for part in parts]).equal(rows > 2)
    assert torch.cat([part["pair"][0] for part in parts]).equal(rows)
    assert all(part[name] is batch[name] for part in parts for name in ("scale", "tokens", "kind"))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 20))
def test_a_line_is_cut_into_runs_none_of_them_empty(sizes: list[int], count: int) -> None:
    count = min(count, len(sizes))
    bounds = balanced(np.array(sizes), count)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(sizes), count + 1)
    assert all(first < last for first, last in pairwise(bounds))


def packs() -> st.SearchStrategy[Any]:
    return st.tuples(st.lists(st.integers(0, 8), min_size=1, max_size=14), st.integers(1, 4), st.integers(1, 16))


@given(packs())
@example(([0], 2, 2))
@examples(150)
def test_a_part_of_packed_rows_is_what_packing_its_samples_would_be(drawn: Any) -> None:
    lengths, rows, count = drawn
    samples = [
        {"input_ids": [10 * n + i for i in range(size)], "id": n, "wide": [n] * 8, "name": f"{n}"}
        for n, size in enumerate(lengths)
    ]
    batch = next(iter(bf.from_sequence(samples).pack(8, rows=rows, shuffle_batches=False)))
    assert batch["wide"].shape[1] == batch["input_ids"].shape[1], "by its shape it may be one of the slots"
    batch |= {"row": torch.arange(rows), "column_kinds": {**batch["column_kinds"], "row": "rows"}}
    whole = splittable(batch)
    parts = whole.parts(count)
    assert len(parts) <= whole.samples
    if count >= whole.samples:
        assert all(int((part["segment_ids"] > 0).any(0).sum()) == 0 or part["segment_ids"].max() == 1 for part in parts)
    for name in ("id", "lengths", "wide"):
        assert torch.cat([part[name] for part in parts]).equal(batch[name])
    assert [name for part in parts for name in part["name"]] == batch["name"]
    assert torch.cat([part["row"] for part in parts]).unique().equal(batch["row"])
    assert all(len(part["row"]) == len(part["input_ids"]) for part in parts)
    for name in ("input_ids", "labels", "position_ids"):
        kept = [part[name][part["segment_ids"] > 0] for part in parts]
        assert torch.cat(kept).equal(batch[name][batch["segment_ids"] > 0])
    for part in parts:
        ids, edges = part["segment_ids"], part["cu_seqlens"]
        assert (edges.dtype, int(edges[0]), int(edges[-1])) == (torch.int32, 0, ids.numel())
        assert (part["max_seqlen"], part["labels"].dtype) == (batch["max_seqlen"], batch["labels"].dtype)
        starts = edges[:-1].long()
        assert (part["position_ids"].reshape(-1)[starts] == 0).all()
        sizes = edges.diff()[ids.reshape(-1)[starts] > 0]
        assert sizes.tolist() == [size for size in part["lengths"].tolist() if size]
        for row in ids:
            numbers = row[row > 0].unique().tolist()
            assert numbers == [*range(1, len(numbers) + 1)], "1, 2 ... in each row"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_cut_by_tokens_and_go_on_sharing_offsets() -> None:
    rows = [{"input_ids": [n] * size, "labels": [n] * size, "id": n} for n, size in enumerate([1, 1, 1, 9])]
    (batch,) = bf.from_sequence(rows).batch(4, layout="nested")
    first, second = splittable(batch).parts(2)
    assert [part["id"].tolist() for part in (first, second)] == [[0, 1, 2], [3]]
    assert first["input_ids"].offsets() is first["labels"].offsets()
    assert second["input_ids"].values().tolist() == [3] * 9
    assert (first["input_ids"] + first["labels"]).shape[0] == 3
    with pytest.raises(
        TypeError, match=r"a nested tensor is split by its offsets, which the layout torch.strided has not"
    ):
        splittable({"x": torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.strided)})


def test_what_the_user_has_is_cut_as_it_is() -> None:
    pair = Pair(torch.arange(4), ["a", "b", "c", "d"])
    assert [part.y for part in splittable(pair).parts(2)] == [["a", "b"], ["c", "d"]]
    encoded: Any = UserDict({"input_ids": torch.arange(4)[:, None]})
    encoded.extra = "stays"
    assert [(type(part), part.extra, len(part["input_ids"])) for part in splittable(encoded).parts(2)] == [
        (UserDict, "stays", 2)
    ] * 2
    assert splittable([{"x": 1}, {"x": 2}, {"x": 3}]).parts(2) == [[{"x": 1}], [{"x": 2}, {"x": 3}]]
    assert [part.tolist() for part in splittable(torch.arange(3)).parts(3)] == [[0], [1], [2]]
    assert splittable([torch.zeros(2), torch.zeros(3)]).samples == 2


def test_a_sample_of_several_values_is_as_large_as_the_largest() -> None:
    samples = [{"ids": [1] * length, "label": 1, "rest": {"mask": np.ones(2)}} for length in (3, 7, 5)]
    assert splittable(samples).widths == (7,)
    assert splittable([(sample["ids"], 1) for sample in samples]).widths == (7,)
    assert splittable([{"x": torch.zeros(2, 5)}, {"x": torch.tensor(1)}]).widths == (10,)
    assert splittable([torch.tensor(1), torch.tensor(2)]).widths == (1,)
    assert splittable([{}, {"a": 1}]).widths == (0,)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"a": torch.zeros(3), "b": [1, 2]},
            r"^a batch is split by sample, but 'b' has 2 rows and 'a' has 3; keep what",
        ),
        (({"a": torch.zeros(3)}, [1]), r"but \[1\] has 1 rows and \[0\]\['a'\] has 3"),
        ({"a": 1}, "a batch of type dict holds no column that has rows, so there is nothing to split"),
        ([torch.zeros(3), torch.ones(3)], "a list of 2 tensors of 3 rows may be 2 samples or 2 columns"),
        ({"cu_seqlens": torch.zeros(2), "a": 1}, r"packed rows \(cu_seqlens\) are split by their segment_ids"),
        (
            {"cu_seqlens": torch.tensor([0, 2]), "segment_ids": torch.ones(1, 2, dtype=torch.int64), "odd": [1, 2, 3]},
            r"packed rows of shape \(1, 2\) with 1 samples cannot be split: 'odd' belongs neither to the tokens nor",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splittable(batch)


def packs_of_two() -> dict[str, Any]:
    """Two samples in the first of two rows: as many pieces as rows."""
    return dict(next(iter(bf.from_sequence([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]).pack(4, rows=2))))


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2,), (2, 3)])
def test_a_column_of_an_unknown_kind_is_cut_where_all_kinds_are_one_and_refused_elsewhere(
    shape: tuple[int, ...],
) -> None:
    own = torch.arange(int(np.prod(shape))).reshape(shape)
    added = {**packs_of_two(), "own": own}
    whole = splittable(added)
    assert whole.samples == 3, "and the row of padding"
    with pytest.raises(
        ValueError,
        match=r"\(2, 4\) with 2 samples cannot be split: 'own' has 2 rows, and nobody .* column_kinds={'own': ",
    ):
        whole.parts(2)
    said = {**added, "column_kinds": {**added["column_kinds"], "own": "pieces"}}
    found = [part["own"] for part in splittable(said).parts(3)]
    assert [len(one) for one in found] == [1, 1, 0]
    assert torch.cat(found).equal(own)
    one_each = dict(next(iter(bf.from_sequence([{"input_ids": [1, 2, 3]}, {"input_ids": [4] * 4}]).pack(4, rows=2))))
    assert torch.cat([part["own"] for part in splittable({**one_each, "own": own}).parts(2)]).equal(own)


def test_kinds_that_do_not_fit_and_packed_rows_without_their_boundaries_are_refused() -> None:
    batch = packs_of_two()
    for said in ("slots", "samples"):
        wrong = {**batch, "own": torch.zeros(2, 3), "column_kinds": {"own": said}}
        with pytest.raises(
            ValueError, match=rf"says that 'own' has a value for each of the {said}, and its shape is \(2, 3\)"
        ):
            splittable(wrong)
    with pytest.raises(ValueError, match=r"'own' belongs neither to .* each row, say so: column_kinds={'own': 'rows'}"):
        splittable({**next(iter(bf.from_sequence([[1], [2], [3]]).pack(4, rows=2))), "own": torch.zeros(2)})
    left = {name: one for name, one in batch.items() if not name.startswith("cu_")}
    with pytest.raises(
        ValueError, match=r"packed rows \(column_kinds\) are split by their cu_seqlens, and the batch has none"
    ):
        splittable(left)
    unsaid = {name: one for name, one in batch.items() if name != "column_kinds"}
    assert [part["lengths"].tolist() for part in splittable(unsaid).parts(3)] == [[2], [2], []], "known by their names"


def test_what_nobody_can_look_into_is_refused() -> None:
    with pytest.raises(TypeError, match="a batch of type object cannot be split by sample: give a dict or a tuple"):
        splittable(object())
    with pytest.raises(
        TypeError, match="a batch with a object in it cannot be split by sample; keep it out of the batch"
    ):
        splittable({"a": torch.zeros(2), "b": object()})
