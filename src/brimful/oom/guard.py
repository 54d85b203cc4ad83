"""A training step that survives out of memory: it runs again in parts, and the gradients are those of the whole batch."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from brimful.oom.exhaustion import GuardedCall, OnSampleOom, PartRunner
from brimful.oom.modules import Buffers, modules_of_process
from brimful.oom.parts import joined, splittable
from brimful.oom.weights import Weigh, Weights
from brimful.plan.errors import RankError, function, name_of, one_of, other_signature
from brimful.tensors.loss import running_part
from brimful.tensors.structures import mapped

Distributed = Literal["ddp", "fsdp"]


def oom_guard(
    step: Callable[[Any, float], Any],
    *,
    parameters: Iterable[Tensor] | None = None,
    weigh: Weigh = "auto",
    distributed: Distributed | None = None,
    on_sample_oom: OnSampleOom = "raise",
) -> OomGuard:
    """A guarded step. If it runs out of memory, the guard frees memory, splits the batch by sample and runs the parts.

    The gradients are those of the whole batch, up to rounding, under two conditions. No sample's loss depends on the
    others in its batch (batch norm, in-batch negatives). And nothing is random (dropout). From then on, batches of such
    a shape are split beforehand. Call `optimizer.step()` after the guard, never inside it.

    Before it runs the parts, the guard puts back what the failed step changed. These are gradients, and buffers of all
    modules, such as the statistics of a batch norm. A batch norm still counts each part as a batch. The guard does not
    know other attributes of modules, and modules that `gc.freeze` had hidden before its first call.

        guard = oom_guard(step, parameters=model.parameters())
        for batch in batches:
            loss = guard(batch)
            optimizer.step()
            optimizer.zero_grad()

    Args:
        step: `step(batch, scale)` multiplies its loss by `scale` and calls backward. `scale` is 1.0 for a whole batch,
            and the share of a part. The step may return the loss *before* it was multiplied. It may be called again for
            the same samples, and must not change the batch. If it ignores `scale`, a batch in two parts gives twice the
            gradients, and nothing shows it.
        parameters: the parameters that `step` gives gradients to. If memory runs out, the guard sets their gradients
            back to the values from before the step. None: the step has no backward. If it has one, the guard can run it
            again only while no tensor has a gradient.
        weigh: the weight of a part, to match the way in which `step` averages its loss. "tokens": the number of labels
            other than -100. "next_tokens": the same without the first of each row, which a causal model does not
            predict. "samples": the number of samples. "sum": every scale is 1.0. Use it if the loss is a sum, or is
            divided by a number of the whole batch (`bf.token_mean` with num_items_in_batch or num_items_on_rank). A
            function: takes a batch or a part of one, and returns its weight. "auto": "tokens" if the batch, or each of
            a list of samples, has `labels` that are integers, else "samples". If it has `shift_labels`, the guard counts
            all of these. Labels inside of a nested dict or tuple need a function: the guard refuses the batch. It does
            so too where labels of tokens may stand in a tuple without a name. Each part gets its share of
            num_items_in_batch and num_items_on_rank, so "auto" fits a mean, `bf.token_mean` and `bf.sample_mean`.
            Rows count by their `sample_weights`, whatever their labels are: a copy that fills up a static shape has 0.
        distributed: how gradients are reduced, at a world size above 1. "ddp": steps run under `no_sync()`, and you
            reduce the gradients once, after the guard. Each rank splits by itself, so the step must not communicate
            (`bf.token_mean` does, unless the batch has num_items_in_batch). "fsdp": each forward gathers the
            parameters from all ranks. So before each step, the ranks agree on the number of parts (a collective of some
            bytes). If a step still runs out of memory, it is an error, because the other ranks wait in a collective.
            Save the state, and start again with it.
        on_sample_oom: the reaction to a sample that does not fit alone. "raise" raises an error. "skip" counts and logs the
            batch, returns None, and leaves the gradients from before.
    Returns:
        a callable on a batch: see `OomGuard`. `parts.splittable` says how a batch is cut. If a batch was split, numbers
            that `step` returned are averaged by weight, like losses. Return counts as lists, or as tensors with a row a
            sample.
    Raises:
        ValueError: there are several ranks, and no `distributed`.
        TypeError: a parameter is not a tensor, or `step` does not take a batch and a scale.
    State: see `OomGuard.state_dict`.
    Price: 100 us a batch, and 5 us a buffer of at most 1 MB: these are copied before each step. Larger buffers are
        copied after the first step that changed them. Gradients are copied only if there are some before the step:
        `.stats.cloned_bytes` counts their bytes. The first call looks at every object of the process, .1 to 1 s. After
        an OOM, the parts run again.
    Source: the automatic gradient accumulation of Composer, with shares by tokens, and gradients put back after each
        try.

    >>> from brimful.memory import SimulatedOOM
    >>> weight = torch.ones(2, requires_grad=True)
    >>> device = SimulatedOOM(8)
    >>> def step(batch, scale):
    ...     loss = (device(batch["x"]) @ weight).mean()
    ...     (loss * scale).backward()
    ...     return loss
    >>> guard = oom_guard(step, parameters=[weight])
    >>> guard({"x": torch.arange(10.0).reshape(5, 2)}).item(), weight.grad.tolist()
    (9.0, [4.0, 5.0])
    >>> guard.stats.ooms, guard.stats.parts
    (1, 2)
    """
    return OomGuard(step, parameters, weigh, distributed, on_sample_oom)


class OomGuard(GuardedCall):
    """A guarded step: call it on a batch. Made by `oom_guard`.

    It returns the result of the step. If the batch was split, it joins the results of the parts. Losses (numbers,
    tensors without dimensions) become their weighted mean. The rows of other tensors and lists follow each other. Each
    entry of dicts and tuples is joined in the same way.

    >>> from brimful.memory import SimulatedOOM
    >>> weight, device = torch.ones(2, requires_grad=True), SimulatedOOM(8)
    >>> def step(batch, scale):
    ...     ((device(batch["x"]) @ weight).mean() * scale).backward()
    >>> guard = oom_guard(step, parameters=[weight])
    >>> for _ in range(2):
    ...     guard({"x": torch.ones(5, 2)})
    >>> guard.stats.ooms, guard.stats.split, [round(one, 3) for one in weight.grad.tolist()]
    (1, 2, [2.0, 2.0])
    """

    def __init__(
        self,
        step: Callable[[Any, float], Any],
        parameters: Iterable[Tensor] | None,
        weigh: Weigh,
        distributed: Distributed | None,
        on_sample_oom: OnSampleOom,
    ) -> None:
        self._weights = Weights(weigh)
        if distributed is not None:
            one_of("distributed", distributed, *get_args(Distributed))
        one_of("on_sample_oom", on_sample_oom, *get_args(OnSampleOom))
        _refuse_unsaid(distributed)
        if signature := other_signature(function("oom_guard", step), {}, 1.0):
            raise TypeError(
                f"oom_guard needs a step of two arguments, step(batch, scale), which multiplies its loss by scale (got "
                f"{name_of(step)}{signature})"
            )
        self._step = step
        self._parameters = None if parameters is None else _tensors(parameters)
        self._distributed = distributed
        self._modules = modules_of_process()  # now, so that torch tells of those that are made before the first call
        self._looked = False
        self._runner = PartRunner(on_sample_oom, _agreed if distributed == "fsdp" else None)

    def __call__(self, batch: Any) -> Any:
        """Runs the step on a batch.

        Raises:
            ValueError, TypeError: the batch cannot be split by sample, or its weight is not known.
            torch.OutOfMemoryError: one sample alone does not fit. The gradients are as they were.
            RuntimeError: the optimizer stepped inside, gradients or buffers cannot be put back, or a backward reduces
                gradients.
            RankError: (under "fsdp") a rank has too few samples.
        """
        _refuse_unsaid(self._distributed)
        if not self._looked:
            self._looked = True
            self._modules.look()
        whole = splittable(batch)
        weigh = self._weights.of_parts(batch, _world_size())
        before = _Gradients(self._parameters)
        self.stats.cloned_bytes = max(self.stats.cloned_bytes, before.bytes)
        buffers = Buffers(self._modules)

        def undo(error: BaseException) -> None:
            before.put_back(error)
            buffers.put_back(error)
            if self._distributed == "fsdp":
                raise RuntimeError(
                    "out of memory under FSDP: the other ranks wait for this one in a collective, so the step cannot be "
                    "run again; save the guard's state_dict(), which says to split such batches, and start all ranks "
                    "again with it"
                ) from error

        reducing = self._modules.reducing() if self._distributed == "ddp" and _world_size() > 1 else ()
        with _watched(reducing):
            result = self._runner.run(whole, lambda parts: self._run(batch, parts, weigh), undo)
        buffers.note()
        return result

    def _run(self, batch: Any, parts: Sequence[Any], weigh: Callable[[Any], float] | None) -> Any:
        if len(parts) == 1:
            return self._step(parts[0], 1.0)
        shares = [1.0] * len(parts) if weigh is None else _shares([weigh(part) for part in parts])
        # a mean over no token is NaN, and stays it times 0; but under FSDP the other ranks run as many parts
        kept = [(part, share) for part, share in zip(parts, shares) if share or self._distributed == "fsdp"]
        results = []
        for part, share in kept:
            with running_part(batch, part, share):
                result = self._step(self._weights.part(part, share), share)
            results.append(
                mapped(result, Tensor.detach)
            )  # its graph would stay in memory through the parts that follow
            del result
        return combined(results, [share for _, share in kept], len(kept) == len(parts), name_of(self._step))


def _shares(weights: Sequence[float]) -> list[float]:
    """The share of each weight in their sum. If nothing is trained on, the shares are equal."""
    total = sum(weights)
    return [weight / total for weight in weights] if total else [1 / len(weights)] * len(weights)


class _Gradients:
    """The gradients of some parameters as they are now: copies of those that there are.

    Args:
        parameters: the parameters whose gradients are kept; None: the user named none.
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


_IMMORTAL: Final = 1_000
"""Python 3.12 counts some 400 of its own objects as frozen. `gc.freeze` freezes 5,000 at the least: those of a bare Python."""


def _some_gradient() -> bool:
    """Whether any tensor in this process may have a gradient. Price: a look at every object, .1 to 1 s."""
    if gc.get_freeze_count() > _IMMORTAL:  # of what `gc.freeze` has put aside nothing is shown
        return True
    gc.collect()  # a model of before, in a cycle of references, says nothing
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    return any(tensor.is_leaf and tensor.grad is not None for tensor in tensors)


def combined(results: Sequence[Any], shares: Sequence[float], complete: bool, name: str) -> Any:
    """The results of a step for parts, joined to that of the whole batch.

    Args:
        complete: whether all parts were run.
    Raises:
        TypeError: values that cannot be joined.

    >>> combined([{"loss": 1.0, "ids": [1, 2]}, {"loss": 4.0, "ids": [3]}], [2 / 3, 1 / 3], True, "step")
    {'loss': 2.0, 'ids': [1, 2, 3]}
    """

    def join(values: Sequence[Any]) -> Any:
        first = values[0]
        if all(one is None for one in values):
            return None
        if isinstance(first, int | float) or (isinstance(first, Tensor) and not first.dim()):
            return sum(one * share for one, share in zip(values, shares))
        if complete and isinstance(first, Tensor):
            return torch.cat(list(values))
        if complete and isinstance(first, list):
            return [row for one in values for row in one]
        lacking = "" if complete else ", and parts without labels were not run"
        raise TypeError(
            f"{name} returned a {type(first).__name__}, which cannot be joined for the parts of a batch{lacking}; return "
            "losses (numbers, tensors without dimensions), or dicts and tuples of them"
        )

    return joined(results, join)


def _tensors(parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    if isinstance(parameters, nn.Module):
        raise TypeError(
            f"parameters takes tensors (got the module {type(parameters).__name__}); say model.parameters()"
        )
    found = tuple(parameters) if isinstance(parameters, Iterable) else (parameters,)
    for one in found:
        if not isinstance(one, Tensor):
            raise TypeError(f"parameters takes tensors, as model.parameters() gives them (got {type(one).__name__})")
    return found


# -- several data-parallel ranks, of which a guard cannot see how their gradients are reduced


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _refuse_unsaid(distributed: Distributed | None) -> None:
    """Refuses several ranks if the user did not say how they work together.

    Raises:
        ValueError: with the two ways to say it.
    """
    ranks = _world_size()
    if ranks > 1 and distributed is None:
        raise ValueError(
            f"there are {ranks} ranks, and the guard cannot see how their gradients come together: say distributed='ddp' "
            "where steps run under no_sync() and the gradients are reduced once, by you, or distributed='fsdp', where "
            "all ranks agree on the number of parts before each step"
        )


def _agreed(count: int, samples: int) -> int:
    """The greatest of the numbers of parts that the ranks want to take, as each forward is a collective of all of them.

    Raises:
        RankError: a rank has fewer samples than that: on all ranks, which is named.
    """
    if _world_size() == 1:
        return count
    found: list[Any] = [None] * _world_size()
    dist.all_gather_object(found, (count, samples))
    wanted: int = max(parts for parts, _ in found)
    for rank, (_, most) in enumerate(found):
        if most < wanted:
            raise RankError(
                f"a batch must be split into {wanted:,} parts on every rank, as under FSDP each forward gathers the "
                f"parameters from all of them, and rank {rank} has {most:,} samples; take smaller batches"
            )
    return wanted


@contextmanager
def _watched(reducing: Sequence[nn.Module]) -> Iterator[None]:
    """Refuses two things inside of a guarded step. A step of an optimizer would be several for a batch in parts. If a forward
    of a `reducing` module reduces gradients in its backward, a rank that runs a batch in parts takes part in other collectives
    than the rest, for ever.

    Raises:
        RuntimeError: from that step or forward.
    """
    thread = threading.get_ident()

    def refuse_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            raise RuntimeError(
                f"{type(optimizer).__name__} stepped inside of a guarded step: for a batch that is run in parts it would "
                "step once a part; call optimizer.step() and zero_grad() after the guard"
            )

    handles = [register_optimizer_step_pre_hook(refuse_step)]
    handles += [module.register_forward_pre_hook(_refuse_sync) for module in reducing]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_sync(module: Any, inputs: Any) -> None:
    if torch.is_grad_enabled() and module.require_backward_grad_sync:
        raise RuntimeError(
            "a guarded step under distributed='ddp' ran a forward of DistributedDataParallel outside of no_sync(): its "
            "backward reduces gradients, once a part, and ranks with other numbers of parts would wait for ever; call "
            "the guard under model.no_sync(), and reduce the gradients once after it"
        )
