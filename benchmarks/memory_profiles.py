"""What a risk means, on real peaks: how often bounds are exceeded, and how much of the limit is used.

    python benchmarks/memory_profiles.py [--write src/brimful/memory/pretrained.json]

The peaks are memory_profiles.parquet in ../shared/data (or $BRIMFUL_TEST_DATA), of 78 runs of `generate`. Each batch is judged
at the limit for which it is the largest that the bound allows: it exceeds the limit where its peak lies above the bound, and
uses min(peak / bound, 1) of it. Two ways to know the bound:

- probed: eight batches of a run, chosen by shape alone, then the rest in the order of the run, each judged and then learnt;
- prior: one model for all, relative to the first batch of a run, fitted to the other runs alone (and to none that has the same
  batches as the one that is judged); nothing of the run but its first peak is known. Its bounds hold for each kind of model: at
  each risk they are those of the kind whose peaks lie farthest above. "unknown kind": it has seen no run of that kind at all.

Then the batches that `build_dynamic_batch_dataloader` makes of a run's texts, as long as the batches were padded to in which they
were. "prior": nothing is measured. "probed": by a model of eight probes, which learns from each batch. "default": one peak is
known, and each batch is learnt from, with any number of workers; how runs differ is what the other runs say. The limit is the
first batch's peak. Counted are the batches above the limit, and of those larger than the first the ones above it and above .95 of
it. (Others have the first one's size and shorter texts, and are above it where a model generates without end for these.) The peak
of a shape that a run does not have is a fit to all its peaks, times how far that is off the batch in which the first of its texts
was.

Last, short texts, as long as the news sentences in the tests of the dynabatch package: half of them have fewer than 27 tokens,
and none more than 134. Their peaks are a fit to each run, each off by as much as the run's batch at the same place is.
"filled": each batch is the largest whose peak is within the first one's, which is known beforehand; no loader can make larger
ones at no risk.

`--write` fits the prior to all runs, and writes what `MemoryModel.pretrained()` is. `--shipped` judges the loader by that one,
which is honest for runs alone that it does not know.
"""

from __future__ import annotations

import argparse
import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from brimful.memory import MemoryModel, spread_shapes
from brimful.memory.first_batch import SHARE, FirstBatchSizes, cut_lazily
from brimful.memory.growth import nonnegative
from brimful.memory.margin import Margin
from brimful.memory.model import SHORT, Growth

DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
RISKS = (0.01, 0.025)
NUM_PROBES = 8
# A sample's share by length, 1 + linear L + quadratic L^2, as the prior may have it: what uses most of the limits is taken.
SHARES = [(a, b) for a in (0, 3e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3, 3e-3, 4e-3, 6e-3) for b in (0, 1e-6, 3e-6, 1e-5)]
SHORT_TEXTS, SHORT_BATCH, SHORT_RISKS = 5_000, 16, (0.025, 0.1, 0.5)
ERRORS_A_RUN = 100  # as which each run counts, however long

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """One run, in its order: shapes (n, 2) and peaks (n,) in bytes."""

    name: str
    family: str
    shapes: NDArray[np.int64]
    peaks: Floats

    def alike(self, other: Run) -> bool:
        """Whether both have the same batches: some runs differ only in a limit that none of their texts reached."""
        return self.family == other.family and np.array_equal(self.shapes, other.shapes)


def read_runs(path: Path = DATA / "memory_profiles.parquet") -> list[Run]:
    """All runs, by name."""
    table = pq.read_table(path).sort_by([("run", "ascending"), ("step", "ascending")])
    names = np.array(table["run"].to_pylist())
    shapes = np.column_stack([table[name].to_numpy() for name in ("batch_size", "padded_length")]).astype(np.int64)
    peaks = table["peak_mib"].to_numpy().astype(np.float64) * 2**20
    starts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    families = table["model"].to_pylist()
    return [
        Run(str(names[rows[0]]), families[rows[0]], shapes[rows], peaks[rows])
        for rows in np.split(np.arange(len(names)), starts[1:])
    ]


def probed(run: Run) -> dict[float, Floats]:
    """By risk, peak / bound of each batch that was no probe, in the order of the run."""
    probes = spread_shapes(run.shapes, count=NUM_PROBES)
    model = MemoryModel.fit(run.shapes[probes], run.peaks[probes])
    ratios: dict[float, list[float]] = {risk: [] for risk in RISKS}
    for row in np.setdiff1d(np.arange(len(run.peaks)), probes).tolist():
        shape, peak = run.shapes[row], float(run.peaks[row])
        for risk, found in ratios.items():
            found.append(peak / model.bound(*shape.tolist(), risk=risk))
        model = model.refined(shape[None], [peak])
    return {risk: np.array(found) for risk, found in ratios.items()}


class Built(NamedTuple):
    """Batches of the loader: peak / the first batch's peak, and samples / its samples, of all but the first and the last."""

    peaks: Floats
    samples: Floats


@cache
def truth(run: Run) -> tuple[MemoryModel, Floats]:
    """A fit to all peaks of a run, and how far each is off it: a factor."""
    fitted = MemoryModel.fit(run.shapes, run.peaks)
    return fitted, run.peaks / np.array([fitted.predict(*shape) for shape in run.shapes.tolist()])


def built(run: Run, model: MemoryModel, learns: bool, risk: float) -> Built:
    """What the loader makes of a run's texts with this model."""
    order = np.argsort(-run.shapes[:, 1], kind="stable")
    owners = np.repeat(order, run.shapes[order, 0])
    fitted, off = truth(run)
    sizes = FirstBatchSizes(model, int(run.shapes[order[0], 0]), int(run.shapes[order[0], 1]), risk=risk)
    return cut(run.shapes[owners, 1], fitted, off[owners], sizes, learns)


def cut(padded: NDArray[np.int64], fitted: MemoryModel, off: Floats, sizes: FirstBatchSizes, learns: bool) -> Built:
    """What the loader makes of texts, longest first, with peaks off the fit by as much as its first text says."""
    known = [sizes]
    found: list[tuple[float, int]] = []
    shapes: list[tuple[int, int]] = []
    for part in cut_lazily(padded, lambda: known[-1]):
        shapes.append((part.stop - part.start, int(padded[part.start])))
        found.append((fitted.predict(*shapes[-1]) * float(off[part.start]), shapes[-1][0]))
        if learns:
            known.append(known[-1].learnt(*shapes[-1], found[-1][0]))
    return Built(*((np.array(found)[1:-1] / found[0]).T))


def filled(padded: NDArray[np.int64], fitted: MemoryModel, off: Floats, sizes: FirstBatchSizes) -> Built:
    """The largest batches whose peaks are within the first one's, where each peak is known beforehand."""
    limit = fitted.predict(sizes.batch_size, int(padded[0])) * float(off[0])
    found, start = [(limit, sizes.batch_size)], sizes.batch_size
    while start < len(padded):
        length, times = int(padded[start]), float(off[start])
        number = bisect_right(sizes.choices, limit, key=lambda rows: fitted.predict(rows, length) * times)
        rows = sizes.choices[max(number, 1) - 1]
        found.append((fitted.predict(rows, length) * times, rows))
        start += rows
    return Built(*((np.array(found)[1:-1] / found[0]).T))


class Grown(NamedTuple):
    """How a run grows: at an eighth of its first length (`first` tokens) a sample takes exp(`log_share`) of what it takes there;
    peaks are off that by `spread`."""

    first: float
    log_share: float
    spread: float


@cache
def grown(run: Run) -> Grown:
    """Least squares: a sample takes a constant and so much by the token, neither below zero."""
    batch, length = run.shapes.T.astype(np.float64)
    fixed, by_token = nonnegative(np.column_stack([batch, batch * length]) / run.peaks[:, None], np.ones(len(batch)))
    off = np.log(run.peaks / (batch * (fixed + by_token * length)))
    first = float(length[0])
    return Grown(first, log((fixed + by_token * first * SHORT) / (fixed + by_token * first)), float(off.std()))


def growth(runs: list[Grown]) -> tuple[Growth, Floats]:
    """How runs differ: the rate that is right for them on average, and how far each is off it, as a logarithm."""
    first, found, spreads = np.array(runs).T

    def off(rate: float) -> Floats:
        away: Floats = found - np.log((1 + rate * first * SHORT) / (1 + rate * first))
        return away

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if off(middle).mean() > 0 else (middle, high)
    return Growth(low, float(np.median(spreads) / off(low).std())), off(low)


def errors(run: Run, share: tuple[float, float]) -> Floats:
    """How far the peaks of a run, compared with its first, are off a prior's: logarithms."""
    batch, length = run.shapes.T.astype(np.float64)
    prior = batch * (1 + share[0] * length + share[1] * length**2)
    found: Floats = np.log(run.peaks / run.peaks[0]) - np.log(prior / prior[0])
    return found


@dataclass(frozen=True)
class Table:
    """The errors of all runs under one share by length: joined, in ascending order. Each run weighs alike."""

    errors: Floats
    owners: NDArray[np.int64]
    weights: Floats

    @classmethod
    def of(cls, runs: list[Run], share: tuple[float, float]) -> Table:
        joined = np.concatenate([errors(run, share) for run in runs])
        owners = np.repeat(np.arange(len(runs)), [len(run.peaks) for run in runs])
        order = np.argsort(joined, kind="stable")
        return cls(joined[order], owners[order], (1 / np.bincount(owners)[owners])[order])

    def bounds(self, kinds: list[NDArray[np.bool_]]) -> list[float]:
        """What the risks' shares lie above, of the runs of the kind in which most lies there."""
        found = []
        for kind in kinds:
            rows = kind[self.owners]
            errors, summed = self.errors[rows], np.cumsum(self.weights[rows])
            found.append([float(errors[np.searchsorted(summed, (1 - risk) * summed[-1])]) for risk in RISKS])
        return [max(of_kinds) for of_kinds in zip(*found)]

    def used(self, kinds: list[NDArray[np.bool_]]) -> float:
        """How much of the limits is used, added up over the risks."""
        rows = np.any(kinds, axis=0)[self.owners]
        errors, weights = self.errors[rows], self.weights[rows]
        return sum(float(weights @ np.minimum(np.exp(errors - bound), 1)) for bound in self.bounds(kinds))


def kinds_of(runs: list[Run], chosen: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """The chosen runs of each kind of model."""
    families = np.array([run.family for run in runs])
    return [chosen & (families == family) for family in np.unique(families[chosen])]


class Split(NamedTuple):
    """What the runs that a prior may know say of one that it does not."""

    known: NDArray[np.bool_]
    share: tuple[float, float]
    bounds: list[float]


def splits(runs: list[Run], unknown_kind: bool = False) -> list[Split]:
    """For each run: which others have other batches (and are of another kind), the share that is best for them, and its
    bounds by risk."""
    by_share = {share: Table.of(runs, share) for share in SHARES}
    found = []
    for run in runs:
        known = np.array([not one.alike(run) and not (unknown_kind and one.family == run.family) for one in runs])
        kinds = kinds_of(runs, known)
        share = max(by_share, key=lambda share: by_share[share].used(kinds))  # called at once
        found.append(Split(known, share, by_share[share].bounds(kinds)))
    return found


def judged_prior(runs: list[Run], unknown_kind: bool = False) -> list[dict[float, Floats]]:
    """For each run, by risk, peak / bound under a prior that was fitted to the others."""
    return [
        {risk: np.exp(errors(run, split.share) - bound) for risk, bound in zip(RISKS, split.bounds)}
        for run, split in zip(runs, splits(runs, unknown_kind))
    ]


def prior(runs: list[Run]) -> MemoryModel:
    """The prior of all runs."""
    kinds = kinds_of(runs, np.ones(len(runs), bool))
    return prior_with(max(SHARES, key=lambda share: Table.of(runs, share).used(kinds)), runs)


def prior_with(share: tuple[float, float], runs: list[Run]) -> MemoryModel:
    """The prior of this share by length, as sure as it is of the runs of the kind that it knows least."""
    linear, quadratic = share
    shapes = np.concatenate([run.shapes for run in runs])
    corners = [
        (batch, length)
        for batch in (shapes[:, 0].min(), shapes[:, 0].max())
        for length in np.quantile(shapes[:, 1], (0, 0.5, 1)).astype(int)
    ]
    model = MemoryModel.fit(
        corners, [batch * (1 + linear * length + quadratic * length**2) for batch, length in corners]
    )
    of_kinds = []
    for kind in kinds_of(runs, np.ones(len(runs), bool)):
        found = [np.quantile(errors(runs[n], share), levels(ERRORS_A_RUN)) for n in np.flatnonzero(kind)]
        of_kinds.append(np.quantile(np.concatenate(found), levels(ERRORS_A_RUN * len(runs))))
    differs, _ = growth([grown(run) for run in runs])
    return replace(model, margin=Margin.of(np.max(of_kinds, axis=0).tolist()), unit="relative", growth=differs)


def levels(count: int) -> Floats:
    """So many shares, evenly from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def priors(runs: list[Run]) -> list[MemoryModel]:
    """For each run, the prior of the runs that have other batches."""
    return [prior_with(split.share, [runs[n] for n in np.flatnonzero(split.known)]) for split in splits(runs)]


def probed_models(runs: list[Run]) -> list[MemoryModel]:
    """For each run, a model of eight probes."""
    probes = [spread_shapes(run.shapes, count=NUM_PROBES) for run in runs]
    return [MemoryModel.fit(run.shapes[rows], run.peaks[rows]) for run, rows in zip(runs, probes)]


def judged_loader(runs: list[Run], models: list[MemoryModel], learns: bool = True) -> list[dict[float, Built]]:
    """For each run, by risk, the batches of the loader that begins with this model."""
    return [{risk: built(run, model, learns, risk) for risk in RISKS} for run, model in zip(runs, models)]


def judged_short(runs: list[Run], models: list[MemoryModel]) -> tuple[list[dict[float, Built]], list[Built]]:
    """For each run the batches of short texts: by risk, and filled."""
    drawn = np.exp(np.random.default_rng(0).normal(log(27), 0.46, SHORT_TEXTS))
    padded = -np.sort(-drawn.astype(np.int64).clip(4, 134))
    learnt, full = [], []
    for run, model in zip(runs, models):
        fitted, off = truth(run)
        times = off[np.arange(len(padded)) * len(off) // len(padded)]
        sizes = FirstBatchSizes(model, SHORT_BATCH, int(padded[0]))
        learnt.append({risk: cut(padded, fitted, times, replace(sizes, risk=risk), True) for risk in SHORT_RISKS})
        full.append(filled(padded, fitted, times, sizes))
    return learnt, full


def interval(misses: int, count: int) -> tuple[float, float]:
    """What a share may be of which `misses` of `count` were seen: 95 %, after Wilson."""
    z, share = 1.96, misses / count
    middle, half = share + z**2 / (2 * count), z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return (middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)


def line(title: str, judged: list[dict[float, Floats]], risk: float) -> str:
    """One line of the table."""
    ratios = [one[risk] for one in judged]
    pooled = np.concatenate(ratios)
    misses = int((pooled > 1).sum())
    low, high = interval(misses, len(pooled))
    by_run = np.mean([(one > 1).mean() for one in ratios]), np.mean([np.minimum(one, 1).mean() for one in ratios])
    return (
        f"{title:<24}{len(ratios):>5}{len(pooled):>8,}{risk:>8.1%}{misses / len(pooled):>10.2%}"
        f"{f'{low:.2%} to {high:.2%}':>18}{np.minimum(pooled, 1).mean():>8.1%}{by_run[0]:>12.2%}{by_run[1]:>8.1%}"
    )


def loader_line(title: str, judged: list[dict[float, Built]], risk: float) -> str:
    """One line of the table of the loader."""
    peaks, samples = (np.concatenate(parts) for parts in zip(*(one[risk] for one in judged)))
    over, larger = peaks > 1, peaks[samples > 1]
    low, high = interval(int(over.sum()), len(peaks))
    above = (f"{(larger > share).mean():.2%}" if len(larger) else "-" for share in (1, SHARE))
    by_run = [
        (np.minimum(one[risk].peaks, 1).mean(), one[risk].samples.mean()) for one in judged if len(one[risk].peaks)
    ]
    used, times = np.mean(by_run, axis=0)
    few, many = interval(int((larger > 1).sum()), len(larger)) if len(larger) else (0.0, 1.0)
    return (
        f"{title:<24}{len(judged):>5}{len(peaks):>8,}{risk:>8.1%}{over.mean():>10.2%}{f'{low:.2%} to {high:.2%}':>18}"
        f"{next(above):>12}{f'{few:.2%} to {many:.2%}':>18}{next(above):>8}{np.minimum(peaks, 1).mean():>8.1%}"
        f"{samples.mean():>10.2f}{used:>8.1%}{times:>7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shipped", action="store_true", help="judge the loader by the prior that comes with the library"
    )
    parser.add_argument("--write", type=Path, help="where the prior of all runs goes")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"no peaks at {DATA}; set BRIMFUL_TEST_DATA")
        return
    runs = read_runs()
    if options.write:
        made = prior(runs)
        made.save(options.write)
        print(f"{made}, {made.growth} written to {options.write}")
        return
    print(
        f"{'':<24}{'runs':>5}{'batches':>8}{'risk':>8}{'exceeded':>10}{'95 %':>18}{'used':>8}{'by run: exc.':>13}{'used':>7}"
    )
    online = [probed(run) for run in runs]
    groups = {
        "nllb": ("nllb",),
        "nmt": ("nmt",),
        "alma": ("alma",),
        "nllb + nmt": ("nllb", "nmt"),
        "all": ("nllb", "nmt", "alma"),
    }
    prior_ways = {"prior": judged_prior(runs), "unknown kind": judged_prior(runs, unknown_kind=True)}
    for way, judged in {"probed": online, **prior_ways}.items():
        for name, families in groups.items():
            for risk in RISKS:
                print(line(f"{way}, {name}", [one for one, run in zip(judged, runs) if run.family in families], risk))
    print(
        f"\n{'batches of the loader':<24}{'runs':>5}{'batches':>8}{'risk':>8}{'exceeded':>10}{'95 %':>18}"
        f"{'larger: > 1':>12}{'95 %':>18}{'> .95':>8}{'used':>8}{'samples x':>10}{'by run':>8}{'x':>7}"
    )
    models = [MemoryModel.pretrained()] * len(runs) if options.shipped else priors(runs)
    ways = {
        "probed": judged_loader(runs, probed_models(runs)),
        "prior": judged_loader(runs, models, learns=False),
        "default": judged_loader(runs, models),
    }
    for way, loaded in ways.items():
        for name, families in groups.items():
            for risk in RISKS:
                kept = [one for one, run in zip(loaded, runs) if run.family in families]
                print(loader_line(f"{way}, {name}", kept, risk))
    short, full = judged_short(runs, models)
    for risk in SHORT_RISKS:
        print(loader_line("default, short texts", short, risk))
    print(loader_line("filled, short texts", [{0.0: one} for one in full], 0.0))
    known, off = growth([grown(run) for run in runs])
    quantiles = ", ".join(f"{one:+.0%}" for one in np.expm1(np.quantile(off, (0.1, 0.25, 0.5, 0.75, 0.9))))
    print(
        f"\ngrowth: a sample of L tokens takes 1 + {known.rate:.4f} L; at an eighth of the first length runs are off that by "
        f"{quantiles} (10, 25, 50, 75, 90 % of runs); this counts as {known.weight:.2f} peaks"
    )


if __name__ == "__main__":
    main()
