"""Data-parallel training that may be killed at any moment and go on with another number of processes.

    torchrun --nproc-per-node 2 examples/train_ddp.py --folder run --steps 40
    torchrun --nproc-per-node 1 examples/train_ddp.py --folder run --steps 40     # the losses go on as if nothing had been

Each optimiser step takes two batches, wherever they run: one on each of two processes, or two after each other on one. The
loss is the mean over all supervised tokens of the step, so that it does not depend on who had how many.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import brimful as bf

BATCHES_PER_STEP = 2
VOCABULARY = 64


def data() -> bf.Batches:
    """Sentences of a made-up language, 1 to 60 tokens long."""
    random = np.random.default_rng(0)
    sentences = [random.integers(0, VOCABULARY, length).tolist() for length in random.integers(1, 60, 400)]
    rows = [{"input_ids": tokens, "labels": [*tokens[1:], -100]} for tokens in sentences]  # of each token the next one
    return bf.from_sequence(rows, shuffle=True).batch_by_tokens(512, window=200).shard()


def loss_sum(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """The summed loss of a batch; padding and fillers have no label."""
    logits, labels = model(batch["input_ids"]), batch["labels"]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100, reduction="sum")


def train(folder: Path, steps: int, seconds_per_step: float) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY)).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = data().loader()
    losses: list[float] = []
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        losses = saved["losses"]
    parallel = DistributedDataParallel(model)
    while len(losses) < steps:
        for micro in groups(iter(loader), BATCHES_PER_STEP // world_size):
            tokens = sum(
                batch["num_items_in_batch"] for batch in micro
            )  # of all processes, as DDP takes the mean over them
            total = torch.stack([loss_sum(parallel, batch) for batch in micro]).sum()
            loss = bf.token_mean(total, {"num_items_in_batch": tokens})
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            mean = loss.detach() / world_size
            dist.all_reduce(mean)  # to be looked at; training needs none of ours
            losses.append(float(mean))
            if rank == 0:
                save(checkpoint, {"model": model.state_dict(), "loader": loader.state_dict(), "losses": losses})
            time.sleep(seconds_per_step)
            if len(losses) == steps:
                break
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))
        print(f"{world_size} processes: loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {steps} steps")
    dist.destroy_process_group()


def groups(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Groups of `size` batches, the last one of an epoch perhaps smaller; none is read before the one before it is used."""
    while group := list(islice(batches, size)):
        yield group


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint whole or not at all."""
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoint and losses go")
    parser.add_argument("--steps", type=int, default=40, help="optimiser steps")
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="wait after each, to be killed at leisure")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    train(arguments.folder, arguments.steps, arguments.seconds_per_step)
