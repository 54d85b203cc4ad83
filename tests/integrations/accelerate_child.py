"""A loop with Accelerate, and its jobs on several processes: `python -m tests.integrations.accelerate_child`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import brimful as bf
from brimful.integrations.accelerate import load, prepare, save
from tests.forks import serve
from tests.integrations.unequal import batches, one, rows_of

EPOCHS = 2


def train(
    loader: Any, checkpoint: Path | None = None, saves: Path | None = None, kill: int = -1, added_up: int = 4
) -> list[Any]:
    """What a process trains on, with which loss, and whether gradients stepped; a checkpoint at each step of theirs."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=added_up)
    torch.manual_seed(0)
    model = torch.nn.Embedding(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    model, loader, optimizer = prepare(accelerator, model, loader, optimizer)
    if checkpoint is not None:
        load(accelerator, checkpoint)
    seen: list[Any] = []
    while loader.epoch < EPOCHS:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch["input_ids"]).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen.append([one(batch), loss.item(), accelerator.sync_gradients])
            if saves is not None and accelerator.sync_gradients:
                save(accelerator, saves / f"step-{len(seen):02}")
            if len(seen) == kill:
                accelerator.wait_for_everyone()
                os.kill(os.getpid(), signal.SIGKILL)
    accelerator.free_memory()
    return seen


def checkpoints(folder: Path) -> list[tuple[Path, int]]:
    return [(path, int(path.name[5:])) for path in sorted(folder.glob("step-??"))]


def whole(folder: Path, kind: str) -> Any:
    unbroken = train(batches(kind, folder).loader(), saves=folder)
    return [unbroken, [[steps, train(batches(kind, folder).loader(), path)] for path, steps in checkpoints(folder)]]


def killed(folder: Path, kind: str) -> Any:
    return train(batches(kind, folder).loader(), saves=folder, kill=5)


def resumed(folder: Path, kind: str) -> Any:
    path, steps = checkpoints(folder)[-1]
    return [steps, train(batches(kind, folder).loader(), path)]


def refused(folder: Path) -> Any:
    """What is said of loaders that would be shared out a second time, or not at all."""
    said = []
    accelerator = Accelerator(cpu=True)
    try:
        prepare(accelerator, bf.from_sequence(rows_of(8)).batch(2).loader())
    except ValueError as error:
        said.append(str(error))
    for dispatch in (None, False):
        loader = batches("indexed", folder).loader()
        accelerator = Accelerator(cpu=True)
        accelerator.dataloader_config.dispatch_batches = dispatch
        try:
            next(iter(accelerator.prepare(DataLoader(loader, batch_size=None if dispatch is None else 1))))
        except ValueError as error:
            said.append(str(error))
    return said


def refuses(folder: Path) -> Any:
    """A checkpoint that rank 1 loads with other data: what each says."""
    train(batches("indexed", folder).loader(), saves=folder)
    accelerator = Accelerator(cpu=True)
    rows = rows_of(29 if accelerator.process_index else 30)
    data = bf.from_sequence(rows, shuffle=True).batch_by_tokens(20, window=16).shard()
    model = torch.nn.Embedding(64, 1)
    prepare(accelerator, model, data.loader(), torch.optim.SGD(model.parameters(), 0.3, momentum=0.9))
    try:
        load(accelerator, checkpoints(folder)[0][0])
    except Exception as error:
        return [type(error).__name__, str(error)]


def of_numbers(samples: list[Any]) -> dict[str, Any]:
    """A batch without tokens, with a tensor that has no row of a sample."""
    numbers = torch.tensor([int(sample["number"][0]) for sample in samples])
    return {"edges": torch.zeros(7, 2), "number": numbers, "twice": 2 * numbers}


def gathered(folder: Path, column: str) -> Any:
    """The samples of an epoch, gathered for a metric: 5 batches of 2 on 2 processes, the last one a filler."""
    accelerator = Accelerator(cpu=True)
    data = bf.from_sequence([{column: row["input_ids"], "name": "a row"} for row in rows_of(10)])
    batches = data.batch(2) if column != "number" else data.batch(2, collate_fn=of_numbers)
    loader = prepare(accelerator, batches.shard().loader())
    found: list[int] = []
    for batch in loader:
        rows = batch[column].flatten(1)[:, 0].tolist() if batch[column].dim() > 1 else batch[column].tolist()
        found += accelerator.gather_for_metrics(rows, use_gather_object=True)
    return found


if __name__ == "__main__":
    serve(
        {job.__name__: job for job in (whole, killed, resumed, refused, refuses, gathered)}, "torch._dynamo"
    )  # of optimizers and DDP
