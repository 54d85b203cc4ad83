"""Data-parallel processes that agree: real ones, over gloo, that read streams of very unequal length."""

from __future__ import annotations

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
    assert ranks[0]["raise"] == ranks[1]["raise"]
    assert "streams have ended before the others; choose uneven='pad', 'drop' or 'wrap'" in ranks[0]["raise"]


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


@pytest.mark.parametrize("how", ["load_state_dict", "iter"])
def test_a_rank_that_refuses_its_state_tells_the_others(ranks_of: Any, folder: Path, how: str) -> None:
    saw, (kind, said) = ranks_of(2, "refuses", folder, how)
    assert (kind, "belongs to another pipeline" in said) == ("StateError", how == "load_state_dict")
    assert saw == ["RankError", f"rank 1 failed: StateError: {said}"]


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


@pytest.mark.parametrize("none", [{}, {"epoch": 3}, 3, None, "state", []])
def test_what_is_no_state_is_not_joined(none: Any) -> None:
    message = r"^state 0 is none: a state is what state_dict\(\) returns \(got "
    with pytest.raises(bf.StateError, match=message):
        bf.merge_states([none])
    with pytest.raises(TypeError, match=r"^merge_states takes a list of the states of all ranks \(got dict\)$"):
        bf.merge_states({"position": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_interrupted_while_it_waits_for_another_to_begin_goes_on(
    ranks_of: Any, folder: Path, victim: int
) -> None:
    (zero, interrupts), (one, others) = ranks_of(2, "interrupted", folder, str(victim))
    assert [interrupts, others] == [1 - victim, victim]
    assert in_turn([zero, one]) == whole(folder)
