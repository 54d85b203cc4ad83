"""Whether a model keeps samples apart, of a batch that is given or of random ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from brimful.core.random import seeded
from brimful.isolation.call import Call, call_of, packed_batch, padded_batch, required, tokens_of
from brimful.isolation.probe import Leak, examine
from brimful.isolation.verdict import AS_IT_IS, LEAST_VOCABULARY, segments, verdict


def report(
    model: nn.Module, batch: Mapping[str, Any] | None, attn_implementation: str | None
) -> tuple[dict[str, Leak | None], str, str, float]:
    """The leaks by the name of the batch, the remedy, the type that was computed in, and the tolerance."""
    config = getattr(model, "config", None)
    of_transformers = hasattr(config, "model_type")
    kernel = _kernel(model, attn_implementation) if attn_implementation is not None else nullcontext()
    with kernel, seeded(0, []):
        if batch is not None:
            vocabulary = _vocabulary(model, batch)
            examined = {"batch": examine(model, _short(call_of(model, batch)), vocabulary)}
        else:
            vocabulary = min(_vocabulary(model, None), LEAST_VOCABULARY)
            rows = segments(short=not of_transformers)
            tried = {"packed": packed_batch(rows, vocabulary), "padded": padded_batch(rows, vocabulary)}
            examined = {
                name: examine(model, call_of(model, one), vocabulary)
                for name, one in tried.items()
                if name == "packed" or required(model) <= one.keys()
            }
        remedy = ""
        if of_transformers and any(one.leak for name, one in examined.items() if name != "padded"):
            named = attn_implementation or str(getattr(config, "_attn_implementation", None) or "eager")
            way = verdict(model, packed_batch(segments(), min(vocabulary, LEAST_VOCABULARY)), named).way
            remedy = "" if way == AS_IT_IS else way
    first = next(iter(examined.values()))
    dtype = str(first.dtype).removeprefix("torch.")
    return {name: one.leak for name, one in examined.items()}, remedy, dtype, first.tolerance


def _short(call: Call) -> Call:
    """A few short samples of a packed call; a padded one as it is."""
    return call.short() if call.packed else call


def _vocabulary(model: nn.Module, batch: Mapping[str, Any] | None) -> int:
    """How many ids a model has words for.

    Raises:
        ValueError: nobody knows.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if isinstance(size := getattr(config, "vocab_size", None), int):
        return size
    if batch is not None:
        tokens = batch[tokens_of(batch)]
        return 2 if tokens.is_floating_point() else max(2, int(tokens.max()) + 1)
    words = next((one for one in model.modules() if isinstance(one, nn.Embedding)), None)
    if words is None:
        raise ValueError(
            f"nobody knows how many ids {type(model).__name__} has words for: it has neither config.vocab_size nor an Embedding. "
            "Give a batch: assert_isolated(model, batch)"
        )
    return int(words.num_embeddings)


@contextmanager
def _kernel(model: Any, attn_implementation: str) -> Iterator[None]:
    """Within, a model of transformers attends by another kernel.

    Raises:
        ValueError: it cannot.
    """
    configs = {id(one): one for module in model.modules() if (one := getattr(module, "config", None)) is not None}
    for config in list(configs.values()):
        for name in getattr(config, "sub_configs", {}):
            if (part := getattr(config, name, None)) is not None:
                configs[id(part)] = part
    held = [
        (one, one._attn_implementation_internal)
        for one in configs.values()
        if hasattr(one, "_attn_implementation_internal")
    ]
    if not held or not hasattr(model, "set_attn_implementation"):
        raise ValueError(
            f"attn_implementation is for models of transformers (got a {type(model).__name__}); give a batch with what "
            "its kernel takes"
        )
    try:
        model.set_attn_implementation(attn_implementation)
        if model.config._attn_implementation != attn_implementation:
            raise ValueError(
                f"{type(model).__name__} cannot change to attn_implementation={attn_implementation!r}; load it with that"
            )
        yield
    finally:
        for config, before in held:
            config._attn_implementation_internal = before
