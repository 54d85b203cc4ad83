"""A contrastive loss over 64 texts, in batches of at most 512 tokens, on one process or several.

    python examples/contrastive.py
    torchrun --nproc-per-node 2 examples/contrastive.py

The loss compares each text with all others of its optimizer step, so the step cannot be cut into parts with losses of their own.
Gradient caching (GradCache, Gao et al. 2021) needs the memory of one part all the same:

1. Embed all parts without a graph.
2. Compute the loss over all embeddings of the step, and its gradient with respect to each of them.
3. Embed each part again, with a graph, and send these gradients back through it.

A model with dropout must draw the same numbers both times: save and restore the state of torch's generator for each part. Two
texts of one topic are a unit, so they are in one step. Loss and gradients are those of the whole step at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import brimful as bf

SAMPLES_PER_STEP = 64
MAX_TOKENS = 512
VOCABULARY = 64
Batch = dict[str, Any]


def texts(num_topics: int = 80) -> list[dict[str, Any]]:
    """Two texts a topic, of 4 to 120 tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randn(2 * num_topics, generator=generator).mul(0.8).add(3.2).exp().long().clamp(4, 120)
    return [
        {"topic": number // 2, "input_ids": torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()}
        for number, length in enumerate(lengths.tolist())
    ]


class Encoder(nn.Module):
    """One layer of attention, and the mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.double()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(tokens), src_key_padding_mask=mask == 0) * mask[..., None]
        return nn.functional.normalize(hidden.sum(1) / mask.sum(1, keepdim=True), dim=-1)


def contrastive_loss(vectors: torch.Tensor, topics: torch.Tensor) -> torch.Tensor:
    """The other text of its topic is the right one for each text; all others of the step are wrong."""
    scores = (vectors @ vectors.T / 0.1).fill_diagonal_(-torch.inf)
    same = (topics[:, None] == topics).fill_diagonal_(False)
    return -scores.log_softmax(-1)[same].mean()


def steps(batches: bf.Batches) -> Iterator[list[Batch]]:
    """The parts of each optimizer step that this rank has."""
    parts = []
    for batch in batches:
        parts.append(batch)
        if batch["ends_step"]:
            yield parts
            parts = []


def gathered(own: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def cached_step(encoder: Encoder, parts: list[Batch]) -> torch.Tensor:
    """The loss of the step, whose gradients are added to those of the encoder. It has the graph of one part at a time."""
    real = [part for part in parts if not part["is_filler"]]  # a filler repeats a text, for ranks that would wait
    with torch.no_grad():
        own = [encoder(part["input_ids"], part["attention_mask"]) for part in real]
    vectors = gathered(torch.cat([torch.zeros(0, 16, dtype=torch.float64), *own]))
    topics = gathered(torch.cat([torch.zeros(0, dtype=torch.int64), *(part["topic"] for part in real)]))
    everything = torch.cat(vectors).requires_grad_()
    loss = contrastive_loss(everything, torch.cat(topics))
    loss.backward()
    assert everything.grad is not None
    of_rank = everything.grad.split([len(one) for one in vectors])[dist.get_rank()]
    for part, gradient in zip(real, of_rank.split([len(one) for one in own]), strict=True):
        encoder(part["input_ids"], part["attention_mask"]).backward(gradient)
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(parameter.grad)
    return loss.detach()


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    samples = bf.from_sequence(texts()).units("topic", within="step").shuffle(1_000)
    how = {"samples_per_step": SAMPLES_PER_STEP, "micro_batches": "as_needed"}
    batches = samples.batch_by_tokens(MAX_TOKENS, **how).shard()
    whole = samples.batch(SAMPLES_PER_STEP, **how).shard(0, 1)

    torch.manual_seed(1)
    encoder = Encoder()
    counts = []
    for parts, (step,) in zip(steps(batches), steps(whole), strict=True):
        encoder.zero_grad()
        loss = cached_step(encoder, parts)
        gradients = [parameter.grad for parameter in encoder.parameters()]

        encoder.zero_grad()
        of_whole_step = contrastive_loss(encoder(step["input_ids"], step["attention_mask"]), step["topic"])
        of_whole_step.backward()
        torch.testing.assert_close(loss, of_whole_step.detach(), rtol=0, atol=1e-12)
        for ours, parameter in zip(gradients, encoder.parameters(), strict=True):
            torch.testing.assert_close(ours, parameter.grad, rtol=0, atol=1e-12)
        assert step["topic"].unique(return_counts=True)[1].eq(2).all()
        counts.append((len(step["topic"]), len(parts)))
    shown = ", ".join(f"{samples} texts in {parts} parts" for samples, parts in counts)
    print(f"rank {dist.get_rank()}: {shown}; loss and gradients as of the whole step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
