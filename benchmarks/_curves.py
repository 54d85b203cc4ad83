"""Curves as an SVG, with nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN, LEGEND = 460, 300, 48, 150
COLOURS = """
#222222 #b2182b #ef8a62 #fdb863 #5aae61 #1b7837 #4393c3 #2166ac #762a83 #9970ab #01665e #35978f #bf812d #8c510a #c51b7d #de77ae
"""


class Curve(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def drawn(panels: Mapping[str, Sequence[Curve]]) -> str:
    """Panels of curves, two in a row, a legend of its names beside each row; a name has the same colour in all."""
    names = list(dict.fromkeys(curve.name for curves in panels.values() for curve in curves))
    palette = COLOURS.split()
    colours = {name: palette[number % len(palette)] for number, name in enumerate(names)}
    rows = -(-len(panels) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + LEGEND} {rows * HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, curves) in enumerate(panels.items()):
        parts.append(
            f'<g transform="translate({number % 2 * WIDTH},{number // 2 * HEIGHT})">{_panel(title, curves, colours)}</g>'
        )
    for row in range(rows):
        beside = {curve.name: None for curves in list(panels.values())[2 * row : 2 * row + 2] for curve in curves}
        for number, name in enumerate(beside):
            y = row * HEIGHT + MARGIN + 15 * number
            parts.append(
                f'<rect x="{2 * WIDTH + 4}" y="{y - 8}" width="14" height="3" fill="{colours[name]}"/>'
                f'<text x="{2 * WIDTH + 24}" y="{y - 3}">{escape(name)}</text>'
            )
    return "".join(parts) + "</svg>\n"


def _panel(title: str, curves: Sequence[Curve], colours: Mapping[str, str]) -> str:
    xs, ys = zip(*(point for curve in curves for point in curve.points))
    right, low, high = max(xs), min(ys), max(ys)
    wide, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + wide * x / (right or 1), MARGIN + tall * (high - y) / ((high - low) or 1)

    parts = [f'<text x="{MARGIN}" y="{MARGIN - 14}" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        x, y = right * step / 4, low + (high - low) * step / 4
        (across, bottom), (_, up) = place(x, low), place(0, y)
        parts.append(
            f'<path d="M{MARGIN},{up:.1f}h{wide}" stroke="#dddddd"/>'
            f'<text x="{MARGIN - 6}" y="{up + 4:.1f}" text-anchor="end">{y:.2f}</text>'
            f'<text x="{across:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{x:,.0f}</text>'
        )
    for curve in curves:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[curve.name]}" stroke-width="1.5"/>')
    return "".join(parts)
