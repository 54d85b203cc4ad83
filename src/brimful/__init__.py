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
from typing import TYPE_CHECKING, Any, Final

from brimful.core.terminal import set_up_log

if TYPE_CHECKING:
    from brimful import grouping, memory, testing
    from brimful.async_loader import AsyncLoader
    from brimful.batches import Batches
    from brimful.batching.sampler import BatchSampler
    from brimful.core.states import merge_states
    from brimful.dataset import Dataset, IndexedDataset
    from brimful.inference.inference import map_batches_in_order
    from brimful.memory.dataloader import build_dynamic_batch_dataloader
    from brimful.plan import (
        AttentionCost,
        CostBudget,
        FixedSize,
        MemoryBudget,
        MultiBudget,
        OverlongError,
        Packed,
        Plan,
        Planner,
        Policy,
        StaticShapes,
        Steps,
        TokenBudget,
        balance,
        micro_batches,
        optimal_buckets,
        steps,
        uniform_buckets,
    )
    from brimful.plan.errors import BrokenError, DataError, RankError, StageError, StateError
    from brimful.plan.schedule import schedule
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
    from brimful.tables.arrays import array_type
    from brimful.tensors import attention
    from brimful.tensors.loss import token_mean
    from brimful.warmup import warm_up

__version__ = "1.0.0rc1"

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
    "MultiBudget",
    "OverlongError",
    "Packed",
    "Plan",
    "Planner",
    "Policy",
    "RankError",
    "StageError",
    "StateError",
    "StaticShapes",
    "Steps",
    "TokenBudget",
    "array_type",
    "attention",
    "balance",
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
    "micro_batches",
    "optimal_buckets",
    "sample_mean",
    "schedule",
    "steps",
    "testing",
    "token_mean",
    "uniform_buckets",
    "warm_up",
    "zip_datasets",
]

_MODULE_OF: Final = {
    "AsyncLoader": "brimful.async_loader",
    "BatchSampler": "brimful.batching.sampler",
    "Batches": "brimful.batches",
    "BrokenError": "brimful.plan.errors",
    "DataError": "brimful.plan.errors",
    "Dataset": "brimful.dataset",
    "IndexedDataset": "brimful.dataset",
    "RankError": "brimful.plan.errors",
    "StageError": "brimful.plan.errors",
    "StateError": "brimful.plan.errors",
    "array_type": "brimful.tables.arrays",
    "attention": "brimful.tensors.attention",
    "build_dynamic_batch_dataloader": "brimful.memory.dataloader",
    "concat_datasets": "brimful.read",
    "from_dataset": "brimful.read",
    "from_files": "brimful.read",
    "from_iterable": "brimful.read",
    "from_sequence": "brimful.read",
    "from_store": "brimful.read",
    "grouping": "brimful.grouping",
    "interleave_datasets": "brimful.read",
    "map_batches_in_order": "brimful.inference.inference",
    "memory": "brimful.memory",
    "merge_states": "brimful.core.states",
    "sample_mean": "brimful.tensors.loss",
    "schedule": "brimful.plan.schedule",
    "testing": "brimful.testing",
    "token_mean": "brimful.tensors.loss",
    "warm_up": "brimful.warmup",
    "zip_datasets": "brimful.read",
}
"""Where each name is; all others are in `brimful.plan`."""
_MODULES: Final = {"attention", "grouping", "memory", "testing"}


def __getattr__(name: str) -> Any:
    """Each name is imported on first use: a program that asks for the version, or prints help, waits for nothing else."""
    if name not in __all__:
        public = not name.startswith("_")  # Python asks for many others, and a search imports torch
        owner = next(
            (one for one in sorted(_MODULES) if public and name in import_module(_MODULE_OF[one]).__all__), None
        )
        remedy = f"; say bf.{owner}.{name}" if owner else ""
        if name == "CheckpointableDataset":  # epochraft's
            remedy = "; call bf.from_files, bf.from_sequence or bf.from_iterable"
        raise AttributeError(f"module 'brimful' has no attribute {name!r}{remedy}")
    module = import_module(_MODULE_OF.get(name, "brimful.plan"))
    value = globals()[name] = module if name in _MODULES else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
