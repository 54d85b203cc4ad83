"""A module called once a group: its arguments, its masks, and what its results are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import torch

from brimful.grouping.held import Held, columns_with
from brimful.grouping.keys import below, leaves, texts_of, tree_of
from brimful.grouping.language import lies_first, names_in, text_of, value_of
from brimful.grouping.resolve import checked_rules, picked, resolved
from brimful.grouping.rows import Tensor

Names = str | Sequence[str] | Mapping[str, str]
Outputs = Any
"""Text, nested dicts of text, or a tuple of these and None."""


def applied(
    held: Held, module: Callable[..., Any], inputs: Names | None, outputs: Outputs, masks: Names | None, pad_values: Any
) -> Held | tuple[Held | None, ...]:
    """What a module makes of each group; see `Collection.apply`."""
    frame = held.groups
    _check_outputs(outputs, held)
    by_place, by_name = _arguments("inputs", inputs)
    masks_by_place, masks_by_name = _arguments("masks", masks)
    if inputs is not None and not (by_place or by_name or masks_by_place or masks_by_name):
        raise ValueError("inputs and masks name nothing; leave inputs out for all keys")
    made = {text: mask(held, text) for text in (*masks_by_place, *masks_by_name.values())}
    if inputs is None and "" in held.columns:
        by_place = [""]
    elif inputs is None:
        by_name = {path.split(".")[0]: path.split(".")[0] for path in held.columns}
    if clash := [name for name in by_name if name in masks_by_name]:
        raise ValueError(f"inputs and masks both name {clash[0]!r}")
    chosen = {key: part_of(held, key) for key in (*by_place, *by_name.values())}
    results = []
    for group in range(len(frame.partition)):
        args = [chosen[key].tree(group) for key in by_place] + [made[text][group] for text in masks_by_place]
        kwargs: dict[str, Any] = {name: chosen[key].tree(group) for name, key in by_name.items()}
        kwargs.update({name: made[text][group] for name, text in masks_by_name.items()})
        try:
            results.append(module(*args, **kwargs))
        except Exception as error:
            error.add_note(
                _called(frame.partition[group], f"group {group} of {len(frame.partition)}", args, kwargs, bool(made))
            )
            raise
    if not isinstance(outputs, tuple | list):
        return _results(held, results, outputs, pad_values, "the output")
    for result in results:
        if not isinstance(result, tuple | list) or len(result) != len(outputs):
            got = f"{len(result)}" if isinstance(result, tuple | list) else type(result).__name__
            raise ValueError(f"outputs names {len(outputs)} results, but the module gives {got}")
    return tuple(
        None
        if one is None
        else _results(held, [result[place] for result in results], one, pad_values, f"output {place}")
        for place, one in enumerate(outputs)
    )


def mask(held: Held, text: str) -> tuple[Tensor, ...]:
    """Of each group a bool tensor (samples, ...), True where there are values; `text` has the axes that it has.

    Several ragged dimensions give the *and* of them, fixed axes only their shape: with the dims of a key the mask has the shape
    of its tensors. With `~` before it, True where there is padding, as torch's attention takes it.

    Raises:
        ValueError: an unknown name, `...`, no ragged dimension, or a rule that makes a sample longer than its group.
    """
    frame = held.groups
    inverted = isinstance(text, str) and text.startswith("~")
    rules = checked_rules(text.removeprefix("~") if inverted else text, held.sizes, held.constants)
    dims = tuple(rule for rule in rules if not isinstance(rule, EllipsisType))
    if len(dims) < len(rules):
        raise ValueError(f"the mask {text!r} must say how many axes it has: write their sizes in place of '...'")
    if all(isinstance(rule, int) for rule in dims):
        raise ValueError(f"the mask {text!r} must name at least 1 ragged dimension (names: {', '.join(held.sizes)})")
    frame.check(dims, held.sizes)
    device = next(iter(held.columns.values())).tensors[0].device
    found = []
    for members, shape in zip(frame.partition, frame.shapes(dims), strict=True):
        whole: Tensor | None = None
        for axis, rule in enumerate(dims, start=1):
            if isinstance(rule, int):
                continue
            lengths = torch.from_numpy(value_of(rule, held.sizes)[list(members)]).to(device)
            own = torch.arange(shape[axis], device=device) < lengths[:, None]
            own = own.view(len(members), *(shape[axis] if place == axis else 1 for place in range(1, len(shape))))
            whole = own if whole is None else whole & own
        assert whole is not None
        found.append((~whole if inverted else whole).expand(shape))
    return tuple(found)


def _arguments(setting: str, names: Names | None) -> tuple[list[str], dict[str, str]]:
    """What is handed over by place, and by name."""
    if names is None:
        return [], {}
    if isinstance(names, str):
        return [names], {}
    if not isinstance(names, Iterable):
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {names!r})")
    if isinstance(names, Mapping):
        by_place, by_name = [], dict(names)
    else:
        by_place, by_name = list(names), {}
    if odd := [name for name in (*by_place, *by_name, *by_name.values()) if not isinstance(name, str)]:
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {odd[0]!r})")
    return by_place, by_name


def part_of(held: Held, key: str) -> Held:
    """What lies below a key; "" is a tensor that stands alone.

    Raises:
        KeyError: it is not there.
        TypeError: it is no text.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is text, such as 'protein.pos' (got {key!r})")
    if not key and "" not in held.columns:
        raise KeyError(f"a key must have at least 1 letter (keys: {', '.join(held.columns)})")
    inside = ((below(path, key), column) for path, column in held.columns.items())
    columns = {path: column for path, column in inside if path is not None}
    if not columns:
        raise KeyError(f"there is no key {key!r} (keys: {', '.join(filter(None, held.columns)) or 'none'})")
    return replace(held, columns=columns)


def _check_outputs(outputs: Outputs, held: Held) -> None:
    """Refuses what can be refused before the module has run."""
    for one in outputs if isinstance(outputs, tuple | list) else [outputs]:
        if one is None:
            continue
        for text in texts_of(one).values():
            for rule in checked_rules(text, held.sizes, held.constants):
                if not isinstance(rule, EllipsisType) and not lies_first(rule):
                    raise ValueError(
                        f"outputs: {text_of(rule)!r} puts axes together ({', '.join(names_in(rule))}), so that values would lie "
                        "behind the padding of others; give the parts as several results, and join them after ungroup()"
                    )


def _called(members: Sequence[int], group: str, args: Sequence[Any], kwargs: Mapping[str, Any], masked: bool) -> str:
    """With what a module was called, in words."""
    few = ", ".join(f"{number:,}" for number in members[:5]) + ", ..." * (len(members) > 5)
    given = {**{f"argument {place}": value for place, value in enumerate(args)}, **kwargs}
    shapes = [
        f"{name}{path and '.' + path} {tuple(tensor.shape)}"
        for name, value in given.items()
        for path, tensor in leaves(value)
    ]
    hint = ". Where a rule such as 'seq-2' has changed an axis, its mask is of that rule too: masks='seq-2'" * masked
    return f"In apply, {group}: {len(members):,} samples ({few}); {', '.join(shapes)}{hint}"


def _results(held: Held, results: Sequence[Any], outputs: Outputs, pad_values: Any, whose: str) -> Held:
    """The results of all groups, as a collection holds them."""
    texts = texts_of(outputs)
    found = picked(results, texts, whose)
    columns = {}
    for path, text in texts.items():
        dims = resolved(path, text, found[path], held.sizes, held.constants, held.groups, whose)
        columns[path] = dims, tuple(found[path])
    tree_of(texts.items())  # refuses keys inside one another
    return replace(held, columns=columns_with(columns, pad_values))
