"""Errors, and checks of settings."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Any, Final, TypeVar

import numpy as np

_Fn = TypeVar("_Fn")
_Error = TypeVar("_Error", bound=Exception)

logger: Final = logging.getLogger("brimful")


@cache
def warn_once(message: str, *arguments: object) -> None:
    """Logs a warning, the same one once in a process."""
    logger.warning(message, *arguments)


def of_setting(setting: str, error: _Error) -> _Error:
    """The error, which carries the name of a setting as `.setting`: a command puts its option in that place.

    >>> of_setting("max_tokens", ValueError("max_tokens must be even (got 7)")).setting
    'max_tokens'
    """
    vars(error)["setting"] = setting
    return error


class DataError(ValueError):
    """The data cannot be used as they are. The message names the file, the line and the remedy.

    >>> import brimful as bf
    >>> try:
    ...     list(bf.from_sequence([{"input_ids": [5, 6], "labels": [5, 6]}]).causal_labels())
    ... except bf.DataError as error:
    ...     print(error)
    causal_labels: there is a column 'labels' already (sequence, row 0); drop or rename it
    """


class OverlongError(ValueError):
    """A sample cannot be placed. `sample` is the number of the first such sample, and `length` is its number of tokens.

    `samples` are the numbers of all of them. With two lengths a sample, `length` is their sum. `max_length` is the
    longest length that the policy takes, in tokens.
    Example:
        >>> import brimful as bf
        >>> try:
        ...     bf.TokenBudget(16).plan([5, 20, 9, 30])
        ... except OverlongError as error:
        ...     print(error)
        ...     error.sample, error.length, error.max_length, error.samples
        a sample of 20 tokens (sample 1) cannot fit max_tokens=16; truncate or filter it, or raise the budget
        (1, 20, 16, (1, 3))
    """

    def __init__(
        self,
        message: str,
        *,
        sample: int = -1,
        length: int = -1,
        max_length: int | None = None,
        samples: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.sample = sample
        self.length = length
        self.max_length = max_length
        self.samples = samples

    def located(self, place: str) -> str:
        """The message with a place, such as file and line, for the sample's number.

        Example:
            >>> import brimful as bf
            >>> try:
            ...     bf.TokenBudget(16).plan([5, 20])
            ... except OverlongError as error:
            ...     print(error.located("shard a.jsonl, line 2"))
            a sample of 20 tokens (shard a.jsonl, line 2) cannot fit max_tokens=16; truncate or filter it, or raise the budget
        """
        return str(self).replace(f"(sample {self.sample:,})", f"({place})", 1)


def as_overlong(error: ValueError) -> ValueError:
    """The error that a policy raised; of another copy of this package, which the wheel `brimful-plan` has, as one of this one."""
    if isinstance(error, OverlongError) or type(error).__name__ != OverlongError.__name__:
        return error
    made = OverlongError(str(error))
    vars(made).update(vars(error))
    return made


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
        raise of_setting(name, ValueError(f"{name} must be at least {least:,}{unit and ' ' + unit} (got {value:,})"))


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


def check_count(description: Any, field: str, least: int | None = 0, unit: str = "", most: int = MOST) -> None:
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
        raise of_setting(name, ValueError(f"{name} must be one of {', '.join(choices)} (got {value!r})"))


def check_bool(name: str, value: Any, meaning: str = "") -> None:
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
    """Refuses what is no path, and an empty one, which would be the folder that this process is in.

    >>> check_path("path", "")
    Traceback (most recent call last):
    ValueError: path must name a folder (got ''); '.' is the one that this process is in
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a folder (got {path!r})")
    if not os.fspath(path):
        raise ValueError(f"{name} must name a folder (got {path!r}); '.' is the one that this process is in")


def check_mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """A setting that has a value for each name; None: for none.

    >>> check_mapping("pad_values", 0, "{'labels': -100}")
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
    """A setting that names columns: one name, or several; a set by its letters, as it has another order in each process.

    >>> names_of("select", {"b", "a", "c"})
    ('a', 'b', 'c')
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
    return tuple(sorted(found)) if isinstance(names, set | frozenset) else found


def column_name(setting: str, name: Any) -> str:
    """A setting that names one column.

    >>> column_name("count_column", 3)
    Traceback (most recent call last):
    TypeError: count_column takes the name of a column (got 3)
    """
    if not isinstance(name, str):
        raise TypeError(f"{setting} takes the name of a column (got {name!r})")
    if not name:
        raise ValueError(f"{setting} takes the name of a column (got an empty one)")
    return name


def counted(number: int, thing: str) -> str:
    """A count in words.

    >>> counted(1, "sample"), counted(1_024, "sample")
    ('1 sample', '1,024 samples')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"


def plus(lengths: Any) -> str:
    """A length in words, or several.

    >>> plus(1_024), plus([3, 4])
    ('1,024', '3 + 4')
    """
    return " + ".join(f"{length:,}" for length in np.atleast_1d(lengths))


def name_of(fn: Any) -> str:
    """The name of a user's function in messages."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def is_failure(error: BaseException) -> bool:
    """Whether a call has failed, and was not interrupted. A panic of a library in Rust is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == PANIC


PANIC: Final = "PanicException"
