"""A user's function in processes of its own, one for each thread that calls it.

Each is a new interpreter, never a fork. The ways of `multiprocessing` would have it run the user's script again, down to
`if __name__ == "__main__":`, for what is defined there; here functions travel by cloudpickle, which takes it along. Blocks
cross as Arrow IPC: a slice of ten rows would be pickled with all the rows that it is a slice of. Counts of
what the function leaves out, and its log, come back with the result.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import cloudpickle
import pyarrow as pa

from brimful.core.counters import Counters, Counts, add_counts, with_counters
from brimful.core.run import Stopped
from brimful.plan.errors import StageError, logger, name_of

R = TypeVar("R")

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at a process that does not answer: whether it is still there."""


class Reply(NamedTuple):
    """The outcome of a call in another process: a result, or an error, its cause, and the traceback as text; and what it left
    out and logged."""

    result: Any
    error: BaseException | None
    cause: BaseException | None
    traceback: str
    counts: Counts
    logged: list[tuple[int, str]]

    def settled(self) -> Any:
        """The result; what was left out and logged is counted and logged as if it had been here.

        Raises:
            Exception: what the call raised; its cause is the traceback.
        """
        add_counts(self.counts)
        for level, message in self.logged:
            logger.log(level, "%s", message)
        if self.error is None:
            return self.result
        remote = RemoteTracebackError(self.traceback)
        if self.cause is None:
            raise self.error from remote
        self.cause.__cause__ = remote
        raise self.error from self.cause


class DiedError(Exception):
    """A process has died; with its number and how."""


class UnsentError(Exception):
    """A result cannot be pickled."""


class RemoteTracebackError(Exception):
    """The cause of an error that another process raised: where it raised it, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Remote(Generic[R]):
    """`fn`, run in another process; each thread that calls it has one, from its first call until `stop`.

    Args:
        fn: with what it needs, which is pickled once.
        name: the name that the user knows.
    Raises:
        TypeError: it cannot be pickled.
    """

    def __init__(self, fn: Callable[..., R], name: str) -> None:
        try:
            self._fn = dumps(fn)
        except Exception as error:
            raise TypeError(
                f"{name} cannot be sent to another process: {type(error).__name__}: {error}; make what it needs inside of it, "
                "or do without processes, by stream(num_workers=0) or executor_type='thread'"
            ) from error
        self._name = name
        self._children: list[Child] = []
        self._local = threading.local()
        self._stopped = False

    def __call__(self, *args: Any) -> R:
        """`fn(*args)`.

        Raises:
            DiedError: the process has.
            UnsentError: what it returned cannot be pickled.
            Exception: what `fn` raised; its cause is the traceback.
        """
        child: Child | None = getattr(self._local, "child", None)
        if child is None:
            child = self._local.child = Child(self._name)
            self._children.append(child)
            if self._stopped:  # perhaps since just now
                child.end()
            else:
                child.send(self._fn)
        try:
            reply = child.ask(dumps(args))
        except DiedError:
            if self._stopped:
                raise Stopped from None
            del self._local.child  # the next call has another one
            raise
        result: R = reply.settled()
        return result

    def stop(self) -> None:
        """Ends the processes, whatever they do."""
        self._stopped = True
        for child in list(self._children):
            child.end()
        for child in list(self._children):
            child.close()


class Child:
    """A process that answers one call at a time, and ends with this one. Price: it takes a second to begin, and 80 MB."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pipe, theirs = multiprocessing.Pipe()
        code = (
            "import sys; from multiprocessing.connection import Connection; "
            f"pipe = Connection({theirs.fileno()}); sys.path[:], sys.argv[:] = pipe.recv(); "
            "from brimful.core.processes import serve; serve(pipe)"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            process_group=0,  # where a terminal's Ctrl-C does not come
        )
        self.send(pickle.dumps(([path for path in sys.path if isinstance(path, str)], sys.argv)))
        theirs.close()

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # it has died, which its answer says
            self._pipe.send_bytes(data)

    def ask(self, args: bytes) -> Reply:
        """Its answer.

        Raises:
            DiedError: it has; with its number and how.
        """
        self.send(args)
        try:
            while not self._pipe.poll(LOOK_SECONDS):
                if self._process.poll() is not None and not self._pipe.poll():  # and its own children hold the pipe
                    raise EOFError
            data = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise DiedError(self._died()) from None
        reply: Reply = pickle.loads(data)
        return reply

    def end(self) -> None:
        """Called by any thread, also while another one waits for the answer, and where the interpreter ends."""
        if self._process.returncode is None:
            self._process.kill()

    def close(self) -> None:
        """Waits for its end, which comes at once."""
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _died(self) -> str:
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        hint = (
            "; if it was out of memory, use fewer workers (max_workers=, num_workers=)"
            if code == -signal.SIGKILL
            else ""
        )
        return f"worker process {self._process.pid} of {self._name} has died ({how}){hint}"


def serve(pipe: Connection) -> None:
    """The work of a process: it reads the function, then arguments, and answers each with a reply."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for who waits for the answer
    os.set_inheritable(pipe.fileno(), False)
    parent = os.dup(0)  # not inherited; what the function starts, or reads, has an input that is empty
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    with LogCapture() as records, suppress(EOFError, OSError), pipe:  # until nobody asks any longer
        fn = _loaded(pipe.recv_bytes())
        while True:
            pipe.send_bytes(answer(lambda data: fn(*pickle.loads(data)), pipe.recv_bytes(), records))


def _end_with_parent(parent: int) -> None:
    while os.read(parent, 1):
        pass
    os._exit(1)


def _loaded(data: bytes) -> Any:
    """The function; where it cannot be had, one that says why."""
    try:
        return pickle.loads(data)
    except Exception as error:
        message = f"the function cannot be had in another process: {type(error).__name__}: {error}"

        def refuse(*_: Any) -> Any:
            raise StageError(message)

        return refuse


def answer(fn: Callable[[Any], Any], argument: Any, records: LogCapture, tally: Counters | None = None) -> bytes:
    """The reply of a call, pickled; `tally`: see `with_counters`."""
    try:
        result, counts = with_counters(fn, argument, tally=tally)
    except BaseException as error:
        cause = None if error.__cause__ is None else _portable(error.__cause__)
        text = traceback.format_exc()
        return dumps(Reply(None, _portable(error), cause, text, {}, records.taken()))
    try:
        return dumps(Reply(result, None, None, "", counts, records.taken()))
    except Exception as error:
        unsent = UnsentError(f"a result cannot be sent to another process: {type(error).__name__}: {error}")
        return dumps(Reply(None, unsent, None, traceback.format_exc(), {}, records.taken()))


def _portable(error: BaseException) -> BaseException:
    """The error, or one that says the same where it would not survive the way."""
    try:
        pickle.loads(dumps(error))
        return error
    except Exception:
        return StageError(f"{name_of(type(error))}: {error}")


class LogCapture(logging.Handler):
    """Within, keeps the records of the log for whoever asks, and hides them from other handlers."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[tuple[int, str]] = []
        self._propagates = logger.propagate

    def __enter__(self) -> LogCapture:
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *exc: object) -> None:
        logger.removeHandler(self)
        logger.propagate = self._propagates

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append((record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[int, str]]:
        said, self._said = self._said, []
        return said


# -- what crosses --------------------------------------------------------------------------------------------------------


def dumps(thing: Any) -> bytes:
    """Pickles anything, blocks as Arrow IPC."""
    out = io.BytesIO()
    _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return out.getvalue()


def _as_ipc(block: pa.RecordBatch) -> tuple[Callable[[bytes], pa.RecordBatch], tuple[bytes]]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    return block_from_ipc, (sink.getvalue(),)


def block_from_ipc(data: bytes) -> pa.RecordBatch:
    """The block that was sent."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _code_of_file(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _made_code, (make, parts, code.co_filename)


def _made_code(make: Callable[..., CodeType], parts: tuple[Any, ...], file: str) -> CodeType:
    """Code with the name of its file, which cloudpickle leaves out since 3.1.3: tracebacks show its lines."""
    return make(*parts).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = ChainMap(
        {pa.RecordBatch: _as_ipc, CodeType: _code_of_file}, cloudpickle.Pickler.dispatch_table
    )
