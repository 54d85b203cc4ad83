"""A state that was damaged, at whatever place, is refused in words."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import brimful as bf

ROWS = [{"id": number, "input_ids": [number] * (1 + number % 5)} for number in range(40)]


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def shards(folder: Path) -> str:
    for number in range(4):
        lines = (json.dumps(row) + "\n" for row in ROWS[number * 10 : number * 10 + 10])
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return f"{folder}/*.jsonl"


CHAINS: dict[str, Callable[[str], Any]] = {
    "indexed": lambda urls: bf.from_sequence(ROWS).shuffle(7).batch(3),
    "windows": lambda urls: bf.from_sequence(ROWS).batch_by_tokens(12, window=9),
    "streamed": lambda urls: bf.from_files(urls).map(same).shuffle(7).batch(3, window=9),
    "mixed": lambda urls: bf.interleave_datasets([bf.from_iterable(ROWS), bf.from_files(urls)]).skip(1).stride(2, 1),
    "packed": lambda urls: bf.from_iterable(ROWS).chunk(3).pack(12, window=12),
    "streams": lambda urls: bf.from_files(urls, streams=2).shuffle(5).batch(2, window=6),
}


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for name, value in inside:
        yield from places(value, (*path, name))


def damaged(state: dict[str, Any], rng: random.Random) -> Any:
    """One value of a state changed, or left out."""
    made = copy.deepcopy(state)
    *above, name = rng.choice(list(places(made))[1:])
    inside = made
    for step in above:
        inside = inside[step]
    old = inside[name]
    values = [0, -1, 2**63, 1e99, "", "x\x1b[2J", None, [], {}, [old], {"streams": old}, True]
    values += [old + 1, old - 1] if isinstance(old, int) else []
    new = rng.choice(values)
    others = (
        above[-1:] == ["streams"] or name == "types"
    )  # other ranks may have these entries, or know these types first
    if rng.random() < 0.1 and not others:
        del inside[name]
    elif json.dumps(new) == json.dumps(old):
        inside[name] = "another"
    else:
        inside[name] = new
    return made


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_damaged_state_is_refused_in_words(chain: Callable[[str], Any], tmp_path: Path) -> None:
    data, rng = chain(shards(tmp_path)), random.Random(0)
    with data.iter() as it:
        next(it)
        state = it.state_dict()
    for _ in range(150):
        bad = damaged(state, rng)
        with pytest.raises(bf.StateError, match=r"damaged|has version|is a dict of|another pipeline"):
            data.iter(bad)


def test_a_window_of_no_rows_is_refused() -> None:
    batches = bf.from_sequence(ROWS).batch(2, window=6)
    state = batches.iter().state_dict()
    state["position"]["windows"]["size"] = 0
    message = r"^this state is damaged: its position has the checksum \d+, not \d+; it was edited, or not written whole; go on"
    with pytest.raises(bf.StateError, match=message):
        batches.iter(state)


def test_entries_of_streams_are_checked_one_by_one_and_merged_as_they_are(tmp_path: Path) -> None:
    batches = CHAINS["streams"](shards(tmp_path))
    it = batches.iter()
    next(it)
    state = it.state_dict()
    parts = [copy.deepcopy(state) for _ in range(2)]
    for number, part in enumerate(parts):
        part["position"]["streams"] = {str(number): state["position"]["streams"][str(number)]}
    expected = [batch["id"].tolist() for batch in it]
    merged = bf.merge_states(parts)
    assert [batch["id"].tolist() for batch in batches.iter(merged)] == expected
    entries = merged["position"]["streams"]
    entries["0"], entries["1"] = entries["1"], entries["0"]
    with pytest.raises(bf.StateError, match=r"^this state is damaged: stream \d has the checksum"):
        batches.iter(merged)


def test_older_states_are_refused_by_name() -> None:
    data = bf.from_sequence(ROWS)
    with pytest.raises(
        bf.StateError, match=r"^this state has version 4, but .* reads version 5\. Go on with the release that"
    ):
        data.iter({"version": 4, "header": {}, "position": [0, 1]})


def test_a_state_beside_an_epoch_is_refused() -> None:
    batches = bf.from_sequence(ROWS).batch(2)
    state = batches.iter(epoch=3).state_dict()
    with pytest.raises(
        ValueError,
        match=r"^give a state or epoch=3, not both: the state .* Leave out epoch= to resume, or the state to begin anew$",
    ):
        batches.iter(state, epoch=3)


@pytest.mark.parametrize("allow", [None, 3])
def test_allow_takes_names(allow: Any) -> None:
    message = rf"^allow takes names of settings, such as \{{'urls'\}} \(got {allow}\)$"
    with pytest.raises(TypeError, match=message):
        bf.from_sequence(ROWS).iter(allow=allow)


@pytest.mark.parametrize("epoch", [-1, "x", None, 1.5])
def test_a_loader_s_epoch_is_a_number(epoch: Any) -> None:
    loader = bf.from_sequence(ROWS).batch(2).loader()
    with pytest.raises(bf.StateError, match=r"^this loader's state is damaged: epoch must be"):
        loader.load_state_dict(loader.state_dict() | {"epoch": epoch})
