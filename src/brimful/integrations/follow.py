"""Follow: learning which batches of a loader a trainer has used. And what each trainer asks of the loaders that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from brimful.async_loader import AsyncLoader, stage_of
from brimful.batching.facts import is_sharded
from brimful.core.facts import facts_of
from brimful.core.states import merge_states
from brimful.loader import Loader
from brimful.plan.errors import RankError
from brimful.tensors.on_device import check_tensors

Ours: TypeAlias = Loader | AsyncLoader
Gather: TypeAlias = Callable[[list[Any]], list[Any]]
"""Gives the lists of all processes, end to end."""


@final
class Follow:
    """A loader whose batches a trainer takes before it uses them, and how many it has taken and used.

    From `begin` to `end` the loader's state is that after the batches that were used. All others come again, after a resume or
    the end of a loop that was left.

    >>> import brimful as bf
    >>> batches = bf.from_sequence([[1], [2], [3]]).batch(1)
    >>> follow = Follow(batches.loader())
    >>> follow.begin()
    >>> for batch in follow.loader:
    ...     follow.handed_out += 1
    ...     if follow.handed_out == 2:
    ...         follow.use()
    >>> follow.unused
    1
    >>> resumed = batches.loader()
    >>> resumed.load_state_dict(follow.state(gather=list))
    >>> [batch["input_ids"].tolist() for batch in resumed]
    [[[3]]]
    """

    def __init__(self, loader: Ours) -> None:
        self.loader = loader
        self.handed_out: int = 0
        self._used = 0

    @property
    def unused(self) -> int:
        """Batches that were handed out and not used."""
        return self.handed_out - self._used

    def use(self) -> None:
        """All that was handed out has been used."""
        self._used = self.handed_out

    def begin(self) -> None:
        """From here on the loader's state follows what is used."""
        self.loader.follow(lambda: self._used)

    def end(self) -> None:
        """The trainer is done. The loader stands after the batches that were used."""
        self.loader.follow(None)

    def state(self, gather: Gather) -> dict[str, Any]:
        """The loader's state after what was used, of all processes in one."""
        return dict(merge_states(gather([self.loader.state_dict()])))


@contextmanager
def told_to_all(gather: Gather) -> Iterator[None]:
    """Around what all processes do at one point, with no collective in it: an error of one is told to the others.

    Raises:
        RankError: another process failed.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    said = gather([None if failure is None else f"{type(failure).__name__}: {failure}"])
    if failure is not None:
        raise failure
    for rank, words in enumerate(said):
        if words is not None:
            raise RankError(f"rank {rank} failed: {words}")


def innermost(loader: Any) -> Any:
    """What AsyncLoaders, one around the other, read; anything else as it is."""
    while isinstance(loader, AsyncLoader):
        loader = loader.loader
    return loader


def accumulated(loaders: Iterable[Any], given: int, setting: str, *, may_set: bool = True) -> int:
    """How many batches a trainer adds up in an optimizer step: as many as those of its loaders are made for.

    Args:
        given: by the trainer's own setting; 1: it says nothing, if `may_set`.
        setting: its name.
    Raises:
        ValueError: it is another number, with both. Or steps have as many batches as they need, or batches are numpy arrays.
    """
    stages = [stage_of(one) for one in loaders]
    for stage in stages:
        check_tensors(stage, "a trainer's model takes tensors")
    known = [facts_of(stage).batches for stage in stages]
    for one in known:
        if (samples := getattr(one, "samples_per_step", None)) is not None:
            raise ValueError(
                f"the batches are made for optimizer steps of samples_per_step={samples:,}, of as many batches as they need, and "
                f"{setting}={given} adds up the gradients of a fixed number. Write the loop yourself: step after a batch whose "
                "ends_step is True. Or make the batches with micro_batches=k"
            )
    made_for = [getattr(one, "micro_batches", None) for one in known]
    if given == 1 and may_set:
        given = next((number for number in made_for if number is not None), 1)
    for batches in made_for:
        if batches is not None and given != batches:
            raise ValueError(
                f"the batches are made for optimizer steps of {batches} (micro_batches={batches}), but gradients would be added "
                f"up over {given} ({setting}={given}). Set {setting}={batches}, or make the batches with micro_batches={given}"
            )
    return given


def check_shared_out(loader: object, world_size: int, ranks: str, each_would: str, name: str = "this loader") -> None:
    """Refuses a loader all of whose batches each rank would get.

    Args:
        ranks: what the trainer calls them.
        each_would: do what with all batches.
    Raises:
        ValueError: with what to do.
    """
    batches = getattr(loader, "batches", None)
    if world_size > 1 and batches is not None and not is_sharded(batches.stage):
        raise ValueError(
            f"there are {world_size} {ranks}, and the batches of {name} are not shared out: {each_would} all of them; say "
            "batches.shard().loader(), or batches.shard(0, 1).loader() if that is meant"
        )
