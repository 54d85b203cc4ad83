"""What the methods that make batches take, whatever the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from brimful.rows.blocks import Sample
from brimful.rows.parallel import ExecutorType
from brimful.steps.batched import ShuffleBatches


class _Options(TypedDict, total=False):
    token_columns: Sequence[str] | None
    pad_values: Mapping[str, float] | None
    dtypes: Mapping[str, Any] | None
    drop_last: bool
    shuffle_batches: ShuffleBatches
    micro_batches: int | None
    group: int
    seed: int
    collate_fn: Callable[[list[Sample]], Any] | None
    max_workers: int
    executor_type: ExecutorType


class BatchOptions(_Options, total=False):
    """What every method that makes batches takes. By default: length_column="input_ids", layout="padded", drop_last=False,
    shuffle_batches=True, group=1, seed=42, the rest None.

    length_column: the list column whose lengths are planned over, a pair of them for (source, target).
    token_columns: lists that are cut, padded and packed with the first length column, and must be as long as it in every
        row; by default those of attention_mask, token_type_ids, position_ids, special_tokens_mask and labels that there are.
        Other lists of numbers are padded to their own longest.
    pad_values: what padding holds, by column; by default -100 in `labels` and in columns whose name ends in `_labels`, in
        others the tokenizer's own id, else 0.
    pad_side: where padding goes, "right" or "left"; by default the tokenizer's own side, else right.
    layout: "padded"; "nested": tensors of layout torch.jagged, which hold no padding; or "grouped": `groups` of like length
        inside the batch, each padded on the right to its own longest (see `brimful.grouping`), for lengths that differ a
        thousandfold. What makes no tensor (text) stays beside `groups`, as lists; which keys are in them, what
        their dims are called and how a loss is taken says `help(brimful.tensors.grouped.grouped)`. A tokenizer's own padding
        side is not looked at. The batch is planned as a padded one: its budget counts what that would hold, `.stats` what the
        groups do.
        Ranks may have different numbers of groups: see `Collection.apply` before you run FSDP on them.
    num_groups: most groups in a batch, of layout "grouped"; by default 4.
    dtypes: types other than int64 for integers and a column's own for the rest, by the names of what is in a batch:
        {"input_ids": "int32", "attention_mask": "bool"}.
    drop_last: leave out incomplete batches: of a fixed size, one a window; else the last cut of an epoch. Counted in `.stats`.
    shuffle_batches: hand out a window's batches in a random order; "stratified": in one of which any k that follow one another
        cover short and long alike (`plan.low_discrepancy_order` says how evenly), in each of the streams of from_files(streams=n)
        and, as long as their windows keep pace, over all of them.
    micro_batches: so many batches on each rank are one optimizer step, whose gradients the loop adds up. What the policy limits
        (samples, tokens, cost, rows) is that of a step then, and dealt to its batches; the memory of a MemoryBudget, and what a
        policy or function of one's own limits, is that of each batch. `shuffle_batches=True` means "stratified", so that a step
        has samples of all lengths, as random batches do. Each batch carries `weight`, `is_filler`, `ends_step` (bool: now the
        optimizer steps) and, where there are labels, `num_items_in_batch`, the labels of its whole step on all ranks, which
        `bf.token_mean` divides by; of data whose labels no index knows, on several ranks, `num_items_on_rank` in its place. The
        last step of an epoch may have fewer batches; where epochs follow each other (data that repeat,
        loader(steps_per_epoch=...)) steps go on over their ends. `take` a multiple of k, or the last step is cut. Of trainers it
        sets the accumulation of gradients: docs/trainers.md.
    group: keep so many batches of like cost next to each other when they are shuffled; the world size: equal work on all ranks.
    seed: of that order.
    collate_fn: makes the batch of a list of samples (dicts), as Hugging Face collators do, instead of a layout. What it draws at
        random (from Python's, numpy's and torch's generators, or some of its own) is keyed by the batch: the same whatever
        runs ahead, on any number of ranks, and after a resume; the process's generators are afterwards as before. So it is
        called as a batch is taken, also where `prefetch` or `to_device` run ahead, unless it has workers. On several ranks it
        returns a dict, in which fillers are marked; or say shard(uneven="drop").
    max_workers: batches for which it is called at once, ahead of use; 0: by the caller's thread.
    executor_type: what calls it: "process" (which takes seconds to begin where the function needs torch); or "thread", where it
        leaves the interpreter's lock and draws nothing at random.
    """

    length_column: str | tuple[str, str]
    pad_side: Literal["right", "left"] | None
    layout: Literal["padded", "nested", "grouped"]
    num_groups: int | None


class PackOptions(_Options, total=False):
    """What `pack` takes: all of BatchOptions but pad_side, layout and num_groups, and one `length_column`. `drop_last` leaves
    out batches of fewer rows, one a window."""

    length_column: str
