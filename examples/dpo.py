"""Direct preference optimization (DPO) on batches of at most 1,024 slots, on one process or several.

    python examples/dpo.py
    torchrun --nproc-per-node 2 examples/dpo.py

Chosen answers lie above rejected ones in each batch, and the budget counts the rows of both. An optimizer step has four batches
on each rank. Its loss and its gradients are those of its pairs one by one, each without padding.
"""

from __future__ import annotations

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import logsigmoid

import brimful as bf

BETA = 0.1
VOCABULARY = 128
Pairs = dict[str, torch.Tensor]


def preferences(number: int = 60) -> bf.IndexedDataset:
    """Prompts with two answers of very unequal length, as tokens."""
    words = ["yes", "no", "perhaps", "it depends", "ask me again tomorrow"]
    texts = [
        {
            "number": one,
            "prompt": f"Question {one}" + ", please" * (one % 9) + "? ",
            "chosen": " ".join(words[(one + word) % 5] for word in range(1 + one * 7 % 17)),
            "rejected": " ".join(words[(one * 3 + word) % 5] for word in range(1 + one * 5 % 13)),
        }
        for one in range(number)
    ]
    sides = ("prompt", "chosen", "rejected")
    prefixes = [f"{side}_" for side in sides]
    return bf.from_sequence(texts).tokenize(bytes_of, column=sides, output_prefix=prefixes).cache()


def bytes_of(texts: list[str]) -> list[list[int]]:
    return [list(text.encode("ascii")) for text in texts]


class Policy(nn.Module):
    """One layer of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)
        self.double()

    def forward(self, batch: Pairs) -> torch.Tensor:
        """How likely the completion of each row is, as a logarithm: (rows,)."""
        tokens = batch["input_ids"]
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=torch.float64)
        scores = self.head(self.layer(self.embedding(tokens), causal, is_causal=True)).log_softmax(-1)
        found = scores[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
        return (found * batch["completion_mask"][:, 1:]).sum(1)


def losses(policy: Policy, reference: Policy, batch: Pairs) -> torch.Tensor:
    """The loss of each pair: (pairs,)."""
    with torch.no_grad():
        before = reference(batch)
    chosen, rejected = (policy(batch) - before).chunk(2)
    return -logsigmoid(BETA * (chosen - rejected))


def one_by_one(policy: Policy, reference: Policy, data: bf.IndexedDataset, numbers: list[int]) -> torch.Tensor:
    """The mean loss of some pairs, of which each side is a batch of its own."""
    found = []
    for number in numbers:
        pair = {name: torch.as_tensor(value) for name, value in data[number].items() if name.endswith("_input_ids")}
        prompt = pair["prompt_input_ids"].long()
        gains = []
        for side in ("chosen", "rejected"):
            answer = pair[f"{side}_input_ids"].long()
            row = {
                "input_ids": torch.cat((prompt, answer))[None],
                "completion_mask": torch.cat((torch.zeros_like(prompt), torch.ones_like(answer)))[None],
            }
            with torch.no_grad():
                before = reference(row)
            gains.append(policy(row) - before)
        found.append(-logsigmoid(BETA * (gains[0] - gains[1])))
    return torch.cat(found).mean()


def everyone(value: object) -> list:
    """What all ranks have, by rank."""
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    data = preferences()
    batches = data.batch_by_tokens(4_096, micro_batches=4, layout="paired").shard()

    torch.manual_seed(0)
    policy = Policy()
    reference = copy.deepcopy(policy)
    parameters = [*policy.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    loss, numbers, slots, pairs = 0.0, [], [], []
    for batch in batches:
        mean = bf.token_mean(losses(policy, reference, batch).sum(), batch)
        mean.backward()
        loss += mean.item()
        slots.append(batch["input_ids"].numel())
        numbers += [] if batch["is_filler"] else batch["number"].tolist()
        if not batch["ends_step"]:
            continue
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        of_step = [number for own in everyone(numbers) for number in own]
        expected = one_by_one(policy, reference, data, of_step)
        gradients = torch.autograd.grad(expected, parameters)
        torch.testing.assert_close(sum(everyone(loss)) / dist.get_world_size(), expected.item(), rtol=0, atol=1e-12)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
        pairs += of_step
        loss, numbers = 0.0, []

    assert sorted(pairs) == list(range(60)), "each pair once"
    print(f"rank {dist.get_rank()}: {len(slots)} batches of {slots} slots; loss and gradients as one by one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
