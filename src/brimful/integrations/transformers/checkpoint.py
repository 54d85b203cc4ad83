"""Where the data of a checkpoint of Trainer's stand: a file beside its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from brimful.core.atomic import write_atomically
from brimful.core.states import check_form
from brimful.plan.errors import StateError, logger

FILE: Final = "brimful_state.json"
VERSION: Final = 1
NAMES: Final = ("loader", "global_step", "world_size", "gradient_accumulation_steps", "steps", "samples")
TRAINER_FILE: Final = "trainer_state.json"
"""What Trainer writes last: a checkpoint without it was interrupted."""


def save(folder: str, **values: Any) -> None:
    """Writes the file, all or nothing."""
    assert values.keys() == {*NAMES}
    write_atomically(
        Path(folder) / FILE, json.dumps({"version": VERSION} | values, indent=1).encode() + b"\n", alone=True
    )


def read(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file holds.

    Raises:
        StateError: there is none, or it is damaged, of another release or of another step than the rest of the checkpoint; the
            checkpoint was interrupted while it was written; with the remedy.
    """
    path = Path(folder) / FILE
    try:
        saved = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StateError(
            f"{folder} has no {FILE}: it was saved by another trainer, or with save_only_model=True, so nobody knows where its "
            "data stood; resume from another checkpoint, or load its weights (from_pretrained) and train() without resuming"
        ) from None
    except ValueError as error:
        raise StateError(f"{path} is damaged: it is not JSON ({error})") from error
    check_form(saved, *NAMES, version=VERSION, what=str(path))
    step = _step_of(Path(folder))
    if step is None:
        raise StateError(
            f"{folder} was interrupted while it was written: {TRAINER_FILE}, which Trainer writes last, is missing or damaged; "
            "resume from another checkpoint (resume_from_checkpoint=True passes over such)"
        )
    if step != saved["global_step"]:
        raise StateError(
            f"{path} is of step {saved['global_step']:,}, and {TRAINER_FILE} beside it of step {step:,}: two checkpoints were "
            "mixed; resume from another one"
        )
    return saved  # type: ignore[no-any-return]


def begin(folder: str) -> None:
    """What stands in a folder is no checkpoint from here on, until all of the next one is written into it: a run that resumed
    from an older checkpoint comes to the names of those after it again."""
    for name in (TRAINER_FILE, FILE):
        (Path(folder) / name).unlink(missing_ok=True)


def last_complete(folder: str | None) -> str | None:
    """The last checkpoint that was written to its end, None where there is no checkpoint.

    Raises:
        StateError: all were interrupted.
    """
    found = {}
    for path in Path(folder).iterdir() if folder and os.path.isdir(folder) else ():
        prefix, _, step = path.name.rpartition("-")
        if prefix == PREFIX_CHECKPOINT_DIR and step.isdecimal() and path.is_dir():
            found[int(step)] = path
    for _, path in sorted(found.items(), reverse=True):
        if _step_of(path) is not None:
            return str(path)
        logger.warning("%s was interrupted while it was written, and is passed over", path)
    if found:
        raise StateError(f"no checkpoint in {folder} was written to its end ({len(found)} were begun); train() anew")
    return None


def _step_of(path: Path) -> int | None:
    """The optimizer step that a checkpoint is of; None of one that was interrupted."""
    try:
        return int(json.loads((path / TRAINER_FILE).read_bytes())["global_step"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
