"""Arrows go down only; AWS, the environment and the command line stay at the edges."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from tests.architecture.project import CORE, ROOT, TREES, lazy

LAYERS = (
    "errors job outcome config",
    "db address",
    "enqueue claim fence reaper jobs queues schedules migrate",
    "tasks context run settle worker kick alarm producer testing",
    "cli terminal integrations listen doctor __init__ __main__",
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
#: Where code of others may be imported; and ours outside of the core.
PLACES = {
    "psycopg": ("pgq_core/", "functions/"),
    "boto3": ("pgq_core/kick.py", "pgq_core/alarm.py", "functions/_runtime.py"),
    "botocore": ("pgq_core/kick.py", "pgq_core/alarm.py", "functions/_runtime.py"),
    "aws_lambda_powertools": ("functions/",),
    "cronsim": ("pgq_core/schedules.py",),
    "click": ("pgq_core/cli.py", "pgq_core/terminal.py"),
    "rich": ("pgq_core/cli.py", "pgq_core/terminal.py"),
    "pgq_core": ("functions/",),
    "functions": ("functions/",),
}
COLOURED = (ast.AsyncFunctionDef, ast.Await, ast.AsyncWith, ast.AsyncFor)
CLOCKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time"}


def name_of(path: str) -> str:
    return path.removeprefix("pgq_core/").removesuffix(".py").split("/")[0]


def own_imports(path: str) -> set[str]:
    """Return the modules of the core that one of them imports."""
    found: set[str] = set()
    for node in ast.walk(CORE[path]):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return {name if name in LAYER else "__init__" for name in found}


def foreign_imports(path: str) -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(((node.module or "").split(".")[0], node))
    return [(name, node) for name, node in found if name not in sys.stdlib_module_names]


@pytest.mark.parametrize("path", CORE)
def test_arrows_go_down_only(path: str) -> None:
    mine = LAYER[name_of(path)]
    assert [name for name in own_imports(path) if LAYER[name] > mine] == []
    assert mine > 0 or foreign_imports(path) == []


def test_no_arrow_goes_in_a_circle() -> None:
    graph = {name_of(path): own_imports(path) - {"__init__"} for path in CORE}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", TREES)
def test_other_peoples_code_is_imported_where_it_belongs_and_aws_when_it_is_used(path: str) -> None:
    used_later = lazy(TREES[path])
    for name, node in foreign_imports(path):
        assert path.startswith(PLACES.get(name, ())), name
        assert node in used_later or name not in ("boto3", "botocore"), name


@pytest.mark.parametrize("path", TREES)
def test_the_environment_is_read_at_the_edges_and_by_no_import(path: str) -> None:
    edge = path.startswith(("pgq_core/terminal.py", "functions/"))
    names = (ast.Attribute, ast.Name)
    nodes = [node for node in ast.walk(TREES[path]) if isinstance(node, names)]
    read = [node for node in nodes if ast.unparse(node) in ("os.environ", "os.getenv", "getenv")]
    assert edge or not read
    assert set(read) <= lazy(TREES[path])


@pytest.mark.parametrize("path", CORE)
def test_only_an_alarm_and_the_doctor_need_the_workers_own_clock(path: str) -> None:
    """Every other instant is the database's."""
    used = {ast.unparse(node) for node in ast.walk(CORE[path]) if isinstance(node, ast.Attribute)}
    assert path in ("pgq_core/alarm.py", "pgq_core/doctor.py") or not used & CLOCKS


def test_the_core_is_of_one_colour() -> None:
    """Asynchronous callers get thin adapters at the edge, never a second copy."""
    trees = (tree for path, tree in CORE.items() if name_of(path) != "integrations")
    assert not [node for tree in trees for node in ast.walk(tree) if isinstance(node, COLOURED)]


IMPORT_ALL = """
import importlib, sys, psycopg
touched = []
def note(event, args):
    opened = event == "open" and not str(args[0]).endswith(("/", ".py", ".pyc", ".so"))
    if opened or event.startswith(("socket.", "subprocess.")):
        touched.append((event, str(args[0])))
sys.addaudithook(note)
for name in sys.argv[1:]:
    importlib.import_module("pgq_core." + name)
heavy = {"boto3", "botocore", "aws_lambda_powertools", "click", "cronsim", "rich"}
print(sorted(heavy & sys.modules.keys()), touched)
"""


def test_an_import_of_the_library_opens_nothing_and_brings_no_aws_and_no_command_line() -> None:
    inner = [name_of(path) for path in CORE if LAYER[name_of(path)] < 4]
    command = [sys.executable, "-B", "-c", IMPORT_ALL, *inner]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env={})
    assert run.stdout.strip() == "[] []"
