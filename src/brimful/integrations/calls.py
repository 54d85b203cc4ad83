"""Calls of models with the batch at hand: packed samples do not see each other, and copies of rows count in no loss of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from brimful.core.own_keys import WEIGHTS
from brimful.isolation.call import unwrapped
from brimful.isolation.guard import IsolationGuard, by_name, packed_segments, says_segments
from brimful.tables.ragged import NOT_TRAINED_ON
from brimful.tensors.loss import are_classes, rows_that_count


class CallGuard:
    """Refuses calls of models in which samples of a packed row see each other, or whose own loss would count copies.

    Args:
        isolation: "raise": the first call with a packed batch is checked; "off": none is.
    """

    def __init__(self, isolation: str) -> None:
        self._isolation = IsolationGuard(isolation)
        self._segments: Callable[[], torch.Tensor | None] | None = None
        self._rows: torch.Tensor | bool = True
        self._handles: list[Any] = []

    def saw(self, batch: Any) -> None:
        """A batch goes to the loop: the next call of a watched model may be with it."""
        self._rows, self._segments = True, None
        if isinstance(batch, Mapping):
            self._rows = rows_that_count(batch)
            if self._isolation.on and says_segments(batch):
                self._segments = cache(partial(packed_segments, dict(batch)))

    def watch(self, *models: torch.nn.Module) -> None:
        """Checks each call of one of these."""
        for model in models:
            if not isinstance(model, torch.jit.ScriptModule):  # it takes no hooks
                self._handles.append(model.register_forward_pre_hook(self._called, with_kwargs=True))

    def leave(self) -> None:
        """Watches no longer."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def _called(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        segments = self._segments if self._isolation.on else None
        if torch.compiler.is_compiling() or (segments is None and isinstance(self._rows, bool)):
            return
        inputs = by_name(model, args, kwargs)
        if segments is not None:
            self._isolation.check(model, inputs, segments)
        if _labels_in(inputs):
            refuse_copies(type(unwrapped(model)).__name__, inputs, self._rows)


def refuse_copies(model: str, inputs: Mapping[str, Any], rows: torch.Tensor | bool, names: Sequence[str] = ()) -> None:
    """Refuses a batch with copies up to a static shape where a model computes a loss of its own, in which these count.

    Args:
        inputs: what the model is given: with `sample_weights` it may weigh rows itself.
        rows: which rows count.
        names: of inputs that are labels, besides those whose names say it. Copies must be -100 in all labels.
    Raises:
        ValueError: naming how many copies there are.
    """
    if isinstance(rows, bool) or WEIGHTS in inputs or not (copies := int((~rows).sum())):
        return
    labels = {
        name: inputs[name] for name in dict.fromkeys((*_labels_in(inputs), *names)) if inputs.get(name) is not None
    }
    counted = next((name for name, one in labels.items() if not _left_out(one, ~rows)), None)
    if labels and counted is None:
        return
    kind = "there are no labels"
    if counted is not None:
        kind = f"its {counted} are {getattr(labels[counted], 'dtype', type(labels[counted]))}"
    raise ValueError(
        f"{copies:,} of the {len(rows):,} rows of this batch are copies up to its static shape. The loss of {model} counts "
        f"them: {kind}, and only integers, one a token or a sample, of labels or *_labels are -100 in copies. Give Trainer a "
        "compute_loss_func, which gets the other rows alone. In your own loop, compute the loss of each row outside of the "
        "model, and give these to bf.token_mean"
    )


def _labels_in(inputs: Mapping[str, Any]) -> list[str]:
    """The inputs of a call that a loss is taken over, by the names that models of transformers have for them."""
    return [
        name
        for name, one in inputs.items()
        if one is not None and ("label" in name or name in ("start_positions", "end_positions"))
    ]


def _left_out(labels: Any, copies: torch.Tensor) -> bool:
    """Whether labels are integers, and -100 in copies. A user may have left out the rows of copies."""
    if not isinstance(labels, torch.Tensor) or not are_classes(labels):
        return False
    return len(labels) != len(copies) or bool((labels[copies.to(labels.device)] == NOT_TRAINED_ON).all())
