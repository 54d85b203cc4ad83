"""`brimful.report`: its numbers are those that iterating the loader gives, and it says what to use."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.report.compare import RECOMPILE_LIMIT, Report, Settings, compare
from brimful.report.document import to_html, to_json
from brimful.report.lengths import Lengths, count_tokens, read_lengths
from tests.effort import examples

LENGTHS = np.random.default_rng(0).lognormal(np.log(30), 0.8, 2_000).astype(int).clip(0, 200).tolist()
SAMPLES = [{"input_ids": [number % 1000] * length} for number, length in enumerate(LENGTHS)]
SMALL = {"max_tokens": 512, "batch_size": 8}


def named(report: Report, name: str, *, window: int | None = None) -> Any:
    return next(o for o in report.outcomes if o.name == name and window in (None, o.window))


# -- the numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_length", [None, 64], ids=["whole samples in rows", "split over rows"])
@pytest.mark.parametrize(
    ("source", "count"),  # a stream judges its windows by 1,024 rows, the report by all
    [(bf.from_sequence, 2_000), (bf.from_iterable, 1_000)],
    ids=["indexed", "streamed"],
)
def test_code_of_each_policy_gives_its_numbers(
    source: Callable[..., bf.Dataset], count: int, row_length: int | None
) -> None:
    samples = SAMPLES[:count]
    report = compare(LENGTHS[:count], Settings(**SMALL, row_length=row_length))
    assert len(report.outcomes) == (11 if count > 1_000 else 10)
    for outcome in report.outcomes:
        batches = eval(outcome.code, {"bf": bf, "dataset": source(samples), "samples": samples})
        with batches.iter() as it:
            for _ in it:
                pass
        found = (it.stats.padding, it.stats.batches, it.stats.num_shapes, it.stats.tokens)
        tokens = round(outcome.tokens_per_batch * outcome.batches)
        assert found == (outcome.padding, outcome.batches, outcome.shapes, tokens), outcome.name


def test_work_counts_slots_and_attention_within_what_attends() -> None:
    report = compare([6, 3], Settings(max_tokens=12, batch_size=2, row_length=9, hidden_size=1))
    assert named(report, "random, 2 a batch").work == 12 * (1 + 6 / 6)
    assert named(report, "2 optimal buckets").work == 12 * (1 + 6 / 6)
    packed = named(report, "packed rows of 9")
    assert packed.work == 9 + (6**2 + 3**2) / 6
    assert packed.cost == 1
    assert named(report, "token budget").cost == pytest.approx(24 / 16.5)


def test_optimal_buckets_are_never_worse_than_uniform_ones() -> None:
    report = compare(LENGTHS, Settings(**SMALL))
    for number in (8, 16):
        assert named(report, f"{number} optimal buckets").padding <= named(report, f"{number} uniform buckets").padding


def test_shapes_beyond_the_recompile_limit_are_marked() -> None:
    config = pytest.importorskip("torch._dynamo.config")
    assert getattr(config, "recompile_limit", RECOMPILE_LIMIT) == RECOMPILE_LIMIT  # PyTorch 2.6 has another name
    report = compare(LENGTHS, Settings(**SMALL))
    assert not named(report, "8 optimal buckets").too_many_shapes
    assert named(report, "16 optimal buckets").too_many_shapes


def test_auto_window_is_what_the_loader_resolves() -> None:
    outcome = next(o for o in compare(LENGTHS, Settings(**SMALL)).outcomes if o.name == "token budget" and o.auto)
    first = next(bf.from_sequence(SAMPLES).batch_by_tokens(512).plans())
    assert outcome.window == min(len(first.window), len(LENGTHS))


@examples(40)
@given(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5_000)), min_size=1, max_size=60))
def test_distributions_account_for_every_sample_and_slot(lengths: list[int]) -> None:
    report = compare(lengths, Settings(max_tokens=5_000, batch_size=4))
    edges = report.edges
    assert list(edges) == sorted(set(edges))
    assert edges[0] == 0
    assert edges[-1] >= max(lengths)
    assert len(edges) <= 33
    counts = [sum(low < max(length, 1) <= high for length in lengths) for low, high in pairwise(edges)]
    assert list(report.lengths.counts) == counts
    for outcome in report.outcomes:
        slots, tokens = np.array(outcome.slots_at), np.array(outcome.tokens_at)
        assert (slots >= tokens).all()
        assert tokens.sum() == sum(lengths)
        assert 1 - tokens.sum() / slots.sum() == outcome.padding
        assert outcome.cost >= 1


def test_samples_over_max_tokens_are_planned_as_if_cut_there() -> None:
    report, cut = compare([1, 700, 600], Settings(max_tokens=512)), compare([1, 512, 512], Settings(max_tokens=512))
    assert (report.lengths.over_max_tokens, report.lengths.uncut_longest, report.lengths.longest) == (2, 700, 512)
    assert report.outcomes == cut.outcomes
    assert "2 samples are longer than --max-tokens 512 (66.7 %; the longest has 700)" in to_html(report)
    assert "are longer than" not in to_html(cut)


def test_samples_are_cut_to_max_length_and_counted() -> None:
    report = compare([3, 10, 12], Settings(max_tokens=100, max_length=10))
    assert (report.lengths.longest, report.lengths.tokens, report.lengths.at_max_length) == (10, 23, 2)


# -- the advice --------------------------------------------------------------------------------------------------------


def test_advice_is_a_token_budget_where_lengths_differ() -> None:
    report = compare(LENGTHS, Settings(**SMALL))
    first, static, packed = report.advice
    budget, random = report.outcomes[first.policy], report.outcomes[0]
    assert first.code == "dataset.batch_by_tokens(512)"
    assert 0.001 < budget.padding < 0.01
    assert first.sentence == (
        f"Use batch_by_tokens(512): {budget.padding * 100:.2f} % padding, {random.work / budget.work:.1f} times less work "
        "than random batches of 8."
    )
    assert report.outcomes[static.policy] == named(report, "8 optimal buckets")
    assert static.sentence.startswith(
        "If you compile for static shapes, use StaticShapes(optimal_buckets(lengths, 8), 512)"
    )
    assert packed.code == "dataset.pack(200, rows=2)"
    assert named(report, "steps of 4 batches").code == (
        'dataset.batch_by_tokens(2_048, micro_batches=4, window="steps")'
    )


def test_how_much_of_the_variance_lies_between_steps_is_that_of_the_steps() -> None:
    report = compare(LENGTHS, Settings(**SMALL))
    batches = bf.from_sequence(SAMPLES).batch_by_tokens(512, shuffle_batches="stratified")
    outcome = next(one for one in report.outcomes if one.code == "dataset.batch_by_tokens(512)")
    planned = [batch.lengths for batch in batches.plans()]
    tokens = np.concatenate([np.repeat(lengths, lengths) for lengths in planned])
    for number, share in zip((1, 2, 4, 8), outcome.between, strict=True):
        steps = [np.concatenate(planned[first : first + number]) for first in range(0, len(planned), number)]
        means = np.concatenate([np.full(step.sum(), np.repeat(step, step).mean()) for step in steps])
        assert share == pytest.approx(means.var() / tokens.var())


def test_steps_of_one_length_are_told_of_and_of_random_batches_are_not() -> None:
    report = compare(LENGTHS, Settings(**SMALL))
    random, budget = report.outcomes[0], report.outcomes[report.advice[0].policy]
    assert random.between[0] < 0.4 < 0.9 < budget.between[0]
    assert named(report, "steps of 4 batches").between[2] < 0.15
    assert compare([7] * 50, Settings(**SMALL)).outcomes[0].between == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("count", "filled"), [(5, "1 batch of 512 tokens"), (100, "11 batches of 512 tokens"), (1_000, "")]
)
def test_too_few_batches_to_compare_are_told_of(count: int, filled: str) -> None:
    report = compare(LENGTHS[:count], Settings(**SMALL))
    assert (len(report.advice) == 1) == bool(filled)
    assert report.advice[0].code == "dataset.batch_by_tokens(512)"
    said = f"these samples fill {filled}, and policies are compared from 16 batches on. Report on more samples, or with"
    assert (said in to_html(report)) == bool(filled)


def test_windows_that_hold_all_samples_are_shown_once() -> None:
    for count, windows in ((100, {100}), (2_000, {1_000, named(compare(LENGTHS), "token budget").window, 2_000})):
        found = [one for one in compare(LENGTHS[:count]).outcomes if one.name == "token budget"]
        assert len({one.window for one in found}) == len(found)
        assert {one.window for one in found} <= windows


def test_advice_is_to_leave_equal_lengths_alone() -> None:
    advice = compare([60, 61] * 100, Settings(**SMALL)).advice[0]
    assert advice.code == "dataset.batch(8)"
    assert advice.sentence == (
        "Use batch(8): your samples are nearly equally long, so that random batches have only 0.82 % padding."
    )


# -- the document ------------------------------------------------------------------------------------------------------


def test_json_has_the_keys_that_are_documented() -> None:
    report = compare(LENGTHS, Settings(**SMALL), source="a.npy", more=True)
    document = json.loads(json.dumps(to_json(report)))
    keys = {name for part in (document, *document.values()) if isinstance(part, dict) for name in part}
    keys |= {name for part in ("policies", "advice") for entry in document[part] for name in entry}
    assert {name for name in keys if name not in (to_json.__doc__ or "")} == set()
    assert document["source"] == "a.npy"
    assert document["more"] is True
    assert document["settings"]["recompile_limit"] == RECOMPILE_LIMIT
    assert [entry["padding"] for entry in document["policies"]] == [o.padding for o in report.outcomes]
    assert document["policies"][document["advice"][0]["policy"]]["code"] == document["advice"][0]["code"]


def test_page_shows_names_as_text() -> None:
    page = to_html(compare([1, 2], source="<script>alert(1)</script>$x.npy"))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;$x.npy" in page


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_up_to_a_sample() -> None:
    dataset = bf.from_iterable(SAMPLES)
    calls: list[tuple[int, int]] = []
    everything = count_tokens(dataset, 0, counted=lambda samples, tokens: calls.append((samples, tokens)))
    assert everything.values.tolist() == LENGTHS
    assert not everything.more
    assert calls[-1] == (len(LENGTHS), sum(LENGTHS))
    some = count_tokens(dataset, 10)
    assert (some.values.tolist(), some.more) == (LENGTHS[:10], True)
    assert not count_tokens(dataset, len(LENGTHS)).more


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_lengths_are_read_from_numpy_and_parquet(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", np.array([5, 7], dtype))
    table = pa.table({"length": pa.array([1, 2], getattr(pa, dtype)()), "input_ids": [[1, 2, 3], []]})
    pq.write_table(table, tmp_path / "b.parquet")
    numpy, parquet = str(tmp_path / "a.npy"), str(tmp_path / "b.parquet")
    assert read_lengths([numpy, parquet], 0).values.tolist() == [5, 7, 1, 2]
    assert read_lengths([parquet], 0, column="input_ids").values.tolist() == [3, 0]
    some = read_lengths([str(tmp_path / "*"), "gone.npy"][:1], 3)
    assert (some.values.tolist(), some.more) == ([5, 7, 1], True)
    assert isinstance(some, Lengths)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "given_settings", "message"),
    [
        ([], {}, "there are no samples: a report needs at least one"),
        ([3, -1], {}, r"lengths must not be negative \(sample 1 has -1\)"),
        ([1.5], {}, r"lengths must be integers \(got float64\)"),
        ([[1, 2]], {}, r"a report takes one length a sample \(got shape \(1, 2\)\)"),
        (
            [1],
            {"max_tokens": 512, "max_length": 600},
            r"max_length must be at most max_tokens=512 \(got 600\): a sample of that length would fit no batch",
        ),
        ([1], {"max_tokens": 0}, r"max_tokens must be at least 1 token \(got 0\)"),
        ([1], {"batch_size": 0}, r"batch_size must be at least 1 sample \(got 0\)"),
        ([1], {"row_length": 0}, r"row_length must be at least 1 token \(got 0\)"),
        ([1], {"max_length": 0}, r"max_length must be at least 1 token \(got 0\)"),
        ([1], {"hidden_size": 0}, r"hidden_size must be at least 1 \(got 0\)"),
        ([1], {"compile_seconds": -1}, r"compile_seconds must be at least 0 seconds \(got -1\)"),
    ],
)
def test_comparison_refuses(lengths: list[Any], given_settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        compare(lengths, Settings(**given_settings))


def parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def numpy(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def raw(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda f: parquet(f / "a.parquet", x=[1], y=[2]),
            r"no column 'length' \(columns: x, y\); name the one that holds",
        ),
        (
            lambda f: parquet(f / "a.parquet", length=[1, None]),
            r"a.parquet: column 'length' has 1 nulls; filter them out",
        ),
        (lambda f: parquet(f / "a.parquet", length=["x"]), r"a.parquet: lengths must be integers \(got object\)"),
        (lambda f: numpy(f / "a.npy", np.array([2, -7])), r"a.npy: lengths must not be negative \(sample 1 has -7\)"),
        (
            lambda f: numpy(f / "a.npy", np.zeros((3, 2), int)),
            r"a.npy: lengths must have shape \(n,\) \(got \(3, 2\)\)",
        ),
        (lambda f: numpy(f / "a.npy", np.array([2.5])), r"a.npy: lengths must be integers \(got float64\)"),
        (lambda f: raw(f / "a.npy", b""), "a.npy: No data left in file"),
        (lambda f: raw(f / "a.npy", b"not numpy"), "a.npy: .*pickled"),
        (lambda f: raw(f / "a.parquet", b"not parquet"), "a.parquet: .*Parquet magic bytes not found"),
    ],
)
def test_files_of_lengths_are_refused(tmp_path: Path, write: Callable[[Path], str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_lengths([write(tmp_path)], 0)


def test_missing_files_are_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"^there is no file 'gone\.npy'$"):
        read_lengths(["gone.npy"], 0)
    with pytest.raises(FileNotFoundError, match=r"^no file matches 'gone-\*\.npy'$"):
        read_lengths(["gone-*.npy"], 0)
