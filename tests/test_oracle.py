"""Random pipelines hold what plain Python says they must hold: rows, batches, masks, labels and counts (`tests/oracle.py`).

PYTEST_DONT_REWRITE: 2,000 pipelines are many assertions.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.distributed import HashStore

import brimful as bf
from brimful.core.own_keys import COUNTS, LOSS_WEIGHTS
from brimful.grouping import Collection
from tests import oracle
from tests.effort import SOAK, times
from tests.oracle import NO_LABEL, TOKEN_COLUMNS, Batching, Row, Rows, TooLongError

PIPELINES: Final = times(1_000, 20_000)
PARTS: Final = 20
FIRST: Final = int.from_bytes(os.urandom(4)) if SOAK else 0
"""The first pipeline's number; in the soak another one each time."""
FIRST_TOKEN: Final = 10
"""Tokens from here on are in one place of one row alone; those below are padding, BOS and EOS."""
OF_A_STEP: Final = ("weight", "is_filler", "ends_step", *COUNTS, LOSS_WEIGHTS)
BOUNDS: Final = {"cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k"}
OF_A_PACK: Final = (
    *("max_seqlen", "max_length_q", "max_length_k", "use_cache", "sample_numbers", "seq_idx", "column_kinds"),
)


# -- functions of a user's -----------------------------------------------------------------------------------------------


def counted(row: Row) -> Row:
    return row | {"count": len(row["input_ids"])}


def backwards(row: Row) -> Row:
    return row | {name: row[name][::-1] for name in ("input_ids", "attention_mask", "token_type_ids") if name in row}


def is_odd(row: Row) -> bool:
    return len(row["input_ids"]) % 2 == 1


def is_nothing(row: Row) -> bool:
    return False


def odd_ones(row: Row) -> Row | None:
    return row if is_odd(row) else None


def copies(row: Row) -> list[Row]:
    return [row] * (len(row["input_ids"]) % 3)


def running_total(total: int, row: Row) -> tuple[int, Row]:
    return total + len(row["input_ids"]), row | {"total": total}


def as_they_are(samples: list[Row]) -> dict[str, Any]:
    return {"samples": samples}


# -- pipelines -----------------------------------------------------------------------------------------------------------


@dataclass
class Pipeline:
    """Data, verbs, batches: as brimful takes them, and as plain Python does."""

    number: int
    sources: list[tuple[str, list[Row], dict[str, Any]]]
    join: tuple[str, dict[str, Any]]
    verbs: list[tuple[str, tuple[Any, ...]]]
    said: Batching
    collates: bool
    world_size: int
    uneven: Any
    repeat: int
    names_columns: bool = False
    """Whether `token_columns` of packed rows names those that there are, but for the mask, which hides tokens all the same."""

    def __str__(self) -> str:
        lines = [f"pipeline {self.number}"]
        lines += [
            f"    {kind} {options} of\n        " + "\n        ".join(map(str, rows))
            for kind, rows, options in self.sources
        ]
        lines += [f"    {self.join}"] if len(self.sources) > 1 else []
        lines += [f"    .{name}({', '.join(map(str, arguments))})" for name, arguments in self.verbs]
        ranks = f"shard(world_size={self.world_size}, uneven={self.uneven!r})"
        return "\n".join(
            [*lines, f"    {self.said}", f"    collate_fn: {self.collates}, {ranks}, repeat: {self.repeat}"]
        )

    @property
    def streams(self) -> int:
        return self.sources[0][2].get("streams") or 1

    @property
    def is_indexed(self) -> bool:
        """Whether any row can be had without those before it."""
        kinds, verbs = {kind for kind, *_ in self.sources}, {name for name, _ in self.verbs}
        return kinds <= {"sequence", "store"} and verbs <= INDEXED and self.streamed_by is None

    @property
    def streamed_by(self) -> int | None:
        """The verb that needs `.stream()` before it, if any: a filter of what is left of a slice or a mixture."""
        is_whole = self.join[0] in ("one", "concat")
        for place, (name, _) in enumerate(self.verbs):
            if name == "filter" and not is_whole:
                return place
            is_whole &= name not in ("take", "skip", "stride")
        return None

    @property
    def flows(self) -> bool:
        """Whether what repeats goes on over the seams of epochs."""
        return self.said.by_arrival or "concat_chunk" in {name for name, _ in self.verbs}

    # -- as plain Python has it

    def rows(self, epochs: int = 1) -> Rows:
        parts = [plain_source(*source) for source in self.sources]
        parts = [replace(part, streams=tuple(rows * epochs for rows in part.streams)) for part in parts]
        how, options = self.join
        if how == "interleave":
            rows = oracle.interleaved(parts, **options)
        elif how == "zip":
            rows = oracle.side_by_side(parts[0], options)
        else:
            rows = parts[0] if len(parts) == 1 else oracle.concatenated(parts)
        for name, arguments in self.verbs:
            rows = getattr(rows, name)(*arguments)
        return rows

    def planned(self) -> list[Any]:
        """The batches in order, where the documents say it."""
        if not self.repeat:
            return oracle.in_turn([oracle.planned(rows, self.said) for rows in self.rows().streams])
        wanted = self.repeat * self.world_size
        if self.flows:
            epochs, plan, longer = 1, [], oracle.planned(self.rows().rows, self.said)
            while len(plan) < wanted or plan[:wanted] != longer[:wanted]:  # the last window is another
                epochs *= 2
                plan, longer = longer, oracle.planned(self.rows(epochs).rows, self.said)
            return plan[:wanted]
        return (oracle.planned(self.rows().rows, self.said) * wanted)[:wanted]

    # -- as brimful has it

    def dataset(self, folder: Path) -> bf.Dataset:
        parts = [
            their_source(folder / str(number), kind, rows, options, self.repeat > 0)
            for number, (kind, rows, options) in enumerate(self.sources)
        ]
        how, options = self.join
        if how == "interleave":
            data = bf.interleave_datasets(parts, **options)
        elif how == "zip":
            data = bf.zip_datasets([parts[0], parts[0].rename(options).select(list(options.values()))])
        else:
            data = parts[0] if len(parts) == 1 else bf.concat_datasets(parts)
        for place, (name, arguments) in enumerate(self.verbs):
            if place == self.streamed_by:
                if isinstance(data, bf.IndexedDataset) and how != "zip":  # whose filter is a stream
                    with pytest.raises(ValueError, match=r"stream\(\)\.filter"):
                        VERBS[name](data, *arguments)
                data = data.stream()
            data = VERBS[name](data, *arguments)
        assert isinstance(data, bf.IndexedDataset) == self.is_indexed
        return data

    def batches(self, folder: Path) -> bf.Batches:
        said = self.said
        options: dict[str, Any] = {
            "drop_last": said.drop_last,
            "shuffle_batches": said.shuffle,
            "overlong": said.overlong,
        }
        if said.micro:
            options["micro_batches"] = said.micro
        if said.pad_values:
            options["pad_values"] = said.pad_values
        if said.window is not None:
            options["window"] = said.window
        if self.collates:
            options["collate_fn"] = as_they_are
        if self.names_columns:
            columns = self.rows().rows[0]
            options["token_columns"] = [name for name in TOKEN_COLUMNS if name in columns and name != "attention_mask"]
        data = self.dataset(folder)
        if said.kind == "pack":
            return data.pack(said.size, rows=said.rows, **options)
        if not self.collates:
            options["layout"] = said.layout
            if said.layout == "grouped":
                options["num_groups"] = said.num_groups
            if said.layout == "padded":
                options["pad_side"] = said.pad_side
        if said.kind == "static":
            assert said.buckets
            return data.batch(bf.StaticShapes(said.buckets, said.size), **options)
        options |= {"buckets": said.buckets, "pad_to_multiple_of": said.multiple}
        if said.kind == "cost":
            return data.batch(bf.CostBudget(bf.AttentionCost(quadratic=said.quadratic), said.size), **options)
        return data.batch(said.size, **options) if said.kind == "fixed" else data.batch_by_tokens(said.size, **options)


VERBS: Final[dict[str, Callable[..., bf.Dataset]]] = {
    "map": lambda data, fn: data.map(fn),
    "filter": lambda data, fn: data.filter(fn),
    "filter_map": lambda data, fn: data.filter_map(fn),
    "flat_map": lambda data, fn: data.flat_map(fn),
    "scan": lambda data, fn, initial: data.scan(fn, initial),
    "take": lambda data, n: data.take(n),
    "skip": lambda data, n: data.skip(n),
    "stride": lambda data, interval, offset: data.stride(interval, offset),
    "enumerate": lambda data, name: data.enumerate(count_column=name),
    "shuffle": lambda data, size: data.shuffle(size),
    "select": lambda data, names: data.select(names),
    "drop": lambda data, names: data.drop(names),
    "rename": lambda data, names: data.rename(names),
    "add_bos_eos": lambda data, bos, eos: data.add_bos_eos(bos, eos),
    "causal_labels": lambda data, shift: data.causal_labels(shift=shift),
    "pad": lambda data, length, values: data.pad(length, values),
    "chunk": lambda data, length, names, drop: data.chunk(length, target_columns=names, drop_remainder=drop),
    "concat_chunk": lambda data, length, names, drop: data.concat_chunk(
        length, target_columns=names, drop_remainder=drop
    ),
    "pack_chunk": lambda data, length, names, discard: data.pack_chunk(
        length, target_columns=names, discard_long_samples=discard
    ),
}
"""How brimful calls the verbs of `Rows`."""
INDEXED: Final = {"select", "drop", "rename", "take", "skip", "stride", "shuffle", "filter"}
"""Those that leave indexed data indexed."""


def dealt(rows: list[Row], files: int) -> list[list[Row]]:
    return [rows[number * len(rows) // files : (number + 1) * len(rows) // files] for number in range(files)]


def plain_source(kind: str, rows: list[Row], options: dict[str, Any]) -> Rows:
    if kind != "files":
        return Rows((rows,), ordered=not options.get("shuffle"))
    shards = dealt(rows, options["files"])
    streams = options["streams"] or 1
    of_streams = [shards[number::streams] for number in range(streams)]
    if options["n_active_shards"] == 1:
        return Rows(tuple([row for shard in shards for row in shard] for shards in of_streams))
    return Rows(tuple(oracle.in_turn(shards) for shards in of_streams))


TYPES: Final = {
    "id": pa.int64(),
    "text": pa.string(),
    "score": pa.float64(),
    "flag": pa.bool_(),
    "scores": pa.list_(pa.float64()),
    "words": pa.list_(pa.string()),
    "spans": pa.list_(pa.list_(pa.string())),
}


def their_source(folder: Path, kind: str, rows: list[Row], options: dict[str, Any], repeat: bool) -> bf.Dataset:
    if kind == "iterable":
        return bf.from_iterable(rows, repeat=repeat)
    if kind == "sequence":
        return bf.from_sequence(rows, repeat=repeat, **options)
    if kind == "store":
        if not folder.exists():
            list(bf.from_sequence(rows).to_store(folder))
        return bf.from_store(folder, repeat=repeat, **options)
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, shard in enumerate(dealt(rows, options["files"])):
            text = "".join(json.dumps(row) + "\n" for row in shard)
            (folder / f"{number}.jsonl").write_text(text)
    schema = {name: TYPES.get(name, pa.list_(pa.int64())) for name in rows[0]}
    return bf.from_files(
        str(folder / "*.jsonl"),
        schema=schema,
        streams=options["streams"],
        n_active_shards=options["n_active_shards"],
        repeat=repeat,
    )


# -- drawing -------------------------------------------------------------------------------------------------------------


def drawn_rows(draw: random.Random, count: int, names: Sequence[str], lengths: Sequence[int], first: int) -> list[Row]:
    rows, token = [], first
    is_seen = draw.random() < 0.6
    kinds = draw.choice(["right", "left", "both", "all"])
    for number in range(count):
        length = draw.choice(lengths) if number else max(1, draw.choice(lengths))
        ids = list(range(token, token + length))
        token += length
        left = draw.randrange(length + 1) if kinds in ("left", "both") else 0
        right = draw.randrange(length + 1 - left) if kinds in ("right", "both") else 0
        labels = [one if draw.random() < 0.7 else NO_LABEL for one in ids]
        mask = [0] * left + [1] * (length - left - right) + [0] * right
        if is_seen:
            labels = [
                label
                if (place and mask[place - 1] and mask[place]) or ("attention_mask" not in names and place)
                else NO_LABEL
                for place, label in enumerate(labels)
            ]
        other = range(draw.choice([0, 1, 2, 5]) or (number == 0))
        values = {
            "id": first + number,
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": [draw.randrange(2) for _ in ids],
            "labels": labels,
            "shift_labels": [draw.choice([NO_LABEL, one]) for one in ids],
            "chosen_labels": [draw.choice([NO_LABEL, 3, 4]) for _ in other],
            "numbers": [draw.randrange(100) for _ in other],
            "scores": [draw.randrange(8) / 4 for _ in other],
            "score": draw.randrange(100) / 8,
            "flag": draw.random() < 0.5,
            "text": draw.choice(["", "a", "ä b"]),
            "words": draw.choice([["one"], ["one", "two"]]),
            "spans": draw.choice([[["a", "b"]], [["a"], ["b", "c"]]]),
        }
        rows.append({name: values[name] for name in names})
    return rows


OPTIONAL: Final = ("chosen_labels", "numbers", "scores", "score", "flag", "text", "words", "spans", "token_type_ids")


def drawn(number: int) -> Pipeline:
    draw = random.Random(number)
    names = ["id", "input_ids"]
    names += ["attention_mask"] * (draw.random() < 0.3) + ["labels"] * (draw.random() < 0.4)
    names += ["shift_labels"] * (draw.random() < 0.1)
    names += [name for name in OPTIONAL if draw.random() < 0.2]
    lengths = draw.choice([[1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 9], [1], [0, 1, 12, 13], [4], list(range(14))])
    repeats = draw.random() < 0.08
    how = draw.choices(["one", "concat", "interleave", "zip"], [20, 1, 2, 1])[0]
    count = 2 if how in ("concat", "interleave") else 1
    sources = []
    for which in range(count):
        kind = draw.choices(["sequence", "iterable", "files", "store"], [8, 4, 4, 1])[0]
        rows = drawn_rows(draw, draw.choice([1, 2, 4, 6, 8, 11]), names, lengths, FIRST_TOKEN + 10_000 * which)
        options: dict[str, Any] = {}
        if kind == "files":
            files = draw.choice([1, 2, 3, 4])
            streams = draw.choice([one for one in range(1, files + 1) if files % one == 0] + [None])
            streams = streams if how == "one" and not repeats else None
            options = {"files": files, "streams": streams, "n_active_shards": draw.choice([1, 10])}
        elif kind in ("sequence", "store") and not repeats and how == "one" and draw.random() < 0.15:
            options = {"shuffle": True}
        sources.append((kind, rows, options))
    join: tuple[str, dict[str, Any]] = (how, {})
    if how == "interleave":
        stop = draw.choice(["first", "all", "all_repeat"]) if not repeats else "first"
        join = (how, {"weights": [draw.choice([1, 1.5, 2, 3]) for _ in sources], "stop": stop})
    elif how == "zip":
        join = (how, {"input_ids": "copy", "id": "other"})
    pipeline = Pipeline(number, sources, join, [], Batching("fixed", 1), False, 1, "pad", 0)
    many = pipeline.streams > 1
    if repeats and how in ("one", "zip"):
        pipeline.repeat = draw.randrange(1, 7)
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        is_padded = any(name == "pad" for name, _ in pipeline.verbs)
        if verb := drawn_verb(draw, pipeline.rows(), many, pipeline.repeat > 0, is_padded):
            pipeline.verbs.append(verb)
    rows = pipeline.rows()
    if not rows.rows:
        pipeline.repeat = 0
    pipeline.said = drawn_batching(draw, rows.rows)
    if pipeline.repeat:
        pipeline.said.__dict__.update(shuffle=False, overlong="truncate")
        if pipeline.said.window == "auto" or pipeline.said.drop_last or not pipeline.planned():
            pipeline.repeat = 0
        # A first batch reads 1,536 rows: many epochs of these.
        is_slow = len(rows.rows) < 4 or sources[0][0] in ("files", "store")
        if pipeline.said.by_arrival and is_slow and number % 16:
            pipeline.repeat = 0
    if draw.random() < 0.35:
        sizes = [1, 2, 3] if pipeline.is_indexed else [one for one in (1, 2, 3) if pipeline.streams % one == 0]
        pipeline.world_size = draw.choice(sizes) if pipeline.said.by_arrival or not pipeline.repeat else 1
        pipeline.uneven = draw.choice(["pad", "pad", "drop", "wrap"])
    else:
        pipeline.world_size, pipeline.uneven = 1, None
    pipeline.repeat *= pipeline.said.share  # whole steps
    pipeline.names_columns = pipeline.said.kind == "pack" and bool(rows.rows) and draw.random() < 0.3
    pipeline.collates = pipeline.said.kind not in ("pack", "static") and draw.random() < 0.08
    return pipeline


def drawn_verb(
    draw: random.Random, rows: Rows, many: bool, repeats: bool, is_padded: bool
) -> tuple[str, tuple[Any, ...]] | None:
    """A verb that these rows can take."""
    if not rows.rows:
        return None
    row = rows.rows[0]
    columns = [name for name in ("input_ids", *TOKEN_COLUMNS) if name in row]
    length = draw.choice([1, 2, 3, 5, 8])
    chosen = tuple(name for name in columns if name == "input_ids" or draw.random() < 0.8)
    longest = max(len(row["input_ids"]) for row in rows.rows)
    choices: list[tuple[str, tuple[Any, ...]]] = [
        ("map", (counted,)),
        ("filter", (is_odd,)),
        ("filter_map", (odd_ones,)),
        ("flat_map", (copies,)),
    ]
    unnamed = [name for name in row if (name in columns or oracle.is_labels(name)) and name not in chosen]
    if unnamed:  # which chunkers refuse to leave out
        choices += [("drop", (unnamed,))] * 2
    elif not is_padded:
        choices += [("chunk", (length, chosen, draw.random() < 0.5))]
        if rows.ordered and len({row["input_ids"][0] for row in rows.rows if row["input_ids"]}) == sum(
            bool(row["input_ids"]) for row in rows.rows
        ):
            keeps = not repeats and draw.random() < 0.3
            choices += [
                ("concat_chunk", (length, chosen, not keeps)),
                ("pack_chunk", (length, chosen, draw.random() < 0.3)),
            ]
    if not {"labels", "shift_labels"} & row.keys():
        choices += [("causal_labels", (False,)), ("causal_labels", (True,)), ("map", (backwards,))] * 2
    elif "shift_labels" not in row:
        choices += [("causal_labels", (True,))] * 3
    if columns == ["input_ids"]:
        choices += [("add_bos_eos", draw.choice([(1, 2), (None, 2), (1, None)]))] * 2
    if longest and "shift_labels" not in row:
        fills = {name: NO_LABEL if name == "labels" else 0 for name in columns if name != "attention_mask"}
        choices += [("pad", (longest + draw.randrange(3), fills))]
    others = [name for name in row if name not in columns and name != "id"]
    if others:
        choices += [("drop", ([draw.choice(others)],)), ("select", ([name for name in row if name != others[0]],))]
    if "numbers" in row and "extra_labels" not in row:
        choices += [("rename", ({"numbers": "extra_labels"},))]
    if not repeats:
        choices += [("shuffle", (draw.choice([1, 4, 100]),)), ("filter", (is_nothing,))][: 1 + (draw.random() < 0.1)]
    if not repeats and not many and rows.ordered:
        choices += [("take", (draw.choice([0, 1, 5, 100]),)), ("skip", (draw.choice([0, 1, 5]),))]
        choices += [("stride", draw.choice([(2, 1), (3, 0)]))]
        if not {"step", "total"} & row.keys():
            choices += [("enumerate", ("step",)), ("scan", (running_total, 0))]
    return draw.choice(choices)


def drawn_batching(draw: random.Random, rows: list[Row]) -> Batching:
    longest = max((len(row["input_ids"]) for row in rows), default=1) or 1
    kind = draw.choice(["fixed", "fixed", "tokens", "tokens", "static", "cost", "pack", "pack"])
    micro = draw.choice([None, None, None, 2, 3])
    share = micro or 1
    said: dict[str, Any] = {"kind": kind, "micro": micro, "window": draw.choice([3, 5, 8, 1_000, "auto"])}
    limit = longest + draw.choice([0, 0, 0, 1, 5, 20])
    overlong = draw.choice(["raise", "truncate", "drop", "alone"])
    if draw.random() < 0.3:
        limit = max(1, longest - draw.randrange(4))
    if kind == "fixed":
        said["size"] = draw.choice([1, 2, 3, 7]) * share
        said["window"] = draw.choice([None, None, said["window"]])
    elif kind == "tokens":
        said["size"] = limit * share + draw.randrange(share)
    elif kind == "cost":
        said["quadratic"] = draw.choice([0.125, 0.5])
        said["size"] = int((limit + said["quadratic"] * limit * limit) * share) + share
    elif kind == "static":
        buckets = sorted({max(1, limit // 4), max(1, limit // 2), limit})
        said |= {"buckets": tuple(buckets), "size": limit * share * draw.choice([1, 1, 2, 3])}
    else:
        overlong = draw.choice(["raise", "truncate", "drop", "split", "split"])
        said |= {"size": limit, "rows": draw.choice([1, 1, 2, 3]) * share}
    if kind in ("fixed", "tokens", "cost"):
        if draw.random() < 0.3:
            said["multiple"] = draw.choice([2, 4])
            if kind == "tokens":
                said["size"] = -(-said["size"] // (share * 4)) * share * 4
            if kind == "cost":
                said["size"] += 200 * share
        elif draw.random() < 0.2:
            said["buckets"] = tuple(sorted({max(1, longest // 2), longest}))
            if kind != "fixed":
                said["size"] = max(said["size"], int(longest * (1 + longest)) * share)
    if kind in ("fixed", "tokens", "cost"):
        said["layout"] = draw.choice(["padded"] * 5 + ["nested", "grouped"])
        said["num_groups"] = draw.choice([1, 2, 4])
    said["pad_side"] = draw.choice(["right", "right", "left"]) if said.get("layout", "padded") == "padded" else "right"
    said["pad_values"] = draw.choice([{}, {}, {"input_ids": 7}])
    said["drop_last"] = draw.random() < 0.2 and overlong != "alone"
    said["shuffle"] = draw.choice([False, False, False, True, "stratified"])
    return Batching(overlong=overlong, **said)


# -- comparing -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """As lists and numbers."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [one.tolist() for one in value.unbind()]
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, Collection):
        return [value.partition, [plain(dict(group)) for group in value.groups]]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def first_token(tokens: Sequence[int]) -> int | tuple[int, ...]:
    """A token that is in no other row, or all of a row that has BOS and EOS alone; padding is 0 or 7."""
    return next(
        (token for token in tokens if token >= FIRST_TOKEN), tuple(token for token in tokens if token in (1, 2))
    )


def keys_of(rows: Sequence[Row], numbers: Sequence[str]) -> list[Any]:
    """What tells rows apart: their numbers, and a token that is in no other row."""
    return [(*(row[name] for name in numbers), first_token(row["input_ids"])) for row in rows]


def rows_in(batch: dict[str, Any], numbers: Sequence[str], said: Batching, collates: bool) -> list[Any]:
    """The keys of the rows of a batch of theirs; of packed ones those of each row's pieces."""
    if collates:
        return keys_of(plain(batch["samples"]), numbers)
    if said.kind == "pack":
        pieces, packs = iter(range(len(batch["lengths"]))), []
        for tokens, segments in zip(batch["input_ids"].tolist(), batch["segment_ids"].tolist(), strict=True):
            at, keys = 0, []
            while at < sum(map(bool, segments)):
                which = next(pieces)
                length = int(batch["lengths"][which])
                keys.append((*(plain(batch[name])[which] for name in numbers), first_token(tokens[at : at + length])))
                at += length
            packs.append(keys)
        for which in pieces:  # empty samples behind the last token
            packs[-1].append((*(plain(batch[name])[which] for name in numbers), ()))
        return packs
    source = batch.get("groups", batch)
    columns = [source[name] for name in (*numbers, "input_ids")]
    if "groups" in batch:
        columns = [column.ungroup() for column in columns]
    columns = [[plain(one) for one in column] if isinstance(column, list) else plain(column) for column in columns]
    keys = [(*row[:-1], first_token(row[-1])) for row in zip(*columns, strict=True)]
    return keys[: max(1, int(batch["sample_weights"].sum()))] if "sample_weights" in batch else keys  # a filler has one


def flat(keys: Sequence[Any], said: Batching) -> list[Any]:
    return [key for row in keys for key in row] if said.kind == "pack" else list(keys)


@dataclass
class Expected:
    """What batches of a pipeline must be."""

    pipeline: Pipeline

    def __post_init__(self) -> None:
        said, rows = self.pipeline.said, self.pipeline.rows()
        pieces = oracle.cut(rows.rows, said)
        if self.pipeline.repeat and self.pipeline.flows:
            pieces = [row for batch in self.pipeline.planned() for row in flat(batch, said)]
        known = rows.rows or pieces
        columns = list(known[0]) if known else []
        self.numbers = [name for name in columns if isinstance(known[0][name], int | float)]
        self.lists = [name for name in columns if all(oracle.is_numbers(row[name]) for row in known)]
        self.by_key = dict(zip(keys_of(pieces, self.numbers), pieces, strict=True))
        self.keys = Counter(keys_of(oracle.cut(rows.rows, said), self.numbers))
        self.is_exact = rows.ordered and said.is_exact
        self.labels = [name for name in ("shift_labels", "labels") if name in columns][:1]
        if said.kind == "pack" and not self.labels:
            self.labels = ["labels"]
        self.are_known = self.pipeline.is_indexed and self.labels == ["labels"]  # without reading the rows

    def check_content(self, batch: dict[str, Any], keys: list[Any], is_filler: bool = False) -> None:
        """A batch is what plain Python makes of its rows."""
        said = self.pipeline.said
        rows = [self.by_key[key] for key in flat(keys, said)]
        if self.pipeline.collates:
            assert plain(batch["samples"]) == rows
            return
        theirs = {name: plain(value) for name, value in batch.items() if name not in OF_A_STEP}
        if said.kind == "pack":
            longest = max((b - a for a, b in zip(theirs["cu_seqlens"], theirs["cu_seqlens"][1:])), default=0)
            assert (
                longest
                <= theirs["max_seqlen"]
                == theirs["max_length_q"]
                == theirs["max_length_k"]
                <= -(-longest // 128) * 128
            )
            assert theirs["use_cache"] is False
            assert len(theirs["sample_numbers"]) == len(theirs["lengths"])
            slots = {"input_ids", "position_ids", "segment_ids", "seq_idx", *TOKEN_COLUMNS} & theirs.keys()
            assert {name for name, kind in theirs["column_kinds"].items() if kind == "slots"} == slots
            pieces = {name for name, kind in theirs["column_kinds"].items() if kind == "pieces"} - {LOSS_WEIGHTS}
            assert all(len(theirs[name]) == len(theirs["lengths"]) for name in pieces)
            assert {name for name, one in theirs.items() if isinstance(one, list)} - slots - pieces == BOUNDS
            assert batch["cu_seqlens"].dtype == batch["seq_idx"].dtype == torch.int32
            for numbers, ids in zip(theirs["seq_idx"], theirs["segment_ids"], strict=True):
                known: dict[int, int] = {}  # segments of a row by number, from 0 on; what is padded is one of its own
                assert numbers == [known.setdefault(one, len(known)) for one in ids]
            theirs = {name: value for name, value in theirs.items() if name not in OF_A_PACK}
            packs = [[self.by_key[key] for key in row] for row in keys]
            ours = oracle.packed(packs, said, said.rows // said.share)
            if is_filler:
                labels = {name: rows for name, rows in ours.items() if oracle.is_labels(name)}
                ours |= {name: [[NO_LABEL] * len(row) for row in rows] for name, rows in labels.items()}
            for name in self.lists:  # other lists of the pieces: as lists, or padded with one another
                if name in theirs and name not in TOKEN_COLUMNS and name != "input_ids":
                    fill = NO_LABEL if oracle.is_labels(name) else 0
                    width = max(map(len, theirs[name]), default=0)
                    for result in (ours, theirs):
                        result[name] = [oracle.widened(one, width, fill, False) for one in result[name]]
        elif is_filler:
            unlabelled = [oracle.without_labels(row) for row in rows]
            ours = self.made(unlabelled, None if "groups" in batch else len(theirs["input_ids"][0]))
        else:
            ours = self.made(rows)
            assert said.overlong == "alone" or said.fits(len(rows), max(len(row["input_ids"]) for row in rows))
        if "groups" in theirs:
            self.check_groups(theirs, rows if not is_filler else unlabelled)
            return
        assert batch["input_ids"].dtype == torch.int64
        if "sample_weights" in theirs and is_filler:
            del theirs["sample_weights"], ours["sample_weights"]
        assert theirs.keys() == ours.keys()
        assert {name: value for name, value in theirs.items() if value != ours[name]} == {
            name: value for name, value in ours.items() if value != theirs[name]
        }

    def made(self, rows: list[Row], width: int | None = None) -> dict[str, Any]:
        said = self.pipeline.said
        if said.kind == "static":
            return oracle.static(rows, said, self.lists)
        return oracle.nested(rows) if said.layout == "nested" else oracle.padded(rows, said, self.lists, width)

    def check_groups(self, theirs: dict[str, Any], rows: list[Row]) -> None:
        said = self.pipeline.said
        partition, groups = theirs.pop("groups")
        assert sorted(number for members in partition for number in members) == list(range(len(rows)))
        assert len(partition) <= said.num_groups
        slots = 0
        for members, group in zip(partition, groups, strict=True):
            of_group = [rows[number] for number in members]
            width = said.width(of_group)
            ours = oracle.padded(of_group, said, self.lists, width)
            slots += len(members) * width
            assert group == {name: ours[name] for name in ours if name not in theirs}
        assert slots == oracle.least_slots([said.width([row]) for row in rows], said.num_groups)
        assert theirs == {name: [row[name] for row in rows] for name in theirs}
        assert set(theirs) == {name for name in rows[0] if name not in self.lists and name not in self.numbers}

    def supervised(self, batch: dict[str, Any]) -> int:
        """Labels of a batch that the loss is taken over: the shifted ones, where there are both."""
        parts = list(batch["groups"].groups) if "groups" in batch else [batch]
        (name,) = self.labels
        return sum(oracle.supervised({name: plain(part[name])}, name) for part in parts)


def token_means(batches: Sequence[dict[str, Any]], labels: Sequence[str]) -> float:
    """The sum of what `token_mean` makes of the losses of batches, where a label's loss is the label."""
    total = 0.0
    for batch in batches:
        parts = list(batch["groups"].groups) if "groups" in batch else [batch]
        values = [value for part in parts for row in plain(part[labels[0]]) for value in row if value != NO_LABEL]
        known = {labels[0]: torch.cat(batch["groups"][labels[0]].ungroup())} | batch if "groups" in batch else batch
        total += float(bf.token_mean(torch.tensor(float(sum(values)), dtype=torch.float64), known))
    return total


def check_steps(ranks: list[list[dict[str, Any]]], expected: Expected) -> None:
    """All batches of a step know the labels of all of them, and the last of each rank ends it."""
    pipeline = expected.pipeline
    said, world_size = pipeline.said, pipeline.world_size
    for first in range(0, len(ranks[0]), said.share):
        step = [rank[first : first + said.share] for rank in ranks]
        for mine in step:
            if said.micro:
                assert [batch["ends_step"] for batch in mine] == [False] * (len(mine) - 1) + [True]
        if not expected.labels or pipeline.collates:
            continue
        counts = [sum(map(expected.supervised, mine)) for mine in step]
        for mine, count in zip(step, counts, strict=True):
            for batch in mine:
                if "num_items_on_rank" in batch:
                    assert world_size > 1
                    assert not expected.are_known
                    assert int(batch["num_items_on_rank"]) == count
                elif "num_items_in_batch" in batch or said.micro or expected.are_known:
                    assert int(batch["num_items_in_batch"]) == sum(counts)
        if ("num_items_in_batch" in step[0][0] or world_size == 1) and sum(counts):
            values = [
                value
                for mine in step
                for batch in mine
                for part in (batch["groups"].groups if "groups" in batch else [batch])
                for row in plain(part[expected.labels[0]])
                for value in row
                if value != NO_LABEL
            ]
            means = [token_means(mine, expected.labels) for mine in step]
            assert sum(means) / world_size == pytest.approx(sum(values) / len(values)), "ranks average their gradients"


def check(number: int, folder: Path) -> None:
    """One pipeline, from its rows to its steps."""
    pipeline = drawn(number)
    said, draw = pipeline.said, random.Random(number)
    rows = pipeline.rows()
    if not pipeline.repeat and draw.random() < 0.5:
        theirs, ours = [plain(dict(sample)) for sample in pipeline.dataset(folder)], rows.rows
        if not rows.ordered:
            theirs, ours = sorted(theirs, key=str), sorted(ours, key=str)
        assert theirs == ours
    try:
        expected = Expected(pipeline)
    except TooLongError:
        with pytest.raises(bf.DataError, match="cannot fit"):
            list(pipeline.batches(folder))
        return
    everything = list(taken(pipeline.batches(folder), pipeline.repeat * pipeline.world_size))
    keys = [rows_in(batch, expected.numbers, said, pipeline.collates) for batch in everything]
    if expected.is_exact:
        plan = pipeline.planned()
        if said.kind == "pack":
            packed_keys = [[keys_of(pieces, expected.numbers) for pieces in packs] for packs in plan]
            empty = [[]] * (said.rows // said.share)
            keys_wanted = [(one + empty)[: len(empty)] for one in packed_keys]
            assert [sorted(flat(one, said), key=str) for one in keys] == [
                sorted(flat(one, said), key=str) for one in keys_wanted
            ]
            keys = keys_wanted
        else:
            assert keys == [keys_of(batch, expected.numbers) for batch in plan]
    else:
        found = Counter(key for batch in keys for key in flat(batch, said))
        assert found == expected.keys if not said.drop_last else found <= expected.keys
    for batch, one in zip(everything, keys, strict=True):
        expected.check_content(batch, one)
    mine = everything
    if said.micro:
        world_size, pipeline.world_size = pipeline.world_size, 1
        check_steps([everything], expected)
        pipeline.world_size = world_size
    if pipeline.uneven:
        ranks = taken_by_ranks(pipeline, folder)
        if pipeline.streams > 1:
            check_ranks_of_streams(ranks, keys, expected)
        else:
            check_ranks(ranks, keys, expected)
        check_steps(ranks, expected)
        mine = ranks[-1]
    if draw.random() < 0.25 and (pipeline.streams == 1 or pipeline.world_size == 1):
        check_resume(pipeline, folder, mine, draw.randrange(len(mine) + 1))


def taken(batches: bf.Batches, count: int) -> bf.Batches:
    return batches.take(count) if count else batches


def taken_by_ranks(pipeline: Pipeline, folder: Path) -> list[list[dict[str, Any]]]:
    """The batches of each rank; those that read streams run side by side, as they agree on the end."""
    group = HashStore() if pipeline.streams > 1 < pipeline.world_size else None

    def of_rank(rank: int) -> list[dict[str, Any]]:
        batches = pipeline.batches(folder)
        return list(
            taken(
                batches.shard(rank, pipeline.world_size, uneven=pipeline.uneven, process_group=group), pipeline.repeat
            )
        )

    if not group:
        return [of_rank(rank) for rank in range(pipeline.world_size)]
    with ThreadPoolExecutor(pipeline.world_size) as pool:
        return list(pool.map(of_rank, range(pipeline.world_size)))


def check_ranks_of_streams(ranks: list[list[dict[str, Any]]], keys: list[Any], expected: Expected) -> None:
    """The batches of all streams in their order, and nothing else but fillers; of as many steps on all ranks."""
    pipeline = expected.pipeline
    found, repeated = [], []
    for step in zip(*ranks, strict=True):
        for batch in step:
            theirs = rows_in(batch, expected.numbers, pipeline.said, pipeline.collates)
            assert batch["is_filler"] == (batch["weight"] == 0)
            assert pipeline.uneven == "pad" or not batch["is_filler"]
            known = {str(flat(one, pipeline.said)) for one in found}
            if batch["is_filler"]:
                expected.check_content(batch, theirs, is_filler=True)
            else:
                expected.check_content(batch, theirs)
                is_known = pipeline.uneven == "wrap" and str(flat(theirs, pipeline.said)) in known
                (repeated if is_known else found).append(theirs)
    flats = [[sorted(flat(one, pipeline.said), key=str) for one in which] for which in (found, keys)]
    assert flats[0] == flats[1] if pipeline.uneven != "drop" else flats[0] == flats[1][: len(found)]


def check_ranks(ranks: list[list[dict[str, Any]]], keys: list[Any], expected: Expected) -> None:
    """Batch i is rank i mod world_size's; the last round is made even as was said."""
    pipeline = expected.pipeline
    world_size, count = pipeline.world_size, len(keys)
    rounds = count // world_size if pipeline.uneven == "drop" else -(-count // world_size)
    assert [len(rank) for rank in ranks] == [rounds] * world_size
    for number, batch in enumerate(batch for step in zip(*ranks, strict=True) for batch in step):
        theirs = rows_in(batch, expected.numbers, pipeline.said, pipeline.collates)
        is_filler = number >= count and pipeline.uneven == "pad"
        assert batch["is_filler"] == is_filler
        assert (batch["weight"] == 0) == is_filler
        if is_filler:
            packs = theirs if pipeline.said.kind == "pack" else [theirs]  # empty samples may lie in any row
            assert sum(any(key[-1] != () for key in row) for row in packs) <= 1
            expected.check_content(batch, theirs, is_filler)
        else:
            wanted = keys[number % count]
            assert sorted(flat(theirs, pipeline.said), key=str) == sorted(flat(wanted, pipeline.said), key=str)
            expected.check_content(batch, wanted)


def check_resume(pipeline: Pipeline, folder: Path, batches: list[dict[str, Any]], at: int) -> None:
    """A state taken anywhere is followed by the same batches."""

    def made() -> bf.Batches:
        if not pipeline.uneven:
            return taken(pipeline.batches(folder), pipeline.repeat * pipeline.world_size)
        last = pipeline.world_size - 1
        return taken(pipeline.batches(folder).shard(last, pipeline.world_size, uneven=pipeline.uneven), pipeline.repeat)

    with made().iter() as it:
        for _ in range(at):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    with made().iter(state) as it:
        rest = [plain(batch) for batch in it]
    assert rest == [plain(batch) for batch in batches[at:]]


def numbers(part: int) -> Iterator[int]:
    return iter(range(FIRST + part, FIRST + PIPELINES, PARTS))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_pipelines_hold_what_plain_python_says(part: int, tmp_path: Path) -> None:
    for number in numbers(part):
        try:
            check(number, tmp_path / str(number))
        except Exception as error:
            raise AssertionError(str(drawn(number))) from error
