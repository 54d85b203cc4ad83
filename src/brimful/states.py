"""States of several ranks, and states as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from brimful.errors import StateError
from brimful.stream import State


def merge_states(states: Sequence[State]) -> State:
    """One state of the states that all ranks saved after the same step: good for every world size that divides the streams.

    Ranks that read streams know where their own streams are. Of indexed data all ranks have the same state anyway; then
    the result is that one.

    Args:
        states: what `state_dict()` of an iterator, or of a loader, gave on each rank, in any order.
    Raises:
        StateError: they were not saved after one step of one run; where they differ is named, with both values.
    Example:
        >>> even = {"position": {"next": 4, "streams": {"0": [0, 2], "2": [0, 2]}}}
        >>> odd = {"position": {"next": 4, "streams": {"1": [0, 1], "3": "end"}}}
        >>> merge_states([even, odd])["position"]["streams"]
        {'0': [0, 2], '2': [0, 2], '1': [0, 1], '3': 'end'}
    """
    if not states:
        raise ValueError("merge_states needs at least one state (got none)")
    merged = states[0]
    for number, state in enumerate(states[1:], 1):
        merged = _merged(merged, state, "state", number)
    return json.loads(json.dumps(merged))


def _merged(one: State, other: State, path: str, number: int) -> State:
    if isinstance(one, dict) and isinstance(other, dict):
        streams = path.endswith(".streams")
        if not streams and one.keys() != other.keys():
            _differ(path, sorted(one), sorted(other), number)
        shared = {
            name: _merged(value, other[name], f"{path}.{name}", number) for name, value in one.items() if name in other
        }
        return one | other | shared
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other))
        return [_merged(*pair, f"{path}[{place}]", number) for place, pair in pairs]
    if path.endswith(".iterator") and one and other:
        return json.dumps(_merged(json.loads(one), json.loads(other), path, number))
    if one != other:
        _differ(path, one, other, number)
    return one


def _differ(path: str, one: State, other: State, number: int) -> None:
    raise StateError(
        f"these states were not saved after one step of one run: {path} is {one!r:.80} in state 0 and {other!r:.80} in state "
        f"{number}"
    )


def without_streams(state: State) -> tuple[State, dict[str, State]]:
    """A state less the entries of its streams, and those.

    >>> without_streams([0, {"next": 2, "streams": {"0": "end"}}])
    ([0, {'next': 2, 'streams': {}}], {'0': 'end'})
    """
    entries: dict[str, Any] = {}

    def stripped(value: State) -> State:
        if isinstance(value, dict):
            entries.update(value.get("streams", {}))
            return {name: {} if name == "streams" else stripped(item) for name, item in value.items()}
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return stripped(state), entries


def with_streams(state: State, entries: dict[str, State]) -> State:
    """What `without_streams` took apart."""
    if isinstance(state, dict):
        return {name: entries if name == "streams" else with_streams(value, entries) for name, value in state.items()}
    return [with_streams(value, entries) for value in state] if isinstance(state, list) else state
