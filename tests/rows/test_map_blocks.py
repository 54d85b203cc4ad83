from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import brimful as bf
from brimful.core.run import Run
from brimful.tables.blocks import Block
from tests.samples import letters, shard, spelled


def test_a_function_of_whole_blocks_changes_values_columns_and_rows() -> None:
    def upper(block: Block) -> Block:
        return block.set_column(0, "letter", pc.utf8_upper(block.column("letter")))

    def odd(block: Block) -> Block:
        return block.take(pa.array(range(0, block.num_rows, 2)))

    assert spelled(letters("abc").map_blocks(upper)) == "ABC"
    assert spelled(letters("abcde").map_blocks(odd)) == "ace"
    assert spelled(letters("ab").map_blocks(lambda block: pa.concat_batches([block, block]))) == "abab"
    assert list(letters("ab").map_blocks(lambda block: block.slice(0, 0))) == []


def test_the_function_sees_the_users_columns_alone() -> None:
    seen = []

    def noted(block: Block) -> Block:
        seen.append(block.schema.names)
        return block

    list(letters("ab").map_blocks(noted))
    assert seen == [["letter"]]


def test_rows_keep_their_place_where_their_number_stays(tmp_path: Path) -> None:
    def fails(sample: dict[str, Any]) -> None:
        raise KeyError("boom")

    data = shard(tmp_path, [{"a": 1}]).map_blocks(lambda block: block.append_column("b", pa.array([2])))
    with pytest.raises(bf.StageError, match=r"failed at shard a\.jsonl, line 1: KeyError"):
        list(data.map(fails))  # type: ignore[arg-type]


def test_a_block_that_becomes_long_is_cut() -> None:
    stage = letters("a" * 3_000).map_blocks(lambda block: pa.concat_batches([block] * 3)).stage
    sizes = [block.num_rows for block, _ in stage.items(stage.start(0), Run())]
    assert sizes[0] == 16
    assert max(sizes) <= 4_096
    assert sum(sizes) == 9_000


def test_errors_name_the_function_and_the_block(tmp_path: Path) -> None:
    def fails(block: Block) -> Block:
        raise KeyError("boom")

    data = shard(tmp_path, [{"a": 1}])
    message = r"^map_blocks\(fails\) failed in the block from shard a\.jsonl, line 1 on: KeyError: 'boom'$"
    with pytest.raises(bf.StageError, match=message):
        list(data.map_blocks(fails))
    with pytest.raises(bf.StageError, match=r"^map_blocks\(<lambda>\) must return a pyarrow\.RecordBatch \(got int\)$"):
        list(data.map_blocks(lambda block: 5))
