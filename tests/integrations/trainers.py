"""Trainers of tiny models over tiny data, which note what they train on; and the jobs of processes that run them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

import brimful as bf
from brimful.integrations.transformers import trainer_class
from tests.forks import serve

logging.disable_progress_bar()
logging.set_verbosity_error()
VOCABULARY = 32


def tokenizer() -> Any:
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, "</s>": 3} | {f"w{word}": word for word in range(4, VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")),
        pad_token="[PAD]",
        mask_token="[MASK]",
        unk_token="[UNK]",
        eos_token="</s>",
    )


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def llama(dropout: float = 0.1) -> Any:
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=dropout))


def bert(dropout: float = 0.1) -> Any:
    set_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))


def regression(dropout: float = 0.1) -> Any:
    """A number for each sample."""
    set_seed(0)
    more = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "num_labels": 1}
    return BertForSequenceClassification(BertConfig(**SIZES, **more))


def squares(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
    """A compute_loss_func for `regression`."""
    return ((outputs.logits[:, 0] - labels) ** 2).sum() / num_items_in_batch


MODELS = {"llama": llama, "bert": bert, "regression": regression}


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of 1 to 16 tokens, of each of which the labels are trained on from some token on, or none."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        ids = random.integers(4, VOCABULARY, random.integers(1, 17)).tolist()
        asked = int(random.integers(0, len(ids) + 1))
        made.append({"number": number, "input_ids": ids, "labels": [-100] * asked + ids[asked:]})
    return made


def indexed(count: int = 23) -> bf.Batches:
    return bf.from_sequence(rows(count), shuffle=True).batch_by_tokens(48, window=12)


def write_shards(folder: Path) -> None:
    samples = rows(24)
    for shard in range(4):
        own = samples[shard::4][: 6 - shard]
        (folder / f"{shard}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))


def streamed(folder: Path) -> bf.Batches:
    """Four streams of unequal length."""
    return bf.from_files(str(folder / "*.jsonl"), streams=4).shuffle(6).batch_by_tokens(48, window=6)


def recorded(base: type[Trainer]) -> Any:
    """A trainer of ours that notes the batches that it trains on, and their losses."""

    class Recorded(trainer_class(base)):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.seen: list[Any] = []
            super().__init__(*args, **kwargs)

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(model, inputs, *args, **kwargs)
            self.seen.append(
                [inputs["input_ids"].tolist(), inputs.get("labels", inputs["input_ids"]).tolist(), loss.item()]
            )
            return loss

    return Recorded


class Kill(TrainerCallback):
    """kill -9 when the batches of the optimizer step after `step` have been read."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def settings(folder: Path, kind: Any = TrainingArguments, **options: Any) -> Any:
    given = {
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "lr_scheduler_type": "constant",
        "learning_rate": 1e-2,
        "dataloader_pin_memory": False,
    }
    return kind(str(folder), **(given | options))


def run(folder: Path, data: Any, *, resume: Any = None, model: Any = None, base: Any = Trainer, **options: Any) -> Any:
    """A trainer after its training; options of its arguments, and what else its constructor takes."""
    more = {
        name: options.pop(name)
        for name in (
            "callbacks",
            "eval_dataset",
            "compute_metrics",
            "processing_class",
            "compute_loss_func",
            "ref_model",
        )
        if name in options
    }
    trainer = recorded(base)(
        model=llama() if model is None else model, args=settings(folder, **options), train_dataset=data, **more
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


# -- jobs of several processes


def data_of(kind: str, folder: Path) -> bf.Batches:
    return streamed(folder) if kind == "streamed" else indexed()


def trained(folder: Path, kind: str, name: str, stop: int, resume: bool, steps: int) -> Any:
    """A run of `steps` steps in folder/name: killed after the step `stop`, or resumed."""
    callbacks = [Kill(stop)] if stop else []
    trainer = run(
        folder / name,
        data_of(kind, folder),
        resume=resume or None,
        max_steps=steps,
        callbacks=callbacks,
        gradient_accumulation_steps=2,
        eval_dataset=data_of(kind, folder),
        eval_strategy="steps",
        eval_steps=2,
    )
    evaluated = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    return [trainer.seen, trainer.state.epoch, evaluated]


def refused(folder: Path) -> Any:
    """A resume of two processes, of which rank 1 has other data: what each says."""
    run(folder / "run", indexed(), max_steps=2)
    other = indexed() if os.environ["RANK"] == "0" else indexed(24)
    try:
        run(folder / "run", other, resume=True, max_steps=4)
    except Exception as error:
        return [type(error).__name__, str(error)]


def compared(folder: Path, kind: str, accumulated: int) -> Any:
    """What must be the same for two processes and for one that accumulates two batches."""
    samples = rows(35, seed=1)
    for row in samples[:9]:  # batches without a label
        row["labels"] = [-100] * len(row["labels"])
    samples.append({"number": 99, "input_ids": [5], "labels": [5]})
    if kind == "regression":
        samples = [row | {"labels": len(row["input_ids"]) / 8} for row in samples]
        data = bf.from_sequence(samples).batch(bf.StaticShapes([8, 16], 48), window=16)
    else:
        data = bf.from_sequence(samples).batch_by_tokens(40, window=16)
    assert len(data) % 2, "the last step has a filler"
    model = MODELS[kind](0.0).double()
    trainer = run(
        folder / f"{kind}{accumulated}",
        data,
        model=model,
        eval_dataset=data,
        eval_strategy="epoch",
        save_strategy="no",
        num_train_epochs=2,
        optim="sgd",
        gradient_accumulation_steps=accumulated,
        max_grad_norm=0.1,
        compute_loss_func=squares if kind == "regression" else None,
    )
    result = trainer.predict(data)
    logged = [
        {key: log.get(key) for key in ("loss", "grad_norm", "eval_loss")} for log in trainer.state.log_history[:-1]
    ]
    assert trainer.num_examples(trainer.get_train_dataloader()) == len(samples)
    return {
        "logged": logged,
        "weights": [weight.flatten().tolist()[:64] for weight in model.parameters()],
        "labels": result.label_ids.tolist(),
        "predicted": float(result.predictions.sum()),
        "test_loss": result.metrics["test_loss"],
        "numbers": len(result.predictions),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({job.__name__: job for job in (trained, compared, refused)}, "torch._dynamo")  # optimizers and DDP import it
