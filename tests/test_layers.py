"""Imports point down only, wherever in a file they stand; a new module must be given its place here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = {  # a module imports what has a smaller number; the modules of one folder may import one another
    "__main__": 15, "cli": 14,
    "demo": 13, "report": 13,
    "__init__": 12,
    "integrations": 11, "read": 11, "testing": 11,
    "dataset": 10,
    "batches": 9,
    "loader": 8,
    "algebra": 7, "attention": 7, "device": 7, "grouping": 7, "loss": 7, "memory": 7, "sampler": 7,
    "stages": 6,
    "collate": 5,
    "columns": 4, "indexed": 4, "labels": 4, "planners": 4, "store": 4,
    "layouts": 3.5, "sources": 3, "windows": 3,
    "choice": 2.5, "typed": 2.5,
    "agreement": 2, "dataloader": 2, "distributed": 2, "encoders": 2, "iterator": 2, "order": 2, "rows": 2, "states": 2,
    "schema": 1.5, "plan": 1, "ragged": 1, "stats": 1, "stream": 1,
    "background": 0, "errors": 0, "once": 0, "random": 0,
}  # fmt: skip
APART = {"stages", "indexed", "integrations"}  # folders whose modules do not import one another
TORCH = {
    *("attention", "cli", "collate", "columns", "demo", "device", "distributed", "grouping", "integrations", "loader"),
    *("loss", "memory"),
}

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
    assert {box(module) for module in MODULES} <= set(LAYERS), "give the new module its place in LAYERS"


def test_imports_point_down() -> None:
    wrong = []
    for module, tree in MODULES.items():
        for target in {within(name) for name in imports(tree)} - {None, module}:
            beside = box(target) == box(module) and not (box(module) in APART and "." in module)
            if not beside and LAYERS[box(target)] >= LAYERS[box(module)]:
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_torch_is_imported_only_where_payload_meets_it() -> None:
    early = {module for module, tree in MODULES.items() if "torch" in map(box, imports(tree, on_import=True))}
    assert {box(module) for module in early} <= TORCH


def test_plan_knows_integers_and_numpy_only() -> None:
    used = {box(name) for module, tree in MODULES.items() if box(module) == "plan" for name in imports(tree)}
    assert used <= {"brimful", "numpy", *sys.stdlib_module_names}


def test_import_brimful_leaves_torch_alone() -> None:
    code = "import sys, brimful, brimful.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
