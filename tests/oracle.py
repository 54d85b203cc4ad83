"""What samples and batches must be, in plain Python: lists and dicts, one after another, and nothing of brimful.

It is written from API.md and the docstrings alone, to be read beside them. `Rows` has the verbs of a data set, `planned` cuts
rows into batches, `padded`, `packed` and `groups` fill them. A batch of brimful's must be equal to theirs, cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]
NO_LABEL: Final = -100
TOKEN_COLUMNS: Final = (
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "special_tokens_mask",
    "labels",
    "shift_labels",
)


class TooLongError(Exception):
    """A sample that the policy cannot place."""


# -- samples -------------------------------------------------------------------------------------------------------------


def in_turn(lists: Iterable[Sequence[Any]]) -> list[Any]:
    """One of each in turn; what has ended is left out."""
    lists = list(lists)
    longest = max(map(len, lists), default=0)
    return [one[place] for place in range(longest) for one in lists if place < len(one)]


@dataclass(frozen=True)
class Rows:
    """The samples of an epoch, of each stream for itself, and whether their order is known."""

    streams: tuple[list[Row], ...]
    ordered: bool = True

    @property
    def rows(self) -> list[Row]:
        return in_turn(self.streams)

    def _each(self, change: Callable[[list[Row]], list[Row]]) -> Rows:
        return replace(self, streams=tuple(change(rows) for rows in self.streams))

    def map(self, fn: Callable[[Row], Row]) -> Rows:
        return self._each(lambda rows: [fn(row) for row in rows])

    def filter(self, fn: Callable[[Row], Any]) -> Rows:
        return self._each(lambda rows: [row for row in rows if fn(row)])

    def filter_map(self, fn: Callable[[Row], Row | None]) -> Rows:
        return self._each(lambda rows: [made for row in rows if (made := fn(row)) is not None])

    def flat_map(self, fn: Callable[[Row], Iterable[Row]]) -> Rows:
        return self._each(lambda rows: [made for row in rows for made in fn(row)])

    def scan(self, fn: Callable[[Any, Row], tuple[Any, Row]], initial: Any) -> Rows:
        made, carry = [], initial
        for row in self.rows:
            carry, one = fn(carry, row)
            made.append(one)
        return replace(self, streams=(made,))

    def take(self, n: int) -> Rows:
        return self._each(lambda rows: rows[:n])

    def skip(self, n: int) -> Rows:
        return self._each(lambda rows: rows[n:])

    def stride(self, interval: int, offset: int) -> Rows:
        return self._each(lambda rows: rows[offset::interval])

    def enumerate(self, count_column: str) -> Rows:
        return self._each(lambda rows: [row | {count_column: number} for number, row in enumerate(rows)])

    def shuffle(self, buffer_size: int) -> Rows:
        return replace(self, ordered=self.ordered and (buffer_size == 1 or max(map(len, self.streams)) < 2))

    def select(self, names: Sequence[str]) -> Rows:
        return self.map(lambda row: {name: row[name] for name in names})

    def drop(self, names: Sequence[str]) -> Rows:
        return self.map(lambda row: {name: value for name, value in row.items() if name not in names})

    def rename(self, names: dict[str, str]) -> Rows:
        return self.map(lambda row: {names.get(name, name): value for name, value in row.items()})

    def add_bos_eos(self, bos: int | None, eos: int | None) -> Rows:
        before, after = [bos] * (bos is not None), [eos] * (eos is not None)
        return self.map(lambda row: row | {"input_ids": before + row["input_ids"] + after})

    def causal_labels(self, shift: bool) -> Rows:
        return self.map(lambda row: with_labels(row, shift))

    def pad(self, length: int, values: dict[str, int]) -> Rows:
        def filled(row: Row) -> Row:
            first = len(row[next(iter(values))])
            mask = row.get("attention_mask", [1] * first)
            lists = {name: row[name] + [fill] * (length - len(row[name])) for name, fill in values.items()}
            return row | {"attention_mask": mask + [0] * (length - len(mask))} | lists

        return self.map(filled)

    def chunk(self, chunk_length: int, target_columns: Sequence[str], drop_remainder: bool) -> Rows:
        def cut(row: Row) -> list[Row]:
            pieces = sliced({name: row[name] for name in target_columns}, chunk_length)
            return [one for one in pieces if not drop_remainder or len(one[target_columns[0]]) == chunk_length]

        return self.flat_map(cut)

    def concat_chunk(self, chunk_length: int, target_columns: Sequence[str], drop_remainder: bool) -> Rows:
        def cut(rows: list[Row]) -> list[Row]:
            whole = {name: list(chain.from_iterable(row[name] for row in rows)) for name in target_columns}
            chunks = sliced(whole, chunk_length)
            return [one for one in chunks if not drop_remainder or len(one[target_columns[0]]) == chunk_length]

        return self._each(cut)

    def pack_chunk(self, chunk_length: int, target_columns: Sequence[str], discard_long_samples: bool) -> Rows:
        def join(rows: list[Row]) -> list[Row]:
            first, chunks = target_columns[0], []
            held: Row = {name: [] for name in target_columns}
            for row in rows:
                if len(row[first]) > chunk_length and discard_long_samples:
                    continue
                if len(held[first]) + len(row[first]) > chunk_length:
                    chunks.append(held)
                    held = {name: [] for name in target_columns}
                held = {name: held[name] + row[name][:chunk_length] for name in target_columns}
            return [one for one in [*chunks, held] if one[first]]

        return self._each(join)


def sliced(row: Row, length: int) -> list[Row]:
    """A row of lists cut into pieces of a length, the last one of what is left."""
    longest = max(map(len, row.values()))
    return [{name: values[at : at + length] for name, values in row.items()} for at in range(0, longest, length)]


def with_labels(row: Row, shift: bool) -> Row:
    """A label is what the token before predicts: so both must be visible, and a first token is none."""
    tokens = row["input_ids"]
    mask = row.get("attention_mask", [1] * len(tokens))
    seen = [place > 0 and mask[place - 1] and mask[place] for place in range(len(tokens))]
    given = row.get("labels", tokens)
    labels = [label if is_seen else NO_LABEL for label, is_seen in zip(given, seen, strict=True)]
    if not shift:
        return row | {"labels": labels}
    return row | {"shift_labels": [*labels, NO_LABEL][1:] if tokens else []}


def concatenated(parts: Sequence[Rows]) -> Rows:
    return Rows((list(chain.from_iterable(part.rows for part in parts)),), all(part.ordered for part in parts))


def interleaved(parts: Sequence[Rows], weights: Sequence[float], stop: str) -> Rows:
    """Next is the one whose next sample is due first: (served + 1/2) / weight; ties to the first."""
    served, places, mixed = [0] * len(parts), [0] * len(parts), []
    running, ended = list(range(len(parts))), set[int]()
    while running:
        one = min(running, key=lambda which: ((served[which] + 0.5) / weights[which], which))
        rows = parts[one].rows
        if places[one] == len(rows):
            ended.add(one)
            if stop == "first" or len(ended) == len(parts):
                break
            if stop == "all":
                running.remove(one)
                continue
            places[one] = 0
        mixed.append(rows[places[one]])
        served[one] += 1
        places[one] += 1
    return Rows((mixed,), all(part.ordered for part in parts))


def side_by_side(rows: Rows, names: dict[str, str]) -> Rows:
    """Each row beside itself under other names."""
    return rows.map(lambda row: {name: row[name] for name in row} | {new: row[old] for old, new in names.items()})


# -- plans ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batching:
    """What the user says of batches. The limits are those of a step: its batches have a share each."""

    kind: str
    size: int
    window: int | str | None = None
    buckets: tuple[int, ...] | None = None
    multiple: int = 1
    quadratic: float = 0.0
    rows: int = 1
    overlong: str = "raise"
    drop_last: bool = False
    shuffle: Any = False
    micro: int | None = None
    layout: str = "padded"
    num_groups: int = 4
    pad_side: str = "right"
    pad_values: dict[str, int] = field(default_factory=dict)
    own: Callable[[list[int]], list[list[int]]] | None = None
    """The plan of a policy of the user's: lengths of at most `size` tokens to numbers. It has no share."""

    @property
    def share(self) -> int:
        return self.micro or 1

    def rounded(self, length: int) -> int:
        length = -(-max(1, length) // self.multiple) * self.multiple
        return min((bucket for bucket in self.buckets or () if bucket >= length), default=length)

    def sorted_by(self, length: int) -> int:
        """What rounding is put around a policy rounds first; token budgets and static shapes round themselves."""
        is_wrapped = self.kind not in ("tokens", "static") and (self.buckets or self.multiple > 1)
        return self.rounded(length) if is_wrapped else length

    def fits(self, count: int, length: int) -> bool:
        """Whether so many samples, of which the longest has so many tokens, may be one batch."""
        width = self.rounded(length)
        if self.buckets and width > max(self.buckets):
            return False
        if self.own:
            return length <= self.size
        if self.kind == "fixed":
            return count <= self.size // self.share
        if self.kind == "cost":
            return width * count + self.quadratic * count * width * width <= self.size / self.share
        return count * width <= self.size // self.share  # a row of `pack` has no share: see `places`

    def places(self, length: int) -> bool:
        return max(1, length) <= self.size if self.kind == "pack" else self.fits(1, length)

    def longest(self) -> int:
        """The longest sample that can be placed."""
        length = 1
        while self.places(length + 1):
            length += 1
        return length

    def width(self, rows: Sequence[Row]) -> int:
        """What these are padded to, also where one fits nowhere, and is alone."""
        return self.rounded(max(len(row["input_ids"]) for row in rows))

    def alone(self, length: int) -> bool:
        """Whether a sample that fits nowhere may have a batch of its own: not where no bucket holds it."""
        return self.overlong == "alone" and not (self.buckets and length > max(self.buckets))

    @property
    def by_arrival(self) -> bool:
        return self.kind == "fixed" and self.window is None

    @property
    def is_exact(self) -> bool:
        """Whether the documents say which batch comes when."""
        return (self.by_arrival or isinstance(self.window, int)) and self.shuffle is False

    @property
    def full(self) -> int | None:
        """How many rows a batch has that is not the last, where that is fixed."""
        return {"fixed": self.size // self.share, "pack": self.rows // self.share}.get(self.kind)


def visible(row: Row) -> Row:
    """A row without the tokens that its mask hides, and without the mask."""
    mask = row.get("attention_mask")
    if mask is None:
        return row
    seen = {
        name: [value for value, shown in zip(row[name], mask, strict=True) if shown]
        for name in ("input_ids", *TOKEN_COLUMNS)
        if name in row
    }
    return {name: value for name, value in (row | seen).items() if name != "attention_mask"}


def cut_of(row: Row, first: int, last: int) -> Row:
    """Some of a row's tokens; the token behind the last of them is no label any more."""
    piece = row | {name: row[name][first:last] for name in ("input_ids", *TOKEN_COLUMNS) if name in row}
    if "shift_labels" in row and last < len(row["input_ids"]):
        piece["shift_labels"] = [*piece["shift_labels"][:-1], NO_LABEL]
    return piece


def cut(rows: Iterable[Row], said: Batching) -> list[Row]:
    """The rows, or pieces of them, that are batched."""
    pieces = []
    for row in map(visible, rows) if said.kind == "pack" else rows:
        length = len(row["input_ids"])
        if said.places(length) or said.alone(length):
            pieces.append(row)
        elif said.overlong in ("raise", "alone"):
            raise TooLongError
        elif said.overlong == "truncate":
            pieces.append(cut_of(row, 0, said.longest()))
        elif said.overlong == "split":
            pieces += [cut_of(row, at, at + said.size) for at in range(0, length, said.size)]
    return pieces


def windows(rows: list[Row], size: int) -> list[list[Row]]:
    """A last one that is shorter than half joins the one before it."""
    cuts = [rows[at : at + size] for at in range(0, len(rows), size)]
    if len(cuts) > 1 and 2 * len(cuts[-1]) < size:
        cuts[-2:] = [cuts[-2] + cuts[-1]]
    return cuts


def best_fit(pieces: list[Row], row_length: int) -> list[list[Row]]:
    """Longest first, ties by number; each in the row with the least room that holds it, of several the one that came to that
    room last; else in a new row. An empty sample takes a slot."""
    rows: list[list[Row]] = []
    by_room: dict[int, list[int]] = {}
    for piece in sorted(pieces, key=lambda one: -len(one["input_ids"])):
        size = max(1, len(piece["input_ids"]))
        room = min((room for room, which in by_room.items() if which and room >= size), default=None)
        if room is None:
            rows.append([])
            room, which = row_length, len(rows) - 1
        else:
            which = by_room[room].pop()
        rows[which].append(piece)
        by_room.setdefault(room - size, []).append(which)
    return rows


def greedy(pieces: list[Row], said: Batching) -> list[list[Row]]:
    """Sorted longest first, stable, and cut as full as the limit allows; before them what fits nowhere, each alone."""
    batches = [[piece] for piece in pieces if not said.places(len(piece["input_ids"]))]
    first = len(batches)
    pieces = [piece for piece in pieces if said.places(len(piece["input_ids"]))]
    if said.own:
        return batches + [[pieces[number] for number in one] for one in said.own([len(p["input_ids"]) for p in pieces])]
    for piece in sorted(pieces, key=lambda one: -said.sorted_by(len(one["input_ids"]))):
        if len(batches) > first and said.fits(len(batches[-1]) + 1, len(batches[-1][0]["input_ids"])):
            batches[-1].append(piece)
        else:
            batches.append([piece])
    return batches


def planned(rows: list[Row], said: Batching) -> list[Any]:
    """The batches of a stream's epoch: lists of samples, or of rows of pieces where they are packed."""
    if said.by_arrival:
        pieces = cut(rows, said)
        size = said.size // said.share
        batches: list[Any] = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        return [one for one in batches if not said.drop_last or len(one) == size]
    assert isinstance(said.window, int)
    plans: list[list[Any]] = []
    for window in windows(rows, said.window):
        pieces = cut(window, said)
        if said.kind == "pack":
            packs, size = best_fit(pieces, said.size), said.rows // said.share
            batches = [packs[at : at + size] for at in range(0, len(packs), size)]
        else:
            batches = greedy(pieces, said)
        if said.drop_last and said.full is not None:
            batches = [one for one in batches if len(one) == said.full]
        plans.append(batches)
    if said.drop_last and said.full is None and plans:
        plans[-1] = plans[-1][:-1]
    return list(chain.from_iterable(plans))


# -- batches -------------------------------------------------------------------------------------------------------------


def is_labels(name: str) -> bool:
    return name == "labels" or name.endswith("_labels")


def is_numbers(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(one, list | str) for one in value)


def without_labels(row: Row, *, by_token: bool = False) -> Row:
    """What stands in for a row that is missing: nothing of it is trained on. `by_token`: lists of other lengths stay."""
    gone = [name for name in row if is_labels(name) and (name in TOKEN_COLUMNS or not by_token)]
    return row | {name: [NO_LABEL] * len(row[name]) for name in gone}


def widened(values: Sequence[Any], width: int, fill: Any, left: bool) -> list[Any]:
    padding = [fill] * (width - len(values))
    return padding + list(values) if left else list(values) + padding


def padded(rows: Sequence[Row], said: Batching, lists: Sequence[str], width: int | None = None) -> dict[str, Any]:
    """A padded batch. `lists`: the columns that are lists of numbers."""
    tokens = ["input_ids", *(name for name in TOKEN_COLUMNS if name in rows[0])]
    rows = [row if "attention_mask" in row else row | {"attention_mask": [1] * len(row["input_ids"])} for row in rows]
    width = width or said.width(rows)
    batch: dict[str, Any] = {"lengths": [sum(row["attention_mask"]) for row in rows]}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in lists or name == "attention_mask":
            fill = said.pad_values.get(name, NO_LABEL if is_labels(name) else 0)
            wide = width if name in tokens or name == "attention_mask" else max(1, *map(len, values))
            values = [widened(value, wide, fill, said.pad_side == "left") for value in values]
        batch[name] = values
    return batch


def static(rows: Sequence[Row], said: Batching, lists: Sequence[str]) -> dict[str, Any]:
    """A padded batch that copies of its first row fill up, which weigh nothing and have no labels of tokens."""
    full = said.size // said.share // said.width(rows)
    missing = max(0, full - len(rows))
    batch = padded([*rows, *[without_labels(rows[0], by_token=True)] * missing], said, lists)
    return batch | {"sample_weights": [1.0] * len(rows) + [0.0] * missing}


def nested(rows: Sequence[Row]) -> dict[str, Any]:
    """A batch without padding."""
    lengths = [sum(row.get("attention_mask", [1] * len(row["input_ids"]))) for row in rows]
    return {"lengths": lengths} | {name: [row[name] for row in rows] for name in rows[0]}


def packed(packs: Sequence[Sequence[Row]], said: Batching, rows: int) -> dict[str, Any]:
    """Rows of samples end to end; `rows` of them, the last ones empty."""
    token_columns = ["input_ids", *(name for name in TOKEN_COLUMNS if any(name in row for row in chain(*packs)))]
    batch: dict[str, Any] = {
        name: [] for name in {*token_columns, "labels", "position_ids", "segment_ids"} - {"attention_mask"}
    }
    starts = []
    for at in range(rows):
        pieces = packs[at] if at < len(packs) else []
        whole: dict[str, list[int]] = {name: [] for name in batch}
        segment = 0
        for piece in pieces:
            length = len(piece["input_ids"])
            if not length:
                continue
            segment += 1
            starts.append(at * said.size + len(whole["input_ids"]))
            shifted = [0, *piece["shift_labels"]] if "shift_labels" in piece else piece["input_ids"]
            made = {
                "labels": [NO_LABEL, *piece.get("labels", shifted)[1:length]],
                "position_ids": list(range(length)),
                "segment_ids": [segment] * length,
            }
            if "shift_labels" in piece:
                made["shift_labels"] = [*piece["shift_labels"][:-1], NO_LABEL]
            for name, values in whole.items():
                values += made.get(name) or piece[name]
        if len(whole["input_ids"]) < said.size:
            starts.append(at * said.size + len(whole["input_ids"]))
        for name, values in whole.items():
            fill = said.pad_values.get(name, NO_LABEL if is_labels(name) else 0)
            batch[name].append(widened(values, said.size, fill, left=False))
        rest = said.size - len(whole["input_ids"])  # a segment of its own
        batch["position_ids"][-1][said.size - rest :] = range(rest)
    ends = [*starts, rows * said.size]
    batch["cu_seqlens"] = batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = ends
    batch["lengths"] = [len(piece["input_ids"]) for piece in chain(*packs)]
    others = [name for name in next(chain(*packs)) if name not in batch and name != "attention_mask"]
    return batch | {name: [piece[name] for piece in chain(*packs)] for name in others}


def least_slots(lengths: Sequence[int], most: int) -> int:
    """Fewest padded slots of a batch in at most so many groups."""
    lengths = sorted(max(1, length) for length in lengths)
    least = [0] + [10**9] * len(lengths)
    for _ in range(most):
        least = [
            min([least[end]] + [least[start] + (end - start) * lengths[end - 1] for start in range(end)])
            for end in range(len(lengths) + 1)
        ]
    return least[-1]


def supervised(batch: dict[str, Any], name: str) -> int:
    """How many labels of a batch are trained on."""
    return sum(label != NO_LABEL for row in batch[name] for label in row)
