"""Groups inside a batch: samples of very different lengths, run group by group and given back in their order."""

from brimful.grouping.collection import Collection
from brimful.grouping.groupers import Grouper, LengthThresholds, OneGroup, OptimalGroups, Partition
from brimful.grouping.padded_batch import group_apply
from brimful.plan import balanced_thresholds, find_thresholds

__all__ = [
    "Collection",
    "Grouper",
    "LengthThresholds",
    "OneGroup",
    "OptimalGroups",
    "Partition",
    "balanced_thresholds",
    "find_thresholds",
    "group_apply",
]


def __dir__() -> list[str]:
    return __all__
