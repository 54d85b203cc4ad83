"""A tiny language model in training: what `brimful demo` kills, and starts again."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from brimful import Batches, from_files
from brimful.core.atomic import write_atomically
from brimful.demo.digests import digest

WIDTH: Final = 64
MAX_LENGTH: Final = 256
MAX_TOKENS: Final = 1024


class Step(NamedTuple):
    """The record of a training step."""

    number: int
    digest: str
    loss: float


class TinyModel(nn.Module):
    """Two layers of a causal transformer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens: nn.Embedding = nn.Embedding(vocabulary, WIDTH)
        self.positions: nn.Embedding = nn.Embedding(MAX_LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers: nn.TransformerEncoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        hidden = self.tokens(input_ids) + self.positions.weight[:length]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        logits: Tensor = self.layers(hidden, mask=causal, is_causal=True) @ self.tokens.weight.T
        return logits


def pipeline(urls: str, tokenizer: Path) -> Batches:
    """Shards and samples in a random order, sorted inside small windows, so that all of that has a place to keep."""
    truncation = {"truncation": True, "max_length": MAX_LENGTH}
    return (
        from_files(urls, columns=["text"], shuffle_shards=True, repeat=True)
        .tokenize(Tokenizer.from_file(str(tokenizer)), tokenizer_kwargs=truncation)
        .shuffle(2_000)
        .batch_by_tokens(MAX_TOKENS, window=500)
    )


def train(
    urls: str,
    tokenizer: Path,
    steps: int,
    log: Path,
    *,
    checkpoint: Path | None = None,
    save_every: int = 10,
    kill_at: int | None = None,
) -> None:
    """Trains up to step `steps`, from the checkpoint if there is one; model, optimizer and place in the data are one file.

    Prints the mean loss of every `save_every` steps. One thread: several would wait for one another on a busy machine.

    Args:
        log: gets a line a step: number, digest of the batch, loss.
        kill_at: in the middle of this step the process kills itself: no handler runs, nothing is flushed.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyModel(Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    for weight in (model.tokens.weight, model.positions.weight):
        nn.init.normal_(weight, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    done, data = 0, None
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done, data = saved["step"], saved["data"]
    losses: list[float] = []
    with pipeline(urls, tokenizer).iter(data) as batches, log.open("w") as lines:
        while done < steps:
            batch = next(batches)
            targets = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:]
            logits = model(batch["input_ids"][:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            done += 1
            step = Step(done, digest(batch), loss.item())
            lines.write("\t".join(map(str, step)) + "\n")
            lines.flush()
            if done == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            losses.append(step.loss)
            if done % save_every == 0 or done == steps:
                print(
                    f"   steps {done - len(losses) + 1:3} to {done:3}   loss {sum(losses) / len(losses):.3f}",
                    flush=True,
                )
                losses.clear()
                if checkpoint is not None:
                    _save(checkpoint, model, optimizer, done, batches.state_dict())


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, data: dict[str, Any]) -> None:
    """Everything in one file, written whole: after a kill all of it is of the same step."""
    content = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "data": data}, content)
    write_atomically(path, content.getvalue())


def read_log(path: Path) -> list[Step]:
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return [Step(int(number), digest, float(loss)) for number, digest, loss in lines]
