"""What a collate_fn draws at random is a function of the batch: whatever runs ahead, on any number of ranks, after a resume."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

import brimful as bf
from brimful.plan.random import generators_of


def drawn(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """From each generator that a process has."""
    return {
        "ids": [len(sample["input_ids"]) for sample in samples],
        "torch": torch.rand(2).tolist(),
        "numpy": np.random.random(2).tolist(),
        "python": [random.random(), random.random()],
    }


def batches(collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None, **options: Any) -> bf.Batches:
    data = bf.from_sequence([{"input_ids": [1] * (1 + i % 13)} for i in range(80)], shuffle=True)
    return data.batch_by_tokens(32, window=30, collate_fn=collate_fn or drawn, **options)


def state() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(batches())


WAYS: dict[str, Callable[[], Any]] = {
    "prefetch": lambda: batches().prefetch(3),
    "to_device": lambda: batches().to_device("cpu"),
    "both": lambda: batches().prefetch(2).to_device("cpu", prefetch=1).prefetch(1),
    "loader": lambda: batches().prefetch(2).loader(),
    "processes": lambda: batches(max_workers=2, executor_type="process"),
    "map and enumerate": lambda: (
        item for _, item in batches().map(dict).prefetch(2).map(dict).enumerate().prefetch(1)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_whatever_runs_ahead_while_the_loop_draws_too(way: str, expected: list[Any]) -> None:
    torch.manual_seed(5)
    found = []
    for item in WAYS[way]():
        found.append(item)
        torch.rand(3)
        np.random.random(3)
        random.random()
    assert found == expected
    assert len({tuple(item["torch"]) for item in found}) == len(found)


@pytest.mark.parametrize("way", ["prefetch", "to_device", "both", "loader"])
def test_it_is_called_by_the_thread_that_takes_the_batch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = set()

    def calling(samples: list[Any]) -> dict[str, Any]:
        callers.add(threading.current_thread())
        return {}

    monkeypatch.setitem(globals(), "drawn", calling)
    assert len(list(WAYS[way]())) > 10
    assert callers == {threading.current_thread()}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loop_draws_what_it_draws_without_it(prefetch: int) -> None:
    made = batches().prefetch(prefetch) if prefetch else batches()
    it = made.iter()
    next(it)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = state()
    for _ in range(5):
        next(it)
    assert state() == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_it_is_the_same_after_a_resume_at_any_batch(prefetch: int, expected: list[Any]) -> None:
    made = batches().prefetch(prefetch) if prefetch else batches()
    with made.iter() as it:
        for taken, _ in enumerate(it, 1):
            with made.iter(it.state_dict()) as rest:
                assert list(rest) == expected[taken:]


@pytest.mark.parametrize("world_size", [2, 3])
def test_it_is_the_same_on_any_number_of_ranks(world_size: int, expected: list[Any]) -> None:
    ranks = [list(batches().shard(rank, world_size, uneven="drop")) for rank in range(world_size)]
    found = [batch for step in zip(*ranks, strict=True) for batch in step]
    for batch in found:
        del batch["weight"], batch["is_filler"]
    assert found == expected[: len(found)]


def test_epochs_differ() -> None:
    loader = batches().loader()
    first, second = ([item["torch"] for item in loader] for _ in range(2))
    assert not {tuple(item) for item in first} & {tuple(item) for item in second}


class Own:
    """A collator with a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        draw = self.generator
        if isinstance(draw, torch.Generator):
            return torch.rand(2, generator=draw).tolist()
        return [draw.random(), draw.random()]

    def method(self, samples: list[dict[str, Any]]) -> Any:
        return self(samples)


MAKERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.Generator().manual_seed(0),
    "numpy": lambda: np.random.default_rng(0),
    "numpy philox": lambda: np.random.Generator(np.random.Philox(0)),
    "numpy of old": lambda: np.random.RandomState(0),
    "python": lambda: random.Random(0),
}
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "object": Own,
    "method": lambda generator: Own(generator).method,
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_generator_of_its_own_is_keyed_too(maker: str, holder: str) -> None:
    def made() -> bf.Batches:
        return batches(HOLDERS[holder](MAKERS[maker]()))

    with made().prefetch(2).iter() as it:
        found = [next(it) for _ in range(4)]
        saved = it.state_dict()
        rest = list(it)
    assert len({tuple(one) for one in found}) == 4
    assert list(made().prefetch(2).iter(saved)) == rest
    assert list(made()) == found + rest


def test_a_function_holds_no_generator() -> None:
    assert generators_of(lambda samples: samples) == generators_of(len) == []


def test_an_error_leaves_the_generators_as_they_were_and_is_told_with_its_place() -> None:
    def fails(samples: list[Any]) -> Any:
        torch.rand(1)
        raise KeyError("boom")

    torch.manual_seed(3)
    before = state()
    with pytest.raises(
        bf.StageError, match=r"^collate_fn=fails failed on \d+ samples, the first of them .*KeyError: 'boom'$"
    ):
        next(batches(fails).prefetch(2).iter())
    assert state() == before


@pytest.fixture
def tokenizer(tmp_path: Path) -> Iterator[Any]:
    transformers = pytest.importorskip("transformers")
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2} | {str(number): number for number in range(3, 50)}
    tokens = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), **tokens)


@pytest.mark.parametrize("seed", [None, 7])
def test_masked_language_modelling_masks_the_same_tokens_each_time(tokenizer: Any, seed: int | None) -> None:
    from transformers import DataCollatorForLanguageModeling

    def made(ahead: int = 0) -> bf.Batches:
        data = bf.from_sequence([{"input_ids": list(range(3, 4 + i % 40))} for i in range(60)])
        collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=seed)
        found = data.batch_by_tokens(128, window=60, collate_fn=collate)
        return found.prefetch(ahead) if ahead else found

    def masks(found: Any) -> list[Any]:
        return [batch["labels"].tolist() for batch in found]

    whole = masks(made())
    assert any(label != -100 for labels in whole for row in labels for label in row)
    torch.manual_seed(9)
    assert masks(made(3)) == whole
    it = made(3).iter()
    first = masks([next(it), next(it)])
    assert first + masks(made(1).iter(it.state_dict())) == whole
