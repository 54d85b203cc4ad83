"""The comparison: which policies, what each makes of the lengths, and the advice that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.batches import Batches
from brimful.batching.batch import PlannedWindow
from brimful.batching.facts import batch_facts
from brimful.batching.planning import Batched
from brimful.batching.windows import auto_rows
from brimful.core.stage import running
from brimful.dataset import Dataset
from brimful.plan import (
    AttentionCost,
    Packed,
    Policy,
    StaticShapes,
    TokenBudget,
    as_lengths,
    optimal_buckets,
    uniform_buckets,
)
from brimful.plan.errors import of_setting, require
from brimful.report.lengths import dataset_of

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BATCHES_A_STEP: Final = (1, 2, 4, 8)
RECOMPILE_LIMIT: Final = 8
"""Shapes that torch.compile(dynamic=False) compiles of one function before it falls back to eager: torch's
`torch._dynamo.config.recompile_limit`."""

NUM_BUCKETS: Final = (8, 16)
STEP_COST: Final = 0.05
STEP: Final = 4
"""Batches of an optimizer step that reach the loss of random ones, from windows of two steps (docs/convergence.md)."""
FEWEST: Final = 16
"""Fewer batches of a budget say little of a policy: its padding is about 2.5 / batches, whatever the lengths."""
EVEN: Final = 0.02
"""Random batches that pad no more than this need no policy."""


@dataclass(frozen=True)
class Settings:
    """The settings that the policies are planned with.

    Args:
        max_tokens: most slots in a batch, padding included.
        batch_size: samples in a batch of fixed size.
        row_length: tokens in a packed row; by default the longest sample.
        max_length: samples are cut to so many tokens; None: not at all, but for those that are longer than `max_tokens`.
        hidden_size: width of the model, which says what attention costs beside the rest.
        compile_seconds: time to compile one shape.
    Raises:
        ValueError: one of them below 1, or `max_length` over `max_tokens`.
    """

    max_tokens: int = 16_384
    batch_size: int = 32
    row_length: int | None = None
    max_length: int | None = None
    hidden_size: int = 768
    compile_seconds: float = 30.0

    def __post_init__(self) -> None:
        require("max_tokens", self.max_tokens, 1, "token")
        require("batch_size", self.batch_size, 1, "sample")
        require("row_length", 1 if self.row_length is None else self.row_length, 1, "token")
        require("max_length", 1 if self.max_length is None else self.max_length, 1, "token")
        require("hidden_size", self.hidden_size, 1)
        require("compile_seconds", self.compile_seconds, 0, "seconds")
        if self.max_length is not None and self.max_length > self.max_tokens:
            raise of_setting(
                "max_length",
                ValueError(
                    f"max_length must be at most max_tokens={self.max_tokens:,} (got {self.max_length:,}): "
                    "a sample of that length would fit no batch"
                ),
            )


class Spread(NamedTuple):
    """The distribution of lengths.

    `at_max_length` says how many samples are cut to it, or just as long. Where nothing is cut, `over_max_tokens` says how many
    samples are longer than `max_tokens` and fit no batch: they are planned as if they were cut there. `uncut_longest` is the
    longest sample before any cut.
    """

    samples: int
    tokens: int
    mean: float
    median: int
    p99: int
    longest: int
    at_max_length: int
    over_max_tokens: int
    uncut_longest: int
    counts: tuple[int, ...]


class Outcome(NamedTuple):
    """The batches that one policy makes of the lengths.

    `code` makes such batches of a data set. `window` is in samples (None: no window), `auto` whether the loader chose it.
    `tokens_per_batch` are real ones. `work` is the arithmetic of an epoch, in tokens; `cost` is `work` relative to the
    least of all policies. `slots_at` and `tokens_at` are the slots and real tokens of the batches of each padded length,
    in the bins of `Report.edges`. `between` is how much of the variance of lengths lies between optimizer steps of 1, 2, 4 and 8
    batches, as `between` says.
    """

    name: str
    code: str
    window: int | None
    auto: bool
    padding: float
    batches: int
    shapes: int
    tokens_per_batch: float
    work: float
    cost: float
    slots_at: tuple[int, ...]
    tokens_at: tuple[int, ...]
    between: tuple[float, ...]

    @property
    def too_many_shapes(self) -> bool:
        """Whether torch.compile for static shapes would give up."""
        return self.shapes > RECOMPILE_LIMIT


class Advice(NamedTuple):
    """A recommendation: when, the method, the reason, and the code; `policy` is the place of its outcome in the report."""

    when: str
    use: str
    why: str
    code: str
    policy: int

    @property
    def sentence(self) -> str:
        """All of it, as people say it."""
        return f"{self.when}{'use' if self.when else 'Use'} {self.use}: {self.why}."


@dataclass(frozen=True)
class Report:
    """The result of `compare`. Bin i of all distributions holds lengths from edges[i] + 1 to edges[i + 1]; the first, 0 too."""

    settings: Settings
    source: str
    more: bool
    lengths: Spread
    edges: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    advice: tuple[Advice, ...]


class _Way(NamedTuple):
    """A way to make batches: its name, the code that does it, the function that makes them with further settings, what chose the
    window, what it is advised for."""

    name: str
    code: str
    make: Callable[..., Batches]
    window: int | None = None
    auto: Policy | None = None
    role: str = ""


def compare(lengths: ArrayLike, settings: Settings | None = None, *, source: str = "", more: bool = False) -> Report:
    """Plans the samples, in the order given, by each policy, as the loader would.

    Args:
        lengths: tokens of each sample, (n,).
        settings: see `Settings`.
        source: what the lengths are of, in words.
        more: whether there were more samples than these.
    Raises:
        ValueError: no lengths, not integers (n,), or negative.
    Price: 10 to 20 us a sample: a second for 100,000.
    Example:
        >>> report = compare([5, 9, 7, 120] * 500, Settings(max_tokens=1024))
        >>> print(report.advice[0].sentence)
        Use batch_by_tokens(1_024): 0.84 % padding, 3.4 times less work than random batches of 32.
    """
    settings = settings or Settings()
    values = as_lengths(lengths)
    if values.ndim != 1:
        raise ValueError(f"a report takes one length a sample (got shape {values.shape})")
    if not len(values):
        raise ValueError("there are no samples: a report needs at least one")
    at_max_length = 0 if settings.max_length is None else int((values >= settings.max_length).sum())
    uncut_longest, over = int(values.max()), int((values > settings.max_tokens).sum())
    values = np.minimum(values, settings.max_tokens if settings.max_length is None else settings.max_length)
    longest = int(values.max())
    edges = edges_of(values, max(longest, settings.row_length or 1))
    ways = _ways(values, settings)
    outcomes = [_outcome(way, values, edges, settings.hidden_size) for way in ways]
    least = min(outcome.work for outcome in outcomes)
    outcomes = [outcome._replace(cost=outcome.work / least) for outcome in outcomes]
    spread = Spread(
        samples=len(values),
        tokens=int(values.sum()),
        mean=float(values.mean()),
        median=quantile(values, 0.5),
        p99=quantile(values, 0.99),
        longest=longest,
        at_max_length=at_max_length,
        over_max_tokens=over if settings.max_length is None else 0,
        uncut_longest=uncut_longest,
        counts=binned(values, np.ones_like(values), edges),
    )
    roles = {way.role: place for place, way in enumerate(ways) if way.role}
    advice = _advice(outcomes, roles, settings)
    return Report(settings, source, more, spread, tuple(edges.tolist()), tuple(outcomes), advice)


# -- the policies --------------------------------------------------------------------------------------------------------


def _ways(lengths: IntArray, settings: Settings) -> list[_Way]:
    size, most, longest = settings.batch_size, settings.max_tokens, max(1, int(lengths.max()))
    row_length = settings.row_length or longest
    data = dataset_of(lengths)
    fewest_slots = TokenBudget(most, planner="least_padding", step_cost=STEP_COST)
    return [
        _Way(
            f"random, {size:,} a batch",
            f"bf.from_sequence(samples, shuffle=True).batch({size})",
            partial(dataset_of(lengths, shuffle=True).batch, size),
            role="random",
        ),
        _Way(
            f"sorted, {size:,} a batch",
            f"dataset.batch({size}, window=10_000)",
            partial(data.batch, size, window=10_000),
            10_000,
        ),
        *(
            _Way(
                "token budget",
                f"dataset.batch_by_tokens({most:_}, window={window:_})",
                partial(data.batch_by_tokens, most, window=window),
                window,
            )
            for window in (1_000, 10_000)
            if window < len(lengths)
        ),
        _Way(
            "token budget",
            f"dataset.batch_by_tokens({most:_})",
            partial(data.batch_by_tokens, most),
            auto=TokenBudget(most),
            role="budget",
        ),
        _Way(
            f"steps of {STEP} batches",
            f'dataset.batch_by_tokens({STEP * most:_}, micro_batches={STEP}, window="steps")',
            partial(data.batch_by_tokens, STEP * most, micro_batches=STEP, window="steps"),
            auto_rows(TokenBudget(most), lengths, 2 * STEP),
        ),
        _Way(
            "least padding",
            f'dataset.batch(bf.TokenBudget({most:_}, planner="least_padding", step_cost={STEP_COST}))',
            partial(data.batch, fewest_slots),
            auto=fewest_slots,
        ),
        *(
            _static(data, buckets, most, kind, "static" if (kind, number) == ("optimal", NUM_BUCKETS[0]) else "")
            for number in NUM_BUCKETS
            for kind, buckets in (
                ("uniform", uniform_buckets(longest, number)),
                ("optimal", optimal_buckets(lengths, number)),
            )
        ),
        _packed(data, row_length, max(1, most // row_length), longest),
    ]


def _static(data: Dataset, buckets: list[int], max_tokens: int, kind: str, role: str) -> _Way:
    policy = StaticShapes(buckets, max_tokens)
    name = f"{len(buckets)} {kind} bucket{'s' if len(buckets) > 1 else ''}"
    code = f"dataset.batch(bf.StaticShapes({buckets}, {max_tokens:_}))"
    make = partial(data.batch, policy)
    return _Way(name, code, make, auto=policy, role=role)


def _packed(data: Dataset, row_length: int, rows: int, longest: int) -> _Way:
    name = f"packed rows of {row_length:,}"
    splits = longest > row_length
    code = f"dataset.pack({row_length:_}, rows={rows:_}" + (', overlong="split")' if splits else ")")
    make = partial(data.pack, row_length, rows=rows, overlong="split" if splits else "raise")
    return _Way(name, code, make, auto=Packed(row_length), role="packed")


class _Epoch(NamedTuple):
    """The batches of an epoch, in order: rows, padded lengths, real tokens, sums of squared and of cubed lengths, and the
    arithmetic of each, (n,)."""

    sizes: IntArray
    padded: IntArray
    tokens: IntArray
    squares: FloatArray
    cubes: FloatArray
    work: FloatArray

    @property
    def slots(self) -> IntArray:
        return self.sizes * self.padded


def _epoch(batches: Batches, cost: AttentionCost) -> _Epoch:
    """Plans an epoch, as the loader does. No batch is made."""
    stage = batch_facts(batches.stage).planned
    assert isinstance(stage, Batched)
    with running(stage.upstream, stage.start(0)) as windows:
        found = [_sums(ordered.laid_out(), cost) for ordered, _ in windows if len(ordered)]
    return _Epoch(*map(np.concatenate, zip(*found, strict=True)))


def _sums(batches: PlannedWindow, cost: AttentionCost) -> _Epoch:
    sizes, padded = batches.padded_sizes, batches.padded_lengths
    lengths = batches.sizes.astype(np.float64)
    squares, cubes = (np.add.reduceat(lengths**power, batches.bounds[:-1]) for power in (2, 3))
    pairs = sizes * padded**2 if batches.pieces is None else squares  # attention stays within the pieces
    work = cost.linear * sizes * padded + cost.quadratic * pairs
    return _Epoch(sizes, padded, np.array(batches.num_tokens), squares, cubes, work)


def _outcome(way: _Way, lengths: IntArray, edges: IntArray, hidden_size: int) -> Outcome:
    """Plans epochs, and adds up."""
    cost = AttentionCost(quadratic=1 / (6 * hidden_size))
    epoch = _epoch(way.make(), cost)
    stratified = _epoch(way.make(shuffle_batches="stratified"), cost)  # the order that several a step have
    window = way.window if way.auto is None else auto_rows(way.auto, lengths)
    return Outcome(
        name=way.name,
        code=way.code,
        window=None if window is None else min(window, len(lengths)),
        auto=way.auto is not None,
        padding=float(1 - epoch.tokens.sum() / epoch.slots.sum()),
        batches=len(epoch.sizes),
        shapes=len({*zip(epoch.sizes.tolist(), epoch.padded.tolist(), strict=True)}),
        tokens_per_batch=float(epoch.tokens.mean()),
        work=float(epoch.work.sum()),
        cost=1.0,
        slots_at=binned(epoch.padded, epoch.slots, edges),
        tokens_at=binned(epoch.padded, epoch.tokens, edges),
        between=between(stratified.tokens.astype(np.float64), stratified.squares, stratified.cubes),
    )


# -- advice --------------------------------------------------------------------------------------------------------------


def _advice(outcomes: list[Outcome], roles: dict[str, int], settings: Settings) -> tuple[Advice, ...]:
    """Recommends a policy in general, one for compiled shapes, and one for packed rows; of few batches, none but the first."""
    random, budget, static, packed = (outcomes[roles[role]] for role in ("random", "budget", "static", "packed"))
    most, size = f"{settings.max_tokens:_}", settings.batch_size
    if budget.batches < FEWEST:
        filled = "1 batch" if budget.batches == 1 else f"{budget.batches} batches"
        why = (
            f"these samples fill {filled} of {settings.max_tokens:,} tokens, and policies are compared from {FEWEST} batches on. "
            "Report on more samples, or with a smaller --max-tokens"
        )
        return (Advice("", f"batch_by_tokens({most})", why, budget.code, roles["budget"]),)
    if random.padding <= EVEN:
        why = (
            f"your samples are nearly equally long, so that random batches have only {percent(random.padding)} padding"
        )
        first = Advice("", f"batch({size})", why, f"dataset.batch({size})", roles["random"])
    else:
        less = random.work / budget.work
        gain = f"{less:.1f} times less work than" if less >= 1.05 else "about the work of"
        why = f"{percent(budget.padding)} padding, {gain} random batches of {size:,}"
        first = Advice("", f"batch_by_tokens({most})", why, budget.code, roles["budget"])
    return (
        first,
        Advice(
            "If you compile for static shapes, ",
            f"StaticShapes(optimal_buckets(lengths, {NUM_BUCKETS[0]}), {most})",
            f"{static.shapes:,} shape{'s' if static.shapes != 1 else ''}, {percent(static.padding)} padding",
            static.code,
            roles["static"],
        ),
        Advice(
            "If your attention takes packed rows (varlen, FlexAttention), ",
            packed.code.removeprefix("dataset."),
            f"{percent(packed.padding)} padding",
            packed.code,
            roles["packed"],
        ),
    )


def percent(share: float) -> str:
    """A share for a sentence: two decimals below 1 %, else one.

    >>> percent(0.728), percent(0.00852), percent(0.0)
    ('72.8 %', '0.85 %', '0.0 %')
    """
    return f"{share * 100:.{2 if 0 < share < 0.01 else 1}f} %"


# -- statistics: bins for drawings, and the difference between optimizer steps ------------------------------------------


def edges_of(lengths: IntArray, longest: int, most: int = 32) -> IntArray:
    """Edges of bins from 0 on: equal widths that are a power of two; two to an octave where lengths spread far."""
    if longest > 40 * max(1, quantile(lengths, 0.5)) and longest > most:
        octaves = np.arange(1, ceil(np.log2(longest)) + 0.5, 0.5)
        return np.array([0, 1, *np.round(2**octaves).astype(np.int64)])
    width = 2 ** max(0, ceil(np.log2(longest / most))) if longest else 1
    return np.arange(0, max(longest, 1) + width, width)[: -(-max(longest, 1) // width) + 1]


def binned(lengths: IntArray, weights: IntArray, edges: IntArray) -> tuple[int, ...]:
    bins = np.maximum(np.searchsorted(edges, lengths) - 1, 0)
    return tuple(np.bincount(bins, weights, len(edges) - 1).astype(np.int64).tolist())


def quantile(lengths: IntArray, share: float) -> int:
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def between(tokens: FloatArray, squares: FloatArray, cubes: FloatArray) -> tuple[float, ...]:
    """How much of the variance of lengths lies between steps of 1, 2, 4 and 8 batches that follow one another.

    Lengths are those of the samples that tokens are in, and the variance is over tokens, of which a loss is the mean: the
    variance of the mean lengths of steps, weighted by their tokens, divided by that of all tokens.

    Args:
        tokens, squares, cubes: of each batch, the sums of its samples' lengths, and of their squares and cubes, (n,).
    Example:
        >>> between(np.array([2.0, 6.0]), np.array([2.0, 18.0]), np.array([2.0, 54.0]))
        (1.0, 0.0, 0.0, 0.0)
    """
    mean = squares.sum() / max(tokens.sum(), 1)
    variance = cubes.sum() - squares.sum() * mean
    if variance <= 1e-9 * cubes.sum():
        return (0.0,) * len(BATCHES_A_STEP)
    return tuple(float(_between(tokens, squares, mean, number) / variance) for number in BATCHES_A_STEP)


def _between(tokens: FloatArray, squares: FloatArray, mean: float, number: int) -> float:
    starts = np.arange(0, len(tokens), number)
    size, total = np.add.reduceat(tokens, starts), np.add.reduceat(squares, starts)
    some = size > 0
    return float((np.square(total[some] / size[some] - mean) * size[some]).sum())
