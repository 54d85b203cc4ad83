"""States that do not fit are refused: by name, with both sides."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brimful as bf
from brimful.core.header import header_difference
from brimful.tables.blocks import Sample
from tests import strategies as draw
from tests.core.test_iterator import ROWS, same, taken


def seeded(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "drawn": int(rng.integers(9))}


def write(folder: Path, names: str = "ab", rows: list[Sample] = ROWS) -> str:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        (folder / f"{name}.jsonl").write_bytes(draw.json_lines(rows[number :: len(names)]))
    return f"{folder}/*.jsonl"


def words(texts: list[str]) -> list[list[int]]:
    return [[1] * len(text) for text in texts]


def other(sample: Sample) -> Sample:
    return sample


def saved(data: bf.Dataset | bf.Batches, count: int = 3) -> dict[str, Any]:
    with data.iter() as it:
        taken(it, count)
        state: dict[str, Any] = json.loads(json.dumps(it.state_dict()))
        return state


samples = bf.from_sequence(ROWS)
mixed = {by: bf.interleave_datasets([samples, samples], by=by) for by in ("samples", "tokens")}
batches = samples.batch_by_tokens(16, window=8)
DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "the unit of a mixture": (
        mixed["samples"],
        mixed["tokens"],
        "interleave_datasets.by was 'samples' when it was saved and is 'tokens' here",
    ),
    "the unit of a mixture of streams": (
        bf.interleave_datasets([samples.stream(), samples], by="tokens"),
        bf.interleave_datasets([samples.stream(), samples]),
        "interleave_datasets.by was 'tokens' when it was saved and is 'samples' here",
    ),
    "the length column of a mixture": (
        mixed["tokens"],
        bf.interleave_datasets([samples, samples], by="tokens", length_column="labels"),
        "interleave_datasets.length_column was 'input_ids' when it was saved and is 'labels' here",
    ),
    "a stage more": (
        samples,
        samples.take(9),
        "pipeline was from_sequence when it was saved and is from_sequence > take here",
    ),
    "a stage less": (
        samples.take(9),
        samples,
        "pipeline was from_sequence > take when it was saved and is from_sequence here",
    ),
    "another count": (samples.take(9), samples.take(8), "take.n was 9 when it was saved and is 8 here"),
    "the same, streamed": (
        samples.map(other).take(9),
        samples.map(other).take(8),
        "take.n was 9 when it was saved and is 8 here",
    ),
    "below": (
        samples.take(9).skip(1),
        samples.take(8).skip(1),
        "take.n was 9 when it was saved and is 8 here",
    ),
    "another seed": (
        samples.shuffle(5, seed=1),
        samples.shuffle(5),
        "shuffle.seed was 1 when it was saved and is 42 here",
    ),
    "another buffer": (
        samples.shuffle(5),
        samples.shuffle(6),
        "shuffle.buffer_size was 5 when it was saved and is 6 here",
    ),
    "another function": (
        samples.map(other),
        samples.map(dict),
        r"map.fn was [\w.]+:other when it was saved and is builtins:dict here; .* allow={'functions'}",
    ),
    "repeats": (
        samples,
        bf.from_sequence(ROWS, repeat=True),
        "pipeline was from_sequence when it was saved and is from_sequence > repeat here",
    ),
    "other rows": (
        samples,
        bf.from_sequence(ROWS[1:]),
        "from_sequence.rows was 20 when it was saved and is 19 here",
    ),
    "other values": (
        samples,
        bf.from_sequence([{**row, "id": 0} for row in ROWS]),
        "from_sequence.checksums.id was [0-9]+ when it was saved and is [0-9]+ here; .* by allow=.'rows'.",
    ),
    "another tokenizer": (
        samples.tokenize(draw.letters),
        samples.tokenize(words),
        "tokenize.tokenizer was '[^']+[0-9a-f]+.' when it was saved and is '[^']+[0-9a-f]+.' here",
    ),
    "other tokenizer settings": (
        samples.tokenize(draw.letters),
        samples.tokenize(draw.letters, output_column="ids"),
        r"tokenize.output_column\[0\] was 'input_ids' when it was saved and is 'ids' here",
    ),
    "another budget": (
        batches,
        samples.batch_by_tokens(32, window=8),
        "batch.policy.max_tokens was 16 when it was saved and is 32 here",
    ),
    "another size, and so another window by default": (
        samples.batch(4),
        samples.batch(5),
        "batch.policy.n was 4 when it was saved and is 5 here",
    ),
    "another window, and so no longer in arrival order": (
        samples.batch(4),
        samples.batch(4, window=8),
        "batch.window was 1024 when it was saved and is 8 here",
    ),
    "other micro batches": (
        samples.batch(8, micro_batches=2),
        samples.batch(8),
        r"batch.policy.n was 4 when it was saved and is 8 here; .* micro_batches=k counts here too: each of the k batches has a "
        "k-th of the size that you gave",
    ),
    "other micro batches of rows": (
        samples.pack(16, rows=2),
        samples.pack(16, rows=2, micro_batches=2),
        "pack.rows was 2 when it was saved and is 1 here; .* micro_batches=k counts here too",
    ),
    "micro batches of the same size": (
        samples.pack(16, rows=1),
        samples.pack(16, rows=2, micro_batches=2),
        r"pack.shuffle_batches was True when it was saved and is 'stratified' here; say shuffle_batches=True\. True means "
        "'stratified' with micro_batches of 2 or more.* leave them out, as the run that saved this state did",
    ),
    "other weights": (
        bf.interleave_datasets([samples, samples], weights=[1, 2]),
        bf.interleave_datasets([samples, samples], weights=[1, 3]),
        r"interleave_datasets.weights\[1\] was 2 when it was saved and is 3 here; .* by allow={'weights'}$",
    ),
    "streams for a mixture of indexed data": (
        mixed["samples"],
        bf.interleave_datasets([samples.stream().take(20), samples], weights=[1, 2]),
        "interleave_datasets.runs was 'by place' when it was saved and is 'forward' here; a mixture of indexed data by samples "
        r"finds its rows by place, another one, or its stream\(\), runs forward\. A state cannot turn one into the other: go on",
    ),
    "indexed data for a mixture of streams": (
        bf.interleave_datasets([samples.stream().take(20), samples], weights=[1, 2]),
        bf.interleave_datasets([samples.stream(), samples.stream()]),
        "interleave_datasets.runs was 'forward' when it was saved and is 'by place' here; ",
    ),
    "another data set": (
        samples + samples,
        samples + samples.take(3),
        r"concat_datasets.datasets\[1\] was from_sequence when it was saved and is from_sequence > take here",
    ),
    "batches for samples": (
        batches,
        samples,
        "pipeline was from_sequence > batch when it was saved and is from_sequence here",
    ),
}


def test_tokenizers_that_differ_in_rules_only_are_told_apart() -> None:
    digests = "0123456789abcdef", "fedcba9876543210"
    one, two = (f"BPE of 3 tokens ({digest})" for digest in digests)
    found = header_difference(one, two)
    assert found is not None
    assert found.ours == f"'{two}' (as many tokens, but other rules, special tokens or padding)"
    larger = header_difference(one, f"BPE of 4 tokens ({digests[1]})")
    assert larger is not None
    assert larger.ours == f"'BPE of 4 tokens ({digests[1]})'"


@pytest.mark.parametrize(("one", "two", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_state_of_another_pipeline_is_refused_by_name(one: Any, two: Any, message: str) -> None:
    state = saved(one)
    with pytest.raises(bf.StateError, match=f"^this state belongs to another pipeline: .*{message}"):
        two.iter(state)


@pytest.mark.parametrize("extra", [{}, {"allow": ()}, {"allow": ("weights",)}])
def test_other_shards_are_refused(tmp_path: Path, extra: dict[str, Any]) -> None:
    here = write(tmp_path / "here")
    state = saved(bf.from_files(here))
    more = write(tmp_path / "more", "abc")
    digest = r"with the digest [0-9a-f]{16}"
    remedy = (
        r"; a shard was added, .* not each of them\): go on with .* or with these all the same by allow=\{'urls'\}$"
    )
    message = rf"from_files\.urls was 2 shards {digest} when it was saved and is 3 shards {digest} here{remedy}"
    with pytest.raises(bf.StateError, match=message):
        bf.from_files(more).iter(state, **extra)
    for name in ("a", "b"):
        longer = write(tmp_path / f"longer {name}")
        with open(tmp_path / f"longer {name}" / f"{name}.jsonl", "ab") as file:
            file.write(b"\n")
        with pytest.raises(bf.StateError, match=message.replace("3 shards", "2 shards")):
            bf.from_files(longer).iter(state, **extra)


def test_a_corpus_may_move_and_urls_may_differ_where_that_is_allowed(tmp_path: Path) -> None:
    here, there = write(tmp_path / "here"), write(tmp_path / "there")
    everything = list(bf.from_files(here))
    same(taken(bf.from_files(there).iter(saved(bf.from_files(here)))), everything[3:])
    renamed = write(tmp_path / "renamed", "cd")
    with pytest.raises(bf.StateError, match=r"from_files\.urls"):
        bf.from_files(renamed).iter(saved(bf.from_files(here)))
    same(taken(bf.from_files(renamed).iter(saved(bf.from_files(here)), allow={"urls"})), everything[3:])


def test_weights_may_differ_where_that_is_allowed() -> None:
    def mixed(*weights: float) -> bf.Dataset:
        return bf.interleave_datasets([samples, samples.map(other)], weights=weights)

    with draw.small(4):
        state = saved(mixed(1, 1), 4)
        with pytest.raises(
            bf.StateError,
            match=r"interleave_datasets\.weights\[1\] was 1 when it was saved and is 3 here; .* by allow=\{'weights'\}$",
        ):
            mixed(1, 3).iter(state)
        found = [row["id"] for row in mixed(1, 3).iter(state, allow={"weights"})]
    assert found[:6] == [2, 2, 3, 4, 5, 3], "from here on one row for three of the other"


def test_weights_of_data_that_end_may_differ_where_they_are_mixed_as_streams() -> None:
    def mixed(rows: bf.Dataset, *weights: float) -> bf.Dataset:
        return bf.interleave_datasets([rows, samples], weights=weights, stop="all")

    assert mixed(samples.stream(), 1, 1).kind == "indexed"
    streams = samples.stream().take(len(samples))
    for kind in (lambda *weights: mixed(streams, *weights), lambda *weights: mixed(samples, *weights).stream()):
        before = taken(kind(1, 1).iter(), 4)
        after = [*kind(1, 3).iter(saved(kind(1, 1), 4), allow={"weights"})]
        assert sorted(row["id"] for row in before + after) == sorted(row["id"] for row in [*samples, *samples])


def test_what_does_not_change_the_order_is_not_compared(tmp_path: Path) -> None:
    urls = write(tmp_path / "here")

    def pipeline(**runtime: Any) -> bf.Batches:
        workers = runtime.pop("max_workers", 1)
        return bf.from_files(urls, **runtime).tokenize(draw.letters, max_workers=workers).batch_by_tokens(16, window=8)

    expected = taken(pipeline().iter())[3:]
    state = saved(pipeline())
    same(taken(pipeline(n_standby_shards=0, timeout_seconds=5.0, max_workers=0).prefetch(3).iter(state)), expected)
    same(taken(pipeline().iter(saved(pipeline().prefetch(3)))), expected)


def test_the_seed_of_a_source_that_is_not_shuffled_is_not_compared(tmp_path: Path) -> None:
    rows: Callable[..., bf.Dataset] = partial(bf.from_sequence, ROWS)
    files: Callable[..., bf.Dataset] = partial(bf.from_files, write(tmp_path / "here"))
    for source, setting in ((rows, "shuffle"), (files, "shuffle_shards")):
        expected = taken(source(seed=1).batch(2).iter())[3:]
        same(taken(source(seed=2).batch(2).iter(saved(source(seed=1).batch(2)))), expected)
        on = {setting: True}
        with pytest.raises(bf.StateError, match="seed was 1 when it was saved and is 2 here"):
            source(seed=2, **on).iter(saved(source(seed=1, **on)))


REPLAYED: dict[str, tuple[int, Callable[[bf.Dataset], Any], str]] = {
    "samples": (3, lambda data: data, "\\w+ gave other rows at 3 rows into a block"),
    "shuffle": (5, lambda data: data.shuffle(9), "\\w+ gave other rows at window 0"),
    "batches": (3, lambda data: data.batch(2, window=9), "\\w+ gave other rows at window 0"),
    "windows": (3, lambda data: data.batch(1, window=1), "\\w+ gave other rows at 3 rows into a block"),
    "chunks": (2, lambda data: data.drop("labels").concat_chunk(7), "\\w+ gave other rows"),
    "packs": (1, lambda data: data.drop("labels").pack_chunk(20), "\\w+ gave other rows"),
    "copies": (5, lambda data: data.flat_map(thrice), "\\w+ gave other rows at 4 rows into a block"),
    "a mix": (
        5,
        lambda data: bf.interleave_datasets([data, samples]),
        "\\w+ gave other rows at 2 rows into a block",
    ),
}


def thrice(sample: Sample) -> list[Sample]:
    return [sample] * 3


@pytest.mark.parametrize(("count", "pipeline", "message"), REPLAYED.values(), ids=REPLAYED)
def test_an_edited_shard_is_refused(
    count: int, pipeline: Callable[[bf.Dataset], Any], message: str, tmp_path: Path
) -> None:
    def run() -> Any:
        return pipeline(bf.from_files(urls, n_active_shards=1).tokenize(draw.letters))

    with draw.small(4):
        urls = write(tmp_path / "here", "a")
        state = saved(run(), count)
        taken(run().iter(state))
        write(tmp_path / "here", "a", [{**row, "text": row["text"].upper()} for row in ROWS])
        with pytest.raises(bf.StateError, match=f"^{message}") as error:
            taken(run().iter(state))
    assert re.search(
        r" than when this state was saved: column '\w+' had the crc32 [0-9a-f]{8} then, and has [0-9a-f]{8} now\. A shard was "
        r"edited, a tokenizer or a function is another one, or a function is random\. Go on with the data and code that saved "
        r"it, go on with these rows by allow=\{'rows'\}, or start anew\. \(allow=",
        str(error.value),
    )


@pytest.mark.parametrize(("count", "pipeline", "message"), REPLAYED.values(), ids=REPLAYED)
def test_a_random_function_is_refused(count: int, pipeline: Callable[[bf.Dataset], Any], message: str) -> None:
    calls = itertools.count()

    def fickle(sample: Sample) -> Sample:
        return {**sample, "input_ids": (ids := [next(calls)] * 3), "labels": ids}

    def run() -> Any:
        return pipeline(bf.from_iterable(ROWS * 3).map(fickle))

    with draw.small(4):
        state = saved(run(), count)
        with pytest.raises(bf.StateError, match=f"^{message}"):
            taken(run().iter(state))


@pytest.mark.parametrize("count", [3, 5, 6])
def test_rows_that_are_gone_are_refused(count: int) -> None:
    pipelines: list[Callable[[bf.Dataset], Any]] = [lambda data: data.shuffle(9), lambda data: data.batch(2, window=9)]
    for pipeline in pipelines:
        with draw.small(6):
            state = saved(pipeline(bf.from_iterable(ROWS)), count)
            with pytest.raises(bf.StateError, match=r"gave other rows|the iterable has \d+ samples, but this state"):
                taken(pipeline(bf.from_iterable([])).iter(state))


def test_settings_may_be_numpy_numbers() -> None:
    def pipeline(number: Callable[[int], Any]) -> bf.Batches:
        data = bf.from_sequence(ROWS, shuffle=True, seed=number(3)).map(seeded, seed=number(4)).skip(number(1))
        data = data.stride(number(2), number(1)).shuffle(number(5), seed=number(6)).take(number(9))
        mixed = bf.interleave_datasets([data.drop("drawn"), samples], weights=[number(1), number(2)])
        return mixed.batch_by_tokens(number(16), window=number(8), seed=number(7)).take(number(6))

    expected = list(pipeline(int))
    for count in range(6):
        state = saved(pipeline(np.int64), count)
        assert state == saved(pipeline(int), count)
        same(taken(pipeline(np.int64).iter(state)), expected[count:])
    with pytest.raises(bf.StateError, match=r"take\.n was 9 when it was saved and is 8 here"):
        samples.take(8).iter(saved(samples.take(np.int64(9))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], r"a state is a dict of version, header, position and crc32, as state_dict\(\) returns it \(got list\)"),
        ({"position": 1}, r"a state is a dict of version, header, position and crc32, .* \(got \['position'\]\)"),
        (
            {"version": 99, "header": None, "position": 1},
            "this state has version 99, but this release .* reads version 5",
        ),
    ],
)
def test_what_is_no_state_is_refused(state: Any, message: str) -> None:
    with pytest.raises(bf.StateError, match=f"^{message}"):
        samples.iter(state)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, np.float32("nan"), np.float64(0.5), np.int8(3)])
def test_a_state_fits_where_a_number_is_not_finite_or_is_numpys(value: float) -> None:
    def batches(value: float = value) -> bf.Batches:
        rows = bf.from_sequence([{"input_ids": [1] * length, "score": [0.5] * length} for length in (1, 2, 3, 4)])
        return rows.pad(4, {"input_ids": 0, "score": value}).batch(2, window=2)

    it = batches().iter()
    next(it)
    state = it.state_dict()
    text = json.dumps(state, allow_nan=False)
    assert json.loads(text) == state
    assert len(list(batches().iter(json.loads(text)))) == 1
    with pytest.raises(bf.StateError, match=r"values\.score was "):
        batches(9.0).iter(state)


def test_settings_that_change_no_order_never_refuse_a_state() -> None:
    rows = bf.from_sequence([{"input_ids": [1] * length} for length in (3, 1, 2, 4, 2, 3)])
    for verb in ("batch", "pack"):
        size = {"batch": 2, "pack": 4}[verb]

        def batches(verb: str = verb, size: int = size, **settings: Any) -> bf.Batches:
            return getattr(rows, verb)(size, window=6, shuffle_batches=False, **settings)

        it = batches().iter()
        next(it)
        rest = [batch["lengths"].tolist() for batch in batches().iter(it.state_dict())]
        other = batches(seed=7, balance_group=2, pad_values={"input_ids": 9}).iter(it.state_dict())
        assert [batch["lengths"].tolist() for batch in other] == rest
        shuffled = getattr(rows, verb)(size, window=6, seed=7).iter()
        with pytest.raises(bf.StateError, match="seed was 7 when it was saved and is 8 here"):
            getattr(rows, verb)(size, window=6, seed=8).iter(shuffled.state_dict())


def test_a_word_of_allow_is_a_name_and_has_to_be_known(tmp_path: Path) -> None:
    state = saved(bf.from_files(write(tmp_path / "a")))
    moved = bf.from_files(write(tmp_path / "b", names="xy"))
    same(taken(moved.iter(state, allow="urls"), 1), taken(moved.iter(state, allow=["urls"]), 1))
    for wrong, name in (({"nonsense"}, "nonsense"), ("url", "url"), (["urls", "seed"], "seed")):
        for data in (moved, moved.batch(2)):
            with pytest.raises(
                ValueError,
                match=rf"^allow takes the names 'functions', 'rows', 'sources', 'urls', 'weights' \(got '{name}'\)$",
            ):
                data.iter(allow=wrong)


def test_another_function_is_allowed_where_it_gives_the_same_rows_for_those_that_were_taken() -> None:
    def chain(fn: Any) -> Any:
        return (
            bf.from_sequence([{"input_ids": [n] * (1 + n % 3)} for n in range(20)]).stream().map(fn).batch(2, window=8)
        )

    def one(sample: Any) -> Any:
        return sample

    def like_it(sample: Any) -> Any:
        return dict(sample)

    def another(sample: Any) -> Any:
        return {"input_ids": [7, *sample["input_ids"]]}

    it = chain(one).iter()
    next(it)
    state, rest = it.state_dict(), [batch["input_ids"].tolist() for batch in it]
    with pytest.raises(
        bf.StateError, match=r"by allow=\{'functions'\} if it gives the same rows for the rows that were taken"
    ):
        chain(like_it).iter(state)
    found = chain(like_it).iter(state, allow={"functions"})
    assert [batch["input_ids"].tolist() for batch in found] == rest
    with pytest.raises(bf.StateError, match=r"\(allow=\{'functions'\} and allow=\{'urls'\} need the same rows here\)$"):
        list(chain(another).iter(state, allow={"functions"}))


def test_a_shard_that_is_added_within_the_window_is_named_as_the_cause(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(
            "".join(f'{{"n": 1{number}{row}, "input_ids": [1]}}\n' for row in range(30))
        )

    def loader(last: str) -> Any:
        return bf.from_files(f"{tmp_path}/[0-{last}].jsonl").batch(4, window=20).loader()

    before = loader("1")
    for _ in before:
        state = before.state_dict()
        break
    after = loader("2")
    after.load_state_dict(state, allow={"urls"})
    message = (
        r"window 0 \(read from shard 0\.jsonl, line 1 on\) than .*\. The list of shards has changed \(from 2 to 3\), and a new "
        r"shard may be read in this window: add shards between two epochs\."
    )
    with pytest.raises(bf.StateError, match=message):
        list(after)
    before = loader("1")
    assert sum(len(batch["n"]) for batch in before) == 60
    after = loader("2")
    after.load_state_dict(before.state_dict(), allow={"urls"})
    assert sum(len(batch["n"]) for batch in after) == 90, "between two epochs"


@pytest.mark.parametrize("taken", [1, 70])
def test_shards_that_were_taken_away_are_named_as_such(tmp_path: Path, taken: int) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text("".join(f'{{"n": 1{number}{row}}}\n' for row in range(30)))

    def data(last: str) -> bf.Dataset:
        return bf.from_files(f"{tmp_path}/[0-{last}].jsonl", n_active_shards=4)

    it = data("3").iter()
    for _ in range(taken):
        next(it)
    message = {
        1: r"^from_files gave other rows at .*\. The list of shards has changed \(from 4 to 3\), so put back those that were "
        r"taken away\. Or go on with the data that saved it, or start anew$",
        70: r"^this state was saved after 4 shards, but there are 3: shards were taken away\. .* Put them back, or begin anew$",
    }[taken]
    with pytest.raises(bf.StateError, match=message):
        list(data("2").iter(it.state_dict(), allow={"urls"}))


def test_a_list_of_numbers_is_told_as_it_is() -> None:
    found = header_difference({"windows": [[8, 0.5]]}, {"windows": []})
    assert found is not None
    assert (found.saved, found.ours) == ("[[8, 0.5]]", "[]")
