"""Some of the rows, chosen by what is in them."""

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
from brimful.core.facts import facts_of
from brimful.core.header import described, header_of
from brimful.core.run import Run
from brimful.core.stage import not_in_state
from brimful.core.terminal import watched
from brimful.index.index import Index
from brimful.index.indexed import Selected
from brimful.plan.errors import logger, name_of
from brimful.plan.once import once, settings_of
from brimful.rows.functions import tried
from brimful.rows.parallel import SERIAL, Parallel
from brimful.tables.blocks import Block, samples
from brimful.tables.hashes import Side, Split
from brimful.tables.units import refuse_split


@dataclass(frozen=True)
class Filter(Selected):
    """The samples of a source for which `fn(sample)` is true, in the order, or shuffle, of that source.

    A random function is refused. With a `version` of the function the answers are kept beside the store that the source is.

    Price: at the first use, in each process, all rows are read once and `fn` is called once a sample; a byte a sample meanwhile.
    """

    fn: Callable[..., bool]
    on_error: OnError = "raise"
    parallel: Parallel = not_in_state(SERIAL)
    version: str | None = not_in_state(None)

    def chosen_by(self) -> dict[str, Any]:
        return {"fn": described(self.fn), "on_error": self.on_error}

    def kept(self) -> NDArray[np.bool_]:
        """The answers of all rows: from the file beside the store, where there is one."""
        if self.version is None:
            return self._asked(lambda: None)
        source, *later = header_of(self.upstream)
        source = {
            name: value for name, value in source.items() if name not in ("shuffle", "seed")
        }  # rows, in any order
        words = [[source, *later], _told_apart(self.fn), self.on_error, self.version]
        name = f"filter.{hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]}"
        return self.upstream.data.cached_mask(name, len(self.upstream.index), self._asked)

    def _asked(self, working: Callable[[], None]) -> NDArray[np.bool_]:
        """The answers of the function. `working` is called after each block."""
        base, originals = self.upstream.index, facts_of(self.upstream).originals()
        name, total = f"filter({name_of(self.fn)})", len(base)
        logger.info("%s reads all %s samples once", name, f"{total:,}")
        rows = samples if originals is None else originals.samples
        ask = partial(_answers, self.fn, self.on_error, rows)
        parts = self.parallel.parts((block, None) for block in base.blocks())
        with closing(self.parallel.results(ask, parts, Run(), name)) as answers:
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


@dataclass(frozen=True, eq=False)
class SplitMask:
    """Which rows of `base` a split puts on the side for validation: asked once for both sides.

    Price: at the first use, in each process, all rows are read once, of a store with a `key` that column alone; 1 byte a row.
    """

    base: Index
    split: Split

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def valid(self) -> NDArray[np.bool_]:
        key = self.split.key
        base = self.base if key is None or not len(self.base) else self.base.only([key])
        try:
            found = [*map(self.split.valid, base.blocks())]
        except KeyError:  # there is no such column: with all of them the error says which there are
            found = [*map(self.split.valid, self.base.blocks())]
        valid = np.concatenate([np.zeros(0, dtype=bool), *found])
        refuse_split(valid, self.base.units_at(np.arange(len(valid))), key)
        return valid


@dataclass(frozen=True)
class TrainValidSplit(Selected):
    """The samples of a source on one side of a split, in the order, or shuffle, of that source."""

    mask: SplitMask
    side: Side

    def chosen_by(self) -> dict[str, Any]:
        return {**vars(self.mask.split), "side": self.side}

    def kept(self) -> NDArray[np.bool_]:
        return self.mask.valid if self.side == "valid" else ~self.mask.valid
