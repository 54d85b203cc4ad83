"""Map-style data sets whose samples are known once they were made. Processes import this module, and not torch."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 120


class Augmented:
    """Samples whose length is known once they were made; the file has the number of each call and who made it."""

    def __init__(self, notes: Path | None = None, count: int = COUNT) -> None:
        self.notes, self.count = notes, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(f"{number} {os.getpid()}\n")
        ids = np.arange(1 + number * 7 % 23)
        return {"input_ids": ids, "number": number, "pixels": np.full(2, number, np.float32)}


class Random(Augmented):
    """With random lengths and values."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__(count=count)
        self.own = np.random.default_rng(3)

    def __getitem__(self, number: int) -> dict[str, Any]:
        size = 1 + random.randrange(20)
        ids = np.random.randint(0, 9, size)
        return {"input_ids": ids, "x": np.random.random(), "y": self.own.random(), "number": number}


class WithTorch(Augmented):
    """With random values of torch's, whose generator begins alike in every process."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        return {"x": torch.rand(()).item(), "input_ids": [number]}


class Several(Augmented):
    """With `__getitems__`, as Subset of torch has it."""

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(f"asked for {len(numbers)}\n")
        return [Augmented(count=self.count)[number] for number in numbers]


class Failing(Augmented):
    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 77:
            raise OSError("image 77 is damaged")
        return super().__getitem__(number)


class FailingTogether(Failing):
    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]


class TooFew(Augmented):
    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers[1:]]


class Odd(Augmented):
    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number) | {"number": "seven" if number == 77 else number}


class NoRow(Augmented):
    def __getitem__(self, number: int) -> Any:
        return 3.5 if number == 77 else super().__getitem__(number)


class Killed(Augmented):
    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


class Unsent(Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
