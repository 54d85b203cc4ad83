"""Samples in groups and back: nothing is lost, repeated, cropped or mixed up; what does not agree is named."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import brimful as bf
from brimful.grouping import Collection, LengthThresholds, OneGroup, OptimalGroups, Partition
from brimful.grouping.keys import leaves
from tests.effort import examples
from tests.grouping.collections import DIMS, Drawn, drawn, partitions


def ones(*lengths: int) -> list[torch.Tensor]:
    return [torch.ones(length) for length in lengths]


def equal(found: Any, expected: Any) -> bool:
    return all(
        [path for path, _ in leaves(one)] == [path for path, _ in leaves(other)]
        and all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(one), leaves(other)))
        for one, other in zip(found, expected, strict=True)
    )


# -- the law -------------------------------------------------------------------------------------------------------------


@given(drawn(), st.data())
@examples(60)
def test_samples_come_back_in_their_order(case: Drawn, data: Any) -> None:
    collection = Collection(case.samples, DIMS)
    assert equal(collection.ungroup(), case.samples)
    grouped = collection.group(case.partition, pad_to_multiple_of=data.draw(st.integers(1, 3)))
    assert equal(grouped.ungroup(), case.samples)
    again = grouped.regroup(data.draw(partitions(len(case.samples))))
    assert equal(again.ungroup(), case.samples)
    assert equal(pickle.loads(pickle.dumps(again)).regroup(OneGroup()).ungroup(), case.samples)


@given(drawn(), st.integers(1, 3))
@examples(60)
def test_a_group_is_its_samples_padded_to_the_longest(case: Drawn, multiple: int) -> None:
    pads = {"pos": 7.0, "rot": torch.eye(3), "pair": {"dist": -1}}
    grouped = Collection(case.samples, DIMS, pad_values=pads).group(case.partition, pad_to_multiple_of=multiple)
    for members, group in zip(grouped.partition, grouped.groups, strict=True):
        res, atm = (max(1, -(-max(case.lengths[i][axis] for i in members) // multiple)) * multiple for axis in (0, 1))
        expected = {"pos": (res, 3), "rot": (res, 3, 3), "edges": (res + 1, 2), "atoms": (4, atm), "name": ()}
        assert {key: tuple(group[key].shape[1:]) for key in expected} == expected
        for row, number in enumerate(members):
            one, (own_res, own_atm) = case.samples[number], case.lengths[number]
            assert torch.equal(group["pos"][row, :own_res], one["pos"])
            assert (group["pos"][row, own_res:] == 7).all()
            assert torch.equal(group["rot"][row, :own_res], one["rot"])
            assert torch.equal(group["rot"][row, own_res:], torch.eye(3).double().expand(res - own_res, 3, 3))
            dist = torch.full((res, atm), -1.0).double()
            dist[:own_res, :own_atm] = one["pair"]["dist"]
            assert torch.equal(group["pair"]["dist"][row], dist)
            kind = torch.zeros(atm, res, 2).double()
            kind[:own_atm, :own_res] = one["pair"]["kind"]
            assert torch.equal(group["pair"]["kind"][row], kind)


@given(drawn(grad=True), st.data())
@examples(30)
def test_gradients_are_those_of_the_samples(case: Drawn, data: Any) -> None:
    """Through group, regroup and ungroup: each value has the factor that it met, padding none."""
    grouped = Collection(case.samples, DIMS).group(case.partition)
    again = grouped.regroup(data.draw(partitions(len(case.samples)))).ungroup()
    tensors = [tensor for one in case.samples for _, tensor in leaves(one)]
    results = [tensor for one in again for _, tensor in leaves(one)]
    factors = [torch.randn_like(tensor) for tensor in tensors]
    torch.stack([(result * factor).sum() for result, factor in zip(results, factors, strict=True)]).sum().backward()
    assert all(torch.equal(tensor.grad, factor) for tensor, factor in zip(tensors, factors, strict=True))


def test_tensors_without_a_value_keep_their_shapes() -> None:
    samples = [{"x": torch.ones(n, 0), "y": torch.ones(0, n), "z": torch.ones(0)} for n in (2, 1, 0)]
    grouped = Collection(samples, {"x": "seq 0", "y": "0 seq", "z": "0"}).group(Partition([[2, 0], [1]]))
    assert equal(grouped.regroup(OneGroup()).ungroup(), samples)
    assert [tuple(group["x"].shape) for group in grouped.groups] == [(2, 2, 0), (1, 1, 0)]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int16", "bfloat16", "complex64"])
def test_values_of_any_type(dtype: str) -> None:
    kind = getattr(torch, dtype)
    dims = {"x": "seq 2", "y": "seq", "z": "2 seq", "id": ""}
    samples = [
        {
            "x": torch.ones(n, 2).to(kind),
            "y": torch.ones(n).to(kind),
            "z": torch.ones(2, n).to(kind),
            "id": torch.tensor(1).to(kind),
        }
        for n in (2, 1, 3)
    ]
    grouped = Collection(samples, dims).group(OptimalGroups("seq", 2))
    assert equal(grouped.ungroup(), samples)
    assert equal(grouped.regroup(OneGroup()).ungroup(), samples)
    assert {group[key].dtype for group in grouped.groups for key in dims} == {kind}


def test_padding_may_be_learnt() -> None:
    pad = torch.ones(2, requires_grad=True)
    for lengths in ([1, 3], [3, 1], [0], [2]):
        grouped = Collection([torch.zeros(n, 2) for n in lengths], "seq 2", pad_values=pad).group(OneGroup())
        (gradient,) = torch.autograd.grad(grouped.groups[0].sum(), pad)
        assert gradient.tolist() == [max(1, *lengths, 0) * len(lengths) - sum(lengths)] * 2
    assert pad.tolist() == [1, 1]


# -- groupers ------------------------------------------------------------------------------------------------------------


def test_thresholds_give_the_partition_of_the_issue() -> None:
    samples = ones(1, 4, 2, 9)
    grouped = Collection(samples, "seq").group(LengthThresholds("seq", [4]))
    assert grouped.partition == ((0, 1, 2), (3,))
    assert [tuple(group.shape) for group in grouped.groups] == [(3, 4), (1, 9)]
    assert equal(grouped.ungroup(), samples)
    assert grouped.regroup(LengthThresholds("seq", [1, 4, 16])).partition == ((0,), (1, 2), (3,))
    assert grouped.regroup(OneGroup()).partition == ((0, 1, 2, 3),)
    assert grouped.regroup(Partition([[3, 0], [2, 1]])).partition == ((3, 0), (2, 1))
    assert grouped.regroup(OptimalGroups("seq", 2)).partition == ((0, 1, 2), (3,))


def test_optimal_groups_cost_what_thresholds_of_the_same_lengths_cost() -> None:
    lengths = np.random.default_rng(0).integers(0, 50, 40)
    collection = Collection([torch.ones(int(length)) for length in lengths], "seq")
    by_threshold = collection.group(LengthThresholds("seq", bf.grouping.find_thresholds(lengths, 4)))
    assert collection.group(OptimalGroups("seq", 4)).partition == by_threshold.partition


def test_letters_that_look_the_same_are_one_in_every_place() -> None:
    micro, mu = "\u00b5", "\u03bc"
    for name in (micro, mu):
        collection = Collection([torch.ones(n) for n in (1, 3)], micro).group(LengthThresholds(name, [1]))
        assert collection.partition == collection.regroup(OptimalGroups(name, 2)).partition == ((0,), (1,))
        padded = Collection.from_padded(torch.ones(1, 3), mu, {name: [2]})
        assert [len(one) for one in padded.ungroup()] == [2]
        assert Collection([torch.ones(2)], micro, constant=name).sizes == {}


def test_several_dimensions_are_weighed_together() -> None:
    samples = [{"a": torch.ones(a), "b": torch.ones(b)} for a, b in ((9, 1), (1, 9), (8, 2), (2, 8))]
    collection = Collection(samples, {"a": "a", "b": "b"})
    assert collection.group(OptimalGroups(("a", "b"), 2)).partition == ((1, 3), (0, 2))


# -- keys ----------------------------------------------------------------------------------------------------------------


def test_keys_are_parts_in_the_same_groups() -> None:
    samples = [{"a": {"x": torch.ones(n), "y": torch.ones(2)}, "b": torch.ones(n, 1)} for n in (3, 1)]
    collection = Collection(samples, {"a": {"x": "seq", "y": "2"}, "b": "seq 1"})
    flat = Collection(samples, {"a.x": "seq", "a.y": "2", "b": "seq 1"})
    assert repr(flat) == repr(collection) == "Collection(2 samples; a.x: seq, a.y: 2, b: seq 1)"
    grouped = collection.group(Partition([[1], [0]]))
    assert repr(grouped) == "Collection(2 samples in 2 groups; a.x: seq, a.y: 2, b: seq 1)"
    assert (grouped.keys(), grouped["a"].keys(), grouped["a.x"].keys()) == (["a", "b"], ["x", "y"], [])
    assert grouped["a"]["x"].partition == grouped["a.x"].partition == ((1,), (0,))
    assert torch.equal(grouped["a.x"].groups[1], torch.ones(1, 3))
    assert ("a.x" in grouped, "a" in grouped, "c" in grouped, "a.z" in grouped, 3 in grouped) == (
        True,
        True,
        False,
        False,
        False,
    )
    assert grouped.sizes["seq"].tolist() == [3, 1]
    assert len(grouped) == 2
    with pytest.raises(KeyError, match=r"there is no key 'c' \(keys: a.x, a.y, b\)"):
        grouped["c"]
    with pytest.raises(KeyError, match=r"a key must have at least 1 letter \(keys: a, b\)"):
        grouped[""]
    with pytest.raises(KeyError, match=r"a key must have at least 1 letter \(keys: none\)"):
        grouped["b"][""]
    with pytest.raises(KeyError, match=r"a key must have at least 1 letter \(keys: a.x, a.y, b\)"):
        grouped.apply(len, inputs="", outputs="")
    for odd in (0, None):
        with pytest.raises(TypeError, match=rf"^a key is text, such as 'protein.pos' \(got {odd}\)$"):
            grouped[odd]  # type: ignore[index]
    with pytest.raises(TypeError, match=r"^a collection is gone through by keys\(\), groups or ungroup\(\)$"):
        iter(grouped)


def test_compatible_collections_are_assigned() -> None:
    samples = [{"x": torch.rand(n, 2)} for n in (3, 1, 2)]
    collection = Collection(samples, {"x": "seq 2"}).group(LengthThresholds("seq", [2]))
    before = collection["x"]
    collection["more.doubled"] = collection["x"].apply(lambda x: x * 2, outputs="seq 2")
    collection["sum"] = collection["x"].apply(lambda x, mask: (x * mask).sum((1, 2)), masks="seq 1", outputs="")
    assert collection.keys() == ["x", "more", "sum"]
    assert before.keys() == []
    for one, sample in zip(collection.ungroup(), samples, strict=True):
        assert torch.equal(one["more"]["doubled"], sample["x"] * 2)
        assert torch.allclose(one["sum"], sample["x"].sum())
    collection["x"] = collection["more"]
    assert collection.keys() == ["more", "sum", "x"]
    assert [path for path, _ in leaves(collection.ungroup()[0])] == ["more.doubled", "sum", "x.doubled"]


def test_what_is_assigned_brings_its_dimensions_along() -> None:
    partition = Partition([[0], [1]])
    one = Collection([{"x": torch.ones(n)} for n in (2, 3)], {"x": "seq"}).group(partition)
    one["y"] = Collection([torch.ones(n) for n in (5, 4)], "atm").group(partition)
    assert [tuple(group.shape) for group in one.masks("seq atm")] == [(1, 2, 5), (1, 3, 4)]
    assert [len(sample["y"]) for sample in one.regroup(OneGroup()).ungroup()] == [5, 4]


BASE = [[2, 3], [0], [1]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Collection(ones(1, 2), "seq"), "key 'y': a collection of 2 samples cannot join one of 3"),
        (
            lambda: Collection(ones(4, 2, 2), "seq"),
            "key 'y': 'seq' of sample 1 is 2, but 5 in the collection that it is to join",
        ),
        (lambda: Collection(ones(4, 5, 1), "seq"), "key 'y': a collection not in groups cannot join one that is"),
        (
            lambda: Collection(ones(4, 5, 1), "seq").group(Partition([[1, 0], [2]])),
            "key 'y': its groups are others than those of the collection that it is to join; regroup it",
        ),
        (
            lambda: Collection(ones(4, 5, 1), "seq").group(Partition([[0, 1], [2]]), pad_to_multiple_of=8),
            "key 'y': 'seq' is padded to other lengths in its groups; regroup it",
        ),
        (
            lambda: Collection(ones(4, 4, 4), "seq", constant="seq").group(Partition([[0, 1], [2]])),
            "key 'y': 'seq' is 4, but ragged in the collection that it is to join",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_incompatible_collections_are_refused(other: Callable[[], Collection], message: str) -> None:
    collection = Collection([{"x": one} for one in ones(4, 5, 1)], {"x": "seq"}).group(Partition([[0, 1], [2]]))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        collection["y"] = other()
    assert collection.keys() == ["x"]
    with pytest.raises(TypeError, match=r"^what is assigned to key 'y' must be a Collection \(got Tensor\)$"):
        collection["y"] = torch.ones(3)  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"^key 'x.y' would lie inside a tensor of Collection\(3 samples"):
        collection["x.y"] = collection["x"]
    with pytest.raises(ValueError, match=r"^key 'y' would lie inside a tensor of Collection\(3 samples"):
        collection["x"]["y"] = collection["x"]


# -- devices, processes --------------------------------------------------------------------------------------------------


def grouped(samples: list[torch.Tensor]) -> Collection:
    return Collection(samples, "seq").group(OptimalGroups("seq", 2))


def test_it_is_what_a_collate_fn_may_give() -> None:
    loader = DataLoader(ones(3, 1, 4, 1, 5), batch_size=3, collate_fn=grouped, num_workers=1)  # type: ignore[arg-type]
    batches = list(loader)
    assert [batch.partition for batch in batches] == [((1,), (0, 2)), ((0,), (1,))]
    assert equal(batches[0].ungroup(), ones(3, 1, 4))


def test_it_goes_to_a_device() -> None:
    collection = Collection([torch.ones(2, 3, 3)], "seq 3 3", pad_values=torch.eye(3)).group(OneGroup())
    moved = collection.to("meta", non_blocking=True)
    assert moved.groups[0].device.type == "meta"
    assert collection.groups[0].device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_works_on_a_gpu() -> None:
    samples = [torch.rand(n, 2) for n in (3, 1, 4, 1, 5)]
    collection = Collection(samples, "seq 2").pin_memory().to("cuda", non_blocking=True)
    doubled = collection.group(OptimalGroups("seq", 2)).apply(
        lambda x, mask: x * 2 * mask, masks="seq 1", outputs="seq 2"
    )
    assert equal(doubled.to("cpu").ungroup(), [2 * one for one in samples])
