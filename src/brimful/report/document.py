"""The report as a plain document, for programs."""

from __future__ import annotations

from typing import Any

from brimful.report.compare import RECOMPILE_LIMIT, Outcome, Report
from brimful.report.steps import BATCHES_A_STEP


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON; numbers are not rounded.

    Keys:
        source: what the lengths are of, in words. more: whether there were more samples than were looked at.
        settings: max_tokens, batch_size, row_length, max_length, hidden_size, compile_seconds; recompile_limit is torch's.
        lengths: samples, tokens (in all), mean, median, p99 and longest (tokens of a sample), at_max_length (samples that
            are cut to max_length, or just as long), counts (samples in each bin).
        edges: of the bins, in tokens: bin i is from edges[i] + 1 to edges[i + 1]; the first holds lengths of 0 too.
        policies: a list, in the order of the table; in each: name; code, the line that makes such batches of `dataset`;
            window, in samples (null: none), and window_auto, whether the loader chose it; padding, a share of the slots;
            batches; shapes, how many distinct ones, and too_many_shapes, whether they exceed recompile_limit;
            tokens_per_batch, real ones, mean; work, arithmetic of an epoch, counted in tokens; cost, that relative to the
            least; compile_seconds, for all shapes; slots_at and tokens_at, slots and real tokens of the batches whose
            padded length is in each bin; between, how much of the variance of lengths lies between optimizer steps of so many
            batches ("1", "2", "4", "8"), a share.
        advice: a list, the first for everybody; in each: sentence; code; policy, the place in `policies` (0 is the first).
    """
    settings = report.settings
    return {
        "source": report.source,
        "more": report.more,
        "settings": {**vars(settings), "recompile_limit": RECOMPILE_LIMIT},
        "lengths": {**report.lengths._asdict(), "counts": list(report.lengths.counts)},
        "edges": list(report.edges),
        "policies": [_policy(outcome, settings.compile_seconds) for outcome in report.outcomes],
        "advice": [
            {"sentence": advice.sentence, "code": advice.code, "policy": advice.policy} for advice in report.advice
        ],
    }


def _policy(outcome: Outcome, compile_seconds: float) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "code": outcome.code,
        "window": outcome.window,
        "window_auto": outcome.auto,
        "padding": outcome.padding,
        "batches": outcome.batches,
        "shapes": outcome.shapes,
        "too_many_shapes": outcome.too_many_shapes,
        "tokens_per_batch": outcome.tokens_per_batch,
        "work": outcome.work,
        "cost": outcome.cost,
        "compile_seconds": outcome.shapes * compile_seconds,
        "slots_at": list(outcome.slots_at),
        "tokens_at": list(outcome.tokens_at),
        "between": dict(zip(map(str, BATCHES_A_STEP), outcome.between)),
    }
