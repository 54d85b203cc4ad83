"""Samples of several ragged dimensions, in groups of like length."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np
import torch

from brimful.grouping.bridges import (
    add_jagged_sizes,
    extents_of,
    jagged_rows,
    lengths_of,
    num_samples,
    refuse_left_padding,
)
from brimful.grouping.calls import Names, Outputs, arguments, called, check_outputs, masks_of
from brimful.grouping.columns import Column, checked_dims, columns_with, tensors_of
from brimful.grouping.groupers import Grouper, checked, partition_by
from brimful.grouping.keys import below, by_path, joined, picked, texts_of, tree_of
from brimful.grouping.language import (
    Dims,
    Sizes,
    checked_rules,
    expanded,
    leading,
    measure,
    name_in,
    text_of,
    value_of,
)
from brimful.grouping.padded_groups import PaddedGroups, leading_sizes
from brimful.grouping.rows import Tensor, padded, rows_of, samples_of, unpadded
from brimful.plan.errors import integer, names_of
from brimful.plan.plan import IntArray


@final
@dataclass(init=False, eq=False, repr=False)  # so that what moves batches to a device finds the tensors in it
class Collection:
    """Samples whose tensors have ragged dimensions. Divide them into groups, run a module, get the results in order.

    `dims` names the axes of a tensor. A name is a ragged dimension. A number is a fixed one. `...` stands for any fixed
    ones. A rule such as `res-1` is a length that follows from a name. In one sample, a name has one length in all keys.
    If sizes do not agree, the error names sample, key and both sizes. brimful crops and extends nothing. A dimension
    with a name is ragged, even if all samples are equally long.

    Each group is padded to its own longest, on the right. A module may write values into the padded slots of its
    result. They stay there until the result is grouped anew; `ungroup` never shows them. Gradients flow through every
    step.

    Args:
        samples: tensors, or nested dicts of tensors with the same keys. All tensors of a key have the same type and
            device.
        dims: the axes of each key: text, or nested dicts of it ("a.b" is the key "b" inside "a").
        pad_values: the padding value of each key: a number, or a tensor for the fixed axes at the end, such as an
            identity matrix. The default is 0.
        constant: names of dimensions that have the same size in all samples, and are not ragged.
    Raises:
        ValueError, TypeError: samples and dims do not agree.
    Price: one copy of the data. 2 us a sample and key to read shapes, 1 to 3 us to give samples back.
    Source: asym (groups inside a batch); einops and jaxtyping (names of axes).

    >>> import torch
    >>> from brimful.grouping import Collection, LengthThresholds
    >>> samples = [{"pos": torch.ones(length, 3), "kind": torch.arange(length)} for length in (1, 4, 2, 9)]
    >>> collection = Collection(samples, {"pos": "atm 3", "kind": "atm"}).group(LengthThresholds("atm", [4]))
    >>> collection.partition, [tuple(group["pos"].shape) for group in collection.groups]
    (((0, 1, 2), (3,)), [(3, 4, 3), (1, 9, 3)])
    >>> def total(pos, mask): return (pos * mask[..., None]).sum((1, 2))
    >>> sums = collection.apply(total, inputs={"pos": "pos"}, masks={"mask": "atm"}, outputs="")
    >>> [sum.item() for sum in sums.ungroup()]
    [3.0, 12.0, 6.0, 27.0]
    """

    _count: int
    _columns: Mapping[str, Column]
    _sizes: Sizes
    _constants: Mapping[str, int]
    _groups: PaddedGroups | None

    def __init__(
        self, samples: Sequence[Any], dims: Any, *, pad_values: Any = None, constant: str | Sequence[str] = ()
    ) -> None:
        texts = texts_of(dims)
        found = tensors_of(samples, texts)
        shapes = {path: [tensor.shape for tensor in column] for path, column in found.items()}
        axes, self._sizes, self._constants = measure(shapes, texts, [*map(name_in, names_of("constant", constant))])
        rows = {path: (own, (rows_of(found[path], own),)) for path, own in axes.items()}
        self._count, self._columns, self._groups = len(samples), columns_with(rows, pad_values), None

    @classmethod
    def from_padded(cls, batch: Any, dims: Any, lengths: Mapping[str, Any], *, pad_values: Any = None) -> Collection:
        """A batch that is padded on the right, as a collection of one group, without a copy.

        Padding on the left cannot be seen in the values. brimful refuses it only if the batch has an `attention_mask`
        (B, L). Otherwise check the padding side of your tokenizer first.

        Args:
            batch: a tensor, or nested dicts of tensors. The first axis is that of the samples.
            dims: the names of the other axes.
            lengths: the length of each sample, (B,), by name of the ragged dimension. Values beyond it are padding.
            pad_values: the padding value once the collection is grouped anew.
        Raises:
            ValueError: a shape does not fit, or a length is beyond the padded one. Or an `attention_mask` of the batch
                has a token beyond the length of its row.

        >>> import torch
        >>> Collection.from_padded(torch.tensor([[5, 6, 7], [8, 0, 0]]), "seq", {"seq": [3, 1]}).ungroup()
        [tensor([5, 6, 7]), tensor([8])]
        """
        return cls.of_groups([batch], dims, lengths, pad_values=pad_values)

    @classmethod
    def of_groups(
        cls,
        groups: Sequence[Any],
        dims: Any,
        lengths: Mapping[str, Any],
        *,
        partition: Sequence[Sequence[int]] | None = None,
        pad_values: Any = None,
    ) -> Collection:
        """Groups that are already padded on the right, as a collection, without a copy; see `from_padded`.

        Args:
            groups: a padded batch for each group, as `from_padded` takes one.
            partition: the sample numbers of each group. By default they count up from group to group.
            the rest: as for `from_padded`.

        >>> import torch
        >>> groups = [torch.tensor([[5, 0], [6, 7]]), torch.tensor([[1, 2, 3, 4]])]
        >>> Collection.of_groups(groups, "seq", {"seq": [1, 2, 4]}).ungroup()
        [tensor([5]), tensor([6, 7]), tensor([1, 2, 3, 4])]
        """
        sizes, texts = lengths_of(lengths), texts_of(dims)
        tensors = picked(groups, texts, "the batch")
        counts = [num_samples(path, tensor) for path, found in tensors.items() for tensor in found][: len(groups)]
        count = sum(counts)
        if not count:
            raise ValueError("a collection needs at least 1 sample (got none)")
        if partition is None:
            partition = [group.tolist() for group in np.split(np.arange(count), np.cumsum(counts)[:-1])]
        for name, column in sizes.items():
            if len(column) != count:
                raise ValueError(f"lengths of {name!r} are for {len(column):,} samples, and the batch has {count:,}")
        longest = PaddedGroups.of(checked(partition, count), sizes)
        extents = {**longest.extents, **extents_of(texts, tensors, sizes)}
        bare = collection_of(count, {}, sizes, replace(longest, extents=extents))
        made = bare._with_tensors(tensors, texts, pad_values, "the batch")
        refuse_left_padding(groups, made.partition, sizes)
        return made

    @classmethod
    def from_nested(cls, batch: Any, dims: Any, *, pad_values: Any = None) -> Collection:
        """Jagged nested tensors as a collection, without a copy.

        Args:
            batch: a nested tensor of layout torch.jagged, or nested dicts of them. The ragged axis comes first, after
                the axis of the samples. Dicts may also hold tensors (B, ...), if all samples have the same shape there.
            dims: the axes after that of the samples: "seq ...".
            pad_values: as for `Collection`.
        Raises:
            ValueError: another layout, holes, or lengths that do not agree.

        >>> import torch
        >>> batch = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
        >>> Collection.from_nested(batch, "seq").ungroup()
        [tensor([1., 1.]), tensor([1.])]
        """
        texts = texts_of(dims)
        tensors = {path: found[0] for path, found in picked([batch], texts, "the batch").items()}
        sizes: dict[str, IntArray] = {}
        for path, tensor in tensors.items():
            if tensor.is_nested:
                add_jagged_sizes(sizes, tensor, path, texts[path])
            else:
                num_samples(path, tensor)
        count = len(next(iter(tensors.values())))
        found: dict[str, tuple[Dims, tuple[Tensor, ...]]] = {}
        for path, tensor in tensors.items():
            rules = checked_rules(texts[path], sizes, {})
            rows = jagged_rows(tensor)
            lead = int(tensor.is_nested)
            axes = rules[:lead] + tuple(expanded(rules[lead:], rows.shape[1:]))
            fits = axes[lead:] == tuple(rows.shape[1:])
            if not fits or len(tensor) != count:
                raise ValueError(
                    f"the batch, key {path!r}, has {len(tensor):,} samples with rows of shape {tuple(rows.shape[1:])}, which "
                    f"{texts[path]!r} and {count:,} samples do not fit"
                )
            found[path] = tuple(rule for rule in axes if not isinstance(rule, type(...))), (rows,)
        return collection_of(count, columns_with(found, pad_values), sizes)

    def nested(self) -> Any:
        """The samples, in their order, as nested tensors of layout torch.jagged. The tensors share their offsets.

        Raises:
            ValueError: a key has several ragged dimensions, or one that does not come first.

        >>> import torch
        >>> made = Collection([torch.ones(2), torch.ones(1)], "seq").nested()
        >>> made.offsets().tolist(), made.values().tolist()
        ([0, 2, 3], [1.0, 1.0, 1.0])
        """
        offsets: dict[Any, tuple[Tensor, int, int]] = {}
        found = []
        for path, rows in self._rows():
            dims = self._columns[path].dims
            axes = len(leading(dims))
            if not axes:
                found.append((path, rows))
                continue
            if axes > 1:
                raise ValueError(
                    f"key {path!r}: a nested tensor of layout torch.jagged has one ragged dimension, the first after that of the "
                    f"samples (got {axes} axes up to the last ragged one); take other keys"
                )
            if dims[0] not in offsets:
                lengths = value_of(dims[0], self._sizes)
                bounds = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))).to(rows.device)
                offsets[dims[0]] = bounds, int(lengths.min()), int(lengths.max())
            bounds, least, most = offsets[dims[0]]
            found.append(
                (path, torch.nested.nested_tensor_from_jagged(rows, bounds, min_seqlen=least, max_seqlen=most))
            )
        return tree_of(found)

    # -- groups ----------------------------------------------------------------------------------------------------------

    def group(self, by: Grouper, *, pad_to_multiple_of: int = 1) -> Collection:
        """Divides the samples into groups. Each group is padded to its own longest in every ragged dimension, and at
        least to 1.

        Args:
            by: LengthThresholds, OneGroup, Partition, OptimalGroups, or an object with their method `partition`.
            pad_to_multiple_of: round padded lengths up, so that a compiler meets few shapes.
        Raises:
            ValueError: a dimension is unknown, or a sample is not in exactly one group.
            TypeError: `by` has no method `partition`.
        Price: about 10 ns a row, and an index copy of the data. A collection that has groups already takes two copies.

        >>> import torch
        >>> from brimful.grouping import OptimalGroups
        >>> collection = Collection([torch.ones(length) for length in (3, 9, 4)], "seq")
        >>> grouped = collection.group(OptimalGroups("seq", 2), pad_to_multiple_of=4)
        >>> grouped.partition, [group.shape for group in grouped.groups]
        (((0, 2), (1,)), [torch.Size([2, 4]), torch.Size([1, 12])])
        """
        multiple = integer("pad_to_multiple_of", pad_to_multiple_of, 1)
        partition = partition_by(by, self._count, self._sizes)
        return regrouped(self, PaddedGroups.of(partition, self._sizes, multiple))

    def regroup(self, by: Grouper, *, pad_to_multiple_of: int = 1) -> Collection:
        """Divides the same samples into other groups; see `group`.

        >>> import torch
        >>> from brimful.grouping import OneGroup, Partition
        >>> grouped = Collection([torch.ones(length) for length in (3, 9)], "seq").group(OneGroup())
        >>> [group.shape for group in grouped.regroup(Partition([[0], [1]])).groups]
        [torch.Size([1, 3]), torch.Size([1, 9])]
        """
        return self.group(by, pad_to_multiple_of=pad_to_multiple_of)

    def repad(self, *, pad_values: Any = None) -> Collection:
        """Fills the padding of the same groups anew. Use it between two modules if the second one looks at neighbours.

        Args:
            pad_values: the new padding value of each key. The default is the values that the collection has.
        Price: two index copies of the data.

        >>> import torch
        >>> from brimful.grouping import OneGroup
        >>> collection = Collection([torch.ones(1, 2), torch.ones(1, 1)], "1 seq").group(OneGroup())
        >>> added = collection.apply(lambda x: x + 1, outputs="1 seq")
        >>> added.groups[0].tolist(), added.repad().groups[0].tolist()
        ([[[2.0, 2.0]], [[2.0, 1.0]]], [[[2.0, 2.0]], [[2.0, 0.0]]])
        """
        columns = dict(self._columns)
        if pad_values is not None:
            found = columns_with({path: (column.dims, column.tensors) for path, column in columns.items()}, pad_values)
            columns |= {path: found[path] for path in by_path("pad_values", pad_values)}
        return regrouped(self._with(columns=columns), self._padded_groups)

    def ungroup(self) -> list[Any]:
        """The original samples, in their order, without padding. They are views of one tensor a key.

        >>> import torch
        >>> from brimful.grouping import Partition
        >>> collection = Collection([torch.tensor([5]), torch.tensor([6, 7, 8]), torch.tensor([9])], "seq")
        >>> collection.group(Partition([[1], [2, 0]])).ungroup()
        [tensor([5]), tensor([6, 7, 8]), tensor([9])]
        """
        parts = {
            path: samples_of(rows, leading_sizes(self._columns[path].dims, self._sizes, self._count))
            for path, rows in self._rows()
        }
        if [*parts] == [""]:
            return parts[""]
        return [tree_of(zip(parts, tensors)) for tensors in zip(*parts.values())]

    def apply(
        self,
        module: Callable[..., Any],
        *,
        inputs: Names | None = None,
        outputs: Outputs,
        masks: Names | None = None,
        pad_values: Any = None,
    ) -> Any:
        """Calls a module, or any function, once a group, with plain padded tensors. The results are a collection.

        If the module ignores padding, each sample has the same result as alone. The module can get masks for that. The
        padded slots of its inputs hold 0, or their pad values. The padded slots of its results hold other values.
        Before another convolution, write `.apply(first, outputs="c seq").repad().apply(second, outputs="c seq")`. Batch
        norm includes the padding in its statistics. To avoid that, run it on `nested()`, which holds only real values.

        Data-parallel ranks may have different numbers of groups. DDP works if `apply` is called inside the module that
        it wraps. Some modules communicate in each call of a layer (FSDP, synchronised batch norm). They would wait for
        a rank with fewer groups. Give all ranks the same number of groups (`Partition`), or use no groups there.

        Args:
            module: takes (samples, ...) tensors, and bool masks of them.
            inputs: the keys that it gets: one key, several in order, or a dict by parameter, {"x": "protein.pos"}. By
                default, it gets a tensor as it is, or each key under its own name.
            outputs: the axes of its result after that of the samples. A name means that the dimension keeps its length.
                A rule such as `res-2` or `(res-1)//2+1` gives a new length. A dimension that is not named is gone (""
                for one number a sample). For a dict, give dicts of axes: keys that are not named are left out. For a
                tuple, give a tuple, with None for a part to leave out. The values of a sample must come first on an
                axis, as many as the rule says. This is true for convolutions and pooling. It is false if the module
                puts values behind the padding, such as a token at the end ("seq+1"). brimful cannot see this in a
                shape. Rules of two axes ("a+b", "a*b") would put values there, so they are refused.
            masks: bool masks, also in order after the inputs or by parameter. Name the axes of each: "res", or "res
                atm" for the *and* of several. Fixed axes are numbers: "res 1 1". A mask with the dims of a key has the
                shape of its data. With `~` in front, the mask is True at the padding. For an axis that a rule changed,
                write that rule again: "seq-2".
            pad_values: the padding value in the results once they are grouped anew, as for `Collection`.
        Returns:
            A collection in the same groups. For a tuple of outputs, a tuple of collections.
        Raises:
            ValueError: there are no groups yet. Or a name is unknown, a parameter comes twice, or a rule has two axes
                (before anything runs). Or a result has a wrong shape, another type than in the first group, or a fixed
                axis that differs between groups.
            KeyError: an input does not exist.
            An error of the module, with a note that names the group.
        Price: 50 us a group and mask, beside the module.

        >>> import torch
        >>> from brimful.grouping import Collection, OneGroup
        >>> collection = Collection([torch.ones(1, 5), torch.ones(1, 3)], "1 seq").group(OneGroup())
        >>> collection.apply(torch.nn.Conv1d(1, 2, 3), outputs="2 seq-2").ungroup()[1].shape
        torch.Size([2, 1])
        """
        groups = self._padded_groups
        check_outputs(outputs, self._sizes, self._constants)
        by_place, by_name = arguments("inputs", inputs)
        masks_by_place, masks_by_name = arguments("masks", masks)
        if inputs is not None and not (by_place or by_name or masks_by_place or masks_by_name):
            raise ValueError("inputs and masks name nothing; leave inputs out for all keys")
        made = {text: self.masks(text) for text in (*masks_by_place, *masks_by_name.values())}
        if inputs is None and "" in self._columns:
            by_place = [""]
        elif inputs is None:
            by_name = {path.split(".")[0]: path.split(".")[0] for path in self._columns}
        if clash := [name for name in by_name if name in masks_by_name]:
            raise ValueError(f"inputs and masks both name {clash[0]!r}")
        values_by_place = [*(self._part(key).groups for key in by_place), *(made[text] for text in masks_by_place)]
        values_by_name = {name: self._part(key).groups for name, key in by_name.items()}
        values_by_name |= {name: made[text] for name, text in masks_by_name.items()}
        results = []
        for group, members in enumerate(groups.partition):
            args = [values[group] for values in values_by_place]
            kwargs = {name: values[group] for name, values in values_by_name.items()}
            try:
                results.append(module(*args, **kwargs))
            except Exception as error:
                error.add_note(called(members, f"group {group} of {len(groups.partition)}", args, kwargs, bool(made)))
                raise
        if not isinstance(outputs, tuple | list):
            return self._with_results(results, outputs, pad_values, "the output")
        for result in results:
            if not isinstance(result, tuple | list) or len(result) != len(outputs):
                got = f"{len(result)}" if isinstance(result, tuple | list) else type(result).__name__
                raise ValueError(f"outputs names {len(outputs)} results, but the module gives {got}")
        return tuple(
            None
            if one is None
            else self._with_results([result[place] for result in results], one, pad_values, f"output {place}")
            for place, one in enumerate(outputs)
        )

    @property
    def partition(self) -> tuple[tuple[int, ...], ...]:
        """The sample numbers of each group."""
        return self._padded_groups.partition

    @property
    def groups(self) -> tuple[Any, ...]:
        """The samples of each group, padded: (samples, ...) tensors, or nested dicts of them."""
        return tuple(
            tree_of((path, column.tensors[group]) for path, column in self._columns.items())
            for group in range(len(self._padded_groups.partition))
        )

    @property
    def sizes(self) -> dict[str, IntArray]:
        """The length of each sample in each ragged dimension, int64 (B,), by name.

        >>> import torch
        >>> {name: lengths.tolist() for name, lengths in Collection([torch.ones(2, 3), torch.ones(1, 5)], "x y").sizes.items()}
        {'x': [2, 1], 'y': [3, 5]}
        """
        return {name: lengths.copy() for name, lengths in self._sizes.items()}

    @property
    def extents(self) -> dict[str, IntArray]:
        """The padded length of each group in each ragged dimension, int64 (G,), by name.

        >>> import torch
        >>> from brimful.grouping import Partition
        >>> grouped = Collection([torch.ones(length) for length in (3, 9, 4)], "seq").group(Partition([[0, 2], [1]]))
        >>> grouped.extents["seq"].tolist()
        [4, 9]
        """
        return {name: lengths.copy() for name, lengths in self._padded_groups.extents.items()}

    def masks(self, dims: str) -> tuple[Tensor, ...]:
        """The bool mask that `apply` would pass for these dims, for each group.

        >>> import torch
        >>> from brimful.grouping import OneGroup
        >>> grouped = Collection([torch.ones(3), torch.ones(1)], "seq").group(OneGroup())
        >>> grouped.masks("seq")[0].tolist(), grouped.masks("~seq")[0].tolist()
        ([[True, True, True], [True, False, False]], [[False, False, False], [False, True, True]])
        """
        device = next(iter(self._columns.values())).tensors[0].device
        return masks_of(self._padded_groups, self._sizes, self._constants, device, dims)

    # -- keys ------------------------------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The keys at the top level. None if the samples are tensors.

        >>> import torch
        >>> sample = {"pos": torch.ones(2, 3), "protein": {"kind": torch.ones(2)}}
        >>> Collection([sample], {"pos": "atm 3", "protein": {"kind": "atm"}}).keys()
        ['pos', 'protein']
        """
        return list(dict.fromkeys(path.split(".")[0] for path in self._columns if path))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and any(below(path, key) is not None for path in self._columns)

    def __getitem__(self, key: str) -> Collection:
        """A part of the collection, in the same groups: `["pos"]`, `["protein"]["pos"]` or `["protein.pos"]`.

        >>> import torch
        >>> collection = Collection([{"protein": {"kind": torch.tensor([4, 5])}}], {"protein": {"kind": "atm"}})
        >>> collection["protein.kind"].ungroup()
        [tensor([4, 5])]
        """
        if key == "":
            raise KeyError(f"a key must have at least 1 letter (keys: {', '.join(self.keys()) or 'none'})")
        return self._part(key)

    def __setitem__(self, key: str, value: Collection) -> None:
        """Puts a collection of the same samples and groups under a key. It replaces the old value.

        Raises:
            ValueError: other samples, groups or lengths, or a key inside a tensor.
        """
        if not isinstance(value, Collection):
            raise TypeError(f"what is assigned to key {key!r} must be a Collection (got {type(value).__name__})")
        self._check_compatible(key, value)
        if not key or any(below(key, path) is not None and path != key for path in self._columns):
            raise ValueError(f"key {key!r} would lie inside a tensor of {self!r}")
        kept = {path: column for path, column in self._columns.items() if below(path, key) is None}
        self._columns = kept | {joined(key, path): column for path, column in value._columns.items()}
        self._sizes = {**value._sizes, **self._sizes}
        self._constants = {**value._constants, **self._constants}
        if self._groups is not None and value._groups is not None:
            self._groups = replace(self._groups, extents={**value._groups.extents, **self._groups.extents})

    def __iter__(self) -> NoReturn:
        raise TypeError("a collection is gone through by keys(), groups or ungroup()")

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{path and path + ': '}{' '.join(map(text_of, column.dims)) or 'number'}"
            for path, column in self._columns.items()
        )
        groups = "" if self._groups is None else f" in {len(self._groups.partition):,} groups"
        return f"Collection({self._count:,} samples{groups}; {columns})"

    # -- devices ---------------------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Collection:
        """The same collection on another device.

        Raises:
            TypeError: the argument is not a device. The types of the data do not change.

        >>> import torch
        >>> from brimful.grouping import OneGroup
        >>> Collection([torch.ones(3)], "seq").group(OneGroup()).to("meta").groups[0].device
        device(type='meta')
        """
        if not isinstance(device, torch.device | str | int):
            raise TypeError(f"to takes a device (got {device!r}); change types in the samples, or in a module by apply")
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Collection:
        """The same collection in page-locked memory. A DataLoader calls this."""
        return self._moved(lambda tensor: tensor.pin_memory())

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Collection:
        columns = {}
        for path, column in self._columns.items():
            pad = move(column.pad) if isinstance(column.pad, Tensor) else column.pad
            columns[path] = Column(column.dims, pad, tuple(map(move, column.tensors)))
        return self._with(columns=columns)

    # -- what these stand on ---------------------------------------------------------------------------------------------

    def _with(self, *, columns: Mapping[str, Column], groups: PaddedGroups | None = None) -> Collection:
        """The same samples with other columns, in other groups where some are given."""
        made = copy.copy(self)
        made._columns, made._groups = columns, groups or self._groups
        return made

    @property
    def _padded_groups(self) -> PaddedGroups:
        if self._groups is None:
            raise ValueError(
                "this collection is not in groups yet; call group(by), of OneGroup() if they are to be one"
            )
        return self._groups

    def _rows(self) -> Iterator[tuple[str, Tensor]]:
        """Each path, and the rows of all samples there, in their order."""
        places = None if self._groups is None else self._places(self._groups)
        for path, column in self._columns.items():
            if places is None:
                yield path, column.tensors[0]
            else:
                yield path, unpadded(column.tensors, places[leading(column.dims)], column.dims)

    def _places(self, groups: PaddedGroups) -> dict[Dims, IntArray]:
        """The places of the rows in some groups, by the leading axes of the keys."""
        axes = dict.fromkeys(leading(column.dims) for column in self._columns.values())
        return {dims: groups.places(dims, self._sizes) for dims in axes}

    def _part(self, key: str) -> Collection:
        """The columns below a key; "" is a tensor that stands alone.

        Raises:
            KeyError: it is not there.
            TypeError: it is no text.
        """
        if not isinstance(key, str):
            raise TypeError(f"a key is text, such as 'protein.pos' (got {key!r})")
        if not key and "" not in self._columns:
            raise KeyError(f"a key must have at least 1 letter (keys: {', '.join(self._columns)})")
        inside = ((below(path, key), column) for path, column in self._columns.items())
        columns = {path: column for path, column in inside if path is not None}
        if not columns:
            raise KeyError(f"there is no key {key!r} (keys: {', '.join(filter(None, self._columns)) or 'none'})")
        return self._with(columns=columns)

    def _with_tensors(
        self, tensors: Mapping[str, Sequence[Tensor]], texts: Mapping[str, str], pad_values: Any, whose: str
    ) -> Collection:
        """The same samples and groups with other columns: padded tensors, one of each group, checked against their dims.

        Args:
            tensors: by path; `texts`: their dims, as written.
            whose: the name of the tensors in errors.
        """
        found = {}
        for path, text in texts.items():
            of = f"{whose}, key {path!r}," if path else whose
            dims = checked_dims(self._padded_groups, self._sizes, self._constants, tensors[path], text, of)
            found[path] = dims, tuple(tensors[path])
        return self._with(columns=columns_with(found, pad_values))

    def _with_results(self, results: Sequence[Any], outputs: Outputs, pad_values: Any, whose: str) -> Collection:
        """The results of a module for all groups, in place of the columns."""
        texts = texts_of(outputs)
        made = self._with_tensors(picked(results, texts, whose), texts, pad_values, whose)
        tree_of(texts.items())  # refuses keys inside one another
        return made

    def _check_compatible(self, key: str, new: Collection) -> None:
        """Refuses to join collections that are not of the same samples in the same groups."""
        if self._count != new._count:
            raise ValueError(f"key {key!r}: a collection of {new._count:,} samples cannot join one of {self._count:,}")
        for name in self._sizes.keys() & new._sizes.keys():
            differ = np.flatnonzero(self._sizes[name] != new._sizes[name])
            if len(differ):
                sample = differ[0]
                raise ValueError(
                    f"key {key!r}: {name!r} of sample {sample:,} is {new._sizes[name][sample]:,}, but "
                    f"{self._sizes[name][sample]:,} in the collection that it is to join"
                )
        for name in (self._sizes.keys() | self._constants.keys()) & (new._sizes.keys() | new._constants.keys()):
            ours, theirs = (one._constants.get(name, "ragged") for one in (self, new))
            if ours != theirs:
                raise ValueError(f"key {key!r}: {name!r} is {theirs}, but {ours} in the collection that it is to join")
        if (self._groups is None) != (new._groups is None):
            words = "in groups" if new._groups is not None else "not in groups"
            raise ValueError(
                f"key {key!r}: a collection {words} cannot join one that is{' not' * (new._groups is not None)}"
            )
        if self._groups is None or new._groups is None:
            return
        if self._groups.partition != new._groups.partition:
            raise ValueError(
                f"key {key!r}: its groups are others than those of the collection that it is to join; regroup it"
            )
        for name in self._sizes.keys() & new._sizes.keys():
            if (self._groups.extents[name] != new._groups.extents[name]).any():
                raise ValueError(f"key {key!r}: {name!r} is padded to other lengths in its groups; regroup it")


def collection_of(
    count: int, columns: Mapping[str, Column], sizes: Sizes, groups: PaddedGroups | None = None
) -> Collection:
    """A collection of parts that are checked already.

    Args:
        count: the number of samples.
        sizes: the length of each sample, (B,), by ragged dimension.
        groups: None where there are none yet.
    """
    made = object.__new__(Collection)
    made._count, made._columns, made._sizes, made._constants, made._groups = count, columns, sizes, {}, groups
    return made


def regrouped(collection: Collection, groups: PaddedGroups) -> Collection:
    """The same samples in these groups, padded anew: an index copy a key, and one before it where there were groups."""
    places = collection._places(groups)
    columns = {}
    for path, rows in collection._rows():
        column = collection._columns[path]
        shapes = groups.shapes(column.dims)
        columns[path] = replace(column, tensors=padded(rows, places[leading(column.dims)], shapes, column.pad))
    return collection._with(columns=columns, groups=groups)
