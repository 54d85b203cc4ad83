"""A packed batch meets a model: a leak is an error that says where it is and what to do, wherever they meet."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from accelerate import Accelerator
from torch import nn
from transformers import Trainer, TrainingArguments

import brimful as bf
from brimful.integrations.accelerate import prepare
from brimful.integrations.transformers import trainer_class
from brimful.isolation.call import Call, call_of
from brimful.isolation.guard import refuse_leaks, structure
from brimful.testing import assert_isolated
from tests.isolation.toys import Adapted, toy

pytestmark = pytest.mark.filterwarnings("ignore")  # of trainers of other projects
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def opt() -> Any:
    return transformers.OPTForCausalLM(transformers.OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=16))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def mamba() -> Any:
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))


def packed(rows: int = 1) -> bf.Batches:
    return bf.from_sequence([{"input_ids": [6 + n] * (2 + n % 5)} for n in range(40)]).pack(32, rows=rows)


def masked(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, **bf.attention.padding_free(batch, keep_apart="mask", attn_implementation="sdpa")}


OPT = (
    r"in OPTForCausalLM samples see each other at model\.decoder\.layers\.0\.self_attn \(OPTAttention\), by its attention.*"
    r"padding_free\(batch, keep_apart='mask', attn_implementation='sdpa'\).*Give it padded batches.*isolation=\"off\""
)


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder), max_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True
    )


def test_a_trainer_refuses_what_leaks_and_takes_what_is_mended(tmp_path: Path) -> None:
    for model, data, message in (
        (opt(), packed(), OPT),
        (mamba(), packed(), r"in MambaForCausalLM samples see each other at backbone\.layers\.0\.mixer .* recurrence"),
        (opt(), packed().map(masked), None),
        (llama(), packed(), None),
        (opt(), bf.from_sequence([{"input_ids": [6] * 4}] * 4).causal_labels().batch(2), None),
    ):
        trainer = trainer_class(Trainer)(model, arguments(tmp_path), train_dataset=data, eval_dataset=data)
        if message is None:
            trainer.train()
            continue
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                trainer.train()
        with pytest.raises(ValueError, match=message):
            trainer_class(Trainer)(model, arguments(tmp_path), eval_dataset=data).evaluate()
    trainer_class(Trainer, isolation="off")(opt(), arguments(tmp_path), train_dataset=packed()).train()
    with pytest.raises(ValueError, match="isolation must be one of raise, off"):
        trainer_class(Trainer, isolation="warn")


def test_ids_that_a_model_does_not_have_are_named_with_its_vocabulary() -> None:
    model = llama()
    largest = model.config.vocab_size + 7
    batch = next(iter(bf.from_sequence([[1, 2, 3], [1, largest]]).pack(8)))
    with pytest.raises(
        ValueError, match=rf"^LlamaForCausalLM has {largest - 7} ids .* in the batch is {largest}\. Use the"
    ):
        assert_isolated(model, batch)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        (
            {"attention_mask": torch.ones(1, 32)},
            r"without attention_mask \(one of shape \(rows, tokens\) says that each row is",
        ),
        ({"use_cache": True}, r"with use_cache=False \(with a cache"),
        ({"use_cache": None}, r"with use_cache=False \(with a cache"),
        ({"position_ids": None}, "with position_ids that begin at 0 in each sample"),
        ({"position_ids": torch.arange(32)[None]}, "with position_ids that begin at 0 in each sample"),
        ({"position_ids": None, "use_cache": True}, r"with use_cache=False \(.*\), and with position_ids that begin"),
    ],
)
def test_what_of_a_batch_makes_samples_meet_is_said(changes: dict[str, Any], remedy: str) -> None:
    batch = next(iter(packed()))
    bf.testing.assert_isolated(llama(), batch)
    changed = {name: one for name, one in {**batch, **changes}.items() if one is not None}
    with pytest.raises(
        AssertionError, match=rf"LlamaAttention.*\. Samples are kept apart by model\(\*\*batch\) {remedy}"
    ):
        bf.testing.assert_isolated(llama(), changed)
    with pytest.raises(
        ValueError, match=rf"Its samples are kept apart by model\(\*\*batch\) {remedy}.* Or: Give it padded"
    ):
        refuse_leaks(llama(), call_of(llama(), changed))


def test_what_a_model_does_not_take_is_no_remedy() -> None:
    class Plain(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> Any:
            return super().forward(input_ids, attention_mask, position_ids, use_cache=False)

    batch = {**next(iter(packed())), "attention_mask": torch.ones(1, 32)}
    found = bf.testing.isolation_report(Plain(transformers.LlamaConfig(**SMALL)), batch)
    assert (
        found.remedy
        == "model(**batch) without attention_mask (one of shape (rows, tokens) says that each row is one sample)"
    )


def test_accelerate_checks_the_call_that_the_loop_makes() -> None:
    accelerator = Accelerator(cpu=True)
    for make, call, isolation, leaks in (
        (opt, dict, "raise", True),
        (opt, dict, "off", False),
        (opt, lambda batch: bf.attention.padding_free(batch, keep_apart="mask"), "raise", False),
        (llama, bf.attention.padding_free, "raise", False),
        (llama, lambda batch: {"input_ids": batch["input_ids"]}, "raise", True),
    ):
        model, loader = prepare(accelerator, make(), packed().loader(), isolation=isolation)
        batch = next(iter(loader))
        if leaks:
            with pytest.raises(ValueError, match="samples see each other"):
                model(**call(batch))
        else:
            model(**call(batch))
        (hook,) = model._forward_pre_hooks.values()
        assert hook.__self__._isolation.on == leaks, "what keeps samples apart is not asked again"


def test_lightning_checks_the_first_batch(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    from brimful.integrations.lightning import callbacks

    class Module(pl.LightningModule):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(
                **{name: batch[name] for name in ("input_ids", "position_ids", "labels", "use_cache")}
            ).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    settings: dict[str, Any] = {
        **{"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1},
        **{"default_root_dir": tmp_path, "enable_progress_bar": False, "enable_model_summary": False},
    }
    with pytest.raises(ValueError, match=OPT):
        pl.Trainer(**settings).fit(Module(opt()), packed().loader())
    pl.Trainer(**settings, callbacks=callbacks(isolation="off")).fit(Module(opt()), packed().loader())
    pl.Trainer(**settings).fit(Module(llama()), packed().loader())


def test_warm_up_checks_the_call_of_the_step() -> None:
    model = opt()
    with pytest.raises(ValueError, match=OPT):
        bf.warm_up(lambda batch: model(**batch), packed(rows=2))
    bf.warm_up(lambda batch: model(**batch), packed(), isolation="off")
    seen: list[torch.Size] = []
    bf.warm_up(lambda batch: (seen.append(batch["input_ids"].shape), model(**masked(batch))), packed(rows=2))
    assert [tuple(shape) for shape in seen][1:] == [(2, 32)]
    assert len(seen) == 2


def test_a_model_that_is_not_of_transformers_is_tried_itself(caplog: pytest.LogCaptureFixture) -> None:
    for leak in ("", "convolution"):
        model = toy("decoder", leak)
        model.words = nn.Embedding(64, 16)

        def step(batch: Any, model: nn.Module = model) -> Any:
            return model(*(batch[name] for name in ("input_ids", "position_ids", "segment_ids")))

        if leak:
            with pytest.raises(
                ValueError, match=r"in Toy samples see each other at blocks\.1\.conv \(Row\), by its convolution"
            ):
                bf.warm_up(step, packed())
        else:
            bf.warm_up(step, packed())
    assert not caplog.records


class WithFlag(nn.Module):
    """Takes the whole batch, and more."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: Any, flag: bool) -> Any:
        return self.inner(batch["input_ids"], position_ids=batch["position_ids"], use_cache=not flag)


@pytest.mark.parametrize("written", ["of an adapted model", "with a flag", "by names"])
def test_a_call_is_checked_however_it_is_written(written: str, caplog: pytest.LogCaptureFixture) -> None:
    for make, error in (
        (opt, pytest.raises(ValueError, match="samples see each other")),
        (llama, contextlib.nullcontext()),
    ):
        wrapped: nn.Module = Adapted(make()) if written == "of an adapted model" else WithFlag(make())
        model, loader = prepare(Accelerator(cpu=True), wrapped, packed().loader())
        batch = next(iter(loader))
        with error:
            if isinstance(wrapped, Adapted):
                model(batch["input_ids"], None, position_ids=batch["position_ids"], use_cache=False)
            elif written == "by names":
                model(flag=True, batch=batch)
            else:
                model(batch, True)
    assert not caplog.records


def test_where_nobody_can_say_it_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def picky(batch: Any) -> None:
        assert batch["input_ids"].shape == (2, 32)

    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(20_000, 6_000, device="meta")

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids

    with caplog.at_level(logging.WARNING, "brimful"):
        bf.warm_up(picky, packed(rows=2))
        bf.warm_up(lambda batch: Huge()(batch["input_ids"]), packed())
        bf.warm_up(lambda batch: Huge()((batch["input_ids"],)), packed())
    first, second, third = (record.getMessage() for record in caplog.records)
    assert re.search(r"the step does not take a short batch \(AssertionError", first)
    assert re.search(r"could not check whether Huge isolates packed samples.* or pass isolation=\"off\"", second)
    assert re.search(r"calls no module with the batch or its tensors as arguments\. Run bf", third)


def test_what_is_known_of_a_type_is_known_of_its_kind_of_configuration_alone() -> None:
    config = transformers.FalconConfig()
    assert structure(config) == structure(
        transformers.FalconConfig(hidden_size=64, num_attention_heads=2, vocab_size=9)
    )
    assert structure(config) != structure(transformers.FalconConfig(alibi=True))
    assert structure(transformers.LlamaConfig()) != structure(
        transformers.LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0})
    )


def test_a_model_that_takes_use_cache_among_other_keywords_is_given_it() -> None:
    config = transformers.GraniteMoeConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1)
    assert_isolated(transformers.GraniteMoeForCausalLM(config), next(iter(packed())))


def test_the_generators_and_the_model_are_as_before() -> None:
    for make in (opt, llama):
        model, batch = make().train(), next(iter(packed()))
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
        with contextlib.suppress(ValueError):
            refuse_leaks(model, Call(batch, batch["segment_ids"]))
        assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # type: ignore[index, union-attr]
        assert all(one.training and not one._forward_pre_hooks for one in model.modules())
