"""Inference over some texts in a process that kills itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import brimful as bf
from brimful.inference import open_window

TEXTS = ["x" * (number * 7 % 23) + str(number) for number in range(100)]


def run_and_be_killed(output: str, asked: str, most: int) -> None:
    """Notes what is asked, and ends as by `kill -9` when that is more than so many texts; results are written at once."""
    open_window.SECONDS = 0.0  # type: ignore[misc]

    def spelled(batch: dict[str, Any]) -> list[str]:
        with Path(asked).open("a") as file:
            file.write("".join(f"{text}\n" for text in batch["text"]))
        if len(Path(asked).read_text().splitlines()) > most:
            os.kill(os.getpid(), signal.SIGKILL)
        return [text.upper() for text in batch["text"]]

    bf.map_batches_in_order(spelled, TEXTS, 4, output=output, window=100)
