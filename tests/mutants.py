"""Known ways to break resume, budgets and order: the tests must fail on each of them.

    .venv/bin/python -m tests.mutants [words of a reason]

A fault is put into a function or a method of ours, and the tests named beside it run against it, in a process of their own
(`tests.trials`). It wraps what is there: it loses a row, forgets a number, swallows an error. So it says nothing of how the
function is written, and where the function moves, one path changes. `tools/mutate.py` samples the faults that nobody thinks of.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

import brimful
from brimful.core.stage import END
from tests.trials import FAILED, ROOT, Trials, trials

SECONDS: Final = 180.0
Function: TypeAlias = Callable[..., Any]
Break: TypeAlias = Callable[[Function], Function]
"""Makes of a function as it is the faulty one."""


class Mutant(NamedTuple):
    """A fault.

    Args:
        why: what goes wrong, in words.
        where: a room or a module, and what is in it: `brimful.rows:Take.items`. It is looked for in the whole room.
        how: what is done to it.
        tests: of which one must fail.
    """

    why: str
    where: str
    how: Break
    tests: tuple[str, ...]


def law(*stages: str) -> tuple[str, ...]:
    return tuple(f"tests/test_law.py::test_law_of_each_stage[{stage}]" for stage in stages)


def of(module: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{module}.py::{test}" for test in tests)


ORACLE: Final = of("test_oracle", "test_random_pipelines_hold_what_plain_python_says[0]")
LOOPS: Final = of("test_weighed", "test_random_loops_train_on_each_sample_once[0]")


# -- how things break ----------------------------------------------------------------------------------------------------


def does(nothing: Any = None) -> Break:
    """It does nothing, and says so."""
    return lambda was: lambda *given, **named: nothing


def gives(change: Function) -> Break:
    """It gives another result."""
    return lambda was: lambda *given, **named: change(was(*given, **named))


def instead(new: Function) -> Break:
    """Something else stands in its place."""
    return lambda was: new


def takes(change: Callable[..., tuple[Any, ...]]) -> Break:
    """It gets other arguments."""
    return lambda was: lambda *given, **named: was(*change(*given), **named)


def says(change: Function) -> Break:
    """A stage gives each item with another state; the end stays the end."""

    def broken(was: Function) -> Function:
        def items(*given: Any) -> Iterator[Any]:
            for item, state in was(*given):
                yield item, state if state == END else change(state)

        return items

    return broken


def late(was: Function) -> Function:
    """A stage gives each item with the state before it."""

    def items(stage: Any, at: Any, *given: Any) -> Iterator[Any]:
        for item, state in was(stage, at, *given):
            yield item, state if state == END else at
            at = state

    return items


def forgotten(state: Any) -> Any:
    """A state whose own numbers are 0, but not those of the stage below it."""
    if isinstance(state, dict):
        return {name: 0 if isinstance(value, int) else value for name, value in state.items()}
    return [0 if isinstance(value, int) else value for value in state]


def ends_at(error: str) -> Break:
    """What would raise this error ends there, as if nothing followed."""

    def broken(was: Function) -> Function:
        def items(*given: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from was(*given, **named)
            except Exception as caught:
                if type(caught).__name__ != error:
                    raise

        return items

    return broken


def with_field(name: str, change: Function) -> Function:
    """For `takes`: a description with another value of a field."""
    return lambda self, *given: (replace(self, **{name: change(getattr(self, name))}), *given)


def with_part(name: str, change: Function) -> Function:
    """For `gives`: a dict with another value of a key, if it has that."""
    return lambda made: made | {name: change(made[name])} if name in made else made


MUTANTS: Final = (
    # -- states: the place after the item, all of it
    Mutant("rows that were taken are not counted", "brimful.rows:Take.items", says(forgotten), law("rows.Take")),
    Mutant("a chunk comes again", "brimful.rows:ConcatChunk.items", late, law("rows.ConcatChunk")),
    Mutant("the rows of a mixture come again", "brimful.rows:Interleave.items", late, law("rows.Interleave")),
    Mutant("the samples of a block begin anew", "brimful.rows:Unbatch.items", says(forgotten), law("rows.Unbatch")),
    Mutant("the rows of a shard come again", "brimful.sources:FromFiles.items", late, law("sources.FromFiles")),
    Mutant("every epoch is the first", "brimful.core:Repeat.items", says(forgotten), law("core.Repeat")),
    Mutant("a window has no number", "brimful.batching:Buffered.items", says(forgotten), law("batching.Buffered")),
    Mutant("a window of an index comes again", "brimful.batching:Planned.items", late, law("batching.Planned")),
    Mutant("a shuffle begins anew", "brimful.batching:Shuffle.items", says(forgotten), law("batching.Shuffle")),
    Mutant("a batch comes again", "brimful.batching:Batched.items", late, law("batching.Batched")),
    Mutant("a round of streams comes again", "brimful.batching:RoundRobin.items", late, law("batching.RoundRobin")),
    Mutant(
        "the states of ranks are that of the first",
        "brimful.core:joined",
        instead(lambda states: states[0]),
        of("core/test_states", "test_entries_of_streams_are_checked_one_by_one_and_merged_as_they_are"),
    ),
    Mutant(
        "nobody hears how many batches a trainer has used",
        "brimful.core:Consumed.follow",
        does(),
        of("core/test_consumed", "test_a_loop_that_was_left_goes_back_to_what_was_used"),
    ),
    Mutant(
        "the state of an AsyncLoader is that of its loader, which read ahead",
        "brimful.async_loader:AsyncLoader.state_dict",
        instead(lambda self: self.loader.state_dict()),
        of("test_async_loader", "test_a_loader_of_brimfuls_is_the_same_loader_ahead"),
    ),
    Mutant(
        "a store is written anew from its last file on",
        "brimful.store:Journal.save",
        takes(lambda self: (replace(self, skip=self.skip + 1),)),
        of("store/test_writer", "test_a_crash_at_any_moment_costs_what_was_not_noted"),
    ),
    Mutant(
        "what the window at work has is not written",
        "brimful.inference:OpenWindow.write",
        does(),
        of("inference/test_inference", "test_a_run_that_stops_loses_the_batch_at_work_alone"),
    ),
    # -- refusals: what differs, or is damaged, goes on in silence
    Mutant(
        "a damaged position is taken",
        "brimful.core:_checksum",
        does(0),
        of("core/test_states", "test_a_damaged_state_is_refused_in_words"),
    ),
    Mutant(
        "any header will do",
        "brimful.core:check_header",
        does(),
        of("core/test_stage", "test_a_state_of_another_pipeline_is_refused_by_name"),
    ),
    Mutant(
        "rows that are read again are not compared",
        "brimful.tables:difference",
        does(""),
        of("core/test_stage", "test_an_edited_shard_is_refused"),
    ),
    Mutant(
        "the last row of a block has no checksum",
        "brimful.tables:RowChecksums.add",
        takes(lambda self, block: (self, block.slice(0, max(0, block.num_rows - 1)))),
        of("tables/test_checksums", "test_checksums_are_of_the_rows_however_they_are_cut_and_kept"),
    ),
    Mutant(
        "a failed iterator goes on",
        "brimful.core:ResumableIterator.__next__",
        lambda was: lambda self: (vars(self).update(_error=None), was(self))[1],
        of("core/test_iterator", "test_an_exception_breaks_the_iterator_for_ever"),
    ),
    Mutant(
        "a filter may answer otherwise at a resume",
        "brimful.index:SelectedIndex.crc32",
        does(0),
        of("index/test_algebra", "test_a_random_function_is_refused_with_both_sides_named"),
    ),
    Mutant(
        "the longer of two data sets side by side loses its rest",
        "brimful.rows:Zip.items",
        ends_at("DataError"),
        of("rows/test_zip", "test_one_that_ends_before_another_is_an_error_with_both_counts"),
    ),
    Mutant(
        "a sample that fails is not counted",
        "brimful.core:skipped",
        does(),
        of("rows/test_on_error", "test_a_sample_that_fails_is_left_out_counted_and_said"),
    ),
    Mutant(
        "a shard may change while it is read",
        "brimful.sources:LocalFile.compare",
        does(),
        of("sources/test_bytes", "test_a_shard_that_grows_is_an_error_after_the_rows_that_it_had"),
    ),
    Mutant(
        "replies may be of two contents of an object",
        "brimful.sources:ObjectStore.check",
        does(),
        of("sources/test_http", "test_an_object_that_is_replaced_where_only_what_is_sent_bears_a_tag_is_refused"),
    ),
    Mutant(
        "integers are rounded in columns of floats",
        "brimful.tables:rows_rounded",
        gives(lambda found: found[:0]),
        of("sources/test_jsonl", "test_an_integer_that_a_float_would_round_is_refused_with_its_line"),
    ),
    Mutant(
        "text that is no UTF-8 goes on",
        "brimful.sources:damaged_rows",
        gives(lambda found: {}),
        of("sources/test_columnar", "test_text_that_is_no_utf8_is_an_error_at_its_row_alone"),
    ),
    Mutant(
        "a damaged file of a store passes",
        "brimful.store:SidecarFile.check",
        does(),
        of("store/test_verify", "test_a_flipped_bit"),
    ),
    Mutant(
        "other tokens than the tokenizer's go on",
        "brimful.encoding:Engine._compare",
        does(),
        of("encoding/test_engines", "test_other_tokens_than_the_tokenizers_are_an_error"),
    ),
    Mutant(
        "any text is cut into words",
        "brimful.encoding.splittable:why_not",
        does(None),
        of("encoding/test_splittable", "test_what_makes_other_tokens_of_pieces_is_left_to_the_tokenizer"),
    ),
    Mutant(
        "who waits for a rank that failed is not told",
        "brimful.batching:Rendezvous.fail",
        does(),
        of("batching/test_round_robin", "test_a_rank_that_fails_is_named_by_all_others_after_what_came_before"),
    ),
    Mutant(
        "a batch may be held while its buffers are filled again",
        "brimful.core:refuse_static_buffers",
        does(),
        of("integrations/test_buffers", "test_whoever_holds_a_batch_while_the_next_is_made_refuses"),
    ),
    Mutant(
        "samples that see each other are found apart",
        "brimful.isolation:_Comparison.difference",
        does(0.0),
        of("isolation/test_probe", "test_a_planted_leak_is_found_at_its_layer[attention-decoder]"),
    ),
    # -- order
    Mutant(
        "all epochs, windows and streams draw alike",
        "brimful.plan.random:key",
        takes(lambda *parts: parts[:1]),
        of("test_data_order", "test_data_order_is_what_it_was"),
    ),
    Mutant(
        "a short last window stays alone",
        "brimful.plan:rest_rows",
        does(0),
        of("test_data_order", "test_data_order_is_what_it_was"),
    ),
    Mutant(
        "what a source is owed is forgotten where the weights change",
        "brimful.plan:owed_after",
        gives(lambda owed: [0] * len(owed)),
        of("plan/test_schedule", "test_counts_follow_the_schedule_at_each_place_small_weights_too"),
    ),
    Mutant(
        "a stream follows the whole schedule, and not its part",
        "brimful.plan:Schedule.of_stream",
        instead(lambda self, *given: self),
        of("plan/test_schedule", "test_streams_each_follow_their_part"),
    ),
    Mutant(
        "a rank takes the batch of the one before",
        "brimful.batching:resolve",
        gives(lambda rank: rank._replace(rank=(rank.rank - 1) % rank.world_size)),
        ORACLE,
    ),
    Mutant(
        "a hash depends on the place of its row",
        "brimful.tables:column_hashes",
        gives(lambda found: found + np.arange(len(found), dtype=np.uint64)),
        of("rows/test_train_valid_split", "test_equal_samples_are_on_one_side_also_in_several_streams"),
    ),
    Mutant(
        "a random function leaves the generators of the loop elsewhere",
        "brimful.plan:seeded",
        does(nullcontext()),
        of("tensors/test_collate_random", "test_it_is_the_same_whatever_runs_ahead_while_the_loop_draws_too"),
    ),
    # -- limits
    Mutant(
        "a batch may be one token above its budget",
        "brimful.plan:TokenBudget.plan",
        takes(with_field("max_tokens", lambda most: most + 1)),
        of("plan/test_budget", "test_greedy_makes_the_least_number_of_batches"),
    ),
    Mutant(
        "parts may have more tokens than their limit",
        "brimful.plan:balance",
        lambda was: lambda *given, max_tokens=None, **named: was(*given, **named),
        of("integrations/test_rl", "test_the_limit_is_kept_where_work_would_be_more_equal_without"),
    ),
    Mutant(
        "a batch may be one sample larger than memory allows",
        "brimful.memory:MemoryModel.largest_batch",
        gives(lambda batch: batch + 1),
        of("memory/test_model", "test_the_largest_batch_is_the_last_whose_bound_is_within_the_limit"),
    ),
    Mutant(
        "a guard learns nothing from a batch that ran out of memory",
        "brimful.oom:Limits.learn",
        does(),
        of("oom/test_guard", "test_the_limit_stays_and_survives_a_restart"),
    ),
    Mutant(
        "time ends no block of a slow function",
        "brimful.rows:Pace.rows",
        does(4096),
        of("rows/test_pace", "test_a_slow_function_gets_100_ms_of_work_at_once"),
    ),
    # -- tensors, labels and weights
    Mutant(
        "a mask shows padding",
        "brimful.arrays.padded:Padded.item",
        gives(with_part("attention_mask", lambda mask: mask | 1)),
        ORACLE,
    ),
    Mutant(
        "positions go on over the samples of a row",
        "brimful.arrays.packed:PackedLayout.item",
        gives(
            with_part("position_ids", lambda places: np.broadcast_to(np.arange(places.shape[1]), places.shape).copy())
        ),
        ORACLE,
    ),
    Mutant(
        "packed samples see those before them",
        "brimful.tensors:document_mask",
        gives(lambda mask: torch.ones_like(mask).tril()),
        of("tensors/test_attention", "test_a_packed_batch_is_its_samples_alone"),
    ),
    Mutant(
        "what a mask hides is packed",
        "brimful.tables:unmasked",
        instead(lambda block, columns: block),
        of("tables/test_unmasked", "test_what_is_hidden_is_not_there"),
    ),
    Mutant(
        "all that is said trains, whoever says it",
        "brimful.encoding:labelled",
        gives(lambda made: [one._replace(trained=np.arange(len(one.tokens)) > 0) for one in made]),
        of("rows/test_chat", "test_what_the_assistant_says_is_trained_on_and_the_end_of_its_turn"),
    ),
    Mutant(
        "a filler weighs as much as a batch",
        "brimful.arrays:Collated.finished",
        gives(with_part("weight", lambda weight: 1.0)),
        LOOPS,
    ),
    Mutant(
        "copies up to a static shape count",
        "brimful.tensors:row_weights",
        does(None),
        of("tensors/test_weights", "test_copies_count_for_nothing"),
    ),
    Mutant(
        "samples without a label stay in their batch",
        "brimful.batching:Batch.without",
        instead(lambda self, places: self),
        of("arrays/test_unlabelled", "test_drop_makes_padding_of_packed_pieces"),
    ),
    Mutant(
        "labels of a step are not counted",
        "brimful.batching:counted",
        gives(lambda found: [None] * len(found)),
        of("batching/test_sharded", "test_every_batch_knows_the_labels_of_its_step"),
    ),
    Mutant(
        "parts of a batch weigh the same, whatever they train on",
        "brimful.oom:Weights.of_parts",
        gives(lambda weight: weight and (lambda part: 1.0)),
        of("oom/test_guard", "test_gradients_are_those_of_the_unsplit_step"),
    ),
    Mutant(
        "gradients of a step that failed stay",
        "brimful.oom:_Gradients.put_back",
        does(),
        of("oom/test_guard", "test_what_parts_gave_before_one_ran_out_of_memory_does_not_count"),
    ),
    Mutant(
        "batches of an optimizer step count alike, whatever labels they have",
        "brimful.integrations:shares",
        gives(lambda found: [one._replace(scale=torch.ones(())) for one in found]),
        of("integrations/test_transformers", "test_accumulated_batches_are_one_batch"),
    ),
    Mutant(
        "the rows of a group come back in another order",
        "brimful.grouping:unpadded",
        takes(lambda groups, places, dims: (groups, places[::-1].copy(), dims)),
        of("grouping/test_collection", "test_samples_come_back_in_their_order"),
    ),
    Mutant(
        "results come in the order in which batches were run",
        "brimful.inference:_in_order",
        gives(lambda windows: ((window, sorted(results, key=repr), state) for window, results, state in windows)),
        of("inference/test_inference", "test_results_come_in_the_order_of_the_samples"),
    ),
)


# -- where they are put in -----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A name in a module or a class, and what it stands for."""

    owner: Any
    name: str
    was: Any


def place_of(where: str) -> Place:
    """Where a fault is put in.

    Raises:
        AssertionError: the table is stale.
    """
    room, _, path = where.partition(":")
    first, _, method = path.partition(".")
    found = [
        module for module in modules(room) if getattr(vars(module).get(first), "__module__", "") == module.__name__
    ]
    assert len(found) == 1, f"{where}: {len(found)} modules define {first}; bring tests/mutants.py up to date"
    owner: Any = found[0] if not method else getattr(found[0], first)
    name = method or first
    was = inspect.getattr_static(owner, name, None)
    assert was is not None, f"{where}: there is no {name}; bring tests/mutants.py up to date"
    return Place(owner, name, was)


def modules(room: str) -> list[ModuleType]:
    """A module, or all of a room."""
    module = importlib.import_module(room)
    inside = pkgutil.walk_packages(getattr(module, "__path__", ()), f"{room}.")
    return [module, *(importlib.import_module(one.name) for one in inside if not one.name.endswith("__main__"))]


def put_in(why: str) -> None:
    """Puts a fault into this process, under every name that a module of ours has for the function."""
    mutant = next(one for one in MUTANTS if one.why == why)
    owner, name, was = place_of(mutant.where)
    if isinstance(was, staticmethod | classmethod):
        new: Any = type(was)(mutant.how(was.__func__))
    elif isinstance(was, property):
        assert was.fget is not None
        new = property(mutant.how(was.fget))
    elif isinstance(was, functools.cached_property):
        new = type(was)(mutant.how(was.func))
        new.__set_name__(owner, name)
    else:
        new = functools.wraps(was)(mutant.how(was))
    setattr(owner, name, new)
    for module in [one for key, one in sys.modules.items() if key.partition(".")[0] == "brimful"]:
        for key, value in [*vars(module).items()]:
            if value is was:
                setattr(module, key, new)


def check(mutant: Mutant) -> None:
    """Refuses a fault whose function, or one of whose tests, is not there.

    Raises:
        AssertionError: the table is stale.
    """
    place_of(mutant.where)
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^def {name.partition('[')[0]}\(", text, re.MULTILINE), f"{test} is not there"


def survives(mutant: Mutant, within: Trials) -> str | None:
    """None where the tests fail on a fault, as they must; else what they said."""
    code, said = within.run(mutant.tests, SECONDS, fault=mutant.why)
    if code != FAILED:
        return f"pytest exits with {code}: {said}"
    own = re.search(rf"{re.escape(__file__)}:\d+: .*", said)
    return f"the fault does not fit its function any longer: {own[0]}" if own else None


@contextmanager
def faulty() -> Iterator[Trials]:
    """Trials of faults: what all of them import is imported once."""
    ours = [
        one.name for one in pkgutil.walk_packages(brimful.__path__, "brimful.") if not one.name.endswith("__main__")
    ]
    with trials("tests.mutants", *ours) as own:
        yield own


def main(words: list[str]) -> int:
    survivors = 0
    with faulty() as within:
        for mutant in MUTANTS:
            if " ".join(words) in mutant.why:
                said = survives(mutant, within)
                survivors += said is not None
                print(f"{'SURVIVES' if said else 'killed':9} {mutant.where}: {mutant.why}", said or "", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
