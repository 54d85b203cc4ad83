"""What each release left behind still opens, and goes on with the same items. See tests/releases/chains.py."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import brimful as bf
from tests.releases import chains

RELEASES: Final = sorted(path for path in chains.HERE.iterdir() if (path / "states.json").exists())
SAVED: Final = {release: json.loads((release / "states.json").read_text("utf-8")) for release in RELEASES}
CASES: Final = [(release, name) for release in RELEASES for name in SAVED[release] if name in chains.CHAINS]
LOADERS: Final[dict[str, Any]] = {"Loader": chains.loader, "BatchSampler": chains.sampler}


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a release left behind, elsewhere."""
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def saved(release: Path, name: str) -> Any:
    return SAVED[chains.HERE / release.name][name]


def test_this_release_left_something_behind() -> None:
    assert chains.HERE / bf.__version__ in RELEASES
    assert SAVED[chains.HERE / bf.__version__].keys() == {*chains.CHAINS, *LOADERS, "oom_guard"}


def test_this_release_stands_in_the_changelog_and_the_citation() -> None:
    root = Path(__file__).parents[1]
    assert f"\n## [{bf.__version__}] - 20" in (root / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {bf.__version__}\n" in (root / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize(("of", "name"), CASES, ids=lambda one: one.name if isinstance(one, Path) else one)
def test_a_state_goes_on_where_it_stood(of: Path, name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(of, tmp_path / "moved"))
    made, left = chains.CHAINS[name](folder), SAVED[of][name]
    assert chains.items(made.iter(), chains.BEFORE) == left["before"]
    assert chains.items(made.iter(left["state"]), chains.AFTER) == left["after"]


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_goes_on_where_it_stood(release: Path, name: str) -> None:
    made = LOADERS[name]()
    made.load_state_dict(saved(release, name)["state"])
    assert chains.items(iter(made), chains.AFTER) == saved(release, name)["after"]


def test_a_store_opens_with_what_it_held(release: Path) -> None:
    store = bf.from_store(release / "store")
    samples = {int(sample["id"]): sample for sample in store}
    assert sorted(samples) == [*range(40)] == sorted(store.select("id")[at]["id"] for at in range(40))
    for number, sample in samples.items():
        kept = chains.row(number)
        assert (sample["text"], sample["input_ids"].tolist()) == (kept["text"], kept["input_ids"])
        assert sample["labels"].tolist() == [-100, *kept["input_ids"][1:]]


def test_a_guard_remembers_its_limits(release: Path) -> None:
    guard = chains.guard()
    guard.load_state_dict(saved(release, "oom_guard")["state"])
    guard({"input_ids": torch.ones(16, 16)})
    assert (guard.stats.ooms, guard.stats.split) == (0, 1)


def test_results_go_on_after_the_windows_that_are_written(release: Path) -> None:
    with pytest.raises(chains.InterruptedRunError):
        chains.results(release / "results", limit=8)  # 14 are left
    counts = chains.counts({"text": chains.TEXTS})
    assert chains.results(release / "results", limit=16) == counts


def test_a_memory_model_predicts_what_it_did(release: Path) -> None:
    model = bf.memory.MemoryModel.load(release / "memory_model.json")
    assert model.predict(4, 128) == pytest.approx(1e9, rel=1e-6)
    assert model.predict(8, 128) > model.predict(4, 128)


def test_no_sample_is_lost_between_before_and_after() -> None:
    for left in SAVED.values():
        numbers = [sample["id"] for sample in islice(left["map"]["before"] + left["map"]["after"], 6)]
        assert numbers == [*range(6)]
