"""Graphs of very unequal size, such as molecules: nodes and edges end to end, within a budget of both, on one process or several.

    python examples/molecules.py
    torchrun --nproc-per-node 2 examples/molecules.py

A batch has at most 60 nodes and 130 edges, and no padding. An optimizer step has two batches on each rank. Its loss and its
gradients are those of its graphs one by one.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import brimful as bf

FEATURES = 8
Batch = dict[str, torch.Tensor]


def molecules(number: int = 60) -> bf.IndexedDataset:
    """Graphs of 2 to 30 nodes, (n, 8), with edges, (e, 2), between their own nodes, and a number to predict."""
    random = np.random.default_rng(0)
    rows = []
    for one in range(number):
        count = int(random.integers(2, 31))
        edges = random.integers(0, count, (int(random.integers(count, 2 * count + 1)), 2))
        nodes = random.standard_normal((count, FEATURES), np.float32)
        rows.append({"number": one, "nodes": nodes, "edges": edges, "labels": float(nodes.sum() / count)})
    return bf.from_sequence(rows)


class Network(nn.Module):
    """A layer that adds to each node what its neighbours say, and the mean over the nodes of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(FEATURES, 16)
        self.message = nn.Linear(FEATURES, 16)
        self.head = nn.Linear(16, 1)
        self.double()

    def forward(self, batch: Batch) -> torch.Tensor:
        """A number for each graph: (B,)."""
        nodes, starts = batch["nodes"].double(), batch["nodes_offsets"]
        graphs = torch.arange(len(starts) - 1)
        edges = batch["edges"] + starts[graphs.repeat_interleave(batch["edges_offsets"].diff())][:, None]
        heard = torch.zeros(len(nodes), 16, dtype=torch.float64)
        heard = heard.index_add(0, edges[:, 1], self.message(nodes[edges[:, 0]]).tanh())
        hidden = (self.own(nodes) + heard).tanh()
        sums = torch.zeros(len(graphs), 16, dtype=torch.float64)
        sums = sums.index_add(0, graphs.repeat_interleave(starts.diff()), hidden)
        return self.head(sums / starts.diff()[:, None])[:, 0]


def loss_sum(model: Network, batch: Batch) -> torch.Tensor:
    return (model(batch) - batch["labels"]).square().sum()


def one_by_one(model: Network, data: bf.IndexedDataset, numbers: list[int]) -> torch.Tensor:
    """The mean loss of some graphs, each of which is a batch of its own."""
    found = []
    for number in numbers:
        graph = data[number]
        alone = {name: torch.from_numpy(graph[name]) for name in ("nodes", "edges")}
        alone |= {f"{name}_offsets": torch.tensor([0, len(graph[name])]) for name in ("nodes", "edges")}
        found.append(loss_sum(model, alone | {"labels": torch.tensor([graph["labels"]], dtype=torch.float64)}))
    return torch.stack(found).mean()


def everyone(value: object) -> list:
    """What all ranks have, by rank."""
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    data = molecules()
    budget = bf.MultiBudget(total={"nodes": 120, "edges": 260})
    batches = data.batch(budget, arrays={"nodes": "concat", "edges": "concat"}, micro_batches=2).shard()

    torch.manual_seed(0)
    model = Network()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    loss, numbers, nodes, edges, seen = 0.0, [], [], [], []
    for batch in batches:
        mean = bf.token_mean(loss_sum(model, batch), batch)
        mean.backward()
        loss += mean.item()
        nodes.append(len(batch["nodes"]))
        edges.append(len(batch["edges"]))
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

    assert sorted(seen) == list(range(60)), "each graph once"
    print(f"rank {dist.get_rank()}: batches of {nodes} nodes and {edges} edges; loss and gradients as one by one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
