"""Whether a model keeps samples apart, of a batch that is given or of random ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final

from torch import nn

from brimful.core.random import seeded
from brimful.isolation.call import Call, call_of, packed_batch, padded_batch, required, unwrapped, vocabulary_of
from brimful.isolation.probe import Examined, Leak, examine
from brimful.isolation.small import parts_of
from brimful.isolation.verdict import AS_IT_IS, LEAST_VOCABULARY, repaired, segments, verdict

NOT_TAKEN: Final = (AttributeError, LookupError, RuntimeError, TypeError)
"""What modules say to an argument of another kind."""


def report(
    model: nn.Module, batch: Mapping[str, Any] | None, attn_implementation: str | None
) -> tuple[dict[str, Leak | None], str, str, float]:
    """The leaks by the name of the batch, the remedy, the type that was computed in, and the tolerance."""
    model = unwrapped(model)
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module (got {type(model).__name__})")
    config = getattr(model, "config", None)
    of_transformers = hasattr(config, "model_type")
    kernel = _kernel(model, attn_implementation) if attn_implementation is not None else nullcontext()
    with kernel, seeded(0, []):
        if batch is not None:
            vocabulary = vocabulary_of(model, batch)
            call = call_of(model, batch)
            call = call.short() if call.packed else call
            try:
                examined = {"batch": _examined(model, call, vocabulary)}
            except IndexError as error:
                largest = int(batch[call.tokens].max())
                if largest < vocabulary:
                    raise
                raise ValueError(
                    f"{type(model).__name__} has {vocabulary:,} ids (config.vocab_size), and the largest id in the batch is "
                    f"{largest:,}. Use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
                ) from error
        else:
            vocabulary = min(vocabulary_of(model, None), LEAST_VOCABULARY)
            rows = segments(short=not of_transformers)
            call = call_of(model, packed_batch(rows, vocabulary))
            examined = {"packed": _examined(model, call, vocabulary)}
            with suppress(Exception):  # whatever a model says to a batch of a kind that it does not take
                padded = call_of(model, padded_batch(rows, vocabulary))
                examined["padded"] = _examined(model, padded, vocabulary)
        remedy = ""
        if of_transformers and any(one.leak for name, one in examined.items() if name != "padded"):
            named = attn_implementation or str(getattr(config, "_attn_implementation", None) or "eager")
            way = verdict(model, packed_batch(segments(), min(vocabulary, LEAST_VOCABULARY)), named).way
            remedy = repaired(model, call) if way == AS_IT_IS else way
    first = next(iter(examined.values()))
    dtype = str(first.dtype).removeprefix("torch.")
    return {name: one.leak for name, one in examined.items()}, remedy, dtype, first.tolerance


def _examined(model: nn.Module, call: Call, vocabulary: int) -> Examined:
    """Examines a model. One whose forward takes a single argument of an unknown name takes the batch, or else its tokens.

    Raises:
        TypeError: it takes neither.
    """
    if not call.whole:
        return examine(model, call, vocabulary)
    try:
        return examine(model, call, vocabulary)
    except NOT_TAKEN as error:
        (name,) = required(model) or ("",)
        if not name:
            raise
        said, tokens = error, call.tokens
    try:
        return examine(model, replace(call, inputs={name: call.inputs[tokens]}, whole=False), vocabulary)
    except NOT_TAKEN as error:
        raise TypeError(
            f"{type(model).__name__}.forward takes one argument, {name}, and runs neither with the batch ({type(said).__name__}: "
            f"{said}) nor with its {tokens} ({type(error).__name__}: {error}). Wrap it in a module whose forward takes the "
            f"names of the batch, such as def forward(self, {tokens})"
        ) from said


@contextmanager
def _kernel(model: Any, attn_implementation: str) -> Iterator[None]:
    """Within, a model of transformers attends by another kernel.

    Raises:
        ValueError: it cannot.
    """
    parts = [part for module in model.modules() for part in parts_of(getattr(module, "config", None))]
    name = "_attn_implementation_internal"
    held = [(one, getattr(one, name)) for one in parts if hasattr(one, name)]
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
            setattr(config, name, before)
