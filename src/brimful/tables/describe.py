"""What a data set, or batches, say of themselves, as text and as a table: without a row being read for it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from reprlib import repr as brief
from typing import Any, Final

import pyarrow as pa

from brimful.core.facts import Facts, chain, facts_of, label_of
from brimful.core.header import SHUFFLES
from brimful.core.stage import Stage
from brimful.tables.arrays import kind_of
from brimful.tables.blocks import WIDE
from brimful.tables.ragged import is_list
from brimful.tables.schema import type_name

UNREAD: Final = "not known before rows are read"
_ERRORS: Final = (ValueError, RuntimeError, OSError)
"""Reading would raise these too; this is for looking."""
_USUAL: Final = {
    **{"overlong": "raise", "drop_last": False, "shuffle_batches": True, "balance_group": 1, "seed": 42},
    **{"pad_to_multiple_of": 1, "planner": "greedy", "rows": 1, "sort": True},
}
"""Settings that are not shown, unless a user gave another value."""


def described_chain(
    stage: Stage[Any], data: Stage[Any], repeats: bool, planned_by: str = "", batches: int | None = None
) -> dict[str, str]:
    """What is known of a chain, in words.

    Args:
        stage: the chain.
        data: as far as it counts rows: the same, or the stage that plans its batches.
        repeats: whether it runs again and again.
        planned_by: the settings by which its batches are planned.
        batches: how many there are, where they have been counted.
    """
    found = {"stages": " > ".join(chain(stage, _stage))}
    if planned_by:
        found["planned by"] = planned_by
    found |= {"columns": _columns(facts_of(stage)), "rows": _rows(facts_of(data))}
    if repeats:
        found["rows"] += ", repeated"
    return found if batches is None else found | {"batches": f"{batches:,}"}


def as_text(kind: str, found: dict[str, str], repeats: bool) -> str:
    """Its stages on a line, as a person calls them, and what else is known on lines of their own."""
    head = f"{kind}({found['stages']}{', repeat' if repeats else ''})"
    return "\n".join([head, *(f"  {name}: {words}" for name, words in found.items() if name != "stages")])


def as_html(kind: str, found: dict[str, str]) -> str:
    """The same as a table for a notebook."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(words)}</td></tr>'
        for name, words in found.items()
    )
    return f"<table><caption>{escape(kind)}</caption><tbody>{rows}</tbody></table>"


def written(settings: Mapping[str, Any]) -> str:
    """Settings as `described` has them, nearly as users write them: without those that are None, or as usual.

    >>> written({"policy": {"type": "FixedSize", "n": 4096, "sort": True}, "overlong": "drop", "seed": 42})
    "policy=FixedSize(n=4,096), overlong='drop'"
    """
    shown = {name: one for name, one in settings.items() if one is not None and one != _USUAL.get(name)}
    return ", ".join(f"{name}={_value(one)}" for name, one in shown.items())


def _value(setting: Any) -> str:
    if isinstance(setting, Mapping) and "function" in setting:
        return str(setting["function"]).rpartition(":")[2]
    if isinstance(setting, Mapping):
        return f"{setting.get('type', '')}({written({name: one for name, one in setting.items() if name != 'type'})})"
    return f"{setting:,}" if type(setting) is int else brief(setting)


def _stage(stage: Stage[Any]) -> str:
    said = [name for name in SHUFFLES if getattr(stage, name, None) is True]
    label = label_of(stage)
    return f"{label}({', '.join(said)})" if said else label


def _columns(known: Facts) -> str:
    try:
        schema: pa.Schema | None = known.schema()
    except _ERRORS as error:
        return f"not known: {error}"
    if schema is None:
        return UNREAD
    lacking = known.nulls()
    return ", ".join(f"{field.name}: {_kind(field.type)}{lacking.get(field.name, '')}" for field in schema) or "none"


def _kind(kind: pa.DataType) -> str:
    """A type as samples have it: a store has narrower integers."""
    if not is_list(kind) or kind_of(kind) is not None:
        return type_name(kind)
    inner = _kind(kind.value_type)
    return f"list of {inner if pa.types.is_fixed_size_list(kind) else WIDE.get(inner, inner)}"


def _rows(known: Facts) -> str:
    if not known.ends():
        return "without end"
    try:
        count = known.num_rows()
    except _ERRORS as error:
        return f"not known: {error}"
    if count is None:
        return UNREAD if known.streamed_by else "not known before they are asked for (len)"
    return f"{count:,}"
