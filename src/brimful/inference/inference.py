"""Batch inference in order: windows of samples are planned, run, put back in their order and written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, TypedDict, Unpack, cast, get_args

import numpy as np

from brimful.batches import ColumnSettings, FormSettings, OrderSettings, batches_of
from brimful.batching.batch import Batch
from brimful.batching.planners import ByPolicy
from brimful.batching.window import Window
from brimful.blocks.blocks import Sample
from brimful.blocks.hashes import digest_of
from brimful.blocks.text_bytes import TextBytes, bytes_of
from brimful.core.errors import DataError, StateError, finite, integer, known, name_of, one_of
from brimful.core.iterator import ResumableIterator
from brimful.core.stage import Stage, refuse_streams
from brimful.dataset import Dataset, EngineName, IndexedDataset
from brimful.encoding.encoder import paddings
from brimful.inference.answers import Answered, OnRay, answered
from brimful.inference.results import Done, Results
from brimful.plan import FixedSize, OverlongError, Packed, Policy
from brimful.ray.cluster import check_address
from brimful.read import from_iterable, from_sequence
from brimful.tensors.collated import Collated
from brimful.tensors.columns import Columns
from brimful.tensors.layouts import Layout


class InferenceOptions(TypedDict, total=False):
    """What `map_batches_in_order` takes beside its own arguments, as the methods that make batches do: see `BatchOptions`."""

    token_columns: Sequence[str] | None
    pad_values: Mapping[str, float] | None
    pad_side: Literal["right", "left"] | None
    layout: Literal["padded", "nested"]
    dtypes: Mapping[str, Any] | None
    collate_fn: Callable[[list[Sample]], Any] | None


def map_batches_in_order(
    fn: Callable[[Any], Sequence[Any]] | type[Callable[[Any], Sequence[Any]]],
    texts_or_dataset: Dataset | Iterable[str | Sample],
    policy: Policy | int,
    *,
    output: str | os.PathLike[str] | None = None,
    window: int | Literal["auto"] = "auto",
    length_column: str | None = None,
    overlong: Literal["raise", "truncate", "alone"] = "raise",
    version: str | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    num_gpus_per_worker: float = 0.0,
    **options: Unpack[InferenceOptions],
) -> Iterator[Any]:
    """`fn` of any number of samples, batched by their lengths: its results in the order of the samples, one each.

    A window of samples is the unit: its batches are planned, run from the longest on, and the results put back in order. A batch
    that is out of memory is split by sample, and such shapes beforehand from then on. On several machines, or GPUs, let Ray have
    it; or give each its share (`dataset.stride(world_size, rank)`) and a folder of its own.

    Args:
        fn: takes a batch, a dict of tensors and lists (texts under "text"), and returns one result a sample: a list, or a tensor
            of as many rows. It may be called again for samples that it has seen, after a kill or out of memory. Or a class, of
            which an object is made, without arguments, once in each worker: it loads the model.
        texts_or_dataset: texts, or dicts, in a list or what can be iterated over again; or a data set, tokenised or not.
        policy: what plans a window; an int: so many samples a batch, of neighbours in length.
        output: a folder of results, a file a window, each written whole: Parquet where its name ends in .parquet, else JSON
            lines; tensors become lists, in Parquet a result that is no dict is the column "result". The iterator gives what the
            files hold, also those that an earlier run wrote. A killed run that is called again repeats the window at work, and
            none before it.
        window: samples; "auto": what brings padding to about 1 %: a few thousand samples may be one window, whose results come
            and are written at its end. A smaller one is written sooner, and costs less when killed: choose one for a slow `fn`.
        length_column: what is planned over: a list of tokens, whose length counts, or a text, whose bytes in UTF-8 count, as
            tokens are not known. None: "input_ids" where the samples have it, else "text".
        overlong: what becomes of a sample longer than the policy can place: "raise", "truncate" (of tokens: texts stay
            as they are), or "alone" (a batch of its own).
        version: of `fn`, another one when it changes: a folder of results cannot tell.
        engine: "local", or "ray": workers of a Ray cluster call `fn`; samples are read, planned and put in order here. The batch
            of one that is killed is made by another.
        ray_address: of the cluster, as `Dataset.cache` takes it.
        num_workers: of Ray; None: as many as it has processors, or GPUs to give them.
        num_gpus_per_worker: 1 for a model on a GPU; a part of one where several share it.
        options: see `InferenceOptions`.
    Raises:
        TypeError: a policy that packs, or a single text instead of several.
        ValueError: data that repeat without end, or come in streams; texts that are to be truncated; a folder of other things.
        DataError: (when run) a file of results is damaged, or has not as many as were written.
        StateError: (when run) the folder's results are of other data or settings; both sides are named. Of a list all samples
            are compared, else the description and the samples of the last window that is done.
        StageError: (when run) see the stages.
        torch.OutOfMemoryError: (when run) one sample alone does not fit.
    State: the folder's _progress.json, 1 KB. Price: two windows of samples and one of results held; 100 us a batch; with `output`
        about 50 ns a token and two files a window; going on reads the last window again, and the results that are there.

    >>> def spell(batch): return [text.upper() for text in batch["text"]]
    >>> list(map_batches_in_order(spell, ["a", "ccc", "bb"], 2))
    ['A', 'CCC', 'BB']
    """
    if isinstance(policy, Packed) or not (isinstance(policy, Policy) or hasattr(policy, "__index__")):
        raise TypeError(
            f"map_batches_in_order takes a policy of padded batches, or a number of samples (got {policy!r})"
        )
    one_of("overlong", overlong, "raise", "truncate", "alone")
    known("map_batches_in_order", options, InferenceOptions)
    on_ray = _on_ray(engine, ray_address, num_workers, num_gpus_per_worker)
    dataset = _dataset(texts_or_dataset)
    if not isinstance(policy, Policy):
        policy = FixedSize(integer("policy", policy, 1, "sample"))
    column, is_text = _planned_over(dataset, length_column)
    if is_text and overlong == "truncate":
        raise ValueError(
            f"overlong='truncate' cuts tokens, and {column!r} holds texts, which stay as they are; tokenize them before, or "
            "choose raise or alone"
        )
    stage = _numbered(dataset, policy, window, column, is_text, overlong, options)
    total = None if dataset.stage.streamed_by else len(cast(IndexedDataset, dataset))
    if output is None:
        return _in_bytes(is_text, _run(fn, stage, total, on_ray))
    collate_fn, side = options.get("collate_fn"), paddings(dataset.stage.tokenizers()).get(column)
    settings = {
        "type": "map_batches_in_order",
        "fn": name_of(fn),
        "version": version,
        "samples": dataset.stage.contents(),
        "layout": options.get("layout", "padded"),
        "pad_side": options.get("pad_side") or (side.side if side else "right"),
        "dtypes": dict(stage.rules.dtypes),
        "collate_fn": None if collate_fn is None else name_of(collate_fn),
    }
    return _in_bytes(is_text, _written(fn, stage, total, Results(Path(output).expanduser(), settings), on_ray))


def _in_bytes(is_text: bool, results: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Says of a text that is too long what its length counts."""
    try:
        yield from results
    except DataError as error:
        if not (is_text and isinstance(error.__cause__, OverlongError)):
            raise
        words = f"{error}. A text has no tokens yet: these are its bytes in UTF-8"
        raise DataError(words) from error.__cause__


def _on_ray(
    engine: EngineName, ray_address: str | None, num_workers: int | None, num_gpus_per_worker: float
) -> OnRay | None:
    one_of("engine", engine, *get_args(EngineName))
    given = {"ray_address": ray_address, "num_workers": num_workers, "num_gpus_per_worker": num_gpus_per_worker or None}
    if engine == "local":
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is for engine='ray' (got engine='local')")
        return None
    check_address(ray_address)
    gpus = finite("num_gpus_per_worker", num_gpus_per_worker)
    if gpus < 0:
        raise ValueError(f"num_gpus_per_worker must be at least 0 (got {num_gpus_per_worker})")
    return OnRay(ray_address, None if num_workers is None else integer("num_workers", num_workers, 1, "worker"), gpus)


def _run(
    fn: Callable[[Any], Any], stage: Stage[Any], total: int | None, on_ray: OnRay | None
) -> Generator[Any, None, None]:
    with (
        ResumableIterator(stage, None, ()) as batches,
        _progress(total) as advance,
        closing(answered(fn, batches, on_ray)) as answers,
    ):
        for _, results, _ in _windows(answers, advance):
            yield from results


def _written(
    fn: Callable[[Any], Any], stage: Stage[Any], total: int | None, folder: Results, on_ray: OnRay | None
) -> Generator[Any, None, None]:
    with folder, _progress(total) as advance:
        done = folder.done()
        with _begun(stage, folder, done) as batches:
            done = done or Done(0, batches.state_dict(), 0)
            if done.windows:
                _check_last(folder, done, batches)
            folder.save(done)
            for number, rows in enumerate(done.rows()):
                for result in folder.read(number, rows):
                    advance(1)
                    yield result
            before = batches.state_dict()
            with closing(answered(fn, batches, on_ray)) as answers:
                for number, (window, results, after) in enumerate(_windows(answers, advance), done.windows):
                    folder.write(number, results)
                    done = done.after(len(results), before, digest_of(window.take(np.arange(len(window)))))
                    folder.save(done)
                    before = after
                    yield from folder.read(number, len(results))


def _begun(stage: Stage[Any], folder: Results, done: Done | None) -> ResumableIterator[Any]:
    try:
        return ResumableIterator(stage, None if done is None else done.before, ())
    except StateError as error:
        raise StateError(f"the results in {folder.path} are of another run: {error}") from error


def _check_last(folder: Results, done: Done, batches: Iterator[tuple[Batch, Any]]) -> None:
    """Reads the last window that is done again, and holds its samples against what they were."""
    try:
        window = next((batch.window for batch, _ in batches if batch.last), None)
    except StateError as error:
        raise StateError(f"the results in {folder.path} are of other data: {error}") from error
    found = 0 if window is None else digest_of(window.take(np.arange(len(window))))
    if found != done.digest:
        raise StateError(
            f"the results in {folder.path} are of other data: the samples of window {done.windows - 1:,} had the digest "
            f"{done.digest:08x} when they were written, and have {found:08x} here; name another folder, or go on with those"
        )


def _windows(answers: Iterator[Answered], advance: Callable[[int], None]) -> Iterator[tuple[Window, list[Any], Any]]:
    """Each window with its results, in the order of its samples, and the state after it."""
    held: dict[int, Any] = {}
    for batch, results, after in answers:
        held.update(zip(batch.numbers.tolist(), results, strict=True))
        advance(len(batch))
        if batch.last:
            assert len(held) == len(batch.window), "a sample was planned twice, or not at all"
            yield batch.window, [held[number] for number in range(len(held))], after
            held = {}


@dataclass(frozen=True)
class _Numbered(Layout):
    """A layout's item, and the batch that says which samples are in it."""

    layout: Layout

    def item(self, batch: Batch, columns: Columns) -> Any:
        return batch, self.layout.item(batch, columns)

    def shape(self, batch: Batch, item: Any, columns: Columns) -> tuple[tuple[int, ...], int]:
        return self.layout.shape(batch, item[1], columns)


def _numbered(
    dataset: Dataset,
    policy: Policy,
    window: int | Literal["auto"],
    column: str,
    is_text: bool,
    overlong: Literal["raise", "truncate", "alone"],
    options: InferenceOptions,
) -> Collated:
    """The stage of batches, each with what `fn` gets; planned over the lengths of a column."""
    planner = ByPolicy(policy, overlong)
    stage = TextBytes(dataset.stage, column) if is_text else dataset.stage
    name = bytes_of(column) if is_text else column
    columns = ColumnSettings(name, options.get("token_columns"), options.get("pad_values"), options.get("dtypes"))
    order = OrderSettings(False, False, None, 1, 0)
    form = FormSettings(
        options.get("layout", "padded"), None, options.get("pad_side"), options.get("collate_fn"), 0, "thread"
    )
    made = cast(Collated, batches_of(stage, False, planner, window, columns, order, form).stage)
    rules = made.rules
    if is_text:
        rules = replace(rules, explicit=tuple(one for one in rules.explicit if one != name))
    return replace(made, rules=rules, layout=_Numbered(made.layout))


def _planned_over(dataset: Dataset, length_column: str | None) -> tuple[str, bool]:
    """The column that is planned over, and whether it is text, as the first sample shows."""
    sample = next(iter(dataset.peek(1)), {})
    column = length_column or next((name for name in ("input_ids", "text") if name in sample), "input_ids")
    if sample and column not in sample:
        raise DataError(
            f"there is no column {column!r} whose lengths can be planned over (columns: {', '.join(sample)}); say "
            "length_column="
        )
    return column, isinstance(sample.get(column), str)


def _dataset(texts_or_dataset: Any) -> Dataset:
    if isinstance(texts_or_dataset, str | bytes | Mapping):
        raise TypeError(f"map_batches_in_order takes several texts (got a single {type(texts_or_dataset).__name__})")
    if isinstance(texts_or_dataset, Dataset):
        dataset = texts_or_dataset
    elif hasattr(texts_or_dataset, "__len__") and hasattr(texts_or_dataset, "__getitem__"):
        dataset = from_sequence(texts_or_dataset)
    else:
        dataset = from_iterable(texts_or_dataset)
    if dataset.repeats or dataset.stage.endless:
        raise ValueError("this data set repeats without end, and map_batches_in_order ends with it; take some of it")
    refuse_streams(dataset.stage, "map_batches_in_order", "puts in order")
    return dataset


PATIENCE_SECONDS: Final = 1.0
"""Work that takes no longer shows no bar."""


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, once the work has taken a while; else nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda samples: None
        return
    began = monotonic()
    columns = (TextColumn("brimful"), BarColumn(), MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, visible=False)
        yield lambda samples: bar.update(task, advance=samples, visible=monotonic() - began > PATIENCE_SECONDS)
