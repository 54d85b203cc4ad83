"""Nested tensors and padded batches, to and from; `group_apply` equals the model on the whole batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import brimful as bf
from brimful.grouping import Collection, OptimalGroups, Partition, group_apply
from tests.effort import examples


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 3))
@examples(30)
def test_nested_tensors_there_and_back(lengths: list[int], num_groups: int) -> None:
    samples = [{"x": torch.rand(n, 2), "y": torch.arange(n), "id": torch.tensor(n)} for n in lengths]
    dims = {"x": "seq 2", "y": "seq", "id": ""}
    nested = Collection(samples, dims).group(OptimalGroups("seq", num_groups)).nested()
    assert (nested["x"].layout, nested["id"].tolist()) == (torch.jagged, lengths)
    assert nested["x"].offsets() is nested["y"].offsets()
    doubled = nested["x"] * nested["y"].unsqueeze(-1)
    for one, sample in zip(doubled.unbind(), samples, strict=True):
        assert torch.equal(one, sample["x"] * sample["y"][:, None])
    back = Collection.from_nested(nested, {"x": "seq ...", "y": "seq", "id": ""})
    for one, sample in zip(back.group(OptimalGroups("seq", num_groups)).ungroup(), samples, strict=True):
        assert all(torch.equal(one[key], sample[key]) for key in dims)


def test_gradients_go_through_nested_tensors() -> None:
    values = torch.rand(5, requires_grad=True)
    collection = Collection([values[:2], values[2:]], "seq").group(Partition([[1], [0]]))
    back = Collection.from_nested(collection.nested(), "seq").group(Partition([[0], [1]]))
    torch.cat(back.ungroup()).mul(torch.arange(5)).sum().backward()
    assert torch.equal(values.grad, torch.arange(5.0))


def test_a_batch_of_nested_tensors_is_a_collection() -> None:
    data = bf.from_sequence([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    batch = next(iter(data.batch(2, layout="nested")))
    back = Collection.from_nested(batch, {"input_ids": "seq", "lengths": ""})
    assert [one["input_ids"].tolist() for one in back.ungroup()] == [[1, 2, 3], [4]]


def jagged(*lengths: int, width: int = 0) -> Any:
    return torch.nested.nested_tensor([torch.ones(n, *filter(None, [width])) for n in lengths], layout=torch.jagged)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Collection.from_nested({"x": jagged(1, 2), "y": jagged(2, 1)}, {"x": "seq", "y": "seq"}),
            "the batch, key 'y': 'seq' has other lengths than in the keys before",
        ),
        (
            lambda: Collection.from_nested({"x": jagged(1, 2)}, {"x": "3"}),
            "the batch, key 'x': the first axis of '3' must name its ragged dimension",
        ),
        (
            lambda: Collection.from_nested({"x": jagged(1, 2, width=3).transpose(1, 2)}, {"x": "seq ..."}),
            "the batch, key 'x', must be a nested tensor of layout torch.jagged, ragged in the first axis after that of the "
            "samples, without holes",
        ),
        (
            lambda: Collection.from_nested({"x": jagged(1, 2), "y": torch.ones(3, 4)}, {"x": "seq", "y": "4"}),
            "the batch, key 'y', has 3 samples with rows of shape (4,), which '4' and 2 samples do not fit",
        ),
        (
            lambda: Collection.from_nested({"x": jagged(1, 2, width=3)}, {"x": "seq 4"}),
            "the batch, key 'x', has 2 samples with rows of shape (3,), which 'seq 4' and 2 samples do not fit",
        ),
        (
            lambda: Collection([torch.ones(2, 3)], "a b").nested(),
            "key '': a nested tensor of layout torch.jagged has one ragged dimension, the first after that of the samples (got 2 "
            "axes up to the last ragged one); take other keys",
        ),
        (
            lambda: Collection.from_padded(torch.ones(2, 3), "seq", {"seq": [4, 1]}),
            "sample 0: 'seq' is 4, but its group is padded to 3; a length must fit, and a rule must not fall where its names "
            "rise",
        ),
        (
            lambda: Collection.from_padded(torch.ones(2, 3), "seq", {"seq": [1]}),
            "lengths of 'seq' are for 1 samples, and the batch has 2",
        ),
        (
            lambda: Collection.from_padded(
                {"x": torch.ones(2, 3), "y": torch.ones(2, 4)}, {"x": "a", "y": "a"}, {"a": [1, 2]}
            ),
            "the batch, key 'y', has shape (2, 4) in group 0, but 'a' makes it (2, 3): 2 samples, a padded to 3",
        ),
        (
            lambda: Collection.of_groups(
                [{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 2).long()}], {"x": "a"}, {"a": [1, 2]}
            ),
            "the batch, key 'x', is a tensor of torch.int64, cpu, torch.strided in group 1, and of torch.float32, cpu, "
            "torch.strided in group 0; make them of one kind, torch.strided",
        ),
        (
            lambda: Collection.from_padded(torch.ones(0, 3), "seq", {"seq": torch.ones(0).long()}),
            "a collection needs at least 1 sample (got none)",
        ),
        (
            lambda: Collection.from_padded({"x": torch.tensor(3)}, {"x": ""}, {}),
            "the batch, key 'x', must have an axis of samples first (got shape ())",
        ),
        (
            lambda: Collection.from_nested({"y": torch.tensor(3)}, {"y": ""}),
            "the batch, key 'y', must have an axis of samples first (got shape ())",
        ),
        (
            lambda: Collection.from_padded(
                {"x": torch.tensor([[5, 6, 7], [0, 0, 8]]), "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 1]])},
                {"x": "seq"},
                {"seq": [3, 1]},
            ),
            "row 1 of attention_mask has its last token at 3, beyond its length of 1; groups are padded on the right: make the "
            "batch with tokenizer.padding_side = 'right', or with pad_side='right' where brimful makes it",
        ),
        (
            lambda: group_apply(len, {"input_ids": 3}, 2),
            "group_apply needs attention_mask (B, L) in the batch (got input_ids)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.tensor([[1, 1], [0, 1]])}, 2),
            "row 1 of attention_mask begins with padding; groups are padded on the right: make the batch with "
            "tokenizer.padding_side = 'right', or with pad_side='right' where brimful makes it",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(1, 1), "bbox": torch.ones(1, 1, 4)}, 2),
            "group_apply does not know whether the model takes 'bbox': name all that it takes in inputs= (by default input_ids, "
            "inputs_embeds, attention_mask, token_type_ids, position_ids, and no labels)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(2, 5), "input_ids": torch.ones(2, 3)}, 2),
            "input 'input_ids' has shape (2, 3), but must begin with (2, 5), as attention_mask does",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(2, 5), "x": torch.ones(3)}, 2, inputs=["x"]),
            "input 'x' has shape (3,), but must begin with (2), as attention_mask does",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(0, 5)}, 2),
            "attention_mask must be (B, L), of at least 1 row (got shape (0, 5))",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(1, 1, 2, 2)}, 2),
            "attention_mask must be (B, L), of at least 1 row (got shape (1, 1, 2, 2))",
        ),
        *(
            (
                lambda lengths=lengths: Collection.from_padded(torch.ones(2, 3), "seq", {"seq": lengths}),  # type: ignore[misc]
                f"lengths must be integers (got {kind})",
            )
            for lengths, kind in (([1.5, 2], "float64"), (["a", "b"], "<U1"), ([2**70, 1], "object"))
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(1, 1)}, 2, inputs=[]),
            "inputs must name at least 1 key of the batch (got none)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(1, 1)}, 2, inputs=["ids"]),
            "inputs names 'ids', but the batch has attention_mask",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: group_apply(len, torch.ones(2, 3), 2),  # type: ignore[arg-type]
            "group_apply takes a batch as a dict with input_ids and attention_mask (got Tensor)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": np.ones((2, 3))}, 2),
            "attention_mask must be a tensor (B, L) (got ndarray)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": None}, 2),
            "attention_mask must be a tensor (B, L) (got NoneType)",
        ),
        (
            lambda: group_apply(len, {"attention_mask": torch.ones(1, 1), "input_ids": np.ones((1, 1))}, 2),
            "input 'input_ids' must be a tensor (got ndarray)",
        ),
        (
            lambda: Collection.from_padded(torch.ones(2, 3), "seq", {3: [1, 2]}),  # type: ignore[dict-item]
            "lengths takes a dict of lengths by name, such as {'seq': [3, 1]} (got {3: [1, 2]})",
        ),
        (
            lambda: Collection.from_padded(torch.ones(2, 3), "seq", [3, 1]),  # type: ignore[arg-type]
            "lengths takes a dict of lengths by name, such as {'seq': [3, 1]} (got [3, 1])",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_of_no_use_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_strided_nested_tensors_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^the batch, key '', must be a nested tensor of layout torch.jagged, ragged in"
    ):
        Collection.from_nested(torch.nested.nested_tensor([torch.ones(2)]), "seq")


def test_nested_tensors_may_be_a_part_of_their_values() -> None:
    values = torch.arange(10)
    for bounds, expected in (([0, 3, 5], [[0, 1, 2], [3, 4]]), ([2, 3, 3], [[2], []])):
        nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor(bounds))
        back = Collection.from_nested(nested, "seq")
        assert [one.tolist() for one in back.group(Partition([[1, 0]])).ungroup()] == expected


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        return {"logits": hidden, "pooled": hidden[:, 0], "loss": hidden.sum()}


def test_group_apply_is_the_model_on_the_whole_batch() -> None:
    torch.manual_seed(0)
    data = bf.from_sequence([{"input_ids": [*range(1, n + 1)], "id": n} for n in (3, 1, 17, 2, 9, 1)])
    batch = next(iter(data.batch(6, pad_to_multiple_of=4)))
    model = Encoder().double()
    expected = model(batch["input_ids"], batch["attention_mask"])
    real = batch["attention_mask"][..., None] != 0

    with pytest.raises(ValueError, match=r"^group_apply does not know whether the model takes 'id': name all that it"):
        group_apply(model, batch, 3)
    del batch["id"]
    logits = group_apply(model, batch, 3)
    assert logits.shape == expected["logits"].shape == (6, 20, 8)
    torch.testing.assert_close(logits, expected["logits"] * real, rtol=1e-10, atol=1e-12)
    pooled = group_apply(model, batch, 3, outputs={"pooled": "..."})["pooled"]
    torch.testing.assert_close(pooled, expected["pooled"], rtol=1e-10, atol=1e-12)
    one_row_each = group_apply(lambda **batch: {"logits": model(**batch)["pooled"]}, batch, 3, outputs="...")
    torch.testing.assert_close(one_row_each, expected["pooled"], rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r'^the model returns pooled, loss; .* such as outputs=\{"pooled": "..."\}'):
        group_apply(lambda **batch: {name: model(**batch)[name] for name in ("pooled", "loss")}, batch, 3)
    gradients, of_whole = (
        torch.autograd.grad((one * real).pow(2).sum(), list(model.parameters())) for one in (logits, expected["logits"])
    )
    for one, other in zip(gradients, of_whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_group_apply_takes_positions_of_one_row_and_leaves_out_what_is_none() -> None:
    batch = {
        "input_ids": torch.tensor([[3, 4, 5], [6, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "position_ids": torch.tensor([[0, 1, 2]]),
        "token_type_ids": None,
        "labels": torch.tensor([[1, 1, 1], [1, -100, -100]]),
        "id": ["a", "b"],
    }
    seen: list[list[str]] = []

    def model(**tensors: torch.Tensor) -> torch.Tensor:
        seen.append([*tensors])
        return tensors["input_ids"] * 10 + tensors["position_ids"]

    assert group_apply(model, batch, 2).tolist() == [[30, 41, 52], [60, 0, 0]]
    assert seen == [["input_ids", "attention_mask", "position_ids"]] * 2


def test_group_apply_takes_models_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertForMaskedLM(config).eval()
    data = bf.from_sequence([{"input_ids": [*range(1, n + 1)]} for n in (3, 1, 12, 2)])
    batch = next(iter(data.batch(4)))
    with torch.no_grad():
        whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        torch.testing.assert_close(group_apply(model, batch, 2), whole * (batch["attention_mask"] != 0)[..., None])


def test_a_mask_that_hides_first_tokens_is_no_padding_on_the_left() -> None:
    batch = {"x": torch.tensor([[5, 6, 7], [8, 0, 0]]), "attention_mask": torch.tensor([[0, 1, 1], [0, 0, 0]])}
    found = Collection.from_padded(batch, {"x": "seq"}, {"seq": [3, 1]}).ungroup()
    assert [sample["x"].tolist() for sample in found] == [[5, 6, 7], [8]]


@pytest.mark.parametrize("policy", [4, bf.StaticShapes([8], 32)], ids=["batches", "static shapes"])
def test_what_brimful_adds_to_a_batch_of_ranks_and_steps_is_not_passed_to_the_model(policy: Any) -> None:
    for name, number in (("labels", "num_items_in_batch"), ("shift_labels", "num_items_on_rank")):
        data = bf.from_sequence([{"input_ids": [1 + n] * (1 + n % 7), name: [1] * (1 + n % 7)} for n in range(16)])
        for batch in data.batch(policy, window=16, micro_batches=2).shard(0, 2):
            assert number in batch
            found = group_apply(lambda input_ids, attention_mask: input_ids * attention_mask, batch, 2)
            assert found.equal(batch["input_ids"])
