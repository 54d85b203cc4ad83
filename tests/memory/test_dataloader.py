"""A DataLoader of texts: what the tokenizer gives, each text once, batches that grow as memory allows."""

from __future__ import annotations

import inspect
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import brimful as bf
from brimful.memory import MemoryModel, SimulatedOOM, oom_guard, oom_safe_generate
from brimful.memory.dataloader import WITHOUT_PEAKS, DynamicBatchDataLoader, DynamicBatches, TextCollator
from brimful.memory.first_batch import FirstBatchSizes
from brimful.plan.cut import longest_first
from brimful.plan.errors import warn_once
from tests import tokenizers

TEXTS = [f"{number} " + "word fox dog "[: number * 5 % 13] * (number % 23) + "x" for number in range(200)]
MAKES = {"bert": tokenizers.bert, "gpt2": tokenizers.gpt2, "llama": tokenizers.llama, "byt5": tokenizers.byt5}
SHAPES = [(batch, length) for batch in (1, 4, 16) for length in (4, 16, 64)]


def peak_of(batch: int, length: int) -> int:
    return 1_000 + batch * 50 * length


MODEL = MemoryModel.fit(SHAPES, [peak_of(*shape) for shape in SHAPES])


def build(texts: list[str] = TEXTS, tokenizer: Any = None, *args: Any, **options: Any) -> DynamicBatchDataLoader:
    tokenizer = tokenizer or tokenizers.gpt2()
    args = args or (8, 64)
    if len(args) < 5:
        options = {"num_workers": 0, **options}
    return bf.build_dynamic_batch_dataloader(texts, tokenizer, *args, **options)


def texts_of(loader: DataLoader[Any]) -> list[list[str]]:
    return [batch["texts"] for batch in loader]


def test_the_signature_is_the_published_one() -> None:
    parameters = inspect.signature(bf.build_dynamic_batch_dataloader).parameters.values()
    assert [(one.name, one.default) for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD] == [
        *[(name, inspect.Parameter.empty) for name in ("texts", "tokenizer", "batch_size", "max_input_token_length")],
        *[("threshold", 0.025), ("shuffle", False), ("num_workers", 4)],
        *[("batch_start_range", 1.0), ("batch_end_range", 6.0), ("steps", 50)],
    ]
    named = [(one.name, one.kind.description) for one in parameters if one.kind is not one.POSITIONAL_OR_KEYWORD]
    assert named == [
        ("seed", "keyword-only"),
        ("memory_model", "keyword-only"),
        ("peak_bytes", "keyword-only"),
        ("tokenizer_kwargs", "variadic keyword"),
    ]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"add_special_tokens": False, "pad_to_multiple_of": 8}], ids=str)
def test_a_batch_is_what_the_tokenizer_makes_of_its_texts(make: str, side: str, options: dict[str, Any]) -> None:
    tokenizer = MAKES[make](padding_side=side)
    loader = build(TEXTS, tokenizer, 8, 48, 0.2, memory_model=MODEL, **options)
    assert isinstance(loader, DataLoader)
    widths = []
    for batch in loader:
        expected = tokenizer(
            batch["texts"], padding=True, truncation=True, max_length=48, return_tensors="pt", **options
        )
        assert batch.keys() == {*expected, "texts"} >= {"input_ids", "attention_mask"}
        assert all(batch[name].equal(expected[name]) for name in expected)
        assert batch["input_ids"].dtype == torch.int64
        widths.append(batch["input_ids"].shape[1])
    assert widths == sorted(widths, reverse=True)
    assert sorted(chain(*texts_of(loader))) == sorted(TEXTS)


def test_other_keys_of_the_tokenizer_are_in_the_batch() -> None:
    batch = next(
        iter(build(TEXTS, tokenizers.bert(), 4, 64, return_offsets_mapping=True, return_special_tokens_mask=True))
    )
    assert {"attention_mask", "special_tokens_mask", "offset_mapping"} < batch.keys()
    assert batch["offset_mapping"].shape == (*batch["input_ids"].shape, 2)


def test_the_longest_come_first_and_sizes_follow_the_model(tmp_path: Path) -> None:
    """By hand: order, then the size that the first batch allows at each batch's longest."""
    tokenizer = tokenizers.gpt2()
    lengths = [min(len(ids), 64) for ids in tokenizer(TEXTS)["input_ids"]]
    order = sorted(range(len(TEXTS)), key=lambda number: (-lengths[number], number))
    MODEL.save(tmp_path / "model.json")
    for model in (MODEL, tmp_path / "model.json", str(tmp_path / "model.json"), None):
        loader = build(TEXTS, tokenizer, 8, 64, 0.1, memory_model=model)
        sizes = FirstBatchSizes(MemoryModel.pretrained() if model is None else MODEL, 8, lengths[order[0]], risk=0.1)
        expected, start = [], 0
        while start < len(order):
            rows = sizes.rows(lengths[order[start]]) if start else 8
            expected.append([TEXTS[number] for number in order[start : start + rows]])
            start += rows
        assert texts_of(loader) == expected
        assert len(loader) == len(expected)
        assert len(expected[0]) == 8
        assert model is None or max(map(len, expected)) > 16


def test_shuffled_are_the_built_batches_in_another_order_each_epoch() -> None:
    plain = texts_of(build(memory_model=MODEL))
    loader = build(shuffle=True, memory_model=MODEL)
    first, second = texts_of(loader), texts_of(loader)
    assert sorted(first) == sorted(second) == sorted(plain)
    assert first != plain
    assert first != second
    again = build(shuffle=True, memory_model=MODEL, seed=42)
    assert [texts_of(again), texts_of(again)] == [first, second], "whatever torch has drawn"
    assert texts_of(build(shuffle=True, memory_model=MODEL, seed=7)) not in (first, second)


@pytest.mark.parametrize("make", MAKES)
def test_truncated_texts_are_counted_and_said_once(make: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = MAKES[make]()
    lengths = sorted(len(ids) for ids in tokenizer(TEXTS)["input_ids"])
    limit = lengths[150]
    expected = sum(length > limit for length in lengths)
    with caplog.at_level(logging.WARNING):
        loader = build(TEXTS, tokenizer, 8, limit)
        assert max(batch["input_ids"].shape[1] for batch in loader) == limit
    assert loader.truncated == expected > 0
    said = [text for record in caplog.records if (text := record.getMessage()) != WITHOUT_PEAKS]
    assert said == [f"truncated {expected} of 200 texts to max_input_token_length={limit} tokens"]
    caplog.clear()
    assert build(TEXTS, tokenizer, 8, lengths[-1]).truncated == 0
    assert not caplog.records


def test_a_callable_that_gives_what_they_give_will_do() -> None:
    def spell(
        texts: list[str], truncation: bool, max_length: int, padding: bool = False, return_tensors: str = ""
    ) -> Any:
        rows = [[1 + ord(letter) % 9 for letter in text][:max_length] for text in texts]
        masks = [[1] * len(row) for row in rows]
        if not padding:
            return {"input_ids": rows, "attention_mask": masks}
        width = max(map(len, rows))
        padded = {"input_ids": rows, "attention_mask": masks}
        return {name: torch.tensor([row + [0] * (width - len(row)) for row in of]) for name, of in padded.items()}

    loader = build(["abc", "a", "abcdefg"], spell, 1, 5, 0.025, False, 0, 2.0)
    assert texts_of(loader) == [["abcdefg"], ["abc"], ["a"]]
    assert loader.truncated == 1
    assert list(build([], spell)) == []
    assert len(build([], spell)) == 0


def no_mask(texts: list[str], **options: Any) -> Any:
    return {"input_ids": torch.ones(len(texts), 3, dtype=torch.int64)}


def lists(texts: list[str], **options: Any) -> Any:
    return {"input_ids": [[1, 1]] * len(texts), "attention_mask": [[1, 1]] * len(texts)}


def always_wide(texts: list[str], **options: Any) -> Any:
    width = 9 if options.get("padding") else 2
    return dict.fromkeys(("input_ids", "attention_mask"), torch.ones(len(texts), width, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, r"^batch_size must be at least 1 text \(got 0\)"),
        ({"max_input_token_length": 0}, ValueError, r"^max_input_token_length must be at least 1 token \(got 0\)"),
        ({"num_workers": -1}, ValueError, r"^num_workers must be at least 0 \(got -1\)"),
        ({"threshold": 0}, ValueError, r"^threshold, the risk, must be between 0 and 1 \(got 0\)"),
        ({"texts": "one text"}, TypeError, r"takes several texts \(got a single str\)"),
        ({"texts": ["a", 3]}, TypeError, r"^a text must be a str \(text 1 is 3\)"),
        ({"texts": ["a", "", ""]}, ValueError, r"^text 1 has no tokens \(''\); leave such texts out \(2 here\)"),
        ({"tokenizer": None}, TypeError, r"^tokenizer must be one of transformers, .* \(got NoneType\)"),
        ({"tokenizer": tokenizers.bpe()}, TypeError, r"got Tokenizer\); around one of tokenizers goes PreTrainedToken"),
        ({"tokenizer": len}, TypeError, r"takes no keyword arguments"),
        ({"tokenizer": lambda texts, **_: texts}, TypeError, r"must return a dict with input_ids \(got list\)"),
        (
            {"tokenizer": no_mask},
            ValueError,
            r"^the tokenizer gives no attention_mask .*; say return_attention_mask=True",
        ),
        (
            {"return_attention_mask": False},
            ValueError,
            r"^the tokenizer gives no attention_mask \(it gives input_ids, ",
        ),
        ({"tokenizer": lists}, TypeError, r"^the tokenizer must give tensors for return_tensors='pt' \(got list\)"),
        ({"tokenizer": always_wide}, ValueError, r"2 tokens are planned, became a tensor of shape \(1, 9\)"),
        ({"tokenizer": tokenizers.llama(pad_token=None)}, ValueError, "does not have a padding token"),
        (
            {"padding": "max_length"},
            TypeError,
            r"^padding is not for tokenizer_kwargs: batches are padded to their longest",
        ),
        *(
            (
                {name: 0.5},
                TypeError,
                rf"^{name} is no keyword of build_dynamic_batch_dataloader{meant}, and .* names none of that name \(it "
                r"names text, .*add_special_tokens, .*\)\. A keyword that it takes unnamed is for functools\.partial",
            )
            for name, meant in {
                "thresold": r" \(did you mean threshold\?\)",
                "batch_range": r" \(did you mean batch_end_range\?\)",
                "add_special_token": r" \(did you mean add_special_tokens\?\)",
                "rows_at_once": "",
            }.items()
        ),
        ({"tokenizer": lambda texts, **settings: {}, "add_special_tokens": True}, TypeError, r"\(it names texts\)"),
        ({"seed": 0.5}, TypeError, r"^seed must be"),
        ({"shuffle": "no"}, TypeError, r"^shuffle must be True or False \(got 'no'\)"),
        ({"max_length": 9}, TypeError, r"^max_length is not for tokenizer_kwargs"),
        ({"pad_to_multiple_of": 0}, ValueError, r"^pad_to_multiple_of must be at least 1 token \(got 0\)"),
        ({"pad_to_multiple_of": 7}, ValueError, r"must be a multiple of pad_to_multiple_of=7 \(got 16\)"),
        (
            {"return_overflowing_tokens": True, "texts": ["a " * 40]},
            ValueError,
            r"^the tokenizer returned \d+ rows for 1 texts; leave out what makes several of one",
        ),
        ({"memory_model": 3}, TypeError, r"^memory_model must have largest_batch \(got 3\); a MemoryModel has"),
        (
            {"memory_model": MemoryModel.fit([(1, 4, 4), (2, 4, 8)], [10, 20])},
            ValueError,
            r"^this model knows peaks by source and target length",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"texts": ["a", "b c"], "tokenizer": tokenizers.gpt2(), "batch_size": 2, "max_input_token_length": 16}
    with pytest.raises(error, match=message):
        bf.build_dynamic_batch_dataloader(**{**given, "num_workers": 0, **options})


def test_a_file_that_holds_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "peaks.json").write_text("{}")
    with pytest.raises(ValueError, match=r"peaks\.json holds no memory model"):
        build(memory_model=tmp_path / "peaks.json")


SCRIPT = """
import multiprocessing
import brimful as bf
from tests import tokenizers

texts = ["word " * (number % 37) + "x" for number in range(600)]
settings = (8, 64, 0.2, False)
expected = list(bf.build_dynamic_batch_dataloader(texts, tokenizers.bert(), *settings, 0))
loader = bf.build_dynamic_batch_dataloader(texts, tokenizers.bert(), *settings, 2)
found = list(loader)
assert len(found) == len(expected) == len(loader)
for batch, other in zip(found, expected):
    assert batch["texts"] == other["texts"]
    assert all(batch[name].equal(other[name]) for name in other if name != "texts")
for batch in loader:
    break
iterator = iter(loader)
next(iterator)
del iterator
assert not multiprocessing.active_children(), multiprocessing.active_children()
left_at_work = iter(loader)
next(left_at_work)
print("done")
"""


def test_workers_collate_for_a_script_without_a_main_guard_and_leave_nothing_behind(tmp_path: Path) -> None:
    """As torch begins them by default, by fork; the last iterator is still at work when the script ends."""
    if torch.multiprocessing.get_start_method(allow_none=False) != "fork":
        pytest.skip("torch begins workers by running the script again, which needs a main guard")
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": f"{Path(bf.__file__).parents[1]}:{root}", "PATH": "", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    said = "" if torch.cuda.is_available() else f"{WITHOUT_PEAKS}\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", said), "said once"


def test_what_workers_need_can_be_sent_to_them_where_they_are_no_forks() -> None:
    loader = build(TEXTS, tokenizers.byt5(), 4, 32)
    texts, tokenized = pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn)))
    first = next(iter(loader))
    again = tokenized([texts[TEXTS.index(text)] for text in first["texts"]])
    assert again["texts"] == first["texts"]
    assert again["input_ids"].equal(first["input_ids"])


# -- with a model that generates ----------------------------------------------------------------------------------------


def small_decoder() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def test_a_decoder_generates_for_left_padded_batches_in_parts_what_it_does_for_each_text_alone() -> None:
    """The loader's sizes are a forecast; what does not fit all the same is split by the guard."""
    tokenizer, model = tokenizers.gpt2(padding_side="left"), small_decoder()
    texts = TEXTS[:60]
    settings: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    alone = {}
    for text in texts:
        given = tokenizer([text], return_tensors="pt", truncation=True, max_length=32)
        alone[text] = model.generate(**given, **settings)[0, -4:].tolist()
    device = SimulatedOOM(10 * 300)  # scores of 10 samples
    generate = oom_safe_generate(model, logits_processor=[lambda ids, scores: device(scores)], **settings)
    found = {}
    for batch in build(texts, tokenizer, 8, 32, 0.2, memory_model=MODEL):
        found |= dict(zip(batch["texts"], generate(batch)[:, -4:].tolist(), strict=True))
    assert found == alone
    assert generate.stats.ooms > 0
    assert generate.stats.split > 1


# -- learning -----------------------------------------------------------------------------------------------------------


class Measured:
    """What a device says, without one: peaks of the shapes that the loop ran; None every fifth time."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.ran: tuple[int, int] | None = None

    def begin(self) -> None:
        self.ran = None

    def end(self, caught: int = 0) -> float | None:
        assert self.ran is not None
        self.shapes.append(self.ran)
        return None if len(self.shapes) % 5 == 0 else actual(*self.ran)


def actual(batch: int, length: int) -> float:
    """Less than half of what the model was fitted to: there is room to learn."""
    return 1_000 + batch * 20 * length


def learning_loader(num_workers: int, shuffle: bool = False, **options: Any) -> tuple[DynamicBatchDataLoader, Measured]:
    texts = [text for text in TEXTS if len(text) > 3] * 3
    tokenized = TextCollator(tokenizers.gpt2(), 64, options)
    lengths = tokenized.lengths(texts).clip(max=64)
    order, measured = longest_first(lengths), Measured()
    sizes = FirstBatchSizes(MODEL, 4, int(lengths.max()), risk=0.1)
    batches = DynamicBatches(order, lengths[order], sizes, 42 if shuffle else None, measured)  # type: ignore[arg-type]
    return DynamicBatchDataLoader(texts, batches, tokenized, num_workers, 0), measured


def shapes_of(loader: DynamicBatchDataLoader, measured: Measured) -> list[tuple[int, int]]:
    found = []
    for batch in loader:
        rows, length = batch["input_ids"].shape
        measured.ran = (rows, length)
        found.append((rows, length))
    return found


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_are_cut_by_all_peaks_before_however_many_are_read_ahead(num_workers: int) -> None:
    loader, measured = learning_loader(num_workers)
    found = shapes_of(loader, measured)
    known = [FirstBatchSizes(MODEL, 4, found[0][1], risk=0.1)]  # after so many peaks
    for number, shape in enumerate(found, 1):
        known.append(known[-1] if number % 5 == 0 else known[-1].learnt(*shape, actual(*shape)))
    for number in range(1, len(found) - 1):
        rows, length = found[number]
        assert rows == known[number].rows(length)
    assert loader.memory_model == known[-1].model != MODEL
    assert sum(rows for rows, _ in found) == len(loader.dataset)  # type: ignore[arg-type]
    cut = [len(numbers) for numbers in loader.batch_sampler]  # type: ignore[union-attr]
    lengths = [length for _, length in found]
    assert cut[1] == known[-1].rows(lengths[1]), "the next epoch begins with what was learnt"
    with pytest.raises(
        TypeError, match=r"^the number of batches is not known: their sizes follow the peaks that memory_"
    ):
        len(loader)


@pytest.mark.parametrize("options", [{}, {"return_length": True}], ids=str)
def test_texts_that_were_read_ahead_are_cut_anew_unless_a_column_would_change(options: dict[str, Any]) -> None:
    tokenizer = tokenizers.gpt2()
    at_once = [rows for rows, _ in shapes_of(*learning_loader(0, **options))]
    loader, measured = learning_loader(1, **options)
    found = []
    for batch in loader:
        given = tokenizer(batch["texts"], padding=True, truncation=True, max_length=64, return_tensors="pt", **options)
        assert list(batch) == [*given, "texts"]
        assert all(batch[name].equal(given[name]) for name in given)
        measured.ran = tuple(batch["input_ids"].shape)
        found.append(len(batch["texts"]))
    assert sum(found) == len(loader.dataset)  # type: ignore[arg-type]
    assert (found == at_once) == (not options), "lengths are counted with padding: such batches stay"


def test_shuffled_batches_are_cut_when_the_epoch_begins() -> None:
    loader, measured = learning_loader(0, shuffle=True)
    first = shapes_of(loader, measured)
    batches = learning_loader(0)[0].batch_sampler
    assert sorted(rows for rows, _ in first) == sorted(map(len, batches))  # type: ignore[arg-type]
    assert first != sorted(first, key=lambda shape: -shape[1])
    assert loader.memory_model != MODEL
    cut = sorted(map(len, loader.batch_sampler))  # type: ignore[arg-type]
    assert cut == sorted(rows for rows, _ in shapes_of(loader, measured))


def test_what_takes_no_peaks_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fixed = replace(MemoryModel.pretrained(), growth=None)
    assert len(build(memory_model=fixed)) > 0
    with pytest.raises(TypeError, match=r"^peak_bytes is for a model that learns, in bytes and with refined"):
        build(memory_model=fixed, peak_bytes=lambda: 1.0)
    with pytest.raises(TypeError, match=r"^peak_bytes must be a function that gives the peak in bytes \(got 3\)"):
        build(peak_bytes=3)
    for model in (MODEL, None):
        with pytest.raises(TypeError, match="the number of batches is not known"):
            len(build(memory_model=model))


class Device:
    """Reports the peak since it was last asked, of steps that take so much by the token; it may run out of memory."""

    def __init__(self, fixed: float = 0.0, holds: float = float("inf")) -> None:
        self.fixed, self.holds, self.peak = fixed, holds, 0.0

    def step(self, batch: Any, scale: float = 1.0) -> None:
        rows, length = batch["input_ids"].shape
        needed = self.fixed + rows * (400 + 20 * length)
        if needed > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        self.peak = max(self.peak, needed)

    def peak_bytes(self) -> float | None:
        peak, self.peak = self.peak, 0.0
        return peak or None


LONG = [f"{number} " + "word fox dog "[: number * 5 % 13] * (number % 23) + "x" for number in range(4_000)]


@pytest.mark.parametrize("fixed", [0.0, 20_000.0])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_by_default_the_first_batches_say_how_large_the_next_may_be(fixed: float, num_workers: int) -> None:
    device = Device(fixed)
    loader = build(LONG, None, 32, 64, peak_bytes=device.peak_bytes, num_workers=num_workers)
    shapes, peaks = [], []
    for batch in loader:
        device.step(batch)
        shapes.append(batch["input_ids"].shape)
        peaks.append(device.peak)
    sizes = [rows for rows, _ in shapes]
    assert sum(sizes) == len(LONG)
    assert sizes[0] == 32
    assert max(peaks) == peaks[0]
    assert all(rows < 64 for rows in sizes[:3]), "no doubling before two peaks confirm it"
    assert sum(peaks[20:-1]) / len(peaks[20:-1]) > 0.8 * peaks[0]
    assert loader.memory_model.unit == "bytes"
    again = [batch["input_ids"].shape[0] for batch in loader]
    assert sum(again) == len(LONG)


def test_texts_lose_no_token_where_the_mask_hides_the_token_that_also_pads() -> None:
    def tokenizer(texts: list[str], padding: bool = False, **settings: Any) -> dict[str, Any]:
        made = dict(tokenizers.bert()(texts, padding=padding, **settings))
        if padding:
            made["attention_mask"] *= made["input_ids"] != tokenizers.bert().sep_token_id
        return made

    device = Device()
    for batch in build(LONG[:200], tokenizer, 8, 64, peak_bytes=device.peak_bytes, num_workers=1):
        device.step(batch)
        assert batch["input_ids"].equal(TextCollator(tokenizer, 64, {})(batch["texts"])["input_ids"])


def test_a_batch_that_ran_out_of_memory_is_split_and_the_model_learns_from_it() -> None:
    """The first batch fits as it must; the device is then taken by somebody else."""
    device = Device()
    loader = build(LONG, None, 32, 64, peak_bytes=device.peak_bytes)
    guard = oom_guard(device.step, parameters=())
    seen, ooms, known = [], [], None
    for number, batch in enumerate(loader):
        if number == 12:
            known, device.holds = loader.memory_model, 0.7 * 32 * (400 + 20 * 64)
        before = guard.stats.ooms
        guard(batch)
        seen += batch["texts"]
        ooms += [(number, len(batch["texts"]))] * (guard.stats.ooms - before)
        if number == 13:
            assert loader.memory_model.predict(32, 64) > known.predict(32, 64)
    assert sorted(seen) == sorted(LONG)
    assert ooms[0] == (12, 32)
    assert sum(rows == 32 for _, rows in ooms) <= 4, (
        "one for each tenth of length, until the first one's size fits again"
    )
    assert sum(rows > 32 for _, rows in ooms) <= 2, "smaller ones come after"
    assert guard.stats.split < number / 2


def test_where_a_batch_is_split_beforehand_its_peak_is_not_that_of_its_shape() -> None:
    """The limits that a guard learnt in a run before split some batches."""
    device = Device()
    guard = oom_guard(device.step, parameters=())
    learnt = [(len(MODEL.margin), 0)]
    guard.load_state_dict({"version": 1, "limits": [["samples", 20, [64, 64]]]})
    loader = build(LONG, None, 32, 64, peak_bytes=device.peak_bytes, memory_model=MODEL)
    for batch in loader:
        learnt.append((len(loader.memory_model.margin), guard.stats.split))  # type: ignore[attr-defined]
        guard(batch)
    changes = {
        (peaks - peaks_before, split - split_before)
        for (peaks_before, split_before), (peaks, split) in pairwise(learnt[1:])
    }
    assert changes == {(1, 0), (0, 1)}, "either it is split, or its peak is learnt"


@pytest.mark.parametrize(
    ("peak", "message"),
    [
        (-1.0, r"^what peak_bytes gives must be positive \(got -1.0\)"),
        (1e308, r"^what peak_bytes gives must be at most 1,152,921,504,606,846,976 bytes \(got 1e\+308\)"),
    ],
)
def test_what_a_device_reports_must_be_a_peak(peak: float, message: str) -> None:
    batches = iter(build(LONG, None, 32, 64, peak_bytes=lambda: peak))
    next(batches)
    with pytest.raises(ValueError, match=message):
        next(batches)


def test_without_peaks_the_prior_stays_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    warn_once.cache_clear()
    texts = TEXTS[:100:7]
    build(texts, None, 8, 512, memory_model=MODEL)
    build(texts, None, 8, 512, peak_bytes=lambda: None)
    loaders = build(texts, None, 8, 512), build(texts, None, 8, 512)
    assert [record.getMessage() for record in caplog.records] == [WITHOUT_PEAKS]
    assert all(name in WITHOUT_PEAKS for name in ("memory_model=", "peak_bytes=", "brimful memory probe"))
    assert len(loaders[0]) == len(texts_of(loaders[0]))
    assert loaders[0].memory_model == MemoryModel.pretrained()
