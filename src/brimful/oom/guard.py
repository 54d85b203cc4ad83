"""A training step that survives running out of memory: it is run again in parts that weigh what they should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from brimful.blocks.ragged import LABELS, NOT_TRAINED_ON
from brimful.core.errors import finite, logger, name_of, one_of
from brimful.oom.exhaustion import Guarded, InParts, Unfit
from brimful.oom.gradients import Gradients
from brimful.oom.labels import check_labels, labels_of, trained_on, unnamed_labels
from brimful.oom.parts import Divisible, divisible
from brimful.oom.ranks import Distributed, agreed, reducing_modules, refuse_unsaid, unsynced

Weigh: TypeAlias = Literal["auto", "tokens", "next_tokens", "samples", "sum"] | Callable[[Any], float]

WEIGHTS: Final = "sample_weights"
"""The column of batches with a static shape that says which rows only fill it up."""


def oom_guard(
    step: Callable[[Any, float], Any],
    *,
    parameters: Iterable[Tensor] | None = None,
    weigh: Weigh = "auto",
    distributed: Distributed | None = None,
    unfit: Unfit = "raise",
) -> OomGuard:
    """Makes of a step one that, out of memory, frees what it held, splits the batch by sample and runs the parts.

    The gradients are those of the whole batch, up to rounding, where no sample's loss depends on the others in its batch (batch
    norm, in-batch negatives) and nothing is random (dropout). The lesson stays: batches of such a shape are split beforehand
    from then on. `optimizer.step()` comes after the guard, never inside it.

        guard = oom_guard(step, parameters=model.parameters())
        for batch in batches:
            loss = guard(batch)
            optimizer.step()
            optimizer.zero_grad()

    Args:
        step: `step(batch, scale)` multiplies its loss by `scale` (1.0 for a whole batch, its share for a part), calls backward,
            and may return the loss *before* that. It may be called again for samples that it has seen; the batch it leaves as
            it is. One that ignores `scale` has, of a batch in two parts, twice the gradients: nothing shows it.
        parameters: those that it gives gradients to, which on OOM go back to what they were. None: for a step without backward;
            one with it is run again only while nothing has a gradient.
        weigh: what a part's share is a share of, as `step` averages its loss. "tokens": labels other than -100, each of which is
            predicted; "next_tokens": those but the first of each row, which a causal model does not predict; "samples";
            "sum": every scale is 1.0, for a loss that is a sum, or one that was divided by a number of the whole batch
            (`bf.token_mean` with num_items_in_batch); a function of a (part of a) batch, that gives its weight. "auto": "tokens"
            where the batch has labels, by that name, also inside of mappings and in a list of samples, else "samples"; a tuple
            that may have some without a name is refused.
        distributed: at a world size above 1, how gradients come together. "ddp": steps run under `no_sync()`, and the gradients
            are reduced once, by the user, after the guard; each rank splits by itself. "fsdp": each forward gathers the
            parameters from all ranks, so they agree on the number of parts before each step (a collective of some bytes); a step
            that runs out of memory all the same is an error, as the others wait in a collective: save the state, and start again
            with it.
        unfit: what becomes of a batch of which one sample alone does not fit: "raise", or "skip" (counted, logged; None is
            returned, and the gradients are those from before).
    Returns:
        a callable on a batch: see `OomGuard`; a batch is cut as `parts.divisible` says. Of a batch that was split, the numbers
        that `step` returned are averaged by weight, as losses are: return counts as lists or tensors of a row a sample.
    Raises:
        ValueError: several ranks, and no `distributed`.
        TypeError: parameters that are no tensors.
    State: see `OomGuard.state_dict`. Price: 100 us a batch; copies of gradients only where there are some before the step, their
        bytes in `.stats.cloned_bytes`; after an OOM, the parts that had been run.
    Source: the automatic gradient accumulation of Composer, with shares by tokens, and gradients put back after each try.

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
    return OomGuard(step, parameters, weigh, distributed, unfit)


class OomGuard(Guarded):
    """A guarded step: call it on a batch. What it returns is what the step did; of a batch that was split the mean of its losses
    (numbers, tensors without dimensions) by their weights, the rows of other tensors and lists one after the other, and of dicts
    and tuples each entry so. Made by `oom_guard`."""

    def __init__(
        self,
        step: Callable[[Any, float], Any],
        parameters: Iterable[Tensor] | None,
        weigh: Weigh,
        distributed: Distributed | None,
        unfit: Unfit,
    ) -> None:
        if not callable(weigh):
            one_of("weigh", weigh, *get_args(get_args(Weigh)[0]))
        if distributed is not None:
            one_of("distributed", distributed, *get_args(Distributed))
        one_of("unfit", unfit, *get_args(Unfit))
        refuse_unsaid(distributed)
        self._step = step
        self._parameters = None if parameters is None else _tensors(parameters)
        self._weigh = weigh
        self._distributed = distributed
        self._reducing: Sequence[torch.nn.Module] | None = None
        self._said = False
        self._in_parts = InParts(unfit, _agreed if distributed == "fsdp" else _own)

    def __call__(self, batch: Any) -> Any:
        """Runs the step on a batch.

        Raises:
            ValueError, TypeError: the batch cannot be split by sample, or `weigh` cannot be told.
            torch.OutOfMemoryError: one sample alone does not fit; with the gradients as they were.
            RuntimeError: the optimizer stepped inside, gradients that cannot be put back, a backward that reduces gradients.
            RankError: (under "fsdp") a rank has too few samples.
        """
        refuse_unsaid(self._distributed)
        if self._reducing is None:
            self._reducing = reducing_modules(self._distributed)
        whole = divisible(batch)
        weigh = self._weigher(batch)
        before = Gradients(self._parameters)
        self.stats.cloned_bytes = max(self.stats.cloned_bytes, before.bytes)

        def undo(error: BaseException) -> None:
            before.put_back(error)
            if self._distributed == "fsdp":
                raise RuntimeError(
                    "out of memory under FSDP: the other ranks wait for this one in a collective, so the step cannot be "
                    "run again; save the guard's state_dict(), which says to split such batches, and start all ranks "
                    "again with it"
                ) from error

        with unsynced(self._reducing), _no_optimizer():
            return self._in_parts.run(batch, whole, lambda parts: self._run(parts, weigh), undo)

    def _run(self, parts: Sequence[Any], weigh: Callable[[Any], float] | None) -> Any:
        if len(parts) == 1:
            return self._step(parts[0], 1.0)
        weights = [1.0 if weigh is None else weigh(part) for part in parts]
        total = sum(weights)
        if not total:  # nothing is trained on: a mean over it is what it would be of the whole
            weights, total = [1.0] * len(parts), float(len(parts))
        shares = [1.0 if weigh is None else weight / total for weight in weights]
        # a mean over no token is NaN, and stays it times 0; but under FSDP the other ranks run as many parts
        kept = [(part, share) for part, share in zip(parts, shares) if share or self._distributed == "fsdp"]
        results = [_detached(self._step(part, share)) for part, share in kept]
        return combined(results, [share for _, share in kept], len(kept) == len(parts), name_of(self._step))

    def _weigher(self, batch: Any) -> Callable[[Any], float] | None:
        """The weight of a part; None where all scales are 1.0."""
        if callable(self._weigh):
            return lambda part: finite("a weight", self._weigh(part))  # type: ignore[operator]
        columns = batch if isinstance(batch, Mapping) else {}
        by = self._weigh
        if by == "auto":
            if "num_items_in_batch" in columns:
                raise ValueError(
                    "the batch has num_items_in_batch, so its loss may be a sum that is divided by that number, or a "
                    "mean: say oom_guard(weigh='sum') for the first (bf.token_mean), weigh='tokens' for the second"
                )
            labels = labels_of(batch)
            if labels is None and unnamed_labels(batch):
                raise ValueError(
                    f"weigh='auto' looks for {LABELS!r} by name, and a {type(batch).__name__} of columns without names may have "
                    "labels of tokens: say weigh='samples' to oom_guard where the loss is a mean over samples, else a function "
                    "of the batch, or give a dict"
                )
            by = "samples" if labels is None else "tokens"
            self._say_ambiguous(columns)
        if by in ("tokens", "next_tokens"):
            labels = labels_of(batch)
            if labels is None:
                raise ValueError(
                    f"weigh={by!r} counts labels, and the batch has none by the name {LABELS!r}; say 'samples', or a function "
                    "of the batch"
                )
            check_labels(labels, next_tokens=by == "next_tokens")
        return {"tokens": _tokens, "next_tokens": _next_tokens, "samples": _samples, "sum": None}[by]

    def _say_ambiguous(self, columns: Mapping[str, Any]) -> None:
        """Once: nobody can see whether a model predicts the first label of a row."""
        labels, inputs = columns.get(LABELS), columns.get("input_ids")
        if self._said or not (isinstance(labels, Tensor) and isinstance(inputs, Tensor)) or labels.is_nested:
            return
        self._said = True
        if labels.dim() == 2 and labels.shape == inputs.shape and bool((labels[:, 0] != NOT_TRAINED_ON).any()):
            logger.warning(
                "a part of a batch weighs as many tokens as it has labels other than -100; if this model predicts the "
                "next token, the first of each row is not predicted: say weigh='next_tokens' to oom_guard (or "
                "weigh='tokens', if that is right)"
            )


def combined(results: Sequence[Any], shares: Sequence[float], complete: bool, name: str) -> Any:
    """What a step returned for parts, as if it were for the whole.

    Args:
        complete: whether all parts were run.
    Raises:
        TypeError: values that cannot be joined.

    >>> combined([{"loss": 1.0, "ids": [1, 2]}, {"loss": 4.0, "ids": [3]}], [2 / 3, 1 / 3], True, "step")
    {'loss': 2.0, 'ids': [1, 2, 3]}
    """
    first = results[0]
    if all(one is None for one in results):
        return None
    if isinstance(first, Mapping):
        return {key: combined([one[key] for one in results], shares, complete, name) for key in first}
    if isinstance(first, tuple):
        found = [combined(column, shares, complete, name) for column in zip(*results, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else tuple(found)
    if isinstance(first, int | float) or (isinstance(first, Tensor) and not first.dim()):
        return sum(one * share for one, share in zip(results, shares))
    if complete and isinstance(first, Tensor):
        return torch.cat(list(results))
    if complete and isinstance(first, list):
        return [row for one in results for row in one]
    lacking = "" if complete else ", and parts without labels were not run"
    raise TypeError(
        f"{name} returned a {type(first).__name__}, which cannot be joined for the parts of a batch{lacking}; return "
        "losses (numbers, tensors without dimensions), or dicts and tuples of them"
    )


def _detached(value: Any) -> Any:
    """Without the graph, which would stay in memory through the parts that follow."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _detached(one) for key, one in value.items()}
    if isinstance(value, tuple):
        found = [_detached(one) for one in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    return [_detached(one) for one in value] if isinstance(value, list) else value


def _tokens(part: Any) -> float:
    return trained_on(labels_of(part))


def _next_tokens(part: Any) -> float:
    return trained_on(labels_of(part), next_tokens=True)


def _samples(part: Any) -> float:
    if isinstance(part, Mapping) and isinstance(part.get(WEIGHTS), Tensor):
        return float(part[WEIGHTS].sum())
    return float(divisible(part).samples)


def _own(count: int, whole: Divisible) -> int:
    return count


def _agreed(count: int, whole: Divisible) -> int:
    return agreed(count, whole.samples)


def _tensors(parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    if isinstance(parameters, torch.nn.Module):
        raise TypeError(
            f"parameters takes tensors (got the module {type(parameters).__name__}); say model.parameters()"
        )
    found = tuple(parameters)
    for one in found:
        if not isinstance(one, Tensor):
            raise TypeError(f"parameters takes tensors, as model.parameters() gives them (got {type(one).__name__})")
    return found


@contextmanager
def _no_optimizer() -> Iterator[None]:
    """Refuses a step of an optimizer inside: for a batch in parts it would be several."""
    thread = threading.get_ident()

    def refuse(optimizer: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            raise RuntimeError(
                f"{type(optimizer).__name__} stepped inside of a guarded step: for a batch that is run in parts it would "
                "step once a part; call optimizer.step() and zero_grad() after the guard"
            )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
