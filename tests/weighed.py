"""Random training loops: labels of every type, fillers, copies, users' policies and collate functions, micro batches, ranks.

Each `Loop` knows itself as brimful's users write it (`batches`), and as plain Python has it (`Piece`, `trained_on`).
"""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch

import brimful as bf
from brimful.plan import OverlongError
from tests import oracle
from tests.oracle import NO_LABEL, Batching, Row
from tests.shards import write

LONGEST: Final = 9
SPREAD: Final = 16
"""Row n has the tokens from n x SPREAD on: each is in one place of one row."""

# -- labels --------------------------------------------------------------------------------------------------------------


class Labels(NamedTuple):
    """How the rows of a data set have labels.

    Args:
        of: draws those of a row of so many tokens.
        by: what counts as one: a "token" that is not -100, a "class" (a row, unless all that it has are -100), a "row".
        follow: whether there is one a token.
        name: of their column.
    """

    of: Callable[[random.Random, int], Any]
    by: str
    follow: bool = False
    name: str = "labels"


def sometimes(draw: random.Random, label: Any) -> Any:
    return NO_LABEL if draw.random() < 0.3 else label


def by_token(draw: random.Random, length: int) -> list[int]:
    if draw.random() < 0.2:
        return [NO_LABEL] * length
    return [sometimes(draw, draw.randrange(50)) for _ in range(length)]


LABELS: Final = {
    "tokens": Labels(by_token, "token", follow=True),
    "shifted": Labels(by_token, "token", follow=True, name="shift_labels"),
    "token numbers": Labels(lambda draw, length: [draw.randrange(9) / 4 for _ in range(length)], "row", follow=True),
    "class": Labels(lambda draw, _: sometimes(draw, draw.randrange(9)), "class"),
    "number": Labels(lambda draw, _: draw.randrange(-9, 9) / 4, "row"),
    "flag": Labels(lambda draw, _: draw.random() < 0.5, "row"),
    "multi-hot": Labels(lambda draw, _: [draw.randrange(2) for _ in range(3)], "class"),
    "multi-hot numbers": Labels(lambda draw, _: [draw.randrange(2) / 1 for _ in range(3)], "row"),
    "multi-hot flags": Labels(lambda draw, _: [draw.random() < 0.5 for _ in range(3)], "row"),
    "own list": Labels(lambda draw, _: by_token(draw, draw.randrange(1, 5)), "class"),
}
"""By name; a data set has those of one of them, or none."""


class Made(NamedTuple):
    """Labels that a collate_fn makes of rows which have none. `of` gets the tokens of a row."""

    of: Callable[[list[int]], list[Any]]
    by: str


MADE: Final = {
    "own classes": Made(lambda tokens: [NO_LABEL if len(tokens) == 2 else len(tokens)], "class"),
    "own numbers": Made(lambda tokens: [len(tokens) / 4], "row"),
    "own tokens": Made(lambda tokens: [token if token % 3 else NO_LABEL for token in tokens], "token"),
}


class Piece(NamedTuple):
    """The tokens of a row that are in a batch."""

    row: int
    first: int
    last: int


@dataclass(frozen=True)
class Data:
    """The rows of a data set, as brimful takes them: shared by a few loops, since to make it costs more than to read it."""

    number: int
    kind: str
    rows: list[Row] = field(repr=False)

    @cached_property
    def sequence(self) -> bf.IndexedDataset:
        return bf.from_sequence(self.rows)

    @cached_property
    def endless(self) -> bf.IndexedDataset:
        return bf.from_sequence(self.rows, repeat=True)

    @cached_property
    def stream(self) -> bf.Dataset:
        return bf.from_iterable(self.rows)

    def objects(self, collate_fn: Callable[[list[Row]], Any]) -> bf.Dataset:
        """The rows as a user's data set, of which brimful knows the lengths alone."""
        return bf.from_dataset(self.rows, lengths=[len(row["input_ids"]) for row in self.rows], collate_fn=collate_fn)

    def store(self, folder: Path) -> bf.IndexedDataset:
        if not (path := folder / f"store-{self.number}").exists():
            list(self.sequence.to_store(path))
        return bf.from_store(path)

    def files(self, folder: Path, streams: int) -> bf.Dataset:
        if not (path := folder / f"files-{self.number}").exists():
            for number in range(4):
                write(path / f"{number}.jsonl", self.rows[number::4])
        return bf.from_files(str(path / "*.jsonl"), streams=streams, n_active_shards=1)


@lru_cache(4)
def data_of(number: int) -> Data:
    draw = random.Random(f"data {number}")
    kind = draw.choice(["none", "tokens", *LABELS])
    lengths = draw.choice([[1, 2, 3], [0, 1, 2, 5, LONGEST], [4], list(range(1, LONGEST + 1))])
    rows: list[Row] = []
    for n in range(draw.choice([1, 3, 4, 5, 7, 8, 12])):
        length = draw.choice(lengths)
        if n == 0 or kind == "token numbers":  # of lists that are all empty nobody sees whether they are of fractions
            length = max(1, length)
        row: Row = {"id": n, "input_ids": [SPREAD * n + place for place in range(length)]}
        if kind != "none":
            row[LABELS[kind].name] = LABELS[kind].of(draw, length)
        rows.append(row)
    return Data(number, kind, rows)


# -- what users write ----------------------------------------------------------------------------------------------------


def halves(lengths: list[int]) -> list[list[int]]:
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    return [half for half in (order[: len(order) // 2], order[len(order) // 2 :]) if half]


def each_alone(lengths: list[int]) -> list[list[int]]:
    return [[number] for number in reversed(range(len(lengths)))]


def dealt(lengths: list[int]) -> list[list[int]]:
    return [list(range(len(lengths)))[first::3] for first in range(min(3, len(lengths)))]


def triples(lengths: list[int]) -> list[list[int]]:
    return [list(range(len(lengths)))[first : first + 3] for first in range(0, len(lengths), 3)]


def size_of(longest: Row) -> int:
    return max(1, 12 // max(1, len(longest["input_ids"])))


def length_of(sample: Row) -> int:
    return len(sample["input_ids"])


def by_key(lengths: list[int]) -> list[list[int]]:
    """What `size_of` and `length_of` say together."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batches = []
    while order:
        size = max(1, 12 // max(1, lengths[order[0]]))
        batches.append(order[:size])
        order = order[size:]
    return batches


def as_packed(row_length: int) -> Callable[[list[int]], list[list[int]]]:
    """What `Packed` puts into one row."""

    def plan(lengths: list[int]) -> list[list[int]]:
        rows = [{"id": number, "input_ids": [0] * length} for number, length in enumerate(lengths)]
        return [[row["id"] for row in pack] for pack in oracle.best_fit(rows, row_length)]

    return plan


@dataclass(frozen=True)
class Own:
    """A policy of a user's, who names what is too long in `max_length`, or by an OverlongError."""

    made_by: Callable[[list[int]], list[list[int]]]
    most: int
    declared: bool = True

    @property
    def max_length(self) -> int | None:
        return self.most if self.declared else None

    def plan(self, lengths: Any) -> bf.Plan:
        if not self.declared and (long := [number for number, one in enumerate(lengths) if one > self.most]):
            raise OverlongError("too long: a sample cannot fit", sample=long[0], samples=tuple(long))
        return bf.Plan.of(lengths, self.made_by([int(one) for one in lengths]))


@dataclass(frozen=True)
class FilledUp:
    """A policy of a user's with one static shape: three rows, of which the last ones may be copies."""

    max_length: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(3, self.max_length)]

    def plan(self, lengths: Any) -> bf.Plan:
        if long := [number for number, one in enumerate(lengths) if one > self.max_length]:
            raise OverlongError("too long: a sample cannot fit", sample=long[0], samples=tuple(long))
        batches = triples([int(one) for one in lengths])
        widths, sizes = [self.max_length] * len(batches), [3] * len(batches)
        return bf.Plan.of(lengths, batches, padded_lengths=widths, padded_sizes=sizes)


def squared(length: Any) -> Any:
    """What a sample costs, of attention."""
    return length * length


def as_tensors(samples: list[Row], labels: list[Any]) -> dict[str, Any]:
    """What collate functions here return: tokens as lists, and labels as one tensor, padded with -100."""
    if labels and not isinstance(labels[0], int | float):
        width = max(1, *map(len, labels))
        labels = [[*one, *[NO_LABEL] * (width - len(one))] for one in labels]
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "input_ids": [list(sample["input_ids"]) for sample in samples],
        "labels": torch.tensor(labels),
    }


def as_given(samples: list[Row]) -> dict[str, Any]:
    name = "shift_labels" if "shift_labels" in samples[0] else "labels"
    if name not in samples[0]:
        made = as_tensors(samples, [0] * len(samples))
        return {key: value for key, value in made.items() if key != "labels"}
    made = as_tensors(samples, [sample[name] for sample in samples])
    return {name if key == "labels" else key: value for key, value in made.items()}


def filled_up(samples: list[Row]) -> dict[str, Any]:
    """Copies of the first sample that the function makes itself, and marks."""
    made = as_given([*samples, *samples[:1] * (3 - len(samples))])
    for name in ("labels", "shift_labels"):
        if name in made and made[name].dtype == torch.int64:
            made[name][len(samples) :] = NO_LABEL
    return made | {"sample_weights": torch.tensor([1.0] * len(samples) + [0.0] * (3 - len(samples)))}


def own_labels(kind: str) -> Callable[[list[Row]], dict[str, Any]]:
    def collate(samples: list[Row]) -> dict[str, Any]:
        labels = [MADE[kind].of([int(token) for token in sample["input_ids"]]) for sample in samples]
        return as_tensors(samples, labels if kind == "own tokens" else [one for (one,) in labels])

    return collate


def in_user_dict(fn: Callable[[list[Row]], dict[str, Any]]) -> Callable[[list[Row]], UserDict[str, Any]]:
    """As tokenizers of transformers return their results."""
    return lambda samples: UserDict(fn(samples))


COLLATE: Final = {"as given": as_given, "filled up": filled_up} | {kind: own_labels(kind) for kind in MADE}

# -- loops ---------------------------------------------------------------------------------------------------------------

Stream: TypeAlias = list[tuple[list[Piece], bool]]


@dataclass
class Loop:
    """A training loop on all of its ranks."""

    number: int
    data: Data
    source: str
    streams: int
    said: Batching
    policy: Any
    collate: str = ""
    in_user_dict: bool = False
    world_size: int = 1
    shards: bool = False
    uneven: Any = "pad"
    unlabelled: str = "keep"
    truncate_side: str = "right"
    pads_labels_with: int = NO_LABEL
    as_numbers: bool = False
    """Whether labels that are integers become float32."""
    by_row: bool = False
    """Whether the loop hands its losses to `token_mean` by row, and not their sum."""
    fails_in_fillers: bool = False
    """Whether its loss of a filler is NaN."""
    balances: bool = False
    pairs: bool = False
    """Whether labels have a length of their own that is planned over, as those of translations have."""
    on_device: bool = False
    steps: int = 0
    """How many batches each rank takes of data that repeat; 0: an epoch."""

    # -- as brimful has it

    @property
    def options(self) -> dict[str, Any]:
        said = self.said
        options: dict[str, Any] = {
            "window": said.window,
            "overlong": said.overlong,
            "truncate_side": self.truncate_side,
            "unlabelled": self.unlabelled,
            "drop_last": said.drop_last,
            "shuffle_batches": said.shuffle,
            "micro_batches": said.micro,
        }
        if said.layout == "grouped":
            options["num_groups"] = 2
        if said.layout != "padded":
            options["layout"] = said.layout
        if said.pad_side != "right":
            options["pad_side"] = said.pad_side
        if self.pairs:
            options["length_column"] = ("input_ids", "labels")
        elif self.labels and not self.labels.follow:
            options["token_columns"] = []
        if self.pads_labels_with != NO_LABEL:
            options["pad_values"] = {self.labels_column: self.pads_labels_with}
        if self.as_numbers:
            options["dtypes"] = {"labels": "float32"}
        if said.kind == "pack":
            options["rows"] = said.rows
        if self.balances:
            options |= {"balance_group": self.world_size, "balance_cost": squared}
        if self.source == "objects":
            options = {name: value for name, value in options.items() if name != "token_columns"}
        usual = {"truncate_side": "right", "unlabelled": "keep", "overlong": "raise", "drop_last": False}
        return {name: value for name, value in options.items() if value is not None and value != usual.get(name)}

    def collate_fn(self) -> Callable[[list[Row]], Any]:
        collate = COLLATE[self.collate]
        return in_user_dict(collate) if self.in_user_dict else collate

    def batches(self, folder: Path) -> bf.Batches:
        options, data = self.options, self.data
        if self.source == "objects":
            rows: bf.Dataset = data.objects(self.collate_fn())
        else:
            rows = data.store(folder) if self.source == "store" else data.sequence
            rows = data.stream if self.source == "iterable" else rows
            rows = data.files(folder, self.streams) if self.source == "files" else rows
            rows = data.endless if self.steps else rows
            options |= {"collate_fn": self.collate_fn()} if self.collate else {}
        if self.said.kind == "key":
            batches = rows.batch_by(size_of, length_of, **options)
        else:
            batches = rows.pack(self.said.size, **options) if self.packs else rows.batch(self.policy, **options)
        return batches.to_device("cpu", prefetch=0, pad_on_device=True) if self.on_device else batches

    def of_rank(self, batches: bf.Batches, rank: int, process_group: Any = None) -> bf.Batches:
        if self.shards:
            batches = batches.shard(rank, self.world_size, uneven=self.uneven, process_group=process_group)
        return batches.take(self.steps) if self.steps else batches

    def __str__(self) -> str:
        """Python that shows the batches of all ranks."""
        options = [f"{name}={getattr(value, '__name__', repr(value))}" for name, value in self.options.items()]
        collate = ""
        if self.collate:
            collate = f"in_user_dict(COLLATE[{self.collate!r}])" if self.in_user_dict else f"COLLATE[{self.collate!r}]"
            collate = f"collate = {collate}\n"
            options += ["collate_fn=collate"] * (self.source != "objects")
        first = f"{self.said.size}" if self.packs else repr(self.policy)
        first = "size_of, length_of" if self.said.kind == "key" else first
        if isinstance(self.policy, bf.StaticShapes | bf.TokenBudget | bf.Packed):
            first = f"bf.{first}"
        if isinstance(self.policy, Own):
            first = f"Own({self.policy.made_by.__name__}, {self.policy.most}, {self.policy.declared})"
        source = {
            "sequence": "bf.from_sequence(rows, repeat=True)" if self.steps else "bf.from_sequence(rows)",
            "objects": f"data_of({self.data.number}).objects(collate)",
            "iterable": "bf.from_iterable(rows)",
            "store": f"data_of({self.data.number}).store(Path('.'))",
            "files": f"data_of({self.data.number}).files(Path('.'), {self.streams})",
        }[self.source]
        verb = {"pack": "pack", "key": "batch_by"}.get(self.said.kind, "batch")
        shard = f".shard(rank, {self.world_size}, uneven={self.uneven!r})" if self.shards else ""
        shard += f".take({self.steps})" * bool(self.steps)
        together = self.source == "files" and self.world_size > 1
        threads = "# in a thread for each rank, with process_group=torch.distributed.HashStore()\n" * together
        device = '.to_device("cpu", prefetch=0, pad_on_device=True)' * self.on_device
        rows = "".join(f"    {row},\n" for row in self.data.rows)
        return (
            f"loop {self.number}, whose losses are {'by row' if self.by_row else 'a sum'}:\n\n"
            f"import brimful as bf\nfrom tests.weighed import *\n\nrows = [\n{rows}]\n{collate}"
            f"batches = {source}.{verb}(\n    {', '.join([first, *options])}\n){device}\n"
            f"{threads}for rank in range({self.world_size}):\n    for batch in batches{shard}:\n        print(rank, batch)\n"
        )

    # -- as plain Python has it

    @property
    def labels(self) -> Labels | None:
        return LABELS.get(self.data.kind)

    @property
    def labels_column(self) -> str:
        return self.labels.name if self.labels else "labels"

    @property
    def packs(self) -> bool:
        return self.said.kind == "pack"

    @property
    def is_indexed(self) -> bool:
        return self.source in ("sequence", "store", "objects")

    @property
    def is_exact(self) -> bool:
        return self.said.is_exact and not self.balances and not self.pairs

    @property
    def has_labels(self) -> bool:
        """Whether its batches have any, of which they may say how many."""
        return bool(self.labels) or self.packs or self.collate in MADE

    @property
    def is_weighed(self) -> bool:
        return self.shards or self.said.share > 1

    @property
    def fills_up(self) -> bool:
        """Whether its batches may end in copies, which have no weight."""
        return self.said.kind in ("static", "filled up") and self.collate in ("", "filled up")

    @property
    def counts_in(self) -> str:
        """The number of labels that each of its batches must have."""
        if self.collate in MADE or not self.is_weighed or self.source == "objects":
            return ""
        of_step = self.said.share > 1 and self.world_size == 1
        if self.labels and self.is_indexed:
            is_class = self.source == "store" and self.data.kind == "class" and not self.as_numbers
            is_unknown = self.labels.name == "shift_labels" or is_class
            of_step |= not is_unknown
        if of_step or (self.packs and self.is_indexed and not self.labels):
            return "num_items_in_batch"
        return "num_items_on_rank" if self.said.share > 1 else ""

    @property
    def counts_as_one(self) -> bool:
        """Whether lists of a row count as one, and its batches must say so: their tensors look as if each value did."""
        if self.data.kind == "multi-hot flags":  # which are integers where padding is -100
            return not self.collate
        is_list = self.data.kind in ("multi-hot", "own list")
        return is_list and not (self.as_numbers or self.pairs) and self.source != "objects"

    @property
    def shows_labels(self) -> bool:
        """Whether the tensors of a batch alone say how many labels they have."""
        if self.said.layout == "grouped" or self.said.layout == "nested" or self.packs:
            return False
        return not self.counts_as_one

    @property
    def is_divisible(self) -> bool:
        """Whether a batch can be cut by row: a label of its own lies beside each."""
        return (
            self.has_labels and self.said.layout != "grouped" and self.pads_labels_with == NO_LABEL and not self.packs
        )

    @property
    def counts_by(self) -> str:
        """What counts as a label in its batches."""
        if self.collate in MADE:
            return MADE[self.collate].by
        if not self.labels:
            return "token"
        if self.source == "objects":  # brimful sees the tensors alone
            return "row" if self.labels.by == "row" else "token"
        if self.as_numbers:
            return "row"
        return "token" if self.pairs else self.labels.by

    def of_piece(self, piece: Piece) -> list[Any]:
        """The labels of a piece of a row, also those of -100."""
        row, cut = self.data.rows[piece.row], slice(piece.first, piece.last)
        if self.collate in MADE:
            return MADE[self.collate].of(row["input_ids"][cut])
        if not self.labels:
            return list(row["input_ids"][cut][1:])
        given = row[self.labels.name]
        if not self.labels.follow:
            return given if isinstance(given, list) else [given]
        labels = given[cut]
        if self.labels.name == "shift_labels":  # of a token that is not here nothing is predicted
            return labels[:-1] if self.packs or piece.last < len(given) else labels
        is_after_gap = piece.first > 0 and self.labels.by == "token"
        return labels[1:] if self.packs or is_after_gap else labels

    def trained_on(self, piece: Piece) -> list[Any]:
        return [label for label in self.of_piece(piece) if label != NO_LABEL]

    def count(self, piece: Piece) -> int:
        if self.counts_by == "row":
            return 1
        trained = self.trained_on(piece)
        return len(trained) if self.counts_by == "token" else bool(trained)

    def loss(self, piece: Piece) -> float:
        """That of a label is one more than the label."""
        return float(sum(label + 1 for label in self.trained_on(piece)))

    def is_left_out(self, piece: Piece) -> bool:
        """Whether a sample is left out of its batch, since nothing of it is trained on."""
        by_token = bool(self.labels) and self.labels.by == "token"  # type: ignore[union-attr]
        return self.unlabelled == "drop" and by_token and not self.trained_on(piece)

    def as_rows(self) -> list[Row]:
        return [{"id": row["id"], "input_ids": row["input_ids"]} for row in self.data.rows]

    def in_streams(self) -> list[list[Row]]:
        rows = self.as_rows()
        if self.source != "files":
            return [rows]
        files = [rows[number::4] for number in range(4)]
        return [[row for file in files[stream :: self.streams] for row in file] for stream in range(self.streams)]

    def piece_of(self, row: Row) -> Piece:
        """Of a row as it was cut: its tokens say where."""
        tokens = row["input_ids"]
        first = tokens[0] - SPREAD * row["id"] if tokens else 0
        whole = len(self.data.rows[row["id"]]["input_ids"])
        if self.truncate_side == "left" and len(tokens) < whole:
            first = whole - len(tokens)
        return Piece(row["id"], first, first + len(tokens))

    def pieces(self) -> list[Piece]:
        """What is in batches, in any order."""
        return [self.piece_of(row) for rows in self.in_streams() for row in oracle.cut(rows, self.said)]

    def planned(self) -> list[list[Piece]]:
        """The batches of an epoch in order, where the documents say it."""
        plans = oracle.in_turn([oracle.planned(rows, self.said) for rows in self.in_streams()])
        if self.packs:
            plans = [[row for pack in packs for row in pack] for packs in plans]
        return [[self.piece_of(row) for row in plan] for plan in plans]


# -- drawing -------------------------------------------------------------------------------------------------------------

PER_DATA: Final = 8
"""Loops that share a data set."""


def drawn(number: int) -> Loop:
    draw = random.Random(f"loop {number}")
    data = data_of(number // PER_DATA)
    labels = LABELS.get(data.kind)
    on_disk = {0: ["store"] * 8, 8: ["files"] * 6}.get(data.number % 16, [])  # written once for several loops
    source = draw.choice(["sequence"] * 8 + ["iterable"] * 2 + on_disk)
    streams = draw.choice([1, 2, 4]) if source == "files" else 1
    said, policy = drawn_policy(draw, max(len(row["input_ids"]) for row in data.rows))
    loop = Loop(number, data, source, streams, said, policy)
    if said.kind not in ("pack", "static", "filled up") and draw.random() < 0.1:
        said.__dict__["layout"] = draw.choice(["nested", "grouped"])
    elif said.kind not in ("pack", "static") and draw.random() < 0.25:
        loop.collate = (
            "filled up" if said.kind == "filled up" else draw.choice([*MADE, *MADE] if not labels else ["as given"])
        )
        loop.in_user_dict = draw.random() < 0.3
    if not (loop.collate or loop.packs or said.layout != "padded") and draw.random() < 0.2:
        said.__dict__["pad_side"] = "left"
    if said.overlong == "truncate" and draw.random() < 0.4:
        loop.truncate_side = "left"
    if labels and labels.by == "token" and not loop.packs and said.is_exact and draw.random() < 0.6:
        loop.unlabelled = "drop"
    if labels and labels.by == "token" and not loop.collate and draw.random() < 0.05:
        loop.pads_labels_with = 0
    if data.kind == "own list" and said.kind == "tokens" and draw.random() < 0.6:
        pair(loop, draw.choice([1, 2]))
    loop.as_numbers = (
        bool(labels) and labels.by == "class" and not loop.collate and not loop.pairs and draw.random() < 0.2
    )
    loop.by_row, loop.fails_in_fillers = draw.random() < 0.5, draw.random() < 0.3
    loop.world_size = draw.choice([1, 1, 1, 1, 1, 2, 2, 2, 3, 4])
    if source == "iterable":
        loop.world_size = 1
    if source == "files":
        loop.world_size = draw.choice([one for one in (1, 2, 4) if streams % one == 0])
    loop.shards = loop.world_size > 1 or draw.random() < 0.4
    loop.uneven = draw.choice(["pad", "pad", "pad", "drop", "wrap"])
    takes_lengths = said.kind != "key" and not loop.pairs and said.overlong != "truncate"
    if loop.collate and source == "sequence" and takes_lengths and draw.random() < 0.4:
        loop.source, loop.unlabelled = "objects", "keep"
    if not loop.collate and not loop.packs and said.layout == "padded" and draw.random() < 0.1:
        loop.on_device = True
    if source == "sequence" and said.window is not None and loop.unlabelled == "keep" and draw.random() < 0.1:
        loop.balances = True
    if loop.source == "sequence" and loop.is_exact and said.window is not None and draw.random() < 0.1:
        repeat(loop)
    return loop


def pair(loop: Loop, most: int) -> None:
    """Plans over the lengths of tokens and of labels, of which there are at most 4 a row."""
    longest = max(len(row["input_ids"]) + 4 for row in loop.data.rows)
    loop.pairs, loop.truncate_side = True, "right"
    loop.said.__dict__.update(size=longest * most * loop.said.share, overlong="raise")
    loop.policy = bf.TokenBudget(loop.said.size)


def repeat(loop: Loop) -> None:
    """Takes whole steps of about two epochs, where an epoch has a batch."""
    with suppress(oracle.TooLongError):
        batches = len(loop.planned())
        of_epoch = batches // loop.world_size if loop.uneven == "drop" else -(-batches // loop.world_size)
        loop.steps = max(1, 2 * of_epoch // loop.said.share) * loop.said.share if of_epoch else 0


OWN: Final = (halves, each_alone, dealt, triples)


def drawn_policy(draw: random.Random, longest: int) -> tuple[Batching, Any]:
    kind = draw.choice(
        [
            "fixed",
            "fixed",
            "tokens",
            "tokens",
            "static",
            "static",
            "filled up",
            "own",
            "own",
            "pack",
            "pack",
            "key",
            "packed",
        ]
    )
    micro = draw.choice([None, None, 2, 3])
    share = micro or 1
    limit = longest + draw.choice([0, 0, 3]) if draw.random() < 0.7 else max(1, longest - draw.randrange(4))
    overlong = draw.choice(["raise", "truncate", "truncate", "drop", "alone"])
    said: dict[str, Any] = {"micro": micro, "window": draw.choice([3, 5, 8, "auto"])}
    said["shuffle"] = draw.choice([False, False, False, True, "stratified"])
    said["drop_last"] = draw.random() < 0.1 and overlong != "alone"
    policy: Any = None
    if kind == "fixed":
        size = draw.choice([1, 2, 3, 4])
        said |= {"size": size * share, "window": draw.choice([None, said["window"]])}
        overlong, policy = "raise", size * share
    elif kind == "tokens":
        said["size"] = limit * share * draw.choice([1, 2])
        policy = bf.TokenBudget(said["size"])
    elif kind == "static":
        said |= {"buckets": tuple(sorted({max(1, limit // 2), limit})), "size": limit * share * draw.choice([1, 2, 3])}
        overlong = "truncate" if overlong == "alone" else overlong
        policy = bf.StaticShapes(said["buckets"], said["size"])
    elif kind == "pack":
        said |= {"size": limit, "rows": draw.choice([1, 2]) * share}
        overlong = "split" if overlong == "alone" else overlong
    elif kind == "key":
        said |= {"size": 1_000, "own": by_key, "window": draw.choice([3, 5, 8])}
        overlong = "raise"
    elif kind == "packed":
        said |= {"size": limit, "own": as_packed(limit)}
        policy = bf.Packed(limit)
    elif kind == "filled up":
        said |= {"size": limit, "own": triples}
        overlong = "truncate" if overlong == "alone" else overlong
        policy = FilledUp(limit)
    else:
        said |= {"size": limit, "own": draw.choice(OWN)}
        policy = Own(said["own"], limit, declared=overlong == "truncate" or draw.random() < 0.5)
    if said["window"] == "auto" or said["shuffle"] is not False:
        said["drop_last"] = said["drop_last"] and kind == "tokens"
    return Batching(kind, overlong=overlong, **said), policy
