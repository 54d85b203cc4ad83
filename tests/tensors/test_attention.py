"""Packed rows give the logits and the gradients of each sample run by itself, whatever the attention kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import flex_attention as flex

import brimful as bf
from brimful.tensors import attention
from tests.effort import examples

Tensor: TypeAlias = torch.Tensor
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
VOCABULARY, LONGEST, HEADS, DIM = 31, 48, 2, 8


class Block(nn.Module):
    """Attention with rotary positions, and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * DIM
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, positions), rotated(k, positions)
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, None, :, None] / 10.0 ** torch.arange(DIM // 2, dtype=x.dtype)
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()), dim=-1)


class Model(nn.Module):
    """A language model of two blocks, with learned positions besides."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, HEADS * DIM), nn.Embedding(LONGEST, HEADS * DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(HEADS * DIM, VOCABULARY)

    def forward(self, input_ids: Tensor, position_ids: Tensor, attend: Attend) -> Tensor:
        x = self.tokens(input_ids) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, position_ids, attend)
        logits: Tensor = self.head(x)
        return logits


def model() -> Model:
    torch.manual_seed(0)
    return Model().double()


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Of the next token: a label of -100 asks for none."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


class Result(NamedTuple):
    logits: Tensor
    gradients: list[Tensor]


def packed_batches() -> Iterator[dict[str, Any]]:
    """Rows of many and of few samples, of one token and of pieces, with and without padding at the end."""
    yield from bf.from_sequence(ROWS).pack(24, rows=4, overlong="split", seed=3)
    yield from bf.from_sequence(ROWS[:2]).pack(LONGEST)


def rows_of(*lengths: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()} for length in lengths]


ROWS = rows_of(5, 1, 17, 24, 3, 8, 9, 61, 2, 1, 30)
BATCHES = list(packed_batches())
SEVERAL = max(BATCHES, key=lambda batch: len(batch["lengths"]))


def alone(net: Any, batch: dict[str, Any], run: Callable[[Tensor, Tensor], Tensor]) -> Result:
    """Each piece of a packed batch by itself; the logits of padding are left 0."""
    net.zero_grad()
    logits = torch.zeros(*batch["input_ids"].shape, VOCABULARY, dtype=torch.float64)
    for row, segments in enumerate(batch["segment_ids"]):
        for segment in range(1, int(segments.max()) + 1):
            at = segments == segment
            tokens = batch["input_ids"][row, at][None]
            own = run(tokens, torch.arange(tokens.shape[1])[None])
            loss_sum(own, tokens).backward()
            logits[row, at] = own[0].detach()
    return Result(logits, [parameter.grad.clone() for parameter in net.parameters()])


def together(net: Any, batch: dict[str, Any], run: Callable[[], Tensor]) -> Result:
    net.zero_grad()
    logits = run()
    loss_sum(logits, batch["labels"]).backward()
    seen = (batch["segment_ids"] > 0)[..., None]
    return Result(logits.detach() * seen, [parameter.grad.clone() for parameter in net.parameters()])


def assert_same(one: Result, other: Result, rtol: float = 1e-10) -> None:
    """`rtol` of the greatest logit, or of the greatest gradient, is also what may be amiss where one is 0, as those of biases
    of keys are."""
    torch.testing.assert_close(one.logits, other.logits, rtol=rtol, atol=rtol * float(other.logits.abs().max()))
    greatest = max(float(expected.abs().max()) for expected in other.gradients)
    for own, expected in zip(one.gradients, other.gradients, strict=True):
        torch.testing.assert_close(own, expected, rtol=rtol, atol=rtol * greatest)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# -- kernels -------------------------------------------------------------------------------------------------------------


def by_mask(batch: dict[str, Any]) -> Attend:
    return partial(F.scaled_dot_product_attention, attn_mask=attention.document_mask(batch))


def by_boundaries(batch: dict[str, Any]) -> Attend:
    """What flash_attn_varlen_func does with its boundaries, as a loop; like it, it leaves undefined what they leave out."""
    bounds = attention.varlen(batch)
    ends = bounds["cu_seqlens_q"].tolist()
    assert bounds["cu_seqlens_q"].dtype == torch.int32
    assert ends[-1] == batch["input_ids"].numel(), "no slot is left undefined"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = q.shape
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (R x L, heads, dim)
        pieces = [slice(first, last) for first, last in pairwise(ends)]
        assert max(piece.stop - piece.start for piece in pieces) <= bounds["max_seqlen_k"]
        own = [causal(*(x[piece].transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1) for piece in pieces]
        return torch.cat(own).view(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)

    return attend


def by_blocks(batch: dict[str, Any]) -> Attend:
    return partial(flex.flex_attention, block_mask=attention.flex_block_mask(batch, block_size=16))


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
@pytest.mark.parametrize("kernel", [by_mask, by_boundaries])
def test_a_packed_batch_is_its_samples_alone(kernel: Callable[[dict[str, Any]], Attend], batch: dict[str, Any]) -> None:
    net = model()
    own = together(net, batch, lambda: net(batch["input_ids"], batch["position_ids"], kernel(batch)))
    assert_same(own, alone(net, batch, lambda ids, places: net(ids, places, causal)))


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
def test_flex_attention_gives_the_logits_of_samples_alone(batch: dict[str, Any]) -> None:
    """In double precision on the CPU; it has no backward there: the masks are held against each other below."""
    net = model()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        logits = net(batch["input_ids"], batch["position_ids"], by_blocks(batch))
    expected = alone(net, batch, lambda ids, places: net(ids, places, causal)).logits
    torch.testing.assert_close(logits * (batch["segment_ids"] > 0)[..., None], expected, rtol=1e-10, atol=1e-12)


def test_without_what_keeps_samples_apart_the_logits_differ() -> None:
    """That the tests above can fail at all."""
    net, batch = model(), SEVERAL
    own = together(net, batch, lambda: net(batch["input_ids"], batch["position_ids"], causal))
    with pytest.raises(AssertionError):
        assert_same(own, alone(net, batch, lambda ids, places: net(ids, places, causal)))


def test_torch_takes_the_boundaries_in_their_order() -> None:
    batch = SEVERAL
    q = torch.rand(batch["input_ids"].numel(), HEADS, DIM)
    try:
        out = pytest.importorskip("torch.nn.attention.varlen").varlen_attn(
            q, q, q, *attention.varlen(batch).values(), window_size=(-1, 0)
        )
    except NotImplementedError as error:
        pytest.skip(f"varlen_attn has no CPU kernel: {str(error)[:60]}")
    assert out.shape == q.shape  # type: ignore[union-attr]


# -- masks ---------------------------------------------------------------------------------------------------------------


@st.composite
def segment_ids(draw: st.DrawFn) -> Tensor:
    length = draw(st.integers(1, 40))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 12), max_size=6))
        ids = [segment for segment, size in enumerate(sizes, 1) for _ in range(size)][:length]
        rows.append(ids + [0] * (length - len(ids)))
    return torch.tensor(rows)


@examples(40)
@given(ids=segment_ids(), is_causal=st.booleans(), block_size=st.sampled_from([2, 4, 16]))
def test_every_mask_says_the_same(ids: Tensor, is_causal: bool, block_size: int) -> None:
    batch, (rows, length) = {"segment_ids": ids}, ids.shape
    documents = attention.document_ids(batch)
    expected = [
        [
            [bool(documents[row, q] == documents[row, k]) and (q >= k or not is_causal) for k in range(length)]
            for q in range(length)
        ]
        for row in range(rows)
    ]
    mask = attention.document_mask(batch, causal=is_causal)
    assert mask.dtype == torch.bool
    assert mask[:, 0].tolist() == expected
    assert mask.any(-1).all(), "a softmax over nothing is NaN"
    ours = attention.flex_block_mask(batch, causal=is_causal, block_size=block_size)
    assert flex.create_mask(ours.mask_mod, rows, None, length, length, device="cpu").tolist() == mask.tolist()
    theirs = flex.create_block_mask(ours.mask_mod, rows, None, length, length, device="cpu", BLOCK_SIZE=block_size)
    assert ours.shape == theirs.shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name
    for kind in ("", "full_"):
        counts = getattr(ours, f"{kind}kv_num_blocks").flatten().tolist()
        numbers = [getattr(mask, f"{kind}kv_indices").flatten(0, -2).tolist() for mask in (ours, theirs)]
        for count, own, other in zip(counts, *numbers, strict=True):
            assert own[:count] == other[:count]


def test_long_rows_have_block_masks_without_their_squares() -> None:
    """65,536 slots: create_block_mask would evaluate 4 x 10^9 pairs."""
    ids = torch.arange(65_536)[None] // 5_000 + 1
    mask = attention.flex_block_mask({"segment_ids": ids})
    assert mask.shape == (1, 1, 65_536, 65_536)
    assert mask.sparsity() > 90


# -- transformers --------------------------------------------------------------------------------------------------------


def llama(kernel: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        attn_implementation=kernel,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).double().eval()


def neox(kernel: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        attn_implementation=kernel,
    )
    torch.manual_seed(0)
    return transformers.GPTNeoXForCausalLM(config).double().eval()


def bert(kernel: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LONGEST,
        attn_implementation=kernel,
    )
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(config).double().eval()


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
@pytest.mark.parametrize(("make", "kernel"), [(llama, "sdpa"), (llama, "eager"), (neox, "sdpa")])
def test_a_causal_model_of_transformers_takes_a_packed_batch_as_it_is(
    make: Callable[[str], Any], kernel: str, batch: dict[str, Any]
) -> None:
    net = make(kernel)
    own = together(net, batch, lambda: net(**batch).logits)
    expected = alone(net, batch, lambda ids, places: net(ids, position_ids=places, use_cache=False).logits)
    assert_same(own, expected, rtol=1e-10 if kernel == "sdpa" else 1e-5)  # eager: a softmax in single precision
    inputs = attention.padding_free(batch)
    logits = net(**inputs).logits
    assert torch.equal(logits, net(**batch).logits)
    torch.testing.assert_close(
        net(**inputs, num_items_in_batch=int((batch["labels"] != -100).sum())).loss,
        bf.token_mean(loss_sum(logits, batch["labels"]), batch),
        rtol=1e-6,
        atol=0,
        check_dtype=False,  # transformers computes losses in single precision
    )


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_model_that_sees_both_ways_takes_what_padding_free_makes(kernel: str, batch: dict[str, Any]) -> None:
    net = bert(kernel)
    inputs = attention.padding_free(batch, causal=False, attn_implementation=net.config._attn_implementation)
    own = together(net, batch, lambda: net(**inputs).logits)
    assert_same(own, alone(net, batch, lambda ids, places: net(ids).logits))


@pytest.mark.parametrize(("make", "causal"), [(llama, True), (bert, False)])
def test_flex_attention_of_transformers_keeps_samples_apart(make: Callable[[str], Any], causal: bool) -> None:
    """In single precision, forward alone, and rows of whole blocks: on a CPU torch's kernel reads beyond others, NaN at times."""
    net, reference = make("flex_attention").float(), make("sdpa")
    batch = next(iter(bf.from_sequence(rows_of(5, 1, 17, 24, 3, 8, 9, 40, 2, 1, 30, 40, 30, 20)).pack(128, rows=2)))
    assert len(batch["lengths"]) > 2
    inputs = attention.padding_free(batch, causal=causal, attn_implementation="flex_attention")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own, on the way to its compiler
        logits = net(**inputs).logits.double()
    expected = alone(reference, batch, lambda ids, places: reference(ids, use_cache=False).logits).logits
    seen = (batch["segment_ids"] > 0)[..., None]
    torch.testing.assert_close(logits * seen, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def test_transformers_hands_the_boundaries_to_its_kernel() -> None:
    """Under the names that its flash attention reads, with several rows; the kernel here is the loop above."""
    transformers = pytest.importorskip("transformers")

    def kernel(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any) -> tuple[Tensor, None]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        bounds = {"cu_seqlens": kwargs["cu_seq_lens_q"], "max_seqlen": kwargs["max_length_q"]}
        assert kwargs["cu_seq_lens_k"] is kwargs["cu_seq_lens_q"]
        return by_boundaries(SEVERAL | bounds)(q, k, v).transpose(1, 2), None

    transformers.AttentionInterface.register("loop", kernel)
    net, reference = llama("loop"), llama("sdpa")
    own = together(net, SEVERAL, lambda: net(**attention.padding_free(SEVERAL)).logits)
    assert_same(own, alone(reference, SEVERAL, lambda ids, places: reference(ids, position_ids=places).logits))


def test_transformers_would_mix_samples_where_it_keeps_a_cache_or_sees_both_ways() -> None:
    """Why packed batches say use_cache=False, and what `padding_free` is for."""
    net, inputs = llama("sdpa"), attention.padding_free(SEVERAL)
    assert inputs["use_cache"] is SEVERAL["use_cache"] is False
    with torch.no_grad():
        assert not torch.allclose(net(**inputs).logits, net(**inputs | {"use_cache": True}).logits)
        net = bert("sdpa")
        assert not torch.allclose(net(**inputs).logits, net(**attention.padding_free(SEVERAL, causal=False)).logits)


def test_padding_free_makes_the_mask_of_the_kernel_that_is_named() -> None:
    own = {
        kernel: attention.padding_free(SEVERAL, causal=False, attn_implementation=kernel).get("attention_mask")
        for kernel in ("sdpa", "eager", "flex_attention", "flash_attention_2")
    }
    assert own["flash_attention_2"] is None
    assert isinstance(own["flex_attention"], flex.BlockMask)
    seen = attention.document_mask(SEVERAL, causal=False)
    assert torch.equal(own["sdpa"], seen)
    assert torch.equal(own["eager"] == 0, seen)
    with pytest.raises(
        ValueError, match=r"must be sdpa, eager, flex_attention or one of flash attention \(got 'paged'\)"
    ):
        attention.padding_free(SEVERAL, causal=False, attn_implementation="paged")


def test_padding_free_hands_on_what_else_goes_with_the_tokens() -> None:
    row = {"input_ids": [5, 6], "token_type_ids": [0, 1], "shift_labels": [6, -100], "id": 7}
    inputs = attention.padding_free(next(iter(bf.from_sequence([row]).pack(4))))
    assert {"token_type_ids", "shift_labels"} < inputs.keys()
    assert inputs.keys().isdisjoint({"id", "segment_ids", "lengths"})


def test_padding_free_takes_either_name_for_the_boundaries() -> None:
    data = bf.from_sequence([{"input_ids": [5, 6]}, {"input_ids": [7]}])
    plain = next(iter(data.pack(4)))
    renamed = {name: value for name, value in plain.items() if name not in ("cu_seqlens", "max_seqlen")}
    one, other = attention.padding_free(plain), attention.padding_free(renamed)
    assert list(one) == [
        *("input_ids", "labels", "position_ids", "seq_idx", "use_cache"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    ]
    assert str(one) == str(other)
    assert str(attention.varlen(plain)) == str(attention.varlen(renamed))


def test_a_padded_batch_is_refused_where_packed_ones_are_wanted() -> None:
    batch = next(iter(bf.from_sequence([{"input_ids": [1, 2]}]).batch(1)))
    for wanted in (bf.attention.padding_free, bf.attention.varlen):
        with pytest.raises(
            ValueError, match=r"^this batch is not packed: it has no cu_seqlens, but .*input_ids.*; make it"
        ):
            wanted(batch)


def test_segments_are_numbered_in_each_row_for_convolutions_and_state_spaces() -> None:
    batch = next(iter(bf.from_sequence([{"input_ids": [1] * n} for n in (3, 2, 4, 1, 6)]).pack(7, rows=3)))
    numbers, ids = batch["seq_idx"], batch["segment_ids"]
    assert numbers.dtype == torch.int32
    assert (ids[:, 0] == 1).all()
    assert (numbers[ids > 0] == ids[ids > 0] - 1).all()
    assert (numbers[ids == 0] == ids.amax(1, keepdim=True).expand_as(ids)[ids == 0]).all(), "padding is the last one"
    assert bf.attention.padding_free(batch)["seq_idx"] is numbers


def test_a_causal_model_may_be_told_apart_by_a_mask_and_positions_may_begin_later() -> None:
    batch = next(iter(bf.from_sequence([{"input_ids": [1] * n} for n in (3, 2)]).pack(7)))
    made = bf.attention.padding_free(batch, keep_apart="mask", position_offset=2)
    assert made["attention_mask"].equal(bf.attention.document_mask(batch))
    assert made["position_ids"].equal(batch["position_ids"] + 2)
    assert "attention_mask" not in bf.attention.padding_free(batch, causal=False, keep_apart="positions")
    with pytest.raises(ValueError, match="keep_apart must be one of auto, positions, mask"):
        bf.attention.padding_free(batch, keep_apart="hope")
