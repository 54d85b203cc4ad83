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

import brimful as bf
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


def test_a_tokenizer_in_python_goes_by_what_a_turn_adds() -> None:
    tokenizer = make.byt5()
    tokenizer.chat_template = make.MARKED
    (sample,) = talks(TALK).chat(tokenizer)
    spoken = [chr(label - 3) for label in sample["labels"].tolist() if label != -100]
    assert "".join(spoken) == "the fox<|im_end|>\nx<|im_end|>\n", (
        "where no token is special, a turn ends where the next begins"
    )


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


# -- what cannot be told ---------------------------------------------------------------------------------------------------


FORGETFUL = make.CHATML.replace(
    "(one.content or '')", "(one.content if loop.last or one.role != 'assistant' else one.content | upper)"
)
LAST_ONLY = "{% for one in messages %}{{ one.content }}{% endfor %}{{ '</s>' }}"


@pytest.mark.parametrize(
    ("template", "conversation", "message"),
    [
        (
            FORGETFUL,
            TALK,
            r"DataError: .*message 2 cannot be told: the chat template writes the messages up to it otherwise when more messages "
            r"follow \('the fox.*', not 'THE FOX.*', from character \d+ on\); mark what it generates by \{% generation %\}",
        ),
        (
            LAST_ONLY,
            TALK,
            r"DataError: .*message 2 cannot be told: the chat template writes the messages before it, and the prompt",
        ),
        ("{{ raise_exception('roles must alternate') }}", TALK, r"StageError: .*TemplateError: roles must alternate"),
        (
            make.MARKED.replace("{{ one.content + '<|im_end|>' }}", ""),
            TALK,
            r"DataError: .*marks nothing by \{% generation %\} in 2 turns",
        ),
        (make.CHATML, TALK[:2], r"DataError: .*no message is the assistant's \(roles: 'system', 'user'\)"),
        (
            make.CHATML,
            [{"from": "gpt", "value": "x"}],
            r"DataError: .*message 0 must be a dict with a role, as .* \(keys: from, value\); rename",
        ),
        (make.CHATML, [], r"DataError: .*a conversation must be a list of messages \(got '\[\]'\)"),
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
        bf.DataError, match=r"message 1 cannot be told: a token lies across its border \(token \d+ is \["
    ):
        list(talks(talk).chat(tokenizer))
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
    with pytest.raises(ValueError, match=r"^train_on must be one of assistant, last, all \(got 'user'\)$"):
        talks(TALK).chat(PLAIN, train_on="user")  # type: ignore[arg-type]
    with pytest.raises(bf.DataError, match=r"^chat: there is a column 'labels' already \(.*\); drop or rename it$"):
        list(talks(TALK, labels=[1]).chat(PLAIN))


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
