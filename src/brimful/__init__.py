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

from brimful.dataset import (
    Batches,
    Dataset,
    concat_datasets,
    from_files,
    from_iterable,
    from_sequence,
    interleave_datasets,
)
from brimful.errors import BrokenError, DataError, StageError, StateError
from brimful.plan import (
    AttentionCost,
    CostBudget,
    FixedSize,
    OverlongError,
    Plan,
    Policy,
    TokenBudget,
)

__version__ = "0.1.0"

__all__ = [
    "AttentionCost",
    "Batches",
    "BrokenError",
    "CostBudget",
    "DataError",
    "Dataset",
    "FixedSize",
    "OverlongError",
    "Plan",
    "Policy",
    "StageError",
    "StateError",
    "TokenBudget",
    "concat_datasets",
    "from_files",
    "from_iterable",
    "from_sequence",
    "interleave_datasets",
]
