"""What a process reads of the data that a trainer was given, and how long an epoch of it is."""

from __future__ import annotations

from typing import Any

import torch

from brimful.integrations.transformers.data import (
    Length,
    batches_of,
    can_count,
    counted_length,
    known_length,
    own_share,
    refuse_evaluation,
)
from brimful.integrations.transformers.settings import base_model, refuse_packed


class Held:
    """Worked out once for each object that a trainer was given, whatever it is asked for."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._own: dict[int, tuple[Any, Any]] = {}  # by identity, which the object held beside keeps
        self._lengths: dict[int, Length] = {}

    def own(self, name: str, given: Any) -> Any:
        """What this process reads of something of ours."""
        if id(given) not in self._own:
            trainer = self._trainer
            accelerator = trainer.accelerator
            own = own_share(name, given, accelerator.process_index, accelerator.num_processes, trainer.get_tp_size())
            refuse_packed(name, batches_of(own), base_model(trainer.model))
            self._own[id(given)] = given, own
        own = self._own[id(given)][1]
        if name != "train_dataset":
            refuse_evaluation(name, own, given is self._trainer.train_dataset)
        return own

    def known(self, own: Any) -> Length:
        """What is known of its length without reading."""
        if id(own) not in self._lengths:
            self._lengths[id(own)] = known_length(own)
        return self._lengths[id(own)]

    def length(self, own: Any, saved: dict[str, Any] | None) -> Length:
        """How long an epoch of Trainer's is."""
        length = self.known(own)
        if length.steps is not None:
            return length
        args, accelerator = self._trainer.args, self._trainer.accelerator
        if self.is_run(own):
            return Length(args.max_steps * args.gradient_accumulation_steps, None, of_data=False)
        if saved is not None and saved["samples"] is not None and saved["world_size"] == accelerator.num_processes:
            length = Length(saved["steps"], saved["samples"])  # that of the run before
        else:
            counted = counted_length(own)
            samples = torch.tensor(counted.samples, device=accelerator.device)
            length = Length(counted.steps, int(accelerator.gather(samples).sum()) // self._trainer.get_tp_size())
        self._lengths[id(own)] = length
        return length

    def is_run(self, own: Any) -> bool:
        """Whether an epoch of unknown length is the whole run, of max_steps; else its steps are counted.

        Raises:
            ValueError: neither is possible.
        """
        args = self._trainer.args
        by_epochs = "epoch" in (args.eval_strategy, args.save_strategy, args.logging_strategy)
        if args.max_steps > 0 and not (by_epochs and can_count(own)):
            return True
        if not can_count(own) and self.known(own).steps is None:
            raise ValueError(
                "train_dataset has no end, so num_train_epochs says nothing: give max_steps in the trainer's arguments"
            )
        return False
