"""What becomes of data when a method is called: indexed data stay so where they can, the rest streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.core.ahead import Ahead
from brimful.core.errors import OnError, integer, one_of
from brimful.core.repeat import Repeat
from brimful.core.stream import BLOCK_ROWS, Stage, num_streams, upstreams
from brimful.index.choose import Choose as IndexChoose
from brimful.index.choose import ChooseSource as IndexChooseSource
from brimful.index.concat import Concat as IndexConcat
from brimful.index.filter import Filter as IndexFilter
from brimful.index.indexed import SPAN, Indexed, Source
from brimful.index.interleave import Interleave as IndexInterleave
from brimful.index.repeat import Repeat as IndexRepeat
from brimful.index.sequence import CachedIndex, FromSequence
from brimful.index.shuffle import Shuffle as IndexShuffle
from brimful.index.skip import Skip as IndexSkip
from brimful.index.slice import Slice
from brimful.index.some_rows import Sides
from brimful.index.stride import Stride as IndexStride
from brimful.index.take import Take as IndexTake
from brimful.index.train_valid_split import TrainValidSplit as IndexTrainValidSplit
from brimful.index.zip import Zip as IndexZip
from brimful.plan import Policy
from brimful.plan.mix import Stop
from brimful.rows.blocks import Block, Sample, samples
from brimful.rows.chat import Chat
from brimful.rows.choice import Choice
from brimful.rows.choose import Choose
from brimful.rows.concat import Concat
from brimful.rows.encoder import Encoder, Padding
from brimful.rows.filter import Filter
from brimful.rows.interleave import Interleave
from brimful.rows.parallel import Parallel
from brimful.rows.row_keys import RowKeys
from brimful.rows.sides import Side, Split
from brimful.rows.skip import Skip
from brimful.rows.stride import Stride
from brimful.rows.take import Take
from brimful.rows.tokenize import Tokenize
from brimful.rows.train_valid_split import TrainValidSplit
from brimful.rows.unbatch import Unbatch
from brimful.rows.zip import Zip
from brimful.sources.spread import spread
from brimful.steps.round_robin import RoundRobin
from brimful.store.hugging_face import hugging_face_of
from brimful.store.index import stored
from brimful.store.pipeline import all_below
from brimful.windows.buffered import Buffered
from brimful.windows.planned import Planned
from brimful.windows.shuffle import Shuffle
from brimful.windows.window import Window

T = TypeVar("T")


def endless(stage: Stage[Block]) -> Stage[Block]:
    """Epoch after epoch."""
    return IndexRepeat(stage) if isinstance(stage, Indexed) else Repeat(stage)


def taken(stage: Stage[Block], n: int) -> Stage[Block]:
    return IndexTake(stage, n) if isinstance(stage, Indexed) else Take(stage, n)


def skipped(stage: Stage[Block], n: int) -> Stage[Block]:
    return IndexSkip(stage, n) if isinstance(stage, Indexed) else Skip(stage, n)


def strided(stage: Stage[Block], interval: int, offset: int) -> Stage[Block]:
    return IndexStride(stage, interval, offset) if isinstance(stage, Indexed) else Stride(stage, interval, offset)


def shuffled(stage: Stage[Block], buffer_size: int, seed: int) -> Stage[Block]:
    size = integer("buffer_size", buffer_size, 1, "sample")
    return IndexShuffle(stage, size, seed) if isinstance(stage, Indexed) else Shuffle(windows_of(stage, size), seed)


def filtered(stage: Stage[Block], fn: Callable[..., bool], on_error: OnError, parallel: Parallel) -> Stage[Block]:
    """Of sources, by way of concatenations and shuffles, by a pass over all of them; what slices and mixtures would have
    left may differ from epoch to epoch, so there it streams."""
    return _selected(stage, lambda source: IndexFilter(source, fn, on_error, parallel)) or Filter(
        stage, fn, False, on_error, parallel=parallel
    )


def split(stage: Stage[Block], how: Split) -> tuple[Stage[Block], Stage[Block]]:
    """For training and for validation: indexed where a filter is, by one pass over each source for both."""
    known: dict[int, Sides] = {}

    def one(side: Side) -> Stage[Block]:
        def of(source: Source) -> Indexed:
            sides = known.setdefault(id(source), Sides(source.index, how))
            return IndexTrainValidSplit(source, sides, side)

        return _selected(stage, of) or TrainValidSplit(stage, how, side)

    return one("train"), one("valid")


def _selected(stage: Stage[Block], some_of: Callable[[Source], Indexed]) -> Indexed | None:
    match stage:
        case Source():
            return some_of(stage)
        case IndexShuffle():
            below = _selected(stage.upstream, some_of)
            return None if below is None else IndexShuffle(below, stage.buffer_size, stage.seed)
        case IndexConcat():
            parts = tuple(_selected(upstream, some_of) for upstream in stage.upstreams)
            return IndexConcat(parts) if _all_indexed(parts) else None
    return None


def chosen(stage: Stage[Block], choice: Choice) -> Stage[Block]:
    """Columns are chosen below what leaves them as they are, so that a filter after it still finds its source."""
    match stage:
        case Source():
            return IndexChooseSource(stage, choice)
        case IndexShuffle() | Slice() | IndexRepeat():
            return replace(stage, upstream=cast(Indexed, chosen(stage.upstream, choice)))
        case Indexed():
            return IndexChoose(stage, choice)
    return Choose(stage, choice)


def cached(
    stage: Stage[Block],
    path: str | os.PathLike[str] | None,
    version: str | None,
    timeout_seconds: float,
    engine: EngineName,
    ray_address: str | None,
) -> Stage[Block]:
    run, padding = run_by(engine, stage, ray_address), padding_of(stage)
    if path is None:
        if engine != "local":
            raise ValueError(
                f"engine={engine!r} writes a store, and a cache without path= lies in memory; name a folder"
            )
        return FromSequence(CachedIndex(stage, padding), shuffle=False, seed=0)
    index = stored(stage, path, version, timeout_seconds, padding, run, engine)
    return FromSequence(index, shuffle=False, seed=0)


EngineName: TypeAlias = Literal["local", "ray"]
"""What runs a chain: this process, or a Ray cluster."""


def run_by(engine: EngineName, stage: Stage[Block], ray_address: str | None) -> Stage[Block]:
    """A chain as an engine runs it: the same rows in the same order.

    Raises:
        ValueError: it cannot.
    """
    one_of("engine", engine, *get_args(EngineName))
    if engine == "ray":
        return spread(stage, ray_address)
    if ray_address is not None:
        raise ValueError(f"ray_address={ray_address!r} is for engine='ray' (got engine={engine!r})")
    return stage


def hugging_face(stage: Stage[Block], repeats: bool, path: str | os.PathLike[str] | None) -> Any:
    if repeats or goes_on(stage):
        raise ValueError(
            "this data set repeats without end, and to_hf writes all of it; take(n) says how much of it to write"
        )
    return hugging_face_of(stage, path)


def concatenated(stages: tuple[Stage[Block], ...]) -> Stage[Block]:
    """One stage for a + b + c too: several in each other would be as deep as there are data sets."""
    for number, stage in enumerate(stages[:-1]):
        if goes_on(stage):
            raise ValueError(
                f"data set {number} repeats without end, so that none after it is reached; repeat only the last"
            )
    parts = tuple(
        part for stage in stages for part in (stage.upstreams if isinstance(stage, IndexConcat | Concat) else (stage,))
    )
    return IndexConcat(parts) if _all_indexed(parts) else Concat(parts)


def zipped(stages: tuple[Stage[Block], ...]) -> Stage[Block]:
    for number, stage in enumerate(stages):
        if leaves_out(stage):
            raise ValueError(
                f"data set {number} leaves out what is bad (on_error='skip'), and its other rows would get wrong partners; mend "
                "it, or let functions give a row of nulls and filter after zip_datasets"
            )
    endless = [goes_on(stage) for stage in stages]
    if len(set(endless)) > 1:
        raise ValueError(
            f"data set {endless.index(True)} repeats without end and data set {endless.index(False)} does not; take some of "
            "the first, or repeat all of them"
        )
    return IndexZip(stages) if _all_indexed(stages) else Zip(stages)


def interleaved(
    stages: tuple[Stage[Block], ...], weights: Sequence[float] | None, stop: Stop, by: str, length_column: str
) -> Stage[Block]:
    one_of("by", by, "samples", "tokens")
    shares = (1.0,) * len(stages) if weights is None else tuple(weights)
    column = length_column if by == "tokens" else None
    return (
        IndexInterleave(stages, shares, stop, column)
        if _all_indexed(stages)
        else Interleave(stages, shares, stop, column)
    )


def _all_indexed(stages: tuple[Stage[Block] | None, ...]) -> TypeGuard[tuple[Indexed, ...]]:
    return all(isinstance(stage, Indexed) for stage in stages)


def windows_of(
    stage: Stage[Block],
    size: int,
    columns: tuple[str, ...] = (),
    *,
    required: bool = False,
    policy: Policy | None = None,
    batches: int | None = None,
    unmasked: tuple[str, ...] = (),
) -> Stage[Window]:
    """Windows of `size` rows (0: what the policy needs, or so many batches): of indexed data as they stand, of a stream one ahead
    of use."""
    if isinstance(stage, Indexed):
        return Planned(stage, size, columns, required, policy, batches, unmasked)
    return Ahead(Buffered(stage, size, columns, required, policy, batches, unmasked), 1, "window")


# -- what is known of it ---------------------------------------------------------------------------------------------------


def kind_of(stage: Stage[Any]) -> str:
    """Either "indexed", or "streamed" and the first stage that made it so."""
    return "indexed" if isinstance(stage, Indexed) else f"streamed (by {_streaming(stage)})"


def _streaming(stage: Stage[Any]) -> str:
    for below in upstreams(stage):
        if not isinstance(below, Indexed | RowKeys) or (
            isinstance(below, RowKeys) and not isinstance(below.upstream, Indexed)
        ):
            return _streaming(below)
    return type(stage).__name__


def count_of(stage: Stage[Block], repeats: bool) -> int:
    count = stage.count if isinstance(stage, Indexed) and not repeats else None
    if count is None:
        without_end = " and repeats without end" if isinstance(stage, Indexed) else ""
        raise TypeError(
            f"the length of this data set is not known: it is {kind_of(stage)}{without_end} (a DataLoader takes its loader())"
        )
    return count


def goes_on(stage: Stage[Any]) -> bool:
    """Whether data have no end, as far as their description says it: nothing is read."""
    match stage:
        case Repeat() | IndexRepeat():
            return True
        case Take() | IndexTake():
            return False
        case Interleave() | IndexInterleave() if stage.stop == "first":
            return all(map(goes_on, stage.upstreams))
    return any(map(goes_on, upstreams(stage)))


def leaves_out(stage: Stage[Any]) -> bool:
    """Whether rows that are bad are left out somewhere in a chain."""
    return getattr(stage, "on_error", "raise") == "skip" or any(map(leaves_out, upstreams(stage)))


def samples_at(stage: Stage[Block], numbers: Iterable[int]) -> list[Sample]:
    """Samples by number, in the order given."""
    if not isinstance(stage, Indexed):
        raise TypeError(f"the samples of this data set cannot be had by number: it is {kind_of(stage)}; cache it")
    rows, count = stage.order(0), stage.count
    found = [np.zeros(0, np.int64)]
    for number in numbers:
        place = index(number)
        if place < 0 and count is not None:
            place += count
        if place < 0 or (count is not None and place >= count):
            raise IndexError(
                f"there is no sample {number:,} in a data set of {'no end' if count is None else f'{count:,}'}"
            )
        found.append(rows(place, place + 1))
    return samples(stage.index.take(np.concatenate(found)))


def lengths_of(stage: Stage[Block], column: str) -> NDArray[Any]:
    if not isinstance(stage, Indexed):
        raise TypeError(f"the lengths of this data set are not known: it is {kind_of(stage)}; cache it")
    if stage.count == 0:  # which has no columns either
        return np.zeros(0, dtype=np.int64)
    if isinstance(stage, Source):
        return stage.index.lengths((column,), required=True)
    if stage.count is None:
        raise TypeError("the lengths of this data set are not known: it repeats without end; take some of it")
    rows, count = stage.unshuffled()
    spans = range(0, count, SPAN)  # the row numbers of all at once would take more than their lengths
    return np.concatenate(
        [stage.index.lengths_at(rows(first, min(first + SPAN, count)), (column,), required=True) for first in spans]
    )


def padding_of(stage: Stage[Any]) -> dict[str, Padding]:
    """What the tokenizers of a chain say of padding, by the columns that they fill.

    Raises:
        ValueError: two of them, for one column, say two things.
    """
    found: dict[str, Padding] = {}
    for below in upstreams(stage):
        for name, padding in padding_of(below).items():
            if found.setdefault(name, padding) != padding:
                raise ValueError(
                    f"the tokenizers of column {name!r} pad by {found[name]} and by {padding}: say pad_values and pad_side"
                )
    if isinstance(stage, FromSequence):
        found |= stage.rows.padding
    if isinstance(stage, IndexChoose | IndexChooseSource | Choose):
        found = stage.choice.renamed(found)
    if isinstance(stage, Tokenize | Chat) and stage.encoder.padding is not None:
        found |= dict.fromkeys(stage.output, stage.encoder.padding)
    return found


def encoders_of(stage: Stage[Any]) -> dict[str, Encoder]:
    """The tokenizers of a chain, by the columns that they fill; none for a column that two of them fill."""
    found: dict[str, Encoder] = {}
    several: set[str] = set()
    for below in all_below(stage):
        for name, encoder in encoders_of(below).items():
            if found.setdefault(name, encoder).fingerprint() != encoder.fingerprint():
                several.add(name)
    found = {name: encoder for name, encoder in found.items() if name not in several}
    if isinstance(stage, IndexChoose | IndexChooseSource | Choose):
        found = stage.choice.renamed(found)
    if isinstance(stage, Tokenize | Chat):
        found |= dict.fromkeys(stage.output, stage.encoder)
    return found


def side_of(stage: Stage[Any], column: str) -> str | None:
    """On which side the tokenizer of a column pads, where one is known."""
    padding = padding_of(stage).get(column)
    return None if padding is None else padding.side


def in_turn(stage: Stage[T], ahead: int = 1) -> Stage[T]:
    """A chain as it is; where its data come in streams, an item of each of them in turn."""
    streams = num_streams(stage)
    return stage if streams is None else RoundRobin(stage, streams, ahead=ahead)


def sampled(stage: Stage[Block], repeats: bool) -> Stage[Sample]:
    """Rows to samples; of several streams, a block's worth of them ahead of use in all."""
    streams = num_streams(stage)
    if streams is None:
        return Unbatch(Repeat(stage) if repeats else stage)
    turns = in_turn(Unbatch(stage), ahead=max(1, BLOCK_ROWS // streams))
    return Repeat(turns) if repeats else turns
