"""A leak is found where it was planted, and nowhere else; looking for it changes nothing."""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import brimful as bf
from brimful.integrations.calls import CallGuard
from brimful.isolation.call import packed_batch
from brimful.isolation.safe_call import segments
from brimful.testing import assert_isolated, isolation_report
from tests.effort import times
from tests.isolation.toys import HEADS, LEAKS, WIDTH, WORDS, Adapted, toy

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
def test_a_clean_model_passes_a_thousand_random_batches_with_the_other_kinds(kind: str) -> None:
    model, draw = toy(kind, depth=1), torch.Generator().manual_seed(KINDS.index(kind))
    for number in range(times(334, 5_000)):
        rows, length = 1 + number % 2, 4 + number % 13
        ids = (torch.rand(rows, length, generator=draw) < 0.2).long().cumsum(1) + 1
        ids[:, length - number % 4 :] = 0  # padding at the end of most rows
        report = isolation_report(model, packed_batch(ids, WORDS))
        assert report.isolated, (ids, report)
        assert (report.dtype, report.tolerance) == ("float64", 1e-6)


def test_a_clean_model_passes_by_itself() -> None:
    for kind in KINDS:
        assert_isolated(toy(kind))


class Odd(nn.Module):
    """Keeps caches, statistics and a count, draws at random, and has a buffer that each call replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy("decoder")
        self.norm = nn.BatchNorm1d(WORDS)
        self.drop = nn.Dropout(0.5)
        self.calls, self.cache = 0, []  # type: ignore[var-annotated]
        self.inside = {"lengths": deque([0]), "sums": [torch.zeros(2)], "both": [[]]}  # type: ignore[dict-item]
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids, position_ids, segment_ids)["logits"]
        self.calls += 1
        self.cache.append(logits)
        self.inside["lengths"].append(input_ids.shape[1])
        self.inside["both"][0].append(logits)
        self.inside["sums"][0] += 1
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
    assert (model.inside["lengths"], model.inside["both"], model.inside["sums"][0].tolist()) == (
        deque([0]),
        [[]],
        [0, 0],
    )
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_nothing_changes_where_the_model_fails() -> None:
    class Fails(Odd):
        def forward(
            self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor
        ) -> torch.Tensor:
            logits = super().forward(input_ids, position_ids, segment_ids)
            if self.inner.blocks[0]._forward_hooks:  # type: ignore[union-attr, index]
                raise KeyError("within the search for the layer")
            return logits

    model = Fails().train()
    model.inner.blocks[1].attention.leaks = True  # type: ignore[union-attr, index]
    with pytest.raises(KeyError, match="within the search for the layer"):
        assert_isolated(model)
    assert all(one.training for one in model.modules())
    assert (model.calls, model.cache) == (0, [])
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


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


LEAST = torch.finfo(torch.float64).min
MASKS: dict[str, Any] = {
    "-1e9": lambda x, at: x.masked_fill(at, -1e9),
    "the least float32": lambda x, at: x.masked_fill(at, torch.finfo(torch.float32).min),
    "the least float64": lambda x, at: x.masked_fill(at, LEAST if x.dtype == torch.float64 else 0),
    "infinite": lambda x, at: x.masked_fill(at, -torch.inf),
    "-1e9 more": lambda x, at: x - 1e9 * at,
    "-1e9 in most slots": lambda x, at: x.masked_fill(at & (x[..., :1] > -0.2), -1e9),
}


@pytest.mark.parametrize("columns", [3, WORDS - 4])
@pytest.mark.parametrize("mask", MASKS)
def test_a_leak_is_seen_beside_logits_that_are_masked(mask: str, columns: int) -> None:
    class Masked(nn.Module):
        def __init__(self, leak: str) -> None:
            super().__init__()
            self.inner = toy("decoder", leak)

        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> Any:
            logits = self.inner(input_ids, position_ids, segment_ids)["logits"]
            return MASKS[mask](logits, torch.arange(WORDS) >= WORDS - columns)

    assert_isolated(Masked(""))
    found = isolation_report(Masked("attention")).leaks["packed"]
    assert found is not None
    assert (found.layer, found.test) == ("inner.blocks.1.attention", "changed")
    model = Masked("attention")
    with pytest.raises(ValueError, match=r"in Masked samples see each other at inner\.blocks\.1\.attention"):
        bf.warm_up(
            lambda batch: model(*(batch[name] for name in ("input_ids", "position_ids", "segment_ids"))),
            bf.from_sequence([{"input_ids": [6 + n] * (2 + n % 5)} for n in range(9)]).pack(32),
        )


class Words(nn.Module):
    """A value for each token, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.head(self.words(input_ids))


def test_what_is_not_finite_and_differs_is_a_leak() -> None:
    class Seen(Words):
        """The words that are in the row are masked: an infinite logit, and no other value, is another one."""

        def forward(self, input_ids: torch.Tensor) -> Any:
            there = nn.functional.one_hot(input_ids, WORDS).amax(1, keepdim=True) > 0
            return (self.words(input_ids) @ self.words.weight.detach().T).masked_fill(there, -torch.inf)

    found = isolation_report(Seen(), batch_of([9, 14, 3, 10])).leaks["batch"]
    assert found is not None
    assert (found.test, found.difference) == ("changed", float("inf"))


def test_a_leak_into_a_feature_that_is_small_is_seen() -> None:
    class Small(Words):
        def __init__(self, sees: float) -> None:
            super().__init__()
            self.sees = sees

        def forward(self, input_ids: torch.Tensor) -> Any:
            x = super().forward(input_ids)
            return torch.cat((x[..., 1:], (x[..., :1] + self.sees * x[..., :1].mean(1, keepdim=True)) * 1e-3), -1)

    assert isolation_report(Small(0)).isolated
    assert not isolation_report(Small(1e-4)).isolated


@pytest.mark.parametrize(("sample", "others"), [(5, 4), (4, 5), (3, 2), (8, 7), (2, 8)])
def test_each_of_eight_samples_of_a_row_is_tried(sample: int, others: int) -> None:
    class OneSeesAnother(Words):
        """A little less than what may lie between a sample in its row and alone."""

        def forward(self, input_ids: torch.Tensor, segment_ids: torch.Tensor) -> Any:
            x = super().forward(input_ids)
            seen = (x * (segment_ids == others)[..., None]).mean(1, keepdim=True)
            return x + 1e-4 * seen * (segment_ids == sample)[..., None]

    for batch in (None, batch_of([5, 4, 5, 3, 6, 4, 5, 4, 2])):
        leaks = isolation_report(OneSeesAnother(), batch).leaks
        found = next(iter(leaks.values()))
        assert found is not None
        assert found.test == "changed"


class PerSample(Words):
    """A value for each sample of a packed row, the mean of its tokens, or of the whole row; and one for each of its experts."""

    def __init__(self, leaks: bool, experts: int) -> None:
        super().__init__()
        self.leaks, self.pool, self.experts = leaks, nn.Linear(WIDTH, 5), experts

    def forward(self, input_ids: torch.Tensor, segment_ids: torch.Tensor) -> Any:
        x, ids = super().forward(input_ids), segment_ids
        own = [(row, ids[row] == number) for row in range(len(ids)) for number in ids[row].unique() if number]
        pooled = torch.stack([(x[row] if self.leaks else x[row, at]).mean(0) for row, at in own])
        return {"hidden": x, "pooled": self.pool(pooled), "load": torch.ones(self.experts) * x.mean()}


def test_what_a_model_gives_for_each_sample_is_tried_too() -> None:
    for batch, samples in ((None, 11), (batch_of([9, 14, 3, 10, 8], 60), 5)):
        for leaks in (False, True):
            report = isolation_report(PerSample(leaks, experts=samples), batch)
            found = next(iter(report.leaks.values()))
            assert report.isolated == (not leaks)
            assert not leaks or (found is not None and (found.layer, found.test) == ("", "changed"))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_columns_of_samples_are_cut_with_them(rows: int) -> None:
    class Marked(Words):
        """To each token something of its own sample is added, which a column with a row a sample says."""

        def forward(self, batch: Any) -> Any:  # type: ignore[override]
            x, ids, which = super().forward(batch["input_ids"]), batch["segment_ids"], 0
            for row in range(len(ids)):
                for number in ids[row].unique()[ids[row].unique() > 0]:
                    x[row] = x[row] + (ids[row] == number)[:, None] * batch["mark"][which].mean() + batch["one"][which]
                    which += 1
            return x

    samples = [{"input_ids": [1 + n] * (7 + n), "mark": [n + 0.5] * 12, "one": 0 * n} for n in range(3)]
    batch = next(iter(bf.from_sequence(samples).pack(12, rows=rows, shuffle_batches=False)))
    assert_isolated(Marked(), batch)
    bf.warm_up(Marked(), bf.from_sequence(samples).pack(30, rows=rows))


class Classifier(Words):
    """A value for each row of a padded batch: the mean of its real tokens, of all, or less that of all rows."""

    def __init__(self, pools: str) -> None:
        super().__init__()
        self.pools, self.out = pools, nn.Linear(WIDTH, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        mask = torch.ones_like(attention_mask) if self.pools == "padding" else attention_mask
        pooled = (super().forward(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits = self.out(pooled - pooled.mean(0) if self.pools == "batch" else pooled)
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def test_a_model_of_one_value_a_row_is_tried_on_padded_batches() -> None:
    rows = [{"input_ids": [1 + n, 2, 3 + n][: 1 + n % 3] * 2, "labels": n % 3} for n in range(5)]
    batch = next(iter(bf.from_sequence(rows).batch(5)))
    assert_isolated(Classifier(""), batch)
    for pools, test in (("padding", "padding"), ("batch", "changed")):
        found = isolation_report(Classifier(pools), batch).leaks["batch"]
        assert found is not None
        assert found.test == test


def test_what_goes_through_labels_alone_is_tried() -> None:
    class ReadsLabels(Words):
        """As one that makes its decoder's inputs of the labels does."""

        def __init__(self, leaks: bool) -> None:
            super().__init__()
            self.leaks = leaks

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, segment_ids: torch.Tensor) -> Any:
            x = self.words(labels.clamp(min=0))
            before = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
            same = nn.functional.pad(segment_ids, (1, 0))[:, :-1] == segment_ids
            return super().forward(input_ids) + (before if self.leaks else before * same[..., None])

    for batch in (None, batch_of([9, 14, 3, 10])):
        assert isolation_report(ReadsLabels(False), batch).isolated
        found = next(iter(isolation_report(ReadsLabels(True), batch).leaks.values()))
        assert found is not None
        assert found.test == "changed"


class Inside(nn.Module):
    """A toy that is called in another way."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner


class Keywords(Inside):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(**{name: kwargs[name] for name in ("input_ids", "position_ids", "segment_ids")})


class Anything(Inside):
    def forward(self, *args: Any) -> Any:
        return self.inner(*(args[0][name] for name in ("input_ids", "position_ids", "segment_ids")))


class WithFlag(Inside):
    def forward(self, batch: Any, /, training: bool = False) -> Any:
        return self.inner(*(batch[name] for name in ("input_ids", "position_ids", "segment_ids")))


class Result(Inside):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, segment_ids: torch.Tensor) -> Any:
        return SimpleResult(self.inner(input_ids, position_ids, segment_ids)["logits"])


@dataclass
class SimpleResult:
    logits: torch.Tensor


@pytest.mark.parametrize(
    "kind", [Keywords, Anything, WithFlag, Result, Adapted, nn.DataParallel, partial(torch.compile, backend="eager")]
)
def test_a_model_is_called_as_its_forward_takes_a_batch(kind: Any) -> None:
    assert_isolated(kind(toy("decoder")))
    found = isolation_report(kind(toy("decoder", "convolution"))).leaks["packed"]
    assert found is not None
    assert found.layer.removeprefix("inner.") == "blocks.1.conv"


def test_a_model_of_tokens_alone_is_given_them_whatever_it_calls_them() -> None:
    class Ids(nn.Module):
        def __init__(self, mix: nn.Module) -> None:
            super().__init__()
            self.words, self.mix = nn.Embedding(WORDS, 4), mix

        def forward(self, ids: Any) -> torch.Tensor:
            return self.mix(self.words(ids).mT).mT

    for batch in (None, batch_of([9, 14, 3, 10])):
        assert_isolated(Ids(nn.Identity()), batch)
        assert_isolated(nn.Sequential(nn.Embedding(WORDS, 4)), batch)
        with pytest.raises(AssertionError, match=r"at mix \(Conv1d\), by its convolution"):
            assert_isolated(Ids(nn.Conv1d(4, 4, 3, padding=1)), batch)
        with pytest.raises(
            TypeError, match=r"Linear.forward takes one argument, input, and runs neither .* Wrap it in a"
        ):
            assert_isolated(nn.Linear(4, 4), batch or batch_of([9, 14]))


class Quantised(nn.Module):
    """A linear layer with integers for weights."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(layer.weight.abs().max() / 127)
        self.weight = nn.Parameter((layer.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


def test_frozen_and_quantised_models_are_tried_as_they_are() -> None:
    for leak in ("", "attention"):
        model: Any = toy(kind="decoder", leak=leak).requires_grad_(False)
        for block in model.blocks:
            block.up = Quantised(block.up)
            block.attention.qkv = Quantised(block.attention.qkv)
        before = copy.deepcopy(model.state_dict())
        assert isolation_report(model).isolated == (not leak)
        assert all(
            (one == before[name]).all() and one.dtype == before[name].dtype for name, one in model.state_dict().items()
        )


def test_numbers_of_samples_need_not_follow_each_other() -> None:
    ids = torch.tensor([[2, 2, 2, 7, 7, 0, 0, 9]])
    for leak in ("", "attention"):
        assert isolation_report(toy("decoder", leak), packed_batch(ids, WORDS)).isolated == (not leak)


def test_what_cannot_be_tried_is_said() -> None:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids).mean((0, 1))

    class Overflows(Pools):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids).cumsum(1) / 0

    class PoolsRows(Pools):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids).mean(1)

    for kind in (Pools, PoolsRows):
        with pytest.raises(
            ValueError,
            match=rf"{kind.__name__} gives nothing for each token of a batch \(2, \d+\), and nothing for each of its \d+ samples",
        ):
            assert_isolated(kind())
    with pytest.raises(
        ValueError, match="Toy has parameters on the meta device, so nothing can be computed; load them"
    ):
        assert_isolated(toy("decoder").to("meta"))
    with pytest.raises(
        ValueError, match=r"Toy.forward wants position_ids, segment_ids, and the batch has input_ids; give"
    ):
        assert_isolated(toy("decoder"), {"input_ids": torch.ones(1, 4, dtype=torch.int64)})
    with pytest.raises(ValueError, match=r"this batch \(1, 0\) has no tokens"):
        assert_isolated(toy("decoder"), dict.fromkeys(("input_ids", "position_ids", "segment_ids"), torch.ones(1, 0)))
    with pytest.raises(ValueError, match="Overflows gives NaN, or nothing finite, for real tokens"):
        assert_isolated(Overflows())
    with pytest.raises(TypeError, match=r"the model must be a torch.nn.Module \(got function\)"):
        assert_isolated(batch_of)
    with pytest.raises(ValueError, match="nobody knows how many ids Linear has words for"):
        assert_isolated(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="attn_implementation is for models of transformers"):
        assert_isolated(toy("decoder"), attn_implementation="eager")
    with pytest.raises(ValueError, match="this batch has no tokens to change"):
        assert_isolated(toy("decoder"), {"lengths": torch.ones(1)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_of_torch_jit_is_left_as_it_is() -> None:
    model = torch.jit.script(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)))
    CallGuard("raise").watch(model)
    with pytest.raises(ValueError, match=r"was compiled by torch\.jit; give the model as it was before"):
        assert_isolated(model, {"input": torch.arange(9).view(1, 9)})
    assert model.training
    assert {one.dtype for one in model.parameters()} == {torch.float32}


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
