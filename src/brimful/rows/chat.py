"""Conversations to tokens and labels, by the chat template of the tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from brimful.core.counters import OnError, skipped
from brimful.core.stage import described
from brimful.encoding.conversations import (
    Labelled,
    TrainOn,
    labelled,
    messages_of,
    rendered,
    template_of,
    tools_of,
)
from brimful.encoding.encoder_kinds import TransformersEncoder
from brimful.encoding.turns import ChatTemplate, Turns
from brimful.plan.errors import DataError, StageError, is_failure
from brimful.plan.once import once
from brimful.tables.blocks import Block
from brimful.tables.origins import where
from brimful.tables.parallel import BlockFunction
from brimful.tables.ragged import LABELS, NOT_TRAINED_ON, column_of, list_array, offsets_of, with_column

TOKENS: Final = "input_ids"
TOOLS: Final = "tools"
_NO_MESSAGES: Final = "; column= says which one has conversations, and map() makes them of other columns"


_REFUSED: Final = (
    ". The chat template refuses this conversation: mend it (map), or leave such rows out (on_error='skip')"
)


@dataclass(frozen=True)
class Chat(BlockFunction):
    """Adds the tokens of a conversation and its labels, int32 both; the state is passed on. No two threads use one clone of
    the tokenizer at once.

    Args:
        column: of conversations; those of a column `tools`, where there is one, may use these.
        train_on: whose tokens are labels.
        output: the column of tokens.
        template_kwargs, end_token, train_empty_think: see `ChatTemplate`.
    """

    encoder: TransformersEncoder
    column: str
    train_on: TrainOn
    on_error: OnError = "raise"
    output: tuple[str] = (TOKENS,)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    end_token: str | None = field(default=None, kw_only=True)
    train_empty_think: bool = field(default=False, kw_only=True)

    def known_columns(self) -> pa.Schema | None:
        below = self.upstream.known_columns()
        tokens = pa.list_(pa.int32())
        return below and pa.schema([*below, (self.output[0], tokens), (LABELS, tokens)])

    def settings(self) -> dict[str, Any]:
        more = {
            "template_kwargs": described(self.template_kwargs),
            "end_token": self.end_token,
            "train_empty_think": self.train_empty_think,
        }
        return {
            "tokenizer": self.encoder.fingerprint(),
            "chat_template": hashlib.sha256(template_of(self.encoder.tokenizer).encode()).hexdigest()[:16],
            "column": self.column,
            "train_on": self.train_on,
            "on_error": self.on_error,
            **{name: value for name, value in more.items() if value},  # as states of 1.0.0rc1 have none
        }

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        return self.upstream.tokenizers() | dict.fromkeys(self.output, (self.encoder,))

    def texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.upstream.texts(), self.column)))

    @property
    def called_as(self) -> str:
        return "chat"

    def apply(self, block: Block) -> Block:
        for name in (*self.output, LABELS):
            if block.schema.get_field_index(name) >= 0:
                raise DataError(f"chat: there is a column {name!r} already ({where(block, 0)}); drop or rename it")
        texts = self._rendered(block)
        with self.encoder.lent() as tokenizer:
            made = _labelled(tokenizer, [*texts.values()])
        kept: dict[int, Labelled] = {}
        for row, one in zip(texts, made, strict=True):
            if isinstance(one, Labelled):
                kept[row] = one
            else:
                self._fail(block, row, one)
        if len(kept) < block.num_rows:
            block = block.take(pa.array([*kept], pa.int64()))
        return _with_labels(block, [*kept.values()], self.output[0])

    def _rendered(self, block: Block) -> dict[int, Turns]:
        """The text of each row, by its number."""
        conversations = column_of(block, self.column, remedy=_NO_MESSAGES).to_pylist()
        tools = block.column(TOOLS).to_pylist() if TOOLS in block.schema.names else [None] * block.num_rows
        found = {}
        for row, (conversation, known) in enumerate(zip(conversations, tools, strict=True)):
            try:
                known = tools_of(known)
                found[row] = rendered(self._template(known), messages_of(conversation), known, self.train_on)
            except Exception as error:
                self._fail(block, row, error)
        return found

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

    def _fail(self, block: Block, row: int, error: BaseException) -> None:
        """Raises what is wrong with a row, with its place; or counts and logs it as left out."""
        place = f"chat failed at {where(block, row)}: column {self.column!r}: "
        ours = isinstance(error, DataError)
        said = f"{type(error).__name__}: {error}"
        if type(error).__name__ == "TemplateError":
            said = said.removesuffix(".") + _REFUSED
        told = DataError(f"{place}{error}") if ours else StageError(f"{place}{said}")
        if self.on_error == "raise":
            raise told from error
        skipped(told)


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
    return with_column(with_column(block, output, list_array(tokens, offsets)), LABELS, list_array(labels, offsets))
