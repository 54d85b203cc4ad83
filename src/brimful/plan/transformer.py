"""The work of a transformer, counted from its configuration: the multiplications of a token, and of a pair of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .errors import integer

_NAMES: Final = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "hidden_dim"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
    "n_shared_experts": ("moe_num_shared_experts",),
    "first_k_dense_replace": ("moe_layer_start_index",),
    "decoder_sparse_step": ("moe_layer_interval",),
}
"""A setting of a configuration, and what other models call it."""
_NO_GATE: Final = frozenset({"arcee", "falcon", "nemotron", "persimmon", "phi", "starcoder2"})
"""Models with `num_key_value_heads` whose feed-forward layers have two matrices. All others with it have three, and one gates."""
_GATE: Final = frozenset({"modernbert", "modernbert-decoder"})
_REMEDY: Final = "give the cost of a token and of a pair yourself, AttentionCost(linear=..., quadratic=...)"
_UNKNOWN: Final = (
    "attn_layer_period",
    "block_types",
    "ffn_config",
    "index_topk",
    "mamba_d_state",
    "ssm_cfg",
    "state_size",
)
"""Settings of models with layers that are not counted here."""


class Work(NamedTuple):
    """What a model multiplies and adds, in FLOPs of a forward pass.

    Args:
        token: for each token.
        pair: for each pair of tokens, in the layers in which each token sees all.
        windows: the same for the layers in which it sees its neighbours: how many, its own included, and FLOPs of a pair.
    """

    token: float
    pair: float
    windows: dict[int, float]


class _Config:
    """The settings of a configuration, an object or a dict, by any of their names."""

    def __init__(self, config: Any) -> None:
        nested = config.get("text_config") if isinstance(config, Mapping) else getattr(config, "text_config", None)
        self._of = config if nested is None else nested

    def get(self, name: str) -> Any:
        for one in (name, *_NAMES.get(name, ())):
            try:
                value = self._of.get(one) if isinstance(self._of, Mapping) else getattr(self._of, one, None)
            except RuntimeError as error:  # of transformers, where it differs from layer to layer
                raise self._differs(one) from error
            if value is not None:
                return value
        return None

    def number(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if value is None and default is None:
            raise ValueError(
                f"this configuration ({type(self._of).__name__}) has no {name}, by which the work is counted: {_REMEDY}"
            )
        if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
            raise self._differs(name)
        return integer(name, default if value is None else value, 0)

    def _differs(self, name: str) -> ValueError:
        return ValueError(
            f"this configuration ({type(self._of).__name__}) has no one {name} for all layers, which is not counted: {_REMEDY}"
        )


def work_of(config: Any, *, head: bool, gated: bool | None) -> Work:
    """The work of a model, see `AttentionCost.of`.

    Raises:
        ValueError: it has layers that are not counted here, or a setting is missing.

    >>> llama = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> work_of(llama | {"intermediate_size": 16, "vocab_size": 10}, head=False, gated=None)
    Work(token=2304.0, pair=64.0, windows={})
    """
    known = _Config(config)
    if known.get("is_encoder_decoder"):
        raise ValueError(
            "an encoder and a decoder have a length each: give cost(rows, length) as a function of the sum of both, or "
            "AttentionCost(linear=..., quadratic=...)"
        )
    for name in _UNKNOWN:
        if known.get(name) is not None:
            raise ValueError(
                f"the layers that {name} belongs to are not counted: give AttentionCost(linear=..., quadratic=...)"
            )
    layers = known.number("num_hidden_layers")
    kinds = Counter(_kinds(known, layers))
    projections, pair = _attention(known)
    token = float(projections * (layers - kinds["linear_attention"]) + _feed_forward(known, layers, gated))
    if kinds["linear_attention"]:
        token += kinds["linear_attention"] * _linear_attention(known)
    if head:
        token += known.number("hidden_size") * known.number("vocab_size")
    windows = {}
    if kinds["sliding_attention"]:
        windows = {_window(known): 2.0 * pair * kinds["sliding_attention"]}
    return Work(2 * token, 2.0 * pair * kinds["full_attention"], windows)


def _kinds(known: _Config, layers: int) -> list[str]:
    """The kind of attention of each layer."""
    given = known.get("layer_types")
    if given is None:
        slides = known.get("sliding_window") and known.get("use_sliding_window") is not False
        return ["sliding_attention" if slides else "full_attention"] * layers
    kinds = list(given)[:layers]
    if len(kinds) < layers:
        raise ValueError(f"layer_types has {len(kinds):,} of num_hidden_layers={layers:,} layers")
    if odd := {*kinds} - {"full_attention", "sliding_attention", "linear_attention"}:
        raise ValueError(
            f"layers of {min(odd, key=str)!r} (layer_types) are not counted: give AttentionCost(linear=..., quadratic=...)"
        )
    return kinds


def _window(known: _Config) -> int:
    """How many tokens one sees in a layer with a window, its own included, of those before it."""
    if known.get("local_attention") is not None:  # so many in all, on both sides
        return known.number("local_attention") // 2 + 1
    return known.number("sliding_window")


def _attention(known: _Config) -> tuple[int, int]:
    """The weights of the projections of a layer, and what a pair of tokens multiplies in it."""
    hidden, heads = known.number("hidden_size"), known.number("num_attention_heads")
    if known.get("kv_lora_rank") is not None:  # keys and values through a small space
        latent, rope, value = (known.number(name) for name in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim"))
        plain = known.number("qk_nope_head_dim")
        query, rank = heads * (plain + rope), known.number("q_lora_rank", 0)
        weights = hidden * rank + rank * query if rank else hidden * query
        weights += hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
        return weights, heads * (plain + rope + value)
    width = known.number("head_dim", hidden // max(heads, 1))
    shared = 1 if known.get("multi_query") and not known.get("new_decoder_architecture") else heads
    keys = shared if shared == 1 else known.number("num_key_value_heads", heads)
    gate = heads * width * hidden if known.get("linear_num_value_heads") is not None else 0  # beside each query
    return 2 * hidden * width * (heads + keys) + gate, 2 * heads * width


def _linear_attention(known: _Config) -> int:
    """What a token multiplies in a layer of a gated delta rule, whose state has a key by a value for each head."""
    hidden = known.number("hidden_size")
    keys = known.number("linear_num_key_heads") * (width := known.number("linear_key_head_dim"))
    heads = known.number("linear_num_value_heads")
    values = heads * known.number("linear_value_head_dim")
    projections = hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    convolution = known.number("linear_conv_kernel_dim") * (2 * keys + values)
    return projections + convolution + 3 * values * width  # the state is read, corrected, and read for the query


def _feed_forward(known: _Config, layers: int, gated: bool | None) -> int:
    """The weights of the feed-forward layers that a token goes through, in all of them."""
    hidden, model = known.number("hidden_size"), known.get("model_type")
    if gated is None:
        gated = model in _GATE or (known.get("num_key_value_heads") is not None and model not in _NO_GATE)
    matrix = hidden * (3 if gated else 2)
    dense = matrix * known.number("intermediate_size", 4 * hidden)
    experts = known.number("num_experts", 0)
    if experts < 2:
        return layers * dense
    size = known.number("moe_intermediate_size", known.number("intermediate_size", 4 * hidden))
    shared = known.number("n_shared_experts", 0) * size
    one = matrix * (known.number("num_experts_per_tok") * size + shared) + hidden * experts
    if own := known.number("shared_expert_intermediate_size", 0):
        one += matrix * own + hidden
    sparse = sum(_is_sparse(known, layer) for layer in range(layers))
    return sparse * one + (layers - sparse) * dense


def _is_sparse(known: _Config, layer: int) -> bool:
    """Whether a layer has experts."""
    if (kinds := known.get("mlp_layer_types")) is not None:
        return bool(kinds[layer] == "sparse")
    if layer < known.number("first_k_dense_replace", 0) or layer in (known.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % max(known.number("decoder_sparse_step", 1), 1) == 0
