from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiktoken import Encoding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import brimful as bf
from brimful.encoding.encoder_kinds import CallableEncoder, FastEncoder, TiktokenEncoder, TransformersEncoder
from brimful.encoding.encoders import chat_encoder_for, encoder_for
from tests import tokenizers as make
from tests.tokenizers import TEXTS

FAST = type(make.bert()).__name__


def encoded(tokenizer: Any, **kwargs: Any) -> list[list[int]]:
    tokens = encoder_for(tokenizer, kwargs)(TEXTS)
    assert tokens.values.dtype == np.int32
    assert tokens.offsets[0] == 0
    return [tokens.values[start:end].tolist() for start, end in zip(tokens.offsets, tokens.offsets[1:])]


def characters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


# -- the tokens are the tokenizer's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [make.bpe, make.wordpiece])
@pytest.mark.parametrize("special", [True, False])
def test_tokenizers(tokenizer: Callable[[], Tokenizer], special: bool) -> None:
    expected = [encoding.ids for encoding in tokenizer().encode_batch(TEXTS, add_special_tokens=special)]
    assert encoded(tokenizer(), add_special_tokens=special) == expected


def test_a_tokenizers_tokenizer_keeps_its_own_truncation_and_drops_its_padding() -> None:
    tokenizer = make.wordpiece()
    tokenizer.enable_truncation(5, direction="left")
    expected = [encoding.ids for encoding in tokenizer.encode_batch(TEXTS)]
    tokenizer.enable_padding()
    assert encoded(tokenizer) == expected
    assert max(map(len, expected)) == 5
    shorter = encoded(tokenizer, truncation=True, max_length=4)
    assert [row[1:-1] for row in shorter] == [row[1:-1][-2:] for row in expected]  # on its own side
    assert encoded(tokenizer, truncation=False) == encoded(make.wordpiece())


TRANSFORMERS = [make.gpt2, make.bert, make.llama, make.byt5]


@pytest.mark.parametrize("tokenizer", TRANSFORMERS)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"add_special_tokens": False},
        {"truncation": True, "max_length": 6},
        {"max_length": 6},
        {"truncation": "longest_first", "max_length": 6},
        {"truncation": "do_not_truncate", "max_length": 6},
        {"truncation": False, "max_length": 6},
        {"truncation": True},
        {"split_special_tokens": True},
        {"padding": False, "return_attention_mask": False},
        {"truncation": True, "max_length": 6, "return_token_type_ids": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_transformers(tokenizer: Callable[..., Any], kwargs: dict[str, Any], side: str) -> None:
    own = tokenizer(model_max_length=9, truncation_side=side)
    expected = own(TEXTS, **kwargs)["input_ids"]
    assert encoded(tokenizer(model_max_length=9, truncation_side=side), **kwargs) == expected


def test_a_fast_transformers_tokenizer_may_be_set_to_split_special_tokens() -> None:
    tokenizer = make.gpt2(split_special_tokens=True)
    assert encoded(tokenizer) == make.gpt2(split_special_tokens=True)(TEXTS)["input_ids"] != encoded(make.gpt2())
    plain = make.bpe()
    plain.encode_special_tokens = True
    assert encoded(plain) == encoded(tokenizer)


def test_tiktoken() -> None:
    encoding = make.tiktoken_bytes()
    assert encoded(encoding) == [encoding.encode_ordinary(text) for text in TEXTS]
    special = encoded(encoding, allowed_special={"<|endoftext|>"})
    assert special == [encoding.encode(text, allowed_special={"<|endoftext|>"}) for text in TEXTS] != encoded(encoding)


def test_callables() -> None:
    assert encoded(characters) == characters(TEXTS)
    assert encoded(lambda texts: {"input_ids": [np.array(row) for row in characters(texts)]}) == characters(TEXTS)
    assert encoded(lambda texts, more: [[more] for _ in texts], more=7) == [[7]] * len(TEXTS)
    assert encoder_for(characters)([]).offsets.tolist() == [0]


def test_each_make_has_its_fast_way() -> None:
    for tokenizer, kwargs, kind in (
        (make.bpe(), {}, FastEncoder),
        (make.gpt2(), {"truncation": True, "max_length": 5}, FastEncoder),
        (make.gpt2(), {"return_attention_mask": False}, TransformersEncoder),
        (make.byt5(), {}, TransformersEncoder),
        (make.tiktoken_bytes(), {}, TiktokenEncoder),
        (characters, {}, CallableEncoder),
    ):
        assert type(encoder_for(tokenizer, kwargs)) is kind


OTHERS = TEXTS[3:] + TEXTS[:3]
PAIRS = list(zip(TEXTS, OTHERS))
OUTPUTS = ("token_type_ids", "attention_mask", "special_tokens_mask")


def rows_of(tokens: Any) -> list[list[int]]:
    return [tokens.values[start:end].tolist() for start, end in zip(tokens.offsets, tokens.offsets[1:])]


@pytest.mark.parametrize("tokenizer", TRANSFORMERS)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"add_special_tokens": False},
        {"truncation": True, "max_length": 9},
        {"truncation": "only_first", "max_length": 12},
        {"truncation": "only_second", "max_length": 12},
        {"truncation": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_and_further_outputs(tokenizer: Callable[..., Any], kwargs: dict[str, Any], side: str) -> None:
    longer, shorter = "9#9#9#9#", "9#9#9#"  # the one that longest_first would leave alone is cut
    pairs = {"only_first": [(shorter, longer)] * 2, "only_second": [(longer, shorter)]}.get(
        str(kwargs.get("truncation")), PAIRS
    )

    def own() -> Any:
        return tokenizer(model_max_length=19, truncation_side=side)

    more = {f"return_{name}": True for name in OUTPUTS}
    expected = own()([first for first, _ in pairs], [second for _, second in pairs], **kwargs, **more)
    encoder = encoder_for(own(), None, kwargs, pairs=True, outputs=OUTPUTS)
    found = encoder.with_outputs(pairs, OUTPUTS)
    assert [rows_of(tokens) for tokens in found] == [expected["input_ids"], *(expected[name] for name in OUTPUTS)]
    assert rows_of(encoder(pairs)) == expected["input_ids"]


@pytest.mark.parametrize("tokenizer", TRANSFORMERS)
def test_further_outputs_of_single_texts(tokenizer: Callable[..., Any]) -> None:
    expected = tokenizer()(TEXTS, **{f"return_{name}": True for name in OUTPUTS})
    found = encoder_for(tokenizer(), outputs=OUTPUTS).with_outputs(TEXTS, OUTPUTS)
    assert [rows_of(tokens) for tokens in found] == [expected["input_ids"], *(expected[name] for name in OUTPUTS)]


@pytest.mark.parametrize("tokenizer", [make.bert, make.llama])
def test_offsets_are_pairs_of_integers_a_token(tokenizer: Callable[..., Any]) -> None:
    own = tokenizer()(TEXTS, return_offsets_mapping=True)
    data = bf.from_sequence(TEXTS).tokenize(tokenizer(), extra_outputs=("offset_mapping", "attention_mask"))
    for number, sample in enumerate(data):
        assert sample["input_ids"].tolist() == own["input_ids"][number]
        assert sample["offset_mapping"].tolist() == [list(pair) for pair in own["offset_mapping"][number]]
        assert sample["attention_mask"].tolist() == own["attention_mask"][number]
    batch = next(iter(data.batch(len(TEXTS))))  # lists of pairs are arrays of which one dimension is ragged
    assert batch["offset_mapping"].shape == (*batch["input_ids"].shape, 2)


def test_a_callable_may_give_offsets() -> None:
    def spans(texts: list[str]) -> dict[str, Any]:
        return {
            "input_ids": [[1] * len(text) for text in texts],
            "offset_mapping": [[(0, 1)] * len(text) for text in texts],
        }

    samples = list(bf.from_sequence(["ab", ""]).tokenize(spans, extra_outputs="offset_mapping"))
    assert [sample["offset_mapping"].tolist() for sample in samples] == [[[0, 1], [0, 1]], []]


def test_a_tokenizer_may_be_given_by_its_name_or_path(tmp_path: Path) -> None:
    make.bpe().save(str(tmp_path / "tokenizer.json"))
    make.bert().save_pretrained(tmp_path / "bert")
    for name, own in ((tmp_path / "tokenizer.json", make.bpe()), (str(tmp_path / "bert"), make.bert())):
        assert encoder_for(name).fingerprint() == encoder_for(own).fingerprint()
        tokens = [sample["input_ids"].tolist() for sample in bf.from_sequence(TEXTS).tokenize(name)]
        assert tokens == encoded(own)
    with pytest.raises(ValueError, match=r"tokenizer 'none\.json' cannot be loaded: there is no such file"):
        bf.from_sequence(TEXTS).tokenize("none.json")


def test_a_tokenizers_tokenizer_makes_rows_of_pairs() -> None:
    tokenizer = make.wordpiece()
    tokenizer.enable_truncation(12, strategy="only_second", direction="left")
    pairs = [("the dog", second) for second in TEXTS]
    expected = tokenizer.encode_batch(pairs)
    assert rows_of(encoder_for(tokenizer, pairs=True)(pairs)) == [encoding.ids for encoding in expected]
    types = encoder_for(tokenizer, pairs=True).with_outputs(pairs, ("token_type_ids",))[1]
    assert rows_of(types) == [encoding.type_ids for encoding in expected]
    tokenizer.enable_truncation(12, strategy="longest_first", direction="left")
    asked = encoder_for(tokenizer, None, {"truncation": True, "max_length": 12}, pairs=True)
    assert rows_of(asked(PAIRS)) == [encoding.ids for encoding in tokenizer.encode_batch(PAIRS)]


def test_tiktoken_is_cut_by_us() -> None:
    encoding = make.tiktoken_bytes()
    for asked in ({"max_length": 3}, {"truncation": True, "max_length": 3, "add_special_tokens": False}):
        encoder = encoder_for(encoding, None, asked)
        assert rows_of(encoder(TEXTS)) == [encoding.encode_ordinary(text)[:3] for text in TEXTS]
        assert encoder.depends_on() != encoder_for(encoding).depends_on()
    assert rows_of(encoder_for(encoding, None, {"truncation": False, "max_length": 3})(TEXTS)) == encoded(encoding)


def test_a_callable_gets_pairs_as_two_lists_and_may_give_a_dict() -> None:
    def both(first: list[str], second: list[str], more: int = 0) -> dict[str, Any]:
        sizes = [[len(one), len(other), more] for one, other in zip(first, second)]
        return {"input_ids": sizes, "sides": [[0, 1, 1]] * len(first)}

    encoder = encoder_for(both, {"more": 7}, pairs=True, outputs=("sides",))
    tokens, sides = encoder.with_outputs([("a", "bc"), ("", "d")], ("sides",))
    assert (rows_of(tokens), rows_of(sides)) == ([[1, 2, 7], [0, 1, 7]], [[0, 1, 1]] * 2)
    with pytest.raises(ValueError, match=r"^the tokenizer returned no 'x' \(it returned input_ids, sides\)$"):
        encoder.with_outputs([("a", "b")], ("x",))
    with pytest.raises(TypeError, match=r"^the tokenizer must return a dict of input_ids, x \(got list\)$"):
        encoder_for(characters, outputs=("x",)).with_outputs(["a"], ("x",))
    with pytest.raises(TypeError, match=r"^the tokenizer must return integers \(got float\)$"):
        encoder_for(lambda texts: {"input_ids": [[1]], "x": [[0.5]]}).with_outputs(["a"], ("x",))


@pytest.mark.parametrize(
    ("tokenizer", "asked", "options", "message"),
    [
        (
            characters,
            {"max_length": 5, "add_special_tokens": False},
            {},
            "tokenize: max_length, add_special_tokens cannot be seen to for a callable, which alone knows what it adds to the "
            "texts; let it do that itself (tokenizer_kwargs go to it)",
        ),
        (
            make.bpe(),
            {"truncation": "first", "max_length": 4},
            {},
            "truncation must be True, False or one of longest_first, only_first, only_second, do_not_truncate (got 'first')",
        ),
        (
            make.byt5(),
            {"truncation": "only_second", "max_length": 4},
            {},
            "truncation='only_second' cuts the second text of a pair; here each row is made of one text",
        ),
        (make.byt5(), {"truncation": True}, {}, "truncation needs max_length, in tokens: tokenize(..., truncation=True, max_"),
        (make.tiktoken_bytes(), {"truncation": True}, {}, "truncation needs max_length, in tokens"),
        (make.tiktoken_bytes(), {"max_length": 0}, {}, "max_length must be at least 1 token (got 0)"),
        (make.bert(), {"max_length": 2}, {"pairs": True}, "max_length must be at least 3 tokens (got 2)"),
        (
            make.tiktoken_bytes(),
            {},
            {"pairs": True},
            "tiktoken.Encoding makes no row of a pair of texts; give each column an output of its own",
        ),
        (
            make.tiktoken_bytes(),
            {},
            {"outputs": ("attention_mask",)},
            "tiktoken.Encoding has no output 'attention_mask' (it has tokens alone)",
        ),
        (
            make.bpe(),
            {},
            {"outputs": ("length",)},
            "tokenizers.Tokenizer has no output 'length' (it has attention_mask, token_type_ids, special_tokens_mask, "
            "offset_mapping)",
        ),
        (make.bert(), {}, {"outputs": ("overflowing_tokens",)}, f"{FAST} has no output 'overflowing_tokens'"),
        (
            make.byt5(),
            {},
            {"outputs": ("offset_mapping",)},
            "ByT5Tokenizer has no output 'offset_mapping': it is written in Python, and knows no offsets; take a fast one",
        ),
    ],
)  # fmt: skip
def test_what_a_tokenizer_cannot_do_is_refused_at_construction(
    tokenizer: Any, asked: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        encoder_for(tokenizer, None, asked, **options)


def test_what_is_said_twice_is_refused() -> None:
    message = r"^tokenize: max_length is given twice, as an argument and in tokenizer_kwargs; give it once$"
    with pytest.raises(ValueError, match=message):
        encoder_for(make.bpe(), {"max_length": 5}, {"max_length": 5})


# -- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokenizer", "kwargs", "message"),
    [
        (characters, {"padding": True}, "padding belongs to the batch: leave it out of tokenizer_kwargs"),
        (
            make.bpe(),
            {"max_len": 5, "stride": 1},
            "unknown tokenizer_kwargs for tokenizers.Tokenizer: max_len, stride "
            "(it takes add_special_tokens, max_length, split_special_tokens, truncation)",
        ),
        (
            make.tiktoken_bytes(),
            {"stride": 1},
            "unknown tokenizer_kwargs for tiktoken.Encoding: stride (it takes add_special_tokens, allowed_special, "
            "disallowed_special, max_length, truncation)",
        ),
        (
            make.bpe(),
            {"truncation": True},
            "truncation needs max_length, in tokens: tokenize(..., truncation=True, max_length=512)",
        ),
        (make.gpt2(), {"truncation": True}, "truncation needs max_length, in tokens"),
        (make.gpt2(), {"max_lenght": 5}, f"unknown tokenizer_kwargs for {FAST}: max_lenght (it takes "),
        (
            make.gpt2(),
            {"return_overflowing_tokens": True, "stride": 2},
            "return_overflowing_tokens=True is not served: tokenize makes one row of each text; chunk cuts tokens, flat_map "
            "makes several rows of one; leave it out of tokenizer_kwargs",
        ),
        (
            make.byt5(),
            {"return_tensors": "pt"},
            "return_tensors='pt' is not served: batches make the tensors; leave it out",
        ),
        (make.bert(), {"stride": 2}, "stride=2 is not served: tokenize makes one row of each text"),
        (
            make.bert(),
            {"return_offsets_mapping": True},
            "return_offsets_mapping=True is not served: name what you want of it in ",
        ),
        (make.bert(), {"max_length": 1}, "max_length must be at least 2 tokens (got 1)"),
    ],
)
def test_keywords_are_checked_at_construction(tokenizer: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^(unknown|padding|truncation|max_length|return_|stride)") as error:
        encoder_for(tokenizer, kwargs)
    assert str(error.value).startswith(message)


def test_what_is_no_tokenizer_is_refused() -> None:
    message = (
        r"^a tokenizer must be from tokenizers, transformers or tiktoken, or a callable list\[str\] -> list\[list\[int\]\] "
        r"\(got int\)$"
    )
    with pytest.raises(TypeError, match=message):
        encoder_for(3)


def test_a_callable_must_give_one_result_a_text() -> None:
    with pytest.raises(ValueError, match=r"^the tokenizer returned 1 results for 7 texts$"):
        encoded(lambda texts: [[1]])


# -- the user's object -------------------------------------------------------------------------------------------------------


def settings_of(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return backend.to_str(), backend.truncation, backend.padding, backend.encode_special_tokens


@pytest.mark.parametrize("tokenizer", [make.bpe, make.wordpiece, make.gpt2, make.bert, make.llama])
@pytest.mark.parametrize(
    "kwargs", [{}, {"truncation": True, "max_length": 3}, {"return_attention_mask": False}], ids=str
)
def test_the_users_tokenizer_is_left_as_it_was(tokenizer: Callable[[], Any], kwargs: dict[str, Any]) -> None:
    own = tokenizer()
    if isinstance(own, Tokenizer) and "return_attention_mask" in kwargs:
        kwargs = {}
    backend = getattr(own, "backend_tokenizer", own)
    backend.enable_truncation(7, stride=2, direction="left")
    backend.enable_padding(length=9, pad_id=3)
    before = settings_of(own)
    dataset = bf.from_sequence(TEXTS).tokenize(own, tokenizer_kwargs=kwargs)
    list(dataset)
    if getattr(own, "eos_token_id", None) is not None:
        list(dataset.ensure_bos_eos(own))
    assert settings_of(own) == before


def test_a_tokenizer_that_is_changed_later_does_not_change_the_data_set() -> None:
    for tokenizer in (make.bpe(), make.gpt2(), make.byt5()):
        dataset = bf.from_sequence(["zebra"]).tokenize(tokenizer)
        expected = next(dataset.iter())["input_ids"].tolist()
        tokenizer.add_tokens(["zebra"])
        assert next(dataset.iter())["input_ids"].tolist() == expected
        assert next(bf.from_sequence(["zebra"]).tokenize(tokenizer).iter())["input_ids"].tolist() != expected


def retrained(tokenizer: Tokenizer) -> None:
    tokenizer.train_from_iterator(["zzz yyy"] * 9, trainers.BpeTrainer(vocab_size=300, show_progress=False))


IN_PLACE: dict[str, tuple[Callable[[], Tokenizer], Callable[[Any], Any]]] = {
    "dropout": (make.bpe, lambda tokenizer: setattr(tokenizer.model, "dropout", 1.0)),
    "normalizer": (make.wordpiece, lambda tokenizer: setattr(tokenizer.normalizer, "lowercase", False)),
    "pre-tokenizer": (make.bpe, lambda tokenizer: setattr(tokenizer.pre_tokenizer, "add_prefix_space", True)),
    "longest word": (make.wordpiece, lambda tokenizer: setattr(tokenizer.model, "max_input_chars_per_word", 1)),
    "training": (make.bpe, retrained),
}


@pytest.mark.parametrize("engine", ["auto", "cache", "tokenizer"])
@pytest.mark.parametrize("change", IN_PLACE)
def test_parts_that_are_changed_in_place_later_do_not_change_the_data_set(change: str, engine: Any) -> None:
    made, changed = IN_PLACE[change]
    texts, own = [f"Zebra number{number} Where" for number in range(40)], made()
    if isinstance(own.model, models.WordPiece):
        own.normalizer = normalizers.BertNormalizer(lowercase=True)
    then = Tokenizer.from_str(own.to_str())
    expected = [one.ids for one in then.encode_batch(texts)]
    before, at_once = encoder_for(own, engine=engine), encoder_for(own, engine=engine)
    assert rows_of(make.of_column(before, pa.array(texts[:10]))) == expected[:10]
    changed(own)
    assert [one.ids for one in own.encode_batch(texts)] != expected
    for encoder in (before, at_once, pickle.loads(pickle.dumps(before))):
        assert rows_of(make.of_column(encoder, pa.array(texts[10:]))) == expected[10:]
        assert encoder.fingerprint() == encoder_for(then).fingerprint()
        assert encoder.text(expected[0]) == then.decode(expected[0], skip_special_tokens=False)


def test_the_users_tokenizer_may_be_trained_anew_and_set_up_anew_afterwards() -> None:
    """A model remembers the words that it has encoded, and forgets them neither when it is trained nor when it is changed."""
    texts = [f"Zebra number{number} Where" for number in range(40)]
    own, untouched = make.bpe(), make.bpe()
    for engine in ("cache", "tokenizer", "auto"):
        assert make.of_column(encoder_for(own, engine=engine), pa.array(texts)).values.size  # type: ignore[arg-type]
    for tokenizer in (own, untouched):
        retrained(tokenizer)
    assert [one.ids for one in own.encode_batch(texts)] == [one.ids for one in untouched.encode_batch(texts)]


@pytest.mark.parametrize("engine", ["auto", "cache", "tokenizer"])
def test_added_tokens_whose_ids_cannot_be_saved_are_refused(engine: Any) -> None:
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.add_special_tokens(["<pad>"])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        ["the cat sat on the mat"] * 9,
        trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False),
    )
    assert own.token_to_id("<pad>") == 0
    with pytest.raises(
        ValueError, match=r"^the added token '<pad>' has the id 0 in this tokenizer, and \d+ in what it is saved"
    ):
        make.of_column(encoder_for(own, engine=engine), pa.array(["a<pad>"]))
    loaded = Tokenizer.from_str(own.to_str())
    assert rows_of(make.of_column(encoder_for(loaded, engine=engine), pa.array(["a<pad>"]))) == [
        loaded.encode("a<pad>").ids
    ]


@pytest.mark.parametrize(
    "kwargs", [{"truncation": True, "max_length": 8}, {"max_length": 8, "return_length": False}], ids=str
)
def test_the_user_may_call_the_tokenizer_in_other_threads_meanwhile(kwargs: dict[str, Any]) -> None:
    """transformers #47085: a tokenizer that two threads share raises "Already borrowed", or truncates for the other."""
    tokenizer = make.bert()
    texts = ["word " * 30] * 500
    short = tokenizer(texts[:3], truncation=True, max_length=4)["input_ids"]
    long = tokenizer(texts[:3])["input_ids"]
    ours = tokenizer(texts[:1], truncation=True, max_length=8)["input_ids"][0]
    errors: list[BaseException] = []
    done = threading.Event()

    def calling() -> None:
        try:
            while not done.is_set():
                assert tokenizer(texts[:3], truncation=True, max_length=4)["input_ids"] == short
                assert tokenizer(texts[:3], padding=True)["input_ids"] == long
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=calling)
    dataset = bf.from_sequence(texts).tokenize(tokenizer, tokenizer_kwargs=kwargs, max_workers=2)
    thread.start()
    try:
        for _ in range(8):
            assert {tuple(sample["input_ids"]) for sample in dataset} == {tuple(ours)}
    finally:
        done.set()
        thread.join()
    assert errors == []


# -- fingerprints --------------------------------------------------------------------------------------------------------------


def fingerprint(tokenizer: Any, **kwargs: Any) -> str:
    return encoder_for(tokenizer, kwargs).fingerprint()


@pytest.mark.parametrize("tokenizer", [make.bpe, make.wordpiece, *TRANSFORMERS, make.tiktoken_bytes])
def test_an_equal_tokenizer_that_is_loaded_anew_has_the_same_fingerprint(tokenizer: Callable[[], Any]) -> None:
    assert fingerprint(tokenizer()) == fingerprint(tokenizer())
    used = tokenizer()
    if hasattr(used, "init_kwargs"):
        used(TEXTS, padding=True, truncation=True, max_length=5)  # leaves settings behind in a fast one
        assert fingerprint(used) == fingerprint(tokenizer())


def test_fingerprints_differ_for_another_vocabulary_or_other_settings() -> None:
    larger, swapped = make.bpe(), make.tiktoken_bytes((b"wo", b"th", b"the", b"rd", b"word"))
    larger.add_tokens(["zebra"])
    padded = make.bpe()
    padded.enable_truncation(6)
    split = make.bpe()
    split.encode_special_tokens = True
    cut = {"truncation": True, "max_length": 5}
    prints = [
        fingerprint(make.bpe()),
        fingerprint(make.bpe(), **cut),
        fingerprint(make.bpe(), truncation=True, max_length=6, add_special_tokens=False),
        fingerprint(make.bpe(), add_special_tokens=False),
        fingerprint(larger),
        fingerprint(padded),
        fingerprint(split),
        fingerprint(make.wordpiece()),
        fingerprint(make.gpt2(truncation_side="left"), **cut),
        fingerprint(make.byt5()),
        fingerprint(make.byt5(extra_ids=10)),
        fingerprint(make.byt5(), **cut),
        fingerprint(make.gpt2(), return_attention_mask=False),
        fingerprint(make.llama(), return_attention_mask=False),
        fingerprint(make.tiktoken_bytes()),
        fingerprint(swapped),
        fingerprint(make.tiktoken_bytes(), allowed_special="all"),
        fingerprint(characters),
        fingerprint(len),
        fingerprint(characters, more=1),
    ]
    assert len(set(prints)) == len(prints)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    code = """
from brimful.encoding.encoders import encoder_for
from tests import tokenizers as make
special = {"<|endoftext|>", "a", "b", "c"}
print(encoder_for(make.tiktoken_bytes(), {"disallowed_special": special}).fingerprint(), encoder_for(make.byt5()).fingerprint())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_fingerprint_begins_with_words() -> None:
    assert fingerprint(make.bpe(), max_length=6).startswith("BPE of 300 tokens, cut to 6 (")
    assert fingerprint(make.wordpiece()).startswith("WordPiece of ")
    assert fingerprint(make.byt5(), max_length=7, truncation=True).startswith("ByT5Tokenizer of ")
    assert ", max_length=7, truncation=True (" in fingerprint(make.byt5(), max_length=7, truncation=True)
    assert fingerprint(make.tiktoken_bytes(), allowed_special="all").startswith(
        "test of 262 tokens, allowed_special=all ("
    )
    assert fingerprint(characters).startswith("characters (")


def test_a_state_of_another_tokenizer_is_refused_by_name() -> None:
    def iterator(tokenizer: Any, state: Any = None) -> Any:
        return bf.from_sequence(TEXTS).tokenize(tokenizer).batch(2).iter(state)

    it = iterator(make.gpt2())
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    assert iterator(make.gpt2(), state) is not None
    with pytest.raises(
        bf.StateError,
        match=r"tokenizer was 'BPE of [0-9,]+ tokens \([0-9a-f]{16}\)' when it was saved and is 'BPE of [0-9,]+ tokens",
    ):
        iterator(make.llama(), state)


# -- travelling ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokenizer", [make.bpe, make.wordpiece, *TRANSFORMERS, make.tiktoken_bytes, lambda: characters]
)
def test_a_stage_with_an_encoder_can_be_pickled_also_after_use(tokenizer: Callable[[], Any]) -> None:
    dataset = bf.from_sequence(TEXTS).tokenize(tokenizer())
    expected = [sample["input_ids"].tolist() for sample in dataset]
    it = dataset.iter()
    next(it)
    again = pickle.loads(pickle.dumps(dataset))
    assert [sample["input_ids"].tolist() for sample in again] == expected
    assert [sample["input_ids"].tolist() for sample in again.iter(it.state_dict())] == expected[1:]


# -- BOS and EOS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [True, False])
def test_ensure_bos_eos_holds_whatever_the_tokenizer_was_told_to_add(tmp_path: Path, special: bool) -> None:
    tokenizer = make.llama()
    plain = tokenizer("the dog", add_special_tokens=False)["input_ids"]
    data = bf.from_sequence(["the dog"]).tokenize(tokenizer, tokenizer_kwargs={"add_special_tokens": special})
    (sample,) = data.ensure_bos_eos(tokenizer)
    assert sample["input_ids"].tolist() == [tokenizer.bos_token_id, *plain, tokenizer.eos_token_id]
    tokenizer.save_pretrained(tmp_path)
    assert next(iter(data.ensure_bos_eos(tmp_path)))["input_ids"].tolist() == sample["input_ids"].tolist()
    (sample,) = bf.from_sequence(["the dog"]).tokenize(make.byt5()).ensure_bos_eos(make.byt5())
    assert sample["input_ids"].tolist() == make.byt5()("the dog")["input_ids"]


def test_ensure_bos_eos_of_a_tokenizer_that_has_neither_is_refused() -> None:
    message = r"^ensure_bos_eos needs a tokenizer with a BOS or an EOS token \(\w+ has neither\); name the ids with add_bos_eos$"
    with pytest.raises(ValueError, match=message):
        bf.from_sequence(["a"]).tokenize(make.bert()).ensure_bos_eos(make.bert())


def test_ensure_bos_eos_needs_to_know_the_ids() -> None:
    message = (
        r"^ensure_bos_eos needs a tokenizer with bos_token_id and eos_token_id \(got Tokenizer\); "
        "name the ids with add_bos_eos$"
    )
    with pytest.raises(TypeError, match=message):
        bf.from_sequence(["a"]).tokenize(make.bpe()).ensure_bos_eos(make.bpe())


# -- vocabularies ------------------------------------------------------------------------------------------------------------


def test_a_vocabulary_is_of_the_ids_and_not_of_the_settings() -> None:
    own = encoder_for(make.bpe()).vocabulary
    assert own is not None
    assert own.startswith("BPE of 300 tokens (")
    longer = make.gpt2()
    longer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    same: list[tuple[Any, dict[str, Any]]] = [
        (make.gpt2(), {"max_length": 3}),
        (longer, {}),
        (make.gpt2(), {"return_attention_mask": False}),  # called as it is
        (make.chatty(), {"add_special_tokens": False}),
    ]
    assert [encoder_for(tokenizer, kwargs).vocabulary for tokenizer, kwargs in same] == [own] * len(same)
    assert encoder_for(make.gpt2(), {"max_length": 3}).fingerprint() != encoder_for(make.gpt2()).fingerprint()
    assert chat_encoder_for(make.chatty()).vocabulary == own
    tik = make.tiktoken_bytes()
    more = {**tik._special_tokens, "<|new|>": tik.n_vocab}
    extended = Encoding("new", pat_str=tik._pat_str, mergeable_ranks=tik._mergeable_ranks, special_tokens=more)
    assert encoder_for(extended).vocabulary == encoder_for(tik).vocabulary
    others = [encoder_for(one()).vocabulary for one in (make.bert, make.tiktoken_bytes)]
    assert len({own, None, *others}) == 4
    assert encoder_for(make.byt5()).vocabulary is None
    assert encoder_for(len).vocabulary is None
