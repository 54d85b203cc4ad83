"""`from_dataset`: planned by lengths, fetched a batch at a time."""

from __future__ import annotations

import json
import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.testing import assert_exact_resume

COUNTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


class Tokens:
    """Dicts of tensors; remembers what was fetched."""

    def __init__(self, counts: list[int] = COUNTS) -> None:
        self.counts, self.seen = counts, list[int]()

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, number: int) -> Any:
        self.seen.append(number)
        tokens = torch.arange(self.counts[number]) + 100 * number
        return {
            "id": number,
            "input_ids": tokens,
            "labels": tokens.tolist(),
            "text": "x" * number,
            "x": np.float32(0.5),
        }


class Pairs(Tokens):
    """Tuples that no row can hold."""

    def __getitem__(self, number: int) -> Any:
        self.seen.append(number)
        return torch.full((self.counts[number],), number), {number}


class Noisy(Pairs):
    """Random augmentation, by each of the generators that there are, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def __getitem__(self, number: int) -> Any:
        draws = [random.random(), np.random.random(), float(torch.rand(())), self.rng.random()]
        return torch.full((self.counts[number],), number), draws


class Broken(Tokens):
    def __getitem__(self, number: int) -> Any:
        if number == 7:
            raise OSError("no such picture")
        return super().__getitem__(number)


def numbers(samples: list[Any]) -> dict[str, Any]:
    return {"numbers": torch.tensor([int(tokens[0]) for tokens, _ in samples])}


def drawn(samples: list[Any]) -> dict[str, Any]:
    return {"drawn": torch.tensor([draws for _, draws in samples])}


def ids(batches: Any, name: str = "id") -> list[list[int]]:
    return [batch[name].tolist() for batch in batches]


def test_batches_are_those_of_the_same_samples_in_a_list() -> None:
    rows = [{**row, "input_ids": row["input_ids"].numpy()} for row in map(Tokens().__getitem__, range(len(COUNTS)))]
    for given in (None, COUNTS, np.array(COUNTS), torch.tensor(COUNTS), lambda sample: len(sample["labels"])):
        ours, theirs = bf.from_dataset(Tokens(), lengths=given, shuffle=True), bf.from_sequence(rows, shuffle=True)
        for make in (
            lambda data: data.batch(3),
            lambda data: data.batch_by_tokens(20, window=8),
            lambda data: data.pack(16, rows=2),
            lambda data: data.batch_by_tokens(20, layout="grouped", micro_batches=2),
            lambda data: data.batch_by(4, lambda sample: len(sample["text"])),
            lambda data: data.shard(1, 3) if isinstance(data, bf.Batches) else data.batch(4).shard(1, 3),
        ):
            pairs = list(zip(make(ours), make(theirs), strict=True))
            assert pairs
            for one, other in pairs:
                assert one.keys() ^ other.keys() <= {"num_items_in_batch", "num_samples_in_batch"}, (
                    "of which no index knows the labels"
                )
                for name in one.keys() & other.keys() - {"groups"}:
                    assert str(one[name]) == str(other[name]), name


@pytest.mark.parametrize("layout", ["padded", "nested", "grouped"])
def test_planning_fetches_nothing_and_a_batch_its_own_samples(layout: Any) -> None:
    data = Tokens()
    batches = bf.from_dataset(data, lengths=COUNTS).batch_by_tokens(20, window=20, layout=layout)
    plans = [sorted(plan.window.samples[plan.numbers].tolist()) for plan in batches.plans()]
    assert len(batches) == len(plans)
    assert data.seen == []
    it = batches.iter()
    next(it)
    types = [*range(20)]
    assert sorted(data.seen) == sorted([*plans[0], *types])
    data.seen.clear()
    for plan in plans[1:]:
        next(it)
        assert sorted(data.seen) == plan
        data.seen.clear()


@pytest.mark.parametrize(
    "steps",
    [lambda b: b.shard(1, 2), lambda b: b.shard(0, 2).prefetch(1), lambda b: b],
    ids=["rank", "prefetched", "alone"],
)
def test_a_rank_and_an_optimizer_step_fetch_their_own_samples_once(steps: Any) -> None:
    data = Tokens()
    batches = steps(bf.from_dataset(data, lengths=COUNTS).batch_by_tokens(20, window=20, micro_batches=2))
    found = [batch for batch in batches if not bool(batch["is_filler"])]
    own = sorted(chain.from_iterable(ids(found)))
    once = sorted(set(own))
    assert own == once
    assert sum(data.seen.count(number) for number in once) <= 2 * len(once) + 1, "once for types, once for batches"


def test_a_sample_that_is_too_long_is_named_and_no_other_is_fetched_for_it() -> None:
    data = Tokens()
    with pytest.raises(bf.DataError, match=r"a sample of 9 tokens \(Tokens( \d+)?, sample 5\) cannot fit max_tokens=8"):
        next(iter(bf.from_dataset(data, lengths=COUNTS).drop("text").batch_by_tokens(8)))
    assert data.seen.count(5) <= 2
    assert len(data.seen) <= len(COUNTS) + 1


def test_samples_are_had_by_number() -> None:
    data = Tokens()
    found = bf.from_dataset(data, lengths=COUNTS)
    assert (found[3]["id"], found[-1]["id"], len(found[2:7:2])) == (3, 19, 3)
    assert [row["id"] for row in found[2:7:2]] == [2, 4, 6]
    pairs = bf.from_dataset(Pairs(), lengths=COUNTS, collate_fn=numbers)
    assert (pairs[3][1], pairs[-1][1]) == ({3}, {19})
    assert [each for _, each in pairs.peek(2)] == [{0}, {1}]
    assert [each for _, each in pairs.skip(18)] == [{18}, {19}]
    loader = torch.utils.data.DataLoader(pairs, batch_size=3, collate_fn=numbers)  # type: ignore[arg-type]
    assert next(iter(loader))["numbers"].tolist() == [0, 1, 2]


def test_samples_for_a_collate_fn_are_fetched_one_by_one_and_handed_on_as_they_are() -> None:
    data = Pairs()
    pairs = bf.from_dataset(data, lengths=COUNTS, collate_fn=numbers)
    it = pairs.iter()
    assert next(it)[1] == {0}
    assert data.seen == [0]
    data.seen.clear()
    assert ids(pairs.shuffle(20).batch_by_tokens(20, window=20), "numbers") == ids(
        bf.from_sequence([{"id": n, "input_ids": [0] * c} for n, c in enumerate(COUNTS)])
        .shuffle(20)
        .batch_by_tokens(20, window=20)
    )
    assert sorted(data.seen) == [*range(20)]


def test_indexed_methods_work_on_samples_for_a_collate_fn() -> None:
    first, second = (bf.from_dataset(Pairs(), lengths=COUNTS, collate_fn=numbers) for _ in range(2))
    assert ids((first[:3] + second.take(2)).batch(4), "numbers") == [[0, 1, 2, 0], [1]]
    mixed = bf.interleave_datasets([first, second.skip(10)], weights=[2, 1])
    assert ids(mixed.take(6).batch(6), "numbers") == [[0, 10, 1, 2, 11, 3]]
    train, valid = first.train_valid_split(0.3)
    again, _ = bf.from_dataset(Pairs(), lengths=COUNTS, collate_fn=numbers).train_valid_split(0.3)
    assert sorted(int(tokens[0]) for tokens, _ in [*train, *valid]) == [*range(20)]
    assert [int(tokens[0]) for tokens, _ in train] == [int(tokens[0]) for tokens, _ in again]
    odd = first.filter(lambda sample: bool(sample[0][0] % 2))
    assert ids(odd.batch(4), "numbers")[0] == [1, 3, 5, 7]
    assert first.lengths().tolist() == COUNTS


def test_a_data_set_is_called_by_its_class_unless_another_one_is_in_use() -> None:
    class Shorter(Pairs):
        def __getitem__(self, number: int) -> Any:
            raise OSError("gone")

    def name(dataset: bf.IndexedDataset) -> str:
        with pytest.raises(bf.StageError, match="gone") as caught:
            next(dataset.iter())
        return str(caught.value).partition("[")[0]

    data = Shorter()
    wrapped = [bf.from_dataset(data, collate_fn=numbers) for _ in range(3)]
    assert [name(one) for one in wrapped] == ["Shorter"] * 3
    assert name(bf.from_dataset(Shorter(), collate_fn=numbers)) == "Shorter 2"


def padded(to: int = 1, more: int = 0) -> Any:
    """A collate_fn that adds tokens to each sample, and rounds the length of a batch up."""

    def collate(samples: list[Any]) -> dict[str, Any]:
        longest = max(len(tokens) for tokens, _ in samples) + more
        return {"input_ids": torch.zeros(len(samples), -(-longest // to) * to, dtype=torch.int64)}

    return collate


def wrong(samples: Any) -> Any:
    return bf.from_dataset(samples, lengths=[1] * len(COUNTS), collate_fn=padded())


TOO_LARGE: dict[str, Any] = {
    "lengths": lambda: wrong(Pairs()).batch_by_tokens(20, shuffle_batches=False),
    "a function": lambda: bf.from_dataset(Pairs(), lengths=lambda _: 1, collate_fn=padded()).batch_by_tokens(20),
    "workers": lambda: wrong(Pairs()).batch_by_tokens(20, max_workers=2),
    "ahead": lambda: wrong(Pairs()).batch_by_tokens(20).prefetch(2),
    "ranks": lambda: wrong(Pairs()).batch_by_tokens(20).shard(0, 1),
    "a mixture": lambda: (lambda one: one.take(17) + one.skip(17))(wrong(Pairs())).batch_by_tokens(20),
    "micro batches": lambda: wrong(Pairs()).batch_by_tokens(40, micro_batches=2),
    "a cost": lambda: wrong(Pairs()).batch(bf.CostBudget(bf.AttentionCost(quadratic=0.0), 20)),
    "static": lambda: wrong(Pairs()).batch(bf.StaticShapes([1, 20], 20)),
}


@pytest.mark.parametrize("how", TOO_LARGE)
def test_a_collate_fn_does_not_exceed_the_budget_by_lengths_that_are_wrong(how: str) -> None:
    limit = "limit=20" if how == "a cost" else "max_tokens=20"
    message = (
        rf"^collate_fn made a batch of 20 x 9 tokens, which is over {limit}\. By lengths= of from_dataset it was planned as "
        r"20 x 1 \(the first sample is Pairs( \d+)?, sample \d+\)\. Give the lengths that collate_fn makes, special tokens "
        r"included\. If it rounds them up, batch with pad_to_multiple_of=$"
    )
    with pytest.raises(bf.DataError, match=message):
        list(TOO_LARGE[how]())


def test_a_collate_fn_may_do_what_the_budget_allows() -> None:
    def shapes(data: Any, **how: Any) -> list[torch.Size]:
        return [batch["input_ids"].shape for batch in data.batch_by_tokens(64, **how)]

    def data(collate_fn: Any, lengths: Any = COUNTS) -> Any:
        return bf.from_dataset(Pairs(), lengths=lengths, collate_fn=collate_fn)

    assert max(one.numel() for one in shapes(data(padded(more=2), [count + 2 for count in COUNTS]))) <= 64
    assert max(one.numel() for one in shapes(data(padded(to=8)), pad_to_multiple_of=8)) <= 64
    assert max(one.numel() for one in shapes(data(padded(), [9] * 20))) < 64, "shorter than planned"
    assert {one[1] for one in shapes(data(padded(to=8)), window=1)} == {8, 16}, (
        "longer than planned, and within the budget"
    )
    alone = bf.from_dataset(Pairs([99, 98]), collate_fn=padded(to=120), lengths=[99, 98])
    assert shapes(alone, overlong="alone") == [(1, 120)] * 2
    near = bf.from_dataset(Pairs([63]), collate_fn=padded(to=10), lengths=[63])
    assert shapes(near, overlong="alone", pad_to_multiple_of=10) == [(1, 70)], (
        "over the budget only as it is rounded up"
    )


def test_the_size_of_a_batch_is_compared_only_where_it_is_seen_and_lengths_were_given() -> None:
    def made(collate_fn: Any, **lengths: Any) -> int:
        return len(list(bf.from_dataset(Pairs(), collate_fn=collate_fn, **lengths).batch_by_tokens(20)))

    ones = {"lengths": [1] * len(COUNTS)}
    assert made(padded(more=9)), "measured"
    assert made(numbers, **ones), "no tensor of tokens"
    assert made(lambda samples: torch.zeros(20, 9), **ones), "no dict"
    assert made(lambda samples: {"input_ids": torch.zeros(20, 4, 9)}, **ones), "which dimension is the length?"
    assert len(list(bf.from_dataset(Pairs(), collate_fn=padded(), **ones).batch(20))) == 1, "a number of samples"


def test_random_augmentation_for_a_collate_fn_is_keyed_by_the_batch() -> None:
    def batches(max_workers: int = 0) -> bf.Batches:
        kind: Any = "process" if max_workers else "thread"
        return bf.from_dataset(Noisy(), collate_fn=drawn).batch(4, max_workers=max_workers, executor_type=kind)

    found = [batch["drawn"].tolist() for batch in batches()]
    assert found == [batch["drawn"].tolist() for batch in batches().prefetch(2)]
    assert found == [batch["drawn"].tolist() for batch in batches(1)]
    with batches().iter() as it:
        next(it), next(it)
        state = json.loads(json.dumps(it.state_dict()))
    assert [batch["drawn"].tolist() for batch in batches().iter(state)] == found[2:]


def test_lengths_are_measured_once_and_kept() -> None:
    data = Tokens()
    found = bf.from_dataset(data)
    assert found.lengths().tolist() == found.lengths("labels").tolist() == COUNTS
    assert len(found.take(10).batch_by_tokens(20)) > 1
    assert sorted(data.seen) == sorted([*range(20), *range(20)]), "for types and for lengths"
    for samples in (COUNTS_AS(tuple), COUNTS_AS(torch.zeros), COUNTS_AS(str), COUNTS_AS(list), COUNTS_AS(dict)):
        opaque = bf.from_dataset(samples, collate_fn=len)
        assert opaque.lengths().tolist() == COUNTS
        assert sum(opaque.batch_by_tokens(20, window=20)) == 20
    saw = Pairs()
    assert ids(bf.from_dataset(saw, collate_fn=numbers).batch(10), "numbers")[1][0] == 10
    assert len(saw.seen) == 20, "a fixed number of samples needs no lengths"


def COUNTS_AS(kind: Any) -> list[Any]:  # noqa: N802
    makes = {
        tuple: lambda count: (torch.zeros(count), 7),
        str: lambda count: "a" * count,
        list: lambda count: [0] * count,
        dict: lambda count: {"input_ids": [0] * count, "image": torch.zeros(2, 2)},
    }
    return [makes.get(kind, kind)(count) for count in COUNTS]


def test_resume_is_exact_on_any_number_of_ranks() -> None:
    for make in (
        lambda: bf.from_dataset(Tokens(), repeat=True).shuffle(8).batch_by_tokens(20, window=8).take(12),
        lambda: bf.from_dataset(Pairs(), collate_fn=numbers).shuffle(8).batch_by_tokens(20, window=8),
        lambda: bf.from_dataset(Pairs(), collate_fn=numbers).batch(3),
    ):
        assert_exact_resume(make, epochs=())
    assert_exact_resume(lambda: bf.from_dataset(Tokens()).shuffle(8), epochs=())

    def ranks(of: int) -> list[bf.Batches]:
        batches = bf.from_dataset(Pairs(), lengths=COUNTS, collate_fn=numbers).batch_by_tokens(15, window=20)
        return [batches.shard(rank, of) for rank in range(of)]

    whole = ids(ranks(1)[0], "numbers")
    iterators = [rank.iter() for rank in ranks(2)]
    assert [next(it)["numbers"].tolist() for it in iterators] == whole[:2]
    (state,) = {json.dumps(it.state_dict()) for it in iterators}
    assert ids(ranks(1)[0].iter(json.loads(state)), "numbers") == whole[2:]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("collate_fn", [numbers, None])
def test_a_state_of_other_lengths_is_refused(given: bool, collate_fn: Any) -> None:
    def state(counts: list[int], saved: Any = None) -> Any:
        kind: Any = Pairs if collate_fn else Tokens
        data = bf.from_dataset(kind(counts), lengths=counts if given else None, collate_fn=collate_fn)
        return data.batch_by_tokens(20).iter(saved).state_dict()

    with pytest.raises(bf.StateError, match=r"lengths_crc32 was .* when it was saved and is"):
        state([*COUNTS[:-1], 5], state(COUNTS))
    with pytest.raises(bf.StateError, match="rows was 20 when it was saved and is 19"):
        state(COUNTS[:-1], state(COUNTS))


def test_errors_name_the_sample() -> None:
    name = r"Broken( \d+)?"
    with pytest.raises(bf.StageError, match=rf"{name}\[7\] failed \(sample 7\): OSError: no such picture"):
        list(bf.from_dataset(Broken(), lengths=COUNTS).batch(4))
    with pytest.raises(bf.StageError, match=rf"{name}\[7\] failed \(sample 7\): OSError: no such picture"):
        list(bf.from_dataset(Broken(), collate_fn=list).batch(4))
    with pytest.raises(bf.StageError, match=r"lengths=len of from_dataset failed at list( \d+)?, sample 1: TypeError"):
        bf.from_dataset(["a", 3], lengths=len, collate_fn=list).lengths()
    with pytest.raises(
        bf.StageError, match=r"sample 0: TypeError: a sample must be a dict.*; with collate_fn= samples may be"
    ):
        bf.from_dataset(Pairs())[0]
    with pytest.raises(bf.StageError, match=r"from_dataset failed at list( \d+)?, sample 40: "):
        list(bf.from_dataset([{"a": 1}] * 40 + [{"a": "b"}]))
    with pytest.raises(
        bf.DataError, match=r"length of a Tensor of shape \(2, 2\) is not known \(list( \d+)?, sample 0\).*lengths="
    ):
        bf.from_dataset([(torch.zeros(2, 2), 1)], collate_fn=list).lengths()
    with pytest.raises(bf.DataError, match=r"no list column 'tokens' .*\(list columns: input_ids\); .* name another"):
        bf.from_dataset([{"input_ids": [1]}]).lengths("tokens")
    with pytest.raises(
        bf.DataError, match=r"'input_ids' has no list in 1 samples, the first of them list( \d+)?, sample 1;"
    ):
        bf.from_dataset([{"input_ids": [1]}, {"input_ids": None}]).lengths()
    with pytest.raises(bf.DataError, match=r"some samples of list( \d+)? are dicts and some are not"):
        bf.from_dataset([{"input_ids": [1]}, [1]], collate_fn=list).lengths()


def test_a_length_that_is_not_that_of_the_sample_is_an_error_with_both() -> None:
    wrong = [*COUNTS[:4], 6, *COUNTS[5:]]
    with pytest.raises(
        bf.DataError,
        match=r"'input_ids' has 5 values \(Tokens( \d+)?, sample 4\), and was planned with 6: .* stream\(",
    ):
        list(bf.from_dataset(Tokens(), lengths=wrong).batch_by_tokens(20))


def test_what_cannot_be_is_refused_with_what_to_do() -> None:
    pairs, rows = bf.from_dataset(Pairs(), collate_fn=numbers), bf.from_dataset(Tokens(), lengths=COUNTS)
    for verb, make in {
        "map": lambda: pairs.map(print),
        "select": lambda: pairs.select("a"),
        "zip_datasets": lambda: bf.zip_datasets([pairs, pairs]),
        "filter": lambda: pairs.stream().filter(print),
    }.items():
        with pytest.raises(ValueError, match=rf"^{verb} works on rows, and from_dataset.*leave collate_fn out"):
            make()
    with pytest.raises(ValueError, match=r"^cache keeps rows, .*Leave collate_fn out"):
        pairs.cache()
    with pytest.raises(ValueError, match=r"concat_datasets cannot join samples for collate_fn=numbers .* with rows"):
        pairs + rows
    with pytest.raises(ValueError, match="with samples for collate_fn=drawn: one function makes each batch"):
        bf.interleave_datasets([pairs, bf.from_dataset(Pairs(), collate_fn=drawn)])
    with pytest.raises(ValueError, match=r"^batch_by calls functions of rows, .*Give from_dataset lengths="):
        pairs.batch_by(3, len)
    with pytest.raises(ValueError, match=r"^overlong='split' cuts samples, .*Choose 'drop'"):
        pairs.pack(16, overlong="split")
    with pytest.raises(ValueError, match=r"^key='a' is a column, .*Leave key out"):
        pairs.train_valid_split(0.5, key="a")
    with pytest.raises(TypeError, match=r"takes a map-style data set, .*got generator.*Use from_iterable"):
        bf.from_dataset(number for number in range(3))
    with pytest.raises(TypeError, match=r"this is one of brimful's. Use it as it is"):
        bf.from_dataset(rows)
    with pytest.raises(ValueError, match="lengths has 2 values, and the data set 20 samples"):
        bf.from_dataset(Tokens(), lengths=[1, 2])
    with pytest.raises(ValueError, match=r"lengths must be at least 0 \(got -1 for sample 1\)"):
        bf.from_dataset([1, 2], lengths=[1, -1])
    with pytest.raises(TypeError, match="lengths takes an array or list of integers"):
        bf.from_dataset([1, 2], lengths=[1.5, 2.5])
    with pytest.raises(bf.DataError, match="has 2 for each sample, and length_column names 1"):
        list(bf.from_dataset(Tokens(), lengths=np.ones((20, 2), int)).batch_by_tokens(20))
    masked = bf.from_dataset([{"input_ids": [1], "attention_mask": [1]}])
    with pytest.raises(
        ValueError, match=r"pack leaves out tokens that attention_mask hides.*drop\('attention_mask'\) before pack"
    ):
        list(masked.pack(4))
    assert next(iter(masked.drop("attention_mask").pack(4)))["input_ids"].tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize(("sample", "unit"), [(("some text", 1), "characters"), (([1, 2, 3], 1), "")])
def test_lengths_that_count_characters_are_said(sample: Any, unit: str, caplog: pytest.LogCaptureFixture) -> None:
    data = bf.from_dataset([sample] * 3, collate_fn=list)
    assert data.lengths().tolist() == [len(sample[0])] * 3
    assert caplog.text.count("characters") == bool(unit)
    assert bf.from_dataset([sample] * 3, lengths=[1] * 3, collate_fn=list).lengths().tolist() == [1] * 3
    assert caplog.text.count("characters") == bool(unit)
