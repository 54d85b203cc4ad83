"""What a model is called with, cut to some slots of a row: a few short samples, or one alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from brimful.plan.once import once
from brimful.tables.ragged import COLUMN_KINDS

Tensor = torch.Tensor

BOUNDS: Final = (
    *("cu_seqlens", "cu_seq_lens", "cu_seqlen"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_k"),
)
PER_SAMPLE: Final = ("lengths", "sample_numbers")
NATURAL: Final = {
    *("input_ids", "inputs_embeds", "decoder_input_ids"),
    *("labels", "shift_labels", "token_type_ids", "use_cache"),
}
"""What a transformers model is called with for one text by itself: positions and masks are its own matter then."""
FROM_PACKED: Final = frozenset(
    {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "shift_labels", "use_cache"}
)
"""What models of transformers take of a packed batch beside the named parameters of forward."""
WRAPPERS: Final = (
    *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
    *("DeepSpeedEngine", "OptimizedModule"),
)
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Sample(NamedTuple):
    """The slots of a sample in its row."""

    row: int
    slots: Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """What a model is called with, and which slot is whose.

    Args:
        inputs: by name.
        segments: (R, L) int64: the number of each slot's sample in its row, from 1; 0: padding.
        kinds: of inputs that say it, whether they have a row a slot or a piece; see `COLUMN_KINDS`.
        whole: the model takes all of them as its first argument, a batch.
        others: its other arguments then.
    """

    inputs: Mapping[str, Any]
    segments: Tensor
    whole: bool = False
    others: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return self.segments.shape[0], self.segments.shape[1]

    @property
    def packed(self) -> bool:
        """Whether several samples lie in a row."""
        return bool((self.segments.amax(1) > 1).any())

    @property
    def restarts(self) -> bool:
        """Whether positions begin at 0 in each sample, and nowhere else."""
        positions = self.inputs.get("position_ids")
        if not isinstance(positions, Tensor) or tuple(positions.shape) != self.shape:
            return False
        begins = self.segments.diff(dim=1, prepend=self.segments[:, :1] - 1) != 0
        return bool(((positions.cpu() == 0) == begins).all())

    @once
    def samples(self) -> list[Sample]:
        """Those of all rows, in order."""
        return [
            Sample(row, (ids == number).nonzero().flatten())
            for row, ids in enumerate(self.segments)
            for number in _numbers(ids)
        ]

    @property
    def tokens(self) -> str:
        """The name of the input that is changed to see what changes with it."""
        return tokens_of(self.inputs)

    def has_samples(self, name: str) -> bool:
        """Whether an input has a row a sample: by what it is said to have, or else by its shape."""
        value = self.inputs[name]
        if name in PER_SAMPLE or not isinstance(value, Tensor) or value.shape[:1] != (len(self.samples),):
            return False
        if kind := self.kinds.get(name):
            return kind == "pieces"
        return value.ndim == 1 or (len(value) != self.shape[0] and self.shape[1] not in value.shape)

    def run(self, model: torch.nn.Module) -> Any:
        return model(dict(self.inputs), **self.others) if self.whole else model(**self.inputs)

    def with_(self, **inputs: Any) -> Call:
        return replace(self, inputs={**self.inputs, **inputs})

    def of(self, row: int, slots: Tensor) -> Call:
        """The same call with some slots of one row alone."""
        inside = torch.zeros(self.shape, dtype=torch.bool)
        inside[row, slots] = True
        own = torch.tensor([bool(inside[sample.row, sample.slots].any()) for sample in self.samples])
        cut = {
            name: one[own.to(one.device)] if self.has_samples(name) else _cut(name, one, self.shape, row, slots)
            for name, one in self.inputs.items()
        }
        kept = {name: one for name, one in cut.items() if one is not None}
        return replace(self, inputs=kept, segments=self.segments[row, slots][None])

    def alone(self, sample: Sample, *, natural: bool) -> Call:
        """The call with one sample; `natural`: with nothing that says where it lies."""
        call = self.of(sample.row, sample.slots)
        inputs = {name: one for name, one in call.inputs.items() if not natural or name in NATURAL}
        return replace(call, inputs=inputs, segments=torch.ones_like(call.segments))

    def short(self, most_samples: int = 8, most_tokens: int = 24) -> Call:
        """The same kind of call with the first tokens of some samples of the row that has most of them."""
        row = int(self.segments.amax(1).argmax())
        ids = self.segments[row]
        numbers = *_numbers(ids)[:most_samples], 0
        slots = [(ids == number).nonzero().flatten()[:most_tokens] for number in numbers]
        return self.of(row, torch.cat(slots))


def _numbers(ids: Tensor) -> list[int]:
    """Those of the samples in a row."""
    found: list[int] = torch.unique(ids[ids > 0]).tolist()
    return found


def call_of(model: torch.nn.Module, batch: Mapping[str, Any]) -> Call:
    """How a model is called with a batch: by the names that its forward takes, or by the batch as it is.

    Raises:
        ValueError: nothing in the batch is a value for each token; or the model wants more than the batch has.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in parameters if one.kind in _BY_NAME}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        named |= set(batch) if not named else FROM_PACKED
    taken = {name: one for name, one in batch.items() if name in named}
    missing = sorted(required(model) - batch.keys())
    if missing and (taken or len(missing) > 1):
        raise ValueError(
            f"{type(model).__name__}.forward wants {', '.join(missing)}, and the batch has {', '.join(map(str, batch))}; give a "
            "batch that has them: assert_isolated(model, batch)"
        )
    return Call(taken or batch, segments_of(batch), whole=not taken, kinds=batch.get(COLUMN_KINDS, {}))


def required(model: torch.nn.Module) -> set[str]:
    """The names that a model's forward wants."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {one.name for one in parameters if one.kind in _BY_NAME and one.default is one.empty}


def unwrapped(model: Any) -> Any:
    """The model in wrappers of torch and of PEFT."""
    while type(model).__name__ in WRAPPERS:
        model = getattr(model, "_orig_mod", None) or model.module
    return base_model(model)


def base_model(model: Any) -> Any:
    """The model that PEFT's adapters are in."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def vocabulary_of(model: torch.nn.Module, batch: Mapping[str, Any] | None = None) -> int:
    """How many ids a model has words for.

    Raises:
        ValueError: nobody knows.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if isinstance(size := getattr(config, "vocab_size", None), int):
        return size
    if batch is not None:
        tokens = batch[tokens_of(batch)]
        return 2 if tokens.is_floating_point() else max(2, int(tokens.max()) + 1)
    words = next((one for one in model.modules() if isinstance(one, torch.nn.Embedding)), None)
    if words is None:
        raise ValueError(
            f"nobody knows how many ids {type(model).__name__} has words for: it has neither config.vocab_size nor an Embedding. "
            "Give a batch: assert_isolated(model, batch)"
        )
    return int(words.num_embeddings)


def tokens_of(batch: Mapping[str, Any]) -> str:
    """The name of the tokens in a batch."""
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(batch.get(name), Tensor):
            return name
    aside = {*BOUNDS, *PER_SAMPLE, "labels", "attention_mask", "position_ids", "segment_ids", "seq_idx"}
    found = (name for name, one in batch.items() if name not in aside and isinstance(one, Tensor) and one.ndim > 1)
    first = next(found, None)
    if first is None:
        raise ValueError(
            f"this batch has no tokens to change: it has {', '.join(map(str, batch)) or 'nothing'}; it wants input_ids, or "
            "another tensor (rows, tokens)"
        )
    return first


def segments_of(batch: Mapping[str, Any]) -> Tensor:
    """Which slot of a batch is whose, as `segment_ids`: by those, the boundaries, the mask or the positions."""
    tokens: Tensor = batch[tokens_of(batch)]
    shape = tuple(tokens.shape[:2])
    if not tokens.numel():
        raise ValueError(f"this batch {shape} has no tokens; give one that has some")
    if isinstance(given := batch.get("segment_ids"), Tensor):
        return given.cpu().to(torch.int64)
    if isinstance(given := batch.get("seq_idx"), Tensor):
        return given.cpu().to(torch.int64) + 1
    bounds = next((batch[name] for name in BOUNDS if isinstance(batch.get(name), Tensor)), None)
    if bounds is not None:
        return _between(bounds, (shape[0], shape[1]))
    if isinstance(mask := batch.get("attention_mask"), Tensor) and mask.ndim == 2:
        return (mask.cpu() != 0).to(torch.int64)
    if isinstance(given := batch.get("position_ids"), Tensor) and tuple(given.shape) == shape:
        return (given.cpu().diff(dim=1, prepend=given[:, :1].cpu() - 1) != 1).long().cumsum(1) + 1
    return torch.ones(shape, dtype=torch.int64)


def _between(bounds: Tensor, shape: tuple[int, int]) -> Tensor:
    """Of each slot how many boundaries of its row lie before it, its own among them."""
    starts = torch.zeros(shape[0] * shape[1], dtype=torch.int64)
    starts[bounds[:-1].cpu().long()] = 1
    return starts.view(shape).cumsum(1)


def _cut(name: str, value: Any, shape: tuple[int, int], row: int, slots: Tensor) -> Any:
    """What one input is for some slots of a row; None where there is none."""
    if name in PER_SAMPLE:
        return None
    if name in BOUNDS:
        own = _between(value, shape)[row, slots]
        starts = (own.diff(prepend=own[:1] - 1) != 0).nonzero().flatten()
        return torch.cat([starts, torch.tensor([len(slots)])]).to(value)
    if isinstance(value, BlockMask):
        inner: Callable[..., Tensor] = value.mask_mod
        at = slots.to(value.kv_num_blocks.device)
        return create_block_mask(
            lambda _, head, query, key: inner(torch.full_like(query, row), head, at[query], at[key]),
            *(None, None, len(slots), len(slots)),
            device=str(at.device),
        )
    if not isinstance(value, Tensor):
        return value
    rows = next((dim for dim, size in enumerate(value.shape[:-1]) if size == shape[0]), None)
    if rows is None and value.ndim > 2 and value.shape[0] == 1:  # one mask for all rows
        rows, row = 0, 0
    if rows is None:
        return value
    at = slots.to(value.device)
    value = value.index_select(rows, torch.tensor([row], device=value.device))
    lengthwise = [dim for dim, size in enumerate(value.shape) if dim > rows and size == shape[1]]
    for dim in lengthwise[: 2 if value.ndim == 4 else 1]:
        value = value.index_select(dim, at)
    return value


def packed_batch(segments: Tensor, vocabulary: int) -> dict[str, Any]:
    """What `pack` makes, for random tokens that lie so."""
    ids = torch.randint(min(5, vocabulary // 2), vocabulary, segments.shape)
    begins = segments.diff(dim=1, prepend=segments[:, :1] - 1) != 0
    slots = torch.arange(segments.shape[1]).expand(segments.shape)
    places = slots - torch.where(begins, slots, 0).cummax(1).values
    bounds = torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([segments.numel()])]).int()
    longest = int(bounds.diff().max())
    of_slots = {
        "input_ids": ids,
        "labels": ids.masked_fill((segments == 0) | begins, -100),
        "position_ids": places,
        "segment_ids": segments,
        "seq_idx": (begins.cumsum(1) - 1).int(),
    }
    return {
        **of_slots,
        COLUMN_KINDS: dict.fromkeys(of_slots, "slots"),
        "use_cache": False,
        "cu_seqlens": bounds,
        "max_seqlen": longest,
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds),
        **dict.fromkeys(("max_length_q", "max_length_k"), longest),
    }


def padded_batch(segments: Tensor, vocabulary: int) -> dict[str, Any]:
    """What `batch` makes, for random tokens: of each sample of some rows a row, padded at its end."""
    lengths = torch.tensor([int((row == number).sum()) for row in segments for number in range(1, int(row.max()) + 1)])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(min(5, vocabulary // 2), vocabulary, mask.shape) * mask
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "lengths": lengths, "use_cache": False}
