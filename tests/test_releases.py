"""What each release left behind still opens, and goes on with the same items. See tests/releases/chains.py.

So does what the next release would leave behind now. States of 1.0.0rc1 are gone: their version is refused.
"""

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
SAVED: Final = {release.name: json.loads((release / "states.json").read_text("utf-8")) for release in RELEASES}
NOW: Final = "now"
STATES_OF: Final = [*(of for of in SAVED if of != "1.0.0rc1"), NOW]
CASES: Final = [(of, name) for of in STATES_OF for name in SAVED.get(of, chains.CHAINS) if name in chains.CHAINS]
LOADERS: Final[dict[str, Any]] = {"Loader": chains.loader, "BatchSampler": chains.sampler}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `python -m tests.releases` would write now."""
    folder = tmp_path_factory.mktemp("releases") / NOW
    chains.write(folder)
    return folder


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a release left behind, elsewhere."""
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def left_by(of: str, name: str, written: Path) -> Any:
    saved = json.loads((written / "states.json").read_text("utf-8")) if of == NOW else SAVED[of]
    return saved[name]


def moved(of: str, written: Path, to: Path) -> Path:
    """A copy of the folder of a release, or of the one that is written now, elsewhere."""
    return Path(shutil.copytree(written if of == NOW else chains.HERE / of, to / "moved"))


def test_this_release_left_something_behind() -> None:
    assert bf.__version__ in SAVED


def test_this_release_stands_in_the_changelog_and_the_citation() -> None:
    root = Path(__file__).parents[1]
    assert f"\n## [{bf.__version__}] - 20" in (root / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {bf.__version__}\n" in (root / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize(("of", "name"), CASES)
def test_a_state_goes_on_where_it_stood(of: str, name: str, written: Path, tmp_path: Path) -> None:
    made, left = chains.CHAINS[name](moved(of, written, tmp_path)), left_by(of, name, written)
    assert chains.items(made.iter(), chains.BEFORE) == left["before"]
    assert chains.items(made.iter(left["state"]), chains.AFTER) == left["after"]


@pytest.mark.parametrize("of", STATES_OF)
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_goes_on_where_it_stood(of: str, name: str, written: Path) -> None:
    made, left = LOADERS[name](), left_by(of, name, written)
    made.load_state_dict(left["state"])
    assert chains.items(iter(made), chains.AFTER) == left["after"]


def test_a_store_opens_with_what_it_held(release: Path) -> None:
    store = bf.from_store(release / "store")
    samples = {int(sample["id"]): sample for sample in store}
    assert sorted(samples) == [*range(40)] == sorted(store.select("id")[at]["id"] for at in range(40))
    for number, sample in samples.items():
        kept = chains.row(number)
        assert (sample["text"], sample["input_ids"].tolist()) == (kept["text"], kept["input_ids"])
        assert sample["labels"].tolist() == [-100, *kept["input_ids"][1:]]


def test_shards_and_a_tokenizer_open(release: Path) -> None:
    files = {kind: sorted(row["id"] for row in chains.files(release, kind)) for kind in chains.EXTENSIONS}
    assert files == {kind: [*range(40)] for kind in chains.EXTENSIONS}
    assert [row["id"] for row in chains.chat(release)] == [*range(8)]


def test_a_guard_remembers_its_limits(release: Path) -> None:
    guard = chains.guard()
    guard.load_state_dict(SAVED[release.name]["oom_guard"]["state"])
    guard({"input_ids": torch.ones(16, 16)})
    assert (guard.stats.ooms, guard.stats.split) == (0, 1)


@pytest.mark.parametrize("of", STATES_OF)
def test_results_go_on_after_the_windows_that_are_written(of: str, written: Path, tmp_path: Path) -> None:
    folder = moved(of, written, tmp_path) / "results"
    with pytest.raises(chains.InterruptedRunError):
        chains.results(folder, limit=8)  # 14 are left
    counts = chains.counts({"text": chains.TEXTS})
    assert chains.results(folder, limit=16) == counts


def test_results_whose_state_is_older_are_refused_and_can_be_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chains.HERE / "1.0.0rc1" / "results", tmp_path / "results"))
    with pytest.raises(bf.StateError, match="has version"):
        chains.results(folder)
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    assert [*map(json.loads, lines)] == chains.counts({"text": chains.TEXTS[:16]})


def test_a_memory_model_predicts_what_it_did(release: Path) -> None:
    model = bf.memory.MemoryModel.load(release / "memory_model.json")
    assert model.predict(4, 128) == pytest.approx(1e9, rel=1e-6)
    assert model.predict(8, 128) > model.predict(4, 128)


def test_no_sample_is_lost_between_before_and_after(written: Path) -> None:
    left = left_by(NOW, "map", written)
    numbers = [sample["id"] for sample in islice(left["before"] + left["after"], 6)]
    assert numbers == [*range(6)]
