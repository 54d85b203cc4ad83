"""`brimful memory probe` and `fit`: peaks of a user's own step, and the model of them that sizes batches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module, util
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich import box
from rich.table import Column, Table

from brimful import from_files
from brimful.cli.options import ClearCommand, FormatName
from brimful.console import stdout
from brimful.memory import MemoryModel, Peaks, spread_shapes
from brimful.memory.peaks import Meter, measured


def probe(
    target: Annotated[
        str,
        typer.Argument(
            help="FILE.py:FUNCTION or MODULE:FUNCTION; function(device) gives (step, make_batch).", metavar="TARGET"
        ),
    ],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to choose from.", metavar="N,N,...")],
    lengths: Annotated[str, typer.Option(help="Padded lengths to choose from, in tokens.", metavar="L,L,...")],
    target_lengths: Annotated[
        str, typer.Option(help="Padded target lengths, where a sample has two.", metavar="L,L,...")
    ] = "",
    count: Annotated[int, typer.Option(help="How many shapes to measure, as different as they come.")] = 8,
    device: Annotated[
        str, typer.Option(help="Where to run; fake: nowhere, on tensors without values.", metavar="cuda|cpu|fake")
    ] = "cuda",
    output: Annotated[Path, typer.Option(help="The peaks, a line of JSON each.", metavar="PATH")] = Path("peaks.jsonl"),
) -> None:
    """Measure the peak memory of a training or inference step at a few shapes.

    step(batch) runs it; make_batch(batch_size, length) makes its batch. What runs
    out of memory is noted and left. brimful memory fit makes a model of the peaks.
    On fake tensors a model is made with device=, as it cannot be moved by .to().

    Example: brimful memory probe train.py:build --batch-sizes 1,4,16 --lengths 128,256,512
    """
    numbers = [_numbers("--batch-sizes", batch_sizes), _numbers("--lengths", lengths)]
    if target_lengths:
        numbers.append(_numbers("--target-lengths", target_lengths))
    shapes = np.array(list(product(*numbers)))
    chosen = shapes[spread_shapes(shapes, count=count)]
    peaks = measured(_meter(_function(target), device), chosen)
    output.write_text("".join(json.dumps(row) + "\n" for row in peaks.rows()), "utf-8")
    _show(peaks, output)


def fit(
    peaks: Annotated[
        list[str],
        typer.Argument(
            help="Rows of batch, length (and target_length) and peak_bytes: JSONL, CSV or parquet, of probes or a log."
        ),
    ],
    format: FormatName = "auto",
    output: Annotated[Path, typer.Option(help="The model, as JSON.", metavar="PATH")] = Path("memory.json"),
    limit_gb: Annotated[
        float | None, typer.Option(help="Also print the largest batches within so many GB (10^9 bytes).", metavar="GB")
    ] = None,
    risk: Annotated[float, typer.Option(help="The share of full batches that may exceed it.")] = 0.025,
) -> None:
    """Fit a model of peak memory, for bf.memory.MemoryModel.load(PATH).

    Example: brimful memory fit peaks.jsonl --limit-gb 24
    """
    rows = list(from_files(peaks, format=format))
    names = ["batch", "length"] + ["target_length"] * ("target_length" in (rows[0] if rows else {}))
    if missing := [name for name in (*names, "peak_bytes") if rows and name not in rows[0]]:
        raise ValueError(f"{', '.join(peaks)} has no column {missing[0]!r} (columns: {', '.join(rows[0])})")
    shapes = np.array([[int(row[name]) for name in names] for row in rows]).reshape(len(rows), len(names))
    model = MemoryModel.fit(shapes, [row["peak_bytes"] for row in rows])
    model.save(output)
    console = stdout()
    console.print(f"{model}\nbf.MemoryModel.load({str(output)!r}) reads it", soft_wrap=True)
    if limit_gb is not None:
        largest_of = Column(f"largest batch within {limit_gb:g} GB at risk {risk:g}", justify="right")
        table = Table(Column("length", justify="right"), largest_of, Column(style="dim"), box=box.SIMPLE)
        for length in dict.fromkeys(tuple(shape[1:]) for shape in sorted(shapes.tolist())):
            largest = model.largest_batch(length[0] if len(length) == 1 else length, limit_gb * 1e9, risk=risk)
            measured_to = int(shapes[(shapes[:, 1:] == length).all(axis=1), 0].max())
            beyond = f"beyond what was measured, {measured_to:,}: probe near it" if largest > measured_to else ""
            table.add_row(" and ".join(f"{one:,}" for one in length), f"{largest:,}", beyond)
        console.print(table)


def _meter(build: Callable[[str], Any], device: str) -> Meter:
    from brimful.memory.device import as_device, meter_on  # which import torch
    from brimful.memory.fake import estimator_of

    if device == "fake":
        return estimator_of(build)
    try:
        as_device(device)
    except ValueError as error:
        raise ValueError(f"{error}: here --device fake") from None
    built = build(device)
    if not isinstance(built, tuple) or len(built) != 2:
        raise ValueError(f"TARGET must return (step, make_batch) (got {type(built).__name__})")
    return meter_on(device, *built)


def _numbers(option: str, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{option} must be numbers with commas between them (got {text!r})")
    return sorted({int(part) for part in parts})


def _function(target: str) -> Callable[[str], Any]:
    """The function that FILE.py:FUNCTION or MODULE:FUNCTION names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"TARGET must be FILE.py:FUNCTION or MODULE:FUNCTION (got {target!r})")
    sys.path.insert(0, os.path.dirname(os.path.abspath(place)) if place.endswith(".py") else os.getcwd())
    if place.endswith(".py"):
        spec = util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None or not Path(place).is_file():
            raise ValueError(f"there is no file {place}")
        module = util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        try:
            module = import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"module {place} cannot be imported: {error}") from error
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{place} has no function {name!r}")
    function: Callable[[str], Any] = getattr(module, name)
    return function


def _show(peaks: Peaks, output: Path) -> None:
    table = Table(*(Column(title, justify="right") for title in ("batch", "length", "peak")), box=box.SIMPLE)
    found = [(shape, f"{peak / 1e6:,.1f} MB") for shape, peak in zip(peaks.shapes.tolist(), peaks.peak_bytes.tolist())]
    for (batch, *lengths), peak in [*found, *((shape, "out of memory") for shape in peaks.out_of_memory.tolist())]:
        table.add_row(f"{batch:,}", " and ".join(f"{length:,}" for length in lengths), peak)
    console = stdout()
    console.print(table)
    console.print(f"{output} has the peaks; brimful memory fit {output} makes a model of them", soft_wrap=True)


peaks: Final = typer.Typer(help="Peak memory: measured, and modelled.", no_args_is_help=True, add_completion=False)
peaks.command(cls=ClearCommand)(probe)
peaks.command(cls=ClearCommand)(fit)
