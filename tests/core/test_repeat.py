from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful.core.facts import Facts, following
from brimful.core.repeat import repeated
from brimful.core.run import Run
from brimful.core.stage import Stage, State
from brimful.testing import assert_exact_resume
from tests.samples import letters, spelled, streamed
from tests.shards import write


@pytest.mark.parametrize("kind", [letters, streamed])
def test_the_whole_chain_runs_again(kind: Any) -> None:
    data = kind("abc", repeat=True).filter(lambda sample: sample["letter"] != "b")
    assert spelled(data.take(5)) == "acaca"
    batches = data.batch(2).take(3)
    assert [batch["letter"] for batch in batches] == [["a", "c"]] * 3


@pytest.mark.parametrize("kind", [letters, streamed])
def test_the_stream_goes_on_after_an_epoch_without_a_sample(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    def seldom(sample: dict[str, Any], rng: Any) -> bool:
        return bool(rng.random() < 0.1)

    data = kind("ab", repeat=True).stream().filter(seldom, seed=1)
    for rows in (data, data.shuffle(2), data.shuffle(2).batch(1)):
        assert len(list(rows.take(40))) == 40
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all("epochs of from_" in line and "went by without a sample; reading goes on" in line for line in said)


def test_resume_is_exact_over_the_ends_of_epochs() -> None:
    assert_exact_resume(lambda: letters("abc", repeat=True).shuffle(2).take(10))
    assert_exact_resume(lambda: bf.from_iterable(["a"], repeat=True).take(3))


# -- over the seams of epochs ------------------------------------------------------------------------------------------------


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"input_ids": [number] * (1 + number % 4), "labels": [number] * (1 + number % 4)} for number in range(count)
    ]


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [2 * token for token in sample["input_ids"]]}


def noisy(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"input_ids": [int(rng.integers(1 << 40))] * len(sample["input_ids"])}


SOURCES: dict[str, Callable[[], bf.Dataset]] = {
    "indexed": lambda: bf.from_sequence(rows(10), repeat=True),
    "indexed, shuffled": lambda: bf.from_sequence(rows(10), repeat=True, shuffle=True),
    "streamed": lambda: bf.from_iterable(rows(10), repeat=True),
    "streamed, shuffled": lambda: bf.from_iterable(rows(10), repeat=True).shuffle(4),
    "drawn at random": lambda: bf.from_sequence(rows(10), repeat=True).map(noisy, seed=3),
    "mapped": lambda: (
        bf.from_iterable(rows(10), repeat=True).map(doubled).filter(lambda sample: sample["input_ids"][0] != 4)
    ),
}


def tokens_of(data: Iterable[Any], count: int) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in islice(data, count)]


@pytest.mark.parametrize("name", SOURCES)
def test_batches_in_arrival_order_flow_over_the_seams_of_epochs(name: str) -> None:
    data = SOURCES[name]()
    expected = tokens_of(data, 56)
    others: list[Any] = [
        data.batch(8),
        data.batch(8, drop_last=True),
        data.batch(8).map(lambda batch: batch).prefetch(2),
        data.batch(8).to_device("cpu"),
        data.batch(8).take(7),
        data.batch(32, micro_batches=4),
        data.batch(8).loader(steps_per_epoch=7),
        (batch for _, batch in data.batch(8).enumerate()),
    ]
    for batches in others:
        found = list(islice(batches, 7))
        assert [len(batch["lengths"]) for batch in found] == [8] * 7
        masks = (batch["attention_mask"].bool() for batch in found)
        ids = [row[mask].tolist() for batch, seen in zip(found, masks) for row, mask in zip(batch["input_ids"], seen)]
        assert ids == expected
    assert len(data.batch(8).take(7)) == 7


@pytest.mark.parametrize("name", SOURCES)
def test_chunks_flow_over_the_seams_of_epochs(name: str) -> None:
    data = SOURCES[name]()
    data = data.select("input_ids")
    flat = [token for row in tokens_of(data, 80) for token in row]
    for chunks in (data.concat_chunk(7), data.concat_chunk(7).map(dict), data.concat_chunk(7).take(20)):
        assert tokens_of(chunks, 20) == [flat[first : first + 7] for first in range(0, 140, 7)]
    longer = tokens_of(data.concat_chunk(64), 2)
    assert longer[0] + longer[1] == flat[:128], "a chunk may be longer than the data"
    batches = list(islice(data.concat_chunk(7).batch(4), 5))
    assert torch.cat([batch["input_ids"] for batch in batches]).tolist() == tokens_of(data.concat_chunk(7), 20)
    packs = tokens_of(data.pack_chunk(9), 12)
    joined = [token for pack in packs for token in pack]
    assert joined == flat[: len(joined)]
    for one, later in pairwise(packs):
        fits = next(run for run, _ in enumerate(later, 1) if run == len(later) or later[run] != later[0])
        assert len(one) + fits > 9 or one[-1] == later[0], "the next sample did not fit"


@pytest.mark.parametrize("name", ["indexed, shuffled", "streamed"])
def test_what_flows_resumes_exactly(name: str) -> None:
    for way in ("batch", "concat_chunk", "pack_chunk"):
        assert_exact_resume(lambda: getattr(SOURCES[name]().select("input_ids"), way)(8), max_items=8, max_resumes=4)  # noqa: B023


@pytest.mark.parametrize("name", SOURCES)
def test_every_window_above_concat_chunk_flows_over_the_seams_and_loses_no_token(name: str) -> None:
    data = SOURCES[name]().select("input_ids").concat_chunk(7)
    whole = tokens_of(data, 30)
    for size in (1, 4, 10):
        shuffled = tokens_of(data.shuffle(size), 30)
        for first in range(0, 30 - size + 1, size):
            assert sorted(shuffled[first : first + size]) == sorted(whole[first : first + size])
    ways: list[bf.Batches] = [
        data.batch(5, window=10),
        data.batch_by_tokens(35, window=10),
        data.pack(7, rows=2, window=10),
        data.shuffle(1).batch(5),
        data.pack_chunk(7).batch_by_tokens(35, window=10),
    ]
    for batches in ways:
        for given in (batches, batches.loader(steps_per_epoch=50), batches.map(dict).prefetch(2)):
            found: list[list[int]] = []
            for batch in given:
                found += batch["input_ids"].reshape(-1, 7).tolist()
                if len(found) >= 30:
                    break
            for first in range(0, 30, 10):
                assert sorted(found[first : first + 10]) == sorted(whole[first : first + 10])


def test_an_epoch_may_be_shorter_than_a_chunk() -> None:
    for data in (bf.from_sequence(rows(3), repeat=True), bf.from_iterable(rows(3), repeat=True)):  # 6 tokens
        chunks = data.select("input_ids").concat_chunk(32)
        assert sorted(tokens_of(chunks.shuffle(5), 5)) == sorted(tokens_of(chunks, 5))
        assert len(list(chunks.batch_by_tokens(96, window=6).take(4))) == 4


def test_what_follows_the_chunks_goes_on_over_the_seams() -> None:
    def total(carry: int, sample: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return carry + 1, {"count": carry}

    data = bf.from_iterable(rows(10), repeat=True).select("input_ids").concat_chunk(7)  # 3 chunks an epoch, and a tail
    assert [sample["count"] for sample in islice(data.scan(total, 0), 12)] == [*range(12)]
    assert (
        len(
            tokens_of(
                data.filter(lambda sample: True).sliding_window(9).map(lambda s: {"input_ids": s["input_ids"][0]}), 9
            )
        )
        == 9
    )
    for counted in (data.take(3), data.skip(1), data.stride(2, 0), data.enumerate()):
        assert counted.shuffle(2).peek(3)


@pytest.mark.parametrize("verb", ["take", "skip", "stride", "enumerate"])
def test_what_counts_the_samples_of_an_epoch_counts_them_anew_in_each(verb: str) -> None:
    arguments = {"take": (2,), "skip": (1,), "stride": (2, 0), "enumerate": ()}[verb]
    data = getattr(bf.from_iterable(rows(10)).select("input_ids").concat_chunk(7), verb)(*arguments)
    once = [batch["input_ids"].tolist() for batch in data.batch(2, window=4)]
    loader = data.batch(2, window=4).loader(steps_per_epoch=3 * len(once))
    assert sorted(batch["input_ids"].tolist() for batch in loader) == sorted(3 * once)


def test_a_loader_of_epochs_ends_them_and_counts_the_tail() -> None:
    for data in (bf.from_sequence(rows(10)), bf.from_iterable(rows(10))):
        loader = data.select("input_ids").concat_chunk(7).shuffle(2).batch(2).loader()
        for _ in range(2):
            assert sum(batch["input_ids"].numel() for batch in loader) == 21
            assert loader.stats is not None
            assert loader.stats.dropped_tokens == 2


STEPS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: SOURCES["streamed, shuffled"]().select("input_ids").concat_chunk(7).shuffle(4),
    "sort": lambda: SOURCES["indexed, shuffled"]().select("input_ids").concat_chunk(5).batch(3, window=6),
    "pack": lambda: SOURCES["mapped"]().select("input_ids").concat_chunk(4).pack(8, rows=2, window=5),
    "budget": lambda: SOURCES["drawn at random"]().select("input_ids").concat_chunk(4).batch_by_tokens(12, window=4),
    "steps": lambda: SOURCES["indexed"]().select("input_ids").concat_chunk(7).batch(4, window=4, micro_batches=2),
    "longer than an epoch": lambda: SOURCES["streamed"]().select("input_ids").concat_chunk(60).shuffle(3),
    "packs": lambda: SOURCES["streamed"]().select("input_ids").concat_chunk(6).pack_chunk(9).shuffle(3),
}


@pytest.mark.parametrize("name", STEPS)
def test_windows_that_flow_resume_exactly_at_every_item(name: str) -> None:
    assert_exact_resume(STEPS[name], max_items=24, max_resumes=24)


def test_a_loader_of_steps_resumes_exactly_over_the_seams() -> None:
    def made() -> Any:
        return STEPS["sort"]().loader(steps_per_epoch=5)

    loader = made()
    whole, states = [], []
    for _ in range(3):
        for batch in loader:
            whole.append(batch["input_ids"].tolist())
            states.append(loader.state_dict())
    for number, state in enumerate(states):
        rest = made()
        rest.load_state_dict(state)
        found = [batch["input_ids"].tolist() for _ in range(3) for batch in rest]
        assert found[: 15 - number - 1] == whole[number + 1 :][: len(found)]


def test_what_sorts_packs_or_shuffles_stays_inside_an_epoch() -> None:
    for data in (bf.from_sequence(rows(10), repeat=True), bf.from_iterable(rows(10), repeat=True)):
        for batches in (data.batch(8, window=64), data.batch_by_tokens(24, window=64), data.pack(8, window=64)):
            for found in (list(batches.plans(epoch)) for epoch in range(2)):
                assert sorted({number for batch in found for number in batch.numbers.tolist()}) == list(range(10))
        sizes = [len(batch["lengths"]) for batch in islice(data.batch(8, window=64), 8)]
        assert sorted(sizes) == [2] * 4 + [8] * 4
        packs = data.select("input_ids").pack_chunk(7)
        once = sorted(tokens_of(replace(packs, repeats=False), 20))
        shuffled = tokens_of(packs.shuffle(64), 2 * len(once))
        assert sorted(shuffled[: len(once)]) == sorted(shuffled[len(once) :]) == once


def test_epochs_stay_where_somebody_counts_them() -> None:
    for data in (bf.from_sequence(rows(10)), bf.from_iterable(rows(10))):
        loader = data.batch(8).loader()
        assert [[len(batch["lengths"]) for batch in loader] for _ in range(2)] == [[8, 2], [8, 2]]
        assert [len(batch) for batch in replace(data, repeats=True).batch(8).plans(3)] == [8, 2]
        assert len(tokens_of(data.select("input_ids").concat_chunk(7), 9)) == 3
    assert len(bf.from_sequence(rows(10)).batch(8)) == 2


def test_an_epoch_that_is_named_begins_what_flows() -> None:
    batches = SOURCES["indexed, shuffled"]().batch(4)
    later = next(iter(bf.from_sequence(rows(10), shuffle=True).batch(4).iter(epoch=3)))
    assert next(batches.iter(epoch=3))["input_ids"][:, 0].tolist() == later["input_ids"][:, 0].tolist()


@pytest.mark.parametrize("name", ["indexed", "indexed, shuffled"])
def test_ranks_share_out_what_flows_without_fillers(name: str) -> None:
    data = SOURCES[name]().batch(4)
    expected = [batch["input_ids"][:, 0].tolist() for batch in islice(data, 12)]
    for world_size in (2, 3, 4):
        ranks = [list(islice(data.shard(rank, world_size), 12 // world_size)) for rank in range(world_size)]
        steps = [*zip(*ranks)]
        assert [batch["input_ids"][:, 0].tolist() for step in steps for batch in step] == expected
        assert not any(batch["is_filler"] for step in steps for batch in step)
        for step in steps:
            labels = sum(int((batch["labels"] != -100).sum()) for batch in step)
            assert {int(batch["num_items_in_batch"]) for batch in step} == {labels}


def test_several_streams_keep_their_epochs(tmp_path: Path) -> None:
    """They end apart: the shorter ones would run ahead, and their samples come more often than others."""
    for name, count in (("a", 5), ("b", 11)):
        write(tmp_path / f"{name}.jsonl", rows(count))
    data = bf.from_files(str(tmp_path / "*.jsonl"), streams=2, repeat=True)
    found = list(islice(data.batch(4), 10))
    assert [len(batch["lengths"]) for batch in found] == [4, 4, 1, 4, 3] * 2


def test_a_stage_that_counts_the_samples_of_an_epoch_begins_again_also_above_what_is_carried() -> None:
    @dataclass(frozen=True)
    class Counted(Stage[Any]):
        upstream: Stage[Any]
        counts: bool

        def facts(self, *inputs: Facts) -> Facts:
            return following(self, *inputs, **{"carries": False} if self.counts else {})

        def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
            yield from self.upstream.items(at, run)

    carried = bf.from_sequence([[1, 2, 3]]).concat_chunk(2).stage
    assert repeated(Counted(carried, counts=False)) is not None
    assert repeated(Counted(carried, counts=True)) is None
