"""A user's function on each sample of a source: whether to keep it, asked once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.core.counters import OnError
from brimful.core.progress import watched
from brimful.core.stage import described, runtime
from brimful.index.indexed import Selected
from brimful.plan.errors import logger, name_of
from brimful.tables.blocks import Block, samples, tried
from brimful.tables.parallel import SERIAL, Parallel


@dataclass(frozen=True)
class Filter(Selected):
    """The samples of a source for which `fn(sample)` is true, in the order, or shuffle, of that source.

    A random function is refused. With a `version` of the function the answers are kept beside the store that the source is.

    Price: at the first use, in each process, all rows are read once and `fn` is called once a sample; a byte a sample meanwhile.
    """

    fn: Callable[..., bool]
    on_error: OnError = "raise"
    parallel: Parallel = runtime(SERIAL)
    version: str | None = runtime(None)

    def chosen_by(self) -> dict[str, Any]:
        return {"fn": described(self.fn), "on_error": self.on_error}

    def kept(self) -> NDArray[np.bool_]:
        """The answers of all rows: from the file beside the store, where there is one."""
        if self.version is None:
            return self._asked(lambda: None)
        source, *later = self.upstream.header()
        source = {
            name: value for name, value in source.items() if name not in ("shuffle", "seed")
        }  # rows, in any order
        words = [[source, *later], _told_apart(self.fn), self.on_error, self.version]
        name = f"filter.{hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]}"
        return self.upstream.data.beside(name, len(self.upstream.index), self._asked)

    def _asked(self, working: Callable[[], None]) -> NDArray[np.bool_]:
        """The answers of the function. `working` is called after each block."""
        base, originals = self.upstream.index, self.upstream.originals
        name, total = f"filter({name_of(self.fn)})", len(base)
        logger.info("%s reads all %s samples once", name, f"{total:,}")
        rows = samples if originals is None else originals.samples
        ask = partial(_answers, self.fn, self.on_error, rows)
        parts = self.parallel.parts((block, None) for block in base.blocks())
        with closing(self.parallel.results(ask, parts, name)) as answers:
            found = [np.zeros(0, dtype=bool)]
            for _, made, _ in watched(answers, name, total, lambda one: one[0].num_rows):
                assert made is not None
                found.append(made)
                working()
        kept = np.concatenate(found)
        logger.info("%s keeps %s of %s samples", name, f"{np.count_nonzero(kept):,}", f"{total:,}")
        return kept


def _answers(
    fn: Callable[..., bool], on_error: OnError, rows: Callable[[Block], Iterable[Any]], block: Block
) -> NDArray[np.bool_]:
    """Which rows of a block a function is true for, bool (n,). `rows` makes its samples."""
    kept = np.zeros(block.num_rows, dtype=bool)
    for row, keep in tried("filter", fn, block, False, on_error, bool, rows):
        kept[row] = keep
    return kept


def _told_apart(fn: Any) -> Any:
    """A function as plain JSON, by its name, its code and the plain values that it holds: lambdas, partials and objects of one
    class share a name. Of other values it knows the type alone, and of what the code calls the name."""
    try:
        return _identity(fn)
    except (TypeError, ValueError, RecursionError):
        return described(fn)  # it cannot be taken apart


def _identity(value: Any) -> Any:
    if isinstance(value, MethodType):
        return [_identity(value.__func__), _identity(getattr(value.__self__, "__dict__", None))]
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return [described(value), _identity([value.__code__, value.__defaults__, value.__kwdefaults__, held])]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), _identity([value.co_names, value.co_consts])]
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _identity(item) for name, item in value.items()}
    if callable(value) and not isinstance(value, type) and isinstance(parts := value.__reduce_ex__(2), tuple):
        call = type(value).__call__
        return [_identity(list(parts)), _identity(call) if isinstance(call, FunctionType) else None]
    return described(value)
