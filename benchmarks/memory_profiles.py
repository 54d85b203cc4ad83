"""What a risk means, on real peaks: how often bounds are exceeded, and how much of the limit is used.

    python benchmarks/memory_profiles.py [--write src/brimful/memory/pretrained.json]

The peaks are memory_profiles.parquet in ../shared/data (or $BRIMFUL_TEST_DATA), of 78 runs of `generate`. Each batch is judged
at the limit for which it is the largest that the bound allows: it exceeds the limit where its peak lies above the bound, and
uses min(peak / bound, 1) of it. Two ways to know the bound:

- probed: eight batches of a run, chosen by shape alone, then the rest in the order of the run, each judged and then learnt;
- prior: one model for all, relative to the first batch of a run, fitted to the other runs alone (and to none that has the same
  batches as the one that is judged); nothing of the run but its first peak is known.

Then the batches that `build_dynamic_batch_dataloader` makes of a run's texts (as long as the batches were padded to in which they
were) by such a prior, or by a model of eight probes that learns from each batch. The limit is the first batch's peak, of which
.9 are aimed at: counted are the batches above the limit, and of those larger than the first the ones above it and above .9
of it. (Others have the first one's size and shorter texts, and are above it where a model generates without end for these.)
The peak of a shape that a run does not have is a fit to all its peaks, times how far that is off the batch in which the
first of its texts was.

`--write` fits the prior to all runs, and writes what `MemoryModel.pretrained()` is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from brimful.memory import MemoryModel, spread_shapes
from brimful.memory.first_batch import SHARE, FirstBatchSizes, cut_lazily
from brimful.memory.margin import Margin

DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
RISKS = (0.01, 0.025)
NUM_PROBES = 8
# A sample's share by length, 1 + linear L + quadratic L^2, as the prior may have it: what uses most of the limits is taken.
SHARES = [(a, b) for a in (0, 3e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3, 3e-3, 4e-3, 6e-3) for b in (0, 1e-6, 3e-6, 1e-5)]
ERRORS_A_RUN = 100  # as which each run counts, however long

Floats = NDArray[np.float64]


@dataclass(frozen=True)
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


def built(run: Run, model: MemoryModel, learns: bool, risk: float) -> Built:
    """What the loader makes of a run's texts with this model."""
    order = np.argsort(-run.shapes[:, 1], kind="stable")
    owners = np.repeat(order, run.shapes[order, 0])
    padded = run.shapes[owners, 1]
    truth = MemoryModel.fit(run.shapes, run.peaks)
    off = run.peaks / np.array([truth.predict(*shape) for shape in run.shapes.tolist()])
    known = [FirstBatchSizes(model, int(run.shapes[order[0], 0]), int(padded[0]), risk=risk)]
    found = []
    for part in cut_lazily(padded, lambda: known[-1]):
        shape = part.stop - part.start, int(padded[part.start])
        found.append((truth.predict(*shape) * float(off[owners[part.start]]), shape[0]))
        if learns:
            known.append(known[-1].learnt(*shape, found[-1][0]))
    return Built(*((np.array(found)[1:-1] / found[0]).T))


def errors(run: Run, share: tuple[float, float]) -> Floats:
    """How far the peaks of a run, compared with its first, are off a prior's: logarithms."""
    batch, length = run.shapes.T.astype(np.float64)
    prior = batch * (1 + share[0] * length + share[1] * length**2)
    found: Floats = np.log(run.peaks / run.peaks[0]) - np.log(prior / prior[0])
    return found


@dataclass(frozen=True)
class Table:
    """The errors of all runs under one share by length: joined, and their order."""

    errors: Floats
    order: NDArray[np.int64]

    def bounds(self, weights: Floats) -> list[float]:
        """What the risks' shares of the weight lie above."""
        summed = np.cumsum(weights[self.order])
        return [float(self.errors[self.order][np.searchsorted(summed, (1 - risk) * summed[-1])]) for risk in RISKS]

    def used(self, weights: Floats) -> float:
        """How much of the limits is used, added up over the risks."""
        return sum(float(weights @ np.minimum(np.exp(self.errors - bound), 1)) for bound in self.bounds(weights))


def tables(runs: list[Run]) -> dict[tuple[float, float], Table]:
    """By share."""
    joined = {share: np.concatenate([errors(run, share) for run in runs]) for share in SHARES}
    return {share: Table(one, np.argsort(one, kind="stable")) for share, one in joined.items()}


def splits(runs: list[Run]) -> Iterator[tuple[NDArray[np.bool_], tuple[float, float], list[float], Floats]]:
    """For each run: which others have other batches, the share that is best for them, each of which counts alike, its bounds by
    risk, and how far the run's own peaks are off it."""
    by_share = tables(runs)
    owners = np.repeat(np.arange(len(runs)), [len(run.peaks) for run in runs])
    weights = 1 / np.bincount(owners)[owners]
    for number, run in enumerate(runs):
        others = np.array([other != number and not one.alike(run) for other, one in enumerate(runs)])
        weighed = weights * others[owners]
        share = max(by_share, key=lambda share: by_share[share].used(weighed))  # called at once
        yield others, share, by_share[share].bounds(weighed), by_share[share].errors[owners == number]


def judged_prior(runs: list[Run]) -> list[dict[float, Floats]]:
    """For each run, by risk, peak / bound under a prior that was fitted to the others."""
    return [{risk: np.exp(own - bound) for risk, bound in zip(RISKS, bounds)} for _, _, bounds, own in splits(runs)]


def prior(runs: list[Run]) -> MemoryModel:
    """The prior of all runs."""
    weights = np.concatenate([np.full(len(run.peaks), 1 / len(run.peaks)) for run in runs])
    by_share = tables(runs)
    return prior_with(max(by_share, key=lambda share: by_share[share].used(weights)), runs)


def prior_with(share: tuple[float, float], runs: list[Run]) -> MemoryModel:
    """The prior of this share by length, as sure as it is of these runs."""
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
    levels = (np.arange(ERRORS_A_RUN) + 0.5) / ERRORS_A_RUN
    known = np.concatenate([np.quantile(errors(run, share), levels) for run in runs])
    return replace(model, margin=Margin.of(known.tolist()), unit="relative")


def judged_loader(runs: list[Run], way: str) -> list[dict[float, Built]]:
    """For each run, by risk, the batches of the loader."""
    if way == "prior":
        chosen = [prior_with(share, [runs[n] for n in np.flatnonzero(others)]) for others, share, _, _ in splits(runs)]
    else:
        probes = [spread_shapes(run.shapes, count=NUM_PROBES) for run in runs]
        chosen = [MemoryModel.fit(run.shapes[rows], run.peaks[rows]) for run, rows in zip(runs, probes)]
    return [{risk: built(run, model, way == "probed", risk) for risk in RISKS} for run, model in zip(runs, chosen)]


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
    return (
        f"{title:<24}{len(judged):>5}{len(peaks):>8,}{risk:>8.1%}{over.mean():>10.2%}{f'{low:.2%} to {high:.2%}':>18}"
        f"{next(above):>12}{next(above):>8}{np.minimum(peaks, 1).mean():>8.1%}{samples.mean():>10.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="where the prior of all runs goes")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"no peaks at {DATA}; set BRIMFUL_TEST_DATA")
        return
    runs = read_runs()
    if options.write:
        prior(runs).save(options.write)
        print(f"{prior(runs)} written to {options.write}")
        return
    print(
        f"{'':<24}{'runs':>5}{'batches':>8}{'risk':>8}{'exceeded':>10}{'95 %':>18}{'used':>8}{'by run: exc.':>13}{'used':>7}"
    )
    online = [probed(run) for run in runs]
    blind = judged_prior(runs)
    groups = {
        "nllb": ("nllb",),
        "nmt": ("nmt",),
        "alma": ("alma",),
        "nllb + nmt": ("nllb", "nmt"),
        "all": ("nllb", "nmt", "alma"),
    }
    for way, judged in (("probed", online), ("prior", blind)):
        for name, families in groups.items():
            for risk in RISKS:
                print(line(f"{way}, {name}", [one for one, run in zip(judged, runs) if run.family in families], risk))
    print(
        f"\n{'batches of the loader':<24}{'runs':>5}{'batches':>8}{'risk':>8}{'exceeded':>10}{'95 %':>18}"
        f"{'larger: > 1':>12}{'> .9':>8}{'used':>8}{'samples x':>10}"
    )
    for way in ("probed", "prior"):
        loaded = judged_loader(runs, way)
        for name, families in groups.items():
            for risk in RISKS:
                kept = [one for one, run in zip(loaded, runs) if run.family in families]
                print(loader_line(f"{way}, {name}", kept, risk))


if __name__ == "__main__":
    main()
