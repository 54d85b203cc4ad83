"""Errors, checks of settings, the places that rows came from, and counts of rows that were left out.

Every row that a source reads carries its origin in a hidden column (a file and a line, in 12 bytes and one name a file), so
that any stage, however far down and in whichever process, can name the file and the line of the row that it failed on.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from functools import cache
from itertools import islice
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

R = TypeVar("R")
_Fn = TypeVar("_Fn")

logger: Final = logging.getLogger("brimful")


@cache
def warn_once(message: str, *arguments: object) -> None:
    """Logs a warning, the same one once in a process."""
    logger.warning(message, *arguments)


HIDDEN: Final = "__brimful_"
"""Names of columns that users do not see begin with this."""
ORIGIN: Final = f"{HIDDEN}origin"


class DataError(ValueError):
    """The data cannot be used as they are. The message names the file, the line and the remedy.

    >>> import brimful as bf
    >>> try:
    ...     list(bf.from_sequence([{"input_ids": [5, 6], "labels": [5, 6]}]).causal_labels())
    ... except bf.DataError as error:
    ...     print(error)
    causal_labels: there is a column 'labels' already (sequence, row 0); drop or rename it
    """


class StateError(ValueError):
    """A state does not fit the pipeline that it was given to. The message names both sides.

    >>> import brimful as bf
    >>> data = bf.from_sequence(["a", "b", "c"])
    >>> state = data.shuffle(3, seed=1).iter().state_dict()
    >>> try:
    ...     data.shuffle(3, seed=2).iter(state)
    ... except bf.StateError as error:
    ...     print(error)
    this state belongs to another pipeline: shuffle.seed was 1 when it was saved and is 2 here; use the pipeline that saved it
    """


class StageError(RuntimeError):
    """A function of yours raised an error. The message names the stage, the file and the line. The cause is chained.

    >>> import brimful as bf
    >>> def tenth(sample): return {"n": 10 / sample["n"]}
    >>> try:
    ...     list(bf.from_sequence([{"n": 5}, {"n": 0}]).map(tenth))
    ... except bf.StageError as error:
    ...     print(error)
    ...     error.__cause__
    map(tenth) failed at sequence, row 1: ZeroDivisionError: division by zero
    ZeroDivisionError('division by zero')
    """


class RankError(RuntimeError):
    """Another data-parallel rank failed, or is not as expected. The message names it and its error."""


class BrokenError(RuntimeError):
    """The iterator failed earlier, or was closed before its end. Every later call raises this error.

    Its state is still the place after the last item that was taken.

    >>> import brimful as bf
    >>> it = bf.from_sequence(["a", "b"]).iter()
    >>> it.close()
    >>> try:
    ...     next(it)
    ... except bf.BrokenError as error:
    ...     print(error)
    this iterator was closed before its end; go on with a new one: iter(state), with the state_dict() of this one
    """


def require(name: str, value: float, least: float, unit: str = "") -> None:
    """Refuses a setting below its least value.

    >>> require("max_tokens", 0, 1, "token")
    Traceback (most recent call last):
    ValueError: max_tokens must be at least 1 token (got 0)
    """
    if value < least:
        raise ValueError(f"{name} must be at least {least:,}{unit and ' ' + unit} (got {value:,})")


MOST: Final = 1 << 62
"""The greatest count of anything: half as many again still fit in 64 bits."""


def integer(name: str, value: Any, least: int | None = 0, unit: str = "", most: int = MOST) -> int:
    """A setting that counts something, `least` to `most`, as an int of Python's, which does not wrap around as numpy's do;
    `least` None: any integer.

    >>> integer("n", np.int16(7)) + 40_000
    40007
    >>> integer("n", 2.5)
    Traceback (most recent call last):
    TypeError: n must be an integer (got 2.5)
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer (got {value!r})")
    if least is not None:
        require(name, number, least, unit)
        if number > most:
            raise ValueError(f"{name} must be at most {most:,} (got {number:,})")
    return number


def settle(description: Any, field: str, least: int | None = 0, unit: str = "", most: int = MOST) -> None:
    """Checks a field of a frozen dataclass that counts something, as `integer` does, and keeps it as that says; from
    `__post_init__`."""
    object.__setattr__(description, field, integer(field, getattr(description, field), least, unit, most))


def finite(name: str, value: Any) -> float:
    """A setting that is a number, neither nan nor infinite.

    >>> finite("timeout_seconds", "5")
    Traceback (most recent call last):
    TypeError: timeout_seconds must be a number (got '5')
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number (got {value!r})")
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = inf
    if not isfinite(number):
        raise ValueError(f"{name} must be finite (got {value})")
    return number


def positive(name: str, value: Any) -> float:
    """A setting that is a finite number above 0."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive (got {value})")
    return number


MOST_SECONDS: Final = int(threading.TIMEOUT_MAX)
"""As long as a thread can wait: 292 years on most systems."""


def timeout(seconds: Any) -> float:
    """The setting `timeout_seconds`."""
    number = positive("timeout_seconds", seconds)
    if number > MOST_SECONDS:
        raise ValueError(f"timeout_seconds must be at most {MOST_SECONDS:,} (got {number:,.0f})")
    return number


def one_of(name: str, value: str, *choices: str) -> None:
    """Refuses a word that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)} (got {value!r})")


def truth(name: str, value: Any, meaning: str = "") -> None:
    """Refuses what is neither True nor False: `repeat=3` means something else to who writes it."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False (got {value!r}){meaning and '; ' + meaning}")


def function(name: str, fn: _Fn) -> _Fn:
    """A user's function, which is refused where it is given if it is none.

    >>> function("map", "upper")
    Traceback (most recent call last):
    TypeError: map needs a function (got 'upper')
    """
    if not callable(fn):
        raise TypeError(f"{name} needs a function (got {fn!r})")
    return fn


def other_signature(fn: Callable[..., Any], *arguments: Any) -> inspect.Signature | None:
    """The signature of a function that cannot be called with these arguments; None where it can, or nobody knows.

    >>> other_signature(lambda batch: None, {}, 1.0), other_signature(max, {}, 1.0)
    (<Signature (batch)>, None)
    """
    try:
        signature = inspect.signature(fn)
    except ValueError:  # of some functions in C nobody knows it
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return signature
    return None


def check_path(name: str, path: str | os.PathLike[str]) -> None:
    """Refuses an empty path, which would be the folder that this process is in.

    >>> check_path("path", "")
    Traceback (most recent call last):
    ValueError: path must name a folder (got ''); '.' is the one that this process is in
    """
    if not os.fspath(path):
        raise ValueError(f"{name} must name a folder (got {path!r}); '.' is the one that this process is in")


def by_name(name: str, value: Any, example: str) -> dict[str, Any]:
    """A setting that has a value for each name; None: for none.

    >>> by_name("pad_values", 0, "{'labels': -100}")
    Traceback (most recent call last):
    TypeError: pad_values takes a dict by name, such as {'labels': -100} (got 0)
    """
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} takes a dict by name, such as {example} (got {value!r})")
    return dict(value or {})


def check_version(version: Any) -> None:
    """Refuses a version of a user's functions that is no text.

    >>> check_version(1)
    Traceback (most recent call last):
    TypeError: version must be a text, such as "1" (got 1)
    """
    if version is not None and not isinstance(version, str):
        raise TypeError(f'version must be a text, such as "1" (got {version!r})')


def names_of(setting: str, names: Any) -> tuple[str, ...]:
    """A setting that names columns: one name, or several.

    >>> names_of("select", [3])
    Traceback (most recent call last):
    TypeError: select takes names of columns (got 3)
    """
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable):
        raise TypeError(f"{setting} takes names of columns (got {names!r})")
    found = tuple(names)
    if odd := [name for name in found if not isinstance(name, str)]:
        raise TypeError(f"{setting} takes names of columns (got {odd[0]!r})")
    if twice := [name for number, name in enumerate(found) if name in found[:number]]:
        raise ValueError(f"{setting} names {twice[0]!r} twice")
    return found


def counted(number: int, thing: str) -> str:
    """A count in words.

    >>> counted(1, "sample"), counted(1_024, "sample")
    ('1 sample', '1,024 samples')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"


def name_of(fn: Any) -> str:
    """The name of a user's function in messages."""
    return str(getattr(fn, "__name__", type(fn).__name__))


# -- where a row came from ---------------------------------------------------------------------------------------------

ORIGIN_TYPE: Final = pa.struct([("file", pa.dictionary(pa.int32(), pa.string())), ("line", pa.int64())])


def origins(name: str, lines: NDArray[np.int64], unit: str = "line") -> pa.Array:
    """The origin column, (n,), of rows that came from `lines` of `name`; those of files are counted from 1.

    Price, beside a column of 8 bytes a row: of a block of 4,096 rows 3 us to make it, 10 to 25 us in `take`, 2 us in `concat`;
    of a block of a single row 5, 9 and .4 us. Nothing in `slice`.

    >>> column = origins("shard a.jsonl", np.array([17]))
    >>> where(pa.RecordBatch.from_arrays([column], [ORIGIN]), 0)
    'shard a.jsonl, line 17'
    """
    count, (file, line) = len(lines), ORIGIN_TYPE
    text = f"{name}, {unit}".encode()
    ends = np.array([0, len(text)], dtype=np.int32)  # not by pa.array, which imports pandas: .3 s
    named = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(text))
    indices, numbers = np.zeros(count, dtype=np.int32), np.ascontiguousarray(lines, dtype=np.int64)
    files = pa.DictionaryArray.from_buffers(file.type, count, [None, pa.py_buffer(indices)], named)
    places = pa.Array.from_buffers(line.type, count, [None, pa.py_buffer(numbers)])
    return pa.Array.from_buffers(ORIGIN_TYPE, count, [None], children=[files, places])


def where(block: pa.RecordBatch, row: int) -> str:
    """The place that a row of a block came from, in words."""
    index = block.schema.get_field_index(ORIGIN)
    place = block.column(index)[row].as_py() if index >= 0 else None
    return f"row {row} of a block of {block.num_rows:,} rows" if place is None else f"{place['file']} {place['line']:,}"


# -- what was left out -------------------------------------------------------------------------------------------------


Counts: TypeAlias = dict[str, tuple[int, str | None]]
"""By name: how many things were left out, and the words for the log."""


class Tally:
    """Counts what stages left out or cut (`skipped`, `dropped_tokens` ...); shared by the threads of one iterator.

    `made` queues what each batch on its way to the consumer holds, in the order in which they were made.

    Args:
        log: called with the message of a count, the first time.
    """

    def __init__(self, log: Callable[[str], None] = logger.warning) -> None:
        self.made: deque[Any] = deque()
        self._log = log
        self._counts: Counts = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Tally, ()  # a copy in another process counts anew

    def add(self, name: str, number: int, message: str | None) -> None:
        with self._lock:
            first = name not in self._counts
            before, said = self._counts.get(name, (0, message))
            self._counts[name] = before + number, said
        if first and message is not None:
            self._log(message)

    def taken(self) -> Counts:
        """The counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: number for name, (number, _) in self._counts.items()}


TALLY: ContextVar[Tally | None] = ContextVar("brimful_tally", default=None)


_APART: ContextVar[tuple[Tally | None, Tally] | None] = ContextVar("brimful_counted_apart", default=None)
"""What is counted for the first is counted by the second meanwhile: see `apart`."""


def count(name: str, number: int, message: str | None = None) -> None:
    """Counts `number` things left out under `name` in the running iterator's `.stats`; logs `message` the first time."""
    if number:
        tally, apart = TALLY.get(), _APART.get()
        tally = apart[1] if apart is not None and apart[0] is tally else tally
        (tally or Tally()).add(name, number, message)


def apart(fn: Callable[..., R], *args: Any) -> tuple[R, Counts]:
    """`fn(*args)`, and what it left out, which nobody has counted. Whoever reads ahead adds that (`add_counts`) right before it
    hands on the item that came of it, and whoever reads again what came before a state drops it. So each thing that is left out
    is counted once, before a resume or after it, whatever was read ahead.

    >>> apart(lambda: count("dropped", 2, "too long"))
    (None, {'dropped': (2, 'too long')})
    """
    into = quiet_tally()
    before = _APART.set((TALLY.get(), into))
    try:
        result = fn(*args)
    except BaseException:
        _APART.reset(before)
        add_counts(into.taken())
        raise
    _APART.reset(before)
    return result, into.taken()


def with_counts(items: Iterator[R]) -> Iterator[tuple[R, Counts]]:
    """Each item, and what was left out on the way to it: see `apart`."""
    while True:
        found: list[R]
        found, counts = apart(list, islice(items, 1))
        if not found:
            add_counts(counts)
            return
        yield found.pop(), counts


def again(items: Iterator[R], number: int) -> Iterator[R]:
    """The items, of which the first `number` came before a state was saved: what they left out was counted then."""
    yield from (item for item, _ in islice(with_counts(items), number))
    yield from items


def tallied(fn: Callable[..., R], *args: Any, tally: Tally | None = None) -> tuple[R, Counts]:
    """`fn(*args)`, and what it left out: for who runs it in another process and brings both back; see `add_counts`.

    Args:
        tally: of `quiet_tally`, where threads go on counting from one call to the next.

    >>> tallied(lambda: count("dropped", 2, "too long"))
    (None, {'dropped': (2, 'too long')})
    """
    tally = tally or quiet_tally()
    context = copy_context()
    context.run(TALLY.set, tally)
    return context.run(fn, *args), tally.taken()


def quiet_tally() -> Tally:
    """Counts, and logs nothing: whoever gets the counts does that."""
    return Tally(log=lambda message: None)


def add_counts(counts: Counts) -> None:
    """Adds what was left out in another process to the running iterator's `.stats`, and logs it, as if it had been here."""
    for name, (number, message) in counts.items():
        count(name, number, message)


OnError = Literal["raise", "skip"]

SKIPPED: Final = "skipped: %s"
"""The line of the log for a record that is left out."""


def is_failure(error: BaseException) -> bool:
    """Whether a call has failed, and was not interrupted. A panic of a library in Rust is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == PANIC


PANIC: Final = "PanicException"


def skipped(error: Exception) -> None:
    """Counts a row that is left out (on_error="skip"), and logs why: the error names file and line."""
    logger.warning(SKIPPED, error)
    count("skipped", 1)
