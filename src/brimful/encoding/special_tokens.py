"""Truncation, and special tokens around each text, on whole columns: the last steps of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.core.counters import count
from brimful.encoding.splittable import steps_of
from brimful.tables.ragged import Ragged, gather, surround


@dataclass(frozen=True)
class SpecialTokens:
    """Cuts rows of tokens, then puts tokens before and after each.

    Args:
        before, after: the ids.
        most: tokens of a text that stay; None: all.
        left: whether the first ones go where there are more.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    most: int | None = None
    left: bool = False

    def __call__(self, tokens: Ragged) -> Ragged:
        """
        >>> SpecialTokens((101,), (102,), most=2)(Ragged(np.array([5, 6, 7]), np.array([0, 3, 3]))).values.tolist()
        [101, 5, 6, 102, 101, 102]
        """
        counts = tokens.lengths
        if self.most is not None and counts.max(initial=0) > self.most:
            cut_off(counts[counts > self.most] - self.most)
            kept = np.minimum(counts, self.most).astype(np.int64, copy=False)
            starts = tokens.offsets[:-1] + (counts - kept) * self.left
            tokens = gather(tokens.values, starts, kept)
        for before, after in zip_longest(reversed(self.before), self.after):
            tokens = surround(tokens, before, after)
        return tokens


def cut_off(tokens: Sequence[int] | NDArray[np.int64]) -> None:
    """Counts texts that a tokenizer's truncation cuts, and how many tokens of each are left out."""
    count("truncated", len(tokens))
    count("dropped_tokens", int(sum(tokens)))


def cut_rows(rows: Iterable[Sequence[int]], most: int | None) -> Iterable[Sequence[int]]:
    """Rows of tokens, of each the first `most`; what is cut off is counted."""
    if most is None:
        return rows
    rows = list(rows)
    cut_off([len(row) - most for row in rows if len(row) > most])
    return [row[:most] for row in rows]


def special_tokens_of(
    processor: Mapping[str, Any] | None, truncation: Mapping[str, Any] | None, add_special_tokens: bool = True
) -> SpecialTokens | str:
    """The special tokens that a tokenizer's post-processor, as its JSON has it, puts around single texts, with its truncation; or
    the part of them that is not known. Without special tokens a template still says how often a text is there.

    >>> special_tokens_of({"type": "Other"}, None)
    'its post-processor Other'
    """
    processors = [one for one in steps_of(processor) if one["type"] != "ByteLevel"]
    around = [_around(one) for one in processors]
    if None in around or (add_special_tokens and len(around) > 1):
        return f"its post-processor {' + '.join(one['type'] for one in processors)}"
    before, after = (around and add_special_tokens and around[0]) or ((), ())
    if truncation is None:
        return SpecialTokens(before, after)
    most = truncation["max_length"] - len(before) - len(after)
    if most < 1 or truncation.get("strategy", "longest_first") not in ("longest_first", "only_first"):
        return f"its truncation {dict(truncation)}"
    return SpecialTokens(before, after, most, truncation["direction"].lower() == "left")


def _around(processor: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ids before and after a text; None where it is not there once, or that is not known."""
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if processor["type"] != "TemplateProcessing":
        return None
    sides: list[list[int]] = [[]]
    for piece in processor["single"]:
        if "Sequence" in piece:
            if piece["Sequence"]["id"] != "A":
                return None
            sides.append([])
        else:
            sides[-1] += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return (tuple(sides[0]), tuple(sides[1])) if len(sides) == 2 else None
