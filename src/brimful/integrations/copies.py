"""Copies of rows, which fill a batch up to its static shape, where a model computes a loss of its own: they would count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brimful.blocks.ragged import loss_labels
from brimful.core.own_keys import WEIGHTS, rows_that_count
from brimful.isolation.call import unwrapped
from brimful.isolation.guard import by_name
from brimful.tensors.loss import are_classes


class CopiesGuard:
    """Refuses calls of models that would count copies of rows in a loss of their own."""

    def __init__(self) -> None:
        self._rows: torch.Tensor | bool = True
        self._handles: list[Any] = []

    def saw(self, batch: Any) -> None:
        """A batch goes to the loop: the next call of a watched model may be with it."""
        self._rows = rows_that_count(batch) if isinstance(batch, Mapping) else True

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
        if torch.compiler.is_compiling() or isinstance(self._rows, bool):
            return
        inputs = by_name(model, args, kwargs)
        name = loss_labels([name for name, one in inputs.items() if one is not None])
        if name is not None:
            refuse_copies(type(unwrapped(model)).__name__, inputs[name], self._rows, WEIGHTS in inputs)


def refuse_copies(model: str, labels: torch.Tensor | None, rows: torch.Tensor | bool, is_weighed: bool) -> None:
    """Refuses a batch with copies up to a static shape where a model computes a loss of its own, in which these count.

    Args:
        labels: those that the model is given; of integers those of copies are -100.
        rows: which rows count.
        is_weighed: the model is given `sample_weights`.
    Raises:
        ValueError: naming how many copies there are.
    """
    if is_weighed or isinstance(rows, bool) or (isinstance(labels, torch.Tensor) and are_classes(labels)):
        return
    if copies := int((~rows).sum()):
        kind = "there are no labels" if labels is None else f"its labels are {getattr(labels, 'dtype', type(labels))}"
        raise ValueError(
            f"{copies:,} of the {len(rows):,} rows of this batch are copies up to its static shape. The loss of {model} counts "
            f"them: {kind}, and only integers are -100 in copies. Give Trainer a compute_loss_func, which gets the other rows "
            "alone. In your own loop, compute the loss of each row outside of the model, and give these to bf.token_mean"
        )
