"""What a batch looks like: which columns go with the tokens, and how the samples lie in the tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from brimful.batching.batch import Batch, NumLabels
from brimful.batching.labels import LabelsFollow, LossLabels, read
from brimful.batching.window import IntArray
from brimful.core.ahead import Deferred
from brimful.core.own_keys import NUM_ITEMS
from brimful.core.run import Run
from brimful.core.stage import State
from brimful.plan import Policy
from brimful.plan.buckets import Rounding
from brimful.plan.budget import exceeded
from brimful.plan.errors import DataError, StageError, counted, integer, name_of, one_of
from brimful.plan.once import once, settings_of
from brimful.plan.random import generators_of, seeded
from brimful.rows.parallel import SERIAL, Parallel
from brimful.tables.blocks import Block, samples
from brimful.tables.origins import where
from brimful.tables.ragged import LABELS, MASK, NOT_TRAINED_ON, SHIFTED, TOKEN_COLUMNS, loss_labels
from brimful.tables.texts import why_missing

if TYPE_CHECKING:
    from brimful.tensors.columns import WindowColumns

SIGNED: Final = ("int8", "int16", "int32", "int64")
DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", *SIGNED),
    *("float16", "bfloat16", "float32", "float64"),
)
BATCH_KEY: Final = b"brimful_key"
"""Of a block's metadata: the key of its batch, by which a user's function draws at random."""


def put(out: MutableMapping[str, Any], **made: Any) -> None:
    """Puts what is made of the plan into a batch, beside its columns.

    Raises:
        DataError: a column of the user's has that name.
    """
    refuse_taken(made, out)
    out.update(made)


def refuse_taken(made: Iterable[str], columns: Container[str]) -> None:
    """Refuses a column of the user's that has the name of something which is made."""
    if clash := [name for name in made if name in columns]:
        raise DataError(
            f"there is a column {clash[0]!r}, and batches hold something of that name beside the columns; rename or drop it"
        )


@dataclass(frozen=True)
class ColumnRules:
    """What becomes of each column, by its name and type alone, whatever a window happens to hold.

    Args:
        length_columns: the lists whose lengths are planned over, each padded to its own length.
        token_columns: lists that are cut, padded and packed with the first of those; None: of TOKEN_COLUMNS those there are.
        pad_values: what padding holds, by column.
        dtypes: types of tensors, by name, where they are not to be the usual ones.
        explicit: of all these names those that the user gave, each of which there must be.
        packs: several samples lie in a row, from which tokens are left out that `attention_mask` hides: it goes with the tokens
            whether or not it is named.
        left_out: columns of text that was tokenized.
    """

    length_columns: tuple[str, ...]
    token_columns: tuple[str, ...] | None = None
    pad_values: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict, metadata={"runtime": True})
    explicit: tuple[str, ...] = field(default=(), metadata={"runtime": True})
    packs: bool = field(default=False, metadata={"runtime": True})
    left_out: tuple[str, ...] = field(default=(), metadata={"runtime": True})

    def __post_init__(self) -> None:
        for name, dtype in self.dtypes.items():
            one_of(f"dtypes[{name!r}]", dtype, *DTYPES)
        for name in self.token_columns or ():
            if name in self.length_columns:
                raise ValueError(f"{name!r} is a length column; it cannot be one of token_columns too")

    def follows(self, name: str) -> int | None:
        """The number of the length column that a list is cut, padded and packed with; None: it has a length of its own.

        >>> rules = ColumnRules(("source", "target"))
        >>> rules.follows("target"), rules.follows("labels"), rules.follows("tags")
        (1, 0, None)
        """
        if name in self.length_columns:
            return self.length_columns.index(name)
        return 0 if name in self.token_aligned_columns else None

    @property
    def labels_follow(self) -> LabelsFollow:
        """How labels are counted."""
        as_numbers = tuple(name for name in (LABELS, SHIFTED) if "int" not in self.dtypes.get(name, "int64"))
        return LabelsFollow(self.follows(LABELS), self.follows(SHIFTED), self.length_columns, as_numbers)

    @property
    def token_aligned_columns(self) -> tuple[str, ...]:
        """The first length column and the lists that are cut, padded and packed with it, as far as there are such."""
        named = TOKEN_COLUMNS if self.token_columns is None else self.token_columns
        return self.length_columns[0], *named, *([MASK] if self.packs and MASK not in named else [])


class Collating(NamedTuple):
    """A batch on its way to the loop: its columns, the state after it, how many of its samples have no label to train on, and
    one of them in words, if it is the first."""

    batch: Batch
    columns: WindowColumns
    after: State
    unlabelled: int = 0
    example: str = ""


@dataclass(frozen=True)
class Layout(ABC):
    """Abstract: how the samples of a batch lie in its tensors."""

    name = "padded"
    """What users call it."""

    varies = False
    """Whether shapes follow from what is in a batch, and not from its plan alone."""

    packs = False
    """Whether several samples lie in a row."""

    by_row = True
    """Whether there is a row a sample, so that labels which are no integers count by rows."""

    as_tensors = True
    """Whether it makes the tensors; else a function of the user's gets the samples."""

    @abstractmethod
    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        """What the training loop gets."""

    def items(self, batches: Iterator[Collating], run: Run) -> Generator[tuple[Any, Collating], None, None]:
        """The item of each batch."""
        for one in batches:
            yield self.item(one.batch, one.columns), one

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """The shape that a compiler sees, and how many slots for tokens there are."""
        shape = batch.plan.shapes[batch.place]
        return shape, shape[0] * sum(shape[1:]) if columns.given or batch.num_tokens else 0

    def without(self, batch: Batch, places: IntArray) -> Batch:
        """A batch whose samples, or pieces, in these places train nothing."""
        return batch.without(places)

    def unpadded(self) -> Layout | None:
        """The same, padded where it arrives; None where that cannot be."""
        return None

    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """How many labels of a step are trained on; None where only somebody else knows."""
        return known.given

    def hides_labels(self, columns: WindowColumns, item: Any) -> bool:
        """Whether labels count as one a sample, and the tensors of a batch do not show it."""
        return columns.hides_labels(self.by_row)

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:  # noqa: B027
        """Refuses a batch whose labels are not those that are counted in a `number`."""

    def check_size(self, batch: Batch, item: Any, columns: WindowColumns) -> None:  # noqa: B027
        """Refuses a batch that is larger than its policy allows."""


@dataclass(frozen=True)
class Padded(Layout):
    """A row a sample, padded to the batch's length; see `padded.padded`.

    Args:
        left: the padding comes first.
        weighted: rows that fill a batch up to its static shape have weight 0.
        on_device: lists travel end to end, and are padded where they arrive.
    """

    left: bool = False
    weighted: bool = False
    on_device: bool = False

    def unpadded(self) -> Layout:
        return replace(self, on_device=True)

    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        from brimful.tensors.padded import padded

        return padded(batch, columns, self.left, self.weighted, on_device=self.on_device)


@dataclass(frozen=True)
class Nested(Layout):
    """Nested tensors, without padding; see `padded.nested`."""

    name = "nested"
    varies = True

    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        from brimful.tensors.padded import nested

        return nested(batch, columns)

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        tokens = sum(int(own.sum()) for own in columns.sizes(batch))
        return (len(batch), tokens), tokens


@dataclass(frozen=True)
class Grouped(Layout):
    """Groups of like length, each padded to its own longest; see `grouped.grouped`."""

    name = "grouped"
    varies = True
    by_row = False

    num_groups: int
    rounding: Rounding

    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        from brimful.tensors.grouped import grouped

        return grouped(batch, columns, self.num_groups, self.rounding)

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """Samples and padded lengths of one group after another."""
        extents = [item["groups"].extents[name].tolist() for name in columns.given]
        shapes = [(len(members), *widths) for members, *widths in zip(item["groups"].partition, *extents)]
        slots = sum(count * sum(widths) for count, *widths in shapes)
        return tuple(size for shape in shapes for size in shape), slots


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Rows of samples end to end; see `packed.packed`."""

    name = "packed"
    packs = True
    by_row = False

    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        from brimful.tensors.packed import packed

        return packed(batch, columns)

    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int:
        """Those that nothing in the row predicts, or that nothing in it is predicted from, are left out."""
        return known.given - known.edges

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        """Only tokens in memory are looked through before for those that are -100, of which no label is made."""
        window, pieces, (tokens, *_) = batch.window, batch.pieces, columns.given
        if loss_labels([column.name for column in columns.all]) or window.num_labels(tokens) is not None:
            return
        assert pieces is not None
        counted = int((pieces.lengths - (pieces.lengths > 0)).sum())
        if counted != (made := int((item[LABELS] != NOT_TRAINED_ON).sum())):
            raise DataError(
                f"packing makes {made:,} labels of {tokens!r}, and {number} counts {counted:,}: the other tokens are "
                f"{NOT_TRAINED_ON}, which is no label (the first sample is "
                f"{where(window.block, int(window.rows[batch.numbers[0]]))}). Give the samples labels, by causal_labels(), "
                "before you write a store"
            )


@dataclass(frozen=True)
class CollateFnLayout(Layout):
    """What a user's function, such as a Hugging Face collator, makes of the samples, cut as planned.

    It is called by the consumer's thread when the batch is taken, so that nothing else draws meanwhile, or by workers. What it
    draws at random is keyed by the batch. Not where other threads run beside it: they share generators.

    Args:
        originals: the user's own objects that rows stand for, which are fetched for it, keyed likewise; None where rows are the
            samples.
        left_out: columns that the samples lack, as `ColumnRules` says.
        policy: the policy that planned by lengths that the user gave; None where brimful knows the lengths itself.
        alone: whether a sample that no batch can hold has one of its own.
    Price: Python, once a sample.
    """

    as_tensors = False

    collate_fn: Callable[[list[Any]], Any]
    parallel: Parallel = SERIAL
    originals: Any = None
    left_out: tuple[str, ...] = ()
    policy: Policy | None = None
    alone: bool = False

    def item(self, batch: Batch, columns: WindowColumns) -> Any:
        return replace(self)(columns.rows(batch))

    def without(self, batch: Batch, places: IntArray) -> Batch:
        """The function does not get these samples; where there are no others, it gets all, and they have no weight."""
        if len(places) == len(batch):
            return batch if batch.weight is None else replace(batch, weight=0.0)
        return batch.of(np.delete(np.arange(len(batch)), places), batch.padded_size)

    def items(self, batches: Iterator[Collating], run: Run) -> Generator[tuple[Any, Collating], None, None]:
        collate = replace(self, policy=None)  # which may be of functions that cannot be pickled
        rows = ((one.columns.rows(one.batch), one) for one in batches)
        if run.ahead and not self.parallel.max_workers:
            for block, one in rows:
                yield Deferred(partial(collate, block)), one
            return
        with closing(self.parallel.results(collate, rows, run, self.called_as, shared=True)) as results:
            yield from ((item, one) for _, item, one in results)

    def __call__(self, rows: Block) -> Any:
        """What the function makes of the samples of a batch."""
        in_threads = self.parallel.max_workers > 0 and self.parallel.executor_type == "thread"
        key = int(rows.schema.metadata[BATCH_KEY])
        with nullcontext() if in_threads else seeded(key, self._generators):
            chosen = samples(rows) if self.originals is None else list(self.originals.samples(rows))
            try:
                return self.collate_fn(chosen)
            except Exception as error:
                raise StageError(
                    f"{self.called_as} failed on {counted(len(chosen), 'sample')}, the first of them {where(rows, 0)}: "
                    f"{type(error).__name__}: {error}{why_missing(error, self.left_out)}"
                ) from error

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    @once
    def _generators(self) -> list[Any]:
        """Of this run: the user's objects may have others in the next one."""
        sets = () if self.originals is None else self.originals.datasets.values()
        return [each for one in (self.collate_fn, *sets) for each in generators_of(one)]

    @property
    def called_as(self) -> str:
        return f"collate_fn={name_of(self.collate_fn)}"

    def num_labels(self, known: NumLabels, columns: WindowColumns) -> int | None:
        """Those of the samples; where these have none, the function alone knows how many it makes."""
        return known.given if loss_labels([column.name for column in columns.all]) else None

    def hides_labels(self, columns: WindowColumns, item: Any) -> bool:
        """Of a sample's label the function may make several integers, which may be taken for those of tokens."""
        made = _labels_made(columns, item)
        return made is not None and _are_several(*made)

    def check_labels(self, batch: Batch, item: Any, columns: WindowColumns, number: str) -> None:
        from brimful.tensors.loss import num_labels, rows_that_count

        known, found = read(batch, columns.rules.labels_follow), _labels_made(columns, item)
        if known is None or found is None or _are_several(*found):
            return
        (name, _, _), labels = found
        if known.given != (made := int(num_labels(labels, rows_that_count(item)))):
            raise DataError(
                f"collate_fn made {made:,} labels that are trained on, and the samples of this batch have {known.given:,}, which "
                f"{number} counts: a loss divided by it would be wrong. Leave the samples' labels out, by drop({name!r}), or "
                "have collate_fn set num_items_in_batch, the labels of the step on all ranks"
            )

    def check_size(self, batch: Batch, item: Any, columns: WindowColumns) -> None:
        if self.policy is None or not isinstance(item, Mapping):
            return
        shapes = [tuple(getattr(item.get(name), "shape", ())) for name in columns.rules.length_columns]
        if any(len(shape) != 2 for shape in shapes):  # of others the dimension of the length is not known
            return
        made = shapes[0][0], sum(width for _, width in shapes)
        planned = batch.padded_size, sum(batch.widths)
        limit = exceeded(self.policy, *made)
        if limit and not (self.alone and planned[0] == 1):
            raise DataError(
                f"collate_fn made a batch of {made[0]:,} x {made[1]:,} tokens, which is over {limit}. By lengths= of "
                f"from_dataset it was planned as {planned[0]:,} x {planned[1]:,} (the first sample is "
                f"{where(columns.rows(batch), 0)}). Give the lengths that collate_fn makes, special tokens included. If it "
                "rounds them up, batch with pad_to_multiple_of="
            )

    def shape(self, batch: Batch, item: Any, columns: WindowColumns) -> tuple[tuple[int, ...], int]:
        """That of the first length column, where it is to be seen; else that of the plan."""
        column: Any = item.get(columns.rules.length_columns[0]) if isinstance(item, Mapping) else None
        if len(batch.widths) == 1 and len(getattr(column, "shape", ())) >= 2:
            return tuple(column.shape), int(column.shape[0] * column.shape[1])
        return super().shape(batch, item, columns)


def _labels_made(columns: WindowColumns, item: Any) -> tuple[LossLabels, Any] | None:
    """The samples' labels, and the tensor that a user's function has made of them; None where it made none, or counted them."""
    if columns.labels is None or not isinstance(item, Mapping) or item.keys() & {*NUM_ITEMS}:
        return None
    labels: Any = item.get(columns.labels.name)
    return (columns.labels, labels) if hasattr(labels, "numel") else None


def _are_several(known: LossLabels, labels: Any) -> bool:
    """Whether a tensor has several integers for a label that counts as one a sample."""
    from brimful.tensors.loss import are_classes

    return known.by != "token" and labels.dim() > 1 and are_classes(labels)


def layout_named(layout: str, left: bool, static: bool, num_groups: int | None, rounding: Any) -> Layout:
    """The layout that a user names, where no function of the user's makes the batch.

    Args:
        left: the padding comes first.
        static: batches have static shapes.
        rounding: what rounds padded lengths up, if anything does.
    Raises:
        ValueError: an unknown name, or settings that do not go together.
    """
    one_of("layout", layout, "padded", "nested", "grouped")
    if static and layout != "padded":
        words = "nothing" if layout == "nested" else "each group to its own longest"
        raise ValueError(f"layout={layout!r} pads {words}, so it has no static shapes; choose layout='padded'")
    if layout == "grouped":
        multiple, buckets = getattr(rounding, "pad_to_multiple_of", 1), getattr(rounding, "buckets", None)
        groups = integer("num_groups", 4 if num_groups is None else num_groups, 1, "group")
        return Grouped(groups, Rounding(pad_to_multiple_of=multiple, buckets=buckets))
    if num_groups is not None:
        raise ValueError(f"num_groups is for layout='grouped' (got layout={layout!r})")
    return Padded(left, static) if layout == "padded" else Nested()
