"""Batches sent to a device: the same batches, ahead of use, wherever the run is stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch

import brimful as bf
from brimful.tensors import on_device
from brimful.tensors.on_device import MOST_SHAPES, InFlight, StreamCopier


def batches(**options: Any) -> bf.Batches:
    data = bf.from_sequence(
        [{"input_ids": [i] * (1 + i % 7), "labels": [i] * (1 + i % 7), "text": "t"} for i in range(60)]
    )
    return data.batch_by_tokens(16, window=20, **options)


def as_lists(found: Any) -> list[Any]:
    return [{name: getattr(one, "tolist", lambda one=one: one)() for name, one in batch.items()} for batch in found]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("pad_on_device", [False, True])
def test_the_batches_and_the_states_are_those_without_it(prefetch: int, pad_on_device: bool) -> None:
    with (
        batches().iter() as plain,
        batches().to_device("cpu", prefetch=prefetch, pad_on_device=pad_on_device).iter() as sent,
    ):
        for expected, found in zip(plain, sent, strict=True):
            assert as_lists([found]) == as_lists([expected])
            assert list(found) == list(expected)
            assert sent.state_dict() == plain.state_dict()
        counts = ("batches", "samples", "tokens", "slots", "num_shapes")
        assert [sent.stats[name] for name in counts] == [plain.stats[name] for name in counts]
    state = plain.state_dict()
    with batches().to_device("cpu").iter(state) as rest:
        assert list(rest) == []


def test_every_tensor_is_on_the_device_and_what_is_none_stays() -> None:
    for batch in batches().shard(0, 2).to_device("meta"):
        kinds = {name: one.device.type for name, one in batch.items() if isinstance(one, torch.Tensor)}
        assert set(kinds.values()) == {"meta"}
        assert {*batch} - {*kinds} == {"text", "weight", "is_filler"}


def test_epochs_go_on_ahead_and_map_after_it_sees_the_device() -> None:
    data = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2]}], repeat=True)
    sent = data.batch(1).to_device("meta").map(lambda batch: batch["input_ids"].device.type)
    with sent.iter() as it:
        assert [next(it) for _ in range(5)] == ["meta"] * 5


@pytest.mark.parametrize(
    "made",
    [
        lambda: batches().map(dict),
        lambda: batches().prefetch(2),
        lambda: batches(collate_fn=list),
        lambda: batches(layout="nested"),
        lambda: bf.from_sequence([{"input_ids": [1]}]).pack(8),
    ],
    ids=["map", "prefetch", "collate_fn", "nested", "pack"],
)
def test_what_is_not_padded_here_cannot_be_padded_on_the_device(made: Any) -> None:
    with pytest.raises(ValueError, match=r"^pad_on_device needs brimful's own padded batches. Leave out"):
        made().to_device("cpu", pad_on_device=True)


def test_less_is_sent_where_the_device_pads() -> None:
    rows = pa.table({"input_ids": pa.array([[7] * n for n in (500, 20, 10)], pa.list_(pa.uint16()))})
    sizes = []
    for pad_on_device in (False, True):
        sent: list[int] = []

        class Counting(on_device.BlockingCopier):
            def send(self, item: Any, sent: list[int] = sent) -> on_device.InFlight:
                sent.append(sum(one.numel() * one.element_size() for one in on_device.tensors_of(item)))
                return super().send(item)

        with patch.object(on_device, "BlockingCopier", Counting):
            (batch,) = bf.from_sequence(rows).batch(3).to_device("cpu", pad_on_device=pad_on_device)
        assert batch["input_ids"].shape == (3, 500)
        sizes += sent
    assert sizes[0] > 3 * 500 * 16
    assert sizes[1] < 530 * 2 + 200


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64", "int8", "bool", "float32"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "uint64", "bfloat16", "float64"])
def test_values_of_any_type_are_padded_there_as_they_are_here(kind: str, dtype: str) -> None:
    values = pa.array(np.array([0, 1, 1, 1], kind))
    rows = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array([0, 3, 3, 4], pa.int32()), values)})
    options: Any = {"dtypes": {"input_ids": dtype}, "pad_values": {"input_ids": 1}}
    if kind == "float32" and "int" in dtype:
        pytest.skip("fractions are not made integers")
    (here,) = bf.from_sequence(rows).batch(3, **options)
    (there,) = bf.from_sequence(rows).batch(3, **options).to_device("cpu", pad_on_device=True)
    assert there["input_ids"].dtype == here["input_ids"].dtype
    assert torch.equal(there["input_ids"], here["input_ids"])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_fillers_and_copies_ask_for_no_label_there_either(world_size: int) -> None:
    """In any column of labels: a filler is a row that was trained on once already."""
    names = ("labels", "shift_labels", "chosen_labels")
    rows = [{"input_ids": [i] * 3} | {name: [i] * 3 for name in names} for i in range(7)]
    data = bf.from_sequence(rows)
    static = data.batch(bf.StaticShapes([4], 12), window=100, token_columns=names)
    for made in (static, data.batch(4), data.batch(4, layout="nested"), data.batch(4, layout="grouped"), data.pack(8)):
        if made is static:
            here = [static.shard(rank, world_size) for rank in range(world_size)]
            assert [as_lists(one.to_device("cpu", pad_on_device=True)) for one in here] == [
                as_lists(one) for one in here
            ]
        seen = {name: [] for name in names}  # type: dict[str, list[int]]
        for batch in (batch for rank in range(world_size) for batch in made.shard(rank, world_size)):
            parts = batch["groups"].groups if "groups" in batch else [batch]
            for name in names:
                for labels in (part[name] for part in parts):
                    values = labels.values() if labels.is_nested else labels
                    seen[name] += values[values != -100].tolist()
        for name in names:
            once = 2 if name == "labels" and made is not static and "segment_ids" in batch else 3
            once = 2 if name == "shift_labels" and "segment_ids" in batch else once
            assert sorted(seen[name]) == sorted([*range(7)] * once)


@pytest.mark.parametrize("streams", [None, 2])
def test_fillers_of_static_shapes_have_the_shape_of_the_others(tmp_path: Any, streams: int | None) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"input_ids": [1, 2, 3]}\n' * (9 if name == "a" else 2))
    data = (
        bf.from_files(str(tmp_path / "*.jsonl"), streams=streams)
        if streams
        else bf.from_sequence([{"input_ids": [1]}] * 9)
    )
    seen = set()
    world = [
        data.batch(bf.StaticShapes([4], 12), window=100).shard(rank, 2, process_group=store(tmp_path))
        for rank in range(2)
    ]
    results: list[list[Any]] = [[], []]
    threads = [threading.Thread(target=lambda rank=rank: results[rank].extend(world[rank])) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fillers = 0
    for batch in (batch for result in results for batch in result):
        seen.add(tuple(batch["input_ids"].shape))
        fillers += batch["is_filler"]
        if batch["is_filler"]:
            assert batch["sample_weights"].tolist() == [0.0, 0.0, 0.0]
    assert seen == {(3, 4)}
    assert fillers


def store(folder: Any) -> Any:
    return torch.distributed.FileStore(str(folder / "store"), 2)


# -- static buffers ------------------------------------------------------------------------------------------------------


def test_batches_of_a_shape_are_in_the_same_tensors_over_epochs() -> None:
    data = bf.from_sequence([{"input_ids": [i] * (1 + i % 2)} for i in range(8)])
    loader = data.batch(bf.StaticShapes([1, 2], 2), window=8).to_device("cpu", static_buffers=True).loader()
    pointers: dict[Any, set[int]] = {}
    for epoch in range(3):
        found = []
        for batch in loader:
            ids = batch["input_ids"]
            found += ids[batch["sample_weights"] > 0][:, 0].tolist()
            pointers.setdefault(tuple(ids.shape), set()).add(ids.data_ptr())
        assert sorted(found) == list(range(8)), epoch
    assert {shape: len(places) for shape, places in pointers.items()} == {(2, 1): 1, (1, 2): 1}


def test_a_column_of_its_own_length_moves_no_other_column() -> None:
    data = bf.from_sequence([{"input_ids": [1] * (1 + 7 * i % 60), "tags": [1] * (i % 5)} for i in range(300)])
    pointers: dict[Any, set[int]] = {}
    for batch in data.batch(bf.StaticShapes([16, 32, 64], 256)).to_device("cpu", static_buffers=True):
        for name in ("input_ids", "tags"):
            pointers.setdefault((name, *batch[name].shape), set()).add(batch[name].data_ptr())
    assert {len(places) for places in pointers.values()} == {1}
    assert len(pointers) > 6


WAYS: dict[str, Any] = {
    "prefetch": lambda sent: sent.prefetch(2),
    "to_device": lambda sent: sent.to_device("cpu"),
    "loader": lambda sent: bf.AsyncLoader(sent.loader(), "cpu"),
    "twice": lambda sent: bf.AsyncLoader(bf.AsyncLoader(sent.loader(), "cpu", static_buffers=True), "cpu"),
}


@pytest.mark.parametrize("way", WAYS)
def test_static_buffers_are_filled_when_the_consumer_takes_the_batch(way: str) -> None:
    data = bf.from_sequence([{"input_ids": [i] * 4} for i in range(40)])
    found = []
    for batch in WAYS[way](data.batch(2).to_device("cpu", static_buffers=True)):
        time.sleep(0.003)
        found.append(batch["input_ids"][0, 0].item())
    assert found == list(range(0, 40, 2))


def test_static_buffers_do_not_mind_what_the_loop_is_in() -> None:
    sent = bf.from_sequence([{"input_ids": [i] * 4} for i in range(4)]).batch(2).to_device("cpu", static_buffers=True)
    with torch.inference_mode():
        next(iter(sent))
    for batch in sent:
        batch["input_ids"].add_(1)
    scores = [{"x": torch.rand(2, requires_grad=True)} for _ in range(3)]
    for batch in bf.AsyncLoader(scores, "cpu", static_buffers=True):
        assert batch["x"].grad_fn is None
        batch["x"].requires_grad_()


def test_packed_rows_have_static_buffers_too() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 4_000)
    rows = bf.from_sequence([{"input_ids": [1] * int(length)} for length in lengths])
    pointers = set()
    for batch in rows.pack(1_024, rows=4, drop_last=True).to_device("cpu", static_buffers=True):
        pointers.add(batch["input_ids"].data_ptr())
        assert batch["cu_seqlens"][-1] == 4 * 1_024
    assert len(pointers) == 1


def test_too_many_shapes_for_static_buffers_are_an_error_and_not_the_end_of_the_memory() -> None:
    data = bf.from_sequence([{"input_ids": [1] * (n + 1)} for n in range(MOST_SHAPES + 1)])
    with data.batch(1).to_device("cpu", static_buffers=True).iter() as it:
        for _ in range(MOST_SHAPES):
            next(it)
        with pytest.raises(
            ValueError, match=r"^static_buffers keeps .* a shape beside 64 others: \(1, 65\); .*StaticShapes"
        ):
            next(it)


# -- an accelerator, as far as one can be told without it ----------------------------------------------------------------


class Streams:
    """Streams and events that do nothing but say in which order they were used."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def current_device(self) -> int:
        return 0

    def is_available(self) -> bool:
        return True

    def Stream(self, device: torch.device) -> Any:  # noqa: N802
        return SimpleNamespace(
            record_event=lambda: f"copied {len(self.log)}",
            wait_stream=lambda stream: self.log.append("waits for compute"),
        )

    def Event(self, blocking: bool) -> Any:  # noqa: N802
        number = len(self.log)
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: self.log.append(f"lags {number}"))

    def default_stream(self, device: torch.device) -> Any:
        return None

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append("copies")
        yield

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.log.append(f"waits for {event.split()[0]}"))


def copier_of(backend: Any, device: torch.device, *, copies: bool) -> StreamCopier:
    made = StreamCopier.__new__(StreamCopier)
    made._backend, made._device, made._copies, made._used = backend, device, copies, deque()
    made._stream = backend.Stream(device)
    return made


class Late:
    """A device whose copies come late, in their order. A stream that waits for an event waits at once."""

    def __init__(self) -> None:
        self._due: SimpleQueue[Any] = SimpleQueue()
        self._here = threading.local()
        self.copy = torch.Tensor.copy_
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            time.sleep(0.002)
            due()

    def copied(self, into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not (non_blocking and getattr(self._here, "copies", False)):
            return self.copy(into, source, non_blocking)
        self._due.put(lambda: self.copy(into, source))
        return into

    def _event(self) -> threading.Event:
        event = threading.Event()
        self._due.put(event.set)
        return event

    def Stream(self, device: torch.device) -> Any:  # noqa: N802
        return SimpleNamespace(record_event=self._event, wait_stream=lambda stream: None)

    def Event(self, blocking: bool) -> Any:  # noqa: N802
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: event.wait())

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self._here.copies = True
        yield
        self._here.copies = False

    def close(self) -> None:
        self._due.put(None)


@pytest.mark.parametrize("static_buffers", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("where", ["on the host", "on the device"])
def test_a_loader_that_fills_its_tensors_again_is_never_seen_to(
    where: str, prefetch: int, static_buffers: bool
) -> None:
    class Again:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            ids = torch.zeros(1, 2, dtype=torch.int64)
            for number in range(12):
                yield {"input_ids": ids.fill_(number)}

    device = (
        torch.device("cpu", 0) if where == "on the host" else torch.device("cpu")
    )  # what is on "cpu" is not on "cpu:0"
    empty = torch.empty
    with (
        closing(Late()) as backend,
        patch.object(on_device, "copier", lambda device, copies: copier_of(backend, device, copies=copies)),
        patch.object(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options)),
        patch.object(torch.Tensor, "copy_", lambda into, *how, **more: backend.copied(into, *how, **more)),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: None),
    ):
        loader = bf.AsyncLoader(Again(), device, prefetch=prefetch, static_buffers=static_buffers)
        found = []
        for batch in loader:
            found.append(batch["input_ids"].tolist())
            time.sleep(0.005)  # so that all that may be ahead is
    assert found == [[[number, number]] for number in range(12)]


def test_a_batch_is_copied_once_from_pinned_memory_and_kept_until_the_compute_has_run() -> None:
    """The steps of a copy; that they do what they should is shown on a device (tests/gpu)."""
    backend, pinned, kept = Streams(), [], []
    empty = torch.empty

    def allocated(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            pinned.append(size[0])
        return empty(*size, **options)

    shared = torch.arange(6)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    batch = {"input_ids": shared, "labels": shared, "flags": torch.tensor([True]), "nested": nested, "text": ["a"]}
    with (
        patch.object(torch, "fake", backend, create=True),
        patch.object(torch, "empty", allocated),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: kept.append(self.data_ptr())),
    ):
        beside = copier_of(backend, torch.device("cpu", 0), copies=False)
        sent = beside.send(batch)
        assert backend.log == ["copies"]
        out = beside.receive(sent)
        assert backend.log == ["copies", "waits for copied"]
        for _ in range(on_device.LAG + 3):
            beside.receive(beside.send({"x": torch.ones(2)}))
        assert len(beside._used) == on_device.LAG + 1
    assert pinned[0] == 64 + 64  # the ids once, the flags
    assert out["input_ids"] is out["labels"]
    assert torch.equal(out["input_ids"], shared)
    assert out["input_ids"] is not shared
    assert (out["flags"].tolist(), out["text"]) == ([True], ["a"])
    assert out["input_ids"].data_ptr() in kept
    assert out["flags"].data_ptr() in kept


def test_what_nested_tensors_keep_on_the_host_is_not_recorded_for_the_device() -> None:
    """Their shortest and longest length, where these are known, stay in tensors of the CPU; their values and offsets do not."""
    values, offsets = torch.empty(3, device="meta"), torch.empty(3, dtype=torch.int64, device="meta")
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=2)
    kept: list[str] = []
    with (
        patch.object(torch, "fake", Streams(), create=True),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: kept.append(self.device.type)),
    ):
        beside = copier_of(Streams(), torch.device("meta"), copies=False)
        assert beside.receive(InFlight({"input_ids": nested}, "copied", (nested,)))["input_ids"] is nested
    assert kept == ["meta", "meta"]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_device_that_is_behind_is_no_wait_for_data(prefetch: int) -> None:
    """The host has nothing to do but to take batches: by the clock, all time goes by while the device catches up."""
    clock = [0.0]

    class Behind(Streams):
        def Event(self, blocking: bool) -> Any:  # noqa: N802
            def synchronize() -> None:
                clock[0] += 1.0

            return SimpleNamespace(record=lambda stream: None, synchronize=synchronize)

    empty = torch.empty
    with (
        patch.object(on_device, "copier", lambda device, copies: copier_of(Behind(), device, copies=copies)),
        patch.object(torch, "fake", Behind(), create=True),
        patch.object(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options)),
        patch.object(torch.Tensor, "record_stream", lambda self, stream: None),
        patch.object(time, "perf_counter", lambda: clock[0]),
        batches().to_device("cpu", prefetch=prefetch).iter() as it,
    ):
        taken = sum(1 for _ in it)
        assert it.stats.seconds == taken - on_device.LAG - 1 > 10
        assert it.stats.seconds_waited == 0


def test_torch_is_not_imported_by_a_description() -> None:
    code = "import sys, brimful as bf; bf.from_sequence([]).batch(2); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
