"""The report as a document: JSON for programs; for people one page of HTML, without a script, nothing fetched, drawn in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from brimful import __version__
from brimful.report.compare import BATCHES_A_STEP, RECOMPILE_LIMIT, Outcome, Report, percent

TAGS = ("recommended", "to compile", "to pack")


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON; numbers are not rounded.

    Keys:
        source: what the lengths are of, in words. more: whether there were more samples than were looked at.
        settings: max_tokens, batch_size, row_length, max_length, hidden_size, compile_seconds; recompile_limit is torch's.
        lengths: samples, tokens (in all), mean, median, p99 and longest (tokens of a sample), at_max_length (samples that
            are cut to max_length, or just as long), over_max_tokens (samples that are longer than max_tokens, and planned as if
            they were cut there), uncut_longest (the longest before any cut), counts (samples in each bin).
        edges: of the bins, in tokens: bin i is from edges[i] + 1 to edges[i + 1]; the first holds lengths of 0 too.
        policies: a list, in the order of the table; in each: name; code, the line that makes such batches of `dataset`;
            window, in samples (null: none), and window_auto, whether the loader chose it; padding, a share of the slots;
            batches; shapes, how many distinct ones, and too_many_shapes, whether they exceed recompile_limit;
            tokens_per_batch, real ones, mean; work, arithmetic of an epoch, counted in tokens; cost, that relative to the
            least; compile_seconds, for all shapes; slots_at and tokens_at, slots and real tokens of the batches whose
            padded length is in each bin; between, how much of the variance of lengths lies between optimizer steps of so many
            batches ("1", "2", "4", "8"), a share.
        advice: a list, the first for everybody, and the only one where there are too few batches to compare; in each: sentence;
            code; policy, the place in `policies` (0 is the first).
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
    figures = outcome._asdict()
    figures["window_auto"] = figures.pop("auto")
    return figures | {
        "too_many_shapes": outcome.too_many_shapes,
        "compile_seconds": outcome.shapes * compile_seconds,
        "slots_at": list(outcome.slots_at),
        "tokens_at": list(outcome.tokens_at),
        "between": dict(zip(map(str, BATCHES_A_STEP), outcome.between)),
    }


def to_html(report: Report) -> str:
    """A page that is whole in itself, light or dark as the reader's system is.

    >>> from brimful.report.compare import compare
    >>> to_html(compare([5, 9, 7])).count("<figure>")
    10
    """
    first, *others = report.advice
    tags: dict[int, str] = {}
    for advice, tag in zip(report.advice, TAGS):
        tags.setdefault(advice.policy, tag)
    page = Environment(loader=PackageLoader("brimful.report", ""), autoescape=True, undefined=StrictUndefined)
    page.globals |= {
        each.__name__: each for each in (duration, notes, over_budget, percent, share_of, summary, window_of)
    }
    shares = [count / report.lengths.samples for count in report.lengths.counts]
    return page.get_template("page.html").render(
        report=report,
        title=f"brimful report: {report.source}" if report.source else "brimful report",
        first=first,
        others=others,
        tags=tags,
        random=report.outcomes[0],
        chosen=report.outcomes[first.policy],
        most_padding=max(1e-9, *(outcome.padding for outcome in report.outcomes)),
        BATCHES_A_STEP=BATCHES_A_STEP,
        spread=spread_of(report),
        shares=shares,
        lines=_lines(max(shares)),
        ticks=_ticks,
        range_of=_range,
        version=__version__,
    )


def _ticks(edges: Sequence[int], most: int) -> list[int]:
    """The edges that are labelled under the bins; where there are two bins to an octave, powers of two."""
    bins = len(edges) - 1
    step = 1 if bins <= most else 2 * -(-bins // (2 * most))
    places = list(range(0, bins + 1, step))
    return [*places, bins] if bins - places[-1] > 0.75 * step else places


def _range(edges: Sequence[int], place: int) -> str:
    first, last = edges[place] + (place > 0), edges[place + 1]
    return f"{first:,} to {last:,} tokens" if first < last else f"{last:,} tokens"


def _lines(most: float) -> list[float]:
    """3 to 6 lines at round shares, from 0 to the least one that is not below `most`."""
    sizes = (factor * 10.0**power for power in range(-6, 2) for factor in (1, 2, 5))
    step = next(size for size in sizes if size * 5 >= most)
    return [step * number for number in range(-int(-most // step) + 1)]


# -- sentences that terminal and page share -------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time in its largest unit.

    >>> duration(30), duration(240), duration(12_990), duration(400_000)
    ('30 s', '4 min', '3.6 h', '4.6 days')
    """
    for size, unit, digits in ((86_400, "days", 1), (3_600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size or (unit != "days" and seconds >= size):
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def window_of(outcome: Outcome, report: Report) -> str:
    """The window in samples, and whether the loader chose it."""
    if outcome.window is None:
        return ""
    size = "all" if outcome.window == report.lengths.samples else f"{outcome.window:,}"
    return f"auto: {size}" if outcome.auto else size


def share_of(share: float) -> str:
    """A share for a table.

    >>> share_of(0.123)
    '12.3 %'
    """
    return f"{share * 100:.1f} %"


def summary(report: Report) -> str:
    """The number of samples and tokens, and their source."""
    spread = report.lengths
    which = f"the first {spread.samples:,} samples" if report.more else f"{spread.samples:,} samples"
    return f"{which}, {spread.tokens:,} tokens{report.source and ': ' + report.source}"


def spread_of(report: Report) -> str:
    """The lengths of the samples."""
    spread, cut = report.lengths, ""
    if report.settings.max_length is None:
        cut = "; none is cut" if not spread.over_max_tokens else ""
    elif spread.at_max_length:
        cut = f"; {percent(spread.at_max_length / spread.samples)} are cut there, or just as long"
    return (
        f"mean {spread.mean:,.0f} tokens, median {spread.median:,}, 99 % have at most {spread.p99:,}, "
        f"longest {spread.longest:,}{cut}"
    )


def over_budget(report: Report) -> str:
    """How many samples are longer than a batch, and the ways out; "" where none is."""
    spread, most = report.lengths, report.settings.max_tokens
    if not spread.over_max_tokens:
        return ""
    many = spread.over_max_tokens > 1
    return (
        f"{spread.over_max_tokens:,} sample{'s are' if many else ' is'} longer than --max-tokens {most:,} "
        f"({percent(spread.over_max_tokens / spread.samples)}; the longest has {spread.uncut_longest:,}) and "
        f"fit{'' if many else 's'} no batch: this report cuts {'them' if many else 'it'} there. Do the same with "
        f"--max-length {most} (tokenize(max_length={most:_}) in Python), or raise --max-tokens."
    )


def notes(report: Report) -> dict[str, str]:
    """Notes on the columns, by the name of the column."""
    settings = report.settings
    limit = duration(RECOMPILE_LIMIT * settings.compile_seconds)
    most = max(report.outcomes, key=lambda outcome: outcome.shapes)
    worst = (
        f" and {most.shapes:,} take {duration(most.shapes * settings.compile_seconds)}" if most.too_many_shapes else ""
    )
    fewest_slots = next(outcome.code for outcome in report.outcomes if outcome.name == "least padding")
    return {
        "policy": f"least padding is {fewest_slots}. --json has the call of each policy.",
        "window": "brimful sorts so many samples together. auto is the window that the loader takes for 1 % padding.",
        "tokens/batch": f"real tokens. --max-tokens {settings.max_tokens:,} counts padding too.",
        "cost": (
            "the arithmetic of an epoch, relative to the least of the table. A batch of B rows padded to L costs "
            f"B L (1 + L / (6 x {settings.hidden_size:,})). The part with L squared is attention, for a model of width "
            f"{settings.hidden_size:,}. In packed rows it counts within samples. The fixed cost of a step is left out, so "
            "of two policies of equal cost, the one with fewer batches is faster."
        ),
        "steps": (
            "the share of the variance of lengths that lies between optimizer steps of 1, 2, 4 or 8 batches. Random "
            "batches have nearly none. Steps of one length slow training down. micro_batches= gives each step several "
            "batches, short and long."
        ),
        "shapes": (
            f"* marks more than {RECOMPILE_LIMIT} shapes. torch.compile(dynamic=False) gives up there (recompile_limit) and "
            "runs eagerly. Eager code and dynamic=True run any number of shapes. "
            f"At {settings.compile_seconds:g} s a shape, {RECOMPILE_LIMIT} shapes take {limit}{worst}."
        ),
    }
