"""Whether the tests bite: small faults at random places, each of which the tests of its own room should find.

    python -m tools.mutate [--count 200] [--seed 0] [--rooms plan core ...] [--workers 2] [--output mutants.json]

A mutant is one change in one function: a comparison turned or moved by its edge, `and` for `or` or one side of it alone, `+` for
`-`, an integer one more or one less, a condition negated, an argument or a statement left out, a part of a list 0, None returned.
It runs in a copy of the sources, up to the first test that fails: first the tests that bear the name of its file, then those that
import it, those of its room, the law of the room's stages, and some random pipelines. A test that fails without the mutant too
does not count.

What survives is printed with its place and its change. These are leads, not verdicts: some mutants change nothing that can be
seen, or only how long something takes.

Price: 20 seconds of a core for a mutant, most of them for those that survive; 200 take 40 minutes to an hour on two cores.
Of the 30 that --count 30 --seed 43 chose of 32,057 when this was written, 24 were killed and 6 survived.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, NamedTuple, get_args

from tests.trials import FAILED, PASSED, ROOT, Trials, trials

PACKAGE: Final = ROOT / "src" / "brimful"
TOP: Final = "top"
"""The room of what lies in none."""
NOWHERE: Final = ("ray", "demo")
"""Rooms whose tests need a cluster, or minutes."""
BROKEN: Final = 2
"""What pytest exits with where a test file cannot be imported."""
NO_TESTS: Final = 5
OF_TOP: Final = ("api", "loader", "async_loader", "warm_up", "testing", "convergence")
ACROSS: Final = (
    "tests/test_data_order.py",
    *(f"tests/test_oracle.py::test_random_pipelines_hold_what_plain_python_says[{part}]" for part in (0, 8)),
)
Verdict = Literal["killed", "survived", "timed out"]

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_TURNED: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_NO_CODE: Final = ("annotation", "returns", "decorator_list", "type_params")
_FOR_ALL: Final = ("test_law.py", "test_oracle.py", "test_layers.py", "test_headers.py", "test_mutants.py")
"""Tests that import whatever there is."""
_FEW: Final = 6
"""Of a file that more tests import, those of its room are asked alone."""
_LEFT_ALONE: Final = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Mutant(NamedTuple):
    """A file, the place of a piece of its text in bytes, and what stands there instead."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def room(self) -> str:
        return room_of(self.path)

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path.relative_to(ROOT)}:{self.line}: {before:.100} -> {after:.100}"


def room_of(path: Path) -> str:
    room, *inside = path.relative_to(PACKAGE).parts
    return room if inside else TOP


# -- what may be changed ---------------------------------------------------------------------------------------------------


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file."""
    text = path.read_bytes()
    return [Mutant(path, *one) for one in changes(text.decode())]


def changes(source: str) -> list[tuple[int, int, int, str, str]]:
    """All changes of a source: the line, where the changed piece begins and ends, in bytes, the piece, and what takes its place.
    Docstrings, annotations, decorators and the messages of errors are left alone.
    """
    text, starts, found = source.encode(), [0], []
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, is_condition in _mutable(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = text[start:end].decode()
        others = dict.fromkeys((*_instead(node), *([f"(not ({before}))"] if is_condition else [])))
        found += [(node.lineno, start, end, before, after) for after in others]
    return found


def _mutable(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, bool]]:
    """What stands in functions, and whether it is a condition that is to be negated."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in node.body:
                yield from _inside(inner, False)
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            yield from _mutable(node)


def _inside(node: ast.AST, is_condition: bool) -> Iterator[tuple[ast.expr | ast.stmt, bool]]:
    if isinstance(node, _LEFT_ALONE) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node, is_condition and not _is_negated_anyhow(node)
    for name, value in ast.iter_fields(node):
        if name not in _NO_CODE:
            negated = name == "ifs" or (name == "test" and isinstance(node, ast.If))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _inside(child, negated)


def _is_negated_anyhow(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and isinstance(node.ops[0], _TURNED)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _instead(node: ast.expr | ast.stmt) -> Iterator[str]:
    """What may stand in the place of a piece of code."""
    match node:
        case ast.Compare():
            for place, one in enumerate(node.ops):
                if other := _COMPARED.get(type(one)):
                    ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BoolOp():
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(swapped, node.values))})"
            for place in range(len(node.values)):
                rest = [*node.values[:place], *node.values[place + 1 :]]
                yield f"({ast.unparse(ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0])})"
        case ast.BinOp() if type(node.op) in _COMPUTED:
            yield f"({ast.unparse(ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))})"
        case ast.UnaryOp(op=ast.Not()):
            yield f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
            yield str(value - 1)
        case ast.IfExp():
            yield f"({ast.unparse(node.body)})"
            yield f"({ast.unparse(node.orelse)})"
        case ast.Call():
            for place, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    others = [*node.keywords[:place], *node.keywords[place + 1 :]]
                    yield ast.unparse(ast.Call(node.func, node.args, others))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "return None"
        case ast.Break() | ast.Continue() | ast.AugAssign():
            yield "pass"
        case ast.Expr() if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            yield "pass"
        case ast.Assign() if all(map(partial(_is_there, node.value), node.targets)):
            yield "pass"
        case ast.List(elts=[_, _, *_] as parts, ctx=ast.Load()):
            for place, part in enumerate(parts):
                if isinstance(part, ast.Name | ast.Attribute):
                    yield ast.unparse(ast.List([*parts[:place], ast.Constant(0), *parts[place + 1 :]]))
        case ast.Dict(values=parts):
            for place, part in enumerate(parts):
                if isinstance(part, ast.Name | ast.Attribute) and node.keys[place] is not None:
                    yield ast.unparse(ast.Dict(node.keys, [*parts[:place], ast.Constant(0), *parts[place + 1 :]]))


def _is_there(value: ast.expr, target: ast.expr) -> bool:
    """Whether what a value is assigned to has one already, as far as that can be seen."""
    if isinstance(target, ast.Name):
        return any(isinstance(one, ast.Name) and one.id == target.id for one in ast.walk(value))
    return isinstance(target, ast.Attribute | ast.Subscript)


# -- which tests should find it --------------------------------------------------------------------------------------------


def against(path: Path, law: Sequence[str]) -> list[str]:
    """The tests that a file's mutants run against, those that are likely to find them first.

    Args:
        law: the tests of the law of each stage.
    """
    module = ".".join(("brimful", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    room, name = room_of(path), path.stem.removeprefix("_")
    if room == TOP:
        own = [ROOT / "tests" / f"test_{one}.py" for one in OF_TOP]
    else:
        own = sorted((ROOT / "tests" / room).glob("test_*.py"))
    every = sorted(one for one in (ROOT / "tests").rglob("test_*.py") if one.parent.name not in (*NOWHERE, "gpu"))
    imported = re.compile(rf"\b{re.escape(module)}\b")
    importing = [one for one in every if one.name not in _FOR_ALL and imported.search(one.read_text("utf-8"))]
    importing = importing if len(importing) <= _FEW else []
    first = [one for one in own if name in one.stem]
    files = dict.fromkeys((*first, *importing, *own))
    stages = [test for test in law if f"[{room}." in test]
    return [*(str(one.relative_to(ROOT)) for one in files), *stages, *ACROSS]


def law_of_stages() -> list[str]:
    """The names of these tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "tests/test_law.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "::test_law_of_each_stage[" in line]


class Workplace(NamedTuple):
    """A copy of the sources, and what runs tests against it."""

    copy: Path
    trials: Trials


def verdict_on(mutant: Mutant, at: Workplace, law: Sequence[str], seconds: float, odd: set[str]) -> Verdict:
    """What the tests say of a mutant.

    Args:
        odd: tests that fail without a mutant too, which are left out. Those that are found are added.
    """
    tests = against(mutant.path, law)
    while True:
        with mutated(mutant, at.copy):
            code, said = at.trials.run(tests, seconds, source=at.copy, without=[*odd])
        if code in (PASSED, NO_TESTS):
            return "survived"
        if code is None:
            return "timed out"
        if code == BROKEN or code < 0:  # nothing could be imported, or the process ended
            return "killed"
        failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", said, re.MULTILINE)
        if code != FAILED or not failed:
            raise RuntimeError(f"pytest exits with {code} on {mutant}: {said[-2000:]}")
        if at.trials.run(tests, seconds, source=at.copy, only=failed).code == PASSED:
            return "killed"
        odd.update(failed)


@contextmanager
def mutated(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Within, a copy of the sources has the mutant."""
    place = copy / mutant.path.relative_to(ROOT / "src")
    whole = mutant.path.read_bytes()
    place.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :])
    try:
        yield
    finally:
        shutil.copy2(mutant.path, place)


def table(verdicts: Mapping[Mutant, Verdict]) -> str:
    """How many of each room there were, and what became of them."""
    counts: dict[str, Counter[str]] = {}
    for mutant, verdict in verdicts.items():
        for room in (mutant.room, "in all"):
            counts.setdefault(room, Counter()).update(("made", verdict))
    names = ("made", *get_args(Verdict))
    rooms = sorted(counts, key=lambda room: (room == "in all", room))
    rows = [f"{room:<14}" + "".join(f"{counts[room][name]:>12,}" for name in names) for room in rooms]
    return "\n".join((f"{'room':<14}" + "".join(f"{name:>12}" for name in names), *rows))


def as_json(verdicts: Mapping[Mutant, Verdict], seed: int) -> str:
    """What was not killed, with its place and its change."""
    left = [
        {
            "verdict": verdict,
            "file": str(one.path.relative_to(ROOT)),
            "line": one.line,
            "before": one.before,
            "after": one.after,
        }
        for one, verdict in sorted(verdicts.items())
        if verdict != "killed"
    ]
    return json.dumps({"seed": seed, "made": len(verdicts), "left": left}, indent=1) + "\n"


def verdicts_on(chosen: Sequence[Mutant], workers: int, seconds: float) -> dict[Mutant, Verdict]:
    """What became of some mutants; says it of each that was not killed."""
    law, found, odd = law_of_stages(), dict[Mutant, Verdict](), set[str]()
    free: SimpleQueue[Workplace] = SimpleQueue()

    def verdict(mutant: Mutant) -> Verdict:
        at = free.get()
        try:
            return verdict_on(mutant, at, law, seconds, odd)
        finally:
            free.put(at)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        for number in range(workers):
            shutil.copytree(ROOT / "src", f"{folder}/{number}")
            free.put(Workplace(Path(folder, str(number)), stack.enter_context(trials())))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        asked = {pool.submit(verdict, mutant): mutant for mutant in chosen}
        for number, done in enumerate(as_completed(asked), 1):
            mutant = asked[done]
            found[mutant] = done.result()
            if found[mutant] != "killed":
                print(f"{number:,}/{len(chosen):,} {found[mutant]}: {mutant}", flush=True)
    if odd:
        print(f"these fail without a mutant too: {', '.join(sorted(odd))}")
    return found


def main() -> None:
    known = sorted({room_of(path) for path in PACKAGE.rglob("*.py")} - {*NOWHERE})
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=known, choices=known, metavar="ROOM")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for a mutant")
    parser.add_argument("--output", type=Path, help="a file for what survives, as JSON")
    given = parser.parse_args()
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) in given.rooms]
    every = [mutant for path in files for mutant in mutants_of(path)]
    chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{len(chosen):,} of {len(every):,} mutants of {', '.join(given.rooms)}; seed {given.seed}", flush=True)
    verdicts = verdicts_on(chosen, given.workers, given.seconds)
    print(table(verdicts))
    if given.output is not None:
        given.output.write_text(as_json(verdicts, given.seed))


if __name__ == "__main__":
    main()
