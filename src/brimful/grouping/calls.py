"""Calls a module once a group: its arguments, its masks, and its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch

from brimful.grouping.keys import leaves, texts_of
from brimful.grouping.language import Sizes, checked_rules, lies_first, names_in, text_of, value_of
from brimful.grouping.padded_groups import PaddedGroups
from brimful.grouping.rows import Tensor

Names = str | Sequence[str] | Mapping[str, str]
Outputs = Any
"""Text, nested dicts of text, or a tuple of these and None."""


def masks_of(
    groups: PaddedGroups, sizes: Sizes, constants: Mapping[str, int], device: torch.device, text: str
) -> tuple[Tensor, ...]:
    """A bool tensor (samples, ...) of each group, True where there are values; `text` names its axes.

    Several ragged dimensions give the *and* of them, fixed axes only their shape: with the dims of a key the mask has the shape
    of its tensors. With `~` before it, True where there is padding, as torch's attention takes it.

    Raises:
        ValueError: an unknown name, `...`, no ragged dimension, or a rule that makes a sample longer than its group.
    """
    inverted = isinstance(text, str) and text.startswith("~")
    rules = checked_rules(text.removeprefix("~") if inverted else text, sizes, constants)
    dims = tuple(rule for rule in rules if not isinstance(rule, EllipsisType))
    if len(dims) < len(rules):
        raise ValueError(f"the mask {text!r} must say how many axes it has: write their sizes in place of '...'")
    if all(isinstance(rule, int) for rule in dims):
        raise ValueError(f"the mask {text!r} must name at least 1 ragged dimension (names: {', '.join(sizes)})")
    groups.check(dims, sizes)
    found = []
    for members, shape in zip(groups.partition, groups.shapes(dims), strict=True):
        whole = torch.ones((), dtype=torch.bool, device=device)
        for axis, rule in enumerate(dims, start=1):
            if isinstance(rule, int):
                continue
            lengths = torch.from_numpy(value_of(rule, sizes)[list(members)]).to(device)
            own = torch.arange(shape[axis], device=device) < lengths[:, None]
            own = own.view(len(members), *(shape[axis] if place == axis else 1 for place in range(1, len(shape))))
            whole = whole & own
        found.append((~whole if inverted else whole).expand(shape))
    return tuple(found)


def arguments(setting: str, names: Names | None) -> tuple[list[str], dict[str, str]]:
    """The arguments by place, and those by name."""
    given = () if names is None else (names,) if isinstance(names, str) else names
    if not isinstance(given, Iterable):
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {given!r})")
    by_place, by_name = ([], dict(given)) if isinstance(given, Mapping) else ([*given], {})
    if odd := [name for name in (*by_place, *by_name, *by_name.values()) if not isinstance(name, str)]:
        raise TypeError(f"{setting} takes text, several, or a dict of text by parameter (got {odd[0]!r})")
    return by_place, by_name


def check_outputs(outputs: Outputs, sizes: Sizes, constants: Mapping[str, int]) -> None:
    """Refuses outputs that cannot be right, before the module runs."""
    for one in outputs if isinstance(outputs, tuple | list) else [outputs]:
        if one is None:
            continue
        for text in texts_of(one).values():
            for rule in checked_rules(text, sizes, constants):
                if not isinstance(rule, EllipsisType) and not lies_first(rule):
                    raise ValueError(
                        f"outputs: {text_of(rule)!r} puts axes together ({', '.join(names_in(rule))}), so that values would lie "
                        "behind the padding of others; give the parts as several results, and join them after ungroup()"
                    )


def called(members: Sequence[int], group: str, args: Sequence[Any], kwargs: Mapping[str, Any], masked: bool) -> str:
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
