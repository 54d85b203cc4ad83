"""Small encoders and decoders with random weights, and the real peak of a step of theirs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

VOCABULARY = 1000


def make_model(family: str, attention: str) -> Any:
    """One layer of width 128, in training mode."""
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "attn_implementation": attention}
    if family == "encoder":
        config = transformers.BertConfig(
            hidden_size=128, num_hidden_layers=1, num_attention_heads=4, intermediate_size=512, **sizes
        )
        return transformers.BertForMaskedLM(config).train()
    config = transformers.GPT2Config(n_embd=128, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=0, **sizes)
    return transformers.GPT2LMHeadModel(config).train()


def make_batch(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens; the last of the first sample is padding."""
    ids = torch.randint(0, VOCABULARY, (batch, length))
    mask = torch.ones_like(ids)
    mask[0, -1:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def training_step(model: Any, *, autocast: bool = False) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()

    return step


def allocated_peak(model: Any, run: Callable[[], object]) -> int:
    """The bytes of a model and the most that the CPU allocator gives out beside it while `run` runs a second time."""
    run()
    model.zero_grad(set_to_none=True)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in [*model.parameters(), *model.buffers()]
    }
    return peak + sum(storages.values())
