"""Policies that users write: plain classes, without anything of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.plan.errors import DataError, StateError, warn_once

DATA = bf.from_sequence([{"id": number, "input_ids": [1] * (1 + number * 7 % 40)} for number in range(200)])


class Sorted:
    """Batches of `size`, by length."""

    max_length = None

    def __init__(self, size: int, steps: Any = ()) -> None:
        self.size, self.steps, self._calls = size, np.asarray(steps), 0

    def plan(self, lengths: Any) -> bf.Plan:
        self._calls += 1
        return bf.Plan.of(lengths, np.array_split(np.argsort(lengths, kind="stable"), -(-len(lengths) // self.size)))


class Short(Sorted):
    max_length = 20


def saved(policy: bf.Policy) -> dict[str, Any]:
    with DATA.batch(policy, window=50).iter() as it:
        assert len(list(islice(it, 7))) == 7
        return it.state_dict()


def test_a_state_holds_the_settings_of_a_users_policy() -> None:
    for policy, other, name in (
        (Sorted(7), Sorted(9), "size"),
        (Sorted(7, [1, 2]), Sorted(7, [1, 3]), "steps"),
        (Sorted(7, range(500)), Sorted(7, range(1, 501)), "steps"),
    ):
        state = saved(policy)
        assert len(list(DATA.batch(type(policy)(policy.size, policy.steps), window=50).iter(state))) > 0
        with pytest.raises(StateError, match=name):
            DATA.batch(other, window=50).iter(state)


def test_what_begins_with_an_underscore_is_no_setting() -> None:
    policy = Sorted(7)
    state = saved(policy)
    assert policy._calls > 0
    whole = [batch["id"].tolist() for batch in DATA.batch(Sorted(7), window=50)]
    assert [batch["id"].tolist() for batch in DATA.batch(Sorted(7), window=50).iter(state)] == whole[7:]


def test_a_sample_that_a_users_policy_says_it_cannot_place_is_an_error() -> None:
    with pytest.raises(DataError, match=r"a sample of 22 tokens .* cannot fit max_length=20 of Short"):
        list(DATA.batch(Short(4), window=50))
    assert sum(len(batch["id"]) for batch in DATA.batch(Short(4), window=50, overlong="truncate")) == 200


class Made:
    """A plan by a function of the lengths."""

    max_length = None

    def __init__(self, make: Any) -> None:
        self.make = make

    def plan(self, lengths: Any) -> bf.Plan:
        return self.make(np.asarray(lengths))


def whole(lengths: Any, **padded: Any) -> bf.Plan:
    return bf.Plan.of(lengths, [range(len(lengths))] if len(lengths) else [], **padded)


WRONG: dict[str, tuple[Any, str]] = {
    "cuts all, as it plans half lengths": (
        lambda n: whole(n // 2),
        "is padded to 2 tokens, and its longest sample has 4",
    ),
    "cuts one": (lambda n: whole(n, padded_lengths=[3]), "is padded to 3 tokens, and its longest sample has 4"),
    "forgets two": (lambda n: whole(n[:-2]), "is in 0 batches"),
    "fills up with copies": (lambda n: whole(n, padded_sizes=[2 * len(n)]), "Copies of a sample fill it up"),
}
ROWS = [{"input_ids": [10 * i + p for p in range(4)], "id": i} for i in range(6)]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "run",
    [
        lambda policy: list(bf.from_sequence(ROWS).batch(policy, window=6)),
        lambda policy: list(bf.from_sequence(ROWS).batch(policy)),  # whose window is sized by plans
        lambda policy: list(bf.from_sequence(ROWS).batch(policy, window=6, pad_to_multiple_of=2)),
        lambda policy: list(bf.from_sequence(ROWS).batch(policy, window=6, overlong="drop")),
        lambda policy: list(bf.from_sequence(ROWS).stream().batch(policy, window=6, overlong="alone").prefetch(2)),
        lambda policy: list(bf.from_sequence(ROWS).batch(policy, window=6, layout="nested", collate_fn=None)),
        lambda policy: len(bf.from_sequence(ROWS).batch(policy, window=6)),
        lambda policy: list(bf.BatchSampler([4] * 6, policy, shuffle=False, window=6)),
        lambda policy: bf.BatchSampler([4] * 6, policy),
        lambda policy: list(bf.map_batches_in_order(lambda b: b["id"], bf.from_sequence(ROWS), policy)),
    ],
    ids=["padded", "auto", "rounded", "drop", "ahead", "nested", "len", "sampler", "sampler, auto", "inference"],
)
def test_a_plan_that_does_not_fit_is_refused_wherever_one_is_made(run: Any, name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        run(Made(make))


class Filled(Made):
    """Batches of four rows, filled up."""

    shapes = ((4, 8),)

    def __init__(self) -> None:
        super().__init__(self._filled)

    @staticmethod
    def _filled(lengths: Any) -> bf.Plan:
        batches = [range(first, min(first + 4, len(lengths))) for first in range(0, len(lengths), 4)]
        sizes = {"padded_lengths": [8] * len(batches), "padded_sizes": [4] * len(batches)}
        return bf.Plan.of(lengths, batches, **sizes)


def test_copies_of_a_users_static_shapes_have_no_weight() -> None:
    first, last = bf.from_sequence(ROWS).batch(Filled(), window=6, shuffle_batches=False)
    assert [tuple(batch["input_ids"].shape) for batch in (first, last)] == [(4, 8), (4, 8)]
    assert last["sample_weights"].tolist() == [1, 1, 0, 0]


def test_samples_of_a_policy_that_packs_count_as_the_rows_that_they_are_padded_to(caplog: Any) -> None:
    warn_once.cache_clear()
    data = bf.from_sequence([{"input_ids": [1] * n} for n in (3, 4, 5, 2)])
    data.batch(bf.Packed(8), window=4, collate_fn=list)
    assert not caplog.messages, "a function may pack what it gets"
    batches = data.batch(bf.Packed(8), window=4)
    assert caplog.messages == [
        "batch makes a row of each sample, and Packed places several in one: it is mostly padding; pack(8) packs rows"
    ]
    with batches.iter() as it:
        shapes = [tuple(batch["input_ids"].shape) for batch in it]
    assert sorted(shapes) == [(2, 8), (2, 8)]
    assert (it.stats.slots, it.stats.tokens, it.stats.num_shapes) == (32, 14, 1)
    assert batches.shapes() == {(2, 8): 2}


def test_what_a_users_policy_refuses_is_named_with_its_place() -> None:
    policy = Made(lambda n: bf.TokenBudget(5).plan(n))
    data = bf.from_sequence([{"input_ids": [1] * n, "id": n} for n in (2, 9, 3, 7)])
    with pytest.raises(
        DataError, match=r"^a sample of 9 tokens \(sequence, row 1\) .*or set overlong='truncate' or 'drop'"
    ):
        list(data.batch(policy, window=4))
    with pytest.raises(DataError, match=r"^a sample of 9 tokens \(sequence, row 1\) .*or set overlong='drop' for such"):
        list(data.batch(policy, window=4, overlong="truncate"))  # to what, nobody says
    for window in (4, "auto"):
        with data.batch(policy, window=window, overlong="drop").iter() as it:
            assert sorted(number for batch in it for number in batch["id"].tolist()) == [2, 3]
            assert (it.stats.dropped, it.stats.dropped_tokens) == (2, 16)
    with data.batch(policy, window=4, overlong="alone").iter() as it:
        assert sorted(batch["input_ids"].shape[1] for batch in it) == [2, 3, 7, 9]
        assert it.stats.alone == 2
    vague = Made(lambda n: (_ for _ in ()).throw(bf.OverlongError("too long")))
    with pytest.raises(DataError, match=r"^too long; or set overlong="):
        list(data.batch(vague, window=4))
    sampler = bf.BatchSampler([2, 9, 3, 7], policy, overlong="drop", shuffle=False)
    assert sorted(number for numbers in sampler for number in numbers) == [0, 2]


@pytest.mark.parametrize("word", ["raise", "alone"])
def test_a_static_shape_holds_no_longer_sample(word: Any) -> None:
    data = bf.from_sequence([{"input_ids": [1] * n} for n in (3, 21, 4)])
    batches = data.batch(bf.StaticShapes([8, 16], 32), overlong=word)
    with pytest.raises(DataError, match=r"^a sample of 21 tokens \(sequence, row 1\) cannot fit .* 16"):
        list(batches)


def test_a_policy_that_changes_the_lengths_it_is_given_is_an_error() -> None:
    @dataclass(frozen=True)
    class Sorts:
        max_length = None

        def plan(self, lengths: Any) -> bf.Plan:
            lengths.sort()  # its plan would be of other samples
            return bf.Plan.of(lengths, [[number] for number in range(len(lengths))])

    with pytest.raises(ValueError, match="read-only"):
        next(iter(bf.BatchSampler([3, 1, 2], Sorts())))
    with pytest.raises(ValueError, match="read-only"):
        next(iter(bf.from_sequence([[1], [2, 3]]).batch(Sorts(), pad_to_multiple_of=4)))


class Plain:
    max_length = 4

    def plan(self, lengths: Any) -> bf.Plan:
        return bf.TokenBudget(8).plan(lengths)


def test_a_policy_without_words_for_itself_is_named_by_its_class(caplog: Any) -> None:
    list(bf.from_sequence([[1] * 9, [2]]).batch(Plain(), overlong="drop"))
    assert "overlong: 1 samples of a window dropped, longer than Plain takes" in caplog.messages


class Thirds(bf.FixedSize):
    """Batches of three, whatever it is asked for."""

    def plan(self, lengths: Any, **_: Any) -> bf.Plan:
        return bf.Plan.of(lengths, [np.arange(len(lengths))[first : first + 3] for first in range(0, len(lengths), 3)])


class Backwards(bf.FixedSize):
    def plan(self, lengths: Any, **_: Any) -> bf.Plan:
        return bf.Plan.of(lengths, bf.FixedSize(4, sort=False).plan(lengths).batches[::-1])


class InNoOrder(Sorted):
    """Attributes of one that keeps the order of arrival, but it sorts."""

    sort = False
    n = 4


@pytest.mark.parametrize(
    "policy", [Thirds(4, sort=False), Backwards(4, sort=False), InNoOrder(4)], ids=lambda one: type(one).__name__
)
def test_a_policy_of_the_users_that_says_it_keeps_the_order_is_resumed_as_any_other(
    policy: Any, tmp_path: Path
) -> None:
    lines = [json.dumps({"id": number, "input_ids": [1] * (1 + number * 7 % 40)}) for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    batches = bf.from_files(tmp_path / "rows.jsonl").batch(policy)
    whole = [batch["id"].tolist() for batch in batches]
    assert sorted(number for batch in whole for number in batch) == list(range(60))
    with batches.iter() as it:
        for done, _ in enumerate(it, start=1):
            state = it.state_dict()
            assert [batch["id"].tolist() for batch in batches.iter(state)] == whole[done:]


def test_drop_last_leaves_out_the_last_batch_of_a_policy_that_makes_others_than_it_says() -> None:
    for policy in (Thirds(4), InNoOrder(7)):
        found = [len(batch["id"]) for batch in DATA.batch(policy, window=200, drop_last=True)]
        assert sum(found) == 200 - len(policy.plan([1] * 200).batches[-1])


def test_a_subclass_with_the_plan_of_a_fixed_size_keeps_the_order() -> None:
    class Named(bf.FixedSize):
        name = "mine"

    found = [batch["id"].tolist() for batch in DATA.batch(Named(8, sort=False))]
    assert found == [batch["id"].tolist() for batch in DATA.batch(bf.FixedSize(8, sort=False))]
    assert found[0] == list(range(8))


def test_a_policy_of_a_module_without_a_name_is_checked() -> None:
    names: dict[str, Any] = {"bf": bf}
    exec(
        "class Lossy(bf.TokenBudget):\n"
        "    def plan(self, lengths, **_):\n"
        "        return bf.TokenBudget(400).plan(lengths[:-1])\n"
        "class Few:\n"
        "    max_length = None\n"
        "    def plan(self, lengths):\n"
        "        return bf.TokenBudget(400).plan(lengths[:3])\n",
        {"bf": bf, "__builtins__": __builtins__},
        names,
    )
    for policy in (names["Lossy"](400), names["Few"]()):
        with pytest.raises(ValueError, match="does not fit the 200 samples that it was given"):
            list(DATA.batch(policy))


class Reusing:
    """Right plans at each call, in arrays that are used again, and of which one is a view with a stride."""

    max_length = None

    def __init__(self) -> None:
        self._numbers, self._bounds = np.arange(20), np.zeros((8, 2), np.int64)

    def plan(self, lengths: Any) -> bf.Plan:
        plan = bf.FixedSize(3).plan(lengths)
        self._numbers[:], self._bounds[:, 0] = plan.numbers, plan.bounds
        return bf.Plan(self._numbers, self._bounds[:, 0], plan.padded_lengths, plan.padded_sizes, plan.tokens)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_a_policy_may_use_its_arrays_again(micro_batches: int) -> None:
    batches = DATA.batch(Reusing(), window=20, micro_batches=micro_batches, shuffle_batches=False)
    assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(200))
