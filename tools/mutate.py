"""Whether the tests bite: small faults at random places, each of which the tests of its own room should find.

    python tools/mutate.py [--count 200] [--seed 0] [--rooms plan core batching] [--workers 2]

A mutant is one change in one function of a room: a comparison turned or shifted by its edge, `and` for `or`, `+` for `-`, an
integer off by one, a condition negated, a statement left out. It runs in a copy of the sources, and the tests in `tests/<room>`
run against it until the first that fails. What survives is printed with its place and its change, and the share that was killed
at the end. Survivors are leads, not verdicts: some mutants change nothing that can be seen.

Price: the tests of a room for each mutant; 200 take one to two hours on two cores.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Mutant(NamedTuple):
    """A file, the place of a piece of its text, and what stands there instead."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def room(self) -> str:
        return self.path.relative_to(ROOT / "src" / "brimful").parts[0]


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file. Docstrings, annotations and the messages of errors are left alone."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _mutable(ast.parse(text)):
        before = ast.get_source_segment(text.decode(), node)
        if before is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        found += [Mutant(path, node.lineno, start, end, before, after) for after in _changed(node, before)]
    return found


def _mutable(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in node.body:
                if isinstance(inner, ast.stmt) and not (
                    isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
                ):
                    yield from _inside(inner)
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            yield from _mutable(node)


def _inside(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _inside(child)


def _changed(node: ast.expr | ast.stmt, text: str) -> list[str]:
    """What may stand in the place of a piece of code."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and (other := _COMPARED.get(type(node.ops[0]))):
        return [f"({ast.unparse(ast.Compare(node.left, [other()], node.comparators))})"]
    if isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return [f"({ast.unparse(ast.BoolOp(other_op, node.values))})"]
    if isinstance(node, ast.BinOp) and (swapped := _COMPUTED.get(type(node.op))):
        return [f"({ast.unparse(ast.BinOp(node.left, swapped(), node.right))})"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [f"({ast.unparse(node.operand)})"]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [str(node.value + 1)]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [str(not node.value)]
    if isinstance(node, ast.IfExp):
        return [f"({ast.unparse(node.body)})", f"({ast.unparse(node.orelse)})"]
    if isinstance(node, ast.Expr | ast.AugAssign) and not isinstance(
        getattr(node, "value", None), ast.Yield | ast.YieldFrom
    ):
        return ["pass"]
    if isinstance(node, ast.Break | ast.Continue):
        return ["pass"]
    return []


def survives(mutant: Mutant, copy: Path) -> bool:
    """Whether the tests of its room pass with it, in a copy of the sources."""
    place = copy / mutant.path.relative_to(ROOT)
    whole = mutant.path.read_bytes()
    place.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--no-header", "-p", "no:cacheprovider"]
    command += ["-m", "not mutant and not ray", "--timeout=120", f"tests/{mutant.room}"]
    environment = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "BRIMFUL_SRC": str(copy),
        "HYPOTHESIS_PROFILE": "mutant",
    }
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    finally:
        place.write_bytes(whole)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=["plan", "core", "batching"])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    files = [path for room in given.rooms for path in sorted((ROOT / "src" / "brimful" / room).rglob("*.py"))]
    known = [mutant for path in files for mutant in mutants_of(path)]
    chosen = random.Random(given.seed).sample(known, min(given.count, len(known)))
    print(f"{len(chosen):,} of {len(known):,} mutants of {', '.join(given.rooms)}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.workers):
            shutil.copytree(ROOT / "src", Path(folder, str(number), "src"))
            copies.put(Path(folder, str(number)))

        def tried(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return survives(mutant, copy)
            finally:
                copies.put(copy)

        left = 0
        with ThreadPoolExecutor(given.workers) as pool:
            for mutant, lives in zip(chosen, pool.map(tried, chosen)):
                if lives:
                    left += 1
                    place = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
                    print(f"{place}: {mutant.before!r} -> {mutant.after!r}", flush=True)
    print(f"{len(chosen) - left:,} of {len(chosen):,} killed ({1 - left / max(1, len(chosen)):.0%})")


if __name__ == "__main__":
    main()
