"""A user's function on whole blocks of rows: the fast way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brimful.plan.errors import StageError, name_of
from brimful.tables.blocks import Block, visible, with_origin
from brimful.tables.origins import where
from brimful.tables.plain import without_extensions
from brimful.tables.ragged import EMPTY
from brimful.tables.schema import complete, first_misfit, fitted, named, settled
from brimful.tables.typed import ByBlock


@dataclass(frozen=True)
class MapBlocks(ByBlock[Block]):
    """`fn(block)` in place of each block of rows; where it keeps the number of rows, they keep their origin."""

    makes_long_blocks = True
    itemwise = True

    fn: Callable[[Block], Block]

    def block_of(self, block: Block, given: Block, schema: pa.Schema) -> Block:
        out = given
        if not out.num_rows:
            return EMPTY
        if unknown := [name for name in out.schema.names if name not in schema.names]:
            raise self._error(
                block, f"it returned a column {unknown[0]!r} that its first rows have not; return it always"
            )
        try:
            out = fitted(out, schema)
        except pa.ArrowException:
            name, _ = first_misfit(out, schema)
            wanted, found = (named(one.field(name).type) for one in (schema, out.schema))
            raise self._error(
                block, f"column {name!r} is {wanted} in its first rows but {found} here; return one type always"
            ) from None
        return with_origin(out, block, np.arange(block.num_rows)) if out.num_rows == block.num_rows else out

    def types_of(self, given: Sequence[Block]) -> tuple[pa.Schema, bool]:
        blocks, schema = list(filter(len, given)), pa.schema([])
        with suppress(pa.ArrowException):  # what goes with none before it is found when it is held against these
            for block in blocks:
                schema = pa.unify_schemas([schema, block.schema.remove_metadata()], promote_options="permissive")
        return settled(schema), complete(schema, (block.schema.names for block in blocks))

    def call(self, block: Block) -> Block:
        try:
            out = self.fn(visible(block))
        except Exception as error:
            raise self._error(block, f"{type(error).__name__}: {error}") from error
        if not isinstance(out, pa.RecordBatch):
            raise StageError(f"{self.called_as} must return a pyarrow.RecordBatch (got {type(out).__name__})")
        return without_extensions(out)

    @property
    def called_as(self) -> str:
        return f"map_blocks({name_of(self.fn)})"

    def _error(self, block: Block, message: str) -> StageError:
        return StageError(f"{self.called_as} failed in the block from {where(block, 0)} on: {message}")
