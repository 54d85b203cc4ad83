"""Conversations of twelve kinds, and short versions of the rules of public chat templates, with what trains in each.

`rows/templates/NAME.jinja` is a template, and `NAME.txt` what it writes of each kind, by hand: what trains stands in these brackets:
⟦ ⟧. What is appended stands after the mark ⊕. `refused:` is the template's own error.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import decoders

from tests import tokenizers as make

FOLDER: Final = Path(__file__).parent / "rows/templates"
OPEN, CLOSE, APPENDED = "⟦", "⟧", "⊕"


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def called(city: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city}}
    return answer("", tool_calls=[{"id": "call00001", "type": "function", "function": function}])


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": content}


SYSTEM: Final = {"role": "system", "content": "Be brief."}
TOOLS: Final = [{"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string"}}}}]
KINDS: Final[dict[str, list[dict[str, Any]]]] = {
    "one turn": [user("Hi"), answer("Hello!")],
    "two turns": [user("Hi"), answer("Hello!"), user("Bye"), answer("See you.")],
    "six turns": [
        one for number in range(6) for one in (user(f"q{number}"), answer(f"<b>a{number}</b>" if number % 2 else "a"))
    ],
    "system": [SYSTEM, user("Hi"), answer("Hello!"), user("Bye"), answer("See you.")],
    "tools": [user("Rome?"), called("Rome"), result("hot"), answer("It is hot.")],
    "a question after results": [
        *(SYSTEM, user("Rome?"), called("Rome"), result("hot"), answer("It is hot.")),
        *(user("Oslo?"), called("Oslo"), result("cold"), answer("It is cold.")),
    ],
    "thoughts": [
        user("Hi"),
        answer("Hello!", reasoning_content="Greet."),
        user("Bye"),
        answer("See you.", reasoning_content="Part."),
    ],
    "thoughts in contents": [
        *(user("Hi"), answer("<think>\nGreet.\n</think>\n\nHello!")),
        *(user("Bye"), answer("<think>\nPart.\n</think>\n\nSee you.")),
    ],
    "assistant first": [answer("Welcome"), user("Hi"), answer("Hello!")],
    "empty contents": [user("Hi"), answer(""), user(""), answer("")],
    "a question last": [user("Hi"), answer("Hello!"), user("Bye")],
    "marks in contents": [user("Write {marks}"), answer("{marks} so"), user("More"), answer("I end in {marks}")],
}
CALLS: Final = ("tools", "a question after results")
CHATML: Final = ("<|im_start|>", "<|im_end|>")
DEEPSEEK: Final = "<｜tool▁{}｜>"
SPECIAL: Final[dict[str, tuple[str, ...]]] = {
    "chatml": CHATML,
    "qwen2_5": CHATML,
    "qwen3": CHATML,
    "qwen3_5": CHATML,
    "deepseek_v3": (
        *("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
    ),
    "gpt_oss": ("<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"),
    "phi_3": ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    "nemotron_3": CHATML,
    "glm_4_5": ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"),
    "llama_3": ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "mistral": ("</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    "gemma_3": ("<eos>", "<start_of_turn>", "<end_of_turn>"),
    "lfm2": CHATML,
    "olmo_3": ("<|endoftext|>", *CHATML),
}
"""The special tokens of each template. The first is EOS, but with ChatML, whose last one is."""
MARKS: Final = {
    "chatml": "<|im_end|>\n<|im_start|>assistant\n",
    "deepseek_v3": "<｜User｜><｜Assistant｜>",
    "gpt_oss": "<|end|><|start|>assistant",
    "phi_3": "<|assistant|>\n<|end|>",
    "glm_4_5": "<|user|>\n<|assistant|>",
    "llama_3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[/INST]</s>",
    "gemma_3": "<start_of_turn>model\n",
}
"""What looks as if the template had written it."""


@cache
def tokenizer(name: str) -> Any:
    special = SPECIAL[name]
    eos = special[-1] if special == CHATML else special[0]
    words = make.bpe()
    words.decoder = decoders.ByteLevel()
    made = make._fast(tokenizer_object=words, bos_token="<s>", eos_token=eos, additional_special_tokens=[*special])
    made.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return made


def conversation(name: str, kind: str) -> dict[str, Any]:
    """A row with a conversation for a template."""
    marks = MARKS.get(name, MARKS["chatml"])
    messages = [one | {"content": one["content"].replace("{marks}", marks)} for one in KINDS[kind]]
    return {"messages": messages} | ({"tools": TOOLS} if kind in CALLS else {})


@cache
def expected(name: str) -> dict[str, str]:
    """What a template writes of each kind, with brackets around what trains."""
    parts = re.split(r"^=== (.*)\n", (FOLDER / f"{name}.txt").read_text(), flags=re.MULTILINE)
    return {kind: text.removesuffix("\n") for kind, text in zip(parts[1::2], parts[2::2])}


def shown(tokenizer: Any, sample: Any, appended: bool = False) -> str:
    """The text of a sample with brackets around the tokens that train, and a mark before the one that was appended."""
    text, inside = "", False
    pairs = [*zip(sample["input_ids"].tolist(), sample["labels"].tolist(), strict=True)]
    for number, (token, label) in enumerate(pairs):
        assert label in (token, -100)
        if inside != (label != -100):
            inside = not inside
            text += OPEN if inside else CLOSE
        text += (APPENDED if appended and number + 1 == len(pairs) else "") + tokenizer.decode([token])
    return text + (CLOSE if inside else "")
