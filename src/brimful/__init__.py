"""brimful fills every batch to the brim: shards of text in, full batches for PyTorch out, and a position to go on from.

import brimful as bf

batches = (
    bf.from_files("corpus/*.jsonl.gz", shuffle_shards=True, repeat=True)
    .tokenize(tokenizer)
    .batch_by_tokens(16_384)
)
it = batches.iter()
batch = next(it)            # input_ids, attention_mask (B, L) int64; lengths (B,)
state = it.state_dict()     # a few integers; batches.iter(state) goes on exactly here
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from brimful.batches import Batches
from brimful.batching.sampler import BatchSampler
from brimful.core.errors import BrokenError, DataError, RankError, StageError, StateError, set_up_log
from brimful.core.states import merge_states
from brimful.dataset import Dataset, IndexedDataset
from brimful.plan import (
    AttentionCost,
    CostBudget,
    FixedSize,
    MemoryBudget,
    OverlongError,
    Packed,
    Plan,
    Policy,
    StaticShapes,
    TokenBudget,
    optimal_buckets,
    uniform_buckets,
)
from brimful.read import (
    concat_datasets,
    from_dataset,
    from_files,
    from_iterable,
    from_sequence,
    from_store,
    interleave_datasets,
    zip_datasets,
)

if TYPE_CHECKING:
    from brimful import grouping, memory, testing
    from brimful.device.async_loader import AsyncLoader
    from brimful.device.warm_up import warm_up
    from brimful.inference.inference import map_batches_in_order
    from brimful.memory.dataloader import build_dynamic_batch_dataloader
    from brimful.tensors import attention
    from brimful.tensors.loss import token_mean

__version__ = "0.1.0"

set_up_log()

__all__ = [
    "AsyncLoader",
    "AttentionCost",
    "BatchSampler",
    "Batches",
    "BrokenError",
    "CostBudget",
    "DataError",
    "Dataset",
    "FixedSize",
    "IndexedDataset",
    "MemoryBudget",
    "OverlongError",
    "Packed",
    "Plan",
    "Policy",
    "RankError",
    "StageError",
    "StateError",
    "StaticShapes",
    "TokenBudget",
    "attention",
    "build_dynamic_batch_dataloader",
    "concat_datasets",
    "from_dataset",
    "from_files",
    "from_iterable",
    "from_sequence",
    "from_store",
    "grouping",
    "interleave_datasets",
    "map_batches_in_order",
    "memory",
    "merge_states",
    "optimal_buckets",
    "testing",
    "token_mean",
    "uniform_buckets",
    "warm_up",
    "zip_datasets",
]

_LATER = {
    "AsyncLoader": "brimful.device.async_loader",
    "attention": "brimful.tensors.attention",
    "build_dynamic_batch_dataloader": "brimful.memory.dataloader",
    "grouping": "brimful.grouping",
    "map_batches_in_order": "brimful.inference.inference",
    "memory": "brimful.memory",
    "testing": "brimful.testing",
    "token_mean": "brimful.tensors.loss",
    "warm_up": "brimful.device.warm_up",
}
_MODULES = {"attention", "grouping", "memory", "testing"}


def __getattr__(name: str) -> Any:
    """What needs torch is imported on first use: descriptions and plans do without."""
    if name not in _LATER:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    module = import_module(_LATER[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
