"""Conversations as tokens: what a tokenizer's own chat template makes of them, and which of the tokens the assistant wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import DataError, count

TrainOn: TypeAlias = Literal["assistant", "last", "all"]
_GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROMPT: Final = "add_generation_prompt"
_REMEDY: Final = (
    "mark what it generates by {% generation %} in the tokenizer's chat_template, take another train_on, or leave such rows out "
    "(on_error='skip')"
)


class Labelled(NamedTuple):
    """The tokens of a conversation, int32 (n,), and which of them are trained on, bool (n,)."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]


class Turn(NamedTuple):
    """One message of the assistant: the text before it, and the text up to its end; both begin the whole text."""

    message: int
    before: str
    upto: str


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Args:
        text: all of it, special tokens included.
        spans: (begin, end) of what is trained on in it, as the template marks it; None where it marks nothing.
        turns: else the turns that are trained on.
        whole: everything is trained on.
    """

    text: str
    spans: list[tuple[int, int]] | None = None
    turns: tuple[Turn, ...] = ()
    whole: bool = False

    def texts(self) -> list[str]:
        """All that there is to tokenize."""
        return list(dict.fromkeys([self.text, *(text for turn in self.turns for text in (turn.before, turn.upto))]))


def rendered(tokenizer: Any, conversation: Any, tools: Any, train_on: TrainOn) -> Rendered:
    """A conversation as text by the chat template of a transformers tokenizer.

    Args:
        conversation: a list of messages, dicts with a role; or such a list as JSON text. A key whose value is null is left out,
            at any depth: rows of one type have the keys of all.
        tools: a list of JSON schemas, or of JSON texts of them; or all of it as JSON text.
    Raises:
        DataError: it is something else; nobody spoke whom `train_on` names; the template does not tell what the assistant says.
        Exception: what the template raises.
    """
    messages = _messages(conversation)
    known = _tools(tools)
    template = tokenizer.get_chat_template(None, known)

    def text_of(some: list[Any], prompted: bool = False) -> str:
        return _text(tokenizer, template, some, known, prompted=prompted)[0]

    if train_on == "all":
        return Rendered(text_of(messages), whole=True)
    spoken = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        roles = ", ".join(dict.fromkeys(repr(message["role"]) for message in messages))
        raise DataError(
            f"no message is the assistant's (roles: {roles}), so that nothing would be trained on; rename the roles (map), or "
            "leave such rows out (on_error='skip')"
        )
    own = spoken[-1:] if train_on == "last" else spoken
    if tokenizer.is_fast and _GENERATION.search(template):
        text, spans = _text(tokenizer, template, messages, known, marked=True)
        if train_on == "last":
            before = text_of(messages[: own[0]]) if own[0] else ""
            _check_begins(text, before, own[0], "the messages before it")
            spans = [span for span in spans if span[0] >= len(before)]
        if not any(begin < end for begin, end in spans):
            raise DataError(
                f"the chat template marks nothing by {{% generation %}} in {len(own)} turns of the assistant"
            )
        return Rendered(text, spans)
    whole = text_of(messages)
    turns = []
    for number in own:
        before = text_of(messages[:number], prompted=True)
        upto = whole if number + 1 == len(messages) else text_of(messages[: number + 1])
        _check_begins(upto, before, number, "the messages before it, and the prompt to answer them,")
        _check_begins(whole, upto, number, "the messages up to it")
        turns.append(Turn(number, before, upto))
        _say_prefix(template, messages[number], upto[len(before) :])
    return Rendered(whole, turns=tuple(turns))


def labelled(tokenizer: Any, texts: Sequence[Rendered]) -> list[Labelled | DataError]:
    """The tokens of conversations, all of which are tokenized at once; an error where a turn's are not to be told apart."""
    apart = [one.texts() for one in texts]
    flat = [text for own in apart for text in own]
    if not flat:
        return []
    wanted = {"return_offsets_mapping": True} if any(one.spans is not None for one in texts) else {}
    wanted |= {"return_attention_mask": False, "return_token_type_ids": False}
    answer = tokenizer(flat, add_special_tokens=False, verbose=False, **wanted)
    made: list[Labelled | DataError] = []
    for one, own, (first, last) in zip(texts, apart, pairwise(accumulate(map(len, apart), initial=0)), strict=True):
        ids = {text: np.array(row, np.int32) for text, row in zip(own, answer["input_ids"][first:last], strict=True)}
        tokens = ids[one.text]
        trained = np.full(len(tokens), one.whole)
        if one.spans is not None:
            places = np.fromiter(chain.from_iterable(answer["offset_mapping"][first]), np.int64).reshape(-1, 2)
            for span in one.spans:
                trained |= _within(places, span)
        try:
            for turn in one.turns:
                trained[_slots(tokenizer, turn, ids, tokens)] = True
        except DataError as error:
            made.append(error)
            continue
        if not one.whole and not trained.any():
            made.append(DataError("what the assistant says has no token; leave such rows out (on_error='skip')"))
            continue
        trained[:1] = False  # nothing predicts the first token
        made.append(Labelled(tokens, trained))
    return made


def _text(
    tokenizer: Any, template: str, messages: list[Any], tools: Any, *, prompted: bool = False, marked: bool = False
) -> tuple[str, list[tuple[int, int]]]:
    """A conversation by the template, and the spans that this marks."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found: Any = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        return_assistant_tokens_mask=marked,
        add_generation_prompt=prompted,
        **tokenizer.special_tokens_map,
    )
    texts, spans = found
    return texts[0], [(begin, end) for begin, end in spans[0]] if marked else []


def _say_prefix(template: str, message: Any, own: str) -> None:
    """Says once that a role is trained on: a template without add_generation_prompt cannot say where the assistant begins."""
    content = message.get("content")
    if _PROMPT in template or not isinstance(content, str) or not (said := content.strip()):
        return
    before, found, _ = own.partition(said)
    if found and before.strip():
        count(
            "prefix",
            1,
            f"chat: {before!r} before the assistant's words is trained on, too, as the chat template does not use {_PROMPT}. "
            "To train on the words alone, mark them by {% generation %} ... {% endgeneration %} in it",
        )


def _check_begins(whole: str, beginning: str, number: int, what: str) -> None:
    if not whole.startswith(beginning):
        at = next(at for at, pair in enumerate(zip(whole + "\0", beginning + "\1")) if pair[0] != pair[1])
        raise DataError(
            f"what the assistant says in message {number} cannot be told: the chat template writes {what} otherwise when more "
            f"messages follow ({beginning[at : at + 30]!r}, not {whole[at : at + 30]!r}, from character {at:,} on); {_REMEDY}"
        )


def _slots(tokenizer: Any, turn: Turn, ids: dict[str, NDArray[np.int32]], tokens: NDArray[np.int32]) -> slice:
    """Where the tokens of a turn are, which the tokens of what comes before must precede one by one. What follows its last
    special token, if it is white space, is the template's: nobody generates it."""
    before, upto = ids[turn.before], ids[turn.upto]
    for beginning in (before, upto):
        own = tokens[: len(beginning)]
        if not np.array_equal(own, beginning):
            at = next((at for at, pair in enumerate(zip(own, beginning)) if pair[0] != pair[1]), len(own))
            raise DataError(
                f"what the assistant says in message {turn.message} cannot be told: a token lies across its border (token "
                f"{at:,} is {own[at : at + 1].tolist()} in the whole text, {beginning[at : at + 1].tolist()} at that border). "
                f"If the prompt ends in a space, leave this space out of the tokenizer's chat_template; or {_REMEDY}"
            )
    special = np.flatnonzero(np.isin(upto[len(before) :], tokenizer.all_special_ids))
    end = len(upto)
    if len(special):
        closed = len(before) + int(special[-1])
        if turn.upto.rstrip().endswith(tokenizer.convert_ids_to_tokens(int(upto[closed]))):
            end = closed + 1
    return slice(len(before), end)


def _within(places: NDArray[np.int64], span: tuple[int, int]) -> NDArray[np.bool_]:
    """The tokens that hold a character of a span; those of white space may have none, and stand where it ends."""
    (begin, end), (first, last) = span, places.T
    held: NDArray[np.bool_] = np.where(first < last, (first < end) & (last > begin), (first > begin) & (first <= end))
    return held


def _messages(conversation: Any) -> list[Any]:
    messages = _parsed(conversation)
    if not isinstance(messages, list) or not messages:
        raise DataError(f"a conversation must be a list of messages (got {_shown(conversation)})")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            keys = f"keys: {', '.join(message)}" if isinstance(message, dict) else _shown(message)
            raise DataError(
                f"message {number} must be a dict with a role, as {{'role': 'user', 'content': 'Hello'}} ({keys}); rename "
                "what it has (map)"
            )
    return messages


def _tools(tools: Any) -> Any:
    known = _parsed(tools)
    if not known:
        return None
    if not isinstance(known, list):
        raise DataError(f"tools must be a list of JSON schemas (got {_shown(tools)})")
    return [_parsed(tool) for tool in known]


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
