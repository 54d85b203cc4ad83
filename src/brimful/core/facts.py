"""What is known of a chain of stages without reading it.

Each stage makes its facts of those of its inputs: it takes `following`, and changes the fields that it knows better. Whoever
wants to know something of a chain reads a field. What may open a file, or call a function of the user's, is a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from brimful.plan.errors import name_of
from brimful.plan.once import settings_of

if TYPE_CHECKING:
    from brimful.core.stage import Stage

Seam: TypeAlias = Literal["ends", "passes", "joins"]
Within: TypeAlias = Literal["batch", "step"]
Tokenizers: TypeAlias = dict[str, tuple[Any, ...]]


class Together(NamedTuple):
    """Neighbouring rows with one key stay together: in one batch, or in one optimizer step."""

    key: str
    within: Within

    def __str__(self) -> str:
        return f"units({self.key!r}{'' if self.within == 'batch' else ', within=' + repr(self.within)})"


@dataclass(frozen=True)
class Facts:
    """What is known of the items of a chain, rows or batches.

    Args:
        schema: the columns and types of its rows, or of those that its batches are made of, as far as they are known without
            reading a row or calling a function of the user's: an Arrow schema; None: not.
        row_schema: the columns and types that all its rows have; None where only the rows tell. It may read the first of them.
        num_rows: how many rows an epoch of indexed data has; None: not known.
        num_items: how many items an epoch has, of planned windows how many batches, where that is known without reading: counted
            up to a number. None: not known.
        ends: whether it has an end, as far as the description says it.
        streams: into how many streams it divides its data; None where it does not. Raises a ValueError where the sources of a
            mixture differ in that.
        streamed_by: the first verb after which samples cannot be had by number; "" where they can.
        order_by: the first verb for which a row does not depend on one row of a file alone; "" where none is: then rows may be
            worked out anywhere. They keep their order, and where they came from.
        seam: what the end of an epoch means to it. It "ends", and the chain begins again. Or its items "pass" over the seam
            where those of its input do: each follows from one of these. Or it "joins" the rows of both epochs.
        carries: whether the end of an epoch leaves tokens for the next one: those that fill no chunk of `concat_chunk`. Then all
            that stands above runs over the seams, too; but what counts the samples of an epoch does not, and says so (False).
        again: of what joins the rows of epochs, how its input goes on over them; None: as `core.repeat.endless` says.
        draws: how many stages draw random numbers, in the longest branch, itself included.
        leaves_out: whether rows that are bad are left out somewhere (on_error="skip").
        cut_by_time: whether the time that a user's function took may have a say in where its blocks end.
        from_index: whether all its rows are read by number, and neither a function of the user's nor a tokenizer works on them:
            so each of several ranks can afford to read all of them.
        one_by_one: whether rows are fetched one by one, from an object of the user's, so that no more than the wanted ones should
            be.
        static_buffers: whether items come in tensors that later ones come in too: whoever holds some of them copies, or refuses.
        tokenizers: the tokenizers that made the columns, or what is known of them, by column: each once.
        texts: the columns of text that was tokenized, as far as they are still here: batches leave them out.
        functions: the functions of the user's that it calls, which no header holds by value, each with its verb: `map(clean)`.
        originals: the user's own objects that its rows stand for, by number, where samples are handed on as they are; None where
            rows are the samples. Raises a ValueError where it works on what is in rows, and these are numbers.
        newest: when the newest of the files that it reads was written, and its name; (0.0, "") where nobody says.
        first_shard: the name of the first file of a source that reads files; "" of other sources, and of several.
        units: which neighbouring rows stay together; None: no stage says that.
        mixed_by: what has moved rows away from their neighbours, and what to do instead, in words; "" where nothing has.
        nulls: of the columns that some of the data sets that it joins lack: which ones, in words.
        batches: what is known of batches, where it makes some: see `batching.facts`.
    """

    schema: Callable[[], Any] = lambda: None
    row_schema: Callable[[], Any] = lambda: None
    num_rows: Callable[[], int | None] = lambda: None
    num_items: Callable[[int | None], int | None] = lambda most: None
    ends: Callable[[], bool] = lambda: True
    streams: Callable[[], int | None] = lambda: None
    streamed_by: str = ""
    order_by: str = ""
    seam: Seam = "ends"
    carries: bool = False
    again: Callable[[Any], Stage[Any]] | None = None
    draws: int = 0
    leaves_out: bool = False
    cut_by_time: bool = False
    from_index: bool = False
    one_by_one: bool = False
    static_buffers: bool = False
    tokenizers: Callable[[], Tokenizers] = dict
    texts: Callable[[], tuple[str, ...]] = tuple
    functions: tuple[str, ...] = ()
    originals: Callable[[], Any] = lambda: None
    newest: Callable[[], tuple[float, str]] = lambda: (0.0, "")
    first_shard: Callable[[], str] = str
    units: Together | None = None
    mixed_by: str = ""
    nulls: Callable[[], dict[str, str]] = dict
    batches: Any = None


def facts_of(stage: Stage[Any]) -> Facts:
    """What is known of a chain. A stage keeps its own, which do not change."""
    kept: dict[str, Any] = vars(stage)
    if _KEPT not in kept:
        kept[_KEPT] = stage.facts(*map(facts_of, stage.inputs))
    found: Facts = kept[_KEPT]
    return found


_KEPT: Final = "facts so far"


def following(stage: Stage[Any], *inputs: Facts, **known: Any) -> Facts:
    """The facts of a stage of which nothing is known but its inputs, and what is `known`: its rows are other ones, streamed by
    its verb, in epochs that end.
    """
    called = filter(is_function, settings_of(stage).values())
    own = [f"{verb_of(stage)}({name_of(getattr(value, 'func', value))})" for value in called]
    one = inputs[0] if len(inputs) == 1 else Facts()
    streamed_by = next((each.streamed_by for each in inputs if each.streamed_by), verb_of(stage))
    found: dict[str, Any] = {
        "schema": one.schema,
        "num_rows": Facts.num_rows if streamed_by else one.num_rows,
        "num_items": inputs[0].num_items if inputs else Facts.num_items,
        "ends": lambda: all(each.ends() for each in inputs),
        "streams": lambda: _streams(stage, inputs),
        "streamed_by": streamed_by,
        "order_by": next((each.order_by for each in inputs if each.order_by), named(stage)),
        "seam": "passes" if known.get("carries", one.carries) else "ends",
        "carries": one.carries,
        "draws": max((each.draws for each in inputs), default=0),
        "leaves_out": getattr(stage, "on_error", "raise") == "skip" or any(each.leaves_out for each in inputs),
        "cut_by_time": any(each.cut_by_time for each in inputs),
        "from_index": bool(inputs) and not own and all(each.from_index for each in inputs),
        "one_by_one": any(each.one_by_one for each in inputs),
        "static_buffers": any(each.static_buffers for each in inputs),
        "tokenizers": lambda: _joined(inputs),
        "texts": lambda: tuple(dict.fromkeys(name for each in inputs for name in each.texts())),
        "functions": (*(name for each in inputs for name in each.functions), *own),
        "originals": lambda: refuse_originals(stage, *inputs),
        "newest": lambda: max((each.newest() for each in inputs), default=(0.0, "")),
        "first_shard": one.first_shard,
        "units": one.units,
        "mixed_by": next((each.mixed_by for each in inputs if each.mixed_by), ""),
        "nulls": one.nulls,
        "batches": one.batches,
    }
    return Facts(**found | known)


def row_by_row(stage: Stage[Any], one: Facts, **known: Any) -> Facts:
    """The facts of a stage of which what becomes of a row depends on that row alone, not on those beside it or on how many came
    before."""
    return following(stage, one, **{"order_by": one.order_by, "seam": "passes"} | known)


def columns_by(one: Facts, change: Callable[[Any], Any]) -> Callable[[], Any]:
    """The schema of a chain that changes the columns of another one, where these are known."""

    def schema() -> Any:
        below = one.schema()
        return None if below is None else change(below)

    return schema


def _streams(stage: Stage[Any], inputs: tuple[Facts, ...]) -> int | None:
    counts = [each.streams() for each in inputs]
    if len({*counts}) > 1:
        got = ("None" if count is None else f"{count:,}" for count in counts)
        raise ValueError(
            f"the data sets of {named(stage)} must have equally many streams (got {', '.join(got)}); "
            "give each the same from_files(streams=...)"
        )
    return counts[0] if counts else None


def _joined(inputs: tuple[Facts, ...]) -> Tokenizers:
    found: Tokenizers = {}
    for one in inputs:
        for name, made in one.tokenizers().items():
            known = found.setdefault(name, made)
            prints = {each.fingerprint() for each in known} if known is not made else set()
            found[name] = (*known, *(each for each in made if prints and each.fingerprint() not in prints))
    return found


def is_function(value: Any) -> bool:
    """Whether a setting is a function of the user's, or something else that is called and has no value to compare."""
    return callable(value) and not (is_dataclass(value) or hasattr(value, "fingerprint"))


def rng_slot(stage: Stage[Any]) -> int:
    """How many stages below this one, in the longest branch, draw random numbers.

    It is a part of the key of every random choice. So two stages with one seed differ, and a stage that draws nothing (a map, a
    filter) changes no choice above it: two runs with and without it stay comparable.
    """
    return max((facts_of(one).draws for one in stage.inputs), default=0)


# -- what a method refuses ------------------------------------------------------------------------------------------------


def refuse_streams(stage: Stage[Any], method: str, does: str = "counts") -> None:
    """Refuses what goes through the rows of a chain in one order, where they are in several streams.

    Args:
        does: what the method does to the rows.
    Raises:
        ValueError: naming the method and the ways out.
    """
    count = facts_of(stage).streams()
    if count is not None and count > 1:
        instead = "count batches instead (Batches.take, Batches.enumerate), filter the rows by what is in them, or "
        raise ValueError(
            f"{method} {does} the rows of all {count:,} streams, which are read apart and end apart: "
            f"{instead if does == 'counts' else ''}read them without streams="
        )


def refuse_originals(stage: Stage[Any], *inputs: Facts) -> None:
    """Refuses to work on rows that stand for objects of the user's.

    Raises:
        ValueError: naming the method and the ways out.
    """
    if any(one.originals() is not None for one in inputs):
        raise ValueError(
            f"{named(stage)} works on rows, and from_dataset(collate_fn=...) hands its samples to collate_fn as they are; do "
            "that in the data set's __getitem__ or in collate_fn, or leave collate_fn out"
        )


def refuse_static_buffers(stage: Stage[Any], holder: str) -> None:
    """Refuses items that come in the same tensors again.

    Args:
        holder: who holds one while the next is made.
    Raises:
        ValueError: with what to do.
    """
    if facts_of(stage).static_buffers:
        raise ValueError(
            f"{holder} holds a batch while the next one is made, and static_buffers puts both into the same tensors. Leave "
            "static_buffers out"
        )


def refuse_units(stage: Stage[Any], method: str, does: str, remedy: str = "") -> None:
    """Refuses what would part rows that stay together.

    Args:
        does: what the method does to the rows.
        remedy: what to do; by default to call the method before `units`.
    Raises:
        ValueError: naming the method, the key and the way out.
    """
    if (units := facts_of(stage).units) is not None:
        raise ValueError(
            f"{method} {does}, and would part the units of {units.key!r}: "
            f"{remedy or f'call {method} before units, or leave units out'}"
        )


def same_units(stage: Stage[Any], inputs: tuple[Facts, ...]) -> Together | None:
    """Which rows stay together in several data sets.

    Raises:
        ValueError: they differ in that.
    """
    found = [one.units for one in inputs]
    for number, one in enumerate(found):
        if one != found[0]:
            both = (
                f"data set {which} has {'no units' if own is None else own}"
                for which, own in ((0, found[0]), (number, one))
            )
            raise ValueError(
                f"{named(stage)}: {' and '.join(both)}. Call units on each of them, or on none, in the same way"
            )
    return found[0] if found else None


# -- names -----------------------------------------------------------------------------------------------------------------

_WORDS: Final = re.compile("(?<!^)(?=[A-Z])")


def verb_of(stage: Stage[Any]) -> str:
    """The method that users call for a stage: its `verb`, where it has one, else the name of its class; "" where it only serves
    another: messages then name the stage below."""
    verb: str | None = getattr(stage, "verb", None)
    return _WORDS.sub("_", type(stage).__name__).lower() if verb is None else verb


def label_of(stage: Stage[Any]) -> str:
    """The name of a stage for people: its `label`, where it has one, else its verb."""
    label: str | None = getattr(stage, "label", None)
    return verb_of(stage) if label is None else label


def named(stage: Stage[Any]) -> str:
    """The verb of a stage, or of the one that it serves."""
    return verb_of(stage) or named(stage.inputs[0])


def chain(stage: Stage[Any], name: Callable[[Stage[Any]], str] = verb_of) -> list[str]:
    """The verbs of the stages that a stage reads through, from its source on; branches in brackets."""
    inputs = stage.inputs
    names = chain(inputs[0], name) if len(inputs) == 1 else []
    if len(inputs) > 1:
        names = [f"({' | '.join(' > '.join(chain(one, name)) for one in inputs)})"]
    return [*names, own] if (own := name(stage)) else names


def shown(stage: Stage[Any]) -> str:
    """A chain of stages as a person is shown it."""
    return " > ".join(chain(stage, label_of))
