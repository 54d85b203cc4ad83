"""AsyncLoader: what a plain loop over the loader gives, in its order, padded to buckets, wherever either is left."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import brimful as bf
from tests.effort import examples, own_threads

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Record:
    tensor: torch.Tensor
    name: str


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def seen(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def threads() -> set[threading.Thread]:
    return own_threads()


def stored() -> bf.Batches:
    data = bf.from_sequence([{"input_ids": [i] * (1 + i % 7)} for i in range(60)], shuffle=True)
    return data.batch_by_tokens(16, window=20)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


# -- the same batches ----------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.integers(0, 5).map(lambda n: torch.arange(n)),
    st.just(None),
    st.text(max_size=2),
    st.floats(allow_nan=False),
)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
)


@given(st.lists(STRUCTURES, max_size=6), st.integers(0, 4))
@examples(60)
def test_any_structure_comes_through_in_order_for_any_prefetch(batches: list[Any], prefetch: int) -> None:
    assert equal(list(bf.AsyncLoader(batches, "cpu", prefetch=prefetch)), batches)


def test_without_a_thread_what_is_there_already_is_handed_on_as_it_is() -> None:
    batch = {"input_ids": ids([1, 2]), "more": [Record(ids([1]), "a"), object()]}
    assert next(iter(bf.AsyncLoader([batch], "cpu", prefetch=0))) is batch


def test_a_loader_may_use_its_tensors_and_dicts_again() -> None:
    class Again:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            batch = {"input_ids": ids([0, 0]), "number": 0}
            for number in range(8):
                batch["input_ids"].fill_(number)  # type: ignore[attr-defined]
                batch["number"] = number
                yield batch

    found = []
    for batch in bf.AsyncLoader(Again(), "cpu", prefetch=3):
        time.sleep(0.005)
        found.append((batch["input_ids"].tolist(), batch["number"]))
    assert found == [([[number, number]], number) for number in range(8)]


def test_packed_sequences_keep_their_sizes_on_the_cpu_and_model_outputs_their_kind() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.ones(1, 2))
    (found,) = bf.AsyncLoader([{"packed": packed, "output": output}], "meta")
    assert (found["packed"].data.device.type, found["packed"].batch_sizes.device.type) == ("meta", "cpu")
    assert type(found["output"]) is type(output)
    assert found["output"].last_hidden_state.device.type == "meta"
    frozen = MappingProxyType({"input_ids": torch.ones(1)})
    assert next(iter(bf.AsyncLoader([frozen], "meta")))["input_ids"].device.type == "meta"


def test_tensors_move_wherever_they_are_and_containers_keep_their_types() -> None:
    class Encoding(UserDict[str, Any]):
        encodings = ("kept",)

    encoding = Encoding(input_ids=ids([1]))
    encoding.encodings = ("kept", "too")  # type: ignore[assignment]
    batch = {
        "a": [ids([1])],
        "b": (ids([2]), "text"),
        "c": Point(ids([3]), 4),
        "d": Record(ids([5]), "n"),
        "e": encoding,
    }
    (out,) = bf.AsyncLoader([batch], "meta")
    tensors = (out["a"][0], out["b"][0], out["c"].x, out["d"].tensor, out["e"]["input_ids"])
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (type(out["c"]), out["d"].name, type(out["e"]), out["e"].encodings) == (
        Point,
        "n",
        Encoding,
        ("kept", "too"),
    )
    assert batch["a"][0].device.type == "cpu"  # type: ignore[index]
    assert encoding["input_ids"].device.type == "cpu"


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_loader_of_brimfuls_is_the_same_loader_ahead(prefetch: int) -> None:
    plain, ahead = stored().loader(), bf.AsyncLoader(stored().loader(), "cpu", prefetch=prefetch)
    assert len(ahead) == len(plain)
    for _ in range(3):
        for one, other in zip(ahead, plain, strict=True):
            assert equal(one, other)
            assert ahead.state_dict() == plain.state_dict()
        assert ahead.state_dict() == plain.state_dict()


def test_attributes_are_the_loaders_own() -> None:
    loader = DataLoader([1, 2, 3], batch_size=2)  # type: ignore[arg-type]
    ahead = bf.AsyncLoader(loader, "cpu")
    assert (ahead.dataset, ahead.batch_size, len(ahead), bool(ahead)) == ([1, 2, 3], 2, 2, True)
    with pytest.raises(AttributeError, match="no_such"):
        _ = ahead.no_such
    with pytest.raises(TypeError, match=r"object of type 'generator' has no len\(\)"):
        len(bf.AsyncLoader((i for i in range(3)), "cpu"))


# -- wherever it is left -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 3), st.data())
@examples(15)
def test_loops_that_are_left_saved_and_restored_are_those_of_the_plain_loader(
    lengths: list[int], prefetch: int, data: st.DataObject
) -> None:
    plain, ahead = stored().loader(), bf.AsyncLoader(stored().loader(), "cpu", prefetch=prefetch)
    for length in lengths:
        assert seen(islice(ahead, length)) == seen(islice(plain, length))
        gc.collect()
        what = data.draw(st.sampled_from(["go on", "restore", "fresh", "pickle", "epoch"]))
        if what == "epoch":
            epoch = data.draw(st.integers(0, 3))
            plain.set_epoch(epoch)
            ahead.set_epoch(epoch)
        assert ahead.state_dict() == plain.state_dict()
        if what == "restore":
            ahead.load_state_dict(plain.state_dict())
            plain.load_state_dict(plain.state_dict())
        elif what == "fresh":
            state = ahead.state_dict()
            plain, ahead = stored().loader(), bf.AsyncLoader(stored().loader(), "cpu", prefetch=prefetch)
            plain.load_state_dict(state)
            ahead.load_state_dict(state)
        elif what == "pickle":
            plain, ahead = pickle.loads(pickle.dumps(plain)), pickle.loads(pickle.dumps(ahead))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_a_stateful_data_loader_counts_what_was_handed_out(num_workers: int) -> None:
    def loader() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(list(range(40)), batch_size=2, num_workers=num_workers)  # type: ignore[arg-type]

    expected = [batch.tolist() for batch in loader()]
    ahead = bf.AsyncLoader(loader(), "cpu", prefetch=3)
    assert [batch.tolist() for batch in islice(ahead, 7)] == expected[:7]
    for own in (bf.AsyncLoader(loader(), "cpu"), loader()):
        own.load_state_dict(ahead.state_dict())
        assert [batch.tolist() for batch in own] == expected[7:]
        assert [batch.tolist() for batch in own] == expected


class Positioned(torch.utils.data.IterableDataset[Any]):
    """It stands at a position, goes on from there in any loop, and begins anew after its end."""

    def __init__(self, size: int = 12) -> None:
        self.size, self.at = size, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.size:
            self.at += 1
            yield torch.tensor([self.at])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor(self.at), "size": [self.size, np.arange(2)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])


class Drawn(Positioned):
    """It draws where it begins, and begins anew in each loop, unless it was sent to a place."""

    drawn = 0
    sent = False

    def __iter__(self) -> Iterator[Any]:
        if not self.sent:
            self.drawn, self.at = self.drawn + 1, 0
        self.sent = False
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        while self.at < self.size:
            self.at += 1
            yield torch.tensor([100 * self.drawn + self.at])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.drawn, self.sent = state["at"], state["drawn"], True


class Stateless(torch.utils.data.IterableDataset[Any]):
    """A stream without a state: to go on in it is to read all of it again."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(12):
            self.read += 1
            yield torch.tensor([number])


FOREIGN: dict[str, Callable[[], Any]] = {
    "positioned": Positioned,
    "drawn": Drawn,
    "of rows": lambda: StatefulDataLoader(list(range(12)), batch_size=1, shuffle=False),  # type: ignore[arg-type]
    "of what is positioned": lambda: StatefulDataLoader(Positioned(), batch_size=2),
    "of a stream": lambda: StatefulDataLoader(Stateless(), batch_size=2),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata
@pytest.mark.parametrize("kind", FOREIGN)
@given(st.lists(st.integers(1, 13), min_size=1, max_size=4), st.integers(0, 4))
@examples(12)
def test_a_loader_that_is_not_ours_goes_on_as_if_nothing_had_been_read_ahead(
    kind: str, lengths: list[int], prefetch: int
) -> None:
    plain, ahead = FOREIGN[kind](), bf.AsyncLoader(FOREIGN[kind](), "cpu", prefetch=prefetch)
    for length in [*lengths, 12]:
        expected = [batch.tolist() for batch in islice(plain, length)]
        loop = iter(ahead)
        assert [batch.tolist() for batch in islice(loop, length)] == expected
        if length % 2:
            time.sleep(0.01)  # so that more is ahead, all perhaps
        loop.close()  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_shuffled_loader_begins_an_epoch_anew_where_it_does_by_itself() -> None:
    ahead = bf.AsyncLoader(StatefulDataLoader(list(range(12)), batch_size=1, shuffle=True), "cpu")  # type: ignore[arg-type]
    assert len({batch.item() for batch in islice(ahead, 3)}) == 3
    assert sorted(batch.item() for batch in ahead) == list(range(12))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stream_without_a_state_that_begins_anew_is_not_read_again() -> None:
    stream = Stateless()
    ahead = bf.AsyncLoader(StatefulDataLoader(stream, batch_size=1), "cpu", prefetch=1)
    for _ in islice(ahead, 8):
        pass
    read = stream.read
    assert next(iter(ahead)).item() == 0
    assert stream.read <= read + 3


class Adapted:
    """It has the methods of a loader with a state, around what has none."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Tells(Positioned):
    """It says where it stands and cannot be sent there."""

    load_state_dict = property()  # type: ignore[assignment]


def test_a_loader_that_cannot_go_back_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ahead = bf.AsyncLoader(Adapted(), "cpu")
    assert (list(islice(ahead, 2)), list(ahead)) == ([0, 1], [0, 1, 2, 3, 4])
    ahead = bf.AsyncLoader(Tells(), "cpu")
    assert [batch.item() for batch in islice(ahead, 2)] == [1, 2]
    assert next(iter(ahead)).item() > 2
    ahead = bf.AsyncLoader(iter(range(5)), "cpu", prefetch=0)
    assert (list(islice(ahead, 2)), list(ahead)) == ([0, 1], [2, 3, 4])
    assert not caplog.records


def test_an_iterator_that_loses_what_was_read_ahead_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    ahead = bf.AsyncLoader(iter(range(20)), "cpu")
    assert list(islice(ahead, 3)) == [0, 1, 2]
    assert not caplog.records
    assert next(iter(ahead)) > 3
    assert "goes on with an iterator, a range_iterator, whose last loop was left: batches that were read" in caplog.text


def test_a_loader_without_a_state_says_so() -> None:
    ahead = bf.AsyncLoader([1], "cpu")
    message = (
        r"^a list has no state; give AsyncLoader one with state_dict and load_state_dict, such as Batches.loader\(\)"
    )
    with pytest.raises(TypeError, match=message):
        ahead.state_dict()
    with pytest.raises(TypeError, match=message):
        ahead.load_state_dict({})


def test_two_loops_at_once_over_a_list_are_two() -> None:
    ahead = bf.AsyncLoader([{"input_ids": ids([i])} for i in range(4)], "cpu")
    assert [(a["input_ids"].item(), b["input_ids"].item()) for a, b in zip(ahead, ahead)] == [(i, i) for i in range(4)]
    assert not threads()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_loop_inside_a_loop_over_one_loader_ends_the_outer_one_with_an_error(prefetch: int) -> None:
    for _ in range(10):
        ahead = bf.AsyncLoader(stored().loader(), "cpu", prefetch=prefetch)
        outer = iter(ahead)
        next(outer)
        plain = stored().loader()
        plain.set_epoch(1)
        assert seen(ahead) == seen(plain), "the epoch of the outer one has ended"
        with pytest.raises(RuntimeError, match="another loop over this loader has begun inside this one"):
            list(outer)


def test_an_epoch_that_is_named_inside_a_loop_is_the_next_one() -> None:
    plain, ahead = stored().loader(), bf.AsyncLoader(stored().loader(), "cpu")
    for loader in (plain, ahead):
        for _ in loader:
            loader.set_epoch(5)
            break
    assert ahead.state_dict() == plain.state_dict()
    assert seen(ahead) == seen(plain)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"]
)
def test_a_copy_of_one_that_runs_goes_on_where_it_is(copied: Any) -> None:
    plain, ahead = stored().loader(), bf.AsyncLoader(stored().loader(), "cpu", prefetch=5)
    loops = iter(plain), iter(ahead)
    for loop in loops:
        assert len(list(islice(loop, 3))) == 3
    time.sleep(0.1)
    twin = copied(ahead)
    assert twin.state_dict() == ahead.state_dict() == plain.state_dict()
    assert seen(twin) == seen(loops[0]) == seen(loops[1])


def test_one_around_another_is_left_and_restored_alike() -> None:
    plain = stored().loader()
    around = bf.AsyncLoader(bf.AsyncLoader(stored().loader(), "cpu", prefetch=3), "cpu", prefetch=3)
    assert seen(islice(around, 4)) == seen(islice(plain, 4))
    assert around.state_dict() == plain.state_dict()
    assert seen(around) == seen(plain)
    assert list(bf.AsyncLoader(bf.AsyncLoader([1, 2], "cpu"), "cpu")) == [1, 2]


def test_a_collate_fn_that_draws_gives_the_same_and_leaves_the_loops_draws_alone() -> None:
    def noisy(samples: list[Any]) -> dict[str, float]:
        first = torch.rand(1).item()
        time.sleep(0.001)
        return {"first": first, "second": torch.rand(1).item()}

    def loader() -> Any:
        return bf.from_sequence([{"input_ids": [i]} for i in range(40)]).batch(2, collate_fn=noisy).loader()

    results = []
    for one in (loader(), bf.AsyncLoader(loader(), "cpu"), bf.AsyncLoader(bf.AsyncLoader(loader(), "cpu"), "cpu")):
        torch.manual_seed(3)
        results.append([(batch, torch.rand(2).tolist()) for batch in one])
        assert one.stats.batches == 20
    assert results[0] == results[1] == results[2]


def test_an_iterator_that_is_left_where_the_interpreter_ends_says_nothing() -> None:
    code = """
import brimful as bf
it = iter(bf.AsyncLoader(bf.from_sequence([{"input_ids": [i]} for i in range(40)]).batch(2).loader(), "cpu"))
next(it)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# -- threads, errors -----------------------------------------------------------------------------------------------------


def test_the_thread_ends_with_the_loop_however_it_ends() -> None:
    closed = []

    def batches() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(threading.current_thread())

    class Endless:
        def __iter__(self) -> Iterator[int]:
            return batches()

    ahead = bf.AsyncLoader(Endless(), "cpu")
    for number in ahead:
        assert threads()
        if number == 3:
            break
    assert not threads()
    assert len(closed) == 1
    with pytest.raises(ZeroDivisionError):
        _ = [number // 0 for number in ahead]
    assert not threads()
    assert len(closed) == 2
    it = iter(ahead)
    next(it)
    del it
    gc.collect()
    assert not threads()
    assert len(closed) == 3
    assert len(list(ahead)) == 100
    assert not threads()
    assert len(closed) == 4


def test_an_error_of_the_loader_comes_in_its_place_as_it_is() -> None:
    class Fails:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            yield {"input_ids": ids([1])}
            yield {"input_ids": ids([2])}
            raise LookupError("shard 7 is gone")

    it = iter(bf.AsyncLoader(Fails(), "cpu", prefetch=5))
    assert [next(it)["input_ids"].item() for _ in range(2)] == [1, 2]
    with pytest.raises(LookupError, match=r"^shard 7 is gone$"):
        next(it)
    assert not threads()
    with pytest.raises(TypeError, match="loader must be an iterable of batches"):
        bf.AsyncLoader(5, "cpu")  # type: ignore[arg-type]


def test_a_slow_consumer_has_no_more_ahead_than_it_asked_for() -> None:
    made: list[int] = []

    class Counted:
        def __iter__(self) -> Iterator[int]:
            for number in range(50):
                made.append(number)
                yield number

    for taken, _ in enumerate(bf.AsyncLoader(Counted(), "cpu", prefetch=3), 1):
        time.sleep(0.005)
        assert len(made) <= taken + 3 + 1


def test_10_000_batches_take_no_more_memory_and_no_more_threads() -> None:
    class Many:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            for _ in range(10_000):
                yield {"input_ids": torch.ones(4, 100, dtype=torch.int64)}

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    ahead = bf.AsyncLoader(Many(), "cpu", buckets=[128, 256])
    before, most = 0, 0
    for number, _ in enumerate(ahead):
        if number == 1_000:
            before = resident()
        if number % 500 == 0:
            assert len(threads()) == 1
            most = max(most, resident())
    assert most - before < 4 << 20  # 10,000 batches are 41 MB
    assert ahead.stats is not None
    assert (ahead.stats.batches, ahead.stats.num_shapes, ahead.stats.padding) == (10_000, 1, 1 - 100 / 128)


def test_ctrl_c_in_a_loop_that_waits_reaches_the_consumer_and_ends_the_thread() -> None:
    code = """
import threading, time, brimful as bf

class Slow:
    def __iter__(self):
        yield 1
        print("waiting", flush=True)
        time.sleep(3)
        yield 2

try:
    for _ in bf.AsyncLoader(Slow(), "cpu"):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(sum(thread.name.startswith("brimful") for thread in threading.enumerate()), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "interrupted\n0\n"
    assert child.returncode == 0


# -- buckets -------------------------------------------------------------------------------------------------------------


def padded(batch: Any, **options: Any) -> Any:
    (out,) = bf.AsyncLoader([batch], "cpu", **options)
    return out


def test_the_log_line_is_the_one_that_is_promised(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="brimful"):
        padded({"input_ids": torch.ones(1, 179)}, buckets=[192, 64])
    assert [record.getMessage() for record in caplog.records] == [
        "original length: 179, bucket length: 192, padding length: 13"
    ]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", r"^\[[-\d]+ [\d:,]+ - DEBUG\] original length: 179, bucket length: 192, padding length: 13\n$"),
        ("INFO", "^$"),
        ("", "^$"),
        ("loud", r"^\[.* - WARNING\] BRIMFUL_LOG_LEVEL must be one of debug, info, .* \(got 'loud'\)\n$"),
    ],
)
def test_the_environment_shows_the_log(level: str, expected: str) -> None:
    code = (
        'import torch, brimful as bf; list(bf.AsyncLoader([{"input_ids": torch.ones(1, 179)}], "cpu", buckets=[192]))'
    )
    environment = os.environ | {"BRIMFUL_LOG_LEVEL": level}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert re.match(expected, done.stderr)


def test_each_key_is_padded_with_its_own_value_to_the_nearest_bucket() -> None:
    batch = {
        "input_ids": ids([1, 2, 3]),
        "attention_mask": torch.tensor([[True, True, False]]),
        "labels": ids([4, 5, 6]),
        "lengths": torch.tensor([2]),
        "text": ["a"],
        "other": torch.ones(1, 2),
    }
    before = {name: getattr(one, "clone", lambda one=one: one)() for name, one in batch.items()}
    out = padded(batch, buckets=[8, 5, 2])
    assert out["input_ids"].tolist() == [[1, 2, 3, 0, 0]]
    assert out["attention_mask"].tolist() == [[True, True, False, False, False]]
    assert out["labels"].tolist() == [[4, 5, 6, -100, -100]]
    assert (out["lengths"].tolist(), out["text"], out["other"].shape) == ([2], ["a"], (1, 2))
    assert equal(batch, before)
    left = padded(
        batch, buckets=[5], pad_side="left", pad_value_dict={"input_ids": 9, "labels": -1, "attention_mask": 0}
    )
    assert (left["input_ids"].tolist(), left["labels"].tolist()) == ([[9, 9, 1, 2, 3]], [[-1, -1, 4, 5, 6]])


def test_uniform_buckets_end_at_the_greatest_length() -> None:
    assert bf.AsyncLoader([], "cpu", max_length=1024, num_buckets=4).buckets == (256, 512, 768, 1024)
    assert len(bf.AsyncLoader([], "cpu", max_length=1000).buckets) == 8
    assert padded({"input_ids": torch.ones(2, 900)}, max_length=1000)["input_ids"].shape == (2, 1000)


def test_the_callers_lists_and_dicts_are_never_changed() -> None:
    buckets, values = [8, 4, 4], {"input_ids": 1}
    ahead = bf.AsyncLoader([{"input_ids": ids([1])}], "cpu", buckets=buckets, pad_value_dict=values)
    assert (seen(ahead), ahead.buckets) == ([[[1, 1, 1, 1]]], (4, 8))
    assert (buckets, values) == ([8, 4, 4], {"input_ids": 1})
    buckets.append(1)
    values["input_ids"] = 3
    assert seen(ahead) == [[[1, 1, 1, 1]]]


@pytest.mark.parametrize("length", [3, 4])
def test_a_tensor_to_pad_without_a_value_is_an_error_with_both_numbers(length: int) -> None:
    batch = {"input_ids": torch.ones(2, length), "token_type_ids": torch.ones(2, length)}
    message = rf"^'token_type_ids' has {length} values along dimension -1, as many as there are tokens, which become "
    with pytest.raises(
        bf.DataError,
        match=message
        + r"4, but there is no value.*'labels': -100, 'token_type_ids': 0\}, or None to leave it as it is$",
    ):
        padded(batch, buckets=[4])
    values = {"input_ids": 0, "token_type_ids": None}
    assert padded(batch, buckets=[4], pad_value_dict=values)["token_type_ids"].shape == (2, length)


@pytest.mark.parametrize("length", [2, 3])
def test_one_number_a_row_is_never_padded_also_where_there_are_as_many_as_tokens(length: int) -> None:
    batch = {"input_ids": torch.ones(2, length), "labels": torch.tensor([0, 1]), "score": torch.tensor([0.5, 1.0])}
    out = padded(batch, buckets=[4])
    assert (out["input_ids"].shape, out["labels"].tolist(), out["score"].tolist()) == ((2, 4), [0, 1], [0.5, 1.0])


def test_a_batch_longer_than_every_bucket() -> None:
    batch = {"input_ids": torch.arange(11)[None], "attention_mask": torch.ones(1, 11)}
    message = (
        r"^a batch of length 11 is longer than every bucket, of which the last is 6; add a longer bucket, truncate the"
    )
    with pytest.raises(bf.DataError, match=message):
        padded(batch, buckets=[4, 6])
    grown = padded(batch, buckets=[4, 6], overflow="grow")
    assert grown["input_ids"].tolist() == [[*range(11), 0]]
    assert padded(batch, buckets=[4], overflow="grow")["input_ids"].shape == (1, 12)
    ahead = bf.AsyncLoader([batch], "cpu", buckets=[4, 6], overflow="truncate")
    assert seen(ahead) == [[[*range(6)]]]
    assert ahead.stats is not None
    assert ahead.stats.truncated == 1
    left = padded(batch, buckets=[4, 6], overflow="truncate", pad_side="left")
    assert left["input_ids"].tolist() == [[*range(5, 11)]]


def test_another_dimension_is_padded_by_name() -> None:
    batch = {"features": torch.ones(2, 3, 7), "labels": torch.ones(2, 3), "mask": torch.ones(2, 3)}
    values = {"features": 0.5, "labels": -100, "mask": 0}
    out = padded(batch, buckets=[4], pad_value_dict=values, dim={"features": 1})
    assert [tuple(out[name].shape) for name in batch] == [(2, 4, 7), (2, 4), (2, 4)]
    assert out["features"][:, 3].eq(0.5).all()
    with pytest.raises(bf.DataError, match=r"^dim=3 is no dimension of 'features', which has 3; see dim=$"):
        padded(batch, buckets=[4], pad_value_dict=values, dim=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"buckets": [4], "max_length": 8},
            r"^buckets and max_length=8 both say which buckets there are; give one of them$",
        ),
        ({"num_buckets": 4}, r"^num_buckets=4 divides max_length, of which there is none; give that too$"),
        (
            {"buckets": [8], "num_buckets": 4},
            r"^num_buckets=4 divides max_length, of which there is none; give that too$",
        ),
        ({"buckets": 16}, r"^buckets must be at least 1 length, in a list \(got 16\)$"),
        ({"buckets": []}, r"^buckets must be at least 1 length, in a list \(got none\)$"),
        ({"buckets": [0]}, r"^buckets must be at least 1 token \(got 0\)$"),
        ({"max_length": 0}, r"^max_length must be at least 1 token \(got 0\)$"),
        ({"overflow": "crop"}, r"^overflow must be one of raise, grow, truncate \(got 'crop'\)$"),
        ({"pad_side": "up"}, r"^pad_side must be one of right, left \(got 'up'\)$"),
        ({"prefetch": -1}, r"^prefetch must be at least 0 batches \(got -1\)$"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.AsyncLoader([], "cpu", **options)


@pytest.mark.parametrize("buckets", [np.array([4, 8]), torch.tensor([8, 4]), (4, 8)], ids=["numpy", "torch", "tuple"])
def test_buckets_are_any_lengths(buckets: Any) -> None:
    assert bf.AsyncLoader([], "cpu", buckets=buckets).buckets == (4, 8)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *[("uint8", -100), ("uint16", -100), ("bool", -100), ("int64", 0.5), ("int64", float("nan")), ("int32", 1e10)],
        *[("float16", 1e6), ("bfloat16", -1e39), ("float32", 1e39)],
    ],
)
def test_a_value_that_a_type_does_not_hold_is_refused(dtype: str, value: float) -> None:
    batch = {"input_ids": torch.ones(1, 3), "labels": torch.ones(1, 3).to(getattr(torch, dtype))}
    with pytest.raises(
        bf.DataError,
        match=rf"^'labels' is of {dtype}, which does not hold its pad value {re.escape(str(value))}; choose another",
    ):
        padded(batch, buckets=[4], pad_value_dict={"input_ids": 0, "labels": value})


@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 0.1), ("bfloat16", -100), ("float32", float("nan")), ("bool", 1)]
)
def test_a_value_is_rounded_as_its_type_rounds(dtype: str, value: float) -> None:
    batch = {"input_ids": torch.ones(1, 3).to(getattr(torch, dtype))}
    assert padded(batch, buckets=[4], pad_value_dict={"input_ids": value})["input_ids"].shape == (1, 4)


@pytest.mark.parametrize(
    ("name", "value"), [("labels", -100), ("shift_labels", -100), ("chosen_labels", -100), ("token_type_ids", 0)]
)
def test_what_to_pad_with_is_never_trained_on(name: str, value: int) -> None:
    batch = {"input_ids": torch.ones(2, 3), name: torch.ones(2, 3)}
    message = rf"name one, pad_value_dict={{'input_ids': 0, '{name}': {value}}}, or None to leave it as it is$"
    with pytest.raises(bf.DataError, match=message):
        padded(batch, buckets=[4], pad_value_dict={"input_ids": 0})
    assert padded(batch, buckets=[4], pad_value_dict={"input_ids": 0, name: value})[name][0, -1] == value


def test_positions_that_all_rows_share_go_along() -> None:
    batch = {"input_ids": torch.ones(2, 3), "cache_position": torch.arange(3)}
    out = padded(batch, buckets=[4], pad_value_dict={"input_ids": 0, "cache_position": 9})
    assert out["cache_position"].tolist() == [0, 1, 2, 9]


def test_a_batch_without_a_key_to_go_by_is_refused() -> None:
    message = (
        r"^nothing says how long a batch is: of its keys \(input_ids\) none is a tensor with a value in pad_value_dict="
    )
    with pytest.raises(bf.DataError, match=message):
        padded({"input_ids": torch.ones(1, 2)}, buckets=[4], pad_value_dict={"a": 0})


def test_a_loader_that_accelerate_prepared_is_refused() -> None:
    """It would tell Accelerate of the end of an epoch before that is there."""
    accelerate = pytest.importorskip("accelerate")
    rows = [{"input_ids": torch.ones(3)} for _ in range(4)]
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(rows, batch_size=2))  # type: ignore[arg-type]
    message = (
        r"^a DataLoaderShard of Accelerate tells it where an epoch ends as it is read: .*; do not prepare the loader"
    )
    with pytest.raises(TypeError, match=message):
        bf.AsyncLoader(prepared, "cpu")


def test_buckets_want_dicts() -> None:
    with pytest.raises(TypeError, match=r"^buckets pad dicts of tensors \(got a tuple\); give AsyncLoader no buckets"):
        padded((ids([1]),), buckets=[4])


def test_a_device_that_is_not_there_is_said_to_be_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(
        RuntimeError, match=r"^no device 'cuda:7' is to be had: this torch finds no cuda; name another, or 'cpu'$"
    ):
        next(iter(bf.AsyncLoader([1], "cuda:7")))


# -- figures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow", "share"), [("loader", (0.5, 1.0)), ("consumer", (0.0, 0.5))])
def test_the_share_of_time_that_was_waited(slow: str, share: tuple[float, float]) -> None:
    class Loader:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            for _ in range(10):
                time.sleep(0.02 * (slow == "loader"))
                yield {"input_ids": torch.ones(2, 3), "attention_mask": ids([1, 1, 0], [1, 0, 0])}

    ahead = bf.AsyncLoader(Loader(), "cpu")
    assert ahead.stats is None
    for _ in ahead:
        time.sleep(0.02 * (slow == "consumer"))
    stats = ahead.stats
    assert stats is not None
    assert share[0] <= stats.stall_share <= share[1]
    assert stats.stall_share == stats.seconds_waited / stats.seconds
    assert 0 < stats.seconds_to_first < stats.seconds
    told: dict[str, float] = {}
    writer: Any = SimpleNamespace(add_scalar=lambda name, value, step: told.update({name: value}))
    stats.log_to(writer, 1)
    assert told["data/recent_stall_share"] == stats.stall_share
    stats.waited(stats._first + stats.seconds, stats._first + stats.seconds + 1)  # type: ignore[operator]
    stats.log_to(writer, 2)
    assert round(told["data/recent_stall_share"], 6) == 1
    assert (stats.batches, stats.samples, stats.tokens, stats.slots, stats.num_shapes) == (10, 20, 30, 60, 1)


def test_figures_go_to_tensorboard(tmp_path: Any) -> None:
    tensorboard: Callable[..., Any] = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ahead = bf.AsyncLoader([{"input_ids": torch.ones(2, 3)}], "cpu")
    list(ahead)
    assert ahead.stats is not None
    with tensorboard(tmp_path) as writer:
        ahead.stats.log_to(writer, 7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"data/{name}" for name in (*ahead.stats, "recent_stall_share")}
    assert [(event.step, event.value) for event in events.Scalars("data/slots")] == [(7, 6.0)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_second_thread_is_told_and_the_first_takes_every_batch(ahead: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["input_ids"][0, 0] == 4:
            inside.set()
            assert go_on.wait(10)
        return batch

    loader = bf.from_sequence([[number] for number in range(1, 9)]).batch(1).map(slow).loader()
    batches = iter(bf.AsyncLoader(loader, "cpu", prefetch=0) if ahead else loader)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(batches))
    reader.start()
    assert inside.wait(10)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"^this iterator is in use: another thread .*; give each thread an iter"
        ):
            next(batches)
    go_on.set()
    reader.join()
    assert [batch["input_ids"].item() for batch in found] == list(range(1, 9))
    assert next(batches, None) is None


def test_a_value_error_of_the_data_is_none_of_threads() -> None:
    def fails() -> Iterator[Any]:
        yield {"input_ids": torch.ones(1)}
        raise ValueError("no more")

    batches = iter(bf.AsyncLoader(fails(), "cpu"))
    next(batches)
    with pytest.raises(ValueError, match="no more"):
        next(batches)
    with pytest.raises(bf.BrokenError, match="failed earlier: ValueError"):
        next(batches)
