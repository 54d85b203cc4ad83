"""What is left out is counted once: before a state was saved or after it, whatever was read ahead, and whatever is read again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.iterator import ResumableIterator
from brimful.core.stage import Stage
from brimful.rows import pace
from brimful.rows.functions import Filter
from tests import strategies as draw
from tests.effort import examples

sizes = st.sampled_from([16, 64, 256, 1 << 20])


@pytest.fixture(scope="module", autouse=True)
def functions_take_no_time() -> Iterator[None]:
    """Counts belong to blocks: where time ends these elsewhere after a resume, what a part of one left out is not counted."""
    with patch.object(pace, "now", lambda: 0.0):
        yield


def counts_of(it: ResumableIterator[Any]) -> Counter[str]:
    return Counter(it.stats._counters.counts())


def assert_counted_once(make: draw.Make, max_items: int = 25, max_resumes: int = 6) -> Counter[str]:
    """What was counted up to item k, and what a resume counts from there on, are together what a run counts, for every k."""
    with ResumableIterator(make(), None, ()) as it:
        states, counts = [json.dumps(it.state_dict())], [counts_of(it)]
        for _ in islice(it, max_items):
            states.append(json.dumps(it.state_dict()))
            counts.append(counts_of(it))
        ended, whole = len(states) <= max_items, counts_of(it)
    for k in np.unique(np.linspace(0, len(states) - 1, max_resumes).astype(int)).tolist():
        if k:
            with ResumableIterator(make(), json.loads(states[k]), ()) as rest:
                for _ in islice(rest, max_items if ended else len(states) - 1 - k):
                    pass
                assert counts[k] + counts_of(rest) == whole, (k, counts[k], counts_of(rest), whole)
    return whole


@st.composite
def bad_files(drawn: st.DrawFn) -> draw.Make:
    """Shards of JSON lines with bad ones anywhere, which are skipped."""
    urls, number = [], 0
    for lengths in drawn(st.lists(draw.lengths, min_size=1, max_size=4)):
        lines = draw.json_lines(draw.samples_of(lengths, number)).splitlines(keepends=True)
        number += len(lengths)
        for place in drawn(st.lists(st.integers(0, len(lines)), max_size=4)):
            lines.insert(place, b"{bad\n")
        urls.append(draw.shard(b"".join(lines), drawn(st.sampled_from([".jsonl", ".jsonl.gz"]))))
    active, shuffle = drawn(st.integers(1, 3)), drawn(st.booleans())
    return lambda: (
        bf.from_files(
            urls, schema=draw.schema(draw.pa.int64()), n_active_shards=active, shuffle_shards=shuffle, on_error="skip"
        ).stage
    )


@pytest.mark.parametrize(
    "cls", sorted({*draw.ROWS, *draw.SAMPLES, *draw.WINDOWS} - {draw.Planned}, key=draw.name), ids=draw.name
)
@given(data=st.data(), rows=st.integers(1, 5), size=sizes)
@examples(15)
def test_each_stage_counts_what_is_below_it_once(
    cls: type[Stage[Any]], data: st.DataObject, rows: int, size: int
) -> None:
    link = data.draw((draw.ROWS | draw.SAMPLES | draw.WINDOWS)[cls])
    refusing = data.draw(draw.keyed(Filter, [], draw.coin))
    make = draw.chain(data.draw(bad_files()), *([refusing] if data.draw(st.booleans()) else []), link)
    with draw.small(rows, size):
        assert_counted_once(make)


plans = st.builds(draw.chain, draw.windows(), draw.PLANS[draw.PlannedWindows])
batches = st.builds(draw.chain, plans, draw.BATCHES[draw.Batched])
of_ranks = st.builds(draw.chain, plans, draw.BATCHES[draw.Shared], draw.STEPS[draw.MicroBatches])
chains = st.one_of(draw.rows(), draw.windows(), batches, of_ranks, draw.in_streams())


@given(make=chains, rows=st.integers(1, 5), size=sizes)
@examples(60)
def test_random_chains_count_once(make: draw.Make, rows: int, size: int) -> None:
    with draw.small(rows, size):
        assert_counted_once(make)


@given(data=st.data(), rows=st.integers(1, 5), size=sizes)
@examples(60)
def test_random_chains_over_bad_files_count_once(data: st.DataObject, rows: int, size: int) -> None:
    makes = data.draw(
        st.lists(
            st.builds(draw.chain, bad_files(), draw.keyed(Filter, [draw.is_odd], draw.coin)), min_size=1, max_size=3
        )
    )
    joined = draw.joined(makes, data.draw(st.one_of(*draw.SEVERAL.values())))
    links = data.draw(draw.row_links(frozenset({*draw.CUTTERS, draw.CausalLabels, draw.Pad}), frozenset({draw.Zip})))
    above = [data.draw(draw.WINDOWS[draw.Buffered]), data.draw(draw.PLANS[draw.PlannedWindows])]
    above += [data.draw(st.one_of(*draw.BATCHES.values()))]
    above += [data.draw(draw.STEPS[draw.MicroBatches])] if data.draw(st.booleans()) else []
    with draw.small(rows, size):
        assert_counted_once(draw.chain(joined, *links, *(above if data.draw(st.booleans()) else [])))
