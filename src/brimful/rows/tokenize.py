"""Text to tokens: whole blocks at a time, the next ones in background threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from brimful.core.stage import runtime
from brimful.encoding.encoder import Encoder, Texts
from brimful.encoding.engines import EngineError
from brimful.plan.errors import PANIC, DataError, StageError, is_failure
from brimful.tables.blocks import Block
from brimful.tables.origins import HIDDEN, where
from brimful.tables.parallel import BlockFunction
from brimful.tables.ragged import Ragged, array_of, column_of, list_array, refuse_nulls, with_column

_REMEDY: Final = (
    ". The library gave up on this text: shorten long runs of one character in it (map), or leave it out (filter)"
)


@dataclass(frozen=True)
class Tokenize(BlockFunction):
    """Adds the tokens (int32) of text columns; the state is passed on. No two threads use one clone of the tokenizer at once.

    Args:
        column, output_column: as many of one as of the other: each by itself; or two columns and one output: pairs of texts.
        extra_outputs: what else the tokenizer says of them, each in a column of that name.
        remove_columns: columns that are left out then.
        tokenized: columns that tokenizers made before: their tokens are not replaced.
    """

    tokenizer: Encoder
    column: tuple[str, ...]
    output_column: tuple[str, ...]
    extra_outputs: tuple[str, ...] = ()
    remove_columns: tuple[str, ...] = ()
    tokenized: tuple[str, ...] = runtime(())

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        return self.upstream.tokenizers() | dict.fromkeys(self.output_column, (self.tokenizer,))

    def texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.upstream.texts(), *self.column)))

    def known_columns(self) -> pa.Schema | None:
        below = self.upstream.known_columns()
        if below is None:
            return None
        made = [pa.field(name, pa.list_(pa.int32())) for name in (*self.output_column, *self.extra_outputs)]
        gone = {*self.output_column, *self.extra_outputs, *self.remove_columns}
        return pa.schema([*(field for field in below if field.name not in gone), *made])

    def functions(self) -> list[str]:
        return [*self.upstream.functions(), *self.tokenizer.functions()]

    @property
    def called_as(self) -> str:
        return "tokenize"

    @property
    def label(self) -> str:
        return f"tokenize by {self.tokenizer.by_name}" if self._alone else "tokenize"

    @property
    def _alone(self) -> bool:
        """Whether single texts become tokens and nothing else; the tokenizer itself does the rest."""
        return len(self.output_column) == len(self.column) and not self.extra_outputs

    def apply(self, block: Block) -> Block:
        return self.begin(block)()

    def begin(self, block: Block) -> Callable[[], Block]:
        for name in self.output_column:
            if name in block.schema.names and name in self.tokenized:
                raise DataError(
                    f"tokenize: column {name!r} holds tokens already ({where(block, 0)}). Write these to another one, such as "
                    f"output_column='labels' for the target of a pair. Or drop {name!r} first"
                )
        for name in self.extra_outputs:
            if name in block.schema.names:
                raise DataError(f"tokenize: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        columns = [self._texts(block, name) for name in self.column]
        out, checks = block, []
        for number, output in enumerate(self.output_column):
            texts = columns[number : number + 1] if len(self.output_column) == len(columns) else columns
            rows, check = self._tokens(block, texts)
            checks.append(check)
            for name, tokens in zip((output, *self.extra_outputs), rows):
                out = with_column(out, name, _listed(tokens))
        done = self._without(out)

        def checked() -> Block:
            for check in checks:
                try:
                    check()
                except EngineError as error:
                    raise _unlike(block, error) from error
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    raise self._failed(block, columns, error) from error
            return done

        return checked

    def _tokens(self, block: Block, columns: list[pa.Array]) -> tuple[list[Ragged], Callable[[], None]]:
        """The tokens of each row, and the other outputs; and a function that waits until they are known to be right."""
        try:
            if not self._alone:
                return self.tokenizer.with_outputs(_rows(columns), self.extra_outputs), lambda: None
            tokens, check = self.tokenizer.begin(columns[0])
            return [tokens], check
        except EngineError as error:
            raise _unlike(block, error) from error
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._failed(block, columns, error) from error

    def _failed(self, block: Block, columns: list[pa.Array], error: BaseException) -> StageError:
        """The error of a tokenizer, with its place."""
        place = self._culprit(block, columns) or f"near {where(block, 0)}"
        remedy = _REMEDY if type(error).__name__ == PANIC else ""
        return StageError(f"tokenize failed {place}: {type(error).__name__}: {error}{remedy}")

    def _texts(self, block: Block, column: str) -> pa.Array:
        texts = column_of(block, column, remedy="; column= says which one has the text")
        refuse_nulls(block, column, self.verb)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise DataError(f"tokenize: column {column!r} must be text (got {texts.type}; {where(block, 0)})")
        return texts

    def _without(self, block: Block) -> Block:
        if missing := [name for name in self.remove_columns if name not in block.schema.names]:
            names = ", ".join(name for name in block.schema.names if not name.startswith(HIDDEN))
            raise DataError(
                f"tokenize: there is no column {missing[0]!r} to remove (columns: {names}; {where(block, 0)})"
            )
        return block.drop_columns(list(self.remove_columns)) if self.remove_columns else block

    def _culprit(self, block: Block, columns: list[pa.Array]) -> str | None:
        """The first row that fails alone too, by the tokenizer itself; None where it takes several."""
        for row in range(block.num_rows):
            try:
                alone = _rows([column.slice(row, 1) for column in columns])
                self.tokenizer.with_outputs(alone, self.extra_outputs)
            except BaseException as error:
                if not is_failure(error):
                    raise
                return f"at {where(block, row)}"
        return None


def _unlike(block: Block, error: EngineError) -> StageError:
    return StageError(f"tokenize failed at {where(block, error.row)}: {error}")


def _listed(tokens: Ragged) -> pa.Array:
    """A column of lists of integers, or of pairs of them."""
    if tokens.values.ndim == 1:
        return list_array(tokens.values, tokens.offsets)
    return list_array(pa.FixedSizeListArray.from_arrays(array_of(tokens.values.ravel()), 2), tokens.offsets)


def _rows(columns: list[pa.Array]) -> Texts:
    """Texts, or pairs of them."""
    texts = [column.to_pylist() for column in columns]
    return texts[0] if len(texts) == 1 else list(zip(*texts))
