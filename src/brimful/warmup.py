"""A step run once on a batch of each shape, so that compilers and CUDA graphs have seen all of them before the work begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeAlias, cast

import torch

from brimful.arrays.collated import Collated
from brimful.arrays.columns import ColumnRules
from brimful.batches import Batches
from brimful.batching.batch import Batch
from brimful.batching.facts import BatchFacts, batch_facts, collated_of
from brimful.batching.items import TakeItems
from brimful.core.facts import Facts, facts_of, following
from brimful.core.own_keys import NUM_SIDES
from brimful.core.run import Run
from brimful.core.stage import END, Stage, State, not_in_state, running, with_inputs
from brimful.core.stats import recompile_limit
from brimful.isolation.guard import refuse_leaks_of_step
from brimful.loader import Loader
from brimful.plan import StaticShapes
from brimful.plan.errors import integer, logger, one_of
from brimful.tables.ragged import SIDE_COLUMNS
from brimful.tensors.on_device import OnDevice
from brimful.tensors.structures import mapped, tensors_of

Shape: TypeAlias = tuple[int, ...]

MOST_SHAPES: Final = 64
TOKENS: Final = ("input_ids", "attention_mask", "labels")


def warm_up(
    step: Callable[[Any], Any],
    policy: StaticShapes | Batches | Loader | Sequence[Shape],
    *,
    example: Mapping[str, Any] | None = None,
    isolation: str = "raise",
) -> dict[Shape, float]:
    """Calls `step(batch)` with a synthetic batch of each shape, the largest first. It returns the seconds of each call.

    torch.compile(dynamic=False) then compiles, and CUDA graphs are captured, before the first real batch. You also
    learn at once if the largest shape fits into memory. The step should run forward and backward, and set gradients to
    None after it. It must not change the model, so leave out `optimizer.step()`. The random generators of torch are
    restored afterwards.

    Args:
        step: a function of one batch, such as your training step.
        policy: `StaticShapes`, `Batches` (or their loader), or a list of shapes (rows, tokens). The first batch of
            `Batches` gives the keys and types. Synthetic batches also go through the later stages (`map`, `to_device`
            with its buffers). Indexed data without static shapes use the shapes of the first epoch, if they are few. With
            a `collate_fn`, the step gets real batches, because only the function knows what it makes of samples.
            For any other loader, an AsyncLoader included, give the shapes, and a batch as `example`.
        example: a batch with the keys and types to copy, if `policy` is not `Batches`. The default is input_ids,
            attention_mask and labels (B, L) int64 on the CPU.
        isolation: a check of packed batches. "raise": raise an error if their samples see each other in the module that
            the step calls. To find this call, the step runs once more, uncompiled, on a few short samples. "off": no
            check.
    Raises:
        ValueError: the batches have too many shapes, or the shapes are not known in advance. The error says how many to
            expect, and what to do. Or the samples of a packed batch see each other. Or a `collate_fn` makes several
            shapes of batches that are planned with one shape.
    Shapes: each row repeats the example's longest row up to its length. There is no padding, and all of its labels are
        kept.
    Price: a step for each shape, and its compilation. A warning says if there are more shapes than torch.compile
        compiles. A `collate_fn` also costs the time to plan an epoch (of streamed data, a window), and makes two
        batches of each shape.
    Example:
        >>> def step(batch):
        ...     print(tuple(batch["input_ids"].shape))
        >>> seconds = warm_up(step, StaticShapes([16, 64], max_tokens=64))
        (4, 16)
        (1, 64)
    """
    one_of("isolation", isolation, "raise", "off")
    policy = cast(Batches, policy.batches) if isinstance(policy, Loader) else policy
    if isinstance(policy, Batches):
        shapes, batches = _of_batches(policy)
    elif not isinstance(given := getattr(policy, "shapes", policy), list | tuple):
        raise TypeError(
            f"warm_up takes StaticShapes, Batches or shapes (got a {type(policy).__name__}); of another policy, or of a loader: "
            "warm_up(step, [(rows, tokens), ...], example=batch)"
        )
    else:
        shapes = _largest_first({_checked(shape) for shape in given})
        pattern = example if example is not None else {name: torch.ones(1, 1, dtype=torch.int64) for name in TOKENS}
        rules = _rules_of(pattern)
        batches = (like(pattern, shape, rules) for shape in shapes)
    limit = recompile_limit()
    if len(shapes) > limit:
        logger.warning(
            "%d shapes to warm up, and torch.compile runs eagerly what it would have to compile more than %d times: set "
            "torch._dynamo.config.recompile_limit = %d first, or take fewer buckets",
            len(shapes),
            limit,
            len(shapes),
        )
    seconds: dict[Shape, float] = {}
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        for shape, batch in zip(shapes, batches):
            if isolation == "raise" and isinstance(batch, Mapping):
                refuse_leaks_of_step(step, batch)
            began = time.perf_counter()
            step(batch)
            seconds[shape] = time.perf_counter() - began
            logger.info("warm_up: shape %s, %d of %d, %.2f s", shape, len(seconds), len(shapes), seconds[shape])
    if len(seconds) < len(shapes):
        logger.warning("warm_up: these batches end after %d (take), of %d shapes", len(seconds), len(shapes))
    return seconds


def _checked(shape: Shape) -> Shape:
    if not isinstance(shape, Sequence) or len(shape) < 2:
        raise ValueError(f"shapes are (rows, tokens) (got {shape!r})")
    return tuple(integer("shape", size, 1) for size in shape)


def _rules_of(example: Mapping[str, Any]) -> ColumnRules:
    """Which columns of an example are tokens: those of the shape (rows, tokens, ...) of its first one."""
    found = {name: one.shape[:2] for name, one in example.items() if isinstance(one, torch.Tensor) and one.ndim > 1}
    first = "input_ids" if "input_ids" in found else next(iter(found), None)
    if first is None or not found[first].numel():
        shown = {name: tuple(getattr(one, "shape", ())) for name, one in example.items()}
        raise ValueError(f"example must be a batch with a tensor (rows, tokens), both at least 1 (got {shown})")
    return ColumnRules(
        (first,), tuple(name for name, shape in found.items() if shape == found[first] and name != first)
    )


def _largest_first(shapes: Iterable[Shape]) -> list[Shape]:
    return sorted(shapes, key=lambda shape: (shape[0] * sum(shape[1:]), shape), reverse=True)


# -- of batches --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Synthetic(Stage[Any]):
    """`make(one)` for each one that is wanted, in place of the batches of a stage."""

    make: Callable[[Any], Any] = not_in_state()
    wanted: tuple[Any, ...] = not_in_state()
    known: BatchFacts = not_in_state()

    def facts(self, *inputs: Facts) -> Facts:
        return following(self, batches=self.known)

    def start(self, epoch: int) -> State:
        return 0

    def items(self, at: State, run: Run) -> Generator[tuple[Any, State], None, None]:
        for number, one in enumerate(self.wanted[at:], at + 1):
            yield self.make(one), END if number == len(self.wanted) else number


def _of_batches(batches: Batches) -> tuple[list[Shape], Generator[Any, None, None]]:
    """The shapes of batches, and a batch of each that went through all stages after the one that makes tensors."""
    alone = batches.shard(0, 1) if batches.sharded else batches  # no other rank is waited for
    collated = collated_of(alone.stage)
    if collated.convert is None:
        raise ValueError(
            "warm_up runs a step of torch, and these batches are numpy arrays. Call your step yourself, once for each of "
            "batches.shapes(), or leave numpy() out"
        )
    layout: Any = getattr(collated, "layout", None)
    if layout is not None and layout.varies:
        raise ValueError(
            f"warm_up cannot know the shapes of layout='{layout.name}' before they come; call the step yourself, or batch with "
            "layout='padded'"
        )
    known, shapes = batch_facts(alone.stage), _largest_first(_shapes(alone))

    def batches_like(collated: Collated) -> Stage[Any]:
        pattern: Any
        with running(collated, collated.start(0)) as items:
            pattern, after = next(items, (None, None))
        if after is None:
            raise ValueError(
                "there is no batch to warm up with: the data are empty, or drop_last leaves nothing of them"
            )
        if layout is None:
            both = _extremes(collated.upstream)
            if missing := [shape for shape in shapes if shape not in both]:
                logger.warning("warm_up: no batch is planned with the shapes %s, so collate_fn makes none", missing)
            shapes[:] = [shape for shape in shapes if shape in both]
            planned = Synthetic(lambda batch: batch, tuple(batch for shape in shapes for batch in both[shape]), known)
            return with_inputs(collated, planned)
        if layout.packs:  # all are of one shape, and where samples begin is no matter of shapes
            return TakeItems(collated, 1)
        padded = mapped(pattern, lambda tensor: tensor)  # also where the device is to pad
        rules = ColumnRules(TOKENS[:1], SIDE_COLUMNS) if collated.rules.stacks else collated.rules
        return Synthetic(partial(like, padded, rules=rules), tuple(shapes), known)

    above = with_synthetic(alone.stage, batches_like)

    def made() -> Generator[Any, None, None]:
        with replace(alone, stage=above).iter() as items:
            for shape, *same in zip(shapes, *[items] * (2 if layout is None else 1)):
                sizes = [[tuple(tensor.shape) for tensor in tensors_of(one)] for one in same]
                for one, other in zip_longest(sizes[0], sizes[-1]):
                    if one != other:
                        raise ValueError(
                            f"{collated.collator.called_as} makes tensors of {one} and {other} of two batches that "
                            f"are both planned as (rows, tokens) {shape}. Have it pad to the smallest bucket that holds its "
                            "longest sample, and fill up the rows with copies of weight 0. If __getitem__ changes the length of "
                            "a sample at random, return the planned length with the sample, and choose the bucket by that"
                        )
                yield same[-1]

    return shapes, made()


def with_synthetic(stage: Stage[Any], make: Callable[[Collated], Stage[Any]]) -> Stage[Any]:
    """The chain with other batches in place of those that it makes. While a CUDA graph is captured no other thread may allocate:
    nothing is sent ahead."""
    if isinstance(stage, Collated):
        return make(stage)
    own = with_inputs(stage, with_synthetic(stage.inputs[0], make))
    return replace(own, prefetch=0) if isinstance(own, OnDevice) else own


def _extremes(planned: Stage[Batch]) -> dict[Shape, list[Batch]]:
    """The emptiest and the fullest batch of each shape, in an epoch; of a stream, or data without an end, in the first window."""
    found: dict[Shape, list[Batch]] = {}
    known = facts_of(planned)
    with running(planned, planned.start(0)) as batches:
        for batch, _ in batches:
            both = found.setdefault((batch.padded_size, *batch.widths), [batch, batch])
            both[:] = min(both[0], batch, key=_size), max(batch, both[1], key=_size)
            if batch.last and (known.streamed_by or not known.ends()):
                break
    return found


def _size(batch: Batch) -> tuple[int, int]:
    return len(batch), batch.num_tokens


def _shapes(batches: Batches) -> list[Shape]:
    """Those that there can be.

    Raises:
        ValueError: nobody knows, or they are too many.
    """
    known = batch_facts(batches.stage)
    if (static := known.shapes()) is not None:
        layout = getattr(collated_of(batches.stage), "layout", None)
        return static if layout is None else [layout.seen(shape) for shape in static]
    remedy = "batch with bf.StaticShapes(bf.optimal_buckets(lengths, 8), max_tokens), which has as many as buckets"
    if facts_of(known.planned).streamed_by:
        raise ValueError(
            f"of streamed batches without static shapes nobody knows the shapes before they come; {remedy} (`brimful report` "
            "says how many each policy makes of a corpus)"
        )
    shapes = batches.shapes()
    if len(shapes) > MOST_SHAPES:
        raise ValueError(
            f"an epoch of these {sum(shapes.values()):,} batches has {len(shapes):,} shapes to expect, too many to warm up (at "
            f"most {MOST_SHAPES}) or to compile; {remedy}"
        )
    return list(shapes)


def like(pattern: Mapping[str, Any], shape: Shape, rules: ColumnRules) -> dict[str, Any]:
    """A batch with the keys and types of another one, and of another shape (rows, tokens[, further tokens]).

    Each row is the pattern's longest one, what is in its token columns repeated up to the wanted length.

    >>> pattern = {"input_ids": torch.tensor([[7, 8, 0]]), "attention_mask": torch.tensor([[1, 1, 0]]), "text": ["a"]}
    >>> {name: getattr(one, "tolist", lambda: one)() for name, one in like(pattern, (2, 5), ColumnRules(("input_ids",))).items()}
    {'input_ids': [[7, 8, 7, 8, 7], [7, 8, 7, 8, 7]], 'attention_mask': [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]], 'text': ['a', 'a']}
    """
    rows, widths = shape[0], shape[1:]
    first = pattern.get(rules.length_columns[0])
    size = len(first) if isinstance(first, torch.Tensor) else 0
    sides = pattern.get(NUM_SIDES, 1)
    mask = pattern.get(next(iter(rules.masks)))
    row, real = 0, torch.arange(0)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        row = int((mask != 0).sum(1).argmax())
        real = (mask[row] != 0).nonzero().flatten().cpu()
    made: dict[str, Any] = {}
    for name, value in pattern.items():
        aligned_with = rules.aligned_with(name)
        if isinstance(value, list) and len(value) == size // sides:
            made[name] = [value[row % len(value)]] * (rows // sides)
        elif sides > 1 and isinstance(value, torch.Tensor) and value.ndim and len(value) == size // sides:
            made[name] = value[[row % len(value)] * (rows // sides)].clone()
        elif not isinstance(value, torch.Tensor) or not value.ndim or len(value) != size:
            made[name] = value
        elif aligned_with is None or value.ndim < 2:
            made[name] = value[[row] * rows].clone()
        else:
            own = real if aligned_with == 0 and len(real) else torch.arange(value.shape[1])
            columns = own[torch.arange(widths[aligned_with]) % len(own)]
            made[name] = value[row][columns].expand(rows, *([-1] * (value.ndim - 1))).clone()
    if "lengths" in made and isinstance(made["lengths"], torch.Tensor):
        made["lengths"][:] = torch.tensor(widths if len(widths) > 1 else widths[0])
    if "sample_weights" in made:
        made["sample_weights"][:] = 1
    return made
