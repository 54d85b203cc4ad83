"""Small tokenizers of every make, trained or written down here: nothing is downloaded."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

TEXTS = [
    "",
    "the quick brown fox jumps over the lazy dog",
    "Full batches, little padding: few shapes!",
    "é ü 😀 \u2028 \x00 tab\tnewline\n",
    "word " * 40,
    "<|endoftext|> [SEP] looks special",
    "x",
]


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<|endoftext|>", "<s>", "</s>"]


@cache
def _trained(kind: str) -> str:
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return str(tokenizer.to_str())


def bpe() -> Tokenizer:
    """Byte-level, as gpt2: adds nothing itself."""
    return Tokenizer.from_str(_trained("bpe"))


def wordpiece() -> Tokenizer:
    """As bert: [CLS] before, [SEP] after; of pairs one after each."""
    tokenizer = Tokenizer.from_str(_trained("wordpiece"))
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def _fast(**settings: Any) -> PreTrainedTokenizerFast:
    make: Any = PreTrainedTokenizerFast
    return cast(PreTrainedTokenizerFast, make(**settings))


def gpt2(**settings: Any) -> PreTrainedTokenizerFast:
    """BOS and EOS are one id; it adds neither."""
    end = "<|endoftext|>"
    return _fast(tokenizer_object=bpe(), bos_token=end, eos_token=end, pad_token=end, **settings)


def bert(**settings: Any) -> PreTrainedTokenizerFast:
    """Adds [CLS] and [SEP]; has neither BOS nor EOS."""
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return _fast(tokenizer_object=wordpiece(), **names, **settings)


def llama(**settings: Any) -> PreTrainedTokenizerFast:
    """Adds BOS itself, and no EOS."""
    tokenizer = bpe()
    ids = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ids)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}
    return _fast(tokenizer_object=tokenizer, **{**names, **settings})


def byt5(**settings: Any) -> ByT5Tokenizer:
    """A slow one: bytes, and EOS."""
    return ByT5Tokenizer(**settings)


def tiktoken_bytes(
    merged: tuple[bytes, ...] = (b"th", b"the", b"wo", b"rd", b"word"), name: str = "test"
) -> tiktoken.Encoding:
    ranks = {bytes([value]): value for value in range(256)} | {pair: 256 + rank for rank, pair in enumerate(merged)}
    return tiktoken.Encoding(
        name, pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256 + len(merged)}
    )
