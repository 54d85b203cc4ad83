from __future__ import annotations

from typing import Any

import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed


@pytest.mark.parametrize("kind", [letters, streamed])
def test_the_whole_chain_runs_again(kind: Any) -> None:
    data = kind("abc", repeat=True).filter(lambda sample: sample["letter"] != "b")
    assert spelled(data.take(5)) == "acaca"
    batches = data.batch(2).take(3)
    assert [batch["letter"] for batch in batches] == [["a", "c"]] * 3


@pytest.mark.parametrize("kind", [letters, streamed])
def test_an_epoch_without_a_sample_ends_the_stream_with_a_warning(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert list(kind("", repeat=True)) == []
    assert list(kind("abc", repeat=True).filter(lambda sample: False).batch(2)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "repeat: epoch 0 has no sample; the stream ends here"
    ] * 2


def test_resume_is_exact_over_the_ends_of_epochs() -> None:
    assert_exact_resume(lambda: letters("abc", repeat=True).shuffle(2).take(10))
    assert_exact_resume(lambda: bf.from_iterable(["a"], repeat=True).take(3))
