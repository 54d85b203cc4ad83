"""Samples in memory: a list of dicts or of strings, an Arrow table, lengths alone; and any index as a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brimful.core.facts import Facts, facts_of, rng_slot
from brimful.core.header import CHECKSUMS, header_of
from brimful.core.repeat import awaited
from brimful.core.stage import BLOCK_ROWS, Stage
from brimful.index.index import BlockIndex, DataIndex, Index
from brimful.index.indexed import RowNumbers, Source
from brimful.index.order import Order, announced
from brimful.plan import random
from brimful.plan.errors import DataError, check_bool, check_count
from brimful.plan.once import once
from brimful.sources.data_libraries import rows_of, stored
from brimful.sources.iterable import drawn, numbered
from brimful.tables.blocks import Block, concat
from brimful.tables.origins import ORIGIN, origins
from brimful.tables.ragged import with_column
from brimful.tables.schema import first_rows, infer, samples_in


@dataclass(frozen=True, eq=False)
class SequenceIndex(BlockIndex):
    """A list of dicts or strings, or an Arrow table; columnar from the first use on, when its values are hashed too.
    (Data sets of Hugging Face that are not tables: see `sources.data_libraries`.)"""

    sequence: Any

    @once
    def block(self) -> Block:
        rows = rows_of(self.sequence)
        if isinstance(rows, pa.Table):
            block = concat(map(stored, rows.to_batches()))
            return with_column(block, ORIGIN, origins("sequence", np.arange(block.num_rows), "row"))
        samples = list(drawn((rows[row] for row in range(len(rows))), "from_sequence", 0))
        if samples and isinstance(samples[-1], Exception):
            raise samples[-1]
        starts = range(0, len(samples), BLOCK_ROWS)
        return concat(numbered(samples[first : first + BLOCK_ROWS], "from_sequence", first) for first in starts)

    def __len__(self) -> int:
        now = len(self.sequence)
        if "block" in vars(self) and now != self.block.num_rows:
            raise DataError(
                f"the data given to from_sequence had {self.block.num_rows:,} samples at their first use, and have {now:,} now. "
                "Make a new data set of them: from_sequence(data)"
            )
        return now

    @property
    def known_schema(self) -> pa.Schema | None:
        """Of a long list those of its first samples, so that looking does not make all of it columnar."""
        if len(self) <= BLOCK_ROWS or "block" in vars(self):
            return self.schema
        rows = rows_of(self.sequence)
        if isinstance(rows, pa.Table):
            return stored(rows.slice(0, 1).to_batches()[0]).schema.remove_metadata()
        return infer(samples_in(first_rows(drawn((rows[row] for row in range(len(rows))), "from_sequence", 0))))

    def fingerprint(self) -> dict[str, Any]:
        return {"rows": len(self), CHECKSUMS: self.checksums}


@dataclass(frozen=True, eq=False)
class CachedIndex(BlockIndex):
    """The rows of the first epoch of a chain, read once, kept in memory."""

    made_by = "cache"

    upstream: Stage[Block]

    @property
    def counted(self) -> bool:
        return "block" in vars(self)

    @property
    def known_schema(self) -> pa.Schema | None:
        if self.counted:
            return self.schema
        known: pa.Schema | None = facts_of(self.upstream).schema()
        return known

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        return facts_of(self.upstream).tokenizers()

    def texts(self) -> tuple[str, ...]:
        return facts_of(self.upstream).texts()

    def functions(self) -> list[str]:
        return [*facts_of(self.upstream).functions]

    @once
    def block(self) -> Block:
        with awaited(self.upstream, self.upstream.start(0)) as items:
            return concat(block for block, _ in items)

    def fingerprint(self) -> dict[str, Any]:
        return {"of": header_of(self.upstream), CHECKSUMS: self.checksums}


@dataclass(frozen=True, eq=False)
class LengthIndex(DataIndex):
    """Samples of which nothing but the lengths is known, int64 (n,) or (n, d)."""

    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def lengths_at(self, numbers: NDArray[np.int64], columns: Sequence[str], required: bool) -> NDArray[np.int64]:
        return self.values[numbers]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])

    def locate(self, numbers: NDArray[np.int64]) -> tuple[Block, NDArray[np.int64]]:
        return self._origins, numbers

    def fingerprint(self) -> dict[str, int]:
        return {"samples": len(self), "lengths_crc32": self._crc32}

    @once
    def _crc32(self) -> int:
        return crc32(np.ascontiguousarray(self.values).data)

    @once
    def _origins(self) -> Block:
        """Rows of nothing but their number, which a message about one of them names."""
        return pa.RecordBatch.from_arrays([origins("lengths", np.arange(len(self)), "sample")], [ORIGIN])


@dataclass(frozen=True)
class FromSequence(Source):
    """The samples of an index, as they are or in another order each epoch. State: [epoch, samples handed on]."""

    rows: DataIndex
    shuffle: bool
    seed: int

    @property
    def verb(self) -> str:
        return self.rows.made_by

    def __post_init__(self) -> None:
        check_count(self, "seed", None)
        check_bool("shuffle", self.shuffle)

    def facts(self, *inputs: Facts) -> Facts:
        rows = self.rows
        return replace(
            super().facts(*inputs),
            schema=lambda: rows.known_schema,
            draws=int(self.shuffle),
            one_by_one=rows.one_by_one,
            tokenizers=rows.tokenizers,
            texts=rows.texts,
            functions=tuple(rows.functions()),
            originals=lambda: rows.originals,
            newest=rows.newest,
            mixed_by="shuffle=True moves each row by itself. Leave it out, and call units and then shuffle"
            * self.shuffle,
        )

    @property
    def counted(self) -> bool:
        return self.rows.counted

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        return self.rows.measured(columns, required)

    @property
    def index(self) -> Index:
        return self.rows

    def settings(self) -> dict[str, Any]:
        return {**self.rows.fingerprint(), "shuffle": self.shuffle, "seed": self.seed}

    @property
    def in_index_order(self) -> bool:
        return not self.shuffle

    @property
    def data(self) -> DataIndex:
        return self.rows

    def ordered(self, index: Index, epoch: int) -> RowNumbers:
        return announced(
            Order(len(index), random.key(self.seed, rng_slot(self), epoch) if self.shuffle else None), index
        )
