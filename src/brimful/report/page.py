"""The report as one page of HTML: no script, nothing fetched; drawings are SVG, labels are text."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from brimful import __version__
from brimful.report.compare import Report, percent
from brimful.report.steps import BATCHES_A_STEP
from brimful.report.words import duration, notes, spread_of, summary, window_of

TAGS = ("recommended", "to compile", "to pack", "to train")


def to_html(report: Report) -> str:
    """A page that is whole in itself, light or dark as the reader's system is.

    >>> from brimful.report import compare
    >>> to_html(compare([5, 9, 7])).count("<figure>")
    12
    """
    first, *others = report.advice
    tags: dict[int, str] = {}
    for advice, tag in zip(report.advice, TAGS):
        tags.setdefault(advice.policy, tag)
    page = Environment(loader=PackageLoader("brimful.report", ""), autoescape=True, undefined=StrictUndefined)
    page.globals |= {each.__name__: each for each in (duration, notes, percent, summary, window_of)}
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
