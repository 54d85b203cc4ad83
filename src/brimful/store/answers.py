"""Answers about the rows of a store, kept in a file beside them: a bit a row, and a checksum."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from brimful.core.errors import logger
from brimful.core.whole import write_whole
from brimful.index.index import Ask
from brimful.store.journal import one_writer

EXTENSION: Final = ".bits"
TIMEOUT_SECONDS: Final = 3600.0
"""How long others wait for one who asks and shows no progress."""
CHECKSUM_BYTES: Final = 4


def kept_answers(folder: Path, name: str, count: int, ask: Ask) -> NDArray[np.bool_]:
    """The answers in a file of a store; where there is none, those of `ask`, which are written to it.

    One process of this machine asks, others wait for its file. Where the folder cannot be written, or
    the disk is full, they stay in memory, which is logged.

    Args:
        name: of the file, without its extension: other data, another function or version has another one.
        count: how many answers there are.
        ask: is given a function to be called now and then, which shows those who wait that there is progress.
    Raises:
        TimeoutError: another process, which is named, asks, and has made no progress for an hour.
    """
    path = folder / f"{name}{EXTENSION}"
    if (found := _read(path, count)) is not None:
        return found
    note = path.with_suffix(".asking")
    try:
        note.touch()
    except OSError as error:
        logger.warning("%s is kept in memory, not beside the store: %s", name, error)
        return ask(lambda: None)
    lock = path.with_suffix(".lock")
    with one_writer(folder, TIMEOUT_SECONDS, lock.name, note.name):
        try:
            if (found := _read(path, count, again=True)) is None:
                words = {"writer": f"process {os.getpid()} on {socket.gethostname()}"}
                with suppress(OSError):
                    note.write_text(json.dumps(words), "utf-8")
                found = ask(lambda: os.utime(note))
                bits = np.packbits(found).tobytes()
                try:
                    write_whole(path, bits + crc32(bits).to_bytes(CHECKSUM_BYTES, "little"))
                except OSError as error:
                    logger.warning("%s is kept in memory, not beside the store: %s", name, error)
        finally:
            for left in (note, lock):
                left.unlink(missing_ok=True)
    return found


def _read(path: Path, count: int, again: bool = False) -> NDArray[np.bool_] | None:
    """The answers in a file; None where it is not there, or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    bits, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(bits) != -(-count // 8) or crc32(bits).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        if not again:
            logger.warning("%s is damaged: all rows are read again for it", path)
        return None
    logger.info("%s says which of %s samples are kept", path, f"{count:,}")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
