"""The loader as torch knows it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from brimful.loader import Loader


class TorchLoader(Loader, IterableDataset[Any]):
    """A loader that a DataLoader, and all that is written for one, takes for a data set of torch's."""
