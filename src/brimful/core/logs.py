"""What the environment says about the log."""

from __future__ import annotations

import logging
import os
from typing import Final

from brimful.core.errors import logger

VARIABLE: Final = "BRIMFUL_LOG_LEVEL"
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def set_up() -> None:
    """Writes the logger `brimful` to standard error from the level on that BRIMFUL_LOG_LEVEL names, if it names one.

    Lines look like `[2026-01-31 12:00:00,000 - DEBUG] original length: 179, bucket length: 192, padding length: 13`.
    """
    level = os.environ.get(VARIABLE, "").strip().lower()
    if not level:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(asctime)s - %(levelname)s] %(message)s"))
    logger.addHandler(handler)
    if level in LEVELS:
        logger.setLevel(level.upper())
    else:
        logger.warning("%s must be one of %s (got %r)", VARIABLE, ", ".join(LEVELS), level)
