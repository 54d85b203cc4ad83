"""The work of a model by its configuration, held against torch's counter of FLOPs, and against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from brimful.plan import AttentionCost, balance

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 300}
WIDE = {**SIZES, "intermediate_size": 160}
FEW = {**WIDE, "num_key_value_heads": 2}
NO_TOKENS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 8}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": FEW,
    "qwen3": {**FEW, "head_dim": 32},
    "mistral": {**FEW, "sliding_window": 8},
    "gemma3_text": {**FEW, "head_dim": 32, "sliding_window": 8},
    "phi3": {**FEW, **NO_TOKENS},
    "starcoder2": {**FEW, **NO_TOKENS},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 300, **NO_TOKENS},
    "gpt_neox": WIDE,
    "opt": {**SIZES, "ffn_dim": 160, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 300},
    "falcon": SIZES,
    "mixtral": {**FEW, **EXPERTS},
    "qwen3_moe": {**FEW, **EXPERTS, "moe_intermediate_size": 48, "mlp_only_layers": [1]},
    "qwen2_moe": {
        **FEW,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "ernie4_5_moe": {
        **FEW,
        "moe_intermediate_size": 48,
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 3,
    },
    "olmoe": {**FEW, "num_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {**FEW, **EXPERTS, **NO_TOKENS, "head_dim": 16, "sliding_window": 8},
    "deepseek_v3": {
        **WIDE,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 48,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": WIDE,
    "distilbert": {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 160, "vocab_size": 300},
    "modernbert": {**WIDE, **NO_TOKENS, "cls_token_id": 0, "sep_token_id": 0},
}
WITH_EXPERTS = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "gpt_oss", "deepseek_v3", "ernie4_5_moe")


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODERS])
def test_a_forward_pass_has_the_flops_that_torch_counts(kind: str) -> None:
    config = AutoConfig.for_model(kind, **(DECODERS | ENCODERS)[kind])
    head = kind in DECODERS
    eager = {"attn_implementation": "eager", **({"experts_implementation": "eager"} if kind in WITH_EXPERTS else {})}
    model = (AutoModelForCausalLM if head else AutoModel).from_config(config, **eager).eval()
    for given in (config, json.loads(config.to_json_string(use_diff=False))):  # as an object, and as the file has it
        cost = AttentionCost.of(given, pairs="all", head=head)
        for rows, length in [(2, 32), (1, 128)]:
            tokens = torch.ones(rows, length, dtype=torch.int64)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
            assert cost(rows, length) == pytest.approx(counter.get_total_flops(), rel=0.001)  # a pooler of one token


def by_hand(length: int, sees: Any) -> int:
    return sum(bool(sees(i, j)) for i in range(length) for j in range(length))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
def test_pairs_that_a_mask_hides_do_not_count(length: int) -> None:
    layers = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    decoder = {**FEW, "model_type": "qwen3", "head_dim": 16, "sliding_window": 8, "layer_types": layers}
    pair = 4 * 4 * 16  # scores, and what they weigh: 2 FLOPs each for 16 numbers of 4 heads
    token = AttentionCost.of(decoder, pairs="all").linear
    full, near = by_hand(length, lambda i, j: j <= i), by_hand(length, lambda i, j: i - 8 < j <= i)
    assert AttentionCost.of(decoder)(3, length) == 3 * (length * token + pair * (full + 3 * near))
    encoder = {**WIDE, "model_type": "modernbert", "local_attention": 8, "layer_types": layers}
    token = AttentionCost.of(encoder, pairs="all").linear
    near = by_hand(length, lambda i, j: abs(i - j) <= 4)
    cost = AttentionCost.of(encoder, pairs="bidirectional")
    assert cost(1, length) == length * token + pair * (length**2 + 3 * near)
    lengths = np.arange(length + 1)
    assert cost.of_lengths(lengths).tolist() == [cost(1, one) for one in lengths.tolist()]


def test_linear_attention_costs_a_token_the_same_at_any_length() -> None:
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    }
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    config = {**FEW, **linear, "head_dim": 16, "layer_types": kinds}
    projections = 64 * (2 * 16 + 2 * 16 + 4 * 8 + 4 * 8 + 4 + 4) + 4 * 8 * 64  # q, k, v, gate, two numbers a head; out
    convolution = 4 * (2 * 16 + 2 * 16 + 4 * 8)
    state = 4 * 3 * 16 * 8  # heads of 16 x 8: what is known of a key, its correction, and the answer to a query
    full = 2 * 64 * 16 * (4 + 2) + 64 * 64  # and a gate
    token = 2 * (3 * (projections + convolution + state) + full + 4 * 3 * 64 * 160)
    cost = AttentionCost.of(config, pairs="all", head=False)
    assert (cost.linear, cost.quadratic) == (token, 4 * 4 * 16)


def test_it_deals_samples_as_any_cost() -> None:
    cost = AttentionCost.of(FEW)
    lengths = np.random.default_rng(0).integers(1, 4_000, 64)
    loads = [cost.of_lengths(lengths[part]).sum() for part in balance(lengths, 4, cost=cost)]
    assert max(loads) <= 1.01 * min(loads)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 8}, "has no num_hidden_layers"),
        ({**WIDE, "is_encoder_decoder": True}, "a length each"),
        (
            {**FEW, "ffn_config": {"moe_num_experts": 4}},
            "the layers that ffn_config belongs to are not counted",
        ),  # of Dbrx
        ({**FEW, "mamba_d_state": 16}, "the layers that mamba_d_state belongs to are not counted"),
        ({**FEW, "layer_types": ["chunked_attention"] * 4}, "layers of 'chunked_attention'"),
        ({**FEW, "layer_types": ["chunked_attention", None] * 2}, "layers of 'chunked_attention'|layers of None"),
        ({**FEW, "layer_types": ["full_attention"]}, "layer_types has 1 of num_hidden_layers=4 layers"),
        ({**FEW, "num_hidden_layers": 2.5}, "num_hidden_layers must be"),
        ({**FEW, "intermediate_size": [160, 80] * 2}, "has no one intermediate_size for all layers"),
        ({**FEW, "block_types": ["recurrent", "attention"]}, "block_types"),
    ],
)
def test_what_is_not_counted_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        AttentionCost.of(config)


def test_the_text_of_a_model_with_images_is_counted() -> None:
    assert AttentionCost.of({"text_config": FEW, "vision_config": {}}) == AttentionCost.of(FEW)


def test_a_setting_that_differs_from_layer_to_layer_is_refused() -> None:
    class Gemma:
        hidden_size = 64
        num_hidden_layers = num_attention_heads = 4

        @property
        def head_dim(self) -> int:
            raise RuntimeError("'head_dim' is a per-layer attribute")

    with pytest.raises(ValueError, match="no one head_dim for all layers"):
        AttentionCost.of(Gemma())


def test_the_cost_of_whole_numbers_does_not_wrap_around() -> None:
    for cost in (AttentionCost(linear=0, quadratic=1), AttentionCost(linear=0, quadratic=0, windows=((1 << 40, 1),))):
        for lengths in (np.array([1 << 33]), np.array([1 << 17], np.int32)):
            assert cost.of_lengths(lengths).tolist() == pytest.approx([cost(1, int(lengths[0]))])


@pytest.mark.parametrize("windows", [5, ((3,),), (8, 1.0)])
def test_windows_are_pairs(windows: Any) -> None:
    with pytest.raises(TypeError, match=r"^windows takes pairs of a size and the cost of a pair of tokens, such as"):
        AttentionCost(quadratic=1, windows=windows)
