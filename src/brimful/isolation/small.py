"""A small, random instance of a model, made from the model's own configuration, to try things on."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

VOCABULARY: Final = 128
POSITIONS: Final = 512
MOST_LAYERS: Final = 8
MOST_PARAMETERS: Final = 50_000_000
WIDTH_OF_A_HEAD: Final = 64
"""Where a configuration names no heads."""

_LAYERS: Final = re.compile(r"^((num_)?((hidden|encoder|decoder|entity)_)?layers|n_layers?|num_blocks|depth)$")
_WIDTHS: Final = re.compile(
    r"^(d_model|n_embd|emb_dim|embed(ding)?_dim|dim|lru_width)$|hidden_size(_global)?$|mamba_d_ssm$|word_embed_proj_dim$"
    r"|d_inner$"
)
_ATTENTION_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
_HEADS: Final = re.compile(
    r"(num|n|encoder|decoder|swa|attention|num_(en|de)coder)_(attention_)?heads?(_per_layer)?$"
    r"|(num|n)_(key_value|kv|mamba)_heads$|n_head_kv$|swa_num_key_value_heads$|mamba_num_heads$|mamba_n?groups$"
)
_LEAST: Final = (  # the first that fits; what is below it stays
    (re.compile(r"vocab_size|vocab_offset|(_|^)vocab$"), VOCABULARY),
    (re.compile(r"(position_embeddings|positions|max_seq_len|model_max_length|n_ctx|context_length)$"), POSITIONS),
    (re.compile(r"(intermediate|ffn|feed_forward|d_?ff|mlp|hidden)(_hidden)?_?(size|dim)?(_mlp)?$"), 128),
    (re.compile(r"(intermediate_size|lora_rank|embedding_size|_per_layer_input)$"), 64),
    (re.compile(r"(num_(local_)?|n_routed_|moe_num_|zero_)experts?(_num)?$"), 4),
    (re.compile(r"(experts_per_tok(en)?|moe_k|moe_topk|top_k_experts)$"), 2),
    (re.compile(r"(topk_group|n_group|num_expert_group|first_k_dense_replace|num_dense_layers)$"), 1),
    (re.compile(r"linear_num_key_heads$|index_n_heads$|linear_num_heads$"), 2),
    (re.compile(r"linear_num_value_heads$"), 4),
    (re.compile(r"(period|interval|every_n(_layers)?|sliding_window_pattern|layer_group_size)$"), 2),
    (re.compile(r"layer_offset$"), 1),
    (re.compile(r"(num_kv_shared_layers|max_window_layers)$"), 1),
)


def small_instance(
    kind: type[Any],
    config: Any,
    attn_implementation: str | None = None,
    device: torch.device | str = "cpu",
) -> Any:
    """A small model of a class, with random weights, in eval mode, of the same kind as one of `config`; torch's generator draws.

    Raises:
        ValueError: none can be made.
    """
    errors = []
    for num_heads in (2, 4, 8):
        try:
            small = copy.deepcopy(config)
            for part in parts_of(small):
                _shrink(part, num_heads)
            small._experts_implementation = "eager"  # others want types and sizes of a GPU's
            if attn_implementation is not None:
                small._attn_implementation = attn_implementation
            with torch.device("meta"):
                size = sum(one.numel() for one in kind(copy.deepcopy(small)).parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"the small model has {size:,} parameters, too many to try")
            with torch.device("cpu"):
                model = kind(small).eval()
            _widen(model)
            model.to(device)
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                ids = torch.arange(5, 13, device=device)[None]
                more: dict[str, Any] = {"labels": ids} if getattr(small, "is_encoder_decoder", False) else {}
                parameters = inspect.signature(kind.forward).parameters
                if "use_cache" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                    more["use_cache"] = False
                model(input_ids=ids, **more)  # whether its sizes go together
            return model
        except Exception as error:  # whatever a constructor says to sizes that do not go together
            errors.append(f"{type(error).__name__}: {error}")
    raise ValueError(f"no small {kind.__name__} can be made: {errors[0]}")


def _widen(model: torch.nn.Module) -> None:
    """Weights as large as make each layer's effect on the result count: as drawn, those of a small model hide it."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and weight.is_floating_point():
                weight.normal_(0, weight[0].numel() ** -0.5)


def parts_of(config: Any) -> Iterator[Any]:
    """A configuration, if it is one, and those inside of it."""
    if config is None:
        return
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from parts_of(value)


def _shrink(config: Any, num_heads: int) -> None:
    """Makes layers few and narrow, and keeps at least one of each type. Widths and numbers of heads are divided alike, and
    sizes within a head stay, so that they still go together."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        if name not in values and isinstance(value := getattr(config, name, None), int):
            values[config.attribute_map.get(name, name)] = value
    counts = {name: value for name, value in values.items() if _count(value)}
    width = counts.get("hidden_size", 0)
    found = [value for name, value in counts.items() if name in _ATTENTION_HEADS]
    found += [value for name, value in counts.items() if _HEADS.search(name) and "kv" not in name]
    heads = max(*found[:1], num_heads, 0 if found else width // WIDTH_OF_A_HEAD)
    new: dict[str, Any] = {}
    for name, value in counts.items():
        if _WIDTHS.search(name) or (name == "embedding_size" and value == width):
            new[name] = _narrowed(value, heads, num_heads)
        elif _HEADS.search(name):
            new[name] = max(1, value * num_heads // heads)
        elif (least := _least(name)) is not None:
            new[name] = min(value, least)
        elif re.search(r"(token_id|_index|_idx)$", name) and value >= VOCABULARY:
            new[name] = VOCABULARY - 1 - len(new) % 16
    for name, value in values.items():
        if value is None and re.search(r"(experts|experts_per_tok|moe_intermediate_size)$", name):
            new[name] = _least(name)
        elif isinstance(value, list) and name.endswith("token_id"):
            new[name] = [min(one, VOCABULARY - 1) for one in value]
        elif isinstance(value, list) and value and all(map(_count, value)) and name.endswith("intermediate_size"):
            values[name] = [min(one, 64) for one in value]
        elif isinstance(value, list) and value and all(map(_count, value)) and _HEADS.search(name):
            values[name] = [max(1, one * num_heads // heads) for one in value]
    new |= _fewer_layers(values, counts)
    for name, value in new.items():
        vars(config)[name] = value
        if name not in values:
            setattr(config, name, value)


def _narrowed(width: int, heads: int, num_heads: int) -> int:
    """So wide as to leave a head its width, or a whole number near it."""
    return width * num_heads // heads if width * num_heads % heads == 0 else num_heads * max(8, width // heads // 8 * 8)


def _least(name: str) -> int | None:
    return next((least for pattern, least in _LEAST if pattern.search(name)), None)


def _fewer_layers(values: dict[str, Any], counts: dict[str, int]) -> dict[str, Any]:
    """Numbers of layers, and what lists say of each, for the first layer of each type."""
    new: dict[str, Any] = {}
    for count in {value for name, value in counts.items() if _LAYERS.search(name)}:
        lists = {name: one for name, one in values.items() if isinstance(one, list | tuple) and one}
        entries = {name: one for name, one in lists.items() if len(one) == count > 1}
        numbers = {
            name: one for name, one in lists.items() if name not in entries and _numbers_layers(name, one, count)
        }
        cycle = max(
            (len(one) for one in lists.values() if len(one) < count and set(map(type, one)) == {str}), default=2
        )
        types = [
            (*(str(one[at]) for one in entries.values()), *(at in one for one in numbers.values()))
            for at in range(count)
        ]
        chosen = sorted({types.index(one) for one in types} | set(range(min(cycle, count))))[:MOST_LAYERS]
        new |= {name: len(chosen) for name, value in counts.items() if value == count and _LAYERS.search(name)}
        new |= {name: type(one)(one[at] for at in chosen) for name, one in entries.items()}
        new |= {name: [chosen.index(at) for at in one if at in chosen] for name, one in numbers.items()}
    return new


def _numbers_layers(name: str, value: Sequence[Any], count: int) -> bool:
    """Whether a list holds the numbers of some of the layers."""
    named = re.search(r"layer|idx|ids$|indices|indexes", name) is not None
    return named and all(isinstance(one, int) and one < count for one in value) and sorted(set(value)) == list(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
