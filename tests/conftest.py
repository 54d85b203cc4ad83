"""How hypothesis runs here: the same examples each time; in `make soak` new ones, and many."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.effort import BEFORE
from tests.slow import slow

# There is a worker for each core, and tensors are small here: torch's threads would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=CHECKS)
settings.register_profile("soak", deadline=None, max_examples=1_000, print_blob=True, suppress_health_check=CHECKS)
settings.register_profile(
    "mutant", settings.get_profile("same"), database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two a core: many a test waits for a server that stalls, or for a process that starts. 8 at most, of about 1 GB each."""
    return min(8, 2 * (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """No examples are looked for in tests, where there are none: each worker would import all that tests start as programs."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that `make test` leaves to `make slow`."""
    listed = slow()
    for item in items:
        if item.nodeid.partition("[")[0] in listed:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """A million objects have been imported by now, that no `gc.collect` of a test, or of the memory guard, need look at: each
    would take .5 s."""
    gc.freeze()


def pytest_configure() -> None:
    """Ctrl-C works also where tests run in the background of a shell, which has it ignored; a mutant's tests must run
    against the mutant."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if where := os.environ.get("BRIMFUL_SRC"):
        import brimful

        assert brimful.__file__.startswith(where), f"{brimful.__file__} is tested instead of {where}"


def pytest_runtest_setup() -> None:
    """Notes which threads there are already."""
    BEFORE.clear()
    BEFORE.update(threading.enumerate())
