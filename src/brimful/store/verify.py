"""Whether a store is what was written: every byte of it is read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brimful.errors import DataError
from brimful.store.manifest import Manifest, check_size
from brimful.store.part import sha256_of


def verify_store(path: str | Path, report: Callable[[int], None] = lambda bytes: None) -> list[str]:
    """What is wrong with a finished store: a sentence for each file that is missing or damaged, none where it is whole.

    Args:
        report: is told how many bytes were read since the last call.
    Raises:
        FileNotFoundError: there is no store, or one that is not finished.
        StateError: another release of brimful wrote it.
    Price: about .7 ns a byte.
    """
    folder = Path(path)
    try:
        manifest = Manifest.load(folder)
    except DataError as error:
        return [str(error)]
    problems = []
    for file in [*manifest.files, *manifest.side_files]:
        try:
            found = sha256_of(check_size(folder, file))
        except DataError as error:
            problems.append(str(error))
        else:
            if found != file.sha256:
                problems.append(
                    f"{folder / file.name} is damaged: its sha256 is {found[:16]}..., and the manifest says {file.sha256[:16]}..."
                )
        report(file.bytes)
    return problems
