"""Samples of several ragged dimensions, in groups of like length: the face of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np
import torch

from brimful.grouping.bridges import data_of_groups, data_of_nested, nested, refuse_left_padding
from brimful.grouping.calls import Names, Outputs, applied, mask, part_of
from brimful.grouping.collection_data import CollectionData, data_of_samples, refilled, regrouped, ungrouped
from brimful.grouping.groupers import Grouper, partition_by
from brimful.grouping.keys import below, joined
from brimful.grouping.language import text_of
from brimful.grouping.padded_groups import PaddedGroups
from brimful.grouping.rows import Tensor
from brimful.plan.errors import integer, names_of
from brimful.plan.plan import IntArray


@final
@dataclass(init=False, eq=False, repr=False)
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

    _data: CollectionData

    def __init__(
        self, samples: Sequence[Any], dims: Any, *, pad_values: Any = None, constant: str | Sequence[str] = ()
    ) -> None:
        self._data = data_of_samples(samples, dims, pad_values, names_of("constant", constant))

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
        data = data_of_groups(groups, dims, lengths, partition, pad_values)
        refuse_left_padding(groups, data)
        return collection_of(data)

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
        return collection_of(data_of_nested(batch, dims, pad_values))

    def nested(self) -> Any:
        """The samples, in their order, as nested tensors of layout torch.jagged. The tensors share their offsets.

        Raises:
            ValueError: a key has several ragged dimensions, or one that does not come first.

        >>> import torch
        >>> made = Collection([torch.ones(2), torch.ones(1)], "seq").nested()
        >>> made.offsets().tolist(), made.values().tolist()
        ([0, 2, 3], [1.0, 1.0, 1.0])
        """
        return nested(self._data)

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
        data = self._data
        partition = partition_by(by, data.count, data.sizes)
        return collection_of(regrouped(data, PaddedGroups.of(partition, data.sizes, multiple)))

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
        return collection_of(refilled(self._data, pad_values))

    def ungroup(self) -> list[Any]:
        """The original samples, in their order, without padding. They are views of one tensor a key.

        >>> import torch
        >>> from brimful.grouping import Partition
        >>> collection = Collection([torch.tensor([5]), torch.tensor([6, 7, 8]), torch.tensor([9])], "seq")
        >>> collection.group(Partition([[1], [2, 0]])).ungroup()
        [tensor([5]), tensor([6, 7, 8]), tensor([9])]
        """
        return ungrouped(self._data)

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
        made = applied(self._data, module, inputs, outputs, masks, pad_values)
        if isinstance(made, CollectionData):
            return collection_of(made)
        return tuple(None if one is None else collection_of(one) for one in made)

    @property
    def partition(self) -> tuple[tuple[int, ...], ...]:
        """The sample numbers of each group."""
        return self._data.padded_groups.partition

    @property
    def groups(self) -> tuple[Any, ...]:
        """The samples of each group, padded: (samples, ...) tensors, or nested dicts of them."""
        return self._data.trees()

    @property
    def sizes(self) -> dict[str, IntArray]:
        """The length of each sample in each ragged dimension, int64 (B,), by name.

        >>> import torch
        >>> {name: lengths.tolist() for name, lengths in Collection([torch.ones(2, 3), torch.ones(1, 5)], "x y").sizes.items()}
        {'x': [2, 1], 'y': [3, 5]}
        """
        return {name: lengths.copy() for name, lengths in self._data.sizes.items()}

    @property
    def extents(self) -> dict[str, IntArray]:
        """The padded length of each group in each ragged dimension, int64 (G,), by name.

        >>> import torch
        >>> from brimful.grouping import Partition
        >>> grouped = Collection([torch.ones(length) for length in (3, 9, 4)], "seq").group(Partition([[0, 2], [1]]))
        >>> grouped.extents["seq"].tolist()
        [4, 9]
        """
        return {name: lengths.copy() for name, lengths in self._data.padded_groups.extents.items()}

    def masks(self, dims: str) -> tuple[Tensor, ...]:
        """The bool mask that `apply` would pass for these dims, for each group.

        >>> import torch
        >>> from brimful.grouping import OneGroup
        >>> grouped = Collection([torch.ones(3), torch.ones(1)], "seq").group(OneGroup())
        >>> grouped.masks("seq")[0].tolist(), grouped.masks("~seq")[0].tolist()
        ([[True, True, True], [True, False, False]], [[False, False, False], [False, True, True]])
        """
        return mask(self._data, dims)

    # -- keys ------------------------------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The keys at the top level. None if the samples are tensors.

        >>> import torch
        >>> sample = {"pos": torch.ones(2, 3), "protein": {"kind": torch.ones(2)}}
        >>> Collection([sample], {"pos": "atm 3", "protein": {"kind": "atm"}}).keys()
        ['pos', 'protein']
        """
        return list(dict.fromkeys(path.split(".")[0] for path in self._data.columns if path))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and any(below(path, key) is not None for path in self._data.columns)

    def __getitem__(self, key: str) -> Collection:
        """A part of the collection, in the same groups: `["pos"]`, `["protein"]["pos"]` or `["protein.pos"]`.

        >>> import torch
        >>> collection = Collection([{"protein": {"kind": torch.tensor([4, 5])}}], {"protein": {"kind": "atm"}})
        >>> collection["protein.kind"].ungroup()
        [tensor([4, 5])]
        """
        if key == "":
            raise KeyError(f"a key must have at least 1 letter (keys: {', '.join(self.keys()) or 'none'})")
        return collection_of(part_of(self._data, key))

    def __setitem__(self, key: str, value: Collection) -> None:
        """Puts a collection of the same samples and groups under a key. It replaces the old value.

        Raises:
            ValueError: other samples, groups or lengths, or a key inside a tensor.
        """
        if not isinstance(value, Collection):
            raise TypeError(f"what is assigned to key {key!r} must be a Collection (got {type(value).__name__})")
        data, new = self._data, value._data
        _check_compatible(key, data, new)
        if not key or any(below(key, path) is not None and path != key for path in data.columns):
            raise ValueError(f"key {key!r} would lie inside a tensor of {self!r}")
        kept = {path: column for path, column in data.columns.items() if below(path, key) is None}
        added = {joined(key, path): column for path, column in new.columns.items()}
        groups = data.groups
        if groups is not None and new.groups is not None:
            groups = replace(groups, extents={**new.groups.extents, **groups.extents})
        self._data = replace(
            data,
            columns=kept | added,
            sizes={**new.sizes, **data.sizes},
            constants={**new.constants, **data.constants},
            groups=groups,
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a collection is gone through by keys(), groups or ungroup()")

    def __len__(self) -> int:
        return self._data.count

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{path and path + ': '}{' '.join(map(text_of, column.dims)) or 'number'}"
            for path, column in self._data.columns.items()
        )
        groups = "" if self._data.groups is None else f" in {len(self._data.groups.partition):,} groups"
        return f"Collection({self._data.count:,} samples{groups}; {columns})"

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
        return collection_of(self._data.moved(lambda tensor: tensor.to(device, non_blocking=non_blocking)))

    def pin_memory(self) -> Collection:
        """The same collection in page-locked memory. A DataLoader calls this."""
        return collection_of(self._data.moved(lambda tensor: tensor.pin_memory()))


def collection_of(data: CollectionData) -> Collection:
    """A collection of data that are checked already."""
    made = object.__new__(Collection)
    made._data = data
    return made


def _check_compatible(key: str, data: CollectionData, new: CollectionData) -> None:
    """Refuses to join collections that are not of the same samples in the same groups."""
    if data.count != new.count:
        raise ValueError(f"key {key!r}: a collection of {new.count:,} samples cannot join one of {data.count:,}")
    for name in data.sizes.keys() & new.sizes.keys():
        differ = np.flatnonzero(data.sizes[name] != new.sizes[name])
        if len(differ):
            sample = differ[0]
            raise ValueError(
                f"key {key!r}: {name!r} of sample {sample:,} is {new.sizes[name][sample]:,}, but {data.sizes[name][sample]:,} in "
                "the collection that it is to join"
            )
    for name in (data.sizes.keys() | data.constants.keys()) & (new.sizes.keys() | new.constants.keys()):
        if data.constants.get(name) != new.constants.get(name):
            raise ValueError(
                f"key {key!r}: {name!r} is {new.constants.get(name, 'ragged')}, but {data.constants.get(name, 'ragged')} in the "
                "collection that it is to join"
            )
    if (data.groups is None) != (new.groups is None):
        words = "in groups" if new.groups is not None else "not in groups"
        raise ValueError(
            f"key {key!r}: a collection {words} cannot join one that is{' not' * (new.groups is not None)}"
        )
    if data.groups is None or new.groups is None:
        return
    if data.groups.partition != new.groups.partition:
        raise ValueError(
            f"key {key!r}: its groups are others than those of the collection that it is to join; regroup it"
        )
    for name in data.sizes.keys() & new.sizes.keys():
        if (data.groups.extents[name] != new.groups.extents[name]).any():
            raise ValueError(f"key {key!r}: {name!r} is padded to other lengths in its groups; regroup it")
