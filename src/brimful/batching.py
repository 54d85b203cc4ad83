"""The methods of a data set that make batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeVar, Unpack, get_args

from brimful.algebra import in_turn, padding_of, side_of, windows_of
from brimful.batches import Batches
from brimful.core.errors import integer, known, logger, names_of, one_of
from brimful.core.stream import Stage
from brimful.plan import FixedSize, Overlong, Packed, Policy, StaticShapes, TokenBudget
from brimful.plan.rounded import Rounding
from brimful.rows.blocks import Block, Sample
from brimful.rows.parallel import ExecutorType, Parallel
from brimful.rows.ragged import LABELS, is_labels
from brimful.steps.batched import Batched, ShuffleBatches, check_shuffle
from brimful.steps.micro_batches import MicroBatches
from brimful.steps.planners import BatchPlanner, ByKey, ByPacking, ByPolicy
from brimful.steps.round_robin import RoundRobin
from brimful.tensors.collated import Collated
from brimful.tensors.layouts import ByFunction, ColumnRules, Layout, PackedRows, layout_named
from brimful.tensors.options import BatchOptions, PackOptions

P = TypeVar("P", bound=BatchPlanner)


class HasStage(Protocol):
    """What batches are made of: a data set."""

    @property
    def stage(self) -> Stage[Block]: ...

    @property
    def repeats(self) -> bool: ...


def batch(
    self: HasStage,
    size_or_policy: int | Policy,
    *,
    window: int | Literal["auto", "steps"] | None = None,
    pad_to_multiple_of: int = 1,
    buckets: Sequence[int] | None = None,
    overlong: Overlong = "raise",
    **options: Unpack[BatchOptions],
) -> Batches:
    """Batches of a fixed number of samples, or by a policy.

    Args:
        size_or_policy: an int: in arrival order, or with a window sorted by length inside it. A policy plans windows.
        window: rows to plan over; "auto" (also None for a policy): as many as bring padding to about 1 %. Of streams they are
            read before the first batch, 256 MB at most; a smaller number gives it sooner. "steps": those of two optimizer
            steps of `micro_batches`, so that each has samples of nearly all lengths, for losses of samples; some 10 % padding.
        pad_to_multiple_of: round each padded length up; a policy's limits hold for the rounded shape.
        buckets: or pad each batch to the smallest of these lengths that holds it.
        overlong: what becomes of a sample longer than the policy can place: "raise", "truncate", "drop", or "alone" (a
            batch of its own). Counted in `.stats`.
        options: see BatchOptions.

    >>> import brimful as bf
    >>> samples = bf.from_sequence([{"input_ids": [1]}, {"input_ids": [2, 3]}, {"input_ids": [4]}])
    >>> [batch["input_ids"].tolist() for batch in samples.batch(2)]
    [[[1, 0], [2, 3]], [[4]]]
    """
    rounding = _rounding(pad_to_multiple_of, buckets)
    if isinstance(size_or_policy, Policy):
        return _batched(self, size_or_policy, rounding, window or "auto", overlong=overlong, **options)
    if not hasattr(size_or_policy, "__index__"):
        raise TypeError(f"batch takes a number of samples or a policy (got {size_or_policy!r})")
    policy = FixedSize(size_or_policy, sort=window is not None)
    rows = policy.n * max(1, 1024 // policy.n) if window is None else window
    return _batched(self, policy, rounding, rows, overlong=overlong, **options)


def batch_by_tokens(
    self: HasStage,
    max_tokens: int,
    *,
    window: int | Literal["auto", "steps"] = "auto",
    pad_to_multiple_of: int = 1,
    buckets: Sequence[int] | None = None,
    overlong: Overlong = "raise",
    **options: Unpack[BatchOptions],
) -> Batches:
    """Batches of at most `max_tokens` padded tokens: each window sorted by length and cut as full as that allows.

    Args:
        max_tokens: rows x padded length of a batch.
        window: rows to plan over; "auto": as many as bring padding to about 1 %. Of streams they are read before the first
            batch, 256 MB at most; a smaller number gives it sooner. "steps": as for `batch`.
        pad_to_multiple_of: round each padded length up.
        buckets: or pad each batch to the smallest of these lengths that holds it.
        overlong: what becomes of a sample longer than the policy can place: "raise", "truncate", "drop", or "alone" (a
            batch of its own). Counted in `.stats`.
        options: see BatchOptions.
    Price: one and a half windows held and one made ahead; about 15 ns a token.
    Source: infinibatch (sorted read-ahead), fairseq (token budgets).
    """
    rounded = _lengths(buckets)
    policy = TokenBudget(max_tokens, pad_to_multiple_of=pad_to_multiple_of, buckets=rounded)
    return _batched(self, policy, None, window, overlong=overlong, **options)


def batch_by(
    self: HasStage,
    batch_size: int | Callable[[Sample], int],
    key: Callable[[Sample], Any],
    *,
    boundary_key: Callable[[Sample], Any] | None = None,
    window: int = 10_000,
    pad_to_multiple_of: int = 1,
    buckets: Sequence[int] | None = None,
    overlong: Literal["raise", "alone", "drop"] = "raise",
    **options: Unpack[BatchOptions],
) -> Batches:
    """Batches by functions of the samples: each window sorted by `key`, largest first, and cut.

    Args:
        batch_size: samples a batch, or a function of the longest sample of the batch that says how many; where that is
            less than 1, `overlong` says what becomes of the sample: "raise", "drop" or "alone".
        key: what to sort by, usually the length.
        boundary_key: a batch never spans two values of it.
        window: rows to sort over.
        pad_to_multiple_of: round each padded length up.
        buckets: or pad each batch to the smallest of these lengths that holds it.
        overlong: what becomes of a sample for which `batch_size` gives less than 1: "raise", "alone" (a batch of its own), or
            "drop". Counted in `.stats`.
        options: see BatchOptions.
    Price: Python, two or three calls a sample.
    Source: infinibatch's BucketedReadaheadBatchIterator.
    """
    one_of("overlong", overlong, "raise", "alone", "drop")
    window = integer("window", window, 1, "row")  # "auto" and "steps" are for policies, whose plans say how many
    size = batch_size if callable(batch_size) else integer("batch_size", batch_size, 1, "sample")
    planner = ByKey(size, key, boundary_key, overlong, _rounding(pad_to_multiple_of, buckets))
    return padded_batches(self.stage, self.repeats, planner, window, **known("batch_by", options, BatchOptions))


def pack(
    self: HasStage,
    row_length: int,
    *,
    rows: int = 1,
    window: int | Literal["auto", "steps"] = "auto",
    overlong: Literal["raise", "truncate", "drop", "split"] = "raise",
    hf_flash_attention: bool = False,
    **options: Unpack[PackOptions],
) -> Batches:
    """Rows of exactly `row_length` tokens, filled with whole samples by best fit: next to nothing is padded.

    Args:
        row_length: tokens in a row.
        rows: rows in a batch.
        window: samples to plan over; "auto": what fills 200 rows, where .3 % is wasted.
        overlong: what becomes of a sample longer than a row: "raise", "truncate", "drop", or "split" (cut into pieces).
        hf_flash_attention: name the boundaries as transformers' flash attention does alone, not cu_seqlens and max_seqlen too.
        options: see PackOptions.
    Shapes: `input_ids`, `labels`, `position_ids`, `segment_ids` (rows, row_length) int64; `cu_seqlens` (n + 1,) int32;
        `max_seqlen` int. Labels are not shifted: models do it; the first one of each sample is -100. A model must look at
        the positions or the boundaries to keep the samples of a row apart. Llama, Qwen and many other causal models of
        transformers do; GPT-OSS, OPT, Falcon, Mamba and others do not, and mix the samples in silence. BERT and its like see
        both ways, and need `bf.attention.padding_free(batch, causal=False)`. See `brimful.tensors.packed.packed`.
    Source: best-fit decreasing in a window; no bin stays open from one to the next.

    >>> import brimful as bf
    >>> samples = bf.from_sequence([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6]}])
    >>> next(iter(samples.pack(4)))["input_ids"].tolist()
    [[1, 2, 3, 6]]
    """
    one_of("overlong", overlong, "raise", "truncate", "drop", "split")
    planner = ByPacking(
        Packed(row_length), integer("rows", rows, 1, "row"), overlong, bool(options.get("shuffle_batches", True))
    )
    return packed_batches(
        self.stage, self.repeats, planner, window, hf_flash_attention, **known("pack", options, PackOptions)
    )


def _batched(
    self: HasStage,
    policy: Policy,
    rounding: Rounding | None,
    window: int | Literal["auto", "steps"],
    *,
    overlong: Overlong,
    **options: Unpack[BatchOptions],
) -> Batches:
    one_of("overlong", overlong, *get_args(Overlong))
    given = known("batch", options, BatchOptions)
    return padded_batches(self.stage, self.repeats, ByPolicy(policy, overlong, rounding), window, **given)


def _lengths(buckets: Any) -> tuple[int, ...] | None:
    if buckets is not None and not isinstance(buckets, Iterable):
        raise TypeError(f"buckets takes lengths (got {buckets!r}); bf.optimal_buckets finds the best ones")
    return None if buckets is None else tuple(buckets)


def _rounding(pad_to_multiple_of: int, buckets: Sequence[int] | None) -> Rounding | None:
    """None where nothing is rounded."""
    rounding = Rounding(pad_to_multiple_of=pad_to_multiple_of, buckets=_lengths(buckets))
    return None if rounding == Rounding() else rounding


def padded_batches(
    stage: Stage[Block],
    repeats: bool,
    planner: ByPolicy | ByKey,
    window: int | Literal["auto", "steps"],
    *,
    length_column: str | tuple[str, str] = "input_ids",
    token_columns: Sequence[str] | None = None,
    pad_values: Mapping[str, float] | None = None,
    pad_side: Literal["right", "left"] | None = None,
    layout: Literal["padded", "nested", "grouped"] = "padded",
    num_groups: int | None = None,
    dtypes: Mapping[str, Any] | None = None,
    drop_last: bool = False,
    shuffle_batches: ShuffleBatches = True,
    micro_batches: int | None = None,
    group: int = 1,
    seed: int = 42,
    collate_fn: Callable[[list[Sample]], Any] | None = None,
    max_workers: int = 0,
    executor_type: ExecutorType = "thread",
) -> Batches:
    """Rows to batches, by a policy or by functions of the samples; see BatchOptions."""
    planner, shuffle, micro_batches = _of_steps(planner, shuffle_batches, micro_batches)
    policy = planner.policy if isinstance(planner, ByPolicy) else None
    in_order = isinstance(policy, FixedSize) and not policy.sort
    rules = _rules(stage, length_column, token_columns, pad_values, dtypes)
    static = isinstance(policy, StaticShapes)
    side = pad_side or side_of(stage, rules.length_columns[0]) or "right"
    one_of("pad_side", side, "right", "left")
    if collate_fn is not None and (layout != "padded" or num_groups is not None):
        given = f"layout={layout!r}" if layout != "padded" else f"num_groups={num_groups}"
        raise ValueError(f"collate_fn makes the batch, which leaves nothing for {given} to do; give one of the two")
    if layout == "grouped" and pad_side == "left":
        raise ValueError("layout='grouped' pads on the right; leave pad_side out, or choose layout='padded'")
    if layout == "grouped" and side == "left":
        _say_right()
    rounding = planner.rounding or policy
    shape = layout_named(layout, side == "left", static, num_groups, rounding)
    rows, batches = _rows(window, micro_batches)
    required = policy is not None and not in_order
    windows = windows_of(stage, rows, rules.length_columns, required=required, policy=policy, batches=batches)
    batched = Batched(windows, planner, drop_last, False if in_order else shuffle, group, seed)
    few_shapes = (
        static or getattr(rounding, "buckets", None) is not None or getattr(rounding, "pad_to_multiple_of", 1) > 1
    )
    return _collated(
        batched, rules, _layout(shape, collate_fn, max_workers, executor_type), few_shapes, repeats, micro_batches
    )


def packed_batches(
    stage: Stage[Block],
    repeats: bool,
    planner: ByPacking,
    window: int | Literal["auto", "steps"],
    hf_flash_attention: bool,
    *,
    length_column: str = "input_ids",
    token_columns: Sequence[str] | None = None,
    pad_values: Mapping[str, float] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    drop_last: bool = False,
    shuffle_batches: ShuffleBatches = True,
    micro_batches: int | None = None,
    group: int = 1,
    seed: int = 42,
    collate_fn: Callable[[list[Sample]], Any] | None = None,
    max_workers: int = 0,
    executor_type: ExecutorType = "thread",
) -> Batches:
    """Rows of samples to rows of packed tokens; see PackOptions."""
    planner, shuffle, micro_batches = _of_steps(planner, shuffle_batches, micro_batches)
    rules = _rules(stage, length_column, token_columns, pad_values, dtypes)
    rows, batches = _rows(window, micro_batches)
    windows = windows_of(
        stage,
        rows,
        rules.length_columns,
        required=True,
        policy=planner.policy,
        batches=batches and batches * planner.num_rows,
    )
    batched = Batched(windows, planner, drop_last, shuffle, group, seed)
    layout = _layout(PackedRows(hf_flash_attention), collate_fn, max_workers, executor_type)
    return _collated(batched, rules, layout, False, repeats, micro_batches)


def _layout(
    layout: Layout, collate_fn: Callable[[list[Sample]], Any] | None, max_workers: int, executor_type: ExecutorType
) -> Layout:
    """That of the tensors, or what a user's function makes instead."""
    parallel = Parallel(max_workers, executor_type, prefetch_factor=1)
    if collate_fn is None:
        if parallel != Parallel(prefetch_factor=1):
            raise ValueError("max_workers and executor_type are for a collate_fn, of which there is none; see prefetch")
        return layout
    return ByFunction(collate_fn, parallel)


def _rules(
    stage: Stage[Block],
    length_column: str | tuple[str, str],
    token_columns: Sequence[str] | None,
    pad_values: Mapping[str, float] | None,
    dtypes: Mapping[str, Any] | None,
) -> ColumnRules:
    lengths = names_of("length_column", length_column)
    tokens = None if token_columns is None else names_of("token_columns", token_columns)
    if not lengths:
        raise ValueError("length_column must name a column, or a pair of them (got none)")
    known = padding_of(stage)
    fills = {name: padding.id for name, padding in known.items() if padding.id is not None and not is_labels(name)}
    names = {name: str(dtype).removeprefix("torch.") for name, dtype in (dtypes or {}).items()}  # of torch.int32 too
    explicit = tuple(dict.fromkeys((*(lengths if lengths != ("input_ids",) else ()), *(pad_values or {}), *names)))
    return ColumnRules(lengths, tokens, fills | dict(pad_values or {}), names, explicit)


def _of_steps(planner: P, shuffle: ShuffleBatches, micro_batches: int | None) -> tuple[P, ShuffleBatches, int | None]:
    """What plans the batches of an optimizer step of so many, their order, and how many they are."""
    shuffle = check_shuffle(shuffle)
    if micro_batches is None:
        return planner, shuffle, None
    parts = integer("micro_batches", micro_batches, 1, "batch")
    return planner.divided(parts), "stratified" if shuffle is True else shuffle, parts


def _collated(
    batched: Batched,
    rules: ColumnRules,
    layout: Layout,
    few_shapes: bool,
    repeats: bool,
    micro_batches: int | None,
) -> Batches:
    planned = in_turn(batched)
    if micro_batches is not None and batched.learner is not None:
        raise ValueError(
            f"micro_batches={micro_batches} plans the batches of a step before the first one is trained on, and a policy that "
            "learns (learn=True) may plan each after it: say shuffle_batches='stratified' and add up the gradients of as many "
            "batches, or say learn=False"
        )
    if isinstance(planned, RoundRobin) and batched.learner is not None:
        raise ValueError(
            f"a policy that learns (learn=True) plans one window after the other, and {planned.streams} streams are planned each "
            "by itself; read them without streams=, or say learn=False"
        )
    steps = planned if micro_batches is None else MicroBatches(planned, micro_batches, rules.follows(LABELS))
    return Batches(planned, Collated(steps, rules, layout, few_shapes), repeats, rules)


@cache
def _say_right() -> None:
    """Once in a process."""
    logger.warning(
        "layout='grouped' pads on the right, though the tokenizer pads on the left; give pad_side='right' if that is meant, or "
        "choose layout='padded'"
    )


def _rows(window: int | str, micro_batches: int | None) -> tuple[int, int | None]:
    """How many rows are planned over, 0 where the policy says, and how many batches it then is to make of them, if so many."""
    if window == "auto":
        return 0, None
    if window == "steps":
        if micro_batches is None:
            raise ValueError('window="steps" is that of two optimizer steps: say of how many batches, micro_batches=4')
        return 0, 2 * micro_batches
    if isinstance(window, str):
        raise ValueError(f"window must be a number of rows, 'auto' or 'steps' (got {window!r})")
    return integer("window", window, 1, "row"), None
