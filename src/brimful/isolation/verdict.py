"""By which call, if by any, a model keeps the samples of a packed batch apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from brimful.isolation.call import Call, call_of, packed_batch
from brimful.isolation.probe import Leak, examine
from brimful.tensors.attention import padding_free

LEAST_VOCABULARY: Final = 100
"""Ids up to which small models have words: those above stand for pictures and the like."""
AS_IT_IS: Final = "model(**batch)"
KERNELS: Final = ("sdpa", "eager", "flex_attention")
SEGMENTS: Final = ((37, 9, 52, 20), (44, 11, 60))
"""Lengths of the samples in the rows that a model is tried on, which are longer than the kernels of convolutions."""
SHORT_SEGMENTS: Final = ((13, 6, 8), (7, 11, 5))
"""Of models that may have few positions."""
PADDING: Final = 7


class NamedCall(NamedTuple):
    """A call that may keep samples apart, in words and as inputs."""

    words: str
    batch: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What came of the ways to call a model.

    Args:
        way: the first one that keeps samples apart; "": none does.
        leak: of the batch as it is; None where that is kept apart, or refused.
        refused: what the model says to the batch as it is, if that is an error.
    """

    way: str
    leak: Leak | None = None
    refused: str = ""


def segments(*, short: bool = False) -> torch.Tensor:
    """Rows of a few short samples, with padding at their ends: as `segment_ids`."""
    given = SHORT_SEGMENTS if short else SEGMENTS
    rows = torch.zeros(len(given), max(map(sum, given)) + PADDING, dtype=torch.int64)
    for row, lengths in zip(rows, given):
        row[: sum(lengths)] = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))
    return rows


def ways(batch: Mapping[str, Any], config: Any, attn_implementation: str) -> Iterator[NamedCall]:
    """The calls to try, the plainest first."""
    yield NamedCall(AS_IT_IS, batch)
    pad = getattr(config, "pad_token_id", None)
    for offset in (0, *([pad + 1] if isinstance(pad, int) else [])):
        for causal, apart in ((True, "positions"), (True, "mask"), (False, "mask")):
            if not offset and apart == "positions":
                continue
            settings: dict[str, Any] = {} if causal else {"causal": False}
            settings |= {"keep_apart": "mask"} if causal and apart == "mask" else {}
            settings |= {"attn_implementation": attn_implementation} if apart == "mask" else {}
            settings |= {"position_offset": offset} if offset else {}
            named = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            try:
                made = padding_free(batch, **settings)
            except ValueError:
                return
            yield NamedCall(f"model(**bf.attention.padding_free(batch, {named}))", made)


def verdict(model: nn.Module, batch: Mapping[str, Any], attn_implementation: str) -> Verdict:
    """By which call a small model keeps the samples of a packed batch apart."""
    leak, refused = None, ""
    vocabulary = int(batch["input_ids"].max()) + 1
    for way in ways(batch, getattr(model, "config", None), attn_implementation):
        plain = way.words == AS_IT_IS
        try:
            found = examine(model, call_of(model, way.batch), vocabulary, locate=plain).leak
        except Exception as error:  # whatever a model says to keys that it does not know
            refused = f"{type(error).__name__}: {error}" if plain else refused
            continue
        if found is None:
            return Verdict(way.words, leak, refused)
        leak = found if plain else leak
    return Verdict("", leak, refused)


def repaired(model: nn.Module, call: Call) -> str:
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
