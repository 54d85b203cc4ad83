"""Inference that survives out of memory: the batch is split by sample, and the results come in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from brimful.oom.exhaustion import GuardedCall, PartRunner
from brimful.oom.parts import joined, splittable
from brimful.plan.errors import counted, function, name_of
from brimful.tensors.structures import parts_of, with_parts


def oom_safe(fn: Callable[[Any], Any], *, pad_value: float | None = None) -> OomSafe:
    """Wraps a function of a batch, such as a model's forward or `generate`. A batch that does not fit runs in parts.

    From then on, batches of such a shape are split beforehand.

    Args:
        fn: returns one result a sample, as a tensor (B, ...), a list, or a dict or tuple of these.
        pad_value: pads tensors of parts at the end if they differ in their second dimension, as generated sequences do.
    Returns:
        a callable on a batch that returns the result of `fn`. Lists and tensors of parts are joined in the order of the
            samples. It has `.stats`, `.state_dict()` and `.load_state_dict(state)`, like `oom_guard`.
    Raises:
        torch.OutOfMemoryError: (when called) one sample alone does not fit.
        ValueError: (when called) a part has more or fewer results than samples, or tensors differ in shape without a
            pad value.
    Price: 40 us a batch. After an OOM, the parts run again.

    >>> from brimful.memory import SimulatedOOM
    >>> device = SimulatedOOM(8)
    >>> safe = oom_safe(lambda batch: device(batch["x"]).sum(1))
    >>> safe({"x": torch.ones(5, 2)}).tolist(), safe.stats.ooms
    ([2.0, 2.0, 2.0, 2.0, 2.0], 1)
    """
    return OomSafe(fn, pad_value)


def oom_safe_generate(model: Any, **generate_kwargs: Any) -> OomSafe:
    """Runs `model.generate` of transformers on batches of any size: a callable on a batch that gives the sequences, (B,
    T) int64.

    Sequences of parts may differ in length. They are padded at the end with the model's pad id, as `generate` does in
    one batch.

    Args:
        model: a model of transformers that generates.
        generate_kwargs: keywords of `generate`, beside `input_ids` and `attention_mask` of the batch. `generate` must
            return only the sequences: no return_dict_in_generate.
    Raises:
        ValueError: num_return_sequences is above 1. Or the model has neither a pad id nor an end id: give pad_token_id.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from brimful.memory import SimulatedOOM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 16}
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    >>> device = SimulatedOOM(8)
    >>> _ = model.get_input_embeddings().register_forward_pre_hook(lambda module, inputs: (device(inputs[0]),))
    >>> safe = oom_safe_generate(model, max_new_tokens=3)
    >>> safe({"input_ids": torch.ones(5, 2, dtype=torch.long)}).shape, safe.stats.ooms
    (torch.Size([5, 5]), 1)
    """
    if generate_kwargs.get("num_return_sequences", 1) != 1:
        raise ValueError(
            f"one sequence a sample can be put in order (got num_return_sequences={generate_kwargs['num_return_sequences']})"
        )
    config = model.generation_config
    known = (generate_kwargs.get("pad_token_id"), config.pad_token_id, config.eos_token_id)
    pad = next((one for one in known if one is not None), None)
    if pad is None:
        raise ValueError("the model's generation_config has no pad_token_id and no eos_token_id; give pad_token_id=")
    pad_value = pad[0] if isinstance(pad, Sequence) else pad

    def generate(batch: Mapping[str, Any]) -> Any:
        given = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask") if name in batch}
        return model.generate(**given, **generate_kwargs)

    return OomSafe(generate, float(pad_value))


class OomSafe(GuardedCall):
    """A function of a batch that is run in parts where memory is too small: call it on a batch. Made by `oom_safe`."""

    def __init__(self, fn: Callable[[Any], Any], pad_value: float | None, hint: str = PartRunner.hint) -> None:
        self._fn, self._pad_value = function("oom_safe", fn), pad_value
        self._runner = PartRunner(hint=hint)

    def __call__(self, batch: Any) -> Any:
        return self._runner.run(splittable(batch), self._run)

    def _run(self, parts: Sequence[Any]) -> Any:
        if len(parts) == 1:
            return self._fn(parts[0])
        counts = [splittable(part).samples for part in parts]
        return results_of([self._fn(part) for part in parts], counts, self._pad_value, name_of(self._fn))


def rows_of(results: Any, count: int, name: str) -> Sequence[Any]:
    """The results of a function for a batch, one a sample.

    Raises:
        TypeError: it is nothing that has rows.
        ValueError: it has more or fewer.
    """
    no_rows = getattr(results, "ndim", 1) == 0 or isinstance(results, str | bytes | Mapping)
    if no_rows or not (hasattr(results, "__len__") and hasattr(results, "__getitem__")):
        kind = type(results).__name__ + " without dimensions" * (getattr(results, "ndim", 1) == 0)
        words = f"{name} must return one result a sample, as a list or a tensor of {count:,} rows (got {kind})"
        if isinstance(results, Mapping):
            words += ". Return one dict a sample: [dict(zip(out, row)) for row in zip(*out.values())]"
        raise TypeError(words)
    if len(results) != count:
        raise ValueError(
            f"{name} returned {len(results):,} results for a batch of {counted(count, 'sample')}; it must return one for each"
        )
    return list(results)


def owning(result: Any) -> Any:
    """A result that keeps no more memory than its own: tensors and arrays in it that are views of larger ones are copied.

    >>> outputs = torch.zeros(4, 100)
    >>> owning({"last": outputs[0, -1:], "name": "a"})["last"].untyped_storage().nbytes()
    4
    """
    if isinstance(result, Tensor):
        plain = result.layout == torch.strided and not result.is_nested
        return result.clone() if plain and result.untyped_storage().nbytes() > result.nbytes else result
    if isinstance(result, np.ndarray):
        return result if result.base is None else result.copy()
    if type(result) is list and isinstance(next(iter(result), 0), int | float | str):
        return result  # of numbers, which may be many
    parts = parts_of(result)
    made = [owning(one) for one in parts]
    return with_parts(result, made) if any(one is not part for one, part in zip(made, parts)) else result


def results_of(parts: Sequence[Any], counts: Sequence[int], pad_value: float | None, name: str) -> Any:
    """The results of the parts of a batch, of so many samples each, as those of the whole.

    >>> results_of([torch.ones(1, 2), torch.zeros(1, 3)], [1, 1], 7, "generate").tolist()
    [[1.0, 1.0, 7.0], [0.0, 0.0, 0.0]]
    """

    def join(results: Sequence[Any]) -> Any:
        rows = [row for one, count in zip(results, counts) for row in rows_of(one, count, name)]
        return _stacked(results, pad_value, name) if isinstance(results[0], Tensor) else rows

    return joined(parts, join)


def _stacked(results: Sequence[Tensor], pad_value: float | None, name: str) -> Tensor:
    if len({one.shape[1:] for one in results}) == 1:
        return torch.cat(list(results))
    if pad_value is None or len({(one.dim(), one.shape[2:]) for one in results}) > 1:
        shapes = " and ".join(map(str, dict.fromkeys(tuple(one.shape) for one in results)))
        raise ValueError(
            f"{name} returned tensors of shapes {shapes} for the parts of a batch, which cannot be joined; give oom_safe "
            "a pad_value where they differ in their second dimension, or return a list"
        )
    width = max(one.shape[1] for one in results)
    padded = (F.pad(one, (0, 0) * (one.dim() - 2) + (0, width - one.shape[1]), value=pad_value) for one in results)
    return torch.cat(list(padded))
