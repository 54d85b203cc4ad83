"""A module once a group: what it gets, what becomes of its results, and that both equal one sample at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from brimful.grouping import Collection, LengthThresholds, OneGroup, OptimalGroups, Partition
from brimful.plan import find_thresholds
from brimful.plan.groups import by_thresholds
from tests.effort import examples
from tests.grouping.collections import DIMS, Drawn, drawn


class MaxPooled(nn.Module):
    """The demo: embedding, linear, masked max-pool, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.embedding(tokens)).masked_fill(~mask[..., None], -torch.inf)
        return self.second(hidden.amax(1))


class Pairs(nn.Module):
    """Pairwise distances of residues and atoms: a score a residue, a score an atom, and their sum."""

    def forward(
        self, protein: dict[str, torch.Tensor], atoms: torch.Tensor, pair: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        rotated = torch.einsum("brij,brj->bri", protein["rot"], protein["pos"])
        near = torch.exp(-torch.cdist(rotated, atoms)) * pair
        return {"res": near.sum(2), "atm": near.sum(1), "all": near.sum((1, 2)), "near": near}


def test_the_demo_equals_the_padded_run() -> None:
    random = np.random.default_rng(0)
    lengths = random.permutation(np.repeat([1, 4, 16, 64], [771, 193, 48, 12]))
    samples = [torch.from_numpy(random.integers(0, 50, length)) for length in lengths]
    torch.manual_seed(0)
    model = MaxPooled().double()
    target = torch.randn(len(samples), 3, dtype=torch.float64)

    def run(collection: Collection) -> tuple[torch.Tensor, list[torch.Tensor]]:
        result = torch.stack(collection.apply(model, masks="seq", outputs="3").ungroup())
        return result, list(torch.autograd.grad(((result - target) ** 2).sum(), list(model.parameters())))

    collection = Collection(samples, "seq")
    thresholds = find_thresholds(lengths, 4)
    assert thresholds == [1, 4, 16]
    padded, of_padded = run(collection.group(OneGroup()))
    grouped, of_grouped = run(collection.group(LengthThresholds("seq", thresholds)))
    torch.testing.assert_close(grouped, padded, rtol=1e-10, atol=0)
    for one, other in zip(of_grouped, of_padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@given(drawn(grad=True))
@examples(25)
def test_two_ragged_dimensions_equal_one_at_a_time(case: Drawn) -> None:
    """Grouped by one dimension, regrouped by the other: results and gradients."""
    inputs = {"protein": "protein", "atoms": "atoms"}
    outputs = {"res": "res", "atm": "atm", "all": "", "near": "res atm"}
    samples: list[Any] = [
        {"protein": {"pos": one["pos"], "rot": one["rot"]}, "atoms": one["atoms"][:3].T} for one in case.samples
    ]
    dims = {"protein": {"pos": "res 3", "rot": "res 3 3"}, "atoms": "atm 3"}
    collection = Collection(samples, dims, pad_values={"protein": {"rot": torch.eye(3)}})
    module, seen = Pairs(), 0
    leaves = [tensor for one in samples for tensor in (one["protein"]["pos"], one["protein"]["rot"], one["atoms"])]
    alone = [
        module(
            {key: tensor[None] for key, tensor in one["protein"].items()},
            one["atoms"][None],
            torch.ones(1, len(one["protein"]["pos"]), len(one["atoms"])),
        )
        for one in samples
    ]
    expected = [{key: value[0] for key, value in one.items()} for one in alone]
    of_alone = torch.autograd.grad(sum(one["all"] ** 2 for one in expected), leaves, allow_unused=True)
    by_res = collection.group(OptimalGroups("res", 2))
    for grouped in (by_res, by_res.regroup(OptimalGroups("atm", 2)), by_res.regroup(case.partition)):
        result = grouped.apply(module, inputs=inputs, masks={"pair": "res atm"}, outputs=outputs).ungroup()
        for one, other in zip(result, expected, strict=True):
            for key in outputs:
                torch.testing.assert_close(one[key], other[key], rtol=1e-10, atol=1e-12)
        gradients = torch.autograd.grad(
            sum(one["all"] ** 2 for one in result), leaves, allow_unused=True, retain_graph=True
        )
        for ours, theirs in zip(gradients, of_alone, strict=True):
            torch.testing.assert_close(torch.nan_to_num(ours), torch.nan_to_num(theirs), rtol=1e-9, atol=1e-10)
        seen += len(result)
    assert seen == 3 * len(samples)


def test_masks_of_two_dimensions_are_the_and_of_both() -> None:
    samples = [{"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.ones(3), "b": torch.ones(1)}]
    collection = Collection(samples, {"a": "res", "b": "atm"}).group(OneGroup())
    (mask,) = collection.masks("res atm")
    assert mask.int().tolist() == [[[1, 1, 1], [1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0], [1, 0, 0]]]
    (turned,) = collection.masks("atm res")
    assert torch.equal(turned, mask.transpose(1, 2))
    (inverted,) = collection.masks("~res atm")
    assert torch.equal(inverted, ~mask)
    (wide,) = collection.masks("res 2 2")
    assert torch.equal(wide, mask.any(2)[..., None, None].expand(2, 3, 2, 2))
    (changed,) = collection.masks("res-1")
    assert changed.int().tolist() == [[1, 0], [1, 1]]


def test_padding_of_rotations_is_the_identity() -> None:
    samples = [{"rot": torch.rand(n, 3, 3), "id": torch.tensor(n)} for n in (2, 4)]
    collection = Collection(samples, {"rot": "res 3 3", "id": ""}, pad_values={"rot": torch.eye(3)}).group(OneGroup())
    (group,) = collection.groups
    assert torch.equal(group["rot"][0, 2:], torch.eye(3).expand(2, 3, 3))
    inverses = collection.apply(torch.linalg.inv, inputs="rot", outputs="res 3 3", pad_values=torch.eye(3))
    torch.testing.assert_close(inverses.groups[0][0, 2:], torch.eye(3).expand(2, 3, 3))
    for one, sample in zip(inverses.ungroup(), samples, strict=True):
        torch.testing.assert_close(one, torch.linalg.inv(sample["rot"]))


def test_a_dimension_goes_through_changes_by_a_rule_or_vanishes() -> None:
    samples = [torch.randn(4, n) for n in (9, 3, 5, 8)]
    grouped = Collection(samples, "4 seq").group(LengthThresholds("seq", [5]))
    for module, outputs in (
        (nn.Conv1d(4, 6, 3), "6 seq-2"),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1), "6 (seq-1)//2+1"),
        (nn.Conv1d(4, 6, 3, dilation=1, padding=2), "6 seq+2"),
        (nn.Identity(), "... seq"),
    ):
        result = grouped.apply(module, outputs=outputs).regroup(OneGroup()).ungroup()
        for one, sample in zip(result, samples, strict=True):
            torch.testing.assert_close(one, module(sample[None])[0])
    shrunk = grouped.apply(nn.Conv1d(4, 6, 3), outputs="6 seq-2")
    again = shrunk.apply(nn.Conv1d(6, 2, 2), outputs="2 seq-3")
    pooled = again.apply(lambda x, mask: (x * mask).sum(-1), masks="2 seq-3", outputs="2")
    assert [tuple(one.shape) for one in again.regroup(OneGroup()).ungroup()[:1]] == [(2, 6)]
    assert [tuple(one.shape) for one in pooled.ungroup()] == [(2,)] * 4


def test_a_constant_has_a_name_and_one_size() -> None:
    samples = [torch.randn(n, 4) for n in (3, 1)]
    grouped = Collection(samples, "seq d", constant="d").group(Partition([[0], [1]]))
    result = grouped.apply(lambda x, mask: torch.cat((x, x), -1) * mask, masks="seq 2*d", outputs="seq 2*d")
    assert [tuple(one.shape) for one in result.ungroup()] == [(3, 8), (1, 8)]
    with pytest.raises(
        ValueError, match=r"^the output has shape \(1, 3, 4\) in group 0, but 'seq d\+1' makes it \(1, 3, 5\)"
    ):
        grouped.apply(nn.Identity(), outputs="seq d+1")


def test_inputs_are_picked_and_renamed() -> None:
    samples = [{"a": {"x": torch.ones(n), "y": torch.ones(n, 2)}, "b": torch.tensor(n)} for n in (1, 3)]
    grouped = Collection(samples, {"a": {"x": "seq", "y": "seq 2"}, "b": ""}).group(Partition([[0], [1]]))
    seen: list[Any] = []

    def see(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((args, kwargs))
        return torch.zeros(1)

    def shapes(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shapes(inner) for key, inner in value.items()}
        return tuple(map(shapes, value)) if isinstance(value, tuple) else tuple(value.shape)

    a = {"x": (1, 1), "y": (1, 1, 2)}
    for inputs, masks, expected in (
        (None, None, ((), {"a": a, "b": (1,)})),
        ("a.x", "seq", (((1, 1), (1, 1)), {})),
        (["b", "a"], {"key_padding_mask": "~seq 1"}, (((1,), a), {"key_padding_mask": (1, 1, 1)})),
        ({"input": "a.y"}, ["seq"], (((1, 1),), {"input": (1, 1, 2)})),
    ):
        seen.clear()
        grouped.apply(see, inputs=inputs, masks=masks, outputs="")
        assert len(seen) == 2
        assert shapes(seen[0]) == expected


def test_tuples_of_results() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
    samples = [torch.randn(n, 4, dtype=torch.float64) for n in (3, 1, 6, 2)]
    grouped = Collection(samples, "seq 4").group(OptimalGroups("seq", 2))
    out, weights = grouped.apply(
        attention, inputs=["", "", ""], masks={"key_padding_mask": "~seq"}, outputs=("seq 4", "seq seq")
    )
    first, nothing = grouped.apply(
        attention, inputs=["", "", ""], masks={"key_padding_mask": "~seq"}, outputs=("seq 4", None)
    )
    assert nothing is None
    for one, again, weight, sample in zip(out.ungroup(), first.ungroup(), weights.ungroup(), samples, strict=True):
        expected, expected_weight = attention(sample, sample, sample)
        torch.testing.assert_close(one, expected)
        torch.testing.assert_close(again, expected)
        torch.testing.assert_close(weight, expected_weight)


def test_a_module_may_change_its_input_in_place() -> None:
    values = torch.randn(6, requires_grad=True)
    grouped = Collection([values[:1] * 2, values[1:] * 2], "seq").group(Partition([[0], [1]]))
    result = grouped.apply(nn.ReLU(inplace=True), outputs="seq").ungroup()
    torch.cat(result).sum().backward()
    assert torch.equal(values.grad, 2.0 * (values > 0))


def test_a_second_convolution_sees_no_bias_where_there_is_padding() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv1d(2, 3, 3, padding=1).double(), nn.Conv1d(3, 2, 3, padding=1).double()
    samples = [torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (4, 1, 6)]
    grouped = Collection(samples, "2 seq").group(OneGroup())
    once = grouped.apply(first, outputs="3 seq")
    assert once.groups[0][1, :, 1:].abs().sum() > 0
    repadded = once.repad()
    assert repadded.groups[0][1, :, 1:].abs().sum() == 0
    assert repadded.repad(pad_values=7).groups[0][1, :, 1:].unique().tolist() == [7]
    results = repadded.apply(second, outputs="2 seq").ungroup()
    expected = [second(first(one[None]))[0] for one in samples]
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
    ours, theirs = (
        torch.autograd.grad(torch.cat(found, 1).pow(2).sum(), samples, retain_graph=True)
        for found in (results, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_repadding_keeps_the_groups_and_their_lengths() -> None:
    samples = [{"x": torch.ones(n, 3, 3), "y": torch.ones(n)} for n in (1, 3)]
    dims, pads = {"x": "seq 3 3", "y": "seq"}, {"x": torch.eye(3)}
    grouped = Collection(samples, dims, pad_values=pads).group(Partition([[1, 0]]), pad_to_multiple_of=4)
    again = grouped.repad(pad_values={"y": 5})
    assert (again.partition, again.extents["seq"].tolist()) == (((1, 0),), [4])
    assert torch.equal(again.groups[0]["x"], grouped.groups[0]["x"])
    assert again.groups[0]["y"].tolist() == [[1, 1, 1, 5], [1, 5, 5, 5]]
    with pytest.raises(ValueError, match=r"^pad_values names 'z', but the keys are 'x', 'y'$"):
        grouped.repad(pad_values={"z": 1})


def test_what_a_module_raises_says_with_which_group() -> None:
    samples = [{"x": torch.randn(4, n)} for n in (9, 4, 9, 4, 4, 4, 4, 4)]
    grouped = Collection(samples, {"x": "4 seq"}).group(LengthThresholds("seq", [5]))
    shrunk = grouped["x"].apply(nn.Conv1d(4, 4, 3), outputs="4 seq-2")
    with pytest.raises(RuntimeError) as caught:
        shrunk.apply(lambda x, mask: x * mask, masks="1 seq", outputs="4 seq-2")
    assert caught.value.__notes__ == [
        "In apply, group 0 of 2: 6 samples (1, 3, 4, 5, 6, ...); argument 0 (6, 4, 2), argument 1 (6, 1, 4). Where a rule such "
        "as 'seq-2' has changed an axis, its mask is of that rule too: masks='seq-2'"
    ]
    with pytest.raises(TypeError) as caught_too:
        grouped.apply(lambda x: len(3), outputs="")  # type: ignore[arg-type]
    assert caught_too.value.__notes__ == ["In apply, group 0 of 2: 6 samples (1, 3, 4, 5, 6, ...); x (6, 4, 4)"]


def test_it_runs_under_autocast_and_compiled() -> None:
    samples = [torch.randn(n, 4) for n in (3, 1, 6, 2, 5)]
    grouped = Collection(samples, "seq 4").group(LengthThresholds("seq", [4]), pad_to_multiple_of=4)
    assert [group.shape[1] for group in grouped.groups] == [4, 8]
    linear = nn.Linear(4, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = grouped.apply(linear, outputs="seq 2").ungroup()
    assert {one.dtype for one in result} == {torch.bfloat16}
    compiled = torch.compile(linear, backend="aot_eager", dynamic=True)
    for one, sample in zip(grouped.apply(compiled, outputs="seq 2").ungroup(), samples, strict=True):
        torch.testing.assert_close(one, linear(sample))


@given(drawn())
@examples(25)
def test_what_lies_in_padded_slots_is_never_given_back(case: Drawn) -> None:
    grouped = Collection(case.samples, DIMS, pad_values={"pos": torch.nan, "pair.dist": torch.nan}).group(
        case.partition
    )
    assert all(not tensor.isnan().any() for one in grouped.ungroup() for tensor in (one["pos"], one["pair"]["dist"]))
    squared = grouped["pair.dist"].apply(lambda dist: dist**2, outputs="res atm")
    for one, sample in zip(squared.regroup(OneGroup()).ungroup(), case.samples, strict=True):
        assert torch.equal(one, sample["pair"]["dist"] ** 2)
    assert all(not group.isnan().any() for group in squared.regroup(OneGroup()).groups)


def test_groups_of_a_data_set_by_thresholds_are_those_of_the_plan() -> None:
    lengths = [3, 9, 1, 4]
    grouped = Collection([torch.ones(n) for n in lengths], "seq").group(LengthThresholds("seq", [1, 5]))
    assert [list(group) for group in grouped.partition] == [group.tolist() for group in by_thresholds(lengths, [1, 5])]
