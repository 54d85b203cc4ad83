from __future__ import annotations

import pytest

import brimful as bf
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled


def test_the_whole_chain_runs_again() -> None:
    data = letters("abc", repeat=True).filter(lambda sample: sample["letter"] != "b")
    assert spelled(data.take(5)) == "acaca"
    batches = data.batch(2).take(3)
    assert [batch["letter"] for batch in batches] == [["a", "c"]] * 3


def test_an_epoch_without_a_sample_ends_the_stream_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert list(letters("", repeat=True)) == []
    assert list(letters("abc", repeat=True).filter(lambda sample: False).batch(2)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "repeat: epoch 0 has no sample; the stream ends here"
    ] * 2


def test_resume_is_exact_over_the_ends_of_epochs() -> None:
    assert_exact_resume(lambda: letters("abc", repeat=True).shuffle(2).take(10))
    assert_exact_resume(lambda: bf.from_iterable(["a"], repeat=True).take(3))
