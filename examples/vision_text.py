"""Text with images of several sizes: padded tokens and patches end to end, within a budget of both, on one process or several.

    python examples/vision_text.py
    torchrun --nproc-per-node 2 examples/vision_text.py

A batch has at most 400 padded tokens and 60 patches. Patches of all images lie end to end, and none is padding. An optimizer step
has two batches on each rank. Its loss and its gradients are those of its samples one by one.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import brimful as bf

VOCABULARY = 64
Batch = dict[str, torch.Tensor]


def captions(number: int = 60) -> bf.IndexedDataset:
    """Captions of 3 to 40 tokens, each with the patches of an image, (n, 3, 16, 16) for n of 1 to 24; some have no image."""
    random = np.random.default_rng(0)
    rows = []
    for one in range(number):
        tokens = random.integers(0, VOCABULARY, random.integers(3, 41)).tolist()
        patches = random.standard_normal((random.integers(1, 25) if one % 5 else 0, 3, 16, 16), np.float32)
        rows.append({"number": one, "input_ids": tokens, "labels": [-100, *tokens[1:]], "patches": patches})
    return bf.from_sequence(rows)


class Captioner(nn.Module):
    """The mean of the tokens so far, and the mean of the image's patches, predict the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.patches = nn.Linear(3 * 16 * 16, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.double()

    def forward(self, tokens: torch.Tensor, patches: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """(B, L), (n, 3, 16, 16) and (B + 1,) to (B, L, vocabulary)."""
        seen = self.patches(patches.double().flatten(1)).tanh()
        counts = offsets.diff()
        owners = torch.arange(len(counts)).repeat_interleave(counts)
        images = torch.zeros(len(counts), 16, dtype=torch.float64).index_add(0, owners, seen)
        images = images / counts.clamp(min=1)[:, None]
        so_far = self.tokens(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head((so_far + images[:, None]).tanh())


def loss_sum(model: Captioner, batch: Batch) -> torch.Tensor:
    scores = model(batch["input_ids"], batch["patches"], batch["patches_offsets"])
    return cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def one_by_one(model: Captioner, data: bf.IndexedDataset, numbers: list[int]) -> torch.Tensor:
    """The loss of some samples, each of which is a batch of its own, as a mean over their labels."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for number in numbers:
        tokens = torch.as_tensor(data[number]["input_ids"])[None].long()
        patches = torch.from_numpy(data[number]["patches"])
        offsets = torch.tensor([0, len(patches)])
        alone = {"input_ids": tokens, "labels": tokens, "patches": patches, "patches_offsets": offsets}
        total = total + loss_sum(model, alone)
        count += tokens.numel() - 1  # nothing predicts the first one
    return total / count


def everyone(value: object) -> list:
    """What all ranks have, by rank."""
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    data = captions()
    budget = bf.MultiBudget(padded={"input_ids": 800}, total={"patches": 120})
    batches = data.batch(budget, arrays={"patches": "concat"}, micro_batches=2).shard()

    torch.manual_seed(0)
    model = Captioner()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    loss, numbers, tokens, patches, seen = 0.0, [], [], [], []
    for batch in batches:
        mean = bf.token_mean(loss_sum(model, batch), batch)
        mean.backward()
        loss += mean.item()
        tokens.append(batch["input_ids"].numel())
        patches.append(len(batch["patches"]))
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

    assert sorted(seen) == list(range(60)), "each sample once"
    print(f"rank {dist.get_rank()}: batches of {tokens} tokens and {patches} patches; loss and gradients as one by one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
