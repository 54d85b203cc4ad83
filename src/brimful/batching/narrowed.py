"""Each batch in a window of its own samples, so that only these are fetched for it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from brimful.batching.batch import Batch, apart
from brimful.core.stage import Stage, State, running


@dataclass(frozen=True)
class Narrowed(Stage[Batch]):
    """The batches, each with a window of its own samples: for data whose rows are fetched one by one, and cost more than the call
    that fetches several. The state is passed on."""

    verb = ""
    itemwise: ClassVar[bool] = True

    upstream: Stage[Batch]

    def items(self, at: State) -> Generator[tuple[Batch, State], None, None]:
        with running(self.upstream, at) as batches:
            for batch, after in batches:
                yield apart(batch), after
