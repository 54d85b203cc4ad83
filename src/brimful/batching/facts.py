"""What is known of batches without reading: how they are planned and shared out, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brimful.batching.items import TakeItems
from brimful.core.facts import Facts, facts_of
from brimful.core.repeat import Repeat
from brimful.core.stage import Stage, with_inputs


@dataclass(frozen=True)
class BatchFacts:
    """What is known of a chain that plans batches.

    Args:
        planned: the stage that plans the batches of an epoch, or shares them out, while they are still integers.
        planned_by: the settings by which that happens, nearly as users write them.
        shapes: the few shapes (rows, tokens) that all batches have; None where these are not known before they come.
        num_ranks: how many data-parallel ranks share the batches of a step.
        is_sharded: whether they are one rank's.
        uneven: the rule for a step that has too few batches for all ranks; "" where batches are not shared out.
        micro_batches: how many batches an optimizer step has; None where nothing says.
        samples_per_step: how many samples an optimizer step has, in as many batches as they need; None where nothing says.
        collated: the stage that makes the batches, which knows the rules for their columns and their layout.
        left_out: columns of rows that batches do not have, as their text was tokenized.
    """

    planned: Stage[Any]
    planned_by: str
    shapes: Callable[[], list[tuple[int, ...]] | None]
    num_ranks: Callable[[], int] = lambda: 1
    is_sharded: bool = False
    uneven: str = ""
    micro_batches: int | None = None
    samples_per_step: int | None = None
    collated: Any = None
    left_out: tuple[str, ...] = ()


def batch_facts(stage: Stage[Any]) -> BatchFacts:
    """What is known of the batches of a chain, which has some."""
    found: BatchFacts | None = facts_of(stage).batches
    assert found is not None, "a chain of rows has no batches"
    return found


def is_sharded(stage: Stage[Any]) -> bool:
    """Whether a chain, of batches or of samples, gives those of one data-parallel rank."""
    found: BatchFacts | None = facts_of(stage).batches
    return found is not None and found.is_sharded


def collated_of(stage: Stage[Any]) -> Any:
    """The stage that makes the batches of a chain."""
    found = batch_facts(stage).collated
    assert found is not None, "these batches are planned, and not made"
    return found


def with_batches(found: Facts, **known: Any) -> Facts:
    """Facts of a chain whose batches differ in what is `known`."""
    return replace(found, batches=replace(found.batches, **known))


def planned_prefix(stage: Stage[Any]) -> Stage[Any]:
    """The stage that plans the batches of a chain, as far as they are taken."""
    if batch_facts(stage).planned is stage:
        return stage
    below = planned_prefix(stage.inputs[0])
    return with_inputs(stage, below) if isinstance(stage, Repeat | TakeItems) else below
