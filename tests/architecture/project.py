"""The product's files, read once for the tests of this folder."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATEMENTS = sorted(ROOT.glob("pgq_core/sql/*.sql"))
MODULES = [*ROOT.glob("pgq_core/**/*.py"), *ROOT.glob("functions/*.py")]
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in MODULES}
CORE = {path: tree for path, tree in TREES.items() if path.startswith("pgq_core/")}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked() -> list[Path]:
    """Return what git keeps, whoever owns the folder."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            assert isinstance(node.body[0], ast.Expr)
            yield node.body[0]


def lazy(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes that no import executes."""
    ifs = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    typing = (node.body for node in ifs if ast.unparse(node.test) == "TYPE_CHECKING")
    blocks = [*typing, *(function.body for function in functions(tree))]
    return {inner for block in blocks for part in block for inner in ast.walk(part)}
