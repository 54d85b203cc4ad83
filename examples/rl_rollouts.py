"""A policy gradient over rollouts of very unequal length, in micro batches of at most 512 tokens, on one process or several.

    python examples/rl_rollouts.py
    torchrun --nproc-per-node 2 examples/rl_rollouts.py

The ranks share out the rollouts so that their work is equal, and each cuts its own into micro batches: the same number on every
rank. The gradients are those of one big batch of all rollouts.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

from brimful.integrations.rl import get_seqlen_balanced_partitions, rearrange_micro_batches

MAX_TOKENS = 512
VOCABULARY = 64
Rollouts = dict[str, torch.Tensor]


def rollouts(number: int = 64) -> Rollouts:
    """Prompts of 8 tokens with responses of 1 to 400, each padded to the longest, and how good each response was."""
    torch.manual_seed(0)
    lengths = 8 + torch.randn(number).mul(1.2).add(3.5).exp().long().clamp(1, 400)
    places = torch.arange(int(lengths.max()))
    mask = (places < lengths[:, None]).long()
    return {
        "input_ids": torch.randint(VOCABULARY, mask.shape) * mask,
        "attention_mask": mask,
        "response_mask": mask * (places >= 8),
        "advantages": torch.randn(number, dtype=torch.float64),
    }


class Policy(nn.Module):
    """One layer of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=torch.float64)
        return self.head(self.layer(self.embedding(tokens), mask, is_causal=True)).log_softmax(-1)


def loss_sum(policy: Policy, batch: Rollouts) -> torch.Tensor:
    """The summed loss of the response tokens."""
    longest = int(batch["attention_mask"].sum(-1).max())
    tokens, response = batch["input_ids"][:, :longest], batch["response_mask"][:, 1:longest]
    chosen = policy(tokens)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    return -(chosen * batch["advantages"][:, None] * response).sum()


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everything = rollouts()
    response_tokens = everything["response_mask"].sum()

    lengths = everything["attention_mask"].sum(-1)
    mine = get_seqlen_balanced_partitions(24_576 * lengths + lengths**2, world_size, equal_size=True)[rank]
    own = {name: values[mine] for name, values in everything.items()}
    micro_batches, _ = rearrange_micro_batches(own, MAX_TOKENS)

    torch.manual_seed(1)
    policy = Policy()
    for batch in micro_batches:
        (loss_sum(policy, batch) / response_tokens).backward()
    gradients = [parameter.grad.clone() for parameter in policy.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)

    policy.zero_grad()
    (loss_sum(policy, everything) / response_tokens).backward()
    of_one_batch = [parameter.grad for parameter in policy.parameters()]
    for ours, expected in zip(gradients, of_one_batch, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)

    tokens = [int(batch["attention_mask"].sum()) for batch in micro_batches]
    print(
        f"rank {rank}: {len(mine)} rollouts in {len(tokens)} micro batches of {tokens} tokens; gradients as of one batch"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
