"""Real peaks: bounds are exceeded no more often than their risk says, and most of the limit is used."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.memory_profiles import (
    DATA,
    RISKS,
    SHARES,
    Run,
    Table,
    interval,
    judged_loader,
    judged_prior,
    kinds_of,
    prior,
    priors,
    probed,
    probed_models,
    read_runs,
)
from brimful.memory import MemoryModel

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no peaks at {DATA}; set BRIMFUL_TEST_DATA")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read_runs()


def test_eight_probes_and_what_comes_after_keep_to_the_risk_and_use_most_of_the_limit(runs: list[Run]) -> None:
    """Of translation; every fourth run here, all of them in benchmarks/memory_profiles.py."""
    judged = [probed(run) for run in [run for run in runs if run.family != "alma"][::4]]
    for risk, least in zip(RISKS, (0.75, 0.82)):
        ratios = np.concatenate([one[risk] for one in judged])
        assert len(ratios) > 2_000
        assert interval(int((ratios > 1).sum()), len(ratios))[0] <= risk
        assert np.minimum(ratios, 1).mean() >= least


def test_the_prior_keeps_to_the_risk_for_each_kind_of_model_on_runs_that_it_does_not_know(runs: list[Run]) -> None:
    judged = judged_prior(runs)
    for risk, least in zip(RISKS, (0.24, 0.25)):
        for family in ("nllb", "nmt", "alma"):
            ratios = np.concatenate([one[risk] for one, run in zip(judged, runs) if run.family == family])
            assert (ratios > 1).mean() <= risk
        assert np.minimum(np.concatenate([one[risk] for one in judged]), 1).mean() > least


def test_the_prior_is_as_careful_as_the_kind_whose_peaks_lie_farthest_above(runs: list[Run]) -> None:
    """The margin that is kept is that of the bounds by which it is judged."""
    kinds = kinds_of(runs, np.ones(len(runs), bool))
    bounds = max((Table.of(runs, share) for share in SHARES), key=lambda table: table.used(kinds)).bounds(kinds)
    for risk, bound in zip(RISKS, bounds):
        assert np.log(MemoryModel.pretrained().margin.factor(risk)) == pytest.approx(bound, abs=0.02)


def test_batches_that_grow_from_the_first_one_keep_to_its_peak_and_use_most_of_it(runs: list[Run]) -> None:
    """Of translation; every sixteenth run here, all of them in benchmarks/memory_profiles.py."""
    chosen = [run for run in runs if run.family != "alma"][::16]
    judged = judged_loader(chosen, probed_models(chosen))
    for risk in RISKS:
        peaks, samples = (np.concatenate(parts) for parts in zip(*(one[risk] for one in judged)))
        larger = peaks[samples > 1]
        assert len(larger) > 300
        assert interval(int((larger > 1).sum()), len(larger))[0] <= risk
        assert np.minimum(peaks, 1).mean() > 0.7
        assert samples.mean() > 1.3


def test_by_default_batches_grow_within_the_first_peak_on_runs_that_the_prior_does_not_know(runs: list[Run]) -> None:
    """Runs of few batches here, ALMA's among them, all of them in benchmarks/memory_profiles.py."""
    chosen = [run for run in runs if len(run.peaks) < 60]
    peaks, samples = (
        np.concatenate(parts) for parts in zip(*(one[0.025] for one in judged_loader(chosen, priors(chosen))))
    )
    larger = peaks[samples > 1]
    assert len(larger) > 300
    assert interval(int((larger > 1).sum()), len(larger))[0] <= 0.025
    assert np.minimum(peaks, 1).mean() > 0.75
    assert samples.mean() > 1.4


def test_the_prior_that_comes_with_the_library_is_the_one_of_all_runs(runs: list[Run]) -> None:
    made, kept = prior(runs), MemoryModel.pretrained()
    assert made.margin.counts == kept.margin.counts
    assert made.predict(7, 300) == pytest.approx(kept.predict(7, 300), rel=1e-6)
