"""Imports point down only, wherever in a file they stand; a new module must be given its place here."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import brimful as bf

ROOMS = {  # in the order in which data flow, from below; a module imports from its own room and from those with smaller numbers
    "plan": 0, "core": 1, "grouping": 2, "tables": 3, "encoding": 4, "rows": 5, "sources": 6, "index": 7, "store": 8,
    "batching": 9, "arrays": 10, "ray": 11, "tensors": 12, "isolation": 13, "loader": 11, "batches": 14, "async_loader": 15,
    "warmup": 15, "dataset": 16, "read": 17, "testing": 17, "oom": 18, "inference": 19, "memory": 20,
    "integrations": 21, "__init__": 22, "console": 23, "report": 23, "demo": 24, "cli": 25, "__main__": 26,
}  # fmt: skip
SHARED = {  # what the adapters of a room are made of; an adapter does not import another
    "integrations": {"calls", "checkpoint", "data", "follow", "guard", "loss", "settings", "trainer"},  # of one trainer
}  # fmt: skip
TORCH = {
    "async_loader",
    "cli",
    "demo",
    "grouping",
    "inference",
    "integrations",
    "isolation",
    "loader",
    "memory",
    "oom",
    "tensors",
    "warmup",
}
MOST_AT_THE_TOP = 10

PACKAGE = Path(__file__).parents[1] / "src" / "brimful"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text("utf-8")
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(node: ast.AST, *, on_import: bool = False) -> Iterator[str]:
    """The dotted names of what a file imports; `on_import`: only of what is imported as soon as the file is.

    Those of plan/ are relative, as the same files are a package of another name, too.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = ".".join(filter(None, ["brimful.plan" if child.level else "", child.module]))
            yield from (f"{module}.{alias.name}" for alias in child.names)
        elif not (on_import and deferred(child)):
            yield from imports(child, on_import=on_import)


def deferred(node: ast.AST) -> bool:
    """Whether what stands in a node is not run when the file is imported."""
    typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def within(name: str) -> str | None:
    """The module of ours that an imported name belongs to, None if it is another's."""
    top, *parts = name.split(".")
    if top != "brimful":
        return None
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES), "__init__")


def box(module: str) -> str:
    return module.split(".")[0]


def test_imports_are_absolute_but_in_plan() -> None:
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                ours = bool(node.level) or box(str(node.module)) == "brimful"
                assert node.level == (ours and box(module) == "plan"), f"{module}, line {node.lineno}"


def test_every_module_has_its_place() -> None:
    assert {box(module) for module in MODULES} <= set(ROOMS), "give the new module its place in ROOMS"
    at_the_top = [module for module in MODULES if not (PACKAGE / module).is_dir() and "." not in module]
    assert len(at_the_top) <= MOST_AT_THE_TOP


def test_imports_point_down() -> None:
    wrong = []
    for module, tree in MODULES.items():
        for target in {within(name) for name in imports(tree)} - {None, module}:
            assert target is not None
            beside = box(target) == box(module) and (PACKAGE / box(module)).is_dir()
            if not beside and ROOMS[box(target)] >= ROOMS[box(module)]:
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_an_adapter_does_not_import_another() -> None:
    wrong = []
    for module, tree in MODULES.items():
        shared = SHARED.get(box(module))
        if shared is None or module.rpartition(".")[2] in shared:
            continue
        for target in {within(name) for name in imports(tree)} - {None, module}:
            assert target is not None
            if box(target) == box(module) and target.rpartition(".")[2] not in shared:
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_torch_is_imported_only_where_payload_meets_it() -> None:
    early = {module for module, tree in MODULES.items() if "torch" in map(box, imports(tree, on_import=True))}
    assert {box(module) for module in early} <= TORCH


def test_plan_knows_integers_and_numpy_only() -> None:
    used = {box(name) for module, tree in MODULES.items() if box(module) == "plan" for name in imports(tree)}
    assert used <= {"brimful", "numpy", *sys.stdlib_module_names}


def test_import_brimful_leaves_what_is_large_alone() -> None:
    large = {"torch", "datasets", "transformers", "s3fs", "aiohttp", "ray"}
    code = (
        f"import sys, brimful, brimful.plan; brimful.memory.MemoryModel.fit; sys.exit(bool({large} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_import_brimful_imports_nothing_before_it_is_asked_for() -> None:
    """Each name of the package comes on first use: numpy and pyarrow alone take longer than all else."""
    code = (
        "import sys, brimful as bf\n"
        "early = {'numpy', 'pyarrow', 'fsspec', 'asyncio', 'multiprocessing'} & sys.modules.keys()\n"
        "sys.exit(' '.join(early) or bf.TokenBudget(8).plan([3]) is None or 'pyarrow.parquet' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_on_the_way_from_shards_to_batches_nothing_imports_pandas(tmp_path: Path) -> None:
    """pyarrow does, .4 s where it is installed, whenever it makes an array of something of Python's or of numpy's; and numpy its
    masked arrays, 25 ms, to sort out what is there twice."""
    pytest.importorskip("pandas", reason="there is nothing that would be imported")
    for number in range(3):
        lines = (f'{{"text": "words \u3000 of {number} {line}", "id": {line}}}\n' for line in range(500))
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    path = str(tmp_path)
    code = f"""
        import sys, brimful as bf
        from tests import tokenizers as make
        files = bf.from_files({path!r} + "/*.jsonl", columns=["text"])
        data = files.tokenize(make.bpe(), engine="cache", remove_columns="text").enumerate().shuffle(100, seed=1)
        for batch in data.batch_by_tokens(512, window=200):
            batch["input_ids"]
        stored = data.skip(3).stride(2, 1).add_bos_eos(1, 2).to_store({path!r} + "/store").shuffle(100, seed=1)
        for batch in stored.batch_by_tokens(512):
            batch["input_ids"]
        for batch in stored.pack(64):
            batch["input_ids"]
        sys.exit(" ".join({{"pandas", "numpy.ma"}} & sys.modules.keys()) or None)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_no_file_bears_the_name_of_a_public_function() -> None:
    """Whoever imported the file would have it in place of the function."""
    taken = {name for name in bf.__all__ if not isinstance(getattr(bf, name), ModuleType)}
    assert not taken & {module for module in MODULES if "." not in module}
