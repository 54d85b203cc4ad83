"""Conversations as tokens: what a tokenizer's own chat template makes of them, and which of the tokens are trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel

from brimful.core.errors import DataError
from brimful.encoding.turns import REMEDY, ChatTemplate, Turns

TrainOn: TypeAlias = Literal["assistant", "last", "all", "marked"]
_MARKS: Final = ("train", "weight", "loss_mask")
_OLDER_ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "function_response": "tool",
    "observation": "tool",
}
"""Of messages that have `from` and `value`."""


class Labelled(NamedTuple):
    """The tokens of a conversation, int32 (n,), and which of them are trained on, bool (n,)."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]


def rendered(template: ChatTemplate, messages: list[Any], tools: Any, train_on: TrainOn) -> Turns:
    """A conversation as text, and what of it trains.

    Raises:
        DataError: nobody spoke whom `train_on` names; a mark is not 0 or 1; the template does not tell who says what.
        Exception: what the template raises.
    """
    marks = [_mark(message, number) for number, message in enumerate(messages)]
    off = [number for number, mark in enumerate(marks) if mark is False]
    if train_on == "all":
        return template.whole(messages, tools, off)
    if train_on == "marked":
        spoken = [number for number, mark in enumerate(marks) if mark]
    else:
        spoken = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if not spoken:
            roles = ", ".join(dict.fromkeys(repr(message["role"]) for message in messages))
            raise DataError(
                f"no message is the assistant's (roles: {roles}), so that nothing would be trained on. Rename the roles (map). "
                "Or leave such rows out (on_error='skip')"
            )
    own = [number for number in (spoken[-1:] if train_on == "last" else spoken) if number not in off]
    if not own:
        raise DataError(
            f"no message is left to train on: train_on={train_on!r} and {', '.join(_MARKS)} of the messages leave none. Leave "
            "such rows out (on_error='skip')"
        )
    if template.marks:
        found = template.turns(messages, tools, own, all_marks=train_on == "assistant" and own == spoken)
        if not found.spans:
            raise DataError(
                f"the chat template marks nothing by {{% generation %}} in {len(own)} turns of the assistant"
            )
        return found
    return template.turns(messages, tools, own)


def labelled(tokenizer: Any, texts: Sequence[Turns]) -> list[Labelled | DataError]:
    """The tokens of conversations, all of which are tokenized at once; an error where a token is nobody's.

    Args:
        tokenizer: for nobody else meanwhile, nor later with special tokens.
    """
    if not texts:
        return []
    wanted = {"return_attention_mask": False, "return_token_type_ids": False}
    if tokenizer.is_fast:
        wanted["return_offsets_mapping"] = True
        if isinstance(tokenizer.backend_tokenizer, Tokenizer):  # which may say that tokens have no white space
            tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    answer = tokenizer([one.text for one in texts], add_special_tokens=False, verbose=False, **wanted)
    rows = answer["input_ids"]
    bounds = [*pairwise(accumulate(map(len, rows), initial=0))]
    ids = np.fromiter(chain.from_iterable(rows), np.int32)
    if tokenizer.is_fast:
        trained, across = _by_offsets(texts, bounds, answer["offset_mapping"])
    else:
        trained, across = _by_pieces(tokenizer, texts, bounds, ids)
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special} if across else {}
    made: list[Labelled | DataError] = []
    for row, (one, (first, last)) in enumerate(zip(texts, bounds)):
        tokens, own = ids[first:last], trained[first:last]
        over = dict(across.get(row, ()))
        own[[at for at in over if tokens[at] in special]] = False  # it takes the white space after it
        if odd := [at for at in over if tokens[at] not in special]:
            token = tokenizer.decode([int(tokens[odd[0]])])
            made.append(
                DataError(
                    f"what the assistant says in message {over[odd[0]]} cannot be told: a token lies across its border (token "
                    f"{odd[0]:,}, {token!r}). If the prompt ends in a space, leave this space out of the tokenizer's "
                    f"chat_template. {REMEDY}"
                )
            )
            continue
        if one.end is not None:
            tokens, own = np.append(tokens, np.int32(one.end)), np.append(own, True)
        if not own.any():
            made.append(DataError("what the assistant says has no token; leave such rows out (on_error='skip')"))
            continue
        own[:1] = False  # nothing predicts the first token
        made.append(Labelled(tokens, own))
    return made


_Across: TypeAlias = dict[int, list[tuple[int, int]]]
"""By rows, the tokens across the beginning of a turn, and the messages."""


def _by_offsets(
    texts: Sequence[Turns], bounds: Sequence[tuple[int, int]], offsets: Any
) -> tuple[NDArray[np.bool_], _Across]:
    """Which tokens hold a character that trains, and which lie across the beginning of a turn, by the characters of each.

    All texts are looked at as one. Price: 5 ns a token.
    """
    pairs = chain.from_iterable(chain.from_iterable(offsets))
    places = np.fromiter(pairs, np.int64, 2 * bounds[-1][1]).reshape(-1, 2)
    starts = [*accumulate((len(one.text) + 1 for one in texts), initial=0)]
    places += np.repeat(starts[:-1], [last - first for first, last in bounds])[:, None]
    first, last = places.T
    spans = [(start + begin, start + end) for one, start in zip(texts, starts) for begin, end in one.spans]
    begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
    steps = np.zeros(len(places) + 1, np.int64)
    froms = np.searchsorted(last, begins, "right")
    # a token without a character (of a mark, say) stands where it ends
    tos = np.searchsorted(first - (first == last), ends, "left")
    np.add.at(steps, froms, 1)
    np.add.at(steps, np.maximum(froms, tos), -1)
    across: _Across = {}
    borders = [
        (row, start + at, message) for row, (one, start) in enumerate(zip(texts, starts)) for at, message in one.begins
    ]
    edges = np.array([at for _, at, _ in borders], np.int64)
    over = np.searchsorted(last, edges, "right")
    held = over < len(first)
    held[held] = first[over[held]] < edges[held]
    for number in np.flatnonzero(held).tolist():
        row, _, message = borders[number]
        across.setdefault(row, []).append((int(over[number]) - bounds[row][0], message))
    return np.cumsum(steps[:-1]) > 0, across


def _by_pieces(
    tokenizer: Any, texts: Sequence[Turns], bounds: Sequence[tuple[int, int]], ids: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], _Across]:
    """The same for a tokenizer that knows no offsets: by the tokens of the text between two places, where all of these make the
    tokens of the whole; else by those of the text up to each place."""
    trained, across = np.zeros(len(ids), bool), _Across()
    for row, (one, (first, last)) in enumerate(zip(texts, bounds)):
        tokens = ids[first:last].tolist()
        places = sorted({0, len(one.text), *chain.from_iterable(one.spans), *(at for at, _ in one.begins)})
        pieces = _plain(tokenizer, [one.text[begin:end] for begin, end in pairwise(places)])
        counts = [*accumulate(map(len, pieces), initial=0)]
        at, whole = dict(zip(places, counts)), dict.fromkeys(places, True)
        if [*chain.from_iterable(pieces)] != tokens:
            for place, own in zip(places, _plain(tokenizer, [one.text[:place] for place in places])):
                at[place] = next((n for n, (a, b) in enumerate(zip(own, tokens)) if a != b), len(own))
                whole[place] = at[place] == len(own)
        for begin, end in one.spans:
            trained[first + at[begin] : first + at[end]] = True
        found = [(at[begin], message) for begin, message in one.begins if not whole[begin]]
        across |= {row: found} if found else {}
    return trained, across


def _plain(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return rows


# -- what rows hold ---------------------------------------------------------------------------------------------------------


def messages_of(conversation: Any) -> list[Any]:
    """The messages of a conversation.

    Args:
        conversation: a list of messages: dicts, or JSON texts of them; or JSON text of such a list. Messages of older forms have
            `from` and `value`. A key whose value is null is left out, at any depth, but in JSON text: rows of one type have the
            keys of all.
    Raises:
        DataError: it is something else.
    """
    messages = _parsed(conversation)
    if not isinstance(messages, list) or not messages:
        raise DataError(f"a conversation must be a list of messages (got {_shown(conversation)})")
    messages = [_with_role(_parsed(message) if isinstance(message, str) else message) for message in messages]
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            keys = f"keys: {', '.join(message)}" if isinstance(message, dict) else _shown(message)
            raise DataError(
                f"message {number} must be a dict with a role, as {{'role': 'user', 'content': 'Hello'}} ({keys}); rename "
                "what it has (map)"
            )
    return messages


def _with_role(message: Any) -> Any:
    """A message of an older form as they are today."""
    if not isinstance(message, dict) or "role" in message or not isinstance(said := message.get("from"), str):
        return message
    more = {name: value for name, value in message.items() if name not in ("from", "value")}
    made = {"role": _OLDER_ROLES.get(said, said), "content": message.get("value"), **more}
    if said != "function_call":
        return made
    try:
        call = json.loads(made["content"])
    except (TypeError, ValueError):
        return made
    calls = call if isinstance(call, list) else [call]
    if not all(isinstance(one, dict) and "name" in one for one in calls):
        return made
    return made | {"content": "", "tool_calls": [{"type": "function", "function": one} for one in calls]}


def tools_of(tools: Any) -> Any:
    """A list of JSON schemas, or of JSON texts of them, or all of it as JSON text; None where there are none.

    Raises:
        DataError: it is something else.
    """
    known = _parsed(tools)
    if not known:
        return None
    if not isinstance(known, list):
        raise DataError(f"tools must be a list of JSON schemas (got {_shown(tools)})")
    return [_parsed(tool) if isinstance(tool, str) else tool for tool in known]


def _mark(message: Any, number: int) -> bool | None:
    """Whether a message says that it trains; None: it says nothing."""
    given = {name: message[name] for name in _MARKS if message.get(name) is not None}
    for name, mark in given.items():
        if not isinstance(mark, bool | int | float) or mark not in (0, 1):
            raise DataError(f"{name} of message {number} must be 0 or 1, or false or true (got {_shown(mark)})")
    return all(given.values()) if given else None


def _parsed(value: Any) -> Any:
    """JSON text as what it says; anything else without the keys whose values are null."""
    if not isinstance(value, str):
        return _without_nulls(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise DataError(f"{_shown(value)} is no JSON: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:40]}..."


def template_of(tokenizer: Any) -> str:
    """The chat template of a tokenizer; if it has several, all of them, in the order of their names."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(f"{name}: {template[name]}" for name in sorted(template))
    return str(template)
