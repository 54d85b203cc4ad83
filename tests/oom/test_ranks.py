"""A guarded step on several ranks: each says how gradients come together, and none waits for another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.oom.ranks_child", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_several_ranks_must_say_how_they_work_together(saw: list[Any]) -> None:
    for rank in saw:
        assert rank["unsaid"].startswith(
            "ValueError: there are 2 ranks, and the guard cannot see how their gradients come together"
        )


def test_under_ddp_a_rank_splits_by_itself_and_gradients_are_reduced_once(saw: list[Any]) -> None:
    batches = [torch.arange(8.0, dtype=torch.float64).reshape(4, 2) + rank for rank in range(2)]
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, bias=False).double()
    sum(model(batch).square().mean() for batch in batches).backward()
    for rank in saw:
        torch.testing.assert_close(
            torch.tensor(rank["ddp"]["gradient"], dtype=torch.float64), model.weight.grad, rtol=1e-10, atol=0
        )
        assert rank["ddp"]["synced"].startswith(
            "RuntimeError: a guarded step under distributed='ddp' ran a forward of "
        )
        assert rank["ddp"]["counted"].startswith(
            "ValueError: the batch has num_items_on_rank, which 2 ranks add up, so nobody can see what a part of it weighs"
        )
    assert [rank["ddp"]["ooms"] for rank in saw] == [0, 1]


def test_under_fsdp_all_ranks_take_as_many_parts_or_all_of_them_refuse(saw: list[Any]) -> None:
    assert [rank["fsdp"]["forwards"] for rank in saw] == [3, 3]
    for rank in saw:
        assert rank["fsdp"]["few"].startswith("RankError: a batch must be split into 4 parts on every rank")
        assert rank["fsdp"]["few"].endswith("and rank 0 has 1 samples; take smaller batches")
        assert rank["fsdp"]["oom"].startswith(
            "RuntimeError: out of memory under FSDP: the other ranks wait for this one"
        )
        assert rank["fsdp"]["learnt"]["limits"] == [["samples", 1, [3]]], "of parts of 2 samples"
