"""Conversations to tokens and labels, beside rendering and tokenizing each of them once.

    python benchmarks/chat.py [conversations] [template ...]

GPT-2's tokenizer from ../shared/data (or $BRIMFUL_TEST_DATA), with templates of tests/rows/templates: 100,000 conversations of
two turns, and one of 500. Beside them: `apply_chat_template` of each; and its text alone, all texts tokenized by the thousand.
All seconds are those of the processor, so that other processes on the machine do not count.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

import brimful as bf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.conversations import CHATML, FOLDER, SPECIAL  # noqa: E402

DATA = Path(os.environ.get("BRIMFUL_TEST_DATA", ROOT.parent / "shared/data"))
WORDS = "the tool says that the file was not found, so look elsewhere "
LIMIT, LONG_SECONDS = 1.3, 2.0


def tokenizer_of(name: str) -> Any:
    special, path = SPECIAL[name], str(DATA / "tokenizers/gpt2.json")
    made = PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": [*special]})
    made.eos_token = special[-1] if special == CHATML else special[0]
    made.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return made


def talk(turns: int, words: str, number: int = 0) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{words}{number} {turn}"} for turn in range(turns) for role in ("user", "assistant")
    ]


def seconds(work: Callable[..., Any], *args: Any) -> float:
    began = time.process_time()
    work(*args)
    return time.process_time() - began


def labels(tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    for _ in bf.from_sequence(rows).chat(tokenizer).drop("messages"):
        pass


def one_by_one(tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        tokenizer.apply_chat_template(row["messages"])


def in_batches(tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    for first in range(0, len(texts), 1_000):
        tokenizer(texts[first : first + 1_000], add_special_tokens=False)


def main(count: int, names: list[str]) -> None:
    logging.getLogger("brimful").setLevel(logging.ERROR)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; GPT-2's tokens")
    for name in names:
        tokenizer = tokenizer_of(name)
        rows = [{"messages": talk(2, WORDS * 2, number)} for number in range(count)]
        labels(tokenizer, rows[:100])
        own, alone, batched = (seconds(work, tokenizer, rows) for work in (labels, one_by_one, in_batches))
        print(
            f"{name:12} {count:,} conversations: {own / count * 1e6:.0f} us each, {own / alone:.2f} of apply_chat_template "
            f"({LIMIT} is the limit), {own / batched:.2f} of texts tokenized by the thousand"
        )
        long = [{"messages": talk(500, WORDS * 8)}]
        text = tokenizer.apply_chat_template(long[0]["messages"], tokenize=False)
        tokens = seconds(tokenizer, [text])
        more = seconds(labels, tokenizer, long) - tokens
        print(
            f"{name:12} 500 turns: {more:.2f} s beside the tokenizer's own {tokens:.2f} s ({LONG_SECONDS:.0f} s is the limit)"
        )


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 100_000, given[1:] or ["chatml", "qwen3", "llama_3", "gpt_oss", "glm_4_5"])
