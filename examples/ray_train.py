"""Ray Train, whose workers may be killed at any moment, and which goes on with another number of them.

    python examples/ray_train.py --folder run --workers 2 --batches 60      # kill -9 one of its workers
    python examples/ray_train.py --folder run --workers 3 --batches 60      # no batch is lost, and none comes twice

The first command then ends with Ray's WorkerGroupError. A worker takes a processor: on fewer of these than workers Ray waits
without end, unless told --cpus-per-worker 0.5. A step has a batch of each worker, so the last one may go a few beyond --batches.

Each worker's loader is a shard of one global plan; its place lies in Ray's own checkpoints, as two integers or so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn import functional as F

import brimful as bf

VOCABULARY = 64


def data() -> bf.Batches:
    """Sentences of a made-up language, 1 to 60 tokens long."""
    random = np.random.default_rng(0)
    sentences = [random.integers(0, VOCABULARY, length).tolist() for length in random.integers(1, 60, 400)]
    rows = [{"input_ids": tokens, "labels": [*tokens[1:], -100]} for tokens in sentences]  # of each token the next one
    return bf.from_sequence(rows, shuffle=True).batch_by_tokens(256, window=200)


def work(config: dict[str, Any]) -> None:
    """What each worker does: Ray has made them ranks of torch.distributed, by which `shard()` knows which one it is."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = data().shard().loader()
    seen: list[int] = []
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    parallel = prepare_model(model)
    while len(seen) < config["batches"]:
        for step, batch in enumerate(loader, 1):
            logits = parallel(batch["input_ids"]).reshape(-1, VOCABULARY)
            loss = F.cross_entropy(logits, batch["labels"].reshape(-1), ignore_index=-100, reduction="sum")
            bf.token_mean(loss, batch).backward()
            optimiser.step()
            optimiser.zero_grad()
            seen += everybody(digest(batch))
            ended = len(seen) >= config["batches"]
            if ended or step % config["steps_per_checkpoint"] == 0:  # one takes Ray 2 s
                report(loss, {"model": model.state_dict(), "loader": loader.state_dict(), "seen": seen})
            if ended:
                break


def report(loss: torch.Tensor, state: dict[str, Any]) -> None:
    """Tells Ray how it goes; the first worker hands it a checkpoint, which stands for all."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report({"loss": float(loss.detach()), "batches": len(state["seen"])}, checkpoint=checkpoint)


def digest(batch: dict[str, Any]) -> int | None:
    """What tells a batch from others, so that it can be seen that all come, once; None of a filler."""
    return None if batch.get("is_filler") else zlib.crc32(batch["input_ids"].numpy().tobytes())


def everybody(mine: int | None) -> list[int]:
    """What the batches of this step were, of all workers, in the global order."""
    found: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [one for one in found if one is not None]


def train(folder: Path, workers: int, batches: int, cpus_per_worker: float = 1.0) -> list[int]:
    """Trains, on from the last checkpoint where there is one; the batches in the order in which they were trained on."""
    trainer = TorchTrainer(
        work,
        train_loop_config={"batches": batches, "steps_per_checkpoint": 10},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cpus_per_worker}),
        run_config=RunConfig(name="run", storage_path=str(folder.resolve())),  # the same name: Ray goes on with it
    )
    result = trainer.fit()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as last:
        seen: list[int] = torch.load(Path(last) / "state.pt", weights_only=True)["seen"]
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where Ray's checkpoints go")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=60, help="of all workers together, at least")
    parser.add_argument("--cpus-per-worker", type=float, default=1.0, help="0.5: two workers a processor")
    arguments = parser.parse_args()
    trained = train(arguments.folder, arguments.workers, arguments.batches, arguments.cpus_per_worker)
    (arguments.folder / "batches.json").write_text(json.dumps(trained))
    print(f"{arguments.workers} workers: {len(trained)} batches in all")
