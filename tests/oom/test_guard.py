"""A step that runs out of memory is run in parts, and its gradients are those of the whole batch."""

from __future__ import annotations

import copy
import gc
import json
import logging
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import brimful as bf
from brimful.memory import OomGuard, SimulatedOOM, oom_guard, oom_safe
from brimful.oom.modules import Buffers, modules_of_process
from brimful.oom.parts import splittable
from brimful.plan.errors import StateError
from brimful.tensors.loss import running_part

VOCABULARY, WIDTH = 11, 6


@pytest.fixture(autouse=True)
def _few_objects() -> None:
    """What a collection of garbage looks at, after each OOM, is what the test has made: else it takes .2 s."""
    gc.freeze()


class Tagger(nn.Module):
    """A layer of causal attention inside of each sample, in float64; `unused` never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokens = nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, generator=generator))
        self.out = nn.Parameter(torch.randn(WIDTH, VOCABULARY, dtype=torch.float64, generator=generator))
        self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.tokens[ids]
        scores = (hidden @ hidden.mT).masked_fill(~mask, -1e9)
        return (scores.softmax(-1) @ hidden).tanh() @ self.out


def causal(batch: dict[str, Any]) -> Tensor:
    size = batch["input_ids"].shape[1]
    return torch.ones(size, size, dtype=torch.bool).tril()[None] & (batch["attention_mask"][:, None, :] > 0)


def mean_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def by_tokens(model: Tagger, batch: dict[str, Any]) -> Tensor:
    return mean_of(model(batch["input_ids"], causal(batch)), batch["labels"])


def by_next_tokens(model: Tagger, batch: dict[str, Any]) -> Tensor:
    return mean_of(model(batch["input_ids"], causal(batch))[:, :-1], batch["labels"][:, 1:])


def by_shifted_labels(model: Tagger, batch: dict[str, Any]) -> Tensor:
    return mean_of(model(batch["input_ids"], causal(batch)), batch["shift_labels"])


def by_samples(model: Tagger, batch: dict[str, Any]) -> Tensor:
    return model(batch["input_ids"], causal(batch)).square().mean((1, 2)).mean()


def as_a_sum(model: Tagger, batch: dict[str, Any]) -> Tensor:
    logits = model(batch["input_ids"], causal(batch))
    return bf.token_mean(F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"), batch)


def packed(model: Tagger, batch: dict[str, Any]) -> Tensor:
    logits = model(batch["input_ids"], bf.attention.document_mask(batch)[:, 0])
    assert int(batch["cu_seqlens"][-1]) == batch["input_ids"].numel()
    return mean_of(logits, batch["labels"])


def nested(model: Tagger, batch: dict[str, Any]) -> Tensor:
    losses = [
        F.cross_entropy(
            model(ids[None], torch.ones(len(ids), len(ids)).tril().bool()[None])[0], labels, reduction="sum"
        )
        for ids, labels in zip(batch["input_ids"].unbind(), batch["labels"].unbind(), strict=True)
    ]
    assert batch["input_ids"].offsets() is batch["labels"].offsets(), "computed with together"
    return torch.stack(losses).sum() / (batch["labels"].values() != -100).sum()


def samples(count: int = 13) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    rows = []
    for number in range(count):
        ids = rng.integers(1, VOCABULARY, rng.integers(2, 9))
        labels = np.where(rng.random(len(ids)) < 0.4, -100, ids)
        labels[-1] = ids[-1]
        rows.append({"input_ids": ids.tolist(), "labels": labels.tolist(), "id": number, "name": f"sample {number}"})
    return rows


def padded_batch() -> dict[str, Any]:
    (batch,) = bf.from_sequence(samples()).batch(13)
    return dict(batch)


def shifted_batch() -> dict[str, Any]:
    (batch,) = bf.from_sequence(samples()).causal_labels(shift=True).batch(13)
    assert (batch["labels"] != -100).sum() > (batch["shift_labels"] != -100).sum()
    return dict(batch)


def packed_batch(rows: int) -> dict[str, Any]:
    return dict(next(iter(bf.from_sequence(samples(30)).pack(40, rows=rows, shuffle_batches=False))))


def nested_batch() -> dict[str, Any]:
    (batch,) = bf.from_sequence(samples()).batch(13, layout="nested")
    return dict(batch)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Tagger, Any], Tensor], Any]] = {
    "by labels": (padded_batch, by_tokens, "auto"),
    "by labels but the first": (padded_batch, by_next_tokens, "next_tokens"),
    "by shifted labels": (shifted_batch, by_shifted_labels, "auto"),
    "by shifted labels, said": (shifted_batch, by_shifted_labels, "tokens"),
    "by shifted labels, of next tokens": (shifted_batch, by_shifted_labels, "next_tokens"),
    "by shifted labels alone": (
        lambda: {name: one for name, one in shifted_batch().items() if name != "labels"},
        by_shifted_labels,
        "auto",
    ),
    "by samples": (lambda: {k: v for k, v in padded_batch().items() if k != "labels"}, by_samples, "auto"),
    "a sum": (lambda: padded_batch() | {"num_items_in_batch": torch.tensor(50)}, as_a_sum, "sum"),
    **{
        f"{loss.__name__} beside {name}": (lambda name=name: padded_batch() | {name: torch.tensor(50)}, loss, "auto")
        for name in ("num_items_in_batch", "num_items_on_rank")
        for loss in (as_a_sum, by_tokens)
    },
    "by a function": (padded_batch, by_tokens, lambda part: int((part["labels"] != -100).sum())),
    "a packed row": (lambda: packed_batch(1), packed, "auto"),
    "packed rows": (lambda: packed_batch(3), packed, "auto"),
    "nested": (nested_batch, nested, "auto"),
}


class Labelled(NamedTuple):
    inputs: Any
    labels: Any


class Pair(NamedTuple):
    loss: Any
    ids: Any


def slots(batch: Any) -> Tensor:
    """A tensor whose first two sizes are what memory is needed for: (rows, length), of nested batches (1, tokens)."""
    ids = batch["input_ids"]
    return ids.values()[None] if ids.is_nested else ids


class Run:
    """A model with a guarded step on a device of `limit` slots, and what the step was given."""

    def __init__(self, loss: Callable[[Tagger, Any], Tensor], limit: int, where: Any, **options: Any) -> None:
        self.model = Tagger()
        self.device = SimulatedOOM(limit, where)
        self.loss, self.seen = loss, [0]
        self.guard = oom_guard(self.step, parameters=self.model.parameters(), **options)

    def step(self, batch: Any, scale: float) -> Tensor:
        scratch = torch.zeros(slots(batch).shape, dtype=torch.float64) + self.model.out.sum() * 0
        loss = self.loss(self.model, batch) + self.device(scratch).sum() * 0
        (loss * scale).backward()
        self.seen.append(slots(batch).numel())
        return loss

    def gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.model.parameters()]


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("already", [False, True], ids=["no gradients yet", "gradients accumulated"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_unsplit_step(case: str, where: Any, already: bool) -> None:
    make, loss, weigh = CASES[case]
    batch = make()
    size = slots(batch).numel()
    for share, least_ooms in ((0.7, 1), (0.3, 2)):  # out of memory once; twice in a row
        whole, split = Run(loss, 1 << 40, where, weigh=weigh), Run(loss, int(share * size), where, weigh=weigh)
        for run in (whole, split) if already else ():
            for parameter in (run.model.tokens, run.model.out):
                parameter.grad = torch.full_like(parameter, 0.5)
        held = [*split.gradients()]
        one, other = whole.guard(batch), split.guard(batch)
        torch.testing.assert_close(other, one.detach(), rtol=1e-10, atol=0)
        assert_same(split.gradients(), whole.gradients())
        assert split.model.unused.grad is None
        assert split.guard.stats.ooms >= least_ooms
        assert split.guard.stats.split == 1
        expected_bytes = sum(grad.nbytes for grad in held if grad is not None)
        assert split.guard.stats.cloned_bytes == expected_bytes
        if already:
            assert all(now is before for now, before in zip(split.gradients(), held, strict=True)), "in place"


@pytest.mark.parametrize("already", [False, True])
def test_what_parts_gave_before_one_ran_out_of_memory_does_not_count(already: bool) -> None:
    whole, split = Run(by_tokens, 1 << 40, "forward"), Run(by_tokens, 1 << 40, "forward")
    calls = iter([True, False, True, False, False, True])  # the whole; the second half; the third quarter

    def step(batch: Any, scale: float) -> Tensor:
        loss = split.step(batch, scale)
        if next(calls, False):  # after its backward: an allocator's error may come late
            raise torch.OutOfMemoryError("out of memory")
        return loss

    for run in (whole, split) if already else ():
        run.model.tokens.grad = torch.full_like(run.model.tokens, 0.5)
    guard = oom_guard(step, parameters=split.model.parameters())
    one, other = whole.guard(padded_batch()), guard(padded_batch())
    torch.testing.assert_close(other, one.detach(), rtol=1e-10, atol=0)
    assert_same(split.gradients(), whole.gradients())
    assert (guard.stats.ooms, guard.stats.parts) == (3, 8)


def test_one_sample_that_does_not_fit_is_an_error_with_the_gradients_as_they_were() -> None:
    run = Run(by_tokens, 3, "backward")
    run.model.out.grad = torch.ones_like(run.model.out)
    message = (
        r"^out of memory with 1 sample alone \(of 8 values\), of a batch of 13; filter or truncate such samples, .* "
        r"simulated: out of memory in backward with 1 x 8 = 8 slots, of which 3 fit$"
    )
    with pytest.raises(torch.OutOfMemoryError, match=message):
        run.guard(padded_batch())
    assert (run.model.tokens.grad, run.model.out.grad.unique().tolist()) == (None, [1.0])


def test_a_batch_that_is_skipped_leaves_no_trace_but_its_count(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(by_tokens, 3, "backward", on_sample_oom="skip")
    with caplog.at_level(logging.WARNING, "brimful"):
        assert run.guard(padded_batch()) is None
    assert run.gradients() == [None, None, None]
    assert (run.guard.stats.skipped, run.guard.stats.batches) == (13, 1)
    assert "skipped 13 samples, as one of them alone is out of memory: simulated" in caplog.text


def test_the_limit_stays_and_survives_a_restart() -> None:
    batch = padded_batch()
    first = Run(by_tokens, 60, "forward")
    first.guard(batch)
    assert first.guard.stats.ooms == 1
    first.guard(batch)
    assert (first.guard.stats.ooms, first.guard.stats.split, first.guard.stats.parts) == (1, 2, 4)
    second = Run(by_tokens, 60, "forward")
    second.guard.load_state_dict(json.loads(json.dumps(first.guard.state_dict())))
    second.guard(batch)
    assert (second.guard.stats.ooms, second.guard.stats.split) == (0, 1)
    with pytest.raises(
        StateError, match=r"a dict of version and limits, as state_dict\(\) returns it \(got \['limits'\]\)"
    ):
        second.guard.load_state_dict({"limits": []})
    with pytest.raises(StateError, match=r"this state has version 9, but this release of brimful reads version 1"):
        second.guard.load_state_dict({"version": 9, "limits": []})


@pytest.mark.parametrize(("drift", "most"), [(0, 40), (3_000, 150)])
def test_ten_thousand_batches_under_a_drifting_limit_lose_nothing_and_seldom_run_out_of_memory(
    drift: int, most: int
) -> None:
    rng = np.random.default_rng(0)
    device = SimulatedOOM(0)
    seen: list[int] = []
    shares: list[float] = []

    def step(batch: dict[str, Tensor], scale: float) -> None:
        if 0 in batch["id"].tolist():  # the first part: of a run that may have begun anew
            seen.clear()
            shares.clear()
        device.check(batch["input_ids"])
        seen.extend(batch["id"].tolist())
        shares.append(scale)

    guard = oom_guard(step, parameters=[])
    ooms, fit, needless = [], 0, 0
    for number in range(10_000):
        device.limit = int(8_000 - drift * number / 10_000 + rng.integers(-200, 200))
        length = int(np.clip(rng.lognormal(np.log(120), 0.7), 8, 1024))
        count = max(1, int(rng.integers(3_000, 8_192)) // length)
        before = guard.stats.split
        guard({"input_ids": torch.empty(count, length, device="meta"), "id": torch.arange(count)})
        assert seen == [*range(count)], "each sample once, in order, in the run that counts"
        assert sum(shares) == pytest.approx(1.0, rel=1e-12)
        ooms.append(guard.stats.ooms)
        if count * length <= device.limit:
            fit, needless = fit + 1, needless + guard.stats.split - before
    assert guard.stats.batches == 10_000
    assert ooms[-1] <= most
    assert ooms[-1] - ooms[5_000] <= 0.6 * most
    assert needless < 0.2 * fit
    assert len(json.dumps(guard.state_dict())) < 4_000


def test_a_batch_that_fits_runs_once_with_scale_one_and_copies_nothing() -> None:
    batch, seen = padded_batch(), []

    def step(given: Any, scale: float) -> str:
        seen.append((given, scale))
        return "as it is"

    guard = oom_guard(step, parameters=[torch.zeros(3, requires_grad=True)])
    assert guard(batch) == "as it is"
    assert seen == [(batch, 1.0)]
    assert (guard.stats.ooms, guard.stats.split, guard.stats.cloned_bytes) == (0, 0, 0)


def test_what_is_no_oom_passes_through_untouched() -> None:
    error = RuntimeError("shapes do not match")

    def step(batch: Any, scale: float) -> None:
        raise error

    guard = oom_guard(step, parameters=[])
    with pytest.raises(RuntimeError, match=r"^shapes do not match$") as caught:
        guard(padded_batch())
    assert caught.value is error
    assert guard.stats.ooms == 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError("Unable to allocate 4 GiB for an array"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_every_allocators_words_are_known(error: Exception) -> None:
    def step(batch: Any, scale: float) -> float:
        if len(batch) > 4:
            raise error
        return 1.0

    guard = oom_guard(step, parameters=[])
    assert guard([{"x": 1}] * 8) == 1.0
    assert guard.stats.ooms == 1


def test_a_real_allocation_that_fails_is_survived() -> None:
    def step(batch: dict[str, Tensor], scale: float) -> None:
        if len(batch["x"]) > 2:
            torch.empty(1 << 60, dtype=torch.uint8)

    guard = oom_guard(step, parameters=[])
    guard({"x": torch.zeros(4, 1)})
    assert (guard.stats.ooms, guard.stats.parts) == (1, 2)


def test_what_a_failed_step_held_is_freed_before_it_is_run_again() -> None:
    held: list[weakref.ref[Tensor]] = []

    def inner(batch: dict[str, Tensor]) -> None:
        activations = batch["x"] * 2
        held.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("out of memory")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("CUDA error: out of memory") from error

    def step(batch: dict[str, Tensor], scale: float) -> None:
        activations = batch["x"] * 2
        held.append(weakref.ref(activations))
        if len(batch["x"]) > 1:
            inner(batch)
        assert [ref() for ref in held[:-1]] == [None] * (len(held) - 1)

    oom_guard(step, parameters=[])({"x": torch.zeros(4, 2)})
    assert len(held) == 8


def test_random_numbers_are_those_of_a_batch_that_is_split_beforehand() -> None:
    device = SimulatedOOM(8)
    drawn: list[float] = []

    def step(batch: dict[str, Tensor], scale: float) -> None:
        drawn.append(torch.rand(()).item())
        device.check(batch["x"])

    guard = oom_guard(step, parameters=[])
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.clear()
        guard({"x": torch.zeros(4, 4)})
        runs.append(drawn[-2:])
    assert guard.stats.ooms == 1
    assert runs[0] == runs[1]


def test_a_resume_in_the_middle_of_a_window_after_a_limit_is_exact() -> None:
    batches = bf.from_sequence(samples(60), shuffle=True).batch_by_tokens(64, window=30)

    def run(state: Any, learnt: Any, steps: int | None) -> tuple[list[Any], Any, Any]:
        seen: list[Any] = []

        def step(batch: Any, scale: float) -> None:
            SimulatedOOM(40).check(batch["input_ids"])
            seen.append((batch["id"].tolist(), scale))

        guard = oom_guard(step, parameters=[])
        if learnt is not None:
            guard.load_state_dict(learnt)
        taken = []
        with batches.iter(state) as it:
            for batch in it:
                seen.clear()
                guard(batch)
                sizes = sum(len(ids) for ids, _ in seen[-guard.stats.parts :])
                taken.append((batch["id"].tolist(), sizes, guard.state_dict()))
                if len(taken) == steps:
                    break
            return taken, json.loads(json.dumps(it.state_dict())), json.loads(json.dumps(guard.state_dict()))

    unbroken, _, _ = run(None, None, None)
    for stop in range(1, len(unbroken), 3):
        first, state, learnt = run(None, None, stop)
        rest, _, _ = run(state, learnt, None)
        assert [one[0] for one in first + rest] == [one[0] for one in unbroken]
        assert rest[-1][2] == unbroken[-1][2], "the same learnt"


def test_sparse_gradients_go_back_too() -> None:
    table = nn.Embedding(9, 2, sparse=True)
    whole = nn.Embedding(9, 2, sparse=True)
    device = SimulatedOOM(4, "backward")

    def step(of: nn.Embedding, batch: dict[str, Tensor], scale: float) -> None:
        found = of(batch["x"])
        (found.mean() * scale).backward()
        if of is table:
            device.check(batch["x"])

    for model in (table, whole):
        model(torch.tensor([1, 2])).sum().backward()
        guard = oom_guard(lambda batch, scale, model=model: step(model, batch, scale), parameters=model.parameters())
        guard({"x": torch.arange(8).reshape(8, 1)})
        assert guard.stats.cloned_bytes == 2 * 8 + 4 * 4
    assert table.weight.grad is not None
    assert whole.weight.grad is not None
    torch.testing.assert_close(table.weight.grad.to_dense(), whole.weight.grad.to_dense())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("already", [False, True])
def test_a_gpu_that_is_out_of_memory_gives_the_gradients_of_the_whole(already: bool) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (1 << 30) / total))
    try:
        weight = torch.randn(1024, 1024, device="cuda", dtype=torch.float64, requires_grad=True)
        ids = torch.randn(4096, 1024, device="cuda", dtype=torch.float64)
        if already:
            weight.grad = torch.ones_like(weight)

        def step(batch: dict[str, Tensor], scale: float) -> Tensor:
            hidden = batch["x"]
            for _ in range(40):  # 32 MB each: 1.3 GB, of which 1 GB is to be had
                hidden = (hidden @ weight * 0.03).tanh()
            loss = hidden.square().mean()
            (loss * scale).backward()
            return loss

        guard = oom_guard(step, parameters=[weight])
        before = torch.cuda.memory_allocated()
        guard({"x": ids})
        assert weight.grad is not None
        found, held = weight.grad.clone(), torch.cuda.memory_allocated() - before
        assert guard.stats.ooms >= 1
        assert held < 64 << 20, "nothing of the failed step stays"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    weight.grad = torch.ones_like(weight) if already else None
    step({"x": ids}, 1.0)
    torch.testing.assert_close(found, weight.grad, rtol=1e-10, atol=1e-13)


def test_an_optimizer_inside_of_the_step_is_refused() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step(batch: Any, scale: float) -> None:
        (weight.sum() * scale).backward()
        optimizer.step()

    guard = oom_guard(step, parameters=[weight])
    with pytest.raises(RuntimeError, match=r"SGD stepped inside of a guarded step: .* call optimizer.step"):
        guard(padded_batch())
    assert weight.item() == 0
    optimizer.step()
    assert weight.item() == -1, "outside it steps"


def test_without_parameters_a_step_is_run_again_only_while_nothing_has_a_gradient() -> None:
    gc.unfreeze()
    gc.collect()  # gradients that other tests left in circles
    run = Run(by_tokens, 60, "forward")
    oom_guard(run.step)(padded_batch())
    whole = Run(by_tokens, 1 << 40, "forward")
    whole.guard(padded_batch())
    assert_same(run.gradients(), whole.gradients())
    for parameter in (*run.model.parameters(), *whole.model.parameters()):
        parameter.grad = None
    weight = torch.zeros(1, requires_grad=True)

    def twice(batch: dict[str, Tensor], scale: float) -> None:
        (weight.sum() * scale).backward()
        SimulatedOOM(60).check(batch["input_ids"])

    with pytest.raises(
        RuntimeError, match=r"cannot be run again: there are gradients, .* parameters=model.parameters\(\)"
    ):
        oom_guard(twice)(padded_batch())
    gc.freeze()
    with pytest.raises(RuntimeError, match="cannot be run again"):  # nobody can look at what is frozen
        oom_guard(Run(by_tokens, 60, "forward").step)(padded_batch())
    with torch.no_grad():
        device = SimulatedOOM(60)
        assert oom_guard(lambda batch, scale: device(batch["input_ids"]).shape[0])(padded_batch()) == pytest.approx(
            6.5, abs=0.1
        )


def test_a_part_without_labels_is_not_run_as_its_mean_is_nan() -> None:
    batch = padded_batch()
    batch["labels"][6:] = -100
    whole, split = Run(by_tokens, 1 << 40, "forward"), Run(by_tokens, 60, "forward")
    whole.guard(batch)
    split.guard(batch)
    assert_same(split.gradients(), whole.gradients())
    assert split.guard.stats.parts == 2
    assert len(split.seen) == 2, "and the zero at the front"
    guard = oom_guard(lambda part, scale: SimulatedOOM(60)(part["input_ids"]).tolist(), parameters=[])
    with pytest.raises(
        TypeError, match=r"returned a list, which cannot be joined .*, and parts without labels were not run"
    ):
        guard(batch)


def test_what_a_step_returns_is_joined() -> None:
    def step(batch: dict[str, Any], scale: float) -> Any:
        SimulatedOOM(2).check(batch["x"])
        loss = batch["x"].mean()
        return {"loss": loss, "pair": Pair(loss.item(), batch["x"]), "rows": batch["x"][:, 0].tolist(), "none": None}

    values = torch.arange(4.0)[:, None]
    found = oom_guard(step, parameters=[])({"x": values})
    assert (found["loss"].item(), found["pair"].loss, found["rows"], found["none"]) == (1.5, 1.5, [0, 1, 2, 3], None)
    assert found["pair"].ids.equal(values)


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        ([[4, -100, -100], [1, 2, 3], [5, -100, -100]], {"num_items_in_batch": torch.tensor(3)}),
        ([[4, -100, -100], [1, 2, 3], [5, -100, -100]], {"num_items_on_rank": torch.tensor(3)}),
        ([[0.5, -100.0, -100.0], [1.5, 2.0, 0.5], [2.5, -100.0, -100.0]], {}),
    ],
    ids=["classes of all ranks", "classes of this rank", "fractions"],
)
def test_parts_of_labels_that_count_as_one_a_sample_give_the_token_mean_of_the_whole(labels: Any, more: Any) -> None:
    """Samples have different numbers of them: a part may weigh less than a whole label."""
    weight, device = torch.ones((), dtype=torch.float64, requires_grad=True), SimulatedOOM(3)

    def step(batch: dict[str, Tensor], scale: float) -> None:
        values = device(batch["labels"]).double()
        losses = torch.where(values == -100, 0, values).sum(1) * weight
        (bf.token_mean(losses, batch) * scale).backward()  # type: ignore[no-untyped-call]

    guard = oom_guard(step, parameters=[weight])
    guard({"labels": torch.tensor(labels), **more})
    assert guard.stats.parts == 3
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(sum(one for row in labels for one in row if one != -100) / 3)


def by_lengths(part: dict[str, Any]) -> float:
    return float(part["lengths"].sum())


@pytest.mark.parametrize(
    "weigh", ["auto", "tokens", "samples", "sum", by_lengths], ids=["auto", "tokens", "samples", "sum", "fn"]
)
@pytest.mark.parametrize("options", [{}, {"sample_weight_column": "w"}, {"layout": "nested"}], ids=str)
def test_parts_of_a_mean_over_samples_that_nobody_counted_give_that_of_the_whole(options: Any, weigh: Any) -> None:
    """Samples have different numbers of labels, and the last one has none. Nothing in the batch says how many it has."""
    samples = [{"input_ids": [*range(1, length + 1)], "w": 0.5 + length % 3} for length in (8, 2, 5, 3, 6, 1)]
    (batch,) = bf.from_sequence(samples).causal_labels().batch(len(samples), **options)
    assert not [name for name in batch if name.startswith(("num_", "sum_"))]
    weights, device = torch.ones(VOCABULARY, dtype=torch.float64, requires_grad=True), SimulatedOOM(10**6)

    def step(batch: dict[str, Any], scale: float) -> Tensor:
        ids = batch["input_ids"]
        device.check(torch.ones(len(ids), 1))
        losses = (
            torch.nested.nested_tensor_from_jagged(weights[ids.values()], ids.offsets())
            if ids.is_nested
            else weights[ids]
        )
        loss = bf.sample_mean(losses, batch)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    whole = step(batch, 1.0)
    assert weights.grad is not None
    wanted, weights.grad = weights.grad, None
    device.limit = 2
    guard = oom_guard(step, parameters=[weights], weigh=weigh)
    assert guard(batch).item() == pytest.approx(whole.item(), abs=1e-12)
    assert guard.stats.parts > 2
    assert weights.grad is not None
    assert (weights.grad - wanted).abs().max() < 1e-12
    device.limit = 10**6
    assert step(batch, 1.0).item() == whole.item(), "a batch outside of the guard counts its own"


@pytest.mark.parametrize("first", [True, False])
def test_a_guard_inside_of_a_guarded_step_leaves_the_outer_ones_parts_alone(first: bool) -> None:
    batch = {
        "x": torch.arange(1.0, 9.0, dtype=torch.float64)[:, None] * torch.ones(1, 2, dtype=torch.float64),
        "labels": torch.tensor([[1, 1], [-100, 1], [1, 1], [1, -100], [1, 1], [-100, 1], [1, 1], [1, 1]]),
    }
    outer, inner = SimulatedOOM(100), SimulatedOOM(100)
    weights = torch.ones(2, dtype=torch.float64, requires_grad=True)
    reference = oom_guard(lambda part, scale: {"of": inner(part["x"]).sum(1)})

    def step(part: dict[str, Any], scale: float) -> Tensor:
        with torch.no_grad():
            _ = reference(part) if first else None
        loss = bf.sample_mean(outer(part["x"]) * weights, part)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            _ = None if first else reference(part)
        return loss.detach()

    guard = oom_guard(step, parameters=[weights])
    guard(batch)
    assert weights.grad is not None
    whole, weights.grad = weights.grad, None
    outer.limit, inner.limit = 8, 4
    guard(batch)
    assert weights.grad is not None
    assert (weights.grad - whole).abs().max() < 1e-12
    assert guard.stats.parts > 1
    assert reference.stats.parts > 1


def test_a_part_of_a_compiled_step_has_one_graph() -> None:
    labels = torch.tensor([[1, 2], [-100, 3], [4, -100], [5, 5]])

    def mean(losses: Tensor, part: Tensor) -> Tensor:
        return bf.sample_mean(losses, {"labels": part})

    compiled = torch.compile(mean, fullgraph=True, backend="aot_eager")
    with running_part({"labels": labels}, {"labels": labels[:2]}, 0.5):
        assert compiled(torch.ones(2, 2), labels[:2]).item() == mean(torch.ones(2, 2), labels[:2]).item() == 1.0


@pytest.mark.parametrize("given", [False, True])
def test_a_step_in_parts_with_labels_of_its_own_says_how_many_samples_there_are(given: bool) -> None:
    """Two samples have a label at the first place alone, which the step leaves out. No part knows how many such there are."""
    batch = {
        "x": torch.arange(1.0, 13.0, dtype=torch.float64).reshape(4, 3),
        "labels": torch.tensor([[5, -100, -100], [-100, 5, 5], [5, -100, -100], [-100, 5, -100]]),
    }
    weight, device = torch.ones(1, dtype=torch.float64, requires_grad=True), SimulatedOOM(100)

    def step(part: dict[str, Any], scale: float) -> Tensor:
        loss = bf.sample_mean((device(part["x"]) * weight)[:, :-1], part | {"labels": part["labels"][:, 1:]})
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    guard = oom_guard(step, parameters=[weight])
    assert guard(batch).item() == ((4 + 5) / 2 + 10) / 2
    weight.grad, device.limit = None, 6
    if given:
        guard(batch | {"num_samples_on_rank": torch.tensor(2)})
        assert weight.grad is not None
        assert weight.grad.item() == ((4 + 5) / 2 + 10) / 2
    else:
        with pytest.raises(
            ValueError, match=r"has other labels .*: guard\(batch \| {\"num_samples_on_rank\": count}\)$"
        ):
            guard(batch)
        assert weight.grad is None


@pytest.mark.parametrize("labels", [[1.5, -100.0, 2.5], [[1.0], [-100.0], [-100.0]], [-100.0] * 3], ids=str)
def test_a_fraction_of_minus_100_is_a_label_as_any_other(labels: Any) -> None:
    weight, device = torch.ones((), dtype=torch.float64, requires_grad=True), SimulatedOOM(1)

    def step(batch: dict[str, Tensor], scale: float) -> None:
        values = device(batch["labels"].reshape(-1, 1)).double()
        ((values * weight).mean() * scale).backward()  # type: ignore[no-untyped-call]

    guard = oom_guard(step, parameters=[weight])
    guard({"labels": torch.tensor(labels)})
    assert guard.stats.parts == 3
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(torch.tensor(labels).mean().item())


def test_what_a_guard_takes_is_checked_when_it_is_made() -> None:
    step = by_tokens
    with pytest.raises(ValueError, match=r"weigh must be one of auto, tokens, .* \(got 'labels'\)"):
        oom_guard(step, weigh="labels")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"on_sample_oom must be one of raise, skip \(got 'drop'\)"):
        oom_guard(step, on_sample_oom="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"distributed must be one of ddp, fsdp \(got 'tp'\)"):
        oom_guard(step, distributed="tp")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"parameters takes tensors, as model.parameters\(\) gives them \(got dict\)"):
        oom_guard(step, parameters=[{"params": []}])  # type: ignore[list-item]
    with pytest.raises(
        TypeError, match=r"parameters takes tensors \(got the module Linear\); say model.parameters\(\)"
    ):
        oom_guard(step, parameters=nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^parameters takes tensors, as model.parameters\(\) gives them \(got int\)$"):
        oom_guard(step, parameters=3)  # type: ignore[arg-type]
    for none in (None, 3):
        with pytest.raises(TypeError, match=rf"^oom_guard needs a function \(got {none}\)$"):
            oom_guard(none)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=rf"^oom_safe needs a function \(got {none}\)$"):
            oom_safe(none)  # type: ignore[arg-type]

    def unscaled(batch: Any) -> None: ...

    message = r"^oom_guard needs a step of two arguments, step\(batch, scale\), .* \(got unscaled\(batch: 'Any'\) -> 'None'\)$"
    with pytest.raises(TypeError, match=message):
        oom_guard(unscaled)  # type: ignore[arg-type]


def test_a_batch_by_whose_labels_nobody_can_tell_what_a_part_weighs_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = oom_guard(lambda batch, scale: 1.0, parameters=[])
    with pytest.raises(ValueError, match="weigh='tokens' counts labels, and the batch has none by the name"):
        oom_guard(lambda batch, scale: 1.0, weigh="tokens")({"x": torch.zeros(2)})
    batch = padded_batch()
    batch["labels"][0, 0] = 1
    with caplog.at_level(logging.WARNING, "brimful"):
        for _ in range(3):
            guard(batch)
    assert caplog.text.count("say weigh='next_tokens' to oom_guard") == 1


@pytest.mark.parametrize("weigh", ["auto", "tokens", "next_tokens"])
@pytest.mark.parametrize("form", ["samples", "samples with lists", "named", "lists", "arrays", "array", "top"])
def test_labels_are_found_at_the_top_in_each_form(form: str, weigh: Any) -> None:
    rows = [[1, 2, 3, -100, 5, 1], [2, 1], [-100, 4], [3, 3, 3]]
    ids = [[1] * len(row) for row in rows]
    padded = torch.tensor([row + [-100] * (6 - len(row)) for row in rows])
    zeros = torch.zeros(4, 6, dtype=torch.int64)
    batch: Any = {
        "samples": [{"input_ids": torch.tensor(x), "labels": torch.tensor(y)} for x, y in zip(ids, rows)],
        "samples with lists": [{"input_ids": x, "labels": y} for x, y in zip(ids, rows)],
        "named": Labelled(zeros, padded),
        "lists": {"input_ids": zeros, "labels": rows},
        "arrays": {"input_ids": zeros, "labels": [np.array(row) for row in rows]},
        "array": {"input_ids": zeros, "labels": padded.numpy()},
        "top": {"input_ids": zeros, "labels": padded},
    }[form]
    scales: list[float] = []
    device = SimulatedOOM(2)

    def step(part: Any, scale: float) -> float:
        scales.append(scale)
        device.check(torch.zeros(splittable(part).samples))
        return 1.0

    assert oom_guard(step, parameters=[], weigh=weigh)(batch) == pytest.approx(1.0)
    counts = (5, 3) if weigh == "next_tokens" else (7, 4)
    assert scales[1:] == pytest.approx([count / sum(counts) for count in counts])


@pytest.mark.parametrize(
    ("weigh", "batch", "message"),
    [
        (
            "auto",
            (torch.zeros(4, 2), torch.zeros(4, 2).long()),
            r"weigh='auto' looks for 'labels' or 'shift_labels' by name, and a tuple of",
        ),
        (
            "auto",
            [([1, 2], [3, 4]), ([1], [2])],
            r"weigh='auto' looks for 'labels' or 'shift_labels' by name, and a list of columns",
        ),
        (
            "auto",
            {"x": torch.zeros(2), "labels": ["cat", "dog"]},
            r"labels must be numbers to be counted \(got 'cat'\)",
        ),
        ("auto", {"x": torch.zeros(2), "labels": 3}, r"must be a tensor, an array or a list .* \(got int\)"),
        (
            "auto",
            {"inputs": {"x": torch.zeros(2), "labels": torch.ones(2)}, "labels": None},
            r"has 'labels' inside of 'inputs', and weigh='auto' looks for it at the top alone: say weigh= a function",
        ),
        ("tokens", (torch.zeros(2), {"labels": torch.ones(2)}), r"has 'labels' inside of 1, and weigh='tokens' looks"),
        ("auto", [{"x": {"shift_labels": [1]}}], r"has 'shift_labels' inside of 'x'"),
        (
            "auto",
            {"x": torch.zeros(2), "more": ({"num_items_on_rank": 3},)},
            r"has 'num_items_on_rank' inside of 'more'",
        ),
        (
            "auto",
            {"labels": torch.ones(2).long(), "num_items_on_rank": 3, "more": {"num_items_on_rank": 3}},
            r"has 'num_items_on_rank' inside of 'more'",
        ),
        ("auto", ({"x": torch.zeros(2), "num_samples_in_batch": 3},), r"has 'num_samples_in_batch' inside of 0"),
        ("samples", ({"x": torch.zeros(2), "sample_weights": torch.ones(2)},), r"has 'sample_weights' inside of 0"),
        ("auto", [{"labels": [1]}, {"x": [1]}], r"of a list of 2 samples 1 have 'labels', and sample 1 has none"),
        (
            "auto",
            [{"labels": [1]}, {"labels": [1], "shift_labels": [1]}],
            r"of a list of 2 samples some have 'shift_labels' and some 'labels' alone",
        ),
        (
            "tokens",
            [{"x": [1]}],
            r"weigh='tokens' counts labels, and the batch has none by the names 'labels' or 'shift_labels'",
        ),
        ("next_tokens", {"labels": torch.zeros(4)}, r"takes labels of shape \(B, L\), a row a sample \(got \(4,\)\)"),
        ("next_tokens", {"labels": [1, 2]}, r"a row a sample \(got one number a sample\); say weigh='tokens'"),
    ],
)
def test_labels_that_cannot_be_counted_are_refused_before_the_first_step(weigh: Any, batch: Any, message: str) -> None:
    def step(part: Any, scale: float) -> None:
        raise AssertionError("no step")

    with pytest.raises(ValueError, match=message):
        oom_guard(step, parameters=[], weigh=weigh)(batch)


def test_a_tuple_of_inputs_and_classes_weighs_by_samples() -> None:
    scales: list[float] = []

    def step(part: Any, scale: float) -> None:
        scales.append(scale)
        SimulatedOOM(6).check(part[0])

    oom_guard(step, parameters=[])((torch.zeros(4, 3), torch.tensor([1, -100, 2, 3])))
    assert scales == [1.0, 0.5, 0.5]


def test_one_out_of_memory_on_long_samples_does_not_split_short_ones() -> None:
    device = SimulatedOOM(100)

    def step(part: list[dict[str, list[int]]], scale: float) -> None:
        device.check(torch.zeros(len(part), max(len(sample["input_ids"]) for sample in part)))

    guard = oom_guard(step, parameters=[])
    guard([{"input_ids": [1] * 50, "labels": [1] * 50}] * 4)
    assert (guard.stats.ooms, guard.stats.split) == (1, 1)
    guard([{"input_ids": [1] * 5, "labels": [1] * 5}] * 4)
    assert (guard.stats.ooms, guard.stats.split) == (1, 1)


def test_an_oom_that_is_survived_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(by_tokens, 60, "forward")
    with caplog.at_level(logging.WARNING, "brimful"):
        run.guard(padded_batch())
        run.guard.load_state_dict({"version": 1, "limits": []})
        run.guard(padded_batch())
    assert run.guard.stats.ooms == 2
    assert caplog.text.count("out of memory: a batch of 13 samples is run again in parts") == 1
    assert "the guard counts each one in `.stats.ooms`): simulated: out of memory" in caplog.text


@pytest.mark.parametrize("form", ["as it is", "lists"])
@pytest.mark.parametrize(
    "labels",
    [
        None,
        [0.5, 1.5, 2.5],
        [1, 0, 1],
        [True, False, True],
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
        [[1, 0], [0, 1], [1, 1]],
    ],
    ids=["none", "floats", "integers", "bools", "multi-hot", "multi-hot integers"],
)
def test_the_gradients_are_those_of_a_batch_that_is_filled_up_to_a_static_shape(labels: Any, form: str) -> None:
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6]}]
    for row, label in zip(rows, labels or ()):
        row["labels"] = label
    (batch,) = bf.from_sequence(rows).batch(bf.StaticShapes([4], 16), token_columns=[])
    if labels is not None:  # as a collate_fn makes them, without a mark in the copy
        batch["labels"] = torch.tensor([*labels, labels[0]])
    if form == "lists":
        batch |= {name: batch[name].tolist() for name in ("labels", "sample_weights") if name in batch}

    def weighted(model: Tagger, given: Any) -> Tensor:
        weights = torch.as_tensor(given["sample_weights"]).double()
        return (model(given["input_ids"], causal(given)).square().mean((1, 2)) * weights).sum() / weights.sum()

    whole, split = Run(weighted, 1 << 40, "forward"), Run(weighted, 8, "forward")
    for run in (whole, split):
        run.guard(batch)
    assert split.guard.stats.ooms == 1
    assert_same(split.gradients(), whole.gradients())
    assert len(split.seen) == 3, "two parts, and the zero at the front"


class Counting(nn.Module):
    """A layer with statistics, with buffers that each call replaces, and with a large one that some calls change."""

    def __init__(self, large: bool = False) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1)
        self.large = large
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("none", None)
        self.register_buffer("book", torch.zeros(1 << 19))

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()[:1]
        self.calls += 1
        if self.large:
            self.book[0] += len(x)
        return self.out(self.norm(x))


def guarded(model: Callable[[Tensor], Tensor], limit: int, **options: Any) -> OomGuard:
    device = SimulatedOOM(limit)

    def step(batch: dict[str, Tensor], scale: float) -> None:
        out = model(batch["x"])
        device(batch["x"])
        (out.mean() * scale).backward()

    return oom_guard(step, parameters=[], **options)


def buffers(model: nn.Module) -> dict[str, list[Any]]:
    return {name: one.tolist() for name, one in model.named_buffers()}


X = torch.arange(16.0).reshape(8, 2)


@pytest.mark.parametrize("made", ["before", "after the first call", "as a copy in another", "of no parameters"])
def test_buffers_that_a_failed_step_changed_are_as_if_it_had_not_been(made: str) -> None:
    model, known = Counting(), Counting()
    guards = {}
    for learnt, own in ((False, model), (True, known)):
        guards[learnt] = guarded(lambda x, own=own: own_of[own](x), 8)
    own_of = {model: model, known: known}
    limits = {"version": 1, "limits": [["samples", 4, [2]]]}
    guards[True].load_state_dict(limits)
    if made == "after the first call":
        guards[False]({"x": X[:2]})
        guards[True]({"x": X[:2]})
        own_of.update({model: Counting(), known: Counting()})
    elif made == "as a copy in another":
        guards[False]({"x": X[:2]})
        guards[True]({"x": X[:2]})
        own_of = {one: nn.Sequential(copy.deepcopy(one)) for one in own_of}
    elif made == "of no parameters":
        own_of = {one: nn.BatchNorm1d(2, affine=False) for one in own_of}
        for one in own_of:
            one.out.requires_grad_(False)
        guards = {learnt: guarded_without_grad(own_of[own]) for learnt, own in ((False, model), (True, known))}
        guards[True].load_state_dict(limits)
    for guard in guards.values():
        guard({"x": X})
    assert [guard.stats.ooms for guard in guards.values()] == [1, 0]
    assert [guard.stats.split for guard in guards.values()] == [1, 1]
    found, expected = (buffers(own_of[one]) for one in (model, known))
    assert found == expected
    assert any("num_batches_tracked" in name for name in found)


def guarded_without_grad(model: nn.Module) -> OomGuard:
    device = SimulatedOOM(8)

    def step(batch: dict[str, Tensor], scale: float) -> None:
        model(batch["x"])
        device(batch["x"])

    return oom_guard(step, parameters=[])


def test_a_compiled_step_that_changes_buffers_is_compiled_once() -> None:
    model = Counting(large=True)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    guard = guarded(lambda x: compiled(x), 1 << 20)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    for guarded_too in (False, False, True, True, False):
        guard({"x": X}) if guarded_too else compiled(X).sum().backward()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [1, 2, 2, 2, 2], "the second, as `last` has another shape from then on"
    assert int(model.calls) == 5


def test_a_batch_that_is_skipped_leaves_buffers_as_they_were() -> None:
    model = Counting()
    model.norm = nn.Identity()  # as a batch norm takes no sample alone
    guard = guarded(model, 0, on_sample_oom="skip")
    before, last = buffers(model), model.last
    assert guard({"x": X}) is None
    assert buffers(model) == before
    assert model.last is last


def test_a_large_buffer_is_copied_once_it_was_seen_to_change() -> None:
    model, still = Counting(large=True), Counting()
    guard = guarded(model, 8)
    with pytest.raises(
        RuntimeError, match=r"it has changed the buffer 'book' of a Counting, 2,097,152 bytes\. The guard"
    ):
        guard({"x": X})
    assert model.norm.num_batches_tracked is not None
    assert int(model.norm.num_batches_tracked) == 0, "the others went back"
    guard.load_state_dict({"version": 1, "limits": []})
    guard({"x": X})
    assert model.book[0] == 16, "8 of the first step, and 4 in each part"
    kept = {
        id(one.module) for one in Buffers(modules_of_process())._kept if one.name == "book" and one.content is not None
    }
    assert id(model) in kept
    assert id(still) not in kept


def test_it_is_made_by_its_function_and_is_there_at_the_top() -> None:
    assert bf.memory.oom_guard is oom_guard
    assert isinstance(bf.memory.oom_guard(lambda batch, scale: None), OomGuard)
    assert bf.memory.oom_guard is oom_guard


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_gets_arrays_end_to_end_as_they_are_in_the_batch_and_in_its_parts(packed: bool) -> None:
    def patches(sample: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [1, 2], "patches": np.full((sample["n"], 2, 3), float(sample["n"]))}

    data = bf.from_sequence([{"n": n} for n in (3, 0, 2, 1)]).map(patches)
    arrays: Any = {"patches": "concat"}
    (batch,) = data.pack(8, arrays=arrays) if packed else data.batch(4, arrays=arrays)
    weight, rows = torch.ones(1, requires_grad=True, dtype=torch.float64), []

    def step(part: Any, scale: float) -> None:
        offsets = part["patches_offsets"].tolist()
        rows.append([part["patches"][first:last].tolist() for first, last in pairwise(offsets)])
        device(part["input_ids"])
        (weight * part["patches"].sum() * scale).sum().backward()

    device = SimulatedOOM(1 << 20)
    guard = oom_guard(step, parameters=[weight], weigh="samples")
    guard(batch)
    device = SimulatedOOM(4)
    guard(batch)
    whole, tried, *parts = rows
    assert tried == whole
    assert [row for part in parts for row in part][-4:] == whole
    assert guard.stats.split == 1
