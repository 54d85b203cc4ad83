"""Conversations as tokens: what a tokenizer's own chat template makes of them, and which of the tokens are trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers.processors import ByteLevel

from brimful.encoding.encoders import encodes_itself
from brimful.encoding.turns import REMEDY, ChatTemplate, Turns
from brimful.plan.errors import DataError
from brimful.tables.objects import decoded

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


def rendered(
    template: ChatTemplate, messages: list[Any], tools: Any, train_on: TrainOn, prompt: int = 0
) -> Callable[[], Turns]:
    """Renders a conversation, and returns a function that finds what of it trains.

    Args:
        prompt: so many messages at its beginning do not.
    Raises (as the function does):
        DataError: nobody spoke whom `train_on` names; a mark is not 0 or 1; the template does not tell who says what.
        Exception: what the template raises.
    """
    marks = {
        number: mark
        for number, message in enumerate(messages)
        if not message.keys().isdisjoint(_MARKS) and (mark := _mark(message, number)) is not None
    }
    marks |= dict.fromkeys(range(prompt), False)
    off = [number for number, mark in marks.items() if not mark]
    if train_on == "all":
        return partial(template.whole, template.talk(messages, tools), off)
    if train_on == "marked":
        spoken = [number for number, mark in marks.items() if mark]
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
    talk = template.talk(messages, tools)
    if not template.marks:
        return partial(template.turns, talk, own)

    def marked() -> Turns:
        found = template.turns(talk, own, without=off if train_on == "assistant" else None)
        if not any(begin < end for begin, end in found.spans):
            raise DataError(
                f"the chat template marks nothing by {{% generation %}} in {len(own)} turns of the assistant"
            )
        return found

    return marked


def labelled(tokenizer: Any, texts: Sequence[Turns]) -> list[Labelled | DataError]:
    """The tokens of conversations, all of which are tokenized at once; an error where a token is nobody's.

    Args:
        tokenizer: for nobody else meanwhile, nor later with special tokens.
    """
    if not texts:
        return []
    rows, places_of = _tokenized(tokenizer, [one.text for one in texts])
    made: list[Labelled | DataError] = []
    for number, (one, ids) in enumerate(zip(texts, rows)):
        begins = (*one.spans, *one.begins)
        places = places_of(number, sorted({at for at, _ in begins} | {end for _, end in one.spans}))
        over = {at for at, _ in begins if places[at][1]}
        # a special token takes the white space after it, if it is told to
        special = {at for at in over if _is_special(tokenizer, ids[places[at][0]])}
        if over and (odd := next((begin for begin in one.begins if begin[0] in over - special), None)):
            made.append(_across(tokenizer, ids, places[odd[0]][0], odd[1], one.text[odd[0] - 1]))
            continue
        trained = np.zeros(len(ids), bool)
        for begin, end in one.spans:
            (first, _), (last, across) = places[begin], places[end]
            trained[first + (begin in special) : last + across] = True
        tokens = np.array(ids, np.int32)
        if one.end is not None:
            tokens, trained = np.append(tokens, np.int32(one.end)), np.append(trained, True)
        if not np.count_nonzero(trained):
            made.append(DataError("what trains has no token; leave such rows out (on_error='skip')"))
            continue
        trained[:1] = False  # nothing predicts the first token
        made.append(Labelled(tokens, trained))
    return made


def _is_special(tokenizer: Any, id_: int) -> bool:
    token = tokenizer.added_tokens_decoder.get(id_)
    return token is not None and bool(token.special)


def _across(tokenizer: Any, ids: Sequence[int], at: int, message: int, before: str) -> DataError:
    """The error of a token on both sides of where a message begins. Args: before: the character before the border."""
    token = tokenizer.decode([ids[at]])
    advice = ""
    if token.isspace():
        advice = "Leave out the white space that the content begins with (map). "
    elif before == " ":
        advice = "The chat_template writes a space before the words: leave this space out of it. "
    return DataError(
        f"what trains of message {message} cannot be told: a token lies across its border (token {at:,}, {token!r}). {advice}"
        f"{REMEDY}"
    )


_Place: TypeAlias = tuple[int, bool]
"""The number of the token that holds a character, and whether it holds earlier ones, too."""

_Places: TypeAlias = Callable[[int, list[int]], dict[int, _Place]]
"""Where some characters of a text are among its tokens. Args: the number of the text, and the characters, ascending."""


def _tokenized(tokenizer: Any, texts: list[str]) -> tuple[Sequence[Sequence[int]], _Places]:
    """The tokens of texts, and where their characters are among them."""
    if not tokenizer.is_fast:
        rows = _plain(tokenizer, texts)
        return rows, lambda number, places: _by_pieces(tokenizer, texts[number], rows[number], places)
    if encodes_itself(tokenizer):
        answer = tokenizer(texts, add_special_tokens=False, verbose=False)
        encodings = answer.encodings
    else:
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = tokenizer.split_special_tokens
        backend.post_processor = ByteLevel(trim_offsets=False)  # others may say that tokens have no white space
        encodings = backend.encode_batch(texts, add_special_tokens=False)
    return [one.ids for one in encodings], lambda number, places: _by_offsets(encodings[number], texts[number], places)


def _by_offsets(encoding: Any, text: str, places: list[int]) -> dict[int, _Place]:
    """By the characters of each token. Price: .5 us a place; 60 ns a token where there are many places."""
    if len(places) <= _FEW:
        found: dict[int, _Place] = {}
        for at in places:
            token = encoding.char_to_token(at) if at < len(text) else len(encoding)
            if token is None:
                break
            found[at] = token, at < len(text) and encoding.token_to_chars(token)[0] < at
        else:
            return found
    offsets = np.array([*encoding.offsets, (len(text), len(text))], np.int64).reshape(-1, 2)
    tokens = np.searchsorted(offsets[:-1, 1], places, "right")  # those that end after a place
    across = offsets[tokens, 0] < places
    return dict(zip(places, zip(tokens.tolist(), across.tolist())))


_FEW: Final = 32


def _by_pieces(tokenizer: Any, text: str, ids: Sequence[int], places: list[int]) -> dict[int, _Place]:
    """For a tokenizer that knows no offsets: by the tokens of the text between two places, where these are all tokens of the
    whole; else by those of the text up to each place."""
    edges = [0, *places, len(text)]
    pieces = _plain(tokenizer, [text[begin:end] for begin, end in pairwise(edges)])
    if [*chain.from_iterable(pieces)] == [*ids]:
        return {at: (token, False) for at, token in zip(places, accumulate(map(len, pieces)))}
    found = {}
    for place, own in zip(places, _plain(tokenizer, [text[:place] for place in places])):
        same = next((at for at, (one, other) in enumerate(zip(own, ids)) if one != other), len(own))
        found[place] = same, same < len(own)
    return found


def _plain(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return rows


class Side(NamedTuple):
    """A conversation, and how many of its messages are its prompt."""

    messages: list[Any]
    prompt: int


def sides_of(columns: Mapping[str, list[Any]], prompt: list[Any] | None) -> list[Side]:
    """The conversations that begin with one prompt.

    Args:
        columns: the messages of each side, by the name of its column: those after the prompt, or with it.
        prompt: the messages before; None: those that all sides have alike at their beginning.
    Raises:
        DataError: the sides have no prompt in common, or one has nothing else.
    """
    sides = [*columns.values()]
    if prompt is None:
        count = next(
            (number for number, same in enumerate(zip(*sides)) if any(one != same[0] for one in same)),
            min(map(len, sides)),
        )
    else:
        count = len(prompt)
        sides = [one if one[:count] == prompt or one[0]["role"] in _ASKING else [*prompt, *one] for one in sides]
    for name, one in zip(columns, sides):
        others = "the prompt" if prompt is not None else " and ".join(repr(other) for other in columns if other != name)
        if one[:count] != (prompt or one[:count]) or (len(one) > count and one[count]["role"] in _ASKING):
            raise DataError(
                f"{name!r} and {others} have unequal prompts: they differ in a message before the first answer. Mend it (map), "
                "or leave such rows out (on_error='skip')"
            )
        if len(one) == count:
            raise DataError(
                f"{name!r} has no message of its own: all {count} are those of {others}. Leave such rows out (on_error='skip')"
            )
    return [Side(one, count) for one in sides]


_ASKING: Final = ("system", "developer", "user")
"""The roles that no answer begins with."""


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
        said = decoded(value)
        return decoded(said) if isinstance(said, str) else said  # a column of JSON may hold text that is JSON
    except ValueError as error:
        raise DataError(
            f"{_shown(value)} is text, and no JSON of messages ({error}). Make a list of messages of it (map), or tokenize texts "
            "by tokenize()"
        ) from None


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
