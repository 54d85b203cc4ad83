"""What attention kernels take for packed batches, so that no sample sees another of its row.

A packed batch is laid out once, by segments; each function here says the same thing in the words of one kernel. All of
them give the logits and the gradients of each sample run by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from brimful.plan.errors import integer, one_of

__all__ = ["document_ids", "document_mask", "flex_block_mask", "padding_free", "varlen"]

Tensor = torch.Tensor


def document_mask(batch: Mapping[str, Any], *, causal: bool = True) -> Tensor:
    """The mask for scaled_dot_product_attention and eager attention: True if a token sees another.

    A slot of padding sees the padding of its row, so that no row of the softmax is empty.

    Args:
        batch: a packed batch: its `segment_ids` (R, L).
        causal: no token sees a later one.
    Shapes: (R, 1, L, L) bool, on the device of the batch.
    Price: R x L x L bytes; the other functions here have no such cost.

    >>> import torch
    >>> batch = {"segment_ids": torch.tensor([[1, 1, 2, 0]])}
    >>> document_mask(batch)[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    >>> q = k = v = torch.rand(1, 2, 4, 8)
    >>> torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(batch)).shape
    torch.Size([1, 2, 4, 8])
    """
    segments = batch["segment_ids"]
    mask = segments[:, None, :, None] == segments[:, None, None, :]
    return torch.tril(mask) if causal else mask


def document_ids(batch: Mapping[str, Any]) -> Tensor:
    """The number of each slot's sample in its row, from 0: (R, L) int64. Padding has -1.

    >>> import torch
    >>> document_ids({"segment_ids": torch.tensor([[1, 1, 2, 0]])}).tolist()
    [[0, 0, 1, -1]]
    """
    ids: Tensor = batch["segment_ids"] - 1
    return ids


def flex_block_mask(batch: Mapping[str, Any], *, causal: bool = True, block_size: int = 128) -> BlockMask:
    """The block mask for `flex_attention(q, k, v, block_mask=...)`. It skips blocks in which no query and key share a
    sample.

    The result equals that of `create_block_mask` on the document ids, at the price of L values a row.
    `create_block_mask` evaluates all R x L x L pairs of slots, which takes seconds on a CPU and gigabytes on a GPU.

    On a CPU, use rows of whole blocks, such as `pack(512)`. With other rows, torch 2.13 reads beyond them there, and
    results may be NaN.

    Args:
        batch: a packed batch: its `segment_ids` (R, L).
        causal: no token sees a later one.
        block_size: slots in a block, of queries and of keys.
    Price: R x (L / block_size) squared elements.
    Source: block-sparse attention (FlexAttention, 2024). Segments follow each other, so two blocks share one exactly if
        their ranges of ids meet.

    >>> import torch
    >>> mask = flex_block_mask({"segment_ids": torch.tensor([[1] * 256 + [2] * 128])})
    >>> mask.to_dense().tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    ids = document_ids(batch)
    length = ids.shape[1]
    num_blocks = -(-length // block_size)
    order = torch.where(ids < 0, length, ids)  # padding comes last
    edges = torch.arange(num_blocks, device=ids.device) * block_size
    first = order[:, edges]
    last = order[:, (edges + block_size - 1).clamp(max=length - 1)]
    meet = (first[:, :, None] <= last[:, None, :]) & (first[:, None, :] <= last[:, :, None])
    whole = edges + block_size <= length
    one = (first == last) & whole
    full = one[:, :, None] & one[:, None, :] & meet
    if causal:
        meet, full = torch.tril(meet), torch.tril(full, diagonal=-1)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = ids[row, query] == ids[row, key]
        return same & (query >= key) if causal else same

    partial, blocks = _listed(meet & ~full)
    return BlockMask.from_kv_blocks(
        partial, blocks, *_listed(full), BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=(length, length)
    )


def varlen(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The boundaries for kernels over samples end to end: flash_attn_varlen_func,
    torch.nn.attention.varlen.varlen_attn.

    These kernels take q, k and v as (R x L, heads, dim): flatten the first two dimensions. The padding at the end of a
    row is a sample of its own, so no slot of the result is undefined.

    Args:
        batch: a packed batch, under either of its names for the boundaries.
    Shapes: cu_seqlens_q, cu_seqlens_k (n + 1,) int32; max_seqlen_q, max_seqlen_k ints. torch's varlen_attn takes them
        in this order after q, k and v: `varlen_attn(q, k, v, *varlen(batch).values(), window_size=(-1, 0))`.

    >>> import torch
    >>> batch = {"cu_seqlens": torch.tensor([0, 3, 4], dtype=torch.int32), "max_seqlen": 3}
    >>> list(varlen(batch)), varlen(batch)["max_seqlen_k"]
    (['cu_seqlens_q', 'cu_seqlens_k', 'max_seqlen_q', 'max_seqlen_k'], 3)
    """
    bounds, longest = _bounds(batch)
    return {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, "max_seqlen_q": longest, "max_seqlen_k": longest}


def padding_free(
    batch: Mapping[str, Any],
    *,
    causal: bool = True,
    attn_implementation: str = "sdpa",
    keep_apart: str = "auto",
    position_offset: int = 0,
) -> dict[str, Any]:
    """The arguments that a transformers model needs for a packed batch: `model(**padding_free(batch))`.

    Many causal models (Llama, Qwen) keep the samples of a row apart by the positions or the boundaries. They do so only
    without an attention_mask and without a cache. Others (OPT, Falcon, GPT-OSS) read a mask alone: use
    keep_apart="mask". Bidirectional models (BERT) also read a mask: use causal=False. Some (Mamba) read neither, and
    mix the samples: give them padded batches. To check a call, use `bf.testing.assert_isolated(model,
    padding_free(batch, ...))`.

    Args:
        batch: a packed batch.
        causal: no token of the model sees a later one.
        attn_implementation: the attention kernel of the model, `model.config._attn_implementation`, if a mask is made:
            "sdpa", "eager", "flex_attention", or one of flash attention, which reads the boundaries.
        keep_apart: "positions": no mask. "mask": a mask says which token sees which. "auto": a mask if not causal.
        position_offset: the first position of the model: pad_token_id + 1 for models of the RoBERTa family, else 0.
    Raises:
        ValueError: the kernel is none of these, or the batch is not packed.
    Shapes: input_ids, labels, position_ids (R, L) int64, and token_type_ids and shift_labels if the batch has them.
        seq_idx (R, L) int32. use_cache. cu_seq_lens_q, cu_seq_lens_k (n + 1,) int32. max_length_q, max_length_k ints.
        attention_mask, if one is made: (R, 1, L, L), bool for "sdpa", to be added (0 or the least bfloat16) for
        "eager"; a BlockMask for FlexAttention.
    Price: 1 or 2 x R x L x L bytes for a dense mask.

    >>> import brimful as bf
    >>> batch = next(iter(bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7]}]).pack(4)))
    >>> [*padding_free(batch)][:5]
    ['input_ids', 'labels', 'position_ids', 'seq_idx', 'use_cache']
    >>> padding_free(batch, causal=False, position_offset=2)["position_ids"].tolist()
    [[2, 3, 2, 2]]
    """
    one_of("keep_apart", keep_apart, "auto", "positions", "mask")
    names = ("input_ids", "labels", "position_ids", "token_type_ids", "shift_labels", "seq_idx")
    out = {name: batch[name] for name in names if name in batch} | {"use_cache": False}
    if position_offset:
        out["position_ids"] = out["position_ids"] + integer("position_offset", position_offset)
    bounds, longest = _bounds(batch)
    out |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    masked = keep_apart == "mask" or (keep_apart == "auto" and not causal)
    return out | _mask(batch, causal, attn_implementation) if masked else out


def _mask(batch: Mapping[str, Any], causal: bool, attn_implementation: str) -> dict[str, Any]:
    """The mask, if any, that says to a kernel which token sees which."""
    if "flash" in attn_implementation:
        return {}
    match attn_implementation:
        case "sdpa":
            return {"attention_mask": document_mask(batch, causal=causal)}
        case "eager":  # adds it to the scores: bfloat16, so that it widens the type of none
            seen = document_mask(batch, causal=causal)
            added = torch.zeros(seen.shape, dtype=torch.bfloat16, device=seen.device)
            return {"attention_mask": added.masked_fill_(~seen, torch.finfo(torch.bfloat16).min)}
        case "flex_attention":
            return {"attention_mask": flex_block_mask(batch, causal=causal)}
    raise ValueError(
        f"attn_implementation must be sdpa, eager, flex_attention or one of flash attention (got {attn_implementation!r}); for "
        "another kernel, document_mask says which token sees which"
    )


def _bounds(batch: Mapping[str, Any]) -> tuple[Tensor, int]:
    if "cu_seqlens" in batch:
        return batch["cu_seqlens"], batch["max_seqlen"]
    if "cu_seq_lens_q" not in batch:
        raise ValueError(
            f"this batch is not packed: it has no cu_seqlens, but {', '.join(map(str, batch))}; make it by `pack`, or give a "
            "padded batch to the model as it is"
        )
    return batch["cu_seq_lens_q"], batch["max_length_q"]


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Per row of blocks how many are set, and their numbers first, as FlexAttention has them: one head for all."""
    numbers = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], numbers.to(torch.int32)[:, None]


def __dir__() -> list[str]:
    return __all__
