"""`brimful memory probe` and `brimful memory fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import brimful as bf
from tests.cli.commands import invoke, refusal

TRAIN = """
import torch

def build(device):
    model = torch.nn.Linear(64, 64, device=device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda batch, length: torch.zeros(batch, length, 64, device=device)
"""


def test_probe_then_fit_then_a_policy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    target = f"{tmp_path / 'train.py'}:build"
    shapes = ("--batch-sizes", "1,16", "--lengths", "128, 512", "--count", 3)
    for device in ("fake", "cpu"):
        result = invoke(
            "memory", "probe", target, *shapes, "--device", device, "--output", tmp_path / f"{device}.jsonl"
        )
        assert result.exit_code == 0, result.output
    peaks = (tmp_path / "cpu.jsonl").read_text()
    assert peaks == (tmp_path / "fake.jsonl").read_text()
    rows = [json.loads(line) for line in peaks.splitlines()]
    assert len(rows) == 3
    assert rows[0].keys() == {"batch", "length", "peak_bytes"}

    result = invoke("memory", "fit", tmp_path / "cpu.jsonl", "--output", tmp_path / "memory.json", "--limit-gb", 0.01)
    assert result.exit_code == 0, result.output
    assert "MemoryModel(3 peaks, batches 1 to 16, lengths 128 to 512; at risk 2.5 %" in result.stdout
    model = bf.memory.MemoryModel.load(tmp_path / "memory.json")
    assert f" {model.largest_batch(512, 1e7)} " in result.stdout
    assert model.predict(rows[0]["batch"], rows[0]["length"]) == pytest.approx(rows[0]["peak_bytes"], rel=0.05)


def test_a_log_of_pairs(tmp_path: Path) -> None:
    lines = ["batch,length,target_length,peak_bytes"]
    lines += [f"{b},{s},{t},{1000 + b * (s + 2 * t)}" for b in (1, 4) for s in (8, 64) for t in (8, 64)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    result = invoke("memory", "fit", tmp_path / "log.csv", "--output", tmp_path / "memory.json", "--limit-gb", 1e-5)
    assert result.exit_code == 0, result.output
    assert "8 and 64" in result.stdout
    assert bf.memory.MemoryModel.load(tmp_path / "memory.json").num_lengths == 2


def test_what_is_wrong_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    shapes = ("--batch-sizes", "1,4", "--lengths", "8")
    assert "TARGET must be FILE.py:FUNCTION" in refusal("memory", "probe", "train.py", *shapes)
    assert "there is no file none.py" in refusal("memory", "probe", "none.py:build", *shapes)
    assert "module no_such cannot be imported" in refusal("memory", "probe", "no_such:build", *shapes)
    assert "has no function 'other'" in refusal("memory", "probe", f"{tmp_path / 'train.py'}:other", *shapes)
    assert "device must be cpu or cuda (got 'gpu')" in refusal(
        "memory", "probe", f"{tmp_path / 'train.py'}:build", *shapes, "--device", "gpu"
    )
    assert "--lengths must be numbers with commas between them (got '8;9')" in refusal(
        "memory", "probe", f"{tmp_path / 'train.py'}:build", "--batch-sizes", "1", "--lengths", "8;9"
    )
    (tmp_path / "log.jsonl").write_text('{"batch": 1, "peak": 3}\n')
    assert "has no column 'length' (columns: batch, peak)" in refusal("memory", "fit", tmp_path / "log.jsonl")


@pytest.mark.parametrize("command", ["probe", "fit"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: brimful memory {command} " in invoke("memory", command, "--help").stdout
