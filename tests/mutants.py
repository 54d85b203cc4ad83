"""Known ways to break resume, budgets and order: the tests must fail on each of them.

    .venv/bin/python -m tests.mutants [words of a reason]

A mutant is a copy of src in which one text stands in place of another; the tests named beside it run against the copy, in
a process of their own: the fork of one that has imported all that is not ours.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "brimful"
OPTIONS = [
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "--assert=plain",
    "--tb=line",
    "--timeout=60",
    "-o",
    "addopts=--import-mode=importlib",
]
IMPORTED = (
    "hypothesis",
    "numpy",
    "pyarrow.dataset",
    "pytest",
    "tokenizers",
    "torch.utils.data",
    "transformers.trainer",
)
FAILED = 1
"""What pytest exits with where tests failed; other codes say that none ran."""
SECONDS = 120.0


class Mutant(NamedTuple):
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def law(*stages: str) -> tuple[str, ...]:
    return tuple(f"tests/test_law.py::test_law_of_each_stage[{stage}]" for stage in stages)


def of(module: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{module}.py::{test}" for test in tests)


ORACLE = of("test_oracle", "test_random_pipelines_hold_what_plain_python_says[0]")
ORDER = of("test_data_order", "test_data_order_is_what_it_was")
EPOCHS = of("core/test_iterator", "test_a_repeated_shuffled_stream_has_another_order_each_epoch")
EDITED = of("core/test_stage", "test_an_edited_shard_is_refused")

MUTANTS = [
    # -- states: the place after the item, all of it, and nothing that is shared
    Mutant(
        "a window's state is the place after the block in which it begins",
        "batching/windows.py",
        "_BlockInParts(before, skip, crc, block.slice(skip))",
        "_HeldBlock(after, skip, crc, block.slice(skip))",
        law("batching.Buffered"),
    ),
    Mutant(
        "the rows of a block that came before a window are not saved",
        "batching/windows.py",
        "[epoch, *held[0][:3], number, size]",
        "[epoch, held[0].before, 0, 0, number, size]",
        law("batching.Buffered"),
    ),
    Mutant(
        "a window's number is not saved",
        "batching/windows.py",
        "*held[0][:3], number, size]",
        "*held[0][:3], 0, size]",
        law("batching.Buffered"),
    ),
    Mutant(
        "all windows have one number, and so one order",
        "batching/windows.py",
        "                number += 1\n",
        "",
        ORDER,
    ),
    Mutant(
        "a resumed index begins with the window before",
        "batching/windows.py",
        "yield window, END if last == count else [epoch, number, size]",
        "yield window, END if last == count else [epoch, number - 1, size]",
        law("batching.Planned"),
    ),
    Mutant(
        "a state behind the end of shorter epochs is taken",
        "loader.py",
        "steps >= self.steps_per_epoch:",
        "steps < 0:",
        of("test_loader", "test_a_state_behind_the_end_of_shorter_epochs_is_refused_with_both_numbers"),
    ),
    Mutant(
        "a loader's steps are not under its checksum",
        "core/states.py",
        "_checksum([epoch, steps, None",
        "_checksum([epoch, None",
        of("test_loader", "test_a_state_whose_numbers_were_changed_is_refused"),
    ),
    Mutant(
        "later rows of CSV may lose what is written",
        "sources/csv.py",
        "_NO_NUMBER if self.inferred else _HEXADECIMAL",
        "_HEXADECIMAL",
        of("sources/test_csv", "test_behind_the_rows_that_give_the_types_no_number_loses_what_is_written"),
    ),
    Mutant(
        "the tags of replies are not compared with one another",
        "sources/objects.py",
        "if key is not None and told[key] != now[key]:",
        "if False:",
        of("sources/test_http", "test_an_object_that_is_replaced_where_only_what_is_sent_bears_a_tag_is_refused"),
    ),
    Mutant(
        "an iterator that was closed looks as if it had ended",
        "core/iterator.py",
        "if self._over or self._state == END:",
        "if self._closed or self._state == END:",
        of("core/test_iterator", "test_an_iterator_that_was_closed_before_its_end_says_so"),
    ),
    Mutant(
        "what one object works out waits for all others of its class",
        "core/once.py",
        "key = id(instance), name",
        "key = type(instance), name",
        of("core/test_once", "test_objects_do_not_wait_for_one_another"),
    ),
    Mutant(
        "rows that are known already are passed over when a block of few rows ends",
        "index/indexed.py",
        "numbers = numbers[size:]",
        "numbers = numbers[size + 1 :]",
        of("index/test_algebra", "test_rows_of_many_tokens_come_in_small_blocks"),
    ),
    Mutant(
        "a mixture that is asked for a part in its middle goes on from the part before",
        "index/interleave.py",
        "before = served if end == first else served_at(first, weights, most)",
        "before = served",
        of("index/test_interleave", "test_any_part_can_be_had_alone"),
    ),
    Mutant(
        "of sources that are due at one time the last comes first to its end",
        "plan/mix.py",
        "earlier = np.arange(len(own)) < at",
        "earlier = np.arange(len(own)) > at",
        of("index/test_interleave", "test_it_is_the_streamed_mixture"),
    ),
    Mutant(
        "a source without rows is waited for",
        "plan/mix.py",
        "return np.where(own > 0, most, 0)",
        "return most",
        of("index/test_interleave", "test_it_is_the_streamed_mixture"),
    ),
    Mutant(
        "what begins again begins with the same epoch",
        "index/indexed.py",
        "stage.order(epoch + number)",
        "stage.order(epoch)",
        of("index/test_interleave", "test_each_source_goes_on_with_its_own_next_epoch"),
    ),
    Mutant(
        "every epoch is shuffled alike",
        "index/shuffle.py",
        "random.key(self.seed, at, epoch, number)",
        "random.key(self.seed, at, 0, number)",
        of("index/test_algebra", "test_a_shuffle_has_the_order_that_it_had"),
    ),
    Mutant(
        "two shuffles of indexed data with one seed are the same",
        "index/shuffle.py",
        "at = place(self)",
        "at = 0",
        of("core/test_iterator", "test_two_shuffles_with_one_seed_differ"),
    ),
    Mutant(
        "a slice of a slice forgets the step of the one below",
        "index/slice.py",
        "(origin + place * step for place",
        "(origin + place for place",
        of("index/test_algebra", "test_slices_are_those_of_a_list"),
    ),
    Mutant(
        "a state is not held against what a filter kept",
        "index/filter.py",
        '"crc32": self.index.crc32}',
        '"crc32": 0}',
        of("index/test_algebra", "test_a_random_function_is_refused_with_both_sides_named"),
    ),
    Mutant(
        "the rows of a joined index are those of its first part",
        "index/joined.py",
        "            out[at] = rows + start\n",
        "            out[at] = rows\n",
        of("index/test_algebra", "test_windows_are_those_that_streamed_rows_give"),
    ),
    Mutant(
        "a mixture by tokens counts rows",
        "rows/interleave.py",
        "self.served += served",
        "self.served += rows",
        of("index/test_interleave", "test_streamed_by_tokens_is_due_whoever_served_the_least_for_its_weight"),
    ),
    Mutant(
        "END is run as if it were a place",
        "core/stage.py",
        "    if at == END:\n",
        "    if False:\n",
        law("rows.Take", "rows.AddBosEos"),
    ),
    Mutant(
        "the last item's state is not END",
        "batching/windows.py",
        "END if after == END else [after, 0, 0]",
        "[after, 0, 0]",
        law("batching.Shuffle"),
    ),
    Mutant(
        "what a window has handed on is not saved",
        "batching/windows.py",
        "[before, done, window.crc32]",
        "[before, 0, window.crc32]",
        law("batching.Shuffle"),
    ),
    Mutant(
        "a batch is handed out again after a resume",
        "batching/windows.py",
        "[before, done, window.crc32]",
        "[before, done - 1, window.crc32]",
        law("batching.Batched"),
    ),
    Mutant(
        "a step's state is that of its first batch",
        "batching/sharded.py",
        "done % count",
        "(done - 1) % count",
        law("batching.Sharded"),
    ),
    Mutant(
        "a sample's state is that of its whole block",
        "rows/unbatch.py",
        "yield sample, [before, row, crc]",
        "yield sample, [after, 0, 0]",
        law("rows.Unbatch"),
    ),
    Mutant(
        "the pieces of a long block are not counted",
        "blocks/resize.py",
        "yield block.slice(done - rows, rows), [before, done, crc, number]",
        "yield block.slice(done - rows, rows), [before, 0, crc, number]",
        law("rows.Rebatch"),
    ),
    Mutant(
        "one block too few is read again",
        "blocks/rechunk.py",
        "len(held), found]",
        "len(held) - 1, found]",
        law("rows.PackChunk"),
    ),
    Mutant(
        "held rows are checked by the last block of them",
        "blocks/rechunk.py",
        "found = held_crc([held[-1]], found)",
        "found = _crc([held[-1]])",
        law("rows.PackChunk"),
    ),
    Mutant(
        "joined blocks are cut where they happen to lie in memory",
        "blocks/resize.py",
        "sum(map(bytes_in, visible(block).columns))",
        "pa.ipc.get_record_batch_size(block)",
        of("blocks/test_resize", "test_bytes_are_those_of_the_rows_alone"),
    ),
    Mutant(
        "joined blocks have the state after the first of them",
        "blocks/resize.py",
        "rows + count, size + own, after",
        "rows + count, size + own, state or after",
        of("blocks/test_resize", "test_where_blocks_are_joined_depends_on_the_state_alone"),
    ),
    Mutant(
        "the rows that are held at the end are lost where upstream does not say that it ends",
        "blocks/rechunk.py",
        "elif held and before != END:",
        "elif False:",
        of("test_law", "test_held_rows_come_out_where_upstream_ends_without_saying_so"),
    ),
    Mutant("the phase of a stride is not saved", "rows/stride.py", "[after, phase]", "[after, 0]", law("rows.Stride")),
    Mutant("rows to skip are skipped again", "rows/skip.py", "[after, left]", "[after, self.count]", law("rows.Skip")),
    Mutant(
        "take goes by its count in each block",
        "rows/take.py",
        "block.slice(0, self.n - taken)",
        "block.slice(0, self.n)",
        of("rows/test_take_skip_stride", "test_take_counts_over_blocks"),
    ),
    Mutant("a count begins anew", "rows/enumerate.py", "[after, number]", "[after, 0]", law("rows.Enumerate")),
    Mutant(
        "rows draw the numbers of others",
        "rows/row_keys.py",
        "[epoch, after, number]",
        "[epoch, after, 0]",
        law("rows.RowKeys"),
    ),
    Mutant(
        "a data set that follows begins with the first epoch",
        "rows/concat.py",
        "self.upstreams[which + 1].start(epoch)",
        "self.upstreams[which + 1].start(0)",
        law("rows.Concat"),
    ),
    Mutant(
        "an epoch is filled because it was resumed",
        "core/repeat.py",
        "[epoch, after, filled]",
        "[epoch, after, 1]",
        of("test_law", "test_an_empty_epoch_is_empty_also_where_it_is_resumed"),
    ),
    Mutant(
        "a data set that was left out of a mix is back after a resume",
        "rows/interleave.py",
        "_LEFT_OUT if self.left_out else int(self.ended)",
        "int(self.ended)",
        of("test_law", "test_a_data_set_that_interleaving_left_out_stays_left_out"),
    ),
    Mutant(
        "a mix forgets how many rows each has given",
        "rows/interleave.py",
        "return [self.served, self.epoch,",
        "return [0, self.epoch,",
        law("rows.Interleave"),
    ),
    Mutant(
        "what a trainer holds ahead counts as used",
        "core/consumed.py",
        "if number <= used)",
        "if number <= used + 1)",
        of("integrations/test_accelerate", "test_what_is_held_ahead_is_not_in_a_state"),
    ),
    Mutant(
        "what a trainer still holds of an epoch that has ended counts as used",
        "core/consumed.py",
        "if self._ended and self.unused is not None:",
        "if False:",
        of("core/test_consumed", "test_behind_the_end_of_a_loop_its_last_batches_are_still_ahead"),
    ),
    Mutant(
        "batches that were taken before a trainer was followed count as one",
        "core/consumed.py",
        "(count + self._taken, now())",
        "(count + 1, now())",
        of("core/test_consumed", "test_a_trainer_that_comes_late_has_used_nothing_of_the_loop_that_runs"),
    ),
    Mutant(
        "what a trainer held and threw away is left out",
        "loader.py",
        "if (place := self._consumed.left_at) is not None:",
        "if (place := None) is not None:",
        of("test_loader", "test_a_loop_that_begins_goes_back_to_what_was_used"),
    ),
    Mutant(
        "the last batch of a prepared loader is not told of",
        "integrations/accelerate.py",
        "self.end_of_dataloader = True",
        "self.end_of_dataloader = False",
        of("integrations/test_accelerate", "test_loops_inside_loops_tell_of_their_own_ends"),
    ),
    Mutant(
        "the epoch of a prepared loader is that of the batch it holds ahead",
        "integrations/accelerate.py",
        "return epoch if self._loop is None else",
        "return epoch if True else",
        of("integrations/test_accelerate", "test_the_epoch_is_that_of_the_batch_handed_out_not_of_what_is_held_ahead"),
    ),
    Mutant(
        "shards that are opened ahead count as begun",
        "sources/files.py",
        "state = [epoch, begun, positions]",
        "state = [epoch, begun + len(rotation._standby), positions]",
        law("sources.FromFiles"),
    ),
    Mutant(
        "where a block ends depends on the state at which a run began",
        "sources/files.py",
        "begun, positions = rotation.begun, rotation.positions\n                state = [epoch, begun, positions]",
        "state = [epoch, rotation.begun, rotation.positions]",
        of("sources/test_files", "test_shards_are_read_in_turn_and_the_next_takes_the_place_of_one_that_ended"),
    ),
    Mutant(
        "a compressed shard goes on one byte late",
        "sources/forward.py",
        "self._skip = beyond\n",
        "self._skip = beyond + 1\n",
        law("sources.FromFiles"),
    ),
    Mutant(
        "in CSV, quotes inside of a field hide the end of its record",
        "sources/records.py",
        "return ends if first.all() else None",
        "return ends",
        of("sources/test_records", "test_records_end_where_quotes_that_begin_fields_say"),
    ),
    Mutant(
        "whether a quoted field of CSV ends depends on how the bytes come in",
        "sources/records.py",
        "if (last or len(data) > RECORD_BYTES)",
        "if (last or len(data) > min(BUFFER_BYTES, RECORD_BYTES))",
        of(
            "sources/test_records",
            "test_records_are_the_same_whatever_the_buffers_and_wherever_reading_goes_on",
        ),
    ),
    Mutant(
        "a record of CSV over several lines counts as one line",
        "sources/records.py",
        "np.maximum(1, np.diff(passed, prepend=0))",
        "np.minimum(1, np.diff(passed, prepend=0) + 1)",
        of("sources/test_csv", "test_blank_lines_are_passed_over_and_lines_counted"),
    ),
    Mutant(
        "the first record of a buffer of CSV loses a byte order mark of its own",
        "sources/csv.py",
        'data = b"\\n" + data  #',
        "data = data + b''  #",
        of("sources/test_csv", "test_what_a_record_gives_does_not_depend_on_the_records_around_it"),
    ),
    Mutant(
        "an item of CBOR that is no row is left out without a word",
        "sources/cbor.py",
        "errors[len(ends)] = str(error)",
        "pass",
        of("sources/test_cbor", "test_of_damaged_shards_each_item_is_a_row_or_is_skipped_and_counted"),
    ),
    Mutant(
        "strings become bytes, and bools numbers, beside others that are such",
        "blocks/schema.py",
        "if _mixed(values, own.type):",
        "if False:",
        of("sources/test_cbor", "test_what_an_item_gives_does_not_depend_on_the_items_around_it"),
    ),
    Mutant(
        "prefetch hands out the state of what was read, not of what was taken",
        "core/background.py",
        "            yield item\n            del item\n",
        "            yield item if self._made.empty() else (item[0], self._made.get()[0][1])  # type: ignore\n",
        of("core/test_iterator", "test_what_runs_in_the_background_changes_neither_items_nor_states"),
    ),
    Mutant(
        "results come as they are ready, the newest first",
        "core/background.py",
        "                yield _settled(pending.popleft())\n        while",
        "                yield _settled(pending.pop())\n        while",
        law("rows.Tokenize"),
    ),
    Mutant(
        "every stage counts in the key of a random order",
        "core/stage.py",
        "place(below) + below.draws",
        "place(below) + 1",
        of("core/test_iterator", "test_what_draws_no_random_numbers_changes_no_order_above_it"),
    ),
    Mutant(
        "a sum of sums is not one concatenation",
        "index/concat.py",
        "flat: ClassVar[bool] = True",
        "flat: ClassVar[bool] = False",
        of("index/test_choose_order", "test_a_sum_of_sums_is_one_concatenation"),
    ),
    Mutant(
        "a damaged position is taken",
        "core/states.py",
        "if saved != now:",
        "if saved is None:",
        of("core/test_states", "test_a_damaged_state_is_refused_in_words"),
    ),
    Mutant(
        "a line may be of any length",
        "sources/forward.py",
        "if len(self.data) > RECORD_BYTES:",
        "if False:",
        of("test_hostile", "test_a_line_without_an_end_is_refused"),
    ),
    Mutant(
        "plans go on after take",
        "core/items.py",
        "return self.over(self.upstream.limited)",
        "return self.upstream.limited",
        of("test_hostile", "test_plans_and_shapes_are_those_of_the_batches_that_are_taken"),
    ),
    Mutant(
        "a state dict shares its lists with the iterator",
        "core/iterator.py",
        "return self.snapshot()",
        'return self.snapshot() | {"header": self._header}',
        of("core/test_iterator", "test_one_state_restored_twice_gives_the_same_and_stays_as_it_is"),
    ),
    Mutant(
        "after Ctrl-C the state is that of an item that nobody got",
        "core/iterator.py",
        "self._state = before  # Ctrl-C",
        "pass  # Ctrl-C",
        of("test_interrupt", "test_a_ctrl_c_at_any_place_loses_no_item_no_state_and_no_thread"),
    ),
    Mutant(
        "the state is that of an item before it is handed out",
        "core/iterator.py",
        "                self.stats.took(item)\n",
        "                self._state = after\n                self.stats.took(item)\n",
        of("test_interrupt", "test_a_ctrl_c_at_any_place_loses_no_item_no_state_and_no_thread"),
    ),
    Mutant(
        "a thread is started by the consumer, whom Ctrl-C reaches",
        "core/background.py",
        "    _thread.start_new_thread(_started, (thread, outcome))\n",
        "    _started(thread, outcome)\n",
        of("test_interrupt", "test_a_ctrl_c_at_any_place_loses_no_item_no_state_and_no_thread"),
    ),
    Mutant(
        "a forked process goes on with its parent's files",
        "core/background.py",
        "    if process != os.getpid():\n",
        "    if False:\n",
        of("test_fork", "test_an_iterator_refuses_in_a_forked_process_and_the_parents_goes_on"),
    ),
    Mutant(
        "a forked process closes its parent's generators",
        "core/iterator.py",
        "            ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator._items))\n",
        "            pass\n",
        of("test_fork", "test_an_iterator_refuses_in_a_forked_process_and_the_parents_goes_on[a function's]"),
    ),
    Mutant(
        "a function that closes its run waits for itself",
        "core/iterator.py",
        "        if RUN.get() is self._running:\n            return\n",
        "",
        of("core/test_iterator", "test_a_function_that_the_run_calls_may_close_it[map]"),
    ),
    Mutant(
        "an epoch ends only where its end is asked for",
        "loader.py",
        "                    if running.over:\n",
        "                    if False:\n",
        of("test_loader", "test_a_loader_that_is_read_to_its_last_batch_has_ended_its_epoch"),
    ),
    Mutant(
        "a loop that another one has ended looks as if it were over",
        "loader.py",
        "            if self._last is None or",
        "            if self._last is not running or",
        of("test_loader", "test_a_loop_inside_a_loop_over_the_same_loader_is_an_error_of_the_outer_one"),
    ),
    Mutant(
        "a failed iterator goes on",
        "core/iterator.py",
        "            self._error = error\n        self._stop()",
        "            pass\n        self._stop()",
        of("core/test_iterator", "test_an_exception_breaks_the_iterator_for_ever"),
    ),
    # -- refusals
    Mutant("replayed rows are not checked", "blocks/blocks.py", "    if ours != saved:\n", "    if False:\n", EDITED),
    Mutant(
        "the rows before a window are not checked",
        "batching/windows.py",
        '                        check_replay(self.upstream, self._crc32(block), crc, f"window {number}")\n',
        "                        pass\n",
        EDITED,
    ),
    Mutant(
        "only lengths are checked",
        "blocks/ragged.py",
        "            crc = crc32(fixed_bytes(values)[middles].tobytes(), crc)\n",
        "            pass\n",
        EDITED,
    ),
    Mutant(
        "a checksum depends on what lies behind an empty list in memory",
        "blocks/ragged.py",
        "(offsets[:-1] + sizes // 2)[sizes > 0]",
        "np.minimum(offsets[:-1] + sizes // 2, max(0, len(values) - 1)) if len(values) else sizes[:0]",
        of("test_law", "test_an_empty_list_at_the_end_of_a_block_is_the_same_wherever_the_block_lies_in_memory"),
    ),
    Mutant(
        "any header will do",
        "core/stage.py",
        "    if found is not None:\n",
        "    if False:\n",
        of("core/test_stage", "test_a_state_of_another_pipeline_is_refused_by_name"),
    ),
    # -- order
    Mutant(
        "a shuffle has the same order in every epoch",
        "batching/shuffle.py",
        "here, window.epoch, window.number",
        "here, 0, window.number",
        EPOCHS,
    ),
    Mutant(
        "batches have the same order in every epoch",
        "batching/batched.py",
        "here, window.epoch, window.number",
        "here, 0, window.number",
        EPOCHS,
    ),
    Mutant(
        "two shuffles with one seed are the same",
        "batching/shuffle.py",
        "here = place(self)",
        "here = 0",
        of("core/test_iterator", "test_two_shuffles_with_one_seed_differ"),
    ),
    Mutant("every epoch is the first", "core/repeat.py", "            epoch += 1\n", "", EPOCHS),
    Mutant(
        "a tie in a mix goes to the last",
        "plan/mix.py",
        "np.lexsort((owners[decided], flat[decided]))",
        "np.lexsort((-owners[decided], flat[decided]))",
        of("rows/test_interleave", "test_rows_come_as_one_by_one"),
    ),
    Mutant(
        "a last window that is short stays alone",
        "plan/window.py",
        "return count if count < size + rest_rows(size) else size",
        "return min(count, size)",
        ORDER,
    ),
    Mutant(
        "the size of an automatic window depends on where blocks end",
        "batching/windows.py",
        ".slice(0, AUTO_SAMPLE)",
        "",
        of("test_law", "test_an_automatic_window_is_judged_by_the_same_rows_however_they_are_cut"),
    ),
    # -- what plain Python says of random pipelines
    Mutant(
        "a rank takes the batch of the one before",
        "batching/sharded.py",
        "(rank - step.taken) % world_size",
        "(rank - 1 - step.taken) % world_size",
        ORACLE,
    ),
    Mutant(
        "a filler keeps its labels",
        "tensors/loss.py",
        "        if not weight:\n",
        "        if False:\n",
        of("batching/test_sharded", "test_a_filler_has_no_weight_and_no_label"),
    ),
    Mutant(
        "the labels of a step are those of its first rank",
        "batching/sharded.py",
        "num_labels=step_labels(step.labels)",
        "num_labels=step_labels(step.labels[:1])",
        of("batching/test_sharded", "test_every_batch_knows_the_labels_of_its_step"),
    ),
    Mutant(
        "a batch may be one token above its budget",
        "plan/budget.py",
        "self.max_tokens.__floordiv__",
        "(self.max_tokens + 1).__floordiv__",
        of("test_oracle", "test_random_pipelines_hold_what_plain_python_says[5]"),
    ),
    Mutant(
        "lengths are those of tokens that a mask hides, too",
        "tensors/padded.py",
        "(mask != 0).sum(1)",
        "(mask >= 0).sum(1)",
        ORACLE,
    ),
    Mutant(
        "the lengths of nested batches are those of tokens that a mask hides, too",
        "tensors/padded.py",
        "mask.values().numpy() != 0",
        "mask.values().numpy() >= 0",
        ORACLE,
    ),
    Mutant(
        "the first sample of a packed row is in the segment of padding",
        "tensors/packed.py",
        "np.searchsorted(rows, rows) + 1",
        "np.searchsorted(rows, rows)",
        ORACLE,
    ),
    Mutant(
        "a last window of just under half is one of its own",
        "plan/window.py",
        "return (size + 1) // 2",
        "return size // 2",
        ORACLE,
    ),
    # -- a rank's own rows, and the labels of its step
    Mutant(
        "chosen_labels are padded with a token",
        "blocks/ragged.py",
        'name == LABELS or name.endswith(f"_{LABELS}")',
        "name == LABELS",
        of("tensors/test_columns", "test_every_column_of_labels_is_padded_with_minus_100[False]"),
    ),
    Mutant(
        "labels that a tokenizer made are padded with its own id",
        "batches.py",
        "padding.id is not None and not is_labels(name)",
        "padding.id is not None",
        of("tensors/test_columns", "test_every_column_of_labels_is_padded_with_minus_100[False]"),
    ),
    Mutant(
        "arrays with a ragged dimension become nested lists",
        "tensors/columns.py",
        "return depth > 1 and _is_number(kind)",
        "return False",
        of(
            "tensors/test_columns",
            "test_arrays_with_a_ragged_dimension_are_an_error_whatever_lies_beside_a_row[tokens-in memory]",
        ),
    ),
    Mutant(
        "a filler is not marked where a collate_fn makes no dict",
        "tensors/collated.py",
        "if batch.may_fill and not isinstance(item, MutableMapping):",
        "if False:",
        of("batching/test_sharded", "test_fillers_that_nothing_can_mark_are_refused_on_every_rank[False-False]"),
    ),
    Mutant(
        "each rank locates the rows of all",
        "batching/sharded.py",
        "own = own.apart() if world_size > 1 else own",
        "pass",
        of("batching/test_sharded", "test_a_rank_of_four_locates_a_quarter_of_the_rows"),
    ),
    Mutant(
        "the labels of cut samples count as if they were whole",
        "batching/labels.py",
        "        if len(cut):\n",
        "        if False:\n",
        of("batching/test_sharded", "test_every_batch_knows_the_labels_of_its_step[packed, truncated-1-pad]"),
    ),
    Mutant(
        "the first label of a packed sample counts",
        "tensors/layouts.py",
        "return known.given - known.edges",
        "return known.given",
        of("batching/test_sharded", "test_every_batch_knows_the_labels_of_its_step[packed-1-pad]"),
    ),
    Mutant(
        "a label that is missing is padded away",
        "tensors/columns.py",
        "np.flatnonzero(counts != expected)",
        "np.flatnonzero(counts != counts)",
        of("tensors/test_collate", "test_a_label_that_is_missing_is_named_and_both_remedies_work"),
    ),
    Mutant(
        "a null becomes a value",
        "tensors/columns.py",
        "    if null.any():\n        row",
        "    if null.all():\n        row",
        of("tensors/test_collate", "test_a_null_in_what_becomes_a_tensor_is_an_error_with_its_place"),
    ),
    Mutant(
        "each run tells types anew",
        "blocks/typed.py",
        "END if after == END else [after, text]",
        'END if after == END else [after, ""]',
        of("rows/test_map", "test_types_are_those_of_epoch_0_and_stay_in_the_state"),
    ),
    Mutant(
        "a joined row has the columns of its own part alone",
        "index/joined.py",
        "blocks.append(conformed(block, self.schema, self.what, self.numbers[part]))",
        "blocks.append(block)",
        of("index/test_algebra", "test_a_concatenation_has_the_columns_of_all_in_every_row"),
    ),
    Mutant(
        "a function is called for whole blocks from the first one on",
        "blocks/resize.py",
        "while block.num_rows - done > 2 * (rows := rows_at(number)):",
        "while block.num_rows - done > 2 * (rows := 2_048):",
        of("rows/test_calls", "test_a_first_sample_takes_32_calls_and_a_resume_no_more"),
    ),
    Mutant(
        "32 results tell the types also where a column is null in them",
        "blocks/typed.py",
        "if wanted <= count < SAMPLE_ROWS and not",
        "if False and not",
        of("rows/test_calls", "test_types_that_are_not_told_by_32_results_take_up_to_1000"),
    ),
    Mutant(
        "the processes of a loader end with each epoch",
        "core/iterator.py",
        "Running(KEEPER.get())",
        "Running()",
        of("blocks/test_parallel", "test_processes_live_as_long_as_a_loader"),
    ),
    Mutant(
        "what a scan carries is saved as it was before the block",
        "rows/scan.py",
        'END if after == END else [after, _plain(carry, "carry")]',
        "END if after == END else [after, at[1]]",
        law("rows.Scan"),
    ),
    Mutant(
        "a function of a scan changes the carry that a state holds",
        "rows/scan.py",
        'return _plain(pair[0], "carry"), pair[1]',
        "return pair[0], pair[1]",
        of("rows/test_scan", "test_what_a_function_does_to_its_carry_changes_no_sample_and_no_state"),
    ),
    Mutant(
        "a resumed window begins in all blocks where it began in the first",
        "rows/sliding_window.py",
        "                    skip = 0\n",
        "",
        law("rows.SlidingWindow"),
    ),
    Mutant(
        "blocks without rows between those of a window are not counted",
        "rows/sliding_window.py",
        "sum(one.blocks for one in held)",
        "len(held)",
        law("rows.SlidingWindow"),
    ),
    Mutant(
        "what the longer of two data sets side by side has more is lost without a word",
        "rows/zip.py",
        "if 0 in rows and any(rows):",
        "if not any(rows):",
        of("rows/test_zip", "test_one_that_ends_before_another_is_an_error_with_both_counts"),
    ),
    Mutant(
        "data sets that are shuffled apart are paired by the order of the first",
        "index/zip.py",
        "orders[number](first, last) * step",
        "orders[0](first, last) * step",
        of("rows/test_zip", "test_data_that_are_shuffled_apart_are_paired_as_they_come"),
    ),
    Mutant(
        "which side a text is on depends on what lies behind it in memory",
        "blocks/hashes.py",
        "    words &= ",
        "    words ^= 0 & ",
        of("rows/test_train_valid_split", "test_a_hash_is_that_of_the_value_wherever_it_lies"),
    ),
    Mutant(
        "a column that is null moves samples across a split",
        "blocks/hashes.py",
        "    out[hashes == _NULL] = 0\n",
        "",
        of("rows/test_train_valid_split", "test_a_null_is_as_if_its_column_were_not_there_and_columns_have_no_order"),
    ),
    Mutant(
        "equal samples of two streams are on two sides",
        "blocks/hashes.py",
        "random.key(self.seed)",
        "id(self)",
        of("rows/test_train_valid_split", "test_equal_samples_are_on_one_side_also_in_several_streams"),
    ),
    Mutant(
        "each side of a split reads all rows",
        "dataset.py",
        "known.setdefault(id(source), SplitMask(source.index, how))",
        "SplitMask(source.index, how)",
        of("rows/test_train_valid_split", "test_all_rows_are_read_once_for_both_sides_and_of_a_key_nothing_else"),
    ),
    Mutant(
        "a text is cut at a space by the byte before it",
        "encoding/word_cache.py",
        "    if len(others):\n",
        "    if not len(others):\n",
        of("encoding/test_pieces", "test_white_space_of_several_bytes_is_told_from_letters_that_end_alike"),
    ),
    Mutant(
        "a text is cut at a space within a run of them",
        "encoding/word_cache.py",
        'ord("!"), 0x80',
        'ord(" "), 0x80',
        of("encoding/test_pieces", "test_slices_empty_texts_and_none_at_all"),
    ),
    Mutant(
        "an added token that takes the spaces after it is cut off from them",
        "encoding/splittable.py",
        'token.rstrip and (spaces != "white"',
        'token.rstrip and (spaces == ""',
        of(
            "encoding/test_splittable", "test_what_makes_other_tokens_of_pieces_is_left_to_the_tokenizer[added, rstrip]"
        ),
    ),
    Mutant(
        "a mark in a text is cut off from the space that it makes one token with",
        "encoding/word_cache.py",
        "0xE296: (0x81,), ",
        "",
        of("encoding/test_splittable", "test_the_tokens_of_pieces_are_those_of_the_text[Gemma]"),
    ),
    Mutant(
        "byte-level without a pattern is taken for GPT-2's",
        "encoding/splittable.py",
        'whole = first.get("use_regex", True)',
        "whole = True",
        of(
            "encoding/test_splittable",
            "test_what_makes_other_tokens_of_pieces_is_left_to_the_tokenizer[words together, numbers apart]",
        ),
    ),
    Mutant(
        "what another run has begun to audit counts as audited",
        "encoding/engines.py",
        "if run is None else run.pools.setdefault(id(self), {})",
        "if run is None else _SEEN",
        of("encoding/test_engines", "test_what_another_run_has_begun_to_audit_is_audited_anew"),
    ),
    Mutant(
        "a word is one that an earlier block had in its place",
        "encoding/word_cache.py",
        "known.tokens.offsets[-1] + np.cumsum(counts)",
        "np.cumsum(counts)",
        of("encoding/test_word_cache", "test_blocks_of_many_words_are_coded_by_the_first_that_came"),
    ),
    Mutant(
        "words are cut apart at a mark of their own",
        "encoding/fast.py",
        "if len(ends) == len(texts):",
        "if len(ends) >= len(texts):",
        of("encoding/test_fast", "test_texts_that_hold_the_mark_go_as_they_are"),
    ),
    Mutant(
        "a twin does not normalize",
        "encoding/fast.py",
        '("normalizer", "pre_tokenizer", ',
        '("pre_tokenizer", ',
        of("encoding/test_fast", "test_a_twin_is_all_that_the_tokenizer_is[BERT]"),
    ),
    Mutant(
        "marks in another order are left to gigatoken",
        "encoding/compiled.py",
        "0x8CA, 0x8D4, ",
        "",
        of("encoding/test_compiled", "test_marks_that_the_two_put_in_another_order_go_to_the_tokenizer"),
    ),
    Mutant(
        "added tokens get other ids where the JSON cannot carry theirs",
        "encoding/encoder_kinds.py",
        "if (saved := made.token_to_id(token)) != id_:",
        "if (saved := made.token_to_id(token)) is None:",
        of("encoding/test_encoders", "test_added_tokens_whose_ids_cannot_be_saved_are_refused"),
    ),
    Mutant(
        "words stay in the user's own model",
        "encoding/encoders.py",
        "    return FastEncoder(tokenizer.to_str()",
        "    tokenizer.encode_batch([f'Zebra number{n} Where' for n in range(40)])\n    return FastEncoder(tokenizer.to_str()",
        of("encoding/test_encoders", "test_the_users_tokenizer_may_be_trained_anew_and_set_up_anew_afterwards"),
    ),
    Mutant(
        "truth values of a slice are those before it",
        "blocks/ragged.py",
        'bitorder="little")[values.offset :]',
        'bitorder="little")[: len(values)]',
        of("blocks/test_ragged", "test_truth_values_go_to_arrow_and_back_by_bits_also_of_slices"),
    ),
    Mutant(
        "a function waits for another that gets no thread",
        "core/background.py",
        "min(self._number, len(self._open)):",
        "min(self._number, len(self._open) // 2 + 1):",
        of(
            "core/test_background",
            "test_a_pool_has_as_many_threads_as_functions_at_once_and_starts_none_while_one_is_idle",
        ),
    ),
    Mutant(
        "many open shards share nothing",
        "sources/lines.py",
        "max(WHOLE_BUFFERS, len(_OPEN))",
        "WHOLE_BUFFERS",
        of("sources/test_lines", "test_a_shard_is_read_on_by_larger_buffers_which_many_open_ones_share"),
    ),
    Mutant(
        "other tokens than the tokenizer's go on",
        "encoding/engines.py",
        "if not np.array_equal(ours, theirs):",
        "if len(ours) != len(theirs):",
        of("encoding/test_engines", "test_other_tokens_than_the_tokenizers_are_an_error"),
    ),
    Mutant(
        "a block is handed out before its audit has ended",
        "rows/tokenize.py",
        "                    check()",
        "                    pass",
        of("encoding/test_engines", "test_other_tokens_than_the_tokenizers_are_an_error"),
    ),
    Mutant(
        "a packed batch lets transformers keep a cache, and mix its samples",
        "tensors/packed.py",
        "use_cache=False",
        "use_cache=True",
        of("tensors/test_attention", "test_transformers_would_mix_samples_where_it_keeps_a_cache_or_sees_both_ways"),
    ),
    Mutant(
        "a token across the border of a turn is taken for the assistant's",
        "encoding/conversations.py",
        "if not np.array_equal(own, beginning):",
        "if len(own) != len(beginning):",
        of("rows/test_chat", "test_a_token_across_the_border_of_a_turn_is_no_guess"),
    ),
    Mutant(
        "the end of a turn is not trained on, so that the model never stops",
        "encoding/conversations.py",
        "end = closed + 1",
        "end = closed",
        of("rows/test_chat", "test_what_the_assistant_says_is_trained_on_and_the_end_of_its_turn"),
    ),
    Mutant(
        "a call of a tool has the keys of other rows' tools, null",
        "encoding/conversations.py",
        " for name, one in value.items() if one is not None}",
        " for name, one in value.items()}",
        of("rows/test_chat", "test_tools_go_to_the_template_without_what_other_rows_have"),
    ),
    Mutant(
        "pieces of packed rows are told by the tokens of others",
        "tensors/explained.py",
        "starts = rows * ids.shape[1] + begins - begins[np.searchsorted(rows, rows)]",
        "starts = begins",
        of("tensors/test_explained", "test_each_sample_has_its_line_its_length_and_its_text[packed]"),
    ),
    Mutant(
        "a state does not know at how many tokens tiktoken was cut",
        "encoding/encoder_kinds.py",
        "described(self.kwargs), *cut",
        "described(self.kwargs)",
        of("encoding/test_encoders", "test_tiktoken_is_cut_by_us"),
    ),
    Mutant(
        "pairs are cut as if only_second had not been said",
        "encoding/encoders.py",
        '({"strategy": strategy} if pairs else {})',
        "({})",
        of("encoding/test_encoders", "test_pairs_and_further_outputs"),
    ),
    Mutant(
        "padding is 0 whatever the tokenizer says",
        "rows/tokenize.py",
        "self.upstream.tokenizers() | dict.fromkeys(self.output_column, (self.tokenizer,))",
        "self.upstream.tokenizers()",
        of("tensors/test_columns", "test_padding_is_that_of_the_tokenizer_unless_the_user_says_else"),
    ),
    Mutant(
        "a budget holds before lengths are rounded",
        "plan/rounded.py",
        "self.policy.plan(self.rounding(lengths))",
        "self.policy.plan(lengths)",
        of("tensors/test_columns", "test_any_policy_pads_to_multiples_and_buckets_within_its_limits"),
    ),
    Mutant(
        "the labels of a filler count",
        "batching/sharded.py",
        "step_labels(step.labels)",
        "step_labels([*step.labels, *step.labels[-1:] * (step.world_size - step.taken)])",
        of("batching/test_sharded", "test_every_batch_knows_the_labels_of_its_step[budget-3-pad]"),
    ),
    # -- optimizer steps of several batches
    Mutant(
        "a step that was left inside begins anew",
        "batching/micro_batches.py",
        "            if saved == size:\n",
        "            if saved != size:\n",
        of("batching/test_micro_batches", "test_a_resume_inside_a_step_knows_what_is_left_of_it[budget]"),
    ),
    Mutant(
        "what is left of a step is one batch too many",
        "batching/micro_batches.py",
        "                    left -= 1\n                    ends",
        "                    ends",
        of("batching/test_micro_batches", "test_a_resume_inside_a_step_knows_what_is_left_of_it[budget]"),
    ),
    Mutant(
        "labels are counted in rows as if nothing were cut",
        "batching/labels.py",
        "np.clip(sizes - starts, 0, kept)",
        "sizes - starts",
        of("batching/test_micro_batches", "test_labels_that_are_cut_are_not_counted"),
    ),
    Mutant(
        "the loss of a rank's step counts one of its batches",
        "tensors/loss.py",
        'tokens = batch.get("num_items_on_rank")',
        "tokens = None",
        of("batching/test_micro_batches", "test_ranks_of_streams_count_their_own_labels"),
    ),
    Mutant(
        "labels are counted where the loss is taken over shifted ones",
        "blocks/ragged.py",
        "for name in (SHIFTED, LABELS) if name in names",
        "for name in (LABELS, SHIFTED) if name in names",
        of(
            "batching/test_micro_batches",
            "test_the_labels_that_the_loss_is_taken_over_are_counted[truncate-False-stream]",
        ),
    ),
    Mutant(
        "an index counts labels where the loss is taken over shifted ones",
        "batching/labels.py",
        "if SHIFTED in window.names or",
        "if",
        of(
            "batching/test_micro_batches",
            "test_the_labels_that_the_loss_is_taken_over_are_counted[batch-False-indexed]",
        ),
    ),
    Mutant(
        "any column of labels says how many a collate_fn makes",
        "tensors/layouts.py",
        "if loss_labels([column.name for column in columns.all]) else None",
        "if columns.all else None",
        of("batching/test_micro_batches", "test_labels_that_nobody_trains_on_are_not_counted_for_a_collate_fn"),
    ),
    Mutant(
        "a part of a batch weighs as if the first shifted label were not predicted",
        "oom/weights.py",
        "next_tokens=not labels.shifted)\n\n\ndef",
        "next_tokens=True)\n\n\ndef",
        of(
            "oom/test_guard",
            "test_gradients_are_those_of_the_unsplit_step[by shifted labels, of next tokens-forward-no gradients yet]",
        ),
    ),
    Mutant(
        "the labels that packing makes of tokens are not counted",
        "batching/labels.py",
        "if pieces is None or",
        "if True or",
        of("tensors/test_loss", "test_a_step_of_packed_batches_has_the_gradient_of_one_big_batch[indexed-1]"),
    ),
    Mutant(
        "a batch of a step whose labels nobody counted is a mean of its own",
        "tensors/loss.py",
        'if "ends_step" in batch:',
        "if False:",
        of("tensors/test_loss", "test_a_step_whose_labels_nobody_counted_is_refused"),
    ),
    Mutant(
        "fillers are trained on by their shifted labels",
        "tensors/columns.py",
        "if isinstance(name, str) and is_labels(name)]",
        'if name == "labels"]',
        of("tensors/test_on_device", "test_fillers_and_copies_ask_for_no_label_there_either[2]"),
    ),
    Mutant(
        "the last shifted label of a piece is that of another one's token",
        "tensors/packed.py",
        "segments.bounds[1:] - 1",
        "segments.bounds[:0]",
        of("rows/test_causal_labels", "test_a_sample_that_is_cut_has_as_many_shifted_labels_as_are_counted[True]"),
    ),
    Mutant(
        "packing trains on what a mask hides",
        "batches.py",
        "rules.beside_tokens if planner.packs else ()",
        "()",
        of("blocks/test_unmasked", "test_rows_that_are_padded_are_packed_without_their_padding"),
    ),
    Mutant(
        "a mask that token_columns does not name hides nothing",
        "tensors/layouts.py",
        "if self.packs and MASK not in named",
        "if False",
        of("blocks/test_unmasked", "test_a_mask_hides_tokens_whether_or_not_it_is_named"),
    ),
    Mutant(
        "chunks leave labels out in silence",
        "blocks/ragged.py",
        "if left_out and block.num_rows:",
        "if False:",
        of("rows/test_chunk", "test_what_says_which_tokens_count_is_not_left_out_in_silence"),
    ),
    Mutant(
        "the tokens of samples that are too long are not counted",
        "batching/planners.py",
        '        count("dropped_tokens", tokens)\n    return plan',
        "        pass\n    return plan",
        of("test_api", "test_the_tokens_that_are_cut_or_dropped_are_counted"),
    ),
    Mutant(
        "packed rows are trained on all tokens beside shifted labels that are not packed",
        "tensors/packed.py",
        "if SHIFTED in names and SHIFTED not in out:",
        "if False:",
        of("blocks/test_unmasked", "test_shifted_labels_that_are_not_packed_with_the_tokens_are_refused"),
    ),
    Mutant(
        "integers are rounded to a float type",
        "tensors/columns.py",
        "held = -most <= np.iinfo(source).min",
        "held = True or -most <= np.iinfo(source).min",
        of("tensors/test_collate", "test_what_a_type_does_not_hold_is_refused"),
    ),
    Mutant(
        "labels that packing makes of tokens wrap around",
        "tensors/columns.py",
        "        kind.check(name, values)\n        return kind.tensor(values)",
        "        return kind.tensor(values)",
        of("tensors/test_collate", "test_what_packing_makes_is_held_by_its_type_or_is_an_error"),
    ),
    Mutant(
        "the token after a hidden one is trained on",
        "rows/causal_labels.py",
        "hidden[1:] |= hidden[:-1].copy()",
        "hidden[1:] |= False",
        of("rows/test_causal_labels", "test_what_a_hidden_slot_would_predict_is_not_trained_on"),
    ),
    Mutant(
        "special tokens of what is left over count as cut off",
        "encoding/encoder_kinds.py",
        "sum(map(len, rest)) - added * len(rest)",
        "sum(map(len, rest))",
        of("rows/test_tokenize", "test_what_is_cut_off_is_counted_whatever_makes_the_tokens"),
    ),
    Mutant(
        "a stratified order is a random one",
        "plan/low_discrepancy.py",
        'ranks[np.argsort(points, kind="stable")] = np.arange(count)',
        "ranks = random.permutation(count, key)",
        of("batching/test_micro_batches", "test_any_batches_in_a_row_have_about_the_mean_length_of_all"),
    ),
    Mutant(
        "streams are stratified each by itself",
        "batching/batched.py",
        ", lane=Lane(number, count, self.seed))",
        ")",
        of("batching/test_micro_batches", "test_streams_cover_short_and_long_together"),
    ),
    Mutant(
        "a step has the whole budget for each of its batches",
        "batches.py",
        "planner if parts == 1 else planner.divided(parts)",
        "planner",
        of("batching/test_micro_batches", "test_as_many_ranks_more_as_batches_fewer_go_on_with_the_same_order"),
    ),
    Mutant(
        "a step ends with each epoch of data that repeat",
        "batching/micro_batches.py",
        "return replace(self, upstream=endless(self.upstream))",
        "return None",
        of("batching/test_micro_batches", "test_steps_of_data_that_repeat_go_on_over_the_ends_of_epochs"),
    ),
    Mutant(
        "ranks of streams that repeat take their own labels for those of all",
        "core/stage.py",
        "return self.below[0].num_ranks if self.below else 1",
        "return 1",
        of("batching/test_micro_batches", "test_ranks_of_streams_that_repeat_count_their_own_labels"),
    ),
    Mutant(
        "batches are cut where an epoch ends",
        "batching/batched.py",
        "return None if windows is None else replace(self, upstream=windows)",
        "return None",
        of("core/test_repeat", "test_batches_in_arrival_order_flow_over_the_seams_of_epochs"),
    ),
    Mutant(
        "windows that sort mix two epochs",
        "batching/batched.py",
        "if self.planner.in_order and not self.shuffle_batches else None",
        "if True else None",
        of("core/test_repeat", "test_what_sorts_packs_or_shuffles_stays_inside_an_epoch"),
    ),
    Mutant(
        "chunks are cut where an epoch ends",
        "blocks/rechunk.py",
        "return replace(self, upstream=endless(self.upstream))",
        "return None",
        of("core/test_repeat", "test_chunks_flow_over_the_seams_of_epochs"),
    ),
    Mutant(
        "a window's last packed batch has fewer rows",
        "batching/planners.py",
        "np.full(count, self.num_rows)",
        "np.minimum(self.num_rows, len(order) - np.arange(count) * self.num_rows)",
        of("batching/test_batched", "test_every_packed_batch_has_as_many_rows_as_were_asked_for"),
    ),
    Mutant(
        "a filler of packed batches has one row",
        "batching/planners.py",
        "lie, static=True",
        "lie, static=False",
        of("batching/test_batched", "test_fillers_of_packed_batches_have_the_shape_of_all"),
    ),
    # -- streams that ranks share out
    Mutant(
        "a state names the place of the item before it",
        "batching/round_robin.py",
        'END if over else at | {"next": place,',
        'END if over else at | {"next": place - 1,',
        law("batching.RoundRobin"),
    ),
    Mutant(
        "a rank reads the streams of a run that begins in the middle of a round as if it began with it",
        "batching/round_robin.py",
        'range((at["next"] + rank) % world_size',
        "range(rank",
        of("batching/test_round_robin", "test_drop_drops_the_last_step_of_a_run_that_began_in_the_middle_of_one"),
    ),
    Mutant(
        "the epoch ends as soon as this rank's streams do",
        "batching/rendezvous.py",
        "            if ranks == self._world_size:\n                return count\n",
        "            if ranks == self._world_size:\n                return 0\n",
        of("batching/test_round_robin", "test_the_global_order_does_not_depend_on_the_world_size"),
    ),
    Mutant(
        "a state forgets that a stream has begun again",
        "batching/round_robin.py",
        '{"again": after} if self._again else after',
        "after",
        of("batching/test_round_robin", "test_wrap_begins_a_stream_again_until_all_have_ended"),
    ),
    Mutant(
        "a rank that fails takes rounds with it in which it took part",
        "batching/rendezvous.py",
        "if posted < number:",
        "if number >= 0:",
        of(
            "batching/test_round_robin",
            "test_a_rank_that_fails_while_others_are_slow_keeps_its_own_error_and_all_hand_out_the_same_rounds",
        ),
    ),
    Mutant(
        "a reader that was stopped looks like one that has ended",
        "core/background.py",
        "        if self._stopped:  # the rest",
        "        if False:  # the rest",
        of("core/test_background", "test_what_somebody_else_has_stopped_is_no_end"),
    ),
    Mutant(
        "all streams are shuffled alike",
        "batching/shuffle.py",
        "random.key(self.seed, number))",
        "self.seed)",
        of("batching/test_round_robin", "test_streams_differ_in_their_random_choices"),
    ),
    Mutant(
        "the functions of all streams draw the same random numbers",
        "rows/row_keys.py",
        "self.upstream.stream(number, count), random.key(self.seed, number))",
        "self.upstream.stream(number, count), self.seed)",
        of("batching/test_round_robin", "test_streams_differ_in_their_random_choices"),
    ),
    Mutant(
        "the batches of all streams are shuffled alike",
        "batching/batched.py",
        "seed=random.key(self.seed, number), lane",
        "seed=self.seed, lane",
        of("batching/test_round_robin", "test_streams_differ_in_their_random_choices"),
    ),
    # -- plans
    Mutant(
        "a budget counts the tokens, not the slots that padding makes of them",
        "plan/budget.py",
        "return plan_sorted(lengths, padded, self.max_tokens.__floordiv__, self._cut())",
        "return plan_sorted(lengths, np.maximum(lengths, 1), self.max_tokens.__floordiv__, self._cut())",
        ("tests/plan/test_budget.py",),
    ),
    # -- memory
    Mutant(
        "shuffled batches have the same order each epoch",
        "memory/dataloader.py",
        "self._epoch += 1",
        "self._epoch += 0",
        of("memory/test_dataloader", "test_shuffled_are_the_built_batches_in_another_order_each_epoch"),
    ),
    Mutant(
        "a misspelt keyword goes to the tokenizer",
        "memory/dataloader.py",
        "if name not in named]",
        "if False]",
        of("memory/test_dataloader", "test_what_is_wrong_is_said_at_once"),
    ),
    Mutant(
        "the next peak counts as one of those that were seen",
        "memory/margin.py",
        "rank = ceil((known + 1) * (1 - risk))",
        "rank = ceil(known * (1 - risk))",
        of("memory/test_margin", "test_errors_that_were_seen_bound_the_next_one"),
    ),
    Mutant(
        "a peak is learnt before it is predicted",
        "memory/model.py",
        "self.margin.after(_errors(predicted.max(axis=1), peaks))",
        "self.margin.after(_errors(peaks, peaks))",
        of("memory/test_model", "test_a_peak_is_predicted_before_it_is_learnt"),
    ),
    Mutant(
        "the largest batch is that of the peaks to expect, whatever the risk",
        "memory/model.py",
        "        factor = self.margin.factor(_share(risk))\n        limit =",
        "        factor = 1.0\n        limit =",
        of("memory/test_model", "test_the_largest_batch_is_the_last_whose_bound_is_within_the_limit"),
    ),
    Mutant(
        "a first batch that fits is allowed at any length",
        "plan/memory.py",
        "max(rows, batch) if np.less_equal(length, known).all() else rows",
        "max(rows, batch)",
        of("plan/test_memory", "test_a_first_batch_that_fits_may_always_be_made"),
    ),
    Mutant(
        "a rank that begins again comes back to the run that it left",
        "batching/rendezvous.py",
        'joined/{self._rank}", 1) > 1:',
        'joined/{self._rank}", 1) > 9:',
        of("batching/test_rendezvous_runs", "test_ranks_that_begin_again_after_one_of_them_failed_meet"),
    ),
    Mutant(
        "a rank joins a run that rank 0 has left",
        "batching/rendezvous.py",
        'elif not self._has(f"{name}/closed"):',
        "elif True:",
        of("batching/test_rendezvous_runs", "test_ranks_that_began_unequally_often_meet[0]"),
    ),
    Mutant(
        "ranks at different places take part in one run",
        "batching/rendezvous.py",
        "json.dumps(self._ours, sort_keys=True)",
        "json.dumps(self._ours[0], sort_keys=True)",
        of("batching/test_rendezvous_runs", "test_ranks_at_different_places_are_told_so"),
    ),
    Mutant(
        "later batches are expected to take all of the first one's peak",
        "memory/first_batch.py",
        "bisect_right(self.choices, SHARE * self._first,",
        "bisect_right(self.choices, self._first,",
        of(
            "memory/test_first_batch",
            "test_a_batch_has_the_largest_size_whose_bound_is_within_the_first_peak_and_whose_peak_is_a_twentieth_below",
        ),
    ),
    Mutant(
        "the first batch has a size of the forecast, not the one that fits",
        "memory/first_batch.py",
        "sizes().rows(int(padded[start])) if start else sizes().batch_size",
        "sizes().rows(int(padded[start]))",
        of("memory/test_first_batch", "test_every_text_is_in_one_batch_and_the_first_is_as_large_as_was_said"),
    ),
    Mutant(
        "texts that are cut are taken for texts of the greatest length",
        "memory/dataloader.py",
        "max_length=self.max_length + 1)",
        "max_length=self.max_length)",
        of("memory/test_dataloader", "test_truncated_texts_are_counted_and_said_once[gpt2]"),
    ),
    Mutant(
        "a peak is learnt for the batch after the one that was run",
        "memory/dataloader.py",
        "self._batches.sizes.learnt(rows, length, peak)",
        "self._batches.sizes.learnt(rows + 1, length, peak)",
        of("memory/test_dataloader", "test_batches_are_cut_by_all_peaks_before_but_those_of_batches_read_ahead[0]"),
    ),
    Mutant(
        "what parts of a batch took is learnt as what the whole took",
        "memory/dataloader.py",
        "elif peak is not None and not split:",
        "elif peak is not None:",
        of("memory/test_dataloader", "test_where_a_batch_is_split_beforehand_its_peak_is_not_that_of_its_shape"),
    ),
    Mutant(
        "samples are taken to be as small as a line through the longer ones says",
        "memory/first_batch.py",
        "length = max(length, model.lengths[0][0])",
        "pass",
        of("memory/test_first_batch", "test_one_peak_gives_the_scale_and_sizes_grow_slowly_at_first"),
    ),
    Mutant(
        "a loader learns nothing from a batch that ran out of memory",
        "memory/dataloader.py",
        "self._batches.sizes = self._batches.sizes.exceeded(rows, length)",
        "pass",
        of("memory/test_dataloader", "test_a_batch_that_ran_out_of_memory_is_split_and_the_model_learns_from_it"),
    ),
    Mutant(
        "one peak is enough to double",
        "memory/first_batch.py",
        "else 2 * self.batch_size - 1)",
        "else 9 * self.batch_size)",
        of("memory/test_first_batch", "test_one_peak_gives_the_scale_and_sizes_grow_slowly_at_first"),
    ),
    Mutant(
        "misses make no bound more careful",
        "memory/margin.py",
        "(round(1 / risk) - 1 if missed else -1)",
        "(0 if missed else -1)",
        of("memory/test_margin", "test_errors_that_get_worse_exceed_their_bounds_no_more_often[0.025]"),
    ),
    Mutant(
        "samples of one length change places",
        "plan/cut.py",
        "return ascending(lengths.max(initial=0) - lengths)",
        "return ascending(lengths)[::-1]",
        ("tests/plan/test_budget.py",),
    ),
    Mutant(
        "a batch may have one row too many",
        "plan/cut.py",
        "        start += rows(int(padded[start]))\n",
        "        start += rows(int(padded[start])) + (start > 0)\n",
        ("tests/plan/test_budget.py",),
    ),
    # -- stores that are far away: the right bytes, of the same object, and not too many
    Mutant(
        "a list column's values begin where those of the file do",
        "store/remote.py",
        "begins = self._before(name, ranges.firsts - ranges.begins)",
        "begins = np.zeros(len(ranges.firsts), np.int64)",
        of("store/test_remote", "test_any_rows_of_any_columns"),
    ),
    Mutant(
        "a reply may be of another content",
        "sources/objects.py",
        "        if tag and tag.removeprefix",
        "        if False and tag.removeprefix",
        of("sources/test_http", "test_an_old_copy_on_the_way_is_asked_again_and_never_mixed"),
    ),
    Mutant(
        "replies that do not say their content are trusted",
        "sources/objects.py",
        "            self._untold.add(one.path)\n",
        "            pass\n",
        of("sources/test_http", "test_an_object_that_is_replaced_behind_a_server_without_conditions_is_refused"),
    ),
    Mutant(
        "another range than the one asked for is taken",
        "sources/objects.py",
        "int(found[1]) != first or ",
        "",
        of("sources/test_http", "test_another_range_than_the_one_asked_for_is_refused"),
    ),
    Mutant(
        "an object is looked at once, however long it is read",
        "sources/objects.py",
        "time.monotonic() - before.at >= CHECK_SECONDS",
        "False",
        of("store/test_remote", "test_an_object_that_changes_in_memory_is_refused"),
    ),
    Mutant(
        "fewer bytes than were asked for are taken for all",
        "sources/objects.py",
        "if len(data) < last - first:",
        "if not data:",
        of("store/test_remote", "test_what_passes_is_survived[GET short]"),
    ),
    Mutant(
        "a dead connection is waited for until the end",
        "sources/objects.py",
        "self._timeout / LEAST_ATTEMPTS",
        "self._timeout",
        of("store/test_remote", "test_a_hanging_connection_is_not_all_there_is"),
    ),
    Mutant(
        "a connection that breaks off is taken for a refusal",
        "sources/faults.py",
        "    if isinstance(error, known) and not isinstance(error, ValueError):",
        "    if False:",
        of("sources/test_http", "test_a_server_that_resets_stalls_and_fails_gives_each_row_once_in_order"),
    ),
    Mutant(
        "each of many open files has blocks as large as those of few",
        "sources/bytes.py",
        "max(WHOLE_BLOCKS, len(_OPEN))",
        "WHOLE_BLOCKS",
        of("sources/test_s3", "test_many_open_files_share_the_bytes_that_few_have"),
    ),
    Mutant(
        "each of many streams has samples ahead as a single one",
        "dataset.py",
        "ahead=max(1, BLOCK_ROWS // streams)",
        "ahead=BLOCK_ROWS",
        of("batching/test_round_robin", "test_samples_ahead_are_a_blocks_worth_in_all_streams_together"),
    ),
    Mutant(
        "a reply of S3 may be of any range and content",
        "sources/objects.py",
        '            self._check_range(one, first, last, reply, reply.get("ContentRange", ""))\n',
        "",
        of(
            "sources/test_s3",
            "test_an_object_that_is_replaced_behind_a_server_without_conditions_is_refused",
            "test_another_range_than_the_one_asked_for_is_refused",
        ),
    ),
    Mutant(
        "overlapping patterns read a file twice",
        "sources/urls.py",
        "if not is_pattern or _identity(shard) not in seen:",
        "if True:",
        of("sources/test_urls", "test_a_file_that_several_patterns_name_is_read_once"),
    ),
    Mutant(
        "a checksum of times is of where they lie in memory",
        "blocks/ragged.py",
        "        crc = crc32(fixed_bytes(array.drop_null()).tobytes(), crc)\n",
        "        crc = crc32(np.ascontiguousarray(numpy_of(array.drop_null())).tobytes(), crc)\n",
        of("sources/test_types", "test_a_column_of_any_type_goes_on_in_another_process"),
    ),
    Mutant(
        "integers are rounded in columns of floats",
        "sources/jsonl.py",
        "if not any(map(may_be_rounded, block.columns)):",
        "if True:",
        of("sources/test_jsonl", "test_an_integer_that_a_float_would_round_is_refused_with_its_line"),
    ),
    # -- data sets of Hugging Face: the rows that were chosen, in their order
    Mutant(
        "rows that were selected or shuffled are those at the same place of the table",
        "index/tables.py",
        "numbers if chosen is None else chosen[numbers].astype(np.int64)",
        "numbers",
        of("index/test_hugging_face", "test_rows_are_those_of_the_data_set_and_none_is_asked_for_by_itself"),
    ),
    Mutant(
        "another selection of a table is taken for the same data",
        "index/tables.py",
        "crc = crc if chosen is None else crc32(chosen.tobytes(), crc)",
        "pass",
        of("index/test_hugging_face", "test_a_resume_is_exact_and_other_data_are_refused"),
    ),
    Mutant(
        "a resume of streamed tables goes on at their beginning",
        "sources/iterable.py",
        "    left = done\n",
        "    left = 0\n",
        of("sources/test_tables", "test_a_resume_is_exact_through_json_and_makes_no_rows_of_what_it_skips"),
    ),
    # -- shards: all of one and the same file
    Mutant(
        "a shard that shrinks or grows ends in silence",
        "sources/bytes.py",
        "        if not count:\n            self.compare()\n",
        "",
        of("sources/test_bytes", "test_a_shard_that_shrinks_is_an_error_after_its_rows"),
    ),
    Mutant(
        "a shard that grows is read on",
        "sources/bytes.py",
        "self._file.readinto(buffer[:left]) if left else 0",
        "self._file.readinto(buffer)",
        of("sources/test_bytes", "test_a_shard_that_grows_is_an_error_after_the_rows_that_it_had"),
    ),
    Mutant(
        "an object without tags is not looked at again at its end",
        "sources/bytes.py",
        "        if not filled:\n            self.compare()\n",
        "",
        of("sources/test_bytes", "test_a_file_in_memory_that_changes_is_refused"),
    ),
    Mutant(
        "a block that was read ahead is taken for another",
        "sources/bytes.py",
        "ahead[0] != self._at",
        "False",
        of("sources/test_bytes", "test_any_reads_give_the_bytes_of_the_file"),
    ),
    Mutant(
        "a stream that is opened again goes on at its beginning",
        "sources/bytes.py",
        "        while self._place < self._at and",
        "        while False and",
        of("sources/test_http", "test_shards_are_read_and_resumed_over_http[False-True-.jsonl]"),
    ),
    Mutant(
        "a server without ranges that stalls is waited for until the end",
        "sources/bytes.py",
        "asyncio.wait_for(work, self._seconds)",
        "work",
        of("sources/test_http", "test_a_stream_that_breaks_off_or_stalls_is_read_again_up_to_its_place[GET hang]"),
    ),
    Mutant(
        "a function hides that its shard could not be read on",
        "sources/called.py",
        "        if self._file.failure is not None:  # whatever",
        "        if False:  # whatever",
        of("sources/test_bytes", "test_a_function_is_told_and_cannot_hide_that_its_shard_changed"),
    ),
    Mutant(
        "a compressed file of 0 bytes has no rows",
        "sources/compressed.py",
        "        if not self._file.tell():\n",
        "        if False:\n",
        of("sources/test_compressed", "test_a_file_of_no_bytes_or_of_zeros_is_no_compressed_file"),
    ),
    Mutant(
        "what follows the first member is not read",
        "sources/compressed.py",
        "self._rest, self._member = self._member.unused_data, None",
        'self._rest, self._member = b"", None',
        of("sources/test_compressed", "test_all_members_are_read_empty_ones_too"),
    ),
    Mutant(
        "of an object more is asked for than is wanted",
        "sources/bytes.py",
        "if self.until is not None and first < self.until:",
        "if False:",
        of("sources/test_http", "test_of_a_parquet_file_far_away_the_columns_wanted_are_asked_for_alone"),
    ),
    Mutant(
        "rows of the row group before the position come again",
        "sources/columnar.py",
        "            before = 0 if reached else skip - unit.first\n",
        "            before = 0\n",
        of("sources/test_columnar", "test_a_resume_at_every_row_gives_the_rows_after_it"),
    ),
    Mutant(
        "a piece of a row group begins anew with the bytes",
        "sources/columnar.py",
        "self.at[0] - size * before // rows",
        "self.at[0]",
        of("sources/test_columnar", "test_a_resume_at_every_row_gives_the_rows_after_it[.arrow]"),
    ),
    Mutant(
        "what Arrow decoded is taken as it is",
        "sources/columnar.py",
        "        batch.validate(full=True)\n        return {}\n",
        "        return {}\n",
        of("sources/test_columnar", "test_text_that_is_no_utf8_is_an_error_at_its_row_alone"),
    ),
    Mutant(
        "a row group that gives fewer rows than its footer says ends in silence",
        "sources/parquet.py",
        "if sum(self._rows) != self._opened.metadata.num_rows",
        "if False",
        of("sources/test_parquet", "test_a_footer_whose_row_groups_have_not_the_rows_of_the_file_is_refused"),
    ),
    Mutant(
        "a stream whose writer was stopped ends in silence",
        "sources/arrow.py",
        "            if self._footer:\n                return None\n",
        "            return None\n",
        of("sources/test_arrow", "test_a_stream_without_the_mark_of_its_end_gives_its_rows_and_then_an_error"),
    ),
    Mutant(
        "what follows the mark of the end is not looked at",
        "sources/arrow.py",
        "if any(rest) or end + len(rest) < self._end:",
        "if False:",
        of("sources/test_arrow", "test_what_follows_the_end_of_a_stream_is_an_error"),
    ),
    Mutant(
        "damage of a footer ends the process",
        "sources/parquet.py",
        "            self._look_at(group, names)\n",
        "",
        of("sources/test_parquet", "test_a_footer_that_would_end_the_process_is_damage"),
    ),
    Mutant(
        "a shard by columns may change while it is read",
        "sources/columnar.py",
        'was edited")\n        held.look()\n',
        'was edited")\n',
        of("sources/test_columnar", "test_a_shard_that_changes_is_told_as_such_and_not_as_damage"),
    ),
    Mutant(
        "keys inside of a column of a later shard are left out",
        "blocks/schema.py",
        "(_alike(own, kind) and not _loses(own, kind))",
        "_alike(own, kind)",
        of("sources/test_columnar", "test_no_key_inside_of_a_column_is_lost"),
    ),
    Mutant(
        "a path is a glob",
        "sources/urls.py",
        "if not isinstance(url, str) or not self._is_pattern(url):",
        "if not self._is_pattern(os.fspath(url)):",
        of(
            "sources/test_urls",
            "test_a_path_is_one_file_whatever_characters_it_has_and_so_is_a_string_that_names_a_file",
        ),
    ),
    Mutant(
        "rows of a shuffled window are asked for by each window that is planned",
        "store/index.py",
        "return self._prefetched.locate(numbers) if self._remote else self._fetched(numbers)",
        "return self._fetched(numbers)",
        of("store/test_remote", "test_the_next_rows_come_while_these_are_used"),
    ),
    Mutant(
        "the next rows are asked for when they are wanted",
        "store/prefetch.py",
        "            if before is one:\n",
        "            if before is None:\n",
        of("store/test_remote", "test_the_next_rows_come_while_these_are_used"),
    ),
    Mutant(
        "a damaged side file gives rows other tokens than theirs",
        "store/local.py",
        "wrong = np.flatnonzero(expected != found)",
        "wrong = np.flatnonzero(expected < 0)",
        of("store/test_index", "test_lengths_that_are_not_those_of_the_rows_are_refused"),
    ),
    Mutant(
        "files that an interrupted writer left count as speed",
        "store/writer.py",
        "self._found += file.rows",
        "self._rows += file.rows",
        of("store/test_writer", "test_progress_is_reported"),
    ),
    Mutant(
        "an interrupted writer goes on after rows that no finished file has",
        "store/writer.py",
        "self._journal.state, self._part = after, None",
        "self._journal.state, self._part = END, None",
        of("store/test_writer", "test_a_crash_at_any_moment_costs_the_file_at_work_at_most"),
    ),
    Mutant(
        "where a store's files end goes by the blocks in which rows come",
        "store/writer.py",
        "return bisect_left(",
        "return rows.num_rows or bisect_left(",
        of("store/test_writer", "test_files_do_not_show_in_which_blocks_rows_came"),
    ),
    Mutant(
        "a row that becomes none or several takes the turn of one",
        "sources/rotation.py",
        "counts = np.concatenate([np.diff(one, prepend=0) for one in ends])",
        "counts = np.concatenate([np.ones(len(one), np.int64) for one in ends])",
        of("ray/test_spread", "test_rows_are_those_of_one_process_from_every_state_on"),
    ),
    Mutant(
        "what a piece of a shard ends with comes again from the next one",
        "sources/format.py",
        "first, rest = self.ends[:rows], self.ends[rows:] - cut",
        "first, rest = self.ends[:rows], self.ends[rows:]",
        of("ray/test_spread", "test_rows_that_were_split_are_whole_again"),
    ),
    Mutant(
        "types are guessed anew in each task",
        "blocks/typed.py",
        ", types=partial(_given, self.schema), parallel=",
        ", parallel=",
        of("ray/test_spread", "test_tasks_have_the_types_of_the_whole"),
    ),
    Mutant(
        "an interrupted writer writes rows of a block twice that a file ends within",
        "store/writer.py",
        "            self._journal.skip = skip",
        "            self._journal.skip = 0",
        of("store/test_writer", "test_a_crash_at_any_moment_costs_the_file_at_work_at_most"),
    ),
    Mutant(
        "what a writer leaves that was killed at its end stays for ever",
        "store/writer.py",
        "if not (folder / MANIFEST).exists() or (folder / LOCK).exists():",
        "if not (folder / MANIFEST).exists():",
        of("store/test_writer", "test_what_a_writer_leaves_that_was_killed_at_its_end_is_cleared_away"),
    ),
    Mutant(
        "another file is read in the place of the one that was opened",
        "store/local.py",
        "return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns",
        "return (stat.st_size,)",
        of("store/test_changed", "test_a_file_that_was_replaced_is_refused_with_both_named"),
    ),
    Mutant(
        "rows of another type are stored as if they were of the first's",
        "store/types.py",
        'pa.unify_schemas([pa.schema([("", each)]) for each in (kind, array.type)], promote_options="permissive")',
        "pass",
        of("store/test_round_trip", "test_a_column_of_two_types_is_an_error_that_names_both"),
    ),
    Mutant(
        "pages that were read stay mapped",
        "store/local.py",
        "if self._limited and resident_bytes()",
        "if not self._limited and resident_bytes()",
        of("store/test_index", "test_memory_does_not_grow_with_the_store"),
    ),
    # -- rows: where they came from, what was left out of them, and what of them is counted
    Mutant(
        "all rows of a block are of its first file",
        "core/errors.py",
        "np.ascontiguousarray(which, dtype=np.int32)",
        "np.zeros(count, dtype=np.int32)",
        of("store/test_round_trip", "test_rows_come_back"),
    ),
    Mutant(
        "as many samples as there were rows have the places of those",
        "blocks/blocks.py",
        "(parents[1:] > parents[:-1]).all()",
        "True",
        of("rows/test_flat_map", "test_as_many_samples_as_rows_have_the_places_of_their_rows"),
    ),
    Mutant(
        "what was left out elsewhere is not counted",
        "core/errors.py",
        "        count(name, number, message)\n",
        "        pass\n",
        of("test_pickle", "test_what_is_left_out_in_another_process_is_counted_and_said_here"),
    ),
    Mutant(
        "what was worked out is pickled",
        "core/once.py",
        "{field.name: getattr(description, field.name) for field in fields(description)}",
        "dict(vars(description))",
        of("core/test_once", "test_neither_what_is_worked_out_nor_its_lock_is_pickled"),
    ),
    Mutant(
        "a sample that fails is left out unsaid",
        "core/errors.py",
        'count("skipped", 1)',
        "pass",
        of("rows/test_on_error", "test_a_sample_that_fails_is_left_out_counted_and_said"),
    ),
    Mutant(
        "what a filter of indexed data skips is counted nowhere",
        "core/iterator.py",
        "self._context.run(stage.header)",
        "stage.header()",
        of("rows/test_on_error", "test_indexed_data_stay_indexed_without_the_samples_that_fail"),
    ),
    Mutant(
        "rows of two streams are counted",
        "core/stage.py",
        "count is not None and count > 1:",
        "count is not None and count > 2:",
        of("batching/test_round_robin", "test_rows_of_several_streams_are_not_counted"),
    ),
    Mutant(
        "integers stay numpy's",
        "core/errors.py",
        "isinstance(value, bool) else index(value)",
        "isinstance(value, bool) else index(value) and value",
        of("test_numbers", "test_integers_of_few_bits_do_not_wrap_around"),
    ),
    Mutant(
        "a header holds nan",
        "core/stage.py",
        "number if isfinite(number) else str(number)",
        "number",
        of("core/test_stage", "test_a_state_fits_where_a_number_is_not_finite_or_is_numpys"),
    ),
    Mutant(
        "a second EOS where it is BOS too",
        "rows/ensure_bos_eos.py",
        "bos, ends = None, begins | ends",
        "bos, ends = None, ends",
        of("rows/test_ensure_bos_eos", "test_where_both_are_one_id_one_eos_is_added_and_never_a_second"),
    ),
    Mutant(
        "the end of an empty sample is that of the one before",
        "rows/ensure_bos_eos.py",
        "some = tokens.offsets[:-1] < tokens.offsets[1:]",
        "some = tokens.offsets[:-1] <= tokens.offsets[1:]",
        of("rows/test_ensure_bos_eos", "test_the_ends_of_each_sample_are_looked_at"),
    ),
    Mutant(
        "workers hand on results as they are cut, not as they were asked for",
        "blocks/parallel.py",
        "        if last:\n            yield (blocks[0] if len(blocks) == 1 else concat(blocks)), after",
        "        if last:\n            yield (blocks[0] if len(blocks) == 1 else concat(blocks[::-1])), after",
        of("blocks/test_parallel", "test_the_results_are_those_of_one_worker_in_order"),
    ),
    Mutant(
        "what another process leaves out is not counted",
        "core/processes.py",
        "        add_counts(self.counts)\n",
        "",
        of("blocks/test_parallel", "test_what_is_left_out_is_counted_and_logged_here"),
    ),
    Mutant(
        "columns that no data set had in epoch 0 are lost",
        "blocks/several.py",
        "    if unknown := [name for name in rows.schema.names if name not in schema.names]:",
        "    if unknown := [name for name in () if name not in schema.names]:",
        of("rows/test_concat", "test_columns_of_data_that_are_empty_in_epoch_0_are_not_lost"),
    ),
    # -- to the device
    Mutant(
        "the state of an AsyncLoader is that of its loader, which read ahead",
        "device/async_loader.py",
        "if self._running is None else self._running.position)",
        "if True else self._running.position)",
        of("device/test_async_loader", "test_a_loader_of_brimfuls_is_the_same_loader_ahead"),
    ),
    Mutant(
        "a loop that is left leaves its loader where it read to",
        "device/async_loader.py",
        "                self._running = None\n                self.loader.leave_at(state)",
        "                self._running = None",
        of("device/test_async_loader", "test_loops_that_are_left_saved_and_restored_are_those_of_the_plain_loader"),
    ),
    Mutant(
        "one number a row is padded where there are as many as tokens",
        "device/bucketed.py",
        "a_number_a_row = tensor.ndim == 1 and first.ndim > 1",
        "a_number_a_row = False",
        of("device/test_async_loader", "test_one_number_a_row_is_never_padded_also_where_there_are_as_many_as_tokens"),
    ),
    Mutant(
        "a filler of a static shape is another shape",
        "batching/batch.py",
        "padded_size=batch.padded_size if batch.static else 1",
        "padded_size=1",
        of("tensors/test_on_device", "test_fillers_of_static_shapes_have_the_shape_of_the_others"),
    ),
    Mutant(
        "padding on the device begins where it does on the right",
        "tensors/structures.py",
        "if self.left:",
        "if False:",
        of("tensors/test_collate", "test_padded_batches_are_what_a_loop_makes"),
    ),
    Mutant(
        "a batch is used before its copy has arrived",
        "tensors/copies.py",
        "stream.wait_event(sent.arrives)",
        "pass",
        of(
            "tensors/test_on_device",
            "test_a_batch_is_copied_once_from_pinned_memory_and_kept_until_the_compute_has_run",
        ),
    ),
    # -- memory: a step in parts is the step, and no window is lost
    Mutant(
        "a part weighs as many samples as it has, whatever is trained on",
        "oom/weights.py",
        '"tokens": _tokens,',
        '"tokens": _samples,',
        of("oom/test_guard", "test_gradients_are_those_of_the_unsplit_step[by labels-forward-no gradients yet]"),
    ),
    Mutant(
        "gradients of parts before one that ran out of memory stay where there were none",
        "oom/guard.py",
        "parameter.grad = None\n",
        "pass\n",
        of("oom/test_guard", "test_what_parts_gave_before_one_ran_out_of_memory_does_not_count[False]"),
    ),
    Mutant(
        "a limit is forgotten for a milder one",
        "oom/limits.py",
        "if allowed is None or size < allowed:",
        "if allowed is None or size != allowed:",
        of("oom/test_limits", "test_limits_are_only_lowered_hold_what_was_learnt_and_survive_json"),
    ),
    Mutant(
        "results come in the order in which batches were run",
        "inference/inference.py",
        "[held[number] for number in range(len(held))]",
        "list(held.values())",
        of("inference/test_inference", "test_results_come_in_the_order_of_the_samples"),
    ),
    Mutant(
        "a result is read from the file before its own",
        "inference/result_index.py",
        'np.searchsorted(self._starts, numbers, side="right") - 1',
        'np.maximum(np.searchsorted(self._starts, numbers, side="left") - 1, 0)',
        of("inference/test_result_index", "test_any_rows_at_once"),
    ),
    Mutant(
        "the journal of results has the place after its last window",
        "inference/inference.py",
        "done.after(len(results), before, ",
        "done.after(len(results), batches.state_dict(), ",
        of("inference/test_inference", "test_a_run_that_stops_goes_on_with_the_window_at_work"),
    ),
    Mutant(
        "a file of results that has lost some is given as it is",
        "inference/results.py",
        "if found != rows:",
        "if not found:",
        of("inference/test_inference", "test_a_damaged_file_of_results_is_named_and_nothing_is_lost_in_silence"),
    ),
    Mutant(
        "a dict with the key 'result' is taken for a result that is no dict",
        "inference/results.py",
        "return BARE in (schema.metadata or {})",
        "return schema.names == [RESULT]",
        of("inference/test_inference", "test_results_that_parquet_would_lose_or_change_are_refused_or_kept"),
    ),
    Mutant(
        "labels of a list of samples are not seen",
        "oom/weights.py",
        "return Labels([row.values for row in found], found[0].shifted)",
        "return None",
        of("oom/test_guard", "test_labels_are_found_wherever_they_are"),
    ),
    Mutant(
        "the largest batch is found by a quotient that is rounded otherwise than the bound",
        "memory/model.py",
        "for constant, slope in pieces) * factor <= limit:",
        "for constant, slope in pieces) <= limit / factor:",
        of("memory/test_model", "test_every_batch_of_many_fits_into_its_own_bound"),
    ),
    # -- groups inside a batch
    Mutant(
        "the samples of a group lie on top of each other",
        "grouping/padded_groups.py",
        "+ position * strides[0][which]",
        "+ 0 * strides[0][which]",
        of("grouping/test_collection", "test_samples_come_back_in_their_order"),
    ),
    Mutant(
        "axes before the last ragged one are laid out as the sample has them, not as its group does",
        "grouping/padded_groups.py",
        "inside *= np.repeat(stride[which[samples]], own)",
        "inside *= np.repeat(np.roll(own, -1), own)",
        of("grouping/test_collection", "test_a_group_is_its_samples_padded_to_the_longest"),
    ),
    Mutant(
        "a mask of two dimensions shows what is in either",
        "grouping/calls.py",
        "whole & own",
        "whole | own",
        of("grouping/test_apply", "test_masks_of_two_dimensions_are_the_and_of_both"),
    ),
    Mutant(
        "a sample that a convolution would make shorter than nothing goes through",
        "grouping/measure.py",
        "if (lengths < 0).any():",
        "if (lengths < -1).any():",
        of("grouping/test_refusals", "test_results_that_do_not_fit_are_named"),
    ),
    Mutant(
        "a rule that falls where its name rises mixes samples up",
        "grouping/padded_groups.py",
        "if (lengths > widths).any():",
        "if False:",
        of("grouping/test_refusals", "test_samples_that_do_not_agree_are_named"),
    ),
    Mutant(
        "a mask of a rule that falls is cropped in silence",
        "grouping/calls.py",
        "    groups.check(dims, data.sizes)\n",
        "",
        of("grouping/test_refusals", "test_results_that_do_not_fit_are_named"),
    ),
    Mutant(
        "padding between two axes that were put together is handed out as values",
        "grouping/language.py",
        "return apart and len(names_in(rule)) < 2 and",
        "return apart and",
        of("grouping/test_refusals", "test_results_that_do_not_fit_are_named"),
    ),
    Mutant(
        "a column without a name takes the place of all others in groups",
        "tensors/grouped.py",
        "    _check_names(columns)\n",
        "",
        of("tensors/test_grouped", "test_a_column_that_dims_cannot_name_is_refused"),
    ),
    Mutant(
        "what is left of the first module stays where padding is, before the second",
        "grouping/collection_data.py",
        "return regrouped(replace(data, columns=columns), data.padded_groups)",
        "return replace(data, columns=columns)",
        of("grouping/test_apply", "test_a_second_convolution_sees_no_bias_where_there_is_padding"),
    ),
    Mutant(
        "where longer samples are cheaper, thresholds stay at the dearer length",
        "plan/groups.py",
        "cheapest[np.searchsorted(cheapest, found)]",
        "found",
        of("plan/test_groups", "test_no_other_partition_costs_less"),
    ),
    Mutant(
        "a rank's filler in groups asks for labels",
        "tensors/grouped.py",
        "if batch.weight == 0:",
        "if batch.weight == 2:",
        of("tensors/test_grouped", "test_a_rank_without_a_batch_asks_for_no_label"),
    ),
    # -- what is drawn at random
    Mutant(
        "a collate_fn draws ahead of the loop",
        "core/ahead.py",
        "AHEAD.set(True)",
        "AHEAD.set(False)",
        of("tensors/test_collate_random", "test_it_is_called_by_the_thread_that_takes_the_batch"),
    ),
    Mutant(
        "batches of a window draw alike",
        "batching/batch.py",
        "random.key(self.plan.key, self._number)",
        "self.plan.key",
        of("tensors/test_collate_random", "test_it_is_the_same_whatever_runs_ahead_while_the_loop_draws_too"),
    ),
    Mutant(
        "the loop's generators are left where a collate_fn left them",
        "core/random.py",
        "torch.random.set_rng_state(before[2])",
        "pass",
        of("tensors/test_collate_random", "test_the_loop_draws_what_it_draws_without_it"),
    ),
    Mutant(
        "a batch on a device is received by a thread that runs ahead",
        "tensors/on_device.py",
        "yield defer(one, received) if inside else received(one), after",
        "yield received(one), after",
        of("tensors/test_on_device", "test_static_buffers_are_filled_when_the_consumer_takes_the_batch"),
    ),
    Mutant(
        "an epoch of steps begins with the data again",
        "loader.py",
        "self._running = self._begun(self._place())",
        "self._running = self._begun(None)",
        of("test_loader", "test_nothing_comes_twice_or_never_where_loops_are_left_and_restored"),
    ),
    # -- integrations: what trainers count is what was trained on, and what they skip costs nothing
    Mutant(
        "a mixture of what repeats is counted to its end",
        "rows/interleave.py",
        '(all if self.stop == "first" else any)(one.endless for one in self.upstreams)',
        "False",
        of("integrations/test_transformers", "test_what_repeats_is_trained_by_epochs_of_the_data"),
    ),
    Mutant(
        "a trainer does not know that a batch is packed",
        "integrations/transformers/data.py",
        "made.segments = packed_segments(batch)",
        "made.segments = None",
        of(
            "integrations/test_transformers",
            "test_packed_batches_are_refused_for_models_that_mix_their_samples[bert]",
        ),
    ),
    Mutant(
        "samples that see each other are found apart",
        "isolation/probe.py",
        'yield _Comparison("changed", _changed(call, changed, vocabulary), kept, kept, exact)',
        'yield _Comparison("changed", call, kept, kept, exact)',
        of("isolation/test_probe", "test_a_planted_leak_is_found_at_its_layer[attention-decoder]"),
    ),
    Mutant(
        "a layer that begins with zeros hides a leak",
        "isolation/probe.py",
        "if held is module._parameters and not new.any():",
        "if False:",
        of("isolation/test_probe", "test_a_planted_leak_is_found_at_its_layer[attention-decoder]"),
    ),
    Mutant(
        "a model stays in eval mode after it was looked at",
        "isolation/probe.py",
        "holder.update(before)",
        "holder.update({**before, 'training': False})",
        of("isolation/test_probe", "test_nothing_changes"),
    ),
    Mutant(
        "segments are numbered on from row to row",
        "tensors/packed.py",
        "in_row = np.arange(len(rows_of)) - np.searchsorted(rows_of, rows_of)",
        "in_row = np.arange(len(rows_of))",
        of("tensors/test_attention", "test_segments_are_numbered_in_each_row_for_convolutions_and_state_spaces"),
    ),
    Mutant(
        "what Trainer has read for an optimizer step that was broken off counts as trained",
        "integrations/transformers/data.py",
        "self.loader.follow(lambda: self._trained)",
        "self.loader.follow(lambda: self.handed_out)",
        of("integrations/test_transformers", "test_what_was_read_for_a_broken_off_accumulation_comes_again"),
    ),
    Mutant(
        "real batches are given where Trainer passes over some after a resume",
        "integrations/transformers/adapter.py",
        "        if not self._skips:",
        "        if self._skips or not self._skips:",
        of("integrations/test_transformers", "test_other_settings_at_a_resume_are_said_and_lose_no_batch"),
    ),
    Mutant(
        "batches of an optimizer step count alike, whatever labels they have",
        "integrations/transformers/loss.py",
        "Share(count * times / total.clamp(min=1), not count)",
        "Share(torch.tensor(times / len(counts)), not count)",
        of("integrations/test_transformers", "test_accumulated_batches_are_one_batch"),
    ),
    Mutant(
        "an evaluation is the mean of its batches' means",
        "integrations/transformers/loss.py",
        "count = count.to(self._sums)",
        "count = (count > 0).to(self._sums)",
        of("integrations/test_transformers", "test_an_evaluation_weighs_by_labels_and_keeps_the_batches_order"),
    ),
    Mutant(
        "a checkpoint that is written over an older one passes for whole",
        "integrations/transformers/checkpoint.py",
        "for name in (TRAINER_FILE, FILE):",
        "for name in (FILE,):",
        of(
            "integrations/test_transformers",
            "test_a_checkpoint_that_is_written_over_an_older_one_is_none_until_it_is_whole",
        ),
    ),
    Mutant(
        "gradients that were added up and not stepped with count as trained under Lightning",
        "integrations/lightning.py",
        "return int(processed % trainer.accumulate_grad_batches)",
        "return 0",
        of("integrations/test_lightning", "test_batches_whose_gradients_were_not_stepped_with_come_again"),
    ),
    Mutant(
        "an epoch that Lightning left begins again in silence",
        "integrations/lightning.py",
        "left = None if trainer.overfit_batches else next(same, None)",
        "left = None",
        of("integrations/test_lightning", "test_an_epoch_that_was_left_does_not_begin_again"),
    ),
]


def unmutated(mutant: Mutant) -> str:
    """The file of a mutant as it is.

    Raises:
        AssertionError: the table is stale.
    """
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    found = text.count(mutant.old)
    assert found == 1, f"{mutant.file} has {found} times {mutant.old!r}; bring tests/mutants.py up to date"
    return text


Survives: TypeAlias = Callable[[Mutant], str | None]
"""None where the tests fail on a mutant, as they must; else what they said."""


@contextmanager
def forks() -> Iterator[Survives]:
    """What tries mutants, one after the other."""
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.mutants import serve; serve()"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def survives(mutant: Mutant) -> str | None:
            text = unmutated(mutant)
            with tempfile.TemporaryDirectory(prefix="brimful-mutant-") as folder:
                shutil.copytree(PACKAGE, f"{folder}/brimful")
                Path(folder, "brimful", mutant.file).write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
                print(json.dumps([folder, *mutant.tests]), file=server.stdin, flush=True)
                if not select([server.stdout], [], [], SECONDS)[0]:
                    raise TimeoutError(f"its tests take more than {SECONDS:g} s")
                code = int(server.stdout.readline())
                said = Path(folder, "said").read_text("utf-8")
            return None if code == FAILED else f"pytest exits with {code}: {said}"

        try:
            yield survives
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def serve() -> None:
    """For each line on stdin, a folder and tests, the exit code of these tests against the package in that folder."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is imported is not looked through again in each fork
    for line in sys.stdin:
        folder, *tests = json.loads(line)
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            said = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.environ |= {"PYTHONPATH": folder, "BRIMFUL_SRC": folder, "HYPOTHESIS_PROFILE": "mutant"}
            sys.path.insert(0, folder)
            code = int(sys.modules["pytest"].main([*OPTIONS, *tests]))
            sys.stdout.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def main(words: list[str]) -> int:
    survivors = 0
    with forks() as survives:
        for mutant in MUTANTS:
            if " ".join(words) in mutant.why:
                said = survives(mutant)
                survivors += said is not None
                print(f"{'SURVIVES' if said else 'killed':9} {mutant.file}: {mutant.why}", said or "", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
