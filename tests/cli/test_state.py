"""`brimful state show`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import brimful as bf
from tests.cli.commands import Corpus, invoke, refusal


def test_shows_where_a_run_is(corpus: Corpus, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    words = ["run", corpus.urls, "--tokenizer", corpus.tokenizer, "--max-tokens", 512, "--state", state]
    assert invoke(*words, "--limit", 3).exit_code == 0
    lines = invoke("state", "show", state).stdout.splitlines()
    assert lines[:3] == ["batches   3", "epoch     0 (the first is 0)", "version   5"]
    begins = lines.index("position")
    stages = [line.split("(")[0].strip() for line in lines[lines.index("pipeline") + 1 : begins]]
    assert stages == ["from_files", "tokenize", "batch"]
    position = json.loads(json.loads(state.read_bytes())["loader"]["iterator"])["position"]["windows"]
    (begun,) = re.findall(r'"begun": (\d+)', json.dumps(position))
    assert any(line.strip().startswith(f"rows: epoch 0, begun {begun}, shards") for line in lines)
    windows = next(line for line in lines if line.startswith("    windows: "))
    assert f"epoch 0, window {position['window']}, size {position['size']}" in windows
    assert invoke(*words).exit_code == 0
    ended = invoke("state", "show", state).stdout.splitlines()
    assert ended[1:-1] == ["epoch     1 (the first is 0)", *lines[2:begins]]  # version and pipeline
    assert ended[-1] == "position  the start of epoch 1"
    assert "(epoch 1; the first is 0), as" in invoke(*words, "--epochs", 2).stderr


def test_shows_the_pipeline_of_a_store(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "store"
    words = ("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", path, "--keep", "other")
    assert invoke(*words).exit_code == 0
    lines = invoke("state", "show", path).stdout.splitlines()
    assert f"tokens    {corpus.tokens:,} in input_ids, lengths in lengths.input_ids.npy" in lines
    assert f"rows      {corpus.samples} in 1 files" in lines
    assert "column    other: int64" in lines
    stages = [line.split("(")[0].strip() for line in lines[lines.index("pipeline") + 1 : -1]]
    assert stages == ["from_files", "tokenize", "select"]
    assert lines[-1] == "position  none: a store is whole"


def test_shows_a_state_dict_with_its_branches(tmp_path: Path) -> None:
    mixed = bf.interleave_datasets([bf.from_sequence(["a"] * 9), bf.from_sequence(["b"] * 9).skip(2)])
    it = mixed.iter()
    next(it)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(it.state_dict()))
    output = invoke("state", "show", path).stdout
    assert output.startswith("version   5\npipeline\n")
    sources = [line for line in output.splitlines() if "from_sequence" in line]
    assert [len(line) - len(line.lstrip()) for line in sources] == [4, 4]
    assert "    skip(" in output


def test_shows_the_state_of_a_loader_and_of_its_streams(corpus: Corpus, tmp_path: Path) -> None:
    batches = bf.from_files(corpus.urls, streams=2).batch(2)
    loader = batches.loader()
    next(iter(loader))
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"step": 1, "loader": loader.state_dict()}))
    lines = invoke("state", "show", path).stdout.splitlines()
    assert lines[0] == "step      1"
    assert "streams=2" in next(line for line in lines if "from_files" in line)
    assert "  epoch 0, next 1" in lines
    assert [line.strip()[:8] for line in lines if line.startswith("    stream ")] == ["stream 0", "stream 1"]


def test_shows_a_checkpoint_of_torch(tmp_path: Path) -> None:
    loader = bf.from_sequence([{"input_ids": [1]}] * 3).batch(2).loader()
    next(iter(loader))
    path = tmp_path / "checkpoint.pt"
    model = {"weight": torch.zeros(2)}
    torch.save({"model": model, "step": 7, "losses": [1.0], "loader": loader.state_dict()}, path)
    lines = invoke("state", "show", path).stdout.splitlines()
    assert lines[:4] == ["step      7", "epoch     0 (the first is 0)", "version   5", "pipeline"]
    torch.save({"loader": tmp_path}, path)  # an object, which unpickling might run
    assert "checkpoint.pt holds no state that can be read: Weights only load failed" in refusal("state", "show", path)


def test_shows_the_state_of_a_loader_that_has_not_begun(tmp_path: Path) -> None:
    loader = bf.from_sequence(["a"] * 3).batch(2).loader()
    path = tmp_path / "checkpoint.json"
    for epoch in range(2):
        path.write_text(json.dumps(loader.state_dict()))
        said = (
            f"epoch     {epoch} (the first is 0)\n"
            "pipeline  not saved: between two epochs a loader's state fits any pipeline\n"
            f"position  the start of epoch {epoch}\n"
        )
        assert invoke("state", "show", path).stdout == said
        path.write_text(json.dumps({"step": 3, "model": {"a": 1}, "loader": loader.state_dict()}))
        assert invoke("state", "show", path).stdout == f"step      3\n{said}"
        list(loader)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not JSON", "holds no state: it is not JSON"),
        ("[]", "neither a dict of version, header and position nor one of those under a name"),
        ('{"a": {"version": 1}}', "holds no state: neither"),
    ],
)
def test_refuses_what_is_no_state(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    assert message in refusal("state", "show", path)


def test_refuses_a_path_without_a_file(tmp_path: Path) -> None:
    assert "there is no file '/nowhere.json'" in refusal("state", "show", "/nowhere.json")
    assert "is a folder, and holds no token store that is finished" in refusal("state", "show", tmp_path)
