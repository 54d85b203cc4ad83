"""A step that has seen every shape: as many compilations as there are shapes, and none afterwards."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import brimful as bf
from brimful.plan.errors import warn_once
from tests.test_wikitext import DATA, tokenized


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compilations() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def stepper() -> tuple[Callable[[Any], Any], list[tuple[int, ...]]]:
    """A compiled model's forward and backward, and the shapes that it was called with."""
    model = nn.Sequential(nn.Embedding(30_000, 4), nn.Linear(4, 4))
    compiled = torch.compile(model, dynamic=False, backend="eager")
    shapes: list[tuple[int, ...]] = []

    def step(batch: Any) -> None:
        shapes.append(tuple(batch["input_ids"].shape))
        hidden = compiled(batch["input_ids"])
        (hidden * batch["attention_mask"][..., None]).sum().backward()
        model.zero_grad(set_to_none=True)

    return step, shapes


def samples(count: int = 500) -> list[dict[str, Any]]:
    lengths = np.random.default_rng(0).integers(1, 100, count)
    return [{"input_ids": [1] * int(length), "labels": [2] * int(length), "text": "a"} for length in lengths]


def assert_compiled_once_a_shape(batches: bf.Batches, num_shapes: int) -> None:
    step, shapes = stepper()
    seconds = bf.warm_up(step, batches)
    assert list(seconds) == shapes
    assert len(shapes) == compilations() == num_shapes
    with batches.iter() as it:
        for batch in it:
            step(batch)
        assert it.stats.num_shapes <= num_shapes
    assert set(shapes[num_shapes:]) <= set(shapes[:num_shapes])
    assert compilations() == num_shapes


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_each_shape_is_compiled_once_and_then_none(sharded: bool, streamed: bool) -> None:
    data = bf.from_sequence(samples())
    if streamed:
        data = data.map_blocks(lambda block: block)
    batches = data.batch(bf.StaticShapes([16, 50, 80, 100], 1_000), window=200)
    if sharded and not streamed:
        batches = batches.shard(1, 2)
    assert_compiled_once_a_shape(batches.to_device("cpu"), 4)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no corpus at {DATA}; set BRIMFUL_TEST_DATA")
def test_an_epoch_of_wikitext_compiles_as_often_as_it_has_buckets() -> None:
    data = tokenized().drop("text").cache()
    buckets = bf.optimal_buckets([min(length, 512) for length in data.lengths()], 8)
    assert_compiled_once_a_shape(data.batch(bf.StaticShapes(buckets, 16_384), window=10_000), 8)


def test_of_data_without_an_end_that_are_fetched_one_by_one_the_shapes_of_a_window_are_seen() -> None:
    rows = samples(50)
    seen: list[tuple[int, ...]] = []
    for data in (bf.from_dataset(rows), bf.from_dataset(rows, repeat=True)):
        seen.clear()
        bf.warm_up(lambda batch: seen.append(tuple(batch["input_ids"].shape)), data.batch_by_tokens(400, window=50))
        assert len(set(seen)) > 2


def test_the_synthetic_batches_have_the_keys_and_types_of_real_ones() -> None:
    batches = (
        bf.from_sequence(samples(50)).batch(bf.StaticShapes([50, 100], 400), window=50).shard(0, 1).to_device("cpu")
    )
    first = next(iter(batches))
    seen: list[dict[str, Any]] = []
    bf.warm_up(seen.append, batches)
    assert [tuple(batch["input_ids"].shape) for batch in seen] == [(8, 50), (4, 100)]
    for batch in seen:
        rows, length = batch["input_ids"].shape
        assert list(batch) == list(first)
        for name, value in first.items():
            assert type(batch[name]) is type(value)
            if isinstance(value, torch.Tensor):
                assert (batch[name].dtype, batch[name].ndim) == (value.dtype, value.ndim)
        assert batch["attention_mask"].all()
        assert batch["lengths"].tolist() == [length] * rows
        assert batch["sample_weights"].tolist() == [1.0] * rows
        assert batch["labels"].eq(2).all()
        assert batch["text"] == ["a"] * rows


def test_a_policy_or_shapes_do_without_data() -> None:
    seen: list[Any] = []
    bf.warm_up(seen.append, bf.StaticShapes([16, 64], 64))
    assert [(list(batch), tuple(batch["labels"].shape)) for batch in seen] == [
        (["input_ids", "attention_mask", "labels"], (4, 16)),
        (["input_ids", "attention_mask", "labels"], (1, 64)),
    ]
    example = {"input_ids": torch.tensor([[0, 5, 6]], dtype=torch.int32), "attention_mask": torch.tensor([[0, 1, 1]])}
    bf.warm_up(seen.append, [(1, 2), (2, 5)], example=example)
    assert [batch["input_ids"].tolist() for batch in seen[2:]] == [[[5, 6, 5, 6, 5]] * 2, [[5, 6]]]
    assert seen[2]["input_ids"].dtype == torch.int32


def test_the_generators_are_as_before() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    bf.warm_up(lambda batch: torch.rand(100), bf.StaticShapes([4], 8))
    assert torch.equal(torch.rand(2), expected)


def test_static_buffers_are_those_of_the_real_batches() -> None:
    batches = bf.from_sequence(samples(50)).batch(bf.StaticShapes([50, 100], 400), window=50)
    sent = batches.to_device("cpu", static_buffers=True)
    warm: dict[Any, int] = {}
    bf.warm_up(lambda batch: warm.update({tuple(batch["input_ids"].shape): batch["input_ids"].data_ptr()}), sent)
    for batch in sent:
        assert warm[tuple(batch["input_ids"].shape)] == batch["input_ids"].data_ptr()


def test_packed_rows_have_one_shape() -> None:
    for isolation, before in (("raise", [1]), ("off", [])):  # a short batch first, to see how the step calls its model
        seen: list[Any] = []
        data = bf.from_sequence(samples(50)).pack(128, rows=2)
        assert list(bf.warm_up(seen.append, data, isolation=isolation)) == [(2, 128)]
        *short, last = (tuple(batch["input_ids"].shape) for batch in seen)
        assert ([rows for rows, _ in short], last) == (before, (2, 128))
        hooks = torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks
        assert not any(hooks), "they would slow every module down"


def test_a_compiled_model_of_packed_rows_is_checked_without_a_warning_of_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here warnings are errors: one would be an error of the step, and nothing checked."""
    compiled = torch.compile(nn.Sequential(nn.Embedding(30_000, 4), nn.Linear(4, 4)), backend="eager")
    data = bf.from_sequence(samples(50)).pack(128, rows=2)
    assert list(bf.warm_up(lambda batch: compiled(batch["input_ids"]).sum().backward(), data)) == [(2, 128)]
    assert "does not take a short batch" not in caplog.text


def test_without_buckets_it_says_how_many_shapes_to_expect() -> None:
    batches = bf.from_sequence(samples(2_000)).batch_by_tokens(400, window=100)
    shapes = batches.shapes()
    assert sum(shapes.values()) == len(batches)
    assert list(shapes.values()) == sorted(shapes.values(), reverse=True)
    assert set(shapes) == {tuple(batch["input_ids"].shape) for batch in batches}
    with pytest.raises(
        ValueError,
        match=rf"^an epoch of these {len(batches)} batches has {len(shapes)} shapes to expect, too many to warm up",
    ):
        bf.warm_up(lambda batch: None, batches)
    few = bf.from_sequence(samples(8)).batch_by_tokens(400, window=8)
    assert set(bf.warm_up(lambda batch: None, few)) == set(few.shapes())
    streamed = bf.from_sequence(samples()).map(dict).batch_by_tokens(400, window=500)
    with pytest.raises(
        ValueError, match=r"^of streamed batches without static shapes nobody knows the shapes before they come; "
    ):
        bf.warm_up(lambda batch: None, streamed)


def test_more_shapes_than_the_compiler_takes_are_said_before(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="brimful"):
        bf.warm_up(lambda batch: None, bf.StaticShapes(range(1, 10), 9))
    assert (
        "9 shapes to warm up, and torch.compile runs eagerly what it would have to compile more than 8 times"
        in caplog.text
    )
    assert "recompile_limit = 9 first" in caplog.text


@pytest.mark.parametrize("shapes", [[(1,)], [5]])
def test_shapes_have_rows_and_tokens(shapes: Any) -> None:
    with pytest.raises(ValueError, match=r"^shapes are \(rows, tokens\) \(got "):
        bf.warm_up(print, shapes)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_that_are_padded_on_the_device_are_warmed_up_as_such(side: Any) -> None:
    batches = bf.from_sequence(samples(80)).batch(bf.StaticShapes([50, 100], 400), window=50, pad_side=side)
    assert_compiled_once_a_shape(batches.to_device("cpu", pad_on_device=True), 2)


def test_an_example_goes_by_its_own_keys_and_must_have_tokens() -> None:
    seen: list[Any] = []
    example = {"tokens": torch.ones(2, 6), "more": torch.ones(2, 6, 3), "score": torch.ones(2)}
    bf.warm_up(seen.append, [(4, 8), (4, 8), (1, 3)], example=example)
    assert [[tuple(one.shape) for one in batch.values()] for batch in seen] == [
        [(4, 8), (4, 8, 3), (4,)],
        [(1, 3), (1, 3, 3), (1,)],
    ]
    for wrong in ({"input_ids": torch.ones(3)}, {"input_ids": [[1]]}, {"input_ids": torch.ones(0, 3)}, {}):
        with pytest.raises(
            ValueError, match=r"^example must be a batch with a tensor \(rows, tokens\), both at least 1 \(got "
        ):
            bf.warm_up(print, [(2, 8)], example=wrong)


def test_nothing_to_warm_up_with_is_said() -> None:
    empty = bf.from_sequence(samples(1)).take(0).batch(bf.StaticShapes([100], 400), window=5)
    with pytest.raises(ValueError, match=r"^there is no batch to warm up with: the data are empty"):
        bf.warm_up(print, empty)
    nested = bf.from_sequence(samples(5)).batch_by_tokens(400, window=5, layout="nested")
    with pytest.raises(ValueError, match=r"^warm_up cannot know the shapes of layout='nested' before they come"):
        bf.warm_up(print, nested)


def test_a_loader_of_batches_is_warmed_up_as_they_are_and_others_are_asked_for_shapes() -> None:
    batches = bf.from_sequence(samples(50)).batch(bf.StaticShapes([50, 100], 400), window=50)
    assert list(bf.warm_up(lambda batch: None, batches.loader())) == [(8, 50), (4, 100)]
    message = r"^warm_up takes StaticShapes, Batches or shapes \(got a {}\); of another policy, or of a loader: warm_up\(step, \["
    wrong: Any
    for wrong in (bf.TokenBudget(400), bf.AsyncLoader(batches.loader(), "cpu")):
        with pytest.raises(TypeError, match=message.format(type(wrong).__name__)):
            bf.warm_up(print, wrong)


def test_a_column_of_its_own_length_is_told_to_vary(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"input_ids": [1], "labels_of_each": [1, 2]}] * 3
    for alike in (rows, [{"input_ids": [1, 1], "labels_of_each": [0.0, 1.0]}] * 40):
        for batch in bf.from_sequence(alike).batch(bf.StaticShapes([4], 8), window=8):
            assert batch["labels_of_each"].shape[1] == 2
    assert not caplog.text
    data = bf.from_sequence([*rows, {"input_ids": [1], "labels_of_each": [1]}])
    next(iter(data.batch(bf.StaticShapes([4], 8), window=8)))
    assert (
        "static shapes are those of the tokens; labels_of_each is padded to its own longest in each batch"
        in caplog.text
    )


BUCKETS = [16, 50, 80, 100]


def to_bucket(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of the planned shape."""
    width = min(bucket for bucket in BUCKETS if bucket >= max(len(one["input_ids"]) for one in samples))
    full = samples + samples[:1] * (1_000 // width - len(samples))
    ids = torch.zeros(len(full), width, dtype=torch.int64)
    for row, one in zip(ids, full, strict=True):
        row[: len(one["input_ids"])] = torch.as_tensor(one["input_ids"])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def to_longest(samples: list[dict[str, Any]], rows: int = 0) -> tuple[torch.Tensor, int]:
    """What most have: no dict, and as long as the longest sample."""
    rest = [torch.ones(1)] * (rows - len(samples))
    frames = [torch.ones(len(one["input_ids"])) for one in samples]
    return nn.utils.rnn.pad_sequence(frames + rest, batch_first=True), len(samples)


@pytest.mark.parametrize("kind", ["dataset", "sequence", "stream", "shards", "ranks", "micro batches"])
def test_a_collate_fn_that_keeps_to_the_shapes_is_run_on_samples_of_each(kind: str, tmp_path: Path) -> None:
    rows = samples()
    policy, settings = bf.StaticShapes(BUCKETS, 1_000), {"window": 200, "collate_fn": to_bucket}
    if kind == "dataset":
        lengths = [len(one["input_ids"]) for one in rows]
        batches = bf.from_dataset(rows, lengths=lengths, collate_fn=to_bucket, shuffle=True).batch(policy, window=200)
    elif kind == "stream":
        batches = bf.from_sequence(rows).map(dict).batch(policy, **settings)
    elif kind == "shards":
        for shard in range(2):
            (tmp_path / f"{shard}.jsonl").write_text("\n".join(map(json.dumps, rows[shard::2])))
        batches = bf.from_files(str(tmp_path / "*.jsonl"), streams=2).batch(policy, **settings).shard(1, 2)
    elif kind == "micro batches":
        batches = bf.from_sequence(rows).batch(bf.StaticShapes(BUCKETS, 2_000), micro_batches=2, **settings)
    else:
        batches = bf.from_sequence(rows).batch(policy, **settings)
        batches = batches.shard(1, 2) if kind == "ranks" else batches
    batches = batches.shard(0, 1) if kind == "shards" else batches
    assert_compiled_once_a_shape(batches.map(dict).to_device("cpu", static_buffers=True), 4)


@pytest.mark.parametrize("ranks", [None, (0, 1), (1, 2)])
def test_no_more_than_a_window_of_a_stream_is_read(ranks: Any) -> None:
    read = 0

    class Rows:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            nonlocal read
            for sample in samples(1_000) * 40:
                read += 1
                yield sample

    batches = bf.from_iterable(Rows()).batch(bf.StaticShapes(BUCKETS, 1_000), window=1_000, collate_fn=to_bucket)
    alone = batches if ranks is None else batches.shard(*ranks)
    assert len(bf.warm_up(lambda batch: None, alone)) == 4
    assert 0 < read < 10_000


@pytest.mark.parametrize("source", [bf.from_sequence, bf.from_iterable])
def test_warming_up_for_data_without_an_end_comes_to_its_end(source: Any) -> None:
    mixed = bf.interleave_datasets([source(samples(), repeat=True), source(samples(), repeat=True)])
    batches = mixed.batch(bf.StaticShapes(BUCKETS, 1_000), window=300, collate_fn=to_bucket)
    for some in (batches, batches.shard(0, 1), batches.shard(0, 1).take(9)):
        assert len(bf.warm_up(lambda batch: None, some)) == 4


def test_a_collate_fn_that_makes_several_shapes_of_one_is_refused() -> None:
    batches = bf.from_sequence(samples(), shuffle=True).batch(bf.StaticShapes([100], 400), collate_fn=to_longest)
    steps: list[Any] = []
    with pytest.raises(
        ValueError,
        match=r"^collate_fn=to_longest makes tensors of \(\d, \d+\) and \(4, \d+\) of two batches that are both planned as "
        r"\(rows, tokens\) \(4, 100\)\. Have it pad to the smallest bucket that holds its longest sample, and fill up the rows",
    ):
        bf.warm_up(steps.append, batches)
    assert steps == []
    bf.warm_up(steps.append, batches.map(lambda batch: torch.zeros(4, 100)))  # as later stages hand it on
    assert len(steps) == 1


def test_a_collate_fn_may_give_its_tensors_any_name() -> None:
    seen: list[tuple[int, ...]] = []
    batches = bf.from_sequence(samples()).batch(bf.StaticShapes(BUCKETS, 1_000), collate_fn=to_bucket)
    renamed = batches.map(lambda batch: {"frames": batch["input_ids"]})
    assert list(bf.warm_up(lambda batch: seen.append(tuple(batch["frames"].shape)), renamed)) == seen
    assert set(seen) == set(bf.StaticShapes(BUCKETS, 1_000).shapes)


def test_too_few_rows_of_a_collate_fn_are_seen_and_none_are_missing_where_rows_are_planned() -> None:
    rows = [{"input_ids": [1] * 10}] * 9
    data = bf.from_sequence(rows)
    batches = data.batch(bf.StaticShapes([10], 40), collate_fn=to_longest)
    with pytest.raises(ValueError, match=r"makes tensors of \(1, 10\) and \(4, 10\) of two batches"):
        bf.warm_up(lambda batch: None, batches)
    filled = data.batch(bf.StaticShapes([10], 40), collate_fn=partial(to_longest, rows=4))
    assert list(bf.warm_up(lambda batch: None, filled)) == [(4, 10)]
    assert list(bf.warm_up(lambda batch: None, data.batch(4, collate_fn=to_longest))) == [(4, 10), (1, 10)]


def test_a_shape_that_a_collate_fn_gets_no_samples_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    data = bf.from_sequence([{"input_ids": [1] * 10}] * 9).map(dict)
    assert list(bf.warm_up(lambda batch: None, data.batch(bf.StaticShapes([5, 10], 10), collate_fn=to_longest)))
    assert "warm_up: no batch is planned with the shapes [(2, 5)], so collate_fn makes none" in caplog.text


def test_shapes_say_that_a_collate_fn_makes_its_own(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    data = bf.from_sequence([{"input_ids": [1] * 10}] * 9)
    assert data.batch(4).shapes() == {(4, 10): 2, (1, 10): 1}
    assert caplog.messages == []
    for _ in range(2):
        assert data.batch(4, collate_fn=to_longest).shapes() == {(4, 10): 2, (1, 10): 1}
    (message,) = caplog.messages
    assert message == f"{PLANNED}. warm_up checks that"


PLANNED = "shapes() counts the shapes as they are planned, and does not see what collate_fn makes of the samples"
PAD = ": have it pad to the bucket, or multiple, that holds its longest sample"
ADVICE = {
    "rows that vary": (lambda data: data.batch(4, buckets=[10, 20], collate_fn=list), PAD),
    "multiples": (lambda data: data.batch(4, pad_to_multiple_of=8, collate_fn=list), PAD),
    "StaticShapes": (
        lambda data: data.batch(bf.StaticShapes([10], 40), collate_fn=list),
        f"{PAD}, and fill up the rows of StaticShapes",
    ),
    "packed rows": (lambda data: data.pack(40, rows=2, collate_fn=list), ""),
}


@pytest.mark.parametrize(("batches", "advice"), ADVICE.values(), ids=ADVICE)
def test_what_a_collate_fn_is_to_do_follows_from_how_batches_are_planned(
    batches: Callable[[bf.Dataset], bf.Batches], advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    assert batches(bf.from_sequence([{"input_ids": [1] * 10}] * 9)).shapes()
    assert caplog.messages == [f"{PLANNED}{advice}. warm_up checks that"]


def test_a_mixture_that_never_ends_has_no_shapes_to_count() -> None:
    one, other = (bf.from_sequence([{"input_ids": [1] * 5}] * 10, repeat=True) for _ in range(2))
    mixed = bf.interleave_datasets([one, other]).batch_by_tokens(50)
    for call in (mixed.shapes, lambda: bf.warm_up(print, mixed)):
        with pytest.raises(TypeError, match=r"a mixture of repeating data has no epochs\. Call take\(n\) first"):
            call()
    assert mixed.take(3).shapes() == {(10, 5): 3}
    assert one.batch_by_tokens(50).shapes() == {(10, 5): 1}
