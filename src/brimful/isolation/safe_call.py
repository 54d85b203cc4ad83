"""Whether a model keeps the samples of a batch apart, one that is given or random ones; and by which call, if by any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from brimful.isolation.call import Call, call_of, packed_batch, padded_batch, required, unwrapped, vocabulary_of
from brimful.isolation.probe import Examined, Leak, examine
from brimful.isolation.small import parts_of
from brimful.plan.random import seeded
from brimful.tensors.attention import padding_free

LEAST_VOCABULARY: Final = 100
"""Ids up to which small models have words: those above stand for pictures and the like."""
AS_IT_IS: Final = "model(**batch)"
KERNELS: Final = ("sdpa", "eager", "flex_attention")
SEGMENTS: Final = ((37, 9, 52, 20), (12, 26, 5, 17, 9, 22, 8, 14))
"""Lengths of the samples in the rows that a model is tried on, which are longer than the kernels of convolutions."""
SHORT_SEGMENTS: Final = ((13, 6, 8), (5, 3, 7, 2, 4, 1, 3, 2))
"""Of models that may have few positions."""
PADDING: Final = 7
NOT_TAKEN: Final = (AttributeError, LookupError, RuntimeError, TypeError)
"""What modules say to an argument of another kind."""


@dataclass(frozen=True)
class Verdict:
    """What came of the calls that were tried.

    Args:
        call: the first one that keeps samples apart; "": none does.
        leak: of the batch as it is; None where that is kept apart, or refused.
        refused: what the model says to the batch as it is, if that is an error.
    """

    call: str
    leak: Leak | None = None
    refused: str = ""


def segments(*, short: bool = False) -> torch.Tensor:
    """Rows of a few short samples, with padding at their ends: as `segment_ids`."""
    given = SHORT_SEGMENTS if short else SEGMENTS
    rows = torch.zeros(len(given), max(map(sum, given)) + PADDING, dtype=torch.int64)
    for row, lengths in zip(rows, given):
        row[: sum(lengths)] = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))
    return rows


def candidate_calls(
    batch: Mapping[str, Any], config: Any, attn_implementation: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The calls to try, the plainest first, each in words and as inputs."""
    yield AS_IT_IS, batch
    kernel = {"attn_implementation": attn_implementation}
    to_try: list[dict[str, Any]] = [{"keep_apart": "mask", **kernel}, {"causal": False, **kernel}]
    if isinstance(pad := getattr(config, "pad_token_id", None), int):
        to_try += [{**settings, "position_offset": pad + 1} for settings in ({}, *to_try)]
    for settings in to_try:
        named = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        try:
            made = padding_free(batch, **settings)
        except ValueError:
            return
        yield f"model(**bf.attention.padding_free(batch, {named}))", made


def find_safe_call(model: nn.Module, batch: Mapping[str, Any], attn_implementation: str) -> Verdict:
    """By which call a small model keeps the samples of a packed batch apart."""
    leak, refused = None, ""
    vocabulary = int(batch["input_ids"].max()) + 1
    for words, inputs in candidate_calls(batch, getattr(model, "config", None), attn_implementation):
        plain = words == AS_IT_IS
        try:
            found = examine(model, call_of(model, inputs), vocabulary, locate=plain).leak
        except Exception as error:  # whatever a model says to keys that it does not know
            refused = f"{type(error).__name__}: {error}" if plain else refused
            continue
        if found is None:
            return Verdict(words, leak, refused)
        leak = found if plain else leak
    return Verdict("", leak, refused)


def fix_hint(model: nn.Module, call: Call) -> str:
    """Of a model that keeps samples apart as packed batches come: what of a call to change for that; "" where nobody knows."""
    if not call.packed:
        return ""
    taken = call_of(model, packed_batch(call.segments, LEAST_VOCABULARY)).inputs
    changes = []
    if getattr(call.inputs.get("attention_mask"), "ndim", 0) == 2:
        changes.append("without attention_mask (one of shape (rows, tokens) says that each row is one sample)")
    if "use_cache" in taken and call.inputs.get("use_cache") is not False:
        changes.append("with use_cache=False (with a cache, the default, a row is taken for one sample)")
    if "position_ids" in taken and not call.restarts:
        changes.append("with position_ids that begin at 0 in each sample, as pack makes them")
    return f"{AS_IT_IS} {', and '.join(changes)}" if changes else ""


# -- a model that a user gives


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
            safe = find_safe_call(model, packed_batch(segments(), min(vocabulary, LEAST_VOCABULARY)), named).call
            remedy = fix_hint(model, call) if safe == AS_IT_IS else safe
    first = next(iter(examined.values()))
    dtype = str(first.dtype).removeprefix("torch.")
    return {name: one.leak for name, one in examined.items()}, remedy, dtype, first.tolerance


def _examined(model: nn.Module, call: Call, vocabulary: int) -> Examined:
    """Examines a model. One whose forward takes a single argument of an unknown name takes the batch, or else its tokens.

    Raises:
        TypeError: it takes neither.
    """
    try:
        return examine(model, call, vocabulary)
    except NOT_TAKEN as error:
        wanted = required(model) if call.whole else None
        if not wanted:
            raise
        (name,), said, tokens = wanted, error, call.tokens
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
