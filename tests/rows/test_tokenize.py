from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
from tokenizers import ByteLevelBPETokenizer, pre_tokenizers

import brimful as bf
from brimful.encoding.splittable import TIKTOKEN
from brimful.testing import assert_exact_resume
from tests import tokenizers as make
from tests.samples import ids, shard
from tests.tokenizers import TEXTS


def letters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def test_tokens_are_added_as_int32_and_other_columns_kept() -> None:
    data = bf.from_sequence([{"id": 1, "text": "ab"}, {"id": 2, "text": ""}]).tokenize(letters)
    one, two = data
    assert (one["id"], one["text"], one["input_ids"].tolist()) == (1, "ab", [97, 98])
    assert two["input_ids"].tolist() == []
    assert one["input_ids"].dtype == np.int32


def test_columns_can_be_named_also_several_times() -> None:
    rows = [{"source": "a", "target": "bc"}]
    data = (
        bf.from_sequence(rows)
        .tokenize(letters, column="source")
        .tokenize(letters, column="target", output_column="labels")
    )
    assert (ids(data), ids(data, "labels")) == ([[97]], [[98, 99]])
    assert ids(bf.from_sequence(["a"]).tokenize(letters, output_column="text"), "text") == [[97]]


def test_tokens_are_not_replaced_by_those_of_another_column() -> None:
    pairs = bf.from_sequence([{"source": "a", "target": "bc"}])
    source = pairs.tokenize(letters, column="source")
    message = (
        r"^tokenize: column 'input_ids' holds tokens already \(sequence, row 0\)\. Write these to another one, such as "
        r"output_column='labels' for the target of a pair\. Or drop 'input_ids' first$"
    )
    for made in (source, source.map(dict), source.cache()):
        with pytest.raises(bf.DataError, match=message):
            list(made.tokenize(letters, column="target"))
    assert ids(source.drop("input_ids").tokenize(letters, column="target")) == [[98, 99]]
    assert ids(source.map(lambda pair: {"text": pair["target"]}).tokenize(letters)) == [[98, 99]]
    assert ids(bf.from_sequence([{"text": "a", "input_ids": [7]}]).tokenize(letters)) == [[97]]


@pytest.mark.parametrize("calls", ["one", "two"])
def test_what_is_made_of_each_side_has_its_prefix(calls: str) -> None:
    data = bf.from_sequence([{"chosen": "ab", "rejected": "c", "id": 7}])
    if calls == "one":
        data = data.tokenize(letters, column=("chosen", "rejected"), output_prefix=("chosen_", "rejected_"))
    else:
        data = data.tokenize(letters, column="chosen", output_prefix="chosen_")
        data = data.tokenize(letters, column="rejected", output_prefix="rejected_")
    assert (ids(data, "chosen_input_ids"), ids(data, "rejected_input_ids")) == ([[97, 98]], [[99]])
    (batch,) = data.batch(1)
    assert sorted(batch) == ["chosen_input_ids", "id", "rejected_input_ids"], "text that was tokenized is left out"
    (batch,) = data.batch(1, keep_text=True)
    assert {"chosen", "rejected"} <= {*batch}
    assert_exact_resume(lambda: data)


def test_other_outputs_have_the_prefix_too() -> None:
    pairs = bf.from_sequence([{"chosen": "a", "rejected": "x x"}])
    for name in ("chosen", "rejected"):
        pairs = pairs.tokenize(make.bert(), column=name, output_prefix=f"{name}_", extra_outputs=["attention_mask"])
    (sample,) = pairs
    masks = {name: sample[name].tolist() for name in ("chosen_attention_mask", "rejected_attention_mask")}
    assert masks == {"chosen_attention_mask": [1, 1, 1], "rejected_attention_mask": [1, 1, 1, 1]}
    assert "chosen_attention_mask: list of int32" in repr(pairs)


def test_a_prefix_replaces_no_column() -> None:
    row = {"text": "a", "chosen_input_ids": [7]}
    with pytest.raises(
        bf.DataError, match=r"there is a column 'chosen_input_ids' already \(sequence, row 0\); drop or rename it"
    ):
        list(bf.from_sequence([row]).tokenize(letters, output_prefix="chosen_"))
    rows = [{"chosen": "a", "rejected": "b"}, {"chosen": "a", "rejected": None}]
    with pytest.raises(bf.DataError, match=r"column 'rejected' is null.*sequence, row 1"):
        list(bf.from_sequence(rows).tokenize(letters, column="rejected", output_prefix="rejected_"))
    data = bf.from_sequence([row])
    with pytest.raises(TypeError, match=r"output_prefix must be text, such as 'chosen_', or several of them \(got 3\)"):
        data.tokenize(letters, output_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"output_prefix=\('a_', 'b_'\) makes a column of each prefix, so give one output_col"
    ):
        data.tokenize(letters, output_column=("x", "y"), output_prefix=("a_", "b_"))
    with pytest.raises(ValueError, match="tokenize makes one output for each column"):
        data.tokenize(letters, output_prefix=("a_", "b_"))


def test_other_outputs_are_not_replaced_by_those_of_another_column() -> None:
    pairs = bf.from_sequence([{"source": "a", "target": "x x"}])
    source = pairs.tokenize(make.bert(), column="source", extra_outputs="attention_mask")
    target = {"column": "target", "output_column": "labels", "extra_outputs": "attention_mask"}
    with pytest.raises(
        bf.DataError, match=r"there is a column 'attention_mask' already \(sequence, row 0\); drop or rename"
    ):
        list(source.tokenize(make.bert(), **target))
    both = source.rename({"attention_mask": "mask"}).tokenize(make.bert(), **target)
    assert (ids(both, "mask"), ids(both, "attention_mask")) == ([[1, 1, 1]], [[1, 1, 1, 1]])


def two(first: list[str], second: list[str]) -> dict[str, Any]:
    rows = list(zip(letters(first), letters(second)))
    return {
        "input_ids": [[*a, 0, *b] for a, b in rows],
        "token_type_ids": [[0] * (1 + len(a)) + [1] * len(b) for a, b in rows],
    }


ROWS = [{"source": "a", "target": "bc", "id": 1}, {"source": "", "target": "d", "id": 2}]


def test_several_columns_are_each_tokenised_by_themselves() -> None:
    data = bf.from_sequence(ROWS).tokenize(letters, column=("source", "target"), output_column=("input_ids", "labels"))
    assert (ids(data), ids(data, "labels")) == ([[97], []], [[98, 99], [100]])
    assert [*data.peek(1)[0]] == ["source", "target", "id", "input_ids", "labels"]
    (batch,) = data.batch(2, length_column=("input_ids", "labels"))
    assert batch["labels"].tolist() == [[98, 99], [100, -100]]


def test_two_columns_and_one_output_are_pairs_with_what_else_the_tokenizer_says() -> None:
    data = bf.from_sequence(ROWS).tokenize(two, column=["source", "target"], extra_outputs="token_type_ids")
    assert (ids(data), ids(data, "token_type_ids")) == ([[97, 0, 98, 99], [0, 100]], [[0, 0, 1, 1], [0, 1]])
    bert = make.bert()
    data = bf.from_sequence(ROWS).tokenize(
        bert, column=("source", "target"), extra_outputs=("token_type_ids",), truncation="only_second", max_length=5
    )
    expected = bert(["a", ""], ["bc", "d"], truncation="only_second", max_length=5, return_token_type_ids=True)
    assert (ids(data), ids(data, "token_type_ids")) == (expected["input_ids"], expected["token_type_ids"])
    (batch,) = data.select(["input_ids", "token_type_ids"]).batch(2)
    padded = bert.pad({name: expected[name] for name in ("input_ids", "token_type_ids")}, return_tensors="pt")
    assert {name: batch[name].tolist() for name in padded} == {name: value.tolist() for name, value in padded.items()}


@pytest.mark.parametrize(
    "tokenizer", [make.bpe(), make.bert(), make.byt5(), make.tiktoken_bytes()], ids=lambda one: type(one).__name__
)
def test_settings_say_the_same_as_the_keywords_of_a_call(tokenizer: Any) -> None:
    def tokens(**options: Any) -> list[list[int]]:
        return ids(bf.from_sequence(TEXTS).tokenize(tokenizer, **options))

    whole = tokens()
    for settings in ({"truncation": True, "max_length": 4}, {"max_length": 4}):
        cut = tokens(**settings)
        assert cut == tokens(tokenizer_kwargs=settings)
        assert max(map(len, cut)) == 4 < max(map(len, whole))
    assert tokens(truncation=False, max_length=4) == whole
    assert tokens(add_special_tokens=False) == tokens(tokenizer_kwargs={"add_special_tokens": False})


def test_removed_columns_are_gone_once_they_are_tokens(tmp_path: Path) -> None:
    data = bf.from_sequence(ROWS)
    for removed in (("source", "id"), ["id", "source"]):
        assert [*next(iter(data.tokenize(letters, column="source", remove_columns=removed)))] == ["target", "input_ids"]
    assert [*next(iter(data.tokenize(letters, column="target", remove_columns="id")))] == [
        "source",
        "target",
        "input_ids",
    ]
    with pytest.raises(bf.DataError) as error:
        list(shard(tmp_path, [{"text": "x"}]).tokenize(letters, remove_columns="texts"))
    assert str(error.value) == (
        "tokenize: there is no column 'texts' to remove (columns: text, input_ids; shard a.jsonl, line 1)"
    )


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({}, {"max_length": 3}, r"tokenizer was 'WordPiece of \d+ tokens \(\w+\)' when .* and is 'WordPiece of \d+ tokens, cut"),
        ({}, {"add_special_tokens": False}, "tokenizer was 'WordPiece"),
        (
            {"extra_outputs": "attention_mask"},
            {"extra_outputs": "token_type_ids"},
            r"extra_outputs\[0\] was 'attention_mask' when it was saved",
        ),
        ({}, {"remove_columns": "id"}, r"remove_columns was \[\] when it was saved and is \['id'\] here"),
        ({"column": "source"}, {}, r"column was \['source'\] when it was saved and is \['source', 'target'\] here"),
        ({"truncation": "only_first", "max_length": 9}, {"truncation": True, "max_length": 9}, "tokenizer was 'WordPiece"),
    ],
)  # fmt: skip
def test_other_settings_are_another_pipeline(one: dict[str, Any], other: dict[str, Any], message: str) -> None:
    def data(**options: Any) -> bf.Dataset:
        return bf.from_sequence(ROWS).tokenize(make.bert(), **{"column": ("source", "target"), **options})

    it = data(**one).iter()
    next(it)
    next(data(**one).iter(it.state_dict()))
    with pytest.raises(bf.StateError, match=rf"tokenize\.{message}"):
        data(**other).iter(it.state_dict())


def test_an_error_of_a_pair_names_its_row(tmp_path: Path) -> None:
    data = shard(tmp_path, [{"a": "x", "b": "y"}, {"a": "x", "b": "word " * 9}])
    pairs = data.tokenize(make.wordpiece(), column=("a", "b"), truncation="only_first", max_length=9)
    with pytest.raises(bf.StageError, match=r"^tokenize failed at shard a\.jsonl, line 2: "):
        list(pairs)


ONE_OF_EACH = "tokenize makes one output for each column, or one for two columns"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": ("a", "b", "c")}, f"{ONE_OF_EACH} (got column=('a', 'b', 'c') and output_column=('input_ids',))"),
        ({"column": "a", "output_column": ("x", "y")}, f"{ONE_OF_EACH} (got column=('a',) and output_column=('x', 'y'))"),
        ({"column": ()}, f"{ONE_OF_EACH} (got column=() and output_column=('input_ids',))"),
        (
            {"column": ("a", "b"), "output_column": ("x", "y"), "extra_outputs": "attention_mask"},
            "tokenize: extra_outputs= works for one column only. Tokenize the columns one by one",
        ),
        ({"extra_outputs": "input_ids"}, "tokenize names 'input_ids' twice"),
        (
            {"output_column": "text", "remove_columns": "text"},
            "tokenize makes the column 'text', but remove_columns leaves it out",
        ),
    ],
)  # fmt: skip
def test_columns_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bf.from_sequence(ROWS).tokenize(letters, **options)


def test_a_store_knows_the_tokenizer_of_each_output(tmp_path: Path) -> None:
    bert = make.bert()
    data = bf.from_sequence(ROWS).tokenize(bert, column=("source", "target"), output_column=("input_ids", "labels"))
    data.to_store(tmp_path / "store")
    stored = bf.from_store(tmp_path / "store")
    assert (ids(stored), ids(stored, "labels")) == (ids(data), ids(data, "labels"))
    (batch,) = stored.batch(2, length_column=("input_ids", "labels"))
    assert batch["input_ids"].min() == bert.pad_token_id == 0
    assert stored.stage.index.schema.field("labels").type.value_type == pa.uint8()  # type: ignore[attr-defined]


@pytest.mark.parametrize("max_workers", [0, 1, 4])
def test_workers_change_nothing(max_workers: int) -> None:
    rows = [{"text": text} for text in TEXTS] * 200
    plain = [encoding.ids for encoding in make.bpe().encode_batch([row["text"] for row in rows])]
    assert ids(bf.from_iterable(rows).tokenize(make.bpe(), max_workers=max_workers)) == plain


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_of_every_layout_is_tokenised(kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["ab", "c"], kind)})
    assert ids(bf.from_sequence(table).tokenize(letters)) == [[97, 98], [99]]
    assert ids(bf.from_sequence(table.slice(1)).tokenize(letters)) == [[99]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"a": "x"}],
            "there is no column 'text' (columns: a; shard a.jsonl, line 1); column= says which one has the text",
        ),
        ([{"text": 5}], "tokenize: column 'text' must be text (got int64; shard a.jsonl, line 1)"),
        (
            [{"text": "x"}, {"a": 1}],
            "tokenize: column 'text' is null or missing (shard a.jsonl, line 2); filter it out or fill it",
        ),
        (
            [{"text": None}],
            "tokenize: column 'text' is null or missing (shard a.jsonl, line 1); filter it out or fill it",
        ),
    ],
)
@pytest.mark.parametrize("max_workers", [0, 1])
def test_what_is_no_text_is_an_error_with_its_place(
    tmp_path: Path, rows: list[Any], message: str, max_workers: int
) -> None:
    with pytest.raises(bf.DataError) as error:
        list(shard(tmp_path, rows).tokenize(letters, max_workers=max_workers))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (lambda texts: [[1 // (text != "c")] for text in texts], "at shard a.jsonl, line 3: ZeroDivisionError: "),
        (lambda texts: [[1.5 if text == "b" else 1] for text in texts], "at shard a.jsonl, line 2: TypeError: the tokenizer"
         " must return integers (got float)"),
        (lambda texts: [[2**40] for _ in texts], "at shard a.jsonl, line 1: OverflowError: "),
        (lambda texts: [[1]], "near shard a.jsonl, line 1: ValueError: the tokenizer returned 1 results for 3 texts"),
        (lambda texts: len(texts), "at shard a.jsonl, line 1: TypeError: 'int' object is not iterable"),
    ],
)  # fmt: skip
def test_an_error_of_the_tokenizer_names_the_row_that_it_fails_on(tmp_path: Path, tokenizer: Any, message: str) -> None:
    data = shard(tmp_path, [{"text": letter} for letter in "abc"]).tokenize(tokenizer)
    with pytest.raises(bf.StageError) as error:
        list(data)
    assert str(error.value).startswith(f"tokenize failed {message}")


@pytest.mark.parametrize("engine", ["auto", "tokenizer"])
@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_a_panic_of_a_library_names_the_row_and_the_remedy(tmp_path: Path, name: str, engine: Any) -> None:
    """A panic of Rust is no `Exception`: tiktoken's patterns go so deep in a run of a million spaces."""
    ranks = {bytes([one]): one for one in range(256)}
    spaces = tiktoken.Encoding(name, pat_str=TIKTOKEN[name], mergeable_ranks=ranks, special_tokens={})
    data = shard(tmp_path, [{"text": "a"}, {"text": f"b{' ' * 1_000_000}c"}]).tokenize(spaces, engine=engine)
    with pytest.raises(
        bf.StageError, match=r"^tokenize failed at shard a\.jsonl, line 2: PanicException: .*shorten long runs of one"
    ):
        list(data)


class Spaces:
    """A pre-tokenizer in Python."""

    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda number, part: part.split(" ", "removed"))


def test_a_part_of_a_tokenizer_in_python_is_refused_with_the_remedy() -> None:
    tokenizer = make.bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Spaces())
    chatty = make.chatty()
    chatty.backend_tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
    function, none = r"of the library alone. tokenize takes a function", r"of the library alone$"  # chat takes none
    refused: list[tuple[Any, str]] = [
        (lambda: bf.from_sequence(["a b"]).tokenize(tokenizer), function),
        (lambda: bf.from_sequence(["a b"]).tokenize(chatty), function),
        (lambda: bf.from_sequence([{"messages": []}]).chat(chatty), none),
    ]
    for make_data, words in refused:
        with pytest.raises(
            ValueError, match=rf"cannot be copied for threads and processes: .*Custom PreTokenizer .*{words}"
        ):
            make_data()
    (sample,) = bf.from_sequence(["a b"]).tokenize(lambda texts: [one.ids for one in tokenizer.encode_batch(texts)])
    assert sample["input_ids"].tolist() == tokenizer.encode("a b").ids


def test_the_classes_around_a_tokenizer_are_that_tokenizer() -> None:
    around = ByteLevelBPETokenizer()
    around.train_from_iterator(TEXTS * 3, vocab_size=300, show_progress=False)
    (sample,) = bf.from_sequence(["the quick fox"]).tokenize(around)
    assert sample["input_ids"].tolist() == around.encode("the quick fox").ids


def test_empty_documents_and_what_was_filtered_out_are_no_trouble() -> None:
    data = bf.from_iterable([""] * 2_000)
    assert sum(map(len, ids(data.tokenize(make.bpe())))) == 0
    assert list(data.filter(lambda sample: False).tokenize(make.bpe())) == []


def test_resume_is_exact_at_every_sample() -> None:
    assert_exact_resume(lambda: bf.from_sequence(TEXTS).tokenize(make.bpe()).shuffle(3), epochs=(0,))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^max_workers must be at least 0 \(got -1\)$"):
        bf.from_sequence(["a"]).tokenize(letters, max_workers=-1)


KINDS: dict[str, Any] = {
    "tokenizers": make.wordpiece,
    "bert": make.bert,
    "bert, left": lambda: make.bert(truncation_side="left"),
    "gpt2": make.gpt2,
    "llama": make.llama,
    "byt5": make.byt5,
    "tiktoken": make.tiktoken_bytes,
}
CUT: list[dict[str, Any]] = [
    {},
    {"engine": "tokenizer"},
    {"engine": "cache"},
    {"add_special_tokens": False},
    {"extra_outputs": "attention_mask"},
    {"tokenizer_kwargs": {"return_attention_mask": False}},
]


@pytest.mark.parametrize("settings", CUT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_off_is_counted_whatever_makes_the_tokens(kind: str, settings: dict[str, Any]) -> None:
    rows = [{"text": "the quick dog " * (row % 9)} for row in range(60)]
    own = {name: value for name, value in settings.items() if name == "add_special_tokens"}
    whole = [len(tokens) for tokens in ids(bf.from_sequence(rows).tokenize(KINDS[kind](), **own))]
    for most in (7, max(whole)):
        try:
            data = bf.from_sequence(rows).tokenize(KINDS[kind](), max_length=most, **settings)
        except ValueError as error:
            pytest.skip(str(error))
        with data.iter() as it:
            kept = [len(sample["input_ids"]) for sample in it]
            assert kept == [min(count, most) for count in whole]
            cut = [count - most for count in whole if count > most]
            assert (it.stats.truncated, it.stats.dropped_tokens) == (len(cut), sum(cut))


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
def test_what_is_cut_off_pairs_is_counted(truncation: str) -> None:
    rows = [{"a": "the dog " * (1 + row % 5), "b": "the dog " * (1 + row % 6)} for row in range(60)]
    both: Any = {"column": ("a", "b")}
    whole = [len(tokens) for tokens in ids(bf.from_sequence(rows).tokenize(make.bert(), **both))]
    for kwargs in ({}, {"tokenizer_kwargs": {"return_attention_mask": False}}):
        with (
            bf.from_sequence(rows)
            .tokenize(make.bert(), max_length=17, truncation=truncation, **both, **kwargs)
            .iter() as it
        ):
            kept = [len(sample["input_ids"]) for sample in it]
            found = it.stats.truncated, it.stats.dropped_tokens
        cut = [count - left for count, left in zip(whole, kept, strict=True) if left < count]
        assert cut
        assert found == (len(cut), sum(cut))
