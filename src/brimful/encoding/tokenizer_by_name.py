"""Tokenizers by name: a file, a folder, a name on the Hugging Face hub, or tiktoken's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


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
            from tokenizers import Tokenizer

            return Tokenizer.from_file(name)
        if name.endswith(".json"):
            raise FileNotFoundError("there is no such file")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except ImportError as error:
        extra = "tiktoken" if name.startswith("tiktoken:") else "transformers"
        raise ValueError(f"tokenizer {name!r} needs {extra}: pip install 'brimful[{extra}]'") from error
    except Exception as error:  # tokenizers raises plain Exception, the others what their downloads raise
        first = str(error).strip().split("\n")[0]
        raise ValueError(f"tokenizer {name!r} cannot be loaded: {first or type(error).__name__}") from error


def loaded(tokenizer: Any) -> Any:
    """A tokenizer that was given by its name or path, and any other as it is."""
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
