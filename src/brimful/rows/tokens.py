"""Texts and conversations become tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError, skipped
from brimful.core.facts import Facts, columns_by, verb_of
from brimful.core.header import described
from brimful.core.stage import not_in_state
from brimful.encoding.conversations import (
    Labelled,
    Side,
    TrainOn,
    labelled,
    messages_of,
    rendered,
    sides_of,
    template_of,
    tools_of,
)
from brimful.encoding.encoder import Encoder, Texts
from brimful.encoding.encoder_kinds import TransformersEncoder
from brimful.encoding.engines import EngineError
from brimful.encoding.turns import ChatTemplate, Turns
from brimful.plan.errors import PANIC, DataError, StageError, is_failure
from brimful.plan.once import once
from brimful.rows.parallel import FunctionStage
from brimful.tables.blocks import Block
from brimful.tables.objects import is_json
from brimful.tables.origins import HIDDEN, where
from brimful.tables.ragged import (
    LABELS,
    NOT_TRAINED_ON,
    TOKENS,
    Ragged,
    array_of,
    column_of,
    list_array,
    offsets_of,
    prefix_of,
    refuse_nulls,
    with_column,
)
from brimful.tables.schema import type_name

_REMEDY: Final = (
    ". The library gave up on this text: shorten long runs of one character in it (map), or leave it out (filter)"
)


@dataclass(frozen=True)
class Tokenize(FunctionStage):
    """Adds the tokens (int32) of text columns; the state is passed on. No two threads use one clone of the tokenizer at once.

    Args:
        column, output_column: as many of one as of the other: each by itself; or two columns and one output: pairs of texts.
        extra_outputs: what else the tokenizer says of them, each in a column of that name.
        remove_columns: columns that are left out then.
        tokenized: columns that tokenizers made before: their tokens are not replaced.
        prefix: what the names of all that is made begin with, where the user gave something. Then no column is replaced.
    """

    tokenizer: Encoder
    column: tuple[str, ...]
    output_column: tuple[str, ...]
    extra_outputs: tuple[str, ...] = ()
    remove_columns: tuple[str, ...] = ()
    tokenized: tuple[str, ...] = not_in_state(())
    prefix: str | None = not_in_state(None)

    def facts(self, *inputs: Facts) -> Facts:
        found = replace(super().facts(*inputs), functions=(*inputs[0].functions, *self.tokenizer.functions()))
        return _with_tokens(found, inputs[0], self._columns_of, self.output_column, self.tokenizer, self.column)

    def _columns_of(self, below: pa.Schema) -> pa.Schema:
        made = [pa.field(name, pa.list_(pa.int32())) for name in (*self.output_column, *self._extra)]
        gone = {*self.output_column, *self._extra, *self.remove_columns}
        return pa.schema([*(field for field in below if field.name not in gone), *made])

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

    @property
    def _extra(self) -> tuple[str, ...]:
        """The columns of the extra outputs."""
        return tuple((self.prefix or "") + name for name in self.extra_outputs)

    def work(self, block: Block) -> Callable[[], Block]:
        for name in self.output_column:
            if name in block.schema.names and name in self.tokenized:
                raise DataError(
                    f"tokenize: column {name!r} holds tokens already ({where(block, 0)}). Write these to another one, such as "
                    f"output_column='labels' for the target of a pair. Or drop {name!r} first"
                )
        for name in (*(self.output_column if self.prefix is not None else ()), *self._extra):
            if name in block.schema.names:
                raise DataError(f"tokenize: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        columns = [self._texts(block, name) for name in self.column]
        out, checks = block, []
        for number, output in enumerate(self.output_column):
            texts = columns[number : number + 1] if len(self.output_column) == len(columns) else columns
            rows, check = self._tokens(block, texts)
            checks.append(check)
            for name, tokens in zip((output, *self._extra), rows):
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
        refuse_nulls(block, column, verb_of(self))
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            advice = f"; make text of it: map(..., schema={{{column!r}: 'string'}})" if is_json(texts.type) else ""
            raise DataError(
                f"tokenize: column {column!r} must be text (got {type_name(texts.type)}; {where(block, 0)}){advice}"
            )
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


def _with_tokens(
    found: Facts,
    one: Facts,
    change: Callable[[pa.Schema], pa.Schema],
    outputs: tuple[str, ...],
    encoder: Encoder,
    texts: tuple[str, ...],
) -> Facts:
    """Facts of a chain in which an encoder made columns of tokens from columns of text."""
    return replace(
        found,
        schema=columns_by(one, change),
        from_index=False,
        tokenizers=lambda: one.tokenizers() | dict.fromkeys(outputs, (encoder,)),
        texts=lambda: tuple(dict.fromkeys((*one.texts(), *texts))),
    )


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


TOOLS: Final = "tools"
_NO_MESSAGES: Final = "; column= says which one has conversations, and map() makes them of other columns"


_REFUSED: Final = (
    ". The chat template refuses this conversation: mend it (map), or leave such rows out (on_error='skip')"
)


@dataclass(frozen=True)
class Chat(FunctionStage):
    """Adds the tokens of a conversation and its labels, int32 both; the state is passed on. No two threads use one clone of
    the tokenizer at once.

    Args:
        column: of conversations; those of a column `tools`, where there is one, may use these. Several are the sides of a prompt.
        train_on: whose tokens are labels.
        output: the column of tokens of each, `input_ids` and a prefix, which `labels` have too.
        prompt: the column of the messages before; "": what several sides begin with alike is their prompt.
        template_kwargs, end_token, train_empty_think: see `ChatTemplate`.
    """

    encoder: TransformersEncoder
    column: tuple[str, ...]
    train_on: TrainOn
    on_error: OnError = "raise"
    output: tuple[str, ...] = (TOKENS,)
    prompt: str = field(default="", kw_only=True)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    end_token: str | None = field(default=None, kw_only=True)
    train_empty_think: bool = field(default=False, kw_only=True)

    def facts(self, *inputs: Facts) -> Facts:
        found = super().facts(*inputs)
        return _with_tokens(found, inputs[0], self._columns_of, self.output, self.encoder, self._talks)

    def _columns_of(self, below: pa.Schema) -> pa.Schema:
        return pa.schema([*below, *((name, pa.list_(pa.int32())) for name in self._made)])

    @property
    def _made(self) -> tuple[str, ...]:
        """The columns that it adds."""
        return tuple(name for tokens in self.output for name in (tokens, prefix_of(tokens) + LABELS))

    @property
    def _talks(self) -> tuple[str, ...]:
        """The columns of messages."""
        return (*self.column, self.prompt) if self.prompt else self.column

    def settings(self) -> dict[str, Any]:
        more = {
            "output_prefix": [*map(prefix_of, self.output)] if self.output != (TOKENS,) else None,
            "prompt_column": self.prompt,
            "template_kwargs": described(self.template_kwargs),
            "end_token": self.end_token,
            "train_empty_think": self.train_empty_think,
        }
        return {
            "tokenizer": self.encoder.fingerprint(),
            "chat_template": hashlib.sha256(template_of(self.encoder.tokenizer).encode()).hexdigest()[:16],
            "column": self.column[0] if len(self.column) == 1 else [*self.column],
            "train_on": self.train_on,
            "on_error": self.on_error,
            **{name: value for name, value in more.items() if value},  # as states of 1.0.0rc1 have none
        }

    @property
    def called_as(self) -> str:
        return "chat"

    def work(self, block: Block) -> Block:
        for name in self._made:
            if block.schema.get_field_index(name) >= 0:
                raise DataError(f"chat: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        texts = self._rendered(block)
        with self.encoder.lent() as tokenizer:
            made = _labelled(tokenizer, [*texts.values()])
        kept: dict[int, list[Labelled]] = {}
        for (row, side), one in zip(texts, made, strict=True):
            if isinstance(one, Labelled):
                kept.setdefault(row, []).append(one)
            elif len(kept.setdefault(row, [])) == side:  # of a row that is left out, the first error is said
                self._fail(block, row, side, one)
        kept = {row: sides for row, sides in kept.items() if len(sides) == len(self.column)}
        if len(kept) < block.num_rows:
            block = block.take(pa.array([*kept], pa.int64()))
        for side, output in enumerate(self.output):
            block = _with_labels(block, [sides[side] for sides in kept.values()], output)
        return block

    def _rendered(self, block: Block) -> dict[tuple[int, int], Turns]:
        """The text of each conversation, by the number of its row and of its side."""
        columns = [column_of(block, name, remedy=_NO_MESSAGES).to_pylist() for name in self._talks]
        tools = block.column(TOOLS).to_pylist() if TOOLS in block.schema.names else [None] * block.num_rows
        # a processor takes half the time for a step where it does nothing else between two rows
        read = _each(lambda row: (self._sides(row[:-1]), tools_of(row[-1])), zip(*columns, tools, strict=True))
        begun = _each(self._begun, read)
        found: dict[tuple[int, int], Turns] = {}
        for row, turns in enumerate(_each(lambda finishes: [finish() for finish in finishes], begun)):
            if isinstance(turns, Exception):
                self._fail(block, row, None, turns)
            else:
                found |= {(row, side): one for side, one in enumerate(turns)}
        return found

    def _sides(self, row: tuple[Any, ...]) -> list[Side]:
        """The conversations of a row."""
        found = [messages_of(one) for one in row]
        if len(found) == 1:
            return [Side(found[0], 0)]
        names = self.column
        return sides_of(dict(zip(names, found)), found[-1] if self.prompt else None)

    def _begun(self, row: tuple[list[Side], Any]) -> list[Callable[[], Turns]]:
        sides, tools = row
        template = self._template(tools)
        return [rendered(template, messages, tools, self.train_on, prompt) for messages, prompt in sides]

    def _template(self, tools: Any) -> ChatTemplate:
        """The template for conversations with these tools: a tokenizer may have several."""
        tokenizer = self.encoder.tokenizer
        text = tokenizer.get_chat_template(None, tools)
        if text not in self._templates:
            self._templates[text] = ChatTemplate(
                tokenizer, text, self.template_kwargs, self.end_token, self.train_empty_think
            )
        return self._templates[text]

    @once
    def _templates(self) -> dict[str, ChatTemplate]:
        return {}

    def _fail(self, block: Block, row: int, side: int | None, error: BaseException) -> None:
        """Raises what is wrong with a row, or a side of it, with its place; or counts and logs it as left out."""
        names = self._talks if side is None else [self.column[side]]
        column = f"column {', '.join(map(repr, names))}: "
        place = f"chat failed at {where(block, row)}: {column}"
        ours = isinstance(error, DataError)
        said = f"{type(error).__name__}: {error}"
        if type(error).__name__ == "TemplateError":
            said = said.removesuffix(".") + _REFUSED
        told = DataError(f"{place}{error}") if ours else StageError(f"{place}{said}")
        if self.on_error == "raise":
            raise told from error
        skipped(told)


def _each(fn: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    """What a function makes of each row, or what is wrong with one in its place."""
    made: list[Any] = []
    for row in rows:
        try:
            made.append(row if isinstance(row, Exception) else fn(row))
        except Exception as error:
            made.append(error)
    return made


def _labelled(tokenizer: Any, texts: list[Turns]) -> list[Labelled | BaseException]:
    """The tokens of conversations, or what is wrong with one: what the tokenizer refuses is found by itself."""
    try:
        return [*labelled(tokenizer, texts)]
    except BaseException as error:
        if not is_failure(error):
            raise
        if len(texts) == 1:
            return [error]
    return [one for text in texts for one in _labelled(tokenizer, [text])]


def _with_labels(block: Block, rows: list[Labelled], output: str) -> Block:
    none = [np.zeros(0, np.int32)]
    tokens = np.concatenate(none + [row.tokens for row in rows])
    trained = np.concatenate(none + [row.trained for row in rows]).astype(bool)
    offsets = offsets_of(np.array([len(row.tokens) for row in rows], np.int64))
    labels = np.where(trained, tokens, np.int32(NOT_TRAINED_ON))
    block = with_column(block, output, list_array(tokens, offsets))
    return with_column(block, prefix_of(output) + LABELS, list_array(labels, offsets))
