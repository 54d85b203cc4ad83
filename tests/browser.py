"""A real headless Chromium, spoken to through its debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any, Final

import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND: Final = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
)
SECONDS: Final = 60.0


class Page:
    """A tab: commands in, what they return out; `events` are what the browser said meanwhile."""

    def __init__(self, write: int, read: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._write, self._read, self._buffer = write, read, b""
        self._number, self._session = 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, *, width: int, scheme: str) -> None:
        """Shows a file, and waits until it is all there."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=path.as_uri())
        while self.value("document.readyState") != "complete" or self.value("location.href") != path.as_uri():
            pass

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select([self._read], [], [], SECONDS)[0], f"the browser said nothing for {SECONDS:g} s"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser() -> Iterator[Page]:
    """A browser of its own, with an empty profile; gone at the end. Where it does not start, the test is skipped."""
    assert FOUND
    read_commands, write = os.pipe()
    read, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="brimful-chromium-", ignore_cleanup_errors=True) as profile:
        command = f'exec "$0" {FLAGS} --user-data-dir="$1" about:blank 3<&{read_commands} 4>&{write_answers}'
        process = subprocess.Popen(
            ["bash", "-c", command, FOUND, profile],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            try:
                page = Page(write, read)
            except (AssertionError, OSError) as error:
                pytest.skip(f"{FOUND} does not start: {error}")
            yield page
        finally:
            os.close(write)  # it ends by itself when the pipe does
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(read)
