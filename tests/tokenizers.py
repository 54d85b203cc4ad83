"""Small tokenizers of every make, trained or written down here: nothing is downloaded."""

from __future__ import annotations

import random
from functools import cache
from typing import Any, cast

import pyarrow as pa
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from brimful.tables.ragged import Ragged
from tests.texts import texts

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


_OTHERS = "{{ '<|im_start|>' + one.role + '\\n' + (one.content or '') + '<|im_end|>\\n' }}"
_ASSISTANT = (
    "{{ '<|im_start|>assistant\\n' }}{% generation %}{{ one.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
)
_TOOLS = "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CHATML = f"{_TOOLS}{{% for one in messages %}}{_OTHERS}{{% endfor %}}{_PROMPT}"
MARKED = (
    f"{_TOOLS}{{% for one in messages %}}{{% if one.role == 'assistant' %}}{_ASSISTANT}{{% else %}}{_OTHERS}{{% endif %}}"
    f"{{% endfor %}}{_PROMPT}"
)
"""CHATML, with what the assistant says marked."""


def chatty(template: str = CHATML, **settings: Any) -> PreTrainedTokenizerFast:
    """As Qwen: a chat template, and no BOS."""
    more = ["<|im_start|>", "<|im_end|>"]
    tokenizer = _fast(
        tokenizer_object=bpe(), eos_token=more[1], pad_token="[PAD]", additional_special_tokens=more, **settings
    )
    tokenizer.chat_template = template
    return tokenizer


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


def column(texts: list[str]) -> pa.Array:
    """Texts as a column that begins in the middle of its memory."""
    return pa.array(["before ", *texts]).slice(1)


def trained(model: str, pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    """A small tokenizer of any kind, trained on generated texts: "bpe" (byte-level), "marks" (byte fallback), "unknown" (BPE with
    an unknown token), "wordpiece", "wordlevel", "unigram"."""
    if model == "unigram":  # the library's trainer wants a token for every character
        given = trained("unknown", pre_tokenizer, normalizer)
        draw, vocabulary = random.Random(1), given.get_vocab()
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        given.model = models.Unigram([(token, -9 * draw.random()) for token in tokens], tokens.index("[UNK]"), False)
        return given
    made: Any = {
        "bpe": lambda: models.BPE(),
        "marks": lambda: models.BPE(byte_fallback=True, fuse_unk=True, unk_token="[UNK]"),
        "unknown": lambda: models.BPE(fuse_unk=True, unk_token="[UNK]"),
        "wordpiece": lambda: models.WordPiece(unk_token="[UNK]"),
        "wordlevel": lambda: models.WordLevel(unk_token="[UNK]"),
    }
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if model == "marks" else []
    few: Any = {"vocab_size": 500 + len(bytes_), "special_tokens": SPECIAL + bytes_, "show_progress": False}
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet() if model == "bpe" else ["\u2581"]}
    limited = {**few, "limit_alphabet": 1_000 if model == "bpe" else 150}
    trainer: Any = {
        "wordpiece": lambda: trainers.WordPieceTrainer(**limited),
        "wordlevel": lambda: trainers.WordLevelTrainer(**few),
    }.get(model, lambda: trainers.BpeTrainer(**limited, **alphabet))
    tokenizer = Tokenizer(made[model]())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts(1_000, seed=2), trainer())
    return tokenizer


def of_column(encoder: Any, texts: pa.Array) -> Ragged:
    """The tokens of each text of a column by an encoder, or an engine, audited."""
    tokens, check = encoder.begin(texts)
    check()
    return tokens
