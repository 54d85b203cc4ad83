"""Which encoder a tokenizer gets, whoever made it, and with which settings."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from tokenizers import Tokenizer
from tokenizers.implementations.base_tokenizer import BaseTokenizer

from brimful.encoding.encoder import OFFSETS, Encoder, Padding
from brimful.encoding.encoder_kinds import (
    OUTPUTS,
    CallableEncoder,
    FastEncoder,
    GigatokenEncoder,
    TiktokenEncoder,
    TransformersEncoder,
)
from brimful.encoding.engines import EngineName
from brimful.plan.errors import check_mapping, integer, logger, one_of

_STRATEGIES: Final = ("longest_first", "only_first", "only_second", "do_not_truncate")
_FAST: Final = {"truncation", "max_length", "add_special_tokens", "split_special_tokens"}
_GIGATOKEN: Final = {"truncation", "max_length", "add_special_tokens"}
_TIKTOKEN: Final = _GIGATOKEN | {"allowed_special", "disallowed_special"}
_NO_LIMIT: Final = 10**9
_ONE_ROW: Final = "tokenize makes one row of each text; chunk cuts tokens, flat_map makes several rows of one"
_OF_OUTPUTS: Final = "name what you want of it in extra_outputs="
_NOT_SERVED: Final = {
    "padding": "padding belongs to the batch",
    "pad_to_multiple_of": "padding belongs to the batch, whose methods take it",
    "padding_side": "padding belongs to the batch: pad_side=",
    "return_tensors": "batches make the tensors",
    "return_overflowing_tokens": _ONE_ROW,
    "stride": _ONE_ROW,
    "return_length": "batches have lengths",
    "return_attention_mask": _OF_OUTPUTS,
    "return_token_type_ids": _OF_OUTPUTS,
    "return_special_tokens_mask": _OF_OUTPUTS,
    "return_offsets_mapping": _OF_OUTPUTS,
    "is_split_into_words": "the column holds texts, not lists of words: join them (map)",
    "text_pair": "tokenize(column=(one, other)) makes pairs",
    "text_target": "tokenize(column=(source, target), output_column=('input_ids', 'labels')) tokenizes both",
}
"""Keywords of a transformers call that ask for what a row has no place for, and what to do."""
_FOR_TEMPLATES: Final = {"documents", "kwargs"}
_NO_KEYWORDS: Final = {"self", "text", "text_pair_target", "tokenizer_kwargs", "kwargs", *_NOT_SERVED}


def encoder_for(
    tokenizer: Any,
    kwargs: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    *,
    pairs: bool = False,
    outputs: tuple[str, ...] = (),
    engine: EngineName = "auto",
) -> Encoder:
    """The encoder for a tokenizer: `tokenizers`, fast or slow `transformers`, `tiktoken`, `gigatoken`, any callable, or the name
    of one (see `load_tokenizer`).

    Keywords are those of a transformers call. Padding belongs to the batch and is refused here.

    Args:
        asked: truncation, max_length and add_special_tokens, where they are not for the tokenizer's call but to be seen to.
        pairs: it is for pairs of texts.
        outputs: what it is asked for beside the tokens.
        engine: what makes the tokens of columns.
    Raises:
        TypeError: for anything else.
        ValueError: for a keyword that the tokenizer does not take, for padding, for truncation to no length, for what it cannot
            do, and for an engine that is named and cannot stand in for it.

    >>> encoder_for(lambda texts: [[len(text)] for text in texts])(["a", "bc"]).values.tolist()
    [1, 2]
    """
    one_of("engine", engine, *get_args(EngineName))
    if engine not in ("auto", "tokenizer") and (pairs or outputs):
        raise ValueError(
            f"engine={engine!r} makes tokens alone, of single texts; of pairs, and extra_outputs=, the tokenizer does"
        )
    tokenizer = loaded(tokenizer)
    settings = dict(kwargs or {})
    if settings.pop("padding", None):
        raise ValueError("padding belongs to the batch: leave it out of tokenizer_kwargs")
    if twice := sorted(settings.keys() & (asked or {}).keys()):
        raise ValueError(f"tokenize: {twice[0]} is given twice, as an argument and in tokenizer_kwargs; give it once")
    request = _Request(settings | dict(asked or {}), pairs, outputs, engine)
    if isinstance(tokenizer, Tokenizer):
        return _of_tokenizers(tokenizer, request)
    if hasattr(tokenizer, "model_max_length"):
        return _of_transformers(tokenizer, request)
    if hasattr(tokenizer, "encode_ordinary_batch"):
        most = _max_length("tiktoken.Encoding", _TIKTOKEN, request)
        own_kwargs = {name: value for name, value in request.settings.items() if name not in _FAST}
        return TiktokenEncoder(tokenizer, own_kwargs, most, engine=engine)
    if type(tokenizer).__module__.partition(".")[0] == "gigatoken" and hasattr(tokenizer, "encode_batch_list"):
        most = _max_length("gigatoken.Tokenizer", _GIGATOKEN, request)
        return GigatokenEncoder(tokenizer, most, engine="auto" if engine == "gigatoken" else engine)
    if callable(tokenizer):
        if asked:
            raise ValueError(
                f"tokenize: {', '.join(asked)} cannot be seen to for a callable, which alone knows what it adds to the texts; "
                "let it do that itself (tokenizer_kwargs go to it)"
            )
        return CallableEncoder(tokenizer, settings, engine=engine)
    raise TypeError(
        "a tokenizer must be from tokenizers, transformers or tiktoken, or a callable list[str] -> list[list[int]] "
        f"(got {type(tokenizer).__name__})"
    )


class _Request(NamedTuple):
    """The arguments of `encoder_for`, checked as far as they concern every tokenizer."""

    settings: dict[str, Any]
    pairs: bool
    outputs: tuple[str, ...]
    engine: EngineName


def _of_tokenizers(tokenizer: Tokenizer, request: _Request) -> FastEncoder:
    _refuse_unknown("tokenizers.Tokenizer", request.settings, _FAST)
    _refuse_outputs("tokenizers.Tokenizer", request.outputs, OUTPUTS)
    own, pads = tokenizer.truncation, tokenizer.padding
    side = own["direction"].lower() if own else "right"
    padding = None if pads is None else Padding(pads["pad_id"], pads["direction"].lower())
    return _fast(tokenizer, request, own, side, None, tokenizer.encode_special_tokens, padding)


def _of_transformers(tokenizer: Any, request: _Request) -> Encoder:
    settings, pairs, outputs, engine = request
    backend = getattr(tokenizer, "backend_tokenizer", None)
    padding = Padding(tokenizer.pad_token_id, tokenizer.padding_side)
    limit = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
    itself = encodes_itself(tokenizer)
    _refuse_not_served(tokenizer, settings, outputs, itself)
    called = settings.keys() - _FAST or set(outputs) - OUTPUTS.keys() or itself
    if not isinstance(backend, Tokenizer) or called:
        most = _truncated(settings, limit, 1, pairs)[0]
        return TransformersEncoder(_copied(tokenizer), settings, most, padding=padding, engine=engine)
    side, split = tokenizer.truncation_side, tokenizer.split_special_tokens
    return _fast(backend, request, None, side, limit, split, padding)


def _max_length(name: str, known: set[str], request: _Request) -> int | None:
    """To how many tokens rows are cut (None: not at all) for a tokenizer that makes tokens alone, of single texts."""
    _refuse_unknown(name, request.settings, known)
    _refuse_outputs(name, request.outputs, {})
    if request.pairs:
        raise ValueError(f"{name} makes no row of a pair of texts; give each column an output of its own")
    return _truncated(request.settings, None, 1, pairs=False)[0]


def chat_encoder_for(
    tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None, end_token: str | None = None
) -> TransformersEncoder:
    """The encoder of a tokenizer that has a chat template, or of the name of one.

    Args:
        template_kwargs: what is to go to the template, too.
        end_token: what is to end turns that the template leaves open.
    Raises:
        TypeError: it is none of transformers.
        ValueError: it has no template; or it does not know the end token; or names are taken.
    """
    tokenizer = loaded(tokenizer)
    if not hasattr(tokenizer, "get_chat_template"):
        raise TypeError(
            f"chat takes a tokenizer of transformers, whose chat template it follows (got {type(tokenizer).__name__}); "
            "AutoTokenizer.from_pretrained has it, or a template of your own: tokenizer.chat_template = ..."
        )
    if not tokenizer.chat_template:
        raise ValueError(
            f"this {type(tokenizer).__name__} has no chat_template, so how it writes a conversation is not known; take that of "
            "the model that was tuned to chat, or set tokenizer.chat_template"
        )
    if "strftime_now" in str(tokenizer.chat_template):
        logger.warning(
            "the chat template of this %s writes today's date, so that the same data have other tokens tomorrow, after a resume "
            "too: keep them by to_store(path), or set tokenizer.chat_template to one without strftime_now",
            type(tokenizer).__name__,
        )
    kwargs = check_mapping("template_kwargs", template_kwargs, "{'enable_thinking': False}")
    own = inspect.signature(type(tokenizer).apply_chat_template).parameters.keys() | {"messages"}
    if taken := sorted(kwargs.keys() & (own - _FOR_TEMPLATES)):
        raise ValueError(f"template_kwargs go to the chat template, and {taken[0]!r} is no variable of yours in it")
    if end_token is not None and end_token not in tokenizer.get_vocab():
        raise ValueError(
            f"end_token must be a token of this {type(tokenizer).__name__} (got {end_token!r}). Its add_special_tokens adds one"
        )
    padding = Padding(tokenizer.pad_token_id, tokenizer.padding_side)
    return TransformersEncoder(_copied(tokenizer, ""), {}, padding=padding, engine="tokenizer")


def _refuse_not_served(tokenizer: Any, settings: dict[str, Any], outputs: tuple[str, ...], itself: bool) -> None:
    """Refuses what a transformers tokenizer would take, and rows have no place for; and what it would pass over in silence.

    Args:
        itself: its class encodes in its own way, and may know more keywords and outputs.
    """
    for name, remedy in _NOT_SERVED.items():
        if settings.get(name):
            raise ValueError(f"{name}={settings[name]!r} is not served: {remedy}; leave it out of tokenizer_kwargs")
    if OFFSETS in outputs and not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} has no output {OFFSETS!r}: it is written in Python, and knows no offsets; take a fast "
            "one"
        )
    if not itself:
        _refuse_outputs(type(tokenizer).__name__, outputs, OUTPUTS)
    if not itself and tokenizer.is_fast:
        known = {*inspect.signature(type(tokenizer).__call__).parameters, *_FAST} - _NO_KEYWORDS
        _refuse_unknown(
            type(tokenizer).__name__, {name: settings[name] for name in settings.keys() - _NOT_SERVED}, known
        )


def encodes_itself(tokenizer: Any) -> bool:
    """Whether the class of a transformers tokenizer has its own way to encode, around the tokenizer that it holds."""
    ways = (getattr(type(tokenizer), name, None) for name in ("__call__", "_encode_plus", "_batch_encode_plus"))
    return any(way is not None and not way.__module__.startswith("transformers.tokenization_") for way in ways)


def _fast(
    tokenizer: Any,
    request: _Request,
    own: dict[str, Any] | None,
    side: str,
    limit: int | None,
    split: bool,
    padding: Padding | None,
) -> FastEncoder:
    settings, pairs, _, engine = request
    special = settings.get("add_special_tokens", True)
    least = max(1, tokenizer.num_special_tokens_to_add(pairs)) if special else 1
    max_length, strategy = _truncated(settings, limit, least, pairs)
    truncation: dict[str, Any] | None = None
    if max_length is not None:
        truncation = {"max_length": max_length, "direction": side} | ({"strategy": strategy} if pairs else {})
    elif settings.get("truncation") is None:
        truncation = own
    split = settings.get("split_special_tokens", split)
    added = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items()}
    try:
        serialized = tokenizer.to_str()
    except Exception as error:
        raise _uncopied(tokenizer, error) from error
    return FastEncoder(serialized, truncation, special, split, added, padding=padding, engine=engine)


_FUNCTION: Final = ". tokenize takes a function, too: lambda texts: [one.ids for one in tokenizer.encode_batch(texts)]"


def _copied(tokenizer: Any, or_else: str = _FUNCTION) -> Any:
    try:
        return copy.deepcopy(tokenizer)
    except Exception as error:
        raise _uncopied(tokenizer, error, or_else) from error


def _uncopied(tokenizer: Any, error: Exception, or_else: str = _FUNCTION) -> ValueError:
    return ValueError(
        f"this {type(tokenizer).__name__} cannot be copied for threads and processes: {error}. Take parts of the library "
        f"alone{or_else}"
    )


def _truncated(settings: Mapping[str, Any], limit: int | None, least: int, pairs: bool) -> tuple[int | None, str]:
    """To how many tokens rows are cut (None: not at all, or not said), and in which text of a pair; by transformers' rules: a
    max_length alone asks for it, and without one it is the model's `limit`."""
    wanted, max_length = settings.get("truncation"), settings.get("max_length")
    named = {True: "longest_first", False: "do_not_truncate", None: "longest_first"}
    strategy = named[wanted] if wanted is None or isinstance(wanted, bool) else getattr(wanted, "value", wanted)
    if strategy not in _STRATEGIES:
        raise ValueError(f"truncation must be True, False or one of {', '.join(_STRATEGIES)} (got {wanted!r})")
    if strategy == "only_second" and not pairs:
        raise ValueError("truncation='only_second' cuts the second text of a pair; here each row is made of one text")
    if strategy == "do_not_truncate" or (wanted is None and max_length is None):
        return None, strategy
    max_length = limit if max_length is None else max_length
    if max_length is None:
        raise ValueError("truncation needs max_length, in tokens: tokenize(..., truncation=True, max_length=512)")
    return integer("max_length", max_length, least, "token" if least == 1 else "tokens"), strategy


def _refuse_unknown(name: str, settings: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"unknown tokenizer_kwargs for {name}: {', '.join(unknown)} (it takes {', '.join(sorted(known))})"
        )


def _refuse_outputs(name: str, outputs: tuple[str, ...], known: Mapping[str, str]) -> None:
    if unknown := [output for output in outputs if output not in known]:
        raise ValueError(f"{name} has no output {unknown[0]!r} (it has {', '.join([*known][1:]) or 'tokens alone'})")


# -- by name --------------------------------------------------------------------------------------------------------------


def load_tokenizer(name: str | os.PathLike[str]) -> Any:
    """A tokenizer by name.

    Args:
        name: a tokenizer.json; a folder or a name for transformers; or tiktoken:NAME.
    Raises:
        ValueError: there is none, or it cannot be read; or the library that it needs is not installed.
    """
    name = os.fspath(name)
    try:
        if name.startswith("tiktoken:"):
            import tiktoken

            return tiktoken.get_encoding(name.removeprefix("tiktoken:"))
        if Path(name).is_file():
            return Tokenizer.from_file(name)
        if name.endswith(".json"):
            raise FileNotFoundError("there is no such file")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except ImportError as error:
        extra = "tiktoken" if name.startswith("tiktoken:") else "transformers"
        raise ValueError(f"tokenizer {name!r} needs {extra}: pip install 'brimful[{extra}]'") from error
    except Exception as error:  # tokenizers raises plain Exception, the others what their downloads raise
        first = str(error).strip().split("\n")[0].rstrip(": ") or type(error).__name__
        check_mapping = not (name.startswith("tiktoken:") or name.endswith(".json") or Path(name).exists())
        here = "no file or folder of that name is here, and as a name for transformers: " if check_mapping else ""
        raise ValueError(f"tokenizer {name!r} cannot be loaded: {here}{first}{_files_in(Path(name))}") from error


def _files_in(folder: Path) -> str:
    """What to name instead of a folder that is no tokenizer's, but may hold some."""
    files = sorted(file.name for file in folder.glob("*.json"))
    if not files or "tokenizer.json" in files:
        return ""
    return f" (the folder has no tokenizer.json; name one of its files if that is one: {', '.join(files[:5])})"


def loaded(tokenizer: Any) -> Any:
    """A tokenizer that was given by its name or path; one of `tokenizers` without the class around it; any other as it is."""
    if isinstance(tokenizer, BaseTokenizer):
        return tokenizer._tokenizer
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
