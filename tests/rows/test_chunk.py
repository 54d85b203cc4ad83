from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful as bf
from brimful.core.run import Run
from brimful.testing import assert_exact_resume
from tests import tokenizers as make
from tests.samples import counted, ids, tokens


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=5), st.integers(1, 4), st.booleans())
def test_each_sample_is_cut_by_itself(rows: list[list[int]], length: int, drop: bool) -> None:
    chunks = [row[start : start + length] for row in rows for start in range(0, len(row), length)]
    kept = [chunk for chunk in chunks if len(chunk) == length or not drop]
    samples, it = counted(
        tokens(*rows, labels=rows).chunk(length, target_columns=["input_ids", "labels"], drop_remainder=drop)
    )
    assert [sample["input_ids"].tolist() for sample in samples] == kept
    assert [sample["labels"].tolist() for sample in samples] == kept
    assert it.stats["dropped_tokens"] == sum(map(len, chunks)) - sum(map(len, kept))


def test_rows_have_the_target_columns_alone() -> None:
    (sample,) = tokens([1, 2], id=[7]).chunk(2)
    assert list(sample) == ["input_ids"]
    assert ids(tokens([1], labels=[[2, 3]]).chunk(1, target_columns="labels"), "labels") == [[2], [3]]


@pytest.mark.parametrize("name", ["labels", "attention_mask", "shift_labels", "token_type_ids", "chosen_labels"])
@pytest.mark.parametrize("cut", ["chunk", "concat_chunk", "pack_chunk"])
def test_what_says_which_tokens_count_is_not_left_out_in_silence(cut: str, name: str) -> None:
    """Without it hidden tokens would be seen, and all would be trained on."""
    for data in (
        tokens([5, 6, 0], id=[7], **{name: [[1, 1, 0]]}),
        tokens([5, 6, 0], **{name: [[1, 1, 0]]}).filter(bool),
    ):
        message = (
            rf"^{cut} keeps target_columns=\['input_ids'\] alone, and would leave out '{name}' \(sequence, row 0\): every token "
            rf"would be seen and trained on. Name what goes along, target_columns=\['input_ids', '{name}'\], or "
            rf"drop\('{name}'\) first$"
        )
        with pytest.raises(bf.DataError, match=message):
            list(getattr(data, cut)(3))
        assert ids(getattr(data.drop(name), cut)(3)) == [[5, 6, 0]]
        assert ids(getattr(data, cut)(3, target_columns=("input_ids", name)), name) == [[1, 1, 0]]


def test_a_class_of_a_whole_sample_is_no_column_of_tokens() -> None:
    assert ids(tokens([5, 6], labels=[1]).chunk(2)) == [[5, 6]]
    assert list(tokens([5, 6], labels=[[1, 2]]).filter(lambda row: False).chunk(2)) == []


def test_a_conversation_that_is_cut_keeps_its_labels() -> None:
    pytest.importorskip("transformers")
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the fox"}]
    data = bf.from_sequence([{"messages": turns}] * 3).chat(make.chatty(make.CHATML))
    message = r"would leave out 'labels' .* target_columns=\['input_ids', 'labels'\], or drop\('labels'\) first"
    with pytest.raises(bf.DataError, match=message):
        list(data.concat_chunk(4))
    whole, cut = list(data), list(data.concat_chunk(4, target_columns=("input_ids", "labels")))
    labels = [label for sample in whole for label in sample["labels"].tolist()]
    assert [label for sample in cut for label in sample["labels"].tolist()] == labels[: 4 * len(cut)]
    assert -100 in labels


def test_many_chunks_of_one_sample_come_in_blocks_that_a_resume_can_begin_at() -> None:
    data = tokens(range(10_000))
    sizes = [block.num_rows for block, _ in data.chunk(1).stage.items(data.chunk(1).stage.start(0), Run())]
    assert (sizes[0], max(sizes), sum(sizes)) == (16, 3_856, 10_000)
    assert_exact_resume(lambda: tokens(range(10_000)).chunk(1), max_resumes=5, epochs=(0,))


def test_columns_of_two_lengths_are_an_error_with_both() -> None:
    data = tokens([1, 2], [3], labels=[[1, 2], [1, 2, 3]])
    for cut in (data.chunk, data.concat_chunk, data.pack_chunk):
        message = r"^columns 'input_ids' and 'labels' must be equally long \(got 1 and 3; sequence, row 1\)$"
        with pytest.raises(bf.DataError, match=message):
            list(cut(1, target_columns=("input_ids", "labels")))


def test_settings_are_checked() -> None:
    data = tokens([1])
    for cut in (data.chunk, data.concat_chunk, data.pack_chunk):
        with pytest.raises(ValueError, match=r"^chunk_length must be at least 1 token \(got 0\)$"):
            cut(0)
        with pytest.raises(ValueError, match=r"^target_columns must name at least one column \(got none\)$"):
            cut(1, target_columns=())
