"""Which tokens of a conversation train: by fourteen short templates, by those that hide whose a text is, by those of others."""

# ruff: noqa: RUF001  # some templates have characters that look like others

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import logging
import re
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders

import brimful as bf
from brimful.encoding.conversations import labelled, rendered
from brimful.encoding.turns import ChatTemplate
from tests import tokenizers as make
from tests.conversations import APPENDED, CLOSE, KINDS, OPEN, SPECIAL, answer, conversation, expected, shown, tokenizer
from tests.conversations import user as asked

PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
ONE = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
LOOP = f"{{% for m in messages %}}{ONE}{{% endfor %}}"


def chat(tokenizer: Any, messages: Any, **how: Any) -> dict[str, Any]:
    (sample,) = bf.from_sequence([{"messages": messages}]).chat(tokenizer, **how)
    return sample


def chatty(template: str, **settings: Any) -> Any:
    made = make.chatty(template, **settings)
    made.backend_tokenizer.decoder = decoders.ByteLevel()
    return made


def trained(tokenizer: Any, messages: Any, **how: Any) -> list[str]:
    """The runs of tokens that train."""
    return re.findall(f"{OPEN}(.*?){CLOSE}", shown(tokenizer, chat(tokenizer, messages, **how)), re.DOTALL)


# -- fourteen templates, twelve kinds of conversation ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECIAL)
def test_each_kind_of_conversation_trains_what_stands_in_brackets(name: str, kind: str) -> None:
    template, row, wanted = tokenizer(name), conversation(name, kind), expected(name)[kind]
    data = bf.from_sequence([row]).chat(template)
    if wanted.startswith("refused: "):
        with pytest.raises(
            bf.StageError,
            match=f"TemplateError: {re.escape(wanted.removeprefix('refused: '))} The chat template refuses",
        ):
            list(data)
        return
    (sample,) = data
    theirs = template.apply_chat_template(row["messages"], tools=row.get("tools"))["input_ids"]
    more = sample["input_ids"].tolist()[len(theirs) :]
    assert sample["input_ids"].tolist()[: len(theirs)] == theirs
    assert more == ([template.eos_token_id] if APPENDED in wanted else [])
    assert shown(template, sample, bool(more)) == wanted


@pytest.mark.parametrize("name", SPECIAL)
def test_the_last_turn_alone_and_all_tokens(name: str) -> None:
    template, messages = tokenizer(name), KINDS["two turns"]
    (_, last) = trained(template, messages)
    assert trained(template, messages, train_on="last") == [last]
    sample = chat(template, messages, train_on="all")
    assert sample["labels"].tolist() == [-100, *sample["input_ids"].tolist()[1:]]
    assert sample["input_ids"].tolist() == chat(template, messages)["input_ids"].tolist()


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], list[int]]:
    """How often Jinja renders for one row, and for twenty-one."""
    seen: list[Any] = []
    plain = jinja2.Template.render

    def counted(self: Any, *args: Any, **kwargs: Any) -> str:
        seen.append(self)
        return plain(self, *args, **kwargs)

    def count(tokenizer: Any, row: Any) -> list[int]:
        monkeypatch.setattr(jinja2.Template, "render", counted)
        counts = []
        for size in (1, 21):
            seen.clear()
            assert len(list(bf.from_sequence([row] * size).chat(tokenizer))) == size
            counts.append(len(seen))
        return counts

    return count


@pytest.mark.parametrize("name", SPECIAL)
def test_a_conversation_is_rendered_once(name: str, renderings: Callable[[Any, Any], list[int]]) -> None:
    one, many = renderings(tokenizer(name), conversation(name, "six turns"))
    assert many - one == 20
    assert one <= 5  # short ones, by which the template is known


# -- how a template is followed --------------------------------------------------------------------------------------------

HIDDEN = {
    "a macro": f"{{% macro all() %}}{LOOP}{{% endmacro %}}{{{{ all() }}}}",
    "a set block": f"{{% set body %}}{LOOP}{{% endset %}}{{{{ body }}}}",
    "a filter block": f"{{% filter replace('\0', '') %}}{LOOP}{{% endfilter %}}",
    "a call block": f"{{% macro as_is() %}}{{{{ caller() }}}}{{% endmacro %}}{{% call as_is() %}}{LOOP}{{% endcall %}}",
    "a recursive loop": LOOP.replace("messages", "messages recursive"),
    "a namespace": "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all + '<|im_start|>' + m.role + "
    "'\n' + m.content + '<|im_end|>\n' %}{% endfor %}{{ ns.all }}",
    "another list": "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [{'role': m.role, "
    f"'content': m.content}}] %}}{{% endfor %}}{LOOP.replace('in messages', 'in ns.all')}",
    "the next iteration": "{% set ns = namespace(held='') %}{% for m in messages %}{{ ns.held }}{{ '<|im_start|>' + m.role + "
    "'\n' }}{% set ns.held = m.content + '<|im_end|>\n' %}{% endfor %}{{ ns.held }}",
    "pairs by their numbers": "{% for two in messages | batch(2) %}{{ '<|im_start|>user\n' + two[0].content + '<|im_end|>\n"
    "<|im_start|>assistant\n' + two[1].content + '<|im_end|>\n' }}{% endfor %}",
}
"""Templates that write the text of ChatML, and hold it back, or loop over something else than messages."""
SEEN = {
    "a macro for each": f"{{% macro one(m) %}}{ONE}{{% endmacro %}}{{% for m in messages %}}{{{{ one(m) }}}}{{% endfor %}}",
    "a list of them": "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}"
    + LOOP.replace("in messages", "in ns.all"),
    "a filter": LOOP.replace("in messages", "in messages | rejectattr('role', 'equalto', 'x') | list"),
    "slices": LOOP.replace("in messages", "in messages[:1]") + LOOP.replace("in messages", "in messages[1:]"),
    "numbers": f"{{% for i in range(messages | length) %}}{{% set m = messages[i] %}}{ONE}{{% endfor %}}",
    "numbers alone": "{% for i in range(messages | length) %}{{ '<|im_start|>' + messages[i].role + '\n' + "
    "messages[i]['content'] + '<|im_end|>\n' }}{% endfor %}",
    "numbers around them": "{% for i in range(messages | length) %}{% set after = messages[i + 1] %}{% set m = messages[i] %}"
    f"{ONE}{{% endfor %}}",
    "loop controls": LOOP.replace(
        ONE, f"{{% if m.role == 'x' %}}{{% continue %}}{{% endif %}}{ONE}{{% if 0 %}}{{% break %}}{{% endif %}}"
    ),
    "a look ahead": "{% for m in messages %}{% for other in messages %}\n{% if other.role == 'tool' %}x{% endif %}{% endfor %}"
    f"{ONE}{{% endfor %}}",
    "a first pass": f"{{% for m in messages %}}\n {{% if m.role == 'x' %}}y{{% endif %}}\n{{% endfor %}}{LOOP}",
    "a summary": f"So far: {{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}\n{LOOP}",
    "a block": f"{{% block turns %}}{LOOP}{{% endblock %}}",
    "pairs": f"{{% for two in messages | batch(2) %}}{LOOP.replace('in messages', 'in two')}{{% endfor %}}",
    "a prompt in the loop": LOOP.replace(
        ONE, f"{ONE}{{% if loop.last and add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"
    ),
    "an end at the next": "{% for m in messages %}{% if not loop.first %}{{ '<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + "
    "m.role + '\n' + m.content }}{% endfor %}{{ '<|im_end|>\n' }}",
}
"""Templates whose notes tell all."""


@pytest.mark.parametrize("kind", ["two turns", "six turns", "marks in contents"])
@pytest.mark.parametrize("way", [*HIDDEN, *SEEN])
def test_a_turn_is_found_however_the_template_goes_through_the_messages(way: str, kind: str) -> None:
    found = chatty((HIDDEN | SEEN)[way] + ("" if way == "a prompt in the loop" else PROMPT))
    messages = conversation("chatml", kind)["messages"]
    assert trained(found, messages) == re.findall(f"{OPEN}(.*?){CLOSE}", expected("chatml")[kind], re.DOTALL)
    assert chat(found, messages)["input_ids"].tolist() == found.apply_chat_template(messages)["input_ids"]


@pytest.mark.parametrize("way", HIDDEN)
def test_what_is_held_back_takes_one_more_rendering(way: str, renderings: Callable[[Any, Any], list[int]]) -> None:
    one, many = renderings(chatty(HIDDEN[way] + PROMPT), {"messages": KINDS["two turns"]})
    assert many - one == 40


HELD = HIDDEN["a macro"]


def test_a_template_that_writes_contents_otherwise_is_followed_by_what_each_turn_adds() -> None:
    """Strings around the contents would make other text of them."""
    found = chatty(HELD.replace("m.content", "(m.content | capitalize)") + PROMPT)
    messages = [asked("say"), answer("hello"), asked("and"), answer("bye")]
    assert trained(found, messages) == ["Hello<|im_end|>", "Bye<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{{ messages | map(attribute='content') | sort | join(' ') }}",
            "It writes the messages before it, and the prompt",
        ),
        (
            f"{{{{ messages | length }}}}{HELD.replace('m.content', '(m.content | capitalize)')}{PROMPT}",
            "from character 0 on",
        ),
        (
            "{% if messages[-1].role == 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages | map(attribute='content') | "
            "join | length }}",
            r"It refuses the first 1 messages alone \(no\)",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_template_and_the_place(template: str, words: str) -> None:
    messages = [asked("say"), answer("hello"), asked("and"), answer("bye")]
    with pytest.raises(
        bf.DataError,
        match=r"sequence, row 0: column 'messages': what the assistant says in message 1 cannot be told from what this "
        rf"\w+'s chat template writes\. .*{words}.*Mark what it generates by \{{% generation %\}}",
    ):
        chat(chatty(template), messages)


ASKS = "{{ '<|im_start|>user\n' + %s + '<|im_end|>\n' }}"
SAYS = "{{ '<|im_start|>assistant\n' + %s + '<|im_end|>\n' }}"
ALL = "Topics:{% for m in messages %}{{ ' ' + m.content }}{% endfor %}"
FOR, IF_ANSWER = "{% for m in messages %}", "{% if m.role == 'assistant' %}"
END, IF_END = "{% endfor %}", "{% endif %}{% endfor %}"
BACK = FOR + IF_ANSWER + ASKS % "loop.previtem.content" + SAYS % "m.content" + IF_END
LOOKS = {
    "back by a number": "{% for i in range(1, messages | length, 2) %}"
    + ASKS % "messages[i - 1].content"
    + SAYS % "messages[i].content"
    + END
    + PROMPT,
    "back by the loop": BACK + PROMPT,
    "back, and the prompt, too": BACK + PROMPT.replace("%}{{", "%}" + ASKS % "messages[-1].content" + "{{"),
    "back to what is kept": "{% set ns = namespace(q='') %}"
    + FOR
    + "{% if m.role == 'user' %}{% set ns.q = m.content %}{% else %}"
    + ASKS % "ns.q"
    + SAYS % "m.content"
    + IF_END
    + PROMPT,
    "ahead": FOR
    + "{% if loop.first %}"
    + ASKS % "m.content"
    + "{% endif %}"
    + IF_ANSWER
    + SAYS % "m.content"
    + "{% if not loop.last %}"
    + ASKS % "loop.nextitem.content"
    + "{% endif %}"
    + IF_END
    + PROMPT,
}
"""Templates that write another message's words in an iteration."""
TWICE = {
    "pairs": ALL
    + "{% for q, a in messages | batch(2, {}) %}"
    + ASKS % "q.content"
    + "{% if a %}"
    + SAYS % "a.content"
    + IF_END
    + PROMPT,
    "copies": ALL + HIDDEN["another list"] + PROMPT,
}
"""Templates that write all contents in a loop, and then the turns in one that is not seen."""


@pytest.mark.parametrize("way", [*LOOKS, *TWICE])
def test_what_others_say_never_trains_wherever_a_template_looks(way: str) -> None:
    turns = [[asked("q one"), answer("a one")], [asked("same"), answer("same")], [asked("q"), answer("")]]
    found = chatty((LOOKS | TWICE)[way])
    for messages in (
        turns[0],
        turns[0] + turns[1],
        turns[1] * 3,
        *([turns[0] + turns[2] + turns[1]] if way in LOOKS else []),
    ):
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        assert trained(found, messages) == [f"{one}<|im_end|>" for one in said]
        assert chat(found, messages)["input_ids"].tolist() == found.apply_chat_template(messages)["input_ids"]


PAIR = ASKS % "q.content" + SAYS % "a.content + '</x>'"


@pytest.mark.parametrize(
    "template",
    [
        "{% for q, a in messages | batch(2) %}" + PAIR + END,
        FOR + "{% if m.role == 'user' %}{% set q, a = m, loop.nextitem %}" + PAIR + IF_END,
    ],
    ids=["pairs", "the next one"],
)
def test_the_end_of_a_turn_trains_where_a_template_takes_no_question_alone(template: str) -> None:
    messages = [asked("q"), answer("a"), asked(""), answer("b"), asked("r"), answer("")]
    assert trained(chatty(template + PROMPT), messages) == [f"{one}</x><|im_end|>" for one in ("a", "b", "")]


def test_turns_in_another_order_are_found_where_no_loop_is_over_them() -> None:
    found = chatty(
        f"{{% for i in range(messages | length) %}}{{% set m = messages[messages | length - 1 - i] %}}{ONE}{END}{PROMPT}"
    )
    assert trained(found, [asked("q"), answer("a")]) == ["a<|im_end|>"]
    assert trained(found, KINDS["two turns"]) == ["See you.<|im_end|>", "Hello!<|im_end|>"]
    with pytest.raises(bf.DataError, match="what the assistant says in message 1 cannot be told from what"):
        chat(found, [asked("q"), answer(""), *KINDS["two turns"]])


def test_a_result_that_a_turn_holds_without_a_loop_is_refused() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' and not loop.last and messages[loop.index].role == 'tool' %}"
        + SAYS % "m.content + '\nObservation: ' + messages[loop.index].content"
        + "{% elif m.role != 'tool' %}"
        + ONE
        + "{% endif %}{% endfor %}"
        + PROMPT
    )
    messages = [asked("q"), answer("Look."), RESULT, answer("a")]
    with pytest.raises(bf.DataError, match="what the assistant says in message 1 cannot be told from what"):
        chat(chatty(template), messages)
    assert trained(chatty(template), [asked("q"), answer("Look.")]) == ["Look.<|im_end|>"]


COPIES = (
    "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [{'role': 'bot' if m.role == 'assistant' "
    "else 'human', 'content': m.content}] %}{% endfor %}{% for m in ns.all %}TURN{% endfor %}"
    "{% if add_generation_prompt %}{{ 'PROMPT' }}{% endif %}"
)
TAILS = {
    "a tag": ("<|im_start|>{{ m.role }}\n{{ m.content }}</message><|im_end|>\n", "{}</message><|im_end|>"),
    "a quote": ("<|im_start|>{{ m.role }}\n{{ m.content | tojson }}<|im_end|>\n", '"{}"<|im_end|>'),
    "a tag alone": ("### {{ m.role }}:\n{{ m.content }}</x>\n", "{}</x>\n"),
    "a line end": ("{{ m.role | upper }}:{{ m.content }}\n", "{}\n"),
}


@pytest.mark.parametrize("footer", ["", "The end."])
@pytest.mark.parametrize("tail", TAILS)
def test_the_end_of_a_turn_trains_where_its_loop_is_not_seen(tail: str, footer: str) -> None:
    """Of earlier turns, before empty ones, of empty ones; and no more than the end."""
    turn, wanted = TAILS[tail]
    header = turn.partition("{{ m.content")[0].replace("{{ m.role }}", "bot").replace("{{ m.role | upper }}", "BOT")
    found = chatty(COPIES.replace("TURN", turn).replace("PROMPT", header.replace("\n", "\\n")) + footer)
    two = [asked("q"), answer("say"), asked("more"), answer("bye")]
    assert trained(found, two) == [wanted.format("say"), wanted.format("bye")]
    assert trained(found, [*two[:2], asked("")]) == [wanted.format("say")]
    if "im_end" in wanted and '"' not in wanted:
        assert trained(found, [asked("q"), answer(""), *two[2:]]) == [wanted.format(""), wanted.format("bye")]
        assert trained(found, [asked("q"), answer("")]) == [wanted.format("")]
        assert trained(found, [asked("q"), answer(""), asked(""), answer("")]) == [wanted.format("")] * 2


def test_a_tokenizer_that_renders_in_its_own_way_is_followed_by_strings() -> None:
    class Own(type(make.chatty())):  # type: ignore[misc]
        def apply_chat_template(self, conversation: Any, **how: Any) -> Any:
            return super().apply_chat_template(conversation, **how).replace("\0", "")

    found = Own(
        tokenizer_object=chatty("").backend_tokenizer,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    found.chat_template = LOOP + PROMPT
    assert trained(found, KINDS["two turns"]) == ["Hello!<|im_end|>", "See you.<|im_end|>"]


def test_the_template_for_tools_is_taken_where_there_are_some() -> None:
    found = chatty("")
    found.chat_template = {"default": LOOP + PROMPT, "tool_use": f"{{{{ tools | length }}}}{LOOP}{PROMPT}"}
    rows = [{"messages": KINDS["one turn"], "tools": tools} for tools in ([{"name": "f"}], None)]
    texts = [shown(found, sample) for sample in bf.from_sequence(rows).chat(found)]
    assert texts == [start + expected("chatml")["one turn"] for start in ("1", "")]


# -- what a turn trains ----------------------------------------------------------------------------------------------------


def test_of_the_prompt_as_much_is_the_header_as_a_turn_has() -> None:
    """A word, or a tag, that the answer begins with is no part of it, though it begins as the prompt does."""
    found = chatty(LOOP + PROMPT.replace("assistant\n'", "assistant\n<think>\nSo'"))
    said = ["Some", "<b>x</b>", "<think>\nSome</think>", "<think>\nSo, x</think>", "assistant\n"]
    messages = [one for text in said for one in (asked("q"), answer(text))]
    own = ["Some", "<b>x</b>", "Some</think>", ", x</think>", "assistant\n"]
    assert trained(found, messages) == [f"{text}<|im_end|>" for text in own]


def test_what_stands_before_the_first_turn_is_not_trained() -> None:
    first = LOOP.replace(
        ONE, f"{{% if loop.first %}}{{{{ '<|im_start|>system\nWelcome<|im_end|>\n' }}}}{{% endif %}}{ONE}"
    )
    for said in ("Welcome", "<|im_start|>assistant\n", ""):
        messages = [answer(said), asked("q"), answer("a")]
        assert trained(chatty(first + PROMPT), messages) == [f"{said}<|im_end|>", "a<|im_end|>"]


def test_white_space_between_turns_is_not_trained() -> None:
    between = LOOP.replace("<|im_end|>\n'", "<|im_end|>'").replace(ONE, "{{ '\n' if not loop.first }}" + ONE)
    between = between.replace("<|im_end|>\n'", "<|im_end|>'")
    found = chatty(between + PROMPT.replace("'<|im_start|>", "'\n<|im_start|>"))
    messages = [answer("Hi"), asked("q"), answer("a")]
    assert trained(found, messages) == ["Hi<|im_end|>", "a<|im_end|>"]


ENDS_AT_THE_NEXT = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.tool_calls %}<|call|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


NO_MARKS = (
    "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def runs_on(template: str = ENDS_AT_THE_NEXT) -> Any:
    found = chatty(template)
    found.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|tool|>", "<|call|>"]})
    return found


def test_the_mark_of_the_next_role_is_trained_where_it_ends_a_turn() -> None:
    call = answer("", tool_calls=[{"function": {"name": "f", "arguments": {}}}])
    messages = [
        asked("q"),
        call,
        {"role": "tool", "content": "r"},
        answer("a"),
        asked("<|user|>"),
        answer("I say <|user|>"),
    ]
    assert trained(runs_on(), messages) == ["<|call|><|tool|>", "a<|user|>", "I say <|user|><|im_end|>"]


@pytest.mark.parametrize(
    ("template", "how", "last"),
    [
        (ENDS_AT_THE_NEXT, {}, "a<|im_end|>"),
        (ENDS_AT_THE_NEXT, {"end_token": "<|user|>"}, "a<|user|>"),
        (ENDS_AT_THE_NEXT + "{{ eos_token }}", {}, "a<|im_end|>"),
        (ENDS_AT_THE_NEXT.replace("{{ m.content }}", "{{ m.content }}{{ eos_token if loop.last }}"), {}, "a<|im_end|>"),
        (LOOP + PROMPT, {"end_token": "<|user|>"}, "a<|im_end|>"),
        (NO_MARKS, {}, "a\n"),
        (NO_MARKS, {"end_token": "<|im_end|>"}, "a\n<|im_end|>"),
    ],
)
def test_a_last_turn_without_an_end_gets_one(template: str, how: dict[str, str], last: str) -> None:
    """By default EOS, where the mark of the next role is what ends turns; the text has it once in any case."""
    found = runs_on(template)
    messages = [asked("q"), answer("a"), asked("q"), answer("a")]
    sample = chat(found, messages, **how)
    assert trained(found, messages, **how)[-1] == last
    assert trained(found, messages, train_on="all", **how)[-1].endswith(
        last + ("\n" if "<|im_end|>\n" in template else "")
    )
    theirs = found.apply_chat_template(messages)["input_ids"]
    more = [found.convert_tokens_to_ids(how["end_token"])] if how and template != LOOP + PROMPT else []
    more = [found.eos_token_id] if template == ENDS_AT_THE_NEXT and not how else more
    assert sample["input_ids"].tolist() == theirs + more


def test_nothing_is_appended_to_what_the_assistant_did_not_end() -> None:
    found = runs_on()
    for messages in (
        [asked("q"), answer("a"), asked("q")],
        [asked("q"), answer("a"), asked("q"), answer("a", train=False)],
    ):
        assert trained(found, messages) == ["a<|user|>"]
        assert chat(found, messages)["input_ids"].tolist() == found.apply_chat_template(messages)["input_ids"]


THINKS = LOOP.replace(
    "m.content",
    "('<think>\n\n</think>\n\n' if m.role == 'assistant' and '<think>' not in m.content else '') + m.content",
)


def test_a_think_block_that_the_template_supplies_is_trained_on_demand() -> None:
    found, messages = chatty(THINKS + PROMPT), [asked("q"), answer("say")]
    assert trained(found, messages) == ["say<|im_end|>"]
    assert trained(found, messages, train_empty_think=True) == ["<think>\n\n</think>\n\nsay<|im_end|>"]
    own = [asked("q"), answer("<think>\n</think>\n\nsay")]
    assert trained(found, own) == ["<think>\n</think>\n\nsay<|im_end|>"]
    assert trained(found, [asked("q"), answer("<think>x</think>say")]) == ["<think>x</think>say<|im_end|>"]


def test_a_think_block_may_begin_in_the_prompt() -> None:
    """Its white space is one token with the prompt's then: no border is crossed, as none of it trains."""
    found = chatty(THINKS + PROMPT.replace("assistant\n'", "assistant\n<think>\n'"))
    found.add_tokens(["\n\n"])
    assert trained(found, [asked("q"), answer("say")]) == ["say<|im_end|>"]
    with_block = trained(found, [asked("q"), answer("say")], train_empty_think=True)
    assert with_block == ["\n\n</think>\n\nsay<|im_end|>"]


def test_a_role_mark_that_takes_white_space_is_not_trained() -> None:
    """As Phi's: `<|assistant|>` takes the white space after it, that of the answer, too."""
    found = chatty("{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|im_end|>' }}{% endfor %}"
                   "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")  # fmt: skip
    found.add_tokens(
        [AddedToken(f"<|{role}|>", special=True, rstrip=True) for role in ("user", "assistant")], special_tokens=True
    )
    assert trained(found, [asked("q"), answer("  say")]) == ["say<|im_end|>"]


def test_special_tokens_are_known_that_the_tokenizer_has_no_name_for() -> None:
    """Llama's `<|eot_id|>` and gpt-oss' `<|call|>` are in no list of names."""
    found = chatty((LOOP + PROMPT).replace("<|im_end|>", "<|end|>"))
    found.add_tokens([AddedToken("<|end|>", special=True)], special_tokens=True)
    found._extra_special_tokens = []
    assert "<|end|>" not in found.all_special_tokens
    assert trained(found, [asked("q"), answer("a")]) == ["a<|end|>"]


def test_results_that_stand_inside_a_turn_are_not_trained() -> None:
    """As in Gemma 4: what the tool says is written in the iteration of the message that called it."""
    template = (
        "{% for m in messages if m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% set here = loop.index0 %}"
        "{% if m.tool_calls %}f(){% for n in range(messages | length) %}{% if n > here and messages[n].role == 'tool' %}"
        "{{ '[' + messages[n].content + ']' }}{% endif %}{% endfor %}Done.{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        + PROMPT
    )
    call = answer("Wait.", tool_calls=[{"function": {"name": "f", "arguments": {}}}])
    messages = [asked("q"), call, {"role": "tool", "content": "result"}]
    assert trained(chatty(template), messages) == ["Wait.f()", "Done.<|im_end|>"]


def called(name: str = "weather", content: str = "", **arguments: Any) -> dict[str, Any]:
    return answer(content, tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}])


RESULT = {"role": "tool", "content": "result"}


def test_white_space_between_two_results_is_not_trained() -> None:
    """As in Gemma 4: the turn that calls goes on with a line end, and the next turn follows it."""
    template = (
        "{% for m in messages if m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\n' if not loop.previtem or "
        "not loop.previtem.tool_calls }}{{ m.content }}{% set here = loop.index0 %}{% if m.tool_calls %}f(){% for n in "
        "range(messages | length) %}{% if n > here and messages[n].role == 'tool' %}{{ '[' + messages[n].content + ']' }}"
        "{% endif %}{% endfor %}{{ '\n' }}{% else %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}" + PROMPT
    )
    messages = [asked("q"), called(), RESULT, answer("It is so.")]
    assert trained(chatty(template), messages) == ["f()", "It is so.<|im_end|>"]


def test_white_space_before_a_header_may_be_more_than_before_the_prompt() -> None:
    """As in templates that are indented, and do not strip white space."""
    indented = "{% for m in messages %}   {{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
    found = chatty(indented + "{% if add_generation_prompt %} {{ '<|im_start|>assistant\n' }}{% endif %}")
    assert trained(found, KINDS["two turns"]) == ["Hello!<|im_end|>", "See you.<|im_end|>"]


def test_a_think_block_may_be_named_by_special_tokens() -> None:
    """As in Kimi K3: `open` and `close` are tokens, and the name stands between them and `sep`."""
    turn = LOOP.replace(
        "m.content",
        "('<|open|>think<|sep|>' + (m.reasoning_content or '') + '<|close|>think<|sep|>' if m.role == 'assistant' else '') "
        "+ m.content",
    )
    found = chatty(turn + PROMPT.replace("assistant\n'", "assistant\n<|open|>think<|sep|>'"))
    found.add_special_tokens({"additional_special_tokens": ["<|open|>", "<|close|>", "<|sep|>"]})
    messages = [asked("q"), answer("a"), asked("q"), answer("b", reasoning_content="So.")]
    assert trained(found, messages) == ["a<|im_end|>", "So.<|close|>think<|sep|>b<|im_end|>"]
    assert trained(found, messages, train_empty_think=True)[0] == "<|close|>think<|sep|>a<|im_end|>"


def test_the_header_of_a_turn_that_nothing_asks_for_is_not_trained() -> None:
    """Some templates ask for no answer after an answer."""
    silent = PROMPT.replace("if add_generation_prompt", "if add_generation_prompt and messages[-1].role != 'assistant'")
    found = chatty(HELD.replace("m.content", "(m.content | capitalize)") + silent)
    messages = [asked("say"), answer("one"), answer("two"), asked("and"), answer("three")]
    assert trained(found, messages) == ["One<|im_end|>", "Two<|im_end|>", "Three<|im_end|>"]


HELD_LINES = (
    "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all + LINE %}{% endfor %}{{ ns.all }}"
)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}",
        HELD_LINES.replace("LINE", "m.content") + "{% if add_generation_prompt %}Answer:{% endif %}",
        "{{ 'f' if tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
    ],
    ids=["a loop", "a namespace", "tools alone"],
)
def test_a_call_of_which_nothing_is_written_refuses_no_conversation(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [asked("q"), called("f", city="Rome"), RESULT, answer("It is so.")]
    row = {"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]}
    with caplog.at_level(logging.WARNING, "brimful"):
        (sample,) = bf.from_sequence([row]).chat(chatty(template))
    assert re.findall(f"{OPEN}(.*?){CLOSE}", shown(chatty(template), sample)) == ["It is so."]
    assert "writes nothing of tool_calls (of 'f' in message 1)" in caplog.text


TEXTS = LOOP.replace(
    ONE, "{{ '<|im_start|>' + m.role + '\n' }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ '<|im_end|>\n' }}"
)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_all_parts_of_a_content_train_and_a_think_block_in_one_of_them() -> None:
    found = chatty(TEXTS + PROMPT)
    messages = [asked("") | {"content": parts("one\n", "two"), "train": 1}, answer("") | {"content": parts("a")}]
    assert trained(found, messages, train_on="marked") == ["one\ntwo<|im_end|>"]
    for own in (parts("<think>\n\n</think>\n\nsay"), parts("<think>\n\n</think>\n\n", "say")):
        assert trained(found, [messages[0], answer("") | {"content": own}]) == ["<think>\n\n</think>\n\nsay<|im_end|>"]


@pytest.mark.parametrize("said", ["</think> say", "<think>\n</think>say"])
def test_a_think_block_before_one_in_the_content_is_the_templates(said: str) -> None:
    found = chatty(THINKS.replace(" and '<think>' not in m.content", "") + PROMPT)
    assert trained(found, [asked("q"), answer(said)]) == [f"{said}<|im_end|>"]


@pytest.mark.parametrize("said", ["user", "us", "e", "<start_of_turn>user"])
def test_a_question_trains_that_its_header_holds(said: str) -> None:
    """As in Gemma, whose prompt has another name for the assistant."""
    found, messages = tokenizer("gemma_3"), [asked(said) | {"train": 1}, answer("a")]
    assert trained(found, messages, train_on="marked") == [f"{said}<end_of_turn>"]


def test_bos_ends_no_turn() -> None:
    """A template may write it before each question."""
    found = chatty(
        "{% for m in messages %}{{ bos_token + 'User: ' if m.role == 'user' else 'Bot:' }}{{ m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}Bot:{% endif %}",
        bos_token="<s>",
    )
    assert trained(found, [asked("q"), answer("a"), asked("q"), answer("b")]) == ["a\n", "b\n"]


def test_the_mark_that_opens_the_next_turn_ends_none_where_turns_have_an_end() -> None:
    """As in TRL's diffusion_gemma: what is said after a result has no end."""
    found = chatty(LOOP.replace("'<|im_end|>\n'", "('' if m.tool_calls else '<|im_end|>\n')") + PROMPT)
    messages = [asked("q"), called("f", content="Look.f"), answer("a")]
    assert trained(found, messages) == ["Look.f", "a<|im_end|>"]


def test_a_role_that_begins_another_word_ends_no_turn() -> None:
    """As in Reka Edge: `tool` begins `tool_response`, which stands in a turn of its own."""
    line = (
        "('human: <tool_response>' + m.content + '</tool_response>' if m.role == 'tool' else m.role + ': ' + m.content + "
        "('call()' if m.tool_calls else '')) + '\n'"
    )
    found = chatty(HELD_LINES.replace("LINE", line) + "{% if add_generation_prompt %}assistant:{% endif %}")
    messages = [asked("q"), called("call", content="Wait. "), RESULT, answer("It is so.")]
    assert trained(found, messages) == [" Wait. call()\n", " It is so.\n"]


# -- marks of the template ---------------------------------------------------------------------------------------------------

MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + "
    "'<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


def test_marks_of_the_template_say_what_trains_also_of_some_messages() -> None:
    messages = [
        asked("q"),
        answer("a"),
        asked(
            "r",
        )
        | {"train": True},
        answer("b"),
    ]
    found = chatty(MARKED + PROMPT)
    assert trained(found, messages) == ["a<|im_end|>", "b<|im_end|>"]
    assert trained(found, messages, train_on="last") == ["b<|im_end|>"]
    assert trained(found, messages, train_on="marked") == ["r<|im_end|>"]
    messages[1]["train"] = False
    assert trained(found, messages) == ["b<|im_end|>"]


def test_marks_in_a_macro_are_not_trusted() -> None:
    """Their places are those in the macro; so the turn is found as if there were none."""
    macro = "{% macro one(m) %}" + MARKED.partition("%}")[2].removesuffix("{% endfor %}") + "{% endmacro %}"
    found = chatty(macro + "{% for m in messages %}{{ one(m) }}{% endfor %}" + PROMPT)
    assert trained(found, [asked("q"), answer("a")]) == ["a<|im_end|>"]


PAIRS_MARKED = (
    "{% for q, a in messages | batch(2) %}" + ASKS % "q.content" + "{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{{ a.content + '<|im_end|>' }}{% endgeneration %}{% endfor %}"
)
NEXT_MARKED = (
    "{% for i in range(0, messages | length, 2) %}" + ASKS % "messages[i].content" + "{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ messages[i + 1].content + '<|im_end|>' }}{% endgeneration %}{% endfor %}"
)


@pytest.mark.parametrize("template", [PAIRS_MARKED, NEXT_MARKED], ids=["pairs", "the next message"])
def test_marks_are_those_of_the_turns_in_order_where_no_loop_is_over_them(template: str) -> None:
    found, messages = chatty(template + PROMPT), [asked("q"), answer("a"), asked("r"), answer("")]
    assert trained(found, messages) == ["a<|im_end|>", "<|im_end|>"]
    assert trained(found, messages, train_on="last") == ["<|im_end|>"]
    messages[1]["weight"] = 0
    assert trained(found, messages) == ["<|im_end|>"]
    assert trained(found, [asked("q") | {"train": 1}, answer("a")], train_on="marked") == ["q<|im_end|>"]


def test_a_weight_of_0_leaves_the_marks_of_others() -> None:
    """The marks of the template may be on all roles."""
    found = chatty(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% generation %}{{ m.content + '<|im_end|>' }}"
        "{% endgeneration %}{{ '\n' }}{% endfor %}" + PROMPT
    )
    messages = [asked("q"), answer("a"), asked("r"), answer("")]
    assert trained(found, messages) == ["q<|im_end|>", "a<|im_end|>", "r<|im_end|>", "<|im_end|>"]
    messages[1]["weight"] = 0
    assert trained(found, messages) == ["q<|im_end|>", "r<|im_end|>", "<|im_end|>"]
    assert trained(found, messages, train_on="last") == ["<|im_end|>"]


def test_a_mark_around_several_messages_is_nobodys() -> None:
    found = chatty("{% generation %}" + LOOP + "{% endgeneration %}" + PROMPT)
    assert len(trained(found, KINDS["two turns"])) == 1
    with pytest.raises(
        bf.DataError, match=r"by \{% generation %\} cannot be told: it has 1 marks in 2 turns .*train_on='assistant'"
    ):
        chat(found, KINDS["two turns"], train_on="last")


def test_marks_of_the_template_get_an_end_on_demand() -> None:
    """What it marks last may lack one."""
    open_ = MARKED.replace(
        "m.content + '<|im_end|>' }}{% endg", "m.content + ('' if loop.last else '<|im_end|>') }}{% endg"
    )
    found, messages = runs_on(open_ + PROMPT), [asked("q"), answer("a"), asked("r"), answer("b")]
    assert trained(found, messages)[-1] == "b"
    assert trained(found, messages, end_token="<|user|>") == ["a<|im_end|>", "b", "<|user|>"]
    assert trained(found, messages[:3], end_token="<|user|>") == ["a<|im_end|>"]
    assert trained(runs_on(MARKED + PROMPT), messages, end_token="<|user|>") == ["a<|im_end|>", "b<|im_end|>"]


# -- what is said once -------------------------------------------------------------------------------------------------------

CALL = answer("", tool_calls=[{"type": "function", "function": {"name": "weather", "arguments": {}}}])


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (
            LOOP + PROMPT,
            [asked("q"), CALL],
            r"writes nothing of tool_calls \(of 'weather' in message 1\), so no call is trained",
        ),
        (MARKED, [asked("q"), CALL], r"writes nothing of tool_calls \(of 'weather' in message 1\)"),
        (
            LOOP + PROMPT,
            [asked("q"), answer("a<|im_end|>")],
            r"a turn ends in '<\|im_end\|>' twice\. The content may have one",
        ),
        (LOOP + "{{ eos_token }}", [asked("q"), answer("a")], r"a turn ends in '<\|im_end\|>' twice"),
        (MARKED, [asked("q"), answer("a<|im_end|>\n")], r"a turn ends in '<\|im_end\|>' twice"),
        (ENDS_AT_THE_NEXT, [asked("q"), answer("a")], r"'<\|im_end\|>' is appended to conversations whose last turn"),
        (LOOP + PROMPT, [asked("q"), answer("a")], None),
        (LOOP.replace("m.content", "m.content ~ (m.tool_calls or '')") + PROMPT, [asked("q"), CALL], None),
    ],
)
def test_what_may_surprise_is_said_once(
    template: str, messages: Any, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    data = bf.from_sequence([{"messages": messages}] * 5).chat(runs_on(template))
    with caplog.at_level(logging.WARNING, "brimful"):
        list(data)
    said = [message for message in caplog.messages if "add_generation_prompt" not in message]
    assert len(said) == (words is not None)
    assert words is None or re.search(words, said[0])


# -- templates of others -----------------------------------------------------------------------------------------------------

PACKAGES = ("transformers", "trl", "axolotl", "litellm", "llama_cpp", "mlx_vlm", "sglang", "unsloth", "vllm")
"""They bring templates: as files, or as text in their modules."""
SPECIALS = re.compile(
    r"<[|｜][^<>|｜\s]*[|｜]>|<(?:start|end)_of_(?:turn|utterance)>|\[/?INST\]|\[gMASK\]|<sop>|<\|?turn\|?>|\[\|\w+\|\]"
)


@cache
def stock(package: str) -> dict[str, str]:
    """The templates that a package brings, by their names. It is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed, which brings templates")
    folder = Path(spec.origin).parent
    found = {path.stem: path.read_text() for path in sorted(folder.rglob("*.jinja"))}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if b"in messages" in source and b"{%" in source:
            for node in ast.walk(ast.parse(source)):
                text = node.value if isinstance(node, ast.Constant) else None
                if (
                    isinstance(text, str)
                    and re.match(r"\s*{[%{#]", text)
                    and re.search(r"{%-?\s*for .* in messages", text)
                ):
                    found[f"{path.stem}:{node.lineno}"] = text
    return found


@cache
def known_by(template: str) -> Any:
    """A tokenizer whose special tokens are those of a template."""
    words = make.bpe()
    words.decoder = decoders.ByteLevel()
    special = sorted({*SPECIALS.findall(template)})
    made = make._fast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", additional_special_tokens=special)
    made.chat_template = template
    return made


ENDS = {
    "</s>": "alpaca deepseek_v2 mistral_v3_tekken mistral_v7_tekken pixtral template_deepseek_vl2",
    "<|END_OF_TURN_TOKEN|>": "aya cohere",
    "<|im_end|>": "chatml falcon_h1 nemotron_h qwen2_vl qwen3 qwen3_5 qwen_25 lfm2 lfm2_v2 nemotron_3_5_lightning "
    "nemotron_3_nano nemotron_3_super nemotron_3_ultra qwen2_5 qwen2_5_vl qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8 "
    "qwen3_instruct_2507 qwen3_vl template_minicpmv45",
    "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>": "command_a cohere2",
    "<｜end▁of▁sentence｜>": "deepseek_v3 deepseek_r1_distill deepseekv3",
    "[|endofturn|]": "exaone exaone4",
    "<end_of_turn>": "gemma gemma3 gemma3n",
    "<turn|>": "gemma4 gemma4_unified diffusion_gemma gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
    "<|eot_id|>": "llama3 llama3_2_vision llama3_1 llama3_2",
    "<|eot|>": "llama4",
    "<|end|>": "phi_3 phi_35 phi3 phi3_5",
    "": "template_basic template_deepseek_ocr",
}
"""What ends the turns of templates, and is trained with them."""
OTHERS = {
    "command_a_rag": ["<|START_RESPONSE|>{}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"]
    * 2,  # its prompt does not have the first
    "command_a_tool_use": ["<|START_RESPONSE|>{}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"] * 2,
    "jamba": [" {}<|eom|>"] * 2,
    "metharme": ["{}<|user|>", "{}</s>"],
    "mistral_v1": [" {}</s>"] * 2,
    "mistral_v2v3": [" {}</s>"] * 2,
    "template_blip2": [" {} "] * 2,
    "template_chatml": ["{}<|im_end|>", "{}"],
    "glm4moe": ["{}<|user|>", "{}</s>"],
    "gptoss": ["<|channel|>final<|message|>{}<|end|>", "<|channel|>final<|message|>{}<|return|>"],
    "idefics3": [" {}<end_of_utterance>"] * 2,
    "llava_next": [" {}</s>"] * 2,
    "muse_glimmer": [" to=user<|message|>{}<|eot|>"] * 2,
    "smolvlm": [" {}<end_of_utterance>"] * 2,
}
"""Of templates that write more, or end their last turn otherwise, what two turns train."""
WRITES_NOTHING = ("template_kimi_audio",)
"""It does not look at the messages."""


@pytest.mark.parametrize("package", ["trl", "axolotl", "vllm"])
def test_two_turns_of_each_template_of_others(package: str) -> None:
    by_end = {name: [f"{{}}{end}"] * 2 for end, names in ENDS.items() for name in names.split()} | OTHERS
    unknown = []
    for name, template in stock(package).items():
        if "generation %}" in template or name in WRITES_NOTHING or ":" in name:
            continue
        if name not in by_end:
            unknown.append(name)
            continue
        wanted = [one.format(said) for one, said in zip(by_end[name], ("Hello!", "See you."))]
        assert trained(known_by(template), KINDS["two turns"]) == wanted, name
    assert len(unknown) <= len(stock(package)) // 2, f"what these train is not written down: {unknown}"


@pytest.mark.parametrize("package", PACKAGES)
def test_all_that_the_assistant_says_trains_by_each_template_of_others(package: str) -> None:
    """Each text of a conversation has a word of its own, which tells what of it trains."""
    for (name, template), kind in product(stock(package).items(), KINDS):
        found, row = known_by(template), with_words(conversation("chatml", kind))
        theirs = rendered_by(found, row)
        if theirs is None:
            continue
        turns = rendered(followed(template), row["messages"], row.get("tools"), "assistant")()
        (made,) = labelled(found, [turns])
        if isinstance(made, Exception):
            assert not re.search("z[ACR]", theirs), (name, kind, made)
            continue
        ids, appended = made.tokens.tolist(), turns.end is not None
        assert ids[: len(ids) - appended] == found(theirs, add_special_tokens=False)["input_ids"], (name, kind)
        whole, trains = (found.decode(ids[1:]), found.decode(made.tokens[made.trained]))
        for word in {*re.findall(r"z[A-Z]\d+z", whole)}:
            assert trains.count(word) == (whole.count(word) if word[1] in "ACR" else 0), (name, kind, word, trains)


def with_words(row: dict[str, Any]) -> dict[str, Any]:
    """A conversation with a word of its own in each text. The assistant's begin with zA, zC (arguments) and zR (thoughts)."""
    row = copy.deepcopy(row)
    for number, message in enumerate(row["messages"]):
        word = f"z{'A' if message['role'] == 'assistant' else 'Q'}{number}z"
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"]["city"] += f" zC{number}z"
        if "reasoning_content" in message:
            message["reasoning_content"] += f" zR{number}z"
        if said := message["content"]:
            message["content"] = f"{'' if said.startswith('<think>') else word}{said} {word}"
    return row


def rendered_by(tokenizer: Any, row: dict[str, Any]) -> str | None:
    """What transformers renders; with lists of parts, if the template takes these alone; None: nothing."""
    messages, tools = row["messages"], row.get("tools")
    parts = [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
    short = [{"role": "user", "content": "Hi"}]
    try:
        if "Hi" not in tokenizer.apply_chat_template(short, tokenize=False):
            messages = parts
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    except Exception:
        return None


@cache
def followed(template: str) -> ChatTemplate:
    return ChatTemplate(known_by(template), template, {})


def test_what_trl_marks_in_its_templates_for_training_trains() -> None:
    """It marks by hand what each template generates; but for think blocks that hold nothing, and where the prompt opens one."""
    templates, compared = stock("trl"), 0
    pairs = [(name.removesuffix("_training"), name) for name in templates if name.endswith("_training")]
    for (plain, marked), kind in product(pairs, KINDS):
        row, both = conversation("chatml", kind), [templates[one] for one in (plain, marked)]
        try:
            own, theirs = (rendered(followed(one), row["messages"], row.get("tools"), "assistant")() for one in both)
        except Exception:
            continue
        if own.text != theirs.text:
            continue  # a template for training may write other text
        one, other = ({at for span in turns.spans for at in range(*span)} for turns in (own, theirs))
        assert one <= other, (marked, kind)
        more = "".join(own.text[at] for at in sorted(other - one))
        known = r"<think>(\s*</think>)?|<｜Assistant｜>|<｜tool▁outputs▁end｜>|<\|start\|>assistant|</s>|\s"
        assert not re.sub(known, "", more), (marked, kind)
        compared += 1
    assert compared > 200


# -- tool calls as they were written ---------------------------------------------------------------------------------------

CALLS = (
    "{% for one in tools or [] %}{{ one | tojson }}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name + (c.function.arguments | tojson) }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}" + PROMPT
)
plain_scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text('aé\n"{ 1', max_size=4)
plain_values = st.recursive(
    plain_scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text("pqr", min_size=1, max_size=2), plain_values, max_size=3)


@given(st.lists(st.tuples(arguments, arguments), min_size=1, max_size=4))
def test_tool_calls_are_rendered_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[Any, Any]]
) -> None:
    """The order of keys, nulls, whole numbers and floats; whatever the rows around them hold."""
    found = chatty(CALLS)
    rows = [
        {
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "f", "arguments": told_to}}],
                },
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": told}}],
        }
        for told_to, told in calls
    ]
    theirs = [found.apply_chat_template(row["messages"], tools=row["tools"])["input_ids"] for row in rows]
    path = tmp_path_factory.mktemp("calls") / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (bf.from_files(path), bf.from_sequence(rows), bf.from_iterable(rows)):
        assert [sample["input_ids"].tolist() for sample in data.chat(found)] == theirs
