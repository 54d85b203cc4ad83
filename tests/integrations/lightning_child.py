"""A tiny model under Lightning's Trainer, and its jobs on several ranks: `python -m tests.integrations.lightning_child`."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import brimful as bf
from brimful.integrations.lightning import callbacks
from tests.forks import serve
from tests.integrations.unequal import batches, one

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """Remembers what it trained on, and with which loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.Embedding(64, 1)
        self.seen: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        parts = list(batch.values()) if set(batch) == {"one", "two"} else [batch]
        loss = sum((self.weights(part["input_ids"]).pow(2).mean() for part in parts), torch.zeros(()))
        self.seen.append([[one(part) for part in parts], loss.item()])
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        loss = self.weights(batch["input_ids"]).pow(2).mean().item()
        if not self.trainer.sanity_checking:
            self.validated.append([one(batch), loss])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = len(self.seen), len(self.validated)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.3, momentum=0.9)


def trainer(*others: Callback, world_size: int = 1, **settings: Any) -> lightning.Trainer:
    """It has brimful's callback also where the installed entry points are older than the source."""
    saves = any(isinstance(one, ModelCheckpoint) for one in others)  # else Lightning adds one, for this folder
    settings = {"max_epochs": 2, "val_check_interval": 3, "enable_checkpointing": saves} | settings
    made = lightning.Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(others),
        **settings,
    )
    if not any(type(found).__name__ == "FollowLoaders" for found in made.callbacks):
        made.callbacks[0:0] = callbacks()
    return made


def saving(folder: Path) -> list[Callback]:
    """A checkpoint after each step, at each epoch's end, and where an exception ends training."""
    names = {"auto_insert_metric_name": False, "save_top_k": -1, "dirpath": folder}
    return [
        ModelCheckpoint(filename="step-{step:02d}", every_n_train_steps=1, **names),  # type: ignore[arg-type]
        ModelCheckpoint(filename="epoch-{epoch}", save_on_train_epoch_end=True, **names),  # type: ignore[arg-type]
    ]


def checkpoints(folder: Path) -> list[tuple[Path, int, int]]:
    """Each checkpoint, and how many batches had been trained on and validated with."""
    paths = sorted(folder.glob("*.ckpt"))
    return [(path, *torch.load(path, weights_only=False)["seen"]) for path in paths]


def fit(kind: str, folder: Path, checkpoint: Path | None = None, *others: Callback, **settings: Any) -> Any:
    """What a rank of two trains on and validates with."""
    model = Model()
    validation = bf.from_sequence([{"input_ids": [number + 1] * 2} for number in range(9)]).batch(2).shard().loader()
    steps = settings.pop("steps_per_epoch", None)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    running = trainer(*others, world_size=world_size, **settings)
    running.fit(model, batches(kind, folder).loader(steps_per_epoch=steps), validation, ckpt_path=checkpoint)
    return [model.seen, model.validated]


class Kill(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, *arguments: Any) -> None:
        if len(module.seen) == 4:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def whole(folder: Path, kind: str) -> Any:
    """An unbroken run, and what its checkpoints go on with."""
    unbroken = fit(kind, folder, None, *saving(folder))
    dist.barrier()
    rest = []
    for path, trained, _ in checkpoints(folder)[::2]:
        rest.append([path.name, trained, fit(kind, folder, path)])
        dist.barrier()
    return [unbroken, rest]


def killed(folder: Path, kind: str) -> Any:
    fit(kind, folder, None, *saving(folder), Kill())


def resumed(folder: Path, kind: str) -> Any:
    """From the last checkpoint, by the trainer's own word for it."""
    path, trained, _ = checkpoints(folder)[-1]
    return [trained, fit(kind, folder, path)]


class Fails(Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, *arguments: Any) -> None:
        if len(module.seen) == 2:
            raise OSError("the cluster takes it back")


def failed(folder: Path, kind: str) -> Any:
    """How many ranks have a place in the checkpoint that is saved as training fails."""
    saves = ModelCheckpoint(dirpath=folder, filename=kind, save_on_exception=True)
    try:
        fit(kind, folder, None, saves, Fails())
    except OSError:
        dist.barrier()
    return len(torch.load(folder / f"{kind}.ckpt", weights_only=False)["brimful"]["ranks"])


def unsharded(folder: Path) -> Any:
    rows = bf.from_sequence([{"input_ids": [1]}] * 4).batch(1)
    try:
        trainer(world_size=2).fit(Model(), rows.loader())
    except ValueError as error:
        return str(error)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(
        {job.__name__: job for job in (whole, killed, resumed, failed, unsharded)}, "torch._dynamo"
    )  # optimizers and DDP import it
