"""A leak is found where it was planted, and nowhere else; looking for it changes nothing."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import brimful as bf
from brimful.isolation.call import packed_batch
from brimful.isolation.verdict import segments
from brimful.testing import assert_isolated, isolation_report
from tests.effort import examples
from tests.isolation.toys import HEADS, LEAKS, WIDTH, WORDS, toy

KINDS = ("decoder", "encoder", "hybrid")


def batch_of(lengths: list[int], row_length: int = 40, rows: int = 1) -> dict[str, Any]:
    samples = [{"input_ids": np.random.default_rng(n).integers(0, WORDS, n)} for n in lengths]
    batch: dict[str, Any] = next(iter(bf.from_sequence(samples).pack(row_length, rows=rows, shuffle_batches=False)))
    return batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found_at_its_layer(kind: str, leak: str) -> None:
    test = "alone" if leak == "positions" else "changed"
    for batch in (None, batch_of([9, 14, 3, 10])):
        report = isolation_report(toy(kind, leak), batch)
        found = next(iter(report.leaks.values()))
        assert found is not None
        assert (found.layer, found.kind, found.test) == (LEAKS[leak], leak, test)
        assert not report.isolated
    with pytest.raises(AssertionError, match=rf"packed: .* at {LEAKS[leak]} \(\w+\), by its {leak}"):
        assert_isolated(toy(kind, leak))


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(1, 3))
@examples(30)
def test_a_clean_model_passes_any_batch(kind: str, lengths: list[int], rows: int) -> None:
    report = isolation_report(toy(kind), batch_of(lengths, rows=rows))
    assert report.isolated
    assert (report.dtype, report.tolerance) == ("float64", 1e-6)


def test_a_clean_model_passes_by_itself() -> None:
    for kind in KINDS:
        assert_isolated(toy(kind))


class Odd(nn.Module):
    """Keeps a cache, statistics and a count, draws at random, and has a buffer that each call replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy("decoder")
        self.norm = nn.BatchNorm1d(WORDS)
        self.drop = nn.Dropout(0.5)
        self.calls, self.cache = 0, []  # type: ignore[var-annotated]
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids, position_ids, segment_ids)["logits"]
        self.calls += 1
        self.cache.append(logits)
        self.last = logits.flatten()[:1]
        self.seen += 1
        random.random(), np.random.random(), torch.rand(1)
        return self.norm(self.drop(logits).mT).mT


def test_nothing_changes() -> None:
    model = Odd().train()
    model.inner.eval()
    model.head = nn.Linear(1, 1, dtype=torch.bfloat16)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    before = copy.deepcopy(model.state_dict()), {name: id(one) for name, one in model.named_parameters()}
    modes = [one.training for one in model.modules()]
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
    assert_isolated(model)
    assert_isolated(model, batch_of([5, 9, 4]))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == generators  # type: ignore[index, union-attr]
    assert [one.training for one in model.modules()] == modes
    assert {name: id(one) for name, one in model.named_parameters()} == before[1]
    assert all(
        (one == before[0][name]).all() and one.dtype == before[0][name].dtype
        for name, one in model.state_dict().items()
    )
    assert all(one.grad is not None and bool((one.grad == 1).all()) for one in model.parameters())
    assert (model.calls, model.cache, model.seen.tolist()) == (0, [], [0.0])
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_nothing_changes_where_the_model_fails() -> None:
    class Fails(Odd):
        def forward(self, *given: Any) -> torch.Tensor:  # type: ignore[override]
            super().forward(*given)
            raise KeyError("no")

    model = Fails().train()
    with pytest.raises(TypeError):
        assert_isolated(model)
    assert model.training
    assert (model.calls, model.cache) == (0, [])


def test_padding_that_is_seen_is_found() -> None:
    class Masked(nn.Module):
        def __init__(self, sees: bool) -> None:
            super().__init__()
            self.inner, self.sees = toy("encoder"), sees

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            places = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
            ids = torch.ones_like(attention_mask) if self.sees else attention_mask
            return self.inner(input_ids, places, ids)["logits"]

    data = bf.from_sequence([{"input_ids": [1] * n} for n in (5, 9, 2)])
    for side in ("left", "right"):
        batch = next(iter(data.batch(3, pad_side=side)))
        found = isolation_report(Masked(True), batch).leaks["batch"]
        assert found is not None
        assert (found.layer, found.test) == ("inner.blocks.0.attention", "padding")
        report = isolation_report(Masked(False), batch)
        left = report.leaks["batch"]
        assert report.isolated if side == "right" else left is not None and left.kind == "positions"
    with pytest.raises(AssertionError, match=r"batch: a real token sees padding at inner\.blocks\.0\.attention"):
        assert_isolated(Masked(True), batch)


class Kernel(nn.Module):
    """One layer of attention by a kernel that takes what brimful makes for it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(
        self, input_ids: torch.Tensor, block_mask: Any = None, cu_seqlens_q: Any = None, **more: Any
    ) -> torch.Tensor:
        q, k, v = self.qkv(self.words(input_ids)).view(*input_ids.shape, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if cu_seqlens_q is None:
            return flex_attention(q, k, v, block_mask=block_mask).transpose(1, 2).flatten(2)  # type: ignore[union-attr]
        ids = (torch.arange(input_ids.numel()) >= cu_seqlens_q[1:, None]).sum(0).view(input_ids.shape)
        return (
            nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.tril(ids[:, None, :, None] == ids[:, None, None, :])
            )
            .transpose(1, 2)
            .flatten(2)
        )


def test_inputs_of_kernels_are_tried_as_they_are_given() -> None:
    batch = batch_of([9, 14, 3, 10, 8, 8], rows=2)
    good = [{"block_mask": bf.attention.flex_block_mask(batch, block_size=16)}, bf.attention.varlen(batch)]
    length = batch["input_ids"].shape[1]
    causal = create_block_mask(lambda row, head, query, key: query >= key, 2, None, length, length, device="cpu")
    ends = torch.tensor([0, length, 2 * length], dtype=torch.int32)
    bad = [{"block_mask": causal}, {**bf.attention.varlen(batch), "cu_seqlens_q": ends}]
    for inputs in good:
        assert_isolated(Kernel(), {**batch, **inputs})
    for inputs in bad:
        found = isolation_report(Kernel(), {**batch, **inputs}).leaks["batch"]
        assert found is not None
        assert found.test == "changed"


def test_half_precision_and_float32_have_tolerances_of_their_own() -> None:
    model = toy("decoder").to(torch.bfloat16)

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> Any:
            if next(self.inner.parameters()).dtype == torch.float64:
                raise RuntimeError("no kernel for float64")
            return self.inner(input_ids, position_ids, segment_ids)

    report = isolation_report(Picky())
    assert (report.isolated, report.dtype, report.tolerance) == (True, "bfloat16", 0.05)
    model = toy("decoder", "convolution").to(torch.bfloat16)
    assert not isolation_report(Picky()).isolated


def test_what_cannot_be_tried_is_said() -> None:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids).mean((0, 1))

    with pytest.raises(ValueError, match=r"Pools gives nothing for each token of a batch \(2, \d+\)"):
        assert_isolated(Pools())
    with pytest.raises(ValueError, match="nobody knows how many ids Linear has words for"):
        assert_isolated(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="attn_implementation is for models of transformers"):
        assert_isolated(toy("decoder"), attn_implementation="eager")
    with pytest.raises(ValueError, match="this batch has no tokens to change"):
        assert_isolated(toy("decoder"), {"lengths": torch.ones(1)})


def test_random_batches_are_laid_out_as_pack_does() -> None:
    rows = segments()
    made = packed_batch(rows, 31)
    lengths = [int((row == number).sum()) for row in rows for number in range(1, int(row.max()) + 1)]
    for row, ids in enumerate(rows):
        own = [int((ids == number).sum()) for number in range(1, int(ids.max()) + 1)]
        packed = next(
            iter(bf.from_sequence([{"input_ids": [1] * n} for n in own]).pack(rows.shape[1], shuffle_batches=False))
        )
        assert {*made} | {"lengths", "sample_numbers"} == {*packed}
        if sorted(own, reverse=True) == own:
            assert made["position_ids"][row].tolist() == packed["position_ids"][0].tolist()
    assert made["cu_seqlens"].tolist()[-1] == rows.numel()
    assert sum(lengths) == int((rows > 0).sum())
    assert varlen_attn is not None
