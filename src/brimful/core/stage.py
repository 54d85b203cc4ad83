"""The core: a stage, and items that carry the state after them.

    Stage[T]   start(epoch) -> State                        the place before the first item of that epoch
               items(at: State) -> Iterator[(T, State)]     each item with the state from which the rest follows
    State      plain JSON: lists, ints, strings; positions only, never changed once yielded

The law, for every item k with state s_k: `list(stage.items(s_k)) == items[k+1:]`, on a fresh object and through JSON.
Because each item travels with its own state, whatever lies between producer and consumer (a thread, a queue, a process)
adds nothing to it: a checkpoint is the state of the last item that the consumer took.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from math import isfinite
from numbers import Real
from operator import attrgetter, is_
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar, cast
from zlib import crc32

import numpy as np

from brimful.plan.errors import StateError, name_of
from brimful.plan.once import once, settings_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
State: TypeAlias = Any  # plain JSON

END: Final = "end"
"""The state after the last item of an epoch: nothing follows it."""

BLOCK_ROWS: Final = 4096
BLOCK_BYTES: Final = 1 << 20
VERSION: Final = 5


class Stage(ABC, Generic[T_co]):
    """A description of a stream: a frozen dataclass with two methods, and no state of its own.

    Each input item leads to at least one output item, if need be with 0 rows, so that states advance under a filter
    that drops everything. Upstream items are read through `running`, which closes them with the reader.

    Whatever somebody else wants to know about a chain is a method here, which asks upstream; a stage that knows better
    overrides it. So nobody but a stage looks at what kind of stage it is.
    """

    flat: ClassVar[bool] = False
    """Whether one of a kind on another is one stage: a + b + c is concat_datasets([a, b, c])."""

    makes_long_blocks: ClassVar[bool] = False
    """Whether a block of rows may become one of more than 4,096, which is cut before others have it."""

    by_row: ClassVar[bool] = False
    """Whether what becomes of a row depends on that row alone, not on those beside it or on how many came before: it may then
    be worked out anywhere. Rows keep their order, and where they came from."""

    fills_nulls: ClassVar[bool] = False
    """Whether it joins data sets, of which each has null where it lacks a column of another."""

    holds_shards: ClassVar[bool] = False
    """Whether it is a source of shards, each of which may be read anywhere."""

    plans: ClassVar[bool] = False
    """Whether its items are the batches that are planned, or shared out, as integers."""

    itemwise: ClassVar[bool] = False
    """Whether each item follows from one of upstream and how many came before: ends of epochs mean nothing to it. So are all
    that are `by_row`."""

    def start(self, epoch: int) -> State:
        """The state before the first item of an epoch; by default, that of the stage below."""
        return self.below[0].start(epoch)

    @abstractmethod
    def items(self, at: State) -> Generator[tuple[T_co, State], None, None]:
        """The items that follow the state `at` (never END), each with the state after it."""

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    # -- what it is, and what it reads from --------------------------------------------------------------------------------

    @property
    def verb(self) -> str:
        """The method that users call for it; "" where it only serves another: messages then name the stage below."""
        return _WORDS.sub("_", type(self).__name__).lower()

    @property
    def label(self) -> str:
        """Its name for people: the verb, and what it found out for itself."""
        return self.verb

    @property
    def below(self) -> tuple[Stage[Any], ...]:
        """The stages that it reads from: its fields that are stages, or tuples of them."""
        several = [value if isinstance(value, tuple) else (value,) for value in settings_of(self).values()]
        return tuple(value for group in several for value in group if isinstance(value, Stage))

    def over(self, *stages: Stage[Any]) -> Self:
        """The same stage, which reads from others: as many as `below` has, in that order."""
        given = iter(stages)
        changes: dict[str, Any] = {}
        for name, value in settings_of(self).items():
            if isinstance(value, Stage):
                changes[name] = next(given)
            elif isinstance(value, tuple) and any(isinstance(one, Stage) for one in value):
                changes[name] = tuple(next(given) for _ in value)
        return cast(Self, dataclasses.replace(cast(Any, self), **changes))

    # -- questions: by default, what the stages below answer ---------------------------------------------------------------

    @property
    def asked(self) -> tuple[Any, ...]:
        """Those who know the data: the stages below, or what a source takes its rows from."""
        return self.below

    @once
    def over_epochs(self) -> Stage[T_co] | None:
        """The chain as it runs over epochs without an end, where its items may reach over their seams: then what repeats stands
        below. None: all of it ends with an epoch, and begins again."""
        if not (self.itemwise or self.by_row or self.carries):
            return None
        flowing = self.below[0].over_epochs
        return None if flowing is None else self.over(flowing)

    @property
    def carries(self) -> bool:
        """Whether the end of an epoch leaves tokens for the next one: those that fill no chunk of `concat_chunk`. Then all that
        stands above runs over the seams, too; but what counts the samples of an epoch does not."""
        return len(self.below) == 1 and self.below[0].carries

    @property
    def endless(self) -> bool:
        """Whether it has no end, as far as the description says it: nothing is read."""
        return any(one.endless for one in self.below)

    @property
    def cut_by_time(self) -> bool:
        """Whether the time that a user's function took may have a say in where its blocks end."""
        return any(one.cut_by_time for one in self.below)

    def whole(self) -> Stage[T_co]:
        """The chain with blocks that no time cuts, the same in each run: for what goes by blocks."""
        return self.over(*(one.whole() for one in self.below)) if self.cut_by_time else self

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, keyed by its `place`."""
        return False

    @property
    def leaves_out(self) -> bool:
        """Whether rows that are bad are left out somewhere (on_error="skip")."""
        return getattr(self, "on_error", "raise") == "skip" or any(one.leaves_out for one in self.below)

    @property
    def streamed_by(self) -> str:
        """The first verb after which samples cannot be had by number; "" where they can."""
        return next((by for one in self.below if (by := one.streamed_by)), self.verb)

    @property
    def streams(self) -> int | None:
        """Into how many streams it divides its data; None where it does not.

        Raises:
            ValueError: the sources of a mixture differ in that.
        """
        counts = {one.streams: None for one in self.below}
        if len(counts) > 1:
            got = ("None" if one.streams is None else f"{one.streams:,}" for one in self.below)
            raise ValueError(
                f"the data sets of {named(self)} must have equally many streams (got {', '.join(got)}); "
                "give each the same from_files(streams=...)"
            )
        return next(iter(counts), None)

    def stream(self, number: int, count: int) -> Stage[T_co]:
        """The chain that gives stream `number` of `count`: its sources give a part, and what draws random numbers has a seed of
        its own.

        Raises:
            ValueError: it is a source that gives no part.
        """
        if not self.below:
            raise ValueError(
                f"{named(self)} cannot be read as {count:,} streams, as from_files(streams=...) can: each stream would read "
                "all of it"
            )
        return self.over(*(one.stream(number, count) for one in self.below))

    def sent(self, source: Stage[Any]) -> Stage[Any]:
        """The chain as another process runs it over some rows, which `source` gives: it needs nothing of this one."""
        return self.over(*(one.sent(source) for one in self.below)) if self.below else source

    @property
    def originals(self) -> Any:
        """The user's own objects that its rows stand for, by number, where samples are handed on as they are; None where rows are
        the samples.

        Raises:
            ValueError: it works on what is in rows, and these are numbers.
        """
        return refuse_originals(self)

    @property
    def one_by_one(self) -> bool:
        """Whether rows are fetched one by one, from an object of the user's, so that no more than the wanted ones should be."""
        return any(one.one_by_one for one in self.asked)

    def measured(self, columns: Sequence[str], required: bool) -> list[int]:
        """The checksums of lengths that are measured only where something is planned by them: they are in no source's header."""
        return [crc for one in self.asked for crc in one.measured(columns, required)]

    def known_columns(self) -> Any:
        """The columns and types of its rows, or of those that its batches are made of, as far as they are known without reading a
        row or calling a function of the user's: an Arrow schema; None: not."""
        return self.below[0].known_columns() if len(self.below) == 1 else None

    def num_rows(self) -> int | None:
        """How many rows an epoch of indexed data has, likewise; None: not known."""
        return self.below[0].num_rows() if len(self.below) == 1 and not self.streamed_by else None

    @property
    def row_schema(self) -> Any:
        """The columns and types that all its rows have, as Arrow has them; None where only the rows tell."""
        return None

    def tokenizers(self) -> dict[str, tuple[Any, ...]]:
        """The tokenizers that made the columns, or what is known of them, by column: each once."""
        found: dict[str, tuple[Any, ...]] = {}
        for one in self.asked:
            for name, made in one.tokenizers().items():
                known = found.setdefault(name, made)
                prints = {each.fingerprint() for each in known} if known is not made else set()
                found[name] = (*known, *(each for each in made if prints and each.fingerprint() not in prints))
        return found

    def texts(self) -> tuple[str, ...]:
        """The columns of text that was tokenized, as far as they are still here: batches leave them out."""
        return tuple(dict.fromkeys(name for one in self.asked for name in one.texts()))

    def newest(self) -> tuple[float, str]:
        """When the newest of the files that it reads was written, and its name; (0.0, "") where nobody says."""
        return max((one.newest() for one in self.asked), default=(0.0, ""))

    def first_shard(self) -> str:
        """The name of the first file of a source that reads files; "" of other sources, and of several."""
        return self.below[0].first_shard() if len(self.below) == 1 else ""

    def why_missing(self, error: Exception) -> str:
        """Why a function of the user's did not find in an item what it looked for, and what to do; "" where nobody knows."""
        return next((words for one in self.below if (words := one.why_missing(error))), "")

    @property
    def static_buffers(self) -> bool:
        """Whether items come in tensors that later ones come in too: whoever holds some of them copies, or refuses."""
        return any(one.static_buffers for one in self.below)

    def functions(self) -> list[str]:
        """The functions of the user's that it calls, which no header holds by value, each with its verb: `map(clean)`."""
        called = filter(is_function, settings_of(self).values())
        own = [f"{self.verb}({name_of(getattr(value, 'func', value))})" for value in called]
        return [*(each for one in self.below for each in one.functions()), *own]

    def num_items(self, most: int | None = None) -> int | None:
        """How many items an epoch has, where that is known without reading: counted up to `most`."""
        return self.below[0].num_items(most) if self.below else None

    # of batches

    @property
    def planned(self) -> Stage[Any]:
        """The stage that plans the batches of an epoch, while they are still integers."""
        return self if self.plans else self.below[0].planned

    @property
    def limited(self) -> Stage[Any]:
        """The stage that plans the batches, as far as they are taken."""
        return self if self.plans else self.below[0].limited

    @property
    def planned_by(self) -> str:
        """The settings by which batches are planned and shared out, nearly as users write them; "" where rows are not batched."""
        return self.below[0].planned_by if self.below else ""

    @property
    def uneven(self) -> str:
        """The rule for a step that has too few batches for all ranks; "" where batches are not shared out."""
        return self.below[0].uneven if self.below else ""

    @property
    def collated(self) -> Any:
        """The stage that makes the batches, which knows the rules for their columns and their layout."""
        return self.below[0].collated

    def sharded(self, **how: Any) -> Stage[T_co]:
        """The batches of one data-parallel rank: rank, world_size, group, uneven, timeout_seconds."""
        return self.over(self.below[0].sharded(**how))

    @property
    def is_sharded(self) -> bool:
        """Whether they are one rank's."""
        return any(one.is_sharded for one in self.below)

    @property
    def num_ranks(self) -> int:
        """How many data-parallel ranks share the batches of a step."""
        return self.below[0].num_ranks if self.below else 1

    @property
    def micro_batches(self) -> int | None:
        """How many batches an optimizer step has; None where nothing says."""
        return self.below[0].micro_batches if self.below else None

    def shapes(self) -> list[tuple[int, ...]] | None:
        """The few shapes (rows, tokens) that all batches have; None where these are not known before they come."""
        return self.below[0].shapes() if self.below else None

    def rehearsed(self, batches: Callable[[Any], Stage[Any]]) -> Stage[Any]:
        """The chain with other batches in place of those that collating makes: `batches(that stage)`. Nothing is sent ahead."""
        return self.over(self.below[0].rehearsed(batches))

    def saved_with(self, weights: Iterator[Any]) -> Stage[T_co]:
        """The chain as a state was saved that has these weights of its mixtures, from the sources on; the rest is as it is."""
        below = tuple(one.saved_with(weights) for one in self.below)
        return self if all(map(is_, below, self.below)) else self.over(*below)

    def settings(self) -> dict[str, Any]:
        """The parameters that change the order of the data, by the names that users write, as plain JSON."""
        return _compared(self, "upstream", "upstreams")

    def header(self) -> list[Any]:
        """The description that a state is compared with: the stages from the source on, each a dict of its verb and its settings.

        Those of a stage without a verb are settings of the one that it serves, the next above.
        """
        below = [one.header() for one in self.below]
        served: dict[str, Any] = {}
        if len(below) == 1 and below[0] and "verb" not in below[0][-1]:
            served = below[0].pop()
        own = served | self.settings() | ({"datasets": below} if len(below) > 1 else {})
        if self.verb:
            own = {"verb": self.verb} | own
        return [*(below[0] if len(below) == 1 else ()), *([own] if own else [])]


_WORDS: Final = re.compile("(?<!^)(?=[A-Z])")


@contextmanager
def running(stage: Stage[T], at: State) -> Iterator[Iterator[tuple[T, State]]]:
    """The items of `stage` that follow `at`, closed on the way out, by the thread that ran them."""
    if at == END:
        yield iter(())
    else:
        with closing(stage.items(at)) as items:
            yield items


# -- headers: a state and the pipeline that it is given to must agree on them --------------------------------------------


def not_in_state(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that does not change the order of the data (workers, prefetch, timeouts): it is never compared."""
    return dataclasses.field(default=default, metadata={"runtime": True})


def is_function(value: Any) -> bool:
    """Whether a setting is a function of the user's, or something else that is called and has no value to compare."""
    held = isinstance(value, Stage) or dataclasses.is_dataclass(value) or hasattr(value, "fingerprint")
    return callable(value) and not held


def described(value: Any) -> Any:
    """A setting of a stage as plain JSON: a dataclass by its fields, less those marked `not_in_state`; another object by its
    public attributes.

    An object with a method `fingerprint()` stands as what that returns, a function as {"function": "module:qualified.name"}, a
    number that JSON does not know (nan, inf) as a string.

    >>> from brimful.plan import TokenBudget
    >>> described(TokenBudget(512))["max_tokens"], described(described)
    (512, {'function': 'brimful.core.stage:described'})
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
        return {"type": type(value).__name__} | _compared(value)
    if callable(value):
        fn = getattr(value, "func", value)
        return {
            "function": f"{getattr(fn, '__module__', '') or ''}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"
        }
    public = {name: one for name, one in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    if not public or isinstance(value, type):
        return type(value).__name__
    return {"type": type(value).__name__} | {name: described(one) for name, one in public.items()}


def _compared(description: Any, *left_out: str) -> dict[str, Any]:
    """The fields of a dataclass that change the order of the data, as plain JSON."""
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
    "fixed_weights": "allow={'weights'} works for mixtures of streams; this one is indexed, and a place in it is counted with "
    "its weights: end the epoch with those that saved it (take(n) gives repeating data one), and begin the next with others. A "
    "new run can change them midway if it mixes streams: files, stream() of data that repeat, or stream().take(n) of other data",
    "a mixture of indexed data": "a state cannot turn one into the other: go on with the indexed data, without stream()",
    "a mixture of streams": "a state cannot turn one into the other: go on with the streams. Where data do not repeat, that "
    "needs stream().take(n), as stream() alone leaves a mixture indexed",
    "weights": "go on with the weights that saved it, or with these all the same by allow={'weights'}",
    "shuffle_batches": "say shuffle_batches={saved}. True means 'stratified' with micro_batches of 2 or more, and with "
    "balance_cost over streams; else it means a random order, which fits only a run without them. Start a run whose "
    "micro_batches may change with 'stratified'. (A BatchSampler of 1.0.0rc1 gave the order of True for both: go on with True)",
    CHECKSUMS: "go on with the rows that saved it, or with these all the same by allow={'rows'}",
    "window": "use the pipeline that saved it. A state calls window='steps' 'auto', too",
}
"""The remedy for a setting that differs, by its name."""

_DIVIDED: Final = ("batch.policy.", "pack.rows")
"""Sizes that micro_batches divides, as they begin."""

SHUFFLES: Final = ("shuffle", "shuffle_shards")
"""Settings of sources without which their seed draws nothing."""


_ALLOWED: Final = ("functions", "rows", "urls", "weights")
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
        if found.name.startswith(_DIVIDED):
            remedy += ". micro_batches=k counts here too: each of the k batches has a k-th of the size that you gave"
        raise StateError(
            f"this state belongs to another pipeline: {found.name} was {found.saved} when it was saved and is {found.ours} "
            f"here; {remedy}"
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
        if ("fixed_weights" in saved) != ("fixed_weights" in ours):
            mixtures = [
                f"a mixture of {'indexed data' if 'fixed_weights' in one else 'streams'}" for one in (saved, ours)
            ]
            return Difference(owner.rstrip("."), mixtures[0], *mixtures)
        # the policy first: the window by default, and sort, follow from what was given
        policies = saved.get("policy"), ours.get("policy")
        if found := header_difference(*policies, allow | {"sort"}, f"{owner}policy", "policy"):
            return found
        idle = ["seed"] if any(saved.get(name) is ours.get(name) is False for name in SHUFFLES) else []
        passed = {*allow - {"rows"}, *idle}  # a header has the number of rows by this name
        names = [name for name in (*ours, *(name for name in saved if name not in ours)) if name not in passed]
        pairs = [(saved.get(name), ours.get(name), f"{owner}{name}", name) for name in names]
    else:
        return here
    return next(
        filter(None, (header_difference(one, other, allow, name, own) for one, other, name, own in pairs)), None
    )


def _same_function(saved: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether two names are of one function: the module of what a script defines depends on how it was started."""
    (one, first), (other, second) = (str(header["function"]).split(":", 1) for header in (saved, ours))
    return first == second and (one == other or "__main__" in (one, other))


def _brief(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "verb" in one for one in value):
        return " > ".join(str(one["verb"]) for one in value)
    if isinstance(value, dict) and (name := value.get("verb") or value.get("type") or value.get("function")):
        return str(name)
    if isinstance(value, dict) and "shards" in value:
        return f"{value['shards']:,} shard{'s' * (value['shards'] != 1)} with the digest {value['digest']}"
    return repr(value)


def place(stage: Stage[Any]) -> int:
    """How many stages below this one, in the longest branch, draw random numbers.

    It is a part of the key of every random choice. So two stages with one seed differ, and a stage that draws nothing (a map, a
    filter) changes no choice above it: two runs with and without it stay comparable.
    """
    return max((place(below) + below.draws for below in stage.below), default=0)


def chain(stage: Stage[Any], name: Callable[[Stage[Any]], str] = attrgetter("verb")) -> list[str]:
    """The verbs of the stages that a stage reads through, from its source on; branches in brackets."""
    below = stage.below
    names = chain(below[0], name) if len(below) == 1 else []
    if len(below) > 1:
        names = [f"({' | '.join(' > '.join(chain(one, name)) for one in below)})"]
    return [*names, own] if (own := name(stage)) else names


def shown(stage: Stage[Any]) -> str:
    """A chain of stages as a person is shown it."""
    return " > ".join(chain(stage, attrgetter("label")))


def named(stage: Stage[Any]) -> str:
    """The verb of a stage, or of the one that it serves."""
    return stage.verb or named(stage.below[0])


MOST_STAGES: Final = 64
"""In one chain. Each takes up to 10 of the 1,000 calls that Python nests."""


def check_depth(stage: Stage[Any]) -> None:
    """Refuses a chain of more stages than Python could run.

    Raises:
        ValueError: with both numbers.
    """
    if (depth := _depth(stage)) > MOST_STAGES:
        raise ValueError(
            f"{named(stage)} makes a chain of {depth:,} stages, and one may have {MOST_STAGES}; put what several functions do "
            "into one"
        )


def _depth(stage: Stage[Any]) -> int:
    return 1 + max(map(_depth, stage.below), default=0)


def refuse_streams(stage: Stage[Any], method: str, does: str = "counts") -> None:
    """Refuses what goes through the rows of a chain in one order, where they are in several streams.

    Args:
        does: what the method does to the rows.
    Raises:
        ValueError: naming the method and the ways out.
    """
    count = stage.streams
    if count is not None and count > 1:
        instead = "count batches instead (Batches.take, Batches.enumerate), filter the rows by what is in them, or "
        raise ValueError(
            f"{method} {does} the rows of all {count:,} streams, which are read apart and end apart: "
            f"{instead if does == 'counts' else ''}read them without streams="
        )


def refuse_originals(stage: Stage[Any]) -> None:
    """Refuses to work on rows that stand for objects of the user's.

    Raises:
        ValueError: naming the method and the ways out.
    """
    if any(one.originals is not None for one in stage.below):
        raise ValueError(
            f"{named(stage)} works on rows, and from_dataset(collate_fn=...) hands its samples to collate_fn as they are; do "
            "that in the data set's __getitem__ or in collate_fn, or leave collate_fn out"
        )


class StreamId(NamedTuple):
    """Which of several streams a stage serves: its number, how many they are, and the stage's seed before it had one for each."""

    number: int
    lanes: int
    seed: int


def share(count: int, stream: int, count_of_streams: int) -> int:
    """How many of the first `count` items are a stream's where an item of each is taken in turn.

    >>> [share(7, stream, 3) for stream in range(3)]
    [3, 2, 2]
    """
    return (count + count_of_streams - 1 - stream) // count_of_streams
