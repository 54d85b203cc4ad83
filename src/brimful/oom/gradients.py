"""The gradients that a step finds, kept until it has succeeded."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
from torch import Tensor


class Gradients:
    """The gradients of some parameters as they are now: copies, where there are any, else that there are none.

    Args:
        parameters: of which gradients are kept; None: the user named none.
    Price: as many bytes as there are gradients (`bytes`); where they are None, as after zero_grad, nothing.
    """

    def __init__(self, parameters: Sequence[Tensor] | None) -> None:
        self._parameters = parameters
        self._kept: list[Tensor | None] = []
        self.bytes = sum(_bytes(one.grad) for one in parameters or () if one.grad is not None)
        try:
            self._kept = [None if one.grad is None else one.grad.detach().clone() for one in parameters or ()]
        except Exception as error:
            error.add_note(
                f"the guard copies the gradients that a step finds, {self.bytes:,} bytes: they are those of a step that "
                "accumulates; set them to None before each step (zero_grad), with larger batches, or leave memory for a "
                "second set of them"
            )
            raise

    def put_back(self, error: BaseException) -> None:
        """The gradients as they were; in place, where somebody may look at the same tensors.

        Raises:
            RuntimeError: no parameters are known, and there are gradients that this step may have made.
        """
        if self._parameters is None:
            if torch.is_grad_enabled() and _some_gradient():
                raise RuntimeError(
                    "a step ran out of memory and cannot be run again: there are gradients, and without parameters the "
                    "guard cannot put them back to what they were; make it by oom_guard(step, "
                    "parameters=model.parameters()), or call it under torch.no_grad() where the step has no backward"
                ) from error
            return
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            if kept is None:
                parameter.grad = None
            elif parameter.grad is None or {parameter.grad.layout, kept.layout} != {torch.strided}:
                parameter.grad = kept.clone()
            else:
                parameter.grad.detach().copy_(kept)


def _bytes(gradient: Tensor) -> int:
    if gradient.layout == torch.sparse_coo:
        return gradient._indices().nbytes + gradient._values().nbytes
    return gradient.nbytes


def _some_gradient() -> bool:
    """Whether any tensor in this process may have a gradient. Price: a look at every object, .1 to 1 s."""
    if gc.get_freeze_count():  # of what `gc.freeze` has put aside nothing is shown
        return True
    gc.collect()  # a model of before, in a cycle of references, says nothing
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    return any(tensor.is_leaf and tensor.grad is not None for tensor in tensors)
