"""What a newcomer tries first and gets wrong is refused at the call, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf
from brimful.inference.inference import map_batches_in_order

STREAM = bf.from_iterable([{"input_ids": [1, 2]}])
INDEXED = bf.from_sequence([{"input_ids": [1, 2]}])
WRONG: Any = 3


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("map", STREAM.map),
        ("filter", STREAM.filter),
        ("filter", INDEXED.filter),
        ("filter_map", STREAM.filter_map),
        ("flat_map", STREAM.flat_map),
        ("map_blocks", STREAM.map_blocks),
        ("scan", lambda fn: STREAM.scan(fn, 0)),
        ("map", STREAM.batch(1).map),
        ("collate_fn", lambda fn: STREAM.batch(1, collate_fn=fn)),
        ("collate_fn", lambda fn: bf.from_dataset([1], collate_fn=fn)),
        ("map_batches_in_order", lambda fn: map_batches_in_order(fn, ["a"], 1)),
    ],
    ids=range(11),
)
def test_what_is_no_function_is_refused_where_it_is_given(name: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=rf"^{name} needs a function \(got 3\)$"):
        call(WRONG)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bf.from_files(WRONG), TypeError, r"^urls takes a path or a list of paths \(got 3\)$"),
        (lambda: bf.from_files([WRONG]), TypeError, r"^urls takes a path or a list of paths \(got 3\)$"),
        (lambda: bf.from_files({"a.txt"}), TypeError, r"^urls takes a path or a list of paths \(got \{'a.txt'\}\)$"),
        (lambda: bf.from_files(b"a.txt"), TypeError, r"^urls takes a path or a list of paths \(got b'a.txt'\)$"),
        (lambda: bf.from_files(""), ValueError, r"^urls must name at least one file \(got an empty name\)$"),
        (
            lambda: bf.from_files("a.txt", repeat=WRONG),
            TypeError,
            r"^repeat must be True or False \(got 3\); True repeats the data without end; for n epochs, loop over loader\(\) "
            "n times$",
        ),
        (lambda: bf.from_dataset("a.txt"), TypeError, "this is a text. Use from_files to read files by their names$"),
        (
            lambda: bf.from_iterable(WRONG),
            TypeError,
            r"^from_iterable takes an iterable, or a function .* \(got int\)$",
        ),
        (
            lambda: list(bf.from_iterable(lambda: WRONG)),
            TypeError,
            r"^<lambda> must return an iterable of samples \(got int\)$",
        ),
        (
            lambda: STREAM.batch(1, pad_values=WRONG),
            TypeError,
            r"^pad_values takes a dict by name, such as \{'labels': -100\} \(got 3\)$",
        ),
        (
            lambda: STREAM.batch(1, pad_values={"input_ids": "0"}),  # type: ignore[dict-item]
            TypeError,
            r"^pad_values must be numbers \(got '0'\)$",
        ),
        (
            lambda: STREAM.batch(1, dtypes=torch.int32),  # type: ignore[arg-type]
            TypeError,
            r"^dtypes takes a dict by name, such as \{'input_ids': 'int32'\} \(got torch.int32\)$",
        ),
        (
            lambda: bf.TokenBudget(60, buckets=WRONG),
            TypeError,
            r"^buckets takes lengths \(got 3\); bf.optimal_buckets finds the best ones$",
        ),
        (
            lambda: bf.BatchSampler([1], bf.TokenBudget),
            TypeError,
            r"^policy must have plan and max_length, as bf.TokenBudget\(16_384\) does ",
        ),
        (
            lambda: bf.BatchSampler(INDEXED, bf.TokenBudget(60)),  # type: ignore[arg-type]
            ValueError,
            r"^lengths must be integers \(got object\); dataset.lengths\(\) gives those of a data set$",
        ),
        (
            lambda: bf.AsyncLoader(WRONG, "cpu"),
            TypeError,
            r"^loader must be an iterable of batches, such as a DataLoader \(got 3\)$",
        ),
        (
            lambda: bf.AsyncLoader([], "cpu", buckets=[8], pad_value_dict=WRONG),
            TypeError,
            r"^pad_value_dict takes a dict by name, such as \{'input_ids': 0, .*\} \(got 3\)$",
        ),
        (
            lambda: bf.interleave_datasets([INDEXED, INDEXED], by="tokens", length_column=None),  # type: ignore[call-overload]
            TypeError,
            r"^length_column takes the name of a column \(got None\)$",
        ),
        (
            lambda: bf.interleave_datasets([INDEXED, INDEXED], by="tokens", length_column=""),  # type: ignore[call-overload]
            ValueError,
            r"^length_column takes the name of a column \(got an empty one\)$",
        ),
        (
            lambda: bf.interleave_datasets([INDEXED, INDEXED], weights={1, 2}),  # type: ignore[call-overload]
            TypeError,
            r"^weights takes a list, a number for each data set \(got \{1, 2\}\)$",
        ),
        (
            lambda: INDEXED.enumerate(count_column=WRONG),
            TypeError,
            r"^count_column takes the name of a column \(got 3\)$",
        ),
        (
            lambda: STREAM.rename("text"),  # type: ignore[arg-type]
            TypeError,
            r"^rename takes a mapping of old names to new ones, such as .* \(got 'text'\)$",
        ),
        (
            lambda: INDEXED.rename(["text"]),  # type: ignore[arg-type]
            TypeError,
            r"^rename takes a mapping of old names to new ones, such as .* \(got \['text'\]\)$",
        ),
        (
            lambda: bf.schedule({0: [1, 1], "5": [1, 2]}),  # type: ignore[dict-item]
            TypeError,
            r"^a point of a schedule must be an integer \(got '5'\)$",
        ),
        (
            lambda: bf.schedule({0: 1}),  # type: ignore[dict-item]
            TypeError,
            r"^a schedule takes a list of weights for each point \(got 1 at 0\)$",
        ),
        (
            lambda: bf.schedule({0: b"12"}),
            TypeError,
            r"^a schedule takes a list of weights for each point \(got b'12' at 0\)$",
        ),
        (
            lambda: STREAM.batch(1).to_device(-1),  # type: ignore[arg-type]
            ValueError,
            r"^device takes the name of a device of torch, such as 'cuda:0' \(got -1: .*\)$",
        ),
        (lambda: STREAM.batch(1, pad_side=False), ValueError, r"^pad_side must be one of right, left \(got False\)$"),  # type: ignore[arg-type]
        (lambda: STREAM.batch(1, collate_fn=0), TypeError, r"^collate_fn needs a function \(got 0\)$"),  # type: ignore[arg-type]
        (lambda: bf.from_store(WRONG), TypeError, r"^path must be the path of a folder \(got 3\)$"),
        (lambda: INDEXED.to_store(WRONG), TypeError, r"^path must be the path of a folder \(got 3\)$"),
    ],
    ids=range(31),
)
def test_a_setting_of_the_wrong_kind_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("combine", [bf.interleave_datasets, bf.concat_datasets, bf.zip_datasets])
def test_data_sets_are_combined_in_a_list_and_before_they_are_batched(combine: Any) -> None:
    name = combine.__name__
    with pytest.raises(TypeError, match=rf"^{name} takes a list of data sets \(got IndexedDataset\)$"):
        combine(INDEXED)
    with pytest.raises(TypeError, match=rf"^{name} takes a list of data sets \(got set\)$"):
        combine({INDEXED})
    if combine is not bf.interleave_datasets:  # whose data sets may have names
        with pytest.raises(TypeError, match=rf"^{name} takes a list of data sets \(got dict\)$"):
            combine({"a": INDEXED})
    with pytest.raises(
        TypeError, match=rf"^{name}: data set 1 is a brimful\S*Batches; call {name} before samples are batched$"
    ):
        combine([INDEXED, INDEXED.batch(1)])
    with pytest.raises(
        TypeError,
        match=rf"^{name}: data set 0 is a builtins.str; use from_sequence or from_iterable to make a data set of it$",
    ):
        combine(["a"])


def test_weights_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"^weights takes a list, a number for each data set \(got 3\)$"):
        bf.interleave_datasets([STREAM, STREAM], weights=WRONG)


def test_token_mean_says_what_it_takes() -> None:
    batch = {"labels": torch.tensor([1])}
    with pytest.raises(
        TypeError, match=r"^token_mean takes the sum of the losses and then the batch, a dict \(got Tensor\)$"
    ):
        bf.token_mean(batch, torch.tensor(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^loss_sum must be a tensor, such as cross_entropy.* \(got 3\)$"):
        bf.token_mean(WRONG, batch)
    with pytest.raises(ValueError, match=r"in the batch \(got none\)$"):
        bf.token_mean(torch.tensor(1.0), {})


def test_an_iterator_says_where_the_state_of_a_loader_goes() -> None:
    batches = INDEXED.batch(1)
    loader = batches.loader()
    next(iter(loader))
    with pytest.raises(bf.StateError, match=r"a loader's state is for its load_state_dict\)$"):
        batches.iter(loader.state_dict())


def test_a_split_of_a_store_names_a_key_that_is_no_column(tmp_path: Path) -> None:
    train, _ = INDEXED.to_store(tmp_path / "store").train_valid_split(0.5, key="doc")
    with pytest.raises(bf.DataError, match=r"^there is no column 'doc' \(columns: input_ids; store "):
        len(train)


def test_a_callable_tokenizer_that_wants_one_text_is_told_that_it_gets_several() -> None:
    texts = bf.from_sequence(["a b"]).tokenize(lambda text: text.split())
    with pytest.raises(bf.StageError) as error:
        list(texts)
    cause: Any = error.value.__cause__
    assert cause.__notes__ == ["a callable tokenizer gets a list of texts, and returns a list of token ids for each"]


def test_a_folder_of_tokenizers_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "gpt2.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"\(the folder has no tokenizer.json; name one of its files if that is one: gpt2.json\)$"
    ):
        STREAM.tokenize(str(tmp_path))


class NoLimit:
    def plan(self, lengths: Any) -> Any:
        return [[number] for number in range(len(lengths))]


class Lists(NoLimit):
    max_length = None


@pytest.mark.parametrize(
    "call",
    [
        INDEXED.batch,
        lambda policy: map_batches_in_order(len, INDEXED, policy),
        lambda policy: bf.BatchSampler([1], policy),
    ],
    ids=["batch", "map_batches_in_order", "BatchSampler"],
)
def test_a_policy_without_max_length_is_told_that_it_needs_one(call: Any) -> None:
    message = r"^NoLimit has plan, but no max_length, which a policy needs too: the longest sample .* or None$"
    with pytest.raises(TypeError, match=message):
        call(NoLimit())


@pytest.mark.parametrize("overlong", ["raise", "truncate", "drop", "alone"])
@pytest.mark.parametrize("settings", [{}, {"window": 8}, {"pad_to_multiple_of": 4}], ids=["auto", "window", "rounded"])
@pytest.mark.parametrize("use", [list, len, lambda batches: list(batches.plans())], ids=["list", "len", "plans"])
def test_a_policy_that_returns_no_plan_is_told_how_to_make_one(use: Any, settings: Any, overlong: Any) -> None:
    message = (
        r"^Lists\.plan must return a bf\.Plan \(got list\); return bf\.Plan\.of\(lengths, batches\), where batches are "
    )
    with pytest.raises(TypeError, match=message):
        use(INDEXED.batch(Lists(), overlong=overlong, **settings))


def test_a_class_is_no_policy() -> None:
    with pytest.raises(
        TypeError, match=r"^batch takes a number of samples or a policy \(got <class 'brimful\..*TokenBudget'>"
    ):
        INDEXED.batch(bf.TokenBudget)  # type: ignore[arg-type]
