"""DPO steps on a CPU: batches of `layout="paired"` against random batches of equal memory, in pairs a second of processor time.

    python benchmarks/preferences.py [PAIRS]

Both have at most 16,384 slots: rows of chosen and of rejected answers, times the longest row. A random batch has as many pairs as
fit if the longest one is among them. Both are laid out by brimful, train the same model, and take turns.
"""

from __future__ import annotations

import copy
import platform
import statistics
import sys
import time

import numpy as np
import torch
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForCausalLM

import brimful as bf

SLOTS = 16_384
LONGEST = 1_024
VOCABULARY = 1_024
RUNS = 2


def preferences(count: int) -> bf.IndexedDataset:
    """Prompts of some 60 tokens and answers of some 120, a few of them ten times as long: log-normal. The two answers to a prompt
    are about equally long, half to twice."""
    random = np.random.default_rng(0)

    def tokens(length: float, most: int) -> np.ndarray:
        return random.integers(1, VOCABULARY, int(min(most, 1 + length)), dtype=np.int32)

    rows = []
    for _ in range(count):
        prompt, answer = np.exp(random.normal(np.log([60, 120]), 0.9))
        sides = answer * np.exp(random.normal(0, 0.25, 2))
        rows.append(
            {
                "prompt_input_ids": tokens(prompt, 256),
                "chosen_input_ids": tokens(sides[0], LONGEST - 256),
                "rejected_input_ids": tokens(sides[1], LONGEST - 256),
            }
        )
    return bf.from_sequence(rows)


def log_probabilities(model: LlamaForCausalLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    tokens = batch["input_ids"]
    logits = model(tokens, batch["attention_mask"], use_cache=False).logits[:, :-1]
    found = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return (found * batch["completion_mask"][:, 1:]).sum(1)


def trained(batches: bf.Batches) -> tuple[float, list[tuple[int, int]]]:
    """Seconds of processor time for a pass of steps, and the shapes of their batches."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    shapes = []
    began = time.process_time()
    for batch in batches:
        with torch.no_grad():
            before = log_probabilities(reference, batch)
        chosen, rejected = (log_probabilities(policy, batch) - before).chunk(2)
        bf.token_mean(-logsigmoid(0.1 * (chosen - rejected)).sum(), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        shapes.append(tuple(batch["input_ids"].shape))
    return time.process_time() - began, shapes


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 480
    data = preferences(count)
    longest = max(length for _, length in data.batch(1, layout="paired").shapes())
    both = {
        "random batches": data.shuffle(count).batch(SLOTS // (2 * longest), layout="paired"),
        "brimful": data.batch_by_tokens(SLOTS, layout="paired"),
    }
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, 1 thread; {count:,} pairs\n")
    trained(both["brimful"].take(2))
    seconds: dict[str, list[float]] = {name: [] for name in both}
    shapes: dict[str, list[tuple[int, int]]] = {}
    for _ in range(RUNS):
        for name, batches in both.items():
            took, shapes[name] = trained(batches)
            seconds[name].append(took)
    lengths = (
        data.lengths("prompt_input_ids") * 2 + data.lengths("chosen_input_ids") + data.lengths("rejected_input_ids")
    )
    print("| batches | pairs a second | steps | padding | largest batch, slots |\n|---|---|---|---|---|")
    for name, made in shapes.items():
        slots = [rows * length for rows, length in made]
        speeds = [count / one for one in seconds[name]]
        print(
            f"| {name} | {statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}) | {len(made)} | "
            f"{1 - lengths.sum() / sum(slots):.1%} | {max(slots):,} |"
        )
    ratio = statistics.median(seconds["random batches"]) / statistics.median(seconds["brimful"])
    print(f"\n{ratio:.2f} times the pairs a second")


if __name__ == "__main__":
    main()
