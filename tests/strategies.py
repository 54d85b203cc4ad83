"""How to draw every stage: data for it to run over, settings for it to run with, and chains of them.

A new stage gets one line, under what it reads; `test_law.py` does the rest.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar
from unittest.mock import patch

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import brimful as bf
from brimful.arrays.collated import LaidOut
from brimful.arrays.columns import ColumnRules
from brimful.arrays.nested import Nested
from brimful.arrays.padded import Padded
from brimful.async_loader import Loaded
from brimful.batching.batch import Batch
from brimful.batching.facts import BatchFacts
from brimful.batching.items import EnumerateItems, MapItems, TakeItems
from brimful.batching.micro_batches import MicroBatches
from brimful.batching.placement import Ranks
from brimful.batching.planners import ByKey, ByPacking, ByPolicy
from brimful.batching.planning import Batched, PlannedWindows
from brimful.batching.round_robin import RoundRobin
from brimful.batching.shared import Shared
from brimful.batching.shuffle import Shuffle
from brimful.batching.steps import Steps
from brimful.batching.windows import Buffered, Planned
from brimful.core.ahead import Ahead
from brimful.core.facts import Facts, facts_of, following
from brimful.core.repeat import Repeat
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, running
from brimful.encoding.encoders import chat_encoder_for, encoder_for
from brimful.index.fetched import FetchSamples
from brimful.index.indexed import Choose as IndexChoose
from brimful.index.indexed import ChooseSource as IndexChooseSource
from brimful.index.indexed import Indexed
from brimful.index.indexed import Repeat as IndexRepeat
from brimful.index.joined import Concat as IndexConcat
from brimful.index.joined import Interleave as IndexInterleave
from brimful.index.joined import Zip as IndexZip
from brimful.index.order import Shuffle as IndexShuffle
from brimful.index.order import Slice
from brimful.index.select import Filter as IndexFilter
from brimful.index.select import SplitMask
from brimful.index.select import TrainValidSplit as IndexTrainValidSplit
from brimful.index.sequence import FromSequence
from brimful.index.units import Placed
from brimful.index.units import Units as IndexUnits
from brimful.memory import MemoryModel
from brimful.plan import AttentionCost, CostBudget, FixedSize, MemoryBudget, Packed, Policy, StaticShapes, TokenBudget
from brimful.plan.schedule import Schedule, Segment
from brimful.rows import pace
from brimful.rows.buffer import Rebatch, Unbatch
from brimful.rows.chunks import Chunk, ConcatChunk, PackChunk, SlidingWindow
from brimful.rows.columns import AddBosEos, CausalLabels, Choice, Choose, EnsureBosEos, Pad, TextBytes, TrainValidSplit
from brimful.rows.counting import Enumerate, RowKeys, Skip, Stride, Take
from brimful.rows.functions import Filter, MapBlocks, SampleFunction, Scan
from brimful.rows.mixing import Concat, Interleave, Zip
from brimful.rows.parallel import Parallel
from brimful.rows.tokens import Chat, Tokenize
from brimful.rows.units import Units
from brimful.sources.files import FromFiles
from brimful.sources.iterable import FromIterable, FromTables
from brimful.tables.blocks import Block, Sample
from brimful.tables.hashes import Split
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import EMPTY
from brimful.tensors.bucketed import Bucketed, ToBuckets
from brimful.tensors.collate_fn import CollatedBy, Collator
from brimful.tensors.in_torch import in_torch
from brimful.tensors.on_device import OnDevice
from brimful.warmup import Synthetic

T = TypeVar("T")
Make: TypeAlias = Callable[[], Stage[Any]]
"""Makes a stage from scratch, with all that it reads from: the same one each time."""
Link: TypeAlias = Callable[..., Stage[Any]]
"""Puts a stage on another."""

# -- data ----------------------------------------------------------------------------------------------------------------

LONG: Final = 12
BOM: Final = b"\xef\xbb\xbf"
lengths = st.sampled_from([0, 1, 3, 8, 13]).flatmap(
    lambda count: st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, LONG]), min_size=count, max_size=count)
)
"""Of the samples of a small data set: none, one, many; empty ones, long ones."""


def sample(number: int, length: int) -> Sample:
    """Sample `number`: its values tell it apart from all others."""
    tokens = [100 * number + place for place in range(length)]
    text = "".join(chr(ord("a") + (number + place) % 26) for place in range(length))
    return {"id": number, "text": text, "input_ids": tokens, "labels": tokens}


def schema(token: pa.DataType) -> pa.Schema:
    tokens = pa.list_(token)
    return pa.schema([("id", pa.int64()), ("text", pa.string()), ("input_ids", tokens), ("labels", tokens)])


def samples_of(lengths: Iterable[int], first: int = 0) -> list[Sample]:
    return [sample(number, length) for number, length in enumerate(lengths, first)]


@dataclass(frozen=True)
class Blocks(Stage[Block]):
    """Rows in blocks of given sizes, what is left in a last one; an epoch's rows begin one later than the last one's."""

    lengths: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def facts(self, *inputs: Facts) -> Facts:
        """As of a stream of an index, which each rank can afford to read."""
        return following(self, from_index=True)

    def settings(self) -> dict[str, Any]:
        return {"lengths": [*self.lengths]}

    def start(self, epoch: int) -> State:
        return [epoch, 0]

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        epoch, number = at
        rows = samples_of(self.lengths, first=1000 * epoch)
        rows = rows[epoch:] + rows[:epoch]
        schema = [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("input_ids", pa.list_(pa.int32())),
            ("labels", pa.list_(pa.int32())),
        ]
        block = pa.RecordBatch.from_pylist(rows, pa.schema(schema))
        block = block.append_column(ORIGIN, origins("blocks", np.arange(len(rows)), "row"))
        ends = np.minimum(np.cumsum([*self.sizes, len(rows)]), len(rows)).tolist()
        for which in range(number, len(ends)):
            first = ends[which - 1] if which else 0
            piece = block.slice(first, ends[which] - first)
            piece = EMPTY if not piece.num_rows and which % 2 else piece
            yield piece, [epoch, which + 1] if which + 1 < len(ends) else END


sizes = st.sampled_from([0, 2, 6]).flatmap(
    lambda count: st.lists(st.integers(0, 4), min_size=count, max_size=count).map(tuple)
)
blocks = st.builds(lambda lengths, sizes: lambda: Blocks(tuple(lengths), sizes), lengths, sizes)
many_lengths = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, LONG]), min_size=30, max_size=60)


@contextmanager
def small(rows: int, size: int = 1 << 20) -> Iterator[None]:
    """Blocks, buffers and reads so small that little data has many of them."""
    limits = {
        "BLOCK_ROWS": rows,
        "ROWS": rows,
        "BLOCK_BYTES": size,
        "BUFFER_BYTES": size,
        "READ_BYTES": max(1, size // 4),
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("brimful")]
    patches = [
        patch.object(module, name, limits[name]) for module in modules for name in limits.keys() & vars(module).keys()
    ]
    try:
        for one in patches:
            one.start()
        yield
    finally:
        for one in patches:
            one.stop()


@contextmanager
def jumping_time(seed: int) -> Iterator[None]:
    """Time that jumps: a user's function seems to be quick or slow, so that its blocks end elsewhere in each run."""
    jumps, seconds = Random(seed), [0.0]

    def now() -> float:
        seconds[0] += jumps.choice([0.0, 0.0, 0.01, 0.05, 1.0])
        return seconds[0]

    with patch.object(pace, "now", now):
        yield


# -- files ---------------------------------------------------------------------------------------------------------------


@cache
def folder() -> Path:
    """A temporary folder; it goes when the process ends."""
    keep = tempfile.TemporaryDirectory(prefix="brimful-")
    _kept.append(keep)
    return Path(keep.name)


_kept: Final[list[tempfile.TemporaryDirectory[str]]] = []


def shard(text: bytes, extension: str) -> str:
    """The name of a file of this content."""
    path = folder() / f"{hashlib.sha256(text).hexdigest()[:16]}{extension}"
    if not path.exists():
        compress: dict[str, Callable[[bytes], bytes]] = {
            ".gz": lambda data: gzip.compress(data, mtime=0),
            ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
        }
        path.write_bytes(compress.get(path.suffix, bytes)(text))
    return str(path)


def json_lines(samples: list[Sample], blank: int = 0, newline: str = "\n", last_newline: bool = True) -> bytes:
    """Samples as lines, with a blank line after every `blank` of them."""
    lines = []
    for number, one in enumerate(samples, 1):
        lines.append(json.dumps(one))
        lines += [""] * (blank > 0 and number % blank == 0)
    text = newline.join(lines) + newline * (last_newline and bool(lines))
    return text.encode()


def by_columns(samples: list[Sample], extension: str, token: pa.DataType, rows: int) -> bytes:
    """Samples as a parquet file (.parquet), an Arrow file (.arrow) or stream (.ipc), in row groups or record batches of some
    rows; texts in dictionaries where the rows are odd in number."""
    table = pa.Table.from_pylist(samples, schema(token))
    if rows % 2:
        table = table.set_column(1, "text", table["text"].dictionary_encode())
    sink = io.BytesIO()
    if extension == ".parquet":
        pa.parquet.write_table(table, sink, row_group_size=rows, write_page_checksum=True)
    else:
        new = pa.ipc.new_file if extension == ".arrow" else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def cbor_items(samples: list[Sample]) -> bytes:
    return b"".join(map(cbor2.dumps, samples))


def records(samples: list[Sample], names: list[str], delimiter: str) -> bytes:
    """Samples as records of text under a header; in each second text a quote, a delimiter and a newline."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(names)
    for one in samples:
        odd = {"text": f'"{delimiter}\n' + one["text"]} if one["id"] % 2 else {}
        tokens = {name: " ".join(map(str, one[name])) for name in ("input_ids", "labels")}
        writer.writerow([(one | tokens | odd)[name] for name in names])
    return file.getvalue().encode()


def without_words(sample: Sample) -> Sample:
    """What `records` wrote, as it was."""
    for name in {"input_ids", "labels"} & set(sample):
        sample[name] = np.array(sample[name].split(), dtype=np.int32)
    return {**sample, "text": sample["text"].rpartition("\n")[2]}


def read_json(file: BinaryIO) -> Iterator[Sample]:
    """A format of a user's own."""
    for line in file.read().splitlines():
        if line.strip():
            yield json.loads(line)


LINES: Final = [".jsonl", ".jsonl.gz", ".jsonl.zst"]
ITEMS_OF_CBOR: Final = [".cbor", ".cbor.gz"]
BY_COLUMNS: Final = [".parquet", ".arrow", ".ipc"]


@st.composite
def files(draw: st.DrawFn, streams: bool = False) -> Make:
    """Shards of JSON lines and CBOR: empty ones, blank lines, compressed, with bad records that are skipped; or by columns,
    parquet and Arrow; or of all of these; in streams."""
    urls, number = [], 0
    bad = draw(st.booleans())
    kinds = draw(st.sampled_from([LINES, LINES, [*LINES, *ITEMS_OF_CBOR], BY_COLUMNS, [*LINES, *BY_COLUMNS]]))
    for counts in draw(st.lists(lengths, min_size=1, max_size=5)):
        extension = draw(st.sampled_from(kinds))
        samples, number = samples_of(counts, number), number + len(counts)
        if extension in BY_COLUMNS:
            token, rows = draw(st.sampled_from([pa.int32(), pa.int64()])), draw(st.sampled_from([1, 2, 5, 100]))
            urls.append(shard(by_columns(samples, extension, token, rows), extension))
            continue
        text, worse = cbor_items(samples), [b"\x07", b"\xa1\x61a\x61\xff", b"\xa1\x61a\x1c"]
        if extension in LINES:
            ends = draw(st.sampled_from(["\n", "\r\n"]))
            text = json_lines(samples, draw(st.integers(0, 3)), ends, draw(st.booleans()))
            worse = [b"{bad\n", b"\xff\n\n"]
        text = draw(st.sampled_from(worse)) + text if bad and draw(st.booleans()) else text
        urls.append(shard(text, extension))
    settings: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {
                "format": st.sampled_from(
                    ["auto", "jsonl", *([] if bad else [read_json])] if kinds is LINES else ["auto"]
                ),
                "columns": st.sampled_from([None, ("text", "input_ids")]),
                "shuffle_shards": st.booleans(),
                "n_active_shards": st.integers(1, 4),
                "n_standby_shards": st.integers(0, 2),
                "seed": st.integers(0, 1),
                "on_error": st.just("skip" if bad else "raise"),
                "streams": st.integers(1, min(3, len(urls))) if streams else st.none(),
            }
        )
    )
    return lambda: bf.from_files(urls, schema=schema(pa.int64()), **settings).stage


@st.composite
def tables(draw: st.DrawFn) -> Make:
    """Shards of CSV and TSV, tokens as words: columns in another order, newlines in quotes, bad records that are skipped."""
    urls, number = [], 0
    bad = draw(st.booleans())
    names = ["id", "text", "input_ids", "labels"]
    for counts in draw(st.lists(lengths, min_size=1, max_size=5)):
        ending = draw(st.sampled_from([".csv", ".tsv", ".csv.gz", ".tsv.zst"]))
        text = records(samples_of(counts, number), draw(st.permutations(names)), "\t" if ".tsv" in ending else ",")
        text = draw(st.sampled_from([b"", b"\n", BOM])) + text.replace(
            b"\r\n", draw(st.sampled_from([b"\r\n", b"\n", b"\r"]))
        )
        text += draw(st.sampled_from([b"few,\tfields\n", b'"never closed\n\n'])) if bad and draw(st.booleans()) else b""
        urls.append(shard(text, ending))
        number += len(counts)
    settings: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {
                "columns": st.sampled_from([None, ("text", "input_ids")]),
                "shuffle_shards": st.booleans(),
                "n_active_shards": st.integers(1, 4),
                "n_standby_shards": st.integers(0, 2),
                "on_error": st.just("skip" if bad else "raise"),
            }
        )
    )
    words = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names[1:])])
    return lambda: bf.from_files(urls, schema=words, **settings).map(without_words).stage


def store(lengths: tuple[int, ...]) -> str:
    """The name of a token store of samples of these lengths."""
    path = folder() / f"store-{hashlib.sha256(repr(lengths).encode()).hexdigest()[:16]}"
    if not path.exists():
        bf.from_sequence(samples_of(lengths)).to_store(path)
    return str(path)


@cache
def hugging_face(counts: tuple[int, ...], size: int, place: int) -> Any:
    """A data set of `datasets`: samples of these lengths, `size` in a record batch; as they are, backwards, or some twice."""
    import datasets

    rows = samples_of(counts)
    columns = datasets.Features.from_arrow_schema(schema(pa.int32()))
    parts = [datasets.Dataset.from_list(rows[first : first + size], columns) for first in range(0, len(rows), size)]
    parts = parts or [datasets.Dataset.from_dict({name: [] for name in columns}, columns)]
    data = datasets.concatenate_datasets(parts)
    numbers = [*range(len(rows))]
    data = data if not place else data.select(numbers[::-1] if place == 1 else [*numbers[::2], *numbers])
    list(bf.from_sequence(data))  # once used, theirs is pickled in some bytes less
    return data


# -- functions of a user's -----------------------------------------------------------------------------------------------


def in_even_epochs(sample: Sample) -> bool:
    return bool(sample["id"] // 1000 % 2 == 0)


def longer(sample: Sample) -> Sample:
    return {**sample, "input_ids": np.append(sample["input_ids"], np.int32(7)).astype(np.int32)}


def noisy(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "noise": int(rng.integers(1000))}


def unchanged(sample: Sample) -> Sample:
    return {
        name: values.astype(np.int32) if isinstance(values, np.ndarray) else values for name, values in sample.items()
    }


def is_odd(sample: Sample) -> bool:
    return len(sample["input_ids"]) % 2 == 1


def coin(sample: Sample, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


def refuses_some(sample: Sample) -> Any:
    if len(sample["input_ids"]) % 3 == 1:
        raise ValueError("a bad sample")
    return {"input_ids": sample["input_ids"], "text": "some"}


def refuses_some_of_many(sample: Sample) -> Iterator[Sample]:
    yield sample
    yield refuses_some(sample)


def never(sample: Sample) -> bool:
    return False


def tokens_if_any(sample: Sample) -> Sample | None:
    return {"input_ids": sample["input_ids"], "text": "some"} if len(sample["input_ids"]) else None


def noisy_or_none(sample: Sample, rng: np.random.Generator) -> Sample | None:
    return noisy(sample, rng) if rng.random() < 0.5 else None


def copies(sample: Sample) -> Iterator[Sample]:
    for copy in range(len(sample["input_ids"]) % 4):
        yield {**sample, "copy": copy}


def random_copies(sample: Sample, rng: np.random.Generator) -> list[Sample]:
    return [{**sample, "copy": copy} for copy in range(rng.integers(4))]


def counted(carry: Any, sample: Sample) -> tuple[Any, Sample]:
    """Changes what it is handed."""
    carry["count"] += 1
    carry["sizes"] = [*carry["sizes"][-2:], len(sample["input_ids"])]
    return carry, {**sample, "count": carry["count"], "sizes": carry["sizes"]}


def last_of_each(block: Block) -> Block:
    """Of windows, the samples that are last in them."""
    columns = [pc.list_element(column, len(column[0]) - 1) for column in block.columns]
    return pa.RecordBatch.from_arrays(columns, block.schema.names)


def every_row_thrice(block: Block) -> Block:
    return block.take(pa.array(np.repeat(np.arange(block.num_rows), 3)))


def with_hidden_labels(block: Block) -> Block:
    """Of each second sample no label is trained on."""
    place = block.schema.get_field_index("labels")
    if place < 0 or not pa.types.is_list(block.schema.types[place]):
        return block
    rows = [
        [-100] * len(labels) if labels and labels[0] // 100 % 2 else labels
        for labels in block.column(place).to_pylist()
    ]
    return block.set_column(place, block.schema.field(place), pa.array(rows, block.schema.types[place]))


def tokens_only(block: Block) -> Block:
    return block.select(["input_ids"])


def grouped(block: Block) -> Block:
    """Rows with a group, which a few neighbours share."""
    groups = pc.divide(block.column("id"), 3)
    return block.append_column("group", groups)


def no_rows(block: Block) -> Block:
    return block.slice(0, 0)


def length(sample: Sample) -> int:
    return len(sample["input_ids"])


def by_length(longest: Sample) -> int:
    return 1 + 8 // (1 + len(longest["input_ids"]))


def none_of_long(longest: Sample) -> int:
    return 6 - len(longest["input_ids"])


def first_letter(sample: Sample) -> str:
    return str(sample.get("text", ""))[:1]


def letters(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def letters_of_two(texts: list[str], others: list[str]) -> dict[str, list[list[int]]]:
    rows = [list(text.encode()) + list(other.encode()) for text, other in zip(texts, others)]
    return {"input_ids": rows, "sides": [[len(text)] for text in texts]}


def in_a_dict(samples: list[Sample]) -> dict[str, Any]:
    return {"samples": samples}


def tagged(item: Any) -> Any:
    return {"tag": item}


# -- stages: for each class, how to draw its settings --------------------------------------------------------------------


def on(cls: Callable[..., Stage[Any]], **settings: Any) -> SearchStrategy[Link]:
    """Stages of a class on an upstream that is given later; settings are strategies, or values."""
    drawn = {name: value if isinstance(value, SearchStrategy) else st.just(value) for name, value in settings.items()}
    return st.fixed_dictionaries(drawn).map(lambda kwargs: lambda upstream: cls(upstream, **kwargs))


def in_steps(upstream: Stage[Any], micro_batches: int) -> Stage[Any]:
    """Batches of steps, without a rank's own labels of a step: a resume inside a step knows only those that are still to come."""
    return MapItems(MicroBatches(upstream, micro_batches), _without_own_labels)


def _without_own_labels(batch: Batch) -> Batch:
    return replace(batch, num_labels_here=None)


def of_tokens(cls: Callable[..., Stage[Any]]) -> Callable[..., Stage[Any]]:
    """A stage that refuses to leave labels out, of rows without them."""
    return lambda upstream, **settings: cls(Choose(upstream, Choice("select", ("input_ids",))), **settings)


def keyed(cls: Callable[..., Stage[Any]], plain: Any, seeded: Any, failing: Any = refuses_some) -> SearchStrategy[Link]:
    """Stages that call a user's function: as it is, or with a generator keyed by the row; by themselves, or in threads."""
    return st.one_of(
        *(on(cls, fn=fn, seeded=False, parallel=threads) for fn in plain),
        on(cls, fn=failing, seeded=False, on_error="skip", parallel=threads),
        st.builds(
            lambda seed, own: lambda upstream: cls(RowKeys(upstream, seed), seeded, True, parallel=own),
            st.integers(0, 1),
            threads,
        ),
    )


def calling(verb: str) -> Callable[..., SampleFunction]:
    def stage(upstream: Stage[Any], fn: Any, seeded: bool, on_error: Any = "raise", **more: Any) -> SampleFunction:
        return SampleFunction(upstream, verb, fn, seeded, on_error, **more)

    return stage


threads = st.one_of(
    st.just(Parallel()),
    st.builds(Parallel, st.integers(0, 3), prefetch_factor=st.integers(1, 3), shares=st.booleans()),
)


few = st.integers(1, 5)
count = st.integers(0, 12)
seeds = st.integers(0, 2)
targets = ("input_ids",)
weights = st.lists(st.sampled_from([1, 1.5, 2, 7.0]), min_size=3, max_size=3)
later_weights = st.none() | st.tuples(st.sampled_from([1.0, 0.01, 3.0]), *[st.sampled_from([0.0, 1.0, 0.3])] * 2)
stops = st.sampled_from(["first", "all", "all_repeat"])
tokenwise = st.sampled_from([None, "input_ids"])


@cache
def chat_encoder() -> Any:
    from tests.tokenizers import chatty  # imports transformers

    return chat_encoder_for(chatty())


def as_conversations(block: Block) -> Block:
    """Of each sample's text a question and, where it is longer than one letter, an answer."""
    talks = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}][: len(text)]
        for text in block.column("text").to_pylist()
    ]
    return pa.RecordBatch.from_arrays(
        [block.column("id"), pa.array(map(json.dumps, talks), pa.string())], ["id", "talks"]
    )


def on_conversations(upstream: Stage[Any], train_on: str, on: Parallel) -> Stage[Any]:
    talks = MapBlocks(upstream, as_conversations)
    return Chat(talks, chat_encoder(), ("talks",), train_on, "skip", parallel=on)  # type: ignore[arg-type]


def beside_its_numbers(upstream: Stage[Any], size: int, seed: int) -> Stage[Any]:
    """Rows side by side with numbers that come in other blocks."""
    numbered = Enumerate(Shuffle(upstream, size, seed), "number")
    return Zip((upstream, Choose(numbered, Choice("select", ("number",)))))


def beside_other_ids(upstream: Any, size: int, seed: int) -> Stage[Any]:
    """Rows of an index side by side with the ids of others."""
    ids = IndexChoose(IndexShuffle(upstream, size, seed), Choice("select", ("id",)))
    return IndexZip((upstream, IndexChoose(ids, Choice("rename", ("id",), ("other",)))))


PEAKS: Final = MemoryModel.fit([(1, 1), (1, 8), (4, 1), (4, 8)], [11, 18, 14, 42])
"""Ten bytes, and one a slot."""
without_buckets: SearchStrategy[Policy] = st.one_of(
    st.builds(FixedSize, few, sort=st.booleans()),
    st.builds(TokenBudget, st.integers(4, 20), pad_to_multiple_of=st.integers(1, 4)),
    st.just(CostBudget(lambda batch, length: batch * length**2, 64)),
    st.builds(
        MemoryBudget,
        st.just(PEAKS),
        st.integers(20, 60),
        order=st.sampled_from(["longest_first", "hardest_first"]),
    ),
)
policies = without_buckets | st.sampled_from([TokenBudget(16, buckets=(2, 8)), StaticShapes((2, 8), 16)])
balance_costs = st.sampled_from([None, AttentionCost(quadratic=1 / 4)])
planners = st.one_of(
    st.builds(
        ByPacking,
        st.builds(Packed, st.integers(1, 8), balance_costs),
        st.integers(1, 3),
        st.sampled_from(["truncate", "drop", "split"]),
        st.booleans(),
    ),
    st.builds(ByPolicy, policies, st.sampled_from(["truncate", "drop"])),
    st.builds(ByPolicy, without_buckets, st.just("alone")),
    st.builds(ByKey, st.sampled_from([1, 3, by_length]), st.just(length), st.sampled_from([None, first_letter])),
    st.builds(ByKey, st.just(none_of_long), st.just(length), st.none(), st.sampled_from(["drop", "alone"])),
)
splits = st.builds(Split, st.sampled_from([0.3, 0.7]), st.sampled_from([None, "input_ids"]), seeds)
sides = st.sampled_from(["train", "valid"])
choices = st.sampled_from([Choice("drop", ("text",)), Choice("rename", ("text",), ("words",))])
windowed: dict[str, Any] = {"size": few, "length_columns": ("input_ids",), "lengths_required": True}
automatic: dict[str, Any] = windowed | {"size": 0, "policy": FixedSize(1)}


class AskedForSeveral(list[Any]):
    """Samples that may be asked for several at once, as torch's DataLoader asks."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]


SOURCES: Final[dict[type[Stage[Any]], SearchStrategy[Make]]] = {
    FetchSamples: st.builds(
        lambda counts, kind, shuffle, seed, own: (
            lambda: replace(
                bf.from_dataset(kind(samples_of(counts)), shuffle=shuffle, seed=seed).stream().stage, parallel=own
            )
        ),
        lengths,
        st.sampled_from([list, AskedForSeveral]),
        st.booleans(),
        seeds,
        threads,
    ),
    FromFiles: st.one_of(files(), files(), tables()),
    FromIterable: lengths.map(lambda counts: lambda: bf.from_iterable(samples_of(counts)).stage),
    FromTables: st.builds(
        lambda counts, size: lambda: bf.from_iterable(hugging_face(counts, size, 0).to_iterable_dataset()).stage,
        st.sampled_from(
            [(3,), (0, LONG, 1, 2)]
        ),  # `datasets` takes 6 ms to begin anew, and cannot where there is no row
        st.integers(2, 3),
    ),
    FromSequence: st.one_of(
        st.builds(
            lambda counts, size, place, shuffle, seed: (
                lambda: bf.from_sequence(hugging_face(tuple(counts), size, place), shuffle=shuffle, seed=seed).stage
            ),
            lengths,
            st.integers(2, 9),
            st.integers(0, 2),
            st.booleans(),
            seeds,
        ),
        st.builds(
            lambda counts, shuffle, seed: (
                lambda: bf.from_sequence(samples_of(counts), shuffle=shuffle, seed=seed).stage
            ),
            lengths,
            st.booleans(),
            seeds,
        ),
        st.builds(
            lambda counts, shuffle, seed: lambda: bf.from_store(store(tuple(counts)), shuffle=shuffle, seed=seed).stage,
            lengths,
            st.booleans(),
            seeds,
        ),
        blocks.map(lambda make: lambda: bf.Dataset(make()).cache().stage),
        st.builds(
            lambda counts, given, shuffle, seed: (
                lambda: (
                    bf.from_dataset(
                        samples_of(counts), lengths=counts if given else None, shuffle=shuffle, seed=seed
                    ).stage
                )
            ),
            lengths,
            st.booleans(),
            st.booleans(),
            seeds,
        ),
    ),
}
OF_VERBS: Final[dict[str, SearchStrategy[Link]]] = {  # of the functions of samples
    "map": keyed(calling("map"), [longer], noisy),
    "filter_map": keyed(calling("filter_map"), [tokens_if_any], noisy_or_none),
    "flat_map": keyed(calling("flat_map"), [copies], random_copies, refuses_some_of_many),
}
ROWS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # rows to rows
    AddBosEos: on(AddBosEos, bos_token_id=st.sampled_from([None, 1]), eos_token_id=2, target_column="input_ids"),
    CausalLabels: on(CausalLabels, target_column="input_ids", shift=True),  # rows have labels
    Chat: st.builds(
        lambda train_on, parallel: lambda upstream: on_conversations(upstream, train_on, parallel),
        st.sampled_from(["assistant", "last"]),
        threads,
    ),
    Choose: on(Choose, choice=choices),
    Chunk: on(of_tokens(Chunk), chunk_length=few, target_columns=targets, drop_remainder=st.booleans()),
    ConcatChunk: on(of_tokens(ConcatChunk), target_columns=targets, chunk_length=few, drop_remainder=st.booleans()),
    Enumerate: on(Enumerate, count_column="step"),
    EnsureBosEos: on(
        EnsureBosEos,
        bos_token_id=st.sampled_from([None, 0, 100]),
        eos_token_id=st.sampled_from([0, 102]),
        target_column="input_ids",
    ),
    Filter: keyed(Filter, [is_odd, never], coin),
    RowKeys: on(RowKeys, seed=seeds),
    MapBlocks: on(MapBlocks, fn=st.sampled_from([every_row_thrice, tokens_only, no_rows]), parallel=threads),
    PackChunk: on(of_tokens(PackChunk), target_columns=targets, chunk_length=few, discard_long_samples=st.booleans()),
    Pad: on(Pad, length=3 * LONG, values={"input_ids": 0}),
    Rebatch: on(Rebatch),
    SampleFunction: st.one_of(*OF_VERBS.values()),
    Scan: on(Scan, fn=counted, initial=st.just({"count": 0, "sizes": []})),
    Shuffle: on(Shuffle, buffer_size=few, seed=seeds),
    Skip: on(Skip, n=count),
    Stride: st.one_of(on(Stride, interval=3, offset=st.integers(0, 2)), on(Stride, interval=1, offset=0)),
    Take: on(Take, n=count),
    TextBytes: on(TextBytes, column="text"),
    Tokenize: st.one_of(
        on(
            Tokenize,
            tokenizer=encoder_for(letters),
            column=("text",),
            output_column=st.sampled_from([("input_ids",), ("tokens",)]),
            parallel=threads,
        ),
        on(
            Tokenize,
            tokenizer=encoder_for(letters_of_two),
            column=("text", "text"),
            output_column=("input_ids",),
            extra_outputs=("sides",),
            parallel=threads,
        ),
    ),
    TrainValidSplit: on(TrainValidSplit, split=splits, side=sides),
    SlidingWindow: on(SlidingWindow, width=few),
    Zip: st.builds(lambda size, seed: lambda upstream: beside_its_numbers(upstream, size, seed), few, seeds),
}


def shares(weights: Any, later: Any, upstreams: Any) -> Any:
    """Of a mixture: constant, or others from its sixth row on."""
    first = tuple(weights[: len(upstreams)])
    return Schedule((Segment(0, first), Segment(5, later[: len(first)])), "samples", "step") if later else first


SEVERAL: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # several streams of rows to one
    Concat: st.just(lambda *upstreams: Concat(upstreams)),
    Interleave: st.builds(
        lambda weights, later, *how: lambda *upstreams: Interleave(upstreams, shares(weights, later, upstreams), *how),
        weights,
        later_weights,
        stops,
        tokenwise,
    ),
}
INDEXED: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # indexed data to indexed data
    IndexChoose: on(IndexChoose, choice=choices),
    IndexChooseSource: on(IndexChooseSource, choice=choices),
    IndexRepeat: st.just(lambda upstream: IndexRepeat(upstream) if upstream.count else upstream),
    IndexFilter: st.one_of(
        on(IndexFilter, fn=st.sampled_from([is_odd, never]), parallel=threads),
        on(IndexFilter, fn=refuses_some, on_error="skip"),
    ),
    IndexShuffle: on(IndexShuffle, buffer_size=few, seed=seeds),
    Slice: st.one_of(
        on(Slice.skip, n=count),
        on(Slice.stride, interval=st.just(3), offset=st.integers(0, 2)),
        on(Slice.take, n=count),
    ),
    IndexTrainValidSplit: st.builds(
        lambda split, side: lambda source: IndexTrainValidSplit(source, SplitMask(source.index, split), side),
        splits,
        sides,
    ),
    IndexZip: st.builds(lambda size, seed: lambda upstream: beside_other_ids(upstream, size, seed), few, seeds),
}
SEVERAL_INDEXED: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # several of them to one
    IndexConcat: st.just(lambda *upstreams: IndexConcat(upstreams)),
    IndexInterleave: st.builds(
        lambda weights, later, stop: (
            lambda *upstreams: IndexInterleave(upstreams, shares(weights, later, upstreams), stop)
        ),
        weights,
        later_weights,
        stops,
    ),
}
WINDOWS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # rows to windows
    Buffered: st.one_of(on(Buffered, **windowed), on(Buffered, **automatic)),
    Planned: st.one_of(on(Planned, **windowed), on(Planned, **automatic)),
}


def ranks_of(upstream: Stage[Any], rank: int, world_size: int) -> Ranks:
    """Of streamed data, which ranks do not share, one process has all."""
    known = facts_of(upstream)
    return Ranks(rank, world_size) if known.from_index or not known.streamed_by else Ranks(0, 1)


PLANS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # windows to planned ones
    PlannedWindows: on(
        PlannedWindows,
        planner=planners,
        drop_last=st.booleans(),
        shuffle_batches=st.sampled_from([True, False, "stratified"]),
        balance_group=st.integers(1, 3),
        balance_cost=balance_costs,
        seed=seeds,
    ),
}
planners_of_units: Final = st.one_of(  # that keep units whole
    st.builds(ByPacking, st.builds(Packed, st.integers(4, 12), balance_costs), few, st.just("drop"), st.booleans()),
    st.builds(ByPolicy, policies, st.just("drop")),
    st.builds(ByPolicy, without_buckets, st.just("alone")),
)
PLANS_OF_UNITS: Final = on(
    PlannedWindows,
    planner=planners_of_units,
    drop_last=st.booleans(),
    shuffle_batches=st.sampled_from([True, False, "stratified"]),
    balance_group=st.integers(1, 3),
    balance_cost=balance_costs,
    seed=seeds,
)
BATCHES: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # planned windows to batches
    Batched: on(Batched),
    Shared: st.builds(
        lambda rank, uneven: lambda upstream: Shared(upstream, ranks_of(upstream, *rank), uneven),
        st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
        st.sampled_from(["pad", "drop", "wrap"]),
    ),
}
STEPS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # likewise
    MicroBatches: on(in_steps, micro_batches=few),
}
LABELS_HIDDEN: Final[Link] = partial(MapBlocks, fn=with_hidden_labels)


def laid_out(*token_columns: str) -> SearchStrategy[Link]:
    layouts = st.one_of(st.builds(Padded, st.booleans()), st.just(Nested()))
    return on(LaidOut, layout=layouts, **made_of(*token_columns))


def collated_by(collate_fn: Callable[[list[Sample]], Any], *token_columns: str) -> SearchStrategy[Link]:
    return on(CollatedBy, collator=st.just(Collator(collate_fn)), **made_of(*token_columns))


def made_of(*token_columns: str) -> dict[str, SearchStrategy[Any]]:
    dtypes = st.sampled_from([{}, {"input_ids": "int32", "attention_mask": "bool"}])
    rules = st.builds(ColumnRules, st.just(("input_ids",)), st.just(token_columns), st.just({"input_ids": 9}), dtypes)
    convert = st.sampled_from([None, in_torch])
    return {"rules": rules, "unlabelled": st.sampled_from(["keep", "drop"]), "convert": convert}


WITH_LABELS: Final = st.one_of(laid_out("labels"), collated_by(in_a_dict, "labels"))
TENSORS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # batches to what is trained on
    LaidOut: laid_out(),
    CollatedBy: collated_by(list),
}
SAMPLES: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {Unbatch: on(Unbatch)}  # rows to dicts
STREAMS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {
    RoundRobin: st.just(lambda upstream: RoundRobin(upstream, facts_of(upstream).streams()))
}  # streams of anything to one
ITEMS: Final[dict[type[Stage[Any]], SearchStrategy[Link]]] = {  # anything to anything
    Ahead: on(Ahead, depth=few, name="test"),
    EnumerateItems: on(EnumerateItems),
    Bucketed: on(Bucketed, to_buckets=st.just(ToBuckets())),
    MapItems: on(MapItems, fn=tagged),
    OnDevice: on(OnDevice, device=st.just(torch.device("cpu")), prefetch=st.integers(0, 2)),
    Repeat: st.just(lambda upstream: Repeat(upstream) if gives(upstream) else upstream),
    TakeItems: on(TakeItems, n=count),
}
LOADERS: Final[dict[type[Stage[Any]], SearchStrategy[Make]]] = {  # batches, of whatever makes them
    Loaded: st.builds(lambda items: partial(Loaded, items), st.lists(st.integers())),
    Synthetic: st.builds(
        lambda shapes: partial(Synthetic, str, tuple(shapes), BatchFacts(Loaded([]), "", lambda: shapes)),
        st.lists(st.tuples(few, few), min_size=1, max_size=5),
    ),
}
TOGETHER: Final[dict[type[Stage[Any]], SearchStrategy[Make]]] = {  # rows of which neighbours stay together
    Placed: st.deferred(lambda: st.builds(chain, indexed_sources(), st.just(Placed))),
    Units: st.deferred(
        lambda: st.builds(chain, blocks, on(MapBlocks, fn=grouped), on(Units, key="group", within="batch"))
    ),
    Steps: st.deferred(
        lambda: st.builds(
            lambda *how: partial(in_steps_of, *how),
            st.one_of(indexed(), blocks, TOGETHER[Units], TOGETHER[IndexUnits]),
            st.integers(3, 8),
            planners_of_units,
            st.booleans(),
            st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
            balance_costs,
        )
    ),
    IndexUnits: st.builds(
        lambda counts, n: lambda: in_groups(counts, n), lengths, st.sampled_from([None, 0, 4, 9, 100])
    ),
}


def in_steps_of(make: Make, n: int, planner: Any, drop_last: bool, rank: tuple[int, int], cost: Any) -> Stage[Any]:
    """Steps of so many samples, as a rank has them."""
    rows: Any = make()
    windows = (Planned if isinstance(rows, Indexed) else Buffered)(rows, n, ("input_ids",), True, is_step=True)
    plans = PlannedWindows(windows, planner, drop_last, False, 1, 0, cost, samples_per_step=n)
    return Steps(plans, n, ranks_of(rows, *rank))


def in_groups(lengths: Iterable[int], n: int | None) -> Stage[Any]:
    """Samples of indexed data in units; of the first few alone."""
    samples = bf.from_sequence([{**one, "group": one["id"] // 3} for one in samples_of(lengths)])
    return (samples if n is None else samples.take(n)).units("group").stage


STAGES: Final[set[type[Stage[Any]]]] = {
    *SOURCES,
    *ROWS,
    *SEVERAL,
    *INDEXED,
    *SEVERAL_INDEXED,
    *WINDOWS,
    *PLANS,
    *BATCHES,
    *STEPS,
    *TENSORS,
    *SAMPLES,
    *STREAMS,
    *ITEMS,
    *LOADERS,
    *TOGETHER,
}
CUTTERS: Final[set[type[Stage[Any]]]] = {Choose, Chunk, ConcatChunk, PackChunk, MapBlocks}
"""After these a sample may have no text."""
KEEPING: Final[set[type[Stage[Any]]]] = {Enumerate, Filter, Shuffle, Skip, Stride, Take, TrainValidSplit}
"""After these a sample has its labels."""
COUNTING: Final[set[type[Stage[Any]]]] = {Enumerate, Scan, Skip, Stride, Take, SlidingWindow, Zip}
"""What rows in several streams are refused by."""


def name(cls: type[Stage[Any]]) -> str:
    """With its room: a stage on rows and its twin on row numbers have one name."""
    return f"{cls.__module__.split('.')[1]}.{cls.__name__}"


# -- chains --------------------------------------------------------------------------------------------------------------


def gives(stage: Stage[Any]) -> bool:
    """Whether an epoch of a stage has a row: to repeat none is an error."""
    for epoch in range(2):
        with running(stage, stage.start(epoch)) as items:
            if any(getattr(item, "num_rows", 1) for item, _ in items):
                return True
    return False


def chain(make: Make, *links: Link) -> Make:
    def made() -> Stage[Any]:
        stage = make()
        for link in links:
            stage = link(stage)
        return stage

    return made


def joined(makes: list[Make], link: Link) -> Make:
    return lambda: link(*(make() for make in makes))


def sources() -> SearchStrategy[Make]:
    return st.one_of(*[blocks] * 5, indexed(), SOURCES[FromIterable], SOURCES[FromFiles])


def indexed_sources() -> SearchStrategy[Make]:
    """Indexed data as they are, or filtered, or some samples of their epochs."""
    source = SOURCES[FromSequence]
    some = on(Slice.take, n=st.integers(0, 40))
    return st.one_of(
        source, st.builds(chain, source, INDEXED[IndexFilter]), st.builds(chain, source, INDEXED[IndexRepeat], some)
    )


def indexed() -> SearchStrategy[Make]:
    """Indexed data, sliced, shuffled, joined and mixed."""
    links = st.lists(st.one_of(INDEXED[Slice], INDEXED[IndexShuffle]), max_size=2)
    straight = st.builds(lambda make, links: chain(make, *links), indexed_sources(), links)
    mixed = st.builds(
        lambda makes, link, links: chain(joined(makes, link), *links),
        st.lists(straight, min_size=1, max_size=3),
        st.one_of(*SEVERAL_INDEXED.values()),
        links,
    )
    return st.one_of(straight, mixed)


@st.composite
def row_links(
    draw: st.DrawFn, seen: frozenset[type[Stage[Any]]] = frozenset(), without: frozenset[type[Stage[Any]]] = frozenset()
) -> list[Link]:
    """A few stages from rows to rows, shuffles among them; `seen`: what may lie below."""
    links: list[Link] = []
    alone = {CausalLabels, Chat}  # that want a mask, or a text, which no stage in between has left behind
    classes: list[type[Stage[Any]]] = [*({*ROWS, Ahead, Repeat} - without - alone)]
    classes.sort(key=lambda cls: cls.__name__)
    for cls in draw(st.lists(st.sampled_from(classes), max_size=4)):
        if (cls in (TextBytes, Tokenize, Choose) and seen & CUTTERS) or (
            cls in (CausalLabels, Pad, Stride, Zip) and cls in seen
        ):
            continue
        seen |= {cls}
        if cls is SlidingWindow:
            links += [draw(ROWS[SlidingWindow]), lambda upstream: MapBlocks(upstream, last_of_each)]
        elif cls is Repeat:
            links += [draw(ITEMS[Repeat]), draw(ROWS[Take])]
        else:
            links.append(draw((ROWS | ITEMS)[cls]))
    return links


def rows(*, alike: bool = False) -> SearchStrategy[Make]:
    """Chains that end in rows; `alike`: none has a column that is null because a data set beside its own has it."""
    tokens = [on(Choose, choice=Choice("select", targets))] if alike else []
    straight = st.builds(lambda make, links: chain(make, *links), sources(), row_links())
    plain = st.builds(lambda make, links: chain(make, *links), sources(), row_links(without=frozenset({Zip})))
    mixed = (
        st.builds(
            lambda makes, link, links, *tokens: chain(joined(makes, link), *tokens, *links),
            st.lists(parts, min_size=1, max_size=3),
            st.one_of(*SEVERAL.values()),
            row_links(frozenset({*CUTTERS, CausalLabels, Pad, *zipped})),
            *tokens,
        )
        for parts, zipped in ((straight, [Zip]), (plain, []))  # zipped once: there is one name for what is put beside
    )
    return st.one_of(straight, straight, straight, straight, *mixed)


def in_streams() -> SearchStrategy[Make]:
    """Chains of rows, or of batches, that run in several streams."""
    rows = st.builds(
        lambda make, links: chain(make, *links), files(streams=True), row_links(without=frozenset({*COUNTING, Repeat}))
    )
    return st.builds(
        chain,
        st.one_of(rows, st.builds(chain, rows, WINDOWS[Buffered], PLANS[PlannedWindows], BATCHES[Batched])),
        STREAMS[RoundRobin],
    )


def windows(*, alike: bool = False) -> SearchStrategy[Make]:
    """Chains that end in windows."""
    return st.one_of(
        st.builds(chain, rows(alike=alike), WINDOWS[Buffered]),
        st.builds(chain, indexed(), WINDOWS[Planned]),
    )


def some_without_labels() -> SearchStrategy[Make]:
    """Batches of samples, in some of which no label is trained on."""
    links = row_links(without=frozenset({*ROWS} - KEEPING))
    given = st.builds(lambda make, links: chain(make, *links), st.one_of(blocks, SOURCES[FromIterable]), links)
    plans = st.builds(chain, given, st.just(LABELS_HIDDEN), WINDOWS[Buffered], PLANS[PlannedWindows])
    shared = st.builds(chain, plans, st.one_of(*BATCHES.values()))
    return st.one_of(shared, st.builds(chain, shared, STEPS[MicroBatches]))


def batches() -> SearchStrategy[Make]:
    """Chains that end in batches: of integers, or of tensors."""
    shared, of_tokens = (
        st.builds(
            chain,
            windows(alike=alike),
            PLANS[PlannedWindows],
            st.one_of(BATCHES[Batched], BATCHES[Batched], BATCHES[Shared]),
        )
        for alike in (False, True)
    )
    shared, of_tokens = (st.one_of(one, st.builds(chain, one, STEPS[MicroBatches])) for one in (shared, of_tokens))
    return st.one_of(
        shared,
        st.builds(chain, of_tokens, st.one_of(*TENSORS.values())),
        st.builds(chain, some_without_labels(), WITH_LABELS),
    )


def together() -> SearchStrategy[Make]:
    """Chains of rows, or of batches, of which neighbours stay together."""
    links = [
        ROWS[Enumerate],
        ROWS[Filter],
        OF_VERBS["map"],
        OF_VERBS["flat_map"],
        ROWS[Rebatch],
        ROWS[Shuffle],
        ITEMS[Ahead],
    ]
    some = st.lists(st.one_of(*links), max_size=3)
    straight = st.builds(lambda make, links: chain(make, *links), TOGETHER[Units], some)
    source = st.one_of(TOGETHER[IndexUnits], st.builds(chain, TOGETHER[IndexUnits], INDEXED[IndexFilter]))
    indexed = st.builds(lambda make, links: chain(make, *links), source, st.lists(INDEXED[IndexShuffle], max_size=2))
    several = st.builds(
        lambda makes, link, links: chain(joined(makes, link), *links),
        st.lists(st.one_of(straight, indexed), min_size=1, max_size=3),
        st.one_of(*SEVERAL.values()),
        some,
    )
    several_indexed = st.builds(joined, st.lists(indexed, min_size=1, max_size=3), SEVERAL_INDEXED[IndexConcat])
    rows = st.one_of(straight, indexed, several, several_indexed)
    windows = st.one_of(
        st.builds(chain, st.one_of(straight, several), WINDOWS[Buffered]),
        st.builds(chain, st.one_of(indexed, several_indexed), WINDOWS[Planned]),
    )
    plans = st.builds(chain, windows, PLANS_OF_UNITS)
    return st.one_of(rows, windows, st.builds(chain, plans, st.one_of(*BATCHES.values())))


def alone(cls: type[Stage[Any]]) -> SearchStrategy[Make]:
    """A stage on the least that it needs."""
    if cls in SOURCES | LOADERS | TOGETHER:
        return (SOURCES | LOADERS | TOGETHER)[cls]
    if cls in STREAMS:
        return in_streams()
    if cls in SEVERAL:
        return st.builds(joined, st.lists(blocks, min_size=1, max_size=3), SEVERAL[cls])
    if cls in SEVERAL_INDEXED:
        return st.builds(joined, st.lists(indexed_sources(), min_size=1, max_size=3), SEVERAL_INDEXED[cls])
    if cls in (IndexFilter, IndexChooseSource, IndexTrainValidSplit):
        return st.builds(chain, SOURCES[FromSequence], INDEXED[cls])
    if cls in INDEXED:
        return st.builds(chain, indexed_sources(), INDEXED[cls])
    if cls is Planned:
        return st.builds(chain, indexed(), WINDOWS[Planned])
    if cls in ROWS | WINDOWS | SAMPLES:
        return st.builds(chain, blocks, (ROWS | WINDOWS | SAMPLES)[cls])
    below = st.builds(chain, blocks, WINDOWS[Buffered])
    if cls in PLANS:
        return st.builds(chain, below, PLANS[cls])
    plans = st.builds(chain, below, PLANS[PlannedWindows])
    # of an index, which knows its labels, and of which a rank locates its own rows
    known = st.builds(chain, indexed(), WINDOWS[Planned], PLANS[PlannedWindows])
    if cls in BATCHES:
        return st.builds(chain, st.one_of(known, plans), BATCHES[cls])
    planned = st.builds(chain, plans, BATCHES[Batched])
    if cls in STEPS:
        return st.builds(chain, st.one_of(known, plans), st.one_of(*BATCHES.values()), STEPS[cls])
    if cls in TENSORS:
        return st.one_of(st.builds(chain, planned, TENSORS[cls]), st.builds(chain, some_without_labels(), WITH_LABELS))
    return st.builds(chain, st.one_of(blocks, planned), ITEMS[cls])
