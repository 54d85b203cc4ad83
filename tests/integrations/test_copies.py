"""Models that compute a loss of their own: of batches with copies it is refused, unless the labels are integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful as bf

pytest.importorskip("accelerate")

from accelerate import Accelerator

from brimful.integrations.accelerate import prepare

MESSAGE = r"^1 of the 4 rows of this batch are copies .*The loss of Own counts them: its labels are torch\.\w+, and only integers"


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids: Any, labels: Any = None, sample_weights: Any = None) -> Any:
        return {"loss": (self.weight * input_ids).mean(), "logits": self.weight * input_ids.sum(1)}


def loader(label: Any, rows: int = 7, more: dict[str, Any] | None = None) -> Any:
    data = bf.from_sequence([{"input_ids": [1, 2], "labels": label, **(more or {})}] * rows)
    return data.batch(bf.StaticShapes([4], 16), window=10, shuffle_batches=False).loader()


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "by name": lambda model, batch: model(input_ids=batch["input_ids"], labels=batch["labels"]),
    "by place": lambda model, batch: model(batch["input_ids"], batch["labels"]),
    "weighed": lambda model, batch: model(batch["input_ids"], batch["labels"], batch["sample_weights"]),
    "without labels": lambda model, batch: model(batch["input_ids"]),
}


def with_accelerate(label: Any, call: Callable[[Any, Any], Any], rows: int = 7) -> int:
    steps = 0
    model, batches = prepare(Accelerator(cpu=True), Own(), loader(label, rows), isolation="off")
    for batch in batches:
        call(model, batch)
        steps += 1
    return steps


def with_lightning(label: Any, call: Callable[[Any, Any], Any], rows: int = 7) -> int:
    lightning = pytest.importorskip("lightning.pytorch")
    steps = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Own()

        def training_step(self, batch: Any, number: int) -> Any:
            loss = call(self.model, batch)["loss"]
            steps.append(number)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Module(), loader(label, rows))
    return len(steps)


LOOPS = {"accelerate": with_accelerate, "lightning": with_lightning}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("call", ["by name", "by place"])
@pytest.mark.parametrize("label", [0.5, True, [0.5, 1.5]], ids=str)
def test_a_loss_that_counts_copies_is_refused(loop: str, call: str, label: Any) -> None:
    with pytest.raises(ValueError, match=MESSAGE):
        LOOPS[loop](label, CALLS[call])
    assert LOOPS[loop](label, CALLS[call], rows=8) == 2, "where there are no copies"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("call", "label"), [("by name", 1), ("by name", [1, 2]), ("weighed", 0.5), ("without labels", 0.5)], ids=str
)
def test_a_loss_that_counts_no_copies_is_the_models_own(loop: str, call: str, label: Any) -> None:
    assert LOOPS[loop](label, CALLS[call]) == 2


class Answers(Own):
    def forward(self, input_ids: Any, labels: Any = None, **others: Any) -> Any:
        return super().forward(input_ids, labels)


@pytest.mark.parametrize("name", ["start_positions", "end_positions", "next_sentence_label", "mc_label"])
@pytest.mark.parametrize("value", [1, -99, 0.5], ids=str)
def test_labels_that_are_not_minus_100_in_copies_are_refused_whatever_their_name(name: str, value: Any) -> None:
    model, batches = prepare(Accelerator(cpu=True), Answers(), loader(1, more={name: value}), isolation="off")
    message = (
        rf"^1 of the 4 rows of this batch are copies .*The loss of Answers counts them: its {name} are torch\.\w+, and"
    )

    def loop() -> None:
        for batch in batches:
            model(input_ids=batch["input_ids"], labels=batch["labels"], **{name: batch[name]})

    with pytest.raises(ValueError, match=message):
        loop()
    for batch in batches:  # a call without it, or with the real rows alone
        model(input_ids=batch["input_ids"], labels=batch["labels"], **{name: None})
        real = batch["sample_weights"] > 0
        model(input_ids=batch["input_ids"][real], labels=batch["labels"][real])


def test_a_model_of_transformers_with_labels_of_other_names_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from brimful.integrations.transformers import trainer_class

    sizes = {
        "vocab_size": 30,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**sizes))
    args = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, max_steps=1)
    rows = [{"input_ids": [5, 6, 7], "start_positions": number % 3, "end_positions": 2} for number in range(3)]
    data = bf.from_sequence(rows).batch(bf.StaticShapes([4], 16))
    trainer = trainer_class(transformers.Trainer)(model=model, args=args, train_dataset=data)
    for run in (trainer.train, lambda: trainer.evaluate(data)):
        with pytest.raises(
            ValueError, match=r"of BertForQuestionAnswering counts them: its start_positions .*compute_loss_func"
        ):
            run()


def test_integers_of_several_classes_keep_their_values_in_copies_and_are_refused() -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [number % 2, 1, 0]} for number in range(3)]
    batches = bf.from_sequence(rows).batch(bf.StaticShapes([4], 16), token_columns=[], shuffle_batches=False)
    (batch,) = batches
    assert batch["labels"].min() == 0, "-100 would be no class of a loss that takes each number for one"
    model, prepared = prepare(Accelerator(cpu=True), Own(), batches.loader(), isolation="off")
    (batch,) = prepared
    with pytest.raises(ValueError, match=r"its labels are torch\.int64, and only integers, one a token or a sample"):
        model(input_ids=batch["input_ids"], labels=batch["labels"])


@pytest.mark.parametrize(
    "columns", [{"labels": [1, 0]}, {"labels": [1, 0, 1], "tags_labels": [1]}], ids=["fixed", "lists"]
)
def test_fillers_ask_for_no_integer_of_several_classes_either(columns: dict[str, Any]) -> None:
    rows = bf.from_sequence([{"input_ids": [1, 2, 3], **columns}]).batch(1, token_columns=[])
    filler = next(iter(rows.shard(1, 2)))
    assert filler["is_filler"]
    assert all((filler[name] == -100).all() for name in columns)


def test_fillers_of_one_class_a_sample_and_of_tokens_ask_for_nothing() -> None:
    rows = bf.from_sequence([{"input_ids": [1, 2], "labels": [1, 2], "kind_labels": 1}]).batch(1)
    filler = next(iter(rows.shard(1, 2)))
    assert filler["labels"].tolist() == [[-100, -100]]
    assert filler["kind_labels"].tolist() == [-100]
