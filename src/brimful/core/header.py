"""What a state keeps of the pipeline that it was saved with: each verb and its settings. A pipeline that differs is refused, with
the setting and both values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from brimful.core.facts import verb_of
from brimful.plan.errors import StateError, of_setting

if TYPE_CHECKING:
    from brimful.core.stage import Stage

VERSION: Final = 5
TYPES: Final = "types"
"""The name under which the header of a state has the types that a stage has learnt."""


def header_of(stage: Stage[Any]) -> list[Any]:
    """The description that a state is compared with: the stages from the source on, each a dict of its verb and its settings.

    Those of a stage without a verb are settings of the one that it serves, the next above.
    """
    below = [header_of(one) for one in stage.inputs]
    served: dict[str, Any] = {}
    if len(below) == 1 and below[0] and "verb" not in below[0][-1]:
        served = below[0].pop()
    own = served | stage.settings() | ({"datasets": below} if _branches(stage) else {})
    if verb := verb_of(stage):
        own = {"verb": verb} | own
    return [*(() if _branches(stage) else below[0] if below else ()), *([own] if own else [])]


def _branches(stage: Stage[Any]) -> bool:
    """Whether what it reads stands in its entry: of data sets with names there may be one."""
    return len(stage.inputs) > 1 or bool(getattr(stage, "names", ()))


def in_header(stage: Stage[Any], header: Any) -> tuple[dict[str, Any] | None, list[Any]]:
    """The entry of a stage in the header of a chain that may have other data sets; None where it has none; and the headers of
    what the stage reads: by name, where that has names."""
    left = [*header] if isinstance(header, list) else []
    entry = left.pop() if left and (verb := verb_of(stage)) and left[-1].get("verb") == verb else None
    if not _branches(stage):
        return entry, [left] * len(stage.inputs)
    saved, names = [*(entry or {}).get("datasets", ())], getattr(stage, "names", ())
    if names and entry is not None and "sources" in entry:
        by_name = dict(zip(entry["sources"], saved))
        return entry, [by_name.get(name, []) for name in names]
    return entry, (saved + [[]] * len(stage.inputs))[: len(stage.inputs)]


def paired(stage: Stage[Any], header: Any) -> Iterator[tuple[Stage[Any], dict[str, Any]]]:
    """The stages of a chain that have an entry in a header, each with it."""
    entry, parts = in_header(stage, header)
    for one, part in zip(stage.inputs, parts):
        yield from paired(one, part)
    if entry is not None:
        yield stage, entry


def types_in(entry: dict[str, Any]) -> Any:
    """The types that a stage had learnt, as plain JSON; None: none."""
    return entry[TYPES]["columns"] if TYPES in entry else None


def stages_in(header: Any) -> Iterator[dict[str, Any]]:
    """What a header says of each stage that has a verb, from the sources on."""
    for one in header if isinstance(header, list) else ():
        for branch in one.get("datasets", ()):
            yield from stages_in(branch)
        if "verb" in one:
            yield one


def learners(stage: Stage[Any]) -> list[Any]:
    """The `Learnt` of each stage that has a verb, in the order of `stages_in`; None of those that have none."""
    below = [learnt for one in stage.inputs for learnt in learners(one)]
    return [*below, getattr(stage, "learnt", None)] if verb_of(stage) else below


def without_types(header: Any) -> tuple[Any, list[list[Any]]]:
    """A header less the types that stages have learnt, and these, in the order of `stages_in`, each in a list; which is empty for
    those that have none."""
    bare = copy.deepcopy(header)
    return bare, [[one.pop(TYPES)] if TYPES in one else [] for one in stages_in(bare)]


def described(value: Any) -> Any:
    """A setting of a stage as plain JSON: a dataclass by its fields, less those marked `not_in_state`; another object by its
    public attributes.

    An object with a method `fingerprint()` stands as what that returns, a function as {"function": "module:qualified.name"}, a
    number that JSON does not know (nan, inf) as a string.

    >>> from brimful.plan import TokenBudget
    >>> described(TokenBudget(512))["max_tokens"], described(described)
    (512, {'function': 'brimful.core.header:described'})
    """
    if isinstance(value, np.ndarray) and value.size > _SHOWN:
        return {"values": value.size, "crc32": crc32(value.tobytes())}
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Real):
        number = float(value)
        return number if isfinite(number) else str(number)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [described(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, Mapping):
        return {str(name): described(item) for name, item in value.items()}
    if hasattr(value, "fingerprint"):
        return value.fingerprint()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | compared(value)
    if callable(value):
        fn = getattr(value, "func", value)
        return {
            "function": f"{getattr(fn, '__module__', '') or ''}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"
        }
    public = {name: one for name, one in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    if not public or isinstance(value, type):
        return type(value).__name__
    return {"type": type(value).__name__} | {name: described(one) for name, one in public.items()}


def compared(description: Any, *left_out: str) -> dict[str, Any]:
    """The fields of a dataclass that change the order of the data, as plain JSON, but for some."""
    fields = [field for field in dataclasses.fields(description) if not field.metadata.get("runtime")]
    return {field.name: described(getattr(description, field.name)) for field in fields if field.name not in left_out}


_SHOWN: Final = 100
"""An array of at most so many values is listed."""

CHECKSUMS: Final = "checksums"
"""The name under which a header has the checksums of rows, by column."""

_REMEDIES: Final = {
    "urls": "a shard was added, taken away, renamed, put elsewhere in the list, or edited so that its size changed (a state has "
    "the digest of all names and sizes, not each of them): go on with those that saved it, or with these all the same by "
    "allow={'urls'}",
    "functions": "go on with the function that saved it, or with this one by allow={'functions'} if it gives the same rows "
    "for the rows that were taken already; another one begins anew, or with the next epoch",
    "runs": "a mixture of indexed data by samples finds its rows by place, another one, or its stream(), runs forward. A state "
    "cannot turn one into the other: go on as it was saved",
    "sources": "go on with the data sets that saved it. Or add some, or leave some out, by allow={'sources'}; those that stay "
    "keep their names and their order",
    "order": "give the data sets that stay in the order in which they were; new ones may stand anywhere between them",
    "datasets": "only data sets with names can be added or left out at a resume: interleave_datasets({'web': a, 'code': b}). A "
    "state of data sets without names fits these alone, in their order",
    "weights": "go on with the weights that saved it, or with these all the same by allow={'weights'}",
    "shuffle_batches": "say shuffle_batches={saved}. True means 'stratified' with micro_batches of 2 or more, and with "
    "balance_cost over streams",
    CHECKSUMS: "go on with the rows that saved it, or with these all the same by allow={'rows'}",
    "window": "use the pipeline that saved it. A state calls window='steps' 'auto', too",
}
"""The remedy for a setting that differs, by its name."""

_SHUFFLED: Final = (
    ", and a random order without: leave them out, as the run that saved this state did. A run whose micro_batches may change "
    "begins with 'stratified'. (A BatchSampler of 1.0.0rc1 gave the order of True for both: go on with True)"
)
"""Where True was saved."""

_DIVIDED: Final = ("batch.policy.", "pack.rows")
"""Sizes that micro_batches divides, as they begin."""

SHUFFLES: Final = ("shuffle", "shuffle_shards")
"""Settings of sources without which their seed draws nothing."""


_ALLOWED: Final = ("functions", "rows", "sources", "urls", "weights")
"""In what a state may differ, where the caller says so."""


def allowed(names: Collection[str]) -> frozenset[str]:
    """The names of settings that a user gave, one or several.

    Raises:
        TypeError: for what are no names.
        ValueError: for one that is not known, with those that are.
    """
    if not isinstance(names, Collection):
        raise TypeError(f"allow takes names of settings, such as {{'urls'}} (got {names!r})")
    found = frozenset((names,) if isinstance(names, str) else names)
    for name in sorted(found - {*_ALLOWED}, key=str):
        raise ValueError(f"allow takes the names {', '.join(map(repr, _ALLOWED))} (got {name!r})")
    return found


class Difference(NamedTuple):
    """A setting in which two headers differ: its name with the verb, its kind among those with a remedy, and both values."""

    name: str
    kind: str
    saved: str
    ours: str


def check_header(saved: Any, ours: Any, allow: frozenset[str] = frozenset()) -> None:
    """Refuses a state whose header differs from the pipeline's, naming the setting and both values.

    Raises:
        StateError: at the first difference, except at settings named in `allow`.
    """
    found = header_difference(saved, ours, allow)
    if found is not None:
        remedy = _REMEDIES.get(found.kind, "use the pipeline that saved it").replace("{saved}", found.saved)
        if found.kind == "shuffle_batches" and found.saved == "True":
            remedy += _SHUFFLED
        if found.name.startswith(_DIVIDED):
            remedy += ". micro_batches=k counts here too: each of the k batches has a k-th of the size that you gave"
        raise of_setting(
            found.kind,
            StateError(
                f"this state belongs to another pipeline: {found.name} was {found.saved} when it was saved and is {found.ours} "
                f"here; {remedy}"
            ),
        )


def header_difference(
    saved: Any, ours: Any, allow: frozenset[str] = frozenset(), path: str = "", kind: str = ""
) -> Difference | None:
    """The first setting in which two headers differ; None where they are equal.

    >>> header_difference([{"verb": "take", "n": 1}], [{"verb": "take", "n": 2}])
    Difference(name='take.n', kind='n', saved='1', ours='2')
    """
    if saved == ours:
        return None
    here = Difference(path or "pipeline", kind, _brief(saved), _brief(ours))
    if isinstance(saved, str) and isinstance(ours, str) and saved[-19:-17] == " (" and saved[:-17] == ours[:-17]:
        here = here._replace(ours=f"{here.ours} (as many tokens, but other rules, special tokens or padding)")
    if kind == "length_column" and None in (saved, ours):  # interleave_datasets has none where it goes by samples
        units = ("'samples'" if value is None else "'tokens'" for value in (saved, ours))
        here = Difference(path.removesuffix(kind) + "by", "by", *units)
    if isinstance(saved, list) and isinstance(ours, list) and len(saved) == len(ours):
        named_by_verb = all(isinstance(one, dict) and "verb" in one for one in (*saved, *ours))
        pairs = [
            (one, other, path if named_by_verb else f"{path}[{number}]", kind)
            for number, (one, other) in enumerate(zip(saved, ours))
        ]
    elif isinstance(saved, dict) and isinstance(ours, dict):
        if kind == CHECKSUMS:  # by columns, of any name
            differ = [name for name in (*ours, *saved) if saved.get(name) != ours.get(name)]
            values = (_brief(one.get(differ[0])) for one in (saved, ours))
            return None if "rows" in allow else Difference(f"{path}.{differ[0]}", kind, *values)
        if {"function"} == saved.keys() == ours.keys():
            return None if "functions" in allow or _same_function(saved, ours) else here._replace(kind="functions")
        if any(saved.get(name) != ours.get(name) for name in ("verb", "type")) or {"shards", "digest"} <= ours.keys():
            return here  # of a digest neither part says much without the other
        inside = f"{path}." if path else ""
        owner = f"{inside}{ours['verb']}." if "verb" in ours else inside
        if ("sources" in saved) != ("sources" in ours) and "runs" in ours:
            words = ("without names" if "sources" not in one else f"named {one['sources']}" for one in (saved, ours))
            return Difference(f"{owner}datasets", "datasets", *words)
        if "sources" in allow and "sources" in saved and "sources" in ours:
            saved, ours = _in_both(saved, ours), _in_both(ours, saved)
        # the policy first: the window by default, and sort, follow from what was given
        policies = saved.get("policy"), ours.get("policy")
        if found := header_difference(*policies, allow | {"sort"}, f"{owner}policy", "policy"):
            return found
        idle = ["seed"] if any(saved.get(name) is ours.get(name) is False for name in SHUFFLES) else []
        learnt = [TYPES] if "verb" in ours else []
        passed = {*allow - {"rows"}, *idle, *learnt}  # a header has the number of rows by this name
        names = [name for name in (*ours, *(name for name in saved if name not in ours)) if name not in passed]
        pairs = [(saved.get(name), ours.get(name), f"{owner}{name}", name) for name in names]
    else:
        return here
    return next(
        filter(None, (header_difference(one, other, allow, name, own) for one, other, name, own in pairs)), None
    )


def _in_both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """An entry of a mixture less its data sets that the other one has not, and its weights."""
    both = [name for name in one["sources"] if name in other["sources"]]
    datasets = [part for name, part in zip(one["sources"], one.get("datasets", ())) if name in both]
    own = {name: value for name, value in one.items() if name not in ("weights", "before", "sources")}
    return {"order": both} | own | {"datasets": datasets}


def _same_function(saved: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether two names are of one function: the module of what a script defines depends on how it was started."""
    (one, first), (other, second) = (str(header["function"]).split(":", 1) for header in (saved, ours))
    return first == second and (one == other or "__main__" in (one, other))


def _stages(chain: list[Any]) -> bool:
    return all(isinstance(stage, dict) for stage in chain)


def _brief(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "verb" in one for one in value):
        return " > ".join(str(one["verb"]) for one in value)
    if isinstance(value, list) and value and all(isinstance(one, list) and _stages(one) for one in value):
        return f"{len(value):,} data sets"
    if isinstance(value, dict) and (name := value.get("verb") or value.get("type") or value.get("function")):
        return str(name)
    if isinstance(value, dict) and "shards" in value:
        return f"{value['shards']:,} shard{'s' * (value['shards'] != 1)} with the digest {value['digest']}"
    return repr(value)
