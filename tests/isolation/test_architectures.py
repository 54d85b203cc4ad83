"""Twelve architectures of transformers, one at least of each kind of leak, and the table of all, which `make isolation` makes."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

import brimful as bf
from brimful.integrations.transformers import trainer_class
from brimful.isolation.call import packed_batch
from brimful.isolation.guard import TABLE
from brimful.isolation.safe_call import AS_IT_IS, KERNELS, LEAST_VOCABULARY, find_safe_call, segments
from brimful.isolation.small import small_instance

MASK = "keep_apart='mask'"
BOTH_WAYS = "causal=False"
SAMPLE = {  # the kind of leak of `model(**batch)`, and the words of the call that mends it
    "LlamaForCausalLM": ("", AS_IT_IS),
    "GPT2LMHeadModel": ("", AS_IT_IS),
    "OPTForCausalLM": ("attention", MASK),
    "FalconForCausalLM": ("attention", MASK),
    "BloomForCausalLM": ("attention", ""),
    "BertForMaskedLM": ("attention", BOTH_WAYS),
    "RobertaForMaskedLM": ("attention", "position_offset=2"),
    "BartForCausalLM": ("attention", ""),
    "MambaForCausalLM": ("recurrence", ""),
    "Lfm3ForCausalLM": ("convolution", ""),
    "BambaForCausalLM": ("refused", ""),
    "FNetForMaskedLM": ("unknown", ""),
}
"""No architecture of transformers leaks by its positions first."""
PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"
"""It names the release of transformers that `SAMPLE` and the table are of."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_known_of_an_architecture(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leak, way = SAMPLE[name]
    kind: Any = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = small_instance(kind, kind.config_class())
        found = find_safe_call(model, packed_batch(segments(), LEAST_VOCABULARY), model.config._attn_implementation)
    now = found.leak.kind if found.leak else "refused" if found.refused else ""
    if f"transformers {transformers.__version__}," in PAGE.read_text("utf-8"):
        assert now == leak
        assert way in found.call
        assert bool(way) == bool(found.call)
    leak = now  # another release may have mended it, or broken it: the trainer must see what holds today

    args = TrainingArguments(
        str(tmp_path), max_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True
    )
    data = bf.from_sequence([{"input_ids": [6 + n] * (3 + n)} for n in range(8)]).pack(48)
    trainer = trainer_class(Trainer)(model, args, train_dataset=data)
    with caplog.at_level(logging.WARNING, "brimful"):
        if leak == "":
            trainer.train()
        else:
            with pytest.raises(ValueError, match="samples see each other" if leak != "refused" else "packed sequences"):
                trainer.train()
    assert not [one for one in caplog.records if one.name == "brimful"] or leak == "refused"


def test_the_guard_takes_no_leaking_architecture_of_the_table_for_an_isolated_one() -> None:
    isolated = json.loads(TABLE.read_text("utf-8"))["isolated"]
    page = PAGE.read_text("utf-8")
    assert re.search(r"transformers \d+\.\d+\.\d+,", page)
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in page.splitlines() if line.startswith("| ")]
    words = {name: dict(zip(KERNELS, found)) for name, *found in rows[1:]}
    for name, known in isolated.items():
        assert known["kernels"] == [kernel for kernel in KERNELS if words[name][kernel] == "as it is"]
    for name, found in words.items():
        if {*found.values()} - {"as it is", "refused", "-"}:  # it leaks by some kernel, so each model of it is tried
            assert name not in isolated
    for name, (leak, way) in SAMPLE.items():
        assert (name in isolated) == (way == AS_IT_IS)
        assert leak in ("", "refused") or not {"as it is", "refused"} & {*words[name].values()}
