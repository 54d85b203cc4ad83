"""Random training loops weigh, count and train on each sample as plain Python says (`tests/weighed.py`).

Losses of all ranks and micro batches add up to the plain mean over real samples. Fillers and copies count for nothing.

PYTEST_DONT_REWRITE: 5,000 loops are many assertions.
"""

from __future__ import annotations

import gc
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle, islice
from math import isclose, nan
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch.distributed import HashStore

import brimful as bf
from brimful.memory import SimulatedOOM, oom_guard
from tests.effort import SOAK, times
from tests.oracle import NO_LABEL, TooLongError
from tests.weighed import PER_DATA, SPREAD, Loop, Piece, drawn

LOOPS: Final = times(5_000, 50_000)
PARTS: Final = 25
FIRST: Final = int.from_bytes(os.urandom(4)) * PER_DATA if SOAK else 0
"""The first loop's number; in the soak another one each time."""
NUM_ITEMS: Final = ("num_items_in_batch", "num_items_on_rank")


class Found(NamedTuple):
    """A batch of brimful's: the pieces of rows in it, without copies, and whether it says that it counts for nothing."""

    batch: Any
    pieces: list[Piece]
    is_filler: bool


# -- batches -------------------------------------------------------------------------------------------------------------


def rows_in(batch: Any, loop: Loop) -> tuple[list[int], list[list[int]]]:
    """The numbers of the rows of a batch, and their tokens, also those of copies."""
    if "groups" in batch:
        groups = batch["groups"]
        return [int(one) for one in groups["id"].ungroup()], [row.tolist() for row in groups["input_ids"].ungroup()]
    ids = batch["id"].tolist()
    if loop.collate:
        return ids, [list(map(int, row)) for row in batch["input_ids"]]
    if batch["input_ids"].is_nested:
        return ids, [row.tolist() for row in batch["input_ids"].unbind()]
    lengths = (batch["lengths"][:, 0] if loop.pairs else batch["lengths"]).tolist()
    if loop.packs:
        seen = iter(batch["input_ids"][batch["segment_ids"] > 0].tolist())
        return ids, [list(islice(seen, length)) for length in lengths]
    rows = zip(batch["input_ids"].tolist(), lengths, strict=True)
    return ids, [row[len(row) - length :] if loop.said.pad_side == "left" else row[:length] for row, length in rows]


def found_in(batch: Any, loop: Loop) -> Found:
    """What is in a batch, once its marks of fillers and copies are seen to be right."""
    ids, tokens = rows_in(batch, loop)
    pieces = []
    for number, row in zip(ids, tokens, strict=True):
        first = row[0] - SPREAD * number if row else 0
        assert row == loop.data.rows[number]["input_ids"][first : first + len(row)], "tokens that follow each other"
        pieces.append(Piece(number, first, first + len(row)))
    is_filler = batch.get("is_filler", False)
    assert ("weight" in batch) == ("is_filler" in batch) == bool(loop.is_weighed)
    assert batch.get("weight", 1.0) == (0.0 if is_filler else 1.0)
    assert ("sample_weights" in batch) == loop.fills_up
    if not loop.fills_up:
        check_labels(batch, loop, pieces, is_filler)
        return Found(batch, pieces, is_filler)
    real = next((place for place in range(1, len(ids)) if ids[place] == ids[0]), len(ids))
    count = loop.said.size // loop.said.share // batch["input_ids"].shape[1] if loop.said.kind == "static" else 3
    assert len(pieces) == max(real, count), "copies of the first row up to the static shape"
    assert all(one == pieces[0] for one in pieces[real:])
    trained = [0.0 if is_filler or is_empty(piece, loop) else 1.0 for piece in pieces[:real]]
    assert batch["sample_weights"].tolist() == trained + [0.0] * (len(pieces) - real)
    check_labels(batch, loop, pieces[:real], is_filler)
    return Found(batch, pieces[:real], is_filler)


def is_empty(piece: Piece, loop: Loop) -> bool:
    """Whether its slots are padding, since it has no label that is trained on."""
    return loop.unlabelled == "drop" and not loop.collate and piece.first == piece.last


def labels_in(batch: Any) -> Any:
    """The labels that a loss is taken over: a tensor, or a list of one a row."""
    source = batch.get("groups", batch)
    name = next((name for name in ("shift_labels", "labels") if name in source), None)
    if name is None:
        return None
    labels = source[name]
    if "groups" in batch:
        return labels.ungroup()
    return list(labels.unbind()) if labels.is_nested else labels


def check_labels(batch: Any, loop: Loop, pieces: Sequence[Piece], is_filler: bool) -> None:
    """Integers of fillers are -100, and of copies unless lists of them count as one. All others are those of the rows."""
    labels = labels_in(batch)
    if labels is None or loop.pads_labels_with != NO_LABEL:
        return
    if len(labels) and labels[0].dtype == torch.int64 and (is_filler or not loop.counts_as_one):
        of_all = [row.reshape(-1).tolist() for row in labels]
        pieces = [] if is_filler else pieces
    else:
        of_all = [row.reshape(-1).tolist() for row in labels[: None if loop.packs else len(pieces)]]
    trained = [label for row in of_all for label in row if label != NO_LABEL]
    wanted = [label for piece in pieces if not is_empty(piece, loop) for label in loop.trained_on(piece)]
    if loop.packs:
        trained, wanted = sorted(trained), sorted(wanted)
    assert trained == wanted


# -- losses --------------------------------------------------------------------------------------------------------------


def loss_of(found: Found, loop: Loop, scale: torch.Tensor) -> torch.Tensor:
    """A user's loss: that of a label is one more than the label."""
    labels = labels_in(found.batch)
    if isinstance(labels, list):
        rows = torch.stack([of_each(row).sum() for row in labels])
    else:
        rows = of_each(labels).reshape(len(labels), -1).sum(1)
    if found.is_filler and loop.fails_in_fillers:
        rows = rows * nan
    if loop.by_row:
        return rows * scale
    if "sample_weights" in found.batch:
        rows = rows * found.batch["sample_weights"]
    return rows.sum() * scale


def of_each(labels: torch.Tensor) -> torch.Tensor:
    return torch.where(labels == NO_LABEL, 0, labels.double() + 1)


def without(batch: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}


def labels_here(found: Found) -> float:
    """How many labels `token_mean` counts in a batch that does not say it."""
    batch = without(found.batch, *NUM_ITEMS, "ends_step")
    batch["labels"] = labels_in(batch)
    mean = float(bf.token_mean(torch.tensor(1.0, dtype=torch.float64), batch))
    return 1 / mean if mean else 0


def check_steps(ranks: list[list[Found]], loop: Loop) -> None:
    """All batches of a step know its labels. Their gradients add up to that of the mean over all of these."""
    share = loop.said.share
    for first in range(0, len(ranks[0]), share):
        step = [rank[first : first + share] for rank in ranks]
        for mine in step:
            ends = [found.batch.get("ends_step") for found in mine]
            assert ends == ([False] * (len(mine) - 1) + [True] if share > 1 else [None] * len(mine))
        everything = [found for mine in step for found in mine]
        if not loop.has_labels or loop.pads_labels_with != NO_LABEL:
            assert not any(name in found.batch for found in everything for name in NUM_ITEMS)
            continue
        counts = [
            sum(loop.count(piece) for found in mine if not found.is_filler for piece in found.pieces) for mine in step
        ]
        total = sum(counts)
        check_counts(step, counts, loop)
        losses = [loop.loss(piece) for found in everything if not found.is_filler for piece in found.pieces]
        check_gradients(everything, total, sum(losses), loop)


def check_counts(step: list[list[Found]], counts: list[int], loop: Loop) -> None:
    """What a step says of its labels, which it does where the documents say so."""
    for mine, here in zip(step, counts, strict=True):
        for found in mine:
            said = {name: int(found.batch[name]) for name in NUM_ITEMS if name in found.batch}
            assert said.items() <= {NUM_ITEMS[0]: sum(counts), NUM_ITEMS[1]: here}.items()
            assert not loop.counts_in or loop.counts_in in said
            assert said or not loop.counts_as_one
            if loop.shows_labels:
                own = 0 if found.is_filler else max(1, sum(map(loop.count, found.pieces)))
                assert round(labels_here(found), 6) == own


def check_gradients(step: list[Found], total: int, loss: float, loop: Loop) -> None:
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    for found in step:
        batch = dict(found.batch)
        if "groups" in batch:
            batch["labels"] = torch.cat([row.reshape(-1) for row in labels_in(batch)])
        if NUM_ITEMS[0] not in batch and (len(step) > 1 or "ends_step" in batch):
            batch[NUM_ITEMS[0]] = total  # as the user counts it, or an all_reduce gives it
        bf.token_mean(loss_of(found, loop, scale), batch).backward()  # type: ignore[no-untyped-call]
    assert scale.grad is not None
    mean = float(scale.grad) / loop.world_size  # ranks average their gradients
    assert isclose(mean, loss / max(1, total), rel_tol=1e-9, abs_tol=1e-9)


@cache
def guarded() -> tuple[Any, dict[str, Any]]:
    """A guarded step, as its first call looks at all objects there are: once for all loops, each of which says what is in it."""
    loop: dict[str, Any] = {}

    def step(batch: Any, scale: float) -> None:
        loop["device"].check(torch.empty(loop["rows"](batch), 1))
        (loop["loss"](batch) * scale).backward()

    loop["scale"] = torch.ones((), dtype=torch.float64, requires_grad=True)
    return oom_guard(step, parameters=[loop["scale"]]), loop


def check_parts(found: Found, loop: Loop) -> None:
    """A step that runs out of memory gives the gradient of the whole batch from its parts."""
    gc.freeze()  # what a collection of garbage would look at: .3 s
    batch = dict(found.batch)
    whole = torch.ones((), dtype=torch.float64, requires_grad=True)
    bf.token_mean(loss_of(Found(batch, found.pieces, found.is_filler), loop, whole), batch).backward()
    guard, inside = guarded()
    scale, rows = inside["scale"], len(labels_in(batch))
    scale.grad = None
    inside["device"], inside["rows"] = SimulatedOOM(max(1, rows // 2)), lambda part: len(labels_in(part))
    inside["loss"] = lambda part: bf.token_mean(loss_of(Found(part, [], found.is_filler), loop, scale), part)
    guard(batch)
    assert isclose(float(scale.grad), float(whole.grad), rel_tol=1e-9, abs_tol=1e-9)


# -- loops ---------------------------------------------------------------------------------------------------------------


def of_ranks(loop: Loop, folder: Path) -> list[list[Found]]:
    """The batches of each rank; those that read streams run side by side, as they agree on the end."""
    group = HashStore() if loop.source == "files" and loop.world_size > 1 else None
    batches = loop.batches(folder)

    def of_rank(rank: int) -> list[Found]:
        mine = loop.of_rank(batches, rank, group)
        with mine.iter() as it:
            found = [found_in(batch, loop) for batch in it]
        if loop.unlabelled == "keep":
            real = [piece for one in found if not one.is_filler for piece in one.pieces]
            assert it.stats.samples == sum(not piece.first or loop.said.overlong != "split" for piece in real)
        return found

    if group is None:
        return [of_rank(rank) for rank in range(loop.world_size)]
    with ThreadPoolExecutor(loop.world_size) as pool:
        return list(pool.map(of_rank, range(loop.world_size)))


def wanted_of(pieces: list[Piece], loop: Loop) -> tuple[list[Piece], bool]:
    """A planned batch as it is handed on, and whether nothing of it is trained on."""
    left_out = [loop.is_left_out(piece) for piece in pieces]
    none = all(left_out) and any(left_out)
    if loop.collate:
        kept = [piece for piece, out in zip(pieces, left_out, strict=True) if none or not out]
    else:
        kept = [Piece(piece.row, 0, 0) if out else piece for piece, out in zip(pieces, left_out, strict=True)]
    return sorted(kept) if loop.packs else kept, none and bool(loop.is_weighed)


def check_order(ranks: list[list[Found]], loop: Loop) -> None:
    """Each rank has its batch of each step, in the order of the plan. What the last step lacks is made up as was said."""
    assert len({len(rank) for rank in ranks}) == 1
    found = [
        (sorted(one.pieces) if loop.packs else one.pieces, one.is_filler)
        for step in zip(*ranks, strict=True)
        for one in step
    ]
    plan = [wanted_of(pieces, loop) for pieces in loop.planned()]
    world_size = loop.world_size
    if loop.source == "files" and world_size > 1:
        real, planned = ([one for one in which if not one[1]] for which in (found, plan))
        if loop.uneven == "wrap":
            assert all(one in real for one in planned)
        else:
            assert real == (planned if loop.uneven == "pad" else planned[: len(real)])
        return
    whole = len(plan) - len(plan) % world_size
    epoch: list[tuple[list[Piece], bool] | None] = [*plan]
    if loop.shards and loop.uneven == "drop":
        epoch = epoch[:whole]
    elif whole < len(plan):
        missing = whole + world_size - len(plan)
        epoch += islice(cycle(plan), missing) if loop.uneven == "wrap" else [None] * missing
    assert not loop.steps or len(found) == loop.steps * world_size
    wanted = [*islice(cycle(epoch), len(found))] if loop.steps else epoch
    assert len(found) == len(wanted)
    assert all(one == known if known else one[1] for one, known in zip(found, wanted, strict=True))


def check_once(ranks: list[list[Found]], loop: Loop) -> None:
    """Each sample is in one batch of one rank, or of the epoch's end and its beginning."""
    found = Counter(piece for rank in ranks for one in rank if not one.is_filler for piece in one.pieces)
    wanted = Counter(loop.pieces())
    if loop.uneven == "wrap" and loop.shards:
        assert loop.said.drop_last or set(found) == set(wanted)
    elif loop.said.drop_last or (loop.uneven == "drop" and loop.world_size > 1):
        assert found <= wanted
    else:
        assert found == wanted


def check_resume(ranks: list[list[Found]], loop: Loop, folder: Path, at: int) -> None:
    """A state taken anywhere is followed by the same batches."""
    rank = loop.world_size - 1
    batches = loop.of_rank(loop.batches(folder), rank)
    with batches.iter() as it:
        for _ in range(at):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    with batches.iter(state) as it:
        rest = [found_in(batch, loop) for batch in it]
    for one, before in zip(rest, ranks[rank][at:], strict=True):
        assert (one.pieces, one.is_filler) == (before.pieces, before.is_filler)
        assert one.batch.get(NUM_ITEMS[0]) == before.batch.get(NUM_ITEMS[0])


def check(loop: Loop, folder: Path) -> None:
    """One loop: which samples its batches have, what they say of themselves, and what is trained on."""
    try:
        loop.pieces()
    except TooLongError:
        with pytest.raises((bf.DataError, bf.RankError), match="cannot fit"):
            of_ranks(loop, folder)
        return
    ranks = of_ranks(loop, folder)
    if loop.is_exact:
        check_order(ranks, loop)
    else:
        check_once(ranks, loop)
    check_steps(ranks, loop)
    if loop.number % 12 == 0 and loop.is_divisible and ranks[0]:
        found = ranks[0][0]
        if "ends_step" not in found.batch or any(name in found.batch for name in NUM_ITEMS):
            check_parts(found, loop)
    if loop.number % 16 == 0 and not (loop.source == "files" and loop.world_size > 1):
        check_resume(ranks, loop, folder, random.Random(loop.number).randrange(len(ranks[0]) + 1))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_loops_train_on_each_sample_once(part: int, tmp_path: Path) -> None:
    size = LOOPS // PARTS
    for number in range(FIRST + part * size, FIRST + (part + 1) * size):
        loop = drawn(number)
        try:
            check(loop, tmp_path)
        except Exception as error:
            raise AssertionError(str(loop)) from error
