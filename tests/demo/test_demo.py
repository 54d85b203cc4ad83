"""`brimful demo`: once, small, as it is run without a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from brimful.console import stdout
from brimful.demo.demo import _verdict
from brimful.demo.training import Step
from tests.cli.commands import refusal, start


def test_demo_shows_that_batches_after_a_kill_are_identical(tmp_path: Path) -> None:
    process = start("demo", "--steps", 8, "--megabytes", 0.5, env=os.environ | {"TMPDIR": str(tmp_path)})
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert "exit code -9" in output
    assert re.search(r"batches compared +9: of steps 1-5 until the kill, 5-8 after", output)
    assert "IDENTICAL" in output
    random, brimful = (float(share) for share in re.findall(r"(\d+\.\d)%", output))
    assert 2 * brimful < random
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)\n", output)]
    assert losses[7] < losses[0]
    last = re.search(r"last loss +unbroken (\d\.\d+), killed and resumed (\d\.\d+)\n", output)
    assert last is not None
    assert {*map(float, last.groups())} == {losses[7]} == {losses[-1]}, "it is the last one of each list"
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80
    assert list(tmp_path.glob("brimful*")) == []


UNBROKEN = [Step(number, f"digest {number}", 1.0) for number in range(1, 7)]


@pytest.mark.parametrize(
    ("killed", "resumed", "same"),
    [
        (UNBROKEN[:4], UNBROKEN[3:], True),
        (UNBROKEN[:4], UNBROKEN[4:], False),
        (UNBROKEN[:4], UNBROKEN[3:5], False),
        (UNBROKEN[:3], UNBROKEN[3:], False),
        (UNBROKEN[:4], [*UNBROKEN[3:5], Step(6, "another digest", 1.0)], False),
    ],
    ids=["identical", "one left out", "end missing", "one never written", "one different"],
)
def test_verdict(killed: list[Step], resumed: list[Step], same: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert _verdict(stdout(), UNBROKEN, killed, resumed, 3, 4, 1) is same
    assert ("IDENTICAL" if same else "DIFFERENT") in capsys.readouterr().out


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    assert f"the folder {tmp_path} is not empty" in refusal("demo", "--folder", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_steps_that_cannot_be() -> None:
    assert "--steps must be at least 4 steps (got 3)" in refusal("demo", "--steps", 3)
