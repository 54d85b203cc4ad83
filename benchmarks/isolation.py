"""Which architectures of transformers keep the samples of a packed row apart, and by which call: the table of docs/isolation.md.

Every causal and encoder architecture of the installed transformers is made small, with random weights, and tried: some samples
are changed and the others are compared, and each is compared with itself run alone. By eager attention, SDPA and FlexAttention.

make isolation           writes docs/isolation.md and the table that the guard answers from; some minutes
... isolation.py NAME    prints the lines of some types (llama, BertForMaskedLM) alone
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import CONFIG_MAPPING, Trainer, TrainingArguments
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

import brimful as bf
from brimful.integrations.transformers import trainer_class
from brimful.isolation.call import call_of, packed_batch, padded_batch, vocabulary_of
from brimful.isolation.guard import TABLE, structure
from brimful.isolation.probe import examine
from brimful.isolation.safe_call import AS_IT_IS, KERNELS, LEAST_VOCABULARY, Verdict, find_safe_call, segments
from brimful.isolation.small import small_instance

ROOT: Final = Path(__file__).parents[1]
AS: Final = "as it is"
LEAKS: Final = "leaks"
REFUSED: Final = "refused"
NONE: Final = "-"
"""No small model of it runs with this kernel."""
LACKING: Final[dict[str, dict[str, Any]]] = {
    "CohereCompassForCausalLM": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}},
    },
    **{f"{name}ForCausalLM": {"head_dim": 128} for name in ("HunYuanDenseV1", "HunYuanMoEV1", "Ministral")},
    **{f"XmodFor{task}LM": {"default_language": "en_XX"} for task in ("Causal", "Masked")},
    **{f"Reformer{task}": {"axial_pos_embds": False} for task in ("ModelWithLMHead", "ForMaskedLM")},
    "Dots1ForCausalLM": {"n_shared_experts": 1, "n_routed_experts": 8},
    "EsmForMaskedLM": {"vocab_size": 128, "pad_token_id": 1},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
}
"""Settings without which a type's configuration makes no model."""
LIMIT_SECONDS: Final = 120
"""CPU time of one architecture; most take 1 to 7 s."""


class Tried(NamedTuple):
    """What came of one architecture.

    Args:
        kernels: of each kernel a word: as it is, the settings of `padding_free`, refused, leaks, or "-".
        where: where samples of a batch as it is meet; what the model says, where it refuses it; why there is none.
        padded: what comes of padded batches.
        silent: the kernels by which samples meet and `trainer_class` trains without an error.
        structure: of the configuration that was tried, as the guard knows it.
    """

    type: str
    name: str
    kernels: dict[str, str]
    where: str
    kind: str
    padded: str
    silent: list[str]
    structure: int


def architectures() -> list[tuple[str, str]]:
    """Types of models and their classes, each class once."""
    found: dict[str, str] = {}
    for names in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES):
        for kind, name in sorted(names.items()):
            own = str(CONFIG_MAPPING_NAMES.get(kind, "")).removesuffix("Config")
            if isinstance(name, str) and (name not in found or name.startswith(own)):
                found[name] = kind
    return [(kind, name) for name, kind in found.items()]


def config_for(kind: str, name: str) -> Any:
    """The configuration that a type has by default, of a decoder where it is made one."""
    config = CONFIG_MAPPING[kind]()
    wanted = getattr(transformers, name).config_class
    if wanted is not None and not isinstance(config, wanted):
        config = next((one for one in vars(config).values() if isinstance(one, wanted)), config)
    if name in LACKING:
        config = type(config)(**LACKING[name])
    if hasattr(config, "is_decoder") and MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) == name:
        config.is_decoder = True
    return config


class _TooLong(BaseException):
    """An architecture took longer than its limit."""


def _stop(*_: Any) -> None:
    raise _TooLong


def tried_in_time(kind: str, name: str) -> Tried:
    """What came of an architecture, or that it took too long."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        return tried(kind, name)
    except _TooLong:
        return Tried(kind, name, dict.fromkeys(KERNELS, NONE), f"more than {LIMIT_SECONDS} s", "", NONE, [], 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def tried(kind: str, name: str) -> Tried:
    """What came of an architecture."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    kernels, where, padded, kind_of_leak, problem = dict.fromkeys(KERNELS, NONE), "", NONE, "", ""
    silent: list[str] = []
    try:
        config = config_for(kind, name)
    except Exception as error:
        return Tried(kind, name, kernels, _said(error), "", NONE, [], 0)
    for kernel in KERNELS:
        torch.manual_seed(0)
        try:
            model = small_instance(getattr(transformers, name), config, kernel)
            words = min(LEAST_VOCABULARY, vocabulary_of(model))
            padded = of_padded(model, words) if padded == NONE else padded
            if not sees_itself(model, words):
                raise ValueError(
                    "on this machine, no token of this model sees any other token, so the test would show nothing"
                )
        except Exception as error:
            problem = _said(error) if "attention implementation" not in str(error) else problem
            continue
        found = find_safe_call(model, packed_batch(segments(), words), kernel)
        kernels[kernel] = word(found, kernel)
        if found.leak is not None:
            where, kind_of_leak = f"{found.leak.layer} ({found.leak.module})".lstrip(), found.leak.kind
            silent += [kernel] if trains(model) else []
        elif found.refused and not kind_of_leak:
            where = found.refused.replace("\n", " ")[:160]
    where = "" if {*kernels.values()} <= {AS, NONE} and AS in kernels.values() else where or problem
    return Tried(kind, name, kernels, where, kind_of_leak, padded, silent, structure(config))


def word(found: Verdict, kernel: str) -> str:
    """What stands in the table for a verdict."""
    if found.call == AS_IT_IS:
        return AS
    if not found.call:
        return LEAKS if found.leak is not None else REFUSED
    settings = found.call.partition("padding_free(batch, ")[2]
    return settings.replace(f", attn_implementation={kernel!r}", "").removesuffix("))")


def of_padded(model: torch.nn.Module, words: int) -> str:
    """What comes of a padded batch: "isolated", or the kind of leak."""
    leak = examine(model, call_of(model, padded_batch(segments(), words)), words).leak
    return "isolated" if leak is None else f"{leak.test}: {leak.kind}"


def sees_itself(model: torch.nn.Module, words: int) -> bool:
    """Whether one half of a text sees the other, without which nothing that is found says anything (MRA, on a CPU)."""
    ids = torch.randint(5, words, (1, 48))
    halves = torch.arange(48)[None] // 24 + 1
    batch = {"input_ids": ids, "labels": ids, "segment_ids": halves, "use_cache": False}
    leak = examine(model, call_of(model, batch), words, locate=False).leak
    return leak is not None and leak.test == "changed"


def trains(model: torch.nn.Module) -> bool:
    """Whether `trainer_class` trains a model on packed rows without an error."""
    data = bf.from_sequence([{"input_ids": [6 + n] * (3 + n)} for n in range(8)]).pack(48)
    quiet: dict[str, Any] = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer_class(Trainer)(model, TrainingArguments(folder, max_steps=1, **quiet), train_dataset=data).train()
        except Exception:
            return False
    return True


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


def write(results: list[Tried]) -> None:
    """docs/isolation.md, and the table that the guard answers from: types that every kernel keeps apart as they are."""
    if silent := [f"{one.name} ({', '.join(one.silent)})" for one in results if one.silent]:
        raise SystemExit(f"samples see each other, and trainer_class trains without an error: {'; '.join(silent)}")
    results = sorted(results, key=lambda one: one.name.lower())
    known = {
        one.name: {"structure": one.structure, "kernels": [kernel for kernel in KERNELS if one.kernels[kernel] == AS]}
        for one in results
        if AS in one.kernels.values() and {*one.kernels.values()} <= {AS, NONE, REFUSED}
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
    TABLE.write_text(f'{{"isolated": {{\n{lines}\n}}}}\n', "utf-8")
    (ROOT / "docs" / "isolation.md").write_text(page(results), "utf-8")


def page(results: list[Tried]) -> str:
    """The text of docs/isolation.md."""
    made = [one for one in results if {*one.kernels.values()} != {NONE}]
    counts = Counter(_best(one) for one in made)
    cells = (
        [one.name, *(one.kernels[kernel] for kernel in KERNELS), one.where.replace("|", "/"), one.padded]
        for one in made
    )
    everything = {name for _, name in architectures()}
    missing = {one.name: one.where.rpartition("can be made: ")[2].strip() for one in results if one not in made}
    missing |= dict.fromkeys(everything - {one.name for one in results}, "not tried")
    return HEAD.format(
        version=transformers.__version__,
        made=len(made),
        of=len(everything | {one.name for one in results}),
        counts="\n".join(f"- {counts[name]} {words}" for name, words in BEST.items()),
        leaking=sum(one.kind != "" for one in made),
        rows="\n".join(f"| {' | '.join(row)} |" for row in cells),
        missing="\n".join(f"- {name}: {missing[name]}" for name in sorted(missing, key=str.lower)),
    )


BEST: Final = {
    AS: "keep samples apart with the plain call `model(**batch)`;",
    "by a call": "keep samples apart with `model(**bf.attention.padding_free(batch, ...))` and the arguments in the table;",
    REFUSED: "raise an error for a packed batch, most of them because the kernel `causal_conv1d` is not installed;",
    LEAKS: "let samples see each other: give these models padded batches.",
}


def _best(one: Tried) -> str:
    found = {*one.kernels.values()} - {NONE}
    if AS in found:
        return AS
    return "by a call" if found - {LEAKS, REFUSED} else LEAKS if LEAKS in found else REFUSED


HEAD: Final = """# Which models keep the samples of a packed row apart

A packed row holds several samples end to end. The model decides whether one sample sees another.

`make isolation` writes this page. For each causal and encoder architecture of transformers {version}, it makes a small model
with random weights, on a CPU. The test changes half of the samples, and checks whether the output for any other sample changes.
It repeats this, so that each sample changes once while each other sample stays. Then the test changes the padding. Last, the
test compares each sample with a run of this sample alone.

This run tried {made} of {of} architectures:

{counts}

The list counts each architecture once, with the best result of its three attention kernels (SDPA, eager, FlexAttention).
{leaking} of the {made} architectures leak with the plain call on at least one kernel. Many of these are in the first two groups,
because another kernel or call keeps their samples apart. The run also passed packed
rows to `trainer_class` with each of these leaking models and kernels. `trainer_class` raised an error every time.

In this run, FlexAttention was not compiled, and no kernels for convolutions and state spaces were installed. Your model may
give another result if it has another kernel, changed code, or settings that are not the defaults of its type. Test your model
with the call that your training step makes:

```py
bf.testing.assert_isolated(model)  # model(**batch)
bf.testing.assert_isolated(model, bf.attention.padding_free(batch, keep_apart="mask"))
```

An error names the first layer at which samples see each other. `trainer_class`, Lightning's callback, brimful's `prepare` for
Accelerate and `warm_up` check the first packed batch for you. They make a small
model with the same kinds of layers as yours. If samples see each other in this model, you get an error.

The words in the table:

- *as it is*: `model(**batch)` keeps samples apart.
- *keep_apart, causal, position_offset*: `model(**bf.attention.padding_free(batch, ...))` keeps samples apart with these
  arguments: `causal=False` for encoders, `position_offset=2` if positions begin at 2, `keep_apart="mask"` for a
  mask between samples. Also pass the model's `attn_implementation` to `padding_free`.
- *refused*: the model raises an error for a packed batch.
- *leaks*: samples see each other with `model(**batch)` and with each call of `padding_free` that was tried.
- *-*: no result, because the run could not make or run a small model with this kernel.
- *layer, or error*: the first layer at which samples see each other with `model(**batch)`, or the error of the model.
- *padded*: the result for a padded batch with `model(**batch)`. *isolated*: no real token sees padding.
  *padding: convolution* and *padding: attention*: real tokens see padding, through a layer of this kind.
  *padding: unknown*: real tokens see padding, and the test does not know the kind of the layer.

| architecture | SDPA | eager | FlexAttention | layer, or error | padded |
|---|---|---|---|---|---|
{rows}

For these architectures, the run could not make or run a small model:

{missing}
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--results", type=Path, help="a file of results: those that are in it are taken, new ones go there"
    )
    given = parser.parse_args()
    wanted = [one for one in architectures() if not given.names or {*one} & {*given.names}]
    results = []
    if given.results is not None and given.results.exists():
        results = [Tried(**json.loads(line)) for line in given.results.read_text("utf-8").splitlines()]
    missing = [one for one in wanted if one[1] not in {done.name for done in results}]
    with ProcessPoolExecutor(given.jobs, get_context("fork")) as pool:
        for future in as_completed([pool.submit(tried_in_time, *one) for one in missing]):
            results.append(one := future.result())
            print(f"{one.name:<40} {', '.join(one.kernels.values())}", flush=True)
            if given.results is not None:
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one._asdict()) + "\n")
    if not given.names:
        write(results)
