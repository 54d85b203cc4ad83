"""The planner as a package of its own, where numpy is and nothing else; and its policies in brimful's batches."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.memory import MemoryModel

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "plan"
LENGTHS = [50, 30, 20, 20, 30, 20, 7, 0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel and numpy."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=PACKAGE, check=True)
    (wheel,) = folder.glob("brimful_plan-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    for one in Path(np.__file__).parents[1].glob("numpy*"):
        (folder / "site" / one.name).symlink_to(one)
    return folder / "site"


@pytest.fixture(scope="module")
def alone(site: Path) -> Iterator[ModuleType]:
    """The package, beside brimful in one process."""
    sys.path.append(str(site))
    yield importlib.import_module("brimful_plan")
    sys.path.remove(str(site))


def run(site: Path, code: str) -> str:
    begin = f"import sys; sys.path.append({str(site)!r})\n"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", begin + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_needs_numpy_alone(site: Path) -> None:
    code = """
import json, numpy
before = set(sys.modules)
import brimful_plan
for name in brimful_plan.__all__:
    getattr(brimful_plan, name)
print(json.dumps([sorted({one.split(".")[0] for one in sys.modules if one not in before}), brimful_plan.__file__]))
"""
    modules, file = json.loads(run(site, code))
    assert {*modules} <= {"brimful_plan", "numpy", *sys.stdlib_module_names}
    assert Path(file).parent == site / "brimful_plan"
    assert (site / "brimful_plan" / "py.typed").exists()
    assert (site / "brimful_plan" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_blocks_of_its_page_run(site: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.S)
    plan = bf.TokenBudget(60).plan([50, 30, 20, 20, 30, 20])
    assert run(site, block) == "".join(f"{batch}\n" for batch in plan.batches)


POLICIES: dict[str, Callable[[Any], Any]] = {
    "samples": lambda package: package.FixedSize(2),
    "arrival order": lambda package: package.FixedSize(2, sort=False),
    "tokens": lambda package: package.TokenBudget(60),
    "cost": lambda package: package.CostBudget(package.AttentionCost(quadratic=0.1), 400),
    "static": lambda package: package.StaticShapes([16, 64], 128),
    "memory": lambda package: package.MemoryBudget(
        MemoryModel.fit([(1, 1), (1, 8), (4, 1), (4, 8)], [11, 18, 14, 42]), 400
    ),
    "multi": lambda package: package.MultiBudget(padded={"input_ids": 60}, max_samples=3),
}


def batches(policy: Any, **settings: Any) -> list[dict[str, Any]]:
    samples = [{"input_ids": [number] * length} for number, length in enumerate(LENGTHS)]
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}
        for batch in bf.from_sequence(samples, shuffle=False).batch(policy, **settings)
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_its_policies_make_the_batches_that_ours_make(alone: ModuleType, name: str) -> None:
    theirs, ours = POLICIES[name](alone), POLICIES[name](bf)
    assert type(theirs) is not type(ours)
    rounded: dict[str, Any] = {} if name in ("multi", "static") else {"pad_to_multiple_of": 4}
    for settings in ({}, {"drop_last": True}, {"window": 5}, rounded, {"overlong": "drop"}):
        assert batches(theirs, **settings) == batches(ours, **settings)
    assert repr(theirs.plan(LENGTHS)) == repr(ours.plan(LENGTHS))


def test_its_errors_are_as_ours(alone: ModuleType) -> None:
    assert batches(alone.TokenBudget(40), overlong="drop") == batches(bf.TokenBudget(40), overlong="drop")
    with pytest.raises(bf.DataError, match=r"50 tokens \(sequence, row 0\) cannot fit max_tokens=40"):
        batches(alone.TokenBudget(40))
    steps = batches(alone.TokenBudget(120), micro_batches=2)
    assert steps == batches(bf.TokenBudget(120), micro_batches=2)


def test_a_state_goes_on_with_its_policies(alone: ModuleType) -> None:
    samples = [{"input_ids": [number] * length} for number, length in enumerate(LENGTHS)]
    ours, theirs = (bf.from_sequence(samples).batch(package.TokenBudget(60)) for package in (bf, alone))
    with ours.iter() as items:
        next(items)
        state = items.state_dict()
        rest = [batch["input_ids"].tolist() for batch in items]
    assert [batch["input_ids"].tolist() for batch in theirs.iter(state)] == rest
