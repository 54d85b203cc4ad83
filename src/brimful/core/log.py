"""What brimful logs goes where the program has it go, and to standard error where the user asks for that."""

from __future__ import annotations

import logging
import os
from typing import Final

LOG_VARIABLE: Final = "BRIMFUL_LOG_LEVEL"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def set_up_log() -> None:
    """Writes the logger `brimful` to standard error from the level on that BRIMFUL_LOG_LEVEL names, if it names one.

    Lines look like `[2026-01-31 12:00:00,000 - DEBUG] original length: 179, bucket length: 192, padding length: 13`.
    """
    level = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if not level:
        return
    logger = logging.getLogger("brimful")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(asctime)s - %(levelname)s] %(message)s"))
    logger.addHandler(handler)
    if level in LOG_LEVELS:
        logger.setLevel(level.upper())
    else:
        logger.warning("%s must be one of %s (got %r)", LOG_VARIABLE, ", ".join(LOG_LEVELS), level)
