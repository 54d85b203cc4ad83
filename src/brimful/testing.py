"""The law that makes resume exact, as an assertion, for brimful's stages and for users' own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from brimful.batches import Batches
from brimful.batching.batch import Batch
from brimful.batching.window import PlanningWindow
from brimful.core.stage import Stage, State, running
from brimful.dataset import Dataset

__all__ = ["assert_exact_resume", "first_difference"]


def assert_exact_resume(
    make: Callable[[], Stage[Any] | Dataset | Batches],
    *,
    epochs: tuple[int, ...] = (0, 1),
    max_items: int = 1_000,
    max_resumes: int = 100,
    max_state_bytes: int = 4096,
) -> None:
    """Asserts the law: what follows the state of item k is items k + 1 and on, exactly, for every k.

    Each resume starts on an object that `make` has made anew, from the state as JSON, and is compared value by value: a
    RecordBatch with its schema and its hidden columns, windows, batches, tensors, arrays. Also asserted: two runs are
    the same; a chain of runs, each killed after a few items, gives the same items; a state is plain JSON, small, and
    changed neither after it was yielded nor by the run that it is given to; one state restored twice gives the same.

    Args:
        make: makes a stage, a data set or batches, from scratch and the same one each time. Of a data set or batches
            both the stage and the iterator with its state dicts are tested.
        epochs: the epochs that a stage is started in.
        max_items: where a stream goes on without an end, how many of its items are compared.
        max_resumes: from how many of the items a resume is tried, evenly spread, the first and the last among them.
        max_state_bytes: the size of a state, as JSON, that is still small.
    Raises:
        AssertionError: names the stage, the item that was resumed after, and the first difference.
    Price: `max_resumes` runs over half of the items each, and all items held in memory.

    >>> import brimful as bf
    >>> assert_exact_resume(lambda: bf.from_sequence(["a", "b", "c", "d"]).shuffle(2))

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Letters(Stage):
    ...     "A stage with a bug: a resume gives the letter again that came before it."
    ...
    ...     def start(self, epoch):
    ...         return 0
    ...
    ...     def items(self, at):
    ...         for i in range(at, 3):
    ...             yield "abc"[i], i
    >>> assert_exact_resume(Letters)
    Traceback (most recent call last):
    AssertionError: Letters, epoch 0, resumed after item 0 (state 0): item 1 is 'a' instead of 'b'
    """
    made = make()
    if isinstance(made, Stage):
        for epoch in epochs:
            name = f"{type(made).__name__}, epoch {epoch}"
            _Law(name, partial(_stage_runs, make, epoch), max_items, max_resumes, max_state_bytes).check()
    else:
        limits = {"max_items": max_items, "max_resumes": max_resumes, "max_state_bytes": max_state_bytes}
        assert_exact_resume(lambda: cast(_Data, make()).stage, epochs=epochs, **limits)
        _Law(repr(made).splitlines()[0], partial(_iterator_runs, make), **limits).check()


_Data: TypeAlias = Dataset | Batches
_Run: TypeAlias = Generator[tuple[Any, State], None, None]


def _stage_runs(make: Callable[[], Any], epoch: int) -> Callable[[State | None], _Run]:
    stage = make()

    def run(at: State | None) -> _Run:
        with running(stage, stage.start(epoch) if at is None else at) as items:
            yield from items

    return run


def _iterator_runs(make: Callable[[], Any]) -> Callable[[State | None], _Run]:
    data = make()

    def run(at: State | None) -> _Run:
        with data.iter(at) as items:
            for item in items:
                yield item, items.state_dict()

    return run


@dataclass(frozen=True)
class _Law:
    """`make()` makes the thing anew and gives what runs it from a state, from its start where that is None."""

    name: str
    make: Callable[[], Callable[[State | None], _Run]]
    max_items: int
    max_resumes: int
    max_state_bytes: int

    def check(self) -> None:
        items: list[Any] = []
        states: list[State] = []
        texts: list[str] = []
        with closing(self.make()(None)) as run:
            for item, state in islice(run, self.max_items):
                items.append(item)
                states.append(state)
                texts.append(_plain(f"{self.name}: the state after item {len(texts):,}", state, self.max_state_bytes))
        for number, (state, text) in enumerate(zip(states, texts)):
            if json.dumps(state) != text:
                raise AssertionError(
                    f"{self.name}: the state after item {number:,} was changed after it was yielded, from {text} to "
                    f"{json.dumps(state)}"
                )
        ends = len(items) < self.max_items
        _compare(f"{self.name}, run again", self.make()(None), items, 0, ends)
        for k in np.unique(np.linspace(0, max(0, len(items) - 1), self.max_resumes).astype(int)).tolist():
            if k < len(items):
                self._resume(k, texts[k], items, ends)
        self._hop(items, ends)

    def _resume(self, k: int, text: str, items: list[Any], ends: bool) -> None:
        label = f"{self.name}, resumed after item {k:,} (state {_brief(text)})"
        state = json.loads(text)
        runs = self.make()
        _compare(label, runs(state), items, k + 1, ends)
        if json.dumps(state) != text:
            raise AssertionError(f"{label}: the run changed the state that it was given, to {json.dumps(state)}")
        _compare(f"{label} for the second time", runs(state), items[: k + 3], k + 1, ends and k + 3 > len(items))

    def _hop(self, items: list[Any], ends: bool) -> None:
        """A chain of runs, each from the state that the one before it had reached."""
        width = max(1, len(items) // self.max_resumes)
        text = None
        for first in range(0, len(items) + 1, width):
            label = f"{self.name}, stopped every {width:,} items, at item {first:,} (state {_brief(str(text))})"
            with closing(self.make()(None if text is None else json.loads(text))) as run:
                taken = list(islice(run, width))
            last = len(taken) < width or first + width >= len(items)
            _compare(label, iter(taken), items[: first + width], first, ends and last)
            text = json.dumps(taken[-1][1]) if taken else text


def _compare(label: str, run: Iterator[tuple[Any, State]], items: list[Any], first: int, ends: bool) -> None:
    """What `run` yields is items[first:], and nothing more where it `ends`."""
    number = first
    try:
        for number, expected in enumerate(items[first:], first):
            found, _ = next(run, (_ENDED, None))
            if found is _ENDED:
                raise AssertionError(f"{label}: ended before item {number:,}, which is {_brief(repr(expected))}")
            difference = first_difference(found, expected)
            if difference is not None:
                raise AssertionError(f"{label}: item {number:,}{difference}")
        number = len(items)
        more = next(run, None) if ends else None
        if more is not None:
            raise AssertionError(f"{label}: goes on after the last item, with {_brief(repr(more))}")
    except Exception as error:
        if isinstance(error, AssertionError) and str(error).startswith(label):
            raise
        raise AssertionError(f"{label}: item {number:,} failed with {type(error).__name__}: {error}") from error
    finally:
        if isinstance(run, Generator):
            run.close()


_ENDED: Final = object()


def _plain(label: str, state: State, max_bytes: int) -> str:
    """A state as JSON.

    Raises:
        AssertionError: where it is not plain, or not small.
    """
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{label} is not plain JSON: {error}") from error
    difference = first_difference(json.loads(text), state)
    if difference is not None:
        raise AssertionError(f"{label} is not plain JSON: what comes back{difference}")
    if len(text) > max_bytes:
        raise AssertionError(f"{label} takes {len(text):,} bytes, more than {max_bytes:,}")
    return text


def first_difference(found: Any, expected: Any) -> str | None:
    """Where two items differ first, in words that follow the item's name; None where they are equal.

    Equal means: the same types, the same keys in the same order, equal values (NaN equals NaN). Windows are compared by
    what they promise, not by where their rows lie.

    >>> first_difference({"x": [1, 2]}, {"x": [1, 3]})
    "['x'][1] is 2 instead of 3"
    """
    if found is expected:
        return None
    if type(found) is not type(expected):
        return _is(found, expected) + f" ({type(found).__name__} instead of {type(expected).__name__})"
    if isinstance(found, Mapping):
        if list(found) != list(expected):
            return f" has the keys {list(found)} instead of {list(expected)}"
        return _first((f"[{key!r}]", found[key], expected[key]) for key in found)
    if isinstance(found, (list, tuple)):
        return _first((f"[{i}]", *pair) for i, pair in enumerate(zip(found, expected))) or _lengths(found, expected)
    if isinstance(found, pa.RecordBatch):
        return _block_difference(found, expected)
    if isinstance(found, PlanningWindow):
        rows = np.arange(len(found))
        return _fields(found, expected, "epoch", "number", "lengths", "crc32") or _first(
            [(".take(all)", found.take(rows), expected.take(rows))]
        )
    if isinstance(found, Batch):
        return _batch_difference(found, expected)
    if is_dataclass(found):
        return _fields(found, expected, *(field.name for field in fields(found)))
    if isinstance(found, np.ndarray):
        return _array_difference(found, expected, str(found.dtype), str(expected.dtype))
    if "torch" in sys.modules and isinstance(found, sys.modules["torch"].Tensor):
        if found.layout != expected.layout:
            return _is(found.layout, expected.layout)
        if found.is_nested:
            parts = (
                (f".{name}()", getattr(found, name)(), getattr(expected, name)()) for name in ("values", "offsets")
            )
            return _first(parts)
        kinds = (f"{tensor.dtype} on {tensor.device}" for tensor in (found, expected))
        return _array_difference(found.detach().cpu().numpy(), expected.detach().cpu().numpy(), *kinds)
    same = found == expected or (found != found and expected != expected)
    return None if same else _is(found, expected)


def _first(parts: Iterator[tuple[str, Any, Any]] | list[tuple[str, Any, Any]]) -> str | None:
    for path, found, expected in parts:
        difference = first_difference(found, expected)
        if difference is not None:
            return path + difference
    return None


def _batch_difference(found: Batch, expected: Batch) -> str | None:
    """What they have, not how its samples are numbered: a rank's window has some rows of it alone, after a resume others."""
    one, other = found.window, expected.window
    own = [field.name for field in fields(found) if field.name not in ("window", "numbers")]
    return _fields(found, expected, *own, "lengths") or _first(
        [
            (".window.epoch", one.epoch, other.epoch),
            (".window.number", one.number, other.number),
            (".window.crc32", one.crc32, other.crc32),
            (".samples", one.samples[found.numbers], other.samples[expected.numbers]),
            (".rows", one.take(found.numbers), other.take(expected.numbers)),
        ]
    )


def _fields(found: Any, expected: Any, *names: str) -> str | None:
    return _first([(f".{name}", getattr(found, name), getattr(expected, name)) for name in names])


def _lengths(found: Any, expected: Any) -> str | None:
    if len(found) == len(expected):
        return None
    return f" has {len(found):,} values instead of {len(expected):,}"


def _block_difference(found: pa.RecordBatch, expected: pa.RecordBatch) -> str | None:
    if not found.schema.equals(expected.schema, check_metadata=True):
        return f" has the schema {_schema(found.schema)} instead of {_schema(expected.schema)}"
    if found.num_rows != expected.num_rows:
        return f" has {found.num_rows:,} rows instead of {expected.num_rows:,}"
    if found.equals(expected):
        return None
    names = found.schema.names
    return _first([(f"[{name!r}]", found[name].to_pylist(), expected[name].to_pylist()) for name in names])


def _schema(schema: pa.Schema) -> str:
    return f"({', '.join(f'{field.name}: {field.type}' for field in schema)})"


def _array_difference(
    found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], kind: str, expected_kind: str
) -> str | None:
    if (kind, found.shape) != (expected_kind, expected.shape):
        return f" is {kind} {found.shape} instead of {expected_kind} {expected.shape}"
    differ = found != expected
    if found.dtype.kind in "fc":
        differ &= ~(np.isnan(found) & np.isnan(expected))
    places = np.argwhere(differ)
    if not len(places):
        return None
    at = tuple(places[0].tolist())
    return f"{list(at) or ''}{_is(found[at], expected[at])}"


def _is(found: Any, expected: Any) -> str:
    return f" is {_brief(repr(found))} instead of {_brief(repr(expected))}"


def _brief(text: str, size: int = 200) -> str:
    return text if len(text) <= size else f"{text[: size - 3]}..."


def __dir__() -> list[str]:
    return __all__
