"""Full batches for a DataLoader that you have already: a sampler over the lengths, its workers, and exact resume.

    python examples/batch_sampler.py --folder run --stop-after 25    # as if it were killed there
    python examples/batch_sampler.py --folder run                    # goes on with batch 26

The lengths are all that the sampler wants. The workers read ahead of the loop, so the loop says how far it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import brimful as bf


class Sentences(Dataset[torch.Tensor]):
    """A data set as you have it: a sample by its number, 1 to 60 tokens long."""

    lengths = np.random.default_rng(0).integers(1, 60, 2_000)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((int(self.lengths[number]),), number)


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(samples, batch_first=True, padding_value=-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stop-after", type=int)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    checkpoint, log = arguments.folder / "checkpoint.json", arguments.folder / "first_samples.txt"

    sentences = Sentences()
    sampler = bf.BatchSampler(sentences.lengths, bf.TokenBudget(1_024))
    loader = DataLoader(sentences, batch_sampler=sampler, collate_fn=padded, num_workers=2, persistent_workers=True)
    if checkpoint.exists():
        sampler.load_state_dict(json.loads(checkpoint.read_text()))
    batches = slots = 0
    for epoch in range(sampler.epoch, 2):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, 1):
            with log.open("a") as file:
                print(epoch, int(batch[0, 0]), len(batch), file=file)
            batches, slots = batches + 1, slots + batch.numel()
            checkpoint.write_text(json.dumps(sampler.state_dict(batches_consumed=step)))
            if batches == arguments.stop_after:
                return
    print(f"{batches} batches to the end, {slots / (1_024 * batches or 1):.1%} full")


if __name__ == "__main__":
    main()
