"""Data-parallel processes that agree: real ones, over gloo, that read streams of very unequal length, or learn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brimful as bf
from tests import ranks_child
from tests import strategies as draw
from tests.forks import Launch, forks_of

ROOT = Path(__file__).parents[2]
COUNTS = (3, 150, 0, 40, 0, 21)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = iter(draw.samples_of([1 + number * 7 % 29 for number in range(sum(COUNTS))]))
    for shard, count in enumerate(COUNTS):
        (tmp_path / f"shard-{shard}.jsonl").write_bytes(draw.json_lines([next(samples) for _ in range(count)]))
    return tmp_path


@pytest.fixture(scope="module")
def ranks_of() -> Iterator[Launch]:
    with forks_of("tests.ranks_child") as launch:
        yield launch


def whole(folder: Path, epoch: int = 0) -> list[list[int]]:
    return [batch["id"].tolist() for batch in ranks_child.data(folder).iter(epoch=epoch)]


def in_turn(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The batches of all ranks in their global order, without fillers."""
    return [batch for step in zip(*ranks, strict=True) for batch in step if batch]


def test_ranks_with_unequal_streams_finish_under_every_rule(ranks_of: Any, folder: Path) -> None:
    ranks = ranks_of(2, "validate", folder)
    for epoch in range(2):
        expected = whole(folder, epoch)
        pad, drop, wrap = (in_turn([rank[rule][epoch] for rank in ranks]) for rule in ("pad", "drop", "wrap"))
        assert pad == expected
        assert drop == expected[: len(drop)]
        assert {number for batch in wrap for number in batch} == set(range(sum(COUNTS)))
    assert ranks[0]["error"] == ranks[1]["error"]
    assert "streams have ended before the others; choose uneven='pad', 'drop' or 'wrap'" in ranks[0]["error"]


def test_a_rank_that_is_killed_is_named_by_the_others(ranks_of: Any, folder: Path) -> None:
    saw, gone = ranks_of(2, "killed", folder, "1")
    assert gone is None
    assert saw[0] == "TimeoutError"
    assert saw[1].startswith("waited 4 seconds for rank 1 (")


def test_a_rank_that_ends_is_named_by_the_others_and_its_streams_are_not_taken_for_over(
    ranks_of: Any, folder: Path
) -> None:
    (saw, _) = ranks_of(2, "ends", folder)
    assert saw == "rank 1 left before the epoch was over: its loop ended, failed or was interrupted"


def test_a_store_that_is_stuck_is_said(ranks_of: Any, folder: Path) -> None:
    (_, saw) = ranks_of(2, "stuck", folder)
    assert saw == [
        "TimeoutError",
        "the key-value store through which 2 ranks agree does not answer: its host (rank 0, or the launcher) is stuck or gone",
    ]


def test_the_death_of_the_rank_that_hosts_the_store_is_said(ranks_of: Any, folder: Path) -> None:
    (_, saw) = ranks_of(2, "killed", folder, "0")
    assert saw[0] in ("RankError", "TimeoutError")
    assert "rank 0" in saw[1]


@pytest.mark.parametrize(
    ("kind", "source", "before", "after"),
    [
        ("streams", "checkpoint", 2, (1, 4)),
        ("streams", "file", 2, (1, 4)),
        ("buckets", "file", 2, (3,)),
        ("packs", "checkpoint", 3, (1, 2)),
    ],
)
def test_a_checkpoint_goes_on_with_other_numbers_of_processes(
    ranks_of: Any, folder: Path, kind: str, source: str, before: int, after: tuple[int, ...]
) -> None:
    with ranks_child.batches(kind, folder).shard(0, 1).iter() as it:
        expected = [ranks_child.one(batch) for batch in it]
    taken = in_turn(ranks_of(before, "save", folder, kind, "5"))
    assert 5 < len(taken) < len(expected)
    for world_size in after:
        assert taken + in_turn(ranks_of(world_size, "load", folder, kind, source)) == expected


def test_states_of_other_steps_are_not_joined(ranks_of: Any, folder: Path) -> None:
    made = ranks_child.data(folder)
    states = []
    for steps in (2, 3):
        with made.iter() as it:
            for _ in range(steps):
                next(it)
            states.append(it.state_dict())
    message = r"not saved after one step of one run: state\.position\.next is \d+ in state 0 and \d+ in state 1"
    with pytest.raises(bf.StateError, match=message):
        bf.merge_states(states)
    assert bf.merge_states([states[0]] * 3) == states[0]
    with pytest.raises(ValueError, match="at least one state"):
        bf.merge_states([])


@pytest.mark.parametrize(("world_size", "others"), [(2, 3), (3, 2)])
def test_ranks_that_learn_plan_the_same_over_epochs_killed_and_resumed(
    ranks_of: Any, tmp_path: Path, world_size: int, others: int
) -> None:
    most = 3 * 40 // world_size
    unbroken = ranks_of(world_size, "learn", tmp_path, "0", str(most), "")
    assert all(rank[1:] == unbroken[0][1:] for rank in unbroken), "one place, and one model"
    ids = [number for batch in in_turn([rank[0] for rank in unbroken]) for number in batch]
    assert [sorted(ids[start : start + 60]) for start in (0, 60, 120)] == [list(range(60))] * 3

    ranks_of(world_size, "learn", tmp_path, "0", "7", "killed")
    before = [json.loads((tmp_path / f"seen-7-{rank}.json").read_text()) for rank in range(world_size)]
    resumed = ranks_of(world_size, "learn", tmp_path, "7", str(most), "")
    assert [one + rank[0] for one, rank in zip(before, resumed)] == [rank[0] for rank in unbroken]
    assert [rank[1:] for rank in resumed] == [rank[1:] for rank in unbroken]

    elsewhere = ranks_of(others, "learn", tmp_path, "7", str(7 + 3 * 20 // others), "")
    assert all(rank[1:] == elsewhere[0][1:] for rank in elsewhere)
    ids = [number for batch in in_turn(before) + in_turn([rank[0] for rank in elsewhere]) for number in batch]
    assert [sorted(ids[start : start + 60]) for start in (0, 60)] == [list(range(60))] * 2


def test_a_rank_that_is_killed_while_others_wait_for_its_lessons_is_named(ranks_of: Any, tmp_path: Path) -> None:
    saw, gone = ranks_of(2, "learns_and_dies", tmp_path)
    assert gone is None
    assert saw[0] == "TimeoutError"
    assert saw[1].startswith("waited 4 seconds for rank 1 (last came to window ")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_interrupted_while_it_waits_for_another_to_begin_goes_on(
    ranks_of: Any, tmp_path: Path, victim: int
) -> None:
    (zero, interrupts), (one, others) = ranks_of(2, "interrupted", tmp_path, str(victim))
    assert [interrupts, others] == [1 - victim, victim]
    assert in_turn([zero, one]) == [batch["id"].tolist() for batch in ranks_child.learning().take(18)]
