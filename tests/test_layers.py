"""Imports point down only, wherever in a file they stand; a new module must be given its place here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = {  # in the order in which data flow, from below; a module imports from its own room and from those with smaller numbers
    "core": 0, "plan": 1, "grouping": 2, "rows": 2, "sources": 3, "index": 4, "store": 5, "windows": 6, "steps": 7, "tensors": 8,
    "algebra": 9, "loader": 9, "batches": 10, "device": 11, "batching": 11, "transforms": 11, "dataset": 12,
    "read": 13, "testing": 13, "integrations": 13, "memory": 14, "__init__": 15,
    "report": 16, "demo": 16, "cli": 17, "__main__": 18,
}  # fmt: skip
SHARED = {  # what the stages of a room are made of; a stage does not import another
    "rows": {
        "beside", "blocks", "blockwise", "bos_eos", "carried", "choice", "compiled", "conversations", "cursor", "cuttable",
        "encoder", "encoder_kinds", "encoders", "engines", "framed", "gathered", "gigatoken_encoder", "hashes", "parallel",
        "pieces", "ragged", "schema", "sides", "tokenizer_by_name", "typed", "word_cache",
    },
    "index": {
        "index", "indexed", "lengths", "order", "sequence", "several", "side_by_side", "slice", "some_columns", "some_rows",
    },
    "integrations": {"adapter", "checkpoint", "data", "evaluation", "held", "loss", "settings"},  # of one trainer
}  # fmt: skip
TORCH = {"cli", "demo", "device", "grouping", "integrations", "loader", "memory", "steps", "tensors"}
MOST_AT_THE_TOP = 10

PACKAGE = Path(__file__).parents[1] / "src" / "brimful"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text("utf-8")
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(node: ast.AST, *, on_import: bool = False) -> Iterator[str]:
    """The dotted names of what a file imports; `on_import`: only of what is imported as soon as the file is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
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


def test_a_stage_does_not_import_another() -> None:
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
    code = f"import sys, brimful, brimful.plan; brimful.MemoryModel.fit; sys.exit(bool({large} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
