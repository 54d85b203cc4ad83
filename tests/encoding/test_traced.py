"""A template that tells whose each part of its text is: it is the plain text, whoever else compiles templates, or renders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from brimful.encoding.traced import traced_template
from tests.conversations import KINDS, SPECIAL, conversation, tokenizer


@pytest.mark.parametrize("name", SPECIAL)
def test_each_iteration_over_messages_is_a_part_of_the_plain_text(name: str) -> None:
    template, messages = tokenizer(name), KINDS["six turns"]
    followed = traced_template(template.chat_template)
    assert followed is not None
    for prompted in (False, True):
        found = followed.render(template, messages, None, add_generation_prompt=prompted)
        assert found.text == template.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
        for number, message in enumerate(messages):
            ((part,),) = found.visits[number]
            assert message["content"] in found.text[slice(*part)]
            before = found.visits[number - 1][0][0][1] if number else 0
            assert before <= part[0] < part[1] <= found.tail


def test_a_template_that_transformers_has_let_go_of_is_followed_again() -> None:
    """It keeps 128 compiled templates, and the notes with them."""
    template, messages = tokenizer("qwen3"), KINDS["two turns"]
    followed = traced_template(template.chat_template)
    assert followed is not None
    before = followed.render(template, messages, None)
    for number in range(200):
        _compile_jinja_template(f"{number}")
    assert followed.render(template, messages, None) == before


def test_threads_follow_a_template_each_in_its_own_conversation() -> None:
    template = tokenizer("qwen3")
    followed = traced_template(template.chat_template)
    assert followed is not None
    rows = [conversation("qwen3", kind) for kind in KINDS] * 20
    alone = [followed.render(template, row["messages"], row.get("tools")) for row in rows]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda row: followed.render(template, row["messages"], row.get("tools")), rows))
    assert together == alone


def test_a_note_after_an_error_is_that_of_the_next_rendering() -> None:
    template = tokenizer("gemma_3")
    followed = traced_template(template.chat_template)
    assert followed is not None
    before = followed.render(template, KINDS["two turns"], None)
    with pytest.raises(Exception, match="Roles must alternate"):
        followed.render(template, KINDS["assistant first"], None)
    assert followed.render(template, KINDS["two turns"], None) == before
