"""Stages that change columns, a block at a time, and call no function of the user's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.facts import Facts, columns_by, row_by_row, verb_of
from brimful.core.run import Run
from brimful.core.stage import Stage, State
from brimful.plan.errors import DataError, check_bool, check_count, names_of
from brimful.rows.buffer import coalesced
from brimful.tables import ragged as kernels
from brimful.tables.blocks import UNIT, Block, visible
from brimful.tables.hashes import Side, Split
from brimful.tables.origins import HIDDEN, where
from brimful.tables.ragged import (
    LABELS,
    MASK,
    NOT_TRAINED_ON,
    SHIFTED,
    Ragged,
    array_of,
    column_of,
    empty_block,
    equally_long,
    list_array,
    null_in,
    offsets_in,
    offsets_of,
    ragged,
    surround,
    with_column,
)
from brimful.tables.units import refuse_split, unit_numbers


@dataclass(frozen=True)
class Blockwise(Stage[Block]):
    """Abstract: takes a block and gives a block, and passes the state on. Blocks without rows pass through as they are."""

    upstream: Stage[Block]

    def facts(self, *inputs: Facts) -> Facts:
        return row_by_row(self, inputs[0], schema=columns_by(inputs[0], self._columns_of))

    def items(self, at: State, run: Run) -> Generator[tuple[Block, State], None, None]:
        with closing(coalesced(self.upstream, at, run)) as items:
            for block, after in items:
                yield (self.apply(block) if block.num_rows else block), after

    @abstractmethod
    def apply(self, block: Block) -> Block:
        """The result for one block that has rows."""

    def _columns_of(self, below: pa.Schema) -> pa.Schema:
        return visible(self.apply(empty_block(below))).schema.remove_metadata()


T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """One call of such a method.

    Args:
        verb: the method.
        names: the columns that it names; `select` keeps this order.
        new: the new name of each (`rename` only).
    """

    verb: Literal["select", "drop", "rename"]
    names: tuple[str, ...]
    new: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for names in (self.names, self.new):
            names_of(self.verb, names)
        if self.verb == "select" and not self.names:
            raise ValueError("select must name at least one column (got none)")
        if hidden := [name for name in (*self.names, *self.new) if name.startswith(HIDDEN)]:
            raise ValueError(f"{self.verb}: {hidden[0]!r} begins as brimful's own columns do")

    def settings(self) -> dict[str, Any]:
        """The parameters as the user wrote them."""
        return {"names": dict(zip(self.names, self.new)) if self.verb == "rename" else list(self.names)}

    def of(self, names: Sequence[str], place: str) -> dict[str, str]:
        """The columns that are kept, in their order: the old name of each by its new name.

        Raises:
            DataError: there is no such column, or a new name is taken.
        """
        if missing := [name for name in self.names if name not in names]:
            raise DataError(f"{self.verb}: there is no column {missing[0]!r} (columns: {', '.join(names)}; {place})")
        if self.verb == "select":
            return dict(zip(self.names, self.names))
        if twice := [name for name in self.new if name in names and name not in self.names]:
            raise DataError(f"rename: there is a column {twice[0]!r} already ({place}); drop or rename it first")
        return {new: name for name, new in self._new(names)}

    def renamed(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values of the columns that are kept, under their new names."""
        return {new: values[name] for name, new in self._new(values)}

    def of_facts(self, found: Facts, one: Facts) -> Facts:
        """The facts of a chain with these columns of another one."""
        return replace(
            found,
            tokenizers=lambda: self.renamed(one.tokenizers()),
            texts=lambda: tuple(self.renamed(dict.fromkeys(one.texts()))),
        )

    def _new(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """The columns that are kept, each with its new name."""
        renamed = dict(zip(self.names, self.new))
        if self.verb == "rename":
            return [(name, renamed.get(name, name)) for name in names if name in self.names or name not in self.new]
        return [(name, name) for name in names if (name in self.names) == (self.verb == "select")]

    def apply(self, block: Block, kept: Mapping[str, str] | None = None) -> Block:
        """A block with the columns that are kept and the hidden ones. `kept`: the result of `of`, where the caller has it."""
        hidden = [name for name in block.schema.names if name.startswith(HIDDEN)]
        if kept is None:
            kept = self.of([name for name in block.schema.names if name not in hidden], where(block, 0))
        return block.select([*kept.values(), *hidden]).rename_columns([*kept, *hidden])


def renaming(names: Any) -> Choice:
    """What `rename` is called with.

    >>> renaming("text")
    Traceback (most recent call last):
    TypeError: rename takes a mapping of old names to new ones, such as {'text': 'prompt'} (got 'text')
    """
    if not isinstance(names, Mapping):
        raise TypeError(
            f"rename takes a mapping of old names to new ones, such as {{'text': 'prompt'}} (got {names!r})"
        )
    return Choice("rename", tuple(names), tuple(names.values()))


@dataclass(frozen=True)
class Choose(Blockwise):
    """The rows with the columns of a choice. Price: nothing is copied."""

    choice: Choice

    @property
    def verb(self) -> str:
        return self.choice.verb

    def facts(self, *inputs: Facts) -> Facts:
        return self.choice.of_facts(super().facts(*inputs), inputs[0])

    def settings(self) -> dict[str, Any]:
        return self.choice.settings()

    def apply(self, block: Block) -> Block:
        return self.choice.apply(block)


@dataclass(frozen=True)
class BosEos(Blockwise):
    """Abstract: puts `bos_token_id` before and `eos_token_id` after the tokens of samples (None: nothing)."""

    bos_token_id: int | None
    eos_token_id: int | None
    target_column: str

    def __post_init__(self) -> None:
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is not None:
                check_count(self, name)

    def apply(self, block: Block) -> Block:
        tokens = self.added(ragged(block, self.target_column))
        return with_column(block, self.target_column, list_array(tokens.values, tokens.offsets))

    @abstractmethod
    def added(self, tokens: Ragged) -> Ragged:
        """The tokens of a block, with these."""


@dataclass(frozen=True)
class AddBosEos(BosEos):
    """Puts both around each sample."""

    def added(self, tokens: Ragged) -> Ragged:
        return surround(tokens, self.bos_token_id, self.eos_token_id)


@dataclass(frozen=True)
class EnsureBosEos(BosEos):
    """Puts BOS before each sample that does not begin with it, and EOS after each that does not end with it (None: neither);
    where both are one id, EOS after each that neither begins nor ends with it. Price: a copy of the tokens."""

    def added(self, tokens: Ragged) -> Ragged:
        bos, eos = self.bos_token_id, self.eos_token_id
        begins, ends = _is_at(tokens, tokens.offsets[:-1], bos), _is_at(tokens, tokens.offsets[1:] - 1, eos)
        if bos == eos:
            bos, ends = None, begins | ends
        return surround(tokens, bos, eos, ~begins, ~ends)


def _is_at(tokens: Ragged, places: NDArray[np.int64], token: int | None) -> NDArray[np.bool_]:
    """Which rows have a token at these places, one a row; an empty row has none."""
    out = np.zeros(len(places), dtype=bool)
    some = tokens.offsets[:-1] < tokens.offsets[1:]
    out[some] = tokens.values[places[some]] == token
    return out


def bos_eos_of(tokenizer: Any) -> tuple[int | None, int | None]:
    """The BOS and EOS ids of a transformers tokenizer; None for one that it does not have.

    Raises:
        TypeError: the tokenizer does not say which its BOS and EOS tokens are.
        ValueError: it has neither.
    """
    if not hasattr(tokenizer, "bos_token_id") or not hasattr(tokenizer, "eos_token_id"):
        raise TypeError(
            f"ensure_bos_eos needs a tokenizer with bos_token_id and eos_token_id (got {type(tokenizer).__name__}); "
            "name the ids with add_bos_eos"
        )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None and eos is None:
        raise ValueError(
            f"ensure_bos_eos needs a tokenizer with a BOS or an EOS token ({type(tokenizer).__name__} has neither); "
            "name the ids with add_bos_eos"
        )
    return bos, eos


_MOST: Final = (1 << 31) - 1


@dataclass(frozen=True)
class CausalLabels(Blockwise):
    """The tokens of a column as labels. The first label of a sample is -100, as nothing predicts it; so are those of tokens that
    `attention_mask` hides, and of a token after a hidden one. `shift`: in a column `shift_labels`, each label where it is
    predicted; made of `labels` where the rows have them."""

    target_column: str
    shift: bool

    def __post_init__(self) -> None:
        check_bool("shift", self.shift)

    def apply(self, block: Block) -> Block:
        name = SHIFTED if self.shift else LABELS
        if block.schema.get_field_index(name) >= 0:
            raise DataError(f"causal_labels: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        # labels that the rows have already are shifted
        given = (self.target_column, LABELS) if LABELS in block.schema.names else (self.target_column,)
        tokens = equally_long(block, given, verb_of(self))[-1]
        if tokens.values.dtype.kind not in "iu":
            raise DataError(f"causal_labels: column {self.target_column!r} holds no integers ({where(block, 0)})")
        first, last = tokens.offsets[[0, -1]].tolist()
        values = tokens.values[first:last]
        if values.size and int(values.max()) > _MOST:
            raise DataError(
                f"causal_labels: {int(values.max()):,} in column {self.target_column!r} is no token id ({where(block, 0)})"
            )
        labels, offsets = values.astype(np.int32), tokens.offsets.astype(np.int64) - first
        if MASK in block.schema.names:
            mask = equally_long(block, (self.target_column, MASK), verb_of(self))[1]
            hidden = mask.values[mask.offsets[0] : mask.offsets[-1]] == 0
            hidden[1:] |= hidden[:-1].copy()  # also what would be predicted from a hidden one
            labels[hidden] = NOT_TRAINED_ON
        begins = offsets[:-1][tokens.lengths > 0]
        labels[begins] = NOT_TRAINED_ON
        if self.shift:
            # the first label of the next sample, -100, ends this one
            labels = np.append(labels[1:], labels.dtype.type(NOT_TRAINED_ON))
        return with_column(block, name, list_array(labels, offsets))


@dataclass(frozen=True)
class Pad(Blockwise):
    """Fills each list of the columns in `values` to `length` values; a longer one is an error.

    What was there is remembered in `attention_mask`, by the first of these columns; one that the rows have is filled too.
    """

    length: int
    values: dict[str, int]

    def __post_init__(self) -> None:
        check_count(self, "length", 1, "token")
        if not self.values:
            raise ValueError("values must name at least one column (got none)")
        value: Any
        for name, value in self.values.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"values[{name!r}] of pad must be a number (got {value!r})")
            if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**64:
                raise ValueError(f"values[{name!r}] of pad must fit into 64 bits (got {value!r:.80})")

    def apply(self, block: Block) -> Block:
        masked = MASK in self.values or block.schema.get_field_index(MASK) >= 0
        if not masked:
            column = ragged(block, next(iter(self.values)))
            ones = np.ones(int(column.lengths.sum()), dtype=np.int8)
            block = with_column(block, MASK, list_array(ones, offsets_of(column.lengths)))
        for name, value in (self.values | {MASK: self.values.get(MASK, 0)}).items():
            block = self._filled(block, name, value)
        return block

    def _filled(self, block: Block, name: str, value: int) -> Block:
        column = ragged(block, name)
        long = np.flatnonzero(column.lengths > self.length)
        if len(long):
            raise DataError(
                f"pad: column {name!r} has {column.lengths[long[0]]:,} values ({where(block, int(long[0]))}), more than "
                f"length={self.length:,}; chunk, truncate or filter it"
            )
        own = column.values.dtype
        fraction = own.kind in "iu" and not float(value).is_integer()
        if fraction or (own.kind == "f" and float(np.finfo(own).max) < abs(float(value)) < np.inf):
            raise DataError(f"pad: column {name!r} holds {own}, which cannot hold its value {value}")
        spans = column.spans(np.arange(block.num_rows))
        dtype = kernels.holding(own, value)
        padded = kernels.pad(column.values, *spans, self.length, value, dtype, left=False)
        offsets = np.arange(block.num_rows + 1) * self.length
        return with_column(block, name, list_array(padded.ravel(), offsets))


@dataclass(frozen=True)
class TrainValidSplit(Blockwise):
    """The rows on one side of a split."""

    split: Split
    side: Side

    def settings(self) -> dict[str, Any]:
        return {**vars(self.split), "side": self.side}

    def facts(self, *inputs: Facts) -> Facts:
        return row_by_row(self, *inputs)

    def apply(self, block: Block) -> Block:
        valid = self.split.valid(block)
        if UNIT in block.schema.names:
            refuse_split(valid, unit_numbers(block), self.split.key)
        return block.filter(array_of(valid == (self.side == "valid")))


def bytes_of(column: str) -> str:
    """The name of the hidden column."""
    return f"{HIDDEN}bytes of {column}"


@dataclass(frozen=True)
class TextBytes(Blockwise):
    """Adds the UTF-8 bytes of a text column, as a hidden column of lists. Price: 5 ns a row; no byte is copied."""

    verb = ""

    column: str

    def facts(self, *inputs: Facts) -> Facts:
        return replace(super().facts(*inputs), streamed_by=inputs[0].streamed_by or "map_batches_in_order")

    def apply(self, block: Block) -> Block:
        array = column_of(block, self.column)
        if pa.types.is_dictionary(array.type) or pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_null(array.type)):
            raise DataError(f"column {self.column!r} must be text (got {array.type}; {where(block, 0)})")
        null = null_in(array)
        if array.null_count == len(array):
            found = list_array(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64), null)
        else:
            offsets, data = offsets_in(array), array.buffers()[2]
            values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            found = list_array(values[offsets[0] : offsets[-1]], offsets - offsets[0], null)
        return with_column(block, bytes_of(self.column), found)
