"""benchmarks/convergence.py compares like with like: what its tables rest on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf

TASKS = ("causal", "masked", "classes")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """A script that imports its neighbours, as `python benchmarks/convergence.py` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        import convergence  # type: ignore[import-not-found]

        yield convergence
    for name in ("convergence", "_training", "_curves"):
        sys.modules.pop(name, None)


def rows(task: Any, count: int) -> pa.Table:
    """Of the lengths of text: short and long, none longer than 256."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.5, 1.0, count).astype(int) + 2, 2, 256)
    ids = [draw.integers(1, 4_096, length) for length in lengths]
    if not task.columns:
        return pa.table({"input_ids": pa.array(ids), "label": pa.array(draw.integers(0, task.outputs, count))})
    targets = [np.where(draw.random(len(row)) < 0.5, row, -100) for row in ids]
    return pa.table({"input_ids": pa.array(ids), "targets": pa.array(targets)})


def gradient(bench: ModuleType, task: Any, batches: bf.Batches) -> tuple[float, int, torch.Tensor]:
    """Sum of losses, their number and the gradient of the sum, over all steps."""
    torch.manual_seed(0)
    model = bench.Model(task, 32, 1)
    losses = [model(batch) for micro, _ in bench.steps(batches, 1, torch.device("cpu")) for batch in micro]
    total = sum(loss for loss, _ in losses)
    total.backward()
    flat = torch.cat([one.grad.flatten() for one in model.parameters()])
    return float(total.detach()), sum(count for _, count in losses), flat


@pytest.mark.parametrize("name", TASKS)
def test_losses_and_gradients_are_those_of_the_samples_in_whatever_layout_they_come(
    bench: ModuleType, name: str
) -> None:
    task = bench.TASKS[name]
    data = bf.from_sequence(rows(task, 24))
    alone = gradient(bench, task, data.batch(1, **task.columns))
    assert alone[1] == bench.targets(data)
    layouts = {
        "padded": data.batch(24, **task.columns),
        "packed": data.pack(256, rows=3, **task.columns),
        "groups": data.batch(24, layout="grouped", num_groups=4, **task.columns),
        "static": data.batch(bf.StaticShapes([64, 256], 1_024), **task.columns),
    }
    for layout, batches in layouts.items():
        loss, count, flat = gradient(bench, task, batches)
        assert count == alone[1], layout
        assert loss == pytest.approx(alone[0], rel=1e-5), layout
        torch.testing.assert_close(flat, alone[2], rtol=1e-3, atol=1e-4, msg=layout)


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_hands_out_every_token_in_steps_of_the_size_that_is_asked_for(
    bench: ModuleType, name: str
) -> None:
    task = bench.TASKS[name]
    data = bf.from_sequence(rows(task, 1_500))
    total = int(data.lengths().sum())
    for setting in bench.settings(task):
        batches = bench.fitted(setting, data, 2_560, seed=1, **task.columns)
        tokens = [count for _, count in bench.steps(batches, setting.per_step, torch.device("cpu"))]
        assert sum(tokens) == total, setting.name
        assert np.mean(tokens) == pytest.approx(2_560, rel=0.06), setting.name


def test_a_kind_is_read_off_the_signs_of_a_title_which_are_taken_away(bench: ModuleType) -> None:
    lines = [
        "= Big Boy =",
        "It is",
        "a song",
        "= = Reception = =",
        "It was",
        "= = = Charts = = =",
        "It rose",
        "and fell",
    ]
    bare, labels = sys.modules["_training"].kinds(lines)
    assert bare == ["Big Boy", "It is", "a song", "Reception", "It was", "Charts", "It rose", "and fell"]
    assert labels == [0, 3, 5, 1, 4, 2, 4, 5]


def test_the_time_to_a_loss_lies_between_the_points_of_a_curve(bench: ModuleType) -> None:
    curve = [(100, 1.0, 6.0), (200, 2.0, 5.0), (300, 3.0, 5.5)]
    assert bench.seconds_to(curve, 5.25) == 1.75
    assert bench.seconds_to(curve, 6.5) == 1.0
    assert np.isnan(bench.seconds_to(curve, 4.0))
    assert bench.at(curve, 0.5) == 5.5


def test_a_plot_has_a_panel_for_tokens_and_one_for_seconds(bench: ModuleType, tmp_path: Path) -> None:
    curve = [(100, 1.0, 6.0), (200, 2.0, 5.0)]
    runs = [{"task": "causal", "setting": name, "seed": 0, "curve": curve} for name in ("random", "packed & masked")]
    bench.plot(runs, tmp_path / "runs.svg")
    drawn = (tmp_path / "runs.svg").read_text("utf-8")
    assert drawn.count("<polyline") == 4
    assert "packed &amp; masked" in drawn
    assert "causal: loss against tokens" in drawn
    assert "causal: loss against seconds" in drawn
