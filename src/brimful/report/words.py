"""Sentences that terminal and page share."""

from __future__ import annotations

from brimful.report.compare import RECOMPILE_LIMIT, Outcome, Report, percent


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


def share_of(share: float | None) -> str:
    """A share for a table, "-" where there is none.

    >>> share_of(0.123), share_of(None)
    ('12.3 %', '-')
    """
    return "-" if share is None else f"{share * 100:.1f} %"


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
    worst = f", {most.shapes:,} take {duration(most.shapes * settings.compile_seconds)}"
    fewest_slots = next(outcome.code for outcome in report.outcomes if outcome.name == "least padding")
    return {
        "policy": f"least padding: {fewest_slots}. --json has the call of each.",
        "window": "samples sorted together, in order of arrival; auto is what the loader takes for 1 % padding.",
        "tokens/batch": f"real ones; --max-tokens {settings.max_tokens:,} counts padding too.",
        "cost": (
            "arithmetic of an epoch, relative to the least: B L (1 + L / (6 x width)) for a batch of B rows padded to "
            f"L, the second part attention, width {settings.hidden_size:,}; in packed rows attention within samples. "
            "What a step costs whatever its size is not in it: fewer batches are better."
        ),
        "steps": (
            "how much of the variance of lengths lies between optimizer steps of 1, 2, 4 or 8 such batches: of random "
            "ones next to nothing. Steps of one length slow training down; micro_batches= deals a step to several."
        ),
        "ranks": (
            "they wait for the slowest of each step. tokens: a batch takes as long as it has tokens, padding included. work: as "
            "long as its arithmetic, as in cost. even: work again, with balance_group=8 (or 64) and "
            f"balance_cost=bf.AttentionCost(quadratic=1 / (6 * {settings.hidden_size})). -: there are too few batches for a step "
            "of so many ranks, or they keep the order of arrival, which nothing balances."
        ),
        "shapes": (
            f"* more than {RECOMPILE_LIMIT}: torch.compile(dynamic=False) gives up there (recompile_limit) and runs "
            "eagerly; eager or dynamic=True runs take any number. "
            f"At {settings.compile_seconds:g} s a shape {RECOMPILE_LIMIT} take {limit}{worst if most.too_many_shapes else ''}."
        ),
    }
