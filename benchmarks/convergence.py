"""What an optimizer step is made of, and what that does to the loss: at equal real tokens a step, and at equal seconds.

    python benchmarks/convergence.py                                          ten minutes on two quiet cores
    python benchmarks/convergence.py --tasks causal masked classes --seeds 3  forty
    python benchmarks/convergence.py --tokens 2400000 --step-tokens 3400 --width 96   all of the text: hours
    python benchmarks/convergence.py --results runs.json --plot runs.svg      what is in runs.json is not run again

WikiText-2 from ../shared/data (or $BRIMFUL_TEST_DATA), a BPE of 4,096 tokens trained on it, samples of at most 256 tokens, a
transformer of two layers, AdamW. Tasks: `causal` and `masked`, the next token and 15 % masked ones; `classes`: what kind of
line this is (three levels of titles, openings of articles and of sections, any other), the signs of titles taken away. Titles
have 4 to 8 tokens there and the rest 160 in the mean, so that a batch of one length is one of few kinds.

A run is one epoch over the same samples for every setting; the runs of one seed have the same samples and begin with the same
weights. The budget of each setting is chosen so that a step has `--step-tokens` real tokens in the mean; the gradient is that
of the mean over the tokens (or samples) of the step, whatever batches it comes in; the learning rate goes by tokens seen.
Validation is on 30,000 tokens of other articles. Seconds are those of training and of making batches; of processor time where
OMP_NUM_THREADS=1, so that settings can be compared on a machine that others use too.

Settings: `random` rows, padded. `sorted`: windows sorted by length, their batches in that order. `budget k`: k batches of a
token budget a step, in random order. `micro_batches k`: dealt by the library, so that a step covers short and long alike.
`windows of steps k`: the same, sorted over two steps at a time. `static`: 8 shapes. `packed`: rows of 256, a mask of blocks.
`groups`: random rows, in 4 groups of like length. `even`, of `classes`: a step's losses are divided by the mean number of samples
a step, not by their own number, so that a sample weighs the same whatever step it is in.

On a GPU, `--width 512 --layers 8` is what keeps it busy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _curves import Curve, drawn
from _training import MAX_LENGTH, TASKS, Model, Task, read, tokenizer_of

import brimful as bf

POINTS = 8
VALIDATION_TOKENS = 30_000
NEAR = 0.01  # nats above the last loss of random rows that count as having reached it
Run = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How batches of about so many real tokens are made, how many of them are a step, and what a step's losses are divided by.

    By their number; or, `even`, by the mean number over all steps, so that each sample (token) weighs the same in the epoch.
    """

    name: str
    make: Callable[..., bf.Batches]
    per_step: int = 1
    even: bool = False


def random_rows(data: bf.Dataset, tokens: float, lengths: np.ndarray[Any, Any], **options: Any) -> bf.Batches:
    return data.batch(max(1, round(tokens / lengths.mean())), **options)


def budget(data: bf.Dataset, tokens: float, lengths: np.ndarray[Any, Any], **options: Any) -> bf.Batches:
    return data.batch_by_tokens(max(MAX_LENGTH, round(tokens)), **options)


def of_steps(data: bf.Dataset, tokens: float, lengths: np.ndarray[Any, Any], k: int, **options: Any) -> bf.Batches:
    return data.batch_by_tokens(max(MAX_LENGTH, round(tokens)) * k, micro_batches=k, **options)


def static(data: bf.Dataset, tokens: float, lengths: np.ndarray[Any, Any], **options: Any) -> bf.Batches:
    return data.batch(bf.StaticShapes(bf.optimal_buckets(lengths, 8), max(MAX_LENGTH, round(tokens))), **options)


def packed(data: bf.Dataset, tokens: float, lengths: np.ndarray[Any, Any], **options: Any) -> bf.Batches:
    return data.pack(MAX_LENGTH, rows=max(1, round(tokens / MAX_LENGTH)), **options)


def settings(task: Task) -> list[Setting]:
    """By name all that is compared; `even` where a step's losses are not about as many as its tokens."""
    made = [
        Setting("random", random_rows),
        Setting("sorted", partial(budget, shuffle_batches=False)),
        *(Setting(f"budget {k}", budget, k) for k in (1, 2, 4, 8)),
        *(Setting(f"micro_batches {k}", partial(of_steps, k=k), k) for k in (2, 4, 8)),
        *(Setting(f"windows of steps {k}", partial(of_steps, k=k, window="steps"), k) for k in (2, 4)),
        Setting("static", static),
        Setting("packed", packed),
        Setting("groups", partial(random_rows, layout="grouped", num_groups=4)),
    ]
    known = {setting.name: setting for setting in made}
    chosen = () if task.columns else ("budget 1", "micro_batches 4", "micro_batches 8")
    return [*made, *(replace(known[name], name=f"{name} even", even=True) for name in chosen)]


def fitted(setting: Setting, data: bf.Dataset, step_tokens: int, **options: Any) -> bf.Batches:
    """Batches of the setting of which so many real tokens are a step, as near as whole rows allow, by bisection."""
    lengths = data.lengths()
    low, high = step_tokens / setting.per_step / 4, step_tokens / setting.per_step * 4
    tried: list[tuple[float, int, bf.Batches]] = []
    for _ in range(10):
        asked = (low + high) / 2
        batches = setting.make(data, asked, lengths, **options)
        seen = lengths.sum() / len(batches) * setting.per_step
        tried.append((abs(seen / step_tokens - 1), len(tried), batches))
        low, high = (asked, high) if seen < step_tokens else (low, asked)
    return min(tried)[2]


def steps(batches: bf.Batches, per_step: int, device: torch.device) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """The padded or packed batches of each optimizer step, and its real tokens."""
    held: list[dict[str, Any]] = []
    tokens = made = seen = 0
    with batches.iter() as it:
        for batch in it:
            parts = batch["groups"].groups if "groups" in batch else [batch]
            held += [{name: to(value, device) for name, value in part.items()} for part in parts]
            made += 1
            if batch.get("ends_step", made == per_step):
                tokens, seen = int(it.stats.tokens) - seen, int(it.stats.tokens)
                yield held, tokens
                held, made = [], 0
        if held:
            yield held, int(it.stats.tokens) - seen


def to(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def rate(share: float, schedule: str) -> float:
    """Of the highest learning rate, after this share of the tokens: 5 % warm-up, then down to nothing, or constant."""
    return min(share / 0.05, 1.0 if schedule == "constant" else (1 - share) / 0.95)


def train(task: Task, setting: Setting, data: bf.Dataset, valid: Sequence[Any], run: Run, device: torch.device) -> Run:
    """One epoch; the run with its curve: tokens seen, seconds, loss of validation."""
    torch.manual_seed(run["seed"])
    model = Model(task, run["width"], run["layers"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run["lr"], betas=(0.9, 0.98), weight_decay=0.01)
    batches = fitted(setting, data, run["step_tokens"], seed=run["seed"], **task.columns)
    total = int(data.lengths().sum())
    usual = targets(data) / (len(batches) / setting.per_step) if setting.even else None
    curve: list[tuple[int, float, float]] = []
    seen, slots, sizes, shapes, seconds = 0, 0, [], set(), 0.0
    clock = getattr(time, run["clock"])
    source = steps(batches, setting.per_step, device)
    began = clock()
    for micro, tokens in source:
        if not seen:
            model(micro[0])[0].backward()  # what is slow only once is done before the clock starts
            began = clock()
        optimizer.zero_grad()
        count = 0
        for batch in micro:
            loss, several = model(batch)
            loss.backward()
            count += several
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= usual or max(1, count)
        seen += tokens
        for group in optimizer.param_groups:
            group["lr"] = run["lr"] * rate(seen / total, run["schedule"])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sizes.append(tokens)
        shapes |= {tuple(batch["input_ids"].shape) for batch in micro}
        slots += sum(batch["input_ids"].numel() for batch in micro)
        if seen >= total * (len(curve) + 1) / POINTS:
            synchronize(device)
            seconds += clock() - began
            curve.append((seen, round(seconds, 2), evaluate(model, valid)))
            began = clock()
    assert seen == total, f"{setting.name} trained on {seen:,} of {total:,} tokens"
    return run | {
        "curve": curve,
        "padding": round(1 - seen / slots, 4),
        "steps": len(sizes),
        "tokens_a_step": [round(float(np.mean(sizes))), round(float(np.std(sizes)))],
        "shapes": len(shapes),
    }


def targets(data: bf.Dataset) -> int:
    """How many losses an epoch has."""
    return sum(1 if "label" in sample else int((sample["targets"] >= 0).sum()) for sample in data)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def evaluate(model: Model, valid: Sequence[Any]) -> float:
    losses, counts = zip(*(model(batch) for batch in valid))
    return round(float(sum(losses) / sum(counts)), 4)


def some(rows: Any, tokens: int, seed: int) -> Any:
    """Rows in a random order, the same for the same seed, until there are so many tokens."""
    order = np.random.default_rng(seed).permutation(len(rows))
    lengths = rows["input_ids"].combine_chunks().value_lengths().to_numpy()
    return rows.take(order[: int(np.searchsorted(np.cumsum(lengths[order]), tokens)) + 1])


def at(curve: Sequence[Sequence[float]], share: float) -> float:
    """The loss after this share of the tokens."""
    tokens, _, losses = zip(*curve)
    return float(np.interp(share * tokens[-1], tokens, losses))


def seconds_to(curve: Sequence[Sequence[float]], loss: float) -> float:
    """Seconds until the loss was first as low as this; NaN where it never was."""
    for (_, before, high), (_, after, low) in pairwise(curve):
        if low <= loss:
            return float(before + (after - before) * (high - loss) / (high - low)) if high > loss else float(before)
    return math.nan


def table(runs: Sequence[Run]) -> None:
    """Of each task: what was measured of each setting, and its distance from random rows with the same seed."""
    for task in dict.fromkeys(run["task"] for run in runs):
        here = [run for run in runs if run["task"] == task]
        base = {run["seed"]: run["curve"] for run in here if run["setting"] == "random"}
        print(f"\n{task}: mean (spread over seeds); differences from random rows, paired by seed")
        titles = [
            "step made of",
            "padding",
            "tokens a step",
            "shapes",
            "seconds",
            "loss at half",
            "loss",
            "minus the loss of random",
        ]
        titles += [f"as low as random + {NEAR} after"]
        print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
        for name in dict.fromkeys(run["setting"] for run in here):
            of = [run for run in here if run["setting"] == name]
            ends = [run["curve"][-1] for run in of]
            paired = [run for run in of if run["seed"] in base]
            gaps = [run["curve"][-1][2] - base[run["seed"]][-1][2] for run in paired]
            shares = [
                seconds_to(run["curve"], base[run["seed"]][-1][2] + NEAR) / base[run["seed"]][-1][1] for run in paired
            ]
            mean, spread = np.mean([run["tokens_a_step"] for run in of], axis=0)
            cells = [
                name,
                f"{np.mean([run['padding'] for run in of]):.1%}",
                f"{mean:,.0f} ({spread:,.0f})",
                f"{np.mean([run['shapes'] for run in of]):.0f}",
                f"{np.mean([end[1] for end in ends]):.0f}",
                f"{np.mean([at(run['curve'], 0.5) for run in of]):.3f}",
                shown([end[2] for end in ends]),
                shown(gaps, "+"),
                "never" if np.isnan(shares).all() else f"{np.nanmean(shares):.2f} of the seconds" + unreached(shares),
            ]
            print("| " + " | ".join(cells) + " |")


def unreached(shares: Sequence[float]) -> str:
    count = int(np.isnan(shares).sum())
    return f", {count} of {len(shares)} never" if count else ""


def shown(values: Sequence[float], sign: str = "") -> str:
    spread = f" ({np.std(values, ddof=1):.3f})" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.3f}{spread}" if values else ""


def plot(runs: Sequence[Run], path: Path) -> None:
    """Of each task the means over the seeds that all its settings have."""
    panels: dict[str, list[Curve]] = {}
    for task in dict.fromkeys(run["task"] for run in runs):
        by_name: dict[str, dict[int, Any]] = {}
        for run in runs:
            if run["task"] == task:
                by_name.setdefault(run["setting"], {})[run["seed"]] = run["curve"]
        seeds = set.intersection(*map(set, by_name.values()))
        for column, unit in ((0, "tokens"), (1, "seconds")):
            curves = panels.setdefault(f"{task}: loss against {unit}", [])
            for name, of in by_name.items():
                points = np.mean([[(point[column], point[2]) for point in of[seed]] for seed in sorted(seeds)], axis=0)
                curves.append(Curve(name, [(float(x), float(y)) for x, y in points]))
    path.write_text(drawn(panels), "utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["causal"])
    parser.add_argument("--settings", nargs="+", default=None, help="names as in the table; by default all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=400_000, help="real tokens of a run")
    parser.add_argument("--step-tokens", type=int, default=2_560, help="real tokens of an optimizer step, in the mean")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--schedule", choices=["linear", "constant"], default="linear", help="after the warm-up")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, help="JSON of all curves: added to, and not run again")
    parser.add_argument("--plot", type=Path, help="SVG")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    device = torch.device(given.device)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{named}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {load}, torch {torch.__version__}")
    done: list[Run] = json.loads(given.results.read_text("utf-8")) if given.results and given.results.exists() else []
    runs: list[Run] = []
    lines, other = read(Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data")))
    tokenizer = tokenizer_of(lines)
    threads = torch.get_num_threads()
    clock = "process_time" if device.type == "cpu" and threads == 1 else "perf_counter"  # others do not slow the former
    print(f"seconds by {clock}")
    shared = ("tokens", "step_tokens", "width", "layers", "lr", "schedule", "device")
    for task in (TASKS[name] for name in given.tasks):
        chosen = [one for one in settings(task) if given.settings is None or one.name in given.settings]
        valid = validation(task, some(task.rows(other, tokenizer, 0), VALIDATION_TOKENS, 0), device)
        for seed in range(given.seeds):
            data = bf.from_sequence(some(task.rows(lines, tokenizer, seed + 1), given.tokens, seed))
            for setting in chosen:
                run = {name: getattr(given, name) for name in shared}
                run |= {"task": task.name, "setting": setting.name, "seed": seed, "threads": threads, "clock": clock}
                known = next((one for one in done if run.items() <= one.items()), None)
                runs.append(known or train(task, setting, data, valid, run, device))
                _, seconds, loss = runs[-1]["curve"][-1]
                print(f"{task.name}, seed {seed}, {setting.name}: {loss:.3f} after {seconds:.0f} s", flush=True)
                if known is None and given.results:
                    done.append(runs[-1])
                    given.results.write_text(json.dumps(done), "utf-8")
    table(runs)
    if given.plot:
        plot(runs, given.plot)


def validation(task: Task, rows: Any, device: torch.device) -> list[dict[str, Any]]:
    batches = bf.from_sequence(rows).batch_by_tokens(2_048, shuffle_batches=False, **task.columns)
    return [{name: to(value, device) for name, value in batch.items()} for batch in batches]


if __name__ == "__main__":
    main()
