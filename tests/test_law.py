from __future__ import annotations
from typing import Any
import pytest
from hypothesis import given, settings, strategies as st, HealthCheck
from brimful.stream import Stage
from brimful.testing import assert_exact_resume
from tests import strategies as s

@pytest.mark.parametrize("cls", sorted(s.STAGES, key=lambda c: c.__name__), ids=lambda c: c.__name__)
@given(data=st.data(), rows=st.integers(1, 5), size=st.sampled_from([16, 64, 256, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_law_of_each_stage(cls: type[Stage[Any]], data: st.DataObject, rows: int, size: int) -> None:
    make = data.draw(s.alone(cls))
    with s.small(rows, size):
        assert_exact_resume(make, max_items=40, max_resumes=40)
