"""One sample is changed and all others are compared; each is compared with itself run alone; and where they meet is named.

A model is run some seven times on a few short samples, in eval mode, without gradients. Of each module's inputs and outputs
a few numbers a slot are kept; the first one that is other where nothing was changed is where samples meet.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from brimful.core.random import seeded
from brimful.isolation.call import Call

Tensor = torch.Tensor

FEATURES: Final = 32
"""Values of each slot that are kept of a tensor, beside a sum of all."""
MOST_WIDENED: Final = 50_000_000
"""Parameters up to which a model is run in float64: they are there a second time then."""
EXACT: Final = 1e-6
"""What a change elsewhere may change of a slot, as a share of a tensor's size: groups of experts are summed up otherwise."""
CLOSE: Final = 1e-3
"""What may lie between a sample in its row and alone."""
COARSE: Final = 5e-2
"""Both, in half precision."""


@dataclass(frozen=True)
class Leak:
    """Where samples meet.

    Args:
        layer: the name of the first module at which they do, as in `model.named_modules()`; "" for the model itself.
        module: its class.
        kind: "attention", "convolution", "recurrence", "positions" or "unknown".
        test: "changed": another sample was changed; "padding": padding was; "alone": a sample differs from itself run alone.
        difference: the greatest one in the model's output, as a share of the output's size.
    """

    layer: str
    module: str
    kind: str
    test: str
    difference: float

    def __str__(self) -> str:
        words = {"changed": "samples see each other", "padding": "a real token sees padding"}
        what = words.get(self.test, "a sample is not what it is alone")
        where = f"{self.layer} ({self.module})" if self.layer else self.module
        return f"{what} at {where}, by its {self.kind}" if self.kind != "unknown" else f"{what} at {where}"


class Examined(NamedTuple):
    """What came of a call: where samples meet, if they do, and by what arithmetic that was found."""

    leak: Leak | None
    dtype: torch.dtype
    tolerance: float


def examine(model: nn.Module, call: Call, vocabulary: int, seed: int = 0) -> Examined:
    """Where, if anywhere, samples of a call meet in a model, or real tokens and padding.

    Neither the model, nor its mode, nor any generator changes. In float64 where the model is small and computes in it, else in
    its own type.

    Args:
        vocabulary: ids of tokens that may be put in are below it.
    Raises:
        ValueError: the model gives nothing for each token.
    """
    size = sum(one.numel() for one in model.parameters())
    kinds = {one.device.type for one in model.parameters()}
    if size <= MOST_WIDENED and kinds <= {"cpu", "cuda"}:
        try:
            return _examined(model, call, vocabulary, seed, torch.float64)
        except (RuntimeError, NotImplementedError, TypeError):  # a kernel, or a layer, that knows no float64
            pass
    return _examined(model, call, vocabulary, seed, None)


def _examined(model: nn.Module, call: Call, vocabulary: int, seed: int, wide: torch.dtype | None) -> Examined:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    own = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    dtype = own if wide is None else wide
    exact, close = (EXACT, CLOSE) if dtype.itemsize > 2 else (COARSE, COARSE)
    with undisturbed(model, seed):
        _fill(model, wide)
        call = _as_wide(call.to(device), wide)
        base = _Trace.of(model, call, seed)
        if any(bool(one.nan[call.segments > 0].any()) for one in base.outputs):
            raise ValueError(
                f"{type(model).__name__} gives NaN for real tokens, so that nobody can say whether samples see each other"
            )
        for test, other, kept, others, most in _comparisons(model, call, vocabulary, exact, close):
            difference = base.differs(_Trace.of(model, other, seed), kept, others)
            if difference > most:
                first, second = (_Trace.of(model, one, seed, named=True) for one in (call, other))
                return Examined(_named(first, second, kept, others, most, test, difference), dtype, most)
    return Examined(None, dtype, exact)


class _Comparison(NamedTuple):
    """Another call, and the slots of the first one and of it that must be alike up to `most`."""

    test: str
    call: Call
    kept: Tensor
    others: Tensor
    most: float


def _comparisons(model: nn.Module, call: Call, vocabulary: int, exact: float, close: float) -> Iterator[_Comparison]:
    """The first and the last sample changed, then padding; then each sample by itself."""
    samples = call.samples
    for sample in {0: samples[0], len(samples): samples[-1]}.values() if len(samples) > 1 else ():
        changed = torch.zeros(call.shape, dtype=torch.bool)
        changed[sample.row, sample.slots] = True
        kept = ~changed & (call.segments > 0)
        yield _Comparison("changed", _changed(call, changed, vocabulary), kept, kept, exact)
    padding = call.segments == 0
    if bool(padding.any()):
        yield _Comparison("padding", _changed(call, padding, vocabulary), ~padding, ~padding, exact)
    natural = hasattr(getattr(model, "config", None), "model_type")
    for sample in samples:
        kept = torch.zeros(call.shape, dtype=torch.bool)
        kept[sample.row, sample.slots] = True
        alone = call.alone(sample, natural=natural)
        if natural and sample is samples[0]:
            try:  # as one text, unless the model wants more
                alone.run(model)
            except Exception:
                natural = False
                alone = call.alone(sample, natural=False)
        yield _Comparison("alone", alone, kept, torch.ones(alone.shape, dtype=torch.bool), close)


# -- what a run did


class _Event(NamedTuple):
    """What a module got (`place` "in") or gave."""

    name: str
    place: str
    number: int
    inside: str  # the module that runs it


class _Seen(NamedTuple):
    """A few numbers of each slot of a tensor (R, L, n), where it has NaN, and whether it has keys beside slots."""

    values: Tensor
    nan: Tensor
    square: bool


class _Trace:
    """What went through each module in one run."""

    def __init__(self, model: nn.Module) -> None:
        self.events: dict[_Event, list[_Seen]] = {}
        self.outputs: list[_Seen] = []
        self.modules = {module: name for name, module in model.named_modules()}

    @staticmethod
    def of(model: nn.Module, call: Call, seed: int, *, named: bool = False) -> _Trace:
        """Runs a model; `named`: looks into each of its modules."""
        trace = _Trace(model)
        shape, stack = call.shape, [""]
        counts: dict[tuple[str, str], int] = {}

        def note(name: str, place: str, values: Any) -> None:
            number = counts[name, place] = counts.get((name, place), -1) + 1
            inside = stack[-1] if place == "in" else name
            trace.events[_Event(name, place, number, inside)] = _seen_in(values, shape)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            name = trace.modules[module]
            note(name, "in", (args, kwargs))
            stack.append(name)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            stack.pop()
            note(trace.modules[module], "out", output)

        with ExitStack() as hooks:
            hooks.enter_context(seeded(seed, []))
            for module in trace.modules if named else ():
                for handle in (
                    module.register_forward_pre_hook(before, with_kwargs=True),
                    module.register_forward_hook(after, with_kwargs=True),
                ):
                    hooks.callback(handle.remove)
            output = call.run(model)
        trace.outputs = _seen_in(_results(output), shape)
        if not trace.outputs:
            raise ValueError(
                f"{type(model).__name__} gives nothing for each token of a batch {shape}, so that nobody can say whether samples "
                "see each other; give the part of it that does"
            )
        return trace

    def differs(self, other: _Trace, kept: Tensor, others: Tensor) -> float:
        """The greatest difference of the outputs at some slots of one run and of another, as a share of their size."""
        return max(_difference(one, two, kept, others) for one, two in zip(self.outputs, other.outputs))


def _named(
    base: _Trace, again: _Trace, kept: Tensor, others: Tensor, most: float, test: str, difference: float
) -> Leak:
    """The module at which two runs part."""
    names = {name: module for module, name in base.modules.items()}
    layer = ""
    for event, seen in base.events.items():
        found = again.events.get(event, [])
        if len(found) != len(seen) or (test == "alone" and _turns(names[event.name])):
            continue
        pairs = [(one, two) for one, two in zip(seen, found) if test != "alone" or not (one.square or two.square)]
        if any(_difference(one, two, kept, others) > most for one, two in pairs):
            layer = event.name if test == "alone" and isinstance(names[event.name], nn.Embedding) else event.inside
            break
    module = names[layer]
    return Leak(layer, type(module).__name__, _kind(layer, module, test), test, difference)


def _turns(module: nn.Module) -> bool:
    """Whether a module makes rotations of positions: those of a sample may begin anywhere."""
    return "rotary" in type(module).__name__.lower()


_KINDS: Final = (
    ("positions", ("position", "wpe")),
    ("convolution", ("conv",)),
    (
        "recurrence",
        ("mamba", "ssm", "rwkv", "recurr", "rglru", "lstm", "gru", "rnn", "delta", "linearatt", "lightning", "mlstm"),
    ),
    ("attention", ("attention", "attn")),
)


def _kind(layer: str, module: nn.Module, test: str) -> str:
    """What samples meet by, as far as names tell."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return "convolution"
    if isinstance(module, nn.RNNBase):
        return "recurrence"
    if isinstance(module, nn.Embedding) and test == "alone":
        return "positions"
    own, path = type(module).__name__.lower(), layer.rpartition(".")[2].lower()
    for words in (own, path):
        for kind, parts in _KINDS:
            if any(part in words for part in parts):
                return kind
    inside = {type(one) for one in module.children()}
    if any(issubclass(one, nn.modules.conv._ConvNd) for one in inside):
        return "convolution"
    return "positions" if test == "alone" and not layer else "unknown"


def _results(output: Any) -> Any:
    """What a model gives, without what it keeps for later."""
    if isinstance(output, Mapping):
        return [one for name, one in output.items() if name not in ("past_key_values", "loss")]
    return output


def _seen_in(values: Any, shape: tuple[int, int], depth: int = 0) -> list[_Seen]:
    """Of each tensor in something with a value for each slot."""
    if isinstance(values, Tensor):
        seen = _seen(values, shape)
        return [] if seen is None else [seen]
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple) and depth < 4:
        return [seen for one in values for seen in _seen_in(one, shape, depth + 1)]
    return []


def _seen(value: Tensor, shape: tuple[int, int]) -> _Seen | None:
    rows, length = shape
    if value.is_nested or value.is_sparse or value.dtype == torch.bool or value.is_complex():
        return None
    sizes = tuple(value.shape)
    if len(sizes) > 1 and sizes[0] in (rows, 1) and length in sizes[1:]:
        dim = sizes.index(length, 1)
        value = value.movedim(dim, 1)
    elif sizes[:1] == (rows * length,) or sizes[:2] == (1, rows * length):
        value = value.reshape(rows, length, -1)
    elif sizes[:2] == (length, rows):
        value = value.movedim(0, 1)
    else:
        return None
    square = value.shape[2:].count(length) > 0
    flat = value.detach().reshape(value.shape[0], length, -1)
    if not flat.shape[-1]:
        return None
    nan = torch.isnan(flat).any(-1).expand(rows, -1).cpu()
    if flat.is_floating_point():
        flat = torch.nan_to_num(flat, 0, 0, 0)
    weights = torch.cos(torch.arange(flat.shape[-1], device=flat.device, dtype=torch.float64))
    total = (flat.to(torch.float64) @ weights)[..., None] / flat.shape[-1] ** 0.5
    some = flat[..., :: -(-flat.shape[-1] // FEATURES)].to(torch.float64)
    kept = torch.cat((some, total), -1).expand(rows, -1, -1).cpu()
    return _Seen(kept, nan, square)


def _difference(one: _Seen, two: _Seen, kept: Tensor, others: Tensor) -> float:
    if one.values.shape[-1] != two.values.shape[-1]:
        return 0.0
    first, second = one.values[kept], two.values[others]
    if not len(first):
        return 0.0
    size = max(float(first.abs().mean()), 1e-12)
    return float((first - second).abs().max()) / size


# -- the call


def _changed(call: Call, where: Tensor, vocabulary: int) -> Call:
    """The call with other tokens at some slots."""
    tokens = call.inputs[call.tokens].clone()
    at = where.to(tokens.device)
    old = tokens[at]
    if tokens.is_floating_point():
        new = torch.randn_like(old) * old.std().nan_to_num(1).clamp(min=1e-3)
    else:
        first = min(5, vocabulary // 2)
        new = torch.randint(first, vocabulary, old.shape, device=old.device, dtype=old.dtype)
        new = torch.where(new == old, first + (new - first + 1) % (vocabulary - first), new)
    tokens[at] = new
    return call.with_(**{call.tokens: tokens})


def _as_wide(call: Call, wide: torch.dtype | None) -> Call:
    """Masks and features in the type that the model computes in."""
    if wide is None:
        return call
    inputs = {
        name: one.to(wide) if isinstance(one, Tensor) and one.is_floating_point() and name != "attention_mask" else one
        for name, one in call.inputs.items()
    }
    return replace(call, inputs=inputs)


# -- the model


@contextmanager
def undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """Within, a model may be run in eval mode, and its parameters and buffers be put in others' place; afterwards all of it is as
    it was: modes, buffers, attributes, caches, and the generators of Python, numpy and torch."""
    modules = list(model.modules())
    attributes = [(vars(module), dict(vars(module))) for module in modules]
    inner: list[tuple[Any, Any]] = [
        (one, one.copy()) for module in modules for one in vars(module).values() if isinstance(one, dict | list | set)
    ]
    buffers = [(one, one.detach().clone()) for one in model.buffers() if one is not None]
    devices = {one.device.index for one in model.parameters() if one.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(seeded(seed, []))
        stack.enter_context(torch.random.fork_rng(devices=[device for device in devices if device is not None]))
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in {"cpu", *(one.device.type for one in model.parameters())}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            model.eval()
            yield
        finally:
            for holder, before in attributes:
                holder.clear()
                holder.update(before)
            for held, copied in inner:
                held.clear()
                held.extend(copied) if isinstance(held, list) else held.update(copied)
            for buffer, content in buffers:
                buffer.copy_(content)


def _fill(model: nn.Module, wide: torch.dtype | None) -> None:
    """Puts copies of a wider type in the place of parameters and buffers, and random values for parameters that are all zero,
    which would hide what a layer does."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, one in held.items():
                if one is None or not one.is_floating_point():
                    continue
                if id(one) not in made:
                    new = one.detach() if wide is None else one.detach().to(wide)
                    if held is module._parameters and not new.any():
                        new = torch.randn_like(new) * (new[0].numel() ** -0.5 if new.ndim > 1 else 0.1)
                    made[id(one)] = nn.Parameter(new, requires_grad=False) if held is module._parameters else new
                held[name] = made[id(one)]
