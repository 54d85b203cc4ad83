from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

import brimful as bf
from brimful.testing import assert_exact_resume


class Counting:
    """Numbers, as often as asked for; raises in place of one of them."""

    def __init__(self, count: int, raises_at: int | None = None) -> None:
        self.count, self.raises_at = count, raises_at
        self.drawn = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            if number == self.raises_at:
                raise OSError("broken")
            self.drawn += 1
            yield {"n": number}


def numbers(dataset: bf.Dataset) -> list[int]:
    return [sample["n"] for sample in dataset]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 600])
def test_all_samples_come_in_order_each_time(count: int) -> None:
    dataset = bf.from_iterable(Counting(count))
    assert numbers(dataset) == numbers(dataset) == list(range(count))


def test_texts_dicts_and_empty_dicts_are_samples() -> None:
    assert list(bf.from_iterable(["a", {"n": 1}])) == [{"text": "a", "n": None}, {"text": None, "n": 1}]
    assert list(bf.from_iterable([{}, {}])) == [{}, {}]


def test_it_repeats_with_the_iterable_begun_again() -> None:
    assert numbers(bf.from_iterable(Counting(2), repeat=True).take(5)) == [0, 1, 0, 1, 0]
    with pytest.raises(bf.DataError, match="1,000 epochs of from_iterable > repeat went by without a sample"):
        list(bf.from_iterable([], repeat=True))


class Reordered:
    """A stream of another library: it has another order in each epoch that it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __iter__(self) -> Any:
        for number in range(7):
            yield {"n": number * (3 if self.told[-1] % 2 else 1) % 7}


@pytest.mark.parametrize("make", [lambda one: one, lambda one: lambda: one], ids=["object", "function"])
def test_a_stream_of_another_library_is_told_the_number_of_each_epoch(make: Any) -> None:
    orders = [[number * factor % 7 for number in range(7)] for factor in (1, 3)]
    loader = bf.from_iterable(make(Reordered())).batch(7).loader()
    assert [[batch["n"].tolist() for batch in loader] for _ in range(4)] == [[order] for order in orders * 2]
    assert numbers_of(bf.from_iterable(make(Reordered()), repeat=True).take(21)) == orders[0] + orders[1] + orders[0]
    it = bf.from_iterable(make(Reordered()), repeat=True).iter()
    assert [next(it)["n"] for _ in range(9)] == orders[0] + orders[1][:2]
    rest = bf.from_iterable(make(Reordered()), repeat=True).iter(it.state_dict())
    assert [next(rest)["n"] for _ in range(12)] == orders[1][2:] + orders[0]
    one = Reordered()
    loader = bf.from_iterable(make(one)).batch(7).loader()
    for _ in range(3):
        list(loader)
    assert one.told == [0, 1, 2], "once before each epoch"


def test_a_shuffled_stream_of_datasets_has_another_order_in_each_epoch() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"n": list(range(40))}).to_iterable_dataset()
    for made in (rows.shuffle(seed=1, buffer_size=40), rows.map(dict).shuffle(seed=1, buffer_size=40)):
        loader = bf.from_iterable(made).batch(40).loader()
        orders = [[n for batch in loader for n in batch["n"].tolist()] for _ in range(3)]
        assert all(sorted(order) == list(range(40)) for order in orders)
        assert len({tuple(order) for order in orders}) == 3
        made.set_epoch(1)
        assert orders[1] == [row["n"] for row in made], "it is the order of that epoch"


def numbers_of(data: bf.Dataset) -> list[int]:
    return [sample["n"] for sample in data]


def test_resume_is_exact_at_every_sample_and_skips_without_a_look() -> None:
    assert_exact_resume(lambda: bf.from_iterable(Counting(5)))
    assert_exact_resume(lambda: bf.from_iterable(Counting(600)), max_resumes=5)


def test_an_iterator_that_can_be_used_once_is_refused() -> None:
    message = (
        r"^from_iterable iterates anew for each epoch and each resume, but this generator can be read only once; "
        r"pass the function that makes it, from_iterable\(generate\), or pass an object with __iter__, such as a list$"
    )
    with pytest.raises(TypeError, match=message):
        bf.from_iterable({"n": number} for number in range(3))


def test_a_generator_function_is_called_once_an_epoch() -> None:
    calls: list[int] = []

    def generate() -> Iterator[Any]:
        calls.append(len(calls))
        yield from ({"n": number} for number in range(100))

    assert numbers(bf.from_iterable(generate, repeat=True).take(250)) == [number % 100 for number in range(250)]
    assert calls == [0, 1, 2]
    assert_exact_resume(lambda: bf.from_iterable(generate), max_resumes=5)


def test_a_resume_calls_a_generator_function_once_and_passes_over_what_was_taken() -> None:
    given: list[int] = []

    def generate() -> Iterator[Any]:
        for number in range(1_000):
            given.append(number)
            yield {"n": number}

    with bf.from_iterable(generate).iter() as it:
        assert next(it) == {"n": 0}
        assert len(given) <= 33, "its types are told by 32"
        state = [next(it) and it.state_dict() for _ in range(300)][-1]
    given.clear()
    assert next(bf.from_iterable(generate).iter(state)) == {"n": 301}
    assert given == list(range(given[-1] + 1))
    assert len(given) <= 301 + 128


def test_a_function_that_gives_a_generator_that_has_begun_is_refused() -> None:
    once = ({"n": number} for number in range(3))
    data = bf.from_iterable(lambda: once)
    assert numbers(data) == [0, 1, 2]
    message = r"generator can be read only once; have the function make a new one at each call"
    with pytest.raises(TypeError, match=message):
        list(data)


def test_a_row_after_the_first_32_decides_no_type_unless_a_column_is_null_or_absent() -> None:
    late = [{"n": 1}] * 40 + [{"n": 0.5}]
    with pytest.raises(
        bf.StageError, match=r"^from_iterable failed at row 40: column 'n' is int64 by the schema but double here"
    ):
        list(bf.from_iterable(late))
    assert list(bf.from_iterable([{"n": None}] * 40 + [{"n": 0.5}]))[40] == {"n": 0.5}
    assert list(bf.from_iterable([{"n": [{"a": []}]}] * 40 + [{"n": [{"a": ["b"]}]}]))[40] == {"n": [{"a": ["b"]}]}
    assert list(bf.from_iterable([{"m": 1, "n": 2}, {"m": 1}, *late]))[42] == {"m": None, "n": 0.5}


def test_an_error_of_the_iterable_comes_after_the_samples_before_it() -> None:
    for place in (0, 1, 255, 256, 300):
        it = bf.from_iterable(Counting(600, raises_at=place)).iter()
        assert [next(it)["n"] for _ in range(place)] == list(range(place))
        with pytest.raises(bf.StageError, match=rf"^from_iterable failed at row {place}: OSError: broken$") as error:
            next(it)
        assert isinstance(error.value.__cause__, OSError)


def test_a_row_that_is_no_sample_is_an_error_after_those_before_it() -> None:
    rows: list[Any] = [{"n": 1}] * 300
    it = bf.from_iterable([*rows, cast(Any, 7)]).iter()
    assert len([next(it) for _ in rows]) == 300
    message = r"^from_iterable failed at row 300: TypeError: a sample must be a dict, a string or a list of token ids \(got int"
    with pytest.raises(bf.StageError, match=message):
        next(it)
    message = (
        r"^from_iterable failed at row 300: column 'n' is int64 by the schema but string here; return one type in every"
    )
    with pytest.raises(bf.StageError, match=message):
        list(bf.from_iterable([*rows, {"n": "x"}, {"n": 2}]))


def test_an_iterable_that_has_become_shorter_is_refused() -> None:
    it = bf.from_iterable(Counting(600)).iter()
    for _ in range(500):
        next(it)
    with pytest.raises(bf.StateError, match=r"^the iterable has 100 samples, but this state was saved after 384$"):
        list(bf.from_iterable(Counting(100)).iter(it.state_dict()))
