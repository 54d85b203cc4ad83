"""Small models that keep the samples of a packed row apart, and the same with one leak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
WORDS, PLACES, WIDTH, HEADS = 31, 96, 16, 2
LEAKS = {"attention": "blocks.1.attention", "convolution": "blocks.1.conv", "positions": "places"}
"""The layer at which each leak is planted."""


class Attention(nn.Module):
    """Attention among the tokens of a sample; `leaks`: of a row."""

    def __init__(self, causal: bool, leaks: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal, self.leaks = causal, leaks

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = segments[:, None, :, None] == segments[:, None, None, :]
        if self.leaks:
            seen = torch.ones_like(seen)
        seen = torch.tril(seen) if self.causal else seen
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """A convolution over the tokens before, of the same sample."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for back, tap in enumerate(self.taps):
            earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            same = F.pad(segments, (back, 0), value=-1)[:, : x.shape[1]] == segments
            out = out + tap * earlier * same[..., None]
        return out


class Row(nn.Conv1d):
    """A convolution over the row."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3, padding=1)


class Block(nn.Module):
    """A layer of a toy."""

    def __init__(self, kind: str, leak: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(kind != "encoder", leak == "attention")
        self.mixer = Mixer() if kind == "hybrid" else None
        self.conv = Row() if leak == "convolution" else None
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        nn.init.zeros_(self.attention.out.weight)  # as new layers often begin: nothing of a leak is seen in the result

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        if self.mixer is not None:
            x = x + self.mixer(x, segments)
        last = self.kind == "encoder"  # norms come after
        x = self.norm(x + self.attention(x, segments)) if last else x + self.attention(self.norm(x), segments)
        if self.conv is not None:
            x = x + self.conv(x.mT).mT
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Toy(nn.Module):
    """A language model: a "decoder", an "encoder", or a "hybrid" that takes the batch as one argument."""

    def __init__(self, kind: str = "decoder", leak: str = "", depth: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(Block(kind, leak if number == 1 else "") for number in range(depth))
        self.head = nn.Linear(WIDTH, WORDS)
        self.leak = leak

    def forward(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Any:
        if self.leak == "positions":
            position_ids = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        x = self.words(input_ids) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, segment_ids)
        return {"logits": self.head(x), "loss": x.sum()}


class OfBatches(Toy):
    """A toy that takes the whole batch."""

    def forward(self, batch: Mapping[str, Any]) -> Any:  # type: ignore[override]
        return super().forward(batch["input_ids"], batch["position_ids"], batch["segment_ids"])["logits"]


def toy(kind: str, leak: str = "", depth: int = 3) -> nn.Module:
    """One of them, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return OfBatches(kind, leak, depth) if kind == "hybrid" else Toy(kind, leak, depth)


class Adapted(nn.Module):
    """As PEFT's: what the model inside takes is nowhere in its own signature."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.get_base_model = lambda: self.inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)
