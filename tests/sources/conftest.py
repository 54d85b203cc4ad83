"""What tests of sources have in common."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are read by the 256 KB at most, so that shards of 1 MB are read in several pieces."""
    monkeypatch.setattr("brimful.sources.forward.MOST_BUFFERS", 1)
