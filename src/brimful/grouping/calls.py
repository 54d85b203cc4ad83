"""Calls a module once a group: its arguments, its masks, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import torch

from brimful.grouping.collection_data import CollectionData, with_tensors
from brimful.grouping.keys import below, leaves, picked, texts_of, tree_of
from brimful.grouping.language import checked_rules, lies_first, names_in, text_of, value_of
from brimful.grouping.rows import Tensor

Names = str | Sequence[str] | Mapping[str, str]
Outputs = Any
"""Text, nested dicts of text, or a tuple of these and None."""


def applied(
    data: CollectionData,
    module: Callable[..., Any],
    inputs: Names | None,
    outputs: Outputs,
    masks: Names | None,
    pad_values: Any,
) -> CollectionData | tuple[CollectionData | None, ...]:
    """The results of a module for each group; see `Collection.apply`."""
    groups = data.padded_groups
    _check_outputs(outputs, data)
    by_place, by_name = _arguments("inputs", inputs)
    masks_by_place, masks_by_name = _arguments("masks", masks)
    if inputs is not None and not (by_place or by_name or masks_by_place or masks_by_name):
        raise ValueError("inputs and masks name nothing; leave inputs out for all keys")
    made = {text: mask(data, text) for text in (*masks_by_place, *masks_by_name.values())}
    if inputs is None and "" in data.columns:
        by_place = [""]
    elif inputs is None:
        by_name = {path.split(".")[0]: path.split(".")[0] for path in data.columns}
    if clash := [name for name in by_name if name in masks_by_name]:
        raise ValueError(f"inputs and masks both name {clash[0]!r}")
    values_by_place = [*(part_of(data, key).trees() for key in by_place), *(made[text] for text in masks_by_place)]
    values_by_name = {name: part_of(data, key).trees() for name, key in by_name.items()}
    values_by_name |= {name: made[text] for name, text in masks_by_name.items()}
    results = []
    for group, members in enumerate(groups.partition):
        args = [values[group] for values in values_by_place]
        kwargs = {name: values[group] for name, values in values_by_name.items()}
        try:
            results.append(module(*args, **kwargs))
        except Exception as error:
            error.add_note(_called(members, f"group {group} of {len(groups.partition)}", args, kwargs, bool(made)))
            raise
    if not isinstance(outputs, tuple | list):
        return _results(data, results, outputs, pad_values, "the output")
    for result in results:
        if not isinstance(result, tuple | list) or len(result) != len(outputs):
            got = f"{len(result)}" if isinstance(result, tuple | list) else type(result).__name__
            raise ValueError(f"outputs names {len(outputs)} results, but the module gives {got}")
    return tuple(
        None
        if one is None
        else _results(data, [result[place] for result in results], one, pad_values, f"output {place}")
        for place, one in enumerate(outputs)
    )


def mask(data: CollectionData, text: str) -> tuple[Tensor, ...]:
    """A bool tensor (samples, ...) of each group, True where there are values; `text` names its axes.

    Several ragged dimensions give the *and* of them, fixed axes only their shape: with the dims of a key the mask has the shape
    of its tensors. With `~` before it, True where there is padding, as torch's attention takes it.

    Raises:
        ValueError: an unknown name, `...`, no ragged dimension, or a rule that makes a sample longer than its group.
    """
    groups = data.padded_groups
    inverted = isinstance(text, str) and text.startswith("~")
    rules = checked_rules(text.removeprefix("~") if inverted else text, data.sizes, data.constants)
    dims = tuple(rule for rule in rules if not isinstance(rule, EllipsisType))
    if len(dims) < len(rules):
        raise ValueError(f"the mask {text!r} must say how many axes it has: write their sizes in place of '...'")
    if all(isinstance(rule, int) for rule in dims):
        raise ValueError(f"the mask {text!r} must name at least 1 ragged dimension (names: {', '.join(data.sizes)})")
    groups.check(dims, data.sizes)
    device = next(iter(data.columns.values())).tensors[0].device
    found = []
    for members, shape in zip(groups.partition, groups.shapes(dims), strict=True):
        whole = torch.ones((), dtype=torch.bool, device=device)
        for axis, rule in enumerate(dims, start=1):
            if isinstance(rule, int):
                continue
            lengths = torch.from_numpy(value_of(rule, data.sizes)[list(members)]).to(device)
            own = torch.arange(shape[axis], device=device) < lengths[:, None]
            own = own.view(len(members), *(shape[axis] if place == axis else 1 for place in range(1, len(shape))))
            whole = whole & own
        found.append((~whole if inverted else whole).expand(shape))
    return tuple(found)


def _arguments(setting: str, names: Names | None) -> tuple[list[str], dict[str, str]]:
    """The arguments by place, and those by name."""
    given = () if names is None else (names,) if isinstance(names, str) else names
    if not isinstance(given, Iterable):
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {given!r})")
    by_place, by_name = ([], dict(given)) if isinstance(given, Mapping) else ([*given], {})
    if odd := [name for name in (*by_place, *by_name, *by_name.values()) if not isinstance(name, str)]:
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {odd[0]!r})")
    return by_place, by_name


def part_of(data: CollectionData, key: str) -> CollectionData:
    """The columns below a key; "" is a tensor that stands alone.

    Raises:
        KeyError: it is not there.
        TypeError: it is no text.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is text, such as 'protein.pos' (got {key!r})")
    if not key and "" not in data.columns:
        raise KeyError(f"a key must have at least 1 letter (keys: {', '.join(data.columns)})")
    inside = ((below(path, key), column) for path, column in data.columns.items())
    columns = {path: column for path, column in inside if path is not None}
    if not columns:
        raise KeyError(f"there is no key {key!r} (keys: {', '.join(filter(None, data.columns)) or 'none'})")
    return replace(data, columns=columns)


def _check_outputs(outputs: Outputs, data: CollectionData) -> None:
    """Refuses outputs that cannot be right, before the module runs."""
    for one in outputs if isinstance(outputs, tuple | list) else [outputs]:
        if one is None:
            continue
        for text in texts_of(one).values():
            for rule in checked_rules(text, data.sizes, data.constants):
                if not isinstance(rule, EllipsisType) and not lies_first(rule):
                    raise ValueError(
                        f"outputs: {text_of(rule)!r} puts axes together ({', '.join(names_in(rule))}), so that values would lie "
                        "behind the padding of others; give the parts as several results, and join them after ungroup()"
                    )


def _called(members: Sequence[int], group: str, args: Sequence[Any], kwargs: Mapping[str, Any], masked: bool) -> str:
    """The arguments of a call, in words."""
    few = ", ".join(f"{number:,}" for number in members[:5]) + ", ..." * (len(members) > 5)
    given = {**{f"argument {place}": value for place, value in enumerate(args)}, **kwargs}
    shapes = [
        f"{name}{path and '.' + path} {tuple(tensor.shape)}"
        for name, value in given.items()
        for path, tensor in leaves(value)
    ]
    hint = ". Where a rule such as 'seq-2' has changed an axis, its mask is of that rule too: masks='seq-2'" * masked
    return f"In apply, {group}: {len(members):,} samples ({few}); {', '.join(shapes)}{hint}"


def _results(
    data: CollectionData, results: Sequence[Any], outputs: Outputs, pad_values: Any, whose: str
) -> CollectionData:
    """The results of all groups, as a collection holds them."""
    texts = texts_of(outputs)
    made = with_tensors(data, picked(results, texts, whose), texts, pad_values, whose)
    tree_of(texts.items())  # refuses keys inside one another
    return made
