"""States of several ranks, and states as text."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast
from zlib import crc32

from brimful.core.header import TYPES, VERSION, stages_in, without_types
from brimful.core.stage import CARRY, State
from brimful.plan.errors import StateError, integer


def merge_states(states: Sequence[State]) -> State:
    """Joins the states that all ranks saved after the same step. The result works for every world size that divides the
    streams.

    Ranks that read streams save only their own streams. With indexed data all ranks have the same state, and the result
    is that state.

    Args:
        states: the results of `state_dict()` of an iterator or a loader on each rank, in any order.
    Raises:
        TypeError: a single state is given instead of a list.
        StateError: one of them is not a state. Or they were not saved after the same step of the same run: the error
            names the difference, with both values.
    Example:
        >>> even = {"position": {"next": 4, "streams": {"0": [0, 2], "2": [0, 2]}}}
        >>> odd = {"position": {"next": 4, "streams": {"1": [0, 1], "3": "end"}}}
        >>> merge_states([even, odd])["position"]["streams"]
        {'0': [0, 2], '2': [0, 2], '1': [0, 1], '3': 'end'}
    """
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise TypeError(f"merge_states takes a list of the states of all ranks (got {type(states).__name__})")
    if not states:
        raise ValueError("merge_states needs at least one state (got none)")
    for number, state in enumerate(states):
        if not _holds_a_place(state):
            raise StateError(f"state {number} is none: a state is what state_dict() returns (got {state!r:.40})")
    return joined(states)


def joined(states: Sequence[State]) -> State:
    """One of several, whatever they hold; see `merge_states`."""
    merged = states[0]
    for number, state in enumerate(states[1:], 1):
        merged = _merged(merged, state, "state", number)
    return json.loads(json.dumps(merged))


def _holds_a_place(state: State) -> bool:
    """Whether the state of an iterator or of a loader is in it somewhere."""
    if isinstance(state, dict):
        return "position" in state or is_text(state) or any(map(_holds_a_place, state.values()))
    return isinstance(state, list) and any(map(_holds_a_place, state))


def _merged(one: State, other: State, path: str, number: int) -> State:
    if isinstance(one, dict) and isinstance(other, dict):
        of_one = {TYPES} if "verb" in one else set()  # a rank may know them before others do
        if not path.endswith(".streams") and (one.keys() ^ other.keys()) - of_one:
            _differ(path, sorted(one), sorted(other), number)
        shared = {
            name: _merged(value, other[name], f"{path}.{name}", number) for name, value in one.items() if name in other
        }
        return one | other | shared
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other))
        return [_merged(*pair, f"{path}[{place}]", number) for place, pair in pairs]
    if path.endswith(".iterator") and isinstance(one, str) and one and other:
        return json.dumps(_merged(json.loads(one), json.loads(other), path, number))
    if one != other:
        _differ(path, one, other, number)
    return one


def _differ(path: str, one: State, other: State, number: int) -> None:
    raise StateError(
        f"these states were not saved after one step of one run: {path} is {one!r:.80} in state 0 and {other!r:.80} in state "
        f"{number}"
    )


def sealed(header: Any, position: State, types: Iterable[Any] = ()) -> dict[str, Any]:
    """A state, of its own parts: with a checksum of header and position. What ranks save apart has one each: the entries of
    streams, and the types of a stage, which a rank may know before others do.

    Args:
        types: those that the stages of the header have learnt, as plain JSON, in the order of `header.stages_in`; None: not yet.

    >>> state = sealed({"type": "streams"}, {"next": 2, "streams": {"1": "end"}})
    >>> state["position"]["streams"]["1"][0], position_of(state)
    ('end', {'next': 2, 'streams': {'1': 'end'}})
    """
    rest, entries = _without_streams(position)
    checksum = _checksum([header, rest])
    marked = {stream: [entry, _checksum([checksum, stream, entry])] for stream, entry in entries.items()}
    state = {"version": VERSION, "header": header, "position": _with_streams(rest, marked), "crc32": checksum}
    made, known = json.loads(json.dumps([state, [*types]]))
    for number, (stage, columns) in enumerate(zip(stages_in(made["header"]), known)):
        if columns is not None:
            stage[TYPES] = {"columns": columns, "crc32": _checksum([checksum, number, columns])}
    return cast(dict[str, Any], made)


def position_of(state: dict[str, Any]) -> State:
    """The position that `sealed` was given, of this state or of several that were merged.

    Raises:
        StateError: it is not what was saved.
    """
    try:
        rest, marked = _without_streams(state["position"])
        header, types = without_types(state["header"])
        checksum = _checksum([header, rest])
        found = {"its position": (state["crc32"], checksum)} | {
            f"stream {stream}": (mark, _checksum([checksum, stream, entry])) for stream, (entry, mark) in marked.items()
        }
        for number, (stage, known) in enumerate(zip(stages_in(header), types)):
            for learnt in known:
                now = _checksum([checksum, number, learnt["columns"]])
                found[f"the types of stage {number}, {stage['verb']},"] = learnt["crc32"], now
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"this state is damaged: its position has another form ({error}); {_DAMAGED}") from error
    for what, (saved, now) in found.items():
        if saved != now:
            raise StateError(f"this state is damaged: {what} has the checksum {now}, not {saved!r:.40}; {_DAMAGED}")
    return copy.deepcopy(_with_streams(rest, {stream: entry for stream, (entry, _) in marked.items()}))


_DAMAGED: Final = "it was edited, or not written whole; go on with another checkpoint"


def _checksum(value: Any) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())


def as_text(epoch: int, state: State | None, streams: int | None, steps: int | None = None) -> dict[str, Any]:
    """A loader's state: an epoch, and an iterator's state in it as text; an entry by itself for each of the streams.

    Each value is a number or a text, so that torch.distributed.checkpoint, which takes dicts apart and of one name keeps
    what one rank wrote, keeps the entries of all ranks. The checksum is of the numbers and of the iterator's own checksum,
    which all ranks have in common.

    Args:
        steps: batches taken in this epoch, where an epoch is so many steps.

    >>> state = {"version": 1, "position": [0, {"next": 2, "streams": {"1": "end"}}], "crc32": 7}
    >>> as_text(3, state, 2)["streams"]
    {'1': '"end"'}
    >>> from_text(as_text(3, state, 2)) == (3, None, state)
    True
    """
    entries = dict.fromkeys(map(str, range(streams or 0)), "")
    text = ""
    if state is not None:
        position, held = _without_streams(state["position"])
        text = json.dumps(state | {"position": position})
        entries = {stream: json.dumps(entry) for stream, entry in held.items()}
    made: dict[str, Any] = {"epoch": epoch, "iterator": text, "crc32": _checksum_of_loader(epoch, steps, state)}
    return made | ({"streams": entries} if streams else {}) | ({} if steps is None else {"steps": steps})


def from_text(saved: Any) -> tuple[int, int | None, State | None]:
    """The epoch, the steps and the iterator's state that `as_text` was given. (Older ones have no checksum.)

    Raises:
        StateError: it is no such thing, or not what was saved.
    """
    if not is_text(saved):
        if saved == {}:
            raise StateError(
                "a loader's state is what state_dict() returns (got an empty dict); without one it begins at the start"
            )
        got = f"a dict of {', '.join(map(str, saved))}" if isinstance(saved, dict) else type(saved).__name__
        raise StateError(
            f"a loader's state is a dict of epoch and iterator (got {got}); what an iterator gave is for Batches.iter"
        )
    try:
        epoch = integer("epoch", saved["epoch"])
        steps = integer("steps", saved["steps"]) if "steps" in saved else None
        state = None
        if saved["iterator"]:
            state = json.loads(saved["iterator"])
            entries = {stream: json.loads(entry) for stream, entry in saved.get("streams", {}).items() if entry}
            state = state | {"position": _with_streams(state["position"], entries)}
        checksum = _checksum_of_loader(epoch, steps, state)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"this loader's state is damaged: {error} in {saved['iterator']!r:.80}; {_DAMAGED}") from None
    if saved.get("crc32", checksum) != checksum:
        raise StateError(
            f"this loader's state is damaged: epoch {epoch:,}, steps {steps} and its place have the checksum {checksum}, not "
            f"{saved['crc32']!r:.40}; {_DAMAGED}"
        )
    return epoch, steps, state


def _checksum_of_loader(epoch: int, steps: int | None, state: State | None) -> int:
    return _checksum([epoch, steps, None if state is None else state.get("crc32")])


def check_form(state: Any, *names: str, version: int, what: str = "a state") -> None:
    """Refuses what is no state of this form: a dict of a version and of `names`.

    Raises:
        StateError: with what it is instead, or with both versions.

    >>> check_form({"version": 1, "place": 5}, "place", version=1)
    >>> check_form([5], "header", "place", version=1)
    Traceback (most recent call last):
    brimful.plan.errors.StateError: a state is a dict of version, header and place, as state_dict() returns it (got list)
    """
    if isinstance(state, dict) and state.get("version", version) != version:
        raise StateError(
            f"this state has version {state['version']!r}, but this release of brimful reads version {version}. Go on with the "
            "release that saved it, or start anew"
        )
    if not isinstance(state, dict) or state.keys() != {"version", *names}:
        got = list(state) if isinstance(state, dict) else type(state).__name__
        if is_text(state):
            got = f"{got}; a loader's state is for its load_state_dict"
        *others, last = ("version", *names)
        raise StateError(f"{what} is a dict of {', '.join(others)} and {last}, as state_dict() returns it (got {got})")


def restored_elsewhere(what: str, restored: int, given: int) -> str:
    """The error of `set_epoch` between a restore and the first batch."""
    return (
        f"this {what} was restored to epoch {restored:,}, and set_epoch says {given:,} before its first batch, which would begin "
        f"again what was trained on; count epochs from the restored one on (its `epoch`), or restore no state"
    )


def is_text(value: Any) -> bool:
    """Whether a value looks like what `as_text` returns."""
    return isinstance(value, dict) and value.keys() - {"streams", "steps", "crc32"} == {"epoch", "iterator"}


def _without_streams(position: State) -> tuple[State, dict[str, State]]:
    """A position less the entries of its streams, and those."""
    entries: dict[str, Any] = {}

    def stripped(value: State) -> State:
        if isinstance(value, dict):
            entries.update(value.get("streams", {}))
            return {
                name: {} if name == "streams" else item if name == CARRY else stripped(item)
                for name, item in value.items()
            }
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return stripped(position), entries


def _with_streams(position: State, entries: dict[str, State]) -> State:
    if isinstance(position, dict):
        return {
            name: entries if name == "streams" else one if name == CARRY else _with_streams(one, entries)
            for name, one in position.items()
        }
    return [_with_streams(one, entries) for one in position] if isinstance(position, list) else position
