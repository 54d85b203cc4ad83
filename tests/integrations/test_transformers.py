"""Batches in Hugging Face's trainers: killed and resumed by the trainer itself, with the losses of all labels."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brimful as bf
from brimful.plan.errors import StateError

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    set_seed,
)

from brimful.integrations.transformers import trainer_class
from brimful.integrations.transformers.data import SKIPPED, Length, ModelInputs, Steps, own_share
from brimful.isolation import guard
from brimful.isolation.call import segments_of
from tests.forks import Launch, forks_of
from tests.integrations.trainers import (
    SIZES,
    VOCABULARY,
    bert,
    data_of,
    indexed,
    llama,
    recorded,
    regression,
    rows,
    run,
    settings,
    squares,
    streamed,
    tokenizer,
    write_shards,
)


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with forks_of("tests.integrations.trainers") as launch:
        yield launch


# -- resumed


@pytest.mark.parametrize("kind", ["indexed", "streamed"])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_run_resumed_at_any_step_is_the_unbroken_one(kind: str, accumulated: int, tmp_path: Path) -> None:
    write_shards(tmp_path)
    options = {"gradient_accumulation_steps": accumulated, "max_steps": 9 if accumulated == 1 else 5}
    whole = run(tmp_path / "whole", data_of(kind, tmp_path), **options)
    epochs = [log["epoch"] for log in whole.state.log_history]
    assert whole.state.epoch >= 1, "over the end of an epoch"
    for step in range(1, options["max_steps"]):
        rest = run(
            tmp_path / "rest",
            data_of(kind, tmp_path),
            resume=str(tmp_path / "whole" / f"checkpoint-{step}"),
            save_strategy="no",
            **options | {"max_steps": min(step + 2, options["max_steps"])},
        )
        done = step * accumulated if kind == "streamed" else step // 3 * 7 + step % 3 * 3 if accumulated == 3 else step
        assert rest.seen
        assert rest.seen == whole.seen[done : done + len(rest.seen)], step
        assert [log["epoch"] for log in rest.state.log_history[:-1]] == epochs[: min(step + 2, len(epochs) - 1)]


@pytest.mark.parametrize("kind", ["indexed", "streamed"])
@pytest.mark.parametrize(
    ("options", "steps"),
    [({"max_steps": 6}, 6), ({"max_steps": 5, "gradient_accumulation_steps": 3}, 5), ({"num_train_epochs": 1.5}, 11)],
)
def test_a_resume_at_the_end_is_the_end(kind: str, options: dict[str, Any], steps: int, tmp_path: Path) -> None:
    write_shards(tmp_path)
    first = run(tmp_path / "run", data_of(kind, tmp_path), **options)
    steps = first.state.global_step if kind == "streamed" else steps
    weights = [one.tolist() for one in first.model.parameters()]
    for _ in range(2):
        again = run(tmp_path / "run", data_of(kind, tmp_path), resume=True, **options)
        assert (again.seen, again.state.global_step, again.state.epoch) == ([], steps, first.state.epoch)
        assert [one.tolist() for one in again.model.parameters()] == weights
    if "max_steps" in options:
        less = run(tmp_path / "run", data_of(kind, tmp_path), resume=True, **options | {"max_steps": steps - 1})
        more = run(tmp_path / "run", data_of(kind, tmp_path), resume=True, **options | {"max_steps": steps + 1})
        assert (less.seen, more.state.global_step, len(more.seen) > 0) == ([], steps + 1, True)


def test_what_was_read_for_a_broken_off_accumulation_comes_again(tmp_path: Path) -> None:
    class InTheMiddle(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                control.should_training_stop = control.should_save = True

    options = {"gradient_accumulation_steps": 3, "max_steps": 4}
    whole = run(tmp_path / "whole", indexed(), save_strategy="no", **options)
    broken = run(tmp_path / "run", indexed(), callbacks=[InTheMiddle()], **options)
    assert len(broken.seen) == 4
    rest = run(tmp_path / "run", indexed(), resume=True, **options)
    assert [seen[:2] for seen in rest.seen] == [seen[:2] for seen in whole.seen[3:]]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_optimizer_step_may_have_batches_of_two_epochs(ahead: bool) -> None:
    def steps() -> Steps:
        loader: Any = bf.from_sequence([{"input_ids": [number]} for number in range(6)]).batch(1).loader()
        loader = bf.AsyncLoader(loader, "cpu") if ahead else loader
        return Steps(loader, Length(40, None), ModelInputs(None, "Model", shared=False))

    whole = [number % 6 for number in range(60)]
    run = steps()
    for taken, batch in enumerate(run, 1):
        assert batch["input_ids"].item() == whole[taken - 1]
        if taken % 4 == 0:
            run.follow.use()
        trained = taken - taken % 4
        again = steps()
        again.follow.loader.load_state_dict(run.follow.loader.state_dict())
        assert [one["input_ids"].item() for one in islice(again, 9)] == whole[trained : trained + 9]
    run.close()
    assert run.follow.unused == 0


@pytest.mark.parametrize("kind", ["indexed", "streamed"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_killed_run_is_resumed_by_the_trainer(kind: str, world_size: int, tmp_path: Path, launch: Launch) -> None:
    write_shards(tmp_path)

    def ranks(name: str, stop: int, resume: bool) -> list[Any]:
        return launch(world_size, "trained", tmp_path, kind, name, stop, resume, 6)

    whole = ranks("whole", 0, False)
    assert ranks("run", 3, False) == [None] * world_size, "killed"
    rest = ranks("run", 0, True)
    for (seen, *told), (resumed, *told_again) in zip(whole, rest, strict=True):
        assert resumed == seen[-len(resumed) :]
        assert len(resumed) in (5, 6), "three optimizer steps, of one batch at the end of an epoch"
        assert told == told_again
    assert all(told == whole[0][1:] for _, *told in whole), "evaluations are of all ranks"
    if world_size == 2:
        alone = run(tmp_path / "alone", data_of(kind, tmp_path), save_strategy="no", max_steps=20)
        path = str(tmp_path / "run" / "checkpoint-3")
        resumed = run(tmp_path / "rest", data_of(kind, tmp_path), save_strategy="no", max_steps=5, resume=path)
        order, rest = ([batch[0] for batch in trainer.seen] for trainer in (alone, resumed))
        place = next(number for number in range(len(order)) if order[number : number + len(rest)] == rest)
        assert all(any(batch[0] == ids for seen, *_ in whole for batch in seen[:6]) for ids in order[:place])


def test_a_process_that_refuses_its_state_tells_the_others(tmp_path: Path, launch: Launch) -> None:
    zero, (kind, words) = launch(2, "refused", tmp_path)
    assert kind == "StateError"
    assert zero == ["RankError", f"rank 1 failed: StateError: {words}"]


def test_random_masks_are_the_same_after_a_resume(tmp_path: Path) -> None:
    def masked() -> bf.Batches:
        data = bf.from_sequence([{"input_ids": row["input_ids"]} for row in rows(16)], shuffle=True)
        collator = DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3)
        return data.batch(4, window=8, collate_fn=collator).prefetch(2)

    whole = run(tmp_path, masked(), model=bert(), num_train_epochs=2)
    rest = run(tmp_path, masked(), model=bert(), num_train_epochs=2, resume=str(tmp_path / "checkpoint-3"))
    assert rest.seen == whole.seen[3:]


@pytest.mark.parametrize("kind", ["loader", "steps", "AsyncLoader"])
def test_loaders_are_resumed_too(kind: str, tmp_path: Path) -> None:
    def loader() -> Any:
        if kind == "AsyncLoader":
            return bf.AsyncLoader(indexed().loader(), "cpu", buckets=[8, 16])
        return indexed().loader(steps_per_epoch=4 if kind == "steps" else None)

    whole = run(tmp_path, loader(), num_train_epochs=2)
    for step in (1, 4, 6):
        rest = run(
            tmp_path / "rest",
            loader(),
            num_train_epochs=2,
            resume=str(tmp_path / f"checkpoint-{step}"),
            save_strategy="no",
        )
        assert rest.seen == whole.seen[step:]


def test_a_checkpoint_that_was_interrupted_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = run(tmp_path, indexed(), max_steps=4)
    for step, text in ((3, "{"), (4, "")):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    with caplog.at_level(logging.WARNING, "brimful"):
        rest = run(tmp_path, indexed(), max_steps=4, resume=True)
    assert rest.seen == whole.seen[2:]
    assert "checkpoint-4 was interrupted while it was written, and is passed over" in caplog.text


def test_a_checkpoint_that_is_written_over_an_older_one_is_none_until_it_is_whole(tmp_path: Path) -> None:
    class Stopped(Trainer):
        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            raise KeyboardInterrupt

    whole = run(tmp_path, indexed(), max_steps=3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, indexed(), base=Stopped, max_steps=3, resume=str(tmp_path / "checkpoint-2"))
    assert run(tmp_path, indexed(), max_steps=3, resume=True).seen == whole.seen[2:]
    run(tmp_path, indexed(), max_steps=3, save_only_model=True)
    with pytest.raises(StateError, match=r"checkpoint-3 has no brimful_state.json"):
        run(tmp_path, indexed(), max_steps=4, resume=True)


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", indexed(), max_steps=2)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    mixed = tmp_path / "mixed"
    shutil.copytree(checkpoint, mixed)
    shutil.copy(tmp_path / "run" / "checkpoint-2" / "brimful_state.json", mixed)
    with pytest.raises(
        StateError, match=r"is of step 2, and trainer_state\.json beside it of step 1: two checkpoints were"
    ):
        run(tmp_path / "run", indexed(), max_steps=2, resume=mixed)
    (mixed / "trainer_state.json").write_text("{")
    with pytest.raises(
        StateError, match=r"mixed was interrupted while it was written: .*_checkpoint=True passes over such"
    ):
        run(tmp_path / "run", indexed(), max_steps=2, resume=mixed)
    with pytest.raises(StateError, match=r"rows was 23 when it was saved and is 22 here"):
        run(tmp_path / "run", indexed(22), max_steps=2, resume=checkpoint)
    (checkpoint / "brimful_state.json").write_text("{")
    with pytest.raises(StateError, match=r"brimful_state.json is damaged: it is not JSON"):
        run(tmp_path / "run", indexed(), max_steps=2, resume=checkpoint)
    (checkpoint / "brimful_state.json").unlink()
    with pytest.raises(StateError, match=r"checkpoint-1 has no brimful_state.json: .* train\(\) without resuming"):
        run(tmp_path / "run", indexed(), max_steps=2, resume=checkpoint)
    (checkpoint / "trainer_state.json").unlink()
    (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").unlink()
    with pytest.raises(StateError, match=r"no checkpoint in .* was written to its end \(2 were begun\)"):
        run(tmp_path / "run", indexed(), max_steps=2, resume=True)
    run(tmp_path / "weights", indexed(), max_steps=1, save_only_model=True)
    with pytest.raises(StateError, match="or with save_only_model=True"):
        run(tmp_path / "weights", indexed(), max_steps=2, resume=True)


def test_other_settings_at_a_resume_are_said_and_lose_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run(tmp_path, indexed(), max_steps=8)
    with caplog.at_level(logging.WARNING, "brimful"):
        rest = run(
            tmp_path, indexed(), resume=str(tmp_path / "checkpoint-3"), max_steps=6, gradient_accumulation_steps=2
        )
    assert "resumed with gradient_accumulation_steps=2 (saved: 1): the data go on exactly" in caplog.text
    assert [seen[:2] for seen in rest.seen] == [seen[:2] for seen in whole.seen[3:]]


# -- losses


@pytest.mark.parametrize("kind", ["llama", "bert", "regression"])
def test_two_processes_of_unequal_tokens_are_one_that_accumulates_two(
    kind: str, tmp_path: Path, launch: Launch
) -> None:
    (alone,) = launch(1, "compared", tmp_path, kind, 2)
    together = launch(2, "compared", tmp_path, kind, 1)
    assert together[0] == together[1]
    assert alone["labels"] == together[0]["labels"]
    for name in ("weights", "predicted", "test_loss", "numbers"):
        torch.testing.assert_close(together[0][name], alone[name], rtol=1e-5, atol=1e-7)
    for one, two in zip(alone["logged"], together[0]["logged"], strict=True):
        assert one.keys() == two.keys()
        assert two == {key: value if value is None else pytest.approx(value, rel=1e-5) for key, value in one.items()}


@pytest.mark.parametrize("make", [llama, bert])
def test_accumulated_batches_are_one_batch(make: Any, tmp_path: Path) -> None:
    samples = [{"input_ids": [5, 6, 7, 8], "labels": labels} for labels in ([-100, -100, -100, 8], [5, 6, 7, 8])] * 2
    seen = {}
    for size, accumulated in ((4, 1), (2, 2), (1, 4)):
        trainer = run(
            tmp_path,
            bf.from_sequence(samples).batch(size),
            model=make(0.0).double(),
            optim="sgd",
            max_steps=2,
            save_strategy="no",
            gradient_accumulation_steps=accumulated,
        )
        losses = [log["loss"] for log in trainer.state.log_history[:-1]]
        seen[size] = losses + [weight.sum().item() for weight in trainer.model.parameters()]
    assert seen[2] == pytest.approx(seen[4], rel=1e-5, abs=1e-8)
    assert seen[1] == pytest.approx(seen[4], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("make", [llama, bert])
def test_batches_without_a_label_add_nothing(make: Any, tmp_path: Path) -> None:
    def data(asked: bool) -> bf.Batches:
        return bf.from_sequence([{"input_ids": [5, 6], "labels": [5, 6] if asked else [-100, -100]}] * 4).batch(2)

    before = make(0.0)
    weights = [weight.detach().clone() for weight in before.parameters()]
    for accumulated in (1, 2):
        trainer = run(
            tmp_path, data(False), model=before, optim="sgd", max_steps=1, gradient_accumulation_steps=accumulated
        )
        assert [loss for *_, loss in trainer.seen] == [0.0] * accumulated
        assert all(map(torch.equal, weights, before.parameters()))
    assert np.isnan(trainer.evaluate(data(False))["eval_loss"])
    assert np.isfinite(run(tmp_path, data(True), model=before, max_steps=1).seen[0][2])


def test_a_base_that_gives_means_and_says_so_is_weighed(tmp_path: Path) -> None:
    class Means(Trainer):
        loss_is_scaled_for_ga = False

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            assert num_items_in_batch is None or num_items_in_batch == 1
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    options = {"max_steps": 3, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    expected = run(tmp_path, indexed(), model=bert(0.0), **options)
    assert run(tmp_path, indexed(), model=bert(0.0), base=Means, **options).seen == expected.seen


@pytest.mark.parametrize("name", ["compute_loss", "get_batch_samples"])
def test_a_loss_that_nobody_weighs_is_an_error(name: str, tmp_path: Path) -> None:
    class Mine(trainer_class(Trainer)):  # type: ignore[misc]
        pass

    setattr(Mine, name, getattr(Trainer, name))  # without super()
    trainer = Mine(model=llama(), args=settings(tmp_path, max_steps=2), train_dataset=indexed())
    with pytest.raises(RuntimeError, match=r"was not weighed by its labels: Mine overrides .* trainer_class of that"):
        trainer.train()


def test_a_compute_loss_func_gets_the_number_of_labels(tmp_path: Path) -> None:
    given = []

    def own(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        given.append(num_items_in_batch.item())
        return outputs.logits.sum() / num_items_in_batch

    data = bf.from_sequence(
        [{"input_ids": [5, 6, 7], "labels": [5, 6, -100]}, {"input_ids": [5], "labels": [-100]}]
    ).batch(1)
    run(tmp_path, data, compute_loss_func=own, max_steps=2, save_strategy="no")
    assert given == [1, 1], "of a shifted row one; of none one, as nothing can be divided by 0"


# -- copies up to a static shape


def shaped(samples: list[dict[str, Any]]) -> bf.Batches:
    """Batches of 8 rows of 8 tokens, or 4 of 16, some of which are copies."""
    return bf.from_sequence(samples).batch(bf.StaticShapes([8, 16], 64), window=40, shuffle_batches=False)


def numbers(count: int = 23) -> list[dict[str, Any]]:
    return [{"input_ids": row["input_ids"], "labels": len(row["input_ids"]) / 8} for row in rows(count)]


def plain_squares(model: Any, samples: list[dict[str, Any]]) -> torch.Tensor:
    """The mean loss of some samples, one after another."""
    found = [model(input_ids=torch.tensor([one["input_ids"]])).logits[0, 0] - one["labels"] for one in samples]
    return torch.stack(found).square().mean()


def samples_of(batch: Any) -> list[dict[str, Any]]:
    real = [
        (ids, label)
        for ids, label, weight in zip(batch["input_ids"], batch["labels"], batch["sample_weights"])
        if weight
    ]
    return [{"input_ids": ids[ids > 0].tolist(), "labels": float(label)} for ids, label in real]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_compute_loss_func_gets_the_real_rows_of_batches_with_copies(accumulated: int, tmp_path: Path) -> None:
    data = shaped(numbers())
    batches = list(data)
    assert sum(int((batch["sample_weights"] == 0).sum()) for batch in batches)
    model, plain = regression(0.0).double(), regression(0.0).double()
    options = {"optim": "sgd", "num_train_epochs": 1, "save_strategy": "no", "gradient_accumulation_steps": accumulated}
    trainer = run(tmp_path, data, model=model, compute_loss_func=squares, eval_dataset=data, **options)
    losses, optimizer = [], torch.optim.SGD(plain.parameters(), 1e-2)
    for first in range(0, len(batches), accumulated):
        loss = plain_squares(
            plain, [one for batch in batches[first : first + accumulated] for one in samples_of(batch)]
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert [log["loss"] for log in trainer.state.log_history if "loss" in log] == pytest.approx(losses, rel=1e-6)
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        expected = float(plain_squares(plain, numbers()))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    result = trainer.predict(data)
    assert result.predictions.shape == (23, 1)
    assert result.label_ids.tolist() == [one["labels"] for batch in batches for one in samples_of(batch)]


@pytest.mark.parametrize("labels", [0.5, True, None])
def test_a_model_that_would_count_copies_in_its_own_loss_is_refused(labels: Any, tmp_path: Path) -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Any = None, labels: Any = None) -> dict[str, Any]:
            return {"loss": (self.weight * input_ids).mean()}

    more = {} if labels is None else {"labels": labels}
    data = shaped([{"input_ids": row["input_ids"]} | more for row in rows(23)])
    message = r"^\d of the \d rows of this batch are copies .*The loss of Mean counts them: .*Give Trainer a compute_loss_func"
    trainer = trainer_class(Trainer)(model=Mean(), args=settings(tmp_path, max_steps=9), train_dataset=data)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    if labels is not None:
        with pytest.raises(ValueError, match=message):
            trainer.evaluate(data)
    whole = bf.from_sequence([{"input_ids": [1] * 8} | more] * 8).batch(bf.StaticShapes([8], 64))
    assert trainer_class(Trainer)(model=Mean(), args=settings(tmp_path, max_steps=1), train_dataset=whole).train()


def test_a_model_that_takes_the_weights_computes_its_own_loss(tmp_path: Path) -> None:
    class Weighs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Any = None, labels: Any = None, sample_weights: Any = None) -> dict[str, Any]:
            return {"loss": (self.weight * labels * sample_weights).sum() / sample_weights.sum()}

    trainer = trainer_class(Trainer)(
        model=Weighs(), args=settings(tmp_path, max_steps=1), train_dataset=shaped(numbers())
    )
    expected = sum(one["labels"] for one in numbers()) / 23
    assert trainer.evaluate(shaped(numbers()))["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_integer_labels_of_copies_count_for_nothing(tmp_path: Path) -> None:
    data = shaped(rows(23))
    trainer = recorded(Trainer)(model=bert(0.0), args=settings(tmp_path), eval_dataset=data)
    other = trainer.evaluate(bf.from_sequence(rows(23)).batch(5))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)
    assert len(trainer.predict(data).predictions) == 23


def test_a_compute_loss_func_is_told_the_labels_of_a_batch_in_evaluations(tmp_path: Path) -> None:
    told = []

    def own(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        told.append((int(num_items_in_batch), len(labels)))
        return squares(outputs, labels, num_items_in_batch)

    trainer = recorded(Trainer)(model=regression(0.0), args=settings(tmp_path), compute_loss_func=own)
    trainer.evaluate(shaped(numbers()))
    assert sum(count for count, _ in told) == 23
    assert all(count == size for count, size in told)


# -- evaluation


def test_an_evaluation_weighs_by_labels_and_keeps_the_batches_order(tmp_path: Path) -> None:
    data = indexed()
    trainer = recorded(Trainer)(
        model=bert(0.0),
        args=settings(tmp_path),
        eval_dataset={"all": data, "two": data.take(2)},
        compute_metrics=lambda given: {"rows": len(given.predictions), "asked": int((given.label_ids != -100).sum())},
    )
    losses, asked, labels = 0.0, 0, []
    with torch.no_grad():
        for batch in data:
            logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            losses += float(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
            )
            asked += int((batch["labels"] != -100).sum())
            labels += [row[row != -100].tolist() for row in batch["labels"]]
    metrics = trainer.evaluate()
    assert metrics["eval_all_loss"] == pytest.approx(losses / asked, rel=1e-5)
    assert (metrics["eval_all_rows"], metrics["eval_all_asked"]) == (23, asked)
    assert metrics["eval_two_rows"] == sum(len(batch["lengths"]) for batch in data.take(2))
    assert trainer.evaluate(data)["eval_loss"] == metrics["eval_all_loss"]
    assert trainer.evaluate({"x": data})["eval_x_loss"] == metrics["eval_all_loss"]
    result = trainer.predict(data)
    assert [row[row != -100].tolist() for row in result.label_ids] == labels
    assert result.predictions.shape[:2] == result.label_ids.shape
    assert trainer.num_examples(trainer.get_test_dataloader(data)) == 23


def test_metrics_by_batch_are_told_the_last_one(tmp_path: Path) -> None:
    told = []

    def metric(given: Any, compute_result: bool) -> dict[str, float]:
        told.append((len(given.predictions), compute_result))
        return {"batches": len(told)}

    trainer = recorded(Trainer)(
        model=bert(), args=settings(tmp_path, batch_eval_metrics=True), eval_dataset=indexed(), compute_metrics=metric
    )
    assert trainer.evaluate()["eval_batches"] == len(indexed())
    assert sum(count for count, _ in told) == 23
    assert [last for _, last in told] == [False] * (len(told) - 1) + [True]


def test_generated_tokens_of_seq2seq(tmp_path: Path) -> None:
    set_seed(0)
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    samples = [{"input_ids": row["input_ids"], "labels": [*row["input_ids"][:5], 3]} for row in rows(12)]
    data = bf.from_sequence(samples).batch_by_tokens(48, window=12, length_column=("input_ids", "labels"))
    options = {"kind": Seq2SeqTrainingArguments, "predict_with_generate": True, "generation_max_length": 7}
    whole = run(
        tmp_path,
        data,
        base=Seq2SeqTrainer,
        model=T5ForConditionalGeneration(config),
        processing_class=tokenizer(),
        max_steps=2,
        **options,
    )
    result = whole.predict(data)
    assert len(result.predictions) == 12
    assert sorted(row[row > 0].tolist() for row in result.label_ids) == sorted(row["labels"] for row in samples)
    rest = run(
        tmp_path,
        data,
        base=Seq2SeqTrainer,
        model=T5ForConditionalGeneration(config),
        processing_class=tokenizer(),
        max_steps=2,
        resume=str(tmp_path / "checkpoint-1"),
        **options,
    )
    assert [seen[:2] for seen in rest.seen] == [seen[:2] for seen in whole.seen[1:]]
    assert [loss for *_, loss in rest.seen] == pytest.approx([loss for *_, loss in whole.seen[1:]], rel=1e-5)


@pytest.mark.filterwarnings("default::FutureWarning")  # of TRL's own arguments
def test_trls_trainer_is_resumed_and_evaluates(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")

    def data() -> bf.Batches:
        return bf.from_sequence(rows(16), shuffle=True).batch_by_tokens(48, window=8)

    options = {
        "base": trl.SFTTrainer,
        "kind": trl.SFTConfig,
        "processing_class": tokenizer(),
        "eval_dataset": data(),
        "num_train_epochs": 2,
    }
    whole = run(tmp_path, data(), **options)
    rest = run(tmp_path, data(), resume=str(tmp_path / "checkpoint-2"), **options)
    assert rest.seen == whole.seen[2:]
    assert whole.evaluate()["eval_loss"] == pytest.approx(whole.evaluate(data())["eval_loss"])


# -- lengths, keys, and what is refused


def test_epochs_of_streams_are_counted_once_or_told_by_the_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_shards(tmp_path)
    steps = sum(1 for _ in streamed(tmp_path))
    with caplog.at_level(logging.WARNING, "brimful"):
        counted = run(tmp_path / "counted", streamed(tmp_path), num_train_epochs=1, save_steps=steps - 1)
        assert (
            caplog.text.count(
                "counting the steps of an epoch of Batches(from_files > shuffle > batch > shard), by a pass"
            )
            == 1
        )
        assert (len(counted.seen), counted.state.epoch) == (steps, 1.0)
        assert counted.num_examples(counted.get_train_dataloader()) == 18
        caplog.clear()
        run(tmp_path / "counted", streamed(tmp_path), num_train_epochs=1, resume=True)
        assert "counting" not in caplog.text, "the checkpoint says it"
    told = run(tmp_path / "told", streamed(tmp_path), max_steps=steps + 1, save_strategy="no")
    epochs = [log["epoch"] for log in told.state.log_history[:-1]]
    assert epochs == [0.0] * (steps - 1) + [1.0, 1.0]


def test_what_repeats_is_trained_by_epochs_of_the_data(tmp_path: Path) -> None:
    repeated = bf.from_sequence(rows(23), shuffle=True, repeat=True).batch_by_tokens(48, window=12)
    trainer = run(tmp_path, repeated, num_train_epochs=1, save_strategy="no")
    assert trainer.seen == run(tmp_path, indexed(), num_train_epochs=1, save_strategy="no").seen
    endless = bf.from_iterable(rows(23), repeat=True).batch(4).prefetch(1)
    assert len(run(tmp_path, endless, max_steps=8, save_strategy="no").seen) == 8
    parts = [bf.from_iterable(rows(5), repeat=True), bf.from_iterable(rows(5, seed=1), repeat=True)]
    joined = bf.from_sequence(rows(5)) + bf.from_sequence(rows(5), repeat=True)
    mixed = [bf.interleave_datasets(parts, stop=stop).batch(4) for stop in ("first", "all", "all_repeat")]
    for data in (endless, joined.batch(4), *mixed, mixed[0].loader(), mixed[0].map(dict)):
        with pytest.raises(ValueError, match=r"eval_dataset repeats without end, .* give it batches.take\(n\)"):
            trainer_class(Trainer)(model=llama(), args=settings(tmp_path), eval_dataset=data)
        with pytest.raises(ValueError, match=r"train_dataset has no end, .* give max_steps"):
            run(tmp_path, data)
    with pytest.raises(ValueError, match=r"^train_dataset has no batch .*: Batches\(from_sequence > batch > shard\)$"):
        run(tmp_path, bf.from_sequence([]).batch(4))
    for data in (mixed[0], mixed[0].loader()):
        assert len(run(tmp_path, data, max_steps=2, save_strategy="no").seen) == 2
    for data in (mixed[0].take(3), bf.interleave_datasets(parts).take(12).batch(4)):
        assert len(run(tmp_path, data, num_train_epochs=1, save_strategy="no").seen) == 3


def test_the_keys_are_those_that_forward_takes(tmp_path: Path) -> None:
    def keys(model: Any, data: Any, **options: Any) -> set[str]:
        trainer = recorded(Trainer)(model=model, args=settings(tmp_path, **options), train_dataset=data)
        return set(next(iter(trainer.get_train_dataloader())))

    packed = bf.from_sequence(rows(9)).pack(16)
    boundaries = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
    assert keys(llama(), packed) == {"input_ids", "labels", "position_ids", "use_cache"} | boundaries
    assert keys(llama(), indexed()) == {"input_ids", "labels", "attention_mask"}
    assert "number" in keys(llama(), indexed(), remove_unused_columns=False)
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM.forward takes none of the keys of this batch \(tokens, lengths\)"
    ):
        keys(llama(), indexed().map(lambda batch: {"tokens": batch["input_ids"], "lengths": batch["lengths"]}))
    with pytest.raises(
        TypeError, match=r"a trainer wants a dict of tensors, and this batch is a tuple: leave out enumerate"
    ):
        keys(llama(), indexed().enumerate())


def test_a_batch_that_may_be_a_filler_and_does_not_say_so_is_refused() -> None:
    shared = own_share("train_dataset", bf.from_sequence(rows(9)).batch(9), 1, 2, 1)
    reader = ModelInputs(frozenset({"input_ids"}), "Model", shared=True)
    assert [reader.read(batch).rows for batch in shared] == [False]
    (batch,) = shared.map(lambda batch: {"input_ids": batch["input_ids"]})
    with pytest.raises(
        ValueError, match=r"nothing says whether this batch is a filler, .* as {\*\*batch, \.\.\.}, and"
    ):
        reader.read(batch)


@pytest.mark.parametrize("kind", ["batches", "loader", "AsyncLoader"])
def test_looking_at_the_training_data_moves_nothing(kind: str, tmp_path: Path) -> None:
    data: Any = indexed() if kind == "batches" else indexed().loader()
    if kind == "AsyncLoader":
        data = bf.AsyncLoader(data, "cpu")
    trainer = recorded(Trainer)(
        model=llama(), args=settings(tmp_path, max_steps=2, save_strategy="no"), train_dataset=data
    )
    first = [next(iter(trainer.get_train_dataloader()))["input_ids"].tolist() for _ in range(2)]
    trainer.train()
    assert first == [trainer.seen[0][0]] * 2
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].tolist() == first[0]


def test_whoever_else_reads_the_run_is_found_out(tmp_path: Path) -> None:
    data = indexed().loader()

    class Reads(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any, **kwargs: Any) -> None:
            next(iter(train_dataloader))

    with pytest.raises(
        RuntimeError, match="2 batches were taken for an optimizer step and 1 were trained on: something else reads"
    ):
        run(tmp_path, data, callbacks=[Reads()], max_steps=2)


def test_other_data_are_the_bases_matter(tmp_path: Path) -> None:
    samples = [{"input_ids": row["input_ids"][:1] * 4, "labels": row["input_ids"][:1] * 4} for row in rows(12)]

    def losses(cls: Any, **more: Any) -> Any:
        trainer = cls(model=llama(), args=settings(tmp_path, max_steps=3), train_dataset=samples, **more)
        trainer.train()
        return [
            {key: log.get(key) for key in ("loss", "epoch", "eval_loss")} for log in trainer.state.log_history
        ], trainer

    expected, plain = losses(Trainer, eval_dataset=samples)
    found, ours = losses(trainer_class(Trainer), eval_dataset=samples)
    assert found == expected
    assert ours.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert not list(tmp_path.rglob("brimful_state.json"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"auto_find_batch_size": True}, r"find out before what fits, with bf.memory.probe"),
        ({"data_collator": len}, r"a data_collator is not called on batches, .* collate_fn=data_collator"),
        (
            {"train_dataset": bf.from_sequence(rows(3))},
            r"train_dataset is samples \(a IndexedDataset\), .* give it data.batch_by_tokens",
        ),
        ({"train_dataset": bf.from_sequence(rows(3)).loader()}, r"train_dataset is samples \(a TorchLoader\)"),
        ({"eval_dataset": {"a": bf.from_sequence(rows(3))}}, r"eval_dataset\['a'\] is samples"),
        ({"eval_dataset": indexed().loader(steps_per_epoch=2)}, r"steps_per_epoch=2, .* batches.take\(2\)"),
        (
            {"eval_dataset": bf.from_sequence(rows(3), repeat=True).batch(2)},
            r"repeats without end, .* batches.take\(n\)",
        ),
        ({"eval_dataset": indexed().shard(0, 1, uneven="wrap")}, r"uneven='wrap', which counts samples twice"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)
def test_what_cannot_be_right_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    names = ("data_collator", "train_dataset", "eval_dataset")
    more = {"train_dataset": indexed()} | {name: value for name, value in options.items() if name in names}
    args = settings(tmp_path, **{name: value for name, value in options.items() if name not in names})
    with pytest.raises((TypeError, ValueError), match=words):
        trainer_class(Trainer)(model=llama(), args=args, **more)


def test_ways_of_parallelism_that_are_not_served_are_refused(tmp_path: Path) -> None:
    class Context(Trainer):
        def get_cp_size(self) -> int:
            return 2

    with pytest.raises(ValueError, match=r"context parallelism \(2 processes a sequence\) .* or data parallelism"):
        trainer_class(Context)(model=llama(), args=settings(tmp_path), train_dataset=indexed())
    args = settings(tmp_path)
    args._n_gpu = 2
    with pytest.raises(ValueError, match=r"nn.DataParallel would cut each batch into 2 parts .* with torchrun"):
        trainer_class(Trainer)(model=llama(), args=args, train_dataset=indexed())
    with pytest.raises(
        ValueError, match=r"as 2 of them hold one copy of the model .* batches.shard\(rank, world_size\)"
    ):
        own_share("train_dataset", indexed(), 0, 4, 2)
    with pytest.raises(
        ValueError, match=r"there are 2 processes, .* of train_dataset are .* say batches.shard\(\).loader\(\)"
    ):
        own_share("train_dataset", indexed().loader(), 0, 2, 1)


def test_a_transformers_that_works_otherwise_is_found_out(tmp_path: Path) -> None:
    class Unsaved(trainer_class(Trainer)):  # type: ignore[misc]
        def _save_rng_state(self, output_dir: str) -> None:
            pass

    trainer = Unsaved(model=llama(), args=settings(tmp_path, max_steps=1), train_dataset=indexed())
    with pytest.raises(RuntimeError, match=r"the checkpoint of step 1 has no state of the data: .* use transformers 5"):
        trainer.train()
    with pytest.raises(RuntimeError, match="passes over fewer batches after a resume than Trainer does"):
        trainer.get_batch_samples(iter([SKIPPED]), 1, torch.device("cpu"))


def test_data_that_are_not_named_are_an_error(tmp_path: Path) -> None:
    class Starred(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    with pytest.raises(TypeError, match="name the data that you give a trainer: train_dataset=batches"):
        trainer_class(Starred)(llama(), settings(tmp_path), None, indexed())
    trainer = trainer_class(Starred)(
        llama(), settings(tmp_path, max_steps=1, save_strategy="no"), train_dataset=indexed()
    )
    assert trainer.train().global_step == 1


def test_one_loader_is_not_both_trained_on_and_evaluated(tmp_path: Path) -> None:
    loader = indexed().loader()
    with pytest.raises(
        ValueError, match="eval_dataset is the loader of train_dataset, and an evaluation would move it"
    ):
        trainer_class(Trainer)(model=llama(), args=settings(tmp_path), train_dataset=loader, eval_dataset=loader)


def test_settings_that_do_nothing_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "brimful"):
        trainer_class(Trainer)(
            model=llama(), args=settings(tmp_path, dataloader_drop_last=True), train_dataset=indexed()
        )
    assert "dataloader_drop_last of the trainer's arguments does nothing to batches" in caplog.text


def test_a_class_is_made_once_and_of_trainers_only() -> None:
    made = trainer_class(Trainer)
    assert trainer_class(Trainer) is made is trainer_class(made)
    assert issubclass(trainer_class(Seq2SeqTrainer), Seq2SeqTrainer)
    with pytest.raises(TypeError, match="takes transformers' Trainer or a class made of it"):
        trainer_class(dict)  # type: ignore[arg-type]


def test_batches_that_are_made_for_steps_of_several_set_the_accumulation(tmp_path: Path) -> None:
    batches = bf.from_sequence(rows(40), shuffle=True).batch_by_tokens(64, micro_batches=2)
    args = settings(tmp_path, max_steps=3)
    taken: list[Any] = []
    trainer = trainer_class(Trainer)(
        model=llama(), args=args, train_dataset=batches.map(lambda batch: taken.append(0) or batch)
    )
    assert (trainer.args.gradient_accumulation_steps, args.gradient_accumulation_steps) == (2, 1)
    trainer.train()
    assert len(taken) == 6
    other = settings(tmp_path, gradient_accumulation_steps=3)
    words = r"optimizer steps of 2 \(micro_batches=2\), .* over 3 .* Set gradient_accumulation_steps=2, or .* micro_batches=3"
    with pytest.raises(ValueError, match=words):
        trainer_class(Trainer)(model=llama(), args=other, train_dataset=batches)


def test_arrays_are_refused(tmp_path: Path) -> None:
    batches = bf.from_sequence(rows(40)).batch_by_tokens(64)
    words = r"^these batches are numpy arrays, and a trainer's model takes tensors. Leave numpy"
    with pytest.raises(ValueError, match=words):
        trainer_class(Trainer)(model=llama(), args=settings(tmp_path), train_dataset=batches.numpy())
    trainer = trainer_class(Trainer)(model=llama(), args=settings(tmp_path), train_dataset=batches)
    with pytest.raises(ValueError, match=words):
        trainer.evaluate(batches.numpy())


# -- models and trainers that are not served


def packed() -> bf.Batches:
    return bf.from_sequence(rows(8)).pack(16, rows=2)


SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MIXES: dict[str, Any] = {
    "opt": lambda: OPTForCausalLM(OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=16)),
    "mamba": lambda: MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1)),
    "bart": lambda: BartForCausalLM(BartConfig(vocab_size=32, d_model=16, decoder_layers=1, decoder_attention_heads=2)),
    "bert": lambda: BertLMHeadModel(BertConfig(**SMALL, intermediate_size=16, is_decoder=True)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_ff=16, d_kv=8, num_layers=1, decoder_start_token_id=0)
    ),
}


@pytest.mark.parametrize("kind", MIXES)
def test_packed_batches_are_refused_for_models_that_mix_their_samples(kind: str, tmp_path: Path) -> None:
    model, make = MIXES[kind](), trainer_class(Trainer)
    message = rf"in {type(model).__name__} samples see each other at .*Give it padded batches: data\.batch_by_tokens\(\.\.\.\)"
    for data in (packed(), packed().loader(), packed().map(dict).prefetch(1)):
        trainer = make(model=model, args=settings(tmp_path, max_steps=1), train_dataset=data, eval_dataset=packed())
        with pytest.raises(ValueError, match=message):
            trainer.train()
    with pytest.raises(ValueError, match=message):
        make(model=model, args=settings(tmp_path)).evaluate(packed())
    make(model=model, args=settings(tmp_path), train_dataset=indexed(), eval_dataset=indexed())


def test_packed_batches_are_taken_by_a_model_that_keeps_their_samples_apart(tmp_path: Path) -> None:
    assert len(run(tmp_path, packed(), max_steps=1, save_strategy="no").seen) == 1, "llama is served"


@pytest.mark.parametrize(("isolation", "looks"), [("raise", 1), ("off", 0)])
def test_what_the_check_of_packed_batches_copies_from_the_device_it_copies_once(
    isolation: str, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(guard, "segments_of", lambda batch: found.append(1) or segments_of(batch))
    made = trainer_class(Trainer, isolation=isolation)
    args = settings(tmp_path, max_steps=5, save_strategy="no")
    made(model=llama(), args=args, train_dataset=packed()).train()
    assert len(found) == looks


def test_other_trainers_are_refused_by_name() -> None:
    trl = pytest.importorskip("trl")
    for base in (trl.KTOTrainer, type("Mine", (trl.GRPOTrainer,), {})):
        name = {trl.KTOTrainer: "KTOTrainer"}.get(base, "GRPOTrainer")
        message = (
            rf"^trainer_class does not serve TRL's {name}, which makes batches of its own columns and takes none that are made "
            rf"already: of TRL's it serves SFTTrainer, DPOTrainer, RewardTrainer\. Give {name} itself samples, a `datasets` data"
        )
        with pytest.raises(TypeError, match=message):
            trainer_class(base)
    assert issubclass(trainer_class(type("Mine", (trl.SFTTrainer,), {})), trl.SFTTrainer)
    theirs = type("SentenceTransformerTrainer", (Trainer,), {"__module__": "sentence_transformers.trainer"})
    with pytest.raises(
        TypeError, match="does not serve SentenceTransformerTrainer of sentence-transformers, which tokenizes"
    ):
        trainer_class(theirs)


def preferences(count: int = 24, **how: Any) -> bf.Batches:
    draw = np.random.default_rng(0)
    tokens = lambda most: draw.integers(4, VOCABULARY, draw.integers(1, most)).tolist()  # noqa: E731
    rows = [
        {"prompt_input_ids": tokens(6), "chosen_input_ids": tokens(9), "rejected_input_ids": tokens(14)}
        for _ in range(count)
    ]
    return bf.from_sequence(rows, shuffle=True).batch_by_tokens(120, window=12, **({"layout": "paired"} | how))


def of_preferences(name: str, **options: Any) -> dict[str, Any]:
    trl = pytest.importorskip("trl")
    model = llama(dropout=0.0)
    if name == "Reward":
        set_seed(0)
        model = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1, pad_token_id=0))
    more = {"ref_model": llama(dropout=0.0)} if name == "DPO" else {}
    kind, base = getattr(trl, f"{name}Config"), getattr(trl, f"{name}Trainer")
    return {
        "kind": kind,
        "base": base,
        "model": model,
        "processing_class": tokenizer(),
        "bf16": False,
        **more,
        **options,
    }


@pytest.mark.filterwarnings("default::FutureWarning")  # of TRL's own arguments
@pytest.mark.parametrize("name", ["DPO", "Reward"])
def test_trls_trainers_of_preferences_are_resumed_and_evaluate(name: str, tmp_path: Path) -> None:
    made = lambda **more: of_preferences(name, num_train_epochs=2, eval_dataset=preferences(), **more)  # noqa: E731
    whole = run(tmp_path, preferences(), **made())
    rest = run(tmp_path, preferences(), resume=str(tmp_path / "checkpoint-2"), **made())
    assert len(whole.seen) == 2 * len(preferences())
    assert rest.seen == whole.seen[2:]
    assert whole.evaluate()["eval_loss"] == pytest.approx(whole.evaluate(preferences())["eval_loss"])


@pytest.mark.filterwarnings("default::FutureWarning")  # of TRL's own arguments
@pytest.mark.parametrize("name", ["DPO", "Reward"])
def test_a_step_of_preferences_is_the_mean_over_its_pairs(name: str, tmp_path: Path) -> None:
    how = {"max_steps": 1, "save_strategy": "no", "learning_rate": 1e-1, "optim": "sgd"}
    one = run(tmp_path, preferences().take(2), gradient_accumulation_steps=2, **of_preferences(name, **how)).model
    batches = list(preferences().take(2))
    assert len({len(batch["input_ids"]) for batch in batches}) == 2, "means of means would be another one"
    width = max(batch["input_ids"].shape[1] for batch in batches)

    def joined(key: str) -> torch.Tensor:
        padded = [torch.nn.functional.pad(batch[key], (0, width - batch[key].shape[1])).chunk(2) for batch in batches]
        return torch.cat([side[number] for number in range(2) for side in padded])

    whole = {key: joined(key) for key in ("input_ids", "attention_mask", "completion_mask")} | {"num_sides": 2}
    other = run(tmp_path, preferences().take(1).map(lambda batch: whole), **of_preferences(name, **how)).model
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("default::FutureWarning")  # of TRL's own arguments
def test_trainers_of_preferences_take_paired_batches_alone(tmp_path: Path) -> None:
    words = r"DPOTrainer takes batches of layout='paired' with 2 sides and the keys input_ids, attention_mask, completion_mask"
    pairs = preferences(layout="padded", length_column=("chosen_input_ids", "rejected_input_ids"))
    unlabelled = preferences().map(
        lambda batch: {name: one for name, one in batch.items() if name != "completion_mask"}
    )
    for data in (pairs, unlabelled):
        with pytest.raises(ValueError, match=words):
            run(tmp_path, data, **of_preferences("DPO", max_steps=1))


@pytest.mark.parametrize("kind", ["batches", "stream", "loader", "loader of a stream", "evaluated", "evaluated loader"])
def test_a_plain_trainer_hears_of_trainer_class(kind: str, tmp_path: Path) -> None:
    stream = bf.from_iterable(rows(23)).batch(4)
    given: Any = {"batches": indexed(), "stream": stream, "loader of a stream": stream.loader(), "evaluated": indexed()}
    trainer = Trainer(
        model=llama(), args=settings(tmp_path, max_steps=1), train_dataset=given.get(kind, indexed().loader())
    )
    with pytest.raises(TypeError, match=r"Hugging Face's Trainer takes batches by .*\.trainer_class\(Trainer\)$"):
        trainer.evaluate(trainer.train_dataset) if "evaluated" in kind else trainer.train()
