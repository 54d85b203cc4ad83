"""The report as one page of HTML: no script, nothing fetched; drawings are SVG, labels are text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from brimful import __version__
from brimful.report.compare import Advice, Outcome, Report, percent
from brimful.report.steps import BATCHES_A_STEP
from brimful.report.words import duration, notes, spread_of, summary, window_of

TAGS: Final = ("recommended", "to compile", "to pack", "to train")
TEMPLATE: Final = "page.html"
TIMES: Final = "&times;"


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
    return Template(files(__package__).joinpath(TEMPLATE).read_text("utf-8")).substitute(
        title=escape(f"brimful report: {report.source}" if report.source else "brimful report"),
        summary=escape(summary(report)),
        use=escape(first.use),
        tiles=_tiles(report, report.outcomes[first.policy]),
        code=escape(first.code),
        others="\n".join(_other(advice) for advice in others),
        bars="\n".join(_bars(report, tags)),
        table=_table(report, tags),
        steps=_steps(report),
        notes="\n".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in notes(report).items()),
        spread=escape(_capital(spread_of(report))),
        histogram=_histogram(report),
        panels="\n".join(_panel(outcome, report) for outcome in report.outcomes),
        version=__version__,
    )


def _tiles(report: Report, chosen: Outcome) -> str:
    random = report.outcomes[0]
    tiles = [
        (_number(percent(chosen.padding)), "of all slots are padding"),
        (f"{chosen.batches:,}", f"batches of {chosen.tokens_per_batch:,.0f} real tokens"),
    ]
    if chosen is not random:
        tiles[0] = tiles[0][0], f"padding; {percent(random.padding)} in random batches"
        less = random.work / chosen.work
        tiles.insert(1, (f"{less:.1f}<small> {TIMES}</small>", "less arithmetic than random batches"))
    return "\n".join(f"<p><strong>{number}</strong>{text}</p>" for number, text in tiles)


def _number(text: str) -> str:
    number, _, unit = text.partition(" ")
    return f"{number}<small> {unit}</small>"


def _other(advice: Advice) -> str:
    return (
        f"<section><h3>{escape(advice.when.rstrip(', '))}</h3>"
        f"<p>Use <code>{escape(advice.use)}</code>: {escape(advice.why)}.</p>"
        f"<pre><code>{escape(advice.code)}</code></pre></section>"
    )


def _bars(report: Report, tags: dict[int, str]) -> Iterable[str]:
    most = max(max(outcome.padding for outcome in report.outcomes), 1e-9)
    for place, outcome in enumerate(report.outcomes):
        tag = f'<span class="tag">{tags[place]}</span>' if place in tags else ""
        yield (
            f'<div>{escape(outcome.name)}</div><div class="muted">{window_of(outcome, report)}</div>'
            f'<div class="bar"><i style="--share:{outcome.padding / most:.4f}"></i>{_padding(outcome)}{tag}</div>'
        )


def _padding(outcome: Outcome) -> str:
    return f'<data value="{outcome.padding!r}">{outcome.padding * 100:.2f} %</data>'


def _table(report: Report, tags: dict[int, str]) -> str:
    names = ["policy", "window", "padding", "batches", "shapes", "tokens/batch", "cost", "compiling"]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for place, outcome in enumerate(report.outcomes):
        compiling = outcome.shapes * report.settings.compile_seconds
        values = [
            (outcome.batches, f"{outcome.batches:,}"),
            (outcome.shapes, f"{outcome.shapes:,}{'<sup>*</sup>' * outcome.too_many_shapes}"),
            (outcome.tokens_per_batch, f"{outcome.tokens_per_batch:,.0f}"),
            (outcome.cost, f"{outcome.cost:.2f} {TIMES}"),
            (compiling, duration(compiling)),
        ]
        cells = "".join(f'<td><data value="{value!r}">{text}</data></td>' for value, text in values)
        chosen = ' class="chosen"' if place in tags else ""
        rows.append(
            f"<tr{chosen}><td>{escape(outcome.name)}</td><td>{window_of(outcome, report)}</td>"
            f"<td>{_padding(outcome)}</td>{cells}</tr>"
        )
    body = "\n".join(rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _steps(report: Report) -> str:
    head = "".join(f"<th>{number} batch{'es' * (number > 1)} a step</th>" for number in BATCHES_A_STEP)
    rows = []
    for outcome in report.outcomes:
        cells = "".join(f'<td><data value="{share!r}">{share * 100:.1f} %</data></td>' for share in outcome.between)
        rows.append(f"<tr><td>{escape(outcome.name)}</td><td>{window_of(outcome, report)}</td>{cells}</tr>")
    body = "\n".join(rows)
    return f"<table><thead><tr><th>policy</th><th>window</th>{head}</tr></thead><tbody>{body}</tbody></table>"


# -- drawings: a bin is 1 wide and the highest 100 high, stretched to the room there is ------------------------------------


def _histogram(report: Report) -> str:
    shares = [count / report.lengths.samples for count in report.lengths.counts]
    step = _step(max(shares))
    top = -(-max(shares) // step) * step
    lines = [step * number for number in range(round(top / step) + 1)]
    ticks = "".join(f'<span style="bottom:{line / top:.2%}">{line * 100:g} %</span>' for line in lines)
    grid = "".join(_line(100 - 100 * line / top, len(shares), "grid" if line else "base") for line in lines)
    bars = "".join(
        _rect(place, 0, 100 * share / top, "real", f"{_range(report.edges, place)}: {share:.1%} of the samples")
        for place, share in enumerate(shares)
    )
    return (
        f'<div class="y">{ticks}</div>{_svg(grid + bars, len(shares), "histogram of lengths")}'
        f'{_ticks(report.edges, 8)}<div class="unit">tokens of a sample</div>'
    )


def _panel(outcome: Outcome, report: Report) -> str:
    edges = report.edges
    high, slots = max(outcome.slots_at), sum(outcome.slots_at)
    bars = []
    for place, (all_slots, real) in enumerate(zip(outcome.slots_at, outcome.tokens_at)):
        if all_slots:
            text = f"{_range(edges, place)}: {all_slots / slots:.1%} of the slots, {1 - real / all_slots:.1%} of them padding"
            bars.append(_rect(place, 0, 100 * real / high, "real", text))
            bars.append(_rect(place, 100 * real / high, 100 * (all_slots - real) / high, "pad", text))
    drawing = _svg("".join(bars) + _line(100, len(edges) - 1, "base"), len(edges) - 1, f"batches of {outcome.name}")
    window = window_of(outcome, report)
    return (
        f"<figure><figcaption><span>{escape(outcome.name)}<small>{window and 'window ' + window}</small></span>"
        f"{_padding(outcome)}</figcaption>{drawing}{_ticks(edges, 2)}</figure>"
    )


def _svg(inner: str, bins: int, label: str) -> str:
    return f'<svg viewBox="0 0 {bins} 100" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{inner}</svg>'


def _rect(place: int, below: float, height: float, kind: str, text: str) -> str:
    return (
        f'<rect class="{kind}" x="{place + 0.08:.2f}" width=".84" y="{100 - below - height:.2f}" height="{height:.2f}">'
        f"<title>{text}</title></rect>"
    )


def _line(y: float, width: int, kind: str) -> str:
    return f'<line class="{kind}" x1="0" x2="{width}" y1="{y:.2f}" y2="{y:.2f}"/>'


def _ticks(edges: Sequence[int], most: int) -> str:
    """Labels of some edges, under the bins; where there are two bins to an octave, of powers of two."""
    bins = len(edges) - 1
    step = 1 if bins <= most else 2 * -(-bins // (2 * most))
    places = list(range(0, bins + 1, step))
    if bins - places[-1] > 0.75 * step:
        places.append(bins)
    spans = (
        f'<span{" class=end" * (place == bins)} style="left:{place / bins:.2%}">{edges[place]:,}</span>'
        for place in places
    )
    return f'<div class="x">{"".join(spans)}</div>'


def _range(edges: Sequence[int], place: int) -> str:
    first, last = edges[place] + (place > 0), edges[place + 1]
    return f"{first:,} to {last:,} tokens" if first < last else f"{last:,} tokens"


def _step(most: float) -> float:
    """A round distance of 3 to 6 lines up to a share."""
    size = 10.0**-6
    while True:
        for factor in (1, 2, 5):
            if factor * size * 5 >= most:
                return factor * size
        size *= 10


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
