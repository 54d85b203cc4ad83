"""Models that compute a loss of their own: of batches with copies it is refused, unless the labels are integers."""

from __future__ import annotations

from collections.abc import Callable
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


def loader(label: Any, rows: int = 7) -> Any:
    data = bf.from_sequence([{"input_ids": [1, 2], "labels": label}] * rows)
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
