"""One sample is changed and all others are compared; each is compared with itself run alone; and where they meet is named.

A model is run some fifteen times on a few short samples, in eval mode, without gradients. Of each module's inputs and outputs
a few numbers a slot are kept; the first one that is other where nothing was changed is where samples meet.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask

from brimful.isolation.call import Call
from brimful.plan.random import seeded
from brimful.tables.ragged import LABELS, NOT_TRAINED_ON, SHIFTED
from brimful.tensors.structures import tensors_of

Tensor = torch.Tensor

FEATURES: Final = 32
"""Values of each slot that are kept of a tensor, beside a sum of the logarithms of all."""
MOST_WIDENED: Final = 50_000_000
"""Parameters up to which a model is run in float64: they are there a second time then."""
EXACT: Final = 1e-6
"""What a change elsewhere may change of a slot, as a share of its feature's size: groups of experts are summed up otherwise."""
CLOSE: Final = 1e-3
"""What may lie between a sample in its row and alone."""
COARSE: Final = 5e-2
"""Both, in half precision."""
ORDINARY: Final = 1e4
"""Values so many times as large as the smallest tenth of a tensor set no scale for it: they are masks, or nearly alone."""
TINY: Final = 1e-12
"""The least size of a value."""
SLOTS: Final = "slots"
SAMPLES: Final = "samples"
SMALLEST: Final = 1e-2
"""In float64 the size of a feature is at least this share of its tensor's: one that is zero but for rounding has none."""


@dataclass(frozen=True)
class Leak:
    """Where samples meet.

    Args:
        layer: the name of the first module at which they do, as in `model.named_modules()`; "" for the model itself.
        module: its class.
        kind: "attention", "convolution", "recurrence", "positions" or "unknown".
        test: "changed": another sample was changed; "padding": padding was; "alone": a sample differs from itself run alone.
        difference: the greatest one in the model's output, as a share of the size of its feature; inf: of what is not finite.
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


def examine(model: nn.Module, call: Call, vocabulary: int, *, locate: bool = True) -> Examined:
    """Where, if anywhere, samples of a call meet in a model, or real tokens and padding.

    Neither the model, nor its mode, nor any generator changes. In float64 where the model is small and computes in it, else in
    its own type.

    Args:
        vocabulary: ids of tokens that may be put in are below it.
        locate: look for the layer; else a leak is that of the model itself.
    Raises:
        ValueError: the model gives nothing for each token, or nothing finite; its parameters are on the meta device; it was
            compiled by torch.jit.
    """
    size = sum(one.numel() for one in model.parameters())
    kinds = {one.device.type for one in model.parameters()}
    if "meta" in kinds:
        raise ValueError(
            f"{type(model).__name__} has parameters on the meta device, so nothing can be computed; load them first"
        )
    if any(isinstance(one, torch.jit.ScriptModule) for one in model.modules()):
        raise ValueError(f"{type(model).__name__} was compiled by torch.jit; give the model as it was before")
    if size <= MOST_WIDENED and kinds <= {"cpu", "cuda"}:
        try:
            return _examined(model, call, vocabulary, torch.float64, locate)
        except (RuntimeError, NotImplementedError, TypeError):  # a kernel, or a layer, that knows no float64
            pass
    return _examined(model, call, vocabulary, None, locate)


def _examined(model: nn.Module, call: Call, vocabulary: int, wide: torch.dtype | None, locate: bool) -> Examined:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    own = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    dtype = own if wide is None else wide
    exact, close = (EXACT, CLOSE) if dtype.itemsize > 2 else (COARSE, COARSE)
    smallest = SMALLEST if dtype == torch.float64 else 1.0  # others do not tell a small feature from rounding
    with undisturbed(model):
        _fill(model, wide)
        call = _moved(call, device, wide)
        natural = _is_natural(model, call)
        base = _outputs(model, call, natural)
        if any(bool(one.nan[call.segments > 0 if one.unit == SLOTS else slice(None)].any()) for one in base):
            raise ValueError(
                f"{type(model).__name__} gives NaN, or nothing finite, for real tokens, so that nobody can say whether "
                "samples see each other"
            )
        for compared in _comparisons(call, vocabulary, natural, exact, close):
            again = {one.place: one for one in _run(model, compared.call).outputs}
            difference, unit = max((compared.difference(one, again.get(one.place), smallest), one.unit) for one in base)
            if difference > compared.most:
                layer, kind = _where(model, call, compared, unit, smallest) if locate else ("", "unknown")
                module = type(model.get_submodule(layer)).__name__
                return Examined(Leak(layer, module, kind, compared.test, difference), dtype, compared.most)
    return Examined(None, dtype, exact)


def _outputs(model: nn.Module, call: Call, natural: bool) -> list[_Seen]:
    """What a model gives that has a value for each slot, or for each sample: of those one alone has one.

    Raises:
        ValueError: there is nothing of the kind.
    """
    found = _run(model, call).outputs
    if any(one.unit == SAMPLES for one in found):
        alone = _run(model, call.alone(call.samples[0], natural=natural)).outputs
        single = {one.place for one in alone if one.unit == SAMPLES}
        found = [one for one in found if one.unit == SLOTS or one.place in single]
    if not found:
        raise ValueError(
            f"{type(model).__name__} gives nothing for each token of a batch {call.shape}, and nothing for each of its "
            f"{len(call.samples)} samples, so that nobody can say whether samples see each other. A loss does not show it, nor "
            "does a value for a row of several samples. Give the part of the model that does, or a padded batch"
        )
    return found


class _Comparison(NamedTuple):
    """Another call, and what of the first one and of it must be alike up to `most`: which slots, and which samples."""

    test: str
    call: Call
    kept: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    most: float

    def difference(self, one: _Seen, two: _Seen | None, smallest: float) -> float:
        """The greatest one in a tensor of two runs, as a share of its feature's size."""
        if two is None or two.unit != one.unit:
            return 0.0
        kept, others = self.kept[one.unit], self.others[one.unit]
        first, second = one.values[kept], two.values[others]
        if not len(first) or first.shape != second.shape:
            return 0.0
        if not one.infinite[kept].equal(two.infinite[others]):
            return inf
        sizes = torch.cat((_sizes(first[:, :-1], smallest), _sizes(first[:, -1:], smallest)), 1)
        return float(((first - second).abs() / sizes).max())


def _sizes(values: Tensor, smallest: float) -> Tensor:
    """What a difference of each value (m, n) is measured by: the mean size of the ordinary values of its feature, or its own size
    where that is far larger. So features, and slots, that are masked by -1e9 set no scale for the others."""
    sizes = values.abs()
    told = sizes[:, values.amin(0) < values.amax(0)]  # a feature that is masked everywhere is the same everywhere
    told = told[told > 0]
    if not len(told):
        return sizes.clamp(min=TINY)
    ordinary = sizes <= ORDINARY * told.kthvalue(1 + len(told) // 10).values
    typical = float(sizes[ordinary & (sizes > 0)].mean())
    means = (sizes * ordinary).sum(0) / ordinary.sum(0).clamp(min=1)
    return torch.where(ordinary, means.clamp(min=max(smallest * typical, TINY)), sizes)


def _comparisons(call: Call, vocabulary: int, natural: bool, exact: float, close: float) -> Iterator[_Comparison]:
    """Half of the samples changed, and the other half, so often that of any two each is changed once while the other is not; then
    padding; then each sample by itself."""
    samples, padding = call.samples, call.segments == 0
    numbers = torch.arange(len(samples))
    for half in (numbers >> bit & 1 == side for bit in range((len(samples) - 1).bit_length()) for side in (0, 1)):
        slots = _slots(call, half)
        kept = {SLOTS: ~slots & ~padding, SAMPLES: ~half}
        yield _Comparison("changed", _changed(call, slots, half, vocabulary), kept, kept, exact)
    if bool(padding.any()):
        kept = {SLOTS: ~padding, SAMPLES: numbers >= 0}
        yield _Comparison("padding", _changed(call, padding, numbers < 0, vocabulary), kept, kept, exact)
    for number, sample in enumerate(samples):
        alone, own = call.alone(sample, natural=natural), numbers == number
        whole = {SLOTS: torch.ones(alone.shape, dtype=torch.bool), SAMPLES: torch.ones(1, dtype=torch.bool)}
        yield _Comparison("alone", alone, {SLOTS: _slots(call, own), SAMPLES: own}, whole, close)


def _slots(call: Call, chosen: Tensor) -> Tensor:
    """The slots of some samples, bool (R, L)."""
    found = torch.zeros(call.shape, dtype=torch.bool)
    for number in chosen.nonzero().flatten().tolist():
        sample = call.samples[number]
        found[sample.row, sample.slots] = True
    return found


def _is_natural(model: nn.Module, call: Call) -> bool:
    """Whether a model takes a sample as one text, with nothing that says where it lies."""
    if not hasattr(getattr(model, "config", None), "model_type"):
        return False
    try:
        call.alone(call.samples[0], natural=True).run(model)
    except Exception:  # it wants more
        return False
    return True


# -- what a run did


class _Event(NamedTuple):
    """What a module got (`place` "in") or gave."""

    name: str
    place: str
    number: int
    inside: str  # the module that runs it


class _Seen(NamedTuple):
    """A few features of each slot of a tensor (R, L, n), or of each sample (S, n), the last of which is a sum over all.

    Args:
        place: of the tensor among those of which it is one.
        unit: "slots" or "samples".
        nan: where it has NaN, or only infinities.
        infinite: a number of what is not finite, by its kind and feature.
        square: whether it has keys beside slots.
    """

    place: int
    unit: str
    values: Tensor
    nan: Tensor
    infinite: Tensor
    square: bool


class _Trace(NamedTuple):
    """What a run gave, and what went through each module."""

    outputs: list[_Seen]
    events: dict[_Event, list[_Seen]]


def _run(model: nn.Module, call: Call, names: Mapping[nn.Module, str] | None = None) -> _Trace:
    """Runs a model, and looks into the modules that are named."""
    trace, stack = _Trace([], {}), [""]
    counts: Counter[tuple[str, str]] = Counter()
    names = names or {}

    def note(name: str, place: str, values: Any) -> None:
        event = _Event(name, place, counts[name, place], stack[-1])
        counts[name, place] += 1
        trace.events[event] = _seen_in(values, call)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        note(names[module], "in", (args, kwargs))
        stack.append(names[module])

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        note(names[module], "out", output)
        stack.pop()

    with ExitStack() as hooks:
        hooks.enter_context(seeded(0, []))
        for module in names:
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        trace.outputs.extend(_seen_in(_results(call.run(model)), call))
    return trace


def _where(model: nn.Module, call: Call, compared: _Comparison, unit: str, smallest: float) -> tuple[str, str]:
    """The name of the module at which two runs part in what they have for each slot or sample, and what samples meet by there."""
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    base, again = (_run(model, one, names).events for one in (call, compared.call))
    alone = compared.test == "alone"
    layer = ""
    for event, seen in base.items():
        found = {one.place: one for one in again.get(event, [])}
        if alone and "rotary" in type(modules[event.name]).__name__.lower():  # the turns of a sample may begin anywhere
            continue
        told = [one for one in seen if one.unit == unit and not (alone and one.square)]
        if any(compared.difference(one, found.get(one.place), smallest) > compared.most for one in told):
            layer = event.name if alone and isinstance(modules[event.name], nn.Embedding) else event.inside
            break
    return layer, _kind(layer, modules[layer], compared.test)


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


def _seen_in(values: Any, call: Call) -> list[_Seen]:
    """Of each tensor in something with a value for each slot, or for each sample."""
    found = (_seen(place, one, call) for place, one in enumerate(tensors_of(values)))
    return [one for one in found if one is not None]


def _seen(place: int, value: Tensor, call: Call) -> _Seen | None:
    if value.is_nested or value.is_sparse or value.dtype == torch.bool or value.is_complex():
        return None
    unit, (rows, length), sizes = SLOTS, call.shape, tuple(value.shape)
    if len(sizes) > 1 and sizes[0] in (rows, 1) and length in sizes[1:]:
        dim = sizes.index(length, 1)
        value = value.movedim(dim, 1)
    elif sizes[:1] == (rows * length,) or sizes[:2] == (1, rows * length):
        value = value.reshape(rows, length, -1)
    elif sizes[:2] == (length, rows):
        value = value.movedim(0, 1)
    elif sizes[:1] == (len(call.samples),):
        unit = SAMPLES
    else:
        return None
    square = unit == SLOTS and value.shape[2:].count(length) > 0
    flat = value.detach().flatten(2 if unit == SLOTS else 1) if value.ndim > (unit == SLOTS) + 1 else value[..., None]
    if not flat.shape[-1]:
        return None
    weights = torch.cos(torch.arange(flat.shape[-1], device=flat.device, dtype=torch.float64))
    nan = torch.isnan(flat).any(-1) | torch.isinf(flat).all(-1)
    infinite = torch.zeros(flat.shape[:-1], dtype=torch.int64)
    if not bool(flat.isfinite().all()):
        kinds = flat.isnan() + 2 * flat.isposinf() + 3 * flat.isneginf()
        infinite, flat = (kinds * (weights * 2**40).long()).sum(-1), torch.nan_to_num(flat, 0, 0, 0)
    # of the sizes the logarithm, so that values that are masked do not hide the others
    total = ((flat.sign() * flat.to(torch.float64).abs().log1p()) @ weights)[..., None] / flat.shape[-1] ** 0.5
    some = flat[..., :: -(-flat.shape[-1] // FEATURES)].to(torch.float64)
    values, nan, infinite = (
        (one.expand(rows, *one.shape[1:]) if unit == SLOTS else one).cpu()
        for one in (torch.cat((some, total), -1), nan, infinite)
    )
    return _Seen(place, unit, values, nan, infinite, square)


# -- the call


def _changed(call: Call, slots: Tensor, samples: Tensor, vocabulary: int) -> Call:
    """The call with other tokens at some slots, and other labels at these, or for some samples: a model may read both."""
    tokens = call.inputs[call.tokens].clone()
    at = slots.to(tokens.device)
    old = tokens[at]
    if tokens.is_floating_point():
        new = torch.randn_like(old) * old.std().nan_to_num(1).clamp(min=1e-3)
    else:
        first = min(5, vocabulary // 2)
        new = torch.randint(first, vocabulary, old.shape, device=old.device, dtype=old.dtype)
        new = torch.where(new == old, first + (new - first + 1) % (vocabulary - first), new)
    tokens[at] = new
    labels = {
        name: _relabelled(one, slots if one.shape[:2] == call.shape else samples)
        for name in (LABELS, SHIFTED, "decoder_input_ids")
        if isinstance(one := call.inputs.get(name), Tensor)
        and (one.shape[:2] == call.shape or len(one) == len(samples))
    }
    return call.with_(**{call.tokens: tokens}, **labels)


def _relabelled(labels: Tensor, where: Tensor) -> Tensor:
    """Other labels at some places: of those that there are, the largest in place of the smallest, and so on."""
    at = where.to(labels.device)
    at = at.view(*at.shape, *[1] * (labels.ndim - at.ndim)) & (labels != NOT_TRAINED_ON)
    if labels.dtype == torch.bool:
        return labels ^ at
    kept = labels[labels != NOT_TRAINED_ON]
    return torch.where(at, kept.max() + kept.min() - labels, labels) if len(kept) else labels


def _moved(call: Call, device: torch.device, wide: torch.dtype | None) -> Call:
    """The call on a device, with masks and features in the type that the model computes in."""
    moved: dict[str, Any] = {}
    for name, one in call.inputs.items():
        computed = isinstance(one, Tensor) and one.is_floating_point() and name != "attention_mask"
        moved[name] = one.to(device) if isinstance(one, Tensor | BlockMask) else one
        if computed and wide is not None:
            moved[name] = moved[name].to(wide)
    return replace(call, inputs=moved)


# -- the model


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Within, a model may be run in eval mode, and its parameters and buffers be put in others' place; afterwards all of it is as
    it was: modes, buffers, attributes, caches, and the generators of Python, numpy and torch."""
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    containers: dict[int, tuple[Any, Any]] = {}
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    for holder, _ in attributes:
        _keep(holder.values(), containers, tensors)
    devices = {one.device.index for one in model.parameters() if one.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(seeded(0, []))
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
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
            for held, copied in containers.values():
                held.clear()
                held.update(copied) if isinstance(held, dict | set) else held.extend(copied)
            for tensor, content in tensors.values():
                if tensor.layout != torch.strided or 0 not in tensor.stride() or not torch.equal(tensor, content):
                    tensor.copy_(content)


def _keep(values: Iterable[Any], containers: dict[int, Any], tensors: dict[int, Any]) -> None:
    """Copies of all containers and tensors among some values, and in them; not of parameters, which are never written to."""
    for one in values:
        if isinstance(one, Tensor) and not isinstance(one, nn.Parameter):
            tensors[id(one)] = one, one.detach().clone()
        elif isinstance(one, dict | list | set | deque) and id(one) not in containers:
            containers[id(one)] = one, one.copy()
            _keep(one.values() if isinstance(one, dict) else one, containers, tensors)


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
