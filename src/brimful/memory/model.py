"""A model of peak memory: bytes as a function of batch size and padded length, with a bound that holds at a given risk."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.core.atomic import write_atomically
from brimful.memory.growth import Floats, coefficients, per_sample, pieces_of, terms, triangle
from brimful.memory.margin import Margin
from brimful.memory.peaks import checked_shapes
from brimful.plan.budget import largest
from brimful.plan.errors import finite, integer, one_of, positive
from brimful.plan.memory import Length, checked_risk
from brimful.plan.once import once, settings_of

Unit = Literal["bytes", "relative"]

SHORT: Final = 1 / 8
"""Of the length of the first batch: where a model `from_first_peak` says loosely what shorter samples take."""

_FORMAT: Final = "brimful memory model 1"
_FOLDS: Final = 16  # in which peaks are left out in turn to see how far a fit without them is off


class Growth(NamedTuple):
    """How the growth of peaks differs from run to run: what one peak says of others, before more are known.

    Args:
        rate: a sample of L tokens takes 1 + rate x L, as runs do in the middle.
        weight: what this counts as beside a measured peak: how far peaks are off their run, by how far runs are off each other.
    """

    rate: float
    weight: float


@dataclass(frozen=True, repr=False)
class MemoryModel:
    """Peak bytes of a step by batch size and padded length, learnt from measured peaks. It is immutable, and small for
    any number of peaks.

    For each length the peak is convex and piecewise affine in the batch (`growth.py`). It never falls when a batch or a
    length grows. Beyond the longest measured length, a sample grows with its square. Below the shortest, it shrinks in
    proportion at most. No set of terms that explains the peaks costs more. Beyond the largest batch the peak is affine.
    Probe the worst shapes that you expect.

    Make one with `fit`, `load` or `pretrained`.

    Args:
        pieces: for each piece, a triangle of numbers that least squares need to know of its peaks.
        margin: the errors of its predictions.
        lengths: (shortest, longest) of each length.
        batches: (smallest, largest).
        unit: "bytes", or "relative" if only the ratio of two predictions has a meaning.
        growth: how runs differ, which `from_first_peak` needs.
    Price: fit 5 ms for 8 peaks, .2 s for 10,000. `refined` .3 ms a peak. A prediction 30 us, a largest batch 70 us.
        JSON of 1 kB, and 10 bytes for each half per cent in which there are errors.
    Source: the convex fit is Magnani and Boyd's (2009), the bound is split conformal prediction (Vovk and others,
        2005).
    Example:
        >>> shapes = [(1, 64), (8, 64), (4, 128), (2, 256), (8, 256), (1, 512), (8, 512), (4, 512)]
        >>> model = MemoryModel.fit(shapes, [10**6 + batch * (2000 * length + length**2) for batch, length in shapes])
        >>> round(model.predict(16, 512))
        21578304
        >>> model.largest_batch(512, 24e6, risk=0.01), model.largest_batch(128, 24e6)
        (16, 80)
        >>> model
        MemoryModel(8 peaks, batches 1 to 8, lengths 64 to 512; at risk 2.5 % peaks are up to 5.2 % above)
    """

    pieces: tuple[tuple[tuple[float, ...], ...], ...]
    margin: Margin
    lengths: tuple[tuple[int, int], ...]
    batches: tuple[int, int]
    unit: Unit = field(default="bytes", kw_only=True)
    growth: Growth | None = field(default=None, kw_only=True)

    @classmethod
    def fit(cls, shapes: ArrayLike, peak_bytes: ArrayLike) -> MemoryModel:
        """Fits a model to these peaks, from probes or from a log.

        To learn how sure it is, it leaves out each peak and predicts it. With many peaks it leaves out a sixteenth of
        them at a time.

        Args:
            shapes: (n, 2): batch size and padded length; (n, 3): batch size, source and target length.
            peak_bytes: (n,).
        Raises:
            ValueError: there are fewer than 2 peaks. Or all have one batch size above 1, which cannot show the memory
                of a sample.
        Example:
            >>> shapes = [(1, 64), (8, 64), (4, 128), (8, 256), (1, 512), (8, 512)]
            >>> model = MemoryModel.fit(shapes, [10**6 + batch * 2000 * length for batch, length in shapes])

            >>> round(model.predict(4, 256)), model.unit
            (3048000, 'bytes')
        """
        batches, lengths, peaks = _checked(shapes, peak_bytes)
        if len(peaks) < 2:
            raise ValueError(f"fit needs at least 2 peaks (got {len(peaks)}); 8 of different shapes do well")
        smallest, largest = int(batches.min()), int(batches.max())
        if smallest == largest > 1:
            raise ValueError(
                f"fit needs at least 2 batch sizes (got {len(peaks):,} peaks of batch {smallest:,}): one cannot tell what a "
                "sample adds to what is there anyway; probe batch 1 too"
            )
        rows = terms(batches, lengths)
        pieces = pieces_of(rows, peaks, smallest < largest)
        known = cls(_triangles(rows, peaks, pieces), Margin(), _ranges(lengths), (smallest, largest))
        folds = min(_FOLDS, len(peaks))
        errors: list[float] = []
        for fold in range(folds):
            left_out = np.arange(len(peaks)) % folds == fold
            kept = [part[~left_out[part]] for part in pieces]
            partly = replace(known, pieces=_triangles(rows, peaks, [part for part in kept if len(part)]))
            predicted = partly._by_piece(batches[left_out], lengths[left_out]).max(axis=1)
            errors += np.log(peaks[left_out] / predicted).tolist()
        return replace(known, margin=Margin.of(errors))

    def refined(self, shapes: ArrayLike, peak_bytes: ArrayLike) -> MemoryModel:
        """Adds these peaks to the model. It predicts each peak before it learns it, in the order given.

        Args:
            shapes, peak_bytes: as for `fit`. One peak is enough.
        Raises:
            ValueError: shapes have another number of lengths. Or peaks are in bytes and the model is `relative` (call
                `anchored` first).
        Example:
            >>> shapes = [(1, 64), (8, 64), (4, 128), (8, 256), (1, 512), (8, 512)]
            >>> model = MemoryModel.fit(shapes, [10**6 + batch * 2000 * length for batch, length in shapes])

            >>> refined = model.refined([(16, 512)], [20 * 10**6])
            >>> [round(one.predict(16, 512) / 1e6, 1) for one in (model, refined)]
            [17.4, 18.4]
        """
        if self.unit == "relative":
            raise ValueError(
                "this model knows peaks only relative to one another; give it bytes by anchored(...) first"
            )
        batches, lengths, peaks = _checked(shapes, peak_bytes)
        if lengths.shape[1] != len(self.lengths):
            raise ValueError(f"this model takes {_shape(self.num_lengths)} (got {_shape(lengths.shape[1])})")
        model = self
        for row in range(len(peaks)):
            model = model._with(batches[row : row + 1], lengths[row : row + 1], peaks[row : row + 1])
        return model

    def anchored(self, batch: int, length: Length, peak_bytes: float) -> MemoryModel:
        """The same model in bytes, scaled so that it predicts exactly `peak_bytes` for this shape.

        Example:
            >>> model = MemoryModel.pretrained()
            >>> known = model.anchored(8, 256, 2 * 10**9)
            >>> model.unit, known.unit, round(known.predict(8, 256)), known.largest_batch(256, 4 * 10**9)
            ('relative', 'bytes', 2000000000, 7)
        """
        scale = positive("peak_bytes", peak_bytes) / self.predict(batch, length)
        pieces = np.array(self.pieces)
        pieces[:, :, :-1] /= scale  # a row is divided by its peak
        return replace(self, pieces=tuple(map(_tuples, pieces)), unit="bytes")

    def from_first_peak(self, batch: int, length: int, peak_bytes: float) -> MemoryModel:
        """A model in bytes that knows this peak. It knows only roughly how other shapes grow from it (`growth`), and
        later peaks teach it.
        Example:
            >>> model = MemoryModel.pretrained()
            >>> known = model.from_first_peak(8, 256, 2 * 10**9)
            >>> known.unit, known.growth == model.growth, round(known.predict(8, 256) / 1e9, 2)
            ('bytes', True, 2.0)
        """
        assert self.growth is not None
        sizes, lengths = np.array([1.0, 2, 1, 2]) * batch, np.array([[1.0], [1], [SHORT], [SHORT]]) * length
        samples = 1 + self.growth.rate * lengths[:, 0]
        peaks = positive("peak_bytes", peak_bytes) * sizes * samples / (batch * samples[0])
        rows = terms(sizes, lengths)
        known = triangle(rows[:1], peaks[:1], self.growth.weight * triangle(rows[1:], peaks[1:]))
        return MemoryModel((_tuples(known),), Margin(), ((length, length),), (batch, 2 * batch), growth=self.growth)

    @property
    def num_lengths(self) -> int:
        """1, or 2 if a sample has a source and a target.

        Example:
            >>> pairs = MemoryModel.fit([(1, 8, 4), (4, 16, 8), (8, 16, 4)], [1500, 3000, 4000])
            >>> MemoryModel.pretrained().num_lengths, pairs.num_lengths
            (1, 2)
        """
        return len(self.lengths)

    def predict(self, batch: int, length: Length) -> float:
        """The expected peak, in bytes. Half of all peaks lie above it.

        Example:
            >>> shapes = [(1, 64), (8, 64), (4, 128), (8, 256), (1, 512), (8, 512)]
            >>> model = MemoryModel.fit(shapes, [10**6 + batch * 2000 * length for batch, length in shapes])

            >>> [round(model.predict(batch, 256)) for batch in (1, 4, 16)]
            [1512000, 3048000, 9192000]
        """
        return float(self._by_piece(*_shapes([batch], [length], self.num_lengths)).max())

    def bound(self, batch: int, length: Length, *, risk: float = 0.025) -> float:
        """A peak, in bytes, that real peaks exceed with at most this risk.

        Example:
            >>> model = MemoryModel.fit([(1, 64), (8, 64), (4, 128), (8, 256)], [1.1e6, 2.1e6, 2.2e6, 5.0e6])
            >>> bounds = [model.bound(4, 256, risk=risk) for risk in (0.1, 0.025)]
            >>> [round(peak / 1e6, 1) for peak in (model.predict(4, 256), *bounds)]
            [3.1, 4.6, 6.0]
        """
        return self.predict(batch, length) * self.margin.factor(checked_risk("risk", risk))

    def largest_batch(self, length: Length, limit_bytes: float, *, risk: float = 0.025) -> int:
        """The largest batch whose bound at this risk is within the limit. 0 if a single sample exceeds it.

        A longer length never has a larger batch. If the peak does not grow with the batch, the result is 2^40.
        Example:
            >>> shapes = [(1, 64), (8, 64), (4, 128), (8, 256), (1, 512), (8, 512)]
            >>> model = MemoryModel.fit(shapes, [10**6 + batch * 2000 * length for batch, length in shapes])

            >>> [model.largest_batch(length, 5e6) for length in (128, 256, 512, 4096)]
            [14, 7, 3, 0]
        """
        factor = self.margin.factor(checked_risk("risk", risk))
        limit = finite("limit_bytes", limit_bytes)
        _, lengths = _shapes([1], [length], self.num_lengths)
        pieces = list(zip(self._coefficients[:, 0].tolist(), self._samples(lengths)[0].tolist()))
        # By the very numbers of `bound`: a quotient is off by as much as limit and constant have in common.
        return largest(lambda batch: max(constant + batch * slope for constant, slope in pieces) * factor, limit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as JSON, all or nothing.

        Example:
            >>> import tempfile
            >>> model = MemoryModel.fit([(1, 64), (8, 64)], [1.1e6, 2.1e6])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save(f"{folder}/model.json")
            ...     json.loads(Path(folder, "model.json").read_text())["batches"]
            [1, 8]
        """
        write_atomically(Path(path), json.dumps(self.to_json(), indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MemoryModel:
        """The model that `save` wrote.

        Raises:
            ValueError: the file holds no model.
        Example:
            >>> import tempfile
            >>> model = MemoryModel.fit([(1, 64), (8, 64)], [1.1e6, 2.1e6])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save(f"{folder}/model.json")
            ...     MemoryModel.load(f"{folder}/model.json") == model
            True
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text("utf-8")))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)} holds no memory model: {error or type(error).__name__}") from error

    @classmethod
    def pretrained(cls) -> MemoryModel:
        """A model if you have no peaks yet: relative peaks of `generate` with encoder-decoder and decoder models.

        It compares a peak with that of a first batch. Use it `anchored` to that peak, or with the `reference` of a
        `MemoryBudget`. Its bounds hold for each of these kinds of models: they are those of the kind whose peaks lie
        farthest above. So at a risk well below 10 %, batches hardly grow. A kind that is unlike all of them may
        exceed them more often.

        Source: 26,336 peaks of 78 runs of NLLB-600M, opus-mt and ALMA-7B of the dynabatch project, fitted by
            benchmarks/memory_profiles.py.
        Example:
            >>> model = MemoryModel.pretrained()
            >>> round(model.predict(8, 512) / model.predict(8, 256), 2)
            1.67
        """
        return cls.from_json(json.loads(files("brimful.memory").joinpath("pretrained.json").read_text("utf-8")))

    def to_json(self) -> dict[str, Any]:
        """All that the model knows, as plain JSON.

        Example:
            >>> saved = MemoryModel.fit([(1, 64), (8, 64)], [1.1e6, 2.1e6]).to_json()
            >>> saved["format"], saved["unit"], saved["batches"], saved["lengths"]
            ('brimful memory model 1', 'bytes', [1, 8], [[64, 64]])
        """
        return {
            "format": _FORMAT,
            "unit": self.unit,
            "batches": list(self.batches),
            "lengths": [list(ends) for ends in self.lengths],
            "pieces": [[list(row) for row in piece] for piece in self.pieces],
            "errors": [list(pair) for pair in self.margin.counts],
            "squared_errors": self.margin.squares,
            **({"care": list(self.margin.risk_adjustment)} if self.margin.risk_adjustment else {}),
            **({"growth": list(self.growth)} if self.growth else {}),
        }

    @classmethod
    def from_json(cls, saved: Any) -> MemoryModel:
        """The model that `to_json` described.

        Raises:
            ValueError, KeyError, TypeError: the JSON holds no model.
        Example:
            >>> model = MemoryModel.fit([(1, 64), (8, 64)], [1.1e6, 2.1e6])
            >>> MemoryModel.from_json(json.loads(json.dumps(model.to_json()))) == model
            True
        """
        if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        one_of("unit", saved["unit"], *get_args(Unit))
        lengths = tuple(
            (integer("a length", low, None), integer("a length", high, None)) for low, high in saved["lengths"]
        )
        width = terms(np.ones(1), np.ones((1, len(lengths)))).shape[1] + 1
        pieces = np.array(saved["pieces"], dtype=np.float64)
        if pieces.shape[1:] != (width, width) or not len(pieces) or not np.isfinite(pieces).all():
            raise ValueError(f"its pieces must have the shape (n, {width}, {width}) and be finite (got {pieces.shape})")
        ranges = [saved["batches"], *saved["lengths"]]
        if not all(1 <= low <= high for low, high in ranges):
            raise ValueError(f"its batches and lengths must be ranges from 1 on (got {ranges})")
        smallest, largest = saved["batches"]
        return cls(
            tuple(map(_tuples, pieces)),
            Margin.from_json(saved["errors"], saved["squared_errors"], saved.get("care", ())),
            lengths,
            (integer("a batch", smallest, 1), integer("a batch", largest, 1)),
            unit=saved["unit"],
            growth=_growth(*saved["growth"]) if "growth" in saved else None,
        )

    def fingerprint(self) -> str:
        """The model in a few words, for the header of a state. Two different models have different fingerprints.

        Example:
            >>> model = MemoryModel.fit([(1, 64), (8, 64)], [1.1e6, 2.1e6])
            >>> model.fingerprint() == model.refined([(4, 64)], [1.6e6]).fingerprint()
            False
        """
        digest = sha256(json.dumps(self.to_json()).encode()).hexdigest()[:16]
        return f"{len(self.margin):,} peaks, {digest}"

    def __getstate__(self) -> dict[str, Any]:
        return settings_of(self)

    def __repr__(self) -> str:
        lengths = " and ".join(f"{low:,} to {high:,}" for low, high in self.lengths)
        above = 100 * (self.margin.factor(0.025) - 1)
        return (
            f"MemoryModel({len(self.margin):,} peaks, batches {self.batches[0]:,} to {self.batches[1]:,}, lengths {lengths}; "
            f"at risk 2.5 % peaks are up to {above:.1f} % above)"
        )

    @once
    def _coefficients(self) -> Floats:
        """(pieces, terms)."""
        constant = self.batches[0] < self.batches[1]
        return np.array([coefficients(np.array(piece), constant) for piece in self.pieces])

    def _samples(self, lengths: Floats) -> Floats:
        """The bytes that a sample of these lengths (n, d) adds in each piece, (n, pieces)."""
        low, high = np.array(self.lengths, dtype=np.float64).T
        shares = self._coefficients[:, 1:].T
        inside = per_sample(np.clip(lengths, low, high)) @ shares
        grown = np.maximum((lengths / high).max(axis=1), 1.0) ** 2
        shrunk = np.minimum((lengths / low).max(axis=1), 1.0)
        found: Floats = np.maximum(per_sample(lengths) @ shares, inside * (grown * shrunk)[:, None])
        return found

    def _by_piece(self, batches: Floats, lengths: Floats) -> Floats:
        """The prediction of each piece, (n, pieces), for batches (n,) of lengths (n, d): the highest one counts."""
        found: Floats = self._coefficients[:, 0] + batches[:, None] * self._samples(lengths)
        return found

    def _with(self, batches: Floats, lengths: Floats, peaks: Floats) -> MemoryModel:
        """The model after one more peak, which the piece learns that is highest there."""
        rows = terms(batches, lengths)
        predicted = self._by_piece(batches, lengths)
        highest = int(predicted.argmax())
        grown = _tuples(triangle(rows, peaks, np.array(self.pieces[highest])))
        error = float(np.log(peaks[0] / predicted[0, highest]))
        ranges = zip(self.lengths, _ranges(lengths))
        return replace(
            self,
            pieces=(*self.pieces[:highest], grown, *self.pieces[highest + 1 :]),
            margin=self.margin.after(error),
            lengths=tuple((min(low, one), max(high, other)) for (low, high), (one, other) in ranges),
            batches=(min(self.batches[0], int(batches[0])), max(self.batches[1], int(batches[0]))),
        )


def _triangles(
    rows: Floats, peaks: Floats, pieces: list[NDArray[np.int64]]
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(_tuples(triangle(rows[part], peaks[part])) for part in pieces)


def _tuples(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _ranges(lengths: Floats) -> tuple[tuple[int, int], ...]:
    return tuple(zip(lengths.min(axis=0).astype(int).tolist(), lengths.max(axis=0).astype(int).tolist()))


def _growth(rate: Any, weight: Any) -> Growth:
    if finite("a rate of growth", rate) < 0:
        raise ValueError(f"a rate of growth must be at least 0 (got {rate})")
    return Growth(float(rate), positive("a weight of growth", weight))


def _shape(num_lengths: int) -> str:
    return "(batch, length)" if num_lengths == 1 else "(batch, source length, target length)"


def _shapes(batches: Any, lengths: Any, num_lengths: int) -> tuple[Floats, Floats]:
    """Batches (n,) and lengths (n, d), checked."""
    found = np.asarray(lengths, dtype=np.float64)
    found = found[:, None] if found.ndim == 1 else found
    if found.shape[1] != num_lengths:
        raise ValueError(f"this model takes {_shape(num_lengths)} (got {_shape(found.shape[1])})")
    if found.min() < 1 or min(batches) < 0:
        raise ValueError(f"a shape must have lengths of at least 1 (got batch {min(batches)}, length {found.min():g})")
    return np.asarray(batches, dtype=np.float64), found


def _checked(shapes: ArrayLike, peak_bytes: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Batches (n,), lengths (n, d) and peaks (n,)."""
    table, peaks = checked_shapes(shapes).astype(np.float64), np.asarray(peak_bytes, dtype=np.float64)
    if peaks.shape != table.shape[:1]:
        raise ValueError(f"peak_bytes must have one peak a shape, ({len(table)},) (got {peaks.shape})")
    if bad := [row for row, peak in enumerate(peaks.tolist()) if not 0 < peak < float("inf")]:
        raise ValueError(f"a peak must be positive and finite (peak {bad[0]:,} is {peaks[bad[0]]})")
    return table[:, 0], table[:, 1:], peaks
