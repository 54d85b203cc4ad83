"""Two laws as assertions: a resume is exact, of brimful's stages and of users' own; and no sample of a batch sees another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from brimful.batches import Batches
from brimful.batching.batch import Batch, OrderedBatches, PlannedWindow
from brimful.batching.window import PlanningWindow
from brimful.core.facts import facts_of, refuse_static_buffers
from brimful.core.stage import Stage, State, running
from brimful.dataset import Dataset
from brimful.tables.blocks import concat

if TYPE_CHECKING:
    from brimful.isolation.probe import Leak

__all__ = ["IsolationReport", "assert_exact_resume", "assert_isolated", "first_difference", "isolation_report"]


def assert_exact_resume(
    make: Callable[[], Stage[Any] | Dataset | Batches],
    *,
    epochs: tuple[int, ...] = (0, 1),
    max_items: int = 1_000,
    max_resumes: int = 100,
    max_state_bytes: int = 4096,
) -> None:
    """Asserts the law: after the state of item k come items k + 1 and on, exactly, for every k.

    Each resume starts on a new object of `make`, from the state as JSON. Items are compared value by value: a
    RecordBatch with its schema and its hidden columns, windows, batches, tensors, arrays. Blocks without a row are passed
    over. Where time may cut blocks (after the function of `map`, for one), their rows are compared. It also asserts four more
    facts. Two runs are the same. A chain of runs, each killed after a few items, gives the same items. A state is plain
    JSON and small, and no run changes it. A state that is restored twice gives the same items.

    Args:
        make: makes a stage, a data set or batches from scratch, the same one each time. For a data set or batches, both
            the stage and the iterator with its state dicts are tested.
        epochs: the epochs that a stage is started in.
        max_items: how many items of an endless stream are compared.
        max_resumes: how many items a resume is tried from. They are evenly spread, with the first and the last.
        max_state_bytes: the largest size of a state, as JSON.
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
    ...     def items(self, at, run):
    ...         for i in range(at, 3):
    ...             yield "abc"[i], i
    >>> assert_exact_resume(Letters)
    Traceback (most recent call last):
    AssertionError: Letters, epoch 0, resumed after item 0 (state 0): item 1 is 'a' instead of 'b'
    """
    made = make()
    refuse_static_buffers(made if isinstance(made, Stage) else made.stage, "assert_exact_resume")
    if isinstance(made, Stage):
        for epoch in epochs:
            name = f"{type(made).__name__}, epoch {epoch}"
            runs = partial(_stage_runs, make, epoch)
            _Law(name, runs, max_items, max_resumes, max_state_bytes, cut_by_time=facts_of(made).cut_by_time).check()
    else:
        limits: dict[str, Any] = {
            "max_items": max_items,
            "max_resumes": max_resumes,
            "max_state_bytes": max_state_bytes,
        }
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
    cut_by_time: bool = False

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
        self._compare(f"{self.name}, run again", self.make()(None), items, 0, ends)
        for k in np.unique(np.linspace(0, max(0, len(items) - 1), self.max_resumes).astype(int)).tolist():
            if k < len(items):
                self._resume(k, texts[k], items, ends)
        self._hop(items, ends)

    def _resume(self, k: int, text: str, items: list[Any], ends: bool) -> None:
        label = f"{self.name}, resumed after item {k:,} (state {_brief(text)})"
        state = json.loads(text)
        runs = self.make()
        self._compare(label, runs(state), items, k + 1, ends)
        if json.dumps(state) != text:
            raise AssertionError(f"{label}: the run changed the state that it was given, to {json.dumps(state)}")
        self._compare(f"{label} for the second time", runs(state), items[: k + 3], k + 1, ends and k + 3 > len(items))

    def _hop(self, items: list[Any], ends: bool) -> None:
        """A chain of runs, each from the state that the one before it had reached. Blocks without a row are no items: where rows
        are held, all of them may come again."""
        width = max(1, len(items) // self.max_resumes)
        texts: list[str | None] = [None]

        def hops() -> _Run:
            while True:
                with closing(self.make()(None if texts[-1] is None else json.loads(texts[-1]))) as run:
                    taken = list(islice((one for one in run if getattr(one[0], "num_rows", 1)), width))
                yield from taken
                if len(taken) < width:
                    return
                texts.append(json.dumps(taken[-1][1]))

        try:
            self._compare(f"{self.name}, stopped every {width:,} items", hops(), items, 0, ends)
        except AssertionError as error:
            error.add_note(f"The last stop was at the state {_brief(str(texts[-1]))}")
            raise

    def _compare(self, label: str, run: _Run, items: list[Any], first: int, ends: bool) -> None:
        """What `run` yields is items[first:]; of blocks their rows, where time cuts them, and those that have any."""
        if not all(isinstance(item, pa.RecordBatch) for item in items):
            _compare(label, run, items, first, ends)
            return
        blocks = [block for block in items[first:] if block.num_rows]
        with closing(run):
            some = ((block, state) for block, state in run if block.num_rows)
            _compare(label, _recut(some, blocks) if self.cut_by_time else some, blocks, 0, ends)


def _recut(run: Iterator[tuple[pa.RecordBatch, State]], like: list[pa.RecordBatch]) -> _Run:
    """The rows of a run in blocks as long as some others, and then what is left of them."""
    held: list[pa.RecordBatch] = []
    for block in like:
        while sum(map(len, held)) < len(block) and (item := next(run, None)) is not None:
            held.append(item[0])
        if not held:
            return
        alike = all(one.schema.equals(held[0].schema, check_metadata=True) for one in held)
        whole = concat(held if alike else held[:1])
        yield whole.slice(0, len(block)), None
        held = [whole.slice(len(block))] if len(whole) > len(block) else []
    yield from ((block, None) for block in held)
    yield from run


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


@dataclass(frozen=True)
class IsolationReport:
    """The result of `isolation_report`.

    Args:
        leaks: for each batch that was tried ("packed", "padded", or "batch"), the place where samples meet, or real
            tokens and padding. None: nowhere. A leak has `layer` (a name of `model.named_modules()`), `module` (its
            class), `kind` ("attention", "convolution", "recurrence", "positions", "unknown"), `test` and `difference`.
        remedy: a call that keeps the samples of packed rows apart, if `model(**batch)` does not and one was found.
        dtype: the type that the model computed in.
        tolerance: the largest change that is no leak, as a share of the size of its feature.

    >>> report = IsolationReport(leaks={"packed": None}, remedy="", dtype="float64", tolerance=1e-6)
    >>> report.isolated
    True
    """

    leaks: Mapping[str, Leak | None]
    remedy: str
    dtype: str
    tolerance: float

    @property
    def isolated(self) -> bool:
        """True if no sample sees another, and no real token sees padding."""
        return not any(self.leaks.values())


def assert_isolated(model: Any, batch: Mapping[str, Any] | None = None, attn_implementation: str | None = None) -> None:
    """Asserts that no sample of a batch sees another in a model, and that no real token sees padding.

    It changes half of the samples, with their labels, and compares all others. It repeats this until each sample was
    changed once while each other one was not. Then it changes the padding. Then it compares each sample with itself run
    alone. A transformers model gets the single sample as one text, without positions or a mask. Each feature of an
    output is compared by its own size, so logits that are masked (-1e9) hide nothing. A value that is finite in one run
    only is a leak.

    The model, its mode, gradients, buffers and caches stay as they are. So do the generators of torch, numpy and
    Python. The model runs in eval mode, so effects of training alone are not seen (such as the statistics of a batch
    norm).

    Args:
        model: a module that takes the batch by the names of its forward, or as one argument, or its token ids as one
            argument. It must return tensors with a value for each token or for each sample. Other outputs are not
            compared: a loss, or one value for a packed row of several samples. So a leak in the loss alone is not seen.
        batch: a batch of `pack` or `batch`, or the form in which your step gives it to the model (such as
            `bf.attention.padding_free(batch)`). If it is packed, up to 8 samples of one row are tried, each with its
            first 24 tokens. None: random tokens, packed, and then padded if the model takes such a batch.
        attn_implementation: the attention kernel to try, for a transformers model. None: the model's own.
    Raises:
        AssertionError: names the first layer at which samples meet, its kind, and the call that would keep them apart.
        ValueError: the model returns nothing for each token or sample, or does not run with this kernel. Or its forward
            needs more than the batch has. Or its parameters are on the meta device, or torch.jit compiled it. Or the
            number of its token ids is not known (give a batch).
        TypeError: its forward takes one argument, and runs neither with the batch nor with its token ids.
    Price: some twenty runs on 300 tokens, and a copy of the parameters in float64, for at most 50 million. Larger
        models, and those that do not run in float64, are tried in their own type. The tolerance is 1e-6 of a feature's
        size, or 5e-2 in half precision. Between a sample in its row and alone it is 1e-3. Without float64, a feature
        counts as at least as large as its tensor's mean.

    >>> from torch import nn
    >>> class Bags(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.mix = nn.Embedding(9, 4), nn.Conv1d(4, 4, 3, padding=1)
    ...
    ...     def forward(self, input_ids):
    ...         return self.mix(self.words(input_ids).mT).mT
    >>> assert_isolated(Bags())
    Traceback (most recent call last):
    AssertionError: Bags, packed: samples see each other at mix (Conv1d), by its convolution; padded: a real token sees ...
    """
    report = isolation_report(model, batch, attn_implementation)
    found = [f"{name}: {leak}" for name, leak in report.leaks.items() if leak is not None]
    if found:
        remedy = f". Samples are kept apart by {report.remedy}" if report.remedy else ""
        raise AssertionError(f"{type(model).__name__}, {'; '.join(found)}{remedy}")


def isolation_report(
    model: Any, batch: Mapping[str, Any] | None = None, attn_implementation: str | None = None
) -> IsolationReport:
    """Checks the same as `assert_isolated`, and returns a report. Arguments, errors and price are the same.

    >>> import torch
    >>> from torch import nn
    >>> report = isolation_report(nn.Sequential(nn.Embedding(9, 4)), {"input": torch.arange(9).view(1, 9)})
    >>> report.isolated, report.dtype
    (True, 'float64')
    """
    from brimful.isolation.safe_call import report

    return IsolationReport(*report(model, batch, attn_implementation))


def first_difference(found: Any, expected: Any) -> str | None:
    """The first difference between two items, in words that follow the item's name. None if they are equal.

    Equal means: the same types, the same keys in the same order, equal values (NaN equals NaN). Windows are compared by
    their contents, not by the place of their rows.

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
        return _fields(found, expected, "epoch", "number", "lengths", "checksums") or _first(
            [(".take(all)", found.take(rows), expected.take(rows))]
        )
    if isinstance(found, OrderedBatches):
        return first_difference(found.laid_out(), expected.laid_out())
    if isinstance(found, PlannedWindow):
        return first_difference(*([Batch(one, place) for place in range(len(one))] for one in (found, expected)))
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
    own = [field.name for field in fields(found) if field.name not in ("plan", "place")]
    planned = ("padded_length", "padded_size", "pieces", "key", "lengths")
    return _fields(found, expected, *planned, *own) or _first(
        [
            (".static", found.plan.static, expected.plan.static),
            (".window.epoch", one.epoch, other.epoch),
            (".window.number", one.number, other.number),
            (".window.checksums", one.checksums, other.checksums),
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
