"""Conversations: which tokens are trained on, by the template's marks or by what a turn adds; and what cannot be told."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PythonBackend

import brimful as bf
from brimful.testing import assert_exact_resume
from tests import tokenizers as make
from tests.effort import examples
from tests.shards import write

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "the fox"},
    {"role": "user", "content": "more?"},
    {"role": "assistant", "content": "x"},
]
TURNS = {"assistant": ["the fox<|im_end|>", "x<|im_end|>"], "last": ["x<|im_end|>"]}


def talks(*conversations: Any, **columns: Any) -> bf.Dataset:
    return bf.from_sequence([{"messages": one, **columns} for one in conversations])


def said(tokenizer: Any, sample: dict[str, Any]) -> list[str]:
    """The runs of tokens that are trained on, as the texts that they are of."""
    runs: list[list[int]] = []
    before = -100
    for token, label in zip(sample["input_ids"].tolist(), sample["labels"].tolist(), strict=True):
        assert label in (token, -100)
        if label != -100:
            runs += [[]] if before == -100 else []
            runs[-1].append(label)
        before = label
    return [
        "".join(tokenizer.convert_ids_to_tokens(run)).replace("\u0120", " ").replace("\u010a", "\n") for run in runs
    ]


@pytest.mark.parametrize("template", [make.CHATML, make.MARKED])
@pytest.mark.parametrize("train_on", TURNS)
def test_what_the_assistant_says_is_trained_on_and_the_end_of_its_turn(
    template: str, train_on: Literal["assistant", "last"]
) -> None:
    tokenizer = make.chatty(template)
    (sample,) = talks(TALK, id=7).chat(tokenizer, train_on=train_on)
    assert sample["input_ids"].tolist() == tokenizer.apply_chat_template(TALK)["input_ids"]
    assert said(tokenizer, sample) == TURNS[train_on]
    assert (sample["id"], sample["messages"]) == (7, TALK)
    assert sample["input_ids"].dtype == sample["labels"].dtype == "int32"


def test_all_tokens_but_the_first_are_labels_where_all_are_trained_on() -> None:
    (sample,) = talks(TALK).chat(make.chatty(), train_on="all")
    assert sample["labels"].tolist() == [-100, *sample["input_ids"].tolist()[1:]]


contents = st.text(st.sampled_from("ab \u00e9\U0001f600,.?\n"), max_size=12)
turns = st.lists(st.tuples(contents, contents.map(lambda text: f"x{text}")), min_size=1, max_size=4)


@given(st.lists(turns, min_size=1, max_size=5), st.sampled_from(["assistant", "last"]))
@examples(40)
def test_marks_and_what_a_turn_adds_say_the_same(conversations: Any, train_on: Literal["assistant", "last"]) -> None:
    """So do prompts: each begins the tokens of the whole, up to where the model speaks."""
    rows = [
        [{"role": role, "content": text} for pair in turns for role, text in zip(("user", "assistant"), pair)]
        for turns in conversations
    ]
    plain, marked = (list(talks(*rows).chat(one, train_on=train_on)) for one in (PLAIN, MARKED))
    for row, one, other in zip(rows, plain, marked, strict=True):
        assert one["input_ids"].tolist() == other["input_ids"].tolist() == PLAIN.apply_chat_template(row)["input_ids"]
        assert one["labels"].tolist() == other["labels"].tolist()
        prompt = PLAIN.apply_chat_template(row[:-1], add_generation_prompt=True)["input_ids"]
        assert one["labels"].tolist()[len(prompt)] == one["input_ids"].tolist()[len(prompt)] != -100
        assert one["labels"].tolist()[len(prompt) - 1] == -100


PLAIN, MARKED = make.chatty(), make.chatty(make.MARKED)


def test_the_reference_of_transformers_marks_the_same_tokens() -> None:
    theirs = MARKED.apply_chat_template([TALK], return_assistant_tokens_mask=True)
    (sample,) = talks(TALK).chat(MARKED)
    own = [int(label != -100) for label in sample["labels"]]
    assert own == theirs["assistant_masks"][0]


@pytest.mark.parametrize(
    ("template", "spoken"),
    [
        (make.MARKED, "the fox<|im_end|>x<|im_end|>"),
        (make.CHATML, "the fox<|im_end|>\nx<|im_end|>\n"),  # no token is special, so a turn ends where the next begins
    ],
)
def test_a_tokenizer_in_python_that_knows_no_offsets_has_the_same_labels(template: str, spoken: str) -> None:
    tokenizer = make.byt5()
    tokenizer.chat_template = template
    (sample,) = talks(TALK).chat(tokenizer)
    assert sample["input_ids"].tolist() == tokenizer.apply_chat_template(TALK)["input_ids"]
    assert "".join(chr(label - 3) for label in sample["labels"].tolist() if label != -100) == spoken


class Joins(PythonBackend):  # type: ignore[misc]
    """Letters, but two of them that are one are one token."""

    vocab_size = 1 << 16

    def get_vocab(self) -> dict[str, int]:
        return {}

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return re.findall(r"(.)\1|.", text, re.DOTALL) and [
            one.group() for one in re.finditer(r"(.)\1|.", text, re.DOTALL)
        ]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token[0]) + (len(token) - 1) * 300

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index) if index < 300 else chr(index - 300) * 2


def test_a_tokenizer_in_python_whose_tokens_cross_a_border_is_followed_up_to_it() -> None:
    """Its tokens of the parts of a text are not those of the whole."""
    tokenizer = Joins()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ':' + m.content + '.' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    talk = [{"role": "user", "content": "aa."}, {"role": "assistant", "content": "bb."}]
    (sample,) = talks(talk).chat(tokenizer)
    assert [tokenizer._convert_id_to_token(one) for one in sample["labels"].tolist() if one != -100] == ["bb", ".."]
    with pytest.raises(
        bf.DataError, match=r"message 1 cannot be told: a token lies across its border \(token \d+, '::'\)"
    ):
        list(talks([talk[0], {"role": "assistant", "content": ":b"}]).chat(tokenizer))


def test_special_tokens_are_those_of_the_template_alone() -> None:
    tokenizer = make.llama()
    tokenizer.chat_template = "{{ bos_token }}{% for one in messages %}{{ one.content + eos_token }}{% endfor %}"
    (sample,) = talks(TALK).chat(tokenizer).ensure_bos_eos(tokenizer)
    assert sample["input_ids"].tolist().count(tokenizer.bos_token_id) == 1
    assert sample["input_ids"].tolist().count(tokenizer.eos_token_id) == len(TALK)
    assert said(tokenizer, sample) == ["the fox</s>", "x</s>"]


def test_tools_go_to_the_template_without_what_other_rows_have() -> None:
    """Rows of one type have the keys of all of them, null where they had none."""
    one = [{"type": "function", "function": {"name": "now", "parameters": {"zone": {"type": "string"}}}}]
    two = [{"type": "function", "function": {"name": "add", "parameters": {"a": {"type": "integer"}}}}]
    rows = [{"messages": TALK, "tools": tools} for tools in (one, two, None)]
    written = [
        {"messages": json.dumps(row["messages"]), "tools": tools and json.dumps(tools)}
        for row, tools in zip(rows, (one, two, None))
    ]
    for data in (
        rows,
        written,
        [row | {"tools": row["tools"] and [json.dumps(tool) for tool in row["tools"]]} for row in rows],
    ):
        for row, sample in zip(rows, bf.from_sequence(data).chat(PLAIN), strict=True):
            assert sample["input_ids"].tolist() == PLAIN.apply_chat_template(TALK, tools=row["tools"])["input_ids"]


def test_conversations_become_batches_padded_by_the_tokenizer(tmp_path: Path) -> None:
    data = talks(TALK, TALK[:3]).chat(PLAIN).drop("messages")
    (batch,) = data.batch(2)
    assert batch["input_ids"][1, -1] == PLAIN.pad_token_id
    assert batch["labels"][1, -1] == -100
    (packed,) = data.pack(256)
    assert int((packed["labels"] != -100).sum()) == int((batch["labels"] != -100).sum())
    stored = data.to_store(tmp_path / "store")
    assert [sample["labels"].tolist() for sample in stored] == [sample["labels"].tolist() for sample in data]


# -- what a conversation may say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "off", "on"), [("train", False, True), ("weight", 0, 1), ("loss_mask", 0, 1), ("weight", 0.0, 1.0)]
)
@pytest.mark.parametrize("template", [make.CHATML, make.MARKED])
def test_marks_on_messages_are_obeyed(template: str, name: str, off: Any, on: Any) -> None:
    tokenizer = make.chatty(template)
    marked = [TALK[0], TALK[1] | {name: on}, TALK[2] | {name: off}, TALK[3], TALK[4] | {name: on}]
    given: list[Any] = [marked, json.dumps(marked)]
    for messages in given:
        found = {
            how: said(tokenizer, *talks(messages).chat(tokenizer, train_on=how))
            for how in ("assistant", "last", "marked")
        }
        assert found == {
            "assistant": ["x<|im_end|>"],
            "last": ["x<|im_end|>"],
            "marked": ["hello<|im_end|>", "x<|im_end|>"],
        }
        (sample,) = talks(messages).chat(tokenizer, train_on="all")
        assert "".join(said(tokenizer, sample)).count("the fox") == 0
        assert said(tokenizer, sample)[-1].endswith("x<|im_end|>\n")
    alone = [TALK[1], TALK[2] | {name: off}]
    with pytest.raises(
        bf.DataError, match=r"no message is left to train on: train_on='last' and train, weight, loss_mask"
    ):
        list(talks(alone).chat(tokenizer, train_on="last"))
    with pytest.raises(bf.DataError, match=r"no message is left to train on: train_on='marked'"):
        list(talks(TALK).chat(tokenizer, train_on="marked"))


@pytest.mark.parametrize("mark", ["yes", 0.5, 2, [1]])
def test_a_mark_is_0_or_1(mark: Any) -> None:
    with pytest.raises(
        bf.DataError, match=rf"row 0: .*weight of message 2 must be 0 or 1, .* \(got {re.escape(repr(mark))}\)"
    ):
        list(talks(json.dumps([*TALK[:2], TALK[2] | {"weight": mark}])).chat(PLAIN))


def test_a_variable_of_the_template_goes_to_it() -> None:
    template = make.CHATML.replace("one.content or ''", "one.content or '') + (ending or ''")
    data = talks(TALK).chat(make.chatty(template), template_kwargs={"ending": "!"})
    tokenizer = make.chatty(template)
    (sample,) = data
    assert said(tokenizer, sample) == ["the fox!<|im_end|>", "x!<|im_end|>"]
    assert sample["input_ids"].tolist() == tokenizer.apply_chat_template(TALK, ending="!")["input_ids"]


def test_messages_of_older_forms_are_those_of_today() -> None:
    """ShareGPT's, in which a call is JSON text of its own."""
    calls = make.CHATML.replace(
        "(one.content or '')", "(one.content or '') + (one.tool_calls | tojson if one.tool_calls else '')"
    )
    tokenizer = make.chatty(calls)
    call = {"name": "f", "arguments": {"a": 1}}
    old = [
        *({"from": "system", "value": "be brief"}, {"from": "human", "value": "hello"}),
        *({"from": "function_call", "value": json.dumps(call)}, {"from": "observation", "value": "3"}),
        {"from": "gpt", "value": "x", "weight": 1},
    ]
    new = [
        *TALK[:2],
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        *({"role": "tool", "content": "3"}, {"role": "assistant", "content": "x", "weight": 1}),
    ]
    (one,), (other,) = (talks(json.dumps(some)).chat(tokenizer) for some in (old, new))
    assert one["input_ids"].tolist() == other["input_ids"].tolist() == tokenizer.apply_chat_template(new)["input_ids"]
    assert said(tokenizer, one) == said(tokenizer, other)
    assert said(tokenizer, one)[-1] == "x<|im_end|>"
    unread = [{"from": "function_call", "value": "f()"}]
    assert said(tokenizer, *talks(unread).chat(tokenizer)) == ["f()<|im_end|>"]
    with pytest.raises(bf.DataError, match=r"no message is the assistant's \(roles: 'alice'\)"):
        list(talks([{"from": "alice", "value": "x"}]).chat(tokenizer))


def test_messages_may_be_json_texts_of_each() -> None:
    (one,), (other,) = (talks(some).chat(PLAIN) for some in (TALK, [json.dumps(message) for message in TALK]))
    assert one["labels"].tolist() == other["labels"].tolist()


def test_tools_in_json_keep_their_nulls() -> None:
    tools = [{"name": "f", "parameters": {"a": {"default": None}}}]
    wanted = PLAIN.apply_chat_template(TALK, tools=tools)["input_ids"]
    for text in (json.dumps(tools), [json.dumps(one) for one in tools]):
        (sample,) = talks(TALK, tools=text).chat(PLAIN)
        assert sample["input_ids"].tolist() == wanted


PARTS_ALONE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for part in m.content %}{{ part.text }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EITHER = PARTS_ALONE.replace("{% for part", "{% if m.content is string %}{{ m.content }}{% else %}{% for part").replace(
    "{{ part.text }}{% endfor %}", "{{ part.text }}{% endfor %}{% endif %}"
)


@pytest.mark.parametrize("template", [make.CHATML, PARTS_ALONE, EITHER])
def test_contents_are_texts_or_parts_whatever_the_template_takes(template: str) -> None:
    tokenizer = make.chatty(template)
    parts = [
        message | {"content": [{"type": "text", "text": one} for one in message["content"].partition(" ")]}
        for message in TALK
    ]
    for messages in (TALK, parts):
        (sample,) = talks(messages).chat(tokenizer)
        assert said(tokenizer, sample) == TURNS["assistant"]
        assert sample["input_ids"].tolist() == make.chatty().apply_chat_template(TALK)["input_ids"]


def test_a_part_that_is_no_text_is_an_error_where_the_template_takes_text_alone() -> None:
    talk = [{"role": "user", "content": [{"type": "image", "url": "x"}]}, {"role": "assistant", "content": "a"}]
    with pytest.raises(
        bf.DataError, match=r"takes text alone, and message 0 has a part of type 'image'\. Leave such parts out"
    ):
        list(talks(json.dumps(talk)).chat(PLAIN))


# -- what cannot be told ---------------------------------------------------------------------------------------------------


SORTED = "{{ messages | map(attribute='content') | map('lower') | sort | join(' ') }}"


@pytest.mark.parametrize(
    ("template", "conversation", "message"),
    [
        (
            SORTED,
            TALK,
            r"DataError: .*message 2 cannot be told from what this \w+'s chat template writes\. It writes the messages up to it "
            r"otherwise when more follow \('the fox', not 'more\? the fox x', from character 15 on\)\. Mark what it ",
        ),
        (
            "{{ raise_exception('roles must alternate') }}",
            TALK,
            r"StageError: .*TemplateError: roles must alternate\. The chat template refuses this conversation: mend it \(map\)",
        ),
        (
            make.MARKED.replace("{{ one.content + '<|im_end|>' }}", ""),
            TALK,
            r"DataError: .*marks nothing by \{% generation %\} in 2 turns",
        ),
        (make.CHATML, TALK[:2], r"DataError: .*no message is the assistant's \(roles: 'system', 'user'\)"),
        (
            make.CHATML,
            [{"who": "gpt", "value": "x"}],
            r"DataError: .*message 0 must be a dict with a role, as .* \(keys: who, value\); rename",
        ),
        (make.CHATML, [], r"DataError: .*a conversation must be a list of messages \(got '\[\]'\)"),
        (
            make.CHATML,
            "Hello",
            r"DataError: .*Hello.* is text, and no JSON of messages .* Make a list of messages of it \(map\)",
        ),
        (make.CHATML, None, r"DataError: .*a conversation must be a list of messages \(got 'null'\)"),
    ],
)
def test_what_cannot_be_told_is_an_error_with_its_place_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str, conversation: Any, message: str
) -> None:
    urls = write(tmp_path / "a.jsonl", [{"messages": json.dumps(conversation)}])
    tokenizer = make.chatty(template)
    with pytest.raises((bf.DataError, bf.StageError)) as error:
        list(bf.from_files(urls).chat(tokenizer))
    assert re.match(message, f"{type(error.value).__name__}: {error.value}", re.DOTALL)
    assert "shard a.jsonl, line 1: column 'messages': " in str(error.value)
    with caplog.at_level(logging.WARNING), bf.from_files(urls).chat(tokenizer, on_error="skip").iter() as it:
        assert list(it) == []
        assert it.stats.skipped == 1
    assert any(str(error.value) in record.message for record in caplog.records)


def test_a_missing_column_of_conversations_is_named_with_the_remedy(tmp_path: Path) -> None:
    urls = write(tmp_path / "a.jsonl", [{"question": "Hello"}])
    message = r"^there is no column 'messages' \(columns: question; shard a.jsonl, line 1\); column= says .* and map\(\) makes"
    with pytest.raises(bf.DataError, match=message):
        list(bf.from_files(urls).chat(make.chatty(make.CHATML)))


def test_a_token_across_the_border_of_a_turn_is_no_guess() -> None:
    """A newline after the prompt's own: the two are one token, which is neither the prompt's nor the answer's."""
    tokenizer = make.chatty(make.CHATML)
    tokenizer.add_tokens(["\n\n"])
    talk = [TALK[1], {"role": "assistant", "content": "\nx"}]
    with pytest.raises(
        bf.DataError,
        match=r"message 1 cannot be told: a token lies across its border \(token \d+, '\\n\\n'\)\. Leave out the white space "
        r"that the content begins with \(map\)\. Mark",
    ):
        list(talks(talk).chat(tokenizer))
    spaced = make.gpt2()
    spaced.add_tokens([" x"])
    spaced.chat_template = make.CHATML.replace("'\\n' + (one", "': ' + (one").replace("assistant\\n", "assistant: ")
    with pytest.raises(
        bf.DataError, match=r"\(token \d+, ' x'\)\. The chat_template writes a space before the words: leave"
    ):
        list(talks(TALK[3:]).chat(spaced))
    with talks(TALK, talk).chat(tokenizer, on_error="skip").iter() as it:
        assert [sample["messages"] for sample in it] == [TALK]
        assert it.stats.skipped == 1


@pytest.mark.parametrize(
    ("tokenizer", "kind", "message"),
    [
        (
            make.bpe(),
            TypeError,
            r"^chat takes a tokenizer of transformers, whose chat template it follows \(got Tokenizer\); ",
        ),
        (make.gpt2(), ValueError, r"has no chat_template, so how it writes a conversation is not known; "),
        ("none.json", ValueError, r"^tokenizer 'none.json' cannot be loaded: there is no such file$"),
    ],
)
def test_a_tokenizer_that_does_not_chat_is_refused(tokenizer: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        talks(TALK).chat(tokenizer)


def test_settings_are_checked_at_construction() -> None:
    with pytest.raises(ValueError, match=r"^train_on must be one of assistant, last, all, marked \(got 'user'\)$"):
        talks(TALK).chat(PLAIN, train_on="user")  # type: ignore[arg-type]
    with pytest.raises(bf.DataError, match=r"^chat: there is a column 'labels' already \(.*\); drop or rename it$"):
        list(talks(TALK, labels=[1]).chat(PLAIN))
    with pytest.raises(
        ValueError, match=r"^template_kwargs go to the chat template, and 'tools' is no variable of yours in it$"
    ):
        talks(TALK).chat(PLAIN, template_kwargs={"tools": []})
    with pytest.raises(
        TypeError, match=r"^template_kwargs takes a dict by name, such as \{'enable_thinking': False\} \(got 3\)$"
    ):
        talks(TALK).chat(PLAIN, template_kwargs=3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^end_token must be a token of this \w+ \(got '<none>'\)\. Its add_special_tokens adds"
    ):
        talks(TALK).chat(PLAIN, end_token="<none>")
    with pytest.raises(TypeError, match=r"^train_empty_think must be True or False \(got 'yes'\)$"):
        talks(TALK).chat(PLAIN, train_empty_think="yes")  # type: ignore[arg-type]


def test_a_template_that_writes_the_date_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        talks(TALK).chat(make.chatty("{{ strftime_now('%d') }}" + make.CHATML))
    assert "writes today's date, so that the same data have other tokens tomorrow" in caplog.text


def test_a_state_of_another_template_or_other_turns_is_refused(tmp_path: Path) -> None:
    PLAIN.save_pretrained(tmp_path)
    it = talks(TALK, TALK).chat(tmp_path).iter()
    first, state = next(it), it.state_dict()
    (second,) = talks(TALK, TALK).chat(str(tmp_path)).iter(state)
    state = talks(TALK, TALK).chat(PLAIN).iter().state_dict()
    assert second["labels"].tolist() == first["labels"].tolist()
    with pytest.raises(bf.StateError, match=r"chat_template was '[0-9a-f]{16}' when it was saved and is"):
        talks(TALK, TALK).chat(MARKED).iter(state)
    with pytest.raises(bf.StateError, match="train_on was 'assistant' when it was saved and is 'last'"):
        talks(TALK, TALK).chat(PLAIN, train_on="last").iter(state)
    settings: list[dict[str, Any]] = [
        {"end_token": "[PAD]"},
        {"train_empty_think": True},
        {"template_kwargs": {"a": 1}},
    ]
    for how in settings:
        with pytest.raises(bf.StateError, match=next(iter(how))):
            talks(TALK, TALK).chat(PLAIN, **how).iter(state)
    it = talks(TALK, TALK).chat(PLAIN, template_kwargs={"a": 1}).iter()
    next(it)
    (third,) = talks(TALK, TALK).chat(PLAIN, template_kwargs={"a": 1}).iter(it.state_dict())
    assert third["labels"].tolist() == first["labels"].tolist()


def test_workers_of_either_kind_give_the_same() -> None:
    data = talks(*[TALK, TALK[:3]] * 20)
    expected = [sample["labels"].tolist() for sample in data.chat(PLAIN, max_workers=0)]
    kinds: list[tuple[int, Literal["thread", "process"]]] = [(2, "thread"), (1, "process")]
    for workers, kind in kinds:
        samples = data.chat(PLAIN, max_workers=workers, executor_type=kind)
        assert [sample["labels"].tolist() for sample in samples] == expected


def test_labels_of_a_conversation_are_shifted_where_it_will_be_cut() -> None:
    (sample,) = talks(TALK).chat(PLAIN).causal_labels(shift=True)
    assert sample["shift_labels"].tolist() == [*sample["labels"].tolist()[1:], -100]


def test_what_the_tokenizer_refuses_is_one_row_and_not_those_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    """Half of a surrogate pair is JSON, and no text: a cut emoji."""
    cut, whole = (
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}] for text in ("\ud83d", "x")
    )
    data = talks(json.dumps(whole), json.dumps(cut), json.dumps(whole))
    with pytest.raises(bf.StageError, match=r"^chat failed at sequence, row 1: column 'messages': TypeError: "):
        list(data.chat(PLAIN))
    with caplog.at_level(logging.WARNING, "brimful"):
        assert [said(PLAIN, sample) for sample in data.chat(PLAIN, on_error="skip")] == [["x<|im_end|>"]] * 2
    assert "skipped: chat failed at sequence, row 1" in caplog.text


@pytest.mark.parametrize(
    ("template", "first", "messages"),
    [
        (make.CHATML, "the fox<|im_end|>", []),
        (make.MARKED.replace("add_generation_prompt", "nothing"), "the fox<|im_end|>", []),
        ("{% for one in messages %}{{ one.content + ' ' }}{% endfor %}", "the fox ", []),
        (
            make.CHATML.replace("add_generation_prompt", "nothing"),
            "<|im_start|>assistant\nthe fox<|im_end|>",
            [
                r"chat: '<|im_start|>assistant\n' before the assistant's words is trained on, too, as the chat template does not "
                "use add_generation_prompt. To train on the words alone, mark them by {% generation %} ... "
                "{% endgeneration %} in it"
            ],
        ),
    ],
)
def test_a_role_that_is_trained_on_is_told_once(
    template: str, first: str, messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make.chatty(template)
    with caplog.at_level(logging.WARNING, "brimful"):
        sample, _ = talks(TALK, TALK).chat(tokenizer)
    assert said(tokenizer, sample)[0] == first
    assert caplog.messages == messages


# -- answers to one prompt


ASK, SAY = ({"role": role, "content": "the fox"} for role in ("user", "assistant"))
OTHER = {"role": "assistant", "content": "x the"}
BOTH: dict[str, Any] = {"column": ("chosen", "rejected"), "output_prefix": ("chosen_", "rejected_")}


def of_sides(data: bf.Dataset) -> list[list[list[int]]]:
    names = [f"{side}_{kind}" for side in ("chosen", "rejected") for kind in ("input_ids", "labels")]
    return [[sample[name].tolist() for name in names] for sample in data]


@pytest.mark.parametrize("template", [make.CHATML, make.MARKED])
@pytest.mark.parametrize("prompt", [[ASK], [ASK, OTHER, ASK]])
def test_a_prompt_is_shared_repeated_or_found(prompt: list[Any], template: str) -> None:
    tokenizer = make.chatty(template)
    apart = bf.from_sequence([{"prompt": prompt, "chosen": [SAY], "rejected": [OTHER]}])
    whole = bf.from_sequence([{"prompt": prompt, "chosen": [*prompt, SAY], "rejected": [*prompt, OTHER]}])
    by_side = apart
    for side in ("chosen", "rejected"):
        by_side = by_side.chat(tokenizer, column=side, prompt_column="prompt", output_prefix=f"{side}_")
    found = {
        "shared": of_sides(apart.chat(tokenizer, prompt_column="prompt", **BOTH)),
        "repeated": of_sides(whole.chat(tokenizer, prompt_column="prompt", **BOTH)),
        "found": of_sides(whole.drop("prompt").chat(tokenizer, **BOTH)),
        "one call a side": of_sides(by_side),
    }
    ((chosen, chosen_labels, rejected, _),) = found["shared"]
    assert all(one == found["shared"] for one in found.values()), found
    assert chosen == tokenizer.apply_chat_template([*prompt, SAY])["input_ids"]
    assert rejected == tokenizer.apply_chat_template([*prompt, OTHER])["input_ids"]
    before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
    assert all(label == -100 for label in chosen_labels[: len(before)])
    assert chosen_labels[len(before)] == chosen[len(before)]


def test_trls_trainer_has_the_same_completions() -> None:
    dpo = pytest.importorskip("trl.data_utils")
    row = {"chosen": [ASK, OTHER, ASK, SAY], "rejected": [ASK, OTHER, ASK, OTHER]}
    theirs = dpo.extract_prompt(row)
    ((chosen, labels, *_),) = of_sides(bf.from_sequence([row]).chat(PLAIN, **BOTH))
    prompt = PLAIN.apply_chat_template(theirs["prompt"], add_generation_prompt=True)["input_ids"]
    assert chosen[: len(prompt)] == prompt
    trained = [place for place, label in enumerate(labels) if label != -100]
    assert trained == [*range(len(prompt), len(chosen) - 1)], "all but the white space after the turn"


def test_sides_become_batches_and_are_resumed() -> None:
    rows = [{"chosen": [ASK, SAY], "rejected": [ASK, *[OTHER, ASK] * (n % 3), SAY, SAY]} for n in range(9)]
    rows = [row for row in rows if row["rejected"][1] != SAY] + [{"chosen": [ASK, SAY], "rejected": [ASK, OTHER]}]
    data = bf.from_sequence(rows).chat(PLAIN, **BOTH)
    batches = data.batch_by_tokens(512, layout="paired", window=3)
    assert sum(len(batch["input_ids"]) for batch in batches) == 2 * len(rows)
    assert_exact_resume(lambda: data)
    assert_exact_resume(lambda: batches)


UNEQUAL: dict[str, tuple[dict[str, Any], str]] = {
    "prompts": (
        {"chosen": [ASK, SAY], "rejected": [ASK | {"content": "x"}, SAY]},
        r"columns? 'chosen', 'rejected': 'chosen' and 'rejected' have unequal prompts: they differ in a message before the first",
    ),
    "later in the prompts": (
        {"chosen": [ASK, SAY, ASK, SAY], "rejected": [ASK, SAY, ASK | {"content": "x"}, SAY]},
        "'chosen' and 'rejected' have unequal prompts",
    ),
    "another prompt": (
        {"prompt": [ASK], "chosen": [ASK | {"content": "x"}, SAY], "rejected": [SAY]},
        "'chosen' and the prompt have unequal prompts",
    ),
    "no answer": (
        {"chosen": [ASK, SAY], "rejected": [ASK, SAY, OTHER]},
        r"'chosen' has no message of its own: all 2 are those of 'rejected'\. Leave such rows out",
    ),
    "only the prompt": ({"prompt": [ASK], "chosen": [ASK], "rejected": [SAY]}, "all 1 are those of the prompt"),
    "no messages": ({"chosen": [ASK, SAY], "rejected": None}, "a conversation must be a list of messages"),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_sides_without_one_prompt_are_refused_or_left_out(name: str) -> None:
    row, words = UNEQUAL[name]
    prompt = "prompt" if "prompt" in row else None
    good = {"prompt": [ASK], "chosen": [SAY], "rejected": [OTHER]}
    if prompt is None:
        good = {"chosen": [ASK, SAY], "rejected": [ASK, OTHER]}
    data = bf.from_sequence([good, row, good])
    with pytest.raises(bf.DataError, match=rf"chat failed at sequence, row 1: .*{words}"):
        list(data.chat(PLAIN, prompt_column=prompt, **BOTH))
    with data.chat(PLAIN, prompt_column=prompt, on_error="skip", **BOTH).iter() as rest:
        assert len(of_sides(rest)) == 2
        assert rest.stats.skipped == 1


def test_a_side_that_fails_alone_leaves_its_row_out_once() -> None:
    rows = [
        {"chosen": [ASK, one], "rejected": [ASK, other]} for one, other in ((SAY, OTHER), (SAY, SAY | {"train": 0}))
    ]
    rows.append({"chosen": [ASK, SAY | {"weight": 3}], "rejected": [ASK, OTHER | {"weight": 3}]})
    with bf.from_sequence(rows).chat(PLAIN, on_error="skip", **BOTH).iter() as rest:
        assert len(of_sides(rest)) == 1
        assert rest.stats.skipped == 2


def test_prefixes_of_chat_that_cannot_be_are_refused() -> None:
    data = bf.from_sequence([{"chosen": [ASK, SAY], "rejected": [ASK, OTHER], "chosen_labels": [1]}])
    with pytest.raises(bf.DataError, match="there is a column 'chosen_labels' already"):
        list(data.chat(PLAIN, **BOTH))
    with pytest.raises(
        ValueError, match=r"chat needs an output_prefix for each column \(got column=\('a', 'b'\) and output_pre"
    ):
        data.chat(PLAIN, column=("a", "b"), output_prefix="x_")
    with pytest.raises(ValueError, match="twice"):
        data.chat(PLAIN, column=("a", "b"), output_prefix=("x_", "x_"))
