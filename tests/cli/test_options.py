"""Tokenizers by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiktoken
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from brimful import StateError, from_sequence
from brimful.cli.options import tokenized
from brimful.encoding.encoders import load_tokenizer
from tests.cli.commands import Corpus

TEXTS = ["alpha beta gamma", "delta"]
IDS = [[1, 2, 3], [4]]


def ids(tokenizer: object, max_length: int) -> list[list[int]]:
    samples = tokenized(from_sequence(TEXTS), tokenizer, "text", max_length)
    return [sample["input_ids"].tolist() for sample in samples]


def test_a_file(corpus: Corpus) -> None:
    assert ids(load_tokenizer(corpus.tokenizer), 0) == IDS
    assert ids(load_tokenizer(corpus.tokenizer), 2) == [[1, 2], [4]]


def test_a_folder_for_transformers(corpus: Corpus, tmp_path: Path) -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(corpus.tokenizer), unk_token="[UNK]")
    fast.save_pretrained(tmp_path)
    assert ids(load_tokenizer(str(tmp_path)), 0) == IDS
    assert ids(load_tokenizer(str(tmp_path)), 2) == [[1, 2], [4]]


def test_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"\w+|\s+", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", {"bytes": encoding}.__getitem__)
    loaded = load_tokenizer("tiktoken:bytes")
    assert ids(loaded, 0) == [list(text.encode()) for text in TEXTS]
    assert ids(loaded, 3) == [list(text.encode()[:3]) for text in TEXTS]
    with pytest.raises(ValueError, match="tokenizer 'tiktoken:none' cannot be loaded: 'none'"):
        load_tokenizer("tiktoken:none")


def test_a_state_knows_the_length_that_tiktoken_was_cut_at() -> None:
    encoding = tiktoken.Encoding("b", pat_str=r".", mergeable_ranks={b"a": 0, b"b": 1}, special_tokens={})
    cut = [tokenized(from_sequence(["ab"] * 9), encoding, "text", length) for length in (1, 2)]
    with pytest.raises(
        StateError,
        match=r"tokenizer was 'b of 2 tokens, cut to 1 \(\w+\)' when it was saved and is 'b of 2 tokens, cut to 2 ",
    ):
        cut[1].iter(cut[0].iter().state_dict())


def test_a_misspelt_name_is_first_said_to_be_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name} is not a valid model identifier\nmore")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    said = (
        "no file or folder of that name is here, and as a name for transformers: gtp2 is not a valid model identifier"
    )
    with pytest.raises(ValueError, match=f"tokenizer 'gtp2' cannot be loaded: {said}$"):
        load_tokenizer("gtp2")
    with pytest.raises(ValueError, match=f"tokenizer '{tmp_path}' cannot be loaded: {tmp_path} is not"):
        load_tokenizer(str(tmp_path))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"tokenizer 'gpt2' needs transformers: pip install 'brimful\[transformers\]'"):
        load_tokenizer("gpt2")
