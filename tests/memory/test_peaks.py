"""Peaks by fake tensors and on a device: the same, and what the allocator says. The largest batch, against trying all."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.memory import estimator, largest_batches, meter_on
from tests.effort import examples
from tests.memory.models import allocated_peak, make_batch, make_model, training_step

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers and torch warn of each other

SHAPES = [(1, 24), (6, 96)]


@pytest.mark.parametrize(
    ("family", "attention", "checkpointing", "autocast"),
    [
        (family, attention, checkpointing, (family == "encoder") ^ (attention == "sdpa") ^ checkpointing)
        for family, attention, checkpointing in product(["encoder", "decoder"], ["eager", "sdpa"], [False, True])
    ],
)  # each three of the four in all ways
def test_fake_tensors_need_what_the_allocator_gives(
    family: str, attention: str, checkpointing: bool, autocast: bool
) -> None:
    model = make_model(family, attention)
    if checkpointing:
        model.gradient_checkpointing_enable()
    peaks = bf.memory.estimate(
        model, make_batch, [(4, 96), (1, 8)], make_step=lambda fake: training_step(fake, autocast=autocast)
    )
    step = training_step(model, autocast=autocast)
    assert peaks.peak_bytes[0] == pytest.approx(allocated_peak(model, lambda: step(make_batch(4, 96))), rel=0.01)
    assert all(type(one) is torch.nn.Parameter for one in model.parameters()), "the model stays as it is"


def test_probes_on_the_cpu_are_what_fake_tensors_say() -> None:
    model = make_model("decoder", "sdpa")
    optimizer = torch.optim.AdamW(model.parameters())

    def with_optimizer(model: Any, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        def step(batch: Any) -> None:
            training_step(model)(batch)
            optimizer.step()

        return step

    fake = bf.memory.estimate(
        model, make_batch, SHAPES, make_step=lambda fake: with_optimizer(fake, torch.optim.AdamW(fake.parameters()))
    )
    real = bf.memory.probe(with_optimizer(model, optimizer), make_batch, SHAPES, "cpu")
    assert fake.shapes.tolist() == real.shapes.tolist() == [list(shape) for shape in SHAPES]
    np.testing.assert_allclose(fake.peak_bytes, real.peak_bytes, rtol=0.001)
    held = 4 * sum(one.numel() for one in model.parameters())
    assert (fake.peak_bytes > 4 * held).all(), "the weights, their gradients and two moments are there"


def test_a_model_that_takes_no_memory_and_a_step_without_backward() -> None:
    def large() -> torch.nn.Module:
        return torch.nn.Linear(1 << 17, 1 << 17, bias=False).eval()  # 64 GiB

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = large()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.layer(rows)  # type: ignore[no-any-return]

    peaks = bf.memory.estimate(
        lambda: Rows().eval(), lambda batch, _: {"rows": torch.zeros(batch, 1 << 17)}, [(1, 1), (4, 1)]
    )
    weights, row = 4 << 34, 4 << 17
    assert peaks.peak_bytes.tolist() == [weights + 2 * row, weights + 8 * row]


def test_two_lengths_a_sample() -> None:
    def make_batch(batch: int, lengths: tuple[int, int]) -> list[torch.Tensor]:
        return [torch.zeros(batch, length, 128) for length in lengths]

    shapes = [(2, 8, 4), (2, 16, 4)]
    real = bf.memory.probe(lambda batch: [one * 2 for one in batch], make_batch, shapes, "cpu")
    assert real.peak_bytes.tolist() == [2 * 2 * 512 * (source + target) for _, source, target in shapes]
    assert real.rows()[1] == {"batch": 2, "length": 16, "target_length": 4, "peak_bytes": 40960}


def test_nested_tensors_count_and_what_cannot_be_counted_is_an_error() -> None:
    def nested(batch: int, length: int) -> torch.Tensor:
        values, offsets = torch.zeros(batch * length, 128), torch.arange(0, (batch + 1) * length, length)
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    (peak,) = bf.memory.probe(lambda batch: batch * 2, nested, [(4, 64)], "cpu").peak_bytes.tolist()
    assert peak == pytest.approx(2 * 4 * 64 * 512, rel=0.02)
    with pytest.raises(
        ValueError, match=r"^the memory of tensors of layout torch.sparse_coo is not counted; probe on a device"
    ):
        bf.memory.probe(
            lambda batch: batch.to_sparse(), lambda batch, length: torch.ones(batch, length), [(2, 2)], "cpu"
        )


def test_the_exact_largest_batch_of_a_length() -> None:
    meter = estimator(make_model("encoder", "eager"), make_batch)
    limit = 40e6
    (found,) = largest_batches(meter, [96], limit)
    assert found > 2
    assert meter(found, 96) <= limit < meter(found + 1, 96)


def test_an_error_of_the_users_passes_through_fake_mode_as_it_is() -> None:
    def wrong(model: Any) -> Callable[[Any], object]:
        return lambda batch: batch["input_ids"].view(7, 7)

    with pytest.raises(RuntimeError, match="boom"):
        bf.memory.estimate(torch.nn.Linear(2, 2), make_batch, [(1, 2)], make_step=lambda model: fails)
    with pytest.raises(RuntimeError, match="invalid for input of size 2"):
        bf.memory.estimate(torch.nn.Linear(2, 2), make_batch, [(1, 2)], make_step=wrong)


def test_what_runs_out_of_memory_is_noted_and_what_is_no_smaller_is_not_tried() -> None:
    tried = []

    def step(batch: torch.Tensor) -> None:
        tried.append(tuple(batch.shape))
        if batch.numel() > 1000:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        batch * 2

    shapes = [(2, 100), (20, 100), (50, 100), (100, 9), (50, 50)]
    peaks = bf.memory.probe(step, lambda batch, length: torch.zeros(batch, length), shapes, "cpu")
    assert peaks.shapes.tolist() == [[2, 100], [100, 9]]
    assert peaks.out_of_memory.tolist() == [[20, 100], [50, 100], [50, 50]]
    assert tried == [(2, 100), (50, 100), (50, 50), (20, 100), (100, 9), (2, 100)]
    assert peaks.rows()[0] == {"batch": 2, "length": 100, "peak_bytes": int(peaks.peak_bytes[0])}
    assert repr(peaks) == "Peaks(2 shapes, 3 out of memory)"


def looks_at_values(model: Any) -> Callable[[Any], object]:
    return lambda batch: batch["input_ids"].max().item()


def makes_a_shape_of_values(model: Any) -> Callable[[Any], object]:
    return lambda batch: batch["input_ids"].nonzero()


def as_numpy(model: Any) -> Callable[[Any], object]:
    return lambda batch: batch["input_ids"].numpy()


def nested(batch: int, length: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(length)] * batch, layout=torch.jagged)


def fails(batch: Any) -> None:
    raise RuntimeError("boom")


def out_of_memory(batch: Any) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: bf.memory.estimate(torch.nn.Linear(2, 2), make_batch, [(1, 2)], make_step=looks_at_values),
            ValueError,
            "fake tensors, which have no values, cannot follow Linear (aten._local_scalar_dense.default); probe on a device",
        ),
        (
            lambda: bf.memory.estimate(torch.nn.Linear(2, 2), make_batch, [(1, 2)], make_step=makes_a_shape_of_values),
            ValueError,
            "cannot follow Linear (aten.nonzero.default)",
        ),
        (
            lambda: bf.memory.estimate(torch.nn.Linear(2, 2), make_batch, [(1, 2)], make_step=as_numpy),
            ValueError,
            "cannot follow Linear (.numpy() is not supported for tensor subclasses.); probe on a device",
        ),
        (
            lambda: bf.memory.estimate(
                torch.nn.Linear(2, 2), nested, [(1, 2)], make_step=lambda model: lambda batch: batch * 2
            ),
            ValueError,
            "cannot follow Linear (self.shape_env must not be None); probe on a device",
        ),
        (
            lambda: bf.memory.estimate(lambda: torch.nn.Linear(2, 2).to("cpu"), make_batch, [(1, 2)]),
            ValueError,
            "<lambda> moves or casts a module (.to, .half), which torch cannot do with fake tensors; make it with device=",
        ),
        (
            lambda: bf.memory.estimate(torch.nn.Linear(2, 2, device="meta"), make_batch, [(1, 2)]),
            ValueError,
            "estimate takes a model on the CPU (got one on meta); give a function that makes it",
        ),
        (lambda: bf.memory.probe(fails, make_batch, [(1, 2)], "cpu"), RuntimeError, "boom"),
        (
            lambda: bf.memory.probe(out_of_memory, make_batch, [(1, 2), (4, 8)], "cpu"),
            ValueError,
            "the smallest shape, batch 1 of length 2, runs out of memory; probe smaller ones",
        ),
        (
            lambda: bf.memory.probe(fails, make_batch, [(1, 2)], "mps"),
            ValueError,
            "device must be cpu or cuda (got 'mps')",
        ),
        (
            lambda: bf.memory.probe(fails, make_batch, [(1, 2)], "gpu"),
            ValueError,
            "device must be cpu or cuda (got 'gpu')",
        ),
        (
            lambda: bf.memory.probe(fails, make_batch, [], "cpu"),
            ValueError,
            "shapes must be (n, 2) or (n, 3), at least one",
        ),
        (lambda: bf.memory.probe(fails, make_batch, [(1, 0)], "cpu"), ValueError, "(shape 0 is batch 1 of length 0)"),
        (
            lambda: bf.memory.probe(fails, make_batch, [(1, 0.5)], "cpu"),
            TypeError,
            "shapes must be integers (got float64)",
        ),
    ],
)
def test_what_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"^device 'cuda' is not there: torch finds no GPU; estimate needs none$"):
        meter_on("cuda", fails, make_batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_has_the_peaks_that_fake_tensors_say_and_recovers() -> None:
    shapes = [(8, 256), (16, 256), (32, 512)]
    fake = bf.memory.estimate(make_model("decoder", "eager"), make_batch, shapes)
    on_gpu = make_model("decoder", "eager").to("cuda")

    def batch_on_gpu(batch: int, length: int) -> dict[str, torch.Tensor]:
        return {name: tensor.to("cuda") for name, tensor in make_batch(batch, length).items()}

    real = bf.memory.probe(training_step(on_gpu), batch_on_gpu, shapes, "cuda")
    rises = np.diff(real.peak_bytes)  # what libraries take for themselves is the same for all
    np.testing.assert_allclose(np.diff(fake.peak_bytes), rises, rtol=0.2)

    def rows(batch: int, length: int) -> torch.Tensor:
        return torch.zeros(batch, length << 20, device="cuda")

    beyond = bf.memory.probe(lambda batch: batch * 2, rows, [(1, 1), (1 << 20, 1)], "cuda")
    assert beyond.out_of_memory.tolist() == [[1 << 20, 1]]


pieces = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=4)


@given(pieces, st.integers(1, 2 * 10**6), st.sampled_from([1, 512]), st.booleans(), st.integers(1, 500))
@examples(150)
def test_the_largest_batch_is_what_trying_all_batches_gives(
    pieces: list[tuple[int, int]], limit: int, block: int, runs_out: bool, most: int
) -> None:
    tried = []

    def peak(batch: int, length: object) -> float:
        tried.append(batch)
        real = max(constant + slope * block * batch for constant, slope in pieces)
        return inf if runs_out and real > limit else real

    expected = max((batch for batch in range(1, most + 1) if peak(batch, 0) <= limit), default=0)
    tried.clear()
    assert largest_batches(peak, [0], limit, max_batch_size=most) == [expected]
    assert len(tried) == len(set(tried)) <= 24, "nothing is measured twice"


def test_the_largest_batch_takes_three_or_four_steps_where_the_peak_is_affine() -> None:
    tried: list[int] = []

    def peak(batch: int, length: int) -> float:
        tried.append(batch)
        return 1e9 + 3e6 * length * batch

    assert largest_batches(peak, [128], 24e9) == [59]  # type: ignore[arg-type]
    assert len(tried) <= 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: largest_batches(lambda b, n: 1.0, [1], 0), "limit_bytes must be positive (got 0)"),
        (
            lambda: largest_batches(lambda b, n: 1.0, [1], 1, max_batch_size=0),
            "max_batch_size must be at least 1 sample (got 0)",
        ),
    ],
)
def test_what_largest_batches_refuses(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
