"""Speech recognition on spectrograms of very unequal length, in batches of at most 1,000 frames, on one process or several.

    python examples/speech.py
    torchrun --nproc-per-node 2 examples/speech.py

The budget counts frames, and each batch is padded to its longest spectrogram. An optimizer step has two batches on each rank. Its
loss and its gradients are those of its spectrograms one by one, each without padding.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import brimful as bf

CLASSES = 5
BANDS = 80
Batch = dict[str, torch.Tensor]


def recordings(number: int = 60) -> bf.IndexedDataset:
    """Spectrograms of .1 to 5 seconds, (frames, 80), with the class of each."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(4, 0.9, number)), 10, 500).astype(int).tolist()
    rows = [
        {
            "number": one,
            "frames": random.standard_normal((length, BANDS), np.float32),
            "labels": one % CLASSES,
        }
        for one, length in enumerate(lengths)
    ]
    return bf.from_sequence(rows)


class Recognizer(nn.Module):
    """Two convolutions over time, and the mean over the frames that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, 16, 3, padding=1)
        self.second = nn.Conv1d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)
        self.double()

    def forward(self, frames: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, T, 80) and (B, T) to (B, classes). What lies in the padding is 0 ahead of each convolution."""
        there = mask[:, None].double()
        hidden = self.first(frames.double().mT * there).tanh() * there
        hidden = self.second(hidden).tanh() * there
        return self.head(hidden.sum(2) / there.sum(2))


def loss_sum(model: Recognizer, batch: Batch) -> torch.Tensor:
    return cross_entropy(model(batch["frames"], batch["attention_mask"]), batch["labels"], reduction="sum")


def one_by_one(model: Recognizer, data: bf.IndexedDataset, numbers: list[int]) -> torch.Tensor:
    """The mean loss of some spectrograms, each of which is a batch of its own."""
    found = []
    for number in numbers:
        frames = torch.from_numpy(data[number]["frames"])[None]
        alone = {
            "frames": frames,
            "attention_mask": torch.ones(frames.shape[:2]),
            "labels": torch.tensor([number % CLASSES]),
        }
        found.append(loss_sum(model, alone))
    return torch.stack(found).mean()


def everyone(value: object) -> list:
    """What all ranks have, by rank."""
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    data = recordings()
    batches = data.batch_by_tokens(2_000, length_column="frames", micro_batches=2).shard()

    torch.manual_seed(0)
    model = Recognizer()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    loss, numbers, frames, seen = 0.0, [], [], []
    for batch in batches:
        mean = bf.token_mean(loss_sum(model, batch), batch)
        mean.backward()
        loss += mean.item()
        frames.append(batch["attention_mask"].numel())
        numbers += [] if batch["is_filler"] else batch["number"].tolist()
        if not batch["ends_step"]:
            continue
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        of_step = [number for own in everyone(numbers) for number in own]
        expected = one_by_one(model, data, of_step)
        gradients = torch.autograd.grad(expected, parameters)
        torch.testing.assert_close(sum(everyone(loss)) / dist.get_world_size(), expected.item(), rtol=0, atol=1e-12)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
        seen += of_step
        loss, numbers = 0.0, []

    assert sorted(seen) == list(range(60)), "each spectrogram once"
    print(f"rank {dist.get_rank()}: {len(frames)} batches of {frames} frames; loss and gradients as one by one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
