"""Batches that come in the same tensors again: whoever holds one while the next is made refuses them, and all others see each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import brimful as bf
from tests.integrations.unequal import batches as unequal
from tests.integrations.unequal import write_shards

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = [{"input_ids": [row, row + 1], "labels": [row, row + 1]} for row in range(1, 13)]


def static(kind: str = "indexed") -> bf.Batches:
    data = bf.from_sequence(ROWS) if kind == "indexed" else bf.from_iterable(ROWS)
    return data.batch(1).to_device("cpu", static_buffers=True)


def first(batch: Any) -> int:
    return int(batch["input_ids"][0, 0])


class Reads(IterableDataset[Any]):
    """A data set of a user's own, which takes batches apart."""

    def __iter__(self) -> Iterator[Any]:
        for batch in static().iter():
            yield batch["input_ids"][0]


def lightning(loader: Any, **settings: Any) -> list[int]:
    lightning = pytest.importorskip("lightning")
    from brimful.integrations.lightning import callbacks

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.seen = torch.nn.Linear(1, 1), list[int]()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            self.seen.append(first(batch))
            return self.weights(batch["input_ids"].float().mean().reshape(1, 1)).mean()

        validation_step = test_step = training_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, enable_checkpointing=False, callbacks=callbacks(), **quiet
    )
    model = Model()
    getattr(trainer, settings.pop("verb", "fit"))(model, loader)
    return model.seen


def trainer(data: Any, evaluation: Any = None, **settings: Any) -> list[int]:
    transformers = pytest.importorskip("transformers")
    from brimful.integrations.transformers import trainer_class

    seen = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Linear(1, 1)

        def forward(self, input_ids: Any = None, labels: Any = None, **_: Any) -> Any:
            seen.append(first({"input_ids": input_ids}))
            return {"loss": self.weights(input_ids.float().mean().reshape(1, 1)).mean(), "logits": input_ids}

    quiet: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(folder, **({"max_steps": 4} | quiet | settings))
        made = trainer_class(transformers.Trainer)(
            model=Model(), args=args, train_dataset=data, eval_dataset=evaluation
        )
        if data is None:
            made.predict(static())
        else:
            made.train()
    return seen


def accelerate(loader: Any) -> list[int]:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    return [first(batch) for batch in Accelerator(cpu=True).prepare(DataLoader(loader, batch_size=None))]


def prepared(given: Any) -> list[int]:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    from brimful.integrations.accelerate import prepare

    return [first(batch) for batch in prepare(Accelerator(cpu=True), given)]


def nodes(loader: Any) -> list[int]:
    from torchdata.nodes import IterableWrapper, Prefetcher
    from torchdata.nodes import Loader as Reader

    return [first(batch) for batch in Reader(Prefetcher(IterableWrapper(loader), prefetch_factor=2))]


HOLDERS: dict[str, Callable[[], Any]] = {
    "Trainer with gradient_accumulation_steps=2": lambda: trainer(static(), gradient_accumulation_steps=2),
    "Trainer with gradient_accumulation_steps=3": lambda: trainer(
        bf.AsyncLoader(static().loader(), "cpu"), gradient_accumulation_steps=3
    ),
    "an evaluation of eval_dataset": lambda: trainer(bf.from_sequence(ROWS).batch(1), static().loader()),
    "an evaluation of eval_dataset ": lambda: trainer(None),
    "Accelerate": lambda: accelerate(static().loader()),
    "Accelerate ": lambda: prepared(static()),
    "Accelerate  ": lambda: prepared(
        bf.AsyncLoader(bf.from_sequence(ROWS).batch(1).loader(), "cpu", static_buffers=True)
    ),
    "Lightning": lambda: lightning(static("streamed").loader()),
    "Lightning ": lambda: lightning(bf.AsyncLoader(static("streamed").loader(), "cpu"), verb="test"),
    "Lightning  ": lambda: lightning(static("streamed"), verb="validate"),
    "torchdata.nodes": lambda: nodes(static().loader()),
    "torchdata.nodes ": lambda: nodes(static()),
    "a DataLoader with batch_size=2": lambda: list(DataLoader(static().loader(), batch_size=2, collate_fn=list)),
    "a DataLoader with batch_size=3": lambda: list(DataLoader(Reads(), batch_size=3)),
    "a DataLoader with 1 workers": lambda: list(
        DataLoader(Reads(), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    ),
    "assert_exact_resume": lambda: bf.testing.assert_exact_resume(static),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_holds_a_batch_while_the_next_is_made_refuses(holder: str) -> None:
    words = (
        rf"{holder.rstrip()} holds a batch while the next one is made, and static_buffers .* Leave static_buffers out"
    )
    with pytest.raises(ValueError, match=words):
        HOLDERS[holder]()


def stateful(loader: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(loader, batch_size=None)


OTHERS: dict[str, Callable[[], list[int]]] = {
    "a loop": lambda: [first(batch) for batch in static()],
    "a DataLoader": lambda: [first(batch) for batch in DataLoader(static().loader(), batch_size=None)],
    "a DataLoader of one": lambda: [
        first(batch) for batch in DataLoader(static().loader(), collate_fn=lambda few: few[0])
    ],
    "a StatefulDataLoader": lambda: [first(batch) for batch in stateful(static().loader())],
    "Lightning over data of a known length": lambda: lightning(static().loader()),
    "Lightning's validation": lambda: lightning(static().loader(), verb="validate"),
    "Trainer": lambda: trainer(static(), max_steps=12),
    "AsyncLoader": lambda: [first(batch) for batch in bf.AsyncLoader(static().loader(), "cpu", prefetch=3)],
    "an epoch of steps": lambda: [first(batch) for batch in static().loader(steps_per_epoch=12)],
}


@pytest.mark.parametrize("reader", OTHERS)
def test_all_others_see_each_batch(reader: str) -> None:
    assert OTHERS[reader]() == [row["input_ids"][0] for row in ROWS]


@pytest.mark.parametrize("keep", [list, lambda batches: [batch["input_ids"] for batch in batches], sorted])
def test_batches_that_are_kept_are_an_error_and_not_one_batch_many_times(keep: Callable[[Any], Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^static_buffers puts every batch .* more than 8 of them are held: all are the"
    ):
        keep(static())


def test_two_loops_that_take_the_same_batches_in_turn_are_an_error() -> None:
    both = static()
    with pytest.raises(
        ValueError, match=r"^two loops take these batches in turn, and static_buffers gives both the same"
    ):
        list(zip(both, both))
    assert [first(batch) for _ in range(2) for batch in both] == [row["input_ids"][0] for row in ROWS] * 2


def test_a_loop_may_hold_what_it_uses_and_a_graph_the_tensors_that_it_reads() -> None:
    batches = static()
    graph = next(iter(batches))
    ids, mask = graph["input_ids"], graph["attention_mask"]
    seen = []
    for number, batch in enumerate(batches):
        inputs, labels = batch["input_ids"], batch["labels"]
        assert (inputs.data_ptr(), number < 12) == (ids.data_ptr(), True)
        seen.append(int((ids * mask)[0, 0]))
        assert int(labels[0, 0]) == seen[-1]
    assert seen == [row["input_ids"][0] for row in ROWS]


@pytest.mark.parametrize("around", [False, True])
def test_an_epoch_of_steps_goes_on_for_another_kind_of_loop(tmp_path: Path, around: bool) -> None:
    """AsyncLoader takes items that its own loop makes; a plain loop takes what is made."""
    write_shards(tmp_path)

    def loader() -> Any:
        return unequal("indexed", tmp_path).to_device("cpu", static_buffers=True).loader(steps_per_epoch=2)

    def ids(loop: Any) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in loop]

    plain, mixed = loader(), loader()
    ahead = bf.AsyncLoader(mixed, "cpu")
    for turn in range(4):
        assert ids(ahead if turn % 2 == around else mixed) == ids(plain), turn
