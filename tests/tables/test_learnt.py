"""Types that stages learn from their first rows: where a state has them, and who goes by which."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brimful as bf
from brimful.core.header import stages_in
from brimful.rows.functions import SampleFunction
from brimful.tables.learnt import Learnt, learn_schema, schema_of


def types_in(state: dict[str, Any]) -> dict[str, Any]:
    return {stage["verb"]: stage["types"]["columns"] for stage in stages_in(state["header"]) if "types" in stage}


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = json.loads(json.dumps(state, sort_keys=True))
    return restored


def lines(folder: Path, *shards: list[int]) -> str:
    for number, values in enumerate(shards):
        (folder / f"{number}.jsonl").write_text("".join(f'{{"a": {value}}}\n' for value in values))
    return f"{folder}/*.jsonl"


def test_a_state_has_types_in_its_header_and_none_in_its_position() -> None:
    data = bf.from_iterable([{"letter": "a"}] * 40, repeat=True).map(lambda row: row | {"weight": [1, 2]}).batch(4)
    with data.iter() as it:
        assert types_in(it.state_dict()) == {}, "none is known yet"
        next(it)
        state = it.state_dict()
    assert types_in(state)["map"] == [["letter", "string"], ["weight", ["list", "int64"]]]
    assert not {"letter", "weight", "string"} & {*json.dumps(state["position"]).split('"')}


def test_a_resume_goes_by_the_types_of_its_state_and_disturbs_nobody() -> None:
    made: list[Any] = [1.5]
    data = bf.from_sequence([{"x": 1}] * 80).map(lambda row: {"x": made[0]})
    with data.iter() as it:
        next(it)
        state = through_json(it.state_dict())
    made[0] = 1
    other = bf.from_sequence([{"x": 1}] * 80).map(lambda row: {"x": made[0]})
    assert [type(row["x"]) for row in other] == [int] * 80
    with other.iter(state, allow={"rows"}) as it:
        assert isinstance(next(it)["x"], float)
        assert types_in(it.state_dict())["map"] == [["x", "double"]]
    assert [type(row["x"]) for row in other] == [int] * 80, "it has learnt other ones in this process"


def test_a_later_epoch_of_a_resume_has_the_types_of_the_state_too() -> None:
    calls: list[int] = []

    def called(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["x"])
        return row

    def data() -> bf.Dataset:
        return bf.from_iterable([{"x": number} for number in range(50)], repeat=True).map(called)

    with data().iter() as it:
        for _ in range(60):
            next(it)
        state = it.state_dict()
    calls.clear()
    with data().iter(state) as it:
        for _ in range(80):
            next(it)
    assert calls.count(0) <= 2, "once an epoch, and not for types once more"


def test_types_that_were_edited_are_refused() -> None:
    data = bf.from_sequence([{"x": 1}] * 80).map(lambda row: row).map(lambda row: row)
    with data.iter() as it:
        next(it)
        state = it.state_dict()
    for number, verb in enumerate(("from_sequence", "map", "map")):
        if verb == "map":
            edited = copy.deepcopy(state)
            edited["header"][number]["types"]["columns"] = [["x", "double"]]
            with pytest.raises(bf.StateError, match=f"the types of stage {number}, map, has the checksum"):
                data.iter(edited)
    edited = copy.deepcopy(state)
    edited["header"][1]["types"] = []
    with pytest.raises(bf.StateError, match="damaged"):
        data.iter(edited)
    del edited["header"][1]["types"], edited["header"][2]["types"]
    with data.iter(edited) as it:
        assert len(list(it)) == 79, "they are learnt anew"


def test_ranks_have_one_header_also_if_one_knows_no_types_yet(tmp_path: Path) -> None:
    data = bf.from_files(lines(tmp_path, [1] * 20, [2] * 20), streams=2, n_active_shards=1)
    batches = data.map(lambda row: {"b": row["a"] + 0.5}).batch(2)
    with batches.iter() as it:
        next(it)
        next(it)
        state = it.state_dict()
        rest = [batch["b"].tolist() for batch in it]
    parts = [copy.deepcopy(state) for _ in range(2)]
    for number, part in enumerate(parts):
        part["position"]["streams"] = {str(number): state["position"]["streams"][str(number)]}
    assert bf.merge_states(parts) == state
    for without in range(2):
        some = copy.deepcopy(parts)
        for stage in stages_in(some[without]["header"]):
            stage.pop("types", None)
        assert bf.merge_states(some) == state
        assert [batch["b"].tolist() for batch in batches.iter(through_json(bf.merge_states(some)))] == rest
    parts[1]["header"][1]["types"]["columns"] = [["b", "string"]]
    with pytest.raises(bf.StateError, match=r"state\.header\[1\]\.types\.columns\[0\]\[1\] is 'double' in state 0 and"):
        bf.merge_states(parts)


@pytest.mark.parametrize("streams", [None, 2])
def test_streams_share_the_types_of_the_whole_and_the_calls_for_them(tmp_path: Path, streams: int | None) -> None:
    calls: list[int] = []

    def half(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["a"])
        return {"b": row["a"] + (0.5 if row["a"] == 0 else 0)}

    data = bf.from_files(lines(tmp_path, [*range(40)], [*range(100, 140)]), streams=streams, n_active_shards=1)
    batches = data.map(half).batch(4)
    with batches.iter() as it:
        assert {str(batch["b"].dtype) for batch in it} == {"torch.float64"}
    assert len(calls) == 80 + (32 if streams else 0), "those for the types of the whole, and each once"


def test_streams_whose_first_epoch_is_empty_share_the_types_of_the_one_at_hand(tmp_path: Path) -> None:
    """Each stream used to have types of its own then, and several ranks would have had several headers."""
    empty = [True]

    def late(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if empty[0] else {"b": row["a"] / 2 if row["a"] == 3 else row["a"]}

    data = bf.from_files(lines(tmp_path, [2] * 8, [3] * 8), streams=2, n_active_shards=1)
    batches = data.filter_map(late).batch(2)
    assert list(batches.iter()) == []
    empty[0] = False
    with batches.iter(epoch=1) as it:
        assert {str(batch["b"].dtype) for batch in it} == {"torch.float64"}


def test_streams_call_no_function_whose_rows_nobody_wants(tmp_path: Path) -> None:
    def refused(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("nobody asked")

    data = bf.from_files(lines(tmp_path, [1], [2]), streams=1).map(refused)
    assert list(data.take(0).batch(2)) == []
    with pytest.raises(bf.StageError, match="nobody asked"):
        list(data.batch(2))


def test_it_is_shared_by_copies_and_travels_without_what_was_learnt() -> None:
    stage = bf.from_sequence([{"x": 1}]).map(lambda row: row).stage
    assert isinstance(stage, SampleFunction)
    assert schema_of(stage) == pa.schema([("x", pa.int64())])
    copied = copy.copy(stage)
    assert copied.learnt is stage.learnt
    assert copied == stage
    assert pickle.loads(pickle.dumps(stage.learnt)).here is None
    assert pickle.loads(pickle.dumps(Learnt(pa.schema([("x", pa.int8())])))).here == pa.schema([("x", pa.int8())])


@pytest.mark.parametrize(("full", "held"), [(0, 32), (31, 32), (32, 64), (70, 128), (600, 1000), (2000, 1000)])
def test_as_many_results_are_held_as_tell_the_types(full: int, held: int) -> None:
    """Until the column `late` has come, or there are 1,000."""
    read: list[int] = []

    def calls() -> Any:
        for number in range(1_500):
            read.append(number)
            yield number

    def types_of(given: Any) -> tuple[pa.Schema, bool]:
        numbers = [number for one in given for number in one]
        return pa.schema([("most", pa.int64())]), len(numbers) > full

    found = learn_schema(calls(), lambda one: [one], types_of)
    assert len(read) == held
    assert [*found.calls] == [*range(1_500)]


def test_an_error_after_the_first_results_comes_in_its_turn() -> None:
    def calls() -> Any:
        yield 1
        yield 2
        raise OSError("gone")

    found = learn_schema(calls(), lambda one: [one], lambda given: (pa.schema([("x", pa.int64())]), True))
    assert isinstance(found.error, OSError)
    assert [next(found.calls), next(found.calls)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(found.calls)
