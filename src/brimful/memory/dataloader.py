"""A DataLoader of texts whose batches grow as the texts get shorter, within what the first one is known to take."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader

from brimful.memory.device import PeaksBetween, ReportedPeaks, StepPeaks
from brimful.memory.first_batch import FirstBatchSizes, cut_lazily
from brimful.memory.model import MemoryModel
from brimful.memory.rebatch import Padding, rebatch_padded
from brimful.oom.exhaustion import of_all_guards
from brimful.plan.buckets import Rounding
from brimful.plan.cut import longest_first
from brimful.plan.errors import check_bool, integer, logger, name_of, warn_once
from brimful.plan.memory import PeakModel
from brimful.plan.once import once
from brimful.plan.plan import IntArray
from brimful.plan.random import key, permutation

CHUNK: Final = 4_096
"""Texts that are tokenized at once where only their lengths are wanted."""

WITHOUT_PEAKS: Final = (
    "batches will hardly grow: torch finds no CUDA device, whose peaks would say how memory grows. Give peak_bytes=, if your "
    "device reports peaks, or memory_model=, a file that `brimful memory probe` and `brimful memory fit` make"
)

_OURS: Final = ("padding", "truncation", "max_length", "return_tensors")
_MEMBERS: Final = ("largest_batch", "predict", "num_lengths", "unit")


def build_dynamic_batch_dataloader(
    texts: Iterable[str],
    tokenizer: Callable[..., Any],
    batch_size: int,
    max_input_token_length: int,
    threshold: float = 0.025,
    shuffle: bool = False,
    num_workers: int = 4,
    batch_start_range: float = 1.0,
    batch_end_range: float = 6.0,
    steps: int = 50,
    *,
    seed: int = 42,
    memory_model: PeakModel | str | os.PathLike[str] | None = None,
    peak_bytes: Callable[[], float | None] | None = None,
    **tokenizer_kwargs: Any,
) -> DynamicBatchDataLoader:
    """Makes batches of texts, longest first, whose sizes grow as the texts get shorter.

    The first batch has `batch_size` texts, which must fit into memory. Later batches have shorter texts, and as many
    more of them as memory allows. The loader learns this number from the peaks of the first batches.

    A batch is a dict of the tokenizer's output and `texts`: input_ids and attention_mask (B, L) int64, and every other
    key. It is padded to its longest text, with the padding id and side of the tokenizer. Each text is in exactly one
    batch.

    Args:
        texts: the texts. All of them are held in memory.
        tokenizer: one of transformers, fast or slow, or a callable with the same arguments and results.
        batch_size: the samples of the first batch. So many of the longest texts must fit.
        max_input_token_length: longer texts are cut to this many tokens. A warning and the loader's `truncated` say how
            many.
        threshold: the share of full batches that may exceed the peak of the first one.
        shuffle: shuffle the batches anew for each epoch, from `seed` and the epoch's number.
        num_workers: processes that tokenize and pad, as in DataLoader. torch starts them: by fork on Linux before
            Python 3.14. With fork a script needs no main guard.
        batch_start_range, batch_end_range, steps: the possible sizes of later batches. There are `steps` sizes, evenly
            spaced from the first number to the second, times `batch_size` and rounded down. A batch takes the largest
            size whose bound fits. If none fits, it takes `batch_size`, or the smallest size if that is less.
        seed: the seed of that order.
        memory_model: a `MemoryModel`, or the file that `brimful memory fit` wrote. None: the first peak gives the
            scale, and the next peaks give the growth. Without peaks, `MemoryModel.pretrained()` stays, which hardly
            grows batches. See `DynamicBatchDataLoader`.
        peak_bytes: a function for devices whose peaks torch does not know. It returns the peak since its last call in
            bytes, or None if unknown. brimful calls it before and after each batch. None: torch gives the peaks of a
            CUDA device, if there is one.
        tokenizer_kwargs: keywords of the tokenizer's call, such as add_special_tokens or pad_to_multiple_of.
    Raises:
        TypeError, ValueError: a setting or a text is invalid, a text has no tokens, or the tokenizer cannot pad.
    Price: all texts are tokenized twice: here for their lengths, and in the workers for their contents. 8 bytes a text
        are held. A loader that learns copies what workers read: 50 us for 32 texts of 64 tokens.
    Source: the dynabatch package, which has the same signature.
    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="a"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", padding_side="left")
        >>> loader = build_dynamic_batch_dataloader(["a", "a a a", "a a"], tokenizer, 2, 512, num_workers=0)
        >>> [batch["texts"] for batch in loader]
        [['a a a', 'a a'], ['a']]
        >>> next(iter(loader))["input_ids"].tolist()
        [[1, 1, 1], [0, 1, 1]]
    """
    limit = integer("max_input_token_length", max_input_token_length, 1, "token")
    num_workers, seed = integer("num_workers", num_workers), integer("seed", seed)
    check_bool("shuffle", shuffle)
    model = _model(memory_model)
    sizes = FirstBatchSizes(
        model, batch_size, 1, risk=threshold, start=batch_start_range, end=batch_end_range, steps=steps
    )
    texts = _texts(texts)
    collator = TextCollator(tokenizer, limit, tokenizer_kwargs)
    lengths = collator.lengths(texts)
    truncated = int((lengths > limit).sum())
    if truncated:
        words = "truncated %d of %d texts to max_input_token_length=%d tokens"
        logger.warning(words, truncated, len(texts), limit)
    order = longest_first(np.minimum(lengths, limit))
    padded = Rounding(pad_to_multiple_of=collator.multiple)(np.minimum(lengths, limit))[order]
    if len(order):
        collator.check(texts[order[-1]], int(padded[-1]))
    sizes = replace(sizes, longest=int(padded.max(initial=1)))
    peaks = _peaks(model, peak_bytes)
    if memory_model is None and peaks is None:
        warn_once(WITHOUT_PEAKS)
    batches = DynamicBatches(order, padded, sizes, seed if shuffle else None, peaks)
    return DynamicBatchDataLoader(texts, batches, collator, num_workers, truncated)


class DynamicBatchDataLoader(DataLoader[Any]):
    """A DataLoader of dicts, from a list of texts: see `build_dynamic_batch_dataloader`.

    The loader learns from memory peaks, if two things are true. Peaks are known, from `peak_bytes` or from torch's
    current CUDA device. And the model can learn: the default model can, and so can one in bytes with `refined`.

    The loader measures the peak between two batches. When you ask for the second batch, the model learns this peak with
    the shape of the first. Workers read 2 x num_workers batches ahead. When you ask for a batch, the loader cuts it
    anew from these texts. So batches depend only on the peaks before, not on num_workers or time. There are two
    exceptions. Shuffled batches are all cut when an epoch begins. Batches stay as the workers read them if a key of the
    tokenizer has no value for each token, as with return_length. `len` is not known, and raises a TypeError.

    A measured peak of the first batch replaces the predicted one. By default, no batch reaches twice the first one's
    size before two peaks are known. After that, no batch has more than twice a size that two peaks confirm. Texts
    shorter than any measured batch get the size of the shortest measured batch.

    If `oom_guard` or `oom_safe` runs a batch in parts because memory ran out, the model learns that its peak was above
    the first one's. From a batch that they split beforehand it learns nothing. If other code catches an
    OutOfMemoryError of CUDA, the model stops learning, because the step may go on in parts.

    Attributes:
        truncated: texts that were cut to max_input_token_length.
        memory_model: the model with all that was learnt. A `MemoryModel` has `save`.
    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="a"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
        >>> loader = build_dynamic_batch_dataloader(["a", "a a a", "a a"], tokenizer, 2, 2, num_workers=0)
        >>> [batch["input_ids"].tolist() for batch in loader], loader.truncated, loader.memory_model.unit
        ([[[1, 1], [1, 1]], [[1]]], 1, 'relative')
    """

    def __init__(
        self, texts: list[str], batches: DynamicBatches, collator: TextCollator, num_workers: int, truncated: int
    ) -> None:
        data: Any = texts  # a list is what torch calls a map-style dataset
        super().__init__(data, batch_sampler=batches, num_workers=num_workers, collate_fn=collator)
        self._batches = batches
        self.truncated = truncated

    @property
    def memory_model(self) -> PeakModel:
        """The model of peaks, with all that it has learnt so far."""
        return self._batches.sizes.model

    def __iter__(self) -> Any:
        batches, peaks = super().__iter__(), self._batches.peaks
        return batches if peaks is None else self._watched(self._rebatched(batches), peaks)

    def _rebatched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """By the sizes known when a batch is due, where batches lie in the order in which they were cut."""
        ends, collator = self._batches.ends, self.collate_fn
        if not self.num_workers or ends is None or not isinstance(collator, TextCollator):
            return batches
        texts = [self.dataset[number] for number in ends]
        padding = Padding.seen(collator(texts), [collator([text]) for text in texts], collator.multiple)
        return batches if padding is None else rebatch_padded(batches, self._batches.cut(), padding)

    def _watched(self, batches: Iterator[Any], peaks: PeaksBetween) -> Iterator[Any]:
        for batch in batches:
            rows, length = batch["input_ids"].shape
            ooms, split = of_all_guards.ooms, of_all_guards.split
            peaks.begin()
            yield batch
            ooms, split = of_all_guards.ooms - ooms, of_all_guards.split - split
            peak = peaks.end(ooms)
            if ooms:
                self._batches.sizes = self._batches.sizes.exceeded(rows, length)
            elif peak is not None and not split:
                self._batches.sizes = self._batches.sizes.learnt(rows, length, peak)


@dataclass(eq=False)
class DynamicBatches:
    """The numbers of the texts of each batch: a batch sampler.

    Args:
        order: numbers of the texts, longest first, (n,).
        padded: the lengths that they are padded to, in that order, (n,).
        sizes: by which batches are cut; replaced as peaks are learnt.
        seed: of their order, which each iteration draws anew; None: longest first.
        peaks: tells them; None: nothing is learnt.
    """

    order: IntArray
    padded: IntArray
    sizes: FirstBatchSizes
    seed: int | None
    peaks: PeaksBetween | None
    epoch: int = field(default=0, init=False)

    @property
    def ends(self) -> list[int] | None:
        """The longest text and the shortest; None without texts, and where batches are shuffled."""
        return self.order[[0, -1]].tolist() if len(self.order) and self.seed is None else None

    def cut(self) -> Iterator[slice]:
        """The parts of the order, each by the sizes known when it is asked for."""
        return cut_lazily(self.padded, lambda: self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        parts: Iterable[slice] = self.cut()
        if self.seed is not None:
            built = list(parts)
            parts = [built[number] for number in permutation(len(built), key(self.seed, self.epoch)).tolist()]
            self.epoch += 1
        for part in parts:
            yield self.order[part].tolist()

    def __len__(self) -> int:
        if self.peaks is not None:
            raise TypeError(
                "the number of batches is not known: their sizes follow the peaks that memory_model learns from"
            )
        return self._count

    @once
    def _count(self) -> int:
        return sum(1 for _ in self.cut())


@dataclass(frozen=True)
class TextCollator:
    """Makes a batch of texts: the tokenizer's output for them, and the texts.

    Args:
        options: for the tokenizer, beside those that are set here.
    Raises:
        TypeError: these are among them; ValueError: a length that padding to a multiple cannot keep to.
    """

    tokenizer: Callable[..., Any]
    max_length: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not callable(self.tokenizer):
            raise TypeError(
                f"tokenizer must be one of transformers, or be called as they are (got {type(self.tokenizer).__name__}); "
                "around one of tokenizers goes PreTrainedTokenizerFast(tokenizer_object=...)"
            )
        if set_here := [name for name in _OURS if name in self.options]:
            raise TypeError(
                f"{set_here[0]} is not for tokenizer_kwargs: batches are padded to their longest text, and texts cut to "
                "max_input_token_length, as tensors of torch"
            )
        named = [
            name
            for name, one in inspect.signature(self.tokenizer).parameters.items()
            if one.kind is not one.VAR_KEYWORD
        ]
        if unknown := [name for name in self.options if name not in named]:
            ours = list(inspect.signature(build_dynamic_batch_dataloader).parameters)[:-1]
            close = get_close_matches(unknown[0], ours, 1) or get_close_matches(unknown[0], named, 1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise TypeError(
                f"{unknown[0]} is no keyword of build_dynamic_batch_dataloader{meant}, "
                f"and {name_of(self.tokenizer)} names none of that name (it names {', '.join(named)}). A keyword that it takes "
                "unnamed is for functools.partial"
            )
        if self.max_length % self.multiple:
            raise ValueError(
                f"max_input_token_length must be a multiple of pad_to_multiple_of={self.multiple} (got {self.max_length})"
            )

    @property
    def multiple(self) -> int:
        """To which padded lengths are rounded up."""
        given = self.options.get("pad_to_multiple_of")
        return 1 if given is None else integer("pad_to_multiple_of", given, 1, "token")

    def __call__(self, texts: list[str]) -> dict[str, Any]:
        given = self._given(texts, padding=True, max_length=self.max_length, return_tensors="pt")
        return {**given, "texts": texts}

    def lengths(self, texts: list[str]) -> IntArray:
        """Their lengths in tokens, (n,) int64; of longer ones 1 more than they are cut to.

        Raises:
            ValueError: one is without tokens.
        """
        found = np.zeros(len(texts), np.int64)
        for start in range(0, len(texts), CHUNK):
            rows = self._given(texts[start : start + CHUNK], max_length=self.max_length + 1)["input_ids"]
            found[start : start + len(rows)] = list(map(len, rows))
        if len(empty := np.flatnonzero(found == 0)):
            raise ValueError(
                f"text {empty[0]:,} has no tokens ({texts[empty[0]]!r:.40}); leave such texts out ({len(empty):,} here)"
            )
        return found

    def check(self, text: str, padded: int) -> None:
        """Makes a batch of one text, and refuses a tokenizer that cannot, or whose batches are wider than planned."""
        batch = self([text])
        if missing := [name for name in ("input_ids", "attention_mask") if name not in batch]:
            raise ValueError(
                f"the tokenizer gives no {missing[0]} (it gives {', '.join(batch)}); say return_{missing[0]}=True"
            )
        if not isinstance(ids := batch["input_ids"], torch.Tensor):
            raise TypeError(f"the tokenizer must give tensors for return_tensors='pt' (got {type(ids).__name__})")
        if ids.shape != (1, padded):
            raise ValueError(
                f"the tokenizer must pad a batch to its longest text: one text, for which {padded:,} tokens are planned, "
                f"became a tensor of shape {tuple(ids.shape)}"
            )

    def _given(self, texts: list[str], **settings: Any) -> Mapping[str, Any]:
        given = self.tokenizer(texts, truncation=True, **settings, **self.options)
        if not isinstance(given, Mapping) or "input_ids" not in given:
            raise TypeError(f"{name_of(self.tokenizer)} must return a dict with input_ids (got {type(given).__name__})")
        if len(given["input_ids"]) != len(texts):
            raise ValueError(
                f"the tokenizer returned {len(given['input_ids']):,} rows for {len(texts):,} texts; leave out what makes "
                "several of one, as return_overflowing_tokens"
            )
        return given


def _texts(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes | Mapping):
        raise TypeError(f"build_dynamic_batch_dataloader takes several texts (got a single {type(texts).__name__})")
    held = list(texts)
    if odd := [number for number, text in enumerate(held) if not isinstance(text, str)]:
        raise TypeError(f"a text must be a str (text {odd[0]:,} is {held[odd[0]]!r:.40})")
    return held


def _model(given: PeakModel | str | os.PathLike[str] | None) -> PeakModel:
    if given is None:
        return MemoryModel.pretrained()
    if isinstance(given, str | os.PathLike):
        return MemoryModel.load(given)
    if missing := [name for name in _MEMBERS if not hasattr(given, name)]:
        raise TypeError(f"memory_model must have {missing[0]} (got {given!r}); a MemoryModel has")
    return given


def _peaks(model: Any, peak_bytes: Callable[[], float | None] | None) -> PeaksBetween | None:
    """What tells the peaks from which a model learns; None where nothing does, or it takes none."""
    reported = None if peak_bytes is None else ReportedPeaks(peak_bytes)
    if not hasattr(model, "refined") or (model.unit == "relative" and model.growth is None):
        if reported is not None:
            raise TypeError(f"peak_bytes is for a model that learns, in bytes and with refined (got {model!r})")
        return None
    return reported or (StepPeaks() if torch.cuda.is_available() else None)
