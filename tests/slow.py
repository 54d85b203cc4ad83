"""Which tests `make test` leaves to `make slow`: those that take longest, as tests/slow.txt lists them.

    python -m tests.slow LOG [SHARE]

LOG is what `pytest --durations=0` printed of all tests, on a quiet machine. The list gets the tests that take longest, all
parameters of a test together, until the others take SHARE of the time (.4 by default).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("slow.txt")
_TIMED: Final = re.compile(r"^([\d.]+)s (?:setup|call|teardown)\s+(tests/\S+?\.py::[^\[\s]+)")


def slow() -> frozenset[str]:
    """The tests that are listed: paths with names, without parameters."""
    return frozenset(LIST.read_text().split())


def longest(log: str, share: float) -> list[str]:
    """The tests that take longest, until the others take so much of the time."""
    seconds: dict[str, float] = {}
    for line in log.splitlines():
        if found := _TIMED.match(line):
            seconds[found[2]] = seconds.get(found[2], 0.0) + float(found[1])
    left, chosen = sum(seconds.values()), []
    most = share * left
    for name, taken in sorted(seconds.items(), key=lambda one: -one[1]):
        if left <= most:
            break
        left -= taken
        chosen.append(name)
    return sorted(chosen)


if __name__ == "__main__":
    share = float(sys.argv[2]) if len(sys.argv) > 2 else 0.4
    LIST.write_text("".join(f"{name}\n" for name in longest(Path(sys.argv[1]).read_text(), share)))
