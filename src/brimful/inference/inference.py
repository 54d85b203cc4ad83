"""Batch inference in order: plans windows of samples, runs them, puts the results in order and writes them whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, overload
from zlib import crc32

import numpy as np
from torch import Tensor

from brimful.arrays.collated import Collated
from brimful.batches import Batches, ColumnSettings, FormSettings, OrderSettings, batches_of
from brimful.batching.batch import Batch
from brimful.batching.facts import collated_of
from brimful.batching.planners import ByPolicy
from brimful.batching.window import PlanningWindow
from brimful.core.facts import facts_of, refuse_streams
from brimful.core.header import header_of
from brimful.core.iterator import ResumableIterator
from brimful.core.stage import Stage
from brimful.core.terminal import shown as progress
from brimful.dataset import Dataset, Executor, IndexedDataset
from brimful.encoding.encoder import paddings
from brimful.index.sequence import FromSequence
from brimful.inference.open_window import OpenWindow, digest
from brimful.inference.results import ResultFolder, ResultIndex, WindowsDone
from brimful.loader import Loader
from brimful.oom.exhaustion import GuardStats
from brimful.oom.generation import OomSafe, owning, rows_of
from brimful.oom.parts import splittable
from brimful.plan import FixedSize, OverlongError, Policy
from brimful.plan.errors import (
    DataError,
    StateError,
    check_path,
    check_version,
    counted,
    finite,
    function,
    integer,
    logger,
    name_of,
    one_of,
)
from brimful.plan.plan import is_policy
from brimful.ray.cluster import Cluster, check_address
from brimful.ray.pool import Pool
from brimful.read import from_iterable, from_sequence
from brimful.rows.columns import TextBytes, bytes_of
from brimful.tables.blocks import Block, Sample
from brimful.tables.origins import where

NAMED: Final = 5
"""So many samples of a batch that fails are named."""
_AVOIDS_SPLITS: Final = "a smaller budget, or fewer rows a batch, avoids this"


@overload
def map_batches_in_order(
    fn: Callable[[Any], Sequence[Any]] | type[Any],
    texts_or_dataset: Dataset | Iterable[str | Sample],
    policy: Policy | int,
    *,
    output: None = None,
    window: int | Literal["auto"] = "auto",
    executor: Executor = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    num_gpus_per_worker: float = 0.0,
    version: str | None = None,
    length_column: str | None = None,
    overlong: Literal["raise", "truncate", "alone"] = "raise",
    token_columns: Sequence[str] | None = None,
    pad_values: Mapping[str, float] | None = None,
    pad_side: Literal["right", "left"] | None = None,
    layout: Literal["padded", "nested"] = "padded",
    dtypes: Mapping[str, Any] | None = None,
    collate_fn: Callable[[list[Sample]], Any] | None = None,
) -> Iterator[Any]: ...


@overload
def map_batches_in_order(
    fn: Callable[[Any], Sequence[Any]] | type[Any],
    texts_or_dataset: Dataset | Iterable[str | Sample],
    policy: Policy | int,
    *,
    output: str | os.PathLike[str],
    window: int | Literal["auto"] = "auto",
    executor: Executor = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    num_gpus_per_worker: float = 0.0,
    version: str | None = None,
    length_column: str | None = None,
    overlong: Literal["raise", "truncate", "alone"] = "raise",
    token_columns: Sequence[str] | None = None,
    pad_values: Mapping[str, float] | None = None,
    pad_side: Literal["right", "left"] | None = None,
    layout: Literal["padded", "nested"] = "padded",
    dtypes: Mapping[str, Any] | None = None,
    collate_fn: Callable[[list[Sample]], Any] | None = None,
) -> IndexedDataset: ...


def map_batches_in_order(
    fn: Callable[[Any], Sequence[Any]] | type[Any],
    texts_or_dataset: Dataset | Iterable[str | Sample],
    policy: Policy | int,
    *,
    output: str | os.PathLike[str] | None = None,
    window: int | Literal["auto"] = "auto",
    executor: Executor = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    num_gpus_per_worker: float = 0.0,
    version: str | None = None,
    length_column: str | None = None,
    overlong: Literal["raise", "truncate", "alone"] = "raise",
    token_columns: Sequence[str] | None = None,
    pad_values: Mapping[str, float] | None = None,
    pad_side: Literal["right", "left"] | None = None,
    layout: Literal["padded", "nested"] = "padded",
    dtypes: Mapping[str, Any] | None = None,
    collate_fn: Callable[[list[Sample]], Any] | None = None,
) -> Iterator[Any] | IndexedDataset:
    """Calls `fn` on batches that are planned by length, and gives one result for each sample, in the order of the
    samples.

    Without `output`, the call returns an iterator. It calls `fn` as you take results. With `output`, the call runs at
    once and shows a progress bar if stderr is a terminal. It writes all results to a folder, and returns them as an
    `IndexedDataset`. If a run is killed, call it again: it repeats the batches of the last 2 seconds only. If all
    results are there, brimful opens them and does not call `fn`.

    brimful plans one window of samples at a time, runs it from the longest batch on, and puts the results in order. A
    batch that runs out of memory is split by sample. From then on, batches of such a shape are split beforehand. A
    warning at the end counts the split batches. An error of `fn` keeps its type, and a note names the samples. To use
    several machines or GPUs, choose `executor="ray"`. Or give each one its own share (`dataset.stride(world_size,
    rank)`) and folder.

    Args:
        fn: takes a batch and returns one result for each sample. A batch is a dict of tensors and lists (texts under
            "text"). The results are a list, or a tensor with one row a sample. After a kill or out of memory, brimful
            may call it again for the same samples. `fn` may be a class: each worker makes one object of it, without
            arguments. The object can load the model.
        texts_or_dataset: texts or dicts, in a list or another iterable that can be read again. Or a data set, tokenized
            or not.
        policy: plans the batches of a window. An int: so many samples of similar length a batch.
        output: a folder for the results, one file a window. Each file is written whole: Parquet if the folder's name
            ends in .parquet, else JSON lines. Tensors become lists. Until a window is done, its results are written to
            the file _open_window every 2 seconds. The returned data set reads the files when you use rows. A dict
            result becomes a row with its keys. Any other result becomes a row with the column "result". If results have
            different forms, they fit no table. JSON lines can still hold them. The data set then raises an error when
            you ask for rows, but you can read the lines yourself.
        window: the number of samples. "auto" brings padding to about 1 %. A few thousand samples may be one window. All
            its results come, and get their file, when the whole window is done. Choose a small window if you want to
            use results of a slow `fn` soon.
        executor: "local": this process calls `fn`. "ray": workers of a Ray cluster call it, and this process reads,
            plans and sorts. If a worker is killed, another one runs its batch.
        ray_address: the address of the cluster, as for `Dataset.to_store`.
        num_workers: the number of Ray workers. None: as many as the cluster has processors, or GPUs for them.
        num_gpus_per_worker: 1 for a model on a GPU, or a fraction if several workers share one.
        version: the version of `fn`. Change it when `fn` changes, because a folder of results cannot see that.
        length_column: the column whose lengths are planned over: a list of tokens, or a text, whose length is its bytes
            in UTF-8. None: "input_ids" if the samples have it, else "text".
        overlong: the reaction to a sample that is longer than the policy can place: "raise", "truncate", or "alone" (a
            batch with this sample only). "truncate" cuts tokens only, never texts.
        token_columns, pad_values, pad_side, layout, dtypes, collate_fn: as for `Dataset.batch`.
    Raises:
        TypeError: the policy packs, or the input is a single text or batches.
        ValueError: the data repeat without end, or are read as several streams. Or texts would be truncated, or the
            folder holds other files.
        StageError: (when run) a function in the chain of the data set raised an error.
        torch.OutOfMemoryError: (when run) one sample alone does not fit.
        DataError: (with `output`) a file of results is missing, or not as it was written, by its checksum.
        StateError: (with `output`) the folder's results belong to other data or settings. The error names both. brimful
            compares all samples of a list. For other data it compares the description, and the samples of the last
            finished window.
        RuntimeError: (with `output`) another run writes the folder.
        OSError: (with `output`) the disk is full, or the like. The error names the file.
    State: the folder's _progress.json, 1 KB, and 30 bytes a file in _checksums.
    Price: two windows of samples and one of results are held. 100 us a batch. Tensors and arrays in results that are
        views are copied, 2 us each, so that no result keeps the whole output of `fn`. `output` takes about 50 ns a token
        and two files a window. A window that takes longer than 2 seconds is written twice. A resumed run reads the
        last window and all files of results again. The returned data set holds the rows of 16 files.
        To shuffle it, write it to a store first (`to_store`), or `cache()` it.

    >>> import brimful as bf
    >>> def spell(batch): return [text.upper() for text in batch["text"]]
    >>> list(bf.map_batches_in_order(spell, ["a", "ccc", "bb"], 2))
    ['A', 'CCC', 'BB']
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = bf.map_batches_in_order(spell, ["a", "ccc", "bb"], 2, output=f"{folder}/results")
    ...     len(results), results[1]
    (3, {'result': 'CCC'})
    """
    function("map_batches_in_order", fn)
    policy = _policy(policy)
    one_of("overlong", overlong, "raise", "truncate", "alone")
    check_version(version)
    on_ray = _on_ray(executor, ray_address, num_workers, num_gpus_per_worker)
    dataset = _dataset(texts_or_dataset)
    column, is_text = _planned_over(dataset, length_column)
    if is_text and overlong == "truncate":
        raise ValueError(
            f"overlong='truncate' cuts tokens, and {column!r} holds texts, which stay as they are; tokenize them before, or "
            "choose raise or alone"
        )
    name = bytes_of(column) if is_text else column
    columns = ColumnSettings(name, token_columns, pad_values, dtypes)
    form = FormSettings(layout, None, pad_side, collate_fn, 0, "thread", keep_text=True)
    chain = TextBytes(dataset.stage, column) if is_text else dataset.stage
    stage = _with_numbers(chain, ByPolicy(policy, overlong), window, columns, form, is_text)
    total = len(dataset) if isinstance(dataset, IndexedDataset) else None
    run = _InferenceRun(fn, stage, total, on_ray, is_text)
    if output is None:
        return run.results()
    padding = paddings(facts_of(dataset.stage).tokenizers()).get(column)
    settings = {  # that a folder of results must have been written with, beside the state of the batches
        "type": "map_batches_in_order",
        "fn": name_of(fn),
        "version": version,
        "layout": layout,
        "pad_side": pad_side or (padding.side if padding else "right"),
        "dtypes": dict(collated_of(stage).rules.dtypes),
        "collate_fn": None if collate_fn is None else name_of(collate_fn),
    }
    check_path("output", output)
    folder = ResultFolder(Path(output).expanduser(), settings)
    try:
        done = run.write(folder)
    except KeyboardInterrupt as error:
        error.add_note(f"To continue, run the same call again. It goes on after the last batch in {folder.path}")
        raise
    crc = crc32(json.dumps([settings, done.before["header"], done.digest, done.runs, done.checksums]).encode())
    return IndexedDataset(
        FromSequence(ResultIndex(folder.path, done.runs, done.checksums, crc), shuffle=False, seed=42)
    )


def _policy(policy: Policy | int) -> Policy:
    if hasattr(policy, "row_length") or not (is_policy(policy) or hasattr(policy, "__index__")):
        raise TypeError(
            f"map_batches_in_order takes a policy of padded batches, or a number of samples (got {policy!r})"
        )
    return policy if is_policy(policy) else FixedSize(integer("policy", policy, 1, "sample"))


def _on_ray(
    executor: Executor, ray_address: str | None, num_workers: int | None, num_gpus_per_worker: float
) -> RayWorkers | None:
    one_of("executor", executor, *get_args(Executor))
    given = {"ray_address": ray_address, "num_workers": num_workers, "num_gpus_per_worker": num_gpus_per_worker or None}
    if executor == "local":
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is for executor='ray' (got executor='local')")
        return None
    check_address(ray_address)
    gpus = finite("num_gpus_per_worker", num_gpus_per_worker)
    if gpus < 0:
        raise ValueError(f"num_gpus_per_worker must be at least 0 (got {num_gpus_per_worker})")
    return RayWorkers(
        ray_address, None if num_workers is None else integer("num_workers", num_workers, 1, "worker"), gpus
    )


@dataclass(frozen=True)
class _InferenceRun:
    """A function, and the stage of the batches that it is called with."""

    fn: Callable[[Any], Any]
    stage: Stage[Any]
    total: int | None
    on_ray: RayWorkers | None
    is_text: bool

    def results(self) -> Generator[Any, None, None]:
        with ResumableIterator(self.stage, None, ()) as batches, self._windows(batches) as windows:
            for _, results, _ in windows:
                yield from results

    def write(self, folder: ResultFolder) -> WindowsDone:
        """Writes the windows that are not there yet. Gives all of them."""
        with folder:
            found = folder.done()
            with _begun(self.stage, folder, found) as batches:
                done = found or WindowsDone(0, batches.state_dict(), 0)
                if done.windows:
                    _check_last(folder, done, batches)
                if found is None:
                    folder.save(done)
                before = batches.state_dict()
                opened = OpenWindow(folder.files, done.windows)
                with self._windows(batches, sum(done.rows()), opened) as windows:
                    for number, (window, results, after) in enumerate(windows, done.windows):
                        sums = folder.write(number, results)
                        done = done.after(len(results), before, digest(window, np.arange(len(window))), sums)
                        folder.save(done)
                        opened.done()
                        before = after
        return done

    @contextmanager
    def _windows(
        self, batches: ResumableIterator[Any], done: int = 0, opened: OpenWindow | None = None
    ) -> Iterator[Iterator[tuple[PlanningWindow, list[Any], Any]]]:
        """Each window with its results, in the order of its samples, and the state after it. Shows progress, from `done` samples
        on.

        Args:
            opened: what is written of the window at work.
        """
        of = "" if self.total is None else f" of {self.total:,}"
        stats = GuardStats()
        with progress(self.total) as report:

            def advance(answer: BatchResults) -> None:
                nonlocal done
                done += len(answer.batch)
                stats.batches += 1
                stats.split += answer.parts > 1
                stats.parts += answer.parts
                split = f", batches split: {stats.split:,}" if stats.split else ""
                report(len(answer.batch), lambda: f"{done:,}{of} samples done{split}")

            report(done, lambda: f"{done:,}{of} samples found")
            try:
                with (
                    closing(batch_results(self.fn, batches, self.on_ray)) as fresh,
                    closing(_kept(fresh, batches, opened)) as answers,
                ):
                    yield _in_order(answers, advance)
            except DataError as error:
                if not (self.is_text and isinstance(error.__cause__, OverlongError)):
                    raise
                words = f"{error}. A text has no tokens yet: these are its bytes in UTF-8"
                raise DataError(words) from error.__cause__
        if stats.split:
            logger.warning(
                "out of memory: %s of %s batches were split, into %s parts; %s",
                *(f"{number:,}" for number in (stats.split, stats.batches, stats.parts)),
                _AVOIDS_SPLITS,
            )


def _kept(
    fresh: Iterator[BatchResults], batches: ResumableIterator[tuple[Batch, Any]], opened: OpenWindow | None
) -> Generator[BatchResults, None, None]:
    """The results that an earlier run left of the window at work, and then those that are made now, which are kept likewise."""
    if opened is None:
        yield from fresh
        return
    for record in opened.found:
        batch, _ = next(batches)
        record.check(batch)
        yield BatchResults(batch, record.results, 0, batches.state_dict() if batch.last else None)
    try:
        for one in fresh:
            opened.add(one.batch, one.results)
            yield one
    finally:
        with suppress(OSError):  # of a full disk, on which nothing can be written any more
            opened.write()


class BatchResults(NamedTuple):
    """A batch, its results, the parts that it ran in (0: whole), and the state after it (where it is its window's last)."""

    batch: Batch
    results: Sequence[Any]
    parts: int
    state: Any


@dataclass(frozen=True)
class RayWorkers:
    """Workers of a Ray cluster.

    Args:
        address: see `Cluster`.
        num_workers: None: as many as it has processors, or GPUs to give them.
        num_gpus_per_worker: of each; may be a part of one.
    """

    address: str | None
    num_workers: int | None
    num_gpus_per_worker: float


def batch_results(
    fn: Callable[[Any], Any], batches: ResumableIterator[tuple[Batch, Any]], on_ray: RayWorkers | None
) -> Generator[BatchResults, None, None]:
    """The batches with the results of `fn`, in order. If `fn` is a class, each worker makes one object of it."""
    asked: Iterator[Any] = ((item, (batch, batches.state_dict() if batch.last else None)) for batch, item in batches)
    if (first := next(asked, None)) is None:
        return  # nothing is left to do: no model is loaded, no cluster started
    asked = chain([first], asked)
    if on_ray is None:
        call = _caller(fn)
        for item, (batch, state) in asked:
            yield BatchResults(batch, *_noted(fn, batch, partial(call, item)), state)
        return
    with Cluster(on_ray.address) as cluster:
        number = on_ray.num_workers or cluster.room(on_ray.num_gpus_per_worker)
        pool = Pool(cluster, cluster.put(partial(_portable, fn)), number, on_ray.num_gpus_per_worker, name_of(fn))
        with closing(pool):
            for results, (batch, state) in pool.results(asked):
                yield BatchResults(batch, *_noted(fn, batch, results), state)


def _portable(fn: Callable[[Any], Any]) -> Callable[[Any], tuple[list[Any], int]]:
    """As `_caller`, with results that can go to a process without a GPU."""
    call = _caller(fn)

    def portable(item: Any) -> tuple[list[Any], int]:
        results, parts = call(item)
        return [row.cpu() if isinstance(row, Tensor) else row for row in results], parts

    return portable


def _caller(fn: Callable[[Any], Any]) -> Callable[[Any], tuple[list[Any], int]]:
    """A function that gives the results of a batch, and the parts that it ran in (0: whole). If `fn` is a class, it calls an
    object of it."""
    name, call = name_of(fn), fn() if isinstance(fn, type) else fn

    def rows(part: Any) -> Sequence[Any]:
        return rows_of(call(part), splittable(part).samples, name)

    safe = OomSafe(rows, None, f"the end of the run counts them; {_AVOIDS_SPLITS}")

    def called(item: Any) -> tuple[list[Any], int]:
        before = safe.stats.parts
        return [owning(row) for row in safe(item)], safe.stats.parts - before

    return called


def _noted(
    fn: Callable[[Any], Any], batch: Batch, results: Callable[[], tuple[list[Any], int]]
) -> tuple[list[Any], int]:
    """The results of the samples of a batch, and the parts that it ran in; an error says which batch it was."""
    try:
        rows, parts = results()
        return rows[: len(batch)], parts  # a static shape is filled up with copies
    except Exception as error:
        window, some = batch.window, batch.numbers[:NAMED]
        places = "; ".join(where(window.block, int(row)) for row in window.rows[some])
        error.add_note(
            f"map_batches_in_order: {name_of(fn)} got {counted(len(batch), 'sample')} of window {window.number:,}, padded to "
            f"{batch.padded_length:,}: {places}{'; ...' if len(batch) > NAMED else ''}"
        )
        raise


def _begun(stage: Stage[Any], folder: ResultFolder, done: WindowsDone | None) -> ResumableIterator[Any]:
    try:
        return ResumableIterator(stage, None if done is None else done.before, ())
    except StateError as error:
        if done is not None and "header" in done.before:
            folder.check(done.before["header"], header_of(stage))
        raise StateError(f"the results in {folder.path} are of another run: {error}") from error


def _check_last(folder: ResultFolder, done: WindowsDone, batches: Iterator[tuple[Batch, Any]]) -> None:
    """Reads the last window that is done again, and compares its samples with those of the earlier run."""
    try:
        window = next((batch.window for batch, _ in batches if batch.last), None)
    except StateError as error:
        raise StateError(f"the results in {folder.path} are of other data: {error}") from error
    found = 0 if window is None else digest(window, np.arange(len(window)))
    if found != done.digest:
        raise StateError(
            f"the results in {folder.path} are of other data: the samples of window {done.windows - 1:,} had the digest "
            f"{done.digest:08x} when they were written, and have {found:08x} here; name another folder, or go on with those"
        )


def _in_order(
    answers: Iterator[BatchResults], advance: Callable[[BatchResults], None]
) -> Iterator[tuple[PlanningWindow, list[Any], Any]]:
    held: dict[int, Any] = {}
    for answer in answers:
        batch = answer.batch
        held.update(zip(batch.numbers.tolist(), answer.results, strict=True))
        advance(answer)
        if batch.last:
            assert len(held) == len(batch.window), "a sample was planned twice, or not at all"
            yield batch.window, [held[number] for number in range(len(held))], answer.state
            held = {}


def _with_numbers(
    stage: Stage[Block],
    planner: ByPolicy,
    window: int | Literal["auto"],
    columns: ColumnSettings,
    form: FormSettings,
    is_text: bool,
) -> Collated:
    """The stage of batches, each with what `fn` gets; planned over the lengths of a column."""
    order = OrderSettings(False, False, None, 1, 0)
    batches = batches_of(stage, False, planner, window, columns, order, form, whole_windows=True)
    collated: Collated = collated_of(batches.stage)
    rules = collated.rules
    if is_text:
        rules = replace(rules, explicit=tuple(one for one in rules.explicit if one != columns.length_column))
    return replace(collated, rules=rules, with_batch=True)


def _planned_over(dataset: Dataset, length_column: str | None) -> tuple[str, bool]:
    """The column that is planned over, and whether it is text, as the first sample shows."""
    if length_column is not None and not isinstance(length_column, str):
        raise TypeError(
            f"map_batches_in_order plans by a column, and length_column is its name (got {length_column!r}). Make a column of "
            "numbers by map, and name it in a MultiBudget"
        )
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
    if isinstance(texts_or_dataset, Batches | Loader):
        raise TypeError(
            f"map_batches_in_order makes batches itself, and takes the samples (got {type(texts_or_dataset).__name__}). Pass the "
            "data set and the policy: map_batches_in_order(fn, dataset, bf.TokenBudget(16_384))"
        )
    if isinstance(texts_or_dataset, Dataset):
        dataset = texts_or_dataset
    elif hasattr(texts_or_dataset, "__len__") and hasattr(texts_or_dataset, "__getitem__"):
        dataset = from_sequence(texts_or_dataset)
    else:
        dataset = from_iterable(texts_or_dataset)
    if dataset.repeats or not facts_of(dataset.stage).ends():
        raise ValueError("this data set repeats without end, and map_batches_in_order ends with it; take some of it")
    refuse_streams(dataset.stage, "map_batches_in_order", "puts in order")
    return dataset
