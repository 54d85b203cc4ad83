"""Where a packed batch first meets a model: what keeps its samples apart, or an error that says what would."""

from __future__ import annotations

import inspect
import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from brimful.isolation.call import Call, packed_batch, segments_of, unwrapped, vocabulary_of
from brimful.isolation.probe import Leak, examine
from brimful.isolation.safe_call import AS_IT_IS, KERNELS, LEAST_VOCABULARY, find_safe_call, fix_hint, segments
from brimful.isolation.small import POSITIONS, small_instance
from brimful.plan.errors import logger, one_of
from brimful.plan.random import seeded
from brimful.tables.ragged import COLUMN_KINDS

TABLE: Final = Path(__file__).with_name("table.json")
MOST_PARAMETERS: Final = 100_000_000
"""A model up to this size may be tried itself."""


class IsolationGuard:
    """Checks the first call of a model with a packed batch.

    Args:
        isolation: "raise": an error where samples see each other; "off": nothing is checked.
    """

    def __init__(self, isolation: str = "raise") -> None:
        one_of("isolation", isolation, "raise", "off")
        self.on: bool = isolation == "raise"

    def check(self, model: nn.Module, inputs: Mapping[str, Any], segments: Callable[[], torch.Tensor | None]) -> bool:
        """Checks a call of a model, once; whether it was one that says something.

        Args:
            segments: says which slot is whose; None: the batch is not packed. Not asked where nothing is checked.
        Raises:
            ValueError: samples see each other; names the model, the layer and the remedy.
        """
        if not self.on or not any(True for _ in model.children()) or (found := segments()) is None:
            return False
        call = next(_calls(inputs, found), None)
        if call is None:
            return False
        self.on = False  # the calls by which the model is tried are none of the loop's
        try:
            refuse_leaks(model, call)
        except ValueError:
            self.on = True
            raise
        return True


def _calls(inputs: Mapping[str, Any], segments: torch.Tensor) -> Iterator[Call]:
    """What a model is called with, where tensors of a batch are among its arguments or in one of them."""
    for name, one in ((None, inputs), *inputs.items()):
        if isinstance(one, Mapping) and any(
            isinstance(value, torch.Tensor) and value.shape[:2] == segments.shape for value in one.values()
        ):
            others = {other: value for other, value in inputs.items() if other != name} if name else {}
            yield Call(one, segments, name is not None, others, one.get(COLUMN_KINDS, {}))


def packed_segments(batch: Mapping[str, Any]) -> torch.Tensor | None:
    """Which slot is whose in a packed batch; None where it is another one, or nothing says so. Price: copies from the device."""
    if not says_segments(batch):
        return None
    try:
        found = segments_of(batch)
    except ValueError:
        return None
    return found if bool((found.amax(1) > 1).any()) else None


def says_segments(batch: Mapping[str, Any]) -> bool:
    """Whether a batch says which slot is whose."""
    return any(name in batch for name in ("segment_ids", "cu_seqlens", "cu_seq_lens_q"))


def by_name(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    names = list(inspect.signature(unwrapped(model).forward).parameters)
    return dict(zip(names, args)) | dict(kwargs)


def refuse_leaks(model: nn.Module, call: Call) -> None:
    """An error for a call in which samples see each other; a warning where nobody can say.

    Raises:
        ValueError: with the name of the model, of the layer, and with the remedy.
    """
    base = unwrapped(model)
    kernel = str(getattr(getattr(base, "config", None), "_attn_implementation", None) or "eager")
    if _is_known(base, call, kernel):
        return
    problem = ""
    with seeded(0, []):
        for make in _to_try(model, base):
            try:
                tried, short = make(base, call.short(), kernel)
                leak = examine(tried, short, vocabulary_of(tried, short.inputs)).leak
            except Exception as error:  # whatever a model says to sizes, kernels and a short batch
                problem = f": {type(error).__name__}: {str(error)[:200]}"
                continue
            if leak is None:
                return
            remedy = _remedy(tried, base, kernel, short) if tried is not base else ""
            raise ValueError(_words(type(base).__name__, leak, remedy))
    logger.warning(
        "could not check whether %s isolates packed samples%s. Run bf.testing.assert_isolated(model) where it is small and on "
        'one process, or pass isolation="off"',
        type(base).__name__,
        problem,
    )


def _to_try(model: nn.Module, base: Any) -> Iterator[Callable[[Any, Call, str], tuple[Any, Call]]]:
    """Ways to a model that is tried: a small one of the same configuration, or the model itself."""
    if hasattr(getattr(base, "config", None), "model_type") and not _patched(base):
        yield _small_one
    size = sum(one.numel() for one in base.parameters())
    alone = not (dist.is_initialized() and dist.get_world_size() > 1)
    if base is model and size <= MOST_PARAMETERS and alone:
        yield lambda base, call, kernel: (base, call)


def _small_one(base: Any, call: Call, kernel: str) -> tuple[Any, Call]:
    """A small model, and a call with ids and positions that it has."""
    small = small_instance(type(base), base.config, kernel, _device(base))
    words = _fewest_words(small)
    changed: dict[str, Any] = {}
    for name, one in call.inputs.items():
        if not isinstance(one, torch.Tensor) or one.is_floating_point():
            continue
        if name in ("input_ids", "decoder_input_ids"):
            changed[name] = torch.where(one < 5, one, 5 + one % (words - 5))
        elif name in ("labels", "shift_labels"):
            changed[name] = torch.where(one < 0, one, one % words)
        elif name == "position_ids":
            changed[name] = one % POSITIONS
    return small, call.with_(**changed)


def _words(name: str, leak: Leak, remedy: str) -> str:
    return (
        f"in {name} {leak}: of the samples of a packed row each is trained on as if it were one text with the others. "
        f"{remedy}Give it padded batches: data.batch_by_tokens(...)"
        + (', or say isolation="off" if it is meant' if not remedy else '. isolation="off" lets it be')
    )


def _remedy(small: nn.Module, base: Any, kernel: str, tried: Call) -> str:
    """The call, or the kernel, by which samples are kept apart."""
    batch = packed_batch(segments(), _fewest_words(small))
    safe = find_safe_call(small, batch, kernel).call
    if safe == AS_IT_IS and (hint := fix_hint(small, tried)):
        return f"Its samples are kept apart by {hint}. Or: "
    if safe and safe != AS_IT_IS:
        added = safe.removeprefix("model(**").removesuffix(")")
        return f"Its samples are kept apart by batches.map(lambda batch: {{**batch, **{added}}}). Or: "
    for other in KERNELS:
        if other != kernel and not safe:
            try:
                again = small_instance(type(base), base.config, other)
            except ValueError:
                continue
            if find_safe_call(again, batch, other).call == AS_IT_IS:
                return f"Its samples are kept apart if it is loaded with attn_implementation={other!r}. Or: "
    return ""


def _patched(model: nn.Module) -> bool:
    """Whether an object of a model has a forward of its own, so that one of the class says nothing of it."""
    return any(
        "forward" in vars(one) and not {"_original_forward", "_old_forward"} & vars(one).keys()
        for one in model.modules()
    )


def _device(model: nn.Module) -> torch.device:
    """Where a small one runs as this one does: kernels differ between devices."""
    found = next((one.device for one in model.parameters()), torch.device("cpu"))
    return torch.device("cpu") if found.type in ("meta", "mps") else found


def _fewest_words(small: Any) -> int:
    return min(LEAST_VOCABULARY, vocabulary_of(small))


# -- what is known


@cache
def _isolated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))["isolated"]
    return found


def _is_known(model: Any, call: Call, kernel: str) -> bool:
    """Whether the table has this kind of model as one that keeps the samples of a batch apart as it comes."""
    known = _isolated().get(type(model).__name__)
    if known is None or not type(model).__module__.startswith("transformers.") or _patched(model):
        return False
    if kernel not in known["kernels"] or known["structure"] != structure(model.config):
        return False
    plain = not any(
        call.inputs.get(name) is not None for name in ("attention_mask", "past_key_values", "inputs_embeds")
    )
    return plain and call.inputs.get("use_cache") is False and call.restarts


_NO_MATTER: Final = re.compile(
    r"(^_.*|_token_(ids?|index)|_act|activation(_function)?|id2label|label2id|dtype|architectures|transformers_version|use_cache"
    r"|tie_word_embeddings|name_or_path|problem_type|pretraining_tp|return_dict|output_hidden_states|output_attentions"
    r"|initializer_range|torchscript)$"
)


def structure(config: Any) -> int:
    """A checksum of the settings of a configuration that choose between kinds of layers, not of those that say how many."""
    return zlib.crc32(json.dumps(_choices(vars(config)), sort_keys=True).encode())


def _choices(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if _NO_MATTER.search(str(name)):
            continue
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            value = vars(value)
        if isinstance(value, bool | str) or value is None:
            found[str(name)] = value
        elif isinstance(value, Mapping):
            found[str(name)] = _choices(value)
        elif isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
            found[str(name)] = sorted(set(value))
        else:
            found[str(name)] = type(value).__name__ if value else value
    return {name: value for name, value in found.items() if value not in (None, False)}


def refuse_leaks_of_step(step: Callable[[Any], Any], batch: Mapping[str, Any]) -> None:
    """An error where the samples of a packed batch see each other in the module that a step calls. The step is run once,
    uncompiled, on a few short samples, to see how it calls it.

    Raises:
        ValueError: as `refuse_leaks`.
    """
    found = packed_segments(batch)
    if found is None:
        return
    call = Call(batch, found, whole=True, kinds=batch.get(COLUMN_KINDS, {})).short()
    counts = torch.tensor([len(one.slots) for one in call.samples])
    short = {**call.inputs, "lengths": counts, "sample_numbers": torch.arange(len(counts))}
    try:
        with torch.compiler.set_stance("force_eager"):
            calls = outermost_calls(lambda: step({name: one for name, one in short.items() if name in batch}))
    except Exception as error:  # whatever a step says to another shape
        logger.warning(
            "could not check whether the model of the step isolates packed samples: the step does not take a short batch "
            "(%s: %s). Run bf.testing.assert_isolated(model)",
            type(error).__name__,
            str(error)[:200],
        )
        return
    guard = IsolationGuard()
    for module, inputs in calls:
        if guard.check(module, inputs, lambda: call.segments):
            return
    if any(True for module, _ in calls for _ in module.children()):
        logger.warning(
            "could not check whether the model of the step isolates packed samples: the step calls no module with the batch "
            "or its tensors as arguments. Run bf.testing.assert_isolated(model)"
        )


def outermost_calls(run: Callable[[], Any]) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The calls of modules that are not inside of another module's, as something is run."""
    calls: list[tuple[nn.Module, dict[str, Any]]] = []
    depth = [0]

    def before(module: nn.Module, args: Any) -> None:
        depth[0] += 1

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        depth[0] -= 1
        if depth[0] == 0:
            calls.append((module, by_name(module, args, kwargs)))

    hooks = nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(before)]
    handles.append(hooks.register_module_forward_hook(after, with_kwargs=True, always_call=True))
    try:
        with warnings.catch_warnings():  # of compiled modules, to whoever registers such hooks
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
            run()
    finally:
        for handle in handles:
            handle.remove()
            hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)  # which torch leaves there
    return calls
