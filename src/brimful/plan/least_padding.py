"""Cuts of a sorted window with the fewest slots: dynamic programmes over the places where a batch may start.

A boundary inside a run of equal lengths can move towards the longer ones at no cost until it meets the start of the
run, or until the batch that it begins is full. So it is enough to try the starts of runs, the places from which a full
batch ends at a place already tried, and so on.
"""

from __future__ import annotations

import numpy as np

from brimful.plan.cut import MaxRows, cut_greedy, rows_at
from brimful.plan.plan import IntArray

_MOST_PLACES = 256  # that `cut_fewest` tries for one boundary; text in windows of 10,000 has 10 to 100
_PLACES_PER_BATCH = 8  # beyond which `cut_priced` looks for no more: within .1 % of the least cost

_IMPOSSIBLE = np.iinfo(np.int64).max


def cut_fewest(padded: IntArray, rows: MaxRows) -> IntArray:
    """The fewest slots that the least number of batches allows.

    With that number fixed, a boundary lies between the first place from which the batches left suffice and the
    greedy cut. These ranges do not overlap, so that the programme is one small matrix a batch: 30 us.
    """
    reach = np.arange(len(padded)) + rows_at(padded, rows)
    begins_run = np.diff(padded, prepend=-1) != 0
    places, slots = np.array([len(padded)]), np.zeros(1, np.int64)
    layers = []
    for latest in cut_greedy(padded, rows)[::-1].tolist():
        ends, begins_full = places, np.searchsorted(reach, places)
        earliest = begins_full[0]
        of_use = begins_run[earliest : latest + 1].copy()
        of_use[begins_full - earliest] = True
        of_use[-1] = True
        places = _thinned(earliest + np.flatnonzero(of_use))
        totals = padded[places, None] * (ends - places[:, None]) + slots
        totals[ends > reach[places, None]] = _IMPOSSIBLE
        choices = totals.argmin(axis=1)
        slots = totals[np.arange(len(places)), choices]
        layers.append((places, choices))
    starts, at = [], 0
    for places, choices in reversed(layers):
        starts.append(places[at])
        at = choices[at]
    return np.array(starts, dtype=np.int64)


def cut_priced(padded: IntArray, rows: MaxRows, step_tokens: int) -> IntArray:
    """The fewest slots where each batch counts as `step_tokens` slots more.

    f(j) = min over i of f(i) + step_tokens + padded_i (j - i), j - i <= rows_i: 4 us a place.
    """
    places = _places(padded, rows)
    slopes = padded[np.minimum(places, len(padded) - 1)]
    first = np.searchsorted(places + rows_at(slopes, rows), places).tolist()
    bases = step_tokens - slopes * places  # a batch from place i to position p: f(p) = bases[i] + slopes[i] * p
    choices = [0]
    for j, position in enumerate(places[1:].tolist(), start=1):
        totals = slopes[first[j] : j] * position
        totals += bases[first[j] : j]
        choice = int(totals.argmin())
        bases[j] += totals[choice]
        choices.append(first[j] + choice)
    cut = [choices[-1]]
    while cut[-1]:
        cut.append(choices[cut[-1]])
    return places[cut[::-1]]


def _places(padded: IntArray, rows: MaxRows) -> IntArray:
    """Where `cut_priced` may begin a batch, and the end: in a small window all that are of use, in a large one the first."""
    reach = np.arange(len(padded)) + rows_at(padded, rows)
    greedy = cut_greedy(padded, rows)
    tried = np.zeros(len(padded) + 1, dtype=bool)
    new = np.concatenate([np.flatnonzero(np.diff(padded, prepend=-1)), greedy, [len(padded)]])
    while len(new):
        tried[new] = True
        if np.count_nonzero(tried) > _PLACES_PER_BATCH * len(greedy):
            break
        begins_full = np.searchsorted(reach, new)
        new = begins_full[~tried[begins_full]]
    return np.flatnonzero(tried)


def _thinned(places: IntArray) -> IntArray:
    """At most `_MOST_PLACES` of them, the first and the last included."""
    if len(places) <= _MOST_PLACES:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST_PLACES).astype(np.int64)]
