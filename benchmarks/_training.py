"""What convergence.py trains: three tasks made of WikiText-2, and a small transformer that takes any layout of a batch."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

import brimful as bf

VOCABULARY = 4_096
MASK = 0  # the one special token; it is what padding holds, too
MAX_LENGTH = 256
MASKED_SHARE = 0.15
KINDS = (
    "article's title",
    "section's title",
    "title below that",
    "opening of an article",
    "opening of a section",
    "other",
)
Batch = Mapping[str, Any]


def read(data: Path) -> tuple[list[str], list[str]]:
    """The lines to train on, and those of the last shard, other articles, to validate with."""
    shards = sorted((data / "wikitext-2").glob("train-*.jsonl.gz"))
    if not shards:
        raise SystemExit(f"there is no WikiText-2 at {data}; set BRIMFUL_TEST_DATA")
    texts = [[json.loads(line)["text"] for line in gzip.open(shard, "rt", encoding="utf-8")] for shard in shards]
    return [text for shard in texts[:-1] for text in shard], texts[-1]


def tokenizer_of(lines: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of 4,096 tokens, trained on these lines: the same from the same lines."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["[MASK]"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(lines, trainer)
    made.enable_truncation(MAX_LENGTH)
    return made


def kinds(lines: Sequence[str]) -> tuple[list[str], list[int]]:
    """Each line without the signs that give its kind away, and the number of its kind in KINDS.

    A title says its own level (`= a =`, `= = a = =`); an opening is the first line after a title.
    """
    bare, labels, before = [], [], 2
    for line in lines:
        title = re.fullmatch(r"((?:= )+)(.*?)((?: =)+)", line.strip())
        if title:
            before = min(title[1].count("="), 3) - 1
            bare.append(title[2])
            labels.append(before)
        else:
            bare.append(line)
            labels.append({0: 3, 1: 4, 2: 4}.get(before, 5))
            before = -1
    return bare, labels


@dataclass(frozen=True)
class Task:
    """A name, what the model sees, and rows: `input_ids`, and `targets` of each token or one `label` of each row.

    Targets are shifted, and masks drawn, before there are batches: every setting learns exactly the same.
    """

    name: str
    causal: bool
    outputs: int
    rows: Callable[[Sequence[str], Tokenizer, int], pa.Table]

    @property
    def columns(self) -> dict[str, Any]:
        """What the methods that make batches are told of the targets; nothing of labels."""
        return {} if self.outputs != VOCABULARY else {"token_columns": ("targets",), "pad_values": {"targets": -100}}


def next_tokens(lines: Sequence[str], tokenizer: Tokenizer, seed: int) -> pa.Table:
    ids = _encoded(lines, tokenizer)
    targets = [np.append(row[1:], -100) for row in ids]
    return pa.table({"input_ids": pa.array(ids), "targets": pa.array(targets)})


def masked_tokens(lines: Sequence[str], tokenizer: Tokenizer, seed: int) -> pa.Table:
    """As BERT: of 15 % of the tokens 80 % are masked, 10 % are others, 10 % stay; drawn once, for one epoch."""
    draw = np.random.default_rng(seed)
    seen, targets = [], []
    for row in _encoded(lines, tokenizer):
        chosen, fate = draw.random(len(row)) < MASKED_SHARE, draw.random(len(row))
        other = draw.integers(1, VOCABULARY, len(row))
        seen.append(np.where(chosen & (fate < 0.8), MASK, np.where(chosen & (fate >= 0.9), other, row)))
        targets.append(np.where(chosen, row, -100))
    return pa.table({"input_ids": pa.array(seen), "targets": pa.array(targets)})


def kinds_of_lines(lines: Sequence[str], tokenizer: Tokenizer, seed: int) -> pa.Table:
    bare, labels = kinds(lines)
    return pa.table({"input_ids": pa.array(_encoded(bare, tokenizer)), "label": pa.array(labels)})


def _encoded(lines: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(one.ids, np.int64) for one in tokenizer.encode_batch_fast(list(lines))]


TASKS = {
    task.name: task
    for task in (
        Task("causal", True, VOCABULARY, next_tokens),
        Task("masked", False, VOCABULARY, masked_tokens),
        Task("classes", False, len(KINDS), kinds_of_lines),
    )
}


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        rows, length, width = hidden.shape
        qkv = self.qkv(self.norms[0](hidden)).view(rows, length, 3, self.heads, width // self.heads)
        mixed: Tensor = attend(*qkv.permute(2, 0, 3, 1, 4).unbind())
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        out: Tensor = hidden + self.down(F.gelu(self.up(self.norms[1](hidden))))
        return out


class Model(nn.Module):
    """A pre-norm transformer without dropout: one loss for each token with a target, or one for each sample with a label.

    As in the models of transformers a head of tokens runs at every slot, padding among them.
    """

    def __init__(self, task: Task, width: int, layers: int) -> None:
        super().__init__()
        self.task = task
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(MAX_LENGTH, width)
        self.layers = nn.ModuleList([Layer(width, width // 32) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.outputs, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: Batch) -> tuple[Tensor, int]:
        """The sum of the losses of a batch, and how many they are: padded, packed or of static shape, all the same."""
        ids = batch["input_ids"]
        packed = "segment_ids" in batch
        positions = batch["position_ids"] if packed else torch.arange(ids.shape[1], device=ids.device)
        real = batch["segment_ids"] > 0 if packed else batch["attention_mask"].bool()
        mask = None  # of causal rows: padding comes last, where no token sees it
        if packed:
            mask = bf.attention.document_mask(batch, causal=self.task.causal)
        elif not self.task.causal:
            mask = real[:, None, None]
        attend = partial(F.scaled_dot_product_attention, attn_mask=mask, is_causal=self.task.causal and mask is None)
        hidden = self.tokens(ids) + self.places(positions)
        for layer in self.layers:
            hidden = layer(hidden, attend)
        hidden = self.norm(hidden)
        counted = batch["sample_weights"] > 0 if "sample_weights" in batch else None  # the rest are copies
        if "label" in batch:
            labels = batch["label"] if counted is None else batch["label"].masked_fill(~counted, -100)
            return _summed(self.head(_means(hidden, real, batch)), labels)
        targets = batch["targets"] if counted is None else batch["targets"].masked_fill(~counted[:, None], -100)
        return _summed(self.head(hidden).flatten(0, 1), targets.flatten())


def _means(hidden: Tensor, real: Tensor, batch: Batch) -> Tensor:
    """The mean of each sample's tokens, in the order of the labels."""
    if "segment_ids" not in batch:
        return (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    segments = batch["segment_ids"]
    ends = segments.amax(1).cumsum(0)
    numbers = (segments - 1 + (ends - segments.amax(1))[:, None])[real]
    count = len(batch["label"])
    sums = hidden.new_zeros(count, hidden.shape[-1]).index_add(0, numbers, hidden[real])
    return sums / torch.bincount(numbers, minlength=count)[:, None]


def _summed(logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum"), int((targets >= 0).sum())
