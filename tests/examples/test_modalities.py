"""The examples of speech, of text with images, and of molecules, run as a user would: alone, and on two and four processes."""

from __future__ import annotations

import re

import pytest

from tests.forks import printed_by

LIMITS = {
    "speech.py": {"frames": 1_000},
    "vision_text.py": {"tokens": 400, "patches": 60},
    "molecules.py": {"nodes": 60, "edges": 130},
}


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", LIMITS)
def test_loss_and_gradients_of_batches_are_those_of_samples_one_by_one(name: str, world_size: int) -> None:
    counts = set()
    for text in printed_by(name, world_size):
        assert text.rstrip().endswith("loss and gradients as one by one")
        for unit, most in LIMITS[name].items():
            found = re.search(rf"\[([\d, ]*)\] {unit}", text)
            assert found is not None
            sizes = [int(one) for one in found[1].split(",")]
            assert max(sizes) <= most
            counts.add(len(sizes))
    assert len(counts) == 1, "each rank has as many batches"
